"""Whether machines are well answered by an endpoint, or better sent to another."""

from __future__ import annotations

from gitboot.serve.tree import PublishedTree


def why_not_ready(tree: PublishedTree) -> str | None:
    """Why machines are better sent to another endpoint, in words; None: this one gives what there is to give."""
    if not tree.is_ready:
        return "nothing is published yet"
    if (off := tree.clock.off) is not None:
        return f"the clock is {off.total_seconds():+.0f} s off the instance's: no boot that writes a disk is given"
    return None
