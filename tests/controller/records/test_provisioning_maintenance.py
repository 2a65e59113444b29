"""The steps of a maintenance's one boot: attempted, started; and what lasts too long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.endpoint.metrics import of_status
from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest
from gitboot.render.paths import DATA, IGNITION
from gitboot.resolve.explanation import explain
from gitboot.resolve.provisioning_record import exported, imported
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.helpers.cases import present
from tests.helpers.fleets import fleet, image, mac_of, maintenance, policy, profile, repository, server, uuid_of
from tests.helpers.instance_in_process import NOON, Bench

MAC = mac_of("web01").replace(":", "-")
ENTRY = f"boot/v1/boot/{MAC}/boot.ipxe"
WINDOW = "20T11:00 20T16:00"
GIVEN = (Phase.MAINTENANCE, Cause.MAINTENANCE)


class Maintained(Bench):
    """web01, whose firmware is updated once by a system that asks for user data."""

    def maintain(self, *, data: bool = True, run: int = 1, window: str = WINDOW, uki: bool = False) -> BootPlan:
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
        return self.planned()

    def planned(self) -> BootPlan:
        return present(self.reconcile())

    def entry(self, plan: BootPlan) -> BootPlan:
        self.fetch(plan, path=ENTRY)
        return self.planned()

    def data(self, token: Digest | None, path: str | None = None) -> BootPlan:
        assert token is not None
        path = path or DATA.of(MAC, token, "user-data")
        self.observe(Observation(server="web01", path=path, digest=token, client="10.0.0.7", at=self.now))
        return self.planned()

    @property
    def shown(self) -> tuple[Phase, Cause]:
        plan = self.planned()
        return plan.phase, plan.cause

    @property
    def runs(self) -> dict[str, int]:
        return dict(self.instance.reconciler.status.runs)

    @property
    def paths(self) -> set[str]:
        """That the endpoint answers now."""
        found = self.rendered["web01"].published.paths.items()
        return {path for path, turns in found if any(turn.content is not None for turn in turns[:1])}


@pytest.fixture
def web01(tmp_path: Path) -> Iterator[Maintained]:
    with Maintained(tmp_path) as bench:
        yield bench


def test_a_maintenances_boot_is_attempted_and_then_started(web01: Maintained) -> None:
    plan = web01.maintain()
    assert (web01.shown, web01.runs) == (GIVEN, {})
    web01.entry(plan)
    assert web01.shown == GIVEN  # the minute of grace
    web01.wait(minutes=2)
    assert (web01.shown, web01.runs) == ((Phase.DISK, Cause.MAINTENANCE_GIVEN), {"Attempted": 1})
    web01.data(plan.data)
    assert (web01.shown, web01.runs) == ((Phase.DISK, Cause.MAINTENANCE_STARTED), {"Started": 1})
    assert web01.record is not None
    made = web01.record.runs["bios"]
    assert made.given is not None and (made.given.at, made.given.path, made.given.client) == (NOON, ENTRY, "10.0.0.7")
    assert made.started is not None and made.started.at == NOON + timedelta(minutes=2)
    assert web01.told("MaintenanceBooted", "MaintenanceStarted") == ["MaintenanceBooted", "MaintenanceStarted"]
    assert imported(exported(web01.knowledge.records), "x") == web01.knowledge.records


def test_a_start_ends_the_minute_in_which_the_boot_is_given_again(web01: Maintained) -> None:
    plan = web01.maintain()
    web01.entry(plan)
    web01.wait(seconds=20).data(plan.data)
    assert web01.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)


def test_data_alone_says_that_the_boot_was_given(web01: Maintained) -> None:
    """A configuration that was fetched by TFTP is seen by nobody."""
    web01.data(web01.maintain().data)
    assert web01.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)
    assert web01.told("MaintenanceBooted", "MaintenanceStarted") == ["MaintenanceBooted", "MaintenanceStarted"]


def test_what_asks_for_no_data_is_made_once_its_boot_was_given(web01: Maintained) -> None:
    web01.entry(web01.maintain(data=False))
    web01.wait(hours=1)
    assert (web01.shown, web01.runs) == ((Phase.DISK, Cause.MAINTENANCE_DONE), {"Made": 1})
    assert web01.condition("RunsStarted") is None


def test_a_direct_boot_starts_by_its_uuid(web01: Maintained) -> None:
    plan = web01.maintain(uki=True)
    web01.data(plan.digest, IGNITION.of(uuid_of("web01")))
    assert web01.shown == (Phase.DISK, Cause.MAINTENANCE_STARTED)
    assert web01.record is not None and web01.record.runs["bios"].given == web01.record.runs["bios"].started


def test_a_run_that_does_not_start_is_a_condition_that_names_what_was_fetched_when(web01: Maintained) -> None:
    plan = web01.maintain()
    web01.entry(plan)
    web01.wait(minutes=29, seconds=59).planned()
    assert (web01.condition("RunsStarted"), web01.due) == (None, NOON + timedelta(minutes=30))
    web01.wait(seconds=1).planned()
    status, reason, message = web01.condition("RunsStarted") or (None, "", "")
    assert (status, reason) == (False, "Overdue")
    assert f"web01 (Maintenance/bios: 10.0.0.7 fetched {ENTRY} at 2026-11-20T12:00:00Z)" in message
    assert web01.told("MaintenanceOverdue") == ["MaintenanceOverdue"]
    web01.data(plan.data)
    assert web01.condition("RunsStarted") is None


def test_nothing_is_overdue_when_its_window_is_over(web01: Maintained) -> None:
    web01.entry(web01.maintain(window="20T11:00 20T13:00"))
    web01.wait(minutes=45).planned()
    assert web01.condition("RunsStarted") is not None
    web01.wait(minutes=15).planned()
    assert (web01.condition("RunsStarted"), web01.runs) == (None, {})


def test_a_higher_run_begins_anew_and_its_data_is_its_own(web01: Maintained) -> None:
    first = web01.maintain()
    web01.entry(first)
    second = web01.wait(minutes=40).maintain(run=2)
    assert (web01.shown, second.data != first.data) == (GIVEN, True)
    web01.data(first.data)  # of the system of the first, which is slow
    assert web01.shown == GIVEN
    web01.entry(second)
    assert web01.wait(minutes=2).shown == (Phase.DISK, Cause.MAINTENANCE_GIVEN)


def test_user_data_lies_where_only_this_run_asks_for_it_and_for_two_hours(web01: Maintained) -> None:
    plan = web01.maintain()
    assert plan.data is not None and plan.boot is not None
    path = DATA.of(MAC, plan.data, "user-data")
    assert path in web01.paths
    assert any(f"/data/{plan.data}/" in each for each in plan.boot.kernel_arguments)
    web01.entry(plan)
    web01.wait(minutes=119).planned()
    assert path in web01.paths
    web01.wait(minutes=1).planned()
    assert path not in web01.paths


def test_what_was_seen_of_a_run_is_explained_and_counted(web01: Maintained) -> None:
    plan = web01.maintain()
    found = repository(*web01.documents, files=web01.files)
    decision = web01.decisions.servers["web01"]

    def said() -> list[str]:
        reasons = explain(found, decision, web01.planned(), web01.record).reasons
        return [f"{each.value} {each.why}" for each in reasons if each.field == "run"]

    assert said() == []
    web01.entry(plan)
    assert said() == [f"1 attempted: 10.0.0.7 fetched {ENTRY} at 2026-11-20T12:00:00Z"]
    web01.data(plan.data)
    assert [each.partition(": ")[0] for each in said()] == ["1 started"]
    metrics = {metric.name: metric for metric in of_status(web01.instance.reconciler.status.facts())}
    (sample,) = metrics["gitboot_maintenance_runs"].samples
    assert (sample.labels, sample.value) == ({"step": "Started"}, 1)
