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
from gitboot.fetchlog.one_time_boots import (
    BatchRejected,
    FetchLogUnavailable,
    ServedBoot,
    find_served_boot,
    has_reported,
)
from gitboot.fetchlog.spool import SUFFIX, ForwardedBatch, ReadResult, Writer, encode_line, parse_file_name, parse_line
from gitboot.ledger.leader_lease import Lease, now_s
from gitboot.ledger.location import NO_HOLDER, PostgresAddress
from gitboot.ledger.schema import build_moved_error
from gitboot.text import format_error

FETCHES: Final = "fetches"  # as the books of the ledger call it, in the place of a file's name
_PING_INTERVAL_S: Final = 5.0  # whether it answers, while nobody asks it for a boot
_MIN_DELETED_ROWS: Final = 1000  # rows, until they are deleted: each time, all endpoints have to be told
_LOCK_LEASE: Final = "SELECT place, holder FROM lease FOR KEY SHARE"  # beside whoever renews it
_SELECT_LEASE: Final = "SELECT epoch, holder, forgotten, place FROM lease"
_RECORD: Final = "INSERT INTO fetches (writer, place, server, offer, line) VALUES (%s, %s, %s, %s, %s)"

_Run = Callable[..., list[Any]]  # a statement, and its parameters; the rows that it gives


