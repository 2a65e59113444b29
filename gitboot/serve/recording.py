"""Recording fetches in the spool, from the event loop of an endpoint."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError, Future
from typing import Final

from gitboot.observe.observation import Observation
from gitboot.observe.spool import Spool

_logger = logging.getLogger(__name__)
_RESULT_S: Final = 1.0  # what has been written is told at once


class Recording:
    """Records each fetch within a deadline, or not at all."""

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s

    async def record(self, observation: Observation) -> bool:
        """Whether it stands recorded in time; what does not is taken back."""
        written = self._spool.record(observation)
        done, _ = await asyncio.wait([asyncio.wrap_future(written)], timeout=self._deadline_s)
        if not done and written.cancel():
            _logger.error("a fetch of %s was not recorded within %s s", observation.server, self._deadline_s)
            return False
        return _stands(written, observation)


def _stands(written: Future[None], observation: Observation) -> bool:
    try:
        error = written.exception(timeout=_RESULT_S)
    except CancelledError:
        return False
    if error is not None:
        _logger.error("a fetch of %s could not be recorded: %s", observation.server, error)
    return error is None
