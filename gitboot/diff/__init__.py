"""Two commits' decisions -> what changed, for whom, how dangerous it is and when it takes effect: values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gitboot.lazy import names_of

if TYPE_CHECKING:
    from gitboot.diff.changes import Changes, ServerChange, compare

__all__ = ["Changes", "ServerChange", "compare"]

_WHERE: Final = dict.fromkeys(__all__, "gitboot.diff.changes")
__getattr__ = names_of(__name__, _WHERE)  # who only decides compares nothing
