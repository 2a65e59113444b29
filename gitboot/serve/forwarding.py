"""An endpoint whose instance has its spool elsewhere: what it records goes there, what is made once is asked there.

What is fetched and gives nothing that is made once (data, reports, boots under Always) stands in this host's own spool
before it is answered, and is forwarded from there. What is made once is recorded in the instance's spool before it is
given, so that it is given once by however many endpoints; while that does not answer, it is not given.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

from gitboot import __version__
from gitboot.canonical import canonical
from gitboot.observe import left
from gitboot.observe.batches import ForwardedBatch, Writer, next_batch
from gitboot.observe.elsewhere import NotTaken, SpoolElsewhere, Unrecordable
from gitboot.observe.given import Given
from gitboot.observe.observation import Observation
from gitboot.observe.spool import aside, files, identity, line_of, parse, spent
from gitboot.phrases import in_one_line
from gitboot.render.paths import Role, kind_of
from gitboot.serve.alone import Alone, Claimed, SoleRecording
from gitboot.serve.forwarded import FORWARDED
from gitboot.serve.giving import Recorder
from gitboot.serve.recording import Recording
from gitboot.web import host_of, trusting

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

_ASKED_EVERY_S: Final = 5.0  # whether it answers, while nobody asks it for a boot
_SENT_EVERY_S: Final = 0.5
_PAUSE_S: Final = 2.0  # after a failure
_TIMEOUT_S: Final = 20.0  # for a batch
_CONNECTIONS: Final = 8
_LAST_S: Final = 2.0  # for what is being sent at the end
_LOCK: Final = "forwarding"


def token_in(file: Path) -> str:
    """The token in a file; raises OSError, and `NotTaken` where that holds no such thing, or several."""
    token = file.read_bytes().strip()
    if not token or not all(0x21 <= each <= 0x7E for each in token):
        raise NotTaken(f"{file} does not hold one token, on a line of its own")
    return token.decode()


class InstanceSpool:
    """The spool of an instance, by HTTP; from any thread."""

    def __init__(self, url: str, token: Path, ca: Path | None) -> None:
        host_of(url)
        self._url, self._token = url.rstrip("/"), token
        self.name = f"the instance at {self._url}"
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            retries=False,
            ssl_context=trusting(ca),
            headers={"User-Agent": f"gitboot/{__version__}"},
        )
        self._asked_s = -math.inf  # when a question was put last, by a clock that only goes forward
        self.giver: str | None = None  # its identity, as the instance has said it last
        self.forgotten = 0  # how often it had forgotten something by then
        self.soles: Mapping[str, str] = {}  # the sites whose boots one spool gives alone, likewise
        self.failure: str | None = "it was not asked yet"  # why no question was answered the last time

    def close(self) -> None:
        self._pool.clear()

    def given(self, server: str, offer: str, report: str | None, timeout_s: float) -> Given | None:
        match self._ask("given", {"server": server, "offer": offer, "report": report}, timeout_s).get("given", False):
            case None:
                return None
            case {"first": str(line), "isOver": bool(is_over)}:
                if isinstance(first := parse(line.encode()), Observation):
                    return Given(first, is_over)
        raise Unrecordable

    def reported(self, server: str, token: str, timeout_s: float) -> bool:
        return self._ask("reported", {"server": server, "token": token}, timeout_s).get("reported") is not False

    def record(self, observation: Observation, giver: str | None, timeout_s: float) -> None:
        self._asked("record", line_of(observation), timeout_s, **({"giver": giver} if giver is not None else {}))

    def ping(self, timeout_s: float) -> None:
        if self.failure is not None or time.monotonic() - self._asked_s >= _ASKED_EVERY_S:
            with suppress(Unrecordable):
                self._ask("reported", {"server": "", "token": ""}, timeout_s)

    def take(self, batch: ForwardedBatch, there: Collection[str]) -> int:
        where = f"batch/{batch.writer}"
        match self.sent(where, batch.lines, begin=str(batch.begin), files=",".join(there)):
            case {"place": int(place)} if place >= 0:
                return place
        raise NotTaken("what it answers is no place in a file")

    def leave(self, spool: str, name: str, content: bytes) -> None:
        self.sent(f"left/{spool}/{name}", content)

    def sent(self, verb: str, content: bytes, **query: str) -> Any:
        """What it answers to what is sent from time to time: JSON, or None. Raises `NotTaken`."""
        try:
            return self._send(verb, content, _TIMEOUT_S, **query)
        except (OSError, HTTPError) as error:
            raise NotTaken(_words(error)) from error

    def _send(self, verb: str, content: bytes, timeout_s: float, **query: str) -> Any:
        """What it answers: JSON, or None where it says only that it is done.

        Raises OSError, urllib3's `HTTPError`, and `NotTaken`.
        """
        where = f"{self._url}{FORWARDED}{verb}{f'?{urlencode(query)}' if query else ''}"
        try:
            answer = self._post(where, content, timeout_s)
        except ProtocolError:  # a connection that was kept, and closed there just now: what comes twice counts once
            answer = self._post(where, content, timeout_s)
        if answer.status == 204:
            return None
        if answer.status != 200:
            raise NotTaken(f"it answers {answer.status} {_WHY.get(answer.status, '')}".rstrip())
        try:
            return json.loads(answer.data)
        except ValueError:
            raise NotTaken("what it answers is no JSON") from None

    def _post(self, url: str, content: bytes, timeout_s: float) -> urllib3.BaseHTTPResponse:
        headers = {**self._pool.headers, "Authorization": f"Bearer {token_in(self._token)}"}
        return self._pool.request("POST", url, body=content, headers=headers, timeout=timeout_s, redirect=False)

    def _ask(self, verb: str, question: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """What it says to a question, besides who it is. Raises `Unrecordable`."""
        match self._asked(verb, canonical(question), timeout_s):
            case {"giver": str() | None as giver, "forgotten": int(forgotten), **said}:
                self.giver, self.forgotten = giver, forgotten
                self.soles = found if isinstance(found := said.pop("soles", None), dict) else {}
                return {str(name): value for name, value in said.items()}
        self.failure = "what it answers is no answer"
        raise Unrecordable

    def _asked(self, verb: str, content: bytes, timeout_s: float, **query: str) -> Any:
        """Send something that is waited for; raises `Unrecordable` where it does not arrive, and notes why."""
        self._asked_s = time.monotonic()
        try:
            found = self._send(verb, content, timeout_s, **query)
        except (OSError, HTTPError, NotTaken) as error:
            self.failure = _words(error)
            raise Unrecordable from error
        self.failure = None
        return found


_WHY: Final[Mapping[int, str]] = {
    401: "(the token is not one of its --spool-tokens)",
    404: "(it was not started with --spool-tokens, or machines ask there)",
    405: "(it was not started with --spool-tokens, or machines ask there)",
    503: "(it could not write it down)",
}


class InstanceGrants:
    """Which sites' boots endpoints give alone, by the word of an instance."""

    def __init__(self, instance: InstanceSpool) -> None:
        self._instance = instance

    def claim(self, site: str, spool: str) -> Claimed | None:
        """Claim a site for the spool of this identity; None: it is another's. Raises `NotTaken`."""
        match self._instance.sent("sole", b"", site=site, spool=spool):
            case {"given": str(given), "giver": str(giver), "forgotten": int(forgotten)}:
                return Claimed(giver, forgotten, given.encode())
            case {"given": None}:
                return None
        raise NotTaken("what it answers says not who gives alone")

    def release(self, site: str, spool: str) -> None:
        """Claim it no more. Raises `NotTaken`."""
        self._instance.sent("sole", b"", site=site, spool=spool, release="1")


