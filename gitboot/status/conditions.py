"""Conditions and events: each type with its remedies, its event and its alerts; and the state of one condition."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, structs

from gitboot.text import format_count, format_names, quote_words

_MOST_NAMED: Final = 3


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened, for logs, `gitboot events` and the audit."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet … one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether a person should look


def merge_events_by_server(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events in their order. Events that differ by their server alone become one, at the first of them."""
    alike: dict[object, list[Event]] = {}
    for number, event in enumerate(events):
        key: object = number
        if (server := event.facts.get("server")) is not None and event.message.startswith(f"{server}: "):
            others = tuple(sorted((name, str(value)) for name, value in event.facts.items() if name != "server"))
            key = event.type, event.at, event.warning, event.message.removeprefix(f"{server}: "), others
        alike.setdefault(key, []).append(event)
    return tuple(each[0] if len(each) == 1 else _merge_events(each) for each in alike.values())


def _merge_events(events: list[Event]) -> Event:
    first, servers = events[0], sorted(str(each.facts["server"]) for each in events)
    facts = {**{name: value for name, value in first.facts.items() if name != "server"}, "servers": servers}
    text = first.message.removeprefix(f"{first.facts['server']}: ")
    message = f"{format_count(len(servers), 'server')} ({format_names(servers, _MOST_NAMED)}): {text}"
    return structs.replace(first, message=message, facts=facts)


ANY: Final = "*"  # reasons that are the names of errors
BMC: Final = "Bmc/SERVER"  # the condition of one server's BMC
SERVER: Final = "SERVER"
STATUS_CURRENT: Final = "StatusCurrent"
STALE_S: Final = 150.0  # a status that is older than this is stale: two intervals and some more
STATE: Final = "STATE"  # the state directory, which only the command knows that shows a line


class Condition(Struct, frozen=True, kw_only=True):
    """One thing that holds or not, as Kubernetes and Flux word conditions."""

    type: str  # Ready, SourceReady, Stalled …
    status: bool
    reason: str  # one word in CamelCase
    message: str
    last_transition_time: datetime  # when the status changed last
    remedy: str | None = None  # the line that leads out of it, where it does not hold; STATE: the state directory


class Announcement(Enum):
    """When gitboot reports an event for a condition that is false."""

    CHANGE = auto()  # if the status, the reason or the message changed
    REASON = auto()  # if the status or the reason changed
    STATUS = auto()  # if the status changed


class Alert(NamedTuple):
    """A rule of docs/monitoring/alerts.yml; `scripts/reference.py` derives its expression, duration and labels."""

    name: str
    severity: str  # critical or warning
    after: str  # how long the condition is false before, as Prometheus writes durations
    reasons: str = (
        ""  # the reasons that fire it, as a PromQL matcher; "": all that fire no other alert of the condition
    )
    also: str = ""  # a further expression that fires it


class ConditionType(Struct, frozen=True):
    """A type of conditions, declared once: docs, alerts and events are derived from this."""

    name: str
    remedies: Mapping[str, str]  # by reason, a line that leads out of it. Words in capitals stand for values
    alerts: tuple[Alert, ...]
    event: str | None = None  # the type of the event that announces it; None: other events report it
    events: Mapping[str, str | None] = field(default_factory=dict)  # the same for reasons with another event
    announces_on: Announcement = Announcement.CHANGE

    def find_remedy(self, reason: str) -> str | None:
        return self.remedies.get(reason, self.remedies.get(ANY))

    def find_event_type(self, before: Condition | None, now: Condition) -> str | None:
        """Return the type of the event that announces a false condition. None: no event does, or one did before."""
        is_same = before is not None and (
            before.status == now.status
            if self.announces_on is Announcement.STATUS
            else (before.status, before.reason) == (now.status, now.reason)
            if self.announces_on is Announcement.REASON
            else (before.status, before.reason, before.message) == (now.status, now.reason, now.message)
        )
        return None if is_same else self.events.get(now.reason, self.event)


