"""The processes of a site, which can end at any of their system calls."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from queue import SimpleQueue
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import psycopg
from psycopg.pq import TransactionStatus

from gitboot.endpoint.app import Endpoint
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.recorder import Forwarder, SpoolRecorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import LedgerError
from gitboot.fetchlog.one_time_boots import BatchRejected
from gitboot.fetchlog.spool import Spool
from gitboot.ledger.postgresql_fetch_log import SharedFetchLog
from gitboot.ledger.store import Store, Transaction

# The end of a process at any of its system calls, for processes whose parts live in this one.
#
# What changes files counts, and each call to a PostgreSQL: between two such calls nobody can tell one instant from
# another. A process that has died changes nothing any more. A call to a PostgreSQL may also end without an answer, as
# one does that has hung until its deadline.

_CHANGES: Final = ("write", "pwrite", "rename", "replace", "unlink", "link", "mkdir", "rmdir", "symlink", "ftruncate")
_SYNCS: Final = ("fsync", "fdatasync")  # a kill is no power cut: they do nothing else here, unless one is held
_TO_CHANGE: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The end of a process, at this very instruction."""


@dataclass
class Hang:
    """Calls to a PostgreSQL that get no answer until their deadline, which has passed at once here."""

    after: int = 0  # earlier calls that get a response
    calls: int = 10**6  # that get no answer
    is_done: bool = False  # whether the PostgreSQL executes these calls

    def takes(self) -> bool:
        """Return whether the next call is one of these, and count the call."""
        if self.after > 0:
            self.after -= 1
            return False
        self.calls -= 1
        return self.calls >= 0


