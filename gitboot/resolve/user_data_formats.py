"""User data formats: check rendered user data, and determine how systems find user data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from xml.parsers.expat import ExpatError, ParserCreate

import yaml

from gitboot.jsonio import Digest, compute_digest
from gitboot.model.boot_image import UserDataFormat
from gitboot.model.scalars import Malformed, make_user_data_fault, quote_value
from gitboot.problems import Code
from gitboot.resolve import cloud_init
from gitboot.resolve.ignition import check_ignition
from gitboot.resolve.kickstart import check_kickstart
from gitboot.resolve.server_decision import UserDataFiles
from gitboot.text import format_suggestion

# The file name that systems expect, by format. For NoCloud formats, it is the main file in the folder.
_FILE_NAME: Final = {
    UserDataFormat.IGNITION: "config.ign",
    UserDataFormat.KICKSTART: "ks.cfg",
    UserDataFormat.PRESEED: "preseed.cfg",
    UserDataFormat.CLOUD_INIT: "user-data",
    UserDataFormat.AUTOINSTALL: "user-data",
    UserDataFormat.TALOS: "talos.yaml",
    UserDataFormat.AUTOYAST: "autoinst.xml",
    UserDataFormat.COMBUSTION: "script",
    UserDataFormat.GENERIC: "generic",
}

# The kernel arguments with which the first boot finds its user data, by format. Sources: Ignition, "Kernel
# parameters"; cloud-init, "NoCloud"; Ubuntu, "Autoinstall: providing configuration"; Anaconda, "inst.ks";
# Debian installation guide, B.2.3; Talos, "Kernel arguments"; AutoYaST guide, "Invoking the installation"; Combustion's
# README. docs/how-to/user-data.md also contains this table.
_ARGUMENTS: Final = {
    UserDataFormat.IGNITION: ("ignition.config.url={url}",),
    UserDataFormat.CLOUD_INIT: ("ds=nocloud;s={url}",),
    UserDataFormat.AUTOINSTALL: ("autoinstall", "ds=nocloud;s={url}"),
    UserDataFormat.KICKSTART: ("inst.ks={url}",),
    UserDataFormat.PRESEED: ("auto=true", "url={url}"),
    UserDataFormat.TALOS: ("talos.platform=metal", "talos.config={url}"),
    UserDataFormat.AUTOYAST: ("autoyast={url}",),
    UserDataFormat.COMBUSTION: ("combustion.url={url}",),
    UserDataFormat.GENERIC: (),
}


# The kernel arguments that make Ignition run. Sources: `dracut/30ignition/ignition-generator` of coreos/ignition and of
# flatcar/bootengine.
_FIRST_BOOT: Final = ("ignition.firstboot", "flatcar.first_boot", "coreos.first_boot")


def lacks_ignition_argument(format: str, arguments: Sequence[str]) -> bool:
    """Return whether no kernel argument makes Ignition run.

    Of several arguments with the same name, only the last counts.
    """
    if parse_family(format) is not UserDataFormat.IGNITION:
        return False
    values = {name: value if equals else name for name, equals, value in (each.partition("=") for each in arguments)}
    return all(values.get(name, "") in {"", "0", "no", "off"} for name in _FIRST_BOOT)


# The label of the volume on which systems look for user data, and the folder, by format. Sources: cloud-init,
# "NoCloud"; Talos, "NoCloud"; Anaconda, "inst.ks"; AutoYaST guide, "Invoking the installation"; the READMEs of
# Combustion and of ignition-dracut in openSUSE. Preseed and Generic cannot be read from a volume.
_VOLUMES: Final = {
    UserDataFormat.CLOUD_INIT: ("cidata", ""),
    UserDataFormat.AUTOINSTALL: ("cidata", ""),
    UserDataFormat.TALOS: ("cidata", ""),
    UserDataFormat.KICKSTART: ("OEMDRV", ""),
    UserDataFormat.AUTOYAST: ("OEMDRV", ""),
    UserDataFormat.COMBUSTION: ("combustion", "combustion/"),
    UserDataFormat.IGNITION: ("ignition", "ignition/"),
}


def parse_family(format: str) -> UserDataFormat:
    return UserDataFormat(format.partition("/")[0])


def user_data_arguments(user_data: UserDataFiles) -> tuple[str, ...]:
    """Return the kernel arguments with which the first boot finds its user data."""
    return tuple(argument.format(url=user_data.url) for argument in _ARGUMENTS[parse_family(user_data.format)])


def find_volume(format: str) -> tuple[str, str] | None:
    """Return the volume label and the folder where systems look for user data of this format, or None if systems do not
    read a volume.
    """
    return _VOLUMES.get(parse_family(format))


def format_meta_data(instance: Mapping[str, str]) -> str:
    """Format the NoCloud meta-data file, which identifies the system."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(instance.items()))


