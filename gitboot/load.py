"""Blobs of a commit -> the fleet repository as typed values, or every problem of the commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, NewType
from urllib.parse import urlsplit

from pathspec import GitIgnoreSpec
from pydantic import TypeAdapter, ValidationError

from gitboot.codes import Code
from gitboot.document import Document, Path, Place, Value, locate, parse
from gitboot.errors import InvalidRepository, Problem, Severity
from gitboot.model.envelope import API_VERSION
from gitboot.model.fleet import Fleet, UnknownProfile
from gitboot.model.image import BootImage, ImageStream
from gitboot.model.policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.scalars import Malformed, Name, one_line, parse_name, shown, swapped
from gitboot.model.selectors import Selector
from gitboot.model.server import Bmc, Server

BlobId = NewType("BlobId", str)  # names a blob's content: equal ids, equal bytes
Revision = NewType("Revision", str)  # a commit id, or WORKTREE

Resource = Fleet | Server | BootImage | ImageStream | BootProfile | BootPolicy | Maintenance

KINDS: Final[Mapping[str, type[Resource]]] = {
    kind.__name__: kind for kind in (Fleet, Server, BootImage, ImageStream, BootProfile, BootPolicy, Maintenance)
}


class Irregular(StrEnum):
    """What a tree holds that is not a file with content of its own."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    FILE_NAME = "file name"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The files of one revision below the fleet's root: what is there, and how to read it."""

    revision: Revision
    blobs: Mapping[str, BlobId]  # path -> content, "/" between folders
    read: Callable[[BlobId], bytes]
    irregular: Mapping[str, Irregular] = field(default_factory=dict)


class Id(NamedTuple):
    """A resource's kind and name, as messages and reasons show them: BootPolicy/web."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Origin(NamedTuple):
    """Where a resource is written."""

    path: str
    blob: BlobId
    document: int  # which of its file, 0-based


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRepository:
    """One valid revision: every resource by name, in name order, and the files that they use."""

    revision: Revision
    fleet: Fleet
    servers: Mapping[str, Server]
    images: Mapping[str, BootImage]
    streams: Mapping[str, ImageStream]
    profiles: Mapping[str, BootProfile]
    policies: Mapping[str, BootPolicy]
    maintenances: Mapping[str, Maintenance]
    files: Mapping[str, bytes]  # templates and certificates that resources name
    origins: Mapping[Id, Origin]
    read: Callable[[BlobId], bytes]

    def place(self, resource: Id, *path: str | int) -> tuple[str, Place]:
        """The file of a resource, and the place in it of what ``path`` leads to or would stand in."""
        origin = self.origins[resource]
        return origin.path, locate(self.read(origin.blob), origin.document, path)

    def problem(
        self,
        code: Code,
        message: str,
        resource: Id,
        *path: str | int,
        mend: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Problem:
        """A problem at the place of a resource's field."""
        file, place = self.place(resource, *path)
        return Problem(
            path=file,
            line=place.line,
            column=place.column,
            code=code,
            message=message,
            mend=mend,
            severity=severity,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedBlob:
    """What one blob says wherever it lies: resources by document, problems without a path."""

    resources: tuple[tuple[int, Resource], ...]  # (index of the document, resource)
    problems: tuple[Problem, ...]
    broken: tuple[Id, ...]  # documents that have problems of their own, but a name
    nameless: bool  # some document's kind or name could not be told


ParseCache = MutableMapping[BlobId, ParsedBlob]


def load(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository:
    """The fleet repository at ``snapshot``; raise `InvalidRepository` with every problem it has.

    ``cache`` keeps what blobs parse to between calls: only blobs that it lacks are read.
    """
    snapshot = replace(snapshot, read=lru_cache(maxsize=2)(snapshot.read))  # for the problems of two files that clash
    ignores, problems = _ignoring(snapshot)
    irregular = tuple(sorted(path for path in snapshot.irregular if not ignores(path)))
    problems += (_irregular_problem(path, snapshot.irregular[path]) for path in irregular)
    cache = {} if cache is None else cache
    resources: dict[Id, Resource] = {}
    origins: dict[Id, Origin] = {}
    broken: set[Id] = set()
    nameless = bool(irregular)
    for path in sorted(path for path in snapshot.blobs if path.endswith((".yaml", ".yml")) and not ignores(path)):
        blob = snapshot.blobs[path]
        if (parsed := cache.get(blob)) is None:
            parsed = cache[blob] = parse_blob(snapshot.read(blob), path)
        problems += (replace(problem, path=path) for problem in parsed.problems)
        broken.update(parsed.broken)
        nameless |= parsed.nameless
        for index, resource in parsed.resources:
            key = Id(type(resource).__name__, resource.metadata.name)
            origin = Origin(path, blob, index)
            if key in resources:
                problems.append(_duplicate_name(snapshot, key, origin, origins[key]))
            else:
                resources[key], origins[key] = resource, origin

    repository = _Draft(snapshot, resources, origins, broken, nameless, irregular)
    problems += repository.missing_fleet()
    problems += repository.duplicate_identities()
    problems += repository.ambiguous_bmcs()
    problems += repository.dangling_references()
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems)
    return repository.finished()


def _ignoring(snapshot: Snapshot) -> tuple[Callable[[str], bool], list[Problem]]:
    """What is left out: dot-files, dot-folders, what ``.gitbootignore`` names; and which of its lines name nothing."""
    blob = snapshot.blobs.get(_IGNORE)
    if blob is None:
        return _is_hidden, []
    patterns: list[str] = []
    problems: list[Problem] = []
    for number, line in enumerate(snapshot.read(blob).decode("utf-8-sig", "replace").splitlines(), 1):
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error):
            code, message = Code.IGNORE_PATTERN, f"no pattern in Git's sense: {shown(line)}"
            problems.append(Problem(path=_IGNORE, line=number, column=1, code=code, message=message, mend=code.hint))
        else:
            patterns.append(line)
    named = GitIgnoreSpec.from_lines(patterns)
    return lambda path: _is_hidden(path) or named.match_file(path), problems


