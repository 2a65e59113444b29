"""Devices for tests: a real disk that fails, and a terminal."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from gitboot.cli.terminal import print_event
from gitboot.standard_streams import build_escaping_stream
from gitboot.status.conditions import Event

# A real disk that fails: ext4 on a loop device, whose blocks are in a small tmpfs that can be filled.


@dataclass(frozen=True)
class FailingDisk:
    """A disk that can fail: the kernel then accepts writes and rejects every sync."""

    path: Path
    _filler: Path

    def fail(self) -> None:
        fill(self._filler)

    def heal(self) -> None:
        self._filler.unlink()


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


@contextmanager
def small_disk(folder: Path, size: str = "1m", name: str = "small") -> Iterator[Path]:
    """Mount a tmpfs that can be filled while the block runs; skip the test if mounting is not allowed."""
    path = folder / name
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    try:
        yield path
    finally:
        _run("umount", "--lazy", path)


def _run(*command: object) -> None:
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk can be mounted here: {error}")


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """Mount a failing disk while the block runs; skip the test if mounting is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    below, path = folder / "below", folder / "disk"
    below.mkdir()
    path.mkdir()
    with ExitStack() as stack:
        _run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", below)
        stack.callback(_run, "umount", "--lazy", below)
        image = below / "image"
        with image.open("wb") as file:
            file.truncate(128 * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0", image)
        _run("mount", "-o", "loop", image, path)
        stack.callback(_run, "umount", "--lazy", path)
        yield FailingDisk(path, below / "filler")


# A terminal, and what it is sent.

COLUMNS: Final = 60


def show_events(*events: Event) -> str:
    """Return the bytes that a terminal of 60 columns receives for these events."""
    with terminal() as sent:
        for event in events:
            print_event(event)
    return sent[0]


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Let standard error be a terminal of 60 columns; what it was sent is there at the end, and is little."""
    screen, written = os.openpty()
    tty.setraw(written)
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    sent: list[str] = []
    with open(written, "w") as stderr, redirect_stderr(build_escaping_stream(stderr)):
        yield sent
    sent.append(read_to_end(screen).decode())


def read_to_end(source: int) -> bytes:
    """Return everything that a terminal or a pipe received until its last writer closed it; close `source`.

    The kernel may deliver less than was written at a time: for a terminal, as little as one write.
    """
    text = b""
    with open(source, "rb", buffering=0) as file, suppress(OSError):  # a terminal ends by EIO
        while part := file.read(1 << 16):
            text += part
    return text
