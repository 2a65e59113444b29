"""Checkpoint of an instance, from which a restart plans and publishes only what differs."""

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
from gitboot.controller.current_plans import Agenda, Plans, about
from gitboot.controller.instance_state import InstanceState, TargetState
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.disk_cache import DiskCache
from gitboot.errors import PublishError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.identities import Machine
from gitboot.fleet.layered_dict import replaced
from gitboot.jsonio import decoder
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import ALL, PARTS, Inventory, suspects
from gitboot.render import endpoint_files
from gitboot.render.server_files import ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.explanation import DocumentLocation, ServerLocation, SourceLocations
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import BootFile, Decision, Host, Written
from gitboot.resolve.server_plan import (
    BootPlan,
)

T = TypeVar("T")
WORTH: Final = 500  # servers; for fewer, planning takes less time than reading a checkpoint
_SHARE: Final = 8  # gitboot writes a new checkpoint after it has planned one server in so many again
_INTERVAL: Final = timedelta(minutes=10)  # between two checkpoints
_ROOM: Final = 4  # a checkpoint takes at most 1/_ROOM of the cache
_CHUNK_ROWS: Final = 256  # of a chunk on average
_MAX_CHUNK_ROWS: Final = 1024
_BATCH: Final = 8  # chunks in one transaction: an evaluation waits for it


class _KeptState(msgspec.Struct, frozen=True, array_like=True):
    """A `ServerState` without the parts that the commit has."""

    record: Record | None
    absent: tuple[BootFile, ...]
    at: datetime
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]
    refresh_at: datetime | None


class _KeptStanding(msgspec.Struct, frozen=True, array_like=True):
    """The part of a checkpoint whose size does not depend on the number of servers."""

    at: datetime | None  # when the tree was brought up to date last
    terms: bytes
    shared: str | None  # of the tree's `Inventory`
    unseen: frozenset[SystemUuid]
    commit: Commit  # without servers
    plans: Plans  # without the states of servers and the instants at which they change


class _Manifest(msgspec.Struct, frozen=True, array_like=True):
    standing: bytes
    tables: dict[str, list[bytes]]  # by name of the table, in the order of its rows

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset((self.standing, *(key for keys in self.tables.values() for key in keys)))


class _Read(NamedTuple):
    small: _KeptStanding
    commit: Commit
    plans: Plans
    tree: Inventory
    tables: Mapping[str, dict[Any, Any]]


class ResumableTree(Protocol):
    """A tree in which another process may have published before."""

    def inventory(self) -> Inventory:
        """Return the states and files of the tree."""

    def resume(self, before: Inventory) -> frozenset[str] | None:
        """Take over the files of the tree, and return the servers whose files may differ. None: publish everything."""


