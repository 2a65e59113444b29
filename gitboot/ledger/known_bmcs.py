"""The book of known BMCs: which may be sent which credentials because they were before, or a person has said so."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.bmc.credentials import Pair, origin_of
from gitboot.ledger.store import Store, Transaction


def read(store: Store) -> frozenset[Pair]:
    """The pairs; what a ledger of 0.1.0 knew of machines is spelt as documents did."""
    with store.reading():
        return frozenset((origin_of(address), name) for address, name in store.rows("SELECT * FROM known_bmcs"))


def write(tx: Transaction, pairs: Iterable[Pair]) -> None:
    """Replace them all."""
    tx.execute("DELETE FROM known_bmcs")
    tx.executemany("INSERT INTO known_bmcs VALUES (?, ?)", sorted(pairs))
