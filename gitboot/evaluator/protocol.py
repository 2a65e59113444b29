"""The frames that an instance and its evaluator process exchange.

An instance sends a `Question`. The evaluator sends `EvaluationBegun` twice for the commit. If the base is not in
memory, the evaluator first sends this frame twice for the base. Then the evaluator sends any number of `FilesRead`,
`ServerParts` and `NewResults` frames, and ends with one `CommitEnd`. It may instead end with `RejectedCommit` or
`UnreadableClone` at any time. Before the first `ServerParts`, it may send `CacheLookup`, to which the instance replies
with `CacheHits`. Both ends run the same program, so frames carry no version.
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

# The limits grow with a commit's number of files. On two slow cores, the first evaluation of 100,000 servers takes
# about 120 s and 2.5 GiB, so the defaults suffice even for a machine that is five times slower.
_SECONDS: Final = 60
_SECONDS_A_FILE: Final = 0.006
_MEBIBYTES: Final = 1024  # half of this is enough to list the maximum number of files
_MEBIBYTES_A_FILE: Final = 0.064
_WALL: Final = 3  # multiple of the processor time, because other processes use the processors too
_STARTING_S: Final = 10  # allowance for loading the program from a slow disk


class EvaluationLimits(Struct, frozen=True, kw_only=True):
    """Resource limits for the evaluation of one commit.

    The defaults for ``seconds`` and ``mebibytes`` grow with the number of files.
    """

    seconds: int | None = None  # seconds of processor time
    mebibytes: int | None = None  # memory in addition to the current memory of the process
    workers: int | None = None  # worker processes if many results are missing; None: one per processor

    def processor_s(self, files: int) -> float:
        return self.seconds if self.seconds is not None else _SECONDS + _SECONDS_A_FILE * files

    def wall_s(self, files: int) -> float:
        return _STARTING_S + _WALL * self.processor_s(files)

    def set_limits(self, spent: ProcessUsage, files: int) -> None:
        """Limit this process for a commit with this number of files. The limits apply to usage beyond ``spent``."""
        spent.limit(memory=self.memory_bytes(files), processor_s=self.processor_s(files))

    def memory_bytes(self, files: int) -> int:
        mebibytes = self.mebibytes if self.mebibytes is not None else _MEBIBYTES + _MEBIBYTES_A_FILE * files
        return int(mebibytes * 2**20)


def build_limit_problem(message: str) -> Problem:
    return Code.LIMITS.build_problem(message)


class Question(msgspec.Struct, frozen=True):
    """A request to evaluate ``revision`` and to compare it with ``base``, if any."""

    revision: str
    base: str | None
    limits: EvaluationLimits
    site: str | None = None  # report only the servers at this site; None: all servers
    stores_results: bool = False  # whether the instance has a cache


class ResultKind(StrEnum):
    """The kinds of results in a cache.

    The results of a history are described in `gitboot.evaluator.decision_history`, and those of artifact checks in
    `gitboot.artifacts.availability`.
    """

    PARSED = "parsed"  # blob id -> the documents of a file that contains only Server documents
    DECIDED = "decided"  # content key -> `gitboot.evaluator.cache.DecidedRow`
    HISTORY_PROBLEM = "history-problem"
    HISTORY_CHANGED = "history-changed"
    HISTORY_EFFECT = "history-effect"
    ARTIFACT = "artifact"


EVALUATION_KINDS: Final = (ResultKind.PARSED, ResultKind.DECIDED)


MAX_KEYS: Final = 1000  # keys in one `CacheLookup`


class CacheLookup(msgspec.Struct, frozen=True, tag=True):
    """A request for cached results by their keys."""

    kind: ResultKind
    keys: tuple[bytes, ...]


class CacheHits(msgspec.Struct, frozen=True):
    values: dict[bytes, bytes]


class NewResults(msgspec.Struct, frozen=True, tag=True):
    """Results of an evaluation that are not in the cache yet."""

    kind: ResultKind
    values: dict[bytes, bytes]


class EvaluationBegun(msgspec.Struct, frozen=True, tag=True):
    """The evaluation of a commit with this number of files has begun, and its limits are set.

    If the number is None, the process resets its limits and starts to list the files.
    """

    files: int | None


class FilesRead(msgspec.Struct, frozen=True, tag=True):
    """The number of files that the process has read so far."""

    files: int


class ServerPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The parts of one server that differ from the base. None means that the part is unchanged."""

    name: str
    decision: bytes | None  # an encoded Decision
    machine: Machine | None
    network: bytes | None  # an encoded Host
    labels: dict[str, str] | None
    written: FieldSources | None = None  # set only if pages are published


class ServerParts(msgspec.Struct, frozen=True, tag=True):
    """Some of the servers that differ from the base, sorted by name."""

    servers: tuple[ServerPart, ...]


class CommitEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last frame of the report on a valid commit. The mappings contain only entries that differ from the base."""

    extent: Extent
    fleetwide: Commit | None  # the commit without its servers; None: unchanged since the base
    new_servers: tuple[str, ...]  # names of servers whose machines are not in the base
    moves: Moves  # between the question's site and other sites
    removed_servers: tuple[str, ...]  # names
    removed_machines: tuple[SystemUuid, ...]
    sites: dict[str, str]  # by server
    removed_sites: tuple[str, ...]  # servers that no longer belong to a site
    locations: dict[str, ServerLocation]  # by server; only if pages are published
    documents: dict[str, DocumentLocation]  # by document other than Server; only if pages are published
    removed_documents: tuple[str, ...]
    no_site: Problem | None = None  # set if the Fleet does not define the question's site


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
    """Encode a decision together with its digest."""
    return encode(value.with_digest())


def decode_verified_decision(data: bytes) -> Decision:
    """Decode a decision from an evaluator. Raises ValueError if its digest does not match its content."""
    found = decode_decision(data)
    if found.digest != compute_digest(to_json_value(found)):
        raise ValueError(f"the digest of the decision of {found.server} does not match its content")
    return found
