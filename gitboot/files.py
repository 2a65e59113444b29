"""Files: atomic writes, locks, output paths and properties of file systems."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from gitboot.errors import LockedByAnother, UsageError
from gitboot.text import quote_words

# The errors of open(2) for a path at which there is no file.
ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_OTHERS_MODE: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP
# The number of attempts to lock a file, with a pause after each attempt. `find_lock_holder` holds the lock for a
# shorter time.
_PROBES: Final = 10
_PAUSE_S: Final = 0.02
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME_BYTES: Final = 255  # limits(7): NAME_MAX, which is the same on all common file systems
_MAX_PATH_BYTES: Final = 4095  # PATH_MAX of Linux without the final NUL
# flags for a new file, so that open(2) never opens an existing file or a symlink
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace the file at ``path`` atomically, and sync it to disk. Raises OSError.

    The umask does not apply to ``mode``. If ``path`` is a symlink, the function replaces the symlink instead of
    following it.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _open_replacement(path.name, folder, mode=mode) as file:
            file.write(content)
    finally:
        os.close(folder)


@contextmanager
def _open_replacement(
    name: str, folder: int, *, mode: int | None, old_stat: os.stat_result | None = None, sync: bool = True
) -> Iterator[IO[bytes]]:
    """Yield an open file. If the block ends without an error, this file replaces ``name`` in a folder.

    Readers see either the old or the new content. After a crash, the file has the old or the new content, and there may
    be a file ``.gitboot-….new`` beside the file. The new file has exactly the permissions ``mode``. Without ``mode``,
    it has the permissions of ``old_stat``. Without both, the umask applies.
    """
    new = f".gitboot-{secrets.token_hex(8)}.new"
    fd = os.open(new, NEW_FILE, 0o666 if mode is None else 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            if old_stat is not None:
                with suppress(OSError):  # only root may change the owner
                    os.fchown(fd, old_stat.st_uid, old_stat.st_gid)
                os.fchmod(fd, stat.S_IMODE(old_stat.st_mode) & 0o777)
            if mode is not None:
                os.fchmod(fd, mode)
            yield file
            file.flush()
            if sync:
                os.fsync(fd)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):  # keep the first error, which the caller must see
            os.unlink(new, dir_fd=folder)
        raise
    if sync:
        sync_folder(".", folder)


def sync_folder(path: Path | str, folder: int | None = None) -> None:
    """Sync the entries of a folder to disk.

    ``path`` may be relative to an open folder. Raises OSError if the sync fails.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_lock(path: Path | str, folder: int | None = None, *, mode: int = 0o600) -> int:
    """Open a lock file, and create the file if it does not exist.

    ``path`` may be relative to an open folder, and must not be a symlink. Raises OSError if the file cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, mode, dir_fd=folder)


def lock_file(fd: int, *, shared: bool = False, waits: bool = False) -> bool:
    """Lock an open file until it is closed.

    Return False if another process has locked the file. With ``waits``, wait until no other process has locked the
    file. Raises OSError if the file cannot be locked.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold_lock(path: Path, in_use_message: str) -> Iterator[None]:
    """Hold a lock on the file at ``path`` until the block ends, so that other processes cannot enter the block.

    The lock also ends when the process ends. The function never removes the lock file. Otherwise one process could lock
    the removed file while another process locks a new file. Raises `LockedByAnother` if another process holds the lock.
    The message of the error contains ``in_use_message`` (such as "DIR is in use") and the name of that process. Raises
    OSError if the file cannot be locked.
    """
    fd = open_lock(path)
    try:
        if (other := take_lock(fd)) is not None:
            raise LockedByAnother(f"{in_use_message} by {other}")
        yield
    finally:
        os.close(fd)


