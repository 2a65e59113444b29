"""A terminal, and what it is sent."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from contextlib import redirect_stderr, suppress
from typing import Final

from gitboot.cli.telling import tell
from gitboot.status import Event

COLUMNS: Final = 60


def shown(*events: Event) -> str:
    """What a terminal of 60 columns is sent, byte by byte, where these events are told."""
    screen, written = os.openpty()
    tty.setraw(written)
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with open(written, "w") as stderr, redirect_stderr(stderr):
        for event in events:
            tell(event)
    text = b""
    with open(screen, "rb", buffering=0) as reading, suppress(OSError):  # EIO: whoever wrote is gone, and all is read
        while part := reading.read(1 << 16):
            text += part
    return text.decode()
