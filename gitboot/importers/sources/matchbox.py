"""matchbox: read groups and profiles from its data directory, or from the state of Terraform."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import structs

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedData,
    ImportedInventory,
    ImportedMachine,
    ImportRemark,
    NicCollector,
    Texts,
    as_list,
    as_mapping,
    as_mappings,
    as_text,
    get_nested,
    is_secret,
    parse_json,
    parse_json_files,
    parse_mac_or_none,
    parse_uuid_or_none,
    read_uuid,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
    split_kernel_arguments,
    translate_arguments,
)
from gitboot.model.scalars import (
    Malformed,
    is_placeholder_serial,
    parse_label_key,
    parse_label_value,
    parse_variable_name,
)
from gitboot.resolve.secret_scan import find_secrets

_IDENTITIES: Final = ("mac", "uuid", "serial")
_DESCRIPTIONS: Final = (
    "arch",
    "domain",
    "hostname",
)  # further labels that matchbox's first script sends (http/ipxe.go)
# arguments with which the live system itself reads the user data
_FIRST_BOOT_ARGUMENTS: Final = ("ignition.config.url=", "coreos.config.url=", "flatcar.config.url=")
_Group = dict[str, Any]


def read_matchbox(files: Texts) -> ImportedInventory:
    """Read ``groups/``, ``profiles/`` and ``ignition/`` in matchbox's data directory."""
    folders = {
        folder: {path: text for path, text in files.items() if folder in path.split("/")[:-1]}
        for folder in ("groups", "profiles", "ignition")
    }
    return _build_inventory(
        groups=[{"id": path, **as_mapping(group)} for path, group in parse_json_files(folders["groups"])],
        # matchbox finds a profile by the name of its file (storage/filestore.go, ProfileGet)
        profiles=[
            {**as_mapping(profile), "id": path.rpartition("/")[2].removesuffix(".json")}
            for path, profile in parse_json_files(folders["profiles"])
        ],
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
                if values.get("generic_config"):
                    profile["generic_id"] = name
                profiles.append(profile)
    inventory = _build_inventory(groups, profiles, templates)
    return structs.replace(inventory, remarks=(*inventory.remarks, *remarks))


def _list_resources(state: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for resource in as_mappings(get_nested(state, "resources")):
        if resource.get("mode") != "data":
            for instance in as_mappings(resource.get("instances")):
                if not instance.get("deposed"):  # Terraform has already replaced a deposed instance
                    yield as_text(resource.get("type")), as_mapping(instance.get("attributes"))
    modules = [get_nested(state, "values", "root_module")]
    while modules:  # the output of `terraform show -json` contains nested modules
        module = modules.pop(0)
        modules += as_mappings(get_nested(module, "child_modules"))
        for resource in as_mappings(get_nested(module, "resources")):
            yield as_text(resource.get("type")), as_mapping(resource.get("values"))


def _build_inventory(groups: list[_Group], profiles: list[_Group], templates: Texts) -> ImportedInventory:
    in_order = sorted(groups, key=_get_name)
    others = [each for each in in_order if as_mapping(each.get("selector")) and not _list_identities(each)]
    defaults = [each for each in in_order if not as_mapping(each.get("selector"))]
    boots = tuple(_read_boot(profile, templates) for profile in profiles)
    return ImportedInventory(
        machines=tuple(_read_machine(selected, defaults) for selected in _group_by_machine(in_order)),
        boots=boots,
        remarks=tuple(_list_remarks_on_groups(defaults, others, {boot.name for boot in boots})),
    )


def _list_identities(group: _Group) -> list[str]:
    """Return the MAC address, the UUID and the serial number in a group's selector, each after its name.

    A placeholder, such as the serial number 0123456789, is omitted if the group has another identity.
    """
    selector = as_mapping(group.get("selector"))
    given = {key: text for key in _IDENTITIES if (text := as_text(selector.get(key)))}
    parsed = {
        "mac": parse_mac_or_none(given.get("mac")),
        "uuid": parse_uuid_or_none(given.get("uuid")),
        "serial": None if is_placeholder_serial(given.get("serial", "")) else given.get("serial"),
    }
    identities = [f"{key} {value}" for key, value in parsed.items() if value]
    return identities or [f"{key} {text}" for key, text in given.items()]


def _group_by_machine(groups: Iterable[_Group]) -> list[list[_Group]]:
    """Return the groups of each machine, without the groups that do not select a single machine.

    Groups with a common identity select one machine, unless their UUIDs or their serial numbers differ.
    """
    machines: list[tuple[frozenset[str], list[_Group]]] = []  # the identities and the groups of each machine
    for group in groups:
        own = frozenset(_list_identities(group))
        if not own:
            continue
        identities, members, others = own, [group], []
        for known_identities, known_members in machines:
            merged = known_identities | identities
            if own.isdisjoint(known_identities) or _are_contradictory(merged):
                others.append((known_identities, known_members))
            else:
                identities, members = merged, [*known_members, *members]
        machines = [*others, (identities, members)]
    return [members for _, members in machines]


def _are_contradictory(identities: Iterable[str]) -> bool:
    """Return whether no single machine can have these identities."""
    return any(sum(each.startswith(key) for each in identities) > 1 for key in ("uuid", "serial"))


def _list_remarks_on_groups(
    defaults: list[_Group], others: list[_Group], boot_names: Collection[str]
) -> Iterator[ImportRemark]:
    """Yield remarks on the groups that do not select a single machine."""
    for group in defaults:
        yield remark_guessed(
            f"group {_get_name(group)} has no selector, so it boots profile {group.get('profile')} on each machine "
            "that no other group selects: select these machines with a BootPolicy, or write a Server for each of them"
        )
    if len(defaults) > 1:
        yield remark_lost(
            "several groups have no selector, and matchbox does not define which of them it uses: select one boot"
        )
    for group in others:
        yield remark_lost(
            f"group {_get_name(group)} was left out, because it does not select machines by MAC address, UUID or "
            f"serial number (it boots profile {group.get('profile')} if {_format_other_selectors(group)})"
        )
    for group in (*defaults, *others):
        if as_text(group.get("profile")) not in boot_names:
            yield remark_missing(
                f"group {_get_name(group)} boots profile {group.get('profile')}, which is not in the source: export "
                "the profile"
            )


def _get_name(group: Mapping[str, Any]) -> str:
    return as_text(group.get("id")) or as_text(group.get("name")) or "without a name"


def _read_machine(groups: list[_Group], defaults: list[_Group]) -> ImportedMachine:
    """Return the machine that ``groups`` select. It boots the profile of a group that selects only by identity.

    If all groups also select by another value, such as os=installed, matchbox first uses a group without selectors.
    """
    groups = sorted(groups, key=lambda group: (bool(_format_other_selectors(group)), _get_name(group)))
    exact = [group for group in groups if not _format_other_selectors(group)]
    exact.sort(key=_rank_selectors, reverse=True)
    group = (exact or groups)[0]
    boot_group = (exact or defaults or groups)[0]
    selectors = [each["selector"] for each in groups]
    reader = NicCollector()
    for selector in selectors:
        reader.add(selector.get("mac"))
    uuid, uuid_remarks = read_uuid(next((each["uuid"] for each in selectors if each.get("uuid")), None))
    variables, labels, metadata_remarks = _read_metadata(as_mapping(get_nested(group, "metadata")))
    return ImportedMachine(
        name=_get_name(group),
        uuid=uuid,
        serial=next(filter(None, (as_text(each.get("serial")) for each in selectors)), None),
        nics=tuple(dict.fromkeys(reader.nics)),
        labels=labels,
        vars=variables,
        boot=as_text(boot_group.get("profile")),
        remarks=(
            remark_kept(f"group {_get_name(group)}"),
            *(
                remark_lost(
                    f"group {_get_name(other)} was left out, because {_explain_unused_group(other, boot_group)}"
                )
                for other in groups
                if other is not boot_group
            ),
            *remark_if(
                boot_group is not group,
                remark_guessed(f"the import took the boot from group {_get_name(boot_group)}, which has no selector"),
            ),
            *remark_if(
                boot_group is group and _format_other_selectors(group),
                remark_lost(f"selectors in group {_get_name(group)} were left out: {_format_other_selectors(group)}"),
            ),
            *reader.remarks,
            *uuid_remarks,
            *metadata_remarks,
        ),
    )


def _rank_selectors(group: _Group) -> tuple[int, str]:
    """Return the value by which matchbox sorts groups. It uses the greatest first (storagepb/group.go, ByReqs)."""
    selectors = {
        key: str(parse_mac_or_none(value) or value) if key == "mac" else str(value)
        for key, value in group["selector"].items()
    }
    return len(selectors), ",".join(sorted(f"{key}={value}" for key, value in selectors.items()))


def _explain_unused_group(group: _Group, used_group: _Group) -> str:
    profile = f"the group boots profile {group.get('profile')}"
    if condition := _format_other_selectors(group):
        return f"a provisioned server boots from its disk ({profile} if {condition})"
    mac, used_mac = (parse_mac_or_none(each["selector"].get("mac")) for each in (group, used_group))
    if mac and used_mac and mac != used_mac:
        return f"matchbox uses it only if the machine boots from {mac.replace('-', ':')} ({profile})"
    if _rank_selectors(group) == _rank_selectors(used_group):
        used = f"group {_get_name(used_group)} has the same selectors"
        return f"{used}, and matchbox does not define which of them it uses ({profile})"
    return f"matchbox uses group {_get_name(used_group)} first ({profile})"


def _format_other_selectors(group: _Group) -> str:
    """Return the selectors that do not identify or describe a machine, such as os=installed."""
    known = (*_IDENTITIES, *_DESCRIPTIONS) if _list_identities(group) else _IDENTITIES
    selectors = sorted(as_mapping(group.get("selector")).items())
    return ", ".join(f"{key}={value}" for key, value in selectors if key not in known)


def _read_metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[ImportRemark]]:
    """Return the variables and the labels in the metadata of a group. Omit secrets, and values that are not text."""
    variables, labels, remarks = dict[str, str](), dict[str, str](), list[ImportRemark]()
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
                with suppress(Malformed):
                    labels[parse_label_key(key)] = parse_label_value(text)
    return variables, labels, remarks


def _read_boot(profile: Mapping[str, Any], templates: Texts) -> ImportedBoot:
    """Convert a profile to a boot. The assets of matchbox become assets of the fleet."""
    boot = as_mapping(get_nested(profile, "boot"))
    old_arguments = split_kernel_arguments(*map(str, as_list(boot.get("args"))))
    data_arguments = [argument for argument in old_arguments if "/ignition?" in argument]
    data, remarks = _read_user_data(profile, templates)
    if data is not None and not all(argument.startswith(_FIRST_BOOT_ARGUMENTS) for argument in data_arguments):
        data = None  # gitboot would also serve this data to the live system, which runs the installer
        remarks = [
            remark_lost("the user data was left out, because coreos-installer fetches it for the installed system")
        ]
    if data is not None:
        # remove the old URL of the user data, because gitboot adds its own URL
        old_arguments = [argument for argument in old_arguments if argument not in data_arguments]
    elif data_arguments:
        remarks.append(remark_guessed("the arguments still contain the old system's user data URL"))
    arguments, argument_remarks = translate_arguments(old_arguments)
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
