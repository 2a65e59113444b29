"""State outside Git: provisioning records and their JSON format, and the orders and claims that stop boots."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zlib import crc32

from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.jsonio import OMITTED, UNLESS_DEFAULT, Digest, encode_canonical, format_instant, json_key, to_json_value
from gitboot.model.scalars import Malformed, SystemUuid, parse_digest, parse_uuid, quote_value, text

if TYPE_CHECKING:
    from gitboot.resolve.server_decision import Decision


FETCH_GRACE: Final = timedelta(seconds=60)  # how long a loader can fetch its boot again, for example to retry
CONSUMED_GRACE: Final = timedelta(minutes=30)  # how long gitboot waits for evidence after an override was consumed
SERVED_GRACE: Final = timedelta(minutes=30)  # how long an installation without a completion report is shown
DATA_GRACE: Final = timedelta(hours=2)  # how long a booted system can fetch its user data

# The evidence in a record: what showed that the server is installed
ADOPTED: Final = "Adopted"  # the server existed before its record; gitboot has not installed it
FETCHED: Final = "Fetched"  # a machine fetched the last file of its boot
CONSUMED: Final = "Consumed"  # the machine used its boot override
REPORTED: Final = "Reported"  # the installer
PROGRESS: Final = "Progress"  # the BMC
DECLARED: Final = "Declared"  # an annotation of the Server document
OPERATOR: Final = "Operator"
# With this evidence, a server already counts as provisioned when its installation starts, not when it is complete.
START_EVIDENCE: Final = frozenset({FETCHED, CONSUMED})
COMPLETION_EVIDENCE: Final = frozenset({REPORTED, PROGRESS, DECLARED, OPERATOR})

T = TypeVar("T")


class InstallStep(StrEnum):
    """The current step of the installation that a server's policy requires."""

    UNKNOWN = "Unknown"  # the server has no record
    PENDING = "Pending"
    ATTEMPTED = "Attempted"  # the boot was served
    STARTED = "Started"  # the booted system fetched its user data
    FAILED = "Failed"  # the installer reported a failure
    PROVISIONED = "Provisioned"

    @property
    def label(self) -> str:
        """The name of the step in messages. Ledgers and JSON still use the value Attempted of version 0.1.0."""
        return "Served" if self is InstallStep.ATTEMPTED else self.value


class StepEvidence(NamedTuple):
    """The evidence for an installation step: a fetch, or a consumed override."""

    at: datetime
    path: str  # the fetched file, relative to OUTPUT; "" for a consumed override
    client: str  # the IP address of the client

    def __str__(self) -> str:
        event = f"{self.client} fetched {self.path}" if self.path else "the server used its boot override"
        return f"{event} at {format_instant(self.at)}"


class Run(NamedTuple):
    """A consumed run of a maintenance, and the evidence for the run."""

    run: int
    at: datetime
    end: datetime | None = None  # the end of the window; None if there is no end or it is unknown
    given: StepEvidence | None = None  # None: recorded by an operator, or by a version without evidence
    started: StepEvidence | None = None  # the booted system fetched its user data
    disk_boot: StepEvidence | None = None  # the machine's first disk boot after the run


class Clearance(NamedTuple):
    """The answers from the approval URL and the drain URL for one maintenance of a server.

    An answer for another digest, for another run of the maintenance, or from another URL does not count.
    """

    approved: str | None = None  # the key of the approval that the URL gave
    drain: str | None = None  # the drain key of the run for which the server is, or was, drained
    drained_at: datetime | None = None  # when the drain URL answered 200; None: it has not
    until: datetime | None = None  # the end of the window; None: there is no drain

    def move_end(self, end: datetime | None, at: datetime) -> Clearance:
        """Return the clearance after a commit that may have moved the end of the window.

        If the window had already ended, the server may be in service again, so the drain no longer counts.
        """
        if self.until is None or self.until == end:
            return self
        return self._replace(until=end) if self.until > at else Clearance(approved=self.approved)


class UnknownServe(NamedTuple):
    """An endpoint's recorded intent to serve a boot, without a recorded outcome.

    An intent is not evidence, but the boot counts as consumed once `FETCH_GRACE` has passed since the intent. In a
    shared fetch log, the outcome `withheld` may precede its intent. The record then stores the outcome, so that the
    intent does not count when it arrives. The record stores only the newest withheld intent, by which gitboot
    recognizes older output trees.
    """

    intent: str  # an id; "" for a complete withheld intent; "more" for all intents that exceed the maximum
    key: str  # identifies the boot: a `boot_key`, or the key of a run
    seen: StepEvidence  # the request for the boot
    is_withheld: bool = False


