"""Sending the fetches in a host's spool to the fetch log that several hosts share."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gitboot.background_threads import BackgroundThread
from gitboot.fetchlog.spool import aside, files, identity, spent
from gitboot.observe.batches import Writer, next_batch
from gitboot.observe.elsewhere import NotTaken, SpoolElsewhere
from gitboot.text import in_one_line

_logger = logging.getLogger(__name__)

_SENT_EVERY_S: Final = 0.5
_PAUSE_S: Final = 2.0  # after a failure
_LAST_S: Final = 2.0  # for what is being sent at the end
_LOCK: Final = "forwarding"


class Forwarder:
    """Sends what this host's spool holds to the shared fetch log, and deletes what arrived; in a thread.

    Of several processes that write to one spool, one sends. The database says how far it has each file, so that no line
    is lost or counted twice, whichever of the two restarts. A writer whose sync failed cuts its file off, perhaps after
    the database has taken the lines. Then the rest of the file counts as sent, and sending goes on at its end.
    """

    def __init__(self, folder: Path, shared: SpoolElsewhere) -> None:
        self._folder, self._shared = folder, shared
        self._places: dict[str, int] = {}  # by file: how many bytes of it have arrived
        self._stopping = threading.Event()
        self._thread = BackgroundThread(self._run, name="forwarder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout_s=_LAST_S)

    def _run(self) -> None:
        lock, pause_s, was_failing = None, 0.0, False
        while not self._stopping.wait(pause_s):
            self._shared.ping()
            try:
                lock = lock if lock is not None else _lock(self._folder)
                if lock is not None:
                    self.send()
                pause_s, was_failing = _SENT_EVERY_S, False
            except (OSError, NotTaken) as error:
                if not was_failing:
                    _logger.error("recorded fetches wait for %s: %s", self._shared.name, in_one_line(error))
                pause_s, was_failing = _PAUSE_S, True
        if lock is not None:
            os.close(lock)

    def send(self) -> None:
        """Send all that the spool holds by now. Raises OSError and `NotTaken`."""
        spool, there = identity(self._folder), files(self._folder)
        names = [path.stem for path in there]
        for path in there:
            writer = Writer(spool, path.stem)
            self._go_back_to_end(path, writer)
            # Of a file that this process does not know, the database is asked even if there is nothing to send.
            while (batch := next_batch(path, writer, self._place(path))).lines or path.name not in self._places:
                self._places[path.name] = self._shared.take(batch, names)
                self._go_back_to_end(path, writer)
        for path in spent(self._folder, self._places):
            path.unlink(missing_ok=True)
        self._places = {path.name: self._place(path) for path in there if path.exists()}

    def _go_back_to_end(self, path: Path, writer: Writer) -> None:
        """Go on at the end of a file that is shorter than the part of it that was sent."""
        place = self._place(path)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return
        if place > size:
            self._shared.go_back(writer, size)
            self._places[path.name] = size
            _logger.warning(
                "%s has %d bytes, and gitboot has sent %d bytes of it. It sends what is appended from now on.",
                *(path, size, place),
            )

    def _place(self, path: Path) -> int:
        """Return how many bytes of a file have arrived, as far as this process knows."""
        return self._places.get(path.name, 0)


def _lock(folder: Path) -> int | None:
    """Return a file that keeps other processes from sending until it is closed; None: another process sends."""
    aside(folder).mkdir(exist_ok=True)
    fd = os.open(aside(folder) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
