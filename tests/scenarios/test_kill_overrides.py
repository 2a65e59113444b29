"""Killed at any instant between record, set and confirm: no key is set twice, and the ledger stays whole."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.helpers.fleets import fleet, give_credentials, image, policy, profile, server, uuid_of
from tests.helpers.instance_in_process import Bench
from tests.helpers.redfish_double.machine import Answer, Boot, Machine
from tests.helpers.redfish_double.profiles import ENABLED, Json
from tests.helpers.redfish_double.server import RedfishServer, Service

POINTS = ("the PATCH has arrived", "the PATCH was applied", "it is read back", "some instant")
PASSES = 2


def passes(folder: Path, order: dict[str, Any]) -> None:
    """What the child does until it is killed: it sets the number that it is told, and looks what became of it."""
    bmc = f"bmc: {{address: '{order['bmc']}', system: {order['system']}, credentials: rack}}"
    with Bench(folder, credentials=folder) as bench:
        bench.now = datetime.fromisoformat(order["at"])
        bench.decide(
            fleet(),
            server("web01", spec=f"provision: {order['provision']}, {bmc}"),
            image("flatcar-1", "configFrom: None", "uki"),
            profile("web", "flatcar-1", "httpBoot: uki", method="UefiHttp"),
            policy("web", often="Once"),
        )
        for _ in range(PASSES):
            bench.reconcile()
            bench.wait(seconds=31)


@dataclass
class Nursery:
    """A process without threads that makes children on demand: a process with threads had better not fork."""

    orders: TextIO
    births: TextIO
    pid: int

    def bear(self, **order: Any) -> int:
        """Let a child carry out an order; return its process id."""
        print(json.dumps(order), file=self.orders, flush=True)
        return int(self.births.readline())

    def ended(self) -> int:
        """Wait for the child, and return how it ended."""
        return int(self.births.readline())


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    (orders_in, orders_out), (births_in, births_out) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(orders_out)
        with os.fdopen(orders_in) as orders, os.fdopen(births_out, "w") as births:
            for line in orders:
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        passes(folder, json.loads(line))
                        status = 0
                    except BaseException:  # noqa: BLE001 - the parent shows it
                        (folder / "failure").write_text(traceback.format_exc())
                    finally:
                        os._exit(status)
                print(child, file=births, flush=True)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=births, flush=True)
        os._exit(0)
    os.close(orders_in)
    os.close(births_out)
    with os.fdopen(orders_out, "w") as orders, os.fdopen(births_in) as births:
        yield Nursery(orders, births, pid)
    os.waitpid(pid, 0)


@dataclass
class Victim:
    """The child, and where it is to be killed."""

    point: str = ""
    pid: int = 0
    patched: bool = False
    born: threading.Event = field(default_factory=threading.Event)

    def reach(self, point: str) -> None:
        if point == self.point and self.born.wait(60):
            os.kill(self.pid, signal.SIGKILL)


class Watched(Machine):
    """A machine that knows what its BMC was really made to boot, and kills who wrote it."""

    victim = Victim()
    provision = 1
    standing: int | None = None  # the number that stands
    sets = 0

    def patch(self, path: str, body: Any, if_match: str | None) -> Answer:
        self.victim.reach("the PATCH has arrived")  # and is applied all the same: it is in the BMC's hands
        answer = super().patch(path, body, if_match)
        if self.override[ENABLED] == "Once":
            assert answer.status == 200
            self.standing = self.provision
            self.sets += 1
            self.victim.patched = True
            self.victim.reach("the PATCH was applied")
        return answer

    def system(self) -> Json:
        if self.victim.patched:
            self.victim.reach("it is read back")
        return super().system()


def test_an_instance_that_is_killed_around_a_patch_sets_no_key_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    kills = 10 * lives
    monkeypatch.setattr("gitboot.ledger.store.os.fdatasync", lambda _: None)  # no power is cut here
    give_credentials(tmp_path, password="secret")
    chance, killed = random.Random(20261121), Counter[str]()
    machine = Watched("web01", uuid=uuid_of("web01"))
    booted: list[int] = []  # the numbers that were booted from the network, each time that one was

    def on_boot(boot: Boot) -> None:
        if boot.target == "UefiHttp":
            assert machine.standing is not None
            booted.append(machine.standing)

    machine.on_boot = on_boot
    with nursery(tmp_path) as children, RedfishServer(Service(machine)) as bmc:

        def live(point: str) -> int:
            """Let a child live until it is killed at a point, or ends without having come there."""
            machine.victim = victim = Victim(point)
            facts = {"bmc": bmc.url, "system": machine.path, "provision": machine.provision}
            victim.pid = children.bear(**facts, at=machine.now.isoformat())
            victim.born.set()
            if point == "some instant":
                time.sleep(chance.uniform(0, 0.06))
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(victim.pid, signal.SIGKILL)
            status = children.ended()
            while bmc.is_busy:  # what it sent last is still carried out
                time.sleep(0.001)
            assert status in (0, -signal.SIGKILL), (tmp_path / "failure").read_text()
            return status

        while killed.total() < kills:
            point = chance.choice(POINTS)
            reached = live(point) == -signal.SIGKILL
            killed[point] += reached
            with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            machine.advance(600)
            if chance.random() < 0.4:
                machine.run_through()
            if not reached or machine.provision in booted or chance.random() < 0.2:
                machine.provision += 1
            assert len(booted) == len(set(booted)), f"set again after it was booted: {booted}"
        machine.provision += 1
        assert live("") == 0
        machine.run_through()
        assert booted[-1] == machine.provision, "what was killed so often sets no more"
    assert len(booted) == len(set(booted)) >= kills // 10
    assert min(killed[point] for point in POINTS) >= kills // 20, killed
