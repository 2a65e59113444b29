"""The next revision of a fleet: of it only what differs from the one before is read and checked.

What does not hold together, or changes what is read at all, is left to `load`, which tells all that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gitboot.load.blobs import ParseCache, ParsedBlob, is_lfs_pointer, read_blob
from gitboot.load.checks import reports_of_nothing, why_not_sealed
from gitboot.load.listing import listed
from gitboot.load.merged import merged, replaced
from gitboot.load.references import references
from gitboot.load.register import Register
from gitboot.load.repository import FleetRepository
from gitboot.load.resources import Id, Origin, Resource
from gitboot.load.snapshot import BlobId, Oversized, Snapshot
from gitboot.model.fleet import Fleet
from gitboot.model.server import Server

_IGNORE: Final = ".gitbootignore"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A revision that holds together, and what each of its files says."""

    snapshot: Snapshot
    documents: Mapping[str, ParsedBlob]  # by path
    repository: FleetRepository


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What one revision has that the one before has not, and the other way round."""

    gone: tuple[tuple[Id, Resource], ...] = ()
    come: tuple[tuple[Id, Resource], ...] = ()
    files: frozenset[str] = frozenset()  # those that resources name, which are others, or are there no more

    @property
    def resources(self) -> frozenset[Id]:
        return frozenset(key for key, _ in (*self.gone, *self.come))

    @property
    def servers(self) -> frozenset[str]:
        """The servers whose documents came, went or are others."""
        return frozenset(key.name for key in self.resources if key.kind == "Server")

    @property
    def only_servers(self) -> bool:
        """Whether nothing differs that several servers could have in common."""
        return not self.files and all(key.kind == "Server" for key in self.resources)


def everything(repository: FleetRepository) -> tuple[tuple[Id, Resource], ...]:
    """Every resource of a fleet."""
    kinds: tuple[tuple[str, Mapping[str, Any]], ...] = tuple(
        (kind, getattr(repository, attribute)) for kind, attribute in _ATTRIBUTES.items()
    )
    fleet = (Id("Fleet", repository.fleet.metadata.name), repository.fleet)
    return (fleet, *((Id(kind, name), found) for kind, named in kinds for name, found in named.items()))


_ATTRIBUTES: Final = {
    "Server": "servers",
    "BootImage": "images",
    "ImageStream": "streams",
    "BootProfile": "profiles",
    "BootPolicy": "policies",
    "Maintenance": "maintenances",
}


def succeed(before: Loaded, register: Register, snapshot: Snapshot, cache: ParseCache) -> tuple[Loaded, Delta] | None:
    """The revision of ``snapshot``, and what of it differs; None where all of it has to be looked at.

    ``register`` is the one of the revision before, and becomes that of the new one if there is any.
    """
    if snapshot.changed is None or _IGNORE in snapshot.changed or snapshot.irregular != before.snapshot.irregular:
        return None
    files = _read_files(before, snapshot, cache)
    if files is None:
        return None
    was, is_now = files.resources_before(before), files.resources
    differing = sorted(key for key in was.keys() | is_now.keys() if was.get(key) != is_now.get(key))
    gone = tuple((key, was[key]) for key in differing if key in was)
    come = tuple((key, is_now[key]) for key in differing if key in is_now)
    register.strike(gone)
    register.enter(come)
    origins = _origins(before, files, was)
    named = _named_files(before, register, snapshot, gone, come)
    if named is None or not _holds_together(register, origins, snapshot, gone, come):
        register.strike(come)
        register.enter(gone)
        return None
    contents, files_gone = named
    delta = Delta(gone=gone, come=come, files=files_gone.union(contents))
    return Loaded(
        snapshot=snapshot,
        documents=files.documents(before),
        repository=_repository(
            before.repository, snapshot, delta, origins, merged(before.repository.files, contents, files_gone)
        ),
    ), delta


class _ChangedFiles:
    """The documents' files that differ: what they say now."""

    def __init__(self, changed: frozenset[str], parsed: Mapping[str, ParsedBlob], origins: Mapping[Id, Origin]) -> None:
        self._changed, self._parsed, self.origins = changed, parsed, origins
        self.resources = {
            Id(type(resource).__name__, resource.metadata.name): resource
            for each in parsed.values()
            for _, resource in each.resources
        }

    def resources_before(self, before: Loaded) -> dict[Id, Resource]:
        return {
            Id(type(resource).__name__, resource.metadata.name): resource
            for path in self._changed
            if (said := before.documents.get(path)) is not None
            for _, resource in said.resources
        }

    def documents(self, before: Loaded) -> Mapping[str, ParsedBlob]:
        if not self._parsed and not self._changed & before.documents.keys():
            return before.documents
        return replaced(before.documents, self._parsed, self._changed - self._parsed.keys())