def bundle_files(
    format: str, text: str, extra_files: Mapping[str, str], *, instance: Mapping[str, str], base_url: str
) -> UserDataFiles:
    """Return rendered user data as the files that gitboot publishes.

    For NoCloud, these include a meta-data file and the additional files ``extra_files``.
    """
    name = _FILE_NAME[parse_family(format)]
    if name != "user-data":
        content = Digest(sha256(text.encode()).hexdigest())
        return UserDataFiles(format=format, files={name: text}, digest=content, url=f"{base_url}/o/{content}/{name}")
    files = dict(sorted({"meta-data": format_meta_data(instance), "user-data": text, **extra_files}.items()))
    bundle = compute_digest({name: sha256(content.encode()).hexdigest() for name, content in files.items()})
    return UserDataFiles(format=format, files=files, digest=bundle, url=f"{base_url}/o/{bundle}/")


def is_format_supported(format: str, supported: str) -> bool:
    """Return whether an image that supports ``supported`` can read user data in the format ``format``."""
    if supported == "None" or parse_family(format) is not parse_family(supported):
        return False
    return _parse_minor(format) <= _parse_minor(supported)


def _parse_minor(format: str) -> int:
    return int(format.partition("/3.")[2] or 0)


def check_user_data(format: str, text: str) -> None:
    """Raise `Malformed` if rendered user data is invalid for its format.

    The error contains the line number if known.
    """
    if (fault := _find_fault(format, text)) is not None:
        raise Malformed(fault.code, str(fault), fault.hint, fault.at)


@lru_cache(maxsize=64)  # few, because each text has up to 1 MiB, and servers often share user data
def _find_fault(format: str, text: str) -> Malformed | None:
    try:
        if (family := parse_family(format)) is UserDataFormat.IGNITION:
            check_ignition(format, text)
        elif (check_text := _CHECKS.get(family)) is not None:
            check_text(text)
    except Malformed as fault:
        return fault
    return None


def check_extra_file(format: str, name: str, text: str) -> None:
    """Raise `Malformed` if an additional file of NoCloud has an invalid name or invalid content."""
    if _FILE_NAME[parse_family(format)] != "user-data":
        raise Malformed(Code.BESIDE_USER_DATA, f"{name} is a NoCloud file, which {format} does not use", "remove it")
    try:
        if name == "network-config":
            _check_network_config(text)
        elif text.strip():
            cloud_init.read_cloud_configs(text)
    except Malformed as fault:
        raise Malformed(
            Code.BESIDE_USER_DATA,
            str(fault).replace("the rendered user data", f"the rendered {name}").replace("the user data", name),
            fault.hint,
            fault.at,
        ) from None


def _check_network_config(text: str) -> None:
    """Check that a network-config has a supported version.

    Sources: cloud-init, "Networking config"; `cloudinit/net/network_state.py`.
    """
    found = cloud_init.parse_yaml(text, "the rendered network-config")
    config = found.get("network", found) if isinstance(found, dict) else None
    if not isinstance(config, dict):
        raise make_user_data_fault(
            "the rendered network-config is not a mapping, so cloud-init ignores it",
            "begin the file with `version: 2` (netplan) or `version: 1`",
        )
    if config.get("config") != "disabled" and config.get("version") not in (1, 2):
        raise make_user_data_fault(
            "the rendered network-config has neither version 1 nor version 2, so cloud-init cannot read it",
            "begin the file with `version: 2` (netplan) or `version: 1`",
        )


