"""`make run` ends with everything that it started, whenever and however it is ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.git_servers import free_port

SCRIPT = Path(__file__).parent.parent / "scripts" / "run_example.py"
_START_S = 4  # about what a start takes
_LAST_LINE = "Ctrl-C ends it."


@dataclass
class Run:
    """A run, and the mark in the environment of all that it has started."""

    process: subprocess.Popen[bytes]
    mark: str
    scratch: Path
    said: Path

    def started(self) -> list[int]:
        """Every process of this run that is left."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended meanwhile, or is somebody else's
                continue
        return sorted(found)

    def wait_until_ready(self) -> None:
        until = time.monotonic() + 300
        while _LAST_LINE not in self.said.read_text():
            assert time.monotonic() < until, self.said.read_text()
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.1)

    def wait_for(self, *arguments: bytes) -> int:
        """The process of it whose first arguments these are, once there is one."""
        until = time.monotonic() + 300
        while True:
            assert time.monotonic() < until, self.said.read_text()
            for pid in self.started():
                with suppress(OSError):  # it has ended meanwhile
                    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1 : 1 + len(arguments)] == [*arguments]:
                        return pid
            time.sleep(0.1)

    def left(self) -> list[str]:
        """What is left a while after the end, by its command."""
        until = time.monotonic() + 5
        while (pids := self.started()) and time.monotonic() < until:
            time.sleep(0.1)
        return [" ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0")) for pid in pids]


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def start(*command: str) -> Run:
        mark, scratch, said = f"run-{uuid4()}", tmp_path / "scratch", tmp_path / "said"
        scratch.mkdir()
        environment = {**os.environ, "PORT": str(free_port()), "TMPDIR": str(scratch), "GITBOOT_TEST_MARK": mark}
        with said.open("w") as output:
            process = subprocess.Popen(
                [*command, sys.executable, str(SCRIPT)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        runs.append(Run(process, mark, scratch, said))
        return runs[-1]

    yield start
    for run in runs:
        for pid in run.started():
            os.kill(pid, signal.SIGKILL)
        run.process.wait()


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_nothing_is_left_whenever_it_is_ended(start: Start, end: str) -> None:
    run = start()
    after_s = random.uniform(0.05, _START_S / 2)
    time.sleep(after_s)
    run.process.send_signal(signal.Signals[end])
    run.process.wait(120)
    assert run.left() == [], f"{end} after {after_s:.3f} s"
    if end != "SIGKILL" and b"scratch folder is removed" in run.said.read_bytes():
        assert list(run.scratch.iterdir()) == []


def test_nothing_is_left_when_what_started_it_is_killed(start: Start) -> None:
    run = start("sh", "-c", '"$@" & wait', "sh")
    time.sleep(random.uniform(0.5, _START_S))
    assert len(run.started()) > 1
    run.process.kill()
    assert run.left() == []


def test_what_does_not_end_by_itself_is_killed(start: Start) -> None:
    run = start()
    os.kill(run.wait_for(b"-m", b"gitboot", b"run"), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(120) == 0
    assert (run.left(), list(run.scratch.iterdir())) == ([], [])


def test_what_can_be_done_is_said_last_and_impatience_ends_it_no_worse(start: Start) -> None:
    run = start()
    run.wait_until_ready()
    lines = run.said.read_text().replace(str(run.scratch), "/tmp").splitlines()
    assert lines[-2:] == [_LAST_LINE, ""]
    assert [line for line in lines if len(line) > 100 and "/.venv/bin/" not in line] == []
    assert any("Published" in line for line in lines)
    log = next(run.scratch.glob("*/gitboot.log"))
    assert str(log) in run.said.read_text()
    assert '"type": "Published"' in log.read_text()
    assert len(run.started()) >= 3  # itself, the BMCs, gitboot
    for _ in range(20):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert run.process.wait(120) == 0
    assert (run.left(), list(run.scratch.iterdir())) == ([], [])
