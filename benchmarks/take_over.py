"""A standby takes over: the seconds until it serves the fleet."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.cost import Cost, subtract_cost
from benchmarks.endpoint import boot_script, choose_servers, free_port, is_served
from benchmarks.instance import Instance
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from tests.helpers.postgresql import find_programs, postgresql

LEASE_S: Final = 15.0  # until a standby may take over from an instance that has died
_PREPARED_S: Final = 6.0  # without work: the standby has finished its preparations
_SERVERS: Final = 20  # whose boot scripts the standby has to serve


NewInstance = Callable[[str], tuple[Instance, int]]


def measure(place: Place) -> Figure:
    """Kill the active instance once a standby, which has never been active, has finished its preparations.

    The wall time includes the lease. The standby of one round is the active instance of the next.
    """
    rounds = []
    with _one_ledger(place) as (folder, new_instance):
        active = _start_first(new_instance)
        for number in range(1, place.rounds + 1):
            standby, port = _start_standby(new_instance, str(number))
            rounds.append(_take_over(place, active, standby, port))
            active = standby
            active.wait_until_idle()
            shutil.rmtree(folder / str(number - 1), ignore_errors=True)  # its endpoint may just end, and remove files
    return Figure(rounds=rounds, note=f"of which {LEASE_S:.0f} s at most are the lease")


def measure_empty(place: Place) -> Figure:
    """Start a standby with a full cache and an empty OUTPUT once the lease of the dead active instance is over."""
    rounds = []
    with _one_ledger(place) as (folder, new_instance):
        active = _start_first(new_instance)
        for number in range(1, place.rounds + 1):
            standby, port = _start_standby(new_instance, str(number))
            standby.end()
            shutil.rmtree(standby.output)
            active.end(signal.SIGKILL)
            time.sleep(LEASE_S + 1)
            began = time.perf_counter()
            standby.start()
            standby.wait_until(_serves_all(place, port))
            took_s = time.perf_counter() - began
            standby.wait_until_published(None)
            cost = standby.cost_so_far()
            rounds.append(Cost(cpu_s=cost.cpu_s, wall_s=took_s, memory_mib=cost.memory_mib))
            active = standby
            active.wait_until_idle()
            shutil.rmtree(folder / str(number - 1), ignore_errors=True)  # its endpoint may just end, and remove files
    return Figure(rounds=rounds, note="from the start of its process, after the lease")


@contextmanager
def _one_ledger(place: Place) -> Iterator[tuple[Path, NewInstance]]:
    """Yield a folder, and a function that makes an instance in it; all instances share a ledger in PostgreSQL."""
    if find_programs() is None:
        raise CannotRun("PostgreSQL is missing: scripts/install-packages benchmarks/packages.txt")
    with ExitStack() as stack:
        ledger = stack.enter_context(postgresql()).address()
        folder = stack.enter_context(place.own_folder("take-over"))

        def new_instance(name: str) -> tuple[Instance, int]:
            port = free_port()
            options = ("--ledger", ledger.url, "--listen", f"127.0.0.1:{port}")
            instance = Instance(folder / name, place.repository, place.fleet, place.gitboot, *options)
            stack.callback(instance.end, signal.SIGKILL)
            return instance, port

        yield folder, new_instance


def _start_first(new_instance: NewInstance) -> Instance:
    """Return an active instance that has published the fleet."""
    active, _ = new_instance("0")
    active.begin()
    active.start()
    active.wait_until_published(None)
    active.wait_until_idle()
    return active


def _start_standby(new_instance: NewInstance, name: str) -> tuple[Instance, int]:
    """Return a standby that has finished its preparations, and its port."""
    standby, port = new_instance(name)
    standby.start()
    standby.wait_until_standby()
    standby.wait_until_idle(_PREPARED_S)
    return standby, port


def _take_over(place: Place, active: Instance, standby: Instance, port: int) -> Cost:
    serves_all = _serves_all(place, port)
    before = standby.cost_so_far()
    began = time.perf_counter()
    active.end(signal.SIGKILL)
    standby.wait_until(serves_all)
    took_s = time.perf_counter() - began
    standby.wait_until_published(None)
    cost = subtract_cost(before, standby.cost_so_far())
    return Cost(cpu_s=cost.cpu_s, wall_s=took_s, memory_mib=cost.memory_mib)


def _serves_all(place: Place, port: int) -> Callable[[], bool]:
    """Return a function that tells whether the standby has served the boot scripts of some servers."""
    waiting = [boot_script(number) for number in choose_servers(place.fleet, _SERVERS)]

    def serves_all() -> bool:
        while waiting and is_served(port, waiting[-1]):
            waiting.pop()
        return not waiting

    return serves_all
