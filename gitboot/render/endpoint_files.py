"""Endpoint files: the states of servers, the serving terms, the listings and the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct, structs

from gitboot.jsonio import build_json_decoder, encode_canonical, format_instant, parse_json
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
    size: int | None  # size in bytes; None: the image does not state the size


class DiskWrite(NamedTuple):
    """The way in which an endpoint serves a boot that writes a disk.

    This includes the content that the endpoint serves if it withholds the boot.
    """

    once: bool  # whether this is a one-time boot; the endpoint must record a fetch before it serves such a boot
    # identifies the offer of a one-time boot, independent of other changes to the plan; None: the boot is served every
    # time
    offer: str | None
    # sha256 of the content that the endpoint serves if it withholds the boot; None: the endpoint returns a 404
    fallback: str | None
    # sha256 of the script that queries the endpoint that may serve the boot; None: there is no such script
    hop: str | None = None
    needs: tuple[NeededFile, ...] = ()  # the files that the boot fetches next and that an endpoint may store
    # token of the installer's report; after this report, the endpoint no longer serves this attempt's boot
    report: str | None = None
    in_copies: bool = False  # whether OUTPUT and its copies also serve the boot, although it is a one-time boot


class PathVersion(NamedTuple):
    """The content that an endpoint returns at a path, from one instant until the next version."""

    since: datetime | None  # None: the version applies before the first transition
    content: str | None  # sha256 of the content; None: the endpoint returns a 404
    content_type: str
    role: Role
    digest: str | None = None  # the digest of the plan, or the token of a report; None: a fetch is not evidence
    writes: DiskWrite | None = None  # None: the boot does not write disks
    in_window: bool = False  # whether a maintenance selects the boot


class PublishedServer(Struct, frozen=True, kw_only=True):
    """The published state of one server.

    The state is a single file, so that all paths of the server change together.
    """

    server: str
    identities: tuple[str, ...]  # sorted
    shows: Mapping[str, tuple[str, ...]]  # the values of uuid and serial that the server's firmware may report
    summary: Mapping[str, Any]  # the plan in the form of the API
    plan: Mapping[str, Any]  # decision and plan, with their digests
    files: Mapping[str, ListedFile]  # all files of the server except this state, by path below the output directory
    contents: Mapping[str, str]  # response texts by sha256, without the texts in `stored_paths`
    paths: Mapping[str, tuple[PathVersion, ...]]  # versions by path below the output directory, sorted by time

    @property
    def stored_paths(self) -> dict[str, str]:
        """The paths of the contents that the output tree stores as separate files, by sha256."""
        return {
            file.sha256: path
            for path, file in self.files.items()
            if path.startswith(IMMUTABLE) or find_non_script_kind(path) is MEDIUM
        }


def state_path(server: str) -> str:
    return f"{_SERVERS}{server}.json"


def parse_state_path(path: str) -> str | None:
    """Return the server whose state file is at ``path``, or None if ``path`` is not a state file."""
    return path[len(_SERVERS) : -len(".json")] if path.startswith(_SERVERS) and path.endswith(".json") else None


def find_version(versions: tuple[PathVersion, ...], at: datetime) -> tuple[PathVersion | None, datetime | None]:
    """Return the version that applies at ``at``, and the instant at which the next version begins.

    Each value is None if there is no such version.
    """
    current = None
    for version in versions:
        if version.since is not None and at < version.since:
            return current, version.since
        current = version
    return current, None


def render_state(state: PublishedServer) -> bytes:
    """Return the state as canonical JSON. Equal states have equal bytes."""
    document = {
        "format": FORMAT,
        "server": state.server,
        "identities": list(state.identities),
        "shows": {kind: list(values) for kind, values in state.shows.items()},
        "summary": state.summary,
        "plan": state.plan,
        "files": {path: {"sha256": file.sha256, "size": file.size} for path, file in state.files.items()},
        "contents": state.contents,
        "paths": {
            path.removeprefix(BOOT): [_encode_version(version) for version in versions]
            for path, versions in state.paths.items()
        },
    }
    return encode_canonical(document) + b"\n"


def _encode_version(version: PathVersion) -> dict[str, Any]:
    fields: dict[str, Any] = {"content": version.content, "type": version.content_type, "role": version.role}
    if version.since is not None:
        fields["since"] = format_instant(version.since)
    if version.digest is not None:
        fields["digest"] = version.digest
    if version.in_window:
        fields["inWindow"] = True
    if version.writes is not None:
        fields["writes"] = {**version.writes._asdict(), "needs": list(map(list, version.writes.needs))}
        if fields["writes"].pop("in_copies"):
            fields["writes"]["inCopies"] = True
    return fields


class Outline(NamedTuple):
    """The parts of a published state that a publisher needs."""

    identities: tuple[str, ...]
    files: tuple[str, ...]  # the paths of all files of the server except the state


def parse_outline(data: bytes) -> Outline:
    """Return the outline of a state, without parsing the other parts of the state.

    Raises `ValueError` if the content is not a state.
    """
    try:
        outline = _build_outline_decoder().decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file does not contain a server's state: {error}") from error
    return Outline(outline.identities, tuple(outline.files))


@cache
def _build_outline_decoder() -> Decoder[Any]:
    from msgspec import Raw, defstruct
    from msgspec.json import Decoder

    return Decoder(
        defstruct("_Outline", [("format", Literal[FORMAT]), ("identities", tuple[str, ...]), ("files", dict[str, Raw])])
    )


class _WriteFields(Struct, frozen=True, kw_only=True, rename="camel"):
    """The JSON of a `DiskWrite`."""

    once: bool
    offer: str | None
    fallback: str | None
    hop: str | None
    needs: tuple[NeededFile, ...]
    report: str | None = None
    in_copies: bool = False


class _VersionFields(Struct, frozen=True, kw_only=True, rename="camel"):
    """The JSON of a `PathVersion`."""

    since: Annotated[datetime, Meta(tz=True)] | None = None
    content: str | None
    type: str
    role: Role
    digest: str | None = None
    writes: _WriteFields | None = None
    in_window: bool = False


class _FileFields(Struct, frozen=True):
    """The JSON of a `ListedFile`."""

    sha256: str
    size: int


class _StateFields(Struct, frozen=True, kw_only=True):
    """The JSON of a `PublishedServer`."""

    format: Literal[2]
    server: str
    identities: tuple[str, ...]
    shows: dict[str, tuple[str, ...]]
    summary: dict[str, Any]
    plan: dict[str, Any]
    files: dict[str, _FileFields]
    contents: dict[str, str]
    paths: dict[str, tuple[_VersionFields, ...]]


_decode_state: Final = build_json_decoder(_StateFields)


def parse_state(data: bytes) -> PublishedServer:
    """Parse a state that `render_state` wrote. Raises `ValueError` if the content is not a state in this format."""
    try:
        fields = _decode_state(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file does not contain a server's state in format {FORMAT}: {error}") from error
    return PublishedServer(
        server=fields.server,
        identities=fields.identities,
        shows=fields.shows,
        summary=fields.summary,
        plan=fields.plan,
        files={path: ListedFile(file.sha256, file.size) for path, file in fields.files.items()},
        contents=fields.contents,
        paths={BOOT + path: tuple(map(_build_version, versions)) for path, versions in fields.paths.items()},
    )


def _build_version(fields: _VersionFields) -> PathVersion:
    writes = fields.writes
    return PathVersion(
        since=fields.since,
        content=fields.content,
        content_type=fields.type,
        role=fields.role,
        digest=fields.digest,
        writes=DiskWrite(**structs.asdict(writes)) if writes is not None else None,
        in_window=fields.in_window,
    )


TERMS: Final = "ops/serving.json"
TERMS_FORMAT: Final = 1
Networks = tuple[IPv4Network | IPv6Network, ...]


class ServingTerms(Struct, frozen=True, kw_only=True):
    """The rules that apply to all boots that an endpoint serves."""

    clients: Networks = ()  # networks from which machines boot; (): all networks
    monitors: Networks = ()  # networks whose fetches are never evidence of a boot
    # the fetch log that must record one-time boots; None: endpoints do not serve one-time boots
    fetch_log_id: str | None = None
    loss_count: int = 0  # the number of deletions from this fetch log at the time of the publication
    forwards_machines: bool = False  # whether other endpoints redirect machines to the endpoint with this fetch log
    # whether the tree is for a host that is not active yet; endpoints do not serve boots from such a tree
    is_prepared: bool = False


def build_serving_terms(
    provisioning: Provisioning, fetch_log_id: str | None, *, endpoint: str | None = None, loss_count: int = 0
) -> ServingTerms:
    """Return a Fleet's serving terms for an instance that reads the fetch log ``fetch_log_id``."""
    return ServingTerms(
        clients=tuple(map(ip_network, provisioning.clients)),
        monitors=tuple(map(ip_network, provisioning.monitors)),
        fetch_log_id=fetch_log_id,
        loss_count=loss_count,
        forwards_machines=endpoint is not None,
    )


