"""Clusters for high-performance computing: read nodes of xCAT and Warewulf, and boot parameters of OpenCHAMI."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    NicCollector,
    Texts,
    as_list,
    as_mapping,
    as_mappings,
    as_text,
    format_host,
    get_nested,
    list_address,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_json,
    parse_mac_or_none,
    parse_yaml,
    read_mac,
    read_uuid,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    remove_secrets,
    split_kernel_arguments,
    translate_arguments,
)
from gitboot.model.scalars import MacAddress, build_document_name

# xCAT


def read_xcat(files: Texts) -> ImportedInventory:
    """Read the node objects that ``lsdef -t node -z`` prints."""
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
            attributes[key.strip().lower()] = value.strip().strip('"').strip()  # like xCAT (DBobjUtils.pm)
    if name is not None:
        yield name, attributes


def _read_node(name: str, node: Mapping[str, str]) -> ImportedMachine:
    nics, nic_remarks = _read_macs(name, node)
    host = node.get("bmc")
    uses_ipmi = host is not None and node.get("mgt") == "ipmi"
    bmc, bmc_remarks = parse_bmc(f"ipmi://{host}" if uses_ipmi else None, f"{build_document_name(name)}-bmc")
    arguments, argument_remarks = remove_secrets(split_kernel_arguments(node.get("addkcmdline", "")))
    uuid, uuid_remarks = read_uuid(node.get("uuid"))
    return ImportedMachine(
        name=name,
        serial=node.get("serial") or None,
        uuid=uuid,
        bmc=bmc,
        architecture=parse_architecture(node.get("arch")),
        nics=nics,
        remarks=(
            remark_kept(f"node {name}"),
            *nic_remarks,
            *uuid_remarks,
            *bmc_remarks,
            *remark_if(
                host and not uses_ipmi,
                remark_lost(f"the BMC {host} ({node.get('mgt', 'unknown')}) was left out: add the BMC by hand"),
            ),
            *(
                remark_lost(f"{key}={node[key]} was left out: select a boot with a BootPolicy")
                for key in ("provmethod", "osimage", "netboot", "os")
                if node.get(key)
            ),
            *argument_remarks,
            *remark_if(
                arguments,
                remark_lost(f"addkcmdline {' '.join(arguments)} was left out: write the arguments as kernelArguments"),
            ),
        ),
    )


def _read_macs(name: str, node: Mapping[str, str]) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    """Parse the interfaces in ``MAC!name|MAC!name``. The node's address belongs to the interface with the node's name.

    ``*NOIP*`` instead of a name means that the interface has no fixed address (xCAT, table mac).
    """
    address = parse_address(node.get("ip"))
    reader = NicCollector()
    for part in filter(None, map(str.strip, node.get("mac", "").split("|"))):
        text, _, host = part.partition("!")
        is_own = not host or host.partition(".")[0] == name.partition(".")[0]
        reader.add(text, addresses=(address,) if address and is_own else ())
        if not is_own:
            reader.remarks.append(
                remark_kept(f"interface {text} has no fixed address" if host == "*NOIP*" else f"{text} is {host}")
            )
    if address and not any(nic.addresses for nic in reader.nics):
        reader.remarks.append(
            remark_lost(f"the address {address} was left out, because no interface with this address is known")
        )
    return tuple(reader.nics), reader.remarks


# Warewulf


def read_warewulf(files: Texts) -> ImportedInventory:
    """Read the nodes and profiles in a nodes.conf of Warewulf 4 or later."""
    return ImportedInventory(
        machines=tuple(
            _read_warewulf_node(name, as_mapping(node), as_mapping(get_nested(document, "nodeprofiles")))
            for path, text in sorted(files.items())
            for document in parse_yaml(path, text)
            for name, node in sorted(as_mapping(get_nested(document, "nodes")).items())
        )
    )


def _list_warewulf_profiles(names: object, profiles: Mapping[str, Any], visited: set[str]) -> list[str]:
    """Return the names of profiles after those of their own profiles. ~NAME means that NAME does not apply.

    A later profile overrides an earlier one (Warewulf, node/mergo.go).
    """
    expanded = list[str]()
    for name in _as_texts(names):
        if not name.startswith("~") and name not in visited:
            visited.add(name)
            expanded += _list_warewulf_profiles(get_nested(profiles, name, "profiles"), profiles, visited)
        expanded.append(name)
    return expanded


def _read_warewulf_node(name: str, node: Mapping[str, Any], profiles: Mapping[str, Any]) -> ImportedMachine:
    names = _list_warewulf_profiles(node.get("profiles"), profiles, set())
    # the node, then its profiles, of which the last one comes first
    settings = [node, *(as_mapping(profiles.get(each)) for each in reversed(names) if f"~{each}" not in names)]
    devices = dict[str, dict[str, Any]]()
    for each in settings:
        for key, device in as_mapping(each.get("network devices")).items():
            devices[key] = {**as_mapping(device), **devices.get(key, {})}
    reader = NicCollector()
    for key, device in sorted(devices.items()):
        reader.add(
            as_text(get_nested(device, "hwaddr")),
            f"network device {key}:",
            name=as_text(get_nested(device, "device")),
            addresses=(
                *list_address(get_nested(device, "ipaddr"), get_nested(device, "netmask")),
                *list_address(get_nested(device, "ipaddr6")),
            ),
        )

    def find_setting(*keys: str) -> str | None:
        """Return the value in the node, or in the last profile that has this setting."""
        return next(filter(None, (as_text(get_nested(each, *keys)) for each in settings)), None)

    images = {
        "image": find_setting("image name"),
        "container": find_setting("container name"),
        "kernel": find_setting("kernel"),
    }
    address, port = find_setting("ipmi", "ipaddr"), find_setting("ipmi", "port")
    place = f"{format_host(address)}:{port}" if address and port else address
    bmc, bmc_remarks = parse_bmc(f"ipmi://{place}" if place else None, f"{build_document_name(name)}-bmc")
    return ImportedMachine(
        name=name,
        nics=tuple(reader.nics),
        bmc=bmc,
        remarks=(
            remark_kept(f"node {name}"),
            *reader.remarks,
            *remark_if(
                not reader.nics and not reader.remarks,
                remark_missing("the MAC address is unknown, because the network devices have no hwaddr"),
            ),
            *(
                remark_lost(f"the {label} {value} was not imported, because gitboot does not build images")
                for label, value in images.items()
                if value
            ),
            *bmc_remarks,
        ),
    )


# OpenCHAMI


_Interface = tuple[Any, tuple[Any, ...]]  # a MAC address and its IP addresses, with the values in the source


class _Node(Struct, frozen=True, kw_only=True):
    """A node. It comes from State Management or boot-service, or only boot parameters contain its name."""

    name: str  # the xname, if the node has one
    hostname: str | None = None
    nid: int | None = None
    interfaces: tuple[_Interface, ...] = ()
    role: str | None = None
    subrole: str | None = None
    architecture: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def macs(self) -> set[MacAddress]:
        return {mac for text, _ in self.interfaces if (mac := parse_mac_or_none(text))}


class _Config(Struct, frozen=True, kw_only=True):
    """An entry in the boot parameters of BSS, or a BootConfiguration of boot-service."""

    name: str
    row: Mapping[str, Any]  # the data, which contains kernel, initrd and params
    hosts: tuple[str, ...] = ()
    macs: frozenset[MacAddress] = frozenset()
    nids: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    priority: int = 0
    remarks: tuple[ImportRemark, ...] = ()

    @property
    def is_default(self) -> bool:
        return not (set(self.hosts) - {"Default"} or self.macs or self.nids or self.groups or self.remarks)


def read_openchami(files: Texts) -> ImportedInventory:
    """Read BSS boot parameters with SMD's Components and EthernetInterfaces, or read boot-service resources."""
    rows = [row for path, text in sorted(files.items()) for row in _parse_rows(path, text, len(files))]
    configs = [
        _read_config(row)
        for row in rows
        if {"kernel", "params", "initrd"} & (row.keys() | as_mapping(row.get("spec")).keys())
    ]
    interfaces = _list_interfaces(rows)
    nodes = _list_nodes(rows, interfaces)
    nodes += _list_other_nodes(configs, nodes, interfaces)
    bmcs = {
        xname: as_text(get_nested(row, "spec", "interface", "ip"))
        for row in rows
        if (xname := as_text(get_nested(row, "spec", "xname"))) and row.get("kind") == "BMC"
    }
    boots = {boot.name: boot for boot in (_read_boot(each.row) for each in configs if each.row.get("kernel"))}
    machines = tuple(_read_machine(node, configs, bmcs) for node in sorted(nodes, key=lambda node: node.name))
    used = {machine.boot for machine in machines}
    return ImportedInventory(
        machines=machines,
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=(*_list_remarks_on_source(configs, used), *_list_remarks_on_interfaces(rows, nodes)),
    )


