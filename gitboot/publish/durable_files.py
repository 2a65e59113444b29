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
from datetime import datetime
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeGuard, TypeVar

from msgspec import Struct

from gitboot.errors import PublishError, UsageError
from gitboot.files import NEW_FILE, open_lock, take_lock

# link(2): a file has as many names as its file system allows, the file system has no links, or begins at a mount point.
NO_LINK_ERRORS: Final = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
_READ_BYTES: Final = 1 << 16  # bytes
# Up to so many files and folders, an fsync each is quicker than one syncfs, which also waits for what others
# have written to the same file system.
MAX_FSYNCS: Final = 16
_HINTS: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EROFS: "mount it writable",
    errno.EACCES: "let the user that gitboot runs as write there",
    errno.EPERM: "let the user that gitboot runs as write there",
    errno.ELOOP: "no symlink is followed: move it away",
}
_P = ParamSpec("_P")
_R = TypeVar("_R")


def to_publish_error(path: Path, error: OSError) -> PublishError:
    """What the system refused at ``path``, with what to do about it where that is known."""
    hint = f" ({_HINTS[error.errno]})" if error.errno in _HINTS else ""
    return PublishError(f"{path}: {error.strerror}{hint}")


def _raise_with_path(act: Callable[Concatenate[Disk, str, _P], _R]) -> Callable[Concatenate[Disk, str, _P], _R]:
    """Raise `PublishError` with the path for what the system refuses."""

    @wraps(act)
    def named(disk: Disk, path: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(disk, path, *args, **kwargs)
        except OSError as error:
            raise to_publish_error(disk.root / path, error) from error

    return named


class _StagedFile(NamedTuple):
    """What was staged last, but as another name of the same."""

    path: str
    mtime: int
    file: os.stat_result


class TreeModes(Struct, frozen=True, kw_only=True):
    """The permissions of a tree. They are the same under any umask."""

    folder: int = 0o755
    file: int = 0o644
    group: int | None = None  # the group of each file and folder; None: the one that the system gives

    @classmethod
    def from_folder(cls, folder_stat: os.stat_result) -> TreeModes:
        """Return the permissions and the group of a folder, for all files and folders below it."""
        mode = stat.S_IMODE(folder_stat.st_mode) & 0o777
        return cls(folder=mode, file=mode & 0o666, group=folder_stat.st_gid)

    def apply_to(self, fd: int, mode: int) -> None:
        """Give a new file or folder, which is open, its group and its permissions; raises OSError."""
        if self.group is not None:
            os.fchown(fd, -1, self.group)
        os.fchmod(fd, mode)


OPEN_MODES: Final = TreeModes()  # for everybody who has a login on the host


class Disk:
    """The files below ``root``, until ``close``."""

    def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
        self.root, self.modes = root, modes
        try:
            self.folders = OpenFolders(root, modes)
            self._folder = os.fstat(self.folders.root)
        except OSError as error:
            raise to_publish_error(root, error) from error
        self._lock: int | None = None
        self._unsynced: set[str] = set()  # files and folders that were changed since the last `sync`
        self._latest: _StagedFile | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the folder that was opened still stands at its path."""
        try:
            return os.path.samestat(os.stat(self.root), self._folder)
        except OSError:
            return False

    def close(self) -> None:
        self.folders.close()
        if self._lock is not None:
            os.close(self._lock)

    def release_folders(self) -> None:
        """Hold no folder open, so that each can be unmounted or moved."""
        self.folders.release_folders()

    @_raise_with_path
    def lock(self, path: str) -> str:
        """Keep other processes out until ``close``; where one is in already, return who it is, else nothing."""
        folder, name = split(path)
        while True:
            # Whoever could open it could lock it, and keep this instance from publishing.
            self._lock = open_lock(name, self.folders.make(folder))
            with suppress(PermissionError):  # one that an older gitboot has made, as another user
                os.fchmod(self._lock, 0o600)
            if (other := take_lock(self._lock)) is not None:
                return other
            stands = self.lstat(path)
            if stands is not None and os.path.samestat(os.fstat(self._lock), stands):
                return ""
            os.close(self._lock)  # its holder has just removed it
            self._lock = None

    @_raise_with_path
    def lstat(self, path: str) -> os.stat_result | None:
        """What stands at ``path``; None if nothing does."""
        folder, name = split(path)
        fd = self.folders.find(folder)
        if fd is None:
            return None
        try:
            return os.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return None

    def has_file(self, path: str) -> bool:
        """Return whether a file stands at ``path``, and no symlink leads there."""
        try:
            return is_file(self.lstat(path))
        except NotAFolder:
            return False

    def size(self, path: str) -> int | None:
        """The size of the file at ``path``, quickly: on the way there it follows symlinks."""
        try:
            found = os.lstat(path, dir_fd=self.folders.root)
        except OSError:
            return None
        return found.st_size if is_file(found) else None

    @_raise_with_path
    def read(self, path: str, max_bytes: int | None = None) -> bytes | None:
        """The content of the file at ``path``, or its first bytes and one more than ``max_bytes``; None if absent."""
        folder, name = split(path)
        if (parent := self.folders.find(folder)) is None:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return None
        try:
            content = bytearray()  # a file object would cost as much again as to read a small file
            while (max_bytes is None or len(content) <= max_bytes) and (part := os.read(fd, _READ_BYTES)):
                content += part
            return bytes(content if max_bytes is None else content[: max_bytes + 1])
        finally:
            os.close(fd)

    @_raise_with_path
    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        fd = self.folders.find(path)
        return [] if fd is None else sorted(os.listdir(fd))

    def choose_mtime(self, path: str, at: datetime) -> int:
        """What the next version of ``path`` is dated, in seconds since 1970, if it is staged ``at`` that instant."""
        mtime = int(at.timestamp())
        folder, name = split(path)
        if (parent := self.folders.find(folder)) is not None:
            with suppress(FileNotFoundError):
                mtime = max(mtime, int(os.lstat(name, dir_fd=parent).st_mtime) + 1)
        return mtime

    @_raise_with_path
    def stage(self, path: str, content: bytes, at: datetime, like: str | None = None, *, exact: bool = False) -> None:
        """Write beside ``path`` what ``place`` is to put there after a ``sync``.

        It is dated ``at``, or a second after what stands there now if that is not older and the date need not be
        ``exact``. Its permissions are the same under any umask. ``like`` is a path for which the same content was
        staged: if that is dated the same, both are one file under two names, where the file system has such.
        """
        folder, name = split(path)
        parent = self.folders.make(folder)
        mtime, beside = int(at.timestamp()) if exact else self.choose_mtime(path, at), staging_path(name)
        alike = self._latest if self._latest is not None and self._latest[:2] == (like, mtime) else None
        if alike is None or not _try_link(self.folders.root, alike, beside, parent):
            try:
                fd = os.open(beside, NEW_FILE, self.modes.file, dir_fd=parent)
            except FileExistsError:  # a killed process has left it, and it may be another file too
                os.unlink(beside, dir_fd=parent)
                fd = os.open(beside, NEW_FILE, self.modes.file, dir_fd=parent)
            try:
                self.modes.apply_to(fd, self.modes.file)
                write_with_mtime(fd, content, mtime)
                if like is None:
                    self._latest = _StagedFile(path, mtime, os.fstat(fd))
            finally:
                os.close(fd)
        self._unsynced.add(f"{folder}/{beside}" if folder else beside)

    @_raise_with_path
    def place(self, path: str) -> None:
        """Put what was staged in the place of what stands at ``path``."""
        folder, name = split(path)
        fd = self.folders.make(folder)
        os.rename(staging_path(name), name, src_dir_fd=fd, dst_dir_fd=fd)
        self._unsynced.add(folder)

    @_raise_with_path
    def remove(self, path: str) -> None:
        """Remove a file, if it stands there, and the folders that this leaves empty."""
        folder, name = split(path)
        if (fd := self.folders.find(folder)) is not None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
                self._unsynced.add(folder)
        self.folders.prune()

    def sync(self) -> None:
        """Wait until a power cut would undo nothing of what was staged, placed and removed; raises PublishError."""
        self._unsynced |= self.folders.changed
        self.folders.changed.clear()
        if len(self._unsynced) > MAX_FSYNCS:
            try:
                for fd in self.folders.filesystems.values():
                    syncfs(fd)
            except OSError as error:
                raise to_publish_error(self.root, error) from error
        else:
            for path in sorted(self._unsynced):
                self._sync_one(path)
        self._unsynced.clear()

    @_raise_with_path
    def _sync_one(self, path: str) -> None:
        folder, name = split(path)
        if (parent := self.folders.find(folder)) is None:
            return
        try:
            fd = os.open(name or ".", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:  # a folder that was left empty and removed
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_with_mtime(fd: int, content: bytes, mtime: int) -> None:
    """Write a new file, which is open, and give it a time in seconds since 1970; raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.utime(fd, (mtime, mtime))


def _try_link(root: int, staged_file: _StagedFile, name: str, folder: int) -> bool:
    """Whether what was staged has got another name."""
    try:
        os.link(staging_path(staged_file.path), name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in NO_LINK_ERRORS:
            return False
        raise
    # On the way to it a symlink may have been followed.
    if os.path.samestat(os.lstat(name, dir_fd=folder), staged_file.file):
        return True
    os.unlink(name, dir_fd=folder)
    return False


def make_root(root: Path, modes: TreeModes) -> None:
    """Make the directory that files are to stand in where it is missing, for those who may read the files."""
    if not root.exists():
        try:
            root.mkdir(mode=modes.folder, parents=True)
            _apply_folder_modes(root, modes)
        except OSError as error:
            raise to_publish_error(root, error) from error


def _apply_folder_modes(folder: Path, modes: TreeModes, *, only_ours: bool = False) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not only_ours or _is_ours(os.fstat(fd)):
            modes.apply_to(fd, modes.folder)
    finally:
        os.close(fd)


def is_file(file_stat: os.stat_result | None) -> TypeGuard[os.stat_result]:
    """Whether a look found a regular file."""
    return file_stat is not None and stat.S_ISREG(file_stat.st_mode)


def has_content(disk: Disk, path: str, file_stat: os.stat_result | None, content: bytes) -> bool:
    """Whether what a look found at ``path`` is a file with exactly this content."""
    return is_file(file_stat) and file_stat.st_size == len(content) and disk.read(path) == content


def split(path: str) -> tuple[str, str]:
    """The folder that a path is in, and its name there."""
    folder, _, name = path.rpartition("/")
    return folder, name


def staging_path(path: str) -> str:
    """What is staged for a path: always the same, and short, since a name may be as long as the system takes."""
    folder, name = split(path)
    beside = f".gitboot-{sha256(name.encode()).hexdigest()[:16]}.tmp"
    return f"{folder}/{beside}" if folder else beside


def is_staging_name(name: str) -> bool:
    """Return whether `staged` makes such a name: a process that was killed may have left the file."""
    return re.fullmatch(r"\.gitboot-[0-9a-f]{16}\.tmp", name) is not None


_libc: Final = ctypes.CDLL(None, use_errno=True)


def syncfs(fd: int) -> None:
    """syncfs(2), which the standard library lacks; ``os.sync`` would wait for every disk of the machine."""
    if _libc.syncfs(fd) != 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))


