"""How far long work has come: said by whoever does it, each step; whoever listens decides how often that is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from gitboot.text import count

Told = Callable[[int, int], None]  # how much is done, and of how much

_T = TypeVar("_T")


def unheard(_done: int, _total: int) -> None:
    """Where nobody listens."""


def counted(items: Collection[_T], told: Told) -> Iterator[_T]:
    """Each of the items; ``told`` is called before each of them, and at the end."""
    total = len(items)
    for done, item in enumerate(items):
        told(done, total)
        yield item
    told(total, total)


class Work(StrEnum):
    """What takes long where a fleet is large, in the order in which a commit goes through it."""

    READ = "Reading"  # and then deciding, of which nothing is counted
    PLAN = "Planning"
    PUBLISH = "Publishing"


_OF: Final = {Work.READ: "file", Work.PLAN: "server", Work.PUBLISH: "step"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Underway:
    """Work that is being done."""

    work: Work
    done: int
    total: int
    left_s: int | None  # as far as that follows from what is done; None: nothing does yet

    @property
    def message(self) -> str:
        """In words: planning: 40,000 of 100,000 servers, about 90 s left (2 of 3)."""
        left = f", about {self.left_s:,} s left" if self.left_s is not None else ""
        number = list(Work).index(self.work) + 1
        return (
            f"{self.work.lower()}: {self.done:,} of {count(self.total, _OF[self.work])}{left} ({number} of {len(Work)})"
        )

    def facts(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "done": self.done,
            "total": self.total,
            "leftSeconds": self.left_s,
            "message": self.message,
        }
