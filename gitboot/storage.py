"""Where state lies: which file system that is, and whether the locks of two processes hold there."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gitboot.errors import UsageError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(r"nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|glusterfs|ocfs2|gfs2|fuse\..+")
_VOLATILE: Final = ("tmpfs", "ramfs", "overlay", "aufs")
_OPTION: Final = "--accept-filesystem"
_HOLDING: Final[set[int]] = set()  # the file systems whose locks were found to hold

# Tries to lock a file that another process has locked; its answer is the exit code.
_TRY: Final = """\
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)
sys.exit(3)
"""

Warn = Callable[[str], None]


def check_state(directory: Path, accepted: Collection[str], warn: Warn) -> None:
    """Look at where a ledger is to lie; raises `UsageError` where it cannot be kept there.

    On a network a write that was synced may be lost, and SQLite's log may be read wrongly. What goes with its container
    or the next boot is another thing: a ledger that is lost is a new one, and unknown never installs.
    """
    found = filesystem_of(directory)
    _check_locks(directory, found)
    if _NETWORK.fullmatch(found) and found not in accepted:
        raise UsageError(
            f"{directory} is on {found}: a ledger needs a disk of this machine (put --state there, or accept that it "
            f"may be lost or damaged with {_OPTION} {found})"
        )
    if _NETWORK.fullmatch(found):
        warn(f"{directory} is on {found}: the ledger may be lost or damaged there")
    elif found in _VOLATILE and found not in accepted:
        warn(f"{directory} is on {found}: the ledger goes with it, and what is installed has to be said anew then")


def check_spool(folder: Path, accepted: Collection[str], warn: Warn, *, state: Path | None = None) -> None:
    """Look at where fetches are to be recorded; raises `UsageError` where a recorded one may be forgotten.

    ``state`` is the state directory of the instance that reads them, where that is known: what is lost together with
    the ledger misleads nobody.
    """
    found = filesystem_of(folder)
    _check_locks(folder, found)
    goes_with_state = state is not None and state.exists() and state.stat().st_dev == folder.stat().st_dev
    if found in _VOLATILE and found not in accepted and not goes_with_state:
        raise UsageError(
            f"{folder} is on {found}, which does not last: a boot that was recorded there would be made again (put "
            f"--spool on a disk, or accept that with {_OPTION} {found})"
        )
    if _NETWORK.fullmatch(found):
        warn(f"{folder} is on {found}: a fetch counts as recorded when its server says that it is on a disk")


def check_output(directory: Path, accepted: Collection[str], warn: Warn, *, state: Path) -> None:
    """Look at where the tree is to lie; raises `UsageError` where two instances could publish there at once.

    A tree that is lost is made anew. But where it is lost alone, its ledger cannot be told from an older copy.
    """
    found = filesystem_of(directory)
    with suppress(OSError):  # where nothing can be written, the publication says so
        if not _locks_hold(directory):
            raise _without_locks(directory, found)
    if _NETWORK.fullmatch(found) and found not in accepted:
        warn(f"{directory} is on {found}: an endpoint on another machine may read older entries from what it remembers")
    elif found in _VOLATILE and found not in accepted and state.stat().st_dev != directory.stat().st_dev:
        warn(
            f"{directory} is on {found}: the tree goes with it, and the ledger is in doubt then, until a person says "
            "that it is right (gitboot records begin as-recorded)"
        )


_BARE: Final = ("HEAD", "objects", "refs")  # by which Git knows a repository: gitrepository-layout(5)


def check_private(directory: Path, private: Mapping[str, Path | None]) -> None:
    """Raise `UsageError` where what is nobody's business lies in a tree, which whoever serves it gives to anybody.

    ``private`` are paths by their options; None: it is not used. A repository is as private, by its ``.git`` or bare.
    """
    tree = directory.resolve()
    if os.path.exists(tree / ".git"):
        raise UsageError(f"--out {directory} is a Git work tree: choose a directory for what is published alone")
    if all(os.path.exists(tree / each) for each in _BARE):
        raise UsageError(f"--out {directory} is a Git repository: choose a directory for what is published alone")
    for option, path in private.items():
        if path is not None and path.resolve().is_relative_to(tree):
            where = "is" if path.resolve() == tree else "lies in"
            raise UsageError(
                f"{option} {path} {where} --out {directory}, which is served to anybody: choose a place beside it"
            )


def filesystem_of(path: Path) -> str:
    """The type of the file system that a directory is on, as mount(8) names it; empty where that is not known."""
    with suppress(OSError):
        return _type_at(_MOUNTS.read_text(errors="surrogateescape"), path.resolve(strict=True))
    return ""


def is_on_network(path: Path) -> bool:
    """Whether a file is on a network file system, or will be if it does not exist yet."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return _NETWORK.fullmatch(filesystem_of(path)) is not None


def _type_at(mounts: str, path: Path) -> str:
    """Of the mounts, proc(5), the one that a path is below; of several at one place the last hides the others."""
    found = ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, after.split()[0]
    return found[1]


def _check_locks(directory: Path, found: str) -> None:
    """Raise `UsageError` where a second process gets a lock that this one holds, or none can be had."""
    try:
        held = _locks_hold(directory)
    except OSError as error:
        raise UsageError(f"{directory} cannot be used: {error.strerror} ({found or 'unknown file system'})") from None
    if not held:
        raise _without_locks(directory, found)


def _without_locks(directory: Path, found: str) -> UsageError:
    return UsageError(
        f"{directory} is on {found or 'a file system'} where the locks of two processes do not hold: choose another"
    )


def _locks_hold(directory: Path) -> bool:
    """Whether a second process is kept out by a lock that this one holds. Raises OSError where none can be had.

    Of a file system a second process is asked once: state, spool and output often share one.
    """
    probe = directory / f".gitboot-lock-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            device = os.fstat(file.fileno()).st_dev
            if device not in _HOLDING:
                command = [sys.executable, "-I", "-S", "-c", _TRY, str(probe)]
                if subprocess.run(command, check=False, capture_output=True).returncode != 0:
                    return False
                _HOLDING.add(device)
            return True
    finally:
        probe.unlink(missing_ok=True)
