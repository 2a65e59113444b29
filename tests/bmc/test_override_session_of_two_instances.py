"""Two instances that nobody named, each told that nothing is installed, at one BMC in the same moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gitboot.bmc.override_session import OverrideSession
from gitboot.bmc.override_state import Override, OverrideRecord, State
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, Rack, racks
from tests.helpers.cases import for_each
from tests.helpers.redfish_double.profiles import GENERIC, Profile

INSTALL = replace(
    ONCE,
    override=Override(
        enabled=OverrideEnabled.ONCE,
        target=OverrideTarget.UEFI_HTTP,
        mode="UEFI",
        http_boot_uri="http://boot.test/1.efi",
    ),
    is_first=True,
)
WITHOUT_ETAGS = replace(GENERIC, etag_header="", etag_body="")
# Of one job: what is read and recorded; without ETags, what is read once more; the request; and what is read back.
PARTS = {GENERIC: 3, WITHOUT_ETAGS: 4}


@dataclass
class Contender:
    """An instance with a ledger of its own, whose job at the BMC goes on by one request at a time."""

    rack: Rack
    records: dict[str, OverrideRecord] = field(default_factory=dict)
    is_done: bool = True
    _goes: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _waits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def state(self) -> State:
        (record,) = self.records.values()
        return record.state

    def begin(self) -> None:
        self.is_done = False
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """Up to the next request that says something of the override, or changes it; or to the end."""
        if not self.is_done:
            self._goes.release()
            assert self._waits.acquire(timeout=60)

    def job(self) -> None:
        """One from its beginning to its end, or the one that is under way to its end."""
        if self.is_done:
            self.begin()
        while not self.is_done:
            self.go_on()

    def _run(self) -> None:
        self._goes.acquire()
        job = replace(self.rack.job(INSTALL), records=tuple(self.records.values()))
        with self.rack.connect() as bmc:
            read, send, is_first = bmc.observe, bmc._connector.patch, iter([True])

            def reading() -> object:
                if not next(is_first, False):
                    self._pause()
                return read()

            def sending(*request: object, **more: object) -> object:
                self._pause()
                return send(*request, **more)

            bmc.observe, bmc._connector.patch = reading, sending  # type: ignore[assignment,method-assign]
            OverrideSession(bmc, job, self._write, lambda: self.rack.now).run()
        self.is_done = True
        self._waits.release()

    def _pause(self) -> None:
        self._waits.release()
        self._goes.acquire()

    def _write(self, record: OverrideRecord | SwitchRecord) -> None:
        assert isinstance(record, OverrideRecord)
        self.records[record.reason] = record


@dataclass
class Contest:
    """Both at the BMC of a machine, which boots at some time in between."""

    rack: Rack

    def play(self, order: str) -> tuple[Contender, Contender]:
        """Each letter lets ``a`` or ``b`` go on, or the machine boot, or go off (``O``).

        Then both look again and again, and it boots.
        """
        both = {"a": Contender(self.rack), "b": Contender(self.rack)}
        for each in both.values():
            each.begin()
        for step in order:
            if step in both:
                both[step].go_on()
            elif step == "O":
                self.rack.machine.power = "Off"
            else:
                self.rack.boot()
        for _ in range(2):
            for each in both.values():
                each.job()
            self.rack.wait(120)
            self.rack.boot()
        for each in both.values():
            each.job()
        return both["a"], both["b"]

    @property
    def installed(self) -> int:
        return sum(boot.target == "UefiHttp" for boot in self.rack.machine.boots)


def contest(folder: Path, profile: Profile, order: str) -> tuple[int, State, State]:
    """How often the machine was installed, and what either has recorded in the end."""
    with racks(folder) as make:
        played = Contest(make(profile=profile))
        one, two = played.play(order)
        return played.installed, one.state, two.state


@for_each(
    ("profile", "order", "expected"),
    [
        (GENERIC, "bObbbaaa", (1, State.CONSUMED, State.SET_BY_ANOTHER)),  # who was first sends nothing
        (GENERIC, "abaabb", (1, State.CONSUMED, State.SET_BY_ANOTHER)),
        (GENERIC, "abaabBb", (1, State.CONSUMED, State.SET_BY_ANOTHER)),
        (GENERIC, "abaaBbb", (1, State.CONSUMED, State.SET_BY_ANOTHER)),
        (WITHOUT_ETAGS, "abaaaBbb", (1, State.CONSUMED, State.SET_BY_ANOTHER)),
        (WITHOUT_ETAGS, "abaaabb", (1, State.CONSUMED, State.SET_BY_ANOTHER)),
        (WITHOUT_ETAGS, "bObbaaaa", (1, State.CONSUMED, State.SET_BY_ANOTHER)),  # who was first sends nothing
        (WITHOUT_ETAGS, "abababab", (1, State.CONSUMED, State.CONSUMED)),  # neither sees the other, and it boots once
        (WITHOUT_ETAGS, "aabbaaBbb", (2, State.CONSUMED, State.CONSUMED)),  # as docs/sites.md says
    ],
)
def test_who_comes_second_sees_it(
    tmp_path: Path, profile: Profile, order: str, expected: tuple[int, State, State]
) -> None:
    assert contest(tmp_path, profile, order) == expected


def orders(parts: int, chance: random.Random) -> Iterator[str]:
    """Orders in which both may go on, with a boot of the machine somewhere among them."""
    while True:
        steps = list("ab" * parts)
        chance.shuffle(steps)
        steps.insert(chance.randint(1, len(steps)), "B")
        yield "".join(steps)


def boots_before_a_request(order: str) -> bool:
    """Whether the machine boots right between what one has read last and its request."""
    before = order.partition("B")[0]
    return any(before.count(each) == PARTS[WITHOUT_ETAGS] - 2 for each in "ab")


@pytest.mark.parametrize("profile", PARTS, ids=["ETags", "no ETags"])
def test_whoever_goes_on_when_the_machine_is_installed_once(tmp_path: Path, profile: Profile, lives: int) -> None:
    drawn = orders(PARTS[profile], random.Random(2028))
    for number in range(12 * lives):
        order = next(drawn)
        while profile is WITHOUT_ETAGS and boots_before_a_request(order):
            order = next(drawn)
        installed, *states = contest(tmp_path / str(number), profile, order)
        assert installed == 1, (order, states)
