"""Two commits' decisions -> what changed, for whom, how dangerous it is and when it takes effect: values only."""

from gitboot.diff.changes import Changes, ServerChange, compare

__all__ = ["Changes", "ServerChange", "compare"]
