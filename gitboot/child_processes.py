"""Processes: start and end child processes, exchange messages, reap orphans, and limit this process's resources."""

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
from gitboot.errors import SourceError
from gitboot.standard_streams import escape_output

if TYPE_CHECKING:
    from msgspec.msgpack import Encoder

LOG_FORMAT: Final = "GITBOOT_LOG_FORMAT"  # child processes inherit this variable
OUT_OF_MEMORY: Final = 12  # the exit status of a child that exceeded its memory limit; errno(3), ENOMEM
MAX_FRAME_BYTES: Final = 2**30  # a larger frame is a bug
_LENGTH: Final = struct.Struct(">I")  # the length of the data in a frame
_MAX_PIECE_BYTES: Final = 2**20  # the maximum size of one read or write
_POLL_S: Final = 0.01
_END_S: Final = 10.0  # the maximum wait for the end of a process
_REAP_INTERVAL_S: Final = 1
_NICE: Final = 10  # lower priority than the processes that serve machines
_SET_PDEATHSIG: Final = 1  # prctl(2)
_spawn_lock: Final = threading.Lock()
# only the callers that started these processes may wait for them
_own_processes: Final[set[subprocess.Popen[bytes]]] = set()


# Start and end processes


def spawn(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    bufsize: int = -1,
    process_group: int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that ends no later than the thread that calls this function.

    The new process must call `exit_with_parent` before anything else. The process inherits the variable `LOG_FORMAT`.
    It does not inherit other GITBOOT_ variables, because those are settings for the command that the user ran.
    """
    return _start_process(
        command,
        environment=_build_environment(LOG_FORMAT),
        stdin=stdin,
        stdout=stdout,
        bufsize=bufsize,
        process_group=process_group,
        pass_fds=pass_fds,
    )


def _build_environment(*kept: str) -> dict[str, str]:
    """Return the environment of this process, without the GITBOOT_ variables that are not in ``kept``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GITBOOT_") or name in kept}


def _start_process(
    command: Sequence[str], *, environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process like `subprocess.Popen`, and make `reap_orphans` ignore the process."""
    with _spawn_lock:
        process = subprocess.Popen(command, env=environment, **options)
        _own_processes.difference_update([own for own in _own_processes if own.returncode is not None])
        _own_processes.add(process)
    return process


class ProcessResult(NamedTuple):
    """The exit status of a program, and its standard output and standard error."""

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
    """Run a program until it ends, with ``input_data`` as standard input and exactly this environment.

    Use this function instead of `subprocess.run`, because `subprocess` reports exit status 0 if `reap_orphans` reaps
    the process first. Raises OSError if the program cannot be started, and TimeoutError if the program does not end in
    time, or if another process still has its pipes open. After an error, the function kills the process group of the
    program.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = _start_process(command, environment=environment, process_group=0, pass_fds=pass_fds, **pipes)
    try:
        output, errors = process.communicate(input_data, timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer after {patience_s:.0f} s") from None
    finally:
        _kill_group(process)
        _reap(process)
    return ProcessResult(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def run_for_output(command: Sequence[str], *, patience_s: float, max_bytes: int) -> tuple[int, bytes]:
    """Run a program without a shell, and return its exit status and its standard output.

    The program does not inherit GITBOOT_ variables. Before it returns, the function kills the process group of the
    program. Raises OSError if the program cannot be started or writes more than ``max_bytes``. Raises TimeoutError if
    the program does not end in time, or if another process still has its standard output open.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = _start_process(command, environment=_build_environment(), process_group=0, **pipes)
    try:
        output = _read_output(process, time.monotonic() + patience_s, max_bytes)
    except TimeoutError:
        raise TimeoutError(
            f"{command[0]} or a process that it started was still running after {patience_s:g} s"
        ) from None
    finally:
        _kill_group(process)  # also kill processes that the program started and that still run
        _reap(process)
    if len(output) > max_bytes:
        raise OSError(f"{command[0]} wrote more than {max_bytes} bytes")
    return process.returncode, output


def _read_output(process: subprocess.Popen[bytes], end_s: float, max_bytes: int) -> bytes:
    """Wait until a process ends, and return its standard output. The process is not reaped.

    Return early if the output has more than ``max_bytes``. Raises TimeoutError if the time is over.
    """
    assert process.stdout is not None  # noqa: S101 - the caller started the process with a pipe
    pipe = process.stdout.fileno()
    output = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while poll.poll(max(0.0, end_s - time.monotonic()) * 1000):
        data = os.read(pipe, max_bytes + 1)
        output += data
        if len(output) > max_bytes:
            return output
        if not data:  # the end of the output
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() >= end_s:
                    raise TimeoutError
                time.sleep(_POLL_S)
            return output
    raise TimeoutError


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its process group.

    Do nothing if this program has already read the exit code, because another process could have the PID now.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends, and close its pipes.

    The kernel cannot kill a process that waits for a disk. For such a process, this function starts a thread that reaps
    the process when the disk responds.
    """
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="reap", daemon=True).start()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def build_python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this gitboot.

    With this command line, Python does not import modules from the current directory.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def exit_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent thread ends. Exit if the parent process is no longer ``parent``."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # only Linux has prctl
    if prctl is not None:
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def reap_orphans(wait_for_stop: Callable[[float], bool]) -> None:
    """Reap orphans in a thread until ``wait_for_stop`` returns True.

    Do nothing unless this process has PID 1, as in a container.
    """
    if os.getpid() != 1:
        return

    def keep_reaping() -> None:
        while not wait_for_stop(_REAP_INTERVAL_S):
            with _spawn_lock:  # with this lock, all child processes of gitboot are in _own_processes
                own_pids = {process.pid for process in _own_processes if process.returncode is None}
                for pid in _list_children() - own_pids:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    BackgroundThread(keep_reaping, name="reaper").start()


def _list_children() -> set[int]:
    """Return the PIDs of this process's children."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():  # the kernel lists children by the thread that started them
        with suppress(OSError):
            pids.update(map(int, (task / "children").read_text().split()))
    return pids


# Messages between a process and its child


@cache
def _get_encoder() -> Encoder:
    from msgspec.msgpack import Encoder  # imported here, because an endpoint does not send frames

    # msgpack has no type for paths, so they become text; other unsupported types raise TypeError
    return Encoder(enc_hook=os.fspath)


def encode(value: object) -> bytes:
    """Encode a value as msgpack. The functions that `gitboot.jsonio.build_decoder` returns decode the value."""
    return _get_encoder().encode(value)


def write_frame(stream: IO[bytes], message: Struct) -> None:
    stream.write(build_frame(encode(message)))
    stream.flush()


def build_frame(data: bytes) -> bytes:
    """Return a frame: the length of the data, and then the data."""
    return _LENGTH.pack(len(data)) + data


def read_frame(stream: IO[bytes], max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """Return the next frame.

    Return None at the end of the stream, for an incomplete frame, and for a frame of more than ``max_bytes``.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length) if length <= max_bytes else b""
    return data if len(data) == length else None


class FrameBuffer:
    """A buffer that splits received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[bytes]:
        """Add received bytes, and yield each complete frame. Raises ValueError if a frame is too long.

        The caller must consume the iterator, because the buffer keeps the yielded frames until the iterator ends.
        """
        self._buffer += data
        start = 0
        while len(self._buffer) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"received a frame that is too long: {length:,} bytes")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]


class Child:
    """A process that runs a module of gitboot and answers requests.

    The process ends no later than the thread that starts it. It ignores Ctrl-C, because its parent handles the signal
    and ends the process.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Start the process. Raises `SourceError` if the system cannot start one."""
        try:
            self._process = spawn(
                build_python_command(module, *arguments, str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise SourceError(f"gitboot cannot start the process {module}: {error.strerror}") from None
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        self._requests, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        # non-blocking, so that a child that does not read cannot block this process
        os.set_blocking(self._requests, False)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, request: Struct, remaining_s: Callable[[], float] | None = None) -> None:
        """Send a request in a frame.

        Raises BrokenPipeError if the child has ended, and TimeoutError if no time remains.
        """
        unsent = memoryview(build_frame(encode(request)))
        poll = select.poll()
        poll.register(self._requests, select.POLLOUT)
        while unsent:
            seconds = remaining_s() if remaining_s is not None else None
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            if poll.poll(seconds * 1000 if seconds is not None else None):
                with suppress(BlockingIOError):
                    unsent = unsent[os.write(self._requests, unsent[:_MAX_PIECE_BYTES]) :]

    def read_answers(self, remaining_s: Callable[[], float] | None = None) -> Iterator[bytes]:
        """Yield the child's answers until the child ends.

        Raises TimeoutError if no time remains before an answer arrives, and ValueError if an answer is too long. If the
        caller stops after an answer, later answers that have arrived are lost.
        """
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        buffer = FrameBuffer()
        while True:
            if remaining_s is not None:
                seconds = remaining_s()
                if seconds <= 0 or not poll.poll(seconds * 1000):
                    raise TimeoutError
            data = os.read(self._answers, _MAX_PIECE_BYTES)
            if not data:
                return
            yield from buffer.add(data)

    def kill(self) -> None:
        """Kill the child. Any thread may call this method."""
        self._process.kill()

    def wait(self) -> int:
        """Wait until the child ends, and return its exit status, which is negative if a signal ended the child."""
        return self._process.wait()

    def reap(self) -> None:
        """Wait until the child ends, and close its pipes.

        Call this method from the thread that calls `send` and `read_answers`.
        """
        _reap(self._process)


def describe_exit(status: int) -> str:
    """Return a description of a child's unexpected exit."""
    end = f"was ended by {_format_signal(-status)}" if status < 0 else f"ended with exit status {status}"
    # the kernel ends a process with SIGKILL if the memory is exhausted
    cause = "The host may be out of memory" if status == -signal.SIGKILL else "This is a bug in gitboot"
    return f"{end}. {cause}. See gitboot's log for details"


def _format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Python has no names for most real-time signals
        return f"signal {number}"


def become_child(parent: str) -> tuple[IO[bytes], IO[bytes]]:
    """Set up this process as a `Child`. Return two streams: one for requests and one for answers."""
    exit_with_parent(int(parent))
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # redirect other output, which must not come between the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    escape_output()  # escape output, because a traceback may contain text from a commit
    return requests, answers


# Resources of this process


class ProcessUsage(Struct, frozen=True, kw_only=True):
    """The processor time and the memory that a process has used so far.

    The limits of the process are relative to these values.
    """

    processor_s: float
    memory_bytes: int | None  # None: unknown

    @classmethod
    def measure(cls) -> ProcessUsage:
        memory_bytes = None
        with suppress(OSError):  # RLIMIT_DATA limits VmData: proc_pid_status(5)
            lines = Path("/proc/self/status").read_text().splitlines()
            memory_bytes = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
        return cls(processor_s=time.process_time(), memory_bytes=memory_bytes)

    def limit(self, *, memory_bytes: int, processor_s: float | None = None) -> None:
        """Limit the additional memory and the additional processor time of this process.

        If the process exceeds the memory limit, Python raises MemoryError. If it exceeds the time limit, the kernel
        sends SIGXCPU.
        """
        _set_soft_limit(resource.RLIMIT_CORE, 0)
        if processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, math.ceil(self.processor_s + processor_s))
        if self.memory_bytes is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory_bytes + memory_bytes)


