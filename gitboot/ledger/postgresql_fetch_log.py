"""Fetch log in PostgreSQL for hosts that share a ledger.

Each host records a boot in this log before it serves the boot. An endpoint serves one-time boots only from the output
tree of the instance that holds the lease, because any other instance's tree may be outdated. The transaction that
records a boot also reads the lease. Before an instance takes the lease, it waits until such transactions have ended.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    has_report_since_boot,
)
from gitboot.fetchlog.spool import (
    SUFFIX,
    ForwardedBatch,
    ReadResult,
    SpoolWriter,
    encode_line,
    parse_file_name,
    parse_line,
)
from gitboot.ledger.leader_lease import NO_HOLDER, Lease, now_s
from gitboot.ledger.schema import build_moved_error
from gitboot.ledger.store import PostgresAddress
from gitboot.text import format_error

FETCHES: Final = "fetches"  # this text replaces a file name in the table `spool`
_PING_INTERVAL_S: Final = 5.0  # interval between database checks while no machine boots
# gitboot does not delete fewer rows than this, because it must publish again after each deletion
_MIN_DELETED_ROWS: Final = 1000
_LOCK_LEASE: Final = "SELECT place, holder FROM lease FOR KEY SHARE"  # this lock does not block renewals of the lease
_SELECT_LEASE: Final = "SELECT epoch, holder, forgotten, place FROM lease"
_RECORD: Final = "INSERT INTO fetches (writer, place, server, offer, line) VALUES (%s, %s, %s, %s, %s)"

_Run = Callable[..., list[Any]]  # (statement, parameters) -> rows


class SharedFetchLog:
    """The shared fetch log as endpoints use it. Thread-safe."""

    def __init__(self, address: PostgresAddress) -> None:
        self._transactions = _Transactions(address)
        self.name = address.name
        self._queried_s = -math.inf
        self.serving_identity: str | None = None  # the lease at the last query; None: no instance had taken it by then
        self.deletion_count = 0  # number of deletions at the last query
        # why the last query failed; None: it succeeded
        self.failure: str | None = "gitboot has not queried the database yet"

    def close(self) -> None:
        self._transactions.close()

    def find_served_boot(self, server: str, offer: str, report: str | None) -> ServedBoot | None:
        """Return the record of a boot that any host served, or None if the boot was not served.

        Raises `FetchLogUnavailable` if the database cannot be used.
        """
        return find_served_boot(self._read_fetches(server, offer), offer, report)

    def has_installer_reported(self, server: str, token: str) -> bool:
        """Return whether an installer has sent a report since its boot was served.

        Raises `FetchLogUnavailable` if the database cannot be used.
        """
        return has_report_since_boot(self._read_fetches(server, None), token)

    def record(
        self, observation: Observation, serving_identity: str | None, is_given_up: Callable[[], bool] = bool
    ) -> None:
        """Record a fetch durably before the endpoint responds.

        ``serving_identity`` identifies the lease under which the output tree was published. Raises
        `FetchLogUnavailable` if the fetch may not have been recorded. If ``is_given_up`` returns True just before the
        fetch is sent to the database, the method records nothing.
        """
        with self._begin_query() as run:
            if serving_identity is None or self._read_lease(run, "FOR SHARE") != serving_identity or is_given_up():
                raise FetchLogUnavailable
            run(_RECORD, (None, None, *_to_row(observation)))

    def ping(self) -> None:
        """Query the database if the last query failed or was longer ago than the check interval."""
        if self.failure is not None or now_s() - self._queried_s >= _PING_INTERVAL_S:
            with suppress(FetchLogUnavailable):
                self._read_fetches("", None)

    def receive_batch(self, batch: ForwardedBatch, spool_files: Collection[str]) -> int:
        """Store a batch of fetches if it begins where the writer's earlier batches ended.

        Return the offset at which the next batch must begin. ``spool_files`` are the files that exist in the sender's
        fetch log. Raises `BatchRejected` if the batch cannot be stored.
        """
        spool, file = batch.writer
        with self._begin_batch() as run:
            run("INSERT INTO writers VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (spool, file))
            ((place,),) = run("SELECT place FROM writers WHERE spool = %s AND file = %s FOR UPDATE", (spool, file))
            if batch.begin != place or not batch.lines:
                return int(place)
            _store_batch(run, batch)
            run("UPDATE writers SET place = %s WHERE spool = %s AND file = %s", (batch.end, spool, file))
            run("DELETE FROM writers WHERE spool = %s AND NOT file = ANY(%s)", (spool, [*spool_files, file]))
        return batch.end

    def reset_place(self, writer: SpoolWriter, place: int) -> None:
        """Lower the offset at which a writer's next batch must begin to ``place``, if the offset is greater.

        Raises `BatchRejected` if this fails.
        """
        query = "UPDATE writers SET place = %s WHERE spool = %s AND file = %s AND place > %s"
        with self._begin_batch() as run:
            run(query, (place, *writer, place))

    @contextmanager
    def _begin_batch(self) -> Iterator[_Run]:
        with self._transactions.begin(lambda error: BatchRejected(format_error(error))) as run:
            for place, holder in run(_LOCK_LEASE):
                self._check_not_moved(place, holder)
            yield run

    def _read_fetches(self, server: str, offer: str | None) -> list[Observation]:
        with self._begin_query() as run:
            self._read_lease(run)
            lines = run("SELECT line FROM fetches WHERE server = %s OR offer = %s ORDER BY id", (server, offer))
        contents = (parse_line(line.encode()) for (line,) in lines)
        observations = (content for content in contents if isinstance(content, Observation))
        return [fetch for fetch in observations if fetch.digest is not None and fetch.is_evidence]

    def _read_lease(self, run: _Run, lock: str = "") -> str | None:
        """Store and return the identity of the lease, or None if no instance has ever taken a lease."""
        identity: str | None = None
        deletion_count = 0
        for epoch, holder, forgotten, place in run(f"{_SELECT_LEASE} {lock}"):  # the table has at most one row
            self._check_not_moved(place, holder)
            identity, deletion_count = str(Lease(holder, epoch)), forgotten
        self.serving_identity, self.deletion_count = identity, deletion_count
        return identity

    def _check_not_moved(self, place: str, holder: str) -> None:
        if holder == NO_HOLDER:
            raise build_moved_error(self.name, place)

    @contextmanager
    def _begin_query(self) -> Iterator[_Run]:
        """Run queries in one transaction, and record in `failure` whether it succeeded."""
        self._queried_s = now_s()
        with self._transactions.begin(self._record_failure) as run:
            yield run
        self.failure = None

    def _record_failure(self, error: Exception) -> FetchLogUnavailable:
        self.failure = format_error(error)
        return FetchLogUnavailable()


class RecordedFetches:
    """The shared fetch log as the lease holder uses it.

    Each method raises `LedgerError` if the database cannot be used.
    """

    def __init__(self, address: PostgresAddress, lease: Lease) -> None:
        self._transactions = _Transactions(address)
        self._lease = lease
        self.name = address.name
        self.fetch_log_id = str(lease)  # the identity that endpoints must find in the output tree

    def read(self, offsets: Mapping[str, int]) -> ReadResult:
        """Wait until running transactions have recorded their fetches, then return the fetches after ``offsets``."""
        after = offsets.get(FETCHES, 0)
        with self._transaction() as run:
            run("LOCK TABLE fetches IN SHARE MODE")
            ((until, highest),) = run(
                "SELECT coalesce(max(id), 0), pg_sequence_last_value(pg_get_serial_sequence('fetches', 'id')::regclass)"
                " FROM fetches"
            )
        if after > (highest or 0):  # an earlier version copied the position from another database
            after = 0
        if until <= after:
            return ReadResult([], {FETCHES: after}, 0)
        with self._transaction() as run:  # no lock here, so that a slow reader blocks no endpoint
            query = "SELECT id, writer, line FROM fetches WHERE id > %s AND id <= %s ORDER BY id"
            rows = run(query, (after, until))
        observations = _sort_fetches(rows)
        return ReadResult(observations, {FETCHES: rows[-1][0] if rows else after}, len(rows) - len(observations))

    def close(self) -> None:
        self._transactions.close()

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        """Return the number of the next deletion of rows that were already read.

        If there are not enough rows to delete yet, return the number of the last deletion.
        """
        query = "SELECT forgotten, (SELECT count(*) FROM fetches WHERE id <= %s) FROM lease"
        with self._transaction() as run:
            ((deletions, rows),) = run(query, (offsets.get(FETCHES, 0),))
        return int(deletions + (rows >= _MIN_DELETED_ROWS))

    def delete_read_fetches(self, offsets: Mapping[str, int], deletion_number: int) -> None:
        """Delete the rows up to ``offsets`` as deletion number ``deletion_number``.

        If this number was used before, or if another instance holds the lease, the method deletes nothing.
        """
        query = "UPDATE lease SET forgotten = %s WHERE holder = %s AND epoch = %s AND forgotten < %s RETURNING 1"
        with self._transaction() as run:
            if run(query, (deletion_number, *self._lease, deletion_number)):
                run("DELETE FROM fetches WHERE id <= %s", (offsets.get(FETCHES, 0),))

    def _transaction(self) -> AbstractContextManager[_Run]:
        return self._transactions.begin(
            lambda error: LedgerError(f"{self.name}: the recorded fetches cannot be read ({format_error(error)})")
        )


def _sort_fetches(rows: Iterable[tuple[int, str | None, str]]) -> list[Observation]:
    """Return the observations in rows of (id, writer, line), sorted by time. Rows without an observation are omitted.

    Even if a writer's clock was set back, an observation counts as later than the writer's observations before it.
    """
    latest: dict[str, datetime] = {}  # the latest time of each writer's observations
    timed: list[tuple[datetime, int, Observation]] = []
    for number, writer, line in rows:
        content = parse_line(line.encode())
        if not isinstance(content, Observation):
            continue
        at = content.at
        if writer is not None:
            at = latest[writer] = max(latest.get(writer, at), at)
        timed.append((at, number, content))
    timed.sort(key=lambda item: item[:2])
    return [observation for _, _, observation in timed]


class _Transactions:
    """One connection that runs one transaction at a time. If the connection is lost, a new connection replaces it."""

    def __init__(self, address: PostgresAddress) -> None:
        from gitboot.ledger import postgresql

        self._address = address
        self._connect = postgresql.open_connection
        self._errors = (*postgresql.PostgresDatabase.errors, LedgerError)
        self._lock = threading.Lock()
        self._connection: Any = None

    @contextmanager
    def begin(self, failure: Callable[[Exception], Exception]) -> Iterator[_Run]:
        """Run the block of a `with` statement in one transaction.

        ``failure`` converts a database error or a ledger error to the exception that is raised.
        """

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
    # Commit 2fefe59 stored the batches of other hosts in files.
    name, base = parse_file_name(f"{batch.writer.file}{SUFFIX}")
    writer = f"{batch.writer.spool}/{name}"
    place = base + batch.begin
    for line in batch.lines.splitlines(keepends=True):
        match parse_line(line):
            case Observation() as observation:
                run(_RECORD, (writer, place, *_to_row(observation)))
            case int(taken_back):
                run("DELETE FROM fetches WHERE writer = %s AND place = %s", (writer, taken_back))
        place += len(line)


def _to_row(observation: Observation) -> tuple[str, str | None, str]:
    """Return the values of the columns server, offer and line."""
    return observation.server, observation.offer, encode_line(observation).decode()
