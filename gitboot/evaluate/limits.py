"""What evaluating a commit may take of processor, memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gitboot.bounds import Spent
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem

# What a commit takes grows with its files. Measured on two slow cores: 100,000 servers at once take about 120 s and
# 2.5 GiB; so the defaults leave room for a machine that is five times as slow.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 1024  # the most files that a commit may have are listed in half of it, before they are counted
_MEBIBYTES_A_FILE: Final = 0.064
_WALL: Final = 3  # times the processor's time: others want it too
_STARTING_S: Final = 10  # until a process has read its program from a slow disk


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What one commit may take; None: what grows with its files."""

    seconds: int | None = None  # of the processor
    mebibytes: int | None = None  # besides what the process has already
    workers: int | None = None  # processes at once for one of which all is looked at; None: one a processor

    def processor_s(self, files: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * files

    def wall_s(self, files: int) -> float:
        return _STARTING_S + _WALL * self.processor_s(files)

    def bound(self, spent: Spent, files: int) -> None:
        """Hold this process to what a commit of so many files may take besides ``spent``."""
        spent.limit(memory=self.memory(files), processor_s=self.processor_s(files))

    def memory(self, files: int) -> int:
        """In bytes."""
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * files
        return int(mebibytes * 2**20)


def exceeded(what: str) -> Problem:
    """The problem of a commit that took more than it may."""
    code = Code.LIMITS
    return Problem(path=".", line=1, column=1, code=code, message=what, hint=code.hint)
