"""matchbox: groups that select machines, and the profiles that they boot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gitboot.importers.inventory import (
    Estate,
    ImportedBoot,
    ImportedData,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    Texts,
    arguments_of,
    at,
    guessed,
    is_secret,
    json_files,
    kept,
    lost,
    mac_of,
    mapping,
    missing,
    remark_if,
    sequence,
    uuid_of,
    words,
)
from gitboot.model.scalars import Malformed, parse_label_key, parse_label_value, parse_variable_name
from gitboot.resolve.secret_scan import secrets

_IDENTITIES: Final = ("mac", "uuid", "serial")
_FIRST_BOOT: Final = ("ignition.config.url=", "coreos.config.url=", "flatcar.config.url=")


def read(files: Texts) -> Estate:
    """Read ``groups/``, ``profiles/`` and ``ignition/`` of matchbox's data directory."""
    folders = {
        folder: {path: text for path, text in files.items() if folder in path.split("/")[:-1]}
        for folder in ("groups", "profiles", "ignition")
    }
    profiles = [mapping(profile) for _, profile in json_files(folders["profiles"])]
    templates = {path.rpartition("ignition/")[2]: text for path, text in folders["ignition"].items()}
    by_identity: dict[str, list[dict[str, Any]]] = {}
    remarks = []
    for path, found in json_files(folders["groups"]):
        group = mapping(found)
        selector = mapping(group.get("selector"))
        identity = next((f"{key} {str(selector[key]).lower()}" for key in _IDENTITIES if selector.get(key)), None)
        if identity is not None:
            by_identity.setdefault(identity, []).append(group)
        else:
            remarks.append(lost(f"group {_name(group, path)} selects no machine by MAC address, UUID or serial number"))
    return Estate(
        machines=tuple(_machine(own) for _, own in sorted(by_identity.items())),
        boots=tuple(_boot(profile, templates) for profile in profiles),
        remarks=tuple(remarks),
    )


def _name(group: Mapping[str, Any], path: str = "") -> str:
    return words(group.get("id")) or words(group.get("name")) or path


def _machine(groups: list[dict[str, Any]]) -> ImportedMachine:
    """Return the machine of the group with the shortest selector. matchbox uses the other groups later."""
    groups = sorted(groups, key=lambda group: (len(group["selector"]), _name(group)))
    first, later = groups[0], groups[1:]
    selector = first["selector"]
    mac, uuid = mac_of(selector.get("mac")), uuid_of(selector.get("uuid"))
    remarks = [
        lost(
            f"group {_name(group)} boots profile {group.get('profile')} where {_further(group)}: once provisioned, a "
            "server boots its disk"
        )
        for group in later
    ]
    variables, labels, more = _metadata(mapping(at(first, "metadata")))
    return ImportedMachine(
        name=_name(first),
        uuid=uuid,
        serial=words(selector.get("serial")),
        nics=(ImportedNic(mac=mac),) if mac else (),
        labels=labels,
        vars=variables,
        boot=words(first.get("profile")),
        remarks=(
            kept(f"group {_name(first)}"),
            *remarks,
            *remark_if(_further(first), lost(f"group {_name(first)} selects by {_further(first)}, too")),
            *remark_if(selector.get("mac") and mac is None, missing("its mac cannot be read")),
            *remark_if(selector.get("uuid") and uuid is None, missing("its uuid cannot be read")),
            *more,
        ),
    )


def _further(group: Mapping[str, Any]) -> str:
    selector = mapping(at(group, "selector"))
    return ", ".join(f"{key}={value}" for key, value in sorted(selector.items()) if key not in _IDENTITIES)


def _metadata(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[ImportRemark]]:
    # Variables and labels, without secrets and without values that are no text.
    variables, labels, remarks = {}, {}, []
    for key, value in sorted(metadata.items()):
        text = words(value)
        if text is None or "\n" in text:
            remarks.append(lost(f"metadata {key} is no text"))
        elif is_secret(f"{key}={text}"):
            remarks.append(lost(f"metadata {key} is a secret and was left out: give it by secrets"))
        else:
            try:
                variables[parse_variable_name(key)] = text
            except Malformed:
                remarks.append(lost(f"metadata {key}: a variable has no such name"))
            if key in ("role", "rack", "site", "pool"):
                try:
                    labels[parse_label_key(key)] = parse_label_value(text)
                except Malformed:
                    continue
    return variables, labels, remarks


def _boot(profile: Mapping[str, Any], templates: Texts) -> ImportedBoot:
    # matchbox's assets become assets of the fleet.
    boot, remarks = mapping(at(profile, "boot")), list[ImportRemark]()
    found = [str(argument) for argument in sequence(boot.get("args"))]
    leads = [argument for argument in found if "/ignition?" in argument]
    data, about = _data(profile, templates)
    remarks += about
    if data is not None and leads and not all(each.startswith(_FIRST_BOOT) for each in leads):
        data = None  # gitboot would give it to the live system that installs, too
        remarks = [lost("its user data is for the system that is installed: coreos-installer fetches it")]
    if data is not None:
        found = [argument for argument in found if argument not in leads]  # gitboot adds its own
    elif leads:
        remarks.append(guessed("its arguments still lead to the old system's user data"))
    arguments, more = arguments_of(found)
    ids = [key for key in ("cloud_id", "generic_id") if profile.get(key)]
    return ImportedBoot(
        name=_name(profile),
        kernel=_asset(boot.get("kernel")),
        initrds=tuple(filter(None, (_asset(each) for each in sequence(boot.get("initrd"))))),
        arguments=arguments,
        data=data,
        remarks=(*remarks, *more, *(lost(f"{key} {profile[key]}: gitboot serves no such file") for key in ids)),
    )


def _asset(url: object) -> str | None:
    text = words(url)
    text = text.rpartition(" ")[2] if text else None  # "--name main /assets/…", as iPXE takes it
    return f"assets:{text.removeprefix('/assets/')}" if text and text.startswith("/assets/") else text


def _data(profile: Mapping[str, Any], templates: Texts) -> tuple[ImportedData | None, list[ImportRemark]]:
    """Return Ignition that matchbox serves unchanged, or a remark. Templates of Go are not translated."""
    name = words(profile.get("ignition_id"))
    if name is None:
        return None, []
    if (text := templates.get(name)) is None:
        return None, [lost(f"user data {name} is not in the source")]
    if "{{" in text:
        return None, [lost(f"user data {name} is a template of Go's: translate it to Jinja2")]
    if secrets(text):
        return None, [lost(f"user data {name} holds a secret and was left out")]
    try:
        version = at(json.loads(text), "ignition", "version")
    except (ValueError, RecursionError):
        return None, [lost(f"user data {name} is no Ignition but what it is made from: convert it with butane")]
    major, _, minor = str(version).removesuffix(".0").partition(".")
    if major != "3" or minor not in tuple("0123456"):
        return None, [lost(f"user data {name} is Ignition {version}: convert it with ign-converter")]
    return ImportedData(format=f"Ignition/3.{minor}", text=text), [kept(f"user data {name}")]
