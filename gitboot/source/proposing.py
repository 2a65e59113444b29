"""A commit on a branch of its own, made for a pull request beside whatever is checked out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pygit2

from gitboot.errors import UsageError
from gitboot.files import fleet_root
from gitboot.fleet.revision import Revision
from gitboot.git.repository import blaming, containing
from gitboot.source.commit_objects import CommitReader, peel_reference, tree_of
from gitboot.source.snapshot import fleet_folder


def check_branch(branch: str) -> None:
    """Raise `UsageError` where Git takes no branch of this name."""
    if not pygit2.reference_is_valid_name(f"refs/heads/{branch}"):
        raise UsageError(f"{branch!r} is no name of a branch")


def is_proposed(path: Path, branch: str, files: Mapping[str, bytes]) -> bool | None:
    """Whether a branch has these files of the fleet at ``path``; None: there is none of that name.

    Those at remotes count as far as they were fetched. Raises `UsageError`.
    """
    root = fleet_root(path)
    with blaming(path), containing(root) as repository:
        if repository is None:
            raise UsageError(f"{path} is in no Git repository: --no-commit changes the file alone")
        tracking = (f"refs/remotes/{remote.name}/{branch}" for remote in repository.remotes)
        there = [name for name in (f"refs/heads/{branch}", *tracking) if name in repository.references]
        folder = fleet_folder(repository, root)
        tips = [peel_reference(repository, repository.references[name]) for name in there]
        trees = [tree for tree in (tree_of(repository, tip) for tip in tips) if tree is not None]
        return any(_holds(tree, folder, files) for tree in trees) if there else None


def propose(
    path: Path, base: Revision, branch: str, files: Mapping[str, bytes], message: str, at: datetime
) -> Revision:
    """A commit upon ``base`` with these files of the fleet at ``path`` changed, as a new branch.

    Neither the work tree nor what is checked out is touched. It is by whom the repository's own configuration names.
    """
    root = fleet_root(path)
    with blaming(path), containing(root) as repository:
        assert repository is not None  # noqa: S101 - is_proposed said so
        folder = fleet_folder(repository, root)
        parent = CommitReader(repository).peel(base)
        index = pygit2.Index()
        if (tree := tree_of(repository, parent)) is not None:
            index.read_tree(tree)
        for name, content in files.items():
            entry = index[f"{folder}/{name}" if folder else name]
            index.add(pygit2.IndexEntry(entry.path, repository.create_blob(content), entry.mode))
        who = _signature(repository, at)
        commit = repository.create_commit(None, who, who, message, index.write_tree(repository), [parent.id])
        repository.references.create(f"refs/heads/{branch}", commit)
        return Revision(str(commit))


def _holds(tree: pygit2.Tree, folder: str, files: Mapping[str, bytes]) -> bool:
    for name, content in files.items():
        with suppress(KeyError):
            if tree[f"{folder}/{name}" if folder else name].id == pygit2.hash(content):
                continue
        return False
    return True


def _signature(repository: pygit2.Repository, at: datetime) -> pygit2.Signature:
    try:
        who = repository.default_signature
        name, email = who.name, who.email
    except KeyError:
        name, email = "gitboot", "gitboot@localhost"
    return pygit2.Signature(name, email, int(at.timestamp()), 0)
