"""Commits with malformed metadata: followed, compared and explained. Only what is read has to be well formed."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pygit2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.controller.instance.state_directory import LEDGER
from gitboot.git.clone import Source
from gitboot.git.history import ancestors, commits_between, is_ancestor, merge_base
from gitboot.git.remote import Remote
from gitboot.git.repository import CommitReader, Person, parse_person
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from tests.helpers.evaluations import FLEET
from tests.helpers.fleets import image
from tests.helpers.git_repositories import MALFORMED, Work, commit_by_git, commit_malformed, git_daemon
from tests.helpers.instance_with_bmcs import Done, typed
from tests.helpers.running_instance import eventually, running


@pytest.fixture
def work(tmp_path: Path) -> Work:
    work = Work(tmp_path / "fleet")
    work.commit(FLEET)
    return work


def follow(source: Source) -> str:
    """Fetch and accept the newest commit as an instance does."""
    before, latest = source.accepted(), source.fetch()
    source.merges(before, latest)
    assert before is None or not source.is_rewind(before, latest)
    source.acknowledging_content([before] if before is not None else [], [latest])
    source.committed_at(latest)
    assert "fleet.yaml" in source.snapshot(latest).blobs
    source.accept(latest)
    assert source.accepted() == source.latest() == latest
    return latest


def understood(*arguments: object) -> Done:
    """What a command says that must not fail."""
    done = typed(*arguments)
    assert done.code == 0, done
    return done


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_commit_is_followed_and_so_is_what_comes_after_it(tmp_path: Path, work: Work, fault: str) -> None:
    source = Source(Remote(url=str(work.path)), tmp_path / "state")
    (tmp_path / "state").mkdir()
    follow(source)
    malformed = commit_malformed(work, MALFORMED[fault])
    assert follow(source) == malformed
    after = commit_by_git(work, {"images/new.yaml": image("new-1")})
    assert follow(source) == after
    (tmp_path / "late").mkdir()
    assert follow(Source(Remote(url=str(work.path)), tmp_path / "late")) == after


@pytest.mark.parametrize("fault", ["badDateOverflow", "missingAuthor", "missingEmail", "nulInHeader", "notUtf8"])
def test_history_explain_and_diff_read_over_a_malformed_commit(work: Work, fault: str) -> None:
    before = work.head
    malformed = commit_malformed(work, MALFORMED[fault])
    commit_by_git(work, {"images/new.yaml": image("new-1")}, "Add an image")
    shown = json.loads(understood("history", "fra1-web01", "--path", work.path, "-o", "json").out)
    assert before in json.dumps(shown)
    explained = understood("explain", "fra1-web01", "--path", work.path, "-o", "json").json
    assert before[:9] in json.dumps(explained)
    for base in (before, malformed, malformed[:12], "HEAD~1", "HEAD^"):
        assert typed("diff", f"{base}..HEAD", "--path", work.path).code == 0


def test_a_malformed_commit_merges(work: Work) -> None:
    work.git("switch", "--quiet", "--create", "side")
    commit_by_git(work, {"images/side.yaml": image("side-1")})
    work.git("switch", "--quiet", "main")
    commit_malformed(work, MALFORMED["missingEmail"])
    assert typed("diff", "--merge", "main..side", "--path", work.path).code == 0
    assert typed("diff", "main...side", "--path", work.path).code == 0


@pytest.mark.parametrize("fault", ["missingEmail", "missingEmailOfCommitter", "missingBoth", "badDateOverflow"])
def test_a_remote_is_fetched_from_while_a_malformed_commit_is_among_the_newest(
    tmp_path: Path, work: Work, fault: str
) -> None:
    """libgit2 parses the newest commits of the clone to negotiate with a server."""
    (tmp_path / "state").mkdir()
    with git_daemon(tmp_path) as url:
        source = Source(Remote(url=f"{url}/fleet"), tmp_path / "state")
        follow(source)
        commit_malformed(work, MALFORMED[fault])
        follow(source)
        assert follow(source) == work.head  # nothing is new
        assert follow(source) != commit_by_git(work, {"images/new.yaml": image("new-1")})
        assert follow(source) == work.head
        assert not (tmp_path / "state" / "repository.whole").exists()


def test_a_commit_without_a_tree_is_refused_and_the_next_one_is_followed(tmp_path: Path, work: Work) -> None:
    (tmp_path / "state").mkdir()
    source = Source(Remote(url=str(work.path)), tmp_path / "state")
    follow(source)
    tree = work.git("rev-parse", "HEAD^{tree}")
    commit_malformed(work, b"parent PARENT\nauthor Ada <a@b> 17 +0000\ncommitter Ada <a@b> 17 +0000\n\nNo tree\n")
    assert source.snapshot(source.fetch()).blobs == {}
    raw = b"tree %b\nparent PARENT\nauthor Ada <a@b> 17 +0000\ncommitter Ada <a@b> 17 +0000\n\nMended\n"
    commit_malformed(work, raw % tree.encode())
    follow(source)


def test_finding_s13_an_instance_follows_a_branch_with_a_commit_without_an_address(tmp_path: Path, work: Work) -> None:
    """A stranger's pull request brings the commit, deep in its history; then ordinary work goes on."""
    work.git("switch", "--quiet", "--create", "stranger")
    commit_malformed(work, MALFORMED["missingEmail"])
    commit_by_git(work, {"images/strange.yaml": image("strange-1")})
    work.git("switch", "--quiet", "main")
    with git_daemon(tmp_path) as url, running(f"{url}/fleet", tmp_path, "--poll", "1", records="adopt") as instance:

        def is_applied(commit: str) -> bool:
            return bool(instance.status()["applied"]["commit"] == commit)

        eventually(lambda: is_applied(work.head))
        work.git("merge", "--quiet", "--no-ff", "--message=Merge", "stranger")
        eventually(lambda: is_applied(work.head))
        for number in range(2):
            commit_by_git(work, {"images/new.yaml": image(f"new-{number}")})
            eventually(lambda: is_applied(work.head))
    with closing(Store.open(tmp_path / "state" / LEDGER)) as ledger:
        assert "FetchFailed" not in {each["type"] for each in instance_tables.read_events(ledger)}


