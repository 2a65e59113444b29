"""Who may read and write the state directory: nobody but this instance, whatever the umask was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gitboot.controller.instance import state_directory as state
from gitboot.errors import UsageError
from gitboot.text import shell_words

_OWN: Final = 0o077  # a umask: nothing for anybody else
_SHARED: Final = 0o007  # a umask: the same for the group that the directory is shared with


@contextmanager
def private(directory: Path) -> Iterator[None]:
    """Make ``directory`` where it is missing; what is made until the block ends is for this instance alone.

    What belongs to this user and is open to others is closed to them. Raises `UsageError` where others, or a group that
    this process is not in, may write, or where a symlink stands in place of a file: whoever put it there could have put
    a ledger there as well. A directory that hands its group on (setgid) is shared with that group on purpose, as
    Kubernetes and OpenShift do, whose users change.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mask = _SHARED if _is_shared(directory.stat()) else _OWN
        _close(directory, directory.stat(), mask)
        for path in (directory / name for name in _NAMES):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISLNK(found.st_mode):
                    raise UsageError(
                        f"{path} is a symlink, which gitboot has not made: look where it leads, and remove it"
                    )
                _close(path, found, mask)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}") from error
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_in(directory: Path) -> int:
    """The rights of a file that only this instance may write, and others who share its directory may read."""
    return 0o640 if _is_shared(directory.stat()) else 0o600


def check_spool_rights(folder: Path) -> None:
    """Raise `UsageError` where everybody may write a spool: who writes there says which servers are installed."""
    with suppress(FileNotFoundError):
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and found.st_uid == os.geteuid():
            folder.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
        elif found.st_mode & stat.S_IWOTH:
            raise UsageError(
                f"everybody may write {folder}, and so say what is installed: chmod o-w {shell_words(folder)}"
            )


_NAMES: Final = (
    *(
        state.LEDGER,
        f"{state.LEDGER}-wal",
        f"{state.LEDGER}-shm",
        "ledger.mark",
        "ledger.toml",
        state.LOCK,
        state.STATUS,
    ),
    *(state.TOKEN_KEYS, state.NOTIFIED),
    *("repository.git", "repository.new", "repository.broken", "home"),
)


def _is_shared(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_ISGID) and _is_ours(found.st_gid)


def _is_ours(group: int) -> bool:
    return group in (os.getegid(), *os.getgroups())


def _close(path: Path, found: os.stat_result, mask: int) -> None:
    """Leave others no right to something that is ours; refuse what somebody else lets them write."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid():
        if mode & mask:
            path.chmod(mode & ~mask)
        return
    others = mode & stat.S_IWOTH
    if others or (mode & stat.S_IWGRP and not _is_ours(found.st_gid)):
        who = "everybody" if others else f"group {found.st_gid}, which this process is not in,"
        raise UsageError(f"{who} may write {path}: chmod {'o' if others else 'g'}-w {shell_words(path)}")
