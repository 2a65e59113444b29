"""Background threads that restart after an error, and a queue for signal handlers."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from gitboot.errors import ForgeRefused, HostUnreachable, LedgerError, UsageError
from gitboot.text import printable

FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
_STEADY_S: Final = 60.0  # gitboot considers a thread healthy again after this time without an error
_LONGEST_MESSAGE: Final = 200
# called with the name of the thread, the error on one line, and the number of errors since the first start
Failure = tuple[str, str, int]
FIRST_RETRY_S: Final = 5.0  # the first pause after a failed delivery
_LONGEST_RETRY_S: Final = 600.0


class BackgroundThread:
    """A daemon thread that runs a function.

    If the function raises an exception, the thread runs the function again. The thread ends when the function returns.
    """

    def __init__(
        self,
        run: Callable[[], None],
        *,
        name: str,
        on_death: Callable[[str], None] | None = None,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Prepare the thread.

        After an error, the thread calls ``on_death`` with the error message on one line, and then pauses.
        """
        self._run, self._on_death, self._first_pause_s = run, on_death, first_pause_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_running, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Prevent further restarts of the function, and wait until it has returned or the timeout has passed."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _keep_running(self) -> None:
        pause_s = self._first_pause_s
        deaths = 0
        try:
            while True:
                began_s = time.monotonic()
                try:
                    self._run()
                    return
                except BaseException as error:  # noqa: BLE001 - whatever it is, the work has to go on
                    if self._ending.is_set() and isinstance(error, RuntimeError):
                        return  # the process is ending, so thread pools no longer accept work (concurrent.futures)
                    deaths += 1
                    if time.monotonic() - began_s > _STEADY_S:
                        pause_s = self._first_pause_s
                    self._note_death(error, deaths, pause_s)
                if self._ending.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            _store_failure(self._thread, None, 0.0)

    def _note_death(self, error: BaseException, deaths: int, pause_s: float) -> None:
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, self._thread)))
        message = printable(" ".join(f"{type(error).__name__}: {error}".split()))[:_LONGEST_MESSAGE]
        if self._on_death is not None:
            try:
                self._on_death(message)
            except Exception:  # noqa: BLE001 - the first error counts
                sys.excepthook(*sys.exc_info())
        _store_failure(self._thread, (self._thread.name, message, deaths), time.monotonic() + pause_s + _STEADY_S)


class RetryingSender(ABC):
    """A thread that sends items to one service. After a failure, the thread retries with increasing pauses."""

    def __init__(self, name: str, wake: Callable[[], None], *, label: str = "", first_retry_s: float) -> None:
        """Prepare the thread. ``wake`` is called, from any thread, when `failure` changes.

        ``label`` is a prefix of each failure message.
        """
        self.wake, self._label, self._first_retry_s = wake, label, first_retry_s
        self.changed = threading.Condition()  # the lock of everything for which the thread waits
        self.failure: tuple[str, str] | None = None  # the kind and the message of the error at the last attempt
        self.is_ending = False
        self._thread = BackgroundThread(
            self._keep_sending, name=name, on_death=partial(self.note_failure, "ThreadDied")
        )

    @abstractmethod
    def send_next(self) -> None:
        """Wait until an item is due or until `is_ending` is true, then send the items that are due."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether all items were sent."""

    def start(self) -> None:
        self._thread.start()

    def close(self, *, timeout_s: float = 0) -> None:
        """Wait up to ``timeout_s`` seconds until the pending items have been sent, and then end the thread."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_done or self.failure is not None, timeout_s)
            self.is_ending = True
            self.changed.notify_all()
        self._thread.join(timeout_s=0.1)  # a thread that still waits for the network ends with the process

    def note_failure(self, kind: str | None, message: str = "") -> None:
        """Store the error from the last attempt. ``kind`` is None if the attempt succeeded."""
        with self.changed:
            before = self.failure
            self.failure = (kind, self._label + message) if kind is not None else None
            self.changed.notify_all()
        if self.failure != before:
            self.wake()

    def _keep_sending(self) -> None:
        failures = 0
        while not self.is_ending:
            try:
                self.send_next()
            except (HostUnreachable, ForgeRefused, LedgerError, UsageError) as error:
                self.note_failure(type(error).__name__, str(error))
                requested_s = error.retry_after_s if isinstance(error, HostUnreachable) else None
                wait_s = min(max(self._first_retry_s * 2 ** min(failures, 10), requested_s or 0), _LONGEST_RETRY_S)
                failures += 1
                with self.changed:
                    self.changed.wait_for(lambda: self.is_ending, wait_s)
            else:
                failures = 0
                self.note_failure(None)


# The failures belong to the process, because its threads belong to the process.
_failures_lock: Final = threading.Lock()
# failures, each with the time until which gitboot reports it
_failures: Final[dict[threading.Thread, tuple[Failure, float]]] = {}
_listeners: Final[list[Callable[[], None]]] = []


def _store_failure(thread: threading.Thread, failure: Failure | None, until_s: float) -> None:
    with _failures_lock:
        if failure is None:
            _failures.pop(thread, None)
            return
        _failures[thread] = failure, until_s
        listeners = tuple(_listeners)
    for listener in listeners:
        listener()


def list_failures() -> list[Failure]:
    """Return the failures of the threads that have failed and have not yet run for a minute without another error."""
    now_s = time.monotonic()
    with _failures_lock:
        failures = [failure for failure, until_s in _failures.values() if now_s < until_s]
    return sorted(failures)


@contextmanager
def notify_on_death(listener: Callable[[], None]) -> Iterator[None]:
    """Until the block ends, call the listener each time a background thread dies.

    The dying thread itself calls the listener.
    """
    with _failures_lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _failures_lock:
            _listeners.remove(listener)


Item = TypeVar("Item")
# The longest time that one call waits in the operating system. Python runs a signal handler in the main thread, between
# two bytecode instructions. If a signal arrives after the last instruction and before the thread sleeps, the thread
# sleeps anyway. (This happened to 21 of 958,000 signals in a test loop for this case.)
_LONGEST_WAIT_S: Final = 1.0


class SignalQueue(Generic[Item]):
    """A first-in, first-out queue to which a signal handler can add items at any time.

    The queue does not use a Python lock. In contrast, a `threading.Event` uses a lock. If a handler interrupts the
    thread that holds this lock and then sets the Event, the process hangs.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item, or None if no item arrives within ``timeout_s`` seconds."""
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = max(end_s - time.monotonic(), 0)
            with suppress(Empty):
                return self._items.get(timeout=min(left_s, _LONGEST_WAIT_S))
            if left_s <= _LONGEST_WAIT_S:
                return None
