"""A fleet in a folder of a repository, and repositories with commits that libgit2 cannot parse."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pygit2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.cli.main import Exit
from gitboot.controller.instance.state_directory import LEDGER
from gitboot.errors import LedgerError, SourceError, SubpathMissing, UsageError
from gitboot.git.clone import Source
from gitboot.git.history import find_ancestors, find_merge_base, is_ancestor, list_commits_between
from gitboot.git.remote import Remote
from gitboot.git.repository import CommitReader, Person, is_out_of_memory, parse_person, parse_subpath
from gitboot.git.snapshots import open_snapshot
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET
from tests.helpers.fleets import SEED, image, server, write_configuration
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import MALFORMED, WorkTree, commit_by_git, commit_malformed, git_daemon
from tests.helpers.instance_with_bmcs import CommandResult, run_command
from tests.helpers.running_instance import Instance, eventually, git, running

SITES = ("infra/east", "infra/west")


def documents(site: str, *more: str) -> dict[str, str]:
    own = server(f"{site.rpartition('/')[2]}01", "role: web")
    return {f"{site}/fleet.yaml": "---\n".join((*SEED[:1], *SEED[2:], own, *more))}


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    made = WorkTree(tmp_path / "work")
    made.commit({"README.md": "ours", **documents("infra/east"), **documents("infra/west")}, "Begin")
    made.bare(tmp_path / "fleet.git")
    return made


@pytest.mark.parametrize(
    ("text", "found"), [("infra/boot", "infra/boot"), ("boot/", "boot"), ("a b", "a b"), ("ä", "ä")]
)
def test_a_folder_is_named_as_in_git(text: str, found: str) -> None:
    assert parse_subpath(text) == found


@for_each("text", ["", "/", "/infra", "infra//boot", "../boot", "infra/./boot", ".github", "a/.b", "a\nb"])
def test_an_invalid_folder_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--subpath"):
        parse_subpath(text)


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "work tree"])
def test_each_command_reads_the_fleet_in_the_folder(
    work: WorkTree, tmp_path: Path, bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(tmp_path / "fleet.git") if bare else str(work.path)
    rev = ("--rev", "main")
    for site in SITES:
        name = f"{site.rpartition('/')[2]}01"
        for place in ((where, "--subpath", site), (f"{where}/{site}",)):
            assert run_command("validate", *place, *rev).code == 0
            planned = run_command("plan", *place, *rev, "-o", "json")
            assert [each["server"] for each in planned.json["items"]] == [name]
        by_option = ("--path", where, "--subpath", site)
        assert run_command("explain", name, *by_option, *rev).code == 0
        assert run_command("history", name, "--path", where, "--subpath", site).code == 0
        assert run_command("diff", "main..main", where, "--subpath", site).code == 0
    monkeypatch.setenv("GITBOOT_SUBPATH", SITES[0])
    assert [each["server"] for each in run_command("plan", where, *rev, "-o", "json").json["items"]] == ["east01"]
    gone = run_command("validate", where, "--subpath", "infra/north", *rev)
    assert (gone.code, "has no folder infra/north" in gone.err) == (Exit.USAGE, True), gone


def test_problems_are_shown_with_their_path_in_the_repository(work: WorkTree, monkeypatch: pytest.MonkeyPatch) -> None:
    work.write({"infra/east/more.yaml": "kind: Nothing\n"})
    monkeypatch.chdir(work.path)
    found = run_command("validate", "--subpath", "infra/east", "-o", "github", "-o", "text")
    assert "file=infra/east/more.yaml" in found.out and "\ninfra/east/more.yaml:1:7: " in f"\n{found.out}"
    work.git("checkout", "--quiet", "-b", "change")
    work.commit()
    ranged = run_command(
        "diff", "main...change", "--merge", "--subpath", "infra/east", "-o", "github", "-o", "markdown"
    )
    assert (ranged.code, "file=infra/east/more.yaml" in ranged.out) == (Exit.INVALID, True)
    assert "\n<!-- gitboot diff infra/east -->\n" in ranged.out
    other = run_command("diff", "main...change", "--merge", "--subpath", "infra/west", "-o", "markdown")
    assert (other.code, other.out.partition("\n")[0]) == (0, "<!-- gitboot diff infra/west -->")


# An instance


def source(url: str, state: Path, subpath: str) -> Source:
    state.mkdir(exist_ok=True)
    return Source(Remote(url=url, subpath=subpath), state)


def test_a_missing_folder_is_named_and_changes_nothing(work: WorkTree, tmp_path: Path) -> None:
    url, state = str(tmp_path / "fleet.git"), tmp_path / "state"
    with pytest.raises(SubpathMissing, match="has no folder infra/north"):
        source(url, state, "infra/north").fetch()
    ours = source(url, state, "infra/east")
    first = ours.fetch()
    ours.accept(first)
    work.git("mv", "infra/east", "infra/orient")
    work.commit(message="Rename")
    work.git("push", "--quiet", "origin", "main")
    with pytest.raises(SubpathMissing, match=f"commit {work.head[:12]} has no folder infra/east"):
        ours.fetch()
    assert (ours.latest(), ours.accepted()) == (first, first)
    assert sorted(ours.snapshot(first).blobs) == ["fleet.yaml"]


@pytest.mark.parametrize("before_020", [False, True], ids=["a clone of this version", "a clone of 0.1.0"])
def test_the_accepted_commit_keeps_its_folder_if_the_next_one_has_another(
    work: WorkTree, tmp_path: Path, before_020: bool
) -> None:
    """So guards judge what changes for machines, and not another reading of what was accepted."""
    url, state = str(tmp_path / "fleet.git"), tmp_path / "state"
    ours = source(url, state, "infra/east")
    first = ours.fetch()
    ours.accept(first)
    if before_020:
        git(ours.clone.path, "config", "--unset", "gitboot.acceptedfolder")
    work.commit({"infra/west/more.yaml": server("west02", "role: web")})
    work.git("push", "--quiet", "origin", "main")
    ours = source(url, state, "infra/west")
    second = ours.fetch()
    before = ours.snapshot(first)
    after = ours.snapshot(second, before)
    assert before.blobs == open_snapshot(work.path / "infra/east", first).blobs
    assert after.blobs == open_snapshot(work.path / "infra/west", second).blobs
    assert (before.folder, after.folder, after.changed) == (
        "infra/east",
        "infra/west",
        frozenset({"fleet.yaml", "more.yaml"}),
    )
    ours.accept(second)
    assert ours.snapshot(second).blobs == after.blobs
    ours.restore(second)
    assert ours.snapshot(second).blobs == after.blobs


def test_a_commit_without_changes_in_the_folder_only_costs_a_comparison_of_trees(
    work: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = source(str(tmp_path / "fleet.git"), tmp_path / "state", "infra/east")
    before = ours.snapshot(ours.fetch())
    work.commit({f"apps/{number}.txt": "x" for number in range(9)} | {"infra/west/fleet.yaml": "another"})
    work.git("push", "--quiet", "origin", "main")
    latest = ours.fetch()
    monkeypatch.setattr("gitboot.git.snapshots._read_entries", None)  # files below the folder are not read
    after = ours.snapshot(latest, before)
    assert (after.changed, after.blobs) == (frozenset(), before.blobs)


def test_two_fleets_of_one_repository_have_separate_instances(work: WorkTree, tmp_path: Path) -> None:
    def follow(site: str) -> Iterator[Instance]:
        folder = tmp_path / site.replace("/", "-")
        folder.mkdir()
        options = (
            "--subpath",
            site,
            "--poll",
            "3600",
            "--check-assets",
            "off",
            *write_configuration(max_small_group=9),
        )
        with running(f"file://{tmp_path}/fleet.git", folder, *options, records="fresh") as instance:
            yield instance

    def servers(instance: Instance) -> list[str]:
        return [each["name"] for each in instance.get("/api/v1/servers").json()["items"]]

    with contextmanager(follow)("infra/east") as east, contextmanager(follow)("infra/west") as west:
        assert (servers(east), servers(west)) == (["east01"], ["west01"])
        commit = work.commit(documents("infra/west", server("west02", "role: web")))
        work.git("push", "--quiet", "origin", "main")
        for instance in (east, west):
            eventually(lambda instance=instance: instance.status()["applied"]["commit"] == commit)  # type: ignore[misc]
        assert (servers(east), servers(west)) == (["east01"], ["west01", "west02"])
        work.git("rm", "--quiet", "-r", "infra/west")
        gone = work.commit(message="Move elsewhere")
        work.git("push", "--quiet", "origin", "main")
        conditions = eventually(
            lambda: [each for each in west.status()["conditions"] if each["reason"] == "SubpathMissing"]
        )
        assert f"commit {gone[:12]} has no folder infra/west" in conditions[0]["message"]
        eventually(lambda: east.status()["applied"]["commit"] == gone)
        assert (servers(west), west.status()["applied"]["commit"]) == (["west01", "west02"], commit)
    clone = tmp_path / "infra-west" / "state" / "repository.git"
    checked = run_command("validate", clone, "--rev", commit)  # as the line that leads out of a condition has it
    assert (checked.code, subprocess.run(["ls", clone], check=True, capture_output=True).returncode) == (0, 0), checked
    assert json.loads((tmp_path / "infra-west" / "state" / "status.json").read_bytes())["accepted"]["commit"] == commit


# A branch puts something else in the folder's place


def a_symlink(work: WorkTree) -> str:
    (work.path / "fleet").symlink_to("infra/east")
    return "fleet"


def a_symlink_above(work: WorkTree) -> str:
    (work.path / "other").symlink_to("infra")
    return "other/east"


def a_symlink_out_of_the_repository(work: WorkTree) -> str:
    work.git("clone", "--quiet", ".", "../elsewhere")
    (work.path / "fleet").symlink_to("../elsewhere/infra/east")
    return "fleet"


def a_bare_repository(work: WorkTree) -> str:
    """Git checks out each of its files, and Git's own search takes the folder for a repository."""
    copy = work.path / "fleet"
    work.git("clone", "--quiet", "--bare", ".", "fleet")
    (copy / "config").write_text("[core]\nbare = true\nrepositoryformatversion = 0\n")
    (copy / "refs" / "heads").mkdir(exist_ok=True)
    (copy / "refs" / "heads" / "main").write_text(f"{work.head}\n")
    return "fleet/infra/east"


