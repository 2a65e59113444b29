"""Fetch log in PostgreSQL, for hosts that share a ledger: each host records a boot there before it serves the boot.

An endpoint serves one-time boots only for the instance that holds the lease, and only while that instance holds it: a
tree that another instance published is out of date. One transaction records the boot and reads the lease. An instance
that takes the lease waits for these transactions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import Any, Final

from gitboot.errors import LedgerError
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import Given, NotTaken, Unrecordable, has_reported, how_given
from gitboot.fetchlog.spool import SUFFIX, ForwardedBatch, Taken, Writer, line_of, parse, writer_of
from gitboot.ledger.leader_lease import Lease, now_s
from gitboot.ledger.location import NOBODY, PostgresAddress
from gitboot.ledger.schema import left
from gitboot.text import in_one_line

FETCHES: Final = "fetches"  # as the books of the ledger call it, in the place of a file's name
_ASKED_EVERY_S: Final = 5.0  # whether it answers, while nobody asks it for a boot
_WORTH: Final = 1000  # rows, until they are deleted: each time, all endpoints have to be told
_NOT_LEFT: Final = "SELECT place, holder FROM lease FOR KEY SHARE"  # beside whoever renews it
_HELD: Final = "SELECT epoch, holder, forgotten, place FROM lease"
_RECORD: Final = "INSERT INTO fetches (writer, place, server, offer, line) VALUES (%s, %s, %s, %s, %s)"

_Run = Callable[..., list[Any]]  # a statement, and its parameters; the rows that it gives


class SharedFetches:
    """What endpoints record and ask, in the tables of the ledger's PostgreSQL; from any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self._transactions = _Transactions(address)
        self.name, self.close = address.name, self._transactions.close
        self._asked_s = -math.inf
        self.giver: str | None = None  # the lease, as it was last seen; None: nobody has had it
        self.forgotten = 0  # how often rows had been deleted by then
        self.failure: str | None = "it was not asked yet"  # why no question was answered the last time

    def given(self, server: str, offer: str, report: str | None) -> Given | None:
        return how_given(self._known(server, offer), offer, report)

    def reported(self, server: str, token: str) -> bool:
        return has_reported(self._known(server, None), token)

    def record(self, observation: Observation, giver: str | None, is_given_up: Callable[[], bool] = bool) -> None:
        """Write a fetch durably before it is answered from a tree that names this ``giver``.

        Raises `Unrecordable` if the fetch may not have been written. Writes nothing if the caller has given up before
        the database takes it.
        """
        with self._asking() as run:
            if giver is None or self._look(run, "FOR SHARE") != giver or is_given_up():
                raise Unrecordable
            run(_RECORD, (None, None, *_row_of(observation)))

    def ping(self) -> None:
        """Ask a question if the last one failed, or is some seconds old."""
        if self.failure is not None or now_s() - self._asked_s >= _ASKED_EVERY_S:
            with suppress(Unrecordable):
                self._known("", None)

    def take(self, batch: ForwardedBatch, there: Collection[str]) -> int:
        """Take a batch if it is the next one of its writer; return the byte at which the next one has to begin.

        ``there`` are the files that the batch's spool has. Raises `NotTaken`.
        """
        spool, file = batch.writer
        with self._taking() as run:
            run("INSERT INTO writers VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (spool, file))
            ((place,),) = run("SELECT place FROM writers WHERE spool = %s AND file = %s FOR UPDATE", (spool, file))
            if batch.begin != place or not batch.lines:
                return int(place)
            _put(run, batch)
            run("UPDATE writers SET place = %s WHERE spool = %s AND file = %s", (batch.end, spool, file))
            run("DELETE FROM writers WHERE spool = %s AND NOT file = ANY(%s)", (spool, [*there, file]))
        return batch.end

    def go_back(self, writer: Writer, place: int) -> None:
        """Let the next batch of a writer begin at ``place``, if more than that was taken. Raises `NotTaken`."""
        query = "UPDATE writers SET place = %s WHERE spool = %s AND file = %s AND place > %s"
        with self._taking() as run:
            run(query, (place, *writer, place))

    @contextmanager
    def _taking(self) -> Iterator[_Run]:
        with self._transactions.begin(lambda error: NotTaken(in_one_line(error))) as run:
            for place, holder in run(_NOT_LEFT):
                self._refuse_left(place, holder)
            yield run

    def _known(self, server: str, offer: str | None) -> list[Observation]:
        with self._asking() as run:
            self._look(run)
            lines = run("SELECT line FROM fetches WHERE server = %s OR offer = %s ORDER BY id", (server, offer))
        found = (parse(line.encode()) for (line,) in lines)
        return [
            each for each in found if isinstance(each, Observation) and each.digest is not None and each.is_evidence
        ]

    def _look(self, run: _Run, how: str = "") -> str | None:
        rows = run(f"{_HELD} {how}")
        for _, holder, _, place in rows:
            self._refuse_left(place, holder)
        giver = str(Lease(rows[0][1], rows[0][0])) if rows else None
        self.giver, self.forgotten = giver, rows[0][2] if rows else 0
        return giver

    def _refuse_left(self, place: str, holder: str) -> None:
        if holder == NOBODY:
            raise left(self.name, place)

    @contextmanager
    def _asking(self) -> Iterator[_Run]:
        """A transaction that asks who may give; `failure` says whether it was answered."""
        self._asked_s = now_s()
        with self._transactions.begin(self._fail) as run:
            yield run
        self.failure = None

    def _fail(self, error: Exception) -> Unrecordable:
        self.failure = in_one_line(error)
        return Unrecordable()


class RecordedFetches:
    """The same for the instance that has the lease. Each raises `LedgerError`."""

    def __init__(self, address: PostgresAddress) -> None:
        self._transactions = _Transactions(address)
        self.name, self.close = address.name, self._transactions.close

    def read(self, taken: Mapping[str, int]) -> Taken:
        """What was recorded beyond ``taken``, each once: who is recording just now is waited for.

        Raises `LedgerError`.
        """
        after, rows = taken.get(FETCHES, 0), list[Any]()
        with self._reading() as run:
            run("LOCK TABLE fetches IN SHARE MODE")
            ((until,),) = run("SELECT coalesce(max(id), 0) FROM fetches")
        if until > after:
            query = "SELECT id, writer, line FROM fetches WHERE id > %s AND id <= %s ORDER BY id"
            with self._reading() as run:  # without a lock: who is paused while it gets many rows holds nobody up
                rows = run(query, (after, until))
        latest: dict[str | None, datetime] = {}  # by writer, whose clock may go back
        found: list[tuple[datetime, int, Observation]] = []
        for number, writer, line in rows:
            if isinstance(each := parse(line.encode()), Observation):
                at = max(latest.get(writer, each.at), each.at) if writer is not None else each.at
                latest[writer] = at
                found.append((at, number, each))
        found.sort(key=lambda each: each[:2])
        return Taken([each[2] for each in found], {FETCHES: rows[-1][0] if rows else after}, len(rows) - len(found))

    def forgotten_next(self, taken: Mapping[str, int]) -> int:
        """How often rows will have been deleted, once those are that were taken in, if it is worth it."""
        query = "SELECT forgotten, (SELECT count(*) FROM fetches WHERE id <= %s) FROM lease"
        with self._reading() as run:
            ((forgotten, rows),) = run(query, (taken.get(FETCHES, 0),))
        return int(forgotten + (rows >= _WORTH))

    def forget(self, taken: Mapping[str, int], times: int, lease: Lease) -> None:
        """Delete what was taken in, for the ``times``-th time; one that is no new number has nothing deleted.

        Raises `LedgerError`, and has nothing deleted where the lease is another's.
        """
        query = "UPDATE lease SET forgotten = %s WHERE holder = %s AND epoch = %s AND forgotten < %s RETURNING 1"
        with self._reading() as run:
            if run(query, (times, *lease, times)):
                run("DELETE FROM fetches WHERE id <= %s", (taken.get(FETCHES, 0),))

    def _reading(self) -> AbstractContextManager[_Run]:
        return self._transactions.begin(
            lambda error: LedgerError(f"{self.name}: what endpoints have given cannot be read ({in_one_line(error)})")
        )


class _Transactions:
    """Transactions by one connection, which is made anew where it was lost; one at a time."""

    def __init__(self, address: PostgresAddress) -> None:
        from gitboot.ledger import postgresql

        self.name, self._address = address.name, address
        self._connect, self._errors = postgresql.connected, (*postgresql.PostgresDatabase.errors, LedgerError)
        self._lock = threading.Lock()
        self._connection: Any = None

    @contextmanager
    def begin(self, failure: Callable[[Exception], Exception]) -> Iterator[_Run]:
        """Begin one transaction. Raises the ``failure`` of an error of the database, or of the ledger."""

        def run(statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
            cursor = self._connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

        try:
            with self._lock:
                if self._connection is None or self._connection.closed or self._connection.broken:
                    self._connection = self._connect(self._address)
                with self._connection.transaction():
                    yield run
        except self._errors as error:
            raise failure(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _put(run: _Run, batch: ForwardedBatch) -> None:
    name, base = writer_of(f"{batch.writer.file}{SUFFIX}")  # 2fefe59 kept the batches of other hosts in a spool
    writer, place = f"{batch.writer.spool}/{name}", base + batch.begin
    for line in batch.lines.splitlines(keepends=True):
        match parse(line):
            case Observation() as found:
                run(_RECORD, (writer, place, *_row_of(found)))
            case int(taken_back):
                run("DELETE FROM fetches WHERE writer = %s AND place = %s", (writer, taken_back))
        place += len(line)


def _row_of(observation: Observation) -> tuple[str, str | None, str]:
    return observation.server, observation.offer, line_of(observation).decode()
