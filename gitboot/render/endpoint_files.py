"""Endpoint files: what an endpoint reads of a server and of the fleet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct

from gitboot.jsonio import encode_canonical, format_instant
from gitboot.render.paths import (
    BOOT,
    IMMUTABLE,
    MEDIUM,
    SIGNED,
    ContentType,
    File,
    Files,
    Role,
    find_non_script_kind,
    find_token,
    is_immutable,
)

if TYPE_CHECKING:
    from msgspec.json import Decoder

    from gitboot.model.fleet import Provisioning


FORMAT: Final = 2
_SERVERS: Final = "ops/servers/"


class ListedFile(NamedTuple):
    """The digest and the size of a file."""

    sha256: str
    size: int  # bytes


class NeededFile(NamedTuple):
    """A file that a boot fetches."""

    path: str  # below boot/
    size: int | None  # in bytes; None: the image does not say


class DiskWrite(NamedTuple):
    """How a boot that writes a disk is given, and what is answered where it is not."""

    once: bool  # whether it is given for a key: only where that stands recorded
    offer: str | None  # what is given by it then, whatever else of the plan is changed; None: it is given each time
    fallback: str | None  # the sha256 of what is answered instead; None: 404
    hop: str | None = None  # the sha256 of what sends on to who gives it; None: nobody is named, or there is no way
    needs: tuple[NeededFile, ...] = ()  # what it fetches next, as far as who answers it may have that itself
    report: str | None = None  # the token by which its installer reports: after that no boot of its attempt is given
    in_copies: bool = False  # whether OUTPUT and its copies serve it too, though it is a one-time boot


class PathVersion(NamedTuple):
    """What a path answers from an instant on."""

    since: datetime | None  # None: from before all transitions
    content: str | None  # its sha256; None: 404
    content_type: str
    role: Role
    digest: str | None = None  # of the plan whose boot it is, or a report's token; None: a fetch is no evidence
    writes: DiskWrite | None = None  # None: what it boots writes no disk
    in_window: bool = False  # whether a maintenance says so


class PublishedServer(Struct, frozen=True, kw_only=True):
    """One server's state; all of its paths turn by it together."""

    server: str
    identities: tuple[str, ...]  # what it is found by, sorted
    shows: Mapping[str, tuple[str, ...]]  # what its firmware may say of who it is: uuid, serial
    summary: Mapping[str, Any]  # as the API shows it
    plan: Mapping[str, Any]  # decision and plan, with their digests
    files: Mapping[str, ListedFile]  # all of its files but this one, by path below the output directory
    contents: Mapping[str, str]  # what is answered in place, by sha256, but for what lies in o/
    paths: Mapping[str, tuple[PathVersion, ...]]  # by path below the output directory, in the order of their instants

    @property
    def stored_paths(self) -> dict[str, str]:
        """Where content lies that is not held here: path by sha256."""
        return {
            each.sha256: path
            for path, each in self.files.items()
            if path.startswith(IMMUTABLE) or find_non_script_kind(path) is MEDIUM
        }


def state_path(server: str) -> str:
    """Return the path of a server's state."""
    return f"{_SERVERS}{server}.json"


def parse_state_path(path: str) -> str | None:
    """Whose state lies at ``path``; None: it is no state."""
    return path[len(_SERVERS) : -len(".json")] if path.startswith(_SERVERS) and path.endswith(".json") else None


def find_version(versions: tuple[PathVersion, ...], at: datetime) -> tuple[PathVersion | None, datetime | None]:
    """Return the version that is answered at ``at``, if any, and the instant of the next version."""
    found = None
    for version in versions:
        if version.since is not None and at < version.since:
            return found, version.since
        found = version
    return found, None


def render_state(state: PublishedServer) -> bytes:
    """Return the document of a state. The same state gives the same bytes."""
    document = {
        "format": FORMAT,
        "server": state.server,
        "identities": list(state.identities),
        "shows": {what: list(values) for what, values in state.shows.items()},
        "summary": state.summary,
        "plan": state.plan,
        "files": {path: {"sha256": each.sha256, "size": each.size} for path, each in state.files.items()},
        "contents": state.contents,
        "paths": {path.removeprefix(BOOT): list(map(_encode_version, each)) for path, each in state.paths.items()},
    }
    return encode_canonical(document) + b"\n"


