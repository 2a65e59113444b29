"""Conditions: types, reasons and remedies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gitboot.text import shell_words

ANY: Final = "*"  # reasons that are the names of errors
BMC: Final = "Bmc/SERVER"  # the condition of one server's BMC
SERVER: Final = "SERVER"
STATE: Final = "STATE"  # the state directory, which only the command knows that shows a line
_RETRY: Final = "gitboot reconcile --state STATE"
_ASK: Final = "gitboot bmc apply SERVER --state STATE"
_CLOCK: Final = "gitboot records confirm-clock --state STATE --reason '…'"
_RECORD: Final = "gitboot records set SERVERS provisioned --state STATE --reason '…'  # or: pending"
_RUN: Final = "git grep -n 'kind: Maintenance'  # a higher run boots it once more"
_FETCHES: Final = "gitboot secret fetches SERVERS --state STATE  # then, if they are right: --confirm '…'"
_ACT: Final = "ledger: LEDGER  # in the Fleet, of its site or of provisioning, where this instance is to act"
_ADOPT: Final = "gitboot records begin OUTPUT/ops/records --state STATE  # or: adopt"
_ENDPOINT: Final = (
    "endpoint: http://…  # in the spec of the Fleet; or, with the risk: serving: {oneTimeBoots: Copies}, "
    "once each mirror has the new ops/serve/nginx.conf or Caddyfile"
)
# By condition and reason. Words in capitals stand for what `remedy` is given.
REMEDIES: Final[Mapping[str, Mapping[str, str]]] = {
    "Accepting": {"Suspended": "gitboot resume --state STATE"},
    "ArtifactsPresent": {"Missing": "gitboot artifacts verify STATE/repository.git --rev refs/gitboot/accepted"},
    "BmcsReachable": {"FailuresInARow": "gitboot bmc apply --state STATE"},
    "BmcsSet": {"LedgerUnnamed": "provisioning: {ledger: LEDGER}  # in the spec of the Fleet"},
    "BranchFollowed": {
        ANY: "gitboot run … --rev BRANCH  # once: the branch to follow; the ledger keeps it",
    },
    "BootsGiven": {ANY: "gitboot boot-script SERVER --tree OUTPUT"},
    "BootsOffered": {
        "SoleClaim": "rsync -a 'HOST:DIRECTORY/*.jsonl' FETCHLOG/ && rm CLAIMS  # after gitboot serve on HOST ended",
        "Stopped": "gitboot allow-installs --state STATE",
        "StoppedByFleet": "git grep -n stopped:  # the line to take out of the Fleet",
    },
    "BootsProven": {"Failed": _RECORD, "NeedsOperator": _RECORD, "OutcomeUnknown": _RECORD, "Overdue": _RECORD},
    "CertificateRead": {
        "Unusable": "openssl x509 -noout -pubkey -in CERT; openssl pkey -pubout -in KEY  # the same, where both fit"
    },
    "CommitAccepted": {
        "GuardTripped": "gitboot approve DIGEST GUARDS --state STATE --reason '…'",
        "Invalid": "gitboot validate STATE/repository.git --rev COMMIT",
        "NotEvaluated": "commit-seconds = 600  # add it to the file of --config, and start gitboot again",
        "Untrusted": "git log --show-signature COMMIT  # sign it anew, or list its key",
    },
    "ClockTrusted": {"Behind": _CLOCK, "Unsynchronised": _CLOCK},
    "CredentialsRead": {"Unreadable": "ls -l FILE  # that the message names; gitboot reads it again for each request"},
    "Evidence": {"NoEvidence": "gitboot run … --listen HOST:PORT"},
    "HistoryKept": {
        "CommitGone": "gitboot run … --allow-rewind  # once, if these boots are to be offered again",
    },
    "IdentitiesUnique": {"Placeholder": "gitboot validate STATE/repository.git --rev refs/gitboot/accepted"},
    "ListCurrent": {
        "Expired": _RETRY,
        "KeyNotInRoot": "gitboot secret keygen --signed-list FOLDER  # where the root key is; then copy FOLDER here",
        "KeyUnreadable": "ls -l FOLDER  # of list-keys: gitboot must be able to read each file, and others not the key",
        "RootExpires": "gitboot secret keygen --signed-list FOLDER  # where the root key is; then copy FOLDER here",
        ANY: "gitboot events --state STATE | tail  # it is tried again by itself",
    },
    "LedgerNamed": {"AnotherLedger": _ACT, "StandsBack": _ACT},
    "LedgerWritable": {"Failed": "df -h STATE && ls -l STATE"},
    "OutputClosed": {"ReadableByAll": "gitboot run … --output-group GROUP  # with which the web server runs"},
    "OptOutsInTime": {"Overdue": "git grep -n -A3 -E 'pin:|holds:'"},
    "PowerWaves": {"Stopped": "gitboot bmc resolve SERVER --back --state STATE --reason '…'  # once it is in service"},
    "ProxiesNamed": {"Unnamed": 'trusted-proxies = ["PROXIES"]  # add it to the file of --config, if it is your proxy'},
    "OneTimeBootsServed": {"LeftOutput": _ENDPOINT, "NoEndpoint": _ENDPOINT},
    "Published": {"ForeignTree": _ADOPT, ANY: _RETRY},
    "Reconciling": {"StageHangs": "df -h STATE OUTPUT && ls -l STATE OUTPUT  # a disk or a database that hangs"},
    "RecordsKnown": {
        "DamagedLedger": _ADOPT,
        "ForeignLedger": _ADOPT,
        "NewLedger": "gitboot records begin fresh --state STATE  # or: adopt",
        "RestoredLedger": _ADOPT,
        "UnknownServers": _RECORD,
    },
    "RunsStarted": {"OutcomeUnknown": _RUN, "Overdue": _RUN},
    "SecretsPrivate": {"ManyFetches": _FETCHES, "SecondAddress": _FETCHES},
    "Serving": {
        "NotResponding": "gitboot events --state STATE | tail  # gitboot replaces the process by itself",
        "Restarting": "gitboot events --state STATE | tail",
    },
    "SourceReady": {
        "BranchMissing": "gitboot run … --rev BRANCH  # once: the branch to follow; the ledger keeps it",
        "BranchNotNamed": "gitboot run … --rev BRANCH  # once: the branch to follow; the ledger keeps it",
        "SourceTooLarge": "fetch-memory = MIB  # or fetch-disk; or take the large files out of the history",
        ANY: _RETRY,
    },
    "SpoolRead": {"Unreadable": "ls -ld SPOOL STATE/spool  # who may read it, and whether its disk is there"},
    "StatusCurrent": {"Stale": "df -h STATE OUTPUT  # on the host of the instance; and see that gitboot run is alive"},
    "TargetsCurrent": {
        "Behind": "gitboot events --state STATE | tail",
        "ForeignTree": _ADOPT,
        "TransitionOverdue": "gitboot reconcile --state STATE  # tries at once; first remove the cause in the message",
        ANY: "gitboot status --state STATE  # it is tried again by itself",
    },
    "ThreadsRunning": {"Died": "gitboot events --state STATE | tail  # report the traceback in the log"},
    "TreeRead": {
        "Absent": "gitboot run REPOSITORY --out OUTPUT --state STATE",
        "UnknownFormat": "gitboot --version  # here, and where the instance runs: they have to be the same",
        "Unreadable": _RETRY,
    },
    "NoticesSent": {ANY: "gitboot events --state STATE | tail  # it is tried again; what is noted waits"},
    "VerdictTold": {ANY: "gitboot run … --forge KIND=URL TOKEN  # gitboot reads the file TOKEN again at each try"},
    BMC: {
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
}


def remedy(type: str, reason: str, given: Mapping[str, str | Sequence[str]] | None = None) -> str | None:
    """The line that leads out of a condition that does not hold; STATE is left for `with_state`.

    ``given`` has what the other words in capitals stand for, as in `filled`. None: there is no such state.
    """
    head, slash, server = type.partition("/")
    words = {**(given or {}), **({SERVER: server} if slash else {})}
    lines = REMEDIES.get(f"{head}/{SERVER}" if slash else type, {})
    line = lines.get(reason, lines.get(ANY))
    return line and filled(line, words)


def filled(line: str, given: Mapping[str, str | Sequence[str]]) -> str:
    """Return a line with the words in capitals replaced, each value quoted for a shell. A word without a value stays.

    A value of several words is a sequence. A word in double quotes becomes strings of a TOML list.
    """

    def value(word: re.Match[str]) -> str:
        found = given.get(word[1])
        if found is None:
            return word[0]
        words = (found,) if isinstance(found, str) else found
        return ", ".join(map(json.dumps, words)) if word[0].startswith('"') else shell_words(*words)

    return re.sub(r'"?\b([A-Z]{5,})\b"?', value, line)


def with_state(line: str, state: str) -> str:
    """Return a line with the state directory in it."""
    return filled(line, {STATE: state})


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One thing that holds or not, as Kubernetes and Flux word conditions."""

    type: str  # Ready, SourceReady, Stalled …
    status: bool
    reason: str  # one word in CamelCase
    message: str
    since: datetime  # when the status last changed
    remedy: str | None = None  # the line that leads out of it, where it does not hold; STATE: the state directory
