"""Lives of a site, drawn by number: ``python -m tests.helpers.site_lives.lives --lives 10000 --seed 1``.

A life is a list of steps from a seed and a number, so that it can be repeated. A life with a fault is shortened to the
steps that cause it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final, NamedTuple

from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.site_lives.book import Window
from tests.helpers.site_lives.processes import patch_system_calls
from tests.helpers.site_lives.running_site import LOOKUPS, OTHERS, Ways
from tests.helpers.site_lives.site import Site

LONGEST: Final = 30  # steps
_MEMORY: Final = Path("/dev/shm")  # no power cut is tested

Draw = Callable[[Random], dict[str, Any]]


class Step(NamedTuple):
    """An event with its parameters."""

    name: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.facts.items())})"


class Kind(NamedTuple):
    do: Callable[..., None]
    draw: Draw
    weight: int


Kinds = Mapping[str, Kind]
KINDS: Final[dict[str, Kind]] = {}


def choose_from(values: tuple[Any, ...]) -> Callable[[Random], Any]:
    return lambda draws: draws.choice(values)


SECONDS: Final = choose_from((1, 5, 31, 61, 301, 3601, 7300))
PATHS: Final = choose_from(LOOKUPS)
PASSES: Final = choose_from((0, 1, 1))
BOOLEANS: Final = choose_from((False, True))
ENDS: Final = choose_from((None, "provisioned", "failed"))
REPORTS: Final = choose_from(("provisioned", "failed"))


def step(
    *, weight: int = 2, kinds: dict[str, Kind] = KINDS, **drawn: Callable[[Random], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a kind of step among ``kinds``; its arguments are drawn."""

    def register(do: Callable[..., None]) -> Callable[..., None]:
        def draw(draws: Random) -> dict[str, Any]:
            return {name: each(draws) for name, each in drawn.items()}

        kinds[do.__name__] = Kind(do, draw, weight)
        return do

    return register


def _pass(site: Site, passes: int) -> None:
    for _ in range(passes):
        site.reconcile()


# Commits


@step(weight=5, passes=PASSES)
def an_installation_is_asked_for(site: Site, passes: int) -> None:
    site.ask_for_installation()
    _pass(site, passes)


@step(begins=choose_from((-60, 0, 30, 600)), lasts=SECONDS, passes=PASSES)
def a_repair_is_written(site: Site, begins: int, lasts: int, passes: int) -> None:
    site.ask_for_repair(_window(site, begins, lasts))
    _pass(site, passes)


@step(
    weight=4,
    begins=choose_from((-60, -60, 0, 30, 600)),
    lasts=SECONDS,
    power=choose_from((None, "Restart", "Restart", "On")),
    passes=PASSES,
)
def a_wipe_is_written(site: Site, begins: int, lasts: int, power: str | None, passes: int) -> None:
    site.ask_for_wipe(_window(site, begins, lasts), power)
    _pass(site, passes)


def _window(site: Site, begins: int, lasts: int) -> Window:
    start = (site.now + timedelta(seconds=begins)).replace(microsecond=0)
    return Window(start, start + timedelta(seconds=lasts))


@step(weight=6, power=choose_from(("Restart", "On")))
def a_wipe_switches_the_machine(site: Site, power: str) -> None:
    """The window of the wipe is open, and nothing disturbs it for a while."""
    if power == "On":
        site.own.reset("ForceOff")
    site.ask_for_wipe(_window(site, -60, 3601), power)
    for _ in range(3):
        site.reconcile()
        site.wait(31)


@step(weight=1)
def the_machine_is_switched_off(site: Site) -> None:
    """The machine switches itself off, for example after the work."""
    site.own.reset("ForceOff")


@step(weight=1, start=choose_from((-3600, 0, 0, 30)), end=choose_from((-600, 0, 61, 3600)), passes=PASSES)
def a_window_is_moved(site: Site, start: int, end: int, passes: int) -> None:
    site.move_window(start, end)
    _pass(site, passes)


@step(weight=1, passes=PASSES)
def a_maintenance_is_removed(site: Site, passes: int) -> None:
    site.push(job=None)
    _pass(site, passes)


@step(lasts=SECONDS)
def two_commits_come_together(site: Site, lasts: int) -> None:
    """Both are merged before the instance looks."""
    site.ask_for_installation()
    if site.commit.job is None:
        site.ask_for_repair(_window(site, 0, lasts))
    else:
        site.push(job=None)
    site.reconcile()


