"""Checkpoint of an instance: the plans and files from which a restart continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

import msgspec
from msgspec import structs

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import encode
from gitboot.controller.current_plans import DueQueue, Plans, build_server_details
from gitboot.controller.instance_state import InstanceState, TargetState
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.disk_cache import DiskCache
from gitboot.errors import PublishError
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import Machine
from gitboot.fleet.overlay import apply_changes
from gitboot.jsonio import build_decoder
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import ALL, PARTS, Inventory, find_damage
from gitboot.render import endpoint_files
from gitboot.render.server_files import ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.explanation import DocumentLocation, ServerLocation, SourceLocations
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import BootFile, Decision, FieldSources, Host
from gitboot.resolve.server_plan import BootPlan

T = TypeVar("T")
Rows = Iterable[tuple[str, Any]]

MIN_SERVERS: Final = 500  # number of servers; planning a smaller fleet is faster than reading a checkpoint
_MIN_REPLANNED_SHARE: Final = 8  # write a new checkpoint after one in this many servers was planned again
_INTERVAL: Final = timedelta(minutes=10)  # minimum interval between two checkpoints
_CACHE_SHARE: Final = 4  # a checkpoint may fill at most the cache divided by this number
_BATCH: Final = 8  # chunks per transaction: few, because an evaluation waits for the transaction
_CHUNK_ROWS: Final = 256  # average number of rows per chunk
_MAX_CHUNK_ROWS: Final = 1024
_SERVERS_PER_PAUSE: Final = 20  # servers that the search for damage checks between two pauses
_PAUSE_S: Final = 0.01  # keeps the search at about a quarter of one processor
# Names of the tables in the cache
_MANIFEST: Final = "checkpoint"
_CHUNK: Final = "checkpoint-chunk"


class _StoredServer(msgspec.Struct, frozen=True, array_like=True):
    """A `ServerState` without the parts that the commit contains."""

    record: Record | None
    absent: tuple[BootFile, ...]
    at: datetime
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]
    refresh_at: datetime | None


class _StoredState(msgspec.Struct, frozen=True, array_like=True):
    """The part of a checkpoint that has the same size for any number of servers."""

    at: datetime | None  # when gitboot last updated the output tree
    terms: bytes
    shared: str | None  # digest of the shared files, from the tree's `Inventory`
    unseen: frozenset[SystemUuid]
    commit: Commit  # the accepted commit without its servers
    plans: Plans  # the plans without server states and transitions


class _Manifest(msgspec.Struct, frozen=True, array_like=True):
    state_key: bytes
    tables: dict[str, list[bytes]]  # keys of the chunks of each table, by table name

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys of all chunks."""
        return frozenset((self.state_key, *(key for keys in self.tables.values() for key in keys)))


class _StoredCheckpoint(NamedTuple):
    stored_state: _StoredState
    commit: Commit
    plans: Plans
    tree: Inventory
    tables: Mapping[str, dict[Any, Any]]


class ResumableTree(Protocol):
    """An output tree that an earlier process may have published."""

    def inventory(self) -> Inventory:
        """Return the state and the files of each server in the tree."""

    def resume(self, before: Inventory) -> frozenset[str] | None:
        """Continue from an inventory of the tree. Return the servers whose files may differ from the inventory.

        Return None if all files must be published.
        """


