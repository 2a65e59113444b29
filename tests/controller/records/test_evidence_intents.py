"""Intents to serve a boot and their outcomes: the records are the same whenever the instance reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import install_step
from gitboot.resolve.provisioning_record import Record, make_record_fields, parse_record
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.helpers.cases import require_value
from tests.helpers.fleets import SEED, maintenance, make_uuid, policy, server
from tests.helpers.instance_in_process import Bench, build_begin_request, summarize_plan

INSTALL = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:6], policy("web", often="Once"))
TO_INSTALL = (Phase.NETWORK, Cause.PENDING)
UNKNOWN = (Phase.DISK, Cause.OUTCOME)
SERVED, WITHHELD = Outcome.SERVED, Outcome.WITHHELD


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        bench.decide(*INSTALL)
        yield bench


def repair(run: int) -> str:
    return maintenance("repair", "20T11:00 20T14:00", f"networkBoot: Once, run: {run}")


def write_line(bench: Bench, plan: BootPlan | None, outcome: Outcome | None = None, intent: str = "one") -> None:
    """Let an endpoint write an intent to serve the boot script of a plan, or an outcome."""
    assert plan is not None
    path = "boot/v1/boot/m/boot.ipxe"
    seen = Observation(server="web01", path=path, digest=plan.digest, client="10.0.0.7", at=bench.now, offer=plan.offer)
    bench.observe(replace(seen, intent=intent, outcome=outcome))


def test_an_intent_without_an_outcome_uses_the_boot_up_after_a_minute_and_is_no_evidence(bench: Bench) -> None:
    write_line(bench, bench.plan())
    assert summarize_plan(bench.plan()) == TO_INSTALL, "a retry gets the same boot"
    assert bench.condition("InstallsCompleted") == (
        True,
        "Completed",
        "no installation is waiting for evidence of completion",
    )
    assert summarize_plan(bench.wait(seconds=59).plan()) == TO_INSTALL
    assert summarize_plan(bench.wait(seconds=1).plan()) == UNKNOWN
    assert install_step(bench.decisions.servers["web01"], bench.record) == "Pending"
    status, reason, message = bench.condition("InstallsCompleted") or (None, "", "")
    assert (status, reason) == (False, "OutcomeUnknown")
    assert message == (
        "gitboot does not know whether web01 booted the installer: 10.0.0.7 requested boot/v1/boot/m/boot.ipxe at "
        "2026-11-20T12:00:00Z, but the endpoint did not record whether the transfer completed. gitboot will not "
        "install it again automatically"
    )
    assert bench.told("Attempted", "Provisioned") == []
    assert summarize_plan(bench.wait(days=2).plan()) == UNKNOWN, "no time gives it back"


@pytest.mark.parametrize("waits", [0, 30, 60, 3600])
@pytest.mark.parametrize(("outcome", "is_installed"), [(SERVED, True), (WITHHELD, False)])
def test_an_outcome_counts_at_any_time(bench: Bench, outcome: Outcome, is_installed: bool, waits: int) -> None:
    write_line(bench, plan := bench.plan())
    bench.plan()
    bench.wait(seconds=waits).plan()
    write_line(bench, plan, outcome)
    bench.plan()
    assert summarize_plan(bench.wait(minutes=2).plan()) == (
        (Phase.DISK, Cause.PROVISIONED) if is_installed else TO_INSTALL
    )
    assert bench.record is not None and all(each.is_withheld for each in bench.record.unknown_serves)
    assert (bench.condition("InstallsCompleted") or ())[:2] == (True, "Served" if is_installed else "Completed")


@pytest.mark.parametrize("outcome", [SERVED, WITHHELD])
def test_the_record_does_not_depend_on_when_the_log_is_read(tmp_path: Path, outcome: Outcome) -> None:
    found: list[Record | None] = []
    for number, order in enumerate([*permutations((None, outcome)), *permutations((None, outcome))]):
        (tmp_path / str(number)).mkdir()
        with Bench(tmp_path / str(number)) as bench:
            plan = bench.decide(*INSTALL).plan()
            for each in order:
                write_line(bench, plan, each)
                if number < 2:
                    bench.plan()
            bench.plan()
            found.append(replace(bench.record or Record(), decision=None))
    assert found == found[:1] * 4


def test_a_withheld_intent_returns_no_boot_of_another_intent(bench: Bench) -> None:
    write_line(bench, plan := bench.plan(), intent="one")
    write_line(bench, plan, intent="two")
    bench.plan()
    write_line(bench, plan, WITHHELD, intent="two")
    assert summarize_plan(bench.wait(minutes=2).plan()) == UNKNOWN


def test_an_outcome_withheld_before_its_intent_counts_only_for_that_intent(bench: Bench) -> None:
    write_line(bench, plan := bench.plan(), WITHHELD, intent="one")
    bench.plan()
    write_line(bench, plan, intent="one")
    bench.plan()
    assert summarize_plan(bench.wait(minutes=2).plan()) == TO_INSTALL
    write_line(bench, bench.plan(), intent="two")
    bench.plan()
    assert summarize_plan(bench.wait(minutes=2).plan()) == UNKNOWN


@pytest.mark.parametrize("intents", [100])
def test_many_intents_that_were_withheld_before_they_came_do_not_fill_the_record(bench: Bench, intents: int) -> None:
    plan = bench.plan()
    for number in range(intents):
        write_line(bench, plan, WITHHELD, intent=str(number))
    bench.plan()
    assert bench.record is not None and 0 < len(bench.record.unknown_serves) < intents


@pytest.mark.parametrize("intents", [100])
def test_a_client_with_many_intents_does_not_fill_the_record_and_returns_no_boot(bench: Bench, intents: int) -> None:
    plan = bench.plan()
    for number in range(intents):
        write_line(bench, plan, intent=str(number))
    bench.plan()
    assert bench.record is not None and 0 < len(bench.record.unknown_serves) < intents
    for number in range(intents - 1):
        write_line(bench, plan, WITHHELD, intent=str(number))
    assert summarize_plan(bench.wait(minutes=2).plan()) == UNKNOWN, "the last one was perhaps served"


def test_an_operator_offers_a_boot_of_unknown_outcome_again(bench: Bench) -> None:
    write_line(bench, before := bench.plan())
    assert summarize_plan(bench.wait(minutes=2).plan()) == UNKNOWN
    item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record(provision=0))}
    bench.request("records", items=[item], reason="it booted its disk")
    plan = bench.plan()
    assert summarize_plan(plan) == TO_INSTALL
    assert plan is not None and before is not None and plan.offered > before.offered, "an endpoint serves it anew"
    write_line(bench, before, intent="late")
    assert summarize_plan(bench.wait(minutes=2).plan()) == TO_INSTALL, "what was offered before says nothing any more"


def test_an_unknown_outcome_survives_a_restart_and_an_export_of_the_records(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        write_line(bench, bench.decide(*INSTALL).plan())
        bench.plan()
        record = bench.record
    assert record is not None and len(record.unknown_serves) == 1
    assert parse_record(make_record_fields(record)) == record
    (tmp_path / "other").mkdir()
    with Bench(tmp_path) as bench, Bench(tmp_path / "other", initial=None) as other:
        for each in (bench, other):
            each.decide(*INSTALL)
            each.wait(minutes=2)
        assert summarize_plan(bench.plan()) == UNKNOWN
        other.plan()
        other.request(BeginWithRecords.kind, **build_begin_request({SystemUuid(make_uuid("web01")): record}))
        assert summarize_plan(other.plan()) == UNKNOWN


def test_a_maintenance_with_an_unknown_outcome_is_used_up_until_its_run_is_raised(bench: Bench) -> None:
    write_line(bench, plan := bench.decide(*INSTALL, repair(1)).plan())
    assert summarize_plan(bench.wait(seconds=59).plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    assert summarize_plan(bench.wait(seconds=1).plan()) == (Phase.DISK, Cause.MAINTENANCE_OUTCOME)
    assert (bench.record or Record()).runs == {}
    status, reason, message = bench.condition("MaintenanceRunsStarted") or (None, "", "")
    assert (status, reason) == (False, "OutcomeUnknown")
    assert "web01 got the boot files for Maintenance/repair: 10.0.0.7 requested boot/v1/boot/m/boot.ipxe at" in message
    write_line(bench, plan, WITHHELD)
    assert summarize_plan(bench.plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    write_line(bench, plan, intent="two")
    assert summarize_plan(bench.wait(minutes=2).plan()) == (Phase.DISK, Cause.MAINTENANCE_OUTCOME)
    assert summarize_plan(bench.decide(*INSTALL, repair(2)).plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)


def test_an_intent_without_an_offer_uses_no_boot_up(bench: Bench) -> None:
    """User data and secrets that were not received: their intent has no offer."""
    plan = require_value(bench.plan())
    path = "boot/v1/boot/m/data/user-data"
    seen = Observation(server="web01", path=path, digest=plan.digest, client="10.0.0.7", at=bench.now, intent="one")
    bench.observe(seen)
    bench.plan()
    assert summarize_plan(bench.wait(minutes=2).plan()) == TO_INSTALL
    assert bench.record is not None and bench.record.unknown_serves == ()


def test_a_served_maintenance_counts_as_booted(bench: Bench) -> None:
    write_line(bench, plan := bench.decide(*INSTALL, repair(1)).plan())
    bench.plan()
    write_line(bench, plan, SERVED)
    bench.plan()
    assert bench.record is not None and list(bench.record.runs) == ["repair"] and bench.record.unknown_serves == ()
