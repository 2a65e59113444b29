"""Lives of a hall whose maintenances switch machines: kills, lost responses, people at the power button, moved windows.

The judge is what the machines were asked to do and what they did, and never the ledger of gitboot: no machine is
switched twice for one reason, none outside its window or in POST, and never are more machines down than allowed.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gitboot.bmc.power_steps import SHUTDOWN_TIMEOUT
from gitboot.jsonio import format_instant
from tests.controller.bmcs.test_desired_state_power import RACKS, Hall
from tests.helpers.fleets import maintenance, make_uuid
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, SUPERMICRO_X10
from tests.helpers.redfish_double.server import Drop, Status

_log = logging.getLogger(__name__)

PROFILES = (GENERIC, GENERIC, GENERIC, IDRAC9, SUPERMICRO_X10)
SECONDS = (1, 6, 31, 31, 61, 130, 301, 1801)
STEPS = 30


@dataclass(frozen=True, kw_only=True)
class RollingRestart:
    start: datetime
    end: datetime
    run: int = 1
    power: str = "Restart"
    often: str = "Once"
    limit: str = "1"
    per: str | None = None

    def document(self) -> str:
        window = f"window: {{start: '{format_instant(self.start)}', end: '{format_instant(self.end)}'}}"
        per = f", maxUnavailablePer: {self.per}" if self.per else ""
        spec = (
            f"{window}, networkBoot: {self.often}, run: {self.run}, power: {self.power}, maxUnavailable: {self.limit}"
        )
        return maintenance("roll", "", spec + per, boots="repair" if self.often == "Once" else "restart")


@dataclass
class PowerRequest:
    """A power request of gitboot to a machine."""

    at: datetime
    roll: RollingRestart
    kind: str
    obeyed: bool  # whether the machine obeys


class Blade(Machine):
    def __init__(self, name: str, *, hall: WaveLife, **facts: Any) -> None:
        super().__init__(name, **facts)
        self.hall = hall

    def execute_reset(self, kind: str) -> None:
        self.hall.check_request(self, kind)
        super().execute_reset(kind)


@dataclass
class WaveLife(Hall):
    """Four machines, the instance that looks after them, and what is wrong with what it did."""

    names: tuple[str, ...] = tuple(RACKS)
    rng: Random = field(kw_only=True)
    counts: Counter[str] = field(default_factory=Counter)
    power_requests: dict[str, list[PowerRequest]] = field(default_factory=lambda: {name: [] for name in RACKS})
    away: set[str] = field(default_factory=set)  # reset by gitboot, and not come up since
    suspended: bool = False
    faults: list[str] = field(default_factory=list)
    steps_taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = self.rng.choice(PROFILES)
        super().__post_init__()
        often = self.rng.choice(("Once", "Once", "Always"))
        self.roll = RollingRestart(start=self.now, end=self.now + timedelta(hours=2), often=often)
        self.push()
        self.reconcile()

    def make_machine(self, name: str) -> Machine:
        return Blade(name, uuid=make_uuid(name), profile=self.profile, hall=self)

    @property
    def now(self) -> datetime:
        return self.machines["web01"].now

    def push(self, **changes: Any) -> None:
        self.roll = replace(self.roll, **changes)
        self.decide(self.roll.document())

    def reconcile(self, times: int = 1) -> None:
        for _ in range(times):
            self.bench.reconcile()

    def wait(self, seconds: float) -> None:
        """Let time pass, second by second while a machine is away, because the time of its return counts."""
        for _ in range(int(seconds)):
            for machine in self.machines.values():
                machine.advance(1)
            self.away -= {name for name in self.away if self.machines[name].state == "OSRunning"}
        self.bench.now = self.now

    def check_request(self, machine: Blade, kind: str) -> None:
        """Check a power request of gitboot against the commit."""
        obeyed = machine.obeys or not kind.startswith("Graceful")
        before = self.power_requests[machine.name]
        self.counts[f"asked for {kind}"] += 1
        roll = self.roll
        if self.suspended:
            self.report_fault(machine, f"{kind}, and it is suspended")
        if not roll.start <= self.now < roll.end:
            self.report_fault(machine, f"{kind} outside the window")
        if machine.in_post and machine.profile.boot_progress:
            self.report_fault(machine, f"{kind} in POST")
        if kind != "On" and machine.power == "Off":
            self.report_fault(machine, f"{kind}, and it is off")
        same = [each for each in before if _is_same(each.roll, roll)]
        if any(each.obeyed for each in same):
            self.report_fault(machine, f"{kind} once more for run {roll.run}: {same}")
        if any(not each.obeyed and self.now - each.at < SHUTDOWN_TIMEOUT for each in same):
            self.report_fault(machine, f"{kind} before its system had time to shut down")
        before.append(PowerRequest(self.now, roll, kind, obeyed))
        if obeyed:
            self.away.add(machine.name)
            groups = Counter(RACKS[name] if roll.per else "" for name in self.away)
            down = groups[RACKS[machine.name] if roll.per else ""]
            if down > int(roll.limit):
                self.report_fault(machine, f"{kind}, and {sorted(self.away)} are down")

    def report_fault(self, machine: Machine, what: str) -> None:
        self.faults.append(f"{self.now} {machine.name}: {what}")

    # Events

    def run_steps(self) -> None:
        steps = [self.pass_time] * 6 + [self.press_power_button, self.change_maintenance, self.change_maintenance]
        steps += [self.lose_response] * 2 + [self.kill_gitboot] * 2 + [self.suspend, self.toggle_hang]
        steps += [self.boot_machine]
        for _ in range(STEPS):
            step = self.rng.choice(steps)
            self.steps_taken.append(step.__name__)
            step()
            self.reconcile(self.rng.choice((0, 1, 1, 2)))

    def pass_time(self) -> None:
        for _ in range(self.rng.choice((1, 1, 3))):
            self.wait(self.rng.choice(SECONDS))
            self.reconcile(2)

    def press_power_button(self) -> None:
        name = self.rng.choice(self.names)
        self.machines[name].reset(self.rng.choice(("ForceRestart", "ForceOff", "On")))

    def change_maintenance(self) -> None:
        hour = timedelta(hours=1)
        change: dict[str, Any] = self.rng.choice(
            (
                {"run": self.roll.run + 1},
                {"limit": "2"},
                {"limit": "1"},
                {"per": "rack"},
                {"per": None},
                {"power": "GracefulRestart"},
                {"power": "Restart"},
                {"end": self.roll.end + hour},
                {"start": self.now - hour, "end": self.now + timedelta(seconds=61)},
                {"start": self.now, "end": self.now + hour * 2},
                {"start": self.roll.end, "end": self.roll.end + hour},
            )
        )
        if (change.get("limit") == "1" or "per" in change) and self.away:
            return  # the machine is away, by the previous limit
        self.push(**change)
        self.reconcile()

    def lose_response(self) -> None:
        fault = self.rng.choice((Drop(applied=True), Drop(applied=False), Status(status=500), Status(status=400)))
        self.bmcs[self.rng.choice(self.names)].fault(fault, on="RESET", times=1)

    def kill_gitboot(self) -> None:
        """Kill gitboot, perhaps in the middle of a request, so that it gets no response."""
        if self.rng.random() < 0.7:
            for bmc in self.bmcs.values():
                bmc.fault(Drop(applied=self.rng.random() < 0.5), on="RESET", times=1)
            self.reconcile(self.rng.choice((1, 2)))
        self.restart()
        for bmc in self.bmcs.values():
            bmc.heal()

    def suspend(self) -> None:
        if self.suspended:
            self.bench.request("resume")
            self.suspended = False
            self.reconcile()
            return
        until = self.now + timedelta(days=9)
        self.bench.request("suspend", reason="freeze", until=until.isoformat())
        self.reconcile()
        self.suspended = True

    def toggle_hang(self) -> None:
        machine = self.machines[self.rng.choice(self.names)]
        machine.obeys = not machine.obeys

    def boot_machine(self) -> None:
        name = self.rng.choice(self.names)
        state = self.bench.servers.get(name)
        if self.roll.often == "Once" and name not in self.away and state is not None and state.plan is not None:
            self.bench.fetch(state.plan)


def _is_same(one: RollingRestart, other: RollingRestart) -> bool:
    """Return whether a machine that was switched for one reason must not be switched for the other."""
    return one.run >= other.run and other.start < one.end


def test_no_random_life_of_a_hall_switches_a_machine_wrongly(
    tmp_path: Path, lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.ledger.store.os.fdatasync", lambda _: None)  # no power cut is tested
    counts: Counter[str] = Counter()
    for number in range(lives):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            life = WaveLife(folder, stack, rng=Random(number))
            life.run_steps()
            assert life.faults == [], "\n".join([f"life {number}", *life.steps_taken, *life.faults])
            counts += life.counts
    _log.info("%d lives: %s", lives, dict(sorted(counts.items())))
    assert counts["asked for ForceRestart"]