def _encode_version(version: PathVersion) -> dict[str, Any]:
    facts: dict[str, Any] = {"content": version.content, "type": version.content_type, "role": version.role}
    if version.since is not None:
        facts["since"] = format_instant(version.since)
    if version.digest is not None:
        facts["digest"] = version.digest
    if version.in_window:
        facts["inWindow"] = True
    if version.writes is not None:
        writes = version.writes._asdict()
        in_copies = {"inCopies": True} if writes.pop("in_copies") else {}
        facts["writes"] = {**writes, "needs": list(map(list, version.writes.needs)), **in_copies}
    return facts


class Outline(NamedTuple):
    """What a publisher must know of a server that it has published."""

    identities: tuple[str, ...]
    files: tuple[str, ...]  # the paths of all of its files but the state


def parse_outline(data: bytes) -> Outline:
    """Return the outline alone of what `render` wrote, quickly. Raises ValueError for anything else."""
    from msgspec import DecodeError  # only here: an endpoint answers entries without it

    try:
        found = _outline_decoder().decode(data)
    except DecodeError as error:
        raise ValueError(f"not a server's state: {error}") from error
    return Outline(found.identities, tuple(found.files))


@cache
def _outline_decoder() -> Decoder[Any]:
    from msgspec import Raw, defstruct
    from msgspec.json import Decoder

    known = [("format", Literal[FORMAT]), ("identities", tuple[str, ...]), ("files", dict[str, Raw])]
    return Decoder(defstruct("_Outline", known))


def parse_state(data: bytes) -> PublishedServer:
    """Return the state that `render` wrote. Raises ValueError for anything else, also for another format."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"not a server's state of format {FORMAT}")
    try:
        return PublishedServer(
            server=document["server"],
            identities=tuple(document["identities"]),
            shows={what: tuple(values) for what, values in document["shows"].items()},
            summary=document["summary"],
            plan=document["plan"],
            files={path: ListedFile(each["sha256"], each["size"]) for path, each in document["files"].items()},
            contents=document["contents"],
            paths={BOOT + path: tuple(map(_parse_version, each)) for path, each in document["paths"].items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a server's state: {error!r}") from error


def _parse_version(facts: Mapping[str, Any]) -> PathVersion:
    writes, write = facts.get("writes"), None
    if writes is not None:
        write = DiskWrite(
            once=writes["once"],
            offer=writes["offer"],
            fallback=writes["fallback"],
            hop=writes["hop"],
            needs=tuple(NeededFile(path, size) for path, size in writes["needs"]),
            report=writes.get("report"),
            in_copies=writes.get("inCopies", False),
        )
    return PathVersion(
        since=datetime.fromisoformat(facts["since"]) if "since" in facts else None,
        content=facts["content"],
        content_type=facts["type"],
        role=Role(facts["role"]),
        digest=facts.get("digest"),
        writes=write,
        in_window=facts.get("inWindow", False),
    )


TERMS: Final = "ops/serving.json"
TERMS_FORMAT: Final = 1
Networks = tuple[IPv4Network | IPv6Network, ...]


class ServingTerms(Struct, frozen=True, kw_only=True):
    """What holds for every boot that an endpoint gives."""

    clients: Networks = ()  # from where machines boot; (): from anywhere
    monitors: Networks = ()  # whose fetches never count
    fetch_log_id: str | None = None  # the spool by which what is made once may be given; None: nobody may
    loss_count: int = 0  # how often that spool had forgotten something, all of which this tree knows
    forwards_machines: bool = False  # whether who may not give it sends every machine on to who may
    is_prepared: bool = False  # for a host that is yet to act: nobody is answered from it


def build_serving_terms(
    provisioning: Provisioning, fetch_log_id: str | None, *, endpoint: str | None = None, loss_count: int = 0
) -> ServingTerms:
    """Return the terms of a Fleet that names an ``endpoint``, whose instance takes in the spool of this identity."""
    return ServingTerms(
        clients=tuple(map(ip_network, provisioning.clients)),
        monitors=tuple(map(ip_network, provisioning.monitors)),
        fetch_log_id=fetch_log_id,
        loss_count=loss_count,
        forwards_machines=endpoint is not None,
    )


def render_terms(terms: ServingTerms) -> dict[str, File]:
    """Return the file of the terms, by its path."""
    facts = {
        "format": TERMS_FORMAT,
        "clients": list(map(str, terms.clients)),
        "monitors": list(map(str, terms.monitors)),
        "giver": terms.fetch_log_id,
        "forgotten": terms.loss_count,
        "sendsOn": terms.forwards_machines,
        **({"prepared": True} if terms.is_prepared else {}),
    }
    return {TERMS: File(encode_canonical(facts) + b"\n", ContentType.JSON)}


def parse_terms(data: bytes) -> ServingTerms:
    """Return the terms that `render_terms` wrote. Raises ValueError for anything else, also for another format."""
    match json.loads(data):
        case {
            "format": 1,
            "clients": list(clients),
            "monitors": list(monitors),
            "giver": str() | None as giver,
            **more,
        }:
            return ServingTerms(
                clients=tuple(map(ip_network, clients)),
                monitors=tuple(map(ip_network, monitors)),
                fetch_log_id=giver,
                loss_count=forgotten if isinstance(forgotten := more.get("forgotten"), int) else 0,
                forwards_machines=more.get("sendsOn") is True,
                is_prepared=more.get("prepared") is True,
            )
    raise ValueError(f"not the terms of format {TERMS_FORMAT} by which boots are given")


_LISTING_SERVERS: Final = f"{SIGNED}servers/"
SHARED_LISTING: Final = f"{SIGNED}shared.json"  # of the files that are no server's


class FileVersion(NamedTuple):
    """What a path has from an instant on, until the next version."""

    since: datetime | None  # None: now, when the tree was made
    sha256: str | None  # None: there is no file
    size: int  # bytes


class WindowEnd(Struct, frozen=True):
    """What a copy turns its files to at the end of a maintenance window if nobody copies the tree any more."""

    since: datetime
    files: Mapping[str, File | None]  # by path below the output directory, those that change; None: the file goes


class Listing(Struct, frozen=True, kw_only=True):
    """The files of one server, or the files that belong to no server."""

    server: str | None  # None: the files belong to no server
    files: Mapping[str, tuple[FileVersion, ...]]  # by path below the output directory, in the order of the instants
    end: WindowEnd | None = None  # of the maintenance window that is open now


def listing_path(server: str) -> str:
    """Return the path of a server's listing."""
    return f"{_LISTING_SERVERS}{server}.json"


