"""Boot servers: read the machines and boots of matchbox, Ironic and Cobbler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from gitboot.importers.inventory import (
    ImportedBmc,
    ImportedBoot,
    ImportedData,
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
    is_secret,
    list_address,
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
    split_words,
    translate_arguments,
)
from gitboot.model.scalars import (
    Malformed,
    build_document_name,
    parse_label_key,
    parse_label_value,
    parse_variable_name,
)
from gitboot.resolve.kernel_arguments import REPEATED, argument_name
from gitboot.resolve.secret_scan import find_secrets

# matchbox

_IDENTITIES: Final = ("mac", "uuid", "serial")
_Group = dict[str, Any]


def read_matchbox(files: Texts) -> ImportedInventory:
    """Read ``groups/``, ``profiles/`` and ``ignition/`` in matchbox's data directory."""
    folders = {
        folder: {path: text for path, text in files.items() if folder in path.split("/")[:-1]}
        for folder in ("groups", "profiles", "ignition")
    }
    return _build_inventory(
        groups=[{"id": path, **as_mapping(found)} for path, found in parse_json_files(folders["groups"])],
        profiles=[as_mapping(profile) for _, profile in parse_json_files(folders["profiles"])],
        templates={path.rpartition("ignition/")[2]: text for path, text in folders["ignition"].items()},
    )


def read_terraform(files: Texts) -> ImportedInventory:
    """Read ``matchbox_group`` and ``matchbox_profile`` resources from Terraform states or ``terraform show -json``."""
    groups, profiles, templates = list[_Group](), list[_Group](), dict[str, str]()
    remarks = list[ImportRemark]()
    for path, text in sorted(files.items()):
        if not path.endswith((".json", ".tfstate")) and len(files) > 1:
            continue
        state = parse_json(path, text)
        if as_list(get_nested(state, "modules")):
            remarks.append(
                remark_missing(
                    f"the resources in {path} were not imported, because the state version is "
                    f"{as_text(get_nested(state, 'version'))}, not 4"
                )
            )
        for kind, values in _list_resources(state):
            name = as_text(values.get("name")) or as_text(values.get("id"))
            if kind == "matchbox_group":
                groups.append({**values, "id": name})
            elif kind == "matchbox_profile":
                profile = {"id": name, "boot": {key: values.get(key) for key in ("kernel", "initrd", "args")}}
                for key, suffix in (("raw_ignition", "ign"), ("container_linux_config", "yaml.tmpl")):
                    if content := as_text(values.get(key)):
                        profile["ignition_id"] = f"{name}.{suffix}"
                        templates[f"{name}.{suffix}"] = content
                profiles.append(profile | ({"generic_id": name} if values.get("generic_config") else {}))
    inventory = _build_inventory(groups, profiles, templates)
    return structs.replace(inventory, remarks=(*inventory.remarks, *remarks))


