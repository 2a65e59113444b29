"""What is noted in a ledger that was copied elsewhere, and in its copy: at any time at most one of the two is used.

The copy is written first, and notes that it is unfinished; then the old one notes that it is left, and for which copy;
then the copy is no longer unfinished, and is named. Killed before the second, the old one goes on, and the copy may be
written anew; killed after it, none of them is used, until the same is typed again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from gitboot.errors import LedgerLeft, LedgerUnfinished
from gitboot.text import shell_words

if TYPE_CHECKING:
    from gitboot.ledger.database import Database

LEFT: Final = "left"  # a fact of the old one
COPY: Final = "copy"  # of both: which copy it was
UNFINISHED: Final = "unfinished"  # of the new one, until the old one is left
NOTES: Final = (LEFT, COPY, UNFINISHED)  # none of them is copied
NOBODY: Final = ""  # who holds the lease of a ledger that is left


class Notes(NamedTuple):
    """What a ledger notes of copies, and which one it is."""

    identity: str
    changes: int
    left_for: str | None  # where it was copied to, and goes on
    copy: str | None  # the copy for which it was left, or that it is itself
    source: str | None  # what it is an unfinished copy of

    @classmethod
    def of(cls, database: Database) -> Self:
        """Raises `LedgerError` where it cannot be read."""
        with database.reading():
            found: dict[str, Any] = dict(database.execute("SELECT name, value FROM facts"))
            left = json.loads(found[LEFT]) if LEFT in found else {}
            return cls(
                identity=found["identity"],
                changes=int(found.get("changes", 0)),
                left_for=left["place"] if left else None,
                copy=left["copy"] if left else found.get(COPY),
                source=found.get(UNFINISHED),
            )


def note_left(database: Database, place: str, copy: str) -> None:
    """Note that it goes on elsewhere, with the transaction that there is."""
    database.many.replace("facts", ("name",), [(LEFT, json.dumps({"place": place, "copy": copy}))])


def end_lease(database: Database, place: str) -> None:
    """Let nobody take the lease of a shared ledger any more, with the transaction that there is: it goes on elsewhere.

    Not even a transaction that only looks at the lease goes on beside this one.
    """
    if not database.is_local:
        database.execute("SELECT 1 FROM lease FOR UPDATE")
        leave = "UPDATE lease SET epoch = epoch + 1, holder = ?, place = ?, until = 'infinity'"
        database.execute(leave, (NOBODY, place))
        database.lease = None


def free_lease(database: Database) -> None:
    """Let the lease of a shared ledger be taken again, though it was left."""
    if not database.is_local:
        database.execute("UPDATE lease SET until = clock_timestamp() WHERE holder = ?", (NOBODY,))


def settle(database: Database) -> None:
    """Let what was written to a ledger in a file stand in the file itself, and not beside it."""
    if database.is_local:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def check_is_used(database: Database) -> None:
    """Raise `LedgerLeft` where it was copied elsewhere, `LedgerUnfinished` where it is half a copy."""
    rows = database.execute(f"SELECT name, value FROM facts WHERE name IN ('{LEFT}', '{UNFINISHED}')")  # noqa: S608
    for name, value in rows:
        if name == LEFT:
            raise left(database.name, json.loads(value)["place"])
        to = "file" if database.is_local else "URL"
        raise LedgerUnfinished(
            f"{database.name}: this is a copy of {value} that has not ended, and no ledger yet; let it end, or where it"
            f" was killed, type it on that host once more: gitboot ledger copy --state STATE --to {shell_words(to)}"
        )


def left(name: str, place: str) -> LedgerLeft:
    """What whoever opens a ledger that was left is told."""
    if place.startswith("postgres"):
        how = (
            "name that to this host's STATE, too, which also ends a copy that was killed: gitboot ledger copy --state"
            " STATE --to URL; and where --ledger names the old place, name the new one"
        )
    else:
        how = (
            "end the instances of other hosts; a copy that was killed is ended there by: gitboot ledger copy"
            " --state STATE --to file"
        )
    return LedgerLeft(f"{name}: this ledger was copied to {place}, goes on there, and is not used here any more; {how}")
