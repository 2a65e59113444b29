"""Boot responses: prepare the response for each path, and cache it until the file for the path changes."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gitboot.endpoint.boot_gate import GuardedPath
from gitboot.endpoint.connections import (
    NO_CONTENT,
    NOT_FOUND,
    UNCACHED,
    Reply,
    allow_ranges,
    build_file_reply,
    build_not_modified_reply,
)
from gitboot.endpoint.served_files import FileContent, LocatedServer, PublishedTree, Signature, read_signature
from gitboot.fetchlog.log_entries import parse_query
from gitboot.jsonio import compute_digest, encode_canonical
from gitboot.render.emulated_apis import (
    ALIASES,
    EC2,
    EC2_VERSIONS,
    FOR_UNKNOWN,
    METADATA,
    Alias,
    find_alias,
    list_alias_paths,
    parse_alias_list,
    parse_query_identities,
)
from gitboot.render.endpoint_files import PathVersion, PublishedServer, find_version
from gitboot.render.paths import (
    BOOT,
    BUNDLED,
    CHAIN,
    DATA,
    FIRST_SCRIPT,
    HTTP_BOOT,
    IMMUTABLE,
    NOCLOUD,
    QUERY_FOLDER,
    REPORTS,
    UNKNOWN,
    UNKNOWN_HTTP_BOOT,
    ContentType,
    Delivery,
    IdentityKind,
    PathLookup,
    Role,
    find_artifact_type,
    find_content_type,
    find_delivery,
    find_token,
    format_identity,
    parse_request_path,
)

_MAX_CACHED: Final = 4096
_MAX_TOTAL_BYTES: Final = 32 * 1024 * 1024  # the maximum size of all cached responses together
# the endpoint reads larger files, such as artifacts, from the disk for each request
MAX_CACHED_BYTES: Final = 1024 * 1024
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_PATH_WITHOUT_SLASH: Final = "/ipxe"  # iPXE with a configuration for boot-operator requests this path without a query


class RequestKind(StrEnum):
    """The kind of data that a client downloaded or sent."""

    ENTRY = "boot_script"  # a boot of one server, or a report; the endpoint records requests of this kind
    FILE = "file"  # any other file of boot/
    PAGE = "page"  # API, metrics, health
    ARTIFACT = "artifact"  # a file that the endpoint reads from the disk for each request
    INVENTORY = "inventory"  # an inventory that an image sends
    NOTHING = "not_found"  # there is no file at the path


class BootScript(NamedTuple):
    """A boot script, identified by its path and by the machine that boots from the script."""

    path: str
    machine: str
    local_disk: str | None = None  # the commands with which a boot loader boots the machine's local disk


class BootResponse(Struct, frozen=True, kw_only=True):
    """The response for a path.

    The response is valid while the source file is unchanged and the time is in [since, until).
    """

    request_kind: RequestKind
    reply: Reply
    etag: bytes | None = None
    not_modified: Reply | None = None  # the response for a client that already has the content
    allows_ranges: bool = False  # whether a client may request a part of the file, because BMCs read a disc in parts
    # None: all clients may fetch the path, and the endpoint does not record fetches
    guarded_path: GuardedPath | None = None
    fallback: bytes | None = None  # the response if gitboot withholds the boot; None: 404
    hop: bytes | None = None  # a script that sends the client to the endpoint that serves the boot
    content_type: str = ContentType.TEXT
    boot_script: BootScript | None = None  # None: the response is not a boot script
    file: str  # the source file of the response
    signature: Signature
    since: datetime | None = None  # None: the response is valid from the beginning
    until: datetime | None = None  # None: no change is planned
    # whether this is the boot of a maintenance, which must not start again if the clock is set back
    in_window: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.reply.body) + len(self.fallback or b"") + len(self.hop or b"")

    def is_valid(self, at: datetime) -> bool:
        return (
            (self.since is None or self.since <= at)
            and (self.until is None or at < self.until)
            and read_signature(self.file) == self.signature
        )


class BootResponses:
    """The boot responses of one output tree, with a cache of recently used responses."""

    def __init__(self, tree: PublishedTree) -> None:
        self._tree = tree
        # the responses by the requested path in any spelling
        self._cached: OrderedDict[str, BootResponse] = OrderedDict()
        self._cached_bytes = 0
        self._latest: datetime | None = None  # the latest time of a request

    def find_cached(self, path: str, at: datetime) -> BootResponse | None:
        """Return the cached response for a path, or None if the cache contains no valid response."""
        clock = self._tree.clock
        if clock.problem is None and (self._latest is None or self._latest < at):
            self._latest = at
        response = self._cached.get(path)
        if response is None:
            return None
        is_valid = response.is_valid(clock.choose_time(at))
        # the window of the boot has ended at an earlier reading of the clock
        if is_valid and response.in_window:
            is_valid = _find_latest_time_after(response.until, self._latest, clock.latest_time) is None
        if not is_valid:
            del self._cached[path]
            self._cached_bytes -= response.size_bytes
            return None
        self._cached.move_to_end(path)
        return response

    def find(self, path: str, client: Callable[[], str | None], at: datetime) -> BootResponse | None:
        """Return the response for a requested path, or None for a 404 response.

        Raises `ServerMoving` while the requested identity moves from one server to another.

        Raises ValueError if a file is damaged.
        """
        if (response := self.find_cached(path, at)) is not None:
            return response
        at = self._tree.clock.choose_time(at)
        if path == "/httpboot":
            return self._build_for_address(client(), at)
        response = self._build_response(path.removeprefix("/"), at) if path.startswith("/") else None
        if response is not None:
            self._cached[path] = response
            self._cached_bytes += response.size_bytes
            while len(self._cached) > _MAX_CACHED or self._cached_bytes > _MAX_TOTAL_BYTES:
                _, oldest = self._cached.popitem(last=False)
                self._cached_bytes -= oldest.size_bytes
        return response

    def _build_response(self, path: str, at: datetime) -> BootResponse | None:
        if (BOOT + path).startswith(IMMUTABLE):
            return self._build_immutable_response(BOOT + path)
        path = path.removeprefix(QUERY_FOLDER)
        located: dict[str, LocatedServer | None] = {}
        for lookup in parse_request_path(path):
            if lookup.identity not in located:
                located[lookup.identity] = self._tree.find_server(lookup.identity)
            if (server := located[lookup.identity]) is None:
                continue
            is_planned = lookup.path in server.state.paths
            response = self._build_for_server(server, lookup, at) if is_planned else None
            if response is not None:
                return response
            if lookup.kind in (DATA, *REPORTS):
                return self._build_for_replaced_plan(server, lookup)
            if is_planned:
                return None
        return self._build_shared_response(CHAIN if path == "ipxe/" else BOOT + path)

    # Paths of one server

    def _build_for_server(self, located: LocatedServer, lookup: PathLookup, at: datetime) -> BootResponse | None:
        version, until = self._find_version(located.state.paths[lookup.path], at)
        if version is None or version.content is None:
            return None
        content = self._read_content(located, version.content)
        disk_write, delivery = version.writes, lookup.kind.delivery
        guarded_path = _build_guarded_path(located, lookup, version)
        etag = f'"{version.content}"'.encode() if delivery.has_etag and guarded_path is None else None
        if version.role is Role.REPORT:
            reply = NO_CONTENT
        else:
            reply = build_file_reply(content, version.content_type, UNCACHED, etag)
            reply = allow_ranges(reply) if delivery.has_ranges else reply
        fallback = disk_write.fallback if disk_write is not None else None
        hop = disk_write.hop if disk_write is not None else None
        boot_script = None
        if version.role in (Role.BOOT_SCRIPT, Role.OFFER):
            local_disk = located.state.plan["decision"].get("localDisk")
            boot_script = BootScript(lookup.path, located.state.server, local_disk)
        return BootResponse(
            request_kind=RequestKind.ENTRY if guarded_path is not None else RequestKind.FILE,
            reply=reply,
            allows_ranges=delivery.has_ranges,
            etag=etag,
            not_modified=build_not_modified_reply(etag, UNCACHED) if etag is not None else None,
            guarded_path=guarded_path,
            fallback=self._read_content(located, fallback) if fallback is not None else None,
            hop=self._read_content(located, hop) if hop is not None else None,
            content_type=version.content_type,
            boot_script=boot_script,
            file=located.file,
            signature=located.signature,
            since=version.since,
            until=until,
            in_window=version.in_window,
        )

    def _build_for_replaced_plan(self, located: LocatedServer, lookup: PathLookup) -> BootResponse | None:
        """Return the response to an installer's request after a commit or a change of window replaced the plan.

        Such an installation continues. gitboot accepts the token of the installation as long as the output tree
        contains data for the token.
        """
        if lookup.kind is DATA:
            if (data := self._tree.read(lookup.path, MAX_CACHED_BYTES)) is None:
                return None
            reply = build_file_reply(data.content, find_artifact_type(lookup.path.rpartition("/")[2]), UNCACHED)
            return _build_unplanned_response(located, lookup, reply, data.file, data.signature)
        if (token := find_token(lookup.path)) is None:
            return None
        folder = f"{self._tree.root}/{DATA.build_path(lookup.identity.rpartition('/')[2], token)}".rstrip("/")
        folder_signature = read_signature(folder)
        if folder_signature is None:
            return None
        return _build_unplanned_response(located, lookup, NO_CONTENT, folder, folder_signature)

    def _find_version(
        self, versions: tuple[PathVersion, ...], at: datetime
    ) -> tuple[PathVersion | None, datetime | None]:
        """Return the version of a server's boot that is valid at a time, and the time at which the next version begins.

        If the clock was set back, gitboot does not reopen a window that has ended. If the clock may be wrong, gitboot
        does not open any window.
        """
        version, until = find_version(versions, at)
        latest = _find_latest_time_after(until, self._latest, self._tree.clock.latest_time)
        if version is None or not version.in_window or latest is None:
            return version, until
        if self._tree.clock.problem is None:
            return find_version(versions, latest)
        while version is not None and version.in_window and until is not None:
            version, until = find_version(versions, until)
        return version, until

    def _read_content(self, located: LocatedServer, sha: str) -> bytes:
        if (text := located.state.contents.get(sha)) is not None:
            return text.encode()
        path = located.state.stored_paths.get(sha)
        file = self._tree.read(path) if path is not None else None
        if file is None or _sha256(file.content) != sha:
            raise ValueError(f"{located.file} refers to content {sha}, which is missing")
        return file.content

    def _build_for_address(self, client: str | None, at: datetime) -> BootResponse | None:
        """Return the response to a request for boot-operator's UEFI HTTP boot path.

        gitboot identifies the machine by the client address.
        """
        if client is None:
            return None
        response = None
        if (located := self._tree.find_server(format_identity(IdentityKind.ADDRESS, client))) is not None:
            lookup = PathLookup(HTTP_BOOT, "", HTTP_BOOT.build_path(located.state.summary["uuid"]))
            if lookup.path in located.state.paths:
                response = self._build_for_server(located, lookup, at)
        elif (unknown := self._build_shared_response(UNKNOWN_HTTP_BOOT)) is not None:
            response = structs.replace(unknown, boot_script=BootScript(UNKNOWN_HTTP_BOOT, "unknown machine"))
        if response is None:
            return None

        def add_client_ip(content: bytes) -> bytes:
            return encode_canonical({"ClientIPs": client, **json.loads(content)}) + b"\n"

        return structs.replace(
            response,
            reply=build_file_reply(add_client_ip(bytes(response.reply.body)), ContentType.JSON, UNCACHED),
            etag=None,
            not_modified=None,
            fallback=add_client_ip(response.fallback) if response.fallback is not None else None,
        )

    # All other paths

    def _build_shared_response(self, path: str) -> BootResponse | None:
        """Return the response for a file that does not belong to a server.

        gitboot serves a new version of the file even before the manifest lists this version.
        """
        file = self._tree.read(path) if path in self._tree.read_shared_files() else None
        if file is None:
            return None
        response = self._build_file_response(file, find_content_type(path), find_delivery(path))
        if path in UNKNOWN:
            return structs.replace(response, boot_script=BootScript(path, "unknown machine"))
        return response

    def _build_immutable_response(self, path: str) -> BootResponse | None:
        """Return the response for a file whose digest is in its path.

        Return None if the file does not exist or is too large for the cache.
        """
        parts = path.split("/")
        if len(parts) != 4 or not all(parts) or any(part.startswith(".") for part in parts):
            return None
        _, _, folder, name = parts
        try:
            file = self._tree.read(path, MAX_CACHED_BYTES)
        except OSError:  # `StaticFolder` reads the file from the disk later, and reports the error
            return None
        if file is None:
            return None
        if _DIGEST.fullmatch(folder) and not self._matches_digest(folder, name, file.content):
            return BootResponse(
                request_kind=RequestKind.NOTHING, reply=NOT_FOUND, file=file.file, signature=file.signature
            )
        return self._build_file_response(file, find_content_type(path), find_delivery(path))

    def _matches_digest(self, folder: str, name: str, content: bytes) -> bool:
        """Return whether a folder's name is the digest of the file in the folder, or of the bundle with the file."""
        if _sha256(content) == folder:
            return True
        others = {other: self._tree.read(f"{IMMUTABLE}{folder}/{other}") for other in BUNDLED if other != name}
        bundle = {other: _sha256(file.content) for other, file in others.items() if file is not None}
        return compute_digest({name: _sha256(content), **bundle}) == folder

    def _build_file_response(self, file: FileContent, content_type: str, delivery: Delivery) -> BootResponse:
        etag, cache_control = f'"{_sha256(file.content)}"'.encode(), delivery.cache_control.encode()
        reply = build_file_reply(file.content, content_type, cache_control, etag)
        return BootResponse(
            request_kind=RequestKind.FILE,
            reply=allow_ranges(reply) if delivery.has_ranges else reply,
            allows_ranges=delivery.has_ranges,
            etag=etag,
            not_modified=build_not_modified_reply(etag, cache_control),
            file=file.file,
            signature=file.signature,
        )