def _parse_rows(path: str, text: str, files: int) -> list[dict[str, Any]]:
    if path.endswith(".json"):
        documents = [parse_json(path, text)]
    elif path.endswith((".yaml", ".yml")) or files == 1:
        documents = parse_yaml(path, text)
    else:
        return []
    return [row for document in documents for row in _list_rows(document)]


def _list_rows(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, list):
        return as_mappings(document)
    for key in ("Components", "boot-parameters", "nodes", "items"):
        if rows := as_mappings(get_nested(document, key)):
            return rows
    return as_mappings([document])


def _as_int(value: Any) -> int | None:
    text = as_text(value)
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _as_texts(value: Any) -> tuple[str, ...]:
    return tuple(text for each in as_list(value) if (text := as_text(each)))


def _read_config(row: Mapping[str, Any]) -> _Config:
    spec = as_mapping(row.get("spec")) or row
    reader = NicCollector()
    for mac in as_list(spec.get("macs")):
        reader.add(as_text(mac), "boot parameters:")
    return _Config(
        name=as_text(get_nested(row, "metadata", "name")) or "",
        row=spec,
        hosts=_as_texts(spec.get("hosts")),
        macs=frozenset(nic.mac for nic in reader.nics),
        nids=tuple(nid for each in as_list(spec.get("nids")) if (nid := _as_int(each)) is not None),
        groups=_as_texts(spec.get("groups")),
        priority=_as_int(spec.get("priority")) or 0,
        remarks=tuple(reader.remarks),
    )


