"""Ignition user data: check the types of all fields, and the values that Ignition would reject.

Source: Ignition's configuration specifications 3.0 to 3.6, and their JSON schemas. Unknown fields are not an error,
because Ignition ignores them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import posixpath
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from gitboot.model.scalars import Malformed, make_user_data_fault, quote_value

# A field is a type, a list with one type, or a mapping of fields. The number is the minor version 3.x that added the
# field.
_HEADERS: Final = [{"name": str, "value": str}]
_RESOURCE: Final = {
    "source": str,
    "verification": {"hash": str},
    "compression": (str, 1),
    "httpHeaders": (_HEADERS, 1),
}
_FILE_CONTENTS: Final = _RESOURCE | {"compression": str}
_OWNER: Final = {"id": int, "name": str}
_NODE: Final = {"path": str, "overwrite": bool, "user": _OWNER, "group": _OWNER}
_FIELDS: Final[Mapping[str, Any]] = {
    "ignition": {
        "version": str,
        "config": {"merge": [_RESOURCE], "replace": _RESOURCE},
        "timeouts": {"httpResponseHeaders": int, "httpTotal": int},
        "security": {"tls": {"certificateAuthorities": [_RESOURCE]}},
        "proxy": ({"httpProxy": str, "httpsProxy": str, "noProxy": [str]}, 1),
    },
    "storage": {
        "disks": [
            {
                "device": str,
                "wipeTable": bool,
                "partitions": [
                    {
                        **dict.fromkeys(("label", "typeGuid", "guid"), str),
                        **dict.fromkeys(("number", "sizeMiB", "startMiB"), int),
                        **dict.fromkeys(("wipePartitionEntry", "shouldExist"), bool),
                        "resize": (bool, 2),
                    }
                ],
            }
        ],
        "raid": [{"name": str, "level": str, "spares": int, "devices": [str], "options": [str]}],
        "filesystems": [
            {
                **dict.fromkeys(("path", "device", "format", "label", "uuid"), str),
                "options": [str],
                "wipeFilesystem": bool,
                "mountOptions": ([str], 1),
            }
        ],
        "files": [{**_NODE, "mode": int, "contents": _FILE_CONTENTS, "append": [_FILE_CONTENTS]}],
        "directories": [{**_NODE, "mode": int}],
        "links": [{**_NODE, "target": str, "hard": bool}],
        "luks": (
            [
                {
                    **dict.fromkeys(("name", "label", "uuid", "device"), str),
                    "keyFile": _RESOURCE,
                    "wipeVolume": bool,
                    "options": [str],
                    "clevis": {
                        "custom": {"pin": str, "config": str, "needsNetwork": bool},
                        "tpm2": bool,
                        "tang": [{"url": str, "thumbprint": str, "advertisement": (str, 4)}],
                        "threshold": int,
                    },
                    "discard": (bool, 4),
                    "openOptions": ([str], 4),
                    "cex": ({"enabled": bool}, 5),
                }
            ],
            2,
        ),
    },
    "systemd": {
        "units": [
            {
                **dict.fromkeys(("name", "contents"), str),
                **dict.fromkeys(("enabled", "mask"), bool),
                "dropins": [{"name": str, "contents": str}],
            }
        ]
    },
    "passwd": {
        "users": [
            {
                **dict.fromkeys(("name", "passwordHash", "gecos", "homeDir", "primaryGroup", "shell"), str),
                "sshAuthorizedKeys": [str],
                "groups": [str],
                **dict.fromkeys(("noCreateHome", "noUserGroup", "system", "noLogInit"), bool),
                "uid": int,
                "shouldExist": (bool, 2),
            }
        ],
        "groups": [{"name": str, "gid": int, "passwordHash": str, "system": bool, "shouldExist": (bool, 2)}],
    },
    "kernelArguments": ({"shouldExist": [str], "shouldNotExist": [str]}, 3),
}
_MAX_MINOR: Final = 6
_KINDS: Final = {str: "a string", int: "a whole number", bool: "true or false"}
_MAX_INTEGER: Final = 2**63
# For each list, the field whose values must be unique in the list. Source: `config/v3_4/types/*.go`, the methods Key
# and Validate.
_UNIQUE_FIELDS: Final = (
    ("passwd", "users", "name"),
    ("passwd", "groups", "name"),
    ("systemd", "units", "name"),
    ("storage", "disks", "device"),
    ("storage", "filesystems", "device"),
    ("storage", "raid", "name"),
    ("storage", "files", "path"),
    ("storage", "directories", "path"),
    ("storage", "links", "path"),
    ("storage", "luks", "name"),
)
_UNIT_SUFFIXES: Final = (
    ".service",
    ".socket",
    ".device",
    ".mount",
    ".automount",
    ".swap",
    ".target",
    ".path",
    ".timer",
    ".snapshot",
    ".slice",
    ".scope",
)
_NEEDS_FORMAT: Final = ("path", "label", "uuid", "wipeFilesystem", "options", "mountOptions")
_MAX_MODE: Final = 0o7777
# the minor version that added each filesystem format, and each URL scheme
_FORMATS: Final = {"ext4": 0, "btrfs": 0, "xfs": 0, "vfat": 0, "swap": 0, "none": 3}
_SCHEMES: Final = {"http": 0, "https": 0, "tftp": 0, "s3": 0, "data": 0, "gs": 2, "arn": 4}
_MAX_LABEL: Final = {"ext4": 16, "btrfs": 256, "xfs": 12, "swap": 15, "vfat": 11}  # in bytes
_AUTHORITY: Final = r"(?:[^\s/?#@]*@)?(?:\[[^\s/?#\]]*\]|[^\s/?#:\[\]{}|\\^`]*)(?::[0-9]*)?"
_URL: Final = re.compile(
    rf"(?!.*[\x00-\x1f\x7f])[a-z0-9]+:(?://{_AUTHORITY}(?=[/?#]|\Z)|(?!//))(?:[^%?#]|%[0-9a-f]{{2}})*(?:[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
# The data URLs that Ignition reads. Source: vincent-petithory/dataurl, lex.go.
_WORD: Final = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]"
_MEDIA_TYPE: Final = rf"(?:(?:application|audio|image|message|multipart|text|video){_WORD}*|[xX]-{_WORD}*)/{_WORD}*"
_PARAMETER: Final = rf';{_WORD}++=(?:{_WORD}++|"(?:[^"\\]|\\.)*")'
_BASE64: Final = r"(?:[0-9A-Za-z+/]{4})*+(?:[0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?"
_URL_TEXT: Final = r"(?:[!$&'()*+,./:;=?@_~0-9A-Za-z-]|%[0-9A-Fa-f]{2})*+"
_DATA_URL: Final = re.compile(
    rf"data:(?:{_MEDIA_TYPE})?(?:{_PARAMETER})*(?:;base64,({_BASE64})|,({_URL_TEXT}))", re.ASCII
)
_HASH: Final = re.compile(r"sha256-[0-9a-fA-F]{64}|sha512-[0-9a-fA-F]{128}")
_HASH_3_0: Final = re.compile(r"sha512-[0-9a-fA-F]{128}")
_MAX_CONTENT: Final = 32 * 1024 * 1024  # bytes; gitboot does not check compressed content that is larger
_GUID: Final = re.compile(r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_MAX_PARTITION_LABEL: Final = 36
_MAX_VOLUME_LABEL: Final = 47
# whether an array of each level can use spares
_RAID_LEVELS: Final = {
    **dict.fromkeys(("linear", "raid0", "0", "stripe"), False),
    **dict.fromkeys(("raid1", "1", "mirror", "raid4", "4", "raid5", "5", "raid6", "6", "raid10", "10"), True),
}
_PINS: Final = ("tpm2", "tang", "sss")
_ANY_PIN: Final = 6  # the minor version that accepts all pins


def check_ignition(format: str, text: str) -> None:
    """Raise `Malformed` if Ignition would reject the document."""
    minor = int(format.partition("/3.")[2])
    config, version = _read_config(text, minor)
    if version != f"3.{minor}.0":
        raise make_user_data_fault(
            f"the rendered Ignition document has version {quote_value(version)}, but the profile sets {format}",
            f"set ignition.version to 3.{minor}.0, or correct the profile's userData.format",
        )
    for problem in _find_problems(config, minor):
        raise make_user_data_fault(
            f"the rendered Ignition document is invalid: {problem}", "correct the value in the template"
        )


def _read_config(text: str, minor: int) -> tuple[dict[str, Any], str]:
    """Return a configuration and its version. Raises `Malformed`."""
    try:
        config = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise make_user_data_fault(
            f"the rendered Ignition document is not JSON: {error}",
            "write the document in JSON; if you have a Butane file, convert it with `butane` and commit the result",
            error.lineno if isinstance(error, json.JSONDecodeError) else 0,
        ) from None
    section = config.get("ignition") if isinstance(config, dict) else None
    version = section.get("version") if isinstance(section, dict) else None
    if not isinstance(version, str):
        raise make_user_data_fault(
            "the rendered Ignition document has no ignition.version",
            f'begin the document with {{"ignition": {{"version": "3.{minor}.0"}}',
        )
    if version.startswith(("1", "2")):
        raise make_user_data_fault(
            f"the rendered Ignition document has version {quote_value(version)}, which Ignition 3 rejects",
            "convert the document once with ign-converter, and commit the result",
        )
    return config, version


def _find_problems(config: dict[str, Any], minor: int) -> Iterator[str]:
    known_config = _select_known_fields(config, _FIELDS, minor)
    yield from chain(_find_wrong_types(config, _FIELDS, minor, ""), _find_wrong_values(known_config, minor))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _find_wrong_types(value: Any, expected: Any, minor: int, path: str) -> Iterator[str]:
    """Yield a message for each value that has the wrong type. `null` means that a field is not set."""
    if isinstance(expected, tuple):
        expected, since = expected
        if minor < since:
            return
    if value is None:
        return
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            yield f"{path or 'the document'} must be an object, found {_describe(value)}"
            return
        for key, field_value in value.items():
            if key in expected:
                yield from _find_wrong_types(field_value, expected[key], minor, f"{path}.{key}".removeprefix("."))
    elif isinstance(expected, list):
        if not isinstance(value, list):
            yield f"{path} must be a list, found {_describe(value)}"
            return
        for index, item in enumerate(value):
            yield from _find_wrong_types(item, expected[0], minor, f"{path}[{index}]")
    elif type(value) is not expected or (expected is int and not -_MAX_INTEGER <= value < _MAX_INTEGER):
        yield f"{path} must be {_KINDS[expected]}, found {_describe(value)}"


def _select_known_fields(value: Any, expected: Any, minor: int) -> Any:
    """Return a value without the fields that Ignition ignores, because this version does not have them."""
    if isinstance(expected, tuple):
        expected, since = expected
        if minor < since:
            return None
    if isinstance(expected, dict) and isinstance(value, dict):
        return {
            key: _select_known_fields(field_value, expected[key], minor)
            for key, field_value in value.items()
            if key in expected
        }
    if isinstance(expected, list) and isinstance(value, list):
        return [_select_known_fields(item, expected[0], minor) for item in value]
    return value


def _describe(value: Any) -> str:
    return quote_value(value) if isinstance(value, str | list | dict) or value is None else json.dumps(value)


def _find_wrong_values(config: dict[str, Any], minor: int) -> Iterator[str]:
    """Yield a message for each value that has the correct type but that Ignition rejects."""
    node_paths: Counter[str] = Counter()  # the paths of files, directories and links
    for section, name, key in _UNIQUE_FIELDS:
        if not (elements := _get_objects(config, section, name)):
            continue
        keys: Counter[str] = Counter()
        for index, element in enumerate(elements):
            path = f"{section}.{name}[{index}]"
            value = element.get(key) or ""
            keys[value] += 1
            if key == "path":
                node_paths[value] += 1
            if not value and section != "passwd":
                yield f"{path} has no {key}"
            for field in ("path", "device"):
                if element.get(field):
                    yield from _find_wrong_path(f"{path}.{field}", element[field])
            yield from _find_wrong_element(name, path, element, minor)
        yield from _describe_duplicates(f"{section}.{name}", keys)
    yield from _describe_duplicates("storage", node_paths)
    yield from _find_conflicts(config, set(node_paths))
    yield from _find_wrong_settings(config["ignition"], minor)
    arguments = (_get_list(config, "kernelArguments", field) for field in ("shouldExist", "shouldNotExist"))
    yield from _find_duplicates("kernelArguments", chain.from_iterable(arguments))


def _get_list(value: Any, *steps: str) -> list[Any]:
    for step in steps:
        value = (value or {}).get(step)
    return value or []


def _get_objects(value: Any, *steps: str) -> list[dict[str, Any]]:
    """Return a list of objects. An element that is null has no fields."""
    return [element or {} for element in _get_list(value, *steps)]


def _find_duplicates(path: str, values: Iterable[str | None] | None) -> Iterator[str]:
    present = [value for value in values or () if value]
    if len(set(present)) < len(present):
        yield from _describe_duplicates(path, Counter(present))


def _describe_duplicates(path: str, counts: Counter[str]) -> Iterator[str]:
    yield from (f"{path} has {_describe(value)} twice" for value, count in counts.items() if count > 1)


def _find_wrong_settings(settings: dict[str, Any], minor: int) -> Iterator[str]:
    merged = _get_objects(settings, "config", "merge")
    authorities = _get_objects(settings, "security", "tls", "certificateAuthorities")
    for resource in (*merged, *authorities):
        yield from _find_wrong_source("ignition", resource, minor, is_needed=True)
    replacement = (settings.get("config") or {}).get("replace")
    yield from _find_wrong_source("ignition.config.replace", replacement, minor)
    for resource in (*merged, replacement or {}):
        yield from _find_wrong_config(resource, minor)
    yield from _find_duplicates("ignition.config.merge", (resource.get("source") for resource in merged))
    yield from _find_duplicates("certificateAuthorities", (resource.get("source") for resource in authorities))
    yield from _find_duplicates("ignition.proxy.noProxy", _get_list(settings, "proxy", "noProxy"))
    proxy = settings.get("proxy") or {}
    for name in ("httpProxy", "httpsProxy"):
        if (url := proxy.get(name)) is not None and not _is_http_url(url):
            yield f"ignition.proxy.{name} must be an http or https URL, found {_describe(url)}"


def _is_http_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://")) and _URL.fullmatch(text) is not None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _find_conflicts(config: dict[str, Any], node_paths: set[str]) -> Iterator[str]:
    """Yield a message for each path below a link, and for each path that a unit also writes.

    Each element must have its required fields.
    """
    directories = {directory.get("path") for directory in _get_objects(config, "storage", "directories")}
    links = _get_objects(config, "storage", "links")
    link_above = None
    # the paths below a link follow the link in the sorted list
    for path in sorted([*node_paths, *(f"{link['path']}/" for link in links)]):
        if link_above is not None and path.startswith(link_above):
            yield f"storage has {_describe(path)}, which is below the link {_describe(link_above)}"
        if path.endswith("/") and path != "/":
            link_above = path
    for link in links:
        target = posixpath.normpath(posixpath.join(link["path"], link["target"]))
        if link.get("hard") and target in directories:
            yield f"storage has the hard link {_describe(link['path'])} to a directory"
    for unit in _get_objects(config, "systemd", "units"):
        path = f"/etc/systemd/system/{unit['name']}"
        written_files = [(path, unit)]
        written_files += [(f"{path}.d/{dropin['name']}", dropin) for dropin in _get_objects(unit, "dropins")]
        for written_path, fields in written_files:
            if fields.get("contents") and written_path in node_paths:
                yield f"storage and systemd.units both write {_describe(written_path)}"


def _find_wrong_path(path: str, value: str) -> Iterator[str]:
    if not value.startswith("/"):
        yield f"{path} must begin with /, found {_describe(value)}"
    elif value != "/" and not {"", ".", ".."}.isdisjoint(value.split("/")[1:]):
        yield f"{path} must not contain empty segments, `.` or `..`, found {_describe(value)}"


def _find_wrong_element(name: str, path: str, element: Mapping[str, Any], minor: int) -> Iterator[str]:
    """Yield a message for each wrong value in an element of the list ``name``."""
    match name:
        case "files" | "directories" | "links":
            yield from _find_wrong_node(name, path, element, minor)
        case "disks":
            yield from _find_wrong_partitions(path, _get_objects(element, "partitions"))
        case "filesystems":
            yield from _find_wrong_filesystem(path, element, minor)
        case "luks":
            yield from _find_wrong_volume(path, element, minor)
        case "raid":
            yield from _find_wrong_array(path, element)
        case "units":
            yield from _find_wrong_unit(path, element)
        case "users":
            yield from _find_duplicates(f"{path}.sshAuthorizedKeys", element.get("sshAuthorizedKeys"))
            yield from _find_duplicates(f"{path}.groups", element.get("groups"))


def _find_wrong_node(name: str, path: str, node: Mapping[str, Any], minor: int) -> Iterator[str]:
    if name == "links":
        if not node.get("target"):
            yield f"{path} has no target"
    elif not 0 <= (node.get("mode") or 0) <= _MAX_MODE:
        yield f"{path}.mode must be at most {_MAX_MODE} (octal 7777), found {node['mode']}"
    for owner in ("user", "group"):
        fields = node.get(owner) or {}
        if fields.get("id") is not None and fields.get("name"):
            yield f"{path}.{owner} has both an id and a name"
    if name == "files":
        contents = node.get("contents")
        if node.get("overwrite") and (contents or {}).get("source") is None:
            yield f"{path} sets overwrite, but not contents.source"
        for resource in (contents, *_get_list(node, "append")):
            yield from _find_wrong_source(path, resource, minor)


def _find_wrong_filesystem(path: str, filesystem: Mapping[str, Any], minor: int) -> Iterator[str]:
    format = filesystem.get("format")
    if not format:
        if any(filesystem.get(field) for field in _NEEDS_FORMAT):
            yield f"{path} has no format"
        return
    if _FORMATS.get(format, minor + 1) > minor:
        yield f"{path} has the filesystem format {_describe(format)}, which Ignition 3.{minor} cannot create"
    max_label = _MAX_LABEL.get(format)
    if max_label is not None and len((filesystem.get("label") or "").encode(errors="replace")) > max_label:
        yield f"{path} has a label that is longer than {max_label} bytes"


def _find_wrong_array(path: str, array: Mapping[str, Any]) -> Iterator[str]:
    level, devices = array.get("level") or "", [device or "" for device in _get_list(array, "devices")]
    if not level or not devices:
        yield f"{path} needs a level and devices"
    elif level not in _RAID_LEVELS:
        yield f"{path} has the level {_describe(level)}, which is not a RAID level"
    elif array.get("spares") and not _RAID_LEVELS[level]:
        yield f"{path} has spares, but level {level} cannot use spares"
    for device in devices:
        yield from _find_wrong_path(f"{path}.devices", device)
    yield from _find_duplicates(f"{path}.devices", devices)


def _find_wrong_unit(path: str, unit: Mapping[str, Any]) -> Iterator[str]:
    if not (unit.get("name") or "").endswith(_UNIT_SUFFIXES):
        yield f"{path}.name must end with a unit type such as .service, found {_describe(unit.get('name'))}"
    dropins = _get_objects(unit, "dropins")
    if not all((dropin.get("name") or "").endswith(".conf") for dropin in dropins):
        yield f"{path}.dropins contains a name that does not end with .conf"
    yield from _find_duplicates(f"{path}.dropins", (dropin.get("name") for dropin in dropins))
    for fields in (unit, *dropins):
        if fault := _find_unit_fault(fields.get("contents") or ""):
            yield f"{path} is not a unit of systemd: {fault}"


def _find_wrong_partitions(path: str, partitions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, partition in enumerate(partitions):
        label = partition.get("label")
        sizes = [partition.get(name) for name in ("startMiB", "sizeMiB")]
        guids = [partition.get(name) or "" for name in ("guid", "typeGuid")]
        if not partition.get("number") and label is None:
            yield f"{path}.partitions[{index}] has neither a number nor a label"
        if partition.get("shouldExist") is False and (any(guids) or {label, *sizes} != {None}):
            yield f"{path}.partitions[{index}] must not exist, so it cannot have other fields than its number"
        if len((label or "").encode(errors="replace")) > _MAX_PARTITION_LABEL or ":" in (label or ""):
            yield f"{path}.partitions[{index}] has a label with a colon or with more than {_MAX_PARTITION_LABEL} bytes"
        if not all(map(_GUID.fullmatch, guids)):
            yield f"{path}.partitions[{index}] has a malformed GUID"
    yield from _find_duplicates(f"{path}.partitions", (partition.get("label") for partition in partitions))
    numbers = (str(partition.get("number") or "") for partition in partitions)
    yield from _find_duplicates(f"{path}.partitions", numbers)
    # Ignition chooses the start if it is 0. A partition with the size 0 fills the free space.
    ranges = sorted(
        (partition["startMiB"], partition["startMiB"] + max(partition["sizeMiB"], 1))
        for partition in partitions
        if partition.get("startMiB") and partition.get("sizeMiB") is not None
    )
    if any(start < end for (_, end), (start, _) in pairwise(ranges)):
        yield f"{path} has partitions that overlap"


def _find_wrong_volume(path: str, volume: Mapping[str, Any], minor: int) -> Iterator[str]:
    if not volume.get("device"):
        yield f"{path} has no device"
    if "/" in (volume.get("name") or ""):
        yield f"{path}.name must not contain a slash"
    if len((volume.get("label") or "").encode(errors="replace")) > _MAX_VOLUME_LABEL:
        yield f"{path} has a label that is longer than {_MAX_VOLUME_LABEL} bytes"
    yield from _find_wrong_source(path, volume.get("keyFile"), minor)
    clevis = volume.get("clevis") or {}
    custom, tang = clevis.get("custom") or {}, _get_objects(clevis, "tang")
    pin, uses_others = custom.get("pin"), bool(tang or clevis.get("tpm2") or clevis.get("threshold"))
    if any(custom.values()) and not ((pin if minor >= _ANY_PIN else pin in _PINS) and custom.get("config")):
        yield f"{path}.clevis.custom needs a config and a pin: {', '.join(_PINS)}"
    if pin and uses_others:
        yield f"{path}.clevis has a custom pin and other pins"
    for server in tang:
        url = server.get("url") or ""
        if not _is_http_url(url) or not server.get("thumbprint"):
            yield f"{path}.clevis.tang needs an http or https URL and a thumbprint"
        if not _is_json(server.get("advertisement") or "{}"):
            yield f"{path}.clevis.tang has an advertisement that is not JSON"
    yield from _find_duplicates(f"{path}.clevis.tang", (server.get("url") for server in tang))
    yield from _find_duplicates(f"{path}.openOptions", volume.get("openOptions"))
    has_other_key = pin or uses_others or (volume.get("keyFile") or {}).get("source")
    if has_other_key and (volume.get("cex") or {}).get("enabled"):
        yield f"{path} has cex, so it cannot have clevis or keyFile"


_MAX_UNIT_LINE: Final = 2048  # bytes
_UNIT_BUFFER: Final = 4096  # bytes in the buffer of Go's bufio.Reader
# unicode.IsSpace of Go; Python's str.isspace is also true for some control characters
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class _UnitReader:
    """Reads a unit as Go's bufio.Reader does, because Ignition looks for long lines only in its buffer."""

    def __init__(self, contents: str) -> None:
        self._data = contents.encode(errors="replace")
        self._at = self._end = 0  # the part of the data that is in the buffer

    def is_line_too_long(self) -> bool:
        ahead = self._data[self._at : self._at + _MAX_UNIT_LINE]
        return self._end - self._at >= _MAX_UNIT_LINE and b"\n" not in ahead and b"\r" not in ahead

    def peek(self) -> str:
        """Return the next character, or "" at the end."""
        first = self._data[self._at : self._at + 1] or b"\0"
        size = 1 + (first >= b"\xc0") + (first >= b"\xe0") + (first >= b"\xf0")
        if self._at + size > self._end:
            self._fill()
        return self._data[self._at : self._at + size].decode()

    def read_character(self) -> str:
        """Return the next character, or "" at the end, and skip the character."""
        found = self.peek()
        self._at += len(found.encode())
        return found

    def read_until(self, delimiter: bytes) -> tuple[str, bool]:
        """Return the text before a delimiter, and whether there is a delimiter. Skip both."""
        start, end = self._at, -1
        while (found := self._data.find(delimiter, self._at, self._end)) < 0 and self._end > end:
            end = self._end
            self._at = end if end - self._at == _UNIT_BUFFER else self._at
            self._fill()
        stop = found if found >= 0 else len(self._data)
        self._at = stop + (found >= 0)
        return self._data[start:stop].decode(), found >= 0

    def read_line(self) -> str:
        line, has_end = self.read_until(b"\n")
        return line if has_end else line.removesuffix("\r")

    def _fill(self) -> None:
        self._end = min(self._at + _UNIT_BUFFER, len(self._data))


