"""Files that are replaced whole, and locks that name the process that holds them."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from gitboot.errors import LockedByAnother, UsageError

_FOR_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP
_PROBES: Final = 10  # so often a lock is tried, each time after a pause: longer than `holder` takes to look
_PAUSE_S: Final = 0.02


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Bring the file at ``path`` to ``content``, and wait until the disk has it; raises OSError.

    Whoever reads meanwhile sees the old content or the new. A crash leaves one of the two, and perhaps a file
    ``.NAME.….new`` beside it. A symlink at ``path`` is replaced, not followed; ``mode`` holds whatever the umask is.
    """
    with replacing(path, mode=mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """The same of what is written until the block ends; where that ends with an error, nothing is replaced."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        new.rename(path)
    except BaseException:
        with suppress(OSError):  # the first error says more
            new.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Wait until the disk has a folder's names."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(path: Path, taken: str) -> Iterator[None]:
    """Keep other processes out until the block ends, by the lock file at ``path``.

    Raises OSError, and `LockedByAnother` with ``taken`` (as in: DIR is in use) and the process that is in. The lock
    goes with its process, however that ends. Its file stays: were it removed, one process could hold the removed file
    and another a new one.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if (other := take(fd)) is not None:
            raise LockedByAnother(f"{taken} by {other}")
        yield
    finally:
        os.close(fd)


def take(fd: int) -> str | None:
    """Lock an open file until it is closed, and write into it whose it is; where another process has it, say which."""
    probes = 0
    while not _flock(fd, fcntl.LOCK_EX):
        if (probes := probes + 1) > _PROBES:
            return _written_in(fd) or "another process"
        time.sleep(_PAUSE_S)
    us = f"process {os.getpid()} on {os.uname().nodename}\n".encode()
    with suppress(OSError):  # a full disk: the lock holds, only nobody reads whose it is
        os.pwrite(fd, us, 0)
        os.ftruncate(fd, len(us))
    return None


def holder(path: Path) -> int | None:
    """The process on this machine that holds the lock file at ``path``; None where none does. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _flock(fd, fcntl.LOCK_SH):
            return None
        found = re.match(r"process (\d+) on ", _written_in(fd))
        return int(found[1]) if found else None
    finally:
        os.close(fd)


def _flock(fd: int, kind: int) -> bool:
    """Whether the lock was free."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written_in(fd: int) -> str:
    return os.pread(fd, 1000, 0).decode(errors="replace").strip()


def read_private(file: Path) -> bytes:
    """What a file with a secret holds; raises `UsageError` where others may read or write it."""
    try:
        mode = file.stat().st_mode
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if mode & _FOR_OTHERS:
        raise UsageError(f"{file} holds secrets, and others may read or write it: chmod 600 {file}")
    return content
