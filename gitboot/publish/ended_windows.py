"""End maintenance windows in the files of a published tree, without the ledger and the repository.

An instance publishes no plans while it stands by, and before it has evaluated its accepted commit. The server states in
the tree (`gitboot.render.endpoint_files`) say what each path answers from which time on, which is enough to end a window.
Nothing here opens a window.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple

from gitboot.errors import PublishError
from gitboot.publish.durable_files import Disk, TreeModes
from gitboot.publish.tree_reader import LOCK
from gitboot.render.endpoint_files import PublishedServer, Turn, parse, server_of, state_path, turn_of
from gitboot.render.paths import BOOT

_SERVERS: Final = "ops/servers"
_IN_WINDOW: Final = b'"inWindow":true'  # is in each state that has a window
_FILE_MODE: Final = 0o666  # the bits of a folder's permissions that its files have, too
# `WindowEnds` reads all states during at most one of so many seconds.
_IF_CHANGED: Final = 20
_IF_UNCHANGED: Final = 200
_A_SECOND_LATER: Final = datetime.fromtimestamp(0, UTC)  # dates a file one second after the version that it replaces


class EndedWindows(NamedTuple):
    """The windows that were ended in a tree, and when the next one ends."""

    servers: tuple[str, ...]  # whose files were replaced, sorted
    next_end: datetime | None  # None: no window in the tree is known to end


class WindowsNotEnded(PublishError):
    """A window could not be ended. gitboot replaced files of ``servers`` all the same, maybe not all."""

    def __init__(self, message: str, servers: tuple[str, ...]) -> None:
        super().__init__(message)
        self.servers = servers


class WindowEnds:
    """When the windows of a published tree end, so that each can be ended at that time.

    Reading all states of a large tree takes seconds, so gitboot reads them again only now and then: soon if another
    process has replaced a state, which changes the time of their folder, and rarely otherwise. Between, it reads only
    the states of servers whose window ends.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, datetime] = {}  # when a file of a server may have to be replaced next, by server
        self._was_read: _Reading | None = None  # when all states were read last
        self._replaced: set[str] = set()  # servers with replaced files that `end` has not returned yet

    @property
    def next_end(self) -> datetime | None:
        """Return when the next known window ends."""
        return min(self._ends.values(), default=None)

    def is_due(self, root: Path, at: datetime) -> bool:
        """Return whether `end` has anything to do at ``at`` in the tree at ``root``."""
        return self._reads_all(root) or any(end <= at for end in self._ends.values())

    def end(self, disk: Disk, at: datetime, dated: datetime) -> EndedWindows:
        """Replace each file of a window that is over at ``at``. No other process may publish to the tree meanwhile.

        The file becomes what its path answers at ``at``. If that is another window, the file becomes what the path
        answers outside of windows, because a newer commit may have cancelled that window. In place of a boot that
        writes a disk, the file becomes the fallback of that boot. A file whose content is not known to be of a window
        stays as it is. New files are ``dated`` then, or one second after the version before if that is later.
        Raises `WindowsNotEnded`. Then the next call tries again, and reads only the states that are still due.
        """
        began_s, version, reads_all = self._monotonic(), _version(disk.root), self._reads_all(disk.root)
        due = _server_names(disk) if reads_all else sorted(name for name, end in self._ends.items() if end <= at)
        ends = {} if reads_all else {name: end for name, end in self._ends.items() if end > at}
        contents: dict[str, dict[str, bytes | None]] = {}
        settled: dict[str, datetime | None] = {}  # when each server is due next, if that does not wait for its files
        after: dict[str, datetime | None] = {}  # when each server is due next, once its files are replaced
        try:
            for name in due:
                state = _state_with_windows(disk, name)
                files = dict(_files_of_ended_windows(disk, state, at)) if state is not None else {}
                next_turn = _next_turn(state, at) if state is not None else None
                if files:
                    contents[name], after[name] = files, next_turn
                else:
                    settled[name] = next_turn
            _replace(disk, contents, dated, self._replaced)
            settled |= after
        except PublishError as error:
            raise WindowsNotEnded(str(error), tuple(sorted(self._replaced))) from error
        finally:
            times = {name: settled.get(name, min(self._ends.get(name, at), at)) for name in due}
            self._ends = ends | {name: time for name, time in times.items() if time is not None}
            if reads_all:
                now_s = self._monotonic()
                self._was_read = _Reading(version=version, ended_s=now_s, took_s=now_s - began_s)
        servers = tuple(sorted(self._replaced))
        self._replaced.clear()
        return EndedWindows(servers, self.next_end)

    def _reads_all(self, root: Path) -> bool:
        if (last := self._was_read) is None:
            return True
        pause = _IF_UNCHANGED if last.version == _version(root) else _IF_CHANGED
        return self._monotonic() >= last.ended_s + pause * last.took_s


