"""Instance status: a summary of the state that an instance reports, and the age of the summary."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from gitboot.fleet.revision import Signer
from gitboot.jsonio import Digest, format_instant, to_json_value
from gitboot.problems import Problem
from gitboot.status.conditions import STALE_S, STATUS_CURRENT, Condition, find_remedy
from gitboot.text import format_age

WRITTEN_EVERY_S: Final = 60.0  # a running instance writes its status at least this often


class Endpoints(Struct, frozen=True, kw_only=True):
    """The endpoint processes that an instance started."""

    expected: int
    alive: int  # number of processes that respond
    restarts: int  # number of restarted processes since the instance started
    hung: int = 0  # number of processes that do not respond
    unread: tuple[str, ...] = ()  # unusable credential files, each as a text with the option, the file and the cause
    certificate: str | None = None  # why the certificate for operators or for machines is unusable


class ForgeReport(Struct, frozen=True, kw_only=True):
    """The last report to the forge, and the number of ledger changes that the forge has recorded."""

    commit: str | None = None  # the last reported commit
    report: str = ""  # the text of the last report
    failure: tuple[str, str] | None = None  # name and message of the error at the last try
    has_asked: bool = True  # whether gitboot has tried to read the ledger's change number from the forge
    known_changes: int | None = (
        None  # the ledger's change number at the forge; None: the forge has no number, or did not respond
    )
    claimed_changes: int | None = None  # the ledger's change number in commit statuses whose signature is not valid


class ThreadFailure(NamedTuple):
    """A thread that died from an error and, since its restart, has run for less than a minute."""

    thread: str
    message: str  # the error on one line
    deaths: int  # how often the thread has died since the instance started


class TargetStatus(Struct, frozen=True, kw_only=True):
    """The state of a target, which is a copy of OUTPUT that gitboot writes."""

    name: str
    base_url: str | None = None  # the URL that machines use, if known
    commit: str | None = None  # the commit whose files are all on the target, if any
    behind_since: datetime | None = None  # since when the target is not up to date; None: it is up to date
    overdue_since: datetime | None = None  # time of the first transition that the target may have missed
    failure: tuple[str, str] | None = None  # the error of the last try: name, message
    # Number of servers whose one-time boot is not on the target, because nothing would record the fetch.
    withheld: int = 0


class SignedListState(Struct, frozen=True, kw_only=True):
    """The state of the signed list in OUTPUT."""

    signed: bool = False  # whether a key signs the list
    expires: datetime | None = None  # when the list expires; None: this process has not written a list
    root_expires: datetime | None = None  # when the newest root metadata expires; None: unsigned, or unknown
    failure: tuple[str, str] | None = None  # reason and message of the error if the list could not be written
    key_folder: str | None = None  # the folder with the keys that sign the list; None: unsigned


class HeldCommit(Struct, frozen=True, kw_only=True):
    """A commit that a guard holds until a person acknowledges or approves it."""

    commit: str
    digest: Digest  # the digest of its changes
    guards: tuple[str, ...]
    reasons: tuple[str, ...] = ()  # how the commit exceeds each limit that holds it
    lines: tuple[str, ...] = ()  # the lines that a commit message needs to acknowledge this commit
    # Servers that the commit may reinstall, because their records do not rule out a reinstallation.
    reinstalls: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "guards": list(self.guards),
            "reasons": list(self.reasons),
            "lines": list(self.lines),
            "reinstalls": list(self.reinstalls),
        }


class WithheldServer(Struct, frozen=True, kw_only=True):
    """A server whose current install boot gitboot withholds because of newer commits."""

    server: str
    by: tuple[str, ...]  # the newer commits that do not offer the boot, sorted
    boots: str | None  # the image that the server boots instead; None: the server boots its disk
    why: str  # why the server boots this image or its disk


class ChangedArea(Struct, frozen=True, kw_only=True):
    """The changes that an accepted commit makes to a group of servers."""

    commit: str
    label: str  # the group, such as site=fra1; "": the whole fleet
    size: int
    changed: int
    less: int  # number of servers whose change offers no new boot
    removed: int
    added: int
    reinstalled: int
    subject: str = ""  # the first line of the commit's message


class PassedCommit(Struct, frozen=True, kw_only=True):
    """A commit between the accepted commit and the newest commit."""

    commit: str
    says: str  # such as accepted, held or invalid


class Acknowledgement(Struct, frozen=True, kw_only=True):
    """An acknowledgement that let a commit pass a guard."""

    commit: str
    guard: str
    by: str  # the person who acknowledged the finding


class Status(Struct, frozen=True, kw_only=True):
    """A summary of an instance."""

    ledger: str | None = None  # the identity of the ledger; None: `gitboot serve` wrote the status
    attempted: str | None = None  # the newest commit that gitboot judged
    problems: tuple[Problem, ...] = ()  # the problems of the newest commit
    held: HeldCommit | None = None  # the newest commit, if a guard holds it
    withheld: tuple[WithheldServer, ...] = ()  # servers that lost their install boot of now, by name
    # The commits between the accepted and the newest commit, oldest first.
    passed_commits: tuple[PassedCommit, ...] = ()
    accepted: str | None = None  # the accepted commit, with which the next commit is compared
    committed_at: datetime | None = None  # the committer time of the accepted commit
    signer: Signer | None = None  # the owner of the trusted key that signed the accepted commit
    acknowledged: tuple[Acknowledgement, ...] = ()  # acknowledgements that were used to accept the commit
    changed: tuple[ChangedArea, ...] = ()  # the changes in the commits that were accepted last
    applied: str | None = None  # the commit whose files are published
    fetch_began: datetime | None = None  # when the last completed fetch began
    fetched: str | None = None  # the last fetched commit
    planned_at: datetime | None = None
    next_transition: datetime | None = None
    phases: Mapping[str, int] = field(default_factory=dict)  # phase -> number of servers
    records: Mapping[str, int] = field(default_factory=dict)  # Provisioned, Pending, Unknown -> number of servers
    installs: Mapping[str, int] = field(default_factory=dict)  # Now, Later -> number of servers with an install boot
    # Installs, All (the stopped boots) -> number of servers whose boot of now a stop holds back
    stopped: Mapping[str, int] = field(default_factory=dict)
    # Attempted, Started, Made -> number of servers in the window of a maintenance.
    runs: Mapping[str, int] = field(default_factory=dict)
    installing: Mapping[str, int] = field(default_factory=dict)  # Installing/Started … -> number of servers
    installations: tuple[Mapping[str, Any], ...] = ()  # these servers, first the server whose last step is the oldest
    drift: Mapping[str, int] = field(default_factory=dict)  # ImageDrift, PoolDrift -> number of servers
    bmcs: Mapping[str, int] = field(default_factory=dict)  # outcome of the last task -> number of BMCs
    below_minimum_version: Mapping[str, int] = field(default_factory=dict)  # stream -> number of servers
    secret_fetches: tuple[Mapping[str, Any], ...] = ()  # one item for each server
    stages: Mapping[str, Any] = field(default_factory=dict)  # stage -> histogram of its durations
    conditions: tuple[Condition, ...] = ()

    def condition(self, type: str) -> bool:
        return any(condition.status for condition in self.conditions if condition.type == type)

    def facts(self) -> dict[str, Any]:
        return {
            "apiVersion": "gitboot.dev/v1alpha1",
            "ledger": self.ledger,
            "attempted": {
                "commit": self.attempted,
                "problems": to_json_value(self.problems),
                "held": self.held.facts() if self.held is not None else None,
                "withheld": to_json_value(self.withheld),
            },
            "accepted": {
                "commit": self.accepted,
                "committedAt": format_instant(self.committed_at) if self.committed_at else None,
                "signer": to_json_value(self.signer),
                "acknowledged": to_json_value(self.acknowledged),
                "changed": to_json_value(self.changed),
            },
            "applied": {"commit": self.applied},
            "fetched": {
                "commit": self.fetched,
                "began": format_instant(self.fetch_began) if self.fetch_began else None,
            },
            "plannedAt": format_instant(self.planned_at) if self.planned_at else None,
            "nextTransition": format_instant(self.next_transition) if self.next_transition else None,
            "phases": dict(sorted(self.phases.items())),
            "records": dict(sorted(self.records.items())),
            "installs": dict(sorted(self.installs.items())),
            "stopped": dict(sorted(self.stopped.items())),
            "runs": dict(sorted(self.runs.items())),
            "installing": dict(sorted(self.installing.items())),
            "installations": list(self.installations),
            "drift": dict(sorted(self.drift.items())),
            "bmcs": dict(sorted(self.bmcs.items())),
            "belowMinimumVersion": dict(sorted(self.below_minimum_version.items())),
            "secretFetches": list(self.secret_fetches),
            "stages": dict(sorted(self.stages.items())),
            "conditions": to_json_value(self.conditions),
        }


def add_age(status: Mapping[str, Any], age_s: float | None, written_at: datetime | None) -> dict[str, Any]:
    """Return a status with its age, and with a false condition if the status is stale.

    Everything in a stale status may be outdated, so the false condition is necessary even if all other conditions are
    true. ``written_at`` is when the status was written, and ``age_s`` is its age in seconds. Both parameters are None
    if no instance has written a status.
    """
    conditions = [condition for condition in status["conditions"] if condition["type"] != STATUS_CURRENT]
    if age_s is not None and age_s > STALE_S and written_at is not None:
        conditions.append(_build_stale_condition(written_at, age_s))
        conditions.sort(key=lambda condition: str(condition["type"]))
    return {**status, "ageSeconds": None if age_s is None else int(age_s), "conditions": conditions}


def parse_written_at(status: Mapping[str, Any]) -> datetime | None:
    """Return the time at which an instance wrote a status, or None if no instance wrote the status.

    The time comes from the clock of the instance's host.
    """
    try:
        return datetime.fromisoformat(status["clock"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        return None


def _build_stale_condition(written_at: datetime, age_s: float) -> dict[str, Any]:
    return {
        "type": STATUS_CURRENT,
        "status": False,
        "reason": "Stale",
        "message": (
            f"gitboot wrote this status {format_age(age_s)} ago, at {format_instant(written_at)}. gitboot has stopped "
            "or hung, or cannot write its status. All values may be out of date"
        ),
        "lastTransitionTime": format_instant(written_at + timedelta(seconds=STALE_S)),
        "remedy": find_remedy(STATUS_CURRENT, "Stale"),
    }
