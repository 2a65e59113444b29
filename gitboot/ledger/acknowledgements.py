"""The book of acknowledgements: what must not count again with ``--reinstalls-need signed``.

An entry is the SHA-256 of what a commit's signature covers, if the commit led to an accepted one; or the
`gitboot.review.guards.AckLine.id` of a line that counted before its commit was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.ledger.store import Store, Transaction


def read(store: Store) -> frozenset[str]:
    """Return every entry."""
    return frozenset(entry for (entry,) in store.rows("SELECT entry FROM acknowledgements"))


def add(tx: Transaction, entries: Iterable[str]) -> None:
    """Add entries. A backup that lacks them is an older copy."""
    if rows := [(entry,) for entry in sorted(entries)]:
        tx.replace("acknowledgements", ("entry",), rows)
        tx.mark()
