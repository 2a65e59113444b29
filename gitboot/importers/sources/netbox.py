"""NetBox and Nautobot: devices, interfaces and addresses, as their API answers or exports them in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gitboot.importers.inventory import (
    Estate,
    ImportedMachine,
    ImportedNic,
    Texts,
    address_of,
    at,
    grouped,
    items,
    json_files,
    kept,
    mac_of,
    missing,
    name_of,
    remark_if,
    uuid_of,
    words,
)


def read(files: Texts) -> Estate:
    """Read ``/api/dcim/devices/``, ``/api/dcim/interfaces/`` and ``/api/ipam/ip-addresses/``, one file each."""
    lists = (found if isinstance(found, list) else at(found, "results") for _, found in json_files(files))
    rows = [row for found in lists for row in items(found)]
    interfaces = [row for row in rows if at(row, "device", "id") is not None and "mac_address" in row]
    addresses = [row for row in rows if "assigned_object_id" in row and "address" in row]
    devices = [row for row in rows if "device_type" in row and words(row.get("name"))]
    of_device, of_interface = grouped(interfaces, "device", "id"), grouped(addresses, "assigned_object_id")
    machines = (_machine(device, of_device.get(str(device.get("id")), []), of_interface) for device in devices)
    return Estate(machines=tuple(sorted(machines, key=lambda machine: machine.name)))


def _machine(
    device: Mapping[str, Any], interfaces: list[dict[str, Any]], addresses: Mapping[str, list[dict[str, Any]]]
) -> ImportedMachine:
    nics = []
    for each in sorted(interfaces, key=lambda each: str(each.get("name"))):
        if not each.get("mgmt_only") and (mac := mac_of(each["mac_address"])):
            own = (words(row["address"]) for row in addresses.get(str(each.get("id")), []))
            found = tuple(sorted(filter(None, (address_of(one) for one in own if one))))
            nics.append(ImportedNic(mac=mac, name=words(each.get("name")), addresses=found))
    labels = {
        key: name_of(slug)
        for key in ("site", "rack", "role")
        if (slug := words(at(device, key, "slug")) or words(at(device, key, "name")))
    }
    return ImportedMachine(
        name=str(device["name"]),
        serial=words(device.get("serial")),
        uuid=uuid_of(at(device, "custom_fields", "uuid") or at(device, "custom_fields", "system_uuid")),
        nics=tuple(nics),
        labels=labels,
        remarks=(
            kept(f"device {device['name']}"),
            *remark_if(not nics, missing("its MAC addresses: export its interfaces beside the devices")),
        ),
    )
