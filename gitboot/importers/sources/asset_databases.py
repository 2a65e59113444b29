"""Machine databases: read the JSON responses of the APIs of NetBox, Nautobot, MAAS and Foreman."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from gitboot.importers.inventory import (
    ImportedBmc,
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
    get_nested,
    group_rows,
    merge_rows,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_json,
    parse_json_files,
    parse_mac_or_none,
    read_mac,
    read_uuid,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    split_kernel_arguments,
    translate_arguments,
)
from gitboot.model.scalars import build_document_name
from gitboot.model.server import Firmware
from gitboot.text import format_count

_Row = Mapping[str, Any]


def _parse_source_files(files: Texts) -> list[tuple[str, Any]]:
    """Parse the JSON files of a source. If there is only one file, it may have any name."""
    if len(files) == 1:
        return [(path, parse_json(path, text)) for path, text in files.items()]
    return list(parse_json_files(files))


_KEYS_OF_LISTS: Final = frozenset({"device_type", "mac_address", "address", "mac", "path", "family"})


def _remark_missing_pages(documents: Iterable[tuple[str, Any]]) -> Iterator[ImportRemark]:
    """Yield a remark for each list of which the source does not contain all pages."""
    paths, row_counts = dict[tuple[int, frozenset[str]], str](), Counter[tuple[int, frozenset[str]]]()
    for path, document in documents:
        total = get_nested(document, "subtotal") or get_nested(document, "count")  # Foreman, NetBox
        rows = as_mappings(get_nested(document, "results"))
        if isinstance(total, int) and rows:
            pages = total, _KEYS_OF_LISTS.intersection(rows[0])
            row_counts[pages] += len(rows)
            paths.setdefault(pages, path)
    for (total, keys), row_count in row_counts.items():
        if row_count < total:
            yield remark_missing(
                f"{paths[total, keys]} contains only {row_count:,} of {total:,} objects: export the whole list"
            )


# NetBox and Nautobot


def read_netbox(files: Texts) -> ImportedInventory:
    """Read the responses of ``/api/dcim/devices/``, ``/api/dcim/interfaces/`` and ``/api/ipam/ip-addresses/``.

    Nautobot 2 assigns addresses to interfaces in ``/api/ipam/ip-address-to-interface/``.
    """
    documents = _parse_source_files(files)
    lists = (each if isinstance(each, list) else get_nested(each, "results") for _, each in documents)
    rows = [row for items in lists for row in as_mappings(items)]
    interfaces = merge_rows(
        (row for row in rows if get_nested(row, "device", "id") is not None and "mac_address" in row), "id"
    )
    address_rows = (
        row
        for row in rows
        if "assigned_object_id" in row
        and "address" in row
        # the IDs of other objects, such as VM interfaces, may equal those of interfaces
        and row.get("assigned_object_type") in (None, "dcim.interface")
    )
    addresses = [*merge_rows(address_rows, "id"), *_list_nautobot_assignments(rows)]
    devices = merge_rows((row for row in rows if "device_type" in row), "id")
    by_device, by_interface = group_rows(interfaces, "device", "id"), group_rows(addresses, "assigned_object_id")
    machines = (
        _read_device(device, by_device.get(str(device.get("id")), []), by_interface)
        for device in devices
        if as_text(device.get("name"))
    )
    unknown = len(by_device.keys() - {str(device.get("id")) for device in devices})
    return ImportedInventory(
        machines=tuple(sorted(machines, key=lambda machine: machine.name)),
        remarks=(
            *_remark_missing_pages(documents),
            *(
                remark_lost(
                    f"device {as_text(device.get('display')) or as_text(device.get('id'))} was left out, because it "
                    "has no name: name the device in the source"
                )
                for device in devices
                if not as_text(device.get("name"))
            ),
            *remark_if(
                unknown,
                remark_lost(
                    f"the interfaces of {format_count(unknown, 'device')} were left out, because the devices are not "
                    "in the source"
                ),
            ),
        ),
    )


def _read_device(
    device: _Row, interfaces: list[dict[str, Any]], addresses: Mapping[str, list[dict[str, Any]]]
) -> ImportedMachine:
    reader = _collect_netbox_nics(interfaces, addresses)
    device = {"role": device.get("device_role"), **device}  # the role in NetBox before 3.6
    labels = {
        key: build_document_name(slug)
        for key in ("site", "rack", "role")
        if (slug := as_text(get_nested(device, key, "slug")) or as_text(get_nested(device, key, "name")))
    }
    bmc_addresses = [parse_address(get_nested(device, "oob_ip", "address"))]
    for interface in interfaces:
        if interface.get("mgmt_only"):
            bmc_addresses += _list_netbox_addresses(interface, addresses)
    bmc_hosts = sorted({address.partition("/")[0] for address in bmc_addresses if address})
    known = {*bmc_addresses, *(address for nic in reader.nics for address in nic.addresses)}
    custom = as_mapping(device.get("custom_fields"))
    uuid, uuid_remarks = read_uuid(as_text(custom.get("uuid")) or as_text(custom.get("system_uuid")))
    return ImportedMachine(
        name=str(device["name"]),
        serial=as_text(device.get("serial")),
        uuid=uuid,
        nics=tuple(reader.nics),
        labels=labels,
        remarks=(
            remark_kept(f"device {device['name']}, but not its boot, which the source does not contain"),
            *reader.remarks,
            *uuid_remarks,
            *(
                remark_lost(
                    f"interface {as_text(interface.get('name'))} with {address} was left out, because its MAC "
                    "address is unknown"
                )
                for interface in interfaces
                for address in _list_netbox_addresses(interface, addresses)
                if address not in known
            ),
            *remark_if(
                bmc_hosts,
                remark_lost(
                    f"the BMC at {', '.join(bmc_hosts)} was left out, because the source does not contain its "
                    "protocol: add the BMC by hand"
                ),
            ),
            *remark_if(
                not reader.nics and not reader.remarks,
                remark_missing(
                    "the source does not contain the MAC addresses: export the interfaces together with the devices"
                ),
            ),
        ),
    )


def _collect_netbox_nics(
    interfaces: list[dict[str, Any]], addresses: Mapping[str, list[dict[str, Any]]]
) -> NicCollector:
    """Collect the interfaces of a device. The members of a link aggregation or a bridge get its addresses."""
    lag_ids = {str(get_nested(interface, "lag", "id")) for interface in interfaces}
    lag_addresses = {
        str(interface.get("id")): _list_netbox_addresses(interface, addresses)
        for interface in interfaces
        if get_nested(interface, "type", "value") in ("lag", "bridge") or str(interface.get("id")) in lag_ids
    }
    reader = NicCollector()
    for interface in sorted(interfaces, key=lambda interface: str(interface.get("name"))):
        if interface.get("mgmt_only") or str(interface.get("id")) in lag_addresses:
            continue
        name = as_text(interface.get("name"))
        inherited = [
            address
            for key in ("lag", "bridge")
            for address in lag_addresses.get(str(get_nested(interface, key, "id")), ())
        ]
        own = _list_netbox_addresses(interface, addresses)
        # NetBox 4.2 returns a list of objects, one of which is the primary one.
        macs = [as_text(row.get("mac_address")) for row in (interface, *as_mappings(interface.get("mac_addresses")))]
        for mac in dict.fromkeys(filter(None, macs)):
            reader.add(mac, f"interface {name}:", name=name, addresses=(*own, *inherited))
    return reader


def _list_nautobot_assignments(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the addresses in ``/api/ipam/ip-address-to-interface/`` of Nautobot 2 as NetBox lists addresses."""
    addresses = {str(row.get("id")): row["address"] for row in rows if "address" in row}
    for row in rows:
        interface = get_nested(row, "interface", "id")
        address = addresses.get(str(get_nested(row, "ip_address", "id")))
        if interface is not None and address is not None:
            yield {"address": address, "assigned_object_id": interface}


