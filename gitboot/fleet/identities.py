"""Identities of servers: UUIDs, serial numbers, addresses and BMCs, and lost identities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from gitboot.fleet.resources import FleetRepository
from gitboot.model.scalars import (
    MacAddress,
    Path,
    SystemUuid,
    byte_orders,
    is_derived_uuid,
    is_placeholder_mac,
    is_placeholder_serial,
    is_placeholder_uuid,
)
from gitboot.model.server import Server


class Identity(NamedTuple):
    """A value that no two servers share."""

    kind: str
    value: str
    normalized: str  # equal where it is the same thing in another spelling
    path: Path

    @property
    def is_placeholder(self) -> bool:
        """Return whether many machines show this value, or the value stands for an unknown UUID."""
        match self.kind:
            case "UUID":
                uuid = SystemUuid(self.value)
                return is_placeholder_uuid(uuid) or is_derived_uuid(uuid)
            case "serial":
                return is_placeholder_serial(self.value)
            case "MAC address":
                return is_placeholder_mac(MacAddress(self.normalized))
        return False


def list_identities(server: Server) -> Iterator[Identity]:
    spec = server.spec
    # Loaders ask by UUID in either byte order, so a UUID and its swapped form are one identity.
    if spec.uuid is not None:
        yield Identity("UUID", spec.uuid, byte_orders(spec.uuid)[0], ("spec", "uuid"))
    if spec.replaces is not None:  # whose document is gone, and which no other machine replaces
        yield Identity("UUID", spec.replaces, byte_orders(spec.replaces)[0], ("spec", "replaces"))
    if spec.serial is not None:
        # A mirror's file system may not distinguish capitals from small letters.
        yield Identity("serial", spec.serial, spec.serial.upper(), ("spec", "serial"))
    for number, interface in enumerate(spec.interfaces):
        at: Path = ("spec", "interfaces", number)
        yield Identity("MAC address", interface.mac.replace("-", ":"), interface.mac, (*at, "mac"))
        for index, address in enumerate(interface.addresses):
            ip = address.partition("/")[0]
            yield Identity("address", ip, ip, (*at, "addresses", index))
    if (bmc := spec.bmc) is None:
        return
    place = " ".join(filter(None, (bmc.address, bmc.system)))
    same = " ".join(filter(None, normalize_bmc_address(bmc.address, bmc.system)))
    yield Identity("BMC", place, same, ("spec", "bmc", "address"))
    if bmc.reports is None:
        return
    # What a BMC shows is its machine's alone, as what a document says of a machine is.
    uuid, serial = bmc.reports.uuid, bmc.reports.serial
    if uuid is not None and uuid not in byte_orders(server.uuid):
        yield Identity("UUID", uuid, byte_orders(uuid)[0], ("spec", "bmc", "reports", "uuid"))
    if serial is not None and serial.upper() != (spec.serial or "").upper():
        yield Identity("serial", serial, serial.upper(), ("spec", "bmc", "reports", "serial"))


@lru_cache(maxsize=1 << 16)
def normalize_bmc_address(address: str, system: str | None) -> tuple[str, str | None]:
    """Return the address and the system of a BMC in one spelling. They are equal if they mean one system of one BMC."""
    parts = urlsplit(address)
    scheme, host = parts.scheme.lower(), _normalize_host(parts.hostname or "")
    port = "" if parts.port in (None, _PORTS[scheme]) else f":{parts.port}"
    return f"{scheme}://{host}{port}{_normalize_path(parts.path)}", _normalize_path(
        system
    ) if system is not None else None


def _normalize_host(host: str) -> str:
    try:
        address = ip_address(host.replace("%25", "%", 1))  # RFC 6874: how a URL writes the zone's sign
    except ValueError:
        return host.lower().removesuffix(".")
    return f"[{address}]".replace("%", "%25") if address.version == 6 else str(address)


def _normalize_path(path: str) -> str:
    """Return a path without empty segments and without a slash at its end. Only characters that need it are encoded."""
    return "".join(f"/{quote(unquote(segment), safe='')}" for segment in path.split("/") if segment)


_PORTS: Final = {"http": 80, "https": 443, "ipmi": 623}
IdentityKey = tuple[str, str]  # an identity: what it is, as in `Why`, and its value


class LostIdentity(NamedTuple):
    """An identity that a machine had in one commit, and that its document lacks in the next."""

    kind: str
    value: str
    uuid: SystemUuid  # of the machine
    netboots: bool = False  # whether it booted a system without installing it: its record does not show such a system

    @property
    def key(self) -> IdentityKey:
        return self.kind, self.value


class BmcAccess(Struct, frozen=True, kw_only=True):
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
    def uses_ipmi(self) -> bool:
        return self.address.lower().startswith("ipmi:")

    @property
    def normalized_address(self) -> tuple[str, str | None]:
        """Return the address and the system in one spelling. No two BMCs share both."""
        return normalize_bmc_address(self.address, self.system)


class Machine(Struct, frozen=True, kw_only=True):
    """The identity of a machine, as its Server document states it."""

    uuid: SystemUuid
    name: str
    macs: tuple[MacAddress, ...]  # of all its interfaces, sorted
    serial: str | None
    bmc: BmcAccess | None
    replaces: SystemUuid | None = None  # what its UUID was before its board was replaced

    def list_keys(self) -> Iterator[tuple[str, str]]:
        """Return what no other machine has while this machine is described: (what it is, its value)."""
        yield "name", self.name
        yield from (("MAC", mac) for mac in self.macs if not is_placeholder_mac(mac))
        if self.serial is not None and not is_placeholder_serial(self.serial):
            yield "serial", self.serial.upper()
        if self.bmc is not None:
            yield "BMC", "".join(filter(None, self.bmc.normalized_address))


class Moves(Struct, frozen=True, kw_only=True):
    """Machines that move between one site and the others. The instance of a site has no records of the other sites."""

    arrived: tuple[SystemUuid, ...] = ()  # from another site
    departed: tuple[Machine, ...] = ()  # from another site, and perhaps out of the fleet
    passed_on: tuple[SystemUuid, ...] = ()  # from another site to a third

    @property
    def machines(self) -> frozenset[SystemUuid]:
        return frozenset((*self.arrived, *(each.uuid for each in self.departed), *self.passed_on))


NO_MOVES: Final = Moves()


def list_machines(repository: FleetRepository, names: Collection[str] | None = None) -> dict[SystemUuid, Machine]:
    """Return the machines of a commit, or those with these names, by UUID and in the order of their names."""
    servers = repository.servers
    wanted = servers if names is None else sorted(name for name in names if name in servers)
    return {servers[name].uuid: build_machine(repository, servers[name]) for name in wanted}


def build_machine(repository: FleetRepository, server: Server) -> Machine:
    """Return the identity of one machine in a commit."""
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


def find_changed_uuids(
    after: Iterable[Machine], before: Iterable[Machine]
) -> dict[SystemUuid, tuple[str, str, Machine]]:
    """Return the machines with a new UUID that carry a mark of another: (what, its value, whose), by the new UUID.

    A new motherboard brings a new UUID into the same chassis, where an installed system may lie on the disks.
    """
    installed = (
        machine for machine in before if not is_derived_uuid(machine.uuid)
    )  # nothing was, while none was known
    owners: Mapping[tuple[str, str], Machine] = {mark: machine for machine in installed for mark in machine.list_keys()}
    found = {}
    for machine in after:
        for mark in machine.list_keys():
            other = owners.get(mark)
            if other is not None and other.uuid != machine.uuid:
                found[machine.uuid] = (*mark, other)
                break
    return found
