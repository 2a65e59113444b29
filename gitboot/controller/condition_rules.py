"""Conditions of an instance, derived from where it stands; and the events that announce their turns; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, Final

from gitboot.artifacts.availability import Presence, Sighting, is_withheld
from gitboot.bmc.override_state import OperatorCondition
from gitboot.controller.acceptance import Attempt, accepted_message, held_message, refused_message
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.current_plans import ImageFile, Plans
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.controller.learn.ledger_trust import behind, doubt_of, unkept
from gitboot.controller.operator_requests import stopped_by_fleet
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog import log_entries
from gitboot.fetchlog.one_time_boots import InstallationFetches, SecretFetches, described
from gitboot.jsonio import format_instant
from gitboot.model.fleet import NOBODY
from gitboot.problems import Code
from gitboot.resolve.server_decision import BootFile, Decisions
from gitboot.resolve.server_plan import Cause, Halt, InstallState, SoleClaim
from gitboot.status.conditions import Condition, remedy
from gitboot.status.events import Event
from gitboot.status.instance_status import Endpoints, Following, SignedListState, Telling, ThreadFailure
from gitboot.system_clock import Keeping
from gitboot.text import count, more, some

_BEGIN: Final = "say it once: gitboot records begin"
_HINTS: Final = {
    "NewLedger": f"{_BEGIN} fresh (none is), adopt (all are), or a file of exported records",
    "RestoredLedger": f"{_BEGIN} with exported records (ops/records of the published tree), adopt (all "
    "is as Git wants it), or as-recorded (the ledger is right)",
    "ForeignLedger": f"choose another --out, or {_BEGIN} with ops/records of that tree, or adopt",
    "DamagedLedger": f"{_BEGIN} with ops/records of the published tree, or adopt (all is as Git wants it)",
}
_KEPT: Final = {
    Keeping.SYNCHRONISED: "a time service keeps it right",
    Keeping.UNSYNCHRONISED: "a person has accepted it as it is",
    Keeping.UNKEPT: "nobody keeps it, as the kernel knows",
    Keeping.UNKNOWN: "the kernel does not say who keeps it",
}


def conditions(standing: InstanceState, at: datetime) -> tuple[Condition, ...]:
    """All conditions, by type; each holds since ``at``, or for as long as it did before."""
    found = [
        *_of_the_source(standing, at),
        *_of_the_ledger(standing, at),
        *_of_stops(standing, at),
        _of_the_clock(standing, at),
        *_of_the_fleet(standing, at),
        *_of_identities(standing.attempt, at),
        *_of_withheld_boots(standing.attempt, at),
        *_of_bmcs(standing.schedule, at),
        *_of_who_sets_them(standing, at),
        *_of_waves(standing, at),
        *_of_endpoints(standing.serving, at),
        *_of_the_forge(standing.telling, at),
        *_of_notices(standing.unsent, at),
        *_of_threads(standing.died, at),
        *_of_targets(standing.following, at),
        *_of_the_list(standing.signed_list, at),
        *_of_one_time_boots(standing, at),
        *_of_what_was_asked_for(standing, at),
        *_of_secrets(standing, at),
        *_of_the_output(standing, at),
    ]
    given = _given(standing) if not all(each.status for each in found) else {}
    told = (each if each.status else replace(each, remedy=_remedy(each, standing, at, given)) for each in found)
    return carried(standing.conditions, sorted(told, key=lambda each: each.type))


def carried(before: Iterable[Condition], now: Iterable[Condition]) -> tuple[Condition, ...]:
    """``now``, with the instant since which each status holds: that of ``before`` where it is the same."""
    known = {each.type: each for each in before}
    return tuple(
        each if (was := known.get(each.type)) is None or was.status != each.status else replace(each, since=was.since)
        for each in now
    )


def _given(standing: InstanceState) -> dict[str, str | Sequence[str]]:
    """What words in capitals of any remedy stand for."""
    given: dict[str, str | Sequence[str]] = {
        "LEDGER": standing.knowledge.facts.identity,
        "COMMIT": standing.attempt.attempted or "HEAD",
    }
    if (output := standing.knowledge.facts.output) is not None:
        given["OUTPUT"] = output
    if (held := standing.attempt.held) is not None:
        given |= {"DIGEST": held.digest, "GUARDS": [word for guard in held.guards for word in ("--guard", guard)]}
    if claims := standing.knowledge.claims:
        given |= {"CLAIMS": [claim.file for claim in claims], "FETCHLOG": claims[0].fetch_log}
    if proxies := log_entries.proxies_to_name(standing.unnamed_proxies):
        given["PROXIES"] = proxies
    refusals = {each.server for each in log_entries.telling(standing.refused)}
    return given | ({"SERVER": min(refusals)} if refusals else {})


def _remedy(
    condition: Condition, standing: InstanceState, at: datetime, given: Mapping[str, str | Sequence[str]]
) -> str | None:
    """What leads out of a condition, for a first server where it is one of several."""
    named: Collection[str] = ()
    match condition.type:
        case "PowerWaves":
            given = {**given, "SERVER": min(min(who) for who in standing.schedule.stopped.values())}
        case "BootsProven":
            unproven = _unproven(standing, at)
            named = {name for servers in unproven.values() for name in servers}
        case "RecordsKnown":
            named = standing.plans.unknown
        case "SecretsPrivate":
            named = unexpected_fetches(standing)
        case "LedgerNamed" if (accepted := standing.attempt.accepted) is not None and accepted.site is not None:
            return f"ledger: {given['LEDGER']}  # of the site {accepted.site}, in the spec of the Fleet"
    if named:
        given = {**given, "SERVERS": nsmallest(_MOST_NAMED, named)}
    found, commit = remedy(condition.type, condition.reason, given), standing.commit
    if found is not None and condition.reason == "UnknownServers" and commit is not None:
        found += "; or: take-over FILE, from another site" if commit.fleet.has_instances_by_site else ""
    return found


_MOST_NAMED: Final = 20  # in one line; the next has the others


def _condition(type: str, status: bool, reason: str, message: str, at: datetime) -> Condition:
    return Condition(type=type, status=status, reason=reason, message=message, since=at)


def _of_the_source(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    attempt, fetched, suspension = standing.attempt, standing.fetched, standing.knowledge.facts.suspension
    if attempt.trouble is not None:
        yield _condition("SourceReady", False, *attempt.trouble, at)
    elif fetched is not None:
        yield _condition("SourceReady", not fetched.failed, fetched.reason, fetched.message, at)
    if fetched is not None and fetched.elsewhere is not None:
        yield _condition("BranchFollowed", False, *fetched.elsewhere, at)
    if suspension is not None and at < suspension.until:
        until = format_instant(suspension.until)
        message = f"suspended by {suspension.who} until {until}: {suspension.reason}"
        message += f"; {attempt.waiting[:12]} waits" if attempt.waiting is not None else ""
        yield _condition("Accepting", False, "Suspended", message, at)
    else:
        yield _condition("Accepting", True, "Accepting", "new commits are accepted", at)
    if attempt.is_preliminary:
        # What was false before is about another commit, or about a commit that is acknowledged now.
        yield from (each for each in standing.conditions if each.type == "CommitAccepted" and each.status)
    elif attempt.candidate is not None:
        yield _condition("CommitAccepted", False, "GuardTripped", held_message(attempt.candidate), at)
    elif attempt.accepted is not None and attempt.accepted.revision == attempt.attempted:
        yield _condition("CommitAccepted", True, "Valid", accepted_message(attempt.accepted, attempt.signer), at)
    elif attempt.attempted is not None or attempt.retry_at is not None:
        is_untrusted = attempt.problems[0].code is Code.UNTRUSTED
        yield _condition(
            "CommitAccepted",
            False,
            "NotEvaluated" if attempt.is_unevaluated else "Untrusted" if is_untrusted else "Invalid",
            refused_message(attempt),
            at,
        )


def _of_identities(attempt: Attempt, at: datetime) -> Iterator[Condition]:
    """Yield whether the accepted commit identifies each server: an earlier version accepted placeholders."""
    decisions = attempt.accepted.decisions if attempt.accepted is not None else None
    found = [each for each in decisions.warnings if each.code == Code.PLACEHOLDER_IDENTITY] if decisions else []
    if found:
        first = f"{found[0].path}:{found[0].line}: {found[0].message}"
        others = f" {more(len(found) - 1, 'identity')}".rstrip()
        message = f"{first}; gitboot does not look for the server by it, and accepts no commit that has it{others}"
        yield _condition("IdentitiesUnique", False, "Placeholder", message, at)


def _of_withheld_boots(attempt: Attempt, at: datetime) -> Iterator[Condition]:
    """Yield whether the branch has the commit that takes install boots back, if these stay withheld without it."""
    if (gone := attempt.gone) is not None and gone.servers:
        servers = count(gone.servers, "server")
        newer = "you push a newer commit" if gone.is_here else "the branch has that commit again"
        message = (
            f"the branch does not have {gone.commit[:12]}, which takes the install boots of {servers} back: gitboot "
            f"withholds these boots until {newer}, or you start gitboot once with --allow-rewind"
        )
        yield _condition("HistoryKept", False, "CommitGone", message, at)


def _of_endpoints(serving: Endpoints | None, at: datetime) -> Iterator[Condition]:
    if serving is not None:
        is_whole = serving.alive == serving.wanted
        restarts = f", {count(serving.restarts, 'restart')} since the start" if serving.restarts else ""
        hung = f", {serving.hung} not responding" if serving.hung else ""
        message = f"{serving.alive} of {count(serving.wanted, 'endpoint')} running{hung}{restarts}"
        yield _condition(
            "Serving",
            is_whole,
            "Running" if is_whole else "NotResponding" if serving.hung else "Restarting",
            message,
            at,
        )
        if serving.unread:
            message = f"{'; '.join(serving.unread)}: what needs them is refused until they can be read"
            yield _condition("CredentialsRead", False, "Unreadable", message, at)
        if serving.certificate is not None:
            message = f"{serving.certificate}: operators are shown the certificate of before, as long as there is one"
            yield _condition("CertificateRead", False, "Unusable", message, at)


def _of_notices(unsent: tuple[str, str] | None, at: datetime) -> Iterator[Condition]:
    if unsent is not None:
        yield _condition("NoticesSent", False, *unsent, at)


def _of_threads(died: Sequence[ThreadFailure], at: datetime) -> Iterator[Condition]:
    if died:
        names = ", ".join(each.thread for each in died)
        word = "thread" if len(died) == 1 else "threads"
        message = (
            f"the {word} {names} died, and {'starts' if len(died) == 1 else 'start'} again: {died[0].message} (time "
            f"{died[0].deaths}; this is a fault of gitboot, and its traceback is in the log)"
        )
        yield _condition("ThreadsRunning", False, "Died", message, at)


def _of_the_forge(telling: Telling | None, at: datetime) -> Iterator[Condition]:
    if telling is not None and telling.failure is not None:
        yield _condition("VerdictTold", False, *telling.failure, at)
    elif telling is not None:
        told = f"{telling.commit[:12]}: {telling.says}" if telling.commit is not None else "nothing yet"
        yield _condition("VerdictTold", True, "Told", f"the forge was told: {told}", at)


def _of_targets(following: Collection[Following], at: datetime) -> Iterator[Condition]:
    """Yield whether each target holds what is published, or takes it over just now; the worst target is named."""
    if not following:
        return
    failing = [each for each in following if each.failure is not None]
    overdue = [each for each in following if each.overdue_since is not None and each.overdue_since + _OVERDUE <= at]
    late = [each for each in following if each.behind_since is not None and each.behind_since + _LATE <= at]
    if overdue:
        first = min(overdue, key=lambda each: (each.overdue_since or at, each.name))
        why = f": {first.failure[1]}" if first.failure is not None else ""
        others = f"; and {count(len(overdue) - 1, 'other target')}" if len(overdue) > 1 else ""
        message = (
            f"{first.name} has not been brought up since {format_instant(first.overdue_since or at)}, so machines that "
            f"boot from there may boot what a window that has ended offered{why}{others}"
        )
        yield _condition("TargetsCurrent", False, "TransitionOverdue", message, at)
    elif failing:
        reason, message = failing[0].failure or ("", "")
        since = f"; behind since {format_instant(failing[0].behind_since)}" if failing[0].behind_since else ""
        others = f"; and {count(len(failing) - 1, 'other target')}" if len(failing) > 1 else ""
        yield _condition("TargetsCurrent", False, reason, f"{message}{since}{others}", at)
    elif late:
        message = ", ".join(f"{each.name} since {format_instant(each.behind_since or at)}" for each in late)
        yield _condition("TargetsCurrent", False, "Behind", f"not all that is published is there: {message}", at)
    else:
        message = f"{count(len(following), 'target')} hold what is published, or take it over just now"
        yield _condition("TargetsCurrent", True, "Current", message, at)


_LATE: Final = timedelta(minutes=5)
_OVERDUE: Final = timedelta(minutes=2)  # so long verify-mirror, too, accepts the version before a transition


def _of_the_list(found: SignedListState | None, at: datetime) -> Iterator[Condition]:
    """Yield whether the signed list is of what is published, and for how long copies may use it."""
    if found is None or (found.expires is None and found.failure is None):
        return
    expires = f"; the list expires at {format_instant(found.expires)}" if found.expires is not None else ""
    if found.failure is not None:
        reason, message = found.failure
        yield _condition("ListCurrent", False, reason, f"the list was not written: {message}{expires}", at)
    elif found.expires is not None and found.expires <= at:
        yield _condition("ListCurrent", False, "Expired", f"the list expired at {format_instant(found.expires)}", at)
    elif found.root_expires is not None and found.root_expires - at <= _ROOT_WARNING:
        message = f"the root metadata expires at {format_instant(found.root_expires)}, and then readers reject the list"
        yield _condition("ListCurrent", False, "RootExpires", message, at)
    elif found.signed:
        yield _condition("ListCurrent", True, "Signed", f"the list is signed{expires}", at)
    else:
        yield _condition("ListCurrent", True, "Unsigned", f"no key signs the list{expires}", at)


_ROOT_WARNING: Final = timedelta(days=60)  # for a person to bring the root key and the new files together


# A log without the User-Agent leaves open who fetched a boot: see `gitboot.fetchlog.access_logs`.
_NEW_LOGS: Final = (
    "Before you let copies serve them, install the new ops/serve/nginx.conf or ops/serve/Caddyfile of OUTPUT on each "
    "mirror: the log of an older nginx.conf has no User-Agent, so a fetch by GRUB or PXELINUX proves no installation"
)


def _of_one_time_boots(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    """Yield whether a copy lacks one-time boots that no endpoint serves in its place."""
    commit, left = standing.commit, standing.knowledge.facts.left_output or frozenset()
    names = sorted(commit.machines[uuid].name for uuid in left if uuid in commit.machines) if commit else []
    lacking = [each for each in standing.following if each.withheld]
    if names:
        message = (
            f"an upgrade took the one-time boots of {count(len(names), 'server')} out of OUTPUT, because no copy "
            f"records a fetch: {some(names, _MOST_NAMED)}; name an endpoint in the Fleet, or let copies serve them by "
            f"spec.serving.oneTimeBoots: Copies. {_NEW_LOGS}"
        )
        yield _condition("OneTimeBootsServed", False, "LeftOutput", message, at)
    elif lacking:
        message = (
            f"{lacking[0].name} has no one-time boots, for {count(lacking[0].withheld, 'server')}: it cannot record a "
            f"fetch, and the Fleet names no endpoint. {_NEW_LOGS}"
        )
        yield _condition("OneTimeBootsServed", False, "NoEndpoint", message, at)
    elif standing.following:
        message = "no target lacks a one-time boot that no endpoint serves"
        yield _condition("OneTimeBootsServed", True, "Served", message, at)


def _of_what_was_asked_for(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    if standing.unread is not None:
        message = f"{standing.unread}: what machines fetch and report is not noticed until it is"
        yield _condition("SpoolRead", False, "Unreadable", message, at)
    if (found := log_entries.first_of(standing.refused)) is not None:
        reason, message = found
        yield _condition("BootsGiven", False, reason, message, at)
    if named := standing.unnamed_proxies:
        yield _condition("ProxiesNamed", False, "Unnamed", log_entries.unnamed_message(named), at)


def _of_the_output(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    if standing.is_output_open:
        message = (
            "everybody who has a login on this host can read OUTPUT, and so the tokens of installations: an earlier "
            "version made this ledger. Name the group that may read OUTPUT, such as that of the web server"
        )
        yield _condition("OutputClosed", False, "ReadableByAll", message, at)


def _of_secrets(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    """Whether a secret was fetched by more than one address, or more than ten times, in a server's installation."""
    if not (found := unexpected_fetches(standing)):
        return
    worst = {name: max(each.fetched.items(), key=_urgency) for name, each in found.items()}
    is_second = any(each.seen[0] > each.confirmed[0] for _, each in worst.values())
    message = "; ".join(
        f"{name}: {_fetched(secret, each)}" for name, (secret, each) in sorted(worst.items())[:_MOST_SECRETS]
    )
    others = f" {more(len(worst) - _MOST_SECRETS, 'server')}".rstrip()
    yield _condition("SecretsPrivate", False, "SecondAddress" if is_second else "ManyFetches", f"{message}{others}", at)


