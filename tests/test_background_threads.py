"""Background threads: after any error their work continues; and signals that reach the main thread."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gitboot import background_threads
from gitboot.background_threads import BackgroundThread, SignalQueue
from gitboot.controller.instance import standby
from gitboot.controller.loop import WakeCause, WakeSignal
from gitboot.publish.targets.follower import Follower
from gitboot.status.instance_status import TargetStatus
from tests.helpers.cases import require_value
from tests.helpers.running_instance import eventually

GITBOOT = Path(background_threads.__file__).parent
# Each has its reason beside it. All others are a BackgroundThread.
PLAIN_THREADS = {
    "background_threads.py",
    "child_processes.py",  # it waits for a process to end, which cannot fail
    "http_client.py",  # a name is resolved once
    "controller/notifications.py",  # a notice is sent once, and the caller raises the error
    "endpoint/server.py",  # its end ends the process
    "publish/targets/s3.py",  # it lists once, and the caller raises the error
}
# Modules that may speak HTTP: the client, and sushy's transport. Names of errors and statuses do not count.
HTTP_MODULES = {"http_client.py", *(f"bmc/redfish/{name}.py" for name in ("client", "transport"))}
HTTP_LIBRARIES = r"^ *(?:import|from) (?:urllib3|requests|httpx|aiohttp|urllib\.request|http\.client)\b"


@pytest.fixture(autouse=True)
def tracebacks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the tracebacks in the log."""
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    return found


class Dying:
    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.works, self.ending = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.works.set()
        self.ending.wait(60)


@pytest.mark.parametrize(
    "error", [ValueError("a\x1b[31m\nb"), MemoryError(), SystemExit(1), KeyboardInterrupt()], ids=repr
)
def test_finding_s8_a_thread_that_dies_is_reported_and_starts_again(
    error: BaseException, tracebacks: list[Any]
) -> None:
    said, woken = list[str](), threading.Event()
    work = Dying(error, error)
    thread = BackgroundThread(work, name="follow boots", on_death=said.append, first_pause_s=0.01)
    with background_threads.notify_on_death(woken.set):
        thread.start()
        assert work.works.wait(60)
        assert woken.is_set()
    ((name, message, deaths),) = background_threads.list_failures()
    assert (name, deaths, message) == ("follow boots", 2, said[-1])
    assert message.startswith(type(error).__name__)
    assert message.isprintable()
    assert [each.exc_value for each in tracebacks] == [error, error]
    work.ending.set()
    thread.join(60)
    assert background_threads.list_failures() == []


def test_a_thread_that_should_end_does_not_start_again() -> None:
    died = threading.Event()
    thread = BackgroundThread(Dying(ValueError()), name="ended", on_death=lambda _: died.set(), first_pause_s=600)
    thread.start()
    assert died.wait(60)
    thread.join(60)
    assert not thread.is_alive


def test_a_thread_whose_death_cannot_be_reported_starts_again() -> None:
    def fail(_: str) -> None:
        raise OSError

    work = Dying(ValueError())
    thread = BackgroundThread(work, name="untold", on_death=fail, first_pause_s=0.01)
    thread.start()
    assert work.works.wait(60)
    work.ending.set()
    thread.join(60)


def test_finding_s8_a_target_whose_thread_dies_is_not_current() -> None:
    class Broken:
        most = 1

        def load(self) -> Any:
            raise MemoryError("2.9 GB")

    class Tree:
        unreadable_states: ClassVar[dict[str, str]] = {}

        def read_summary(self) -> Any:
            return object()

    target: Any = Broken()
    tree: Any = Tree()
    started = datetime(2026, 11, 20, tzinfo=UTC)
    follower = Follower(
        target, tree, target_status=TargetStatus(name="s3://boots"), clock=lambda: started, wake=lambda: None
    )
    follower.start()
    follower.publish()
    eventually(lambda: follower.target_status.failure is not None)
    assert follower.target_status.failure == ("ThreadDied", "s3://boots: MemoryError: 2.9 GB")
    assert follower.target_status.behind_since == started
    follower.end()


def modules(allowed: set[str], pattern: str) -> list[str]:
    return [
        str(path.relative_to(GITBOOT))
        for path in sorted(GITBOOT.rglob("*.py"))
        if str(path.relative_to(GITBOOT)) not in allowed and re.search(pattern, path.read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize(
    ("allowed", "pattern"),
    [(PLAIN_THREADS, r"threading\.Thread\(|_thread\.start_new"), (HTTP_MODULES, HTTP_LIBRARIES)],
    ids=["threads", "HTTP"],
)
def test_every_thread_starts_again_and_every_request_has_limits(allowed: set[str], pattern: str) -> None:
    assert modules(allowed, pattern) == []
    assert all(re.search(pattern, (GITBOOT / each).read_text(), re.MULTILINE) for each in allowed)


@contextmanager
def handled_late(handler: Callable[[], None]) -> Iterator[None]:
    """Let the operating system deliver SIGUSR1 to another thread while the block runs.

    Python calls the handler in the main thread, which continues to sleep. The same happens for a signal that arrives
    between the last step of the thread and its sleep.
    """

    def send() -> None:
        time.sleep(0.2)  # the main thread most likely sleeps by then; if not, the test proves less and does not fail
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_does_not_interrupt_the_main_thread_wakes_an_instance() -> None:
    bell = WakeSignal()
    with handled_late(bell.wake):
        assert bell.wait(60) == {WakeCause.ANYTHING}


def test_an_empty_queue_returns_none_after_its_timeout() -> None:
    assert SignalQueue[int]().get(0) is None
    assert SignalQueue[int]().get(0.01) is None


def test_items_are_returned_in_their_order() -> None:
    queue = SignalQueue[int]()
    queue.put(1)
    queue.put(2)
    assert [queue.get(0), queue.get(0), queue.get(0)] == [1, 2, None]


def test_the_pauses_that_are_shorter_in_the_commands_of_tests_are_some_seconds_long() -> None:
    """`forked_commands.shorten_pauses` changes these values in the processes of commands, and not in this one."""
    follower = require_value(Follower.__init__.__kwdefaults__)["first_retry_s"]
    thread = require_value(BackgroundThread.__init__.__kwdefaults__)["first_pause_s"]
    assert (follower, thread, background_threads.FIRST_RETRY_S, standby.CHECK_S) == (5.0, 5.0, 5.0, 2.0)
