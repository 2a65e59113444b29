"""The loop: faults of the source and the ledger end no instance."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from unittest import mock

import pytest

from gitboot.child_processes import pause_garbage_collection
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.loop import Loop, WakeCause, WakeSignal
from gitboot.controller.reconcile import Reconciler
from gitboot.errors import LedgerError
from gitboot.fleet.revision import Revision
from gitboot.publish.manifest import STATUS
from gitboot.status.conditions import Event
from gitboot.status.work_progress import Stage
from tests.helpers.fleets import SEED, at, maintenance
from tests.helpers.instance_in_process import Parts, run_in_process
from tests.helpers.running_instance import Repository, eventually, git, locked_ledger


@pytest.fixture(autouse=True)
def _slow_status_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests here count reconciles."""
    monkeypatch.setattr("gitboot.controller.loop.WRITTEN_EVERY_S", 3600.0)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({"fleet.yaml": "---\n".join(SEED)})
    return made


def make_loop(
    parts: Parts, tell: Callable[[Event], None] = lambda _: None, wake_signal: WakeSignal | None = None
) -> Loop:
    clock = partial(datetime.now, UTC)
    return Loop(parts.reconciler, parts.source, poll_s=3600, clock=clock, tell=tell, wake_signal=wake_signal)


@contextmanager
def run_loop(parts: Parts, wake_signal: WakeSignal, running: Loop | None = None) -> Iterator[Loop]:
    running = running or make_loop(parts, wake_signal=wake_signal)
    thread = Thread(target=running.run)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join()


def count_reconciles(parts: Parts) -> int:
    found = parts.reconciler.stage_times.facts().get("reconcile")
    return sum(found["counts"]) if found is not None else 0


class TrackedBell(WakeSignal):
    """Tells whether the loop waits for it: then what has begun before has ended, and counts."""

    is_waited_for = False

    def wait(self, timeout_s: float) -> frozenset[WakeCause]:
        self.is_waited_for = True
        try:
            return super().wait(timeout_s)
        finally:
            self.is_waited_for = False


def wait_until_applied(parts: Parts, commit: str, wake_signal: TrackedBell) -> None:
    """Wait until a commit is, and the reconcile that did it has ended."""
    eventually(lambda: parts.reconciler.status.applied == commit and wake_signal.is_waited_for)


def conditions(parts: Parts) -> dict[str, bool]:
    return {condition.type: condition.status for condition in parts.reconciler.status.conditions}


def test_a_ledger_that_cannot_be_written_does_not_end_the_instance(tmp_path: Path, repository: Repository) -> None:
    good = git(repository.work, "rev-parse", "HEAD")
    events: list[Event] = []
    with run_in_process(tmp_path, repository.bare) as parts:
        make_loop(parts, events.append).run_once()
        next_commit = repository.push({"fleet.yaml": "---\n".join((*SEED, maintenance("repair")))})
        with locked_ledger(tmp_path / "state", parts.ledger):
            make_loop(parts, events.append).run_once()
        assert [event.type for event in events] == ["Fetched", "Fetched"]
        assert [event.type for event in parts.events].count("LedgerFailed") == 1
        assert conditions(parts)["LedgerWritable"] is False
        assert parts.reconciler.status.applied == good
        make_loop(parts, events.append).run_once()
        assert conditions(parts)["LedgerWritable"] is True
        assert parts.reconciler.status.applied == next_commit


def test_an_unreadable_fetch_log_is_a_condition_and_is_reported_once(tmp_path: Path, repository: Repository) -> None:
    with run_in_process(tmp_path, repository.bare) as parts:
        running = make_loop(parts)
        running.run_once()
        assert "FetchLogReadable" not in conditions(parts)
        kept = parts.spool.rename(tmp_path / "kept") if parts.spool.exists() else None
        parts.spool.write_text("no folder")
        running.run_once()
        running.run_once()
        assert conditions(parts)["FetchLogReadable"] is False
        assert parts.reconciler.status.planned_at is not None
        (said,) = (event for event in parts.events if event.type == "FetchLogUnreadable")
        assert said.warning and f"{parts.spool} cannot be read: Not a directory" in said.message
        parts.spool.unlink()
        if kept is not None:
            kept.rename(parts.spool)
        running.run_once()
        assert "FetchLogReadable" not in conditions(parts)


