"""The state directory: who runs on it, and what that instance last said of itself."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from gitboot.errors import LockedByAnother, UsageError

LEDGER: Final = "ledger.sqlite"
_LOCK: Final = "lock"
STATUS: Final = "status.json"


def has_ledger(directory: Path) -> bool:
    """Whether an instance has run here; raises `UsageError` where that cannot be told."""
    try:
        return S_ISREG((directory / LEDGER).stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None


def never_ran(directory: Path) -> UsageError:
    """What a person is told who names a directory on which no instance has run."""
    return UsageError(
        f"no gitboot has run with the state directory {directory}; name the one that `gitboot run --state` has"
    )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold ``directory`` until the block ends; raises `LockedByAnother` naming the process that has it.

    Raises `UsageError` where it cannot be written. The lock goes with its process, however that ends.
    """
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedByAnother(f"{directory} is in use by {_holder(lock) or 'another process'}") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def running(directory: Path) -> int | None:
    """The process that holds ``directory`` on this machine; None where none does."""
    try:
        lock = os.open(directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        found = re.match(r"process (\d+) ", _holder(lock))
        return int(found[1]) if found else None
    else:
        return None
    finally:
        os.close(lock)


def _holder(lock: int) -> str:
    return os.pread(lock, 1000, 0).decode(errors="replace").strip()


def write_status(directory: Path, status: Mapping[str, Any]) -> None:
    """Leave a status for `gitboot status`; a disk that refuses it loses only that."""
    new = directory / f"{STATUS}.new"
    with suppress(OSError):
        new.write_text(json.dumps(status, indent=2, sort_keys=True) + "\n")
        new.replace(directory / STATUS)


def read_status(directory: Path) -> dict[str, Any]:
    """What the instance said of itself last; raises `UsageError` where none has run here."""
    path = directory / STATUS
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise never_ran(directory) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or "attempted" not in found:
        raise UsageError(f"{path} is no status; the next pass of `gitboot run` writes it anew")
    return found
