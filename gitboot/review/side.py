"""One of the two revisions that a review compares."""

from __future__ import annotations

from dataclasses import dataclass

from gitboot.fleet.resources import FleetRepository
from gitboot.problems.codes import Problem
from gitboot.resolve.server_decision import Decisions


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two revisions: how it was named, what it is, and what it says, if that holds together."""

    named: str
    revision: str
    decisions: Decisions | None
    repository: FleetRepository | None
    problems: tuple[Problem, ...]

    @property
    def short(self) -> str:
        """The revision in few characters, if it says more than the name."""
        parts = (part[:12] if len(part) == 40 else part for part in self.revision.split())
        return "" if self.revision == self.named else " ".join(parts)
