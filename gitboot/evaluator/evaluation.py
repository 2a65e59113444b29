"""Evaluation of commits: look up results by content key, and compute the missing results in parallel."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct, structs
from msgspec.msgpack import Encoder

from gitboot.child_processes import (
    FrameBuffer,
    ProcessLimits,
    build_frame,
    deduct_processor_time,
    divide_limits,
    encode,
    exit_with_parent,
)
from gitboot.evaluator.cache import (
    Cache,
    DecidedRow,
    DecodedRows,
    decode_decision,
    decode_host,
    decode_row,
    decode_server_row,
    decode_servers,
    encode_decided_server,
    encode_result,
)
from gitboot.evaluator.protocol import EVALUATION_KINDS, ResultKind
from gitboot.fleet.documents import FleetRepository, Id, ParseCache, ParsedBlob, read_blob
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.fleet.validation import LoadedFile, LoadedRevision, list_files, load_revision
from gitboot.jsonio import Digest, build_decoder
from gitboot.resolve.decision_inputs import FleetView, SharedInputs, list_own_files
from gitboot.resolve.fleet_decisions import DecidedServer, DecidedServers, FleetDecisions, decide_all, decide_revision
from gitboot.resolve.policy_selection import OptOut, list_opt_outs
from gitboot.review.guards import GROUP_LABELS, ChangeScope

if TYPE_CHECKING:
    from gitboot.review.decision_changes import Changes
    from gitboot.review.guards import Extent


# A function that returns the files in a commit. With an earlier snapshot, it reads only the files that differ.
OpenSnapshot = Callable[[Revision, Snapshot | None], Snapshot]


Key = bytes
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A valid commit, with the decisions for all of its servers."""

    loaded: LoadedRevision
    keys: Mapping[str, Key]  # by server, sorted
    rows: Mapping[str, DecidedRow]  # by server, sorted
    decided: FleetDecisions
    summary: FleetSummary

    @property
    def revision(self) -> Revision:
        return self.loaded.snapshot.revision

    @property
    def repository(self) -> FleetRepository:
        return self.loaded.repository

    def results(
        self, kind: ResultKind, similar_commit: Evaluation | None = None
    ) -> Mapping[bytes, LoadedFile | DecidedRow]:
        """Return the results of this commit for a cache, by key. Omit results that ``similar_commit`` also contains."""
        if kind is ResultKind.PARSED:
            own, old = self.loaded.batches, similar_commit.loaded.batches if similar_commit is not None else ()
            known = {each.blob for batch in frozenset(old).difference(own) for each in batch.files}
            files = (each for batch in frozenset(own).difference(old) for each in batch.files)
            return {each.blob.encode(): each for each in files if each.has_only_servers and each.blob not in known}
        keys = similar_commit.keys if similar_commit is not None else {}
        return {key: self.rows[name] for name, key in self.keys.items() if keys.get(name) != key}

    def has_same_content(self, other_commit: Evaluation) -> bool:
        return self.keys is other_commit.keys and self.repository.origins is other_commit.repository.origins


class FleetSummary:
    """Values that are computed from all servers of a fleet. Commits with the same documents share one summary."""

    def __init__(self, loaded: LoadedRevision) -> None:
        self._loaded = loaded

    @cached_property
    def opt_outs(self) -> tuple[OptOut, ...]:
        return tuple(list_opt_outs(self._loaded.repository))

    @cached_property
    def group_sizes(self) -> Mapping[tuple[str, str], int]:
        sizes: Counter[tuple[str, str]] = Counter()
        for key in GROUP_LABELS:
            for batch in self._loaded.batches:
                for value, count in batch.label_counts.get(key, {}).items():
                    sizes[key, value] += count
        return sizes