class ForwardedRecording:
    """Records as `Recording` does: in the instance's spool what is made once, in this host's all else."""

    def __init__(self, own: Recording, instance: SpoolElsewhere, deadline_s: float, alone: Alone | None = None) -> None:
        self._own, self._instance, self._deadline_s, self._alone = own, instance, deadline_s, alone

    def of(self, site: str | None) -> Recorder:
        """Who records what the machines of a site are given: this host by itself where it gives alone."""
        grant = self._alone.grant if self._alone is not None and site is not None else None
        if self._alone is None or grant is None or grant.site != site:
            return self
        return SoleRecording(self._own, self._alone, grant)

    @property
    def soles(self) -> Mapping[str, str]:
        return self._instance.soles

    @property
    def folder(self) -> Path:
        """The spool of this host."""
        return self._own.folder

    @property
    def giver(self) -> str | None:
        grant = self._alone.grant if self._alone is not None and self._instance.giver is None else None
        return grant.giver if grant is not None else self._instance.giver

    @property
    def forgotten(self) -> int:
        return self._instance.forgotten

    @property
    def failure(self) -> str | None:
        is_alone = self._alone is not None and self._alone.grant is not None
        if self._own.failure is not None or self._instance.failure is None or is_alone:
            return self._own.failure
        return f"{self._instance.name} does not take it: {self._instance.failure}"

    async def record(self, observation: Observation, giver: str | None = None) -> bool:
        """Whether it stands recorded, where it has to."""
        kind = kind_of(observation.path)
        if observation.offer is None or (kind is not None and kind.role is Role.REPORT):
            return await self._own.record(observation)
        with suppress(Unrecordable):
            await self._in_time(partial(self._instance.record, observation, giver, self._deadline_s))
            return True
        return False

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """How a boot was given, by whichever endpoint; what its installer has told this one counts as well."""
        given = await self._in_time(partial(self._instance.given, server, offer, report, self._deadline_s))
        return await self._own.given(server, offer, report) or given

    async def reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given."""
        is_done = await self._in_time(partial(self._instance.reported, server, token, self._deadline_s))
        return is_done or await self._own.reported(server, token)

    async def settle(self) -> None:
        """Find out whether anything can be recorded."""
        await self._own.settle()
        await asyncio.to_thread(self._instance.ping, self._deadline_s)

    def look(self) -> None:
        """See whether this host could record something; the instance is asked by `Forwarder`."""
        self._own.look()

    async def _in_time(self, ask: Callable[[], _T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.to_thread(ask), self._deadline_s)
        except TimeoutError as error:
            raise Unrecordable from error


class Forwarder:
    """Sends what stands in this host's spool to the instance, and deletes it when it stands there; in a thread.

    Of several processes that write to one spool, one sends. How far the instance has each file it says itself, so that
    nothing is lost and nothing counted twice, whichever of the two is started anew.
    """

    def __init__(self, folder: Path, instance: SpoolElsewhere, deadline_s: float, alone: Alone | None = None) -> None:
        self._folder, self._instance, self._deadline_s, self._alone = folder, instance, deadline_s, alone
        self._places: dict[str, int] = {}  # by file: how far the instance has it
        self._left: dict[str, int] = {}  # by name: which version of it the instance has
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout=_LAST_S)

    def _run(self) -> None:
        lock, pause_s, was_failing = None, 0.0, False
        while not self._stopping.wait(pause_s):
            self._instance.ping(self._deadline_s)
            try:
                lock = lock if lock is not None else _lock(self._folder)
                if lock is not None:
                    self.send()
                    if self._alone is not None:
                        self._alone.ask()
                pause_s, was_failing = _SENT_EVERY_S, False
            except (OSError, NotTaken) as error:
                if not was_failing:
                    _logger.error("what was recorded waits for %s: %s", self._instance.name, _words(error))
                pause_s, was_failing = _PAUSE_S, True
        if lock is not None:
            os.close(lock)

    def send(self) -> None:
        """Send all there is by now. Raises OSError and `NotTaken`."""
        spool, there = identity(self._folder), files(self._folder)
        names = [path.stem for path in there]
        for path in there:
            writer = Writer(spool, path.stem)
            while (batch := next_batch(path, writer, self._places.get(path.name, 0))).lines:
                self._places[path.name] = self._send(batch, names, path.stat().st_size)
        for path in spent(self._folder, self._places) if self._alone is None or not self._alone.keeps else ():
            path.unlink(missing_ok=True)
        self._places = {path.name: self._places.get(path.name, 0) for path in there if path.exists()}
        self._send_left(spool)

    def _send(self, batch: ForwardedBatch, names: Collection[str], size: int) -> int:
        place = self._instance.take(batch, names)
        if place > size:
            raise NotTaken("what it answers is no place in that file")
        return place

    def _send_left(self, spool: str) -> None:
        there = {each.name: each for each in left.left_in(self._folder)}
        for name in self._left.keys() - there.keys():
            self._instance.leave(spool, name, b"")
            del self._left[name]
        for name, each in there.items():
            if self._left.get(name) == each.changed:
                continue
            with suppress(NotTaken):  # there is no room yet
                self._instance.leave(spool, name, each.content)
                if each.is_taken:
                    (self._folder / name).unlink(missing_ok=True)
                else:
                    self._left[name] = each.changed


def _lock(folder: Path) -> int | None:
    """What keeps other processes from sending what stands in a spool, until it is closed; None: one sends already."""
    aside(folder).mkdir(exist_ok=True)
    fd = os.open(aside(folder) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _words(error: Exception) -> str:
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return _LATE
    return in_one_line(error)


_LATE: Final = "it does not answer in time"
