"""Inventory of another system: types for machines, boots and remarks, and helpers for reading sources."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from ipaddress import ip_interface
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

import yaml
from msgspec import Struct, field

from gitboot.errors import UsageError
from gitboot.model.scalars import (
    MacAddress,
    Malformed,
    SystemUuid,
    build_document_name,
    parse_digest,
    parse_lookup_mac,
    parse_lookup_uuid,
    parse_mac,
)
from gitboot.model.server import Architecture, Firmware
from gitboot.resolve.secret_scan import is_secret_argument

T = TypeVar("T")
Texts = Mapping[str, str]  # the texts of the files in a source, by path


# Remarks and machines


class RemarkKind(StrEnum):
    """The kind of a remark, which states what the import did with a fact from the source."""

    KEPT = "kept"
    GUESSED = "guessed"  # the import derived a value that the source does not contain
    LOST = "lost"
    REJECTED = "rejected"  # the source contains a value that is certainly wrong
    MISSING = "missing"  # a person must supply the value first


class ImportRemark(NamedTuple):
    """One remark in the import report."""

    kind: RemarkKind
    text: str


def remark_if(condition: object, remark: ImportRemark) -> tuple[ImportRemark, ...]:
    """Return a tuple that contains the remark if the condition is true, or an empty tuple otherwise."""
    return (remark,) if condition else ()


remark_kept: Final = partial(ImportRemark, RemarkKind.KEPT)
remark_guessed: Final = partial(ImportRemark, RemarkKind.GUESSED)
remark_lost: Final = partial(ImportRemark, RemarkKind.LOST)
remark_rejected: Final = partial(ImportRemark, RemarkKind.REJECTED)
remark_missing: Final = partial(ImportRemark, RemarkKind.MISSING)


class ImportedNic(Struct, frozen=True, kw_only=True):
    """A network interface of an imported machine."""

    mac: MacAddress
    name: str | None = None
    addresses: tuple[str, ...] = ()
    boot: bool = True


class ImportedBmc(Struct, frozen=True, kw_only=True):
    """A BMC that supports Redfish or IPMI. The import leaves out the user name and the password."""

    address: str
    credentials: str  # the name of the credentials, without user and password
    system: str | None = None
    verify: bool = True


class ImportedData(Struct, frozen=True, kw_only=True):
    """User data that gitboot can serve unchanged."""

    format: str  # one of the formats that a BootProfile supports
    text: str


class ImportedMachine(Struct, frozen=True, kw_only=True):
    """The facts that a source contains about one machine."""

    name: str  # the name in the source
    uuid: SystemUuid | None = None  # the UUID in SMBIOS, not an ID that the source assigned
    serial: str | None = None
    architecture: str | None = None  # as `parse_architecture` returns it
    firmware: Firmware | None = None
    secure_boot: bool | None = None  # None: the source does not state whether Secure Boot is on
    nics: tuple[ImportedNic, ...] = ()
    bmc: ImportedBmc | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    boot: str | None = None  # the name of an `ImportedBoot`
    arguments: tuple[str, ...] = ()
    removed_arguments: tuple[str, ...] = ()  # the names of the boot's arguments that this machine does not use
    vars: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[ImportRemark, ...] = ()


class ImportedBoot(Struct, frozen=True, kw_only=True):
    """A boot that a source defines. The boot consists of a UKI, or of a kernel and other files such as initrds."""

    name: str
    kernel: str | None = None  # a URL, or assets:PATH
    initrds: tuple[str, ...] = ()
    rootfs: str | None = None
    uki: str | None = None
    arguments: tuple[str, ...] = ()
    architecture: str | None = None  # as `parse_architecture` returns it
    data: ImportedData | None = None
    remarks: tuple[ImportRemark, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(url for url in (self.kernel, *self.initrds, self.rootfs, self.uki) if url)


class ImportedInventory(Struct, frozen=True, kw_only=True):
    """The machines and boots that a source contains, and remarks on the source as a whole."""

    machines: tuple[ImportedMachine, ...] = ()
    boots: tuple[ImportedBoot, ...] = ()
    remarks: tuple[ImportRemark, ...] = ()  # remarks on the source as a whole


# Files


def parse_json(path: str, text: str) -> Any:
    """Parse a JSON file. Raises `UsageError` with a message that names the file but does not quote the content."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply"
        if isinstance(error, json.JSONDecodeError):
            # Python's messages end with these words if a position follows
            message = error.msg.removesuffix(" at").removesuffix(" starting")
            reason = f"line {error.lineno}, column {error.colno}: {message}"
        raise UsageError(f"{path} is not JSON: {reason}") from None


