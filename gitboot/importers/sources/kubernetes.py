"""Kubernetes objects of Tinkerbell, Metal3, metal-operator and boot-operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.importers.inventory import (
    ImportedBmc,
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    as_list,
    as_mapping,
    as_mappings,
    as_text,
    get_nested,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_mac_or_none,
    parse_uuid_or_none,
    parse_yaml,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    translate_arguments,
)

_Object = Mapping[str, Any]


class _Objects(Struct, frozen=True):
    by_kind: Mapping[str, Mapping[str, _Object]]

    def get_kind(self, kind: str) -> Mapping[str, _Object]:
        return self.by_kind.get(kind, {})

    def get_spec(self, kind: str, name: object) -> _Object:
        return as_mapping(get_nested(self.get_kind(kind), str(name), "spec"))


def read(files: Texts) -> ImportedInventory:
    """Read each kind that describes a machine. Secrets are not read."""
    by_kind: dict[str, dict[str, _Object]] = {}
    for path, text in sorted(files.items()):
        for document in parse_yaml(path, text):
            for each in as_mappings(get_nested(document, "items")) or as_mappings(document) or as_mappings([document]):
                if (kind := as_text(each.get("kind"))) and (name := as_text(get_nested(each, "metadata", "name"))):
                    by_kind.setdefault(kind, {})[name] = each
    objects = _Objects(by_kind)
    boots = {boot.name: boot for boot in _read_boots(objects)}
    machines = [
        read_one(name, each, objects)
        for kind, read_one in _READERS.items()
        for name, each in sorted(objects.get_kind(kind).items())
    ]
    known = {machine.uuid for machine in machines if machine.uuid}
    alone = [
        machine for machine in _read_unlisted_machines(objects) if machine.uuid not in known or machine.uuid is None
    ]
    return ImportedInventory(
        machines=tuple(
            structs.replace(each, boot=each.boot if each.boot in boots else None) for each in (*machines, *alone)
        ),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=remark_if(
            objects.get_kind("Secret"),
            remark_lost("the import does not read Secrets: passwords of BMCs and user data are missing"),
        ),
    )


# Tinkerbell


def _read_hardware(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    if get_nested(each, "spec", "networkInterfaces"):
        return _read_hardware_v1alpha2(name, each)
    interfaces = [
        as_mapping(get_nested(interface, "dhcp")) for interface in as_mappings(get_nested(each, "spec", "interfaces"))
    ]
    allowed = [
        str(get_nested(interface, "netboot", "allowPXE")) != "false"
        for interface in as_mappings(get_nested(each, "spec", "interfaces"))
    ]
    nics = [
        ImportedNic(
            mac=mac,
            name=as_text(dhcp.get("iface_name")),
            addresses=_as_tuple(parse_address(get_nested(dhcp, "ip", "address"), get_nested(dhcp, "ip", "netmask"))),
            boot=may,
        )
        for dhcp, may in zip(interfaces, allowed, strict=True)
        if (mac := parse_mac_or_none(dhcp.get("mac")))
    ]
    uefi = next((str(dhcp["uefi"]) for dhcp in interfaces if "uefi" in dhcp), None)
    connection = get_nested(objects.get_spec("Machine", get_nested(each, "spec", "bmcRef", "name")), "connection") or {}
    host = as_text(connection.get("host"))
    bmc, remarks = parse_bmc(
        f"redfish://{host}" if host else None,
        as_text(get_nested(connection, "authSecretRef", "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )
    if nics and not any(nic.boot for nic in nics):
        remarks += (
            remark_lost(
                "allowPXE: false on all its interfaces, because a Parked server does not boot from the network either"
            ),
        )
        nics = [structs.replace(nic, boot=True) for nic in nics]
    data = [key for key in ("userData", "vendorData") if get_nested(each, "spec", key)]
    return ImportedMachine(
        name=name,
        architecture=next(filter(None, (parse_architecture(dhcp.get("arch")) for dhcp in interfaces)), None),
        firmware=parse_firmware({"true": "uefi", "false": "bios"}.get(uefi or "")),
        nics=tuple(nics),
        bmc=bmc,
        labels=_read_labels(each),
        boot=name,
        remarks=(
            remark_kept(f"Hardware {name}"),
            *remarks,
            *(remark_lost(f"its {key}: write it as user data of a profile, without secrets") for key in data),
        ),
    )


def _read_hardware_v1alpha2(name: str, each: _Object) -> ImportedMachine:
    """Return a machine of Tinkerbell's second version: interfaces by MAC address, the BMC in the object itself."""
    spec = as_mapping(get_nested(each, "spec"))
    nics = []
    for text, interface in sorted(as_mapping(spec.get("networkInterfaces")).items()):
        if mac := parse_mac_or_none(text):
            families = (as_mapping(get_nested(interface, "ipam", family)) for family in ("ipv4", "ipv6"))
            found = (
                parse_address(f"{ip['address']}/{ip.get('prefix') or ''}".rstrip("/"))
                for ip in families
                if "address" in ip
            )
            boots = str(get_nested(interface, "netboot", "disabled")) != "true"
            nics.append(ImportedNic(mac=mac, addresses=tuple(filter(None, found)), boot=boots))
    connection = as_mapping(get_nested(spec, "bmc", "connection"))
    host = as_text(connection.get("host"))
    bmc, remarks = parse_bmc(
        f"redfish://{host}" if host else None,
        as_text(get_nested(connection, "credentialsRef", "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )
    instance = as_mapping(spec.get("instance"))
    data = [key for key in ("userdata", "vendordata", "networkConfig") if instance.get(key)]
    variables = sorted(as_mapping(instance.get("vars")))
    return ImportedMachine(
        name=name,
        architecture=parse_architecture(spec.get("arch")),
        firmware=parse_firmware(get_nested(spec, "bmc", "bootMode")),
        nics=tuple(nics),
        bmc=bmc,
        labels=_read_labels(each),
        boot=name if get_nested(spec, "instance", "osie", "kernelURL") else None,
        remarks=(
            remark_kept(f"Hardware {name}"),
            *remarks,
            *(remark_lost(f"its {key}: write it as user data of a profile, without secrets") for key in data),
            *(remark_lost(f"its variable {each}: write it as vars, unless it is a secret") for each in variables),
        ),
    )


# Metal3


def _read_bare_metal_host(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    spec, seen = as_mapping(get_nested(each, "spec")), as_mapping(get_nested(each, "status", "hardware"))
    seen = seen or as_mapping(objects.get_spec("HardwareData", name).get("hardware"))
    boots_by = parse_mac_or_none(spec.get("bootMACAddress"))
    nics = {  # a second row of the same MAC address is its IPv6 address
        mac: ImportedNic(
            mac=mac,
            name=as_text(nic.get("name")),
            addresses=_as_tuple(parse_address(nic.get("ip"))),
            boot=boots_by is None or mac == boots_by,
        )
        for nic in as_mappings(seen.get("nics"))
        if (mac := parse_mac_or_none(nic.get("mac")))
    }
    if boots_by is not None and boots_by not in nics:
        nics[boots_by] = ImportedNic(mac=boots_by)
    bmc, remarks = parse_bmc(
        as_text(get_nested(spec, "bmc", "address")),
        as_text(get_nested(spec, "bmc", "credentialsName")),
        verify=str(get_nested(spec, "bmc", "disableCertificateVerification")) != "true",
    )
    image = as_text(get_nested(spec, "image", "url")) or ""
    data = [key for key in ("userData", "networkData", "metaData") if spec.get(key)]
    return ImportedMachine(
        name=name,
        serial=as_text(get_nested(seen, "systemVendor", "serialNumber")),
        architecture=parse_architecture(spec.get("architecture") or get_nested(seen, "cpu", "arch")),
        firmware=parse_firmware(spec.get("bootMode")),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels=_read_labels(each),
        remarks=(
            remark_kept(f"BareMetalHost {name}"),
            *remarks,
            *remark_if(
                image,
                remark_lost(f"image {image.rpartition('@')[2]}, which Ironic's agent writes: gitboot boots installers"),
            ),
            *(
                remark_lost(f"its {key} is in Secret {as_text(get_nested(spec, key, 'name'))}: write it as user data")
                for key in data
            ),
        ),
    )


# metal-operator and boot-operator


def _read_server(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    spec, status = as_mapping(get_nested(each, "spec")), as_mapping(get_nested(each, "status"))
    found = spec.get("systemUUID") or spec.get("uuid")
    uuid = parse_uuid_or_none(found)
    controller = objects.get_spec("BMC", as_text(get_nested(spec, "bmcRef", "name"))) or as_mapping(
        get_nested(spec, "bmc")
    )
    bmc, remarks = _read_bmc(controller, objects, as_text(spec.get("systemURI")))
    nics = {
        mac: ImportedNic(mac=mac, name=as_text(nic.get("name")), addresses=_as_tuple(parse_address(nic.get("ip"))))
        for nic in as_mappings(status.get("networkInterfaces"))
        if (mac := parse_mac_or_none(nic.get("macAddress")))
    }
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=as_text(status.get("serialNumber")),
        architecture=parse_architecture(spec.get("architecture")),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels=_read_labels(each),
        boot=next(
            (
                n
                for n, config in sorted(_list_boot_configs(objects))
                if uuid and parse_uuid_or_none(config.get("systemUUID")) == uuid
            ),
            None,
        ),
        remarks=(
            remark_kept(f"Server {name}"),
            *remarks,
            *remark_if(found and uuid is None, remark_missing(f"its UUID {found} is not the UUID of a board")),
        ),
    )


def _read_bmc(
    controller: _Object, objects: _Objects, system: str | None
) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    # The address of a BMC may be that of an Endpoint.
    endpoint = objects.get_spec(
        "Endpoint", get_nested(controller, "endpointRef", "name") or get_nested(controller, "endpoint", "name")
    )
    host = as_text(get_nested(controller, "access", "ip") or controller.get("address") or endpoint.get("ip"))
    protocol = as_mapping(get_nested(controller, "protocol"))
    if host is None:
        return None, ()
    port, scheme = as_text(protocol.get("port")), as_text(protocol.get("scheme")) or "https"
    return parse_bmc(
        f"redfish+{scheme}://{host}{f':{port}' if port else ''}",
        as_text(get_nested(controller, "bmcSecretRef", "name")),
        system=system,
    )


def _list_boot_configs(objects: _Objects) -> Iterator[tuple[str, _Object]]:
    for kind in ("IPXEBootConfig", "HTTPBootConfig"):
        for name, each in objects.get_kind(kind).items():
            yield name, as_mapping(get_nested(each, "spec"))


def _read_unlisted_machines(objects: _Objects) -> Iterator[ImportedMachine]:
    # Machines that only a boot configuration names. Network identifiers are IP or MAC addresses.
    for name, spec in sorted(_list_boot_configs(objects)):
        uuid = parse_uuid_or_none(spec.get("systemUUID"))
        found = [
            *_as_list(spec.get("networkIdentifiers")),
            *_as_list(spec.get("systemIPs")),
            *_as_list(spec.get("systemIP")),
        ]
        macs = sorted({mac for each in found if (mac := parse_mac_or_none(each))})
        addresses = tuple(sorted({address for each in found if (address := parse_address(each))}))
        yield ImportedMachine(
            name=name,
            uuid=uuid,
            nics=tuple(ImportedNic(mac=mac, addresses=addresses if mac == macs[0] else ()) for mac in macs),
            boot=name,
            remarks=(
                remark_kept(f"boot configuration {name}"),
                *remark_if(
                    not macs, remark_missing(f"its MAC addresses: {name} names {', '.join(addresses) or 'none'}")
                ),
                *remark_if(
                    uuid is None,
                    remark_missing(f"its UUID {as_text(spec.get('systemUUID'))} is not the UUID of a board"),
                ),
            ),
        )


def _read_boots(objects: _Objects) -> Iterator[ImportedBoot]:
    for name, spec in sorted(_list_boot_configs(objects)):
        image = as_text(spec.get("image"))
        kernel, initrd, uki = (_complete_url(spec.get(key)) for key in ("kernelURL", "initrdURL", "ukiURL"))
        if kernel or uki:
            yield ImportedBoot(
                name=name,
                kernel=kernel,
                initrds=_as_tuple(initrd),
                rootfs=_complete_url(spec.get("squashfsURL")) if kernel else None,
                uki=None if kernel else uki,
                remarks=(
                    *remark_if(spec.get("ignitionSecretRef"), remark_lost("its Ignition is in a Secret")),
                    *remark_if(image, remark_lost(f"image {image}: name its layers with `gitboot artifacts resolve`")),
                ),
            )
    for name, each in sorted(objects.get_kind("Hardware").items()):
        for interface in as_mappings(get_nested(each, "spec", "interfaces")):
            osie, base = (
                as_mapping(get_nested(interface, "netboot", "osie")),
                as_text(get_nested(interface, "netboot", "osie", "baseURL")),
            )
            if base and (kernel := as_text(osie.get("kernel"))):
                initrd = as_text(osie.get("initrd"))
                yield ImportedBoot(
                    name=name, kernel=f"{base}/{kernel}", initrds=(f"{base}/{initrd}",) if initrd else ()
                )
        if kernel := _complete_url(get_nested(each, "spec", "instance", "osie", "kernelURL")):
            given = filter(None, map(as_text, as_list(get_nested(each, "spec", "instance", "osie", "kernelParams"))))
            arguments, about = translate_arguments(given)
            initrds = _as_tuple(_complete_url(get_nested(each, "spec", "instance", "osie", "initrdURL")))
            yield ImportedBoot(name=name, kernel=kernel, initrds=initrds, arguments=arguments, remarks=about)


def _complete_url(value: object) -> str | None:
    """Return a URL with a scheme. boot-operator also accepts a URL without a scheme."""
    text = as_text(value)
    return text if text is None or "://" in text else f"http://{text}"


def _as_tuple(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if value else []


def _read_labels(each: _Object) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in as_mapping(get_nested(each, "metadata", "labels")).items()}


_READERS: Final[Mapping[str, Callable[[str, _Object, _Objects], ImportedMachine]]] = {
    "Hardware": _read_hardware,
    "BareMetalHost": _read_bare_metal_host,
    "Server": _read_server,
}
