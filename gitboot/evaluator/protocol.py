"""The frames that an instance and its evaluator process exchange.

An instance sends `Question`. The evaluator sends `Begun` twice for the commit, and before that twice for the base if
it does not hold the base. Then it sends any number of `Counted`, `ServerParts` and `NewResults`, and one `CommitEnd`.
It may send `Refused` or `Unreadable` at any time. Before the first part, it may send `Wanted`, which the instance
answers with `Known`. Both ends are one program, so frames have no version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from gitboot.bounds import Spent
from gitboot.canonical import digest
from gitboot.decoders import decoder
from gitboot.diff.extent import Extent
from gitboot.frames import encode
from gitboot.load.machines import Machine, Moves
from gitboot.model.fleet import Evidence, FleetSpec, Output
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Architecture
from gitboot.plan import Boot, Decision
from gitboot.problems.codes import Code
from gitboot.problems.dated import DatedProblem
from gitboot.problems.problem import Problem
from gitboot.resolve.decisions import Decisions
from gitboot.resolve.hosts import Host
from gitboot.resolve.optouts import OptOut
from gitboot.resolve.skew import MinimumVersion
from gitboot.resolve.source_locations import DocumentLocation, ServerLocation
from gitboot.resolve.written import Written

# What a commit takes grows with its files. Measured on two slow cores: 100,000 servers at once take about 120 s and
# 2.5 GiB; so the defaults leave room for a machine that is five times as slow.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 1024  # the most files that a commit may have are listed in half of it, before they are counted
_MEBIBYTES_A_FILE: Final = 0.064
_WALL: Final = 3  # times the processor's time: others want it too
_STARTING_S: Final = 10  # until a process has read its program from a slow disk


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What one commit may take; None: what grows with its files."""

    seconds: int | None = None  # of the processor
    mebibytes: int | None = None  # besides what the process has already
    workers: int | None = None  # processes at once for one of which all is looked at; None: one a processor

    def processor_s(self, files: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * files

    def wall_s(self, files: int) -> float:
        return _STARTING_S + _WALL * self.processor_s(files)

    def bound(self, spent: Spent, files: int) -> None:
        """Hold this process to what a commit of so many files may take besides ``spent``."""
        spent.limit(memory=self.memory(files), processor_s=self.processor_s(files))

    def memory(self, files: int) -> int:
        """In bytes."""
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * files
        return int(mebibytes * 2**20)


def exceeded(what: str) -> Problem:
    """The problem of a commit that took more than it may."""
    code = Code.LIMITS
    return Problem(path=".", line=1, column=1, code=code, message=what, hint=code.hint)


class Question(msgspec.Struct, frozen=True):
    """What does ``revision`` say, and what does it change against ``base``? None: there is nothing before it."""

    revision: str
    base: str | None
    allowance: Allowance
    site: str | None = None  # of whose servers alone is said anything; None: of all
    stores_results: bool = False  # whether the instance has a cache


class ResultKind(StrEnum):
    """The kinds of results that a cache keeps for those who evaluate commits and for commands.

    `gitboot.audit.lineage` describes those of a history, and `gitboot.assets.verifying` those of artifacts.
    """

    PARSED = "parsed"  # blob id -> the Server documents of a file that has no others
    DECIDED = "decided"  # content key -> `gitboot.evaluator.cache.DecidedRow`
    HISTORY_PROBLEM = "history-problem"
    HISTORY_CHANGED = "history-changed"
    HISTORY_EFFECT = "history-effect"
    ARTIFACT = "artifact"


EVALUATED: Final = (ResultKind.PARSED, ResultKind.DECIDED)  # the kinds of results that an evaluation finds


MAX_KEYS: Final = 1000  # of one `Wanted`


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """Which of these results does the cache have?"""

    kind: ResultKind
    keys: tuple[bytes, ...]


class Known(msgspec.Struct, frozen=True):
    """The results that the cache has."""

    values: dict[bytes, bytes]


class NewResults(msgspec.Struct, frozen=True, tag=True):
    """Results of the commit that the cache lacks."""

    kind: ResultKind
    values: dict[bytes, bytes]


class Begun(msgspec.Struct, frozen=True, tag=True):
    """gitboot evaluates a commit of so many files: its limits grow with them.

    None: gitboot counts the files now, and the limits start anew.
    """

    files: int | None


class Counted(msgspec.Struct, frozen=True, tag=True):
    """So many of its files have been read so far."""

    files: int


class ServerPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a commit says of one server, where that is not what the base says; None: the same."""

    name: str
    decision: bytes | None  # a Decision
    machine: Machine | None
    network: bytes | None  # a Host
    labels: dict[str, str] | None
    written: Written | None = None  # only if the page is published


class ServerParts(msgspec.Struct, frozen=True, tag=True):
    """Some of the servers that are others, in the order of their names."""

    servers: tuple[ServerPart, ...]


class FleetPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit says besides its servers."""

    fleet: FleetSpec
    base_url: str
    outputs: tuple[Output, ...]
    evidence: Evidence
    sites: dict[str, str]
    unknown: dict[Architecture, Boot] | None
    unknown_not_found: bool
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]
    opt_outs: tuple[OptOut, ...]
    minimum_versions: dict[str, MinimumVersion]
    shown: bytes | None  # what the page shows of streams and windows, as JSON; None: it is not published
    site: str | None  # of whose servers alone is said anything; None: of all