def parse_json_files(files: Texts) -> Iterator[tuple[str, Any]]:
    """Yield the parsed content of each .json file, ordered by path. Raises `UsageError` if a file is not JSON."""
    return ((path, parse_json(path, text)) for path, text in sorted(files.items()) if path.endswith(".json"))


def parse_yaml(path: str, text: str) -> list[Any]:
    """Parse a YAML file. All scalars, such as MAC addresses, remain text.

    Raises `UsageError` if the file is not YAML.
    """
    try:
        return [each for each in yaml.load_all(text, yaml.BaseLoader) if each]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = f"line {mark.line + 1}" if mark else "nested too deeply"
        raise UsageError(f"{path} is not YAML: {reason}") from None


# Parsed values


def get_nested(value: Any, *keys: str | int) -> Any:
    """Return the value at a path of nested keys, or None if there is no value."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def as_mappings(value: Any) -> list[dict[str, Any]]:
    """Return the items of a list that are mappings, or [] if the value is not a list."""
    return [each for each in as_list(value) if isinstance(each, dict)]


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a mapping, otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def group_rows(rows: Iterable[dict[str, Any]], *keys: str) -> dict[str, list[dict[str, Any]]]:
    """Group rows by the value at a path of nested keys, converted to text."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(get_nested(row, *keys)), []).append(row)
    return groups