class Failure(NamedTuple):
    """A failure that an installer reported."""

    at: datetime
    client: str
    log: str  # the last lines of the installer's log

    def __str__(self) -> str:
        report = f"{self.client} reported a failure at {format_instant(self.at)}"
        lines = self.log.splitlines()
        return f'{report} ("{lines[-1]}")' if lines else report


class InstallAttempt(Struct, frozen=True, kw_only=True):
    """One attempt at an installation."""

    key: str  # the provision key
    image: str | None = None  # the image that was fetched last; None: recorded by an earlier version
    number: int = 1
    boots: tuple[StepEvidence, ...]  # the served boots; an installer may boot several times
    started: StepEvidence | None = None
    started_boot: int = 0  # the last boot that fetched its user data, counted from 1; 0: none did
    failed: Failure | None = None
    disk_boot: StepEvidence | None = None  # the machine's first disk boot after the completion

    @property
    def is_running(self) -> bool:
        """Return whether the system has fetched its user data since the last served boot."""
        return self.started is not None and self.started_boot == len(self.boots)

    @property
    def boot_key(self) -> str:
        return boot_key(self.key, self.number, len(self.boots))

    @property
    def step(self) -> InstallStep:
        if self.failed is not None:
            return InstallStep.FAILED
        return InstallStep.ATTEMPTED if self.started is None else InstallStep.STARTED

    @property
    def last_seen(self) -> StepEvidence:
        """The newest evidence of the attempt: the start of the system, or the last served boot."""
        return self.started if self.started is not None and self.is_running else self.boots[-1]

    def is_still_served(self, at: datetime) -> bool:
        """Return whether gitboot still serves the last boot, for example to a second NIC or after a failed transfer."""
        served_at = self.boots[-1].at
        return self.failed is None and not self.is_running and served_at <= at < served_at + FETCH_GRACE


