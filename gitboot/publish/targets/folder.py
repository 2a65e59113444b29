"""A folder of this machine as the store of a target, such as the root of a web server or a mounted disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from stat import S_IMODE
from typing import Concatenate, Final, ParamSpec, TypeVar

from gitboot.errors import PublishError
from gitboot.publish.durable_files import Disk, TreeModes, refused, split, staged
from gitboot.publish.targets.sync_steps import digest_of
from gitboot.targets.file_store import (
    MAX_RECORD_BYTES,
    Expected,
    FileConflict,
    ReadFile,
    StoredFile,
    TakeFile,
    TargetFile,
)

_OPS: Final = "ops"
_LOCK: Final = "target.lock"  # below ops/
_FILE: Final = 0o666  # of a folder's permissions, those that its files get
_AT_ONCE: Final = 1 << 16  # bytes that are read at a time

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _named(act: Callable[Concatenate[TargetFolder, _P], _R]) -> Callable[Concatenate[TargetFolder, _P], _R]:
    """Raise `PublishError` with the folder for what the system refuses."""

    @wraps(act)
    def named(folder: TargetFolder, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(folder, *args, **kwargs)
        except OSError as error:
            raise refused(folder.root, error) from error

    return named


class TargetFolder:
    """The files below ``root``, which has to exist. Files and folders get its permissions and its group.

    Each file is on the disk before it replaces another, and follows no symlink. Processes that write to one folder at
    the same time lock it only for the length of one `replace`: an instance that takes over does not wait.
    """

    def __init__(self, root: Path) -> None:
        """Raises `PublishError`."""
        self.root = root
        try:
            found = root.stat()
        except OSError as error:
            hint = "make it, with the permissions and the group that its files are to have"
            raise PublishError(f"{root}: {error.strerror} ({hint})") from error
        mode = S_IMODE(found.st_mode) & 0o777
        self._disk = Disk(root, TreeModes(folder=mode, file=mode & _FILE, group=found.st_gid))

    @property
    def is_current(self) -> bool:
        """Whether the folder that was opened is still at its path."""
        try:
            return os.path.samestat(self.root.stat(), self._disk.folder)
        except OSError:
            return False

    def close(self) -> None:
        self._disk.close()

    @_named
    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        content = self._read(path, max_bytes)
        return StoredFile(content, digest_of(content)) if content is not None else None

    def get_each(self, paths: Collection[str], take: TakeFile) -> None:
        for path in paths:
            take(path, self.get(path))

    @_named
    def create(self, path: str, content: bytes) -> None:
        with self._locked():
            if self._disk.look(path) is not None:
                raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    @_named
    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        with self._locked():
            if version is not None and ((found := self.get(path)) is None or found.version != version):
                raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    @_named
    def place(self, paths: Collection[str], read: ReadFile, fresh: Collection[str]) -> frozenset[str]:
        files = {path: read(path) for path in paths}
        left = frozenset(path for path in fresh if self._is_something_else(path, files[path].content))
        self._write({path: file for path, file in files.items() if path not in left})
        self._disk.rest()
        return left

    @_named
    def differing(self, expected: Mapping[str, Expected]) -> list[str]:
        contents = {path: self._read(path, each.size) for path, each in expected.items()}
        self._disk.rest()
        return sorted(
            path for path, content in contents.items() if content is None or digest_of(content) != expected[path].sha256
        )

    @_named
    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and what a killed process has staged for them."""
        for path in paths:
            self._disk.remove(staged(path))
            self._disk.remove(path)
        self._disk.sync()
        self._disk.rest()

    @_named
    def names(self, folder: str) -> list[str]:
        top = os.fspath(self.root)
        found = (
            os.path.relpath(os.path.join(above, name), top)
            for above, _, names in os.walk(self.root / folder, onerror=_raise_unless_absent)
            for name in names
        )
        return sorted(found)

    def _write(self, files: Mapping[str, TargetFile]) -> None:
        """Stage all files, wait until they are on the disk, then put each in its place."""
        for path, file in files.items():
            at = datetime.fromtimestamp(file.modified, UTC)
            self._disk.stage(path, file.content, at)
            # `stage` dates a file later than the one that it replaces; a copy has the time of the original.
            folder, name = split(staged(path))
            os.utime(name, (file.modified, file.modified), dir_fd=self._disk.folders.make(folder))
        self._disk.sync()
        for path in files:
            self._disk.place(path)
        self._disk.sync()

    def _is_something_else(self, path: str, content: bytes) -> bool:
        """Return whether a path has anything but a file with this content."""
        if self._disk.look(path) is None:
            return False
        try:
            return self._read(path, len(content)) != content
        except OSError:  # a folder, or a symlink, which is not followed
            return True

    def _read(self, path: str, max_bytes: int) -> bytes | None:
        """Return a file, or its first bytes and one more than ``max_bytes``; None if it is absent. Raises OSError."""
        folder, name = split(path)
        if (parent := self._disk.folders.find(folder)) is None:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return None
        try:
            content = bytearray()
            while len(content) <= max_bytes and (piece := os.read(fd, _AT_ONCE)):
                content += piece
            return bytes(content[: max_bytes + 1])
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out of `create` and `replace` until the block ends. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_LOCK, flags, 0o600, dir_fd=self._disk.folders.make(_OPS))
        try:
            with suppress(PermissionError):  # of a file that another user has made
                os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def folder_opener(root: Path) -> Callable[[], TargetFolder]:
    """Return a function that returns the folder, opened anew if another folder or disk is at its path by now."""
    opened: list[TargetFolder] = []

    def open_folder() -> TargetFolder:
        if not opened or not opened[0].is_current:
            while opened:
                opened.pop().close()
            opened.append(TargetFolder(root))
        return opened[0]

    return open_folder


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
