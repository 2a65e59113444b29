"""Loop: fetches in a thread, and reconciles at events, at transitions and at intervals."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gitboot.background_threads import BackgroundThread, SignalQueue, list_failures, notify_on_death
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.reconcile import Reconciler
from gitboot.errors import OperatorError, TemporaryError
from gitboot.git.clone import Source
from gitboot.jsonio import format_instant
from gitboot.status.conditions import Event
from gitboot.status.instance_status import WRITTEN_EVERY_S, Endpoints, ThreadFailure
from gitboot.status.work_progress import Stage
from gitboot.system_clock import ClockState

if TYPE_CHECKING:
    from gitboot.controller.forge import ForgeReader
    from gitboot.controller.notifications import Notices

_JITTER: Final = 0.1  # fraction of the poll interval, so that instances do not all contact a server at the same time
SLOW_S: Final = 120.0  # a longer fetch sets `SourceReady` to false
STALLED_S: Final = 120.0  # a stage that makes no progress for longer counts as stalled
_CHECK_EVERY_S: Final = 10.0  # interval between checks for a stalled stage
_CHECK_CLOCK_S: Final = 2.0  # interval between checks whether the clock was set
_EVALUATION_S: Final = 2.0  # long enough for nearly every commit; other events end the wait earlier


class WakeCause(Enum):
    """The reason why the loop woke up."""

    ANYTHING = auto()
    COMMIT = auto()  # there may be a new commit; nothing else happened


class WakeSignal:
    """A signal that threads and signal handlers may send. All signals sent before the next `wait` are merged."""

    def __init__(self) -> None:
        self._queue: SignalQueue[WakeCause] = SignalQueue()
        self.is_stopped = False  # whether `stop` was called

    def wake(self, cause: WakeCause = WakeCause.ANYTHING) -> None:
        self._queue.put(cause)

    def stop(self) -> None:
        """End the loop that uses this signal."""
        self.is_stopped = True
        self.wake()

    def wait(self, timeout_s: float) -> frozenset[WakeCause]:
        """Wait at most ``timeout_s`` seconds for a signal. Return the causes of all signals since the last wait."""
        causes = set[WakeCause]()
        while (cause := self._queue.get(0 if causes else timeout_s)) is not None:
            causes.add(cause)
        return frozenset(causes)


class Loop:
    """A loop that reconciles in the calling thread and fetches in another thread.

    A slow Git server therefore does not delay the start and end of windows.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        source: Source,
        *,
        poll_s: float,
        clock: Callable[[], datetime],
        tell: Callable[[Event], None],
        wake_signal: WakeSignal | None = None,
        read_clock_state: Callable[[], ClockState] = lambda: ClockState.UNKNOWN,
        forge: ForgeReader | None = None,
        notices: Notices | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._source = source
        self._poll_s = poll_s
        self._clock = clock
        self._report_event = tell
        self._read_clock_state = read_clock_state
        self._forge = forge
        self._notices = notices
        self._reconcile_signal = wake_signal or WakeSignal()  # signals that a reconcile is due now
        self._fetch_signal = WakeSignal()  # signals that a fetch is due now
        self._stopping = False
        self._stopped = threading.Event()  # set when the last reconcile has ended
        self._last_result: LastFetch | None = None
        self._slow_since: datetime | None = None  # start of the current fetch, if it is slow

    def wake(self) -> None:
        """Request an immediate reconcile. Threads and signal handlers may call this."""
        self._reconcile_signal.wake()

    def fetch_now(self) -> None:
        """Request an immediate fetch, followed by a reconcile. Threads and signal handlers may call this."""
        self._fetch_signal.wake()

    def stop(self) -> None:
        """End `run` after the current reconcile. Threads and signal handlers may call this."""
        self._stopping = True
        self._reconcile_signal.wake()
        self._fetch_signal.wake()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds for `run` to end. Return whether `run` has ended."""
        return self._stopped.wait(timeout_s)

    def run_once(self) -> None:
        """Fetch, reconcile, and wait for the BMC tasks."""
        self._fetch_once()
        self._reconcile(wait=True)
        if self._reconciler.has_new_answers():
            self._reconcile(wait=True)
        for _ in range(2):  # first process all fetches so far, then judge the commit by the records
            if self._reconciler.state.acceptance.awaits_records:
                self._reconcile(wait=True)

    def run(self, endpoints: Callable[[], Endpoints] | None = None) -> None:
        """Reconcile until `stop` is called or the wake signal has been stopped.

        ``endpoints`` returns the state of the endpoints.
        """
        threads = [
            BackgroundThread(self._fetch_repeatedly, name="fetch", on_death=self._record_fetch_failure),
            BackgroundThread(self._watch_stages, name="stages"),
        ]
        # File system events may be missed, but the poll finds every new commit.
        fetch = partial(self._fetch_signal.wake, WakeCause.COMMIT)
        try:
            for thread in threads:
                thread.start()
            with notify_on_death(self.wake), watch_folders(*self._source.watch_paths(), wake=fetch):
                while not (self._stopping or self._reconcile_signal.is_stopped):
                    self._wait_until_due(self._reconcile(endpoints=endpoints() if endpoints is not None else None))
        finally:
            self.stop()
            self._stopped.set()
            for thread in threads:
                thread.join(timeout_s=1)  # a thread that hangs on the network ends with the process

    def _wait_until_due(self, due: datetime | None) -> None:
        """Wait until ``due``, or until there is another reason to reconcile.

        If there is a new commit, start its evaluation and wait a short time for the result. If the evaluation takes
        longer, a reconcile reports the slow evaluation in the status. The status is written at its own interval even if
        the poll interval is longer, so that readers can detect a stale status.
        """
        causes = self._wait_until(due, min(self._poll_s, WRITTEN_EVERY_S))
        if (
            causes == {WakeCause.COMMIT}
            and not self._stopping
            and self._reconciler.start_evaluation(self._last_fetch(), self._clock())
        ):
            self._reconcile_signal.wait(self._limit_wait_s(due, min(self._poll_s, _EVALUATION_S)))

    def _wait_until(self, due: datetime | None, max_s: float) -> frozenset[WakeCause]:
        """Wait for a signal, until ``due``, or at most ``max_s`` seconds. Return the causes of the signals.

        Check the clock repeatedly, because a time service may set the clock, and because a timeout does not count the
        time during which the host is suspended.
        """
        end_s = time.monotonic() + max_s
        while True:
            wait_s = max(self._limit_wait_s(due, end_s - time.monotonic()), 0)
            causes = self._reconcile_signal.wait(min(wait_s, _CHECK_CLOCK_S))
            if causes or wait_s <= _CHECK_CLOCK_S:
                return causes

    def _limit_wait_s(self, due: datetime | None, max_s: float) -> float:
        """Return ``max_s``, or the seconds until ``due`` if that is earlier."""
        return max_s if due is None else min(max_s, max((due - self._clock()).total_seconds(), 0))

    def _reconcile(self, *, endpoints: Endpoints | None = None, wait: bool = False) -> datetime | None:
        """Reconcile now, and return when the next reconcile is due."""
        fetched = self._last_fetch()
        due = self._reconciler.reconcile(
            self._clock(),
            fetched=fetched,
            endpoints=endpoints,
            forge_report=self._forge.forge_report if self._forge is not None else None,
            notice_failure=self._notices.failure if self._notices is not None else None,
            clock_state=self._read_clock_state(),
            thread_failures=tuple(ThreadFailure(*each) for each in list_failures()),
            wait=wait,
        )
        if self._notices is not None:
            self._notices.check_events()
        return due

    def _fetch_once(self) -> None:
        """Fetch, keep the result for the next reconcile, and report a new commit or a new error."""
        before = self._last_result
        stopwatch = self._reconciler.stage_times.start()
        began = self._clock()
        slow_timer = threading.Timer(SLOW_S, self._report_slow_fetch, (began,))
        slow_timer.daemon = True
        slow_timer.start()
        error: Exception | None = None
        commit = before.commit if before is not None else None
        try:
            commit = self._source.fetch()
        except (TemporaryError, OperatorError) as failure:
            if self._stopping:
                return  # `stop` interrupted the fetch
            error = failure
        finally:
            slow_timer.cancel()
            slow_timer.join()
            was_slow = self._slow_since is not None
            self._slow_since = None
        stopwatch(Stage.FETCH)
        if self._forge is not None:
            self._forge.read_known_changes(has_fetched=error is None)
        fetched = LastFetch(began=began, commit=commit, branch_mismatch=self._source.branch_mismatch)
        if error is not None:
            fetched = replace(fetched, reason=type(error).__name__, message=str(error), failed=True)
        self._last_result = fetched
        self._report_fetch(before, fetched, was_slow=was_slow)

    def _report_fetch(self, before: LastFetch | None, fetched: LastFetch, *, was_slow: bool) -> None:
        """Report a new commit or a new error as an event, and wake the loop if a fetch changed the status."""
        if before is None or (fetched.commit, fetched.message) != (before.commit, before.message):
            if fetched.failed:
                self._report_event(Event(at=self._clock(), type="FetchFailed", message=fetched.message, warning=True))
            elif (commit := fetched.commit) is not None:
                facts = {"commit": commit}
                self._report_event(Event(at=self._clock(), type="Fetched", message=commit[:12], facts=facts))
            self._reconcile_signal.wake(WakeCause.ANYTHING if fetched.failed else WakeCause.COMMIT)
        elif was_slow or fetched.branch_mismatch != before.branch_mismatch:
            self._reconcile_signal.wake()

    def _report_slow_fetch(self, began: datetime) -> None:
        self._slow_since = began
        self._reconcile_signal.wake()

    def _last_fetch(self) -> LastFetch | None:
        """Return the result of the last fetch, or a failure if the current fetch takes too long."""
        last, since = self._last_result, self._slow_since
        if since is None:
            return last
        return LastFetch(
            reason="SlowFetch",
            message=f"the fetch that began at {format_instant(since)} is still running",
            failed=True,
            branch_mismatch=last.branch_mismatch if last is not None else None,
        )

    def _record_fetch_failure(self, message: str) -> None:
        self._last_result = replace(
            self._last_result or LastFetch(),
            reason="SourceError",
            message=f"gitboot's fetch thread failed: {message}",
            failed=True,
            began=None,
        )

    def _fetch_repeatedly(self) -> None:
        was_requested = False
        while not self._stopping:
            self._fetch_once()
            if was_requested:
                self.wake()
            jitter = 1 + random.uniform(-_JITTER, _JITTER)  # noqa: S311 - spreads load, not for security
            was_requested = WakeCause.ANYTHING in self._fetch_signal.wait(self._poll_s * jitter)
            if was_requested and not self._stopping:
                self._reconciler.retry_targets()

    def _watch_stages(self) -> None:
        """Report each stalled stage once. The report disappears when a reconcile ends."""
        reported: Stage | None = None
        while not self._stopped.wait(_CHECK_EVERY_S):
            stalled = self._reconciler.stage_times.find_stalled_stage(STALLED_S)
            if stalled is not None and stalled is not reported:
                self._reconciler.report_stalled(stalled, STALLED_S, self._clock())
            reported = stalled


@contextmanager
def watch_folders(*folders: Path | None, wake: Callable[[], None], recursive: bool = True) -> Iterator[None]:
    """Call ``wake`` from a thread whenever a file in one of these folders changes, until the block ends.

    A folder of None is skipped. With ``recursive``, also watch all subfolders. Some changes cause no event, so callers
    must poll too.
    """
    paths = [folder for folder in folders if folder is not None]
    if not paths:
        yield
        return
    import watchfiles  # gitboot imports this module here, because a single reconcile does not need it

    ended = threading.Event()

    def keep_waking() -> None:
        # The default filter of watchfiles ignores files in .git, so do not use it.
        for _ in watchfiles.watch(
            *paths,
            watch_filter=None,
            stop_event=ended,
            debounce=50,
            step=10,
            raise_interrupt=False,
            recursive=recursive,
        ):
            wake()

    thread = BackgroundThread(keep_waking, name=f"watch-{paths[0].name}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout_s=1)
