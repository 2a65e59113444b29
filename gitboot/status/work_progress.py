"""Work progress: the progress of long-running work, and the durations of stages."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct

from gitboot.text import format_count

ReportProgress = Callable[[int, int], None]  # called with the number of finished items and the total number
_T = TypeVar("_T")


def ignore_progress(_done: int, _total: int) -> None:
    """Ignore a progress report."""


def iterate_with_progress(items: Collection[_T], report: ReportProgress) -> Iterator[_T]:
    """Yield each item. Report the progress before each item and at the end."""
    total = len(items)
    for done, item in enumerate(items):
        report(done, total)
        yield item
    report(total, total)


# Work


class Work(StrEnum):
    """The kinds of work that take a long time for a large fleet, in the order in which a reconcile does them."""

    READ = "Reading"  # the time includes the decisions, but the numbers count only files
    PLAN = "Planning"
    PUBLISH = "Publishing"


_UNITS: Final = {Work.READ: "file", Work.PLAN: "server", Work.PUBLISH: "step"}


class WorkProgress(Struct, frozen=True, kw_only=True):
    work: Work
    done: int
    total: int
    remaining_s: int | None  # estimated time left; None: no estimate yet

    @property
    def message(self) -> str:
        """Return a text such as "planning: 40,000 of 100,000 servers, about 90 s left (2 of 3)"."""
        left = f", about {self.remaining_s:,} s left" if self.remaining_s is not None else ""
        number = list(Work).index(self.work) + 1
        done = f"{self.done:,} of {format_count(self.total, _UNITS[self.work])}"
        return f"{self.work.lower()}: {done}{left} ({number} of {len(Work)})"

    def facts(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "done": self.done,
            "total": self.total,
            "leftSeconds": self.remaining_s,
            "message": self.message,
        }


FIRST_S: Final = 5.0  # shorter work is not reported
EVERY_S: Final = 10.0


class _WorkPeriod(Struct, kw_only=True):
    began_s: float
    next_s: float  # when the next report is due
    is_reported: bool = False


class WorkListener:
    """A listener for the progress of long work.

    The listener calls ``report`` at intervals, and once with None when the work ends.
    """

    def __init__(
        self,
        report: Callable[[WorkProgress | None], None] = lambda _: None,
        *,
        on_progress: Callable[[], None] = lambda: None,  # the listener calls this function at each step of the work
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._on_progress, self._clock_s = report, on_progress, clock_s
        self._lock = threading.Lock()
        self._periods: dict[Work, _WorkPeriod] = {}

    def make_reporter(self, work: Work) -> ReportProgress:
        """Return the progress callback for one kind of work.

        The caller must call the callback first with 0 finished items, and at the end with the total number of items.
        """
        return partial(self._record, work)

    def _record(self, work: Work, done: int, total: int) -> None:
        self._on_progress()
        now = self._clock_s()
        with self._lock:
            period = self._periods.get(work)
            if period is None or (done == 0 and total):
                period = self._periods[work] = _WorkPeriod(began_s=now, next_s=now + FIRST_S)
            if done >= total:
                del self._periods[work]
                if period.is_reported:
                    self._report(None)
            elif now >= period.next_s:
                period.next_s = now + EVERY_S
                period.is_reported = True
                left = round((now - period.began_s) * (total - done) / done) if done else None
                self._report(WorkProgress(work=work, done=done, total=total, remaining_s=left))


# Stages


BOUNDS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0, 60.0, 120.0, 300.0)  # upper bounds of buckets


class Stage(StrEnum):
    """A stage whose duration gitboot measures. docs/explanation/architecture.md describes the stages."""

    FETCH = "fetch"  # this stage runs in another thread
    EVALUATE = "evaluate"  # this stage evaluates one commit in another process
    BMC = "bmc"  # this stage is one BMC task in another thread
    TAKE_IN = "take_in"
    ACCEPT = "accept"
    LEARN = "learn"
    WRITE_LEDGER = "write_ledger"
    PLAN = "plan"
    PUBLISH = "publish"
    START_BMC_TASKS = "start_bmc_tasks"
    REPORT = "report"
    RECONCILE = "reconcile"  # this stage is a complete reconcile


# The stages of a reconcile, in order. Each stage begins when the previous stage ends.
_RECONCILE_STAGES: Final = (
    Stage.TAKE_IN,
    Stage.ACCEPT,
    Stage.LEARN,
    Stage.WRITE_LEDGER,
    Stage.PLAN,
    Stage.PUBLISH,
    Stage.START_BMC_TASKS,
    Stage.REPORT,
)


class StageTimes:
    """Histograms of the stage durations that were measured since the process started. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        # The last bucket counts durations above all bounds.
        self._counts = {stage: [0] * (len(BOUNDS_S) + 1) for stage in Stage}
        self._seconds = dict.fromkeys(Stage, 0.0)
        # The current stage of a reconcile, and when it last made progress.
        self._current: tuple[Stage, float] | None = None

    def start(self, first: Stage | None = None) -> Stopwatch:
        """Start a stopwatch. If a reconcile begins now, pass its first stage as ``first``."""
        if first is not None:
            self.enter(first)
        return Stopwatch(self, self._clock_s, is_reconcile=first is not None)

    def start_stage(self, stage: Stage) -> Callable[[], None]:
        """Start measuring the duration of a stage. Call the returned function when the stage ends."""
        return partial(self.start(), stage)

    def enter(self, stage: Stage | None) -> None:
        """Set the current stage of the reconcile. None means that no reconcile is running."""
        self._current = (stage, self._clock_s()) if stage is not None else None

    def note_progress(self) -> None:
        current = self._current
        if current is not None:
            self.enter(current[0])

    def find_stalled_stage(self, seconds: float) -> Stage | None:
        """Return the current stage if it has made no progress for at least ``seconds``, otherwise None."""
        current = self._current
        if current is None:
            return None
        stage, last_progress_s = current
        return stage if self._clock_s() - last_progress_s >= seconds else None

    def add(self, stage: Stage, seconds: float) -> None:
        """Add a stage's duration to its histogram. Bucket bounds are inclusive."""
        with self._lock:
            self._counts[stage][bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[stage] += seconds

    def facts(self) -> dict[str, Any]:
        with self._lock:
            return {
                str(stage): {"boundsS": list(BOUNDS_S), "counts": list(counts), "seconds": self._seconds[stage]}
                for stage, counts in self._counts.items()
                if any(counts)
            }


class Stopwatch:
    """A stopwatch for consecutive stages. Each call records a stage that began when the previous stage ended."""

    def __init__(self, times: StageTimes, clock_s: Callable[[], float], *, is_reconcile: bool = False) -> None:
        self._times, self._clock_s, self._is_reconcile = times, clock_s, is_reconcile
        self._began = self._last = clock_s()

    def __call__(self, stage: Stage) -> None:
        now = self._clock_s()
        self._times.add(stage, now - self._last)
        self._last = now
        if self._is_reconcile and stage is not _RECONCILE_STAGES[-1]:
            self._times.enter(_RECONCILE_STAGES[_RECONCILE_STAGES.index(stage) + 1])

    def end(self, stage: Stage) -> None:
        if self._is_reconcile:
            self._times.enter(None)
        self._times.add(stage, self._clock_s() - self._began)
