"""Lives of a site under faults: slow syncs, ledgers that take no write, addresses that move, mirrors copied halfway.

Each search draws its steps from one table. ``python -m tests.site_faults recording --lives 1000 --seed 1`` searches
one table for long; the tables are ``recording``, ``windows``, ``identities`` and ``mirrors``. To search another commit,
copy ``tests/site*.py`` and ``tests/test_site_faults.py`` into a worktree of that commit, and start there.

A life checks these promises, besides those of `tests.site_book`:

- The ledger records an installation only if the endpoint gave the machine its boot, or a person recorded it.
- Each published file and each override of a maintenance ends with its window, whatever the ledger takes.
- A machine that was installed gets another installation only if the guard allowed it or a person approved it, by
  whichever of its addresses it asks.
- A mirror has every file that its entries name, and never offers a one-time boot if the fleet names an endpoint.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.site import Site, SlowSyncs
from tests.site_book import Window
from tests.site_lives import (
    BOOLEANS,
    ENDS,
    KINDS,
    PASSES,
    PATHS,
    Kind,
    Kinds,
    Life,
    chosen_from,
    folder_for_lives,
    life_of,
    say,
    step,
    world,
)

# What happens in each search, besides its own faults.
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
TABLES: Final[dict[str, Kinds]] = {
    "recording": RECORDING,
    "windows": WINDOWS,
    "identities": IDENTITIES,
    "mirrors": MIRRORS,
}

SYNCS: Final = chosen_from(((), (), (0,), (1,), (0, 1), (0, 1, 2)))
HOW: Final = chosen_from(("full", "locked"))


@step(
    kinds=RECORDING,
    weight=8,
    is_new=BOOLEANS,
    path=PATHS,
    reads=SYNCS,
    fails=SYNCS,
    expires=chosen_from((None, 0, 0, 1)),
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


@step(kinds=WINDOWS, weight=6, lasts=chosen_from((61, 301)), how=HOW, path=PATHS)
def a_repair_ends_while_the_ledger_cannot_be_written(site: Site, lasts: int, how: str, path: str) -> None:
    window = _open_window(site, lasts)
    site.ask_for_repair(window)
    site.reconcile()
    site.outlast(window, how, path)


@step(kinds=WINDOWS, weight=4, lasts=chosen_from((301, 3601)), how=HOW, path=PATHS, boots=BOOLEANS)
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
    commits=chosen_from((1, 2)),
    path=PATHS,
    ends=ENDS,
)
def the_mac_address_moves_to_a_waiting_server(
    site: Site, waits: bool, commits: int, path: str, ends: str | None
) -> None:
    """A machine that asks by its MAC address gets what Git says of another server."""
    site.move_mac(waits=waits, commits=commits)
    site.boot(path, goes_on=True, ends=ends)


@step(kinds=IDENTITIES, weight=3)
def the_mac_address_moves_back(site: Site) -> None:
    site.move_mac_back()
    site.reconcile()


@step(kinds=MIRRORS, weight=8, lacks=chosen_from((0, 0, 0, 1, 2, 3, 4, 6, 9)), path=PATHS, is_new=BOOLEANS)
def a_mirror_is_copied(site: Site, lacks: int, path: str, is_new: bool) -> None:
    """The copy may end halfway; the machine boots from the mirror as it is then."""
    if is_new:
        site.ask_for_installation()
    site.reconcile()
    site.copy_to_mirror(lacks)
    site.boot_from_mirror(path)


def fault_life(table: str, seed: int, number: int) -> Life:
    """Return the life with a number, of one of the tables."""
    life = life_of(seed, number, TABLES[table])
    if table in ("windows", "mirrors"):
        return life
    # The instance reads the log while the machine boots: a BMC would wait for the machine.
    ways = replace(life.ways, is_guarded=True) if table == "identities" else life.ways
    return Life(ways, has_bmc=False, netboots=True, steps=life.steps)


def search(table: str, seed: int, numbers: range, *, shortens: bool = True) -> str | None:
    """Live lives one after the other; return the first in which a promise is broken, or None.

    With ``shortens``, leave out the steps that the fault does not need. That takes many times as long as one life.
    """
    with folder_for_lives() as folder, world(Path(folder), TABLES[table], is_strict=True) as lived:
        for number in numbers:
            life = fault_life(table, seed, number)
            if wrong := lived.live(life):
                if not shortens:
                    return "\n".join([f"life {number} of seed {seed}:", str(life), *wrong])
                shortest = lived.shortest(life)
                return "\n".join([f"life {number} of seed {seed}:", str(shortest), *lived.live(shortest)])
    return None


def main() -> int:
    """Search one table, and print what was found and how long that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    given = parser.parse_args()
    began = time.monotonic()
    found = search(given.table, given.seed, range(given.first, given.first + given.lives))
    say(found or f"{given.lives} lives: each promise was kept", f"{time.monotonic() - began:.0f} s")
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
