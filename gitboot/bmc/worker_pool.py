"""Worker pool: tasks at many BMCs at once, at a pace that the network bears."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import NO_SIGN, CredentialDirectory, Entrusted, Sign
from gitboot.bmc.identity import Pinned, known_at
from gitboot.bmc.override_session import BmcTask, Outcome, OverrideSession, TaskResult
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid

if TYPE_CHECKING:
    from gitboot.bmc.override_session import Driver


_UNUSED_S: Final = 900  # longer than until any BMC that is asked is asked again
_LOGOUTS_S: Final = 2  # for all at the end, which is near
_Access = tuple[BmcAccess, Entrusted, bool]


class Connections:
    """One kept connection a machine, made anew when its document, its credentials, or what is said of them changed."""

    def __init__(
        self,
        directory: CredentialDirectory,
        fence: Callable[[], None] = lambda: None,  # raises where nothing may be changed any more
        ending_fence: Callable[[], None] | None = None,  # the same for what only ends something; None: `fence`
    ) -> None:
        self._directory, self._fence, self._ending_fence = directory, fence, ending_fence
        self._kept: dict[SystemUuid, tuple[_Access, Driver]] = {}
        self._used_s: dict[SystemUuid, float] = {}  # when last, in that order
        self._using, self._trusting = threading.Lock(), threading.Lock()  # the first guards when they were used

    def to(
        self, uuid: SystemUuid, server: str, bmc: BmcAccess, *, known: bool = False, pinned: Pinned | None = None
    ) -> Driver:
        """The connection to a machine's BMC; raises `UsageError` where there are no credentials that it may be sent.

        ``known``: the ledger lets it have them; ``pinned``: what the machine's BMC showed before.
        """
        found = self._directory.of(bmc.credentials)
        access, kept = (bmc, found, known), self._kept.get(uuid)
        if kept is not None and kept[0] == access:
            connection = kept[1]
            if connection.login is not None:
                connection.login.keeps = True  # whoever is asked again is asked often
        else:
            if kept is not None:
                kept[1].close()
            connection = self._open(server, bmc, found, known=known)
        self._kept[uuid] = access, connection
        with self._using:
            self._used_s.pop(uuid, None)
            self._used_s[uuid] = time.monotonic()  # behind all that were used before
        pinned = known_at(pinned, bmc.place)
        connection.reach.certificate = pinned.certificate if pinned is not None else None
        return connection

    def _open(self, server: str, bmc: BmcAccess, found: Entrusted, *, known: bool) -> Driver:
        # Only here: they take their time, and many fleets have no BMC.
        from gitboot.bmc.ipmi import IpmiConnection
        from gitboot.bmc.redfish.client import BmcConnection
        from gitboot.bmc.redfish.transport import Reach
        from gitboot.http_client import tls_context

        trust, vouched = found.trust, found.trust.certificate(bmc)
        reach = Reach(
            allowed=trust.allowed(bmc, known=known),
            named=tuple(each for each in (vouched, bmc.fingerprint) if each is not None),
            is_vouched_for=vouched is not None,
            fence=self._fence,
            ending_fence=self._ending_fence,
        )
        if bmc.by_ipmi:
            return IpmiConnection(bmc.address, found.credentials, reach=reach)
        try:
            with self._trusting:  # one context for each authority: loading the CA bundle is what costs
                is_named = vouched is not None
                authority = None if is_named else trust.trusted_authority(bmc)
                tls = tls_context(verify=bmc.verify and not is_named, ca=authority)
        except ssl.SSLError as error:
            where = f"bmc.tls.ca of {server}" if bmc.ca is not None else f"the authority for {bmc.credentials}"
            raise UsageError(f"{where} is not a certificate in PEM: {error.reason or error}") from None
        return BmcConnection(bmc.address, found.credentials, system=bmc.system, tls=tls, reach=reach)

    def fingerprint(self, uuid: SystemUuid) -> str | None:
        """Return the fingerprint of the credentials that a machine's BMC was sent last."""
        kept = self._kept.get(uuid)
        return kept[0][1].fingerprint if kept is not None else None

    def unused(self) -> list[Driver]:
        """Drop and return the connections that nobody has used for a while: a BMC has few sessions."""
        found = []
        since_s = time.monotonic() - _UNUSED_S
        with self._using:
            while (first := next(iter(self._used_s.items()), None)) is not None and first[1] < since_s:
                del self._used_s[first[0]]
                found.append(self._kept.pop(first[0])[1])
        return found

    def close(self) -> None:
        """Close all, and log out, many at a time; where that takes too long, sessions end by themselves."""
        until_s = time.monotonic() + _LOGOUTS_S
        with ThreadPoolExecutor(MOST_OF_SITE) as threads:
            for _, connection in self._kept.values():
                threads.submit(lambda kept: kept.close(log_out=time.monotonic() < until_s), connection)
        self._kept.clear()


@contextmanager
def connections(directory: Path | None) -> Iterator[Connections]:
    """Connections that are closed when the block ends."""
    kept = Connections(CredentialDirectory(directory))
    try:
        yield kept
    finally:
        kept.close()


