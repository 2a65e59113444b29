"""The manifest: which files of a published tree are gitboot's, and what each has to be.

``ops/manifest.json``, the head, names the commit and the digest of each shard; ``ops/manifest/<00-ff>.json`` is a
shard: the files whose path's sha256 begins with that byte, one a line, sorted. A shard without files has no file.
No instant and nothing of the tree's past stands in them: the same files of the same commit give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NewType

from gitboot.canonical import canonical
from gitboot.render.tree import File

MANIFEST: Final = "ops/manifest.json"
_SHARDS: Final = "ops/manifest/"
_VERSION: Final = 1

# How a shard lists a file: canonical JSON. It stays text because it is compared and copied far more often than
# it is read.
Listing = NewType("Listing", str)
Shard = Mapping[str, Listing]  # by path

_FIRST_KEY: Final = ':{"contentType":'  # no path and no value can hold it: their quotes are escaped
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamp:
    """Of what a tree was made, and for whom."""

    commit: str
    gitboot: str  # its version
    ledger: str  # the identity of the instance that owns the tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What ``manifest.json`` says."""

    stamp: Stamp
    shards: Mapping[str, str]  # the sha256 of each shard that lists files, by its name


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """What the manifest says of one file."""

    sha256: str
    size: int  # in bytes
    content_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What the head and all its shards say."""

    stamp: Stamp
    files: Mapping[str, Listed]  # by path, sorted


def is_of_manifest(path: str) -> bool:
    return path == MANIFEST or path.startswith(_SHARDS)


def shard_of(path: str) -> str:
    """The name of the shard that lists ``path``: 00 to ff."""
    return sha256(path.encode()).hexdigest()[:2]


def shard_path(name: str) -> str:
    return f"{_SHARDS}{name}.json"


def listing(file: File) -> Listing:
    content_type = _quoted(str(file.content_type))
    return Listing(f'{{"contentType":{content_type},"sha256":"{file.sha256}","size":{len(file.content)}}}')


def parse_listing(text: Listing) -> Listed:
    value = json.loads(text)
    return Listed(sha256=value["sha256"], size=value["size"], content_type=value["contentType"])


def amend(before: Head | None, stamp: Stamp, shards: Mapping[str, Shard]) -> tuple[Head, dict[str, bytes | None]]:
    """The head when ``shards`` have changed, and the files of the manifest that change with them, the head last.

    None is a shard that lists nothing any more, and so has no file.
    """
    rendered = {name: render_shard(shard) if shard else None for name, shard in sorted(shards.items())}
    digests = dict(before.shards) if before else {}
    for name, data in rendered.items():
        digests.pop(name, None)
        if data is not None:
            digests[name] = sha256(data).hexdigest()
    head = Head(stamp=stamp, shards=digests)
    files = {shard_path(name): data for name, data in rendered.items()}
    return head, files | {MANIFEST: render_head(head)}


def render_shard(shard: Shard) -> bytes:
    lines = [f"{_quoted(path)}:{text}" for path, text in sorted(shard.items())]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def parse_shard(data: bytes) -> dict[str, Listing]:
    """What ``render_shard`` wrote; ValueError for anything else, other layouts of the same JSON included."""
    lines = data.decode().split("\n")
    if lines[0] != "{" or lines[-2:] != ["}", ""]:
        raise ValueError("not a shard of a manifest")
    return dict(map(_parse_line, lines[1:-2]))


def _parse_line(line: str) -> tuple[str, Listing]:
    path, key, rest = line.removesuffix(",").partition(_FIRST_KEY)
    if not key:
        raise ValueError(f"not a line of a shard: {line}")
    return json.loads(path), Listing(key[1:] + rest)


def render_head(head: Head) -> bytes:
    value = {
        "commit": head.stamp.commit,
        "gitboot": head.stamp.gitboot,
        "ledger": head.stamp.ledger,
        "shards": dict(head.shards),
        "version": _VERSION,
    }
    return canonical(value) + b"\n"


def parse_head(data: bytes) -> Head:
    """What ``render_head`` wrote; ValueError for anything else, another version's manifest included."""
    match json.loads(data):
        case {
            "commit": str(commit),
            "gitboot": str(gitboot),
            "ledger": str(ledger),
            "shards": dict(shards),
            "version": 1,
        }:
            return Head(stamp=Stamp(commit=commit, gitboot=gitboot, ledger=ledger), shards=shards)
    raise ValueError(f"not a manifest of version {_VERSION}")