class ProcessLimits(NamedTuple):
    """The limits of a process. If a value is None, the present limit stays."""

    processor_s: int | None
    memory_bytes: int | None

    def apply(self) -> None:
        """Apply the limits to this process."""
        if self.processor_s is not None:
            _set_soft_limit(resource.RLIMIT_CPU, self.processor_s)
        if self.memory_bytes is not None:
            _set_soft_limit(resource.RLIMIT_DATA, self.memory_bytes)


def divide_limits(fork_count: int) -> ProcessLimits:
    """Divide the remaining resources of this process among ``fork_count`` forks. Return the limits for each fork.

    Each fork gets an equal share of the memory. Each fork also gets all of the remaining processor time, because the
    kernel counts the time of each fork separately.
    """
    usage = ProcessUsage.measure()
    processor_limit = _find_soft_limit(resource.RLIMIT_CPU)
    memory_limit = _find_soft_limit(resource.RLIMIT_DATA)
    processor_s = memory_bytes = None
    if processor_limit is not None:
        processor_s = max(1, math.ceil(processor_limit - usage.processor_s))
    if memory_limit is not None and usage.memory_bytes is not None:
        memory_bytes = usage.memory_bytes + max(0, memory_limit - usage.memory_bytes) // fork_count
    return ProcessLimits(processor_s, memory_bytes)


