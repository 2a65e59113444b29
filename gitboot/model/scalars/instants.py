"""Instants as RFC 3339 writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from gitboot.model.scalars.texts import Malformed, shown, text
from gitboot.problems.codes import Code

INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(?::\d\d)?(?:[Zz]|[+-]\d\d:\d\d)")


_WITH_FRACTION: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d[.,]\d+(?:[Zz]|[+-]\d\d:\d\d)")


def parse_instant(value: object) -> datetime:
    """An RFC 3339 instant with its offset, to the second; in UTC."""
    found = text(value)
    hint = "write it with its offset: 2026-11-20T22:00:00Z or 2026-11-20T23:00:00+01:00"
    if _WITH_FRACTION.fullmatch(found):
        hint = "leave out the fraction of a second"
        raise Malformed(Code.INSTANT, f"expected an instant to the second, found {shown(found)}", hint)
    if not INSTANT.fullmatch(found):
        raise Malformed(Code.INSTANT, f"expected an instant with an offset, found {shown(found)}", hint)
    try:
        return datetime.fromisoformat(found.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(Code.INSTANT, f"there is no instant {shown(found)} ({error})", hint) from error
