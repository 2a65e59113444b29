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
from stat import S_IMODE, S_ISDIR
from typing import Final, NamedTuple

from msgspec import Struct

from gitboot.errors import PublishError
from gitboot.files import NEW_FILE
from gitboot.jsonio import Digest
from gitboot.publish import durable_files
from gitboot.publish.durable_files import (
    NO_LINK_ERRORS,
    DurableDirectory,
    open_descriptor,
    split_path,
    to_publish_error,
    write_with_mtime,
)
from gitboot.publish.manifest import MANIFEST, Head, TreeOrigin
from gitboot.publish.signed_list import Listings, find_listing
from gitboot.publish.tree_changes import SHARED, Publication, amend_manifest
from gitboot.publish.tree_reader import PRIVATE_FOLDER, Tree, check_path
from gitboot.render.endpoint_files import ListedFile, build_index, parse_outline, render_shards, state_path
from gitboot.render.paths import Files, find_move_order, is_content, is_immutable
from gitboot.status.work_progress import ReportProgress, iterate_with_progress
from gitboot.text import format_count

# Folders in gitboot's private folder: a new tree that is not complete, and a complete one to move to its final path
_FRESH_NAME, _READY_NAME = "fresh", "ready"
FRESH: Final = f"{PRIVATE_FOLDER}/{_FRESH_NAME}"
READY: Final = f"{PRIVATE_FOLDER}/{_READY_NAME}"
_MANIFEST_NAME: Final = split_path(MANIFEST)[1]  # a publication is complete only after this file is in place
_OTHER_MOUNT_ERRORS: Final = frozenset({errno.EXDEV, errno.EBUSY})  # the source and the destination are on two mounts
_CERTAIN_SHARE: Final = 0.9  # a publication needs at least this share of the estimated space
_MIN_SAMPLE: Final = 64  # servers in the sample from which gitboot estimates the files of all servers
_MIB: Final = 2**20


class FilledTree(NamedTuple):
    """The result of writing the files of a new tree."""

    head: Head
    content: Mapping[str, tuple[str, ...]]  # the content paths to which boot scripts refer, by server
    files_written: int
    listings: Listings


def fill_tree(
    disk: DurableDirectory,
    tree: Tree,
    publication: Publication,
    origin: TreeOrigin,
    at: datetime,
    report_progress: ReportProgress,
) -> FilledTree | None:
    """Write a first publication to an empty tree.

    Return None if gitboot cannot rename the files to their final paths. Raises PublishError if the files cannot be
    written.
    """
    check_free_space(disk.root, _estimate_files(publication))
    if not _can_move_folders(disk):
        return None
    written = 0
    digests: dict[str, str | None] = {}
    identities: dict[str, tuple[str, ...]] = {}
    listings: dict[str, ListedFile | None] = {}
    content = {SHARED: tuple(filter(is_content, publication.changed_shared_files))}
    with create_tree(disk, at) as new_tree:
        # The progress has one step for each server, and one step to move all files to their final paths.
        for server, files in iterate_with_progress(
            publication.servers.items(), lambda done, total: report_progress(done, total + 1)
        ):
            if files is not None:
                state = files[state_path(server)]
                digests[server] = state.sha256
                identities[server] = parse_outline(state.content).identities
                written += new_tree.add(files)
                content[server] = tuple(filter(is_content, files))
                listings[server] = find_listing(files, server)
        written += new_tree.add(publication.changed_shared_files)
        head, manifest = amend_manifest(tree, origin, digests, publication.merge_shared({}) or None)
        new_tree.write({**render_shards(build_index(identities)), **manifest})
    return FilledTree(head, content, written, listings)


# A new tree that readers cannot see yet


