"""A tree where there was none: written where nobody looks for it, then brought to its place as a whole.

What is written to ``FRESH`` is nobody's, and goes where its publication came to no end. Once the disk has all of it,
it is renamed to ``READY``; from then on it is the tree, and whoever publishes next brings what is still there to its
place. So no file needs a temporary name, and nothing is compared with what stands.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from stat import S_IMODE
from typing import Final

from gitboot.model.scalars import Digest
from gitboot.publish import durable
from gitboot.publish.disk import NEW, NO_LINK, Disk
from gitboot.publish.durable import refused, split
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.tree import OWN, check_path
from gitboot.render.paths import is_content, move_order
from gitboot.render.tree import Files

FRESH: Final = f"{OWN}/fresh"
READY: Final = f"{OWN}/ready"
_FRESH, _READY = FRESH.removeprefix(f"{OWN}/"), READY.removeprefix(f"{OWN}/")

_BOOT, _IN_BOOT = "boot", "o"
_LAST: Final = split(MANIFEST)[1]  # nothing counts as published until it stands
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_ELSEWHERE: Final = frozenset({errno.EXDEV, errno.EBUSY})  # what is renamed to, or its place, is a mount point's


@contextmanager
def begun(disk: Disk, at: datetime) -> Iterator[Fresh | None]:
    """A tree to be filled where there is none: what it is given stands at the end, all of it or, after an error, none.

    None where that cannot be done so. Raises PublishError; `finish` takes away then what came to no end, and goes on
    with what did.
    """
    with _own_folder(disk) as own:
        with _refusing(disk):
            os.mkdir(_FRESH, disk.modes.folder, dir_fd=own)
        try:
            with _refusing(disk):
                can_be_moved = _can_be_moved(own, disk.folders.root)
            if not can_be_moved:
                yield None
                return
            with ExitStack() as stack:
                with _refusing(disk):
                    folder = stack.enter_context(_opened(_FRESH, own))
                yield Fresh(disk, folder, int(at.timestamp()))
            with _refusing(disk):
                durable.syncfs(own)
                os.rename(_FRESH, _READY, src_dir_fd=own, dst_dir_fd=own)
                durable.syncfs(own)
        finally:  # it is there no more where all went well
            with suppress(OSError):
                shutil.rmtree(_FRESH, dir_fd=own)
    finish(disk)


def finish(disk: Disk) -> bool:
    """Take away what came to no end, and go on with what did; whether there was a tree on its way to its place."""
    if disk.look(OWN) is None:
        return False
    with _own_folder(disk) as own, _refusing(disk):
        with suppress(FileNotFoundError):
            shutil.rmtree(_FRESH, dir_fd=own)
        if disk.look(READY) is None:
            return False
        with _opened(_READY, own) as ready:
            _move(ready, disk.folders.root, "")
        durable.syncfs(own)
        os.rmdir(_READY, dir_fd=own)
    disk.rest()
    return True


@contextmanager
def _own_folder(disk: Disk) -> Iterator[int]:
    """The publisher's own folder, opened."""
    with _refusing(disk):
        own = os.dup(disk.folders.make(OWN))
    try:
        yield own
    finally:
        os.close(own)


@contextmanager
def _refusing(disk: Disk) -> Iterator[None]:
    """What the system refuses in the publisher's own folder is a PublishError."""
    try:
        yield
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
        os.mkdir(name, 0o700, dir_fd=fresh)
        try:
            os.rename(name, name, src_dir_fd=fresh, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _ELSEWHERE:
                raise
            os.rmdir(name, dir_fd=fresh)
            return False
        os.rmdir(name, dir_fd=folder)
    return True


def _move(source: int, target: int, folder: str) -> None:
    """Rename all that is in one folder into another, and what both have within it.

    ``folder`` is their path in the tree, with a slash at its end. Content comes first, the first scripts and then the
    manifest last, as in every publication.
    """
    stands = frozenset(os.listdir(target))
    for name in sorted(os.listdir(source), key=lambda name: (name == _LAST, move_order(folder + name), name)):
        if name in stands:
            with suppress(NotADirectoryError), _opened(name, source) as within, _opened(name, target) as there:
                _move(within, there, f"{folder}{name}/")
                os.rmdir(name, dir_fd=source)
                continue
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


class Fresh:
    """A folder that nobody else knows, in which each file is written once."""

    def __init__(self, disk: Disk, folder: int, mtime: int) -> None:
        self._disk, self._folder, self._mtime, self._modes = disk, folder, mtime, disk.modes
        self._made = {""}  # folders, by their path
        self._is_masked = True  # whether files are made with other permissions, or another group, than are asked for

    def add(self, files: Files) -> int:
        """Write one server's files, or those of none; return at how many paths there was nothing yet.

        Those with the same content are one file. Only what entries name may be there already: it is of several servers
        then.
        """
        alike: dict[Digest, list[str]] = {}
        for path, file in files.items():
            check_path(path)
            alike.setdefault(file.sha256, []).append(path)
        return sum(self._add(sorted(paths), files[paths[0]].content) for paths in alike.values())

    def write(self, contents: Mapping[str, bytes | None]) -> None:
        """Write files of the publisher's own; None: there is none."""
        for path, content in contents.items():
            if content is not None:
                self._write(path, content)

    def _add(self, paths: list[str], content: bytes) -> int:
        """Write a file that has these paths; return at how many of them there was nothing yet."""
        first, written = "", 0
        for path in paths:
            try:
                if first:
                    self._link(first, path, content)
                else:
                    self._write(path, content)
                    first = path
                written += 1
            except FileExistsError as error:
                if not is_content(path):
                    raise refused(self._disk.root / path, error) from error
        return written

    def _write(self, path: str, content: bytes) -> None:
        try:
            self._make(split(path)[0])
            fd = os.open(path, NEW, self._modes.file, dir_fd=self._folder)
            try:
                if self._is_masked:
                    found = os.fstat(fd)
                    is_in_group = self._modes.group in (None, found.st_gid)
                    self._is_masked = S_IMODE(found.st_mode) != self._modes.file or not is_in_group
                    self._modes.give_file(fd)
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.utime(fd, (self._mtime, self._mtime))
            finally:
                os.close(fd)
        except FileExistsError:
            raise
        except OSError as error:
            raise refused(self._disk.root / path, error) from error

    def _link(self, path: str, other: str, content: bytes) -> None:
        try:
            self._make(split(other)[0])
            os.link(path, other, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in NO_LINK:
                raise refused(self._disk.root / other, error) from error
            self._write(other, content)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            self._make(split(folder)[0])
            os.mkdir(folder, self._modes.folder, dir_fd=self._folder)
            with _opened(folder, self._folder) as fd:
                self._modes.give_folder(fd)
            self._made.add(folder)
