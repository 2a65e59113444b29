"""Which documents and files of two commits differ, whether a decision follows from it or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gitboot.diff.fields import FieldChange, changed_fields
from gitboot.fleet.resources import FleetRepository, Id, Resource
from gitboot.model.fields import written


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


def changed_documents(
    old: FleetRepository | None, new: FleetRepository, touched: frozenset[Id] | None = None
) -> dict[Id, DocumentChange]:
    """Every document and file that differs, or of the ``touched`` ones, by kind and name."""
    before, after = _resources(old, touched) if old else {}, _resources(new, touched)
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


def _resources(repository: FleetRepository, touched: frozenset[Id] | None) -> dict[Id, Resource | bytes]:
    fleet = repository.fleet
    named: tuple[tuple[str, Mapping[str, Resource | bytes]], ...] = (
        ("Fleet", {fleet.metadata.name: fleet}),
        ("Server", repository.servers),
        ("BootImage", repository.images),
        ("ImageStream", repository.streams),
        ("BootProfile", repository.profiles),
        ("BootPolicy", repository.policies),
        ("Maintenance", repository.maintenances),
        ("file", repository.files),
    )
    if touched is None:
        return {Id(kind, name): resource for kind, found in named for name, resource in found.items()}
    by_kind = dict(named)
    return {key: by_kind[key.kind][key.name] for key in touched if key.name in by_kind[key.kind]}


def _fields(old: Resource | bytes, new: Resource | bytes) -> tuple[FieldChange, ...]:
    if isinstance(old, bytes) or isinstance(new, bytes):
        return ()
    return tuple(changed_fields(plain(old), plain(new)))


def plain(resource: Resource) -> Any:
    """A resource as it is written in YAML."""
    return written(resource)