def deduct_processor_time(processor_s: float) -> None:
    """Subtract the processor time that forks have used from the remaining processor time of this process."""
    if (limit := _find_soft_limit(resource.RLIMIT_CPU)) is not None:
        _set_soft_limit(resource.RLIMIT_CPU, max(1, math.ceil(limit - processor_s)))


def _find_soft_limit(kind: int) -> int | None:
    limit, _ = resource.getrlimit(kind)
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def limit_file_size(size_bytes: int | None) -> Iterator[None]:
    """Limit the size of files that this process writes until the block ends.

    If the size is None, there is no limit. A write beyond the limit fails with EFBIG, because Python ignores SIGXFSZ.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size_bytes is not None:
        _set_soft_limit(resource.RLIMIT_FSIZE, size_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lift_memory_limit() -> None:
    """Remove the memory limit of this process, so that the process can report that it exceeded the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def lift_processor_limit() -> None:
    """Remove the limit on processor time, for work that does not read a commit, such as downloads."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _set_soft_limit(kind: int, limit: int) -> None:
    """Set a soft limit, and keep the hard limit, because a process that lowers its hard limit cannot raise it again."""
    _, hard = resource.getrlimit(kind)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (soft, hard))


def raise_open_file_limit() -> None:
    """Raise the limit on open files as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the new limit is higher than the kernel allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turn off the garbage collector within the block.

    Use this for work whose results stay in memory and do not contain reference cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
