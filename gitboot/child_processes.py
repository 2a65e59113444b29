"""Child processes: limits, messages between processes, and orphans."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from gitboot.background_threads import BackgroundThread
from gitboot.standard_streams import guard_output

if TYPE_CHECKING:
    from msgspec import Struct
    from msgspec.msgpack import Encoder

LOG_FORMAT: Final = "GITBOOT_LOG_FORMAT"  # by which workers and children are told, too
_SET_PDEATHSIG: Final = 1  # prctl(2)
_REAP_S: Final = 1
_spawning: Final = threading.Lock()
_own_processes: Final[set[subprocess.Popen[bytes]]] = set()  # which nobody else may wait for


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
    return _start(
        command,
        environment=_environment(LOG_FORMAT),
        stdin=stdin,
        stdout=stdout,
        bufsize=bufsize,
        process_group=process_group,
        pass_fds=pass_fds,
    )


def _environment(*kept: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GITBOOT_") or name in kept}


def _start(command: Sequence[str], *, environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that `reap_orphans` leaves to its caller, as `subprocess.Popen` does."""
    with _spawning:
        process = subprocess.Popen(command, env=environment, **options)
        _own_processes.difference_update([each for each in _own_processes if each.returncode is not None])
        _own_processes.add(process)
    return process


class ProcessResult(NamedTuple):
    """How a program ended, and what it has written to standard output and to standard error."""

    status: int
    output: str
    errors: str


def run_with_input(
    command: Sequence[str],
    *,
    input_data: bytes,
    environment: Mapping[str, str],
    patience_s: float,
    pass_fds: Sequence[int] = (),
) -> ProcessResult:
    """Run a program to its end, in this environment alone, with ``given`` as its standard input.

    Raises OSError where it cannot be started, and TimeoutError. Whoever runs a program by `subprocess` itself may hear
    that it went well where `reap_orphans` was faster.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = _start(command, environment=environment, pass_fds=pass_fds, **pipes)
    try:
        output, errors = process.communicate(input_data, timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise TimeoutError(f"no answer after {patience_s:.0f} s") from None
    return ProcessResult(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def run_for_output(command: Sequence[str], *, patience_s: float, most_bytes: int) -> tuple[int, bytes]:
    """Run a program without a shell; its status, and what it has written to standard output alone.

    It has none of the GITBOOT_ variables, and is ended with all that it has started when it takes too long or says too
    much. Raises OSError where it cannot be started, and TimeoutError and OSError then.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = _start(command, environment=_environment(), process_group=0, **pipes)
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill_group(process)

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
        _kill_group(process)  # and whatever it has left behind
        status = process.wait()
    if is_late.is_set():
        raise TimeoutError(f"{command[0]} had not ended after {patience_s:.0f} s")
    return status, output


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, not reaped yet, so that its number is nobody else's, and its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def raise_limits() -> None:
    """Let this process open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # more than the kernel lets anyone have
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this very gitboot; what lies in the working directory is not imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def end_with_parent(parent: int) -> None:
    """Let the system end this process with the thread that started it, or end at once where that is gone by now."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux has it
    if prctl is not None:
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def reap_orphans(wait: Callable[[float], bool]) -> None:
    """Where this is a container's first process: reap whom nobody else will, in a thread, until ``wait`` says so."""

    def keep_reaping() -> None:
        while not wait(_REAP_S):
            with _spawning:  # a child is known as our own before anybody looks for others
                own = {each.pid for each in _own_processes if each.returncode is None}
                for task in Path("/proc/self/task").iterdir():  # a child may have come to any thread
                    with suppress(OSError):
                        for pid in set(map(int, (task / "children").read_text().split())) - own:
                            with suppress(ChildProcessError):
                                os.waitpid(pid, os.WNOHANG)

    if os.getpid() == 1:
        BackgroundThread(keep_reaping, name="reaper").start()


OUT_OF_MEMORY: Final = 12  # the exit status of a child that had to have more than it may; errno(3), ENOMEM
MAX_FRAME: Final = 2**30  # bytes; what would be larger is a fault
_LENGTH: Final = struct.Struct(">I")
_PIECE: Final = 2**20  # bytes
_END_S: Final = 10.0  # of a process that was killed
_NICE: Final = 10  # machines are answered first


@cache
def _encoder() -> Encoder:
    from msgspec.msgpack import Encoder  # only here: an endpoint sends no frames

    return Encoder(enc_hook=os.fspath)  # paths are text; all else that msgpack lacks is a TypeError


def encode(value: object) -> bytes:
    """Return a value as msgpack, for `gitboot.jsonio.decoder`."""
    return _encoder().encode(value)


def write_frame(stream: IO[bytes], message: Struct) -> None:
    stream.write(build_frame(encode(message)))
    stream.flush()


def build_frame(data: bytes) -> bytes:
    """Data behind its length."""
    return _LENGTH.pack(len(data)) + data


