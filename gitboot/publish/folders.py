"""The folders below one directory, made and opened one by one so that no symlink leads out of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.errors import PublishError
from gitboot.publish.modes import OPEN, TreeModes

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class InTheWay(PublishError):
    """A file or a symlink stands where a folder has to be."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(f"{root / path}: expected a folder, found something else (move it away)")
        self.path = path


class _Folder(NamedTuple):
    path: str  # "" is the directory itself
    fd: int


class Folders:
    """The way down to the folder that was asked for last; in sorted order the next is most often beside it.

    Raises OSError, and InTheWay.
    """

    def __init__(self, root: Path, modes: TreeModes = OPEN) -> None:
        self._root, self._modes = root, modes
        self._way = [_Folder("", os.open(root, os.O_RDONLY | os.O_DIRECTORY))]
        self.filesystems: dict[int, int] = {}  # device -> a folder on it: any folder may be a mount point
        self.changed: set[str] = set()  # folders in which others were made or removed

    def close(self) -> None:
        self.rest()
        os.close(self._way.pop().fd)

    def rest(self) -> None:
        """Hold nothing open but the directory itself."""
        while len(self._way) > 1:
            self._leave()
        while self.filesystems:
            os.close(self.filesystems.popitem()[1])

    @property
    def root(self) -> int:
        return self._way[0].fd

    def find(self, path: str) -> int | None:
        """A folder's descriptor, good until the next call; None if there is no such folder."""
        try:
            return self._open(path, make=False)
        except FileNotFoundError:
            return None

    def make(self, path: str) -> int:
        """The same, made where it is missing; its permissions are the same under any umask."""
        return self._open(path, make=True)

    def prune(self) -> None:
        """Remove the last folder on the way if it is empty, then those above it; the topmost stay."""
        while len(self._way) > 2:
            name = self._way[-1].path.rpartition("/")[2]
            self._leave()
            try:
                os.rmdir(name, dir_fd=self._way[-1].fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):  # busy: a mount point
                    return
                raise
            self.changed.add(self._way[-1].path)

    def _open(self, path: str, *, make: bool) -> int:
        while not _leads_to(self._way[-1].path, path):
            self._leave()
        while (here := self._way[-1].path) != path:
            self._enter(path[len(here) :].lstrip("/").partition("/")[0], make=make)
        return self._way[-1].fd

    def _enter(self, name: str, *, make: bool) -> None:
        above = self._way[-1]
        path = f"{above.path}/{name}" if above.path else name
        if name in (".", ".."):
            raise OSError(errno.EINVAL, "expected a path below the directory")
        try:
            fd = os.open(name, _FLAGS, dir_fd=above.fd)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, self._modes.folder, dir_fd=above.fd)
            self.changed.add(above.path)
            fd = os.open(name, _FLAGS, dir_fd=above.fd)
            self._modes.give_folder(fd)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise InTheWay(self._root, path) from error
            raise
        self._way.append(_Folder(path, fd))
        if (device := os.fstat(fd).st_dev) not in self.filesystems:
            self.filesystems[device] = os.dup(fd)

    def _leave(self) -> None:
        os.close(self._way.pop().fd)


def _leads_to(above: str, path: str) -> bool:
    return above in ("", path) or (path.startswith(above) and path[len(above)] == "/")