def render_terms(terms: ServingTerms) -> dict[str, File]:
    """Return the path and the content of the file with the rules by which endpoints serve boots."""
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
    """Parse the serving terms that `render_terms` wrote.

    Raises `ValueError` if the content is not serving terms in this format.
    """
    match parse_json(data):
        case {
            "format": 1,
            "clients": list(clients),
            "monitors": list(monitors),
            "giver": str() | None as log_id,
            **more,
        }:
            return ServingTerms(
                clients=tuple(map(ip_network, clients)),
                monitors=tuple(map(ip_network, monitors)),
                fetch_log_id=log_id,
                loss_count=loss_count if isinstance(loss_count := more.get("forgotten"), int) else 0,
                forwards_machines=more.get("sendsOn") is True,
                is_prepared=more.get("prepared") is True,
            )
    raise ValueError(f"the file does not contain serving terms in format {TERMS_FORMAT}")


_LISTING_SERVERS: Final = f"{SIGNED}servers/"
SHARED_LISTING: Final = f"{SIGNED}shared.json"  # the listing of the files that do not belong to a server


class FileVersion(NamedTuple):
    """The state of one file, from one instant until the next version."""

    since: datetime | None  # None: from the publication of the tree
    sha256: str | None  # None: there is no file
    size: int  # bytes


