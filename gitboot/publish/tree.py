"""A published tree as it lies in a directory: what it says of itself, and whether that holds.

``ops/.gitboot/`` is the publisher's own and no part of what is published:

- ``lock`` tells who publishes here;
- ``pending.json`` lists the paths that the pass under way touches, or that one cut short has touched. The manifest
  is believed about all others, so that nobody has to read a whole tree to change one file;
- ``retired/<instant>.json`` lists content that nothing names since that instant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

from gitboot.errors import PublishError
from gitboot.model.scalars import format_instant, parse_instant
from gitboot.publish.disk import Disk, is_file
from gitboot.publish.folders import InTheWay
from gitboot.publish.manifest import (
    MANIFEST,
    Head,
    Listing,
    Manifest,
    Shard,
    is_of_manifest,
    parse_head,
    parse_listing,
    parse_shard,
    shard_of,
    shard_path,
)

_OWN: Final = "ops/.gitboot"
LOCK: Final = f"{_OWN}/lock"
PENDING: Final = f"{_OWN}/pending.json"
_RETIRED: Final = f"{_OWN}/retired"

_S = TypeVar("_S")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A file that is not what the manifest lists."""

    path: str
    expected: str
    found: str


class Tree:
    """What a tree says of itself, read from the disk as far as it is asked for."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.head = _read(disk, MANIFEST, parse_head)
        self.pending = frozenset(_read(disk, PENDING, _parse_paths) or ())
        self.batches = {
            _parse(disk, f"{_RETIRED}/{name}", name.removesuffix(".json"), parse_instant)
            for name in disk.names(_RETIRED)
            if name.endswith(".json")
        }
        self.retired = {  # path -> since when nothing names it
            path: since for since in sorted(self.batches) for path in _read(disk, batch_path(since), _parse_paths) or ()
        }
        self._shards: dict[str, Shard] = {}

    @property
    def pending_files(self) -> set[str]:
        """The files that a pass which was cut short has changed, or has not."""
        return {path for path in self.pending if not is_record(path)}

    @property
    def shards(self) -> list[str]:
        """The names of the shards that may list files."""
        return sorted({*(self.head.shards if self.head else ()), *map(shard_of, self.pending_files)})

    def shard(self, name: str) -> Shard:
        if name not in self._shards:
            self._shards[name] = self._read_shard(name)
        return self._shards[name]

    def _read_shard(self, name: str) -> Shard:
        path = shard_path(name)
        data = self._disk.read(path)
        expected = self.head.shards.get(name) if self.head else None
        # A pass replaces its shards before the head; what one that was cut short has left is no damage.
        if (data and _digest(data)) != expected and path not in self.pending:
            raise _damaged(self._disk, path)
        return _parse(self._disk, path, data, parse_shard) if data is not None else {}

    def listing(self, path: str) -> Listing | None:
        return self.shard(shard_of(path)).get(path)

    def owns(self, path: str) -> bool:
        """Whether what lies at ``path`` was written by gitboot."""
        return path in self.pending or path in self.retired or self.listing(path) is not None

    def amended(self, listings: Mapping[str, Listing | None]) -> Mapping[str, Shard]:
        """The shards as they are with these listings; those that a pass which was cut short may have replaced too."""
        names = {path: shard_of(path) for path in {*listings, *self.pending_files}}
        shards = {name: dict(self.shard(name)) for name in names.values()}
        for path, text in listings.items():
            if text is None:
                del shards[names[path]][path]
            else:
                shards[names[path]][path] = text
        return shards

    def begin(self, paths: Iterable[str]) -> None:
        """Believe the manifest no more about these paths, until ``settle``."""
        self.pending = self.pending.union(paths)

    def settle(self, head: Head, shards: Mapping[str, Shard]) -> None:
        """Take note that a pass has ended, and all is as the manifest says."""
        self.pending = frozenset()
        self.head = head
        self._shards.update(shards)

    def retire(self, paths: Collection[str], since: datetime) -> None:
        if paths:
            self.batches.add(since)
            self.retired |= dict.fromkeys(paths, since)

    def forget(self, batches: Collection[datetime]) -> None:
        if batches:
            self.batches.difference_update(batches)
            self.retired = {path: since for path, since in self.retired.items() if since in self.batches}


def is_record(path: str) -> bool:
    """Whether ``path`` is taken by what is written about the tree."""
    return path.startswith(f"{_OWN}/") or is_of_manifest(path)


def batch_path(since: datetime) -> str:
    """Where the content is listed that nothing names since that instant."""
    return f"{_RETIRED}/{format_instant(since)}.json"


def read_manifest(root: Path) -> Manifest | None:
    """What the tree at ``root`` should hold; None if no pass has ended there.

    It may be read while somebody publishes: what the pass has not reached yet is then as it was before.
    """
    if not root.is_dir():
        return None
    with closing(Disk(root)) as disk:
        manifest, differences, is_settled = _read_whole(disk)
        if differences and is_settled:
            raise _damaged(disk, differences[0].path)
    return manifest


def verify(root: Path) -> tuple[Difference, ...]:
    """Every file that is not what the manifest lists, sorted by path; each is read in full.

    While somebody publishes, or after a crash, these are the files that the pass has changed so far.
    """
    with closing(Disk(root)) as disk:
        manifest, differences, _ = _read_whole(disk)
        if manifest is None:
            raise PublishError(f"{root}: expected a tree that gitboot published, found no {MANIFEST}")
        for path, listed in manifest.files.items():
            if difference := _compare(path, listed.sha256, _content(disk, path)):
                differences.append(difference)
    return tuple(sorted(differences, key=lambda difference: difference.path))


def _read_whole(disk: Disk) -> tuple[Manifest | None, list[Difference], bool]:
    """The manifest, its shards that are not what the head says, and whether no pass is under way or was cut short."""
    while (data := disk.read(MANIFEST)) is not None:
        head = _parse(disk, MANIFEST, data, parse_head)
        listings: dict[str, Listing] = {}
        differences: list[Difference] = []
        for name, expected in head.shards.items():
            shard = disk.read(path := shard_path(name))
            if difference := _compare(path, expected, shard):
                differences.append(difference)
            with suppress(ValueError):
                listings |= parse_shard(shard or b"")
        is_settled = disk.look(PENDING) is None
        # A pass may have ended since the head was read.
        if not (differences and is_settled) or disk.read(MANIFEST) == data:
            files = {path: parse_listing(text) for path, text in sorted(listings.items())}
            return Manifest(stamp=head.stamp, files=files), differences, is_settled
    return None, [], True


def _compare(path: str, expected: str, content: bytes | None) -> Difference | None:
    found = "no file" if content is None else _digest(content)
    return None if found == expected else Difference(path=path, expected=expected, found=found)


def _content(disk: Disk, path: str) -> bytes | None:
    """The content of a file; None if there is none, or something else."""
    try:
        return disk.read(path) if is_file(disk.look(path)) else None
    except InTheWay:
        return None


def _read(disk: Disk, path: str, parse: Callable[[bytes], _T]) -> _T | None:
    data = disk.read(path)
    return None if data is None else _parse(disk, path, data, parse)


def _parse(disk: Disk, path: str, data: _S, parse: Callable[[_S], _T]) -> _T:
    try:
        return parse(data)
    except ValueError as error:
        raise _damaged(disk, path) from error


def _parse_paths(data: bytes) -> list[str]:
    paths = json.loads(data)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError("not a list of paths")
    return paths


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _damaged(disk: Disk, path: str) -> PublishError:
    return PublishError(
        f"{disk.root / path}: expected what gitboot wrote, found something else "
        "(bring it back from a copy, or move boot/ and ops/ away and publish anew)"
    )
