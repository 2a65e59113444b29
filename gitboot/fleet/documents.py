"""Documents: the resources of a revision with their files and locations, and a reader for the documents of one file."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import yaml
from msgspec import Struct

from gitboot.fleet.revision import MAX_FILE_BYTES, BlobId, Oversized, Revision, Snapshot
from gitboot.fleet.yaml import MAX_KEPT, Place, Value, locate, parse
from gitboot.jsonio import API_VERSION
from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fields import Fault, InvalidDocument, InvalidField, read
from gitboot.model.fleet import Fleet
from gitboot.model.image_source import ImageSource
from gitboot.model.scalars import Malformed, Path, parse_name, quote_value
from gitboot.model.server import Server
from gitboot.problems import Code, Problem, Severity
from gitboot.text import format_suggestion, printable

Resource = Fleet | Server | BootImage | ImageStream | ImageSource | BootProfile | BootPolicy | Maintenance
KINDS: Final[Mapping[str, type[Resource]]] = {
    kind.__name__: kind
    for kind in (Fleet, Server, BootImage, ImageStream, ImageSource, BootProfile, BootPolicy, Maintenance)
}


class Id(NamedTuple):
    """The kind and the name of a resource, which messages show in the form BootPolicy/web."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Origin(NamedTuple):
    """The location of a document in the repository."""

    path: str
    blob: BlobId
    document: int  # the 0-based index of the document in its file


