"""What evaluating a commit may take of processor, memory and time, and how a process is held to it."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem

# What a commit takes grows with its files. Measured on two slow cores: 100,000 servers at once take about 120 s and
# 2.5 GiB; so the defaults leave room for a machine that is five times as slow.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 512
_MEBIBYTES_A_FILE: Final = 0.064
_WALL: Final = 3  # times the processor's time: others want it too
_STARTING_S: Final = 10  # until a process has read its program from a slow disk


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What one commit may take; None: what grows with its files."""

    seconds: float | None = None  # of the processor
    mebibytes: int | None = None  # besides what the process has already

    def processor_s(self, files: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * files

    def wall_s(self, files: int) -> float:
        return _STARTING_S + _WALL * self.processor_s(files)

    def memory(self, files: int) -> int:
        """In bytes."""
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * files
        return int(mebibytes * 2**20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a process had before it began with a commit: the limits are counted from there."""

    processor_s: float
    memory: int | None  # None: the system does not tell

    @classmethod
    def now(cls) -> Spent:
        return cls(processor_s=time.process_time(), memory=_data_size())

    def limit(self, allowance: Allowance, files: int) -> None:
        """End this process, by SIGXCPU and MemoryError, where it takes more than a commit of so many files may."""
        seconds = math.ceil(self.processor_s + allowance.processor_s(files))
        _limit(resource.RLIMIT_CPU, seconds)
        _limit(resource.RLIMIT_CORE, 0)
        if self.memory is not None:
            _limit(resource.RLIMIT_DATA, self.memory + allowance.memory(files))


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


def exceeded(what: str) -> Problem:
    """The problem of a commit that took more than it may."""
    code = Code.LIMITS
    return Problem(path=".", line=1, column=1, code=code, message=what, hint=code.hint)
