"""Windows end in OUTPUT while an instance that was started has published no plan yet, whatever it waits for."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gitboot.child_processes import Child
from gitboot.controller import checkpoint, current_plans
from gitboot.controller.instance.state_directory import CACHE
from gitboot.controller.instance_state import Fetched
from gitboot.controller.loop import Loop
from gitboot.endpoint.boot_responses import Answers
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import InvalidRepository, NotEvaluated, PublishError, SourceError
from gitboot.evaluator import client
from gitboot.evaluator.evaluation_result import Commit, Evaluated
from gitboot.evaluator.protocol import exceeded
from gitboot.fleet.revision import Revision
from gitboot.jsonio import format_instant
from gitboot.publish.durable_files import Disk
from gitboot.publish.publisher import Directory, Published
from gitboot.publish.tree_reader import suspects, verify
from gitboot.status.work_progress import Told, counted
from tests.helpers.fleets import at, fleet, image, mac_of, maintenance, policy, profile, server
from tests.helpers.instance_in_process import Here, Parts, in_process
from tests.helpers.running_instance import Repository, eventually

OPEN, OVER = at("20T23:00"), at("21T04:00")
WHILE, UNTIL = maintenance("repair", "20T22:00 21T04:00"), maintenance("repair", "20T22:00 21T08:00")
NAMES = ("web01", "web02")
ENTRIES = tuple(f"v1/boot/{mac_of(name).replace(':', '-')}/boot.ipxe" for name in NAMES)


def documents(*more: str) -> dict[str, str]:
    seed = (
        fleet(),
        *(server(name, "role: web") for name in NAMES),
        *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
        *(profile("web", "flatcar-1"), profile("repair", "memtest-7"), policy("web", often="Always")),
    )
    return {"all.yaml": "---\n".join((*seed, *more))}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(documents(WHILE))
    return made


def publish(folder: Path, repository: Repository, now: datetime) -> None:
    """Let an instance publish the fleet, and end. Its cache and checkpoint are gone, as those of another version."""
    with in_process(folder, repository.bare, initial="fresh", clock=lambda: now) as parts:
        parts.source.fetch()
        parts.reconciler.reconcile(now, fetched=Fetched(), wait=True)
        assert boots_maintenance(folder) == len(NAMES)
    (folder / "state" / CACHE).unlink(missing_ok=True)


def publish_two_commits(folder: Path, repository: Repository) -> None:
    """Let an instance publish two commits, and end. Its checkpoint has the first one."""
    with in_process(folder, repository.bare, initial="fresh", clock=lambda: OPEN) as parts:
        for text in (None, "one"):
            if text is not None:
                repository.push({"README.md": text})
            parts.source.fetch()
            parts.reconciler.reconcile(OPEN, fetched=Fetched(), wait=True)


@pytest.fixture
def left(tmp_path: Path, repository: Repository) -> Path:
    """The folder of an instance that has published an open window, and has ended."""
    publish(tmp_path, repository, OPEN)
    return tmp_path


def boots_maintenance(folder: Path) -> int:
    """How many servers boot the maintenance, by the files that a web server without gitboot gives them."""
    return sum("memtest-7" in (folder / "output" / "boot" / entry).read_text() for entry in ENTRIES)


def answered_maintenance(folder: Path, now: datetime) -> int:
    answers = Answers(PublishedTree(folder / "output", lambda: now))
    found = [answers.find(f"/{entry}", lambda: None, now) for entry in ENTRIES]
    return sum(each is not None and b"memtest-7" in bytes(each.reply.body) for each in found)


def tree(folder: Path) -> dict[str, bytes]:
    """What was published, but for what the instance says of itself."""
    root = folder / "output"
    files = ((path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*")) if path.is_file())
    return {name: path.read_bytes() for name, path in files if not name.startswith(("ops/.gitboot/", "ops/status"))}


def reconcile_until(parts: Parts, now: datetime, end: datetime, fetched: Fetched | None = None) -> list[datetime]:
    found: list[datetime] = []
    while now <= end:
        found.append(now)
        due = parts.reconciler.reconcile(now, fetched=fetched)
        if due is None:
            break
        assert due > now
        now = due
    return found


def of_type(parts: Parts, type: str) -> list[dict[str, object]]:
    return [dict(each.facts) for each in parts.events if each.type == type]


def held_back(self: Here, revision: Revision, base: Commit | None) -> Evaluated | None:
    """It takes for ever."""
    return None


def not_ended(self: Here, revision: Revision, base: Commit | None) -> Evaluated | None:
    """It is ended again and again."""
    raise NotEvaluated([exceeded("it is not evaluated in time")])


def rejected(self: Here, revision: Revision, base: Commit | None) -> Evaluated | None:
    """A check that the version before did not have rejects it."""
    raise InvalidRepository([exceeded("a new check")])


def unreadable(self: Here, revision: Revision, base: Commit | None) -> Evaluated | None:
    raise SourceError("the clone cannot be read")


@pytest.mark.parametrize("evaluate", [held_back, not_ended, rejected, unreadable])
@pytest.mark.parametrize("is_gone", [False, True], ids=["", "without the remote"])
def test_windows_end_in_time_however_the_evaluation_fares(
    left: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    evaluate: Callable[[Here, Revision, Commit | None], Evaluated | None],
    is_gone: bool,
) -> None:
    monkeypatch.setattr(Here, "evaluate", evaluate)
    before = tree(left)
    with in_process(left, repository.bare, clock=lambda: OPEN) as parts:
        if is_gone:
            shutil.move(repository.bare, left / "elsewhere")
            fetched = Fetched(failed=True, reason="HostUnreachable", message="gone")
        else:
            parts.source.fetch()
            fetched = Fetched()
        reconcile_until(parts, OPEN, OVER - timedelta(seconds=1), fetched)
        assert tree(left) == before
        assert OVER in reconcile_until(parts, OVER - timedelta(seconds=1), OVER, fetched), "it wakes at the end"
        assert boots_maintenance(left) == answered_maintenance(left, OVER) == 0
        assert of_type(parts, "WindowsEnded") == [{"servers": list(NAMES)}]
        assert parts.reconciler.status.applied is None
    after = tree(left)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed and all(b"memtest-7" in before[name] for name in changed)
    assert all(name.startswith("boot/") for name in changed), "nothing else has changed"


@pytest.mark.parametrize("now", [OVER, OPEN], ids=["the window is over", "the new commit prolongs the window"])
def test_the_first_publication_finds_a_tree_that_is_as_it_says(
    left: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    more = WHILE
    with monkeypatch.context() as patch:
        patch.setattr(Here, "evaluate", held_back)
        with in_process(left, repository.bare, clock=lambda: OVER) as parts:
            reconcile_until(parts, OVER, OVER + timedelta(seconds=2))
            assert boots_maintenance(left) == 0
            if now == OPEN:
                repository.push(documents(UNTIL))
                more = UNTIL
            patch.undo()
            for _ in range(3):
                parts.source.fetch()
                parts.reconciler.reconcile(OVER, fetched=Fetched(), wait=True)
    assert boots_maintenance(left) == (len(NAMES) if more is UNTIL else 0)
    assert verify(left / "output") == ()
    assert set(suspects(left / "output")) == {None}


def test_an_instance_that_goes_on_from_a_checkpoint_publishes_the_servers_whose_windows_it_ended(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that it accepted last is newer than the checkpoint, and its evaluation is held back."""
    monkeypatch.setattr(checkpoint, "WORTH", 0)
    publish_two_commits(tmp_path, repository)
    with monkeypatch.context() as patch:
        patch.setattr(Here, "evaluate", held_back)
        with in_process(tmp_path, repository.bare, clock=lambda: OPEN) as parts:
            assert parts.reconciler.standing.publication.complete, "it goes on"
            reconcile_until(parts, OPEN, OVER)
            assert boots_maintenance(tmp_path) == 0
            assert parts.reconciler.standing.publication.owed == set(NAMES)
            patch.undo()
            parts.reconciler.reconcile(OVER, wait=True)
            assert parts.reconciler.standing.publication.owed == set()
    assert boots_maintenance(tmp_path) == 0
    assert verify(tmp_path / "output") == ()


