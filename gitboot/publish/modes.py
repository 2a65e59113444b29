"""Who may read a published tree: the permissions of its files and folders, and the group that they have."""

from __future__ import annotations

import grp
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.errors import UsageError

_OTHERS: Final = 0o007
_ASSETS: Final = "boot/assets"  # files that operators put there, with permissions of their own


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeModes:
    """The permissions of a tree. They are the same under any umask."""

    folder: int = 0o755
    file: int = 0o644
    group: int | None = None  # the group of each file and folder; None: the one that the system gives

    def give_file(self, fd: int) -> None:
        """Give a new file, which is open, its group and its permissions; raises OSError."""
        self._give_group(fd)
        os.fchmod(fd, self.file)

    def give_folder(self, fd: int) -> None:
        """Give a new folder, which is open, its group and its permissions; raises OSError."""
        self._give_group(fd)
        os.fchmod(fd, self.folder)

    def _give_group(self, fd: int) -> None:
        if self.group is not None:
            os.fchown(fd, -1, self.group)

    def fits(self, found: os.stat_result) -> bool:
        """Return whether a folder has these permissions and this group."""
        return stat.S_IMODE(found.st_mode) & 0o777 == self.folder and self.group in (None, found.st_gid)


OPEN: Final = TreeModes()  # for everybody who has a login on the host


def closed(group: int | None = None) -> TreeModes:
    """Return the permissions of a tree that its owner writes and its group reads, and nobody else."""
    return TreeModes(folder=0o750, file=0o640, group=group)


def group_of(name: str) -> int:
    """Return the number of a group, which may be given as a number.

    Raises `UsageError` where there is no such group, or where this process may not give files to it.
    """
    if name.isdecimal():
        found = int(name)
    else:
        try:
            found = grp.getgrnam(name).gr_gid
        except KeyError:
            raise UsageError(
                f"--output-group {name}: this machine has no group of that name; getent group lists its groups"
            ) from None
    if os.geteuid() != 0 and found not in (os.getegid(), *os.getgroups()):
        user = os.geteuid()
        raise UsageError(
            f"--output-group {name}: the user {user} is not in that group, so gitboot may not give files to it; "
            f"usermod --append --groups {name} USER, or SupplementaryGroups={name} in the unit file"
        )
    return found


def is_open(root: Path) -> bool:
    """Return whether others than the owner and the group can read what is published below a folder."""
    with suppress(OSError):
        below = [root / name for name in ("boot", "ops") if (root / name).is_dir()]
        return bool(root.stat().st_mode & _OTHERS) and any(each.stat().st_mode & _OTHERS for each in below)
    return False


def adapt(root: Path, modes: TreeModes) -> None:
    """Bring a tree that stands to these permissions, but for the files of operators; raises OSError.

    The topmost folders are changed last. If they are as they should be, nothing else is looked at. Files that only
    their owner may read stay so. What belongs to another user is left as it is: gitboot may not change it.
    """
    tops = [path for path in (root / "ops", root / "boot", *_own_root(root)) if path.is_dir()]
    if all(modes.fits(path.lstat()) for path in tops if _is_ours(path.lstat())):
        return
    for top in (each for each in (root / "ops", root / "boot") if each.is_dir()):
        for path, folders, files, fd in os.fwalk(top):
            folders[:] = [name for name in folders if Path(path, name) != root / _ASSETS]
            if Path(path) != top and _is_ours(os.fstat(fd)):
                modes.give_folder(fd)
            for name in files:
                _adapt_file(name, fd, modes)
    for folder in tops:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if _is_ours(os.fstat(fd)):
                modes.give_folder(fd)
        finally:
            os.close(fd)


def _own_root(root: Path) -> list[Path]:
    """Return the folder of a tree if nothing else lies in it; others may have to read what does."""
    return [root] if {name for name in os.listdir(root) if name != "lost+found"} <= {"boot", "ops"} else []


def _adapt_file(name: str, folder: int, modes: TreeModes) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or not _is_ours(found) or not found.st_mode & 0o077:
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        modes.give_file(fd)
    finally:
        os.close(fd)


def _is_ours(found: os.stat_result) -> bool:
    return os.geteuid() in (0, found.st_uid)
