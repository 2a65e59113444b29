"""The book of lost identities: by which UUID, MAC address, serial number, address or name machines asked before.

A machine may still ask by an identity that its document lacks. A server that gets the identity later may install this
machine.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gitboot.fleet.identities import LostIdentity
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid

_TABLE: Final = "lost_identities"
_KEY: Final = ("kind", "value", "uuid")


def read(store: Store) -> frozenset[LostIdentity]:
    """Return every lost identity."""
    found = store.rows("SELECT kind, value, uuid, netboots FROM lost_identities")
    return frozenset(
        LostIdentity(kind, value, SystemUuid(uuid), bool(netboots)) for kind, value, uuid, netboots in found
    )


def write(tx: Transaction, before: Collection[LostIdentity], now: Collection[LostIdentity]) -> None:
    """Replace the lost identities. A backup that lacks a new one is an older copy."""
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    if gone:
        tx.delete(_TABLE, _KEY, [(str(each.kind), each.value, each.uuid) for each in gone])
    if new:
        rows = [(str(each.kind), each.value, each.uuid, int(each.netboots)) for each in new]
        tx.replace(_TABLE, _KEY, rows)
        tx.mark()
