"""Kubernetes objects: Tinkerbell's Hardware, Metal3's BareMetalHost, metal-operator's Server, boot-operator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.importers.inventory import (
    Estate,
    ImportedBmc,
    ImportedBoot,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    address_of,
    architecture_of,
    arguments_of,
    at,
    bmc_of,
    firmware_of,
    items,
    kept,
    lost,
    mac_of,
    mapping,
    missing,
    remark_if,
    sequence,
    uuid_of,
    words,
    yaml_of,
)

_Object = Mapping[str, Any]


class _Objects(Struct, frozen=True):
    by_kind: Mapping[str, Mapping[str, _Object]]

    def of(self, kind: str) -> Mapping[str, _Object]:
        return self.by_kind.get(kind, {})

    def spec(self, kind: str, name: object) -> _Object:
        return mapping(at(self.of(kind), str(name), "spec"))


def read(files: Texts) -> Estate:
    """Read each kind that describes a machine. Secrets are not read."""
    by_kind: dict[str, dict[str, _Object]] = {}
    for path, text in sorted(files.items()):
        for document in yaml_of(path, text):
            for each in items(at(document, "items")) or items(document) or items([document]):
                if (kind := words(each.get("kind"))) and (name := words(at(each, "metadata", "name"))):
                    by_kind.setdefault(kind, {})[name] = each
    objects = _Objects(by_kind)
    boots = {boot.name: boot for boot in _boots(objects)}
    machines = [
        read_one(name, each, objects)
        for kind, read_one in _MACHINES.items()
        for name, each in sorted(objects.of(kind).items())
    ]
    known = {machine.uuid for machine in machines if machine.uuid}
    alone = [machine for machine in _by_uuid(objects) if machine.uuid not in known or machine.uuid is None]
    return Estate(
        machines=tuple(
            structs.replace(each, boot=each.boot if each.boot in boots else None) for each in (*machines, *alone)
        ),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=remark_if(
            objects.of("Secret"), lost("Secrets were not looked into: neither BMC's passwords nor user data")
        ),
    )


# Tinkerbell


def _hardware(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    if at(each, "spec", "networkInterfaces"):
        return _hardware_v1alpha2(name, each)
    interfaces = [mapping(at(interface, "dhcp")) for interface in items(at(each, "spec", "interfaces"))]
    allowed = [
        str(at(interface, "netboot", "allowPXE")) != "false" for interface in items(at(each, "spec", "interfaces"))
    ]
    nics = [
        ImportedNic(
            mac=mac,
            name=words(dhcp.get("iface_name")),
            addresses=_some(address_of(at(dhcp, "ip", "address"), at(dhcp, "ip", "netmask"))),
            boot=may,
        )
        for dhcp, may in zip(interfaces, allowed, strict=True)
        if (mac := mac_of(dhcp.get("mac")))
    ]
    uefi = next((str(dhcp["uefi"]) for dhcp in interfaces if "uefi" in dhcp), None)
    connection = at(objects.spec("Machine", at(each, "spec", "bmcRef", "name")), "connection") or {}
    host = words(connection.get("host"))
    bmc, remarks = bmc_of(
        f"redfish://{host}" if host else None,
        words(at(connection, "authSecretRef", "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )
    if nics and not any(nic.boot for nic in nics):
        remarks += (lost("allowPXE is false on all its interfaces: the server is Parked, which says the same"),)
        nics = [structs.replace(nic, boot=True) for nic in nics]
    data = [key for key in ("userData", "vendorData") if at(each, "spec", key)]
    return ImportedMachine(
        name=name,
        architecture=next(filter(None, (architecture_of(dhcp.get("arch")) for dhcp in interfaces)), None),
        firmware=firmware_of({"true": "uefi", "false": "bios"}.get(uefi or "")),
        nics=tuple(nics),
        bmc=bmc,
        labels=_labels(each),
        boot=name,
        remarks=(
            kept(f"Hardware {name}"),
            *remarks,
            *(lost(f"its {key}: write it as user data of a profile, without secrets") for key in data),
        ),
    )


def _hardware_v1alpha2(name: str, each: _Object) -> ImportedMachine:
    """Return a machine of Tinkerbell's second version: interfaces by MAC address, the BMC in the object itself."""
    spec = mapping(at(each, "spec"))
    nics = []
    for text, interface in sorted(mapping(spec.get("networkInterfaces")).items()):
        if mac := mac_of(text):
            families = (mapping(at(interface, "ipam", family)) for family in ("ipv4", "ipv6"))
            found = (
                address_of(f"{ip['address']}/{ip.get('prefix') or ''}".rstrip("/"))
                for ip in families
                if "address" in ip
            )
            boots = str(at(interface, "netboot", "disabled")) != "true"
            nics.append(ImportedNic(mac=mac, addresses=tuple(filter(None, found)), boot=boots))
    connection = mapping(at(spec, "bmc", "connection"))
    host = words(connection.get("host"))
    bmc, remarks = bmc_of(
        f"redfish://{host}" if host else None,
        words(at(connection, "credentialsRef", "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )
    instance = mapping(spec.get("instance"))
    data = [key for key in ("userdata", "vendordata", "networkConfig") if instance.get(key)]
    variables = sorted(mapping(instance.get("vars")))
    return ImportedMachine(
        name=name,
        architecture=architecture_of(spec.get("arch")),
        firmware=firmware_of(at(spec, "bmc", "bootMode")),
        nics=tuple(nics),
        bmc=bmc,
        labels=_labels(each),
        boot=name if at(spec, "instance", "osie", "kernelURL") else None,
        remarks=(
            kept(f"Hardware {name}"),
            *remarks,
            *(lost(f"its {key}: write it as user data of a profile, without secrets") for key in data),
            *(lost(f"its variable {each}: write it as vars, unless it is a secret") for each in variables),
        ),
    )


# Metal3


def _bare_metal_host(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    spec, seen = mapping(at(each, "spec")), mapping(at(each, "status", "hardware"))
    seen = seen or mapping(objects.spec("HardwareData", name).get("hardware"))
    boots_by = mac_of(spec.get("bootMACAddress"))
    nics = {  # a second row of the same MAC address is its IPv6 address
        mac: ImportedNic(
            mac=mac,
            name=words(nic.get("name")),
            addresses=_some(address_of(nic.get("ip"))),
            boot=boots_by is None or mac == boots_by,
        )
        for nic in items(seen.get("nics"))
        if (mac := mac_of(nic.get("mac")))
    }
    if boots_by is not None and boots_by not in nics:
        nics[boots_by] = ImportedNic(mac=boots_by)
    bmc, remarks = bmc_of(
        words(at(spec, "bmc", "address")),
        words(at(spec, "bmc", "credentialsName")),
        verify=str(at(spec, "bmc", "disableCertificateVerification")) != "true",
    )
    image = words(at(spec, "image", "url")) or ""
    data = [key for key in ("userData", "networkData", "metaData") if spec.get(key)]
    return ImportedMachine(
        name=name,
        serial=words(at(seen, "systemVendor", "serialNumber")),
        architecture=architecture_of(spec.get("architecture") or at(seen, "cpu", "arch")),
        firmware=firmware_of(spec.get("bootMode")),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels=_labels(each),
        remarks=(
            kept(f"BareMetalHost {name}"),
            *remarks,
            *remark_if(
                image, lost(f"image {image.rpartition('@')[2]}, which Ironic's agent writes: gitboot boots installers")
            ),
            *(lost(f"its {key} is in Secret {words(at(spec, key, 'name'))}: write it as user data") for key in data),
        ),
    )


# metal-operator and boot-operator


def _server(name: str, each: _Object, objects: _Objects) -> ImportedMachine:
    spec, status = mapping(at(each, "spec")), mapping(at(each, "status"))
    found = spec.get("systemUUID") or spec.get("uuid")
    uuid = uuid_of(found)
    controller = objects.spec("BMC", words(at(spec, "bmcRef", "name"))) or mapping(at(spec, "bmc"))
    bmc, remarks = _controller(controller, objects, words(spec.get("systemURI")))
    nics = {
        mac: ImportedNic(mac=mac, name=words(nic.get("name")), addresses=_some(address_of(nic.get("ip"))))
        for nic in items(status.get("networkInterfaces"))
        if (mac := mac_of(nic.get("macAddress")))
    }
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=words(status.get("serialNumber")),
        architecture=architecture_of(spec.get("architecture")),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels=_labels(each),
        boot=next(
            (n for n, config in sorted(_configs(objects)) if uuid and uuid_of(config.get("systemUUID")) == uuid), None
        ),
        remarks=(
            kept(f"Server {name}"),
            *remarks,
            *remark_if(found and uuid is None, missing(f"its UUID {found} is none of a board")),
        ),
    )


def _controller(
    controller: _Object, objects: _Objects, system: str | None
) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    # The address of a BMC may be that of an Endpoint.
    endpoint = objects.spec("Endpoint", at(controller, "endpointRef", "name") or at(controller, "endpoint", "name"))
    host = words(at(controller, "access", "ip") or controller.get("address") or endpoint.get("ip"))
    protocol = mapping(at(controller, "protocol"))
    if host is None:
        return None, ()
    port, scheme = words(protocol.get("port")), words(protocol.get("scheme")) or "https"
    return bmc_of(
        f"redfish+{scheme}://{host}{f':{port}' if port else ''}",
        words(at(controller, "bmcSecretRef", "name")),
        system=system,
    )


def _configs(objects: _Objects) -> Iterator[tuple[str, _Object]]:
    for kind in ("IPXEBootConfig", "HTTPBootConfig"):
        for name, each in objects.of(kind).items():
            yield name, mapping(at(each, "spec"))


def _by_uuid(objects: _Objects) -> Iterator[ImportedMachine]:
    # Machines that only a boot configuration names. Network identifiers are IP or MAC addresses.
    for name, spec in sorted(_configs(objects)):
        uuid = uuid_of(spec.get("systemUUID"))
        found = [*_list(spec.get("networkIdentifiers")), *_list(spec.get("systemIPs")), *_list(spec.get("systemIP"))]
        macs = sorted({mac for each in found if (mac := mac_of(each))})
        addresses = tuple(sorted({address for each in found if (address := address_of(each))}))
        yield ImportedMachine(
            name=name,
            uuid=uuid,
            nics=tuple(ImportedNic(mac=mac, addresses=addresses if mac == macs[0] else ()) for mac in macs),
            boot=name,
            remarks=(
                kept(f"boot configuration {name}"),
                *remark_if(not macs, missing(f"its MAC addresses: {name} names {', '.join(addresses) or 'none'}")),
                *remark_if(uuid is None, missing(f"its UUID {words(spec.get('systemUUID'))} is none of a board")),
            ),
        )


def _boots(objects: _Objects) -> Iterator[ImportedBoot]:
    for name, spec in sorted(_configs(objects)):
        image = words(spec.get("image"))
        kernel, initrd, uki = (_url(spec.get(key)) for key in ("kernelURL", "initrdURL", "ukiURL"))
        if kernel or uki:
            yield ImportedBoot(
                name=name,
                kernel=kernel,
                initrds=_some(initrd),
                rootfs=_url(spec.get("squashfsURL")) if kernel else None,
                uki=None if kernel else uki,
                remarks=(
                    *remark_if(spec.get("ignitionSecretRef"), lost("its Ignition is in a Secret")),
                    *remark_if(image, lost(f"image {image}: name its layers with `gitboot artifacts resolve`")),
                ),
            )
    for name, each in sorted(objects.of("Hardware").items()):
        for interface in items(at(each, "spec", "interfaces")):
            osie, base = mapping(at(interface, "netboot", "osie")), words(at(interface, "netboot", "osie", "baseURL"))
            if base and (kernel := words(osie.get("kernel"))):
                initrd = words(osie.get("initrd"))
                yield ImportedBoot(
                    name=name, kernel=f"{base}/{kernel}", initrds=(f"{base}/{initrd}",) if initrd else ()
                )
        if kernel := _url(at(each, "spec", "instance", "osie", "kernelURL")):
            given = filter(None, map(words, sequence(at(each, "spec", "instance", "osie", "kernelParams"))))
            arguments, about = arguments_of(given)
            initrds = _some(_url(at(each, "spec", "instance", "osie", "initrdURL")))
            yield ImportedBoot(name=name, kernel=kernel, initrds=initrds, arguments=arguments, remarks=about)


def _url(value: object) -> str | None:
    """Return a URL. boot-operator also reads one without a scheme."""
    text = words(value)
    return text if text is None or "://" in text else f"http://{text}"


def _some(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if value else []


def _labels(each: _Object) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in mapping(at(each, "metadata", "labels")).items()}


_MACHINES: Final[Mapping[str, Callable[[str, _Object, _Objects], ImportedMachine]]] = {
    "Hardware": _hardware,
    "BareMetalHost": _bare_metal_host,
    "Server": _server,
}
