"""A ledger as a file: opened if every table in it can be read, copied, or set aside where it is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.leader_lease import Holder, LeaseState
from gitboot.ledger.location import CopyNotes, read_address
from gitboot.ledger.schema import Database
from gitboot.ledger.sqlite import SqliteDatabase, back_up
from gitboot.ledger.store import Store, copy_tables, count_rows, mark_path, open_database


def open_ledger(path: Path) -> Store:
    """The ledger at ``path``, made with an identity of its own where there is none.

    Raises `DamagedLedger` where it does not hold together, `LedgerError` where a newer gitboot made it.
    """
    store = Store.open(path)
    try:
        check_tables(store)
    except BaseException:
        store.close()
        raise
    return store


def read_places(path: Path) -> tuple[Path | None, Path | None]:
    """Where the instance of a ledger publishes, and where its endpoints record; nothing of it is written or checked.

    Raises `LedgerError` where it cannot be read.
    """
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        found: dict[str, str] = dict(
            database.execute("SELECT name, value FROM facts WHERE name IN ('output', 'spool')")
        )
    output, spool = (Path(found[name]) if name in found else None for name in ("output", "spool"))
    return output, spool


class LedgerSummary(NamedTuple):
    """A ledger at a glance."""

    name: str
    identity: str
    changes: int
    rows: Mapping[str, int]  # by table
    moved_to: str | None = None  # where it was copied to, and goes on
    lease: LeaseState | None = None


def summarize_ledger(path: Path) -> LedgerSummary:
    """The ledger at ``path``, or that is named there, as it is; raises `LedgerError` where it cannot be read."""
    with closing(open_database(path, reads_only=True, takes_any=True)) as database, database.reading():
        notes = CopyNotes.read(database)
        lease = None if database.is_local or notes.moved_to is not None else _read_lease(database)
        return LedgerSummary(database.name, notes.identity, notes.changes, count_rows(database), notes.moved_to, lease)


def find_other_acting_instance(path: Path, holder: Callable[[], Holder]) -> str | None:
    """Where the instance is that acts by the ledger, in place of ``holder``; None: none does, or it is a file."""
    if read_address(path) is None:
        return None
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        rows = database.execute(
            "SELECT place FROM lease WHERE until > clock_timestamp() AND holder <> ?", (holder().id,)
        )
    return str(rows[0][0]) if rows else None


def read_shared_token_keys(path: Path) -> tuple[str, ...]:
    """The keys by which hosts that share a ledger publish tokens, as lines; none where nobody has left any there.

    Raises `LedgerError` where it cannot be read.
    """
    if read_address(path) is None:
        return ()
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        return tuple(line for (line,) in database.execute("SELECT line FROM token_keys ORDER BY number"))


def read_lease(path: Path) -> LeaseState | None:
    """The lease of a ledger that hosts share; None: nobody has had it, or it is a file. Raises as `described`."""
    if read_address(path) is None:
        return None
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        return _read_lease(database)


def _read_lease(database: Database) -> LeaseState | None:
    rows = database.execute(
        "SELECT epoch, place, holder, until > clock_timestamp(),"
        """ to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM lease"""
    )
    return LeaseState(*rows[0]) if rows else None


def check_tables(store: Store) -> None:
    """Raise `DamagedLedger` if a table cannot be read: it is noticed now, and not in use."""
    for read in (
        instance_tables.read_facts,
        server_tables.read_machines,
        server_tables.read_lost_identities,
        server_tables.read_records,
        server_tables.read_overrides,
        server_tables.read_switches,
        server_tables.read_pins,
        server_tables.read_known_bmcs,
        instance_tables.read_requests,
        server_tables.read_secret_fetches,
        server_tables.read_pending,
    ):
        read(store)


def copy_ledger(path: Path, to: Path, *, in_use: bool) -> None:
    """Copy the ledger at ``path`` into a file, leaving everything beside it as it is.

    While another process writes to it, only SQLite knows what holds together; without one SQLite would make files
    there, or complete what a process left that was killed. Of a PostgreSQL its tables are read at one instant.
    """
    if in_use or read_address(path) is not None:
        _copy_mark(path, to)  # before the ledger, which is then no older than it
    if read_address(path) is not None:
        with closing(open_database(path, reads_only=True)) as ours, closing(SqliteDatabase(to)) as new:
            copy_tables(ours, new)
    elif in_use:
        back_up(path, to)
    else:
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{to}{suffix}")
        _copy_mark(path, to)


def _copy_mark(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(mark_path(path), mark_path(to))


def set_aside(path: Path, label: str = "damaged") -> Path:
    """Move a ledger out of the way, with all that belongs to it; return where it is now: at ``word`` and a number.

    Its mark stays: whatever comes in its place knows less.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{label}-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):  # the ledger last: a crash in between leaves a damaged one, not a new one
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside
