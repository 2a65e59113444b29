"""End maintenance windows in the files of a published tree, without the ledger and the repository.

An instance publishes no plans while it stands by, and before it has evaluated its accepted commit. The server states in
the tree (`gitboot.render.state`) say what each path answers from which time on, which is enough to end a window.
Nothing here opens a window.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple

from gitboot.errors import PublishError
from gitboot.publish.disk import Disk
from gitboot.publish.modes import TreeModes
from gitboot.publish.tree import LOCK
from gitboot.render.paths import BOOT
from gitboot.render.state import PublishedServer, Turn, parse, server_of, state_path, turn_of

_SERVERS: Final = "ops/servers"
_IN_WINDOW: Final = b'"inWindow":true'  # is in each state that has a window
_FILE_MODE: Final = 0o666  # the bits of a folder's permissions that its files have, too
_SHARE: Final = 20  # `WindowEnds` reads all states during at most one of so many seconds
_A_SECOND_LATER: Final = datetime.fromtimestamp(0, UTC)  # dates a file one second after the version that it replaces


class EndedWindows(NamedTuple):
    """The windows that were ended in a tree, and when the next one ends."""

    servers: tuple[str, ...]  # whose files were replaced, sorted
    next_end: datetime | None  # None: no window in the tree is known to end


class WindowEnds:
    """When the windows of a published tree end, so that each can be ended at that time.

    Reading all states of a large tree takes seconds, so gitboot reads them again only now and then. Between, it reads
    only the states of servers whose window ends.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, datetime] = {}  # when a file of a server may have to be replaced next, by server
        self._reads_all_from_s: float | None = None  # None: now

    @property
    def next_end(self) -> datetime | None:
        """Return when the next known window ends."""
        return min(self._ends.values(), default=None)

    def is_due(self, at: datetime) -> bool:
        """Return whether `end` has anything to do at ``at``."""
        return self._reads_all or any(end <= at for end in self._ends.values())

    def end(self, disk: Disk, at: datetime, dated: datetime) -> EndedWindows:
        """Replace each file of a window that is over at ``at``. No other process may publish to the tree meanwhile.

        The file becomes what its path answers at ``at``. If that is another window, the file becomes what the path
        answers outside of windows, because a newer commit may have cancelled that window. In place of a boot that
        writes a disk, the file becomes the fallback of that boot. A file whose content is not known to be of a window
        stays as it is. New files are ``dated`` then, or one second after the version before if that is later.
        After a `PublishError`, the next call tries again.
        """
        began_s, reads_all = self._monotonic(), self._reads_all
        names = _server_names(disk) if reads_all else sorted(name for name, end in self._ends.items() if end <= at)
        replaced: dict[str, bytes | None] = {}
        servers: list[str] = []
        ends = {} if reads_all else {name: end for name, end in self._ends.items() if end > at}
        for state in _states_with_windows(disk, names):
            if files := dict(_files_of_ended_windows(disk, state, at)):
                servers.append(state.server)
                replaced |= files
            if (end := _next_turn(state, at)) is not None:
                ends[state.server] = end
        _replace(disk, replaced, dated)
        self._ends = ends
        if reads_all:
            now_s = self._monotonic()
            self._reads_all_from_s = now_s + _SHARE * (now_s - began_s)
        return EndedWindows(tuple(sorted(servers)), self.next_end)

    @property
    def _reads_all(self) -> bool:
        return self._reads_all_from_s is None or self._monotonic() >= self._reads_all_from_s


def end_windows(root: Path, ends: WindowEnds, at: datetime) -> EndedWindows:
    """End the windows that are over at ``at`` in the tree at ``root``, unless another process publishes to that tree.

    ``ends`` is of this tree. Raises `PublishError`.
    """
    if not (root / BOOT).is_dir():
        return EndedWindows((), None)
    if not ends.is_due(at):
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


def _states_with_windows(disk: Disk, names: Iterable[str]) -> Iterator[PublishedServer]:
    """Yield the states that have windows. The next publication replaces damaged ones."""
    for name in names:
        data = disk.read(state_path(name))
        if data is not None and _IN_WINDOW in data:
            try:
                yield parse(data)
            except ValueError:
                continue


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


def _replace(disk: Disk, contents: Mapping[str, bytes | None], dated: datetime) -> None:
    """Put all contents in place of the files at these paths, durably; None: remove the file."""
    if not contents:
        return
    for path, content in contents.items():
        if content is not None:
            disk.stage(path, content, dated)
    disk.sync()
    for path, content in contents.items():
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
