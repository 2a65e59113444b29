"""Condition rules: derive conditions from the instance state, and the events that report false conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, Final

from msgspec import structs

from gitboot.artifacts.availability import Presence, Sighting, is_withheld
from gitboot.controller.commit_judgement import describe_ack_message, format_ack_instructions, format_held_commit
from gitboot.controller.current_plans import ImageFile, find_fleet_stop
from gitboot.controller.instance_state import (
    InstanceState,
    find_untrusted_commit,
    format_accepted_commit,
    format_failed_resume,
    format_rejection,
)
from gitboot.controller.records.ledger_trust import (
    CLOCK_TEXTS,
    describe_clock_lag,
    describe_unsynced_clock,
    describe_unverified_ledger,
)
from gitboot.controller.server_conditions import (
    Finding,
    build_evidence_condition,
    build_install_condition,
    find_bmc_conditions,
    find_clearance_conditions,
    find_power_conditions,
    find_run_conditions,
    find_secret_conditions,
    find_unexpected_fetches,
    find_unknown_serves,
    find_unproven_boots,
    join_servers,
)
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog import log_entries
from gitboot.http_client import format_origin
from gitboot.jsonio import format_instant
from gitboot.model.fleet import NO_LEDGER
from gitboot.problems import Code
from gitboot.resolve.provisioning_record import StopScope
from gitboot.resolve.server_decision import BootFile
from gitboot.resolve.server_plan import Cause
from gitboot.review.acknowledgements import SHOWN_DIGITS
from gitboot.status.conditions import LOCKED_LEDGER, OR_WRITE, Condition, Event, find_condition_type, find_remedy
from gitboot.status.instance_status import SignedListState
from gitboot.text import format_count, format_names, format_omitted

NO_RETRY: Final = ("ForeignTree", "LockedByAnother")  # errors of a target after which gitboot does not try again
_LATE: Final = timedelta(minutes=5)  # a target whose files are older than this is behind
_OVERDUE: Final = timedelta(minutes=2)  # after a transition, verify-mirror accepts the previous version for this long
_ROOT_WARNING: Final = timedelta(days=60)  # enough time for an operator to get the root key from its safe
# Maximum number of servers in a message or a remedy. When the operator has handled these servers, the remedy names the
# next ones.
_MAX_NAMED: Final = 20
_NOT_CHECKED: Final = "Machines do not check this list, so they boot as before"


def find_target_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the condition about the targets if the instance has any targets."""
    targets = state.target_status
    if not targets:
        return
    failing = [target for target in targets if target.failure is not None]
    overdue = [target for target in targets if target.overdue_since and target.overdue_since + _OVERDUE <= at]
    late = [target for target in targets if target.behind_since and target.behind_since + _LATE <= at]
    if overdue:
        first = min(overdue, key=lambda target: (target.overdue_since or at, target.name))
        cause = f". Error: {_strip_target(first.failure[1], first.name)}" if first.failure is not None else ""
        others = f" and {format_count(len(overdue) - 1, 'other target')}" if len(overdue) > 1 else ""
        due = format_instant(first.overdue_since or at)
        message = (
            f"gitboot could not update the target {first.name}{others} for a change that was due at {due}, such as the "
            f"end of a maintenance window. Machines that boot from there may still boot the maintenance image{cause}"
        )
        yield "TargetsCurrent", False, "TransitionOverdue", message
    elif failing:
        first = failing[0]
        reason, error = first.failure or ("", "")
        name, behind = first.name, first.behind_since
        others = f" and {format_count(len(failing) - 1, 'other target')}" if len(failing) > 1 else ""
        since = f". Its boot files have been out of date since {format_instant(behind)}" if behind is not None else ""
        retry = "" if reason in NO_RETRY else ". gitboot will retry automatically"
        message = f"gitboot cannot update the target {name}{others}: {_strip_target(error, name)}{since}{retry}"
        yield "TargetsCurrent", False, reason, message
    elif late:
        names = " and ".join(
            f"the boot files of {target.name} have been out of date since {format_instant(target.behind_since or at)}"
            for target in late
        )
        message = f"{names}. Machines that boot from there get older boot files. gitboot will retry automatically"
        yield "TargetsCurrent", False, "Behind", message
    else:
        are = "is" if len(targets) == 1 else "are"
        message = f"{format_count(len(targets), 'target')} {are} up to date or being updated now"
        yield "TargetsCurrent", True, "Current", message


def _strip_target(error: str, name: str) -> str:
    return error.removeprefix(f"{name}: ").rstrip(".")


