"""Sending the fetches in a host's spool to the fetch log that several hosts share."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gitboot.background_threads import BackgroundThread
from gitboot.observe.batches import ForwardedBatch, Writer, next_batch
from gitboot.observe.elsewhere import NotTaken, SpoolElsewhere
from gitboot.observe.spool import aside, files, identity, spent
from gitboot.phrases import in_one_line

_logger = logging.getLogger(__name__)

_SENT_EVERY_S: Final = 0.5
_PAUSE_S: Final = 2.0  # after a failure
_LAST_S: Final = 2.0  # for what is being sent at the end
_LOCK: Final = "forwarding"


class Forwarder:
    """Sends what this host's spool holds to the shared fetch log, and deletes what arrived; in a thread.

    Of several processes that write to one spool, one sends. The database says how far it has each file, so that no line
    is lost or counted twice, whichever of the two restarts.
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
            while (batch := next_batch(path, writer, self._places.get(path.name, 0))).lines:
                self._places[path.name] = self._send(batch, names, path.stat().st_size)
        for path in spent(self._folder, self._places):
            path.unlink(missing_ok=True)
        self._places = {path.name: self._places.get(path.name, 0) for path in there if path.exists()}

    def _send(self, batch: ForwardedBatch, names: Collection[str], size: int) -> int:
        place = self._shared.take(batch, names)
        if place > size:
            raise NotTaken("what it answers is no place in that file")
        return place


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
