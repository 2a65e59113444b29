"""Cobbler 3.3 and 4: read distros, profiles, systems and interfaces from Cobbler's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from shlex import split
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
    translate_arguments,
)
from gitboot.model.scalars import build_document_name
from gitboot.resolve.kernel_arguments import REPEATED, argument_name

_INHERIT: Final = "<<inherit>>"
_REPEATED_NAMES: Final = {argument_name(name) for name in REPEATED}
# the domain that Cobbler passes to Debian's installer if the host name of a system contains no domain
_DOMAIN: Final = "local.lan"
_OLD_REDHATS: Final = ("rhel4", "rhel5", "rhel6", "fedora16")
_Objects = Mapping[str, Mapping[str, Any]]


def read(files: Texts) -> ImportedInventory:
    """Read ``collections/{distros,profiles,systems}`` of /var/lib/cobbler, and ``network_interfaces`` of Cobbler 4."""
    distros, profiles, systems, images = (
        _index_objects(_read_objects(files, kind)) for kind in ("distros", "profiles", "systems", "images")
    )
    interfaces = _read_objects(files, "network_interfaces")
    boots = {id(profile): _read_boot(str(profile["name"]), profiles, distros) for profile in profiles.values()}
    of_profile = {key: boots[id(profile)] for key, profile in profiles.items()}
    by_name = {str(system["name"]): system for system in systems.values()}
    machines = (
        _read_machine(system, of_profile, images, _list_interfaces(system, interfaces))
        for _, system in sorted(by_name.items())
    )
    of_systems = {key for system in by_name.values() for key in (as_text(system.get("uid")), str(system["name"]))}
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(sorted(boots.values(), key=lambda boot: boot.name)),
        remarks=tuple(
            remark_lost(
                f"interface {each.get('name')} with MAC address {as_text(each.get('mac_address'))}: its system "
                f"{as_text(each.get('system_uid'))} is not in the source"
            )
            for each in interfaces
            if as_text(each.get("system_uid")) not in of_systems
        ),
    )


def _read_objects(files: Texts, kind: str) -> list[Mapping[str, Any]]:
    of_kind = {path: text for path, text in files.items() if f"/{kind}/" in f"/{path}"}
    return [item for _, item in parse_json_files(of_kind) if isinstance(item, dict) and as_text(item.get("name"))]


def _index_objects(items: Iterable[Mapping[str, Any]]) -> _Objects:
    """Index objects by name and by uid.

    References in Cobbler 3.3 contain names, and references in Cobbler 4 contain uids.
    """
    listed = list(items)
    by_uid = {uid: item for item in listed if (uid := as_text(item.get("uid")))}
    return by_uid | {str(item["name"]): item for item in listed}


def _list_interfaces(system: Mapping[str, Any], items: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the interfaces of a system by name. Cobbler 4 stores interfaces as separate items."""
    own = {str(name): as_mapping(each) for name, each in as_mapping(system.get("interfaces")).items()}
    uids = {as_text(system.get("uid")), str(system["name"])} - {None}
    return own | {str(each["name"]): each for each in items if as_text(each.get("system_uid")) in uids}


def _list_ancestors(name: str, profiles: _Objects) -> Iterator[Mapping[str, Any]]:
    # Return an object and its ancestors. The nearest ancestor comes first.
    seen: set[str] = set()
    while name in profiles and name not in seen:
        seen.add(name)
        yield profiles[name]
        name = str(profiles[name].get("parent") or "")


def _parse_options(value: object) -> dict[str, Any]:
    # Cobbler stores a mapping, but also reads a string.
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or value == _INHERIT:
        return {}
    found: dict[str, Any] = {}
    for name, equals, each in (word.partition("=") for word in split(value)):
        found.setdefault(name, []).append(each if equals else None)
    return found


def _merge_options(levels: Iterable[Mapping[str, Any]]) -> list[str]:
    # A later level overrides an earlier one. !NAME removes an option.
    found: dict[str, Any] = {}
    for level in levels:
        found |= {name: value for name, value in level.items() if not name.startswith("!")}
        for name in _list_removed_options(level):
            found.pop(name, None)
    return _format_options(found)


def _list_removed_options(options: Mapping[str, Any]) -> list[str]:
    return sorted(name[1:] for name in options if name.startswith("!") and name != "!")


