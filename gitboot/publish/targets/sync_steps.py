"""Sync steps: compare a target with the output tree, and plan the next step of its update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from msgspec import Struct, structs

from gitboot import __version__
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, TreeSummary
from gitboot.publish.targets.target_records import (
    LIST,
    SHARED,
    ServerFiles,
    Shard,
    TargetContent,
    TargetHead,
    find_shard_number,
    render_units,
    shard_path,
)
from gitboot.render.paths import is_content


class TargetStep(Struct, frozen=True, kw_only=True):
    """One step of a target's update: the files to write and to remove before the head is replaced."""

    head: TargetHead  # the head after the step
    manifest: str  # the digest of the manifest of the output tree
    placed: Mapping[str, str]  # sha256 by path, sorted
    # placed paths at which the target has no file of gitboot yet, or only a file of another server
    new_paths: frozenset[str]
    removed: tuple[str, ...]  # sorted
    shards: Mapping[str, bytes]  # the changed shards by number; empty: the shard is removed
    units: Mapping[str, ServerFiles | None]  # the changed servers; None: the server is gone
    omits_servers: bool  # whether the step omits servers whose files cannot be read
    unverified: frozenset[str]  # paths that are unverified until the head is written
    # paths that stay on the target after the step although no shard lists them, or whose files stay unverified
    unlisted_paths: frozenset[str]


def plan_next_step(
    tree: FollowedTree,
    summary: TreeSummary,
    target_content: TargetContent,
    read_shard: Callable[[str], Shard],
    max_servers: int | None,
) -> TargetStep | None:
    """Return the step that updates up to ``max_servers`` servers of a target, or None if the target is up to date.

    Without a maximum, the step updates all servers. Otherwise, servers are updated in this order:

    - the urgent servers of the tree, in a step without other servers, because a step may take long
    - servers that the target already has, because the target serves an old version of their files
    - new servers
    - the shared scripts, which come after new servers, because a machine without a boot script boots as an unknown
      machine
    - servers that were removed
    - the signed list, which contains all files

    The step omits servers whose files cannot be read. Raises `RaceError` if the step would be empty therefore.

    Unused content stays on the target as long as it stays in the tree. A path that moves to another server stays until
    that server is updated.
    """
    urgent_servers = tree.urgent_servers  # another thread may replace this set
    outdated = _sort_outdated_servers(summary, target_content, urgent_servers)
    is_current = not outdated and target_content.head.commit == summary.commit
    if is_current and all(map(tree.has_file, target_content.unlisted_paths)):
        return None
    units, errors = _read_units(tree, summary, outdated, urgent_servers, max_servers)
    if errors and not units:
        raise errors[0]
    update = _update_shards(read_shard, units)
    shards, new_files = update.shards, update.new_files

    obsolete_paths = (update.old_files.keys() | target_content.unlisted_paths) - new_files.keys()
    existing_paths = {path for path in obsolete_paths if tree.has_file(path)}
    # If another server on the target has the path now, the path moved to that server. If the path is unverified, it
    # stays unverified until that server is updated.
    dropped_paths = {path for path in existing_paths if not is_content(path)}
    other_numbers = [number for number in target_content.head.shards if number not in shards]
    moved_paths = _find_listed_paths(dropped_paths, chain(shards.values(), map(read_shard, other_numbers)))
    kept_paths = existing_paths - (moved_paths - target_content.unlisted_paths)

    # The files of removed servers that later steps update may still exist at their paths.
    waiting_servers = (target_content.servers - summary.states.keys()).intersection(outdated).difference(units)
    waiting_paths: set[str] = set()
    for number in sorted({find_shard_number(server) for server in waiting_servers}):
        shard = shards[number] if number in shards else read_shard(number)
        waiting_paths.update(path for server in waiting_servers & shard.keys() for path in shard[server].files)

    placed = {
        path: new_files[path]
        for path in sorted(new_files)
        if update.old_files.get(path) != new_files[path] or path in target_content.unlisted_paths
    }
    rendered = {number: _render_shard(shard, target_content.contested_paths) for number, shard in shards.items()}
    digests = {number: digest for number, digest in target_content.head.shards.items() if number not in rendered}
    digests |= {number: compute_digest(data) for number, data in rendered.items() if data}
    return TargetStep(
        manifest=summary.manifest,
        head=structs.replace(
            target_content.head,
            commit=summary.commit,
            # The version changes when no files of another version are left.
            gitboot=__version__ if len(units) == len(outdated) else target_content.head.gitboot,
            shards=dict(sorted(digests.items())),
        ),
        placed=placed,
        new_paths=frozenset(placed.keys() - update.old_files.keys() - target_content.unlisted_paths - waiting_paths),
        removed=tuple(sorted(obsolete_paths - existing_paths)),
        shards=rendered,
        units=units,
        omits_servers=bool(errors),
        unverified=target_content.unlisted_paths | placed.keys() | obsolete_paths,
        unlisted_paths=frozenset(kept_paths),
    )