_IGNORE: Final = ".gitbootignore"


def _is_hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


_IRREGULAR: Final = {
    Irregular.SUBMODULE: (Code.SUBMODULE, "a submodule, whose content is not part of the commit"),
    Irregular.SYMLINK: (Code.SYMLINK, "a symbolic link, which leads out of what the commit says"),
    Irregular.FILE_NAME: (Code.FILE_NAME, "a file name that is not UTF-8"),
}


def _irregular_problem(path: str, irregular: Irregular) -> Problem:
    code, message = _IRREGULAR[irregular]
    return Problem(path=path, line=1, column=1, code=code, message=message, mend=code.hint)


_LFS: Final = b"version https://git-lfs.github.com/spec/"


def parse_blob(data: bytes, path: str) -> ParsedBlob:
    """What a file says: each of its documents as a resource, or with its problems."""
    if data.startswith(_LFS):
        code = Code.LFS_POINTER
        problem = Problem(path=path, line=1, column=1, code=code, message=code.headline, mend=code.hint)
        return ParsedBlob(resources=(), problems=(problem,), broken=(), nameless=True)
    documents, parse_problems = parse(data, path)
    resources: list[tuple[int, Resource]] = []
    problems = list(parse_problems)
    broken: list[Id] = []
    nameless = bool(parse_problems)
    for document in documents:
        checked = _Checked(data, path, document)
        if checked.resource is not None:
            resources.append((document.index, checked.resource))
            continue
        problems += checked.problems
        if checked.id is not None:
            broken.append(checked.id)
        else:
            nameless = True
    return ParsedBlob(resources=tuple(resources), problems=tuple(problems), broken=tuple(broken), nameless=nameless)


