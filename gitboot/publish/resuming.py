"""What a published tree holds by its own word, for whoever goes on publishing there; and where that does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.disk import Disk
from gitboot.publish.index import Shard, parse_shard, shard_path
from gitboot.publish.manifest import digest_of
from gitboot.publish.tree import Tree
from gitboot.render.paths import is_content
from gitboot.render.state import Listed, PublishedServer, parse, state_path

ALL: Final = ""  # stands for a server where the files of all are meant, or those that are no server's


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Each server's state, and the content that it names; and the listing of the files that are no server's."""

    states: Mapping[str, str]  # sha256 by server
    content: Mapping[str, tuple[str, ...]]  # paths by server; of the files that are no server's by `ALL`
    shared: str | None  # sha256 of the listing


def now_named(tree: Tree, before: Inventory) -> dict[str, tuple[str, ...]] | None:
    """What each server names by now of which a tree holds something else than before; None: it cannot be gone on from.

    Only what the tree says of itself is read: whether that holds is for `suspects` to find out.
    """
    if tree.head is None or tree.pending:
        return None
    found: dict[str, tuple[str, ...]] = {}
    with suppress(PublishError):
        now = dict(tree.servers())
        if tree.head.shared != before.shared:
            found[ALL] = tuple(filter(is_content, tree.shared()))
        for server in now.keys() | before.states.keys():
            if now.get(server) == before.states.get(server):
                continue
            state = tree.outline(server) if server in now else None
            if state is None and server in now:
                return None
            found[server] = tuple(filter(is_content, state.files)) if state is not None else ()
        return found
    return None


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
