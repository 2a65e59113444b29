"""One server through real repositories: changes of its decision alone, renames, invalid commits, the second time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gitboot.disk_cache import DiskCache
from gitboot.evaluator.decision_history import ChangingCommit, DecisionHistory, InvalidCommit
from gitboot.evaluator.evaluation import CommitPair, Evaluator
from gitboot.fleet.revision import Revision
from gitboot.git.history import History, open_history
from tests.helpers.fleets import SEED, make_uuid, policy, server
from tests.helpers.git_repositories import WorkTree

FILES = {f"{number:02}.yaml": text for number, text in enumerate(SEED)}
WEB01 = "01.yaml"
POLICY = "06.yaml"


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    made = WorkTree(tmp_path / "work")
    made.commit(FILES, "Begin")
    return made


def make_decision_history(history: History, cache: DiskCache) -> DecisionHistory:
    return DecisionHistory(history.steps, cache, Evaluator(history.snapshot).evaluate)


def open_cache(work: WorkTree) -> DiskCache:
    return DiskCache(work.path.parent / "cache.sqlite", pytest.fail)


def list_history(work: WorkTree, server: str, rev: str | None = None, path: Path | None = None) -> list[str]:
    """Return the history of a server: subjects and kinds of changes; an invalid commit is in brackets."""
    history = open_history(path or work.path, rev)
    with open_cache(work) as cache:
        entries = list(make_decision_history(history, cache).list_changes(server))
    return [
        f"{entry.commit.subject}: {entry.effect.kind}"
        if isinstance(entry, ChangingCommit)
        else f"({entry.commit.subject})"
        for entry in entries
    ]


def test_only_commits_that_changed_the_decision_are_listed(work: WorkTree) -> None:
    work.commit({"README.md": "# Fleet"}, "A page")
    work.commit({WEB01: f"# a comment\n{FILES[WEB01]}"}, "A comment in its file")
    work.commit({POLICY: policy("web", spec="kernelArguments: [quiet]")}, "Its policy")
    work.commit({"web02.yaml": server("web02", "role: web")}, "Another server")
    work.commit(None, "Nothing")
    assert list_history(work, "web01") == ["Its policy: Changed", "Begin: Added"]
    assert list_history(work, "web02") == ["Another server: Added"]


def test_a_renamed_server_is_followed_by_its_uuid(work: WorkTree) -> None:
    work.commit({WEB01: server("db01", "role: web").replace(make_uuid("db01"), make_uuid("web01"))}, "Rename")
    work.commit(
        {"new.yaml": server("web01", "role: web").replace(make_uuid("web01"), make_uuid("x"))}, "Reuse the name"
    )
    assert list_history(work, "db01") == ["Rename: Changed", "Begin: Added"]
    assert list_history(work, "web01") == ["Reuse the name: Added"]


def test_a_removed_server_is_found_by_its_last_name(work: WorkTree) -> None:
    work.commit({"web02.yaml": server("web02", "role: web")}, "Come")
    work.commit({"web02.yaml": None}, "Go")
    assert (list_history(work, "web02"), list_history(work, "web03")) == (["Go: Removed", "Come: Added"], [])


def test_commits_that_were_invalid_before_a_server_was_added_are_not_listed(work: WorkTree) -> None:
    work.commit({POLICY: "kind: Nonsense"}, "Break")
    work.commit({POLICY: FILES[POLICY], "web02.yaml": server("web02", "role: web")}, "Come")
    assert list_history(work, "web02") == ["Come: Added"]


def test_an_invalid_commit_is_skipped_and_listed(work: WorkTree) -> None:
    work.commit({POLICY: "kind: Nonsense"}, "Break")
    work.commit({POLICY: policy("web", spec="kernelArguments: [quiet]")}, "Fix otherwise")
    work.commit({POLICY: "kind: Nonsense"}, "Break again")
    assert list_history(work, "web01") == ["(Break again)", "Fix otherwise: Changed", "(Break)", "Begin: Added"]
    assert list_history(work, "web01", "HEAD~3") == ["Begin: Added"]
    with open_cache(work) as cache:
        first, *_ = make_decision_history(open_history(work.path, None), cache).list_changes("web01")
    assert isinstance(first, InvalidCommit)
    assert first.problem.startswith('06.yaml:1:7: GB1021: there is no kind "Nonsense"')


def test_a_revert_is_a_change_back(work: WorkTree) -> None:
    work.commit({POLICY: policy("web", often="Never")}, "Stop")
    work.git("revert", "--no-edit", "HEAD")
    assert list_history(work, "web01") == ['Revert "Stop": Changed', "Stop: Changed", "Begin: Added"]


def test_a_merge_is_one_step(work: WorkTree) -> None:
    work.git("switch", "--quiet", "--create", "branch")
    work.commit({POLICY: policy("web", often="Never")}, "First on the branch")
    work.commit({POLICY: policy("web", often="Once")}, "Second on the branch")
    work.git("switch", "--quiet", "main")
    work.git("merge", "--quiet", "--no-ff", "--message=Merge it", "branch")
    assert list_history(work, "web01") == ["Merge it: Changed", "Begin: Added"]
    assert list_history(work, "web01", "branch") == [
        *("Second on the branch: Changed", "First on the branch: Changed", "Begin: Added")
    ]


def test_the_history_of_a_fleet_in_a_folder_begins_with_the_folder(work: WorkTree) -> None:
    work.commit({f"fleet/{name}": text for name, text in FILES.items()}, "Copy into a folder")
    assert list_history(work, "web01", path=work.path / "fleet") == ["Copy into a folder: Added"]


def test_a_bare_repository_has_the_same_history(work: WorkTree, tmp_path: Path) -> None:
    assert list_history(work, "web01", path=work.bare(tmp_path / "bare.git")) == ["Begin: Added"]


@pytest.fixture
def evaluated_revisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    revisions: list[str] = []
    real = Evaluator.evaluate

    def record_revision(evaluator: Evaluator, revision: Revision, base: Revision | None) -> CommitPair:
        found = real(evaluator, revision, base)
        revisions.append(revision)
        return found

    monkeypatch.setattr(Evaluator, "evaluate", record_revision)
    return revisions


def test_each_fleet_is_decided_once_and_not_again_the_second_time(
    work: WorkTree, evaluated_revisions: list[str]
) -> None:
    work.commit({"README.md": "# Fleet"}, "A page")
    work.commit({POLICY: "kind: Nonsense"}, "Break")
    for often in ("Never", "Once", "Always"):
        work.commit({POLICY: policy("web", often=often)}, often)
    work.commit(None, "Nothing")
    first = list_history(work, "web01")
    assert (
        len(evaluated_revisions) == len(set(evaluated_revisions)) == 5
    )  # every tree but the invalid one, which does not load
    evaluated_revisions.clear()
    assert (list_history(work, "web01"), evaluated_revisions) == (first, [])
    work.commit({"web02.yaml": server("web02", "role: web")}, "One more")
    assert list_history(work, "web02") == ["One more: Added"]
    assert len(evaluated_revisions) == 2  # it and its parent


def test_no_more_commits_are_decided_than_requested(work: WorkTree, evaluated_revisions: list[str]) -> None:
    for often in ("Never", "Once", "Always"):
        work.commit({POLICY: policy("web", often=often)}, often)
    with open_cache(work) as cache:
        next(make_decision_history(open_history(work.path, None), cache).list_changes("web01"))
    assert len(evaluated_revisions) == 2


def test_a_shallow_clone_is_detected(work: WorkTree, tmp_path: Path) -> None:
    work.commit({POLICY: policy("web", often="Never")}, "Stop")
    work.git("clone", "--quiet", "--depth=1", f"file://{work.path}", str(tmp_path / "shallow"))
    history = open_history(tmp_path / "shallow", None)
    assert history.shallow and [step.commit.subject for step in history.steps] == ["Stop"]
    assert not open_history(work.path, None).shallow
    assert list_history(work, "web01", path=tmp_path / "shallow") == ["Stop: Added"]