class _Checked:
    """One document against the schema of its kind."""

    def __init__(self, data: bytes, path: str, document: Document) -> None:
        self._data, self._path, self._document = data, path, document
        self.problems: list[Problem] = []
        self.resource: Resource | None = None
        self.id: Id | None = None
        value = document.value
        kind = self._kind(value.get("kind"))
        self._check_api_version(value.get("apiVersion"))
        if kind is None:
            return
        metadata = value.get("metadata")
        with suppress(Malformed):
            self.id = Id(kind, parse_name(metadata.get("name") if isinstance(metadata, dict) else None))
        if self.problems:
            return
        try:
            self.resource = _adapter(kind).validate_python(value)
        except ValidationError as error:
            found = error.errors(include_url=False)
            causes = [item for item in found if not _is_consequence(item, found)]
            self.problems += (self._translated(kind, item) for item in causes)

    def _problem(self, code: Code, message: str, mend: str, at: Path, *, key: bool = False) -> Problem:
        place = locate(self._data, self._document.index, at, key=key)
        return Problem(path=self._path, line=place.line, column=place.column, code=code, message=message, mend=mend)

    def _kind(self, found: Value) -> str | None:
        if isinstance(found, str) and found in KINDS:
            return str(found)
        if found is None:
            message, code = "every document says its kind", Code.MISSING_FIELD
        else:
            message, code = f"there is no kind {shown(found)}", Code.KIND
        mend = _did_you_mean(found, KINDS) or f"use one of {', '.join(KINDS)}, or list the file in .gitbootignore"
        self.problems.append(self._problem(code, message, mend, ("kind",)))
        return None

    def _check_api_version(self, found: Value) -> None:
        if found != API_VERSION and not self.problems:
            code = Code.MISSING_FIELD if found is None else Code.API_VERSION
            message = f"expected apiVersion {API_VERSION}, found {shown(found)}"
            self.problems.append(self._problem(code, message, f"write apiVersion: {API_VERSION}", ("apiVersion",)))

    def _translated(self, kind: str, error: Any) -> Problem:
        """pydantic's finding in the words of the field."""
        at: Path = tuple(step for step in error["loc"] if step not in _TAGS)
        if key := at[-1:] == ("[key]",) and error["type"] != "unexpected_keyword_argument":
            at = at[:-1]
        match error["type"]:
            case "value_error":
                return self._malformed(error["ctx"]["error"], at, key=key)
            case "missing":
                what = f"{_dotted(at[:-1])} needs {at[-1]}"
                return self._problem(Code.MISSING_FIELD, what, f"add {at[-1]}", at[:-1], key=True)
            case "unexpected_keyword_argument":
                fields = _schema_at(kind, at[:-1]).get("properties", {})
                mend = _did_you_mean(at[-1], fields) or f"it has {', '.join(sorted(fields))}"
                message = f"{_dotted(at[:-1])} has no field {shown(at[-1])}"
                return self._problem(Code.UNKNOWN_FIELD, message, mend, at, key=True)
            case "enum" | "literal_error":
                words = _QUOTED.findall(error["ctx"]["expected"])
                fields = {} if key else _schema_at(kind, at).get("properties", {})
                mapping = f", or a mapping with {', '.join(sorted(fields))}" if fields else ""
                message = f"expected one of {', '.join(words)}{mapping}, found {shown(error['input'])}"
                mend = _did_you_mean(error["input"], words) or f"write one of {', '.join(words)}{mapping}"
                return self._problem(Code.CHOICE, message, mend, at, key=key)
            case "too_short":
                return self._problem(Code.EMPTY, f"{_dotted(at)} needs at least one item", "add one", at)
        expected = _SHAPES[error["type"]]
        message = f"{_dotted(at)}: expected {expected}, found {shown(error['input'])}"
        return self._problem(Code.SHAPE, message, Code.SHAPE.hint, at)

    def _malformed(self, error: Malformed, at: Path, *, key: bool = False) -> Problem:
        message, mend = f"{_dotted(at)}: {error.message}", error.mend or error.code.hint
        return self._problem(error.code, message, mend, at + error.at, key=key)


_TAGS: Final = frozenset({"(profile)", "(selector)", "(word)"})  # the branch of a union, in pydantic's paths
_QUOTED: Final = re.compile(r"'([^']*)'")  # pydantic: 'A' or 'B', or <Choice.A: 'A'>


def _is_consequence(error: Any, errors: list[Any]) -> bool:
    """A list is also too short where its items are malformed."""
    loc = error["loc"]
    return error["type"] == "too_short" and any(
        other is not error and other["loc"][: len(loc)] == loc for other in errors
    )


_SHAPES: Final = {
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a single value",
}