def _list_resources(state: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for resource in as_mappings(get_nested(state, "resources")):
        if resource.get("mode") != "data":
            for instance in as_mappings(resource.get("instances")):
                yield as_text(resource.get("type")), as_mapping(instance.get("attributes"))
    modules = [get_nested(state, "values", "root_module")]
    while modules:  # the output of `terraform show -json` contains nested modules
        module = modules.pop(0)
        modules += as_mappings(get_nested(module, "child_modules"))
        for resource in as_mappings(get_nested(module, "resources")):
            yield as_text(resource.get("type")), as_mapping(resource.get("values"))


def _build_inventory(groups: list[_Group], profiles: list[_Group], templates: Texts) -> ImportedInventory:
    by_identity: dict[str, list[_Group]] = {}
    defaults, others = list[_Group](), list[_Group]()
    for group in sorted(groups, key=_get_name):
        selector = as_mapping(group.get("selector"))
        key = next((key for key in _IDENTITIES if selector.get(key)), None)
        if key is not None:
            known = parse_mac_or_none(selector[key]) if key == "mac" else None
            by_identity.setdefault(f"{key} {known or str(selector[key]).lower()}", []).append(group)
        else:
            (others if selector else defaults).append(group)
    boots = tuple(_read_matchbox_boot(profile, templates) for profile in profiles)
    names = {boot.name for boot in boots}
    return ImportedInventory(
        machines=tuple(_read_matchbox_machine(each, defaults) for _, each in sorted(by_identity.items())),
        boots=boots,
        remarks=(
            *(
                remark_guessed(
                    f"group {_get_name(group)} has no selector, so it boots profile {group.get('profile')} on each "
                    "machine that no other group selects: select these machines with a BootPolicy, or write a Server "
                    "for each of them"
                )
                for group in defaults
            ),
            *remark_if(
                len(defaults) > 1,
                remark_lost(
                    "several groups have no selector, and matchbox does not define which of them it uses: select one "
                    "boot"
                ),
            ),
            *(
                remark_lost(
                    f"group {_get_name(group)} was left out, because it does not select machines by MAC address, UUID "
                    f"or serial number (it boots profile {group.get('profile')} if {_format_other_selectors(group)})"
                )
                for group in others
            ),
            *(
                remark_missing(
                    f"group {_get_name(group)} boots profile {group.get('profile')}, which is not in the source: "
                    "export the profile"
                )
                for group in (*defaults, *others)
                if as_text(group.get("profile")) not in names
            ),
        ),
    )


def _get_name(group: Mapping[str, Any]) -> str:
    return as_text(group.get("id")) or as_text(group.get("name")) or "without a name"


def _read_matchbox_machine(groups: list[_Group], defaults: list[_Group]) -> ImportedMachine:
    """Return the machine that ``groups`` select.

    The machine boots the profile of the group that selects only by identity.

    If all groups also select by another value, such as os=installed, matchbox first uses a group without selectors.
    """
    groups = sorted(groups, key=lambda group: (bool(_format_other_selectors(group)), _get_name(group)))
    exact = [group for group in groups if not _format_other_selectors(group)]
    exact.sort(key=lambda group: -len(group["selector"]))  # matchbox sorts groups in the same order
    boot_group = next(iter((*exact, *defaults[:1], *groups)))
    group = exact[0] if exact else groups[0]
    selector = group["selector"]
    mac, mac_remarks = read_mac(selector.get("mac"))
    uuid, uuid_remarks = read_uuid(selector.get("uuid"))
    variables, labels, metadata_remarks = _read_metadata(as_mapping(get_nested(group, "metadata")))
    return ImportedMachine(
        name=_get_name(group),
        uuid=uuid,
        serial=as_text(selector.get("serial")),
        nics=(ImportedNic(mac=mac),) if mac else (),
        labels=labels,
        vars=variables,
        boot=as_text(boot_group.get("profile")),
        remarks=(
            remark_kept(f"group {_get_name(group)}"),
            *(
                remark_lost(
                    f"group {_get_name(each)} was left out, because a provisioned server boots from its disk (the "
                    f"group boots profile {each.get('profile')} if {_format_other_selectors(each)})"
                )
                for each in groups
                if each is not boot_group
            ),
            *remark_if(
                boot_group is not group,
                remark_guessed(f"the import took the boot from group {_get_name(boot_group)}, which has no selector"),
            ),
            *remark_if(
                boot_group is group and _format_other_selectors(group),
                remark_lost(f"selectors in group {_get_name(group)} were left out: {_format_other_selectors(group)}"),
            ),
            *mac_remarks,
            *uuid_remarks,
            *metadata_remarks,
        ),
    )


def _format_other_selectors(group: Mapping[str, Any]) -> str:
    selectors = sorted(as_mapping(get_nested(group, "selector")).items())
    return ", ".join(f"{key}={value}" for key, value in selectors if key not in _IDENTITIES)


def _read_metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[ImportRemark]]:
    # Return variables and labels. Secrets, and values that are not text, are omitted.
    variables, labels, remarks = {}, {}, []
    for key, value in sorted(metadata.items()):
        text = as_text(value)
        if text is None or "\n" in text:
            remarks.append(
                remark_lost(f"metadata {key} was left out, because its value is not text: write the value in `vars`")
            )
        elif is_secret(f"{key}={text}"):
            remarks.append(
                remark_lost(f"metadata {key} was left out, because it looks like a secret: move it to `secrets`")
            )
        else:
            try:
                variables[parse_variable_name(key)] = text
            except Malformed:
                remarks.append(
                    remark_lost(f"metadata {key} was left out, because {key} is not a valid variable name: rename it")
                )
            if key in ("role", "rack", "site", "pool"):
                try:
                    labels[parse_label_key(key)] = parse_label_value(text)
                except Malformed:
                    continue
    return variables, labels, remarks


