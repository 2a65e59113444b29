"""Object copies: copy and check all objects of a commit, and merge the packs of a clone."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from sys import intern
from typing import Final

import pygit2
from pygit2.enums import ObjectType

from gitboot.fleet.revision import MAX_FILE_BYTES
from gitboot.git.fetch_steps import report_work
from gitboot.git.objects import MAX_TREE_BYTES, SUBMODULE, TREE, CommitReader, parse_tree, read_tag
from gitboot.git.repository import get_git_directory, get_objects_directory, open_repository

_OVERSIZED_LIST: Final = "left-out"
_OVERSIZED_LINE: Final = re.compile(r"^([0-9a-f]{40}) ([0-9]+)$", re.MULTILINE)
# libgit2 does not compute deltas for larger objects. It reads the limit from the configuration of the builder's
# repository, under the name of another setting (pack-objects.c, packbuilder_config).
_DELTA_LIMIT: Final = {"core.bigFileThreshold": "64k", "pack.deltaCacheSize": "64k"}
_PIECE_BYTES: Final = 1 << 20
_IDS_AT: Final = 8 + 4 * 256  # the position of the IDs in a pack index, after a header of 8 bytes and the fan-out table


def copy_objects(theirs: pygit2.Repository, ours: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Copy ``tip`` and all objects reachable from it into ``ours`` as one pack, except objects that ``ours`` has.

    A fetch with libgit2 has the same result, but reads all trees of the last commit for each new commit. With 100,000
    files, a fetch with libgit2 takes 100 ms instead of 10 ms. gitboot only lists blobs above the size limit, and does
    not copy them. Copying a blob needs memory for the whole blob, and a few bytes in a pack can expand to gigabytes.
    """
    present: pygit2.Odb | Collection[pygit2.Oid] = ours.odb
    if not any(_get_pack_directory(ours).iterdir()):
        _copy_packs(theirs, ours)
        present = ()  # the packs of the source may contain a commit whose parents are loose objects
    oversized: dict[str, int] = {}
    known_oversized = read_oversized_blobs(get_git_directory(theirs))  # the source may also be a clone of gitboot
    with open_repository(get_git_directory(ours)) as combined:
        # intern, because pygit2 never frees the path
        combined.odb.add_disk_alternate(intern(str(get_objects_directory(theirs))))
        builder = _create_pack_builder(combined)
        for oid in list_reachable_objects(theirs, tip, present):
            report_work()
            if oid in ours.odb:
                continue
            size = known_oversized.get(str(oid)) or _read_blob_size(theirs, oid)
            if is_oversized(size):
                oversized[str(oid)] = size
            else:
                builder.add(oid)
        if oversized:
            add_oversized_blobs(get_git_directory(ours), oversized)
        if len(builder):
            builder.write(_get_pack_directory(ours))


def _create_pack_builder(ours: pygit2.Repository) -> pygit2.PackBuilder:
    """Return a pack builder that does not compute deltas for large objects, because such deltas would take minutes."""
    for name, value in _DELTA_LIMIT.items():
        if name not in ours.config:
            ours.config[name] = value
    return pygit2.PackBuilder(ours)


def _copy_packs(theirs: pygit2.Repository, ours: pygit2.Repository) -> None:
    for index in _get_pack_directory(theirs).glob("pack-*.idx"):
        for file in (index.with_suffix(".pack"), index):
            with open(_get_pack_directory(ours) / file.name, "xb") as copied, open(file, "rb") as original:
                while piece := original.read(_PIECE_BYTES):
                    copied.write(piece)
                    report_work()
                copied.flush()
                os.fsync(copied.fileno())


