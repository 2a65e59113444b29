"""Folder targets: a directory on this host, or on another host that rsync reaches."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import structs

from gitboot.child_processes import ProcessResult, run_with_input
from gitboot.errors import HostUnreachable, PublishError
from gitboot.files import lock_file, open_lock
from gitboot.publish.durable_files import DurableDirectory, TreeModes, staging_path, to_publish_error
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.followed_tree import TargetFile
from gitboot.publish.targets.follower import ReadCredentials, RsyncAddress
from gitboot.publish.targets.sync_steps import (
    MAX_RECORD_BYTES,
    SHARDS,
    FileCallback,
    FileConflict,
    ReadFile,
    StoredFile,
)
from gitboot.render.endpoint_files import ListedFile


class TargetFolder:
    """A target in the local folder ``root``, which must exist.

    Files get the permissions and the group of ``root``. gitboot does not follow symlinks, and syncs each file to the
    disk before the file replaces another file. A process locks the folder only during a single `create` or `replace`.
    Therefore a new instance that takes over the target does not have to wait.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            modes = TreeModes.from_folder(root.stat())
        except OSError as error:
            hint = "create the folder with the permissions and the group that its files should have"
            raise PublishError(f"{root}: {error.strerror} ({hint})") from error
        self._disk = DurableDirectory(root, modes)

    @property
    def is_current(self) -> bool:
        return self._disk.is_root_unchanged

    def close(self) -> None:
        self._disk.close()

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        content = self._disk.read(path, max_bytes)
        return StoredFile(content, compute_digest(content)) if content is not None else None

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        for path in paths:
            on_file(path, self.get(path))

    def create(self, path: str, content: bytes) -> None:
        with self._hold_lock():
            if self._disk.lstat(path) is not None:
                raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        with self._hold_lock():
            if version is not None:
                current = self.get(path)
                if current is None or current.version != version:
                    raise FileConflict(path)
            self._write({path: TargetFile(content, 0)})

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        files = {path: read_file(path) for path in paths}
        conflicts = frozenset(path for path in new_paths if self._has_other_content(path, files[path].content))
        self._write({path: file for path, file in files.items() if path not in conflicts})
        self._disk.release_folders()
        return conflicts

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        contents = {path: self._disk.read(path, each.size) for path, each in expected_files.items()}
        self._disk.release_folders()
        return sorted(
            path
            for path, content in contents.items()
            if content is None or compute_digest(content) != expected_files[path].sha256
        )

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and any temporary files that a killed process left beside them."""
        for path in paths:
            self._disk.remove(staging_path(path))
            self._disk.remove(path)
        self._disk.sync()
        self._disk.release_folders()

    def names(self, folder: str) -> list[str]:
        paths: list[str] = []
        try:
            for parent, _, names in os.walk(self.root / folder, onerror=_raise_unless_absent):
                paths += (os.path.relpath(os.path.join(parent, name), self.root) for name in names)
        except OSError as error:
            raise to_publish_error(self.root, error) from error
        return sorted(paths)

    def _write(self, files: Mapping[str, TargetFile]) -> None:
        for path, file in files.items():
            self._disk.stage(path, file.content, datetime.fromtimestamp(file.modified, UTC), exact=True)
        self._disk.sync()
        for path in files:
            self._disk.place(path)
        self._disk.sync()

    def _has_other_content(self, path: str, content: bytes) -> bool:
        if self._disk.lstat(path) is None:
            return False
        try:
            return self._disk.read(path, len(content)) != content
        except PublishError:  # the path is a folder or a symlink
            return True

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Prevent other processes from running `create` or `replace` until the block ends."""
        try:
            fd = open_lock("target.lock", self._disk.folders.make_folder("ops"))
        except OSError as error:
            raise to_publish_error(self.root, error) from error
        try:
            with suppress(PermissionError):  # another user created the lock file
                os.fchmod(fd, 0o600)
            lock_file(fd, waits=True)
            yield
        finally:
            os.close(fd)


def build_folder_opener(root: Path) -> Callable[[], TargetFolder]:
    """Return a function that opens the folder.

    The returned function reopens the folder if the path now refers to another folder or disk.
    """
    opened: list[TargetFolder] = []

    def open_folder() -> TargetFolder:
        if not opened or not opened[0].is_current:
            while opened:
                opened.pop().close()
            opened.append(TargetFolder(root))
        return opened[0]

    return open_folder


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# Folders that rsync reaches