class Checkpoint:
    """The checkpoint of an instance. `resume` reads it at startup, and `store` writes it at the end of a reconcile."""

    def __init__(
        self,
        cache: DiskCache,
        tree: ResumableTree,
        damage_search: DamageSearch | None,
        warn: Callable[[str], None],
        site: str | None = None,
    ) -> None:
        """``damage_search`` looks for damaged files in the tree after `resume`.

        ``site`` is the instance's site, if any.
        """
        self._chunks = _Chunks(cache)
        self._tree = tree
        self._damage_search = damage_search
        self._warn = warn
        self._site = site
        self._planned = 0  # number of servers planned since the last checkpoint
        self._stored_at: datetime | None = None

    def resume(self, fresh_state: InstanceState) -> InstanceState:
        """Return the state that a starting instance continues from.

        ``fresh_state`` is the state built from the ledger alone. This state is returned unchanged if there is no usable
        checkpoint.
        """
        if not fresh_state.snapshot.is_trusted:
            return fresh_state
        stored = self._read(_build_manifest_key(fresh_state.snapshot, fresh_state.keys, self._site))
        if stored is None or (outdated_servers := self._tree.resume(stored.tree)) is None:
            return fresh_state
        stored_state, commit, plans = stored.stored_state, stored.commit, stored.plans
        publication = TargetState(
            applied=commit.revision,
            at=stored_state.at,
            complete=True,
            plans=plans,
            terms=endpoint_files.parse_terms(stored_state.terms) if ALL not in outdated_servers else None,
            outdated_servers=outdated_servers - {ALL, PARTS},
            has_old_records=PARTS in outdated_servers,
            versions={
                name: versions for name, versions in stored.tables["versions"].items() if name not in outdated_servers
            },
        )
        self._stored_at = plans.planned_at
        if self._damage_search is not None:
            self._damage_search.start()
        return structs.replace(
            fresh_state,
            # Without `recorded_commit`, the next reconcile checks the records of differing servers again.
            snapshot=structs.replace(
                fresh_state.snapshot,
                recorded_commit="",
                unobservable=stored_state.unseen,
                sets_bmcs=None if stored_state.unseen else True,
            ),
            plans=plans,
            publication=publication,
            unplanned=_find_changed_machines(stored, fresh_state.snapshot),
        )

    def store(self, state: InstanceState, planned_count: int, at: datetime) -> None:
        """Write a checkpoint if it would speed up the next start noticeably, or if the last one is no longer cached.

        ``planned_count`` is the number of servers that this reconcile planned. The first call also starts the damage
        search.
        """
        if self._damage_search is not None:
            self._damage_search.release()
        self._planned += planned_count
        commit, publication, servers = state.commit, state.publication, len(state.plans.servers)
        if commit is None or commit.withheld or servers < MIN_SERVERS or self._chunks.exceeds_cache:
            return
        is_recent = self._stored_at is not None and self._stored_at <= at < self._stored_at + _INTERVAL
        is_published = publication.has_plans_for(commit) and publication.plans is state.plans
        is_whole = state.snapshot.is_trusted and not state.unplanned and state.ledger_error is None
        if is_recent or not is_published or not is_whole:
            return
        key = _build_manifest_key(state.snapshot, state.keys, commit.site)
        if self._planned * _MIN_REPLANNED_SHARE > servers or not self._chunks.has(key):
            try:
                tree = self._tree.inventory()
            except PublishError:
                return
            assert publication.terms is not None  # noqa: S101 - a complete publication has terms
            stored_state = _StoredState(
                at=publication.at,
                terms=endpoint_files.render_terms(publication.terms)[endpoint_files.TERMS].content,
                shared=tree.shared,
                unseen=state.snapshot.unobservable,
                commit=commit.without_servers(),
                plans=structs.replace(state.plans, commit=None, servers={}, transitions=DueQueue()),
            )
            self._chunks.write(key, encode(stored_state), _build_tables(state, commit, tree))
            if self._chunks.exceeds_cache:
                self._warn(
                    "the checkpoint does not fit into the cache, so gitboot plans and publishes all servers at its "
                    "next start"
                )
            self._planned = 0
        self._stored_at = at

    def mark_damaged(self, publication: TargetState) -> TargetState:
        """Return the target's state with the damaged files marked, so that the next publication replaces them."""
        damaged = self._damage_search.take_damaged() if self._damage_search is not None else frozenset()
        if not damaged:
            return publication
        return structs.replace(
            publication,
            complete=publication.complete and ALL not in damaged,
            outdated_servers=publication.outdated_servers | (damaged - {ALL}),
            # The new files get another modification time.
            versions=apply_changes(publication.versions, {}, damaged & publication.versions.keys()),
        )

    def _read(self, key: bytes) -> _StoredCheckpoint | None:
        """Return the checkpoint with a key, or None. A damaged checkpoint is deleted."""
        if (manifest := self._chunks.read_manifest(key)) is None:
            return None
        try:
            return _read_checkpoint(self._chunks, manifest)
        except (KeyError, ValueError, msgspec.MsgspecError):  # a chunk is missing or damaged
            self._warn("the checkpoint in the cache is damaged, so gitboot plans and publishes all servers again")
            self._chunks.delete(key, manifest)
            return None


