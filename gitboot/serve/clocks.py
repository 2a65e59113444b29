"""An endpoint's clock beside its instance's, which writes its time into each status."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

_logger = logging.getLogger(__name__)
_MOST_OFF: Final = timedelta(seconds=30)


class ComparedClock:
    """Tells by how much a clock is off, by what is seen of another, again and again.

    One that is behind is known at once. One that is ahead cannot be told from an instance that is silent, or a tree
    that is an old copy, but by what was written between two looks.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._written: datetime | None = None  # by the other's clock, what was seen last
        self.off: timedelta | None = None  # by how much this one is ahead; None: by no more than it may be

    def see(self, written: object) -> None:
        """Take note of the other's time, as it was written; what is none tells nothing."""
        try:
            other = datetime.fromisoformat(str(written))
        except ValueError:
            return
        off, is_new = self._clock() - other, self._written not in (None, other)
        self._written = other
        was_behind = self.off is not None and self.off < timedelta()
        if off < -_MOST_OFF or (is_new and off > _MOST_OFF):
            self._set(off)
        elif is_new or was_behind or off <= _MOST_OFF:
            self._set(None)

    def _set(self, off: timedelta | None) -> None:
        if off is not None and self.off is None:
            seconds = off.total_seconds()
            _logger.error("the clock is %+.0f s off the instance's: no boot that writes a disk is given", seconds)
        self.off = off