# Units that Ignition accepts: printable ASCII, no long lines, and only comments without a backslash.
_SECTION_LINE: Final = r"\[[ -\\^-~]{0,1500}+\] {0,500}+\n"
_OPTION_LINES: Final = r"[!-~](?<![\[#;])[ -<>-~]{0,500}+=(?:[ -~]{0,1500}+(?<=\\)\n)*+[ -~]{0,1500}+\n"
_OTHER_LINE: Final = r"(?: {0,2000}+|[#;][ -\[\]-~]{0,2000}+)\n"
_PLAIN_UNIT: Final = re.compile(
    rf"(?:{_OTHER_LINE})*+{_SECTION_LINE}(?:{_OPTION_LINES}|{_SECTION_LINE}|{_OTHER_LINE})*+"
)


@lru_cache(maxsize=256)  # servers share most units
def _find_unit_fault(contents: str) -> str | None:
    """Return the fault because of which Ignition rejects the contents of a unit, or None."""
    return None if _PLAIN_UNIT.fullmatch(contents) else _search_unit_fault(contents)


def _search_unit_fault(contents: str) -> str | None:
    """Read a unit in the steps of go-systemd, and return the fault because of which Ignition rejects it, or None.

    Source: go-systemd, unit/deserialize.go. The steps are the same as there, because go-systemd looks for a long line
    before each step.
    """
    reader, step, in_section, text = _UnitReader(contents), "next", False, ""
    while not reader.is_line_too_long():
        match step:
            case "next":
                if not (character := reader.peek()):
                    return None
                if character == "[" or character in "#;" or not in_section or character in _SPACES:
                    reader.read_character()
                    step = "section" if character == "[" else "comment" if character in "#;" else "next"
                else:
                    step = "option"
            case "section":
                text, has_end = reader.read_until(b"]")
                if not has_end:
                    return f"the section {_describe(f'[{text}')} does not end with ]"
                step = "after section"
            case "after section":
                if (rest := reader.read_line()).strip(_SPACES):
                    return f"the section {_describe(f'[{text}]{rest}')} does not end with ]"
                step, in_section = "next", True
            case "comment":
                while reader.read_line().removesuffix(" ").endswith("\\"):
                    pass
                step = "next"
            case "option":
                text = ""
                while (character := reader.read_character()) not in ("", "\n", "\r", "="):
                    text += character
                if character != "=":
                    return f"the line {_describe(text)} has no ="
                step = "value"
            case "value":
                line = reader.read_line()
                step = "value" if line.strip(_SPACES) and line.endswith("\\") else "next"
    return f"a line has more than {_MAX_UNIT_LINE:,} bytes"