def _read_matchbox_boot(profile: Mapping[str, Any], templates: Texts) -> ImportedBoot:
    # The assets of matchbox become assets of the fleet.
    boot, remarks = as_mapping(get_nested(profile, "boot")), list[ImportRemark]()
    found = [str(argument) for argument in as_list(boot.get("args"))]
    data_arguments = [argument for argument in found if "/ignition?" in argument]
    data, data_remarks = _read_user_data(profile, templates)
    remarks += data_remarks
    first_boot = ("ignition.config.url=", "coreos.config.url=", "flatcar.config.url=")
    if data is not None and data_arguments and not all(each.startswith(first_boot) for each in data_arguments):
        data = None  # gitboot would also serve this data to the live system, which runs the installer
        remarks = [
            remark_lost("the user data was left out, because coreos-installer fetches it for the installed system")
        ]
    if data is not None:
        # remove the old URL of the user data, because gitboot adds its own URL
        found = [argument for argument in found if argument not in data_arguments]
    elif data_arguments:
        remarks.append(remark_guessed("the arguments still contain the old system's user data URL"))
    arguments, argument_remarks = translate_arguments(found)
    return ImportedBoot(
        name=_get_name(profile),
        kernel=_translate_asset_url(boot.get("kernel")),
        initrds=tuple(filter(None, (_translate_asset_url(each) for each in as_list(boot.get("initrd"))))),
        arguments=arguments,
        data=data,
        remarks=(
            *remarks,
            *argument_remarks,
            *(
                remark_lost(f"{key} {profile[key]} was left out, because gitboot does not serve such files")
                for key in ("cloud_id", "generic_id")
                if profile.get(key)
            ),
        ),
    )


def _translate_asset_url(url: object) -> str | None:
    text = as_text(url)
    # the value may have the form of iPXE, such as "--name main /assets/…"
    text = text.rpartition(" ")[2] if text else None
    return f"assets:{text.removeprefix('/assets/')}" if text and text.startswith("/assets/") else text


def _read_user_data(profile: Mapping[str, Any], templates: Texts) -> tuple[ImportedData | None, list[ImportRemark]]:
    """Return the Ignition data, or a remark if the data is a Go template, which the import does not translate."""
    name = as_text(profile.get("ignition_id"))
    if name is None:
        return None, []
    if (text := templates.get(name)) is None:
        return None, [remark_lost(f"user data {name} is not in the source")]
    if "{{" in text:
        return None, [remark_lost(f"user data {name} is a Go template: translate it to Jinja2")]
    if find_secrets(text):
        return None, [remark_lost(f"user data {name} contains a secret and was left out")]
    try:
        version = get_nested(json.loads(text), "ignition", "version")
    except (ValueError, RecursionError):
        return None, [remark_lost(f"user data {name} is not Ignition: convert it with butane")]
    major, _, minor = str(version).removesuffix(".0").partition(".")
    if major != "3" or minor not in tuple("0123456"):
        return None, [remark_lost(f"user data {name} is Ignition {version}: convert it with ign-converter")]
    return ImportedData(format=f"Ignition/3.{minor}", text=text), [remark_kept(f"user data {name}")]


