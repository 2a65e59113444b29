"""Validation of a revision: check references and duplicates across all documents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby, islice
from operator import is_
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.errors import InvalidRepository
from gitboot.fleet.documents import (
    ANYTHING,
    FILE_START,
    KINDS,
    FleetRepository,
    Id,
    NotEncrypted,
    Origin,
    ParseCache,
    ParsedBlob,
    Resource,
    UnreadDocuments,
    build_problem,
    describe_size,
    is_lfs_pointer,
    parse_encrypted,
    read_blob,
)
from gitboot.fleet.identities import Identity, list_identities, normalize_bmc_address
from gitboot.fleet.ignore import IGNORE_FILE, Listing, list_fleet_files
from gitboot.fleet.revision import BlobId, Oversized, Snapshot
from gitboot.fleet.yaml import MAX_KEPT, Place, locate, select_first
from gitboot.jsonio import API_VERSION, to_camel
from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fields import read
from gitboot.model.fleet import Fleet
from gitboot.model.image_source import BUILT_IN_SOURCES, ImageSource
from gitboot.model.scalars import AGE_SUFFIX, Malformed, Path, quote_value
from gitboot.model.server import Server
from gitboot.problems import Code, Problem
from gitboot.text import find_similar

_BATCH: Final = 128  # files
# the maximum number of comparisons, each of which takes microseconds, to limit the time for many wrong names
_MAX_COMPARISONS: Final = 50_000
# the attributes of `FleetRepository`, by kind
_ATTRIBUTES: Final = {
    "Server": "servers",
    "BootImage": "images",
    "ImageStream": "streams",
    "BootProfile": "profiles",
    "BootPolicy": "policies",
    "Maintenance": "maintenances",
    "ImageSource": "image_sources",
}


class LoadedFile(Struct, frozen=True, kw_only=True):
    """The documents of one file, and the values that gitboot compares with the values of other files."""

    blob: BlobId
    parsed: ParsedBlob
    resources: tuple[tuple[Id, Resource], ...]
    origins: tuple[tuple[Id, Origin], ...]
    references: tuple[Id, ...]  # the resources and files that the documents refer to; a file has the kind "file"
    identities: tuple[str, ...]  # the kind and the normalized value of each identity of the file's servers
    # the BMC address of each server in the file, and whether the document names a system
    bmcs: tuple[tuple[str, bool], ...]
    has_problems: bool
    has_only_servers: bool  # whether the file contains only valid Server documents; gitboot caches only such files


@dataclass(frozen=True, kw_only=True, eq=False)
class FileBatch:
    """A group of consecutive files in a revision, and the combined values of these files.

    Two batches are equal only if they are the same object.
    """

    files: tuple[LoadedFile, ...]
    resources: Mapping[str, Mapping[str, Resource]]  # by kind and name
    origins: Mapping[Id, Origin]
    references: frozenset[Id]
    identities: frozenset[str]
    bmcs: frozenset[tuple[str, bool]]
    has_problems: bool  # whether a file has problems, or two documents share a name or an identity

    @cached_property
    def label_counts(self) -> Mapping[str, Counter[str]]:
        """The number of servers for each value of each label."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for server in self.resources.get("Server", {}).values():
            for label, value in server.metadata.labels.items():
                counts[label][value] += 1
        return counts


class LoadedRevision(Struct, frozen=True, kw_only=True):
    """A valid revision."""

    snapshot: Snapshot
    listing: Listing
    files: Mapping[str, LoadedFile]  # the files that contain documents, sorted by path
    batches: tuple[FileBatch, ...]  # the same files in batches
    repository: FleetRepository


class InvalidRevision(Struct, frozen=True, kw_only=True):
    """An invalid revision, with the parts that gitboot can read."""

    problems: tuple[Problem, ...]
    well_formed: FleetRepository  # all well-formed documents, even if they refer to missing resources
    complete: FleetRepository  # the well-formed documents that refer only to existing resources
    incomplete_kinds: frozenset[str]  # kinds with documents that are malformed or refer to a missing resource


