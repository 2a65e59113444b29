"""Move a ledger to another place, or take it back."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from gitboot.errors import LedgerError, UsageError
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.location import (
    COPY,
    Notes,
    PostgresAddress,
    address_beside,
    end_lease,
    file_beside,
    free_lease,
    note_address,
    note_left,
    settle,
)
from gitboot.ledger.open_ledger import set_aside
from gitboot.ledger.postgresql_fetch_log import FETCHES
from gitboot.ledger.schema import LEFT, UNFINISHED, Database, left
from gitboot.ledger.sqlite import SqliteDatabase
from gitboot.ledger.store import Store, copy_in_transaction, counted_rows, mark_of, open_database, read_mark


class Moved(NamedTuple):
    old: str
    new: str
    rows: Mapping[str, int]  # by table
    kept: Path | None  # what was the ledger, where it was a file
    was_copied: bool  # before: only what was left to do was done


def moved(path: Path, address: PostgresAddress | None) -> Moved:
    """Copy the ledger at ``path``, or that is named there, to ``address``, or to a file there; name the new place.

    For who holds the state directory. One that was copied there before is only named. Raises `UsageError` where the
    place is the same, or is not empty; `LockedByAnother` where an instance on another host has one of the two;
    `LedgerLeft` where it was copied elsewhere before; `LedgerError` where the copy is not the same.
    """
    if address_beside(path) == address:
        raise UsageError("the ledger is there already")
    with ExitStack() as stack:
        ours = stack.enter_context(closing(open_database(path, takes_any=True)))
        about = Notes.of(ours)
        if about.left_for is not None:
            if address is None and not path.exists():
                raise left(ours.name, about.left_for)
            new = stack.enter_context(closing(opened_at(path, address)))
            if (target := Notes.of(new)).copy != about.copy or target.left_for is not None:
                raise left(ours.name, about.left_for)
            found = counted_rows(new)
        else:
            ours.check_is_used()
            ours.hold(holder := Holder.of(path.parent))
            _refuse_untaken(ours)
            if address is None:
                stack.enter_context(_made(path, about))
            new = stack.enter_context(closing(opened_at(path, address)))
            _refuse_in_use(new, about)
            free_lease(new)
            new.hold(holder)
            found = _copied(ours, new, f"{socket.gethostname()}:{path.absolute()}" if address is None else new.name)
        _finish(new)
    kept = _named(path, address)
    return Moved(ours.name, new.name, found, kept, about.left_for is not None)


def _copied(ours: Database, new: Database, place: str) -> dict[str, int]:
    """Copy it while nobody writes to it, and note that it is left; the copy is unfinished as yet."""
    copy = str(uuid4())
    try:
        ours.begin(at_leisure=True)
        _refuse_untaken(ours)
        found = copy_in_transaction(ours, new, {COPY: copy, UNFINISHED: ours.name})
        end_lease(ours, place)
        _refuse_untaken(ours)  # now nobody records more of it
        note_left(ours, place, copy)
        ours.commit()
        settle(ours)
    except BaseException as error:
        with suppress(*ours.errors):
            ours.rollback()
        if isinstance(error, ours.errors):
            raise ours.unreadable(error) from error
        raise
    return found


def _finish(new: Database) -> None:
    with new.reading():
        new.begin()
        new.execute("DELETE FROM facts WHERE name = ?", (UNFINISHED,))
        new.commit()


def _named(path: Path, address: PostgresAddress | None) -> Path | None:
    """Name the new place; return where the old one is now, if that was a file."""
    if address is None:
        file_beside(path).unlink()
        return None
    note_address(path, address)
    if not path.exists():
        return None
    if not (kept := set_aside(path, "copied")).exists():
        raise LedgerError(f"{path} is gone")
    return kept


def _refuse_untaken(ours: Database) -> None:
    """What hosts have given, and no instance has taken in, would be given once more."""
    if not ours.is_local:
        ((untaken,),) = ours.execute(
            "SELECT count(*) FROM fetches WHERE id > coalesce((SELECT taken FROM spool WHERE file = ?), 0)", (FETCHES,)
        )
        if untaken:
            raise UsageError(
                f"{ours.name} holds what endpoints have given and no instance has taken in yet ({untaken}): let"
                " `gitboot run --once` do so first"
            )


@contextmanager
def _made(path: Path, about: Notes) -> Iterator[None]:
    """Make room for a file, which is gone where nothing comes of it; one that a killed copy left may be there."""
    if path.exists():
        with closing(SqliteDatabase(path)) as found:
            if not _is_unfinished(Notes.of(found), about):
                raise UsageError(f"{path} is there already; move it away")
    try:
        yield
    except BaseException:
        with closing(SqliteDatabase(path)) as found:
            is_copy = Notes.of(found).copy is not None
        for suffix in () if is_copy else ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        raise


def opened_at(path: Path, address: PostgresAddress | None) -> Database:
    """A place, whatever it notes of copies: that at the address, or the file."""
    database: Database
    if address is None:
        database = SqliteDatabase(path)
    else:
        from gitboot.ledger.postgresql import PostgresDatabase

        database = PostgresDatabase(address)
    database.takes_any = True
    return database


def _refuse_in_use(new: Database, about: Notes) -> None:
    """Raise `UsageError` where there is more than an identity, or a copy of this very ledger that did not end."""
    found = Notes.of(new)
    if _is_unfinished(found, about):
        return
    if any(number for table, number in counted_rows(new).items() if table != "facts"):
        was = "what was the ledger before" if found.left_for is not None else "a ledger"
        raise UsageError(f"{new.name} holds {was} already; name a database, or a schema, with nothing in it")
    if found.left_for is None and found.identity == about.identity:
        raise UsageError("the ledger is there already")
    if found.left_for is not None and (found.identity != about.identity or found.changes > about.changes):
        raise UsageError(
            f"{new.name} was another ledger, or knows more; name a database, or a schema, with nothing in it"
        )


def _is_unfinished(found: Notes, about: Notes) -> bool:
    return found.source is not None and found.identity == about.identity and found.changes <= about.changes


_DOUBT: Final = "RestoredLedger"


class Reclaimed(NamedTuple):
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
    if named is not None and named.name == about.left_for:
        found = path
    elif host == socket.gethostname() and Path(file).is_file():
        found = Path(file)
    else:
        return
    try:
        database = open_database(found, reads_only=True)
    except (LedgerError, UsageError):  # its schema may be gone
        return
    with closing(database):
        if Notes.of(database).identity == about.identity:
            raise UsageError(
                f"the ledger goes on at {about.left_for}, which answers: take it from there by `gitboot ledger copy`,"
                " once this place is empty"
            )


def _opened(place: PostgresAddress | Path) -> Database:
    return opened_at(place, None) if isinstance(place, Path) else opened_at(Path(), place)
