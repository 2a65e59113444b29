"""Child processes that end with us, whatever ends us, and orphans that an init process has to reap."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.background_threads import BackgroundThread

LOG_FORMAT: Final = "GITBOOT_LOG_FORMAT"  # by which workers and children are told, too

_SET_PDEATHSIG: Final = 1  # prctl(2)
_REAP_S: Final = 1

_spawning: Final = threading.Lock()
_own: Final[set[subprocess.Popen[bytes]]] = set()  # which nobody else may wait for


def spawn(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    bufsize: int = -1,
    process_group: int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that is to call `end_with` first; it ends with the thread that calls this, at the latest.

    It has none of the GITBOOT_ variables, which are meant for the command that was typed, but how events are told.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GITBOOT_") or name == LOG_FORMAT
    }
    with _spawning:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            bufsize=bufsize,
            process_group=process_group,
            pass_fds=pass_fds,
            env=environment,
        )
        _own.difference_update([each for each in _own if each.returncode is not None])
        _own.add(process)
    return process


class Ended(NamedTuple):
    """How a program ended, and what it has written to standard output and to standard error."""

    status: int
    output: str
    errors: str


def ask(
    command: Sequence[str],
    *,
    given: bytes,
    environment: Mapping[str, str],
    patience_s: float,
    pass_fds: Sequence[int] = (),
) -> Ended:
    """Run a program to its end, in this environment alone, with ``given`` as its standard input.

    Raises OSError where it cannot be started, and TimeoutError. Whoever runs a program by `subprocess` itself may hear
    that it went well where `reap_orphans` was faster.
    """
    with _spawning:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=pass_fds,
        )
        _own.add(process)
    try:
        output, errors = process.communicate(given, timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise TimeoutError(f"no answer after {patience_s:.0f} s") from None
    finally:
        with _spawning:
            _own.discard(process)
    return Ended(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def output_of(command: Sequence[str], *, patience_s: float, most_bytes: int) -> tuple[int, bytes]:
    """Run a program without a shell; its status, and what it has written to standard output alone.

    It has none of the GITBOOT_ variables, and is ended with all that it has started when it takes too long or says too
    much. Raises OSError where it cannot be started, and TimeoutError and OSError then.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GITBOOT_")}
    with _spawning:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,
        )
        _own.add(process)
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill_all_of(process)

    late = threading.Timer(patience_s, end)
    late.daemon = True
    late.start()
    try:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        with process.stdout as stdout:
            output = stdout.read(most_bytes + 1)
            if len(output) > most_bytes:
                raise OSError(f"{command[0]} wrote more than {most_bytes} bytes")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        late.cancel()
        late.join()
        _kill_all_of(process)  # and whatever it has left behind
        status = process.wait()
        with _spawning:
            _own.discard(process)
    if is_late.is_set():
        raise TimeoutError(f"{command[0]} had not ended after {patience_s:.0f} s")
    return status, output


def _kill_all_of(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, not reaped yet, so that its number is nobody else's, and its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def raise_limits() -> None:
    """Let this process open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # more than the kernel lets anyone have
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this very gitboot; what lies in the working directory is not imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def end_with(parent: int) -> None:
    """Let the system end this process with the thread that started it, or end at once where that is gone by now."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux has it
    if prctl is not None:
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def reap_orphans(wait: Callable[[float], bool]) -> None:
    """Where this is a container's first process: reap whom nobody else will, in a thread, until ``wait`` says so."""
    if os.getpid() == 1:
        BackgroundThread(partial(_keep_reaping, wait), name="reaper").start()


def _keep_reaping(wait: Callable[[float], bool]) -> None:
    while not wait(_REAP_S):
        with _spawning:  # a child is known as our own before anybody looks for others
            own = {each.pid for each in _own}
            for pid in _children():
                if pid not in own:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)


def _children() -> Iterator[int]:
    """All children of this process, whichever of its threads they came to."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from map(int, (task / "children").read_text().split())
