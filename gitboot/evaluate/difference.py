"""A commit as an instance hears of it: of what its base says too, nothing is said again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from msgspec import structs

from gitboot.canonical import canonical
from gitboot.evaluate.evaluator import CommitPair, Foundation
from gitboot.evaluate.wire import Answer, CommitEnd, FleetPart, ServerPart, ServerParts, fleet_part
from gitboot.frames import encode
from gitboot.load.machines import machine
from gitboot.model.fleet import Output
from gitboot.plan import Decision
from gitboot.resolve.optouts import OptOut, holds
from gitboot.resolve.places import Places
from gitboot.resolve.sites import sites
from gitboot.resolve.skew import minimum_versions
from gitboot.resolve.whereabouts import fleet_facts, written
from gitboot.resolve.written import Written

_BATCH: Final = 256  # servers a frame


def told(difference: CommitPair) -> Iterator[Answer]:
    """The frames that tell a commit to whoever knows its base."""
    servers = _servers(difference)
    while batch := tuple(islice(servers, _BATCH)):
        yield ServerParts(batch)
    yield _result(difference)


def _servers(difference: CommitPair) -> Iterator[ServerPart]:
    base, head = difference.base, difference.head
    lines, before = _Provenance.of(head), _Provenance.of(base) if base is not None else None
    servers = head.decided.repository.servers
    for name in sorted(servers if lines is not None and before is None else difference.servers):
        if name not in servers:
            continue
        said = _server(base, head, name)
        if lines is not None and (found := lines.unless_as(before, name)) is not None:
            said = structs.replace(said or _NOTHING, name=name, written=found)
        if said is not None:
            yield said


_NOTHING: Final = ServerPart(name="", decision=None, machine=None, network=None, labels=None)


class _Provenance:
    """Where a commit says what it says of servers, for the page."""

    def __init__(self, commit: Foundation) -> None:
        repository = commit.decided.repository
        self._places, self._documents = Places(repository), Places(repository, lines=False)
        self._decisions = commit.decided.decisions.servers

    @classmethod
    def of(cls, commit: Foundation) -> _Provenance | None:
        """None: no page is published by it."""
        return cls(commit) if Output.PAGES in commit.decided.decisions.outputs else None

    def unless_as(self, before: _Provenance | None, name: str) -> Written | None:
        """Those of one server; None where another commit said it in the same documents."""
        if before is not None and name in before._decisions and before._of(name) == self._of(name):
            return None
        return written(self._places, self._decisions[name])

    def _of(self, name: str) -> Written:
        """The same, of whatever commit and on whatever lines."""
        return replace(written(self._documents, self._decisions[name]), revision="")


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
    opt_outs, shown = _opt_outs(commit), None
    if Output.PAGES in decisions.outputs:
        shown = canonical(fleet_facts(Places(repository), opt_outs))
    return fleet_part(repository.fleet.spec, decisions, opt_outs, minimum_versions(repository), shown)


def _opt_outs(commit: Foundation) -> tuple[OptOut, ...]:
    """Every pin and hold, in the order of their servers and streams."""
    return (*commit.pinned.values(), *holds(commit.decided.repository))
