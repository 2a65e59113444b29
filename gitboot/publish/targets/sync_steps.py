"""Sync steps: compare a target with the output tree, plan the next step, and write it to a store of files."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct, field, structs

from gitboot import __version__
from gitboot.errors import ForeignTree, HostUnreachable, LockedByAnother, OperatorError, PublishError, TemporaryError
from gitboot.jsonio import build_json_decoder, encode_canonical
from gitboot.publish.manifest import (
    MANIFEST,
    compute_digest,
    leaf_path,
    node_path,
    parse_digests,
    parse_listing,
    render_listing,
)
from gitboot.publish.manifest import SHARED as SHARED_LISTING
from gitboot.publish.manifest import parse_head as parse_tree_head
from gitboot.render.endpoint_files import ListedFile, PublishedServer, parse_state, state_path
from gitboot.render.paths import BOOT, LIST_TIMESTAMP, SIGNED, Role, Stage, is_content, publication_stage

HEAD: Final = MANIFEST
UNLISTED: Final = "ops/unlisted.json"
CONTESTED: Final = "ops/contested.json"
SHARED: Final = ""  # this text replaces a server name for files that do not belong to a server
LIST: Final = ".list"  # this text replaces a server name for the signed list; a server cannot have this name
_T = TypeVar("_T")
_Number = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}\Z")]  # the number of a shard
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# Without this pattern, anyone who can write to a target could list files outside of the folder for machines.
_Path = Annotated[str, msgspec.Meta(pattern=r"\Aboot(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]
_ContestedPath = Annotated[str, msgspec.Meta(pattern=r"\A(?:boot|ops/shards)(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]
_SHARDS: Final = "ops/shards/"
_MAX_CONTESTED: Final = 20_000  # each `load` reads these files; a step has about 2,000 scripts, or 10,000 with rsync
_MAX_SHARDS_BYTES: Final = 1 << 30  # the maximum size of all shards of a target together
# the number of servers in one step; with small steps, the end of a window does not wait for the whole fleet
_MAX_SERVERS: Final = 200


class ServerFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of one server, or the files that do not belong to any server. All of these files change together."""

    state: str  # the digest of the server's state
    files: Mapping[_Path, _Digest]  # sha256 by path below the output directory
    withheld: bool = False  # whether a one-time boot was omitted, because no endpoint would record it


Shard = Mapping[str, ServerFiles]  # by server


def build_server_files(digest: str, state: PublishedServer) -> ServerFiles:
    """Return the files that a target serves for one server. ``digest`` is the digest of the server's state.

    `gitboot.render.boot_files` has already omitted one-time boots that copies may not serve.
    """
    boots = [
        version.writes
        for versions in state.paths.values()
        for version in versions[:1]
        if version.content is not None
        and version.role in (Role.BOOT_SCRIPT, Role.OFFER)
        and version.writes is not None
        and version.writes.once
        and not version.writes.in_copies
    ]
    return ServerFiles(
        digest,
        {path: each.sha256 for path, each in state.files.items() if path.startswith(BOOT)},
        withheld=bool(boots) and all(writes.hop is None for writes in boots),
    )


class TargetHead(Struct, frozen=True, kw_only=True):
    """The head of a target: a file that is read first and written last."""

    ledger: str
    commit: str
    gitboot: str  # the version of gitboot
    writer: str  # the random number of the process that writes to the target
    shards: Mapping[_Number, _Digest] = field(default_factory=dict)  # sha256 of the shards, by number
    format: Literal[1] = 1


class TargetContent(Struct, frozen=True, kw_only=True):
    """The facts about a target's content that gitboot needs to plan the next step."""

    head: TargetHead
    states: Mapping[str, str]  # digests of states by server, without the servers whose files are unverified
    servers: frozenset[str]  # the servers in the shards
    withheld: frozenset[str]  # the servers whose one-time boot was omitted
    unlisted_paths: frozenset[str]
    contested_paths: frozenset[str] = frozenset()  # files that another process may still write or remove


def find_shard_number(server: str) -> str:
    """Return the number of the shard that lists a server."""
    return sha256(server.encode()).hexdigest()[:2]