def _list_netbox_addresses(interface: _Row, addresses: Mapping[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    texts = (as_text(row["address"]) for row in addresses.get(str(interface.get("id")), []))
    return tuple(sorted(filter(None, (parse_address(each) for each in texts if each))))


# MAAS


def read_maas(files: Texts) -> ImportedInventory:
    """Read the output of ``maas PROFILE machines read`` and, if present, ``maas PROFILE machines power-parameters``."""
    rows = list[dict[str, Any]]()
    powers: dict[str, _Row] = {}  # by system_id
    for _, document in _parse_source_files(files):
        if isinstance(document, dict) and "system_id" not in document:
            powers |= {str(system_id): as_mapping(power) for system_id, power in document.items()}
        else:
            rows += as_mappings(document) or as_mappings([document])
    nodes = merge_rows((row for row in rows if as_text(row.get("system_id"))), "system_id")
    machines = (
        _read_maas_machine(row, powers.get(str(row["system_id"]), {})) for row in nodes if _is_maas_machine(row)
    )
    return ImportedInventory(
        machines=tuple(sorted(machines, key=lambda machine: machine.name)),
        remarks=tuple(
            remark_lost(f"{as_text(row.get('hostname'))} is not a machine: {as_text(row.get('node_type_name'))}")
            for row in nodes
            if not _is_maas_machine(row)
        ),
    )


def _is_maas_machine(row: _Row) -> bool:
    return str(row.get("node_type", 0)) == "0"


def _read_maas_machine(row: _Row, power: _Row) -> ImportedMachine:
    name = as_text(row.get("hostname")) or str(row["system_id"])
    hardware = as_mapping(row.get("hardware_info"))
    uuid, uuid_remarks = read_uuid(as_text(row.get("hardware_uuid")))
    nics, nic_remarks = _read_maas_nics(row)
    bmc, bmc_remarks = _read_maas_bmc(name, as_text(row.get("power_type")), power)
    serial = as_text(hardware.get("system_serial"))
    status = as_text(row.get("status_name"))
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=serial if serial != "Unknown" else None,
        architecture=parse_architecture((as_text(row.get("architecture")) or "").partition("/")[0]),
        firmware=parse_firmware({"pxe": "bios"}.get(str(row.get("bios_boot_method")), row.get("bios_boot_method"))),
        nics=nics,
        bmc=bmc,
        labels={
            key: build_document_name(value)
            for key in ("zone", "pool")
            if (value := as_text(get_nested(row, key, "name")))
        },
        remarks=(
            remark_kept(f"machine {name} ({row['system_id']}){f' in status {status}' if status else ''}"),
            *uuid_remarks,
            *nic_remarks,
            *bmc_remarks,
            remark_lost(f"the boot was not imported, because {_describe_maas_boot(row)}"),
            *(
                remark_lost(f"the tag {tag} was left out: add a label if a policy must select servers by this tag")
                for tag in as_list(row.get("tag_names"))
                if as_text(tag)
            ),
        ),
    )


def _describe_maas_boot(row: _Row) -> str:
    system = "/".join(filter(None, (as_text(row.get("osystem")), as_text(row.get("distro_series")))))
    if system:
        return f"MAAS deploys {system} with curtin from its own images: write a BootImage for the installer"
    return "MAAS has not deployed a system and boots only its own images"


def _read_maas_nics(row: _Row) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    """Return the physical interfaces. The members of a bond or bridge get the addresses of the bond or bridge."""
    interfaces, remarks = as_mappings(row.get("interface_set")), list[ImportRemark]()
    boot_mac = parse_mac_or_none(get_nested(row, "boot_interface", "mac_address"))
    nics_by_name: dict[str, ImportedNic] = {}
    for interface in (*interfaces, *as_mappings([row.get("boot_interface")])):
        if _get_maas_type(interface) != "physical":
            continue
        name = as_text(interface.get("name"))
        addresses = _list_maas_addresses(interface)
        mac, mac_remarks = read_mac(as_text(interface.get("mac_address")), f"interface {name}:", addresses)
        remarks += [each for each in mac_remarks if each not in remarks]  # MAAS repeats the boot interface
        if mac and mac not in {nic.mac for nic in nics_by_name.values()}:
            nics_by_name[name or mac] = ImportedNic(mac=mac, name=name, addresses=addresses, boot=mac == boot_mac)
    for interface in interfaces:
        if _get_maas_type(interface) != "physical":
            remarks += _move_maas_addresses(interface, nics_by_name)
    nics = tuple(sorted(nics_by_name.values(), key=lambda nic: nic.mac))
    if not any(nic.boot for nic in nics):
        nics = tuple(structs.replace(nic, boot=True) for nic in nics)
    return nics, remarks


def _get_maas_type(interface: _Row) -> str:
    return str(interface.get("type", "physical"))


def _move_maas_addresses(interface: _Row, nics_by_name: dict[str, ImportedNic]) -> tuple[ImportRemark, ...]:
    """Add the addresses of a bond or bridge to its members in ``nics_by_name``, and return a remark."""
    interface_type, name = _get_maas_type(interface), as_text(interface.get("name"))
    addresses = _list_maas_addresses(interface)
    if not addresses:
        return ()
    targets = list[str]()
    if interface_type in ("bond", "bridge"):
        mac = parse_mac_or_none(interface.get("mac_address"))
        parents = (str(parent) for parent in as_list(interface.get("parents")) if str(parent) in nics_by_name)
        same_mac = (key for key, nic in nics_by_name.items() if nic.mac == mac)
        targets = list(dict.fromkeys((*parents, *same_mac)))
    if not targets:
        lost = f"the {interface_type} {name} with {', '.join(addresses)} was left out"
        return (remark_lost(f"{lost}: configure the {interface_type} in the user data"),)
    for target in targets:
        nic = nics_by_name[target]
        nics_by_name[target] = structs.replace(nic, addresses=(*nic.addresses, *addresses))
    moved = f"the import wrote the addresses from the {interface_type} {name} to {', '.join(targets)}"
    return (remark_guessed(moved),)


def _list_maas_addresses(interface: _Row) -> tuple[str, ...]:
    addresses = list[str]()
    for link in (*as_mappings(interface.get("links")), *as_mappings(interface.get("discovered"))):
        address = parse_address(link.get("ip_address"))
        prefix = (as_text(get_nested(link, "subnet", "cidr")) or "").partition("/")[2]
        if address and not any(known.partition("/")[0] == address for known in addresses):
            addresses.append(f"{address}/{prefix}" if prefix else address)
    return tuple(addresses)


def _read_maas_bmc(
    name: str, power_type: str | None, power: _Row
) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    address = as_text(power.get("power_address"))
    if power_type in (None, "manual"):
        return None, (remark_lost("the BMC was not imported, because the power type is manual"),)
    if power_type not in ("ipmi", "redfish"):
        location = f" at {address.rpartition('@')[2]}" if address else ""
        return None, (
            remark_lost(f"the BMC{location} was left out, because its power type is {power_type}: add the BMC by hand"),
        )
    if address is None:
        return None, (
            remark_missing(
                f"the source does not contain the BMC's address ({power_type}): put the output of "
                "`maas PROFILE machines power-parameters` into the same directory as the machines"
            ),
        )
    host = address.rpartition("@")[2]
    url = host if "://" in host else f"{power_type}://{host}"
    node = as_text(power.get("node_id"))
    return parse_bmc(url, f"{build_document_name(name)}-bmc", system=f"/redfish/v1/Systems/{node}" if node else None)


# Foreman

_UUID_FACTS: Final = ("dmi::product::uuid", "dmi::system::uuid", "uuid")
_DEBIAN_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # of architectures
_SERIAL_FACTS: Final = ("dmi::product::serial_number", "dmi::system::serial_number", "serialnumber")


def read_foreman(files: Texts) -> ImportedInventory:
    """Read ``/api/v2/hosts`` (a list, or single hosts with interfaces), and any media, operatingsystems and facts.

    If the source contains media and operating systems, each host gets a boot with the files that Foreman takes from the
    installation medium.
    """
    rows, facts = list[dict[str, Any]](), dict[str, _Row]()
    documents = _parse_source_files(files)
    for _, document in documents:
        results = get_nested(document, "results")
        if isinstance(results, dict):  # from /api/v2/hosts/NAME/facts
            facts |= {str(name): as_mapping(host_facts) for name, host_facts in results.items()}
        elif isinstance(results, list):
            rows += as_mappings(results)
        else:
            rows += as_mappings(document if isinstance(document, list) else [document])
    hosts: dict[str, dict[str, Any]] = {}
    for row in rows:
        if as_text(row.get("name")) and ("mac" in row or "interfaces" in row or "pxe_loader" in row):
            name = str(row["name"])
            # combine the row in a list with the row in the file of a single host
            hosts[name] = {**hosts.get(name, {}), **row}
    media = {str(row.get("id")): row for row in rows if "path" in row}
    systems = {str(row.get("id")): row for row in rows if "family" in row and "major" in row}
    boots: dict[str, ImportedBoot] = {}
    machines = list[ImportedMachine]()
    for name, host in sorted(hosts.items()):
        boot, reasons = _read_foreman_boot(host, media, systems)
        if boot is not None:
            boots[boot.name] = boot
        machines.append(_read_foreman_host(name, host, facts.get(name, {}), boot, reasons))
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=tuple(_remark_missing_pages(documents)),
    )