def merge_rows(rows: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Merge rows with the same value of a key, because two files may describe one machine.

    A value in a later row has priority, unless it is empty.
    """
    merged: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        identity = as_text(row.get(key)) or f"row {number}"
        filled = {name: value for name, value in row.items() if value not in (None, "", [], {})}
        merged[identity] = {**row, **merged.get(identity, {}), **filled}
    return list(merged.values())


def as_text(value: Any) -> str | None:
    """Return a scalar as text, or None if the value is empty or not a scalar."""
    return str(value) if isinstance(value, str | int | float) and str(value) else None


def split_url_or_none(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if the URL is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def split_words(text: str) -> list[str]:
    """Split a text into words as a POSIX shell does. Split a text with an unclosed quote only at spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


_KERNEL_ARGUMENT: Final = re.compile(r'(?:"[^"]*"?|[^\s"])+')


def split_kernel_arguments(*texts: str) -> list[str]:
    """Split a kernel command line at spaces outside double quotes, as Linux does (lib/cmdline.c, ``next_arg``)."""
    return _KERNEL_ARGUMENT.findall(" ".join(texts))


# Identities and hardware


def _parse_or_none(parse: Callable[[object], T], value: object) -> T | None:
    try:
        return parse(value)
    except Malformed:
        return None


_SHORT_MAC: Final = re.compile(r"[0-9a-f]{1,2}(?:([:-])[0-9a-f]{1,2})(?:\1[0-9a-f]{1,2}){4}", re.IGNORECASE | re.ASCII)


def parse_mac_or_none(value: object) -> MacAddress | None:
    """Return the parsed MAC address, or None if the value is not a MAC address.

    An octet may have only one digit, because DHCP servers also accept such addresses.
    """
    return _parse_or_none(parse_lookup_mac, _pad_octets(value)) if isinstance(value, str) and value else None


def _pad_octets(value: str) -> str:
    text = value.strip()
    return ":".join(each.zfill(2) for each in re.split("[:-]", text)) if _SHORT_MAC.fullmatch(text) else text


def read_mac(
    value: object, subject: str = "the", addresses: Sequence[str] = ()
) -> tuple[MacAddress | None, tuple[ImportRemark, ...]]:
    """Return the MAC address of an interface, or remarks if the address in the source is invalid.

    A remark also lists the IP ``addresses`` of the interface, because gitboot needs a MAC address for them.
    """
    mac, remarks = _read_mac(value, subject)
    if mac is not None or not addresses:
        return mac, remarks
    lost = f"{', '.join(addresses)} was left out: add the interface"
    return None, (*remarks, remark_missing(f"{subject} MAC address is unknown, so {lost}"))


def _read_mac(value: object, subject: str) -> tuple[MacAddress | None, tuple[ImportRemark, ...]]:
    if value is None or value == "":
        return None, ()
    try:
        return parse_lookup_mac(_pad_octets(str(value))), ()
    except Malformed as error:
        reason = "the value does not identify a machine"
        if "multicast" in error.message:
            reason = "the value is a multicast address, which cannot belong to an interface"
        elif "expected" in error.message:
            reason = "the value is not the address of an Ethernet interface"
        return None, (remark_rejected(f"{subject} MAC address {str(value)[:80]} was left out, because {reason}"),)


class NicCollector:
    """Collects the interfaces that a source lists for one machine, and remarks on invalid MAC addresses."""

    def __init__(self) -> None:
        self.nics: list[ImportedNic] = []
        self.remarks: list[ImportRemark] = []

    def add(
        self,
        mac: object,
        subject: str = "the",
        *,
        name: str | None = None,
        addresses: tuple[str, ...] = (),
        boot: bool = True,
    ) -> None:
        """Add an interface if its MAC address is valid. A remark on another MAC address begins with ``subject``."""
        parsed_mac, remarks = read_mac(mac, subject, addresses)
        self.remarks += remarks
        if parsed_mac is not None:
            self.nics.append(ImportedNic(mac=parsed_mac, name=name, addresses=addresses, boot=boot))


def read_uuid(value: object) -> tuple[SystemUuid | None, tuple[ImportRemark, ...]]:
    """Return the UUID of a machine, or a remark if the UUID in the source is invalid."""
    if value is None or value == "":
        return None, ()
    try:
        return parse_lookup_uuid(str(value).strip()), ()
    except Malformed:
        return None, (
            remark_rejected(f"the UUID {str(value)[:80]} was left out, because it is invalid or a placeholder"),
        )


def parse_uuid_or_none(value: object) -> SystemUuid | None:
    """Return the UUID of a machine, or None if the value is a placeholder or not a UUID."""
    return _parse_or_none(parse_lookup_uuid, value) if isinstance(value, str) and value else None


_ARCHITECTURES: Final = {
    "amd64": Architecture.X86_64,
    "x86_64": Architecture.X86_64,
    "x86-64": Architecture.X86_64,
    "x64": Architecture.X86_64,
    "aarch64": Architecture.AARCH64,
    "arm64": Architecture.AARCH64,
    "arm-a64": Architecture.AARCH64,  # a value of Processor.InstructionSet in Redfish
}


def parse_architecture(value: object) -> str | None:
    """Return the name that documents use for an architecture, or None if the value is empty.

    If gitboot does not support the architecture, return its name in the source, in lower case.
    """
    text = (as_text(value) or "").strip().lower()
    return _ARCHITECTURES.get(text, text) or None


_FIRMWARES: Final = {
    "uefi": Firmware.UEFI,
    "uefisecureboot": Firmware.UEFI,
    "legacy": Firmware.BIOS,
    "bios": Firmware.BIOS,
}


def parse_firmware(value: object) -> Firmware | None:
    return _FIRMWARES.get(str(value).lower())


def parse_secure_boot(boot_mode: object) -> bool | None:
    """Return True if a boot mode turns Secure Boot on, or None if the boot mode leaves Secure Boot unspecified."""
    return True if str(boot_mode).lower() == "uefisecureboot" else None


def parse_address(address: object, netmask: object = None) -> str | None:
    """Parse an IP address. If there is a netmask, add the prefix length. Return None if the value is not an address."""
    text = str(address or "").strip()
    if "%" in text:
        return None  # an address with a zone is valid only on one machine
    if netmask and "/" not in text:
        with suppress(ValueError):
            return str(ip_interface(f"{text}/{netmask}"))
    with suppress(ValueError):
        parsed = ip_interface(text)
        return str(parsed if "/" in text else parsed.ip)
    return None


def list_address(address: object, netmask: object = None) -> tuple[str, ...]:
    """Return the parsed address in a list.

    Return other text unchanged, so that `render_fleet` rejects it with a remark.
    """
    text = parse_address(address, netmask) or as_text(address)
    return (text,) if text else ()


# Secrets


_SECRET: Final = re.compile(r"(?:pass|passwd|password|secret|token|apikey|rootpw|credential|psk)", re.IGNORECASE)
_USERINFO: Final = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def is_secret(argument: str) -> bool:
    """Return whether a kernel argument, a URL or a ``name=value`` text seems to contain a secret."""
    name, _, value = argument.partition("=")
    return bool((value and _SECRET.search(name)) or _USERINFO.search(argument) or is_secret_argument(argument))


def remove_secrets(arguments: Iterable[str]) -> tuple[tuple[str, ...], tuple[ImportRemark, ...]]:
    """Return the arguments that contain no secrets, and a remark for each argument that was removed."""
    kept, remarks = list[str](), list[ImportRemark]()
    for argument in arguments:
        if not is_secret(argument):
            kept.append(argument)
            continue
        name = f"the kernel argument {argument.partition('=')[0]}" if "=" in argument else "a kernel argument"
        remarks.append(
            remark_lost(f"{name} was left out, because it looks like a secret: move it to the user data's secrets")
        )
    return tuple(kept), tuple(remarks)


# Templates


_IPXE_VARIABLES: Final = {
    "uuid": "{{ server.uuid }}",
    "mac": "{{ server.interfaces[0].mac }}",
    "net0/mac": "{{ server.interfaces[0].mac }}",
    "mac:hexhyp": "{{ server.interfaces[0].mac | replace(':', '-') }}",
    "net0/mac:hexhyp": "{{ server.interfaces[0].mac | replace(':', '-') }}",
    "hostname": "{{ server.name }}",
    "serial": "{{ server.serial }}",
}
_VARIABLE: Final = re.compile(r"\$?\$\{([^}]*)\}")
_BOOTIF: Final = re.compile(r"BOOTIF=(?:(?P<hyphens>01-)\$\{(?:net[0X]/)?mac:hexhyp\}|\$\{(?:net[0X]/)?mac\})")


def escape_template(text: str) -> str:
    """Return a template that renders to ``text``."""
    return re.sub(r"\{(?=[{%#])", "{{ '{' }}", text)


def translate_ipxe_argument(text: str) -> str | None:
    """Convert a kernel argument in iPXE syntax to a template.

    Return None if the argument contains an iPXE variable that gitboot cannot replace.
    """
    if (bootif := _BOOTIF.fullmatch(text)) is not None:
        return f"BOOTIF={{{{ boot_nic.{'bootif' if bootif['hyphens'] else 'mac'} }}}}"
    parts, end = list[str](), 0
    for variable in _VARIABLE.finditer(text):
        if variable[1] not in _IPXE_VARIABLES:
            return None
        parts += [escape_template(text[end : variable.start()]), _IPXE_VARIABLES[variable[1]]]
        end = variable.end()
    return "".join([*parts, escape_template(text[end:])])


def translate_arguments(arguments: Iterable[str]) -> tuple[tuple[str, ...], tuple[ImportRemark, ...]]:
    """Convert kernel arguments in iPXE syntax to templates.

    Omit arguments that contain a secret or an iPXE variable that gitboot cannot replace, and return a remark for each
    of them.
    """
    safe_arguments, remarks = remove_secrets(arguments)
    templates = []
    for argument in safe_arguments:
        template = translate_ipxe_argument(argument)
        if template is None:
            name = argument.partition("=")[0]
            remark = f"the kernel argument {name} was left out, because it uses an iPXE variable: {argument}"
            remarks += (remark_lost(remark),)
        elif template.strip() and not argument.startswith("initrd="):  # gitboot adds ``initrd=`` itself
            templates.append(template)
    return tuple(templates), remarks


# BMCs


_REDFISH: Final = re.compile(
    r"(?:(?:redfish|redfish-virtualmedia|redfish-uefihttp|idrac-redfish|idrac-virtualmedia|ilo5-redfish|"
    r"ilo5-virtualmedia)(?:\+(https?))?|(https?))://(.+)"
)


def format_host(host: str) -> str:
    """Return a host as URLs contain it: an IPv6 address in brackets, and other text unchanged."""
    return f"[{host}]" if ":" in host and parse_address(host) else host


def parse_bmc(
    address: str | None, credentials: str | None, *, system: str | None = None, verify: bool = True
) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    """Parse a BMC address in the notation of Metal3 and Ironic, and remove any user name and password from it."""
    if not address:
        return None, ()
    scheme, separator, location = address.partition("://")
    place, slash, path = location.partition("/")
    user, at, host = place.rpartition("@")
    scheme = scheme.lower()
    if scheme in ("ipmi", "libvirt"):  # libvirt: a virtual BMC that supports IPMI
        host, _, query = f"{format_host(host)}{slash}{path}".partition("?")
        bmc = ImportedBmc(address=f"ipmi://{host.rstrip('/')}", credentials=build_document_name(credentials or "bmc"))
        return bmc, remark_if(query, remark_lost(f"{query} in the BMC's address was left out"))
    address = f"{scheme}{separator}{user}{at}{format_host(host)}{slash}{path}"
    match = _REDFISH.fullmatch(address)
    if match is None:
        scheme = f"the unsupported scheme {address.partition(':')[0]}" if "://" in address else "no scheme"
        left_out = f"the BMC {host}".strip() + " was left out"
        return None, (remark_lost(f"{left_out}, because its address has {scheme}: add the BMC by hand"),)
    parts = split_url_or_none(f"{match[1] or match[2] or 'https'}://{match[3]}")
    if parts is None:
        return None, (remark_lost("the BMC was left out, because its address is malformed: add the BMC by hand"),)
    remarks = []
    if "@" in parts.netloc:
        remarks.append(
            remark_lost(
                "the user name and the password in the BMC's address were left out: store them in the credentials "
                "directory"
            )
        )
    if credentials is None:
        remarks.append(
            remark_guessed("the source does not name the BMC's credentials, so the import wrote `bmc.credentials: bmc`")
        )
    bmc = ImportedBmc(
        address=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        credentials=build_document_name(credentials or "bmc"),
        # like Metal3 (bmc/redfish.go); the path of the service itself is not a system
        system=system or (parts.path if parts.path.strip("/") not in ("", "redfish/v1") else None),
        verify=verify,
    )
    return bmc, tuple(remarks)


# Data that a person adds


class ExtraData(Struct, frozen=True, kw_only=True):
    """Additional facts for an import: UUIDs by MAC address or machine name, and digests by file path."""

    uuids: Mapping[str, SystemUuid] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)

    def list_uuids(self, machine: ImportedMachine) -> list[SystemUuid]:
        """Return the different UUIDs of a machine: one for each MAC address, and one for its name."""
        keys = (*(str(nic.mac) for nic in machine.nics), machine.name)
        return list(dict.fromkeys(self.uuids[key] for key in keys if key in self.uuids))

    def digest(self, url: str) -> str | None:
        """Return the digest of the file at a URL, or None if no listed path matches.

        If several listed paths match the end of the URL, use the longest path.
        """
        if (url_parts := split_url_or_none(url)) is None:
            return None
        path = url.removeprefix("assets:") if url.startswith("assets:") else url_parts.path
        parts = path.strip("/").split("/")
        endings = ("/".join(parts[first:]) for first in range(len(parts)))
        return next((self.sums[each] for each in endings if each in self.sums), None)


