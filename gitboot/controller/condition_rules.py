"""Condition rules: derive conditions from the instance state, and the events that report false conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, Final

from msgspec import structs

from gitboot.controller.commit_acceptance import (
    find_untrusted_commit,
    format_accepted_commit,
    format_failed_resume,
    format_rejection,
)
from gitboot.controller.current_plans import Plans
from gitboot.controller.held_commit import describe_ack_message, format_ack_instructions, format_held_commit
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.maintenance_hooks import HookKind
from gitboot.controller.operator_requests import find_fleet_stop
from gitboot.controller.output_conditions import (
    NO_RETRY,
    Finding,
    find_artifact_conditions,
    find_output_conditions,
    find_target_conditions,
    find_withheld_files,
)
from gitboot.controller.records.ledger_trust import (
    CLOCK_TEXTS,
    describe_clock_lag,
    describe_unsynced_clock,
    describe_unverified_ledger,
)
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog import log_entries
from gitboot.fetchlog.one_time_boots import InstallationFetches, SecretFetches, describe_secret
from gitboot.http_client import format_origin
from gitboot.jsonio import format_instant
from gitboot.model.fleet import NO_LEDGER
from gitboot.problems import Code
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, Run, StepEvidence, StopScope
from gitboot.resolve.server_plan import Cause, InstallState
from gitboot.review.acknowledgements import SHOWN_DIGITS
from gitboot.status.conditions import LOCKED_LEDGER, OR_WRITE, Condition, Event, find_condition_type, find_remedy
from gitboot.text import format_age, format_count, format_omitted

_EXPECTED: Final = "This is expected if the other instance is meant to be active"
_MAX_JOINED: Final = 3  # servers that most messages name
_MAX_ANSWERS: Final = 3  # answers of URLs that one message contains
_MAX_SECRETS: Final = 3  # secrets that one message names
# Maximum number of servers in a remedy. When the operator has handled these servers, the remedy names the next ones.
_MAX_NAMED: Final = 20


def conditions(state: InstanceState, at: datetime) -> tuple[Condition, ...]:
    """Return all conditions, sorted by type.

    A condition's last transition time changes only when the condition's status changes.
    """
    found = [
        *_find_source_conditions(state, at),
        *_find_ledger_conditions(state),
        *_find_stop_conditions(state, at),
        *_find_commit_conditions(state, at),
        *_find_maintenance_conditions(state),
        *_find_bmc_conditions(state, at),
        *_find_process_conditions(state),
        *find_target_conditions(state, at),
        *find_output_conditions(state, at),
        *_find_request_conditions(state),
        *_find_secret_conditions(state),
    ]
    values = _collect_remedy_values(state) if not all(status for _, status, _, _ in found) else {}
    known = {each.type: each for each in state.conditions}
    result = []
    for type, status, reason, message in found:
        changed = was.last_transition_time if (was := known.get(type)) is not None and was.status == status else at
        condition = Condition(type=type, status=status, reason=reason, message=message, last_transition_time=changed)
        result.append(
            condition if status else structs.replace(condition, remedy=_build_remedy(condition, state, at, values))
        )
    return tuple(sorted(result, key=lambda each: each.type))


def _collect_remedy_values(state: InstanceState) -> dict[str, str | Sequence[str]]:
    facts, attempt, claims = state.snapshot.facts, state.attempt, state.snapshot.claims
    held, mismatch = attempt.held, state.fetched.branch_mismatch if state.fetched is not None else None
    unlisted = [each.question.url for each in state.hook_failures if each.is_unlisted]
    values = {
        "LEDGER": facts.identity,
        "COMMIT": attempt.attempted or "HEAD",
        "OUTPUT": facts.output,
        "SPOOL": facts.spool,
        "UNTRUSTED": find_untrusted_commit(attempt),
        "REMOVED": attempt.missing_commit.commit if attempt.missing_commit is not None else None,
        "FOLLOWED": mismatch.followed if mismatch is not None else None,
        "BRANCH": mismatch.branch if mismatch is not None else None,
        "KEYFOLDER": state.signed_list.key_folder if state.signed_list is not None else None,
        "DIGEST": held.digest[:SHOWN_DIGITS] if held is not None else None,
        "ORIGIN": format_origin(min(unlisted)) if unlisted else None,
        "CLAIMS": [claim.file for claim in claims],
        "FETCHLOG": claims[0].fetch_log if claims else None,
        "PROXIES": log_entries.list_proxies_to_trust(state.unnamed_proxies),
        "SERVER": min((each.server for each in log_entries.select_reportable_denials(state.denials)), default=None),
    }
    return {name: value for name, value in values.items() if value}


def _build_remedy(
    condition: Condition, state: InstanceState, at: datetime, values: Mapping[str, str | Sequence[str]]
) -> str | None:
    named: Collection[str] = ()
    match condition.type:
        case "PowerWavesRunning":
            values = {**values, "SERVER": min(min(who) for who in state.schedule.stopped_maintenances.values())}
        case "InstallsCompleted":
            unproven = _find_unproven_boots(state, at)
            named = {name for servers in unproven.values() for name in servers}
            if condition.reason == "Failed":  # its remedy installs the servers again
                named = unproven["Failed"]
        case "RecordsVerified":
            named = state.plans.unknown
        case "SecretsPrivate":
            named = _find_unexpected_fetches(state)
        case "LedgerNamed" if (accepted := state.attempt.accepted) is not None and accepted.site is not None:
            return (
                f"ledger: {values['LEDGER']}  # only to make this instance active: stop the other instance, then set "
                f"this for the site {accepted.site} in the Fleet's spec"
            )
        case "MaintenanceRunsStarted":
            named = _find_unknown_serves(state.plans, Cause.MAINTENANCE_OUTCOME) or state.find_overdue_runs(at)
        case "LedgerWritable" if _is_ledger_locked(state.ledger_error or ""):
            return LOCKED_LEDGER
    if named:
        values = {**values, "SERVERS": nsmallest(_MAX_NAMED, named)}
    found, commit = find_remedy(condition.type, condition.reason, values), state.commit
    if (
        found is not None
        and condition.reason == "UnverifiedServers"
        and commit is not None
        and commit.fleet.has_instances_by_site
    ):
        pronoun = "it" if len(named) == 1 else "a server"
        found += (
            f". If another site managed {pronoun} before, run gitboot records hand-over at that site, then run gitboot "
            "records take-over here with the output"
        )
    held, candidate = state.attempt.held, state.attempt.candidate
    if found is not None and condition.reason == "GuardTripped" and held and held.lines and candidate is not None:
        found += f"{OR_WRITE}{describe_ack_message(candidate)}"
    return found


def _find_source_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    attempt, fetched, suspension = state.attempt, state.fetched, state.snapshot.facts.suspension
    served = (attempt.accepted.revision if attempt.accepted is not None else state.snapshot.facts.accepted or "")[:12]
    stays = f". gitboot still serves commit {served}" if served else ""
    until_then = f". Until then, gitboot serves commit {served}" if served else ""
    if attempt.clone_failure is not None:
        reason, message = attempt.clone_failure
        yield (
            "SourceReady",
            False,
            reason,
            f"gitboot cannot read new commits: {message.rstrip('.')}{stays}. gitboot will retry automatically",
        )
    elif fetched is not None and fetched.failed:
        yield (
            "SourceReady",
            False,
            fetched.reason,
            f"gitboot cannot fetch new commits: {fetched.message.rstrip('.')}{stays}. gitboot will retry automatically",
        )
    elif fetched is not None:
        yield "SourceReady", True, fetched.reason, fetched.message
    if fetched is not None and fetched.branch_mismatch is not None:
        yield "BranchFollowed", False, fetched.branch_mismatch.reason, fetched.branch_mismatch.message
    if suspension is not None and at < suspension.until:
        waiting = f". Commit {attempt.waiting[:12]} is waiting" if attempt.waiting is not None else ""
        message = (
            f"{suspension.who} suspended this instance until {format_instant(suspension.until)}, so it does not accept "
            f"commits or set boot overrides. Reason: {suspension.reason}{waiting}"
        )
        yield "AcceptingCommits", False, "Suspended", message
    else:
        yield "AcceptingCommits", True, "Accepting", "gitboot accepts new commits"
    failed_resume = format_failed_resume(attempt)
    if attempt.is_preliminary:
        # A false condition in the previous state is about another commit, or about this commit before it was
        # acknowledged.
        for each in state.conditions:
            if each.type == "CommitAccepted" and each.status:
                yield each.type, each.status, each.reason, each.message
    elif attempt.candidate is not None:
        yield "CommitAccepted", False, "GuardTripped", format_held_commit(attempt.candidate) + failed_resume
    elif attempt.accepted is not None and attempt.accepted.revision == attempt.attempted:
        yield "CommitAccepted", True, "Valid", format_accepted_commit(attempt.accepted, attempt.signer)
    elif attempt.problems:
        is_untrusted = attempt.problems[0].code is Code.UNTRUSTED
        yield (
            "CommitAccepted",
            False,
            "NotEvaluated" if attempt.is_unevaluated else "Untrusted" if is_untrusted else "Invalid",
            f"{format_rejection(attempt)}{until_then if attempt.is_unevaluated else stays}{failed_resume}",
        )
    if (missing_commit := attempt.missing_commit) is not None and missing_commit.servers:
        commit, servers = missing_commit.commit[:12], format_count(missing_commit.servers, "server")
        message = (
            f"the branch was rewritten (force push?) and no longer contains commit {commit}, which had removed the "
            f"install boots for {servers}. gitboot still withholds these boots, because they erase disks. "
        )
        message += (
            f"If you push commit {commit} again, these boots stay removed. If you push any other new commit, gitboot "
            "serves the install boots in that commit"
            if missing_commit.is_here
            else f"gitboot withholds them until the branch contains commit {commit} again. Other new commits do not "
            f"change this, because gitboot no longer has a copy of commit {commit}"
        )
        yield "HistoryComplete", False, "CommitMissing", message


def _find_ledger_conditions(state: InstanceState) -> Iterator[Finding]:
    snapshot, accepted, orders = state.snapshot, state.attempt.accepted, state.attempt.orders
    identity = snapshot.facts.identity
    if state.ledger_error is not None:
        message = (
            f"another process has locked the ledger {state.ledger_error.partition(': ')[0]}"
            if _is_ledger_locked(state.ledger_error)
            else f"gitboot cannot write to the ledger: {state.ledger_error}"
        )
        message += (
            ". gitboot retries every 5 s. Until a write succeeds, gitboot does not record installations or set boot "
            "overrides"
        )
        yield "LedgerWritable", False, "Failed", message
    else:
        yield "LedgerWritable", True, "Writable", "gitboot stored all changes in the ledger"
    if accepted is None:
        return
    if state.commit is None:
        becomes = (
            ". The Fleet in the newest commit names this instance's ledger, so this instance becomes active when "
            "gitboot accepts that commit"
            if orders is not None and orders.ledger == identity
            else ""
        )
        message = (
            f"this instance is a standby, because {_describe_named_ledger(accepted, accepted.ledger, identity)}. It "
            f"does not publish boot files or change BMCs. {_EXPECTED}{becomes}"
        )
        yield "LedgerNamed", False, "AnotherLedger", message
        return
    if not state.may_act:
        acts_next = orders is not None and orders.ledger in (None, identity)
        is_orphaned = accepted.ledger == NO_LEDGER if acts_next else state.is_orphaned
        named = (None if orders is None or acts_next else orders.ledger, accepted.ledger)
        other = next((each for each in named if each not in (None, identity, NO_LEDGER)), None)
        who = _describe_named_ledger(accepted, NO_LEDGER if is_orphaned else other, identity)
        message = (
            f"this instance is now a standby, because {who}. It does not set boot overrides or serve install boots. It "
            "still ends maintenance windows and clears the overrides that it set"
        )
        if acts_next:
            message += (
                ". The Fleet in the newest commit names this instance's ledger, so this instance becomes active again "
                "when gitboot accepts that commit"
            )
        elif not is_orphaned:
            message += f". {_EXPECTED}"
        yield "LedgerNamed", False, "BecameStandby", message
    if (unverified := describe_unverified_ledger(snapshot.facts, accepted.decisions)) is not None:
        yield "RecordsVerified", False, *unverified
    elif unknown := state.plans.unknown:
        message = (
            f"the ledger does not record whether {_join(unknown)} {'is' if len(unknown) == 1 else 'are'} installed, so "
            f"gitboot does not install {'it' if len(unknown) == 1 else 'them'}"
        )
        yield "RecordsVerified", False, "UnverifiedServers", message
    else:
        yield "RecordsVerified", True, "Verified", "the ledger has a record for each server"
    if snapshot.recorded_commit is not None:
        yield _build_evidence_condition(state.plans, accepted)


def _describe_named_ledger(commit: Commit, ledger: str | None, identity: str) -> str:
    if ledger == NO_LEDGER:
        return f"the Fleet does not name a ledger for {commit.site} (this instance's ledger is {identity})"
    named = f"{ledger}; " if ledger is not None else ""
    return f"the Fleet names a different ledger ({named}this instance's ledger is {identity})"


def _is_ledger_locked(error: str) -> bool:
    """Return whether a ledger error shows that another process has locked the ledger file (SQLite, SQLITE_BUSY)."""
    return error.endswith("(database is locked)")


def _build_evidence_condition(plans: Plans, commit: Commit) -> Finding:
    if not plans.unseen:
        return "EvidenceAvailable", True, "Available", "gitboot can observe each one-time boot"
    without_bmc = {each.name for each in commit.machines.values() if each.bmc is None} & plans.unseen
    documents = "documents" if len(without_bmc) > 1 else "document"
    bmcs = f", or add a BMC to the Server {documents} for {_join(without_bmc)}" if without_bmc else ""
    if commit.ledger is None and plans.unseen - without_bmc:
        others = _join(plans.unseen - without_bmc)
        bmcs += (
            f", or name a ledger in the Fleet, so that gitboot can set boot overrides for {others} and see when they "
            "are used"
        )
    message = (
        f"gitboot does not install {_join(plans.unseen)}, because it cannot see whether this server boots"
        if len(plans.unseen) == 1
        else f"gitboot does not install these servers, because it cannot see whether they boot: {_join(plans.unseen)}"
    )
    message += (
        f". The Fleet requires such evidence (evidence: {commit.decisions.evidence}). Start gitboot with --listen or "
        f"--spool{bmcs}"
    )
    return "EvidenceAvailable", False, "NoEvidence", message


def _find_stop_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    facts, claims = state.snapshot.facts, state.snapshot.claims
    by_fleet = find_fleet_stop(state.attempt.accepted, state.attempt.orders)
    if facts.stoppage is not None:
        scope = StopScope.ALL if facts.stoppage.everything else f"all {StopScope.WRITING}"
        yield (
            "InstallsAllowed",
            False,
            "Stopped",
            f"{facts.stoppage.who} stopped {scope}. Reason: {facts.stoppage.reason}",
        )
    elif by_fleet is not None:
        yield "InstallsAllowed", False, "StoppedByFleet", f"the Fleet stops all {StopScope.WRITING}. Reason: {by_fleet}"
    elif claims:
        files = " and ".join(claim.file for claim in claims)
        yield (
            "InstallsAllowed",
            False,
            "SoleClaim",
            (
                f"gitboot withholds {StopScope.WRITING}: {'; '.join(map(str, claims))}. The ledger may not contain all "
                "fetches from that host. Stop gitboot serve on that host, copy the *.jsonl files of its --spool to "
                f"{claims[0].fetch_log} with rsync, then delete {files}"
            ),
        )
    else:
        yield "InstallsAllowed", True, "Allowed", "no stop is in force"
    if (wrong := describe_clock_lag(facts, at)) is not None:
        yield "ClockTrusted", False, "Behind", f"gitboot does not change BMCs, because {wrong}"
    elif (wrong := describe_unsynced_clock(facts, state.clock_state)) is not None:
        yield "ClockTrusted", False, "Unsynchronised", f"gitboot does not change BMCs, because {wrong}"
    else:
        yield "ClockTrusted", True, str(state.clock_state), CLOCK_TEXTS[state.clock_state]


def _find_commit_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    publication, plans, accepted, commit = state.publication, state.plans, state.attempt.accepted, state.commit
    warnings = accepted.decisions.warnings if accepted is not None else ()
    # Earlier versions of gitboot accepted placeholders.
    if found := [each for each in warnings if each.code == Code.PLACEHOLDER_IDENTITY]:
        others = f" {format_omitted(len(found) - 1, 'identity')}".rstrip()
        message = (
            f"{found[0].path}:{found[0].line}: {found[0].message}. gitboot ignores this identity when it looks for the "
            f"server, and rejects new commits that contain this identity{others}"
        )
        yield "IdentitiesUnique", False, "Placeholder", message
    if commit is None:
        return
    if publication.failure is not None:
        (reason, error), applied = publication.failure, publication.applied
        files = (
            f"the boot files from commit {applied[:12]}"
            if applied is not None
            else "the files that are already in OUTPUT"
        )
        message = f"gitboot could not publish all boot files to OUTPUT: {error.rstrip('.')}. Machines still get {files}"
        retry = "" if reason in NO_RETRY else ". gitboot will retry automatically"
        yield "Published", False, reason, f"{message}{retry}"
    elif publication.has_plans_for(commit):
        yield (
            "Published",
            True,
            "Published",
            f"OUTPUT contains the boot files for {format_count(len(plans.servers), 'server')}",
        )
    yield _build_install_condition(state, at)
    yield from find_artifact_conditions(state)
    if unknown := _find_unknown_serves(plans, Cause.MAINTENANCE_OUTCOME):
        yield "MaintenanceRunsStarted", False, "OutcomeUnknown", _describe_unknown_runs(plans, unknown)
    elif overdue := state.find_overdue_runs(at):
        yield "MaintenanceRunsStarted", False, "Overdue", _describe_overdue_runs(overdue)
    if late := [each.what for each in commit.opt_outs if each.until is not None and each.until <= at]:
        message = (
            f"{late[0]} is past its deadline, but remains in effect"
            if len(late) == 1
            else f"these pins or holds are past their deadlines, but remain in effect: {', '.join(late)}"
        )
        yield "OptOutsInTime", False, "Overdue", message
    else:
        yield "OptOutsInTime", True, "InTime", "no pin or hold is past its deadline"


def _describe_unknown_runs(plans: Plans, serves: Mapping[str, StepEvidence]) -> str:
    boots = {name: f"Maintenance/{plan.maintenance}" for name in serves if (plan := plans.servers[name].plan)}
    if len(serves) == 1:
        ((name, seen),) = serves.items()
        return (
            f"gitboot does not know whether {name} got the boot files for {boots[name]}: {_describe_request(seen)}, "
            "but the endpoint did not record whether the transfer completed. gitboot will not serve these files again"
        )
    details = {name: f"{boots[name]}: {_describe_request(seen)}" for name, seen in serves.items()}
    return (
        "gitboot does not know whether these servers got the boot files for their maintenance, because the endpoint "
        f"did not record whether the transfer completed: {_list(details)}. gitboot will not serve these files again"
    )


def _describe_overdue_runs(runs: Mapping[str, tuple[str, Run]]) -> str:
    if len(runs) == 1:
        ((name, (maintenance, run)),) = runs.items()
        what = "fetched the boot files" if run.given is None or run.given.path else "used the boot override"
        return (
            f"{name} {what} for Maintenance/{maintenance} at {format_instant(run.at)}, but the maintenance has not "
            "started. gitboot will not serve these boot files again"
        )
    details = {name: f"Maintenance/{each} at {format_instant(run.at)}" for name, (each, run) in runs.items()}
    return (
        "these servers fetched the boot files for a maintenance, but the maintenance has not started: "
        f"{_list(details)}. gitboot will not serve these boot files again"
    )


def _describe_request(request: StepEvidence) -> str:
    return f"{request.client} requested {request.path} at {format_instant(request.at)}"


def _describe_failure(failure: Failure) -> str:
    when, last = format_instant(failure.at), failure.log.splitlines()[-1:]
    what = f'"{last[0]}"' if last else "the failure"
    return f"{failure.client} reported {what} at {when}"


# The texts for one server and for several servers, the worst reason first. NAMES are the servers.
_UNFINISHED_BOOTS: Final = {
    "OutcomeUnknown": (
        "gitboot does not know whether NAME booted the installer: DETAIL, but the endpoint did not record whether the "
        "transfer completed",
        "gitboot does not know whether these servers booted the installer, because the endpoint did not record whether "
        "the transfer completed: NAMES",
    ),
    "NeedsOperator": (
        "gitboot does not know whether NAME was installed. Its boot override is gone, or was set by another instance",
        "gitboot does not know whether these servers were installed, because their boot overrides are gone, or were "
        "set by another instance: NAMES",
    ),
    "Failed": ("the installation of NAME failed: DETAIL", "the installation of these servers failed: NAMES"),
    "Overdue": (
        "the installation of NAME has made no progress since DETAIL",
        "the installation of these servers has made no progress for more than DURATION: NAMES",
    ),
}


def _build_install_condition(state: InstanceState, at: datetime) -> Finding:
    if found := _find_unproven_boots(state, at):
        texts, duration = list[str](), format_age(state.longest_step.total_seconds())
        for reason, servers in found.items():
            one, several = _UNFINISHED_BOOTS[reason]
            text = several.replace("DURATION", duration).replace("NAMES", _list(servers))
            if len(servers) == 1:
                ((name, detail),) = servers.items()
                if reason == "Overdue":
                    detail = _describe_progress(state.find_overdue_installs(at)[name])
                text = one.replace("NAME", name).replace("DETAIL", detail)
            texts.append(f"{text[0].upper()}{text[1:]}" if texts and not text.startswith("gitboot") else text)
        them = "it" if len({name for servers in found.values() for name in servers}) == 1 else "them"
        return (
            "InstallsCompleted",
            False,
            next(iter(found)),
            f"{'. '.join(texts)}. gitboot will not install {them} again automatically",
        )
    for progress in (InstallState.INSTALLING, InstallState.SERVED):
        if waiting := {name: str(each) for name, each in state.plans.installing.items() if each.state is progress}:
            return "InstallsCompleted", True, progress, f"no evidence of completion yet: {_list(waiting)}"
    return "InstallsCompleted", True, "Completed", "no installation is waiting for evidence of completion"


def _find_unproven_boots(state: InstanceState, at: datetime) -> dict[str, Mapping[str, str]]:
    """Return the servers whose one-time boot was not completed, grouped by reason, with a detail for each server.

    The worst reason comes first.
    """
    plans = state.plans
    found: dict[str, Mapping[str, str]] = {
        "OutcomeUnknown": {
            name: _describe_request(each) for name, each in _find_unknown_serves(plans, Cause.OUTCOME).items()
        },
        "NeedsOperator": dict.fromkeys(plans.consumed | plans.lost, ""),
        "Failed": {
            name: _describe_failure(attempt.failed)
            for name, attempt in plans.begun.items()
            if attempt.failed is not None
        },
        "Overdue": {name: str(each.last_seen) for name, each in state.find_overdue_installs(at).items()},
    }
    return {reason: servers for reason, servers in found.items() if servers}


def _describe_progress(attempt: InstallAttempt) -> str:
    seen = attempt.last_seen
    what = f"{seen.client} fetched {seen.path}" if seen.path else "the server used its boot override"
    started = "the installer started: " if attempt.is_running else ""
    return f"{format_instant(seen.at)}, when {started}{what}"


def _find_unknown_serves(plans: Plans, cause: Cause) -> dict[str, StepEvidence]:
    """Return, by server, the first request that an endpoint may have answered with the boot."""
    return {
        server.decision.server: min(
            (each.seen for each in server.record.unknown_serves if not each.is_withheld), key=lambda seen: seen.at
        )
        for server in (plans.servers[name] for name in plans.unknown_outcomes)
        if server.plan is not None and server.plan.cause is cause and server.record is not None
    }


# What gitboot does at a BMC, before the message of the last task, by reason. NAME is the name of the server.
_BMC_TEXTS: Final = {
    "AnotherMachine": "NAME's BMC may belong to another machine, so gitboot does not change the boot override",
    "Contended": "something other than gitboot keeps changing NAME's boot override, so gitboot no longer sets it",
    "ForeignMedium": "the virtual drives that NAME needs hold images that gitboot did not insert. gitboot does not "
    "eject these images and does not set a boot override",
    "ForeignOverride": "NAME has a boot override that gitboot did not set. gitboot does not change it",
    "NeedsOperator": "gitboot cannot tell whether NAME has booted or has been reset. gitboot does not change the BMC "
    "until you resolve this",
    "Overdue": "gitboot has been unable to change NAME's boot override since TIME. It keeps trying",
    "Stalled": "gitboot could not change NAME's boot override. It retries every 10 minutes",
    "Unsupported": "NAME's BMC does not support the boot that the plan needs, so gitboot does not set a boot override",
    "Waiting": "gitboot has not been able to change NAME's boot override yet. It will retry automatically",
}


def _find_bmc_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    schedule, commit = state.schedule, state.commit
    if schedule.failures >= schedule.max_failures:
        message = (
            f"the last {schedule.failures} BMC tasks failed. Last failure: {schedule.last_failure.rstrip('.')}. "
            "gitboot does not set boot overrides until a BMC responds. It tries one BMC each minute"
        )
        yield "BmcsReachable", False, "FailuresInARow", message
    elif schedule.has_results:
        yield "BmcsReachable", True, "Reachable", "gitboot can reach the BMCs"
    if schedule.uri_rejected:
        by_cause: dict[str, list[str]] = {}
        for each in (schedule.bmcs[uuid] for uuid in schedule.uri_rejected):
            by_cause.setdefault(each.dhcp_reason or "", []).append(each.name)
        servers = "; ".join(f"{_join(names)} ({why})" for why, names in sorted(by_cause.items()))
        yield (
            "HttpBoot",
            True,
            "HttpBootByDhcp",
            f"gitboot cannot set a boot URI on these servers' BMCs, so DHCP must name the boot loader: {servers}",
        )
    for each in (schedule.bmcs[uuid] for uuid in schedule.failing):
        since = format_instant(each.late_since) if each.late_since is not None else ""
        text = _BMC_TEXTS[each.reason(at)].replace("TIME", since).replace("NAME", each.name)
        error = each.message.removeprefix(f"{each.operator_condition}: ")
        yield f"Bmc/{each.name}", False, each.reason(at), f"{text}. Cause: {error}" if error else text
    if commit is not None and state.may_act and (names := commit.select_server_names(schedule.without_named_ledger)):
        message = (
            "the Fleet does not name a ledger, so another instance may set boot overrides on the same BMCs. gitboot "
            f"does not set a boot override for {_join(names)} until the Fleet names this instance's ledger, "
            f"{state.snapshot.facts.identity}"
        )
        yield "BmcsSet", False, "LedgerNotNamed", message
    if schedule.stopped_maintenances:
        minutes = state.longest_step // timedelta(minutes=1)
        stopped = "; ".join(f"Maintenance/{name}: {_join(who)}" for name, who in schedule.stopped_maintenances.items())
        message = (
            f"these servers are not back in service {minutes} minutes after gitboot switched their power: {stopped}. "
            "gitboot does not switch the power of other servers in the maintenance until these servers are back"
        )
        if [len(who) for who in schedule.stopped_maintenances.values()] == [1]:
            ((maintenance, (name,)),) = schedule.stopped_maintenances.items()
            message = (
                f"{name} is not back in service {minutes} minutes after gitboot switched its power for Maintenance/"
                f"{maintenance}. gitboot does not switch the power of other servers in this maintenance until {name} "
                "is back"
            )
        yield "PowerWavesRunning", False, "Stopped", message
    elif schedule.power:
        yield (
            "PowerWavesRunning",
            True,
            "Running",
            f"gitboot may switch the power of {format_count(len(schedule.power), 'server')} for maintenances",
        )


def _find_maintenance_conditions(state: InstanceState) -> Iterator[Finding]:
    groups: defaultdict[tuple[str, Cause], list[str]] = defaultdict(list)
    for name, maintenance in state.plans.waiting.items():
        if (plan := state.plans.servers[name].plan) is not None:
            groups[maintenance, plan.cause].append(name)
    if not groups:
        return
    messages = []
    for (maintenance, cause), names in sorted(groups.items()):
        kind, what = (
            (HookKind.APPROVAL, f"Maintenance/{maintenance} is waiting for approval")
            if cause is Cause.WAITING_FOR_APPROVAL
            else (HookKind.DRAIN, f"Maintenance/{maintenance} is waiting until these servers are drained")
        )
        asked = [each for each in state.hook_failures if each.question.maintenance == maintenance]
        answers = sorted({each.message for each in asked if each.question.kind is kind})
        answer = f" ({'; '.join(answers[:_MAX_ANSWERS])})" if answers else ""
        messages.append(f"{what}: {_join(names, _MAX_NAMED)}{answer}")
    message = f"{'. '.join(messages)}. gitboot does not reset these servers or offer them the maintenance boot"
    if any(each.is_unlisted for each in state.hook_failures):
        yield "MaintenancesCleared", False, "HostNotListed", message
    elif any(cause is Cause.WAITING_FOR_APPROVAL for _, cause in groups):
        yield "MaintenancesCleared", False, "WaitingForApproval", message
    else:
        yield "MaintenancesCleared", False, "WaitingForDrain", message


def _find_process_conditions(state: InstanceState) -> Iterator[Finding]:
    if (endpoints := state.endpoints) is not None:
        is_whole = endpoints.alive == endpoints.expected
        restarts = f", {format_count(endpoints.restarts, 'restart')} since the start" if endpoints.restarts else ""
        hung = f", {endpoints.hung} {'does' if endpoints.hung == 1 else 'do'} not respond" if endpoints.hung else ""
        replaces = "" if is_whole else ". gitboot replaces failed endpoints automatically"
        running = f"{format_count(endpoints.expected, 'endpoint')} {'is' if endpoints.alive == 1 else 'are'} running"
        yield (
            "Serving",
            is_whole,
            "Running" if is_whole else "NotResponding" if endpoints.hung else "Restarting",
            f"{endpoints.alive} of {running}{hung}{restarts}{replaces}",
        )
        if endpoints.unread:
            yield (
                "CredentialsReadable",
                False,
                "Unreadable",
                f"{'; '.join(endpoints.unread)}. The endpoint rejects requests that need these files",
            )
        if endpoints.certificate is not None:
            yield (
                "CertificateReadable",
                False,
                "Unusable",
                f"{endpoints.certificate}. The endpoint continues to use the earlier certificate, if it has one",
            )
    if (forge_report := state.forge_report) is not None and forge_report.failure is not None:
        reason, error = forge_report.failure
        message = f"gitboot could not report the result of a commit to the forge: {error.rstrip('.')}"
        yield "CommitStatusReported", False, reason, f"{message}. gitboot will retry automatically"
    elif forge_report is not None:
        yield (
            "CommitStatusReported",
            True,
            "Reported",
            f"gitboot reported commit {forge_report.commit[:12]} to the forge: {forge_report.report}"
            if forge_report.commit is not None
            else "gitboot has not reported a commit to the forge yet",
        )
    if state.notice_failure is not None:
        reason, error = state.notice_failure
        yield (
            "NotificationsSent",
            False,
            reason,
            f"gitboot could not send notices: {error.rstrip('.')}. gitboot keeps them and will retry automatically",
        )
    if failures := state.thread_failures:
        names = ", ".join(each.thread for each in failures)
        threads, them = (f"{names} thread", "it") if len(failures) == 1 else (f"threads {names}", "them")
        deaths = f" {failures[0].deaths} times since gitboot started" if failures[0].deaths > 1 else ""
        yield (
            "ThreadsRunning",
            False,
            "Died",
            (
                f"gitboot's {threads} failed{deaths}, and gitboot restarted {them}. Last error: {failures[0].message}. "
                "This is a bug in gitboot"
            ),
        )


def _find_request_conditions(state: InstanceState) -> Iterator[Finding]:
    if state.fetch_log_error is not None:
        ignored = "Until this is fixed, gitboot does not see what machines fetch and report"
        yield "FetchLogReadable", False, "Unreadable", f"{state.fetch_log_error}. {ignored}"
    if (found := log_entries.summarise_denials(state.denials)) is not None:
        yield "BootsServed", False, *found
    if named := state.unnamed_proxies:
        yield "ProxiesTrusted", False, "Unnamed", log_entries.build_untrusted_proxy_message(named)


def _find_secret_conditions(state: InstanceState) -> Iterator[Finding]:
    if not (found := _find_unexpected_fetches(state)):
        return
    worst: dict[str, tuple[str, SecretFetches]] = {
        name: max(each.secret_fetches.items(), key=lambda item: (item[1].is_unexpected, *item[1].totals, item[0]))
        for name, each in found.items()
    }
    is_second = any(each.totals[0] > each.confirmed[0] for _, each in worst.values())
    messages = []
    for name, (secret, each) in sorted(worst.items())[:_MAX_SECRETS]:
        addresses, times = each.totals
        names = ", ".join(sorted(each.addresses)[:_MAX_SECRETS])
        unnamed = f" {format_omitted(addresses - _MAX_SECRETS, 'address')}".rstrip()
        messages.append(
            f"{name}: {describe_secret(secret)} was fetched {format_count(times, 'time')} by {names}{unnamed}"
        )
    yield (
        "SecretsPrivate",
        False,
        "SecondAddress" if is_second else "ManyFetches",
        f"{'; '.join(messages)} {format_omitted(len(worst) - _MAX_SECRETS, 'server')}".rstrip(),
    )


def _find_unexpected_fetches(state: InstanceState) -> dict[str, InstallationFetches]:
    machines = state.attempt.accepted.machines if state.attempt.accepted is not None else {}
    return {
        machines[uuid].name: each
        for uuid, each in state.snapshot.secret_fetches.items()
        if each.is_unexpected and uuid in machines
    }


def _list(details: Mapping[str, str]) -> str:
    first = (f"{name} ({details[name]})" if details[name] else name for name in nsmallest(_MAX_JOINED, details))
    return f"{', '.join(first)} {format_omitted(len(details) - _MAX_JOINED)}".rstrip()


def _join(names: Collection[str], max_names: int = _MAX_JOINED) -> str:
    return f"{', '.join(nsmallest(max_names, names))} {format_omitted(len(names) - max_names)}".rstrip()


def build_condition_events(
    before: Iterable[Condition], now: Iterable[Condition], state: InstanceState, at: datetime
) -> Iterator[Event]:
    """Yield an event for each false condition that changed, if its condition type declares an event."""
    known = {each.type: each for each in before}
    # Without the name and the time that the condition contains, the events of several servers can be merged.
    tasks = {bmc.name: bmc.message for bmc in (state.schedule.bmcs[uuid] for uuid in state.schedule.failing)}
    for each in now:
        if each.status or each == known.get(each.type) or (declared := find_condition_type(each.type)) is None:
            continue
        if (type := declared.find_event_type(known.get(each.type), each)) is not None:
            server = each.type.removeprefix("Bmc/")
            message = each.message if server == each.type else f"{server}: {tasks.get(server, each.message)}"
            if type == "Held" and state.attempt.candidate is not None:  # an event has no remedy
                message = f"{message}. {format_ack_instructions(state.attempt.candidate)}"
            yield Event(at=at, type=type, message=message, facts=_build_event_facts(each, state, at), warning=True)


def _build_event_facts(condition: Condition, state: InstanceState, at: datetime) -> dict[str, Any]:
    held = state.attempt.held
    match condition.type:
        case "ArtifactsPresent":
            return {
                "artifacts": sorted(
                    {each.file.url for each in (*find_withheld_files(state), *state.plans.withheld_from_ipxe)}
                )
            }
        case "PowerWavesRunning":
            return {"servers": sorted({each for who in state.schedule.stopped_maintenances.values() for each in who})}
        case "MaintenancesCleared":
            return {"servers": sorted(state.plans.waiting)}
        case "MaintenanceRunsStarted":
            return {
                "servers": sorted(
                    _find_unknown_serves(state.plans, Cause.MAINTENANCE_OUTCOME) or state.find_overdue_runs(at)
                )
            }
        case "CommitAccepted" if held is not None:
            return {"commit": held.commit, "digest": held.digest, "guards": list(held.guards)}
        case "InstallsCompleted":
            return {"servers": sorted(set().union(*_find_unproven_boots(state, at).values()))}
        case "HistoryComplete" if (missing_commit := state.attempt.missing_commit) is not None:
            return {"commit": missing_commit.commit}
        case "SecretsPrivate":
            return {"servers": sorted(_find_unexpected_fetches(state))}
        case type if type.startswith("Bmc/"):
            return {"server": type.removeprefix("Bmc/")}
    return {}