def list_files(snapshot: Snapshot, before: LoadedRevision | None = None) -> Listing:
    """List the files in a revision that may contain documents.

    If the file names are the same as in ``before``, reuse the list from ``before``.
    """
    if before is not None:
        known = before.snapshot
        has_same_names = snapshot.blobs is known.blobs or (
            snapshot.blobs.keys() == known.blobs.keys()
            and snapshot.blobs.get(IGNORE_FILE) == known.blobs.get(IGNORE_FILE)
        )
        if has_same_names and snapshot.irregular == known.irregular:
            return before.listing
    return list_fleet_files(snapshot)


def load_revision(
    snapshot: Snapshot,
    cache: ParseCache | None = None,
    before: LoadedRevision | None = None,
    listing: Listing | None = None,  # the result of `list_files`
) -> LoadedRevision | InvalidRevision:
    """Load and validate the revision of ``snapshot``.

    ``cache`` contains the blobs that earlier calls have parsed. gitboot does not read a file again if ``before``
    contains the file's blob.
    """
    listing = listing or list_files(snapshot, before)
    # Each file is read once to parse it, and often again to locate its problems.
    snapshot = structs.replace(snapshot, changed=None, read=lru_cache(maxsize=2)(snapshot.read))
    if cache is None:
        cache = {}
    known_files = before.files if before is not None else {}
    blobs_before = before.snapshot.blobs if before is not None else {}
    new_files = {}
    for path in listing.documents:
        blob = snapshot.blobs[path]
        if blob != blobs_before.get(path) or path not in known_files:
            if (parsed := cache.get(blob)) is None:
                parsed = cache[blob] = read_blob(snapshot, blob, path)
            new_files[path] = _load_file(path, blob, parsed)
    if before is not None and listing is before.listing:
        files = {**known_files, **new_files}
    else:
        files = {path: new_files[path] if path in new_files else known_files[path] for path in listing.documents}
    if templates := _find_yaml_templates(snapshot, files):
        files = {path: file for path, file in files.items() if path not in templates}
    batches = _build_batches(files.values(), before.batches if before is not None else ())
    repository: FleetRepository | InvalidRevision | None = None
    if not listing.problems:
        repository = _reuse_repository(snapshot, batches, before) or _build_valid_repository(snapshot, batches, before)
    repository = repository or _validate_files(snapshot, listing, files)
    if isinstance(repository, InvalidRevision):
        return repository
    return LoadedRevision(snapshot=snapshot, listing=listing, files=files, batches=batches, repository=repository)


def _find_yaml_templates(snapshot: Snapshot, files: Mapping[str, LoadedFile]) -> set[str]:
    """Return the YAML files, such as cloud-config files, that documents use as templates."""
    faulty = [path for path, each in files.items() if each.has_problems and not each.resources]
    if not faulty:
        return set()
    named = {key.name for each in files.values() for key in each.references if key.kind == "file"}
    return {path for path in faulty if path in named and not _has_api_group(snapshot, path)}


def _has_api_group(snapshot: Snapshot, path: str) -> bool:
    try:
        return API_VERSION.partition("/")[0].encode() in snapshot.read(snapshot.blobs[path])
    except Oversized:
        return True


