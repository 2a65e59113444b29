"""Ledger access: open, check, describe and copy a ledger, and rename a damaged ledger."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

from gitboot.errors import LedgerError
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.leader_lease import NO_HOLDER, LeaseState
from gitboot.ledger.schema import LEFT, TABLES, UNFINISHED, Database, Row
from gitboot.ledger.sqlite import SqliteDatabase, back_up
from gitboot.ledger.store import Store, get_mark_path, open_database, open_read_only, read_address

COPY: Final = "copy"  # the id of a copy, stored in both the old and the new ledger
NOTES: Final = (LEFT, COPY, UNFINISHED)  # a copy of a ledger omits these facts


def open_ledger(path: Path) -> Store:
    """Open the ledger at ``path``. If the ledger does not exist, create it with a new identity.

    Raises `DamagedLedger` if the ledger is damaged. Raises `LedgerError` if a newer version of gitboot wrote the
    ledger.
    """
    store = Store.open(path)
    try:
        check_tables(store)
    except BaseException:
        store.close()
        raise
    return store


def open_for_reading(path: Path) -> Store:
    """Open the ledger at ``path`` to read its identity, its events and the names of its machines.

    These are the same in ledgers of earlier versions. The function does not check or change the ledger, and later reads
    see what other processes have written since. Raises `LedgerError` if the ledger cannot be opened.
    """
    return Store(open_database(path, read_only=True), path)


@contextmanager
def open_copy(path: Path, *, in_use: bool) -> Iterator[Store]:
    """Open a temporary copy of the ledger at ``path``, which an earlier version of gitboot may have written.

    For ``in_use``, see `copy_ledger`. Raises `LedgerError` if the ledger cannot be read.
    """
    with TemporaryDirectory(prefix="gitboot-look-") as folder:
        copy = Path(folder, path.name)
        copy_ledger(path, copy, in_use=in_use)
        try:
            store = open_ledger(copy)
        except LedgerError as error:  # do not name the temporary copy in the message
            raise type(error)(str(error).replace(folder, str(path.parent))) from None
        with store:
            yield store


def read_places(path: Path) -> tuple[Path | None, Path | None]:
    """Return the output folder and the fetch log folder of the instance that uses a ledger.

    The function does not change or check the ledger. Raises `LedgerError` if the ledger cannot be read.
    """
    with open_read_only(path) as database:
        facts: dict[str, str] = dict(
            database.execute("SELECT name, value FROM facts WHERE name IN ('output', 'spool')")
        )
    output, spool = facts.get("output"), facts.get("spool")
    return Path(output) if output is not None else None, Path(spool) if spool is not None else None


class LedgerSummary(NamedTuple):
    """The main facts about a ledger that operators need."""

    name: str
    identity: str
    changes: int
    rows: Mapping[str, int]  # number of rows by table
    moved_to: str | None = None  # the place to which the ledger was moved; None: it was not moved
    lease: LeaseState | None = None


def summarize_ledger(path: Path) -> LedgerSummary:
    """Return the main facts about the ledger at ``path``. Raises `LedgerError` if the ledger cannot be read."""
    with open_read_only(path, open_moved=True) as database:
        notes = CopyNotes.read(database)
        lease = None if database.is_local or notes.moved_to is not None else _read_lease(database)
        return LedgerSummary(database.name, notes.identity, notes.changes, count_rows(database), notes.moved_to, lease)


def read_shared_token_keys(path: Path) -> tuple[str, ...]:
    """Return the lines in which a shared ledger stores the token keys, or () if the ledger is a file.

    Raises `LedgerError` if the ledger cannot be read.
    """
    if read_address(path) is None:
        return ()
    with open_read_only(path) as database:
        return tuple(line for (line,) in database.execute("SELECT line FROM token_keys ORDER BY number"))


def read_lease(path: Path) -> LeaseState | None:
    """Return the lease of a shared ledger, or None if no instance has ever taken a lease or the ledger is a file.

    Raises `LedgerError` if the ledger cannot be read.
    """
    if read_address(path) is None:
        return None
    with open_read_only(path) as database:
        return _read_lease(database)


def _read_lease(database: Database) -> LeaseState | None:
    rows = database.execute(
        "SELECT epoch, place, holder, until > clock_timestamp(),"
        """ to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM lease"""
    )
    return LeaseState(*rows[0]) if rows else None


def check_tables(store: Store) -> None:
    """Read all tables once, so that damage is found as soon as the ledger is opened.

    Raises `DamagedLedger` if a table is unreadable.
    """
    for read in (
        instance_tables.read_facts,
        server_tables.read_machines,
        server_tables.read_lost_identities,
        server_tables.read_records,
        server_tables.read_overrides,
        server_tables.read_power_records,
        server_tables.read_pins,
        server_tables.read_known_bmcs,
        instance_tables.read_requests,
        server_tables.read_secret_fetches,
        server_tables.read_pending_observations,
    ):
        read(store)


def set_ledger_aside(path: Path, label: str = "damaged") -> Path:
    """Rename a ledger file and its companion files. Return the new path, which ends with the label and a number.

    gitboot does not rename the mark file, and uses it to detect if an operator puts an older ledger in the same place.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{label}-{number}")).exists():
        number += 1
    # Rename the ledger last. After a crash, gitboot then finds the damaged ledger and does not create a new one.
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


# Copies


