"""Cobbler 3.3: distros, profiles and systems from its files."""

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
    build_document_name,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_json_files,
    parse_mac_or_none,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    translate_arguments,
)

_INHERIT: Final = "<<inherit>>"
_DOMAIN: Final = "local.lan"  # for Debian's installer, if a system's host name has no domain
_OLD_REDHATS: Final = ("rhel4", "rhel5", "rhel6", "fedora16")
_Objects = Mapping[str, Mapping[str, Any]]


def read(files: Texts) -> ImportedInventory:
    """Read ``collections/{distros,profiles,systems}`` of /var/lib/cobbler."""
    distros, profiles, systems = (_read_objects(files, kind) for kind in ("distros", "profiles", "systems"))
    boots = {name: _read_boot(name, profiles, distros) for name in sorted(profiles)}
    machines = (_read_machine(system, boots) for _, system in sorted(systems.items()))
    return ImportedInventory(machines=tuple(machines), boots=tuple(boots.values()))


def _read_objects(files: Texts, kind: str) -> _Objects:
    of_kind = {path: text for path, text in files.items() if f"/{kind}/" in f"/{path}"}
    return {
        str(item["name"]): item
        for _, item in parse_json_files(of_kind)
        if isinstance(item, dict) and as_text(item.get("name"))
    }


def _list_ancestors(name: str, profiles: _Objects) -> Iterator[Mapping[str, Any]]:
    # Nearest first.
    seen: set[str] = set()
    while name in profiles and name not in seen:
        seen.add(name)
        yield profiles[name]
        name = str(profiles[name].get("parent") or "")


def _parse_options(value: object) -> dict[str, Any]:
    # Cobbler stores a mapping, and also reads a line.
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or value == _INHERIT:
        return {}
    found: dict[str, Any] = {}
    for name, equals, each in (word.partition("=") for word in split(value)):
        found.setdefault(name, []).append(each if equals else None)
    return found


def _merge_options(levels: Iterable[Mapping[str, Any]]) -> list[str]:
    # A later level wins. !NAME removes an option.
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
    """Return what Cobbler adds for such a distro (cobbler/tftpgen.py, build_kernel_options), without its own URLs."""
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
    # Without a value, a profile inherits the template of Cobbler's settings; "" means no template.
    autoinstall = next(
        (each["autoinstall"] for each in lineage if each.get("autoinstall") not in (None, _INHERIT)), None
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
            else remark_missing("its distro, which is not in the source"),
            *remark_if(
                autoinstall != "" and distro.get("breed"),
                remark_lost(f"its template {template} is not translated; Cobbler adds the argument that leads to it"),
            ),
            *remark_if(
                distro.get("breed") == "suse",
                remark_lost("info=, which reports an installation to Cobbler: use urls.provisioned in the installer"),
            ),
            *remark_if(
                kernel and kernel.startswith("assets:"),
                remark_guessed("its files are below /assets/, in the same layout as below /cobbler/ in Cobbler"),
            ),
            *more,
        ),
    )


def _find_file_url(distro: Mapping[str, Any], kind: str) -> str | None:
    # Its own URL, or that of Cobbler's copy: images/DISTRO/FILE.
    remote, path = as_text(distro.get(f"remote_boot_{kind}")), as_text(distro.get(kind))
    if remote and remote != _INHERIT:
        return remote
    if path and "://" in path:
        return path
    return f"assets:images/{distro['name']}/{path.rpartition('/')[2]}" if path else None