def _load_file(path: str, blob: BlobId, parsed: ParsedBlob) -> LoadedFile:
    resources: list[tuple[Id, Resource]] = []
    origins: list[tuple[Id, Origin]] = []
    references: set[Id] = set()
    for index, resource in parsed.resources:
        key = Id(type(resource).__name__, resource.metadata.name)
        resources.append((key, resource))
        origins.append((key, Origin(path, blob, index)))
        references.update(Id(kind, name) for kind, name, _ in list_references(resource))
    servers = [resource for _, resource in resources if isinstance(resource, Server)]
    bmcs = [server.spec.bmc for server in servers if server.spec.bmc is not None]
    identities = (identity for server in servers for identity in list_identities(server))
    return LoadedFile(
        blob=blob,
        parsed=parsed,
        resources=tuple(resources),
        origins=tuple(origins),
        references=tuple(sorted(references)),
        identities=tuple(f"{identity.kind} {identity.normalized}" for identity in identities),
        bmcs=tuple((normalize_bmc_address(bmc.address, None)[0], bmc.system is not None) for bmc in bmcs),
        has_problems=bool(parsed.problems or parsed.unread) or any(map(_has_empty_reports, servers)),
        has_only_servers=parsed.has_only_servers,
    )


def _build_batches(files: Iterable[LoadedFile], before: Iterable[FileBatch]) -> tuple[FileBatch, ...]:
    """Divide files into batches.

    If a batch has the same files as the batch at the same position in ``before``, reuse that batch.
    """
    remaining_files, old_batches, batches = iter(files), iter(before), []
    while batch_files := tuple(islice(remaining_files, _BATCH)):
        old = next(old_batches, None)
        if old is not None and len(old.files) == len(batch_files) and all(map(is_, old.files, batch_files)):
            batches.append(old)
        else:
            batches.append(_build_batch(batch_files))
    return tuple(batches)


def _build_batch(files: tuple[LoadedFile, ...]) -> FileBatch:
    resources: defaultdict[str, dict[str, Resource]] = defaultdict(dict)
    for key, resource in chain.from_iterable(file.resources for file in files):
        resources[key.kind][key.name] = resource
    identities = frozenset(chain.from_iterable(file.identities for file in files))
    has_unique_names = sum(map(len, resources.values())) == sum(len(file.resources) for file in files)
    has_unique_identities = len(identities) == sum(len(file.identities) for file in files)
    is_unique = has_unique_names and has_unique_identities
    return FileBatch(
        files=files,
        resources=resources,
        origins=dict(chain.from_iterable(file.origins for file in files)),
        references=frozenset(chain.from_iterable(file.references for file in files)),
        identities=identities,
        bmcs=frozenset(chain.from_iterable(file.bmcs for file in files)),
        has_problems=not is_unique or any(file.has_problems for file in files),
    )


def _reuse_repository(
    snapshot: Snapshot, batches: Sequence[FileBatch], before: LoadedRevision | None
) -> FleetRepository | None:
    if before is None or len(batches) != len(before.batches) or not all(map(is_, batches, before.batches)):
        return None
    blobs, known = snapshot.blobs, before.snapshot.blobs
    if blobs is not known and any(blobs.get(path) != known.get(path) for path in before.repository.files):
        return None
    return structs.replace(before.repository, revision=snapshot.revision, read=snapshot.read)


def _build_valid_repository(
    snapshot: Snapshot, batches: Sequence[FileBatch], before: LoadedRevision | None
) -> FleetRepository | None:
    """Return the valid repository.

    If a check across files fails, return None. The caller must then find the problems with `_validate_files`.
    """
    if any(each.has_problems for each in batches):
        return None
    resources: dict[str, dict[str, Resource]] = {kind: {} for kind in KINDS}
    origins: dict[Id, Origin] = {}
    for batch in batches:
        origins.update(batch.origins)
        for kind, of_kind in batch.resources.items():
            resources[kind].update(of_kind)
    references = frozenset[Id]().union(*(batch.references for batch in batches))
    if (
        len(origins) != sum(len(batch.origins) for batch in batches)
        or len(resources["Fleet"]) != 1
        or any(key.kind != "file" and key.name not in resources[key.kind] for key in references)
    ):
        return None
    # These checks passed for `before`, so they pass again if all of their inputs are the same.
    checked = [(batch.identities, batch.bmcs) for batch in before.batches] if before is not None else None
    if [(batch.identities, batch.bmcs) for batch in batches] != checked and not _has_unique_identities(batches):
        return None
    contents = _read_contents(snapshot, sorted(key.name for key in references if key.kind == "file"), before)
    return None if contents is None else _build_repository(snapshot, resources, origins, contents)


