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
class Roll:
    start: datetime
    end: datetime
    run: int = 1
    power: str = "Restart"
    often: str = "Once"
    most: str = "1"
    per: str | None = None

    def document(self) -> str:
        window = f"window: {{start: '{format_instant(self.start)}', end: '{format_instant(self.end)}'}}"
        per = f", maxUnavailablePer: {self.per}" if self.per else ""
        spec = f"{window}, networkBoot: {self.often}, run: {self.run}, power: {self.power}, maxUnavailable: {self.most}"
        return maintenance("roll", "", spec + per, boots="repair" if self.often == "Once" else "restart")


@dataclass
class Switched:
    """A power request of gitboot to a machine."""

    at: datetime
    roll: Roll
    kind: str
    works: bool  # whether the machine obeys


class Blade(Machine):
    def __init__(self, name: str, *, hall: WaveLife, **facts: Any) -> None:
        super().__init__(name, **facts)
        self.hall = hall

    def execute_reset(self, kind: str) -> None:
        self.hall.is_asked(self, kind)
        super().execute_reset(kind)


@dataclass
class WaveLife(Hall):
    """Four machines, the instance that looks after them, and what is wrong with what it did."""

    names: tuple[str, ...] = tuple(RACKS)
    draws: Random = field(kw_only=True)
    counts: Counter[str] = field(default_factory=Counter)
    asked: dict[str, list[Switched]] = field(default_factory=lambda: {name: [] for name in RACKS})
    away: set[str] = field(default_factory=set)  # reset by gitboot, and not come up since
    suspended: bool = False
    wrong: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = self.draws.choice(PROFILES)
        super().__post_init__()
        often = self.draws.choice(("Once", "Once", "Always"))
        self.roll = Roll(start=self.now, end=self.now + timedelta(hours=2), often=often)
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

    def is_asked(self, machine: Blade, kind: str) -> None:
        """Check a power request of gitboot against the commit."""
        works = machine.obeys or not kind.startswith("Graceful")
        before = self.asked[machine.name]
        self.counts[f"asked for {kind}"] += 1
        roll = self.roll
        if self.suspended:
            self.say(machine, f"{kind}, and it is suspended")
        if not roll.start <= self.now < roll.end:
            self.say(machine, f"{kind} outside the window")
        if machine.in_post and machine.profile.boot_progress:
            self.say(machine, f"{kind} in POST")
        if kind != "On" and machine.power == "Off":
            self.say(machine, f"{kind}, and it is off")
        same = [each for each in before if _is_same(each.roll, roll)]
        if any(each.works for each in same):
            self.say(machine, f"{kind} once more for run {roll.run}: {same}")
        if any(not each.works and self.now - each.at < SHUTDOWN_TIMEOUT for each in same):
            self.say(machine, f"{kind} before its system had time to shut down")
        before.append(Switched(self.now, roll, kind, works))
        if works:
            self.away.add(machine.name)
            groups = Counter(RACKS[name] if roll.per else "" for name in self.away)
            down = groups[RACKS[machine.name] if roll.per else ""]
            if down > int(roll.most):
                self.say(machine, f"{kind}, and {sorted(self.away)} are down")

    def say(self, machine: Machine, what: str) -> None:
        self.wrong.append(f"{self.now} {machine.name}: {what}")

    # Events

    def live(self) -> None:
        steps = [self.time_passes] * 6 + [self.a_power_button_is_pressed, self.git_changes, self.git_changes]
        steps += [self.its_answer_is_lost] * 2 + [self.it_is_killed] * 2 + [self.it_is_suspended, self.systems_hang]
        steps += [self.a_run_is_made]
        for _ in range(STEPS):
            step = self.draws.choice(steps)
            self.happened.append(step.__name__)
            step()
            self.reconcile(self.draws.choice((0, 1, 1, 2)))

    def time_passes(self) -> None:
        for _ in range(self.draws.choice((1, 1, 3))):
            self.wait(self.draws.choice(SECONDS))
            self.reconcile(2)

    def a_power_button_is_pressed(self) -> None:
        name = self.draws.choice(self.names)
        self.machines[name].reset(self.draws.choice(("ForceRestart", "ForceOff", "On")))

    def git_changes(self) -> None:
        hour = timedelta(hours=1)
        change: dict[str, Any] = self.draws.choice(
            (
                {"run": self.roll.run + 1},
                {"most": "2"},
                {"most": "1"},
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
        if (change.get("most") == "1" or "per" in change) and self.away:
            return  # the machine is away, by the previous limit
        self.push(**change)
        self.reconcile()

    def its_answer_is_lost(self) -> None:
        fault = self.draws.choice((Drop(applied=True), Drop(applied=False), Status(status=500), Status(status=400)))
        self.bmcs[self.draws.choice(self.names)].fault(fault, on="RESET", times=1)

    def it_is_killed(self) -> None:
        """Kill gitboot, perhaps in the middle of a request, so that it gets no response."""
        if self.draws.random() < 0.7:
            for bmc in self.bmcs.values():
                bmc.fault(Drop(applied=self.draws.random() < 0.5), on="RESET", times=1)
            self.reconcile(self.draws.choice((1, 2)))
        self.restart()
        for bmc in self.bmcs.values():
            bmc.heal()

    def it_is_suspended(self) -> None:
        if self.suspended:
            self.bench.request("resume")
            self.suspended = False
            self.reconcile()
            return
        until = self.now + timedelta(days=9)
        self.bench.request("suspend", reason="freeze", until=until.isoformat())
        self.reconcile()
        self.suspended = True

    def systems_hang(self) -> None:
        machine = self.machines[self.draws.choice(self.names)]
        machine.obeys = not machine.obeys

    def a_run_is_made(self) -> None:
        name = self.draws.choice(self.names)
        state = self.bench.servers.get(name)
        if self.roll.often == "Once" and name not in self.away and state is not None and state.plan is not None:
            self.bench.fetch(state.plan)


def _is_same(one: Roll, other: Roll) -> bool:
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
            life = WaveLife(folder, stack, draws=Random(number))
            life.live()
            assert life.wrong == [], "\n".join([f"life {number}", *life.happened, *life.wrong])
            counts += life.counts
    _log.info("%d lives: %s", lives, dict(sorted(counts.items())))
    assert counts["asked for ForceRestart"]
