"""Who a machine is from one commit to the next, and where its BMC is reached: values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gitboot.fleet.identities import place_of
from gitboot.load.repository import FleetRepository
from gitboot.model.scalars.machines import MacAddress, SystemUuid, is_stand_in
from gitboot.model.scalars.placeholder_identities import is_placeholder_mac, is_placeholder_serial
from gitboot.model.server import Server


@dataclass(frozen=True, kw_only=True, slots=True)
class BmcAccess:
    """Where a BMC is reached, how it is trusted, and the name of its credentials, never their value."""

    address: str
    system: str | None  # the path of the ComputerSystem; None: the only one
    credentials: str
    verify: bool
    ca: str | None  # PEM
    reports_uuid: SystemUuid | None = None  # what it shows, where that is not what the document says of its machine
    reports_serial: str | None = None
    fingerprint: str | None = None  # of the one certificate that it may show, beside what else is checked

    @property
    def by_ipmi(self) -> bool:
        """Whether it is asked by IPMI, and not by Redfish."""
        return self.address.lower().startswith("ipmi:")

    @property
    def place(self) -> tuple[str, str | None]:
        """What two BMCs cannot share, however it is spelt."""
        return place_of(self.address, self.system)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a Server document says of a machine's identity."""

    uuid: SystemUuid
    name: str
    macs: tuple[MacAddress, ...]  # of all its interfaces, sorted
    serial: str | None
    bmc: BmcAccess | None
    replaces: SystemUuid | None = None  # what its UUID was before its board was replaced

    def marks(self) -> Iterator[tuple[str, str]]:
        """What no other machine has while this one stands: (what it is, its value)."""
        yield "name", self.name
        yield from (("MAC", mac) for mac in self.macs if not is_placeholder_mac(mac))
        if self.serial is not None and not is_placeholder_serial(self.serial):
            yield "serial", self.serial.upper()
        if self.bmc is not None:
            yield "BMC", "".join(filter(None, self.bmc.place))


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """Machines between one site and the others; what has become of them there, it cannot know."""

    arrived: tuple[SystemUuid, ...] = ()  # from another site
    departed: tuple[Machine, ...] = ()  # from another site, and perhaps out of the fleet
    passed_on: tuple[SystemUuid, ...] = ()  # from another site to a third

    @property
    def machines(self) -> frozenset[SystemUuid]:
        return frozenset((*self.arrived, *(each.uuid for each in self.departed), *self.passed_on))


NO_MOVES: Final = Moves()


def machines(repository: FleetRepository, names: Collection[str] | None = None) -> dict[SystemUuid, Machine]:
    """The machines that a commit describes, or those of these names, by UUID, in the order of their names."""
    servers = repository.servers
    wanted = servers if names is None else sorted(name for name in names if name in servers)
    return {servers[name].uuid: machine(repository, servers[name]) for name in wanted}


def machine(repository: FleetRepository, server: Server) -> Machine:
    """What a commit says of one machine's identity."""
    spec, bmc = server.spec, server.spec.bmc
    access = None
    if bmc is not None:
        access = BmcAccess(
            address=bmc.address,
            system=bmc.system,
            credentials=bmc.credentials,
            verify=bmc.tls.verify,
            ca=repository.files[bmc.tls.ca].decode("ascii", "ignore") if bmc.tls.ca else None,
            reports_uuid=bmc.reports.uuid if bmc.reports is not None else None,
            reports_serial=bmc.reports.serial if bmc.reports is not None else None,
            fingerprint=bmc.tls.fingerprint,
        )
    return Machine(
        uuid=server.uuid,
        name=server.metadata.name,
        macs=tuple(sorted(interface.mac for interface in spec.interfaces)),
        serial=spec.serial,
        bmc=access,
        replaces=spec.replaces,
    )


def taken_over(seen: Iterable[Machine], before: Iterable[Machine]) -> dict[SystemUuid, tuple[str, str, Machine]]:
    """Machines under a new UUID that carry a mark of another: (what, its value, whose), by the new UUID.

    A new motherboard brings a new UUID into the same chassis, where an installed system may lie on the disks.
    """
    installed = (machine for machine in before if not is_stand_in(machine.uuid))  # nothing was, while none was known
    whose: Mapping[tuple[str, str], Machine] = {mark: machine for machine in installed for mark in machine.marks()}
    found = {}
    for machine in seen:
        for mark in machine.marks():
            other = whose.get(mark)
            if other is not None and other.uuid != machine.uuid:
                found[machine.uuid] = (*mark, other)
                break
    return found
