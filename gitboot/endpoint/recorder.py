"""Fetch recorder: write fetches to the spool or the shared fetch log, and check whether the endpoint is ready."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from gitboot.background_threads import BackgroundThread
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.log_entries import Observation, Outcome, get_client_network
from gitboot.fetchlog.one_time_boots import (
    MAX_ADDRESSES,
    MAX_FETCHES,
    OTHERS,
    BatchRejected,
    FetchLogUnavailable,
    ServedBoot,
    ServedBoots,
    find_secret,
    is_lease_identity,
    merge_served_boots,
    read_claims,
)
from gitboot.fetchlog.spool import (
    Spool,
    SpoolWriter,
    check_writable,
    count_deletions,
    find_finished_files,
    get_endpoint_folder,
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
_TRIAL_INTERVAL_S: Final = 10.0  # how often gitboot tests the spool while it writes no fetches
# the maximum number of outcomes to write later; it is safe to drop an outcome, because it then stays unknown
_MAX_UNWRITTEN: Final = 4096
_SEND_INTERVAL_S: Final = 0.5
_PAUSE_S: Final = 2.0  # how long `Forwarder` waits after a failure
_END_TIMEOUT_S: Final = 2.0  # the time limit for the last batch when gitboot ends


class SpoolRecorder:
    """Records fetches and the outcomes of intents in a spool. A write must succeed within a deadline.

    The recorder also finds the boots that any process has served. After a failed write, gitboot treats the spool as
    unusable until a write succeeds again.
    """

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s
        self._served_boots = ServedBoots(spool.folder)
        self.repeated, self.intents = RepeatedFetches(), OpenIntents(spool)
        self._last_written_s = -math.inf  # the monotonic time of the last successful write
        self._trial: tuple[float, Future[None]] | None = None  # the start of a trial write, and its result
        self.serving_identity: str | None = None  # the identity of the spool at the last check
        self.withheld_reason: str | None = None  # why gitboot must not serve install boots, according to the last check
        self.deletion_count = 0  # how often the spool had deleted fetches before the last check
        self.failure: str | None = None  # why gitboot cannot record fetches; None: there is no known problem

    async def record(self, observation: Observation, serving_identity: str | None = None) -> bool:
        """Record a fetch, and return whether the write succeeded in time.

        ``serving_identity`` is the spool or lease that the output tree names. If the tree names another spool, the
        tree's instance does not read this recorder's spool, so the result is False. If the result is False although the
        write may have succeeded, the recorder calls `OpenIntents.record_withheld`. If a client fetches a secret
        repeatedly, gitboot counts these fetches, and records them together within a minute.
        """
        if serving_identity is not None and self.serving_identity is None:  # gitboot has not checked the spool yet
            with suppress(TimeoutError, FetchLogUnavailable):
                await self._call_with_timeout("", lambda: None)
        if serving_identity not in (None, self.serving_identity):
            return False
        if (counted := self.repeated.count(observation, time.monotonic())) is None:
            return True
        is_recorded = await self._write_with_timeout(counted)
        if not is_recorded:
            self.repeated.restore_count(counted)
        return is_recorded

    async def _write_with_timeout(self, observation: Observation) -> bool:
        """Write an observation, and return whether the write succeeded in time.

        If a failed write may still take effect, record that gitboot withheld the boot.
        """
        written = self._spool.record(observation)
        pending = asyncio.wrap_future(written)
        pending.add_done_callback(_ignore_exception)
        done, _ = await asyncio.wait([pending], timeout=self._deadline_s)
        error = written.exception() if done else TimeoutError()
        self._store_result(error)
        if error is None:
            self.intents.add(observation)
            return True
        if done:
            _logger.error("the spool could not record a fetch for %s: %s", observation.server, error)
        else:
            _logger.error("the spool did not record a fetch for %s within %s s", observation.server, self._deadline_s)
            if written.cancel() and not observation.may_serve_unrecorded:
                return False
        self.intents.record_withheld(observation)
        return False

    async def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        """Return the record of a served boot, or None if the boot was not served.

        Raises `FetchLogUnavailable` if the spool cannot be read in time.
        """
        return await self._call_with_timeout(server, partial(self._served_boots.find, server, offer, report))

    async def has_installer_reported(self, server: str, token: str) -> bool:
        """Return whether an installer has sent a report since its boot was served.

        Raises `FetchLogUnavailable` if the spool cannot be read in time.
        """
        return await self._call_with_timeout(server, partial(self._served_boots.has_installer_reported, server, token))

    async def _call_with_timeout(self, server: str, function: Callable[[], _T]) -> _T:
        def read_and_call() -> _T:
            self._read_spool_state()
            return function()

        try:
            return await asyncio.wait_for(
                asyncio.wrap_future(self._spool.run_in_writer(read_and_call)), self._deadline_s
            )
        except OSError as error:
            self._store_result(error)
            _logger.error("cannot read the boots that endpoints served to %s: %r", server, error)
            raise FetchLogUnavailable from error

    def check(self) -> None:
        """Start to check whether gitboot can record fetches, unless a recent write has already proved this.

        This method does not wait for the result of the check.
        """
        now_s = time.monotonic()
        self._write_counted_fetches(self.repeated.take_due_observations(now_s))
        self.intents.retry_writes()
        if self._trial is None:
            if self.failure is not None or now_s - self._last_written_s >= _TRIAL_INTERVAL_S:
                self._trial = now_s, self._spool.run_in_writer(self._try_writing)
            return
        since_s, trial = self._trial
        if trial.done():
            self._trial = None
            self._store_result(trial.exception())
        elif now_s - since_s > self._deadline_s:
            self._store_result(TimeoutError())

    def flush(self) -> None:
        """Write the fetches that were only counted so far, and the remaining outcomes, to the spool."""
        self._write_counted_fetches(self.repeated.take_due_observations(math.inf))
        self.intents.retry_writes()

    def _write_counted_fetches(self, observations: Iterable[Observation]) -> None:
        for observation in observations:
            # gitboot served these fetches, perhaps incompletely, without an intent. A report has no intent either.
            is_evidence = observation.is_evidence and observation.intent is None
            written = self._spool.record(replace(observation, intent=None, is_evidence=is_evidence))
            written.add_done_callback(partial(self._restore_count_if_failed, observation))

    def _restore_count_if_failed(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self.repeated.restore_count(observation)

    async def wait_for_check(self) -> None:
        """Check whether gitboot can record fetches, and wait for the result until the deadline."""
        self.check()
        if self._trial is not None:
            pending = asyncio.wrap_future(self._trial[1])
            pending.add_done_callback(_ignore_exception)
            await asyncio.wait([pending], timeout=self._deadline_s)
            self.check()

    def _read_spool_state(self) -> None:
        folder = self._spool.folder
        identity, deletion_count = read_or_create_identity(folder), count_deletions(folder)
        self.serving_identity, self.deletion_count = identity, deletion_count
        self.withheld_reason = next((str(claim) for claim in read_claims((folder,), folder)), None)

    def _try_writing(self) -> None:
        self._read_spool_state()
        check_writable(self._spool.folder)

    def _store_result(self, error: BaseException | None) -> None:
        if error is None:
            self._last_written_s = time.monotonic()
            self.failure = None
        elif isinstance(error, TimeoutError):
            self.failure = f"{self._spool.folder}: a write did not finish within {self._deadline_s:g} s"
        else:
            self.failure = f"{self._spool.folder} cannot be written: {getattr(error, 'strerror', None) or error}"


def _ignore_exception(future: asyncio.Future[None]) -> None:
    """Read the result of a future that completed too late, so that asyncio does not log an unretrieved exception."""
    if not future.cancelled():
        future.exception()


class SharedRecorder:
    """Records the fetches of one-time boots in the shared fetch log, and all other fetches in this host's spool."""

    def __init__(self, spool_recorder: SpoolRecorder, fetch_log: SharedFetchLog, deadline_s: float) -> None:
        self._spool_recorder, self._fetch_log, self._deadline_s = spool_recorder, fetch_log, deadline_s
        self.intents = spool_recorder.intents

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
        return f"{self._fetch_log.name} cannot be used: {self._fetch_log.failure}"

    @property
    def withheld_reason(self) -> str | None:
        return self._spool_recorder.withheld_reason

    async def record(self, observation: Observation, serving_identity: str | None = None) -> bool:
        """Record a fetch, and return whether the write succeeded in time.

        If ``serving_identity``, which the output tree names, is a spool, the result is False. The tree's instance then
        has no shared ledger, and would not read this fetch.
        """
        if serving_identity is not None and not is_lease_identity(serving_identity):
            return False
        kind = find_path_kind(observation.path)
        if observation.offer is None or (kind is not None and kind.role is Role.REPORT):
            return await self._spool_recorder.record(observation)
        repeated = self._spool_recorder.repeated
        if (counted := repeated.count(observation, time.monotonic())) is None:
            return True
        abandoned = threading.Event()
        try:
            await self._call_with_timeout(partial(self._fetch_log.record, counted, serving_identity, abandoned.is_set))
        except FetchLogUnavailable:  # the thread continues, so the intent may be in the database now or later
            abandoned.set()
            self.intents.record_withheld(counted)
            repeated.restore_count(counted)
            return False
        self.intents.add(counted)
        return True

    async def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        """Return the record of a boot that any host served.

        The search includes fetches that this host has not sent to the database yet.
        """
        served = await self._call_with_timeout(partial(self._fetch_log.find_served_boot, server, offer, report))
        return merge_served_boots(await self._spool_recorder.find_served_boot(server, offer, report), served)

    async def has_installer_reported(self, server: str, token: str) -> bool:
        is_done = await self._call_with_timeout(partial(self._fetch_log.has_installer_reported, server, token))
        return is_done or await self._spool_recorder.has_installer_reported(server, token)

    async def wait_for_check(self) -> None:
        await self._spool_recorder.wait_for_check()
        await asyncio.to_thread(self._fetch_log.ping)

    def check(self) -> None:
        """Check whether this host can record a fetch in its spool. `Forwarder` checks the database."""
        self._spool_recorder.check()

    async def _call_with_timeout(self, function: Callable[[], _T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.to_thread(function), self._deadline_s)
        except TimeoutError as error:
            raise FetchLogUnavailable from error


# Repeated fetches of secrets


@dataclass(slots=True)
class _FetchCounter:
    """Counts one address's fetches of one secret: those already recorded, and those to record later."""

    recorded: int = 0  # the number of fetches that are recorded in the spool
    recorded_s: float = 0.0  # the monotonic time at which the last line was written
    waiting: Observation | None = None  # the last fetch that is not recorded in the spool yet
    waiting_times: int = 0

    def take_observation(self, now_s: float) -> Observation | None:
        """Return the fetches that are not recorded yet as one observation, and reset the count."""
        waiting, times = self.waiting, self.waiting_times
        if waiting is None:
            return None
        self.waiting, self.waiting_times = None, 0
        self.recorded, self.recorded_s = self.recorded + times, now_s
        return replace(waiting, times=times)


class RepeatedFetches:
    """Limits how often repeated fetches of a secret are recorded.

    gitboot records the first fetches of each secret immediately, and further fetches together once per minute.

    Without this limit, a client that fetches a secret again and again would fill the spool. The counts are in memory,
    so a killed endpoint loses the counts of at most one minute, but it does not lose client addresses. Several threads
    may use the same object.
    """

    _RECORD_INTERVAL_S: Final = 60.0
    _MAX_SECRETS: Final = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # the most recently used secret is last
        self._secrets: OrderedDict[tuple[str, str, str, bool], dict[str, _FetchCounter]] = OrderedDict()
        self._evicted: list[Observation] = []  # fetches, not recorded yet, of secrets that were removed from _secrets

    def count(self, observation: Observation, now_s: float) -> Observation | None:
        """Count a fetch. Return the counted fetches as one observation to record now, or None to record them later."""
        secret = find_secret(observation.path)
        if secret is None:
            return observation
        with self._lock:
            counter = self._find_counter(observation, secret)
            counter.waiting, counter.waiting_times = observation, counter.waiting_times + 1
            is_due = counter.recorded <= MAX_FETCHES or now_s - counter.recorded_s >= self._RECORD_INTERVAL_S
            return counter.take_observation(now_s) if is_due else None

    def take_due_observations(self, now_s: float) -> list[Observation]:
        """Return the counted fetches whose last record is at least a minute old, as observations to record now.

        If ``now_s`` is ``math.inf``, return all counted fetches.
        """
        with self._lock:
            observations, self._evicted = self._evicted, []
            for addresses in self._secrets.values():
                for counter in addresses.values():
                    is_due = now_s - counter.recorded_s >= self._RECORD_INTERVAL_S
                    if is_due and (observation := counter.take_observation(now_s)) is not None:
                        observations.append(observation)
            return observations

    def restore_count(self, observation: Observation) -> None:
        """Count an observation again after an attempt to record the observation failed.

        gitboot then records the next fetch by the same client immediately.
        """
        if (secret := find_secret(observation.path)) is None:
            return
        with self._lock:
            counter = self._find_counter(observation, secret)
            counter.recorded, counter.recorded_s = counter.recorded - observation.times, float("-inf")
            if observation.times > 1:  # leave out the last fetch, because the client may not have received a response
                counter.waiting, counter.waiting_times = observation, counter.waiting_times + observation.times - 1

    def _find_counter(self, observation: Observation, secret: str) -> _FetchCounter:
        key = observation.server, str(observation.digest), secret, observation.is_evidence
        addresses = self._secrets.setdefault(key, {})
        self._secrets.move_to_end(key)
        if len(self._secrets) > self._MAX_SECRETS:
            _, oldest = self._secrets.popitem(last=False)
            self._evicted += filter(None, (counter.take_observation(0.0) for counter in oldest.values()))
        address = get_client_network(observation.client)
        if address not in addresses and len(addresses) >= MAX_ADDRESSES:
            address = OTHERS
        return addresses.setdefault(address, _FetchCounter())


# Outcomes of intents


class OpenIntents:
    """Records the outcome of each intent in a spool, and retries failed writes.

    Several threads may use the same object.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: dict[str, Observation] = {}  # open intents by id
        # the outcomes that gitboot must write again, because the last write failed
        self._unwritten: deque[Observation] = deque(maxlen=_MAX_UNWRITTEN)

    def add(self, observation: Observation) -> None:
        """Add a recorded observation if it is an intent. The caller must call `store_outcome` later."""
        if observation.intent is not None:
            self._open[observation.intent] = observation

    def record_withheld(self, observation: Observation) -> None:
        """Record that gitboot withheld the boot for an intent.

        This is necessary because the failed write may still have added the intent to the log, or may do so later.

        If the endpoint serves the boot anyway, add the intent instead. The caller must then call `store_outcome` later.
        """
        if observation.may_serve_unrecorded:
            self.add(observation)
        elif observation.intent is not None:
            self._write(replace(observation, outcome=Outcome.WITHHELD))

    def store_outcome(self, intent: str, outcome: Outcome | None) -> None:
        """Record the outcome of an added intent. If ``outcome`` is None, the outcome stays unknown.

        Unknown ids are ignored.

        This method does not wait for the write. If the process ends before the write, the outcome stays unknown.
        """
        if (observation := self._open.pop(intent, None)) is not None and outcome is not None:
            self._write(replace(observation, outcome=outcome))

    def retry_writes(self) -> None:
        """Retry the failed writes of outcomes."""
        for _ in range(len(self._unwritten)):
            with suppress(IndexError):  # another thread may have taken the last item
                self._write(self._unwritten.popleft())

    def _write(self, observation: Observation) -> None:
        self._spool.record(observation).add_done_callback(partial(self._queue_retry_if_failed, observation))

    def _queue_retry_if_failed(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self._unwritten.append(observation)


# Readiness

Recorder = SpoolRecorder | SharedRecorder


def find_unready_reason(tree: PublishedTree, recorder: Recorder | None) -> str | None:
    """Return why a load balancer should not use this endpoint, or None if this endpoint is ready.

    If the output tree does not name a spool, no endpoint can serve one-time boots, so this endpoint counts as ready.
    """
    if not tree.is_ready:
        if tree.terms.is_prepared:
            return "the output tree was prepared for a host that is not active yet"
        return "the instance has not published yet"
    if (clock_problem := tree.clock.problem) is not None:
        return f"{clock_problem}; the endpoint withholds install boots"
    terms = tree.terms
    if recorder is None:
        if terms.fetch_log_id is None or terms.forwards_machines:
            return None
        return (
            "this endpoint has no spool, and the Fleet does not set `endpoint`, so this endpoint withholds one-time "
            "boots"
        )
    if recorder.withheld_reason is not None:
        return f"{recorder.withheld_reason}; the endpoint withholds install boots"
    if recorder.failure is not None:
        return f"the endpoint withholds one-time boots, because it cannot record fetches: {recorder.failure}"
    is_other_spool = tree.belongs_to_other_instance or recorder.serving_identity != terms.fetch_log_id
    if terms.fetch_log_id is not None and is_other_spool:
        return "the output tree does not belong to this endpoint's spool, so the endpoint withholds one-time boots"
    if recorder.deletion_count > terms.loss_count:
        return "the output tree is older than the last deletion in the spool, so the endpoint withholds one-time boots"
    return None


class ReadinessEvents:
    """Creates an event when an endpoint stops being ready, and when it is ready again."""

    def __init__(self) -> None:
        self._is_ready = True

    def update(self, unready_reason: str | None, at: datetime) -> Event | None:
        """Return an event if the endpoint has become ready or unready since the last call, and otherwise None."""
        is_ready = unready_reason is None
        if is_ready is self._is_ready:
            return None
        self._is_ready = is_ready
        if unready_reason is None:
            return Event(at=at, type="Ready", message="the endpoint serves every boot that machines may get")
        return Event(at=at, type="NotReady", message=unready_reason, warning=True)


# The shared fetch log


class Forwarder:
    """Sends this host's spool to the shared fetch log in a thread, and deletes the files that have arrived completely.

    If several processes write to one spool, only one of them sends it. The database stores the position up to which it
    has received each file. After a restart of either side, no line is lost or counted twice. If a writer's sync fails,
    the writer truncates its file. The database may already have received the truncated lines, so the forwarder
    continues at the new end of the file.
    """

    def __init__(self, folder: Path, fetch_log: SharedFetchLog) -> None:
        self._folder, self._fetch_log = folder, fetch_log
        # The number of bytes of each file that have arrived, as far as this process has seen.
        self._sent_offsets: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread = BackgroundThread(self._run, name="forwarder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout_s=_END_TIMEOUT_S)

    def _run(self) -> None:
        lock: int | None = None  # the descriptor that holds the lock on the spool; None: another process sends it
        pause_s = 0.0
        was_failing = False
        while not self._stopping.wait(pause_s):
            self._fetch_log.ping()
            try:
                if lock is None:
                    lock = _lock_spool(self._folder)
                if lock is not None:
                    self.send()
                pause_s, was_failing = _SEND_INTERVAL_S, False
            except (OSError, BatchRejected) as error:
                if not was_failing:
                    _logger.error("cannot send recorded fetches to %s: %s", self._fetch_log.name, format_error(error))
                pause_s, was_failing = _PAUSE_S, True
        if lock is not None:
            os.close(lock)

    def send(self) -> None:
        """Send all lines that are in the spool now.

        Raises OSError, and `BatchRejected` if the database rejects the lines.
        """
        spool = read_or_create_identity(self._folder)
        spool_files = list_files(self._folder)
        names = [path.stem for path in spool_files]
        for path in spool_files:
            self._send_file(path, SpoolWriter(spool, path.stem), names)
        for path in find_finished_files(self._folder, self._sent_offsets):
            path.unlink(missing_ok=True)
        self._sent_offsets = Counter(
            {path.name: self._sent_offsets[path.name] for path in spool_files if path.exists()}
        )

    def _send_file(self, path: Path, writer: SpoolWriter, names: Sequence[str]) -> None:
        """Send all lines of a file. ``names`` are the names of all files in the spool."""
        self._reset_offset_if_truncated(path, writer)
        while True:
            batch = read_batch(path, writer, self._sent_offsets[path.name])
            # gitboot queries the position of a new file from the database even if there is no line to send.
            if not batch.lines and path.name in self._sent_offsets:
                return
            self._sent_offsets[path.name] = self._fetch_log.receive_batch(batch, names)
            self._reset_offset_if_truncated(path, writer)

    def _reset_offset_if_truncated(self, path: Path, writer: SpoolWriter) -> None:
        """Continue at the end of a file if the file is now shorter than the part that was already sent."""
        offset = self._sent_offsets[path.name]
        with suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
            if offset > size_bytes:
                self._fetch_log.reset_place(writer, size_bytes)
                self._sent_offsets[path.name] = size_bytes
                _logger.warning(
                    "%s has %d bytes, but gitboot has already sent %d bytes of it. gitboot continues with new lines.",
                    path,
                    size_bytes,
                    offset,
                )


def _lock_spool(folder: Path) -> int | None:
    """Lock a spool for sending. Return the descriptor that holds the lock, or None if another process holds it."""
    get_endpoint_folder(folder).mkdir(exist_ok=True)
    fd = open_lock(get_endpoint_folder(folder) / "forwarding", mode=0o640)
    if lock_file(fd):
        return fd
    os.close(fd)
    return None