def take_lock(fd: int) -> str | None:
    """Lock an open file until it is closed, and write this process's name to it.

    If another process has locked the file, return the name of that process.
    """
    attempts = 1
    while not lock_file(fd):
        if attempts > _PROBES:
            return _read_holder(fd) or "another process"
        attempts += 1
        time.sleep(_PAUSE_S)
    owner = f"process {os.getpid()} on {os.uname().nodename}\n".encode()
    with suppress(OSError):  # if the disk is full, the lock still holds, without the name of its holder
        os.pwrite(fd, owner, 0)
        os.ftruncate(fd, len(owner))
    return None


def find_lock_holder(path: Path) -> int | None:
    """Return the PID of the local process that holds the lock on a file, or None if there is no such process.

    Raises OSError if the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _NO_FOLLOW)
    except FileNotFoundError:
        return None
    try:
        if lock_file(fd, shared=True):
            return None
        match = re.match(r"process (\d+) on ", _read_holder(fd))
        return int(match[1]) if match is not None else None
    finally:
        os.close(fd)


def _read_holder(fd: int) -> str:
    return os.pread(fd, 1000, 0).decode(errors="replace").strip()


def read_private(file: Path) -> bytes:
    """Return the content of a file that contains a secret.

    Raises `UsageError` if other users may read or write the file.
    """
    with convert_os_errors(file, "read"):
        mode = file.stat().st_mode
        content = file.read_bytes()
    if mode & _OTHERS_MODE:
        raise UsageError(
            f"{file} contains secrets, but other users can read or write the file; run: chmod 600 {quote_words(file)}"
        )
    return content


# Files that users specify


@contextmanager
def convert_os_errors(path: Path, action: str = "written") -> Iterator[None]:
    """Convert an OSError in the block to a `UsageError`.

    The message is "``path`` cannot be ``action``" with the cause.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be {action}: {error.strerror or error}") from None


def find_path_fault(path: Path) -> str | None:
    """Return why the system can never open a user-specified path, with a hint, or None."""
    if "\0" in str(path):
        return "the path contains a NUL character; remove it"
    if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in path.parts):
        return f"a name in the path has more than {_MAX_NAME_BYTES} bytes; use a shorter name"
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return f"the path has more than {_MAX_PATH_BYTES:,} bytes; use a shorter path"
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "the symlinks in the path form a loop; remove one of the symlinks, or use another path"
    return None


def is_directory(path: Path) -> bool:
    """Return whether a user-specified path is a directory. Raises `UsageError` if gitboot may not look there."""
    with convert_os_errors(path, "read"):
        return path.is_dir()


def is_file(path: Path) -> bool:
    """Return whether a user-specified path is a regular file. Raises `UsageError` if gitboot may not look there."""
    with convert_os_errors(path, "read"):
        return path.is_file()


def read_text(file: Path, encoding: str = "utf-8") -> str:
    """Return the text of a user-specified file. Raises `UsageError` if the file cannot be read."""
    with convert_os_errors(file, "read"):
        try:
            return file.read_text(encoding)
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} cannot be read: {error}") from None


# Output files and folders, and fleets that users specify. A checkout can contain symlinks from an untrusted commit.

_STREAMS: Final = {"/dev/stdout": 1, "/dev/stderr": 2}
# Bash passes process substitutions as /dev/fd/63.
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,6})")
_MAX_SYMLINKS: Final = 40  # the maximum number of symlinks in one path, as in Linux (path_resolution(7))
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | _NO_FOLLOW  # only Linux has O_PATH
_NOT_REGULAR: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def write_output_file(
    path: Path, content: Iterable[bytes], *, mode: int | None = None, make_folders: bool = False, sync: bool = False
) -> None:
    """Write a file that the user specified, and replace an existing file.

    If ``content`` or the system raises an error, the old file stays unchanged. The umask does not apply to ``mode``.
    Without ``mode``, an existing file keeps its permissions, and a new file gets 0666 minus the umask. With ``sync``,
    sync the file to disk. If the path is a file descriptor that the caller of gitboot opened (/dev/stdout, /dev/stderr,
    /dev/fd/N, /proc/self/fd/N), write to that descriptor. Raises `UsageError` if a part of the path is a symlink that
    `open_output_folder` does not follow. Raises `UsageError` if the path is a symlink, a directory, a device, a named
    pipe or a socket. Raises `UsageError` if the system does not allow the write.
    """
    with convert_os_errors(path):
        if (descriptor := _find_caller_descriptor(path)) is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            # The reader of a pipe may close the pipe early.
            with suppress(BrokenPipeError), os.fdopen(os.dup(descriptor), "wb") as file:
                file.writelines(content)
            return
        with open_output_folder(path.parent, make=make_folders) as folder:
            old_stat = _stat_regular_file(path, folder)
            with _open_replacement(path.name, folder, mode=mode, old_stat=old_stat, sync=sync) as file:
                file.writelines(content)


