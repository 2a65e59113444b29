"""A terminal, and what it is sent."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Final

from gitboot.cli.terminal import tell
from gitboot.standard_streams import guarded
from gitboot.status.events import Event

COLUMNS: Final = 60


def shown(*events: Event) -> str:
    """What a terminal of 60 columns is sent, byte by byte, where these events are told."""
    with terminal() as sent:
        for event in events:
            tell(event)
    return sent[0]


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Let standard error be a terminal of 60 columns; what it was sent is there at the end, and is little."""
    screen, written = os.openpty()
    tty.setraw(written)
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    sent: list[str] = []
    with open(written, "w") as stderr, redirect_stderr(guarded(stderr)):
        yield sent
    sent.append(read_to_end(screen).decode())


def read_to_end(source: int) -> bytes:
    """Return all that a terminal or a pipe was sent, once nobody can write to it any more; closes `source`.

    The kernel may hand over less than was written: of a terminal, as little as one write.
    """
    text = b""
    with open(source, "rb", buffering=0) as reading, suppress(OSError):  # a terminal ends by EIO
        while part := reading.read(1 << 16):
            text += part
    return text
