"""DHCP reservations: read dnsmasq's dhcp-host, ISC dhcpd's host blocks, and Kea's reservations.

Each host becomes a machine, even if its reservation contains no MAC address. The report lists included files that are
missing from the source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    RemarkKind,
    Texts,
    as_list,
    as_mapping,
    as_text,
    parse_address,
    read_mac,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
)
from gitboot.model.scalars import MacAddress, build_document_name


class _Host(Struct, frozen=True, kw_only=True):
    name: str | None = None
    macs: tuple[MacAddress, ...] = ()
    addresses: tuple[str, ...] = ()
    identifier: str | None = None  # the identifier of the host if the reservation has no MAC address
    is_deleted: bool = False  # dhcpd.leases deletes the hosts with this name that precede it (dhcpd.leases(5))
    remarks: tuple[ImportRemark, ...] = ()


_Row = _Host | ImportRemark  # one reservation, or a remark on the source as a whole


def read_dnsmasq(files: Texts) -> ImportedInventory:
    """Read the MAC addresses, names and IP addresses in ``dhcp-host=`` options and ``--dhcp-hostsfile`` files."""
    return _build_inventory(row for _, text in sorted(files.items()) for row in _parse_dnsmasq(text, files))


def read_isc_dhcpd(files: Texts) -> ImportedInventory:
    """Read each ``host NAME { hardware ethernet MAC; fixed-address ADDRESS; }`` block, in any group or subnet."""
    rows = list[_Row]()
    for _, text in sorted(files.items()):
        for row in _parse_isc_dhcpd(text, files):
            if isinstance(row, _Host) and row.is_deleted:
                rows = [each for each in rows if isinstance(each, ImportRemark) or each.name != row.name]
            else:
                rows.append(row)
    return _build_inventory(rows)


def read_kea(files: Texts) -> ImportedInventory:
    """Read the reservations of all subnets. Kea's JSON may contain comments, includes and trailing commas."""
    return _build_inventory(row for path, text in sorted(files.items()) for row in _parse_kea(path, text, files))


def _build_inventory(rows: Iterable[_Row]) -> ImportedInventory:
    """Build machines from reservations.

    If a reservation has no name, the machine is named after the MAC address or identifier.
    """
    nics: dict[str, dict[MacAddress, ImportedNic]] = {}
    remarks: dict[str, list[ImportRemark]] = {}
    source_remarks: list[ImportRemark] = []
    for row in rows:
        if isinstance(row, ImportRemark):
            source_remarks.append(row)
            continue
        macs, guess_remarks = _guess_mac(row)
        host_id = macs[0] if macs else row.identifier or next(iter(row.addresses), "unnamed")
        name = row.name or f"host-{build_document_name(host_id.replace(':', '-'))}"
        host_nics = nics.setdefault(name, {})
        if host_nics and macs and host_nics.keys().isdisjoint(macs):
            merged = (
                f"several reservations have the name {name}, so the import wrote their MAC addresses to one machine"
            )
            guess_remarks = (*guess_remarks, remark_guessed(merged))
        for mac in macs:
            before = host_nics[mac].addresses if mac in host_nics else ()
            host_nics[mac] = ImportedNic(mac=mac, addresses=tuple(sorted({*before, *row.addresses})))
        host_remarks = remarks.setdefault(name, [])
        host_remarks += (*row.remarks, *guess_remarks)
        if not macs:
            is_rejected = any(remark.kind is RemarkKind.REJECTED for remark in (*row.remarks, *guess_remarks))
            if not is_rejected:
                host_remarks.append(_remark_missing_mac(row))
            host_remarks += (
                remark_lost(f"the address {address} was left out, because no interface with a MAC address is known")
                for address in row.addresses
            )
    return ImportedInventory(
        machines=tuple(
            ImportedMachine(
                name=name,
                nics=tuple(nic for _, nic in sorted(host_nics.items())),
                remarks=(remark_kept("the reservation (it does not name a boot)"), *remarks[name]),
            )
            for name, host_nics in sorted(nics.items())
        ),
        remarks=tuple(dict.fromkeys(source_remarks)),
    )


