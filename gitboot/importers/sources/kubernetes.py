"""Kubernetes: read objects of Tinkerbell and Metal3, with helpers for other sources of Kubernetes objects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from gitboot.importers.boot_comparison import list_platform_variables, parse_boot_script
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
    format_host,
    get_nested,
    list_address,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_firmware,
    parse_secure_boot,
    parse_yaml,
    read_mac,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    split_kernel_arguments,
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
        similar = [item for known_key, item in self.get_kind(kind).items() if is_same_key(known_key, key)]
        return self.get_kind(kind).get(key or ("", ""), similar[0] if len(similar) == 1 else None)

    def get_spec(self, kind: str, name: object, namespace: str = "") -> Object:
        """Return the spec of an object, or an empty mapping if there is no object with this name and namespace."""
        named = {key: item for key, item in self.get_kind(kind).items() if key[1] == name}
        only = next(iter(named.values())) if len(named) == 1 else None
        return as_mapping(get_nested(named.get((namespace, str(name)), only), "spec"))


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
            list_kind = (as_text(get_nested(document, "kind")) or "").removesuffix("List")
            items = as_mappings(get_nested(document, "items")) or as_mappings(document) or as_mappings([document])
            for item in items:
                kind = as_text(item.get("kind")) or list_kind
                name = as_text(get_nested(item, "metadata", "name"))
                if kind and name:
                    by_kind.setdefault(kind, {})[_get_namespace(item), name] = item
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
        if len(names) > _MAX_NAMES:
            names[_MAX_NAMES:] = ["…"]
        yield remark_lost(f"the import does not read objects of kind {kind}: {', '.join(names)}")


def read_inventory(files: Texts) -> ImportedInventory:
    """Read Tinkerbell's Hardware and Metal3's BareMetalHosts, with the objects to which they refer."""
    objects = load_objects(files)
    machines, boots = list[ImportedMachine](), list[ImportedBoot]()
    for kind, read_machine in _READERS.items():
        items = objects.list_kind(kind)
        name_counts = Counter(name for (_, name), _ in items)
        for (namespace, name), item in items:
            machine_name = name if name_counts[name] == 1 else f"{namespace}-{name}"
            machine, boot = read_machine(machine_name, item, objects)
            if boot is not None:
                boots.append(boot)
                machine = structs.replace(machine, boot=boot.name)
            machines.append(machine)
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
    hosts = [as_mapping(interface.get("dhcp")) for interface in interfaces]
    reader = NicCollector()
    for interface, dhcp in zip(interfaces, hosts, strict=True):
        reader.add(
            as_text(dhcp.get("mac")),
            name=as_text(dhcp.get("iface_name")),
            addresses=list_address(get_nested(dhcp, "ip", "address"), get_nested(dhcp, "ip", "netmask")),
            boot=str(get_nested(interface, "netboot", "allowPXE")) == "true",  # smee/internal/dhcp/conv.go
        )
    uefi = next((str(dhcp["uefi"]) for dhcp in hosts if "uefi" in dhcp), "")
    machine = objects.get_spec("Machine", get_nested(spec, "bmcRef", "name"), _get_namespace(hardware))
    bmc, bmc_remarks = _read_tinkerbell_bmc(as_mapping(machine.get("connection")), "authSecretRef")
    netboots = (as_mapping(interface.get("netboot")) for interface in interfaces)
    architecture = next(filter(None, (parse_architecture(dhcp.get("arch")) for dhcp in hosts)), None)
    firmware = parse_firmware({"true": "uefi", "false": "bios"}.get(uefi))
    boot, boot_remarks = _read_netboot(
        name,
        [(netboot, as_mapping(netboot.get("osie"))) for netboot in netboots],
        list_platform_variables(architecture, firmware),
    )
    data = [key for key in ("userData", "vendorData") if spec.get(key)]
    if get_nested(spec, "metadata", "instance", "userdata"):
        data.append("metadata.instance.userdata")
    return _build_hardware(
        ImportedMachine(
            name=name,
            architecture=architecture,
            firmware=firmware,
            nics=tuple(reader.nics),
            bmc=bmc,
            labels=read_labels(hardware),
            remarks=(
                *reader.remarks,
                *bmc_remarks,
                *remark_if(
                    # the kind Machine of Cluster API has no connection
                    get_nested(spec, "bmcRef", "name") and not machine.get("connection"),
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
    interfaces = sorted(as_mapping(spec.get("networkInterfaces")).items())
    reader = NicCollector()
    for mac, interface in interfaces:
        addresses = list[str]()
        for family in ("ipv4", "ipv6"):
            ip = as_mapping(get_nested(interface, "ipam", family))
            if as_text(ip.get("address")):
                addresses += list_address(f"{ip['address']}/{ip.get('prefix') or ''}".rstrip("/"))
        boots = str(get_nested(interface, "netboot", "disabled")) != "true"
        reader.add(mac, addresses=tuple(addresses), boot=boots)
    bmc, bmc_remarks = _read_tinkerbell_bmc(as_mapping(get_nested(spec, "bmc", "connection")), "credentialsRef")
    instance = as_mapping(spec.get("instance"))
    osie = as_mapping(instance.get("osie"))
    netboots = [as_mapping(get_nested(interface, "netboot")) for _, interface in interfaces] or [{}]
    architecture, boot_mode = parse_architecture(spec.get("arch")), get_nested(spec, "bmc", "bootMode")
    variables = list_platform_variables(architecture, parse_firmware(boot_mode))
    boot, boot_remarks = _read_netboot(name, [(netboot, osie) for netboot in netboots], variables)
    disabled = get_nested(hardware, "metadata", "annotations", "tinkerbell.org/disabled")
    return _build_hardware(
        ImportedMachine(
            name=name,
            architecture=architecture,
            firmware=parse_firmware(boot_mode),
            secure_boot=parse_secure_boot(boot_mode),
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
    ), structs.replace(boot, architecture=architecture) if boot else None


def _read_tinkerbell_bmc(connection: Object, credentials: str) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    host = as_text(connection.get("host"))
    if host is None:
        return None, ()
    options = as_mapping(connection.get("providerOptions"))
    redfish = as_mapping(options.get("redfish"))
    if others := sorted(key for key in options if key.lower() in ("homeassistant", "intelamt", "rpc")):
        unsupported = (
            f"the BMC {host} was left out, because Tinkerbell uses {' and '.join(others)}: add the BMC by hand"
        )
        return None, (remark_lost(unsupported),)
    port, system = as_text(redfish.get("port")), as_text(redfish.get("systemName"))
    bmc, remarks = parse_bmc(
        f"redfish://{format_host(host)}:{port}" if port else f"redfish://{host}",
        as_text(get_nested(connection, credentials, "name")),
        verify=str(connection.get("insecureTLS")) != "true",
    )
    return bmc, (
        *remarks,
        *remark_if(
            not redfish,
            remark_guessed(
                "the source does not contain the BMC's protocol, so the import wrote Redfish: if the BMC supports only "
                "IPMI, write ipmi://HOST"
            ),
        ),
        *remark_if(
            system,
            remark_missing(
                f"the source contains only the name of the BMC's system, {system}: write its path as `bmc.system`"
            ),
        ),
    )


class _ScriptedBoot(NamedTuple):
    """The files and arguments of a boot, or the reason why the import cannot read the boot."""

    kernel: str | None
    initrds: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    obstacle: str = ""  # only if there is no kernel


def _read_netboot(
    name: str, netboots: list[tuple[Object, Object]], variables: Mapping[str, str]
) -> tuple[ImportedBoot | None, tuple[ImportRemark, ...]]:
    """Return the boot of the first interface with a kernel, or remarks that explain why there is no boot."""
    obstacles = list[str]()
    for netboot, osie in netboots:
        boot = _find_interface_boot(netboot, osie, variables)
        if boot.kernel:
            arguments, remarks = translate_arguments(boot.arguments)
            imported = ImportedBoot(
                name=name, kernel=boot.kernel, initrds=boot.initrds, arguments=arguments, remarks=remarks
            )
            return imported, ()
        obstacles.append(boot.obstacle)
    return None, tuple(remark_lost(f"the boot was not imported, because {each}") for each in dict.fromkeys(obstacles))


def _find_interface_boot(netboot: Object, osie: Object, variables: Mapping[str, str]) -> _ScriptedBoot:
    ipxe = as_mapping(netboot.get("ipxe"))
    if script := as_text(ipxe.get("contents")) or as_text(ipxe.get("script")):
        boot = parse_boot_script(script, "", variables)
        obstacle = "the iPXE script does not contain a kernel"
        if boot.chain:
            obstacle = f"the iPXE script chains to {boot.chain}"
        return _ScriptedBoot(boot.kernel, boot.initrds, boot.arguments, obstacle)
    if url := as_text(ipxe.get("url")):
        return _ScriptedBoot(None, obstacle=f"the import does not fetch the iPXE script at {url}")
    kernel, initrd = _read_osie_urls(osie)
    if kernel:
        arguments = split_kernel_arguments(*map(str, as_list(osie.get("kernelParams"))))
        return _ScriptedBoot(kernel, (initrd,) if initrd else (), tuple(arguments))
    if config := as_text(get_nested(netboot, "pxelinux", "config")):
        return _parse_pxelinux(config)
    if iso := as_text(osie.get("isoURL")) or as_text(osie.get("baseURL")):
        return _ScriptedBoot(None, obstacle=f"the machine boots {iso}")
    return _ScriptedBoot(None, obstacle="the machine boots Smee's default OSIE, which the source does not contain")


def _read_osie_urls(osie: Object) -> tuple[str | None, str | None]:
    """Return the URLs of the kernel and the initrd, which may be names below the base URL."""
    base = (as_text(osie.get("baseURL")) or "").rstrip("/")

    def find_url(key: str) -> str | None:
        name = as_text(osie.get(key))
        return as_text(osie.get(f"{key}URL")) or (f"{base}/{name}" if base and name else None)

    return find_url("kernel"), find_url("initrd")


def _parse_pxelinux(config: str) -> _ScriptedBoot:
    """Return the boot of the first label in a PXELINUX configuration. Its kernel must be a URL."""
    kernel: str | None = None
    initrds, arguments = list[str](), list[str]()
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
            arguments = split_kernel_arguments(rest)
            for argument in arguments:
                if argument.startswith("initrd="):
                    initrds += argument.removeprefix("initrd=").split(",")
    is_url = kernel is not None and re.match(r"https?://", kernel)
    return _ScriptedBoot(
        kernel if is_url else None,
        tuple(initrds),
        tuple(argument for argument in arguments if not argument.startswith("initrd=")),
        obstacle="the PXELINUX configuration does not contain a kernel",
    )


# Metal3


def _read_bare_metal_host(name: str, host: Object, objects: Objects) -> _MachineAndBoot:
    spec = as_mapping(get_nested(host, "spec"))
    hardware_data = objects.get_spec("HardwareData", get_nested(host, "metadata", "name"), _get_namespace(host))
    hardware = as_mapping(get_nested(host, "status", "hardware")) or as_mapping(hardware_data.get("hardware"))
    nics, nic_remarks = _read_host_nics(spec, hardware)
    bmc, bmc_remarks = parse_bmc(
        _complete_bmc_address(as_text(get_nested(spec, "bmc", "address"))),
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
        nics=nics,
        bmc=bmc,
        labels=read_labels(host),
        remarks=(
            remark_kept(f"BareMetalHost {name}"),
            *nic_remarks,
            *bmc_remarks,
            *remark_if(
                not nics and not nic_remarks,
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


def _complete_bmc_address(address: str | None) -> str | None:
    """Add ``ipmi://`` to an address without a scheme, and ``//`` to ``redfish:HOST`` (Metal3, bmc/access.go)."""
    if address is None or "://" in address:
        return address
    has_scheme = re.match(r"[a-z][a-z0-9+.-]*:", address) and not parse_address(address)
    return address.replace(":", "://", 1) if has_scheme else f"ipmi://{address}"


