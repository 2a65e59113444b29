"""A ledger from one database into another: each row of each table, compared when it is there."""

from __future__ import annotations

from collections.abc import Mapping

from gitboot.errors import LedgerError
from gitboot.ledger.location import NOTES
from gitboot.ledger.schema import TABLES, Database, Row


def copy_tables(ours: Database, new: Database) -> dict[str, int]:
    """Put all that is in ``ours`` in the place of all that is in ``new``; how many rows each table has.

    Who writes to ``ours`` meanwhile is not held up, and not copied. Raises `LedgerError` where what is read there then
    is not what was read here, and leaves ``new`` as it was.
    """
    with ours.reading():
        ours.execute(ours.snapshot)
        try:
            return copy_in_transaction(ours, new, {})
        finally:
            ours.rollback()


def copy_in_transaction(ours: Database, new: Database, notes: Mapping[str, str]) -> dict[str, int]:
    """The same of what the transaction of ``ours`` sees; ``new`` notes this of copies, and not what ``ours`` does."""
    counted = {}
    with ours.reading(), new.reading():
        try:
            new.begin(at_leisure=True)  # while the other is read
            for table in TABLES:
                new.execute(f"DELETE FROM {table}")  # noqa: S608 - of our own
                found = _rows(ours, table)
                if found:
                    marks = ", ".join("?" * len(found[0]))
                    new.many.each(f"INSERT INTO {table} VALUES ({marks})", found)  # noqa: S608
                counted[table] = len(found)
                if _rows(new, table) != found:
                    raise LedgerError(f"{new.name}: the table {table} is not what {ours.name} has; nothing was copied")
            for statement in new.after_copying:
                new.execute(statement)
            new.many.replace("facts", ("name",), notes.items())
            new.commit()
        except BaseException:
            new.rollback()
            raise
    return counted


def counted_rows(database: Database) -> dict[str, int]:
    """How many rows each table has."""
    return {
        table: database.execute(f"SELECT count(*) FROM {_whole(table)}")[0][0] if _is_there(database, table) else 0  # noqa: S608
        for table in TABLES
    }


def _rows(database: Database, table: str) -> list[Row]:
    """All rows of a table, in an order that does not depend on the database."""
    if not _is_there(database, table):
        return []
    return sorted(database.whole(f"SELECT * FROM {_whole(table)}"), key=repr)  # noqa: S608


def _is_there(database: Database, table: str) -> bool:
    """Return whether a database has a table: one of an older version that is only read lacks the newest."""
    query = "SELECT count(*) FROM sqlite_master WHERE name = ?" if database.is_local else "SELECT count(to_regclass(?))"
    return bool(database.execute(query, (table,))[0][0])


def _whole(table: str) -> str:
    """What a copy has of a table: all but what is noted of copies."""
    return f"facts WHERE name NOT IN {NOTES}" if table == "facts" else table