def test_garbage_collection_runs_again_after_a_pause_ends_in_any_way() -> None:
    seen: list[bool] = []

    def fail() -> None:
        with pause_garbage_collection(), pause_garbage_collection():
            seen.append(gc.isenabled())
            raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert gc.isenabled()
    gc.disable()
    try:
        with pause_garbage_collection():
            pass
        assert not gc.isenabled()  # the operator continues
    finally:
        gc.enable()


def test_each_stage_of_a_reconcile_is_measured_and_shown_in_the_status(tmp_path: Path, repository: Repository) -> None:
    with run_in_process(tmp_path, repository.bare) as parts:
        running = make_loop(parts)
        running.run_once()
        running.run_once()
    said = json.loads((tmp_path / "output" / STATUS).read_bytes())["stages"]
    stages = {str(each) for each in Stage} - {"bmc", "evaluate"}  # no server has a BMC; commits are evaluated here
    assert said.keys() == stages
    # The status has the values that were measured before it was written.
    assert {name: sum(each["counts"]) for name, each in said.items()} == {
        **dict.fromkeys(stages, 2),
        "report": 1,
        "reconcile": 1,
    }
    assert said["reconcile"]["seconds"] >= said["publish"]["seconds"] > 0


def test_an_unreachable_source_is_a_condition_and_is_reported_once(tmp_path: Path, repository: Repository) -> None:
    events: list[Event] = []
    with run_in_process(tmp_path, repository.bare) as parts:
        running = make_loop(parts, events.append)
        running.run_once()
        away = repository.bare.rename(tmp_path / "away")
        running.run_once()
        running.run_once()
        assert [event.type for event in events] == ["Fetched", "FetchFailed"]
        assert conditions(parts)["SourceReady"] is False
        assert parts.reconciler.status.planned_at is not None
        away.rename(repository.bare)
        running.run_once()
        assert conditions(parts)["SourceReady"] is True


