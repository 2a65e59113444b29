"""Durable files: write, replace and remove files below one directory, without following symlinks."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeGuard, TypeVar

from msgspec import Struct

from gitboot.errors import PublishError, UsageError
from gitboot.files import NEW_FILE, open_lock, take_lock

# link(2): the file has the maximum number of links, the file system has no hard links, or the mounts differ.
NO_LINK_ERRORS: Final = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
# Up to this number of files and folders, gitboot calls fsync for each of them. This is faster than one syncfs, which
# also waits for data that other processes have written to the same file system.
MAX_FSYNCS: Final = 16
_HINTS: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EROFS: "mount it writable",
    errno.EACCES: "give write access to the user that runs gitboot",
    errno.EPERM: "give write access to the user that runs gitboot",
    errno.ELOOP: "the path is a symlink, which gitboot does not follow here; move it away",
    errno.EISDIR: "the path is a folder, but gitboot needs a file here; move it away",
}
_NO_GROUP: Final = 2**32 - 1  # chown(2) does not change the group if it gets this ID
_libc: Final = ctypes.CDLL(None, use_errno=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def to_publish_error(path: Path, error: OSError) -> PublishError:
    """Convert an OSError at ``path`` to a `PublishError`, with a hint for common causes."""
    hint = f" ({_HINTS[error.errno]})" if error.errno in _HINTS else ""
    return PublishError(f"{path}: {error.strerror}{hint}")


def is_disk_full(error: PublishError) -> bool:
    """Return whether an error of a `DurableDirectory` means that the disk has no space left."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


# Paths and files


def split_path(path: str) -> tuple[str, str]:
    """Split a path into its folder and its file name."""
    folder, _, name = path.rpartition("/")
    return folder, name


def staging_path(path: str) -> str:
    """Return the path of the temporary file for the next version of ``path``.

    gitboot later renames the temporary file to ``path``. The name of the temporary file has a fixed length, because the
    name of the file itself may already be as long as the file system allows.
    """
    folder, name = split_path(path)
    temp_name = f".gitboot-{sha256(name.encode()).hexdigest()[:16]}.tmp"
    return f"{folder}/{temp_name}" if folder else temp_name


def is_staging_name(name: str) -> bool:
    """Return whether `staging_path` generates names of this form. A killed process may leave such files behind."""
    return re.fullmatch(r"\.gitboot-[0-9a-f]{16}\.tmp", name) is not None


def is_file(file_stat: os.stat_result | None) -> TypeGuard[os.stat_result]:
    return file_stat is not None and stat.S_ISREG(file_stat.st_mode)


@contextmanager
def open_descriptor(path: Path | str, flags: int, *, folder: int | None = None) -> Iterator[int]:
    """Open a file or a folder, without following a symlink at ``path``, until the block ends. Raises OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def write_with_mtime(fd: int, content: bytes, mtime: int) -> None:
    """Write ``content`` to a new, open file, and set its modification time in seconds since 1970. Raises OSError."""
    _write(fd, content)
    os.utime(fd, (mtime, mtime))


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def syncfs(fd: int) -> None:
    """Call syncfs(2), which the standard library lacks. ``os.sync`` would wait for every disk in the machine."""
    if _libc.syncfs(fd) != 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))


# Open folders


class TreeModes(Struct, frozen=True, kw_only=True):
    """The permissions and the group of the files in an output tree. The umask does not affect them."""

    folder: int = 0o755
    file: int = 0o644
    group: int | None = None  # the group of each file and folder; None: the system's default

    @classmethod
    def from_folder(cls, folder_stat: os.stat_result) -> TreeModes:
        """Return modes that give new files below a folder the same permissions and group as the folder."""
        mode = stat.S_IMODE(folder_stat.st_mode) & 0o777
        return cls(folder=mode, file=mode & 0o666, group=folder_stat.st_gid)

    def apply_to(self, fd: int, mode: int) -> None:
        """Set the group and the permissions of an open file or folder. Raises OSError."""
        if self.group is not None:
            os.fchown(fd, -1, self.group)
        os.fchmod(fd, mode)


OPEN_MODES: Final = TreeModes()  # every user of the host can read the tree


class NotAFolder(PublishError):
    """A file or a symlink exists where a folder is expected."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(f"{root / path}: expected a folder, found a file or a symlink (move it away)")
        self.path = path


