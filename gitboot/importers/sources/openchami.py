"""OpenCHAMI: boot parameters of its Boot Script Service, components and interfaces of its State Management."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import groupby
from typing import Any

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    Texts,
    as_list,
    as_mappings,
    as_text,
    build_document_name,
    get_nested,
    group_rows,
    parse_address,
    parse_architecture,
    parse_json_files,
    parse_mac_or_none,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    translate_arguments,
)
from gitboot.model.scalars import MacAddress


def read(files: Texts) -> ImportedInventory:
    """Read the answer of ``/boot/v1/bootparameters``, and SMD's Components and EthernetInterfaces."""
    lists = (
        found if isinstance(found, list) else get_nested(found, "Components") or [found]
        for _, found in parse_json_files(files)
    )
    rows = [row for found in lists for row in as_mappings(found)]
    parameters = [row for row in rows if {"kernel", "params", "initrd"} & row.keys()]
    components = {str(row["ID"]): row for row in rows if "NID" in row and "ID" in row}
    interfaces = [row for row in rows if "MACAddress" in row]
    by_nid = {str(row["NID"]): xname for xname, row in components.items()}
    owners = {
        mac: row["ComponentID"]
        for row in interfaces
        if row.get("ComponentID") and (mac := parse_mac_or_none(row["MACAddress"]))
    }
    of_component = group_rows(interfaces, "ComponentID")
    of_nodes = {key: row for row in parameters for key in _list_node_keys(row, by_nid, owners)}
    boots = {boot.name: boot for boot in (_read_boot(row) for row in parameters if row.get("kernel"))}
    machines = tuple(
        _read_machine(key, row, components.get(key, {}), of_component.get(key, []))
        for key, row in sorted(of_nodes.items())
        if key != "Default"
    )
    default = (remark_guessed("the parameters of Default: their boot is in the fleet, and no server uses it"),)
    return ImportedInventory(
        machines=machines,
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=default if "Default" in of_nodes else (),
    )


def _list_node_keys(
    row: Mapping[str, Any], by_nid: Mapping[str, str], owners: Mapping[MacAddress, Any]
) -> Iterator[str]:
    yield from map(str, as_list(row.get("hosts")))
    for mac in as_list(row.get("macs")):
        known = parse_mac_or_none(mac)
        yield str(owners.get(known, mac) if known else mac)
    for nid in as_list(row.get("nids")):
        yield by_nid.get(str(nid), f"nid{int(nid):06}" if str(nid).isdecimal() else str(nid))


def _read_boot(row: Mapping[str, Any]) -> ImportedBoot:
    """Return the kernel and the parameters of a row. The name contains their digest, so equal rows share one boot."""
    kernel, initrd, params = (as_text(row.get(key)) for key in ("kernel", "initrd", "params"))
    arguments, remarks = translate_arguments((params or "").split())
    has_data = get_nested(row, "cloud-init", "user-data") or get_nested(row, "cloud-init", "meta-data")
    return ImportedBoot(
        name=_name_boot(row),
        kernel=kernel,
        initrds=(initrd,) if initrd else (),
        arguments=tuple(each for each in arguments if not each.startswith("initrd=")),
        remarks=(
            *remarks,
            *remark_if(has_data, remark_lost("its cloud-init data: write them as user data, without secrets")),
        ),
    )


def _name_boot(row: Mapping[str, Any]) -> str:
    parts = [as_text(row.get(key)) or "" for key in ("kernel", "initrd", "params")]
    digest = sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{build_document_name(parts[0].rpartition('/')[2] or 'boot')}-{digest}"


def _read_machine(
    key: str, row: Mapping[str, Any], component: Mapping[str, Any], interfaces: list[dict[str, Any]]
) -> ImportedMachine:
    nics = [nic for nic in map(_read_nic, interfaces) if nic]
    if (own := parse_mac_or_none(key)) is not None and not nics:
        nics = [ImportedNic(mac=own)]
    labels = {name: str(component[name]) for name in ("Role", "SubRole") if component.get(name)}
    return ImportedMachine(
        name=f"node-{key.replace(':', '-')}" if own else key,
        architecture=parse_architecture({"X86": "x86_64", "ARM": "aarch64"}.get(str(component.get("Arch")), "")),
        nics=tuple(
            nic
            for _, same in groupby(sorted(nics, key=lambda nic: nic.mac), lambda nic: nic.mac)
            for nic in [next(same)]
        ),
        labels={name.lower(): value for name, value in labels.items()},
        vars={"nid": str(component["NID"])} if "NID" in component else {},
        boot=_name_boot(row) if row.get("kernel") else None,
        remarks=(
            remark_kept(f"boot parameters of {key}"),
            *remark_if(
                not nics,
                remark_missing(
                    "its MAC addresses: export EthernetInterfaces of State Management beside the parameters"
                ),
            ),
            *remark_if(not row.get("kernel"), remark_missing("its parameters name no kernel")),
        ),
    )


def _read_nic(row: Mapping[str, Any]) -> ImportedNic | None:
    mac = parse_mac_or_none(row["MACAddress"])
    addresses = (parse_address(each.get("IPAddress")) for each in as_mappings(row.get("IPAddresses")))
    return ImportedNic(mac=mac, addresses=tuple(sorted(filter(None, addresses)))) if mac else None
