"""Whether machines are well answered by an endpoint, or better sent to another."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gitboot.serve.recording import Recorder
from gitboot.serve.tree import PublishedTree
from gitboot.status import Event

_NOTHING: Final = "nothing is published yet"


def why_not_ready(tree: PublishedTree, records: Recorder | None) -> str | None:
    """Why machines are better sent to another endpoint, in words; None: this one gives what there is to give.

    Where no spool is named nobody gives what is made once, and no other endpoint does better.
    """
    if not tree.is_ready:
        return "the tree is prepared for a host that does not act yet" if tree.terms.prepared else _NOTHING
    if (doubt := tree.clock.doubt) is not None:
        return f"{doubt}: no boot that writes a disk is given"
    return _why_not_given(tree, records)


def _why_not_given(tree: PublishedTree, records: Recorder | None) -> str | None:
    """Why another endpoint would give a boot that is made once, and this one does not."""
    terms = tree.terms
    if records is None:
        if terms.giver is None or terms.sends_on:
            return None
        return (
            "this endpoint has no spool, and the Fleet names no endpoint to send machines on to: no boot that is made "
            "once is given"
        )
    if records.withheld is not None:
        return f"{records.withheld}: no boot that writes a disk is served"
    if records.failure is not None:
        return f"nothing can be recorded: {records.failure}: no boot that is made once is given"
    if terms.giver is not None and (tree.is_foreign or records.giver != terms.giver):
        return "the tree names another spool than this endpoint's: no boot that is made once is given"
    if records.forgotten > terms.forgotten:
        return "the tree is older than what the spool has forgotten: no boot that is made once is given"
    return None


class Turns:
    """Announces that an endpoint is ready no more, and why, and that it is again."""

    def __init__(self) -> None:
        self._is_ready = True

    def turn(self, why_not: str | None, at: datetime) -> Event | None:
        """The event, where there is something new to say."""
        was_ready, self._is_ready = self._is_ready, why_not is None
        if self._is_ready is was_ready:
            return None
        if why_not is None:
            return Event(at=at, type="Ready", message="every boot is given that there is to give")
        return Event(at=at, type="NotReady", message=why_not, warning=True)