class _Folder(NamedTuple):
    path: str  # "" is the root
    fd: int


class OpenFolders:
    """The open folders on the path from the root to the most recently used folder.

    Callers usually process paths in sorted order, so the next folder is usually close to the previous folder. The
    methods raise OSError and NotAFolder.
    """

    def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
        self._root, self._modes = root, modes
        self._open_folders = [_Folder("", os.open(root, os.O_RDONLY | os.O_DIRECTORY))]
        # an open folder on each device, by device number; any folder may be a mount point
        self.filesystems: dict[int, int] = {}
        self.changed: set[str] = set()  # folders in which folders were created or removed

    def close(self) -> None:
        self.release_folders()
        os.close(self._open_folders.pop().fd)

    def release_folders(self) -> None:
        """Close all folders except the root."""
        while len(self._open_folders) > 1:
            self._leave()
        while self.filesystems:
            os.close(self.filesystems.popitem()[1])

    @property
    def root(self) -> int:
        return self._open_folders[0].fd

    def find_folder(self, path: str) -> int | None:
        """Return the descriptor of a folder, or None if it does not exist. The next call may close the descriptor."""
        try:
            return self._open(path, make=False)
        except FileNotFoundError:
            return None

    def make_folder(self, path: str) -> int:
        """Return the descriptor of a folder, creating the folder if needed. The next call may close the descriptor."""
        return self._open(path, make=True)

    def remove_empty_folders(self) -> None:
        """Remove the most recently used folder and its parents while they are empty. Top-level folders stay."""
        while len(self._open_folders) > 2:
            path = self._open_folders[-1].path
            self._leave()
            try:
                os.rmdir(split_path(path)[1], dir_fd=self._open_folders[-1].fd)
            except OSError as error:
                # the folder is busy if it is a mount point
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    return
                raise
            self.changed.add(self._open_folders[-1].path)

    def _open(self, path: str, *, make: bool) -> int:
        while (last_path := self._open_folders[-1].path) not in ("", path) and not path.startswith(f"{last_path}/"):
            self._leave()
        while (parent_path := self._open_folders[-1].path) != path:
            self._enter(path[len(parent_path) :].lstrip("/").partition("/")[0], make=make)
        return self._open_folders[-1].fd

    def _enter(self, name: str, *, make: bool) -> None:
        parent = self._open_folders[-1]
        path = f"{parent.path}/{name}" if parent.path else name
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        if name in (".", ".."):
            raise OSError(errno.EINVAL, "the path must not contain '.' or '..'")
        try:
            fd = os.open(name, flags, dir_fd=parent.fd)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, self._modes.folder, dir_fd=parent.fd)
            self.changed.add(parent.path)
            fd = os.open(name, flags, dir_fd=parent.fd)
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


# The directory