@dataclass(frozen=True, kw_only=True)
class CommitPair:
    base: Evaluation | None
    head: Evaluation
    claims: dict[Key, frozenset[Digest]]  # the results of `list_claims` in the last call, by content key

    @cached_property
    def servers(self) -> Collection[str]:
        """The names of the servers whose content key or source location differs between the two commits."""
        base, head = self.base, self.head
        if base is None:
            return head.keys.keys()
        if head.has_same_content(base):
            return frozenset()
        changed = (name for name, _ in base.keys.items() ^ head.keys.items())
        return frozenset((*changed, *(each.name for each in self._changed_documents if each.kind == "Server")))

    @cached_property
    def documents(self) -> frozenset[Id]:
        """The documents that may differ between the two commits, and the differing files that documents refer to."""
        base, head = self.base, self.head
        if base is None:
            return frozenset(head.repository.origins)
        old, new = base.repository.files, head.repository.files
        files = () if old is new else (path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
        return self._changed_documents | {Id("file", path) for path in files}

    @cached_property
    def _changed_documents(self) -> frozenset[Id]:
        """The documents that exist in only one of the two commits, or in another place or blob."""
        assert self.base is not None  # noqa: S101 - the callers return early without a base
        return frozenset(key for key, _ in self.base.repository.origins.items() ^ self.head.repository.origins.items())

    def compute_changes(self) -> Changes:
        # gitboot imports this module here, because the import is slow and `validate` does not need it
        from gitboot.review.decision_changes import compare_decisions

        base, new, repository = self.base, self.head.decided.decisions, self.head.repository
        if base is None:
            return compare_decisions(None, new, None, repository, None, None)
        return compare_decisions(
            base.decided.decisions,
            new,
            base.repository,
            repository,
            ChangeScope(servers=frozenset(self.servers), documents=self.documents, sizes=base.summary.group_sizes),
            self.collect_offered_claims,
        )

    def collect_offered_claims(self) -> frozenset[Digest]:
        """Return the digests of the boots in the base that do not write a disk, according to their images.

        The method updates ``claims``, so that the next call computes only the digests for changed decisions.
        """
        # gitboot imports this module here, because `validate` does not need it
        from gitboot.review.reinstalls import list_claims

        if self.base is None:
            return frozenset()
        known, rows = self.claims, zip(self.base.keys.values(), self.base.rows.values(), strict=True)
        found = {key: known[key] if key in known else list_claims(decode_decision(row.decision)) for key, row in rows}
        known.clear()
        known.update(found)
        return frozenset().union(*found.values())

    @property
    def extent(self) -> Extent:
        if self.base is not None:
            return self.compute_changes().extent
        from gitboot.review.guards import compute_first_extent

        decisions = self.head.decided.decisions
        return compute_first_extent(decisions, self.head.repository, decisions.servers.values())


class Evaluator:
    """An evaluator of commits, which keeps the last two commits in memory so that it can reuse their results."""

    def __init__(
        self,
        open_snapshot: OpenSnapshot,
        *,
        on_begin: Callable[[int], None] = lambda _: None,
        results: Cache | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._open_snapshot = open_snapshot
        self.results = results  # the cache with results of earlier evaluations; None: there is no cache
        self.workers = workers or Workers()  # worker processes, for evaluations with many missing results
        # a function that is called with the number of files in a commit before gitboot reads the files
        self._on_begin = on_begin
        self._recent: tuple[Evaluation, ...] = ()  # the last evaluated commit, after its base
        # The keys that are certainly in the cache.
        self._stored: dict[ResultKind, set[bytes]] = {kind: set() for kind in EVALUATION_KINDS}
        self._complete: Evaluation | None = None  # a commit all of whose results are in the cache
        self._claims: dict[Key, frozenset[Digest]] = {}

    def evaluate(self, revision: Revision, base: Revision | None) -> CommitPair:
        """Evaluate a commit, and compare it with ``base``.

        Raises `InvalidRepository` with all problems if the commit is invalid, and `SourceError` if gitboot cannot read
        a file.
        """
        base_evaluation = self._evaluate(base) if base is not None else None
        head = self._evaluate(revision, base_evaluation)
        self._recent = (head,) if base_evaluation is None else (base_evaluation, head)
        return CommitPair(base=base_evaluation, head=head, claims=self._claims)

    def is_in_memory(self, revision: Revision) -> bool:
        return any(each.revision == revision for each in self._recent)

    def take_unstored_results(self, batch_size: int) -> Iterator[tuple[ResultKind, dict[bytes, bytes]]]:
        """Yield those results of the last two commits that are not in the cache yet, at most ``batch_size`` at a time.

        The method yields each result only once.
        """
        commits = [each for each in self._recent if self._complete is None or not each.has_same_content(self._complete)]
        if not commits:
            return
        for kind in EVALUATION_KINDS:
            stored, results = self._stored[kind], dict[bytes, LoadedFile | DecidedRow]()
            for each in commits:
                results |= each.results(kind, self._complete)
            missing = iter(sorted(results.keys() - stored))
            while batch := tuple(islice(missing, batch_size)):
                yield kind, {key: encode_result(results[key]) for key in batch}
            stored.clear()  # the keys of `_complete` are in the cache, so the set need not contain them
        self._complete = commits[-1]

    def _evaluate(self, revision: Revision, similar_commit: Evaluation | None = None) -> Evaluation:
        if (known := next((each for each in self._recent if each.revision == revision), None)) is not None:
            return known
        similar_commit = similar_commit or next(iter(self._recent), None)
        snapshot = self._open_snapshot(revision, similar_commit.loaded.snapshot if similar_commit is not None else None)
        self._on_begin(len(snapshot.blobs))
        return _CommitEvaluator(snapshot, similar_commit, self._look_up, self.workers).evaluate()

    def _look_up(self, kind: ResultKind, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        found = self.results.get_many(kind, keys) if keys and self.results is not None else {}
        self._stored[kind].update(found)
        return found


class _CommitEvaluator:
    """The evaluation of one commit. ``similar_commit`` is a similar commit whose results are in memory."""

    def __init__(
        self,
        snapshot: Snapshot,
        similar_commit: Evaluation | None,
        look_up: Callable[[ResultKind, Collection[bytes]], Mapping[bytes, bytes]],
        workers: Workers,
    ) -> None:
        self._snapshot, self._similar_commit, self._look_up, self._workers = snapshot, similar_commit, look_up, workers
        self._keys: Mapping[str, Key] = {}
        self._rows: Mapping[str, DecidedRow] = {}

    def evaluate(self) -> Evaluation:
        similar_commit = self._similar_commit
        before = similar_commit.loaded if similar_commit is not None else None
        listing = list_files(self._snapshot, before)
        loaded = load_revision(self._snapshot, self._parse_new_files(listing.documents), before, listing)
        if (
            isinstance(loaded, LoadedRevision)
            and similar_commit is not None
            and loaded.repository.origins is similar_commit.repository.origins
        ):
            decisions = structs.replace(similar_commit.decided.decisions, revision=self._snapshot.revision)
            decided = structs.replace(similar_commit.decided, repository=loaded.repository, decisions=decisions)
            return replace(similar_commit, loaded=loaded, decided=decided)
        decided = decide_revision(loaded, self._decide)
        assert isinstance(loaded, LoadedRevision)  # noqa: S101 - `decide_revision` raises for any other result
        summary = FleetSummary(loaded)
        return Evaluation(loaded=loaded, keys=self._keys, rows=self._rows, decided=decided, summary=summary)

    def _parse_new_files(self, paths: Sequence[str]) -> ParseCache:
        """Return the documents of new files, from the cache or by having workers parse the files.

        A file is new if the commit in memory does not contain the file. `load_revision` parses the files that are
        missing from the result.
        """
        known = self._similar_commit.loaded.files if self._similar_commit is not None else {}
        blobs = self._snapshot.blobs
        unknown = {blobs[path]: path for path in paths if path not in known or known[path].blob != blobs[path]}
        rows = self._look_up(ResultKind.PARSED, [blob.encode() for blob in unknown])
        found = {BlobId(key.decode()): servers for key, row in rows.items() if (servers := decode_servers(row))}
        uncached = [(blob, path) for blob, path in unknown.items() if blob not in found]
        for blob, row in self._workers.parse(self._snapshot, uncached).items():
            servers = decode_servers(row)
            assert servers is not None  # noqa: S101 - a worker encoded it
            found[blob] = servers
        return {
            blob: ParsedBlob(resources=tuple(each), problems=(), more=0, broken=(), unread=())
            for blob, each in found.items()
        }

    def _decide(self, repository: FleetRepository) -> FleetDecisions:
        similar_commit = self._similar_commit
        self._keys = _compute_keys(repository, similar_commit)
        return decide_all(
            repository,
            self._decide_servers,
            similar_commit.decided.finding_places if similar_commit is not None else {},
        )

    def _decide_servers(self, decide: Callable[[str], DecidedServer], names: Sequence[str]) -> DecidedServers:
        """Return the decision for each server.

        Compute only the decisions that are neither in memory nor in the cache.
        """
        keys, similar_commit = self._keys, self._similar_commit
        known = similar_commit.keys if similar_commit is not None else {}
        unknown = [name for name in names if known.get(name) != keys[name]]
        stored = self._look_up(ResultKind.DECIDED, [keys[name] for name in unknown])
        found = {}
        for name in unknown:
            if (data := stored.get(keys[name])) is not None and (row := decode_server_row(data, name)) is not None:
                found[name] = row
        unknown = [name for name in unknown if name not in found]
        for name, data in zip(unknown, self._workers.decide(decide, unknown), strict=True):
            row = decode_row(data)
            assert row is not None  # noqa: S101 - a worker or this process just encoded it
            found[name] = row
        self._rows = rows = _merge_in_order(names, similar_commit.rows if similar_commit is not None else {}, found)
        return DecidedServers(
            decisions=DecodedRows(rows, lambda row: decode_decision(row.decision)),
            hosts=DecodedRows(rows, lambda row: decode_host(row.host)),
            findings={name: row.findings for name, row in rows.items() if row.findings},
        )


_encode_input: Final = Encoder().encode
_SIZE: Final = 16  # in bytes: large enough to rule out an accidental collision within one fleet


def compute_decision_keys(repository: FleetRepository, names: Iterable[str]) -> dict[str, Key]:
    """Return the content key of each of these servers' decisions, by server name."""
    view, shared_digests = FleetView(repository), _SharedDigests()
    files: dict[str, bytes] = {}  # the digests of files, by path
    keys = {}
    for name in names:
        server = repository.servers[name]
        found = shared_digests.digest_inputs(view.shared_inputs(server)) + _encode_input(server)
        for path in list_own_files(server):  # the files are in the order in which the document names them
            if path not in files:
                files[path] = _digest_input(repository.files[path])
            found += files[path]
        keys[name] = blake2b(found, digest_size=_SIZE).digest()
    return keys


class _SharedDigests:
    """The digests of the inputs that servers share. gitboot computes each digest only once."""

    def __init__(self) -> None:
        # the digests by the id() of the value; the reference to the value keeps the id unique
        self._digests: dict[int, tuple[object, bytes]] = {}
        self._names = SharedInputs.__struct_fields__

    def digest_inputs(self, inputs: SharedInputs) -> bytes:
        if (found := self._digests.get(id(inputs))) is None:
            parts = [self._replace_structures(getattr(inputs, name)) for name in self._names]
            found = self._digests[id(inputs)] = inputs, _digest_input(parts)
        return found[1]

    def _replace_structures(self, value: object) -> object:
        """Replace each structure in a value with its digest, because several inputs may share the structure."""
        if isinstance(value, tuple):
            return [self._replace_structures(each) for each in value]
        if not (isinstance(value, Struct) or is_dataclass(value)):
            return value
        if (found := self._digests.get(id(value))) is None:
            found = self._digests[id(value)] = value, _digest_input(value)
        return found[1]


def _digest_input(value: object) -> bytes:
    return blake2b(_encode_input(value), digest_size=_SIZE).digest()


def _compute_keys(repository: FleetRepository, similar_commit: Evaluation | None) -> Mapping[str, Key]:
    """Return the content key of each server.

    Unchanged servers keep their keys if only Server documents differ between the commits.
    """
    if similar_commit is None or _select_shared_documents(repository) != _select_shared_documents(
        similar_commit.repository
    ):
        return compute_decision_keys(repository, repository.servers)
    servers, before, keys = repository.servers, similar_commit.repository.servers, similar_commit.keys
    changed = [name for name, server in servers.items() if before.get(name) is not server]
    return _merge_in_order(servers, keys, compute_decision_keys(repository, changed))


def _merge_in_order(names: Collection[str], before: Mapping[str, T], new: Mapping[str, T]) -> Mapping[str, T]:
    """Merge two mappings in the order of ``names``. Values in ``new`` take precedence over values in ``before``."""
    if before.keys() == set(names):
        return {**before, **new}
    return {name: new[name] if name in new else before[name] for name in names}


def _select_shared_documents(repository: FleetRepository) -> tuple[object, ...]:
    return (
        repository.fleet,
        repository.images,
        repository.streams,
        repository.profiles,
        repository.policies,
        repository.maintenances,
        repository.files,
        [origin for key, origin in repository.origins.items() if key.kind != "Server"],
    )


MAX_WORKERS: Final = 8
# the minimum number of files or servers for workers, because few items take less time than the start of a worker
_MIN_ITEMS: Final = 500
BATCH: Final = 64  # the number of files or servers in one message from a worker


def choose_worker_count() -> int:
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


class Workers(Struct, frozen=True, kw_only=True):
    """Worker processes for one evaluation.

    ``on_read`` is called with the number of files that the workers have read so far.
    """

    number: int = 1
    on_read: Callable[[int], None] = lambda _: None

    def parse(self, snapshot: Snapshot, files: Sequence[tuple[BlobId, str]]) -> dict[BlobId, bytes]:
        """Parse files, and return the encoded documents of each file that contains only valid Server documents.

        ``files`` are blobs with their paths. The caller must parse the files that are missing from the result.
        """

        def parse_file(each: tuple[BlobId, str]) -> bytes | None:
            found = read_blob(snapshot, *each)
            return encode(found.resources) if found.has_only_servers else None

        found = self._compute_results(files, parse_file, self.on_read)
        return {blob: row for (blob, _), row in zip(files, found, strict=True) if row is not None}

    def decide(self, decide: Callable[[str], DecidedServer], names: Sequence[str]) -> list[bytes]:
        """Decide the boot of each server, and return an encoded `DecidedRow` for each server."""
        found = self._compute_results(names, lambda name: encode_decided_server(decide(name)))
        return [
            encode_decided_server(decide(name)) if row is None else row for name, row in zip(names, found, strict=True)
        ]

    def _compute_results(
        self,
        items: Sequence[T],
        compute_result: Callable[[T], bytes | None],
        on_results: Callable[[int], None] = lambda _: None,
    ) -> list[bytes | None]:
        """Return the result of ``compute_result`` for each item, or None if this process must compute the results.

        ``on_results`` is called with the number of results so far.
        """
        if self.number < 2 or len(items) < _MIN_ITEMS or threading.active_count() > 1:
            return [None] * len(items)
        found: list[bytes | None] = [None] * len(items)
        done = 0
        compute_result(items[0])  # this call fills the caches of this process, which each worker inherits
        limits = divide_limits(self.number)
        workers = [_start_worker(limits, items[number :: self.number], compute_result) for number in range(self.number)]
        try:
            for number, start, results in _read_results([worker.pipe for worker in workers]):
                first = number + start * self.number
                found[first : first + len(results) * self.number : self.number] = results
                done += len(results)
                on_results(done)
        finally:
            deduct_processor_time(sum(worker.end() for worker in workers))
        return found


class _Worker(Struct, frozen=True):
    process: int
    pipe: int

    def end(self) -> float:
        os.close(self.pipe)
        os.kill(self.process, signal.SIGKILL)  # after an error, the worker may still run
        _, _, usage = os.wait4(self.process, 0)
        return usage.ru_utime + usage.ru_stime


def _start_worker(limits: ProcessLimits, items: Sequence[T], compute_result: Callable[[T], bytes | None]) -> _Worker:
    """Start a worker process. If the worker fails, this process must compute the missing results."""
    parent = os.getpid()
    reader, writer = os.pipe()
    if (process := os.fork()) != 0:
        os.close(writer)
        return _Worker(process, reader)
    with suppress(BaseException):
        exit_with_parent(parent)
        limits.apply()
        for first in range(0, len(items), BATCH):
            batch = [compute_result(item) for item in items[first : first + BATCH]]
            rest = memoryview(build_frame(encode((first, batch))))
            while rest:
                rest = rest[os.write(writer, rest) :]
    os._exit(0)  # end without flushing the buffers that the worker inherited from the parent


_decode_results: Final[Callable[[bytes], tuple[int, list[bytes | None]]]] = build_decoder(
    tuple[int, list[bytes | None]]
)


_READ_BYTES: Final = 2**20  # bytes


def _read_results(pipes: Sequence[int]) -> Iterator[tuple[int, int, list[bytes | None]]]:
    """Yield the results of all workers until every worker has ended.

    Each result consists of the worker's number, the index of the first item, and the values.
    """
    poll, buffers = select.poll(), {pipe: FrameBuffer() for pipe in pipes}
    numbers = {pipe: number for number, pipe in enumerate(pipes)}
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    while buffers:
        for pipe, _ in poll.poll():
            data = os.read(pipe, _READ_BYTES)
            for frame in buffers[pipe].add(data):
                yield (numbers[pipe], *_decode_results(frame))
            if not data:
                poll.unregister(pipe)
                del buffers[pipe]
