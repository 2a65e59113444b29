"""Protocol between an instance and its evaluator process: the frames, and the result of an evaluation.

An instance sends a `Question`. The evaluator sends `EvaluationStart` twice for the commit. If the base is not in
memory, the evaluator first sends this frame twice for the base. Then the evaluator sends any number of `FilesRead`,
`ServerParts` and `NewResults` frames, and ends with one `CommitEnd`. The evaluator may instead end with
`RejectedCommit` or `UnreadableClone` at any time. Before the first `ServerParts`, the evaluator may send `CacheLookup`,
to which the instance replies with `CacheHits`. Both processes run the same version of gitboot, so frames do not contain
a version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct, structs

from gitboot.child_processes import ProcessUsage, encode
from gitboot.errors import FleetOrders
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.identities import NO_MOVES, Machine, Moves, list_machines
from gitboot.fleet.revision import Revision
from gitboot.jsonio import build_decoder, compute_digest, to_json_value
from gitboot.model.fleet import FleetSpec
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, DatedProblem, Problem
from gitboot.resolve.explanation import DocumentLocation, ServerLocation, SourceLocations
from gitboot.resolve.fleet_decisions import find_server_sites
from gitboot.resolve.policy_selection import MinimumVersion, OptOut, find_minimum_versions, list_opt_outs
from gitboot.resolve.server_decision import Decision, Decisions, FieldSources, Host, WithheldBoot
from gitboot.review.guards import Extent

# gitboot looks up machines by name if at most one server in this many is wanted, because a full scan is slower
_SCAN_RATIO: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The parts of a valid commit that an instance needs, which include decisions and machines, but no files."""

    revision: Revision
    fleet: FleetSpec
    decisions: Decisions
    machines: Mapping[SystemUuid, Machine]  # the machines by UUID, sorted
    sites: Mapping[str, str]  # the site of each server that has a site
    labels: Mapping[str, Mapping[str, str]]  # by server
    opt_outs: tuple[OptOut, ...]
    minimum_versions: Mapping[str, MinimumVersion]  # the minimum version for each profile
    site: str | None = None  # the site to which this object is restricted; None: the object contains all servers
    written: Mapping[str, FieldSources] = field(default_factory=dict)  # by server; empty if pages are not published
    locations: SourceLocations = field(default_factory=SourceLocations)  # empty if pages are not published
    shown: bytes | None = None  # the streams and windows on the published page, as JSON
    # The install boots that a newer commit removes, by UUID (see `gitboot.controller.records.install_boots`).
    withheld: Mapping[SystemUuid, tuple[WithheldBoot, ...]] = field(default_factory=dict)
    base: Revision | None = field(default=None, compare=False)
    # The names of the servers that differ from the base, including removed servers.
    touched: frozenset[str] = field(default=frozenset(), compare=False)

    def allows_ledger(self, ledger: str) -> bool:
        """Return whether the Fleet allows the instance with this ledger to serve boots and to change BMCs."""
        return self.ledger in (None, ledger)

    @property
    def ledger(self) -> str | None:
        """The ledger that the Fleet names. Only the instance with this ledger may act.

        If the ledger is None, any instance may act, but no instance may change BMCs.
        """
        return self.fleet.find_ledger(self.site)

    def select_site(self, site: str | None) -> Commit:
        """Return the commit with only the servers of one site. If ``site`` is None, return the commit unchanged."""
        if site is None:
            return self
        names = {name for name, server_site in self.sites.items() if server_site == site}
        return replace(
            self,
            decisions=structs.replace(
                self.decisions, servers={name: each for name, each in self.decisions.servers.items() if name in names}
            ),
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
        if len(names) * _SCAN_RATIO > len(self.machines):
            wanted = set(names)
            found = [each for each in self.machines.values() if each.name in wanted]
        else:
            servers = self.decisions.servers
            found = [self.machines[servers[name].uuid] for name in names if name in servers]
        return sorted(found, key=lambda machine: machine.name)

    def select_server_names(self, machines: Iterable[SystemUuid]) -> frozenset[str]:
        return frozenset(self.machines[uuid].name for uuid in machines if uuid in self.machines)

    @property
    def orders(self) -> FleetOrders:
        """The orders in the Fleet document that an instance obeys even before it accepts the commit."""
        return self.fleet.find_orders(self.site)


class EvaluationResult(Struct, frozen=True, kw_only=True):
    """An evaluated commit, and the differences between this commit and its base."""

    commit: Commit
    extent: Extent
    new_names: tuple[str, ...]  # names of servers whose machines are not in the base
    moves: Moves = NO_MOVES  # the moves of machines between this instance's site and other sites
    no_site: Problem | None = None  # set if the Fleet does not define this instance's site

    @property
    def new_decisions(self) -> Iterator[Decision]:
        """The decisions for the servers that are not in the base. Without a base, all servers are new."""
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


# The limits grow with a commit's number of files. On two slow cores, the first evaluation of 100,000 servers takes
# about 120 s and 2.5 GiB, so the defaults suffice even for a machine that is five times slower.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 1024  # in MiB; half of this is enough to list the maximum number of files
_MEBIBYTES_A_FILE: Final = 0.064
# the limit of the elapsed time is this many times the limit of the processor time, because other processes also run
_WALL_FACTOR: Final = 3
_START_S: Final = 10  # additional seconds for loading the program from a slow disk


class EvaluationLimits(Struct, frozen=True, kw_only=True):
    """The resource limits for evaluating one commit.

    The defaults for ``seconds`` and ``mebibytes`` grow with the number of files.
    """

    seconds: int | None = None  # seconds of processor time
    mebibytes: int | None = None  # the memory that the process may use in addition to its current memory
    # the number of worker processes if many results are missing; None: one for each processor
    workers: int | None = None

    def processor_s(self, file_count: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * file_count

    def wall_s(self, file_count: int) -> float:
        return _START_S + _WALL_FACTOR * self.processor_s(file_count)

    def set_limits(self, usage_before: ProcessUsage, file_count: int) -> None:
        """Set this process's resource limits for a commit with this number of files.

        The usage recorded in ``usage_before`` does not count towards the limits.
        """
        usage_before.limit(memory_bytes=self.memory_bytes(file_count), processor_s=self.processor_s(file_count))

    def memory_bytes(self, file_count: int) -> int:
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * file_count
        return int(mebibytes * 2**20)


def build_limit_problem(message: str) -> Problem:
    return Code.LIMITS.build_problem(message)


class Question(msgspec.Struct, frozen=True):
    """A request to evaluate the commit ``revision`` and, if there is a ``base``, to compare the two commits."""

    revision: str
    base: str | None
    limits: EvaluationLimits
    site: str | None = None  # the site whose servers the evaluator reports; None: all servers
    stores_results: bool = False  # whether the instance has a cache


class ResultKind(StrEnum):
    """The kinds of results in a cache.

    `gitboot.evaluator.decision_history` describes the results of a history, and `gitboot.artifacts.availability`
    describes the results of artifact checks.
    """

    PARSED = "parsed"  # maps a blob id to the documents of a file that contains only Server documents
    DECIDED = "decided"  # maps a content key to a `gitboot.evaluator.cache.DecidedRow`
    HISTORY_PROBLEM = "history-problem"
    HISTORY_CHANGED = "history-changed"
    HISTORY_EFFECT = "history-effect"
    ARTIFACT = "artifact"


EVALUATION_KINDS: Final = (ResultKind.PARSED, ResultKind.DECIDED)


MAX_KEYS: Final = 1000  # the maximum number of keys in one `CacheLookup`


class CacheLookup(msgspec.Struct, frozen=True, tag=True):
    """A request for the cached results that have certain keys."""

    kind: ResultKind
    keys: tuple[bytes, ...]


class CacheHits(msgspec.Struct, frozen=True):
    values: dict[bytes, bytes]


class NewResults(msgspec.Struct, frozen=True, tag=True):
    """The new results of an evaluation, which are not in the cache yet."""

    kind: ResultKind
    values: dict[bytes, bytes]


class EvaluationStart(msgspec.Struct, frozen=True, tag=True):
    """A report that the evaluation of a commit with this number of files has begun.

    The process has set its resource limits.

    If the number is None, the process has reset its resource limits and is starting to list the files.
    """

    files: int | None


class FilesRead(msgspec.Struct, frozen=True, tag=True):
    """A progress report with the number of files that the process has read so far."""

    files: int


class ServerPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The parts of one server. A part is None if it is the same as in the base."""

    name: str
    decision: bytes | None  # an encoded Decision
    machine: Machine | None
    network: bytes | None  # an encoded Host
    labels: dict[str, str] | None
    written: FieldSources | None = None  # None if the fleet does not publish pages


class ServerParts(msgspec.Struct, frozen=True, tag=True):
    """Several servers that differ from the base, sorted by name, with the parts of each server."""

    servers: tuple[ServerPart, ...]


class CommitEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last frame of the report on a valid commit. The mappings contain only entries that differ from the base."""

    extent: Extent
    fleetwide: Commit | None  # the commit without servers; None: these values are the same as in the base
    new_servers: tuple[str, ...]  # names of servers whose machines are not in the base
    moves: Moves  # the moves of machines between the site in the question and other sites
    removed_servers: tuple[str, ...]  # names
    removed_machines: tuple[SystemUuid, ...]
    sites: dict[str, str]  # by server
    removed_sites: tuple[str, ...]  # the names of the servers that no longer belong to a site
    locations: dict[str, ServerLocation]  # the locations of servers; empty if the fleet does not publish pages
    # the locations of documents other than Server; empty if the fleet does not publish pages
    documents: dict[str, DocumentLocation]
    removed_documents: tuple[str, ...]
    no_site: Problem | None = None  # a problem if the Fleet does not define the site in the question


class RejectedCommit(msgspec.Struct, frozen=True, tag=True):
    """A report that the evaluator rejects the commit because the commit has problems."""

    problems: tuple[Problem, ...]
    dated_problems: tuple[DatedProblem, ...]
    fleet: FleetSpec | None = None  # the spec of the Fleet document; None: the Fleet document is invalid too


class UnreadableClone(msgspec.Struct, frozen=True, tag=True):
    message: str
    is_corrupt: bool


Answer = (
    EvaluationStart | FilesRead | CacheLookup | ServerParts | CommitEnd | RejectedCommit | UnreadableClone | NewResults
)

decode_answer: Final[Callable[[bytes], Answer]] = build_decoder(Answer)
decode_question: Final[Callable[[bytes], Question]] = build_decoder(Question)
decode_hits: Final[Callable[[bytes], CacheHits]] = build_decoder(CacheHits)
decode_decision: Final[Callable[[bytes], Decision]] = build_decoder(Decision)
decode_host: Final[Callable[[bytes], Host]] = build_decoder(Host)


def encode_decision(value: Decision) -> bytes:
    """Encode a decision together with its digest."""
    return encode(value.with_digest())


def decode_verified_decision(data: bytes) -> Decision:
    """Decode a decision that an evaluator has sent.

    Raises ValueError if the digest does not match the content of the decision.
    """
    found = decode_decision(data)
    if found.digest != compute_digest(to_json_value(found)):
        raise ValueError(f"the decision for {found.server} does not match its digest")
    return found
