"""Which servers' decisions can be others by what differs between two commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from gitboot.load import FleetRepository, Id
from gitboot.load.multimap import Multimap
from gitboot.load.register import Register
from gitboot.load.successor import Delta
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, Fleet, Output
from gitboot.model.image import ImageStream
from gitboot.resolve.choice import choose_image, pools
from gitboot.resolve.copies import LOADER_OUTPUTS
from gitboot.resolve.decide import Decided

Reach = Multimap[Id, str]  # a resource, or a file of kind "file" -> the servers whose decisions it went into


def affected(
    before: Decided, repository: FleetRepository, delta: Delta, register: Register, reach: Reach
) -> frozenset[str]:
    """The servers of either commit whose decisions can be others in ``repository``.

    ``register`` is the one of ``repository``, ``reach`` that of what was decided ``before``.
    """
    if _for_all(before.repository.fleet) != _for_all(repository.fleet):
        return frozenset(before.repository.servers.keys() | repository.servers.keys())
    reached: list[Iterable[str]] = [delta.servers]
    for key in (*delta.resources, *(Id("file", path) for path in delta.files)):
        match key.kind:
            case "ImageStream":
                reached.append(_by_stream(before, repository, key.name, register, reach))
            case "Maintenance":
                selects = _selectors(key.name, before.repository.maintenances, repository.maintenances)
                reached += (register.selected(select, repository.servers) for select in selects)
            case "BootPolicy":
                pass  # each stands for those that inherit from it, too
            case _:
                reached.append(reach[key])
    if any(key.kind == "BootPolicy" for key in delta.resources):
        reached.append(_by_policies(before, repository, register, reach))
    return frozenset(chain.from_iterable(reached))


def entered(reach: Reach, of: Mapping[str, tuple[Id, ...]], servers: Iterable[str]) -> None:
    """Take what these servers' decisions were made ``of`` into ``reach``."""
    for name in servers:
        for resource in of.get(name, ()):
            reach.add(resource, name)


def struck(reach: Reach, of: Mapping[str, tuple[Id, ...]], servers: Iterable[str]) -> None:
    """Undo `entered`."""
    for name in servers:
        for resource in of.get(name, ()):
            reach.discard(resource, name)


def _for_all(document: Fleet) -> tuple[object, ...]:
    """Return what each server's decision and findings have of the Fleet. Findings name the document."""
    fleet = document.spec
    stopped, provisioning = fleet.stopped is not None, fleet.provisioning
    counts, mirrors = (provisioning.evidence, provisioning.attempts), Output.MIRROR in fleet.outputs
    urls = fleet.base_url, fleet.endpoint, fleet.sites, mirrors
    loaders = fleet.hardware, *(output in fleet.outputs for output in (Output.IPXE, Output.GRUB))
    unknown = fleet.unknown_servers == UNKNOWN_NOT_FOUND
    asking = fleet.serving, LOADER_OUTPUTS.intersection(fleet.outputs)  # findings about copies name the loaders
    return document.metadata.name, urls, loaders, asking, unknown, counts, fleet.require_policy, stopped


def _selectors(name: str, *both: Mapping[str, Any]) -> list[Any]:
    """Whom a resource of this name selects, before and after."""
    return [resources[name].spec.select for resources in both if name in resources]


# R3


def _by_policies(before: Decided, repository: FleetRepository, register: Register, reach: Reach) -> Iterator[str]:
    """Who is selected, or was, by each policy that is another, with what it inherits; and who names it."""
    old, new = before.repository.policies, repository.policies
    known, _ = pools(repository)
    for name in old.keys() | new.keys():
        selectors = _selectors(name, old, new)
        whom = (register.selected(select, repository.servers) for select in selectors)
        if before.pools.get(name) != known.get(name) or len(selectors) < 2:
            yield from chain(reach[Id("BootPolicy", name)], *whom)
        elif old[name].spec.select != new[name].spec.select:
            first, second = map(set, whom)
            yield from first ^ second


# R4


def _by_stream(
    before: Decided, repository: FleetRepository, stream: str, register: Register, reach: Reach
) -> Iterable[str]:
    """Who gets another image of a stream, or is compared with another minimum version."""
    servers = reach[Id("ImageStream", stream)]
    old, new = before.repository.streams.get(stream), repository.streams.get(stream)
    if old is None or new is None or old.spec.skew != new.spec.skew:
        return servers
    asked: Collection[str] = servers
    if old.spec.current == new.spec.current:
        selected = (register.selected(select, repository.servers) for select in _of_stream(old, new))
        asked = set(chain.from_iterable(selected)).intersection(servers)
    return [name for name in asked if _chosen(before, before.repository, name) != _chosen(before, repository, name)]


def _of_stream(old: ImageStream, new: ImageStream) -> Iterator[Any]:
    """The selectors by which a stream treats servers otherwise than it did."""
    for stream in (old, new):
        if old.spec.holds != new.spec.holds:
            yield from (hold.select for hold in stream.spec.holds)
        if stream.spec.rollout is not None and old.spec.rollout != new.spec.rollout:
            yield stream.spec.rollout.selector


def _chosen(before: Decided, repository: FleetRepository, name: str) -> tuple[object, ...]:
    """Which images a server's streams give it, and where that is said; its policy and maintenances are the same."""
    server, decision = before.repository.servers[name], before.decisions.servers[name]
    chosen: list[object] = []
    if decision.policy is not None:
        profile = before.repository.profiles[before.pools[decision.policy.policy].profile]
        if profile.spec.stream is not None:
            chosen.append(choose_image(server, profile, repository.streams).winner)
    for maintenance in decision.maintenances:
        profile = before.repository.profiles[before.repository.maintenances[maintenance.name].spec.profile]
        if profile.spec.stream is not None:
            chosen.append(repository.streams[profile.spec.stream].spec.current)
    return tuple(chosen)
