"""Steps of a fetch: each has a deadline, by which the process that fetches has to report the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

WORK_S: Final = 120.0  # without progress: as long as a stage of a reconcile may take (docs/running.md)
SLOWEST: Final = 1 << 10  # bytes a second: as curl's manual suggests for --speed-limit
_WORK_EVERY_S: Final = 1.0  # between two reports of work that goes on


class Step(msgspec.Struct, frozen=True, tag=True):
    """What a fetch does from now on."""

    within_s: float  # until the next step begins
    complaint: str  # the error if it does not


ReportStep = Callable[[Step], None]


class Transfer:
    """Data that a server sends or takes: at least 1 KiB/s, counted over periods of ``period_s``."""

    def __init__(self, report: ReportStep, period_s: float, verb: str, *, work_s: float = 0) -> None:
        """``work_s`` is the time for work on this host before the transfer begins."""
        self._report, self._size = report, max(1, round(SLOWEST * period_s))
        complaint = f"it {verb} less than {self._size} bytes in {period_s:g} s (git-timeout in the file of --config)"
        self._step, self._counted = Step(period_s, complaint), 0
        report(Step(work_s + period_s, complaint))

    def count(self, size_bytes: int) -> None:
        """Note how much was sent or taken since the transfer began."""
        if size_bytes - self._counted >= self._size:
            self._counted = size_bytes
            self._report(self._step)


class Steps:
    """Reports the steps of one fetch to whoever waits for it."""

    def __init__(self, report: ReportStep, now_s: Callable[[], float] = time.monotonic) -> None:
        self._report, self._now_s = report, now_s
        self._worked_s: float | None = None  # when work was reported last; None: another step was

    def begin_answer(self, within_s: float) -> None:
        """Begin to wait for a server's answer as a whole."""
        self._worked_s = None
        complaint = f"its answer was not complete after {within_s:g} s (git-timeout in the file of --config)"
        self._report(Step(within_s, complaint))

    def begin_download(self, period_s: float) -> Transfer:
        """Begin to wait for data of a server."""
        self._worked_s = None
        return Transfer(self._report, period_s, "sent")

    def begin_upload(self, period_s: float) -> Transfer:
        """Begin to pack data on this host, and to send it to a server."""
        self._worked_s = None
        return Transfer(self._report, period_s, "took", work_s=WORK_S)

    def note_work(self) -> None:
        """Report that work on this host begins, or goes on."""
        now_s = self._now_s()
        if self._worked_s is None or now_s - self._worked_s >= _WORK_EVERY_S:
            self._worked_s = now_s
            self._report(Step(WORK_S, f"the fetch made no progress for {WORK_S:g} s"))


_steps: ContextVar[Steps | None] = ContextVar("steps of the fetch that this thread makes", default=None)


def steps() -> Steps:
    """Return the steps of the fetch that this thread makes. Outside of `reported`, nobody gets the reports."""
    return _steps.get() or Steps(lambda _: None)


def note_work() -> None:
    """Report that work on this host goes on, if anybody gets the reports."""
    if (found := _steps.get()) is not None:
        found.note_work()


@contextmanager
def reported(report: ReportStep) -> Iterator[None]:
    """Report the steps of a fetch that this thread makes in the block."""
    token = _steps.set(Steps(report))
    try:
        yield
    finally:
        _steps.reset(token)
