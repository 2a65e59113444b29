"""A ledger that was left, used again: what it was copied to is lost, and all that was done since with it."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.errors import LedgerError, UsageError
from gitboot.ledger import instance_tables
from gitboot.ledger.database import Database
from gitboot.ledger.location import (
    COPY,
    LEFT,
    Notes,
    PostgresAddress,
    address_beside,
    file_beside,
    free_lease,
    note_address,
    settle,
)
from gitboot.ledger.move_ledger import opened_at
from gitboot.ledger.store import Store, mark_of, open_database, read_mark

_DOUBT: Final = "RestoredLedger"


class Reclaimed(NamedTuple):
    """A place that was left."""

    name: str
    left_for: str | None  # None: another host uses it again already
    identity: str
    changes: int


def reclaimable(path: Path, place: PostgresAddress | Path) -> Reclaimed:
    """What stands at a ``place`` that was left, for the instance whose ledger is to be at ``path``.

    Raises `UsageError` where it was not left, where another ledger is named at ``path``, or where what it was left for
    still answers: then it is copied back.
    """
    if isinstance(place, Path) and not place.is_file():
        raise UsageError(f"{place} is no file")
    with closing(_opened(place)) as database:
        about, name = Notes.of(database), database.name
    known = read_mark(mark_of(path))
    if about.left_for is None and (database.is_local or known is None or known[0] != about.identity):
        raise UsageError(f"{name} was not left: nothing is to be done")
    _refuse_lost_too_early(path, about)
    if place != path and path.exists():
        raise UsageError(f"{path} is there already; move it away")
    return Reclaimed(name, about.left_for, about.identity, about.changes)


def reclaim(path: Path, place: PostgresAddress | Path) -> None:
    """Use a ``place`` again as the ledger at ``path``; it is in doubt then. For who holds the state directory.

    Killed in between, it is typed again: it is in doubt before it is used.
    """
    with closing(_opened(place)) as database:
        if Notes.of(database).left_for is not None:
            instance_tables.doubt(Store(database, path), _DOUBT)
            with database.reading():
                database.begin()
                database.execute("DELETE FROM facts WHERE name IN (?, ?)", (LEFT, COPY))
                free_lease(database)
                database.commit()
            settle(database)
    if isinstance(place, PostgresAddress):
        note_address(path, place)
        return
    if place != path:
        place.rename(path)
    file_beside(path).unlink(missing_ok=True)


def _refuse_lost_too_early(path: Path, about: Notes) -> None:
    """Raise `UsageError` where the ledger goes on, as far as this host can see."""
    host, _, file = (about.left_for or "").partition(":")
    named = address_beside(path)
    found: list[Path] = []
    if named is not None and named.name == about.left_for:
        found.append(path)
    elif host == socket.gethostname() and Path(file).is_file():
        found.append(Path(file))
    for each in found:
        if (database := _answering(each)) is not None:
            with closing(database):
                if Notes.of(database).identity == about.identity:
                    raise UsageError(
                        f"the ledger goes on at {about.left_for}, which answers: take it from there by `gitboot ledger"
                        " copy`, once this place is empty"
                    )


def _opened(place: PostgresAddress | Path) -> Database:
    return opened_at(place, None) if isinstance(place, Path) else opened_at(Path(), place)


def _answering(path: Path) -> Database | None:
    try:
        return open_database(path, reads_only=True)
    except (LedgerError, UsageError):  # its schema may be gone
        return None