MAX_SERVERS: Final = 1000  # servers in one step; a step takes about 20 connections for any number of servers
_CONNECT_S: Final = 10
_SILENCE_S: Final = 60  # a copy fails if no byte from the other host arrives for this long
_COPY_S: Final = 3600  # the time limit of one copy
_LONGEST_DETAIL: Final = 300
_KEPT_FOLDERS: Final = {".", "boot", "ops", "ops/shards"}  # folders that stay even if they are empty
# rsync(1), EXIT VALUES
_PROTOCOL: Final = 5  # "Error starting client-server protocol": a daemon's refusal
_FILE_IO: Final = 11
# "Partial transfer due to vanished source files": normal if files are deleted, because they have no source
_VANISHED: Final = 24
_PERMANENT_ERRORS: Final = re.compile(
    r"permission denied|no space left|quota exceeded|read-only|no such file|host key|identification|"
    r"auth failed|unknown module|unknown option|operation not permitted|not a directory",
    re.IGNORECASE,
)
# with --out-format='%i %n', these lines are the files whose content rsync would transfer
_ITEM: Final = re.compile(r"[<>c]f\S* (.*)")
_ESCAPED: Final = re.compile(r"\\#(\d{3})")  # rsync(1), --8-bit-output: %n shows bytes that are not ASCII in this form


