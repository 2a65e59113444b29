"""The first-parent line from one commit to another: the merges between them, and what their commits say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import pygit2
from pygit2.enums import SortMode

from gitboot.authorship import Message
from gitboot.load import Revision
from gitboot.source.commits import named

MAX_STEPS: Final = 200  # of a line; a longer one is one step


class Merge(NamedTuple):
    """One commit of a first-parent line."""

    revision: Revision
    messages: tuple[Message, ...]  # of it, and of all commits that it brought in


def line(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> tuple[Merge, ...]:
    """The commits from ``old``, without it, to ``new`` by first parents, the oldest first; none where that is no way.

    Nor where it is a long one.
    """
    found: list[pygit2.Commit] = []
    commit = repository[new].peel(pygit2.Commit)
    while commit.id != old:
        found.append(commit)
        if not commit.parent_ids or len(found) > MAX_STEPS:
            return ()
        commit = commit.parents[0]
    return tuple(
        Merge(Revision(str(each.id)), tuple(messages(repository, each.parent_ids[0], each.id)))
        for each in reversed(found)
    )


def leading_from(repository: pygit2.Repository, old: pygit2.Oid | None, new: pygit2.Oid) -> tuple[Revision, ...] | None:
    """``new`` and what led to it by first parents since ``old``, the oldest first; None where that is a long line.

    Where the branch was rewound or written anew it begins behind the last commit of ``old``'s own first-parent line.
    Without ``old`` it is ``new`` alone, and ``new`` is always part of it.
    """
    if old is None or old == new:
        return (Revision(str(new)),)
    found = [new, *islice(_first_parents(repository, new), MAX_STEPS)]
    known = {old} if old in found else {old, *_first_parents(repository, old)}
    until = next((at for at, each in enumerate(found) if at and each in known), None)
    if until is None and len(found) > MAX_STEPS:
        return None
    return tuple(Revision(str(each)) for each in reversed(found[:until]))


def _first_parents(repository: pygit2.Repository, tip: pygit2.Oid) -> Iterator[pygit2.Oid]:
    commit = repository[tip].peel(pygit2.Commit)
    while commit.parent_ids:
        yield commit.parent_ids[0]
        commit = commit.parents[0]


def messages(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, *others: pygit2.Oid) -> Iterator[Message]:
    """The messages of the commits that ``new``, or one of the ``others``, has and ``old`` has not, the newest first."""
    walker = repository.walk(new, SortMode.TOPOLOGICAL)
    for other in others:
        walker.push(other)
    walker.hide(old)
    for commit in walker:
        yield message_of(commit)


def message_of(commit: pygit2.Commit) -> Message:
    text = commit.raw_message.decode(errors="replace")
    return Message(str(commit.id), text, named(commit.author), named(commit.committer))
