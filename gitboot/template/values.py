"""A template's values: as text, by elements, by kind, and what stands for a name that is not there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from jinja2.exceptions import UndefinedError
from jinja2.runtime import LoopContext, Macro, StrictUndefined, Undefined
from jinja2.utils import missing

from gitboot.template.faults import failed


def as_text(value: object) -> str:
    """A value as it stands in a text; booleans as YAML has them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Undefined):
        return str(value)
    raise failed(f"{kind_of(value)} cannot stand in a text; join, tojson or default make one of it")


def elements_of(value: object) -> Sequence[object]:
    """What a loop or a filter of lists goes through: a mapping's keys, but never a text's characters."""
    match value:
        case list() | tuple() | range():
            return value
        case dict():
            return list(value)
        case Undefined():
            str(value)
    raise failed(f"{kind_of(value)} has no elements")


def kind_of(value: object) -> str:
    if isinstance(value, Undefined):
        return str(value) or "nothing"
    return next((name for kind, name in _KINDS.items() if isinstance(value, kind)), "a function")


_KINDS: Final[dict[type, str]] = {
    str: "a text",
    bool: "a boolean",  # before int, which it is as well
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    range: "a list",
    dict: "a mapping",
    type(None): "null",
    slice: "a slice",
    Macro: "a macro",
    LoopContext: "a loop",
}


class NotDefined(UndefinedError):
    """The use of a name that is not there, with the value in which it was looked for."""

    def __init__(self, message: str | None, value: object, name: object) -> None:
        super().__init__(message)
        self.value, self.name = value, name


class Missing(StrictUndefined):
    """What stands for a name that is not there: any use but a test or a default is a fault."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = None) -> None:
        not_defined: Any = partial(NotDefined, value=obj, name=name)
        super().__init__(hint, obj, name, exc or not_defined)
