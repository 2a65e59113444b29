"""Problems as text, JSON and GitHub annotations: the same facts in the same order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from gitboot.errors import Problem, Severity


def counted(problems: Sequence[Problem]) -> str:
    """How many errors and warnings there are, in words."""
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    warnings = len(problems) - errors
    parts = [number(errors, "error")] if errors or not warnings else []
    return " and ".join([*parts, *([number(warnings, "warning")] if warnings else [])])


def number(count: int, noun: str) -> str:
    """A count and its noun, in the plural where it is one."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def as_text(problems: Sequence[Problem], prefix: str) -> str:
    """One problem a line: ``path:line:column: CODE: message``, its mend on a line below."""
    lines = []
    for problem in problems:
        error = problem.severity is Severity.ERROR
        place = click.style(f"{printable(prefix + problem.path)}:{problem.line}:{problem.column}:", bold=True)
        code = click.style(f"{problem.code}:", fg="red" if error else "yellow")
        lines.append(f"{place} {code} {'' if error else 'warning: '}{printable(problem.message)}")
        if problem.mend:
            lines.append(f"    {printable(problem.mend)}")
    return "\n".join(lines)


def as_json(problems: Sequence[Problem], prefix: str) -> str:
    items = [{**problem.facts(), "path": f"{prefix}{problem.path}"} for problem in problems]
    return json.dumps({"apiVersion": "gitboot.dev/v1alpha1", "items": items}, indent=2, sort_keys=True)


def as_github(problems: Sequence[Problem], prefix: str) -> str:
    """GitHub's workflow commands, which show each problem at its line in a pull request."""
    lines = []
    for problem in problems:
        level = "error" if problem.severity is Severity.ERROR else "warning"
        properties = {
            "file": f"{prefix}{problem.path}",
            "line": str(problem.line),
            "col": str(problem.column),
            "title": str(problem.code),
        }
        joined = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
        mend = f" ({problem.mend})" if problem.mend else ""
        lines.append(f"::{level} {joined}::{_data(problem.message + mend)}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS = {"text": as_text, "json": as_json, "github": as_github}


def prefix_of(path: Path) -> str:
    """What stands before a problem's path so that it leads from here to the file."""
    return "" if path == Path() or (path.is_absolute() and not path.is_dir()) else f"{path}/"


def printable(text: str) -> str:
    """Text without what could move a terminal's cursor."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
