"""Network scan: find Redfish services, and compare the servers found with the fleet's documents."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import StrEnum
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import DocumentIdentity, ReportedIdentity, SameMachine, compare_identity
from gitboot.bmc.redfish.quirks import MODE
from gitboot.bmc.redfish.resources import Resource, find_manager_path, parse_identity
from gitboot.errors import BmcUnreachable, OperatorError, TemporaryError, UsageError
from gitboot.fleet.identities import BmcPlace, Machine, normalize_bmc_address
from gitboot.http_client import RequestLimits, resolve_host, tls_context
from gitboot.model.scalars import (
    MacAddress,
    Malformed,
    byte_orders,
    is_placeholder_serial,
    is_placeholder_uuid,
    parse_lookup_mac,
)
from gitboot.model.server import Architecture, Firmware, Lifecycle
from gitboot.text import format_names, one_line, redact_url

if TYPE_CHECKING:
    from gitboot.bmc.redfish.client import BmcConnection


_logger = logging.getLogger(__name__)
MAX_ADDRESSES: Final = 4096
_CONTACT_TIMEOUT_S: Final = 5.0
_DEFAULT_PORTS: Final = {"https": 443, "http": 80, "ipmi": 623}
# values of Processor.InstructionSet and ProcessorArchitecture, DSP0268
_ARCHITECTURES: Final = {
    "x86-64": Architecture.X86_64,
    "x86": Architecture.X86_64,
    "ARM-A64": Architecture.AARCH64,
    "ARM": Architecture.AARCH64,
}


class FoundNic(Struct, frozen=True, kw_only=True):
    """A network interface that a BMC reports."""

    name: str
    mac: MacAddress


class FoundServer(Struct, frozen=True, kw_only=True):
    """A machine that a scan found."""

    address: str
    system: str  # the path of the ComputerSystem
    is_only_system: bool = True  # whether the BMC has only this system
    identity: ReportedIdentity
    maker: str = ""
    model: str = ""
    bios: str = ""
    bmc: str = ""  # the firmware version of the BMC
    nics: tuple[FoundNic, ...] = ()
    architecture: Architecture | None = None  # None: the BMC does not report the architecture
    firmware: Firmware = Firmware.UEFI

    @property
    def places(self) -> tuple[BmcPlace, ...]:
        """The normalized addresses by which a document may refer to the machine's BMC."""
        named = normalize_bmc_address(self.address, self.system)
        return (named, normalize_bmc_address(self.address, None)) if self.is_only_system else (named,)

    @property
    def serial(self) -> str | None:
        """The serial number that SMBIOS contains.

        On Dell servers, this number is the service tag, which the BMC reports as SKU.
        """
        shown = self.identity.sku if self.maker.lower().startswith("dell") else self.identity.serial
        return shown if shown is not None and not is_placeholder_serial(shown) else None

    @property
    def missing_identity(self) -> str | None:
        """A message about the identity that a document needs but the BMC does not report, or None."""
        if self.identity.uuid is None or is_placeholder_uuid(self.identity.uuid):
            return "the BMC does not report a UUID"
        return None if self.nics else "the BMC does not report a MAC address"


# Addresses


def list_addresses(
    places: Sequence[str], ports: Sequence[int], *, schemes: Collection[str] = ("http", "https")
) -> tuple[str, ...]:
    """Convert networks, addresses, host names and URLs to base URLs of BMCs, in order and without duplicates.

    Raises `UsageError` if a text is none of these, or if there are more than ``MAX_ADDRESSES`` addresses.
    """
    addresses: dict[str, None] = {}
    for place in places:
        for host in _list_hosts(place, schemes):
            if "://" in host:
                addresses[host.rstrip("/")] = None
                continue
            for port in ports:
                addresses[f"https://{host}" if port == 443 else f"https://{host}:{port}"] = None
        if len(addresses) > MAX_ADDRESSES:
            raise _build_too_many_error(place, len(addresses))
    return tuple(addresses)


