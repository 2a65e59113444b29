"""A ledger as a file: opened if every book in it can be read, copied, or set aside where it is damaged."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from gitboot.ledger import evidence, facts, known_bmcs, machines, overrides, pins, records, requests, switches
from gitboot.ledger.store import Store, reading


def open_ledger(path: Path) -> Store:
    """The ledger at ``path``, made with an identity of its own where there is none.

    Raises `DamagedLedger` where it does not hold together, `LedgerError` where a newer gitboot made it.
    """
    store = Store.open(path)
    try:
        check(store)
    except BaseException:
        store.close()
        raise
    return store


def places(path: Path) -> tuple[Path | None, Path | None]:
    """Where the instance of a ledger publishes, and where its endpoints record; nothing of it is written or checked.

    Raises `LedgerError` where it cannot be read.
    """
    with reading(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = dict(connection.execute("SELECT name, value FROM facts WHERE name IN ('output', 'spool')"))
    output, spool = (Path(found[name]) if name in found else None for name in ("output", "spool"))
    return output, spool


def check(store: Store) -> None:
    """Raise `DamagedLedger` if there is a book that cannot be read: it is noticed now, and not in use."""
    for book in (facts, machines, records, overrides, switches, pins, known_bmcs, requests):
        book.read(store)
    evidence.pending(store)


def copy_ledger(path: Path, to: Path, *, in_use: bool) -> None:
    """Copy the ledger at ``path``, leaving everything beside it as it is.

    While another process writes to it, only SQLite knows what holds together; without one SQLite would make files
    there, or complete what a process left that was killed.
    """
    with reading(path):
        if in_use:
            _copy_mark(path, to)  # before the ledger, which is then no older than it
            with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(to)) as new:
                ours.backup(new)
        else:
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{suffix}", f"{to}{suffix}")
            _copy_mark(path, to)


def _copy_mark(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(path.with_suffix(".mark"), to.with_suffix(".mark"))


def set_aside(path: Path) -> Path:
    """Move a damaged ledger out of the way, with all that belongs to it; return where it is now.

    Its mark stays: whatever comes in its place knows less.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):  # the ledger last: a crash in between leaves a damaged one, not a new one
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside
