"""Everything that decisions read of a commit: for one server, and for unknown machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from gitboot.fleet.resources import FleetRepository, Id, Origin
from gitboot.fleet.yaml import Place
from gitboot.model.boot_image import BootImage, Skew
from gitboot.model.boot_policy import BootProfile, Maintenance
from gitboot.model.fleet import Output, Serving
from gitboot.model.server import Loader, Server
from gitboot.problems.codes import Code, DatedProblem, Problem, Severity
from gitboot.resolve.policy_selection import Pool
from gitboot.resolve.source import Unbootable
from gitboot.text import some


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetTerms:
    """The fields of a Fleet that the decision of each server depends on."""

    name: str
    is_written: bool  # False: the commit has no Fleet document
    outputs: tuple[Output, ...]  # sorted; those that boot loaders use, and the mirror
    serving: Serving
    is_stopped: bool
    is_declared: bool  # an annotation of the server is the evidence that it was provisioned
    attempts: int
    requires_policy: bool
    unknown_not_found: bool  # gitboot answers unknown machines with 404
    has_instances_by_site: bool

    @property
    def mirrors(self) -> bool:
        return Output.MIRROR in self.outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class BootInputs:
    """What a profile boots, and the files that the profile names."""

    profile: BootProfile
    image: BootImage | None  # None: method Disk boots no image
    chosen_by: Id | None  # the document that chose the image; None: the server's pin
    chosen_at: Field  # the field of that document
    skew: Skew | None  # of the stream
    files: Mapping[str, bytes]  # by path: templates and secrets
    allowances: Mapping[str, str]  # why the author allows a secret, by the field of the profile in which it is


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceInputs:
    """A maintenance, and what it boots."""

    maintenance: Maintenance
    boot: BootInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedInputs:
    """Everything that the decisions of similar servers have in common."""

    fleet: FleetTerms
    sites: tuple[str, ...]  # that select the server; the first one is its site
    base_url: str
    endpoint: str | None
    local_disk: str | None  # of the hardware
    loader: Loader | None  # of the hardware
    pool: Pool | None  # the policy that won
    boot: BootInputs | None  # of that policy
    tied: tuple[str, ...]  # the policies, if several won
    is_unselected: bool  # no policy selects the server, and none is broken
    maintenances: tuple[MaintenanceInputs, ...]

    @property
    def site(self) -> str | None:
        return self.sites[0] if self.sites else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerInputs:
    """Everything that the decision of one server is made of."""

    server: Server
    files: Mapping[str, bytes]  # by path: those that the server names
    shared: SharedInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownInputs:
    """Everything that the boots of unknown machines are made of."""

    fleet: str
    base_url: str
    endpoint: str | None
    mirrors: bool
    boot: BootInputs | None  # None: the Fleet has no profile for unknown machines


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


def templates_of(profile: BootProfile) -> tuple[str, ...]:
    """The files of which a profile's boot is made."""
    spec = profile.spec
    files = (*(spec.user_data.templates if spec.user_data else ()), spec.templates.ipxe, spec.templates.grub)
    return tuple(path for path in files if path is not None)


_OF_IPXE: Final = frozenset({Output.IPXE, Output.SERIAL, Output.SMEE, Output.NETBOOT_XYZ})
_WITHOUT_HTTPS: Final = (
    ("GRUB", frozenset({Output.GRUB, Output.UUID})),
    ("PXELINUX", frozenset({Output.PXELINUX})),
)
LOADER_OUTPUTS: Final = _OF_IPXE.union(*(outputs for _, outputs in _WITHOUT_HTTPS))  # that boot scripts are for
