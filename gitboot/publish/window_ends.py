"""Window ends: replace the files of maintenance windows in an output tree when the windows end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory, StagedFile, TreeModes, is_disk_full, staging_path
from gitboot.publish.manifest import compute_digest
from gitboot.publish.tree_reader import LOCK, RESERVES
from gitboot.render.endpoint_files import (
    PathVersion,
    PublishedServer,
    find_version,
    parse_state,
    parse_state_path,
    state_path,
)
from gitboot.render.paths import BOOT, find_non_script_kind

_SERVERS: Final = "ops/servers"
_IN_WINDOW: Final = b'"inWindow":true'  # Each state with a window contains this text.
# `WindowEnds` spends at most 1/20 of the time on reading all states, or 1/200 if their folder is unchanged.
_CHANGED_FACTOR: Final = 20
_UNCHANGED_FACTOR: Final = 200


class EndedWindows(NamedTuple):
    """The servers whose files were replaced because their windows ended, and the time at which the next window ends."""

    servers: tuple[str, ...]  # servers whose files were replaced, sorted
    next_end: datetime | None  # None: no known end


class WindowEndError(PublishError):
    """The files of some ended windows could not be replaced. ``servers`` have files that this attempt replaced."""

    def __init__(self, message: str, servers: tuple[str, ...]) -> None:
        super().__init__(message)
        self.servers = servers


class WindowEnds:
    """The times at which the windows of a published tree end.

    Reading all states of a large tree takes seconds, so gitboot reads all of them only at long intervals, and soon
    after another process has replaced a state, which changes the modification time of the folder. At other times,
    gitboot reads only the states of servers whose windows end.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, datetime] = {}  # by server, when a file may have to be replaced next
        self._last_read: _LastRead | None = None  # when all states were read last

    @property
    def next_end(self) -> datetime | None:
        return min(self._ends.values(), default=None)

    def is_due(self, root: Path, at: datetime) -> bool:
        """Return whether `end` may have to change the tree at ``root`` by the time ``at``."""
        return self._must_read_all(root) or any(end <= at for end in self._ends.values())

    def end(self, disk: DurableDirectory, at: datetime, modified_at: datetime) -> EndedWindows:
        """Replace the files of all windows that have ended by ``at``.

        No other process may publish to the tree during the call. Each file gets the content that is valid for its path
        at ``at``. If that content belongs to another window, the file gets the content outside of windows, because a
        newer commit may have cancelled that window. If the content boots an image that writes to a disk, the file gets
        its fallback. A file with unknown content stays. New files get the date ``modified_at``, or one second after the
        date of the previous version if that is later. If the files of some servers cannot be replaced, end the windows
        of the other servers, and then raise `WindowEndError`. The next call tries again, and reads only the states of
        the remaining servers.
        """
        began_s = self._monotonic()
        version = _read_folder_version(disk.root)
        reads_all = self._must_read_all(disk.root)
        if reads_all:
            due_servers = _list_servers(disk)
            later_ends: dict[str, datetime] = {}
        else:
            due_servers = sorted(server for server, end in self._ends.items() if end <= at)
            later_ends = {server: end for server, end in self._ends.items() if end > at}
        checks: dict[str, _WindowCheck] = {}
        failures: dict[str, PublishError] = {}
        for server in due_servers:
            try:
                checks[server] = _check_windows(disk, server, at)
            except PublishError as error:
                failures[server] = error
        contents = {server: check.new_contents for server, check in checks.items() if check.new_contents}
        replacement = _FileReplacement(disk, modified_at)
        remaining = contents.keys() | failures.keys()  # the servers whose windows are still open
        try:
            failures |= replacement.replace(contents)
            if contents:
                fill_reserve(disk)
            remaining = set(failures)
        finally:
            # the remaining servers are due again at once
            times = {
                server: min(self._ends.get(server, at), at) if server in remaining else checks[server].next_transition
                for server in due_servers
            }
            self._ends = later_ends | {server: time for server, time in times.items() if time is not None}
            if reads_all:
                now_s = self._monotonic()
                self._last_read = _LastRead(version=version, ended_s=now_s, took_s=now_s - began_s)
        changed_servers = tuple(sorted(replacement.changed_servers))
        if failures:
            first_error = next(iter(failures.values()))
            raise WindowEndError(str(first_error), changed_servers) from first_error
        return EndedWindows(changed_servers, self.next_end)

    def _must_read_all(self, root: Path) -> bool:
        last = self._last_read
        if last is None:
            return True
        pause = _UNCHANGED_FACTOR if last.version == _read_folder_version(root) else _CHANGED_FACTOR
        return self._monotonic() >= last.ended_s + pause * last.took_s


