"""Repair a mirror: replace the files that differ from the published tree."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gitboot.errors import PublishError, UsageError
from gitboot.mirror_program import SIGNED, TIMESTAMP, FileVersion
from gitboot.phrases import did_you_mean
from gitboot.publish.disk import Disk
from gitboot.publish.manifest import MANIFEST, digest_of
from gitboot.publish.modes import TreeModes
from gitboot.publish.tree import read_state
from gitboot.render.paths import BOOT, is_content, kind_of, publication_stage
from gitboot.targets.file_store import Expected, FileConflict, StoredFile, TargetFile
from gitboot.targets.mirror import FolderMirror, expected
from gitboot.targets.mirror_comparison import ListedFile, ListReader
from gitboot.targets.mirrored import MirrorFinding

if TYPE_CHECKING:
    from gitboot.targets.bucket import Bucket
    from gitboot.targets.rsync import RsyncStore

ALL: Final = "all"
_WORLD: Final = 0o666
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)  # of a file whose time no mirror has


class RepairAction(StrEnum):
    REPLACED = "Replaced"
    REMOVED = "Removed"


class Repair(NamedTuple):
    """What was done with a path of a mirror."""

    path: str
    action: RepairAction


class RightFile(NamedTuple):
    """What a path of a mirror has to be."""

    content: bytes
    modified: datetime  # of its version


FoundFile = tuple[bytes, str | None]  # a file, and its version, if the store has versions
TakeFound = Callable[[str, FoundFile | None], None]  # a path below boot/, and its file; None: absent


class MirrorStore(Protocol):
    """The files of a mirror, by path below boot/, where they can be written.

    Every method raises `PublishError`, and `HostUnreachable`.
    """

    def names(self) -> Collection[str]:
        """Return the paths of all files."""

    def read_each(self, paths: Collection[str], take: TakeFound, /, *, parallel: int) -> None:
        """Read files, and call ``take`` with each, perhaps in several threads at a time."""

    def replace_each(self, files: Mapping[str, tuple[RightFile, str | None]], /) -> None:
        """Write whole files, each in the place of the file with this version, or of whatever is there if None."""

    def remove_each(self, paths: Collection[str], /) -> None:
        """Remove files."""


class SingleFileStore(ABC):
    """A store that reads and writes each file by itself."""

    @abstractmethod
    def read(self, path: str) -> FoundFile | None:
        """Return a file, and what `replace` must find there; None if it is absent."""

    @abstractmethod
    def replace(self, path: str, file: RightFile, found: str | None) -> None:
        """Write a whole file in the place of what `read` found. Raises `PublishError`."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file."""

    def read_each(self, paths: Collection[str], take: TakeFound, *, parallel: int) -> None:
        with ThreadPoolExecutor(parallel, thread_name_prefix="repair") as pool:
            list(pool.map(lambda path: take(path, self.read(path)), paths))

    def replace_each(self, files: Mapping[str, tuple[RightFile, str | None]]) -> None:
        for path, (file, found) in files.items():
            self.replace(path, file, found)

    def remove_each(self, paths: Collection[str]) -> None:
        for path in paths:
            self.remove(path)


