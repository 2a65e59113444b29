"""Identities: the values that identify a server, such as UUID, serial number, MAC addresses, IP addresses and BMC."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository
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
    """A value that no two servers may share."""

    kind: str
    value: str
    normalized: str  # the value in the form that gitboot compares
    path: Path

    @property
    def is_placeholder(self) -> bool:
        """Return whether many machines report the value or gitboot generated it, so that it does not identify a
        machine.
        """
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
    """Yield all identities in a Server document, each with its path."""
    spec = server.spec
    # Boot loaders send a UUID in one of two byte orders, so both forms count as the same identity.
    if spec.uuid is not None:
        yield Identity("UUID", spec.uuid, byte_orders(spec.uuid)[0], ("spec", "uuid"))
    if spec.replaces is not None:  # the replaced machine's document was removed, and no other machine may replace it
        yield Identity("UUID", spec.replaces, byte_orders(spec.replaces)[0], ("spec", "replaces"))
    if spec.serial is not None:
        # Names that differ only in case count as equal, because the file system of a mirror may ignore case.
        yield Identity("serial", spec.serial, spec.serial.upper(), ("spec", "serial"))
    first_interfaces: dict[str, int] = {}  # for each IP address, the number of the first interface with this address
    for number, interface in enumerate(spec.interfaces):
        at: Path = ("spec", "interfaces", number)
        yield Identity("MAC address", interface.mac.replace("-", ":"), interface.mac, (*at, "mac"))
        for index, address in enumerate(interface.addresses):
            ip = address.partition("/")[0]
            if first_interfaces.setdefault(ip, number) == number:  # the interfaces of a bond share their addresses
                yield Identity("address", ip, ip, (*at, "addresses", index))
    if (bmc := spec.bmc) is None:
        return
    yield Identity(
        "BMC",
        " ".join(filter(None, (bmc.address, bmc.system))),
        " ".join(filter(None, normalize_bmc_address(bmc.address, bmc.system))),
        ("spec", "bmc", "address"),
    )
    if bmc.reports is None:
        return
    # The values that a BMC reports also identify its machine, so no other server may have them.
    uuid, serial = bmc.reports.uuid, bmc.reports.serial
    if uuid is not None and uuid not in byte_orders(server.uuid):
        yield Identity("UUID", uuid, byte_orders(uuid)[0], ("spec", "bmc", "reports", "uuid"))
    if serial is not None and serial.upper() != (spec.serial or "").upper():
        yield Identity("serial", serial, serial.upper(), ("spec", "bmc", "reports", "serial"))


# the normalized address of a BMC, and the normalized path of the system on the BMC
BmcPlace = tuple[str, str | None]


_PORTS: Final = {"http": 80, "https": 443, "ipmi": 623}
IdentityKey = tuple[str, str]  # the kind and the value of an identity


@lru_cache(maxsize=1 << 16)
def normalize_bmc_address(address: str, system: str | None) -> BmcPlace:
    """Normalize the address and the system of a BMC. If two results are equal, they mean the same system."""
    parts = urlsplit(address)
    scheme, host = parts.scheme.lower(), _normalize_host(parts.hostname or "")
    port = "" if parts.port in (None, _PORTS[scheme]) else f":{parts.port}"
    normalized_system = _normalize_path(system) if system is not None else None
    return f"{scheme}://{host}{port}{_normalize_path(parts.path)}", normalized_system


def _normalize_host(host: str) -> str:
    try:
        address = ip_address(host.replace("%25", "%", 1))  # in a URL, the % of a zone is %25 (RFC 6874)
    except ValueError:
        return host.lower().removesuffix(".")
    return f"[{address}]".replace("%", "%25") if address.version == 6 else str(address)


def _normalize_path(path: str) -> str:
    """Remove empty segments and the final slash from a path, and percent-encode only characters that require it."""
    return "".join(f"/{quote(unquote(segment), safe='')}" for segment in path.split("/") if segment)


class LostIdentity(NamedTuple):
    """An identity that a machine's document contained in one commit but not in the next."""

    kind: str
    value: str
    uuid: SystemUuid  # the UUID of the machine
    netboots: bool = False  # whether the machine may run a network-booted system although its record does not show this

    @property
    def key(self) -> IdentityKey:
        return self.kind, self.value


