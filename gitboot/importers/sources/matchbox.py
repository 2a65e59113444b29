"""matchbox: read groups, which select machines, and profiles, which define boots, from files or a Terraform state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from gitboot.importers.inventory import (
    ImportedBoot,
    ImportedData,
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
    is_secret,
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
    translate_arguments,
)
from gitboot.model.scalars import Malformed, parse_label_key, parse_label_value, parse_variable_name
from gitboot.resolve.secret_scan import find_secrets

_IDENTITIES: Final = ("mac", "uuid", "serial")
_FIRST_BOOT: Final = ("ignition.config.url=", "coreos.config.url=", "flatcar.config.url=")


_Group = dict[str, Any]


def read(files: Texts) -> ImportedInventory:
    """Read ``groups/``, ``profiles/`` and ``ignition/`` in matchbox's data directory."""
    folders = {
        folder: {path: text for path, text in files.items() if folder in path.split("/")[:-1]}
        for folder in ("groups", "profiles", "ignition")
    }
    profiles = [as_mapping(profile) for _, profile in parse_json_files(folders["profiles"])]
    templates = {path.rpartition("ignition/")[2]: text for path, text in folders["ignition"].items()}
    groups = [{"id": path, **as_mapping(found)} for path, found in parse_json_files(folders["groups"])]
    return _build_inventory(groups, profiles, templates)