def _has_unique_identities(batches: Sequence[FileBatch]) -> bool:
    """Return whether no servers share an identity, and all or no servers of each BMC name a system."""
    identities = frozenset[str]().union(*(batch.identities for batch in batches))
    bmcs = frozenset[tuple[str, bool]]().union(*(batch.bmcs for batch in batches))
    addresses = {address for address, _ in bmcs}
    return len(identities) == sum(len(batch.identities) for batch in batches) and len(addresses) == len(bmcs)


def _build_repository(
    snapshot: Snapshot,
    resources: Mapping[str, Mapping[str, Any]],  # by kind and name
    origins: Mapping[Id, Origin],
    files: Mapping[str, bytes],
) -> FleetRepository:
    """Build a repository from resources. If there is no Fleet document, add one with defaults."""
    fleet = next(iter(dict(sorted(resources["Fleet"].items())).values()), None)
    if fleet is None:
        metadata, spec = {"name": "fleet"}, {"baseURL": "http://fleet.invalid"}
        fleet = read(Fleet, {"apiVersion": API_VERSION, "kind": "Fleet", "metadata": metadata, "spec": spec})
    return FleetRepository(
        revision=snapshot.revision,
        fleet=fleet,
        files=files,
        origins=origins,
        read=snapshot.read,
        **{attribute: _sort_by_name(resources[kind]) for kind, attribute in _ATTRIBUTES.items()},
    )


def _sort_by_name(resources: Mapping[str, Any]) -> Mapping[str, Any]:
    # the names are usually sorted already, because gitboot reads files in the order of their paths
    names = list(resources)
    return resources if sorted(names) == names else dict(sorted(resources.items()))


def _read_contents(snapshot: Snapshot, paths: Iterable[str], before: LoadedRevision | None) -> dict[str, bytes] | None:
    """Return the contents of files, or None if a file is missing or gitboot must not use it."""
    known = before.repository.files if before is not None else {}
    blobs_before = before.snapshot.blobs if before is not None else {}
    contents: dict[str, bytes] = {}
    for path in paths:
        if (blob := snapshot.blobs.get(path)) is None:
            return None
        if path in known and blobs_before.get(path) == blob:
            contents[path] = known[path]
            continue
        try:
            contents[path] = _read_referenced_file(snapshot, path)
        except Malformed:
            return None
    return contents


def _read_referenced_file(snapshot: Snapshot, path: str) -> bytes:
    """Return the content of a file. Raises `Malformed` if gitboot must not use the file."""
    try:
        data = snapshot.read(snapshot.blobs[path])
    except Oversized as error:
        raise Malformed(Code.FILE_TOO_LARGE, describe_size(error)) from None
    if is_lfs_pointer(data):
        raise Malformed(Code.LFS_POINTER, f"{quote_value(path)} is a Git LFS pointer")
    if path.endswith(AGE_SUFFIX):
        try:
            parse_encrypted(data)
        except NotEncrypted as error:
            raise Malformed(
                Code.NOT_SEALED, f"{quote_value(path)} is not a secret that an endpoint can decrypt: {error}"
            ) from None
    return data


