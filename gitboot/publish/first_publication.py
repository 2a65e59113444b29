"""First publication: fill an empty output directory."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from math import isqrt
from pathlib import Path
from random import Random
from stat import S_IMODE
from typing import Final, NamedTuple

from msgspec import Struct

from gitboot.errors import PublishError
from gitboot.files import NEW_FILE
from gitboot.jsonio import Digest
from gitboot.publish import durable_files
from gitboot.publish.durable_files import (
    NO_LINK_ERRORS,
    Disk,
    open_descriptor,
    split,
    to_publish_error,
    write_with_mtime,
)
from gitboot.publish.manifest import MANIFEST, Head, Stamp
from gitboot.publish.signed_list import Listings, find_listing
from gitboot.publish.tree_changes import SHARED, Publication, amend_manifest
from gitboot.publish.tree_reader import OWN, Tree, check_path
from gitboot.render.endpoint_files import ListedFile, build_index, parse_outline, render_shards, state_path
from gitboot.render.paths import Files, is_content, is_immutable, move_order
from gitboot.status.work_progress import ReportProgress, iterate_with_progress
from gitboot.text import format_count

_FRESH, _READY = "fresh", "ready"
FRESH: Final = f"{OWN}/{_FRESH}"
READY: Final = f"{OWN}/{_READY}"
_BOOT, _IN_BOOT = "boot", "o"
_LAST: Final = split(MANIFEST)[1]  # a publication is complete only after this file is in place
# the source and the destination are on different mounts
_OTHER_MOUNT_ERRORS: Final = frozenset({errno.EXDEV, errno.EBUSY})
_MIN_SAMPLE: Final = 64  # servers in the sample from which gitboot estimates the files of all servers
_CERTAIN_SHARE: Final = 0.9  # a publication needs at least this share of the estimated space
_MIB: Final = 2**20


class FilledTree(NamedTuple):
    """The result of writing the files of a new tree."""

    head: Head
    content: Mapping[str, tuple[str, ...]]  # the content paths to which boot scripts refer, by server
    files_written: int
    listings: Listings


def fill_tree(
    disk: Disk, tree: Tree, publication: Publication, stamp: Stamp, at: datetime, report_progress: ReportProgress
) -> FilledTree | None:
    """Write a first publication to an empty tree.

    Return None if gitboot cannot rename the files to their final paths. Raises PublishError if the files cannot be
    written.
    """
    check_room(disk.root, _estimate_files(publication))
    written = 0
    digests: dict[str, str | None] = {}
    identities: dict[str, tuple[str, ...]] = {}
    listings: dict[str, ListedFile | None] = {}
    content = {SHARED: tuple(filter(is_content, publication.changed_shared_files))}
    with create_tree(disk, at) as fresh:
        if fresh is None:
            return None
        # The progress has one step for each server, and one step to move all files to their final paths.
        for server, files in iterate_with_progress(
            publication.servers.items(), lambda done, total: report_progress(done, total + 1)
        ):
            if files is not None:
                state = files[state_path(server)]
                digests[server], identities[server] = state.sha256, parse_outline(state.content).identities
                written += fresh.add(files)
                content[server] = tuple(filter(is_content, files))
                listings[server] = find_listing(files, server)
        written += fresh.add(publication.changed_shared_files)
        head, manifest = amend_manifest(tree, stamp, digests, publication.merge_shared({}) or None)
        fresh.write({**render_shards(build_index(identities)), **manifest})
    return FilledTree(head, content, written, listings)


# A new tree that readers cannot see yet


@contextmanager
def create_tree(disk: Disk, at: datetime) -> Iterator[NewTree | None]:
    """Yield a new tree to fill.

    When the block ends without an error, move the tree to its final path. Yield None if the files cannot be renamed.
    Raises PublishError if the tree cannot be written. After a crash, `finish_first_publication` removes an unfinished
    tree, or finishes moving a complete tree.
    """
    with _own_folder(disk) as own:
        os.mkdir(_FRESH, disk.modes.folder, dir_fd=own)
        try:
            if not _can_be_moved(own, disk.folders.root):
                yield None
                return
            with _open_folder(_FRESH, own) as folder:
                yield NewTree(disk, folder, int(at.timestamp()))
            durable_files.syncfs(own)
            os.rename(_FRESH, _READY, src_dir_fd=own, dst_dir_fd=own)
            durable_files.syncfs(own)
        finally:  # after a success, the folder no longer exists
            with suppress(OSError):
                shutil.rmtree(_FRESH, dir_fd=own)
    finish_first_publication(disk)


def finish_first_publication(disk: Disk) -> bool:
    """Clean up after a crash: remove an unfinished new tree, or finish moving a complete tree.

    Return whether there was a complete tree to move.
    """
    if disk.lstat(OWN) is None:
        return False
    with _own_folder(disk) as own:
        with suppress(FileNotFoundError):
            shutil.rmtree(_FRESH, dir_fd=own)
        if disk.lstat(READY) is None:
            return False
        with _open_folder(_READY, own) as ready:
            _move(ready, disk.folders.root, "")
        durable_files.syncfs(own)
        os.rmdir(_READY, dir_fd=own)
    disk.release_folders()
    return True


@contextmanager
def _own_folder(disk: Disk) -> Iterator[int]:
    """Yield a file descriptor for gitboot's private folder in the tree.

    Convert an OSError in the block to a PublishError.
    """
    try:
        own = os.dup(disk.folders.make(OWN))
        try:
            yield own
        finally:
            os.close(own)
    except OSError as error:
        raise to_publish_error(disk.root / OWN, error) from error


def _open_folder(name: str, folder: int) -> AbstractContextManager[int]:
    return open_descriptor(name, os.O_RDONLY | os.O_DIRECTORY, folder=folder)


def _can_be_moved(own: int, root: int) -> bool:
    """Return whether folders can be renamed from gitboot's private folder into the tree.

    A mount below the tree may prevent this.
    """
    with ExitStack() as stack:
        fresh = stack.enter_context(_open_folder(_FRESH, own))
        folder, name = root, _BOOT
        with suppress(FileNotFoundError):
            folder, name = stack.enter_context(_open_folder(_BOOT, root)), _IN_BOOT
        os.mkdir(name, 0o700, dir_fd=fresh)
        try:
            os.rename(name, name, src_dir_fd=fresh, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _OTHER_MOUNT_ERRORS:
                raise
            os.rmdir(name, dir_fd=fresh)
            return False
        os.rmdir(name, dir_fd=folder)
    return True


def _move(source: int, target: int, folder: str) -> None:
    """Move everything in one folder into another, merging folders that exist in both.

    ``folder`` is the path of both folders in the tree. The path is either empty or ends with a slash. The function
    moves content first, then boot scripts, then first scripts, and the manifest last. Every publication uses this
    order.
    """
    stands = frozenset(os.listdir(target))
    for name in sorted(os.listdir(source), key=lambda name: (name == _LAST, move_order(folder + name), name)):
        if name in stands:
            with (
                suppress(NotADirectoryError),
                _open_folder(name, source) as within,
                _open_folder(name, target) as there,
            ):
                _move(within, there, f"{folder}{name}/")
                os.rmdir(name, dir_fd=source)
                continue
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


class NewTree:
    """Writes a new tree to a folder that no other process uses. It writes each file once."""

    def __init__(self, disk: Disk, folder: int, mtime: int) -> None:
        self._disk, self._folder, self._mtime, self._modes = disk, folder, mtime, disk.modes
        self._made = {""}  # paths of the folders that exist
        # Whether the system gives new files the wrong permissions or the wrong group. None: no file was written yet.
        self._is_masked: bool | None = None

    def add(self, files: Files) -> int:
        """Write the files of one server, or the files that do not belong to any server. Return the number of new paths.

        Paths with identical content become hard links to one file. Only content paths may already exist, because
        several servers can refer to the same content. Raises PublishError.
        """
        alike: dict[Digest, list[str]] = {}
        for path, file in files.items():
            check_path(path)
            alike.setdefault(file.sha256, []).append(path)
        written = 0
        for paths in alike.values():
            first, content = "", files[paths[0]].content
            for path in sorted(paths):
                try:
                    if first:
                        self._link(first, path, content)
                    else:
                        self._write(path, content)
                        first = path
                    written += 1
                except OSError as error:
                    if not isinstance(error, FileExistsError) or not is_content(path):
                        raise to_publish_error(self._disk.root / path, error) from error
        return written

    def write(self, contents: Mapping[str, bytes | None]) -> None:
        """Write gitboot's own files.

        ``contents`` maps each path to its content. The method skips paths whose content is None. Raises PublishError if
        a file cannot be written.
        """
        for path, content in contents.items():
            if content is not None:
                try:
                    self._write(path, content)
                except OSError as error:
                    raise to_publish_error(self._disk.root / path, error) from error

    def _write(self, path: str, content: bytes) -> None:
        self._make(split(path)[0])
        fd = os.open(path, NEW_FILE, self._modes.file, dir_fd=self._folder)
        try:
            if self._is_masked is None:
                found = os.fstat(fd)
                self._is_masked = S_IMODE(found.st_mode) != self._modes.file or (
                    self._modes.group not in (None, found.st_gid)
                )
            if self._is_masked:
                self._modes.apply_to(fd, self._modes.file)
            write_with_mtime(fd, content, self._mtime)
        finally:
            os.close(fd)

    def _link(self, path: str, other: str, content: bytes) -> None:
        self._make(split(other)[0])
        try:
            os.link(path, other, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINK_ERRORS:
                raise
            self._write(other, content)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            self._make(split(folder)[0])
            os.mkdir(folder, self._modes.folder, dir_fd=self._folder)
            with _open_folder(folder, self._folder) as fd:
                self._modes.apply_to(fd, self._modes.folder)
            self._made.add(folder)


# Free space for a new tree


class _Need(Struct):
    """The number of inodes and bytes that files need on one file system.

    The numbers may be estimates that are based on a sample of the servers.
    """

    inodes: float = 0
    size: float = 0  # bytes
    is_estimate: bool = False


def check_room(root: Path, files: Iterable[tuple[str, int, float]]) -> None:
    """Raise `PublishError` if a file system has too few inodes or too little disk space for these files and folders.

    Each item in ``files`` contains a path, the size of the file in bytes, and the number of files that the item
    represents. The function counts all hard links to the same file as one file. The function does not count the
    manifest and the index. A file system without a fixed number of inodes, such as Btrfs, never has too few inodes.
    """
    needs: dict[Path, _Need] = {}
    places = {top: root / top if (root / top).is_mount() else root for top in ("boot", "ops")}
    for path, size, times in files:
        place = places[path.partition("/")[0]]
        need = needs.setdefault(place, _Need())
        need.inodes += times
        need.size += times * size
        need.is_estimate |= times != 1
    is_root = os.geteuid() == 0  # file systems reserve some space for root
    for place, need in needs.items():
        found = os.statvfs(place)
        blocks, free = (found.f_bfree, found.f_ffree) if is_root else (found.f_bavail, found.f_favail)
        free_bytes = blocks * found.f_frsize
        surely, about = (_CERTAIN_SHARE, "about ") if need.is_estimate else (1, "")
        if found.f_files and need.inodes * surely > free:
            raise PublishError(
                f"{place}: publishing needs {about}{format_count(round(need.inodes), 'inode')}, "
                f"but the file system has only {free:,} free "
                "(use a file system with more inodes, for example made with mkfs.ext4 -N, or mount -o nr_inodes for a "
                "tmpfs)"
            )
        if need.size * surely > free_bytes:
            raise PublishError(
                f"{place}: publishing needs {about}{need.size / _MIB:,.1f} MiB, but the file system has only "
                f"{free_bytes / _MIB:,.1f} MiB free (free some space)"
            )


def _estimate_files(publication: Publication) -> Iterator[tuple[str, int, float]]:
    """Yield the files and folders of a publication for `check_room`.

    If there are many servers, the function measures the files of a sample of servers and extrapolates.
    """
    names = sorted(publication.servers)
    number = min(max(isqrt(2 * len(names)) + 1, _MIN_SAMPLE), len(names))
    had, sizes = Counter[str](), dict[str, int]()
    for files in map(publication.servers.__getitem__, Random(0).sample(names, number)):  # noqa: S311 - guards nothing
        once = _measure_distinct_files(files or {})
        had.update(once.keys())
        sizes.update(once)
    own = len(names) / number if number else 1
    # Content that only one server of the sample uses may belong to this server alone or to a group of servers. Chao's
    # estimator (1984) estimates the number of distinct contents from how many occur once and twice in the sample.
    found = Counter(times for path, times in had.items() if is_immutable(path))
    of_some = min(own, 1 + found[1] / (2 * max(found[2], 1)))
    for path, size in sizes.items():
        yield path, size, (of_some if is_immutable(path) else own) if had[path] == 1 else 1
    yield from (
        (path, size, 1)
        for path, size in _measure_distinct_files(publication.changed_shared_files).items()
        if path not in sizes
    )


def _measure_distinct_files(files: Files) -> dict[str, int]:
    """Return the sizes of files and folders by path. Identical content counts once, and each folder has the size 0."""
    firsts = {file.sha256: path for path, file in sorted(files.items(), reverse=True)}
    found = {path: len(files[path].content) for path in firsts.values()}
    for path in files:
        while path := split(path)[0]:
            found[path] = 0
    return found
