"""Problems as text, as JSON, and as code hosts and CI systems show them: the same facts in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gitboot.fleet.problem_formats import github, junit, sarif
from gitboot.jsonio import document
from gitboot.problems.codes import Problem, Severity
from gitboot.terminal import style
from gitboot.text import count, printable


def counted(problems: Sequence[Problem]) -> str:
    """How many errors and warnings there are, in words."""
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    warnings = len(problems) - errors
    parts = [count(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number]
    return " and ".join(parts) or "no errors"


def as_text(problems: Sequence[Problem], prefix: str) -> str:
    """One problem a line: ``path:line:column: CODE: message``, its hint on a line below."""
    lines = []
    for problem in problems:
        error = problem.severity is Severity.ERROR
        place = style(f"{printable(prefix + problem.path)}:{problem.line}:{problem.column}:", bold=True)
        code = style(f"{problem.code}:", fg="red" if error else "yellow")
        lines.append(f"{place} {code} {'' if error else 'warning: '}{printable(problem.message)}")
        if problem.hint:
            lines.append(f"    {printable(problem.hint)}")
    return "\n".join(lines)


def as_json(problems: Sequence[Problem], prefix: str) -> str:
    return document(items=[replace(problem, path=f"{prefix}{problem.path}") for problem in problems])


def _annotated(write: Callable[[Sequence[Problem]], str]) -> Callable[[Sequence[Problem], str], str]:
    """A format of a code host or a CI system, which knows files by their path from where it checked out."""

    def written(problems: Sequence[Problem], prefix: str) -> str:
        root = _from_here(prefix)
        return write([replace(problem, path=f"{root}{problem.path}") for problem in problems])

    return written


def _from_here(prefix: str) -> str:
    """A prefix relative to the current directory; nothing where it leads out of it."""
    path = os.path.relpath(prefix or ".")
    return "" if path == "." or path.split(os.sep)[0] == ".." else f"{path}/"


FORMATS: Final[Mapping[str, Callable[[Sequence[Problem], str], str]]] = {
    "text": as_text,
    "json": as_json,
    "github": _annotated(github),
    "sarif": _annotated(sarif),
    "junit": _annotated(junit),
}
