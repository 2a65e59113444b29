"""What pydantic finds wrong with a document, in the words of the field."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from gitboot.document import Path
from gitboot.load.problems import dotted
from gitboot.load.schemas import schema_at
from gitboot.model.scalars import Malformed, shown
from gitboot.phrases import did_you_mean
from gitboot.problems.codes import Code


class Finding(NamedTuple):
    """One thing that is wrong with a document, wherever that lies."""

    code: Code
    message: str
    hint: str
    at: Path
    key: bool = False  # it is the key at this path that is wrong, not its value


def findings(kind: str, error: ValidationError) -> tuple[Finding, ...]:
    """Everything that is wrong with a document of ``kind``, without what only follows from it."""
    found = error.errors(include_url=False)
    return tuple(_finding(kind, each) for each in found if not _is_consequence(each, found))


def _is_consequence(error: Any, errors: list[Any]) -> bool:
    """A list is also too short where its items are malformed."""
    loc = error["loc"]
    return error["type"] == "too_short" and any(
        other is not error and other["loc"][: len(loc)] == loc for other in errors
    )


def _finding(kind: str, error: Any) -> Finding:
    at: Path = tuple(step for step in error["loc"] if step not in _TAGS)
    if key := at[-1:] == ("[key]",) and error["type"] != "unexpected_keyword_argument":
        at = at[:-1]
    match error["type"]:
        case "value_error":
            return _malformed(error["ctx"]["error"], at, key)
        case "missing":
            message = f"{dotted(at[:-1])} needs {at[-1]}"
            return Finding(Code.MISSING_FIELD, message, f"add {at[-1]}", at[:-1], key=True)
        case "unexpected_keyword_argument":
            return _unknown_field(kind, at)
        case "enum" | "literal_error":
            return _choice(kind, error, at, key)
        case "too_short":
            return Finding(Code.EMPTY, f"{dotted(at)} needs at least one item", "add one", at)
    message = f"{dotted(at)}: expected {_SHAPES[error['type']]}, found {shown(error['input'])}"
    return Finding(Code.SHAPE, message, Code.SHAPE.hint, at)


_TAGS: Final = frozenset({"(profile)", "(selector)", "(word)"})  # the branch of a union, in pydantic's paths

_SHAPES: Final = {
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a single value",
}


def _malformed(error: Malformed, at: Path, key: bool) -> Finding:
    return Finding(error.code, f"{dotted(at)}: {error.message}", error.hint or error.code.hint, at + error.at, key)


def _unknown_field(kind: str, at: Path) -> Finding:
    fields = schema_at(kind, at[:-1]).get("properties", {})
    message = f"{dotted(at[:-1])} has no field {shown(at[-1])}"
    hint = did_you_mean(at[-1], fields, f"it has {', '.join(sorted(fields))}")
    return Finding(Code.UNKNOWN_FIELD, message, hint, at, key=True)


def _choice(kind: str, error: Any, at: Path, key: bool) -> Finding:
    words = _QUOTED.findall(error["ctx"]["expected"])
    fields = {} if key else schema_at(kind, at).get("properties", {})
    mapping = f", or a mapping with {', '.join(sorted(fields))}" if fields else ""
    message = f"expected one of {', '.join(words)}{mapping}, found {shown(error['input'])}"
    hint = did_you_mean(error["input"], words, f"write one of {', '.join(words)}{mapping}")
    return Finding(Code.CHOICE, message, hint, at, key)


_QUOTED: Final = re.compile(r"'([^']*)'")  # pydantic: 'A' or 'B', or <Choice.A: 'A'>