@step(
    weight=1,
    lifecycle=choose_from(("Active", "Active", "Parked")),
    stopped=choose_from((False, False, True)),
    passes=PASSES,
)
def a_commit_parks_or_stops(site: Site, lifecycle: str, stopped: bool, passes: int) -> None:
    site.push(lifecycle=lifecycle, stopped=stopped)
    _pass(site, passes)


@step(weight=1, bmc=choose_from(("a", "a", "b", None)), passes=PASSES)
def a_commit_names_another_bmc(site: Site, bmc: str | None, passes: int) -> None:
    site.push(bmc=bmc if site.bmcs else None)
    _pass(site, passes)


@step(how=choose_from(("shell", "message", "message")))
def what_is_held_is_acknowledged(site: Site, how: str) -> None:
    site.approve() if how == "shell" else site.acknowledge_in_message()
    site.reconcile()


@step(passes=PASSES, how=choose_from((None, "shell", "message", "message")), path=PATHS)
def the_branch_is_rewound(site: Site, passes: int, how: str | None, path: str) -> None:
    """The rewind is held; no line in a message acknowledges it."""
    site.rewind()
    _pass(site, passes)
    if passes and how is not None:
        what_is_held_is_acknowledged(site, how)
        site.boot(path, goes_on=True)


# Time


@step(weight=4, seconds=SECONDS, passes=PASSES)
def time_passes(site: Site, seconds: int, passes: int) -> None:
    site.wait(seconds)
    _pass(site, passes)


@step(seconds=choose_from((-7200, -180, -45, 45, 180, 7200, 0, 0)))
def the_clock_is_moved(site: Site, seconds: int) -> None:
    site.skew = timedelta(seconds=seconds)


# Machines and others


@step(weight=4, path=PATHS, goes_on=BOOLEANS, ends=ENDS)
def the_machine_boots(site: Site, path: str, goes_on: bool, ends: str | None) -> None:
    site.boot(path, goes_on=goes_on, ends=ends)


@step(weight=4, first=PATHS, then=PATHS, seconds=SECONDS, goes_on=BOOLEANS, ends=ENDS, passes=choose_from((0, 0, 1)))
def the_machine_boots_again(
    site: Site, first: str, then: str, seconds: int, goes_on: bool, ends: str | None, passes: int
) -> None:
    site.boot(first, goes_on=goes_on, ends=ends)
    site.wait(seconds)
    _pass(site, passes)
    site.boot(then, goes_on=goes_on, ends=ends)


@step(weight=3, path=PATHS, goes_on=BOOLEANS)
def the_machine_boots_through_a_proxy(site: Site, path: str, goes_on: bool) -> None:
    site.boot(path, goes_on=goes_on, proxy=True)


@step(weight=6, is_new=BOOLEANS, path=PATHS, ends=choose_from((None, None, "provisioned", "failed")), passes=PASSES)
def the_machine_is_installed(site: Site, is_new: bool, path: str, ends: str | None, passes: int) -> None:
    """The machine boots what is offered; its installer reports at once, or later."""
    if is_new:
        site.ask_for_installation()
    _pass(site, 1)
    site.boot(path, goes_on=True, ends=ends)
    _pass(site, passes)


@step(weight=4, ends=REPORTS, passes=PASSES)
def an_installer_that_was_silent_reports(site: Site, ends: str, passes: int) -> None:
    """It reports after any decision, restore and loss since it got its user data."""
    if site.report(ends):
        site.counts["reported late"] += 1
    _pass(site, passes)


@step(
    weight=3, kind=choose_from(("ForceRestart", "ForceRestart", "ForceOff", "On")), seconds=choose_from((31, 130, 301))
)
def the_machine_resets(site: Site, kind: str, seconds: int) -> None:
    site.own.reset(kind)
    site.wait(seconds)


@step(weight=1)
def somebody_else_writes_to_its_bmc(site: Site) -> None:
    site.own.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")


@step(clock=choose_from((None, 0, -9, 9)), forgets=BOOLEANS, resets=BOOLEANS, passes=PASSES)
def its_bmc_restarts(site: Site, clock: int | None, forgets: bool, resets: bool, passes: int) -> None:
    """The BMC restarts, for example after an update: it may start in 1970 or hours off, and without its override."""
    _pass(site, 1)
    site.restart_bmc(clock, forgets=forgets)
    if resets:
        site.own.reset()
        site.wait(130)
    _pass(site, passes)


@step(path=PATHS, agent=choose_from(tuple(OTHERS)), method=choose_from(("GET", "HEAD")))
def a_monitor_looks(site: Site, path: str, agent: str, method: str) -> None:
    site.look(path, agent, method)


@step(weight=1, path=PATHS)
def another_machine_asks(site: Site, path: str) -> None:
    other = site.other.uuid
    site.check_not_served(site.fetch(f"{path}?uuid={other}"), "another machine")


