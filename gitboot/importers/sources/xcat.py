"""Nodes of xCAT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gitboot.importers.inventory import (
    Estate,
    ImportedMachine,
    ImportedNic,
    Texts,
    address_of,
    architecture_of,
    bmc_of,
    kept,
    lost,
    mac_of,
    name_of,
    remark_if,
    uuid_of,
    without_secrets,
)


def xcat(files: Texts) -> Estate:
    """Read objects of type node, as ``lsdef -t node -z`` prints them."""
    nodes: dict[str, dict[str, str]] = {}
    for _, text in sorted(files.items()):
        defaults: dict[str, str] = {}
        for name, attributes in _stanzas(text):
            if name == "default-node":
                defaults |= attributes
            elif attributes.get("objtype") == "node":
                nodes.setdefault(name, {}).update({**defaults, **attributes})
    return Estate(machines=tuple(_xcat_node(name, each) for name, each in sorted(nodes.items())))


def _stanzas(text: str) -> Iterator[tuple[str, dict[str, str]]]:
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


def _xcat_node(name: str, node: Mapping[str, str]) -> ImportedMachine:
    # "mac!name|mac!name": the MAC addresses of a node, each with the host name that it is given
    macs = [mac for part in node.get("mac", "").split("|") if (mac := mac_of(part.partition("!")[0]))]
    address = address_of(node.get("ip"))
    host = node.get("bmc")
    by_ipmi = host is not None and node.get("mgt") == "ipmi"
    bmc, more = bmc_of(f"ipmi://{host}" if by_ipmi else None, f"{name_of(name)}-bmc")
    arguments, secret = without_secrets(node.get("addkcmdline", "").split())
    return ImportedMachine(
        name=name,
        serial=node.get("serial") or None,
        uuid=uuid_of(node.get("uuid")),
        bmc=bmc,
        architecture=architecture_of(node.get("arch")),
        nics=tuple(
            ImportedNic(mac=mac, addresses=(address,) if address and not i else ()) for i, mac in enumerate(macs)
        ),
        remarks=(
            kept(f"node {name}"),
            *more,
            *remark_if(host and not by_ipmi, lost(f"its BMC {host} ({node.get('mgt', 'unknown')}): add a bmc by hand")),
            *(lost(f"{key}={node[key]}") for key in ("provmethod", "osimage", "netboot", "os") if node.get(key)),
            *secret,
            *remark_if(arguments, lost(f"addkcmdline {' '.join(arguments)}")),
        ),
    )
