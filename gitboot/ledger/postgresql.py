"""PostgreSQL driver of the ledger, with a deadline for each call."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from uuid import uuid4

import msgspec

from gitboot.errors import HeldByAnother, LeaseLost, LedgerError, UsageError
from gitboot.http_client import RequestLimits, resolve_host
from gitboot.ledger.leader_lease import NO_HOLDER, SHARE, HeldLease, Holder, Lease, now_s
from gitboot.ledger.postgresql_fetch_log import FETCHES
from gitboot.ledger.schema import (
    NUMBERED,
    POSTGRESQL,
    POSTGRESQL_MIGRATIONS,
    SHARED,
    VERSION,
    Database,
    Row,
    build_moved_error,
    build_version_error,
)
from gitboot.ledger.store import PostgresAddress
from gitboot.text import format_error

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import PGconn, TransactionStatus

except ImportError:
    raise UsageError("a PostgreSQL ledger needs psycopg; run `pip install 'gitboot[postgresql]'`") from None


# Connections

_CONNECT_S: Final = 5
_LOST_AFTER_MS: Final = 10_000  # close a connection if the server does not acknowledge sent data for this long
_MIN_SERVER_VERSION: Final = 130000
# The timeouts limit how long a client can block other clients if it pauses within a transaction. With
# synchronous_commit, a commit waits for the disk.
_SETTINGS: Final = (
    "-c synchronous_commit=on -c lock_timeout=10s -c statement_timeout=30s -c idle_in_transaction_session_timeout=5s"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
    " -c client_min_messages=warning -c default_transaction_isolation=read\\ committed"
)

# Deadlines

ANSWER_S: Final = 5.0  # timeout for a statement to which a healthy server responds immediately
LOCK_S: Final = 12.0  # timeout for a statement that may wait for a lock; more than `lock_timeout` (10 s)
STATEMENT_S: Final = 35.0  # timeout for any other statement; more than `statement_timeout` (30 s)
LEISURE_S: Final = 605.0  # timeout for a statement during a copy of a ledger, for which `statement_timeout` is 10 min
_SET_SHORT_TIMEOUTS: Final = "SET statement_timeout = '5s'; SET lock_timeout = '3s'"
_SHORT_S: Final = 6.0  # timeout for a statement on a connection with these settings
TRANSACTION_S: Final = 60.0  # timeout for a transaction with few rows, from begin to commit
ROW_S: Final = 0.01  # time added to a timeout for each row; PostgreSQL stores about 10,000 rows a second

# Statements

# This many rows fit into a socket buffer, so a reader that pauses does not keep the transaction open.
_ROWS_PER_FETCH: Final = 100
_ROWS_PER_BATCH: Final = 500
_COLUMNS: Final = (
    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_LEASE_END: Final = "clock_timestamp() + %(seconds)s * interval '1 second'"
_TAKE: Final = f"""
    INSERT INTO lease VALUES (1, 1, %(holder)s, %(place)s, {_LEASE_END}, 0)
    ON CONFLICT (one) DO UPDATE
    SET epoch = CASE lease.holder WHEN excluded.holder THEN lease.epoch ELSE lease.epoch + 1 END,
        holder = excluded.holder, place = excluded.place, until = excluded.until
    WHERE lease.until <= clock_timestamp() OR lease.holder = excluded.holder RETURNING epoch
