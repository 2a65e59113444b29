"""Published trees: the files of servers with their states, and steps that bring a target up to a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.manifest import MANIFEST, compute_digest
from gitboot.publish.publisher import OutputDirectory, PublicationResult
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.follower import TargetStore
from gitboot.publish.targets.sync_steps import FileStore, StoreTarget, apply_step, plan_next_step
from gitboot.publish.tree_reader import _read_whole_tree
from gitboot.render import endpoint_files
from gitboot.render.endpoint_files import (
    ListedFile,
    PublishedServer,
    build_index,
    parse_state,
    parse_state_path,
    render_shard,
    state_path,
)
from gitboot.render.paths import File, Files, parse_request_path

# Published trees: a flat mapping of files, divided into servers with a state each.

SHARED = ("boot/boot.ipxe", "ops/serve/nginx.conf", "ops/serve/Caddyfile", "boot/a", "boot/o/1/a")


def owner(path: str) -> str | None:
    """Return the owner of a file among four servers, or None if it is shared."""
    return None if path in SHARED else f"s{sha256(path.encode()).digest()[0] % 4}"


def server_files(name: str, files: Files) -> dict[str, File]:
    """Return the files of a server with its state, which has the identities for their paths."""
    identities = {asked.identity for path in files for asked in parse_request_path(path.removeprefix("boot/"))}
    published = PublishedServer(
        server=name,
        identities=tuple(sorted(identities)),
        shows={},
        summary={},
        plan={},
        files={path: ListedFile(file.sha256, len(file.content)) for path, file in files.items()},
        contents={},
        paths={},
    )
    return {**files, state_path(name): File(endpoint_files.render_state(published))}


def split(files: Files) -> tuple[dict[str, Files], Files]:
    names = {path: owner(path) for path in files}
    servers: dict[str, Files] = {
        name: server_files(name, {path: file for path, file in files.items() if names[path] == name})
        for name in {*names.values()} - {None}
        if name is not None
    }
    return servers, {path: file for path, file in files.items() if names[path] is None}


def verify_tree(root: Path) -> tuple[str, ...]:
    """Read each file in full, and return the paths of those that differ from the manifest and the index, sorted.

    During a publication or after a crash, these include the files that the publication has changed so far.
    """
    with closing(DurableDirectory(root)) as disk:
        found = _read_whole_tree(disk)
        if found is None:
            raise PublishError(f"{root}: expected an output tree, found no {MANIFEST}")
        content = {path: disk.read(path) if disk.has_file(path) else None for path in found.manifest.files}
        expected = {path: listed.sha256 for path, listed in found.manifest.files.items()}
        identities = {}
        for path, data in content.items():
            if (server := parse_state_path(path)) is not None and data is not None:
                with suppress(ValueError):
                    identities[server] = parse_state(data).identities
        for path, shard in build_index(identities).items():
            expected[path] = compute_digest(render_shard(shard))
            content[path] = disk.read(path) if disk.has_file(path) else None
    differing = {path for path, data in content.items() if data is None or compute_digest(data) != expected[path]}
    return tuple(sorted({*found.damaged_paths, *differing}))


def complete_tree(files: Files) -> dict[str, File]:
    """Return all files in the tree for these files, with the states of their servers."""
    servers, shared = split(files)
    return {**shared, **{path: file for each in servers.values() for path, file in each.items()}}


def publish_files(
    directory: OutputDirectory, files: Files, *, changed: Iterable[str] | None = None, commit: str, at: datetime
) -> PublicationResult:
    """Publish all of these files, or the servers that have the ``changed`` paths; what was done, but for states."""
    servers, shared = split(files)
    given: dict[str, Any] = {"commit": commit, "at": at}
    if changed is None:
        return _without_states(directory.publish(servers, shared, complete=True, **given), len(servers))
    names = {owner(path) for path in changed}
    changed_servers = {name: servers.get(name) for name in names if name is not None}
    published = directory.publish(changed_servers, shared if None in names else None, complete=False, **given)
    return _without_states(published, len([files for files in changed_servers.values() if files is not None]))


def _without_states(published: PublicationResult, states: int) -> PublicationResult:
    if published.first_files:
        return structs.replace(published, first_files=published.first_files - states)
    written, withdrawn = (
        tuple(path for path in paths if parse_state_path(path) is None)
        for paths in (published.written, published.withdrawn)
    )
    unchanged_states = states - (len(published.written) - len(written))
    return structs.replace(
        published, written=written, withdrawn=withdrawn, unchanged=published.unchanged - unchanged_states
    )


def record_calls(monkeypatch: pytest.MonkeyPatch, *methods: str) -> list[str]:
    """Return the paths for which the publisher calls these methods of its disk from now on; "-path": a file goes."""
    paths: list[str] = []

    def watch(name: str) -> None:
        act = getattr(DurableDirectory, name)

        def record_call(disk: DurableDirectory, path: str, *args: Any) -> Any:
            if name != "remove":
                paths.append(path)
            elif (disk.root / path).exists():
                paths.append(f"-{path}")
            return act(disk, path, *args)

        monkeypatch.setattr(DurableDirectory, name, record_call)

    for name in methods:
        watch(name)
    return paths


# Bring a target up to a published directory, as a follower does, and end that in the middle.

_place = DurableDirectory.place


class TargetKilled(BaseException):
    """The process that writes a target is killed here."""


def bring_up(target: TargetStore, tree: FollowedTree) -> int:
    """Make steps until the target holds what is published. Return how many."""
    state = target.load()
    for steps in count():
        if (glance := tree.read_summary()) is None:
            return steps
        step = plan_next_step(tree, glance, state, partial(target.shard, state.head), target.max_servers)
        if step is None:
            return steps
        target.apply(step, state, tree)
        state = apply_step(state, step)
    raise AssertionError


def sync_target(store: FileStore, root: Path, *, name: str = "target", ledger: str = "test") -> StoreTarget:
    """Have a new process bring a target in a store up to the directory at ``root``, and return its target."""
    target = StoreTarget(name, lambda: store, ledger=ledger, heir_of=lambda: None, writer=f"{ledger}-1")
    bring_up(target, FollowedTree(root))
    return target


def kill_after(replaced: int) -> Callable[[DurableDirectory, str], None]:
    """Return a `DurableDirectory.place` that raises `TargetKilled` after so many files, unless that is 0."""
    places = count(1)

    def place(disk: DurableDirectory, path: str) -> None:
        if next(places) == replaced:
            raise TargetKilled
        _place(disk, path)

    return place