@pytest.mark.parametrize("is_prolonged", [False, True], ids=["", "the new commit prolongs the window"])
@pytest.mark.parametrize("has_waited", [False, True], ids=["in the first pass", "in a later pass"])
def test_a_window_that_is_over_while_the_first_plans_are_made_ends_meanwhile(
    left: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, has_waited: bool, is_prolonged: bool
) -> None:
    now, seen = OPEN, list[tuple[str, int]]()
    publish_tree = Directory.publish

    def planned_slowly(items: Collection[str], told: Told) -> Iterator[str]:
        """Make plans until the window is over."""
        nonlocal now
        for item in counted(items, told):
            yield item
            now = OVER
        seen.append(("planned", boots_maintenance(left)))

    def publish_noted(self: Directory, *args: Any, **kwargs: Any) -> Published:
        seen.append(("publishes", boots_maintenance(left)))
        done = publish_tree(self, *args, **kwargs)
        seen.append(("published", boots_maintenance(left)))
        return done

    if is_prolonged:
        repository.push(documents(UNTIL))
    with in_process(left, repository.bare, clock=lambda: now) as parts:
        parts.source.fetch()
        if has_waited:
            with monkeypatch.context() as patch:
                patch.setattr(Here, "evaluate", held_back)
                for now in (OPEN, OPEN + timedelta(seconds=2)):
                    parts.reconciler.reconcile(now, fetched=Fetched())
        monkeypatch.setattr(current_plans, "counted", planned_slowly)
        monkeypatch.setattr(Directory, "publish", publish_noted)
        parts.reconciler.reconcile(now, fetched=Fetched())
        assert of_type(parts, "WindowsEnded") == [{"servers": list(NAMES)}]
        after = len(NAMES) if is_prolonged else 0
        assert [each for each in seen if each[0] != "planned"] == [("publishes", 0), ("published", after)]
        assert seen[0] == ("planned", 0)
        assert parts.reconciler.standing.publication.owed == set()
        parts.reconciler.reconcile(OVER, fetched=Fetched())
    assert boots_maintenance(left) == after
    assert verify(left / "output") == ()
    assert set(suspects(left / "output")) == {None}


