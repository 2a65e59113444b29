"""Recording fetches in the spool, from the event loop of an endpoint; and whether that is possible at present."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from gitboot.observe.elsewhere import Unrecordable
from gitboot.observe.given import Given, GivenBoots
from gitboot.observe.observation import Observation
from gitboot.observe.repeated_fetches import RepeatedFetches
from gitboot.observe.sole_claims import claims_in
from gitboot.observe.spool import Spool, forgotten, identity, try_out

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_RESULT_S: Final = 1.0  # what has been written is told at once
_TRIED_EVERY_S: Final = 10.0  # while nothing else is written


class Recording:
    """Records each fetch within a deadline, or not at all; knows what was given, by whichever process.

    Where something could not be written, nothing counts as recordable until a write was seen to stand again.
    """

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s
        self._given = GivenBoots(spool.folder)
        self.repeated = RepeatedFetches()
        self._stood_s = -math.inf  # when something was last seen to stand, by a clock that only goes forward
        self._trial: tuple[float, Future[None]] | None = None  # since when something is tried out
        self.giver: str | None = None  # the identity of the spool, as it was at the last look
        self.withheld: str | None = None  # why no boot that writes a disk may be served, likewise
        self.forgotten = 0  # how often it had forgotten something by then
        self.failure: str | None = None  # why nothing can be recorded; None: it can, as far as is known

    async def record(self, observation: Observation, giver: str | None = None) -> bool:
        """Return whether the fetch is recorded in time, for the instance of a tree that names this ``giver``.

        If it is not recorded in time, it is taken back. The instance of another giver does not read this spool. A
        fetch of a secret that is one of many by its client is counted, and recorded within a minute.
        """
        if giver is not None and giver != await self._identity():
            return False
        if (counted := self.repeated.take(observation, time.monotonic())) is None:
            return True
        if not (is_recorded := await self._written(counted)):
            self.repeated.put_back(counted)
        return is_recorded

    async def _written(self, observation: Observation) -> bool:
        """Return whether an observation was written in time."""
        written = self._spool.record(observation)
        waited = asyncio.wrap_future(written)
        waited.add_done_callback(_retrieve)
        done, _ = await asyncio.wait([waited], timeout=self._deadline_s)
        if not done and written.cancel():
            self._note(TimeoutError())
            _logger.error("a fetch of %s was not recorded within %s s", observation.server, self._deadline_s)
            return False
        return self._stands(written, observation)

    async def _identity(self) -> str | None:
        if self.giver is None:  # it was not looked at yet
            with suppress(TimeoutError, Unrecordable):
                await self._asked("", lambda: None)
        return self.giver

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """How a boot was given; None: it was not. Raises `Unrecordable` where that is not known in time."""
        return await self._asked(server, partial(self._given.find, server, offer, report))

    async def reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given. Raises `Unrecordable` likewise."""
        return await self._asked(server, partial(self._given.reported, server, token))

    async def _asked(self, server: str, ask: Callable[[], _T]) -> _T:
        """What the spool says, read by the thread that writes to it."""

        def look() -> _T:
            self._look()
            return ask()

        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._spool.call(look)), self._deadline_s)
        except OSError as error:
            self._note(error)
            _logger.error("what was given to %s cannot be read: %r", server, error)
            raise Unrecordable from error

    def look(self) -> None:
        """See whether anything could be recorded, where that is not known from what was; it is not waited for."""
        now_s = time.monotonic()
        self._leave(self.repeated.due(now_s))
        if self._trial is None:
            if self.failure is not None or now_s - self._stood_s >= _TRIED_EVERY_S:
                self._trial = now_s, self._spool.call(self._try_out)
            return
        since_s, trial = self._trial
        if trial.done():
            self._trial = None
            self._note(trial.exception())
        elif now_s - since_s > self._deadline_s:
            self._note(TimeoutError())

    def end(self) -> None:
        """Leave to the spool what was only counted until now."""
        self._leave(self.repeated.rest())

    def _leave(self, counted: Iterable[Observation]) -> None:
        for each in counted:
            self._spool.record(each).add_done_callback(partial(self._left, each))

    def _left(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self.repeated.put_back(observation)

    async def settle(self) -> None:
        """Look, and wait within the deadline for what that shows."""
        self.look()
        if self._trial is not None:
            waited = asyncio.wrap_future(self._trial[1])
            waited.add_done_callback(_retrieve)
            await asyncio.wait([waited], timeout=self._deadline_s)
            self.look()

    def _look(self) -> None:
        folder = self._spool.folder
        self.giver, self.forgotten = identity(folder), forgotten(folder)
        self.withheld = next((str(claim) for claim in claims_in((folder,), folder)), None)

    def _try_out(self) -> None:
        self._look()
        try_out(self._spool.folder)

    def _stands(self, written: Future[None], observation: Observation) -> bool:
        try:
            error = written.exception(timeout=_RESULT_S)
        except CancelledError:
            return False
        self._note(error)
        if error is not None:
            _logger.error("a fetch of %s could not be recorded: %s", observation.server, error)
        return error is None

    def _note(self, error: BaseException | None) -> None:
        """Take note of how it went to write something."""
        if error is None:
            self._stood_s, self.failure = time.monotonic(), None
        elif isinstance(error, TimeoutError):
            self.failure = f"{self._spool.folder} takes nothing within {self._deadline_s:g} s"
        else:
            self.failure = f"{self._spool.folder} cannot be written: {getattr(error, 'strerror', None) or error}"


def _retrieve(written: asyncio.Future[None]) -> None:
    """Take out what was not waited for, so that nobody is told that nobody did: it is told what came of the fetch."""
    if not written.cancelled():
        written.exception()
