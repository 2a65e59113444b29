"""Fork the programs of gitboot that a forked command starts, as children of the command: see `forked_commands`.

A process that has threads cannot fork safely, so a sibling that has none does it: the kernel lets it make children for
its own parent. Whoever waits for them, kills them or dies before them has them as if they had been started.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tests.helpers.forked_commands_client import umask

_LONGEST = 1 << 18  # bytes of a command with its environment
_CLONE_PARENT = 0x8000  # sched.h
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)  # clone(2)
_SET_NAME = 15  # prctl(2)
_STARTED = [sys.executable, "-P", "-m"]

_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_named = inspect.signature(_execute_child)


def open_nursery() -> None:
    """Fork that sibling, before this process has threads. In a child that it makes this does not return."""
    if _CLONE is None:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _fork_by(ours)
    else:
        ours.close()
        be_what_is_asked(theirs)


def be_what_is_asked(asked: socket.socket) -> NoReturn:
    """Be that sibling, and in each child that it makes what it is to be."""
    sys.argv = _wait_for_work(asked)
    _be_named(sys.argv[:2])
    run_to_its_end(sys.argv[0])


def run_to_its_end(module: str) -> NoReturn:
    """Run a module as a program, and end as Python does, but for taking apart all that was imported.

    A forked process would have to copy most of that first, which takes longer than many a command.
    """
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(code or 0)


# The process that has a nursery


@contextmanager
def forking_by(nursery: socket.socket) -> Iterator[None]:
    """A block in which `subprocess` has what is gitboot's own forked."""
    _fork_by(nursery)
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _fork_by(nursery: socket.socket) -> None:
    """Let `subprocess` have what is gitboot's own forked."""
    lock = threading.Lock()

    def execute_child(self: subprocess.Popen[bytes], *given: Any) -> None:
        asked = _named.bind(self, *given).arguments
        if list(asked["args"][:3]) != _STARTED:
            _execute_child(self, *given)
            return
        own = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        fds = [*(number if fd == -1 else fd for number, fd in enumerate(own)), *asked["pass_fds"]]
        place = [os.getcwd(), umask()]
        facts = [asked["args"][3:], dict(asked["env"]), list(asked["pass_fds"]), asked["process_group"], *place]
        with lock:
            socket.send_fds(nursery, [json.dumps(facts).encode()], fds)
            self.pid = int(nursery.recv(_LONGEST))
        self._child_created = True  # type: ignore[attr-defined]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


# The nursery


def _wait_for_work(asked: socket.socket) -> list[str]:
    """Make one process after the other; return what it is to be, in that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, whose end is this one's
    while True:
        data, fds, _, _ = socket.recv_fds(asked, _LONGEST, 16)
        if not data:
            os._exit(0)
        if pid := fork_for_parent():
            for fd in fds:
                os.close(fd)
            asked.send(str(pid).encode())
        else:
            asked.close()
            (module, *arguments), environment, passed, group, folder, mask = json.loads(data)
            os.chdir(folder)
            os.umask(mask)
            _begin(fds, [0, 1, 2, *passed], environment)
            if group >= 0:
                os.setpgid(0, group)
            return [module, *arguments]


def fork_for_parent() -> int:
    """fork(2), but the child is this process's sibling."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)  # which keep the interpreter's lock
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid


def _be_named(words: list[str]) -> None:
    """Be found by the last of them in /proc, where a command line would tell."""
    name = "serve" if "serve" in words else words[0].rpartition(".")[2]
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _begin(fds: list[int], numbers: list[int], environment: dict[str, str]) -> None:
    """Be as a program that was just started: with these files under these numbers, and this environment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    above = max(*fds, *numbers) + 1
    for number, fd in enumerate(fds):
        os.dup2(fd, above + number)
        os.close(fd)
    for place, number in enumerate(numbers):
        os.dup2(above + place, number)
        os.close(above + place)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