class Checkpoint:
    """The checkpoint of an instance: `resume` reads it at a start, and `store` writes it at the end of a pass."""

    def __init__(
        self,
        cache: DiskCache,
        tree: ResumableTree,
        patrol: Patrol | None,
        warn: Callable[[str], None],
        site: str | None = None,
    ) -> None:
        """``patrol`` compares the files of the tree after `resume`. ``site`` is the instance's; None: all servers."""
        self._chunks, self._tree, self._patrol, self._warn = _Chunks(cache), tree, patrol, warn
        self._site = site
        self._planned = 0  # servers, since the last checkpoint
        self._stored_at: datetime | None = None

    def resume(self, fresh: InstanceState) -> InstanceState:
        """Return the standing from which a starting instance continues.

        ``fresh`` is the standing by the ledger alone. It is returned if there is no usable checkpoint.
        """
        if not fresh.knowledge.is_trusted:
            return fresh
        kept = self._read(_key_of(fresh.knowledge, fresh.keys, self._site))
        if kept is None or (owed := self._tree.resume(kept.tree)) is None:
            return fresh
        small, commit, plans = kept.small, kept.commit, kept.plans
        publication = TargetState(
            applied=commit.revision,
            at=small.at,
            complete=True,
            plans=plans,
            terms=endpoint_files.parse_terms(small.terms) if ALL not in owed else None,
            owed=owed - {ALL, PARTS},
            in_doubt=PARTS in owed,
            versions={name: each for name, each in kept.tables["versions"].items() if name not in owed},
        )
        self._stored_at = plans.planned_at
        if self._patrol is not None:
            self._patrol.start()
        return structs.replace(
            fresh,
            # `settled` names no commit, so the next pass checks the records of servers that differ again.
            knowledge=structs.replace(
                fresh.knowledge,
                settled="",
                unseen=small.unseen,
                sets_bmcs=None if small.unseen else True,
            ),
            plans=plans,
            publication=publication,
            unplanned=_differing(kept, fresh.knowledge),
        )

    def store(self, standing: InstanceState, planned: int, at: datetime) -> None:
        """Write a checkpoint if it saves the next start enough time, or if the cache has lost the last checkpoint.

        ``planned`` is the number of servers that this pass planned. The first call starts the patrol.
        """
        if self._patrol is not None:
            self._patrol.release()
        self._planned += planned
        commit, publication, servers = standing.commit, standing.publication, len(standing.plans.servers)
        if commit is None or commit.withheld or servers < WORTH or self._chunks.are_too_many:
            return
        if self._stored_at is not None and self._stored_at <= at < self._stored_at + _INTERVAL:
            return
        is_published = publication.stands_for(commit) and publication.plans is standing.plans
        is_whole = standing.knowledge.is_trusted and not standing.unplanned and standing.unwritable is None
        if not is_published or not is_whole:
            return
        key = _key_of(standing.knowledge, standing.keys, commit.site)
        if self._planned * _SHARE > servers or not self._chunks.has(key):
            try:
                tree = self._tree.inventory()
            except PublishError:
                return
            assert publication.terms is not None  # noqa: S101 - there are some in what stands
            small = _KeptStanding(
                at=publication.at,
                terms=endpoint_files.render_terms(publication.terms)[endpoint_files.TERMS].content,
                shared=tree.shared,
                unseen=standing.knowledge.unseen,
                commit=commit.without_servers(),
                plans=structs.replace(standing.plans, commit=None, servers={}, transitions=Agenda()),
            )
            self._chunks.write(key, encode(small), _tables(standing, commit, tree))
            if self._chunks.are_too_many:
                self._warn("a checkpoint does not fit into the cache: the next start plans and publishes all servers")
            self._planned = 0
        self._stored_at = at

    def without_suspects(self, publication: TargetState) -> TargetState:
        """Return what is published, without the files in which the patrol found damage."""
        if self._patrol is None or not (found := self._patrol.found()):
            return publication
        return structs.replace(
            publication,
            complete=publication.complete and ALL not in found,
            owed=publication.owed | (found - {ALL}),
            versions=replaced(publication.versions, {}, found & publication.versions.keys()),  # of another date then
        )

    def _read(self, key: bytes) -> _Read | None:
        if (manifest := self._chunks.manifest(key)) is None:
            return None
        try:
            return _read(self._chunks, manifest)
        except (KeyError, ValueError, msgspec.MsgspecError):  # a chunk was deleted or damaged
            self._warn("the checkpoint in the cache is not complete: gitboot plans and publishes all servers again")
            self._chunks.delete(key, manifest)
            return None


class _Chunks:
    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        self.are_too_many = False  # for the cache; then this process writes no further checkpoint

    def manifest(self, key: bytes) -> _Manifest | None:
        value = self._cache.get_many(_MANIFEST, [key]).get(key)
        return _manifest(value) if value is not None else None

    def has(self, key: bytes) -> bool:
        """Return whether the cache has a manifest and its chunks."""
        manifest = self.manifest(key)
        return manifest is not None and not self._lacking(manifest.keys)

    def chunk(self, key: bytes) -> bytes:
        return self._cache.get_many(_CHUNK, [key])[key]

    def rows(self, keys: Iterable[bytes], decode: Callable[[bytes], dict[Any, Any]]) -> dict[Any, Any]:
        """Return the rows of a table. Raises KeyError if a chunk is missing."""
        found: dict[Any, Any] = {}
        for batch in _batches(keys, _BATCH):
            chunks = self._cache.get_many(_CHUNK, batch)
            for key in batch:
                found.update(decode(chunks[key]))
        return found

    def write(self, key: bytes, small: bytes, tables: Mapping[str, Rows]) -> None:
        """Replace a manifest and its chunks, unless the cache does not take them."""
        left, is_taken = self._cache.max_bytes // _ROOM, True
        owner = blake2b(key, digest_size=32).digest()  # the checkpoint of other token keys has chunks of its own
        keys: dict[str, list[bytes]] = {name: [] for name in ("", *tables)}
        new = set[bytes]()
        for batch in _batches(_encoded_chunks(small, tables), _BATCH):
            chunks = dict[bytes, bytes]()
            for name, chunk in batch:
                digest = blake2b(chunk, digest_size=32, key=owner).digest()
                keys[name].append(digest)
                chunks[digest] = chunk
                left -= len(chunk)
            lacking = chunks.keys() - self._cache.get_many(_CHUNK, chunks).keys()  # or has them damaged
            self._cache.insert_many(_CHUNK, {each: chunks[each] for each in lacking})
            new |= lacking
            is_taken = left >= 0 and not self._lacking(lacking)
            if not is_taken:
                break
        self.are_too_many = left < 0
        (standing,) = keys.pop("")
        before, after = self.manifest(key), _Manifest(standing, keys)
        if not is_taken or self._lacking(after.keys):
            self._delete_chunks(new)
            return
        self._cache.delete_many(_MANIFEST, [key])
        self._cache.insert_many(_MANIFEST, {key: encode(after)})
        if before is not None:
            self._delete_chunks(before.keys - after.keys)

    def delete(self, key: bytes, manifest: _Manifest) -> None:
        self._cache.delete_many(_MANIFEST, [key])
        self._delete_chunks(manifest.keys)

    def _lacking(self, keys: Collection[bytes]) -> set[bytes]:
        return set(keys) - self._cache.find_keys(_CHUNK, keys)

    def _delete_chunks(self, keys: Iterable[bytes]) -> None:
        for batch in _batches(sorted(keys), _BATCH):
            self._cache.delete_many(_CHUNK, batch)