@contextmanager
def create_tree(disk: DurableDirectory, at: datetime) -> Iterator[NewTree]:
    """Yield a new tree to fill, and move the tree to its final path when the block ends without an error.

    Raises PublishError if the tree cannot be written. After a crash, `finish_first_publication` removes an unfinished
    tree, or finishes moving a complete tree.
    """
    with _open_private_folder(disk) as private_folder:
        with _make_fresh_folder(disk, private_folder) as folder:
            yield NewTree(disk, folder, int(at.timestamp()))
            with _convert_errors_at(disk.root / PRIVATE_FOLDER):
                durable_files.syncfs(private_folder)
                os.rename(_FRESH_NAME, _READY_NAME, src_dir_fd=private_folder, dst_dir_fd=private_folder)
        with _convert_errors_at(disk.root / PRIVATE_FOLDER):
            durable_files.syncfs(private_folder)
    finish_first_publication(disk)


def finish_first_publication(disk: DurableDirectory) -> bool:
    """Clean up after a crash: remove an unfinished new tree, or finish moving a complete tree.

    Return whether there was a complete tree to move.
    """
    if disk.lstat(PRIVATE_FOLDER) is None:
        return False
    with _open_private_folder(disk) as private_folder, _convert_errors_at(disk.root / PRIVATE_FOLDER):
        with suppress(FileNotFoundError):
            shutil.rmtree(_FRESH_NAME, dir_fd=private_folder)
        if disk.lstat(READY) is None:
            return False
        with _open_folder(_READY_NAME, private_folder) as ready:
            _merge_folders(ready, disk.folders.root, disk.root)
        durable_files.syncfs(private_folder)
        os.rmdir(_READY_NAME, dir_fd=private_folder)
    disk.release_folders()
    return True


@contextmanager
def _open_private_folder(disk: DurableDirectory) -> Iterator[int]:
    """Yield a file descriptor for gitboot's private folder in the tree, creating the folder if needed."""
    with _convert_errors_at(disk.root / PRIVATE_FOLDER):
        private_folder = os.dup(disk.folders.make_folder(PRIVATE_FOLDER))
    try:
        yield private_folder
    finally:
        os.close(private_folder)


@contextmanager
def _make_fresh_folder(disk: DurableDirectory, private_folder: int) -> Iterator[int]:
    """Yield a file descriptor for a new folder in gitboot's private folder. Remove the folder at the end."""
    with ExitStack() as stack:
        with _convert_errors_at(disk.root / FRESH):
            os.mkdir(_FRESH_NAME, disk.modes.folder, dir_fd=private_folder)
            # after a success, `create_tree` has renamed the folder
            stack.callback(shutil.rmtree, _FRESH_NAME, ignore_errors=True, dir_fd=private_folder)
            folder = stack.enter_context(_open_folder(_FRESH_NAME, private_folder))
        yield folder


def _open_folder(name: str, folder: int) -> AbstractContextManager[int]:
    return open_descriptor(name, os.O_RDONLY | os.O_DIRECTORY, folder=folder)