class WindowEnd(Struct, frozen=True):
    """The changes that a copy makes at the end of a maintenance window if it has not received a newer tree."""

    since: datetime
    files: Mapping[str, File | None]  # the files that change, by path below the output directory; None: delete the file


class Listing(Struct, frozen=True, kw_only=True):
    """The files of one server, or the files that do not belong to any server."""

    server: str | None  # None: the files do not belong to a server
    files: Mapping[str, tuple[FileVersion, ...]]  # by path below the output directory, sorted by time
    end: WindowEnd | None = None  # the end of the maintenance window that is open now


def listing_path(server: str) -> str:
    return f"{_LISTING_SERVERS}{server}.json"


def target_name(path: str) -> str:
    """Return the name that TUF metadata uses for the listing at ``path``."""
    return path.removeprefix(SIGNED)


def is_listing(path: str) -> bool:
    """Return whether ``path`` is a server's listing, which the manifest includes in the server's files."""
    return path.startswith(_LISTING_SERVERS)


def is_shared_list_file(path: str) -> bool:
    """Return whether ``path`` is a part of the signed list that does not belong to a server."""
    return path.startswith(SIGNED) and not is_listing(path)


def listing_name(path: str) -> str:
    """Return the name of a path in a listing: the path below ``boot/``, or its sha256 if the path contains a token.

    Everyone who can read the list can read all of its paths, and a path with a token would reveal the token of an
    installation.
    """
    relative_path = path.removeprefix(BOOT)
    if find_token(path) is None and find_non_script_kind(path) is not MEDIUM:
        return relative_path
    return f"sha256:{sha256(relative_path.encode()).hexdigest()}"


def build_window_end(since: datetime, before: Files, after: Files) -> WindowEnd:
    """Return the changes that a copy makes at the end of a window.

    ``before`` and ``after`` are the tree's files before and after the end. The result omits paths with a token, because
    the list must not contain these paths and boot scripts do not refer to them after the window.
    """
    changed: dict[str, File | None] = {}
    for path in sorted({*before, *after}):
        if not path.startswith(BOOT) or is_immutable(path) or listing_name(path) != path.removeprefix(BOOT):
            continue
        old_file, new_file = before.get(path), after.get(path)
        if old_file is None or new_file is None or old_file.sha256 != new_file.sha256:
            changed[path] = new_file
    return WindowEnd(since, changed)