class _LastRead(NamedTuple):
    version: tuple[int, ...] | None  # the version of the folder of states, before it was read
    ended_s: float  # a time on the monotonic clock
    took_s: float


def _read_folder_version(root: Path) -> tuple[int, ...] | None:
    """Return a value that changes if a state or the whole tree is replaced, or None if there is no tree."""
    try:
        stat = (root / _SERVERS).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def end_windows(root: Path, window_ends: WindowEnds, at: datetime) -> EndedWindows:
    """Replace the files of windows in the tree at ``root`` that have ended by ``at``.

    If another process is publishing there, do nothing.

    ``window_ends`` must belong to this tree. Raises `PublishError`.
    """
    if not (root / BOOT).is_dir():
        return EndedWindows((), None)
    if not window_ends.is_due(root, at):
        return EndedWindows((), window_ends.next_end)
    try:
        modes = TreeModes.from_folder((root / BOOT).stat())
    except OSError as error:
        raise PublishError(f"{root / BOOT}: {error.strerror}") from error
    with closing(DurableDirectory(root, modes)) as disk:
        if disk.lock(LOCK):
            return EndedWindows((), None)
        # When the window ends, another host may publish a boot at the same path with a date in this second. gitboot
        # must not use the access log of this host as evidence of that boot. Therefore each file is dated one second
        # after the version that it replaces.
        return window_ends.end(disk, at, datetime.fromtimestamp(0, UTC))


def _list_servers(disk: DurableDirectory) -> list[str]:
    """Return the servers with a state in the tree."""
    servers = (parse_state_path(f"{_SERVERS}/{name}") for name in disk.list_names(_SERVERS))
    return [server for server in servers if server is not None]


_NewContents = Mapping[str, bytes | None]  # the new content by path; None: the file must be removed


class _WindowCheck(NamedTuple):
    """The result of checking the windows of one server."""

    new_contents: _NewContents  # for the files whose window has ended
    next_transition: datetime | None  # when gitboot must check the server again; None: it has no other window


def _check_windows(disk: DurableDirectory, server: str, at: datetime) -> _WindowCheck:
    """Compare the files of a server with the windows in its state. Raises PublishError if a file cannot be read."""
    data = disk.read(state_path(server))
    if data is None or _IN_WINDOW not in data:
        return _WindowCheck({}, None)
    try:
        state = parse_state(data)
    except ValueError:  # the next publication replaces a damaged state
        return _WindowCheck({}, None)
    return _WindowCheck(dict(_find_ended_window_files(disk, state, at)), _find_next_transition(state, at))


def _find_ended_window_files(
    disk: DurableDirectory, state: PublishedServer, at: datetime
) -> Iterator[tuple[str, bytes | None]]:
    """Yield each file of a server whose window has ended, with its new content, or None if it must be removed."""
    for path, versions in sorted(state.paths.items()):
        current, _ = find_version(versions, at)
        window_digests = {version.content for version in versions if version.in_window and version is not current}
        if current is not None and current.in_window:
            # the window belongs to the same maintenance, or to another maintenance with the same boot
            window_digests.discard(current.content)
        if not window_digests:
            continue
        old_content = disk.read(path)
        if old_content is None or compute_digest(old_content) not in window_digests:
            continue
        if current is not None and current.in_window:
            current = next((version for version in reversed(versions) if not version.in_window), None)
        new_content = _read_content(disk, state, current)
        if new_content != old_content:
            yield path, new_content


def _find_next_transition(state: PublishedServer, at: datetime) -> datetime | None:
    path_versions = (versions for versions in state.paths.values() if any(version.in_window for version in versions))
    times = (version.since for versions in path_versions for version in versions if version.since is not None)
    return min((since for since in times if since > at), default=None)