@contextmanager
def _convert_errors_at(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to a `PublishError` that contains the path."""
    try:
        yield
    except OSError as error:
        raise to_publish_error(path, error) from error


def _can_move_folders(disk: DurableDirectory) -> bool:
    """Return whether folders can be renamed from gitboot's private folder into the tree.

    A mount below the tree may prevent this. Raises PublishError if a folder is not writable.
    """
    with ExitStack() as stack:
        private_folder = stack.enter_context(_open_private_folder(disk))
        new_folder = stack.enter_context(_make_fresh_folder(disk, private_folder))
        # gitboot tries to move the folder boot, or, if this folder exists, a folder into it
        folder, name, path = disk.folders.root, "boot", disk.root
        with _convert_errors_at(disk.root / "boot"), suppress(FileNotFoundError):
            folder = stack.enter_context(_open_folder("boot", folder))
            name, path = "o", disk.root / "boot"
        with _convert_errors_at(disk.root / FRESH):
            os.mkdir(name, 0o700, dir_fd=new_folder)
        with _convert_errors_at(path):
            try:
                os.rename(name, name, src_dir_fd=new_folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _OTHER_MOUNT_ERRORS:
                    raise
                return False
            os.rmdir(name, dir_fd=folder)
    return True


def _merge_folders(source: int, target: int, root: Path, folder: str = "") -> None:
    """Move everything in one folder into another, merging folders that exist in both.

    ``folder`` is the path of both folders in the tree. The path is either empty or ends with a slash. The function
    moves content first, then boot scripts, then first scripts, and the manifest last. Every publication uses this
    order. Raises PublishError if a path cannot be moved, for example because a folder would replace a file.
    """
    with _convert_errors_at(root / folder):
        existing_names, new_names = frozenset(os.listdir(target)), os.listdir(source)
    for name in sorted(new_names, key=lambda name: (name == _MANIFEST_NAME, find_move_order(folder + name), name)):
        with _convert_errors_at(root / folder / name):
            if name in existing_names and _is_folder(name, source) and _is_folder(name, target):
                with _open_folder(name, source) as source_folder, _open_folder(name, target) as target_folder:
                    _merge_folders(source_folder, target_folder, root, f"{folder}{name}/")
                os.rmdir(name, dir_fd=source)
            else:
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _is_folder(name: str, folder: int) -> bool:
    return S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


class NewTree:
    """Writes a new tree to a folder that no other process uses. It writes each file once."""

    def __init__(self, disk: DurableDirectory, folder: int, mtime: int) -> None:
        self._disk = disk
        self._modes = disk.modes
        self._folder = folder
        self._mtime = mtime
        self._created_folders = {""}  # paths of the folders that exist
        # Whether the system gives new files the wrong permissions or the wrong group. None: no file was written yet.
        self._is_masked: bool | None = None

    def add(self, files: Files) -> int:
        """Write the files of one server, or the files that do not belong to any server. Return the number of new paths.

        Paths with identical content become hard links to one file. Only content paths may already exist, because
        several servers can refer to the same content. Raises PublishError.
        """
        paths_by_digest: dict[Digest, list[str]] = {}
        for path, file in files.items():
            check_path(path)
            paths_by_digest.setdefault(file.sha256, []).append(path)
        written = 0
        for paths in paths_by_digest.values():
            first_path = None
            content = files[paths[0]].content
            for path in sorted(paths):
                try:
                    if first_path is None:
                        self._write(path, content)
                        first_path = path
                    else:
                        self._link(first_path, path, content)
                    written += 1
                except OSError as error:
                    if isinstance(error, FileExistsError) and is_content(path):
                        continue
                    raise to_publish_error(self._disk.root / path, error) from error
        return written

    def write(self, contents: Mapping[str, bytes | None]) -> None:
        """Write gitboot's own files.

        ``contents`` maps each path to its content. The method skips paths whose content is None. Raises PublishError if
        a file cannot be written.
        """
        for path, content in contents.items():
            if content is not None:
                with _convert_errors_at(self._disk.root / path):
                    self._write(path, content)

    def _write(self, path: str, content: bytes) -> None:
        self._make_folder(split_path(path)[0])
        fd = os.open(path, NEW_FILE, self._modes.file, dir_fd=self._folder)
        try:
            if self._is_masked is None:
                file_stat = os.fstat(fd)
                has_modes = S_IMODE(file_stat.st_mode) == self._modes.file
                has_group = self._modes.group in (None, file_stat.st_gid)
                self._is_masked = not (has_modes and has_group)
            if self._is_masked:
                self._modes.apply_to(fd, self._modes.file)
            write_with_mtime(fd, content, self._mtime)
        finally:
            os.close(fd)

    def _link(self, path: str, new_path: str, content: bytes) -> None:
        self._make_folder(split_path(new_path)[0])
        try:
            os.link(path, new_path, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINK_ERRORS:
                raise
            self._write(new_path, content)

    def _make_folder(self, folder: str) -> None:
        if folder not in self._created_folders:
            self._make_folder(split_path(folder)[0])
            os.mkdir(folder, self._modes.folder, dir_fd=self._folder)
            with _open_folder(folder, self._folder) as fd:
                self._modes.apply_to(fd, self._modes.folder)
            self._created_folders.add(folder)


# Free space for a new tree


class NeededFile(NamedTuple):
    """A new file or folder, or several of them that are alike."""

    path: str  # one of the paths
    size_bytes: int  # of each file; 0: a folder
    number: float = 1  # of files; an estimate if it is not 1


class _NeededSpace(Struct):
    """The number of inodes and bytes that files need on one file system."""

    inodes: float = 0
    size_bytes: float = 0
    is_estimate: bool = False


def check_free_space(root: Path, files: Iterable[NeededFile]) -> None:
    """Raise `PublishError` if a file system has too few inodes or too little disk space for these files and folders.

    A file system without a fixed number of inodes, such as Btrfs, never has too few inodes.
    """
    needs: dict[Path, _NeededSpace] = {}
    mounts = {top: root / top if (root / top).is_mount() else root for top in ("boot", "ops")}
    for file in files:
        mount = mounts[file.path.partition("/")[0]]
        need = needs.setdefault(mount, _NeededSpace())
        need.inodes += file.number
        need.size_bytes += file.number * file.size_bytes
        need.is_estimate |= file.number != 1
    is_root = os.geteuid() == 0  # file systems reserve some space for root
    for mount, need in needs.items():
        try:
            statvfs = os.statvfs(mount)
        except OSError as error:
            raise to_publish_error(mount, error) from error
        free_inodes = statvfs.f_ffree if is_root else statvfs.f_favail
        free_bytes = (statvfs.f_bfree if is_root else statvfs.f_bavail) * statvfs.f_frsize
        needed_share, qualifier = (_CERTAIN_SHARE, "about ") if need.is_estimate else (1, "")
        if statvfs.f_files and need.inodes * needed_share > free_inodes:
            raise PublishError(
                f"{mount}: publishing needs {qualifier}{format_count(round(need.inodes), 'inode')}, "
                f"but the file system has only {free_inodes:,} free "
                "(use a file system with more inodes: create it with mkfs.ext4 -N, or mount a tmpfs with -o nr_inodes)"
            )
        if need.size_bytes * needed_share > free_bytes:
            raise PublishError(
                f"{mount}: publishing needs {qualifier}{need.size_bytes / _MIB:,.1f} MiB, but the file system has only "
                f"{free_bytes / _MIB:,.1f} MiB free (free some space)"
            )


def _estimate_files(publication: Publication) -> Iterator[NeededFile]:
    """Yield the files and folders of a publication, without the manifest and the index.

    All hard links to the same file count as one file. If there are many servers, the function measures the files of a
    sample of servers and extrapolates.
    """
    names = sorted(publication.servers)
    sample_size = min(max(isqrt(2 * len(names)) + 1, _MIN_SAMPLE), len(names))
    server_counts = Counter[str]()  # by path, how many servers of the sample have the file
    sizes: dict[str, int] = {}
    for files in map(publication.servers.__getitem__, Random(0).sample(names, sample_size)):  # noqa: S311 - guards nothing
        server_sizes = _measure_distinct_files(files or {})
        server_counts.update(server_sizes.keys())
        sizes.update(server_sizes)
    scale = len(names) / sample_size if sample_size else 1
    # Content that only one server of the sample uses may belong to this server alone or to a group of servers. Chao's
    # estimator (1984) estimates the number of distinct contents from how many occur once and twice in the sample.
    frequencies = Counter(count for path, count in server_counts.items() if is_immutable(path))
    content_scale = min(scale, 1 + frequencies[1] / (2 * max(frequencies[2], 1)))
    for path, size in sizes.items():
        if server_counts[path] == 1:
            yield NeededFile(path, size, content_scale if is_immutable(path) else scale)
        else:
            yield NeededFile(path, size)
    for path, size in _measure_distinct_files(publication.changed_shared_files).items():
        if path not in sizes:
            yield NeededFile(path, size)


def _measure_distinct_files(files: Files) -> dict[str, int]:
    """Return the sizes of files and folders by path. Identical content counts once, and each folder has the size 0."""
    first_paths = {file.sha256: path for path, file in sorted(files.items(), reverse=True)}
    found = {path: len(files[path].content) for path in first_paths.values()}
    for path in files:
        folder = path
        while folder := split_path(folder)[0]:
            found[folder] = 0
    return found