def _format_options(options: Mapping[str, Any]) -> list[str]:
    found = []
    for name, each in options.items():
        values = each if isinstance(each, list) else [each]
        found += [name if one in (None, "", "~") else f"{name}={one}" for one in values if name != _INHERIT]
    return found


def _list_added_arguments(distro: Mapping[str, Any], *, installs: bool) -> list[str]:
    """Return the arguments that Cobbler adds for a distro. Arguments with URLs of Cobbler itself are omitted.

    Source: cobbler/tftpgen.py, build_kernel_options.
    """
    breed, version = str(distro.get("breed") or ""), str(distro.get("os_version") or "")
    if breed in ("debian", "ubuntu"):
        installer_arguments = (
            ["auto-install/enable=true", "priority=critical", "netcfg/choose_interface=auto"] if installs else []
        )
        return [*installer_arguments, "hostname=${hostname}", f"domain={_DOMAIN}", f"suite={version}"]
    if breed == "redhat" and installs:
        return ["kssendmac" if version in _OLD_REDHATS else "inst.ks.sendmac"]
    return []


def _read_boot(name: str, profiles: _Objects, distros: _Objects) -> ImportedBoot:
    lineage = list(_list_ancestors(name, profiles))
    inherited = (as_text(each.get("distro")) for each in lineage)
    distro = distros.get(next((each for each in inherited if each and each != _INHERIT), ""), {})
    options = _merge_options(_parse_options(each.get("kernel_options")) for each in (distro, *reversed(lineage)))
    # Without a value, a profile inherits the template from Cobbler's settings; "" means no template.
    autoinstall = next(
        (_name_template(each["autoinstall"]) for each in lineage if each.get("autoinstall") not in (None, _INHERIT)),
        None,
    )
    arguments, more = translate_arguments([*options, *_list_added_arguments(distro, installs=autoinstall != "")])
    template = autoinstall or "of Cobbler's settings"
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
            else remark_missing("the distro is not in the source: export it, or complete the boot"),
            *remark_if(
                autoinstall != "" and distro.get("breed"),
                remark_lost(
                    f"the template {template} was not translated. Cobbler adds the kernel argument with its URL"
                ),
            ),
            *remark_if(
                distro.get("breed") == "suse",
                remark_lost("info= reports an installation to Cobbler: use urls.provisioned in the installer"),
            ),
            *remark_if(
                kernel and kernel.startswith("assets:"),
                remark_guessed("the files are below /assets/, in the same layout as below /cobbler/ in Cobbler"),
            ),
            *more,
        ),
    )


def _name_template(value: object) -> str:
    # Cobbler 4 stores either all fields of a template or only the uid of the template.
    return as_text(get_nested(value, "name")) or as_text(value) or ""


def _find_file_url(distro: Mapping[str, Any], kind: str) -> str | None:
    # Return the URL of the file, or the URL of Cobbler's copy, which is images/DISTRO/FILE.
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
    name, profile, image = str(system["name"]), as_text(system.get("profile")), as_text(system.get("image"))
    nics, ignored = _read_nics(interfaces)
    boot = boots.get(profile or "")
    options = _parse_options(system.get("kernel_options"))
    own_options = {name: value for name, value in options.items() if not name.startswith("!")}
    # A system's own option replaces the option of its profile, but gitboot would add it if the kernel accepts the
    # option more than once.
    inherited = {argument_name(each) for each in boot.arguments} if boot else set()
    replaced = [name for name in own_options if argument_name(name) in inherited & _REPEATED_NAMES]
    arguments, secret = translate_arguments(
        [
            *_format_options(own_options),
            *_list_host_name_arguments(as_text(system.get("hostname")), boot),
            *_list_console_arguments(system, boot),
        ]
    )
    bmc, more = _read_bmc(system)
    own_templates = [
        key for key in ("autoinstall", "autoinstall_meta") if system.get(key) not in (None, "", {}, _INHERIT)
    ]
    if profile or not image:
        why = f"the profile {profile}, which is not in the source"
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
        removed_arguments=tuple(sorted({*_list_removed_options(options), *replaced})),
        remarks=(
            remark_kept(f"system {name}"),
            *ignored,
            *remark_if(boot is None, remark_missing(why)),
            *(remark_lost(f"the {key} of the system was left out: write it in the documents") for key in own_templates),
            *secret,
            *more,
        ),
    )