"""  # noqa: S608 - constant
_RENEW: Final = f"UPDATE lease SET until = {_LEASE_END} WHERE holder = %(holder)s AND epoch = %(epoch)s RETURNING 1"  # noqa: S608
_SELECT_HOLDER: Final = "SELECT place, holder FROM lease"
_SELECT_OTHER_HOLDER: Final = "SELECT place, holder FROM lease WHERE until > clock_timestamp() AND holder <> %s"
_FOLLOWED_FACTS: Final = "SELECT name, value FROM facts WHERE name IN ('identity', 'changes', 'branch', 'accepted')"
_ONE_WRITER: Final = "SELECT pg_advisory_xact_lock(hashtextextended('gitboot ' || current_schema(), 0))"

# Errors that restoring a backup can fix. Others have causes outside of the data, such as a missing privilege.
_DAMAGE_ERRORS: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.DataCorrupted,
    psycopg.errors.IndexCorrupted,
    psycopg.errors.InternalError_,
    # an earlier restore did not complete
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
)
_T = TypeVar("_T")


class PostgresDatabase(Database):
    """A ledger in a PostgreSQL schema, in which gitboot creates missing tables.

    After a lost connection, the next statement opens a new connection. A caller must therefore end a transaction at its
    first error.
    """

    errors: ClassVar = (psycopg.Error,)
    is_local: ClassVar = False
    snapshot: ClassVar = (
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
    )
    after_copy_sql: ClassVar = (
        *(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table} HAVING max(id) IS NOT NULL"  # noqa: S608
            for table in NUMBERED
        ),
        # the copied position is a row number in the fetch log of the old database
        f"DELETE FROM spool WHERE file = '{FETCHES}'",  # noqa: S608
    )

    _commit_s = LOCK_S  # deadline for committing the current transaction
    _renewed_s = 0.0  # when the current transaction sent the renewal of the lease

    def __init__(self, address: PostgresAddress, *, synchronous: bool = True, read_only: bool = False) -> None:
        self.name, self.address = address.name, address
        self._open = partial(_open_database, address, synchronous=synchronous, read_only=read_only)
        self._column_names: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}  # prepared statement names by SQL text
        self._prepared_on: LimitedConnection | None = None  # the connection on which these statements are prepared
        with self.reading():
            self._connection = self._open()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._get_connection().execute(convert_placeholders(statement), replace_nul(parameters) or None)
        return cursor.fetchall() if cursor.description is not None else []

    def stream_rows(self, query: str) -> Iterator[Row]:
        connection = self._get_connection()
        connection.execute(f"DECLARE whole NO SCROLL CURSOR FOR {query}")
        while rows := connection.execute(f"FETCH {_ROWS_PER_FETCH} FROM whole").fetchall():
            yield from rows
        connection.execute("CLOSE whole")

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        for batch in _split_rows(map(replace_nul, rows)):
            count = len(batch[0])
            execute_sql = f"EXECUTE {self._prepare(statement, count)} ({', '.join(['%s'] * count)});"
            self._get_connection_for(batch).execute(execute_sql * len(batch), list(chain.from_iterable(batch)))

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(columns)
        for batch in _split_rows(map(replace_nul, rows)):
            insert_sql = f"INSERT INTO {table} ({names}) SELECT {names} FROM {_build_row_source(table)}"  # noqa: S608
            self._get_connection_for(batch).execute(insert_sql, (_encode_rows(columns, batch),))

    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        for batch in _split_rows(map(replace_nul, rows)):
            self._get_connection_for(batch).execute(_build_delete(table, keys), (_encode_rows(keys, batch),))

    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        # if several rows have the same key, keep the last one
        last = {row[: len(keys)]: row for row in map(replace_nul, rows)}
        for batch in _split_rows(last.values()):
            delete_sql = _build_delete(table, keys)
            insert_sql = f"INSERT INTO {table} SELECT * FROM {_build_row_source(table)}"  # noqa: S608
            if table not in self._column_names:
                self._column_names[table] = [name for (name,) in self._get_connection().execute(_COLUMNS, (table,))]
            keys_of_rows = _encode_rows(keys, (row[: len(keys)] for row in batch))
            rows_of_table = _encode_rows(self._column_names[table], batch)
            self._get_connection_for(batch).execute(f"{delete_sql}; {insert_sql}", (keys_of_rows, rows_of_table))

    def _get_connection_for(self, rows: Sequence[object]) -> LimitedConnection:
        connection = self._get_connection()
        connection.allow_rows(len(rows))
        return connection

    def _prepare(self, statement: str, count: int) -> str:
        """Prepare a statement with ``count`` parameters, once per connection, and return its name."""
        connection = self._get_connection()
        if connection is not self._prepared_on:
            self._prepared_on, self._names = connection, {}
        name = self._names.get(statement)
        if name is None:
            name = f"many_{len(self._names)}"
            marks = (f"${number}" for number in range(1, count + 1))
            connection.execute(f"PREPARE {name} AS {convert_placeholders(statement) % tuple(marks)}")
            self._names[statement] = name  # a prepared statement survives a rollback
        return name

    def begin(self, *, is_long: bool = False) -> None:
        connection = self._get_connection()
        connection.limit_transaction(math.inf if is_long else TRANSACTION_S)
        self._commit_s = LEISURE_S if is_long else LOCK_S
        with connection.call_timeout(ANSWER_S):
            connection.execute("BEGIN")
        with connection.call_timeout(LOCK_S):
            connection.execute(_ONE_WRITER)
            if self.lease is not None:
                self._renewed_s = _renew(connection, self.lease)
            elif not self.open_moved:
                self.check_usable()
        if is_long:
            connection.limit_calls(LEISURE_S)
            connection.execute(
                "SET LOCAL idle_in_transaction_session_timeout = '10min'; SET LOCAL statement_timeout = '10min'"
            )

    def commit(self) -> None:
        """Commit the transaction.

        If the transaction took long, the method first renews the lease, because no other thread could renew the lease
        during the transaction. If the server does not respond, the commit may still be durable.
        `may_have_lost_writes` reports this case.
        """
        if self.lease is not None and now_s() > self._renewed_s + self.lease.seconds / SHARE:
            self._renewed_s = _renew(self._connection, self.lease)
        with self._connection.call_timeout(self._commit_s):
            self._connection.execute("COMMIT")
        self._connection.end_transaction()
        if self.lease is not None:
            self.lease.extend(self._renewed_s)

    def rollback(self) -> None:
        if self._connection.closed or self._connection.broken:
            return
        self._connection.end_transaction()
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            with self._connection.call_timeout(ANSWER_S):
                self._connection.execute("ROLLBACK")

    def may_have_lost_writes(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.Error) and (self._connection.closed or self._connection.broken)

    def probe(self) -> None:
        connection = self._get_connection()
        with connection.call_timeout(ANSWER_S):
            connection.execute("SELECT 1")

    def reopen(self) -> None:
        self._connection.close()
        with self.reading():
            self._get_connection()

    def close(self) -> None:
        if self.lease is not None and not self.lease.is_lost:
            # If the release fails, the lease expires later.
            with suppress(psycopg.Error), self._connection.call_timeout(ANSWER_S):
                self._connection.execute(
                    "UPDATE lease SET until = clock_timestamp() WHERE holder = %(holder)s AND epoch = %(epoch)s",
                    self.lease.lease._asdict(),
                )
        self._connection.close()

    def take_lease(self, holder: Holder) -> None:
        sent_s = now_s()
        with self.reading():
            connection = self._get_connection()
            parameters = {"holder": holder.id, "place": holder.place, "seconds": holder.seconds}
            before = connection.execute("SELECT epoch, place FROM lease").fetchone()
            taken = connection.execute(_TAKE, parameters).fetchone()
            if taken is None:
                place, holder_id = connection.execute(_SELECT_HOLDER).fetchone() or ("another host", None)
                if holder_id == NO_HOLDER:
                    raise build_moved_error(self.name, place)
                raise HeldByAnother(f"{self.name} is in use by the instance {place}")
        self.lease = HeldLease(Lease(holder.id, taken[0]), holder.seconds, self.name, holder.place)
        self.lease.previous_place = before[1] if before is not None and before[0] < taken[0] else None
        self.lease.extend(sent_s)

    def to_ledger_error(self, error: Exception) -> LedgerError:
        message = f"{self.name}: the ledger cannot be read ({format_error(error)})"
        is_damaged = not isinstance(error, psycopg.Error) or isinstance(error, _DAMAGE_ERRORS)
        return LedgerError(f"{message}; restore it from a backup" if is_damaged else message)

    def _get_connection(self) -> LimitedConnection:
        """Return the connection, or a new connection if the connection was lost."""
        if self._connection.closed or self._connection.broken:
            self._connection = self._open()
        return self._connection


def _open_database(address: PostgresAddress, *, synchronous: bool, read_only: bool) -> LimitedConnection:
    """Connect to a database, check the server and the schema, and migrate the tables to the current version.

    Raises `UsageError` if the schema is missing, because gitboot does not create schemas.
    """
    connection = _connect(address, "any" if read_only else "read-write")
    name = address.name
    try:
        if connection.info.server_version < _MIN_SERVER_VERSION:
            raise LedgerError(f"{name}: PostgreSQL 13 or newer is required")
        (syncs,) = connection.execute("SHOW fsync").fetchone() or ("off",)
        if synchronous and syncs != "on":
            raise LedgerError(f"{name}: this PostgreSQL server has fsync = off; set fsync = on")
        schema, user = _check_schema(connection, name)
        if not read_only:
            try:
                _migrate(connection, name)
            except psycopg.errors.InsufficientPrivilege:
                can_create = connection.execute("SELECT has_schema_privilege(%s, 'CREATE')", (schema,)).fetchone()
                if can_create == (False,):  # otherwise, the role lacks a privilege for a table
                    raise _build_privilege_error(f"create tables in schema {schema}", name, schema, user) from None
                raise
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: psycopg.Connection[Row], name: str) -> tuple[str, str]:
    """Return the schema of the ledger and the current role. Raises `UsageError` if the role cannot use the schema."""
    row = connection.execute("SELECT current_schema(), current_user, current_setting('search_path')").fetchone()
    schema, user, path = row or (None, "", "")
    if schema is not None:
        return schema, user
    wanted = path.split(",")[0].strip().strip('"').replace("$user", user)
    if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (wanted,)).fetchone() is None:
        raise UsageError(
            f'{name}: schema {wanted} does not exist; run: CREATE SCHEMA "{wanted}" AUTHORIZATION "{user}"'
        )
    raise _build_privilege_error(f"use schema {wanted}", name, wanted, user)


def _build_privilege_error(action: str, name: str, schema: str, user: str) -> UsageError:
    command = f'GRANT USAGE, CREATE ON SCHEMA "{schema}" TO "{user}"'
    return UsageError(f"{name}: {user} is not allowed to {action}; run: {command}")


def _migrate(connection: psycopg.Connection[Row], name: str) -> None:
    """Create the tables, or migrate the tables of an older version, unless another process has already done so."""
    with connection.transaction():
        connection.execute(_ONE_WRITER)
        (version_table,) = connection.execute("SELECT to_regclass('ledger_version')").fetchone() or (None,)
        (has_lease,) = connection.execute("SELECT to_regclass('lease')").fetchone() or (None,)
        if has_lease is None:
            connection.execute(SHARED)
        if version_table is None:
            connection.execute(POSTGRESQL)
            connection.execute("INSERT INTO ledger_version VALUES (%s)", (VERSION,))
            connection.execute("INSERT INTO facts VALUES ('identity', %s)", (str(uuid4()),))
            return
        (version,) = connection.execute("SELECT number FROM ledger_version").fetchone() or (0,)
        if version > VERSION:
            raise build_version_error(name, version)
        for number in range(version, VERSION):
            connection.execute(POSTGRESQL_MIGRATIONS[number])
            connection.execute("UPDATE ledger_version SET number = %s", (number + 1,))


def _renew(connection: psycopg.Connection[Row], lease: HeldLease) -> float:
    """Renew a lease in the current transaction.

    Return the time when the renewal was sent, in seconds on the clock of `now_s`. Raises `LeaseLost` if another
    instance holds the lease.
    """
    sent_s = now_s()
    if connection.execute(_RENEW, {**lease.lease._asdict(), "seconds": lease.seconds}).fetchone() is None:
        place, holder_id = connection.execute(_SELECT_HOLDER).fetchone() or (lease.name, None)
        lease.moved_message = str(build_moved_error(lease.name, place)) if holder_id == NO_HOLDER else None
        raise lease.mark_lost()
    return sent_s


class LeaseConnection:
    """A separate connection that renews or reads a lease. It is opened on first use."""

    def __init__(self, address: PostgresAddress) -> None:
        self.name, self._address = address.name, address
        self._connection: LimitedConnection | None = None

    def renew(self, lease: HeldLease) -> None:
        """Renew the lease. If the server does not respond, leave ``lease`` unchanged.

        Raises `LeaseLost` if another instance holds the lease.
        """
        used_before = self._connection is not None
        try:
            lease.extend(_renew(self._get_connection(), lease))
        except LeaseLost:
            raise
        except (psycopg.Error, LedgerError):
            self.close()
            if used_before:  # the server may have restarted since the last use
                self.renew(lease)

    def find_other_holder(self, holder: Holder) -> str | None:
        """Return the host and state directory of the lease's other holder, or None if ``holder`` can take the lease.

        Raises `LedgerLeft` if the ledger was moved. Raises `LedgerError` if the database cannot be read.
        """
        try:
            rows = self._get_connection().execute(_SELECT_OTHER_HOLDER, (holder.id,)).fetchall()
        except psycopg.errors.UndefinedTable:
            return None
        except psycopg.Error as error:
            self.close()
            raise LedgerError(f"{self._address.name}: the ledger cannot be read ({format_error(error)})") from error
        if rows and rows[0][1] == NO_HOLDER:
            raise build_moved_error(self.name, rows[0][0])
        return rows[0][0] if rows else None

    def read_followed_facts(self) -> dict[str, str]:
        """Return the facts that a standby follows, or {} if the database cannot currently be read.

        These are the ledger's identity and change number, and the active instance's branch and accepted commit.
        """
        try:
            return dict(self._get_connection().execute(_FOLLOWED_FACTS).fetchall())
        except (psycopg.Error, LedgerError):
            self.close()
            return {}

    def _get_connection(self) -> LimitedConnection:
        if self._connection is None:
            self._connection = open_connection(self._address)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# Connecting


def open_connection(address: PostgresAddress) -> LimitedConnection:
    """Open a connection to an existing ledger, for short transactions. Raises `psycopg.Error` or `LedgerError`."""
    connection = _connect(address, "read-write")
    connection.limit_calls(_SHORT_S)
    connection.execute(_SET_SHORT_TIMEOUTS)
    return connection


def _connect(address: PostgresAddress, session_attrs: str) -> LimitedConnection:
    parameters = {"target_session_attrs": session_attrs, **build_arguments(address)}
    parameters |= _look_up_hosts(parameters)
    return LimitedConnection.connect(**parameters, autocommit=True, cursor_factory=psycopg.ClientCursor)


def _look_up_hosts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the host, IP address and port of each server to try, because psycopg's own look-up has no deadline.

    Raises `psycopg.OperationalError` if there is no server to try.
    """
    effective = _read_effective_parameters(parameters)
    hosts = _split_parameter(effective, "host")
    addresses = _split_parameter(effective, "hostaddr")
    ports = _split_parameter(effective, "port")
    count = max(len(hosts), len(addresses))
    # one host, address or port applies to all servers
    columns = [values * count if len(values) == 1 else values for values in (hosts, addresses, ports)]
    if any(len(values) != count for values in columns):
        return {}  # psycopg reports a wrong number of hosts or ports
    servers: list[tuple[str, str, str]] = []
    failures: list[str] = []
    for host, address, port in zip(*columns, strict=True):
        limits = RequestLimits(deadline_s=_CONNECT_S)
        try:
            ips = [address] if address or _is_socket(host) else resolve_host(host, 0, limits)
        except TimeoutError:
            failures.append(f"{host}: the name server did not respond within {_CONNECT_S:g} s")
        except OSError as error:
            failures.append(f"{host}: {error.strerror}")
        else:
            servers += [(host, ip, port) for ip in ips]
    if not servers:
        raise psycopg.OperationalError("; ".join(failures))
    return {
        "host": ",".join(host for host, _, _ in servers),
        "hostaddr": ",".join(ip for _, ip, _ in servers),
        "port": ",".join(port for _, _, port in servers),
    }