def _validate_files(
    snapshot: Snapshot, listing: Listing, files: Mapping[str, LoadedFile]
) -> FleetRepository | InvalidRevision:
    draft = Draft(snapshot, listing.irregular)
    for path, each in files.items():
        draft.add(path, each.parsed)
    if "Fleet" not in draft.unread.kinds and not any(key.kind == "Fleet" for key in draft.list_known_ids()):
        message = "the repository has no document of kind Fleet"
        draft.problems.append(build_problem("fleet.yaml", FILE_START, Code.NO_FLEET, message))
    draft.remarks += _find_second_fleets(draft)
    draft.remarks += _find_duplicate_identities(draft)
    draft.remarks += _find_ambiguous_bmcs(draft)
    draft.remarks += _find_empty_reports(draft)
    draft.remarks += _find_dangling_references(draft)
    remark_problems, more = build_problems(draft.remarks, snapshot.read)
    problems = select_first([*listing.problems, *draft.problems, *remark_problems], draft.more + more)
    if not problems:
        return draft.build_repository()
    complete = draft.find_complete_ids()
    incomplete_kinds = {key.kind for key in draft.list_known_ids() - complete} | draft.unread.kinds
    if not draft.list_kind(Fleet):
        incomplete_kinds.add("Fleet")
    return InvalidRevision(
        problems=problems,
        well_formed=draft.build_repository(),
        complete=draft.build_repository(complete),
        incomplete_kinds=frozenset(incomplete_kinds),
    )


def _find_second_fleets(draft: Draft) -> Iterator[Remark]:
    fleets = [key for key, _ in draft.list_kind(Fleet)]
    for other in fleets[1:]:
        yield Remark(
            spot=draft.spot(other, ("metadata", "name")),
            code=Code.DUPLICATE_NAME,
            message=f"a repository can have only one Fleet, but {fleets[0]} is already at {{}}".format,
            hint="remove one of the two documents",
            other=draft.spot(fleets[0], ("metadata", "name")),
        )


_OWN_DUPLICATE_HINTS: Final = {
    "MAC address": "write the interface's permanent address, which `ethtool -P INTERFACE` prints even for a "
    "bond member; interfaces may share only IP addresses",
    "address": "remove one of the two addresses; only different interfaces may share an address, for example in a bond",
}


def _find_duplicate_identities(draft: Draft) -> Iterator[Remark]:
    first: dict[tuple[str, str], tuple[Id, Identity]] = {}
    for key, server in draft.list_kind(Server):
        for identity in list_identities(server):
            holder, held = first.setdefault((identity.kind, identity.normalized), (key, identity))
            if held is identity:
                continue
            if holder == key:
                holder_name = "this server"
                hint = _OWN_DUPLICATE_HINTS.get(identity.kind, "correct or remove one of the two values")
            else:
                holder_name = str(holder)
                hint = "correct the wrong value, or remove the document of a machine that no longer exists"
            yield Remark(
                spot=draft.spot(key, identity.path),
                code=Code.DUPLICATE_IDENTITY,
                message=partial(_describe_duplicate, identity, holder_name, held),
                hint=hint,
                other=draft.spot(holder, held.path),
            )


def _describe_duplicate(identity: Identity, holder: str, other: Identity, place: str) -> str:
    spelling = f", as {other.value}" if other.value != identity.value else ""
    return f"{identity.kind} {identity.value} is already used by {holder} at {place}{spelling}"


def _find_ambiguous_bmcs(draft: Draft) -> Iterator[Remark]:
    """Yield a remark for each server without a BMC system if another server that has the same BMC names a system."""
    servers = [(key, server.spec.bmc) for key, server in draft.list_kind(Server) if server.spec.bmc is not None]
    named = {normalize_bmc_address(bmc.address, None): key for key, bmc in reversed(servers) if bmc.system is not None}
    for key, bmc in servers:
        if bmc.system is None and (other := named.get(normalize_bmc_address(bmc.address, None))):
            yield Remark(
                spot=draft.spot(key, ("spec", "bmc", "address")),
                code=Code.DUPLICATE_IDENTITY,
                message=f"{other} also uses the BMC {bmc.address}, and sets bmc.system",
                hint="set bmc.system for this server too, or correct the address",
            )


