"""The steps of an installation: served, started, failed, provisioned, and a new attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gitboot.controller.records.install_boots import apply_boot_served, apply_foreign_fetch, apply_start, build_offer
from gitboot.endpoint.metrics import collect_status
from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import DATA, IGNITION
from gitboot.resolve.explanation import explain
from gitboot.resolve.install_attempts import install_step, unfinished_later_attempt
from gitboot.resolve.provisioning_record import (
    InstallAttempt,
    Record,
    StepEvidence,
    encode_records,
    parse_exported_records,
)
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.helpers.cases import require_value
from tests.helpers.fleets import fleet, image, maintenance, make_mac, make_uuid, policy, profile, repository, server
from tests.helpers.instance_in_process import NOON, Bench

MAC = make_mac("web01").replace(":", "-")
ENTRY = f"boot/v1/boot/{MAC}/boot.ipxe"
NIC, OTHER_NIC = "10.0.0.7", "10.0.0.8"
FILES = {"t": "#cloud-config\n"}
OFFERED = (Phase.NETWORK, Cause.PENDING)


class InstallBench(Bench):
    """web01, which installs itself by an image that fetches user data."""

    def install(
        self, *, evidence: str = "Fetched", attempts: int = 1, boots: int = 1, provision: int = 1, data: bool = True
    ) -> BootPlan | None:
        provisioning = f"evidence: {evidence}, attempts: {attempts}, monitors: [10.9.0.0/24]"
        asks = "userData: {format: CloudInit, template: t}" if data else ""
        self.documents = (
            fleet(f"baseURL: 'http://boot.test', provisioning: {{{provisioning}}}"),
            server("web01", "role: web", f"provision: {provision}"),
            image("flatcar-1", f"userData: CloudInit, boots: {boots}"),
            profile("web", "flatcar-1", asks),
            policy("web", often="Once"),
        )
        self.decide(*self.documents, files=FILES)
        return self.reconcile()

    def entry(self, plan: BootPlan | None, client: str = NIC, at: datetime | None = None) -> BootPlan | None:
        self.fetch(plan, client, ENTRY, at)
        return self.reconcile()

    def request_path(self, path: str, client: str = NIC, at: datetime | None = None, log: str | None = None) -> None:
        token = require_value(self.decisions.servers["web01"].token)
        whole = f"boot/v1/boot/{MAC}/{path.replace('TOKEN', token)}"
        digest, at = Digest(token), at or self.now
        self.observe(Observation(server="web01", path=whole, digest=digest, client=client, at=at, log=log))
        self.reconcile()

    def data(self, client: str = NIC) -> None:
        self.request_path("data/TOKEN/user-data", client)

    def fails(self, log: str | None = None, at: datetime | None = None) -> None:
        self.request_path("failed/TOKEN", log=log, at=at)

    @property
    def step(self) -> str:
        return install_step(self.decisions.servers["web01"], self.record)

    @property
    def boots(self) -> tuple[Phase, Cause, str | None]:
        plan = require_value(self.reconcile())
        return plan.phase, plan.cause, plan.key

    @property
    def given(self) -> list[int]:
        """Return how many boots each attempt was served."""
        assert self.record is not None
        return [len(each.boots) for each in self.record.attempts]


@pytest.fixture
def web01(tmp_path: Path) -> Iterator[InstallBench]:
    with InstallBench(tmp_path) as bench:
        yield bench


# The steps


def test_a_served_boot_is_served_for_one_more_minute_only(web01: InstallBench) -> None:
    plan = web01.install()
    assert web01.step == "Pending"
    web01.entry(plan)
    assert web01.step == "Attempted"
    assert web01.wait(seconds=59).boots == (*OFFERED, "provision/1")
    assert web01.wait(seconds=1).boots == (Phase.DISK, Cause.ATTEMPTED, "provision/1")
    assert web01.wait(days=3).boots[0] is Phase.DISK


def test_if_a_fetch_is_the_evidence_the_fetch_of_user_data_starts_and_completes_an_installation(
    web01: InstallBench,
) -> None:
    web01.entry(web01.install())
    web01.wait(seconds=20).data()
    assert web01.boots == (Phase.DISK, Cause.PROVISIONED, None)  # no minute more: the system runs
    assert web01.record is not None
    (attempt,) = web01.record.attempts
    assert (web01.record.evidence, web01.record.provisioned_at) == ("Fetched", NOON + timedelta(seconds=20))
    assert [(each.at, each.path, each.client) for each in attempt.boots] == [(NOON, ENTRY, NIC)]
    assert attempt.started is not None
    assert attempt.started.path.endswith("/user-data") and attempt.started.at == NOON + timedelta(seconds=20)
    assert web01.told("Attempted", "Started", "Provisioned") == ["Attempted", "Started", "Provisioned"]
    assert "according to its fetches" in web01.events[-1].message


def test_a_fetch_of_user_data_alone_proves_that_the_boot_was_served(web01: InstallBench) -> None:
    """A boot script that was fetched by TFTP is not observed."""
    web01.install()
    web01.data()
    assert (web01.step, web01.given) == ("Provisioned", [1])


@pytest.mark.parametrize("evidence", ["Reported", "Declared"])
def test_a_start_is_not_the_end_if_the_fleet_requires_other_evidence(web01: InstallBench, evidence: str) -> None:
    web01.entry(web01.install(evidence=evidence))
    web01.data()
    assert (web01.step, web01.boots) == ("Started", (Phase.DISK, Cause.STARTED, "provision/1"))
    web01.request_path("provisioned/TOKEN")
    assert web01.step == ("Provisioned" if evidence == "Reported" else "Started")


def test_user_data_is_available_for_two_hours_after_the_boot_was_served(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    for minutes, is_there in ((119, True), (120, False)):
        web01.now = NOON + timedelta(minutes=minutes)
        web01.reconcile()
        assert any("/data/" in path for path in web01.rendered["web01"].files) == is_there


def test_requests_from_before_an_operator_set_a_server_pending_do_not_count(web01: InstallBench) -> None:
    first = web01.install(evidence="Reported")
    web01.entry(first)
    web01.wait(hours=1)
    item = {"uuid": make_uuid("web01"), "server": "web01", "provisionedAt": web01.now.isoformat(), "runs": {}}
    nothing = ("provision", "image", "pool", "decisionDigest", "evidence", "graceUntil", "consumedAt", "consumedKey")
    web01.request("records", items=[{**item, **dict.fromkeys(nothing)}], reason="x")
    web01.reconcile()
    web01.fetch(first, NIC, ENTRY)
    web01.request_path("data/TOKEN/user-data")
    assert (web01.step, web01.boots) == ("Pending", (*OFFERED, "provision/1"))
    again = web01.servers["web01"].plan
    assert first is not None and again is not None
    assert again.digest != first.digest  # an endpoint knows by it what it has served


def test_a_clock_that_steps_back_does_not_serve_the_boot_again(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    assert web01.wait(hours=-1).boots == (Phase.DISK, Cause.ATTEMPTED, "provision/1")


def test_a_fetch_by_another_client_is_taken_back_unless_its_system_has_started(web01: InstallBench) -> None:
    plan = web01.install()
    state = web01.servers["web01"]
    assert plan is not None
    offer = require_value(build_offer(state.decision, plan, state.record))
    entry, data = StepEvidence(NOON, ENTRY, NIC), StepEvidence(NOON + timedelta(seconds=20), f"{ENTRY}/data", NIC)
    given = apply_boot_served(offer, Record(), entry)
    begun = apply_start(offer, given, data)
    assert apply_foreign_fetch(given, entry) == Record()
    assert apply_foreign_fetch(given, StepEvidence(NOON, ENTRY, OTHER_NIC)) == given
    assert apply_foreign_fetch(begun, entry) == begun  # the disks may be written already
    assert apply_foreign_fetch(begun, data) == given
    assert apply_start(offer, Record(), data).attempts[0].boots == (data,)


@pytest.mark.parametrize("unfinished", [1, 32, 40])
def test_many_unfinished_requests_for_an_earlier_number_do_not_hide_the_next_boot(
    web01: InstallBench, unfinished: int
) -> None:
    def begin_request(plan: BootPlan, intent: int) -> None:
        known: dict[str, Any] = {"server": "web01", "path": ENTRY, "client": NIC, "at": web01.now}
        web01.observe(Observation(**known, digest=plan.digest, offer=plan.offer, intent=f"{intent:032x}"))

    first = require_value(web01.install(evidence="Reported"))
    for number in range(unfinished):
        begin_request(first, number)
    web01.wait(hours=1)
    assert web01.boots[1:] == (Cause.OUTCOME, "provision/1")
    begin_request(require_value(web01.install(evidence="Reported", provision=2)), unfinished)
    web01.wait(hours=1)
    assert web01.boots == (Phase.DISK, Cause.OUTCOME, "provision/2")


# New attempts


def test_a_higher_provision_number_begins_again_and_a_lower_one_never_does(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported", provision=2))
    web01.wait(hours=1).install(evidence="Reported", provision=1)
    assert web01.boots[:2] == (Phase.DISK, Cause.ATTEMPTED)
    web01.entry(web01.install(evidence="Reported", provision=3))
    assert web01.boots[2] == "provision/3" and web01.given == [1]


@pytest.mark.parametrize("parked", [False, True])
def test_a_revert_of_the_first_number_keeps_its_attempt(web01: InstallBench, parked: bool) -> None:
    """Whether the server was parked when it was adopted makes no difference."""
    web01.install(evidence="Reported", provision=0)
    lifecycle = "lifecycle: Parked, " if parked else ""
    adopted = [server("web01", "role: web", f"{lifecycle}provision: 0"), *web01.documents[2:]]
    web01.decide(web01.documents[0], *adopted, files=FILES)
    web01.reconcile()
    web01.entry(web01.install(evidence="Reported"))
    web01.wait(minutes=10).install(evidence="Reported", provision=0)
    assert web01.given == [1]
    web01.install(evidence="Reported")
    assert web01.boots == (Phase.DISK, Cause.ATTEMPTED, "provision/1")


def test_a_failure_ends_the_attempt_and_starts_no_other_by_itself(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    web01.wait(seconds=30).fails("partitioning\nno disk found")
    assert (web01.step, web01.boots) == ("Failed", (Phase.DISK, Cause.FAILED, "provision/1"))
    (event,) = [each for each in web01.events if each.type == "Failed"]
    assert event.warning and event.facts["failed"]["log"] == "partitioning\nno disk found"
    status, reason, message = web01.condition("InstallsCompleted") or (None, "", "")
    assert (status, reason) == (False, "Failed")
    assert 'the installation of web01 failed: 10.0.0.7 reported "no disk found" at 2026-11-20T12:00:30Z' in message


def test_a_failure_report_of_an_earlier_provision_is_only_an_event(web01: InstallBench) -> None:
    """The report has no effect, but the last message of the installer is not lost."""
    web01.entry(web01.install(evidence="Reported"))
    token = web01.decisions.servers["web01"].token
    web01.install(evidence="Reported", provision=2)
    path = f"boot/v1/boot/{MAC}/failed/{token}"
    at, digest = web01.now, Digest(str(token))
    for _ in range(2):  # read once more, after a crash
        web01.observe(Observation(server="web01", path=path, digest=digest, client=NIC, at=at, log="no disk found"))
    assert web01.boots == (*OFFERED, "provision/2")
    said = [each for each in web01.events if each.type == "ReportOutdated"]
    assert [(each.warning, each.facts["log"]) for each in said] == [(True, "no disk found")]
    assert "report from an installer for provision/1 (flatcar-1): failed: no disk found" in said[0].message


def test_finding_s5_a_repeated_report_is_one_event_for_each_address(web01: InstallBench) -> None:
    """Otherwise a client with the token of an installation could fill the ledger."""
    web01.entry(web01.install(evidence="Reported"))
    token = web01.decisions.servers["web01"].token
    web01.install(evidence="Reported", provision=2)
    report = Observation(
        server="web01",
        path=f"boot/v1/boot/{MAC}/failed/{token}",
        digest=Digest(str(token)),
        client=NIC,
        at=web01.now,
        log="no disk found",
    )
    for number in range(60):
        client = NIC if number < 20 else f"10.0.1.{number}"
        web01.observe(replace(report, client=client, at=web01.now + timedelta(seconds=number)))
    web01.reconcile()
    assert [each["type"] for _, each in instance_tables.read_numbered_events(web01.ledger)].count(
        "ReportOutdated"
    ) == 17
    assert web01.condition("SecretsPrivate") is None


@pytest.mark.parametrize("fails", [True, False])
def test_an_earlier_installation_is_no_proof_once_another_one_has_begun(web01: InstallBench, fails: bool) -> None:
    """The commit is reverted during the installation: only the installer or an operator knows the disks."""
    web01.entry(web01.install(evidence="Reported"))
    web01.request_path("provisioned/TOKEN")
    web01.wait(days=1)
    assert (web01.step, web01.boots[:2]) == ("Provisioned", (Phase.DISK, Cause.PROVISIONED))
    web01.entry(web01.install(evidence="Reported", provision=2))
    web01.wait(minutes=5)
    if fails:
        web01.fails("no disk found")
    web01.install(evidence="Reported", provision=1)
    assert (web01.step, web01.boots) == (
        "Failed" if fails else "Attempted",
        (Phase.DISK, Cause.LATER_INSTALL_UNFINISHED, None),
    )
    web01.wait(minutes=30).reconcile()
    status, reason, message = web01.condition("InstallsCompleted") or (None, "", "")
    assert (status, reason) == (False, "Failed" if fails else "Overdue")
    assert "web01" in message
    web01.install(evidence="Reported", provision=2)
    assert (web01.step, web01.boots[1]) == ("Failed", Cause.FAILED) if fails else ("Attempted", Cause.ATTEMPTED)
    web01.install(evidence="Reported", provision=1)
    looked = replace(web01.record or Record(), provisioned_at=web01.now, evidence="Operator")
    (item,) = json.loads(encode_records({SystemUuid(make_uuid("web01")): looked}))["items"]
    web01.request("records", items=[{**item, "server": "web01"}], reason="I have looked")
    assert web01.boots[:2] == (Phase.DISK, Cause.PROVISIONED)
    assert web01.step == "Provisioned"
    assert web01.condition("InstallsCompleted") == (
        True,
        "Completed",
        "no installation is waiting for evidence of completion",
    )


@pytest.mark.parametrize(
    ("key", "at", "is_overtaken"),
    [
        ("provision/1/flatcar-2/after/2026-11-20T12:00:00Z", NOON + timedelta(hours=1), True),
        ("provision/2", NOON + timedelta(hours=1), True),
        ("provision/2", NOON, False),  # before it was provisioned, by a person's word perhaps
        ("provision/1", NOON + timedelta(hours=1), False),
        ("provision/1/flatcar-1", NOON + timedelta(hours=1), False),
    ],
)
def test_only_a_later_attempt_with_another_key_makes_a_provisioned_record_doubtful(
    key: str, at: datetime, is_overtaken: bool
) -> None:
    attempt = InstallAttempt(key=key, number=1, boots=(StepEvidence(at, ENTRY, NIC),))
    record = Record(provision=1, image="flatcar-1", provisioned_at=NOON, attempts=(attempt,))
    assert (unfinished_later_attempt(record) is attempt) == is_overtaken
    assert unfinished_later_attempt(replace(record, provision=None)) is None


def test_as_many_attempts_follow_failures_as_the_fleet_allows_and_each_is_recorded(web01: InstallBench) -> None:
    plan = web01.install(evidence="Reported", attempts=3)
    for number, key in ((1, "provision/1"), (2, "provision/1/attempt/2"), (3, "provision/1/attempt/3")):
        assert web01.boots == (*OFFERED, key)
        assert web01.step == "Pending"
        plan = web01.servers["web01"].plan
        web01.entry(plan)
        assert web01.wait(minutes=10).boots[:2] == (Phase.DISK, Cause.ATTEMPTED)
        web01.fails(f"failure {number}")
        web01.fails(f"failure {number}")  # sent again: the answer was lost
        web01.wait(minutes=10)
    assert web01.boots == (Phase.DISK, Cause.FAILED, "provision/1/attempt/3")
    assert web01.record is not None
    assert [each.failed.log for each in web01.record.attempts if each.failed] == ["failure 1", "failure 2", "failure 3"]
    web01.install(evidence="Reported", attempts=4)
    assert web01.boots == (*OFFERED, "provision/1/attempt/4")


def test_an_installation_without_a_report_is_not_a_failure(web01: InstallBench) -> None:
    """The disks may be written already, and only the last report may be lost."""
    web01.entry(web01.install(evidence="Reported", attempts=3))
    assert web01.wait(days=1).boots[:2] == (Phase.DISK, Cause.ATTEMPTED)


def test_a_failure_report_of_a_boot_that_was_not_served_has_no_effect(web01: InstallBench) -> None:
    web01.install(evidence="Reported", attempts=2)
    web01.fails("x")
    assert (web01.step, web01.boots[2]) == ("Pending", "provision/1")


def test_the_report_of_an_attempt_counts_after_another_attempt_was_offered(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported", attempts=2))
    web01.fails("x")
    web01.request_path("provisioned/TOKEN")
    assert web01.step == "Provisioned"


def test_an_installer_that_boots_twice_gets_two_boots_and_no_third(web01: InstallBench) -> None:
    web01.entry(web01.install(boots=2))
    assert web01.boots == (*OFFERED, "provision/1")  # a minute for the same boot
    web01.data()
    assert web01.boots == (*OFFERED, "provision/1/boot/2")
    assert web01.step == "Started"
    web01.wait(minutes=10)
    web01.entry(web01.servers["web01"].plan)
    assert (web01.step, web01.given) == ("Provisioned", [2])
    assert web01.boots[:2] == OFFERED  # a minute for the second boot, too
    web01.data()
    assert web01.boots[:2] == (Phase.DISK, Cause.PROVISIONED)


def test_each_boot_of_an_installer_has_its_own_override(web01: InstallBench) -> None:
    plan = web01.install(boots=2, evidence="Reported")
    assert plan is not None and plan.override is not None and plan.override.reason == "provision/1"
    web01.entry(plan)
    plan = web01.wait(seconds=60).reconcile()
    assert plan is not None and plan.override is not None and plan.override.reason == "provision/1/boot/2"


def test_the_published_summary_of_a_server_has_its_step_and_its_fetches(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    web01.wait(seconds=9).data()
    summary = web01.rendered["web01"].published.summary
    assert summary["step"] == "Started"
    assert summary["cause"] == "the installation has started, and no end was reported"
    (attempt,) = summary["provisioned"]["attempts"]
    assert (attempt["step"], attempt["failed"]) == ("Started", None)
    assert attempt["boots"] == [{"at": "2026-11-20T12:00:00Z", "client": NIC, "path": ENTRY}]
    assert attempt["started"]["at"] == "2026-11-20T12:00:09Z"
    assert parse_exported_records(encode_records(web01.snapshot.records), "records.json") == web01.snapshot.records


def test_explain_shows_the_evidence_of_an_installation(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported", attempts=2))
    web01.fails("no disk found")
    decision, record = web01.decisions.servers["web01"], web01.record
    found = explain(repository(*web01.documents, files=FILES), decision, web01.servers["web01"].plan, web01.now, record)
    (reason,) = (each for each in found.reasons if each.field == "step")
    said = '10.0.0.7 reported a failure at 2026-11-20T12:00:00Z ("no disk found")'
    assert (reason.value, reason.rule, reason.why) == ("Pending", "R5", f"attempt 1, boot 1: {said}")


# It is shown until there is evidence of its completion


def summarize_installation(web01: InstallBench) -> tuple[str, str] | None:
    web01.reconcile()
    found = web01.rendered["web01"].published.summary["installing"]
    return (found["state"], found["step"]) if found is not None else None


@pytest.mark.parametrize("evidence", ["Reported", "Declared"])
def test_an_installation_is_shown_from_its_first_fetch_until_an_operator_ends_it(
    web01: InstallBench, evidence: str
) -> None:
    plan = web01.install(evidence=evidence)
    assert summarize_installation(web01) is None
    web01.entry(plan)
    assert summarize_installation(web01) == ("Installing", "Attempted")
    web01.wait(minutes=2).data()
    assert summarize_installation(web01) == ("Installing", "Started")
    web01.wait(days=3)
    assert summarize_installation(web01) == ("Installing", "Started")
    for provision in (2, 1):  # the wanted image proves nothing about the disks
        web01.install(evidence=evidence, provision=provision)
        assert summarize_installation(web01) == ("Installing", "Started")
    looked = replace(web01.record or Record(), provision=1, provisioned_at=web01.now, evidence="Operator")
    (item,) = json.loads(encode_records({SystemUuid(make_uuid("web01")): looked}))["items"]
    web01.request("records", items=[{**item, "server": "web01"}], reason="I have looked")
    assert summarize_installation(web01) is None


def test_a_report_ends_the_display_of_an_installation(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported", attempts=2))
    web01.fails("no disk found")
    assert summarize_installation(web01) == ("Installing", "Failed")
    web01.entry(web01.reconcile())
    assert summarize_installation(web01) == ("Installing", "Attempted")
    token = web01.servers["web01"].plan
    assert token is not None and token.token is not None
    web01.observe(
        Observation(
            server="web01",
            path=f"boot/v1/boot/{MAC}/provisioned/{token.token}",
            digest=token.token,
            client=NIC,
            at=web01.now,
        )
    )
    assert summarize_installation(web01) is None


@pytest.mark.parametrize("data", [True, False])
def test_an_installation_proven_by_a_fetch_is_shown_as_served_for_at_most_thirty_minutes(
    web01: InstallBench, data: bool
) -> None:
    web01.entry(web01.install(data=data))
    assert summarize_installation(web01) == (("Installing", "Attempted") if data else ("Served", "Attempted"))
    if data:
        web01.data()
        assert summarize_installation(web01) == ("Served", "Started")
    web01.wait(minutes=29, seconds=59)
    assert summarize_installation(web01) is not None
    assert web01.servers["web01"].transition == web01.now + timedelta(seconds=1)
    web01.wait(seconds=1)
    assert summarize_installation(web01) is None


def test_the_next_disk_boot_ends_the_display_as_served(web01: InstallBench) -> None:
    web01.entry(web01.install())
    web01.data()
    digest = web01.rendered["web01"].evidence_digests[ENTRY]
    web01.wait(minutes=7)
    web01.observe(Observation(server="web01", path=ENTRY, digest=digest, client=NIC, at=web01.now))
    assert summarize_installation(web01) is None
    assert web01.record is not None and web01.record.attempts[-1].disk_boot == StepEvidence(web01.now, ENTRY, NIC)
    assert (web01.record.provision, web01.record.evidence) == (1, "Fetched")
    assert ENTRY not in web01.rendered["web01"].evidence_digests, "no further boot of the disk is written down"
    assert parse_exported_records(encode_records({SystemUuid(make_uuid("web01")): web01.record}), "x") == {
        SystemUuid(make_uuid("web01")): web01.record
    }


def test_a_disk_boot_does_not_end_an_installation_that_must_be_reported(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    web01.wait(minutes=2).reconcile()
    assert ENTRY not in web01.rendered["web01"].evidence_digests


# A step that lasts


def test_a_step_that_takes_long_is_a_condition_that_names_the_last_fetch_and_its_time(web01: InstallBench) -> None:
    web01.entry(web01.install())
    assert web01.due is not None
    web01.wait(minutes=29, seconds=59).reconcile()
    waits = "web01 (Installing since 2026-11-20T12:00:00Z; last step: boot served at 2026-11-20T12:00:00Z)"
    assert web01.condition("InstallsCompleted") == (True, "Installing", f"no evidence of completion yet: {waits}")
    assert web01.due == NOON + timedelta(minutes=30)
    web01.wait(seconds=1).reconcile()
    status, reason, message = web01.condition("InstallsCompleted") or (None, "", "")
    assert (status, reason) == (False, "Overdue")
    assert f"web01 has made no progress since 2026-11-20T12:00:00Z, when {NIC} fetched {ENTRY}" in message
    (remedy,) = (
        each.remedy for each in web01.instance.reconciler.status.conditions if each.type == "InstallsCompleted"
    )
    assert remedy is not None and remedy.startswith("gitboot records set web01 provisioned ")
    assert web01.told("NeedsOperator") == ["NeedsOperator"]
    web01.data()
    assert (web01.condition("InstallsCompleted") or (False,))[0] is True


def test_the_duration_of_a_step_counts_from_the_last_evidence(web01: InstallBench) -> None:
    web01.entry(web01.install(evidence="Reported"))
    web01.wait(minutes=20).data()
    web01.wait(minutes=29).reconcile()
    assert (web01.condition("InstallsCompleted") or (False,))[0] is True
    web01.wait(minutes=1).reconcile()
    assert ", when the installer started: " in (web01.condition("InstallsCompleted") or (False, "", ""))[2]


@pytest.mark.parametrize("has_started", [False, True])
def test_an_installation_that_started_and_is_declared_in_git_is_not_overdue(
    web01: InstallBench, has_started: bool
) -> None:
    """With evidence Declared only a commit ends the installation, at any later time; the start is observed."""
    web01.entry(web01.install(evidence="Declared"))
    if has_started:
        web01.data()
    web01.wait(minutes=31).reconcile()
    assert web01.step == ("Started" if has_started else "Attempted")
    assert (web01.condition("InstallsCompleted") or (None,))[0] is has_started


@pytest.mark.parametrize(
    ("data", "has_started", "step"),
    [(True, True, "Provisioned"), (True, False, "Attempted"), (False, False, "Provisioned")],
)
def test_after_a_change_of_the_accepted_evidence_earlier_evidence_still_counts(
    web01: InstallBench, data: bool, has_started: bool, step: str
) -> None:
    web01.entry(web01.install(evidence="Reported", data=data))
    if has_started:
        web01.data()
    seen = web01.now
    assert web01.wait(minutes=5).step == ("Started" if has_started else "Attempted")
    web01.install(evidence="Fetched", data=data)
    assert web01.step == step
    assert web01.record is not None
    assert web01.record.provisioned_at == (seen if step == "Provisioned" else None)


def test_servers_are_counted_by_their_steps(web01: InstallBench) -> None:
    def counted() -> dict[str, int]:
        return dict(web01.instance.reconciler.status.records)

    plan = web01.install(evidence="Reported")
    assert counted() == {"Pending": 1}
    web01.entry(plan)
    assert counted() == {"Attempted": 1}
    web01.data()
    assert counted() == {"Started": 1}
    web01.fails()
    assert counted() == {"Failed": 1}
    web01.request_path("provisioned/TOKEN")
    assert counted() == {"Provisioned": 1}


# An ordinary day


def test_a_second_nic_and_the_next_loader_get_the_same_boot(web01: InstallBench) -> None:
    plan = web01.install(evidence="Reported")
    web01.entry(plan, NIC)
    for seconds in (5, 30, 20):
        plan = web01.wait(seconds=seconds).reconcile()
        assert plan is not None and (plan.phase, plan.cause) == OFFERED
        web01.entry(plan, OTHER_NIC)
    assert web01.given == [1]
    assert web01.wait(seconds=5).boots[0] is Phase.DISK  # a minute from the first


def test_a_monitor_that_fetches_data_starts_no_installation(web01: InstallBench) -> None:
    web01.install()
    web01.data(client="10.9.0.5")
    web01.entry(web01.servers["web01"].plan, "10.9.0.5")
    assert web01.step == "Pending"


def test_machines_behind_one_address_are_distinguished_by_what_they_fetch(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        names = ("web01", "web02", "web03")
        documents = [server(name, "role: web", "provision: 1") for name in names]
        bench.decide(fleet(), *documents, image("flatcar-1"), profile("web", "flatcar-1"), policy("web", often="Once"))
        bench.reconcile()
        for name in ("web01", "web03"):
            bench.fetch(bench.servers[name].plan, client="192.0.2.1")
        bench.reconcile()
        bench.wait(minutes=2).reconcile()
        phases = {name: state.plan.phase for name, state in bench.servers.items() if state.plan is not None}
        assert phases == {"web01": Phase.DISK, "web02": Phase.NETWORK, "web03": Phase.DISK}


def test_a_diskless_fleet_boots_whatever_the_records_contain(tmp_path: Path) -> None:
    with Bench(tmp_path, initial=None, observes=False) as bench:
        diskless = image("flatcar-1", "writesDisk: false")
        always = policy("web", often="Always", spec="reinstall: Never")
        bench.decide(fleet(), server("web01", "role: web"), diskless, profile("web", "flatcar-1"), always)
        for _ in range(3):
            plan = bench.reconcile()
            assert plan is not None and (plan.phase, plan.key) == (Phase.NETWORK, None)
            assert not plan.writes_disk
            bench.wait(minutes=1)
        false = [each for each in bench.instance.reconciler.status.conditions if not each.status]
        assert false == []


# The steps of a maintenance's one-time boot: served, started; and steps that take too long


WINDOW = "20T11:00 20T16:00"
MAINTENANCE_BOOT = (Phase.MAINTENANCE, Cause.MAINTENANCE)


class Maintained(Bench):
    """web01, whose firmware is updated once by a system that requests user data."""

    def start_maintenance(
        self, *, data: bool = True, run: int = 1, window: str = WINDOW, uki: bool = False
    ) -> BootPlan:
        asks = "userData: {format: CloudInit, template: t}" if data else ""
        config = "userData: CloudInit"
        if uki:
            asks = "userData: {format: Ignition/3.4, template: i}, httpBoot: uki"
            config = "userData: Ignition/3.4, configFrom: SystemUUID"
        self.documents = (
            fleet(),
            server("web01", "role: web"),
            image("flatcar-1"),
            image("bios-1", config, "uki" if uki else "kernel, initrd"),
            profile("web", "flatcar-1"),
            profile("bios", "bios-1", asks, method="UefiHttp" if uki else "Pxe"),
            policy("web", often="Once"),
            maintenance("bios", window, f"networkBoot: Once, run: {run}", boots="bios"),
        )
        self.files = {"t": "#cloud-config\n", "i": '{"ignition": {"version": "3.4.0"}}'}
        self.decide(*self.documents, files=self.files)
        return self.reconcile_plan()

    def reconcile_plan(self) -> BootPlan:
        return require_value(self.reconcile())

    def entry(self, plan: BootPlan) -> BootPlan:
        self.fetch(plan, path=ENTRY)
        return self.reconcile_plan()

    def data(self, token: Digest | None, path: str | None = None) -> BootPlan:
        assert token is not None
        path = path or DATA.build_path(MAC, token, "user-data")
        self.observe(Observation(server="web01", path=path, digest=token, client="10.0.0.7", at=self.now))
        return self.reconcile_plan()

    @property
    def shown(self) -> tuple[Phase, Cause]:
        plan = self.reconcile_plan()
        return plan.phase, plan.cause

    @property
    def runs(self) -> dict[str, int]:
        return dict(self.instance.reconciler.status.runs)

    @property
    def paths(self) -> set[str]:
        """Return the paths that the endpoint serves now."""
        found = self.rendered["web01"].published.paths.items()
        return {path for path, turns in found if any(turn.content is not None for turn in turns[:1])}


@pytest.fixture
def maintained(tmp_path: Path) -> Iterator[Maintained]:
    with Maintained(tmp_path) as bench:
        yield bench


def test_a_maintenance_boot_is_first_served_and_then_started(maintained: Maintained) -> None:
    plan = maintained.start_maintenance()
    assert (maintained.shown, maintained.runs) == (MAINTENANCE_BOOT, {})
    maintained.entry(plan)
    assert maintained.shown == MAINTENANCE_BOOT  # the minute of grace
    maintained.wait(minutes=2)
    assert (maintained.shown, maintained.runs) == ((Phase.DISK, Cause.MAINTENANCE_SERVED), {"Attempted": 1})
    maintained.data(plan.data)
    assert (maintained.shown, maintained.runs) == ((Phase.DISK, Cause.MAINTENANCE_STARTED), {"Started": 1})
    assert maintained.record is not None
    made = maintained.record.runs["bios"]
    assert made.given is not None and (made.given.at, made.given.path, made.given.client) == (NOON, ENTRY, "10.0.0.7")
    assert made.started is not None and made.started.at == NOON + timedelta(minutes=2)
    assert maintained.told("MaintenanceBooted", "MaintenanceStarted") == ["MaintenanceBooted", "MaintenanceStarted"]
    assert parse_exported_records(encode_records(maintained.snapshot.records), "x") == maintained.snapshot.records


def test_a_start_ends_the_minute_of_grace_of_the_boot(maintained: Maintained) -> None:
    plan = maintained.start_maintenance()
    maintained.entry(plan)
    maintained.wait(seconds=20).data(plan.data)
    assert maintained.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)


def test_in_a_maintenance_a_fetch_of_data_alone_proves_that_the_boot_was_served(maintained: Maintained) -> None:
    """A boot script that was fetched by TFTP is not observed."""
    maintained.data(maintained.start_maintenance().data)
    assert maintained.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)
    assert maintained.told("MaintenanceBooted", "MaintenanceStarted") == ["MaintenanceBooted", "MaintenanceStarted"]


def test_a_maintenance_without_data_is_done_once_its_boot_was_served(maintained: Maintained) -> None:
    maintained.entry(maintained.start_maintenance(data=False))
    maintained.wait(hours=1)
    assert (maintained.shown, maintained.runs) == ((Phase.DISK, Cause.MAINTENANCE_DONE), {"Made": 1})
    assert maintained.condition("MaintenanceRunsStarted") is None


def test_a_direct_boot_of_a_maintenance_starts_with_a_fetch_by_uuid(maintained: Maintained) -> None:
    plan = maintained.start_maintenance(uki=True)
    maintained.data(plan.digest, IGNITION.build_path(make_uuid("web01")))
    assert maintained.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)
    assert (
        maintained.record is not None and maintained.record.runs["bios"].given == maintained.record.runs["bios"].started
    )


def test_a_maintenance_run_that_does_not_start_is_a_condition_with_the_last_fetch_and_its_time(
    maintained: Maintained,
) -> None:
    plan = maintained.start_maintenance()
    maintained.entry(plan)
    maintained.wait(minutes=29, seconds=59).reconcile_plan()
    assert (maintained.condition("MaintenanceRunsStarted"), maintained.due) == (None, NOON + timedelta(minutes=30))
    maintained.wait(seconds=1).reconcile_plan()
    status, reason, message = maintained.condition("MaintenanceRunsStarted") or (None, "", "")
    assert (status, reason) == (False, "Overdue")
    assert "web01 fetched the boot files for Maintenance/bios at 2026-11-20T12:00:00Z" in message
    assert maintained.told("MaintenanceOverdue") == ["MaintenanceOverdue"]
    maintained.data(plan.data)
    assert maintained.condition("MaintenanceRunsStarted") is None


def test_no_maintenance_run_is_overdue_after_its_window(maintained: Maintained) -> None:
    maintained.entry(maintained.start_maintenance(window="20T11:00 20T13:00"))
    maintained.wait(minutes=45).reconcile_plan()
    assert maintained.condition("MaintenanceRunsStarted") is not None
    maintained.wait(minutes=15).reconcile_plan()
    assert (maintained.condition("MaintenanceRunsStarted"), maintained.runs) == (None, {})


def test_a_higher_run_begins_again_and_has_its_own_data(maintained: Maintained) -> None:
    first = maintained.start_maintenance()
    maintained.entry(first)
    second = maintained.wait(minutes=40).start_maintenance(run=2)
    assert (maintained.shown, second.data != first.data) == (MAINTENANCE_BOOT, True)
    maintained.data(first.data)  # of the system of the first, which is slow
    assert maintained.shown == MAINTENANCE_BOOT
    maintained.entry(second)
    assert maintained.wait(minutes=2).shown == (Phase.DISK, Cause.MAINTENANCE_SERVED)


def test_user_data_is_at_a_path_that_only_this_run_knows_and_for_two_hours(maintained: Maintained) -> None:
    plan = maintained.start_maintenance()
    assert plan.data is not None and plan.boot is not None
    path = DATA.build_path(MAC, plan.data, "user-data")
    assert path in maintained.paths
    assert any(f"/data/{plan.data}/" in each for each in plan.boot.kernel_arguments)
    maintained.entry(plan)
    maintained.wait(minutes=119).reconcile_plan()
    assert path in maintained.paths
    maintained.wait(minutes=1).reconcile_plan()
    assert path not in maintained.paths


def test_a_maintenance_run_is_explained_and_counted(maintained: Maintained) -> None:
    plan = maintained.start_maintenance()
    found = repository(*maintained.documents, files=maintained.files)
    decision = maintained.decisions.servers["web01"]

    def said() -> list[str]:
        reasons = explain(found, decision, maintained.reconcile_plan(), maintained.now, maintained.record).reasons
        return [f"{each.value} {each.why}" for each in reasons if each.field == "run"]

    assert said() == []
    maintained.entry(plan)
    assert said() == [f"1 served: 10.0.0.7 fetched {ENTRY} at 2026-11-20T12:00:00Z"]
    maintained.data(plan.data)
    assert [each.partition(": ")[0] for each in said()] == ["1 started"]
    metrics = {metric.name: metric for metric in collect_status(maintained.instance.reconciler.status.facts())}
    (sample,) = metrics["gitboot_maintenance_runs"].samples
    assert (sample.labels, sample.value) == ({"step": "Started"}, 1)