@step(weight=1, path=PATHS)
def another_endpoint_is_asked(site: Site, path: str) -> None:
    site.check_not_served(site.fetch_elsewhere(path), "who asks another endpoint")


@step(weight=1, path=PATHS)
def a_mirror_serves(site: Site, path: str) -> None:
    site.serve_static(path)


@step(weight=3, path=PATHS)
def assets_vanish_for_a_while(site: Site, path: str) -> None:
    site.delete_assets()
    site.boot(path, goes_on=True)
    site.write_assets()


# Processes


@step(weight=3)
def it_reconciles(site: Site) -> None:
    site.reconcile()


@step()
def the_instance_is_restarted(site: Site) -> None:
    site.stop_instance()
    site.start_instance()


@step(weight=1)
def the_instance_is_gone(site: Site) -> None:
    site.stop_instance()


@step()
def the_instance_comes_back(site: Site) -> None:
    if site.instance is None:
        site.start_instance()
        site.reconcile()


@step(weight=3, calls=choose_from(tuple(range(40))), restarts=BOOLEANS)
def the_instance_is_killed(site: Site, calls: int, restarts: bool) -> None:
    site.instance_crash_plan.dies_in = calls
    site.reconcile()
    if restarts and site.instance is None:
        site.start_instance()


@step(weight=1, when=choose_from(("before", "after")))
def the_instance_dies_at_a_bmc(site: Site, when: str) -> None:
    site.own.dies_at_patch = when
    site.reconcile()
    if site.instance is None:
        site.start_instance()


@step(weight=4, path=PATHS, calls=choose_from(tuple(range(9))), again=PATHS, seconds=choose_from((0, 0, 5, 61)))
def the_endpoint_is_killed(site: Site, path: str, calls: int, again: str, seconds: int) -> None:
    if site.serving is not None:
        site.serving.crash_plan.dies_in = calls
        site.boot(path, goes_on=True)
        site.start_endpoint()
        site.wait(seconds)
        site.boot(again, goes_on=True)


@step(path=PATHS)
def the_endpoint_is_restarted(site: Site, path: str) -> None:
    site.start_endpoint()
    site.boot(path, goes_on=True)


# Disasters


@step()
def a_backup_is_made(site: Site) -> None:
    if len(site.backups) < 4:
        site.back_up()


@step(
    which=choose_from((0, 1, 2, 3)),
    what=choose_from((("state",), ("output",), ("state", "output"))),
    passes=choose_from((0, 1)),
)
def a_backup_is_put_back(site: Site, which: int, what: tuple[str, ...], passes: int) -> None:
    if site.backups:
        site.restore(site.backups[which % len(site.backups)], what)
        site.start_instance()
        site.start_endpoint()
        _pass(site, passes)
        site.boot(LOOKUPS[0], goes_on=True)


@step(path=PATHS, again=PATHS, is_restored=BOOLEANS)
def the_tree_knows_less_than_was_given(site: Site, path: str, again: str, is_restored: bool) -> None:
    """The tree takes no write when the fetch log is read; or an older copy is restored after the log was deleted."""
    site.ask_for_installation()
    _pass(site, 1)
    site.back_up()
    site.boot(path, goes_on=True)
    site.start_endpoint()  # the fetch log only deletes files of writers that are gone
    if is_restored:
        _pass(site, 1)
        site.restore(site.backups[-1], ("output",))
    else:
        with site.full():
            _pass(site, 1)
    site.start_endpoint()
    site.wait(61)
    site.boot(again, goes_on=True)


@step(weight=1, passes=choose_from((0, 1)))
def the_tree_is_lost(site: Site, passes: int) -> None:
    site.lose_output()
    site.start_instance()
    site.start_endpoint()
    _pass(site, passes)
    site.boot(LOOKUPS[0], goes_on=True)


# Operators


@step(provisioned=choose_from((False, False, True)))
def an_operator_sets_its_record(site: Site, provisioned: bool) -> None:
    site.set_record(provisioned=provisioned)
    site.reconcile()


@step(everything=BOOLEANS, path=PATHS, is_gone=BOOLEANS)
def an_operator_stops(site: Site, everything: bool, path: str, is_gone: bool) -> None:
    if is_gone:
        site.stop_instance()
    site.stop(everything=everything)
    site.boot(path, goes_on=True)


@step()
def an_operator_starts(site: Site) -> None:
    site.start()


@step()
def an_operator_adopts(site: Site) -> None:
    site.adopt()


@step(weight=1)
def an_operator_accepts_the_clock(site: Site) -> None:
    site.accept_clock()