# Ironic


def read_ironic(files: Texts) -> ImportedInventory:
    """Read nodes and ports from `openstack baremetal node list --long -f json` or from Ironic's API.

    A port is an item with an address, and a node is an item with a driver or a provisioning state.
    """
    lists = (
        found if isinstance(found, list) else get_nested(found, "nodes") or get_nested(found, "ports") or [found]
        for _, found in parse_json_files(files)
    )
    # The field `Driver Info` in the output of the command is the field `driver_info` in the API.
    rows = [
        {key.lower().replace(" ", "_"): value for key, value in row.items()}
        for found in lists
        for row in as_mappings(found)
    ]
    ports = [row for row in rows if "address" in row]
    nodes = [row for row in rows if row.keys() & {"driver", "provisioning_state", "provision_state"}]
    boots = {boot.name: boot for boot in map(_read_ironic_boot, nodes) if boot is not None}
    by_node = group_rows(ports, "node_uuid")
    machines = sorted(
        (_read_ironic_machine(node, by_node.get(str(node.get("uuid")), [])) for node in nodes),
        key=lambda machine: machine.name,
    )
    known = {str(node.get("uuid")) for node in nodes}
    return ImportedInventory(
        machines=tuple(machines),
        boots=tuple(boot for _, boot in sorted(boots.items())),
        remarks=tuple(
            remark_lost(
                f"port {as_text(port['address'])} was left out, because its node {as_text(port.get('node_uuid'))} is "
                "not in the source"
            )
            for port in ports
            if str(port.get("node_uuid")) not in known
        ),
    )


def _parse_mapping(value: object) -> Mapping[str, Any]:
    # The value may be a text, because the command may print a mapping as text.
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _parse_capabilities(node: Mapping[str, Any]) -> Mapping[str, str]:
    # Capabilities are in Ironic's notation, such as boot_mode:uefi,profile:compute.
    texts = str(_parse_mapping(node.get("properties")).get("capabilities") or "").split(",")
    return {name.strip(): value.strip() for name, colon, value in (each.partition(":") for each in texts) if colon}


def _read_ironic_boot(node: Mapping[str, Any]) -> ImportedBoot | None:
    info = _parse_mapping(node.get("instance_info"))
    if not (kernel := as_text(info.get("kernel"))):
        return None
    # Ironic adds these arguments (drivers/modules/ipxe_config.template)
    added = ("root=/dev/ram0", "text") if node.get("deploy_interface") == "ramdisk" else ()
    arguments, remarks = translate_arguments([*added, *str(info.get("kernel_append_params") or "").split()])
    is_url, ramdisk = "://" in kernel, as_text(info.get("ramdisk"))
    return ImportedBoot(
        name=_get_node_name(node),
        kernel=kernel if is_url else None,
        initrds=(ramdisk,) if ramdisk and "://" in ramdisk else (),
        arguments=arguments,
        architecture=parse_architecture(_parse_mapping(node.get("properties")).get("cpu_arch")),
        remarks=(
            *remarks,
            *remark_if(
                not is_url,
                remark_missing(
                    f"the kernel {kernel} is an image in Glance: store the kernel at a URL, and add this URL"
                ),
            ),
        ),
    )


def _get_node_name(node: Mapping[str, Any]) -> str:
    return as_text(node.get("name")) or f"node-{node.get('uuid')}"