def build_target_content(
    head: TargetHead, shards: Iterable[Shard], unlisted_paths: Iterable[str], *, gitboot: str
) -> TargetContent:
    """Summarize the content of a target from its records.

    The files of a server are unverified if another version of gitboot wrote them, or if an interrupted step may have
    changed them.
    """
    units = {server: unit for shard in shards for server, unit in shard.items()}
    unverified_paths = frozenset(unlisted_paths)
    return TargetContent(
        head=head,
        states={
            server: unit.state
            for server, unit in units.items()
            if head.gitboot == gitboot and unverified_paths.isdisjoint(unit.files.keys())
        },
        servers=frozenset(units),
        withheld=frozenset(server for server, unit in units.items() if unit.withheld),
        unlisted_paths=unverified_paths,
    )


def _build_parser(kind: type[_T], fault: str) -> Callable[[bytes], _T]:
    """Return a function that parses a record of a target. The function raises ValueError with the text ``fault``."""
    decode = build_json_decoder(kind)

    def parse(data: bytes) -> _T:
        try:
            return decode(data)
        except (RecursionError, ValueError) as error:
            raise ValueError(fault) from error

    return parse


parse_head: Final = _build_parser(TargetHead, "the file is not a target head in format 1")
parse_units: Final = _build_parser(dict[str, ServerFiles], "the file is not a target shard")
# parses the list of the files at a target that are in no shard
parse_unlisted: Final = _build_parser(frozenset[_Path], "the file is not a list of paths")
_parse_contested: Final = _build_parser(list[_ContestedPath], "the file is not a list of paths")


def render_head(head: TargetHead) -> bytes:
    return encode_canonical(msgspec.to_builtins(head)) + b"\n"


def render_units(shard: Shard) -> bytes:
    return encode_canonical(msgspec.to_builtins(shard)) + b"\n"


def render_unlisted(paths: Iterable[str]) -> bytes:
    return encode_canonical(sorted(paths)) + b"\n"


MAX_RECORD_BYTES: Final = 32 << 20  # the maximum size of a file below ops/; with a million servers, a shard has 12 MiB


class FileConflict(Exception):
    """A file cannot be written, because the existing file has another version or because a new file already exists."""


class StoredFile(NamedTuple):
    content: bytes
    version: str | None  # the version for `replace`; None: the store has no versions


class TargetFile(NamedTuple):
    content: bytes
    modified: int  # in seconds since 1970; a web server sends it as Last-Modified


ReadFile = Callable[[str], TargetFile]  # by path; raises `RaceError`
# a function that gets a path and its file, or None if the file is absent
FileCallback = Callable[[str, StoredFile | None], None]


class FileStore(Protocol):
    """The files of one target, by path. A reader always sees either the complete old file or the complete new file.

    Every method may raise `HostUnreachable`, or `PublishError` if a person must fix the cause.
    """

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        """Return a file, cut off after ``max_bytes + 1`` bytes, or None if it is absent."""

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        """Read files, and call ``on_file`` with each path and file, possibly in several threads at a time."""

    def create(self, path: str, content: bytes) -> None:
        """Write a new file. Raises `FileConflict` if the file exists."""

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        """Replace a file. If ``version`` is set, replace only that version.

        Raises `FileConflict` if the file has another version.
        """

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        """Write files.

        If a path in ``new_paths`` already has other content, keep that content, and include the path in the result.
        """

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        """Return the sorted paths whose content differs from the content that `place` has just written."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Ignore files that do not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted paths of all files below a folder. ``folder`` ends in a slash."""


_NEVER_CHANGES: Final = re.compile(r"\d+\.(?:snapshot|servers-[0-9a-f]{2})\.json")


