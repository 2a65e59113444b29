"""Cause and effect: servers that change alike, by the same documents, as one group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gitboot.diff.changes import Changes, ServerChange
from gitboot.diff.documents import DocumentChange, Fate
from gitboot.diff.effects import Effect
from gitboot.diff.fields import FieldChange, changed_fields
from gitboot.diff.reinstalls import Reinstall
from gitboot.diff.risks import Risk
from gitboot.diff.unknown import BecomesUnknown
from gitboot.load import FleetRepository, Id
from gitboot.plan import Decision
from gitboot.resolve import Decisions
from gitboot.review.causes import Causes, is_own
from gitboot.review.hidden import decision_to_show
from gitboot.review.rendered import RenderedDiff, rendered_diffs

_OWN: Final = ("server", "uuid", "replaces", "macs", "serial")  # which server it is
RENDERED: Final = 100  # groups whose diff is rendered; no one reads more


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeCause:
    """A document or file that a group of servers changes by."""

    id: Id
    fate: Fate
    number: int  # how many documents; more than one: each server's own
    fields: tuple[FieldChange, ...]
    place: tuple[str, int, int] | None  # in the new commit: path, line, column

    @property
    def at(self) -> str:
        """What leads to its place; of several documents to that of the first."""
        return ", the first at" if self.number > 1 else " at"

    def __str__(self) -> str:
        if self.number > 1:
            return f"{self.number:,} Server documents"
        return self.id.name if self.id.kind == "file" else str(self.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Servers that change alike, by the same causes."""

    causes: tuple[ChangeCause, ...]
    servers: tuple[ServerChange, ...]  # by name
    risks: tuple[Risk, ...]  # the worst first
    effects: tuple[Effect, ...]
    reinstalls: tuple[Reinstall, ...]  # of all of them
    unknown: tuple[BecomesUnknown, ...]  # likewise
    fields: tuple[FieldChange, ...]  # of the decision of the first server: some are each server's own
    rendered: tuple[RenderedDiff, ...] | None  # of the first server; None: not rendered, too many groups

    def of_one(self, field: FieldChange) -> str | None:
        """The server whose own value a field is, where the others have others; None: it is that of all."""
        return self.servers[0].name if len(self.servers) > 1 and field.path[0] in _OWN else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(change.name for change in self.servers)


Commit = tuple[Decisions, FleetRepository]


def groups(changes: Changes, old: Commit | None, new: Commit, causes: Causes) -> tuple[Group, ...]:
    """Every server that changes, in one group each: the most dangerous groups first, then the largest."""
    alike: dict[object, list[ServerChange]] = {}
    found_causes: dict[object, tuple[Id, ...]] = {}
    for change in changes.servers:
        ids = causes.of(change)
        key = _alike(change, ids)
        alike.setdefault(key, []).append(change)
        found_causes.setdefault(key, ids)
    order = list(Risk)

    def urgency(key: object) -> tuple[list[int], int, str]:
        members = alike[key]
        return [order.index(risk) for risk in _worst_first(members[0])], -len(members), members[0].name

    return tuple(
        _group(alike[key], found_causes[key], changes, old, new, render=number < RENDERED)
        for number, key in enumerate(sorted(alike, key=urgency))
    )


def change_causes(ids: tuple[Id, ...], changes: Changes, new: FleetRepository) -> tuple[ChangeCause, ...]:
    """Causes of what no server alone boots, with what changed in them and where it stands."""
    return tuple(_cause(key, Fate.EDITED, 1, changes.documents, new) for key in ids)


def _worst_first(change: ServerChange) -> tuple[Risk, ...]:
    return tuple(sorted(change.risks, key=list(Risk).index))


def _group(
    members: list[ServerChange],
    ids: tuple[Id, ...],
    changes: Changes,
    old: Commit | None,
    new: Commit,
    *,
    render: bool,
) -> Group:
    first = members[0]
    rendered = None
    if render:
        rendered = () if first.new is None else rendered_diffs(old[0] if old else None, first.old, new[0], first.new)
    return Group(
        causes=tuple(_cause(key, first.fate, len(members), changes.documents, new[1]) for key in ids),
        servers=tuple(members),
        risks=_worst_first(first),
        effects=first.effects,
        reinstalls=tuple(dict.fromkeys(each for member in members for each in member.reinstalls)),
        unknown=tuple(dict.fromkeys(each for member in members for each in member.unknown)),
        fields=tuple(_fields_to_show(first)),
        rendered=rendered,
    )


def _cause(
    key: Id, of_servers: Fate, members: int, documents: Mapping[Id, DocumentChange], new: FleetRepository
) -> ChangeCause:
    change = documents.get(key)
    if is_own(key):
        fate = of_servers
    else:
        assert change is not None  # noqa: S101 - it is a cause because it changed
        fate = change.fate
    fields = change.fields if change is not None else ()
    return ChangeCause(
        id=key, fate=fate, number=members if is_own(key) else 1, fields=fields, place=_place(key, fields, new)
    )


def _place(key: Id, fields: tuple[FieldChange, ...], new: FleetRepository) -> tuple[str, int, int] | None:
    if key.kind == "file":
        return (key.name, 1, 1) if key.name in new.files else None
    if key not in new.origins:
        return None
    path, place = new.place(key, *(fields[0].path if fields else ("metadata", "name")))
    return path, place.line, place.column


