"""Progress of long work: counted by the worker, and reported at intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Final, cast

import pytest
from click.testing import CliRunner

from gitboot.child_processes import Child, FrameBuffer, encode
from gitboot.cli.commands.status import command, merge_published_status
from gitboot.cli.main import Exit
from gitboot.controller.instance.state_directory import StatusFile, lock, read_status
from gitboot.errors import InvalidRepository
from gitboot.evaluator.cache import ResultsFile
from gitboot.evaluator.client import _Conversation
from gitboot.evaluator.process import _AnswerStream
from gitboot.evaluator.protocol import EvaluationLimits, EvaluationStart, FilesRead, Question, decode_answer
from gitboot.fleet.revision import BlobId
from gitboot.publish.publisher import OutputDirectory
from gitboot.render.paths import File
from gitboot.status.conditions import Event
from gitboot.status.work_progress import (
    BOUNDS_S,
    EVERY_S,
    FIRST_S,
    Stage,
    StageTimes,
    Work,
    WorkListener,
    WorkProgress,
    iterate_with_progress,
)
from tests.helpers import endpoints, http_peers
from tests.helpers.disks_and_terminals import show_events
from tests.helpers.endpoints import site as new_site
from tests.helpers.published_trees import server_files

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_is_reported_before_each_item_and_at_the_end() -> None:
    told: list[tuple[int, int]] = []
    found = [(each, len(told)) for each in iterate_with_progress("abc", lambda *how: told.append(how))]
    assert (found, told) == ([("a", 1), ("b", 2), ("c", 3)], [(0, 3), (1, 3), (2, 3), (3, 3)])


def test_short_work_is_not_reported_and_long_work_is_reported_at_intervals() -> None:
    told: list[WorkProgress | None] = []
    clock = Clock()
    note = WorkListener(told.append, clock_s=clock).make_reporter(Work.PLAN)
    note(0, 100)
    clock.now_s = FIRST_S - 0.1
    note(10, 100)
    note(100, 100)
    assert told == []  # nothing to withdraw, either
    note(0, 100)
    for done in range(1, 100):
        clock.now_s += 1
        note(done, 100)
    note(100, 100)
    assert told[-1] is None
    said = [each for each in told if each is not None]
    assert len(said) == 1 + int((99 - FIRST_S) // EVERY_S)
    first = said[0]
    assert (first.done, first.total, first.remaining_s, said[1].done) == (5, 100, 95, first.done + EVERY_S)


def test_two_simultaneous_works_have_separate_intervals() -> None:
    told: list[WorkProgress | None] = []
    clock = Clock()
    listener = WorkListener(told.append, clock_s=clock)
    reads, plans = listener.make_reporter(Work.READ), listener.make_reporter(Work.PLAN)
    reads(0, 10)
    clock.now_s = 4
    plans(0, 10)
    clock.now_s = 6
    reads(3, 10)
    plans(1, 10)
    assert [each.work for each in told if each is not None] == [Work.READ]


@pytest.mark.parametrize(
    ("underway", "message"),
    [
        (WorkProgress(work=Work.READ, done=0, total=1, remaining_s=None), "reading: 0 of 1 file (1 of 3)"),
        (
            WorkProgress(work=Work.PLAN, done=40_000, total=100_000, remaining_s=90),
            "planning: 40,000 of 100,000 servers, about 90 s left (2 of 3)",
        ),
    ],
    ids=["nothing yet", "planning"],
)
def test_progress_has_a_message(underway: WorkProgress, message: str) -> None:
    assert underway.message == message == underway.facts()["message"]


ACCEPTED: Final = {"acknowledged": [], "commit": "c0ffee", "changed": []}


def test_an_earlier_status_stays_and_shows_the_progress(tmp_path: Path) -> None:
    instants = iter([AT.replace(minute=minute) for minute in range(4)])
    (tmp_path / "status.json").write_text(json.dumps({"attempted": {}, "changes": 7, "clock": "old"}))
    left = StatusFile(tmp_path, lambda: next(instants))
    left.note_progress(WorkProgress(work=Work.PLAN, done=1, total=2, remaining_s=3))
    found = read_status(tmp_path)
    assert found["changes"] == 7  # by which an older copy of the ledger is noticed
    assert found["clock"] == "2026-11-20T12:00:00Z"  # which endpoints compare with theirs
    assert found["progress"]["done"] == 1
    assert left.write({"attempted": {}, "accepted": ACCEPTED, "changes": 8})["clock"] == "2026-11-20T12:01:00Z"
    assert read_status(tmp_path)["progress"] is None
    left.note_progress(WorkProgress(work=Work.PLAN, done=1, total=2, remaining_s=3))
    left.note_progress(None)
    assert (read_status(tmp_path)["progress"], read_status(tmp_path)["changes"]) == (None, 8)


def test_the_status_in_the_output_tree_is_shown_if_the_state_directory_is_full(tmp_path: Path) -> None:
    left = {"ledger": "mine", "clock": "2026-11-20T12:00:00Z", "conditions": [], "plannedAt": "then"}
    (tmp_path / "ops").mkdir()
    for more, is_shown in (
        ({"clock": "2026-11-20T12:01:00Z"}, True),
        ({"clock": "2026-11-20T11:59:00Z"}, False),
        ({"clock": "2026-11-20T12:01:00Z", "ledger": "theirs"}, False),
    ):
        (tmp_path / "ops" / "status.json").write_text(json.dumps({**left, "plannedAt": "now", **more}))
        assert merge_published_status(left, tmp_path)["plannedAt"] == ("now" if is_shown else "then")
    (tmp_path / "ops" / "status.json").write_text("{")
    assert merge_published_status(left, tmp_path) == left


def test_a_first_start_has_a_status_before_the_first_publication(tmp_path: Path) -> None:
    StatusFile(tmp_path, lambda: AT).note_progress(WorkProgress(work=Work.READ, done=1, total=2, remaining_s=3))
    found = read_status(tmp_path)
    assert endpoints.find_openapi_problems("InstanceStatus", {**found, "conditions": []}) == []
    assert (found["progress"]["work"], found["progress"]["leftSeconds"]) == ("Reading", 3)


def test_a_publication_counts_to_its_end(tmp_path: Path) -> None:
    """The progress counts servers for a new tree and files otherwise: each file is staged and then placed."""
    told: list[tuple[int, int]] = []
    with OutputDirectory.open(tmp_path, ledger="ours", report_progress=lambda *how: told.append(how)) as directory:
        for text, least in ((b"1", 50), (b"2", 4 * 50)):
            servers = {f"s{n}": server_files(f"s{n}", {f"boot/ipxe/{n}": File(text + b"%d" % n)}) for n in range(50)}
            directory.publish(servers, {}, complete=True, commit="1", at=AT)
            shares = [done / total for done, total in told]
            assert len(told) > least
            assert (shares, shares[0], shares[-1]) == (sorted(shares), 0, 1)
            told.clear()


def test_readyz_shows_the_progress_of_a_cold_start() -> None:
    with new_site(None) as site:
        state, clock = site.root.parent, Clock()
        note = WorkListener(StatusFile(state, lambda: site.now).note_progress, clock_s=clock).make_reporter(
            Work.PUBLISH
        )
        said: list[tuple[int, str]] = []

        def step(done: int, total: int) -> None:
            clock.now_s += FIRST_S
            note(done, total)
            answer = http_peers.get(f"{url}/readyz")
            said.append((answer.status_code, answer.text))

        servers = {f"s{n}": server_files(f"s{n}", {f"boot/ipxe/{n}": File(b"%d" % n)}) for n in range(9)}
        with (
            site.serve(records=False, status=state / "status.json") as url,
            OutputDirectory.open(site.root, ledger="test", report_progress=step) as directory,
        ):
            directory.publish(servers, {}, complete=True, commit="1", at=AT)
            after = http_peers.get(f"{url}/readyz")
    assert said[0] == (503, "the instance has not published yet\n")
    (early, middle) = (text for status, text in said[1:4:2] if status == 503)
    assert early.startswith("the instance has not published yet\npublishing: 1 of ")
    assert "about" in middle
    assert "(3 of 3)" in middle
    assert (after.status_code, after.text) == (200, "ready\n")


def test_an_evaluator_reports_how_many_files_it_has_read() -> None:
    pipe = BytesIO()
    read = _AnswerStream(pipe).count_reads(lambda blob: blob.encode())
    assert {read(BlobId("content")) for _ in range(2500)} == {b"content"}
    frames = [*FrameBuffer().add(pipe.getvalue())]
    assert [decode_answer(frame) for frame in frames] == [FilesRead(1000), FilesRead(2000)]


class FakeEvaluatorProcess:
    def send(self, question: object, left_s: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        return 1

    def read_answers(self, left_s: object) -> Iterator[bytes]:
        yield from map(
            encode,
            (
                EvaluationStart(0),
                FilesRead(5),
                EvaluationStart(1500),
                FilesRead(1000),
                FilesRead(2000),
            ),
        )


def test_after_reading_a_commit_deciding_is_still_reported_as_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    process, question = cast(Child, FakeEvaluatorProcess()), Question("f" * 40, None, EvaluationLimits())
    conversation = _Conversation(process, question, lambda *how: told.append(how), None, ResultsFile(tmp_path))
    with pytest.raises(InvalidRepository):
        conversation.evaluate(None)
    assert told == [(0, 1), (0, 1501), (1000, 1501), (1500, 1501), (1, 1)]


@pytest.mark.parametrize("runs", [True, False])
def test_status_shows_the_progress_while_an_instance_runs(tmp_path: Path, runs: bool) -> None:
    StatusFile(tmp_path, lambda: AT).note_progress(WorkProgress(work=Work.PLAN, done=1, total=2, remaining_s=3))
    with lock(tmp_path) if runs else nullcontext():
        found = CliRunner().invoke(command, ["--state", str(tmp_path)])
    assert found.exit_code == Exit.PARTIAL, found.output  # the status is old, so StatusCurrent is false
    assert ("progress       planning: 1 of 2 servers, about 3 s left (2 of 3)" in found.output) is runs


def test_on_a_terminal_the_next_line_replaces_the_progress() -> None:
    told = (Event(at=AT, type=kind, message=message) for kind, message in (("Progress", "half"), ("Published", "all")))
    first, second = show_events(*told).split("\x1b[G")  # ECMA-48, CHA: to the first column
    assert first.endswith("half") and "\n" not in first
    assert second.startswith("\x1b[K") and second.endswith("all\n")


def test_a_stage_time_is_the_time_since_the_previous_stage() -> None:
    now_s = [0.0]
    laps = StageTimes(lambda: now_s[0])
    lap = laps.start()
    for stage, at_s in ((Stage.ACCEPT, 2), (Stage.PLAN, 3)):
        now_s[0] = at_s
        lap(stage)
    now_s[0] = 50
    lap.end(Stage.RECONCILE)
    assert {stage: each["seconds"] for stage, each in laps.facts().items()} == {
        "accept": 2.0,
        "plan": 1.0,
        "reconcile": 50.0,
    }


def test_each_duration_is_counted_once_in_the_first_bucket_that_holds_it() -> None:
    laps = StageTimes()
    for seconds in (0, *BOUNDS_S, 300.001, 1e9):
        laps.add(Stage.FETCH, seconds)
    (found,) = laps.facts().values()
    assert (found["boundsS"], found["counts"]) == (list(BOUNDS_S), [2, *([1] * (len(BOUNDS_S) - 1)), 2])