# Lives


@dataclass(frozen=True)
class Life:
    """One life: how its site is, and what happens there."""

    ways: Ways
    has_bmc: bool
    netboots: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.ways} has_bmc={self.has_bmc} netboots={self.netboots}", *map(str, self.steps)])


def draw_life(seed: int, number: int, kinds: Kinds = KINDS) -> Life:
    draws = Random(f"{seed}/{number}")
    evidence = draws.choice(("Fetched", "Reported"))
    ways = Ways(
        often=draws.choice(("Once", "Once", "OnImageChange")),
        evidence=evidence,
        attempts=draws.choice((1, 2)) if evidence == "Reported" else 1,
        boots=draws.choice((1, 1, 1, 2)),
        names_endpoint=draws.choice((True, False)),
        is_guarded=draws.choice((False, False, True)),
    )
    names = draws.choices(list(kinds), [each.weight for each in kinds.values()], k=draws.randint(5, LONGEST))
    steps = tuple(Step(name, kinds[name].draw(draws)) for name in names)
    return Life(ways, draws.choice((False, True)), draws.choice((True, True, False)), steps)


@dataclass
class World:
    """The common parts of lives: their folder, and the BMCs one after another."""

    folder: Path
    bmcs: Mapping[str, RedfishServer]
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Kinds = field(default_factory=lambda: KINDS)
    is_strict: bool = False  # whether each site checks the promises of `tests.helpers.site_lives.faults`, too
    site_of: Callable[..., Site] = Site

    def live(self, life: Life) -> list[str]:
        """Run a life and return its faults; at the end, undisturbed, everything must be in order."""
        bmcs = self.bmcs if life.has_bmc else {}
        site = self.site_of(Path(mkdtemp(dir=self.folder)), bmcs, life.ways, life.netboots, self.is_strict)
        try:
            for each in life.steps:
                self.kinds[each.name].do(site, **each.facts)
                self.counts[f"step: {each.name}"] += 1
                if site.book.violations:
                    return site.book.violations
            site.calm_down()
            return site.book.violations
        finally:
            site.close()
            self.counts["asked for"] += len(site.book.requests)
            self.counts.update(site.counts)

    def shortest(self, life: Life) -> Life:
        """The same life without the steps that what is wrong does not need."""
        steps, before = list(life.steps), Counter(self.counts)
        for length in (8, 4, 2, 1, 1):
            position = 0
            while position < len(steps):
                fewer = Life(life.ways, life.has_bmc, life.netboots, (*steps[:position], *steps[position + length :]))
                if self.live(fewer):
                    steps = list(fewer.steps)
                else:
                    position += length
        self.counts.clear()
        self.counts.update(before)
        return Life(life.ways, life.has_bmc, life.netboots, tuple(steps))


@contextmanager
def world(
    folder: Path, kinds: Kinds = KINDS, *, is_strict: bool = False, site_of: Callable[..., Site] = Site
) -> Iterator[World]:
    """Yield a world whose processes are mortal, for lives of these kinds of steps."""
    with ExitStack() as stack:
        bmcs = {name: stack.enter_context(RedfishServer(Service())) for name in ("a", "b")}
        stack.enter_context(patch_system_calls())
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        yield World(folder, bmcs, kinds=kinds, is_strict=is_strict, site_of=site_of)


def folder_for_lives() -> TemporaryDirectory[str]:
    """Return the folder of lives: in memory, if possible."""
    return TemporaryDirectory(prefix="gitboot-lives-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)


def say(*lines: object) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> int:
    """Run many lives, print the progress, and at the end a summary of the events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    parser.add_argument("--all", action="store_true", help="go on after a life in which something is wrong")
    given = parser.parse_args()
    began, wrong = time.monotonic(), 0
    with folder_for_lives() as folder, world(Path(folder)) as lived:
        for number in range(given.first, given.first + given.lives):
            life = draw_life(given.seed, number)
            if lived.live(life):
                wrong += 1
                shortest = lived.shortest(life)
                say(f"life {number} of seed {given.seed}:", shortest, *lived.live(shortest))
                if not given.all:
                    break
            if (number - given.first + 1) % 100 == 0:
                cpu_s, all_s = sum(os.times()[:4]), time.monotonic() - began
                say(f"{number - given.first + 1} lives, {wrong} wrong, {cpu_s:.0f} s of CPU, {all_s:.0f} s in all")
    say(f"seed {given.seed}, lives {given.first} to {number}: {wrong} in which something is wrong")
    say(*(f"{times:9} {what}" for what, times in sorted(lived.counts.items())))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
