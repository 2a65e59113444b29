"""Ironic: nodes and ports, as `openstack baremetal node list --long -f json` prints them, or as its API does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gitboot.importers.inventory import (
    Estate,
    ImportedBoot,
    ImportedMachine,
    ImportedNic,
    Texts,
    architecture_of,
    arguments_of,
    at,
    bmc_of,
    firmware_of,
    grouped,
    items,
    json_files,
    kept,
    lost,
    mac_of,
    missing,
    name_of,
    remark_if,
    uuid_of,
    words,
)

_OF_A_RAMDISK: Final = ("root=/dev/ram0", "text")  # what Ironic puts before them (drivers/modules/ipxe_config.template)


def read(files: Texts) -> Estate:
    """Read nodes and ports. A port names its node, and a node names its driver."""
    lists = (
        found if isinstance(found, list) else at(found, "nodes") or at(found, "ports") or [found]
        for _, found in json_files(files)
    )
    # `Driver Info` of the command line is `driver_info` of the API.
    rows = [
        {key.lower().replace(" ", "_"): value for key, value in row.items()} for found in lists for row in items(found)
    ]
    ports = [row for row in rows if "address" in row]
    nodes = [row for row in rows if "driver" in row]
    boots = {boot.name: boot for boot in map(_boot, nodes) if boot is not None}
    of_node = grouped(ports, "node_uuid")
    machines = sorted(
        (_machine(node, of_node.get(str(node.get("uuid")), [])) for node in nodes), key=lambda machine: machine.name
    )
    return Estate(machines=tuple(machines), boots=tuple(boot for _, boot in sorted(boots.items())))


def _mapping(value: object) -> Mapping[str, Any]:
    # The command line may print a mapping as a text.
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _capabilities(node: Mapping[str, Any]) -> Mapping[str, str]:
    # As Ironic writes them: boot_mode:uefi,profile:compute.
    text = str(_mapping(node.get("properties")).get("capabilities") or "")
    pairs = (each.partition(":") for each in text.split(",") if ":" in each)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _boot(node: Mapping[str, Any]) -> ImportedBoot | None:
    info = _mapping(node.get("instance_info"))
    if not (kernel := words(info.get("kernel"))):
        return None
    given = str(info.get("kernel_append_params") or "").split()
    arguments, remarks = arguments_of([*(_OF_A_RAMDISK if node.get("deploy_interface") == "ramdisk" else ()), *given])
    is_url, ramdisk = "://" in kernel, words(info.get("ramdisk"))
    of_glance = missing(f"its kernel {kernel} is an image of Glance: say where machines find it")
    return ImportedBoot(
        name=_name(node),
        kernel=kernel if is_url else None,
        initrds=(ramdisk,) if ramdisk and "://" in ramdisk else (),
        arguments=arguments,
        architecture=architecture_of(_mapping(node.get("properties")).get("cpu_arch")),
        remarks=(*remarks, *remark_if(not is_url, of_glance)),
    )


def _name(node: Mapping[str, Any]) -> str:
    return words(node.get("name")) or f"node-{node.get('uuid')}"


def _machine(node: Mapping[str, Any], ports: list[dict[str, Any]]) -> ImportedMachine:
    """Return a machine for a node. The UUID of the node is Ironic's own, and not that of the board."""
    properties, driver, name = _mapping(node.get("properties")), _mapping(node.get("driver_info")), _name(node)
    nics = []
    for port in ports:
        if mac := mac_of(port["address"]):
            boots = str(port.get("pxe_enabled", port.get("pxe_boot_enabled", True))).lower() != "false"
            nics.append(ImportedNic(mac=mac, name=words(port.get("name")), boot=boots))
    address, host, number = (words(driver.get(key)) for key in ("redfish_address", "ipmi_address", "ipmi_port"))
    if address:
        address = address if "://" in address else f"redfish://{address}"
    elif host:
        address = f"ipmi://{host}{f':{number}' if number else ''}"
    bmc, more = bmc_of(
        address,
        f"{name_of(name)}-bmc",
        system=words(driver.get("redfish_system_id")),
        verify=str(driver.get("redfish_verify_ca", "true")).lower() != "false",
    )
    image = words(_mapping(node.get("instance_info")).get("image_source")) or ""
    capabilities = _capabilities(node)
    return ImportedMachine(
        name=name,
        uuid=uuid_of(at(_mapping(node.get("extra")), "system_uuid")),
        serial=words(at(_mapping(node.get("extra")), "serial_number")),
        architecture=architecture_of(properties.get("cpu_arch")),
        firmware=firmware_of(capabilities.get("boot_mode")),
        nics=tuple(sorted(nics, key=lambda nic: nic.mac)),
        bmc=bmc,
        labels={key: value for key in ("profile",) if (value := capabilities.get(key))}
        | ({"resource-class": str(node["resource_class"])} if node.get("resource_class") else {}),
        boot=name if _boot(node) else None,
        remarks=(
            kept(f"node {name} ({node.get('uuid')})"),
            *remark_if(
                not nics, missing("it has no port: export those with `openstack baremetal port list --long -f json`")
            ),
            *remark_if(
                address is None,
                lost(f"its driver {node.get('driver')} is neither Redfish nor IPMI: add a bmc by hand"),
            ),
            *remark_if(image, lost(f"its instance's image {image.rpartition('@')[2]} is written by Ironic's agent")),
            *more,
        ),
    )
