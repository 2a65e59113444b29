"""The result of an evaluation: decisions, machines, and the values that the guards check."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import Struct, structs

from gitboot.errors import Orders
from gitboot.fleet.identities import NO_MOVES, Machine, Moves, list_machines
from gitboot.fleet.resources import FleetRepository
from gitboot.fleet.revision import Revision
from gitboot.model.fleet import FleetSpec
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Problem
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.fleet_decisions import find_server_sites
from gitboot.resolve.policy_selection import MinimumVersion, OptOut, find_minimum_versions, list_opt_outs
from gitboot.resolve.server_decision import Decision, Decisions, FieldSources, WithheldBoot
from gitboot.review.guards import Extent

_FEW: Final = 8  # look up machines by name if at most one server in this many is wanted; a full scan is slower


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A valid commit as an instance uses it: decisions and machines, but no files."""

    revision: Revision
    fleet: FleetSpec
    decisions: Decisions
    machines: Mapping[SystemUuid, Machine]  # sorted by UUID
    sites: Mapping[str, str]  # the site of each server that has a site
    labels: Mapping[str, Mapping[str, str]]  # by server
    opt_outs: tuple[OptOut, ...]
    minimum_versions: Mapping[str, MinimumVersion]  # by profile
    site: str | None = None  # the commit contains only the servers of this site; None: all servers
    written: Mapping[str, FieldSources] = field(default_factory=dict)  # by server; empty if pages are not published
    locations: SourceLocations = field(default_factory=SourceLocations)  # empty if pages are not published
    shown: bytes | None = None  # the streams and windows on the published page, as JSON
    # Install boots that a newer commit removes, by UUID: see `gitboot.controller.records.install_boots`.
    withheld: Mapping[SystemUuid, tuple[WithheldBoot, ...]] = field(default_factory=dict)
    base: Revision | None = field(default=None, compare=False)
    # Names of the servers that differ from the base, including removed servers.
    touched: frozenset[str] = field(default=frozenset(), compare=False)

    def is_for(self, ledger: str) -> bool:
        """Return whether the Fleet allows the instance with this ledger to act."""
        return self.ledger in (None, ledger)

    @property
    def ledger(self) -> str | None:
        """The ledger that the Fleet names, whose instance may act.

        If None, any instance may act, but it must not change BMCs.
        """
        return self.fleet.ledger_for(self.site)

    def at_site(self, site: str | None) -> Commit:
        """Return the commit reduced to the servers of one site, or unchanged if ``site`` is None."""
        if site is None:
            return self
        names = {name for name, at in self.sites.items() if at == site}
        servers = {name: each for name, each in self.decisions.servers.items() if name in names}
        return replace(
            self,
            decisions=structs.replace(self.decisions, servers=servers),
            machines={uuid: each for uuid, each in self.machines.items() if each.name in names},
            sites={name: site for name in self.sites if name in names},
            labels={name: each for name, each in self.labels.items() if name in names},
            site=site,
        )

    def without_servers(self) -> Commit:
        return replace(
            self,
            decisions=structs.replace(self.decisions, servers={}, networks={}),
            machines={},
            sites={},
            labels={},
            written={},
            locations=SourceLocations(),
            withheld={},
            base=None,
            touched=frozenset(),
        )

    def select_machines(self, names: Collection[str]) -> list[Machine]:
        """Return the machines of the named servers, sorted by server name."""
        if len(names) * _FEW > len(self.machines):
            wanted = set(names)
            found = [each for each in self.machines.values() if each.name in wanted]
        else:
            servers = self.decisions.servers
            found = [self.machines[servers[name].uuid] for name in names if name in servers]
        return sorted(found, key=lambda machine: machine.name)

    def select_server_names(self, machines: Iterable[SystemUuid]) -> frozenset[str]:
        return frozenset(self.machines[uuid].name for uuid in machines if uuid in self.machines)

    @property
    def orders(self) -> Orders:
        """The orders of the Fleet that an instance carries out even before it accepts the commit."""
        return self.fleet.orders_at(self.site)


class EvaluationResult(Struct, frozen=True, kw_only=True):
    """An evaluated commit, and its differences from the base."""

    commit: Commit
    extent: Extent
    new_names: tuple[str, ...]  # names of servers whose machines are not in the base
    moves: Moves = NO_MOVES  # between this instance's site and other sites
    no_site: Problem | None = None  # set if the Fleet does not define this instance's site

    @property
    def new_servers(self) -> Iterator[Decision]:
        """The decisions of new servers. Without a base, all servers are new."""
        return (self.commit.decisions.servers[name] for name in self.new_names)


def build_commit(repository: FleetRepository, decisions: Decisions) -> Commit:
    return Commit(
        revision=repository.revision,
        fleet=repository.fleet.spec,
        decisions=decisions,
        machines=dict(sorted(list_machines(repository).items())),
        sites={name: site.name for name, site in find_server_sites(repository).items()},
        labels={name: server.metadata.labels for name, server in repository.servers.items()},
        opt_outs=tuple(list_opt_outs(repository)),
        minimum_versions=find_minimum_versions(repository),
    )