class _Chunks:
    """The manifest and the chunks of a checkpoint in the cache."""

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        # Whether the chunks exceed their share of the cache, so that this process writes no more checkpoints.
        self.exceeds_cache = False

    def read_manifest(self, key: bytes) -> _Manifest | None:
        """Return the manifest with a key, or None if it is not in the cache."""
        value = self._cache.get_many(_MANIFEST, [key]).get(key)
        return _decode_manifest(value) if value is not None else None

    def has(self, key: bytes) -> bool:
        """Return whether the cache contains a manifest and all of its chunks."""
        manifest = self.read_manifest(key)
        return manifest is not None and not self._find_missing(manifest.keys)

    def read_chunk(self, key: bytes) -> bytes:
        """Return one chunk. Raises KeyError if the chunk is missing."""
        return self._cache.get_many(_CHUNK, [key])[key]

    def read_rows(self, keys: Iterable[bytes], decode: Callable[[bytes], dict[Any, Any]]) -> dict[Any, Any]:
        """Read the rows of a table from its chunks. Raises KeyError if a chunk is missing."""
        rows: dict[Any, Any] = {}
        for batch in _split_batches(keys, _BATCH):
            chunks = self._cache.get_many(_CHUNK, batch)
            for key in batch:
                rows.update(decode(chunks[key]))
        return rows

    def write(self, key: bytes, stored_state: bytes, tables: Mapping[str, Rows]) -> None:
        """Replace a manifest and its chunks, unless the new ones are larger than their share of the cache."""
        left_bytes = self._cache.max_bytes // _CACHE_SHARE
        is_stored = True
        # With this key, the chunks of a checkpoint are unique even if another instance shares the cache.
        owner = blake2b(key, digest_size=32).digest()
        keys: dict[str, list[bytes]] = {name: [] for name in ("", *tables)}
        inserted = set[bytes]()
        for batch in _split_batches(_encode_chunks(stored_state, tables), _BATCH):
            chunks = dict[bytes, bytes]()
            for name, chunk in batch:
                digest = blake2b(chunk, digest_size=32, key=owner).digest()
                keys[name].append(digest)
                chunks[digest] = chunk
                left_bytes -= len(chunk)
            missing = chunks.keys() - self._cache.get_many(_CHUNK, chunks).keys()  # these chunks are missing or damaged
            self._cache.insert_many(_CHUNK, {digest: chunks[digest] for digest in missing})
            inserted |= missing
            is_stored = left_bytes >= 0 and not self._find_missing(missing)
            if not is_stored:
                break
        self.exceeds_cache = left_bytes < 0
        (state_key,) = keys.pop("")
        before = self.read_manifest(key)
        after = _Manifest(state_key, keys)
        if not is_stored or self._find_missing(after.keys):
            self._delete_chunks(inserted)
            return
        self._cache.delete_many(_MANIFEST, [key])
        self._cache.insert_many(_MANIFEST, {key: encode(after)})
        if before is not None:
            self._delete_chunks(before.keys - after.keys)

    def delete(self, key: bytes, manifest: _Manifest) -> None:
        """Delete a manifest and its chunks."""
        self._cache.delete_many(_MANIFEST, [key])
        self._delete_chunks(manifest.keys)

    def _find_missing(self, keys: Collection[bytes]) -> set[bytes]:
        return set(keys) - self._cache.find_keys(_CHUNK, keys)

    def _delete_chunks(self, keys: Iterable[bytes]) -> None:
        for batch in _split_batches(sorted(keys), _BATCH):
            self._cache.delete_many(_CHUNK, batch)