def find_output_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about the output tree, the signed list and the one-time boots."""
    signed_list = state.signed_list
    if state.is_output_open:
        message = (
            "every user on this host can read OUTPUT and the installation tokens in it, because an earlier version of "
            "gitboot made this ledger. Name the group that may read OUTPUT, for example the group of the web server"
        )
        yield "OutputPrivate", False, "ReadableByAll", message
    if signed_list is not None and (signed_list.expires is not None or signed_list.failure is not None):
        yield _build_signed_list_condition(signed_list, at)
    left_machines = state.snapshot.facts.left_output or frozenset()
    names = sorted(state.commit.select_server_names(left_machines)) if state.commit is not None else []
    limited = [target for target in state.target_status if target.withheld]
    if names:
        boots = "this server boots" if len(names) == 1 else "these servers boot"
        message = (
            f"{format_names(names, _MAX_NAMED)}: {boots} from disk until you set an endpoint in the Fleet. Since the "
            "upgrade, gitboot does not write one-time boots to OUTPUT, because a mirror of OUTPUT does not record who "
            "fetched a file"
        )
        yield "OneTimeBootsServed", False, "OutputWithoutEndpoint", message
    elif limited:
        count = limited[0].withheld
        boots, their = ("This server boots", "its") if count == 1 else ("These servers boot", "their")
        message = (
            f"{format_count(count, 'server')} cannot get {their} one-time boots. The target {limited[0].name} cannot "
            "serve them, because it does not record who fetched a file. The Fleet does not name an endpoint. "
            f"{boots} from disk until you set one"
        )
        yield "OneTimeBootsServed", False, "NoEndpoint", message
    elif state.target_status:
        yield "OneTimeBootsServed", True, "Served", "an endpoint or the targets serve all one-time boots"


def _build_signed_list_condition(signed_list: SignedListState, at: datetime) -> Finding:
    """Return the condition about the list of boot files, its signature and its expiration."""
    expires, root_expires = signed_list.expires, signed_list.root_expires
    until = f" until {format_instant(expires)}" if expires is not None else ""
    if signed_list.failure is not None:
        reason, error = signed_list.failure
        valid = ""
        if expires is not None:
            valid = f". The current list is valid{until}. After that, readers such as gitboot verify-mirror reject it"
        message = f"gitboot could not renew the signed list: {error.rstrip('.')}{valid}. {_NOT_CHECKED}"
        return "SignedListCurrent", False, reason, message
    if expires is not None and expires <= at:
        message = (
            f"the signed list expired at {format_instant(expires)}, so readers such as gitboot verify-mirror reject "
            f"it. {_NOT_CHECKED}"
        )
        return "SignedListCurrent", False, "Expired", message
    if root_expires is not None and root_expires - at <= _ROOT_WARNING:
        message = (
            f"the signed list's root metadata expires at {format_instant(root_expires)}. Until then, the signed list "
            f"is valid. After that, readers such as gitboot verify-mirror reject the list. {_NOT_CHECKED}"
        )
        return "SignedListCurrent", False, "RootExpires", message
    if signed_list.signed:
        return "SignedListCurrent", True, "Signed", f"the signed list of boot files is valid{until}"
    return "SignedListCurrent", True, "Unsigned", f"the list of boot files is valid{until}, but not signed"


def find_artifact_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the condition about the files that boots need, if gitboot checks these files or withholds a boot."""
    sightings = state.snapshot.sightings
    withheld, from_ipxe = find_withheld_files(state), state.plans.withheld_from_ipxe
    if withheld or from_ipxe:
        message = ""
        if withheld:
            boots = format_names(_describe_withheld_boots(withheld, sightings), 3)
            message += f"gitboot withholds these boots until their files are available: {boots}. "
        if from_ipxe:
            boots = format_names(_describe_withheld_boots(from_ipxe, sightings), 3)
            message += f"gitboot withholds the iPXE boot scripts for {boots}. GRUB still boots these servers. "
        yield "ArtifactsPresent", False, "Missing", f"{message}gitboot checks the files again automatically"
    elif sightings is not None:
        unknown_count = sum(sighting.presence is Presence.UNKNOWN for sighting in sightings.values())
        unchecked = ""
        if unknown_count:
            unchecked = f"; for {format_count(unknown_count, 'artifact')}, the server did not respond"
        yield "ArtifactsPresent", True, "Present", f"no artifact is missing{unchecked}"