def _list_hosts(place: str, schemes: Collection[str]) -> Iterable[str]:
    """Return the hosts of a network, an address or a host name. If ``place`` is a URL, return the URL itself."""
    if "://" in place:
        try:
            parts = urlsplit(place)
            is_address = parts.scheme in schemes and parts.hostname and parts.username is None and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise UsageError(
                f"{redact_url(place)!r} is not a BMC address: write https://10.112.0.13 or https://10.112.0.13:8443"
            )
        return [place]
    if re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}", place):  # a host with its port
        return _list_hosts(f"https://{place}", schemes)
    try:
        network = ip_network(place, strict=False)
    except ValueError:
        if not all(part and part.replace("-", "").isalnum() for part in place.rstrip(".").split(".")) or "/" in place:
            raise UsageError(
                f"{place!r} is not a network, an address or a host name: write 10.112.0.0/24, 10.112.0.13 or "
                "bmc7.example.net"
            ) from None
        return [place]
    if network.num_addresses > 2 * MAX_ADDRESSES:
        raise _build_too_many_error(place, network.num_addresses)
    return (str(address) if network.version == 4 else f"[{address}]" for address in network.hosts())


def _build_too_many_error(place: str, number: int) -> UsageError:
    return UsageError(
        f"{place}: a scan of {number:,} addresses exceeds the limit of {MAX_ADDRESSES:,}; specify smaller networks"
    )


# The first contact


class FirstContact(Struct, frozen=True, kw_only=True):
    """The facts that gitboot learns about a BMC's address before it sends a request or credentials."""

    address: str
    ip: IPv4Address | IPv6Address | None = None  # None: gitboot could not resolve the host
    certificate: str | None = None  # the fingerprint of the certificate; None: the connection has no TLS
    error: str | None = None  # why gitboot cannot use this address; None: there is no error


def read_certificates(addresses: Sequence[str], *, parallel: int) -> tuple[FirstContact, ...]:
    """Connect to each address once, and read the certificate from the TLS handshake without sending a request.

    For an address without TLS, gitboot only resolves the host, and does not connect.
    """
    with ThreadPoolExecutor(parallel, thread_name_prefix="certificates") as pool:
        return tuple(pool.map(_read_certificate, addresses))


def _read_certificate(address: str) -> FirstContact:
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    limits = RequestLimits(deadline_s=_CONTACT_TIMEOUT_S)
    try:
        ips = resolve_host(host, port, limits)
        if parts.scheme != "https":
            return FirstContact(address=address, ip=ip_address(ips[0]))
        for number, ip in enumerate(ips, start=1):
            try:
                with (
                    socket.create_connection((ip, port), timeout=limits.remaining_s()) as tcp_socket,
                    tls_context(verify=False).wrap_socket(tcp_socket, server_hostname=host) as tls_socket,
                ):
                    certificate = tls_socket.getpeercert(binary_form=True) or b""
                return FirstContact(address=address, ip=ip_address(ip), certificate=sha256(certificate).hexdigest())
            except OSError:
                if number == len(ips):
                    raise
        raise OSError("the host name does not resolve to an IP address")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        return FirstContact(address=address, error=one_line(str(reason)))


def open_pinned_connection(contact: FirstContact, credentials: Credentials) -> BmcConnection:
    """Return a connection that sends ``credentials`` only to the BMC in ``contact``.

    gitboot identifies this BMC by the IP address and the certificate in ``contact``.
    """
    from gitboot.bmc.redfish.client import BmcConnection
    from gitboot.bmc.redfish.transport import ConnectionPolicy

    policy = ConnectionPolicy(
        is_address_allowed=contact.ip.__eq__,
        access_file="the confirmed list",
        trusted_fingerprint=contact.certificate,
    )
    return BmcConnection(contact.address, credentials, tls=tls_context(verify=False), policy=policy)


def read_ipmi_server(contact: FirstContact, credentials: Credentials) -> FoundServer:
    """Read the identity of a machine over IPMI. IPMI reports neither network interfaces nor the CPU architecture."""
    from gitboot.bmc.ipmi import IpmiConnection
    from gitboot.bmc.redfish.transport import ConnectionPolicy

    policy = ConnectionPolicy(is_address_allowed=contact.ip.__eq__)
    shown = IpmiConnection(contact.address, credentials, policy=policy).observe()
    return FoundServer(address=contact.address, system="", identity=shown.identity)


# The scan


class ProbeResult(Struct, frozen=True, kw_only=True):
    """The scan result for one address.

    If the result contains neither servers nor an error, there is no Redfish service at the address.
    """

    address: str
    servers: tuple[FoundServer, ...] = ()
    error: str | None = None  # why gitboot could not read the BMC


