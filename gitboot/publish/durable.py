"""What a power cut would undo, and what the system says when it refuses."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.folders import Folders

# Up to so many files and folders, an fsync each is quicker than one syncfs, which also waits for what others
# have written to the same file system.
FSYNC_AT_MOST: Final = 16

_HINTS: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EROFS: "mount it writable",
    errno.EACCES: "let the user that gitboot runs as write there",
    errno.EPERM: "let the user that gitboot runs as write there",
    errno.ELOOP: "no symlink is followed: move it away",
}


class Unsynced:
    """The files and folders below ``root`` that were changed since the last `sync`."""

    def __init__(self, root: Path, folders: Folders) -> None:
        self._root, self._folders = root, folders
        self._paths: set[str] = set()

    def add(self, path: str) -> None:
        self._paths.add(path)

    def sync(self) -> None:
        """Wait until the disks have them; raises PublishError."""
        self._paths |= self._folders.changed
        self._folders.changed.clear()
        if len(self._paths) > FSYNC_AT_MOST:
            self._sync_filesystems()
        else:
            for path in sorted(self._paths):
                self._sync_one(path)
        self._paths.clear()

    def _sync_filesystems(self) -> None:
        for fd in self._folders.filesystems.values():
            try:
                syncfs(fd)
            except OSError as error:
                raise refused(self._root, error) from error

    def _sync_one(self, path: str) -> None:
        folder, name = split(path)
        try:
            if (parent := self._folders.find(folder)) is None:
                return
            fd = os.open(name or ".", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:  # a folder that was left empty and removed
            return
        except OSError as error:
            raise refused(self._root / path, error) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise refused(self._root / path, error) from error
        finally:
            os.close(fd)


def refused(path: Path, error: OSError) -> PublishError:
    """What the system refused at ``path``, with what to do about it where that is known."""
    hint = f" ({_HINTS[error.errno]})" if error.errno in _HINTS else ""
    return PublishError(f"{path}: {error.strerror}{hint}")


def split(path: str) -> tuple[str, str]:
    """The folder that a path is in, and its name there."""
    folder, _, name = path.rpartition("/")
    return folder, name


def staged(path: str) -> str:
    """What is staged for a path: always the same, and short, since a name may be as long as the system takes."""
    folder, name = split(path)
    beside = f".gitboot-{sha256(name.encode()).hexdigest()[:16]}.tmp"
    return f"{folder}/{beside}" if folder else beside


def is_staged(name: str) -> bool:
    """Return whether `staged` makes such a name: a process that was killed may have left the file."""
    return _STAGED.fullmatch(name) is not None


_STAGED: Final = re.compile(r"\.gitboot-[0-9a-f]{16}\.tmp")

_libc: Final = ctypes.CDLL(None, use_errno=True)


def syncfs(fd: int) -> None:
    """syncfs(2), which the standard library lacks; ``os.sync`` would wait for every disk of the machine."""
    if _libc.syncfs(fd) != 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
