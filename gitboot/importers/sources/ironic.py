"""Ironic: read nodes and ports from `openstack baremetal node list --long -f json` or from Ironic's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    as_mappings,
    as_text,
    get_nested,
    group_rows,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_json_files,
    read_mac,
    read_uuid,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    translate_arguments,
)
from gitboot.model.scalars import build_document_name

_RAMDISK_ARGUMENTS: Final = (
    "root=/dev/ram0",
    "text",
)  # Ironic adds these arguments (drivers/modules/ipxe_config.template)


def read(files: Texts) -> ImportedInventory:
    """Read nodes and ports.

    A port is an item with an address, and a node is an item with a driver or a provisioning state.
    """
    lists = (
        found if isinstance(found, list) else get_nested(found, "nodes") or get_nested(found, "ports") or [found]
        for _, found in parse_json_files(files)
    )
    # The field `Driver Info` in the output of the command is the field `driver_info` in the API.
    rows = [
        {key.lower().replace(" ", "_"): value for key, value in row.items()}
        for found in lists
        for row in as_mappings(found)
    ]
    ports = [row for row in rows if "address" in row]
    nodes = [row for row in rows if row.keys() & {"driver", "provisioning_state", "provision_state"}]
    boots = {boot.name: boot for boot in map(_read_boot, nodes) if boot is not None}
    of_node = group_rows(ports, "node_uuid")
    machines = sorted(
        (_read_machine(node, of_node.get(str(node.get("uuid")), [])) for node in nodes),
        key=lambda machine: machine.name,
    )
    known = {str(node.get("uuid")) for node in nodes}
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=tuple(
            remark_lost(
                f"port {as_text(port['address'])}: its node {as_text(port.get('node_uuid'))} is not in the source"
            )
            for port in ports
            if str(port.get("node_uuid")) not in known
        ),
    )


def _parse_mapping(value: object) -> Mapping[str, Any]:
    # The value may be a text, because the command may print a mapping as text.
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _parse_capabilities(node: Mapping[str, Any]) -> Mapping[str, str]:
    # Capabilities are in Ironic's notation, such as boot_mode:uefi,profile:compute.
    text = str(_parse_mapping(node.get("properties")).get("capabilities") or "")
    pairs = (each.partition(":") for each in text.split(",") if ":" in each)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read_boot(node: Mapping[str, Any]) -> ImportedBoot | None:
    info = _parse_mapping(node.get("instance_info"))
    if not (kernel := as_text(info.get("kernel"))):
        return None
    own_arguments = str(info.get("kernel_append_params") or "").split()
    arguments, remarks = translate_arguments(
        [*(_RAMDISK_ARGUMENTS if node.get("deploy_interface") == "ramdisk" else ()), *own_arguments]
    )
    is_url, ramdisk = "://" in kernel, as_text(info.get("ramdisk"))
    of_glance = remark_missing(f"the kernel {kernel} is an image in Glance: store it at a URL, and add the URL")
    return ImportedBoot(
        name=_get_name(node),
        kernel=kernel if is_url else None,
        initrds=(ramdisk,) if ramdisk and "://" in ramdisk else (),
        arguments=arguments,
        architecture=parse_architecture(_parse_mapping(node.get("properties")).get("cpu_arch")),
        remarks=(*remarks, *remark_if(not is_url, of_glance)),
    )


def _get_name(node: Mapping[str, Any]) -> str:
    return as_text(node.get("name")) or f"node-{node.get('uuid')}"


def _read_machine(node: Mapping[str, Any], ports: list[dict[str, Any]]) -> ImportedMachine:
    """Convert a node to a machine. The node's UUID is an ID that Ironic assigned, not the UUID of the board."""
    properties, driver, name = (
        _parse_mapping(node.get("properties")),
        _parse_mapping(node.get("driver_info")),
        _get_name(node),
    )
    nics, rejected = [], list[ImportRemark]()
    for port in ports:
        mac, about = read_mac(as_text(port["address"]), "the port:")
        rejected += about
        if mac:
            boots = str(port.get("pxe_enabled", port.get("pxe_boot_enabled", True))).lower() != "false"
            nics.append(ImportedNic(mac=mac, name=as_text(port.get("name")), boot=boots))
    address, host, number = (as_text(driver.get(key)) for key in ("redfish_address", "ipmi_address", "ipmi_port"))
    if address:
        address = address if "://" in address else f"redfish://{address}"
    elif host:
        address = f"ipmi://{host}{f':{number}' if number else ''}"
    bmc, more = parse_bmc(
        address,
        f"{build_document_name(name)}-bmc",
        system=as_text(driver.get("redfish_system_id")),
        verify=str(driver.get("redfish_verify_ca", "true")).lower() != "false",
    )
    image = as_text(_parse_mapping(node.get("instance_info")).get("image_source")) or ""
    capabilities, has_boot = _parse_capabilities(node), _read_boot(node) is not None
    uuid, of_uuid = read_uuid(as_text(get_nested(_parse_mapping(node.get("extra")), "system_uuid")))
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=as_text(get_nested(_parse_mapping(node.get("extra")), "serial_number")),
        architecture=parse_architecture(properties.get("cpu_arch")),
        firmware=parse_firmware(capabilities.get("boot_mode")),
        secure_boot=True if capabilities.get("secure_boot", "").lower() == "true" else None,
        nics=tuple(sorted(nics, key=lambda nic: nic.mac)),
        bmc=bmc,
        labels={key: value for key in ("profile",) if (value := capabilities.get(key))}
        | ({"resource-class": str(node["resource_class"])} if node.get("resource_class") else {}),
        boot=name if has_boot else None,
        remarks=(
            remark_kept(f"node {name} ({node.get('uuid')})"),
            *rejected,
            *of_uuid,
            *remark_if(
                not has_boot and not image,
                remark_lost("the boot was not imported, because the instance does not have a kernel or an image"),
            ),
            *remark_if(
                not nics and not rejected,
                remark_missing(
                    "the source does not contain the ports: export them with `openstack baremetal port list --long "
                    "-f json`"
                ),
            ),
            *remark_if(
                address is None and "driver" not in node,
                remark_missing("the source does not contain the driver and the BMC: export the nodes with --long"),
            ),
            *remark_if(
                address is None and "driver" in node,
                remark_lost(f"the driver {node.get('driver')} is not for Redfish or IPMI: add the BMC by hand"),
            ),
            *remark_if(
                image, remark_lost(f"the instance's image {image.rpartition('@')[2]} is written by Ironic's agent")
            ),
            *more,
        ),
    )