def _read_host_nics(spec: Object, hardware: Object) -> tuple[tuple[ImportedNic, ...], tuple[ImportRemark, ...]]:
    """Return the interfaces of a host, sorted by MAC address. If the host has a boot MAC, only this interface boots."""
    boot_mac, remarks = read_mac(as_text(spec.get("bootMACAddress")), "the boot")
    nics: dict[str, ImportedNic] = {}
    for row in (*as_mappings(hardware.get("nics")), *as_mappings(spec.get("networkInterfaces"))):
        name = as_text(row.get("name"))
        own_addresses, value = list_address(row.get("ip")), as_text(row.get("mac")) or as_text(row.get("macAddress"))
        mac, mac_remarks = read_mac(value, f"interface {name}:", own_addresses)
        remarks += mac_remarks
        if mac:  # a second row with the same MAC address contains the IPv6 address
            known = nics.get(mac, ImportedNic(mac=mac, name=name, boot=boot_mac in (None, mac)))
            addresses = tuple(dict.fromkeys((*known.addresses, *own_addresses)))
            nics[mac] = structs.replace(known, addresses=addresses)
    if boot_mac is not None and boot_mac not in nics:
        nics[boot_mac] = ImportedNic(mac=boot_mac)
    return tuple(nic for _, nic in sorted(nics.items())), remarks


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
