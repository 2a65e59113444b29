"""Two revisions of a fleet, loaded and decided for a command that compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gitboot.cli.bounded import evaluating
from gitboot.errors import InvalidRepository
from gitboot.load import ParseCache, Snapshot
from gitboot.resolve.reading import read
from gitboot.review.merges import Between
from gitboot.review.side import Side
from gitboot.source.compare import open_range


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Both sides of a range, and what the commits between them say."""

    base: Side
    head: Side
    messages: tuple[tuple[str, str], ...]
    line: tuple[Between, ...] = ()


def compared(path: Path, range: str, *, merge: bool, accepted: str | None = None) -> Compared:
    """Both sides of ``range``; one that is invalid has its problems instead of decisions.

    Where a commit is ``accepted``, BASE is that.
    """
    parsed: ParseCache = {}  # what both sides have in common is parsed once
    base, dots, head = range.partition("..")
    names = "accepted" if accepted is not None else base, head.removeprefix(".") or ("HEAD" if dots else "WORKTREE")
    try:
        with evaluating():
            found = open_range(path, range, merge=merge, accepted=accepted)
    except InvalidRepository as error:
        # They do not merge, so there is no HEAD to look at.
        conflicted = Side(named=names[1], revision=names[1], decisions=None, repository=None, problems=error.problems)
        nothing = Side(named=names[0], revision=names[0], decisions=None, repository=None, problems=())
        return Compared(base=nothing, head=conflicted, messages=())
    line = (Between(*each.merge, partial(_side_of, each.snapshot, parsed)) for each in found.line)
    return Compared(
        base=side(names[0], found.base, parsed),
        head=side(names[1], found.head, parsed),
        messages=found.messages,
        line=tuple(line),
    )


def _side_of(snapshot: Callable[[], Snapshot], parsed: ParseCache) -> Side:
    found = snapshot()
    return side(found.revision, found, parsed)


def side(named: str, snapshot: Snapshot, parsed: ParseCache) -> Side:
    """A revision, loaded and decided; ``parsed`` keeps what its blobs parse to."""
    try:
        with evaluating() as begun:
            begun(len(snapshot.blobs))
            decided = read(snapshot, parsed)
            repository, decisions = decided.repository, decided.decisions
    except InvalidRepository as error:
        return Side(named=named, revision=snapshot.revision, decisions=None, repository=None, problems=error.problems)
    return Side(
        named=named,
        revision=snapshot.revision,
        decisions=decisions,
        repository=repository,
        problems=decisions.warnings,
    )