class RaceError(TemporaryError):
    """Another process changed the files during a read or a write. The caller must try again later."""


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
            head = parse_tree_head(data)
        # An older version of gitboot wrote the manifest, and this version will soon publish.
        except (FileNotFoundError, ValueError):
            return None
        for node, digest in head.nodes.items():
            if self._nodes.get(node, ("",))[0] != digest:
                self._nodes[node] = (
                    digest,
                    {
                        server: state
                        for leaf, expected in parse_digests(self._read_part(node_path(node), digest)).items()
                        for server, state in parse_digests(self._read_part(leaf_path(node, leaf), expected)).items()
                    },
                )
        for node in self._nodes.keys() - head.nodes.keys():
            del self._nodes[node]
        states = {server: state for _, servers in self._nodes.values() for server, state in servers.items()}
        self._ended = {
            server: found
            for server, number in self.ended_servers.items()
            if server in states and (found := self._read_ended_server(server, states[server], number)) is not None
        }
        states |= {server: ended.files.state for server, ended in self._ended.items()}
        if head.shared is not None:
            if self._shared_listing[0] != head.shared:
                listed = parse_listing(self._read_part(SHARED_LISTING, head.shared)).items()
                self._shared_listing = head.shared, {path: each for path, each in listed if path.startswith(BOOT)}
            states[SHARED] = compute_digest(render_listing(self._shared_listing[1]))
        if self._list:
            states[LIST] = compute_digest(encode_canonical(self._list))
        return TreeSummary(commit=head.origin.commit, manifest=compute_digest(data), states=states)

    def _digest_list_files(self) -> dict[str, str]:
        """Return the sha256 of each file in the signed list by path, except for the listings of servers.

        Bins and snapshots have a version in their names and never change, so the method reads them once. Root metadata
        can change, because gitboot uses the same file names again after a new root key was made. Raises `RaceError` if
        a publication is in progress.
        """
        found = {}
        try:
            for file in sorted((self._root / SIGNED).iterdir()):
                path = f"{SIGNED}{file.name}"
                if file.suffix == ".json":
                    is_known = path in self._list and _NEVER_CHANGES.fullmatch(file.name) is not None
                    found[path] = self._list[path] if is_known else compute_digest(file.read_bytes())
        except FileNotFoundError as error:
            if (self._root / LIST_TIMESTAMP).exists():
                raise RaceError(f"{SIGNED} is being published") from error
        return found if LIST_TIMESTAMP in found else {}

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
            files = {
                name: compute_digest(file.read_bytes())
                for name in published.files
                if (file := self._root / name).is_file()
            }
            if path.read_bytes() != data:  # gitboot may have read scripts of the new state
                raise RaceError(f"{path} is being published")
        except (OSError, ValueError):  # an error here must not keep the windows of other servers open
            return before
        found = structs.replace(published, files=files)
        state = compute_digest(encode_canonical(msgspec.to_builtins(found)))
        return _EndedServer(digest, number, structs.replace(found, state=state))

    def read_server_files(self, server: str, digest: str) -> ServerFiles:
        """Return the files that a target serves for a server. Raises `RaceError`.

        ``digest`` is the digest of the server's state.
        """
        if server == LIST:
            return ServerFiles(digest, self._list)
        if server == SHARED:
            return ServerFiles(digest, {path: each.sha256 for path, each in self._shared_listing[1].items()})
        if (ended := self._ended.get(server)) is not None:
            return ended.files
        return build_server_files(digest, parse_state(self._read_part(state_path(server), digest)))

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
                found = TargetFile(file.read(), int(os.fstat(file.fileno()).st_mtime))
        except OSError as error:
            raise RaceError(f"{path}: {error.strerror}") from error
        if compute_digest(found.content) != digest:
            raise RaceError(f"{path} differs from the version in the manifest")
        return found


class TargetStep(Struct, frozen=True, kw_only=True):
    """One step of a target's update: the files to write and to remove before the head is replaced."""

    head: TargetHead  # the head after the step
    manifest: str  # the digest of the manifest of the output tree
    placed: Mapping[str, str]  # sha256 by path, sorted
    # placed paths at which the target has no file of gitboot yet, or only a file of another server
    new_paths: frozenset[str]
    removed: tuple[str, ...]  # sorted
    shards: Mapping[str, bytes]  # the changed shards by number; empty: the shard is removed
    units: Mapping[str, ServerFiles | None]  # the changed servers; None: the server is gone
    unverified: frozenset[str]  # paths that are unverified until the head is written
    # paths that stay on the target after the step although no shard lists them, or whose files stay unverified
    unlisted_paths: frozenset[str]


