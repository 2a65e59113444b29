"""User data formats: check rendered user data, and determine how systems find user data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Final, NamedTuple
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


@lru_cache(maxsize=64)  # each format occurs in many boots
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
    if config.get("config") == "disabled":
        return
    if config.get("version") not in (1, 2):
        raise make_user_data_fault(
            "the rendered network-config has neither version 1 nor version 2, so cloud-init cannot read it",
            "begin the file with `version: 2` (netplan) or `version: 1`",
        )
    expected = _NETPLAN if config["version"] == 2 else _INTERFACES
    if (fault := _find_wrong_type("network", config, expected, is_alone=True, checked=set())) is not None:
        raise fault


class _Keys(NamedTuple):
    """The keys of a mapping and the types of their values."""

    types: Mapping[str, Any]
    required: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()  # exactly one of these keys is required
    others: Any = object  # the type of the values of other keys, or None if other keys are errors


# A type is a Python type, a constant, a list with the type of the elements, `_Keys`, or a tuple of these types. Source:
# Subiquity, `autoinstall-schema.json` and `server/controllers`. The installer only warns about unknown keys below
# `autoinstall`. It ignores a key without a value if the types of the key include None (`server/controller.py`).
_COMMANDS: Final = [(str, [str])]
_GROUPS: Final = _Keys({"append": [str], "override": [str]}, alternatives=("append", "override"))
_IDENTITY: Final = {**dict.fromkeys(("hostname", "password", "realname", "username"), str), "groups": ([str], _GROUPS)}
# Netplan stops if a value has another type. Source: netplan, `src/parse.c`.
_DEVICE: Final = _Keys(
    {
        "addresses": [(str, dict)],
        "interfaces": [(str, int)],
        "match": dict,
        "nameservers": dict,
        "routes": [_Keys({}, ("to",))],
    }
)
_DEVICES: Final = _Keys({"renderer": str}, others=_DEVICE)
_NETPLAN: Final = _Keys(
    {"version": 2, **dict.fromkeys(("bonds", "bridges", "ethernets", "tunnels", "vlans", "wifis"), _DEVICES)},
    ("version",),
)
# Version 1 of network-config. Source: `cloudinit/net/network_state.py`.
_INTERFACE_TYPES: Final = ("bond", "bridge", "infiniband", "loopback", "nameserver", "physical", "route", "vlan")
_INTERFACES: Final = _Keys(
    {"config": [_Keys({"subnets": ([dict], None), "type": _INTERFACE_TYPES}, ("type",))], "version": 1}, ("config",)
)
_APT: Final = {
    "disable_components": [("universe", "multiverse", "restricted", "contrib", "non-free")],
    "fallback": ("abort", "continue-anyway", "offline-install"),
    "geoip": bool,
    "mirror-selection": _Keys({"primary": [("country-mirror", _Keys({"arches": [str], "uri": str}, ("uri",)))]}),
    "preferences": [_Keys({"package": str, "pin": str, "pin-priority": int}, ("package", "pin", "pin-priority"))],
    "preserve_sources_list": bool,
    "primary": list,
    "sources": dict,
}
_LAYOUT: Final = {"mode": ("reformat_disk", "use_gap"), "name": str, "sizing-policy": ("all", "scaled", None)}
_SNAP: Final = _Keys({"channel": str, "classic": bool, "name": str}, ("name",), others=None)
_AUTOINSTALL: Final = _Keys(
    {
        "active-directory": (_Keys({"admin-name": str, "domain-name": str}, others=None), None),
        "apt": (_Keys(_APT), None),
        "codecs": (_Keys({"install": bool}), None),
        "debconf-selections": str,
        "drivers": (_Keys({"install": bool}), None),
        "early-commands": _COMMANDS,
        "error-commands": _COMMANDS,
        "identity": (_Keys(_IDENTITY, ("username", "hostname", "password"), others=None), None),
        "interactive-sections": [str],
        "kernel": (_Keys({"flavor": str, "package": str}, alternatives=("flavor", "package")), None),
        "kernel-crash-dumps": (_Keys({"enabled": (bool, None)}, ("enabled",), others=None), None),
        "keyboard": (_Keys({"layout": str, "toggle": (str, None), "variant": str}, ("layout",), others=None), None),
        "late-commands": _COMMANDS,
        "locale": str,
        "network": (_NETPLAN, _Keys({"network": _NETPLAN}, ("network",)), None),
        "oem": _Keys({"install": (bool, "auto")}, ("install",)),
        "packages": [str],
        "proxy": (str, None),
        "refresh-installer": (_Keys({"channel": str, "update": bool}, others=None), None),
        "reporting": (_Keys({}, others=_Keys({"type": str}, ("type",))), None),
        "shutdown": ("poweroff", "reboot", None),
        "snaps": [_SNAP],
        "source": (_Keys({"id": str, "search_drivers": bool}), None),
        "ssh": (_Keys({"allow-pw": bool, "authorized-keys": [str], "install-server": bool}), None),
        "storage": (_Keys({"config": [dict], "layout": _Keys(_LAYOUT, ("name",))}), None),
        "timezone": (str, None),
        "ubuntu-advantage": (_Keys({"token": str}), None),
        "ubuntu-pro": (_Keys({"token": str}), None),
        "updates": ("all", "security"),
        "user-data": (dict, None),
        "version": 1,
        "zdevs": [_Keys({"enabled": bool, "id": str})],
    },
    ("version",),
)
# The installer reads these keys before it runs the early commands, and the other keys afterwards from the file
# /autoinstall.yaml, which the commands can change.
_EARLY_KEYS: Final = frozenset({"early-commands", "error-commands", "interactive-sections", "reporting", "version"})
# The autoinstall keys that do not exist in cloud-init. The installer stops if one of them is at the root.
_ONLY_AUTOINSTALL: Final = frozenset(_AUTOINSTALL.types) - {
    *("apt", "drivers", "keyboard", "locale", "packages", "reporting", "ssh", "timezone"),
    *("ubuntu-advantage", "ubuntu-pro", "updates", "version"),
}
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "true or false",
    dict: "a mapping",
    int: "a whole number",
    list: "a list",
    str: "a string",
    _Keys: "a mapping",
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
    early = {key: value for key, value in section.items() if key in _EARLY_KEYS}
    for part in (early, section):
        if (fault := _find_wrong_type("autoinstall", part, _AUTOINSTALL, is_alone=is_alone, checked=set())) is not None:
            raise fault
        different = {id(each): each for each in early.get("early-commands", ())}  # aliases repeat the others
        commands = [[each] if isinstance(each, str) else each for each in different.values()]
        if any("autoinstall.yaml" in word for words in commands for word in words):
            return


def _find_wrong_type(
    path: str, value: Any, expected: Any, *, is_alone: bool, checked: set[tuple[int, int]]
) -> Malformed | None:
    """Return an error for the first value with a wrong type, or None.

    If ``is_alone`` is false, the machine merges another value into this value, and the other value can have the
    required keys. ``checked`` contains the identities of values that have their type. YAML aliases repeat such values.
    """
    types = expected if type(expected) is tuple else (expected,)
    faults = []
    for each in types:
        if (id(value), id(each)) in checked:
            return None
        if not _has_type(value, each):
            continue
        fault = next(_find_wrong_elements(path, value, each, is_alone=is_alone, checked=checked), None)
        if fault is None:
            checked.add((id(value), id(each)))
            return None
        faults.append(fault)
    if faults:
        return faults[0]
    names = dict.fromkeys(_name_type(each) for each in types if each is not None)
    return make_user_data_fault(
        f"{path} in the rendered user data must be {' or '.join(names)}, found {_describe(value)}",
        "quote the value, because YAML does not read it as text" if str in types else "correct the template",
    )


def _find_wrong_elements(
    path: str, value: Any, expected: Any, *, is_alone: bool, checked: set[tuple[int, int]]
) -> Iterator[Malformed]:
    check = partial(_find_wrong_type, is_alone=is_alone, checked=checked)
    if isinstance(expected, list):
        for index, element in enumerate(value):
            if (fault := check(f"{path}[{index}]", element, expected[0])) is not None:
                yield fault
    if not isinstance(expected, _Keys):
        return
    where = f"{path} in the rendered user data"
    for key in expected.required if is_alone else ():
        if key not in value:
            yield make_user_data_fault(f"{where} has no {key}", f"add `{key}` below `{path}`")
    if is_alone and expected.alternatives and len(value.keys() & set(expected.alternatives)) != 1:
        yield make_user_data_fault(
            f"{where} must have either the key {' or '.join(expected.alternatives)}", "correct the template"
        )
    for key, element in value.items():
        if key in expected.types or expected.others is not None:
            fault = check(f"{path}.{key}", element, expected.types.get(key, expected.others))
        else:
            fault = make_user_data_fault(
                f"{where} has the key {_describe(key)}, which the installer rejects",
                format_suggestion(key, expected.types, "remove the key"),
            )
        if fault is not None:
            yield fault


def _has_type(value: object, expected: Any) -> bool:
    if isinstance(expected, list | _Keys):
        return isinstance(value, list if isinstance(expected, list) else dict)
    if isinstance(value, bool):
        return expected in (bool, object)
    return isinstance(value, expected) if isinstance(expected, type) else value == expected


def _name_type(expected: Any) -> str:
    kind = type(expected) if isinstance(expected, list | _Keys) else expected
    return _TYPE_NAMES[kind] if isinstance(kind, type) else str(kind)


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
        # debconf splits bytes, so a no-break space is part of a word
        words = [word.decode(errors="replace") for word in answer.encode(errors="replace").split(maxsplit=3)]
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


# The keys of a machine configuration, and the machine types. Talos also reads a patch without `version` and `type`, but
# then lacks its certificates. `join` is an old name of `worker`.
_TALOS_KEYS: Final = ("cluster", "debug", "machine", "persist", "version")
_TALOS_TYPES: Final = ("controlplane", "init", "join", "worker")


def _check_talos(text: str) -> None:
    """Check that the text is one machine configuration and other documents.

    Sources: Talos, `configloader/internal/decoder/decoder.go`, `container/container.go` and `machine/machine.go` in
    `pkg/machinery/config`.
    """
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
    lines: dict[tuple[object, object], int] = {}
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
        elif document.get("version") != "v1alpha1":
            raise _make_talos_fault(
                "the rendered text is not a Talos configuration, because it has no `version: v1alpha1`", line
            )
        elif unknown := [key for key in document if key not in _TALOS_KEYS]:
            raise make_user_data_fault(
                f"the rendered Talos configuration has the key {quote_value(unknown[0])}, which Talos rejects",
                format_suggestion(unknown[0], _TALOS_KEYS, "remove the key"),
                line,
                Code.TALOS_DOCUMENT,
            )
        name = document.get("kind", "machine configuration"), document.get("name")
        if not isinstance(name[0], str) or not isinstance(name[1], str | None):
            raise make_user_data_fault(
                f"`kind` and `name` of the document on line {line} of the rendered Talos configuration must be text",
                "correct the template",
                line,
                Code.TALOS_DOCUMENT,
            )
        if lines.setdefault(name, line) != line:
            raise make_user_data_fault(
                f"a second {name[0]} begins on line {line} of the rendered Talos configuration",
                "merge the two documents, or give them different names",
                line,
                Code.TALOS_DOCUMENT,
            )
        machine = document.get("machine")
        is_typed = isinstance(machine, dict) and machine.get("type") in _TALOS_TYPES
        if "machine" in document and "kind" not in document and not is_typed:
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
_PROFILE: Final = f"{_YAST} profile"
# The text of an element by its type. Source: yast2, `XML.rb`.
_YAST_TEXTS: Final = {
    **dict.fromkeys(("disksize", "list", "map", "string"), re.compile(".*", re.DOTALL)),
    "boolean": re.compile("true|false"),
    "integer": re.compile(".*[0-9].*", re.DOTALL),
    "symbol": re.compile(".+", re.DOTALL),
}
_YAST_CONTAINERS: Final[Sequence[Sequence[str]]] = (
    [],
    ["list"],
    ["map"],
)  # without a type, an element with elements is a map


@dataclass
class _YastElement:
    """An element that is not closed yet. YaST does not read the root as an element, and no element below a text."""

    types: list[str]  # the values of its attributes `t` and `type`
    is_read: bool
    text: str = ""
    has_children: bool = False
    is_text: bool = False  # a CDATA section makes an element a text if it has no type

    def find_fault(self) -> str | None:
        text = self.text.strip()
        if len(self.types) > 1:
            return "has both attributes `t` and `type`"
        if not self.types:
            mixes = text and self.has_children and not self.is_text
            return f"contains both elements and the text {quote_value(text)}" if mixes else None
        (type,) = self.types
        if type in _YAST_TEXTS and _YAST_TEXTS[type].fullmatch(text) is not None:
            return None
        return f"has the type {quote_value(type)} and the text {quote_value(text)}"


def _check_autoyast(text: str) -> None:
    """Check that the text is well-formed XML and an AutoYaST profile. Entity declarations are rejected."""
    roots: list[str] = []
    open_elements: list[_YastElement] = []
    parser = ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def start_element(name: str, attributes: Mapping[str, str]) -> None:
        roots.append(name)
        types = [value for key, value in attributes.items() if key.rpartition(" ")[2] in ("t", "type")]
        is_read = roots[0] == _PROFILE and len(roots) > 1
        if open_elements:
            parent = open_elements[-1]
            parent.has_children = True
            is_read = is_read and (len(open_elements) == 1 or (parent.is_read and parent.types in _YAST_CONTAINERS))
        open_elements.append(_YastElement(types, is_read))

    def end_element(name: str) -> None:
        element = open_elements.pop()
        if element.is_read and (fault := element.find_fault()) is not None:
            raise make_user_data_fault(
                f"<{name.rpartition(' ')[2]}> in the rendered AutoYaST profile {fault}",
                "use the types boolean (true or false), integer, string, symbol, list or map",
                parser.CurrentLineNumber,
                Code.AUTOYAST_DOCUMENT,
            )

    def add_text(data: str) -> None:
        open_elements[-1].text += data

    def start_cdata() -> None:
        open_elements[-1].is_text = True

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.CharacterDataHandler = add_text
    parser.StartCdataSectionHandler = start_cdata
    parser.EntityDeclHandler = _reject_entity
    try:
        parser.Parse(text.encode(errors="surrogatepass"), True)
    except ExpatError as error:
        raise make_user_data_fault(
            f"the rendered AutoYaST profile is not well-formed XML: {error}",
            "correct the template",
            error.lineno,
            Code.AUTOYAST_DOCUMENT,
        ) from None
    if roots[0] != _PROFILE:
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
