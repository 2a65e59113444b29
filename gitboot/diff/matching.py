"""Which server of one commit is which of another: by UUID, what it replaces, else by name, MAC, serial or BMC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gitboot.fleet.identities import Machine
from gitboot.model.scalars.machines import SystemUuid

Pair = tuple[str | None, str | None]  # a server's name before and after; None: it was not there


def matched(old: Mapping[SystemUuid, Machine], new: Mapping[SystemUuid, Machine]) -> list[Pair]:
    """Every server of both commits once, in the order of its name (its new one, where it has one).

    A UUID says most, then what a document says that it replaces. What is left is matched by the marks that a new
    motherboard keeps, the surest first.
    """
    pairs = [(machine.name, new[uuid].name) for uuid, machine in old.items() if uuid in new]
    gone = {uuid: machine for uuid, machine in old.items() if uuid not in new}
    come = {uuid: machine for uuid, machine in new.items() if uuid not in old}
    for uuid, machine in list(come.items()):
        if machine.replaces is not None and machine.replaces in gone:
            pairs.append((gone.pop(machine.replaces).name, come.pop(uuid).name))
    for kind in ("name", "MAC", "serial", "BMC"):
        whose = {mark: uuid for uuid, machine in gone.items() for mark in _marks(machine, kind)}
        for uuid, machine in list(come.items()):
            before = next((whose[mark] for mark in _marks(machine, kind) if mark in whose), None)
            if before in gone:
                pairs.append((gone.pop(before).name, come.pop(uuid).name))
    found: list[Pair] = [*pairs, *((machine.name, None) for machine in gone.values())]
    found += ((None, machine.name) for machine in come.values())
    return sorted(found, key=lambda pair: (pair[1] or pair[0] or "", pair[0] or ""))


def _marks(machine: Machine, kind: str) -> Iterator[str]:
    return (value for what, value in machine.marks() if what == kind)