def test_the_threads_of_a_loop_end_with_the_loop_if_a_reconcile_raises(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby, the process continues after the error."""
    with run_in_process(tmp_path, repository.bare) as parts:
        running, before = make_loop(parts), set(threading.enumerate())
        monkeypatch.setattr(parts.reconciler, "reconcile", mock.Mock(side_effect=LedgerError("the database is away")))
        with pytest.raises(LedgerError):
            running.run()
        assert running.wait(0)
        eventually(lambda: not {each.name for each in set(threading.enumerate()) - before} & {"fetch", "stages"})


def test_a_dead_fetch_thread_does_not_change_the_condition_of_the_branch(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake_signal = TrackedBell()
    first = git(repository.work, "rev-parse", "HEAD")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with run_in_process(tmp_path, repository.bare, wake=wake_signal.wake) as parts, run_loop(parts, wake_signal):
        wait_until_applied(parts, first, wake_signal)
        git(repository.bare, "branch", "other")
        git(repository.bare, "symbolic-ref", "HEAD", "refs/heads/other")
        eventually(lambda: conditions(parts).get("BranchFollowed") is False)
        monkeypatch.setattr(parts.source, "fetch", mock.Mock(side_effect=RuntimeError("a bug")))
        git(repository.bare, "branch", "another")  # a fetch follows
        eventually(lambda: not conditions(parts)["SourceReady"])
        assert conditions(parts).get("BranchFollowed") is False


def test_finding_c3_a_slow_fetch_is_a_condition_until_it_ends(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = git(repository.work, "rev-parse", "HEAD")
    wake_signal, is_free = TrackedBell(), threading.Event()
    with run_in_process(tmp_path, repository.bare, wake=wake_signal.wake) as parts, run_loop(parts, wake_signal):
        wait_until_applied(parts, first, wake_signal)
        assert conditions(parts)["SourceReady"] is True
        fetch = parts.source.fetch

        def fetch_slowly() -> Revision:
            is_free.wait()
            return fetch()

        monkeypatch.setattr("gitboot.controller.loop.SLOW_S", 0)
        monkeypatch.setattr(parts.source, "fetch", fetch_slowly)
        git(repository.bare, "branch", "other")  # a fetch follows without new commits
        eventually(lambda: not conditions(parts)["SourceReady"])
        (found,) = (each for each in parts.reconciler.status.conditions if each.type == "SourceReady")
        assert found.reason == "SlowFetch"
        is_free.set()
        eventually(lambda: conditions(parts)["SourceReady"])


def test_a_commit_takes_one_reconcile_and_none_waits_while_it_is_evaluated(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.controller.loop._EVALUATION_S", 3600)  # by when it is evaluated on any machine
    asked: list[bool] = []
    has_asked = Reconciler.start_evaluation

    def noted(self: Reconciler, fetched: LastFetch | None, at: datetime) -> bool:
        asked.append(has_asked(self, fetched, at))
        return asked[-1]

    monkeypatch.setattr(Reconciler, "start_evaluation", noted)
    first = git(repository.work, "rev-parse", "HEAD")
    wake_signal = TrackedBell()
    with (
        run_in_process(tmp_path, repository.bare, apart=True, wake=wake_signal.wake) as parts,
        run_loop(parts, wake_signal) as running,
    ):
        wait_until_applied(parts, first, wake_signal)
        before = count_reconciles(parts)
        asked.clear()
        for number in range(4):
            wait_until_applied(parts, repository.push({"README.md": f"{number}"}), wake_signal)
        assert any(asked)
        rings_late = 5 - asked.count(True)  # commits that were evaluated before the loop waited; the first may be one
        assert 4 <= count_reconciles(parts) - before <= 4 + rings_late
        before = count_reconciles(parts)
        running.fetch_now()  # an operator requests it: a reconcile follows, with or without a commit
        eventually(lambda: count_reconciles(parts) > before)


def test_a_commit_that_is_still_being_evaluated_is_shown_as_pending(tmp_path: Path, repository: Repository) -> None:
    first = git(repository.work, "rev-parse", "HEAD")
    wake_signal = TrackedBell()
    with run_in_process(tmp_path, repository.bare, evaluates=False) as parts, run_loop(parts, wake_signal):
        wait_until_applied(parts, first, wake_signal)
        before = count_reconciles(parts)
        repository.push({"README.md": "one"})
        eventually(lambda: count_reconciles(parts) == before + 1)


def test_a_window_ends_soon_after_the_clock_was_set_forward(tmp_path: Path, repository: Repository) -> None:
    """The host was suspended, or a time service corrected its clock. The loop waits for the end of the window."""
    now, wake_signal = at("20T12:00"), TrackedBell()
    commit = repository.push({"fleet.yaml": "---\n".join((*SEED, maintenance("repair", "20T11:00 20T13:00")))})
    with run_in_process(tmp_path, repository.bare, initial="fresh", clock=lambda: now) as parts:
        running = Loop(
            parts.reconciler, parts.source, poll_s=3600, clock=lambda: now, tell=lambda _: None, wake_signal=wake_signal
        )
        with run_loop(parts, wake_signal, running):
            wait_until_applied(parts, commit, wake_signal)
            assert parts.reconciler.status.next_transition == at("20T13:00")
            before = count_reconciles(parts)
            now = at("20T14:00")
            eventually(lambda: parts.reconciler.status.planned_at == now and count_reconciles(parts) > before)


def test_an_instance_with_a_long_poll_writes_its_status_at_intervals(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.controller.loop.WRITTEN_EVERY_S", 0.01)
    first = git(repository.work, "rev-parse", "HEAD")
    wake_signal = TrackedBell()
    with run_in_process(tmp_path, repository.bare, wake=wake_signal.wake) as parts, run_loop(parts, wake_signal):
        wait_until_applied(parts, first, wake_signal)
        before = count_reconciles(parts)
        eventually(lambda: count_reconciles(parts) > before + 3)