def plan_next_step(
    tree: FollowedTree,
    summary: TreeSummary,
    target_content: TargetContent,
    read_shard: Callable[[str], Shard],
    max_servers: int | None,
) -> TargetStep | None:
    """Return the step that updates up to ``max_servers`` servers of a target, or None if the target is up to date.

    Without a maximum, the step updates all servers. Otherwise, servers are updated in this order:

    - the urgent servers of the tree, in a step without other servers, because a step may take long
    - servers that the target already has, because the target serves an old version of their files
    - new servers
    - the shared scripts, which come after new servers, because a machine without a boot script boots as an unknown
      machine
    - servers that were removed
    - the signed list, which contains all files

    Unused content stays on the target as long as it stays in the tree. A path that moves to another server stays until
    that server is updated.
    """
    removed_servers, urgent_servers = target_content.servers - summary.states.keys(), tree.urgent_servers

    def order(server: str) -> tuple[bool, bool, bool, bool, bool, str, str]:
        # Sort servers by shard, because each step writes complete shards.
        return (
            server not in urgent_servers,
            server == LIST,
            server in removed_servers,
            server == SHARED,
            server not in target_content.servers,
            find_shard_number(server),
            server,
        )

    changed = sorted(find_outdated_servers(summary, target_content), key=order)
    if (
        not changed
        and target_content.head.commit == summary.commit
        and all(map(tree.has_file, target_content.unlisted_paths))
    ):
        return None
    chosen = changed
    if max_servers is not None:
        chosen = ([server for server in changed if server in urgent_servers] or changed)[:max_servers]
    shards: dict[str, dict[str, ServerFiles]] = {}
    units: dict[str, ServerFiles | None] = {}
    previous_files: dict[str, str] = {}
    new_files: dict[str, str] = {}
    for server in chosen:
        if (number := find_shard_number(server)) not in shards:
            shards[number] = {**read_shard(number)}
        if (before := shards[number].pop(server, None)) is not None:
            previous_files |= before.files
        units[server] = None
        if (state := summary.states.get(server)) is not None:
            found = tree.read_server_files(server, state)
            units[server] = found
            shards[number][server] = found
            new_files |= found.files
    obsolete_paths = (previous_files.keys() | target_content.unlisted_paths) - new_files.keys()
    existing_paths = {path for path in obsolete_paths if tree.has_file(path)}
    dropped_paths = {path for path in existing_paths if not is_content(path)}
    # If another server on the target has the path now, the path moved to that server. If the path is unverified, it
    # stays unverified until that server is updated.
    other_shards = (
        read_shard(number) for number in target_content.head.shards if dropped_paths and number not in shards
    )
    moved_paths = {
        path
        for shard in (*shards.values(), *other_shards)
        for unit in shard.values()
        for path in unit.files.keys() & dropped_paths
    }
    kept_paths = existing_paths - (moved_paths - target_content.unlisted_paths)
    waiting_servers = removed_servers.intersection(changed).difference(chosen)
    waiting_paths = {
        path
        for number in sorted({find_shard_number(server) for server in waiting_servers})
        for server, unit in (shards[number] if number in shards else read_shard(number)).items()
        if server in waiting_servers
        for path in unit.files
    }
    placed = {
        path: new_files[path]
        for path in sorted(new_files)
        if previous_files.get(path) != new_files[path] or path in target_content.unlisted_paths
    }
    rendered = {number: render_units(shard) if shard else b"" for number, shard in shards.items()}
    for number in shards:
        while rendered[number] and _shard_path(compute_digest(rendered[number])) in target_content.contested_paths:
            rendered[number] += b"\n"  # another process may remove the shard at this path
    digests = {number: digest for number, digest in target_content.head.shards.items() if number not in rendered}
    digests |= {number: compute_digest(data) for number, data in rendered.items() if data}
    return TargetStep(
        manifest=summary.manifest,
        head=structs.replace(
            target_content.head,
            commit=summary.commit,
            # The version changes when no files of another version are left.
            gitboot=__version__ if chosen == changed else target_content.head.gitboot,
            shards=dict(sorted(digests.items())),
        ),
        placed=placed,
        new_paths=frozenset(placed.keys() - previous_files.keys() - target_content.unlisted_paths - waiting_paths),
        removed=tuple(sorted(obsolete_paths - existing_paths)),
        shards=rendered,
        units=units,
        unverified=target_content.unlisted_paths | placed.keys() | obsolete_paths,
        unlisted_paths=frozenset(kept_paths),
    )