def a_submodule(work: WorkTree) -> str:
    work.git("clone", "--quiet", "--bare", ".", "../copy.git")
    copy = str(work.path.parent / "copy.git")
    work.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", copy, "fleet")
    return "fleet/infra/east"


PLANTS = [a_symlink, a_symlink_above, a_symlink_out_of_the_repository, a_bare_repository, a_submodule]


@pytest.mark.parametrize("plant", PLANTS)
def test_finding_s15_ci_rejects_a_folder_that_an_instance_rejects(
    work: WorkTree, tmp_path: Path, plant: Callable[[WorkTree], str]
) -> None:
    remote = tmp_path / "hostile.git"
    folder = plant(work)
    work.git("add", "--all")
    work.git("commit", "--quiet", "--message=Plant")
    pygit2.init_repository(str(remote), bare=True, initial_head="main")
    work.git("push", "--quiet", "--force", str(remote), "HEAD:refs/heads/main")
    places = ("--out", tmp_path / "output", "--state", tmp_path / "state")
    instance = run_forked("run", remote, "--subpath", folder, *places, "--once", "--allow-empty")
    assert (instance.returncode != Exit.FINE, "has no folder" in instance.stderr) == (True, True)

    refused = {Exit.USAGE, Exit.SOURCE}
    for command in (
        ("validate", work.path, "--subpath", folder),
        ("validate", work.path, "--subpath", folder, "--rev", "HEAD"),
        ("plan", work.path, "--subpath", folder),
        ("explain", "east01", "--path", work.path, "--subpath", folder),
        ("images", "--path", work.path, "--subpath", folder),
        ("diff", "HEAD~..HEAD", work.path, "--subpath", folder),
        ("diff", "HEAD~...HEAD", work.path, "--subpath", folder, "--merge"),
        ("diff", "HEAD~", work.path, "--subpath", folder),
        ("history", "east01", "--path", work.path, "--subpath", folder),
        ("artifacts", "signatures", "--path", work.path, "--subpath", folder, "--image-keys", tmp_path),
    ):
        done = run_forked(*command)
        assert (done.returncode in refused, "Traceback" in done.stderr) == (True, False), (command, done)


