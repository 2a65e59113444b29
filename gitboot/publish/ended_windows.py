"""The files of a published tree leave maintenance windows that are over, without the ledger and the repository.

An instance that cannot reach its ledger after a restart plans nothing. The tree has what each path answers from which
instant on (`gitboot.render.state`), and that is enough to end a window. Nothing here opens one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from stat import S_IMODE
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.disk import Disk
from gitboot.publish.modes import TreeModes
from gitboot.publish.tree import LOCK
from gitboot.render.paths import BOOT
from gitboot.render.state import PublishedServer, Turn, parse, server_of, turn_of

_SERVERS: Final = "ops/servers"
_FILE_MODE: Final = 0o666  # the bits of a folder's permissions that its files have, too


def end_windows(root: Path, at: datetime) -> tuple[str, ...]:
    """Replace each file of a window that is over at ``at``, and return the names of the servers, sorted.

    The file becomes what its path answers at ``at``. If that is another window, the file becomes what the path answers
    outside of windows, because a newer commit may have cancelled that window. In place of a boot that writes a disk,
    the file becomes the fallback of that boot. A file whose content is not known to be of a window is left alone. So is
    a tree that another process publishes. Raises `PublishError`.
    """
    if not (root / BOOT).is_dir():
        return ()
    with closing(Disk(root, _modes(root))) as disk:
        if disk.lock(LOCK):
            return ()
        ended = {state.server: dict(_overdue(disk, state, at)) for state in _states(disk)}
        replaced = {path: content for files in ended.values() for path, content in files.items()}
        for path, content in replaced.items():
            if content is not None:
                disk.stage(path, content, at)
        disk.sync()
        for path, content in replaced.items():
            if content is None:
                disk.remove(path)
            else:
                disk.place(path)
        disk.sync()
    return tuple(sorted(server for server, files in ended.items() if files))


def _modes(root: Path) -> TreeModes:
    """Return the permissions that the tree has."""
    try:
        found = (root / BOOT).stat()
    except OSError as error:
        raise PublishError(f"{root / BOOT}: {error.strerror}") from error
    folder = S_IMODE(found.st_mode) & 0o777
    return TreeModes(folder=folder, file=folder & _FILE_MODE, group=found.st_gid)


def _states(disk: Disk) -> Iterator[PublishedServer]:
    """Yield what the tree has of each server; one that is damaged is left to the next publication."""
    for name in disk.names(_SERVERS):
        path = f"{_SERVERS}/{name}"
        if server_of(path) is not None and (data := disk.read(path)) is not None:
            try:
                yield parse(data)
            except ValueError:
                continue


def _overdue(disk: Disk, state: PublishedServer, at: datetime) -> Iterator[tuple[str, bytes | None]]:
    """Yield each file of a server that is of a window which is over, with what it becomes; None: it goes."""
    for path, turns in sorted(state.paths.items()):
        now, _ = turn_of(turns, at)
        windows = {turn.content for turn in turns if turn.in_window and turn is not now}
        if now is not None and now.in_window:
            windows.discard(now.content)  # the same maintenance, or one that boots the same
        if not windows:
            continue
        lying = disk.read(path)
        if lying is not None and hashlib.sha256(lying).hexdigest() in windows:
            if now is not None and now.in_window:
                now = next((turn for turn in reversed(turns) if not turn.in_window), None)
            yield path, _instead(disk, state, now)


def _instead(disk: Disk, state: PublishedServer, turn: Turn | None) -> bytes | None:
    """Return what a path answers by a turn that boots nothing which writes a disk; None: nothing."""
    if turn is None:
        return None
    digest = turn.content if turn.writes is None else turn.writes.fallback
    if digest is None:
        return None
    text, stored = state.contents.get(digest), state.stored.get(digest)
    if text is not None:
        return text.encode()
    return disk.read(stored) if stored is not None else None
