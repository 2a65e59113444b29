"""The branch that an instance follows: found at the first start, stored in the ledger, changed only by --rev."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gitboot.cli.main import Exit
from gitboot.controller.loop import Loop
from gitboot.errors import BranchMissing, BranchNotNamed, LedgerError, SourceError
from gitboot.fleet.revision import Revision
from gitboot.git.clone import FollowedBranch, Source
from gitboot.git.fetch import EMPTY
from gitboot.git.remote import Remote
from gitboot.ledger import instance_tables
from tests.controller.test_reconcile import fleet_files
from tests.helpers.git_repositories import WorkTree, git_daemon
from tests.helpers.instance_in_process import run_in_process
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Instance, eventually, locked_ledger, running
from tests.scenarios.test_credential_files import until

MAIN = FollowedBranch("refs/heads/main", is_default=True)


class MemoryStore:
    def __init__(self, accepted: Revision | None = None, followed: FollowedBranch | None = None) -> None:
        self.followed = followed
        self._accepted = accepted

    def read(self) -> FollowedBranch | None:
        return self.followed

    def accepted(self) -> Revision | None:
        return self._accepted

    def write(self, followed: FollowedBranch) -> None:
        self.followed = followed


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    work = WorkTree(tmp_path / "served" / "fleet")
    work.commit(fleet_files())
    return work


def fleet_location(work: WorkTree, url: str, *, is_served: bool) -> str:
    return f"{url}/fleet" if is_served else str(work.path)


def once(repository: object, folder: Path, *arguments: object) -> Any:
    places = ("--out", folder / "output", "--state", folder / "state", "--check-assets", "off")
    return run_command("run", repository, *places, "--once", *arguments)


def read_conditions(folder: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((folder / "state/status.json").read_bytes())["conditions"]
    return {each["type"]: each for each in found}


def read_branch(folder: Path) -> str | None:
    with closing(sqlite3.connect(folder / "state/ledger.sqlite")) as ledger:
        found = ledger.execute("SELECT value FROM facts WHERE name = 'branch'").fetchone()
    return found and str(found[0])


def wait_until_gone(instance: Instance, type: str) -> None:
    """Wait until an instance has no such condition."""
    eventually(lambda: type not in {each["type"] for each in instance.status()["conditions"]})


def commit_on_main(work: WorkTree) -> str:
    made = work.git("commit-tree", "-p", "main", "-m", "On main", "main^{tree}")
    work.git("update-ref", "refs/heads/main", made)
    return made


def has_applied(instance: Instance, commit: str) -> bool:
    return bool(instance.status()["applied"]["commit"] == commit)


# With real processes


def test_finding_r2_another_checked_out_branch_changes_nothing_while_an_instance_runs_and_after_a_restart(
    work: WorkTree, tmp_path: Path
) -> None:
    with running(work.path, tmp_path, "--poll", "1", records="fresh") as instance:
        work.git("switch", "--quiet", "--create", "experiment")
        wip = work.commit({"README.md": "Work in progress.\n"})
        commit = commit_on_main(work)
        eventually(lambda: has_applied(instance, commit))
        found = until(instance, "BranchFollowed", status=False)
        assert found["reason"] == "AnotherBranchCheckedOut" and "--rev" in found["remedy"]
        assert found["message"].startswith("experiment is checked out") and found["message"].endswith(
            "still follows main"
        )
        assert instance.status()["branch"] == "refs/heads/main"
        assert "branch         refs/heads/main" in run_command("status", "--state", tmp_path / "state").out
    with running(work.path, tmp_path, "--poll", "1") as instance:
        commit = commit_on_main(work)
        eventually(lambda: has_applied(instance, commit))
        until(instance, "BranchFollowed", status=False)
        work.git("switch", "--quiet", "--detach", "main")
        eventually(lambda: "HEAD is detached" in until(instance, "BranchFollowed", status=False)["message"])
        work.git("switch", "--quiet", "main")
        wait_until_gone(instance, "BranchFollowed")
        assert wip not in {event.get("commit") for event in instance.events}


@pytest.mark.parametrize("is_served", [False, True])
def test_finding_r2_another_default_branch_of_a_remote_changes_nothing_and_is_a_condition(
    work: WorkTree, tmp_path: Path, is_served: bool
) -> None:
    bare = tmp_path / "bare" / "fleet"
    work.git("clone", "--quiet", "--bare", str(work.path), str(bare))
    with git_daemon(bare.parent) as url:
        place = f"{url}/fleet" if is_served else bare
        assert once(place, tmp_path).code != Exit.SOURCE
        work.git("switch", "--quiet", "--create", "trunk")
        work.commit({"README.md": "On trunk.\n"})
        work.git("push", "--quiet", str(bare), "trunk")
        work.git("--git-dir", str(bare), "symbolic-ref", "HEAD", "refs/heads/trunk")
        assert "BranchChosen" not in once(place, tmp_path).err
        found = read_conditions(tmp_path)["BranchFollowed"]
        assert (found["status"], found["reason"]) == (False, "DefaultBranchChanged")
        assert "is now trunk, but gitboot still follows main" in found["message"]
        assert (
            "newest commit  " + work.git("rev-parse", "main")[:12]
            in run_command("status", "--state", tmp_path / "state").out
        )
        assert "refs/heads/trunk" not in once(place, tmp_path, "--rev", "main").err
        assert "BranchFollowed" not in read_conditions(tmp_path), "a person has named the branch"
        once(place, tmp_path)
        assert "BranchFollowed" not in read_conditions(tmp_path)


def test_finding_r2_a_first_start_with_a_detached_head_makes_nothing_and_needs_a_rev(
    work: WorkTree, tmp_path: Path
) -> None:
    work.git("switch", "--quiet", "--detach")
    done = once(work.path, tmp_path)
    assert (done.code, (tmp_path / "state").exists()) == (Exit.USAGE, False)
    assert "has a detached HEAD; use --rev to name the branch to follow" in done.err
    with git_daemon(work.path.parent) as url:
        assert once(f"{url}/fleet", tmp_path).code == Exit.SOURCE
    found = read_conditions(tmp_path)["SourceReady"]
    assert found["reason"] == "BranchNotNamed" and "--rev" in found["message"] and "--rev" in found["remedy"]
    assert read_branch(tmp_path) is None
    once(work.path, tmp_path, "--rev", "main")
    assert read_branch(tmp_path) == "main"


def test_finding_r2_a_dry_run_reads_the_stored_branch(work: WorkTree, tmp_path: Path) -> None:
    once(work.path, tmp_path)
    main = work.head
    work.git("switch", "--quiet", "--create", "experiment")
    work.commit({"README.md": "Work in progress.\n"})
    places = ("--out", tmp_path / "output", "--state", tmp_path / "state", "--check-assets", "off")
    done = run_command("run", work.path, *places, "--dry-run")
    told = {each["type"]: each for each in map(json.loads, done.err.splitlines())}
    assert told["WouldAccept"]["commit"] == main
    assert read_branch(tmp_path) == "refs/heads/main"


def test_finding_r2_a_branch_that_the_ledger_cannot_store_is_not_followed(work: WorkTree, tmp_path: Path) -> None:
    with run_in_process(tmp_path, work.path) as parts:
        loop = Loop(parts.reconciler, parts.source, poll_s=3600, clock=lambda: datetime.now(UTC), tell=lambda _: None)
        with locked_ledger(tmp_path / "state", parts.ledger):
            loop.run_once()
            assert not parts.reconciler.status.condition("SourceReady")
            assert (parts.reconciler.status.attempted, parts.source.latest()) == (None, None)
        work.git("switch", "--quiet", "--create", "release")
        loop.run_once()
        assert parts.reconciler.status.condition("SourceReady")
        assert instance_tables.read_facts(parts.ledger).branch == parts.source.reference == "refs/heads/release"


# The source


@pytest.mark.parametrize("is_served", [False, True])
def test_the_default_branch_is_found_once(work: WorkTree, tmp_path: Path, is_served: bool) -> None:
    record = MemoryStore()
    with git_daemon(work.path.parent) as url:
        remote = Remote(url=fleet_location(work, url, is_served=is_served))
        source = Source(remote, tmp_path, record=record)
        assert (source.latest(), source.reference, source.branch_mismatch) == (None, None, None)
        first = source.fetch()
        assert record.followed == MAIN and source.latest() == first == work.head
        work.git("switch", "--quiet", "--create", "experiment")
        work.commit({"README.md": "x"})
        assert source.fetch() == source.latest() == first
        later = Source(remote, tmp_path, record=record)
        assert later.latest() == later.fetch() == first
        assert later.branch_mismatch is not None and later.branch_mismatch == source.branch_mismatch


def test_a_branch_that_was_stored_although_the_ledger_reported_an_error_is_followed(
    work: WorkTree, tmp_path: Path
) -> None:
    class Unsure(MemoryStore):
        def write(self, followed: FollowedBranch) -> None:
            known, self.followed = self.followed, followed
            if known is None:
                raise LedgerError("the connection ended before the answer came")

    record = Unsure()
    source = Source(Remote(url=str(work.path)), tmp_path, record=record)
    with pytest.raises(LedgerError):
        source.fetch()
    assert source.latest() is None
    on_main = work.head
    work.git("switch", "--quiet", "--create", "experiment")
    work.commit({"README.md": "x"})
    assert source.fetch() == source.latest() == on_main
    assert record.followed == MAIN


@pytest.mark.parametrize("is_served", [False, True])
def test_a_detached_head_needs_a_rev(work: WorkTree, tmp_path: Path, is_served: bool) -> None:
    work.git("checkout", "--quiet", "--detach")
    record = MemoryStore()
    with git_daemon(work.path.parent) as url:
        place = fleet_location(work, url, is_served=is_served)
        with pytest.raises(BranchNotNamed, match="has a detached HEAD; use --rev to name the branch to follow"):
            Source(Remote(url=place), tmp_path, record=record).fetch()
        assert record.followed is None
        assert Source(Remote(url=place, reference="HEAD"), tmp_path, record=record).fetch() == work.head
    assert record.followed == FollowedBranch("HEAD", is_default=False)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_changed_head_matters_only_if_gitboot_found_the_branch(
    work: WorkTree, tmp_path: Path, is_served: bool
) -> None:
    by_rev = MAIN._replace(is_default=False)
    cases: list[tuple[FollowedBranch, tuple[str, ...], str | None]] = [
        (MAIN, ("switch", "--quiet", "--create", "a"), "a is checked out"),
        (MAIN, ("switch", "--quiet", "--detach"), "HEAD is detached"),
        (MAIN, ("branch", "b"), None),
        (by_rev, ("switch", "--quiet", "--create", "c"), None),
        (FollowedBranch("HEAD", is_default=False), ("switch", "--quiet", "--create", "d"), None),
    ]
    with git_daemon(work.path.parent) as url:
        remote = Remote(url=fleet_location(work, url, is_served=is_served))
        for number, (followed, leave, said) in enumerate(cases):
            (folder := tmp_path / str(number)).mkdir()
            work.git(*leave)
            source = Source(remote, folder, record=MemoryStore(followed=followed))
            source.fetch()
            work.git("switch", "--quiet", "main")
            mismatch = source.branch_mismatch
            if said is None:
                assert mismatch is None, leave
                continue
            expected = ("DefaultBranchChanged", "default branch") if is_served else ("AnotherBranchCheckedOut", said)
            assert mismatch is not None and (mismatch[0], mismatch.followed) == (expected[0], "main")
            assert expected[1] in mismatch.message


def test_after_an_upgrade_a_default_branch_without_the_accepted_commit_is_not_followed(
    work: WorkTree, tmp_path: Path
) -> None:
    work.git("switch", "--quiet", "--create", "experiment")
    accepted = work.commit({"README.md": "x"})
    earlier = Source(Remote(url=str(work.path)), tmp_path)
    earlier.fetch()
    earlier.accept(accepted)
    work.git("switch", "--quiet", "main")
    record = MemoryStore(accepted)
    source = Source(Remote(url=str(work.path)), tmp_path, record=record)
    with pytest.raises(BranchNotNamed, match=f"does not contain the accepted commit {accepted[:12]}; .* --rev"):
        source.fetch()
    assert (record.followed, source.latest(), source.accepted()) == (None, None, accepted)
    work.git("switch", "--quiet", "experiment")
    assert source.fetch() == source.latest() == accepted
    assert record.followed == FollowedBranch("refs/heads/experiment", is_default=True)


def test_a_new_ledger_beside_a_clone_takes_no_branch_without_the_accepted_commit(
    work: WorkTree, tmp_path: Path
) -> None:
    """The ledger was damaged, and the clone still has the commit that was accepted last."""
    earlier = Source(Remote(url=str(work.path)), tmp_path, record=MemoryStore())
    earlier.accept(earlier.fetch())
    work.git("switch", "--quiet", "--orphan", "unrelated")
    work.commit({"README.md": "x"})
    record = MemoryStore()
    with pytest.raises(BranchNotNamed, match="does not contain the accepted commit"):
        Source(Remote(url=str(work.path)), tmp_path, record=record).fetch()
    assert record.followed is None


@pytest.mark.parametrize("is_served", [False, True])
def test_the_message_for_a_missing_branch_lists_the_existing_branches(
    work: WorkTree, tmp_path: Path, is_served: bool
) -> None:
    work.git("branch", "--move", "main", "trunk")
    with git_daemon(work.path.parent) as url:
        remote = Remote(url=fleet_location(work, url, is_served=is_served))
        source = Source(remote, tmp_path, record=MemoryStore(followed=MAIN))
        with pytest.raises(BranchMissing, match=r"no branch or tag refs/heads/main; the branches are trunk\. .* --rev"):
            source.fetch()


def test_a_new_clone_follows_the_stored_branch(work: WorkTree, tmp_path: Path) -> None:
    record = MemoryStore()
    source = Source(Remote(url=str(work.path)), tmp_path, record=record)
    accepted = source.fetch()
    source.accept(accepted)
    work.git("switch", "--quiet", "--create", "experiment")
    work.commit({"README.md": "x"})
    source.restore(accepted)
    assert (source.latest(), source.accepted(), record.followed) == (accepted, accepted, MAIN)


def test_leftovers_of_a_killed_first_fetch_are_removed(work: WorkTree, tmp_path: Path) -> None:
    (tmp_path / f"{EMPTY}x" / "objects").mkdir(parents=True)
    with git_daemon(work.path.parent) as url:
        Source(Remote(url=f"{url}/fleet"), tmp_path, record=MemoryStore()).fetch()
    assert not list(tmp_path.glob(f"{EMPTY}*"))


def test_a_repository_without_a_commit_has_no_branch_to_store(tmp_path: Path) -> None:
    record = MemoryStore()
    with pytest.raises(SourceError, match="no commits yet"):
        Source(Remote(url=str(WorkTree(tmp_path / "empty").path)), tmp_path / "state", record=record).fetch()
    assert record.followed is None
