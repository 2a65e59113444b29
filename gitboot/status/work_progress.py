"""Progress and durations of long work."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from gitboot.text import count

Told = Callable[[int, int], None]  # how much is done, and of how much
_T = TypeVar("_T")


def unheard(_done: int, _total: int) -> None:
    """Where nobody listens."""


def counted(items: Collection[_T], told: Told) -> Iterator[_T]:
    """Each of the items; ``told`` is called before each of them, and at the end."""
    total = len(items)
    for done, item in enumerate(items):
        told(done, total)
        yield item
    told(total, total)


class Work(StrEnum):
    """What takes long where a fleet is large, in the order in which a commit goes through it."""

    READ = "Reading"  # and then deciding, of which nothing is counted
    PLAN = "Planning"
    PUBLISH = "Publishing"


_OF: Final = {Work.READ: "file", Work.PLAN: "server", Work.PUBLISH: "step"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Underway:
    """Work that is being done."""

    work: Work
    done: int
    total: int
    left_s: int | None  # as far as that follows from what is done; None: nothing does yet

    @property
    def message(self) -> str:
        """In words: planning: 40,000 of 100,000 servers, about 90 s left (2 of 3)."""
        left = f", about {self.left_s:,} s left" if self.left_s is not None else ""
        number = list(Work).index(self.work) + 1
        return (
            f"{self.work.lower()}: {self.done:,} of {count(self.total, _OF[self.work])}{left} ({number} of {len(Work)})"
        )

    def facts(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "done": self.done,
            "total": self.total,
            "leftSeconds": self.left_s,
            "message": self.message,
        }


BOUNDS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0, 60.0, 120.0, 300.0)  # each with its bucket


class Stage(StrEnum):
    """What takes its time; `docs/architecture.md` says what each does."""

    FETCH = "fetch"  # beside the reconciles
    EVALUATE = "evaluate"  # one commit, beside them
    BMC = "bmc"  # one job, beside them
    TAKE_IN = "take_in"
    ACCEPT = "accept"
    LEARN = "learn"
    WRITE = "write"
    PLAN = "plan"
    PUBLISH = "publish"
    ASK = "ask"
    REPORT = "report"
    RECONCILE = "reconcile"  # all of one


# A reconcile's stages, in their order: of each, the next begins where it ends.
_RECONCILED: Final = (
    *(Stage.TAKE_IN, Stage.ACCEPT, Stage.LEARN, Stage.WRITE, Stage.PLAN, Stage.PUBLISH, Stage.ASK, Stage.REPORT),
)


class Laps:
    """What was measured since the start, from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self._counts = {stage: [0] * (len(BOUNDS_S) + 1) for stage in Stage}  # the last: longer than all bounds
        self._seconds = dict.fromkeys(Stage, 0.0)
        self._under_way: tuple[Stage, float] | None = None  # a stage of a reconcile, and when it last made progress

    def start(self, first: Stage | None = None) -> Lap:
        """A stopwatch that runs from now on; ``first`` is the stage of a reconcile that begins with it."""
        if first is not None:
            self.enter(first)
        return Lap(self, self._clock_s, of_reconcile=first is not None)

    def enter(self, stage: Stage | None) -> None:
        """Note which stage of a reconcile begins; None: no reconcile is under way."""
        self._under_way = (stage, self._clock_s()) if stage is not None else None

    def note_progress(self) -> None:
        """Note that the stage of a reconcile that is under way goes on."""
        under_way = self._under_way
        if under_way is not None:
            self.enter(under_way[0])

    def stalled(self, seconds: float) -> Stage | None:
        """Return the stage of a reconcile that has made no progress for so long; None: none is under way, or it has."""
        under_way = self._under_way
        is_stalled = under_way is not None and self._clock_s() - under_way[1] >= seconds
        return under_way[0] if under_way is not None and is_stalled else None

    def add(self, stage: Stage, seconds: float) -> None:
        """Count a stage that has taken so long; what equals a bound is below it."""
        with self._lock:
            self._counts[stage][bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[stage] += seconds

    def facts(self) -> dict[str, Any]:
        """All of it for the status: how often a stage took how long, and for how long in all; those that ran."""
        with self._lock:
            return {
                str(stage): {"boundsS": list(BOUNDS_S), "counts": list(counts), "seconds": self._seconds[stage]}
                for stage, counts in self._counts.items()
                if any(counts)
            }


class Lap:
    """A stopwatch: each call counts a stage, from the end of the one before."""

    def __init__(self, laps: Laps, clock_s: Callable[[], float], *, of_reconcile: bool = False) -> None:
        self._laps, self._clock_s, self._of_reconcile = laps, clock_s, of_reconcile
        self._began = self._last = clock_s()

    def __call__(self, stage: Stage) -> None:
        now = self._clock_s()
        self._laps.add(stage, now - self._last)
        self._last = now
        if self._of_reconcile and stage is not _RECONCILED[-1]:
            self._laps.enter(_RECONCILED[_RECONCILED.index(stage) + 1])

    def end(self, stage: Stage) -> None:
        """Count all of it since the start."""
        if self._of_reconcile:
            self._laps.enter(None)
        self._laps.add(stage, self._clock_s() - self._began)


FIRST_S: Final = 5.0  # what ends before that is not worth a word
EVERY_S: Final = 10.0


@dataclass(kw_only=True, slots=True)
class _Stretch:
    """One kind of work, since it began."""

    began_s: float
    next_s: float  # when it is told
    is_told: bool = False


class WorkListener:
    """Listens to whoever works, and tells now and then; None: what was told last has ended."""

    def __init__(
        self,
        told: Callable[[Underway | None], None] = lambda _: None,
        *,
        progress: Callable[[], None] = lambda: None,  # called whenever work goes on
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told, self._clock_s, self._lock = told, clock_s, threading.Lock()
        self._progress = progress
        self._stretches: dict[Work, _Stretch] = {}

    def of(self, work: Work) -> Told:
        """Who is to be called as that work goes on, with 0 at its beginning and with all at its end."""
        return partial(self._note, work)

    def _note(self, work: Work, done: int, total: int) -> None:
        self._progress()
        now = self._clock_s()
        with self._lock:
            stretch = self._stretches.get(work)
            if stretch is None or (done == 0 and total):
                stretch = self._stretches[work] = _Stretch(began_s=now, next_s=now + FIRST_S)
            if done >= total:
                del self._stretches[work]
                if stretch.is_told:
                    self._told(None)
            elif now >= stretch.next_s:
                stretch.next_s, stretch.is_told = now + EVERY_S, True
                left = round((now - stretch.began_s) * (total - done) / done) if done else None
                self._told(Underway(work=work, done=done, total=total, left_s=left))
