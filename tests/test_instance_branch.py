"""The branch that an instance follows: found at the first start, kept in the ledger, changed only by --rev."""

from __future__ import annotations

from pathlib import Path

import pytest

from gitboot.errors import SourceError, UsageError
from gitboot.load import Revision
from gitboot.source import Remote, Source
from tests.git_servers import git_daemon
from tests.instance import Instance, eventually, running
from tests.rack import typed
from tests.repositories import Work
from tests.test_instance_credentials import until
from tests.test_instance_reconcile import fleet_files


class Kept:
    """The record of a branch, in memory."""

    def __init__(self, accepted: Revision | None = None) -> None:
        self.reference: str | None = None
        self._accepted = accepted

    def accepted(self) -> Revision | None:
        return self._accepted

    def keep(self, reference: str) -> None:
        self.reference = reference


@pytest.fixture
def work(tmp_path: Path) -> Work:
    work = Work(tmp_path / "served" / "fleet")
    work.commit(fleet_files())
    return work


def commit_on_main(work: Work) -> str:
    """Add a commit to the branch main, whichever branch is checked out."""
    made = work.git("commit-tree", "-p", "main", "-m", "On main", "main^{tree}")
    work.git("update-ref", "refs/heads/main", made)
    return made


def applies(instance: Instance, commit: str) -> bool:
    return bool(instance.status()["applied"]["commit"] == commit)


# With real processes


def test_finding_r2_another_checked_out_branch_changes_nothing_while_an_instance_runs_and_after_a_restart(
    work: Work, tmp_path: Path
) -> None:
    with running(work.path, tmp_path, "--poll", "1", records="fresh") as instance:
        work.git("switch", "--quiet", "--create", "experiment")
        wip = work.commit({"README.md": "Work in progress.\n"})
        commit = commit_on_main(work)
        eventually(lambda: applies(instance, commit))
        assert instance.status()["branch"] == "refs/heads/main"
        assert "branch     refs/heads/main" in typed("status", "--state", tmp_path / "state").out
    with running(work.path, tmp_path, "--poll", "1") as instance:
        commit = commit_on_main(work)
        eventually(lambda: applies(instance, commit))
        assert wip not in {event.get("commit") for event in instance.events}


def test_finding_r2_a_rev_is_kept_until_another_rev_replaces_it(work: Work, tmp_path: Path) -> None:
    work.git("switch", "--quiet", "--create", "release")
    released = work.commit({"README.md": "Released.\n"})
    work.git("switch", "--quiet", "main")
    with running(work.path, tmp_path, "--rev", "release", "--poll", "1", records="fresh") as instance:
        eventually(lambda: applies(instance, released))
    with running(work.path, tmp_path, "--poll", "1") as instance:
        work.git("switch", "--quiet", "release")
        released = work.commit({"README.md": "Released again.\n"})
        eventually(lambda: applies(instance, released))
        work.git("switch", "--quiet", "--create", "experiment")
    with running(work.path, tmp_path, "--rev", "HEAD", "--poll", "1") as instance:
        checked_out = work.commit({"README.md": "An experiment.\n"})
        eventually(lambda: applies(instance, checked_out))


def test_finding_r2_a_deleted_branch_is_a_condition_and_the_accepted_commit_stays(work: Work, tmp_path: Path) -> None:
    with running(work.path, tmp_path, "--poll", "1", records="fresh") as instance:
        eventually(lambda: applies(instance, work.head))
        work.git("branch", "--move", "main", "trunk")
        found = until(instance, "SourceReady", status=False)
        assert "refs/heads/main" in found["message"] and "trunk" in found["message"]
        assert applies(instance, work.head)


# The source


@pytest.mark.parametrize("is_served", [False, True])
def test_the_default_branch_is_found_once(work: Work, tmp_path: Path, is_served: bool) -> None:
    kept = Kept()
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet" if is_served else str(work.path)), tmp_path, branch=kept)
        first = source.fetch()
        assert kept.reference == "refs/heads/main" and source.latest() == first == work.head
        work.git("switch", "--quiet", "--create", "experiment")
        work.commit({"README.md": "x"})
        assert source.fetch() == source.latest() == first


@pytest.mark.parametrize("is_served", [False, True])
def test_a_detached_head_needs_a_rev(work: Work, tmp_path: Path, is_served: bool) -> None:
    work.git("checkout", "--quiet", "--detach")
    kept = Kept()
    with git_daemon(work.path.parent) as url:
        place = f"{url}/fleet" if is_served else str(work.path)
        with pytest.raises(UsageError, match="has a detached HEAD; name the branch to follow with --rev"):
            Source(Remote(url=place), tmp_path, branch=kept).fetch()
        assert kept.reference is None
        assert Source(Remote(url=place, reference="HEAD"), tmp_path, branch=kept).fetch() == work.head
    assert kept.reference == "HEAD"


def test_after_an_upgrade_a_default_branch_without_the_accepted_commit_is_not_followed(
    work: Work, tmp_path: Path
) -> None:
    work.git("switch", "--quiet", "--create", "experiment")
    accepted = work.commit({"README.md": "x"})
    earlier = Source(Remote(url=str(work.path)), tmp_path)
    earlier.fetch()
    earlier.accept(accepted)
    work.git("switch", "--quiet", "main")
    kept = Kept(accepted)
    source = Source(Remote(url=str(work.path)), tmp_path, branch=kept)
    with pytest.raises(UsageError, match=f"does not contain the accepted commit {accepted[:12]}; .* --rev"):
        source.fetch()
    assert (kept.reference, source.latest(), source.accepted()) == (None, None, accepted)
    work.git("switch", "--quiet", "experiment")
    assert source.fetch() == source.latest() == accepted
    assert kept.reference == "refs/heads/experiment"


def test_a_repository_without_a_commit_has_no_branch_to_keep(tmp_path: Path) -> None:
    kept = Kept()
    with pytest.raises(SourceError, match="no commit yet"):
        Source(Remote(url=str(Work(tmp_path / "empty").path)), tmp_path / "state", branch=kept).fetch()
    assert kept.reference is None
