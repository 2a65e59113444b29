"""Acceptance of commits by a running instance: accepted, rejected or held, and what releases a held one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.controller.instance_state import AcceptanceState
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.stages.report import LEDGER_RETRY
from gitboot.errors import InvalidRepository, NotEvaluated, UsageError
from gitboot.evaluator.protocol import Commit, EvaluationResult, build_limit_problem
from gitboot.fleet.revision import Revision
from gitboot.importers.inventory import parse_mac_or_none, parse_uuid_list
from gitboot.importers.inventory import parse_uuid_or_none as uuid_of_import
from gitboot.ledger import instance_tables
from gitboot.model.scalars import (
    MacAddress,
    SystemUuid,
    is_placeholder_mac,
    is_placeholder_serial,
    is_placeholder_uuid,
    lookup_uuids,
    swap_byte_order,
)
from gitboot.problems import Severity
from gitboot.publish.tree_reader import read_records
from gitboot.render.paths import parse_request_path
from gitboot.resolve.provisioning_record import Record, encode_records
from gitboot.review.guards import Limits
from gitboot.status.instance_status import HeldCommit
from tests.controller.test_reconcile import fleet_files
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, decided, fleet, image, maintenance, make_uuid, policy, profile, server
from tests.helpers.fleets import make_mac as server_mac
from tests.helpers.forked_commands import RUN_FIRST
from tests.helpers.http_peers import make_authority
from tests.helpers.instance_in_process import (
    NOON,
    InProcessEvaluator,
    Parts,
    applied,
    reconcile_once,
    run_in_process,
)
from tests.helpers.running_instance import Repository, eventually, git, running
from tests.scenarios.test_credential_files import until

STORES = ("flatcar-1", "flatcar-2")


def documents(image_name: str = "flatcar-1", *more: str, servers: int = 12, provision: int = 0) -> dict[str, str]:
    """A fleet of web servers that are installed once, and again whenever their image changes."""
    return {
        "fleet.yaml": "---\n".join(
            (
                fleet(),
                *(server(f"web{number:02}", spec=f"provision: {provision}") for number in range(servers)),
                *(image(name) for name in STORES),
                profile("web", image_name),
                policy("web", often="OnImageChange"),
                *more,
            )
        )
    }


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(documents())
    return made


@pytest.fixture
def parts(tmp_path: Path, repository: Repository) -> Iterator[Parts]:
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        reconcile_once(parts)
        yield parts


def approve(parts: Parts, digest: str, guards: Iterable[str]) -> int:
    facts = {"digest": digest, "guards": list(guards), "reason": "planned"}
    return instance_tables.add_request(parts.ledger, NOON, "op", "approve", facts)


def get_held(parts: Parts) -> HeldCommit:
    assert parts.reconciler.status.held is not None
    return parts.reconciler.status.held


def accepted(parts: Parts) -> tuple[bool, str]:
    (found,) = (each for each in parts.reconciler.status.conditions if each.type == "CommitAccepted")
    return found.status, found.reason


def test_a_commit_that_would_reinstall_servers_is_held_and_the_accepted_one_stays(
    parts: Parts, repository: Repository
) -> None:
    before = applied(parts)
    commit = repository.push(documents("flatcar-2"))
    for second in range(3):
        reconcile_once(parts, second)
    assert (applied(parts), parts.reconciler.status.attempted) == (before, commit)
    assert (get_held(parts).commit, get_held(parts).guards) == (commit, ("maxReinstalls", "maxUpdatePercent"))
    assert accepted(parts) == (False, "GuardTripped")
    (event,) = (event for event in parts.events if event.type == "Held")
    assert f"Gitboot-Ack: {get_held(parts).digest} maxReinstalls maxUpdatePercent" in event.message
    assert f"gitboot approve {get_held(parts).digest[:16]} --all-guards --reason '…' --state DIRECTORY" in event.message
    assert "the commit could reinstall 12 servers (maxReinstalls allows 0)" in event.message


def test_a_held_commit_is_accepted_with_an_approval_of_its_digest_and_of_each_guard(
    parts: Parts, repository: Repository
) -> None:
    commit = repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    digest = get_held(parts).digest
    for given in ((digest, ["maxReinstalls"]), ("0" * 64, ["maxReinstalls", "maxUpdatePercent"])):
        approve(parts, *given)
        reconcile_once(parts, 1)
        assert applied(parts) != commit
    assert get_held(parts).guards == ("maxUpdatePercent",)
    number = approve(parts, digest, ["maxUpdatePercent"])
    reconcile_once(parts, 2)
    assert "approved maxUpdatePercent" in (instance_tables.read_outcome(parts.ledger, number) or "")
    assert (applied(parts), parts.reconciler.status.held) == (commit, None)
    assert [event.type for event in parts.events].count("Acknowledged") == 2


@pytest.mark.parametrize("what", ["another digest", "a guard that does not hold it", "nothing is held"])
def test_an_approval_that_does_not_match_the_held_commit_is_rejected(
    parts: Parts, repository: Repository, what: str
) -> None:
    if what != "nothing is held":
        repository.push(documents("flatcar-2"))
        reconcile_once(parts)
    digest = get_held(parts).digest if what == "a guard that does not hold it" else "0" * 64
    number = approve(parts, digest, ["maxDeletes"])
    reconcile_once(parts, 1)
    assert (instance_tables.read_outcome(parts.ledger, number) or "").startswith("refused: ")
    assert parts.reconciler.state.snapshot.approvals == {}


@pytest.mark.parametrize("wait", [False, True])
def test_an_approval_from_before_a_start_waits_until_the_held_commit_is_known(
    parts: Parts, repository: Repository, wait: bool
) -> None:
    commit = repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    given = get_held(parts).digest, get_held(parts).guards
    parts.reconciler.state = structs.replace(parts.reconciler.state, acceptance=AcceptanceState())  # as after a start
    number = approve(parts, *given)
    assert parts.reconciler.reconcile(NOON, wait=wait) == NOON  # again at once
    reconcile_once(parts, 1)
    assert "approved" in (instance_tables.read_outcome(parts.ledger, number) or "")
    assert applied(parts) == commit


def test_an_approval_that_waits_does_not_shorten_the_pause_while_the_ledger_cannot_be_written(
    parts: Parts, repository: Repository
) -> None:
    repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    approve(parts, get_held(parts).digest, get_held(parts).guards)
    parts.reconciler.state = structs.replace(parts.reconciler.state, acceptance=AcceptanceState())  # as after a start
    parts.ledger.database.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.facts BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    now = NOON + timedelta(seconds=1)
    assert parts.reconciler.reconcile(now) == now + LEDGER_RETRY
    assert not parts.reconciler.status.condition("LedgerWritable")


def test_the_accepted_commit_is_evaluated_once_while_the_ledger_cannot_be_written(
    parts: Parts, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = applied(parts)
    repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    parts.reconciler.state = structs.replace(parts.reconciler.state, acceptance=AcceptanceState())  # as after a start
    evaluated: list[Revision] = []
    evaluate = InProcessEvaluator.evaluate

    def count(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        evaluated.extend([revision] if base is None else [])
        return evaluate(self, revision, base)

    monkeypatch.setattr(InProcessEvaluator, "evaluate", count)
    parts.ledger.database.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.facts BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    for second in range(1, 5):
        parts.reconciler.reconcile(NOON + timedelta(seconds=second))
        assert not parts.reconciler.status.condition("LedgerWritable")
    parts.ledger.database.execute("DROP TRIGGER full")
    reconcile_once(parts, 9)
    assert (applied(parts), evaluated) == (before, [before])


@pytest.mark.parametrize("fails_again", [False, True])
def test_an_acceptance_stays_if_the_ledger_stored_it_but_reported_an_error(
    parts: Parts, repository: Repository, monkeypatch: pytest.MonkeyPatch, fails_again: bool
) -> None:
    commit = repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    approve(parts, get_held(parts).digest, get_held(parts).guards)
    store = parts.ledger.database.commit

    def fail(code: int) -> None:
        if code == sqlite3.SQLITE_IOERR:
            store()
        error = sqlite3.OperationalError("the ledger cannot be written")
        error.sqlite_errorcode = code
        raise error

    codes = [sqlite3.SQLITE_IOERR, *([sqlite3.SQLITE_FULL] if fails_again else [])]
    for second, code in enumerate(codes):
        with monkeypatch.context() as patch:
            patch.setattr(parts.ledger.database, "commit", partial(fail, code))
            parts.reconciler.reconcile(NOON + timedelta(seconds=second))
        assert not parts.reconciler.status.condition("LedgerWritable")
        assert instance_tables.read_facts(parts.ledger).accepted == commit
    reconcile_once(parts, len(codes))
    assert (applied(parts), parts.reconciler.status.held) == (commit, None)
    assert instance_tables.read_facts(parts.ledger).accepted == commit


def test_an_approval_is_used_up_by_the_commit_that_it_approves(parts: Parts, repository: Repository) -> None:
    """There and back and there again is a third change, and another reinstallation."""
    for second, name in enumerate(("flatcar-2", "flatcar-1")):
        commit = repository.push(documents(name))
        reconcile_once(parts, second)
        approve(parts, get_held(parts).digest, get_held(parts).guards)
        for _ in range(2):  # the way back waits until the fetches are read
            reconcile_once(parts, second)
        assert applied(parts) == commit
    again = repository.push(documents("flatcar-2"))
    reconcile_once(parts, 3)
    assert applied(parts) != again
    assert "maxReinstalls" in get_held(parts).guards


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ["a revert", "a force-push"])
def test_an_unused_approval_ends_when_its_commit_is_taken_back(
    tmp_path: Path, repository: Repository, how: str, restarts: bool
) -> None:
    changed = documents("flatcar-2")
    with ExitStack() as stack:
        parts = stack.enter_context(run_in_process(tmp_path, repository.bare, limits=Limits()))
        reconcile_once(parts)
        repository.push(changed)
        reconcile_once(parts)
        digest = get_held(parts).digest
        approve(parts, digest, ["maxReinstalls"])
        reconcile_once(parts, 1)
        assert get_held(parts).guards == ("maxUpdatePercent",)
        if restarts:
            stack.close()
            parts = stack.enter_context(run_in_process(tmp_path, repository.bare, limits=Limits()))
            parts.reconciler.reconcile(NOON + timedelta(seconds=1))
            assert get_held(parts).guards == ("maxUpdatePercent",)
            stack.close()
        if how == "a revert":
            expected = repository.push(documents())
        else:
            git(repository.work, "reset", "--quiet", "--hard", "HEAD~1")
            expected = git(repository.work, "rev-parse", "HEAD")
            git(repository.work, "push", "--quiet", "--force", "origin", "main")
        if restarts:
            parts = stack.enter_context(run_in_process(tmp_path, repository.bare, limits=Limits()))
        reconcile_once(parts, 2)
        assert (applied(parts), parts.reconciler.status.held) == (expected, None)
        assert parts.reconciler.state.snapshot.approvals == instance_tables.read_approvals(parts.ledger) == {}
        repository.push(changed)
        reconcile_once(parts, 3)
        assert (get_held(parts).digest, get_held(parts).guards) == (digest, ("maxReinstalls", "maxUpdatePercent"))


@pytest.mark.parametrize("how", ["in the commit itself", "in a later, empty one", "squashed", "rebased"])
def test_a_trailer_acknowledges_the_changes_in_any_kind_of_commit(
    parts: Parts, repository: Repository, how: str
) -> None:
    repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    lines = "\n".join(f"Gitboot-Ack: {get_held(parts).digest} {guard}" for guard in get_held(parts).guards)
    if how == "in a later, empty one":
        git(repository.work, "commit", "-q", "--allow-empty", "-m", f"Acknowledge\n\n{lines}")
    elif how == "rebased":
        git(repository.work, "reset", "-q", "--soft", "HEAD~1")
        git(repository.work, "stash", "-q")
        git(repository.work, "commit", "-q", "--allow-empty", "-m", "Someone else's")
        git(repository.work, "stash", "pop", "-q")
        git(repository.work, "commit", "-qam", f"Go on to flatcar-2\n\n{lines}")
    else:
        indented = "* Go on\n\n" + "\n".join(f"  {line}" for line in lines.splitlines())
        message = f"Go on to flatcar-2\n\n{lines}" if how == "in the commit itself" else indented
        git(repository.work, "commit", "-q", "--amend", "-m", message)
    git(repository.work, "push", "-qf", "origin", "main")
    reconcile_once(parts, 1)
    assert applied(parts) == git(repository.work, "rev-parse", "HEAD")


def test_one_more_change_voids_an_acknowledgement(parts: Parts, repository: Repository) -> None:
    before = applied(parts)
    repository.push(documents("flatcar-2"))
    reconcile_once(parts)
    message = "\n".join(f"Gitboot-Ack: {get_held(parts).digest} {guard}" for guard in get_held(parts).guards)
    git(repository.work, "reset", "-q", "--soft", "HEAD~1")
    git(repository.work, "push", "-qf", "origin", "HEAD:main")
    repository.push(documents("flatcar-2", servers=13), f"One more\n\n{message}")
    reconcile_once(parts, 1)
    assert (applied(parts), accepted(parts)) == (before, (False, "GuardTripped"))
    assert any("Review the commits again" in event.message for event in parts.events)


def test_e33_a_first_commit_installs_nothing_before_an_operator_begins_the_records(tmp_path: Path) -> None:
    """STATE and OUTPUT are lost, and nothing in a unit file states that the machines are new."""
    repository = Repository.create(tmp_path / "new")
    commit = repository.push(documents(servers=6, provision=1))
    with run_in_process(tmp_path, repository.bare, limits=Limits(max_installs=5)) as parts:
        for seconds in (0, 1):
            reconcile_once(parts, seconds)
            assert applied(parts) == commit
            assert dict(parts.reconciler.status.records) == {"Unknown": 6}
        instance_tables.add_request(
            parts.ledger, NOON, "ada", BeginWithRecords.kind, {"how": "fresh", "commit": commit}
        )
        reconcile_once(parts, 2)
        assert dict(parts.reconciler.status.records) == {"Pending": 6}


def test_the_status_shows_the_committer_time_of_the_accepted_commit_before_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.create(tmp_path / "new")
    repository.push(documents())
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2026-11-19T08:00:00Z")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-11-20T09:30:00+01:00")
    git(repository.work, "commit", "--quiet", "--amend", "--reset-author", "--no-edit")
    git(repository.work, "push", "--quiet", "--force", "origin", "main")
    for _ in range(2):
        with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
            reconcile_once(parts)
            assert parts.reconciler.status.facts()["accepted"]["committedAt"] == "2026-11-20T08:30:00Z"
            repository.push({"fleet.yaml": "not a fleet"})
            reconcile_once(parts, 1)
            assert parts.reconciler.status.facts()["accepted"]["committedAt"] == "2026-11-20T08:30:00Z"


def test_after_a_loss_of_the_ledger_a_held_commit_stays_held(tmp_path: Path, repository: Repository) -> None:
    """The output tree names its commit, and the guards continue from there."""
    with run_in_process(tmp_path, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts)
        before = applied(parts)
        repository.push(documents("flatcar-2"))
        reconcile_once(parts, 1)
        assert "maxReinstalls" in get_held(parts).guards
    shutil.rmtree(tmp_path / "state")
    with run_in_process(tmp_path, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts, 2)
        assert (applied(parts), "maxReinstalls" in get_held(parts).guards) == (before, True)


def test_an_output_tree_of_another_history_does_not_count_as_a_first_start(
    tmp_path: Path, repository: Repository
) -> None:
    with run_in_process(tmp_path, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts)
    shutil.rmtree(tmp_path / "state")
    other = Repository.create(tmp_path / "other")
    other.push(documents("flatcar-2"))
    with run_in_process(tmp_path, other.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts)
        assert (applied(parts), get_held(parts).guards) == (None, ("allowRewind",))


@pytest.mark.parametrize("error", [InvalidRepository, NotEvaluated])
def test_if_the_accepted_commit_cannot_be_evaluated_the_next_is_held_and_compared_with_what_is_known(
    tmp_path: Path, repository: Repository, error: type[InvalidRepository], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(allow_rewind=True)
    with run_in_process(tmp_path, repository.bare, limits=limits, initial="adopt") as parts:
        reconcile_once(parts)
        before = parts.reconciler.status.applied or ""
    scripts = sorted((tmp_path / "output/boot").rglob("*.ipxe"))
    evaluate, failing = InProcessEvaluator.evaluate, {before}

    def fail(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        if revision in failing:
            raise error([build_limit_problem("the evaluation exceeds its limit")])
        return evaluate(self, revision, base)

    monkeypatch.setattr(InProcessEvaluator, "evaluate", fail)
    with run_in_process(tmp_path, repository.bare, limits=limits) as parts:
        reconcile_once(parts)
        assert not accepted(parts)[0]
        message = next(each.message for each in parts.reconciler.status.conditions if each.type == "CommitAccepted")
        assert "exceeds its limit" in message and message.endswith(f" serves commit {before[:12]}")
        commit = repository.push(documents(servers=2))
        for minutes in (1, 3, 7, 20):  # an evaluation that did not end is repeated before a newer commit is judged
            reconcile_once(parts, minutes * 60)
        held = get_held(parts)
        assert (held.commit, held.guards) == (commit, ("allowRewind", "maxDeletePercent"))
        assert "cannot evaluate the accepted commit" in held.reasons[0] and "10 of 12 servers" in held.reasons[1]
        assert sorted((tmp_path / "output/boot").rglob("*.ipxe")) == scripts
        assert [each.type for each in parts.events if each.type in ("Rejected", "Held")] == ["Rejected", "Held"]
        if error is NotEvaluated:  # gitboot compares both as soon as the evaluation ends
            failing.clear()
            reconcile_once(parts, 60 * 60)
            assert (applied(parts), get_held(parts).guards) == (before, ("maxDeletePercent",))
            return
        approve(parts, held.digest, held.guards)
        reconcile_once(parts, 60 * 60)
        assert applied(parts) == commit


@pytest.mark.parametrize("error", [InvalidRepository, NotEvaluated])
def test_each_problem_is_reported_once_if_neither_the_accepted_commit_nor_a_newer_one_is_valid(
    tmp_path: Path, repository: Repository, error: type[InvalidRepository], monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_in_process(tmp_path, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts)
        before = parts.reconciler.status.applied or ""
    evaluate, calls = InProcessEvaluator.evaluate, list[Revision]()
    problems: dict[str, InvalidRepository] = {before: error([build_limit_problem("the old evaluation is too long")])}

    def fail(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        calls.append(revision)
        if revision in problems:
            raise problems[revision]
        return evaluate(self, revision, base)

    monkeypatch.setattr(InProcessEvaluator, "evaluate", fail)
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:

        def reconcile_at(*minutes: int) -> tuple[str, str, list[str]]:
            for each in minutes:
                reconcile_once(parts, each * 60)
            condition = next(each for each in parts.reconciler.status.conditions if each.type == "CommitAccepted")
            rejected = [each.facts["commit"] for each in parts.events if each.type == "Rejected"]
            return condition.reason, condition.message, rejected

        reconcile_at(0)
        broken = repository.push({"new.yaml": "kind: Nonsense\n"})
        reason, message, rejected = reconcile_at(1, 3, 7, 20, 60, 120)
        assert (reason, rejected) == ("Invalid", [before, broken])
        assert message.startswith(f"commit {broken[:12]} is invalid") and "the old evaluation is too long" in message

        # gitboot repeats the evaluation of both commits
        long = repository.push({"new.yaml": "# no document\n"})
        problems[long] = NotEvaluated([build_limit_problem("the new evaluation is too long")])
        reason, message, rejected = reconcile_at(121, 180, 181, 240)
        assert (reason, rejected) == ("NotEvaluated", [before, broken, long])
        assert "the new evaluation is too long" in message and "the old evaluation is too long" in message
        assert f"gitboot serves commit {before[:12]}. gitboot cannot evaluate" in message
        calls.clear()
        reconcile_at(241, 242, 300)
        assert calls.count(Revision(long)) == 1
        del problems[long]
        reason, message, rejected = reconcile_at(360)
        assert (reason, len(rejected)) == ("GuardTripped", 3) and "the old evaluation is too long" in message

        # the newest commit is the accepted one again
        git(repository.work, "reset", "-q", "--hard", before)
        git(repository.work, "push", "-q", "--force", str(repository.bare), "main")
        reason, message, rejected = reconcile_at(361)
        assert (len(rejected), parts.reconciler.status.held) == (3, None) and "old evaluation" in message
        problems.clear()
        reconcile_at(420)
        assert applied(parts) == before


def test_a_fleet_tightens_guards_and_cannot_loosen_them_in_the_same_commit(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "new")
    tight = documents()["fleet.yaml"].replace(fleet(), fleet("baseURL: 'http://boot.test', guards: {maxInstalls: 0}"))
    first = repository.push({"fleet.yaml": tight})
    with run_in_process(tmp_path, repository.bare, limits=Limits(max_update_percent=100)) as parts:
        reconcile_once(parts)
        assert applied(parts) == first
        repository.push({**documents(), "new.yaml": server("new", spec="provision: 1")})
        reconcile_once(parts, 1)
        assert (applied(parts), get_held(parts).guards) == (first, ("maxInstalls",))


def test_no_commit_is_accepted_during_a_suspension_and_all_are_accepted_after_it(
    parts: Parts, repository: Repository
) -> None:
    before = applied(parts)
    instance_tables.add_request(
        parts.ledger, NOON, "op", "suspend", {"reason": "datacentre move", "until": "2026-11-20T12:05:00Z"}
    )
    commit = repository.push(documents(servers=13))
    reconcile_once(parts, 1)
    assert applied(parts) == before
    (condition,) = (each for each in parts.reconciler.status.conditions if each.type == "AcceptingCommits")
    assert (condition.status, condition.reason) == (False, "Suspended")
    assert condition.message == (
        "op suspended this instance until 2026-11-20T12:05:00Z, so it does not accept commits or set boot overrides. "
        f"Reason: datacentre move. Commit {commit[:12]} is waiting"
    )
    assert parts.reconciler.reconcile(NOON + timedelta(seconds=2)) == NOON + timedelta(minutes=5)  # it ends by itself
    reconcile_once(parts, 300)
    assert applied(parts) == commit
    instance_tables.add_request(
        parts.ledger, NOON, "op", "suspend", {"reason": "again", "until": "2026-11-20T13:00:00Z"}
    )
    reconcile_once(parts, 301)
    (condition,) = (each for each in parts.reconciler.status.conditions if each.type == "AcceptingCommits")
    assert condition.message == (
        "op suspended this instance until 2026-11-20T13:00:00Z, so it does not accept commits or set boot overrides. "
        "Reason: again"
    )
    newest = repository.push(documents(servers=14))
    reconcile_once(parts, 302)
    assert applied(parts) == commit
    instance_tables.add_request(parts.ledger, NOON, "op", "resume", {})
    reconcile_once(parts, 303)
    assert applied(parts) == newest


def test_a_server_that_comes_back_with_another_image_is_reinstalled(parts: Parts, repository: Repository) -> None:
    """Neither commit is held by itself, but the records show what the second one installs again."""
    repository.push(documents(servers=11))
    reconcile_once(parts)
    before = applied(parts)
    assert parts.reconciler.status.held is None
    one = policy("spare", "{servers: [web11]}", "priority: 1", boots="spare", often="OnImageChange")
    repository.push(documents("flatcar-1", profile("spare", "flatcar-2"), one))
    reconcile_once(parts, 1)
    assert (applied(parts), get_held(parts).guards) == (before, ("maxReinstalls",))
    commit = repository.push(documents())
    reconcile_once(parts, 2)
    assert applied(parts) == commit  # it comes back as it is installed


def test_an_acknowledgement_of_a_review_does_not_cover_a_server_that_only_the_records_show(
    tmp_path: Path, parts: Parts, repository: Repository
) -> None:
    """The review shows web11 as a new server, but the instance would install its machine again."""
    before = repository.push(documents(servers=11))
    reconcile_once(parts)
    one = policy("spare", "{servers: [web11]}", "priority: 1", boots="spare", often="OnImageChange")
    files = documents("flatcar-1", profile("spare", "flatcar-2"), one)
    old, raised = (server("web10", spec=f"provision: {provision}") for provision in (0, 1))
    files = {path: text.replace(old, raised) for path, text in files.items()}
    repository.push(files, f"Reinstall web10\n\n{find_acks(tmp_path, repository, files)}")
    reconcile_once(parts, 1)
    assert (applied(parts), get_held(parts).guards) == (before, ("maxReinstalls",))
    acknowledged = repository.push({}, f"Acknowledge\n\n{lines(parts)}")
    reconcile_once(parts, 2)
    assert applied(parts) == acknowledged


def test_an_acknowledgement_of_a_review_counts_if_so_few_servers_return_that_no_limit_is_exceeded(
    tmp_path: Path, repository: Repository
) -> None:
    """The records show web23 as installed before, but the review shows it as a new server."""
    repository.push(documents(servers=24))
    with run_in_process(tmp_path, repository.bare, limits=Limits(max_reinstalls=5)) as parts:
        reconcile_once(parts)
        repository.push(documents(servers=23))
        reconcile_once(parts, 1)
        one = policy("spare", "{servers: [web23]}", "priority: 1", boots="spare", often="OnImageChange")
        files = documents("flatcar-1", profile("spare", "flatcar-2"), one, servers=24)
        web = profile("web", "flatcar-1")
        files = {
            path: text.replace(web, profile("web", "flatcar-1", "kernelArguments: [x=y]"))
            for path, text in files.items()
        }
        acks = find_acks(tmp_path, repository, files)
        assert acks.split()[2:] == ["maxUpdatePercent"]
        commit = repository.push(files, f"Change\n\n{acks}")
        reconcile_once(parts, 2)
        assert (applied(parts), parts.reconciler.status.held) == (commit, None)


def test_acknowledgements_that_do_not_count_are_listed_in_few_words(parts: Parts, repository: Repository) -> None:
    lines = "\n".join(f"Gitboot-Ack: {'0' * 64} {'x' * 2000}{number}" for number in range(20))
    repository.push(documents("flatcar-2"), f"Bump\n\n{lines}")
    reconcile_once(parts)
    (event,) = (event for event in parts.events if event.type == "Held")
    assert "and 15 more" in event.message
    assert len(event.message) < 4000


# Several merges


def lines(parts: Parts) -> str:
    return "\n".join(f"Gitboot-Ack: {get_held(parts).digest} {guard}" for guard in get_held(parts).guards)


def find_acks(tmp_path: Path, repository: Repository, files: dict[str, str]) -> str:
    """The lines for one more commit with these files, as CI finds them: on a branch of its own."""
    copy = tmp_path / f"ci-{len(list(tmp_path.glob('ci-*')))}"
    head = git(repository.work, "rev-parse", "HEAD")
    with run_in_process(copy, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_once(parts)
        repository.push(files, "To look at")
        reconcile_once(parts, 1)
        found = lines(parts)
    git(repository.work, "reset", "-q", "--hard", head)
    git(repository.work, "push", "-qf", "origin", "main")
    return found


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_e19_a_merge_of_several_branches_is_one_step_with_the_acknowledgements_of_all(
    tmp_path: Path, parts: Parts, repository: Repository, is_acknowledged: bool
) -> None:
    files, work = documents(provision=1), repository.work
    found = find_acks(tmp_path, repository, files) if is_acknowledged else ""
    branches = {
        "raises": (files, "Raise"),
        "says": ({"README": found}, f"Say so\n\n{found}"),
        "more": ({"x": "x"}, "x"),
    }
    for name, (changed, message) in branches.items():
        git(work, "checkout", "-q", "-b", name, "main")
        for path, text in changed.items():
            (work / path).write_text(text)
        git(work, "add", "-A")
        git(work, "commit", "-q", "--allow-empty", "-m", message)
    git(work, "checkout", "-q", "main")
    git(work, "merge", "-q", "--no-ff", "-m", "Merge three", *branches)
    git(work, "push", "-q", "origin", "main")
    reconcile_once(parts, 1)
    head = git(work, "rev-parse", "HEAD")
    assert (applied(parts) == head) is is_acknowledged
    assert (parts.reconciler.status.held is None) is is_acknowledged
    assert len(git(work, "rev-list", "--parents", "-1", "HEAD").split()) == 5


def test_e19_an_unacknowledged_merge_holds_later_commits_and_no_earlier_ones(
    tmp_path: Path, parts: Parts, repository: Repository
) -> None:
    files = documents(provision=1)
    first = repository.push(files, f"Raise\n\n{find_acks(tmp_path, repository, files)}")
    second = repository.push(documents(provision=2), "Raise again")
    third = repository.push({"README.md": "x"})
    reconcile_once(parts, 1)
    assert (applied(parts), get_held(parts).commit) == (first, third)
    before = get_held(parts)
    reconcile_once(parts, 2)
    assert get_held(parts) == before
    last = repository.push({}, f"Acknowledge\n\n{lines(parts)}")
    reconcile_once(parts, 3)
    assert applied(parts) == last
    assert second != first


def test_e19_commits_before_an_invalid_one_are_accepted_and_it_is_judged_with_the_next(
    parts: Parts, repository: Repository
) -> None:
    first = repository.push(documents(servers=13))
    repository.push({"bad.yaml": "kind: Nothing\n"})
    reconcile_once(parts, 1)
    assert (applied(parts), accepted(parts)) == (first, (False, "Invalid"))
    repository.push({"bad.yaml": "", **documents("flatcar-2", servers=13)})
    reconcile_once(parts, 2)
    assert (applied(parts), "maxReinstalls" in get_held(parts).guards) == (first, True)


def test_e19_each_of_several_merges_can_be_acknowledged_separately(parts: Parts, repository: Repository) -> None:
    before = applied(parts)
    for provision in (1, 2):
        repository.push(documents(provision=provision))
    reconcile_once(parts, 1)
    assert applied(parts) == before
    (event,) = (event for event in parts.events if event.type == "Held")
    each = [line.partition(": ")[2] for line in event.message.rpartition("each merge on its own: ")[2].split("; ")]
    assert len(each) == 2
    last = repository.push({}, "\n".join(["Acknowledge", "", *each]))
    reconcile_once(parts, 2)
    assert applied(parts) == last


@pytest.mark.parametrize("reached", [True, False])
def test_a_clone_that_is_older_than_the_ledger_rewinds_nothing(
    tmp_path: Path, repository: Repository, reached: bool
) -> None:
    """The clone comes from another backup, or from a host that was a standby."""
    clone, kept = tmp_path / "state" / "repository.git", tmp_path / "kept.git"
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        reconcile_once(parts)
    shutil.copytree(clone, kept)
    newest = repository.push({"README.md": "another day\n"})
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        reconcile_once(parts)
        assert applied(parts) == newest
    shutil.rmtree(clone)
    kept.rename(clone)
    if not reached:
        repository.bare.rename(tmp_path / "gone.git")
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        parts.reconciler.reconcile(NOON)
        found = parts.reconciler.state.acceptance.accepted
        assert (found.revision if found is not None else None) == (newest if reached else None)
        assert reached or "is not in gitboot's clone" in str(parts.reconciler.state.acceptance.clone_failure)


# Time


def make_windows(second: str) -> tuple[str, ...]:
    """Two maintenances of web00 with one priority; the first ends ten minutes after noon."""
    return (
        image("memtest-7", "writesDisk: false"),
        profile("repair", "memtest-7"),
        maintenance("a", "20T11:00 20T12:10", select="{servers: [web00]}"),
        maintenance("b", second, select="{servers: [web00]}"),
    )


@pytest.fixture
def unlimited(tmp_path: Path, repository: Repository) -> Iterator[Parts]:
    with run_in_process(tmp_path, repository.bare) as parts:
        reconcile_once(parts)
        yield parts


def test_finding_r11_a_commit_is_rejected_until_the_overlap_of_its_maintenances_is_over(
    unlimited: Parts, repository: Repository
) -> None:
    parts = unlimited
    before, due = applied(parts), NOON + timedelta(minutes=10)
    commit = repository.push(documents("flatcar-1", *make_windows("20T12:05 20T14:00")))
    reconcile_once(parts, 1)
    assert (applied(parts), accepted(parts)) == (before, (False, "Invalid"))
    (problem,) = parts.reconciler.status.problems
    assert "overlap from 2026-11-20T12:05:00Z until 2026-11-20T12:10:00Z. Both apply to web00" in problem.message
    assert parts.reconciler.reconcile(NOON + timedelta(seconds=2)) == due
    assert parts.reconciler.reconcile(due - timedelta(seconds=1)) == due
    assert (applied(parts), accepted(parts)) == (before, (False, "Invalid"))
    assert [event.type for event in parts.events].count("Rejected") == 1
    parts.reconciler.reconcile(due)
    assert (applied(parts), accepted(parts)) == (commit, (True, "Valid"))
    assert parts.reconciler.status.problems == ()


def test_finding_r11_an_overlap_that_is_over_is_accepted_at_once_and_after_a_restart(
    tmp_path: Path, repository: Repository
) -> None:
    commit = repository.push(documents("flatcar-1", *make_windows("20T11:30 20T11:59")))
    for number in range(2):
        with run_in_process(tmp_path, repository.bare) as parts:
            reconcile_once(parts, number)
            assert (applied(parts), accepted(parts)) == (commit, (True, "Valid"))
            parts.reconciler.reconcile(NOON - timedelta(minutes=15))  # the clock goes back: what is accepted goes on
            assert (applied(parts), accepted(parts)) == (commit, (True, "Valid"))


def test_finding_r11_a_commit_before_a_valid_one_may_be_invalid_for_a_time(
    unlimited: Parts, repository: Repository
) -> None:
    parts = unlimited
    repository.push(documents("flatcar-1", *make_windows("20T12:05 20T14:00")))
    reconcile_once(parts, 1)
    fixed = repository.push(documents("flatcar-1", *make_windows("20T12:10 20T14:00")))
    reconcile_once(parts, 2)
    assert (applied(parts), accepted(parts)) == (fixed, (True, "Valid"))


def test_finding_r15_the_warning_about_a_certificate_begins_while_the_instance_runs(
    unlimited: Parts, repository: Repository
) -> None:
    parts, end = unlimited, NOON + timedelta(minutes=10)
    bmc = "bmc: {address: 'https://10.1.0.1', credentials: a, tls: {ca: ca.pem}}"
    files = documents("flatcar-1", server("db00", spec=f"lifecycle: Parked, {bmc}")) | {"ca.pem": make_authority(end)}
    commit = repository.push(files)
    reconcile_once(parts, 1)
    assert (applied(parts), parts.reconciler.status.problems) == (commit, ())
    assert parts.reconciler.reconcile(NOON + timedelta(seconds=2)) == end
    parts.reconciler.reconcile(end)
    (problem,) = parts.reconciler.status.problems
    assert (problem.code, problem.severity) == ("GB2027", Severity.WARNING)
    assert (applied(parts), accepted(parts)) == (commit, (True, "Valid"))
    repository.push(files | {"ca.pem": make_authority(end + timedelta(days=1))})
    reconcile_once(parts, 601)
    assert parts.reconciler.status.problems == ()


# Placeholder identities: no commit with one is accepted, and no machine is looked up by one


AMI = "03000200-0400-0500-0006-000700080009"

# Values of firmware, from FreeBSD's hostid, from GLPI, and patterns that people type.
UUIDS = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "00000001-ffff-ffff-ffff-ffffffffffff",
    AMI,
    "00020003-0004-0005-0006-000700080009",
    "07090201-0103-0301-0807-060504030201",
    "11111111-1111-1111-1111-111111111111",
    "11111111-2222-3333-4444-555555555555",
    "4c4c4544-0000-2010-8020-80c04f202020",
    "4c4c4544-0000-0010-8000-80c04f000000",
    "58585858-5858-5858-5858-585858585858",
    "6ab5b300-538d-1014-9fb5-b0684d007b53",
    "890e2d14-cacd-45d1-ae66-bc80e8bfeb0f",
    "00010203-0405-0607-0809-0a0b0c0d0e0f",
    "01020304-0506-0708-090a-0b0c0d0e0f10",
    "00112233-4455-6677-8899-aabbccddeeff",
    "ffeeddcc-bbaa-9988-7766-554433221100",
    "0f0e0d0c-0b0a-0908-0706-050403020100",
    "01234567-89ab-cdef-0123-456789abcdef",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "12345678-1234-5678-1234-567812345678",
    "12345678-9012-3456-7890-123456789012",
    "deadbeef-dead-beef-dead-beefdeadbeef",
    "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    "00000000-0000-0000-0000-ffffffffffff",
    "20202020-2020-2020-2020-202020202020",
]
MACS = [
    "22:22:22:22:22:22",
    "aa:aa:aa:aa:aa:aa",
    "00:01:02:03:04:05",
    "00:11:22:33:44:55",
    "12:34:56:78:9a:bc",
    "aa:bb:cc:dd:ee:ff",
    "00:a0:c6:00:00:00",
    "0a:00:27:00:00:00",
    "20:41:53:59:4e:ff",
    "fe:ff:ff:ff:ff:ff",
]
SERIALS = ["To be filled by O.E.M.", "Default string", "None", "0000000000", "123456789", "System Serial Number"]


@for_each("uuid", UUIDS)
def test_finding_p2_a_placeholder_uuid_is_detected_in_both_byte_orders(uuid: str) -> None:
    found = SystemUuid(uuid)
    assert is_placeholder_uuid(found) and is_placeholder_uuid(swap_byte_order(found))
    assert lookup_uuids(found) == ()


@for_each(
    "uuid",
    [
        "4c4c4544-0034-4a10-8056-b9c04f4d3732",
        "00000000-0000-0000-0000-ac1f6b000001",  # Supermicro: zeros, and the MAC address
        "30303030-3030-3030-3030-ac1f6bf0e1d2",
        "35373438-3136-5a43-3239-303050385859",  # HPE: the part number and the serial number as text
        "9b2f1c00-7d5e-11e9-8000-0cc47a123456",
        "ec2a1b3c-0000-1000-8000-001122334455",
    ],
)
def test_a_uuid_of_one_machine_is_not_a_placeholder(uuid: str) -> None:
    assert not is_placeholder_uuid(SystemUuid(uuid))


@for_each("mac", MACS)
def test_a_placeholder_mac_address_is_detected(mac: str) -> None:
    assert is_placeholder_mac(MacAddress(mac.replace(":", "-")))


@for_each(
    "mac", ["52-54-00-12-34-56", "02-00-00-00-00-00", "00-50-56-c0-00-00", "ac-1f-6b-00-00-00", "00-00-5e-00-53-01"]
)
def test_a_mac_address_of_one_machine_is_not_a_placeholder(mac: str) -> None:
    assert not is_placeholder_mac(MacAddress(mac))


@for_each(
    "serial", ["CZ12345ABC", "BCDFGHJ", "4J8VM72", "MXQ72407TY", "A.40-866_X", "VMware-56 4d 0a 1b", "S348084X0B19876"]
)
def test_a_serial_number_of_one_machine_is_not_a_placeholder(serial: str) -> None:
    assert not is_placeholder_serial(serial)


# Documents


OWN_UUID, OWN_MAC = f"uuid: {make_uuid('web01')}", f'"{server_mac("web01")}"'
REPORTS = "bmc: {{address: 'https://10.1.0.1', credentials: a, reports: {{{}: {!r}}}}}"


def make_web01(field: str, value: str) -> str:
    match field:
        case "uuid":
            return server("web01", "role: web").replace(OWN_UUID, f"uuid: {value}")
        case "mac":
            return server("web01", "role: web").replace(OWN_MAC, repr(value))
        case "reports.uuid" | "reports.serial":
            return server("web01", "role: web", REPORTS.format(field.removeprefix("reports."), value))
    return server("web01", "role: web", f"{field}: {value!r}")


REFUSED = [
    *(("uuid", value) for value in (*UUIDS, AMI.upper(), "00000000-0000-8000-8000-525400000001")),
    *(("replaces", value) for value in UUIDS[3:6]),
    *(("reports.uuid", value) for value in UUIDS),
    *((field, value) for field in ("serial", "reports.serial") for value in SERIALS),
    *(("mac", value) for value in (*MACS, "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01")),
]


@for_each(("field", "value"), REFUSED)
def test_finding_p2_a_document_with_a_placeholder_identity_is_rejected(field: str, value: str) -> None:
    with pytest.raises(InvalidRepository) as caught:
        decided(SEED[0], make_web01(field, value), *SEED[2:])
    [problem] = caught.value.problems
    assert problem.code in ("GB2024", "GB1034", "GB1033"), problem
    assert problem.hint and (problem.path, problem.line) == ("001.yaml", 4)
    assert value.lower().replace("-", ":") in problem.message.lower().replace("-", ":") or "all-zero" in problem.message


# Imports, records, requests


@for_each("uuid", UUIDS)
def test_finding_p2_no_import_accepts_a_placeholder_uuid(uuid: str) -> None:
    assert uuid_of_import(uuid) is None
    with pytest.raises(UsageError, match=r"uuids\.txt:1: "):
        parse_uuid_list(f"web01 {uuid}\n", "uuids.txt")


@for_each("mac", MACS)
def test_no_import_accepts_a_placeholder_mac_address(mac: str) -> None:
    assert parse_mac_or_none(mac) is None


def test_finding_p2_records_of_a_placeholder_uuid_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_bytes(encode_records({SystemUuid(AMI): Record(provision=1)}))
    with pytest.raises(UsageError, match=f"{file}: a record has the UUID {AMI}, which is only a placeholder"):
        read_records(file)


@for_each(
    "path",
    [
        *(f"ipxe/{uuid}" for uuid in UUIDS),
        f"ipxe/{AMI.upper()}",
        f"nocloud/{AMI}/user-data",
        f"ignition/{AMI}",
        f"grub/grub.cfg-{AMI}",
        "ipxe/serial/None",
        "ipxe/serial/0123456789",
        "v1/boot/00-11-22-33-44-55/boot.ipxe",
    ],
)
def test_finding_p2_no_path_looks_up_a_placeholder_identity(path: str) -> None:
    assert list(parse_request_path(path)) == []


# An instance

# An earlier version, which accepted such a commit and published it.
_EARLIER = """
from gitboot.controller import commit_judgement
from gitboot.model.scalars import byte_orders
from gitboot.render import emulated_apis, grub, ipxe, server_files, user_data_files
commit_judgement.require_no_errors = lambda *_: None
for module in (emulated_apis, grub, ipxe, server_files, user_data_files):
    module.lookup_uuids = byte_orders