def build_file_versions(trees: Sequence[tuple[datetime | None, Files]]) -> dict[str, tuple[FileVersion, ...]]:
    """Return the versions of each path.

    ``trees`` contains pairs of an instant and the files that the output tree contains from this instant on.
    """
    if len(trees) == 1:  # most servers have only one version of each file
        since, files = trees[0]
        return {
            path: (FileVersion(since, file.sha256, len(file.content)),)
            for path, file in files.items()
            if path.startswith(BOOT)
        }
    versions_by_path: dict[str, tuple[FileVersion, ...]] = {}
    for path in sorted({path for _, files in trees for path in files if path.startswith(BOOT)}):
        versions: list[FileVersion] = []
        last_content: tuple[str | None, int] = None, 0
        for since, files in trees:
            file = files.get(path)
            content = (file.sha256, len(file.content)) if file is not None else (None, 0)
            if content != last_content:
                versions.append(FileVersion(since, *content))
                last_content = content
        versions_by_path[path] = tuple(versions)
    return versions_by_path


def build_shared_listing(files: Iterable[tuple[str, ListedFile]]) -> Listing:
    """Return the listing of the boot files that do not belong to a server."""
    return Listing(
        server=None,
        files={path: (FileVersion(None, file.sha256, file.size),) for path, file in files if path.startswith(BOOT)},
    )


def render_listing(listing: Listing) -> bytes:
    """Return the listing as canonical JSON. Equal listings have equal bytes."""
    end: dict[str, object] | None = None
    texts: dict[str, str] = {}  # the texts that a copy needs at the end of the open window, by sha256
    if listing.end is not None:
        changed = {path.removeprefix(BOOT): file for path, file in listing.end.files.items()}
        end = {
            "since": format_instant(listing.end.since),
            "files": {path: [file.sha256, len(file.content)] if file else [None, 0] for path, file in changed.items()},
        }
        texts = {file.sha256: file.content.decode() for file in changed.values() if file is not None}
    document = {
        "contents": texts,
        "ends": end,
        "files": {
            listing_name(path): [
                [format_instant(version.since) if version.since is not None else None, version.sha256, version.size]
                for version in versions
            ]
            for path, versions in listing.files.items()
        },
        "server": listing.server,
    }
    return encode_canonical(document) + b"\n"


# The index: shards that map each identity to the servers that may have the identity.

INDEX: Final = "ops/index"
Shard = Mapping[str, tuple[str, ...]]  # sorted server names by identity
Pair = tuple[str, str]  # an identity, and a server that may have the identity


def is_index_path(path: str) -> bool:
    return path.startswith(f"{INDEX}/")


def shard_path(identity: str) -> str:
    """Return the path of the shard that contains an identity."""
    return f"{INDEX}/{sha256(identity.encode()).hexdigest()[:3]}.json"


def render_shard(shard: Shard) -> bytes:
    return encode_canonical({identity: list(names) for identity, names in shard.items()}) + b"\n"


def render_shards(shards: Mapping[str, Shard]) -> dict[str, bytes | None]:
    """Return the shard files by path. If a shard is empty, the value is None, and the caller must delete the file."""
    return {path: render_shard(shard) if shard else None for path, shard in shards.items()}


_decode_shard: Final = build_json_decoder(dict[str, tuple[str, ...]])


def parse_shard(data: bytes) -> dict[str, tuple[str, ...]]:
    """Parse a shard that `render_shard` wrote. Raises `ValueError` if the content is not a shard."""
    try:
        return _decode_shard(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file is not an index shard: {error}") from error


def build_index(identities: Mapping[str, Iterable[str]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return all shards by path. ``identities`` are the identities of each server, by server name."""
    shards: dict[str, dict[str, set[str]]] = {}
    for server, server_identities in identities.items():
        for identity in server_identities:
            shards.setdefault(shard_path(identity), {}).setdefault(identity, set()).add(server)
    return {
        path: {identity: tuple(sorted(names)) for identity, names in shard.items()} for path, shard in shards.items()
    }


def update_shard(shard: Shard, removed_pairs: Iterable[Pair], added_pairs: Iterable[Pair]) -> Shard:
    """Remove pairs from a shard and add other pairs. Remove identities that then have no server."""
    servers = {identity: set(names) for identity, names in shard.items()}
    for identity, server in removed_pairs:
        servers.get(identity, set()).discard(server)
    for identity, server in added_pairs:
        servers.setdefault(identity, set()).add(server)
    return {identity: tuple(sorted(names)) for identity, names in servers.items() if names}
