"""Which commits led to which.

libgit2 walks fast, and stops at a commit that it cannot parse. Then the same is found without libgit2, by reading all
of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pygit2
from pygit2.enums import SortMode

from gitboot.source.commit_objects import CommitObject, CommitReader


def commits_between(git: pygit2.Repository, hidden: Iterable[pygit2.Oid], *tips: pygit2.Oid) -> Iterator[CommitObject]:
    """Yield the commits that led to one of ``tips`` and to none of ``hidden``, children before their parents."""
    reader, hidden = CommitReader(git), tuple(hidden)
    try:
        found = _walk(git, hidden, tips)
    except pygit2.GitError:
        known = ancestors(reader, hidden)
        found = _sorted_topologically(reader, tips, known)
    return map(reader.read, found)


def _walk(git: pygit2.Repository, hidden: Iterable[pygit2.Oid], tips: Iterable[pygit2.Oid]) -> list[pygit2.Oid]:
    walker = git.walk(None, SortMode.TOPOLOGICAL)
    for tip in tips:
        walker.push(tip)
    for each in hidden:
        walker.hide(each)
    return [commit.id for commit in walker]


def _sorted_topologically(reader: CommitReader, tips: Iterable[pygit2.Oid], known: set[pygit2.Oid]) -> list[pygit2.Oid]:
    """Return what led to ``tips`` and is not ``known``, children before their parents."""
    finished: list[pygit2.Oid] = []
    seen = set(known)
    pending = [(tip, False) for tip in tips]
    while pending:
        oid, is_finished = pending.pop()
        if is_finished:
            finished.append(oid)
        elif oid not in seen:
            seen.add(oid)
            pending.append((oid, True))
            pending += ((parent, False) for parent in reader.read(oid).parents)
    return finished[::-1]


def ancestors(reader: CommitReader, tips: Iterable[pygit2.Oid]) -> set[pygit2.Oid]:
    """Return these commits and all that led to them."""
    found: set[pygit2.Oid] = set()
    pending = list(tips)
    while pending:
        if (oid := pending.pop()) not in found:
            found.add(oid)
            pending += reader.read(oid).parents
    return found


def is_ancestor(git: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> bool:
    """Return whether ``old`` led to ``new``. A commit is its own ancestor."""
    if old == new:
        return True
    try:
        return bool(git.descendant_of(new, old))
    except pygit2.GitError:
        return old in ancestors(CommitReader(git), [new])


def merge_base(git: pygit2.Repository, one: pygit2.Oid, other: pygit2.Oid) -> pygit2.Oid | None:
    """Return a commit that led to both, and to no other such commit; None if there is none."""
    try:
        found: pygit2.Oid | None = git.merge_base(one, other)
    except pygit2.GitError:
        reader = CommitReader(git)
        both = ancestors(reader, [one]) & ancestors(reader, [other])
        best = both - {parent for each in both for parent in reader.read(each).parents}
        found = min(best, default=None)
    return found
