"""Reservations of DHCP servers: dhcp-host of dnsmasq, host blocks of ISC dhcpd, reservations of Kea."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from gitboot.errors import UsageError
from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    Texts,
    as_list,
    as_text,
    parse_address,
    parse_mac_or_none,
    remark_kept,
)

_HOST: Final = re.compile(r"\bhost\s+\"?([^\s\"{]+)\"?\s*\{(.*?)\}", re.DOTALL)
_ETHERNET: Final = re.compile(r"hardware\s+ethernet\s+([0-9A-Fa-f:.-]+)\s*;")
_FIXED: Final = re.compile(r"fixed-address6?\s+([0-9A-Fa-f:.]+)\s*[;,]")
_BARE_FRACTION: Final = re.compile(r'("(?:\\.|[^"\\])*")|(?<=[\s:\[,])(?=\.[0-9])')  # .5, which JSON writes as 0.5
_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|/\*.*?\*/|(?://|#)[^\n]*', re.DOTALL)


def read_dnsmasq(files: Texts) -> ImportedInventory:
    """Read every ``dhcp-host=`` with a MAC address, and files of ``--dhcp-hostsfile``: a MAC, a name, an address."""
    return _build_inventory(_parse_dnsmasq(text) for _, text in sorted(files.items()))


def read_isc_dhcpd(files: Texts) -> ImportedInventory:
    """Read every ``host NAME { hardware ethernet MAC; fixed-address ADDRESS; }``."""
    return _build_inventory(_parse_isc_dhcpd(text) for _, text in sorted(files.items()))


def read_kea(files: Texts) -> ImportedInventory:
    """Read every reservation with a ``hw-address``, in any subnet. Kea's JSON has comments."""
    return _build_inventory(_parse_kea(path, text) for path, text in sorted(files.items()))


_Row = tuple[str | None, Any, tuple[str, ...]]


def _build_inventory(files: Iterator[Iterator[_Row]]) -> ImportedInventory:
    """Return machines by name. A machine without a name has the name of its MAC address."""
    nics: dict[str, dict[Any, ImportedNic]] = {}
    for name, mac, addresses in (row for rows in files for row in rows):
        own = nics.setdefault(name or f"host-{mac.replace(':', '-')}", {})
        before = own[mac].addresses if mac in own else ()
        own[mac] = ImportedNic(mac=mac, addresses=tuple(sorted({*before, *addresses})))
    return ImportedInventory(
        machines=tuple(
            ImportedMachine(
                name=name,
                nics=tuple(nic for _, nic in sorted(own.items())),
                remarks=(remark_kept("its reservation, which does not show its boot"),),
            )
            for name, own in sorted(nics.items())
        )
    )


def _parse_dnsmasq(text: str) -> Iterator[_Row]:
    for line in text.splitlines():
        value = line.partition("#")[0].strip().removeprefix("dhcp-host=")
        parts = [part.strip() for part in value.split(",")]
        macs = [mac for part in parts if part.count(":") == 5 and "[" not in part and (mac := parse_mac_or_none(part))]
        addresses = [found for part in parts if part not in macs and (found := parse_address(part.strip("[]")))]
        names = [part for part in parts if _NAME.fullmatch(part)]
        for mac in macs:
            yield next(iter(names), None), mac, tuple(addresses)


_NAME: Final = re.compile(r"(?!(?:ignore|infinite)$)[A-Za-z][A-Za-z0-9.-]*")  # these are keywords of dnsmasq


def _parse_isc_dhcpd(text: str) -> Iterator[_Row]:
    for name, body in _HOST.findall(re.sub(r"#[^\n]*", "", text)):
        for found in _ETHERNET.findall(body):
            if mac := parse_mac_or_none(found):
                yield name, mac, tuple(filter(None, map(parse_address, _FIXED.findall(body))))


def _parse_kea(path: str, text: str) -> Iterator[_Row]:
    try:
        plain = _COMMENT.sub(lambda match: match[1] or "", text)
        config = json.loads(_BARE_FRACTION.sub(lambda match: match[1] or "0", plain))
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not a configuration of Kea: it is not JSON") from None
    for row in _list_reservations(config):
        if mac := parse_mac_or_none(row.get("hw-address")):
            found = (
                parse_address(each) for each in (row.get("ip-address"), *(as_list(row.get("ip-addresses")))) if each
            )
            yield as_text(row.get("hostname")), mac, tuple(filter(None, found))


def _list_reservations(value: Any) -> Iterator[dict[str, Any]]:
    for key, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if key == "reservations" and isinstance(each, list):
            yield from (row for row in each if isinstance(row, dict))
        else:
            yield from _list_reservations(each)
