"""What goes between instance and evaluator: frames in any pieces, values that stay bytes until they are asked for."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.evaluator import encoded, protocol
from gitboot.evaluator.encoded import Compact
from gitboot.evaluator.protocol import Allowance
from gitboot.frames import Buffer, encode, read_frame, write_frame
from tests.cases import for_each
from tests.fleets import decided, fleet, image, policy, profile, server

QUESTION = protocol.Question("f" * 40, None, Allowance(seconds=2))


def written(*messages: protocol.Question | protocol.Answer) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write_frame(stream, message)
    return stream.getvalue()


def test_a_question_comes_as_it_was_asked() -> None:
    frame = read_frame(io.BytesIO(written(QUESTION)))
    assert frame is not None
    assert protocol.question(frame) == QUESTION


@for_each("length", range(len(written(QUESTION))))
def test_what_ends_in_the_middle_of_a_frame_is_the_end(length: int) -> None:
    assert read_frame(io.BytesIO(written(QUESTION)[:length])) is None


@given(files=st.lists(st.integers(0, 2**40), max_size=20), cuts=st.lists(st.integers(0, 400)))
def test_frames_are_the_same_in_whatever_pieces_they_come(files: list[int], cuts: list[int]) -> None:
    sent = written(*map(protocol.Begun, files))
    ends = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    buffer = Buffer()
    frames = [frame for start, end in pairwise(ends) for frame in buffer.add(sent[start:end])]
    assert list(map(protocol.answer, frames)) == list(map(protocol.Begun, files))


def test_a_value_is_decoded_when_it_is_asked_for_and_only_those_looked_at_last_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoded, "RECENT", 2)
    decoded: list[bytes] = []

    def decode(data: bytes) -> str:
        decoded.append(data)
        return data.decode()

    first = Compact[str]({}, decode, str.encode).having({"b": b"2", "a": b"1"}, ())
    assert (list(first), len(first), "a" in first, decoded) == (["a", "b"], 2, True, [])
    assert first["a"] + first["a"] == "11" and decoded == [b"1"]
    second = first.having({"b": b"3", "c": first.put_in("c", "4")}, ())
    assert (second["c"], second["a"], second["b"], first["b"]) == ("4", "1", "3", "2")
    assert decoded == [b"1", b"3", b"2"]  # what was put in is not decoded, nor what is the same of both
    assert (second["a"], second["b"]) == ("1", "3") and decoded[3:] == [b"1", b"3"]
    assert first.having({}, ()) is first
    assert list(second.having({}, ("a",))) == ["b", "c"]
    assert [second.read_by(repr)[name] for name in "bc"] == ["3", "b'4'"]  # one is held as it is


def test_a_decision_comes_with_its_digest_and_one_made_of_it_has_its_own() -> None:
    decision = decided(fleet(), server("web01"), image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    here = decision.servers["web01"]
    there = protocol.decision(encode(here.digested()))
    assert there._digest == here.digest
    assert there == here
    other = replace(there, stopped=True)
    assert other.digest not in (here.digest, there.digest)
    assert replace(other, stopped=False).digest == here.digest