def fleet_part(
    fleet: FleetSpec,
    decisions: Decisions,
    opt_outs: tuple[OptOut, ...],
    minimum_versions: dict[str, MinimumVersion],
    shown: bytes | None,
    site: str | None,
) -> FleetPart:
    return FleetPart(
        fleet=fleet,
        base_url=decisions.base_url,
        outputs=tuple(sorted(decisions.outputs)),
        evidence=decisions.evidence,
        sites=dict(decisions.sites),
        unknown=dict(decisions.unknown) if decisions.unknown is not None else None,
        unknown_not_found=decisions.unknown_not_found,
        warnings=decisions.warnings,
        dated=decisions.dated,
        opt_outs=opt_outs,
        minimum_versions=minimum_versions,
        shown=shown,
        site=site,
    )


class CommitEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a commit that holds together."""

    extent: Extent
    fleetwide: FleetPart | None  # None: the base's
    come: tuple[str, ...]  # servers of machines that the base does not have
    moves: Moves  # between the site that is asked for and the others, where it is asked for one
    gone: tuple[str, ...]  # servers
    gone_machines: tuple[SystemUuid, ...]  # that no server has any more
    sites: dict[str, str]  # by server, likewise
    gone_sites: tuple[str, ...]  # servers that no site selects any more
    locations: dict[str, ServerLocation]  # by server, likewise; only if the page is published
    documents: dict[str, DocumentLocation]  # by document of another kind, likewise
    gone_documents: tuple[str, ...]
    no_site: Problem | None = None  # that the Fleet does not have the site that is asked for


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A commit that does not hold together."""

    problems: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]
    fleet: FleetSpec | None = None  # what that says anyway; None: it is not well formed


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """The clone could not be read."""

    message: str
    is_corrupt: bool


Answer = Begun | Counted | Wanted | ServerParts | CommitEnd | Refused | Unreadable | NewResults

answer: Final[Callable[[bytes], Answer]] = decoder(Answer)
question: Final[Callable[[bytes], Question]] = decoder(Question)
known: Final[Callable[[bytes], Known]] = decoder(Known)
decision: Final[Callable[[bytes], Decision]] = decoder(Decision)
network: Final[Callable[[bytes], Host]] = decoder(Host)


def bytes_of(said: Decision) -> bytes:
    """Return the bytes of a decision with its digest, for `decision`."""
    return encode(said.digested())


def verified_decision(data: bytes) -> Decision:
    """Return a decision from an evaluator. Raises ValueError if its digest is not that of its content."""
    found = decision(data)
    if found.digest != digest(found.facts()):
        raise ValueError(f"the decision of {found.server} has another digest than its content")
    return found
