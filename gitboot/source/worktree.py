"""Snapshots of what lies in a folder now, committed or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Final

import pygit2

from gitboot.errors import SourceError
from gitboot.fleet.revision import MAX_FILE_BYTES, BlobId, Irregular, Oversized, Revision, Snapshot

WORKTREE: Final = Revision("WORKTREE")


def of_worktree(root: Path, repository: pygit2.Repository | None, folder: str) -> Snapshot:
    """What lies below ``root`` now, without dot-folders and what `git status` would not show.

    ``root`` is ``folder`` in the repository's work tree. No link is followed.
    """
    ignored = _Ignored(repository, folder)
    if folder and ignored(""):
        ignored = _Ignored(None, folder)  # it was named, so it is looked at
    paths = []
    irregular = {}
    for path, kind in _walk(root, ignored):
        if kind is None:
            paths.append(path)
        else:
            irregular[path] = kind
    files = WorkFiles(root, sorted(paths))
    return Snapshot(revision=WORKTREE, blobs=files, read=files.read, irregular=irregular)


class _Ignored:
    """What Git is to leave out; nothing where there is no Git."""

    def __init__(self, repository: pygit2.Repository | None, folder: str) -> None:
        self._repository = repository
        self._index = () if repository is None else repository.index
        self._top = Path() if repository is None else Path(str(repository.workdir))
        self._prefix = f"{folder}/" if folder else ""
        self._is_readable = cache(self._looked_at)

    def is_tracked(self, path: str) -> bool:
        return self._prefix + path in self._index

    def __call__(self, path: str) -> bool:
        path = self._prefix + path
        folder = path.rpartition("/")[0]
        return self._repository is not None and self._is_readable(folder) and self._repository.path_is_ignored(path)

    def _looked_at(self, folder: str) -> bool:
        """Whether each .gitignore that counts in a folder of the work tree is a regular file, or missing.

        libgit2 follows symlinks, and would wait for the other end of a pipe. Git follows none (gitignore(5)).
        """
        try:
            is_regular = S_ISREG(os.lstat(self._top / folder / ".gitignore").st_mode)
        except OSError:
            is_regular = True
        return is_regular and (not folder or self._is_readable(folder.rpartition("/")[0]))


def _walk(root: Path, ignored: _Ignored) -> Iterator[tuple[str, Irregular | None]]:
    """Every file below ``root`` that is tracked or not ignored, and what is no regular file."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(root / prefix) as listed:
            found = list(listed)
        for entry in found:
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name.startswith("."):
                continue
            if not _is_utf8(path):
                yield os.fsencode(path).decode(errors="replace"), Irregular.FILE_NAME
            elif is_folder and not ignored.is_tracked(path) and not (root / path / ".git").exists():
                pending.append(f"{path}/")
            elif ignored.is_tracked(path) or not ignored(path):
                if is_folder:
                    yield path, Irregular.SUBMODULE
                elif entry.is_symlink():
                    yield path, Irregular.SYMLINK
                elif entry.is_file(follow_symlinks=False):
                    yield path, None


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # os.scandir gives what it cannot decode as surrogates
        return False
    return True


class WorkFiles(Mapping[str, BlobId]):
    """The files of a work tree. gitboot reads a file when its id is first needed, and the file stays as it was then."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._ids: dict[str, BlobId | None] = dict.fromkeys(paths)
        self._contents: dict[BlobId, bytes] = {}
        self._oversized: dict[BlobId, int] = {}

    def __getitem__(self, path: str) -> BlobId:
        blob = self._ids[path]
        if blob is None:
            blob = self._ids[path] = self._load(path)
        return blob

    def _load(self, path: str) -> BlobId:
        try:
            content = read_work_file(self._root, path)
        except Oversized as error:
            blob = BlobId(f"the {error} of {path}")
            self._oversized[blob] = error.size
        else:
            blob = BlobId(str(pygit2.hash(content)))
            self._contents[blob] = content
        return blob

    def __contains__(self, path: object) -> bool:
        return path in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, blob: BlobId) -> bytes:
        if (size := self._oversized.get(blob)) is not None:
            raise Oversized(size)
        return self._contents[blob]


def read_work_file(root: Path, path: str) -> bytes:
    """Return the content of a regular file of the fleet at ``root``; raise `SourceError` or `Oversized`."""
    place = f"{root}/{path}"
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            found = os.fstat(descriptor)
            if not S_ISREG(found.st_mode):
                raise OSError("is no longer a file")
            if found.st_size > MAX_FILE_BYTES:
                raise Oversized(found.st_size)
            return file.readall()
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror or error}") from error
