"""Lives of a site under faults: slow syncs, ledgers that hang or take no write, moved addresses, halves of mirrors.

Each search draws its steps from one table. To search one table for long, run ``python -m
tests.helpers.site_lives.faults recording --lives 1000 --seed 1``. The tables are ``recording``, ``windows``,
``identities``, ``mirrors`` and ``hosts``. The site of ``hosts`` has a PostgreSQL ledger and two hosts
(`tests.helpers.site_lives.site`).

A life checks these promises, in addition to those of `tests.helpers.site_lives.book`:

- The ledger records an installation only if the endpoint served the machine its boot, or an operator recorded it.
- Each published file and each override of a maintenance ends with its window, whatever the ledger takes.
- A machine that was installed gets another installation only if the guard allowed it or an operator approved it, by any
  of its addresses.
- A mirror has every file that its boot scripts name, and never offers a one-time boot if the fleet names an endpoint.
- A boot that an endpoint withheld is offered again, unless the endpoint died (``hosts``).
- An instance whose lease another has writes to no BMC, and its tree offers no one-time boot.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from tests.helpers import documentation
from tests.helpers.postgresql import PostgresServer, postgresql
from tests.helpers.site_lives.book import Window
from tests.helpers.site_lives.lives import (
    BOOLEANS,
    ENDS,
    KINDS,
    PASSES,
    PATHS,
    Kind,
    Kinds,
    Life,
    World,
    choose_from,
    draw_life,
    folder_for_lives,
    say,
    step,
    world,
)
from tests.helpers.site_lives.processes import Hang, SlowSyncs
from tests.helpers.site_lives.site import LateCall, SharedSite, Site

# Events of each search, besides its own faults.
_SHARED: Final = (
    "an_installation_is_asked_for",
    "time_passes",
    "the_machine_boots",
    "the_machine_boots_again",
    "an_installer_that_was_silent_reports",
    "a_monitor_looks",
    "it_reconciles",
    "the_instance_is_restarted",
    "the_endpoint_is_restarted",
)
_HOSTS: Final = ("another_endpoint_is_asked", "the_endpoint_is_killed", "the_instance_is_killed")
_MAINTENANCES: Final = (
    "a_repair_is_written",
    "a_wipe_is_written",
    "a_maintenance_is_removed",
    "what_is_held_is_acknowledged",
)

RECORDING: Final[dict[str, Kind]] = {name: KINDS[name] for name in (*_SHARED, *_HOSTS)}
WINDOWS: Final[dict[str, Kind]] = {name: KINDS[name] for name in (*_SHARED, *_MAINTENANCES)}
IDENTITIES: Final[dict[str, Kind]] = {name: KINDS[name] for name in _SHARED}
MIRRORS: Final[dict[str, Kind]] = {name: KINDS[name] for name in (*_SHARED, *_MAINTENANCES)}
HOSTS: Final[dict[str, Kind]] = {
    name: KINDS[name]
    for name in (
        *(*_SHARED, *_MAINTENANCES),
        *("the_machine_is_installed", "the_endpoint_is_killed", "the_instance_is_gone", "the_instance_comes_back"),
        *("the_instance_dies_at_a_bmc", "a_wipe_switches_the_machine", "the_machine_resets"),
    )
}
TABLES: Final[dict[str, Kinds]] = {
    "recording": RECORDING,
    "windows": WINDOWS,
    "identities": IDENTITIES,
    "mirrors": MIRRORS,
    "hosts": HOSTS,
}

SYNCS: Final = choose_from(((), (), (0,), (1,), (0, 1), (0, 1, 2)))
HOW: Final = choose_from(("full", "locked"))


@step(
    kinds=RECORDING,
    weight=8,
    is_new=BOOLEANS,
    path=PATHS,
    reads=SYNCS,
    fails=SYNCS,
    expires=choose_from((None, 0, 0, 1)),
    ends=ENDS,
    passes=PASSES,
)
def the_machine_boots_while_the_log_is_slow(
    site: Site,
    is_new: bool,
    path: str,
    reads: tuple[int, ...],
    fails: tuple[int, ...],
    expires: int | None,
    ends: str | None,
    passes: int,
) -> None:
    """The instance reads the log in the middle of syncs, of which some fail, or end after the deadline."""
    if is_new:
        site.ask_for_installation()
        site.reconcile()
    site.slow = SlowSyncs(reads, fails, expires)
    site.boot(path, goes_on=True, ends=ends)
    site.slow = None
    for _ in range(passes):
        site.reconcile()


@step(kinds=WINDOWS, weight=6, lasts=choose_from((61, 301)), how=HOW, path=PATHS)
def a_repair_ends_while_the_ledger_cannot_be_written(site: Site, lasts: int, how: str, path: str) -> None:
    window = _open_window(site, lasts)
    site.ask_for_repair(window)
    site.reconcile()
    site.outlast(window, how, path)


@step(kinds=WINDOWS, weight=4, lasts=choose_from((301, 3601)), how=HOW, path=PATHS, boots=BOOLEANS)
def a_wipe_ends_while_the_ledger_cannot_be_written(site: Site, lasts: int, how: str, path: str, boots: bool) -> None:
    window = _open_window(site, lasts)
    site.ask_for_wipe(window)
    for _ in range(2):
        site.reconcile()
        site.wait(31)
    if boots:
        site.boot(path, goes_on=True)
    site.outlast(window, how, path)


def _open_window(site: Site, lasts: int) -> Window:
    start = (site.now - timedelta(seconds=60)).replace(microsecond=0)
    return Window(start, start + timedelta(seconds=60 + lasts))


@step(
    kinds=IDENTITIES,
    weight=8,
    waits=BOOLEANS,
    commits=choose_from((1, 2)),
    path=PATHS,
    ends=ENDS,
)
def the_mac_address_moves_to_a_waiting_server(
    site: Site, waits: bool, commits: int, path: str, ends: str | None
) -> None:
    """A machine that fetches by its MAC address gets the boot of a waiting server."""
    site.move_mac(waits=waits, commits=commits)
    site.boot(path, goes_on=True, ends=ends)


@step(kinds=IDENTITIES, weight=3)
def the_mac_address_moves_back(site: Site) -> None:
    site.move_mac_back()
    site.reconcile()


@step(kinds=MIRRORS, weight=4, replaced=choose_from((0, 0, 0, 1, 2, 3, 4, 6, 9)), path=PATHS, is_new=BOOLEANS)
def a_target_follows(site: Site, replaced: int, path: str, is_new: bool) -> None:
    """The target may be killed; the machine boots from the mirror as it is then."""
    if is_new:
        site.ask_for_installation()
    site.reconcile()
    site.bring_up_mirror(replaced)
    site.boot_from_mirror(path)


@step(
    kinds=MIRRORS, weight=4, call=choose_from(tuple(range(1, documentation.CALLS + 1))), path=PATHS, is_killed=BOOLEANS
)
def a_mirror_copies_the_tree(site: Site, call: int, path: str, is_killed: bool) -> None:
    """The copy is killed, or a commit requests an installation meanwhile; the machine then boots from the mirror."""

    def commit() -> None:
        site.ask_for_installation()
        site.reconcile()

    site.reconcile()
    site.copy_to_mirror(call, None if is_killed else commit)
    site.boot_from_mirror(path)


# Two hosts with one ledger

HOW_SHARED: Final = choose_from(("full", "hung"))
CALLS: Final = choose_from((1, 1, 2, 5, 1000))

step(kinds=HOSTS, weight=3, lasts=choose_from((61, 301)), how=HOW_SHARED, path=PATHS)(
    a_repair_ends_while_the_ledger_cannot_be_written
)
step(kinds=HOSTS, weight=2, lasts=choose_from((301, 3601)), how=HOW_SHARED, path=PATHS, boots=BOOLEANS)(
    a_wipe_ends_while_the_ledger_cannot_be_written
)


@step(kinds=HOSTS, weight=8)
def machines_ask_the_other_host(site: SharedSite) -> None:
    site.ask_other_host()


@step(kinds=HOSTS, weight=4, calls=choose_from(tuple(range(160))), restarts=BOOLEANS)
def the_acting_instance_is_killed(site: SharedSite, calls: int, restarts: bool) -> None:
    """At any change to a file, or at any call to the PostgreSQL."""
    site.instance_crash_plan.dies_in = calls
    site.reconcile()
    if restarts and site.instance is None:
        site.start_instance()


@step(
    kinds=HOSTS,
    weight=8,
    how=choose_from(("ends", "killed", "paused")),
    dies_in=choose_from((None, *range(160))),
    calls=choose_from((None, None, *range(120))),
    passes=PASSES,
)
def the_standby_takes_over(site: SharedSite, how: str, dies_in: int | None, calls: int | None, passes: int) -> None:
    """An instance that is killed dies in the middle of a reconcile, and the standby perhaps while it takes over."""
    if how == "killed" and dies_in is not None:
        site.instance_crash_plan.dies_in = dies_in
        site.reconcile()
    site.take_over(how, calls)
    site.start_endpoints()
    for _ in range(passes):
        site.reconcile()
        if site.instance is None:
            site.start_instance()


@step(kinds=HOSTS, weight=4, path=PATHS)
def the_replaced_host_goes_on(site: SharedSite, path: str) -> None:
    site.run_replaced(path)


@step(kinds=HOSTS, weight=1)
def a_standby_tries_too_early(site: SharedSite) -> None:
    site.start_too_early()


@step(kinds=HOSTS, weight=6, after=choose_from(tuple(range(100))), calls=CALLS, is_done=BOOLEANS, passes=PASSES)
def calls_of_the_instance_hang(site: SharedSite, after: int, calls: int, is_done: bool, passes: int) -> None:
    """From one call to the PostgreSQL on; the PostgreSQL may execute the calls, but does not respond."""
    with site.hang_calls(site.instance_crash_plan, hang=Hang(after, calls, is_done)):
        site.reconcile()
    for _ in range(passes):
        site.reconcile()


@step(
    kinds=HOSTS,
    weight=6,
    is_new=BOOLEANS,
    path=PATHS,
    after=choose_from(tuple(range(14))),
    calls=CALLS,
    is_done=BOOLEANS,
    ends=ENDS,
    again=PATHS,
    seconds=choose_from((0, 5, 61)),
)
def calls_of_an_endpoint_hang(
    site: SharedSite,
    is_new: bool,
    path: str,
    after: int,
    calls: int,
    is_done: bool,
    ends: str | None,
    again: str,
    seconds: int,
) -> None:
    """The machine boots meanwhile, and then fetches from the other host."""
    if is_new:
        site.ask_for_installation()
        site.reconcile()
    if site.serving is not None:
        with site.hang_calls(site.serving.crash_plan, hang=Hang(after, calls, is_done)):
            site.boot(path, goes_on=True, ends=ends)
    site.wait(seconds)
    site.ask_other_host()
    site.boot(again, goes_on=True)


@step(kinds=HOSTS, weight=6, is_new=BOOLEANS, path=PATHS, again=PATHS, seconds=choose_from((0, 5, 61)), ends=ENDS)
def the_instance_reconciles_while_the_machine_boots(
    site: SharedSite, is_new: bool, path: str, again: str, seconds: int, ends: str | None
) -> None:
    """The instance reads the fetch of a boot script before the machine fetches its user data and resets."""
    if is_new:
        site.ask_for_installation()
        site.reconcile()
    site.reconciles_in_boots = True
    site.boot(path, goes_on=True, ends=ends)
    site.reconciles_in_boots = False
    site.wait(seconds)
    site.boot(again, goes_on=True)


@step(
    kinds=HOSTS,
    weight=8,
    is_new=BOOLEANS,
    path=PATHS,
    number=choose_from((0, 0, *range(10))),
    meanwhile=choose_from((None, "reconcile", "take over", "take over")),
    expires=BOOLEANS,
    is_lost=BOOLEANS,
    ends=ENDS,
    passes=PASSES,
)
def the_machine_boots_while_a_call_hangs(
    site: SharedSite,
    is_new: bool,
    path: str,
    number: int,
    meanwhile: str | None,
    expires: bool,
    is_lost: bool,
    ends: str | None,
    passes: int,
) -> None:
    """The deadline of the endpoint may pass, and the PostgreSQL may execute the call later."""
    if is_new:
        site.ask_for_installation()
        site.reconcile()
    acting = site.acting
    site.late = LateCall(number, meanwhile, expires, is_lost)
    site.boot(path, goes_on=True, ends=ends)
    site.late = None
    if site.acting != acting:
        site.start_endpoints()
    for _ in range(passes):
        site.reconcile()


def fault_life(table: str, seed: int, number: int) -> Life:
    life = draw_life(seed, number, TABLES[table])
    if table in ("windows", "mirrors", "hosts"):
        return life
    # The instance reads the log while the machine boots: a BMC would wait for the machine.
    ways = replace(life.ways, is_guarded=True) if table == "identities" else life.ways
    return Life(ways, has_bmc=False, netboots=True, steps=life.steps)


@contextmanager
def open_world(table: str, server: PostgresServer | None = None) -> Iterator[World]:
    """Yield a world for lives of one table. ``server`` has the ledgers of ``hosts``; without it, one is started."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(folder_for_lives()))
        site_of: Callable[..., Site] = Site
        if table == "hosts":
            site_of = partial(SharedSite, server=server or stack.enter_context(postgresql()))
        yield stack.enter_context(world(folder, TABLES[table], is_strict=True, site_of=site_of))


