"""How long this machine's kernel runs, by which what was seen is placed whatever its clock is set to meanwhile."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from gitboot.system_clock import Uptime


def uptime() -> Uptime:
    """How long it runs by now."""
    return Uptime(_boot(), time.monotonic())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