def test_a_start_that_publishes_at_once_reads_no_state_to_end_windows(
    left: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Directory, "end_windows", None)
    with in_process(left, repository.bare, clock=lambda: OVER) as parts:
        with monkeypatch.context() as patch:
            patch.setattr(Here, "evaluate", held_back)
            parts.reconciler.reconcile(OVER)
        parts.reconciler.reconcile(OVER + timedelta(seconds=1))
        assert boots_maintenance(left) == 0
        assert not of_type(parts, "WindowsEnded")


def test_windows_end_though_the_first_publication_fails(
    left: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_nothing(*_: object, **__: object) -> None:
        raise PublishError("no space left on device")

    monkeypatch.setattr(Directory, "publish", publish_nothing)
    with in_process(left, repository.bare, clock=lambda: OPEN) as parts:
        reconcile_until(parts, OPEN, OVER)
        assert boots_maintenance(left) == 0


def test_a_window_that_cannot_be_ended_is_reported_once_and_tried_again(
    left: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Here, "evaluate", held_back)
    with in_process(left, repository.bare, clock=lambda: OVER) as parts:
        with monkeypatch.context() as patch:
            stage = Disk.stage

            def full(self: Disk, path: str, *args: object, **kwargs: object) -> None:
                if path.startswith("boot/"):
                    raise PublishError("no space left on device")
                stage(self, path, *args, **kwargs)  # type: ignore[arg-type]

            patch.setattr(Disk, "stage", full)
            times = reconcile_until(parts, OVER, OVER + timedelta(minutes=1))
        assert len(times) > 5
        assert len([each for each in parts.events if each.type == "WindowsNotEnded" and each.warning]) == 1
        assert boots_maintenance(left) == len(NAMES)
        reconcile_until(parts, times[-1], times[-1] + timedelta(seconds=5))
        assert boots_maintenance(left) == 0


def test_servers_with_replaced_files_are_published_though_a_later_file_could_not_be_replaced(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance goes on from a checkpoint, and publishes before it tries again to end the windows."""
    monkeypatch.setattr(checkpoint, "WORTH", 0)
    publish_two_commits(tmp_path, repository)
    place = Disk.place

    def full(self: Disk, path: str) -> None:
        if path == f"boot/{ENTRIES[1]}":
            raise PublishError("no space left on device")
        place(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Here, "evaluate", held_back)
        patch.setattr(Disk, "place", full)
        with in_process(tmp_path, repository.bare, clock=lambda: OPEN) as parts:
            reconcile_until(parts, OPEN, OVER)
            assert boots_maintenance(tmp_path) == 1
            assert parts.reconciler.standing.publication.owed == set(NAMES)
            assert not of_type(parts, "WindowsEnded")
            patch.undo()
            repository.push(documents(UNTIL))
            parts.source.fetch()
            parts.reconciler.reconcile(OVER, fetched=Fetched(), wait=True)
            parts.reconciler.reconcile(OVER, wait=True)
    assert boots_maintenance(tmp_path) == len(NAMES), "the new commit prolongs the window"
    assert verify(tmp_path / "output") == ()


class StoppedChild(Child):
    def __init__(self, module: str, *arguments: str) -> None:
        super().__init__(module, *arguments)
        os.kill(self._process.pid, signal.SIGSTOP)


@contextmanager
def looping(parts: Parts) -> Iterator[None]:
    """A loop that polls once an hour, in a thread of its own."""
    loop = Loop(parts.reconciler, parts.source, poll_s=3600, clock=lambda: datetime.now(UTC), tell=parts.events.append)
    thread = Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join()


def test_the_loop_ends_a_window_in_time_while_its_evaluator_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of this machine. Only the end of the window wakes the loop, unless the window is over before."""
    monkeypatch.setattr("gitboot.controller.loop.WRITTEN_EVERY_S", 3600.0)
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    repair = maintenance("repair").replace("profile:", f"window: {{end: '{format_instant(end)}'}}, profile:")
    repository = Repository.create(tmp_path / "git")
    repository.push(documents(repair))
    publish(tmp_path, repository, end - timedelta(hours=1))
    monkeypatch.setattr(client, "Child", StoppedChild)
    with in_process(tmp_path, repository.bare, apart=True) as parts, looping(parts):
        eventually(lambda: boots_maintenance(tmp_path) == 0)
        assert parts.reconciler.status.applied is None, "its evaluator answers nothing"
        assert datetime.now(UTC) >= end
        eventually(lambda: of_type(parts, "WindowsEnded") == [{"servers": list(NAMES)}])
