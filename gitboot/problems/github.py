"""GitHub's workflow commands, which show a problem at its line in a pull request.

GitHub docs, "Workflow commands for GitHub Actions"; how values are escaped: actions/toolkit, command.ts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gitboot.problems.codes import Problem, Severity, with_hint, worst_first
from gitboot.text import count, printable

LIMIT: Final = 10  # annotations of each level that GitHub shows a step; it drops the rest without a word

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def github(problems: Sequence[Problem]) -> str:
    """One command a line, as many as GitHub shows; a notice says how many problems are left out."""
    ordered = worst_first(problems)
    lines: list[str] = []
    left_out: list[str] = []
    for severity, level in _LEVELS.items():
        found = [problem for problem in ordered if problem.severity is severity]
        lines += (_command(level, problem) for problem in found[:LIMIT])
        if len(found) > LIMIT:
            left_out.append(count(len(found) - LIMIT, f"more {level}"))
    if left_out:
        lines.append(f"::notice title=gitboot::{' and '.join(left_out)} not shown here: see the log of this step")
    return "\n".join(lines)


def _command(level: str, problem: Problem) -> str:
    properties = {
        "file": printable(problem.path),
        "line": str(problem.line),
        "col": str(problem.column),
        "title": str(problem.code),
    }
    joined = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {joined}::{_data(with_hint(problem))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
