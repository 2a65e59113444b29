"""The frames that an instance and its evaluator process exchange.

An instance sends `Question`. The evaluator sends `EvaluationBegun` twice for the commit. If the base is not in memory,
the evaluator first sends this frame twice for the base. Then it sends any number of `FilesRead`, `ServerParts` and
`NewResults`, and one `CommitEnd`. It may send `RejectedCommit` or `UnreadableClone` at any time. Before the first part,
it may send `CacheLookup`, which the instance answers with `CacheHits`. Both ends are the same program, so frames have
no version.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from gitboot.child_processes import ProcessUsage, encode
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.identities import Machine, Moves
from gitboot.jsonio import build_decoder, compute_digest, to_json_value
from gitboot.model.fleet import FleetSpec
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, DatedProblem, Problem
from gitboot.resolve.explanation import DocumentLocation, ServerLocation
from gitboot.resolve.server_decision import Decision, FieldSources, Host
from gitboot.review.guards import Extent

# The limits of a commit grow with its files. On two slow cores, a first evaluation of 100,000 servers takes about 120 s
# and 2.5 GiB, so the defaults fit a machine that is five times as slow.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 1024  # half of this is enough to list as many files as a commit may have
_MEBIBYTES_A_FILE: Final = 0.064
_WALL: Final = 3  # times the processor time, because other processes use the processor too
_STARTING_S: Final = 10  # for a process that reads its program from a slow disk


class EvaluationLimits(Struct, frozen=True, kw_only=True):
    """The limits of the evaluation of one commit.

    A limit that is None has a default that grows with the number of files.
    """

    seconds: int | None = None  # seconds of processor time
    mebibytes: int | None = None  # memory in addition to the current memory of the process
    workers: int | None = None  # processes for a commit with many unknown results; None: one for each processor

    def processor_s(self, files: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * files

    def wall_s(self, files: int) -> float:
        return _STARTING_S + _WALL * self.processor_s(files)

    def set_limits(self, spent: ProcessUsage, files: int) -> None:
        """Set the limits of this process for a commit with this number of files, in addition to ``spent``."""
        spent.limit(memory=self.memory_bytes(files), processor_s=self.processor_s(files))

    def memory_bytes(self, files: int) -> int:
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * files
        return int(mebibytes * 2**20)


def build_limit_problem(message: str) -> Problem:
    return Code.LIMITS.build_problem(message)


class Question(msgspec.Struct, frozen=True):
    """A request to evaluate ``revision`` and to compare it with ``base``. ``base`` is None if there is no base."""

    revision: str
    base: str | None
    limits: EvaluationLimits
    site: str | None = None  # the answer contains only servers of this site; None: all servers
    stores_results: bool = False  # whether the instance has a cache


class ResultKind(StrEnum):
    """The kinds of results that a cache stores.

    `gitboot.evaluator.decision_history` describes the results of a history, and `gitboot.artifacts.availability` those
    of artifacts.
    """

    PARSED = "parsed"  # blob id -> the documents of a file that has only Server documents
    DECIDED = "decided"  # content key -> `gitboot.evaluator.cache.DecidedRow`
    HISTORY_PROBLEM = "history-problem"
    HISTORY_CHANGED = "history-changed"
    HISTORY_EFFECT = "history-effect"
    ARTIFACT = "artifact"


EVALUATION_KINDS: Final = (ResultKind.PARSED, ResultKind.DECIDED)


MAX_KEYS: Final = 1000  # the number of keys in one `Wanted`


class CacheLookup(msgspec.Struct, frozen=True, tag=True):
    """A lookup of keys in the cache."""

    kind: ResultKind
    keys: tuple[bytes, ...]


class CacheHits(msgspec.Struct, frozen=True):
    values: dict[bytes, bytes]


class NewResults(msgspec.Struct, frozen=True, tag=True):
    """Results of the commit that the cache lacks."""

    kind: ResultKind
    values: dict[bytes, bytes]


class EvaluationBegun(msgspec.Struct, frozen=True, tag=True):
    """The evaluation of a commit with this number of files has begun, and its limits are set.

    If the number is None, the process starts to list the files and resets the limits.
    """

    files: int | None


class FilesRead(msgspec.Struct, frozen=True, tag=True):
    """The number of files that the process has read so far."""

    files: int


class ServerPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The parts of one server that differ from the base. A part that is None equals the part in the base."""

    name: str
    decision: bytes | None  # a Decision
    machine: Machine | None
    network: bytes | None  # a Host
    labels: dict[str, str] | None
    written: FieldSources | None = None  # only if the page is published


class ServerParts(msgspec.Struct, frozen=True, tag=True):
    """Some of the servers that differ from the base, sorted by name."""

    servers: tuple[ServerPart, ...]


class CommitEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of the report of a valid commit. The mappings contain only entries that differ from the base."""

    extent: Extent
    fleetwide: Commit | None  # without servers; None: the same as in the base
    new_servers: tuple[str, ...]  # servers whose machines are not in the base
    moves: Moves  # between the site of the question and the other sites
    removed_servers: tuple[str, ...]  # servers
    removed_machines: tuple[SystemUuid, ...]
    sites: dict[str, str]  # by server
    removed_sites: tuple[str, ...]  # servers that no site selects any more
    locations: dict[str, ServerLocation]  # by server; only if the page is published
    documents: dict[str, DocumentLocation]  # by document of another kind; only if the page is published
    removed_documents: tuple[str, ...]
    no_site: Problem | None = None  # if the Fleet does not have the site of the question


class RejectedCommit(msgspec.Struct, frozen=True, tag=True):
    """The problems of an invalid commit."""

    problems: tuple[Problem, ...]
    dated_problems: tuple[DatedProblem, ...]
    fleet: FleetSpec | None = None  # None: the Fleet document is invalid too


class UnreadableClone(msgspec.Struct, frozen=True, tag=True):
    message: str
    is_corrupt: bool


Answer = (
    EvaluationBegun | FilesRead | CacheLookup | ServerParts | CommitEnd | RejectedCommit | UnreadableClone | NewResults
)

decode_answer: Final[Callable[[bytes], Answer]] = build_decoder(Answer)
decode_question: Final[Callable[[bytes], Question]] = build_decoder(Question)
decode_hits: Final[Callable[[bytes], CacheHits]] = build_decoder(CacheHits)
decode_decision: Final[Callable[[bytes], Decision]] = build_decoder(Decision)
decode_host: Final[Callable[[bytes], Host]] = build_decoder(Host)


def encode_decision(value: Decision) -> bytes:
    """Return the bytes of a decision with its digest, for `decision`."""
    return encode(value.with_digest())


def decode_verified_decision(data: bytes) -> Decision:
    """Return a decision from an evaluator. Raises ValueError if its digest does not match its content."""
    found = decode_decision(data)
    if found.digest != compute_digest(to_json_value(found)):
        raise ValueError(f"the digest of the decision of {found.server} does not match its content")
    return found
