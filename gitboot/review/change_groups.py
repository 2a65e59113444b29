"""Change groups: group the servers that change in the same way, and find the causes of each change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.jsonio import Digest, to_json_value
from gitboot.model.server import Architecture
from gitboot.resolve.policy_selection import Pool, build_pools
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.review.decision_changes import Changes, ServerChange, UnknownReason
from gitboot.review.document_changes import (
    ChangeKind,
    DocumentChange,
    FieldChange,
    Location,
    Path,
    SharedChange,
    compare_fields,
    locate_field,
    map_texts,
)
from gitboot.review.reinstalls import Reinstall
from gitboot.review.rendered_diffs import RenderedChanges, RenderedDiff, hide_decision_secrets
from gitboot.review.risks import Effect, Risk

RENDERED_LINES: Final = 50_000  # the maximum number of lines in all rendered diffs together


class ChangeCause(Struct, frozen=True, kw_only=True):
    """A changed document or file that causes a group of servers to change."""

    id: Id
    fate: ChangeKind
    number: int  # the number of documents; more than 1 if each server's own Server document changed
    fields: tuple[FieldChange, ...]
    place: Location | None  # the location of the cause in the new commit

    @property
    def place_prefix(self) -> str:
        """The words that connect a cause with its location in a sentence.

        If the cause stands for several documents, the location is in the first of these documents.
        """
        return ", the first at" if self.number > 1 else " at"

    def __str__(self) -> str:
        if self.number > 1:
            return f"{self.number:,} Server documents"
        return self.id.name if self.id.kind == "file" else str(self.id)


class Outlier(Struct, frozen=True, kw_only=True):
    """The differences between a small group and a larger group with the same causes and the same changed fields."""

    than: str  # the first server of the larger group
    lines: tuple[str, ...]  # lines that are only in this group's rendered diff; names replace the servers' own values
    missing: tuple[str, ...]  # lines that are only in the rendered diff of the larger group


class Group(Struct, frozen=True, kw_only=True):
    """Servers that change in the same way and for the same causes.

    The rendered diffs of these servers differ only in each server's own values, such as its name and UUID.
    """

    causes: tuple[ChangeCause, ...]
    servers: tuple[ServerChange, ...]  # sorted by name
    risks: tuple[Risk, ...]  # risks, the worst risk first
    effects: tuple[Effect, ...]
    reinstalls: tuple[Reinstall, ...]  # reasons for all servers, without duplicates
    unknown: tuple[UnknownReason, ...]  # The reasons why gitboot cannot determine whether the servers are provisioned.
    # The changed fields in the decision for the first server. Other servers may have other values.
    fields: tuple[FieldChange, ...]
    # The diffs of the first server. None: gitboot did not render them, because the earlier groups have too many lines.
    rendered: tuple[RenderedDiff, ...] | None
    own: tuple[str, ...] = ()  # the names of the values that differ between servers in added and removed lines
    outlier: Outlier | None = None  # None: there is no larger group with the same causes and changed fields

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(change.name for change in self.servers)


Commit = tuple[Decisions, FleetRepository]


class _GroupKey(NamedTuple):
    """The values that are the same for all servers of a group."""

    change: object  # the causes, risks, effects and fields; groups with the same value are compared as outliers
    diffs: Digest  # of the rendered diffs


def build_groups(changes: Changes, old: Commit | None, new: Commit, causes: CauseFinder) -> tuple[Group, ...]:
    """Group the changed servers. Sort the groups by risk first and then by size, with the largest groups first.

    Each server is in exactly one group. Servers are in the same group only if their rendered diffs have the same
    `RenderedChanges.make_key`.
    """
    renderer = RenderedChanges(old[0] if old else None, new[0])
    servers_by_key: dict[_GroupKey, list[ServerChange]] = {}
    causes_by_key: dict[_GroupKey, tuple[Id, ...]] = {}
    for change in changes.servers:
        ids = causes.find_causes(change)
        # Omit the names of Server documents, because they differ for each server.
        kinds = tuple(Id("Server", "") if key.kind == "Server" else key for key in ids)
        fields = tuple(map(_make_field_key, _find_changed_fields(change.old, change.new)))
        key = _GroupKey((kinds, change.risks, change.effects, fields), renderer.make_key(change))
        servers_by_key.setdefault(key, []).append(change)
        causes_by_key.setdefault(key, ids)
    order = list(Risk)

    def get_urgency(key: _GroupKey) -> tuple[list[int], int, str]:
        members = servers_by_key[key]
        return [order.index(risk) for risk in _sort_risks(members[0])], -len(members), members[0].name

    groups: list[Group] = []
    largest_groups: dict[object, Group] = {}  # by `_GroupKey.change`
    rendered_lines = 0
    for key in sorted(servers_by_key, key=get_urgency):
        group = _make_group(
            servers_by_key[key],
            causes_by_key[key],
            changes,
            new,
            renderer if rendered_lines < RENDERED_LINES else None,
            largest_groups.get(key.change),
        )
        largest_groups.setdefault(key.change, group)
        rendered_lines += sum(len(diff.lines) for diff in group.rendered or ())
        groups.append(group)
    return tuple(groups)


def describe_causes(ids: tuple[Id, ...], changes: Changes, new: FleetRepository) -> tuple[ChangeCause, ...]:
    """Return descriptions of the documents that cause a change for unknown machines or for all machines."""
    return tuple(_make_cause(key, ChangeKind.EDITED, 1, changes.documents, new) for key in ids)


def _sort_risks(change: ServerChange) -> tuple[Risk, ...]:
    return tuple(sorted(change.risks, key=list(Risk).index))


def _make_group(
    members: list[ServerChange],
    ids: tuple[Id, ...],
    changes: Changes,
    new: Commit,
    renderer: RenderedChanges | None,
    larger_group: Group | None,
) -> Group:
    first = members[0]
    rendered: tuple[RenderedDiff, ...] | None = None
    own: tuple[str, ...] = ()
    outlier: Outlier | None = None
    if renderer is not None:
        rendered = () if first.new is None else renderer.render_diffs(first)
        own = renderer.list_own_values(first, rendered)
        if larger_group is not None and larger_group.rendered is not None:
            outlier = _compare_diffs(renderer, first, rendered, larger_group.servers[0], larger_group.rendered)
    return Group(
        causes=tuple(_make_cause(key, first.fate, len(members), changes.documents, new[1]) for key in ids),
        servers=tuple(members),
        risks=_sort_risks(first),
        effects=first.effects,
        reinstalls=tuple(dict.fromkeys(each for member in members for each in member.reinstalls)),
        unknown=tuple(dict.fromkeys(each for member in members for each in member.unknown)),
        fields=tuple(_list_shown_fields(first)),
        rendered=rendered,
        own=own,
        outlier=outlier,
    )


def _compare_diffs(
    renderer: RenderedChanges,
    change: ServerChange,
    diffs: tuple[RenderedDiff, ...],
    other: ServerChange,
    other_diffs: tuple[RenderedDiff, ...],
) -> Outlier:
    lines = Counter(renderer.mask_lines(change, diffs))
    other_lines = Counter(renderer.mask_lines(other, other_diffs))
    return Outlier(
        than=other.name,
        lines=tuple((lines - other_lines).elements()),
        missing=tuple((other_lines - lines).elements()),
    )


def _make_cause(
    key: Id, server_fate: ChangeKind, members: int, documents: Mapping[Id, DocumentChange], new: FleetRepository
) -> ChangeCause:
    """Return a changed document as a cause, with the location of the change.

    If the document is a Server document, the cause stands for the documents of all ``members`` servers in the group.
    """
    is_own = key.kind == "Server"
    fate = server_fate if is_own else documents[key].fate
    change = documents.get(key, DocumentChange(id=key, fate=fate, fields=()))
    place = None
    if key.kind == "file":
        place = (key.name, 1, 1) if key.name in new.files else None
    elif key in new.origins:
        place = locate_field(new, key, *change.first_path)
    return ChangeCause(id=key, fate=fate, number=members if is_own else 1, fields=change.fields, place=place)


# Changed fields of decisions


def _make_field_key(field: FieldChange) -> str:
    old, new = field.old, field.new
    if isinstance(old, list) and isinstance(new, list) and sorted(map(str, old)) != sorted(map(str, new)):
        old, new = [item for item in field.old if item not in new], [item for item in field.new if item not in old]
    return f"{field.path}: {json.dumps(old, sort_keys=True)} {json.dumps(new, sort_keys=True)}"


# fields that gitboot shows without values
_DIGEST_FIELDS: Final = frozenset({"files", "userData", "entries", "templates"})


def _find_changed_fields(old: Decision | None, new: Decision | None) -> Iterator[FieldChange]:
    before, after = (_get_comparable_fields(each) for each in (old, new))
    if before is None or after is None:
        facts = after or before or {}
        yield FieldChange(("policy",), _summarize_policy(before), _summarize_policy(after))
        yield FieldChange(("maintenances",), None, sorted(facts["maintenances"]))
        return
    fields: dict[Path, FieldChange] = {}
    for field in map(_collapse_field, compare_fields(before, after)):
        fields.setdefault(field.path, field)
    yield from fields.values()


def _collapse_field(field: FieldChange) -> FieldChange:
    if field.path[0] == "maintenances" and len(field.path) == 2:
        return FieldChange(field.path, _summarize_maintenance(field.old), _summarize_maintenance(field.new))
    for depth, step in enumerate(field.path):
        if step in _DIGEST_FIELDS and field.path[-1] != "format":
            return FieldChange(field.path[: depth + 1], _mask_value(field.old), _mask_value(field.new))
    return field


def _summarize_maintenance(fields: Mapping[str, Any] | None) -> str | None:
    if fields is None:
        return None
    image = fields["boot"]["image"] if fields["boot"] else "local disk"
    start, end = (fields["window"][key] or "-" for key in ("start", "end"))
    return f"{image}, {fields['networkBoot']}, run {fields['run']}, [{start}, {end})"


def _mask_value(value: Any) -> str | None:
    return "(some)" if value is not None else None


def _summarize_policy(fields: Mapping[str, Any] | None) -> str | None:
    policy = fields["policy"] if fields else None
    if not policy:
        return None
    image = policy["boot"]["image"] if policy["boot"] else "local disk"
    return f"{policy['policy']}, {policy['networkBoot']}, {image}"


_IDENTITY_FIELDS: Final = ("server", "uuid", "replaces", "macs", "serial")  # fields that differ between all servers


def _get_comparable_fields(decision: Decision | None) -> Mapping[str, Any] | None:
    """Return a decision as JSON values that can be compared between servers.

    A placeholder such as MAC replaces each of the server's own values. The maintenances become a mapping by name.
    """
    if decision is None:
        return None
    digests = [(boot.user_data.digest, "DIGEST") for boot in decision.boots if boot.user_data is not None]
    macs = [(mac_text, "MAC") for mac in decision.macs for mac_text in (mac, mac.replace("-", ":"))]
    replacements = (*digests, (decision.uuid, "UUID"), *macs, (decision.server, "SERVER"))

    def replace_own_values(text: str) -> str:
        for own_value, placeholder in replacements:
            text = text.replace(own_value, placeholder)
        return text

    fields = to_json_value(decision)
    fields["maintenances"] = {each["name"]: each for each in fields["maintenances"]}
    identity = {name: fields.pop(name, None) for name in _IDENTITY_FIELDS}
    return {**map_texts(fields, replace_own_values), **identity}


def _list_shown_fields(change: ServerChange) -> Iterator[FieldChange]:
    if change.old is None or change.new is None:
        yield next(_find_changed_fields(change.old, change.new))  # the decision of the policy
        return
    fields = list(_find_changed_fields(hide_decision_secrets(change.old), hide_decision_secrets(change.new)))
    images = {field.path[:-1] for field in fields if field.path[-1] == "image"}
    for field in fields:
        if field.path[-1] in ("files", "version") and field.path[:-1] in images:
            continue  # the image determines this field
        if field.path == ("policy", "provision"):
            continue  # the provision number is the same as in the Server document
        yield field


# Causes


# fields of a Server document that are not part of the decision
_FIELDS_WITHOUT_DECISION = frozenset({"annotations", "bmc"})


class _DecisionPart(Struct, frozen=True):
    key: Id  # the document, such as BootPolicy/web or Maintenance/memory-test
    profile: str
    boot: Boot | None
    value: object  # a function that selects the part to compare in the old and the new commit


class CauseFinder:
    """Finds the changed documents and files that cause a boot to change."""

    def __init__(self, changes: Changes, old: FleetRepository | None, new: FleetRepository) -> None:
        self._documents = changes.documents
        self._fleet_ids = {key for key in changes.documents if key.kind == "Fleet"}
        self._repositories = old, new
        self._pools: list[Mapping[str, Pool]] = [build_pools(each)[0] if each else {} for each in (old, new)]

    def find_causes(self, change: ServerChange) -> tuple[Id, ...]:
        """Return the documents and files that cause a server to change, sorted.

        A renamed server appears under its new name.
        """
        decisions = [each for each in (change.old, change.new) if each is not None]
        server_ids = set[Id]()
        for key in self._filter_changed_ids(*(Id("Server", each.server) for each in decisions)):
            fields = self._documents[key].fields
            if not fields or any(not _FIELDS_WITHOUT_DECISION & set(field.path[:2]) for field in fields):
                server_ids.add(Id("Server", change.name))
        if len(decisions) < 2:
            return tuple(sorted(server_ids or self._find_part_causes(change)))
        common_fields = {
            (each.base_url, each.restrict, each.local_disk, each.stopped, each.copies) for each in decisions
        }
        causes = server_ids | set(self._find_part_causes(change))
        if len(common_fields) > 1 or Risk.OUTPUTS in change.risks:
            causes |= self._fleet_ids
        return tuple(sorted(causes or self._fleet_ids))

    def find_unknown_causes(self, boots: tuple[Mapping[Architecture, Boot] | None, ...]) -> tuple[Id, ...]:
        """Return the documents and files that cause a change for unknown machines, sorted.

        ``boots`` contains the boots of unknown machines in the old commit and in the new commit.
        """
        causes = {key for key in self._fleet_ids if self._has_field(key, "unknownServers", "baseURL")}
        images = {boot.image for by_architecture in boots for boot in (by_architecture or {}).values()}
        for side, by_architecture in enumerate(boots):
            for boot in (by_architecture or {}).values():
                part = _DecisionPart(Id("BootProfile", boot.profile), boot.profile, boot, boot)
                causes |= set(self._find_causes_of_part(side, part, image_differs=len(images) > 1))
        return tuple(sorted(causes))

    def find_shared_causes(self, change: SharedChange) -> tuple[Id, ...]:
        """Return the documents that cause a change in the files that gitboot publishes for all machines."""
        fields = ("outputs", "provisioning", "baseURL", "sites")
        fleet = (key for key in self._fleet_ids if self._has_field(key, *fields))
        hosts = change.new.get("hosts")
        named = (Id("Server", name) for name in hosts) if isinstance(hosts, Mapping) else ()
        return (*fleet, *self._filter_changed_ids(*named))

    def _has_field(self, key: Id, *names: str) -> bool:
        return any(set(names) & set(field.path[1:2]) for field in self._documents[key].fields)

    def _filter_changed_ids(self, *keys: Id) -> Iterator[Id]:
        return (key for key in keys if key in self._documents)

    def _find_part_causes(self, change: ServerChange) -> Iterator[Id]:
        before, after = self._index_parts(0, change.old), self._index_parts(1, change.new)
        for key in before.keys() | after.keys():
            old_part, new_part = before.get(key), after.get(key)
            if old_part and new_part and old_part.value == new_part.value:
                continue
            boots = [part.boot for part in (old_part, new_part) if part and part.boot]
            image_differs = len({boot.image for boot in boots}) > 1 or not (old_part and new_part)
            for side, part in enumerate((old_part, new_part)):
                if part is not None:
                    yield from self._find_causes_of_part(side, part, image_differs=image_differs)

    def _index_parts(self, side: int, decision: Decision | None) -> dict[str, _DecisionPart]:
        """Return the parts of a decision by the name of the maintenance, or by "BootPolicy"."""
        parts = self._list_parts(side, decision)
        return {part.key.kind if part.key.kind == "BootPolicy" else part.key.name: part for part in parts}

    def _list_parts(self, side: int, decision: Decision | None) -> Iterator[_DecisionPart]:
        repository = self._repositories[side]
        if decision is None or repository is None:
            return
        if decision.policy is not None:
            name = decision.policy.policy
            yield _DecisionPart(
                Id("BootPolicy", name), self._pools[side][name].profile, decision.policy.boot, decision.policy
            )
        for maintenance in decision.maintenances:
            profile = repository.maintenances[maintenance.name].spec.profile
            yield _DecisionPart(Id("Maintenance", maintenance.name), profile, maintenance.boot, maintenance)

    def _find_causes_of_part(self, side: int, part: _DecisionPart, *, image_differs: bool) -> Iterator[Id]:
        repository = self._repositories[side]
        assert repository is not None  # noqa: S101 - it has this part
        chain: Iterable[Id] = (part.key,)
        if part.key.kind == "BootPolicy":  # include the policies from which the policy inherits
            chain = (Id("BootPolicy", name) for name in self._pools[side][part.key.name].chain)
        elif part.key.kind == "Maintenance":
            before = repository.maintenances[part.key.name].spec.before
            if before is not None and before.approval is not None and before.approval.file is not None:
                yield from self._filter_changed_ids(Id("file", before.approval.file))
        yield from self._filter_changed_ids(*chain, Id("BootProfile", part.profile))
        stream = repository.profiles[part.profile].spec.stream
        if stream is not None and image_differs:
            yield from self._filter_changed_ids(Id("ImageStream", stream))
        if part.boot is not None:
            for key in self._filter_changed_ids(Id("BootImage", part.boot.image)):
                # A new image alone does not change a boot. An edited provenance does not change a boot either.
                if any("provenance" not in field.path for field in self._documents[key].fields):
                    yield key
            yield from self._filter_changed_ids(*(Id("file", path) for path in part.boot.templates))
