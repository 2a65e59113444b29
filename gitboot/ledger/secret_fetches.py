"""The book of secret fetches: who fetched the secrets of each server in its newest installation."""

from __future__ import annotations

from collections.abc import Mapping

from gitboot.fetchlog.one_time_boots import InstallationFetches
from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid


def read(store: Store) -> dict[SystemUuid, InstallationFetches]:
    """Return the fetches of secrets by the server's UUID."""
    with store.reading():
        found = store.rows("SELECT uuid, facts FROM secret_fetches ORDER BY uuid")
        return {SystemUuid(uuid): server_tables.secret_fetches(facts) for uuid, facts in found}


def write(tx: Transaction, fetches: Mapping[SystemUuid, InstallationFetches | None]) -> None:
    """Replace the fetches of these servers; None deletes them.

    A backup without them is as good: they change no plan.
    """
    tx.delete("secret_fetches", ("uuid",), [(uuid,) for uuid, each in fetches.items() if each is None])
    written = [(uuid, server_tables.of_secret_fetches(each)) for uuid, each in fetches.items() if each is not None]
    tx.replace("secret_fetches", ("uuid",), written)
