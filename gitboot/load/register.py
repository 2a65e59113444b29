"""Who has an identity or a label, and who names a resource: kept while documents come and go.

It is for the next revision of a fleet, of which only what differs is looked at: whether a UUID is taken already, and
whom a selector finds, is then a look-up and no walk over all servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from gitboot.load.identities import identities, place_of
from gitboot.load.multimap import Multimap
from gitboot.load.references import references
from gitboot.load.resources import Id, Resource
from gitboot.model.selectors import Selector
from gitboot.model.server import Server

Identities = Multimap[tuple[str, str], str]  # (what, value) -> servers
Bmcs = Multimap[tuple[str, bool], str]  # (address, whether its system is named) -> servers
Naming = Multimap[Id, Id]  # a resource, or a file of kind "file" -> who names it


class Registered(NamedTuple):
    """All that a `Register` holds."""

    identities: Identities
    bmcs: Bmcs
    labels: dict[str, Multimap[str, str]]  # key -> value -> servers
    naming: Naming


class Register:
    """The resources of one revision, by what others may ask for."""

    def __init__(self, held: Registered | None = None) -> None:
        self.held = held or Registered(Identities(), Bmcs(), {}, Naming())
        self._identities, self._bmcs, self._labels, self._naming = self.held

    def enter(self, resources: Iterable[tuple[Id, Resource]]) -> None:
        for key, resource in resources:
            for named in _named(resource):
                self._naming.add(named, key)
            if isinstance(resource, Server):
                for identity in identities(resource):
                    self._identities.add((identity.what, identity.same), key.name)
                for bmc in _bmc(resource):
                    self._bmcs.add(bmc, key.name)
                for label, value in resource.metadata.labels.items():
                    self._labels.setdefault(label, Multimap()).add(value, key.name)

    def strike(self, resources: Iterable[tuple[Id, Resource]]) -> None:
        """Undo `enter`."""
        for key, resource in resources:
            for named in _named(resource):
                self._naming.discard(named, key)
            if isinstance(resource, Server):
                for identity in identities(resource):
                    self._identities.discard((identity.what, identity.same), key.name)
                for bmc in _bmc(resource):
                    self._bmcs.discard(bmc, key.name)
                for label, value in resource.metadata.labels.items():
                    self._labels[label].discard(value, key.name)

    def naming(self, resource: Id) -> Collection[Id]:
        """The resources that name this one, or this file."""
        return self._naming[resource]

    def clashes(self, server: Server) -> bool:
        """Whether an identity of a server that was entered is another's too, or stands in it twice."""
        own = [(identity.what, identity.same) for identity in identities(server)]
        if len(set(own)) < len(own) or any(len(self._identities[each]) > 1 for each in own):
            return True
        return any((address, not is_named) in self._bmcs for address, is_named in _bmc(server))

    def selected(self, select: Literal["All", "None"] | Selector, servers: Mapping[str, Server]) -> Iterable[str]:
        """The names of the ``servers`` that a selector selects, in any order."""
        if not isinstance(select, Selector):
            return servers if select == "All" else ()
        if select.servers:
            return [name for name in select.servers if name in servers]
        fewest: Collection[str] = servers
        for key, value in select.match_labels.items():
            fewest = min(fewest, self._labels[key][value] if key in self._labels else (), key=len)
        return [name for name in fewest if select.matches(servers[name].metadata.name, servers[name].metadata.labels)]

    def sizes(self, keys: Collection[str]) -> dict[tuple[str, str], int]:
        """How many servers have each value of these labels."""
        labelled = {key: self._labels[key] for key in keys if key in self._labels}
        return {(key, value): len(values[value]) for key, values in labelled.items() for value in values}


def _named(resource: Resource) -> Iterator[Id]:
    return (Id(kind, name) for kind, name, _ in references(resource))


def _bmc(server: Server) -> Iterator[tuple[str, bool]]:
    if server.spec.bmc is not None:
        address, _ = place_of(server.spec.bmc.address, None)
        yield address, server.spec.bmc.system is not None