_MOST_SECRETS: Final = 3  # that a message names


def unexpected_fetches(standing: InstanceState) -> dict[str, InstallationFetches]:
    """Return the fetches of secrets that a person should look at, by server."""
    accepted = standing.attempt.accepted
    if accepted is None:
        return {}
    return {
        accepted.machines[uuid].name: each
        for uuid, each in standing.knowledge.secret_fetches.items()
        if each.is_unexpected and uuid in accepted.machines
    }


def _urgency(item: tuple[str, SecretFetches]) -> tuple[bool, int, int, str]:
    name, each = item
    return (each.is_unexpected, *each.seen, name)


def _fetched(secret: str, fetches: SecretFetches) -> str:
    addresses, times = fetches.seen
    names = ", ".join(sorted(fetches.addresses)[:_MOST_SECRETS])
    unnamed = f" {more(addresses - _MOST_SECRETS, 'address')}".rstrip()
    return f"{described(secret)} was fetched {count(times, 'time')} by {names}{unnamed}"


def _of_the_ledger(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    knowledge, accepted = standing.knowledge, standing.attempt.accepted
    if standing.unwritable is not None:
        yield _condition("LedgerWritable", False, "Failed", standing.unwritable, at)
    else:
        yield _condition("LedgerWritable", True, "Writable", "the ledger took all that was new", at)
    if accepted is not None and standing.commit is not None and not standing.acts:
        orders, identity = standing.attempt.orders, knowledge.facts.identity
        acts_next = orders is not None and orders.ledger in (None, identity)
        is_orphaned = accepted.ledger == NOBODY if acts_next else standing.is_orphaned
        who = f"no ledger for {accepted.site}" if is_orphaned else "another ledger"
        message = (
            f"the Fleet names {who}, and this instance has {identity}: nothing is set "
            "any more, and no boot that writes disks is offered; windows end, and what was set is withdrawn"
        )
        if acts_next:
            message += ". By the newest Fleet it acts again, once that is accepted"
        yield _condition("LedgerNamed", False, "StandsBack", message, at)
    if accepted is not None and standing.commit is None:
        whose = f"the ledger {accepted.ledger}" if accepted.ledger != NOBODY else f"no ledger for {accepted.site}"
        message = (
            f"the Fleet names {whose} as the one that publishes and sets, and "
            f"this instance has {knowledge.facts.identity}: nothing is published or set"
        )
        if standing.attempt.orders is not None and standing.attempt.orders.ledger == knowledge.facts.identity:
            message += ". By the newest Fleet it acts, once that is accepted"
        yield _condition("LedgerNamed", False, "AnotherLedger", message, at)
    elif accepted is not None:
        yield _of_the_records(standing, accepted, at)
        if knowledge.settled is not None:
            yield _of_the_evidence(standing.plans, accepted, at)


def _of_stops(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    stoppage = standing.knowledge.facts.stoppage
    by_fleet = stopped_by_fleet(standing.attempt.accepted, standing.attempt.orders)
    if stoppage is not None:
        yield _condition("BootsOffered", False, "Stopped", str(stoppage), at)
    elif by_fleet is not None:
        message = f"{Halt.WRITING} are stopped by the Fleet: {by_fleet}"
        yield _condition("BootsOffered", False, "StoppedByFleet", message, at)
    elif claims := standing.knowledge.claims:
        yield _condition("BootsOffered", False, "SoleClaim", _claimed(claims), at)
    else:
        yield _condition("BootsOffered", True, "Offered", "no boot is stopped", at)


def _claimed(claims: Sequence[SoleClaim]) -> str:
    """Why claims withhold install boots, and what ends that."""
    files = " and ".join(claim.file for claim in claims)
    return (
        f"{Halt.WRITING} are withheld: {'; '.join(map(str, claims))}, and this instance may not know all of them. Stop "
        f"gitboot serve on that host, copy the files *.jsonl of its --spool to {claims[0].fetch_log} with rsync, then "
        f"delete {files}"
    )


def _of_the_clock(standing: InstanceState, at: datetime) -> Condition:
    about, keeping = standing.knowledge.facts, standing.keeping
    if (wrong := behind(about, at)) is not None:
        return _condition("ClockTrusted", False, "Behind", f"nothing is set at BMCs: {wrong}", at)
    if (wrong := unkept(about, keeping)) is not None:
        return _condition("ClockTrusted", False, "Unsynchronised", f"nothing is set at BMCs: {wrong}", at)
    return _condition("ClockTrusted", True, str(keeping), _KEPT[keeping], at)


def _of_the_records(standing: InstanceState, commit: Commit, at: datetime) -> Condition:
    """Of how many servers nothing is known, and why."""
    unknown = standing.plans.unknown
    if (doubt := why_in_doubt(standing.knowledge, commit.decisions)) is not None:
        return _condition("RecordsKnown", False, *doubt, at)
    if unknown:
        message = (
            f"not known whether {_some(unknown)} {'is' if len(unknown) == 1 else 'are'} provisioned: nothing is "
            "installed there; say it with gitboot records set"
        ) + (
            ", or with gitboot records take-over, where another site had it"
            if commit.fleet.has_instances_by_site
            else ""
        )
        return _condition("RecordsKnown", False, "UnknownServers", message, at)
    return _condition("RecordsKnown", True, "Known", "the ledger knows every server", at)


def why_in_doubt(knowledge: Knowledge, decisions: Decisions) -> tuple[str, str] | None:
    """Why the ledger is not trusted, in a word and in words, with what to do; None: it is."""
    if (doubt := doubt_of(knowledge.facts, decisions)) is None:
        return None
    wanting = sum(decision.provision > 0 for decision in decisions.servers.values())
    return doubt, f"{_doubted(doubt, wanting)}: {_HINTS.get(doubt, _HINTS['NewLedger'])}"


def _doubted(doubt: str, wanting: int) -> str:
    """What is wrong with the ledger, and what is not known because of it."""
    match doubt:
        case "RestoredLedger":
            return "this ledger is an older copy: what was installed since it was made is not known"
        case "ForeignLedger":
            return "this ledger is not the one that published this tree: what is installed there is not known"
        case "DamagedLedger":
            return "the ledger was damaged, and a new one cannot know what is installed"
    servers = f"{count(wanting, 'server')} {'wants' if wanting == 1 else 'want'}"
    return f"{servers} provision 1 or more, and a new ledger cannot know whether that is installed"


def _of_the_evidence(plans: Plans, commit: Commit, at: datetime) -> Condition:
    if not plans.unseen:
        return _condition("Evidence", True, "Evident", "each boot made once can be proven", at)
    without = {each.name for each in commit.machines.values() if each.bmc is None} & plans.unseen
    bmcs = f", or give a BMC to {_some(without)}" if without else ""
    if commit.ledger is None and plans.unseen - without:
        bmcs += f", or name a ledger in the Fleet, for BMCs to be set of {_some(plans.unseen - without)}"
    message = (
        f"nothing that reaches this instance could prove that {_some(plans.unseen)} booted (evidence "
        f"{commit.decisions.evidence}): start with --listen or --spool{bmcs}; until then nothing is installed there"
    )
    return _condition("Evidence", False, "NoEvidence", message, at)


def _of_the_fleet(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    publication, plans, commit = standing.publication, standing.plans, standing.commit
    if commit is None:
        return
    if publication.failure is not None:
        yield _condition("Published", False, *publication.failure, at)
    elif publication.stands_for(commit):
        yield _condition("Published", True, "Published", f"what {count(len(plans.servers), 'server')} boot stands", at)
    yield _of_the_boots(standing, at)
    if (sightings := standing.knowledge.sightings) is not None:
        yield _of_the_artifacts(standing, sightings, at)
    yield from _of_the_runs(standing, at)
    late = [each.what for each in commit.opt_outs if each.until is not None and each.until <= at]
    if late:
        yield _condition("OptOutsInTime", False, "Overdue", f"past their deadlines: {', '.join(late)}", at)
    else:
        yield _condition("OptOutsInTime", True, "InTime", "no pin or hold is past its deadline", at)


def _of_the_artifacts(standing: InstanceState, sightings: Mapping[BootFile, Sighting], at: datetime) -> Condition:
    """Whether what machines are to fetch is there, as far as anybody knows."""
    if withheld := _withheld(standing):
        message = (
            f"what boots by a file that is not there is not offered until it is: {_some(_told(withheld, sightings))}"
        )
        return _condition("ArtifactsPresent", False, "Missing", message, at)
    silent = sum(each.presence is Presence.UNKNOWN for each in sightings.values())
    message = f"none is missing; {silent} did not answer" if silent else "none is missing"
    return _condition("ArtifactsPresent", True, "Present", message, at)


def _told(withheld: Mapping[ImageFile, int], sightings: Mapping[BootFile, Sighting]) -> list[str]:
    return [
        f"BootImage/{image} for {count(servers, 'server') if servers else 'unknown machines'} "
        f"({file.url}: {sightings[file].message if file in sightings else 'it was not looked at yet'})"
        for (image, file), servers in withheld.items()
    ]


def _withheld(standing: InstanceState) -> dict[ImageFile, int]:
    """The files because of which boots are not offered, with how many servers may boot by each."""
    commit, sightings = standing.commit, standing.knowledge.sightings
    boots = (commit.decisions.unknown or {}).values() if commit is not None else ()
    by_strangers = {
        ImageFile(boot.image, file): 0 for boot in boots for file in boot.fetched if is_withheld(file, sightings)
    }
    return {**by_strangers, **standing.plans.withheld}


def _of_the_boots(standing: InstanceState, at: datetime) -> Condition:
    """Whether every boot that is made once came, or may still come, to the end that it was made for."""
    found = _unproven(standing, at)
    if not found:
        installing = standing.plans.installing
        for state in (InstallState.INSTALLING, InstallState.SERVED):
            if waiting := {name: str(each) for name, each in installing.items() if each.state is state}:
                message = f"no evidence of completion: {_each(waiting)}"
                return _condition("BootsProven", True, state, message, at)
        return _condition("BootsProven", True, "Proven", "no boot waits for evidence", at)
    message = "; ".join(f"{_UNPROVEN[reason]}: {_each(servers)}" for reason, servers in found.items())
    return _condition(
        "BootsProven",
        False,
        "OutcomeUnknown"
        if "OutcomeUnknown" in found
        else "NeedsOperator"
        if "NeedsOperator" in found
        else "Failed"
        if "Failed" in found
        else "Overdue",
        f"{message}; look at them first",
        at,
    )


_PERHAPS_SERVED: Final = "boot was perhaps served, and its outcome is unknown"
_UNPROVEN: Final = {
    "OutcomeUnknown": f"a {_PERHAPS_SERVED}",
    "NeedsOperator": "an override is gone, or another instance has set it, and nothing shows what became of the boot",
    "Failed": "an installation has failed",
    "Overdue": "an installation has shown nothing new for too long",
}


def _unproven(standing: InstanceState, at: datetime) -> dict[str, Mapping[str, str]]:
    """The servers whose boots came to no end, with what there is to say of each, by reason, the worst first."""
    plans = standing.plans
    unknown = _unknown_serves(plans, Cause.OUTCOME)
    found: dict[str, Mapping[str, str]] = {
        "OutcomeUnknown": unknown,
        "NeedsOperator": dict.fromkeys(plans.consumed | plans.lost, ""),
        "Failed": {name: str(attempt.failed) for name, attempt in plans.begun.items() if attempt.failed is not None},
        "Overdue": {
            name: f"{attempt.step.lower()}: {attempt.last_seen}" for name, attempt in standing.overdue(at).items()
        },
    }
    return {reason: servers for reason, servers in found.items() if servers}


def _unknown_serves(plans: Plans, cause: Cause) -> dict[str, str]:
    """Return the requests to which boots were perhaps served, in words, by server."""
    found = {}
    for state in (plans.servers[name] for name in plans.unknown_outcomes):
        if state.plan is not None and state.plan.cause is cause and state.record is not None:
            serves = [each.seen for each in state.record.unknown_serves if not each.is_withheld]
            found[state.decision.server] = str(min(serves, key=lambda each: each.at))
    return found


def _of_the_runs(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    """Which maintenances' boots were given, and have not started for too long."""
    if unknown := _unknown_serves(standing.plans, Cause.MAINTENANCE_OUTCOME):
        message = f"a maintenance's {_PERHAPS_SERVED}: {_each(unknown)}; look at them first"
        yield _condition("RunsStarted", False, "OutcomeUnknown", message, at)
        return
    found = {name: f"Maintenance/{each[0]}: {each[1].given}" for name, each in standing.overdue_runs(at).items()}
    if found:
        message = f"a maintenance's boot was given and has not started: {_each(found)}; look at them first"
        yield _condition("RunsStarted", False, "Overdue", message, at)


def _each(found: Mapping[str, str], most: int = 3) -> str:
    """The first of many servers, with what there is to say of each."""
    told = (f"{name} ({found[name]})" if found[name] else name for name in nsmallest(most, found))
    return " ".join(filter(None, (", ".join(told), more(len(found) - most))))


def _of_bmcs(schedule: Schedule, at: datetime) -> Iterator[Condition]:
    if schedule.failures >= schedule.most_failures:
        message = (
            f"{schedule.failures} BMCs in a row have failed, {schedule.last_failure}; nothing is set until one answers"
        )
        yield _condition("BmcsReachable", False, "FailuresInARow", message, at)
    elif schedule.has_asked:
        yield _condition("BmcsReachable", True, "Reachable", "BMCs answer, as far as any is asked", at)
    if schedule.left_to_dhcp:
        yield _condition("HttpBoot", True, "LeftToDhcp", _left_to_dhcp(schedule), at)
    for uuid in schedule.failing:
        each = schedule.appointments[uuid]
        yield _condition(f"Bmc/{each.name}", False, each.reason(at), each.message, at)


def _left_to_dhcp(schedule: Schedule) -> str:
    """Whose boots are made otherwise than their plans say, by why; as it is with their BMCs, and no fault."""
    found: dict[str, list[str]] = {}
    for uuid in schedule.left_to_dhcp:
        each = schedule.appointments[uuid]
        found.setdefault(each.left_to_dhcp or "", []).append(each.name)
    told = "; ".join(f"{_some(servers)}, whose BMC {why}" for why, servers in sorted(found.items()))
    return f"plans name a URI, and DHCP names the loader all the same: {told}"


def _of_who_sets_them(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    """Whose BMC is not set because nobody says which instance is to: two would set it both."""
    commit = standing.commit
    if commit is not None and standing.acts and (names := commit.called(standing.schedule.unnamed)):
        message = (
            f"the Fleet names no ledger, and another instance may set the same BMCs: nothing is set at those of "
            f"{_some(names)} until it names this one's, {standing.knowledge.facts.identity}"
        )
        yield _condition("BmcsSet", False, "LedgerUnnamed", message, at)


def _of_waves(standing: InstanceState, at: datetime) -> Iterator[Condition]:
    """Whether the maintenances that switch machines go on."""
    schedule = standing.schedule
    if schedule.stopped:
        minutes = standing.longest_step // timedelta(minutes=1)
        message = "; ".join(f"Maintenance/{name}: {_some(who)}" for name, who in schedule.stopped.items())
        message = f"not back {minutes} minutes after they were switched, and nobody follows: {message}; look at them"
        yield _condition("PowerWaves", False, "Stopped", message, at)
    elif schedule.switching:
        message = f"{count(len(schedule.switching), 'server')} whose power a plan may switch; whoever was is awaited"
        yield _condition("PowerWaves", True, "Going", message, at)


def _some(names: Collection[str], most: int = 3) -> str:
    """The first of many names, of which only those are sorted."""
    return " ".join(filter(None, (", ".join(nsmallest(most, names)), more(len(names) - most))))


# Events


def announcements(
    before: Iterable[Condition], now: Iterable[Condition], standing: InstanceState, at: datetime
) -> Iterator[Event]:
    """What there is to say of conditions that have turned, or that have another reason or message."""
    known = {each.type: each for each in before}
    for each in now:
        last = known.get(each.type)
        if last is not None and (last.status, last.reason, last.message) == (each.status, each.reason, each.message):
            continue
        if not each.status and (type := _announced(each, last)) is not None:
            name = each.type.removeprefix("Bmc/")
            message = each.message if name == each.type else f"{name}: {each.message}"
            facts = _facts(each, standing, at)
            yield Event(at=at, type=type, message=message, facts=facts, warning=True)


def _announced(condition: Condition, before: Condition | None) -> str | None:
    """The type of the event that announces a condition which does not hold; None: others say it."""
    match condition.type, condition.reason:
        case "CommitAccepted", "GuardTripped":
            return "Held"
        case "RecordsKnown", reason if reason != "UnknownServers":
            return "RecordsUnknown"
        case "ClockTrusted", _:
            return "ClockDoubted"
        case "LedgerNamed", _:
            return "StandsBack"
        case "BmcsSet", _:
            return "LedgerUnnamed" if before is None else None  # once, not with each server that comes
        case "BootsOffered", _:
            return "BootsStopped"
        case "BootsProven", _:
            return "NeedsOperator"
        case "RunsStarted", _:
            return "MaintenanceOverdue"
        case "SpoolRead", _:
            return "SpoolUnread"
        case "PowerWaves", _:
            return "WaveStopped"
        case "ArtifactsPresent", _:
            return "BootsWithheld" if before is None or before.status else None  # once: each file is its own event
        case "ThreadsRunning", _:
            return "ThreadDied" if before is None or before.status else None  # once, not with each other death
        case "NoticesSent", _:
            return "NoticesFailing" if before is None or before.status else None  # once, not with each other error
        case "Published", _:
            return "PublishFailed"
        case "TargetsCurrent", _:
            return "TargetBehind"
        case "ListCurrent", _:
            return "ListNotCurrent" if before is None or before.reason != condition.reason else None
        case "OneTimeBootsServed", _:
            return "OneTimeBootsMissing" if before is None or before.reason != condition.reason else None
        case "BmcsReachable", _:
            return "BmcsFailing" if before is None or before.status else None  # once, not with each that fails
        case "BranchFollowed", _:  # once, not with each branch that is checked out
            return "BranchLeft" if before is None or before.status else None
        case "HistoryKept", _:
            return "CommitGone"
        case "Serving", "NotResponding":
            return "EndpointNotResponding"
        case "ProxiesNamed", _:
            return "ProxyUnnamed" if before is None or before.status else None  # once: a stranger chooses its address
        case "BootsGiven", _:
            return "BootNotGiven" if before is None or before.reason != condition.reason else None  # not with each
        case "SecretsPrivate", _:  # once: a stranger who fetches all the time changes the message each time
            return "SecretsFetchedAgain" if before is None or before.reason != condition.reason else None
        case type, reason if type.startswith("Bmc/"):
            return f"Override{'Stalled' if reason in set(OperatorCondition) else reason}"
    return None


def _facts(condition: Condition, standing: InstanceState, at: datetime) -> dict[str, Any]:
    held = standing.attempt.held
    match condition.type:
        case "ArtifactsPresent":
            return {"artifacts": sorted({each.file.url for each in _withheld(standing)})}
        case "PowerWaves":
            return {"servers": sorted({each for who in standing.schedule.stopped.values() for each in who})}
        case "RunsStarted":
            unknown = _unknown_serves(standing.plans, Cause.MAINTENANCE_OUTCOME)
            return {"servers": sorted(unknown or standing.overdue_runs(at))}
        case "CommitAccepted" if held is not None:
            return {"commit": held.commit, "digest": held.digest, "guards": list(held.guards)}
        case "BootsProven":
            return {"servers": sorted({name for servers in _unproven(standing, at).values() for name in servers})}
        case "HistoryKept" if (gone := standing.attempt.gone) is not None:
            return {"commit": gone.commit}
        case "SecretsPrivate":
            return {"servers": sorted(unexpected_fetches(standing))}
        case type if type.startswith("Bmc/"):
            return {"server": type.removeprefix("Bmc/")}
    return {}
