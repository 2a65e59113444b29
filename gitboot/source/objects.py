"""Objects from one repository on this machine into another, and packs that became too many into one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from sys import intern
from typing import Final

import pygit2
from pygit2.enums import ObjectType

from gitboot.git.repository import (
    MAX_TREE_BYTES,
    SUBMODULE,
    TREE,
    CommitReader,
    entries,
    files_of,
    is_left_out,
    left_out,
    note_left_out,
    note_work,
    objects_of,
    opened,
    read_tag,
)

# What is larger is compared with nothing. libgit2 reads it from the repository that a builder is of, and by the name of
# another setting (pack-objects.c, packbuilder_config).
_DELTA_LIMIT: Final = {"core.bigFileThreshold": "64k", "pack.deltaCacheSize": "64k"}

_PIECE_BYTES: Final = 1 << 20
_IDS_AT: Final = 8 + 4 * 256  # in a pack's index: behind a header of two words and the fan-out table


def copy(theirs: pygit2.Repository, ours: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Bring ``tip`` into ``ours``, in one pack with all that it refers to and ``ours`` lacks.

    A fetch by libgit2 does the same, but reads every tree of the last commit for each new one: with 100,000
    files that takes 100 ms instead of 10. A blob that no fleet needs is left out, and noted: to write it anew is to
    hold all of it in memory, where a few bytes of a pack can be gigabytes.
    """
    held: pygit2.Odb | tuple[()] = ours.odb
    if not any(_packs(ours).iterdir()):
        _take_packs(theirs, ours)
        held = ()  # their packs may hold a commit and lack its parents, which lie about loose
    large: dict[str, int] = {}
    lacking = left_out(files_of(theirs))  # where that is a clone, too
    with opened(files_of(ours)) as building:
        building.odb.add_disk_alternate(intern(str(objects_of(theirs))))  # pygit2 never lets go of it
        builder = _builder(building)
        for oid in _referred(theirs, tip, held):
            note_work()
            if oid in ours.odb:
                continue
            size = lacking.get(str(oid)) or _blob_size(theirs, oid)
            if is_left_out(size):
                large[str(oid)] = size
            else:
                builder.add(oid)
        if large:
            note_left_out(files_of(ours), large)
        if len(builder):
            builder.write(_packs(ours))


def _builder(ours: pygit2.Repository) -> pygit2.PackBuilder:
    """One that looks for differences between small objects alone: between large ones it takes minutes for a few."""
    for name, value in _DELTA_LIMIT.items():
        if name not in ours.config:
            ours.config[name] = value
    return pygit2.PackBuilder(ours)


def _take_packs(theirs: pygit2.Repository, ours: pygit2.Repository) -> None:
    """Copy packs as they are, which is ten times as fast as to write them anew."""
    for index in _packs(theirs).glob("pack-*.idx"):
        for file in (index.with_suffix(".pack"), index):
            with open(_packs(ours) / file.name, "xb") as copied, open(file, "rb") as original:
                while piece := original.read(_PIECE_BYTES):
                    copied.write(piece)
                    note_work()
                copied.flush()
                os.fsync(copied.fileno())


def check(repository: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Read all that ``tip`` refers to; raise what pygit2 does where something is damaged or missing."""
    for oid in _referred(repository, tip, ()):
        note_work()
        if not is_left_out(_blob_size(repository, oid)):
            repository.odb.read(oid)


def _referred(repository: pygit2.Repository, tip: pygit2.Oid, held: pygit2.Odb | tuple[()]) -> set[pygit2.Oid]:
    """All that ``tip`` refers to, however far, but for what is held and what only that refers to."""
    found: set[pygit2.Oid] = set()
    pending, reader = [tip], CommitReader(repository)
    while pending:
        oid = pending.pop()
        if oid in found or oid in held:
            continue
        note_work()
        found.add(oid)
        match _checked_kind(repository, oid):
            case ObjectType.TAG if (tag := read_tag(repository, oid)) is not None:
                pending.append(tag.target)
            case ObjectType.COMMIT:
                commit = reader.read(oid)
                pending += [*filter(None, [commit.tree]), *commit.parents]
            case ObjectType.TREE:
                for mode, _, raw in entries(repository.odb, oid.raw):
                    if mode == TREE:
                        pending.append(pygit2.Oid(raw=raw))
                    elif mode != SUBMODULE and (blob := pygit2.Oid(raw=raw)) not in held:
                        found.add(blob)
    return found


def check_history(repository: pygit2.Repository, tip: pygit2.Oid, known: Collection[pygit2.Oid]) -> None:
    """Raise what pygit2 does where a commit or a tag on the way from ``tip`` to what is known is too large to be read.

    A few bytes of a pack can be gigabytes, and whoever reads a commit reads all of it.
    """
    pending, seen, reader = [tip], set(known), CommitReader(repository)
    while pending:
        if (oid := pending.pop()) in seen:
            continue
        seen.add(oid)
        note_work()
        match _checked_kind(repository, oid):
            case ObjectType.TAG if (tag := read_tag(repository, oid)) is not None:
                pending.append(tag.target)
            case ObjectType.COMMIT:
                pending += reader.read(oid).parents


def _blob_size(repository: pygit2.Repository, oid: pygit2.Oid) -> int:
    """How many bytes a blob has; 0 for what is none, which is held within bounds of its own."""
    kind, size = repository.odb.read_header(oid)
    return size if kind == ObjectType.BLOB else 0


def _checked_kind(repository: pygit2.Repository, oid: pygit2.Oid) -> ObjectType:
    """Return what an object is. Raises `pygit2.GitError` if it is too large to be read."""
    kind, size = repository.odb.read_header(oid)
    if size > MAX_TREE_BYTES:
        raise pygit2.GitError(f"object {oid} has {size:,} bytes, more than {MAX_TREE_BYTES:,}")
    return ObjectType(kind)


def merge_packs(repository: pygit2.Repository, limit: int) -> None:
    """Write all packs but the largest anew as one, where there are more than ``limit``; nothing is left out.

    One that holds what is too large to be held in memory stays as it is. Killed halfway, some objects are there twice,
    until the next time.
    """
    folder = _packs(repository)
    packs = sorted(folder.glob("pack-*.pack"), key=lambda pack: pack.stat().st_size)
    if len(packs) <= limit:
        return
    small = [pack for pack in packs[:-1] if not _has_large(repository, pack)]
    if len(small) < 2:
        return
    builder = _builder(repository)
    for pack in small:
        for oid in _ids(pack.with_suffix(".idx")):
            builder.add(oid)
    builder.write(folder)
    if set(folder.glob("pack-*.pack")) - set(packs):
        for pack in small:
            pack.with_suffix(".idx").unlink()  # first: it is by their indexes that packs are found
            pack.unlink()


def _has_large(repository: pygit2.Repository, pack: Path) -> bool:
    return any(is_left_out(_blob_size(repository, oid)) for oid in _ids(pack.with_suffix(".idx")))


def _packs(repository: pygit2.Repository) -> Path:
    return files_of(repository) / "objects" / "pack"


def _ids(index: Path) -> Iterator[pygit2.Oid]:
    """The objects of a pack; gitformat-pack(5), "Version 2 pack-*.idx files"."""
    data = index.read_bytes()
    count = int.from_bytes(data[_IDS_AT - 4 : _IDS_AT])
    return (pygit2.Oid(raw=data[at : at + 20]) for at in range(_IDS_AT, _IDS_AT + 20 * count, 20))