def parse_uuid_list(text: str, path: str) -> dict[str, SystemUuid]:
    """Parse lines of the form ``MAC UUID`` or ``NAME UUID``, or the JSON output of gitboot.

    The JSON comes from `gitboot bmc scan` or `gitboot unknown-machines`. Raises `UsageError` for the first invalid
    line.
    """
    if text.lstrip().startswith("{"):
        return dict(_list_found_uuids(parse_json(path, text)))
    return _parse_pairs(
        text, path, lambda key, value: (_parse_or_none(parse_mac, key) or key, parse_lookup_uuid(value))
    )


def _list_found_uuids(document: Any) -> Iterator[tuple[str, SystemUuid]]:
    for item in as_mappings(get_nested(document, "items")):
        uuid = parse_uuid_or_none(item.get("uuid")) or parse_uuid_or_none(get_nested(item, "identity", "uuid"))
        if uuid is None:
            continue
        for text in (*as_list(item.get("macs")), *(nic.get("mac") for nic in as_mappings(item.get("nics")))):
            if (mac := parse_mac_or_none(text)) is not None:
                yield str(mac), uuid


def parse_digest_list(text: str, path: str) -> dict[str, str]:
    """Parse the output of ``sha256sum``. Raises `UsageError` for the first invalid line."""
    return _parse_pairs(
        text,
        path,
        lambda digest, name: (name.removeprefix("*").removeprefix("./").strip("/"), parse_digest(digest)),
    )


def _parse_pairs(text: str, path: str, parse: Callable[[str, str], tuple[str, T]]) -> dict[str, T]:
    pairs = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        first, _, second = line.strip().partition(" ")
        if not second.strip():
            raise UsageError(f"{path}:{number}: expected two words, found one")
        try:
            key, value = parse(first, second.strip())
        except Malformed as error:
            raise UsageError(f"{path}:{number}: {error.message}; {error.hint}") from None
        pairs[key] = value
    return pairs
