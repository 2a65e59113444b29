"""Condition types, with the remedies, events and alerts of each type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, structs

from gitboot.text import format_count, format_names, quote_words

_MAX_NAMES: Final = 3


class Event(Struct, frozen=True, kw_only=True):
    """An event that gitboot writes to its log and to the audit log, and that `gitboot events` shows."""

    at: datetime
    type: str  # one word in CamelCase, such as Fetched, Accepted or OverrideSet
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether an operator should look into the event


_SERVER_KEYS: Final = ("server", "uuid")  # keys of the facts that identify the server of an event


def merge_events_by_server(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge events that differ only in the name and the UUID of their server.

    A merged event contains the names of all servers and no UUIDs. It takes the place of the first of these events.
    """
    groups: dict[object, list[Event]] = {}
    for number, event in enumerate(events):
        key: object = number
        server = event.facts.get("server")
        if server is not None and event.message.startswith(f"{server}: "):
            text = event.message.removeprefix(f"{server}: ")
            others = sorted((name, str(value)) for name, value in event.facts.items() if name not in _SERVER_KEYS)
            key = event.type, event.at, event.warning, text, tuple(others)
        groups.setdefault(key, []).append(event)
    return tuple(group[0] if len(group) == 1 else _merge_events(group) for group in groups.values())


def _merge_events(events: list[Event]) -> Event:
    first = events[0]
    servers = sorted(str(event.facts["server"]) for event in events)
    facts: dict[str, Any] = {name: value for name, value in first.facts.items() if name not in _SERVER_KEYS}
    facts["servers"] = servers
    text = first.message.removeprefix(f"{first.facts['server']}: ")
    return structs.replace(
        first,
        message=f"{format_count(len(servers), 'server')} ({format_names(servers, _MAX_NAMES)}): {text}",
        facts=facts,
    )


ANY: Final = "*"  # the key for all reasons without their own remedy, such as names of errors
# the condition type for the BMC of a server; gitboot replaces SERVER with the name of the server
BMC: Final = "Bmc/SERVER"
SERVER: Final = "SERVER"
STATUS_CURRENT: Final = "StatusCurrent"
STALE_S: Final = 150.0  # age from which a status is stale: a bit more than two write intervals
STATE: Final = "STATE"  # placeholder for the state directory; the command that shows the remedy fills it in


class Condition(Struct, frozen=True, kw_only=True):
    """A condition of an instance, like the conditions of Kubernetes and Flux."""

    type: str  # such as Ready, SourceReady or Stalled
    status: bool
    reason: str  # one word in CamelCase
    message: str
    last_transition_time: datetime  # when the status last changed
    remedy: str | None = None  # the command or setting that resolves a false condition


class Announcement(Enum):
    """The kinds of changes to a false condition that gitboot reports as events."""

    CHANGE = auto()  # the status, the reason or the message changed
    REASON = auto()  # the status or the reason changed
    STATUS = auto()  # the status changed


class Alert(NamedTuple):
    """A rule in docs/monitoring/alerts.yml.

    `scripts/reference.py` generates the expression, duration and labels of the rule.
    """

    name: str
    severity: str  # critical or warning
    after: str  # the Prometheus duration for which the condition must be false before the alert fires
    reasons: str = ""  # PromQL matcher for the reasons that fire the alert; "": all reasons without another alert
    also: str = ""  # a second PromQL expression that fires the alert


class ConditionType(Struct, frozen=True):
    """The declaration of a condition type, from which gitboot derives documentation, alerts and events."""

    name: str
    # remedies by reason; each is a command or a setting, in which words in capitals are placeholders
    remedies: Mapping[str, str]
    alerts: tuple[Alert, ...]
    event: str | None = None  # event type when the condition becomes false; None: other events report it
    events: Mapping[str, str | None] = field(default_factory=dict)  # event types by reason; they replace `event`
    announces_on: Announcement = Announcement.CHANGE

    def find_remedy(self, reason: str) -> str | None:
        return self.remedies.get(reason, self.remedies.get(ANY))

    def find_event_type(self, previous: Condition | None, current: Condition) -> str | None:
        """Return the type of the event that reports a false condition, or None if the change needs no event."""
        if previous is not None and self._is_same(previous, current):
            return None
        return self.events.get(current.reason, self.event)

    def _is_same(self, previous: Condition, current: Condition) -> bool:
        """Return whether two conditions are the same for an event. `announces_on` names the fields that matter."""
        if previous.status != current.status:
            return False
        if self.announces_on is Announcement.STATUS:
            return True
        if previous.reason != current.reason:
            return False
        return self.announces_on is Announcement.REASON or previous.message == current.message