def _encode_chunks(stored_state: bytes, tables: Mapping[str, Rows]) -> Iterator[tuple[str, bytes]]:
    """Yield the chunks, each with the name of its table.

    Adding or removing a server changes only one chunk per table.
    """
    yield "", stored_state
    for name, rows in tables.items():
        chunk: dict[Any, Any] = {}
        for key, row in rows:
            chunk[key] = row
            if crc32(key.encode()) % _CHUNK_ROWS == 0 or len(chunk) == _MAX_CHUNK_ROWS:
                yield name, encode(chunk)
                chunk = {}
        if chunk:
            yield name, encode(chunk)


def _split_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _build_manifest_key(snapshot: LedgerSnapshot, keys: TokenKeys, site: str | None) -> bytes:
    """Return the key of a manifest.

    The key depends only on values that a starting instance has before it reads the cache.
    """
    facts = snapshot.facts
    return encode((facts.identity, facts.observes, keys.key, keys.earlier, site))


def _encode_records(snapshot: LedgerSnapshot) -> Iterator[tuple[SystemUuid, bytes]]:
    return ((uuid, encode(record)) for uuid, record in snapshot.records.items())


def _encode_bmc_records(snapshot: LedgerSnapshot) -> Iterator[tuple[SystemUuid, bytes]]:
    for uuid in sorted({*snapshot.overrides, *snapshot.power_records}):
        yield uuid, encode((snapshot.list_overrides(uuid), snapshot.list_power_records(uuid)))


def _find_changed_machines(checkpoint: _StoredCheckpoint, snapshot: LedgerSnapshot) -> frozenset[SystemUuid]:
    """Return the machines that differ between the ledger and the checkpoint.

    The ledger and the checkpoint may be based on different commits.
    """
    ledger_machines, commit_machines = snapshot.machines, checkpoint.commit.machines
    changed = set[SystemUuid]()
    for table, rows in (("records", _encode_records(snapshot)), ("done", _encode_bmc_records(snapshot))):
        old, new = checkpoint.tables[table], dict(rows)
        changed |= {uuid for uuid in old.keys() | new.keys() if old.get(uuid) != new.get(uuid)}
    if checkpoint.commit.revision != snapshot.facts.accepted:
        changed |= commit_machines.keys() ^ snapshot.accepted_machines
        changed |= {uuid for uuid, machine in commit_machines.items() if ledger_machines.get(uuid) != machine}
    return frozenset(changed)


def _build_tables(state: InstanceState, commit: Commit, tree: Inventory) -> dict[str, Rows]:
    """Return the rows of each table of a checkpoint. `_TABLES` contains the decoders."""
    plans, snapshot, decisions = state.plans, state.snapshot, commit.decisions
    return {
        "decisions": ((name, decision.with_digest()) for name, decision in decisions.servers.items()),
        "networks": decisions.networks.items(),
        "machines": commit.machines.items(),
        "sites": commit.sites.items(),
        "labels": ((name, dict(labels)) for name, labels in commit.labels.items()),
        "written": commit.written.items(),
        "locations": commit.locations.servers.items(),
        "documents": commit.locations.shared.items(),
        "states": ((name, _build_stored_server(server)) for name, server in plans.servers.items()),
        "instants": plans.transitions.instants.items(),
        "versions": ((name, dict(versions)) for name, versions in state.publication.versions.items()),
        "lying": tree.states.items(),
        "content": tree.content.items(),
        "records": _encode_records(snapshot),
        "done": _encode_bmc_records(snapshot),
    }


def _build_stored_server(server: ServerState) -> _StoredServer:
    return _StoredServer(
        record=server.record,
        absent=tuple(sorted(server.absent, key=lambda file: (file.url, file.sha256 or ""))),
        at=server.at,
        plan=server.plan,
        later=server.later,
        refresh_at=server.refresh_at,
    )