def _remark_missing_mac(host: _Host) -> ImportRemark:
    if host.identifier:
        return remark_missing(
            f"the MAC address is unknown, because the reservation identifies the machine by {host.identifier}"
        )
    return remark_missing("the reservation does not have a MAC address")


# RFC 2132, 9.14: a client identifier of type 1 is the MAC address.
_ETHERNET_CLIENT_ID: Final = re.compile(r"0?1:((?:[0-9a-f]{1,2}:){5}[0-9a-f]{1,2})", re.IGNORECASE | re.ASCII)


def _guess_mac(host: _Host) -> tuple[tuple[MacAddress, ...], tuple[ImportRemark, ...]]:
    """Return the MAC addresses of a reservation, or the MAC address that is its client identifier."""
    client_id = _ETHERNET_CLIENT_ID.fullmatch(_strip_client_id(host.identifier))
    if host.macs or client_id is None:
        return host.macs, ()
    mac, remarks = read_mac(client_id[1])
    if mac is None:
        return (), remarks
    guess = remark_guessed(f"the import took the MAC address from the {host.identifier}, whose type is Ethernet")
    return (mac,), (guess,)


def _strip_client_id(identifier: str | None) -> str:
    text = (identifier or "").removeprefix("client id ")
    digits = text.lower().removeprefix("0x")
    if re.fullmatch(r"01[0-9a-f]{12}", digits):  # Kea and dnsmasq also accept the identifier without colons
        return ":".join(digits[at : at + 2] for at in range(0, 14, 2))
    return text.replace("-", ":")


def _remark_include(path: str, files: Collection[str], option: str = "include") -> Iterator[ImportRemark]:
    parts = path.strip("\"' ").rstrip("/")
    wanted = parts.rpartition("/")[2]
    if not any(fnmatchcase(each.rpartition("/")[2], wanted) or wanted in each.split("/")[:-1] for each in files):
        yield remark_missing(
            f"{option} {parts} refers to files that are not in the source: pass a directory with all files"
        )


# dnsmasq


_OPTION: Final = re.compile(r"(?:--)?([a-z][a-z0-9-]+)(?:\s*=\s*(.*))?")
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_LEASE: Final = re.compile(r"infinite|\d+[smhdw]?", re.IGNORECASE)
_HARDWARE: Final = re.compile(
    r"(?:([0-9a-f]{1,2})-)?((?:[0-9a-f]{1,2}|\*)(?:[:-](?:[0-9a-f]{1,2}|\*)){5,19})", re.IGNORECASE
)
_HOSTS_LINE: Final = re.compile(r"(?:^|,)\s*(?:id:|(?:[0-9a-f]{1,2}[:-]){5}|\d+\.\d+\.\d+\.\d+|\[)", re.IGNORECASE)


def _parse_dnsmasq(text: str, files: Collection[str]) -> Iterator[_Row]:
    for line in text.splitlines():
        value = re.sub(r"(?:^|\s)#.*", "", line).strip()
        option = _OPTION.fullmatch(value)
        if option is not None and (option[2] is not None or "," not in value):
            name, value = option[1], option[2] or ""
            if name in ("conf-file", "conf-dir", "dhcp-hostsfile", "dhcp-hostsdir") and value:
                yield from _remark_include(value.partition(",")[0], files, name)
            elif name == "read-ethers":
                yield from _remark_include("/etc/ethers", files, name)
            if name != "dhcp-host":
                continue
        elif read_mac(value.partition(" ")[0])[0]:
            value = ",".join(value.split())  # a line in the format of /etc/ethers has spaces instead of commas
        elif not _HOSTS_LINE.search(value):
            continue
        yield from _parse_dnsmasq_host(value)