def boot_key(key: str, attempt: int, boot: int) -> str:
    """Return the key that identifies one boot of one attempt in offers, overrides and records."""
    return key + (f"/attempt/{attempt}" if attempt > 1 else "") + (f"/boot/{boot}" if boot > 1 else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The record of a server's provisioning. A field is None if its value is unknown."""

    provision: int | None = None  # the provision number that was installed last; None: never provisioned
    image: str | None = None  # the image that was installed last
    pool: str | None = None
    decision: Digest | None = field(default=None, metadata=json_key("decisionDigest"))
    evidence: str | None = None  # such as `FETCHED`
    provisioned_at: datetime | None = None  # or when an operator set the server to pending
    grace_until: datetime | None = None  # gitboot still serves the boot until then
    consumed_at: datetime | None = None  # when the machine consumed an override, if there is no later evidence
    consumed_key: str | None = None  # the key of that override
    runs: Mapping[str, Run] = field(default_factory=dict)  # the last consumed run of each maintenance
    # `offered`, `answered` and `taken_back` are numbers from the ledger's sequence. A fetch of an offer with a lower
    # number than `offered` is not evidence.
    offered: int = 0  # when an operator last offered the boots again
    answered: int = 0  # the newest offer for which there is evidence
    taken_back: int = 0  # a boot was offered again after another client fetched it; earlier fetches still count
    attempts: tuple[InstallAttempt, ...] = ()  # the attempts with the key that was wanted last, in order
    # The key of the installation for which gitboot saw that the machine was off. It is not exported, so an instance
    # that imports the record waits again.
    released: str | None = field(default=None, metadata=OMITTED)
    # The maintenance that overwrote the disks. Only a higher provision number reinstalls the server.
    overwritten_by: str | None = None
    unknown_serves: tuple[UnknownServe, ...] = field(default=(), metadata=OMITTED)  # added by `make_record_fields`
    # By maintenance. They are not exported, so an instance that imports the record requests the URLs again.
    clearances: Mapping[str, Clearance] = field(default_factory=dict, metadata=OMITTED)
    # The version that another tool installed, as an operator states it. `image` is then None.
    version: str | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def installed(self) -> str | None:
        """The installed image, or the version that another tool installed, or None."""
        return f"version {self.version}" if self.image is None and self.version is not None else self.image

    def find_unknown_serve(self, key: str) -> UnknownServe | None:
        """Return the first intent to serve the boot with this key.

        Intents with a known outcome do not count. Return None if there is no such intent.
        """
        return min(
            [serve for serve in self.unknown_serves if serve.key == key and not serve.is_withheld],
            key=lambda serve: serve.seen.at,
            default=None,
        )


# Comparisons of records


def find_newer_records(
    published_records: Mapping[SystemUuid, Record],
    ledger_records: Mapping[SystemUuid, Record],
    reasons: Callable[[SystemUuid], Collection[str | None]],
) -> list[SystemUuid]:
    """Return the servers that have a newer record in an output tree than in the ledger.

    Such a record shows that the ledger is an old copy. ``reasons`` returns the keys of the overrides that, according to
    the ledger, gitboot has set for a server. The ledger contains an override before a machine can consume it.
    """
    return sorted(
        uuid for uuid, record in published_records.items() if _is_newer(uuid, record, ledger_records.get(uuid), reasons)
    )


def _is_newer(
    uuid: SystemUuid,
    published_record: Record,
    ledger_record: Record | None,
    reasons: Callable[[SystemUuid], Collection[str | None]],
) -> bool:
    consumed_key = published_record.consumed_key
    if consumed_key is None and published_record == ledger_record:  # a fast check, which excludes most records
        return False
    published_progress, ledger_progress = _measure_progress(published_record), _measure_progress(ledger_record)
    if published_progress != ledger_progress:
        return published_progress > ledger_progress
    if consumed_key is not None and consumed_key not in reasons(uuid):
        return True
    return _has_new_serve(ledger_record, published_record)


def _measure_progress(record: Record | None) -> tuple[bool, int, int, datetime, datetime, datetime, bool]:
    """Return the values of a record that never decrease.

    If the other values are equal, a pending server becomes provisioned only because a commit lowers its number.
    """
    beginning = datetime.min.replace(tzinfo=UTC)
    if record is None:
        return False, 0, 0, beginning, beginning, beginning, False
    provisioned_at = record.provisioned_at or beginning
    last_run_at = max((run.at for run in record.runs.values()), default=beginning)
    last_evidence_at = max((_last_evidence_time(attempt) for attempt in record.attempts), default=beginning)
    is_provisioned = record.provision is not None
    return True, record.offered, record.taken_back, provisioned_at, last_run_at, last_evidence_at, is_provisioned


def _has_new_serve(ledger_record: Record | None, published_record: Record) -> bool:
    """Return whether a published record contains an intent that was not withheld and is not in the ledger."""
    known_serves = ledger_record.unknown_serves if ledger_record is not None else ()
    known_intents = {serve.intent for serve in known_serves}
    withheld_at = max((serve.seen.at for serve in known_serves if not serve.intent), default=None)
    return any(
        not serve.is_withheld
        and serve.intent not in known_intents
        and (withheld_at is None or withheld_at < serve.seen.at)
        for serve in published_record.unknown_serves
    )


def find_last_seen(record: Record) -> datetime | None:
    """Return the time of the newest evidence in a server's record, or None if there is no evidence."""
    times = [_last_evidence_time(attempt) for attempt in record.attempts]
    times += [run.at for run in record.runs.values()]
    times += [serve.seen.at for serve in record.unknown_serves if not serve.is_withheld]
    if record.provisioned_at is not None:
        times.append(record.provisioned_at)
    return max(times, default=None)


def list_event_times(record: Record) -> Iterator[datetime]:
    """Yield the times in a record to which plans add grace periods."""
    for attempt in record.attempts:
        yield from (seen.at for seen in (*attempt.boots, attempt.started, attempt.failed) if seen is not None)
    yield from (run.at for run in record.runs.values())
    yield from (serve.seen.at for serve in record.unknown_serves)
    yield from (at for at in (record.provisioned_at, record.consumed_at) if at is not None)


def _last_evidence_time(attempt: InstallAttempt) -> datetime:
    return attempt.failed.at if attempt.failed is not None else attempt.last_seen.at


def find_drift(decision: Decision, record: Record | None) -> dict[str, str]:
    """Compare a provisioned server with its decision.

    Return a message about each difference, by the name of the condition.
    """
    policy = decision.policy
    if record is None or record.provision is None or policy is None:
        return {}
    drift = {}
    if policy.boot is not None and record.image not in (None, policy.boot.image):
        drift["ImageDrift"] = (
            f"the server was provisioned with BootImage/{record.image}, but its plan boots "
            f"BootImage/{policy.boot.image}"
        )
    elif policy.boot is not None and record.image is None and record.version not in (None, policy.boot.version):
        drift["ImageDrift"] = (
            f"another tool installed version {record.version}, but the plan boots BootImage/{policy.boot.image} "
            f"({policy.boot.version})"
        )
    if record.pool not in (None, policy.policy):
        drift["PoolDrift"] = (
            f"the server was provisioned under BootPolicy/{record.pool}, but its policy is now "
            f"BootPolicy/{policy.policy}"
        )
    return drift


# The JSON format of records


def shard_name(uuid: SystemUuid) -> str:
    """Return the name of the file in the output tree that contains a server's record.

    The name is the prefix of a digest of the UUID and not of the UUID itself, because the UUIDs of one vendor may share
    a prefix.
    """
    return f"{crc32(uuid.encode()) & 0xFF:02x}"


def encode_records(records: Mapping[SystemUuid, Record]) -> bytes:
    """Encode records in the format of ``ops/records``, which ``gitboot records begin FILE`` reads."""
    items = [{"uuid": uuid, **make_record_fields(record)} for uuid, record in sorted(records.items())]
    return encode_canonical({"apiVersion": "gitboot.dev/v1alpha1", "items": items}) + b"\n"


# the errors with which `parse_record` and the JSON parser reject malformed values
RECORD_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def parse_exported_records(data: bytes, path: str) -> dict[SystemUuid, Record]:
    """Parse exported records. Raises `UsageError`, which names ``path``, if the records are malformed."""
    try:
        return {parse_uuid(item["uuid"]): parse_record(item) for item in json.loads(data)["items"]}
    except RECORD_ERRORS as error:
        reason = error.message if isinstance(error, Malformed) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} does not contain exported records ({reason}); use ops/records from an output tree"
        ) from None