def scan(
    addresses: Sequence[str], connect: Callable[[str], BmcConnection], *, parallel: int, on_result: Callable[[], None]
) -> Iterator[ProbeResult]:
    """Read the BMCs at all addresses, ``parallel`` at a time, and yield the results.

    ``on_result`` is called for each result.
    """
    with ThreadPoolExecutor(parallel, thread_name_prefix="scan") as pool:
        for future in as_completed([pool.submit(_probe_address, address, connect) for address in addresses]):
            on_result()
            yield future.result()


def _probe_address(address: str, connect: Callable[[str], BmcConnection]) -> ProbeResult:
    try:
        with connect(address) as bmc, bmc.policy.measure_requests():
            try:
                is_redfish = bmc.is_redfish()
            except BmcUnreachable:  # no response, or a response that is not Redfish
                is_redfish = False
            if not is_redfish:
                return ProbeResult(address=address)
            paths = bmc.list_systems()
            servers = [_read_server(address, bmc, path, is_only_system=len(paths) == 1) for path in paths]
            return ProbeResult(address=address, servers=tuple(servers))
    except (OperatorError, TemporaryError) as error:
        return ProbeResult(address=address, error=str(error))
    except Exception as error:  # one BMC must not end the scan
        _logger.exception("the scan of %s failed", address)
        name = type(error).__name__
        problem = f"gitboot failed because of a defect ({name}); report it with the traceback from standard error"
        return ProbeResult(address=address, error=problem)


def _read_server(address: str, bmc: BmcConnection, path: str, *, is_only_system: bool) -> FoundServer:
    system = bmc.read(path)
    return build_found_server(
        address,
        system,
        is_only_system=is_only_system,
        nics=_read_members(bmc, system.link("EthernetInterfaces")),
        manager=bmc.find(find_manager_path(system.body)),
        processor=next(_read_members(bmc, system.link("Processors")), None),
    )


def _read_members(bmc: BmcConnection, collection_path: str | None) -> Iterator[Resource]:
    """Read the members of a collection one by one, without those that the user's role may not read."""
    collection = bmc.find(collection_path)
    if collection is not None:
        for path in collection.members:
            member = bmc.find(path)
            if member is not None:
                yield member


def build_found_server(
    address: str,
    system: Resource,
    *,
    is_only_system: bool,
    nics: Iterable[Resource] = (),
    manager: Resource | None = None,
    processor: Resource | None = None,
) -> FoundServer:
    """Create a `FoundServer` from the resources of one system. Leave values empty that the BMC does not report."""
    body = system.body
    architecture = None
    if processor is not None:
        for property_name in ("InstructionSet", "ProcessorArchitecture"):
            architecture = architecture or _ARCHITECTURES.get(_to_line(processor.body.get(property_name)))
    nics_by_mac: dict[MacAddress, FoundNic] = {}  # the interfaces by permanent MAC address
    for nic in nics:
        if nic.link("Links", "HostInterface") is not None:  # skip the interface that connects the machine with its BMC
            continue
        mac_text = _to_line(nic.body.get("PermanentMACAddress")) or _to_line(nic.body.get("MACAddress"))
        try:
            mac = parse_lookup_mac(mac_text)
        except Malformed:
            continue
        nics_by_mac.setdefault(mac, FoundNic(name=_to_line(nic.body.get("Id")), mac=mac))
    return FoundServer(
        address=address,
        system=system.path,
        is_only_system=is_only_system,
        identity=parse_identity(body),
        maker=_to_line(body.get("Manufacturer")),
        model=_to_line(body.get("Model")),
        bios=_to_line(body.get("BiosVersion")),
        bmc=_to_line(manager.body.get("FirmwareVersion")) if manager is not None else "",
        nics=tuple(sorted(nics_by_mac.values(), key=lambda nic: (nic.name, nic.mac))),
        architecture=architecture,
        firmware=Firmware.BIOS if system.boot.get(MODE) == "Legacy" else Firmware.UEFI,
    )


# The comparison with the documents


class DiscrepancyKind(StrEnum):
    """A kind of difference between the documents and the servers on the network."""

    SWAPPED = "Swapped"  # each of two machines responds at the address in the document of the other
    MOVED = "Moved"  # the machine responds at an address other than the documented one
    MISSING = "Missing"  # no BMC responds at the address in the document
    UNKNOWN = "Unknown"  # no document describes the machine
    INTERFACES = "Interfaces"  # the document contains MAC addresses that the BMC does not show


