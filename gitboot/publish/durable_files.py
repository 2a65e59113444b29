"""Durable files: write, replace and remove files below one directory, without following symlinks."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeGuard, TypeVar

from gitboot.errors import PublishError, UsageError
from gitboot.files import take

NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# link(2): a file has as many names as its file system allows, the file system has no links, or begins at a mount point.
NO_LINK: Final = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
_AT_ONCE: Final = 1 << 16  # bytes
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _named(act: Callable[Concatenate[Disk, str, _P], _R]) -> Callable[Concatenate[Disk, str, _P], _R]:
    @wraps(act)
    def named(disk: Disk, path: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(disk, path, *args, **kwargs)
        except OSError as error:
            raise refused(disk.root / path, error) from error

    return named


class _Written(NamedTuple):
    """What was staged last, but as another name of the same."""

    path: str
    mtime: int
    file: os.stat_result


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


class Disk:
    """The files below ``root``, until ``close``."""

    def __init__(self, root: Path, modes: TreeModes = OPEN) -> None:
        self.root, self.modes = root, modes
        try:
            self.folders = Folders(root, modes)
            self.folder = os.fstat(self.folders.root)  # that was opened, whatever stands at ``root`` by now
        except OSError as error:
            raise refused(root, error) from error
        self._lock: int | None = None
        self._unsynced = Unsynced(root, self.folders)
        self._latest: _Written | None = None

    def close(self) -> None:
        """Release the lock and everything else that is open."""
        self.folders.close()
        if self._lock is not None:
            os.close(self._lock)

    def rest(self) -> None:
        """Hold no folder open, so that each can be unmounted or moved."""
        self.folders.rest()

    @_named
    def lock(self, path: str) -> str:
        """Keep other processes out until ``close``; where one is in already, return who it is, else nothing."""
        folder, name = split(path)
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            # Whoever could open it could lock it, and keep this instance from publishing.
            self._lock = os.open(name, flags, 0o600, dir_fd=self.folders.make(folder))
            with suppress(PermissionError):  # one that an older gitboot has made, as another user
                os.fchmod(self._lock, 0o600)
            if (other := take(self._lock)) is not None:
                return other
            stands = self.look(path)
            if stands is not None and os.path.samestat(os.fstat(self._lock), stands):
                return ""
            os.close(self._lock)  # its holder has just removed it

    def adapt(self) -> None:
        """Bring what stands there to the permissions of what is written; raises PublishError."""
        try:
            adapt(self.root, self.modes)
        except OSError as error:
            raise refused(self.root, error) from error

    @_named
    def look(self, path: str) -> os.stat_result | None:
        """What stands at ``path``; None if nothing does."""
        folder, name = split(path)
        fd = self.folders.find(folder)
        if fd is None:
            return None
        try:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        """The size of the file at ``path``, quickly: on the way there it follows symlinks."""
        try:
            found = os.stat(path, dir_fd=self.folders.root, follow_symlinks=False)
        except OSError:
            return None
        return found.st_size if is_file(found) else None

    @_named
    def read(self, path: str) -> bytes | None:
        """The content of the file at ``path``; None if nothing stands there."""
        folder, name = split(path)
        parent = self.folders.find(folder)
        if parent is None:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        except FileNotFoundError:
            return None
        try:
            return _all_of(fd)
        finally:
            os.close(fd)

    @_named
    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        fd = self.folders.find(path)
        return [] if fd is None else sorted(os.listdir(fd))

    def dated(self, path: str, at: datetime) -> int:
        """What the next version of ``path`` is dated, in seconds since 1970, if it is staged ``at`` that instant."""
        mtime = int(at.timestamp())
        folder, name = split(path)
        if (parent := self.folders.find(folder)) is not None:
            with suppress(FileNotFoundError):
                mtime = max(mtime, int(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime) + 1)
        return mtime

    @_named
    def stage(self, path: str, content: bytes, at: datetime, like: str | None = None) -> None:
        """Write beside ``path`` what ``place`` is to put there after a ``sync``.

        It is dated ``at``, or a second after what stands there now if that is not older. Its permissions are
        the same under any umask. ``like`` is a path for which the same content was staged: if that is dated the same,
        both are one file under two names, where the file system has such.
        """
        folder, name = split(path)
        parent = self.folders.make(folder)
        mtime, beside = self.dated(path, at), staged(name)
        alike = self._latest if self._latest is not None and self._latest[:2] == (like, mtime) else None
        if alike is None or not _linked(self.folders.root, alike, beside, parent):
            fd = _created(beside, parent, self.modes.file)
            try:
                self.modes.give_file(fd)
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.utime(fd, (mtime, mtime))
                if like is None:
                    self._latest = _Written(path, mtime, os.fstat(fd))
            finally:
                os.close(fd)
        self._unsynced.add(f"{folder}/{beside}" if folder else beside)

    @_named
    def place(self, path: str) -> None:
        """Put what was staged in the place of what stands at ``path``."""
        folder, name = split(path)
        fd = self.folders.make(folder)
        os.rename(staged(name), name, src_dir_fd=fd, dst_dir_fd=fd)
        self._unsynced.add(folder)

    @_named
    def remove(self, path: str) -> None:
        """Remove a file, if it stands there, and the folders that this leaves empty."""
        folder, name = split(path)
        if (fd := self.folders.find(folder)) is not None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
                self._unsynced.add(folder)
        self.folders.prune()

    def sync(self) -> None:
        """Wait until a power cut would undo nothing of what was staged, placed and removed."""
        self._unsynced.sync()


def _all_of(fd: int) -> bytes:
    """What an open file holds; a file object would cost as much again as to read a small one."""
    parts = []
    while part := os.read(fd, _AT_ONCE):
        parts.append(part)
    return b"".join(parts)


def _created(name: str, folder: int, mode: int) -> int:
    """A new file of this name, opened; never one that stands there, which may be another's as well."""
    try:
        return os.open(name, NEW, mode, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, NEW, mode, dir_fd=folder)


def _linked(root: int, written: _Written, name: str, folder: int) -> bool:
    """Whether what was staged has got another name."""
    try:
        os.link(staged(written.path), name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in NO_LINK:
            return False
        raise
    # On the way to it a symlink may have been followed.
    if os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), written.file):
        return True
    os.unlink(name, dir_fd=folder)
    return False


def make_root(root: Path, modes: TreeModes) -> None:
    """Make the directory that files are to stand in where it is missing, for those who may read the files."""
    if not root.exists():
        try:
            root.mkdir(mode=modes.folder, parents=True)
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                modes.give_folder(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise refused(root, error) from error


def is_there(disk: Disk) -> bool:
    """Whether the folder that was opened still stands at its path."""
    try:
        return os.path.samestat(os.stat(disk.root), disk.folder)
    except OSError:
        return False


def is_file(found: os.stat_result | None) -> TypeGuard[os.stat_result]:
    """Whether a look found a regular file."""
    return found is not None and S_ISREG(found.st_mode)


def holds(disk: Disk, path: str, found: os.stat_result | None, content: bytes) -> bool:
    """Whether what a look found at ``path`` is a file with exactly this content."""
    return is_file(found) and found.st_size == len(content) and disk.read(path) == content


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


_OTHERS: Final = 0o007
_ASSETS: Final = "boot/assets"  # files that operators put there, with permissions of their own


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