def _encoded_chunks(small: bytes, tables: Mapping[str, Rows]) -> Iterator[tuple[str, bytes]]:
    """Return each chunk with the name of its table. A server that comes or goes changes one chunk of each table."""
    yield "", small
    for name, rows in tables.items():
        chunk: dict[Any, Any] = {}
        for key, row in rows:
            chunk[key] = row
            if crc32(key.encode()) % _CHUNK_ROWS == 0 or len(chunk) == _MAX_CHUNK_ROWS:
                yield name, encode(chunk)
                chunk = {}
        if chunk:
            yield name, encode(chunk)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _key_of(knowledge: Knowledge, keys: TokenKeys, site: str | None) -> bytes:
    """Return the key of a manifest, which a start knows before it reads the cache."""
    facts = knowledge.facts
    return encode((facts.identity, facts.observes, keys.key, keys.earlier, site))


def _records(knowledge: Knowledge) -> Iterator[tuple[SystemUuid, bytes]]:
    return ((uuid, encode(record)) for uuid, record in knowledge.records.items())


def _done(knowledge: Knowledge) -> Iterator[tuple[SystemUuid, bytes]]:
    for uuid in sorted({*knowledge.overrides, *knowledge.switches}):
        yield uuid, encode((knowledge.overrides_of(uuid), knowledge.switches_of(uuid)))


def _differing(kept: _Read, knowledge: Knowledge) -> frozenset[SystemUuid]:
    """Return the machines that the ledger knows otherwise than the checkpoint, whose commit may be an older one."""
    book, here = knowledge.machines, kept.commit.machines
    found = set[SystemUuid]()
    for table, rows in (("records", _records(knowledge)), ("done", _done(knowledge))):
        old, new = kept.tables[table], dict(rows)
        found |= {uuid for uuid in old.keys() | new.keys() if old.get(uuid) != new.get(uuid)}
    if kept.commit.revision != knowledge.facts.accepted:
        found |= here.keys() ^ knowledge.standing
        found |= {uuid for uuid, each in here.items() if book.get(uuid) != each}
    return frozenset(found)


Rows = Iterable[tuple[str, Any]]


def _tables(standing: InstanceState, commit: Commit, tree: Inventory) -> dict[str, Rows]:
    plans, knowledge, decisions = standing.plans, standing.knowledge, commit.decisions
    return {
        "decisions": ((name, each.digested()) for name, each in decisions.servers.items()),
        "networks": decisions.networks.items(),
        "machines": commit.machines.items(),
        "sites": commit.sites.items(),
        "labels": ((name, dict(each)) for name, each in commit.labels.items()),
        "written": commit.written.items(),
        "locations": commit.locations.servers.items(),
        "documents": commit.locations.shared.items(),
        "states": (
            (
                name,
                _KeptState(
                    record=each.record,
                    absent=tuple(sorted(each.absent, key=lambda file: (file.url, file.sha256))),
                    at=each.at,
                    plan=each.plan,
                    later=each.later,
                    refresh_at=each.refresh_at,
                ),
            )
            for name, each in plans.servers.items()
        ),
        "instants": plans.transitions.instants.items(),
        "versions": ((name, dict(each)) for name, each in standing.publication.versions.items()),
        "lying": tree.states.items(),
        "content": tree.content.items(),
        "records": _records(knowledge),
        "done": _done(knowledge),
    }