def _describe_withheld_boots(
    files: Mapping[ImageFile, int], sightings: Mapping[BootFile, Sighting] | None
) -> list[str]:
    """Describe the boots that lack these files, sorted. The values of ``files`` are numbers of servers."""
    texts = []
    for (image, file), count in files.items():
        if sightings is None:
            fault = "the stream requires a signature, which gitboot does not check because of --check-assets off"
        elif file in sightings:
            fault = sightings[file].message
        else:
            fault = "gitboot has not checked this file yet"
        servers = format_count(count, "server") if count else "unknown machines"
        texts.append(f"BootImage/{image} for {servers} ({file.url}: {fault})")
    return sorted(texts)


def find_withheld_files(state: InstanceState) -> dict[ImageFile, int]:
    """Return the missing files that cause boots to be withheld, each with the number of servers that need the file."""
    commit, sightings = state.commit, state.snapshot.sightings
    boots = (commit.decisions.unknown or {}).values() if commit is not None else ()
    return {
        ImageFile(boot.image, file): 0 for boot in boots for file in boot.fetched_files if is_withheld(file, sightings)
    } | state.plans.withheld


_EXPECTED: Final = "This is expected if the other instance is meant to be active"


def conditions(state: InstanceState, at: datetime) -> tuple[Condition, ...]:
    """Return all conditions, sorted by type.

    A condition's last transition time changes only when the condition's status changes.
    """
    findings = [
        *_find_source_conditions(state, at),
        *_find_acceptance_conditions(state),
        *_find_ledger_conditions(state),
        *_find_stop_conditions(state, at),
        *_find_commit_conditions(state, at),
        *find_clearance_conditions(state),
        *find_bmc_conditions(state, at),
        *find_power_conditions(state),
        *_find_endpoint_conditions(state),
        *_find_process_conditions(state),
        *find_target_conditions(state, at),
        *find_output_conditions(state, at),
        *_find_request_conditions(state),
        *find_secret_conditions(state),
    ]
    values = _collect_remedy_values(state) if not all(status for _, status, _, _ in findings) else {}
    known = {each.type: each for each in state.conditions}
    result = []
    for type, status, reason, message in findings:
        before = known.get(type)
        changed_at = before.last_transition_time if before is not None and before.status == status else at
        condition = Condition(type=type, status=status, reason=reason, message=message, last_transition_time=changed_at)
        if not status:
            condition = structs.replace(condition, remedy=_build_remedy(condition, state, at, values))
        result.append(condition)
    return tuple(sorted(result, key=lambda each: each.type))


