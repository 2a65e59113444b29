"""Which documents and files of two commits differ, whether a decision follows from it or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gitboot.diff.fields import FieldChange, changed_fields
from gitboot.load import KINDS, FleetRepository, Id, Resource


class Fate(StrEnum):
    """What became of something."""

    ADDED = "added"
    REMOVED = "removed"
    EDITED = "edited"


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentChange:
    """A document, or a file that documents name (kind "file"), which is not what it was."""

    id: Id
    fate: Fate
    fields: tuple[FieldChange, ...]  # of one that was edited


def changed_documents(old: FleetRepository | None, new: FleetRepository) -> dict[Id, DocumentChange]:
    """Every document and file that differs, by kind and name."""
    before, after = dict(_resources(old)) if old else {}, dict(_resources(new))
    found = {}
    for key in sorted(before.keys() | after.keys()):
        was, is_now = before.get(key), after.get(key)
        if was is is_now or was == is_now:
            continue
        if was is None or is_now is None:
            fate = Fate.ADDED if was is None else Fate.REMOVED
            found[key] = DocumentChange(id=key, fate=fate, fields=())
        else:
            found[key] = DocumentChange(id=key, fate=Fate.EDITED, fields=_fields(was, is_now))
    return found


def _resources(repository: FleetRepository) -> Iterator[tuple[Id, Resource | bytes]]:
    named: tuple[tuple[str, Mapping[str, Resource]], ...] = (
        ("Server", repository.servers),
        ("BootImage", repository.images),
        ("ImageStream", repository.streams),
        ("BootProfile", repository.profiles),
        ("BootPolicy", repository.policies),
        ("Maintenance", repository.maintenances),
    )
    yield Id("Fleet", repository.fleet.metadata.name), repository.fleet
    for kind, resources in named:
        yield from ((Id(kind, name), resource) for name, resource in resources.items())
    yield from ((Id("file", path), data) for path, data in repository.files.items())


def _fields(old: Resource | bytes, new: Resource | bytes) -> tuple[FieldChange, ...]:
    if isinstance(old, bytes) or isinstance(new, bytes):
        return ()
    return tuple(changed_fields(plain(old), plain(new)))


def plain(resource: Resource) -> Any:
    """A resource as it is written in YAML."""
    return _dumper(type(resource).__name__).dump_python(resource, mode="json", by_alias=True, exclude_none=True)


@cache
def _dumper(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])