def _read_foreman_host(
    name: str, host: _Row, facts: _Row, boot: ImportedBoot | None, reasons: Iterable[ImportRemark]
) -> ImportedMachine:
    nics, bmc, remarks = _read_foreman_interfaces(name, host)
    uuid, uuid_remarks = read_uuid(next((facts[key] for key in _UUID_FACTS if as_text(facts.get(key))), None))
    loader = as_text(host.get("pxe_loader")) or ""
    firmware: Firmware | None = None
    if "UEFI" in loader:
        firmware = Firmware.UEFI
    elif "BIOS" in loader:
        firmware = Firmware.BIOS
    parameters = [row for key in ("parameters", "all_parameters") for row in as_mappings(host.get(key))]
    values = {str(row.get("name")): as_text(row.get("value")) for row in parameters}
    arguments, argument_remarks = translate_arguments(split_kernel_arguments(values.get("kernelcmd") or ""))
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=next((as_text(facts[key]) for key in _SERIAL_FACTS if as_text(facts.get(key))), None),
        architecture=parse_architecture(host.get("architecture_name")),
        firmware=firmware,
        secure_boot=True if "SecureBoot" in loader else None,
        nics=nics,
        bmc=bmc,
        labels={
            key: build_document_name(value)
            for key in ("hostgroup", "location", "organization")
            if (value := as_text(host.get(f"{key}_title")) or as_text(host.get(f"{key}_name")))
        },
        boot=boot.name if boot else None,
        arguments=arguments,
        remarks=(
            remark_kept(f"host {name}"),
            *remarks,
            *uuid_remarks,
            *argument_remarks,
            *reasons,
            *remark_if(
                as_text(host.get("compute_resource_name")),
                remark_lost(f"the host is a virtual machine on {host.get('compute_resource_name')}"),
            ),
        ),
    )


