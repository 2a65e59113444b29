"""Ironic: read nodes and ports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportRemark,
    NicCollector,
    Texts,
    as_mappings,
    as_text,
    format_host,
    get_nested,
    group_rows,
    merge_rows,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_json_files,
    read_uuid,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    split_kernel_arguments,
    translate_arguments,
)
from gitboot.model.scalars import build_document_name


def read_ironic(files: Texts) -> ImportedInventory:
    """Read nodes and ports from `openstack baremetal node list --long -f json` or from Ironic's API.

    A port is an item with an address, and a node is an item with a driver or a provisioning state.
    """
    documents = list(parse_json_files(files))
    rows = [row for _, document in documents for row in _list_rows(document)]
    ports = merge_rows((row for row in rows if "address" in row), "uuid")
    nodes = merge_rows(
        (row for row in rows if row.keys() & {"driver", "provisioning_state", "provision_state"}), "uuid"
    )
    boots = {boot.name: boot for boot in map(_read_boot, nodes) if boot is not None}
    ports_by_node = group_rows(ports, "node_uuid")
    machines = (_read_machine(node, ports_by_node.get(str(node.get("uuid")), [])) for node in nodes)
    known = {str(node.get("uuid")) for node in nodes}
    return ImportedInventory(
        machines=tuple(sorted(machines, key=lambda machine: machine.name)),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=(
            *(
                remark_missing(f"the source contains only some of the {key}: export them without a limit")
                for key in ("nodes", "ports")
                # only the last page of a list has no link to the next page
                if (pages := [each for _, each in documents if get_nested(each, key)])
                and all(get_nested(page, "next") for page in pages)
            ),
            *(
                remark_lost(
                    f"port {as_text(port['address'])} was left out, because its node "
                    f"{as_text(port.get('node_uuid'))} is not in the source"
                )
                for port in ports
                if str(port.get("node_uuid")) not in known
            ),
        ),
    )


def _list_rows(document: Any) -> list[dict[str, Any]]:
    """Return the nodes or ports in the output of a command or in a response of the API.

    The field `Driver Info` in the output of a command becomes `driver_info`, as in the API.
    """
    if not isinstance(document, list):
        document = get_nested(document, "nodes") or get_nested(document, "ports") or [document]
    return [{key.lower().replace(" ", "_"): value for key, value in row.items()} for row in as_mappings(document)]


def _parse_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, which the command may print as text, or an empty mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _parse_capabilities(node: Mapping[str, Any]) -> Mapping[str, str]:
    """Parse the capabilities of a node, such as boot_mode:uefi,profile:compute.

    If they do not contain the boot mode and Secure Boot, use the values that Ironic has read from the BMC.
    """
    texts = str(_parse_mapping(node.get("properties")).get("capabilities") or "").split(",")
    pairs = [each.partition(":") for each in texts]
    read = {key: text for key in ("boot_mode", "secure_boot") if (text := as_text(node.get(key)))}
    return read | {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _read_boot(node: Mapping[str, Any]) -> ImportedBoot | None:
    info = _parse_mapping(node.get("instance_info"))
    if not (kernel := as_text(info.get("kernel"))):
        return None
    # Ironic adds these arguments (drivers/modules/ipxe_config.template)
    added = ("root=/dev/ram0", "text") if node.get("deploy_interface") == "ramdisk" else ()
    driver = _parse_mapping(node.get("driver_info"))
    # Ironic uses the first of these (drivers/utils.py, get_kernel_append_params)
    given = [str(text) for each in (info, driver) if (text := each.get("kernel_append_params")) is not None]
    own = [word for text in given[:1] for word in split_kernel_arguments(text) if word != "%default%"]
    arguments, remarks = translate_arguments([*added, *own])
    is_url, ramdisk = "://" in kernel, as_text(info.get("ramdisk"))
    return ImportedBoot(
        name=_get_node_name(node),
        kernel=kernel if is_url else None,
        initrds=(ramdisk,) if ramdisk and "://" in ramdisk else (),
        arguments=arguments,
        architecture=parse_architecture(_parse_mapping(node.get("properties")).get("cpu_arch")),
        remarks=(
            *remarks,
            *remark_if(
                not given or "%default%" in given[0],
                remark_lost(
                    "kernel_append_params in Ironic's configuration was left out: `gitboot compare-old-system` shows "
                    "these arguments"
                ),
            ),
            *remark_if(
                not is_url,
                remark_missing(
                    f"the kernel {kernel} is an image in Glance: store the kernel at a URL, and add this URL"
                ),
            ),
        ),
    )


def _get_node_name(node: Mapping[str, Any]) -> str:
    return as_text(node.get("name")) or f"node-{node.get('uuid')}"


def _read_machine(node: Mapping[str, Any], ports: list[dict[str, Any]]) -> ImportedMachine:
    """Convert a node to a machine. The node's UUID is an ID that Ironic assigned, not the UUID of the board."""
    name = _get_node_name(node)
    properties, driver = _parse_mapping(node.get("properties")), _parse_mapping(node.get("driver_info"))
    extra = _parse_mapping(node.get("extra"))
    reader = NicCollector()
    for port in ports:
        boots = str(port.get("pxe_enabled", port.get("pxe_boot_enabled", True))).lower() != "false"
        reader.add(as_text(port["address"]), "the port:", name=as_text(port.get("name")), boot=boots)
    address = _find_bmc_address(driver)
    verify = as_text(driver.get("redfish_verify_ca")) or "true"
    bmc, bmc_remarks = parse_bmc(
        address,
        f"{build_document_name(name)}-bmc",
        system=as_text(driver.get("redfish_system_id")),
        verify=verify.lower() not in ("0", "f", "false", "off", "n", "no"),
    )
    capabilities = _parse_capabilities(node)
    has_boot = _read_boot(node) is not None
    has_nics = bool(reader.nics or reader.remarks)
    uuid, uuid_remarks = read_uuid(as_text(extra.get("system_uuid")))
    labels = {}
    if profile := capabilities.get("profile"):
        labels["profile"] = profile
    if node.get("resource_class"):
        labels["resource-class"] = str(node["resource_class"])
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=as_text(extra.get("serial_number")),
        architecture=parse_architecture(properties.get("cpu_arch")),
        firmware=parse_firmware(capabilities.get("boot_mode")),
        secure_boot=True if capabilities.get("secure_boot", "").lower() == "true" else None,
        nics=tuple(sorted(reader.nics, key=lambda nic: nic.mac)),
        bmc=bmc,
        labels=labels,
        boot=name if has_boot else None,
        remarks=(
            remark_kept(f"node {name} ({node.get('uuid')})"),
            *reader.remarks,
            *uuid_remarks,
            *_list_missing_facts(node, has_boot=has_boot, has_nics=has_nics, has_bmc=address is not None),
            *bmc_remarks,
            *remark_if(
                "/" in verify,
                remark_lost(f"the certificate authority {verify} of the BMC was left out: write it as `bmc.tls.ca`"),
            ),
        ),
    )


