"""How problems are placed and worded."""

from __future__ import annotations

from typing import Final

from gitboot.fleet.yaml import Place
from gitboot.model.scalar_from_document import Path
from gitboot.problems.codes import Code, Problem
from gitboot.text import printable

START: Final = Place(1, 1)  # of a file in which no line is to blame


def problem_at(path: str, place: Place, code: Code, message: str, hint: str = "") -> Problem:
    """A problem of a file; what the code itself hints at fixes it where nothing better is known."""
    return Problem(path=path, line=place.line, column=place.column, code=code, message=message, hint=hint or code.hint)


def dotted(path: Path) -> str:
    """A path as people write it: spec.interfaces[0].mac; keys that go on and on do not."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}{'…' * (len(step) > 80)}" for step in path)
    return printable("".join(steps)).removeprefix(".") or "the document"