# The types of the keys below `autoinstall:`. Source: Subiquity, `autoinstall-schema.json`. The installer only warns
# about unknown keys. It ignores a key without a value if the types of the key include None (`server/controller.py`).
_AUTOINSTALL_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("interactive-sections", "packages", "snaps", "zdevs"), (list,)),
    **dict.fromkeys(("early-commands", "error-commands", "late-commands"), (list,)),
    **dict.fromkeys(("debconf-selections", "locale", "updates"), (str,)),
    **dict.fromkeys(("proxy", "shutdown", "timezone"), (str, type(None))),
    **dict.fromkeys(("active-directory", "apt", "codecs", "drivers", "identity", "kernel"), (dict, type(None))),
    **dict.fromkeys(("kernel-crash-dumps", "keyboard", "refresh-installer", "reporting"), (dict, type(None))),
    **dict.fromkeys(("source", "ssh", "storage", "ubuntu-advantage", "ubuntu-pro", "user-data"), (dict, type(None))),
    "oem": (dict,),
}
# the types of the fields below these keys
_FIELD_TYPES: Final[Mapping[str, Mapping[str, type]]] = {
    "active-directory": {"admin-name": str, "domain-name": str},
    "codecs": {"install": bool},
    "drivers": {"install": bool},
    "identity": dict.fromkeys(("hostname", "password", "realname", "username"), str),
    "kernel": {"flavor": str, "package": str},
    "keyboard": {"layout": str, "variant": str},
    "refresh-installer": {"channel": str, "update": bool},
    "source": {"id": str, "search_drivers": bool},
    "ssh": {"allow-pw": bool, "authorized-keys": list, "install-server": bool},
}
_LISTS_OF_STRINGS: Final = ("interactive-sections", "packages", "ssh.authorized-keys")
# the keys without which the installer stops
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "identity": ("username", "hostname", "password"),
    "kernel-crash-dumps": ("enabled",),
    "keyboard": ("layout",),
    "oem": ("install",),
}
_COMMANDS: Final = ("early-commands", "error-commands", "late-commands")
_CHOICES: Final = {"shutdown": ("poweroff", "reboot"), "updates": ("all", "security")}
# The autoinstall keys that do not exist in cloud-init. The installer stops if one of them is at the root.
_ONLY_AUTOINSTALL: Final = frozenset(_AUTOINSTALL_TYPES) - {
    *("apt", "drivers", "keyboard", "locale", "packages", "reporting", "ssh", "timezone"),
    *("ubuntu-advantage", "ubuntu-pro", "updates"),
}
_TYPE_NAMES: Final[Mapping[type, str]] = {
    list: "a list",
    str: "a string",
    dict: "a mapping",
    bool: "true or false",
}


def _check_autoinstall(text: str) -> None:
    """Check the configuration of the Ubuntu installer, which is below the key `autoinstall` in a cloud-config."""
    configs, is_complete = cloud_init.read_cloud_configs(text)
    for config in configs:
        if (misplaced := sorted(_ONLY_AUTOINSTALL & {key for key in config if isinstance(key, str)})) != []:
            raise make_user_data_fault(
                f"the rendered user data has the autoinstall key {misplaced[0]} outside `autoinstall`",
                "move the key under `autoinstall`",
            )
    found = [config["autoinstall"] for config in configs if "autoinstall" in config]
    if not found and is_complete:
        raise make_user_data_fault(
            "the rendered user data is not an autoinstall configuration",
            "begin the user data with #cloud-config, and put all settings under `autoinstall`",
        )
    for each in found:
        _check_autoinstall_section(each, is_alone=len(found) == 1 and is_complete)


def _check_autoinstall_section(section: object, *, is_alone: bool) -> None:
    if not isinstance(section, dict):
        raise make_user_data_fault(
            f"autoinstall in the rendered user data is {quote_value(section)}, not a mapping",
            "indent the keys under `autoinstall`",
        )
    version = section.get("version")
    if (version is not None or is_alone) and (version != 1 or isinstance(version, bool)):
        raise make_user_data_fault(
            "`autoinstall.version` in the rendered user data is not 1", "write `version: 1` under `autoinstall`"
        )
    for key, value in section.items():
        _check_autoinstall_value(str(key), value, _AUTOINSTALL_TYPES.get(key, (object,)))
        if value is None:
            continue
        for field, kind in _FIELD_TYPES.get(key, {}).items():
            if field in value:
                _check_autoinstall_value(f"{key}.{field}", value[field], (kind,))
        if is_alone and (missing := [each for each in _REQUIRED.get(key, ()) if each not in value]):
            raise make_user_data_fault(
                f"autoinstall.{key} in the rendered user data has no {missing[0]}", "add the missing key"
            )
        if is_alone and (requirement := _find_autoinstall_requirement(key, value)) is not None:
            field, must = requirement
            raise make_user_data_fault(
                f"autoinstall.{field} in the rendered user data must {must}", "correct the template"
            )
        if key in _CHOICES and value not in _CHOICES[key]:
            raise make_user_data_fault(
                f"autoinstall.{key} in the rendered user data must be {' or '.join(_CHOICES[key])}, found "
                f"{_describe(value)}",
                "correct the template",
            )
        for command in value if key in _COMMANDS else ():
            words = command if isinstance(command, list) else [command]
            if not all(isinstance(word, str) for word in words):
                raise make_user_data_fault(
                    f"autoinstall.{key} in the rendered user data contains a command that is neither a string nor a "
                    "list of strings",
                    "quote the command if it contains a colon and a space",
                )