def read_terraform(files: Texts) -> ImportedInventory:
    """Read ``matchbox_group`` and ``matchbox_profile`` resources from Terraform states or ``terraform show -json``."""
    groups, profiles, templates = list[_Group](), list[_Group](), dict[str, str]()
    remarks = list[ImportRemark]()
    for path, text in sorted(files.items()):
        if not path.endswith((".json", ".tfstate")) and len(files) > 1:
            continue
        state = parse_json(path, text)
        if as_list(get_nested(state, "modules")):
            version = as_text(get_nested(state, "version"))
            remarks.append(
                remark_missing(
                    f"the resources of {path} were not imported, because it is a state of version {version}, not 4"
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
    """Yield the type and the attributes of each instance of each resource."""
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
    boots = tuple(_read_boot(profile, templates) for profile in profiles)
    names = {boot.name for boot in boots}
    return ImportedInventory(
        machines=tuple(_read_machine(own, defaults) for _, own in sorted(by_identity.items())),
        boots=boots,
        remarks=(
            *map(_explain_default, defaults),
            *remark_if(
                len(defaults) > 1,
                remark_lost(
                    "matchbox uses one of several groups without a selector, and does not define which one: select "
                    "one boot"
                ),
            ),
            *map(_explain_selector, others),
            *(
                remark_missing(
                    f"profile {group.get('profile')} of group {_get_name(group)} is not in the source: export the "
                    "profile"
                )
                for group in (*defaults, *others)
                if as_text(group.get("profile")) not in names
            ),
        ),
    )


def _explain_default(group: _Group) -> ImportRemark:
    return remark_guessed(
        f"group {_get_name(group)} does not select a machine: it boots profile {group.get('profile')} on each machine "
        "that no other group selects. Select machines with a BootPolicy, or write a Server for each"
    )


def _explain_selector(group: _Group) -> ImportRemark:
    return remark_lost(
        f"group {_get_name(group)} does not select a machine by MAC address, UUID or serial number: it boots profile "
        f"{group.get('profile')} if {_format_other_selectors(group)}"
    )


def _get_name(group: Mapping[str, Any]) -> str:
    return as_text(group.get("id")) or as_text(group.get("name")) or "without a name"


def _read_machine(groups: list[_Group], defaults: list[_Group]) -> ImportedMachine:
    """Return the machine that ``groups`` select.

    The machine boots the profile of the group that selects only by identity.

    If all groups also select by another value, such as os=installed, matchbox first uses a group without selectors.
    """
    groups = sorted(groups, key=lambda group: (bool(_format_other_selectors(group)), _get_name(group)))
    exact = [group for group in groups if not _format_other_selectors(group)]
    exact.sort(key=lambda group: -len(group["selector"]))  # matchbox sorts groups in the same order
    first = next(iter((*exact, *defaults[:1], *groups)))
    own = exact[0] if exact else groups[0]
    later = [group for group in groups if group is not first and group is not own]
    selector = own["selector"]
    mac, of_mac = read_mac(selector.get("mac"))
    uuid, of_uuid = read_uuid(selector.get("uuid"))
    remarks = [
        remark_lost(
            f"group {_get_name(group)} boots profile {group.get('profile')} if {_format_other_selectors(group)}: a "
            "provisioned server boots its disk"
        )
        for group in later
    ]
    if first is not own:
        remarks += [
            remark_guessed(f"the boot was taken from group {_get_name(first)}, which does not have a selector"),
            remark_lost(
                f"group {_get_name(own)} boots profile {own.get('profile')} if {_format_other_selectors(own)}: a "
                "provisioned server boots its disk"
            ),
        ]
    variables, labels, more = _read_metadata(as_mapping(get_nested(own, "metadata")))
    return ImportedMachine(
        name=_get_name(own),
        uuid=uuid,
        serial=as_text(selector.get("serial")),
        nics=(ImportedNic(mac=mac),) if mac else (),
        labels=labels,
        vars=variables,
        boot=as_text(first.get("profile")),
        remarks=(
            remark_kept(f"group {_get_name(own)}"),
            *remarks,
            *remark_if(
                first is own and _format_other_selectors(own),
                remark_lost(f"group {_get_name(own)} also selects by {_format_other_selectors(own)}"),
            ),
            *of_mac,
            *of_uuid,
            *more,
        ),
    )


def _format_other_selectors(group: Mapping[str, Any]) -> str:
    selector = as_mapping(get_nested(group, "selector"))
    return ", ".join(f"{key}={value}" for key, value in sorted(selector.items()) if key not in _IDENTITIES)


def _read_metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[ImportRemark]]:
    # Return variables and labels. Secrets, and values that are not text, are omitted.
    variables, labels, remarks = {}, {}, []
    for key, value in sorted(metadata.items()):
        text = as_text(value)
        if text is None or "\n" in text:
            remarks.append(remark_lost(f"metadata {key} was left out, because it is not text: write it as vars"))
        elif is_secret(f"{key}={text}"):
            remarks.append(remark_lost(f"metadata {key} is a secret and was left out: move it to secrets"))
        else:
            try:
                variables[parse_variable_name(key)] = text
            except Malformed:
                remarks.append(
                    remark_lost(f"metadata {key} was left out, because its name is not valid for a variable: rename it")
                )
            if key in ("role", "rack", "site", "pool"):
                try:
                    labels[parse_label_key(key)] = parse_label_value(text)
                except Malformed:
                    continue
    return variables, labels, remarks


def _read_boot(profile: Mapping[str, Any], templates: Texts) -> ImportedBoot:
    # The assets of matchbox become assets of the fleet.
    boot, remarks = as_mapping(get_nested(profile, "boot")), list[ImportRemark]()
    found = [str(argument) for argument in as_list(boot.get("args"))]
    leads = [argument for argument in found if "/ignition?" in argument]
    data, about = _read_user_data(profile, templates)
    remarks += about
    if data is not None and leads and not all(each.startswith(_FIRST_BOOT) for each in leads):
        data = None  # gitboot would also serve this data to the live system, which runs the installer
        remarks = [remark_lost("the user data is for the system that is installed: coreos-installer fetches it")]
    if data is not None:
        # remove the old URL of the user data, because gitboot adds its own URL
        found = [argument for argument in found if argument not in leads]
    elif leads:
        remarks.append(remark_guessed("the arguments still contain the old system's user data URL"))
    arguments, more = translate_arguments(found)
    ids = [key for key in ("cloud_id", "generic_id") if profile.get(key)]
    return ImportedBoot(
        name=_get_name(profile),
        kernel=_translate_asset_url(boot.get("kernel")),
        initrds=tuple(filter(None, (_translate_asset_url(each) for each in as_list(boot.get("initrd"))))),
        arguments=arguments,
        data=data,
        remarks=(
            *remarks,
            *more,
            *(remark_lost(f"{key} {profile[key]}: gitboot does not serve such files") for key in ids),
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
        return None, [remark_lost(f"user data {name} is not Ignition; convert it with butane")]
    major, _, minor = str(version).removesuffix(".0").partition(".")
    if major != "3" or minor not in tuple("0123456"):
        return None, [remark_lost(f"user data {name} is Ignition {version}: convert it with ign-converter")]
    return ImportedData(format=f"Ignition/3.{minor}", text=text), [remark_kept(f"user data {name}")]
