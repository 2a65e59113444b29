"""The first problems of each file, and how many more there are: a person fixes those, and then looks again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from gitboot.problems.codes import Code, Problem, Severity

MAX_SHOWN: Final = 100  # of a file
MAX_KEPT: Final = MAX_SHOWN + 1  # whose place says from where on they are not shown


def first(problems: Iterable[Problem], more: Mapping[str, int] | None = None) -> tuple[Problem, ...]:
    """The first hundred errors and the first hundred warnings of each file, sorted, and a count of the rest.

    ``more`` counts errors of a file that lie behind those in ``problems``.
    """
    more = more or {}
    groups: defaultdict[tuple[str, Severity], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.path, problem.severity].append(problem)
    shown: list[Problem] = []
    for (path, severity), group in groups.items():
        shown += _shortened(sorted(group), more.get(path, 0) if severity is Severity.ERROR else 0)
    return tuple(sorted(shown))


def _shortened(problems: list[Problem], more: int) -> Iterable[Problem]:
    count = len(problems[MAX_SHOWN:]) + more
    yield from islice(problems, MAX_SHOWN)
    if count > 0:
        are = "problem from here on is" if count == 1 else "problems from here on are"
        hint = Code.TOO_MANY_PROBLEMS.hint
        at = problems[:MAX_KEPT][-1]
        yield replace(at, code=Code.TOO_MANY_PROBLEMS, message=f"{count:,} more {are} not shown", hint=hint)
