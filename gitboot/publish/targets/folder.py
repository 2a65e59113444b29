"""Folder target: a directory on this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from gitboot.errors import PublishError
from gitboot.files import lock_file, open_lock
from gitboot.publish.durable_files import Disk, TreeModes, staging_path, to_publish_error
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.followed_tree import TargetFile
from gitboot.publish.targets.store_target import FileCallback, FileConflict, ReadFile, StoredFile
from gitboot.publish.targets.target_records import MAX_RECORD_BYTES
from gitboot.render.endpoint_files import ListedFile


class TargetFolder:
    """A target in the local folder ``root``, which must exist.

    Files get the permissions and the group of ``root``. gitboot does not follow symlinks, and syncs each file to the
    disk before the file replaces another file. A process locks the folder only during a single `create` or `replace`.
    Therefore a new instance that takes over the target does not have to wait.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            modes = TreeModes.from_folder(root.stat())
        except OSError as error:
            hint = "create the folder with the permissions and the group that its files should have"
            raise PublishError(f"{root}: {error.strerror} ({hint})") from error
        self._disk = Disk(root, modes)

    @property
    def is_current(self) -> bool:
        return self._disk.is_root_unchanged

    def close(self) -> None:
        self._disk.close()

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        content = self._disk.read(path, max_bytes)
        return StoredFile(content, compute_digest(content)) if content is not None else None

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        for path in paths:
            on_file(path, self.get(path))

    def create(self, path: str, content: bytes) -> None:
        with self._hold_lock():
            if self._disk.lstat(path) is not None:
                raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        with self._hold_lock():
            if version is not None:
                current = self.get(path)
                if current is None or current.version != version:
                    raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        files = {path: read_file(path) for path in paths}
        conflicts = frozenset(path for path in new_paths if self._has_other_content(path, files[path].content))
        self._write({path: file for path, file in files.items() if path not in conflicts})
        self._disk.release_folders()
        return conflicts

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        contents = {path: self._disk.read(path, each.size) for path, each in expected_files.items()}
        self._disk.release_folders()
        return sorted(
            path
            for path, content in contents.items()
            if content is None or compute_digest(content) != expected_files[path].sha256
        )

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and any temporary files that a killed process left beside them."""
        for path in paths:
            self._disk.remove(staging_path(path))
            self._disk.remove(path)
        self._disk.sync()
        self._disk.release_folders()

    def names(self, folder: str) -> list[str]:
        paths: list[str] = []
        try:
            for parent, _, names in os.walk(self.root / folder, onerror=_raise_unless_absent):
                paths += (os.path.relpath(os.path.join(parent, name), self.root) for name in names)
        except OSError as error:
            raise to_publish_error(self.root, error) from error
        return sorted(paths)

    def _write(self, files: Mapping[str, TargetFile]) -> None:
        for path, file in files.items():
            self._disk.stage(path, file.content, datetime.fromtimestamp(file.modified, UTC), exact=True)
        self._disk.sync()
        for path in files:
            self._disk.place(path)
        self._disk.sync()

    def _has_other_content(self, path: str, content: bytes) -> bool:
        if self._disk.lstat(path) is None:
            return False
        try:
            return self._disk.read(path, len(content)) != content
        except PublishError:  # the path is a folder or a symlink
            return True

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Prevent other processes from running `create` or `replace` until the block ends."""
        try:
            fd = open_lock("target.lock", self._disk.folders.make("ops"))
        except OSError as error:
            raise to_publish_error(self.root, error) from error
        try:
            with suppress(PermissionError):  # another user created the lock file
                os.fchmod(fd, 0o600)
            lock_file(fd, waits=True)
            yield
        finally:
            os.close(fd)


def build_folder_opener(root: Path) -> Callable[[], TargetFolder]:
    """Return a function that opens the folder.

    The returned function reopens the folder if the path now refers to another folder or disk.
    """
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
