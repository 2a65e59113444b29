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
_NTP_PHASE_LIMIT_US: Final = 16_000_000  # the estimated error that the kernel boots with (kernel/time/ntp.c)
# Where time services that set the clock of this machine leave something while they run.
_SERVICES: Final = (
    *("/run/systemd/timesync", "/run/chrony", "/run/chronyd.pid", "/run/ntpd.pid", "/run/ntpsec"),
    *("/run/openntpd", "/run/ptp4l"),
)


class ClockState(StrEnum):
    """How a clock is kept."""

    SYNCHRONISED = "Synchronised"
    UNSYNCHRONISED = "Unsynchronised"  # a time service has kept it, or is about to
    UNKEPT = "Unkept"  # nobody has told the kernel anything since it booted
    UNKNOWN = "Unknown"  # the kernel does not say


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
    """How long a kernel runs, which goes on alike whatever its clock is set to."""

    boot: str  # which run of which kernel; "": nobody knows
    seconds: float


def read_clock_state() -> ClockState:
    """How this machine's clock is kept, by adjtimex(2).

    A container sees its host's kernel, and none of its host's services; a virtual machine whose host keeps the time, or
    a sandbox, is as a machine that nobody keeps.
    """
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:  # not allowed here, or no such call
        return ClockState.UNKNOWN
    return decide_clock_state(
        timex.status, timex.freq, timex.esterror, has_time_service=any(map(os.path.exists, _SERVICES))
    )


def decide_clock_state(status: int, freq: int, esterror: int, *, has_time_service: bool) -> ClockState:
    """What the kernel's words mean; ``served``: a time service runs here."""
    if not status & _STA_UNSYNC:
        return ClockState.SYNCHRONISED
    untouched = freq == 0 and esterror >= _NTP_PHASE_LIMIT_US
    return ClockState.UNKEPT if untouched and not has_time_service else ClockState.UNSYNCHRONISED


def read_uptime() -> Uptime:
    """How long it runs by now."""
    return Uptime(_read_boot_id(), time.monotonic())


@cache
def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
