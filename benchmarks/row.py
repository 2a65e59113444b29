"""A row of the benchmarks: one question of a user, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.cost import Cost

if TYPE_CHECKING:
    from benchmarks.place import Place


class CannotRun(Exception):
    """This machine cannot measure a row. The message names what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """The measurements of one row, round by round."""

    rounds: Sequence[Cost]
    beside: Mapping[str, Sequence[Cost]] = field(default_factory=dict)  # of other programs for the same work, by name
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row at several numbers of servers."""

    name: str  # on the command line
    title: str
    measure: Callable[[Place], Figure]  # raises CannotRun
    sizes: tuple[int, ...] | None = None  # servers; None: those of the command line
    smallest: int = 1  # servers
    largest: int | None = None

    def chosen_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of servers to measure, of those that the command line has."""
        if self.sizes is not None:
            return self.sizes
        return tuple(size for size in sizes if self.smallest <= size <= (self.largest or size))