def search(
    table: str,
    seed: int,
    numbers: range,
    *,
    shortens: bool = True,
    server: PostgresServer | None = None,
    counts: Counter[str] | None = None,
) -> str | None:
    """Live lives one after the other; return the first in which a promise is broken, or None.

    With ``shortens``, leave out the steps that the fault does not need. That takes many times as long as one life.
    ``server`` is that of `open_world`. ``counts`` gets what has happened.
    """
    with open_world(table, server) as lived:
        lived.counts = counts if counts is not None else lived.counts
        for number in numbers:
            life = fault_life(table, seed, number)
            if wrong := lived.live(life):
                if not shortens:
                    return "\n".join([f"life {number} of seed {seed}:", str(life), *wrong])
                shortest = lived.shortest(life)
                return "\n".join([f"life {number} of seed {seed}:", str(shortest), *lived.live(shortest)])
    return None


def main() -> int:
    """Search one table, and print what was found, how long that took, and what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    given = parser.parse_args()
    began, counts = time.monotonic(), Counter[str]()
    found = search(given.table, given.seed, range(given.first, given.first + given.lives), counts=counts)
    say(found or f"{given.lives} lives: each promise was kept", f"{time.monotonic() - began:.0f} s")
    say(*(f"{times:9} {what}" for what, times in sorted(counts.items())))
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