def _find_autoinstall_requirement(key: str, value: Any) -> tuple[str, str] | None:
    """Return the field with a wrong value and what the value must be, or None if the value of the key is correct."""
    match key:
        case "kernel" if len({"flavor", "package"} & value.keys()) != 1:
            return key, "have either the key flavor or the key package"
        case "kernel-crash-dumps" if not isinstance(value["enabled"], bool | None):
            return f"{key}.enabled", "be true, false or null"
        case "oem" if value["install"] not in (True, False, "auto"):
            return f"{key}.install", "be true, false or auto"
        case "snaps" if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in value):
            return key, "be a list of mappings with the key name"
    return None


def _check_autoinstall_value(key: str, value: object, types: tuple[type, ...]) -> None:
    if not isinstance(value, types):
        raise make_user_data_fault(
            f"autoinstall.{key} in the rendered user data must be {_TYPE_NAMES[types[0]]}, found {_describe(value)}",
            "correct the template",
        )
    if key in _LISTS_OF_STRINGS and isinstance(value, list) and not all(isinstance(each, str) for each in value):
        raise make_user_data_fault(
            f"autoinstall.{key} in the rendered user data contains a value that is not a string",
            "quote the values that YAML reads as numbers, and remove empty ones",
        )


def _describe(value: object) -> str:
    return quote_value(value) if isinstance(value, str | list | dict) or value is None else quote_value(str(value))


# The types of debconf answers. Source: debconf-set-selections(1). `seen` sets a flag. Other lines are skipped.
_PRESEED_TYPES: Final = ("boolean", "multiselect", "note", "password", "seen", "select", "string", "text", "title")


def _check_preseed(text: str) -> None:
    number, lines = 0, iter(text.split("\n"))
    for line in lines:
        number += 1
        first_line, answer = number, line.removesuffix("\r")
        while answer.endswith("\\") and (more := next(lines, None)) is not None:
            number += 1
            answer = answer[:-1] + more.removesuffix("\r")
        words = answer.split(maxsplit=3)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3:
            raise make_user_data_fault(
                f"line {first_line} of the rendered preseed is not an answer: {quote_value(answer.strip())}",
                "write `OWNER QUESTION TYPE VALUE`, for example `d-i clock-setup/utc boolean true`",
                first_line,
            )
        if words[2] not in _PRESEED_TYPES:
            raise make_user_data_fault(
                f"debconf skips line {first_line} of the rendered preseed: there is no type {quote_value(words[2])}",
                format_suggestion(words[2], _PRESEED_TYPES, f"use {', '.join(_PRESEED_TYPES)}"),
                first_line,
            )


def _check_talos(text: str) -> None:
    """Check that the machine configuration has `version`, and that all other documents have `apiVersion` and `kind`."""
    try:
        documents = [(node, _read_node(node)) for node in _parse_documents(text)]
    except (yaml.YAMLError, RecursionError) as error:
        message, line = cloud_init.describe_yaml_error(error, text)
        where = f"line {line} of the rendered Talos configuration" if line else "the rendered Talos configuration"
        raise make_user_data_fault(
            f"{where} is not YAML: {message}",
            "correct the template, and check its indentation and brackets",
            line,
            Code.TALOS_DOCUMENT,
        ) from None
    if text.startswith("#cloud-config"):
        raise _make_talos_fault("the rendered text begins with `#cloud-config`, which Talos does not support", 1)
    if not documents:
        raise _make_talos_fault("the rendered Talos configuration contains no documents", 0)
    machine_count = 0
    for node, document in documents:
        line = cloud_init.find_line_number(text, node.start_mark)
        if not isinstance(document, dict):
            raise _make_talos_fault(
                f"the document that begins on line {line} of the rendered text is not a mapping", line
            )
        if "apiVersion" in document or "kind" in document:
            if not (document.get("kind") and str(document.get("apiVersion", "")).endswith("v1alpha1")):
                raise make_user_data_fault(
                    f"the document that begins on line {line} of the rendered Talos configuration needs apiVersion "
                    "and kind",
                    "write `apiVersion: v1alpha1` and the document's `kind`",
                    line,
                    Code.TALOS_DOCUMENT,
                )
            continue
        if document.get("version") != "v1alpha1":
            raise _make_talos_fault(
                "the rendered text is not a Talos configuration, because it has no `version: v1alpha1`", line
            )
        machine_count += 1
        if machine_count > 1:
            raise make_user_data_fault(
                f"a second machine configuration begins on line {line} of the rendered Talos configuration",
                "merge the documents that contain `version: v1alpha1` into one document",
                line,
                Code.TALOS_DOCUMENT,
            )
        machine = document.get("machine")
        if "machine" in document and (
            not isinstance(machine, dict) or machine.get("type") not in ("controlplane", "init", "worker")
        ):
            raise make_user_data_fault(
                "the rendered Talos configuration has no valid machine.type",
                "write `type: controlplane` or `type: worker` under `machine`",
                0,
                Code.TALOS_DOCUMENT,
            )