def _list_host_name_arguments(hostname: str | None, boot: ImportedBoot | None) -> list[str]:
    """Return the kernel arguments with a system's own host name, if Cobbler passes this name to the installer."""
    if hostname in (None, _INHERIT) or boot is None or f"domain={_DOMAIN}" not in boot.arguments:
        return []
    host, _, domain = hostname.partition(".")
    return [f"hostname={host}", *([f"domain={domain}"] if domain else [])]


def _list_console_arguments(system: Mapping[str, Any], boot: ImportedBoot | None) -> list[str]:
    # Cobbler adds the serial console after all other arguments, and only for x86_64 (cobbler/tftpgen.py).
    device, baud = system.get("serial_device"), system.get("serial_baud_rate")
    if not isinstance(device, int) or not isinstance(baud, int) or (device < 0 and baud < 0):
        return []
    if boot is not None and boot.architecture not in (None, "x86_64"):
        return []
    return [f"console=ttyS{max(device, 0)},{baud if baud > 0 else 115200}"]


def _read_nics(
    interfaces: Mapping[str, Mapping[str, Any]],
) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    nics, remarks = [], list[ImportRemark]()
    # the addresses of bonds and bridges, which the import reads before the other interfaces
    masters: dict[str, tuple[str, ...]] = {}
    for name, each in sorted(interfaces.items(), key=lambda item: ("slave" in _get_kind(item[1]), item[0])):
        kind, addresses = _get_kind(each), tuple(_list_addresses(each))
        if kind in ("bmc", "bond", "bridge", "bonded_bridge_slave"):
            if kind != "bmc":
                masters[name] = addresses
            if kind != "bond":  # the members of a bond get the addresses of the bond
                remarks.append(remark_lost(f"interface {name} was left out, because it is of type {kind}"))
            continue
        addresses = tuple(dict.fromkeys((*addresses, *masters.get(as_text(each.get("interface_master")) or "", ()))))
        mac, rejected = read_mac(as_text(each.get("mac_address")), f"interface {name}:")
        remarks += rejected
        if mac:
            nics.append(ImportedNic(mac=mac, name=name, addresses=addresses))
        elif not rejected:
            remarks.append(remark_missing(f"interface {name} has no MAC address: add it in Cobbler, and import again"))
    remarks += [
        remark_lost(f"address {address} of {name} was not imported, because its interfaces have no MAC address")
        for name, addresses in masters.items()
        if name not in {as_text(each.get("interface_master")) for each in interfaces.values()}
        for address in addresses
    ]
    return tuple(sorted(nics, key=lambda nic: nic.name or "")), remarks


def _get_kind(interface: Mapping[str, Any]) -> str:
    return str(interface.get("interface_type") or "na").lower()


def _list_addresses(interface: Mapping[str, Any]) -> Iterator[str]:
    # Cobbler 4 stores the fields of each address family in an object, except in items that were migrated from 3.3.
    four, six = as_mapping(interface.get("ipv4")), as_mapping(interface.get("ipv6"))
    yield from list_address(
        four.get("address") or interface.get("ip_address"), four.get("netmask") or interface.get("netmask")
    )
    prefix = as_text(six.get("prefix")) or as_text(interface.get("ipv6_prefix"))
    for found in list_address(six.get("address") or interface.get("ipv6_address")):
        yield f"{found}/{prefix.lstrip('/')}" if prefix and "/" not in found else found


def _read_bmc(system: Mapping[str, Any]) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    # The user and password are left out. Cobbler 4 stores these fields in an object, such as power.address.
    power = as_mapping(system.get("power"))
    fields = {key: power.get(key) or system.get(f"power_{key}") for key in ("address", "type", "user")}
    address, kind = as_text(fields["address"]), as_text(fields["type"])
    if address is None or address == _INHERIT:
        return None, ()
    if kind in ("ipmilan", "ipmilanplus", "ipmitool"):
        address = f"ipmi://{address.rpartition('@')[2]}"
    elif kind != "redfish":
        return None, (
            remark_lost(f"the power management is {kind} at {address.rpartition('@')[2]}: add the BMC by hand"),
        )
    scheme = "" if "://" in address else "redfish://"
    bmc, remarks = parse_bmc(f"{scheme}{address}", f"{build_document_name(str(system['name']))}-bmc")
    has_secret = fields["user"] or power.get("password") or system.get("power_pass")
    left_out = remark_lost("power_user and power_pass were left out: store them in the directory of credentials")
    return bmc, (*remarks, *remark_if(has_secret, left_out))