def _read_ironic_machine(node: Mapping[str, Any], ports: list[dict[str, Any]]) -> ImportedMachine:
    """Convert a node to a machine. The node's UUID is an ID that Ironic assigned, not the UUID of the board."""
    properties, driver, name = (
        _parse_mapping(node.get("properties")),
        _parse_mapping(node.get("driver_info")),
        _get_node_name(node),
    )
    reader = NicCollector()
    for port in ports:
        boots = str(port.get("pxe_enabled", port.get("pxe_boot_enabled", True))).lower() != "false"
        reader.add(as_text(port["address"]), "the port:", name=as_text(port.get("name")), boot=boots)
    address, host, number = (as_text(driver.get(key)) for key in ("redfish_address", "ipmi_address", "ipmi_port"))
    if address:
        address = address if "://" in address else f"redfish://{address}"
    elif host:
        address = f"ipmi://{host}{f':{number}' if number else ''}"
    bmc, bmc_remarks = parse_bmc(
        address,
        f"{build_document_name(name)}-bmc",
        system=as_text(driver.get("redfish_system_id")),
        verify=str(driver.get("redfish_verify_ca", "true")).lower() != "false",
    )
    image = as_text(_parse_mapping(node.get("instance_info")).get("image_source")) or ""
    capabilities, has_boot = _parse_capabilities(node), _read_ironic_boot(node) is not None
    uuid, uuid_remarks = read_uuid(as_text(get_nested(_parse_mapping(node.get("extra")), "system_uuid")))
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=as_text(get_nested(_parse_mapping(node.get("extra")), "serial_number")),
        architecture=parse_architecture(properties.get("cpu_arch")),
        firmware=parse_firmware(capabilities.get("boot_mode")),
        secure_boot=True if capabilities.get("secure_boot", "").lower() == "true" else None,
        nics=tuple(sorted(reader.nics, key=lambda nic: nic.mac)),
        bmc=bmc,
        labels={key: value for key in ("profile",) if (value := capabilities.get(key))}
        | ({"resource-class": str(node["resource_class"])} if node.get("resource_class") else {}),
        boot=name if has_boot else None,
        remarks=(
            remark_kept(f"node {name} ({node.get('uuid')})"),
            *reader.remarks,
            *uuid_remarks,
            *remark_if(
                not has_boot and not image,
                remark_lost("the boot was not imported, because the instance has neither a kernel nor an image"),
            ),
            *remark_if(
                not reader.nics and not reader.remarks,
                remark_missing(
                    "the source does not contain the ports: export them with `openstack baremetal port list --long "
                    "-f json`"
                ),
            ),
            *remark_if(
                address is None and "driver" not in node,
                remark_missing("the source contains neither the driver nor the BMC: export the nodes with --long"),
            ),
            *remark_if(
                address is None and "driver" in node,
                remark_lost(f"the driver {node.get('driver')} uses neither Redfish nor IPMI: add the BMC by hand"),
            ),
            *remark_if(
                image,
                remark_lost(f"the image {image.rpartition('@')[2]} was left out, because Ironic's agent installs it"),
            ),
            *bmc_remarks,
        ),
    )


# Cobbler 3.3 and 4

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
    boots = {id(profile): _read_cobbler_boot(str(profile["name"]), profiles, distros) for profile in profiles.values()}
    by_profile = {key: boots[id(profile)] for key, profile in profiles.items()}
    by_name = {str(system["name"]): system for system in systems.values()}
    machines = (
        _read_cobbler_machine(system, by_profile, images, _list_interfaces(system, interfaces))
        for _, system in sorted(by_name.items())
    )
    system_ids = {key for system in by_name.values() for key in (as_text(system.get("uid")), str(system["name"]))}
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
    found = {str(name): as_mapping(each) for name, each in as_mapping(system.get("interfaces")).items()}
    uids = {as_text(system.get("uid")), str(system["name"])} - {None}
    return found | {str(each["name"]): each for each in items if as_text(each.get("system_uid")) in uids}


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
    for name, equals, each in (word.partition("=") for word in split_words(value)):
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


