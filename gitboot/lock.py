"""One process at a time in a directory, and who it is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gitboot.errors import LockedByAnother


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold ``directory`` until the block ends; raises `LockedByAnother` naming the process that has it.

    The lock goes with its process, however that ends.
    """
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
            raise LockedByAnother(f"{directory} is in use by {holder or 'another process'}") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