def _convert_os_errors(
    method: Callable[Concatenate[DurableDirectory, str, _P], _R],
) -> Callable[Concatenate[DurableDirectory, str, _P], _R]:
    """Wrap a method so that each OSError, and the ValueError for a NUL character, becomes a `PublishError`."""

    @wraps(method)
    def wrapper(disk: DurableDirectory, path: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(disk, path, *args, **kwargs)
        except OSError as error:
            raise to_publish_error(disk.root / path, error) from error
        except ValueError as error:
            raise PublishError(f"{disk.root}: {path!r} is not a valid path ({error})") from error

    return wrapper


class StagedFile(NamedTuple):
    """A file that `DurableDirectory.stage` has written, and to which it can create hard links for other paths."""

    path: str
    mtime: int
    file_stat: os.stat_result


class DurableDirectory:
    """Reads and writes files below ``root``. Call `close` when done.

    To replace a file, call `stage`, `sync`, `place`, and `sync` again. The methods raise `PublishError`.
    """

    def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
        self.root, self.modes = root, modes
        try:
            self.folders = OpenFolders(root, modes)
            self._root_stat = os.fstat(self.folders.root)
        except OSError as error:
            raise to_publish_error(root, error) from error
        self._lock: int | None = None
        self._unsynced: set[str] = set()  # files and folders that changed since the last `sync`

    @property
    def is_root_unchanged(self) -> bool:
        """Whether the folder at ``root`` is still the one that was opened."""
        try:
            return os.path.samestat(os.stat(self.root), self._root_stat)
        except OSError:
            return False

    def close(self) -> None:
        self.folders.close()
        if self._lock is not None:
            os.close(self._lock)

    def release_folders(self) -> None:
        """Close all open folders below the root, so that they can be unmounted or moved."""
        self.folders.release_folders()

    @_convert_os_errors
    def lock(self, path: str) -> str | None:
        """Lock the file at ``path`` until `close`.

        If another process holds the lock, return a description of that process.
        """
        folder, name = split_path(path)
        while True:
            # Any user who can open the lock file could lock it and block this instance.
            self._lock = open_lock(name, self.folders.make_folder(folder))
            with suppress(PermissionError):  # an older version of gitboot created the file as another user
                os.fchmod(self._lock, 0o600)
            other = take_lock(self._lock)
            current = self.lstat(path) if other is None else None
            if current is not None and os.path.samestat(os.fstat(self._lock), current):
                return None
            os.close(self._lock)  # another process holds the lock, or has just removed the file
            self._lock = None
            if other is not None:
                return other

    @_convert_os_errors
    def lstat(self, path: str) -> os.stat_result | None:
        """Return the status of the file or folder at ``path``, or None if it does not exist."""
        folder, name = split_path(path)
        fd = self.folders.find_folder(folder)
        if fd is None:
            return None
        try:
            return os.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return None

    def has_file(self, path: str) -> bool:
        """Return whether ``path`` is a regular file and no part of the path is a symlink."""
        try:
            return is_file(self.lstat(path))
        except NotAFolder:
            return False

    def has_content(self, path: str, file_stat: os.stat_result | None, content: bytes) -> bool:
        """Return whether ``path`` is a regular file with exactly this content. ``file_stat`` is the file's status."""
        return is_file(file_stat) and file_stat.st_size == len(content) and self.read(path) == content

    def get_size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no regular file.

        The path may contain symlinks to folders.
        """
        try:
            found = os.lstat(path, dir_fd=self.folders.root)
        except (OSError, ValueError):  # ValueError: the path contains a NUL character
            return None
        return found.st_size if is_file(found) else None

    @_convert_os_errors
    def read(self, path: str, max_bytes: int | None = None) -> bytes | None:
        """Return the content of the file at ``path``, or None if there is no file.

        If the file is larger than ``max_bytes``, return its first ``max_bytes + 1`` bytes.
        """
        folder, name = split_path(path)
        if (parent := self.folders.find_folder(folder)) is None:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return None
        try:
            # os.read is faster here: creating a file object takes as long as reading a small file
            content = bytearray()
            while (max_bytes is None or len(content) <= max_bytes) and (part := os.read(fd, 1 << 16)):
                content += part
            return bytes(content if max_bytes is None else content[: max_bytes + 1])
        finally:
            os.close(fd)

    @_convert_os_errors
    def list_names(self, path: str) -> list[str]:
        """Return the sorted names of the entries in a folder, or an empty list if the folder does not exist."""
        fd = self.folders.find_folder(path)
        return [] if fd is None else sorted(os.listdir(fd))

    @_convert_os_errors
    def choose_mtime(self, path: str, at: datetime) -> int:
        """Return the modification time (seconds since 1970) that `stage` will set for the next version of ``path``."""
        mtime = int(at.timestamp())
        folder, name = split_path(path)
        if (parent := self.folders.find_folder(folder)) is not None:
            with suppress(FileNotFoundError):
                mtime = max(mtime, int(os.lstat(name, dir_fd=parent).st_mtime) + 1)
        return mtime

    @_convert_os_errors
    def stage(
        self, path: str, content: bytes, at: datetime, link_to: StagedFile | None = None, *, exact: bool = False
    ) -> StagedFile:
        """Write a temporary file beside ``path``. After a `sync`, `place` renames it to ``path``.

        The modification time is ``at``. If ``at`` is not later than the modification time of the current file, the new
        modification time is one second after the current one. With ``exact``, the modification time is always ``at``.
        ``link_to`` is a staged file with the same content. If both files get the same modification time and the file
        system supports hard links, the temporary file is a hard link to ``link_to``.
        """
        folder, name = split_path(path)
        parent = self.folders.make_folder(folder)
        temp_name = staging_path(name)
        mtime = int(at.timestamp()) if exact else self.choose_mtime(path, at)
        self._unsynced.add(f"{folder}/{temp_name}" if folder else temp_name)
        if link_to is not None and link_to.mtime == mtime and self._try_link(link_to, temp_name, parent):
            return link_to
        fd = self._create(temp_name, parent)
        try:
            self.modes.apply_to(fd, self.modes.file)
            write_with_mtime(fd, content, mtime)
            return StagedFile(path, mtime, os.fstat(fd))
        finally:
            os.close(fd)

    def _try_link(self, staged_file: StagedFile, name: str, parent: int) -> bool:
        """Create a hard link with this name to a staged file. ``parent`` is the descriptor of the link's folder.

        Return False if the file system does not allow the link, or if the link does not lead to the staged file.
        """
        source = staging_path(staged_file.path)
        try:
            os.link(source, name, src_dir_fd=self.folders.root, dst_dir_fd=parent, follow_symlinks=False)
        except FileExistsError:  # a killed process left this file
            os.unlink(name, dir_fd=parent)
            return self._try_link(staged_file, name, parent)
        except OSError as error:
            if error.errno in NO_LINK_ERRORS:
                return False
            raise
        # The path of the staged file may contain a symlink, so the link may point to a different file.
        if os.path.samestat(os.lstat(name, dir_fd=parent), staged_file.file_stat):
            return True
        os.unlink(name, dir_fd=parent)
        return False

    def _create(self, name: str, parent: int) -> int:
        try:
            return os.open(name, NEW_FILE, self.modes.file, dir_fd=parent)
        except FileExistsError:  # a killed process left this file, which may be a hard link to another file
            os.unlink(name, dir_fd=parent)
            return os.open(name, NEW_FILE, self.modes.file, dir_fd=parent)

    @_convert_os_errors
    def place(self, path: str) -> None:
        """Rename the staged file to ``path``."""
        folder, name = split_path(path)
        fd = self.folders.make_folder(folder)
        os.rename(staging_path(name), name, src_dir_fd=fd, dst_dir_fd=fd)
        self._unsynced.add(folder)

    @_convert_os_errors
    def remove(self, path: str) -> None:
        """Remove a file if it exists, and then remove its parent folders that are empty."""
        folder, name = split_path(path)
        if (fd := self.folders.find_folder(folder)) is not None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
                self._unsynced.add(folder)
        self.folders.remove_empty_folders()

    @_convert_os_errors
    def reserve_space(self, path: str, size_bytes: int) -> None:
        """Replace the file at ``path`` by a file that occupies disk space, or remove it if there is not enough space.

        The content is random, so that programs and file systems cannot store copies of the file in less space.
        """
        folder, name = split_path(path)
        parent = self.folders.make_folder(folder)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        fd = os.open(name, NEW_FILE, self.modes.file, dir_fd=parent)
        try:
            self.modes.apply_to(fd, self.modes.file)
            _write(fd, os.urandom(size_bytes))
        except OSError:
            os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Flush all staged, placed and removed files to disk, so that they survive a power cut. Raises PublishError."""
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
                self._sync_path(path)
        self._unsynced.clear()

    @_convert_os_errors
    def _sync_path(self, path: str) -> None:
        folder, name = split_path(path)
        if (parent := self.folders.find_folder(folder)) is not None:
            with (
                suppress(FileNotFoundError),  # the folder became empty and was removed
                open_descriptor(name or ".", os.O_RDONLY, folder=parent) as fd,
            ):
                os.fsync(fd)


# The permissions of an output tree


def make_root(root: Path, modes: TreeModes) -> None:
    """Create the root of an output tree if it is missing. Raises PublishError."""
    if not root.exists():
        try:
            root.mkdir(mode=modes.folder, parents=True)
            _apply_folder_modes(root, modes)
        except OSError as error:
            raise to_publish_error(root, error) from error


def build_restricted_modes(group: int | None = None) -> TreeModes:
    """Return permissions that let the owner write and the group read a tree. Other users have no access."""
    return TreeModes(folder=0o750, file=0o640, group=group)


def find_group_id(name: str) -> int:
    """Return the ID of a group. ``name`` may be a name or a number.

    Raises `UsageError` if the group does not exist, or if this process may not assign files to the group.
    """
    if name.isdecimal() and len(name) <= len(str(_NO_GROUP)) and int(name) < _NO_GROUP:
        group_id = int(name)
    else:
        try:
            group_id = grp.getgrnam(name).gr_gid
        except KeyError:
            raise UsageError(
                f"--output-group {name}: this host has no group {name}; run `getent group` to list the groups"
            ) from None
    if os.geteuid() != 0 and group_id not in (os.getegid(), *os.getgroups()):
        raise UsageError(
            f"--output-group {name}: the user {os.geteuid()} is not in that group, so gitboot may not give files to "
            f"the group; run usermod --append --groups {name} USER, or set SupplementaryGroups={name} in the unit file"
        )
    return group_id


def is_readable_by_others(root: Path) -> bool:
    """Return whether users other than the owner and the group can read the published files below ``root``."""
    with suppress(OSError):
        folders = (root / name for name in ("boot", "ops") if (root / name).is_dir())
        return bool(root.stat().st_mode & 0o007) and any(folder.stat().st_mode & 0o007 for folder in folders)
    return False


def apply_modes(root: Path, modes: TreeModes) -> None:
    """Apply ``modes`` to an existing output tree, except to files that belong to operators. Raises PublishError.

    The function changes the top-level folders last. If these folders already have the modes, the function therefore
    skips the rest of the tree. Files that only their owner can read keep their permissions. The function does not
    change files and folders that belong to other users. If ``root`` also contains other files, the function does not
    change ``root``, because other users may need access to these files.
    """
    try:
        top_folders = [path for path in (root / "ops", root / "boot") if path.is_dir()]
        last_folders = list(top_folders)
        if set(os.listdir(root)) <= {"boot", "ops", "lost+found"}:
            last_folders.append(root)
        if all(_needs_no_change(path.lstat(), modes) for path in last_folders):
            return
        for top in top_folders:
            _apply_modes_below(top, modes, skipped_folder=root / "boot/assets")
        for folder in last_folders:
            _apply_folder_modes(folder, modes, skip_foreign=True)
    except OSError as error:
        raise to_publish_error(root, error) from error


def _apply_folder_modes(folder: Path, modes: TreeModes, *, skip_foreign: bool = False) -> None:
    with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if not skip_foreign or _may_chmod(os.fstat(fd)):
            modes.apply_to(fd, modes.folder)


def _needs_no_change(folder_stat: os.stat_result, modes: TreeModes) -> bool:
    """Return whether a folder has these modes already, or belongs to another user."""
    has_modes = stat.S_IMODE(folder_stat.st_mode) & 0o777 == modes.folder
    return not _may_chmod(folder_stat) or (has_modes and modes.group in (None, folder_stat.st_gid))


def _apply_modes_below(top: Path, modes: TreeModes, skipped_folder: Path) -> None:
    """Apply ``modes`` to the files and folders below ``top``, but not to ``top`` itself.

    Operators put files into ``skipped_folder``, and set their permissions.
    """
    for path, folders, files, fd in os.fwalk(top):
        folders[:] = [name for name in folders if Path(path, name) != skipped_folder]
        if Path(path) != top and _may_chmod(os.fstat(fd)):
            modes.apply_to(fd, modes.folder)
        for name in files:
            file_stat = os.lstat(name, dir_fd=fd)
            if is_file(file_stat) and _may_chmod(file_stat) and file_stat.st_mode & 0o077:
                with open_descriptor(name, os.O_RDONLY | os.O_NONBLOCK, folder=fd) as file:
                    modes.apply_to(file, modes.file)


def _may_chmod(file_stat: os.stat_result) -> bool:
    return os.geteuid() in (0, file_stat.st_uid)
