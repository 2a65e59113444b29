"""Published paths: a table of all kinds of paths, and functions that look up paths in the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cache, lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from gitboot.jsonio import Digest
from gitboot.model.scalars import (
    Malformed,
    SystemUuid,
    is_placeholder_serial,
    parse_lookup_mac,
    parse_lookup_uuid,
    swap_byte_order,
)
from gitboot.problems import Code

BOOT: Final = "boot/"  # the folder of all files for machines
IMMUTABLE: Final = "boot/o/"  # the folder of files that never change: each path contains a digest of the content
SIGNED: Final = "boot/signed/"  # the folder of the signed list
LIST_TIMESTAMP: Final = f"{SIGNED}timestamp.json"  # the first file that a reader of the signed list fetches


class ContentType(StrEnum):
    TEXT = "text/plain; charset=utf-8"  # iPXE and GRUB accept any type, and browsers display files of this type
    JSON = "application/json"
    IGNITION = "application/vnd.coreos.ignition+json"
    CLOUD_CONFIG = "text/cloud-config; charset=utf-8"
    OCTETS = "application/octet-stream"
    ISO = "application/vnd.efi-iso"


# Values of Cache-Control (RFC 9111, 5.2.2; immutable: RFC 8246)
UNCACHED: Final = "no-store"
REVALIDATED: Final = "no-cache"  # for files whose content changes, so that a cache revalidates them at each use
FOR_A_YEAR: Final = "public, max-age=31536000, immutable"


class Delivery(NamedTuple):
    """The way in which endpoints, mirrors and targets send a file."""

    cache_control: str
    has_etag: bool  # a client that already has this version gets a 304
    has_ranges: bool  # a client that sends a Range header gets a part of the file


# the complete file at each request, so that servers log each fetch
_UNCACHED_DELIVERY: Final = Delivery(UNCACHED, has_etag=False, has_ranges=False)
_MEDIUM_DELIVERY: Final = Delivery(UNCACHED, has_etag=True, has_ranges=True)  # a BMC reads an ISO image in parts
_SHARED_DELIVERY: Final = Delivery(REVALIDATED, has_etag=True, has_ranges=False)
# clients can resume the download of a kernel
_CONTENT_DELIVERY: Final = Delivery(FOR_A_YEAR, has_etag=True, has_ranges=True)


class Role(StrEnum):
    """The meaning of a completed GET of a path."""

    BOOT_SCRIPT = "entry"  # the machine boots the files that this file refers to
    DATA = "data"  # the booted system fetches its configuration
    SEALED = "sealed"  # the booted system fetches a secret, which only endpoints decrypt and serve
    REPORT = "report"  # the installer has finished or failed
    OFFER = "offer"  # no meaning, because the client is a DHCP server
    MEDIUM = "medium"  # no meaning, because a BMC fetches the file before its machine boots
    # no meaning, because the client only displays the file, which does not contain boots that write a disk
    PREVIEW = "look"


class IdentityKind(StrEnum):
    """A kind of identity by which a server can be found."""

    MAC = "mac"
    UUID = "uuid"  # a UUID in either byte order
    SERIAL = "serial"
    ADDRESS = "address"
    NAME = "name"  # the name of the Server document, or the xname
    NID = "nid"  # the number of a node in OpenCHAMI
    TOKEN = "token"  # noqa: S105 - the published token of an installation


def _parse_serial(text: str) -> str:
    if is_placeholder_serial(text):
        raise Malformed(Code.PLACEHOLDER_IDENTITY, f"the serial number {text} is only a placeholder")
    return text


class _IdentityFormat(NamedTuple):
    canonical: str  # a regular expression for the output tree's spelling
    # converts to the output tree's spelling; raises Malformed if the text is not an identity
    parse: Callable[[str], str]


_IDENTITIES: Final = {
    IdentityKind.MAC: _IdentityFormat(r"[0-9a-f]{2}(?:-[0-9a-f]{2}){5}", parse_lookup_mac),
    IdentityKind.UUID: _IdentityFormat(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", parse_lookup_uuid),
    IdentityKind.SERIAL: _IdentityFormat(r"[A-Za-z0-9][A-Za-z0-9._-]*", _parse_serial),
}
_TOKEN_PATTERN: Final = "[0-9a-f]{64}"  # of an installation  # noqa: S105
_NAME: Final = "[A-Za-z_][A-Za-z0-9_.-]*"
_IDENTITY: Final = re.compile(r"\{(?:id|colons|bare)\}")
_SEPARATORS: Final = {"{colons}": ":", "{bare}": ""}


class PathKind(NamedTuple):
    """One kind of path. Each kind is a row of the table."""

    # Below boot/. {id} is the identity of a server ({colons}: a MAC address with colons, {bare}: without separators),
    # {token} the token of an installation, {name} a file name.
    template: str
    # the output or the evidence in the Fleet that enables these paths; None: these paths are always enabled
    enabled_by: str | None
    identity_kind: IdentityKind
    role: Role
    content_type: ContentType

    def build_path(self, identity: str, token: str = "", name: str = "") -> str:
        """Return the path below the output directory for an ``identity`` in the output tree's spelling."""
        text = self.template.replace("{id}", identity)
        for mark, separator in _SEPARATORS.items():
            if mark in text:
                text = text.replace(mark, identity.replace("-", separator))
        return BOOT + text.replace("{token}", token).replace("{name}", name)

    def convert_identity(self, identity: str) -> str:
        """Convert an identity from the output tree's spelling to the spelling in this kind of path."""
        return identity.replace("-", self._separator)

    @property
    def _separator(self) -> str:
        return next((separator for mark, separator in _SEPARATORS.items() if mark in self.template), "-")

    @property
    def delivery(self) -> Delivery:
        return _MEDIUM_DELIVERY if self.role is Role.MEDIUM else _UNCACHED_DELIVERY

    @property
    def needs_identity_only(self) -> bool:
        """Whether a path of this kind can be built from an identity alone."""
        return "{token}" not in self.template and "{name}" not in self.template

    @property
    def expression(self) -> str:
        """A regular expression for paths of this kind below boot/, in the output tree's spelling."""
        return self._expression(_IDENTITIES[self.identity_kind].canonical.replace("(?:-", f"(?:{self._separator}"))

    @property
    def loose_expression(self) -> str:
        """A regular expression for paths of this kind below boot/, with one group for the identity in any spelling."""
        return self._expression("([^/]+)")

    def _expression(self, identity: str) -> str:
        text = identity.join(map(re.escape, _IDENTITY.split(self.template)))
        return text.replace(r"\{token\}", _TOKEN_PATTERN).replace(r"\{name\}", _NAME)


