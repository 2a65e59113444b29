"""The sequence of the ledger is the order: evidence of an earlier offer never counts after a request."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot.controller.current_plans import Plans, find_changed_servers, find_departed_machines, replan
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.records.ledger_changes import Batch, BatchResult, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.client import assemble_commit
from gitboot.evaluator.evaluation import CommitPair, Evaluator
from gitboot.evaluator.process import build_report
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, encode_line, read_new_lines
from gitboot.jsonio import Digest
from gitboot.ledger import server_tables
from gitboot.ledger.instance_tables import Facts, Request
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import DATA, FAILED, PROVISIONED
from gitboot.render.server_files import ServerState, render_server
from gitboot.render.token_keys import NO_KEYS
from gitboot.render.user_data_files import render
from gitboot.resolve.install_attempts import attempt_token, find_open_attempt, install_step, provision_key
from gitboot.resolve.provisioning_record import (
    InstallAttempt,
    Record,
    StepEvidence,
    StopScope,
    get_provisioning_fields,
    make_record_fields,
)
from gitboot.resolve.server_decision import Decision, replace_token
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.evaluator.test_evaluation_properties import EDITS, LAWS, History, evaluate_or_problems, round_trip, tree_of
from tests.helpers.cases import count_examples, require_value
from tests.helpers.fleets import fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets
from tests.helpers.instance_in_process import NOON, Bench, summarize_plan

MAC = make_mac("web01").replace(":", "-")
ENTRY = f"boot/v1/boot/{MAC}/boot.ipxe"
INSTALL_PENDING = (Phase.NETWORK, Cause.PENDING)
# The offset of an endpoint's clock from the instance's: above 30 s nothing is served, and a clock may step later.
OFF = [timedelta(seconds=-30), timedelta(hours=-2), timedelta(seconds=30), timedelta(hours=2)]
REPORTING_DATA = "#cloud-config\nphone_home: {{ urls.provisioned }}\nbootcmd: {{ urls.failed }}\n"
ENCODED = "#cloud-config\nscript: {{ urls.provisioned | b64encode }}\n"


class OrderBench(Bench):
    """web01, which is installed by an image that fetches user data and reports."""

    def install(
        self,
        *more: str,
        evidence: str = "Reported",
        image_name: str = "flatcar-1",
        often: str = "Once",
        attempts: int = 1,
        boots: int = 1,
        provision: int = 1,
        text: str = REPORTING_DATA,
    ) -> BootPlan:
        self.decide(
            fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}, attempts: {attempts}}}"),
            server("web01", "role: web", f"provision: {provision}"),
            *(image(f"flatcar-{number}", f"userData: CloudInit, boots: {boots}") for number in (1, 2, 3)),
            profile("web", image_name, "userData: {format: CloudInit, template: t}"),
            policy("web", often=often),
            *more,
            files={"t": text},
        )
        return self.reconcile_plan()

    def reconcile_plan(self) -> BootPlan:
        return require_value(self.reconcile())

    def fetch_boot(self, plan: BootPlan, off: timedelta = timedelta()) -> BootPlan:
        self.fetch(plan, path=ENTRY, at=self.now + off)
        return self.reconcile_plan()

    def request_path(self, path: str, token: Digest | None, off: timedelta = timedelta()) -> BootPlan:
        assert token is not None
        at = self.now + off
        self.observe(Observation(server="web01", path=path, digest=token, client="10.0.0.7", at=at))
        return self.reconcile_plan()

    def data(self, token: Digest | None, off: timedelta = timedelta()) -> BootPlan:
        return self.request_path(DATA.build_path(MAC, token or "", "user-data"), token, off)

    def report_success(self, token: Digest | None, off: timedelta = timedelta()) -> BootPlan:
        return self.request_path(PROVISIONED.build_path(MAC, token or ""), token, off)

    def report_failure(self, token: Digest | None, off: timedelta = timedelta()) -> BootPlan:
        return self.request_path(FAILED.build_path(MAC, token or ""), token, off)

    def set_pending(self) -> BootPlan:
        """Let an operator set web01 pending."""
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record(provisioned_at=self.now))}
        self.request("records", items=[item], reason="once more")
        return self.reconcile_plan()

    @property
    def token(self) -> Digest | None:
        """Return the token of the attempt that is offered now or was served last."""
        return attempt_token(self.decisions.servers["web01"], self.record)

    @property
    def step(self) -> str:
        return install_step(self.decisions.servers["web01"], self.record)


@pytest.fixture
def web01(tmp_path: Path) -> Iterator[OrderBench]:
    with OrderBench(tmp_path) as bench:
        yield bench


# A person's word


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("has_begun", [False, True])
def test_evidence_of_a_boot_that_was_offered_before_an_operator_request_proves_nothing_after_it(
    web01: OrderBench, off: timedelta, has_begun: bool
) -> None:
    first, token = web01.install(), web01.token
    if has_begun:
        web01.fetch_boot(first)
        web01.data(token)
    again = web01.wait(minutes=10).set_pending()
    assert (summarize_plan(again), again.digest != first.digest, web01.token != token) == (INSTALL_PENDING, True, True)
    web01.fetch_boot(first, off)
    web01.data(token, off)
    web01.report_failure(token, off)
    assert summarize_plan(web01.report_success(token, off)) == INSTALL_PENDING
    assert web01.step == "Pending"


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("evidence", ["Fetched", "Reported"])
def test_a_boot_that_was_offered_after_an_operator_request_is_served_once(
    web01: OrderBench, off: timedelta, evidence: str
) -> None:
    """An endpoint's clock that is behind made evidence of what it gave older than the word: it was installed twice."""
    web01.install(evidence=evidence)
    again = web01.wait(minutes=10).set_pending()
    web01.fetch_boot(again, off)
    assert web01.step == "Attempted"
    assert web01.wait(minutes=2).reconcile_plan().phase is Phase.DISK
    web01.data(web01.token, off)
    web01.report_success(web01.token, off)
    assert (web01.step, web01.reconcile_plan().phase) == ("Provisioned", Phase.DISK)


