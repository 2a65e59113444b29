"""Values that a test takes for granted."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return a value; the test fails if it is None."""
    assert value is not None
    return value
