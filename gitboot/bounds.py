"""How a process is held to what it may have of processor and memory."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a process has had by now: its limits are counted from there."""

    processor_s: float
    memory: int | None  # None: the system does not tell

    @classmethod
    def now(cls) -> Spent:
        return cls(processor_s=time.process_time(), memory=_data_size())

    def limit(self, *, memory: int, processor_s: float | None = None) -> None:
        """End this process, by SIGXCPU and MemoryError, where it takes so much more; ``memory`` in bytes."""
        _limit(resource.RLIMIT_CORE, 0)
        if processor_s is not None:
            _limit(resource.RLIMIT_CPU, math.ceil(self.processor_s + processor_s))
        if self.memory is not None:
            _limit(resource.RLIMIT_DATA, self.memory + memory)


class ProcessLimits(NamedTuple):
    """What a process may have of processor, in seconds, and of memory, in bytes; None: as much as there is."""

    processor_s: int | None
    memory: int | None

    def hold(self) -> None:
        """Hold this process to them."""
        if self.processor_s is not None:
            _limit(resource.RLIMIT_CPU, self.processor_s)
        if self.memory is not None:
            _limit(resource.RLIMIT_DATA, self.memory)


def share_of_limits(parts: int) -> ProcessLimits:
    """What each of so many forks of this process may have.

    All that is left of the processor's time, of which a fork counts its own, and its part of what is left of memory.
    """
    spent = Spent.now()
    processor_s, memory = (_soft(each) for each in (resource.RLIMIT_CPU, resource.RLIMIT_DATA))
    return ProcessLimits(
        processor_s=max(1, math.ceil(processor_s - spent.processor_s)) if processor_s is not None else None,
        memory=spent.memory + max(0, memory - spent.memory) // parts
        if memory is not None and spent.memory is not None
        else None,
    )


def take_off_limits(processor_s: float) -> None:
    """Count what forks have had of the processor as if this process had had it."""
    if (limit := _soft(resource.RLIMIT_CPU)) is not None:
        _limit(resource.RLIMIT_CPU, max(1, math.ceil(limit - processor_s)))


def _soft(what: int) -> int | None:
    limit = resource.getrlimit(what)[0]
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def limited_files(size_bytes: int | None) -> Iterator[None]:
    """Let this process write no file that is larger, until the block ends. None changes nothing.

    A write fails with EFBIG: Python ignores SIGXFSZ, which would end the process.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size_bytes is not None:
        _limit(resource.RLIMIT_FSIZE, size_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lift() -> None:
    """Let this process have memory again, to say that it had too much."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit(what: int, limit: int) -> None:
    """Set a soft limit; the hard one, which cannot be raised again, stays as it was given."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _data_size() -> int | None:
    """What RLIMIT_DATA counts; proc_pid_status(5), VmData."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for cycles of garbage meanwhile, for work of which nearly all that it makes stays, without any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