def build_arguments(address: PostgresAddress) -> dict[str, Any]:
    """Return the libpq connection parameters for an address.

    Over a network, the connection is encrypted and the server's certificate is verified, unless the URL sets
    ``sslmode``.
    """
    try:
        parameters = conninfo_to_dict(address.url)
    except psycopg.ProgrammingError:
        raise UsageError(f"{address.name} is not a valid PostgreSQL URL") from None
    if address.password is not None:
        parameters["password"] = _read_password(address.password)
    return {
        "application_name": "gitboot",
        "connect_timeout": _CONNECT_S,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": _LOST_AFTER_MS,
        **_build_tls_parameters(parameters),
        **parameters,
        "options": f"{_SETTINGS} {parameters.get('options') or ''}",
    }


def _read_password(file: Path) -> str:
    """Read the password from a file. Raises `LedgerError`, without the password in the message, if this fails."""
    try:
        password = file.read_bytes().decode().strip()
    except OSError as error:
        raise LedgerError(f"{file}: the ledger's password cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{file}: the ledger's password is not valid UTF-8") from None
    if not password or len(password.splitlines()) > 1 or "\0" in password:
        raise LedgerError(f"{file}: expected one line with the ledger's password")
    return password


def _build_tls_parameters(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that are missing so that libpq verifies the certificate of a server on another host."""
    effective = _read_effective_parameters(parameters)
    hosts = _split_parameter(effective, "host") + _split_parameter(effective, "hostaddr")
    if "sslmode" in parameters or all(map(_is_local_host, hosts)):
        return {}
    is_named_in_url = "host" in parameters or "hostaddr" in parameters
    # libpq's default file, which gitboot uses only if a service or the environment names the server
    has_default_file = not is_named_in_url and Path("~/.postgresql/root.crt").expanduser().is_file()
    authority = {} if has_default_file or "sslrootcert" in effective else {"sslrootcert": "system"}
    if not is_named_in_url and effective.get("sslmode") == "verify-ca":
        return {}  # libpq rejects verify-ca with the authorities of the system
    return {"sslmode": "verify-full"} | authority


def _read_effective_parameters(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that libpq uses, including those of a service, the environment and the defaults.

    Return {} if libpq cannot read the service. Connecting then fails with libpq's error.
    """
    # libpq rejects this value after it has read all parameters, and before it looks up or connects to a host
    probe = PGconn.connect_start(make_conninfo("", **{**parameters, "target_session_attrs": "none"}).encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in probe.info if option.val}
    finally:
        probe.finish()


def _split_parameter(parameters: Mapping[str, str], name: str) -> list[str]:
    """Return the values of a parameter that may have one value for each server."""
    return parameters.get(name, "").split(",")


def _is_local_host(host: str) -> bool:
    if _is_socket(host) or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_socket(host: str) -> bool:
    return not host or host.startswith(("/", "@"))  # "": libpq's default socket


# Statements and rows


def convert_placeholders(statement: str) -> str:
    """Replace each placeholder ``?`` in a statement with psycopg's placeholder ``%s``."""
    return statement.replace("?", "%s")


def replace_nul(row: Sequence[Any]) -> tuple[Any, ...]:
    """Replace the NUL characters in a row, because PostgreSQL cannot store them."""
    return tuple(value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value for value in row)


def _split_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows in lists that one statement can store."""
    rest = iter(rows)
    while batch := list(islice(rest, _ROWS_PER_BATCH)):
        yield batch


def _build_row_source(table: str) -> str:
    """Return an SQL table expression for rows that are passed as JSON, with the column types of ``table``."""
    return f"json_populate_recordset(NULL::{table}, %s) AS those"


def _build_delete(table: str, keys: Sequence[str]) -> str:
    same = " AND ".join(f"{table}.{key} = those.{key}" for key in keys)
    return f"DELETE FROM {table} USING {_build_row_source(table)} WHERE {same}"  # noqa: S608


def _encode_rows(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> str:
    """Encode rows as the JSON that `_build_row_source` decodes."""
    return msgspec.json.encode([dict(zip(columns, row, strict=True)) for row in rows]).decode()


# Connections with deadlines


class LimitedConnection(psycopg.Connection[Row]):
    """A connection with deadlines.

    A call that exceeds its deadline closes the connection and raises `OperationalError`. The result of the call is then
    unknown. For example, a commit may be durable. Use a connection in only one thread at a time.
    """

    _call_s = STATEMENT_S
    _until_s = math.inf  # deadline of the transaction, on the monotonic clock

    @contextmanager
    def call_timeout(self, seconds: float) -> Iterator[None]:
        """Limit the duration of each call in a `with` block."""
        before, self._call_s = self._call_s, seconds
        try:
            yield
        finally:
            self._call_s = before

    def limit_calls(self, seconds: float) -> None:
        """Limit the duration of each call from now on, until `end_transaction` is called."""
        self._call_s = seconds

    def limit_transaction(self, seconds: float) -> None:
        """Limit the total duration of all calls on this connection until this method is called again."""
        self._until_s = time.monotonic() + seconds

    def end_transaction(self) -> None:
        """Remove the limits of a transaction."""
        self._call_s, self._until_s = STATEMENT_S, math.inf

    def allow_rows(self, count: int) -> None:
        """Give the transaction more time, because it writes this number of rows."""
        self._until_s += ROW_S * count

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Wait like `psycopg.Connection.wait`, but only until the deadline.

        psycopg calls this method for each operation.
        """
        now_s = time.monotonic()
        until_s = min(now_s + self._call_s, self._until_s)
        return super().wait(self._run_until(gen, until_s, until_s - now_s), *args, **kwargs)

    def _run_until(self, gen: Generator[Any, Any, _T], until_s: float, seconds: float) -> Generator[Any, Any, _T]:
        """Run a psycopg generator until the deadline. The generator is resumed several times a second."""
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if time.monotonic() >= until_s:
                    gen.close()
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {max(seconds, 0):.0f} s")
                waits_for = gen.send(ready)
        except StopIteration as ended:
            result: _T = ended.value
            return result
