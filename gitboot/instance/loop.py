"""The loop: passes when something happened, when the clock says so, and often enough besides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import watchfiles

from gitboot.errors import LedgerError, OperatorError, TryAgain
from gitboot.instance.reconcile import Reconciler
from gitboot.load import Revision
from gitboot.source import Source
from gitboot.status import Event

LEDGER_RETRY: Final = timedelta(seconds=5)
_JITTER: Final = 0.1  # of the poll, so that many instances do not ask one server at once


class Loop:
    """Fetches beside the passes, so that a remote that hangs delays no window."""

    def __init__(
        self,
        reconciler: Reconciler,
        source: Source,
        *,
        poll_s: float,
        clock: Callable[[], datetime],
        tell: Callable[[Event], None],
        before_pass: Callable[[], None] = lambda: None,
        after_pass: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_pass, self._after_pass = before_pass, after_pass
        self._reconciler, self._source = reconciler, source
        self._poll_s, self._clock, self._tell = poll_s, clock, tell
        # Signal handlers run between any two steps of the main thread, which may hold an Event's lock just then:
        # setting that Event would wait for ever. Queues are made for it, and a flag is only written.
        self._wakes: SimpleQueue[None] = SimpleQueue()  # the next pass is due now
        self._fetches: SimpleQueue[None] = SimpleQueue()  # the next fetch is due now
        self._stopping = False
        self._stopped = threading.Event()  # for those who watch; set once the last pass has ended
        self._fetched: tuple[Revision | None, TryAgain | OperatorError | None] | None = None

    def wake(self) -> None:
        """Ask for a pass now; from any thread or signal handler."""
        self._wakes.put(None)

    def fetch_now(self) -> None:
        """Ask for a fetch now, and for a pass after it; from any thread or signal handler."""
        self._fetches.put(None)

    def stop(self) -> None:
        """End `run` after the pass that is under way; from any thread or signal handler."""
        self._stopping = True
        self._wakes.put(None)
        self._fetches.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until `run` has ended, or for so long; say whether it has."""
        return self._stopped.wait(timeout_s)

    def once(self) -> None:
        """Fetch, do one pass, and wait for its BMC jobs."""
        self._fetch_once()
        self._pass(wait=True)

    def run(self) -> None:
        """Pass after pass, until `stop`."""
        threads = [threading.Thread(target=self._keep_fetching, name="fetch", daemon=True)]
        if watched := self._source.watch_paths():
            threads.append(threading.Thread(target=self._watch, args=(watched,), name="watch", daemon=True))
        for thread in threads:
            thread.start()
        while not self._stopping:
            due = self._pass()
            timeout_s = self._poll_s
            if due is not None:
                timeout_s = min(timeout_s, max((due - self._clock()) / timedelta(seconds=1), 0))
            _waited(self._wakes, timeout_s)
        self._stopped.set()
        for thread in threads:
            thread.join(timeout=1)  # one that hangs in the network ends with the process

    def _pass(self, *, wait: bool = False) -> datetime | None:
        at = self._clock()
        if self._fetched is not None:
            self._reconciler.source_fetched(self._fetched[1], at)
        self._before_pass()
        try:
            due = self._reconciler.reconcile(at, wait=wait)
        except LedgerError as error:  # a full disk; the endpoint goes on, and so does the next pass
            self._reconciler.ledger_failed(error, at)
            self._tell(Event(at=at, type="LedgerFailed", message=str(error), warning=True))
            return at + LEDGER_RETRY
        self._after_pass()
        return due

    def _fetch_once(self) -> None:
        before = self._fetched
        try:
            fetched: tuple[Revision | None, TryAgain | OperatorError | None] = (self._source.fetch(), None)
        except (TryAgain, OperatorError) as error:
            fetched = (before[0] if before else None, error)
        self._fetched = fetched
        if before is None or before[0] != fetched[0] or str(before[1]) != str(fetched[1]):
            self._told(fetched)
            self.wake()

    def _told(self, fetched: tuple[Revision | None, TryAgain | OperatorError | None]) -> None:
        revision, error = fetched
        at = self._clock()
        if error is not None:
            self._tell(Event(at=at, type="FetchFailed", message=str(error), warning=True))
        elif revision is not None:
            self._tell(Event(at=at, type="Fetched", message=f"{revision[:12]}", facts={"commit": revision}))

    def _keep_fetching(self) -> None:
        asked = False
        while not self._stopping:
            self._fetch_once()
            if asked:
                self.wake()
            jitter = 1 + random.uniform(-_JITTER, _JITTER)  # noqa: S311 - spreads load, guards nothing
            asked = _waited(self._fetches, self._poll_s * jitter)

    def _watch(self, paths: tuple[Path, ...]) -> None:
        """Fetch when the refs of a local repository change; events only wake, the poll is the guarantee."""
        # watchfiles' default filter leaves out whatever lies in a .git.
        changes = watchfiles.watch(
            *paths, watch_filter=None, stop_event=self._stopped, debounce=50, step=20, raise_interrupt=False
        )
        for _ in changes:
            self.fetch_now()


def _waited(asked: SimpleQueue[None], timeout_s: float) -> bool:
    """Wait until something is asked for, and take all of it as one; say whether anything was."""
    try:
        asked.get(timeout=timeout_s)
    except Empty:
        return False
    with suppress(Empty):
        while True:
            asked.get_nowait()
    return True