@pytest.mark.parametrize("plant", [a_symlink, a_symlink_above, a_symlink_out_of_the_repository, a_bare_repository])
def test_finding_s15_a_path_in_a_checkout_passes_no_symlink_and_no_committed_repository(
    work: WorkTree, plant: Callable[[WorkTree], str]
) -> None:
    folder = plant(work)
    work.git("add", "--all")
    work.git("commit", "--quiet", "--message=Plant")
    for command in (("validate", work.path / folder), ("diff", "HEAD~..HEAD", work.path / folder)):
        done = run_forked(*command)
        assert (done.returncode, "Traceback" in done.stderr) == (Exit.USAGE, False), (command, done)


def test_finding_s15_a_symlink_in_place_of_the_folder_is_named_without_a_work_tree_too(
    work: WorkTree, tmp_path: Path
) -> None:
    (work.path / "fleet").symlink_to("infra/east")
    work.commit()
    bare = tmp_path / "bare.git"
    work.git("clone", "--quiet", "--bare", ".", str(bare))
    done = run_forked("validate", bare, "--subpath", "fleet")
    assert done.returncode == Exit.USAGE and "fleet is a symlink in commit" in done.stderr
    (work.path / "fleet").unlink()
    work.write(documents("fleet"))  # which is not committed yet
    assert run_forked("validate", work.path, "--subpath", "fleet").returncode == 0
    done = run_forked("diff", "HEAD..HEAD", work.path, "--subpath", "fleet")
    assert done.returncode == Exit.USAGE and "fleet is a symlink in commit" in done.stderr
    work.commit()
    assert run_forked("diff", "HEAD~..HEAD", work.path, "--subpath", "fleet").returncode == 0, "a branch can repair it"


