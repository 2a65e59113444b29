"""Nodes of Warewulf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    Texts,
    as_list,
    as_mapping,
    as_text,
    build_document_name,
    get_nested,
    parse_address,
    parse_bmc,
    parse_mac_or_none,
    parse_yaml,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
)


def read_warewulf(files: Texts) -> ImportedInventory:
    """Read the nodes and profiles of nodes.conf, as written since Warewulf 4."""
    machines = []
    for path, text in sorted(files.items()):
        for document in parse_yaml(path, text):
            profiles = as_mapping(get_nested(document, "nodeprofiles"))
            for name, node in sorted(as_mapping(get_nested(document, "nodes")).items()):
                machines.append(_read_node(name, node if isinstance(node, dict) else {}, profiles))
    return ImportedInventory(machines=tuple(machines))


def _read_node(name: str, node: Mapping[str, Any], profiles: Mapping[str, Any]) -> ImportedMachine:
    devices = as_mapping(get_nested(node, "network devices"))
    nics = [
        ImportedNic(
            mac=mac,
            name=as_text(get_nested(device, "device")),
            addresses=tuple(filter(None, [parse_address(get_nested(device, "ipaddr"), get_nested(device, "netmask"))])),
        )
        for _, device in sorted(devices.items())
        if (mac := parse_mac_or_none(get_nested(device, "hwaddr")))
    ]
    found = [node, *(as_mapping(get_nested(profiles, each)) for each in as_list(node.get("profiles")))]
    images = {
        label: next(filter(None, (as_text(each.get(key)) for each in found)), None)
        for key, label in (("image name", "image"), ("container name", "container"), ("kernel", "kernel"))
    }
    address = next(filter(None, (as_text(get_nested(each, "ipmi", "ipaddr")) for each in found)), None)
    bmc, more = parse_bmc(f"ipmi://{address}" if address else None, f"{build_document_name(name)}-bmc")
    remarks = (
        remark_kept(f"node {name}"),
        *remark_if(not nics, remark_missing("its MAC address")),
        *(remark_lost(f"its {label} {value}: gitboot builds none") for label, value in images.items() if value),
        *more,
    )
    return ImportedMachine(name=name, nics=tuple(nics), bmc=bmc, remarks=remarks)
