"""The book of pins: what each machine's BMC showed of it, from first contact on."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.bmc.identity import Pinned
from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid


def read(store: Store) -> dict[SystemUuid, Pinned]:
    """What is pinned, by the UUID that the document says."""
    with store.reading():
        return {
            SystemUuid(uuid): server_tables.pin(facts) for uuid, facts in store.rows("SELECT * FROM pins ORDER BY uuid")
        }


def write(tx: Transaction, pins: Iterable[tuple[SystemUuid, Pinned]]) -> None:
    """Replace what is pinned for each machine.

    A backup without it is as good: what a BMC shows is pinned anew at the next contact.
    """
    tx.replace("pins", ("uuid",), [(uuid, server_tables.of_pin(each)) for uuid, each in pins])