def test_a_bare_repository_beside_the_commits_of_a_work_tree_is_read(work: WorkTree) -> None:
    """A user may have a home that is a work tree."""
    bare = work.path / "mirrors" / "fleet.git"
    work.git("clone", "--quiet", "--bare", ".", str(bare))
    assert run_command("validate", bare, "--subpath", "infra/east").code == 0


@pytest.fixture
def origin(tmp_path: Path) -> WorkTree:
    origin = WorkTree(tmp_path / "fleet")
    origin.commit(FLEET)
    return origin


def follow(source: Source) -> str:
    """Fetch and accept the newest commit as an instance does."""
    before, latest = source.accepted(), source.fetch()
    source.merges(before, latest)
    assert before is None or not source.is_rewind(before, latest)
    source.find_acknowledging_content([before] if before is not None else [], [latest])
    source.committed_at(latest)
    assert "fleet.yaml" in source.snapshot(latest).blobs
    source.accept(latest)
    assert source.accepted() == source.latest() == latest
    return latest


def run_successfully(*arguments: object) -> CommandResult:
    """Return the output of a command that must succeed."""
    done = run_command(*arguments)
    assert done.code == 0, done
    return done


def test_malformed_commits_and_those_after_them_are_followed(tmp_path: Path, origin: WorkTree) -> None:
    source = Source(Remote(url=str(origin.path)), tmp_path / "state")
    (tmp_path / "state").mkdir()
    follow(source)
    for number, (fault, malformed) in enumerate(MALFORMED.items()):
        assert commit_malformed(origin, malformed) == follow(source), fault
        commit_by_git(origin, {f"images/{number}.yaml": image(f"new-{number}")})
        assert follow(source) == origin.head, fault
    (tmp_path / "late").mkdir()
    assert follow(Source(Remote(url=str(origin.path)), tmp_path / "late")) == origin.head


