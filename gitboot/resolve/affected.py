"""Which servers' decisions can be others by what differs between two commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gitboot.load import FleetRepository, Id
from gitboot.load.multimap import Multimap
from gitboot.load.register import Register
from gitboot.load.successor import Delta
from gitboot.model.fleet import FleetSpec
from gitboot.resolve.choice import pools
from gitboot.resolve.decide import Decided, Made

Reach = Multimap[Id, str]  # a resource, or a file of kind "file" -> the servers whose decisions it went into


def affected(
    before: Decided, repository: FleetRepository, delta: Delta, register: Register, reach: Reach
) -> frozenset[str]:
    """The servers of either commit whose decisions can be others in ``repository``.

    ``register`` is the one of ``repository``, ``reach`` that of what was decided ``before``.
    """
    if _for_all(before.repository.fleet.spec) != _for_all(repository.fleet.spec):
        return frozenset(before.repository.servers.keys() | repository.servers.keys())
    reached = (server for key in (*delta.resources, *_files(delta)) for server in reach[key])
    selectors = (*_of_policies(before, repository, delta), *_of_maintenances(before.repository, repository, delta))
    selected = (server for select in selectors for server in register.selected(select, repository.servers))
    return frozenset((*delta.servers, *reached, *selected))


def entered(reach: Reach, made: Mapping[str, Made], servers: Iterable[str]) -> None:
    """Take what these servers' decisions were made of into ``reach``."""
    for name in servers:
        for resource in made[name].of if name in made else ():
            reach.add(resource, name)


def struck(reach: Reach, made: Mapping[str, Made], servers: Iterable[str]) -> None:
    """Undo `entered`."""
    for name in servers:
        for resource in made[name].of if name in made else ():
            reach.discard(resource, name)


def _for_all(fleet: FleetSpec) -> tuple[object, ...]:
    """What of the Fleet goes into each server's decision."""
    return fleet.base_url, fleet.sites, fleet.serving.restrict, fleet.provisioning.evidence, fleet.require_policy


def _files(delta: Delta) -> Iterator[Id]:
    return (Id("file", path) for path in delta.files)


def _of_policies(before: Decided, repository: FleetRepository, delta: Delta) -> Iterator[Any]:
    """The selectors, old and new, of each policy that is another, with what it inherits, or in whom it selects."""
    if not any(key.kind == "BootPolicy" for key in delta.resources):
        return
    old, new = before.repository.policies, repository.policies
    known, _ = pools(repository)
    for name in old.keys() | new.keys():
        is_same = before.pools.get(name) == known.get(name) and name in old and name in new
        if not is_same or old[name].spec.select != new[name].spec.select:
            yield from (policies[name].spec.select for policies in (old, new) if name in policies)


def _of_maintenances(old: FleetRepository, new: FleetRepository, delta: Delta) -> Iterator[Any]:
    for key in delta.resources:
        if key.kind == "Maintenance":
            both = (repository.maintenances.get(key.name) for repository in (old, new))
            yield from (maintenance.spec.select for maintenance in both if maintenance is not None)