def create_output_file(path: Path, content: bytes, *, mode: int = 0o666, make_folders: bool = False) -> bool:
    """Create a file that the user specified, and sync the file to disk. Return False if the path already exists.

    The umask applies to ``mode``. Raises `UsageError` for the same paths as `write_output_file`.
    """
    with convert_os_errors(path), open_output_folder(path.parent, make=make_folders) as folder:
        try:
            fd = os.open(path.name, NEW_FILE, mode, dir_fd=folder)
        except FileExistsError:
            return False
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
        except BaseException:
            with suppress(OSError):  # report the first error
                os.unlink(path.name, dir_fd=folder)
            raise
        return True


def read_output_file(path: Path) -> bytes | None:
    """Return the content of a file in an output folder, or None if the file does not exist.

    Raises `UsageError` for the same paths as `write_output_file`, so that a symlink, a device or a pipe is never read.
    """
    with convert_os_errors(path, "read"), suppress(FileNotFoundError), open_output_folder(path.parent) as folder:
        if _stat_regular_file(path, folder) is not None:
            fd = os.open(path.name, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW, dir_fd=folder)
            with os.fdopen(fd, "rb") as file:
                return file.read()
    return None


def remove_output_file(path: Path) -> None:
    """Remove a file in an output folder if the file exists.

    Raises `UsageError` for the same paths as `write_output_file`.
    """
    with convert_os_errors(path, "removed"), suppress(FileNotFoundError), open_output_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def check_output_folder(path: Path) -> None:
    """Raise `UsageError` if the path of an output folder contains a symlink that `open_output_folder` does not follow.

    The folder does not have to exist. The function ignores errors from the operating system, because the code that
    creates the folder reports such errors.
    """
    with suppress(OSError), open_output_folder(path):
        pass


