"""What a command reads: a fleet in a directory, as it lies there or as of a revision."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import pygit2

from gitboot.errors import UsageError
from gitboot.files import fleet_root
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.git.repository import CommitReader, Stored, blaming, containing, files_of, folder_of, lacks_memory, words
from gitboot.git.snapshots import WORKTREE, of_commit, of_worktree, symlink_at, tree_at


def open_snapshot(path: str | os.PathLike[str], rev: str | None) -> Snapshot:
    """The fleet at ``path`` (a directory, a folder of a Git work tree or of a bare repository) as of ``rev``.

    ``rev`` is any Git revision, or WORKTREE for what lies there, committed or not. None is WORKTREE, or HEAD
    in a bare repository. Raises `UsageError` where there is no such directory, repository or revision.
    """
    root = fleet_root(Path(path))
    try:
        is_directory = root.is_dir()
    except OSError as error:  # it lies in what cannot be entered
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with blaming(path), containing(root) as repository:
        if not is_directory and (repository is None or (rev in (None, WORKTREE) and not repository.is_bare)):
            raise UsageError(f"{path} is not a directory")
        if repository is None:
            if rev not in (None, WORKTREE):
                raise UsageError(f"{path} is in no Git repository, so there is no revision {rev}")
            return of_worktree(root, None, "")
        folder = folder_in(repository, root)
        if folder is not None and rev in (None, WORKTREE):
            return of_worktree(root, repository, folder)
        if rev == WORKTREE:
            raise UsageError(f"{path} is a bare repository: nothing lies there uncommitted, name a revision")
        commit = commit_at(repository, "HEAD" if rev is None else rev, str(path))
        folder = fleet_folder(repository, root)
        check_folder(repository, commit, folder, path)
        if not is_directory and tree_at(repository, commit, folder) is None:
            raise UsageError(f"{path}: commit {commit[:12]} has no folder {folder}")
        return of_commit(Stored(files_of(repository)), commit, folder)


def folder_in(repository: pygit2.Repository, root: Path) -> str | None:
    """Where in the work tree ``root`` is, "" at its top; None outside of it, as in a bare repository."""
    files = files_of(repository).resolve()
    top = files if repository.is_bare else Path(str(repository.workdir)).resolve()
    if root.is_relative_to(files) or not root.is_relative_to(top):
        return None
    return "" if root == top else root.relative_to(top).as_posix()


def folder_around(path: Path) -> str:
    """The folder of its repository in which the fleet at ``path`` lies; "" at the top, and without a repository."""
    root = fleet_root(path)
    with blaming(path), containing(root) as repository:
        return fleet_folder(repository, root) if repository is not None else ""


def fleet_folder(repository: pygit2.Repository, root: Path) -> str:
    """The fleet's folder in commits: as ``root`` has it, in a work tree or below a bare one; else as noted there."""
    folder, files = folder_in(repository, root), files_of(repository).resolve()
    if folder is not None:
        return folder
    if repository.is_bare and root != files and root.is_relative_to(files):
        return root.relative_to(files).as_posix()
    return folder_of(repository)


def check_folder(repository: pygit2.Repository, commit: Revision, folder: str, path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if a commit has a symlink in the place of the fleet's folder, or of a folder above it."""
    if (symlink := symlink_at(repository, commit, folder)) is not None:
        raise UsageError(
            f"{path}: {symlink} is a symlink in commit {commit[:12]}, and gitboot does not follow symlinks of commits: "
            "commit a folder, or name the folder that the symlink leads to"
        )


def commit_at(repository: pygit2.Repository, rev: str, where: str) -> Revision:
    """The commit that a Git revision means; raise `UsageError` naming ``where`` when it means none."""
    try:
        return CommitReader(repository).peel(_object_at(repository, rev)).revision
    except (pygit2.GitError, KeyError, ValueError) as error:
        if lacks_memory(error):
            raise MemoryError from error
        raise UsageError(f"{where} has {_missing(repository, rev, error)}") from error


def _object_at(repository: pygit2.Repository, rev: str) -> pygit2.Oid:
    """Return the object that a Git revision means.

    libgit2 cannot name a commit that it cannot parse. So a revision that it rejects is read once more here, with the
    suffixes ``^``, ``^N`` and ``~N``. Raises `pygit2.GitError`, `KeyError` and `ValueError`.
    """
    try:
        return repository.revparse_single(rev).id
    except (pygit2.GitError, KeyError, ValueError):
        with suppress(pygit2.GitError, LookupError, ValueError, StopIteration):
            return _object_by_parts(repository, rev)
        raise


def _object_by_parts(repository: pygit2.Repository, rev: str) -> pygit2.Oid:
    name = _SUFFIXES.split(rev, maxsplit=1)[0]
    if not name:  # libgit2 would take it for HEAD
        raise ValueError(f"{rev!r} names no revision")
    try:
        oid = repository.lookup_reference_dwim(name).resolve().target
    except (pygit2.GitError, KeyError, ValueError):
        if not _ABBREVIATED.fullmatch(name):
            raise
        oid = repository.expand_id(name)
    reader = CommitReader(repository)
    for kind, number in _SUFFIX.findall(rev.removeprefix(name)):
        commit, count = reader.peel(oid), int(number or 1)
        if kind == "~":
            oid = next(islice(reader.first_parents(commit.id), count, None)).id
        elif count:
            oid = commit.parents[count - 1]
    return pygit2.Oid(hex=str(oid))


_ABBREVIATED: Final = re.compile("[0-9a-f]{4,40}")
_SUFFIX: Final = re.compile(r"([\^~])([0-9]{0,9})")
_SUFFIXES: Final = re.compile(rf"(?:{_SUFFIX.pattern})+$")


def _missing(repository: pygit2.Repository, rev: str, error: Exception) -> str:
    branches = sorted(repository.branches)
    if repository.head_is_unborn and not branches:
        return "no commit yet"
    if repository.head_is_unborn and rev == "HEAD":
        return f"a HEAD that names no commit; name a branch: {', '.join(branches[:10])}"
    reason = words(error)  # often no more than the name again
    shallow = ", and this clone is shallow: fetch more of its history" if repository.is_shallow else ""
    return f"no commit {rev or repr(rev)}{f': {reason}' * (reason != rev)}{shallow}"
