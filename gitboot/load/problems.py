"""How problems are placed and worded."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from gitboot.document import Path, Place
from gitboot.model.scalars import one_line
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem

START: Final = Place(1, 1)  # of a file in which no line is to blame


def problem_at(path: str, place: Place, code: Code, message: str, hint: str = "") -> Problem:
    """A problem of a file; what the code itself hints at fixes it where nothing better is known."""
    return Problem(path=path, line=place.line, column=place.column, code=code, message=message, hint=hint or code.hint)


def dotted(path: Path) -> str:
    """A path as people write it: spec.interfaces[0].mac; keys that go on and on do not."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}{'…' * (len(step) > 80)}" for step in path)
    return one_line("".join(steps)).removeprefix(".") or "the document"


def did_you_mean(found: object, words: Iterable[str]) -> str:
    """ "did you mean …?", or nothing where no word is near; what is longer than any name is not compared."""
    candidates = {word.lower(): word for word in sorted(words) if len(word) <= _LONGEST}
    text = str(found).lower()
    close = get_close_matches(text, candidates, n=1, cutoff=0.6) if len(text) <= _LONGEST else []
    return f"did you mean {candidates[close[0]]}?" if close else ""


_LONGEST: Final = 253  # a name; to compare two texts takes as long as both lengths multiplied
