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
from gitboot.fetchlog.log_entries import Observation, Outcome, network_of
from gitboot.fetchlog.one_time_boots import (
    MOST_ADDRESSES,
    MOST_FETCHES,
    OTHERS,
    Given,
    GivenBoots,
    NotTaken,
    Unrecordable,
    claims_in,
    is_lease,
    joined,
    secret_of,
)
from gitboot.fetchlog.spool import Spool, Writer, aside, files, forgotten, identity, next_batch, spent, try_out
from gitboot.files import lock_file, open_lock
from gitboot.render.paths import Role, kind_of
from gitboot.status.conditions import Event
from gitboot.text import in_one_line

if TYPE_CHECKING:
    from gitboot.ledger.postgresql_fetch_log import SharedFetches

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_TRIED_EVERY_S: Final = 10.0  # while nothing else is written


class Recording:
    """Records each fetch within a deadline, and what became of each intent; knows what was given, by whichever process.

    Where something could not be written, nothing counts as recordable until a write was seen to stand again.
    """

    def __init__(self, spool: Spool, deadline_s: float) -> None:
        self._spool, self._deadline_s = spool, deadline_s
        self._given = GivenBoots(spool.folder)
        self.repeated, self.intents = RepeatedFetches(), OpenIntents(spool)
        self._stood_s = -math.inf  # when something was last seen to stand, by a clock that only goes forward
        self._trial: tuple[float, Future[None]] | None = None  # since when something is tried out
        self.giver: str | None = None  # the identity of the spool, as it was at the last look
        self.withheld: str | None = None  # why no boot that writes a disk may be served, likewise
        self.forgotten = 0  # how often it had forgotten something by then
        self.failure: str | None = None  # why nothing can be recorded; None: it can, as far as is known

    async def record(self, observation: Observation, giver: str | None = None) -> bool:
        """Return whether the fetch is recorded in time, for the instance of a tree that names this ``giver``.

        An intent that may be recorded though this returns False is followed by `withheld`. The instance of another
        giver does not read this spool. A fetch of a secret that is one of many by its client is counted, and recorded
        within a minute.
        """
        if giver is not None and self.giver is None:  # the spool was not looked at yet
            with suppress(TimeoutError, Unrecordable):
                await self._asked("", lambda: None)
        if giver not in (None, self.giver):
            return False
        if (counted := self.repeated.take(observation, time.monotonic())) is None:
            return True
        if not (is_recorded := await self._written(counted)):
            self.repeated.put_back(counted)
        return is_recorded

    async def _written(self, observation: Observation) -> bool:
        """Return whether an observation was written in time; withhold an intent that may have been, or may yet be."""
        written = self._spool.record(observation)
        waited = asyncio.wrap_future(written)
        waited.add_done_callback(_retrieve)
        done, _ = await asyncio.wait([waited], timeout=self._deadline_s)
        if not done:
            self._note(TimeoutError())
            _logger.error("a fetch of %s was not recorded within %s s", observation.server, self._deadline_s)
            if written.cancel() and not observation.is_answered_anyway:
                return False
        else:
            self._note(error := written.exception())
            if error is None:
                self.intents.add(observation)
                return True
            _logger.error("a fetch of %s could not be recorded: %s", observation.server, error)
        self.intents.withhold(observation)
        return False

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """How a boot was given; None: it was not. Raises `Unrecordable` where that is not known in time."""
        return await self._asked(server, partial(self._given.find, server, offer, report))

    async def reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given. Raises `Unrecordable` likewise."""
        return await self._asked(server, partial(self._given.reported, server, token))

    async def _asked(self, server: str, ask: Callable[[], _T]) -> _T:
        """What the spool says, read by the thread that writes to it."""

        def look() -> _T:
            self._look()
            return ask()

        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._spool.call(look)), self._deadline_s)
        except OSError as error:
            self._note(error)
            _logger.error("what was given to %s cannot be read: %r", server, error)
            raise Unrecordable from error

    def look(self) -> None:
        """See whether anything could be recorded, where that is not known from what was; it is not waited for."""
        now_s = time.monotonic()
        self._leave(self.repeated.due(now_s))
        self.intents.write_again()
        if self._trial is None:
            if self.failure is not None or now_s - self._stood_s >= _TRIED_EVERY_S:
                self._trial = now_s, self._spool.call(self._try_out)
            return
        since_s, trial = self._trial
        if trial.done():
            self._trial = None
            self._note(trial.exception())
        elif now_s - since_s > self._deadline_s:
            self._note(TimeoutError())

    def end(self) -> None:
        """Leave to the spool what was only counted until now, and the outcomes that it has not taken."""
        self._leave(self.repeated.due(math.inf))
        self.intents.write_again()

    def _leave(self, counted: Iterable[Observation]) -> None:
        for each in counted:
            # It was answered without lines of its own, and perhaps not wholly. A report has no intent.
            plain = replace(each, intent=None, is_evidence=each.is_evidence and each.intent is None)
            self._spool.record(plain).add_done_callback(partial(self._left, each))

    def _left(self, observation: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self.repeated.put_back(observation)

    async def settle(self) -> None:
        """Look, and wait within the deadline for what that shows."""
        self.look()
        if self._trial is not None:
            waited = asyncio.wrap_future(self._trial[1])
            waited.add_done_callback(_retrieve)
            await asyncio.wait([waited], timeout=self._deadline_s)
            self.look()

    def _look(self) -> None:
        folder = self._spool.folder
        self.giver, self.forgotten = identity(folder), forgotten(folder)
        self.withheld = next((str(claim) for claim in claims_in((folder,), folder)), None)

    def _try_out(self) -> None:
        self._look()
        try_out(self._spool.folder)

    def _note(self, error: BaseException | None) -> None:
        if error is None:
            self._stood_s, self.failure = time.monotonic(), None
        elif isinstance(error, TimeoutError):
            self.failure = f"{self._spool.folder} takes nothing within {self._deadline_s:g} s"
        else:
            self.failure = f"{self._spool.folder} cannot be written: {getattr(error, 'strerror', None) or error}"


def _retrieve(written: asyncio.Future[None]) -> None:
    """Take out what was not waited for, so that nobody is told that nobody did: it is told what came of the fetch."""
    if not written.cancelled():
        written.exception()


class ForwardedRecording:
    """Records as `Recording` does: one-time boots in the shared fetch log, all else in this host's spool."""

    def __init__(self, own: Recording, shared: SharedFetches, deadline_s: float) -> None:
        self._own, self._shared, self._deadline_s, self.intents = own, shared, deadline_s, own.intents

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
        given_up = threading.Event()
        try:
            await self._in_time(partial(self._shared.record, counted, giver, given_up.is_set))
        except Unrecordable:  # the thread goes on, and the database may have the intent or still get it
            given_up.set()
            self.intents.withhold(counted)
            repeated.put_back(counted)
            return False
        self.intents.add(counted)
        return True

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """Return how a boot was served, by any host; a line that this host has not sent yet counts as well."""
        given = await self._in_time(partial(self._shared.given, server, offer, report))
        return joined(await self._own.given(server, offer, report), given)

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


