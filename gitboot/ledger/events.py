"""The book of events: everything that happened, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gitboot.jsonio import format_instant
from gitboot.ledger import server_tables
from gitboot.ledger.database import Database
from gitboot.ledger.store import Store, Transaction, open_database
from gitboot.status.events_from_status import Event


def write(tx: Transaction, events: Iterable[Event]) -> None:
    tx.insert(
        "events",
        ("at", "type", "message", "facts"),
        [(format_instant(each.at), each.type, each.message, server_tables.json_of(_facts(each))) for each in events],
    )


def _facts(event: Event) -> dict[str, Any]:
    return {**event.facts, "level": "warning"} if event.warning else dict(event.facts)


def read(store: Store) -> Iterator[dict[str, Any]]:
    """Everything that was written down, oldest first, as JSON values."""
    for at, type, message, facts in store.rows("SELECT at, type, message, facts FROM events ORDER BY id"):
        with store.reading():
            yield {"at": at, "type": type, "message": message, **server_tables.json_value(facts)}


def accepted_commits(store: Store) -> tuple[str, ...]:
    """Return the commits that were ever accepted, in the order of their ids."""
    found = store.rows("SELECT facts FROM events WHERE type = 'Accepted'")
    with store.reading():
        commits = (server_tables.json_value(facts).get("commit") for (facts,) in found)
        return tuple(sorted({each for each in commits if isinstance(each, str)}))


def last(path: Path) -> int:
    """The number of the newest event in the ledger at ``path``; 0 where there is none."""
    with _beside(path) as database:
        ((found,),) = database.execute("SELECT coalesce(max(id), 0) FROM events")
        return int(found)


def after(path: Path, number: int, most: int) -> list[tuple[int, dict[str, Any]]]:
    """At most so many events behind event ``number``, with their own numbers, oldest first."""
    query = "SELECT id, at, type, message, facts FROM events WHERE id > ? ORDER BY id LIMIT ?"
    with _beside(path) as database:
        return [
            (int(id), {"at": at, "type": type, "message": message, **server_tables.json_value(facts)})
            for id, at, type, message, facts in database.execute(query, (number, most))
        ]


@contextmanager
def _beside(path: Path) -> Iterator[Database]:
    """A connection of its own, which only reads: whoever writes waits for it as little as it for them."""
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        yield database
