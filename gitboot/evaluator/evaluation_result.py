"""What an instance knows of a commit: decisions, machines, and what guards judge it by; values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gitboot.diff.extent import Extent
from gitboot.errors import Orders
from gitboot.load import FleetRepository, Revision
from gitboot.load.machines import NO_MOVES, Machine, Moves, machines
from gitboot.model.fleet import FleetSpec
from gitboot.model.scalars import SystemUuid
from gitboot.plan import Decision, WithheldBoot
from gitboot.problems.problem import Problem
from gitboot.resolve import Decisions
from gitboot.resolve.optouts import OptOut, opt_outs
from gitboot.resolve.sites import sites_of
from gitboot.resolve.skew import MinimumVersion, minimum_versions
from gitboot.resolve.source_locations import SourceLocations
from gitboot.resolve.written import Written

_FEW: Final = 8  # of so many servers one: to look each up by its name takes less than to look through all


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit that holds together: all that an instance knows of it. Its files stay behind."""

    revision: Revision
    fleet: FleetSpec
    decisions: Decisions
    machines: Mapping[SystemUuid, Machine]  # in the order of their UUIDs
    sites: Mapping[str, str]  # by server, where a site selects it
    labels: Mapping[str, Mapping[str, str]]  # by server
    opt_outs: tuple[OptOut, ...]
    minimum_versions: Mapping[str, MinimumVersion]  # by profile
    site: str | None = None  # whose servers alone these are; None: all of the fleet
    written: Mapping[str, Written] = field(default_factory=dict)  # by server; empty if no page is published
    locations: SourceLocations = field(default_factory=SourceLocations)  # likewise
    shown: bytes | None = None  # what the page shows of streams and windows, as JSON
    # Install boots that a newer commit takes back, by UUID: see `instance.withheld_boots`.
    withheld: Mapping[SystemUuid, tuple[WithheldBoot, ...]] = field(default_factory=dict)
    base: Revision | None = field(default=None, compare=False)  # what it was evaluated against
    # Servers of which it says anything else than its base, gone ones too.
    touched: frozenset[str] = field(default=frozenset(), compare=False)

    def is_for(self, ledger: str) -> bool:
        """Whether the instance with this ledger may act for it."""
        return self.ledger in (None, ledger)

    @property
    def ledger(self) -> str | None:
        """The ledger whose instance may act for it; None: any may, and none sets anything at BMCs."""
        return self.fleet.ledger_for(self.site)

    def at_site(self, site: str | None) -> Commit:
        """What of it is for the servers of one site, as its own instance knows it; None: all of it."""
        if site is None:
            return self
        names = {name for name, at in self.sites.items() if at == site}
        servers = {name: each for name, each in self.decisions.servers.items() if name in names}
        return replace(
            self,
            decisions=replace(self.decisions, servers=servers),
            machines={uuid: each for uuid, each in self.machines.items() if each.name in names},
            sites={name: site for name in self.sites if name in names},
            labels={name: each for name, each in self.labels.items() if name in names},
            site=site,
        )

    def named(self, names: Collection[str]) -> list[Machine]:
        """The machines of the servers of these names, in the order of these; no decision is looked at for many."""
        if len(names) * _FEW > len(self.machines):
            wanted = set(names)
            found = [each for each in self.machines.values() if each.name in wanted]
        else:
            servers = self.decisions.servers
            found = [self.machines[servers[name].uuid] for name in names if name in servers]
        return sorted(found, key=lambda machine: machine.name)

    def called(self, machines: Iterable[SystemUuid]) -> frozenset[str]:
        """What it calls these machines, but for those that it does not have."""
        return frozenset(self.machines[uuid].name for uuid in machines if uuid in self.machines)

    @property
    def orders(self) -> Orders:
        """What it says that is obeyed at once."""
        return self.fleet.orders_at(self.site)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A commit, and what it changes against its base."""

    commit: Commit
    changes: Extent
    names: tuple[str, ...]  # of servers of machines that the base does not have
    moves: Moves = NO_MOVES  # between the site of this instance and the others
    no_site: Problem | None = None  # that the Fleet does not have the site of this instance

    @property
    def come(self) -> Iterator[Decision]:
        """What is decided for these; at a first commit, for all."""
        return (self.commit.decisions.servers[name] for name in self.names)


def commit_of(repository: FleetRepository, decisions: Decisions) -> Commit:
    """What an instance knows of a repository that was decided."""
    return Commit(
        revision=repository.revision,
        fleet=repository.fleet.spec,
        decisions=decisions,
        machines=dict(sorted(machines(repository).items())),
        sites={name: site.name for name, site in sites_of(repository).items()},
        labels={name: server.metadata.labels for name, server in repository.servers.items()},
        opt_outs=tuple(opt_outs(repository)),
        minimum_versions=minimum_versions(repository),
    )