@pytest.mark.parametrize("off", [timedelta(hours=-3), timedelta(hours=3)])
def test_an_operator_request_counts_even_if_the_clock_moved_since_the_last_installation(
    web01: OrderBench, off: timedelta
) -> None:
    plan = web01.install()
    web01.fetch_boot(plan)
    web01.report_success(web01.token)
    web01.now += off
    web01.request("clock", reason="it is right now")
    again = web01.set_pending()
    assert summarize_plan(again) == INSTALL_PENDING
    web01.fetch_boot(again)
    web01.wait(minutes=2)
    assert (web01.step, web01.reconcile_plan().phase) == ("Attempted", Phase.DISK)


def test_an_operator_request_and_the_fetch_that_it_voids_may_come_in_one_reconcile(web01: OrderBench) -> None:
    plan = web01.install()
    web01.fetch(plan, path=ENTRY, at=web01.now + timedelta(minutes=1))
    assert summarize_plan(web01.set_pending()) == INSTALL_PENDING
    assert web01.step == "Pending"


def test_an_operator_request_without_the_newest_evidence_is_rejected(web01: OrderBench) -> None:
    web01.fetch_boot(web01.install(evidence="Fetched"))
    before = web01.record
    web01.data(web01.token)
    assert before is not None and web01.record is not None
    item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record(provisioned_at=web01.now))}
    words = map(get_provisioning_fields, (before, web01.record))
    numbers = [web01.request("records", items=[{**item, "seen": seen}], reason="x") for seen in words]
    web01.reconcile_plan()
    assert [web01.outcome(each).partition(":")[0] for each in numbers] == ["refused", "recorded web01 as pending"]


# Commits


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("ends", [False, True])
def test_late_evidence_of_an_earlier_image_undoes_nothing(web01: OrderBench, off: timedelta, ends: bool) -> None:
    first = web01.install(often="OnImageChange", evidence="Fetched")
    token = web01.token
    second = web01.install(often="OnImageChange", evidence="Fetched", image_name="flatcar-2")
    web01.fetch_boot(second)
    if ends:
        web01.data(web01.token)
    before = web01.record
    web01.wait(minutes=5).fetch_boot(first, off)
    web01.data(token, off)
    assert (web01.record, web01.reconcile_plan().phase) == (before, Phase.DISK)


