"""The commits that led to a revision, first parents only, and the fleet of each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from gitboot.errors import UsageError
from gitboot.files import fleet_root
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.git.repository import Stored, blaming, containing, files_of
from gitboot.git.snapshots import of_commit, tree_at
from gitboot.source.commit_objects import CommitObject, CommitReader, Person
from gitboot.source.snapshot import commit_at, fleet_folder
from gitboot.source.worktree import WORKTREE
from gitboot.text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A commit, and the tree that the fleet is in it."""

    commit: CommitSummary
    tree: str | None  # the fleet's folder; two with one id are the same fleet, None: there is no such folder


class History:
    """The commits that led to a revision, the newest first; made by `open_history`."""

    def __init__(self, repository: Stored, folder: str, steps: tuple[Step, ...], *, shallow: bool) -> None:
        self._repository, self._folder = repository, folder
        self.steps = steps
        self.shallow = shallow  # whether the clone has not all that came before

    def snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        """The fleet of a commit; with an earlier snapshot only what differs from it is read."""
        return of_commit(self._repository, revision, self._folder, previous)


def open_history(path: str | os.PathLike[str], rev: str | None) -> History:
    """What led to ``rev`` (HEAD, if None) of the fleet at ``path``, as `open_snapshot` has it."""
    root = fleet_root(Path(path))
    if rev == WORKTREE:
        raise UsageError("what lies uncommitted has no history; name a revision, or none for HEAD")
    with blaming(path), containing(root) as git:
        if git is None:
            raise UsageError(f"{path} is in no Git repository, so it has no history")
        folder = fleet_folder(git, root)
        start = commit_at(git, rev or "HEAD", str(path))
        steps = tuple(
            Step(commit=describe(commit), tree=None if tree is None else tree.hex())
            for commit in CommitReader(git).first_parents(start)
            for tree in (tree_at(git, commit.revision, folder),)
        )
        return History(Stored(files_of(git)), folder, steps, shallow=git.is_shallow)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999: Final = 253_370_764_800  # s; Git has room for later dates, datetime has not


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitSummary:
    """Who made a commit, when and why."""

    revision: Revision
    author: str  # Name <address>
    date: datetime  # when it was written
    subject: str


def describe(commit: CommitObject) -> CommitSummary:
    """Return who made a commit, when and why, each on one line."""
    return CommitSummary(
        revision=commit.revision,
        author=named(commit.author),
        date=date_of(commit.author),
        subject=one_line(_text(commit.message).lstrip().partition("\n")[0]),
    )


def date_of(who: Person) -> datetime:
    """Return when an author or a committer signed. A date outside 1970 to 9999 becomes the nearest date inside."""
    return _EPOCH + timedelta(seconds=min(max(who.time, 0), _YEAR_9999))


def named(who: Person) -> str:
    """Name <address>, on one line."""
    return one_line(f"{_text(who.name)} <{_text(who.email)}>")


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
