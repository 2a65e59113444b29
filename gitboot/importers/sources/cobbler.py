"""Cobbler 3.3 and 4: read systems, profiles and distros."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gitboot.importers.inventory import (
    ImportedBmc,
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    as_mapping,
    as_text,
    get_nested,
    list_address,
    parse_architecture,
    parse_bmc,
    parse_json_files,
    read_mac,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    split_words,
    translate_arguments,
)
from gitboot.model.scalars import build_document_name
from gitboot.resolve.kernel_arguments import REPEATED, argument_name

_INHERIT: Final = "<<inherit>>"
_REPEATED_NAMES: Final = {argument_name(name) for name in REPEATED}
# the domain that Cobbler passes to Debian's installer if the host name of a system contains no domain
_DOMAIN: Final = "local.lan"
_Objects = Mapping[str, Mapping[str, Any]]


def read_cobbler(files: Texts) -> ImportedInventory:
    """Read ``collections/{distros,profiles,systems}`` of /var/lib/cobbler, and ``network_interfaces`` of Cobbler 4."""
    distros, profiles, systems, images = (
        _index_objects(_read_objects(files, kind)) for kind in ("distros", "profiles", "systems", "images")
    )
    interfaces = _read_objects(files, "network_interfaces")
    # `profiles` contains a profile with a uid twice, but both keys lead to the same object
    boots = {id(profile): _read_boot(str(profile["name"]), profiles, distros) for profile in profiles.values()}
    boots_by_profile = {key: boots[id(profile)] for key, profile in profiles.items()}
    systems_by_name = {str(system["name"]): system for system in systems.values()}
    machines = (
        _read_machine(system, boots_by_profile, images, _list_interfaces(system, interfaces))
        for _, system in sorted(systems_by_name.items())
    )
    system_ids = set(systems_by_name) | {as_text(system.get("uid")) for system in systems_by_name.values()}
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(sorted(boots.values(), key=lambda boot: boot.name)),
        remarks=tuple(
            remark_lost(
                f"interface {each.get('name')} with MAC address {as_text(each.get('mac_address'))} was left out, "
                f"because its system {as_text(each.get('system_uid'))} is not in the source"
            )
            for each in interfaces
            if as_text(each.get("system_uid")) not in system_ids
        ),
    )


def _read_objects(files: Texts, kind: str) -> list[Mapping[str, Any]]:
    items = parse_json_files({path: text for path, text in files.items() if f"/{kind}/" in f"/{path}"})
    return [item for _, item in items if isinstance(item, dict) and as_text(item.get("name"))]


def _index_objects(items: Iterable[Mapping[str, Any]]) -> _Objects:
    """Index objects by name and by uid.

    References in Cobbler 3.3 contain names, and references in Cobbler 4 contain uids.
    """
    listed = list(items)
    by_uid = {uid: item for item in listed if (uid := as_text(item.get("uid")))}
    return by_uid | {str(item["name"]): item for item in listed}


def _list_interfaces(system: Mapping[str, Any], items: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the interfaces of a system by name. Cobbler 4 stores interfaces as separate items."""
    own = {str(name): as_mapping(interface) for name, interface in as_mapping(system.get("interfaces")).items()}
    uids = {as_text(system.get("uid")), str(system["name"])} - {None}
    return own | {str(item["name"]): item for item in items if as_text(item.get("system_uid")) in uids}


def _list_ancestors(name: str, profiles: _Objects) -> Iterator[Mapping[str, Any]]:
    """Yield a profile and its ancestors. The nearest ancestor comes first."""
    seen: set[str] = set()
    while name in profiles and name not in seen:
        seen.add(name)
        yield profiles[name]
        name = str(profiles[name].get("parent") or "")