@pytest.mark.parametrize("off", OFF)
def test_an_image_that_is_wanted_again_is_a_new_offer(web01: OrderBench, off: timedelta) -> None:
    """The same plan, byte for byte, is published again. Earlier evidence for it proves nothing about the new offer."""
    first = web01.install(often="OnImageChange")
    web01.fetch_boot(web01.install(often="OnImageChange", image_name="flatcar-2"))
    again = web01.wait(minutes=5).install(often="OnImageChange")
    assert (summarize_plan(again), again.digest) == (INSTALL_PENDING, first.digest)
    web01.fetch_boot(again, off)
    assert web01.wait(minutes=5).reconcile_plan().phase is Phase.DISK
    assert web01.record is not None and [each.key for each in web01.record.attempts] == ["provision/1/flatcar-1"]


# A boot of web01 that a commit about the policy finds: read the fetch, the start, the report of a failure, the intent.
def leave_served(web01: OrderBench, plan: BootPlan) -> None:
    web01.fetch_boot(plan)


def leave_started(web01: OrderBench, plan: BootPlan) -> None:
    web01.fetch_boot(plan)
    web01.data(web01.token)


def leave_failed(web01: OrderBench, plan: BootPlan) -> None:
    web01.fetch_boot(plan)
    web01.report_failure(web01.token)


def leave_intent(web01: OrderBench, plan: BootPlan) -> None:
    known: dict[str, Any] = {"server": "web01", "path": ENTRY, "client": "10.0.0.7", "at": web01.now}
    web01.observe(Observation(**known, digest=plan.digest, offer=plan.offer, intent="1" * 32))
    web01.reconcile_plan()


BEGINNINGS = (leave_served, leave_started, leave_failed, leave_intent)
SWITCHES = [("Once", "OnImageChange"), ("OnImageChange", "Once")]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda each: each.__name__)
@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_a_commit_that_changes_network_boot_during_an_installation_offers_no_second_one(
    web01: OrderBench, before: str, after: str, begin: Callable[[OrderBench, BootPlan], None], number: int
) -> None:
    if number == 2:
        install_first(web01)
    begin(web01, web01.install(often=before, provision=number))
    for often in (after, before, after):
        assert web01.wait(hours=3).install(often=often, provision=number).phase is Phase.DISK
    assert summarize_plan(web01.install(often=after, provision=number + 1)) == INSTALL_PENDING
    web01.install(often=after, provision=number)
    assert summarize_plan(web01.set_pending()) == INSTALL_PENDING


def install_first(web01: OrderBench) -> None:
    web01.fetch_boot(web01.install(often="OnImageChange"))
    web01.report_success(web01.token)
    assert web01.step == "Provisioned"
    web01.wait(minutes=5)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("evidence", ["Reported", "Fetched"])
@pytest.mark.parametrize("boots", [1, 2])
@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_an_installation_goes_on_although_a_commit_changed_network_boot(
    web01: OrderBench, before: str, after: str, boots: int, evidence: str, number: int
) -> None:
    if number == 2:
        install_first(web01)
    known: dict[str, Any] = {"evidence": evidence, "boots": boots, "provision": number}
    plan = web01.fetch_boot(web01.install(often=before, **known))
    token = web01.token
    assert web01.install(often=after, **known).offer == plan.offer  # the endpoint serves no other boot for a minute
    for _ in range(boots - 1):
        plan = web01.wait(minutes=2).reconcile_plan()
        assert summarize_plan(plan) == INSTALL_PENDING
        web01.fetch_boot(plan)
    assert web01.token == token
    assert web01.data(token).phase is Phase.DISK
    if evidence == "Reported":
        assert web01.step == "Started"
        assert web01.report_success(token).phase is Phase.DISK
    assert (web01.step, web01.record and web01.record.image) == ("Provisioned", "flatcar-1")
    for often in (after, before):
        assert summarize_plan(web01.wait(hours=3).install(often=often, **known)) == (Phase.DISK, Cause.PROVISIONED)
    assert summarize_plan(web01.install(often="OnImageChange", image_name="flatcar-2", **known)) == INSTALL_PENDING


@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_another_attempt_goes_on_although_a_commit_changed_network_boot(
    web01: OrderBench, before: str, after: str
) -> None:
    web01.fetch_boot(web01.install(often=before, attempts=2))
    first = web01.token
    web01.install(often=after, attempts=2)
    again = web01.report_failure(first)
    assert summarize_plan(again) == INSTALL_PENDING
    web01.fetch_boot(again)
    assert web01.record is not None
    assert [(each.number, each.step) for each in web01.record.attempts] == [(1, "Failed"), (2, "Attempted")]
    assert web01.wait(minutes=2).install(often=before, attempts=2).phase is Phase.DISK
    web01.report_failure(web01.token)
    assert summarize_plan(web01.install(often=after, attempts=2)) == (Phase.DISK, Cause.FAILED)