# What is read of one commit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"Ada <a@b> 17 +0130", Person(b"Ada", b"a@b", 17, 90)),
        (b"Ada <a@b> -17 -0130", Person(b"Ada", b"a@b", -17, -90)),
        (b"Ada <a@b> 17", Person(b"Ada", b"a@b", 17, 0)),
        (b"Ada 17 +0000", Person(b"Ada", b"", 17, 0)),
        (b"Ada <a@b", Person(b"Ada", b"a@b", 0, 0)),
        (b"Ada <a@b> 17 +9900", Person(b"Ada", b"a@b", 17, 0)),
        (b"Ada <a@b> 9999999999999999999 +0000", Person(b"Ada", b"a@b", 0, 0)),
        (b"", Person(b"", b"", 0, 0)),
    ],
)
def test_a_person_is_read_as_far_as_the_text_allows(text: bytes, expected: Person) -> None:
    assert parse_person(text) == expected


@pytest.mark.parametrize("fault", MALFORMED)
def test_what_libgit2_can_read_of_a_commit_is_read_the_same(work: Work, fault: str) -> None:
    oid = pygit2.Oid(hex=commit_malformed(work, MALFORMED[fault]))
    git = pygit2.Repository(str(work.path))
    found = CommitReader(git).read(oid)
    assert str(found.parents[0]) == work.git("rev-parse", f"{oid}^")
    try:
        expected = git[oid]
    except pygit2.GitError:
        return
    assert isinstance(expected, pygit2.Commit)
    assert (found.tree, list(found.parents), found.message) == (
        expected.tree_id,
        expected.parent_ids,
        expected.raw_message,
    )
    for ours, theirs in ((found.author, expected.author), (found.committer, expected.committer)):
        if fault not in ("nulInHeader", "badDate", "hugeDate", "missingSpaceBeforeDate"):
            assert ours == (theirs.raw_name, theirs.raw_email, theirs.time, theirs.offset)


# What led to what


@given(parents=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=12), data=st.data())
def test_history_is_walked_as_libgit2_does_where_that_can(
    tmp_path_factory: pytest.TempPathFactory, parents: list[list[int]], data: st.DataObject
) -> None:
    """Without libgit2 the same commits are found, each before its parents."""
    git = pygit2.init_repository(str(tmp_path_factory.mktemp("dag")), bare=True)
    tree, ada = git.TreeBuilder().write(), pygit2.Signature("Ada", "a@b", 1_700_000_000, 0)
    made: list[pygit2.Oid] = []
    for number, before in enumerate(parents):
        links = list(dict.fromkeys(made[each % number] for each in before)) if number else []
        made.append(git.create_commit(None, ada, ada, str(number), tree, links))
    one, other = (data.draw(st.sampled_from(made)) for _ in range(2))
    reader = CommitReader(git)
    expected = {commit.id for commit in commits_between(git, [one], other)}
    found = _without_libgit2(git, one, other)
    assert set(found) == expected
    assert all(found.index(each) < found.index(up) for each in found for up in reader.read(each).parents if up in found)
    assert is_ancestor(git, one, other) == (one in ancestors(reader, [other]))
    common = ancestors(reader, [one]) & ancestors(reader, [other])
    assert (merge_base(git, one, other) is None) == (not common)


def _without_libgit2(git: pygit2.Repository, hidden: pygit2.Oid, tip: pygit2.Oid) -> list[pygit2.Oid]:
    from gitboot.git.history import _sorted_topologically

    reader = CommitReader(git)
    return _sorted_topologically(reader, [tip], ancestors(reader, [hidden]))


def test_a_time_outside_the_calendar_is_the_nearest_inside(tmp_path: Path, work: Work) -> None:
    (tmp_path / "state").mkdir()
    source = Source(Remote(url=str(work.path)), tmp_path / "state")
    commit_malformed(work, MALFORMED["negativeDate"])
    assert source.committed_at(source.fetch()) == datetime(1970, 1, 1, tzinfo=UTC)
