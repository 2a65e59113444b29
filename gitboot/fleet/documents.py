"""Documents of one file: parse each into a resource, or report its problems."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gitboot.fleet.resources import KINDS, Id, Resource
from gitboot.fleet.revision import MAX_FILE_BYTES, BlobId, Oversized, Snapshot
from gitboot.fleet.yaml import Place, Value, locate, parse
from gitboot.jsonio import API_VERSION
from gitboot.model.fields import read
from gitboot.model.scalars import Malformed, Path, parse_name, shown
from gitboot.model.server import Server
from gitboot.problems import MAX_KEPT, Code, Problem
from gitboot.text import did_you_mean, printable

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A document that is no resource, and why."""

    findings: tuple[Finding, ...]
    id: Id | None = None  # None where its kind or name is not known


def checked(value: dict[str, Value]) -> Resource | Broken:
    """A document against the schema of its kind."""
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or kind not in KINDS:
        return Broken(findings=(Finding(("kind",), partial(_no_kind, kind)),))
    kind = str(kind)
    if version != API_VERSION:
        return Broken(findings=(Finding(("apiVersion",), partial(_other_version, version)),), id=_id(kind, value))
    try:
        return read(KINDS[kind], value)
    except ValueError:
        return _examined(kind, value)


def _examined(kind: str, value: dict[str, Value]) -> Resource | Broken:
    """A document with which something is wrong."""
    from pydantic import ValidationError

    try:
        resource: Resource = adapter(kind).validate_python(value)
    except ValidationError as error:
        return Broken(findings=findings(kind, error), id=_id(kind, value))
    return resource


def _no_kind(found: Value) -> Wording:
    if found is None:
        message, code = "every document says its kind", Code.MISSING_FIELD
    else:
        message, code = f"there is no kind {shown(found)}", Code.KIND
    hint = did_you_mean(found, KINDS, f"use one of {', '.join(KINDS)}, or list the file in .gitbootignore")
    return Wording(code, message, hint)


def _other_version(found: Value) -> Wording:
    code = Code.MISSING_FIELD if found is None else Code.API_VERSION
    message = f"expected apiVersion {API_VERSION}, found {shown(found)}"
    return Wording(code, message, f"write apiVersion: {API_VERSION}")


def _id(kind: str, value: dict[str, Value]) -> Id | None:
    metadata = value.get("metadata")
    with suppress(Malformed):
        return Id(kind, parse_name(metadata.get("name") if isinstance(metadata, dict) else None))
    return None


class Wording(NamedTuple):
    """What a problem says."""

    code: Code
    message: str
    hint: str


class Finding(NamedTuple):
    """One thing that is wrong with a document: where in it, and what, put into words only where it is shown."""

    at: Path
    word: Callable[[], Wording]
    key: bool = False  # it is the key at this path that is wrong, not its value


def findings(kind: str, error: ValidationError) -> tuple[Finding, ...]:
    """Everything that is wrong with a document of ``kind``, without what only follows from it."""
    found = error.errors(include_url=False)
    consequences = _consequences([each["loc"] for each in found if each["type"] == "too_short"], found)
    return tuple(
        _finding(kind, each) for each in found if each["type"] != "too_short" or each["loc"] not in consequences
    )


def _consequences(short: Collection[Path], errors: list[Any]) -> set[Path]:
    """Where a list is too short only because its items are malformed: those are errors as well."""
    found = Counter(short)
    for error in errors:
        loc = error["loc"]
        found.update(loc[:length] for length in range(len(loc)) if loc[:length] in found)
    return {loc for loc, count in found.items() if count > 1}