_RETRY: Final = "gitboot reconcile --state STATE"
_ASK: Final = "gitboot bmc apply SERVER --state STATE"
_CLOCK: Final = "gitboot records confirm-clock --state STATE --reason '…'"
_RECORD: Final = "gitboot records set SERVERS provisioned --state STATE --reason '…'  # or: pending"
_RUN: Final = "git grep -n 'kind: Maintenance'  # a higher run boots it once more"
_FETCHES: Final = "gitboot secret fetches SERVERS --state STATE  # then, if they are right: --confirm '…'"
_ACT: Final = "ledger: LEDGER  # in the Fleet, of its site or of provisioning, where this instance is to act"
_ADOPT: Final = "gitboot records begin OUTPUT/ops/records --state STATE  # or: adopt"
_BRANCH: Final = "gitboot run … --rev BRANCH  # once: the branch to follow; the ledger keeps it"
_KEYGEN: Final = "gitboot secret keygen --signed-list FOLDER  # where the root key is; then copy FOLDER here"
_ENDPOINT: Final = (
    "endpoint: http://…  # in the spec of the Fleet; or, with the risk: serving: {oneTimeBoots: Copies}, "
    "once each mirror has the new ops/serve/nginx.conf or Caddyfile"
)
_TYPES: Final = (
    ConditionType(
        "AcceptingCommits",
        {"Suspended": "gitboot resume --state STATE"},
        (Alert("GitbootSuspended", "warning", "6h"),),
    ),
    ConditionType(
        "ArtifactsPresent",
        {"Missing": "gitboot artifacts verify STATE/repository.git --rev refs/gitboot/accepted"},
        (Alert("GitbootArtifactsMissing", "warning", "30m"),),
        event="ArtifactsMissing",
        announces_on=Announcement.STATUS,  # each file is an event of its own
    ),
    ConditionType(
        "BmcsReachable",
        {"FailuresInARow": "gitboot bmc apply --state STATE"},
        (Alert("GitbootBmcsUnreachable", "critical", "10m"),),
        event="BmcsFailing",
        announces_on=Announcement.STATUS,
    ),
    ConditionType(
        "BmcsSet",
        {"LedgerNotNamed": "provisioning: {ledger: LEDGER}  # in the spec of the Fleet"},
        (Alert("GitbootBmcsNotSet", "warning", "10m"),),
        event="LedgerNotNamed",
        announces_on=Announcement.STATUS,  # not with each server that comes
    ),
    ConditionType(
        "BootsServed",
        {ANY: "gitboot boot-script SERVER --tree OUTPUT"},
        (Alert("GitbootBootWithheld", "warning", "5m"),),
        event="BootWithheld",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "InstallsAllowed",
        {
            "SoleClaim": (
                "rsync -a 'HOST:DIRECTORY/*.jsonl' FETCHLOG/ && rm CLAIMS  # after gitboot serve on HOST ended"
            ),
            "Stopped": "gitboot allow-installs --state STATE",
            "StoppedByFleet": "git grep -n stopped:  # the line to take out of the Fleet",
        },
        (Alert("GitbootInstallsStopped", "warning", "15m"),),
        event="InstallsStopped",
    ),
    ConditionType(
        "InstallsCompleted",
        {"Failed": _RECORD, "NeedsOperator": _RECORD, "OutcomeUnknown": _RECORD, "Overdue": _RECORD},
        (Alert("GitbootInstallsNotCompleted", "warning", "5m"),),
        event="NeedsOperator",
    ),
    ConditionType(
        "BranchFollowed",
        {ANY: _BRANCH},
        (Alert("GitbootBranchNotFollowed", "warning", "30m"),),
        event="BranchNotFollowed",
        announces_on=Announcement.STATUS,  # not with each branch that is checked out
    ),
    ConditionType(
        "CertificateRead",
        {"Unusable": "openssl x509 -noout -pubkey -in CERT; openssl pkey -pubout -in KEY  # the same, where both fit"},
        (
            Alert(
                "GitbootCertificateUnreadable",
                "warning",
                "15m",
                also="or on (job, instance) gitboot_operators_certificate_readable == 0",
            ),
        ),
    ),
    ConditionType(
        "ClockTrusted",
        {"Behind": _CLOCK, "Unsynchronised": _CLOCK},
        (Alert("GitbootClockNotTrusted", "critical", "10m"),),
        event="ClockNotTrusted",
    ),
    ConditionType(
        "CommitAccepted",
        {
            "GuardTripped": "gitboot approve DIGEST GUARDS --state STATE --reason '…'",
            "Invalid": "gitboot validate STATE/repository.git --rev COMMIT",
            "NotEvaluated": "commit-seconds = 600  # add it to the file of --config, and start gitboot again",
            "Untrusted": "git log --show-signature COMMIT  # sign it anew, or list its key",
        },
        (
            Alert("GitbootCommitRejected", "warning", "15m", '=~"Invalid|NotEvaluated|Untrusted"'),
            Alert("GitbootCommitHeld", "warning", "1h", '="GuardTripped"'),
        ),
        events={"GuardTripped": "Held"},
    ),
    ConditionType(
        "CredentialsRead",
        {"Unreadable": "ls -l FILE  # that the message names; gitboot reads it again for each request"},
        (Alert("GitbootCredentialsUnreadable", "warning", "5m"),),
    ),
    ConditionType(
        "EvidenceAvailable",
        {"NoEvidence": "gitboot run … --listen HOST:PORT"},
        (Alert("GitbootNoEvidence", "warning", "30m"),),
    ),
    ConditionType(
        "HistoryComplete",
        {"CommitMissing": "gitboot run … --allow-rewind  # once, if these boots are to be offered again"},
        (Alert("GitbootCommitMissing", "warning", "10m"),),
        event="CommitMissing",
    ),
    ConditionType(
        "IdentitiesUnique",
        {"Placeholder": "gitboot validate STATE/repository.git --rev refs/gitboot/accepted"},
        (Alert("GitbootIdentityPlaceholder", "warning", "0m"),),
    ),
    ConditionType(
        "LedgerNamed",
        {"AnotherLedger": _ACT, "BecameStandby": _ACT},
        (
            Alert("GitbootBecameStandby", "warning", "1h", '="BecameStandby"'),
        ),  # a standby is AnotherLedger all the time
        event="BecameStandby",
    ),
    ConditionType(
        "LedgerWritable",
        {"Failed": "df -h STATE && ls -l STATE"},
        (Alert("GitbootLedgerNotWritable", "critical", "2m"),),
    ),
    ConditionType(
        "SignedListCurrent",
        {
            "Expired": _RETRY,
            "KeyNotInRoot": _KEYGEN,
            "KeyUnreadable": (
                "ls -l FOLDER  # of list-keys: gitboot must be able to read each file, and others not the key"
            ),
            "RootExpires": _KEYGEN,
            ANY: "gitboot events --state STATE | tail  # it is tried again by itself",
        },
        (Alert("GitbootSignedListNotCurrent", "warning", "30m"),),
        event="SignedListNotCurrent",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "NotificationsSent",
        {ANY: "gitboot events --state STATE | tail  # it is tried again; what is noted waits"},
        (Alert("GitbootNotificationsNotSent", "warning", "15m"),),
        event="NotificationsFailing",
        announces_on=Announcement.STATUS,  # not with each other error
    ),
    ConditionType(
        "OneTimeBootsServed",
        {"OutputWithoutEndpoint": _ENDPOINT, "NoEndpoint": _ENDPOINT},
        (Alert("GitbootOneTimeBootsMissing", "warning", "10m"),),
        event="OneTimeBootsMissing",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "OptOutsInTime",
        {"Overdue": "git grep -n -A3 -E 'pin:|holds:'"},
        (Alert("GitbootOptOutOverdue", "warning", "1h"),),
    ),
    ConditionType(
        "OutputPrivate",
        {"ReadableByAll": "gitboot run … --output-group GROUP  # with which the web server runs"},
        (Alert("GitbootOutputReadable", "warning", "1h"),),
    ),
    ConditionType(
        "PowerWavesRunning",
        {"Stopped": "gitboot bmc resolve SERVER --back --state STATE --reason '…'  # once it is in service"},
        (Alert("GitbootWaveStopped", "critical", "1m"),),
        event="WaveStopped",
    ),
    ConditionType(
        "ProxiesTrusted",
        {"Unnamed": 'trusted-proxies = ["PROXIES"]  # add it to the file of --config, if it is your proxy'},
        (Alert("GitbootProxyNotTrusted", "warning", "1h"),),
        event="ProxyNotTrusted",
        announces_on=Announcement.STATUS,  # a stranger chooses its address
    ),
    ConditionType(
        "Published",
        {"ForeignTree": _ADOPT, ANY: _RETRY},
        (Alert("GitbootNotPublished", "critical", "5m"),),
        event="PublishFailed",
    ),
    ConditionType(
        "Reconciling",
        {"StageHangs": "df -h STATE OUTPUT && ls -l STATE OUTPUT  # a disk or a database that hangs"},
        (Alert("GitbootStageHangs", "critical", "0m"),),
    ),
    ConditionType(
        "RecordsVerified",
        {
            "DamagedLedger": _ADOPT,
            "ForeignLedger": _ADOPT,
            "NewLedger": "gitboot records begin fresh --state STATE  # or: adopt",
            "RestoredLedger": _ADOPT,
            "UnverifiedServers": _RECORD,
        },
        (
            Alert("GitbootLedgerUnverified", "critical", "10m", '=~".+Ledger"'),
            Alert("GitbootServersUnverified", "warning", "1h", '="UnverifiedServers"'),
        ),
        event="RecordsUnverified",
        events={"UnverifiedServers": None},
    ),
    ConditionType(
        "MaintenanceRunsStarted",
        {"OutcomeUnknown": _RUN, "Overdue": _RUN},
        (Alert("GitbootMaintenanceRunNotStarted", "warning", "5m"),),
        event="MaintenanceOverdue",
    ),
    ConditionType(
        "SecretsPrivate",
        {"ManyFetches": _FETCHES, "SecondAddress": _FETCHES},
        (Alert("GitbootSecretFetchedAgain", "warning", "5m"),),
        event="SecretsFetchedAgain",
        announces_on=Announcement.REASON,  # a stranger who fetches all the time changes the message each time
    ),
    ConditionType(
        "Serving",
        {
            "NotResponding": "gitboot events --state STATE | tail  # gitboot replaces the process by itself",
            "Restarting": "gitboot events --state STATE | tail",
        },
        (Alert("GitbootEndpointNotServing", "critical", "5m"),),
        events={"NotResponding": "EndpointNotResponding"},
    ),
    ConditionType(
        "SourceReady",
        {
            "BranchMissing": _BRANCH,
            "BranchNotNamed": _BRANCH,
            "SourceTooLarge": "fetch-memory = MIB  # or fetch-disk; or take the large files out of the history",
            ANY: _RETRY,
        },
        (Alert("GitbootSourceNotReady", "warning", "30m"),),
    ),
    ConditionType(
        "FetchLogReadable",
        {"Unreadable": "ls -ld SPOOL STATE/spool  # who may read it, and whether its disk is there"},
        (Alert("GitbootFetchLogUnreadable", "critical", "5m"),),
        event="FetchLogUnreadable",
    ),
    ConditionType(
        "StatusCurrent",
        {"Stale": "df -h STATE OUTPUT  # on the host of the instance; and see that gitboot run is alive"},
        (Alert("GitbootStatusStale", "critical", "10m"),),
    ),
    ConditionType(
        "TargetsCurrent",
        {
            "Behind": "gitboot events --state STATE | tail",
            "ForeignTree": _ADOPT,
            "TransitionOverdue": f"{_RETRY}  # tries at once; first remove the cause in the message",
            ANY: "gitboot status --state STATE  # it is tried again by itself",
        },
        (
            Alert("GitbootTargetsBehind", "warning", "10m"),
            Alert("GitbootTransitionOverdueAtTarget", "critical", "1m", '="TransitionOverdue"'),
        ),
        event="TargetBehind",
    ),
    ConditionType(
        "ThreadsRunning",
        {"Died": "gitboot events --state STATE | tail  # report the traceback in the log"},
        (Alert("GitbootThreadDied", "warning", "0m"),),
        event="ThreadDied",
        announces_on=Announcement.STATUS,  # not with each other death
    ),
    ConditionType(
        "OutputTreeReadable",
        {
            "Absent": "gitboot run REPOSITORY --out OUTPUT --state STATE",
            "UnknownFormat": "gitboot --version  # here, and where the instance runs: they have to be the same",
            "Unreadable": _RETRY,
        },
        (Alert("GitbootOutputTreeUnreadable", "critical", "5m"),),
    ),
    ConditionType(
        "CommitStatusReported",
        {ANY: "gitboot run … --forge KIND=URL TOKEN  # gitboot reads the file TOKEN again at each try"},
        (Alert("GitbootCommitStatusNotReported", "warning", "30m"),),
    ),
    ConditionType(
        BMC,
        {
            "AnotherMachine": "gitboot bmc resolve SERVER --same --state STATE --reason '…'",
            "Contended": _ASK,
            "ForeignMedium": f"{_ASK}  # when it is ejected there",
            "ForeignOverride": "gitboot bmc resolve SERVER --replace --state STATE --reason '…'",
            "NeedsOperator": "gitboot bmc resolve SERVER --consumed --state STATE --reason '…'  # or: --not-set",
            "Overdue": f"{_ASK}  # or, where the BMC is gone for good: gitboot bmc resolve SERVER --consumed",
            "Stalled": _ASK,
            "Unsupported": "gitboot explain SERVER --path STATE/repository.git --rev refs/gitboot/accepted",
            "Waiting": _ASK,
        },
        (Alert("GitbootBmcsStalled", "warning", "15m", '!="Waiting"'),),  # such a BMC is asked again
        event="OverrideStalled",
        events={"Overdue": "OverrideOverdue", "Waiting": "OverrideWaiting"},
    ),
)
CONDITIONS: Final[Mapping[str, ConditionType]] = {each.name: each for each in _TYPES}