# Repeated fetches of secrets


class _Counted:
    """The fetches of one secret by one address, as one endpoint has recorded and counted them."""

    __slots__ = ("recorded", "recorded_s", "waiting", "waiting_times")

    def __init__(self) -> None:
        self.recorded = 0  # fetches that lines of the spool stand for
        self.recorded_s = 0.0  # when the last line was written, by a clock that only goes forward
        self.waiting: Observation | None = None  # the last fetch that no line stands for
        self.waiting_times = 0

    def taken(self, now_s: float) -> Observation | None:
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
        self._secrets: OrderedDict[tuple[str, str, str, bool], dict[str, _Counted]] = OrderedDict()  # last used last
        self._left: list[Observation] = []  # what waited for a secret that is not known any more

    def take(self, observation: Observation, now_s: float) -> Observation | None:
        """Return what to record now, with how many fetches it stands for; None: it waits, and was counted."""
        secret = secret_of(observation.path)
        if secret is None:
            return observation
        with self._lock:
            counted = self._of(observation, secret)
            counted.waiting, counted.waiting_times = observation, counted.waiting_times + 1
            is_due = counted.recorded <= MOST_FETCHES or now_s - counted.recorded_s >= self._EVERY_S
            return counted.taken(now_s) if is_due else None

    def due(self, now_s: float) -> list[Observation]:
        """Return what has waited for a minute, to be recorded now; all that waits at the end of time, ``math.inf``."""
        with self._lock:
            left, self._left = self._left, []
            due = (
                counted.taken(now_s)
                for addresses in self._secrets.values()
                for counted in addresses.values()
                if counted.waiting is not None and now_s - counted.recorded_s >= self._EVERY_S
            )
            return [*left, *(each for each in due if each is not None)]

    def put_back(self, observation: Observation) -> None:
        """Count what could not be recorded, so that the next fetch by its client is recorded at once with it."""
        if (secret := secret_of(observation.path)) is None:
            return
        with self._lock:
            counted = self._of(observation, secret)
            counted.recorded, counted.recorded_s = counted.recorded - observation.times, float("-inf")
            if observation.times > 1:  # the fetch that could not be recorded was perhaps not answered
                counted.waiting, counted.waiting_times = observation, counted.waiting_times + observation.times - 1

    def _of(self, observation: Observation, secret: str) -> _Counted:
        key = observation.server, str(observation.digest), secret, observation.is_evidence
        addresses = self._secrets.setdefault(key, {})
        self._secrets.move_to_end(key)
        if len(self._secrets) > self._MOST:
            _, oldest = self._secrets.popitem(last=False)
            self._left += filter(None, (each.taken(0.0) for each in oldest.values()))
        address = network_of(observation.client)
        if address not in addresses and len(addresses) >= MOST_ADDRESSES:
            address = OTHERS
        return addresses.setdefault(address, _Counted())


# Outcomes of intents