# A remedy is a command or a setting. Its comment states what to do first ("…, then run this"), or when the command is
# correct ("only if …"), and then what the command does or what else the operator can do.
# `gitboot status` shows the parts between these phrases as steps.
FIRST_REVIEW: Final = "  # first review the changes with "
THEN_APPROVE: Final = ", then run this"
OR_WRITE: Final = ". Or approve it in Git: gitboot status prints a Gitboot-Ack line. Write this line into "
REASON_SEPARATOR: Final = " and "  # between the reasons why a commit is held
_RETRY: Final = "gitboot reconcile --state STATE  # fix the error, then run this to retry now"
_APPLY: Final = "gitboot bmc apply SERVER --state STATE"
_CLOCK: Final = (
    "gitboot records confirm-clock --state STATE --reason '…'  # run this only if this host's clock shows the "
    "correct time. If the time is wrong, correct the clock instead"
)
_RECORD: Final = (
    "gitboot records set SERVERS provisioned --state STATE --reason '…'  # check each server, then run this for the "
    "servers that are installed. For the others, use pending instead of provisioned. gitboot then erases their disks "
    "and installs them"
)
_INSTALL_AGAIN: Final = (
    "gitboot records set SERVERS pending --state STATE --reason '…'  # fix the cause of the failure, then run this. "
    "gitboot then erases the disks of these servers and installs them again. For a server that is installed despite "
    "the failure, use provisioned instead of pending"
)
_RUN: Final = (
    "git grep -n 'kind: Maintenance'  # look at the console of each server. If a server did not boot the maintenance "
    "image, find the Maintenance document with this command in a clone of the fleet repository. Increase its spec.run "
    "by 1, and push the commit. The maintenance then starts again"
)
_FOR_ONE_SERVER: Final = {  # the same remedies for a single server: SERVERS is its name
    _RECORD: (
        "gitboot records set SERVERS provisioned --state STATE --reason '…'  # check SERVERS. If the server is "
        "installed, run this. If it is not installed, use pending instead of provisioned. gitboot then erases the "
        "server's disks and installs the server"
    ),
    _INSTALL_AGAIN: (
        "gitboot records set SERVERS pending --state STATE --reason '…'  # fix the cause of the failure, then run "
        "this. gitboot then erases the disks of SERVERS and installs it again. If SERVERS is installed despite the "
        "failure, use provisioned instead of pending"
    ),
    _RUN: (
        "git grep -n 'kind: Maintenance'  # look at the console of SERVERS. If SERVERS did not boot the maintenance "
        "image, find the Maintenance document with this command in a clone of the fleet repository. Increase its "
        "spec.run by 1, and push the commit. The maintenance then starts again"
    ),
}
_FETCHES: Final = (
    "gitboot secret fetches SERVERS --state STATE  # shows each fetch. If all fetches are legitimate, run this again "
    "with --confirm '…'. If not, change the secret in the system that uses it, then "
    "replace it in the fleet with gitboot secret encrypt"
)
_NAME_LEDGER: Final = (
    "ledger: LEDGER  # do this only if this instance is to become active. Stop the other instance, then replace the "
    "ledger ID in the Fleet document with the ID above"
)
_LAST_RECORDS: Final = "gitboot records begin OUTPUT/ops/records --state STATE"
_ADOPTED: Final = "Git describes what is already installed on every server"
_TAKE_OVER: Final = (
    "If this instance replaces another instance, stop the other instance, then run this to load the records that the "
    f"other instance published last. If OUTPUT/ops/records has no records and {_ADOPTED}, run gitboot records "
    "begin adopt --state STATE instead"
)
_FOREIGN_OUTPUT: Final = (
    f"{_LAST_RECORDS}  # if OUTPUT is the wrong folder, restart gitboot run with another --out. {_TAKE_OVER}"
)
_BRANCH: Final = (
    "gitboot run … --rev BRANCH  # restart gitboot run once with the name of the branch to follow. gitboot remembers "
    "the choice, so later starts do not need this option"
)
_ANY_BRANCH: Final = (
    "gitboot run … --rev BRANCH  # restart gitboot run once with this option to follow BRANCH. To stay on FOLLOWED, "
    "use --rev FOLLOWED. gitboot remembers the choice"
)
_KEYGEN: Final = (
    "gitboot secret keygen --signed-list FOLDER  # run this on the host that has root.key. FOLDER is the directory "
    "that contains root.key. The command renews the metadata and does not change root.key. Then copy all files except "
    "root.key from FOLDER to the instance's list-keys directory"
)
_ENDPOINT: Final = (
    "endpoint: URL  # add this to the Fleet's spec, with the URL at which machines reach gitboot run --listen or "
    "gitboot serve. If you have no endpoint, install the current nginx.conf or Caddyfile from OUTPUT/ops/serve on each "
    "mirror, then set serving: {oneTimeBoots: Copies} instead"
)
_EVENTS: Final = "gitboot events --state STATE | tail  # shows the last errors. gitboot retries automatically"
LOCKED_LEDGER: Final = (  # the remedy of LedgerWritable if another process has locked the file
    "fuser -v STATE/ledger.sqlite  # shows the processes that use the ledger. End the backup, the sqlite3 shell or the "
    "second gitboot that keeps the ledger locked. Do not delete files in STATE"
)
_TYPES: Final = (
    ConditionType(
        "AcceptingCommits",
        {
            "Suspended": (
                "gitboot resume --state STATE  # ask the person who suspended the instance, then run this. The "
                "suspension also ends automatically, at the time in the message"
            )
        },
        (Alert("GitbootSuspended", "warning", "6h"),),
    ),
    ConditionType(
        "ArtifactsPresent",
        {
            "Missing": (
                "gitboot artifacts verify STATE/repository.git --rev refs/gitboot/accepted  # lists the missing files. "
                "Put each file at its URL, or correct the BootImage in Git"
            )
        },
        (Alert("GitbootArtifactsMissing", "warning", "30m"),),
        event="ArtifactsMissing",
        announces_on=Announcement.STATUS,  # each missing file has its own event
    ),
    ConditionType(
        "BmcsReachable",
        {
            "FailuresInARow": (
                "gitboot bmc apply --state STATE  # check the network and the passwords, then run this to contact all "
                "BMCs now"
            )
        },
        (Alert("GitbootBmcsUnreachable", "critical", "10m"),),
        event="BmcsFailing",
        announces_on=Announcement.STATUS,
    ),
    ConditionType(
        "BmcsSet",
        {
            "LedgerNotNamed": (
                "provisioning: {ledger: LEDGER}  # make sure that no other instance manages these servers, then add "
                "this to the Fleet's spec"
            )
        },
        (Alert("GitbootBmcsNotSet", "warning", "10m"),),
        event="LedgerNotNamed",
        announces_on=Announcement.STATUS,  # no new event for each additional server
    ),
    ConditionType(
        "BootsServed",
        {ANY: "gitboot boot-script SERVER --tree OUTPUT  # shows the boot scripts for SERVER"},
        (Alert("GitbootBootWithheld", "warning", "5m"),),
        event="BootWithheld",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "InstallsAllowed",
        {
            "SoleClaim": (
                "rsync -a 'HOST:DIRECTORY/*.jsonl' FETCHLOG/ && rm CLAIMS  # stop gitboot serve on HOST. Then run this "
                "on the instance's host, to copy the fetches and to delete the claim of HOST"
            ),
            "Stopped": (
                "gitboot allow-installs --state STATE  # ask the person who stopped these boots, then run this. "
                "Pending installations then start and erase disks"
            ),
            "StoppedByFleet": (
                "git grep -n stopped:  # run this in a clone of the fleet repository to find the line. Ask its author "
                "whether the stop is still needed. If it is not, remove the line"
            ),
        },
        (Alert("GitbootInstallsStopped", "warning", "15m"),),
        event="InstallsStopped",
    ),
    ConditionType(
        "InstallsCompleted",
        {"Failed": _INSTALL_AGAIN, "NeedsOperator": _RECORD, "OutcomeUnknown": _RECORD, "Overdue": _RECORD},
        (Alert("GitbootInstallsNotCompleted", "warning", "5m"),),
        event="NeedsOperator",
    ),
    ConditionType(
        "BranchFollowed",
        {ANY: _ANY_BRANCH},
        (Alert("GitbootBranchNotFollowed", "warning", "30m"),),
        event="BranchNotFollowed",
        announces_on=Announcement.STATUS,  # no new event each time another branch is checked out
    ),
    ConditionType(
        "CertificateReadable",
        {
            "Unusable": (
                "openssl x509 -noout -pubkey -in CERT; openssl pkey -pubout -in KEY  # both commands must print the "
                "same key. If they do not, replace the files"
            )
        },
        (
            Alert(
                "GitbootCertificateUnreadable",
                "warning",
                "15m",
                also="or on (job, instance) gitboot_operators_certificate_readable == 0\n          "
                "or on (job, instance) gitboot_machines_certificate_readable == 0",
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
                f"gitboot approve DIGEST --all-guards --state STATE --reason '…'{FIRST_REVIEW}"
                f"gitboot diff --accepted OUTPUT ..COMMIT STATE/repository.git{THEN_APPROVE}"
            ),
            "Invalid": (
                "gitboot validate STATE/repository.git --rev COMMIT  # shows the problems. Correct them in a new commit"
            ),
            "NotEvaluated": (
                "commit-seconds = 600  # if the commit has very large files or templates, remove them in a new commit. "
                "If the commit must be this large, add this to the file that you pass with --config, then restart "
                "gitboot run. If the message is about memory, raise commit-memory instead"
            ),
            "Untrusted": (
                "git log --show-signature -1 UNTRUSTED  # run this in a clone of the fleet repository. It shows "
                "whether a signature is missing, or which key made the signature. Ask the author to sign the commit "
                "with a trusted key and to push it again. If you trust the key but gitboot does not know it, add the "
                "key to the trusted keys instead"
            ),
        },
        (
            Alert("GitbootCommitRejected", "warning", "15m", '=~"Invalid|NotEvaluated|Untrusted"'),
            Alert("GitbootCommitHeld", "warning", "1h", '="GuardTripped"'),
        ),
        events={"GuardTripped": "Held"},
    ),
    ConditionType(
        "CredentialsReadable",
        {
            "Unreadable": (
                "ls -l FILE  # correct the file that the message names. gitboot reads the file again for each "
                "request, so you do not need to restart gitboot"
            )
        },
        (Alert("GitbootCredentialsUnreadable", "warning", "5m"),),
    ),
    ConditionType(
        "EvidenceAvailable",
        {
            "NoEvidence": (
                "gitboot run … --listen HOST:PORT  # if machines fetch from this host, restart gitboot run with this "
                "option. If they fetch from gitboot serve or a mirror, use --spool DIRECTORY instead"
            )
        },
        (Alert("GitbootNoEvidence", "warning", "30m"),),
    ),
    ConditionType(
        "HistoryComplete",
        {
            "CommitMissing": (
                "gitboot run … --allow-rewind  # if the branch was changed by mistake, merge REMOVED into the branch "
                "and push it instead. Restart gitboot run once with this option only if gitboot should erase and "
                "install these servers"
            )
        },
        (Alert("GitbootCommitMissing", "warning", "10m"),),
        event="CommitMissing",
    ),
    ConditionType(
        "IdentitiesUnique",
        {
            "Placeholder": (
                "gitboot validate STATE/repository.git --rev refs/gitboot/accepted  # shows the placeholders. Replace "
                "them in a new commit"
            )
        },
        (Alert("GitbootIdentityPlaceholder", "warning", "0m"),),
    ),
    ConditionType(
        "LedgerNamed",
        {"AnotherLedger": _NAME_LEDGER, "BecameStandby": _NAME_LEDGER},
        # A standby has the reason AnotherLedger all the time, so this reason does not fire an alert.
        (Alert("GitbootBecameStandby", "warning", "1h", '="BecameStandby"'),),
        event="BecameStandby",
    ),
    ConditionType(
        "LedgerWritable",
        {
            "Failed": (
                "df -h STATE && ls -l STATE  # free disk space, or correct the permissions. Do not delete files in "
                "STATE"
            )
        },
        (Alert("GitbootLedgerNotWritable", "critical", "2m"),),
    ),
    ConditionType(
        "SignedListCurrent",
        {
            "Expired": (
                "gitboot reconcile --state STATE  # check that this host's clock shows the correct time, then run "
                "this to renew the list"
            ),
            "KeyNotInRoot": _KEYGEN,
            "KeyUnreadable": (
                "ls -l KEYFOLDER  # if the file that the message names is missing, copy it from the host that has "
                "root.key. Otherwise, correct its owner and mode, so that only the user that runs gitboot can read it"
            ),
            "RootExpires": _KEYGEN,
            ANY: _EVENTS,
        },
        (Alert("GitbootSignedListNotCurrent", "warning", "30m"),),
        event="SignedListNotCurrent",
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "MaintenancesCleared",
        {
            "HostNotListed": (
                'maintenance-hosts = ["ORIGIN"]  # only if gitboot may send requests to this host. Add this to the '
                "file that you pass with --config"
            ),
            "WaitingForApproval": (
                "gitboot plan --state STATE  # shows the digest of the maintenance. To approve the maintenance, add "
                "this digest to the file that spec.before.approval names. If spec.before.approval is a URL, approve "
                "there"
            ),
            "WaitingForDrain": (
                "gitboot events --state STATE | tail  # shows the requests to drain servers. gitboot repeats each "
                "request until the window ends"
            ),
        },
        (Alert("GitbootMaintenanceHostNotListed", "warning", "5m", '="HostNotListed"'),),
        events={"HostNotListed": "MaintenanceHostNotListed"},
        announces_on=Announcement.REASON,
    ),
    ConditionType(
        "NotificationsSent",
        {
            ANY: (
                "gitboot events --state STATE | tail  # shows the last errors. gitboot keeps the notices and "
                "retries automatically"
            )
        },
        (Alert("GitbootNotificationsNotSent", "warning", "15m"),),
        event="NotificationsFailing",
        announces_on=Announcement.STATUS,  # no new event each time the error changes
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
        {
            "Overdue": (
                "git grep -n -A3 -E 'pin:|holds:'  # run this in a clone of the fleet repository. In a commit, remove "
                "the pin or the hold, or extend its deadline"
            )
        },
        (Alert("GitbootOptOutOverdue", "warning", "1h"),),
    ),
    ConditionType(
        "OutputPrivate",
        {"ReadableByAll": "gitboot run … --output-group GROUP  # restart gitboot run with the web server's group"},
        (Alert("GitbootOutputReadable", "warning", "1h"),),
    ),
    ConditionType(
        "PowerWavesRunning",
        {
            "Stopped": (
                "gitboot bmc resolve SERVER --back --state STATE --reason '…'  # run this only when SERVER is back "
                "in service"
            )
        },
        (Alert("GitbootWaveStopped", "critical", "1m"),),
        event="WaveStopped",
    ),
    ConditionType(
        "ProxiesTrusted",
        {
            "Unnamed": (
                'trusted-proxies = ["PROXIES"]  # if PROXIES are your own proxies, add this to the file that you '
                "pass with --config"
            )
        },
        (Alert("GitbootProxyNotTrusted", "warning", "1h"),),
        event="ProxyNotTrusted",
        # no new event for each message, because clients can choose the addresses in the message
        announces_on=Announcement.STATUS,
    ),
    ConditionType(
        "Published",
        {"ForeignTree": _FOREIGN_OUTPUT, ANY: _RETRY},
        (Alert("GitbootNotPublished", "critical", "5m"),),
        event="PublishFailed",
    ),
    ConditionType(
        "Reconciling",
        {
            "StageHangs": (
                "df -h STATE OUTPUT && ls -l STATE OUTPUT  # if this command hangs too, check the disks. Otherwise "
                "check the database"
            )
        },
        (Alert("GitbootStageHangs", "critical", "0m"),),
    ),
    ConditionType(
        "RecordsVerified",
        {
            "DamagedLedger": (
                f"{_LAST_RECORDS}  # loads the records that gitboot published last. If that folder has no records and "
                f"{_ADOPTED}, run gitboot records begin adopt --state STATE instead"
            ),
            "ForeignLedger": _FOREIGN_OUTPUT,
            "NewLedger": (
                "gitboot records begin adopt --state STATE  # first check that STATE is the right folder. Run this if "
                f"{_ADOPTED}. If you exported the records of an earlier instance, pass the file with the records "
                "instead of adopt. If no server is installed yet, pass the word fresh. gitboot then erases the disks "
                "of all servers and installs them"
            ),
            "RestoredLedger": (
                f"{_LAST_RECORDS}  # loads the records that gitboot published last. If that folder has no records and "
                f"{_ADOPTED}, run gitboot records begin adopt --state STATE instead. If no server was installed after "
                f"the copy of the ledger was made, run gitboot records begin as-recorded --state STATE instead"
            ),
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
        announces_on=Announcement.REASON,  # no new event for each fetch, which changes the message
    ),
    ConditionType(
        "Serving",
        {
            "NotResponding": (
                "gitboot events --state STATE | tail  # usually you only have to wait. If a process hangs again, look "
                "for the cause in these events"
            ),
            "Restarting": (
                "gitboot events --state STATE | tail  # usually you only have to wait. If a process ends again, look "
                "for the cause in these events"
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
            "SourceTooLarge": (
                "fetch-memory = MIB  # in the file that you pass with --config, raise the limit that the message names "
                "(fetch-memory or fetch-disk). Then restart gitboot run. You can also remove large files from the "
                "history"
            ),
            "CorruptClone": (
                "gitboot reconcile --state STATE  # check the network and the disk that holds STATE, then run this to "
                "clone the repository again"
            ),
            ANY: _RETRY,
        },
        (Alert("GitbootSourceNotReady", "warning", "30m"),),
    ),
    ConditionType(
        "FetchLogReadable",
        {"Unreadable": "ls -ld SPOOL STATE/spool  # correct the permissions, or repair the disk"},
        (Alert("GitbootFetchLogUnreadable", "critical", "5m"),),
        event="FetchLogUnreadable",
    ),
    ConditionType(
        "StatusCurrent",
        {
            "Stale": (
                "df -h STATE OUTPUT  # run this on the instance's host. On the same host, check that gitboot "
                "run is active"
            )
        },
        (Alert("GitbootStatusStale", "critical", "10m"),),
    ),
    ConditionType(
        "TargetsCurrent",
        {
            "Behind": _EVENTS,
            "ForeignTree": (
                f"{_LAST_RECORDS}  # if this is the wrong target, restart gitboot run with another --target. "
                f"{_TAKE_OVER}"
            ),
            "TransitionOverdue": (
                "gitboot reconcile --state STATE  # find the error with gitboot events and fix it, then run this to "
                "retry now. Do not restart machines that boot from this target until the target is up to date"
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
                "gitboot events --state STATE | tail  # shows the last errors. Report the bug with the traceback from "
                "the log of gitboot run"
            )
        },
        (Alert("GitbootThreadDied", "warning", "0m"),),
        event="ThreadDied",
        announces_on=Announcement.STATUS,  # no new event each time a thread dies
    ),
    ConditionType(
        "OutputTreeReadable",
        {
            "Absent": (
                "gitboot run REPOSITORY --out OUTPUT --state STATE  # check that the instance is running, and that it "
                "publishes to the folder that this endpoint serves"
            ),
            "UnknownFormat": "gitboot --version  # install the same version here and on the instance's host",
            "Unreadable": "gitboot reconcile --state STATE  # run this on the instance's host to publish again",
        },
        (Alert("GitbootOutputTreeUnreadable", "critical", "5m"),),
    ),
    ConditionType(
        "CommitStatusReported",
        {
            ANY: (
                "gitboot run … --forge KIND=URL TOKEN  # if the forge is unreachable, you only have to wait. If it "
                "rejects the token or the URL, correct this option"
            )
        },
        (Alert("GitbootCommitStatusNotReported", "warning", "30m"),),
    ),
    ConditionType(
        BMC,
        {
            "AnotherMachine": (
                "gitboot bmc resolve SERVER --same --state STATE --reason '…'  # run this only if the BMC belongs to "
                "SERVER, for example after its mainboard was replaced. gitboot then accepts the new identity. If the "
                "BMC belongs to another machine, correct bmc.address in the Server document instead"
            ),
            "Contended": f"{_APPLY}  # find the tool that changes the boot override and stop it, then run this",
            "ForeignMedium": (
                f"{_APPLY}  # find out who is using the images, and eject the images at the BMC. Then run this to "
                "retry now"
            ),
            "ForeignOverride": (
                "gitboot bmc resolve SERVER --replace --state STATE --reason '…'  # find out who set the override and "
                "why. If it is no longer needed, run this to replace it"
            ),
            "NeedsOperator": (
                "gitboot bmc resolve SERVER --consumed --state STATE --reason '…'  # look at the console of SERVER. If "
                "SERVER has started since gitboot set the override, run this. Otherwise use --not-set instead of "
                "--consumed. gitboot then sets the override again, and the next boot can erase the disks of SERVER"
            ),
            "Overdue": (
                f"{_APPLY}  # fix the cause, then run this to retry now. If this BMC no longer exists, correct "
                "bmc.address in the Server document. Then run gitboot bmc resolve SERVER --consumed --state STATE "
                "--reason '…', so that gitboot stops trying"
            ),
            "Stalled": f"{_APPLY}  # fix the cause, then run this to retry now",
            "Unsupported": (
                "gitboot explain SERVER --path STATE/repository.git --rev refs/gitboot/accepted  # shows the policy of "
                "SERVER. The message names what the BMC does not support. Choose another method or override in this "
                "policy"
            ),
            "Waiting": f"{_APPLY}  # usually you only have to wait. To retry now, run this",
        },
        (Alert("GitbootBmcsStalled", "warning", "15m", '!="Waiting"'),),  # gitboot retries after the reason Waiting
        event="OverrideStalled",
        events={"Overdue": "OverrideOverdue", "Waiting": "OverrideWaiting"},
    ),
)
CONDITIONS: Final[Mapping[str, ConditionType]] = {each.name: each for each in _TYPES}


def find_condition_type(type: str) -> ConditionType | None:
    """Return the declaration of a condition type, or None if the type is not declared."""
    return CONDITIONS.get(BMC if "/" in type else type)


def find_remedy(type: str, reason: str, values: Mapping[str, str | Sequence[str]] | None = None) -> str | None:
    """Return the remedy for a false condition, or None if no remedy is declared.

    `fill_placeholders` replaces the placeholders in the remedy with ``values``. The placeholder STATE stays in the text
    unless ``values`` contains it.
    """
    condition_type = find_condition_type(type)
    line = condition_type.find_remedy(reason) if condition_type is not None else None
    if line is None:
        return None
    all_values = dict(values or {})
    servers = all_values.get("SERVERS", ())
    if isinstance(servers, str) or len(servers) == 1:
        line = _FOR_ONE_SERVER.get(line, line)
    if server := type.partition("/")[2]:
        all_values[SERVER] = server
    return fill_placeholders(line, all_values)


def fill_placeholders(line: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """Replace the placeholders in a line (words in capitals) with shell-quoted values.

    A placeholder without a value stays in the line.

    A sequence is inserted as several words. If the placeholder is in double quotes, the values are inserted as the
    strings of a TOML list.
    """

    def quote_value(word: re.Match[str]) -> str:
        value = values.get(word[1])
        if value is None:
            return word[0]
        words = (value,) if isinstance(value, str) else value
        return ", ".join(map(json.dumps, words)) if word[0].startswith('"') else quote_words(*words)

    return re.sub(r'"?\b([A-Z]{5,})\b"?', quote_value, line)


def fill_state(line: str, state: str) -> str:
    return fill_placeholders(line, {STATE: state})