def find_outdated_servers(summary: TreeSummary, target_content: TargetContent) -> set[str]:
    """Return the servers whose files on a target differ from the tree, including removed servers."""
    outdated = {server for server, state in summary.states.items() if target_content.states.get(server) != state}
    return outdated | (target_content.servers - summary.states.keys())


def apply_step(target_content: TargetContent, step: TargetStep) -> TargetContent:
    """Return the target's content after a step."""
    present_units = {server: unit for server, unit in step.units.items() if unit is not None}
    return TargetContent(
        head=step.head,
        states={
            **{server: state for server, state in target_content.states.items() if server not in step.units},
            **{server: unit.state for server, unit in present_units.items()},
        },
        servers=(target_content.servers - step.units.keys()) | present_units.keys(),
        withheld=(target_content.withheld - step.units.keys())
        | {server for server, unit in present_units.items() if unit.withheld},
        unlisted_paths=step.unlisted_paths,
        contested_paths=target_content.contested_paths,
    )


class StoreTarget:
    """A target to which only this process writes after `load`.

    ``open_store`` opens the store with the current credentials. ``writer`` is a random number that identifies this
    process. This process replaces the head only if the head is still the one that this process last wrote or read.
    """

    def __init__(
        self,
        name: str,
        open_store: Callable[[], FileStore],
        *,
        ledger: str,
        heir_of: Callable[[], str | None],
        writer: str,
        max_servers: int = _MAX_SERVERS,
    ) -> None:
        self.max_servers = max_servers
        self._name, self._open = name, open_store
        self._ledger, self._heir_of, self._writer = ledger, heir_of, writer
        self._last_head: StoredFile | None = None  # the head that this process wrote or read last
        self._last_unlisted: StoredFile | None = None  # the `UNLISTED` file that this process wrote or read last
        # The scripts and shards that another process may still write or remove if it was only paused, oldest first.
        # Each `load` compares the scripts with the shards. The file `CONTESTED` lists the paths for the next process.
        self._contested_paths: dict[str, None] = {}

    def load(self) -> TargetContent:
        """Return the content of the target, and claim the target for this process.

        Raises `ForeignTree`, `LockedByAnother`, `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        # List the shards before the claim, because the next process may write shards while this process is paused.
        shard_paths = store.names(_SHARDS)
        head = self._claim(store)
        unused_shards = sorted({*shard_paths}.difference(map(_shard_path, head.shards.values())))
        unlisted_file, contested_file = store.get(UNLISTED), store.get(CONTESTED)
        try:
            contested_paths = _parse_contested(contested_file.content) if contested_file is not None else []
        except ValueError as error:
            raise self._build_damage_error(CONTESTED) from error
        self._contested_paths = dict.fromkeys([*contested_paths, *self._contested_paths, *unused_shards])
        found = self._read_target_content(store, head, unlisted_file)
        if unlisted_file != self._last_unlisted:  # another process wrote the file, or a response was lost
            self._contested_paths |= {path: None for path in sorted(found.unlisted_paths) if not is_content(path)}
        data = encode_canonical([*self._contested_paths][-_MAX_CONTESTED:]) + b"\n"
        if self._contested_paths and (contested_file is None or contested_file.content != data):
            store.replace(CONTESTED, data)
        self._last_unlisted = unlisted_file
        store.remove(unused_shards)
        return structs.replace(found, contested_paths=frozenset(self._contested_paths))

    def observe(self, hint: str) -> TargetContent | None:
        """Return the content of the target without writing, or None if no process has claimed the target.

        If the target belongs to another ledger, raises `ForeignTree` with ``hint`` in the message. Raises `RaceError`
        if another process writes a step. Also raises `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        self._last_head = store.get(HEAD)
        head = self._parse_own_head(self._last_head.content, hint) if self._last_head is not None else None
        self._last_unlisted = store.get(UNLISTED)
        if head is None:
            return None
        try:
            return self._read_target_content(store, head, self._last_unlisted)
        except PublishError:
            if self.is_unchanged():
                raise
            raise RaceError(f"{self._name}: an instance is writing to this target") from None

    def is_unchanged(self) -> bool:
        """Return whether no process has started or finished a step since `observe`."""
        found: dict[str, StoredFile | None] = {}
        self._open().get_each((HEAD, UNLISTED), found.__setitem__)
        return all(
            (before and before.content) == (now and now.content)
            for before, now in ((self._last_head, found[HEAD]), (self._last_unlisted, found[UNLISTED]))
        )

    def shard(self, head: TargetHead, number: str) -> Shard:
        if (digest := head.shards.get(number)) is None:
            return {}
        return self._parse_verified_shard(digest, self._open().get(_shard_path(digest)))

    def apply(self, step: TargetStep, content: TargetContent, tree: FollowedTree) -> None:
        """Write a step. If the method is interrupted, each file is complete, and `load` returns a consistent state."""
        store = self._open()
        found = store.get(HEAD)
        if found is None or self._last_head is None or found.content != self._last_head.content:
            raise self._build_conflict_error(found)
        self._write_unlisted(store, step.unverified)
        sizes: dict[str, int] = {}

        def read(path: str) -> TargetFile:
            file = tree.read_file(path, step.placed[path])
            sizes[path] = len(file.content)
            return file

        for stage in Stage:
            paths = [path for path in step.placed if publication_stage(path) is stage]
            conflicts = store.place(paths, read, step.new_paths.intersection(paths))
            previous_shards = (self.shard(content.head, number) for number in content.head.shards) if conflicts else ()
            foreign_paths = conflicts - {
                path for shard in previous_shards for unit in shard.values() for path in unit.files
            }
            if foreign_paths:
                raise PublishError(
                    f"{self._name}: gitboot did not write the file at {min(foreign_paths)} (move the file away)"
                )
            store.place(sorted(conflicts), read, ())
        if wrong := store.find_differing_paths(
            {path: ListedFile(digest, sizes[path]) for path, digest in step.placed.items()}
        ):
            raise HostUnreachable(f"{self._name}: the content of {wrong[0]} changed after gitboot wrote it")
        store.remove(step.removed)
        shards = {_shard_path(compute_digest(data)): data for data in step.shards.values() if data}
        store.place(sorted(shards), lambda path: TargetFile(shards[path], 0), ())
        self._write_head(store, step.head)
        self._write_unlisted(store, step.unlisted_paths)
        kept = set(step.head.shards.values())
        store.remove(_shard_path(digest) for digest in content.head.shards.values() if digest not in kept)

    def _claim(self, store: FileStore) -> TargetHead:
        """Record in the head that this process is the writer, and return the head. If there is no head, create one."""
        found = store.get(HEAD)
        if found is None:
            head = TargetHead(ledger=self._ledger, commit="", gitboot=__version__, writer=self._writer)
            data = render_head(head)
            # Another process created the file, or this process created the file but did not get the response.
            with suppress(FileConflict):
                store.create(HEAD, data)
            self._last_head = store.get(HEAD)
            if self._last_head is None or self._last_head.content != data:
                self._last_head = None
                raise HostUnreachable(f"{self._name}: another process has just started to write to this target")
            return head
        head = self._parse_own_head(
            found.content, "choose another target, or take over this target with gitboot records begin"
        )
        if self._last_head is not None and head.writer != self._writer:
            raise self._build_conflict_error(found)
        self._last_head = found
        return self._write_head(store, structs.replace(head, ledger=self._ledger, writer=self._writer))

    def _write_head(self, store: FileStore, head: TargetHead) -> TargetHead:
        """Replace the head, and read it back, because the response to a successful write may have been lost."""
        data, last_head = render_head(head), self._last_head
        if last_head is None or last_head.content != data:
            with suppress(FileConflict):
                store.replace(HEAD, data, last_head.version if last_head is not None else None)
            found = store.get(HEAD)
            if found is None or found.content != data:
                raise self._build_conflict_error(found)
            self._last_head = found
        return head

    def _write_unlisted(self, store: FileStore, paths: Collection[str]) -> None:
        """Write `UNLISTED`, and read it back. If another process wrote the file, keep it, because `load` needs it."""
        data, last = render_unlisted(paths), self._last_unlisted
        if (last.content if last is not None else render_unlisted(())) == data:
            return
        with suppress(FileConflict):
            if last is None:
                store.create(UNLISTED, data)
            else:
                store.replace(UNLISTED, data, last.version)
        found = store.get(UNLISTED)
        if found is None or found.content != data:
            raise HostUnreachable(f"{self._name}: another process wrote {UNLISTED}")
        self._last_unlisted = found

    def _parse_own_head(self, content: bytes, hint: str) -> TargetHead:
        """Parse a head, and check that it belongs to this ledger or its predecessor. Raises `ForeignTree`."""
        head = self._parse_head(content)
        if head.ledger not in (self._ledger, self._heir_of()):
            raise ForeignTree(f"{self._name} belongs to the ledger {head.ledger}, not to {self._ledger} ({hint})")
        return head

    def _parse_head(self, content: bytes) -> TargetHead:
        try:
            return parse_head(content)
        except ValueError as error:
            raise PublishError(f"{self._name}: {HEAD}: {error} (choose another target)") from error

    def _build_conflict_error(self, current_head: StoredFile | None) -> OperatorError:
        if current_head is None:
            return PublishError(f"{self._name}: another process removed {HEAD}")
        head = self._parse_head(current_head.content)
        if head.ledger != self._ledger:
            return ForeignTree(f"{self._name} now belongs to the ledger {head.ledger}, not to {self._ledger}")
        return LockedByAnother(
            f"{self._name}: another process with the same ledger is writing to this target ({head.writer}; this "
            f"process is {self._writer}). Stop one of the processes, then restart this process"
        )

    def _read_target_content(
        self, store: FileStore, head: TargetHead, unlisted_file: StoredFile | None
    ) -> TargetContent:
        digests = {_shard_path(digest): digest for digest in head.shards.values()}
        shards: list[Shard] = []
        size, size_lock = 0, threading.Lock()

        def add_shard(path: str, found: StoredFile | None) -> None:
            nonlocal size
            with size_lock:
                size += len(found.content) if found is not None else 0
            if size > _MAX_SHARDS_BYTES:
                raise self._build_damage_error(HEAD)
            shards.append(self._parse_verified_shard(digests[path], found))

        store.get_each(sorted(digests), add_shard)
        try:
            unlisted_paths = parse_unlisted(unlisted_file.content) if unlisted_file is not None else frozenset()
        except ValueError as error:
            raise self._build_damage_error(UNLISTED) from error
        return build_target_content(
            head, shards, unlisted_paths.union(self._find_overwritten_paths(store, shards)), gitboot=__version__
        )

    def _find_overwritten_paths(self, store: FileStore, shards: Iterable[Shard]) -> list[str]:
        """Return the contested paths whose files differ from the shards, including files that no shard lists."""
        expected = {
            path: unit.files[path]
            for shard in shards
            for unit in shard.values()
            for path in self._contested_paths.keys() & unit.files.keys()
        }
        overwritten: list[str] = []

        def compare(path: str, found: StoredFile | None) -> None:
            if (compute_digest(found.content) if found is not None else None) != expected.get(path):
                overwritten.append(path)

        store.get_each(sorted(path for path in self._contested_paths if path.startswith(BOOT)), compare)
        return overwritten

    def _parse_verified_shard(self, digest: str, stored_file: StoredFile | None) -> Shard:
        if stored_file is None or compute_digest(stored_file.content) != digest:
            raise self._build_damage_error(_shard_path(digest))
        try:
            return parse_units(stored_file.content)
        except ValueError as error:  # the digest is correct, so the process that wrote the head also wrote this shard
            raise self._build_damage_error(_shard_path(digest)) from error

    def _build_damage_error(self, path: str) -> PublishError:
        return PublishError(f"{self._name}: {path} is damaged (empty the target, and gitboot will refill it)")


def _shard_path(digest: str) -> str:
    return f"{_SHARDS}{digest}.json"
