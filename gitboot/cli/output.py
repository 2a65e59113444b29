"""Standard output and error whose reader may go before the end: ``gitboot validate | head``.

What nobody reads is written to nobody. The command goes on to its own end, so its exit code is what it found, and an
instance outlives whoever read its log.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def outlive_readers() -> None:
    """Let this process write on where a reader has gone; where there is no output at all, nothing changes."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, _outliving(stream))


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _outliving(stream: TextIO) -> TextIO:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