def test_history_explain_and_diff_read_over_a_malformed_commit(origin: WorkTree) -> None:
    first = origin.head
    for fault in ("badDateOverflow", "missingAuthor", "missingEmail", "nulInHeader", "notUtf8"):
        before = origin.head
        malformed = commit_malformed(origin, MALFORMED[fault])
        commit_by_git(origin, {f"images/{fault}.yaml": image(f"new-{fault.lower()}")}, "Add an image")
        shown = json.loads(run_successfully("history", "fra1-web01", "--path", origin.path, "-o", "json").out)
        assert first in json.dumps(shown), fault
        explained = run_successfully("explain", "fra1-web01", "--path", origin.path, "-o", "json").json
        assert first[:9] in json.dumps(explained), fault
        for base in (before, malformed, malformed[:12], "HEAD~1", "HEAD^"):
            assert run_command("diff", f"{base}..HEAD", "--path", origin.path).code == 0, (fault, base)


def test_a_malformed_commit_merges(origin: WorkTree) -> None:
    origin.git("switch", "--quiet", "--create", "side")
    commit_by_git(origin, {"images/side.yaml": image("side-1")})
    origin.git("switch", "--quiet", "main")
    commit_malformed(origin, MALFORMED["missingEmail"])
    assert run_command("diff", "--merge", "main..side", "--path", origin.path).code == 0
    assert run_command("diff", "main...side", "--path", origin.path).code == 0


def test_a_fetch_works_while_a_malformed_commit_is_among_the_newest(tmp_path: Path, origin: WorkTree) -> None:
    """libgit2 parses the newest commits of the clone to negotiate with a server."""
    (tmp_path / "state").mkdir()
    with git_daemon(tmp_path) as url:
        source = Source(Remote(url=f"{url}/fleet"), tmp_path / "state")
        follow(source)
        for fault in ("missingEmail", "missingEmailOfCommitter", "missingBoth", "badDateOverflow"):
            commit_malformed(origin, MALFORMED[fault])
            follow(source)
            assert follow(source) == origin.head, fault  # there is no new commit
            commit_by_git(origin, {f"images/{fault}.yaml": image(f"new-{fault.lower()}")})
            assert follow(source) == origin.head, fault
            assert not (tmp_path / "state" / "repository.whole").exists(), fault


def test_a_commit_without_a_tree_is_rejected_and_the_next_one_is_followed(tmp_path: Path, origin: WorkTree) -> None:
    (tmp_path / "state").mkdir()
    source = Source(Remote(url=str(origin.path)), tmp_path / "state")
    follow(source)
    tree = origin.git("rev-parse", "HEAD^{tree}")
    commit_malformed(origin, b"parent PARENT\nauthor Ada <a@b> 17 +0000\ncommitter Ada <a@b> 17 +0000\n\nNo tree\n")
    assert source.snapshot(source.fetch()).blobs == {}
    raw = b"tree %b\nparent PARENT\nauthor Ada <a@b> 17 +0000\ncommitter Ada <a@b> 17 +0000\n\nMended\n"
    commit_malformed(origin, raw % tree.encode())
    follow(source)


