"""Condition types, each with its remedies, events and alerts."""

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
    """An event that gitboot writes to its log and to the audit log, and that `gitboot events` shows."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet …: one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether an operator should look into the event


def merge_events_by_server(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge events that differ only in their server. A merged event takes the position of its first event."""
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


ANY: Final = "*"  # every reason that has no remedy of its own, such as the name of an error
BMC: Final = "Bmc/SERVER"  # the condition type of a server's BMC; the name of the server replaces SERVER
SERVER: Final = "SERVER"
STATUS_CURRENT: Final = "StatusCurrent"
STALE_S: Final = 150.0  # age from which a status is stale: a bit more than two write intervals
STATE: Final = "STATE"  # placeholder for the state directory; the command that shows the remedy fills it in


class Condition(Struct, frozen=True, kw_only=True):
    """A condition of an instance, like the conditions of Kubernetes and Flux."""

    type: str  # Ready, SourceReady, Stalled …
    status: bool
    reason: str  # one word in CamelCase
    message: str
    last_transition_time: datetime  # when the status last changed
    remedy: str | None = None  # the command or setting that resolves a false condition


class Announcement(Enum):
    """The changes of a false condition that gitboot reports as events."""

    CHANGE = auto()  # the status, the reason or the message changed
    REASON = auto()  # the status or the reason changed
    STATUS = auto()  # the status changed


class Alert(NamedTuple):
    """A rule in docs/monitoring/alerts.yml. `scripts/reference.py` generates its expression, duration and labels."""

    name: str
    severity: str  # critical or warning
    after: str  # how long the condition must be false before the alert fires, as a Prometheus duration
    reasons: str = ""  # PromQL matcher for the reasons that fire the alert; "": all reasons without another alert
    also: str = ""  # a second expression that fires the alert


class ConditionType(Struct, frozen=True):
    """The declaration of a condition type. Documentation, alerts and events are derived from it."""

    name: str
    remedies: Mapping[str, str]  # by reason: a command or setting, in which words in capitals are placeholders
    alerts: tuple[Alert, ...]
    event: str | None = None  # event type when the condition becomes false; None: other events report it
    events: Mapping[str, str | None] = field(default_factory=dict)  # by reason: an event type that replaces `event`
    announces_on: Announcement = Announcement.CHANGE

    def find_remedy(self, reason: str) -> str | None:
        return self.remedies.get(reason, self.remedies.get(ANY))

    def find_event_type(self, before: Condition | None, now: Condition) -> str | None:
        """Return the type of the event that reports a false condition, or None if the change needs no event."""
        is_same = before is not None and (
            before.status == now.status
            if self.announces_on is Announcement.STATUS
            else (before.status, before.reason) == (now.status, now.reason)
            if self.announces_on is Announcement.REASON
            else (before.status, before.reason, before.message) == (now.status, now.reason, now.message)
        )
        return None if is_same else self.events.get(now.reason, self.event)


