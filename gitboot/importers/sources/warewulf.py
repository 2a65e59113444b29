"""Nodes of Warewulf."""

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
    bmc_of,
    kept,
    lost,
    mac_of,
    mapping,
    missing,
    name_of,
    remark_if,
    sequence,
    words,
    yaml_of,
)


def warewulf(files: Texts) -> Estate:
    """Read the nodes and profiles of nodes.conf, as written since Warewulf 4."""
    machines = []
    for path, text in sorted(files.items()):
        for document in yaml_of(path, text):
            profiles = mapping(at(document, "nodeprofiles"))
            for name, node in sorted(mapping(at(document, "nodes")).items()):
                machines.append(_warewulf_node(name, node if isinstance(node, dict) else {}, profiles))
    return Estate(machines=tuple(machines))


def _warewulf_node(name: str, node: Mapping[str, Any], profiles: Mapping[str, Any]) -> ImportedMachine:
    devices = mapping(at(node, "network devices"))
    nics = [
        ImportedNic(
            mac=mac,
            name=words(at(device, "device")),
            addresses=tuple(filter(None, [address_of(at(device, "ipaddr"), at(device, "netmask"))])),
        )
        for _, device in sorted(devices.items())
        if (mac := mac_of(at(device, "hwaddr")))
    ]
    found = [node, *(mapping(at(profiles, each)) for each in sequence(node.get("profiles")))]
    images = {
        label: next(filter(None, (words(each.get(key)) for each in found)), None)
        for key, label in (("image name", "image"), ("container name", "container"), ("kernel", "kernel"))
    }
    address = next(filter(None, (words(at(each, "ipmi", "ipaddr")) for each in found)), None)
    bmc, more = bmc_of(f"ipmi://{address}" if address else None, f"{name_of(name)}-bmc")
    remarks = (
        kept(f"node {name}"),
        *remark_if(not nics, missing("its MAC address")),
        *(lost(f"its {label} {value}: gitboot builds none") for label, value in images.items() if value),
        *more,
    )
    return ImportedMachine(name=name, nics=tuple(nics), bmc=bmc, remarks=remarks)