class Discrepancy(Struct, frozen=True, kw_only=True):
    """A difference between the documents and the servers on the network."""

    kind: DiscrepancyKind
    server: str | None  # the name in the document; None: there is no document
    address: str
    message: str


class ScanComparison(Struct, frozen=True, kw_only=True):
    """The names of the servers that a scan found, and the differences between these servers and their documents."""

    servers: Mapping[FoundServer, str]  # the name of each server that has a document
    differences: tuple[Discrepancy, ...]


def compare_servers(
    servers: Iterable[FoundServer],
    documents: Collection[Machine],
    scanned_addresses: Collection[str],
    unread_addresses: Collection[str],
) -> ScanComparison:
    """Compare the servers found at the ``scanned_addresses`` addresses with all documented machines.

    The BMCs at the ``unread_addresses`` addresses responded, but gitboot could not read and compare their servers.
    """
    servers = sorted(servers, key=lambda server: (server.address, server.system))
    machines = dict(_match_servers(servers, documents))
    server_by_name = {machine.name: server for server, machine in machines.items()}
    by_place = {machine.bmc.normalized_address: machine for machine in documents if machine.bmc is not None}
    differences: list[Discrepancy] = []
    for server in servers:
        differences += _list_discrepancies(server, machines.get(server), server_by_name, by_place)
    unread_places = {_normalize_address(address) for address in unread_addresses}
    silent_places = {_normalize_address(address) for address in scanned_addresses} - unread_places
    for machine in documents:
        if machine.name in server_by_name or machine.bmc is None:
            continue
        place = machine.bmc.normalized_address
        if place[0] in silent_places:
            other_server = next((server for server in servers if place in server.places), None)
            message = "no BMC responds at this address"
            if other_server is not None:
                message = f"another machine is at this address: {other_server.identity}"
            differences.append(
                Discrepancy(
                    kind=DiscrepancyKind.MISSING, server=machine.name, address=machine.bmc.address, message=message
                )
            )
    return ScanComparison(
        servers={server: machine.name for server, machine in machines.items()},
        differences=tuple(sorted(differences, key=lambda each: (each.kind, each.server or "", each.address))),
    )


def _normalize_address(address: str) -> str:
    return normalize_bmc_address(address, None)[0]


def _match_servers(
    servers: Iterable[FoundServer], documents: Iterable[Machine]
) -> Iterator[tuple[FoundServer, Machine]]:
    """Yield each server for which there is a document, with the documented machine."""
    machines_by_value: dict[str, list[Machine]] = {}  # by UUID and serial number
    for machine in documents:
        identity = DocumentIdentity.from_document(machine.uuid, machine.serial, machine.bmc)
        uuids = {order.upper() for uuid in identity.uuids for order in byte_orders(uuid)}
        for value in uuids.union(serial.upper() for serial in identity.serials):
            machines_by_value.setdefault(value, []).append(machine)
    for server in servers:
        shown = server.identity
        values = [value.upper() for value in (shown.uuid, shown.serial, shown.sku) if value is not None]
        candidates = chain.from_iterable(machines_by_value.get(value, ()) for value in values)
        match = next((machine for machine in candidates if _is_same_machine(machine, shown)), None)
        if match is not None:
            yield server, match


def _is_same_machine(machine: Machine, shown: ReportedIdentity) -> bool:
    identity = DocumentIdentity.from_document(machine.uuid, machine.serial, machine.bmc)
    return isinstance(compare_identity(identity, shown), SameMachine)