def _read_foreman_interfaces(
    name: str, host: _Row
) -> tuple[tuple[ImportedNic, ...], ImportedBmc | None, list[ImportRemark]]:
    bmc: ImportedBmc | None = None
    reader = NicCollector()
    remarks = reader.remarks
    rows = as_mappings(host.get("interfaces")) or [{**host, "identifier": None, "type": "interface"}]
    bond_addresses: dict[str, tuple[str, ...]] = {}  # by the name of the member
    has_boot = any(row.get("provision") for row in rows)
    boot_devices = {device for row in rows if row.get("provision") for device in _list_foreman_devices(row)}
    for row in sorted(rows, key=lambda row: str(row.get("type")) not in ("bond", "bridge")):
        interface_type, identifier = str(row.get("type") or "interface"), as_text(row.get("identifier"))
        label = identifier or as_text(row.get("mac"))
        addresses = tuple(filter(None, (parse_address(row.get("ip")), parse_address(row.get("ip6")))))
        address_list = f" with {', '.join(addresses)}" if addresses else ""
        if interface_type == "bmc":
            found, bmc_remarks = _read_foreman_bmc(name, row)
            remarks += bmc_remarks
            if found is not None and bmc is not None:  # Foreman uses the first
                remarks.append(remark_lost(f"the BMC {found.address} was left out, because the host has another BMC"))
            bmc = bmc or found
        elif interface_type in ("bond", "bridge"):
            bond_addresses |= dict.fromkeys(_list_foreman_devices(row), addresses)
            remarks.append(
                remark_lost(f"interface {label}{address_list} was left out, because it is of type {interface_type}")
            )
        elif row.get("virtual"):
            remarks.append(remark_lost(f"interface {label}{address_list} was left out, because it is virtual"))
        else:
            reader.add(
                as_text(row.get("mac")),
                f"interface {label}:",
                name=identifier,
                addresses=(*addresses, *bond_addresses.get(identifier or "", ())),
                boot=not has_boot or bool(row.get("provision")) or identifier in boot_devices,
            )
    if not as_mappings(host.get("interfaces")):
        remarks.append(
            remark_lost("a list of hosts contains neither the other interfaces nor the BMC: export /api/v2/hosts/NAME")
        )
    if not any(nic.boot for nic in reader.nics):
        reader.nics = [structs.replace(nic, boot=True) for nic in reader.nics]
    return tuple(reader.nics), bmc, remarks