class NotAFolder(PublishError):
    """A file or a symlink stands where a folder has to be."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(f"{root / path}: expected a folder, found something else (move it away)")
        self.path = path


class _Folder(NamedTuple):
    path: str  # "" is the directory itself
    fd: int


class OpenFolders:
    """The way down to the folder that was asked for last; in sorted order the next is most often beside it.

    Raises OSError, and InTheWay.
    """

    def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
        self._root, self._modes = root, modes
        self._open_folders = [_Folder("", os.open(root, os.O_RDONLY | os.O_DIRECTORY))]
        self.filesystems: dict[int, int] = {}  # device -> a folder on it: any folder may be a mount point
        self.changed: set[str] = set()  # folders in which others were made or removed

    def close(self) -> None:
        self.release_folders()
        os.close(self._open_folders.pop().fd)

    def release_folders(self) -> None:
        """Hold nothing open but the directory itself."""
        while len(self._open_folders) > 1:
            self._leave()
        while self.filesystems:
            os.close(self.filesystems.popitem()[1])

    @property
    def root(self) -> int:
        return self._open_folders[0].fd

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
        while len(self._open_folders) > 2:
            name = self._open_folders[-1].path.rpartition("/")[2]
            self._leave()
            try:
                os.rmdir(name, dir_fd=self._open_folders[-1].fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):  # busy: a mount point
                    return
                raise
            self.changed.add(self._open_folders[-1].path)

    def _open(self, path: str, *, make: bool) -> int:
        while (above := self._open_folders[-1].path) not in ("", path) and not path.startswith(f"{above}/"):
            self._leave()
        while (here := self._open_folders[-1].path) != path:
            self._enter(path[len(here) :].lstrip("/").partition("/")[0], make=make)
        return self._open_folders[-1].fd

    def _enter(self, name: str, *, make: bool) -> None:
        above = self._open_folders[-1]
        path = f"{above.path}/{name}" if above.path else name
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        if name in (".", ".."):
            raise OSError(errno.EINVAL, "expected a path below the directory")
        try:
            fd = os.open(name, flags, dir_fd=above.fd)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, self._modes.folder, dir_fd=above.fd)
            self.changed.add(above.path)
            fd = os.open(name, flags, dir_fd=above.fd)
            self._modes.apply_to(fd, self._modes.folder)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise NotAFolder(self._root, path) from error
            raise
        self._open_folders.append(_Folder(path, fd))
        if (device := os.fstat(fd).st_dev) not in self.filesystems:
            self.filesystems[device] = os.dup(fd)

    def _leave(self) -> None:
        os.close(self._open_folders.pop().fd)


_OTHERS: Final = 0o007
_ASSETS: Final = "boot/assets"  # files that operators put there, with permissions of their own


def build_restricted_modes(group: int | None = None) -> TreeModes:
    """Return the permissions of a tree that its owner writes and its group reads, and nobody else."""
    return TreeModes(folder=0o750, file=0o640, group=group)


def find_group_id(name: str) -> int:
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


def is_readable_by_others(root: Path) -> bool:
    """Return whether others than the owner and the group can read what is published below a folder."""
    with suppress(OSError):
        below = [root / name for name in ("boot", "ops") if (root / name).is_dir()]
        return bool(root.stat().st_mode & _OTHERS) and any(each.stat().st_mode & _OTHERS for each in below)
    return False


def apply_modes(root: Path, modes: TreeModes) -> None:
    """Bring a tree that stands to these permissions, but for the files of operators; raises PublishError.

    The topmost folders are changed last. If they are as they should be, nothing else is looked at. Files that only
    their owner may read stay so. What belongs to another user is left as it is: gitboot may not change it. The folder
    of the tree itself stays as it is if something else lies in it: others may have to read that.
    """
    try:
        tops = [path for path in (root / "ops", root / "boot") if path.is_dir()]
        has_own_folder = set(os.listdir(root)) <= {"boot", "ops", "lost+found"}
        looked = [path.lstat() for path in (*tops, *([root] if has_own_folder else []))]
        if all(
            stat.S_IMODE(each.st_mode) & 0o777 == modes.folder and modes.group in (None, each.st_gid)
            for each in looked
            if _is_ours(each)
        ):
            return
        for top in tops:
            for path, folders, files, fd in os.fwalk(top):
                folders[:] = [name for name in folders if Path(path, name) != root / _ASSETS]
                if Path(path) != top and _is_ours(os.fstat(fd)):
                    modes.apply_to(fd, modes.folder)
                for name in files:
                    _apply_file_modes(name, fd, modes)
        for folder in (*tops, *([root] if has_own_folder else [])):
            _apply_folder_modes(folder, modes, only_ours=True)
    except OSError as error:
        raise to_publish_error(root, error) from error


def _apply_file_modes(name: str, folder: int, modes: TreeModes) -> None:
    found = os.lstat(name, dir_fd=folder)
    if not is_file(found) or not _is_ours(found) or not found.st_mode & 0o077:
        return
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        modes.apply_to(fd, modes.file)
    finally:
        os.close(fd)


def _is_ours(file_stat: os.stat_result) -> bool:
    return os.geteuid() in (0, file_stat.st_uid)