def make_record_fields(record: Record) -> dict[str, Any]:
    """Convert a record to JSON values."""
    runs = {name: _drop_null_fields(to_json_value(run)) for name, run in record.runs.items()}
    attempts = [make_attempt_fields(attempt) for attempt in record.attempts]
    fields = {**to_json_value(record), "runs": runs, "attempts": attempts}
    if record.unknown_serves:
        fields["unknownServes"] = to_json_value(record.unknown_serves)
    return fields


def make_attempt_fields(attempt: InstallAttempt) -> dict[str, Any]:
    """Convert an install attempt, including its fetches and its step, to JSON values."""
    return _drop_null_fields({**to_json_value(attempt), "step": attempt.step})


def _drop_null_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields diskBoot and image if they are null, because earlier versions do not write these fields."""
    return {key: value for key, value in fields.items() if key not in ("diskBoot", "image") or value is not None}


def get_provisioning_fields(record: Record) -> list[Any]:
    """Return the last provisioning of a server as JSON values, which an operator sees before changing the record."""
    return [record.offered, record.provision, record.image, to_json_value(record.provisioned_at)]


def make_run_fields(run: Run) -> dict[str, Any]:
    """Convert the evidence for a maintenance run to JSON values."""
    evidence = {
        "given": to_json_value(run.given),
        "started": to_json_value(run.started),
        "diskBoot": to_json_value(run.disk_boot),
    }
    return _drop_null_fields(evidence)


def parse_record(item: Mapping[str, Any]) -> Record:
    """Parse a record from JSON values. Raises one of `RECORD_ERRORS` if the values are malformed."""

    def parse_optional(parse: Callable[[Any], T], name: str) -> T | None:
        return parse(item[name]) if item[name] is not None else None

    return Record(
        provision=parse_optional(_parse_number, "provision"),
        image=parse_optional(text, "image"),
        pool=parse_optional(text, "pool"),
        decision=parse_optional(parse_digest, "decisionDigest"),
        evidence=parse_optional(text, "evidence"),
        provisioned_at=parse_optional(_parse_instant, "provisionedAt"),
        grace_until=parse_optional(_parse_instant, "graceUntil"),
        consumed_at=parse_optional(_parse_instant, "consumedAt"),
        consumed_key=parse_optional(text, "consumedKey"),
        runs={name: _parse_run(run) for name, run in item["runs"].items()},
        overwritten_by=parse_optional(text, "overwrittenBy") if "overwrittenBy" in item else None,
        offered=_parse_number(item.get("offered", 0)),
        answered=_parse_number(item.get("answered", 0)),
        taken_back=_parse_number(item.get("takenBack", 0)),
        attempts=tuple(map(parse_attempt, item.get("attempts", ()))),
        unknown_serves=parse_unknown_serves(item.get("unknownServes", ())),
        version=parse_optional(text, "version") if "version" in item else None,
    )


def parse_clearances(items: Mapping[str, Any]) -> dict[str, Clearance]:
    """Parse the clearance for each maintenance.

    Raises ValueError, TypeError or KeyError if the JSON values are malformed.
    """

    def parse_text(value: Any) -> str | None:
        return text(value) if value is not None else None

    return {
        name: Clearance(
            approved=parse_text(item["approved"]),
            drain=parse_text(item["drain"]),
            drained_at=_parse_instant(item["drainedAt"]) if item["drainedAt"] is not None else None,
            until=_parse_instant(item["until"]) if item.get("until") is not None else None,
        )
        for name, item in items.items()
    }


def parse_unknown_serves(items: Iterable[Mapping[str, Any]]) -> tuple[UnknownServe, ...]:
    """Parse intents to serve a boot. Raises ValueError, TypeError or KeyError if the JSON values are malformed."""
    return tuple(
        UnknownServe(
            text(item["intent"]), text(item["key"]), _parse_step_evidence(item["seen"]), item["isWithheld"] is True
        )
        for item in items
    )


def parse_attempt(item: Mapping[str, Any]) -> InstallAttempt:
    """Parse an install attempt. Raises ValueError, TypeError or KeyError if the JSON values are malformed."""
    started, failed, boots = item["started"], item["failed"], tuple(map(_parse_step_evidence, item["boots"]))
    if not boots:
        raise ValueError("an install attempt must have at least one served boot")
    return InstallAttempt(
        key=text(item["key"]),
        image=text(item["image"]) if item.get("image") is not None else None,
        number=_parse_number(item["number"]),
        boots=boots,
        started=_parse_step_evidence(started) if started is not None else None,
        started_boot=_parse_number(item.get("startedBoot", len(boots) if started is not None else 0)),
        failed=Failure(_parse_instant(failed["at"]), text(failed["client"]), text(failed["log"])) if failed else None,
        disk_boot=_parse_step_evidence(item["diskBoot"]) if item.get("diskBoot") is not None else None,
    )


def _parse_step_evidence(item: Mapping[str, Any]) -> StepEvidence:
    return StepEvidence(_parse_instant(item["at"]), text(item["path"]), text(item["client"]))


def _parse_run(item: Mapping[str, Any]) -> Run:
    end = item.get("end")
    return Run(
        _parse_number(item["run"]),
        _parse_instant(item["at"]),
        _parse_instant(end) if end is not None else None,
        **parse_run_evidence(item),
    )


def parse_run_evidence(item: Mapping[str, Any]) -> dict[str, StepEvidence | None]:
    """Parse the output of `make_run_fields`. Raises ValueError, TypeError or KeyError if the output is malformed."""
    names = {"given": "given", "started": "started", "disk_boot": "diskBoot"}
    return {name: _parse_step_evidence(item[key]) if item.get(key) is not None else None for name, key in names.items()}


def _parse_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:  # the range of the ledger
        raise ValueError(f"expected a whole number that is 0 or greater, found {quote_value(value)}")
    return value


def _parse_instant(value: object) -> datetime:
    """Parse a time written by `encode_records`.

    Unlike a time in a document, such a time may contain fractions of a second.
    """
    at = datetime.fromisoformat(text(value))
    if at.tzinfo is None:
        raise ValueError(f"expected a time with a UTC offset, found {quote_value(value)}")
    return at.astimezone(UTC)


# Orders and claims that stop boots


class StopScope(StrEnum):
    """The boots that are stopped by a stop order or a condition, in addition to the boots that the commit stops."""

    NONE = "none"
    WRITING = "boots that write to disk"
    ALL = "all boots from the network"


class StopOrder(NamedTuple):
    """An operator's order to stop install boots or all network boots until an operator lifts it."""

    who: str
    reason: str
    everything: bool

    def __str__(self) -> str:
        return f"{StopScope.ALL if self.everything else StopScope.WRITING} are stopped by {self.who}: {self.reason}"


class SoleClaim(NamedTuple):
    """A file which declares that only one host serves the one-time boots of some sites.

    The version at commit 2fefe59 wrote such files.
    """

    file: str
    sites: tuple[str, ...]  # sorted; () if the file cannot be read
    fetch_log: str  # the fetch log folder of that host

    def __str__(self) -> str:
        sites = ", ".join(self.sites) or "a site"
        return (
            f"another host was the only one that served one-time boots for {sites} "
            f"(gitboot serve --sole-for, {self.file})"
        )
