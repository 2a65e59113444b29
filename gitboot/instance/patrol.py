"""Whether a tree that was gone on from stands as it says, found out beside everything else, at a leisurely pace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gitboot.background_threads import BackgroundThread
from gitboot.errors import PublishError
from gitboot.publish.resuming import ALL, suspects

_AT_ONCE: Final = 20  # servers
_PAUSE_S: Final = 0.01  # after so many: it takes a quarter of one processor at most


class Patrol:
    """Looks through the tree at ``root`` once, in a thread of its own; ``wake`` is called where anything is found."""

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self._root, self._wake = root, wake
        self._found: set[str] = set()
        self._lock = threading.Lock()
        self._closed, self._released = threading.Event(), threading.Event()
        self._thread = BackgroundThread(self._look, name="verify")

    def start(self) -> None:
        """Look once `release` is called."""
        self._thread.start()

    def release(self) -> None:
        """Nothing is more urgent any more."""
        self._released.set()

    def close(self) -> None:
        """End it, wherever it is."""
        self._closed.set()
        self._released.set()
        self._thread.join()

    def found(self) -> frozenset[str]:
        """The servers whose files do not stand as they were published, of those not asked for yet; `ALL`: all."""
        with self._lock:
            found, self._found = self._found, set()
        return frozenset(found)

    def _look(self) -> None:
        self._released.wait()
        try:
            for number, server in enumerate(suspects(self._root)):
                if server is not None:
                    self._doubt(server)
                if number % _AT_ONCE == 0 and self._closed.wait(_PAUSE_S):
                    return
        except PublishError:
            self._doubt(ALL)  # publishing all says what is the matter

    def _doubt(self, server: str) -> None:
        with self._lock:
            self._found.add(server)
        self._wake()