def _collect_remedy_values(state: InstanceState) -> dict[str, str | Sequence[str]]:
    """Return the values that replace the words in capital letters in remedies. Unknown values are missing."""
    facts, acceptance, claims = state.snapshot.facts, state.acceptance, state.snapshot.claims
    held = acceptance.held
    mismatch = state.fetched.branch_mismatch if state.fetched is not None else None
    unlisted = [each.question.url for each in state.hook_failures if each.is_unlisted]
    values = {
        "LEDGER": facts.identity,
        "COMMIT": acceptance.attempted or "HEAD",
        "OUTPUT": facts.output,
        "SPOOL": facts.spool,
        "UNTRUSTED": find_untrusted_commit(acceptance),
        "REMOVED": acceptance.missing_commit.commit if acceptance.missing_commit is not None else None,
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
    """Return what an operator can do about a false condition, or None. ``values`` are the words that remedies use."""
    named: Collection[str] = ()
    match condition.type:
        case "PowerWavesRunning":
            values = {**values, "SERVER": min(min(names) for names in state.schedule.stopped_maintenances.values())}
        case "InstallsCompleted":
            unproven = find_unproven_boots(state, at)
            named = {name for servers in unproven.values() for name in servers}
            if condition.reason == "Failed":  # its remedy installs the servers again
                named = unproven["Failed"]
        case "RecordsVerified":
            named = state.plans.unknown
        case "SecretsPrivate":
            named = find_unexpected_fetches(state)
        case "LedgerNamed" if (accepted := state.acceptance.accepted) is not None and accepted.site is not None:
            return (
                f"ledger: {values['LEDGER']}  # only to make this instance active: stop the other instance, then set "
                f"this for the site {accepted.site} in the Fleet's spec"
            )
        case "MaintenanceRunsStarted":
            named = find_unknown_serves(state.plans, Cause.MAINTENANCE_OUTCOME) or state.find_overdue_runs(at)
        case "LedgerWritable" if _is_ledger_locked(state.ledger_error or ""):
            return LOCKED_LEDGER
    if named:
        values = {**values, "SERVERS": nsmallest(_MAX_NAMED, named)}
    remedy, commit = find_remedy(condition.type, condition.reason, values), state.commit
    if remedy is None:
        return None
    if condition.reason == "UnverifiedServers" and commit is not None and commit.fleet.has_instances_by_site:
        pronoun = "it" if len(named) == 1 else "a server"
        remedy += (
            f". If another site managed {pronoun} before, run gitboot records hand-over at that site, then run gitboot "
            "records take-over here with the output"
        )
    held, candidate = state.acceptance.held, state.acceptance.candidate
    if condition.reason == "GuardTripped" and held is not None and held.lines and candidate is not None:
        remedy += f"{OR_WRITE}{describe_ack_message(candidate)}"
    return remedy


def _find_source_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about the branch that gitboot follows, and about suspended acceptance."""
    acceptance, fetched, suspension = state.acceptance, state.fetched, state.snapshot.facts.suspension
    served = _find_served_commit(state)
    stays = f". gitboot still serves commit {served}" if served else ""
    if acceptance.clone_failure is not None:
        reason, message = acceptance.clone_failure
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
        waiting = f". Commit {acceptance.waiting[:12]} is waiting" if acceptance.waiting is not None else ""
        message = (
            f"{suspension.who} suspended this instance until {format_instant(suspension.until)}, so it does not accept "
            f"commits or set boot overrides. Reason: {suspension.reason}{waiting}"
        )
        yield "AcceptingCommits", False, "Suspended", message
    else:
        yield "AcceptingCommits", True, "Accepting", "gitboot accepts new commits"


def _find_served_commit(state: InstanceState) -> str:
    """Return the first digits of the last accepted commit, or "" if no commit was accepted."""
    accepted = state.acceptance.accepted
    return (accepted.revision if accepted is not None else state.snapshot.facts.accepted or "")[:12]


def _find_acceptance_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the conditions about the judgement of the newest commit."""
    acceptance, served = state.acceptance, _find_served_commit(state)
    failed_resume = format_failed_resume(acceptance)
    if acceptance.is_preliminary:
        # A false condition in the previous state is about another commit, or about this commit before it was
        # acknowledged.
        for before in state.conditions:
            if before.type == "CommitAccepted" and before.status:
                yield before.type, before.status, before.reason, before.message
    elif acceptance.candidate is not None:
        yield "CommitAccepted", False, "GuardTripped", format_held_commit(acceptance.candidate) + failed_resume
    elif acceptance.accepted is not None and acceptance.accepted.revision == acceptance.attempted:
        yield "CommitAccepted", True, "Valid", format_accepted_commit(acceptance.accepted, acceptance.signer)
    elif acceptance.problems:
        rejection = format_rejection(acceptance)
        until_then = f". Until then, gitboot serves commit {served}" if served else ""
        stays = f". gitboot still serves commit {served}" if served else ""
        if acceptance.is_unevaluated:
            yield "CommitAccepted", False, "NotEvaluated", f"{rejection}{until_then}{failed_resume}"
        elif acceptance.problems[0].code is Code.UNTRUSTED:
            yield "CommitAccepted", False, "Untrusted", f"{rejection}{stays}{failed_resume}"
        else:
            yield "CommitAccepted", False, "Invalid", f"{rejection}{stays}{failed_resume}"
    if (missing_commit := acceptance.missing_commit) is not None and missing_commit.servers:
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
    """Yield the conditions about writes to the ledger, the named ledger, and the records of servers."""
    snapshot, accepted = state.snapshot, state.acceptance.accepted
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
    yield from _find_standby_conditions(state, accepted)
    if state.commit is None:
        return
    if (unverified := describe_unverified_ledger(snapshot.facts, accepted.decisions)) is not None:
        yield "RecordsVerified", False, *unverified
    elif unknown := state.plans.unknown:
        message = (
            f"the ledger does not record whether {join_servers(unknown)} {'is' if len(unknown) == 1 else 'are'} "
            f"installed, so gitboot does not install {'it' if len(unknown) == 1 else 'them'}"
        )
        yield "RecordsVerified", False, "UnverifiedServers", message
    else:
        yield "RecordsVerified", True, "Verified", "the ledger has a record for each server"
    if snapshot.recorded_commit is not None:
        yield build_evidence_condition(state.plans, accepted)


def _find_standby_conditions(state: InstanceState, accepted: Commit) -> Iterator[Finding]:
    """Yield the condition about the ledger that the Fleet names, if this instance is a standby or becomes one."""
    identity, orders = state.snapshot.facts.identity, state.acceptance.orders
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
    elif not state.may_act:
        acts_next = orders is not None and orders.ledger in (None, identity)
        is_orphaned = accepted.ledger == NO_LEDGER if acts_next else state.is_orphaned
        named = (None if orders is None or acts_next else orders.ledger, accepted.ledger)
        other = next((ledger for ledger in named if ledger not in (None, identity, NO_LEDGER)), None)
        cause = _describe_named_ledger(accepted, NO_LEDGER if is_orphaned else other, identity)
        message = (
            f"this instance is now a standby, because {cause}. It does not set boot overrides or serve install boots. "
            "It still ends maintenance windows and clears the overrides that it set"
        )
        if acts_next:
            message += (
                ". The Fleet in the newest commit names this instance's ledger, so this instance becomes active again "
                "when gitboot accepts that commit"
            )
        elif not is_orphaned:
            message += f". {_EXPECTED}"
        yield "LedgerNamed", False, "BecameStandby", message


def _describe_named_ledger(commit: Commit, ledger: str | None, identity: str) -> str:
    if ledger == NO_LEDGER:
        return f"the Fleet does not name a ledger for {commit.site} (this instance's ledger is {identity})"
    named = f"{ledger}; " if ledger is not None else ""
    return f"the Fleet names a different ledger ({named}this instance's ledger is {identity})"


def _is_ledger_locked(error: str) -> bool:
    """Return whether a ledger error shows that another process has locked the ledger file (SQLite, SQLITE_BUSY)."""
    return error.endswith("(database is locked)")


def _find_stop_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about stops of install boots, and about the clock."""
    facts, claims = state.snapshot.facts, state.snapshot.claims
    by_fleet = find_fleet_stop(state.acceptance.accepted, state.acceptance.orders)
    if facts.stop_order is not None:
        scope = StopScope.ALL if facts.stop_order.everything else f"all {StopScope.WRITING}"
        yield (
            "InstallsAllowed",
            False,
            "Stopped",
            f"{facts.stop_order.who} stopped {scope}. Reason: {facts.stop_order.reason}",
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
    if (fault := describe_clock_lag(facts, at)) is not None:
        yield "ClockTrusted", False, "Behind", f"gitboot does not change BMCs, because {fault}"
    elif (fault := describe_unsynced_clock(facts, state.clock_state)) is not None:
        yield "ClockTrusted", False, "Unsynchronised", f"gitboot does not change BMCs, because {fault}"
    else:
        yield "ClockTrusted", True, str(state.clock_state), CLOCK_TEXTS[state.clock_state]


def _find_commit_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about the accepted commit: its publication, its installations and its deadlines."""
    publication, accepted, commit = state.publication, state.acceptance.accepted, state.commit
    warnings = accepted.decisions.warnings if accepted is not None else ()
    # Earlier versions of gitboot accepted placeholders.
    placeholders = [warning for warning in warnings if warning.code == Code.PLACEHOLDER_IDENTITY]
    if placeholders:
        first = placeholders[0]
        others = f" {format_omitted(len(placeholders) - 1, 'identity')}".rstrip()
        message = (
            f"{first.path}:{first.line}: {first.message}. gitboot ignores this identity when it looks for the "
            f"server, and rejects new commits that contain this identity{others}"
        )
        yield "IdentitiesUnique", False, "Placeholder", message
    if commit is None:
        return
    if publication.failure is not None:
        reason, error = publication.failure
        files = "the files that are already in OUTPUT"
        if publication.applied is not None:
            files = f"the boot files from commit {publication.applied[:12]}"
        message = f"gitboot could not publish all boot files to OUTPUT: {error.rstrip('.')}. Machines still get {files}"
        retry = "" if reason in NO_RETRY else ". gitboot will retry automatically"
        yield "Published", False, reason, f"{message}{retry}"
    elif publication.has_plans_for(commit):
        yield (
            "Published",
            True,
            "Published",
            f"OUTPUT contains the boot files for {format_count(len(state.plans.servers), 'server')}",
        )
    yield build_install_condition(state, at)
    yield from find_artifact_conditions(state)
    yield from find_run_conditions(state, at)
    if late := [each.what for each in commit.opt_outs if each.until is not None and each.until <= at]:
        message = (
            f"{late[0]} is past its deadline, but remains in effect"
            if len(late) == 1
            else f"these pins or holds are past their deadlines, but remain in effect: {', '.join(late)}"
        )
        yield "OptOutsInTime", False, "Overdue", message
    else:
        yield "OptOutsInTime", True, "InTime", "no pin or hold is past its deadline"


def _find_endpoint_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the conditions about the endpoints on this host, if the instance runs any."""
    endpoints = state.endpoints
    if endpoints is None:
        return
    is_whole = endpoints.alive == endpoints.expected
    restarts = f", {format_count(endpoints.restarts, 'restart')} since the start" if endpoints.restarts else ""
    hung = f", {endpoints.hung} {'does' if endpoints.hung == 1 else 'do'} not respond" if endpoints.hung else ""
    replaces = "" if is_whole else ". gitboot replaces failed endpoints automatically"
    running = f"{format_count(endpoints.expected, 'endpoint')} {'is' if endpoints.alive == 1 else 'are'} running"
    message = f"{endpoints.alive} of {running}{hung}{restarts}{replaces}"
    if is_whole:
        yield "Serving", True, "Running", message
    else:
        yield "Serving", False, "NotResponding" if endpoints.hung else "Restarting", message
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


def _find_process_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the conditions about reports to the forge, notices and threads."""
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
        names = ", ".join(failure.thread for failure in failures)
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
    """Yield the conditions about the fetch log, and about requests that endpoints rejected."""
    if state.fetch_log_error is not None:
        ignored = "Until this is fixed, gitboot does not see what machines fetch and report"
        yield "FetchLogReadable", False, "Unreadable", f"{state.fetch_log_error}. {ignored}"
    if (denials := log_entries.summarise_denials(state.denials)) is not None:
        yield "BootsServed", False, *denials
    if state.unnamed_proxies:
        message = log_entries.build_untrusted_proxy_message(state.unnamed_proxies)
        yield "ProxiesTrusted", False, "Unnamed", message


def build_condition_events(
    before: Iterable[Condition], now: Iterable[Condition], state: InstanceState, at: datetime
) -> Iterator[Event]:
    """Yield an event for each false condition that changed, if its condition type declares an event."""
    known = {each.type: each for each in before}
    # Without the name and the time that the condition contains, the events of several servers can be merged.
    tasks = {bmc.name: bmc.message for bmc in (state.schedule.bmcs[uuid] for uuid in state.schedule.failing)}
    for condition in now:
        earlier, condition_type = known.get(condition.type), find_condition_type(condition.type)
        if condition.status or condition == earlier or condition_type is None:
            continue
        type = condition_type.find_event_type(earlier, condition)
        if type is None:
            continue
        message, server = condition.message, condition.type.removeprefix("Bmc/")
        if server != condition.type:
            message = f"{server}: {tasks.get(server, message)}"
        if type == "Held" and state.acceptance.candidate is not None:  # an event has no remedy
            message = f"{message}. {format_ack_instructions(state.acceptance.candidate)}"
        yield Event(at=at, type=type, message=message, facts=_build_event_facts(condition, state, at), warning=True)


def _build_event_facts(condition: Condition, state: InstanceState, at: datetime) -> dict[str, Any]:
    """Return the facts of the event about a false condition."""
    held = state.acceptance.held
    match condition.type:
        case "ArtifactsPresent":
            image_files = (*find_withheld_files(state), *state.plans.withheld_from_ipxe)
            return {"artifacts": sorted({image_file.file.url for image_file in image_files})}
        case "PowerWavesRunning":
            return {"servers": sorted(set().union(*state.schedule.stopped_maintenances.values()))}
        case "MaintenancesCleared":
            return {"servers": sorted(state.plans.waiting)}
        case "MaintenanceRunsStarted":
            unknown = find_unknown_serves(state.plans, Cause.MAINTENANCE_OUTCOME)
            return {"servers": sorted(unknown or state.find_overdue_runs(at))}
        case "CommitAccepted" if held is not None:
            return {"commit": held.commit, "digest": held.digest, "guards": list(held.guards)}
        case "InstallsCompleted":
            return {"servers": sorted(set().union(*find_unproven_boots(state, at).values()))}
        case "HistoryComplete" if (missing_commit := state.acceptance.missing_commit) is not None:
            return {"commit": missing_commit.commit}
        case "SecretsPrivate":
            return {"servers": sorted(find_unexpected_fetches(state))}
        case type if type.startswith("Bmc/"):
            return {"server": type.removeprefix("Bmc/")}
    return {}
