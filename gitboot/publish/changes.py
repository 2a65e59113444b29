"""What has to change in a tree so that it holds the planned files: decided before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.disk import Disk, is_file
from gitboot.publish.folders import InTheWay
from gitboot.publish.manifest import Listing, listing
from gitboot.publish.tree import Tree, is_record
from gitboot.render.paths import is_immutable
from gitboot.render.tree import File, Files

GRACE: Final = timedelta(days=7)  # how long a boot may still fetch content that nothing names any more

_SHOWN: Final = 10  # of the paths in the way


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What one pass does; paths are sorted."""

    at: datetime  # UTC, in whole seconds
    listings: Mapping[str, Listing | None]  # what the manifest says from now on; None: nothing any more
    written: tuple[str, ...]
    withdrawn: tuple[str, ...]
    retired: tuple[str, ...]  # content that leaves the manifest, and stays for GRACE
    expired: tuple[str, ...]  # content that has stayed for GRACE
    batches: tuple[datetime, ...]  # whose lists of retired content are done with

    @property
    def paths(self) -> set[str]:
        """The paths that are between two versions until the pass ends."""
        return {*self.listings, *self.written, *self.withdrawn, *self.retired, *self.expired}

    @property
    def is_nothing(self) -> bool:
        return not (self.paths or self.batches)


def survey(disk: Disk, tree: Tree, files: Files) -> set[str]:
    """The paths where plan, manifest and disk do not all agree; the disk by existence and size."""
    unlisted = set(files)
    differing = set()
    for name in tree.shards:
        for path, text in tree.shard(name).items():
            unlisted.discard(path)
            file = files.get(path)
            if file is None or listing(file) != text or disk.size(path) != len(file.content):
                differing.add(path)
    return differing | unlisted


def decide(disk: Disk, tree: Tree, files: Files, paths: Iterable[str], at: datetime) -> Changes:
    """What brings ``paths``, and what a crash left between two versions, to what ``files`` has there.

    Each is compared with what lies there by its content, so that nothing is written that stands already. Raises
    PublishError with everything that is in the way.
    """
    decision = _Decision(disk, tree, at.astimezone(UTC).replace(microsecond=0))
    for path in sorted({*paths, *tree.pending_files}):
        if (file := files.get(path)) is not None:
            decision.plan(path, file)
        elif tree.owns(path):
            decision.withdraw(path)
    decision.expire(files)
    return decision.changes()


class _Decision:
    """Changes in the making, path by path."""

    def __init__(self, disk: Disk, tree: Tree, at: datetime) -> None:
        self._disk, self._tree, self._at = disk, tree, at
        self._listings: dict[str, Listing | None] = {}
        self._written: list[str] = []
        self._withdrawn: list[str] = []
        self._retired: list[str] = []
        self._expired: list[str] = []
        self._batches: list[datetime] = []
        self._in_the_way: set[str] = set()

    def plan(self, path: str, file: File) -> None:
        top, *names = path.split("/")
        if top not in ("boot", "ops") or not names or {"", ".", ".."}.intersection(names) or is_record(path):
            raise ValueError(f"no file of a tree can be at {path}")
        if (planned := listing(file)) != self._tree.listing(path):
            self._listings[path] = planned
        try:
            stands = self._disk.look(path)
        except InTheWay as error:
            self._in_the_way.add(error.path)
            return
        if is_file(stands) and stands.st_size == len(file.content) and self._disk.read(path) == file.content:
            return
        if stands is None or (is_file(stands) and self._tree.owns(path)):
            self._written.append(path)
        else:
            self._in_the_way.add(path)

    def withdraw(self, path: str) -> None:
        is_listed = self._tree.listing(path) is not None
        if is_listed:
            self._listings[path] = None
        if not self._is_file(path):
            return
        if not is_immutable(path):
            self._withdrawn.append(path)
        elif is_listed or path not in self._tree.retired:
            self._retired.append(path)

    def expire(self, files: Files) -> None:
        """Content that is named again stays; the list that has it is done with all the same."""
        self._batches = sorted(since for since in self._tree.batches if since + GRACE <= self._at)
        if self._batches:
            self._expired = sorted(
                path
                for path, since in self._tree.retired.items()
                if since in self._batches
                and path not in files
                and self._tree.listing(path) is None
                and self._is_file(path)
            )

    def changes(self) -> Changes:
        if self._in_the_way:
            raise _obstructed(self._disk, sorted(self._in_the_way))
        return Changes(
            at=self._at,
            listings=self._listings,
            written=tuple(self._written),
            withdrawn=tuple(self._withdrawn),
            retired=tuple(self._retired),
            expired=tuple(self._expired),
            batches=tuple(self._batches),
        )

    def _is_file(self, path: str) -> bool:
        try:
            return is_file(self._disk.look(path))
        except InTheWay:
            return False


def _obstructed(disk: Disk, paths: list[str]) -> PublishError:
    shown = ", ".join(str(disk.root / path) for path in paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return PublishError(
        f"expected nothing or a file of gitboot's own, found something else at {shown}{more} (move it away)"
    )
