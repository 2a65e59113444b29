"""Standard output and standard error: escape text, use colours, and handle readers that close a pipe early.

This module escapes everything that gitboot, Python or a library writes to `sys.stdout` or `sys.stderr`, with
`gitboot.text`. Therefore commands do not have to escape their output. There are two exceptions. The module does not
escape colours that `style` adds. These colours contain a random number, which text from outside gitboot cannot contain.
The module also does not escape the output of `write_verbatim` and `open_verbatim`.

A reader may close its pipe early (as in ``gitboot validate | head``), or a disk may be full. In both cases, the command
runs to its end with the correct exit code. An instance continues to run if the reader of its log ends. A command that
prints until Ctrl-C checks `has_reader`.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, TextIO

from gitboot.text import printable, printable_lines

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# ECMA-48: a control sequence has parameters between CSI and a letter, and a terminal ignores unknown parameters. The
# first parameter of each sequence that gitboot writes is this number.
_OWN_MARK: Final = int.from_bytes(os.urandom(8))
_SEQUENCE: Final = re.compile(rf"(\x1b\[){_OWN_MARK};([0-9]*[A-Za-z])")
# ECMA-48, SGR; 90: aixterm
_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36, "bright_black": 90}
_BOLD: Final = 1


def build_control_sequence(sequence: str) -> str:
    """Return a control sequence that this module does not escape. ``sequence`` is the part after CSI."""
    return f"\x1b[{_OWN_MARK};{sequence}"


def style(text: str, fg: str | None = None, *, bold: bool = False) -> str:
    """Return text with a colour or in bold for a terminal. The function escapes the text."""
    begin = ""
    if fg is not None:
        begin += build_control_sequence(f"{_COLOURS[fg]}m")
    if bold:
        begin += build_control_sequence(f"{_BOLD}m")
    end = build_control_sequence("0m") if begin else ""
    return f"{begin}{escape_lines(text)}{end}"


def strip_style(text: str) -> str:
    """Return text without the sequences that `style` and `build_control_sequence` add."""
    return _SEQUENCE.sub("", text)


def escape_line(text: str) -> str:
    """Escape one line with `printable`, but keep the colours of `style`."""
    return _escape_between_sequences(text, printable)


def escape_lines(text: str) -> str:
    """Escape several lines with `printable_lines`, but keep the colours of `style`."""
    return _escape_between_sequences(text, printable_lines)


def write_verbatim(text: str) -> None:
    """Write a command for a CI system to standard output, without escaping."""
    stream = sys.stdout
    if isinstance(stream, _EscapingStream):
        stream.write_verbatim(text)
    else:
        stream.write(text)
    stream.flush()


@contextmanager
def open_verbatim(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream that writes to the same destination without escaping.

    Use the stream for a library that controls the terminal itself.
    """
    wrapper = io.TextIOWrapper(stream.buffer, stream.encoding, "backslashreplace", write_through=True)
    try:
        yield wrapper
    finally:
        wrapper.detach()  # without this, the wrapper would close the buffer


def escape_output() -> None:
    """Escape everything that this process writes to its standard streams.

    Ignore the errors that occur if a reader closes a stream, if the process has no standard streams, or if the disk is
    full.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # this takes the lowest free file descriptor, so that a file that gitboot opens does not become an output
            # stream
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    for fd, name in enumerate(("stdout", "stderr"), start=1):
        stream: TextIO | None = getattr(sys, name)
        setattr(sys, name, build_escaping_stream(stream if stream is not None else _open_descriptor(fd)))


def find_output_error() -> str | None:
    """Return the reason why a part of standard output could not be written.

    Return None if everything was written, or if the reader has closed the pipe.
    """
    sys.stdout.flush()
    raw = sys.stdout.buffer.raw if isinstance(sys.stdout.buffer, io.BufferedWriter) else None
    return raw.write_error if isinstance(raw, _OutputFile) else None


def has_reader() -> bool:
    """Return False if standard output is a pipe that its reader has closed, otherwise True."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # poll reports POLLERR and POLLHUP without a request
    return not poller.poll(0)


class _OutputFile(io.FileIO):
    """A file that ignores errors of writes, but stores the first error unless the reader has closed the pipe."""

    write_error: str | None = None  # the error of the first failed write

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.write_error = self.write_error or error.strerror
            return memoryview(data).nbytes


class _EscapingStream(io.TextIOWrapper):
    """A stream that escapes text before it writes the text to a terminal, a file or a pipe.

    Only terminals get colours.
    """

    def write(self, text: str, /) -> int:
        if self.isatty():
            super().write(_SEQUENCE.sub(r"\1\2", escape_lines(text)))
        else:
            super().write(printable_lines(strip_style(text)))
        return len(text)

    def write_verbatim(self, text: str) -> None:
        super().write(text)


def _escape_between_sequences(text: str, escape: Callable[[str], str]) -> str:
    if str(_OWN_MARK) not in text:
        return escape(text)
    own_sequences = (match[0] for match in _SEQUENCE.finditer(text))
    other_texts = _SEQUENCE.sub("\0", text.replace("\0", "\\u0000")).split("\0")
    return "".join(chain.from_iterable(zip_longest(map(escape, other_texts), own_sequences, fillvalue="")))


def _open_descriptor(fd: int) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)), encoding="utf-8")


def build_escaping_stream(stream: TextIO) -> TextIO:
    """Return a stream that escapes text and writes it to the file descriptor of ``stream``."""
    stream.flush()
    # Without this, click would bypass this stream and write UTF-8.
    is_ascii = codecs.lookup(stream.encoding).name == "ascii"
    return _EscapingStream(
        io.BufferedWriter(_OutputFile(stream.fileno(), "wb", closefd=False)),
        encoding="utf-8" if is_ascii else stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
