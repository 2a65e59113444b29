"""Unknown machines: record the machines without a document that request a boot, and their inventories."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs, to_builtins

from gitboot.fetchlog.log_entries import get_client_network, parse_log_instant
from gitboot.files import convert_os_errors, hold_lock, write_atomically
from gitboot.jsonio import encode_canonical, format_instant, parse_json
from gitboot.model.scalars import (
    MacAddress,
    Malformed,
    SystemUuid,
    is_placeholder_serial,
    is_placeholder_uuid,
    parse_lookup_mac,
    parse_uuid,
    swap_byte_order,
)
from gitboot.render.emulated_apis import find_boot_script_path
from gitboot.render.paths import BOOT, IdentityKind, Role, format_identity, parse_request_path
from gitboot.text import format_count

MAX_MACHINES: Final = 1000  # the maximum number of machines in a table
MAX_PER_NETWORK: Final = 64  # the maximum number of machines in a table with addresses in one network
RETENTION: Final = timedelta(days=30)  # how long a machine stays in a table after its last request
MAX_INVENTORY_BYTES: Final = 64 * 1024  # the maximum size of an inventory
MAX_INTERFACES: Final = 16
MAX_FILE_BYTES: Final = 8 * 1024 * 1024  # the size of a full table in which each machine has an inventory
_MAX_FILES: Final = 64  # the maximum number of files, which accumulate if no instance reads them
_MAX_MACS: Final = 16
_MAX_DISKS: Final = 16
_MAX_TEXT_LENGTH: Final = 64  # the maximum length of a serial number
_MAX_NUMBER: Final = 2**63 - 1
SUFFIX: Final = ".unknown"  # of a file in a spool
UNKNOWN: Final = "unknown.json"  # file in STATE with the machines that an instance has recorded
UNKNOWN_LOCK: Final = "unknown.lock"
# These values are copies from gitboot.model.server, so that an endpoint does not import that module at startup.
_ARCHITECTURES: Final = ("x86_64", "aarch64")
_FIRMWARES: Final = ("UEFI", "BIOS")
_HINT: Final = 'send {"interfaces": [{"mac": "52:54:00:12:34:56"}]}; other fields are optional'


class UnknownMachine(Struct, frozen=True, kw_only=True):
    """A machine without a document. The values come from the requests of the machine."""

    macs: tuple[MacAddress, ...] = ()
    uuid: SystemUuid | None = None
    serial: str | None = None
    client: str  # the address of the last request
    path: str  # the path of the last request below the base URL
    first: datetime
    last: datetime
    times: int = 1
    server: str | None = None  # a server whose document contains one of the machine's identities, but another UUID
    # the inventory that an inventory image sent; None: the machine has not sent an inventory
    inventory: HardwareInventory | None = None

    @property
    def identities(self) -> tuple[str, ...]:
        """The identities of the machine, as keys for an index."""
        identities = [format_identity(IdentityKind.MAC, mac) for mac in self.macs]
        if self.uuid is not None:
            identities.append(format_identity(IdentityKind.UUID, self.uuid))
        if self.serial is not None:
            identities.append(format_identity(IdentityKind.SERIAL, self.serial))
        return tuple(identities)

    def facts(self) -> dict[str, Any]:
        return {
            "macs": list(self.macs),
            "uuid": self.uuid,
            "serial": self.serial,
            "client": self.client,
            "path": self.path,
            "first": format_instant(self.first),
            "last": format_instant(self.last),
            "times": self.times,
            "server": self.server,
            "inventory": self.inventory.facts() if self.inventory is not None else None,
        }


def parse_unknown_machine(path: str, query: Mapping[str, str], client: str, at: datetime) -> UnknownMachine | None:
    """Return the machine that requests a boot script, or None if the path is not the path of a boot script.

    ``path`` is relative to the base URL, in any notation that gitboot accepts.
    """
    for lookup in parse_request_path(find_boot_script_path(path.removeprefix("/"), query)):
        if lookup.kind.role is not Role.BOOT_SCRIPT:
            continue
        kind, _, value = lookup.identity.partition("/")
        values = {"uuid": query.get("uuid"), "serial": query.get("serial"), kind: value}
        mac = values.get("mac")
        uuid = _parse_uuid(values["uuid"])
        serial = _parse_serial(values["serial"])
        if mac is None and uuid is None and serial is None:
            return None
        macs = (parse_lookup_mac(mac),) if mac is not None else ()
        relative_path = lookup.path.removeprefix(BOOT)[:200]
        return UnknownMachine(macs=macs, uuid=uuid, serial=serial, client=client, path=relative_path, first=at, last=at)
    return None


def build_from_inventory(document: Mapping[str, Any], path: str, client: str, at: datetime) -> UnknownMachine:
    """Return the unknown machine that sent an inventory.

    Raises ValueError if the inventory does not contain a network interface.
    """
    inventory = parse_hardware_inventory(document)
    return UnknownMachine(
        macs=tuple(sorted(interface.mac for interface in inventory.interfaces)),
        uuid=_parse_uuid(document.get("uuid")),
        serial=_parse_serial(document.get("serial")),
        client=client,
        path=path,
        first=at,
        last=at,
        inventory=inventory,
    )


def _parse_uuid(text: object) -> SystemUuid | None:
    try:
        uuid = parse_uuid(text)
    except Malformed:
        return None
    return None if is_placeholder_uuid(uuid) else uuid


def _parse_serial(text: object) -> str | None:
    """Return the serial number in a text, or None for a placeholder or a value that a document may not contain."""
    serial = text.strip() if isinstance(text, str) else ""
    if not serial or len(serial) > _MAX_TEXT_LENGTH or not (serial.isascii() and serial.isprintable()):
        return None
    return None if is_placeholder_serial(serial) else serial


# The table


class UnknownMachines:
    """A table of unknown machines with a limited size. All requests of the same machine share one entry."""

    def __init__(self, machines: Iterable[UnknownMachine] = (), dropped_count: int = 0) -> None:
        self.dropped_count = dropped_count  # the number of requests by machines that did not fit into the table
        self._by_identity: dict[str, UnknownMachine] = {}
        self._machines: dict[int, UnknownMachine] = {}  # the machines by id(), in the order of their first requests
        self._counts_by_network: Counter[str] = Counter()
        for machine in machines:
            self.add(machine)

    @property
    def machines(self) -> tuple[UnknownMachine, ...]:
        """The machines, sorted by the time of their last request, with the most recent request first."""
        return tuple(
            sorted(self._machines.values(), key=lambda machine: (-machine.last.timestamp(), machine.identities))
        )

    def add(self, machine: UnknownMachine) -> bool:
        """Add a machine, or merge it with an existing entry. Return whether the table has a new entry."""
        known_machines: dict[int, UnknownMachine] = {}  # the entries with an identity of the machine, by id()
        for identity in _list_identities(machine):
            if (known := self._by_identity.get(identity)) is not None:
                known_machines[id(known)] = known
        if not known_machines and self._is_full(get_client_network(machine.client)):
            self.dropped_count += machine.times
            return False
        for known in known_machines.values():
            self._drop_machine(known)
        merged = reduce(_merge_machines, [*known_machines.values(), machine])
        self._machines[id(merged)] = merged
        self._counts_by_network[get_client_network(merged.client)] += 1
        self._by_identity |= dict.fromkeys(_list_identities(merged), merged)
        return not known_machines

    def _is_full(self, network: str) -> bool:
        """Return whether the table has no space for a new machine in a network."""
        return self._counts_by_network[network] >= MAX_PER_NETWORK or len(self._machines) >= MAX_MACHINES

    def expire(self, at: datetime) -> None:
        """Remove the machines that have not sent a request for a long time."""
        for machine in self.machines:
            if machine.last <= at - RETENTION:
                self._drop_machine(machine)

    def _drop_machine(self, machine: UnknownMachine) -> None:
        del self._machines[id(machine)]
        self._counts_by_network[get_client_network(machine.client)] -= 1
        for name in _list_identities(machine):
            del self._by_identity[name]


def _list_identities(machine: UnknownMachine) -> tuple[str, ...]:
    """Return the identities of a machine. Both byte orders of a UUID result in the same identity."""
    canonical_uuid = machine.uuid if machine.uuid is None else min(machine.uuid, swap_byte_order(machine.uuid))
    return structs.replace(machine, uuid=canonical_uuid).identities


def _merge_machines(first: UnknownMachine, second: UnknownMachine) -> UnknownMachine:
    """Merge two descriptions of one machine. If identities differ, keep those in ``first``.

    Keep the data of the later request.
    """
    later = max(first, second, key=lambda machine: machine.last)
    macs = tuple(sorted({*first.macs, *second.macs}))
    return structs.replace(
        later,
        macs=macs if len(macs) <= _MAX_MACS else first.macs,
        uuid=first.uuid or second.uuid,
        serial=first.serial or second.serial,
        first=min(first.first, second.first),
        times=first.times + second.times,
        inventory=later.inventory or first.inventory or second.inventory,
    )


# As JSON


def render_unknown_machines(table: UnknownMachines) -> bytes:
    machines = [machine.facts() for machine in table.machines]
    return encode_canonical({"machines": machines, "unkept": table.dropped_count}) + b"\n"


def parse_unknown_machines(data: bytes) -> UnknownMachines:
    """Parse the output of `render_unknown_machines`, and ignore invalid parts."""
    try:
        document = parse_json(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return UnknownMachines()
    items, dropped_count = document.get("machines"), document.get("unkept")
    machines = map(_parse_machine, items) if isinstance(items, list) else ()
    return UnknownMachines(filter(None, machines), dropped_count if isinstance(dropped_count, int) else 0)


def _parse_machine(fields: object) -> UnknownMachine | None:
    with suppress(Malformed, ValueError, AttributeError):
        match fields:
            case {
                "macs": list(macs),
                "client": str(client),
                "path": str(path),
                "first": str(first),
                "last": str(last),
                "times": int(times),
                **more,
            }:
                name = more.get("server")
                server = name if isinstance(name, str) else None
                for text in (client, path, server or ""):
                    text.encode()  # Python cannot encode half of a surrogate pair
                return UnknownMachine(
                    macs=tuple(map(parse_lookup_mac, macs[:_MAX_MACS])),
                    uuid=_parse_uuid(more.get("uuid")),
                    serial=_parse_serial(more.get("serial")),
                    client=client[:64],
                    path=path[:200],
                    first=parse_log_instant(first),
                    last=parse_log_instant(last),
                    times=times,
                    server=server,
                    inventory=_parse_inventory(more.get("inventory")),
                )
    return None


def _parse_inventory(document: object) -> HardwareInventory | None:
    with suppress(ValueError):
        return parse_hardware_inventory(document) if isinstance(document, dict) else None
    return None


# Inventories


class FoundInterface(Struct, frozen=True, kw_only=True):
    """A network interface with its own MAC address."""

    mac: MacAddress
    name: str | None = None  # the name of the interface in an installed system
    link: bool | None = None  # whether the interface has a link


class FoundDisk(Struct, frozen=True, kw_only=True):
    """A disk with the name that the kernel of the inventory image uses."""

    name: str
    bytes: int | None = None
    model: str | None = None
    serial: str | None = None


class HardwareInventory(Struct, frozen=True, kw_only=True):
    """The hardware inventory of a machine."""

    interfaces: tuple[FoundInterface, ...]
    disks: tuple[FoundDisk, ...] = ()
    manufacturer: str | None = None
    product: str | None = None
    architecture: str | None = None  # a value that documents accept, as for `firmware`
    firmware: str | None = None
    cpus: int | None = None
    memory_mib: int | None = None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = to_builtins(self)
        facts["memoryMiB"] = facts.pop("memory_mib")
        return _drop_empty_fields(
            {
                **facts,
                "interfaces": [_drop_empty_fields(each) for each in facts["interfaces"]],
                "disks": [_drop_empty_fields(each) for each in facts["disks"]],
            }
        )

    def __str__(self) -> str:
        model = " ".join(filter(None, (self.manufacturer, self.product)))
        platform = " ".join(filter(None, (self.architecture, self.firmware)))
        cpus = format_count(self.cpus, "CPU") if self.cpus is not None else ""
        memory = f"{round(self.memory_mib / 1024, 1):g} GiB" if self.memory_mib is not None else ""
        disks = map(_describe_disk, self.disks)
        return ", ".join(
            filter(None, (model, platform, cpus, memory, format_count(len(self.interfaces), "interface"), *disks))
        )


def parse_hardware_inventory(document: Mapping[str, Any]) -> HardwareInventory:
    """Parse an inventory, and ignore invalid parts.

    Raises ValueError if the inventory does not contain a MAC address.
    """
    interfaces = {interface.mac: interface for interface in _parse_interfaces(document.get("interfaces"))}
    if not interfaces:
        raise ValueError(f"the inventory has no interface with a MAC address: {_HINT}")
    return HardwareInventory(
        interfaces=tuple(interfaces.values())[:MAX_INTERFACES],
        disks=tuple(_parse_disks(document.get("disks")))[:_MAX_DISKS],
        manufacturer=_parse_text(document.get("manufacturer")),
        product=_parse_text(document.get("product")),
        architecture=_parse_choice(_ARCHITECTURES, document.get("architecture")),
        firmware=_parse_choice(_FIRMWARES, document.get("firmware")),
        cpus=_parse_number(document.get("cpus")),
        memory_mib=_parse_number(document.get("memoryMiB")),
    )


def parse_inventory(data: bytes) -> Mapping[str, Any]:
    """Parse the JSON of an inventory. Raises ValueError if the data is not a JSON object."""
    try:
        document = parse_json(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"the inventory is not a JSON object: {_HINT}")
    return document


def _parse_interfaces(items: object) -> Iterator[FoundInterface]:
    for fields in _select_mappings(items):
        link = fields.get("link")
        with suppress(Malformed):
            yield FoundInterface(
                mac=parse_lookup_mac(fields.get("mac")),
                name=_parse_text(fields.get("name")),
                link=link if isinstance(link, bool) else None,
            )


def _parse_disks(items: object) -> Iterator[FoundDisk]:
    for fields in _select_mappings(items):
        if (name := _parse_text(fields.get("name"))) is not None:
            yield FoundDisk(
                name=name,
                bytes=_parse_number(fields.get("bytes")),
                model=_parse_text(fields.get("model")),
                serial=_parse_text(fields.get("serial")),
            )


def _describe_disk(disk: FoundDisk) -> str:
    if disk.bytes is None:
        return disk.name
    return f"{disk.name} {disk.bytes / 1e9:.3g} GB" if disk.bytes < 1e12 else f"{disk.name} {disk.bytes / 1e12:.3g} TB"


def _select_mappings(items: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in (items if isinstance(items, list) else ()) if isinstance(item, dict))


def _parse_text(text: object) -> str | None:
    """Return a text on one line, or None if the text is empty, is too long or contains control characters."""
    plain = " ".join(text.split()) if isinstance(text, str) else ""
    return plain if plain and len(plain) <= _MAX_TEXT_LENGTH and plain.isprintable() else None


def _parse_choice(choices: tuple[str, ...], value: object) -> str | None:
    return value if isinstance(value, str) and value in choices else None


def _parse_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_NUMBER else None


def _drop_empty_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [])}


# Files in a spool and in the state directory


class UnknownMachineRecorder:
    """Collects unknown machines for the instance. Several threads may use the same object.

    Each writer has at most one file in the spool. Until the instance has read this file, gitboot keeps further machines
    in a table of limited size. If a file is lost, some entries are missing from the list of unknown machines.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._name = folder, f"{os.getpid()}-{token_hex(8)}{SUFFIX}"
        self._lock = threading.Lock()
        self._table = UnknownMachines()
        self.requests = 0  # the number of requests by unknown machines since the start

    def add(self, machine: UnknownMachine) -> None:
        with self._lock:
            self.requests += machine.times
            self._table.add(machine)

    @property
    def is_forwarded(self) -> bool:
        """Return whether gitboot writes the machines to a spool, from which an instance reads them."""
        return self._folder is not None

    def write_file(self) -> None:
        """Write the table to a file if the instance has read the previous file.

        If the disk is full, keep the table in memory.
        """
        with self._lock:
            if self._folder is None or not (self._table.machines or self._table.dropped_count):
                return
            path = self._folder / self._name
            with suppress(OSError):
                if path.exists() or len(list(self._folder.glob(f"*{SUFFIX}"))) >= _MAX_FILES:
                    return
                write_atomically(path, render_unknown_machines(self._table), mode=0o640)
                self._table = UnknownMachines()