def _make_talos_fault(message: str, line: int) -> Malformed:
    return make_user_data_fault(
        message,
        "commit the output of `talosctl gen config` or `talosctl machineconfig patch`",
        line,
        Code.TALOS_DOCUMENT,
    )


def _parse_documents(text: str) -> list[yaml.Node]:
    if cloud_init.exceeds_max_depth(text):
        raise RecursionError("the text is nested too deeply")
    found = yaml.compose_all(text, Loader=yaml.CSafeLoader)
    return [node for node in found if not (isinstance(node, yaml.ScalarNode) and not node.value)]


def _read_node(node: yaml.Node, levels: int = 3) -> object:
    """Read the top levels of a document, with scalars as text. Raises `yaml.YAMLError` for a duplicate key."""
    if not isinstance(node, yaml.MappingNode):
        return node.value if isinstance(node, yaml.ScalarNode) else []
    found: dict[str, object] = {}
    for key, value in node.value if levels else ():
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in found:
            raise yaml.MarkedYAMLError(None, None, f"the key {quote_value(name)} appears twice", key.start_mark)
        found[name] = _read_node(value, levels - 1)
    return found


_YAST: Final = "http://www.suse.com/1.0/yast2ns"


def _check_autoyast(text: str) -> None:
    """Check that the text is well-formed XML and an AutoYaST profile. Entity declarations are rejected."""
    roots: list[str] = []
    parser = ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, _: roots.append(name) if not roots else None
    parser.EntityDeclHandler = _reject_entity
    try:
        parser.Parse(text.encode(), True)
    except ExpatError as error:
        raise make_user_data_fault(
            f"the rendered AutoYaST profile is not well-formed XML: {error}",
            "correct the template",
            error.lineno,
            Code.AUTOYAST_DOCUMENT,
        ) from None
    if roots[:1] != [f"{_YAST} profile"]:
        raise make_user_data_fault(
            f"the root element of the rendered XML is <{quote_value(roots[0].rpartition(' ')[2])}>, not an AutoYaST "
            "profile",
            f'begin the text with <profile xmlns="{_YAST}">',
            code=Code.AUTOYAST_DOCUMENT,
        )


def _reject_entity(name: str, *_: object) -> None:
    raise make_user_data_fault(
        f"the rendered AutoYaST profile declares the entity {quote_value(name)}",
        "replace each use of the entity with its text, and remove the declaration",
        code=Code.AUTOYAST_DOCUMENT,
    )


def _check_combustion(text: str) -> None:
    if not text.startswith("#!"):
        raise make_user_data_fault(
            f"the system does not run a Combustion script that begins with {quote_value(text.partition(chr(10))[0])}",
            "begin the script with `#!/bin/bash`; if it needs the network, add the line `# combustion: network`",
            code=Code.COMBUSTION_SCRIPT,
        )


# The other formats: Ignition, whose check needs the version, and Generic, which accepts any text.
_CHECKS: Final[Mapping[UserDataFormat, Callable[[str], object]]] = {
    UserDataFormat.CLOUD_INIT: cloud_init.read_cloud_configs,
    UserDataFormat.AUTOINSTALL: _check_autoinstall,
    UserDataFormat.KICKSTART: check_kickstart,
    UserDataFormat.PRESEED: _check_preseed,
    UserDataFormat.TALOS: _check_talos,
    UserDataFormat.AUTOYAST: _check_autoyast,
    UserDataFormat.COMBUSTION: _check_combustion,
}
