"""Nodes of xCAT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gitboot.importers.inventory import (
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    Texts,
    build_document_name,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_mac_or_none,
    parse_uuid_or_none,
    remark_if,
    remark_kept,
    remark_lost,
    remove_secrets,
)


def read_xcat(files: Texts) -> ImportedInventory:
    """Read objects of type node from the output of ``lsdef -t node -z``."""
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
    # "mac!name|mac!name": the MAC addresses of a node, each with its host name
    macs = [mac for part in node.get("mac", "").split("|") if (mac := parse_mac_or_none(part.partition("!")[0]))]
    address = parse_address(node.get("ip"))
    host = node.get("bmc")
    by_ipmi = host is not None and node.get("mgt") == "ipmi"
    bmc, more = parse_bmc(f"ipmi://{host}" if by_ipmi else None, f"{build_document_name(name)}-bmc")
    arguments, secret = remove_secrets(node.get("addkcmdline", "").split())
    return ImportedMachine(
        name=name,
        serial=node.get("serial") or None,
        uuid=parse_uuid_or_none(node.get("uuid")),
        bmc=bmc,
        architecture=parse_architecture(node.get("arch")),
        nics=tuple(
            ImportedNic(mac=mac, addresses=(address,) if address and not i else ()) for i, mac in enumerate(macs)
        ),
        remarks=(
            remark_kept(f"node {name}"),
            *more,
            *remark_if(
                host and not by_ipmi, remark_lost(f"its BMC {host} ({node.get('mgt', 'unknown')}): add the BMC by hand")
            ),
            *(remark_lost(f"{key}={node[key]}") for key in ("provmethod", "osimage", "netboot", "os") if node.get(key)),
            *secret,
            *remark_if(arguments, remark_lost(f"addkcmdline {' '.join(arguments)}")),
        ),
    )