def _build_guarded_path(located: LocatedServer, lookup: PathLookup, version: PathVersion) -> GuardedPath | None:
    """Return what the boot gate checks before a path is served, or None if all clients may fetch the path."""
    if version.writes is None and (version.digest is None or version.role is Role.OFFER):
        return None
    return GuardedPath(
        server=located.state.server,
        path=lookup.path,
        role=version.role,
        digest=version.digest,
        identity_values=located.state.shows,
        disk_write=version.writes,
    )


def _build_unplanned_response(
    located: LocatedServer, lookup: PathLookup, reply: Reply, file: str, file_signature: Signature
) -> BootResponse:
    """Return a response to an installer whose plan was replaced. The endpoint records fetches of this path."""
    return BootResponse(
        request_kind=RequestKind.ENTRY,
        reply=reply,
        guarded_path=GuardedPath(
            server=located.state.server,
            path=lookup.path,
            role=lookup.kind.role,
            digest=find_token(lookup.path),
            identity_values=located.state.shows,
        ),
        file=file,
        signature=file_signature,
    )


def _find_latest_time_after(until: datetime | None, *times: datetime | None) -> datetime | None:
    """Return the latest of several times if it is at or after ``until``, and otherwise None."""
    latest = max(filter(None, times), default=None)
    return latest if until is not None and latest is not None and latest >= until else None


