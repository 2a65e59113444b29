"""The folder of a repository in which a fleet lies, and what a clone knows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pygit2

from gitboot.errors import UsageError
from gitboot.fleet.revision import Revision

ACCEPTED: Final = "refs/gitboot/accepted"
_FOLDER: Final = "gitboot.folder"  # of commits that are fetched
_ACCEPTED_FOLDER: Final = "gitboot.acceptedfolder"


def parse_subpath(text: str) -> str:
    """A folder as Git writes it, without a slash at its ends; raises `UsageError`."""
    folder = text.strip("/")
    parts = folder.split("/")
    if text.startswith("/") or not all(parts) or not text.isprintable():
        raise UsageError(f"--subpath {text!r}: expected a folder of the repository, as infra/boot")
    if hidden := next((part for part in parts if part.startswith(".")), None):
        raise UsageError(
            f"--subpath {text!r}: {hidden!r} begins with a dot, and what lies in such a folder is no fleet's"
        )
    return folder


def check_subpath(path: Path, folder: str) -> None:
    """Raise `UsageError` if --subpath below ``path`` leads through a symlink, or into another repository.

    An instance reads the folder from a commit, which has a symlink or a submodule there, and no folder.
    """
    parts = folder.split("/")
    for number in range(len(parts)):
        place = path.joinpath(*parts[: number + 1])
        if place.is_symlink():
            raise UsageError(
                f"--subpath {folder}: {place} is a symlink, and gitboot does not follow symlinks of a repository: "
                "commit a folder, or name the folder that the symlink leads to"
            )
    inner = path / folder
    if inner.is_dir() and (outer := pygit2.discover_repository(str(path))) is not None:
        found = pygit2.discover_repository(str(inner))
        if found is not None and Path(found) != Path(outer):
            raise UsageError(
                f"--subpath {folder}: {inner} belongs to another Git repository than {path}, {found}: name the fleet's "
                "repository with --path"
            )


def folder_of(ours: pygit2.Repository) -> str:
    """The fleet's folder in the commits that a clone fetches."""
    return _noted(ours, _FOLDER) or ""


def folder_at(ours: pygit2.Repository, revision: Revision) -> str:
    """The fleet's folder in a commit: the accepted one keeps that in which it was accepted.

    So where an instance is led to another folder, the next commit is judged by what was there before.
    """
    accepted = ours.references.get(ACCEPTED)
    folder = _noted(ours, _ACCEPTED_FOLDER)
    if folder is None or accepted is None or str(accepted.target) != revision:
        return folder_of(ours)
    return folder


def note_folder(ours: pygit2.Repository, folder: str) -> None:
    """Let commits that are fetched have the fleet in another folder."""
    if _noted(ours, _ACCEPTED_FOLDER) is None and ACCEPTED in ours.references:  # by a gitboot that noted none
        note_accepted(ours, folder_of(ours))
    ours.config[_FOLDER] = folder


def note_accepted(ours: pygit2.Repository, folder: str) -> None:
    """Let the accepted commit have been accepted in a folder."""
    if _noted(ours, _ACCEPTED_FOLDER) != folder:
        ours.config[_ACCEPTED_FOLDER] = folder


def recover_folder(ours: pygit2.Repository, left: pygit2.Repository) -> None:
    """Take over what another clone knows of the accepted commit."""
    if (folder := _noted(left, _ACCEPTED_FOLDER)) is not None:
        note_accepted(ours, folder)


def _noted(ours: pygit2.Repository, name: str) -> str | None:
    return str(ours.config[name]) if name in ours.config else None