class RsyncStore:
    """A target folder on another host.

    Each method starts only a few rsync processes, regardless of the number of files. ``folder`` is a local folder that
    only this target uses. It contains the files that rsync sends and receives.
    """

    def __init__(self, address: RsyncAddress, folder: Path, password: tuple[str, str] | None = None) -> None:
        """``password`` contains a user name and a password for an rsync daemon."""
        self._address, self._folder, self._password = address, folder, password
        self._sent, self._read, self._empty = folder / "sent", folder / "read", folder / "empty"

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        if not (path.startswith(SHARDS) and (self._read / path).exists()):
            self._pull([path])
        return self._read_pulled(path, max_bytes)

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        self._pull(paths)
        for path in paths:
            on_file(path, self._read_pulled(path))

    def create(self, path: str, content: bytes) -> None:
        if self.get(path) is not None:
            raise FileConflict(path)
        self.replace(path, content)

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        if version is not None:
            current = self.get(path)
            if current is None or current.version != version:
                raise FileConflict(path)
        self.place([path], lambda _: TargetFile(content, 0), ())

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        with self._lock_folder():
            for path in paths:
                _write(self._sent / path, read_file(path))
        conflicts = frozenset(self._find_remote_differences(new_paths, "--existing"))
        sent_paths = [path for path in paths if path not in conflicts]
        if sent_paths:
            options = ("--checksum", "--times", "--omit-dir-times", "--chmod=D755,F644")
            self._rsync(sent_paths, *options, f"{self._sent}/", None)
        with self._lock_folder():
            for path in sent_paths:
                if path.startswith("ops/"):
                    received_file = self._read / path
                    received_file.parent.mkdir(parents=True, exist_ok=True)
                    (self._sent / path).replace(received_file)
        return conflicts

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        """Return the sorted paths whose checksums on the other host differ from those of the sent files."""
        differing_paths = self._find_remote_differences(expected_files)
        shutil.rmtree(self._sent, ignore_errors=True)
        return differing_paths

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. If a folder that directly contained one of them is then empty, remove the folder too."""
        removed_files = list(paths)
        folders = sorted({str(PurePosixPath(path).parent) for path in removed_files} - _KEPT_FOLDERS)
        for removed_paths in (removed_files, folders):
            if removed_paths:
                with self._lock_folder():
                    self._empty.mkdir(parents=True, exist_ok=True)
                self._rsync(removed_paths, "--delete-missing-args", f"{self._empty}/", None, ok_statuses=(0, _VANISHED))
        with self._lock_folder():
            for path in removed_files:
                (self._read / path).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        with self._lock_folder():
            self._empty.mkdir(parents=True, exist_ok=True)
        options = ("--recursive", "--dry-run", "--ignore-missing-args", "--out-format=%i %n")
        listed_paths = _parse_items(self._rsync([folder], *options, None, f"{self._empty}/").output)
        return [path for path in listed_paths if path.startswith(folder) and ".." not in path.split("/")]

    def _find_remote_differences(self, paths: Collection[str], *options: str) -> list[str]:
        """Return the sorted paths of the files whose content on the other host differs from the sent files."""
        if not paths:
            return []
        comparison_options = ("--dry-run", "--checksum", "--out-format=%i %n")
        return _parse_items(self._rsync(paths, *options, *comparison_options, f"{self._sent}/", None).output)

    def _pull(self, paths: Collection[str]) -> None:
        """Copy files from the other host to the folder ``read``, and remove files that are absent on the other host."""
        if not paths:
            return
        with self._lock_folder():
            self._read.mkdir(parents=True, exist_ok=True)
            for path in paths:
                (self._read / path).unlink(missing_ok=True)
        self._rsync(paths, "--ignore-missing-args", f"--max-size={MAX_RECORD_BYTES}", None, f"{self._read}/")

    def _read_pulled(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        try:
            with (self._read / path).open("rb") as file:
                content = file.read(max_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StoredFile(content, compute_digest(content))

    def _rsync(
        self, paths: Collection[str], *arguments: str | None, ok_statuses: Sequence[int] = (0,)
    ) -> ProcessResult:
        """Run rsync for these paths, with the folder on the other host in place of each argument that is None."""
        address = self._address
        command = ["rsync", "--protect-args", "--from0", "--files-from=-", f"--timeout={_SILENCE_S}", "--8-bit-output"]
        if address.is_daemon:
            command += ["--no-motd", f"--contimeout={_CONNECT_S}"]
        else:
            command += ["-e", self._format_ssh_command()]
        command += [argument if argument is not None else self._format_location() for argument in arguments]
        environment = {name: os.environ[name] for name in ("HOME", "PATH", "USER", "LOGNAME") if name in os.environ}
        environment["LC_ALL"] = "C"
        if self._password is not None:
            environment["RSYNC_PASSWORD"] = self._password[1]
        with self._lock_folder() as lock:
            # If rsync still runs after the end of this process, it must keep the lock, because it could overwrite files
            # that the next process sends.
            try:
                result = run_with_input(
                    command,
                    input_data=b"".join(os.fsencode(path) + b"\0" for path in paths),
                    environment=environment,
                    patience_s=_COPY_S,
                    pass_fds=(lock,),
                )
            except FileNotFoundError:
                raise PublishError(f"{address.name}: rsync is not installed on this host") from None
            except TimeoutError as error:
                raise HostUnreachable(f"{address.name}: {error}") from None
        if result.status not in ok_statuses:
            raise self._build_error(result)
        return result

    def _build_error(self, result: ProcessResult) -> PublishError | HostUnreachable:
        lines = [line for line in result.errors.splitlines() if line.strip()]
        messages = [
            line for line in lines if not line.startswith(("rsync error:", "rsync: connection unexpectedly", "@"))
        ]
        causes = [line for line in messages if _PERMANENT_ERRORS.search(line)]
        detail = " ".join("; ".join(causes or messages or lines or [f"rsync ended with {result.status}"]).split())
        if "change_dir" in detail and "No such file" in detail:
            detail += " (create the folder)"
        if len(detail) > _LONGEST_DETAIL:
            detail = f"{detail[:_LONGEST_DETAIL]}…"
        message = f"{self._address.name}: {detail}"
        if result.status in (_PROTOCOL, _FILE_IO) or _PERMANENT_ERRORS.search(detail):
            return PublishError(message)
        return HostUnreachable(message)

    def _format_location(self) -> str:
        """Return the folder on the other host as rsync expects it in its arguments."""
        address = self._address
        if self._password is not None:
            address = structs.replace(address, user=self._password[0])
        return f"{address.name}/" if address.is_daemon else f"{address.destination}:{address.path}/"

    def _format_ssh_command(self) -> str:
        """Return the ssh command, quoted as rsync(1) expects it for --rsh. ssh accepts only known host keys."""
        address = self._address
        options = ["ssh", "-F", "none", "-T", "-x", "-i", str(address.ssh_key)]
        if address.port is not None:
            options += ["-p", str(address.port)]
        options += ["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"]
        options += ["-o", f'UserKnownHostsFile="{address.known_hosts}"', "-o", "GlobalKnownHostsFile=none"]
        options += ["-o", f"ConnectTimeout={_CONNECT_S}", "-o", f"ServerAliveInterval={_SILENCE_S // 4}"]
        return " ".join("'" + option.replace("'", "''") + "'" for option in options)

    @contextmanager
    def _lock_folder(self) -> Iterator[int]:
        """Lock the local folder until the block ends, and yield the descriptor of the lock.

        Raises `HostUnreachable` if an earlier process's rsync is still running, and `PublishError` for other failures.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open_lock(self._folder / "lock")
        except OSError as error:
            raise PublishError(f"{self._folder}: {error.strerror}") from error
        try:
            if not lock_file(lock):
                raise HostUnreachable(
                    f"{self._address.name}: an rsync process from an earlier gitboot run is still running"
                )
            yield lock
        except OSError as error:
            raise PublishError(f"{self._folder}: {error.strerror}") from error
        finally:
            os.close(lock)


def build_rsync_opener(
    address: RsyncAddress, folder: Path, read_credentials: ReadCredentials
) -> Callable[[], RsyncStore]:
    """Return a function that opens the store with the current password."""

    def open_store() -> RsyncStore:
        password = read_credentials(address.credentials) if address.credentials is not None else None
        return RsyncStore(address, folder, password)

    return open_store


def _write(path: Path, file: TargetFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(file.content)
    os.utime(path, (file.modified, file.modified))


def _parse_items(output: str) -> list[str]:
    """Return the sorted paths of the files in the output of rsync with `--out-format='%i %n'`."""
    items = (_ITEM.fullmatch(line) for line in output.splitlines())
    return sorted(_ESCAPED.sub(lambda byte: chr(int(byte[1], 8)), item[1]) for item in items if item is not None)
