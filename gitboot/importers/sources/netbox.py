"""NetBox and Nautobot: devices, interfaces and addresses, as their API answers or exports them in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    Texts,
    as_mappings,
    as_text,
    build_document_name,
    get_nested,
    group_rows,
    parse_address,
    parse_json_files,
    parse_mac_or_none,
    parse_uuid_or_none,
    remark_if,
    remark_kept,
    remark_missing,
)


def read(files: Texts) -> ImportedInventory:
    """Read ``/api/dcim/devices/``, ``/api/dcim/interfaces/`` and ``/api/ipam/ip-addresses/``, one file each."""
    lists = (found if isinstance(found, list) else get_nested(found, "results") for _, found in parse_json_files(files))
    rows = [row for found in lists for row in as_mappings(found)]
    interfaces = [row for row in rows if get_nested(row, "device", "id") is not None and "mac_address" in row]
    addresses = [row for row in rows if "assigned_object_id" in row and "address" in row]
    devices = [row for row in rows if "device_type" in row and as_text(row.get("name"))]
    of_device, of_interface = group_rows(interfaces, "device", "id"), group_rows(addresses, "assigned_object_id")
    machines = (_read_machine(device, of_device.get(str(device.get("id")), []), of_interface) for device in devices)
    return ImportedInventory(machines=tuple(sorted(machines, key=lambda machine: machine.name)))


def _read_machine(
    device: Mapping[str, Any], interfaces: list[dict[str, Any]], addresses: Mapping[str, list[dict[str, Any]]]
) -> ImportedMachine:
    nics = []
    lags = {str(get_nested(each, "lag", "id")) for each in interfaces if get_nested(each, "lag") is not None}
    for each in sorted(interfaces, key=lambda each: str(each.get("name"))):
        if str(each.get("id")) in lags:
            continue  # its members have its addresses
        if not each.get("mgmt_only") and (mac := parse_mac_or_none(each["mac_address"])):
            ids = {str(key) for key in (each.get("id"), get_nested(each, "lag", "id")) if key is not None}
            own = (as_text(row["address"]) for key in ids for row in addresses.get(key, []))
            found = tuple(sorted({address for one in own if one and (address := parse_address(one))}))
            nics.append(ImportedNic(mac=mac, name=as_text(each.get("name")), addresses=found))
    labels = {
        key: build_document_name(slug)
        for key in ("site", "rack", "role")
        if (slug := as_text(get_nested(device, key, "slug")) or as_text(get_nested(device, key, "name")))
    }
    return ImportedMachine(
        name=str(device["name"]),
        serial=as_text(device.get("serial")),
        uuid=parse_uuid_or_none(
            get_nested(device, "custom_fields", "uuid") or get_nested(device, "custom_fields", "system_uuid")
        ),
        nics=tuple(nics),
        labels=labels,
        remarks=(
            remark_kept(f"device {device['name']}"),
            *remark_if(not nics, remark_missing("its MAC addresses: export its interfaces beside the devices")),
        ),
    )
