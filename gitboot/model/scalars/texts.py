"""The source text of a scalar, how messages show it, and `Malformed` for what a field does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gitboot.problems.codes import Code
from gitboot.text import printable

if TYPE_CHECKING:
    from gitboot.model.scalar_from_document import Path


class Malformed(ValueError):
    """A value that is not what its field takes; ``at`` leads from the value checked to the culprit."""

    def __init__(self, code: Code, message: str, hint: str = "", at: Path = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.at = code, message, hint, at


def shown(value: object) -> str:
    """A value as messages show it: quoted, short, on one line."""
    if isinstance(value, str):
        return f'"{printable(value if len(value) <= 60 else f"{value[:57]}…")}"'
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), "another value")


def text(value: object) -> str:
    """The source text of a scalar, whatever it looks like to YAML."""
    if not isinstance(value, str):
        raise Malformed(Code.SHAPE, f"expected a single value, found {shown(value)}")
    return str(value)


def nonempty(value: object) -> str:
    if not (found := text(value)):
        raise Malformed(Code.EMPTY, "expected some text, found none")
    return found
