"""A ledger taken from one place to another, where it goes on as the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

from gitboot.errors import LedgerError, UsageError
from gitboot.ledger.copying import copy_tables, counted_rows
from gitboot.ledger.database import Database
from gitboot.ledger.fetches import FETCHES
from gitboot.ledger.lease import Holder
from gitboot.ledger.naming import PostgresAddress, address_beside, file_beside, note_address
from gitboot.ledger.sqlite import SqliteDatabase
from gitboot.ledger.store import open_database


class Moved(NamedTuple):
    """What was done."""

    old: str
    new: str
    rows: Mapping[str, int]  # by table
    kept: Path | None  # what was the ledger, where it was a file


def moved(path: Path, address: PostgresAddress | None) -> Moved:
    """Copy the ledger at ``path``, or that is named there, to ``address``, or to a file there; name the new place.

    For who holds the state directory. Killed before it is named, the old one goes on. Raises `UsageError` where the
    place is the same, or is not empty; `LockedByAnother` where an instance on another host has one of the two;
    `LedgerError` where the copy is not the same.
    """
    before = address_beside(path)
    if before == address:
        raise UsageError("the ledger is there already")
    with ExitStack() as stack:
        ours = stack.enter_context(closing(open_database(path)))
        ours.hold(holder := Holder.of(path.parent))
        _refuse_untaken(ours)
        new = stack.enter_context(closing(_emptied(path, address)))
        new.hold(holder)
        found = copy_tables(ours, new)
    kept = None
    if address is not None:
        note_address(path, address)
        kept = _put_away(path)
    else:
        file_beside(path).unlink()
    return Moved(ours.name, new.name, found, kept)


def _refuse_untaken(ours: Database) -> None:
    """What hosts have given, and no instance has taken in, would be given once more."""
    if ours.lease is not None:
        ((untaken,),) = ours.execute(
            "SELECT count(*) FROM fetches WHERE id > coalesce((SELECT taken FROM spool WHERE file = ?), 0)", (FETCHES,)
        )
        if untaken:
            raise UsageError(
                f"{ours.name} holds what endpoints have given and no instance has taken in yet ({untaken}): let"
                " `gitboot run --once` do so first"
            )


def _emptied(path: Path, address: PostgresAddress | None) -> Database:
    """The new place, with nothing in it but an identity."""
    if address is None:
        if path.exists():
            raise UsageError(f"{path} is there already; move it away")
        return SqliteDatabase(path)
    from gitboot.ledger.postgresql import PostgresDatabase

    database = PostgresDatabase(address)
    if any(number for table, number in counted_rows(database).items() if table != "facts"):
        database.close()
        raise UsageError(f"{address.name} holds a ledger already; name a database, or a schema, with nothing in it")
    return database


def _put_away(path: Path) -> Path:
    """Where the file is now, under a name at which no gitboot looks for a ledger."""
    number = 1
    while (kept := path.with_name(f"{path.name}.copied-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
    if not kept.exists():
        raise LedgerError(f"{path} is gone")
    return kept