_MOST_UNWRITTEN: Final = (
    4096  # outcomes that wait to be written; an outcome that is dropped stays unknown, which is safe
)


class OpenIntents:
    """Records the outcome of each intent in a spool, and tries again until it is written; from any thread."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open: dict[str, Observation] = {}  # by id
        self._unwritten: deque[Observation] = deque(maxlen=_MOST_UNWRITTEN)  # outcomes whose last write has failed

    def add(self, observation: Observation) -> None:
        """Note that an observation is recorded and that `conclude` follows, if it is an intent."""
        if observation.intent is not None:
            self._open[observation.intent] = observation

    def withhold(self, observation: Observation) -> None:
        """Record that nothing is served, if the observation is an intent. It may be in the log, or still get there.

        If it is answered all the same, add it: `conclude` follows.
        """
        if observation.is_answered_anyway:
            self.add(observation)
        elif observation.intent is not None:
            self._write(replace(observation, outcome=Outcome.WITHHELD))

    def conclude(self, intent: str, outcome: Outcome | None) -> None:
        """Record what became of an intent that was added; None: that stays unknown. For any other id, do nothing.

        This returns at once. If the process ends before the outcome is written, the outcome stays unknown.
        """
        if (intended := self._open.pop(intent, None)) is not None and outcome is not None:
            self._write(replace(intended, outcome=outcome))

    def write_again(self) -> None:
        """Try again to write the outcomes whose last write has failed."""
        for _ in range(len(self._unwritten)):
            with suppress(IndexError):  # another thread was first
                self._write(self._unwritten.popleft())

    def _write(self, concluded: Observation) -> None:
        self._spool.record(concluded).add_done_callback(partial(self._note, concluded))

    def _note(self, concluded: Observation, written: Future[None]) -> None:
        if written.exception() is not None:
            self._unwritten.append(concluded)


Recorder = Recording | ForwardedRecording
# Whether machines are well answered here, or better sent to another endpoint

_NOTHING: Final = "nothing is published yet"


def why_not_ready(tree: PublishedTree, records: Recorder | None) -> str | None:
    """Why machines are better sent to another endpoint, in words; None: this one gives what there is to give.

    Where no spool is named nobody gives what is made once, and no other endpoint does better.
    """
    if not tree.is_ready:
        return "the tree is prepared for a host that does not act yet" if tree.terms.prepared else _NOTHING
    if (doubt := tree.clock.doubt) is not None:
        return f"{doubt}: no boot that writes a disk is given"
    terms = tree.terms
    if records is None:
        if terms.giver is None or terms.sends_on:
            return None
        return (
            "this endpoint has no spool, and the Fleet names no endpoint to send machines on to: no boot that is made "
            "once is given"
        )
    if records.withheld is not None:
        return f"{records.withheld}: no boot that writes a disk is served"
    if records.failure is not None:
        return f"nothing can be recorded: {records.failure}: no boot that is made once is given"
    if terms.giver is not None and (tree.is_foreign or records.giver != terms.giver):
        return "the tree names another spool than this endpoint's: no boot that is made once is given"
    if records.forgotten > terms.forgotten:
        return "the tree is older than what the spool has forgotten: no boot that is made once is given"
    return None


class Turns:
    """Announces that an endpoint is ready no more, and why, and that it is again."""

    def __init__(self) -> None:
        self._is_ready = True

    def turn(self, why_not: str | None, at: datetime) -> Event | None:
        """The event, where there is something new to say."""
        was_ready, self._is_ready = self._is_ready, why_not is None
        if self._is_ready is was_ready:
            return None
        if why_not is None:
            return Event(at=at, type="Ready", message="every boot is given that there is to give")
        return Event(at=at, type="NotReady", message=why_not, warning=True)


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

    def __init__(self, folder: Path, shared: SharedFetches) -> None:
        self._folder, self._shared = folder, shared
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
            while (batch := next_batch(path, writer, self._places[path.name])).lines or path.name not in self._places:
                self._places[path.name] = self._shared.take(batch, names)
                self._go_back_to_end(path, writer)
        for path in spent(self._folder, self._places):
            path.unlink(missing_ok=True)
        self._places = Counter({path.name: self._places[path.name] for path in there if path.exists()})

    def _go_back_to_end(self, path: Path, writer: Writer) -> None:
        """Go on at the end of a file that is shorter than the part of it that was sent."""
        place = self._places[path.name]
        with suppress(FileNotFoundError):
            if place > (size := path.stat().st_size):
                self._shared.go_back(writer, size)
                self._places[path.name] = size
                _logger.warning(
                    "%s has %d bytes, and gitboot has sent %d bytes of it. It sends what is appended from now on.",
                    *(path, size, place),
                )


def _lock(folder: Path) -> int | None:
    """Return a file that keeps other processes from sending until it is closed; None: another process sends."""
    aside(folder).mkdir(exist_ok=True)
    fd = open_lock(aside(folder) / _LOCK, mode=0o640)
    if lock_file(fd):
        return fd
    os.close(fd)
    return None
