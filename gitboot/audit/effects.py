"""What a commit changes for each server: its decision before and after, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.server_decision import Decision


class EffectKind(StrEnum):
    ADDED = "Added"
    CHANGED = "Changed"
    REMOVED = "Removed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One field of a decision, as JSON has it: policy.boot.image, maintenances.repair.window.end."""

    field: str
    old: Any  # None: it was not there
    new: Any  # None: it is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerEffect:
    """What a commit changes for one server."""

    server: str  # its name from then on; the last one where it is removed
    kind: EffectKind
    changes: tuple[Change, ...]


def effects(old: Mapping[str, Decision], new: Mapping[str, Decision]) -> dict[SystemUuid, ServerEffect]:
    """What differs between two commits' decisions, by the servers' UUIDs: a renamed server is the same one."""
    before = {decision.uuid: decision for decision in old.values()}
    after = {decision.uuid: decision for decision in new.values()}
    return {
        uuid: effect
        for uuid in sorted(before.keys() | after.keys())
        if (effect := _effect(before.get(uuid), after.get(uuid))) is not None
    }


def _effect(old: Decision | None, new: Decision | None) -> ServerEffect | None:
    if old is not None and new is not None and old.digest == new.digest:
        return None
    last = new or old
    assert last is not None  # noqa: S101 - the UUID is of one of the two
    kind = EffectKind.ADDED if old is None else EffectKind.REMOVED if new is None else EffectKind.CHANGED
    found = _changes("", old.facts() if old else {}, new.facts() if new else {})
    return ServerEffect(server=last.server, kind=kind, changes=tuple(found))


def _changes(path: str, old: Any, new: Any) -> Iterator[Change]:
    """The fields that differ, in the order of their names; what is there on one side only comes whole."""
    if _are_named(old) or _are_named(new):  # so that one that is added moves none of the others
        old, new = ({each["name"]: each for each in side or ()} for side in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(f"{path}.{key}" if path else key, old.get(key), new.get(key))
    elif old != new:
        yield Change(field=path, old=old, new=new)


def _are_named(value: Any) -> bool:
    """Whether it is a list of things that have names, such as maintenances."""
    return isinstance(value, list) and value != [] and all(isinstance(each, dict) and "name" in each for each in value)
