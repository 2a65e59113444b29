"""A ledger in a PostgreSQL: one writer at a time, each commit durable there, whoever fails in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final
from uuid import uuid4

from gitboot.errors import LedgerError, LockedByAnother, UsageError
from gitboot.ledger.database import Database, Row
from gitboot.ledger.naming import PostgresAddress
from gitboot.ledger.sqlite import too_new
from gitboot.ledger.tables import NUMBERED, POSTGRESQL, VERSION

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
except ImportError:
    raise UsageError("psycopg is not installed, which a PostgreSQL needs: pip install 'gitboot[postgresql]'") from None

_CONNECT_S: Final = 5
_LOST_AFTER_MS: Final = 10_000  # without an acknowledgement of what was sent
_OLDEST: Final = 130000
# Who is paused within a transaction holds nobody up for longer than this; what is committed is on the disk.
_SETTINGS: Final = (
    "-c synchronous_commit=on -c lock_timeout=10s -c statement_timeout=60s -c idle_in_transaction_session_timeout=10s"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
    " -c client_min_messages=warning -c default_transaction_isolation=read\\ committed"
)
_KEY: Final = "hashtextextended('gitboot instance ' || current_schema(), 0)"
_ONE_INSTANCE: Final = f"SELECT pg_try_advisory_lock({_KEY})"
_WHO_HOLDS: Final = f"""
    SELECT coalesce(host(client_addr), 'this host') FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = {_KEY}
"""  # noqa: S608 - of our own
_ONE_WRITER: Final = "SELECT pg_advisory_xact_lock(hashtextextended('gitboot ' || current_schema(), 0))"


class PostgresDatabase(Database):
    """The tables in the schema that the address leads to, made where there are none.

    A connection that is lost is made anew before the next statement, never within a transaction.
    """

    errors: ClassVar = (psycopg.Error,)
    is_local: ClassVar = False
    snapshot: ClassVar = (
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
    )
    after_copying: ClassVar = tuple(
        f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table} HAVING max(id) IS NOT NULL"  # noqa: S608
        for table in NUMBERED
    )

    def __init__(self, address: PostgresAddress, *, synchronous: bool = True, reads_only: bool = False) -> None:
        self.name, self._is_held = address.name, False
        self._open = partial(_opened, address, synchronous=synchronous, reads_only=reads_only)
        with self.reading():
            self._connection = self._open(is_held=False)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._live().execute(_marked(statement), _storable(parameters) or None)
        return cursor.fetchall() if cursor.description is not None else []

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        if found := list(map(_storable, rows)):
            self._live().cursor().executemany(_marked(statement), found)

    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        if found := list(rows):
            same, marks = " AND ".join(f"{key} = ?" for key in keys), ", ".join("?" * len(found[0]))
            self.executemany(f"DELETE FROM {table} WHERE {same}", [row[: len(keys)] for row in found])  # noqa: S608
            last = {tuple(row[: len(keys)]): row for row in found}  # as one would replace the other
            self.executemany(f"INSERT INTO {table} VALUES ({marks})", last.values())  # noqa: S608

    def begin(self) -> None:
        connection = self._live()
        connection.execute("BEGIN")
        connection.execute(_ONE_WRITER)

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.closed or self._connection.broken:
            return
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            self._connection.execute("ROLLBACK")

    def may_have_lost(self, error: BaseException) -> bool:
        """Where the connection was lost, the answer to a COMMIT may have been."""
        return isinstance(error, psycopg.Error) and (self._connection.closed or self._connection.broken)

    def reopen(self) -> None:
        self._connection.close()
        with self.reading():
            self._live()

    def close(self) -> None:
        self._connection.close()

    def hold(self) -> None:
        """It is this connection's until it ends; the one that comes in its place holds it, or fails."""
        _hold(self._live(), self.name)
        self._is_held = True

    def unreadable(self, error: Exception) -> LedgerError:
        told = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, psycopg.OperationalError):
            return LedgerError(f"{self.name}: the ledger cannot be read ({told})")
        return LedgerError(f"{self.name}: the ledger cannot be read ({told}); restore it from a backup")

    def _live(self) -> psycopg.Connection[Row]:
        if self._connection.closed or self._connection.broken:
            self._connection = self._open(is_held=self._is_held)
        return self._connection


def _opened(address: PostgresAddress, *, synchronous: bool, reads_only: bool, is_held: bool) -> psycopg.Connection[Row]:
    asked = {"target_session_attrs": "any" if reads_only else "read-write", **arguments(address)}
    connection = psycopg.connect(**asked, autocommit=True)
    try:
        _check(connection, address.name, synchronous=synchronous)
        if not reads_only:
            _migrate(connection, address.name)
        if is_held:
            _hold(connection, address.name)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: psycopg.Connection[Row], name: str, *, synchronous: bool) -> None:
    if connection.info.server_version < _OLDEST:
        raise LedgerError(f"{name}: this PostgreSQL is older than version 13")
    (syncs,) = connection.execute("SHOW fsync").fetchone() or ("off",)
    if synchronous and syncs != "on":
        raise LedgerError(f"{name}: this PostgreSQL does not wait for its disk (fsync = off): turn that on")


def _migrate(connection: psycopg.Connection[Row], name: str) -> None:
    """Make the tables where there are none; who comes second finds them made."""
    with connection.transaction():
        connection.execute(_ONE_WRITER)
        (there,) = connection.execute("SELECT to_regclass('ledger_version')").fetchone() or (None,)
        if there is None:
            connection.execute(POSTGRESQL)
            connection.execute("INSERT INTO ledger_version VALUES (%s)", (VERSION,))
            connection.execute("INSERT INTO facts VALUES ('identity', %s)", (str(uuid4()),))
            return
        (version,) = connection.execute("SELECT number FROM ledger_version").fetchone() or (0,)
    if version > VERSION:
        raise too_new(name, version)


def _hold(connection: psycopg.Connection[Row], name: str) -> None:
    (is_ours,) = connection.execute(_ONE_INSTANCE).fetchone() or (False,)
    if not is_ours:
        who = connection.execute(_WHO_HOLDS).fetchone()
        raise LockedByAnother(f"{name} is in use by an instance{f' on {who[0]}' if who else ''}")


def arguments(address: PostgresAddress) -> dict[str, Any]:
    """An address as libpq takes it; over a network it is encrypted, and who answers is known, unless it says not."""
    try:
        asked = conninfo_to_dict(address.url)
    except psycopg.ProgrammingError:
        raise UsageError(f"{address.name} is no URL that PostgreSQL knows") from None
    safe = {} if address.is_here or "sslmode" in asked else {"sslmode": "verify-full", "sslrootcert": "system"}
    if address.password is not None:
        try:
            asked["password"] = address.password.read_text().strip()
        except OSError as error:
            raise LedgerError(f"{address.password}: the ledger's password cannot be read ({error.strerror})") from None
    return {
        "application_name": "gitboot",
        "connect_timeout": _CONNECT_S,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": _LOST_AFTER_MS,
        **safe,
        **asked,
        "options": f"{_SETTINGS} {asked.get('options') or ''}",
    }


def _marked(statement: str) -> str:
    return statement.replace("?", "%s")


def _storable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row without the one character that PostgreSQL has no place for."""
    return tuple(each.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(each, str) else each for each in row)