class HeldCall:
    """One call to a PostgreSQL that lasts until the test ends it."""

    def __init__(self, number: int) -> None:
        self._left = number  # earlier calls that are not held
        self._ends: Future[bool] = Future()
        self.connection: psycopg.Connection[Any] | None = None  # the process whose call is or was held
        self.on_begin: Callable[[], object] = lambda: None  # called by the thread that calls

    @property
    def is_between_transactions(self) -> bool:
        """Return whether the connection holds no locks while its call is held."""
        status = self.connection.pgconn.transaction_status if self.connection is not None else None
        return status == TransactionStatus.IDLE

    def takes(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether the next call is the one, and count the call."""
        self._left -= 1
        if self._left != -1:
            return False
        self.connection = connection
        return True

    def hold(self) -> bool:
        """Wait for the end of the call; return whether it never reaches the server."""
        self.on_begin()
        return self._ends.result()

    def end(self, *, is_lost: bool) -> None:
        self._ends.set_result(is_lost)


class CrashPlan:
    """When a process dies, whether it has, and which of its calls to a PostgreSQL hang."""

    def __init__(self) -> None:
        self.dead = False
        self.dies_in: int | None = None  # calls from now
        self.calls = 0
        self.hang: Hang | None = None
        self.held: HeldCall | None = None

    def next(self) -> None:
        """One call more, if the process lives to make it."""
        if not self.dead and self.dies_in is not None:
            self.dead = self.dies_in == 0
            self.dies_in -= 1
        if self.dead:
            raise Killed
        self.calls += 1


class HeldSyncs:
    """Syncs of an endpoint's fetch log, each of which lasts until the test ends it.

    Only `fdatasync` in the thread of a fetch log is held: gitboot calls it once for each batch of lines.
    """

    thread: Final = "spool"  # the name that `gitboot.fetchlog.spool` gives to its thread

    def __init__(self) -> None:
        self.begun: SimpleQueue[Future[None] | None] = (
            SimpleQueue()
        )  # a result or an OSError ends a sync; None: no more
        self.on_begin: Callable[[], object] = lambda: None  # called by the thread of the fetch log
        self._lock, self._is_over = threading.Lock(), False

    def hold(self) -> None:
        """Wait for the end of one sync. Raises the OSError with which the test ends it."""
        ends: Future[None] = Future()
        with self._lock:
            if self._is_over:
                return
            self.begun.put(ends)
        self.on_begin()
        ends.result()

    def release(self) -> None:
        """End every sync that is still held, and hold no other."""
        with self._lock:
            self._is_over = True
            while not self.begun.empty():
                if (ends := self.begun.get()) is not None:
                    ends.set_result(None)


_processes: list[CrashPlan] = []  # whose calls are made now: the last
_held_syncs: list[HeldSyncs] = []  # the last one that holds syncs
_unwritable: list[str] = []  # why no ledger can be written now


@contextmanager
def run_as(crash_plan: CrashPlan) -> Iterator[None]:
    """A block in which it is this process that makes calls."""
    _processes.append(crash_plan)
    try:
        yield
    finally:
        _processes.pop()


@contextmanager
def hold_syncs(syncs: HeldSyncs) -> Iterator[None]:
    """Hold each sync of a fetch log that begins in this block."""
    _held_syncs.append(syncs)
    try:
        yield
    finally:
        _held_syncs.remove(syncs)
        syncs.release()


@contextmanager
def full_ledger() -> Iterator[None]:
    """Make each transaction of a ledger fail in this block, as if its disk were full."""
    _unwritable.append("the ledger cannot be written (database or disk is full)")
    try:
        yield
    finally:
        _unwritable.pop()


def _count_call() -> None:
    if _processes:
        _processes[-1].next()


def _count_calls(real: Callable[..., Any], *, counts: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    @wraps(real)
    def call(*arguments: Any, **more: Any) -> Any:
        if counts(*arguments):
            _count_call()
        return real(*arguments, **more)

    return call


def _opens_to_change(_path: Any, flags: int, *_: Any) -> bool:
    return bool(flags & _TO_CHANGE)


def _do_nothing(*_: Any) -> None:
    """A sync of what no power cut will take."""


def _sync(*_: Any) -> None:
    """A sync that a test may hold. Raises OSError."""
    if _held_syncs and threading.current_thread().name == HeldSyncs.thread:
        _held_syncs[-1].hold()


@contextmanager
def _writing(store: Store) -> Iterator[Transaction]:
    """A transaction, before which and before whose end its process may die. Raises LedgerError in `full_ledger`."""
    if _unwritable:
        raise LedgerError(_unwritable[-1])
    _count_call()
    with _REAL_WRITING(store) as tx:
        yield tx
        tx.send()
        _count_call()


_REAL_WRITING: Final = Store.writing
_RENEWS: Final = (
    "lease"  # the thread in which `gitboot.ledger.leader_lease` renews a lease: no life takes as long as one
)


def _postgresql_call(connection: psycopg.Connection[Any], calls: Any, *arguments: Any, **more: Any) -> Any:
    """Make one call to a PostgreSQL, which may hang. Raises OperationalError as `LimitedConnection` does then."""
    if not _processes or threading.current_thread().name == _RENEWS:
        return _REAL_WAIT(connection, calls, *arguments, **more)
    crash_plan = _processes[-1]
    try:
        crash_plan.next()
    except Killed:
        connection.close()
        raise
    held = crash_plan.held
    is_lost = held is not None and held.takes(connection) and held.hold()
    if not is_lost and (crash_plan.hang is None or not crash_plan.hang.takes()):
        return _REAL_WAIT(connection, calls, *arguments, **more)
    if not is_lost and crash_plan.hang is not None and crash_plan.hang.is_done:
        with suppress(psycopg.Error):
            _REAL_WAIT(connection, calls, *arguments, **more)
    calls.close()
    connection.close()
    raise psycopg.OperationalError("no answer within 5 s")


def _connect(cls: type[psycopg.Connection[Any]], *arguments: Any, **more: Any) -> psycopg.Connection[Any]:
    """Connect to a PostgreSQL, which may hang. Raises OperationalError then."""
    if _processes and threading.current_thread().name != _RENEWS:
        _count_call()
        if (hang := _processes[-1].hang) is not None and hang.takes():
            raise psycopg.OperationalError("connection timeout expired")
    made: psycopg.Connection[Any] = _REAL_CONNECT(cls, *arguments, **more)
    return made


_REAL_WAIT: Final = psycopg.Connection.wait
_REAL_CONNECT: Final = psycopg.Connection.connect.__func__  # type: ignore[attr-defined] # of the class method


@contextmanager
def patch_system_calls() -> Iterator[None]:
    """A block in which processes can die so."""
    with ExitStack() as stack:
        for name in _CHANGES:
            stack.enter_context(patch.object(os, name, _count_calls(getattr(os, name))))
        for name in _SYNCS:
            sync = _sync if name == "fdatasync" else _do_nothing
            stack.enter_context(patch.object(os, name, _count_calls(sync)))
        stack.enter_context(patch.object(os, "open", _count_calls(os.open, counts=_opens_to_change)))
        stack.enter_context(patch.object(Store, "writing", _writing))
        stack.enter_context(patch.object(psycopg.Connection, "wait", _postgresql_call))
        stack.enter_context(patch.object(psycopg.Connection, "connect", classmethod(_connect)))
        yield


class PassingLoop(asyncio.SelectorEventLoop):
    """An event loop whose deadlines pass when the test wants it."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self.passed_s


class SlowSyncs(NamedTuple):
    """The syncs of an endpoint's fetch log; the numbers count the syncs from the beginning of one fetch."""

    reads: tuple[int, ...] = ()  # syncs during which the instance reads the log
    fails: tuple[int, ...] = ()  # syncs that end with an error
    expires: int | None = None  # the sync during which the endpoint's deadline passes


class BootResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    @property
    def label(self) -> str | None:
        """Return the label of the request that it boots, or None for the disk or nothing."""
        found = re.search(r"\bask=([a-z]+-\d+)", self.body) if self.status == 200 else None
        return found[1] if found else None

    @property
    def denial_reason(self) -> str | None:
        """Why a boot is withheld."""
        found = re.search(r"# gitboot withheld the boot of [^:]+: .* \((\w+)\)\n", self.body)
        return found[1] if found else None


class MortalSpool(Spool):
    """A fetch log whose thread ends with its process."""

    ended: Callable[[], None] = staticmethod(lambda: None)
    has_ended = False

    def _run(self) -> None:
        try:
            super()._run()
        except Killed:
            self.has_ended = True
            self.ended()


class FetchForwarding(NamedTuple):
    """The way in which an endpoint records in the PostgreSQL ledger that several hosts share."""

    shared: SharedFetchLog
    forwarder: Forwarder  # sends when the test lets it, and not in a thread


@dataclass
class RunningEndpoint:
    endpoint: Endpoint
    tree: PublishedTree
    checked_clock: CheckedClock
    spool: MortalSpool
    recording: SpoolRecorder
    forwarding: FetchForwarding | None = None
    crash_plan: CrashPlan = field(default_factory=CrashPlan)
    is_behind: bool = False  # whether something waits in its fetch log for the PostgreSQL

    def look(self) -> None:
        """Do what the process does each second."""
        self.tree.refresh()
        self.checked_clock.save()
        if self.forwarding is not None:
            self.is_behind = True
            with run_as(self.crash_plan), suppress(BatchRejected, Killed):
                self.forwarding.forwarder.send()
                self.is_behind = False

    def close(self) -> None:
        """End the process, which may be dead."""
        with run_as(self.crash_plan), suppress(Killed):
            self.spool.close()
        if self.forwarding is not None:
            self.forwarding.shared.close()


async def wait_for_sync(task: asyncio.Task[BootResponse], syncs: HeldSyncs) -> None:
    """Wait until a fetch gets a response, or a sync of its log begins."""
    begins, loop = asyncio.Event(), asyncio.get_running_loop()
    syncs.on_begin = lambda: loop.call_soon_threadsafe(begins.set)
    if syncs.begun.empty():
        waits = asyncio.create_task(begins.wait())
        await asyncio.wait([task, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()


async def ask_endpoint(
    endpoint: Endpoint, method: str, path: str, client: str, headers: Iterable[tuple[str, str]], body: str
) -> BootResponse:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 40000),
        "server": ("boot.test", 80),
        "scheme": "http",
    }
    await endpoint(scope, receive, send)
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return BootResponse(sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:]).decode())
