"""What the endpoint answers from: files, their turns by the clock, and whose boot each path is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gitboot.model.scalars import Digest
from gitboot.render.tree import File, Files


class EntryOf(NamedTuple):
    """Whose boot a path is, or whose installer's report; a completed GET of it is an observation."""

    server: str
    digest: Digest  # of the plan


class Turn(NamedTuple):
    """What a path answers from an instant on."""

    at: datetime
    file: File | None  # None: 404
    entry: EntryOf | None = None  # whose boot a completed GET of it is evidence of, if of any


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """All that the endpoint answers from; replaced as a whole, so that all lookups change together."""

    files: Files  # by path below the output directory: boot/…, ops/…
    turns: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict)  # by path, in the order of their instants
    entries: Mapping[str, EntryOf] = field(default_factory=dict)  # by path, of those that boot from the network
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # plan summaries by server, sorted
    addresses: Mapping[str, str] = field(default_factory=dict)  # IP address -> server

    def turn(self, path: str, now: datetime) -> tuple[Turn | None, datetime | None]:
        """The turn that ``path`` has taken last by ``now``, if any, and the instant of its next."""
        last = None
        for turn in self.turns.get(path, ()):
            if now < turn.at:
                return last, turn.at
            last = turn
        return last, None

    def at(self, path: str, now: datetime) -> File | None:
        """What ``path`` answers at ``now``; None is a 404."""
        turn, _ = self.turn(path, now)
        return turn.file if turn is not None else self.files.get(path)

    def entry_at(self, path: str, now: datetime) -> EntryOf | None:
        """Whose boot a completed GET of ``path`` at ``now`` is evidence of, if of any."""
        turn, _ = self.turn(path, now)
        return turn.entry if turn is not None else self.entries.get(path)
