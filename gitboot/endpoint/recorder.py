"""Recorder of fetches and of unknown machines, and whether it can record."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from gitboot.background_threads import BackgroundThread
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.log_entries import Observation, Outcome, client_network
from gitboot.fetchlog.one_time_boots import (
    MOST_ADDRESSES,
    MOST_FETCHES,
    OTHERS,
    BatchRejected,
    FetchLogUnavailable,
    ServedBoot,
    ServedBoots,
    find_secret,
    is_lease,
    merge_served_boots,
    read_claims,
)
from gitboot.fetchlog.spool import (
    Spool,
    Writer,
    check_writable,
    count_deletions,
    endpoint_folder,
    find_read_files,
    list_files,
    read_batch,
    read_or_create_identity,
)
from gitboot.files import lock_file, open_lock
from gitboot.render.paths import Role, find_path_kind
from gitboot.status.conditions import Event
from gitboot.text import format_error

if TYPE_CHECKING:
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_TRIED_EVERY_S: Final = 10.0  # while nothing else is written


class SpoolRecorder:
    """Records each fetch within a deadline, and what became of each intent; knows what was given, by whichever process.

    Where something could not be written, nothing counts as recordable until a write was seen to stand again.
    """

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s
        self._served_boots = ServedBoots(spool.folder)
        self.repeated, self.intents = RepeatedFetches(), OpenIntents(spool)
        self._last_written_s = -math.inf  # when something was last seen to stand, by a clock that only goes forward
        self._trial: tuple[float, Future[None]] | None = None  # since when something is tried out
        self.serving_identity: str | None = None  # the identity of the spool, as it was at the last look
        self.withheld_reason: str | None = None  # why no boot that writes a disk may be served, likewise
        self.deletion_count = 0  # how often it had forgotten something by then
        self.failure: str | None = None  # why nothing can be recorded; None: it can, as far as is known

    async def record(self, observation: Observation, serving_identity: str | None = None) -> bool:
        """Return whether the fetch is recorded in time, for the instance of a tree that names this ``giver``.

        An intent that may be recorded though this returns False is followed by `withheld`. The instance of another
        giver does not read this spool. A fetch of a secret that is one of many by its client is counted, and recorded
        within a minute.
        """
        if serving_identity is not None and self.serving_identity is None:  # the spool was not looked at yet
            with suppress(TimeoutError, FetchLogUnavailable):
                await self._call_in_time("", lambda: None)
        if serving_identity not in (None, self.serving_identity):
            return False
        if (counted := self.repeated.count(observation, time.monotonic())) is None:
            return True
        if not (is_recorded := await self._write_in_time(counted)):
            self.repeated.put_back(counted)
        return is_recorded

    async def _write_in_time(self, observation: Observation) -> bool:
        """Return whether an observation was written in time; withhold an intent that may have been, or may yet be."""
        written = self._spool.record(observation)
        pending = asyncio.wrap_future(written)
        pending.add_done_callback(_consume_result)
        done, _ = await asyncio.wait([pending], timeout=self._deadline_s)
        if not done:
            self._note_result(TimeoutError())
            _logger.error("a fetch of %s was not recorded within %s s", observation.server, self._deadline_s)
            if written.cancel() and not observation.may_serve_unrecorded:
                return False
        else:
            self._note_result(error := written.exception())
            if error is None:
                self.intents.add(observation)
                return True
            _logger.error("a fetch of %s could not be recorded: %s", observation.server, error)
        self.intents.withhold(observation)
        return False

    async def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        """How a boot was given; None: it was not. Raises `Unrecordable` where that is not known in time."""
        return await self._call_in_time(server, partial(self._served_boots.find, server, offer, report))

    async def has_installer_reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given. Raises `Unrecordable` likewise."""
        return await self._call_in_time(server, partial(self._served_boots.has_installer_reported, server, token))

    async def _call_in_time(self, server: str, function: Callable[[], _T]) -> _T:
        def look() -> _T:
            self._read_spool_state()
            return function()

        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._spool.run_in_writer(look)), self._deadline_s)
        except OSError as error:
            self._note_result(error)
            _logger.error("what was given to %s cannot be read: %r", server, error)
            raise FetchLogUnavailable from error

    def check(self) -> None:
        """See whether anything could be recorded, where that is not known from what was; it is not waited for."""
        now_s = time.monotonic()
        self._write_counted(self.repeated.take_due(now_s))
        self.intents.retry_writes()
        if self._trial is None:
            if self.failure is not None or now_s - self._last_written_s >= _TRIED_EVERY_S:
                self._trial = now_s, self._spool.run_in_writer(self._try_writing)
            return
        since_s, trial = self._trial
        if trial.done():
            self._trial = None
            self._note_result(trial.exception())
        elif now_s - since_s > self._deadline_s:
            self._note_result(TimeoutError())

    def flush(self) -> None:
        """Leave to the spool what was only counted until now, and the outcomes that it has not taken."""
        self._write_counted(self.repeated.take_due(math.inf))
        self.intents.retry_writes()

    def _write_counted(self, observations: Iterable[Observation]) -> None:
        for each in observations:
            # It was answered without lines of its own, and perhaps not wholly. A report has no intent.
            plain = replace(each, intent=None, is_evidence=each.is_evidence and each.intent is None)
            self._spool.record(plain).add_done_callback(partial(self._put_back_failed, each))

    def _put_back_failed(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self.repeated.put_back(observation)

    async def wait_for_check(self) -> None:
        """Look, and wait within the deadline for what that shows."""
        self.check()
        if self._trial is not None:
            waited = asyncio.wrap_future(self._trial[1])
            waited.add_done_callback(_consume_result)
            await asyncio.wait([waited], timeout=self._deadline_s)
            self.check()

    def _read_spool_state(self) -> None:
        folder = self._spool.folder
        self.serving_identity, self.deletion_count = read_or_create_identity(folder), count_deletions(folder)
        self.withheld_reason = next((str(claim) for claim in read_claims((folder,), folder)), None)

    def _try_writing(self) -> None:
        self._read_spool_state()
        check_writable(self._spool.folder)

    def _note_result(self, error: BaseException | None) -> None:
        if error is None:
            self._last_written_s, self.failure = time.monotonic(), None
        elif isinstance(error, TimeoutError):
            self.failure = f"{self._spool.folder} takes nothing within {self._deadline_s:g} s"
        else:
            self.failure = f"{self._spool.folder} cannot be written: {getattr(error, 'strerror', None) or error}"


def _consume_result(written: asyncio.Future[None]) -> None:
    """Take out what was not waited for, so that nobody is told that nobody did: it is told what came of the fetch."""
    if not written.cancelled():
        written.exception()


class SharedRecorder:
    """Records as `Recording` does: one-time boots in the shared fetch log, all else in this host's spool."""

    def __init__(self, spool_recorder: SpoolRecorder, fetch_log: SharedFetchLog, deadline_s: float) -> None:
        self._spool_recorder, self._fetch_log, self._deadline_s, self.intents = (
            spool_recorder,
            fetch_log,
            deadline_s,
            spool_recorder.intents,
        )

    @property
    def serving_identity(self) -> str | None:
        return self._fetch_log.serving_identity

    @property
    def deletion_count(self) -> int:
        return self._fetch_log.deletion_count

    @property
    def failure(self) -> str | None:
        if self._spool_recorder.failure is not None or self._fetch_log.failure is None:
            return self._spool_recorder.failure
        return f"{self._fetch_log.name} does not take it: {self._fetch_log.failure}"

    @property
    def withheld_reason(self) -> str | None:
        return self._spool_recorder.withheld_reason

    async def record(self, observation: Observation, serving_identity: str | None = None) -> bool:
        """Return whether the fetch is recorded, where it has to be.

        A tree whose ``giver`` is a spool belongs to an instance without a shared ledger, which would not read it.
        """
        if serving_identity is not None and not is_lease(serving_identity):
            return False
        kind = find_path_kind(observation.path)
        if observation.offer is None or (kind is not None and kind.role is Role.REPORT):
            return await self._spool_recorder.record(observation)
        repeated = self._spool_recorder.repeated
        if (counted := repeated.count(observation, time.monotonic())) is None:
            return True
        given_up = threading.Event()
        try:
            await self._call_in_time(partial(self._fetch_log.record, counted, serving_identity, given_up.is_set))
        except FetchLogUnavailable:  # the thread goes on, and the database may have the intent or still get it
            given_up.set()
            self.intents.withhold(counted)
            repeated.put_back(counted)
            return False
        self.intents.add(counted)
        return True

    async def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        """Return how a boot was served, by any host; a line that this host has not sent yet counts as well."""
        served = await self._call_in_time(partial(self._fetch_log.find_served_boot, server, offer, report))
        return merge_served_boots(await self._spool_recorder.find_served_boot(server, offer, report), served)

    async def has_installer_reported(self, server: str, token: str) -> bool:
        is_done = await self._call_in_time(partial(self._fetch_log.has_installer_reported, server, token))
        return is_done or await self._spool_recorder.has_installer_reported(server, token)

    async def wait_for_check(self) -> None:
        await self._spool_recorder.wait_for_check()
        await asyncio.to_thread(self._fetch_log.ping)

    def check(self) -> None:
        """Check whether this host could record a fetch; `Forwarder` asks the database."""
        self._spool_recorder.check()

    async def _call_in_time(self, function: Callable[[], _T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.to_thread(function), self._deadline_s)
        except TimeoutError as error:
            raise FetchLogUnavailable from error


# Repeated fetches of secrets


class _FetchCounter:
    """The fetches of one secret by one address, as one endpoint has recorded and counted them."""

    __slots__ = ("recorded", "recorded_s", "waiting", "waiting_times")

    def __init__(self) -> None:
        self.recorded = 0  # fetches that lines of the spool stand for
        self.recorded_s = 0.0  # when the last line was written, by a clock that only goes forward
        self.waiting: Observation | None = None  # the last fetch that no line stands for
        self.waiting_times = 0

    def take(self, now_s: float) -> Observation | None:
        """Return what waits, as one observation; nothing waits then."""
        waiting, times = self.waiting, self.waiting_times
        if waiting is None:
            return None
        self.waiting, self.waiting_times = None, 0
        self.recorded, self.recorded_s = self.recorded + times, now_s
        return replace(waiting, times=times)


class RepeatedFetches:
    """Lets the first fetches of each secret through, and counts the others for one line a minute; from any thread.

    A client that fetches a secret all the time would else fill the spool, which has the fetches of all servers. The
    count is in memory: an endpoint that is killed loses at most a minute of it, and no address.
    """

    _EVERY_S: Final = 60.0
    _MOST: Final = 4096  # secrets

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._secrets: OrderedDict[tuple[str, str, str, bool], dict[str, _FetchCounter]] = (
            OrderedDict()
        )  # last used last
        self._evicted: list[Observation] = []  # what waited for a secret that is not known any more

    def count(self, observation: Observation, now_s: float) -> Observation | None:
        """Return what to record now, with how many fetches it stands for; None: it waits, and was counted."""
        secret = find_secret(observation.path)
        if secret is None:
            return observation
        with self._lock:
            counted = self._find_counter(observation, secret)
            counted.waiting, counted.waiting_times = observation, counted.waiting_times + 1
            is_due = counted.recorded <= MOST_FETCHES or now_s - counted.recorded_s >= self._EVERY_S
            return counted.take(now_s) if is_due else None

    def take_due(self, now_s: float) -> list[Observation]:
        """Return what has waited for a minute, to be recorded now; all that waits at the end of time, ``math.inf``."""
        with self._lock:
            left, self._evicted = self._evicted, []
            due = (
                counted.take(now_s)
                for addresses in self._secrets.values()
                for counted in addresses.values()
                if counted.waiting is not None and now_s - counted.recorded_s >= self._EVERY_S
            )
            return [*left, *(each for each in due if each is not None)]

    def put_back(self, observation: Observation) -> None:
        """Count what could not be recorded, so that the next fetch by its client is recorded at once with it."""
        if (secret := find_secret(observation.path)) is None:
            return
        with self._lock:
            counted = self._find_counter(observation, secret)
            counted.recorded, counted.recorded_s = counted.recorded - observation.times, float("-inf")
            if observation.times > 1:  # the fetch that could not be recorded was perhaps not answered
                counted.waiting, counted.waiting_times = observation, counted.waiting_times + observation.times - 1

    def _find_counter(self, observation: Observation, secret: str) -> _FetchCounter:
        key = observation.server, str(observation.digest), secret, observation.is_evidence
        addresses = self._secrets.setdefault(key, {})
        self._secrets.move_to_end(key)
        if len(self._secrets) > self._MOST:
            _, oldest = self._secrets.popitem(last=False)
            self._evicted += filter(None, (each.take(0.0) for each in oldest.values()))
        address = client_network(observation.client)
        if address not in addresses and len(addresses) >= MOST_ADDRESSES:
            address = OTHERS
        return addresses.setdefault(address, _FetchCounter())


# Outcomes of intents

_MAX_UNWRITTEN: Final = (
    4096  # outcomes that wait to be written; an outcome that is dropped stays unknown, which is safe
)


class OpenIntents:
    """Records the outcome of each intent in a spool, and tries again until it is written; from any thread."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: dict[str, Observation] = {}  # by id
        self._unwritten: deque[Observation] = deque(maxlen=_MAX_UNWRITTEN)  # outcomes whose last write has failed

    def add(self, observation: Observation) -> None:
        """Note that an observation is recorded and that `conclude` follows, if it is an intent."""
        if observation.intent is not None:
            self._open[observation.intent] = observation

    def withhold(self, observation: Observation) -> None:
        """Record that nothing is served, if the observation is an intent. It may be in the log, or still get there.

        If it is answered all the same, add it: `conclude` follows.
        """
        if observation.may_serve_unrecorded:
            self.add(observation)
        elif observation.intent is not None:
            self._write(replace(observation, outcome=Outcome.WITHHELD))

    def conclude(self, intent: str, outcome: Outcome | None) -> None:
        """Record what became of an intent that was added; None: that stays unknown. For any other id, do nothing.

        This returns at once. If the process ends before the outcome is written, the outcome stays unknown.
        """
        if (intended := self._open.pop(intent, None)) is not None and outcome is not None:
            self._write(replace(intended, outcome=outcome))

    def retry_writes(self) -> None:
        """Try again to write the outcomes whose last write has failed."""
        for _ in range(len(self._unwritten)):
            with suppress(IndexError):  # another thread was first
                self._write(self._unwritten.popleft())

    def _write(self, observation: Observation) -> None:
        self._spool.record(observation).add_done_callback(partial(self._keep_if_failed, observation))

    def _keep_if_failed(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self._unwritten.append(observation)


Recorder = SpoolRecorder | SharedRecorder
# Whether machines are well answered here, or better sent to another endpoint

_NOT_PUBLISHED: Final = "nothing is published yet"


def find_unready_reason(tree: PublishedTree, recorder: Recorder | None) -> str | None:
    """Why machines are better sent to another endpoint, in words; None: this one gives what there is to give.

    Where no spool is named nobody gives what is made once, and no other endpoint does better.
    """
    if not tree.is_ready:
        return "the tree is prepared for a host that does not act yet" if tree.terms.is_prepared else _NOT_PUBLISHED
    if (doubt := tree.clock.problem) is not None:
        return f"{doubt}: no boot that writes a disk is given"
    terms = tree.terms
    if recorder is None:
        if terms.fetch_log_id is None or terms.forwards_machines:
            return None
        return (
            "this endpoint has no spool, and the Fleet names no endpoint to send machines on to: no boot that is made "
            "once is given"
        )
    if recorder.withheld_reason is not None:
        return f"{recorder.withheld_reason}: no boot that writes a disk is served"
    if recorder.failure is not None:
        return f"nothing can be recorded: {recorder.failure}: no boot that is made once is given"
    if terms.fetch_log_id is not None and (tree.is_foreign or recorder.serving_identity != terms.fetch_log_id):
        return "the tree names another spool than this endpoint's: no boot that is made once is given"
    if recorder.deletion_count > terms.loss_count:
        return "the tree is older than what the spool has forgotten: no boot that is made once is given"
    return None


class ReadinessEvents:
    """Announces that an endpoint is ready no more, and why, and that it is again."""

    def __init__(self) -> None:
        self._is_ready = True

    def update(self, unready_reason: str | None, at: datetime) -> Event | None:
        was_ready, self._is_ready = self._is_ready, unready_reason is None
        if self._is_ready is was_ready:
            return None
        if unready_reason is None:
            return Event(at=at, type="Ready", message="every boot is given that there is to give")
        return Event(at=at, type="NotReady", message=unready_reason, warning=True)


_SEND_INTERVAL_S: Final = 0.5
_PAUSE_S: Final = 2.0  # after a failure
_END_TIMEOUT_S: Final = 2.0  # for what is being sent at the end
_LOCK: Final = "forwarding"


class Forwarder:
    """Sends what this host's spool holds to the shared fetch log, and deletes what arrived; in a thread.

    Of several processes that write to one spool, one sends. The database says how far it has each file, so that no line
    is lost or counted twice, whichever of the two restarts. A writer whose sync failed cuts its file off, perhaps after
    the database has taken the lines. Then the rest of the file counts as sent, and sending goes on at its end.
    """

    def __init__(self, folder: Path, fetch_log: SharedFetchLog) -> None:
        self._folder, self._fetch_log = folder, fetch_log
        self._places: Counter[str] = Counter()  # by file: how many bytes of it have arrived, as far as this one knows
        self._stopping = threading.Event()
        self._thread = BackgroundThread(self._run, name="forwarder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout_s=_END_TIMEOUT_S)

    def _run(self) -> None:
        lock, pause_s, was_failing = None, 0.0, False
        while not self._stopping.wait(pause_s):
            self._fetch_log.ping()
            try:
                lock = lock if lock is not None else _lock_spool(self._folder)
                if lock is not None:
                    self.send()
                pause_s, was_failing = _SEND_INTERVAL_S, False
            except (OSError, BatchRejected) as error:
                if not was_failing:
                    _logger.error("recorded fetches wait for %s: %s", self._fetch_log.name, format_error(error))
                pause_s, was_failing = _PAUSE_S, True
        if lock is not None:
            os.close(lock)

    def send(self) -> None:
        """Send all that the spool holds by now. Raises OSError and `NotTaken`."""
        spool, spool_files = read_or_create_identity(self._folder), list_files(self._folder)
        names = [path.stem for path in spool_files]
        for path in spool_files:
            writer = Writer(spool, path.stem)
            self._go_back_to_end(path, writer)
            # Of a file that this process does not know, the database is asked even if there is nothing to send.
            while (batch := read_batch(path, writer, self._places[path.name])).lines or path.name not in self._places:
                self._places[path.name] = self._fetch_log.receive_batch(batch, names)
                self._go_back_to_end(path, writer)
        for path in find_read_files(self._folder, self._places):
            path.unlink(missing_ok=True)
        self._places = Counter({path.name: self._places[path.name] for path in spool_files if path.exists()})

    def _go_back_to_end(self, path: Path, writer: Writer) -> None:
        """Go on at the end of a file that is shorter than the part of it that was sent."""
        place = self._places[path.name]
        with suppress(FileNotFoundError):
            if place > (size := path.stat().st_size):
                self._fetch_log.reset_place(writer, size)
                self._places[path.name] = size
                _logger.warning(
                    "%s has %d bytes, and gitboot has sent %d bytes of it. It sends what is appended from now on.",
                    *(path, size, place),
                )


def _lock_spool(folder: Path) -> int | None:
    """Return a file that keeps other processes from sending until it is closed; None: another process sends."""
    endpoint_folder(folder).mkdir(exist_ok=True)
    fd = open_lock(endpoint_folder(folder) / _LOCK, mode=0o640)
    if lock_file(fd):
        return fd
    os.close(fd)
    return None
