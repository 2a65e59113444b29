"""Fetches of a host that shares its instance's PostgreSQL ledger: recorded there, or here first and sent there.

A fetch of a one-time boot is recorded in the database before it is answered, so that all hosts together serve the boot
once; while the database does not answer, such a boot is withheld. Every other fetch (data, reports, boots under Always)
is recorded in this host's own spool before it is answered, and sent to the database from there.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from gitboot.background_threads import BackgroundThread
from gitboot.observe.batches import ForwardedBatch, Writer, next_batch
from gitboot.observe.elsewhere import NotTaken, SpoolElsewhere, Unrecordable, is_lease
from gitboot.observe.given import Given
from gitboot.observe.observation import Observation
from gitboot.observe.spool import aside, files, identity, spent
from gitboot.phrases import in_one_line
from gitboot.render.paths import Role, kind_of
from gitboot.serve.recording import Recording

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

_SENT_EVERY_S: Final = 0.5
_PAUSE_S: Final = 2.0  # after a failure
_LAST_S: Final = 2.0  # for what is being sent at the end
_LOCK: Final = "forwarding"


class ForwardedRecording:
    """Records as `Recording` does: one-time boots in the shared fetch log, all else in this host's spool."""

    def __init__(self, own: Recording, shared: SpoolElsewhere, deadline_s: float) -> None:
        self._own, self._shared, self._deadline_s = own, shared, deadline_s

    @property
    def giver(self) -> str | None:
        return self._shared.giver

    @property
    def forgotten(self) -> int:
        return self._shared.forgotten

    @property
    def failure(self) -> str | None:
        if self._own.failure is not None or self._shared.failure is None:
            return self._own.failure
        return f"{self._shared.name} does not take it: {self._shared.failure}"

    @property
    def withheld(self) -> str | None:
        return self._own.withheld

    async def record(self, observation: Observation, giver: str | None = None) -> bool:
        """Return whether the fetch is recorded, where it has to be.

        A tree whose ``giver`` is a spool belongs to an instance without a shared ledger, which would not read it.
        """
        if giver is not None and not is_lease(giver):
            return False
        kind = kind_of(observation.path)
        if observation.offer is None or (kind is not None and kind.role is Role.REPORT):
            return await self._own.record(observation)
        repeated = self._own.repeated
        if (counted := repeated.take(observation, time.monotonic())) is None:
            return True
        with suppress(Unrecordable):
            await self._in_time(partial(self._shared.record, counted, giver))
            return True
        repeated.put_back(counted)
        return False

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """Return how a boot was served, by any host; a report that this host has not sent yet counts as well."""
        given = await self._in_time(partial(self._shared.given, server, offer, report))
        return await self._own.given(server, offer, report) or given

    async def reported(self, server: str, token: str) -> bool:
        """Return whether an installer has reported since its boot was served."""
        is_done = await self._in_time(partial(self._shared.reported, server, token))
        return is_done or await self._own.reported(server, token)

    async def settle(self) -> None:
        """Find out whether a fetch can be recorded."""
        await self._own.settle()
        await asyncio.to_thread(self._shared.ping)

    def look(self) -> None:
        """Check whether this host could record a fetch; `Forwarder` asks the database."""
        self._own.look()

    async def _in_time(self, ask: Callable[[], _T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.to_thread(ask), self._deadline_s)
        except TimeoutError as error:
            raise Unrecordable from error


Recorder = Recording | ForwardedRecording


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