def target_name(path: str) -> str:
    """Return the name by which TUF metadata knows the listing at ``path``."""
    return path.removeprefix(SIGNED)


def is_listing(path: str) -> bool:
    """Return whether ``path`` is the listing of a server, which the manifest lists as a file of this server."""
    return path.startswith(_LISTING_SERVERS)


def is_shared_list_file(path: str) -> bool:
    """Return whether the publisher writes ``path`` besides the files of servers: metadata, or the shared listing."""
    return path.startswith(SIGNED) and not is_listing(path)


def listing_name(path: str) -> str:
    """Return how a listing names a path: below ``boot/``, or by the path's sha256 if the path has a token.

    Anyone who can read the list learns every path in it, and a path with a token tells the token of an installation.
    """
    below = path.removeprefix(BOOT)
    if find_token(path) is None and find_non_script_kind(path) is not MEDIUM:
        return below
    return f"sha256:{sha256(below.encode()).hexdigest()}"


def build_window_end(since: datetime, before: Files, after: Files) -> WindowEnd:
    """Return what a copy changes at the end of a window, from the files that lie in the tree before and after it.

    Paths with a token stay as they are: the list must not have them, and nothing that boots names them any more.
    """
    digests = {path: (file.sha256 if (file := after.get(path)) else None) for path in sorted({*before, *after})}
    changed = {
        path: after.get(path)
        for path, digest in digests.items()
        if (path not in before or before[path].sha256 != digest)
        and path.startswith(BOOT)
        and not is_immutable(path)
        and listing_name(path) == path.removeprefix(BOOT)
    }
    return WindowEnd(since, changed)


