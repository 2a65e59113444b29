"""Standard output and standard error of this process: what is written there, and readers that go away.

Everything that any part of gitboot, Python or a library writes to `sys.stdout` or `sys.stderr` is escaped by
`gitboot.text`, so a new command cannot forget it. Two things pass: the colours that `style` adds, which carry a random
number that text from outside cannot contain, and what `write_verbatim` and `verbatim` are for.

A reader may go before the end (``gitboot validate | head``), or a disk may be full. The command then goes on to its own
end, so its exit code is what it found, and an instance outlives the reader of its log.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, TextIO

from gitboot.text import printable, printable_lines

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# ECMA-48: a control sequence has parameters between CSI and a letter, and a terminal ignores parameters that it does
# not know. The first parameter of our own sequences is this number.
_OWN: Final = int.from_bytes(os.urandom(8))
_SEQUENCE: Final = re.compile(rf"(\x1b\[){_OWN};([0-9]*[A-Za-z])")
_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}  # ECMA-48, SGR; 90: aixterm
_BOLD: Final = 1


def build_control_sequence(sequence: str) -> str:
    """Return a control sequence, given as what follows CSI, that reaches a terminal although others are escaped."""
    return f"\x1b[{_OWN};{sequence}"


def style(text: str, fg: str | None = None, *, bold: bool = False) -> str:
    """Return text with a colour or in bold, for a terminal. The text itself is escaped."""
    codes = [*([_COLOURS[fg]] if fg is not None else []), *([_BOLD] if bold else [])]
    begin = "".join(build_control_sequence(f"{code}m") for code in codes)
    return f"{begin}{escape_lines(text)}{build_control_sequence('0m')}" if begin else escape_lines(text)


def strip_style(text: str) -> str:
    """Return text without what `style` and `control` added."""
    return _SEQUENCE.sub("", text)


def escape_line(text: str) -> str:
    """Return one line as `printable` does, with the colours of `style` kept."""
    return _escape_between_sequences(text, printable)


def escape_lines(text: str) -> str:
    """Return several lines as `printable_lines` does, with the colours of `style` kept."""
    return _escape_between_sequences(text, printable_lines)


def write_verbatim(text: str) -> None:
    """Write to standard output what a CI system is to obey."""
    stream = sys.stdout
    if isinstance(stream, _Escaping):
        stream.write_verbatim(text)
    else:
        stream.write(text)
    stream.flush()


@contextmanager
def open_verbatim(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream to the same place that escapes nothing, for a library that draws on a terminal by itself."""
    wrapper = io.TextIOWrapper(stream.buffer, stream.encoding, "backslashreplace", write_through=True)
    try:
        yield wrapper
    finally:
        wrapper.detach()  # else the buffer would be closed with the wrapper


def guard_output() -> None:
    """Escape what this process writes to its standard streams, and let the process outlive their readers.

    A process may have been started without an output, and a disk may be full: neither ends the process.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so no file of ours becomes somebody's output
    for fd, name in enumerate(("stdout", "stderr"), start=1):
        stream: TextIO | None = getattr(sys, name)
        setattr(sys, name, guard_stream(stream if stream is not None else _open_descriptor(fd)))


def find_output_error() -> str | None:
    """Return why a part of standard output could not be written; None if all is written, or the reader has gone."""
    sys.stdout.flush()
    raw = sys.stdout.buffer.raw if isinstance(sys.stdout.buffer, io.BufferedWriter) else None
    return raw.write_error if isinstance(raw, _Output) else None


class _Output(io.FileIO):
    write_error: str | None = None  # why, of the first that could not be written

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.write_error = self.write_error or error.strerror
            return memoryview(data).nbytes


class _Escaping(io.TextIOWrapper):
    """A stream to a terminal, a file or a pipe, that escapes text; colours are for terminals."""

    def write(self, text: str, /) -> int:
        shown = _SEQUENCE.sub(r"\1\2", escape_lines(text)) if self.isatty() else printable_lines(strip_style(text))
        super().write(shown)
        return len(text)

    def write_verbatim(self, text: str) -> None:
        super().write(text)


def _escape_between_sequences(text: str, escape: Callable[[str], str]) -> str:
    if str(_OWN) not in text:
        return escape(text)
    own = (match[0] for match in _SEQUENCE.finditer(text))
    others = _SEQUENCE.sub("\0", text.replace("\0", "\\u0000")).split("\0")
    return "".join(chain.from_iterable(zip_longest(map(escape, others), own, fillvalue="")))


def _open_descriptor(fd: int) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)), encoding="utf-8")


def guard_stream(stream: TextIO) -> TextIO:
    stream.flush()
    is_ascii = codecs.lookup(stream.encoding).name == "ascii"  # click would then write around this stream, in UTF-8
    return _Escaping(
        io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False)),
        encoding="utf-8" if is_ascii else stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