def _read_files(before: Loaded, snapshot: Snapshot, cache: ParseCache) -> _ChangedFiles | None:
    """What the files that differ say; None where one of them is broken, or two name one resource."""
    changed = snapshot.changed or frozenset()
    looked_at = {path: snapshot.blobs[path] for path in (*changed, _IGNORE) if path in snapshot.blobs}
    listing = listed(replace(snapshot, blobs=looked_at, irregular={}))
    parsed: dict[str, ParsedBlob] = {}
    origins: dict[Id, Origin] = {}
    for path in listing.documents:
        blob: BlobId = looked_at[path]
        if (found := cache.get(blob)) is None:
            found = cache[blob] = read_blob(snapshot, blob, path)
        if found.problems or found.unread:
            return None
        parsed[path] = found
        for index, resource in found.resources:
            key = Id(type(resource).__name__, resource.metadata.name)
            if key in origins:
                return None
            origins[key] = Origin(path, blob, index)
    known = before.repository.origins
    if any(key in known and known[key].path not in changed for key in origins):
        return None
    return _ChangedFiles(changed, parsed, origins)


def _origins(before: Loaded, files: _ChangedFiles, was: Mapping[Id, Resource]) -> Mapping[Id, Origin]:
    if not was and not files.origins:
        return before.repository.origins
    return replaced(before.repository.origins, files.origins, was.keys() - files.origins.keys())


def _holds_together(
    register: Register,
    origins: Mapping[Id, Origin],
    snapshot: Snapshot,
    gone: tuple[tuple[Id, Resource], ...],
    come: tuple[tuple[Id, Resource], ...],
) -> bool:
    """What `checks` asks of a whole fleet, asked of what differs."""
    fleets = sum(key.kind == "Fleet" for key, _ in come) - sum(key.kind == "Fleet" for key, _ in gone)
    if fleets or any(key not in origins and register.naming(key) for key, _ in gone):
        return False
    for _, resource in come:
        if isinstance(resource, Server) and (register.clashes(resource) or any(reports_of_nothing(resource))):
            return False
        for kind, name, _ in references(resource):
            if name not in snapshot.blobs if kind == "file" else Id(kind, name) not in origins:
                return False
    return True


def _named_files(
    before: Loaded,
    register: Register,
    snapshot: Snapshot,
    gone: tuple[tuple[Id, Resource], ...],
    come: tuple[tuple[Id, Resource], ...],
) -> tuple[dict[str, bytes], frozenset[str]] | None:
    """The files that resources name and that are others, by path, and those that nobody names any more.

    None where one is missing or not there itself.
    """
    named = (name for _, resource in (*gone, *come) for kind, name, _ in references(resource) if kind == "file")
    asked = {*(snapshot.changed or ()), *named}
    contents: dict[str, bytes] = {}
    for path in asked:
        if register.naming(Id("file", path)):
            data = _content(snapshot, path)
            if data is None or is_lfs_pointer(data) or why_not_sealed(path, data) is not None:
                return None
            contents[path] = data
    known = before.repository.files
    other = {path: data for path, data in contents.items() if known.get(path) != data}
    return other, frozenset(path for path in asked if path in known and path not in contents)


def _content(snapshot: Snapshot, path: str) -> bytes | None:
    try:
        return snapshot.read(snapshot.blobs[path]) if path in snapshot.blobs else None
    except Oversized:
        return None


def _repository(
    before: FleetRepository,
    snapshot: Snapshot,
    delta: Delta,
    origins: Mapping[Id, Origin],
    contents: Mapping[str, bytes],
) -> FleetRepository:
    changed: dict[str, Any] = {
        attribute: _changed(getattr(before, attribute), kind, delta)
        for kind, attribute in _ATTRIBUTES.items()
        if any(key.kind == kind for key in delta.resources)
    }
    fleet = next((resource for _, resource in delta.come if isinstance(resource, Fleet)), before.fleet)
    return replace(
        before,
        revision=snapshot.revision,
        fleet=fleet,
        files=contents,
        origins=origins,
        read=snapshot.read,
        **changed,
    )


def _changed(before: Mapping[str, Resource], kind: str, delta: Delta) -> Mapping[str, Resource]:
    """The resources of a kind, in the order of their names."""
    come = {key.name: resource for key, resource in delta.come if key.kind == kind}
    gone = {key.name for key, _ in delta.gone if key.kind == kind}
    return replaced(before, come, gone - come.keys())
