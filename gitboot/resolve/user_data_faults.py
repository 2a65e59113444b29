"""Faults in rendered user data, with their line."""

from __future__ import annotations

from gitboot.model.scalars import Malformed
from gitboot.problems import Code


def make_fault(message: str, hint: str, line: int = 0, code: Code = Code.USER_DATA_DOCUMENT) -> Malformed:
    """Return the error of a rendered document. ``line`` is 1-based. 0: the error concerns the document as a whole."""
    return Malformed(code, message, hint, (line,) if line else ())
