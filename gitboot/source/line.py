"""The first-parent line from one commit to another: the merges between them, and what their commits say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pygit2
from pygit2.enums import SortMode

from gitboot.load import Revision

MAX_STEPS: Final = 200  # of a line; a longer one is one step


class Merge(NamedTuple):
    """One commit of a first-parent line."""

    revision: Revision
    messages: tuple[tuple[Revision, str], ...]  # (id, message) of it, and of all commits that it brought in


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


def messages(
    repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, *others: pygit2.Oid
) -> Iterator[tuple[Revision, str]]:
    """The commits that ``new``, or one of the ``others``, has and ``old`` has not, the newest first: (id, message)."""
    walker = repository.walk(new, SortMode.TOPOLOGICAL)
    for other in others:
        walker.push(other)
    walker.hide(old)
    for commit in walker:
        yield Revision(str(commit.id)), message_of(commit)


def message_of(commit: pygit2.Commit) -> str:
    return commit.raw_message.decode(errors="replace")
