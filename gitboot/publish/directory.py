"""A directory as the target: content before what names it, then what is withdrawn, the manifest last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType

from gitboot import __version__
from gitboot.canonical import canonical
from gitboot.errors import ForeignTree, LockedByAnother, PublishError
from gitboot.publish.changes import Changes, decide, survey
from gitboot.publish.disk import Disk, is_file, make_root
from gitboot.publish.manifest import Stamp, amend, parse_listing
from gitboot.publish.tree import LOCK, PENDING, Tree, batch_path
from gitboot.render.paths import is_immutable
from gitboot.render.tree import File, Files


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What a pass did to a tree; paths are sorted."""

    written: tuple[str, ...]
    withdrawn: tuple[str, ...]  # no longer planned, and gone
    expired: tuple[str, ...]  # content that nothing has named for GRACE, and gone
    unchanged: int  # planned files that stand as they are


class Directory:
    """A directory that this process alone publishes to, from ``open`` to ``close``."""

    def __init__(self, disk: Disk, *, ledger: str, may_take_over: bool) -> None:
        self._disk = disk
        self._ledger = ledger
        self._may_take_over = may_take_over
        self._tree = Tree(disk)
        self._last: dict[str, File] | None = None  # what was published last; None: the disk has to tell
        self._owed: set[str] = set()  # what passes that failed had to look at

    @classmethod
    def open(cls, root: Path, *, ledger: str, may_take_over: bool = False) -> Directory:
        """The directory at ``root``, made where it is missing, for the instance that has this ledger.

        Raises LockedByAnother where another process publishes, PublishError where it cannot be written.
        """
        make_root(root)
        disk = Disk(root)
        try:
            if holder := disk.lock(LOCK):
                raise LockedByAnother(f"{root}: {holder} publishes there (stop it, or choose another directory)")
            disk.discard(PENDING)
            return cls(disk, ledger=ledger, may_take_over=may_take_over)
        except BaseException:
            disk.close()
            raise

    def close(self) -> None:
        self._disk.close()

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stamp(self) -> Stamp | None:
        """Of what the tree was made; None if no pass has ended here."""
        return self._tree.head.stamp if self._tree.head else None

    def dated(self, path: str, file: File, at: datetime) -> int:
        """What ``path`` is dated, in seconds since 1970, once ``file`` was published there ``at`` that instant."""
        stands = self._disk.look(path)
        if is_file(stands) and stands.st_size == len(file.content) and self._disk.read(path) == file.content:
            return int(stands.st_mtime)  # it is not written anew
        return self._disk.dated(path, at)

    def publish(self, files: Files, *, commit: str, at: datetime, changed: Collection[str] | None = None) -> Published:
        """Bring the tree to hold exactly ``files``; return what was written and withdrawn.

        The first pass compares all files with the manifest, and with the disk by existence and size; later ones
        compare them with the last. Where ``changed`` tells the only paths that may differ, each is compared with
        what lies there, and no other costs anything. Publishing the same files twice writes nothing.

        Everything is decided, and everything in the way found, before anything is written. A crash or a failure
        leaves each file whole, of one of the two versions, and all the content that an entry names; the next pass
        completes the rest. Each version of a file is dated a second or more after the one before, so that an
        access log tells them apart. Raises ForeignTree and PublishError.
        """
        self._owed.update(changed or ())
        _refuse_foreign(self._disk, self._tree, self._ledger, self._may_take_over)
        try:
            self._discard(self._tree.pending)
            if changed is None:
                self._owed |= self._differing(files)
            changes = decide(self._disk, self._tree, files, self._owed, at)
            self._carry_out(changes, files, Stamp(commit=commit, gitboot=__version__, ledger=self._ledger))
        finally:
            self._disk.rest()
        self._remember(files, all_of_them=changed is None)
        return _published(changes, files)

    def lost(self) -> tuple[str, ...]:
        """Listed files that are missing, or not of their size: paths to publish as ``changed``."""
        return tuple(
            path
            for name in self._tree.shards
            for path, text in self._tree.shard(name).items()
            if self._disk.size(path) != parse_listing(text).size
        )

    def _differing(self, files: Files) -> set[str]:
        if (last := self._last) is None:
            return survey(self._disk, self._tree, files)
        differing = {path for path, file in files.items() if (before := last.get(path)) is not file and before != file}
        return differing | (last.keys() - files.keys())

    def _remember(self, files: Files, *, all_of_them: bool) -> None:
        if all_of_them:
            self._last = dict(files)
        elif self._last is not None:
            for path in self._owed:
                if (file := files.get(path)) is None:
                    self._last.pop(path, None)
                else:
                    self._last[path] = file
        self._owed.clear()

    def _carry_out(self, changes: Changes, files: Files, stamp: Stamp) -> None:
        disk, tree = self._disk, self._tree
        shards = tree.amended(changes.listings)
        head, manifest = amend(tree.head, stamp, shards)
        if head == tree.head and changes.is_nothing and not tree.pending:
            return
        content = {path: files[path].content for path in changes.written}
        batch = _batch(tree, changes)
        tree.begin({*changes.paths, *batch, *manifest})
        try:
            self._stage({PENDING: canonical(sorted(tree.pending))}, changes.at)
            disk.sync()
            disk.place(PENDING)
            disk.sync()
            self._stage({**content, **batch, **manifest}, changes.at)
            disk.sync()
            self._place(path for path in content if is_immutable(path))
            disk.sync()
            self._place(path for path in (*content, *batch) if not is_immutable(path))
            self._remove((*changes.withdrawn, *changes.expired))
            self._remove(batch_path(since) for since in changes.batches)
            self._remove(path for path, data in manifest.items() if data is None)
            self._place(path for path, data in manifest.items() if data is not None)
            disk.sync()
            disk.remove(PENDING)
        except PublishError:
            with suppress(PublishError):
                self._discard({*tree.pending, PENDING})
            raise
        tree.settle(head, shards)
        tree.retire(changes.retired, changes.at)
        tree.forget(changes.batches)

    def _stage(self, contents: Mapping[str, bytes | None], at: datetime) -> None:
        for path, content in contents.items():
            if content is not None:
                self._disk.stage(path, content, at)

    def _place(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._disk.place(path)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._disk.remove(path)

    def _discard(self, paths: Collection[str]) -> None:
        for path in sorted(paths):
            self._disk.discard(path)


def would_change(files: Files, root: Path, *, ledger: str, at: datetime, may_take_over: bool = False) -> Published:
    """What ``publish`` would do, without doing any of it. Raises as it does."""
    if not root.exists():
        return Published(written=tuple(sorted(files)), withdrawn=(), expired=(), unchanged=0)
    with closing(Disk(root)) as disk:
        tree = Tree(disk)
        _refuse_foreign(disk, tree, ledger, may_take_over)
        return _published(decide(disk, tree, files, survey(disk, tree, files), at), files)


def _published(changes: Changes, files: Files) -> Published:
    return Published(
        written=changes.written,
        withdrawn=changes.withdrawn,
        expired=changes.expired,
        unchanged=len(files) - len(changes.written),
    )


def _refuse_foreign(disk: Disk, tree: Tree, ledger: str, may_take_over: bool) -> None:
    if tree.head and tree.head.stamp.ledger != ledger and not may_take_over:
        raise ForeignTree(
            f"{disk.root} is a tree of the ledger {tree.head.stamp.ledger}, not of {ledger} "
            "(choose another directory, or say what is installed with --records to take it over)"
        )


def _batch(tree: Tree, changes: Changes) -> dict[str, bytes]:
    """The list of what is retired now, with what was in the same second."""
    if not changes.retired:
        return {}
    before = [path for path, since in tree.retired.items() if since == changes.at]
    return {batch_path(changes.at): canonical(sorted({*changes.retired, *before}))}