def _find_empty_reports(draft: Draft) -> Iterator[Remark]:
    for key, server in draft.list_kind(Server):
        if _has_empty_reports(server):
            yield Remark(
                spot=draft.spot(key, ("spec", "bmc", "reports")),
                code=Code.COMBINATION,
                message="bmc.reports needs uuid or serial",
                hint="add uuid or serial to bmc.reports, or remove bmc.reports",
            )


def _has_empty_reports(server: Server) -> bool:
    reports = server.spec.bmc.reports if server.spec.bmc is not None else None
    return reports is not None and reports.uuid is None and reports.serial is None


def _find_dangling_references(draft: Draft) -> Iterator[Remark]:
    """Yield a remark for each reference to a missing resource or file. Add the existing files to the draft."""
    known, blobs = draft.list_known_ids(), draft.snapshot.blobs
    names = _NameHints(known, blobs)
    for key, resource in sorted(draft.resources.items()):
        for kind, name, at in list_references(resource):
            spot = draft.spot(key, at)
            if kind == "file" and name in blobs:
                try:
                    draft.files[name] = _read_referenced_file(draft.snapshot, name)
                except Malformed as error:
                    yield Remark(spot=spot, code=error.code, message=error.message)
            elif kind == "file" and not draft.may_contain(name):
                fallback = "add the file, or write its path relative to the fleet's root"
                yield Remark(
                    spot=spot,
                    code=Code.UNKNOWN_REFERENCE,
                    message=f"there is no file {quote_value(name)}",
                    hint=partial(names.hint, kind, name, fallback),
                )
            elif kind != "file" and Id(kind, name) not in known and not draft.unread.may_include(kind, name):
                yield Remark(
                    spot=spot,
                    code=Code.UNKNOWN_REFERENCE,
                    message=f'there is no {kind} named "{name}"',
                    hint=partial(names.hint, kind, name, f"add the {kind}, or correct the name"),
                )


class _NameHints:
    """A search for names that are similar to a wrong name."""

    def __init__(self, ids: Iterable[Id], files: Collection[str]) -> None:
        self._names: defaultdict[str, Collection[str]] = defaultdict(list, file=files)
        for kind, ids_of_kind in groupby(sorted(ids), key=lambda key: key.kind):
            self._names[kind] = [key.name for key in ids_of_kind]
        self._names["ImageSource"] = [*self._names["ImageSource"], *BUILT_IN_SOURCES]
        self._near: dict[tuple[str, str], str | None] = {}
        self._comparisons_left = _MAX_COMPARISONS

    def hint(self, kind: str, name: str, fallback: str) -> str:
        if (kind, name) not in self._near and self._comparisons_left > 0:
            self._comparisons_left -= len(self._names[kind])
            self._near[kind, name] = find_similar(name, self._names[kind])
        similar = self._near.get((kind, name))
        return f"did you mean {similar}?" if similar else fallback


Spot = tuple[Origin, Path]


