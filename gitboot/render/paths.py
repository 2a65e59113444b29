"""Paths: the table of published paths."""

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

BOOT: Final = "boot/"  # above all that is for machines
IMMUTABLE: Final = "boot/o/"  # below it a path names its content and never changes
SIGNED: Final = "boot/signed/"  # the folder of the signed list
LIST_TIMESTAMP: Final = f"{SIGNED}timestamp.json"  # the file by which a reader of the list begins


class ContentType(StrEnum):
    TEXT = "text/plain; charset=utf-8"  # iPXE and GRUB take any; a browser shows it
    JSON = "application/json"
    IGNITION = "application/vnd.coreos.ignition+json"
    CLOUD_CONFIG = "text/cloud-config; charset=utf-8"
    OCTETS = "application/octet-stream"
    ISO = "application/vnd.efi-iso"


# How long an answer may be kept (RFC 9111, 5.2.2; immutable: RFC 8246).
UNCACHED: Final = "no-store"


class Delivery(NamedTuple):
    """How a file is sent by the endpoint, mirrors and targets: one table for all of them."""

    cache_control: str
    has_etag: bool  # a client that has this version gets a 304
    in_parts: bool  # a Range gets a part of it


_UNCACHED_DELIVERY: Final = Delivery(UNCACHED, has_etag=False, in_parts=False)  # each fetch counts, and is logged
_MEDIUM_DELIVERY: Final = Delivery(UNCACHED, has_etag=True, in_parts=True)  # a BMC reads an ISO image in parts


class Role(StrEnum):
    """What a completed GET of a path says."""

    BOOT_SCRIPT = "entry"  # that the machine boots what it names
    DATA = "data"  # that the system which was booted asks for what it configures itself by
    SEALED = "sealed"  # the same; it is given decrypted, and by an endpoint alone
    REPORT = "report"  # that its installer is done, or has failed
    OFFER = "offer"  # nothing: a DHCP server asks on its own behalf
    MEDIUM = "medium"  # nothing: a BMC fetches it, before its machine boots
    PREVIEW = "look"  # nothing, and no boot that writes disks is shown


class IdentityKind(StrEnum):
    """What a server is found by."""

    MAC = "mac"
    UUID = "uuid"  # in either byte order
    SERIAL = "serial"
    ADDRESS = "address"
    NAME = "name"  # of its document, or its xname
    NID = "nid"  # the number that OpenCHAMI gives a node
    TOKEN = "token"  # noqa: S105 - of an installation, as its installer was told it


def _parse_serial(text: str) -> str:
    if is_placeholder_serial(text):
        raise Malformed(Code.PLACEHOLDER_IDENTITY, f"the serial number {text} does not identify a machine")
    return text


class _Identity(NamedTuple):
    canonical: str  # a regular expression for what the tree's own paths have
    parse: Callable[[str], str]  # any spelling -> the tree's own; raises Malformed