def _list_interfaces(rows: list[dict[str, Any]]) -> dict[str, list[_Interface]]:
    """Return the EthernetInterfaces of State Management by the IDs of their components."""
    interfaces: dict[str, list[_Interface]] = {}
    for row in rows:
        owner = as_text(row.get("ComponentID"))
        if "MACAddress" in row and owner:
            addresses = tuple(each.get("IPAddress") for each in as_mappings(row.get("IPAddresses")))
            interfaces.setdefault(owner, []).append((row["MACAddress"], addresses))
    return interfaces


def _list_nodes(rows: list[dict[str, Any]], interfaces: Mapping[str, list[_Interface]]) -> list[_Node]:
    nodes: dict[str, _Node] = {}
    for row in rows:
        node = _read_smd_component(row, interfaces) or _read_boot_service_node(row) or _read_nodes_file_entry(row)
        if node is not None:
            nodes[node.name] = node
    return list(nodes.values())


def _read_smd_component(row: Mapping[str, Any], interfaces: Mapping[str, list[_Interface]]) -> _Node | None:
    """Read a Component of State Management, whose EthernetInterfaces are separate rows."""
    name = as_text(row.get("ID"))
    # the NID is optional; an EthernetInterface contains the type of its component
    if name is None or "MACAddress" in row or ("NID" not in row and row.get("Type") != "Node"):
        return None
    return _Node(
        name=name,
        nid=_as_int(row.get("NID")),
        interfaces=tuple(interfaces.get(name, ())),
        role=as_text(row.get("Role")),
        subrole=as_text(row.get("SubRole")),
        architecture={"X86": "x86_64", "ARM": "aarch64"}.get(str(row.get("Arch"))),
    )


def _read_boot_service_node(row: Mapping[str, Any]) -> _Node | None:
    spec = as_mapping(row.get("spec"))
    name = as_text(spec.get("xname"))
    if name is None or row.get("kind") == "BMC":
        return None
    interfaces = [(each.get("mac"), (each.get("ip"),)) for each in as_mappings(spec.get("interfaces"))]
    return _Node(
        name=name,
        hostname=as_text(spec.get("hostname")),
        nid=_as_int(spec.get("nid")),
        interfaces=_add_boot_mac(interfaces, spec.get("bootMac")),
        role=as_text(spec.get("role")),
        subrole=as_text(spec.get("subRole")),
        groups=_as_texts(spec.get("groups")),
    )


