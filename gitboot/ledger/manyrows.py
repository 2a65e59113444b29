"""Many rows, sent to a PostgreSQL some hundred at a time, each time in one simple query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gitboot.ledger.database import ManyRows

if TYPE_CHECKING:
    from gitboot.ledger.deadline_connection import LimitedConnection

_AT_ONCE: Final = 500
_COLUMNS: Final = (
    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


class PostgresRows(ManyRows):
    """By the connection that there is, whose cursors put parameters into the query themselves."""

    def __init__(self, live: Callable[[], LimitedConnection]) -> None:
        self._live = live
        self._columns: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}  # of statements that a connection has prepared
        self._of: LimitedConnection | None = None  # that connection

    def each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        for found in _some(map(storable, rows)):
            each = f"EXECUTE {self._prepared(statement, len(found[0]))} ({', '.join(['%s'] * len(found[0]))});"
            self._allowing(found).execute(each * len(found), list(chain.from_iterable(found)))

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(columns)
        for found in _some(map(storable, rows)):
            new = f"INSERT INTO {table} ({names}) SELECT {names} FROM {_those(table)}"  # noqa: S608
            self._allowing(found).execute(new, (_json(columns, found),))

    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        for found in _some(map(storable, rows)):
            self._allowing(found).execute(_deleting(table, keys), (_json(keys, found),))

    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        last = {row[: len(keys)]: row for row in map(storable, rows)}  # as one replaces the other
        for found in _some(last.values()):
            gone, new = _deleting(table, keys), f"INSERT INTO {table} SELECT * FROM {_those(table)}"  # noqa: S608
            self._allowing(found).execute(f"{gone}; {new}", (_json(keys, found), _json(self._columns_of(table), found)))

    def _allowing(self, rows: Sequence[object]) -> LimitedConnection:
        """Return the connection, whose transaction may take longer by these rows."""
        connection = self._live()
        connection.allow_rows(len(rows))
        return connection

    def _prepared(self, statement: str, count: int) -> str:
        """The name of a statement with so many parameters, which the connection plans once."""
        if (connection := self._live()) is not self._of:
            self._of, self._names = connection, {}
        if (name := self._names.get(statement)) is None:
            name = f"many_{len(self._names)}"
            marks = (f"${number}" for number in range(1, count + 1))
            connection.execute(f"PREPARE {name} AS {marked(statement) % tuple(marks)}")
            self._names[statement] = name  # which a transaction that is rolled back leaves there
        return name

    def _columns_of(self, table: str) -> list[str]:
        if table not in self._columns:
            self._columns[table] = [name for (name,) in self._live().execute(_COLUMNS, (table,))]
        return self._columns[table]


def marked(statement: str) -> str:
    """A statement of the books, with parameters as psycopg marks them."""
    return statement.replace("?", "%s")


def storable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row without the one character that PostgreSQL has no place for."""
    return tuple(each.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(each, str) else each for each in row)


def _some(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    rest = iter(rows)
    while found := list(islice(rest, _AT_ONCE)):
        yield found


def _those(table: str) -> str:
    """Rows of the form of a table's, which are a parameter."""
    return f"json_populate_recordset(NULL::{table}, %s) AS those"


def _deleting(table: str, keys: Sequence[str]) -> str:
    same = " AND ".join(f"{table}.{key} = those.{key}" for key in keys)
    return f"DELETE FROM {table} USING {_those(table)} WHERE {same}"  # noqa: S608


def _json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> str:
    return msgspec.json.encode([dict(zip(columns, row, strict=False)) for row in rows]).decode()
