"""How the index changes in a publication: at first it has who comes, too, and only at the end no more who goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gitboot.publish.durable_files import Disk
from gitboot.publish.manifest import INDEX, Pair, Shard, changed, index_of, is_of_index, parse_shard, shard_path
from gitboot.publish.tree_reader import damaged

Shards = dict[str, Shard]  # by path


def reindexed(
    disk: Disk, gone: Collection[Pair], come: Collection[Pair], pending: Collection[str]
) -> tuple[Shards, Shards]:
    """The shards with who comes, and then those without who goes; only those that change, or may have been changed."""
    joined: Shards = {}
    parted: Shards = {}
    leaving, coming = _by_shard(gone), _by_shard(come)
    for path in sorted({*leaving, *coming, *filter(is_of_index, pending)}):
        data = disk.read(path)
        try:
            before = parse_shard(data) if data is not None else {}
        except ValueError as error:
            raise damaged(disk, path) from error
        union = changed(before, (), coming.get(path, ()))
        after = changed(union, leaving.get(path, ()), ())
        if union != before or (union and path in pending):
            joined[path] = union
        if after != union:
            parted[path] = after
    return joined, parted


def reindexed_wholly(
    disk: Disk, identities: Mapping[str, tuple[str, ...]], pending: Collection[str]
) -> tuple[Shards, Shards]:
    """The same where these are all servers: what is there besides goes, what is damaged is made anew."""
    wanted: dict[str, dict[str, tuple[str, ...]]] = index_of(identities)
    joined: Shards = {}
    parted: Shards = {}
    for path in sorted({*wanted, *(f"{INDEX}/{name}" for name in disk.names(INDEX))}):
        before = _shard(disk, path)
        after = wanted.get(path, {})
        if before is not None and before == after and after and path not in pending:
            continue
        union = changed(before or {}, (), ((identity, name) for identity, names in after.items() for name in names))
        if union != before or (union and path in pending):
            joined[path] = union
        if after != union or not after:
            parted[path] = after
    return joined, parted


def _shard(disk: Disk, path: str) -> Shard | None:
    """A shard as it stands; None where there is none, or something that is none."""
    try:
        return parse_shard(disk.read(path) or b"")
    except ValueError:
        return None


def _by_shard(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(shard_path(pair[0]), []).append(pair)
    return found