def _read_content(disk: DurableDirectory, state: PublishedServer, version: PathVersion | None) -> bytes | None:
    """Return the content of a version, or the fallback if the boot writes a disk. Return None if there is no file."""
    if version is None:
        return None
    digest = version.content if version.writes is None else version.writes.fallback
    if digest is None:
        return None
    if digest in state.contents:
        return state.contents[digest].encode()
    return disk.read(state.stored_paths[digest]) if digest in state.stored_paths else None


_Contents = Mapping[str, _NewContents]  # by server


class _FileReplacement:
    """Replaces files of servers durably, and records the servers of which a file changed."""

    def __init__(self, disk: DurableDirectory, modified_at: datetime) -> None:
        self._disk, self._modified_at = disk, modified_at
        self.changed_servers: set[str] = set()

    def replace(self, contents: _Contents) -> dict[str, PublishError]:
        """Replace files, and return the first error of each server whose files could not all be replaced.

        If the files cannot be replaced together, try each half of the servers, and so on. On a full disk, replace the
        files server by server, because the old files of a server make room for the new files of the next server.
        """
        if len(contents) == 1:
            [(server, files)] = contents.items()
            try:
                self._replace_server_files(server, files)
            except PublishError as error:
                return {server: error}
            return {}
        try:
            self._replace_together(contents)
            return {}
        except PublishError as error:
            group_size = 1 if is_disk_full(error) else (len(contents) + 1) // 2
        servers = list(contents)
        failures: dict[str, PublishError] = {}
        for start in range(0, len(servers), group_size):
            group = {server: contents[server] for server in servers[start : start + group_size]}
            failures |= self.replace(group)
        return failures

    def _replace_server_files(self, server: str, files: _NewContents) -> None:
        """Replace the files of one server. If that fails, replace each possible file, and raise the first error.

        If the files include user data, replace the files only together. Otherwise a boot script of the window could
        fetch the user data of the policy, or a boot script of the policy the user data of the window.
        """
        try:
            self._replace_with_reserve({server: files})
            return
        except PublishError:
            if any(map(find_non_script_kind, files)):
                raise
        failures: list[PublishError] = []
        for path, content in files.items():
            try:
                self._replace_with_reserve({server: {path: content}})
            except PublishError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _replace_with_reserve(self, contents: _Contents) -> None:
        """Replace files together. On a full disk, free the reserve file by file until there is enough space."""
        while True:
            try:
                return self._replace_together(contents)
            except PublishError as error:
                if not (is_disk_full(error) and _free_reserve(self._disk)):
                    raise

    def _replace_together(self, contents: _Contents) -> None:
        """Stage all files, sync them, and then place them. After an error, remove the staged files."""
        if not contents:
            return
        disk = self._disk
        try:
            for files in contents.values():
                self._stage(files)
            disk.sync()
            for server, files in contents.items():
                # If a boot script cannot be replaced, this script still needs the user data of the window.
                for path, content in sorted(files.items(), key=lambda item: find_non_script_kind(item[0]) is not None):
                    if content is None:
                        self._remove(server, path)
                    else:
                        disk.place(path)
                        self.changed_servers.add(server)
            disk.sync()
        except PublishError:
            for path in (path for files in contents.values() for path in files):
                with suppress(PublishError):
                    disk.remove(staging_path(path))
            raise

    def _stage(self, files: _NewContents) -> None:
        staged_files: dict[bytes, StagedFile] = {}  # files with the same content need the space of one file
        for path, content in sorted(files.items(), key=lambda item: (item[1] or b"", item[0])):
            if content is not None:
                staged_file = self._disk.stage(path, content, self._modified_at, staged_files.get(content))
                staged_files.setdefault(content, staged_file)

    def _remove(self, server: str, path: str) -> None:
        try:
            self._disk.remove(path)
        finally:
            if self._disk.get_size(path) is None:  # `remove` may fail after it has removed the file
                self.changed_servers.add(server)


def _free_reserve(disk: DurableDirectory) -> bool:
    """Remove a file of the reserve. Return False if there is no file that gitboot can remove."""
    for path in RESERVES:
        if disk.get_size(path) is not None:
            with suppress(PublishError):
                disk.remove(path)
                return True
    return False


def fill_reserve(disk: DurableDirectory) -> None:
    """Reserve the space and the inodes that gitboot needs to end windows on a full disk, or as much as is free."""
    for path, size_bytes in RESERVES.items():
        with suppress(PublishError):
            if disk.get_size(path) != size_bytes:
                disk.reserve_space(path, size_bytes)
