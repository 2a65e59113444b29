"""A tree where there was none: written where nobody looks for it, then brought to its place as a whole.

What is written to ``FRESH`` is nobody's, and goes where its publication came to no end. Once the disk has all of it,
it is renamed to ``READY``; from then on it is the tree, and whoever publishes next brings what is still there to its
place. So no file needs a temporary name, and nothing is compared with what stands.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Final

from gitboot.progress import Told, counted
from gitboot.publish import durable
from gitboot.publish.disk import NEW, NO_LINK, Disk
from gitboot.publish.durable import refused, split
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.tree import OWN

FRESH: Final = f"{OWN}/fresh"
READY: Final = f"{OWN}/ready"
_FRESH, _READY = FRESH.removeprefix(f"{OWN}/"), READY.removeprefix(f"{OWN}/")

_BOOT, _IN_BOOT = "boot", "o"
_LAST: Final = split(MANIFEST)[1]  # nothing counts as published until it stands
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_ELSEWHERE: Final = frozenset({errno.EXDEV, errno.EBUSY})  # what is renamed to, or its place, is a mount point's


def put(
    disk: Disk, contents: Mapping[str, bytes | None], alike: Mapping[str, Collection[str]], at: datetime, told: Told
) -> bool:
    """Bring these files to stand where a tree is bare, all of them or none; False where that cannot be done so.

    ``alike`` are paths, by the first of them, that are to be one file. Raises PublishError; `finish` takes away then
    what came to no end, and goes on with what did.
    """
    with _own_folder(disk) as own:
        os.mkdir(_FRESH, 0o755, dir_fd=own)
        try:
            if not _can_be_moved(own, disk.folders.root):
                os.rmdir(_FRESH, dir_fd=own)
                return False
            with _opened(_FRESH, own) as folder:
                _Writing(disk, folder, int(at.timestamp())).write(contents, alike, told)
            durable.syncfs(own)
            os.rename(_FRESH, _READY, src_dir_fd=own, dst_dir_fd=own)
            durable.syncfs(own)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(_FRESH, dir_fd=own)
            raise
    finish(disk)
    return True


def finish(disk: Disk) -> bool:
    """Take away what came to no end, and go on with what did; whether there was a tree on its way to its place."""
    if disk.look(OWN) is None:
        return False
    with _own_folder(disk) as own:
        with suppress(FileNotFoundError):
            shutil.rmtree(_FRESH, dir_fd=own)
        if disk.look(READY) is None:
            return False
        with _opened(_READY, own) as ready:
            _move(ready, disk.folders.root)
        durable.syncfs(own)
        os.rmdir(_READY, dir_fd=own)
    disk.rest()
    return True


@contextmanager
def _own_folder(disk: Disk) -> Iterator[int]:
    """The publisher's own folder, opened."""
    try:
        own = os.dup(disk.folders.make(OWN))
        try:
            yield own
        finally:
            os.close(own)
    except OSError as error:
        raise refused(disk.root / OWN, error) from error


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _can_be_moved(own: int, root: int) -> bool:
    """Whether a folder of the publisher's own can be renamed to where the tree is to be: no mount lies between them."""
    with ExitStack() as stack:
        fresh = stack.enter_context(_opened(_FRESH, own))
        folder, name = root, _BOOT
        with suppress(FileNotFoundError):
            folder, name = stack.enter_context(_opened(_BOOT, root)), _IN_BOOT
        os.mkdir(name, 0o755, dir_fd=fresh)
        try:
            os.rename(name, name, src_dir_fd=fresh, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _ELSEWHERE:
                raise
            os.rmdir(name, dir_fd=fresh)
            return False
        os.rmdir(name, dir_fd=folder)
    return True


def _move(source: int, target: int) -> None:
    """Rename all that is in one folder into another, and what both have within it; the manifest comes last."""
    stands = frozenset(os.listdir(target))
    for name in sorted(os.listdir(source), key=lambda name: (name == _LAST, name)):
        if name in stands:
            with suppress(NotADirectoryError), _opened(name, source) as within, _opened(name, target) as there:
                _move(within, there)
                os.rmdir(name, dir_fd=source)
                continue
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


class _Writing:
    """Files that are written to a folder that nobody else knows, each once."""

    def __init__(self, disk: Disk, folder: int, mtime: int) -> None:
        self._disk, self._folder, self._mtime = disk, folder, mtime
        self._made = {""}  # folders, by their path

    def write(self, contents: Mapping[str, bytes | None], alike: Mapping[str, Collection[str]], told: Told) -> None:
        others = {path for paths in alike.values() for path in paths}
        for path, content in counted(contents.items(), told):
            if content is not None and path not in others:
                self._write(path, content)
                for other in alike.get(path, ()):
                    self._link(path, other, content)

    def _write(self, path: str, content: bytes) -> None:
        try:
            self._make(split(path)[0])
            fd = os.open(path, NEW, 0o644, dir_fd=self._folder)
            try:
                os.fchmod(fd, 0o644)  # under any umask
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.utime(fd, (self._mtime, self._mtime))
            finally:
                os.close(fd)
        except OSError as error:
            raise refused(self._disk.root / path, error) from error

    def _link(self, path: str, other: str, content: bytes) -> None:
        try:
            self._make(split(other)[0])
            os.link(path, other, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINK:
                raise refused(self._disk.root / other, error) from error
            self._write(other, content)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            self._make(split(folder)[0])
            os.mkdir(folder, 0o755, dir_fd=self._folder)
            os.chmod(folder, 0o755, dir_fd=self._folder)  # noqa: S103 - who serves it may be anybody; under any umask
            self._made.add(folder)
