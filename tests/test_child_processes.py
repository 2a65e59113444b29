"""Child processes: time limits for programs, and descriptions of their ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gitboot.child_processes import describe_exit, run_for_output, run_with_input
from tests.helpers.cases import for_each
from tests.helpers.running_instance import eventually

RUNNERS: list[Callable[[list[str], float], object]] = [
    lambda command, patience_s: run_for_output(command, patience_s=patience_s, max_bytes=100),
    lambda command, patience_s: run_with_input(
        command, patience_s=patience_s, input_data=b"", environment={"PATH": os.environ["PATH"]}
    ),
]
DAEMON_S = 600


def run_until_written(run: Callable[[list[str], float], object], command: list[str], file: Path) -> int:
    """Run a program until its time limit, which is doubled until the program writes the ID of a process to the file."""
    for patience_s in (1, 2, 4, 8, 16, 32, 64):
        with pytest.raises(TimeoutError):
            run(command, patience_s)
        if file.exists():
            break
    assert file.exists(), "the program did not write the file"
    return int(file.read_text())


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("run", RUNNERS, ids=["output", "input"])
def test_a_time_limit_holds_although_a_daemon_keeps_the_output_open(
    run: Callable[[list[str], float], object], tmp_path: Path
) -> None:
    file = tmp_path / "daemon"
    script = f"echo $$ > {file}.$$ && mv {file}.$$ {file} && exec sleep {DAEMON_S}"
    command = ["sh", "-c", f"setsid sh -c '{script}' & while [ ! -e {file} ]; do sleep 0.01; done; echo said"]
    daemon = run_until_written(run, command, file)
    assert is_running(daemon), "the function waited for the daemon"
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("run", RUNNERS, ids=["output", "input"])
def test_the_processes_that_a_program_started_end_with_the_time_limit(
    run: Callable[[list[str], float], object], tmp_path: Path
) -> None:
    file = tmp_path / "child"
    command = ["sh", "-c", f"sleep {DAEMON_S} & echo $! > {file}.new && mv {file}.new {file}; wait"]
    child = run_until_written(run, command, file)
    eventually(lambda: not is_running(child))


def test_a_program_ends_with_the_thread_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupt(process: object, *_: object, **__: object) -> None:
        started.append(process.pid)  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_with_input(["sleep", f"{DAEMON_S}"], input_data=b"", environment=dict(os.environ), patience_s=DAEMON_S)
    assert not is_running(started[0])


@for_each(
    ("status", "text"),
    [
        (1, "ended with exit status 1. This is a bug in gitboot."),
        (-signal.SIGKILL, "was ended by SIGKILL. The host may be out of memory."),
        (-(signal.SIGRTMIN + 6), f"was ended by signal {signal.SIGRTMIN + 6}. This is a bug in gitboot."),
    ],
)
def test_the_end_of_a_child_is_described(status: int, text: str) -> None:
    assert describe_exit(status).startswith(text)