IPXE_BY_MAC: Final = PathKind("v1/boot/{id}/boot.ipxe", "ipxe", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
IPXE_BY_UUID: Final = PathKind("ipxe/{id}", "ipxe", IdentityKind.UUID, Role.BOOT_SCRIPT, ContentType.TEXT)
IPXE_BY_SERIAL: Final = PathKind("ipxe/serial/{id}", "serial", IdentityKind.SERIAL, Role.BOOT_SCRIPT, ContentType.TEXT)
GRUB_BY_MAC: Final = PathKind("v1/boot/{id}/grub.cfg", "grub", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
# 01 is the hardware type of Ethernet
GRUB_LOOKUP: Final = PathKind("grub.cfg-01-{id}", "grub", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
GRUB_BY_UUID: Final = PathKind("grub.cfg-{id}", "uuid", IdentityKind.UUID, Role.BOOT_SCRIPT, ContentType.TEXT)
PXELINUX: Final = PathKind("pxelinux.cfg/01-{id}", "pxelinux", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
IGNITION: Final = PathKind("ignition/{id}", None, IdentityKind.UUID, Role.DATA, ContentType.IGNITION)
HTTP_BOOT: Final = PathKind("httpboot/{id}.json", None, IdentityKind.UUID, Role.OFFER, ContentType.JSON)
DATA: Final = PathKind("v1/boot/{id}/data/{token}/{name}", None, IdentityKind.MAC, Role.DATA, ContentType.OCTETS)
SECRET: Final = PathKind("s/{token}/{id}/{name}", None, IdentityKind.MAC, Role.SEALED, ContentType.OCTETS)
MEDIUM: Final = PathKind("media/{id}/{token}/user-data.iso", None, IdentityKind.UUID, Role.MEDIUM, ContentType.ISO)
PROVISIONED: Final = PathKind(
    "v1/boot/{id}/provisioned/{token}", "Reported", IdentityKind.MAC, Role.REPORT, ContentType.TEXT
)
FAILED: Final = PathKind("v1/boot/{id}/failed/{token}", "Reported", IdentityKind.MAC, Role.REPORT, ContentType.TEXT)
REPORTS: Final = (PROVISIONED, FAILED)
# Paths of other systems that contain an identity (docs/reference/paths.md). `emulated_apis` defines the paths with a
# query.
SMEE: Final = PathKind("{colons}/auto.ipxe", "smee", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
SMEE_SCRIPT: Final = PathKind(
    "ipxe/script/{colons}/auto.ipxe", "smee", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT
)
NETBOOT_XYZ: Final = PathKind("MAC-{bare}.ipxe", "netboot.xyz", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
PIXIECORE: Final = PathKind("pixiecore/v1/boot/{colons}", "pixiecore", IdentityKind.MAC, Role.OFFER, ContentType.TEXT)
NOCLOUD: Final = PathKind("nocloud/{id}/{name}", "nocloud", IdentityKind.UUID, Role.DATA, ContentType.CLOUD_CONFIG)
USER_DATA: Final = PathKind("v1/boot/{id}/user-data/{name}", "matchbox", IdentityKind.MAC, Role.DATA, ContentType.TEXT)
BOOT_PARAMETERS: Final = PathKind(
    "v1/boot/{id}/bootparameters.json", "bss", IdentityKind.MAC, Role.PREVIEW, ContentType.JSON
)
TABLE: Final = (
    IPXE_BY_MAC,
    IPXE_BY_UUID,
    IPXE_BY_SERIAL,
    GRUB_BY_MAC,
    GRUB_LOOKUP,
    GRUB_BY_UUID,
    PXELINUX,
    IGNITION,
    HTTP_BOOT,
    DATA,
    SECRET,
    MEDIUM,
    PROVISIONED,
    FAILED,
    SMEE,
    SMEE_SCRIPT,
    NETBOOT_XYZ,
    PIXIECORE,
    NOCLOUD,
    USER_DATA,
    BOOT_PARAMETERS,
)

CHECK: Final = "check"  # the mark in the query of requests by gitboot, which are never treated as requests by a machine
CHECKER: Final = "gitboot-verify-mirror"  # the User-Agent of requests by gitboot, before the version
# A folder that copies do not contain. The endpoint serves a path in this folder like the same path outside of the
# folder.
QUERY_FOLDER: Final = "asked/"
# the mark in the query of a forwarded request, so that the next endpoint does not forward the request again
HOP: Final = "hop"
FIRST_SCRIPT: Final = "boot/boot.ipxe"  # the first script of iPXE
# PXELINUX loads this file first, from the prefix of its configurations. DHCP sets the prefix to the base URL
# (option 210).
PXELINUX_CORE: Final = "ldlinux.c32"
CHAIN: Final = "boot/ipxe/boot.ipxe"  # the first script for users of boot-operator, whose iPXE requests /ipxe/
SIGNED_GRUB: Final = "boot/grub/grub.cfg"  # the first script of Debian's signed GRUB, in which this path is built in
# A loader fetches one of these scripts if it does not find a boot script.
UNKNOWN: Final = ("boot/unknown.ipxe", "boot/unknown.grub.cfg", "boot/pxelinux.cfg/default")
UNKNOWN_HTTP_BOOT: Final = "boot/unknown.httpboot.json"  # the path for an address that does not belong to a server


class PathLookup(NamedTuple):
    """A path that belongs to one server, in the output tree's spelling."""

    kind: PathKind
    identity: str  # the identity as in the index, such as mac/52-54-00-12-34-56
    path: str  # below the output directory


def format_identity(kind: IdentityKind, value: str) -> str:
    """Return the name of an identity in the index, such as mac/52-54-00-12-34-56."""
    return f"{kind}/{value}"


def _compile_alternatives(expressions: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern in which the number of the matching group is the number of the expression, from 1."""
    return re.compile("|".join(f"({expression})" for expression in expressions))


# number of cached paths; gitboot looks up each path of a server several times when it renders and publishes the server
_CACHE_SIZE: Final = 1024
_PATH_PATTERN: Final = _compile_alternatives(BOOT + kind.expression for kind in TABLE)


@lru_cache(maxsize=_CACHE_SIZE)
def find_path_kind(path: str) -> PathKind | None:
    """Return the kind of a path in the output tree.

    Return None if the path does not belong to a server, or if the content of its file never changes.
    """
    match = _PATH_PATTERN.fullmatch(path)
    return TABLE[match.lastindex - 1] if match is not None and match.lastindex is not None else None


_NON_SCRIPT_KINDS: Final = (IGNITION, DATA, SECRET, MEDIUM, NOCLOUD, USER_DATA, *REPORTS)
# The expressions of these paths match any identity and any token.
_NON_SCRIPT_PATTERN: Final = _compile_alternatives(
    re.sub(r"\{\w+\}", "[^/]+", BOOT + kind.template) for kind in _NON_SCRIPT_KINDS
)


@lru_cache(maxsize=_CACHE_SIZE)
def find_non_script_kind(path: str) -> PathKind | None:
    """Return the kind of a path to a server's user data, secret or report, or None for other paths."""
    match = _NON_SCRIPT_PATTERN.fullmatch(path)
    return _NON_SCRIPT_KINDS[match.lastindex - 1] if match is not None and match.lastindex is not None else None


_TOKEN: Final = re.compile(rf"/({_TOKEN_PATTERN})(?:/|$)")


@lru_cache(maxsize=_CACHE_SIZE)
def find_token(path: str) -> str | None:
    """Return the token in the path of user data, a secret or a report, or None for other paths."""
    match = _TOKEN.search(path)
    return match[1] if match is not None and find_non_script_kind(path) in (DATA, SECRET, *REPORTS) else None


def is_immutable(path: str) -> bool:
    """Return whether the content of a file never changes."""
    return path.startswith(IMMUTABLE)


def is_content(path: str) -> bool:
    """Return whether boot scripts may refer to a path.

    gitboot publishes such a file before the boot scripts that refer to it, and keeps the file for some time after the
    last of these boot scripts was removed.
    """
    return is_immutable(path) or find_non_script_kind(path) in (DATA, MEDIUM)


def find_delivery(path: str) -> Delivery:
    """Return the way in which a file in the output tree is sent."""
    if is_immutable(path):
        return _CONTENT_DELIVERY
    kind = find_path_kind(path) or find_non_script_kind(path)
    return kind.delivery if kind is not None else _SHARED_DELIVERY


# The content types of files below o/ and assets/, by extension. UEFI HTTP boot depends on the content type.
ARTIFACT_TYPES: Final = {
    "efi": "application/efi",
    "iso": str(ContentType.ISO),
    "img": "application/vnd.efi-img",
    "json": str(ContentType.JSON),
    "ign": str(ContentType.IGNITION),
    "cfg": str(ContentType.TEXT),
    "ipxe": str(ContentType.TEXT),
}
BUNDLED: Final = ("user-data", "meta-data", "vendor-data", "network-config")  # the files of NoCloud


def find_artifact_type(name: str) -> str:
    """Return the content type of a file below o/ or assets/."""
    if name in BUNDLED:
        return ContentType.CLOUD_CONFIG
    return ARTIFACT_TYPES.get(name.rpartition(".")[2].lower(), ContentType.OCTETS)


def find_content_type(path: str) -> str:
    """Return the content type of a file in the output tree."""
    kind = find_path_kind(path)
    if is_immutable(path) or kind is DATA:
        return find_artifact_type(path.rpartition("/")[2])
    return kind.content_type if kind is not None else ARTIFACT_TYPES.get(path.rpartition(".")[2], ContentType.TEXT)


class Stage(IntEnum):
    """A stage of a publication. After the last stage, the publication deletes old files."""

    CONTENT = 0  # files that boot scripts refer to
    BOOT_SCRIPTS = 1  # the other files of a server
    FIRST_SCRIPTS = 2  # the shared scripts: the first scripts and the scripts of unknown machines
    LIST = 3  # the timestamp of the signed list, from which a reader finds the other files of the list


def publication_stage(path: str) -> Stage:
    """Return the stage in which gitboot publishes a path below the output directory.

    The first scripts come after the boot scripts. Otherwise a known machine could run a first script before its boot
    script exists, and would boot as an unknown machine.
    """
    if is_content(path):
        return Stage.CONTENT
    if path.startswith(SIGNED):
        return Stage.LIST if path == LIST_TIMESTAMP else Stage.BOOT_SCRIPTS
    if path.startswith(BOOT) and find_path_kind(path) is None and find_non_script_kind(path) is None:
        return Stage.FIRST_SCRIPTS
    return Stage.BOOT_SCRIPTS


class MoveOrder(IntEnum):
    """The rank of a file or a folder within its parent folder. A publication moves lower ranks first."""

    CONTENT = 0  # files that never change, and files for operators
    NO_BOOT_SCRIPTS = 1  # only files that do not refer to content
    MIXED = 2
    BOOT_SCRIPTS = 3  # only files that refer to content
    FIRST_SCRIPTS = 4


_BOOT_ROLES: Final = frozenset({Role.BOOT_SCRIPT, Role.OFFER, Role.PREVIEW})  # files that refer to content


@cache
def _compile_folder_expressions() -> tuple[tuple[Role, tuple[re.Pattern[str], ...]], ...]:
    """Return, for each row of the table, the role and one expression for each component of the row's paths."""
    return tuple((kind.role, tuple(map(re.compile, kind.expression.split("/")))) for kind in TABLE)


def find_move_order(path: str) -> MoveOrder:
    """Return the rank of a file or a folder in the output tree."""
    if not path.startswith(BOOT) or is_immutable(f"{path}/"):
        return MoveOrder.CONTENT
    parts = path.removeprefix(BOOT).split("/")
    roles = {
        role
        for role, pieces in _compile_folder_expressions()
        if len(parts) <= len(pieces) and all(map(re.Pattern.fullmatch, pieces, parts))
    }
    if not roles:
        return MoveOrder.FIRST_SCRIPTS
    if roles.isdisjoint(_BOOT_ROLES):
        return MoveOrder.NO_BOOT_SCRIPTS
    return MoveOrder.BOOT_SCRIPTS if roles <= _BOOT_ROLES else MoveOrder.MIXED


@cache
def _compile_loose_expressions() -> tuple[tuple[PathKind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(kind.loose_expression)) for kind in TABLE)


def parse_request_path(path: str) -> Iterator[PathLookup]:
    """Yield the paths that a request may refer to, beginning with the most likely path.

    ``path`` is relative to boot/, in any spelling.
    """
    for kind, expression in _compile_loose_expressions():
        match = expression.fullmatch(path)
        if match is None:
            continue
        try:
            value = _IDENTITIES[kind.identity_kind].parse(match[1])
        except Malformed:
            continue
        identity = format_identity(kind.identity_kind, value)
        spellings = [value]
        if kind.identity_kind is IdentityKind.UUID:
            spellings.append(swap_byte_order(SystemUuid(value)))
        for spelling in spellings:
            before, after = path[: match.start(1)], path[match.end(1) :]
            yield PathLookup(kind, identity, f"{BOOT}{before}{kind.convert_identity(spelling)}{after}")


_EVIDENCE_ROLES: Final = (Role.BOOT_SCRIPT, Role.DATA, Role.REPORT)


def build_evidence_expression() -> str:
    """Return a regular expression for the paths below boot/ for which a completed GET from a mirror is evidence."""
    return "|".join(kind.expression for kind in TABLE if kind.role in _EVIDENCE_ROLES)


@dataclass(frozen=True, slots=True)
class File:
    """The content and the content type of a published file."""

    content: bytes
    content_type: str = ContentType.TEXT
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sha256(self) -> Digest:
        """The SHA-256 of the content, computed at first use."""
        if (known := self._digest) is None:
            known = Digest(sha256(self.content).hexdigest())
            object.__setattr__(self, "_digest", known)
        return known


Files = Mapping[str, File]  # files by path below the output directory: boot/… for machines, ops/… for operators


PAGE: Final = "ops/pages/"
PAGE_DATA: Final = f"{PAGE}data/"
PAGE_INDEX: Final = f"{PAGE}index.html"
# Files of the instance that are not in the manifest. For each file, there is a name on the page, and a script with the
# same content.
ON_PAGE: Final[Mapping[str, tuple[str, str]]] = {
    "ops/status.json": ("status", f"{PAGE_DATA}status.js"),
    "ops/history.json": ("history", f"{PAGE_DATA}history.js"),
    "ops/unknown.json": ("seen", f"{PAGE_DATA}seen.js"),
}
RECORDS: Final = "ops/records/"


def is_page_or_record_file(path: str) -> bool:
    """Return whether a shared file belongs to the web page or to the records."""
    return path.startswith((PAGE, RECORDS))
