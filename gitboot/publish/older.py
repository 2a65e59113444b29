"""A tree that gitboot 0.1.0 published: whose it is, and which files in it are gitboot's, so that it can be taken over.

Its head, of version 1, names the digests of 256 shards, ``ops/manifest/<00-ff>.json``, which list files by their path.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from gitboot.publish.durable_files import Disk
from gitboot.publish.manifest import MANIFEST, Stamp, node_path


@dataclass(frozen=True, kw_only=True, slots=True)
class OlderTree:
    """What a manifest of version 1 says."""

    stamp: Stamp
    files: frozenset[str]
    parts: frozenset[str]  # of the manifest itself


def read_older(disk: Disk) -> OlderTree | None:
    """The tree if it is one of 0.1.0; what has taken the place of a shard by now is passed over."""
    head = _parse(disk.read(MANIFEST))
    match head:
        case {
            "version": 1,
            "commit": str(commit),
            "gitboot": str(gitboot),
            "ledger": str(ledger),
            "shards": dict(shards),
        }:
            parts = {node_path(name): _parse(disk.read(node_path(name))) for name in shards}
            listed = (path for part in parts.values() for path, each in part.items() if isinstance(each, dict))
            return OlderTree(
                stamp=Stamp(commit=commit, gitboot=gitboot, ledger=ledger),
                files=frozenset(listed),
                parts=frozenset(parts),
            )
    return None


def _parse(data: bytes | None) -> dict[str, object]:
    with suppress(ValueError):
        found = json.loads(data or b"")
        if isinstance(found, dict):
            return found
    return {}