def _finding(kind: str, error: Any) -> Finding:
    at: Path = tuple(step for step in error["loc"] if step not in _TAGS)
    if key := at[-1:] == ("[key]",) and error["type"] != "unexpected_keyword_argument":
        at = at[:-1]
    match error["type"]:
        case "value_error":
            malformed = error["ctx"]["error"]
            return Finding(at + malformed.at, partial(_malformed, malformed, at), key)
        case "missing":
            return Finding(at[:-1], partial(_missing, at), key=True)
        case "unexpected_keyword_argument":
            return Finding(at, partial(_unknown_field, kind, at), key=True)
        case "enum" | "literal_error":
            return Finding(at, partial(_choice, kind, error, at, key), key)
        case "too_short":
            return Finding(at, partial(_empty, at))
    return Finding(at, partial(_shape, error, at))


_TAGS: Final = frozenset({"(profile)", "(selector)", "(word)"})  # the branch of a union, in pydantic's paths
_SHAPES: Final = {
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a single value",
}


def _malformed(error: Malformed, at: Path) -> Wording:
    return Wording(error.code, f"{dotted(at)}: {error.message}", error.hint or error.code.hint)


def _missing(at: Path) -> Wording:
    return Wording(Code.MISSING_FIELD, f"{dotted(at[:-1])} needs {at[-1]}", f"add {at[-1]}")


def _empty(at: Path) -> Wording:
    return Wording(Code.EMPTY, f"{dotted(at)} needs at least one item", "add one")


def _shape(error: Any, at: Path) -> Wording:
    message = f"{dotted(at)}: expected {_SHAPES[error['type']]}, found {shown(error['input'])}"
    return Wording(Code.SHAPE, message, Code.SHAPE.hint)


def _unknown_field(kind: str, at: Path) -> Wording:
    fields = schema_at(kind, at[:-1]).get("properties", {})
    message = f"{dotted(at[:-1])} has no field {shown(at[-1])}"
    hint = did_you_mean(at[-1], fields, f"it has {', '.join(sorted(fields))}")
    return Wording(Code.UNKNOWN_FIELD, message, hint)


def _choice(kind: str, error: Any, at: Path, key: bool) -> Wording:
    words = _QUOTED.findall(error["ctx"]["expected"])
    fields = {} if key else schema_at(kind, at).get("properties", {})
    mapping = f", or a mapping with {', '.join(sorted(fields))}" if fields else ""
    message = f"expected one of {', '.join(words)}{mapping}, found {shown(error['input'])}"
    hint = did_you_mean(error["input"], words, f"write one of {', '.join(words)}{mapping}")
    return Wording(Code.CHOICE, message, hint)


_QUOTED: Final = re.compile(r"'([^']*)'")  # pydantic: 'A' or 'B', or <Choice.A: 'A'>


@cache
def adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # only here: nothing is wrong with most fleets

    return TypeAdapter(KINDS[kind])


@cache
def _schema(kind: str) -> dict[str, Any]:
    return adapter(kind).json_schema()