class _Reading(NamedTuple):
    """A time at which all states of a tree were read."""

    version: tuple[int, ...] | None  # of the folder of states, before it was read
    ended_s: float  # of the monotonic clock
    took_s: float


def _version(root: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a state is replaced, or another tree is put in place; None: there is no tree."""
    try:
        found = (root / _SERVERS).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def end_windows(root: Path, ends: WindowEnds, at: datetime) -> EndedWindows:
    """End the windows that are over at ``at`` in the tree at ``root``, unless another process publishes to that tree.

    ``ends`` is of this tree. Raises `PublishError`.
    """
    if not (root / BOOT).is_dir():
        return EndedWindows((), None)
    if not ends.is_due(root, at):
        return EndedWindows((), ends.next_end)
    with closing(Disk(root, _modes(root))) as disk:
        if disk.lock(LOCK):
            return EndedWindows((), None)
        # At the end of a window, another host may publish a boot at the same path with the date of this second. An
        # access log of this host must not count as evidence of that boot.
        return ends.end(disk, at, _A_SECOND_LATER)


def _modes(root: Path) -> TreeModes:
    """Return the permissions of the tree."""
    try:
        found = (root / BOOT).stat()
    except OSError as error:
        raise PublishError(f"{root / BOOT}: {error.strerror}") from error
    folder = S_IMODE(found.st_mode) & 0o777
    return TreeModes(folder=folder, file=folder & _FILE_MODE, group=found.st_gid)


def _server_names(disk: Disk) -> list[str]:
    """Return the names of the servers that have a state, sorted."""
    found = (server_of(f"{_SERVERS}/{name}") for name in disk.names(_SERVERS))
    return [name for name in found if name is not None]


def _state_with_windows(disk: Disk, name: str) -> PublishedServer | None:
    """Return the state of a server if it has windows. The next publication replaces a damaged state."""
    data = disk.read(state_path(name))
    if data is None or _IN_WINDOW not in data:
        return None
    try:
        return parse(data)
    except ValueError:
        return None


def _files_of_ended_windows(disk: Disk, state: PublishedServer, at: datetime) -> Iterator[tuple[str, bytes | None]]:
    """Yield each file that is of an ended window of a server, with its new content; None: gitboot removes it."""
    for path, turns in sorted(state.paths.items()):
        now, _ = turn_of(turns, at)
        windows = {turn.content for turn in turns if turn.in_window and turn is not now}
        if now is not None and now.in_window:
            windows.discard(now.content)  # the same maintenance, or one that boots the same
        if not windows:
            continue
        found = disk.read(path)
        if found is not None and hashlib.sha256(found).hexdigest() in windows:
            if now is not None and now.in_window:
                now = next((turn for turn in reversed(turns) if not turn.in_window), None)
            yield path, _instead(disk, state, now)


def _next_turn(state: PublishedServer, at: datetime) -> datetime | None:
    """Return when a path that has windows answers something else next."""
    with_windows = (turns for turns in state.paths.values() if any(turn.in_window for turn in turns))
    times = (turn.since for turns in with_windows for turn in turns)
    return min((since for since in times if since is not None and since > at), default=None)


def _replace(
    disk: Disk, contents: Mapping[str, Mapping[str, bytes | None]], dated: datetime, replaced: set[str]
) -> None:
    """Put all contents in place of the files at these paths, by server, durably; None: remove the file.

    Each server is added to ``replaced`` before its first file changes.
    """
    if not contents:
        return
    for files in contents.values():
        for path, content in files.items():
            if content is not None:
                disk.stage(path, content, dated)
    disk.sync()
    for name, files in contents.items():
        replaced.add(name)
        for path, content in files.items():
            if content is None:
                disk.remove(path)
            else:
                disk.place(path)
    disk.sync()


def _instead(disk: Disk, state: PublishedServer, turn: Turn | None) -> bytes | None:
    """Return what a path answers by a turn, without a boot that writes a disk; None: nothing."""
    if turn is None:
        return None
    digest = turn.content if turn.writes is None else turn.writes.fallback
    if digest is None:
        return None
    text, stored = state.contents.get(digest), state.stored.get(digest)
    if text is not None:
        return text.encode()
    return disk.read(stored) if stored is not None else None