@pytest.mark.parametrize("seconds", [10, 300])  # within the time in which gitboot serves the boot again, and later
@pytest.mark.parametrize("begin", BEGINNINGS[:3], ids=lambda each: each.__name__)
@pytest.mark.parametrize(("number", "lowered"), [(3, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
def test_a_lower_number_withdraws_the_remaining_boots_and_attempts_of_an_installation(
    web01: OrderBench,
    often: str,
    number: int,
    lowered: int,
    begin: Callable[[OrderBench, BootPlan], None],
    seconds: int,
) -> None:
    known: dict[str, Any] = {"often": often, "boots": 2, "attempts": 3}
    begin(web01, web01.install(provision=number, **known))
    web01.now += timedelta(seconds=seconds)
    for _ in range(2):
        assert web01.install(provision=lowered, **known).phase is Phase.DISK
        web01.wait(hours=3)
    assert summarize_plan(web01.install(provision=number + 1, **known)) == INSTALL_PENDING


@pytest.mark.parametrize("evidence", ["Reported", "Fetched"])  # Reported until the commit, or always Fetched
@pytest.mark.parametrize("lowered", [1, 0])
@pytest.mark.parametrize("before", ["Once", "OnImageChange"])
@pytest.mark.parametrize("after", ["Once", "OnImageChange"])
def test_a_lower_number_does_not_change_the_number_that_is_recorded_as_installed(
    web01: OrderBench, after: str, before: str, lowered: int, evidence: str
) -> None:
    web01.fetch_boot(web01.install(often=before, provision=5, evidence=evidence))
    token = web01.token
    if evidence == "Reported":
        web01.data(token)
    web01.wait(minutes=5).install(often=after, provision=lowered, evidence="Fetched")
    if evidence == "Fetched":
        web01.data(token)
    assert (web01.step, web01.record and web01.record.provision) == ("Provisioned", 5)
    installed = next(each.message for each in web01.events if each.type == "Provisioned")
    assert installed.startswith("web01: installed provision 5 with BootImage/flatcar-1")
    for number in (5, 6):
        planned = web01.wait(minutes=5).install(often=after, provision=number)
        assert summarize_plan(planned) == ((Phase.DISK, Cause.PROVISIONED) if number == 5 else INSTALL_PENDING)


@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("lowered", [1, 0])
@pytest.mark.parametrize("together", [True, False])
def test_a_commit_that_lowers_the_number_installs_no_other_image(
    web01: OrderBench, together: bool, lowered: int, begin: Callable[[OrderBench, BootPlan], None]
) -> None:
    begin(web01, web01.install(often="OnImageChange", image_name="flatcar-2", provision=3))
    web01.wait(minutes=5)
    if not together:
        assert summarize_plan(web01.install(often="OnImageChange", provision=3)) == INSTALL_PENDING
    for _ in range(3):
        assert web01.install(often="OnImageChange", provision=lowered).phase is Phase.DISK
        web01.wait(hours=3)
    assert [each.message.rpartition(" raise ")[2] for each in web01.events if each.type == "InstallWithdrawn"] == [
        "`provision` above 3"
    ]
    assert summarize_plan(web01.install(often="OnImageChange", provision=4)) == INSTALL_PENDING


@pytest.mark.parametrize("seconds", [10, 300])
@pytest.mark.parametrize("begin", BEGINNINGS[:2], ids=lambda each: each.__name__)
def test_a_commit_that_changes_the_image_during_an_attempt_withdraws_its_remaining_boots(
    web01: OrderBench, begin: Callable[[OrderBench, BootPlan], None], seconds: int
) -> None:
    begin(web01, web01.install(boots=2, attempts=2))
    token = web01.token
    web01.now += timedelta(seconds=seconds)
    assert web01.install(boots=2, attempts=2, image_name="flatcar-2").phase is Phase.DISK
    assert summarize_plan(web01.report_failure(token)) == INSTALL_PENDING  # with the new image


@pytest.mark.parametrize("evidence", ["Reported", "Fetched"])
def test_an_attempt_that_an_earlier_version_recorded_installs_the_image_in_its_key(
    web01: OrderBench, evidence: str
) -> None:
    web01.fetch_boot(web01.install(often="OnImageChange", boots=2))
    if evidence == "Fetched":
        web01.wait(minutes=2)
        web01.fetch_boot(web01.reconcile_plan())
        web01.data(web01.token)
    record = require_value(web01.record)
    attempts = tuple(structs.replace(each, image=None) for each in record.attempts)
    fields = make_record_fields(replace(record, attempts=attempts))
    web01.request("records", items=[{"uuid": make_uuid("web01"), "server": "web01", **fields}], reason="of 0.1.0")
    web01.reconcile_plan()
    planned = web01.wait(minutes=5).install(boots=2, image_name="flatcar-2", evidence=evidence)
    assert planned.phase is Phase.DISK
    image_name = "flatcar-1" if evidence == "Fetched" else None
    assert require_value(web01.record).image == image_name


@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
def test_the_record_names_the_image_that_was_fetched_although_a_commit_changed_it_and_the_evidence(
    web01: OrderBench, often: str
) -> None:
    leave_started(web01, web01.install())
    plan = web01.wait(minutes=5).install(often=often, image_name="flatcar-2", evidence="Fetched")
    if often == "Once":
        assert (web01.step, web01.record and web01.record.image) == ("Provisioned", "flatcar-1")
    else:
        assert summarize_plan(plan) == INSTALL_PENDING


@pytest.mark.parametrize("begin", BEGINNINGS[:3], ids=lambda each: each.__name__)
@pytest.mark.parametrize("before", ["Once", "OnImageChange"])
def test_on_image_change_installs_another_image_although_the_first_installation_has_not_ended(
    web01: OrderBench, before: str, begin: Callable[[OrderBench, BootPlan], None]
) -> None:
    begin(web01, web01.install(often=before))
    token = web01.token
    corrected = web01.wait(minutes=5).install(often="OnImageChange", image_name="flatcar-2")
    assert summarize_plan(corrected) == INSTALL_PENDING
    web01.fetch_boot(corrected)
    web01.report_success(token)
    assert web01.step == "Attempted"
    web01.report_success(web01.token)
    assert (web01.step, web01.record and web01.record.image) == ("Provisioned", "flatcar-2")
    assert web01.wait(hours=3).reconcile_plan().phase is Phase.DISK


@pytest.mark.parametrize("together", [True, False])
def test_an_image_that_was_served_before_the_report_of_the_previous_one_is_served_once(
    web01: OrderBench, together: bool
) -> None:
    """flatcar-1 reports when flatcar-2 is wanted. Before flatcar-1 is published again, the machine gets flatcar-2."""
    first, token = web01.install(often="OnImageChange"), web01.token
    web01.fetch_boot(first)
    web01.data(token)
    second = web01.install(often="OnImageChange", image_name="flatcar-2")
    web01.wait(minutes=5)
    assert token is not None
    web01.observe(
        Observation(
            server="web01", path=PROVISIONED.build_path(MAC, token), digest=token, client="10.0.0.7", at=web01.now
        )
    )
    if not together:
        web01.reconcile_plan()
    web01.fetch_boot(second)
    assert web01.told("Provisioned") == ["Provisioned"]
    assert web01.step == "Attempted"
    assert summarize_plan(web01.wait(minutes=2).reconcile_plan()) == (Phase.DISK, Cause.ATTEMPTED)
    assert summarize_plan(web01.data(web01.token)) == (Phase.DISK, Cause.STARTED)
    web01.report_success(web01.token)
    assert web01.step == "Provisioned"


def test_each_commit_and_each_operator_request_has_its_own_decision_number_and_nothing_else_has(
    web01: OrderBench,
) -> None:
    web01.install()
    assert web01.snapshot.facts.sequence == 2  # it has a commit, and begins
    for _ in range(3):
        web01.wait(hours=1).reconcile_plan()
    assert web01.snapshot.facts.sequence == 2
    web01.set_pending()
    assert (web01.snapshot.facts.sequence, web01.record and web01.record.offered) == (3, 3)


def test_decision_numbers_continue_after_a_restart(tmp_path: Path) -> None:
    with OrderBench(tmp_path) as web01:
        first = web01.install()
        again = web01.set_pending()
    with OrderBench(tmp_path, initial=None) as web01:
        assert web01.install().digest == again.digest
        web01.fetch_boot(first, timedelta(hours=1))
        assert web01.step == "Pending"
        assert web01.set_pending().digest not in (first.digest, again.digest)


# Attempts


@pytest.mark.parametrize("off", OFF)
def test_a_failure_that_is_reported_twice_ends_one_attempt(web01: OrderBench, off: timedelta) -> None:
    web01.fetch_boot(web01.install(attempts=3))
    first = web01.token
    web01.fetch_boot(web01.report_failure(first))
    assert web01.token != first
    web01.wait(minutes=5).report_failure(first, off)
    assert web01.record is not None
    assert [(each.number, each.step) for each in web01.record.attempts] == [(1, "Failed"), (2, "Attempted")]
    assert web01.reconcile_plan().phase is Phase.DISK
    web01.report_failure(web01.token, off)
    assert [each.step for each in web01.record.attempts] == ["Failed", "Failed"]


@pytest.mark.parametrize("off", OFF)
def test_data_of_a_failed_attempt_starts_no_other_attempt(web01: OrderBench, off: timedelta) -> None:
    web01.fetch_boot(web01.install(attempts=3))
    first = web01.token
    web01.fetch_boot(web01.report_failure(first))
    web01.data(first, off)
    assert web01.step == "Attempted"
    web01.data(web01.token, off)
    assert web01.step == "Started"


def test_user_data_names_the_attempt_to_which_it_belongs(web01: OrderBench) -> None:
    plan, common = web01.install(attempts=2), web01.token
    decision = web01.decisions.servers["web01"]
    assert (common, plan.token, plan.data) == (decision.token, None, common)
    web01.fetch_boot(plan)
    again = web01.report_failure(common)
    assert common is not None and again.token is not None and again.token == again.data != common
    files = dict(render(decision, again))
    text = files[DATA.build_path(MAC, again.token, "user-data")].content.decode()
    assert (text.count(again.token), common in text) == (2, False)
    assert any(f"/data/{again.token}/" in each for each in (again.boot.kernel_arguments if again.boot else ()))
    published = web01.rendered["web01"].published.paths
    assert {FAILED.build_path(MAC, each) for each in (common, again.token)} <= published.keys()


@pytest.mark.parametrize("text", [ENCODED, "#cloud-config\nscript: {{ (urls.failed | b64encode) | data_url }}\n"])
def test_a_report_of_the_previous_installation_does_not_count_if_user_data_has_the_token_in_base64(
    web01: OrderBench, text: str
) -> None:
    web01.fetch_boot(web01.install(text=text))
    common = web01.token
    web01.report_success(common)
    plan = web01.set_pending()
    assert common is not None and web01.token != common
    files = dict(render(web01.decisions.servers["web01"], plan))
    user_data = files[DATA.build_path(MAC, web01.token or "", "user-data")].content.decode()
    assert replace_token(user_data, web01.token or "", common) != user_data
    assert replace_token(user_data, common, "0" * 64) == user_data
    web01.fetch_boot(plan)
    web01.wait(minutes=5).report_failure(common)
    web01.report_success(common)
    assert web01.step == "Attempted"
    web01.report_success(web01.token)
    assert web01.step == "Provisioned"


def test_an_installer_whose_user_data_hides_the_token_reports_with_the_common_token(web01: OrderBench) -> None:
    hidden = "#cloud-config\nscript: {{ ((urls.provisioned | b64encode) | b64encode) | b64encode }}\n"
    web01.fetch_boot(web01.install(text=hidden))
    common = web01.token
    web01.report_success(common)
    web01.fetch_boot(web01.set_pending())
    assert web01.token != common
    web01.wait(minutes=5).report_success(common)
    assert web01.step == "Provisioned"


# Maintenances


@pytest.mark.parametrize("off", OFF)
def test_late_evidence_of_a_wipe_before_an_installation_leaves_its_record_verified(
    web01: OrderBench, off: timedelta
) -> None:
    wipe = maintenance("wipe", "20T11:00 20T12:30", "networkBoot: Once", boots="web")
    wiping = web01.install(wipe)
    assert wiping.phase is Phase.MAINTENANCE
    web01.now = NOON + timedelta(minutes=31)
    again = web01.set_pending()
    assert summarize_plan(again) == INSTALL_PENDING
    web01.fetch_boot(again)
    web01.report_success(web01.token)
    web01.fetch(wiping, path=ENTRY, at=NOON + off)
    web01.reconcile_plan()
    assert (web01.step, web01.record and web01.record.overwritten_by) == ("Provisioned", None)
    assert web01.record is not None and web01.record.runs["wipe"].run == 1  # and is not made again


# Fetches and reports


def test_lines_of_one_writer_are_read_in_their_written_order(tmp_path: Path) -> None:
    """A clock that goes back between the lines changes nothing."""
    writer = SpoolFile(tmp_path)
    instants = [NOON, NOON - timedelta(hours=1), NOON + timedelta(seconds=5), NOON - timedelta(hours=2)]
    for number, instant in enumerate(instants):
        writer.append(encode_line(make_observation_at(instant, f"boot/{number}")))
    other = SpoolFile(tmp_path)
    other.append(encode_line(make_observation_at(NOON + timedelta(seconds=2), "boot/other")))
    found = [each.path for each in read_new_lines(tmp_path, {}).observations]
    assert found == ["boot/0", "boot/1", "boot/other", "boot/2", "boot/3"]
    writer.close()
    other.close()


def make_observation_at(instant: datetime, path: str) -> Observation:
    return Observation(server="web01", path=path, digest=Digest("d" * 64), client="10.0.0.7", at=instant)


def test_the_date_of_a_mirror_tells_which_of_two_equal_offers_was_sent(web01: OrderBench) -> None:
    """web01 was sent flatcar-1, then another; the log of the first comes when flatcar-1 is offered once more."""
    web01.install(often="OnImageChange")
    early = int(web01.now.timestamp())
    path = next(path for path in web01.rendered["web01"].evidence_digests if path.endswith("boot.ipxe"))
    web01.wait(minutes=5)
    web01.fetch_boot(web01.install(often="OnImageChange", image_name="flatcar-2"))
    web01.wait(minutes=5).install(often="OnImageChange")
    web01.observe(Observation(server="", path=path, modified=early, client="10.0.0.7", at=web01.now))
    assert summarize_plan(web01.reconcile_plan()) == INSTALL_PENDING
    late = Observation(server="", path=path, modified=int(web01.now.timestamp()), client="10.0.0.7", at=NOON)
    web01.observe(late)
    assert web01.wait(minutes=5).reconcile_plan().phase is Phase.DISK


def test_an_offer_has_the_number_of_the_newest_decision_and_a_lower_one_than_a_later_request(web01: OrderBench) -> None:
    numbers = []
    for plan in (web01.install(), web01.set_pending()):
        offer = require_value(server_tables.find_offer(web01.ledger, plan.digest))
        numbers.append(offer.number)
    assert numbers == [2, 3]
    assert web01.record is not None and web01.record.offered == 3


# A property of every run of an instance: records and plans from changes equal those computed from all


RUNS = settings(LAWS, max_examples=count_examples(20))
STEPS = (0, 0, 1, 30, 24 * 60, 7 * 24 * 60)  # minutes: windows open and end in between


@RUNS
@given(first=fleets(), others=st.lists(fleets(), min_size=2, max_size=3), seed=st.integers(0, 2**32))
def test_records_and_plans_are_the_same_for_every_way_to_reach_them(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw, history = random.Random(seed), History({})
    evaluator = Evaluator(history.snapshot)
    run, tree, base = IncrementalRun(first.at), tree_of(first), None
    for number, other in enumerate((first, *others * 2)):
        edited = draw.choice(EDITS)(tree, other, draw) if number else tree
        revision = history.commit(edited)
        found = evaluate_or_problems(evaluator, revision, base.revision if base is not None else None)
        if isinstance(found, CommitPair):
            base, tree = assemble_commit(base, revision, map(round_trip, build_report(found))).commit, edited
        assert base is not None
        run.reconcile(base)
        run.add_records(base, other, draw)
        run.at += timedelta(minutes=draw.choice(STEPS))
        run.stop = draw.choice((StopScope.NONE, StopScope.NONE, StopScope.NONE, StopScope.WRITING, StopScope.ALL))
        run.reconcile(base)


class IncrementalRun:
    """An instance's knowledge and plans, each brought up to date by what changed, and compared with the whole."""

    def __init__(self, at: datetime) -> None:
        self.at, self.stop = at, StopScope.NONE
        self._knowledge, self._plans = LedgerSnapshot(facts=Facts(identity="mine")), Plans()
        self._unplanned: set[SystemUuid] = set()  # servers with new facts since

    def reconcile(self, commit: Commit) -> None:
        learnt = self._learn(commit)
        self._knowledge = learnt.snapshot
        unplanned = {*self._unplanned, *learnt.changed_machines}
        changed = self._names(unplanned, commit) | find_changed_servers(self._plans.commit, commit)
        self._plans, _ = replan(self._plans, commit, self._knowledge, changed, self.at, self.stop)
        whole, _ = replan(Plans(), commit, self._knowledge, (), self.at, self.stop)
        assert list_contents(self._plans) == list_contents(whole)
        self._unplanned.clear()

    def _learn(self, commit: Commit) -> BatchResult:
        settled = self._plans.commit if self._knowledge.recorded_commit is not None else None
        adopt = Request(1, self.at, "ada", BeginWithRecords.kind, {"how": "adopt"})
        batch = Batch(
            commit=commit,
            requests=(adopt,) if self._knowledge.recorded_commit is None else (),
            changed_servers=find_changed_servers(settled, commit),
            removed_machines=find_departed_machines(settled, commit),
            installing=self._plans.begun.keys() | self._names(self._unplanned, commit),
        )
        learnt = apply_batch(self._knowledge, batch, self.at)
        servers, records = commit.decisions.servers, self._knowledge.records
        at_one = {name for name, each in servers.items() if find_open_attempt(each, records.get(each.uuid)) is not None}
        wider = structs.replace(
            batch, changed_servers={*batch.changed_servers, *at_one}, removed_machines=None, installing=()
        )
        assert collect_facts(learnt) == collect_facts(apply_batch(self._knowledge, wider, self.at))
        return learnt

    def add_records(self, commit: Commit, other: GeneratedFleet, draw: random.Random) -> None:
        """Another record is come to for some machines: of another fleet, or of an installation that has begun."""
        servers = list(commit.decisions.servers.values())
        for decision in draw.sample(servers, draw.randint(0, min(2, len(servers)))):
            drawn = draw.choice([record for record in other.records.values() if record is not None] or [Record()])
            record = begin_installation(decision, drawn, self.at) if draw.random() < 0.8 else drawn
            self._knowledge = structs.replace(
                self._knowledge, records={**self._knowledge.records, decision.uuid: record}
            )
            self._unplanned.add(decision.uuid)

    def _names(self, machines: set[SystemUuid], commit: Commit) -> frozenset[str]:
        return frozenset(commit.machines[uuid].name for uuid in machines if uuid in commit.machines)


def collect_facts(learnt: BatchResult) -> tuple[object, ...]:
    """Return all facts, and the new ones among them."""
    news = {name: value for name, value in vars(learnt.update).items() if name not in ("overrides", "power_records")}
    records = [(each.new, each.unstored) for each in (learnt.update.overrides, learnt.update.power_records)]
    return learnt.snapshot, learnt.changed_machines, learnt.update.due_now, learnt.update.judged_machines, news, records


def begin_installation(decision: Decision, record: Record, at: datetime) -> Record:
    """At an installation of which all that fetches can show was seen."""
    if decision.policy is None or decision.policy.boot is None:
        return record
    record, seen = Record(), StepEvidence(at, "boot/v1/boot/m/boot.ipxe", "10.0.0.7")
    attempt = InstallAttempt(
        key=provision_key(decision.policy, record),
        boots=(seen,) * decision.policy.boot.boots,
        started=seen,
        started_boot=decision.policy.boot.boots,
    )
    return replace(record, attempts=(attempt,))


def list_contents(plans: Plans) -> tuple[object, ...]:
    """Return the whole content of plans without the time of their files."""
    commit = require_value(plans.commit)

    def files(state: ServerState) -> dict[str, bytes]:
        return {path: file.content for path, file in render_server(state, commit.decisions, NO_KEYS).files.items()}

    return (
        [
            (name, state.decision, state.record, state.details, state.stop, state.plan, state.later, files(state))
            for name, state in plans.servers.items()
        ],
        (plans.commit, plans.stop, plans.left, plans.transitions.instants, plans.transitions.next_due),
        (plans.counts, plans.versions, plans.needs, plans.needs_for_ipxe),
        (plans.unknown, plans.unseen, plans.consumed, plans.lost),
        (list(plans.begun.items()), list(plans.given.items())),
    )
