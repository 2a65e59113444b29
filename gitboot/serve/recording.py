"""Records of the fetches that an endpoint answers, and whether fetches can be recorded at present.

A host that shares its instance's PostgreSQL ledger records the intent to serve a one-time boot in the database before
the answer, so that all hosts together serve the boot once. While the database does not answer, such a boot is withheld.
Everything else (the outcome of an intent, data, reports, boots under Always) is recorded in this host's own spool, and
sent to the database from there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from gitboot.observe.elsewhere import SpoolElsewhere, Unrecordable, is_lease
from gitboot.observe.given import Given, GivenBoots, joined
from gitboot.observe.observation import Observation
from gitboot.serve.open_intents import OpenIntents
from gitboot.serve.repeated_fetches import RepeatedFetches
from gitboot.observe.sole_claims import claims_in
from gitboot.observe.spool import Spool, forgotten, identity, try_out
from gitboot.render.paths import Role, kind_of

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
        if giver is not None and giver != await self._identity():
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

    async def _identity(self) -> str | None:
        if self.giver is None:  # it was not looked at yet
            with suppress(TimeoutError, Unrecordable):
                await self._asked("", lambda: None)
        return self.giver

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
        self._leave(self.repeated.rest())
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
        """Take note of how it went to write something."""
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

    def __init__(self, own: Recording, shared: SpoolElsewhere, deadline_s: float) -> None:
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


Recorder = Recording | ForwardedRecording
