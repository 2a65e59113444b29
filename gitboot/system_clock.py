"""System clock: uptime, and the state of the time service."""

from __future__ import annotations

import ctypes
import os
import time
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_STA_UNSYNC: Final = 0x40  # adjtimex(2), linux/timex.h
_NTP_PHASE_LIMIT_US: Final = 16_000_000  # The estimated error of the clock at boot (kernel/time/ntp.c).
# Files that exist while a time service of this machine runs.
_SERVICES: Final = (
    "/run/systemd/timesync",
    "/run/chrony",
    "/run/chronyd.pid",
    "/run/ntpd.pid",
    "/run/ntpsec",
    "/run/openntpd",
    "/run/ptp4l",
)


class ClockState(StrEnum):
    """The state of the clock, which shows whether a time service sets the clock."""

    SYNCHRONISED = "Synchronised"
    UNSYNCHRONISED = "Unsynchronised"  # a time service has set the clock, or will set it soon
    NEVER_SET = "Unkept"  # no program has set the clock since boot
    UNKNOWN = "Unknown"  # adjtimex(2) is not available


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


class Uptime(NamedTuple):
    """The time since boot. Setting the clock does not change this time."""

    boot: str  # the ID of the boot; "": unknown
    seconds: float


def read_clock_state() -> ClockState:
    """Return the state of this machine's clock, as adjtimex(2) reports it.

    A container sees the kernel of its host, but not the services that run on the host. In a sandbox, or in a virtual
    machine whose host sets the clock, the state may be `NEVER_SET` although the clock is correct.
    """
    timex = _Timex()
    # the system call is not allowed here, or does not exist
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return ClockState.UNKNOWN
    return decide_clock_state(
        timex.status, timex.freq, timex.esterror, has_time_service=any(map(os.path.exists, _SERVICES))
    )


def decide_clock_state(status: int, freq: int, esterror: int, *, has_time_service: bool) -> ClockState:
    """Return the state of the clock that these values of adjtimex(2) describe.

    ``has_time_service`` is true if a time service runs on this machine.
    """
    if not status & _STA_UNSYNC:
        return ClockState.SYNCHRONISED
    untouched = freq == 0 and esterror >= _NTP_PHASE_LIMIT_US
    return ClockState.NEVER_SET if untouched and not has_time_service else ClockState.UNSYNCHRONISED


def read_uptime() -> Uptime:
    """Return the time since boot."""
    return Uptime(_read_boot_id(), time.monotonic())


@cache
def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