def _list_missing_facts(
    node: Mapping[str, Any], *, has_boot: bool, has_nics: bool, has_bmc: bool
) -> Iterator[ImportRemark]:
    """Yield remarks on the boot, the ports and the BMC of a node that the import could not read."""
    image = as_text(_parse_mapping(node.get("instance_info")).get("image_source")) or ""
    if not has_boot and not image:
        yield remark_lost("the boot was not imported, because the instance has neither a kernel nor an image")
    if not has_nics:
        yield remark_missing(
            "the source does not contain the ports: export them with `openstack baremetal port list --long -f json`"
        )
    if not has_bmc and "driver" not in node:
        yield remark_missing("the source contains neither the driver nor the BMC: export the nodes with --long")
    elif not has_bmc and node["driver"] in ("ipmi", "redfish", "idrac"):
        yield remark_missing(
            f"the source does not contain the BMC's address ({node['driver']}): export the nodes with their driver_info"
        )
    elif not has_bmc:
        yield remark_lost(f"the driver {node['driver']} uses neither Redfish nor IPMI: add the BMC by hand")
    if image:
        yield remark_lost(f"the image {image.rpartition('@')[2]} was left out, because Ironic's agent installs it")


def _find_bmc_address(driver: Mapping[str, Any]) -> str | None:
    redfish, host, port = (as_text(driver.get(key)) for key in ("redfish_address", "ipmi_address", "ipmi_port"))
    if redfish:
        return redfish if "://" in redfish else f"redfish://{redfish}"
    if host:
        return f"ipmi://{format_host(host)}:{port}" if port else f"ipmi://{host}"
    return None
