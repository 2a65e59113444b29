"""Nodes of the cluster managers xCAT and Warewulf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    as_list,
    as_mapping,
    as_text,
    get_nested,
    list_address,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_yaml,
    read_mac,
    read_uuid,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    remove_secrets,
)
from gitboot.model.scalars import build_document_name

# xCAT


def read_xcat(files: Texts) -> ImportedInventory:
    """Read objects of type node, as ``lsdef -t node -z`` prints them."""
    nodes: dict[str, dict[str, str]] = {}
    for _, text in sorted(files.items()):
        defaults: dict[str, str] = {}
        for name, attributes in _parse_stanzas(text):
            if name == "default-node":
                defaults |= attributes
            elif attributes.get("objtype") == "node":
                nodes.setdefault(name, {}).update({**defaults, **attributes})
    return ImportedInventory(machines=tuple(_read_node(name, each) for name, each in sorted(nodes.items())))


def _parse_stanzas(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    name, attributes = None, dict[str, str]()
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line[0].isspace() and line.rstrip().endswith(":"):
            if name is not None:
                yield name, attributes
            name, attributes = line.rstrip()[:-1].strip(), {}
        elif "=" in line:
            key, _, value = line.strip().partition("=")
            attributes[key.strip().lower()] = value.strip()
    if name is not None:
        yield name, attributes


def _read_node(name: str, node: Mapping[str, str]) -> ImportedMachine:
    nics, of_nics = _read_macs(name, node)
    host = node.get("bmc")
    by_ipmi = host is not None and node.get("mgt") == "ipmi"
    bmc, more = parse_bmc(f"ipmi://{host}" if by_ipmi else None, f"{build_document_name(name)}-bmc")
    arguments, secret = remove_secrets(node.get("addkcmdline", "").split())
    uuid, of_uuid = read_uuid(node.get("uuid"))
    return ImportedMachine(
        name=name,
        serial=node.get("serial") or None,
        uuid=uuid,
        bmc=bmc,
        architecture=parse_architecture(node.get("arch")),
        nics=nics,
        remarks=(
            remark_kept(f"node {name}"),
            *of_nics,
            *of_uuid,
            *more,
            *remark_if(
                host and not by_ipmi, remark_lost(f"its BMC {host} ({node.get('mgt', 'unknown')}): add the BMC by hand")
            ),
            *(remark_lost(f"{key}={node[key]}") for key in ("provmethod", "osimage", "netboot", "os") if node.get(key)),
            *secret,
            *remark_if(arguments, remark_lost(f"addkcmdline {' '.join(arguments)}")),
        ),
    )


def _read_macs(name: str, node: Mapping[str, str]) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    """Return the interfaces of ``MAC!name|MAC!name``. The address of the node is that of its own name.

    ``*NOIP*`` in place of a name: the interface has no fixed address (xCAT, table mac).
    """
    address, nics, remarks = parse_address(node.get("ip")), list[ImportedNic](), list[ImportRemark]()
    for part in filter(None, (each.strip() for each in node.get("mac", "").split("|"))):
        text, _, host = part.partition("!")
        mac, about = read_mac(text)
        remarks += about
        is_own = not host or host.partition(".")[0] == name.partition(".")[0]
        if host and not is_own:
            remarks.append(
                remark_kept(f"interface {text} has no fixed address" if host == "*NOIP*" else f"{text} is {host}")
            )
        if mac:
            nics.append(ImportedNic(mac=mac, addresses=(address,) if address and is_own else ()))
    if address and not any(nic.addresses for nic in nics):
        remarks.append(remark_lost(f"its address {address}, because no interface with it is known"))
    return tuple(nics), remarks


# Warewulf


def read_warewulf(files: Texts) -> ImportedInventory:
    """Read the nodes and profiles of nodes.conf, as written since Warewulf 4."""
    machines = []
    for path, text in sorted(files.items()):
        for document in parse_yaml(path, text):
            profiles = as_mapping(get_nested(document, "nodeprofiles"))
            for name, node in sorted(as_mapping(get_nested(document, "nodes")).items()):
                machines.append(_read_warewulf_node(name, node if isinstance(node, dict) else {}, profiles))
    return ImportedInventory(machines=tuple(machines))


def _read_warewulf_node(name: str, node: Mapping[str, Any], profiles: Mapping[str, Any]) -> ImportedMachine:
    nics, rejected = list[ImportedNic](), list[ImportRemark]()
    for key, device in sorted(as_mapping(get_nested(node, "network devices")).items()):
        mac, about = read_mac(as_text(get_nested(device, "hwaddr")), f"network device {key}:")
        rejected += about
        addresses = list_address(get_nested(device, "ipaddr"), get_nested(device, "netmask"))
        if mac:
            device_name = as_text(get_nested(device, "device"))
            nics.append(ImportedNic(mac=mac, name=device_name, addresses=addresses))
    found = [node, *(as_mapping(get_nested(profiles, each)) for each in as_list(node.get("profiles")))]
    images = {
        label: next(filter(None, (as_text(each.get(key)) for each in found)), None)
        for key, label in (("image name", "image"), ("container name", "container"), ("kernel", "kernel"))
    }
    address = next(filter(None, (as_text(get_nested(each, "ipmi", "ipaddr")) for each in found)), None)
    bmc, more = parse_bmc(f"ipmi://{address}" if address else None, f"{build_document_name(name)}-bmc")
    remarks = (
        remark_kept(f"node {name}"),
        *rejected,
        *remark_if(not nics and not rejected, remark_missing("its MAC address: its network devices have no hwaddr")),
        *(remark_lost(f"its {label} {value}: gitboot builds none") for label, value in images.items() if value),
        *more,
    )
    return ImportedMachine(name=name, nics=tuple(nics), bmc=bmc, remarks=remarks)