def copy_ledger(path: Path, target: Path, *, in_use: bool) -> None:
    """Copy the ledger at ``path`` into the file ``target``, without changing any of the ledger's files.

    If the ledger is a file that is ``in_use``, SQLite makes the copy, because only SQLite can read a consistent state
    while another process writes to the file. If the file is not in use, gitboot copies it without SQLite, because
    SQLite would create files in the ledger's folder or recover the transactions of a killed process. If the ledger is
    in PostgreSQL, gitboot reads all tables in one snapshot, which does not block other writers.
    """
    is_shared = read_address(path) is not None
    if in_use or is_shared:
        _copy_mark(path, target)  # gitboot copies the mark first, so that the copied ledger is not older than its mark
    if is_shared:
        with open_read_only(path) as ours, closing(SqliteDatabase(target)) as new:
            ours.execute(ours.snapshot)
            try:
                copy_in_transaction(ours, new, {})
            finally:
                ours.rollback()
    elif in_use:
        back_up(path, target)
    else:
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{target}{suffix}")
        _copy_mark(path, target)


def _copy_mark(path: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(get_mark_path(path), get_mark_path(target))


def copy_in_transaction(ours: Database, new: Database, notes: Mapping[str, str]) -> dict[str, int]:
    """Replace all rows in ``new`` with the rows that the current transaction of ``ours`` sees.

    Return the number of rows by table. The function does not copy the notes about copies and moves in ``ours``, but
    stores ``notes`` in ``new`` instead. It reads the rows back and compares them. If the rows differ, it raises
    `LedgerError` and leaves ``new`` unchanged.
    """
    counts = {}
    with ours.reading(), new.reading():
        try:
            new.begin(is_long=True)  # reading the old ledger may take a long time
            for table in TABLES:
                new.execute(f"DELETE FROM {table}")  # noqa: S608 - constant
                if rows := _read_rows(ours, table):
                    marks = ", ".join("?" * len(rows[0]))
                    new.execute_many(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
                counts[table] = len(rows)
                if _read_rows(new, table) != rows:
                    raise LedgerError(
                        f"{new.name}: the table {table} differs from the one in {ours.name}; nothing was copied"
                    )
            for statement in new.after_copy_sql:
                new.execute(statement)
            new.replace("facts", ("name",), notes.items())
            new.commit()
        except BaseException:
            new.rollback()
            raise
    return counts


def count_rows(database: Database) -> dict[str, int]:
    """Return the number of rows by table. A table that does not exist has 0 rows."""
    counts = dict.fromkeys(TABLES, 0)
    for table in TABLES:
        if _has_table(database, table):
            ((counts[table],),) = database.execute(f"SELECT count(*) FROM {_build_from_clause(table)}")  # noqa: S608
    return counts


def _read_rows(database: Database, table: str) -> list[Row]:
    """Return all rows of a table, sorted in an order that does not depend on the database."""
    if not _has_table(database, table):
        return []
    return sorted(database.stream_rows(f"SELECT * FROM {_build_from_clause(table)}"), key=repr)  # noqa: S608


def _has_table(database: Database, table: str) -> bool:
    """Return whether a table exists. An older ledger lacks newer tables if gitboot opened it read-only."""
    query = "SELECT count(*) FROM sqlite_master WHERE name = ?" if database.is_local else "SELECT count(to_regclass(?))"
    return bool(database.execute(query, (table,))[0][0])


def _build_from_clause(table: str) -> str:
    """Return the part after FROM of an SQL query that selects a table's rows, except notes about copies and moves."""
    return f"facts WHERE name NOT IN {NOTES}" if table == "facts" else table


# Notes about copies and moves


class CopyNotes(NamedTuple):
    """The identity of a ledger, and the ledger's notes about copies and moves."""

    identity: str
    changes: int
    moved_to: str | None  # the place to which the ledger was moved
    copy: str | None  # the id of the copy: this ledger is the copy, or was moved to the copy
    copied_from: str | None  # the ledger from which an unfinished copy is made

    @classmethod
    def read(cls, database: Database) -> Self:
        with database.reading():
            facts: dict[str, Any] = dict(database.execute("SELECT name, value FROM facts"))
            left = json.loads(facts[LEFT]) if LEFT in facts else {}
            return cls(
                identity=facts["identity"],
                changes=int(facts.get("changes", 0)),
                moved_to=left["place"] if left else None,
                copy=left["copy"] if left else facts.get(COPY),
                copied_from=facts.get(UNFINISHED),
            )


def record_move(database: Database, place: str, copy: str) -> None:
    """Record in the current transaction that the ledger was moved to ``place``."""
    database.replace("facts", ("name",), [(LEFT, json.dumps({"place": place, "copy": copy}))])


def end_lease(database: Database, place: str) -> None:
    """End the lease of a shared ledger permanently, in the transaction that moves the ledger.

    Until this transaction ends, other transactions must wait, even if they only read the lease.
    """
    if not database.is_local:
        database.execute("SELECT 1 FROM lease FOR UPDATE")
        database.execute(
            "UPDATE lease SET epoch = epoch + 1, holder = ?, place = ?, until = 'infinity'", (NO_HOLDER, place)
        )
        database.lease = None


def free_lease(database: Database) -> None:
    """Let instances take the lease of a shared ledger again, because a ledger that was moved away is used again."""
    if not database.is_local:
        database.execute("UPDATE lease SET until = clock_timestamp() WHERE holder = ?", (NO_HOLDER,))


def checkpoint_log(database: Database) -> None:
    """Write the contents of a SQLite ledger's write-ahead log into the ledger file."""
    if database.is_local:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