def _read(chunks: _Chunks, manifest: _Manifest) -> _Read:
    """Read a checkpoint from its chunks. Raises KeyError, ValueError and DecodeError."""
    tables = {name: chunks.rows(manifest.tables[name], decode) for name, decode in _TABLES.items()}
    small = _decode(chunks.chunk(manifest.standing))
    fleetwide = small.commit
    commit = replace(
        fleetwide,
        decisions=structs.replace(fleetwide.decisions, servers=tables["decisions"], networks=tables["networks"]),
        machines=tables["machines"],
        sites=tables["sites"],
        labels=tables["labels"],
        written=tables["written"],
        locations=SourceLocations(servers=tables["locations"], shared=tables["documents"]),
    )
    states: dict[str, _KeptState] = tables["states"]
    servers = {
        name: ServerState(
            decision=commit.decisions.servers[name],
            record=each.record,
            about=about(commit, name),
            stop=small.plans.stop,
            absent=frozenset(each.absent),
            at=each.at,
            plan=each.plan,
            later=each.later,
            refresh_at=each.refresh_at,
        )
        for name, each in states.items()
    }
    none_due: Agenda[str] = Agenda()
    return _Read(
        small=small,
        commit=commit,
        plans=structs.replace(
            small.plans, commit=commit, servers=servers, transitions=none_due.moved(tables["instants"])
        ),
        tree=Inventory(
            states=tables["lying"],
            content=tables["content"],
            shared=small.shared,
            has_page=Output.PAGES in commit.decisions.outputs,
        ),
        tables=tables,
    )


_MANIFEST: Final = "checkpoint"
_CHUNK: Final = "checkpoint-chunk"
_manifest: Final[Callable[[bytes], _Manifest]] = decoder(_Manifest)
_decode: Final[Callable[[bytes], _KeptStanding]] = decoder(_KeptStanding)
_TABLES: Final[Mapping[str, Callable[[bytes], dict[Any, Any]]]] = {
    "decisions": decoder(dict[str, Decision]),
    "networks": decoder(dict[str, Host]),
    "machines": decoder(dict[SystemUuid, Machine]),
    "sites": decoder(dict[str, str]),
    "labels": decoder(dict[str, dict[str, str]]),
    "written": decoder(dict[str, Written]),
    "locations": decoder(dict[str, ServerLocation]),
    "documents": decoder(dict[str, DocumentLocation]),
    "states": decoder(dict[str, _KeptState]),
    "instants": decoder(dict[str, datetime]),
    "versions": decoder(dict[str, dict[str, str]]),
    "lying": decoder(dict[str, str]),
    "content": decoder(dict[str, tuple[str, ...]]),
    "records": decoder(dict[str, bytes]),
    "done": decoder(dict[str, bytes]),
}
_AT_ONCE: Final = 20  # servers
_PAUSE_S: Final = 0.01  # after so many: it takes a quarter of one processor at most


class Patrol:
    """A search for damage in the tree at ``root``, once, in a thread. It calls ``wake`` if it finds any."""

    def __init__(self, root: Path, wake: Callable[[], None]) -> None:
        self._root, self._wake = root, wake
        self._found: set[str] = set()
        self._lock = threading.Lock()
        self._closed, self._released = threading.Event(), threading.Event()
        self._thread = BackgroundThread(self._look, name="verify")

    def start(self) -> None:
        """Look once `release` is called."""
        self._thread.start()

    def release(self) -> None:
        """Let the search begin: nothing is more urgent any more."""
        self._released.set()

    def close(self) -> None:
        self._closed.set()
        self._released.set()
        self._thread.join()

    def found(self) -> frozenset[str]:
        """Return the servers whose files are damaged, and forget them. `ALL` stands for all servers."""
        with self._lock:
            found, self._found = self._found, set()
        return frozenset(found)

    def _look(self) -> None:
        self._released.wait()
        try:
            for number, server in enumerate(suspects(self._root)):
                if server is not None:
                    self._doubt(server)
                if number % _AT_ONCE == 0 and self._closed.wait(_PAUSE_S):
                    return
        except PublishError:
            self._doubt(ALL)  # publishing all says what is the matter

    def _doubt(self, server: str) -> None:
        with self._lock:
            self._found.add(server)
        self._wake()
