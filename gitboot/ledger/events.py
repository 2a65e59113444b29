"""The book of events: everything that happened, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gitboot.ledger import rows
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars import format_instant
from gitboot.status import Event


def write(tx: Transaction, events: Iterable[Event]) -> None:
    tx.executemany(
        "INSERT INTO events (at, type, message, facts) VALUES (?, ?, ?, ?)",
        [(format_instant(each.at), each.type, each.message, rows.json_of(each.facts)) for each in events],
    )


def read(store: Store) -> Iterator[dict[str, Any]]:
    """Everything that was written down, oldest first, as JSON values."""
    for at, type, message, facts in store.rows("SELECT at, type, message, facts FROM events ORDER BY id"):
        with store.reading():
            yield {"at": at, "type": type, "message": message, **rows.json_value(facts)}