def find_condition_type(type: str) -> ConditionType | None:
    """Return the declaration of a condition. None: the condition is never false, or no remedy is known."""
    return CONDITIONS.get(BMC if "/" in type else type)


def find_remedy(type: str, reason: str, values: Mapping[str, str | Sequence[str]] | None = None) -> str | None:
    """Return the line that leads out of a condition that does not hold; STATE is left for `with_state`.

    ``given`` has what the other words in capitals stand for, as in `filled`. None: there is no such state.
    """
    declared, server = find_condition_type(type), type.partition("/")[2]
    line = declared.find_remedy(reason) if declared is not None else None
    return line and fill_placeholders(line, {**(values or {}), **({SERVER: server} if server else {})})


def fill_placeholders(line: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """Return a line with the words in capitals replaced, each value quoted for a shell. A word without a value stays.

    A value of several words is a sequence. A word in double quotes becomes strings of a TOML list.
    """

    def value(word: re.Match[str]) -> str:
        found = values.get(word[1])
        if found is None:
            return word[0]
        words = (found,) if isinstance(found, str) else found
        return ", ".join(map(json.dumps, words)) if word[0].startswith('"') else quote_words(*words)

    return re.sub(r'"?\b([A-Z]{5,})\b"?', value, line)


def fill_state(line: str, state: str) -> str:
    return fill_placeholders(line, {STATE: state})
