"""Listens to long work, from any thread: tells when it has taken a few seconds, and again every few until its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from gitboot.status.progress import Told, Underway, Work

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
