"""What is found while decisions are made, and where each finding stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from gitboot.fleet.resources import FleetRepository, Id, Origin
from gitboot.fleet.yaml import Place
from gitboot.problems.codes import Code, DatedProblem, Problem, Severity
from gitboot.resolve.source import Unbootable
from gitboot.text import some

Field = tuple[str | int, ...]


class DecisionFinding(NamedTuple):
    """A problem that servers may have in common; then it is reported once and names them."""

    code: Code
    message: str
    hint: str
    place: tuple[Id, Field] | tuple[str, int]  # a resource's field; or a template's path and line
    severity: Severity = Severity.ERROR
    is_shared: bool = True
    most_named: int = 2  # servers that the message names; it counts the others
    beside: Id | None = None  # another document, whose file the message names
    since: datetime | None = None  # from when on it holds; None: it has always held
    until: datetime | None = None  # when it is over; None: it holds until the commit changes


class FindingPlace(NamedTuple):
    """Where a finding's place was in the resource that it is about."""

    origin: Origin
    place: Place


def of_unbootable(error: Unbootable) -> DecisionFinding:
    """A boot that cannot work, as a finding."""
    return DecisionFinding(error.code, error.message, error.hint, error.template or (error.resource, error.path))


def located(
    repository: FleetRepository,
    found: Collection[tuple[str, DecisionFinding]],
    known: Mapping[DecisionFinding, FindingPlace],
) -> tuple[list[DatedProblem], dict[DecisionFinding, FindingPlace]]:
    """What was found, of which server, as problems, each once; and where the findings are placed.

    ``known`` is where they were placed in another commit: only what is written anew is read for it.
    """
    placed: dict[DecisionFinding, FindingPlace] = {}
    problems = []
    for finding, servers in _by_finding(found).items():
        match finding.place:
            case (str() as path, int() as line):
                place = Place(line, 1)
            case (Id() as resource, tuple() as field):  # pragma: no branch - there are two kinds of place
                placed[finding] = _placed(repository, resource, field, known.get(finding))
                path, place = placed[finding].origin.path, placed[finding].place
        message = finding.message
        if finding.beside is not None:
            message = f"{message}; {finding.beside} is in {repository.origins[finding.beside].path}"
        if finding.is_shared:
            message = f"{message} ({some(sorted(servers), finding.most_named)})"
        problem = Problem(
            path=path,
            line=place.line,
            column=place.column,
            code=finding.code,
            message=message,
            hint=finding.hint,
            severity=finding.severity,
        )
        problems.append(DatedProblem(problem=problem, since=finding.since, until=finding.until))
    return problems, placed


def _by_finding(found: Iterable[tuple[str, DecisionFinding]]) -> dict[DecisionFinding, list[str]]:
    whose: dict[DecisionFinding, list[str]] = {}
    for server, finding in found:
        whose.setdefault(finding, []).append(server)
    return whose


def _placed(repository: FleetRepository, resource: Id, field: Field, known: FindingPlace | None) -> FindingPlace:
    origin = repository.origins[resource]
    if known is not None and known.origin == origin:
        return known
    return FindingPlace(origin, repository.place(resource, *field)[1])
