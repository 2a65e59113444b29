"""Talks between two processes of gitboot: frames of msgpack behind their length, over the pipes of a child."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Final

import msgspec

from gitboot.child_processes import end_with, python, spawn
from gitboot.terminal import guard_output

OUT_OF_MEMORY: Final = 12  # the exit status of a child that had to have more than it may; errno(3), ENOMEM

MAX_FRAME: Final = 2**30  # bytes; what would be larger is a fault
_LENGTH: Final = struct.Struct(">I")
_PIECE: Final = 2**20  # bytes
_END_S: Final = 10.0  # of a process that was killed
_NICE: Final = 10  # machines are answered first

encode: Final = msgspec.msgpack.Encoder().encode


def write_frame(stream: IO[bytes], message: msgspec.Struct) -> None:
    stream.write(framed(encode(message)))
    stream.flush()


def framed(data: bytes) -> bytes:
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


class Buffer:
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
            python(module, *arguments, str(os.getpid())),
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

    def send(self, question: msgspec.Struct, left_s: Callable[[], float] | None = None) -> None:
        """Send a frame. Raises BrokenPipeError if the process has ended, TimeoutError if no seconds are left."""
        assert self._process.stdin is not None  # noqa: S101
        pipe, rest = self._process.stdin.fileno(), memoryview(framed(encode(question)))
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        while rest:
            left = left_s() if left_s is not None else None
            if left is not None and left <= 0:
                raise TimeoutError
            if poll.poll(left * 1000 if left is not None else None):
                with suppress(BlockingIOError):
                    rest = rest[os.write(pipe, rest[:_PIECE]) :]

    def answers(self, left_s: Callable[[], float] | None = None) -> Iterator[bytes]:
        """What it answers, until it ends; raises TimeoutError where nothing has come and no seconds are left."""
        assert self._process.stdout is not None  # noqa: S101
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        buffer = Buffer()
        while True:
            if left_s is not None and ((left := left_s()) <= 0 or not poll.poll(left * 1000)):
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

    def put_away(self) -> None:
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


def ended(status: int) -> str:
    """How a child has ended that had no reason to."""
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return f"{how}, a fault of gitboot's own: see its log"


def as_child_of(parent: str) -> tuple[IO[bytes], IO[bytes]]:
    """Be what `Child` has started; return where it is asked, and where it answers."""
    end_with(int(parent))
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may come between the frames
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    guard_output()  # a traceback may quote a commit
    return asked, answers
