"""A queue for what signal handlers and threads tell the main thread."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

_LOOK_S: Final = 1.0
"""The longest time that one call waits in the operating system.

Python runs a signal handler in the main thread, between two of its steps. A signal that arrives after the last step and
before the thread sleeps does not end that sleep. (21 of 958,000 signals in a loop that aims at this moment.)
"""


class SignalQueue(Generic[Item]):
    """A first-in, first-out queue. A handler may put an item into it at any time, because it takes no Python lock.

    An Event has a lock. If a handler interrupts the thread that holds this lock, then setting the Event waits for ever.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item. Return None if there is none within ``timeout_s`` seconds."""
        until = time.monotonic() + timeout_s
        while True:
            left_s = max(until - time.monotonic(), 0)
            with suppress(Empty):
                return self._items.get(timeout=min(left_s, _LOOK_S))
            if left_s <= _LOOK_S:
                return None
