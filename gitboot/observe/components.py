"""What an image found in a machine that nobody described, by the image's word: values, bounded, as JSON.

It decides nothing: it is shown, and a document can be made of it. What of it is not understood is left out, so that
an image may say more than is known here; only who names no interface is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from gitboot.model.scalars.machines import MacAddress, parse_lookup_mac
from gitboot.model.scalars.texts import Malformed
from gitboot.text import count

MOST_BYTES: Final = 64 * 1024  # of what an image sends
MOST_INTERFACES: Final = 16
_MOST_DISKS: Final = 16
_LONGEST: Final = 64
_MOST: Final = 2**63 - 1

# As in gitboot.model.server, which an endpoint does not need to start.
_ARCHITECTURES: Final = ("x86_64", "aarch64")
_FIRMWARES: Final = ("UEFI", "BIOS")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundInterface:
    """A network interface with a MAC address of its own."""

    mac: MacAddress
    name: str | None = None  # as an installed system calls it, where that is known
    link: bool | None = None  # whether a cable was found in it


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundDisk:
    """A disk, as the image's kernel calls it."""

    name: str
    bytes: int | None = None
    model: str | None = None
    serial: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What is known of a machine besides who it is."""

    interfaces: tuple[FoundInterface, ...]
    disks: tuple[FoundDisk, ...] = ()
    manufacturer: str | None = None
    product: str | None = None
    architecture: str | None = None  # one that a document can have, as the firmware
    firmware: str | None = None
    cpus: int | None = None
    memory_mib: int | None = None

    def facts(self) -> dict[str, Any]:
        """As `findings_of` reads it."""
        facts = asdict(self)
        facts["memoryMiB"] = facts.pop("memory_mib")
        return _present(
            {
                **facts,
                "interfaces": [_present(each) for each in facts["interfaces"]],
                "disks": [_present(each) for each in facts["disks"]],
            }
        )

    def __str__(self) -> str:
        """All of it in one line."""
        kind = " ".join(filter(None, (self.manufacturer, self.product)))
        how = " ".join(filter(None, (self.architecture, self.firmware)))
        cpus = count(self.cpus, "CPU") if self.cpus is not None else ""
        memory = f"{round(self.memory_mib / 1024, 1):g} GiB" if self.memory_mib is not None else ""
        disks = map(_disk_words, self.disks)
        return ", ".join(filter(None, (kind, how, cpus, memory, count(len(self.interfaces), "interface"), *disks)))


def findings_of(found: Mapping[str, Any]) -> Findings:
    """What of it is understood; ValueError where that is no interface."""
    interfaces = {each.mac: each for each in _interfaces(found.get("interfaces"))}
    if not interfaces:
        raise ValueError(f"it names no interface by its MAC address: {_HINT}")
    return Findings(
        interfaces=tuple(interfaces.values())[:MOST_INTERFACES],
        disks=tuple(_disks(found.get("disks")))[:_MOST_DISKS],
        manufacturer=_words(found.get("manufacturer")),
        product=_words(found.get("product")),
        architecture=_one_of(_ARCHITECTURES, found.get("architecture")),
        firmware=_one_of(_FIRMWARES, found.get("firmware")),
        cpus=_number(found.get("cpus")),
        memory_mib=_number(found.get("memoryMiB")),
    )


def parse_sent(data: bytes) -> Mapping[str, Any]:
    """What an image has sent, as JSON; ValueError where it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"it is no mapping in JSON: {_HINT}")
    return found


_HINT: Final = 'send {"interfaces": [{"mac": "52:54:00:12:34:56"}]}, and what else is known'


def _interfaces(listed: object) -> Iterator[FoundInterface]:
    for each in _mappings(listed):
        link = each.get("link")
        try:
            mac = parse_lookup_mac(each.get("mac"))
        except Malformed:
            continue
        yield FoundInterface(mac=mac, name=_words(each.get("name")), link=link if isinstance(link, bool) else None)


def _disks(listed: object) -> Iterator[FoundDisk]:
    for each in _mappings(listed):
        if (name := _words(each.get("name"))) is not None:
            size, model, serial = _number(each.get("bytes")), _words(each.get("model")), _words(each.get("serial"))
            yield FoundDisk(name=name, bytes=size, model=model, serial=serial)


def _disk_words(disk: FoundDisk) -> str:
    size = f"{disk.bytes / 1e9:.3g} GB" if disk.bytes is not None and disk.bytes < 1e12 else ""
    size = f"{disk.bytes / 1e12:.3g} TB" if disk.bytes is not None and not size else size
    return " ".join(filter(None, (disk.name, size)))


def _mappings(listed: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, dict))


def _words(text: object) -> str | None:
    """A few words on one line; None where they are none, too many, or would do something to who reads them."""
    plain = " ".join(text.split()) if isinstance(text, str) else ""
    return plain if plain and len(plain) <= _LONGEST and plain.isprintable() else None


def _one_of(known: tuple[str, ...], value: object) -> str | None:
    return value if isinstance(value, str) and value in known else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST else None


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, [])}
