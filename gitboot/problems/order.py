"""The order that every format shows problems in."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.problems.codes import Problem, Severity
from gitboot.text import printable

_RANK = {severity: rank for rank, severity in enumerate(Severity)}  # as they are defined: the worst first


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Errors before warnings, each by place."""
    return sorted(problems, key=lambda problem: (_RANK[problem.severity], problem))


def with_hint(problem: Problem) -> str:
    """What is wrong, and what to do about it."""
    return printable(f"{problem.message} ({problem.hint})" if problem.hint else problem.message)
