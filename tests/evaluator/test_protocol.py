"""Messages between instance and evaluator: frames in any pieces, and servers whose parts belong together."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace as with_fields

from gitboot.child_processes import FrameBuffer, encode, read_frame, write_frame
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import DecidedRow, is_valid_result
from gitboot.evaluator.client import assemble_commit
from gitboot.evaluator.evaluation import Evaluator
from gitboot.evaluator.process import build_report
from gitboot.evaluator.protocol import CommitEnd, EvaluationLimits, ResultKind, ServerPart, ServerParts
from gitboot.fleet.identities import Machine
from tests.helpers.cases import for_each
from tests.helpers.fleets import decided, fleet, image, make_uuid, policy, profile, server, snapshot

QUESTION = protocol.Question("f" * 40, None, EvaluationLimits(seconds=2))


def write_messages(*messages: protocol.Question | protocol.Answer) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write_frame(stream, message)
    return stream.getvalue()


def test_a_question_is_decoded_as_it_was_encoded() -> None:
    frame = read_frame(io.BytesIO(write_messages(QUESTION)))
    assert frame is not None
    assert protocol.decode_question(frame) == QUESTION


@for_each("length", range(len(write_messages(QUESTION))))
def test_an_incomplete_frame_counts_as_the_end(length: int) -> None:
    assert read_frame(io.BytesIO(write_messages(QUESTION)[:length])) is None


@given(files=st.lists(st.integers(0, 2**40), max_size=20), cuts=st.lists(st.integers(0, 400)))
def test_frames_are_the_same_for_any_split_into_pieces(files: list[int], cuts: list[int]) -> None:
    sent = write_messages(*map(protocol.EvaluationStart, files))
    ends = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    buffer = FrameBuffer()
    frames = [frame for start, end in pairwise(ends) for frame in buffer.add(sent[start:end])]
    assert list(map(protocol.decode_answer, frames)) == list(map(protocol.EvaluationStart, files))


def test_a_decision_comes_with_its_digest_and_a_changed_copy_gets_a_new_one() -> None:
    decision = decided(fleet(), server("web01"), image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    here = decision.servers["web01"]
    there = protocol.decode_decision(encode(here.with_digest()))
    assert (there._digest, there) == (here.digest, here)
    other = replace(there, stopped=True)
    assert other.digest not in (here.digest, there.digest)
    assert replace(other, stopped=False).digest == here.digest


# Parts of servers


def make_answers(*names: str) -> list[protocol.Answer]:
    documents = (fleet(), *(server(name, "role: web") for name in names), image("flatcar-1"))
    found = snapshot(*documents, profile("web", "flatcar-1"), policy("web"))
    return list(build_report(Evaluator(lambda _, __: found).evaluate(found.revision, None)))


def with_part(answers: list[protocol.Answer], change: Callable[[ServerPart], ServerPart]) -> list[protocol.Answer]:
    (parts, *rest) = answers
    assert isinstance(parts, ServerParts)
    first, *others = parts.servers
    return [ServerParts((change(first), *others)), *rest]


def with_decision(part: ServerPart, **fields: Any) -> ServerPart:
    assert part.decision is not None
    return with_fields(
        part, decision=protocol.encode_decision(replace(protocol.decode_decision(part.decision), **fields))
    )


def rename_machine(part: ServerPart, name: str) -> Machine:
    assert part.machine is not None
    return structs.replace(part.machine, name=name)


def with_another_digest(part: ServerPart) -> ServerPart:
    assert part.decision is not None
    return with_fields(part, decision=part.decision.replace(b"\xa4UEFI", b"\xa4BIOS"))


WRONG_PARTS: dict[str, Callable[[ServerPart], ServerPart]] = {
    "a decision that does not decode": lambda part: with_fields(part, decision=b"\xc1"),
    "a host that does not decode": lambda part: with_fields(part, network=b"\x90"),
    "the decision of another server": lambda part: with_decision(part, server="web02"),
    "the decision of another machine": lambda part: with_decision(part, uuid=make_uuid("web02")),
    "the decision of an unknown machine": lambda part: with_decision(part, uuid=make_uuid("web03")),
    "a decision with the digest of another": with_another_digest,
    "the host of another server": lambda part: with_fields(
        part, network=encode(structs.replace(protocol.decode_host(part.network or b""), server="web02"))
    ),
    "the machine of another server": lambda part: with_fields(part, machine=rename_machine(part, "web02")),
    "another name": lambda part: with_fields(part, name="web03"),
    "no decision": lambda part: with_fields(part, decision=None),
    "no host": lambda part: with_fields(part, network=None),
    "no machine": lambda part: with_fields(part, machine=None),
    "no labels": lambda part: with_fields(part, labels=None),
}


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_a_server_with_parts_that_do_not_belong_together_is_rejected(case: str) -> None:
    answers = make_answers("web01", "web02")
    commit = assemble_commit(None, snapshot().revision, answers).commit
    wrong = with_part(answers, WRONG_PARTS[case])
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        assemble_commit(None, commit.revision, wrong)
    if case not in ("no decision", "no host", "no machine", "no labels"):
        with pytest.raises((ValueError, msgspec.MsgspecError)):
            assemble_commit(commit, commit.revision, wrong)


def test_a_commit_takes_little_memory_for_each_server() -> None:
    names = [f"web{number:02}" for number in range(50)]
    frames = [encode(each) for each in make_answers(*names)]
    assemble_commit(None, snapshot().revision, map(protocol.decode_answer, frames))  # makes the decoders
    tracemalloc.start()
    try:
        commit = assemble_commit(None, snapshot().revision, map(protocol.decode_answer, frames)).commit
        held = tracemalloc.get_traced_memory()[0] / len(names)
    finally:
        tracemalloc.stop()
    assert list(commit.decisions.servers) == names
    assert held < 3 * 1024


def test_a_commit_without_a_base_needs_the_fleet() -> None:
    *parts, end = make_answers("web01")
    assert isinstance(end, CommitEnd)
    with pytest.raises(ValueError, match="there is no base"):
        assemble_commit(None, snapshot().revision, [*parts, with_fields(end, fleetwide=None)])


def test_a_machine_cannot_be_removed_without_its_server() -> None:
    answers = make_answers("web01", "web02")
    commit = assemble_commit(None, snapshot().revision, answers).commit
    (parts, end) = answers
    assert isinstance(parts, ServerParts) and isinstance(end, CommitEnd)
    first, second = parts.servers
    stolen = with_fields(with_decision(first, uuid=make_uuid("web02")), machine=rename_machine(second, "web01"))
    with pytest.raises(ValueError, match="unchanged server"):
        assemble_commit(commit, commit.revision, [ServerParts((stolen,)), end])
    with pytest.raises(ValueError, match="unchanged server"):
        assemble_commit(commit, commit.revision, [with_fields(end, removed_machines=(make_uuid("web02"),))])
    with pytest.raises(ValueError, match="list of new servers"):
        assemble_commit(commit, commit.revision, [with_fields(end, new_servers=("web03",))])


def test_a_removed_server_leaves_no_part_behind() -> None:
    answers = make_answers("web01", "web02")
    commit = assemble_commit(None, snapshot().revision, answers).commit
    end = answers[-1]
    assert isinstance(end, CommitEnd)
    gone = with_fields(end, removed_servers=("web02",), new_servers=())
    with pytest.raises(ValueError, match="lacks a part"):
        assemble_commit(commit, commit.revision, [gone])
    left = assemble_commit(commit, commit.revision, [with_fields(gone, removed_machines=(make_uuid("web02"),))]).commit
    assert (list(left.decisions.servers), len(left.machines)) == (["web01"], 1)


@pytest.mark.parametrize(
    ("change", "is_stored"),
    [
        (lambda part: part, True),
        (with_another_digest, False),
        (WRONG_PARTS["the host of another server"], False),
    ],
    ids=["right", "another digest", "another server"],
)
def test_a_row_for_the_cache_belongs_to_one_server(change: Callable[[ServerPart], ServerPart], is_stored: bool) -> None:
    (parts, *_) = with_part(make_answers("web01"), change)
    assert isinstance(parts, ServerParts)
    (part,) = parts.servers
    assert part.decision is not None and part.network is not None
    assert is_valid_result(ResultKind.DECIDED, encode(DecidedRow(part.decision, part.network, ()))) is is_stored