class FolderStore(SingleFileStore):
    """A mirror in a folder of this machine. Files have the permissions and the group of the folder."""

    def __init__(self, folder: Path) -> None:
        found = folder.stat()
        mode = S_IMODE(found.st_mode) & 0o777
        modes = TreeModes(folder=mode, file=mode & _WORLD, group=found.st_gid)
        self._folder, self._disk = folder, Disk(folder, modes)

    def close(self) -> None:
        self._disk.close()

    def names(self) -> Collection[str]:
        return FolderMirror(self._folder).names()

    def read(self, path: str) -> FoundFile | None:
        """Return a file. A symlink is none: `replace` puts a file in its place."""
        at = self._folder / path
        try:
            return None if at.is_symlink() else (at.read_bytes(), None)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PublishError(f"{at} cannot be read: {error.strerror}") from error

    def replace(self, path: str, file: RightFile, _: str | None) -> None:
        self._disk.stage(path, file.content, file.modified)
        self._disk.sync()
        self._disk.place(path)
        at = file.modified.timestamp()
        os.utime(self._folder / path, (at, at), follow_symlinks=False)
        self._disk.sync()

    def remove(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync()


class BucketStore(SingleFileStore):
    """A target in a bucket, which an instance may write to at the same time."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def names(self) -> Collection[str]:
        return [path.removeprefix(BOOT) for path in self._bucket.names(BOOT)]

    def read(self, path: str) -> FoundFile | None:
        found = self._bucket.get(BOOT + path)
        return (found.content, found.version) if found is not None else None

    def replace(self, path: str, file: RightFile, found: str | None) -> None:
        try:
            if found is None:
                self._bucket.create(BOOT + path, file.content)
            else:
                self._bucket.replace(BOOT + path, file.content, found)
        except FileConflict:
            raise PublishError(f"{path}: an instance has replaced it meanwhile: run the command again") from None

    def remove(self, path: str) -> None:
        self._bucket.remove([BOOT + path])


class HostStore:
    """A target on another host that rsync reaches. An instance may write to it at the same time."""

    def __init__(self, store: RsyncStore) -> None:
        self._store = store

    def names(self) -> Collection[str]:
        return [path.removeprefix(BOOT) for path in self._store.names(BOOT)]

    def read_each(self, paths: Collection[str], take: TakeFound, *, parallel: int) -> None:  # noqa: ARG002 - one rsync
        def take_file(path: str, found: StoredFile | None) -> None:
            take(path.removeprefix(BOOT), (found.content, None) if found is not None else None)

        self._store.get_each([BOOT + path for path in paths], take_file)

    def replace_each(self, files: Mapping[str, tuple[RightFile, str | None]]) -> None:
        """Write files, and compare their checksums at the other host."""
        right = {BOOT + path: file for path, (file, _) in files.items()}

        def read(path: str) -> TargetFile:
            return TargetFile(right[path].content, int(right[path].modified.timestamp()))

        self._store.place(sorted(right), read, ())
        sent = {path: Expected(digest_of(file.content), len(file.content)) for path, file in right.items()}
        if wrong := self._store.differing(sent):
            raise PublishError(f"{wrong[0]} was written, and is read as something else: run the command again")

    def remove_each(self, paths: Collection[str]) -> None:
        self._store.remove(BOOT + path for path in paths)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport:
    """What a repair did, and what it left."""

    files: int  # that were compared
    repairs: tuple[Repair, ...]  # sorted by path
    left: tuple[str, ...]  # paths that are not published and that no machine asks for


def repair(
    store: MirrorStore,
    root: Path,
    paths: Collection[str],
    now: datetime,
    *,
    as_target: bool = False,
    parallel: int,
    begun: Callable[[int], None],
    done: Callable[[int], None],
) -> RepairReport:
    """Replace the files of a mirror that are not as the tree at ``root`` has them at ``now``.

    ``paths`` are below boot/; `ALL` stands for all. A target has no one-time boots.

    Content is written first, then boot scripts, then the first and unknown scripts, then the signed list. Files that
    are not published go last, if machines may ask for them or if ``paths`` names them. Raises `PublishError` and
    `UsageError`.
    """
    published = _head(root)
    files = _published(root, now, parallel)
    if as_target:
        files |= _withheld(root)
    names = frozenset(store.names())
    chosen = files.keys() | names if ALL in paths else _known(paths, files.keys() | names)
    wanted = sorted(files.keys() & chosen, key=_order)
    begun(len(wanted))
    different: dict[str, str | None] = {}  # by path: the version that is to be replaced

    def compare(path: str, found: FoundFile | None) -> None:
        digest = digest_of(found[0]) if found is not None else None
        if digest not in {each and each.sha256 for each in files[path].right}:
            different[path] = found[1] if found is not None else None
        done(1)

    store.read_each(wanted, compare, parallel=parallel)
    gone = [path for path in sorted(names & chosen) if path not in files and _may_be_asked_for(path, paths)]
    repairs: list[Repair] = []
    for _, stage in groupby((path for path in wanted if path in different), key=_stage):
        right = {path: _right_file(root, files[path]) for path in stage}
        gone += [path for path, file in right.items() if file is None]
        placed = {path: (file, different[path]) for path, file in right.items() if file is not None}
        store.replace_each(placed)
        repairs += [Repair(path, RepairAction.REPLACED) for path in placed]
    store.remove_each(gone)
    repairs += [Repair(path, RepairAction.REMOVED) for path in gone]
    if repairs and _head(root) != published:
        raise PublishError(f"{root} was published to meanwhile: run the command again")
    extra = (path for path in names & chosen if path not in files and path not in gone)
    left = tuple(sorted(path for path in extra if not path.startswith("assets/") and not is_content(BOOT + path)))
    return RepairReport(files=len(wanted), repairs=tuple(sorted(repairs)), left=left)


def _known(paths: Iterable[str], known: Collection[str]) -> frozenset[str]:
    found = frozenset(path.removeprefix("/") for path in paths)
    if unknown := sorted(found - set(known)):
        hint = did_you_mean(unknown[0], known, f"{ALL} stands for all paths")
        raise UsageError(f"--repair {unknown[0]}: neither the tree nor the mirror has this path; {hint}")
    return found


def _may_be_asked_for(path: str, paths: Collection[str]) -> bool:
    """Return whether a file that is not published goes."""
    if path in {each.removeprefix("/") for each in paths} or path.startswith(SIGNED):
        return True
    return kind_of(BOOT + path) is not None and not is_content(BOOT + path)


def _order(path: str) -> tuple[int, int, str]:
    """Return the place of a path in a repair."""
    return *_stage(path), path


def _stage(path: str) -> tuple[int, int]:
    """Return the rank of files that may be written in any order: the list comes last, ``timestamp.json`` at its end."""
    if path.startswith(SIGNED):
        return 1, int(path == f"{SIGNED}{TIMESTAMP}")
    return 0, publication_stage(BOOT + path)


def _head(root: Path) -> bytes | None:
    """Return the tree's manifest, which each publication changes; None if it is absent."""
    try:
        return (root / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None


def _published(root: Path, now: datetime, parallel: int) -> dict[str, ListedFile]:
    """Return what a mirror of the tree has to have at ``now``, by path below boot/."""
    boot = FolderMirror(root / BOOT)
    if boot.get(f"{SIGNED}{TIMESTAMP}", 0) is None:
        return {
            path: ListedFile(path, (FileVersion(None, file.sha256, file.size),), ())
            for path, file in expected(root).items()
        }
    found: list[MirrorFinding] = []
    with ThreadPoolExecutor(parallel, thread_name_prefix="list") as pool:
        reader = ListReader(boot, (), pool)
        signed = reader.read(found)
        files = dict(reader.files(signed, now, found)[0]) if signed is not None else {}
    if found:
        raise PublishError(
            f"{root / BOOT / found[0].path}: {found[0].message} (wait until gitboot has published again)"
        )
    for name in boot.names():
        if name.startswith(SIGNED):
            content = (root / BOOT / name).read_bytes()
            files[name] = ListedFile(name, (FileVersion(None, digest_of(content), len(content)),), ())
    return files


def _withheld(root: Path) -> dict[str, ListedFile]:
    """Return what a target has in place of one-time boots that the tree itself has, by path below boot/."""
    files = expected(root, as_target=True)
    found = {path: ListedFile(path, (None,), ()) for path in expected(root).keys() - files.keys()}
    for path, file in files.items():
        if file.instead is not None:
            right = (FileVersion(None, file.sha256, file.size),)
            found[path] = ListedFile(path, right, (), contents={file.sha256: file.instead.decode()})
    return found


def _right_file(root: Path, file: ListedFile) -> RightFile | None:
    """Return what a path has to be; None: it has to be absent. Raises `PublishError`."""
    texts: Mapping[str, str] | None = None
    for version in file.right:
        if version is None or version.sha256 is None:
            return None
        try:
            path = root / BOOT / file.path
            content, modified = path.read_bytes(), path.stat().st_mtime
        except OSError:
            content, modified = b"", 0.0
        if digest_of(content) == version.sha256:
            return RightFile(content, datetime.fromtimestamp(int(modified), UTC))
        if texts is None:
            state = read_state(root, file.server) if file.server is not None else None
            texts = {**file.contents, **(state.contents if state is not None else {})}
        if version.sha256 in texts:
            return RightFile(texts[version.sha256].encode(), version.since or _EPOCH)
    raise PublishError(
        f"{root / BOOT / file.path}: the tree does not have the version of now (let gitboot publish again)"
    )