def _parse_dnsmasq_host(value: str) -> Iterator[_Row]:
    macs, addresses, names, identifiers = list[MacAddress](), list[str](), list[str](), list[str]()
    remarks = list[ImportRemark]()
    for part in (each.strip() for each in value.split(",")):
        lower = part.lower()
        if lower == "ignore":
            yield remark_lost(f"dhcp-host={value} was left out, because dnsmasq ignores this host")
            return
        if lower.startswith(("set:", "net:", "tag:")) or _LEASE.fullmatch(part) or not part:
            continue
        if lower.startswith("id:"):
            if part[3:] != "*":
                identifiers.append(f"client id {part[3:]}")
        elif hardware := _HARDWARE.fullmatch(part):
            mac, mac_remarks = read_mac(hardware[2])
            remarks += mac_remarks
            if mac is not None and int(hardware[1] or "1", 16) != 1:  # dnsmasq compares the type, and 1 is Ethernet
                remarks.append(remark_lost(f"{part} was left out, because its hardware type is not Ethernet"))
            elif mac is not None:
                macs.append(mac)
            else:
                identifiers.append(part)
        elif address := parse_address(part.strip("[]")):
            addresses.append(address)
        elif part.startswith("["):
            remarks.append(remark_lost(f"the address {part} was left out, because it is incomplete"))
        elif _NAME.fullmatch(name := re.sub(r'^"(.*)"$', r"\1", part)):  # dnsmasq removes the quotes
            names.append(name)
        else:
            remarks.append(
                remark_lost(f"{part} was left out, because it is not a MAC address, an IP address or a name")
            )
    if macs or remarks or identifiers or addresses:
        yield _Host(
            name=next(iter(names), None),
            macs=tuple(macs),
            addresses=tuple(addresses),
            identifier=next(iter(identifiers), "the name that the client sends" if names else None),
            remarks=tuple(remarks),
        )
    elif names and "," in value:
        yield remark_lost(f"dhcp-host={value} was left out, because it has neither a MAC address nor an IP address")


# ISC dhcpd

_PIECE: Final = re.compile(r'"(?:\\.|[^"\\])*"|#[^\n]*|[{};]|[^\s{};"#]+')


def _parse_isc_dhcpd(text: str, files: Collection[str]) -> Iterator[_Row]:
    words: list[str] = []
    # the blocks that are open at this point; None stands for a block that is not a host
    hosts: list[tuple[str, list[list[str]]] | None] = []
    for piece in _PIECE.findall(text):
        if piece.startswith("#"):
            continue
        if piece == "{":
            hosts.append((words[1].strip('"'), []) if len(words) == 2 and words[0].lower() == "host" else None)
            words = []
        elif piece == "}":
            if hosts and (host := hosts.pop()) is not None:
                yield _read_isc_host(*host)
            words = []
        elif piece == ";":
            if words and words[0].lower() == "include":
                yield from _remark_include(" ".join(words[1:]), files)
            elif words:
                open_host = next((host for host in reversed(hosts) if host is not None), None)
                if open_host is not None:
                    open_host[1].append(words)
            words = []
        else:
            words.append(piece)
    # the file ends inside these blocks
    yield from (_read_isc_host(*host) for host in hosts if host is not None)


def _read_isc_host(name: str, statements: Collection[list[str]]) -> _Host:
    macs, addresses, identifiers, remarks = list[MacAddress](), list[str](), list[str](), list[ImportRemark]()
    for words in statements:
        key, rest = words[0].lower(), words[1:]
        if key == "hardware" and len(rest) == 2:
            mac, mac_remarks = read_mac(rest[1])
            remarks += mac_remarks
            if mac is not None and rest[0].lower() == "ethernet":
                macs.append(mac)
            elif mac is not None:
                remarks.append(remark_lost(f"hardware {' '.join(rest)} was left out, because it is not Ethernet"))
        elif key in ("fixed-address", "fixed-address6"):
            for text in " ".join(rest).replace(",", " ").split():
                address = parse_address(text)
                if address is not None:
                    addresses.append(address)
                else:
                    remarks.append(
                        remark_lost(f"the address {text} was left out, because it is a DNS name: add the IP address")
                    )
        elif words[:2] == ["option", "dhcp-client-identifier"] or key in ("uid", "host-identifier"):
            client_id = " ".join(words[2:] if key == "option" else rest)
            identifiers.append(f"client id {client_id}" if key != "host-identifier" else client_id)
        elif key in ("filename", "next-server"):
            remarks.append(
                remark_lost(
                    f"{key} {' '.join(rest)} was left out, although the firmware uses it: select a boot with a "
                    "BootPolicy"
                )
            )
    return _Host(
        name=name,
        macs=tuple(macs),
        addresses=tuple(addresses),
        identifier=next((each.replace('"', "") for each in identifiers), None),
        is_deleted=["deleted"] in statements,
        remarks=tuple(remarks),
    )