@contextmanager
def open_output_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open an output folder, and yield its file descriptor for use as ``dir_fd``.

    With ``make``, create missing folders.

    The function follows a symlink only if the symlink is outside the current directory and outside every Git work tree.
    Raises `UsageError` for other symlinks, and OSError if the folder cannot be opened.
    """
    with _PathWalk(path, guards_current=True) as walk:
        walk.enter_all(make=make)
        yield walk.folders[-1].fd


def resolve_fleet_root(path: Path) -> Path:
    """Return the absolute path of a fleet, with symlinks resolved.

    Raises `UsageError` if the path contains a symlink in a Git work tree. An instance reads folders from commits, and a
    symlink in a commit is not a folder.
    """
    with _PathWalk(path, guards_current=False) as walk:
        try:
            walk.enter_all(make=False)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from None
            # If the path is missing or this user may not enter it, the code that reads the fleet reports the error.
        return walk.get_reached_path()


class _Folder(NamedTuple):
    path: str
    fd: int
    is_guarded: bool  # whether the symlinks in the folder may come from an untrusted commit


class _PathWalk:
    """A walk from / to a path.

    The walk opens each folder relative to its parent, and so finds each symlink before the system follows the symlink.
    With ``guards_current``, the walk does not trust symlinks below the current directory even without Git, because a CI
    system may unpack a commit as an archive. The option ``guards_current`` has no effect if the current directory is
    the root directory, because every path is below the root directory.
    """

    def __init__(self, path: Path, *, guards_current: bool) -> None:
        current = os.getcwd()
        self._requested = path
        self._guard = os.stat(current) if guards_current and current != "/" else None
        self._names = [*reversed(Path(current, path).parts[1:])]  # names of the folders to enter, in reverse order
        self._symlinks = 0
        self.folders: list[_Folder] = []

    def __enter__(self) -> _PathWalk:
        self._add_folder("/", os.open("/", _FOLDER))
        return self

    def __exit__(self, *_: object) -> None:
        while self.folders:
            os.close(self.folders.pop().fd)

    def get_reached_path(self) -> Path:
        return Path(os.path.normpath(Path(self.folders[-1].path, *reversed(self._names))))

    def enter_all(self, *, make: bool) -> None:
        """Enter each folder of the path.

        Raises `UsageError` for an untrusted symlink, and OSError if a folder cannot be entered.
        """
        while self._names:
            name, parent = self._names[-1], self.folders[-1]
            if name == "..":
                if len(self.folders) > 1:  # the root directory is its own parent
                    os.close(self.folders.pop().fd)
                self._names.pop()
                continue
            try:
                fd = os.open(name, _FOLDER, dir_fd=parent.fd)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # another process may have created the folder
                    os.mkdir(name, dir_fd=parent.fd)
                fd = os.open(name, _FOLDER, dir_fd=parent.fd)
            except OSError as error:
                may_be_symlink = error.errno in (errno.ENOTDIR, errno.ELOOP)
                if not may_be_symlink or not stat.S_ISLNK(os.lstat(name, dir_fd=parent.fd).st_mode):
                    raise
                self._follow_symlink(name, parent)
                continue
            self._add_folder(os.path.join(parent.path, name), fd)
            self._names.pop()

    def _follow_symlink(self, name: str, parent: _Folder) -> None:
        """Replace the name of a symlink with the names in its target."""
        target = os.readlink(name, dir_fd=parent.fd)
        if parent.is_guarded:
            symlink = Path(parent.path, name)
            position = "" if self._requested.absolute() == symlink else f" on the way to {self._requested}"
            raise UsageError(
                f"{symlink}{position} is a symlink to {target!r}; gitboot does not follow symlinks below the current "
                "directory or in a Git work tree, because a commit can contain symlinks. Use the symlink's target "
                "instead, or remove the symlink"
            )
        self._symlinks += 1
        if self._symlinks > _MAX_SYMLINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._names.pop()
        self._names += reversed([part for part in target.split("/") if part not in ("", ".")])
        if target.startswith("/"):
            while len(self.folders) > 1:
                os.close(self.folders.pop().fd)

    def _add_folder(self, path: str, fd: int) -> None:
        is_guarded = bool(self.folders) and self.folders[-1].is_guarded
        is_current = self._guard is not None and os.path.samestat(os.fstat(fd), self._guard)
        try:
            os.lstat(".git", dir_fd=fd)
            has_git = True
        except OSError:  # the folder is missing, or is in a folder that this user may not enter
            has_git = False
        self.folders.append(_Folder(path, fd, is_guarded or is_current or has_git))


def _stat_regular_file(path: Path, folder: int) -> os.stat_result | None:
    """Return the `os.stat` result of the regular file to replace, or None if there is no file. Raises `UsageError`."""
    if path.name in ("", ".."):  # a path without a file name, such as / or folder/..
        raise UsageError(f"{path} is a directory: pass a file path")
    try:
        status = os.lstat(path.name, dir_fd=folder)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise UsageError(
            f"{path} is a symlink, which gitboot does not follow; pass the symlink's target, or remove the symlink"
        )
    if not stat.S_ISREG(status.st_mode):
        file_type = _NOT_REGULAR.get(stat.S_IFMT(status.st_mode), "not a file")
        raise UsageError(f"{path} is {file_type}: pass the path of a regular file or a new file")
    return status


def _find_caller_descriptor(path: Path) -> int | None:
    """Return the file descriptor for a path such as /dev/stdout or /dev/fd/63, or None for any other path.

    Accept only descriptors that the caller of gitboot opened. Such descriptors are inheritable, but descriptors that
    gitboot opens are not (PEP 446).
    """
    text = os.fspath(path)
    if text in _STREAMS:
        return _STREAMS[text]
    match = _DESCRIPTOR.fullmatch(text)
    if match is None:
        return None
    descriptor = int(match[1])
    try:
        is_inherited = os.get_inheritable(descriptor)
    except OSError:
        is_inherited = False
    if not is_inherited:
        raise UsageError(
            f"{path}: this file descriptor was not open when gitboot started; open it first, or pass a file path"
        )
    return descriptor


def find_file_below(root: Path, path: str) -> Path | None:
    """Return the readable file at ``path`` below ``root``, or None. The function never returns hidden files.

    ``root`` must be resolved. Raises OSError if the file exists but cannot be read.
    """
    if "\\" in path or any(part == "" or part.startswith(".") for part in path.split("/")):
        return None
    try:
        file = Path(os.path.realpath(root / path, strict=True))
    except ValueError:  # the path contains a NUL character
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise
    if not (file.is_relative_to(root) and file.is_file()):
        return None
    if not os.access(file, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    return file


# File systems

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(r"nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|glusterfs|ocfs2|gfs2|fuse\..+")
_VOLATILE: Final = ("tmpfs", "ramfs", "overlay", "aufs")
_OPTION: Final = "--accept-filesystem"
_LOCKABLE_DEVICES: Final[set[int]] = set()  # file systems on which locks work
# This program tries to lock a file that another process has locked. Exit code 0 means that locks work.
_LOCK_PROBE: Final = """\
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)
sys.exit(3)
"""
Warn = Callable[[str], None]
_BARE: Final = ("HEAD", "objects", "refs")  # a bare repository contains these entries: gitrepository-layout(5)


def check_state_directory(directory: Path, accepted_types: Collection[str], warn: Warn) -> None:
    """Raise `UsageError` if a directory is not suitable for a ledger. Warn if a ledger in the directory may be lost.

    On a network file system, a synced write can be lost, and SQLite can read its log incorrectly. If the file system
    loses its data at a reboot or with its container, the function only warns. This is safe, because a new ledger has no
    records, and gitboot never installs a server without a record.
    """
    filesystem = find_filesystem(directory)
    _check_locks(directory, filesystem)
    if _NETWORK.fullmatch(filesystem) and filesystem not in accepted_types:
        raise UsageError(
            f"{directory} is on {filesystem}, but a ledger needs a local disk. Choose a directory on a local disk for "
            f"--state, or add {_OPTION} {filesystem} to accept that the ledger may be lost or damaged"
        )
    if _NETWORK.fullmatch(filesystem):
        warn(f"{directory} is on {filesystem}, where the ledger may be lost or damaged")
    elif filesystem in _VOLATILE and filesystem not in accepted_types:
        warn(
            f"{directory} is on {filesystem}, which loses its data on restart. After a restart, you must again "
            "record which servers are installed"
        )


def check_fetch_log_folder(
    folder: Path, accepted_types: Collection[str], warn: Warn, *, state: Path | None = None
) -> None:
    """Raise `UsageError` if a fetch log in this folder could lose recorded fetches.

    ``state`` is the state directory of the instance that reads the fetch log, if known. The file system may be volatile
    if ``state`` is on the same file system, because the fetch log and the ledger are then lost together.
    """
    filesystem = find_filesystem(folder)
    _check_locks(folder, filesystem)
    is_on_state_disk = state is not None and state.exists() and _share_filesystem(folder, state)
    if filesystem in _VOLATILE and filesystem not in accepted_types and not is_on_state_disk:
        raise UsageError(
            f"{folder} is on {filesystem}, which loses its data on restart. After a restart, gitboot would serve "
            f"recorded one-time boots again. Choose a folder on a disk for --spool, or add "
            f"{_OPTION} {filesystem} to accept this risk"
        )
    if _NETWORK.fullmatch(filesystem):
        warn(f"{folder} is on {filesystem}, so gitboot relies on the file server to store each recorded fetch on disk")


def check_output_directory(directory: Path, accepted_types: Collection[str], warn: Warn, *, state: Path) -> None:
    """Raise `UsageError` if two instances could publish to a directory at the same time.

    Warn if the output tree may be lost. gitboot can write a lost output tree again. But if only the output tree is
    lost, gitboot cannot rule out that the ledger is an older copy.
    """
    filesystem = find_filesystem(directory)
    # The publication reports a directory that is not writable.
    _check_locks(directory, filesystem, must_be_writable=False)
    if _NETWORK.fullmatch(filesystem) and filesystem not in accepted_types:
        warn(
            f"{directory} is on {filesystem}, so an endpoint on another machine may read old boot files from its cache"
        )
    elif filesystem in _VOLATILE and filesystem not in accepted_types and not _share_filesystem(directory, state):
        warn(
            f"{directory} is on {filesystem}, which loses its data on restart. The ledger is then unverified until "
            "you confirm it with `gitboot records begin as-recorded`"
        )


def _share_filesystem(first: Path, second: Path) -> bool:
    return first.stat().st_dev == second.stat().st_dev


def check_private_paths(directory: Path, paths: Mapping[str, Path | None]) -> None:
    """Raise `UsageError` if an output directory contains private files, which every web server would serve.

    ``paths`` maps each option to its path, or to None if the option is unused. The directory must also not be a Git
    repository or work tree.
    """
    tree = directory.resolve()
    if os.path.exists(tree / ".git"):
        raise UsageError(f"--out {directory} is a Git work tree; choose a separate directory for published files")
    if all(os.path.exists(tree / name) for name in _BARE):
        raise UsageError(f"--out {directory} is a Git repository; choose a separate directory for published files")
    for option, path in paths.items():
        if path is not None and path.resolve().is_relative_to(tree):
            relation = "is" if path.resolve() == tree else "is in"
            raise UsageError(
                f"{option} {path} {relation} --out {directory}, which every client can read; choose another directory"
            )


def find_filesystem(path: Path) -> str:
    """Return the type of the file system that contains a path, as mount(8) names it, or "" if it is unknown."""
    with suppress(OSError):
        return _find_mount_type(_MOUNTS.read_text(errors="surrogateescape"), path.resolve(strict=True))
    return ""


def is_on_network(path: Path) -> bool:
    """Return whether a file is on a network file system.

    If the file does not exist, check the nearest folder above it that exists.
    """
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return _NETWORK.fullmatch(find_filesystem(path)) is not None


def _find_mount_type(mounts: str, path: Path) -> str:
    """Return the file system type of the mount that contains a path (proc(5)).

    If several mounts have the same path, the latest mount has precedence.
    """
    longest_point, filesystem = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if path.is_relative_to(point) and len(point) >= len(longest_point):
            longest_point, filesystem = point, after.split()[0]
    return filesystem


def _check_locks(directory: Path, filesystem: str, *, must_be_writable: bool = True) -> None:
    """Raise `UsageError` if two processes can lock the same file at the same time, or if the directory is not writable.

    gitboot tests each file system only once, because state, spool and output often share a file system.
    """
    probe = directory / f".gitboot-lock-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            lock_file(file.fileno())
            device = os.fstat(file.fileno()).st_dev
            if device not in _LOCKABLE_DEVICES:
                command = [sys.executable, "-I", "-S", "-c", _LOCK_PROBE, str(probe)]
                if subprocess.run(command, check=False, capture_output=True).returncode != 0:
                    raise UsageError(
                        f"{directory} is on {filesystem or 'a file system'}, where file locks between processes do "
                        "not work; choose a directory on another file system"
                    )
                _LOCKABLE_DEVICES.add(device)
    except OSError as error:
        if must_be_writable:
            unknown = filesystem or "unknown file system"
            raise UsageError(f"{directory} cannot be used: {error.strerror} ({unknown})") from None
    finally:
        with suppress(OSError):  # report the first error
            probe.unlink(missing_ok=True)