def _parse_options(value: object) -> dict[str, Any]:
    """Return kernel options by name. Cobbler stores a mapping, but also reads a string."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or value == _INHERIT:
        return {}
    options: dict[str, Any] = {}
    for word in split_words(value):
        name, equals, text = word.partition("=")
        options.setdefault(name, []).append(text if equals else None)
    return options


def _merge_options(levels: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the arguments from all levels. A later level overrides an earlier level. !NAME removes an option."""
    options: dict[str, Any] = {}
    for level in levels:
        options |= {name: value for name, value in level.items() if not name.startswith("!")}
        for name in _list_removed_options(level):
            options.pop(name, None)
    return _format_options(options)


def _list_removed_options(options: Mapping[str, Any]) -> list[str]:
    return sorted(name[1:] for name in options if name.startswith("!") and name != "!")


def _format_options(options: Mapping[str, Any]) -> list[str]:
    return [
        name if value in (None, "", "~") else f"{name}={value}"
        for name, values in options.items()
        for value in (values if isinstance(values, list) else [values])
        if name != _INHERIT
    ]


def _list_added_arguments(distro: Mapping[str, Any], *, installs: bool) -> list[str]:
    """Return the arguments that Cobbler adds for a distro. Arguments with URLs of Cobbler itself are omitted.

    Source: cobbler/tftpgen.py, build_kernel_options.
    """
    breed, version = str(distro.get("breed") or ""), str(distro.get("os_version") or "")
    if breed in ("debian", "ubuntu"):
        installer = ["auto-install/enable=true", "priority=critical", "netcfg/choose_interface=auto"]
        return [*(installer if installs else []), "hostname=${hostname}", f"domain={_DOMAIN}", f"suite={version}"]
    if breed == "redhat" and installs:
        return ["kssendmac" if version in ("rhel4", "rhel5", "rhel6", "fedora16") else "inst.ks.sendmac"]
    return []


def _read_boot(name: str, profiles: _Objects, distros: _Objects) -> ImportedBoot:
    lineage = list(_list_ancestors(name, profiles))
    inherited = (as_text(each.get("distro")) for each in lineage)
    distro = distros.get(next((each for each in inherited if each and each != _INHERIT), ""), {})
    options = _merge_options(_parse_options(each.get("kernel_options")) for each in (distro, *reversed(lineage)))
    autoinstall = _find_template(lineage)
    added = _list_added_arguments(distro, installs=autoinstall != "")
    arguments, argument_remarks = translate_arguments([*options, *added])
    template = autoinstall or "from Cobbler's settings"
    kernel, initrd = (_find_file_url(distro, kind) for kind in ("kernel", "initrd"))
    return ImportedBoot(
        name=name,
        kernel=kernel,
        initrds=(initrd,) if initrd else (),
        arguments=arguments,
        architecture=parse_architecture(distro.get("arch")),
        remarks=(
            remark_kept(f"distro {distro['name']}")
            if distro
            else remark_missing("the distro is not in the source: export the distro, or complete the boot"),
            *remark_if(
                autoinstall != "" and distro.get("breed"),
                remark_lost(
                    f"the template {template} was not translated (Cobbler adds its URL to the kernel arguments)"
                ),
            ),
            *remark_if(
                distro.get("breed") == "suse",
                remark_lost(
                    "Cobbler's argument info= reports installations: use urls.provisioned in the installer instead"
                ),
            ),
            *remark_if(
                kernel and kernel.startswith("assets:"),
                remark_guessed(
                    "the import expects the files under /assets/, in the same layout as Cobbler's /cobbler/"
                ),
            ),
            *argument_remarks,
            *(
                remark_lost(f"the kernel option {option} was left out: add the file to the initrds of the BootImage")
                for option in options
                if option.startswith("initrd=")
            ),
        ),
    )


