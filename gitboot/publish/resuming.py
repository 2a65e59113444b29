"""What a published tree holds by its own word, for whoever goes on publishing there; and where that does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.durable_files import Disk
from gitboot.publish.manifest import SHARED, Pair, Shard, digest_of, is_of_index, parse_shard, shard_path
from gitboot.publish.tree_reader import PENDING, Tree
from gitboot.render.endpoint_files import Listed, PublishedServer, parse, server_of, state_path
from gitboot.render.page import INDEX
from gitboot.render.parts import is_of_part
from gitboot.render.paths import is_content

ALL: Final = ""  # stands for a server where the files of all are meant, or those that are no server's
PARTS: Final = "/"  # where those are meant that are in parts, all of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Each server's state, and the content that it names; and the listing of the files that are no server's."""

    states: Mapping[str, str]  # sha256 by server
    content: Mapping[str, tuple[str, ...]]  # paths by server; of the files that are no server's by `ALL`
    shared: str | None  # sha256 of the listing
    has_page: bool


def now_named(tree: Tree, before: Inventory) -> dict[str, tuple[str, ...]] | None:
    """What each server names by now of which a tree holds something else than before; None: it cannot be gone on from.

    Whom a publication that was cut short has reached, or was to reach, is among them. Only what the tree says of itself
    is read: whether that holds is for `suspects` to find out.
    """
    if tree.head is None or tree.outdated or not _tells_whom(tree):
        return None
    found: dict[str, tuple[str, ...]] = {}
    with suppress(PublishError):
        now, reached = dict(tree.servers()), _reached(tree)
        if tree.head.shared != before.shared or not tree.pending.isdisjoint((SHARED, *tree.shared())):
            found[ALL] = tuple(filter(is_content, tree.shared()))
        if any(map(is_of_part, tree.pending)) or (INDEX in tree.shared()) is not before.has_page:
            found[PARTS] = ()
        for server in now.keys() | before.states.keys() | reached:
            if server not in reached and now.get(server) == before.states.get(server):
                continue
            state = tree.outline(server) if server in now or server in reached else None
            if state is None and server in now and server not in reached:
                return None
            found[server] = tuple(filter(is_content, state.files)) if state is not None else ()
        return found
    return None


def left_in_index(disk: Disk, tree: Tree) -> frozenset[Pair] | None:
    """By what the index still finds, or finds already, whom a publication that was cut short was to reach.

    None: what it was to put right there cannot be read.
    """
    reached = _reached(tree)
    states = {server: tree.outline(server) for server in reached}
    claimed = {server: state.identities for server, state in states.items() if state is not None}
    found: set[Pair] = set()
    for path in filter(is_of_index, tree.pending):
        if (shard := _shard(disk, path)) is None:
            return None
        pairs = ((identity, server) for identity, servers in shard.items() for server in reached.intersection(servers))
        found.update((identity, server) for identity, server in pairs if identity not in claimed.get(server, ()))
    return frozenset(found)


def _tells_whom(tree: Tree) -> bool:
    """Whether all that may be between two versions is a server's whose state is, or no server's: see `change`."""
    return not tree.pending or PENDING in tree.pending


def _reached(tree: Tree) -> frozenset[str]:
    return frozenset(filter(None, map(server_of, tree.pending)))


def suspects(root: Path) -> Iterator[str | None]:
    """The servers whose files do not stand in a tree as it says, `ALL` where that is no server's; None: a step.

    Files are looked at by their existence and size, states in full. What somebody publishes meanwhile may be among
    them: publishing it once more writes nothing.
    """
    with closing(Disk(root)) as disk:
        tree = Tree(disk)
        shards: dict[str, Shard | None] = {}
        if any(not _stands(disk, path, each) for path, each in tree.shared().items()):
            yield ALL
        for server, digest in tree.servers():
            state = _state(disk, server, digest)
            if state is None or any(not _stands(disk, path, each) for path, each in state.files.items()):
                yield server
            else:
                yield _missing_in(disk, shards, state)


def _missing_in(disk: Disk, shards: dict[str, Shard | None], state: PublishedServer) -> str | None:
    """A server that the index does not have by all that it is found by; `ALL` where that cannot be read."""
    for identity in state.identities:
        if (path := shard_path(identity)) not in shards:
            shards[path] = _shard(disk, path)
        shard = shards[path]
        if shard is None or state.server not in shard.get(identity, ()):
            return ALL if shard is None else state.server
    return None


def _state(disk: Disk, server: str, digest: str) -> PublishedServer | None:
    """A server's state, if it is the one that is listed."""
    with suppress(PublishError, ValueError):
        data = disk.read(state_path(server))
        return parse(data) if data is not None and digest_of(data) == digest else None
    return None


def _stands(disk: Disk, path: str, listed: Listed) -> bool:
    return disk.size(path) == listed.size


def _shard(disk: Disk, path: str) -> Shard | None:
    with suppress(PublishError, ValueError):
        return parse_shard(disk.read(path) or b"{}")
    return None
