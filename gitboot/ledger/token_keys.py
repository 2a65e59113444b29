"""The keys by which tokens are published, for the hosts that share a ledger: what one has given, each of them hears."""

from __future__ import annotations

from collections.abc import Sequence

from gitboot.ledger.store import Store, Transaction


def read(store: Store) -> tuple[str, ...]:
    """The lines of their file, oldest first; none where no instance has left any."""
    return tuple(line for (line,) in store.rows("SELECT line FROM token_keys ORDER BY number"))


def write(tx: Transaction, lines: Sequence[str]) -> None:
    """Leave the lines of that file in the place of those before."""
    tx.execute("DELETE FROM token_keys")
    tx.executemany("INSERT INTO token_keys VALUES (?, ?)", list(enumerate(lines)))
