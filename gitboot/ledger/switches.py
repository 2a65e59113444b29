"""The book of switches: how machines' power was switched, for which reason, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.bmc.power_steps import SwitchRecord
from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid


def read(store: Store) -> dict[SystemUuid, dict[str, SwitchRecord]]:
    """Every switch that was made, by server and reason, one a reason."""
    found: dict[SystemUuid, dict[str, SwitchRecord]] = {}
    with store.reading():
        for uuid, facts in store.rows("SELECT uuid, facts FROM switches ORDER BY uuid, reason"):
            record = server_tables.switch(facts)
            found.setdefault(SystemUuid(uuid), {})[record.reason] = record
    return found


def write(tx: Transaction, switches: Iterable[tuple[SystemUuid, SwitchRecord]]) -> None:
    """Replace what is recorded for each server and reason."""
    if found := [(uuid, record.reason, server_tables.of_switch(record)) for uuid, record in switches]:
        tx.mark()
        tx.replace("switches", ("uuid", "reason"), found)