# Kea

_SKIPPED: Final = re.compile(
    r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|(?://|#)[^\n]*|<\?include\s+"([^"\n]*)"\s*\?>', re.DOTALL
)
# matches a number such as .5, which is 0.5 in JSON
_BARE_FRACTION: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|(?<=[\s:\[,])(?=\.[0-9])')
# Matches a comma at the start or end of a list or an object, or after another comma. Removing an include may leave such
# commas.
_SPARE_COMMA: Final = re.compile(
    r'("(?:\\.|[^"\\\n])*")|([\[{,]\s*)(?:,\s*)+(?![\s,\]}])|(?:,\s*)+(?=[\]}])', re.DOTALL
)


def _parse_kea(path: str, text: str, files: Texts) -> Iterator[_Row]:
    config, includes = _load_kea(path, text)
    for each in includes:
        yield from _remark_include(each, files, "<?include")
    for key, row in _walk_values(config):
        if key == "reservations":
            yield from (_read_kea_host(each) for each in as_list(row) if isinstance(each, dict))
        elif key in ("hosts-database", "hosts-databases", "config-databases") and row:
            yield remark_missing(f"the hosts in {key} were not imported, because the import does not read databases")


def _load_kea(path: str, text: str) -> tuple[Any, list[str]]:
    """Return a parsed configuration and the included files.

    An included file may be a part of a list or of an object.
    """
    includes: list[str] = []

    def replace_match(match: re.Match[str]) -> str:
        if match[2] is not None:
            includes.append(match[2])
            return "null" if text[: match.start()].rstrip().endswith(":") else ""
        # keep line breaks, so that error messages contain the correct line
        return match[1] or "\n" * match[0].count("\n")

    plain = _SKIPPED.sub(replace_match, text)
    plain = _SPARE_COMMA.sub(lambda match: match[1] or match[2] or "", plain)
    plain = _BARE_FRACTION.sub(lambda match: match[1] or "0", plain)
    for wrapped in (plain, f"[{plain}]", f"{{{plain}}}"):  # an included file need not be a complete document
        try:
            return json.loads(wrapped), includes
        except (ValueError, RecursionError) as error:
            if wrapped is plain:
                place = (
                    f"line {error.lineno}: {error.msg}"
                    if isinstance(error, json.JSONDecodeError)
                    else "nested too deeply"
                )
    raise UsageError(f"{path} is not a Kea configuration, because it is not JSON ({place})") from None


def _walk_values(value: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield each nested value with its key. Values inside reservations are omitted."""
    items = value.items() if isinstance(value, dict) else ((None, each) for each in as_list(value))
    for key, each in items:
        yield key, each
        if key != "reservations":
            yield from _walk_values(each)


def _read_kea_host(row: dict[str, Any]) -> _Host:
    mac, remarks = read_mac(as_text(row.get("hw-address")))
    addresses = (parse_address(each) for each in (row.get("ip-address"), *as_list(row.get("ip-addresses"))) if each)
    id_key = next((key for key in ("client-id", "duid", "circuit-id", "flex-id") if as_text(row.get(key))), None)
    return _Host(
        name=as_text(row.get("hostname")),
        macs=(mac,) if mac else (),
        addresses=tuple(filter(None, addresses)),
        identifier=f"{id_key.replace('client-id', 'client id')} {row[id_key]}" if id_key is not None else None,
        remarks=(
            *remarks,
            *(
                remark_lost(
                    f"{key} {row[key]} was left out, although the firmware uses it: select a boot with a BootPolicy"
                )
                for key in ("next-server", "boot-file-name")
                if as_text(row.get(key))
            ),
            *remark_if(as_mapping(row.get("user-context")), remark_lost("the user-context was left out")),
        ),
    )
