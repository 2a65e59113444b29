"""Whole numbers and shares of something, true and false, and the order of versions."""

from __future__ import annotations

import re
from typing import Final

from gitboot.model.scalars.texts import Malformed, shown, text
from gitboot.problems.codes import Code

INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,17}")


def parse_integer(value: object) -> int:
    found = text(value)
    if not INTEGER.fullmatch(found):
        raise Malformed(
            Code.INTEGER,
            f"expected a whole number, found {shown(found)}",
            "write digits alone, without a 0 in front: 10",
        )
    return int(found)


def parse_positive(value: object) -> int:
    found = parse_integer(value)
    if found == 0:
        raise Malformed(Code.COUNT, "expected a whole number from 1, found 0", "write 1 or more")
    return found


def parse_signed(value: object) -> int:
    found = text(value)
    return -parse_integer(found[1:]) if found.startswith("-") and found != "-0" else parse_integer(found)


def parse_percent(value: object) -> int:
    found = parse_integer(value)
    if found > 100:
        raise Malformed(Code.COUNT, f"expected a percentage from 0 to 100, found {found}")
    return found


_COUNT_OR_PERCENT: Final = re.compile(r"(0|[1-9][0-9]{0,8})(%?)")


def parse_count_or_percent(value: object) -> str:
    """A number of servers, or a percentage of them: 1, 25%."""
    found = text(value)
    match = _COUNT_OR_PERCENT.fullmatch(found)
    if not match or found in ("0", "0%") or (match[2] and int(match[1]) > 100):
        raise Malformed(
            Code.COUNT,
            f"expected a number from 1 or a percentage from 1% to 100%, found {shown(found)}",
            "write 1, or 25%",
        )
    return found


def parse_boolean(value: object) -> bool:
    found = text(value)
    if found not in ("true", "false"):
        raise Malformed(Code.BOOLEAN, f"expected true or false, found {shown(found)}", "write true or false")
    return found == "true"


_VERSION_PART: Final = re.compile(r"[0-9]+|[^0-9.]+")


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Orders versions by their dotted numbers: 3602.2.3 < 3815.0; other text sorts before numbers.

    Numbers of one length sort as text does: so none is too long, as it would be to `int`.
    """
    parts = _VERSION_PART.findall(version)
    return tuple(_ordered(part.lstrip("0")) if part[0] in "0123456789" else (0, 0, part) for part in parts)


def _ordered(digits: str) -> tuple[int, int, str]:
    return 1, len(digits), digits