MOST: Final = 256
MOST_OF_SITE: Final = 128


class BmcPool:
    """Tasks at BMCs: at most ``parallel`` at a time, of one site at most ``per_site``, of one machine one.

    A task that has not begun gives way to a newer one of its machine: what is begun is what is wanted now.
    ``on_finished`` is called once for all tasks that end within a moment. ``fence`` raises where another instance may
    change the BMCs, ``ending_fence`` the same for what only ends something; None: `fence`.
    """

    def __init__(
        self,
        *,
        credentials: Path | None,
        write: Callable[[SystemUuid, OverrideRecord | SwitchRecord], None],
        clock: Callable[[], datetime],
        dry_run: bool = False,
        parallel: int = MOST,
        per_site: int = MOST_OF_SITE,
        on_finished: Callable[[], None] = lambda: None,
        fence: Callable[[], None] = lambda: None,
        ending_fence: Callable[[], None] | None = None,
    ) -> None:
        self._write, self._clock, self._dry_run = write, clock, dry_run
        self._crew: Crew[SystemUuid, TaskResult] = Crew(parallel, per_site, on_ended=on_finished)
        self._credentials = CredentialDirectory(credentials)
        self._connections = Connections(self._credentials, fence, ending_fence)
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="log-out")

    def submit(self, tasks: Iterable[BmcTask]) -> frozenset[SystemUuid]:
        """Take tasks in, but for machines whose last one still runs, or has ended since `finished` was called.

        Return the machines whose task was taken.
        """
        made = (structs.replace(task, dry_run=self._dry_run) for task in tasks)
        return self._crew.add(Task(task.uuid, task.site, partial(self._run, task)) for task in made)

    def forget(self, uuids: Iterable[SystemUuid]) -> None:
        self._crew.forget(uuids)

    def finished(self, *, wait_all: bool = False) -> Mapping[SystemUuid, TaskResult]:
        """Return the results of tasks that have ended since the last call, by machine, in the order of their names."""
        for unused in self._connections.unused():
            self._closing.submit(unused.close)
        results = self._crew.ended()
        while wait_all and (more := self._crew.next_ended()):
            results |= more
        return dict(sorted(results.items(), key=lambda item: (item[1].server, item[0])))

    def close(self) -> None:
        self._crew.close()
        self._closing.shutdown(wait=False, cancel_futures=True)
        self._connections.close()

    def fingerprint(self, bmc: BmcAccess) -> str | None:
        """Return what changes when a BMC's credentials do: one that was refused is asked again when it is another."""
        return self._credentials.fingerprint(bmc.credentials)

    def _run(self, task: BmcTask) -> tuple[TaskResult, Sign]:
        began_s = time.monotonic()
        credentials, sign = self.fingerprint(task.bmc), NO_SIGN
        try:
            bmc = self._connections.to(task.uuid, task.server, task.bmc, known=task.known, pinned=task.pinned)
        except UsageError as error:  # what has changed of the credentials meanwhile is a change
            result = TaskResult(
                server=task.server,
                uuid=task.uuid,
                outcome=Outcome.STALLED,
                message=str(error),
                asked=not isinstance(error, BmcNotTrusted),
                answered=False,
            )
        else:
            with bmc.reach.watched() as watched:
                session = OverrideSession(bmc, task, lambda record: self._write(task.uuid, record), self._clock)
                result, sign = session.run(), watched()
            if result.outcome is Outcome.STALLED and not result.answered:
                self._credentials.doubt(task.bmc.credentials)
            credentials = self._connections.fingerprint(task.uuid)
        granted, took_s = task.switching is not None and task.switching.now, time.monotonic() - began_s
        return replace(result, credentials=credentials, granted=granted, took_s=took_s), sign


_GATHER_S: Final = 0.2  # for so long others that end are waited for, before somebody is woken for them
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Later = Callable[[float, Callable[[], None]], None]


class Task(NamedTuple, Generic[Key, Value]):
    """What is to be done once, for whom, and where."""

    key: Key
    site: str | None  # None: of none that is known, and bound by what is borne overall
    work: Callable[[], tuple[Value, Sign]]