class UnknownMachineFile(NamedTuple):
    path: Path
    table: UnknownMachines


def read_unknown_machine_files(folder: Path) -> Iterator[UnknownMachineFile]:
    """Yield the spool files with unknown machines. The caller must delete each file after it has stored the content.

    gitboot ignores files that it cannot read.
    """
    with suppress(OSError):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            with suppress(OSError):
                is_readable = path.stat().st_size <= MAX_FILE_BYTES
                yield UnknownMachineFile(
                    path, parse_unknown_machines(path.read_bytes()) if is_readable else UnknownMachines()
                )


def load_unknown_machines(state: Path) -> UnknownMachines:
    """Read the unknown machines that an instance has recorded. Raises `UsageError` if gitboot cannot read them."""
    with convert_os_errors(state / UNKNOWN, "read"):
        try:
            return parse_unknown_machines((state / UNKNOWN).read_bytes())
        except FileNotFoundError:
            return UnknownMachines()


def delete_unknown_machines(state: Path) -> None:
    """Delete all recorded unknown machines. Raises `UsageError` if gitboot cannot delete them."""
    with convert_os_errors(state / UNKNOWN), hold_lock(state / UNKNOWN_LOCK, f"{state} is in use"):
        write_atomically(state / UNKNOWN, render_unknown_machines(UnknownMachines()))