def check_objects(repository: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Read all objects that are reachable from ``tip``. Raises `pygit2.GitError` if an object is damaged or missing."""
    for oid in list_reachable_objects(repository, tip, ()):
        report_work()
        if not is_oversized(_read_blob_size(repository, oid)):
            repository.odb.read(oid)


def list_reachable_objects(
    repository: pygit2.Repository,
    tip: pygit2.Oid,
    excluded: pygit2.Odb | Collection[pygit2.Oid],
    *,
    with_files: bool = True,
) -> set[pygit2.Oid]:
    """Return all objects that are reachable from ``tip``. References from ``excluded`` objects are not followed.

    Without ``with_files``, return only commits and tags. Raises `pygit2.GitError` if a commit, a tag or a tree exceeds
    the size limit. gitboot reads whole commits, and a few bytes in a pack can expand to gigabytes.
    """
    reachable: set[pygit2.Oid] = set()
    pending = [tip]
    reader = CommitReader(repository)
    while pending:
        oid = pending.pop()
        if oid in reachable or oid in excluded:
            continue
        report_work()
        reachable.add(oid)
        kind, size = repository.odb.read_header(oid)
        if size > MAX_TREE_BYTES:
            raise pygit2.GitError(f"object {oid} is {size:,} bytes long, but the limit is {MAX_TREE_BYTES:,}")
        match kind:
            case ObjectType.TAG if (tag := read_tag(repository, oid)) is not None:
                pending.append(tag.target)
            case ObjectType.COMMIT:
                commit = reader.read(oid)
                pending += commit.parents
                if with_files and commit.tree is not None:
                    pending.append(commit.tree)
            case ObjectType.TREE:
                for mode, _, raw in parse_tree(repository.odb, oid.raw):
                    if mode == TREE:
                        pending.append(pygit2.Oid(raw=raw))
                    elif mode != SUBMODULE and (blob := pygit2.Oid(raw=raw)) not in excluded:
                        reachable.add(blob)
    return reachable


def _read_blob_size(repository: pygit2.Repository, oid: pygit2.Oid) -> int:
    kind, size = repository.odb.read_header(oid)
    return size if kind == ObjectType.BLOB else 0


def merge_packs(repository: pygit2.Repository, limit: int) -> None:
    """If there are more than ``limit`` packs, merge all packs except the largest into one pack.

    A pack that contains an object too large for memory stays unchanged. If the process is killed during a merge, some
    objects are stored twice until the next call.
    """
    folder = _get_pack_directory(repository)
    packs = sorted(folder.glob("pack-*.pack"), key=lambda pack: pack.stat().st_size)
    if len(packs) <= limit:
        return
    merged_packs = [pack for pack in packs[:-1] if not _has_oversized_blob(repository, pack)]
    if len(merged_packs) < 2:
        return
    builder = _create_pack_builder(repository)
    for pack in merged_packs:
        for oid in _list_pack_objects(pack):
            builder.add(oid)
    builder.write(folder)
    if set(folder.glob("pack-*.pack")) - set(packs):
        for pack in merged_packs:
            # gitboot deletes the index first, because Git finds packs by their indexes
            pack.with_suffix(".idx").unlink()
            pack.unlink()


def _has_oversized_blob(repository: pygit2.Repository, pack: Path) -> bool:
    return any(is_oversized(_read_blob_size(repository, oid)) for oid in _list_pack_objects(pack))


def _get_pack_directory(repository: pygit2.Repository) -> Path:
    return get_git_directory(repository) / "objects" / "pack"


def _list_pack_objects(pack: Path) -> Iterator[pygit2.Oid]:
    """Yield the object IDs in a pack's index (gitformat-pack(5), "Version 2 pack-*.idx files")."""
    data = pack.with_suffix(".idx").read_bytes()
    count = int.from_bytes(data[_IDS_AT - 4 : _IDS_AT])
    return (pygit2.Oid(raw=data[at : at + 20]) for at in range(_IDS_AT, _IDS_AT + 20 * count, 20))


# Blobs that are too large to copy


def is_oversized(size: int) -> bool:
    """Return whether a blob is too large to copy.

    When gitboot reads a commit that contains such a blob, gitboot reports a problem.
    """
    return size > MAX_FILE_BYTES


def read_oversized_blobs(repository: Path) -> dict[str, int]:
    """Return a mapping from the IDs to the sizes of the blobs that were too large to copy into a clone.

    For repositories that are not such clones, the result is {}.
    """
    with suppress(FileNotFoundError):
        return {blob: int(size) for blob, size in _OVERSIZED_LINE.findall((repository / _OVERSIZED_LIST).read_text())}
    return {}


def add_oversized_blobs(repository: Path, sizes: Mapping[str, int]) -> None:
    """Add the IDs and sizes of oversized blobs to the stored list.

    If a crash truncates a line, gitboot treats the clone as damaged and creates it again.
    """
    known = read_oversized_blobs(repository)
    with (repository / _OVERSIZED_LIST).open("a") as file:
        file.writelines(f"{blob} {size}\n" for blob, size in sorted(sizes.items()) if blob not in known)
