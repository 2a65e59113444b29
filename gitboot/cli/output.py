"""Standard output and error whose reader may go before the end, ``gitboot validate | head``, or whose disk is full.

What nobody reads, or can be written nowhere, is written to nobody. The command goes on to its own end, so its exit code
is what it found, and an instance outlives whoever read its log.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def outlive_readers() -> None:
    """Let this process write on where a reader has gone, a disk is full, or it was started without an output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so no file of ours becomes somebody's output
    for fd, name in enumerate(("stdout", "stderr"), start=1):
        stream: TextIO | None = getattr(sys, name)
        setattr(sys, name, _outliving(stream if stream is not None else _nowhere(fd)))


def why_lost() -> str | None:
    """Why what was written to standard output is not all there; None: it is, or its reader has gone."""
    sys.stdout.flush()
    raw = sys.stdout.buffer.raw if isinstance(sys.stdout.buffer, io.BufferedWriter) else None
    return raw.lost if isinstance(raw, _Output) else None


class _Output(io.FileIO):
    lost: str | None = None  # why, of the first that could not be written

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.lost = self.lost or error.strerror
            return memoryview(data).nbytes


def _nowhere(fd: int) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)), encoding="utf-8")


def _outliving(stream: TextIO) -> TextIO:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
