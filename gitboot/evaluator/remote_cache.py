"""Lookups of the evaluator process in a cache that another process has open.

Both ends exchange `protocol.Wanted`, `protocol.Known` and `protocol.NewResults`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, Final, Protocol

import msgspec

from gitboot.child_processes import read_frame, write_frame
from gitboot.disk_cache import MAX_VALUE_BYTES
from gitboot.evaluator import protocol
from gitboot.evaluator.protocol import Known, NewResults, ResultKind, Wanted
from gitboot.jsonio import decoder

MAX_KEY_BYTES: Final = 256  # of a key that `serve_cache` inserts
MAX_MESSAGE_BYTES: Final = 2**27  # of a message that `serve_cache` reads; the largest value of the cache fits
_BATCH_BYTES: Final = 2**24  # of new results in one message; the last value may exceed this


class Results(Protocol):
    """Results of earlier evaluations, by kind and key."""

    def get_many(self, kind: ResultKind, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return the known values by key."""


class Cache(Results, Protocol):
    """Results that can be added to."""

    def insert_many(self, kind: ResultKind, rows: Mapping[bytes, bytes]) -> None:
        """Store values that the cache does not have yet."""


class RemoteCache:
    """The cache of the process at the other end of two streams. If that process is gone, each lookup is a miss."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._is_lost = False  # whether the other process has ended, or an error has left a part of a frame in a stream

    def get_many(self, kind: ResultKind, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        left = iter(keys)
        while not self._is_lost and (batch := tuple(islice(left, protocol.MAX_KEYS))):
            with self._exchange():
                write_frame(self._outgoing, Wanted(kind, batch))
                if (frame := read_frame(self._incoming)) is None:
                    raise EOFError
                found |= protocol.known(frame).values
        return found

    def insert_many(self, kind: ResultKind, rows: Mapping[bytes, bytes]) -> None:
        for batch in _batches(rows):
            if self._is_lost:
                return
            with self._exchange():
                write_frame(self._outgoing, NewResults(kind, batch))

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        self._is_lost = True  # until the block ends without an error
        with suppress(OSError, EOFError):
            yield
            self._is_lost = False


def _batches(rows: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Yield the results of one message after the other, without values that are too large for the cache."""
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


def lookup(results: Results | None, wanted: Wanted) -> Known:
    """Answer a lookup; without results, each key is a miss. Raises ValueError for too many keys."""
    if len(wanted.keys) > protocol.MAX_KEYS:
        raise ValueError(f"{len(wanted.keys):,} keys at once")
    return Known(dict(results.get_many(wanted.kind, wanted.keys)) if results is not None else {})


def serve_cache(
    cache: Cache, incoming: IO[bytes], outgoing: IO[bytes], is_result: Callable[[ResultKind, bytes], bool]
) -> None:
    """Answer the lookups of a `RemoteCache` and insert its results, until its process ends or sends a wrong frame.

    A frame is wrong if it has another message, too many keys, a key that is too long, or a value that ``is_result``
    rejects. The results of a wrong frame are not inserted.
    """
    with suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        while (frame := read_frame(incoming, MAX_MESSAGE_BYTES)) is not None:
            message = _decode(frame)
            if isinstance(message, Wanted):
                write_frame(outgoing, lookup(cache, message))
            elif _is_right(message, is_result):
                cache.insert_many(message.kind, message.values)
            else:
                return


def _is_right(results: NewResults, is_result: Callable[[ResultKind, bytes], bool]) -> bool:
    if len(results.values) > protocol.MAX_KEYS or max(map(len, results.values), default=0) > MAX_KEY_BYTES:
        return False
    return all(is_result(results.kind, value) for value in results.values.values())


_decode: Final[Callable[[bytes], Wanted | NewResults]] = decoder(Wanted | NewResults)
