"""Two revisions of a fleet to compare: BASE..HEAD, BASE...HEAD, what lies in the work tree, what a merge would be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pygit2

from gitboot.errors import InvalidRepository, UsageError
from gitboot.files import fleet_root
from gitboot.fleet.revision import BlobId, Irregular, Message, Revision, Snapshot
from gitboot.git.history import Merge, acknowledging_content, line, merge_base, messages
from gitboot.git.repository import Stored, blaming, containing, files_of, objects_of
from gitboot.git.snapshots import of_commit, tree_at
from gitboot.problems.codes import Code, Problem
from gitboot.source.commit_objects import CommitReader, tree_of
from gitboot.source.snapshot import check_folder, commit_at, fleet_folder, folder_in
from gitboot.source.worktree import WORKTREE, of_worktree


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """One commit of the first-parent line from BASE to HEAD, and its fleet."""

    merge: Merge
    snapshot: Callable[[], Snapshot]


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Two snapshots of one fleet, and what the commits between them say."""

    base: Snapshot
    head: Snapshot
    folder: str  # of the fleet in its repository
    messages: tuple[Message, ...]  # of BASE..HEAD, the newest first
    repository: Stored
    met: frozenset[str] = frozenset()  # the signed content, as digests, of acknowledging commits that led to BASE
    line: tuple[Passed, ...] = ()  # from BASE to HEAD, the oldest first; empty where BASE is not on HEAD's line


def open_range(path: Path, text: str, *, merge: bool = False, accepted: str | None = None) -> Range:
    """The range ``text`` of the repository around ``path``; with ``merge`` HEAD is merged into BASE first.

    Where a commit is ``accepted``, HEAD, or what the merge makes, is compared with that, whatever BASE is.
    Nothing is written, not even for a merge. Raises `UsageError` where there is no such range, and
    `InvalidRepository` where the two do not merge.
    """
    base, dots, head = _parted(text, accepted)
    root = fleet_root(path)
    with blaming(path), containing(root) as repository:
        if not root.is_dir() and (repository is None or head == WORKTREE):
            raise UsageError(f"{path} is not a directory")
        if repository is None:
            raise UsageError(f"{path} is in no Git repository, so there is nothing to compare with")
        in_worktree, folder = folder_in(repository, root), fleet_folder(repository, root)
        old, new = _commit(repository, base, path), _commit(repository, "HEAD" if head == WORKTREE else head, path)
        if not root.is_dir() and all(tree_at(repository, Revision(str(each)), folder) is None for each in (old, new)):
            raise UsageError(f"{path} is not a directory, nor is {folder} a folder of one of the commits")
        if head != WORKTREE:  # BASE may have a symlink that HEAD replaces with a folder
            check_folder(repository, Revision(str(new)), folder, path)
        stored = Stored(files_of(repository))
        if head == WORKTREE:
            if in_worktree is None:
                raise UsageError(f"{path} has no work tree, where something could lie uncommitted: write BASE..HEAD")
            if merge or dots == "...":
                raise UsageError(f"{path}: what lies in the work tree is compared as it is: BASE..WORKTREE")
            snapshot = of_worktree(root, repository, in_worktree)
        else:
            snapshot = of_commit(stored, Revision(str(new)), folder)
        if dots == "..." and not merge and accepted is None:
            old = _merge_base(repository, old, new, path)
        first = _commit(repository, accepted, path) if accepted is not None else old
        passed = tuple(
            Passed(merge=each, snapshot=partial(of_commit, stored, each.revision, folder))
            for each in line(repository, first, old if merge else new)
        )
        if merge:
            snapshot = _merged(repository, old, new, folder, path)
            passed = _and_merge(passed, snapshot, tuple(messages(repository, old, new)), begins=first == old)
        found = tuple(messages(repository, first, new, *([old] if merge else [])))
        can_repeat = any(each.content for each in found)  # else the history is not searched
        return Range(
            met=acknowledging_content(repository, (), [first]) if can_repeat else frozenset(),
            base=of_commit(stored, Revision(str(first)), folder),
            head=snapshot,
            folder=folder,
            repository=stored,
            messages=found,
            line=() if head == WORKTREE else passed,
        )


