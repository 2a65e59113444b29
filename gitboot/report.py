"""What a pass did and found, as values: what is answered, status, conditions, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gitboot.errors import Problem
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import Digest, format_instant
from gitboot.render.provisioned import is_report
from gitboot.render.tree import File, Files


class EntryOf(NamedTuple):
    """Whose boot a path is, or whose installer's report; a completed GET of it is an observation."""

    server: str
    digest: Digest  # of the plan


class Turn(NamedTuple):
    """What a path answers from an instant on."""

    at: datetime
    file: File | None  # None: 404
    entry: EntryOf | None = None  # whose boot a completed GET of it is evidence of, if of any


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """All that the endpoint answers from; replaced as a whole, so that all lookups change together."""

    files: Files  # by path below the output directory: boot/…, ops/…
    turns: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict)  # by path, in the order of their instants
    entries: Mapping[str, EntryOf] = field(default_factory=dict)  # by path, of those that boot from the network
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # plan summaries by server, sorted
    addresses: Mapping[str, str] = field(default_factory=dict)  # IP address -> server

    def turn(self, path: str, now: datetime) -> tuple[Turn | None, datetime | None]:
        """The turn that ``path`` has taken last by ``now``, if any, and the instant of its next."""
        last = None
        for turn in self.turns.get(path, ()):
            if now < turn.at:
                return last, turn.at
            last = turn
        return last, None

    def at(self, path: str, now: datetime) -> File | None:
        """What ``path`` answers at ``now``; None is a 404."""
        turn, _ = self.turn(path, now)
        return turn.file if turn is not None else self.files.get(path)

    def entry_at(self, path: str, now: datetime) -> EntryOf | None:
        """Whose boot a completed GET of ``path`` at ``now`` is evidence of, if of any."""
        turn, _ = self.turn(path, now)
        return turn.entry if turn is not None else self.entries.get(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One completed GET of an entry or of a report's path, seen by an endpoint or in a mirror's access log."""

    server: str  # "" where only the path is known
    path: str  # below the output directory
    client: str  # the address it was sent to
    at: datetime
    # Which version of the path was sent; an endpoint knows the plan, a mirror the file's own date:
    digest: Digest | None = None  # of the plan whose entry was sent
    modified: int | None = None  # when the file that was sent was published, in seconds since 1970

    def __post_init__(self) -> None:
        if (self.digest is None) == (self.modified is None):
            raise ValueError("an observation has either a plan's digest or a file's date")

    @property
    def evidence(self) -> Evidence:
        """What it is evidence of, as its path says: a fetched boot, or an installer's report."""
        return Evidence.REPORTED if is_report(self.path) else Evidence.FETCHED


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One thing that holds or not, as Kubernetes and Flux word conditions."""

    type: str  # Ready, SourceReady, Stalled …
    status: bool
    reason: str  # one word in CamelCase
    message: str
    since: datetime  # when the status last changed

    def facts(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "since": format_instant(self.since),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A commit that waits for an acknowledgement."""

    commit: str
    digest: Digest  # of what it changes
    guards: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """An instance at a glance."""

    ledger: str | None = None  # the identity of the instance's ledger; None: it only serves a tree
    attempted: str | None = None  # the commit that was tried last
    problems: tuple[Problem, ...] = ()  # of the attempted commit
    held: Held | None = None  # the attempted commit, where a guard holds it
    applied: str | None = None  # the commit that what is answered comes from
    planned_at: datetime | None = None
    next_transition: datetime | None = None
    phases: Mapping[str, int] = field(default_factory=dict)  # phase -> servers
    records: Mapping[str, int] = field(default_factory=dict)  # Met, NotMet, Unknown -> servers
    drift: Mapping[str, int] = field(default_factory=dict)  # ImageDrift, PoolDrift -> servers
    bmcs: Mapping[str, int] = field(default_factory=dict)  # outcome of the last job -> BMCs with something wanted
    conditions: tuple[Condition, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether this instance has planned and published since its start."""
        return self.planned_at is not None

    def condition(self, type: str) -> bool:
        """Whether a condition holds; one that nothing is known of does not."""
        return any(condition.status for condition in self.conditions if condition.type == type)

    def facts(self) -> dict[str, Any]:
        return {
            "apiVersion": "gitboot.dev/v1alpha1",
            "ledger": self.ledger,
            "attempted": {
                "commit": self.attempted,
                "problems": [problem.facts() for problem in self.problems],
                "held": {"digest": self.held.digest, "guards": list(self.held.guards)} if self.held else None,
            },
            "applied": {"commit": self.applied},
            "plannedAt": format_instant(self.planned_at) if self.planned_at else None,
            "nextTransition": format_instant(self.next_transition) if self.next_transition else None,
            "phases": dict(sorted(self.phases.items())),
            "records": dict(sorted(self.records.items())),
            "drift": dict(sorted(self.drift.items())),
            "bmcs": dict(sorted(self.bmcs.items())),
            "conditions": [condition.facts() for condition in self.conditions],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, for logs, `gitboot events` and the audit."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet … one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether a person should look