def _find_wrong_source(
    path: str, resource: Mapping[str, Any] | None, minor: int, *, is_needed: bool = False
) -> Iterator[str]:
    if resource is None and not is_needed:
        return
    fields = resource or {}
    source, compression = fields.get("source") or "", fields.get("compression")
    checksum = (fields.get("verification") or {}).get("hash")
    if not source and is_needed:
        yield f"{path} has no source"
    scheme = source.partition(":")[0].lower()
    if scheme == "data":
        if not _DATA_URL.fullmatch(source):
            yield f"{path} has the source {_describe(source)}, which is not an encoded data URL (RFC 2397)"
    elif source and (_SCHEMES.get(scheme, minor + 1) > minor or not _URL.fullmatch(source)):
        yield f"{path} has the source {_describe(source)}, which is not a URL that Ignition can fetch"
    headers = _get_objects(fields, "httpHeaders")
    if headers and scheme not in ("http", "https"):
        yield f"{path} has httpHeaders, but its source is not an http or https URL"
    if not all(header.get("name") and header.get("value") != "" for header in headers):
        yield f"{path}.httpHeaders has an empty name or value"
    yield from _find_duplicates(f"{path}.httpHeaders", (header.get("name") for header in headers))
    if checksum is not None and fields.get("source") is None:
        yield f"{path} has a hash, but no source"
    if compression not in (None, "", "gzip"):
        yield f"{path} has the compression {_describe(compression)}, but Ignition supports only gzip"
    if checksum is not None and not (_HASH if minor else _HASH_3_0).fullmatch(checksum):
        functions = "sha256- or sha512-" if minor else "sha512-"
        yield f"{path} has the hash {_describe(checksum)}, which is not {functions} followed by a hexadecimal digest"
    if checksum is None and compression != "gzip":
        return
    try:
        content = _decode_data_url(source, compression)
    except (OSError, EOFError, zlib.error):
        yield f"{path} has a data URL, whose content is not compressed with gzip"
        return
    if checksum is not None and content is not None:
        function, _, digest = checksum.partition("-")
        if hashlib.new(function, content).hexdigest() != digest.lower():
            yield f"{path} has the hash {_describe(checksum)}, but the content of its data URL has another hash"