def _read_nodes_file_entry(row: Mapping[str, Any]) -> _Node | None:
    """Read a node in a local nodes.yaml."""
    name = as_text(row.get("xname"))
    if name is None or as_text(row.get("type")) not in (None, "Node"):
        return None
    interfaces = [
        (each.get("mac_address"), (each.get("ip_address"),)) for each in as_mappings(row.get("ethernet_interfaces"))
    ]
    return _Node(
        name=name,
        nid=_as_int(row.get("nid")),
        interfaces=_add_boot_mac(interfaces, row.get("boot_mac")),
        role=as_text(row.get("role")),
        subrole=as_text(row.get("subrole")),
    )


def _add_boot_mac(interfaces: list[_Interface], boot_mac: Any) -> tuple[_Interface, ...]:
    known = {parse_mac_or_none(mac) for mac, _ in interfaces}
    if boot_mac and parse_mac_or_none(boot_mac) not in known:
        return ((boot_mac, ()), *interfaces)
    return tuple(interfaces)


_PATTERN: Final = re.compile(r"[*?\[\]]")


# The roles that State Management defines. BSS stores parameters for a role under its name.
_ROLES: Final = ("Compute", "Service", "System", "Application", "Storage", "Management")


def _is_node_name(host: str) -> bool:
    # BSS stores parameters for all nodes (Global), for nodes without parameters (Default), and for unknown nodes.
    return host not in ("Default", "Global", *_ROLES) and not host.startswith("Unknown-") and not _PATTERN.search(host)


def _list_other_nodes(
    configs: list[_Config], nodes: list[_Node], interfaces: Mapping[str, list[_Interface]]
) -> list[_Node]:
    """Return the nodes whose names only boot parameters contain."""
    names = {name for node in nodes for name in (node.name, node.hostname, node.role, *node.groups) if name}
    nids = {node.nid for node in nodes}
    hosts = {host for config in configs for host in config.hosts if host not in names and _is_node_name(host)}
    others = {host: _Node(name=host, interfaces=tuple(interfaces.get(host, ()))) for host in sorted(hosts)}
    macs = {mac for node in (*nodes, *others.values()) for mac in node.macs}
    for config in configs:
        for mac in config.macs - macs:
            text = mac.replace("-", ":")
            others.setdefault(text, _Node(name=text, interfaces=((text, ()),)))
        for nid in config.nids:
            if nid not in nids:
                others.setdefault(f"nid{nid:06}", _Node(name=f"nid{nid:06}", nid=nid))
    return list(others.values())


def _score_config(config: _Config, node: _Node) -> int:
    """Return how well parameters match a node, like boot-service and BSS.

    Sources: boot-service, pkg/controllers/bootscript/controller.go; BSS, cmd/boot-script-service/boot_data.go.
    """
    names = {node.name, node.hostname}
    score = sum(50 for host in config.hosts if host in names or host == "*")
    score += 100 * len(config.macs & node.macs)
    score += sum(75 for nid in config.nids if nid == node.nid)
    score += sum(25 for group in (*config.groups, *config.hosts) if group in node.groups)
    # BSS looks up the role of a node after the node and before Default; only boot-service's parameters have a name
    score = score or (2 if not config.name and node.role in config.hosts else 0)
    return score or (1 if config.is_default else 0)


def _choose_config(node: _Node, configs: list[_Config]) -> _Config | None:
    """Return the parameters that match a node best, then those with the highest priority, then the first by name."""
    best: _Config | None = None
    best_rank: tuple[int, int, str] | None = None
    for config in configs:
        score = _score_config(config, node)
        rank = -score, -config.priority, config.name
        if score and (best_rank is None or rank < best_rank):
            best, best_rank = config, rank
    return best


def _list_remarks_on_source(configs: list[_Config], used: Collection[str | None]) -> Iterator[ImportRemark]:
    for config in configs:
        boot = _name_boot(config.row) if config.row.get("kernel") else None
        name = f"BootConfiguration {config.name}" if config.name else "the default parameters"
        yield from config.remarks
        for host in config.hosts:
            if host != "*" and _PATTERN.search(host):
                yield remark_lost(
                    f"host pattern {host} does not select a node, because boot-service compares names exactly"
                )
            elif host not in ("Default", "*") and not _is_node_name(host) and (host not in _ROLES or boot not in used):
                yield remark_lost(
                    f"the parameters for {host} are not specific to one node: select the nodes for the boot {boot} "
                    "with a BootPolicy"
                )
        if boot is not None and boot not in used and (config.is_default or config.name):
            yield remark_guessed(f"the boot {boot} from {name} is in the fleet, but no server uses it")