def _list_discrepancies(
    server: FoundServer,
    machine: Machine | None,
    server_by_name: Mapping[str, FoundServer],
    by_place: Mapping[BmcPlace, Machine],
) -> Iterator[Discrepancy]:
    owner = next((by_place[place] for place in server.places if place in by_place), None)
    if machine is None:
        location = f" at the address of {owner.name}" if owner is not None else ""
        yield Discrepancy(
            kind=DiscrepancyKind.UNKNOWN,
            server=None,
            address=server.address,
            message=f"no document matches {server.identity}{location}",
        )
        return
    if owner is not machine:  # the machine responds at an address other than the documented one
        yield _describe_move(server, machine, owner, server_by_name)
    shown_macs = {nic.mac for nic in server.nics}
    missing_macs = [mac for mac in machine.macs if mac not in shown_macs]
    if shown_macs and missing_macs:
        other_macs = [nic.mac for nic in server.nics if nic.mac not in machine.macs]
        yield Discrepancy(
            kind=DiscrepancyKind.INTERFACES,
            server=machine.name,
            address=server.address,
            message=f"the BMC does not show {_format_macs(missing_macs)}, but shows "
            f"{_format_macs(other_macs) or 'no other MAC addresses'}",
        )


def _describe_move(
    server: FoundServer, machine: Machine, owner: Machine | None, server_by_name: Mapping[str, FoundServer]
) -> Discrepancy:
    """Return the discrepancy for a machine that responds at the address of ``owner``, or at an unknown address."""
    document_address = machine.bmc.address if machine.bmc is not None else None
    kind = DiscrepancyKind.MOVED
    message = f"the BMC address in the Server document is {document_address or 'missing'}"
    if owner is not None:
        other_server = server_by_name.get(owner.name)
        message += f"; this server responds at the address of {owner.name}"
        if (
            other_server is not None
            and machine.bmc is not None
            and machine.bmc.normalized_address in other_server.places
        ):
            kind = DiscrepancyKind.SWAPPED
            message = (
                f"this server responds at the address of {owner.name}, and {owner.name} responds at {document_address}"
            )
    return Discrepancy(kind=kind, server=machine.name, address=server.address, message=message)


def _format_macs(macs: Sequence[MacAddress]) -> str:
    return format_names([mac.replace("-", ":") for mac in macs])


# Documents for new machines


def choose_name(server: FoundServer, used_names: Collection[str]) -> str:
    """Choose an unused name for a server's document. The name contains the server's serial number or UUID."""
    plain = re.sub(r"[^a-z0-9]+", "-", (server.serial or "").lower()).strip("-")[:50]
    name = plain or f"server-{(server.identity.uuid or '')[:8]}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(each for each in names if each not in used_names)


def render_document(
    server: FoundServer,
    name: str,
    credentials: str,
    *,
    verify: bool = True,
    policy: str | None = None,
) -> str:
    """Return a Server document for a new machine. The field provision is 0, so gitboot does not install the machine.

    Without ``policy``, the lifecycle in the document is Parked, so that gitboot does not change the machine's BMC.
    """
    description = f"{server.maker} {server.model}".strip() or "a machine"
    if server.bios:
        description += f", BIOS {server.bios}"
    if server.bmc:
        description += f", BMC {server.bmc}"
    lines = [
        f"# {description}; found at {server.address}.",
        "apiVersion: gitboot.dev/v1alpha1",
        "kind: Server",
        "metadata:",
        f"  name: {_quote(name)}",
        "spec:",
        f"  uuid: {server.identity.uuid}",
    ]
    if server.serial:
        lines.append(f"  serial: {_quote(server.serial)}")
    if server.architecture:
        lines.append(f"  architecture: {server.architecture}")
    else:
        lines.append(f"  architecture: {Architecture.X86_64}  # not reported by its BMC: check it")
    lines += [f"  firmware: {server.firmware}", "  interfaces:"]
    for nic in server.nics:
        nic_name = f"name: {_quote(nic.name)}, " if nic.name else ""
        lines.append(f"    - {{{nic_name}mac: {_quote(nic.mac.replace('-', ':'))}}}")
    if policy is not None:
        lines.append(f"  policy: {_quote(policy)}")
    else:
        lines.append(f"  lifecycle: {Lifecycle.PARKED}  # remove this line to let gitboot manage the machine")
    lines += [
        "  provision: 0  # raise the number to install the machine",
        "  bmc:",
        f"    address: {_quote(server.address)}",
    ]
    if not server.is_only_system:
        lines.append(f"    system: {_quote(server.system)}")
    lines.append(f"    credentials: {_quote(credentials)}")
    if not verify:
        lines.append("    tls: {verify: false}")
    return "".join(f"{line}\n" for line in lines)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _to_line(value: Any) -> str:
    """Convert a BMC's text to one line that is safe in a comment. Return "" if the value is not a string."""
    return one_line(value) if isinstance(value, str) else ""
