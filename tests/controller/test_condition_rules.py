"""Condition rules: tables of states with their conditions, and of conditions with the events that announce them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from gitboot.artifacts.availability import Presence, Sighting
from gitboot.bmc.override_session import TaskOutcome
from gitboot.controller.bmcs.schedule import BmcState, Schedule
from gitboot.controller.commit_acceptance import CommitAcceptor
from gitboot.controller.condition_rules import build_condition_events, conditions
from gitboot.controller.current_plans import ImageFile, Plans
from gitboot.controller.instance_state import AcceptanceState, InstanceState, LastFetch, MissingCommit, TargetState
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import FleetOrders
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.documents import Id
from gitboot.fleet.revision import Revision
from gitboot.git.clone import BranchMismatch, Source
from gitboot.jsonio import Digest
from gitboot.ledger.instance_tables import Facts, Suspension
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, Problem
from gitboot.render.server_files import ServerState
from gitboot.resolve.policy_selection import OptOut
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, StepEvidence, StopOrder
from gitboot.resolve.server_decision import BootFile
from gitboot.review.guards import Limits
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Endpoints, SignedListState, Status, TargetStatus, ThreadFailure
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, fleet, make_uuid, policy, server, snapshot
from tests.helpers.instance_in_process import Commits

NOON = at("20T12:00")
WEB01 = SystemUuid(make_uuid("web01"))
LEDGER_ID = make_uuid("this ledger")


def make_commit(*documents: str) -> Commit:
    commits = Commits()
    commits.push(snapshot(*documents))
    revision = commits.latest()
    assert revision is not None
    return commits.evaluate(revision, None).commit


COMMIT = make_commit(*SEED)
INSTALLS = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:6], policy("web", often="Once"))
INSTALL_COMMIT = make_commit(*INSTALLS)
OTHER_COMMIT = make_commit(
    fleet(f"baseURL: 'http://boot.test', provisioning: {{ledger: {make_uuid('another ledger')}}}"), *SEED[1:]
)


@for_each(("conditions", "expected"), [((), False), ((False,), False), ((True,), True)])
def test_an_unknown_or_false_condition_is_not_true(conditions: tuple[bool, ...], expected: bool) -> None:
    known = tuple(
        Condition(type="Ready", status=each, reason="R", message="", last_transition_time=NOON) for each in conditions
    )
    other = Condition(type="Serving", status=True, reason="R", message="", last_transition_time=NOON)
    assert Status(conditions=(other, *known)).condition("Ready") is expected


def accepted(commit: Commit) -> AcceptanceState:
    return AcceptanceState(accepted=commit, attempted=commit.revision, is_adopted=True)


GOOD_STATE = InstanceState(
    snapshot=LedgerSnapshot(facts=Facts(identity=LEDGER_ID, initialised="adopt"), recorded_commit=COMMIT.revision),
    acceptance=accepted(COMMIT),
    plans=Plans(commit=COMMIT),
    publication=TargetState(applied=COMMIT.revision, complete=True, at=NOON),
    fetched=LastFetch(),
)
TARGET = TargetStatus(name="s3://boots", commit="c0ffee")
KEYS = "/etc/gitboot/list-keys"
LIST = SignedListState(
    signed=True, expires=NOON + timedelta(hours=24), root_expires=NOON + timedelta(days=61), key_folder=KEYS
)
STOPPED = LedgerSnapshot(
    facts=structs.replace(
        GOOD_STATE.snapshot.facts, stop_order=StopOrder("ada", "wrong image, INC-4711", everything=False)
    )
)
DOUBTED = Facts(identity=LEDGER_ID, initialised="adopt", doubt="RestoredLedger")
UNFETCHED = "git@forge.example.net:fleet.git: connection refused"
RENAMED = BranchMismatch(
    "DefaultBranchChanged",
    "the default branch of git@forge.example.net:fleet.git is now trunk, but gitboot still follows main",
    "trunk",
    "main",
)
TIE = Problem(path="tie.yaml", line=1, column=1, code=Code.NOT_YET, message="the field spec.power is not supported yet")
PIN = OptOut(
    what="the pin of web01",
    image="i",
    reason="r",
    until=NOON,
    resource=Id("Server", "web01"),
    path=(),
)
FAILING = Schedule(
    bmcs={
        WEB01: BmcState(
            name="web01", due=NOON, outcome=TaskOutcome.WAITING, message="the machine is in POST", late_since=NOON
        )
    },
    failing=frozenset({WEB01}),
)


def change_knowledge(**changes: Any) -> Callable[[InstanceState], InstanceState]:
    return lambda state: structs.replace(state, snapshot=structs.replace(state.snapshot, **changes))


def change_state(**changes: Any) -> Callable[[InstanceState], InstanceState]:
    return lambda state: structs.replace(state, **changes)


KERNEL = BootFile(url="http://boot.test/kernel", sha256=Digest("a" * 64), size=None)
ABSENT = Sighting(presence=Presence.MISSING, message="boot.test returned 404")
SILENT = Sighting(presence=Presence.UNKNOWN, message="boot.test: no answer")
FOUND_FILE = Sighting(presence=Presence.FOUND)


def check_artifacts(sightings: dict[BootFile, Sighting]) -> Callable[[InstanceState], InstanceState]:
    """Artifacts are checked, and three servers boot flatcar-1 by its kernel."""
    plans = Plans(commit=COMMIT, needs={ImageFile("flatcar-1", KERNEL): 3}, sightings=sightings)
    return lambda state: change_knowledge(sightings=sightings)(structs.replace(state, plans=plans))


def set_mirrored(state: InstanceState) -> InstanceState:
    plans = Plans(commit=COMMIT, needs={ImageFile("flatcar-1", replace(KERNEL, source="oci://x/y")): 3}, sightings={})
    return structs.replace(change_knowledge(sightings={})(state), plans=plans)


def hold_commit() -> AcceptanceState:
    """The state of a commit that a guard holds."""
    commits = Commits()
    accepting = CommitAcceptor(cast(Source, commits), cast(EvaluatorClient, commits), limits=Limits(max_installs=0))
    initial = LedgerSnapshot(facts=Facts(identity=LEDGER_ID, initialised="fresh"))
    commits.push(
        snapshot(SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:6], policy("web", often="Once"))
    )
    attempt, _ = accepting.accept(AcceptanceState(), initial, NOON)
    assert attempt.held is not None
    return attempt


def keep_state(state: InstanceState) -> InstanceState:
    return state


@for_each(
    ("case", "change", "type", "expected"),
    [
        ("fetched", keep_state, "SourceReady", (True, "Fetched")),
        ("never fetched", change_state(fetched=None), "SourceReady", None),
        (
            "a fetch failed",
            change_state(fetched=LastFetch(reason="SourceError", message=UNFETCHED, failed=True)),
            "SourceReady",
            (False, "SourceError"),
        ),
        (
            "the clone cannot be read",
            change_state(
                acceptance=structs.replace(
                    accepted(COMMIT), clone_failure=("CorruptClone", "the clone lacks objects of refs/gitboot/accepted")
                )
            ),
            "SourceReady",
            (False, "CorruptClone"),
        ),
        ("HEAD names the branch that is followed", keep_state, "BranchFollowed", None),
        (
            "HEAD names another branch",
            change_state(fetched=LastFetch(branch_mismatch=RENAMED)),
            "BranchFollowed",
            (False, "DefaultBranchChanged"),
        ),
        (
            "HEAD named another branch before a fetch failed",
            change_state(
                fetched=LastFetch(reason="SourceError", message=UNFETCHED, failed=True, branch_mismatch=RENAMED)
            ),
            "BranchFollowed",
            (False, "DefaultBranchChanged"),
        ),
        ("no thread that died", keep_state, "ThreadsRunning", None),
        (
            "a thread that died",
            change_state(thread_failures=(ThreadFailure("fetch", "ValueError: invalid literal for int()", 2),)),
            "ThreadsRunning",
            (False, "Died"),
        ),
        ("no endpoint", keep_state, "Serving", None),
        (
            "all endpoints run",
            change_state(endpoints=Endpoints(expected=2, alive=2, restarts=1)),
            "Serving",
            (True, "Running"),
        ),
        (
            "an endpoint has ended",
            change_state(endpoints=Endpoints(expected=2, alive=1, restarts=0)),
            "Serving",
            (False, "Restarting"),
        ),
        (
            "an endpoint is stopped",
            change_state(endpoints=Endpoints(expected=2, alive=1, restarts=0, hung=1)),
            "Serving",
            (False, "NotResponding"),
        ),
        ("no target", keep_state, "TargetsCurrent", None),
        ("a target that holds everything", change_state(target_status=(TARGET,)), "TargetsCurrent", (True, "Current")),
        (
            "a target that is just brought up",
            change_state(target_status=(structs.replace(TARGET, behind_since=NOON - timedelta(seconds=299)),)),
            "TargetsCurrent",
            (True, "Current"),
        ),
        (
            "a target that is long behind",
            change_state(target_status=(TARGET, structs.replace(TARGET, behind_since=NOON - timedelta(minutes=5)))),
            "TargetsCurrent",
            (False, "Behind"),
        ),
        (
            "a target that cannot be reached",
            change_state(
                target_status=(
                    TARGET,
                    structs.replace(
                        TARGET,
                        behind_since=NOON,
                        failure=("HostUnreachable", "s3://boots: no route to host s3.example.net"),
                    ),
                )
            ),
            "TargetsCurrent",
            (False, "HostUnreachable"),
        ),
        (
            "a target that takes over a transition just now",
            change_state(
                target_status=(structs.replace(TARGET, behind_since=NOON, overdue_since=NOON - timedelta(seconds=119)),)
            ),
            "TargetsCurrent",
            (True, "Current"),
        ),
        (
            "a target that does not hold a transition",
            change_state(
                target_status=(
                    structs.replace(
                        TARGET,
                        behind_since=NOON,
                        failure=("HostUnreachable", "s3://boots: no route to host s3.example.net"),
                    ),
                    structs.replace(TARGET, behind_since=NOON, overdue_since=NOON - timedelta(seconds=120)),
                )
            ),
            "TargetsCurrent",
            (False, "TransitionOverdue"),
        ),
        (
            "a target without a recording endpoint has all that it may",
            change_state(target_status=(structs.replace(TARGET, withheld=2),)),
            "TargetsCurrent",
            (True, "Current"),
        ),
        (
            "a target without a recording endpoint",
            change_state(target_status=(structs.replace(TARGET, withheld=2),)),
            "OneTimeBootsServed",
            (False, "NoEndpoint"),
        ),
        ("no publication since the start", keep_state, "SignedListCurrent", None),
        (
            "an unsigned list",
            change_state(signed_list=structs.replace(LIST, signed=False)),
            "SignedListCurrent",
            (True, "Unsigned"),
        ),
        ("a signed list", change_state(signed_list=LIST), "SignedListCurrent", (True, "Signed")),
        (
            "a list that expires now, its end exclusive",
            change_state(signed_list=structs.replace(LIST, expires=NOON)),
            "SignedListCurrent",
            (False, "Expired"),
        ),
        (
            "a root that expires soon",
            change_state(signed_list=structs.replace(LIST, root_expires=NOON + timedelta(days=60))),
            "SignedListCurrent",
            (False, "RootExpires"),
        ),
        (
            "a list that cannot be signed",
            change_state(
                signed_list=structs.replace(
                    LIST,
                    failure=(
                        "KeyUnreadable",
                        "/etc/gitboot/list-keys/publication.key cannot be read: No such file or directory",
                    ),
                )
            ),
            "SignedListCurrent",
            (False, "KeyUnreadable"),
        ),
        (
            "keys that could not be read since the start",
            change_state(
                signed_list=structs.replace(
                    LIST,
                    expires=None,
                    failure=(
                        "KeyUnreadable",
                        "/etc/gitboot/list-keys/publication.key cannot be read: No such file or directory",
                    ),
                )
            ),
            "SignedListCurrent",
            (False, "KeyUnreadable"),
        ),
        (
            "a target without a recording endpoint that is behind",
            change_state(
                target_status=(structs.replace(TARGET, withheld=2, behind_since=NOON - timedelta(minutes=5)),)
            ),
            "TargetsCurrent",
            (False, "Behind"),
        ),
        ("a target with every boot", change_state(target_status=(TARGET,)), "OneTimeBootsServed", (True, "Served")),
        ("no target that could lack a boot", keep_state, "OneTimeBootsServed", None),
        (
            "a server whose boot an upgrade took out of OUTPUT",
            change_knowledge(facts=Facts(identity=LEDGER_ID, left_output=frozenset({WEB01}))),
            "OneTimeBootsServed",
            (False, "OutputWithoutEndpoint"),
        ),
        ("no suspension", keep_state, "AcceptingCommits", (True, "Accepting")),
        (
            "suspended",
            change_knowledge(
                facts=Facts(
                    identity=LEDGER_ID,
                    suspension=Suspension("ada", "the network moves tonight", NOON + timedelta(seconds=1)),
                )
            ),
            "AcceptingCommits",
            (False, "Suspended"),
        ),
        (
            "a suspension that is over, its end exclusive",
            change_knowledge(
                facts=Facts(identity=LEDGER_ID, suspension=Suspension("ada", "the network moves tonight", NOON))
            ),
            "AcceptingCommits",
            (True, "Accepting"),
        ),
        ("the newest commit is the accepted one", keep_state, "CommitAccepted", (True, "Valid")),
        ("no attempt", change_state(acceptance=AcceptanceState()), "CommitAccepted", None),
        (
            "the newest commit is invalid",
            change_state(acceptance=structs.replace(accepted(COMMIT), attempted=Revision("0" * 40), problems=(TIE,))),
            "CommitAccepted",
            (False, "Invalid"),
        ),
        ("a guard holds it", change_state(acceptance=hold_commit()), "CommitAccepted", (False, "GuardTripped")),
        ("no commit withholds boots", keep_state, "HistoryComplete", None),
        (
            "a commit that the branch does not have withholds boots",
            change_state(
                acceptance=structs.replace(
                    accepted(COMMIT), missing_commit=MissingCommit(Revision("0" * 40), 2, is_here=False)
                )
            ),
            "HistoryComplete",
            (False, "CommitMissing"),
        ),
        ("nobody looks at artifacts", keep_state, "ArtifactsPresent", None),
        ("nothing is known of any", change_knowledge(sightings={}), "ArtifactsPresent", (True, "Present")),
        ("one is missing", check_artifacts({KERNEL: ABSENT}), "ArtifactsPresent", (False, "Missing")),
        ("one cannot be looked at", check_artifacts({KERNEL: SILENT}), "ArtifactsPresent", (True, "Present")),
        ("one that is mirrored was not looked at", set_mirrored, "ArtifactsPresent", (False, "Missing")),
        ("one is there", check_artifacts({KERNEL: FOUND_FILE}), "ArtifactsPresent", (True, "Present")),
        ("the ledger takes what is new", keep_state, "LedgerWritable", (True, "Writable")),
        (
            "it does not",
            change_state(
                ledger_error="/var/lib/gitboot/ledger.sqlite: the ledger cannot be written (database or disk is full)"
            ),
            "LedgerWritable",
            (False, "Failed"),
        ),
        ("the Fleet names no ledger", keep_state, "LedgerNamed", None),
        (
            "it names another ledger",
            change_state(acceptance=accepted(OTHER_COMMIT)),
            "LedgerNamed",
            (False, "BecameStandby"),
        ),
        (
            "it names another, and this one never acted",
            change_state(acceptance=accepted(OTHER_COMMIT), snapshot=LedgerSnapshot(facts=Facts(identity=LEDGER_ID))),
            "LedgerNamed",
            (False, "AnotherLedger"),
        ),
        ("an operator has stopped boots", change_state(snapshot=STOPPED), "InstallsAllowed", (False, "Stopped")),
        (
            "a Fleet that is not accepted has",
            change_state(
                acceptance=structs.replace(accepted(COMMIT), orders=FleetOrders("wrong image, INC-4711", None))
            ),
            "InstallsAllowed",
            (False, "StoppedByFleet"),
        ),
        (
            "another ledger acts",
            change_state(acceptance=accepted(OTHER_COMMIT), snapshot=LedgerSnapshot(facts=Facts(identity=LEDGER_ID))),
            "Published",
            None,
        ),
        ("every server is verified", keep_state, "RecordsVerified", (True, "Verified")),
        (
            "one is unknown",
            change_state(plans=Plans(unknown=frozenset({"web01"}))),
            "RecordsVerified",
            (False, "UnverifiedServers"),
        ),
        ("an older copy", change_knowledge(facts=DOUBTED), "RecordsVerified", (False, "RestoredLedger")),
        (
            "another's tree",
            change_knowledge(facts=Facts(identity=LEDGER_ID, initialised="adopt", foreign="theirs")),
            "RecordsVerified",
            (False, "ForeignLedger"),
        ),
        (
            "a new ledger where nothing is wanted",
            change_knowledge(facts=Facts(identity=LEDGER_ID)),
            "RecordsVerified",
            (True, "Verified"),
        ),
        (
            "a new ledger where something is",
            lambda each: structs.replace(
                change_knowledge(facts=Facts(identity=LEDGER_ID))(each), acceptance=accepted(INSTALL_COMMIT)
            ),
            "RecordsVerified",
            (False, "NewLedger"),
        ),
        ("all can be proven", keep_state, "EvidenceAvailable", (True, "Available")),
        (
            "one cannot",
            change_state(plans=Plans(unseen=frozenset({"web01"}))),
            "EvidenceAvailable",
            (False, "NoEvidence"),
        ),
        ("not while the ledger is unverified", change_knowledge(recorded_commit=None), "EvidenceAvailable", None),
        ("all is published", keep_state, "Published", (True, "Published")),
        (
            "the disk is full",
            change_state(
                publication=TargetState(failure=("PublishError", "/srv/boot/boot/v1: no space left on device"))
            ),
            "Published",
            (False, "PublishError"),
        ),
        ("no publication yet", change_state(publication=TargetState()), "Published", None),
        ("no override was consumed unseen", keep_state, "InstallsCompleted", (True, "Completed")),
        (
            "something was",
            change_state(plans=Plans(consumed=frozenset({"web01"}))),
            "InstallsCompleted",
            (False, "NeedsOperator"),
        ),
        ("no deadline is past", keep_state, "OptOutsInTime", (True, "InTime")),
        (
            "one is, to the second",
            change_state(acceptance=accepted(replace(COMMIT, opt_outs=(PIN,)))),
            "OptOutsInTime",
            (False, "Overdue"),
        ),
        ("no BMC was contacted", keep_state, "BmcsReachable", None),
        ("BMCs respond", change_state(schedule=Schedule(has_results=True)), "BmcsReachable", (True, "Reachable")),
        (
            "too many in a row do not",
            change_state(
                schedule=Schedule(
                    has_results=True, failures=3, max_failures=3, last_failure="web01: 10.0.0.7 does not respond"
                )
            ),
            "BmcsReachable",
            (False, "FailuresInARow"),
        ),
        ("one is waited for", change_state(schedule=FAILING), "Bmc/web01", (False, "Waiting")),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_each_condition_follows_from_the_instance_state(
    case: str, change: Callable[[InstanceState], InstanceState], type: str, expected: tuple[bool, str] | None
) -> None:
    found = {each.type: (each.status, each.reason) for each in conditions(change(GOOD_STATE), NOON)}
    assert found.get(type) == expected, case


def test_a_waiting_bmc_is_overdue_after_five_minutes() -> None:
    reasons = [
        next(
            each.reason
            for each in conditions(structs.replace(GOOD_STATE, schedule=FAILING), NOON + wait)
            if "Bmc/" in each.type
        )
        for wait in (timedelta(seconds=299), timedelta(minutes=5))
    ]
    assert reasons == ["Waiting", "Overdue"]


def test_conditions_come_in_the_order_of_their_types() -> None:
    types = [each.type for each in conditions(structs.replace(GOOD_STATE, schedule=FAILING), NOON)]
    assert types == sorted(types) and len(types) == len(set(types)) > 8


def condition(status: bool, reason: str = "R", message: str = "m", type: str = "Published") -> Condition:
    return Condition(type=type, status=status, reason=reason, message=message, last_transition_time=NOON)


@pytest.mark.parametrize(
    ("case", "before", "kept"),
    [
        ("the same", condition(True), True),
        ("another reason and message", condition(True, "Q", "n"), True),
        ("another status", condition(False), False),
        ("another type", condition(True, type="EvidenceAvailable"), False),
    ],
)
def test_the_transition_time_of_a_condition_is_when_its_status_last_changed(
    case: str, before: Condition, kept: bool
) -> None:
    later = NOON + timedelta(hours=1)
    found = conditions(structs.replace(GOOD_STATE, conditions=(before,)), later)
    assert next(each.last_transition_time for each in found if each.type == "Published") == (NOON if kept else later), (
        case
    )


@for_each(
    ("case", "before", "now", "expected"),
    [
        ("it fails", condition(True), condition(False, "PublishError"), ["PublishFailed"]),
        ("it failed before", condition(False, "PublishError"), condition(False, "PublishError"), []),
        ("it fails in another way", condition(False, "A"), condition(False, "B"), ["PublishFailed"]),
        ("it is well again", condition(False), condition(True), []),
        (
            "a BMC more fails in a row",
            condition(False, "FailuresInARow", "3", "BmcsReachable"),
            condition(False, "FailuresInARow", "4", "BmcsReachable"),
            [],
        ),
        (
            "too many have failed",
            condition(True, "Reachable", "", "BmcsReachable"),
            condition(False, "FailuresInARow", "3", "BmcsReachable"),
            ["BmcsFailing"],
        ),
        (
            "a BMC is overdue",
            condition(False, "Waiting", "in POST", "Bmc/web01"),
            condition(False, "Overdue", "in POST", "Bmc/web01"),
            ["OverrideOverdue"],
        ),
        (
            "single servers are unknown, which the table shows",
            condition(True, "Verified", "", "RecordsVerified"),
            condition(False, "UnverifiedServers", "", "RecordsVerified"),
            [],
        ),
        (
            "another branch is checked out, and then a third",
            condition(False, "AnotherBranchCheckedOut", "experiment", "BranchFollowed"),
            condition(False, "AnotherBranchCheckedOut", "another experiment", "BranchFollowed"),
            [],
        ),
        (
            "the ledger is unverified",
            condition(True, "Verified", "", "RecordsVerified"),
            condition(False, "RestoredLedger", "", "RecordsVerified"),
            ["RecordsUnverified"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_condition_is_announced_once(
    case: str, before: Condition, now: Condition, expected: list[str]
) -> None:
    events = list(build_condition_events([before], [now], GOOD_STATE, NOON))
    assert [event.type for event in events] == expected, case
    assert all(event.warning for event in events)


# Messages and remedies


def find_condition(state: InstanceState, type: str) -> Condition:
    return next(each for each in conditions(state, NOON) if each.type == type)


def failed(*servers: str) -> dict[str, InstallAttempt]:
    boot = StepEvidence(NOON - timedelta(minutes=5), "boot/v1/boot/m/boot.ipxe", "10.0.0.7")
    failure = Failure(NOON, "10.0.0.7", "partitioning\nno disk found")
    return {name: InstallAttempt(key="provision/1", boots=(boot,), failed=failure) for name in servers}


@for_each(
    ("servers", "message", "remedy"),
    [
        (
            ("web01",),
            'the installation of web01 failed: 10.0.0.7 reported "no disk found" at 2026-11-20T12:00:00Z. gitboot will '
            "not install it again automatically",
            "gitboot records set web01 pending --state STATE --reason '…'  # fix the cause of the failure, then run "
            "this. gitboot then erases the disks of web01 and installs it again. If web01 is installed despite the "
            "failure, use provisioned instead of pending",
        ),
        (
            ("web01", "web02"),
            'the installation of these servers failed: web01 (10.0.0.7 reported "no disk found" at '
            '2026-11-20T12:00:00Z), web02 (10.0.0.7 reported "no disk found" at 2026-11-20T12:00:00Z). gitboot will '
            "not install them again automatically",
            "gitboot records set web01 web02 pending --state STATE --reason '…'  # fix the cause of the failure, then "
            "run this. gitboot then erases the disks of these servers and installs them again. For a server that is "
            "installed despite the failure, use provisioned instead of pending",
        ),
    ],
)
def test_the_remedy_of_a_failed_installation_is_another_one(
    servers: tuple[str, ...], message: str, remedy: str
) -> None:
    found = find_condition(
        structs.replace(GOOD_STATE, plans=Plans(commit=COMMIT, begun=failed(*servers))), "InstallsCompleted"
    )
    assert (found.reason, found.message, found.remedy) == ("Failed", message, remedy)


def test_the_remedy_of_a_failed_installation_spares_servers_that_may_be_installing() -> None:
    """The remedy erases disks, so it does not name a server whose installation only makes no progress."""
    (late,) = failed("web01").values()
    late = structs.replace(late, failed=None, boots=(late.boots[0]._replace(at=NOON - timedelta(hours=1)),))
    web01 = INSTALL_COMMIT.decisions.servers["web01"]
    plans = Plans(
        commit=INSTALL_COMMIT,
        servers={"web01": cast(ServerState, SimpleNamespace(decision=web01))},
        begun={"web01": late, **failed("web02")},
    )
    found = find_condition(
        structs.replace(GOOD_STATE, acceptance=accepted(INSTALL_COMMIT), plans=plans), "InstallsCompleted"
    )
    assert found.reason == "Failed" and "web01 has made no progress since 2026-11-20T11:00:00Z, when" in found.message
    assert found.remedy is not None and found.remedy.startswith("gitboot records set web02 pending ")


@for_each(
    ("error", "message", "remedy"),
    [
        (
            "/srv/state/ledger.sqlite: the ledger cannot be written (database is locked)",
            "another process has locked the ledger /srv/state/ledger.sqlite. gitboot retries every 5 s",
            "fuser -v STATE/ledger.sqlite  # ",
        ),
        (
            "/srv/state/ledger.sqlite: the ledger cannot be written (the disk is full)",
            "gitboot cannot write to the ledger: /srv/state/ledger.sqlite: the ledger cannot be written (the disk is "
            "full). gitboot retries every 5 s",
            "df -h STATE && ls -l STATE  # ",
        ),
    ],
)
def test_the_remedy_of_a_locked_ledger_looks_for_the_process(error: str, message: str, remedy: str) -> None:
    found = find_condition(structs.replace(GOOD_STATE, ledger_error=error), "LedgerWritable")
    assert found.message.startswith(message) and found.remedy is not None and found.remedy.startswith(remedy)


OLDER = "b" * 12


@for_each(
    ("problem", "message", "commit"),
    [
        (f"{OLDER} is not signed", f"its ancestor {OLDER} is not signed (GB5020)", OLDER),
        ("0" * 12 + " is not signed", "it is not signed (GB5020)", "0" * 40),
        (
            "the tag on " + "0" * 12 + " is signed by the key A, which is not listed as a trusted key",
            "the tag on " + "0" * 12 + " is signed by the key A, which is not listed as a trusted key (GB5020)",
            "0" * 40,
        ),
    ],
)
def test_the_remedy_of_an_untrusted_commit_names_the_commit_without_a_trusted_signature(
    problem: str, message: str, commit: str
) -> None:
    untrusted = structs.replace(
        accepted(COMMIT), attempted=Revision("0" * 40), problems=(Code.UNTRUSTED.build_problem(problem),)
    )
    found = find_condition(structs.replace(GOOD_STATE, acceptance=untrusted), "CommitAccepted")
    served = f"gitboot still serves commit {COMMIT.revision[:12]}"
    assert (found.reason, found.message) == (
        "Untrusted",
        f"commit {'0' * 12} is not accepted: {message}. {served}",
    )
    assert found.remedy is not None and found.remedy.startswith(f"git log --show-signature -1 {commit}  # ")


@for_each(
    ("change", "type", "remedy"),
    [
        (
            change_state(fetched=LastFetch(branch_mismatch=RENAMED)),
            "BranchFollowed",
            "gitboot run … --rev trunk  # restart gitboot run once with this option to follow trunk. To stay on main, "
            "use --rev main. gitboot remembers the choice",
        ),
        (
            change_state(fetched=LastFetch(branch_mismatch=RENAMED._replace(branch=None))),
            "BranchFollowed",
            "gitboot run … --rev BRANCH  # restart gitboot run once with this option to follow BRANCH. To stay on "
            "main, use --rev main. gitboot remembers the choice",
        ),
        (
            change_state(
                signed_list=structs.replace(
                    LIST, failure=("KeyUnreadable", f"{KEYS}/publication.key cannot be read: Permission denied")
                )
            ),
            "SignedListCurrent",
            "ls -l /etc/gitboot/list-keys  # if the file that the message names is missing, copy it from the host that "
            "has root.key. Otherwise, correct its owner and mode, so that only the user that runs gitboot can read it",
        ),
    ],
)
def test_a_remedy_has_the_names_and_the_folder_that_gitboot_knows(
    change: Callable[[InstanceState], InstanceState], type: str, remedy: str
) -> None:
    assert find_condition(change(GOOD_STATE), type).remedy == remedy


@for_each(
    ("is_here", "expected"),
    [(True, "If you push any other new commit"), (False, "until the branch contains")],
)
def test_a_commit_that_the_branch_lost_states_what_another_commit_does(is_here: bool, expected: str) -> None:
    missing_commit = MissingCommit(Revision("0" * 40), 2, is_here=is_here)
    found = find_condition(
        structs.replace(GOOD_STATE, acceptance=structs.replace(accepted(COMMIT), missing_commit=missing_commit)),
        "HistoryComplete",
    )
    assert expected in found.message
    assert found.remedy is not None and f"merge {'0' * 40} into the branch" in found.remedy