def _read_cobbler_boot(name: str, profiles: _Objects, distros: _Objects) -> ImportedBoot:
    lineage = list(_list_ancestors(name, profiles))
    inherited = (as_text(each.get("distro")) for each in lineage)
    distro = distros.get(next((each for each in inherited if each and each != _INHERIT), ""), {})
    options = _merge_options(_parse_options(each.get("kernel_options")) for each in (distro, *reversed(lineage)))
    # Without a value, a profile inherits the template from Cobbler's settings; "" means no template.
    autoinstall = next(
        # Cobbler 4 stores either all fields of a template or only the uid of the template.
        (
            as_text(get_nested(each["autoinstall"], "name")) or as_text(each["autoinstall"]) or ""
            for each in lineage
            if each.get("autoinstall") not in (None, _INHERIT)
        ),
        None,
    )
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
        ),
    )


def _find_file_url(distro: Mapping[str, Any], kind: str) -> str | None:
    # Return the URL of the file, or the URL of Cobbler's copy, which is images/DISTRO/FILE.
    remote, path = as_text(distro.get(f"remote_boot_{kind}")), as_text(distro.get(kind))
    if remote and remote != _INHERIT:
        return remote
    if path and "://" in path:
        return path
    return f"assets:images/{distro['name']}/{path.rpartition('/')[2]}" if path else None


def _read_cobbler_machine(
    system: Mapping[str, Any],
    boots: Mapping[str, ImportedBoot],
    images: _Objects,
    interfaces: Mapping[str, Mapping[str, Any]],
) -> ImportedMachine:
    name, profile, image = str(system["name"]), as_text(system.get("profile")), as_text(system.get("image"))
    nics, nic_remarks = _read_nics(interfaces)
    boot = boots.get(profile or "")
    options = _parse_options(system.get("kernel_options"))
    own_options = {name: value for name, value in options.items() if not name.startswith("!")}
    # A system's own option replaces the option of its profile, but gitboot would add it if the kernel accepts the
    # option more than once.
    inherited = {argument_name(each) for each in boot.arguments} if boot else set()
    replaced = [name for name in own_options if argument_name(name) in inherited & _REPEATED_NAMES]
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
        removed_arguments=tuple(sorted({*_list_removed_options(options), *replaced})),
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
    for name, each in sorted(interfaces.items(), key=lambda item: ("slave" in _get_interface_type(item[1]), item[0])):
        kind, addresses = _get_interface_type(each), tuple(_list_addresses(each))
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
            remarks.append(
                remark_missing(f"interface {name} has no MAC address: add the address in Cobbler, and import again")
            )
    remarks += [
        remark_lost(f"address {address} was not imported, because the interfaces of {name} have no MAC address")
        for name, addresses in masters.items()
        if name not in {as_text(each.get("interface_master")) for each in interfaces.values()}
        for address in addresses
    ]
    return tuple(sorted(nics, key=lambda nic: nic.name or "")), remarks


def _get_interface_type(interface: Mapping[str, Any]) -> str:
    return str(interface.get("interface_type") or "na").lower()


def _list_addresses(interface: Mapping[str, Any]) -> Iterator[str]:
    # Cobbler 4 stores the fields of each address family in an object, except in items that were migrated from 3.3.
    ipv4, ipv6 = as_mapping(interface.get("ipv4")), as_mapping(interface.get("ipv6"))
    yield from list_address(
        ipv4.get("address") or interface.get("ip_address"), ipv4.get("netmask") or interface.get("netmask")
    )
    prefix = as_text(ipv6.get("prefix")) or as_text(interface.get("ipv6_prefix"))
    for found in list_address(ipv6.get("address") or interface.get("ipv6_address")):
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
            remark_lost(
                f"the BMC at {address.rpartition('@')[2]} was left out, because its type is {kind}: add the BMC by hand"
            ),
        )
    scheme = "" if "://" in address else "redfish://"
    bmc, remarks = parse_bmc(f"{scheme}{address}", f"{build_document_name(str(system['name']))}-bmc")
    return bmc, (
        *remarks,
        *remark_if(
            fields["user"] or power.get("password") or system.get("power_pass"),
            remark_lost("power_user and power_pass were left out: store them in the credentials directory"),
        ),
    )
