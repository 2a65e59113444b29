"""Which changed documents and files a server's change comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.model.server import Architecture
from gitboot.resolve.policy_selection import Pool, pools
from gitboot.resolve.server_decision import Boot, Decision
from gitboot.review.decision_changes import Changes, ServerChange
from gitboot.review.document_changes import Fate, SharedChange
from gitboot.review.risks import Risk

_UNSEEN = frozenset({"annotations", "bmc"})  # of a Server: no decision looks at them, but a template may


@dataclass(frozen=True, slots=True)
class _Part:
    """One way in which a server boots: under its policy or under a maintenance."""

    key: Id  # what says so: BootPolicy/web, Maintenance/memory-test
    profile: str
    boot: Boot | None
    value: object  # to see whether it is another


class Causes:
    """Finds causes by what a boot is composed of; what servers have in common is looked up once."""

    def __init__(self, changes: Changes, old: FleetRepository | None, new: FleetRepository) -> None:
        self._documents = changes.documents
        self._old, self._new = old, new
        self._pools: list[Mapping[str, Pool]] = [pools(each)[0] if each else {} for each in (old, new)]
        self._chain = cache(self._chain_of)

    def of(self, change: ServerChange) -> tuple[Id, ...]:
        """The documents and files, by kind and name; a server's own is the document of its (new) name."""
        own = set(self._own(change))
        if change.old is None or change.new is None:
            return tuple(sorted(own)) or tuple(sorted(self._of_parts(change)))
        found = own | set(self._of_parts(change)) | set(self._of_fleet(change))
        return tuple(sorted(found or self._of_kind("Fleet")))

    def of_unknown(self, boots: tuple[Mapping[Architecture, Boot] | None, ...]) -> tuple[Id, ...]:
        """The same for what unknown machines boot, before and after."""
        found = {key for key in self._of_kind("Fleet") if self._has(key, "unknownServers", "baseURL")}
        for side, by_architecture in enumerate(boots):
            repository = (self._old, self._new)[side]
            images = {boot.image for each in boots for boot in (each or {}).values()}
            for boot in (by_architecture or {}).values():
                part = _Part(Id("BootProfile", boot.profile), boot.profile, boot, boot)
                if repository is not None:
                    found |= set(self._of_part(side, part, other_image=len(images) > 1))
        return tuple(sorted(found))

    def of_shared(self, shared: SharedChange) -> tuple[Id, ...]:
        """The same for what is published for all machines."""
        fields = ("outputs", "provisioning", "baseURL", "sites")
        fleet = (key for key in self._of_kind("Fleet") if self._has(key, *fields))
        hosts = shared.new.get("hosts")
        named = (Id("Server", name) for name in hosts) if isinstance(hosts, Mapping) else ()
        return (*fleet, *self._changed(*named))

    def _has(self, key: Id, *names: str) -> bool:
        """Whether one of these fields of a spec changed."""
        return any(set(names) & set(field.path[1:2]) for field in self._documents[key].fields)

    def _changed(self, *keys: Id) -> Iterator[Id]:
        return (key for key in keys if key in self._documents)

    def _of_kind(self, kind: str) -> set[Id]:
        return {key for key in self._documents if key.kind == kind}

    def _own(self, change: ServerChange) -> Iterator[Id]:
        names = {decision.server for decision in (change.old, change.new) if decision is not None}
        for key in self._changed(*(Id("Server", name) for name in names)):
            fields = self._documents[key].fields
            if not fields or any(not _UNSEEN & set(field.path[:2]) for field in fields):
                yield Id("Server", change.name)

    def _of_fleet(self, change: ServerChange) -> Iterator[Id]:
        elsewhere = {
            (each.base_url, each.restrict, each.local_disk, each.stopped, each.copies)
            for each in (change.old, change.new)
            if each is not None
        }
        if len(elsewhere) > 1 or Risk.OUTPUTS in change.risks:
            yield from self._of_kind("Fleet")

    def _of_parts(self, change: ServerChange) -> Iterator[Id]:
        before, after = (
            {part.key.kind if part.key.kind == "BootPolicy" else part.key.name: part for part in found}
            for found in (self._parts(0, change.old), self._parts(1, change.new))
        )
        for key in before.keys() | after.keys():
            was, is_now = before.get(key), after.get(key)
            if was and is_now and was.value == is_now.value:
                continue
            boots = [part.boot for part in (was, is_now) if part and part.boot]
            images = {boot.image for boot in boots}
            other_image = len(images) > 1 or not (was and is_now)
            for side, part in enumerate((was, is_now)):
                if part is not None:
                    yield from self._of_part(side, part, other_image=other_image)

    def _parts(self, side: int, decision: Decision | None) -> Iterator[_Part]:
        repository = (self._old, self._new)[side]
        if decision is None or repository is None:
            return
        if decision.policy is not None:
            name = decision.policy.policy
            profile = self._pools[side][name].profile
            yield _Part(Id("BootPolicy", name), profile, decision.policy.boot, decision.policy)
        for each in decision.maintenances:
            profile = repository.maintenances[each.name].spec.profile
            yield _Part(Id("Maintenance", each.name), profile, each.boot, each)

    def _of_part(self, side: int, part: _Part, *, other_image: bool) -> Iterator[Id]:
        repository = (self._old, self._new)[side]
        assert repository is not None  # noqa: S101 - it has this part
        yield from self._changed(*self._chain(side, part.key), Id("BootProfile", part.profile))
        stream = repository.profiles[part.profile].spec.stream
        if stream is not None and other_image:
            yield from self._changed(Id("ImageStream", stream))
        if part.boot is not None:
            for key in self._changed(Id("BootImage", part.boot.image)):
                if self._documents[key].fate is Fate.EDITED:  # one that is new does nothing until it is named
                    yield key
            yield from self._changed(*(Id("file", path) for path in part.boot.templates))

    def _chain_of(self, side: int, key: Id) -> tuple[Id, ...]:
        """A policy with all that it inherits from; anything else alone."""
        if key.kind != "BootPolicy":
            return (key,)
        return tuple(Id("BootPolicy", name) for name in self._pools[side][key.name].chain)


def is_own(key: Id) -> bool:
    """Whether a cause is a server's own document, of which each server has another."""
    return key.kind == "Server"
