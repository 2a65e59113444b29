"""The intents of one endpoint whose outcomes are still to be recorded."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from gitboot.observe.observation import Observation, Outcome
from gitboot.observe.spool import Spool

_MOST: Final = 4096  # outcomes that wait to be written; an outcome that is dropped stays unknown, which is safe


class OpenIntents:
    """Records the outcome of each intent in a spool, and tries again until it is written; from any thread."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: dict[str, Observation] = {}  # by id
        self._unwritten: deque[Observation] = deque(maxlen=_MOST)  # outcomes whose last write has failed

    def add(self, observation: Observation) -> None:
        """Note that an observation is recorded and that `conclude` follows, if it is an intent."""
        if observation.intent is not None:
            self._open[observation.intent] = observation

    def withhold(self, observation: Observation) -> None:
        """Record that nothing is served, if the observation is an intent. It may be in the log, or still get there.

        If it is answered all the same, add it: `conclude` follows.
        """
        if observation.is_answered_anyway:
            self.add(observation)
        elif observation.intent is not None:
            self._write(replace(observation, outcome=Outcome.WITHHELD))

    def conclude(self, intent: str, outcome: Outcome | None) -> None:
        """Record what became of an intent that was added; None: that stays unknown. For any other id, do nothing.

        This returns at once. If the process ends before the outcome is written, the outcome stays unknown.
        """
        if (intended := self._open.pop(intent, None)) is not None and outcome is not None:
            self._write(replace(intended, outcome=outcome))

    def write_again(self) -> None:
        """Try again to write the outcomes whose last write has failed."""
        for _ in range(len(self._unwritten)):
            with suppress(IndexError):  # another thread was first
                self._write(self._unwritten.popleft())

    def _write(self, concluded: Observation) -> None:
        self._spool.record(concluded).add_done_callback(partial(self._note, concluded))

    def _note(self, concluded: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self._unwritten.append(concluded)
