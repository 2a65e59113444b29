"""The book of requests: what operators asked of the instance, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gitboot.jsonio import format_instant
from gitboot.ledger import server_tables
from gitboot.ledger.instance_tables import Request
from gitboot.ledger.store import Store, Transaction


def give(store: Store, at: datetime, who: str, what: str, facts: Mapping[str, Any]) -> int:
    """Leave a request for the instance; from any process. Return its number."""
    with store.writing() as tx:
        ((number,),) = tx.rows(
            "INSERT INTO requests (at, who, what, facts) VALUES (?, ?, ?, ?) RETURNING id",
            (format_instant(at), who, what, server_tables.json_of(facts)),
        )
    return int(number)


def read(store: Store) -> tuple[Request, ...]:
    """Requests that are not carried out yet, oldest first."""
    with store.reading():
        found = store.rows("SELECT id, at, who, what, facts FROM requests WHERE outcome IS NULL ORDER BY id")
        return tuple(
            Request(number, server_tables.instant(at), who, what, server_tables.json_value(facts))
            for number, at, who, what, facts in found
        )


def carry_out(tx: Transaction, outcomes: Iterable[tuple[Request, str]], at: datetime) -> None:
    """Note what came of requests, in the transaction that writes it."""
    tx.executemany(
        "UPDATE requests SET outcome = ?, done_at = ? WHERE id = ?",
        [(outcome, format_instant(at), request.id) for request, outcome in outcomes],
    )


def outcome(store: Store, number: int) -> str | None:
    """What came of a request; None while it waits."""
    found = store.rows("SELECT outcome FROM requests WHERE id = ?", number)
    return found[0][0] if found else None
