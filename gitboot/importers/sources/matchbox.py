"""matchbox: groups that select machines, and the profiles that they boot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

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
    as_text,
    get_nested,
    is_secret,
    parse_json_files,
    parse_mac_or_none,
    parse_uuid_or_none,
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


def read(files: Texts) -> ImportedInventory:
    """Read ``groups/``, ``profiles/`` and ``ignition/`` of matchbox's data directory."""
    folders = {
        folder: {path: text for path, text in files.items() if folder in path.split("/")[:-1]}
        for folder in ("groups", "profiles", "ignition")
    }
    profiles = [as_mapping(profile) for _, profile in parse_json_files(folders["profiles"])]
    templates = {path.rpartition("ignition/")[2]: text for path, text in folders["ignition"].items()}
    by_identity: dict[str, list[dict[str, Any]]] = {}
    remarks = []
    for path, found in parse_json_files(folders["groups"]):
        group = as_mapping(found)
        selector = as_mapping(group.get("selector"))
        identity = next((f"{key} {str(selector[key]).lower()}" for key in _IDENTITIES if selector.get(key)), None)
        if identity is not None:
            by_identity.setdefault(identity, []).append(group)
        else:
            remarks.append(
                remark_lost(
                    f"group {_get_name(group, path)} does not select a machine by MAC address, UUID or serial number"
                )
            )
    return ImportedInventory(
        machines=tuple(_read_machine(own) for _, own in sorted(by_identity.items())),
        boots=tuple(_read_boot(profile, templates) for profile in profiles),
        remarks=tuple(remarks),
    )


def _get_name(group: Mapping[str, Any], path: str = "") -> str:
    return as_text(group.get("id")) or as_text(group.get("name")) or path


def _read_machine(groups: list[dict[str, Any]]) -> ImportedMachine:
    """Return the machine of the group with the shortest selector. matchbox uses the other groups later."""
    groups = sorted(groups, key=lambda group: (len(group["selector"]), _get_name(group)))
    first, later = groups[0], groups[1:]
    selector = first["selector"]
    mac, uuid = parse_mac_or_none(selector.get("mac")), parse_uuid_or_none(selector.get("uuid"))
    remarks = [
        remark_lost(
            f"group {_get_name(group)} boots profile {group.get('profile')} if {_format_other_selectors(group)}: a "
            "provisioned server boots its disk"
        )
        for group in later
    ]
    variables, labels, more = _read_metadata(as_mapping(get_nested(first, "metadata")))
    return ImportedMachine(
        name=_get_name(first),
        uuid=uuid,
        serial=as_text(selector.get("serial")),
        nics=(ImportedNic(mac=mac),) if mac else (),
        labels=labels,
        vars=variables,
        boot=as_text(first.get("profile")),
        remarks=(
            remark_kept(f"group {_get_name(first)}"),
            *remarks,
            *remark_if(
                _format_other_selectors(first),
                remark_lost(f"group {_get_name(first)} selects by {_format_other_selectors(first)}, too"),
            ),
            *remark_if(selector.get("mac") and mac is None, remark_missing("its MAC address: the value is not valid")),
            *remark_if(selector.get("uuid") and uuid is None, remark_missing("its UUID: the value is not valid")),
            *more,
        ),
    )


def _format_other_selectors(group: Mapping[str, Any]) -> str:
    selector = as_mapping(get_nested(group, "selector"))
    return ", ".join(f"{key}={value}" for key, value in sorted(selector.items()) if key not in _IDENTITIES)


def _read_metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[ImportRemark]]:
    # Variables and labels, without secrets and without values that are no text.
    variables, labels, remarks = {}, {}, []
    for key, value in sorted(metadata.items()):
        text = as_text(value)
        if text is None or "\n" in text:
            remarks.append(remark_lost(f"metadata {key} is not text"))
        elif is_secret(f"{key}={text}"):
            remarks.append(remark_lost(f"metadata {key} is a secret and was left out: move it to secrets"))
        else:
            try:
                variables[parse_variable_name(key)] = text
            except Malformed:
                remarks.append(remark_lost(f"metadata {key}: this is not a valid variable name"))
            if key in ("role", "rack", "site", "pool"):
                try:
                    labels[parse_label_key(key)] = parse_label_value(text)
                except Malformed:
                    continue
    return variables, labels, remarks


def _read_boot(profile: Mapping[str, Any], templates: Texts) -> ImportedBoot:
    # matchbox's assets become assets of the fleet.
    boot, remarks = as_mapping(get_nested(profile, "boot")), list[ImportRemark]()
    found = [str(argument) for argument in as_list(boot.get("args"))]
    leads = [argument for argument in found if "/ignition?" in argument]
    data, about = _read_user_data(profile, templates)
    remarks += about
    if data is not None and leads and not all(each.startswith(_FIRST_BOOT) for each in leads):
        data = None  # gitboot would give it to the live system that installs, too
        remarks = [remark_lost("its user data is for the system that is installed: coreos-installer fetches it")]
    if data is not None:
        found = [argument for argument in found if argument not in leads]  # gitboot adds its own
    elif leads:
        remarks.append(remark_guessed("its arguments still contain the old system's user data URL"))
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
    text = text.rpartition(" ")[2] if text else None  # "--name main /assets/…", as iPXE takes it
    return f"assets:{text.removeprefix('/assets/')}" if text and text.startswith("/assets/") else text


def _read_user_data(profile: Mapping[str, Any], templates: Texts) -> tuple[ImportedData | None, list[ImportRemark]]:
    """Return Ignition that matchbox serves unchanged, or a remark. Go templates are not translated."""
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
