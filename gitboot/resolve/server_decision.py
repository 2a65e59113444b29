"""All that a commit decides, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gitboot.errors import InvalidRepository
from gitboot.model.fleet import Evidence, FleetSpec, Output
from gitboot.model.server import Architecture
from gitboot.problems.codes import DatedProblem, Problem, Severity, holding
from gitboot.resolve.hosts import Host
from gitboot.resolve.server_decision_from_plan import Boot, Decision


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """What a commit says about every server, and about machines that it does not know."""

    revision: str
    base_url: str
    outputs: frozenset[Output]
    evidence: Evidence
    servers: Mapping[str, Decision]  # by name, sorted
    networks: Mapping[str, Host]  # by server, in their order
    sites: Mapping[str, str]  # by name, in the document's order: what is reached under which base URL
    unknown: Mapping[Architecture, Boot] | None  # None: no profile for machines without a document
    unknown_not_found: bool  # such machines are answered 404
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]  # that depend on the time

    def problems_at(self, now: datetime) -> tuple[Problem, ...]:
        """Return every problem that holds at an instant, sorted."""
        return tuple(sorted((*self.warnings, *holding(self.dated, now))))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every server as the network knows it, in the order of their names."""
        return tuple(self.networks.values())


def check_acceptable(decisions: Decisions, fleet: FleetSpec, now: datetime) -> None:
    """Raise `InvalidRepository` if a commit cannot be accepted at an instant.

    It has an error of `GOES_ON`, or one that depends on the time. An instance that has accepted it goes on with it.
    """
    problems = decisions.problems_at(now)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems, fleet=fleet)
