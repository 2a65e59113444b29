"""What BMCs show and what documents say, side by side: swapped, moved, missing, unknown, other network cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gitboot.bmc.identity import Described, Same, identify
from gitboot.bmc.inventory import FoundServer
from gitboot.fleet.identities import place_of
from gitboot.load.machines import Machine
from gitboot.model.scalars.machines import byte_orders
from gitboot.text import some


class DiscrepancyKind(StrEnum):
    SWAPPED = "Swapped"  # two machines, each where the other's document says
    MOVED = "Moved"  # it is not where its document says
    MISSING = "Missing"  # nobody answers where its document says
    UNKNOWN = "Unknown"  # no document describes it
    INTERFACES = "Interfaces"  # its document has addresses that its BMC does not show


@dataclass(frozen=True, kw_only=True, slots=True)
class Discrepancy:
    """One thing that is not as the documents say."""

    what: DiscrepancyKind
    server: str | None  # by its document; None: there is none
    address: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Which machine each found one is, and what is not as described."""

    servers: Mapping[FoundServer, str]  # by name, those that a document describes
    differences: tuple[Discrepancy, ...]


def compare(
    found: Iterable[FoundServer], described: Collection[Machine], asked: Collection[str], unread: Collection[str]
) -> Comparison:
    """Compare what was found at the ``asked`` addresses with all machines that documents describe.

    Of the ``unread`` addresses somebody answered, and what is there could not be read: nothing is said of them.
    """
    found = sorted(found, key=lambda each: (each.address, each.system))
    machines = dict(_recognised(found, described))
    where = {machine.name: each for each, machine in machines.items()}
    by_place = {each.bmc.place: each for each in described if each.bmc is not None}
    differences = [difference for each in found for difference in _of_found(each, machines.get(each), where, by_place)]
    silent = {place_of(address, None)[0] for address in asked} - {place_of(address, None)[0] for address in unread}
    for machine in described:
        if machine.bmc is not None and machine.name not in where and machine.bmc.place[0] in silent:
            differences.append(_missing(machine, found))
    return Comparison(
        servers={each: machine.name for each, machine in machines.items()},
        differences=tuple(sorted(differences, key=lambda each: (each.what, each.server or "", each.address))),
    )


def _recognised(found: Iterable[FoundServer], described: Iterable[Machine]) -> Iterator[tuple[FoundServer, Machine]]:
    """Each found machine with the one that it is, by UUID in either byte order or by serial number."""
    index: dict[str, list[Machine]] = {}
    for machine in described:
        for value in _values(machine):
            index.setdefault(value, []).append(machine)
    for each in found:
        shown = each.shown
        values = [value.upper() for value in (shown.uuid, shown.serial, shown.sku) if value is not None]
        for machine in (machine for value in values for machine in index.get(value, ())):
            if isinstance(identify(_described(machine), shown), Same):
                yield each, machine
                break


def _values(machine: Machine) -> set[str]:
    said = _described(machine)
    return {order.upper() for uuid in said.uuids for order in byte_orders(uuid)} | {
        each.upper() for each in said.serials
    }


def _described(machine: Machine) -> Described:
    if machine.bmc is None:
        return Described(uuid=machine.uuid, serial=machine.serial)
    return Described.by(machine.uuid, machine.serial, machine.bmc)


def _of_found(
    found: FoundServer,
    machine: Machine | None,
    where: Mapping[str, FoundServer],
    by_place: Mapping[tuple[str, str | None], Machine],
) -> Iterator[Discrepancy]:
    here = next((by_place[place] for place in found.places if place in by_place), None)
    if machine is None:
        instead = f", where {here.name} is described" if here is not None else ""
        yield Discrepancy(
            what=DiscrepancyKind.UNKNOWN,
            server=None,
            address=found.address,
            message=f"no document describes {found.shown}{instead}",
        )
        return
    if here is not machine:
        yield _elsewhere(found, machine, here, where)
    shown = {nic.mac for nic in found.nics}
    if shown and (gone := [mac.replace("-", ":") for mac in machine.macs if mac not in shown]):
        instead = some([nic.mac.replace("-", ":") for nic in found.nics if nic.mac not in machine.macs]) or "no other"
        yield Discrepancy(
            what=DiscrepancyKind.INTERFACES,
            server=machine.name,
            address=found.address,
            message=f"its BMC does not show {some(gone)}; it shows {instead}",
        )


def _elsewhere(
    found: FoundServer, machine: Machine, here: Machine | None, where: Mapping[str, FoundServer]
) -> Discrepancy:
    """It answers where its document does not say."""
    said = machine.bmc.address if machine.bmc is not None else None
    other = where.get(here.name) if here is not None else None
    if here is not None and other is not None and machine.bmc is not None and machine.bmc.place in other.places:
        what, message = DiscrepancyKind.SWAPPED, f"it is where {here.name} is described, and {here.name} is at {said}"
    else:
        also = f", where {here.name} is described" if here is not None else ""
        what, message = DiscrepancyKind.MOVED, f"its document says {said or 'nothing of a BMC'}{also}"
    return Discrepancy(what=what, server=machine.name, address=found.address, message=message)


def _missing(machine: Machine, found: Iterable[FoundServer]) -> Discrepancy:
    assert machine.bmc is not None  # noqa: S101 - only those that have one are looked for
    address = machine.bmc.address
    instead = next((each.shown for each in found if machine.bmc.place in each.places), None)
    message = f"another machine answers there: {instead}" if instead is not None else "nobody answers there"
    return Discrepancy(what=DiscrepancyKind.MISSING, server=machine.name, address=address, message=message)
