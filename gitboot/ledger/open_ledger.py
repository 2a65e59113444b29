"""Ledger access: open, check, describe and copy a ledger, and rename a damaged ledger."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.leader_lease import LeaseState
from gitboot.ledger.schema import Database
from gitboot.ledger.sqlite import SqliteDatabase, back_up
from gitboot.ledger.store import (
    CopyNotes,
    Store,
    copy_tables,
    count_rows,
    get_mark_path,
    open_database,
    open_read_only,
    read_address,
)


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


def read_places(path: Path) -> tuple[Path | None, Path | None]:
    """Return the output folder and the fetch log folder of the instance that uses a ledger.

    The function does not change or check the ledger. Raises `LedgerError` if the ledger cannot be read.
    """
    with open_read_only(path) as database:
        found: dict[str, str] = dict(
            database.execute("SELECT name, value FROM facts WHERE name IN ('output', 'spool')")
        )
    output, spool = (Path(found[name]) if name in found else None for name in ("output", "spool"))
    return output, spool


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


def copy_ledger(path: Path, target: Path, *, in_use: bool) -> None:
    """Copy the ledger at ``path`` into the file ``target``, without changing any of the ledger's files.

    If the ledger is a file that is ``in_use``, SQLite makes the copy, because only SQLite can read a consistent state
    while another process writes to the file. If the file is not in use, gitboot copies it without SQLite, because
    SQLite would create files in the ledger's folder or recover the transactions of a killed process. If the ledger is
    in PostgreSQL, gitboot reads all tables in one snapshot.
    """
    if in_use or read_address(path) is not None:
        _copy_mark(path, target)  # gitboot copies the mark first, so that the copied ledger is not older than its mark
    if read_address(path) is not None:
        with closing(open_database(path, read_only=True)) as ours, closing(SqliteDatabase(target)) as new:
            copy_tables(ours, new)
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