class BmcAccess(Struct, frozen=True, kw_only=True):
    """The address of a BMC, the settings for checking its certificate, and the name of its credentials."""

    address: str
    system: str | None  # the path of the Redfish ComputerSystem; None: the BMC manages only one
    credentials: str
    verify: bool
    ca: str | None  # PEM
    reports_uuid: SystemUuid | None = None  # the UUID that the BMC reports, if it differs from that of the server
    reports_serial: str | None = None
    # the fingerprint of the only accepted certificate; gitboot also makes the other checks
    fingerprint: str | None = None

    @property
    def uses_ipmi(self) -> bool:
        return self.address.lower().startswith("ipmi:")

    @property
    def normalized_address(self) -> BmcPlace:
        """The normalized address and system of the BMC. No two servers of a fleet have the same pair."""
        return normalize_bmc_address(self.address, self.system)


class Machine(Struct, frozen=True, kw_only=True):
    """The identities and the BMC of a machine, from its Server document."""

    uuid: SystemUuid
    name: str
    macs: tuple[MacAddress, ...]  # the sorted MAC addresses of all interfaces
    serial: str | None
    bmc: BmcAccess | None
    replaces: SystemUuid | None = None  # the machine's UUID before its board was replaced

    def list_keys(self) -> Iterator[tuple[str, str]]:
        """Yield each value that no other machine may have, as (kind, value)."""
        yield "name", self.name
        yield from (("MAC", mac) for mac in self.macs if not is_placeholder_mac(mac))
        if self.serial is not None and not is_placeholder_serial(self.serial):
            yield "serial", self.serial.upper()
        if self.bmc is not None:
            yield "BMC", "".join(filter(None, self.bmc.normalized_address))


class Moves(Struct, frozen=True, kw_only=True):
    """The machines that moved to this site, away from this site, or between other sites."""

    arrived: tuple[SystemUuid, ...] = ()  # machines that moved to this site from another site
    departed: tuple[Machine, ...] = ()  # machines that left this site, and machines of other sites that left the fleet
    passed_on: tuple[SystemUuid, ...] = ()  # machines that moved from one other site to another

    @property
    def machines(self) -> frozenset[SystemUuid]:
        return frozenset((*self.arrived, *(each.uuid for each in self.departed), *self.passed_on))


NO_MOVES: Final = Moves()


def list_machines(repository: FleetRepository, names: Collection[str] | None = None) -> dict[SystemUuid, Machine]:
    """Return the machines of a commit by UUID, sorted by server name.

    With ``names``, return only the machines of these servers.
    """
    servers = repository.servers
    wanted = servers if names is None else sorted(name for name in names if name in servers)
    return {servers[name].uuid: build_machine(repository, servers[name]) for name in wanted}


def build_machine(repository: FleetRepository, server: Server) -> Machine:
    """Return the machine with the identities and the BMC that a Server document contains."""
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
    """Return the new UUIDs of the machines in ``after`` that have another UUID in ``before``.

    gitboot recognizes such a machine by another identity, such as a MAC address.

    The value for each UUID contains the shared identity and the earlier machine. A replacement board has a new UUID,
    but the disks in the same chassis may contain an installed system.
    """
    # The result does not contain machines with an unknown UUID, because gitboot never installs them.
    installed = (machine for machine in before if not is_derived_uuid(machine.uuid))
    owners: Mapping[tuple[str, str], Machine] = {key: machine for machine in installed for key in machine.list_keys()}
    found = {}
    for machine in after:
        for key in machine.list_keys():
            other = owners.get(key)
            if other is not None and other.uuid != machine.uuid:
                found[machine.uuid] = (*key, other)
                break
    return found
