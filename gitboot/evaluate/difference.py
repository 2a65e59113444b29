"""A commit as an instance hears of it: of what its base says too, nothing is said again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from gitboot.evaluate.evaluator import CommitPair, Foundation
from gitboot.evaluate.wire import Answer, CommitEnd, FleetPart, ServerPart, ServerParts, fleet_part
from gitboot.frames import encode
from gitboot.load.machines import machine
from gitboot.plan import Decision
from gitboot.resolve.checked import minimum_versions
from gitboot.resolve.decide import sites
from gitboot.resolve.optouts import OptOut, holds

_BATCH: Final = 256  # servers a frame


def told(difference: CommitPair) -> Iterator[Answer]:
    """The frames that tell a commit to whoever knows its base."""
    servers = _servers(difference)
    while batch := tuple(islice(servers, _BATCH)):
        yield ServerParts(batch)
    yield _result(difference)


def _servers(difference: CommitPair) -> Iterator[ServerPart]:
    base, head = difference.base, difference.head
    for name in sorted(difference.servers):
        if name in head.decided.repository.servers and (said := _server(base, head, name)) is not None:
            yield said


def _server(base: Foundation | None, head: Foundation, name: str) -> ServerPart | None:
    """What is another of one server, if anything."""
    new, new_server = head.decided, head.decided.repository.servers[name]
    decision, network = new.decisions.servers[name], new.decisions.networks[name]
    described, labels = machine(new.repository, new_server), new_server.metadata.labels
    if base is None or name not in base.decided.repository.servers:
        return ServerPart(
            name=name,
            decision=encode(decision.digested()),
            machine=described,
            network=encode(network),
            labels=labels,
        )
    old, old_server = base.decided, base.decided.repository.servers[name]
    same_network = old.decisions.networks[name] == network
    said = ServerPart(
        name=name,
        decision=None if _same(old.decisions.servers[name], decision) else encode(decision.digested()),
        machine=None if machine(old.repository, old_server) == described else described,
        network=None if same_network else encode(network),
        labels=None if old_server.metadata.labels == labels else labels,
    )
    differs = (each is not None for each in (said.decision, said.machine, said.network, said.labels))
    return said if any(differs) else None


def _same(old: Decision, new: Decision) -> bool:
    return old is new or old.digest == new.digest


def _result(difference: CommitPair) -> CommitEnd:
    base, head = difference.base, difference.head
    new = head.decided.repository
    servers = difference.servers
    old = base.decided.repository if base is not None else None
    uuids = {new.servers[name].uuid: name for name in servers if name in new.servers}
    uuids_before = {old.servers[name].uuid for name in servers if name in old.servers} if old else set()
    sites = _sites(head, difference)
    sites_before = _sites(base, difference) if base else {}
    fleetwide = _fleetwide(difference)
    return CommitEnd(
        extent=difference.extent,
        fleetwide=fleetwide,
        come=tuple(sorted(name for uuid, name in uuids.items() if uuid not in uuids_before)),
        gone=tuple(sorted(name for name in servers if old and name in old.servers and name not in new.servers)),
        gone_machines=tuple(sorted(uuids_before - uuids.keys())),
        sites={name: site for name, site in sites.items() if site != sites_before.get(name)},
        gone_sites=tuple(sorted(sites_before.keys() - sites.keys())),
    )


def _sites(commit: Foundation, difference: CommitPair) -> dict[str, str]:
    repository = commit.decided.repository
    selection, servers = sites(repository), repository.servers
    found = {name: selection.of(servers[name]) for name in difference.servers if name in servers}
    return {name: selected[0].name for name, selected in found.items() if selected}


def _fleetwide(difference: CommitPair) -> FleetPart | None:
    """What is said besides the servers; None where that is what the base says."""
    said = _fleetwide_of(difference.head)
    if difference.base is None:
        return said
    before = _fleetwide_of(difference.base)
    return None if before == said else said


def _fleetwide_of(commit: Foundation) -> FleetPart:
    repository, decisions = commit.decided.repository, commit.decided.decisions
    return fleet_part(repository.fleet.spec, decisions, _opt_outs(commit), minimum_versions(repository))


def _opt_outs(commit: Foundation) -> tuple[OptOut, ...]:
    """Every pin and hold, in the order of their servers and streams."""
    return (*commit.pinned.values(), *holds(commit.decided.repository))
