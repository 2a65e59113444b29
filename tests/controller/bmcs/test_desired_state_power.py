"""Power changes by policies and maintenances: each machine is switched once; with machines that boot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.artifacts.availability import ArtifactWatch
from gitboot.bmc.power_steps import PowerRecordState
from gitboot.controller.bmcs.power_waves import update_power_waves
from gitboot.controller.maintenance_hooks import HookClient
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_plan import Cause
from tests.helpers.fleets import fleet, image, maintenance, make_uuid, policy, profile, server, store_credentials
from tests.helpers.instance_in_process import Bench
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, SUPERMICRO_X10, Profile
from tests.helpers.redfish_double.server import Drop, RedfishServer, Service

NAMES = ("web01", "web02", "web03")
RACKS = {"web01": "r1", "web02": "r1", "web03": "r2", "web04": "r2"}
WAVES = "networkBoot: Once, power: Restart"


@dataclass
class Hall:
    """Machines with their BMCs, and the instance that looks after them, on one clock."""

    folder: Path
    stack: ExitStack
    profile: Profile = GENERIC
    names: tuple[str, ...] = NAMES
    machines: dict[str, Machine] = field(default_factory=dict)
    bmcs: dict[str, RedfishServer] = field(default_factory=dict)
    hooks: HookClient | None = None
    artifacts: ArtifactWatch | None = None

    def __post_init__(self) -> None:
        store_credentials(self.folder, password="secret")
        for name in self.names:
            self.machines[name] = self.make_machine(name)
            service = Service(self.machines[name], credentials={"root": "secret"})
            self.bmcs[name] = self.stack.enter_context(RedfishServer(service))
        self.bench = self.open_bench(initial="fresh")
        self.bench.now = self.machines[self.names[0]].now

    def make_machine(self, name: str) -> Machine:
        return Machine(name, uuid=make_uuid(name), profile=self.profile)

    def open_bench(self, **given: Any) -> Bench:
        return self.stack.enter_context(
            Bench(self.folder, credentials=self.folder, hooks=self.hooks, artifacts=self.artifacts, **given)
        )

    def restart(self) -> None:
        """Another process on the same ledger, with the same commit."""
        before = self.bench
        before.close()
        self.bench = self.open_bench(initial=None)
        self.bench.now, self.bench.commits.newest = before.now, before.commits.newest

    def decide(
        self,
        *more: str,
        spec: str = "",
        often: str = "Never",
        provision: int = 0,
        files: Mapping[str, str] | None = None,
        sites: str = "",
    ) -> None:
        def bmc(name: str) -> str:
            return f"bmc: {{address: '{self.bmcs[name].url}', system: {self.machines[name].path}, credentials: rack}}"

        self.bench.decide(
            fleet(f"baseURL: 'http://boot.test'{sites and f', sites: [{sites}]'}"),
            *(
                server(name, f"role: web, rack: {RACKS[name]}, host: {name}", f"provision: {provision}, {bmc(name)}")
                for name in self.names
            ),
            image("flatcar-1"),
            image("memtest-7", "writesDisk: false"),
            profile("web", "flatcar-1"),
            profile("repair", "memtest-7"),
            profile("restart", "", method="Disk"),
            policy("web", often=often, spec=spec),
            *more,
            files=files,
        )

    def run(self, seconds: float = 0, step: float = 31) -> None:
        """Let time pass and reconcile twice at intervals, so that results of BMCs take effect at once."""
        ends = seconds
        while True:
            self.bench.reconcile()
            self.bench.reconcile()
            if ends <= 0:
                return
            self.wait(min(step, ends))
            ends -= step

    def wait(self, seconds: float) -> None:
        for machine in self.machines.values():
            machine.advance(seconds)
        self.bench.now = self.machines[self.names[0]].now

    def fetch_boot(self, name: str) -> None:
        """Let the machine fetch the boot script of its plan."""
        self.bench.fetch(self.bench.servers[name].plan)

    def resets_after(self, seconds: float = 0, step: float = 31) -> list[int]:
        """Let time pass as `run` does, and return how often each machine was reset."""
        self.run(seconds, step)
        return self.resets

    def condition(self, type: str) -> tuple[object, ...]:
        return (self.bench.condition(type) or ())[:2]

    def cause(self, name: str) -> Cause | None:
        plan = self.bench.servers[name].plan
        return plan.cause if plan is not None else None

    @property
    def resets(self) -> list[int]:
        return [machine.resets for machine in self.machines.values()]

    def states(self, name: str) -> dict[str, PowerRecordState]:
        return {each.reason: each.state for each in self.bench.snapshot.list_power_records(SystemUuid(make_uuid(name)))}


@pytest.fixture
def hall(tmp_path: Path, stack: ExitStack) -> Hall:
    return Hall(tmp_path, stack)


def make_check(spec: str = "", window: str = "20T11:00 20T18:00", *, boots: str = "repair") -> str:
    return maintenance("check", window, f"{WAVES}{', ' if spec else ''}{spec}", boots=boots)


def test_a_maintenance_restarts_its_servers_one_after_another(hall: Hall) -> None:
    hall.decide(make_check())
    assert (hall.resets_after(), hall.states("web01")) == ([1, 0, 0], {"power/check/1": PowerRecordState.REQUESTED})
    assert hall.resets_after(62) == [1, 0, 0]  # it is in POST
    assert (hall.resets_after(62), hall.machines["web01"].boots[-1].target) == ([1, 1, 0], "Pxe")
    assert hall.states("web01") == {"power/check/1": PowerRecordState.BACK}
    assert hall.resets_after(600, step=301) == [1, 1, 1]


@pytest.mark.parametrize(
    ("case", "document", "resets"),
    [
        ("as many as may be down", make_check("maxUnavailable: 67%"), [1, 1, 0]),
        ("each group has its own limit", make_check("maxUnavailablePer: rack"), [1, 0, 1]),
        ("no policy wants power", maintenance("check", "20T11:00 20T18:00", "networkBoot: Once"), [0, 0, 0]),
    ],
)
def test_a_maintenance_restarts_as_many_servers_as_may_be_down(
    hall: Hall, case: str, document: str, resets: list[int]
) -> None:
    hall.decide(document)
    assert hall.resets_after() == resets, case


def test_no_machine_is_restarted_before_or_after_the_window(hall: Hall) -> None:
    hall.decide(make_check(window="20T12:10 20T12:11"))
    assert (hall.resets_after(540, step=301), hall.resets_after(93)) == ([0, 0, 0], [1, 0, 0])
    assert hall.resets_after(3600, step=301) == [1, 0, 0]


def test_a_suspended_instance_restarts_no_machine(hall: Hall) -> None:
    hall.decide()
    hall.run()
    until = (hall.bench.now.replace(hour=14)).isoformat()
    hall.bench.request("suspend", reason="freeze", until=until)
    hall.run()
    hall.decide(make_check())
    hall.run(300, step=301)
    hall.bench.request("resume")
    assert hall.resets_after(31) == [1, 0, 0]
    hall.bench.request("suspend", reason="freeze", until=until)
    assert hall.resets_after(1200, step=301) == [1, 0, 0]


def remove_ledger_name(hall: Hall) -> str | None:
    """Let the Fleet name no ledger from the next commit on, and return the ledger that it named."""
    named, hall.bench.commits.ledger = hall.bench.commits.ledger, None
    return named


def test_an_instance_that_the_fleet_does_not_name_switches_no_machine(hall: Hall) -> None:
    """Without a named ledger, another instance may switch the same machines."""
    powered = policy("on", spec="priority: 9, power: On, override: None", often="Once")
    named = remove_ledger_name(hall)
    for machine in hall.machines.values():
        machine.power = "Off"
    hall.decide(powered, provision=1)
    hall.run(300, step=301)
    assert (hall.bench.condition("CommitAccepted") or ())[:1] == (True,)
    assert {machine.power for machine in hall.machines.values()} == {"Off"}
    assert hall.condition("BmcsSet") == (False, "LedgerNotNamed")
    hall.bench.commits.ledger = named
    hall.decide(powered, provision=1)
    hall.run(300, step=301)
    assert "Off" not in {machine.power for machine in hall.machines.values()}
    assert hall.bench.condition("BmcsSet") is None


def test_a_maintenance_restarts_no_machine_if_the_fleet_names_no_ledger(hall: Hall) -> None:
    named = remove_ledger_name(hall)
    hall.decide(make_check())
    assert hall.resets_after(300, step=301) == [0, 0, 0]
    assert hall.condition("BmcsSet") == (False, "LedgerNotNamed")
    hall.bench.commits.ledger = named
    hall.decide(make_check())
    assert hall.resets_after() == [1, 0, 0]


def test_a_restarted_machine_is_observed_to_return_even_if_the_fleet_no_longer_names_the_ledger(hall: Hall) -> None:
    hall.decide(make_check())
    assert hall.resets_after() == [1, 0, 0]
    named = remove_ledger_name(hall)
    hall.decide(make_check())
    assert (hall.resets_after(300, step=31), hall.states("web01")) == (
        [1, 0, 0],
        {"power/check/1": PowerRecordState.BACK},
    )
    hall.run(3600, step=301)
    hall.bench.commits.ledger = named
    hall.decide(make_check())
    assert hall.resets_after() == [1, 1, 0]
    assert "WaveStopped" not in [event.type for event in hall.bench.events]


def test_a_machine_that_does_not_return_is_reported_even_if_the_fleet_no_longer_names_the_ledger(hall: Hall) -> None:
    hall.machines["web01"].post_s = 10**6
    hall.decide(make_check())
    hall.run()
    remove_ledger_name(hall)
    hall.decide(make_check())
    assert hall.resets_after(3600, step=301) == [1, 0, 0]
    assert hall.condition("PowerWavesRunning") == (False, "Stopped")


def test_an_ignored_graceful_restart_is_not_forced_if_the_fleet_no_longer_names_the_ledger(hall: Hall) -> None:
    graceful = make_check("power: GracefulRestart").replace("power: Restart, ", "")
    for machine in hall.machines.values():
        machine.obeys = False
    hall.decide(graceful)
    hall.run()
    assert (hall.bench.condition("CommitAccepted") or ())[:1] == (True,)
    before = [[each for each in machine.requests if each.method == "POST"] for machine in hall.machines.values()]
    assert any(before)
    remove_ledger_name(hall)
    hall.decide(graceful)
    hall.run(3600, step=301)
    assert [
        [each for each in machine.requests if each.method == "POST"] for machine in hall.machines.values()
    ] == before


def test_a_finished_restart_does_not_wait_for_a_ledger_name(hall: Hall) -> None:
    job = make_check("maxUnavailable: 100%", boots="restart")
    hall.decide(job)
    assert hall.resets_after(600, step=60) == [1, 1, 1]
    remove_ledger_name(hall)
    hall.decide(job)
    hall.run()
    assert hall.bench.condition("BmcsSet") is None


def test_a_wave_stops_when_a_machine_does_not_come_back(hall: Hall) -> None:
    hall.machines["web01"].post_s = 10**6
    hall.decide(make_check("maxUnavailable: 2"))
    hall.machines["web03"].reset("ForceOff")  # is not restarted, and counts as down
    assert hall.resets_after(31) == [1, 0, 0]
    hall.run(1750, step=301)
    assert hall.condition("PowerWavesRunning") == (True, "Running")
    hall.run(62)
    status, reason, message = hall.bench.condition("PowerWavesRunning") or (None, "", "")
    assert (status, reason) == (False, "Stopped") and "its power for Maintenance/check" in message
    assert hall.bench.told("WaveStopped") == ["WaveStopped"]
    hall.machines["web03"].reset("On")
    hall.run(600, step=301)
    assert hall.resets[1] == 0
    hall.bench.request("back", uuid=make_uuid("web01"), server="web01", reason="looked")
    hall.run()
    assert hall.resets[1] == 1 and (hall.bench.condition("PowerWavesRunning") or ())[:1] == (True,)


def test_a_machine_that_is_away_for_an_earlier_run_counts_as_down_for_the_next(hall: Hall) -> None:
    hall.machines["web01"].post_s = 300
    hall.decide(make_check())
    hall.run(31)
    hall.decide(make_check("run: 2"))
    assert hall.resets_after(62) == [1, 0, 0]
    hall.run(900, step=301)
    assert hall.resets[0] == 2


def test_while_installs_are_stopped_no_machine_is_restarted(hall: Hall) -> None:
    hall.bench.request("stop", reason="smoke", everything=False)
    hall.decide(maintenance("roll", "20T11:00 20T18:00", "power: Restart", boots="restart"))
    assert hall.resets_after(62) == [0, 0, 0]
    hall.bench.request("start")
    assert hall.resets_after(31) == [1, 0, 0]


def test_a_machine_that_was_not_read_yet_counts_as_down(hall: Hall) -> None:
    hall.decide(make_check())
    hall.bench.reconcile()  # all are read, and their overrides set
    hall.bench.collect()  # and the result is known
    schedule, web01, web02 = hall.bench.schedule, *(SystemUuid(make_uuid(name)) for name in ("web01", "web02"))
    turn = partial(update_power_waves, snapshot=hall.bench.snapshot, at=hall.bench.now, timeout=timedelta(minutes=30))
    assert turn(schedule).in_wave == {web01}
    unread = structs.replace(schedule.bmcs[web02], outcome=None)
    assert turn(schedule.with_bmc_states({web02: unread})).in_wave == frozenset()
    under_way = structs.replace(schedule.bmcs[web01], may_be_resetting=True)
    assert turn(schedule.with_bmc_states({web01: under_way})).in_wave == frozenset()


def test_a_window_that_was_extended_or_moved_is_the_same_run(hall: Hall) -> None:
    rolling = "power: Restart, maxUnavailable: 3"
    hall.decide(maintenance("roll", "20T11:00 20T12:10", rolling, boots="restart"))
    assert hall.resets_after(60) == [1, 1, 1]
    hall.decide(maintenance("roll", "20T11:00 20T13:00", rolling, boots="restart"))
    hall.run(60)
    hall.decide(maintenance("roll", "20T12:30 20T14:00", rolling, boots="restart"))
    assert hall.resets_after(1900, step=300) == [1, 1, 1]


def test_a_new_process_continues_after_the_first_was_killed(hall: Hall) -> None:
    hall.decide(make_check())
    hall.bmcs["web01"].fault(Drop(applied=True), on="RESET", times=1)
    hall.bench.reconcile()
    hall.bench.reconcile()
    assert hall.resets == [1, 0, 0]
    for _ in range(4):
        hall.restart()
        hall.run()
    assert (hall.resets, hall.resets_after(400, step=61)) == ([1, 0, 0], [1, 1, 1])
    assert hall.resets_after(3600, step=301) == [1, 1, 1]


def test_a_run_is_used_once_even_if_its_window_changes(hall: Hall) -> None:
    hall.decide(make_check("maxUnavailable: 3"))
    assert hall.resets_after(200) == [1, 1, 1]
    for name in NAMES:
        assert hall.bench.servers[name].plan is not None
    hall.decide(make_check("maxUnavailable: 3, reason: longer", window="20T11:00 20T20:00"))
    hall.run(200)
    hall.decide(make_check("maxUnavailable: 3", window="20T11:30 20T14:00"))
    assert hall.resets_after(200) == [1, 1, 1]
    hall.decide(make_check("maxUnavailable: 3, run: 2", window="20T11:30 20T14:00"))
    assert hall.resets_after(200) == [2, 2, 2]


def test_a_later_window_restarts_the_machines_again(hall: Hall) -> None:
    spec = "networkBoot: Always, power: Restart, maxUnavailable: 3"
    hall.decide(maintenance("check", "20T11:00 20T12:10", spec, boots="restart"))
    assert hall.resets_after(700, step=301) == [1, 1, 1]
    hall.decide(maintenance("check", "20T13:00 20T14:00", spec, boots="restart"))
    assert hall.resets_after(3600, step=301) == [2, 2, 2]


def test_a_rolling_restart_boots_the_disk(hall: Hall) -> None:
    hall.decide(maintenance("roll", "20T11:00 20T18:00", "power: GracefulRestart", boots="restart"))
    assert (hall.resets_after(60), hall.resets_after(500)) == ([1, 0, 0], [1, 1, 1])
    assert {machine.boots[-1].target for machine in hall.machines.values()} == {"None"}


def test_if_a_bmc_shows_no_progress_the_maintenance_run_shows_which_machine_returned(
    tmp_path: Path, stack: ExitStack
) -> None:
    hall = Hall(tmp_path, stack, profile=SUPERMICRO_X10)
    hall.decide(make_check())
    assert hall.resets_after(300, step=301) == [1, 0, 0]
    hall.fetch_boot("web01")
    assert hall.resets_after(40) == [1, 1, 0]


def test_a_machine_that_is_off_is_switched_on_for_its_first_boot(hall: Hall) -> None:
    for name in ("web01", "web02"):
        hall.machines[name].reset("ForceOff")
    hall.decide(spec="power: On", often="Once", provision=1)
    assert hall.resets_after(31) == [1, 1, 0]
    assert all(machine.writes for machine in hall.machines.values())
    hall.run(200)
    assert hall.machines["web01"].boots[-1].target == "Pxe"
    hall.machines["web01"].reset("ForceOff")  # somebody switches it off
    assert hall.resets_after(1200, step=301) == [1, 1, 0]


def test_before_power_on_the_firmware_gets_the_uri_of_the_loader(tmp_path: Path, stack: ExitStack) -> None:
    hall = Hall(tmp_path, stack, profile=IDRAC9, names=("web01",))
    machine = hall.machines["web01"]
    machine.reset("ForceOff")
    loader = image("flatcar-2", artifacts="kernel, initrd, loader")
    by_loader = profile("fast", "flatcar-2", "httpBoot: loader", method="UefiHttp")
    hall.decide(
        loader, by_loader, policy("fast", spec="priority: 9, power: On", boots="fast", often="Once"), provision=1
    )
    hall.run(31)
    assert hall.bench.condition("HttpBoot") is not None
    hall.run(200)
    assert [boot.uri for boot in machine.boots] == ["http://boot.test/assets/flatcar-2/loader"]
    (event,) = (event for event in hall.bench.events if event.type == "FirmwareUriKept")
    assert (event.facts["server"], event.facts["uri"]) == ("web01", machine.boots[0].uri)


def test_no_machine_is_switched_on_for_a_finished_installation(hall: Hall) -> None:
    hall.machines["web01"].reset("ForceOff")
    hall.decide(spec="power: On", often="Once", provision=0)
    assert hall.resets_after(300, step=301) == [0, 0, 0]


def test_machines_without_verified_records_are_not_switched(tmp_path: Path, stack: ExitStack) -> None:
    hall = Hall(tmp_path, stack)
    hall.bench.close()
    hall.bench = hall.open_bench(initial=None, doubt="RestoredLedger")
    hall.bench.now = hall.machines["web01"].now
    hall.decide(make_check("maxUnavailable: 3"), spec="power: On", often="Once", provision=1)
    assert hall.resets_after(300, step=301) == [0, 0, 0]


# Waiting until it is off

WAIT_FOR_OFF = "waitFor: PowerOff"


@pytest.fixture
def waiting_hall(hall: Hall) -> Hall:
    """Machines that run, and wait to be off for their installation."""
    hall.decide(spec=WAIT_FOR_OFF, often="Once", provision=1)
    hall.run()
    return hall


def test_a_running_machine_is_not_offered_its_installation(hall: Hall) -> None:
    hall.decide(spec=WAIT_FOR_OFF, often="Once", provision=1)
    hall.run(301, step=301)
    assert [state.plan.cause for state in hall.bench.servers.values() if state.plan is not None] == [
        Cause.WAITING_FOR_POWER_OFF
    ] * 3
    assert all(not machine.writes for machine in hall.machines.values())
    hall.machines["web01"].run_through()  # a restart is not one
    hall.bench.now = hall.machines["web01"].now
    hall.run(31)
    assert hall.machines["web01"].boots[-1].target == "None"


def test_a_machine_that_was_off_is_installed_at_its_next_boot_and_no_other_machine_is(waiting_hall: Hall) -> None:
    waiting_hall.machines["web01"].reset("ForceOff")
    waiting_hall.run(31)
    assert waiting_hall.bench.told("PoweredOff") == ["PoweredOff"]
    waiting_hall.restart()
    waiting_hall.run(31)
    waiting_hall.machines["web01"].reset("On")
    waiting_hall.run(130)
    assert [machine.boots[-1:] != [] for machine in waiting_hall.machines.values()] == [True, False, False]
    assert waiting_hall.machines["web01"].boots[-1].target == "Pxe"


def test_with_power_on_a_machine_is_switched_on_as_soon_as_it_was_seen_off(hall: Hall) -> None:
    hall.decide(spec=f"{WAIT_FOR_OFF}, power: On", often="Once", provision=1)
    hall.run()
    hall.machines["web01"].reset("ForceOff")
    assert hall.resets_after(93) == [1, 0, 0]
    hall.run(93)
    assert hall.machines["web01"].boots[-1].target == "Pxe"


def test_the_override_is_never_set_while_the_machine_runs(waiting_hall: Hall) -> None:
    waiting_hall.machines["web01"].reset("ForceOff")
    waiting_hall.bench.reconcile()
    waiting_hall.wait(31)
    waiting_hall.bench.collect()
    waiting_hall.machines["web01"].reset("On")  # before it was set
    waiting_hall.run(301, step=61)
    assert (waiting_hall.machines["web01"].writes, waiting_hall.machines["web01"].boots[-1].target) == ([], "None")


def test_a_raised_provision_number_waits_for_power_off_again(waiting_hall: Hall) -> None:
    waiting_hall.machines["web01"].reset("ForceOff")
    waiting_hall.run(31)
    assert waiting_hall.cause("web01") is Cause.PENDING
    waiting_hall.machines["web01"].reset("On")
    waiting_hall.wait(200)
    waiting_hall.decide(spec=WAIT_FOR_OFF, often="Once", provision=2)
    waiting_hall.run(62)
    assert waiting_hall.cause("web01") is Cause.WAITING_FOR_POWER_OFF


def test_another_machine_that_is_off_does_not_release_the_installation(waiting_hall: Hall) -> None:
    web01 = waiting_hall.machines["web01"]
    web01.uuid, web01.serial = make_uuid("another"), "CZ29200XYZ"
    web01.reset("ForceOff")
    waiting_hall.run(62)
    assert waiting_hall.cause("web01") is Cause.WAITING_FOR_POWER_OFF