_IDENTITIES: Final = {
    IdentityKind.MAC: _Identity(r"[0-9a-f]{2}(?:-[0-9a-f]{2}){5}", parse_lookup_mac),
    IdentityKind.UUID: _Identity(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", parse_lookup_uuid),
    IdentityKind.SERIAL: _Identity(r"[A-Za-z0-9][A-Za-z0-9._-]*", _parse_serial),
}
_TOKEN_PATTERN: Final = "[0-9a-f]{64}"  # of an installation  # noqa: S105
_NAME: Final = "[A-Za-z_][A-Za-z0-9_.-]*"
_IDENTITY: Final = re.compile(r"\{(?:id|colons|bare)\}")
_SEPARATORS: Final = {"{colons}": ":", "{bare}": ""}


class PathKind(NamedTuple):
    """One kind of path: a line of the table."""

    # Below boot/, with {id} for what the server is found by ({colons}, {bare}: a MAC address with colons, or without),
    # {token} for an installation, {name} for a file.
    text: str
    requested_by: str | None  # the output of the Fleet, or its evidence, that asks for it; None: always there
    kind: IdentityKind
    role: Role
    content_type: ContentType

    def build_path(self, identity: str, token: str = "", name: str = "") -> str:
        """Return the path below the output directory. ``identity`` is spelt as the tree spells it."""
        text = self.text.replace("{id}", identity)
        for mark, by in _SEPARATORS.items():
            if mark in text:
                text = text.replace(mark, identity.replace("-", by))
        return BOOT + text.replace("{token}", token).replace("{name}", name)

    def spell(self, identity: str) -> str:
        """Return an identity of the tree in the spelling of this kind of path."""
        return next((identity.replace("-", by) for mark, by in _SEPARATORS.items() if mark in self.text), identity)

    @property
    def delivery(self) -> Delivery:
        return _MEDIUM_DELIVERY if self.role is Role.MEDIUM else _UNCACHED_DELIVERY

    @property
    def needs_identity_only(self) -> bool:
        """Whether nothing else has to be known to spell it."""
        return "{token}" not in self.text and "{name}" not in self.text

    @property
    def expression(self) -> str:
        """A regular expression for the paths below boot/, as the tree spells them."""
        return self._expression(_IDENTITIES[self.kind].canonical.replace("(?:-", f"(?:{self.spell('-')}"))

    @property
    def any_spelling(self) -> str:
        """The same with the identity in any spelling, as its one group."""
        return self._expression("([^/]+)")

    def _expression(self, identity: str) -> str:
        text = identity.join(map(re.escape, _IDENTITY.split(self.text)))
        return text.replace(r"\{token\}", _TOKEN_PATTERN).replace(r"\{name\}", _NAME)


MEDIUM: Final = PathKind("media/{id}/{token}/user-data.iso", None, IdentityKind.UUID, Role.MEDIUM, ContentType.ISO)
DATA: Final = PathKind("v1/boot/{id}/data/{token}/{name}", None, IdentityKind.MAC, Role.DATA, ContentType.OCTETS)
IGNITION: Final = PathKind("ignition/{id}", None, IdentityKind.UUID, Role.DATA, ContentType.IGNITION)
# What lies below o/ and assets/ is served by its name; UEFI HTTP boot goes by the type of what it fetches.
ARTIFACT_TYPES: Final = {
    "efi": "application/efi",
    "iso": str(ContentType.ISO),
    "img": "application/vnd.efi-img",
    "json": str(ContentType.JSON),
    "ign": str(ContentType.IGNITION),
    "cfg": str(ContentType.TEXT),
    "ipxe": str(ContentType.TEXT),
}
BUNDLED: Final = ("user-data", "meta-data", "vendor-data", "network-config")  # NoCloud's, side by side


def find_artifact_type(name: str) -> str:
    """Return the content type of an artifact."""
    if name in BUNDLED:
        return ContentType.CLOUD_CONFIG
    return ARTIFACT_TYPES.get(name.rpartition(".")[2].lower(), ContentType.OCTETS)


REVALIDATED: Final = "no-cache"  # what changes in place: it may be kept, but each use asks again
FOR_A_YEAR: Final = "public, max-age=31536000, immutable"
_SHARED_DELIVERY: Final = Delivery(REVALIDATED, has_etag=True, in_parts=False)
_CONTENT_DELIVERY: Final = Delivery(FOR_A_YEAR, has_etag=True, in_parts=True)  # a download of a kernel can be resumed
IPXE_BY_MAC: Final = PathKind("v1/boot/{id}/boot.ipxe", "ipxe", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
IPXE_BY_UUID: Final = PathKind("ipxe/{id}", "ipxe", IdentityKind.UUID, Role.BOOT_SCRIPT, ContentType.TEXT)
IPXE_BY_SERIAL: Final = PathKind("ipxe/serial/{id}", "serial", IdentityKind.SERIAL, Role.BOOT_SCRIPT, ContentType.TEXT)
GRUB_BY_MAC: Final = PathKind("v1/boot/{id}/grub.cfg", "grub", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
GRUB_LOOKUP: Final = PathKind(
    "grub.cfg-01-{id}", "grub", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT
)  # 01 is Ethernet
GRUB_BY_UUID: Final = PathKind("grub.cfg-{id}", "uuid", IdentityKind.UUID, Role.BOOT_SCRIPT, ContentType.TEXT)
PXELINUX: Final = PathKind("pxelinux.cfg/01-{id}", "pxelinux", IdentityKind.MAC, Role.BOOT_SCRIPT, ContentType.TEXT)
HTTP_BOOT: Final = PathKind("httpboot/{id}.json", None, IdentityKind.UUID, Role.OFFER, ContentType.JSON)
SECRET: Final = PathKind("s/{token}/{id}/{name}", None, IdentityKind.MAC, Role.SEALED, ContentType.OCTETS)
PROVISIONED: Final = PathKind(
    "v1/boot/{id}/provisioned/{token}", "Reported", IdentityKind.MAC, Role.REPORT, ContentType.TEXT
)
FAILED: Final = PathKind("v1/boot/{id}/failed/{token}", "Reported", IdentityKind.MAC, Role.REPORT, ContentType.TEXT)
REPORTS: Final = (PROVISIONED, FAILED)
# What clients of other systems ask for (docs/paths.md), where the path says whose it is; `emulated_apis` has others.
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
CHECK: Final = "check"  # in the query of a request by gitboot itself, which never counts as a machine's
CHECKER: Final = "gitboot-verify-mirror"  # the User-Agent of such a request, before the version
# A folder that no copy has. The endpoint answers a path below it as the path without it.
ASKED: Final = "asked/"
HOP: Final = "hop"  # in the query of who was sent on, so that it is sent to no third one
FIRST_SCRIPT: Final = "boot/boot.ipxe"  # what every machine's iPXE starts with
# What PXELINUX loads first, from where its configurations are: DHCP names the base URL as its prefix (option 210).
PXELINUX_CORE: Final = "ldlinux.c32"
CHAIN: Final = "boot/ipxe/boot.ipxe"  # the same, for boot-operator's users, who point iPXE to /ipxe/
# What a loader asks for where no entry is found.
UNKNOWN: Final = ("boot/unknown.ipxe", "boot/unknown.grub.cfg", "boot/pxelinux.cfg/default")
UNKNOWN_HTTP_BOOT: Final = "boot/unknown.httpboot.json"  # what a DHCP server is told of an address that is no server's
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


class PathLookup(NamedTuple):
    """A path of one server, as the tree spells it."""

    kind: PathKind
    identity: str  # as the index has it: mac/52-54-00-12-34-56
    path: str  # below the output directory


def format_identity(kind: IdentityKind, value: str) -> str:
    """Return the name of an identity in the index."""
    return f"{kind}/{value}"


def _compile_alternatives(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"({each})" for each in expressions))


_CACHE_SIZE: Final = (
    1024  # paths: what of one server is rendered, and published, asks for each of its own several times
)
_PATH_PATTERN: Final = _compile_alternatives(BOOT + kind.expression for kind in TABLE)


@lru_cache(maxsize=_CACHE_SIZE)
def find_path_kind(path: str) -> PathKind | None:
    """Return the line of the table for a path of the tree; None: the path is no server's, or never changes in place."""
    found = _PATH_PATTERN.fullmatch(path)
    return TABLE[found.lastindex - 1] if found is not None and found.lastindex is not None else None


_NON_SCRIPT_KINDS: Final = (IGNITION, DATA, SECRET, MEDIUM, NOCLOUD, USER_DATA, *REPORTS)
# Of any identity and any token.
_NON_SCRIPT_PATTERN: Final = _compile_alternatives(
    re.sub(r"\{\w+\}", "[^/]+", BOOT + kind.text) for kind in _NON_SCRIPT_KINDS
)


@lru_cache(maxsize=_CACHE_SIZE)
def find_non_script_kind(path: str) -> PathKind | None:
    """Return the line of the table for a path that is no entry, with any identity and token; None: any other path."""
    found = _NON_SCRIPT_PATTERN.fullmatch(path)
    return _NON_SCRIPT_KINDS[found.lastindex - 1] if found is not None and found.lastindex is not None else None


@lru_cache(maxsize=_CACHE_SIZE)
def find_token(path: str) -> str | None:
    """Return the token of the installation that a path names; None: it names none."""
    found = _TOKEN.search(path)
    return found[1] if found is not None and find_non_script_kind(path) in (DATA, SECRET, *REPORTS) else None


_TOKEN: Final = re.compile(rf"/({_TOKEN_PATTERN})(?:/|$)")


def is_immutable(path: str) -> bool:
    return path.startswith(IMMUTABLE)


def is_content(path: str) -> bool:
    """Return whether entries name a path. It is published before them, and stays for a while after the last one."""
    return is_immutable(path) or find_non_script_kind(path) in (DATA, MEDIUM)


def find_delivery(path: str) -> Delivery:
    """Return how a file of the tree is sent."""
    if is_immutable(path):
        return _CONTENT_DELIVERY
    kind = find_path_kind(path) or find_non_script_kind(path)
    return kind.delivery if kind is not None else _SHARED_DELIVERY


def find_content_type(path: str) -> str:
    """Return the content type that a file of the tree is sent with."""
    kind = find_path_kind(path)
    if is_immutable(path) or kind is DATA:
        return find_artifact_type(path.rpartition("/")[2])
    return kind.content_type if kind is not None else ARTIFACT_TYPES.get(path.rpartition(".")[2], ContentType.TEXT)


class Stage(IntEnum):
    """When a publication places a file. It deletes what is not published any more after the last stage."""

    CONTENT = 0  # what boot scripts name
    BOOT_SCRIPTS = 1  # each server's own files
    FIRST_SCRIPTS = 2  # the shared scripts: what every machine begins with, and what unknown machines boot
    LIST = 3  # the timestamp of the signed list, by which a reader finds the other files of the list


def publication_stage(path: str) -> Stage:
    """Return the stage of a path below the output directory.

    The first scripts come last: a known machine that runs one before its own boot script is there boots what unknown
    machines boot.
    """
    if is_content(path):
        return Stage.CONTENT
    if path.startswith(SIGNED):
        return Stage.LIST if path == LIST_TIMESTAMP else Stage.BOOT_SCRIPTS
    if path.startswith(BOOT) and find_path_kind(path) is None and find_non_script_kind(path) is None:
        return Stage.FIRST_SCRIPTS
    return Stage.BOOT_SCRIPTS


_BOOT_ROLES: Final = frozenset({Role.BOOT_SCRIPT, Role.OFFER, Role.PREVIEW})  # of what names content


@cache
def _folder_expressions() -> tuple[tuple[Role, tuple[re.Pattern[str], ...]], ...]:
    """Return the role of each line of the table, and an expression for each folder of its paths and for its file."""
    return tuple((kind.role, tuple(map(re.compile, kind.expression.split("/")))) for kind in TABLE)


def move_order(path: str) -> int:
    """Return the rank of a file, or of a folder with all that it holds, among those beside it: lower ones go first.

    Folders that hold content alone come before those with boot scripts, and the first scripts come last.
    """
    if not path.startswith(BOOT) or is_immutable(f"{path}/"):
        return 0
    parts = path.removeprefix(BOOT).split("/")
    roles = {
        role
        for role, pieces in _folder_expressions()
        if len(parts) <= len(pieces) and all(map(re.Pattern.fullmatch, pieces, parts))
    }
    if not roles:
        return 4
    return 3 if roles <= _BOOT_ROLES else 1 if roles.isdisjoint(_BOOT_ROLES) else 2


@cache
def _loose_expressions() -> tuple[tuple[PathKind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(kind.any_spelling)) for kind in TABLE)


def parse_request_path(path: str) -> Iterator[PathLookup]:
    """Yield what a request for ``path``, below boot/ and in any spelling, may mean; the likelier first."""
    for kind, expression in _loose_expressions():
        if found := expression.fullmatch(path):
            try:
                value = _IDENTITIES[kind.kind].parse(found[1])
            except Malformed:
                continue
            rest = path[found.end(1) :]
            orders = (value, swap_byte_order(SystemUuid(value))) if kind.kind is IdentityKind.UUID else (value,)
            for each in orders:
                yield PathLookup(
                    kind, format_identity(kind.kind, value), f"{BOOT}{path[: found.start(1)]}{kind.spell(each)}{rest}"
                )


_EVIDENCE_ROLES: Final = (Role.BOOT_SCRIPT, Role.DATA, Role.REPORT)


def evidence_expression() -> str:
    """Return an expression for the paths, below boot/, of which a completed GET from a mirror is evidence."""
    return "|".join(kind.expression for kind in TABLE if kind.role in _EVIDENCE_ROLES)


@dataclass(frozen=True, slots=True)
class File:
    """One file: its bytes, and as what it is served."""

    content: bytes
    content_type: str = ContentType.TEXT
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sha256(self) -> Digest:
        """Of its content; computed when it is first asked for."""
        if (known := self._digest) is None:
            known = Digest(sha256(self.content).hexdigest())
            object.__setattr__(self, "_digest", known)
        return known


Files = Mapping[str, File]  # by path below the output directory: boot/… for machines, ops/… for operators


PAGE: Final = "ops/pages/"
PAGE_DATA: Final = f"{PAGE}data/"
PAGE_INDEX: Final = f"{PAGE}index.html"
# Files of the instance that no manifest lists, and on the page: a name, and the path of a script with the same content.
ON_PAGE: Final[Mapping[str, tuple[str, str]]] = {
    "ops/status.json": ("status", f"{PAGE_DATA}status.js"),
    "ops/unknown.json": ("seen", f"{PAGE_DATA}seen.js"),
}
RECORDS: Final = "ops/records/"


def is_page_or_record_file(path: str) -> bool:
    """Return whether a file that is no server's is of the page or of the records."""
    return path.startswith((PAGE, RECORDS))
