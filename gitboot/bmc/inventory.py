"""What a scan reads of a machine behind a BMC, and the Server document that says it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from gitboot.bmc.identity import Shown
from gitboot.bmc.redfish.quirks import MODE
from gitboot.bmc.redfish.resources import Resource, observe_identity
from gitboot.fleet.identities import place_of
from gitboot.model.scalars.machines import MacAddress, parse_lookup_mac
from gitboot.model.scalars.placeholder_identities import is_placeholder_serial, is_placeholder_uuid
from gitboot.model.scalars.texts import Malformed
from gitboot.model.server import Architecture, Firmware, Lifecycle
from gitboot.text import one_line

# Processor.InstructionSet and ProcessorArchitecture, DSP0268
_ARCHITECTURES: Final = {
    "x86-64": Architecture.X86_64,
    "x86": Architecture.X86_64,
    "ARM-A64": Architecture.AARCH64,
    "ARM": Architecture.AARCH64,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundNic:
    """A network interface of a machine, as its BMC shows it."""

    name: str
    mac: MacAddress


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundServer:
    """A machine, as its BMC shows it."""

    address: str
    system: str  # the path of its ComputerSystem
    alone: bool = True  # whether its BMC has no other system
    shown: Shown
    maker: str = ""
    model: str = ""
    bios: str = ""
    bmc: str = ""  # the BMC's firmware
    nics: tuple[FoundNic, ...] = ()
    architecture: Architecture | None = None  # None: not shown
    firmware: Firmware = Firmware.UEFI

    @property
    def places(self) -> tuple[tuple[str, str | None], ...]:
        """How a document may name its BMC."""
        named = place_of(self.address, self.system)
        return (named, place_of(self.address, None)) if self.alone else (named,)

    @property
    def serial(self) -> str | None:
        """The serial number as SMBIOS has it: at Dell the service tag, which its BMC shows as SKU."""
        shown = self.shown.sku if self.maker.lower().startswith("dell") else self.shown.serial
        return shown if shown is not None and not is_placeholder_serial(shown) else None

    @property
    def lacks(self) -> str | None:
        """What no document can do without, and it does not show."""
        if self.shown.uuid is None or is_placeholder_uuid(self.shown.uuid):
            return "it shows no UUID"
        return None if self.nics else "it shows no MAC address"


def found_server(
    address: str,
    system: Resource,
    *,
    alone: bool,
    nics: Iterable[Resource] = (),
    manager: Resource | None = None,
    processor: Resource | None = None,
) -> FoundServer:
    """Put together what the resources of one system say; what is not shown stays empty."""
    body = system.body
    architectures = (
        [_line(processor.body.get(name)) for name in ("InstructionSet", "ProcessorArchitecture")] if processor else []
    )
    return FoundServer(
        address=address,
        system=system.path,
        alone=alone,
        shown=observe_identity(body),
        maker=_line(body.get("Manufacturer")),
        model=_line(body.get("Model")),
        bios=_line(body.get("BiosVersion")),
        bmc=_line(manager.body.get("FirmwareVersion")) if manager is not None else "",
        nics=_nics(nics),
        architecture=next((_ARCHITECTURES[each] for each in architectures if each in _ARCHITECTURES), None),
        firmware=Firmware.BIOS if system.boot.get(MODE) == "Legacy" else Firmware.UEFI,
    )


def _nics(resources: Iterable[Resource]) -> tuple[FoundNic, ...]:
    """Network interfaces by their permanent addresses, each once; not the one between machine and BMC."""
    found: dict[MacAddress, FoundNic] = {}
    for each in resources:
        if each.link("Links", "HostInterface") is not None:
            continue
        try:
            mac = parse_lookup_mac(_line(each.body.get("PermanentMACAddress")) or _line(each.body.get("MACAddress")))
        except Malformed:
            continue
        found.setdefault(mac, FoundNic(name=_line(each.body.get("Id")), mac=mac))
    return tuple(sorted(found.values(), key=lambda nic: (nic.name, nic.mac)))


def name_for(found: FoundServer, taken: Collection[str]) -> str:
    """A name for its document that none has: its serial number, else of its UUID."""
    plain = re.sub(r"[^a-z0-9]+", "-", (found.serial or "").lower()).strip("-")[:50]
    name = plain or f"server-{(found.shown.uuid or '')[:8]}"
    number = 2
    while (chosen := name if number == 2 else f"{name}-{number - 1}") in taken:
        number += 1
    return chosen


def document_for(found: FoundServer, name: str, credentials: str, *, verify: bool) -> str:
    """The Server document of a machine that has none: parked, so that nothing is booted or set by it."""
    known = f"{found.maker} {found.model}".strip() or "a machine"
    versions = "".join(f", {what} {its}" for what, its in (("BIOS", found.bios), ("BMC", found.bmc)) if its)
    assumed = "" if found.architecture else "  # not shown by its BMC: look"
    lines = [
        f"# {known}{versions}; found at {found.address}.",
        "apiVersion: gitboot.dev/v1alpha1",
        "kind: Server",
        "metadata:",
        f"  name: {_quoted(name)}",
        "spec:",
        f"  uuid: {found.shown.uuid}",
        *([f"  serial: {_quoted(found.serial)}"] if found.serial else []),
        f"  architecture: {found.architecture or Architecture.X86_64}{assumed}",
        f"  firmware: {found.firmware}",
        "  interfaces:",
        *(f"    - {{name: {_quoted(nic.name)}, mac: {_quoted(nic.mac.replace('-', ':'))}}}" for nic in found.nics),
        f"  lifecycle: {Lifecycle.PARKED}  # until somebody knows what it is to be: then take this line out",
        "  bmc:",
        f"    address: {_quoted(found.address)}",
        *([] if found.alone else [f"    system: {_quoted(found.system)}"]),
        f"    credentials: {_quoted(credentials)}",
        *([] if verify else ["    tls: {verify: false}"]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _quoted(text: str) -> str:
    """A scalar that YAML reads as this text, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _line(value: Any) -> str:
    """Return text from outside as one line, for a comment too; nothing for what is no text."""
    return one_line(value) if isinstance(value, str) else ""
