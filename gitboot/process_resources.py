"""Resources of this process: limit memory, processor time and files, and pause the garbage collector."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct


class ProcessUsage(Struct, frozen=True, kw_only=True):
    """The processor time and the memory that a process has used so far.

    The limits of the process are relative to these values.
    """

    processor_s: float
    memory_bytes: int | None  # None: unknown

    @classmethod
    def measure(cls) -> ProcessUsage:
        memory_bytes = None
        with suppress(OSError):  # RLIMIT_DATA limits VmData: proc_pid_status(5)
            lines = Path("/proc/self/status").read_text().splitlines()
            memory_bytes = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
        return cls(processor_s=time.process_time(), memory_bytes=memory_bytes)

    def limit(self, *, memory_bytes: int, processor_s: float | None = None) -> None:
        """Limit the additional memory and the additional processor time of this process.

        If the process exceeds the memory limit, Python raises MemoryError. If it exceeds the time limit, the kernel
        sends SIGXCPU.
        """
        _set_soft_limit(resource.RLIMIT_CORE, 0)
        if processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, math.ceil(self.processor_s + processor_s))
        if self.memory_bytes is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory_bytes + memory_bytes)


class ProcessLimits(NamedTuple):
    """The limits of a process. If a value is None, the present limit stays."""

    processor_s: int | None
    memory_bytes: int | None

    def apply(self) -> None:
        """Apply the limits to this process."""
        if self.processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, self.processor_s)
        if self.memory_bytes is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory_bytes)


def divide_limits(fork_count: int) -> ProcessLimits:
    """Divide the remaining resources of this process among ``fork_count`` forks. Return the limits for each fork.

    Each fork gets an equal share of the memory. Each fork also gets all of the remaining processor time, because the
    kernel counts the time of each fork separately.
    """
    usage = ProcessUsage.measure()
    processor_s, memory_bytes = (_find_soft_limit(each) for each in (resource.RLIMIT_CPU, resource.RLIMIT_DATA))
    return ProcessLimits(
        processor_s=max(1, math.ceil(processor_s - usage.processor_s)) if processor_s is not None else None,
        memory_bytes=usage.memory_bytes + max(0, memory_bytes - usage.memory_bytes) // fork_count
        if memory_bytes is not None and usage.memory_bytes is not None
        else None,
    )


def deduct_processor_time(processor_s: float) -> None:
    """Subtract the processor time that forks have used from the remaining processor time of this process."""
    if (limit := _find_soft_limit(resource.RLIMIT_CPU)) is not None:
        _set_soft_limit(resource.RLIMIT_CPU, max(1, math.ceil(limit - processor_s)))


def _find_soft_limit(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def limit_file_size(size_bytes: int | None) -> Iterator[None]:
    """Limit the size of files that this process writes until the block ends.

    If the size is None, there is no limit. A write beyond the limit fails with EFBIG, because Python ignores SIGXFSZ.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size_bytes is not None:
        _set_soft_limit(resource.RLIMIT_FSIZE, size_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lift_memory_limit() -> None:
    """Remove the memory limit of this process, so that the process can report that it exceeded the limit."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def lift_processor_limit() -> None:
    """Remove the limit on processor time, for work that does not read a commit, such as downloads."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _set_soft_limit(kind: int, limit: int) -> None:
    """Set a soft limit, and keep the hard limit, because a process that lowers its hard limit cannot raise it again."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def raise_open_file_limit() -> None:
    """Raise the limit on open files as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the new limit is higher than the kernel allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turn off the garbage collector within the block.

    Use this for work whose results stay in memory and do not contain reference cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
