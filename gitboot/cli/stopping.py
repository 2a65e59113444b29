"""An end that a signal asks for."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gitboot.background_threads import SignalQueue


class Stop:
    """A request to end, which a signal handler or another thread makes."""

    def __init__(self) -> None:
        self._asked: SignalQueue[bool] = SignalQueue()
        self.is_set = False

    def set(self) -> None:
        """Ask for the end; from any thread or signal handler."""
        self.is_set = True
        self._asked.put(True)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the end is asked for, or for so long; say whether it was."""
        if not self.is_set and self._asked.get(timeout_s):
            self._asked.put(True)  # others may wait, too
        return self.is_set


def stopped_by_signal(*numbers: signal.Signals) -> Stop:
    """An end that these signals ask for from now on; SIGINT and SIGTERM where none is named."""
    stop = Stop()
    for number in numbers or (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def interrupted_by_signal() -> Iterator[Stop]:
    """An end that SIGINT and SIGTERM ask for until the block ends; SIGHUP and SIGUSR1 ask for nothing meanwhile."""
    stop = Stop()
    numbers = {signal.SIGINT: stop.set, signal.SIGTERM: stop.set, signal.SIGHUP: _nothing, signal.SIGUSR1: _nothing}
    before = {number: signal.signal(number, lambda *_, what=what: what()) for number, what in numbers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing() -> None:
    """Nothing is done."""


def end_by_signal(stop: Callable[[], None], *, within_s: float) -> None:
    """Call ``stop`` at SIGINT and SIGTERM; a process that has not come to its end after so long is ended."""

    def end(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, within_s)
        stop()

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # later Python has no handler any more: it would be killed
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
