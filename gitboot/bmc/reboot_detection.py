"""Reboot detection: the values of a BMC that change at a reset, and how to compare them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from msgspec import Struct, structs

_CLOCK_STEP = timedelta(minutes=2)  # more than clock drift and slow requests explain

# ComputerSystem BootProgress.LastState in the order of one boot, DSP0268.
_PROGRESS: Final = (
    "PrimaryProcessorInitializationStarted",
    "BusInitializationStarted",
    "MemoryInitializationStarted",
    "SecondaryProcessorInitializationStarted",
    "PCIResourceConfigStarted",
    "SystemHardwareInitializationComplete",
    "OSBootStarted",
    "OSRunning",
)


class Reset(Enum):
    """Whether a reset happened between two readings of a BMC."""

    SEEN = "seen"
    RULED_OUT = "ruled out"
    UNKNOWN = "unknown"


class Marks(Struct, frozen=True, kw_only=True):
    """The values of a BMC that change when the machine resets, and the BMC's clock. They are stored in ledgers."""

    last_reset_time: str | None = None  # LastResetTime
    boot_progress: str | None = None  # BootProgress.LastState
    boot_progress_time: str | None = None  # BootProgress.LastStateTime
    settled: bool = False  # whether the machine was on and past POST
    bmc_time: str | None = None  # the Manager's DateTime; None: not read
    bmc_ahead_s: int | None = None  # seconds by which the BMC's clock is ahead of gitboot's clock
    manager_reset_time: str | None = None  # the Manager's LastResetTime

    def reset_since(self, earlier: Marks, *, moving_marks: frozenset[str] | None = None) -> Reset:
        """Return whether the machine has reset since ``earlier`` was read.

        A mark proves a reset if its time is later than in ``earlier``, by a clock that was not set in between. The boot
        progress of a machine that was still booting may advance without a reset.

        Unchanged marks rule out a reset only if ``earlier`` is settled: a machine in POST may consume an override that
        is set during POST, without another reset. With ``moving_marks``, at least one of these marks must be reported
        and unchanged, because some BMCs do not update LastResetTime at a reset.
        """
        if self._clock_was_lost(earlier):
            return Reset.UNKNOWN
        pairs = {name: (before, after) for name, before, after in self._pair_with(earlier)}
        if any(_differ(before, after) for before, after in pairs.values()):
            one_boot = {"boot_progress_time"} if self.may_follow(earlier) else set()
            return Reset.SEEN if self.find_later_marks(earlier) - one_boot else Reset.UNKNOWN
        still = pairs.keys() if moving_marks is None else pairs.keys() & moving_marks
        return Reset.RULED_OUT if still and earlier.settled else Reset.UNKNOWN

    def find_later_marks(self, earlier: Marks) -> frozenset[str]:
        """Return the names of the marks with a later time than in ``earlier``.

        Return an empty set if the clock was set since then.
        """
        if self.bmc_time is not None and self._clock_was_lost(earlier):
            return frozenset()
        since = _parse_utc(earlier.bmc_time)
        found = set()
        for name, before, after in self._pair_with(earlier):
            then, now = _parse_utc(before), _parse_utc(after)
            if then is not None and now is not None and now > then and (since is None or now >= since):
                found.add(name)
        return frozenset(found)

    def may_follow(self, earlier: Marks) -> bool:
        """Return whether the boot progress is beyond that of ``earlier``, so that both may belong to the same boot."""
        if self.boot_progress not in _PROGRESS or earlier.boot_progress not in _PROGRESS:
            return False
        return _PROGRESS.index(self.boot_progress) > _PROGRESS.index(earlier.boot_progress)

    def has_passed_post_since(self, earlier: Marks) -> bool:
        """Return whether the machine has gone through POST since ``earlier`` was read, according to the BMC."""
        return "boot_progress_time" in self.find_later_marks(earlier)

    def with_clock_from(self, other: Marks) -> Marks:
        """Return a copy of these marks with the clock values of ``other``."""
        return structs.replace(
            self,
            bmc_time=other.bmc_time,
            bmc_ahead_s=other.bmc_ahead_s,
            manager_reset_time=other.manager_reset_time,
        )

    def _pair_with(self, earlier: Marks) -> Iterator[tuple[str, str, str]]:
        """Yield the marks that both readings contain, as (name, earlier value, current value)."""
        marks = (
            ("last_reset_time", earlier.last_reset_time, self.last_reset_time),
            ("boot_progress_time", earlier.boot_progress_time, self.boot_progress_time),
        )
        for name, before, after in marks:
            if before is not None and after is not None:
                yield name, before, after

    def _clock_was_lost(self, earlier: Marks) -> bool:
        """Return whether the Manager has restarted, or its clock was set or is no longer reported.

        In these cases, earlier and current times cannot be compared.
        """
        if earlier.bmc_time is None:
            return False  # the BMC never had a clock
        if self.bmc_time is None or self.bmc_ahead_s is None or earlier.bmc_ahead_s is None:
            return True
        stepped = abs(self.bmc_ahead_s - earlier.bmc_ahead_s) > _CLOCK_STEP.total_seconds()
        return stepped or _has_moved(earlier.manager_reset_time, self.manager_reset_time)


NO_MARKS: Final = Marks()


def _differ(before: str, after: str) -> bool:
    then, now = _parse_utc(before), _parse_utc(after)
    return then != now if then is not None and now is not None else before != after


def _has_moved(before: str | None, after: str | None) -> bool:
    """Return whether a Manager has restarted, from two values of its LastResetTime.

    Some Managers compute the time from their uptime, with an error of a second.
    """
    if before is None:
        return False
    then, now = _parse_utc(before), _parse_utc(after)
    return then is None or now is None or abs(now - then) > _CLOCK_STEP


def parse_time(text: str | None) -> datetime | None:
    """Parse a BMC's time, with its UTC offset if it contains one. Return None if the text is not a time."""
    try:
        return datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None


def as_utc(instant: datetime) -> datetime:
    """Return a time with a UTC offset. A time without an offset is taken as UTC, like all times of the same BMC."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _parse_utc(text: str | None) -> datetime | None:
    found = parse_time(text)
    return as_utc(found) if found is not None else None