def _read_checkpoint(chunks: _Chunks, manifest: _Manifest) -> _StoredCheckpoint:
    """Read a checkpoint from its chunks.

    Raises KeyError, ValueError or DecodeError if the checkpoint is incomplete or damaged.
    """
    tables = {name: chunks.read_rows(manifest.tables[name], decode) for name, decode in _TABLES.items()}
    stored_state = _decode_state(chunks.read_chunk(manifest.state_key))
    fleetwide = stored_state.commit
    commit = replace(
        fleetwide,
        decisions=structs.replace(fleetwide.decisions, servers=tables["decisions"], networks=tables["networks"]),
        machines=tables["machines"],
        sites=tables["sites"],
        labels=tables["labels"],
        written=tables["written"],
        locations=SourceLocations(servers=tables["locations"], shared=tables["documents"]),
    )
    states: dict[str, _StoredServer] = tables["states"]
    return _StoredCheckpoint(
        stored_state=stored_state,
        commit=commit,
        plans=structs.replace(
            stored_state.plans,
            commit=commit,
            servers={
                name: ServerState(
                    decision=commit.decisions.servers[name],
                    record=stored_server.record,
                    details=build_server_details(commit, name),
                    stop=stored_state.plans.stop,
                    absent=frozenset(stored_server.absent),
                    at=stored_server.at,
                    plan=stored_server.plan,
                    later=stored_server.later,
                    refresh_at=stored_server.refresh_at,
                )
                for name, stored_server in states.items()
            },
            transitions=DueQueue[str]().reschedule(tables["instants"]),
        ),
        tree=Inventory(
            states=tables["lying"],
            content=tables["content"],
            shared=stored_state.shared,
            has_page=Output.PAGES in commit.decisions.outputs,
        ),
        tables=tables,
    )


_decode_manifest: Final[Callable[[bytes], _Manifest]] = build_decoder(_Manifest)
_decode_state: Final[Callable[[bytes], _StoredState]] = build_decoder(_StoredState)
_TABLES: Final[Mapping[str, Callable[[bytes], dict[Any, Any]]]] = {
    "decisions": build_decoder(dict[str, Decision]),
    "networks": build_decoder(dict[str, Host]),
    "machines": build_decoder(dict[SystemUuid, Machine]),
    "sites": build_decoder(dict[str, str]),
    "labels": build_decoder(dict[str, dict[str, str]]),
    "written": build_decoder(dict[str, FieldSources]),
    "locations": build_decoder(dict[str, ServerLocation]),
    "documents": build_decoder(dict[str, DocumentLocation]),
    "states": build_decoder(dict[str, _StoredServer]),
    "instants": build_decoder(dict[str, datetime]),
    "versions": build_decoder(dict[str, dict[str, str]]),
    "lying": build_decoder(dict[str, str]),
    "content": build_decoder(dict[str, tuple[str, ...]]),
    "records": build_decoder(dict[str, bytes]),
    "done": build_decoder(dict[str, bytes]),
}


class DamageSearch:
    """A thread that searches the output tree at ``root`` for damaged files once, and calls ``wake`` if it finds any."""

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self._root = root
        self._wake = wake
        self._damaged: set[str] = set()
        self._lock = threading.Lock()
        self._closed, self._released = threading.Event(), threading.Event()
        self._thread = BackgroundThread(self._search, name="verify")

    def start(self) -> None:
        """Start the thread. It waits until `release` is called."""
        self._thread.start()

    def release(self) -> None:
        """Let the search begin. Call this method after all urgent work is done."""
        self._released.set()

    def close(self) -> None:
        """End the search."""
        self._closed.set()
        self._released.set()
        self._thread.join()

    def take_damaged(self) -> frozenset[str]:
        """Return the servers with damaged files, and clear the result. `ALL` means all servers."""
        with self._lock:
            damaged, self._damaged = self._damaged, set()
        return frozenset(damaged)

    def _search(self) -> None:
        """Search all servers with pauses, so that the search does not slow down a reconcile."""
        self._released.wait()
        try:
            for number, server in enumerate(find_damage(self._root)):
                if server is not None:
                    self._report_damage(server)
                if number % _SERVERS_PER_PAUSE == 0 and self._closed.wait(_PAUSE_S):
                    return
        except PublishError:
            self._report_damage(ALL)  # publish all files, which reports the problem

    def _report_damage(self, server: str) -> None:
        with self._lock:
            self._damaged.add(server)
        self._wake()