"""


def test_finding_p2_an_accepted_commit_with_a_placeholder_uuid_stays_and_boots_nothing_by_it(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    files = fleet_files()
    (name,) = [path for path, text in files.items() if "kind: Server" in text]
    accepted = repository.push(files | {name: files[name].replace(OWN_UUID, f"uuid: {AMI}")})
    orders = (AMI, swap_byte_order(SystemUuid(AMI)))
    scripts = [tmp_path / f"output/boot/ipxe/{order}" for order in orders]
    by_mac = f"/v1/boot/{server_mac('web01').replace(':', '-')}/boot.ipxe"

    earlier = {RUN_FIRST: _EARLIER}
    with running(repository.bare, tmp_path, "--poll", "1", records="fresh", environment=earlier) as instance:
        eventually(lambda: instance.status()["applied"]["commit"] == accepted)
        assert all(script.exists() for script in scripts)
    with running(repository.bare, tmp_path, "--poll", "1") as instance:
        found = until(instance, "IdentitiesUnique", status=False)
        assert found["reason"] == "Placeholder" and AMI in found["message"] and name in found["message"]
        assert "gitboot validate" in found["remedy"]
        eventually(lambda: not any(script.exists() for script in scripts))
        eventually(lambda: instance.status()["applied"]["commit"] == accepted)
        script = instance.get(by_mac)
        assert script.status_code == 200 and "flatcar" in script.text, "by its MAC address it boots as before"
        for order in orders:
            for path in (f"/ipxe/{order}", f"/ipxe/{order.upper()}", f"/grub/grub.cfg-{order}"):
                assert instance.get(path).status_code == 404, path
        repository.push({"README.md": "A commit that keeps the UUID.\n"})
        assert "GB2024" in until(instance, "CommitAccepted", status=False)["message"]
        assert instance.status()["accepted"]["commit"] == accepted
        corrected = repository.push({name: files[name]})
        eventually(lambda: instance.status()["accepted"]["commit"] == corrected)
        found = until(instance, "RecordsVerified", status=False)
        assert found["reason"] == "UnverifiedServers", (
            "another UUID may be another machine: nothing is installed by itself"
        )
        assert "IdentitiesUnique" not in {each["type"] for each in instance.status()["conditions"]}
