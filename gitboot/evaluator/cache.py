"""Cache of evaluation results, on disk or in another process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import msgspec

from gitboot.child_processes import build_frame, encode, read_frame, write_frame
from gitboot.disk_cache import MAX_VALUE_BYTES, DiskCache
from gitboot.evaluator import protocol
from gitboot.evaluator.protocol import CacheHits, CacheLookup, NewResults, ResultKind
from gitboot.jsonio import build_decoder
from gitboot.model.server import Server
from gitboot.resolve.decision_inputs import DecisionFinding
from gitboot.resolve.server_decision import Decision, Host

if TYPE_CHECKING:
    from gitboot.fleet.validation import LoadedFile
    from gitboot.resolve.fleet_decisions import DecidedServer


V = TypeVar("V")


class _ServerName(msgspec.Struct, frozen=True, gc=False):
    """A structure for decoding only the server name from an encoded `Decision` or `Host`."""

    server: str


class DecidedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An encoded `DecidedServer`, whose parts an evaluation decodes only if it needs them."""

    decision: bytes  # an encoded Decision
    host: bytes  # an encoded Host
    findings: tuple[DecisionFinding, ...]


def encode_decided_server(server: DecidedServer) -> bytes:
    return encode(DecidedRow(protocol.encode_decision(server.decision), encode(server.host), server.findings))


def _decode_or_none(decode: Callable[[bytes], V], data: bytes) -> V | None:
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError):
        return None


_row_decoder: Final[Callable[[bytes], DecidedRow]] = build_decoder(DecidedRow)
_name_decoder: Final[Callable[[bytes], _ServerName]] = build_decoder(_ServerName)
_servers_decoder: Final[Callable[[bytes], list[tuple[int, Server]]]] = build_decoder(list[tuple[int, Server]])


def decode_row(data: bytes) -> DecidedRow | None:
    """Decode the bytes of a `DecidedRow`. Return None if the bytes are invalid."""
    return _decode_or_none(_row_decoder, data)


def decode_server_row(data: bytes, server: str) -> DecidedRow | None:
    """Decode the `DecidedRow` of a server.

    Return None if the bytes are invalid, or if the row belongs to another server.
    """
    if (row := decode_row(data)) is None:
        return None
    parts = (_decode_or_none(_name_decoder, part) for part in (row.decision, row.host))
    return row if all(part is not None and part.server == server for part in parts) else None


def encode_result(result: LoadedFile | DecidedRow) -> bytes:
    return encode(result if isinstance(result, DecidedRow) else result.parsed.resources)


def decode_servers(data: bytes) -> list[tuple[int, Server]] | None:
    """Decode the Server documents of a file, and the position of each document in the file.

    Return None if the bytes are invalid.
    """
    return _decode_or_none(_servers_decoder, data) or None


def is_valid_result(kind: ResultKind, data: bytes) -> bool:
    """Return whether the bytes are a valid result of this kind. All parts of a row must belong to the same server."""
    if kind is ResultKind.PARSED:
        return decode_servers(data) is not None
    if kind is not ResultKind.DECIDED or (row := decode_row(data)) is None:
        return False
    decision = _decode_or_none(protocol.decode_verified_decision, row.decision)
    host = _decode_or_none(decode_host, row.host)
    return decision is not None and host is not None and decision.server == host.server