def _list_remarks_on_interfaces(rows: list[dict[str, Any]], nodes: list[_Node]) -> Iterator[ImportRemark]:
    names = {node.name for node in nodes}
    for row in rows:
        owner = as_text(row.get("ComponentID"))
        if "MACAddress" in row and owner not in names:
            reason = f"{owner} is not a node in the source" if owner else "the interface does not belong to a component"
            yield remark_lost(f"EthernetInterface {row['MACAddress']} was left out, because {reason}")
        elif (xname := as_text(row.get("xname"))) and xname not in names:
            yield remark_lost(f"{xname} was left out, because it is of type {as_text(row.get('type'))}, not a node")


def _read_boot(row: Mapping[str, Any]) -> ImportedBoot:
    """Return the boot in a row.

    The name of the boot contains a digest of the row, so that equal rows share one boot.
    """
    kernel, initrd, params = (as_text(row.get(key)) for key in ("kernel", "initrd", "params"))
    arguments, remarks = translate_arguments(split_kernel_arguments(params or ""))
    has_data = get_nested(row, "cloud-init", "user-data") or get_nested(row, "cloud-init", "meta-data")
    return ImportedBoot(
        name=_name_boot(row),
        kernel=kernel,
        initrds=(initrd,) if initrd else (),
        arguments=tuple(each for each in arguments if not each.startswith("initrd=")),
        remarks=(
            *remarks,
            *remark_if(
                has_data, remark_lost("the cloud-init data was left out: write it as user data, without secrets")
            ),
        ),
    )


def _name_boot(row: Mapping[str, Any]) -> str:
    parts = [as_text(row.get(key)) or "" for key in ("kernel", "initrd", "params")]
    digest = sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{build_document_name(parts[0].rpartition('/')[2] or 'boot')}-{digest}"


def _read_machine(node: _Node, configs: list[_Config], bmcs: Mapping[str, str | None]) -> ImportedMachine:
    config = _choose_config(node, configs)
    nics, remarks = dict[MacAddress, ImportedNic](), list[ImportRemark]()
    for text, ips in node.interfaces:
        addresses = [address for ip in ips for address in list_address(ip)]
        mac, mac_remarks = read_mac(as_text(text), addresses=addresses)
        remarks += mac_remarks
        if mac and mac not in nics:
            nics[mac] = ImportedNic(mac=mac, addresses=tuple(sorted(addresses)))
    host = bmcs.get(node.name.rpartition("n")[0])
    bmc, bmc_remarks = parse_bmc(f"redfish://{host}" if host else None, f"{build_document_name(node.name)}-bmc")
    kernel = config.row.get("kernel") if config else None
    source = f"BootConfiguration {config.name}" if config and config.name else f"boot parameters of {node.name}"
    return ImportedMachine(
        name=node.name if parse_mac_or_none(node.name) is None else f"node-{node.name.replace(':', '-')}",
        architecture=parse_architecture(node.architecture),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels={key: value for key, value in (("role", node.role), ("subrole", node.subrole)) if value},
        vars={"nid": str(node.nid)} if node.nid is not None and not node.name.startswith("nid") else {},
        boot=_name_boot(config.row) if config and kernel else None,
        remarks=(
            remark_kept(source if config else f"node {node.name}"),
            *remarks,
            *bmc_remarks,
            *remark_if(
                config is not None and config.is_default,
                remark_guessed(
                    "the import took the boot from the default parameters, because no other parameters apply to this "
                    "machine"
                ),
            ),
            *remark_if(
                not nics and not remarks,
                remark_missing(
                    "the source does not contain the MAC addresses: export State Management's EthernetInterfaces "
                    "together with the parameters"
                ),
            ),
            *remark_if(
                config is not None and not kernel,
                remark_missing("the boot was not imported, because the parameters do not contain a kernel"),
            ),
            *remark_if(
                config is None,
                remark_lost("the boot was not imported, because the source has no boot parameters for this machine"),
            ),
        ),
    )
