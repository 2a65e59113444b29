"""Recording fetches in the spool, from the event loop of an endpoint."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Final

from gitboot.observe.given import Given, GivenBoots
from gitboot.observe.observation import Observation
from gitboot.observe.spool import Spool, identity

_logger = logging.getLogger(__name__)
_RESULT_S: Final = 1.0  # what has been written is told at once


class Unrecordable(Exception):
    """What a spool knows is unavailable: too late, or not to be read."""


class Recording:
    """Records each fetch within a deadline, or not at all; knows what was given, by whichever process."""

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s
        self._given = GivenBoots(spool.folder)
        self.giver: str | None = None  # the identity of the spool, as it was at the last look

    async def record(self, observation: Observation) -> bool:
        """Whether it stands recorded in time; what does not is taken back."""
        written = self._spool.record(observation)
        done, _ = await asyncio.wait([asyncio.wrap_future(written)], timeout=self._deadline_s)
        if not done and written.cancel():
            _logger.error("a fetch of %s was not recorded within %s s", observation.server, self._deadline_s)
            return False
        return _stands(written, observation)

    async def given(self, server: str, digest: str) -> Given | None:
        """How a boot was given; None: it was not. Raises `Unrecordable` where that is not known in time."""
        found = self._spool.call(partial(self._look, server, digest))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(found), self._deadline_s)
        except (TimeoutError, OSError) as error:
            _logger.error("what was given to %s cannot be read: %r", server, error)
            raise Unrecordable from error

    def _look(self, server: str, digest: str) -> Given | None:
        """What is known by now, in the thread that writes."""
        self.giver = identity(self._spool.folder)
        return self._given.find(server, digest)


def _stands(written: Future[None], observation: Observation) -> bool:
    try:
        error = written.exception(timeout=_RESULT_S)
    except CancelledError:
        return False
    if error is not None:
        _logger.error("a fetch of %s could not be recorded: %s", observation.server, error)
    return error is None