# What makes changes alike


def _alike(change: ServerChange, ids: tuple[Id, ...]) -> tuple[object, ...]:
    """Equal for servers that change by the same causes in the same way, but for their own names and addresses."""
    causes = tuple(Id("Server", "") if is_own(key) else key for key in ids)
    return causes, change.risks, change.effects, tuple(map(_told, _fields(change.old, change.new)))


def _told(field: FieldChange) -> str:
    """A difference as text to compare: of two lists only what comes and goes, as most servers' lists differ."""
    old, new = field.old, field.new
    if isinstance(old, list) and isinstance(new, list) and sorted(map(str, old)) != sorted(map(str, new)):
        old, new = [each for each in old if each not in new], [each for each in new if each not in old]
    return f"{field.path}: {json.dumps(old, sort_keys=True)} {json.dumps(new, sort_keys=True)}"


_DIGESTED: Final = frozenset({"files", "userData", "entries", "templates"})  # that it is another says enough


def _fields(old: Decision | None, new: Decision | None) -> Iterator[FieldChange]:
    """What differs in two decisions: of what is a server's own, and of digests, only that it differs."""
    before, after = (_facts(each) for each in (old, new))
    if before is None or after is None:
        whole = after or before or {}
        yield FieldChange(("policy",), _gist(before), _gist(after))
        yield FieldChange(("maintenances",), None, sorted(whole["maintenances"]))
        return
    seen = set()
    for field in changed_fields(before, after):
        collapsed = _collapsed(field)
        if collapsed.path not in seen:
            seen.add(collapsed.path)
            yield collapsed


def _collapsed(field: FieldChange) -> FieldChange:
    if field.path[0] in _OWN:
        return FieldChange(field.path[:1], None, None)
    if field.path[0] == "maintenances" and len(field.path) == 2:
        return FieldChange(field.path, _maintenance(field.old), _maintenance(field.new))
    for depth, step in enumerate(field.path):
        if step in _DIGESTED and field.path[-1] != "format":
            return FieldChange(field.path[: depth + 1], _some(field.old), _some(field.new))
    return field


def _maintenance(facts: Mapping[str, Any] | None) -> str | None:
    """What of a maintenance that came or went says how it boots, and when."""
    if facts is None:
        return None
    image = facts["boot"]["image"] if facts["boot"] else "local disk"
    start, end = (facts["window"][key] or "-" for key in ("start", "end"))
    return f"{image}, {facts['networkBoot']}, run {facts['run']}, [{start}, {end})"


def _some(value: Any) -> str | None:
    """A stand-in for a value that nobody would read."""
    return "(some)" if value is not None else None


def _gist(facts: Mapping[str, Any] | None) -> str | None:
    """What of a server that came or went says how it boots."""
    policy = facts["policy"] if facts else None
    if not policy:
        return None
    image = policy["boot"]["image"] if policy["boot"] else "local disk"
    return f"{policy['policy']}, {policy['networkBoot']}, {image}"


def _facts(decision: Decision | None) -> Mapping[str, Any] | None:
    """A decision's facts with maintenances by name, and the server's own names and addresses as such."""
    if decision is None:
        return None
    facts = decision.facts()
    facts["maintenances"] = {each["name"]: each for each in facts["maintenances"]}
    own = {name: facts.pop(name, None) for name in _OWN}
    return {**_general(facts, _replacements(decision)), **own}


def _replacements(decision: Decision) -> tuple[tuple[str, str], ...]:
    digests = [
        (boot.user_data.digest, "DIGEST")
        for boot in (decision.policy.boot if decision.policy else None, *(m.boot for m in decision.maintenances))
        if boot is not None and boot.user_data is not None
    ]
    macs = [(spelt, "MAC") for mac in decision.macs for spelt in (mac, mac.replace("-", ":"))]
    return (*digests, (decision.uuid, "UUID"), *macs, (decision.server, "SERVER"))


def _general(value: Any, replacements: tuple[tuple[str, str], ...]) -> Any:
    if isinstance(value, str):
        for own, general in replacements:
            value = value.replace(own, general)
        return value
    if isinstance(value, Mapping):
        return {key: _general(each, replacements) for key, each in value.items()}
    return [_general(each, replacements) for each in value] if isinstance(value, list) else value


def _fields_to_show(change: ServerChange) -> Iterator[FieldChange]:
    """What differs in one server's decision, each field once, without what looks like a secret."""
    if change.old is None or change.new is None:
        yield next(_fields(change.old, change.new))  # the policy
        return
    found = list(_fields(decision_to_show(change.old), decision_to_show(change.new)))
    images = {field.path[:-1] for field in found if field.path[-1] == "image"}
    for field in found:
        if field.path[-1] in ("files", "version") and field.path[:-1] in images:
            continue  # an image has its own
        if field.path == ("policy", "provision"):
            continue  # it is the server's
        if (name := field.path[0]) in _OWN:
            old, new = (decision.facts().get(name) for decision in (change.old, change.new))
            yield FieldChange((name,), old, new)
        else:
            yield field
