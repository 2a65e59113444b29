"""Followed tree: the output tree that targets follow, read without a lock while an instance publishes to it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import structs

from gitboot.errors import TemporaryError
from gitboot.jsonio import encode_canonical
from gitboot.publish.manifest import (
    MANIFEST,
    compute_digest,
    leaf_path,
    node_path,
    parse_digests,
    parse_head,
    parse_listing,
    render_listing,
)
from gitboot.publish.manifest import SHARED as SHARED_LISTING
from gitboot.render.endpoint_files import ListedFile, PublishedServer, parse_state, state_path
from gitboot.render.paths import BOOT, LIST_TIMESTAMP, SIGNED, Role

SHARED: Final = ""  # this text replaces a server name for files that do not belong to a server
LIST: Final = ".list"  # this text replaces a server name for the signed list; a server cannot have this name
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# Without this pattern, anyone who can write to a target could list files outside of the folder for machines.
BootPath = Annotated[str, msgspec.Meta(pattern=r"\Aboot(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]
_NEVER_CHANGES: Final = re.compile(r"\d+\.(?:snapshot|servers-[0-9a-f]{2})\.json")


class RaceError(TemporaryError):
    """Another process changed the files during a read or a write. The caller must try again later."""


class TargetFile(NamedTuple):
    """A file to write to a target."""

    content: bytes
    modified: int  # in seconds since 1970; a web server sends it as Last-Modified


class ServerFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """A unit of a target: the files of one server, or the files that do not belong to any server.

    All files of a unit change together.
    """

    state: str  # the digest of the server's state
    files: Mapping[BootPath, Sha256]  # sha256 by path below the output directory
    withheld: bool = False  # whether a one-time boot was omitted, because no endpoint would record it


def build_server_files(digest: str, state: PublishedServer) -> ServerFiles:
    """Return the files that a target serves for one server. ``digest`` is the digest of the server's state.

    `gitboot.render.boot_files` has already omitted one-time boots that copies may not serve.
    """
    current_versions = [versions[0] for versions in state.paths.values() if versions]
    boots = [
        version.writes
        for version in current_versions
        if version.content is not None
        and version.role in (Role.BOOT_SCRIPT, Role.OFFER)
        and version.writes is not None
        and version.writes.once
        and not version.writes.in_copies
    ]
    return ServerFiles(
        digest,
        {path: file.sha256 for path, file in state.files.items() if path.startswith(BOOT)},
        withheld=bool(boots) and all(writes.hop is None for writes in boots),
    )


class TreeSummary(NamedTuple):
    """The commit from which an output tree was published, and the digests of the tree's manifest and states."""

    commit: str
    manifest: str  # the digest of its manifest
    states: Mapping[str, str]  # the digest of each server's state, and of the files that belong to no server


class _EndedServer(NamedTuple):
    """The files of a server whose window ended in the tree after the last publication."""

    digest: str  # the digest of the server's state in the manifest
    number: int  # from `FollowedTree.ended_servers`
    files: ServerFiles  # its state is the digest of these files


