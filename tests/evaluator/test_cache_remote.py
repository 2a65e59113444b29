"""A cache that another process has open: its lookups, and rows that it does not store."""

from __future__ import annotations

import io
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread

import msgspec
import pytest

from gitboot.child_processes import build_frame, encode, read_frame
from gitboot.evaluator.cache import MAX_KEY_BYTES, RemoteCache, serve_cache
from gitboot.evaluator.protocol import (
    MAX_KEYS,
    CacheHits,
    CacheLookup,
    EvaluationStart,
    NewResults,
    ResultKind,
    decode_hits,
)
from tests.helpers.evaluations import StoredResults

PARSED, DECIDED = ResultKind.PARSED, ResultKind.DECIDED
RIGHT = NewResults(PARSED, {b"one": b"value"})


def is_valid_result(kind: ResultKind, value: bytes) -> bool:
    return kind is PARSED and not value.startswith(b"wrong")


def encode_frame(message: msgspec.Struct) -> bytes:
    return build_frame(encode(message))


def run_cache_server(sent: bytes) -> tuple[dict[bytes, bytes], list[Mapping[bytes, bytes]]]:
    cache, answers = StoredResults(), io.BytesIO()
    serve_cache(cache, io.BytesIO(sent), answers, is_valid_result)
    answers.seek(0)
    frames: Iterator[bytes | None] = iter(lambda: read_frame(answers), None)
    return cache.rows[PARSED], [decode_hits(each).values for each in frames if each is not None]


def test_results_are_stored_and_looked_up_by_kind() -> None:
    lookups = encode_frame(CacheLookup(PARSED, (b"one", b"other"))) + encode_frame(CacheLookup(DECIDED, (b"one",)))
    assert run_cache_server(encode_frame(RIGHT) + lookups) == ({b"one": b"value"}, [{b"one": b"value"}, {}])


@pytest.mark.parametrize("size", range(len(encode_frame(RIGHT))))
def test_nothing_of_a_truncated_frame_is_stored(size: int) -> None:
    assert run_cache_server(encode_frame(RIGHT) + encode_frame(NewResults(PARSED, {b"two": b"value"}))[:size]) == (
        {b"one": b"value"},
        [],
    )


WRONG = {
    "a frame that is too long": b"\xff\xff\xff\xff",
    "no msgpack": build_frame(b"\xc1"),
    "another message": encode_frame(EvaluationStart(1)),
    "an unknown kind": encode_frame(NewResults(PARSED, {b"two": b"value"})).replace(b"parsed", b"parked"),
    "a wrong value beside a right one": encode_frame(NewResults(PARSED, {b"two": b"value", b"three": b"wrong"})),
    "a value of another kind": encode_frame(NewResults(DECIDED, {b"two": b"value"})),
    "a long key": encode_frame(NewResults(PARSED, {b"k" * (MAX_KEY_BYTES + 1): b"value"})),
    "many keys": encode_frame(NewResults(PARSED, {b"%d" % number: b"value" for number in range(MAX_KEYS + 1)})),
    "many keys to look up": encode_frame(CacheLookup(PARSED, (b"one",) * (MAX_KEYS + 1))),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_nothing_of_an_invalid_frame_is_stored_and_no_later_frame(wrong: str) -> None:
    after = encode_frame(NewResults(PARSED, {b"after": b"value"})) + encode_frame(CacheLookup(PARSED, (b"one",)))
    assert run_cache_server(encode_frame(RIGHT) + WRONG[wrong] + after) == ({b"one": b"value"}, [])


@contextmanager
def remote(cache: StoredResults) -> Iterator[RemoteCache]:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as incoming, ours.makefile("wb") as outgoing:
        serving = Thread(target=serve_cache, args=(cache, incoming, outgoing, is_valid_result))
        serving.start()
        with theirs.makefile("rb") as answers, theirs.makefile("wb") as questions:
            yield RemoteCache(answers, questions)
        theirs.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_any_number_of_results_is_stored_and_looked_up() -> None:
    rows = {b"%d" % number: b"%d" % number * 2000 for number in range(2 * MAX_KEYS + 1)}  # more than a socket holds
    cache = StoredResults()
    with remote(cache) as there:
        there.insert_many(PARSED, rows)
        assert there.get_many(PARSED, [*rows, b"other"]) == rows
        there.insert_many(PARSED, {b"0": b"another"})
        assert there.get_many(PARSED, [b"0"]) == {b"0": rows[b"0"]}
    assert [len(each[PARSED]) for each in cache.inserted] == [MAX_KEYS, MAX_KEYS, 1, 1]


def test_after_an_error_in_an_answer_each_lookup_is_a_miss() -> None:
    answer = io.BytesIO(encode_frame(CacheHits({b"one": b"value"})))

    class LacksMemory(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if size != 4:  # the length of the frame
                raise MemoryError
            return answer.read(size)

    there = RemoteCache(LacksMemory(), io.BytesIO())
    with pytest.raises(MemoryError):
        there.get_many(PARSED, [b"one"])
    assert there.get_many(PARSED, [b"one"]) == {}  # the rest of the answer is still in the stream


class Broken(StoredResults):
    def get_many(self, kind: str, keys: Collection[bytes]) -> dict[bytes, bytes]:  # type: ignore[override]
        raise OSError


def test_without_the_other_process_each_lookup_is_a_miss() -> None:
    ours, theirs = socket.socketpair()
    with suppress(BrokenPipeError), theirs, theirs.makefile("rb") as answers, theirs.makefile("wb") as questions:
        there = RemoteCache(answers, questions)
        with ours, ours.makefile("rb") as incoming, ours.makefile("wb") as outgoing:
            questions.write(encode_frame(CacheLookup(PARSED, (b"one",))))
            questions.flush()
            serve_cache(Broken(), incoming, outgoing, is_valid_result)
        for _ in range(2):
            there.insert_many(PARSED, {b"one": b"value"})
            assert there.get_many(PARSED, [b"one"]) == {}
