"""Checked clock: compare this host's clock with the instance's clock, and withhold install boots if it is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.fetchlog.log_entries import parse_log_instant
from gitboot.files import write_atomically
from gitboot.jsonio import format_instant
from gitboot.status.conditions import STALE_S
from gitboot.system_clock import ClockState, Uptime, read_uptime

_logger = logging.getLogger(__name__)
_MAX_OFFSET: Final = timedelta(seconds=30)
_SAVE_INTERVAL: Final = timedelta(minutes=1)
_SAVED_FILE: Final = "clock"


class _Reading(NamedTuple):
    time: datetime
    uptime_s: float  # the uptime of this host at that time, or when this process read the time


class CheckedClock:
    """This host's clock, which gitboot compares with the times in the instance's status.

    If this clock is behind, gitboot detects this immediately. The clock's time is then earlier than the instance's
    time, or earlier than the clock's own last time, which gitboot saves in ``folder`` for the next process.

    If this clock is ahead, the times look the same as if the instance had stopped writing, or as if the output tree
    were an old copy. gitboot can tell these cases apart only after the instance has written a time between two
    comparisons. Until then, gitboot does not trust the clock unless the kernel reports that the clock is synchronized.
    After `STALE_S` seconds, the instance counts as silent, and gitboot no longer waits for the instance to write a
    time.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        clock_state: Callable[[], ClockState] = lambda: ClockState.UNKNOWN,
        folder: Path | None = None,
        uptime: Callable[[], Uptime] = read_uptime,
    ) -> None:
        self._clock, self._clock_state, self._uptime = clock, clock_state, uptime
        self._began_s = uptime().seconds
        self._written: _Reading | None = None  # the last time that the instance wrote
        self._age_s = 0.0  # the age of that time when this process first read it
        self._last_correct: datetime | None = None  # the last time of the instance that agreed with this clock
        self._is_compared = False  # whether the instance wrote while this process ran
        self._saved_file = folder / _SAVED_FILE if folder is not None else None
        # the last time that this or an earlier process saved; None: there is no such time, or it was wrong
        self._latest = self._read_saved_clock()
        self._last_saved = self._latest.time if self._latest is not None else None
        # the difference between this clock and the instance's clock; None: the difference is within the limit
        self.offset: timedelta | None = None
        self._check_latest_time()

    def _read_saved_clock(self) -> _Reading | None:
        """Return the time that an earlier process saved, or None if there is no valid time.

        If another boot of this host, or an unknown boot, saved the time, the uptime is that of the start of this
        process.
        """
        words: list[str] = []
        if self._saved_file is not None:
            with suppress(OSError, ValueError):
                words = self._saved_file.read_text().split()
        saved_time = parse_written_time(words[0]) if words else None
        if saved_time is None:
            return None
        if len(words) == 3 and words[2] == self.up.boot:
            with suppress(ValueError):
                if (seconds := float(words[1])) >= 0:  # this is false for NaN
                    return _Reading(saved_time, min(seconds, self._began_s))
        return _Reading(saved_time, self._began_s)

    @property
    def up(self) -> Uptime:
        """Return the uptime of this host's kernel."""
        return self._uptime()

    @property
    def latest_time(self) -> datetime | None:
        """A time that has definitely passed, even if this clock is wrong now, or None if gitboot has no such time.

        The time is the latest correct time of this clock, or the time of the instance's clock.
        """
        passed_times = [self._clock() - (self.offset or timedelta())] if self.problem is not None else []
        if self._latest is not None:
            passed_times.append(self._latest.time + timedelta(seconds=self.up.seconds - self._latest.uptime_s))
        return max(passed_times, default=None)

    @property
    def instance_time(self) -> datetime | None:
        """The last time that the instance wrote, or None if this process has not read such a time yet."""
        return self._written.time if self._written is not None else None

    @property
    def instance_time_age_s(self) -> float | None:
        """The seconds since the instance last wrote a time, or None if this process has not read any such time yet."""
        return None if self._written is None else self._age_s + self.up.seconds - self._written.uptime_s

    def choose_time(self, at: datetime) -> datetime:
        """Return the time to use for responses: ``at`` or, if this clock has a problem, the last correct time.

        If the clock was never correct while this process ran, return the first time that the instance wrote.
        """
        if self.problem is None:
            return at
        return self._last_correct or (self._latest.time if self._latest is not None else at)

    @property
    def problem(self) -> str | None:
        """The problem of this clock that makes gitboot withhold install boots, or None."""
        if self.offset is not None:
            return _format_offset(self.offset)
        # The code below decides whether the clock may be ahead.
        if self._written is None or self._is_compared or self._clock() - self._written.time <= _MAX_OFFSET:
            return None
        if self.up.seconds - self._began_s >= STALE_S or self._clock_state() is ClockState.SYNCHRONISED:
            return None
        return (
            "the clock of this host is ahead of the last time that the instance wrote, so the clock is wrong, or no "
            "instance is running"
        )

    def compare_with_instance(self, instance_time: object) -> None:
        """Compare this clock with a time that the instance wrote. Ignore a malformed time."""
        written_time = parse_written_time(instance_time)
        if written_time is None:
            self._check_latest_time()
        elif self._written is None:
            self._compare_with_first_time(written_time)
        elif written_time != self._written.time:
            self._compare_with_new_time(written_time)
        else:
            self._compare_with_known_time(self._written)

    def _compare_with_first_time(self, written_time: datetime) -> None:
        self._written = _Reading(written_time, self.up.seconds)
        offset = self._clock() - written_time
        self._age_s = max(offset.total_seconds(), 0)
        self._last_correct = written_time
        if offset < -_MAX_OFFSET:
            self._set_offset(offset)
        else:  # the clock may be ahead, or the time may be old; see `problem`
            self._check_latest_time()

    def _compare_with_new_time(self, written_time: datetime) -> None:
        self._written = _Reading(written_time, self.up.seconds)
        self._age_s = 0
        self._is_compared = True
        offset = self._clock() - written_time
        if abs(offset) > _MAX_OFFSET:
            self._set_offset(offset)
        else:
            self._last_correct = written_time
            self._latest = None  # gitboot no longer uses the earlier times of this clock
            self._set_offset(None)

    def _compare_with_known_time(self, written: _Reading) -> None:
        offset = self._clock() - written.time - timedelta(seconds=self.up.seconds - written.uptime_s)
        was_ahead = self.offset is not None and self.offset > timedelta()
        if abs(offset) <= _MAX_OFFSET:
            self._last_correct = written.time
        if offset < -_MAX_OFFSET:
            self._set_offset(offset)
        elif offset <= _MAX_OFFSET or not was_ahead:
            self._check_latest_time()

    def _check_latest_time(self) -> None:
        behind = self._clock() - self._latest.time if self._latest is not None else timedelta()
        self._set_offset(behind if behind < -_MAX_OFFSET else None)

    def _set_offset(self, offset: timedelta | None) -> None:
        if offset is not None and self.offset is None:
            _logger.error(
                "%s; the endpoint withholds install boots",
                _format_offset(offset),
            )
        self.offset = offset

    def save(self) -> None:
        """Save the time of this clock, at most once a minute and only while the clock is correct.

        Also save the time for the next process, unless there is no folder or the disk has an error.
        """
        now, up = self._clock(), self.up
        if self.problem is not None or (self._last_saved and abs(now - self._last_saved) < _SAVE_INTERVAL):
            return
        self._latest, self._last_saved = _Reading(now, up.seconds), now
        if self._saved_file is not None:
            with suppress(OSError):
                self._saved_file.parent.mkdir(exist_ok=True)
                content = f"{format_instant(now)} {up.seconds} {up.boot}\n".encode()
                write_atomically(self._saved_file, content, mode=0o640)


def _format_offset(offset: timedelta) -> str:
    seconds = offset.total_seconds()
    relation = "ahead of" if seconds > 0 else "behind"
    return f"the clock of this host is {abs(seconds):.0f} s {relation} the clock of the instance"


def parse_written_time(text: object) -> datetime | None:
    """Return a time that an instance or an endpoint wrote, or None if the time is malformed."""
    with suppress(ValueError):
        return parse_log_instant(str(text))
    return None