class SharedFetchLog:
    """What endpoints record and ask, in the tables of the ledger's PostgreSQL; from any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self._transactions = _Transactions(address)
        self.name, self.close = address.name, self._transactions.close
        self._queried_s = -math.inf
        self.serving_identity: str | None = None  # the lease, as it was last seen; None: nobody has had it
        self.deletion_count = 0  # how often rows had been deleted by then
        self.failure: str | None = "it was not asked yet"  # why no question was answered the last time

    def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        return find_served_boot(self._read_fetches(server, offer), offer, report)

    def has_installer_reported(self, server: str, token: str) -> bool:
        return has_reported(self._read_fetches(server, None), token)

    def record(
        self, observation: Observation, serving_identity: str | None, is_given_up: Callable[[], bool] = bool
    ) -> None:
        """Write a fetch durably before it is answered from a tree that names this ``giver``.

        Raises `Unrecordable` if the fetch may not have been written. Writes nothing if the caller has given up before
        the database takes it.
        """
        with self._querying() as run:
            if serving_identity is None or self._read_lease(run, "FOR SHARE") != serving_identity or is_given_up():
                raise FetchLogUnavailable
            run(_RECORD, (None, None, *_to_row(observation)))

    def ping(self) -> None:
        """Ask a question if the last one failed, or is some seconds old."""
        if self.failure is not None or now_s() - self._queried_s >= _PING_INTERVAL_S:
            with suppress(FetchLogUnavailable):
                self._read_fetches("", None)

    def receive_batch(self, batch: ForwardedBatch, spool_files: Collection[str]) -> int:
        """Take a batch if it is the next one of its writer; return the byte at which the next one has to begin.

        ``there`` are the files that the batch's spool has. Raises `NotTaken`.
        """
        spool, file = batch.writer
        with self._receiving() as run:
            run("INSERT INTO writers VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (spool, file))
            ((place,),) = run("SELECT place FROM writers WHERE spool = %s AND file = %s FOR UPDATE", (spool, file))
            if batch.begin != place or not batch.lines:
                return int(place)
            _store_batch(run, batch)
            run("UPDATE writers SET place = %s WHERE spool = %s AND file = %s", (batch.end, spool, file))
            run("DELETE FROM writers WHERE spool = %s AND NOT file = ANY(%s)", (spool, [*spool_files, file]))
        return batch.end

    def reset_place(self, writer: Writer, place: int) -> None:
        """Let the next batch of a writer begin at ``place``, if more than that was taken. Raises `NotTaken`."""
        query = "UPDATE writers SET place = %s WHERE spool = %s AND file = %s AND place > %s"
        with self._receiving() as run:
            run(query, (place, *writer, place))

    @contextmanager
    def _receiving(self) -> Iterator[_Run]:
        with self._transactions.begin(lambda error: BatchRejected(format_error(error))) as run:
            for place, holder in run(_LOCK_LEASE):
                self._require_not_moved(place, holder)
            yield run

    def _read_fetches(self, server: str, offer: str | None) -> list[Observation]:
        with self._querying() as run:
            self._read_lease(run)
            lines = run("SELECT line FROM fetches WHERE server = %s OR offer = %s ORDER BY id", (server, offer))
        found = (parse_line(line.encode()) for (line,) in lines)
        return [
            each for each in found if isinstance(each, Observation) and each.digest is not None and each.is_evidence
        ]

    def _read_lease(self, run: _Run, lock: str = "") -> str | None:
        rows = run(f"{_SELECT_LEASE} {lock}")
        for _, holder, _, place in rows:
            self._require_not_moved(place, holder)
        giver = str(Lease(rows[0][1], rows[0][0])) if rows else None
        self.serving_identity, self.deletion_count = giver, rows[0][2] if rows else 0
        return giver

    def _require_not_moved(self, place: str, holder: str) -> None:
        if holder == NO_HOLDER:
            raise build_moved_error(self.name, place)

    @contextmanager
    def _querying(self) -> Iterator[_Run]:
        """A transaction that asks who may give; `failure` says whether it was answered."""
        self._queried_s = now_s()
        with self._transactions.begin(self._fail) as run:
            yield run
        self.failure = None

    def _fail(self, error: Exception) -> FetchLogUnavailable:
        self.failure = format_error(error)
        return FetchLogUnavailable()


class RecordedFetches:
    """The same for the instance that has the lease. Each raises `LedgerError`."""

    def __init__(self, address: PostgresAddress) -> None:
        self._transactions = _Transactions(address)
        self.name, self.close = address.name, self._transactions.close

    def read(self, offsets: Mapping[str, int]) -> ReadResult:
        """What was recorded beyond ``taken``, each once: who is recording just now is waited for.

        Raises `LedgerError`.
        """
        after, rows = offsets.get(FETCHES, 0), list[Any]()
        with self._transaction() as run:
            run("LOCK TABLE fetches IN SHARE MODE")
            ((until,),) = run("SELECT coalesce(max(id), 0) FROM fetches")
        if until > after:
            query = "SELECT id, writer, line FROM fetches WHERE id > %s AND id <= %s ORDER BY id"
            with self._transaction() as run:  # without a lock: who is paused while it gets many rows holds nobody up
                rows = run(query, (after, until))
        latest: dict[str | None, datetime] = {}  # by writer, whose clock may go back
        found: list[tuple[datetime, int, Observation]] = []
        for number, writer, line in rows:
            if isinstance(each := parse_line(line.encode()), Observation):
                at = max(latest.get(writer, each.at), each.at) if writer is not None else each.at
                latest[writer] = at
                found.append((at, number, each))
        found.sort(key=lambda each: each[:2])
        return ReadResult(
            [each[2] for each in found], {FETCHES: rows[-1][0] if rows else after}, len(rows) - len(found)
        )

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        """How often rows will have been deleted, once those are that were taken in, if it is worth it."""
        query = "SELECT forgotten, (SELECT count(*) FROM fetches WHERE id <= %s) FROM lease"
        with self._transaction() as run:
            ((deletions, rows),) = run(query, (offsets.get(FETCHES, 0),))
        return int(deletions + (rows >= _MIN_DELETED_ROWS))

    def delete_read(self, offsets: Mapping[str, int], times: int, lease: Lease) -> None:
        """Delete what was taken in, for the ``times``-th time; one that is no new number has nothing deleted.

        Raises `LedgerError`, and has nothing deleted where the lease is another's.
        """
        query = "UPDATE lease SET forgotten = %s WHERE holder = %s AND epoch = %s AND forgotten < %s RETURNING 1"
        with self._transaction() as run:
            if run(query, (times, *lease, times)):
                run("DELETE FROM fetches WHERE id <= %s", (offsets.get(FETCHES, 0),))

    def _transaction(self) -> AbstractContextManager[_Run]:
        return self._transactions.begin(
            lambda error: LedgerError(f"{self.name}: what endpoints have given cannot be read ({format_error(error)})")
        )


class _Transactions:
    """Transactions by one connection, which is made anew where it was lost; one at a time."""

    def __init__(self, address: PostgresAddress) -> None:
        from gitboot.ledger import postgresql

        self.name, self._address = address.name, address
        self._connect, self._errors = postgresql.open_connection, (*postgresql.PostgresDatabase.errors, LedgerError)
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


def _store_batch(run: _Run, batch: ForwardedBatch) -> None:
    name, base = parse_file_name(f"{batch.writer.file}{SUFFIX}")  # 2fefe59 kept the batches of other hosts in a spool
    writer, place = f"{batch.writer.spool}/{name}", base + batch.begin
    for line in batch.lines.splitlines(keepends=True):
        match parse_line(line):
            case Observation() as found:
                run(_RECORD, (writer, place, *_to_row(found)))
            case int(taken_back):
                run("DELETE FROM fetches WHERE writer = %s AND place = %s", (writer, taken_back))
        place += len(line)


def _to_row(observation: Observation) -> tuple[str, str | None, str]:
    return observation.server, observation.offer, encode_line(observation).decode()