class FollowedTree:
    """The output tree at ``root`` that targets follow. Unchanged parts of its manifest are not read again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # nodes by name: the digest, and the servers below the node
        self._nodes: dict[str, tuple[str, dict[str, str]]] = {}
        self._list: dict[str, str] = {}  # sha256 by path of the files of the signed list
        # the digest of the listing of files that belong to no server, and the boot files in it
        self._shared_listing: tuple[str, dict[str, ListedFile]] = "", {}
        # The servers whose windows ended in the tree after the last publication. Their files differ from their
        # published states. A new number means that the files may have changed again.
        self.ended_servers: Mapping[str, int] = {}
        self._ended: dict[str, _EndedServer] = {}
        self.urgent_servers: frozenset[str] = frozenset()  # the servers that each target updates before other servers
        # By server, the digest of the state whose files could not be read. Steps omit these servers.
        self.unreadable_states: dict[str, str] = {}

    def read_summary(self) -> TreeSummary | None:
        """Return a summary of the tree, or None if no tree is published. Raises `RaceError`."""
        for _ in range(3):
            with suppress(RaceError):
                return self._read_summary_once()
        return self._read_summary_once()

    def _read_summary_once(self) -> TreeSummary | None:
        # Read the list before the manifest. Otherwise a target could receive a newer list before the files that the
        # list names.
        self._list = self._digest_list_files()
        try:
            data = (self._root / MANIFEST).read_bytes()
            head = parse_head(data)
        # An older version of gitboot wrote the manifest, and this version will soon publish.
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise RaceError(f"{self._root / MANIFEST}: {error.strerror}") from error
        states = self._read_states(head.nodes)
        self._ended = self._read_ended_servers(states)
        states |= {server: ended.files.state for server, ended in self._ended.items()}
        if head.shared is not None:
            self._read_shared_listing(head.shared)
            states[SHARED] = compute_digest(render_listing(self._shared_listing[1]))
        if self._list:
            states[LIST] = compute_digest(encode_canonical(self._list))
        return TreeSummary(commit=head.origin.commit, manifest=compute_digest(data), states=states)

    def _read_states(self, nodes: Mapping[str, str]) -> dict[str, str]:
        """Return the digest of each server's state. Read only the nodes of the manifest that have changed."""
        for node, digest in nodes.items():
            if node in self._nodes and self._nodes[node][0] == digest:
                continue
            states: dict[str, str] = {}
            for leaf, leaf_digest in parse_digests(self._read_part(node_path(node), digest)).items():
                states |= parse_digests(self._read_part(leaf_path(node, leaf), leaf_digest))
            self._nodes[node] = digest, states
        for node in self._nodes.keys() - nodes.keys():
            del self._nodes[node]
        return {server: state for _, states in self._nodes.values() for server, state in states.items()}

    def _read_shared_listing(self, digest: str) -> None:
        if self._shared_listing[0] != digest:
            listed = parse_listing(self._read_part(SHARED_LISTING, digest))
            boot_files = {path: file for path, file in listed.items() if path.startswith(BOOT)}
            self._shared_listing = digest, boot_files

    def _digest_list_files(self) -> dict[str, str]:
        """Return the sha256 of each file in the signed list by path, except for the listings of servers.

        Bins and snapshots have a version in their names and never change, so the method reads them once. Root metadata
        can change, because gitboot uses the same file names again after a new root key was made. Raises `RaceError` if
        a publication is in progress, or if a file cannot be read.
        """
        digests = {}
        try:
            for file in sorted((self._root / SIGNED).iterdir()):
                path = f"{SIGNED}{file.name}"
                if file.suffix == ".json":
                    is_known = path in self._list and _NEVER_CHANGES.fullmatch(file.name) is not None
                    digests[path] = self._list[path] if is_known else compute_digest(file.read_bytes())
        except FileNotFoundError as error:
            if (self._root / LIST_TIMESTAMP).exists():
                raise RaceError(f"{SIGNED} is being published") from error
        except OSError as error:
            raise RaceError(f"{SIGNED}: {error.strerror}") from error
        return digests if LIST_TIMESTAMP in digests else {}

    def _read_ended_servers(self, states: Mapping[str, str]) -> dict[str, _EndedServer]:
        ended: dict[str, _EndedServer] = {}
        for server, number in self.ended_servers.items():
            if server in states:
                files = self._read_ended_server(server, states[server], number)
                if files is not None:
                    ended[server] = files
        return ended

    def _read_ended_server(self, server: str, digest: str, number: int) -> _EndedServer | None:
        """Return the files that the tree now contains for a server whose window ended.

        ``digest`` is the digest of the server's state in the manifest. An interrupted publication may already have
        replaced the state, but then it also wrote all content that the scripts of the server refer to. If there is no
        usable state, or a file cannot be read, return the result of the last call. Raises `RaceError`.
        """
        before = self._ended.get(server)
        if before is not None and (before.digest, before.number) == (digest, number):
            return before
        path = self._root / state_path(server)
        try:
            data = path.read_bytes()
            published = build_server_files(digest, parse_state(data))
            existing_paths = [name for name in published.files if (self._root / name).is_file()]
            files = {name: compute_digest((self._root / name).read_bytes()) for name in existing_paths}
            if path.read_bytes() != data:  # gitboot may have read scripts of the new state
                raise RaceError(f"{path} is being published")
        except (OSError, ValueError):  # an error here must not keep the windows of other servers open
            return before
        served = structs.replace(published, files=files)
        state = compute_digest(encode_canonical(msgspec.to_builtins(served)))
        return _EndedServer(digest, number, structs.replace(served, state=state))

    def read_server_files(self, server: str, digest: str) -> ServerFiles:
        """Return the files that a target serves for a server. Raises `RaceError`.

        ``digest`` is the digest of the server's state.
        """
        if server == LIST:
            return ServerFiles(digest, self._list)
        if server == SHARED:
            return ServerFiles(digest, {path: file.sha256 for path, file in self._shared_listing[1].items()})
        if (ended := self._ended.get(server)) is not None:
            return ended.files
        try:
            return build_server_files(digest, parse_state(self._read_part(state_path(server), digest)))
        except RaceError:
            self.unreadable_states[server] = digest
            raise

    def record_unreadable_servers(self, files: Mapping[str, Mapping[str, str]], states: Mapping[str, str]) -> None:
        """Record the servers of which a file cannot be read. ``files`` are the sha256 by path, by server."""
        for server, digests in files.items():
            for path, digest in digests.items():
                try:
                    self._read_file(path, digest)
                except RaceError:
                    self.unreadable_states[server] = states[server]

    def read_file(self, path: str, digest: str) -> TargetFile:
        """Return a file with its modification time. Raises `RaceError` if the file has another digest."""
        try:
            return self._read_file(path, digest)
        except RaceError:
            self._list.pop(path, None)  # somebody replaced the file, although its name may contain a version
            self._ended = {}
            raise

    def has_file(self, path: str) -> bool:
        return (self._root / path).is_file()

    def _read_part(self, path: str, digest: str) -> bytes:
        return self._read_file(path, digest).content

    def _read_file(self, path: str, digest: str) -> TargetFile:
        try:
            with (self._root / path).open("rb") as file:
                target_file = TargetFile(file.read(), int(os.fstat(file.fileno()).st_mtime))
        except OSError as error:
            raise RaceError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise RaceError(f"{path!r} is not a valid path ({error})") from error
        if compute_digest(target_file.content) != digest:
            raise RaceError(f"{path} differs from the version in the manifest")
        return target_file
