"""A row: what is measured, beside what, and what it is to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cost import Cost

if TYPE_CHECKING:
    from benchmarks.place import Place


class CannotRun(Exception):
    """A row that this machine cannot measure; says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """What came out once."""

    cost: Cost
    floor: Cost | None = None
    note: str = ""  # what else was counted: files, bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the goals."""

    name: str  # on the command line
    title: str
    floor: str  # what it is compared with, in words
    goal: str  # in words
    measure: Callable[[Place], Figure]  # raises `CannotRun`
    smallest: int = 1  # servers
    only: int | None = None  # servers: no other number makes a difference
    writes: bool = False  # files, so that it counts where they lie

    def sizes(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Of how many servers it is measured, where so many are asked for."""
        if self.only is not None:
            return (self.only,)
        return tuple(size for size in asked if size >= self.smallest)