def _read_machine(system: Mapping[str, Any], boots: Mapping[str, ImportedBoot]) -> ImportedMachine:
    name, profile = str(system["name"]), as_text(system.get("profile"))
    nics, ignored = _read_nics(as_mapping(system.get("interfaces")))
    boot = boots.get(profile or "")
    options = _parse_options(system.get("kernel_options"))
    own_options = {name: value for name, value in options.items() if not name.startswith("!")}
    arguments, secret = translate_arguments(
        [
            *_format_options(own_options),
            *_list_host_name_arguments(as_text(system.get("hostname")), boot),
            *_list_console_arguments(system),
        ]
    )
    bmc, more = _read_bmc(system)
    own_templates = [
        key for key in ("autoinstall", "autoinstall_meta") if system.get(key) not in (None, "", {}, _INHERIT)
    ]
    return ImportedMachine(
        name=name,
        serial=as_text(system.get("serial_number")),
        architecture=boot.architecture if boot else None,
        nics=nics,
        bmc=bmc,
        boot=boot.name if boot else None,
        arguments=arguments,
        removed_arguments=tuple(_list_removed_options(options)),
        remarks=(
            remark_kept(f"system {name}"),
            *ignored,
            *remark_if(boot is None, remark_missing(f"its profile {profile}, which is not in the source")),
            *(remark_lost(f"{key} of its own") for key in own_templates),
            *secret,
            *more,
        ),
    )


def _list_host_name_arguments(hostname: str | None, boot: ImportedBoot | None) -> list[str]:
    """Return the arguments of a system's own host name, if Cobbler passes one to the installer."""
    if hostname in (None, _INHERIT) or boot is None or f"domain={_DOMAIN}" not in boot.arguments:
        return []
    host, _, domain = hostname.partition(".")
    return [f"hostname={host}", *([f"domain={domain}"] if domain else [])]


def _list_console_arguments(system: Mapping[str, Any]) -> list[str]:
    device, baud = system.get("serial_device"), system.get("serial_baud_rate")
    if not isinstance(device, int) or not isinstance(baud, int) or (device < 0 and baud < 0):
        return []
    return [f"console=ttyS{max(device, 0)},{baud if baud > 0 else 115200}"]


def _read_nics(interfaces: Mapping[str, Any]) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    nics, remarks = [], []
    addresses = {name: _read_address(as_mapping(found)) for name, found in interfaces.items()}
    masters = {str(as_mapping(found).get("interface_master")) for found in interfaces.values()}
    for name, found in sorted(interfaces.items()):
        each = as_mapping(found)
        kind = str(each.get("interface_type") or "na").lower()
        if kind == "bond" and name in masters:
            pass  # its interfaces have its address
        elif kind in ("bmc", "bond", "bridge", "bonded_bridge_slave"):
            remarks.append(remark_lost(f"interface {name} is of type {kind}"))
        elif mac := parse_mac_or_none(each.get("mac_address")):
            bond = str(each.get("interface_master") or "") if kind == "bond_slave" else ""
            address = addresses[name] or addresses.get(bond)
            nics.append(ImportedNic(mac=mac, name=name, addresses=(address,) if address else ()))
        else:
            remarks.append(remark_missing(f"interface {name} has no MAC address"))
    return tuple(nics), remarks


def _read_address(interface: Mapping[str, Any]) -> str | None:
    return parse_address(interface.get("ip_address"), interface.get("netmask")) or parse_address(
        interface.get("ipv6_address")
    )


def _read_bmc(system: Mapping[str, Any]) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    # User and password are left out.
    address, kind = as_text(system.get("power_address")), as_text(system.get("power_type"))
    if address is None or address == _INHERIT:
        return None, ()
    if kind in ("ipmilan", "ipmilanplus", "ipmitool"):
        address = f"ipmi://{address.rpartition('@')[2]}"
    elif kind != "redfish":
        return None, (
            remark_lost(f"its power management is {kind} at {address.rpartition('@')[2]}: add the BMC by hand"),
        )
    scheme = "" if "://" in address else "redfish://"
    bmc, remarks = parse_bmc(f"{scheme}{address}", f"{build_document_name(str(system['name']))}-bmc")
    left_out = remark_lost("power_user and power_pass were left out: store them in the directory of credentials")
    return bmc, (*remarks, *remark_if(system.get("power_user") or system.get("power_pass"), left_out))
