"""Manifest of an output tree: render and parse the head, the nodes, the leaves and the listing of shared files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct

from gitboot.jsonio import encode_canonical, parse_json
from gitboot.render.endpoint_files import ListedFile

MANIFEST: Final = "ops/manifest.json"
SHARED: Final = "ops/manifest/shared.json"
STATUS: Final = "ops/status.json"  # the file with the state of the instance; no manifest lists this file
HISTORY: Final = "ops/history.json"  # the file with the last commits, for the page; no manifest lists this file
UNKNOWN: Final = "ops/unknown.json"  # the file with unknown machines; no manifest lists this file
_NODES: Final = "ops/manifest/"
_PART: Final = re.compile(rf"{_NODES}([0-9a-f]{{2}})(?:/([0-9a-f]{{2}}))?\.json")
FORMAT: Final = 2
Digests = Mapping[str, str]  # sha256 digests by name


class TreeOrigin(Struct, frozen=True, kw_only=True):
    """The commit, the gitboot version and the ledger that were used to publish a tree."""

    commit: str
    gitboot: str  # the version of gitboot
    ledger: str  # the identity of the instance that owns the tree


class Head(Struct, frozen=True, kw_only=True):
    """The content of ``manifest.json``."""

    origin: TreeOrigin
    nodes: Digests  # the digest of each node that has leaves
    shared: str | None  # the digest of the listing of shared files; None: there is no listing


class Manifest(Struct, frozen=True, kw_only=True):
    """All files of a tree, with their digests and sizes."""

    origin: TreeOrigin
    files: Mapping[str, ListedFile]  # files by path, sorted; they include the states of servers


class UnknownFormat(ValueError):
    """The manifest has a format that this version of gitboot does not read."""


def is_manifest_part(path: str) -> bool:
    return path == MANIFEST or path.startswith(_NODES)


def find_leaf(server: str) -> tuple[str, str]:
    """Return the names of the node and the leaf that contain the digest of a server's state."""
    digest = sha256(server.encode()).digest()
    return f"{digest[0] >> 2:02x}", f"{digest[1] >> 2:02x}"


def node_path(node: str) -> str:
    return f"{_NODES}{node}.json"


def leaf_path(node: str, leaf: str) -> str:
    return f"{_NODES}{node}/{leaf}.json"


def parse_part_path(path: str) -> tuple[str | None, str | None]:
    """Return the names of the node and the leaf in a manifest path.

    If the path belongs to a node, the leaf is None. If the path belongs to neither a node nor a leaf, both are None.
    """
    match = _PART.fullmatch(path)
    return (match[1], match[2]) if match else (None, None)


def compute_digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal digits."""
    return sha256(content).hexdigest()


def render_digests(digests: Digests) -> bytes:
    """Render a node or a leaf of the manifest as JSON."""
    return encode_canonical(dict(digests)) + b"\n"


def parse_digests(data: bytes) -> dict[str, str]:
    """Parse a node or a leaf of the manifest. Raises ValueError."""
    digests = parse_json(data)
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise ValueError("the file is not a valid part of a manifest")
    return digests


def render_listing(files: Mapping[str, ListedFile]) -> bytes:
    """Render the listing of shared files as JSON."""
    lines = (
        f'{json.dumps(path, ensure_ascii=False)}:{{"sha256":"{file.sha256}","size":{file.size}}}'
        for path, file in sorted(files.items())
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def parse_listing(data: bytes) -> dict[str, ListedFile]:
    """Parse the listing of shared files. Raises ValueError."""
    listing = parse_json(data)
    try:
        return {path: ListedFile(file["sha256"], file["size"]) for path, file in listing.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("the file is not a file listing") from error


def render_head(head: Head) -> bytes:
    """Render ``manifest.json``."""
    facts = {
        "commit": head.origin.commit,
        "gitboot": head.origin.gitboot,
        "ledger": head.origin.ledger,
        "nodes": dict(head.nodes),
        "shared": head.shared,
        "version": FORMAT,
    }
    return encode_canonical(facts) + b"\n"


def parse_head(data: bytes) -> Head:
    """Parse ``manifest.json``.

    Raises UnknownFormat if the file has the format of another version of gitboot, and ValueError if the file is not a
    manifest.
    """
    document: Any = parse_json(data)
    match document:
        case {
            "commit": str(commit),
            "gitboot": str(gitboot),
            "ledger": str(ledger),
            "nodes": dict(nodes),
            "shared": str() | None as shared,
            "version": 2,
        } if all(isinstance(digest, str) for digest in nodes.values()):
            return Head(origin=TreeOrigin(commit=commit, gitboot=gitboot, ledger=ledger), nodes=nodes, shared=shared)
        case {"version": int(version)} if version != FORMAT:
            raise UnknownFormat(f"the manifest has format {version}, but this version of gitboot reads format {FORMAT}")
    raise ValueError(f"the file is not a manifest in format {FORMAT}")