def in_a_while(seconds: float, what: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()


class Crew(Generic[Key, Value]):
    """At most ``most`` tasks at a time, and one of each key; what ends makes room for the next at once.

    Tasks begin by site in the order in which they came, and each site is served in turn. ``on_ended`` is called, from
    any thread, when something has ended that nobody has taken yet: once for all that ends within a moment, and at once
    when nothing is left to do.
    """

    def __init__(
        self,
        most: int = MOST,
        most_of_site: int = MOST_OF_SITE,
        *,
        on_ended: Callable[[], None] = lambda: None,
        later: Later = in_a_while,
    ) -> None:
        self._most, self._most_of_site, self._on_ended, self._later = most, most_of_site, on_ended, later
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="bmc")
        self._changed = threading.Condition()  # guards what follows
        self._waiting: dict[str | None, OrderedDict[Key, Task[Key, Value]]] = {}  # by site
        self._busy: Counter[str | None] = Counter()  # how many of a site have begun, and not ended
        self._paces: dict[str | None, Pace] = {}
        self._running: set[Key] = set()
        self._ended: dict[Key, Value] = {}
        self._raised: list[BaseException] = []
        self._is_gathering = False

    def add(self, tasks: Iterable[Task[Key, Value]]) -> frozenset[Key]:
        """Take tasks in, but for keys whose last one still runs, or has ended since `ended` was called.

        A task for such a key was made without the result of the last one. A task that has not begun gives way
        to a newer one of its key. Return the keys whose task was taken.
        """
        taken = set()
        with self._changed:
            for task in tasks:
                if task.key not in self._running and task.key not in self._ended:
                    self._drop(task.key)
                    self._waiting.setdefault(task.site, OrderedDict())[task.key] = task
                    taken.add(task.key)
            self._begin()
        return frozenset(taken)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop tasks that have not begun."""
        with self._changed:
            for key in keys:
                self._drop(key)

    def ended(self) -> dict[Key, Value]:
        """Return what came of the tasks that have ended since the last call; raises what one of them has raised."""
        with self._changed:
            if self._raised:
                raise self._raised.pop()
            ended, self._ended = self._ended, {}
            return ended

    def next_ended(self) -> dict[Key, Value]:
        """Wait until a task has ended, and return what came of those that have; empty if nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._raised or not (self._running or self._waiting))
            return self.ended()

    def close(self) -> None:
        """Let running tasks end, and begin no others."""
        with self._changed:
            self._waiting.clear()
        self._threads.shutdown(wait=True)

    def _drop(self, key: Key) -> None:
        for site in [site for site, tasks in self._waiting.items() if key in tasks]:
            del self._waiting[site][key]
            if not self._waiting[site]:
                del self._waiting[site]

    def _pace(self, site: str | None) -> Pace:
        if site not in self._paces:
            self._paces[site] = Pace.upto(self._most if site is None else self._most_of_site)
        return self._paces[site]

    def _begin(self) -> None:
        while len(self._running) < self._most:
            for site in self._waiting:
                if self._busy[site] < self._pace(site).limit:
                    break
            else:
                return
            tasks = self._waiting.pop(site)
            _, task = tasks.popitem(last=False)
            if tasks:
                self._waiting[site] = tasks  # behind the others
            self._busy[site] += 1
            self._running.add(task.key)
            self._threads.submit(self._do, task)

    def _do(self, task: Task[Key, Value]) -> None:
        sign, error = NO_SIGN, None
        try:
            value, sign = task.work()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the results are taken
            error = raised
        with self._changed:
            self._running.remove(task.key)
            self._busy[task.site] -= 1
            self._paces[task.site] = self._pace(task.site).after(sign)
            if error is not None:
                self._raised.append(error)
            else:
                self._ended[task.key] = value
            self._begin()
            is_last, is_first = not (self._running or self._waiting), not self._is_gathering
            self._is_gathering = self._is_gathering or not is_last
            self._changed.notify_all()
        if is_last:
            self._on_ended()
        elif is_first:
            self._later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        with self._changed:
            self._is_gathering = False
            is_due = bool(self._ended or self._raised)
        if is_due:
            self._on_ended()


FIRST: Final = 16  # nothing is known of the site yet
LEAST: Final = 4
_STEP: Final = 8  # by how much it grows once it is known what was too much
_SLOWER: Final = 2  # than it was: the way there is full, or this machine
_UNNOTICED_S: Final = 0.1  # a BMC that answers at once may take so much longer
_LOST: Final = 0.1  # of those that answered the last time
_FORGETTING: Final = 1.1  # how fast it was is believed less with each round: a way may become longer for good


class Pace(Struct, frozen=True, kw_only=True):
    """A value: each answer gives another one. A round is as many answers as may be awaited at a time.

    BMCs that have never answered do not count: a rack that is switched off does not slow the others.
    """

    most: int
    limit: int
    is_probing: bool = True  # it was never too much yet: it doubles
    best_s: float = math.inf  # what an answer of the fastest round took, half of them less
    waited_s: tuple[float, ...] = ()  # of this round
    lost: int = 0  # likewise

    @classmethod
    def upto(cls, most: int) -> Pace:
        return cls(most=most, limit=min(FIRST, most))

    def after(self, sign: Sign) -> Pace:
        if sign.waited_s is None and not sign.is_lost:
            return self
        waited_s = self.waited_s if sign.waited_s is None else (*self.waited_s, sign.waited_s)
        lost = self.lost + sign.is_lost
        if len(waited_s) + lost < self.limit:
            return structs.replace(self, waited_s=waited_s, lost=lost)
        typical_s = sorted(waited_s)[len(waited_s) // 2] if waited_s else math.inf
        is_slow = typical_s > self.best_s * _SLOWER + _UNNOTICED_S
        is_too_much = is_slow or lost > _LOST * (len(waited_s) + lost)
        grown = self.limit * 2 if self.is_probing else self.limit + _STEP
        return Pace(
            most=self.most,
            limit=min(max(self.limit // 2, LEAST) if is_too_much else grown, self.most),
            is_probing=self.is_probing and not is_too_much,
            best_s=min(typical_s, self.best_s * _FORGETTING),
        )
