"""The first-parent line from one commit to another: the merges between them, and what their commits say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import pygit2

from gitboot.fleet.revision import Message, Revision
from gitboot.git.history import commits_between, named
from gitboot.source.commit_objects import CommitObject, CommitReader

MAX_STEPS: Final = 200  # of a line; a longer one is one step


class Merge(NamedTuple):
    """One commit of a first-parent line."""

    revision: Revision
    messages: tuple[Message, ...]  # of it, and of all commits that it brought in


def line(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> tuple[Merge, ...]:
    """The commits from ``old``, without it, to ``new`` by first parents, the oldest first; none where that is no way.

    Nor where it is a long one.
    """
    found: list[CommitObject] = []
    for commit in CommitReader(repository).first_parents(new):
        if commit.id == old:
            break
        found.append(commit)
        if not commit.parents or len(found) > MAX_STEPS:
            return ()
    return tuple(
        Merge(each.revision, tuple(messages(repository, each.parents[0], each.id))) for each in reversed(found)
    )


def leading_from(repository: pygit2.Repository, old: pygit2.Oid | None, new: pygit2.Oid) -> tuple[Revision, ...] | None:
    """``new`` and what led to it by first parents since ``old``, the oldest first; None where that is a long line.

    Where the branch was rewound or written anew it begins behind the last commit of ``old``'s own first-parent line.
    Without ``old`` it is ``new`` alone, and ``new`` is always part of it.
    """
    if old is None or old == new:
        return (Revision(str(new)),)
    reader = CommitReader(repository)
    found = [commit.id for commit in islice(reader.first_parents(new), MAX_STEPS + 1)]
    known = {old} if old in found else {commit.id for commit in reader.first_parents(old)}
    until = next((at for at, each in enumerate(found) if at and each in known), None)
    if until is None and len(found) > MAX_STEPS:
        return None
    return tuple(Revision(str(each)) for each in reversed(found[:until]))


def messages(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, *others: pygit2.Oid) -> Iterator[Message]:
    """The messages of the commits that ``new``, or one of the ``others``, has and ``old`` has not, the newest first."""
    yield from map(message_of, commits_between(repository, [old], new, *others))


def message_of(commit: CommitObject) -> Message:
    text = commit.message.decode(errors="replace")
    content = commit.content_digest if has_acknowledgement(commit) else ""
    return Message(commit.revision, text, named(commit.author), named(commit.committer), content=content)


def has_acknowledgement(commit: CommitObject) -> bool:
    """Return whether a commit's message may have a line that acknowledges something."""
    return _ACKNOWLEDGEMENT.search(commit.message) is not None


_ACKNOWLEDGEMENT: Final = re.compile(rb"gitboot-ack", re.IGNORECASE)


def acknowledging_content(
    repository: pygit2.Repository, hidden: Iterable[pygit2.Oid], tips: Iterable[pygit2.Oid]
) -> frozenset[str]:
    """Return the signed content, as digests, of acknowledging commits that led to ``tips`` and not to ``hidden``."""
    found = commits_between(repository, hidden, *tips)
    return frozenset(commit.content_digest for commit in found if has_acknowledgement(commit))