class FleetRepository(Struct, frozen=True, kw_only=True):
    """The content of a valid revision: all resources, sorted by name, and the files to which the resources refer."""

    revision: Revision
    fleet: Fleet
    servers: Mapping[str, Server]
    images: Mapping[str, BootImage]
    streams: Mapping[str, ImageStream]
    profiles: Mapping[str, BootProfile]
    policies: Mapping[str, BootPolicy]
    maintenances: Mapping[str, Maintenance]
    files: Mapping[str, bytes]  # the contents of the templates, certificates and secrets to which resources refer
    origins: Mapping[Id, Origin]
    read: Callable[[BlobId], bytes]
    # only commands that find images use these resources; they do not affect decisions
    image_sources: Mapping[str, ImageSource] = {}

    def find_place(self, resource: Id, *path: str | int) -> tuple[str, Place]:
        """Return the file of a resource, and the location of the value at ``path``.

        If there is no value, return the location of the nearest parent.
        """
        origin = self.origins[resource]
        return origin.path, locate(self.read(origin.blob), origin.document, path)

    def build_problem(
        self,
        code: Code,
        message: str,
        resource: Id,
        *path: str | int,
        hint: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Problem:
        file, place = self.find_place(resource, *path)
        return Problem(
            path=file,
            line=place.line,
            column=place.column,
            code=code,
            message=message,
            hint=hint,
            severity=severity,
        )


def read_resource(value: dict[str, Value]) -> Resource:
    """Convert a document to a resource object.

    Raises `InvalidDocument`, which contains all faults, if the document is invalid.
    """
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or kind not in KINDS:
        shown = quote_value(kind)
        message = f"unknown kind {shown}" if isinstance(kind, str) else f"expected a kind, found {shown}"
        code = Code.KIND
        if kind is None:
            code, message = Code.MISSING_FIELD, "the document has no kind"
        otherwise = f"use one of {', '.join(KINDS)}, or list the file in .gitbootignore"
        find_hint = partial(format_suggestion, kind, KINDS, otherwise)
        raise InvalidDocument([Fault((), InvalidField(code, message, at=("kind",), find_hint=find_hint))])
    if version != API_VERSION:
        code = Code.MISSING_FIELD if version is None else Code.API_VERSION
        message = f"expected apiVersion {API_VERSION}, found {quote_value(version)}"
        raise InvalidDocument(
            [Fault((), InvalidField(code, message, f"write apiVersion: {API_VERSION}", ("apiVersion",)))]
        )
    return read(KINDS[kind], value)


def _find_id(value: dict[str, Value]) -> Id | None:
    kind, metadata = value.get("kind"), value.get("metadata")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(metadata, dict):
        return None
    with suppress(Malformed):
        return Id(str(kind), parse_name(metadata.get("name")))
    return None


FILE_START: Final = Place(1, 1)  # the location of a problem that concerns a whole file


def build_problem(path: str, place: Place, code: Code, message: str, hint: str = "") -> Problem:
    """Return a problem at a location in a file. Without ``hint``, the problem has the default hint of ``code``."""
    return Problem(path=path, line=place.line, column=place.column, code=code, message=message, hint=hint or code.hint)


def format_path(path: Path) -> str:
    """Format the path of a field for messages, such as spec.interfaces[0].mac. Shorten long keys."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}{'…' * (len(step) > 80)}" for step in path)
    return printable("".join(steps)).removeprefix(".") or "the document"


_NAMES: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class UnreadDocument(NamedTuple):
    """A document whose kind or name gitboot cannot read, or a text that may contain several documents."""

    kind: str | None  # the kind of the document; None: any kind is possible
    names: frozenset[str] | None  # all words that may be the name of the document; None: gitboot has not read the text


ANYTHING: Final = UnreadDocument(None, None)


def _list_texts(value: Value) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield key
                yield from _list_texts(item)
        case list():
            for item in value:
                yield from _list_texts(item)
        case str():
            yield value


class UnreadDocuments:
    """The documents in a revision whose kind or name gitboot cannot read."""

    def __init__(self, documents: Iterable[UnreadDocument]) -> None:
        self._any_name_kinds: set[str | None] = set()  # the kinds of documents that may have any name
        self._names: set[tuple[str | None, str]] = set()
        self.kinds: set[str] = set()  # all kinds that the documents may have
        for document in documents:
            self.add(document)

    def add(self, document: UnreadDocument) -> None:
        self.kinds |= KINDS.keys() if document.kind is None else {document.kind}
        if document.names is None:
            self._any_name_kinds.add(document.kind)
        else:
            self._names |= {(document.kind, name) for name in document.names}

    def may_include(self, kind: str, name: str) -> bool:
        """Return whether one of the documents may be the resource with this kind and name."""
        if kind in self._any_name_kinds or None in self._any_name_kinds:
            return True
        return (kind, name) in self._names or (None, name) in self._names


class ParsedBlob(Struct, frozen=True, kw_only=True):
    """The parsed documents of one blob: the resources, and the problems, which do not contain the file's path."""

    resources: tuple[tuple[int, Resource], ...]  # pairs of the index of the document and the resource
    problems: tuple[Problem, ...]  # the first problems, sorted
    more: int  # the number of further problems
    broken: tuple[Id, ...]  # the invalid documents whose kind and name gitboot can read
    unread: tuple[UnreadDocument, ...]  # the documents whose kind or name gitboot cannot read

    @property
    def has_only_servers(self) -> bool:
        """Return whether the blob contains one or more valid Server documents, and no other documents."""
        if self.problems or self.more or self.broken or self.unread or not self.resources:
            return False
        return all(isinstance(resource, Server) for _, resource in self.resources)


ParseCache = MutableMapping[BlobId, ParsedBlob]


def parse_blob(data: bytes, path: str) -> ParsedBlob:
    """Parse the documents of a file into resources and problems."""
    if is_lfs_pointer(data):
        problem = build_problem(path, FILE_START, Code.LFS_POINTER, "the file is a Git LFS pointer")
        return ParsedBlob(resources=(), problems=(problem,), more=0, broken=(), unread=(ANYTHING,))
    parsed = parse(data, path)
    resources: list[tuple[int, Resource]] = []
    problems: list[Problem] = []
    more = parsed.more
    broken: list[Id] = []
    unread = [ANYTHING]
    if parsed.unread is not None:  # if a document is not valid YAML, its text probably contains its name
        unread = [
            UnreadDocument(None, frozenset(_NAMES.findall(text.decode(errors="replace")))) for text in parsed.unread
        ]
    for document in parsed.documents:
        try:
            resources.append((document.index, read_resource(document.value)))
        except InvalidDocument as invalid:
            shown = _build_problems(data, path, document.index, invalid.faults, MAX_KEPT - len(problems))
            problems += shown
            more += len(invalid.faults) - len(shown)
            if (key := _find_id(document.value)) is not None:
                broken.append(key)
            else:
                unread.append(_make_unread_document(document.value))
    problems = sorted([*problems, *parsed.problems])
    return ParsedBlob(
        resources=tuple(resources),
        problems=tuple(problems[:MAX_KEPT]),
        more=more + len(problems[MAX_KEPT:]),
        broken=tuple(broken),
        unread=tuple(unread),
    )


def _make_unread_document(value: dict[str, Value]) -> UnreadDocument:
    """Describe a document without a valid kind or name.

    The document probably contains the name in another field or with another spelling.
    """
    kind = value.get("kind")
    names = frozenset(name for text in _list_texts(value) for name in _NAMES.findall(text.lower()))
    return UnreadDocument(kind if isinstance(kind, str) and kind in KINDS else None, names)


def _build_problems(data: bytes, path: str, index: int, faults: Iterable[Fault], max_count: int) -> list[Problem]:
    if max_count <= 0:
        return []
    placed = [(locate(data, index, (*fault.path, *fault.error.at), key=fault.is_key), fault) for fault in faults]
    placed.sort(key=itemgetter(0))
    problems = []
    for place, fault in placed[:max_count]:
        message, hint = fault.error.describe(format_path(fault.path))
        problems.append(build_problem(path, place, fault.error.code, message, hint))
    return problems


def read_blob(snapshot: Snapshot, blob: BlobId, path: str) -> ParsedBlob:
    """Read and parse a file. If the file is too large, return a problem and do not read the file."""
    try:
        return parse_blob(snapshot.read(blob), path)
    except Oversized as error:
        return ParsedBlob(
            resources=(),
            problems=(build_oversized_problem(path, FILE_START, error),),
            more=0,
            broken=(),
            unread=(ANYTHING,),
        )


def build_oversized_problem(path: str, at: Place, error: Oversized) -> Problem:
    """Return a problem which states that a file is too large."""
    return build_problem(path, at, Code.FILE_TOO_LARGE, describe_size(error))


def describe_size(error: Oversized) -> str:
    return f"the file is {error.size:,} bytes long; the limit is {MAX_FILE_BYTES:,}"


def is_lfs_pointer(data: bytes) -> bool:
    return data.startswith(b"version https://git-lfs.github.com/spec/")


MAX_SECRET_BYTES: Final = 64 * 1024  # in bytes; for comparison, a certificate with its chain has about 10 KiB
_ARMOR: Final = re.compile(
    rb"\s*-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END AGE ENCRYPTED FILE-----\s*"
)
# The header of an age file has a version line, stanzas that begin with their type, and a MAC (age specification,
# "Header").
_HEADER: Final = b"age-encryption.org/v1\n"
_STANZA: Final = re.compile(rb"-> ([!-~]+)(?: [!-~]+)*\n(?:[A-Za-z0-9+/]{64}\n)*[A-Za-z0-9+/]{0,63}\n")
_MAC: Final = re.compile(rb"--- [A-Za-z0-9+/]{43}\n")
_MAX_RECIPIENTS: Final = 20  # this number is limited, because decryption tries each key for each recipient


class NotEncrypted(ValueError):
    """Raised if a file is not an encrypted secret that an endpoint can decrypt."""


def parse_encrypted(data: bytes) -> bytes:
    """Return the binary content of an encrypted file. Raises `NotEncrypted` if an endpoint cannot decrypt the file."""
    if len(data) > MAX_SECRET_BYTES:
        raise NotEncrypted(f"the file is {len(data):,} bytes long; the limit is {MAX_SECRET_BYTES:,}")
    if found := _ARMOR.fullmatch(data):
        try:
            data = b64decode(found[1].replace(b"\r", b"").replace(b"\n", b""), validate=True)
        except ValueError:
            raise NotEncrypted("the file's armor is damaged") from None
    if not data.startswith(_HEADER):
        raise NotEncrypted("the file is not encrypted with age")
    kinds, at = [], len(_HEADER)
    while stanza := _STANZA.match(data, at):
        kinds.append(stanza[1].decode())
        at = stanza.end()
    if not _MAC.match(data, at):
        raise NotEncrypted("the file is incomplete")
    if "scrypt" in kinds:
        raise NotEncrypted("the file is encrypted with a passphrase; encrypt it to a key instead")
    if "X25519" not in kinds:
        others = sorted({kind[:20] for kind in kinds if not kind.endswith("-grease")})
        raise NotEncrypted(
            f"the file is not encrypted to an age1… key (recipient types: {', '.join(others[:3]) or 'none'})"
        )
    if len(kinds) > _MAX_RECIPIENTS:
        raise NotEncrypted(f"the file has {len(kinds)} recipients; the limit is {_MAX_RECIPIENTS}")
    return data


def render_document(
    comments: Iterable[str],
    kind: str,
    name: str,
    spec: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Return a document as YAML. Each of ``comments`` becomes a comment line above the document."""
    metadata: dict[str, Any] = {"name": name}
    metadata |= {key: dict(value) for key, value in (("labels", labels), ("annotations", annotations)) if value}
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return "".join(f"# {printable(line)}\n" for line in comments) + text


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that does not write anchors, because documents must not contain anchors."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
