"""The index: which servers may be meant by a MAC address, UUID, serial number or IP address.

``ops/index/<000-fff>.json`` has, for each identity whose sha256 begins with these twelve bits, the names of servers,
sorted. A name is a candidate: the server is the one whose state claims the identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from gitboot.jsonio import canonical

INDEX: Final = "ops/index"

Shard = Mapping[str, tuple[str, ...]]  # names, sorted, by identity


def is_of_index(path: str) -> bool:
    return path.startswith(f"{INDEX}/")


def shard_path(identity: str) -> str:
    """Where the shard lies that has an identity."""
    return f"{INDEX}/{sha256(identity.encode()).hexdigest()[:3]}.json"


def render_shard(shard: Shard) -> bytes:
    return canonical({identity: list(names) for identity, names in shard.items()}) + b"\n"


def parse_shard(data: bytes) -> dict[str, tuple[str, ...]]:
    """What ``render_shard`` wrote; ValueError for anything else."""
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(names, list) for names in found.values()):
        raise ValueError("not a shard of an index")
    return {identity: tuple(map(str, names)) for identity, names in found.items()}


def index_of(identities: Mapping[str, Iterable[str]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The shards, by path, where these are all servers and what they are found by."""
    shards: dict[str, dict[str, set[str]]] = {}
    for server, found in identities.items():
        for identity in found:
            shards.setdefault(shard_path(identity), {}).setdefault(identity, set()).add(server)
    return {
        path: {identity: tuple(sorted(names)) for identity, names in shard.items()} for path, shard in shards.items()
    }


def changed(shard: Shard, gone: Iterable[tuple[str, str]], come: Iterable[tuple[str, str]]) -> Shard:
    """A shard without some pairs of identity and server, and with others; sorted names, no identity without one."""
    names = {identity: set(each) for identity, each in shard.items()}
    for identity, server in gone:
        names.get(identity, set()).discard(server)
    for identity, server in come:
        names.setdefault(identity, set()).add(server)
    return {identity: tuple(sorted(each)) for identity, each in names.items() if each}