def _dotted(path: Path) -> str:
    """A path as people write it: spec.interfaces[0].mac."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return one_line("".join(steps)).removeprefix(".") or "the document"


def _did_you_mean(found: object, words: Iterable[str]) -> str:
    """ "did you mean …?", or nothing where no word is near."""
    candidates = {word.lower(): word for word in sorted(words)}
    close = get_close_matches(str(found).lower(), candidates, n=1, cutoff=0.6)
    return f"did you mean {candidates[close[0]]}?" if close else ""


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])


@cache
def _schema(kind: str) -> dict[str, Any]:
    return _adapter(kind).json_schema()


def _schema_at(kind: str, path: Path) -> dict[str, Any]:
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


def _duplicate_name(snapshot: Snapshot, key: Id, origin: Origin, first: Origin) -> Problem:
    path: Path = ("metadata", "name")
    place = locate(snapshot.read(origin.blob), origin.document, path)
    before = locate(snapshot.read(first.blob), first.document, path)
    return Problem(
        path=origin.path,
        line=place.line,
        column=place.column,
        code=Code.DUPLICATE_NAME,
        message=f"{key} stands at {first.path}:{before.line} already",
        mend="rename or remove one of the two",
    )


class _Draft:
    """All resources that could be read, before it is known whether they hold together."""

    def __init__(
        self,
        snapshot: Snapshot,
        resources: dict[Id, Resource],
        origins: dict[Id, Origin],
        broken: set[Id],
        nameless: bool,
        irregular: tuple[str, ...],  # paths at which, or below which, there may be anything
    ) -> None:
        self._snapshot, self._resources, self._origins = snapshot, resources, origins
        self._known = broken | resources.keys()  # a reference to a broken resource is no second problem
        self._nameless = nameless
        self._irregular = irregular
        self._files: dict[str, bytes] = {}

    def _of(self, kind: type[Resource]) -> Iterator[tuple[Id, Any]]:
        return ((key, found) for key, found in sorted(self._resources.items()) if key.kind == kind.__name__)

    def _place(self, resource: Id, path: Path) -> tuple[str, Place]:
        origin = self._origins[resource]
        return origin.path, locate(self._snapshot.read(origin.blob), origin.document, path)

    def _problem(self, code: Code, message: str, mend: str, resource: Id, path: Path) -> Problem:
        file, place = self._place(resource, path)
        return Problem(path=file, line=place.line, column=place.column, code=code, message=message, mend=mend)

    def missing_fleet(self) -> Iterator[Problem]:
        fleets = [key for key, _ in self._of(Fleet)]
        if not fleets and not self._nameless and not any(key.kind == "Fleet" for key in self._known):
            message = "the repository has no document of kind Fleet"
            yield Problem(
                path="fleet.yaml",
                line=1,
                column=1,
                code=Code.NO_FLEET,
                message=message,
                mend=Code.NO_FLEET.hint,
            )
        for other in fleets[1:]:
            file, place = self._place(fleets[0], ("metadata", "name"))
            yield self._problem(
                Code.DUPLICATE_NAME,
                f"there is one Fleet a repository, and {fleets[0]} stands at {file}:{place.line}",
                "keep one of the two",
                other,
                ("metadata", "name"),
            )

    def duplicate_identities(self) -> Iterator[Problem]:
        first: dict[tuple[str, str], tuple[Id, _Identity]] = {}
        for key, server in self._of(Server):
            for identity in _identities(server):
                holder, held = first.setdefault((identity.what, identity.same), (key, identity))
                if held is not identity:
                    file, place = self._place(holder, held.path)
                    spelt = f", as {held.value}" if held.value != identity.value else ""
                    yield self._problem(
                        Code.DUPLICATE_IDENTITY,
                        f"{identity.what} {identity.value} is {holder}'s at {file}:{place.line} already{spelt}",
                        "correct the one that is wrong, or remove the document of a machine that is gone",
                        key,
                        identity.path,
                    )

    def ambiguous_bmcs(self) -> Iterator[Problem]:
        """Servers that mean the only system of a BMC of which another server names one."""
        servers = [(key, server.spec.bmc) for key, server in self._of(Server) if server.spec.bmc is not None]
        named = {_endpoint(bmc): key for key, bmc in reversed(servers) if bmc.system is not None}
        for key, bmc in servers:
            if bmc.system is None and (other := named.get(_endpoint(bmc))):
                message = f"the BMC {bmc.address} is {other}'s too, which names its system there"
                mend = "name the system of this server as well, or correct the address"
                yield self._problem(Code.DUPLICATE_IDENTITY, message, mend, key, ("spec", "bmc", "address"))

    def dangling_references(self) -> Iterator[Problem]:
        for key, resource in sorted(self._resources.items()):
            for kind, name, path in references(resource):
                if kind == "file":
                    yield from self._file(key, name, path)
                elif Id(kind, name) not in self._known and not self._nameless:
                    names = (other.name for other in self._known if other.kind == kind)
                    mend = _did_you_mean(name, names) or f"add a {kind} of this name, or correct the name"
                    yield self._problem(Code.UNKNOWN_REFERENCE, f'there is no {kind} named "{name}"', mend, key, path)

    def _file(self, key: Id, name: str, path: Path) -> Iterator[Problem]:
        blob = self._snapshot.blobs.get(name)
        if blob is None and any(f"{name}/".startswith(f"{irregular}/") for irregular in self._irregular):
            return
        if blob is None:
            mend = _did_you_mean(name, self._snapshot.blobs) or "add the file; paths start at the fleet's root"
            yield self._problem(Code.UNKNOWN_REFERENCE, f"there is no file {shown(name)}", mend, key, path)
        elif (data := self._snapshot.read(blob)).startswith(_LFS):
            message = f"{shown(name)} is a Git LFS pointer"
            yield self._problem(Code.LFS_POINTER, message, Code.LFS_POINTER.hint, key, path)
        else:
            self._files[name] = data

    def finished(self) -> FleetRepository:
        def named(kind: type[Resource]) -> dict[str, Any]:
            return {key.name: resource for key, resource in self._of(kind)}

        return FleetRepository(
            revision=self._snapshot.revision,
            fleet=next(resource for _, resource in self._of(Fleet)),
            servers=named(Server),
            images=named(BootImage),
            streams=named(ImageStream),
            profiles=named(BootProfile),
            policies=named(BootPolicy),
            maintenances=named(Maintenance),
            files=dict(sorted(self._files.items())),
            origins=self._origins,
            read=self._snapshot.read,
        )


class _Identity(NamedTuple):
    """Something that no two servers share."""

    what: str
    value: str
    same: str  # equal where it is the same thing in another spelling
    path: Path


def _identities(server: Server) -> Iterator[_Identity]:
    spec = server.spec
    # Loaders ask by UUID in either byte order, so a UUID and its swapped form are one identity.
    yield _Identity("UUID", spec.uuid, min(spec.uuid, swapped(spec.uuid)), ("spec", "uuid"))
    if spec.serial is not None:
        yield _Identity("serial", spec.serial, spec.serial, ("spec", "serial"))
    for number, interface in enumerate(spec.interfaces):
        at: Path = ("spec", "interfaces", number)
        yield _Identity("MAC address", interface.mac.replace("-", ":"), interface.mac, (*at, "mac"))
        for index, address in enumerate(interface.addresses):
            ip = address.partition("/")[0]
            yield _Identity("address", ip, ip, (*at, "addresses", index))
    if spec.bmc is not None:
        address, system = spec.bmc.address, f" {spec.bmc.system}" if spec.bmc.system else ""
        yield _Identity("BMC", address + system, _endpoint(spec.bmc) + system, ("spec", "bmc", "address"))


def _endpoint(bmc: Bmc) -> str:
    """A BMC's address in lower case, with its port."""
    parts = urlsplit(bmc.address.lower())
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}{parts.path}"