def head_commit(path: Path, text: str) -> Revision | None:
    """Return the commit that HEAD of the range ``text`` names, before any merge; None if HEAD is the work tree."""
    _, found, head = text.replace("...", "..").partition("..")
    if not found or head == WORKTREE:
        return None
    with containing(path.resolve()) as repository:
        return commit_at(repository, head or "HEAD", str(path)) if repository is not None else None


def _parted(text: str, accepted: str | None = None) -> tuple[str, str, str]:
    """BASE, dots and HEAD; one revision alone is compared with the work tree."""
    dots = "..." if "..." in text else ".."
    base, found, head = text.partition(dots)
    base = base or accepted or ""
    if not base or base == WORKTREE or ".." in head:
        raise UsageError(f"{text!r} is no range: write BASE..HEAD, BASE...HEAD, or BASE for what lies uncommitted")
    return base, dots, (head or "HEAD") if found else WORKTREE


def _commit(repository: pygit2.Repository, rev: str, path: Path) -> pygit2.Oid:
    return pygit2.Oid(hex=commit_at(repository, rev, str(path)))


def _merge_base(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, path: Path) -> pygit2.Oid:
    found = merge_base(repository, old, new)
    if found is None:
        hint = "fetch more of the history" if repository.is_shallow else "write BASE..HEAD"
        raise UsageError(f"{path}: the two commits have no common ancestor here; {hint}")
    return found


def _and_merge(
    line: tuple[Passed, ...], merged: Snapshot, messages: tuple[Message, ...], *, begins: bool
) -> tuple[Passed, ...]:
    """A line to BASE, and then the merge; ``begins`` tells that the line is empty because it begins at BASE."""
    if not line and not begins:
        return ()
    return (*line, Passed(merge=Merge(merged.revision, messages), snapshot=lambda: merged))


# What a merge would be

_IRREGULAR: Final = {0o120000: Irregular.SYMLINK, 0o160000: Irregular.SUBMODULE}


def _merged(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, folder: str, path: Path) -> Snapshot:
    """The files below ``folder`` after HEAD was merged into BASE."""
    base = _merge_base(repository, old, new, path)
    # libgit2 writes the files that it merges: into a repository that is thrown away, beside which ours is read.
    with tempfile.TemporaryDirectory() as scratch:
        aside = pygit2.init_repository(scratch, bare=True)
        try:
            aside.odb.add_disk_alternate(str(objects_of(repository)))
            try:
                index = aside.merge_commits(old, new)
            except pygit2.GitError:  # libgit2 may be unable to parse a commit whose tree is whole
                reader = CommitReader(aside)
                ancestor, ours, theirs = (tree_of(aside, reader.read(each)) for each in (base, old, new))
                if ancestor is None or ours is None or theirs is None:
                    raise
                index = aside.merge_trees(ancestor, ours, theirs)
            prefix = f"{folder}/" if folder else ""
            if clashing := list(_conflicts(index.conflicts or (), prefix)):
                raise InvalidRepository(clashing)
            blobs, irregular = {}, {}
            for entry in index:
                name = entry.path.removeprefix(prefix)
                if not entry.path.startswith(prefix) or _is_in_dot_folder(name):
                    continue
                if entry.mode in _IRREGULAR:
                    irregular[name] = _IRREGULAR[entry.mode]
                else:
                    blobs[name] = BlobId(str(entry.id))
            made = {blob: aside.odb.read(blob)[1] for blob in blobs.values() if blob not in repository.odb}
        finally:
            aside.free()
    stored = of_commit(Stored(files_of(repository)), Revision(str(old)), folder)
    return Snapshot(
        revision=Revision(f"{new} merged into {old}"),
        blobs=blobs,
        read=lambda blob: made[blob] if blob in made else stored.read(blob),
        irregular=irregular,
    )


def _is_in_dot_folder(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/")[:-1])


def _conflicts(conflicts: Iterable[tuple[pygit2.IndexEntry | None, ...]], prefix: str) -> Iterator[Problem]:
    """A problem for each file of the fleet that does not merge; what clashes beside the fleet is not its own."""
    code = Code.MERGE_CONFLICT
    for sides in conflicts:
        path = str(next(side.path for side in sides if side is not None))
        if not path.startswith(prefix):
            continue
        path = path.removeprefix(prefix)
        yield Problem(path=path, line=1, column=1, code=code, message="the two branches do not merge", hint=code.hint)
