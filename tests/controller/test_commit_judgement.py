"""The verdict on the newest commit, brought to a forge: by a running instance, by one that runs once, over faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.cli.main import Exit
from gitboot.controller.forge import CommitVerdict, Forge, Judgement, Project, VerdictSender, list_verdicts
from gitboot.jsonio import Digest
from gitboot.problems import Code, Problem
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import ForgeReport, HeldCommit, Status
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, write_configuration
from tests.helpers.forges import TOKEN, ForgeHost, forge_host
from tests.helpers.instance_with_bmcs import Rack, wait_for_condition
from tests.helpers.running_instance import eventually

NOON = at("20T12:00")
A, B = "a" * 40, "b" * 40
KEY = b"of the ledger"
ERROR = Problem(path="x.yaml", line=1, column=1, code=Code.NOT_YET, message="no")
FINE = Status(ledger="mine", attempted=B, accepted=B)


@pytest.fixture(params=["gitea"])
def host(request: pytest.FixtureRequest) -> Iterator[ForgeHost]:
    """A forge. tests/controller/test_forge.py has what differs between the kinds."""
    with forge_host(request.param) as host:
        yield host


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path / "token"


@for_each(
    ("case", "status", "expected"),
    [
        ("accepted", FINE, (Judgement.ACCEPTED, "accepted")),
        (
            "held",
            structs.replace(
                FINE,
                accepted=A,
                held=HeldCommit(commit=B, digest=Digest("d"), guards=("maxDeletes", "maxReinstalls")),
            ),
            (Judgement.HELD, "held by maxDeletes, maxReinstalls"),
        ),
        ("invalid", structs.replace(FINE, accepted=A, problems=(ERROR,)), (Judgement.INVALID, "invalid: 1 error")),
        ("no commit was tried", structs.replace(FINE, attempted=None), None),
        ("it is not clear yet", structs.replace(FINE, accepted=A), None),
        (
            "another instance is active",
            structs.replace(
                FINE,
                conditions=(
                    Condition(
                        type="LedgerNamed", status=False, reason="AnotherLedger", message="", last_transition_time=NOON
                    ),
                ),
            ),
            None,
        ),
    ],
)
def test_the_status_gives_a_judgement_of_the_newest_commit(
    case: str, status: Status, expected: tuple[Judgement, str] | None
) -> None:
    found = list_verdicts(status, 7)
    assert [(each.judgement, each.says) for each in found] == ([expected] if expected is not None else []), case
    assert {(each.commit, each.ledger, each.change) for each in found} <= {(B, "mine", 7)}


# Over faults


def make_verdict(commit: str, judgement: Judgement = Judgement.ACCEPTED, change: int = 1) -> CommitVerdict:
    return CommitVerdict(commit=commit, judgement=judgement, says=str(judgement), ledger="mine", change=change)


def list_statuses(host: ForgeHost) -> list[tuple[str, str]]:
    return [(each["sha"][:1], each["description"].partition(" ")[0]) for each in host.statuses]


def test_a_failed_report_to_the_forge_is_retried_and_does_not_block_the_instance(host: ForgeHost, token: Path) -> None:
    host.faults += [(503, {}), (500, {}), (401, {})] * 100  # until they are removed
    woken = threading.Event()
    verdicts = VerdictSender(Forge(Project.parse(host.project), token, name="gitboot"), woken.set, first_retry_s=0.05)
    verdicts.submit_verdicts([make_verdict(A)])
    eventually(lambda: verdicts.forge_report.failure is not None and woken.is_set() and len(host.requests) > 3)
    verdicts.submit_verdicts([make_verdict(A, Judgement.HELD)])  # meanwhile it has come to something else
    verdicts.submit_verdicts([make_verdict(B)])
    host.faults.clear()
    eventually(lambda: len(host.statuses) == 2)
    assert list_statuses(host) == [("a", "held"), ("b", "accepted")]
    eventually(lambda: verdicts.forge_report.commit == B and verdicts.forge_report.failure is None)
    verdicts.submit_verdicts([make_verdict(B, change=5)])  # the ledger goes on; what it makes of the commit is the same
    assert len(host.statuses) == 2
    verdicts.close(timeout_s=60)
    assert len(host.statuses) == 3  # the change number is reported at the end, at the latest
    assert "change 5" in host.statuses[-1]["description"]


def test_the_change_number_of_the_ledger_is_reported_when_it_stops_increasing(host: ForgeHost, token: Path) -> None:
    verdicts = VerdictSender(Forge(Project.parse(host.project), token, name="gitboot"), lambda: None, quiet_s=0.1)
    for change in range(1, 20):
        verdicts.submit_verdicts([make_verdict(A, change=change)])
    eventually(lambda: host.statuses and "change 19" in host.statuses[-1]["description"])
    verdicts.close()


@pytest.mark.parametrize("host", ["github", "gitlab", "gitea"], indirect=True)
def test_a_forge_that_accepts_no_more_statuses_for_a_commit_causes_no_failure(host: ForgeHost, token: Path) -> None:
    verdicts = VerdictSender(Forge(Project.parse(host.project), token, name="gitboot"), lambda: None, quiet_s=3600)
    verdicts.submit_verdicts([make_verdict(A)])
    eventually(lambda: verdicts.forge_report.commit == A)
    host.commits = set()
    verdicts.submit_verdicts([make_verdict(A, change=2)])
    verdicts.close(timeout_s=60)
    assert (verdicts.forge_report.failure, len(host.statuses)) == (None, 1)
    assert any(method == "POST" for method, _, _ in host.requests[-2:])


def test_nothing_is_reported_before_the_forge_was_read(host: ForgeHost, token: Path) -> None:
    forge = Forge(Project.parse(host.project), token, name="gitboot")
    forge.write(make_verdict(A, change=7).with_proof(KEY))
    forge.write(replace(make_verdict(A, change=70), ledger="another").with_proof(KEY))
    woken = threading.Event()
    verdicts = VerdictSender(forge, woken.set, reads_changes_first=True)
    assert verdicts.forge_report == ForgeReport(has_asked=False)
    verdicts.submit_verdicts([make_verdict(B, change=3)])
    verdicts.read_known_changes((), "mine", KEY)  # nothing was fetched
    assert verdicts.forge_report == ForgeReport(has_asked=True)
    host.faults.append((503, {}))
    verdicts.read_known_changes((B, A), "mine", KEY)
    assert verdicts.forge_report.failure is not None
    assert len(host.statuses) == 2
    verdicts.read_known_changes((B, A), "mine", KEY)
    assert (verdicts.forge_report, woken.is_set()) == (ForgeReport(known_changes=7), True)
    eventually(lambda: len(host.statuses) == 3)
    assert f"change 3, proof {make_verdict(B, change=3).with_proof(KEY).proof})" in host.statuses[-1]["description"]
    before = len(host.requests)
    verdicts.read_known_changes((B, A), "mine", KEY)  # once is enough
    assert len(host.requests) == before
    verdicts.close()


def test_the_queue_of_reports_is_bounded(host: ForgeHost, token: Path) -> None:
    host.faults += [(503, {})] * 100  # until all wait
    verdicts = VerdictSender(
        Forge(Project.parse(host.project), token, name="gitboot"), lambda: None, first_retry_s=0.05
    )
    for number in range(100):
        verdicts.submit_verdicts([make_verdict(f"{number:040}")])
    host.faults.clear()
    eventually(lambda: verdicts.forge_report.commit == f"{99:040}")
    verdicts.close()
    written = [int(each["sha"]) for each in host.statuses]
    assert written[-20:] == list(range(80, 100))
    assert len(written) <= 21, "only one more was under way"


def test_the_end_does_not_wait_for_an_unreachable_forge(token: Path) -> None:
    dead = Forge(Project.parse("gitea=http://127.0.0.1:9/acme/fleet"), token, name="gitboot")
    verdicts = VerdictSender(dead, lambda: None, first_retry_s=60)
    verdicts.submit_verdicts([make_verdict(A)])
    eventually(lambda: verdicts.forge_report.failure is not None)
    verdicts.close(timeout_s=60)  # it has failed: the end does not wait for the next try
    eventually(lambda: "forge" not in {each.name for each in threading.enumerate()})


# In an instance


@pytest.mark.parametrize("host", ["github"], indirect=True)
def test_a_merge_has_the_judgement_of_the_instance_as_its_status(host: ForgeHost, token: Path, rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    first = rack.push()
    link = write_configuration(forge_link="https://boards.test")
    options = ("--forge", host.project, token, *link)
    with rack.running(*options, records="adopt") as instance:
        wait_for_condition(instance, "CommitStatusReported", status=True, reason="Reported")
        eventually(lambda: host.statuses)
        web.provision = 2
        held = rack.push("Reinstall web01")
        eventually(lambda: len(host.statuses) == 2)
        digest = instance.status()["attempted"]["held"]["digest"]
        rack.said("approve", digest, "--guard", "maxReinstalls", "--reason", "CHG-1")
        eventually(lambda: len(host.statuses) == 3)
        web.more = ", nonsense: 1"
        invalid = rack.push("Break it")
        eventually(lambda: len(host.statuses) == 4)
        ledger = instance.status()["ledger"]
    shas = [each["sha"] for each in host.statuses]
    assert (shas[:4], set(shas[4:]) <= {invalid}) == ([first, held, held, invalid], True)  # and how far it has come
    assert [each["description"].partition(" (")[0] for each in host.statuses[:4]] == [
        *(
            "accepted",
            "held by maxReinstalls",
            "accepted, acknowledged by root, with gitboot approve: CHG-1",
            "invalid: 1 error",
        )
    ]
    assert {each["target_url"] for each in host.statuses} == {"https://boards.test"}
    newest = Forge(Project.parse(host.project), token, name="gitboot").find_latest(invalid, ledger)
    assert newest is not None and newest.judgement is Judgement.INVALID
    assert newest.change > 0


@pytest.mark.parametrize("host", ["github"], indirect=True)
def test_finding_s12_a_status_by_a_stranger_does_not_make_the_ledger_unverified(
    host: ForgeHost, token: Path, rack: Rack
) -> None:
    rack.add("web01", provision=1)
    commit = rack.push()
    rack.once("--forge", host.project, token, records="adopt")
    ledger = rack.ledger()
    for number in range(2):
        forged = f"accepted (ledger {ledger}, change {999_999_998 + number})"
        known = {"sha": commit, "context": "gitboot", "state": "success", "description": forged}
        host.statuses.append({**known, "id": 1000 + number})
    with rack.running("--forge", host.project, token) as instance:
        warned = eventually(lambda: [each for each in instance.events if each["type"] == "CommitStatusUnverified"])
        assert [each["change"] for each in warned] == [999_999_999]
        eventually(lambda: instance.status().get("records") == {"Provisioned": 1})
        assert "RestoredLedger" not in str(instance.status())


@pytest.mark.parametrize("host", ["gitlab"], indirect=True)
def test_e19_each_of_several_merges_in_one_poll_has_its_own_status(host: ForgeHost, token: Path, rack: Rack) -> None:
    web, db = rack.add("web01", provision=1), rack.add("db01", provision=1)
    first = rack.push()
    rack.once(records="adopt")
    web.more = ", serial: 4J8VM72"
    harmless = rack.push("Note the serial number")
    web.provision = 2
    reinstalls = rack.push("Reinstall web01")
    db.more = ", nonsense: 1"
    invalid = rack.push("Break db01")
    db.more = ", serial: 4J8VM73"
    after = rack.push("Mend db01")
    db.provision = 2
    newest = rack.push("Reinstall db01")

    def said() -> list[tuple[str, str]]:
        words = [each["description"].partition(" (")[0] for each in host.statuses]
        found = [
            (each["sha"], says.partition(", acknowledged by")[0])
            for each, says in zip(host.statuses, words, strict=True)
        ]
        return [each for each in found if each[0] != first]  # a start reports the previous commit again

    waiting = [
        (harmless, "accepted"),
        (reinstalls, "held by maxReinstalls"),
        (invalid, "invalid: 1 error"),
        (after, f"held behind {reinstalls[:12]}"),
        (newest, "held by maxReinstalls"),
    ]
    with rack.running("--forge", host.project, token) as instance:
        eventually(lambda: said() == waiting)
        digest = instance.status()["attempted"]["held"]["digest"]
        rack.said("approve", digest, "--guard", "maxReinstalls", "--reason", "CHG-1")
        eventually(lambda: said() == [*waiting, *((each, "accepted") for each in (reinstalls, after, newest))])
    assert {each["target_url"].rpartition("/commit/")[2] for each in host.statuses} >= {harmless, newest}


@pytest.mark.parametrize("host", ["gitlab"], indirect=True)
def test_a_forge_that_rejects_reports_is_a_condition_and_delays_nothing(
    host: ForgeHost, token: Path, rack: Rack
) -> None:
    token.write_text("wrong")
    rack.add("web01")
    rack.push()
    with rack.running("--forge", host.project, token, records="adopt") as instance:
        found = wait_for_condition(instance, "CommitStatusReported", status=False, reason="ForgeRefused")
        assert "401" in found["message"] and "wrong" not in found["message"]
        commit = rack.push("Again")
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
        assert "wrong" not in str(instance.events)


@pytest.mark.parametrize("host", ["gitea"], indirect=True)
def test_run_once_reports_to_the_forge_too(host: ForgeHost, token: Path, rack: Rack) -> None:
    rack.add("web01")
    commit = rack.push()
    rack.once(records="adopt")
    for _ in range(2):  # as a timer does
        assert rack.once("--forge", host.project, token).code == Exit.FINE
    assert [(each["sha"], each["context"]) for each in host.statuses] == [(commit, "gitboot")]


def test_a_dry_run_reports_nothing_to_the_forge_and_a_forge_without_a_token_is_a_usage_error(
    host: ForgeHost, token: Path, rack: Rack
) -> None:
    rack.add("web01")
    rack.push()
    rack.once("--dry-run", "--forge", host.project, token)
    assert host.requests == []
    done = rack.once("--forge", "gitea=https://gitea.test/acme/fleet")
    assert (done.code, "'--forge' requires 2 arguments" in done.err) == (Exit.USAGE, True)
