"""The book of machines: every one that was ever seen, as the accepted commits have described it."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.fleet.identities import Machine
from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid


def read(store: Store) -> dict[SystemUuid, Machine]:
    """Every machine, by UUID, as it was described last."""
    with store.reading():
        found = map(
            server_tables.machine, store.rows("SELECT uuid, name, macs, serial, bmc FROM machines ORDER BY uuid")
        )
        return {machine.uuid: machine for machine in found}


def standing(store: Store) -> frozenset[SystemUuid]:
    """The machines of the accepted commit."""
    return frozenset(SystemUuid(uuid) for (uuid,) in store.rows("SELECT uuid FROM machines WHERE stands = 1"))


def write(tx: Transaction, machines: Iterable[Machine], *, gone: Iterable[SystemUuid] = (), stand: bool = True) -> None:
    """Replace what is known of these machines, and note which have left the fleet; what they were stays.

    Not to ``stand``: the accepted commit does not have them.
    """
    tx.executemany("UPDATE machines SET stands = 0 WHERE uuid = ?", [(uuid,) for uuid in gone])
    tx.replace("machines", ("uuid",), [(*server_tables.of_machine(each), int(stand)) for each in machines])