def test_finding_s13_an_instance_follows_a_branch_with_a_commit_without_an_email_address(
    tmp_path: Path, origin: WorkTree
) -> None:
    """A stranger's pull request brings the commit, deep in its history; then ordinary work goes on."""
    origin.git("switch", "--quiet", "--create", "stranger")
    commit_malformed(origin, MALFORMED["missingEmail"])
    commit_by_git(origin, {"images/strange.yaml": image("strange-1")})
    origin.git("switch", "--quiet", "main")
    with git_daemon(tmp_path) as url, running(f"{url}/fleet", tmp_path, "--poll", "1", records="adopt") as instance:

        def is_applied(commit: str) -> bool:
            return bool(instance.status()["applied"]["commit"] == commit)

        eventually(lambda: is_applied(origin.head))
        origin.git("merge", "--quiet", "--no-ff", "--message=Merge", "stranger")
        eventually(lambda: is_applied(origin.head))
        for number in range(2):
            commit_by_git(origin, {"images/new.yaml": image(f"new-{number}")})
            eventually(lambda: is_applied(origin.head))
    with closing(Store.open(tmp_path / "state" / LEDGER)) as ledger:
        assert "FetchFailed" not in {each["type"] for _, each in instance_tables.read_numbered_events(ledger)}


# Reading a commit


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
def test_a_person_is_parsed_as_far_as_the_text_allows(text: bytes, expected: Person) -> None:
    assert parse_person(text) == expected


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_commit_is_parsed_as_libgit2_parses_it(origin: WorkTree, fault: str) -> None:
    oid = pygit2.Oid(hex=commit_malformed(origin, MALFORMED[fault]))
    git = pygit2.Repository(str(origin.path))
    found = CommitReader(git).read(oid)
    assert str(found.parents[0]) == origin.git("rev-parse", f"{oid}^")
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


# Ancestors


@given(parents=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=12), data=st.data())
def test_history_has_the_order_of_libgit2(
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
    expected = {commit.id for commit in list_commits_between(git, [one], other)}
    found = _without_libgit2(git, one, other)
    assert set(found) == expected
    assert all(found.index(each) < found.index(up) for each in found for up in reader.read(each).parents if up in found)
    assert is_ancestor(git, one, other) == (one in find_ancestors(reader, [other]))
    common = find_ancestors(reader, [one]) & find_ancestors(reader, [other])
    assert (find_merge_base(git, one, other) is None) == (not common)


def _without_libgit2(git: pygit2.Repository, hidden: pygit2.Oid, tip: pygit2.Oid) -> list[pygit2.Oid]:
    from gitboot.git.history import _sort_topologically

    reader = CommitReader(git)
    return _sort_topologically(reader, [tip], find_ancestors(reader, [hidden]))


def test_a_time_outside_the_calendar_becomes_the_nearest_valid_one(tmp_path: Path, origin: WorkTree) -> None:
    (tmp_path / "state").mkdir()
    source = Source(Remote(url=str(origin.path)), tmp_path / "state")
    commit_malformed(origin, MALFORMED["negativeDate"])
    assert source.committed_at(source.fetch()) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (MemoryError(), True),
        (SystemError("error return without exception set"), True),
        (SyntaxError("expected ':'"), True),  # an import whose compiler has too little memory
        (ImportError("libz.so: failed to map segment from shared object"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError("failed to open directory 'objects/pack/': Cannot allocate memory"), True),  # pygit2 gives no number
        (pygit2.GitError("failed to mmap. Could not write data: Cannot allocate memory"), True),
        (LedgerError("SQLite error code=7"), True),
        (ImportError("No module named 'psycopg'"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (pygit2.GitError("object not found"), False),
        (KeyError("a key that can quote: out of memory"), False),
    ],
)
def test_an_error_without_memory_is_recognized_by_its_type_or_message(cause: Exception, expected: bool) -> None:
    outer = SourceError("the repository cannot be read")
    outer.__cause__ = cause
    assert (is_out_of_memory(cause), is_out_of_memory(outer)) == (expected, expected)
