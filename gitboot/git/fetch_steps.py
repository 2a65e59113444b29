"""Fetch steps: report the progress of a fetch to the process that waits for the fetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

# The maximum time without progress, which equals the limit for a stage of a reconcile (docs/reference/limits.md).
WORK_TIMEOUT_S: Final = 120.0
MIN_RATE: Final = 1 << 10  # in bytes per second; the value is from curl's manual for --speed-limit
_WORK_REPORT_INTERVAL_S: Final = 1.0  # the time between two reports of the same work


class FetchStep(msgspec.Struct, frozen=True, tag=True):
    """A report that a fetch is about to start a step."""

    timeout_s: float  # the time limit for this step, until the next step begins
    timeout_message: str  # the message of the error if the next step does not begin in time


ReportStep = Callable[[FetchStep], None]


class Transfer:
    """A transfer to or from a server.

    In each period of ``period_s`` seconds, the average transfer rate must be at least 1 KiB/s.
    """

    def __init__(self, report: ReportStep, period_s: float, verb: str, *, work_s: float = 0) -> None:
        """Create a transfer. ``work_s`` is the time limit for work on this machine before the transfer begins."""
        self._report = report
        self._min_bytes = max(1, round(MIN_RATE * period_s))  # the bytes that must arrive in each period
        message = (
            f"the remote {verb} less than {self._min_bytes} bytes in {period_s:g} s "
            "(see git-timeout in the --config file)"
        )
        self._step = FetchStep(period_s, message)
        self._counted_bytes = 0  # the size of the transfer at the last report
        report(FetchStep(work_s + period_s, message))

    def report_size(self, size_bytes: int) -> None:
        """Report a step if enough data has arrived since the last step. ``size_bytes`` is the size up to now."""
        if size_bytes - self._counted_bytes >= self._min_bytes:
            self._counted_bytes = size_bytes
            self._report(self._step)


class StepReporter:
    """Reports the steps of one fetch to the process that waits for the fetch."""

    def __init__(self, report: ReportStep, now_s: Callable[[], float] = time.monotonic) -> None:
        self._report, self._now_s = report, now_s
        # The time of the last report about work, or None if the last report was about another kind of step.
        self._work_reported_s: float | None = None

    def begin_answer(self, timeout_s: float) -> None:
        self._work_reported_s = None
        message = f"the response was not complete after {timeout_s:g} s (see git-timeout in the --config file)"
        self._report(FetchStep(timeout_s, message))

    def begin_download(self, period_s: float) -> Transfer:
        self._work_reported_s = None
        return Transfer(self._report, period_s, "sent")

    def begin_upload(self, period_s: float) -> Transfer:
        self._work_reported_s = None
        return Transfer(self._report, period_s, "received", work_s=WORK_TIMEOUT_S)

    def report_work(self) -> None:
        now_s = self._now_s()
        if self._work_reported_s is None or now_s - self._work_reported_s >= _WORK_REPORT_INTERVAL_S:
            self._work_reported_s = now_s
            self._report(FetchStep(WORK_TIMEOUT_S, f"the fetch made no progress for {WORK_TIMEOUT_S:g} s"))


_steps: ContextVar[StepReporter | None] = ContextVar("fetch steps of this thread", default=None)


def get_step_reporter() -> StepReporter:
    """Return the step reporter for the fetch in this thread.

    Outside of `report_steps_to`, the result is a reporter that discards all reports.
    """
    return _steps.get() or StepReporter(lambda _: None)


def report_work() -> None:
    """Report that the fetch in this thread does work on this machine. Outside of a fetch, do nothing."""
    if (reporter := _steps.get()) is not None:
        reporter.report_work()


@contextmanager
def report_steps_to(report: ReportStep) -> Iterator[None]:
    """Pass the steps of the fetch in this thread to ``report`` until the end of the `with` block."""
    token = _steps.set(StepReporter(report))
    try:
        yield
    finally:
        _steps.reset(token)