def _find_template(lineage: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the automatic installation template of a profile, whose ancestors follow it in ``lineage``.

    None means that the profile inherits the template from Cobbler's settings, and "" means no template.
    """
    for profile in lineage:
        template = profile.get("autoinstall")
        if template not in (None, _INHERIT):
            # Cobbler 4 stores either all fields of a template or only the uid of the template.
            return as_text(get_nested(template, "name")) or as_text(template) or ""
    return None


def _find_file_url(distro: Mapping[str, Any], kind: str) -> str | None:
    """Return the URL of the kernel or initrd, or the URL of Cobbler's copy, which is images/DISTRO/FILE."""
    remote, path = as_text(distro.get(f"remote_boot_{kind}")), as_text(distro.get(kind))
    if remote and remote != _INHERIT:
        return remote
    if path and "://" in path:
        return path
    return f"assets:images/{distro['name']}/{path.rpartition('/')[2]}" if path else None


def _read_machine(
    system: Mapping[str, Any],
    boots: Mapping[str, ImportedBoot],
    images: _Objects,
    interfaces: Mapping[str, Mapping[str, Any]],
) -> ImportedMachine:
    name = str(system["name"])
    profile, image = as_text(system.get("profile")), as_text(system.get("image"))
    nics, nic_remarks = _read_nics(interfaces)
    boot = boots.get(profile or "")
    options = _parse_options(system.get("kernel_options"))
    own_options = {name: value for name, value in options.items() if not name.startswith("!")}
    removed_arguments = {*_list_removed_options(options), *_find_replaced_options(own_options, boot)}
    arguments, argument_remarks = translate_arguments(
        [
            *_format_options(own_options),
            *_list_host_name_arguments(as_text(system.get("hostname")), boot),
            *_list_console_arguments(system, boot),
        ]
    )
    bmc, bmc_remarks = _read_bmc(system)
    if profile or not image:
        why = f"the profile {profile} is not in the source: export the profile, or select another boot"
    else:
        file = as_text(get_nested(images, image, "file")) or image
        why = f"the boot was not imported, because the image {file} does not have a kernel"
    return ImportedMachine(
        name=name,
        serial=as_text(system.get("serial_number")),
        architecture=boot.architecture if boot else None,
        nics=nics,
        bmc=bmc,
        boot=boot.name if boot else None,
        arguments=arguments,
        removed_arguments=tuple(sorted(removed_arguments)),
        remarks=(
            remark_kept(f"system {name}"),
            *nic_remarks,
            *remark_if(boot is None, remark_missing(why)),
            *(
                remark_lost(f"the system's field {key} was left out: write its value into the documents")
                for key in ("autoinstall", "autoinstall_meta")
                if system.get(key) not in (None, "", {}, _INHERIT)
            ),
            *argument_remarks,
            *bmc_remarks,
        ),
    )


def _find_replaced_options(own_options: Mapping[str, Any], boot: ImportedBoot | None) -> list[str]:
    """Return the options of a system that replace an option of its profile and that the kernel accepts repeatedly.

    gitboot would otherwise add these options to those of the profile.
    """
    inherited = {argument_name(argument) for argument in boot.arguments} if boot else set()
    return [name for name in own_options if argument_name(name) in inherited & _REPEATED_NAMES]


def _list_host_name_arguments(hostname: str | None, boot: ImportedBoot | None) -> list[str]:
    """Return the kernel arguments with a system's own host name, if Cobbler passes this name to the installer."""
    if hostname in (None, _INHERIT) or boot is None or f"domain={_DOMAIN}" not in boot.arguments:
        return []
    host, _, domain = hostname.partition(".")
    return [f"hostname={host}", *([f"domain={domain}"] if domain else [])]


def _list_console_arguments(system: Mapping[str, Any], boot: ImportedBoot | None) -> list[str]:
    """Return the argument for the serial console.

    Cobbler adds it after all other arguments, and only for x86_64 (cobbler/tftpgen.py).
    """
    device, baud = system.get("serial_device"), system.get("serial_baud_rate")
    if not isinstance(device, int) or not isinstance(baud, int) or (device < 0 and baud < 0):
        return []
    if boot is not None and boot.architecture not in (None, "x86_64"):
        return []
    return [f"console=ttyS{max(device, 0)},{baud if baud > 0 else 115200}"]


def _read_nics(
    interfaces: Mapping[str, Mapping[str, Any]],
) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    nics, remarks = list[ImportedNic](), list[ImportRemark]()
    # the addresses of bonds and bridges, which the import reads before the other interfaces
    master_addresses: dict[str, tuple[str, ...]] = {}
    in_order = sorted(interfaces.items(), key=lambda item: ("slave" in _get_interface_type(item[1]), item[0]))
    for name, interface in in_order:
        interface_type, addresses = _get_interface_type(interface), tuple(_list_addresses(interface))
        if interface_type in ("bmc", "bond", "bridge", "bonded_bridge_slave"):
            if interface_type != "bmc":
                master_addresses[name] = addresses
            if interface_type != "bond":  # the members of a bond get the addresses of the bond
                remarks.append(remark_lost(f"interface {name} was left out, because it is of type {interface_type}"))
            continue
        inherited = master_addresses.get(as_text(interface.get("interface_master")) or "", ())
        addresses = tuple(dict.fromkeys((*addresses, *inherited)))
        mac, rejected = read_mac(as_text(interface.get("mac_address")), f"interface {name}:")
        remarks += rejected
        if mac:
            nics.append(ImportedNic(mac=mac, name=name, addresses=addresses))
        elif not rejected:
            place = f" with {', '.join(addresses)}" if addresses else ""
            text = f"interface {name}{place} has no MAC address: add the address in Cobbler, and import again"
            remarks.append(remark_missing(text))
    used_masters = {as_text(interface.get("interface_master")) for interface in interfaces.values()}
    remarks += [
        remark_lost(f"address {address} was not imported, because the interfaces of {name} have no MAC address")
        for name, addresses in master_addresses.items()
        if name not in used_masters
        for address in addresses
    ]
    return tuple(sorted(nics, key=lambda nic: nic.name or "")), remarks


def _get_interface_type(interface: Mapping[str, Any]) -> str:
    return str(interface.get("interface_type") or "na").lower()


def _list_addresses(interface: Mapping[str, Any]) -> Iterator[str]:
    """Yield the IPv4 and IPv6 addresses of an interface.

    Cobbler 4 stores the fields of each address family in an object, except in items that were migrated from 3.3.
    """
    ipv4, ipv6 = as_mapping(interface.get("ipv4")), as_mapping(interface.get("ipv6"))
    yield from list_address(
        ipv4.get("address") or interface.get("ip_address"), ipv4.get("netmask") or interface.get("netmask")
    )
    prefix = as_text(ipv6.get("prefix")) or as_text(interface.get("ipv6_prefix"))
    for address in list_address(ipv6.get("address") or interface.get("ipv6_address")):
        yield f"{address}/{prefix.lstrip('/')}" if prefix and "/" not in address else address


def _read_bmc(system: Mapping[str, Any]) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    """Read the BMC of a system, without its user and password.

    Cobbler 4 stores the fields in an object, such as power.address.
    """
    power = as_mapping(system.get("power"))
    address, power_type = (as_text(power.get(key) or system.get(f"power_{key}")) for key in ("address", "type"))
    if address is None or address == _INHERIT:
        return None, ()
    host = address.rpartition("@")[2]
    if power_type in ("ipmilan", "ipmilanplus", "ipmitool"):
        address = f"ipmi://{host}"
    elif power_type != "redfish":
        return None, (
            remark_lost(f"the BMC at {host} was left out, because its type is {power_type}: add the BMC by hand"),
        )
    elif "://" not in address:
        address = f"redfish://{address}"
    bmc, remarks = parse_bmc(
        address,
        f"{build_document_name(str(system['name']))}-bmc",
        system=as_text(power.get("id") or system.get("power_id")),
    )
    return bmc, (
        *remarks,
        *remark_if(
            power.get("user") or system.get("power_user") or power.get("password") or system.get("power_pass"),
            remark_lost("power_user and power_pass were left out: store them in the credentials directory"),
        ),
    )