def _list_foreman_devices(row: _Row) -> list[str]:
    """Return the interfaces below a bond, a bridge or a VLAN."""
    devices = row.get("attached_devices") or row.get("attached_to")
    return [str(each).strip() for each in (devices.split(",") if isinstance(devices, str) else as_list(devices))]


def _read_foreman_bmc(name: str, row: _Row) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    host = as_text(row.get("ip")) or as_text(row.get("ip6"))
    provider = as_text(row.get("provider")) or "IPMI"
    if host is None:
        return None, (
            remark_missing(f"the source does not contain the BMC's address ({provider}): add the BMC by hand"),
        )
    if provider.lower() not in ("ipmi", "redfish"):
        return None, (remark_lost(f"the BMC {host} ({provider}) was left out: add the BMC by hand"),)
    return parse_bmc(f"{provider.lower()}://{host}", f"{build_document_name(name)}-bmc")


def _read_foreman_boot(
    host: _Row, media: Mapping[str, _Row], systems: Mapping[str, _Row]
) -> tuple[ImportedBoot | None, list[ImportRemark]]:
    medium_name, system_name = as_text(host.get("medium_name")), as_text(host.get("operatingsystem_name"))
    medium, system = media.get(str(host.get("medium_id"))), systems.get(str(host.get("operatingsystem_id")))
    if host.get("managed") is False:
        return None, [remark_lost("the boot was not imported, because Foreman does not manage the host")]
    if as_text(host.get("provision_method")) not in (None, "build"):
        return None, [
            remark_lost(f"the boot was not imported, because the provision method is {host['provision_method']}")
        ]
    if system_name is None or medium_name is None:
        missing = "operating system" if system_name is None else "installation medium"
        return None, [remark_lost(f"the boot was not imported, because the host has no {missing}")]
    if medium is None or system is None:
        missing = " and ".join(part for part, row in (("media", medium), ("operatingsystems", system)) if row is None)
        return None, [
            remark_missing(
                f"the boot of {system_name} from medium {medium_name} is incomplete: put the responses from "
                f"/api/v2/{missing} into the same directory as the hosts"
            )
        ]
    architecture = parse_architecture(host.get("architecture_name"))
    files = _find_foreman_files(system, architecture or "x86_64")
    if files is None:
        return None, [
            remark_lost(
                f"the boot was not imported, because the import does not support {system_name} (family "
                f"{system.get('family')})"
            )
        ]
    base = _fill_medium_path(as_text(medium.get("path")) or "", system, architecture or "x86_64")
    kernel, initrd = (f"{base.rstrip('/')}/{file}" for file in files)
    boot = ImportedBoot(
        name=f"{system_name} {medium_name} {architecture or 'x86_64'}",
        kernel=kernel,
        initrds=(initrd,),
        architecture=architecture,
        remarks=(
            remark_kept(f"{system_name} from medium {medium_name}"),
            remark_lost(
                "the provisioning template's arguments and user data were left out: write them in the BootProfile"
            ),
        ),
    )
    return boot, []


