"""gitboot's commands, each in a process of its own that is forked from one which has imported all of gitboot.

To import is most of what a command takes, and it is the same each time. What a test says of how gitboot is started, or
of what its start takes, is said of ``python -m gitboot`` itself.
"""

from __future__ import annotations

import atexit
import ctypes
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile
from typing import Self

from tests.helpers.forked_commands_client import LONGEST, NETWORK, ask

_NURSERY = "--nursery"  # in place of a command: see tests/helpers/forked_children.py
_CLONE_NEWNET = 0x40000000  # sched.h; os.setns comes with Python 3.12


# Whoever has a command


class Command:
    """A command of gitboot that was started; as much of `subprocess.Popen` as tests use of it."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        given: int = 0,
        output: int = 1,
        errors: int = 2,
    ) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(start())
        self.pid = ask(self._connection, arguments, environment, (given, output, errors))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code once it has ended; raises TimeoutError, or BlockingIOError where nothing was to be waited."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            self.returncode = int(self._connection.recv(LONGEST))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Heard(Command):
    """A command whose standard error is read while it runs; it does not outlive its block."""

    def __init__(self, *arguments: object) -> None:
        read, write = os.pipe()
        super().__init__([str(each) for each in arguments], os.environ, errors=write)
        os.close(write)
        self.stderr = os.fdopen(read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stderr.close()


def captured(*arguments: object, given: str = "", timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A command of gitboot that has come to its end, and what it wrote; as `subprocess.run` with capture_output."""
    command = [str(each) for each in arguments]
    with TemporaryFile() as asked, TemporaryFile() as output, TemporaryFile() as errors:
        asked.write(given.encode())
        asked.seek(0)
        given_fd, output_fd, errors_fd = asked.fileno(), output.fileno(), errors.fileno()
        code = Command(command, os.environ, given=given_fd, output=output_fd, errors=errors_fd).wait(timeout_s)
        texts = [(file.seek(0), file.read().decode())[1] for file in (output, errors)]
    return subprocess.CompletedProcess(command, code, *texts)


@contextmanager
def nursery() -> Iterator[None]:
    """A block in which what this process itself starts of gitboot is forked as well, as its own child."""
    from tests.helpers.forked_children import forking_by

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        made = Command([_NURSERY], os.environ, given=theirs.fileno())
    made._connection.close()  # whoever has started it is no parent of it, and will not tell its end
    with ours, forking_by(ours):
        yield
    os.waitpid(made.pid, 0)


@cache
def start() -> str:
    """The address of a process that forks; it ends with this one."""
    address = os.path.join(tempfile.mkdtemp(prefix="gitboot-"), "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        command = [sys.executable, "-P", "-m", __name__, str(listening.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], env=environment)
    atexit.register(process.communicate)
    return address


def for_shells() -> str:
    """A script that is such a command: where a shell looks for `gitboot`."""
    root = str(Path(__file__).parents[2])
    passed = f"import sys\nsys.path.append({root!r})\n"
    passed += f"from tests.helpers.forked_commands_client import pass_on\npass_on({start()!r})\n"
    return f"#!{sys.executable} -IS\n{passed}"


# The process that forks


def fork_commands(listening: socket.socket) -> list[str]:
    """Fork for each command that is asked for, until standard input ends; return its arguments, in the child."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    rmtree(Path(listening.getsockname()).parent)
                    sys.exit()
                elif key.fileobj is listening:
                    if (arguments := _fork(listening, selector)) is not None:
                        return arguments
                else:
                    _tell(*key.data)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)


def _fork(listening: socket.socket, selector: selectors.BaseSelector) -> list[str] | None:
    from tests.helpers.forked_children import fork_for_parent

    connection, _ = listening.accept()
    asked, (*fds, network), _, _ = socket.recv_fds(connection, LONGEST, 4)
    arguments, folder, environment, umask = marshal.loads(asked)
    is_nursery = arguments == [_NURSERY]
    if pid := fork_for_parent() if is_nursery else os.fork():
        for fd in (*fds, network):
            os.close(fd)
        connection.send(str(pid).encode())
        if is_nursery:
            connection.close()
        else:
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (connection, pid))
        return None
    for key in selector.get_map().values():  # what is the parent's
        if key.data is not None:
            os.close(key.fd)
            key.data[0].close()
    connection.close()
    listening.close()
    join(network)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(umask)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    found: list[str] = arguments
    return found


def join(network: int) -> None:
    """Be in another network, with the thread that says so; to be there already needs no right."""
    if not os.path.sameopenfile(network, here := os.open(NETWORK, os.O_RDONLY)):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    os.close(here)
    os.close(network)


def _tell(connection: socket.socket, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, suppress(OSError):  # perhaps nobody waits for it
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _warm_up() -> None:
    """Have made what gitboot makes when it first reads, decides and renders: validators, most of all."""
    from datetime import UTC, datetime

    from gitboot.fleet.validation import load
    from gitboot.git.snapshots import WORKTREE, open_snapshot
    from gitboot.render.boot_files import server_files, shared_files
    from gitboot.resolve.fleet_decisions import decide
    from gitboot.resolve.plan_at_time import plan

    decisions = decide(load(open_snapshot(Path(__file__).parents[2] / "example-repo", WORKTREE)))
    shared_files(decisions)
    for decision in decisions.servers.values():
        server_files(decisions, decision, plan(decision, datetime.now(UTC), None))


def main(fd: int) -> None:
    import gc
    from importlib import import_module
    from pkgutil import walk_packages

    import gitboot
    from gitboot.endpoint import app
    from tests.helpers.compiled_templates import compile_once
    from tests.helpers.forked_children import be_what_is_asked, open_nursery, run_to_its_end
    from tests.helpers.new_ledgers import make_at_once

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this
    gc.disable()
    for module in walk_packages(gitboot.__path__, "gitboot."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    make_at_once()
    compile_once()
    app.DEADLINE_S = 20.0  # type: ignore[misc] # as `tests.helpers.served_tree`: a busy machine is no slow disk
    _warm_up()
    gc.freeze()
    gc.enable()
    sys.argv[1:] = fork_commands(socket.socket(fileno=fd))
    if sys.argv[1:] == [_NURSERY]:
        be_what_is_asked(socket.socket(fileno=0))
    if sys.argv[1:2] in (["run"], ["serve"]):
        open_nursery()
    run_to_its_end("gitboot.__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
