"""The book of overrides: what was set at BMCs, for which reason, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.bmc.override_state import OverrideRecord
from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid


def read(store: Store) -> dict[SystemUuid, dict[str, OverrideRecord]]:
    """Every override that was set, by server and reason, one a reason."""
    found: dict[SystemUuid, dict[str, OverrideRecord]] = {}
    with store.reading():
        for uuid, *rest in store.rows(f"SELECT uuid, {server_tables.OVERRIDE} FROM overrides ORDER BY uuid, reason"):  # noqa: S608
            record = server_tables.override(rest)
            found.setdefault(SystemUuid(uuid), {})[record.reason] = record
    return found


def write(tx: Transaction, overrides: Iterable[tuple[SystemUuid, OverrideRecord]]) -> None:
    """Replace what is recorded for each server and reason."""
    if found := [(uuid, *server_tables.of_override(record)) for uuid, record in overrides]:
        tx.mark()
        tx.replace("overrides", ("uuid", "reason"), found)
