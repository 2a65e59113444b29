"""One step by which a target comes nearer to the published tree: decided before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gitboot import __version__
from gitboot.publish.targets.sync_steps import (
    LIST,
    SHARED,
    FollowedTree,
    Glance,
    Holding,
    ReadShard,
    Shard,
    TargetFile,
    TargetHead,
    Unit,
    digest_of,
    number_of,
    render_units,
)
from gitboot.render.paths import is_content


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetStep:
    """What is written to a target and removed from it, before its head says so."""

    head: TargetHead  # what it says afterwards
    manifest: str  # the digest of the published tree's own
    placed: Mapping[str, str]  # sha256 by path, sorted
    fresh: frozenset[str]  # those of them at which nothing of gitboot's lies yet, unless it is another server's
    instead: Mapping[str, bytes]  # the content of those that lie otherwise in the tree
    removed: tuple[str, ...]  # sorted
    shards: Mapping[str, bytes]  # by number, those that change; empty: it goes
    units: Mapping[str, Unit | None]  # by server, those that change; None: it is gone
    doubtful: frozenset[str]  # what is in doubt until the head is written
    unlisted: frozenset[str]  # and what stays, unlisted, afterwards

    def content(self, path: str, tree: FollowedTree) -> bytes:
        """Return what is written to a path. Raises `Overtaken` if the tree has another file by now."""
        return self.file(path, tree).content

    def file(self, path: str, tree: FollowedTree) -> TargetFile:
        """Return what is written to a path, with its time. Raises `Overtaken` if the tree has another file by now.

        A file that the tree does not have has the time 0: a log that has the time of the tree's file would show that a
        machine fetched the boot that was left out.
        """
        if path in self.instead:
            return TargetFile(self.instead[path], 0)
        return tree.file(path, self.placed[path])


def next_step(tree: FollowedTree, glance: Glance, held: Holding, read_shard: ReadShard, most: int) -> TargetStep | None:
    """What brings up to ``most`` servers of a target to what is published; None: it holds all of that.

    Those that it has already come first: what it serves of them is out of date, of others it only serves nothing yet.
    The shared scripts follow when it has all servers: until then a machine whose boot script is not there yet would
    boot what unknown machines boot. Servers that are gone follow, and the signed list, which names all files, comes
    last. Content that nothing names any more stays for as long as it stays in the tree, and so does a path that moves
    to another server until that server's turn.
    """
    going = held.known - glance.states.keys()

    def order(server: str) -> tuple[bool, bool, bool, bool, str, str]:
        # Servers of one shard follow one another: each step writes the shards of its servers whole.
        return server == LIST, server in going, server == SHARED, server not in held.known, number_of(server), server

    changed = sorted(outdated(glance, held), key=order)
    if not changed and held.head.commit == glance.commit and all(map(tree.stands, held.unlisted)):
        return None
    shards: dict[str, dict[str, Unit]] = {}
    units: dict[str, Unit | None] = {}
    was: dict[str, str] = {}
    wanted: dict[str, str] = {}
    instead: dict[str, bytes] = {}
    left_out: set[str] = set()
    for server in changed[:most]:
        if (number := number_of(server)) not in shards:
            shards[number] = {**read_shard(number)}
        if (before := shards[number].pop(server, None)) is not None:
            was |= before.files
        units[server] = None
        if (state := glance.states.get(server)) is not None:
            found = tree.served(server, state)
            units[server] = shards[number][server] = Unit(state, found.files, found.lacks_boots)
            wanted |= found.files
            instead |= found.instead
            left_out |= found.left_out
    gone = (was.keys() | held.unlisted) - wanted.keys()
    stand = {path for path in gone if path not in left_out and tree.stands(path)}
    taken_over = _listed({path for path in stand if not is_content(path)}, {**shards}, held, read_shard)
    stay = stand - taken_over
    of_others = _files_of(going.intersection(changed[most:]), {**shards}, read_shard)
    placed = {path: wanted[path] for path in sorted(wanted) if was.get(path) != wanted[path] or path in held.unlisted}
    rendered = {number: render_units(shard) if shard else b"" for number, shard in shards.items()}
    return TargetStep(
        manifest=glance.manifest,
        head=_head(held.head, glance.commit, rendered, is_last=len(changed) <= most),
        placed=placed,
        fresh=frozenset(placed.keys() - was.keys() - held.unlisted - of_others),
        instead={path: content for path, content in instead.items() if path in placed},
        removed=tuple(sorted(gone - stand)),
        shards=rendered,
        units=units,
        doubtful=held.unlisted | placed.keys() | gone,
        unlisted=frozenset(stay),
    )


def outdated(glance: Glance, held: Holding) -> set[str]:
    """Return the servers of which a target holds something else than what is published, or that are gone."""
    differing = {server for server, state in glance.states.items() if held.states.get(server) != state}
    return differing | (held.known - glance.states.keys())


def _files_of(servers: Collection[str], shards: Mapping[str, Shard], read_shard: ReadShard) -> set[str]:
    """Return the paths that the target has of these servers."""
    numbers = {number_of(server) for server in servers}
    found = (shards[number] if number in shards else read_shard(number) for number in sorted(numbers))
    return {path for shard in found for server in shard.keys() & servers for path in shard[server].files}


def _listed(paths: set[str], shards: Mapping[str, Shard], held: Holding, read_shard: ReadShard) -> set[str]:
    """Those of ``paths`` that another server has on the target: one that was given what this one gave up."""
    if not paths:
        return set()
    others = (read_shard(number) for number in held.head.shards if number not in shards)
    return {
        path for shard in (*shards.values(), *others) for unit in shard.values() for path in unit.files.keys() & paths
    }


def _head(before: TargetHead, commit: str, rendered: Mapping[str, bytes], *, is_last: bool) -> TargetHead:
    """What it says then; it is this version's when nothing is left that another has made."""
    digests = {number: digest_of(data) for number, data in rendered.items() if data}
    others = {number: digest for number, digest in before.shards.items() if number not in rendered}
    version = __version__ if is_last else before.gitboot
    return replace(before, commit=commit, gitboot=version, shards=dict(sorted({**others, **digests}.items())))


def after(held: Holding, step: TargetStep) -> Holding:
    """What a target holds when the step was made."""
    there = {server: unit for server, unit in step.units.items() if unit is not None}
    others = {server: state for server, state in held.states.items() if server not in step.units}
    return Holding(
        head=step.head,
        states={**others, **{server: unit.state for server, unit in there.items()}},
        known=(held.known - step.units.keys()) | there.keys(),
        withheld=(held.withheld - step.units.keys()) | {server for server, unit in there.items() if unit.withheld},
        unlisted=step.unlisted,
    )