_RETRY: Final = "gitboot reconcile --state STATE  # tries now. First remove the cause in the message"
_ASK: Final = "gitboot bmc apply SERVER --state STATE"
_CLOCK: Final = (
    "gitboot records confirm-clock --state STATE --reason '…'  # only if the clock is right. If not, correct it"
)
_RECORD: Final = (
    "gitboot records set SERVERS provisioned --state STATE --reason '…'  # first check the servers. If they are not "
    "installed, use pending: gitboot then installs them and erases their disks"
)
_RUN: Final = (
    "git grep -n 'kind: Maintenance'  # first check the servers. To boot them again, increase run in the Maintenance"
)
_FETCHES: Final = (
    "gitboot secret fetches SERVERS --state STATE  # shows each fetch. If all fetches are legitimate, add --confirm '…'"
)
_ACT: Final = (
    "ledger: LEDGER  # only if this instance should take over: first stop the other instance, then set this in the "
    "Fleet (its site or spec.provisioning)"
)
_ADOPT: Final = (
    "gitboot records begin OUTPUT/ops/records --state STATE  # if there is no such file and all servers are installed, "
    "use adopt instead of the file"
)
_BRANCH: Final = (
    "gitboot run … --rev BRANCH  # restart gitboot run once, with --rev and the name of the branch to follow. The "
    "ledger stores the branch"
)
_OTHER_BRANCH: Final = (
    "gitboot run … --rev BRANCH  # only if gitboot should follow another branch: restart it once with --rev and the "
    "name of that branch. The ledger stores the branch"
)
_KEYGEN: Final = (
    "gitboot secret keygen --signed-list FOLDER  # on the host with the root key: renews the metadata and the "
    "publication key. Then copy FOLDER without root.key to the folder of list-keys on this host"
)
_ENDPOINT: Final = (
    "endpoint: http://…  # the URL of gitboot run --listen or gitboot serve; add it to spec of the Fleet. To let "
    "copies serve these boots instead, first install the new ops/serve/nginx.conf or Caddyfile on each mirror, then "
    "add serving: {oneTimeBoots: Copies}"
)
_TYPES: Final = (
    ConditionType(
        "AcceptingCommits",
        {"Suspended": "gitboot resume --state STATE  # first ask the person in the message"},
        (Alert("GitbootSuspended", "warning", "6h"),),
    ),
    ConditionType(
        "ArtifactsPresent",
        {
            "Missing": (
                "gitboot artifacts verify STATE/repository.git --rev refs/gitboot/accepted  # lists the missing files. "
                "Put them at their URLs"
            )
        },
        (Alert("GitbootArtifactsMissing", "warning", "30m"),),
        event="ArtifactsMissing",
        announces_on=Announcement.STATUS,  # a separate event reports each file
    ),
    ConditionType(
        "BmcsReachable",
        {
            "FailuresInARow": (
                "gitboot bmc apply --state STATE  # contacts all BMCs now. First check the network and the passwords"
            )
        },
        (Alert("GitbootBmcsUnreachable", "critical", "10m"),),
        event="BmcsFailing",
        announces_on=Announcement.STATUS,
    ),
    ConditionType(
        "BmcsSet",
        {"LedgerNotNamed": "provisioning: {ledger: LEDGER}  # add to spec of the Fleet"},
        (Alert("GitbootBmcsNotSet", "warning", "10m"),),
        event="LedgerNotNamed",
        announces_on=Announcement.STATUS,  # not again for each additional server
    ),
    ConditionType(
        "BootsServed",
        {ANY: "gitboot boot-script SERVER --tree OUTPUT  # shows what the boot of SERVER needs"},
        (Alert("GitbootBootWithheld", "warning", "5m"),),
        event="BootWithheld",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "InstallsAllowed",
        {
            "SoleClaim": "rsync -a 'HOST:DIRECTORY/*.jsonl' FETCHLOG/ && rm CLAIMS  # first stop gitboot serve on HOST",
            "Stopped": (
                "gitboot allow-installs --state STATE  # first ask the person in the message. Pending installations "
                "then start"
            ),
            "StoppedByFleet": (
                "git grep -n stopped:  # in a clone of the fleet. First ask the author of the line, then remove it"
            ),
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
        {ANY: _OTHER_BRANCH},
        (Alert("GitbootBranchNotFollowed", "warning", "30m"),),
        event="BranchNotFollowed",
        announces_on=Announcement.STATUS,  # not again for each branch that is checked out
    ),
    ConditionType(
        "CertificateReadable",
        {"Unusable": "openssl x509 -noout -pubkey -in CERT; openssl pkey -pubout -in KEY  # both must print the same"},
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
            "GuardTripped": (
                "gitboot approve DIGEST --all-guards --state STATE --reason '…'  # first review the changes: "
                "gitboot diff --accepted OUTPUT ..COMMIT STATE/repository.git"
            ),
            "Invalid": "gitboot validate STATE/repository.git --rev COMMIT  # correct the problems in a new commit",
            "NotEvaluated": "commit-seconds = 600  # add to the file of --config and restart gitboot",
            "Untrusted": "git log --show-signature COMMIT  # sign the commit with a trusted key, or trust its key",
        },
        (
            Alert("GitbootCommitRejected", "warning", "15m", '=~"Invalid|NotEvaluated|Untrusted"'),
            Alert("GitbootCommitHeld", "warning", "1h", '="GuardTripped"'),
        ),
        events={"GuardTripped": "Held"},
    ),
    ConditionType(
        "CredentialsReadable",
        {"Unreadable": "ls -l FILE  # the file in the message. gitboot reads it again for each request"},
        (Alert("GitbootCredentialsUnreadable", "warning", "5m"),),
    ),
    ConditionType(
        "EvidenceAvailable",
        {"NoEvidence": "gitboot run … --listen HOST:PORT  # restart with this option or with --spool DIRECTORY"},
        (Alert("GitbootNoEvidence", "warning", "30m"),),
    ),
    ConditionType(
        "HistoryComplete",
        {"CommitMissing": "gitboot run … --allow-rewind  # restart once, if gitboot should offer these boots again"},
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
        # A standby has the reason AnotherLedger all the time, so that reason fires no alert.
        (Alert("GitbootBecameStandby", "warning", "1h", '="BecameStandby"'),),
        event="BecameStandby",
    ),
    ConditionType(
        "LedgerWritable",
        {
            "Failed": (
                "df -h STATE && ls -l STATE  # make room or correct the permissions. Do not delete files in STATE"
            )
        },
        (Alert("GitbootLedgerNotWritable", "critical", "2m"),),
    ),
    ConditionType(
        "SignedListCurrent",
        {
            "Expired": "gitboot reconcile --state STATE  # renews the list. First check that the clock is right",
            "KeyNotInRoot": _KEYGEN,
            "KeyUnreadable": (
                "ls -l FOLDER  # the folder in the message. The user of gitboot must have access to the key, and other "
                "users must not. If a file is missing, copy it from the host with the root key"
            ),
            "RootExpires": _KEYGEN,
            ANY: "gitboot events --state STATE | tail  # gitboot tries again by itself",
        },
        (Alert("GitbootSignedListNotCurrent", "warning", "30m"),),
        event="SignedListNotCurrent",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "NotificationsSent",
        {ANY: "gitboot events --state STATE | tail  # gitboot tries again by itself and keeps the notices"},
        (Alert("GitbootNotificationsNotSent", "warning", "15m"),),
        event="NotificationsFailing",
        announces_on=Announcement.STATUS,  # not again for each different error
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
        {"Overdue": "git grep -n -A3 -E 'pin:|holds:'  # in a commit, remove the pin or hold, or extend its deadline"},
        (Alert("GitbootOptOutOverdue", "warning", "1h"),),
    ),
    ConditionType(
        "OutputPrivate",
        {"ReadableByAll": "gitboot run … --output-group GROUP  # restart with the group of the web server"},
        (Alert("GitbootOutputReadable", "warning", "1h"),),
    ),
    ConditionType(
        "PowerWavesRunning",
        {"Stopped": "gitboot bmc resolve SERVER --back --state STATE --reason '…'  # after SERVER is back in service"},
        (Alert("GitbootWaveStopped", "critical", "1m"),),
        event="WaveStopped",
    ),
    ConditionType(
        "ProxiesTrusted",
        {"Unnamed": 'trusted-proxies = ["PROXIES"]  # if it is your proxy, add to the file of --config'},
        (Alert("GitbootProxyNotTrusted", "warning", "1h"),),
        event="ProxyNotTrusted",
        announces_on=Announcement.STATUS,  # the message contains addresses that a client can choose
    ),
    ConditionType(
        "Published",
        {"ForeignTree": _ADOPT, ANY: _RETRY},
        (Alert("GitbootNotPublished", "critical", "5m"),),
        event="PublishFailed",
    ),
    ConditionType(
        "Reconciling",
        {"StageHangs": "df -h STATE OUTPUT && ls -l STATE OUTPUT  # look for a disk or a database that hangs"},
        (Alert("GitbootStageHangs", "critical", "0m"),),
    ),
    ConditionType(
        "RecordsVerified",
        {
            "DamagedLedger": _ADOPT,
            "ForeignLedger": _ADOPT,
            "NewLedger": (
                "gitboot records begin adopt --state STATE  # if all servers are installed. If you have exported "
                "records, use that file instead of adopt. Only if no server is installed, use fresh: it installs all "
                "servers and erases their disks"
            ),
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
        announces_on=Announcement.REASON,  # the message changes with each fetch
    ),
    ConditionType(
        "Serving",
        {
            "NotResponding": (
                "gitboot events --state STATE | tail  # gitboot replaces the process by itself. If it hangs again, "
                "look for the cause here"
            ),
            "Restarting": (
                "gitboot events --state STATE | tail  # gitboot restarts the process by itself. If it ends again, look "
                "for the cause here"
            ),
        },
        (Alert("GitbootEndpointNotServing", "critical", "5m"),),
        events={"NotResponding": "EndpointNotResponding"},
    ),
    ConditionType(
        "SourceReady",
        {
            "BranchMissing": _BRANCH,
            "BranchNotNamed": _BRANCH,
            "SourceTooLarge": "fetch-memory = MIB  # or fetch-disk, or remove large files from the history",
            ANY: _RETRY,
        },
        (Alert("GitbootSourceNotReady", "warning", "30m"),),
    ),
    ConditionType(
        "FetchLogReadable",
        {"Unreadable": "ls -ld SPOOL STATE/spool  # check the permissions and the disk"},
        (Alert("GitbootFetchLogUnreadable", "critical", "5m"),),
        event="FetchLogUnreadable",
    ),
    ConditionType(
        "StatusCurrent",
        {"Stale": "df -h STATE OUTPUT  # on the host of the instance. Also check that gitboot run is running"},
        (Alert("GitbootStatusStale", "critical", "10m"),),
    ),
    ConditionType(
        "TargetsCurrent",
        {
            "Behind": (
                "gitboot events --state STATE | tail  # look for errors of the target. gitboot tries again by itself"
            ),
            "ForeignTree": _ADOPT,
            "TransitionOverdue": (
                "gitboot reconcile --state STATE  # tries now. First remove the cause: see the message and gitboot "
                "events"
            ),
            ANY: _RETRY,
        },
        (
            Alert("GitbootTargetsBehind", "warning", "10m"),
            Alert("GitbootTransitionOverdueAtTarget", "critical", "1m", '="TransitionOverdue"'),
        ),
        event="TargetBehind",
    ),
    ConditionType(
        "ThreadsRunning",
        {
            "Died": (
                "gitboot events --state STATE | tail  # shows the last errors. The traceback is in the log of "
                "gitboot run: report it as a bug"
            )
        },
        (Alert("GitbootThreadDied", "warning", "0m"),),
        event="ThreadDied",
        announces_on=Announcement.STATUS,  # not again each time a thread dies
    ),
    ConditionType(
        "OutputTreeReadable",
        {
            "Absent": "gitboot run REPOSITORY --out OUTPUT --state STATE",
            "UnknownFormat": "gitboot --version  # has to be the same here and on the host of the instance",
            "Unreadable": "gitboot reconcile --state STATE  # on the host of the instance",
        },
        (Alert("GitbootOutputTreeUnreadable", "critical", "5m"),),
    ),
    ConditionType(
        "CommitStatusReported",
        {ANY: "gitboot run … --forge KIND=URL TOKEN  # check the URL and the file. gitboot tries again by itself"},
        (Alert("GitbootCommitStatusNotReported", "warning", "30m"),),
    ),
    ConditionType(
        BMC,
        {
            "AnotherMachine": (
                "gitboot bmc resolve SERVER --same --state STATE --reason '…'  # only if the machine is SERVER, for "
                "example with a new mainboard. If not, correct bmc.address in the Server document"
            ),
            "Contended": f"{_ASK}  # first find and stop what else changes the boot override",
            "ForeignMedium": f"{_ASK}  # first find out who uses the images, then eject what is in the way",
            "ForeignOverride": (
                "gitboot bmc resolve SERVER --replace --state STATE --reason '…'  # first find out who set the "
                "override. gitboot then replaces it"
            ),
            "NeedsOperator": (
                "gitboot bmc resolve SERVER --consumed --state STATE --reason '…'  # first look at the console. "
                "--consumed: the machine booted or was reset, and gitboot does not repeat it. If it did not, use "
                "--not-set: gitboot then sets it now"
            ),
            "Overdue": (
                f"{_ASK}  # tries now. If this BMC was removed for good, end the wait: gitboot bmc resolve "
                "SERVER --consumed --state STATE --reason '…'"
            ),
            "Stalled": f"{_ASK}  # first remove the cause in the message",
            "Unsupported": (
                "gitboot explain SERVER --path STATE/repository.git --rev refs/gitboot/accepted  # shows the policy "
                "and the profile. Change there what the message names"
            ),
            "Waiting": f"{_ASK}  # tries now. Usually you only have to wait",
        },
        (Alert("GitbootBmcsStalled", "warning", "15m", '!="Waiting"'),),  # Waiting is retried
        event="OverrideStalled",
        events={"Overdue": "OverrideOverdue", "Waiting": "OverrideWaiting"},
    ),
)
CONDITIONS: Final[Mapping[str, ConditionType]] = {each.name: each for each in _TYPES}


def find_condition_type(type: str) -> ConditionType | None:
    """Return the declaration of a condition type, or None if the type is not declared."""
    return CONDITIONS.get(BMC if "/" in type else type)


def find_remedy(type: str, reason: str, values: Mapping[str, str | Sequence[str]] | None = None) -> str | None:
    """Return the remedy of a false condition, or None if no remedy is declared.

    The placeholder STATE stays in the text. ``values`` are values for the other placeholders, as in
    `fill_placeholders`.
    """
    declared, server = find_condition_type(type), type.partition("/")[2]
    line = declared.find_remedy(reason) if declared is not None else None
    return line and fill_placeholders(line, {**(values or {}), **({SERVER: server} if server else {})})


def fill_placeholders(line: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """Replace the placeholders in a line (words in capitals) with shell-quoted values. A word without a value stays.

    A sequence is inserted as several words. If the placeholder is in double quotes, its values are inserted as the
    strings of a TOML list.
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
