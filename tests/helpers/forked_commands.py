"""gitboot's commands and their child processes, forked from a process that has imported all of gitboot."""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import marshal
import os
import runpy
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile
from typing import Any, Final, NoReturn, Self
from uuid import uuid4

from gitboot.ledger import sqlite
from gitboot.ledger.schema import VERSION
from gitboot.resolve import templates
from tests.helpers.cases import require_value
from tests.helpers.forked_commands_client import MAX_BYTES, NETWORK, ask, umask

# gitboot's commands, each in a process of its own that is forked from one which has imported all of gitboot.
#
# To import is most of what a command takes, and it is the same each time. What a test says of how gitboot is started,
# or of what its start takes, is said of ``python -m gitboot`` itself.

_NURSERY = "--nursery"  # in place of a command: see tests/helpers/forked_commands.py
_CLONE_NEWNET = 0x40000000  # sched.h; os.setns comes with Python 3.12


# Callers of commands


class Command:
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
        with suppress(TimeoutError, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code after the end; raises TimeoutError, or BlockingIOError without a wait."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            self.returncode = int(self._connection.recv(MAX_BYTES))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class RunningCommand(Command):
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


def run_forked(*arguments: object, given: str = "", timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A command of gitboot that has come to its end, and what it wrote; as `subprocess.run` with capture_output."""
    command = [str(each) for each in arguments]
    with TemporaryFile() as stdin, TemporaryFile() as output, TemporaryFile() as errors:
        stdin.write(given.encode())
        stdin.seek(0)
        given_fd, output_fd, errors_fd = stdin.fileno(), output.fileno(), errors.fileno()
        code = Command(command, os.environ, given=given_fd, output=output_fd, errors=errors_fd).wait(timeout_s)
        texts = [(file.seek(0), file.read().decode())[1] for file in (output, errors)]
    return subprocess.CompletedProcess(command, code, *texts)


@contextmanager
def nursery() -> Iterator[None]:
    """A block in which what this process itself starts of gitboot is forked as well, as its own child."""

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = Command([_NURSERY], os.environ, given=theirs.fileno())
    command._connection.close()  # the caller is not its parent, and will not report its end
    with ours, fork_with(ours):
        yield
    os.waitpid(command.pid, 0)


@cache
def start() -> str:
    address = os.path.join(tempfile.mkdtemp(prefix="gitboot-"), "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        command = [sys.executable, "-P", "-m", __name__, str(listening.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], env=environment)
    atexit.register(process.communicate)
    return address


def build_shell_program() -> str:
    """Return a script for PATH that runs such a command as `gitboot`."""
    root = str(Path(__file__).parents[2])
    program = f"import sys\nsys.path.append({root!r})\n"
    program += f"from tests.helpers.forked_commands_client import pass_on\npass_on({start()!r})\n"
    return f"#!{sys.executable} -IS\n{program}"


# The process that forks

RUN_FIRST = "GITBOOT_TESTS_RUN_FIRST"  # in the environment of a command: Python that changes gitboot for it


# A test that holds the lock of a ledger need not wait 5 s for each write. Ordinary writes take less than one second.
SHORT_LOCK_TIMEOUT = """
import sqlite3
connect = sqlite3.connect
sqlite3.connect = lambda path, timeout=1.0, **more: connect(path, timeout, **more)
"""


def fork_commands(listening: socket.socket) -> list[str]:
    """Fork for each requested command until standard input ends; return its arguments in the child."""
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
                    _report_exit(*key.data)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)


def _fork(listening: socket.socket, selector: selectors.BaseSelector) -> list[str] | None:

    connection, _ = listening.accept()
    request, (*fds, network), _, _ = socket.recv_fds(connection, MAX_BYTES, 4)
    arguments, folder, environment, umask = marshal.loads(request)
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
    """Move the calling thread to another network namespace; a move to the present one needs no right."""
    if not os.path.sameopenfile(network, here := os.open(NETWORK, os.O_RDONLY)):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    os.close(here)
    os.close(network)


def _report_exit(connection: socket.socket, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, suppress(OSError):  # perhaps no process waits for it
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _warm_up() -> None:
    """Have made what gitboot makes when it first reads, decides and renders: validators, most of all."""
    from datetime import UTC, datetime

    from gitboot.fleet.validation import load
    from gitboot.git.snapshots import WORKTREE, open_snapshot
    from gitboot.render.boot_files import render_fleet_files, render_server_files
    from gitboot.resolve.fleet_decisions import decide
    from gitboot.resolve.plan_at_time import make_plan

    decisions = decide(load(open_snapshot(Path(__file__).parents[2] / "example-repo", WORKTREE)))
    render_fleet_files(decisions)
    for decision in decisions.servers.values():
        render_server_files(decisions, decision, make_plan(decision, datetime.now(UTC), None))


def shorten_pauses() -> None:
    """Let commands try again soon: tests wait for the next try, and the length of the pause has its own tests."""
    from gitboot.background_threads import BackgroundThread
    from gitboot.controller import notifications
    from gitboot.controller.instance import standby
    from gitboot.publish.targets.follower import Follower

    require_value(Follower.__init__.__kwdefaults__)["first_retry_s"] = 0.3
    require_value(BackgroundThread.__init__.__kwdefaults__)["first_pause_s"] = 0.5
    vars(notifications)["FIRST_RETRY_S"] = 0.3
    vars(standby)["CHECK_S"] = 0.2


def wait_patiently() -> None:
    """Let commands of this process wait longer for an instance or an endpoint: a busy machine is slow."""
    from gitboot.cli import instance_client

    vars(instance_client)["_REQUEST_TIMEOUT_S"] = 300


def main(fd: int) -> None:
    import gc
    from importlib import import_module
    from pkgutil import walk_packages

    import gitboot
    from gitboot.endpoint import app

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this
    gc.disable()
    for module in walk_packages(gitboot.__path__, "gitboot."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    make_ledgers_at_once()
    compile_templates_once()
    shorten_pauses()
    wait_patiently()
    app.DEADLINE_S = 20.0  # type: ignore[misc] # as `tests.helpers.endpoints`: a busy machine is no slow disk
    _warm_up()
    gc.freeze()
    gc.enable()
    sys.argv[1:] = fork_commands(socket.socket(fileno=fd))
    if sys.argv[1:] == [_NURSERY]:
        run_requested_module(socket.socket(fileno=0))
    exec(os.environ.get(RUN_FIRST, ""), {})
    if sys.argv[1:2] in (["run"], ["serve"]):
        open_nursery()
    run_and_exit("gitboot.__main__")


# Fork the programs of gitboot that a forked command starts, as children of the command: see `forked_commands`.
#
# A process that has threads cannot fork safely, so a sibling that has none does it: the kernel lets it make children
# for its own parent. Whoever waits for them, kills them or dies before them has them as if they had been started.

_MAX_BYTES = 1 << 18  # bytes of a command with its environment
_CLONE_PARENT = 0x8000  # sched.h
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)  # clone(2)
_SET_NAME = 15  # prctl(2)
_STARTED = [sys.executable, "-P", "-m"]

_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_popen_signature = inspect.signature(_execute_child)


def open_nursery() -> None:
    """Fork that sibling, before this process has threads. In a child that it makes this does not return."""
    if _CLONE is None:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _patch_popen(ours)
    else:
        ours.close()
        run_requested_module(theirs)


def run_requested_module(connection: socket.socket) -> NoReturn:
    """Be that sibling, and in each child that it makes what it is to be."""
    sys.argv = _wait_for_work(connection)
    _set_process_name(sys.argv[:2])
    run_and_exit(sys.argv[0])


def run_and_exit(module: str) -> NoReturn:
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
def fork_with(nursery: socket.socket) -> Iterator[None]:
    """A block in which `subprocess` has what is gitboot's own forked."""
    _patch_popen(nursery)
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _patch_popen(nursery: socket.socket) -> None:
    """Let `subprocess` have what is gitboot's own forked."""
    lock = threading.Lock()

    def execute_child(self: subprocess.Popen[bytes], *given: Any) -> None:
        arguments = _popen_signature.bind(self, *given).arguments
        if list(arguments["args"][:3]) != _STARTED:
            _execute_child(self, *given)
            return
        pipe_fds = [arguments[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        fds = [*(number if fd == -1 else fd for number, fd in enumerate(pipe_fds)), *arguments["pass_fds"]]
        place = [os.getcwd(), umask()]
        facts = [
            arguments["args"][3:],
            dict(arguments["env"]),
            list(arguments["pass_fds"]),
            arguments["process_group"],
            *place,
        ]
        with lock:
            socket.send_fds(nursery, [json.dumps(facts).encode()], fds)
            self.pid = int(nursery.recv(_MAX_BYTES))
        self._child_created = True  # type: ignore[attr-defined]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(arguments[name] for name in pipes))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


# The nursery


def _wait_for_work(connection: socket.socket) -> list[str]:
    """Make one process after the other; return what it is to be, in that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, whose end is this one's
    while True:
        data, fds, _, _ = socket.recv_fds(connection, _MAX_BYTES, 16)
        if not data:
            os._exit(0)
        if pid := fork_for_parent():
            for fd in fds:
                os.close(fd)
            connection.send(str(pid).encode())
        else:
            connection.close()
            (module, *arguments), environment, passed, group, folder, mask = json.loads(data)
            os.chdir(folder)
            os.umask(mask)
            _prepare_process(fds, [0, 1, 2, *passed], environment)
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


def _set_process_name(words: list[str]) -> None:
    """Set the process name to the last argument, which /proc shows as a command line would."""
    name = "serve" if "serve" in words else words[0].rpartition(".")[2]
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _prepare_process(fds: list[int], numbers: list[int], environment: dict[str, str]) -> None:
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


# Templates are compiled once in a process of tests: thousands of fleets are decided there, by the same few.
#
# Reading and compiling a template is tested in tests of `gitboot.resolve.templates`.

_MAX_TEMPLATES = 1024


def compile_templates_once() -> None:
    """Remember in this process what a template's source was compiled to."""
    templates.compile_template = lru_cache(_MAX_TEMPLATES)(templates.compile_template)
    templates.find_names = lru_cache(_MAX_TEMPLATES)(templates.find_names)


# New ledgers in one step: tests make a thousand, and each would go through what every version has changed.
#
# One of an older version goes through them as always.

by_migrations: Final = sqlite._migrate


def make_ledgers_at_once() -> None:
    """Let this process make new ledgers of what all migrations come to."""
    with closing(sqlite3.connect(":memory:")) as made:
        by_migrations(made, "")
        rows = made.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    tables = ";".join(sql for (sql,) in rows)

    def migrate(connection: sqlite3.Connection, name: str) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            by_migrations(connection, name)
            return
        identity = f"INSERT INTO facts VALUES ('identity', '{uuid4()}')"
        connection.executescript(f"BEGIN IMMEDIATE; {tables}; {identity}; PRAGMA user_version = {VERSION}; COMMIT;")

    sqlite._migrate = migrate


if __name__ == "__main__":
    main(int(sys.argv[1]))
