"""An endpoint's clock beside its instance's, which writes its time into each status, and beside its own past."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from gitboot.files import write_whole
from gitboot.jsonio import format_instant
from gitboot.status.instance_status import STALE_S
from gitboot.system_clock import Keeping, Uptime, uptime

_logger = logging.getLogger(__name__)
_MOST_OFF: Final = timedelta(seconds=30)
_KEPT_EVERY: Final = timedelta(minutes=1)
_KEPT: Final = "clock"


class ComparedClock:
    """Tells by how much a clock is off, by what is seen of another, again and again.

    One that is behind is known at once, by the other's time or by its own, which is kept in ``folder`` from one process
    to the next. One that is ahead cannot be told from an instance that is silent, or a tree that is an old copy, but by
    what was written between two looks. Where the kernel does not vouch for it, it is waited for that, for a while after
    the start: then the instance is silent, and machines are not to wait for it.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        keeping: Callable[[], Keeping] = lambda: Keeping.UNKNOWN,
        folder: Path | None = None,
        uptime: Callable[[], Uptime] = uptime,
    ) -> None:
        self._clock, self._keeping, self._uptime = clock, keeping, uptime
        self._kept_in = folder / _KEPT if folder is not None else None
        self._began_s = uptime().seconds
        self._written: datetime | None = None  # by the other's clock, what was seen last
        self._seen_s = self._began_s  # when this process saw it first
        self._age_s = 0.0  # how old it was then
        self._last_right: datetime | None = None  # by the other's clock, when this clock was last found right
        self._is_compared = False  # whether something was written while this process looked
        self._kept, kept_at = _read(self._kept_in)
        self._newest = self._kept  # the latest instant that it has shown, before this process; None: it was wrong
        is_same = kept_at is not None and kept_at.boot == uptime().boot
        self._newest_s = min(kept_at.seconds, self._began_s) if kept_at and is_same else self._began_s
        self.off: timedelta | None = None  # by how much this one is ahead; None: by no more than it may be
        self._check()

    @property
    def up(self) -> Uptime:
        """How long the kernel runs by whose clock this goes."""
        return self._uptime()

    @property
    def reached(self) -> datetime | None:
        """Return how far time has come at least, whatever this clock shows now; None: nothing tells it.

        The latest time that this clock has shown tells it, if that was not wrong, and the other's clock.
        """
        found = [self._clock() - (self.off or timedelta())] if self.doubt is not None else []
        if self._newest is not None:
            found.append(self._newest + timedelta(seconds=self.up.seconds - self._newest_s))
        return max(found, default=None)

    @property
    def written(self) -> datetime | None:
        """Return the last time that the other wrote, by its clock; None: it has not written it yet."""
        return self._written.astimezone(UTC) if self._written is not None else None

    @property
    def silent_s(self) -> float | None:
        """Return the seconds since the other wrote its time; None: it has not written it yet."""
        return None if self._written is None else self._age_s + self.up.seconds - self._seen_s

    def trusted(self, at: datetime) -> datetime:
        """Return the time to answer for: ``at``, or while this clock is in doubt, the last time when it was right.

        A clock that was never right since this process began stays at the time that the other wrote first.
        """
        return at if self.doubt is None else self._last_right or self._newest or at

    @property
    def doubt(self) -> str | None:
        """Why no boot that writes a disk is given by this clock; None: it is right, as far as can be told."""
        if self.off is not None:
            return f"the clock is {self.off.total_seconds():+.0f} s off the instance's"
        if self._is_unproven():
            return "the clock is not compared with the instance's yet, which is silent or behind"
        return None

    def see(self, written: object) -> None:
        """Take note of the other's time, as it was written; what is none tells nothing."""
        with suppress(ValueError):
            other, up_s = datetime.fromisoformat(str(written)), self.up.seconds
            is_first, is_new = self._written is None, self._written not in (None, other)
            if is_first or is_new:
                self._written, self._seen_s = other, up_s
            off = self._clock() - other - timedelta(seconds=up_s - self._seen_s)
            if is_first or is_new:
                self._age_s = max(off.total_seconds(), 0) if is_first else 0
            if is_first or abs(off) <= _MOST_OFF:
                self._last_right = other
            self._is_compared |= is_new
            if is_new and abs(off) <= _MOST_OFF:
                self._newest = None  # whatever it has shown before
            if off < -_MOST_OFF or (is_new and off > _MOST_OFF):
                self._set(off)
                return
            if not is_new and off > _MOST_OFF and self.off is not None and self.off > timedelta():
                return  # it is ahead, as it was found to be
        self._check()

    def keep(self) -> None:
        """Note, where the next process finds it, how far this clock has come; once a minute, and only if it is right.

        A disk that refuses it loses only that.
        """
        now = self._clock()
        if self._kept_in is None or self.doubt is not None or (self._kept and abs(now - self._kept) < _KEPT_EVERY):
            return
        with suppress(OSError):
            self._kept_in.parent.mkdir(exist_ok=True)
            up = self.up
            write_whole(self._kept_in, f"{format_instant(now)} {up.seconds} {up.boot}\n".encode(), mode=0o640)
            self._newest, self._newest_s, self._kept = now, up.seconds, now

    def _check(self) -> None:
        """Compare it with what it has shown itself before."""
        behind = self._clock() - self._newest if self._newest is not None else timedelta()
        self._set(behind if behind < -_MOST_OFF else None)

    def _is_unproven(self) -> bool:
        """Whether it may be ahead, and nothing has shown yet that it is not."""
        if self._written is None or self._is_compared or self._clock() - self._written <= _MOST_OFF:
            return False
        return self.up.seconds - self._began_s < STALE_S and self._keeping() is not Keeping.SYNCHRONISED

    def _set(self, off: timedelta | None) -> None:
        if off is not None and self.off is None:
            seconds = off.total_seconds()
            _logger.error("the clock is %+.0f s off the instance's: no boot that writes a disk is given", seconds)
        self.off = off


def _read(path: Path | None) -> tuple[datetime | None, Uptime | None]:
    """The latest instant that a clock had shown, and how long the kernel ran then; None: nobody knows."""
    with suppress(OSError, ValueError):
        words = path.read_text().split() if path is not None else []
        if len(words) == 3:
            return datetime.fromisoformat(words[0]), Uptime(words[2], float(words[1]))
        return (datetime.fromisoformat(words[0]), None) if words else (None, None)
    return None, None