def _find_foreman_files(system: _Row, architecture: str) -> tuple[str, str] | None:
    """Return the paths of the kernel and the initrd below a medium, as in Foreman's operating system models."""
    family, name = as_text(system.get("family")), (as_text(system.get("name")) or "").lower()
    version = [int(number) for number in re.findall(r"\d+", f"{system.get('major')} {system.get('minor')}")]
    if family == "Redhat":
        return "images/pxeboot/vmlinuz", "images/pxeboot/initrd.img"
    if family == "Debian" and "ubuntu" in name and version[:1] >= [20] and not [20, 0] <= version[:2] <= [20, 2]:
        return "casper/vmlinuz", "casper/initrd"
    if family == "Debian":
        release, arch = as_text(system.get("release_name")) or "", _DEBIAN_NAMES.get(architecture, architecture)
        distro = "ubuntu" if "ubuntu" in name else "debian"
        images = "legacy-images" if distro == "ubuntu" and version[:1] >= [20] else "images"
        folder = f"dists/{release}/main/installer-{arch}/current/{images}/netboot/{distro}-installer/{arch}"
        return f"{folder}/linux", f"{folder}/initrd.gz"
    if family == "Suse":
        return f"boot/{architecture}/loader/linux", f"boot/{architecture}/loader/initrd"
    return None


def _fill_medium_path(path: str, system: _Row, architecture: str) -> str:
    major, minor = as_text(system.get("major")) or "", as_text(system.get("minor")) or ""
    names = _DEBIAN_NAMES if as_text(system.get("family")) == "Debian" else {}
    values = {
        "$arch": names.get(architecture, architecture),
        "$major": major,
        "$minor": minor,
        "$version": ".".join(filter(None, (major, minor))),
        "$release": as_text(system.get("release_name")) or "",
    }
    return re.sub(r"\$[a-z]+", lambda match: values.get(match[0], match[0]), path)