def build_file_versions(trees: Sequence[tuple[datetime | None, Files]]) -> dict[str, tuple[FileVersion, ...]]:
    """Return the versions of each path, from the files that lie in the tree from each instant on."""
    if len(trees) == 1:  # as for most servers
        [(since, files)] = trees
        return {
            path: (FileVersion(since, file.sha256, len(file.content)),)
            for path, file in files.items()
            if path.startswith(BOOT)
        }
    found: dict[str, tuple[FileVersion, ...]] = {}
    for path in sorted({path for _, files in trees for path in files if path.startswith(BOOT)}):
        path_versions: list[FileVersion] = []
        for since, files in trees:
            file = files.get(path)
            version = FileVersion(since, file.sha256, len(file.content)) if file else FileVersion(since, None, 0)
            if version[1:] != (path_versions[-1][1:] if path_versions else (None, 0)):
                path_versions.append(version)
        found[path] = tuple(path_versions)
    return found


def build_shared_listing(files: Iterable[tuple[str, ListedFile]]) -> Listing:
    """Return the listing of the files for machines that belong to no server."""
    lasting = {path: (FileVersion(None, *each),) for path, each in files if path.startswith(BOOT)}
    return Listing(server=None, files=lasting)


def render_listing(listing: Listing) -> bytes:
    """Return the listing as canonical JSON. The same listing gives the same bytes."""
    end: dict[str, object] | None = None
    texts: dict[str, str] = {}  # that a copy needs to end the open window, by sha256
    if listing.end is not None:
        turned = {path.removeprefix(BOOT): file for path, file in listing.end.files.items()}
        files = {path: [file.sha256, len(file.content)] if file else [None, 0] for path, file in turned.items()}
        end = {"since": format_instant(listing.end.since), "files": files}
        texts = {file.sha256: file.content.decode() for file in turned.values() if file is not None}
    document = {
        "contents": texts,
        "ends": end,
        "files": {
            listing_name(path): [
                [format_instant(each.since) if each.since is not None else None, each.sha256, each.size]
                for each in found
            ]
            for path, found in listing.files.items()
        },
        "server": listing.server,
    }
    return encode_canonical(document) + b"\n"


# The index: shards that map each identity to the servers that it may mean.

INDEX: Final = "ops/index"
Shard = Mapping[str, tuple[str, ...]]  # names, sorted, by identity
Pair = tuple[str, str]  # an identity and the server that it may mean


def is_index_path(path: str) -> bool:
    return path.startswith(f"{INDEX}/")


def shard_path(identity: str) -> str:
    """Return the path of the shard that has an identity."""
    return f"{INDEX}/{sha256(identity.encode()).hexdigest()[:3]}.json"


def render_shard(shard: Shard) -> bytes:
    return encode_canonical({identity: list(names) for identity, names in shard.items()}) + b"\n"


def render_shards(shards: Mapping[str, Shard]) -> dict[str, bytes | None]:
    """Return the files of shards by path. None: the shard is empty, so its file goes."""
    return {path: render_shard(shard) if shard else None for path, shard in shards.items()}


def parse_shard(data: bytes) -> dict[str, tuple[str, ...]]:
    """Return the shard that `render_shard` wrote. Raises: `ValueError` for anything else."""
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(names, list) for names in found.values()):
        raise ValueError("not a shard of an index")
    return {identity: tuple(map(str, names)) for identity, names in found.items()}


def build_index(identities: Mapping[str, Iterable[str]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return all shards by path; ``identities`` has the identities of every server by its name."""
    shards: dict[str, dict[str, set[str]]] = {}
    for server, found in identities.items():
        for identity in found:
            shards.setdefault(shard_path(identity), {}).setdefault(identity, set()).add(server)
    return {
        path: {identity: tuple(sorted(names)) for identity, names in shard.items()} for path, shard in shards.items()
    }


def update_shard(shard: Shard, removed: Iterable[Pair], added: Iterable[Pair]) -> Shard:
    """Return a shard without the pairs ``gone``, and with the pairs ``come``. An identity without servers goes."""
    names = {identity: set(each) for identity, each in shard.items()}
    for identity, server in removed:
        names.get(identity, set()).discard(server)
    for identity, server in added:
        names.setdefault(identity, set()).add(server)
    return {identity: tuple(sorted(each)) for identity, each in names.items() if each}
