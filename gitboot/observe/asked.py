"""Word of unknown machines on its way to the instance: a file of each writer in the spool, taken whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines, parse_unknown, render_unknown
from gitboot.files import write_whole

SUFFIX: Final = ".unknown"
_MOST_FILES: Final = 64  # of writers that have ended, say, while no instance takes them
MOST_BYTES: Final = 8 * 1024 * 1024  # as much as a full table, each machine with its inventory


class UnknownAsked:
    """What one writer has noted since the instance took its last file; from any thread.

    There is one file of it at most: what comes meanwhile waits in a table that is bounded, too. One that is lost costs
    no more than a line of a list.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._name = folder, f"{os.getpid()}-{token_hex(8)}{SUFFIX}"
        self._lock = threading.Lock()
        self._table = UnknownMachines()
        self.requests = 0  # of machines that no document describes

    def note(self, machine: UnknownMachine) -> None:
        """Take note of one that has asked."""
        with self._lock:
            self.requests += machine.times
            self._table.add(machine)

    @property
    def is_left(self) -> bool:
        """Whether an instance comes to know of it at all."""
        return self._folder is not None

    def leave(self) -> None:
        """Leave what has come for the instance, if it has taken what was left before; a full disk loses nothing."""
        with self._lock:
            if self._folder is None or not (self._table.machines or self._table.unkept):
                return
            path = self._folder / self._name
            with suppress(OSError):
                if path.exists() or len(list(self._folder.glob(f"*{SUFFIX}"))) >= _MOST_FILES:
                    return
                write_whole(path, render_unknown(self._table), mode=0o640)
                self._table = UnknownMachines()


class UnknownLeft(NamedTuple):
    """What a writer has left."""

    path: Path
    table: UnknownMachines


def unknown_left(folder: Path) -> Iterator[UnknownLeft]:
    """What writers have left in a spool; each is to be deleted once it stands elsewhere. Raises nothing."""
    with suppress(OSError):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            with suppress(OSError):
                table = UnknownMachines()
                if path.stat().st_size <= MOST_BYTES:
                    table = parse_unknown(path.read_bytes())
                yield UnknownLeft(path, table)