class Draft:
    """The resources of all files, and the documents that gitboot cannot read."""

    def __init__(self, snapshot: Snapshot, irregular: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        self._irregular = frozenset(irregular)
        self._lengths = {len(path) for path in irregular}
        # if there is an unreadable file, it may contain any resource
        self.unread = UnreadDocuments([ANYTHING] if irregular else [])
        self.resources: dict[Id, Resource] = {}
        self.files: dict[str, bytes] = {}  # the contents of the files to which resources refer
        self.remarks: list[Remark] = []
        self.problems: list[Problem] = []
        self.more: Counter[str] = Counter()  # the number of problems that are not in `problems`, by path
        self._origins: dict[Id, Origin] = {}
        self._broken: set[Id] = set()
        self._twice: set[Id] = set()

    def add(self, path: str, parsed: ParsedBlob) -> None:
        self.problems += (structs.replace(problem, path=path) for problem in parsed.problems)
        self.more[path] = parsed.more
        self._broken.update(parsed.broken)
        for document in parsed.unread:
            self.unread.add(document)
        for index, resource in parsed.resources:
            key = Id(type(resource).__name__, resource.metadata.name)
            origin = Origin(path, self.snapshot.blobs[path], index)
            if key not in self.resources:
                self.resources[key], self._origins[key] = resource, origin
                continue
            self._twice.add(key)
            self.remarks.append(
                Remark(
                    spot=(origin, ("metadata", "name")),
                    code=Code.DUPLICATE_NAME,
                    message=f"{key} is already at {{}}".format,
                    hint="rename or remove one of the two documents",
                    other=self.spot(key, ("metadata", "name")),
                )
            )

    def list_kind(self, kind: type[Resource]) -> list[tuple[Id, Any]]:
        """Return the resources of a kind, sorted by name."""
        return sorted((key, resource) for key, resource in self.resources.items() if key.kind == kind.__name__)

    def list_known_ids(self) -> set[Id]:
        """Return all resources, even malformed ones, because references to malformed resources are not problems."""
        return self._broken | self.resources.keys()

    def may_contain(self, path: str) -> bool:
        """Return whether a file may exist at ``path`` because gitboot cannot read this path or a folder above it."""
        prefixes = (path[:length] for length in self._lengths if path[length : length + 1] in ("", "/"))
        return any(prefix in self._irregular for prefix in prefixes)

    def spot(self, resource: Id, at: Path) -> Spot:
        return self._origins[resource], at

    def find_complete_ids(self) -> frozenset[Id]:
        """Return the resources that occur only once and whose direct and indirect references all exist."""
        complete = self.resources.keys() - self._twice
        while incomplete := {key for key in complete if not self._is_complete(key, complete)}:
            complete -= incomplete
        return frozenset(complete)

    def _is_complete(self, key: Id, candidates: set[Id]) -> bool:
        if key.kind == "Fleet":
            return True  # a repository needs the Fleet document even if the profile of the Fleet is missing
        named = ((kind, name) for kind, name, _ in list_references(self.resources[key]) if kind != "Server")
        return all(name in self.files if kind == "file" else Id(kind, name) in candidates for kind, name in named)

    def build_repository(self, ids: frozenset[Id] | None = None) -> FleetRepository:
        """Build a repository from the first Fleet and the resources with these ``ids``.

        If ``ids`` is None, use all resources.
        """
        fleets = {key for key, _ in self.list_kind(Fleet)[:1]}
        resources: dict[str, dict[str, Resource]] = {kind: {} for kind in KINDS}
        for key, resource in self.resources.items():
            if ids is None or key in ids or key in fleets:
                resources[key.kind][key.name] = resource
        return _build_repository(self.snapshot, resources, self._origins, dict(sorted(self.files.items())))


class Remark(Struct, frozen=True, kw_only=True):
    """A problem with a resource. gitboot has not determined the line of the problem yet."""

    spot: Spot
    code: Code
    # a text, or a function that builds the text from the location of ``other``, such as fleet.yaml:12
    message: str | Callable[[str], str]
    # a text, or a function if the hint takes long to compute; "": the default hint of the code
    hint: str | Callable[[], str] = ""
    other: Spot | None = None  # a second location, which the message names

    @property
    def path(self) -> str:
        return self.spot[0].path


def build_problems(remarks: Iterable[Remark], read: Callable[[BlobId], bytes]) -> tuple[list[Problem], Counter[str]]:
    """Convert the first remarks on each file to problems.

    Also return how many further remarks each file has, by path.
    """
    remarks = list(remarks)
    places = _locate_spots((remark.spot for remark in remarks), read)
    remarks.sort(key=lambda remark: (remark.path, places[remark.spot]))
    shown: list[Remark] = []
    more: Counter[str] = Counter()
    for path, group in groupby(remarks, key=lambda remark: remark.path):
        of_file = list(group)
        shown += of_file[:MAX_KEPT]
        more[path] = len(of_file[MAX_KEPT:])
    others = _locate_spots((remark.other for remark in shown if remark.other), read)
    problems = []
    for remark in shown:
        message, hint = remark.message, remark.hint
        if not isinstance(message, str):
            message = message(f"{remark.other[0].path}:{others[remark.other].line}" if remark.other else "")
        hint = hint if isinstance(hint, str) else hint()
        problems.append(build_problem(remark.path, places[remark.spot], remark.code, message, hint))
    return problems, more


def _locate_spots(spots: Iterable[Spot], read: Callable[[BlobId], bytes]) -> dict[Spot, Place]:
    in_order = sorted(set(spots), key=lambda spot: spot[0])
    return {(origin, at): locate(read(origin.blob), origin.document, at) for origin, at in in_order}


# The fields that refer to other resources, each with the kind of the other resource. * matches each item of a list or
# mapping.
_REFERENCES: Final[Mapping[type[Resource], tuple[tuple[str, str], ...]]] = {
    Fleet: (
        ("BootProfile", "unknown_servers.profile"),
        ("Server", "sites.*.select.servers.*"),
        ("Server", "hardware.*.select.servers.*"),
    ),
    Server: (
        ("BootPolicy", "policy"),
        ("BootImage", "pin.image"),
        ("file", "bmc.tls.ca"),
        ("file", "secrets.*"),
    ),
    BootImage: (),
    ImageStream: (
        ("BootImage", "current"),
        ("BootImage", "rollout.image"),
        ("Server", "rollout.selector.servers.*"),
        ("BootImage", "holds.*.image"),
        ("Server", "holds.*.select.servers.*"),
        ("ImageSource", "follow.source"),
    ),
    ImageSource: (),
    BootProfile: (
        ("BootImage", "image"),
        ("ImageStream", "stream"),
        ("file", "user_data.template"),
        ("file", "user_data.vendor_data"),
        ("file", "user_data.network_config"),
        ("file", "user_data.secrets.*"),
        ("file", "templates.ipxe"),
        ("file", "templates.grub"),
    ),
    BootPolicy: (
        ("BootPolicy", "inherits"),
        ("BootProfile", "profile"),
        ("Server", "select.servers.*"),
    ),
    Maintenance: (
        ("BootProfile", "profile"),
        ("file", "before.approval.file"),
        ("Server", "select.servers.*"),
    ),
}
_STEPS: Final = {
    kind: tuple((named, tuple((step, to_camel(step)) for step in field.split("."))) for named, field in fields)
    for kind, fields in _REFERENCES.items()
}


def list_references(resource: Resource) -> Iterator[tuple[str, str, Path]]:
    """Yield (kind, name, path of the field) for each reference. The kind is "file" if the field refers to a file."""
    for kind, steps in _STEPS[type(resource)]:
        for name, at in _find_values(resource.spec, steps, ("spec",)):
            if kind != "ImageSource" or name not in BUILT_IN_SOURCES:
                yield kind, name, at


def _find_values(value: Any, steps: tuple[tuple[str, str], ...], at: Path) -> Iterator[tuple[Any, Path]]:
    """Yield each value that is reached from ``value`` by following ``steps``, with the value's path in the document."""
    if not steps:
        yield value, at
        return
    name, alias = steps[0]
    if name == "*":
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_values(item, steps[1:], (*at, step))
    elif (field_value := getattr(value, name, None)) is not None:
        yield from _find_values(field_value, steps[1:], (*at, alias))


def load(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository:
    """Return the fleet in ``snapshot``.

    Raises `InvalidRepository`, which contains the problems, if the fleet is invalid.

    ``cache`` contains the blobs that earlier calls have parsed. gitboot does not parse these blobs again.
    """
    loaded = load_revision(snapshot, cache)
    if isinstance(loaded, InvalidRevision):
        raise InvalidRepository(loaded.problems)
    return loaded.repository