def read_frame(stream: IO[bytes], max_bytes: int = MAX_FRAME) -> bytes | None:
    """Return the next frame; None at the end of the stream, in the middle of a frame, and for a longer frame."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length) if length <= max_bytes else b""
    return data if len(data) == length else None


class FrameBuffer:
    """Bytes as they come, until they are frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now. Raises ValueError for one that is too long."""
        self._held += data
        start = 0
        while len(self._held) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held, start)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length:,} bytes")
            end = start + _LENGTH.size + length
            if len(self._held) < end:
                break
            yield bytes(memoryview(self._held)[start + _LENGTH.size : end])
            start = end
        del self._held[:start]


class Child:
    """A process that runs a module of gitboot, and answers what it is asked.

    It ends with the thread that starts it, at the latest. Ctrl-C is for this process, which ends it.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = spawn(
            python_command(module, *arguments, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        assert self._process.stdin is not None  # noqa: S101
        os.set_blocking(self._process.stdin.fileno(), False)  # a process that does not read must not hold this one

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, question: Struct, remaining_s: Callable[[], float] | None = None) -> None:
        """Send a frame. Raises BrokenPipeError if the process has ended, TimeoutError if no seconds are left."""
        assert self._process.stdin is not None  # noqa: S101
        pipe, unsent = self._process.stdin.fileno(), memoryview(build_frame(encode(question)))
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        while unsent:
            seconds = remaining_s() if remaining_s is not None else None
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            if poll.poll(seconds * 1000 if seconds is not None else None):
                with suppress(BlockingIOError):
                    unsent = unsent[os.write(pipe, unsent[:_PIECE]) :]

    def read_answers(self, remaining_s: Callable[[], float] | None = None) -> Iterator[bytes]:
        """What it answers, until it ends; raises TimeoutError where nothing has come and no seconds are left."""
        assert self._process.stdout is not None  # noqa: S101
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        buffer = FrameBuffer()
        while True:
            if remaining_s is not None and ((seconds := remaining_s()) <= 0 or not poll.poll(seconds * 1000)):
                raise TimeoutError
            if not (data := os.read(pipe, _PIECE)):
                return
            yield from buffer.add(data)

    def kill(self) -> None:
        """End it, whatever it is at; from any thread."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end; return its status, negative where a signal ended it."""
        return self._process.wait()

    def reap(self) -> None:
        """Reap it, once it ends, and close what led to it; from the one thread that talks with it.

        The kernel cannot kill a process that waits for a disk. A thread reaps it when the disk answers.
        """
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, name="reap", daemon=True).start()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101
            pipe.close()


def describe_exit(status: int) -> str:
    """How a child has ended that had no reason to."""
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return f"{how}, a fault of gitboot's own: see its log"


def become_child(parent: str) -> tuple[IO[bytes], IO[bytes]]:
    """Be what `Child` has started; return where it is asked, and where it answers."""
    end_with_parent(int(parent))
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may come between the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    guard_output()  # a traceback may quote a commit
    return questions, answers


class ProcessUsage(Struct, frozen=True, kw_only=True):
    """What a process has had by now: its limits are counted from there."""

    processor_s: float
    memory: int | None  # None: the system does not tell

    @classmethod
    def measure(cls) -> ProcessUsage:
        memory = None
        with suppress(OSError):  # what RLIMIT_DATA counts: proc_pid_status(5), VmData
            lines = Path("/proc/self/status").read_text().splitlines()
            memory = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
        return cls(processor_s=time.process_time(), memory=memory)

    def limit(self, *, memory: int, processor_s: float | None = None) -> None:
        """End this process, by SIGXCPU and MemoryError, where it takes so much more; ``memory`` in bytes."""
        _set_soft_limit(resource.RLIMIT_CORE, 0)
        if processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, math.ceil(self.processor_s + processor_s))
        if self.memory is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory + memory)


class ProcessLimits(NamedTuple):
    """What a process may have of processor, in seconds, and of memory, in bytes; None: as much as there is."""

    processor_s: int | None
    memory: int | None

    def apply(self) -> None:
        """Hold this process to them."""
        if self.processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, self.processor_s)
        if self.memory is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory)


def divide_limits(parts: int) -> ProcessLimits:
    """What each of so many forks of this process may have.

    All that is left of the processor's time, of which a fork counts its own, and its part of what is left of memory.
    """
    usage = ProcessUsage.measure()
    processor_s, memory = (_find_soft_limit(each) for each in (resource.RLIMIT_CPU, resource.RLIMIT_DATA))
    return ProcessLimits(
        processor_s=max(1, math.ceil(processor_s - usage.processor_s)) if processor_s is not None else None,
        memory=usage.memory + max(0, memory - usage.memory) // parts
        if memory is not None and usage.memory is not None
        else None,
    )


def deduct_processor_time(processor_s: float) -> None:
    """Count what forks have had of the processor as if this process had had it."""
    if (limit := _find_soft_limit(resource.RLIMIT_CPU)) is not None:
        _set_soft_limit(resource.RLIMIT_CPU, max(1, math.ceil(limit - processor_s)))


def _find_soft_limit(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def limit_file_size(size_bytes: int | None) -> Iterator[None]:
    """Let this process write no file that is larger, until the block ends. None changes nothing.

    A write fails with EFBIG: Python ignores SIGXFSZ, which would end the process.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size_bytes is not None:
        _set_soft_limit(resource.RLIMIT_FSIZE, size_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lift_memory_limit() -> None:
    """Let this process have memory again, to say that it had too much."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _set_soft_limit(kind: int, limit: int) -> None:
    """Set a soft limit; the hard one, which cannot be raised again, stays as it was given."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Do not look for cycles of garbage meanwhile, for work of which nearly all that it makes stays, without any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
