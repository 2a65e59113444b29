"""A commit that takes an install boot back: what is withheld, how records decide, and what late evidence does."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.cli.instance_client import request_change
from gitboot.controller.operator_requests import ApproveCommit
from gitboot.evaluator.protocol import Commit, EvaluationResult
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, encode_line
from gitboot.fleet.revision import Revision
from gitboot.git.fetch import CLONE
from gitboot.ledger import instance_tables
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.review.guards import Limits
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import HeldCommit
from tests.helpers.cases import require_value
from tests.helpers.fleets import at, fleet, image, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import InProcessEvaluator, Parts, run_in_process
from tests.helpers.instance_with_bmcs import Rack, wait_for_condition
from tests.helpers.instance_with_bmcs import boots as boots_of
from tests.helpers.running_instance import Instance, Repository, eventually, git, running

NOON = at("20T12:00")
SERVERS = tuple(f"web{number:02}" for number in range(6))
LOOSE_LIMITS = Limits(max_update_percent=100, max_delete_percent=100, max_small_group=100)
UPDATE_LIMITS = structs.replace(LOOSE_LIMITS, max_reinstalls=len(SERVERS))  # a commit may reinstall all servers
OLD, BAD = "flatcar-1", "flatcar-2"
PARKED = "lifecycle: Parked"


def documents(
    image_name: str = OLD,
    *,
    servers: Iterable[str] = SERVERS,
    more: Iterable[str] = (),
    spec: str = "",
    evidence: str = "Fetched",
) -> dict[str, str]:
    """Web servers that are installed whenever their image changes, and one that boots without a disk."""
    live = [server("live01", "role: live")] if servers else []
    texts = (
        fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}"),
        *(server(name, "role: web", spec) for name in servers),
        *live,
        *(image(name) for name in (OLD, BAD)),
        image("live-1", "writesDisk: false"),
        profile("web", image_name),
        profile("live", "live-1"),
        policy("web", "{matchLabels: {role: web}}", often="OnImageChange"),
        policy("live", "{matchLabels: {role: live}}", boots="live"),
        *more,
    )
    return {"fleet.yaml": "---\n".join(texts)}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(documents())
    return made


@pytest.fixture
def parts(tmp_path: Path, repository: Repository) -> Iterator[Parts]:
    with run_approved(repository, tmp_path) as parts:
        yield parts


@contextmanager
def run_approved(
    repository: Repository, tmp_path: Path, unending: Collection[str] = (), *, evidence: str = "Fetched"
) -> Iterator[Parts]:
    """An instance that has accepted the bad image with an approval, and offers it to all web servers."""
    with run_in_process(
        tmp_path, repository.bare, limits=LOOSE_LIMITS, initial="adopt", unending=unending, clock=lambda: NOON
    ) as parts:
        reconcile_at(parts)
        repository.push(documents(BAD, evidence=evidence))
        reconcile_at(parts, 1)
        held = get_held(parts)
        assert held.guards == ("maxReinstalls",)
        approve(parts, held.digest)
        reconcile_at(parts, 2)
        assert {name: boot(parts, name) for name in SERVERS} == dict.fromkeys(SERVERS, (Cause.PENDING, BAD))
        yield parts


@contextmanager
def run_rolled_out(repository: Repository, tmp_path: Path) -> Iterator[Parts]:
    """An instance that has accepted the bad image within the limit, and offers it to all web servers."""
    with run_in_process(tmp_path, repository.bare, limits=UPDATE_LIMITS, initial="adopt", clock=lambda: NOON) as parts:
        reconcile_at(parts)
        bad = repository.push(documents(BAD))
        reconcile_at(parts, 1)
        assert parts.reconciler.status.accepted == bad
        reconcile_at(parts, 2)
        assert {name: boot(parts, name) for name in SERVERS} == dict.fromkeys(SERVERS, (Cause.PENDING, BAD))
        yield parts


def reconcile_at(parts: Parts, *seconds: float) -> None:
    """Fetch and reconcile once at each of these seconds after noon, or at noon."""
    for each in seconds or (0,):
        parts.source.fetch()
        parts.reconciler.reconcile(NOON + timedelta(seconds=each))


def get_held(parts: Parts) -> HeldCommit:
    return require_value(parts.reconciler.status.held)


def push_revert(parts: Parts, repository: Repository) -> str:
    """Push a revert after web03 has fetched the bad image, which holds the revert; return its commit."""
    fetch(parts, planned(parts, "web03"), 3)
    revert = repository.push(documents())
    reconcile_at(parts, 4, 5, 6)
    return revert


def break_fetch_log(parts: Parts) -> None:
    """Let the fetch log be unreadable."""
    if parts.spool.exists():
        parts.spool.rmdir()
    parts.spool.write_text("no folder")


def approve(parts: Parts, digest: str) -> None:
    facts = {"digest": digest, "guards": ["maxReinstalls"], "reason": "planned"}
    instance_tables.add_request(parts.ledger, NOON, "op", ApproveCommit.kind, facts)


def planned(parts: Parts, name: str) -> BootPlan:
    return require_value(parts.reconciler.state.plans.servers[name].plan)


def boot(parts: Parts, name: str) -> tuple[Cause, str | None]:
    found = planned(parts, name)
    return found.cause, found.boot.image if found.boot is not None else None


def fetch(parts: Parts, plan: BootPlan, seconds: float, *, intent: str | None = None, file: str = "boot.ipxe") -> None:
    """The machine of a plan fetches its boot script; with ``intent``, an endpoint has written no more than that."""
    path = f"boot/v1/boot/{make_mac(plan.server).replace(':', '-')}/{file}"
    at = NOON + timedelta(seconds=seconds)
    parts.spool.mkdir(exist_ok=True)
    spool = SpoolFile(parts.spool)
    offer = plan.offer if intent is not None else None
    seen = Observation(
        server=plan.server, path=path, digest=plan.digest, client="10.0.0.7", at=at, offer=offer, intent=intent
    )
    spool.append(encode_line(seen))
    spool.close()


def find_acceptance(parts: Parts) -> Condition:
    return next(each for each in parts.reconciler.status.conditions if each.type == "CommitAccepted")


def read_scripts(folder: Path) -> str:
    found = (folder / "output" / "boot" / "v1" / "boot").glob("*/boot.ipxe")
    return "\n".join(each.read_text() for each in sorted(found))


def test_a_revert_withholds_the_bad_image_at_once_and_applies_once_the_fetches_are_read(
    parts: Parts, repository: Repository, tmp_path: Path
) -> None:
    assert f"{BAD}/kernel" in read_scripts(tmp_path)
    revert = repository.push(documents())
    parts.source.fetch()
    assert parts.reconciler.reconcile(NOON + timedelta(seconds=3)) == NOON + timedelta(seconds=3)  # again at once
    assert f"{BAD}/kernel" not in read_scripts(tmp_path)
    assert {boot(parts, name) for name in SERVERS} == {(Cause.WITHHELD, None)}
    stored = instance_tables.read_facts(parts.ledger).withheld
    assert stored is not None and stored.by == revert and len(stored.servers) == len(SERVERS)
    assert parts.reconciler.reconcile(NOON + timedelta(seconds=4)) == NOON + timedelta(seconds=4)
    reconcile_at(parts, 5)
    status = parts.reconciler.status
    assert (status.accepted, status.held, status.withheld) == (revert, None, ())
    assert "Held" not in {each.type for each in parts.events if each.facts.get("commit") == revert}
    assert {boot(parts, name) for name in SERVERS} == {(Cause.PROVISIONED, None)}
    assert instance_tables.read_facts(parts.ledger).withheld is None


def test_only_servers_that_lost_an_install_boot_are_listed_as_withheld(parts: Parts, repository: Repository) -> None:
    fetch(parts, planned(parts, "web03"), 1)
    reconcile_at(parts, 2, 7200)
    assert boot(parts, "web03") == (Cause.PROVISIONED, None)
    repository.push(documents())
    reconcile_at(parts, 7201, 7202)
    status, stored = parts.reconciler.status, instance_tables.read_facts(parts.ledger).withheld
    assert status.held is not None and stored is not None and len(stored.servers) == len(SERVERS)
    assert [each.server for each in status.withheld] == [each for each in SERVERS if each != "web03"]
    assert {each.why for each in status.withheld} == {Cause.WITHHELD}


def test_a_server_that_fetched_the_bad_image_holds_the_revert_and_the_others_are_not_offered_it(
    parts: Parts, repository: Repository
) -> None:
    accepted, bad = parts.reconciler.status.accepted, planned(parts, "web03")
    revert = repository.push(documents())
    reconcile_at(parts, 3)
    fetch(parts, bad, 3)  # just before the files changed, and recorded just after
    reconcile_at(parts, 4, 5, 6)
    status = parts.reconciler.status
    assert status.held is not None and (status.accepted, status.held.commit) == (accepted, revert)
    assert (status.held.guards, status.held.reinstalls) == (("maxReinstalls",), ("web03",))
    assert [each.server for each in status.withheld] == list(SERVERS)
    assert {each.boots for each in status.withheld} == {None}
    (condition,) = (each for each in status.conditions if each.type == "CommitAccepted")
    assert "could reinstall 1 server (maxReinstalls allows 0). Servers to reinstall: web03" in condition.message
    approve(parts, status.held.digest)
    reconcile_at(parts, 7)
    assert parts.reconciler.status.accepted == revert
    reconcile_at(parts, 100)
    found = {name: boot(parts, name) for name in SERVERS}
    assert found.pop("web03") == (Cause.PENDING, OLD) and set(found.values()) == {(Cause.PROVISIONED, None)}


def test_a_server_whose_fetch_has_an_unknown_outcome_holds_the_revert(parts: Parts, repository: Repository) -> None:
    bad = planned(parts, "web03")
    repository.push(documents())
    reconcile_at(parts, 3)
    fetch(parts, bad, 3, intent="one")
    reconcile_at(parts, 4, 5, 6)
    assert get_held(parts).reinstalls == ("web03",)


@pytest.mark.parametrize("ends", ["it is approved", "the log can be read again"])
def test_a_revert_is_held_while_the_fetch_log_cannot_be_read(parts: Parts, repository: Repository, ends: str) -> None:
    break_fetch_log(parts)
    revert = repository.push(documents())
    reconcile_at(parts, 3, 4, 5)
    held = get_held(parts)
    assert held.guards == ("maxReinstalls",)
    assert {boot(parts, name) for name in SERVERS} == {(Cause.WITHHELD, None)}
    if ends == "it is approved":
        approve(parts, held.digest)
    else:
        parts.spool.unlink()
    reconcile_at(parts, 6, 7, 8)
    assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (revert, None)


def test_a_revert_within_the_limit_waits_until_the_fetches_are_read(repository: Repository, tmp_path: Path) -> None:
    with run_rolled_out(repository, tmp_path) as parts:
        bad = parts.reconciler.status.accepted
        fetch(parts, planned(parts, "web03"), 3)  # gitboot learns it only after it has looked at the revert
        revert = repository.push(documents())
        parts.source.fetch()
        for seconds in (3, 4):
            assert parts.reconciler.reconcile(NOON + timedelta(seconds=seconds)) == NOON + timedelta(seconds=seconds)
            assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (bad, None)
            assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        reconcile_at(parts, 5)
        assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (revert, None)
        reconcile_at(parts, 100)
        found = {name: boot(parts, name) for name in SERVERS}
        assert found.pop("web03") == (Cause.PENDING, OLD) and set(found.values()) == {(Cause.PROVISIONED, None)}
        assert not [each for each in parts.events if each.type in ("Held", "WithdrawnBootInstalled")]


def test_a_revert_that_was_pushed_before_a_start_waits_until_the_fetches_are_read(
    repository: Repository, tmp_path: Path
) -> None:
    """The start has no checkpoint, and its first reconcile evaluates both commits."""
    with run_rolled_out(repository, tmp_path) as parts:
        bad = parts.reconciler.status.accepted
    revert = repository.push(documents())
    with run_in_process(tmp_path, repository.bare, limits=UPDATE_LIMITS, clock=lambda: NOON) as parts:
        assert parts.reconciler.state.plans.commit is None
        for seconds in (3, 4):
            reconcile_at(parts, seconds)
            assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (bad, None)
            assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        reconcile_at(parts, 5)
        assert parts.reconciler.status.accepted == revert
        assert instance_tables.read_facts(parts.ledger).rolled_back.keys() == {make_uuid(name) for name in SERVERS}


def test_an_acknowledged_revert_waits_until_the_fetches_are_read(parts: Parts, repository: Repository) -> None:
    bad = planned(parts, "web03")
    repository.push(documents())
    reconcile_at(parts, 3)
    candidate = require_value(parts.reconciler.state.acceptance.candidate)
    fetch(parts, bad, 3)
    line = f"Gitboot-Ack: {candidate.verdict.digest} maxReinstalls"
    revert = repository.push({"README.md": "Taken back."}, f"Take the bad image back\n\n{line}")
    for seconds in (4, 5):
        reconcile_at(parts, seconds)
        assert parts.reconciler.status.accepted != revert
    reconcile_at(parts, 6)
    assert parts.reconciler.status.accepted == revert
    reconcile_at(parts, 100)
    assert (boot(parts, "web03"), boot(parts, "web02")) == ((Cause.PENDING, OLD), (Cause.PROVISIONED, None))


def test_a_held_revert_that_is_acknowledged_is_not_shown_as_held_while_it_waits(
    parts: Parts, repository: Repository
) -> None:
    push_revert(parts, repository)
    held = get_held(parts)
    assert not find_acceptance(parts).status
    line = f"Gitboot-Ack: {held.digest} maxReinstalls"
    revert = repository.push({"README.md": "Taken back."}, f"Install web03 again\n\n{line}")
    for seconds in (7, 8):
        reconcile_at(parts, seconds)
        status = parts.reconciler.status
        assert (status.attempted, status.held) == (revert, None) and status.accepted != revert
        assert [each for each in status.conditions if each.type == "CommitAccepted" and not each.status] == []
    reconcile_at(parts, 9)
    assert parts.reconciler.status.accepted == revert and find_acceptance(parts).status


def test_a_revert_within_the_limit_applies_while_the_fetch_log_cannot_be_read(
    repository: Repository, tmp_path: Path
) -> None:
    with run_rolled_out(repository, tmp_path) as parts:
        break_fetch_log(parts)
        revert = repository.push(documents())
        for seconds in (3, 4, 5):
            reconcile_at(parts, seconds)
            assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (revert, None)


def test_a_revert_within_the_limit_applies_while_gitboot_cannot_publish(repository: Repository, tmp_path: Path) -> None:
    with run_rolled_out(repository, tmp_path) as parts:
        script = tmp_path / "output" / "boot" / "v1" / "boot" / make_mac("web03").replace(":", "-") / "boot.ipxe"
        script.unlink()
        (script / "in-the-way").mkdir(parents=True)
        revert = repository.push(documents())
        reconcile_at(parts, 3)
        assert not parts.reconciler.status.condition("Published") and parts.reconciler.status.accepted != revert
        reconcile_at(parts, 4)
        assert (parts.reconciler.status.accepted, parts.reconciler.status.held) == (revert, None)


def test_a_revert_within_the_limit_applies_if_the_commit_after_it_is_invalid(
    repository: Repository, tmp_path: Path
) -> None:
    with run_rolled_out(repository, tmp_path) as parts:
        revert = repository.push(documents())
        repository.push({"other.yaml": "kind: Server\n"})
        reconcile_at(parts, 3, 4, 5)
        status = parts.reconciler.status
        assert (status.accepted, find_acceptance(parts).reason) == (revert, "Invalid")


@pytest.mark.parametrize("are_together", [False, True])
def test_a_revert_within_the_limit_waits_if_another_commit_parked_the_servers_before(
    repository: Repository, tmp_path: Path, *, are_together: bool
) -> None:
    with run_rolled_out(repository, tmp_path) as parts:
        bad = planned(parts, "web03")
        parked = repository.push(documents(BAD, spec=PARKED))
        if not are_together:
            reconcile_at(parts, 3)
            assert parts.reconciler.status.accepted == parked
        fetch(parts, bad, 3)
        revert = repository.push(documents())
        reconcile_at(parts, 4, 5, 6)
        assert parts.reconciler.status.accepted == revert
        reconcile_at(parts, 100)
        assert (boot(parts, "web03"), boot(parts, "web02")) == ((Cause.PENDING, OLD), (Cause.PROVISIONED, None))


def test_a_change_of_a_server_of_which_no_boot_is_withheld_is_accepted_in_one_reconcile(
    repository: Repository, tmp_path: Path
) -> None:
    with run_in_process(tmp_path, repository.bare, limits=UPDATE_LIMITS, initial="adopt", clock=lambda: NOON) as parts:
        reconcile_at(parts)
        for seconds, files in ((10, documents(spec=PARKED)), (20, documents()), (30, documents(BAD))):
            commit = repository.push(files)
            reconcile_at(parts, seconds)
            assert parts.reconciler.status.accepted == commit, seconds
            reconcile_at(parts, seconds + 1)


def lose_history(clone: Path, repository: Repository) -> None:
    """Lose the clone, and in the repository all commits that its branch does not have."""
    shutil.rmtree(clone)
    git(repository.bare, "gc", "--quiet", "--prune=now")


def find_history(parts: Parts) -> Condition | None:
    return next((each for each in parts.reconciler.status.conditions if each.type == "HistoryComplete"), None)


@pytest.mark.parametrize("loses_clone", [False, True])
def test_boots_withheld_by_a_commit_that_is_gone_are_a_condition_until_the_remedy(
    repository: Repository, tmp_path: Path, *, loses_clone: bool
) -> None:
    with run_approved(repository, tmp_path) as parts:
        bad = require_value(parts.reconciler.status.accepted)
        revert = push_revert(parts, repository)
        assert parts.reconciler.status.held is not None and find_history(parts) is None
        git(repository.bare, "update-ref", "refs/heads/main", bad)
        if not loses_clone:
            reconcile_at(parts, 7)
            assert_revert_lost(parts, revert)
    if loses_clone:
        lose_history(tmp_path / "state" / CLONE, repository)
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, clock=lambda: NOON) as parts:
        parts.reconciler.reconcile(NOON + timedelta(seconds=8))
        assert loses_clone or find_history(parts) is None  # gitboot fetches now if it has no clone
        for seconds in (9, 10):
            reconcile_at(parts, seconds)
            assert_revert_lost(parts, revert)
            message = getattr(find_history(parts), "message", "")
            assert ("until the branch contains commit" in message) == loses_clone
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        assert [each.facts["commit"] for each in parts.events if each.type == "CommitMissing"] == [revert]
    rewinding = structs.replace(LOOSE_LIMITS, allow_rewind=True)
    with run_in_process(tmp_path, repository.bare, limits=rewinding, clock=lambda: NOON) as parts:
        parts.reconciler.reconcile(NOON + timedelta(seconds=11))
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)  # until gitboot has fetched
        reconcile_at(parts, 12)
        assert (find_history(parts), parts.reconciler.status.withheld) == (None, ())
        assert f"{BAD}/kernel" in read_scripts(tmp_path)
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, clock=lambda: NOON) as parts:
        reconcile_at(parts, 13)
        assert (find_history(parts), parts.reconciler.status.accepted) == (None, bad)
        assert f"{BAD}/kernel" in read_scripts(tmp_path)


def assert_revert_lost(parts: Parts, revert: str) -> None:
    """Assert that the condition names the revert, and the number of servers whose boots it withholds."""
    condition = find_history(parts)
    assert condition is not None and (condition.status, condition.reason) == (False, "CommitMissing")
    assert f"{revert[:12]}, which had removed the install boots for {len(SERVERS)} servers" in condition.message
    assert condition.remedy is not None and "--allow-rewind" in condition.remedy
    assert {each.server for each in parts.reconciler.status.withheld} == set(SERVERS)


def test_a_newer_commit_ends_the_withholding_of_a_lost_commit_if_the_clone_has_that_commit(
    parts: Parts, repository: Repository, tmp_path: Path
) -> None:
    bad = require_value(parts.reconciler.status.accepted)
    push_revert(parts, repository)
    git(repository.bare, "update-ref", "refs/heads/main", bad)
    reconcile_at(parts, 7)
    condition = find_history(parts)
    assert condition is not None and "If you push any other new commit" in condition.message
    newer = git(repository.bare, "commit-tree", "-p", bad, "-m", "Keep the image", f"{bad}^{{tree}}")
    git(repository.bare, "update-ref", "refs/heads/main", newer)
    reconcile_at(parts, 8)
    assert (parts.reconciler.status.accepted, find_history(parts)) == (newer, None)
    assert f"{BAD}/kernel" in read_scripts(tmp_path)


def test_of_two_commits_that_withhold_boots_only_the_one_that_is_gone_counts(
    repository: Repository, tmp_path: Path
) -> None:
    with run_approved(repository, tmp_path) as parts:
        fetch(parts, planned(parts, "web03"), 3)
        fetch(parts, planned(parts, "web04"), 3)
        revert = repository.push(documents())
        reconcile_at(parts, 4, 5, 6)
        bad = parts.reconciler.status.accepted
    assert bad is not None
    git(repository.bare, "update-ref", "refs/heads/main", bad)
    lose_history(tmp_path / "state" / CLONE, repository)
    git(repository.work, "reset", "--hard", bad)
    held = repository.push(documents(BAD, servers=SERVERS[:4]))  # takes the boots of two servers back
    rewinding = structs.replace(LOOSE_LIMITS, allow_rewind=True, max_deletes=0)
    with run_in_process(
        tmp_path, repository.bare, limits=structs.replace(LOOSE_LIMITS, max_deletes=0), clock=lambda: NOON
    ) as parts:
        reconcile_at(parts, 7, 8, 9)
        condition = find_history(parts)
        assert condition is not None and f"{revert[:12]}, which had removed the install boots for" in condition.message
        assert [each.server for each in parts.reconciler.status.withheld] == list(SERVERS)
    with run_in_process(tmp_path, repository.bare, limits=rewinding, clock=lambda: NOON) as parts:
        reconcile_at(parts, 10, 11, 12)
        status = parts.reconciler.status
        assert status.held is not None and status.held.commit == held
        assert [each.server for each in status.withheld] == list(SERVERS[4:])


@pytest.mark.parametrize(("evidence", "file"), [("Fetched", "boot.ipxe"), ("Reported", "provisioned/token")])
def test_late_evidence_of_a_boot_that_was_taken_back_installs_nothing_and_needs_an_operator(
    repository: Repository, tmp_path: Path, evidence: str, file: str
) -> None:
    """A mirror served the boot, and its log comes late, or the installer reports late what it has installed."""
    repository.push(documents(evidence=evidence))
    with run_approved(repository, tmp_path, evidence=evidence) as parts:
        bad = planned(parts, "web02")
        revert = repository.push(documents(evidence=evidence))
        reconcile_at(parts, 3, 4, 5)
        assert parts.reconciler.status.accepted == revert
        fetch(parts, bad, 2, file=file)
        reconcile_at(parts, 6, 200)
        assert boot(parts, "web02") == (Cause.OVERWRITTEN, None)
        failing = {each.type: each for each in parts.reconciler.status.conditions if not each.status}
        assert failing["RecordsVerified"].reason == "UnverifiedServers"
        (event,) = (each for each in parts.events if each.type == "WithdrawnBootInstalled")
        assert event.warning and event.facts["server"] == "web02"


def test_after_a_restart_a_boot_stays_withheld_until_the_commit_that_takes_it_back_is_evaluated(
    repository: Repository, tmp_path: Path
) -> None:
    with run_approved(repository, tmp_path) as parts:
        fetch(parts, planned(parts, "web03"), 3)
        revert = repository.push(documents())
        reconcile_at(parts, 4)
        reconcile_at(parts, 5)
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, evaluates=False, clock=lambda: NOON) as parts:
        for seconds in (6, 7):
            parts.reconciler.reconcile(NOON + timedelta(seconds=seconds))
        stored = instance_tables.read_facts(parts.ledger).withheld
        assert stored is not None and stored.by == revert
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, clock=lambda: NOON) as parts:
        repository.push(documents(BAD))  # the revert is reverted
        reconcile_at(parts, 8, 9)
        assert boot(parts, "web01") == (Cause.PENDING, BAD)
        assert instance_tables.read_facts(parts.ledger).withheld is None


def test_after_a_restart_a_boot_stays_withheld_while_the_evaluation_of_the_revert_does_not_end(
    repository: Repository, tmp_path: Path
) -> None:
    with run_approved(repository, tmp_path) as parts:
        revert = push_revert(parts, repository)
    unending = {revert}
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, unending=unending, clock=lambda: NOON) as parts:
        reconcile_at(parts, 7, 8, 9)
        status = parts.reconciler.status
        assert (find_acceptance(parts).reason, status.held) == ("NotEvaluated", None)
        assert {each.server for each in status.withheld} == set(SERVERS)
        stored = instance_tables.read_facts(parts.ledger).withheld
        assert stored is not None and stored.by == revert
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        unending.clear()
        reconcile_at(parts, 70, 71, 72)
        assert (get_held(parts).commit, get_held(parts).reinstalls) == (revert, ("web03",))


def test_after_a_restore_a_boot_stays_withheld_while_the_clone_lacks_the_revert(
    repository: Repository, tmp_path: Path
) -> None:
    with run_approved(repository, tmp_path) as parts:
        bad = require_value(parts.reconciler.status.accepted)
        revert = push_revert(parts, repository)
    shutil.rmtree(tmp_path / "state" / CLONE)
    git(repository.bare, "update-ref", "refs/heads/main", bad)  # a copy of the repository from before the revert
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, clock=lambda: NOON) as parts:
        reconcile_at(parts, 7, 8, 9)
        status = parts.reconciler.status
        assert (status.accepted, {each.server for each in status.withheld}) == (bad, set(SERVERS))
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        git(repository.bare, "update-ref", "refs/heads/main", revert)
        reconcile_at(parts, 10, 11, 12)
        assert (get_held(parts).commit, get_held(parts).reinstalls) == (revert, ("web03",))


def test_a_revert_that_is_evaluated_late_is_judged_by_the_fetches_until_its_boots_were_withheld(
    repository: Repository, tmp_path: Path
) -> None:
    unending = set[str]()
    with run_approved(repository, tmp_path, unending) as parts:
        bad = planned(parts, "web03")
        revert = repository.push(documents())
        unending.add(revert)
        reconcile_at(parts, 3, 4, 5)
        assert (find_acceptance(parts).reason, parts.reconciler.status.withheld) == ("NotEvaluated", ())
        unending.clear()
        reconcile_at(parts, 70)
        assert parts.reconciler.status.accepted != revert
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)
        fetch(parts, bad, 70)  # just before the files changed, and recorded just after
        reconcile_at(parts, 71, 72, 73)
        assert (get_held(parts).commit, get_held(parts).reinstalls) == (revert, ("web03",))


def test_a_boot_stays_withheld_if_the_accepted_commit_is_evaluated_long_after_a_restart(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_approved(repository, tmp_path) as parts:
        bad = require_value(parts.reconciler.status.accepted)
        revert = push_revert(parts, repository)
    evaluate, unending = InProcessEvaluator.evaluate, {bad}
    running = {revert}  # the evaluation of the revert is still running

    def evaluate_slowly(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        return None if base is not None and revision in running else evaluate(self, revision, base)

    monkeypatch.setattr(InProcessEvaluator, "evaluate", evaluate_slowly)
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, unending=unending, clock=lambda: NOON) as parts:
        reconcile_at(parts, 10, 100, 300, 500)
        assert (get_held(parts).commit, get_held(parts).guards[-1]) == (revert, "allowRewind")
        unending.clear()
        for seconds in (1000, 1001, 1002):
            reconcile_at(parts, seconds)
            assert parts.reconciler.status.accepted == bad and f"{BAD}/kernel" not in read_scripts(tmp_path)
        running.clear()
        reconcile_at(parts, 1003, 1004, 1005)
        assert (get_held(parts).commit, get_held(parts).reinstalls) == (revert, ("web03",))


@pytest.mark.parametrize("seconds", [86_400, 3])  # the clock was ahead by a day, or an operator has suspended commits
def test_an_evaluation_that_did_not_end_is_repeated_during_a_suspension_and_after_the_clock_was_set_back(
    repository: Repository, tmp_path: Path, seconds: int
) -> None:
    unending = set[str]()
    with run_approved(repository, tmp_path, unending) as parts:
        if seconds == 3:
            facts = {"until": (NOON + timedelta(days=9)).isoformat(), "reason": "an audit"}
            instance_tables.add_request(parts.ledger, NOON, "op", "suspend", facts)
            reconcile_at(parts, 2.5)
        unending.add(repository.push(documents()))
        reconcile_at(parts, seconds)
        assert f"{BAD}/kernel" in read_scripts(tmp_path)
        unending.clear()
        reconcile_at(parts, 40, 70, 71)
        assert {each.server for each in parts.reconciler.status.withheld} == set(SERVERS)
        assert f"{BAD}/kernel" not in read_scripts(tmp_path)


def test_the_first_commit_is_evaluated_again_during_a_suspension(repository: Repository, tmp_path: Path) -> None:
    unending = {git(repository.work, "rev-parse", "HEAD")}
    with run_in_process(tmp_path, repository.bare, unending=unending, initial="adopt", clock=lambda: NOON) as parts:
        facts = {"until": (NOON + timedelta(minutes=9)).isoformat(), "reason": "an audit"}
        instance_tables.add_request(parts.ledger, NOON, "op", "suspend", facts)
        reconcile_at(parts, 1, 2)
        assert all(each.type != "CommitAccepted" for each in parts.reconciler.status.conditions)
        unending.clear()
        reconcile_at(parts, 600)
        assert parts.reconciler.status.accepted == git(repository.work, "rev-parse", "HEAD")


@pytest.mark.parametrize(("owner", "withheld"), [("web01", ["web00", "web01"]), ("unknown", ["web00"])])
def test_a_held_revert_withholds_the_boots_that_a_mac_address_got_by_mistake(
    parts: Parts, repository: Repository, owner: str, withheld: list[str]
) -> None:
    """Each server keeps its boot, but the boot loader of another machine sends only the MAC address."""
    good = documents(BAD)["fleet.yaml"]
    names = {make_mac("web00"): make_mac(owner), make_mac(owner): make_mac("web00")}
    bad = repository.push({"fleet.yaml": re.sub("|".join(names), lambda found: names[found[0]], good)})
    reconcile_at(parts, 3)
    if (held := parts.reconciler.status.held) is not None:
        approve(parts, held.digest)
        reconcile_at(parts, 4)
    assert parts.reconciler.status.accepted == bad
    assert {boot(parts, name) for name in SERVERS} == {(Cause.PENDING, BAD)}
    raised = server("web05", "role: web", "provision: 2")  # this holds the revert in both cases
    repository.push({"fleet.yaml": good.replace(server("web05", "role: web"), raised)})
    reconcile_at(parts, 5, 6, 7)
    assert get_held(parts).guards == ("maxReinstalls",)
    assert [name for name in SERVERS if boot(parts, name) == (Cause.WITHHELD, None)] == [*withheld, "web05"]
    approve(parts, get_held(parts).digest)
    reconcile_at(parts, 8)
    assert {boot(parts, name) for name in SERVERS} == {(Cause.PENDING, BAD)}


@pytest.mark.parametrize(("owner", "withheld"), [("web01", ["web00", "web01"]), ("unknown", ["web00"])])
def test_a_held_revert_withholds_the_boots_that_a_machine_got_by_the_address_of_a_bmc(
    repository: Repository, tmp_path: Path, owner: str, withheld: list[str]
) -> None:
    """gitboot sets overrides also at a BMC that does not report which machine it belongs to."""
    bmcs = {name: f"https://{name}-bmc.example" for name in ("web00", "web01", "unknown")}

    def describe(*servers: tuple[str, str], web05: str = "") -> dict[str, str]:
        text = documents(BAD)["fleet.yaml"].replace(server("web05", "role: web"), server("web05", "role: web", web05))
        for name, bmc in servers:
            spec = f"bmc: {{address: '{bmcs[bmc]}', credentials: rack}}"
            text = text.replace(server(name, "role: web"), server(name, "role: web", spec))
        return {"fleet.yaml": text}

    swapped = [("web00", owner)] + ([(owner, "web00")] if owner != "unknown" else [("web01", "web01")])
    repository.push({"fleet.yaml": describe(*swapped)["fleet.yaml"].replace(f"image: {BAD}", f"image: {OLD}")})
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, initial="adopt", clock=lambda: NOON) as parts:
        reconcile_at(parts)
        repository.push(describe(*swapped))
        reconcile_at(parts, 1)
        approve(parts, get_held(parts).digest)
        reconcile_at(parts, 2)
        assert {boot(parts, name) for name in SERVERS} == {(Cause.PENDING, BAD)}
        repository.push(describe(("web00", "web00"), ("web01", "web01"), web05="provision: 2"))
        reconcile_at(parts, 5, 6, 7)
        assert get_held(parts).guards[0] == "maxReinstalls"
        assert [name for name in SERVERS if boot(parts, name) == (Cause.WITHHELD, None)] == [*withheld, "web05"]


@pytest.mark.parametrize(("owner", "goes_on"), [("new", True), ("web01", False)])
def test_a_started_installation_goes_on_unless_a_held_commit_gives_the_mac_address_to_another_server(
    repository: Repository, tmp_path: Path, owner: str, goes_on: bool
) -> None:
    old, bad = (
        documents(each, evidence="Reported")["fleet.yaml"].replace(image(BAD), image(BAD, "boots: 2"))
        for each in (OLD, BAD)
    )
    repository.push({"fleet.yaml": old})
    changed = bad.replace(server("web05", "role: web"), server("web05", "role: web", "provision: 2"))  # held for this
    names = {make_mac("web00"): make_mac(owner), make_mac(owner): make_mac("web00")}
    with run_in_process(tmp_path, repository.bare, limits=LOOSE_LIMITS, initial="adopt", clock=lambda: NOON) as parts:
        reconcile_at(parts)
        repository.push({"fleet.yaml": bad})
        reconcile_at(parts, 1)
        approve(parts, get_held(parts).digest)
        reconcile_at(parts, 2)
        fetch(parts, planned(parts, "web00"), 3)
        reconcile_at(parts, 4)
        assert {boot(parts, name) for name in SERVERS} == {(Cause.PENDING, BAD)}
        repository.push({"fleet.yaml": re.sub("|".join(names), lambda found: names[found[0]], changed)})
        reconcile_at(parts, 5, 6, 7)
        assert get_held(parts).guards == ("maxReinstalls",)
        withheld = {name for name in SERVERS if boot(parts, name) == (Cause.WITHHELD, None)}
        assert withheld == ({"web05"} if goes_on else {"web00", "web01", "web05"})


def test_a_held_commit_that_deletes_every_server_changes_no_diskless_boot(parts: Parts, repository: Repository) -> None:
    before = planned(parts, "live01")
    accepted = parts.reconciler.status.accepted
    repository.push(documents(servers=()))
    reconcile_at(parts, 3, 4)
    status = parts.reconciler.status
    assert status.held is not None and status.accepted == accepted
    assert planned(parts, "live01").digest == before.digest and before.boot is not None
    assert {boot(parts, name) for name in SERVERS} == {(Cause.WITHHELD, None)}


def test_an_invalid_commit_withholds_nothing(parts: Parts, repository: Repository) -> None:
    repository.push({"fleet.yaml": documents(OLD)["fleet.yaml"].replace("role: web}}", "role: }}")})
    reconcile_at(parts, 3, 4)
    status = parts.reconciler.status
    assert status.held is None and status.withheld == () and status.problems
    assert {boot(parts, name) for name in SERVERS} == {(Cause.PENDING, BAD)}


@pytest.mark.parametrize("loses_clone", [False, True])
def test_finding_r1_a_revert_ends_the_bad_image_at_once_and_its_loss_is_a_condition_whose_remedy_works(
    repository: Repository, tmp_path: Path, *, loses_clone: bool
) -> None:
    """The stranger approves a new image, one machine fetches it, and `git revert` follows, which holds the revert.

    A force-push drops the held revert while the instance runs, or while it is stopped and its clone is lost, too.
    `status` shows the remedy.
    """
    paths = {name: f"/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe" for name in SERVERS}
    loose = {"GITBOOT_MAX_UPDATE_PERCENT": "100", "GITBOOT_MAX_SMALL_GROUP": "100"}

    def run(*arguments: str, records: str | None = None) -> AbstractContextManager[Instance]:
        return running(repository.bare, tmp_path, "--poll", "1", *arguments, environment=loose, records=records)

    def held_is(instance: Instance, commit: str) -> Any:
        attempted = instance.status()["attempted"]
        return attempted["commit"] == commit and attempted["held"]

    with run(records="adopt") as instance:
        bad = repository.push(documents(BAD))
        held = eventually(lambda: held_is(instance, bad))
        request = ApproveCommit(digest=held["digest"], guards=tuple(held["guards"]), reason="planned")
        request_change(tmp_path / "state", request)
        eventually(lambda: instance.status()["applied"]["commit"] == bad)
        assert f"{BAD}/kernel" in instance.get(paths["web03"]).text
        revert = repository.push(documents())
        eventually(lambda: (found := held_is(instance, revert)) and found["reinstalls"] == ["web03"])
        assert [each["server"] for each in instance.status()["attempted"]["withheld"]] == list(SERVERS)
        for path in paths.values():
            assert f"{BAD}/kernel" not in instance.get(path).text
        if not loses_clone:
            git(repository.bare, "update-ref", "refs/heads/main", bad)
            wait_for_condition(instance, "HistoryComplete", status=False, reason="CommitMissing")
    if loses_clone:
        git(repository.bare, "update-ref", "refs/heads/main", bad)
        lose_history(tmp_path / "state" / CLONE, repository)
    with run() as instance:
        found = wait_for_condition(instance, "HistoryComplete", status=False, reason="CommitMissing")
        assert f"{revert[:12]}, which had removed the install boots for {len(SERVERS)} servers" in found["message"]
        assert f"{BAD}/kernel" not in instance.get(paths["web01"]).text
    words = shlex.split(found["remedy"], comments=True)
    assert words[:3] == ["gitboot", "run", "…"]
    with run(*words[3:]) as instance:
        eventually(lambda: f"{BAD}/kernel" in instance.get(paths["web01"]).text)
        eventually(lambda: all(each["type"] != "HistoryComplete" for each in instance.status()["conditions"]))


def test_a_revert_clears_the_override_of_the_bad_image_and_applies_once_its_absence_is_proven(
    tmp_path: Path,
) -> None:
    web_policy = policy("web", often="OnImageChange")
    with Rack(tmp_path, pool=(image(OLD), image(BAD), profile("web", OLD), web_policy)) as rack:
        web = rack.add("web01")
        rack.push()
        with rack.running(records="adopt") as instance:

            def accepted() -> str:
                rack.run_command("reconcile")
                commit: str = instance.status()["accepted"]["commit"]
                return commit

            rack.pool = (image(OLD), image(BAD), profile("web", BAD), web_policy)
            bad = rack.push("Roll out the bad image")
            rack.run_command("reconcile")
            held = eventually(lambda: instance.status()["attempted"]["held"])
            rack.said("approve", held["digest"], "--guard", "maxReinstalls", "--reason", "planned")
            eventually(lambda: accepted() == bad and web.stands)
            rack.pool = (image(OLD), image(BAD), profile("web", OLD), web_policy)
            revert = rack.push("Take the bad image back")
            rack.run_command("reconcile")
            eventually(lambda: not web.stands)
            eventually(lambda: accepted() == revert)
            web.machine.run_through()
            assert (web.times_set, boots_of(instance, web)) == (1, "disk")