def _sha256(content: bytes) -> str:
    return sha256(content).hexdigest()


class AliasResponses:
    """Boot responses for gitboot's own paths, and for the paths of other boot servers that the Fleet enables."""

    def __init__(self, tree: PublishedTree, responses: BootResponses) -> None:
        self._tree, self._responses = tree, responses
        # the outputs, and the signature of the file from which gitboot read them
        self._cached_outputs: tuple[Signature | None, frozenset[str]] = (None, frozenset())

    def find(self, path: str, query: bytes, client: Callable[[], str | None], at: datetime) -> BootResponse | None:
        """Return the response for a path or for an alias. Raises the same errors as `BootResponses.find`."""
        relative_path, outputs = path.removeprefix("/"), self.read_outputs()
        parameters = {key: value for key, value in parse_query(query.decode("latin-1")).items() if value}
        alias = find_alias(relative_path, outputs) if outputs else None
        if alias is not None and not parameters.keys().isdisjoint(alias.keys):
            return self._find_by_query(alias, parameters, query, client, at)
        if (unknown_alias := FOR_UNKNOWN.get(relative_path)) is not None:
            response = self._find_by_query(unknown_alias, parameters, query, client, at)
            if response is not None:
                return response
        version, _, rest = relative_path.partition("/")
        if EC2 in outputs and version in EC2_VERSIONS:
            return self._build_for_ec2(rest, client, at)
        if path == _PATH_WITHOUT_SLASH:
            path = f"/{FIRST_SCRIPT.removeprefix(BOOT)}"
        return self._responses.find(path, client, at)

    def read_outputs(self) -> frozenset[str]:
        """Return the outputs whose paths the endpoint serves, or an empty set if the aliases file is unreadable."""
        if read_signature(f"{self._tree.root}/{ALIASES}") != self._cached_outputs[0]:
            file = self._tree.read(ALIASES)
            outputs = frozenset[str]()
            if file is not None:
                with suppress(ValueError):
                    outputs = parse_alias_list(file.content)
            self._cached_outputs = (file.signature if file is not None else None), outputs
        return self._cached_outputs[1]

    def _find_by_query(
        self, alias: Alias, parameters: Mapping[str, str], query: bytes, client: Callable[[], str | None], at: datetime
    ) -> BootResponse | None:
        for identity in parse_query_identities(alias, parameters):
            located = self._tree.find_server(format_identity(identity.kind, identity.value))
            # the request may come from an installer whose plan was replaced
            if located is None and identity.kind is IdentityKind.TOKEN:
                located = self._locate_by_address(client)
            if located is None:
                continue
            if alias is METADATA:
                return _build_text_response(located, _format_variables(located.state, parameters, query))
            for path in list_alias_paths(alias, identity, located.state.summary["uuid"], located.state.summary["macs"]):
                if (response := self._responses.find(f"/{path}", client, at)) is not None:
                    return response
        return None

    def _locate_by_address(self, client: Callable[[], str | None]) -> LocatedServer | None:
        address = client()
        return self._tree.find_server(format_identity(IdentityKind.ADDRESS, address)) if address is not None else None

    def _build_for_ec2(self, ec2_path: str, client: Callable[[], str | None], at: datetime) -> BootResponse | None:
        """Return the response for a path of EC2's metadata service: a fact about the machine, or its user data."""
        if (located := self._locate_by_address(client)) is None:
            return None
        if ec2_path == "user-data":
            path = NOCLOUD.build_path(located.state.summary["uuid"], name=ec2_path).removeprefix(BOOT)
            return self._responses.find(f"/{path}", client, at)
        values = {
            "hostname": located.state.server,
            "instance-id": located.state.summary["uuid"],
            "local-hostname": located.state.server,
        }
        texts = {
            "": "meta-data/\nuser-data",
            "meta-data": "\n".join(values),
            "meta-data/": "\n".join(values),
            **{f"meta-data/{name}": value for name, value in values.items()},
        }
        return _build_text_response(located, texts[ec2_path]) if ec2_path in texts else None


def _build_text_response(located: LocatedServer, text: str) -> BootResponse:
    """Return a response with a text that was made for one request. gitboot does not record fetches of such texts."""
    return BootResponse(
        request_kind=RequestKind.FILE,
        reply=build_file_reply(text.encode(), ContentType.TEXT, UNCACHED),
        file=located.file,
        signature=located.signature,
    )


def _format_variables(state: PublishedServer, parameters: Mapping[str, str], query: bytes) -> str:
    """Format labels and query parameters as matchbox does (docs/api-http.md), with one shell variable per line."""
    request_variables = ((f"REQUEST_QUERY_{key}", value) for key, value in sorted(parameters.items()))
    named_values = (*sorted(state.summary["labels"].items()), *request_variables)
    variables = {re.sub(r"[^A-Z0-9_]", "_", name.upper(), flags=re.ASCII): value for name, value in named_values}
    variables["REQUEST_RAW_QUERY"] = query.decode("latin-1")
    return "".join(f"{name}={value}\n" for name, value in variables.items() if value.isprintable())
