"""Kubernetes: read objects of Tinkerbell and Metal3, with helpers for other sources of Kubernetes objects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.importers.boot_comparison import parse_boot_script
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
    list_address,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_secure_boot,
    parse_yaml,
    read_mac,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    translate_arguments,
)

Object = Mapping[str, Any]
Key = tuple[str, str]  # the namespace and the name of an object; the namespace of a cluster-wide object is ""


class Objects(Struct, frozen=True):
    """The Kubernetes objects of a source."""

    by_kind: Mapping[str, Mapping[Key, Object]]

    def get_kind(self, kind: str) -> Mapping[Key, Object]:
        return self.by_kind.get(kind, {})

    def list_kind(self, kind: str) -> list[tuple[Key, Object]]:
        """Return the objects of a kind, sorted by name."""
        return sorted(self.get_kind(kind).items(), key=lambda item: (item[0][1], item[0][0]))

    def find(self, kind: str, key: Key | None) -> Object | None:
        """Return the object with this key, or None.

        The namespace may be missing in the file, because a person may have written it.
        """
        found = [each for known_key, each in self.get_kind(kind).items() if is_same_key(known_key, key)]
        return self.get_kind(kind).get(key or ("", ""), found[0] if len(found) == 1 else None)

    def get_spec(self, kind: str, name: object, namespace: str = "") -> Object:
        """Return the spec of an object, or an empty mapping if there is no object with this name and namespace."""
        found = {key: each for key, each in self.get_kind(kind).items() if key[1] == name}
        only = next(iter(found.values())) if len(found) == 1 else None
        return as_mapping(get_nested(found.get((namespace, str(name)), only), "spec"))


def is_same_key(one: Key | None, other: Key | None) -> bool:
    """Return whether two keys may mean the same object.

    The names must be equal and, if both are known, the namespaces too.
    """
    if one is None or other is None:
        return False
    return one[1] == other[1] and (one[0] == other[0] or not one[0] or not other[0])


def load_objects(files: Texts) -> Objects:
    """Load the Kubernetes objects in YAML or JSON files.

    A file may contain documents, lists of documents, and Kubernetes lists.
    """
    by_kind: dict[str, dict[Key, Object]] = {}
    for path, text in sorted(files.items()):
        for document in parse_yaml(path, text):
            for each in as_mappings(get_nested(document, "items")) or as_mappings(document) or as_mappings([document]):
                kind = as_text(each.get("kind")) or (as_text(get_nested(document, "kind")) or "").removesuffix("List")
                name = as_text(get_nested(each, "metadata", "name"))
                if kind and name:
                    by_kind.setdefault(kind, {})[_get_namespace(each), name] = each
    return Objects(by_kind)


_MAX_NAMES: Final = 5  # the maximum number of objects of a kind that a remark lists


def remark_other_kinds(objects: Objects, read_kinds: Collection[str]) -> Iterator[ImportRemark]:
    """Yield a remark if there are Secrets, and a remark for each other kind that the import does not read."""
    yield from remark_if(
        objects.get_kind("Secret"),
        remark_lost("the import does not read Secrets, so BMC passwords and user data are missing"),
    )
    for kind in sorted(objects.by_kind.keys() - {*read_kinds, "Secret"}):
        names = sorted(key[1] for key in objects.get_kind(kind))
        shown = [*names[:_MAX_NAMES], "…"] if len(names) > _MAX_NAMES else names
        yield remark_lost(f"the import does not read objects of kind {kind}: {', '.join(shown)}")


def read_inventory(files: Texts) -> ImportedInventory:
    """Read Tinkerbell's Hardware and Metal3's BareMetalHosts, with the objects to which they refer."""
    objects = load_objects(files)
    machines, boots = list[ImportedMachine](), list[ImportedBoot]()
    for kind, read_one in _READERS.items():
        found = objects.list_kind(kind)
        repeated = Counter(name for (_, name), _ in found)
        for (namespace, name), each in found:
            machine_name = name if repeated[name] == 1 else f"{namespace}-{name}"
            machine, boot = read_one(machine_name, each, objects)
            machines.append(structs.replace(machine, boot=boot.name if boot else None))
            boots += [boot] if boot else []
    known = {machine.name for machine in machines}
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(sorted(boots, key=lambda boot: boot.name)),
        remarks=(
            *remark_other_kinds(objects, (*_READERS, "Machine", "HardwareData")),
            *(
                remark_lost(f"HardwareData {name} was left out, because its BareMetalHost is not in the source")
                for (_, name), _ in objects.list_kind("HardwareData")
                if name not in known
            ),
        ),
    )


_MachineAndBoot = tuple[ImportedMachine, ImportedBoot | None]


# Tinkerbell

_USER_DATA: Final = (
    "the {} was left out (Tinkerbell's metadata service sends it to the installed system): write it as a profile's "
    "user data, without secrets"
)


def _read_hardware(name: str, hardware: Object, objects: Objects) -> _MachineAndBoot:
    spec = as_mapping(get_nested(hardware, "spec"))
    if (as_text(hardware.get("apiVersion")) or "").rpartition("/")[2] == "v1alpha2" or spec.get("networkInterfaces"):
        return _read_hardware_v1alpha2(name, hardware, spec)
    interfaces = as_mappings(spec.get("interfaces"))
    hosts, reader = [as_mapping(interface.get("dhcp")) for interface in interfaces], NicCollector()
    for interface, dhcp in zip(interfaces, hosts, strict=True):
        reader.add(
            as_text(dhcp.get("mac")),
            name=as_text(dhcp.get("iface_name")),
            addresses=list_address(get_nested(dhcp, "ip", "address"), get_nested(dhcp, "ip", "netmask")),
            boot=str(get_nested(interface, "netboot", "allowPXE")) != "false",
        )
    uefi = next((str(dhcp["uefi"]) for dhcp in hosts if "uefi" in dhcp), "")
    machine = objects.get_spec("Machine", get_nested(spec, "bmcRef", "name"), _get_namespace(hardware))
    bmc, bmc_remarks = _read_tinkerbell_bmc(as_mapping(machine.get("connection")), "authSecretRef")
    netboots = (as_mapping(interface.get("netboot")) for interface in interfaces)
    boot, boot_remarks = _read_netboot(name, [(netboot, as_mapping(netboot.get("osie"))) for netboot in netboots])
    data = [key for key in ("userData", "vendorData") if spec.get(key)]
    data += ["metadata.instance.userdata"] if get_nested(spec, "metadata", "instance", "userdata") else []
    architecture = next(filter(None, (parse_architecture(dhcp.get("arch")) for dhcp in hosts)), None)
    return _build_hardware(
        ImportedMachine(
            name=name,
            architecture=architecture,
            firmware=parse_firmware({"true": "uefi", "false": "bios"}.get(uefi)),
            nics=tuple(reader.nics),
            bmc=bmc,
            labels=read_labels(hardware),
            remarks=(
                *reader.remarks,
                *bmc_remarks,
                *remark_if(
                    get_nested(spec, "bmcRef", "name") and not machine,
                    remark_lost(
                        "the BMC was not imported, because Machine "
                        f"{get_nested(spec, 'bmcRef', 'name')} is not in the source"
                    ),
                ),
                *boot_remarks,
                *(remark_lost(_USER_DATA.format(key)) for key in data),
            ),
        ),
        "allowPXE: false",
    ), structs.replace(boot, architecture=architecture) if boot else None


def _build_hardware(machine: ImportedMachine, setting: str) -> ImportedMachine:
    remarks = (remark_kept(f"Hardware {machine.name}"), *machine.remarks)
    if not machine.nics or any(nic.boot for nic in machine.nics):
        return structs.replace(machine, remarks=remarks)
    lost = f"{setting} on all interfaces was left out, because a Parked server does not boot from the network anyway"
    return structs.replace(
        machine,
        nics=tuple(structs.replace(nic, boot=True) for nic in machine.nics),
        remarks=(*remarks, remark_lost(lost)),
    )


def _read_hardware_v1alpha2(name: str, hardware: Object, spec: Object) -> _MachineAndBoot:
    """Read v1alpha2 Hardware, which lists its interfaces by MAC address and contains the BMC itself."""
    reader, interfaces = NicCollector(), sorted(as_mapping(spec.get("networkInterfaces")).items())
    for text, interface in interfaces:
        families = (as_mapping(get_nested(interface, "ipam", family)) for family in ("ipv4", "ipv6"))
        found = tuple(
            address
            for ip in families
            if as_text(ip.get("address"))
            for address in list_address(f"{ip['address']}/{ip.get('prefix') or ''}".rstrip("/"))
        )
        reader.add(text, addresses=found, boot=str(get_nested(interface, "netboot", "disabled")) != "true")
    bmc, bmc_remarks = _read_tinkerbell_bmc(as_mapping(get_nested(spec, "bmc", "connection")), "credentialsRef")
    instance = as_mapping(spec.get("instance"))
    osie = as_mapping(instance.get("osie"))
    netboots = [as_mapping(get_nested(interface, "netboot")) for _, interface in interfaces] or [{}]
    boot, boot_remarks = _read_netboot(name, [(netboot, osie) for netboot in netboots])
    disabled = get_nested(hardware, "metadata", "annotations", "tinkerbell.org/disabled")
    return _build_hardware(
        ImportedMachine(
            name=name,
            architecture=parse_architecture(spec.get("arch")),
            firmware=parse_firmware(get_nested(spec, "bmc", "bootMode")),
            secure_boot=parse_secure_boot(get_nested(spec, "bmc", "bootMode")),
            nics=tuple(reader.nics),
            bmc=bmc,
            labels=read_labels(hardware),
            remarks=(
                *reader.remarks,
                *bmc_remarks,
                *boot_remarks,
                *remark_if(disabled, remark_lost(f"the machine is disabled: {disabled}")),
                *(
                    remark_lost(_USER_DATA.format(key))
                    for key in ("userdata", "vendordata", "networkConfig", "metadata")
                    if instance.get(key)
                ),
                *(
                    remark_lost(f"the variable {key} was left out: write it in `vars`, unless it is a secret")
                    for key in sorted(as_mapping(instance.get("vars")))
                ),
            ),
        ),
        "netboot.disabled",
    ), structs.replace(boot, architecture=parse_architecture(spec.get("arch"))) if boot else None


def _read_tinkerbell_bmc(connection: Object, credentials: str) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    host, port = as_text(connection.get("host")), as_text(get_nested(connection, "providerOptions", "redfish", "port"))
    return parse_bmc(
        f"redfish://{host}{f':{port}' if port else ''}" if host else None,
        as_text(get_nested(connection, credentials, "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )


def _read_netboot(
    name: str, netboots: list[tuple[Object, Object]]
) -> tuple[ImportedBoot | None, tuple[ImportRemark, ...]]:
    reasons = list[str]()
    for netboot, osie in netboots:
        ipxe = as_mapping(netboot.get("ipxe"))
        script = as_text(ipxe.get("contents")) or as_text(ipxe.get("script"))
        url, config = as_text(ipxe.get("url")), as_text(get_nested(netboot, "pxelinux", "config"))
        kernel, initrd = _read_osie_urls(osie)
        arguments = [str(each) for each in as_list(osie.get("kernelParams"))]
        initrds: tuple[str, ...] = (initrd,) if initrd else ()
        if script:
            found = parse_boot_script(script, "", {})
            kernel, initrds, arguments = found.kernel, found.initrds, list(found.arguments)
            no_kernel = "the iPXE script does not contain a kernel"
            reasons += [] if kernel else [f"the iPXE script chains to {found.chain}" if found.chain else no_kernel]
        elif url:
            kernel = None
            reasons.append(f"the import does not fetch the iPXE script at {url}")
        elif config and not kernel:
            kernel, initrds, arguments = _parse_pxelinux(config)
            reasons += [] if kernel else ["the PXELINUX configuration does not contain a kernel"]
        elif not kernel:
            iso = as_text(osie.get("isoURL")) or as_text(osie.get("baseURL"))
            reasons.append(
                f"the machine boots {iso}"
                if iso
                else "the machine boots Smee's default OSIE, which the source does not contain"
            )
        if kernel:
            translated, remarks = translate_arguments(arguments)
            return ImportedBoot(name=name, kernel=kernel, initrds=initrds, arguments=translated, remarks=remarks), ()
    return None, tuple(remark_lost(f"the boot was not imported, because {reason}") for reason in dict.fromkeys(reasons))


def _read_osie_urls(osie: Object) -> tuple[str | None, str | None]:
    base = (as_text(osie.get("baseURL")) or "").rstrip("/")
    kernel, initrd = (
        as_text(osie.get(f"{key}URL")) or (f"{base}/{name}" if base and (name := as_text(osie.get(key))) else None)
        for key in ("kernel", "initrd")
    )
    return kernel, initrd


def _parse_pxelinux(config: str) -> tuple[str | None, tuple[str, ...], list[str]]:
    """Return the kernel, the initrds and the arguments of the first label in a PXELINUX configuration."""
    kernel, initrds, arguments = None, list[str](), list[str]()
    for line in config.splitlines():
        word, _, rest = line.strip().partition(" ")
        key, rest = word.upper(), rest.strip()
        if key in ("KERNEL", "LINUX") and kernel is None:
            kernel = rest
        elif key == "LABEL" and kernel is not None:
            break
        elif key == "INITRD":
            initrds += rest.split(",")
        elif key == "APPEND":
            arguments = rest.split()
            initrds += [each for found in arguments if found.startswith("initrd=") for each in found[7:].split(",")]
    is_url = kernel is not None and re.match(r"https?://", kernel)
    return (kernel if is_url else None), tuple(initrds), [each for each in arguments if not each.startswith("initrd=")]


# Metal3


def _read_bare_metal_host(name: str, host: Object, objects: Objects) -> _MachineAndBoot:
    spec, hardware = as_mapping(get_nested(host, "spec")), as_mapping(get_nested(host, "status", "hardware"))
    data_name, namespace = get_nested(host, "metadata", "name"), _get_namespace(host)
    hardware = hardware or as_mapping(objects.get_spec("HardwareData", data_name, namespace).get("hardware"))
    boot_mac, remarks = read_mac(as_text(spec.get("bootMACAddress")), "the boot")
    nics: dict[str, ImportedNic] = {}
    for nic in (*as_mappings(hardware.get("nics")), *as_mappings(spec.get("networkInterfaces"))):
        nic_name = as_text(nic.get("name"))
        mac, mac_remarks = read_mac(as_text(nic.get("mac")) or as_text(nic.get("macAddress")), f"interface {nic_name}:")
        remarks += mac_remarks
        if mac:  # a second row with the same MAC address contains the IPv6 address
            known = nics.get(mac, ImportedNic(mac=mac, name=nic_name, boot=boot_mac in (None, mac)))
            nics[mac] = structs.replace(
                known, addresses=tuple(dict.fromkeys((*known.addresses, *list_address(nic.get("ip")))))
            )
    if boot_mac is not None and boot_mac not in nics:
        nics[boot_mac] = ImportedNic(mac=boot_mac)
    bmc, bmc_remarks = parse_bmc(
        as_text(get_nested(spec, "bmc", "address")),
        as_text(get_nested(spec, "bmc", "credentialsName")),
        verify=str(get_nested(spec, "bmc", "disableCertificateVerification")) != "true",
    )
    data = [key for key in ("userData", "networkData", "metaData") if spec.get(key)]
    machine = ImportedMachine(
        name=name,
        serial=as_text(get_nested(hardware, "systemVendor", "serialNumber")),
        architecture=parse_architecture(spec.get("architecture") or get_nested(hardware, "cpu", "arch")),
        firmware=parse_firmware(spec.get("bootMode")),
        secure_boot=parse_secure_boot(spec.get("bootMode")),
        nics=tuple(nic for _, nic in sorted(nics.items())),
        bmc=bmc,
        labels=read_labels(host),
        remarks=(
            remark_kept(f"BareMetalHost {name}"),
            *remarks,
            *bmc_remarks,
            *remark_if(
                not nics and not remarks,
                remark_missing(
                    "the source does not contain the MAC addresses: set bootMACAddress, or export the HardwareData "
                    "or the status"
                ),
            ),
            remark_lost(f"the boot was not imported, because {_describe_image(spec)}"),
            *(
                remark_lost(
                    f"the {key} is in the Secret {as_text(get_nested(spec, key, 'name'))}: write it as user data"
                )
                for key in data
            ),
        ),
    )
    return machine, None


def _describe_image(spec: Object) -> str:
    image = (as_text(get_nested(spec, "image", "url")) or "").rpartition("@")[2]
    if image and as_text(get_nested(spec, "image", "format")) == "live-iso":
        return f"the BMC mounts the ISO {image}: write a BootImage with an iso"
    if image:
        return f"Ironic's agent writes the image {image}, but gitboot boots installers"
    if method := as_text(get_nested(spec, "customDeploy", "method")):
        return f"Ironic's agent runs the custom deploy method {method}, but gitboot boots installers"
    if str(spec.get("externallyProvisioned")) == "true":
        return "the host is provisioned externally, so Metal3 does not boot it"
    return "the host has no image, so Metal3 boots only Ironic's agent"


# Parts of all objects


def read_labels(item: Object) -> Mapping[str, str]:
    """Return the labels in an object's metadata, as text."""
    return {str(key): str(value) for key, value in as_mapping(get_nested(item, "metadata", "labels")).items()}


def _get_namespace(item: Object) -> str:
    return as_text(get_nested(item, "metadata", "namespace")) or ""


_READERS: Final[Mapping[str, Callable[[str, Object, Objects], _MachineAndBoot]]] = {
    "Hardware": _read_hardware,
    "BareMetalHost": _read_bare_metal_host,
}