def _decode_data_url(source: str, compression: str | None) -> bytes | None:
    """Return the content of a data URL as Ignition hashes it: after decompression.

    Return None for another URL, and for content that is too large. Raises: OSError, EOFError, zlib.error.
    """
    if (match := _DATA_URL.fullmatch(source)) is None:
        return None
    data = unquote_to_bytes(match[2]) if match[1] is None else base64.b64decode(match[1])
    if compression != "gzip":
        return data
    if not data:
        raise EOFError
    content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MAX_CONTENT + 1)
    return content if len(content) <= _MAX_CONTENT else None


def _find_wrong_config(resource: Mapping[str, Any], minor: int) -> Iterator[str]:
    """Yield a message if Ignition would reject a configuration in a data URL.

    The configuration can have another version. gitboot checks the values of the versions that gitboot supports.
    """
    content = _decode_data_url(resource.get("source") or "", resource.get("compression"))
    if content is None:
        return
    try:
        config, version = _read_config(content.decode(errors="replace"), minor)
        supported = re.fullmatch(rf"3\.([0-{_MAX_MINOR}])\.0", version)
        problem = next(_find_problems(config, int(supported[1])), None) if supported is not None else None
    except Malformed as error:
        problem = error.message
    except RecursionError:
        return  # each configuration contains another one
    if problem is not None:
        yield f"ignition.config has a data URL with an invalid configuration: {problem}"
