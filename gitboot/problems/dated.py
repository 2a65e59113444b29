"""Problems that depend on the time: when each holds, and which of them hold at an instant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gitboot.problems.codes import MAX_SHOWN, Code, Problem, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class DatedProblem:
    """A problem that holds in [since, until). The same commit has it at any time; only the commands apply the clock."""

    problem: Problem
    since: datetime | None  # None: it has always held
    until: datetime | None  # None: it holds until the commit changes

    def holds(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


def holding(dated: Iterable[DatedProblem], at: datetime) -> tuple[Problem, ...]:
    """Return the problems that hold at an instant, sorted."""
    return tuple(sorted(each.problem for each in dated if each.holds(at)))


def next_change(dated: Iterable[DatedProblem], at: datetime) -> datetime | None:
    """Return the first instant after ``at`` at which a problem begins or ends; None: there is no such instant."""
    bounds = (bound for each in dated for bound in (each.since, each.until) if bound is not None)
    return min((bound for bound in bounds if bound > at), default=None)


def longest(dated: Iterable[DatedProblem]) -> tuple[DatedProblem, ...]:
    """Return the hundred errors and the hundred warnings of each file that hold longest, sorted by place.

    If any problem of a file holds at some instant, one of those that are returned does. One more problem counts the
    rest. It holds until the first of the rest is over.
    """
    groups: defaultdict[tuple[str, Severity], list[DatedProblem]] = defaultdict(list)
    for each in dated:
        groups[each.problem.path, each.problem.severity].append(each)
    found: list[DatedProblem] = []
    for group in groups.values():
        group.sort(key=lambda each: each.problem)
        group.sort(key=lambda each: each.since or _FIRST)
        group.sort(key=lambda each: each.until or _LAST, reverse=True)
        found += group[:MAX_SHOWN]
        if rest := group[MAX_SHOWN:]:
            message = f"up to {len(rest):,} more problems that depend on the time are not shown"
            code = Code.TOO_MANY_PROBLEMS
            found.append(replace(rest[0], problem=replace(rest[0].problem, code=code, message=message, hint=code.hint)))
    return tuple(sorted(found, key=lambda each: each.problem))


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