_PORTS: Final = {"http": 80, "https": 443}


def references(resource: Resource) -> Iterator[tuple[str, str, Path]]:
    """Every name of another resource or file in ``resource``: (kind or "file", name, where)."""
    match resource:
        case Fleet(spec=fleet):
            if isinstance(fleet.unknown_servers, UnknownProfile):
                profile = fleet.unknown_servers.profile
                yield "BootProfile", profile, ("spec", "unknownServers", "profile")
            for number, site in enumerate(fleet.sites):
                yield from _selected(site.select, ("spec", "sites", number, "select"))
        case Server(spec=server):
            if server.policy is not None:
                yield "BootPolicy", server.policy, ("spec", "policy")
            if server.pin is not None:
                yield "BootImage", server.pin.image, ("spec", "pin", "image")
            if server.bmc is not None and server.bmc.tls.ca is not None:
                yield "file", server.bmc.tls.ca, ("spec", "bmc", "tls", "ca")
        case ImageStream(spec=stream):
            yield "BootImage", stream.current, ("spec", "current")
            if stream.rollout is not None:
                yield "BootImage", stream.rollout.image, ("spec", "rollout", "image")
                yield from _selected(stream.rollout.selector, ("spec", "rollout", "selector"))
            for number, hold in enumerate(stream.holds):
                yield "BootImage", hold.image, ("spec", "holds", number, "image")
                yield from _selected(hold.select, ("spec", "holds", number, "select"))
        case BootProfile(spec=boot):
            if boot.image is not None:
                yield "BootImage", boot.image, ("spec", "image")
            if boot.stream is not None:
                yield "ImageStream", boot.stream, ("spec", "stream")
            if boot.user_data is not None:
                yield "file", boot.user_data.template, ("spec", "userData", "template")
            for loader in ("ipxe", "grub"):
                if (template := getattr(boot.templates, loader)) is not None:
                    yield "file", template, ("spec", "templates", loader)
        case BootPolicy(spec=policy):
            if policy.inherits is not None:
                yield "BootPolicy", policy.inherits, ("spec", "inherits")
            if policy.profile is not None:
                yield "BootProfile", policy.profile, ("spec", "profile")
            yield from _selected(policy.select, ("spec", "select"))
        case Maintenance(spec=maintenance):
            yield "BootProfile", maintenance.profile, ("spec", "profile")
            yield from _selected(maintenance.select, ("spec", "select"))


def _selected(select: str | Selector, at: Path) -> Iterator[tuple[str, Name, Path]]:
    if isinstance(select, Selector):
        for number, name in enumerate(select.servers):
            yield "Server", name, (*at, "servers", number)