def schema_at(kind: str, path: Path) -> dict[str, Any]:
    """The JSON Schema of what ``path`` leads to in a document of ``kind``."""
    root = _schema(kind)

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in node:
            return resolved(root["$defs"][node["$ref"].rpartition("/")[2]])
        branches = [resolved(branch) for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
        return next(
            (branch for branch in branches if branch.keys() & {"properties", "enum", "items"}),
            branches[0] if branches else node,
        )

    def inside(node: dict[str, Any], step: str | int) -> dict[str, Any]:
        candidates: list[Any] = []
        for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()), node):
            found = resolved(branch)
            candidates.append(found.get("items") if isinstance(step, int) else found.get("properties", {}).get(step))
            candidates.append(found.get("additionalProperties"))
        return next(each for each in candidates if isinstance(each, dict))

    node = root
    for step in path:
        node = inside(node, step)
    structures = [resolved(branch) for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
    with_fields = [branch for branch in structures if "properties" in branch]
    return with_fields[0] if with_fields else resolved(node)


START: Final = Place(1, 1)  # of a file in which no line is to blame


def problem_at(path: str, place: Place, code: Code, message: str, hint: str = "") -> Problem:
    """A problem of a file; what the code itself hints at fixes it where nothing better is known."""
    return Problem(path=path, line=place.line, column=place.column, code=code, message=message, hint=hint or code.hint)


def dotted(path: Path) -> str:
    """A path as people write it: spec.interfaces[0].mac; keys that go on and on do not."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}{'…' * (len(step) > 80)}" for step in path)
    return printable("".join(steps)).removeprefix(".") or "the document"


_NAMES: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class Unread(NamedTuple):
    """A document, or what may be several, of which it is not known which resource it is."""

    kind: str | None  # None: it may be of any
    names: frozenset[str] | None  # that it may have: what stands in it; None: nobody has read it


ANYTHING: Final = Unread(None, None)


def unread_text(data: bytes) -> Unread:
    """What a text that is no YAML may be: its name stands there."""
    return Unread(None, frozenset(_NAMES.findall(data.decode(errors="replace"))))


def unread_document(kind: Value, value: Value) -> Unread:
    """What a document may be whose kind or name is none: its name is likely there, in another place or spelling."""
    names = frozenset(name for text in _texts(value) for name in _NAMES.findall(text.lower()))
    return Unread(kind if isinstance(kind, str) and kind in KINDS else None, names)


def _texts(value: Value) -> Iterator[str]:
    match value:
        case dict():
            for key, each in value.items():
                yield from (key, *_texts(each))
        case list():
            for each in value:
                yield from _texts(each)
        case str():
            yield value


class AllUnread:
    """All of a revision's."""

    def __init__(self, found: Iterable[Unread]) -> None:
        self._unknown: set[str | None] = set()  # kinds of which one may have any name
        self._names: set[tuple[str | None, str]] = set()
        self.kinds: set[str] = set()  # that are among them, perhaps
        for each in found:
            self.add(each)

    def add(self, found: Unread) -> None:
        self.kinds |= KINDS.keys() if found.kind is None else {found.kind}
        if found.names is None:
            self._unknown.add(found.kind)
        else:
            self._names |= {(found.kind, name) for name in found.names}

    def may_hold(self, kind: str, name: str) -> bool:
        """Whether a resource that is nowhere else may be one of these."""
        return any(each in self._unknown or (each, name) in self._names for each in (kind, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedBlob:
    """What one blob says wherever it lies: resources by document, problems without a path."""

    resources: tuple[tuple[int, Resource], ...]  # (index of the document, resource)
    problems: tuple[Problem, ...]  # the first ones, sorted
    more: int  # that lie behind those
    broken: tuple[Id, ...]  # documents that have problems of their own, but a name
    unread: tuple[Unread, ...]  # documents whose kind or name could not be told

    @property
    def has_only_servers(self) -> bool:
        """Return whether the blob has only valid Server documents, and at least one."""
        if self.problems or self.more or self.broken or self.unread or not self.resources:
            return False
        return all(isinstance(resource, Server) for _, resource in self.resources)


ParseCache = MutableMapping[BlobId, ParsedBlob]


def parse_blob(data: bytes, path: str) -> ParsedBlob:
    """What a file says: each of its documents as a resource, or with its problems."""
    if is_lfs_pointer(data):
        problem = problem_at(path, START, Code.LFS_POINTER, Code.LFS_POINTER.headline)
        return ParsedBlob(resources=(), problems=(problem,), more=0, broken=(), unread=(ANYTHING,))
    parsed = parse(data, path)
    resources: list[tuple[int, Resource]] = []
    problems: list[Problem] = []
    more = parsed.more
    broken: list[Id] = []
    unread = [ANYTHING] if parsed.unread is None else [unread_text(text) for text in parsed.unread]
    for document in parsed.documents:
        found = checked(document.value)
        if not isinstance(found, Broken):
            resources.append((document.index, found))
            continue
        shown = _problems(data, path, document.index, found.findings, MAX_KEPT - len(problems))
        problems += shown
        more += len(found.findings) - len(shown)
        if found.id is not None:
            broken.append(found.id)
        else:
            unread.append(unread_document(document.value.get("kind"), document.value))
    problems = sorted([*problems, *parsed.problems])
    return ParsedBlob(
        resources=tuple(resources),
        problems=tuple(problems[:MAX_KEPT]),
        more=more + len(problems[MAX_KEPT:]),
        broken=tuple(broken),
        unread=tuple(unread),
    )


def _problems(data: bytes, path: str, index: int, findings: Iterable[Finding], at_most: int) -> list[Problem]:
    """The first findings of a document, by their places."""
    if at_most <= 0:
        return []
    placed = [(locate(data, index, each.at, key=each.key), each) for each in findings]
    placed.sort(key=itemgetter(0))
    return [problem_at(path, place, *each.word()) for place, each in placed[:at_most]]


def read_blob(snapshot: Snapshot, blob: BlobId, path: str) -> ParsedBlob:
    """What the file at ``path`` says; one that no fleet needs is not read."""
    try:
        return parse_blob(snapshot.read(blob), path)
    except Oversized as error:
        return ParsedBlob(
            resources=(), problems=(oversized(path, START, error),), more=0, broken=(), unread=(ANYTHING,)
        )


def oversized(path: str, at: Place, error: Oversized) -> Problem:
    """The problem of a file that was not read."""
    return problem_at(path, at, Code.FILE_TOO_LARGE, too_large(error))


def too_large(error: Oversized) -> str:
    return f"the file has {error.size:,} bytes, over {MAX_FILE_BYTES:,}"


def is_lfs_pointer(data: bytes) -> bool:
    return data.startswith(_LFS)


_LFS: Final = b"version https://git-lfs.github.com/spec/"
MOST_BYTES: Final = 64 * 1024  # a certificate with its chain has 10 KiB
_ARMOR: Final = re.compile(
    rb"\s*-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END AGE ENCRYPTED FILE-----\s*"
)
# The age specification, "Header": a line for the version, stanzas, each of which begins with its type, and a MAC.
_HEADER: Final = b"age-encryption.org/v1\n"
_STANZA: Final = re.compile(rb"-> ([!-~]+)(?: [!-~]+)*\n(?:[A-Za-z0-9+/]{64}\n)*[A-Za-z0-9+/]{0,63}\n")
_MAC: Final = re.compile(rb"--- [A-Za-z0-9+/]{43}\n")
_MOST_RECIPIENTS: Final = 20  # each is tried with each key


class NotSealed(ValueError):
    """Why no endpoint could open a file."""


def sealed(data: bytes) -> bytes:
    """The file without its armor; raise `NotSealed` where it is none that an endpoint with the right key could open."""
    if len(data) > MOST_BYTES:
        raise NotSealed(f"it has {len(data):,} bytes, over {MOST_BYTES:,}")
    if found := _ARMOR.fullmatch(data):
        try:
            data = b64decode(found[1].replace(b"\r", b"").replace(b"\n", b""), validate=True)
        except ValueError:
            raise NotSealed("its armor is damaged") from None
    if not data.startswith(_HEADER):
        raise NotSealed("it is not encrypted by age")
    kinds, at = [], len(_HEADER)
    while stanza := _STANZA.match(data, at):
        kinds.append(stanza[1].decode())
        at = stanza.end()
    if not _MAC.match(data, at):
        raise NotSealed("it is not whole")
    if "scrypt" in kinds:
        raise NotSealed("it is encrypted with a passphrase, which nobody would enter")
    if "X25519" not in kinds:
        others = sorted({kind[:20] for kind in kinds if not kind.endswith("-grease")})
        raise NotSealed(f"it is encrypted to no key of age itself (age1…), but to {', '.join(others[:3]) or 'none'}")
    if len(kinds) > _MOST_RECIPIENTS:
        raise NotSealed(f"it is encrypted to {len(kinds)} keys, over {_MOST_RECIPIENTS}")
    return data