def _sort_outdated_servers(
    summary: TreeSummary, target_content: TargetContent, urgent_servers: Collection[str]
) -> list[str]:
    """Return the outdated servers in the order in which `plan_next_step` updates them."""
    removed_servers = target_content.servers - summary.states.keys()

    def sort_key(server: str) -> tuple[bool, bool, bool, bool, bool, str, str]:
        # Sort servers by shard, because each step writes complete shards.
        return (
            server not in urgent_servers,
            server == LIST,
            server in removed_servers,
            server == SHARED,
            server not in target_content.servers,
            find_shard_number(server),
            server,
        )

    return sorted(find_outdated_servers(summary, target_content), key=sort_key)


def _read_units(
    tree: FollowedTree,
    summary: TreeSummary,
    outdated: Iterable[str],
    urgent_servers: Collection[str],
    max_servers: int | None,
) -> tuple[dict[str, ServerFiles | None], list[RaceError]]:
    """Return the files of the servers that the next step updates, and an error for each server that it omits.

    The files are None if the server is gone. If the files of a server cannot be read, the step omits the server, so
    that the windows of other servers end. It also omits the signed list then, because the list contains all files.
    """
    units: dict[str, ServerFiles | None] = {}
    errors: list[RaceError] = []
    for server in outdated:
        follows_urgent = server not in urgent_servers and next(iter(units), None) in urgent_servers
        if max_servers is not None and (len(units) == max_servers or follows_urgent):
            break
        if server == LIST and errors:
            break
        try:
            state = summary.states.get(server)
            units[server] = tree.read_server_files(server, state) if state is not None else None
        except RaceError as error:
            errors.append(error)
    return units, errors


class _ShardUpdate(NamedTuple):
    """The shards of the servers that a step updates, and the files of these servers."""

    shards: dict[str, dict[str, ServerFiles]]  # the complete shards after the step, by number
    old_files: dict[str, str]  # sha256 by path, before the step
    new_files: dict[str, str]  # sha256 by path, after the step


def _update_shards(read_shard: Callable[[str], Shard], units: Mapping[str, ServerFiles | None]) -> _ShardUpdate:
    update = _ShardUpdate({}, {}, {})
    for server, new_unit in units.items():
        number = find_shard_number(server)
        if number not in update.shards:
            update.shards[number] = {**read_shard(number)}
        shard = update.shards[number]
        old_unit = shard.pop(server, None)
        if old_unit is not None:
            update.old_files.update(old_unit.files)
        if new_unit is not None:
            shard[server] = new_unit
            update.new_files.update(new_unit.files)
    return update


def _find_listed_paths(paths: Collection[str], shards: Iterable[Shard]) -> set[str]:
    """Return those of ``paths`` that a shard lists. If there are no paths, read no shard."""
    if not paths:
        return set()
    return {path for shard in shards for unit in shard.values() for path in unit.files if path in paths}


def _render_shard(shard: Shard, contested_paths: Collection[str]) -> bytes:
    """Render a shard as a file, or return b"" for an empty shard."""
    data = render_units(shard) if shard else b""
    while data and shard_path(compute_digest(data)) in contested_paths:
        data += b"\n"  # another process may remove the shard at this path
    return data


def find_outdated_servers(summary: TreeSummary, target_content: TargetContent) -> set[str]:
    """Return the servers whose files on a target differ from the tree, including removed servers."""
    outdated = {server for server, state in summary.states.items() if target_content.states.get(server) != state}
    return outdated | (target_content.servers - summary.states.keys())


def apply_step(target_content: TargetContent, step: TargetStep) -> TargetContent:
    """Return the target's content after a step."""
    present_units = {server: unit for server, unit in step.units.items() if unit is not None}
    states = {server: state for server, state in target_content.states.items() if server not in step.units}
    states |= {server: unit.state for server, unit in present_units.items()}
    withheld_servers = {server for server, unit in present_units.items() if unit.withheld}
    return TargetContent(
        head=step.head,
        states=states,
        servers=(target_content.servers - step.units.keys()) | present_units.keys(),
        withheld=(target_content.withheld - step.units.keys()) | withheld_servers,
        unlisted_paths=step.unlisted_paths,
        contested_paths=target_content.contested_paths,
    )