class DecodedRows(Mapping[str, V], Generic[V]):
    """A mapping from server names to values. Each access decodes a value from the server's row."""

    def __init__(self, rows: Mapping[str, DecidedRow], decode: Callable[[DecidedRow], V]) -> None:
        self.rows, self._decode = rows, decode

    def __getitem__(self, name: str) -> V:
        return self._decode(self.rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


RECENT: Final = 8192  # the number of decoded values in memory, because an evaluation reads each server several times


@lru_cache(maxsize=RECENT)
def decode_decision(data: bytes) -> Decision:
    return protocol.decode_decision(data)


@lru_cache(maxsize=RECENT)
def decode_host(data: bytes) -> Host:
    return protocol.decode_host(data)


class Cache(Protocol):
    """A cache of evaluation results, by kind and key."""

    def get_many(self, kind: ResultKind, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return the cached values by key. The result does not contain keys that are not in the cache."""

    def insert_many(self, kind: ResultKind, rows: Mapping[bytes, bytes]) -> None:
        """Insert new values. If a key is already in the cache, keep the existing value."""


class RemoteCache:
    """A cache that belongs to another process and that gitboot accesses over two streams.

    After the other process has ended, lookups find no values.
    """

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._is_lost = False  # whether the other process ended, or an error left a partial frame in a stream

    def get_many(self, kind: ResultKind, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        remaining = iter(keys)
        while not self._is_lost and (batch := tuple(islice(remaining, protocol.MAX_KEYS))):
            with self._detect_lost_connection():
                write_frame(self._outgoing, CacheLookup(kind, batch))
                if (frame := read_frame(self._incoming)) is None:
                    raise EOFError
                found |= protocol.decode_hits(frame).values
        return found

    def insert_many(self, kind: ResultKind, rows: Mapping[bytes, bytes]) -> None:
        for batch in _split_batches(rows):
            if self._is_lost:
                return
            with self._detect_lost_connection():
                write_frame(self._outgoing, NewResults(kind, batch))

    @contextmanager
    def _detect_lost_connection(self) -> Iterator[None]:
        self._is_lost = True  # the connection counts as lost until the block ends without an error
        with suppress(OSError, EOFError):
            yield
            self._is_lost = False


_BATCH_BYTES: Final = 2**24  # the maximum size of the new results in one message; the last value may exceed this limit


def _split_batches(rows: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Split results into one batch for each message. Omit values that are too large for the cache."""
    batch, size = dict[bytes, bytes](), 0
    for key, value in rows.items():
        if len(value) > MAX_VALUE_BYTES:
            continue
        batch[key], size = value, size + len(value)
        if len(batch) == protocol.MAX_KEYS or size >= _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def look_up(cache: Cache | None, request: CacheLookup) -> CacheHits:
    """Look up the keys in a request. If there is no cache, return no values.

    Raises ValueError if there are too many keys.
    """
    if len(request.keys) > protocol.MAX_KEYS:
        raise ValueError(f"the request has too many keys: {len(request.keys):,}")
    return CacheHits(dict(cache.get_many(request.kind, request.keys)) if cache is not None else {})


_decode_message: Final[Callable[[bytes], CacheLookup | NewResults]] = build_decoder(CacheLookup | NewResults)
MAX_BYTES: Final = 2**29  # the maximum size of the results of one evaluation; gitboot discards further results


MAX_KEY_BYTES: Final = 256  # the maximum length of a key that `serve_cache` inserts
# The maximum size of a message that `serve_cache` reads. A message can contain the largest value that the cache
# accepts.
MAX_MESSAGE_BYTES: Final = 2**27


def serve_cache(
    cache: Cache, incoming: IO[bytes], outgoing: IO[bytes], is_valid_result: Callable[[ResultKind, bytes], bool]
) -> None:
    """Serve lookups and insertions to a `RemoteCache` until the process that uses it ends or sends an invalid frame.

    A frame is invalid if it contains a message of any other kind, too many keys, a key that is too long, or a value
    that ``is_valid_result`` rejects. gitboot does not insert the results of an invalid frame.
    """
    with suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        while (frame := read_frame(incoming, MAX_MESSAGE_BYTES)) is not None:
            message = _decode_message(frame)
            if isinstance(message, CacheLookup):
                write_frame(outgoing, look_up(cache, message))
                continue
            kind, values = message.kind, message.values
            if len(values) > protocol.MAX_KEYS or max(map(len, values), default=0) > MAX_KEY_BYTES:
                return
            if not all(is_valid_result(kind, value) for value in values.values()):
                return
            cache.insert_many(kind, values)


_decode_spooled_results: Final[Callable[[bytes], NewResults]] = build_decoder(NewResults)


class ResultsFile:
    """An unnamed temporary file that contains evaluation results. The file disappears when this process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._is_full = False
        self._verified: set[bytes] = set()  # digests of verified pairs of decision and host

    def mark_verified(self, servers: Iterable[protocol.ServerPart]) -> None:
        """Mark the decisions and hosts of these servers as verified.

        The instance must already have decoded and checked these decisions and hosts.
        """
        for each in servers:
            if each.decision is not None and each.network is not None:
                self._verified.add(_compute_digest(each.decision, each.network))

    def add(self, kind: ResultKind, values: Mapping[bytes, bytes]) -> None:
        """Append results to the file.

        Ignore all further results after a disk error, or if the file would exceed MAX_BYTES.
        """
        if self._is_full:
            return
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - `store` and `close` close it
            data = build_frame(encode(NewResults(kind, dict(values))))
            self._is_full = self._file.tell() + len(data) > MAX_BYTES
            if not self._is_full:
                self._file.write(data)
        except OSError:
            self._is_full = True

    def store(self, cache: DiskCache, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Insert the valid results into a cache, and close the file. Stop early if ``should_stop`` returns True."""
        if (file := self._file) is None:
            return
        with file, suppress(OSError, msgspec.MsgspecError):
            file.seek(0)
            while not should_stop() and (frame := read_frame(file)) is not None:
                results = _decode_spooled_results(frame)
                cache.insert_many(
                    results.kind,
                    {key: value for key, value in results.values.items() if self._is_valid(results.kind, value)},
                )

    def _is_valid(self, kind: ResultKind, data: bytes) -> bool:
        row = decode_row(data) if kind is ResultKind.DECIDED else None
        is_verified = row is not None and _compute_digest(row.decision, row.host) in self._verified
        return is_verified or is_valid_result(kind, data)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def _compute_digest(decision: bytes, host: bytes) -> bytes:
    return blake2b(encode((decision, host)), digest_size=16).digest()
