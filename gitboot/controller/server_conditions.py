"""Server conditions: the state of installations, maintenances, BMCs and fetched secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Final

from gitboot.controller.current_plans import Plans
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.maintenance_hooks import HookKind
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.one_time_boots import InstallationFetches, SecretFetches, describe_secret
from gitboot.jsonio import format_instant
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, Run, StepEvidence
from gitboot.resolve.server_plan import Cause, InstallState
from gitboot.text import format_age, format_count, format_omitted

Finding = tuple[str, bool, str, str]  # type, status, reason and message of a condition

_MAX_JOINED: Final = 3  # servers that most messages name
_MAX_NAMED: Final = 20  # servers that a message about a maintenance names
_MAX_ANSWERS: Final = 3  # answers of URLs that one message contains
_MAX_SECRETS: Final = 3  # secrets that one message names

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


def join_servers(names: Collection[str], max_names: int = _MAX_JOINED) -> str:
    """Join the first names in alphabetical order, and add the number of the other servers."""
    return f"{', '.join(nsmallest(max_names, names))} {format_omitted(len(names) - max_names)}".rstrip()


def _join_details(details: Mapping[str, str]) -> str:
    """Join the first servers in alphabetical order, each with its detail, and add the number of the other servers."""
    first = [f"{name} ({details[name]})" if details[name] else name for name in nsmallest(_MAX_JOINED, details)]
    return f"{', '.join(first)} {format_omitted(len(details) - _MAX_JOINED)}".rstrip()


# Installations


def build_evidence_condition(plans: Plans, commit: Commit) -> Finding:
    """Return the condition about one-time boots that gitboot could not observe."""
    if not plans.unseen:
        return "EvidenceAvailable", True, "Available", "gitboot can observe each one-time boot"
    without_bmc = {machine.name for machine in commit.machines.values() if machine.bmc is None} & plans.unseen
    documents = "documents" if len(without_bmc) > 1 else "document"
    bmcs = f", or add a BMC to the Server {documents} for {join_servers(without_bmc)}" if without_bmc else ""
    if commit.ledger is None and plans.unseen - without_bmc:
        others = join_servers(plans.unseen - without_bmc)
        bmcs += (
            f", or name a ledger in the Fleet, so that gitboot can set boot overrides for {others} and see when they "
            "are used"
        )
    servers = join_servers(plans.unseen)
    message = (
        f"gitboot does not install {servers}, because it cannot see whether this server boots"
        if len(plans.unseen) == 1
        else f"gitboot does not install these servers, because it cannot see whether they boot: {servers}"
    )
    message += (
        f". The Fleet requires such evidence (evidence: {commit.decisions.evidence}). Start gitboot with --listen or "
        f"--spool{bmcs}"
    )
    return "EvidenceAvailable", False, "NoEvidence", message


def build_install_condition(state: InstanceState, at: datetime) -> Finding:
    """Return the condition about installations that have not ended."""
    unproven = find_unproven_boots(state, at)
    if unproven:
        texts = list[str]()
        for reason, servers in unproven.items():
            text = _describe_unproven_boots(state, at, reason, servers)
            texts.append(f"{text[0].upper()}{text[1:]}" if texts and not text.startswith("gitboot") else text)
        them = "it" if len({name for servers in unproven.values() for name in servers}) == 1 else "them"
        return (
            "InstallsCompleted",
            False,
            next(iter(unproven)),
            f"{'. '.join(texts)}. gitboot will not install {them} again automatically",
        )
    for install_state in (InstallState.INSTALLING, InstallState.SERVED):
        waiting = {
            name: str(progress) for name, progress in state.plans.installing.items() if progress.state is install_state
        }
        if waiting:
            return "InstallsCompleted", True, install_state, f"no evidence of completion yet: {_join_details(waiting)}"
    return "InstallsCompleted", True, "Completed", "no installation is waiting for evidence of completion"


def _describe_unproven_boots(state: InstanceState, at: datetime, reason: str, servers: Mapping[str, str]) -> str:
    """Describe the servers whose one-time boots have the same reason. The values of ``servers`` are details."""
    text_for_one, text_for_several = _UNFINISHED_BOOTS[reason]
    if len(servers) > 1:
        duration = format_age(state.longest_step.total_seconds())
        return text_for_several.replace("DURATION", duration).replace("NAMES", _join_details(servers))
    ((name, detail),) = servers.items()
    if reason == "Overdue":
        detail = _describe_progress(state.find_overdue_installs(at)[name])
    return text_for_one.replace("NAME", name).replace("DETAIL", detail)


def find_unproven_boots(state: InstanceState, at: datetime) -> dict[str, Mapping[str, str]]:
    """Return the servers whose one-time boot was not completed, grouped by reason, with a detail for each server.

    The worst reason comes first.
    """
    plans = state.plans
    unknown = find_unknown_serves(plans, Cause.OUTCOME)
    by_reason: dict[str, Mapping[str, str]] = {
        "OutcomeUnknown": {name: _describe_request(request) for name, request in unknown.items()},
        "NeedsOperator": dict.fromkeys(plans.consumed | plans.lost, ""),
        "Failed": {
            name: _describe_failure(attempt.failed)
            for name, attempt in plans.begun.items()
            if attempt.failed is not None
        },
        "Overdue": {name: str(attempt.last_seen) for name, attempt in state.find_overdue_installs(at).items()},
    }
    return {reason: servers for reason, servers in by_reason.items() if servers}


def find_unknown_serves(plans: Plans, cause: Cause) -> dict[str, StepEvidence]:
    """Return, by server, the first request that an endpoint may have answered with the boot."""
    requests = {}
    for server in (plans.servers[name] for name in plans.unknown_outcomes):
        if server.plan is not None and server.plan.cause is cause and server.record is not None:
            seen = [serve.seen for serve in server.record.unknown_serves if not serve.is_withheld]
            requests[server.decision.server] = min(seen, key=lambda request: request.at)
    return requests


def _describe_request(request: StepEvidence) -> str:
    return f"{request.client} requested {request.path} at {format_instant(request.at)}"


def _describe_failure(failure: Failure) -> str:
    last_lines = failure.log.splitlines()[-1:]
    report = f'"{last_lines[0]}"' if last_lines else "the failure"
    return f"{failure.client} reported {report} at {format_instant(failure.at)}"


def _describe_progress(attempt: InstallAttempt) -> str:
    seen = attempt.last_seen
    step = f"{seen.client} fetched {seen.path}" if seen.path else "the server used its boot override"
    started = "the installer started: " if attempt.is_running else ""
    return f"{format_instant(seen.at)}, when {started}{step}"


# Maintenances


def find_run_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the condition about maintenances whose boot files were served, but that have not started."""
    unknown = find_unknown_serves(state.plans, Cause.MAINTENANCE_OUTCOME)
    overdue = state.find_overdue_runs(at)
    if unknown:
        yield "MaintenanceRunsStarted", False, "OutcomeUnknown", _describe_unknown_runs(state.plans, unknown)
    elif overdue:
        yield "MaintenanceRunsStarted", False, "Overdue", _describe_overdue_runs(overdue)


def _describe_unknown_runs(plans: Plans, requests: Mapping[str, StepEvidence]) -> str:
    boots = {name: f"Maintenance/{plan.maintenance}" for name in requests if (plan := plans.servers[name].plan)}
    if len(requests) == 1:
        ((name, request),) = requests.items()
        return (
            f"gitboot does not know whether {name} got the boot files for {boots[name]}: {_describe_request(request)}, "
            "but the endpoint did not record whether the transfer completed. gitboot will not serve these files again"
        )
    details = {name: f"{boots[name]}: {_describe_request(request)}" for name, request in requests.items()}
    return (
        "gitboot does not know whether these servers got the boot files for their maintenance, because the endpoint "
        f"did not record whether the transfer completed: {_join_details(details)}. gitboot will not serve these files "
        "again"
    )


def _describe_overdue_runs(runs: Mapping[str, tuple[str, Run]]) -> str:
    if len(runs) == 1:
        ((name, (maintenance, run)),) = runs.items()
        step = "fetched the boot files" if run.given is None or run.given.path else "used the boot override"
        return (
            f"{name} {step} for Maintenance/{maintenance} at {format_instant(run.at)}, but the maintenance has not "
            "started. gitboot will not serve these boot files again"
        )
    details = {
        name: f"Maintenance/{maintenance} at {format_instant(run.at)}" for name, (maintenance, run) in runs.items()
    }
    return (
        "these servers fetched the boot files for a maintenance, but the maintenance has not started: "
        f"{_join_details(details)}. gitboot will not serve these boot files again"
    )


def find_clearance_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the condition about servers that wait for an approval or a drain before a maintenance."""
    groups: defaultdict[tuple[str, Cause], list[str]] = defaultdict(list)
    for name, maintenance in state.plans.waiting.items():
        if (plan := state.plans.servers[name].plan) is not None:
            groups[maintenance, plan.cause].append(name)
    if not groups:
        return
    messages = []
    for (maintenance, cause), names in sorted(groups.items()):
        if cause is Cause.WAITING_FOR_APPROVAL:
            kind, text = HookKind.APPROVAL, f"Maintenance/{maintenance} is waiting for approval"
        else:
            kind, text = HookKind.DRAIN, f"Maintenance/{maintenance} is waiting until these servers are drained"
        failures = {
            failure.message
            for failure in state.hook_failures
            if failure.question.maintenance == maintenance and failure.question.kind is kind
        }
        answers = f" ({'; '.join(sorted(failures)[:_MAX_ANSWERS])})" if failures else ""
        messages.append(f"{text}: {join_servers(names, _MAX_NAMED)}{answers}")
    message = f"{'. '.join(messages)}. gitboot does not reset these servers or offer them the maintenance boot"
    if any(failure.is_unlisted for failure in state.hook_failures):
        yield "MaintenancesCleared", False, "HostNotListed", message
    elif any(cause is Cause.WAITING_FOR_APPROVAL for _, cause in groups):
        yield "MaintenancesCleared", False, "WaitingForApproval", message
    else:
        yield "MaintenancesCleared", False, "WaitingForDrain", message


# BMCs


def find_bmc_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about BMCs and their boot overrides. The type `Bmc/NAME` is about one server's BMC."""
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
        by_cause: defaultdict[str, list[str]] = defaultdict(list)
        for uuid in schedule.uri_rejected:
            bmc = schedule.bmcs[uuid]
            by_cause[bmc.dhcp_reason or ""].append(bmc.name)
        servers = "; ".join(f"{join_servers(names)} ({cause})" for cause, names in sorted(by_cause.items()))
        yield (
            "HttpBoot",
            True,
            "HttpBootByDhcp",
            f"gitboot cannot set a boot URI on these servers' BMCs, so DHCP must name the boot loader: {servers}",
        )
    for uuid in schedule.failing:
        bmc = schedule.bmcs[uuid]
        since = format_instant(bmc.late_since) if bmc.late_since is not None else ""
        text = _BMC_TEXTS[bmc.reason(at)].replace("TIME", since).replace("NAME", bmc.name)
        error = bmc.message.removeprefix(f"{bmc.operator_condition}: ")
        yield f"Bmc/{bmc.name}", False, bmc.reason(at), f"{text}. Cause: {error}" if error else text
    if commit is not None and state.may_act and (names := commit.select_server_names(schedule.without_named_ledger)):
        message = (
            "the Fleet does not name a ledger, so another instance may set boot overrides on the same BMCs. gitboot "
            f"does not set a boot override for {join_servers(names)} until the Fleet names this instance's ledger, "
            f"{state.snapshot.facts.identity}"
        )
        yield "BmcsSet", False, "LedgerNotNamed", message


def find_power_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the condition about resets for maintenances, if gitboot may reset any server."""
    schedule = state.schedule
    if schedule.stopped_maintenances:
        minutes = state.longest_step // timedelta(minutes=1)
        stopped = "; ".join(
            f"Maintenance/{maintenance}: {join_servers(names)}"
            for maintenance, names in schedule.stopped_maintenances.items()
        )
        message = (
            f"these servers are not back in service {minutes} minutes after gitboot switched their power: {stopped}. "
            "gitboot does not switch the power of other servers in the maintenance until these servers are back"
        )
        if [len(names) for names in schedule.stopped_maintenances.values()] == [1]:
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


# Secrets


def find_secret_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the condition about secrets that were fetched from unexpected addresses or too often."""
    by_server = find_unexpected_fetches(state)
    if not by_server:
        return
    worst: dict[str, tuple[str, SecretFetches]] = {
        name: max(server.secret_fetches.items(), key=lambda item: (item[1].is_unexpected, *item[1].totals, item[0]))
        for name, server in by_server.items()
    }
    messages = []
    for name, (secret, fetches) in sorted(worst.items())[:_MAX_SECRETS]:
        address_count, times = fetches.totals
        addresses = ", ".join(sorted(fetches.addresses)[:_MAX_SECRETS])
        unnamed = f" {format_omitted(address_count - _MAX_SECRETS, 'address')}".rstrip()
        messages.append(
            f"{name}: {describe_secret(secret)} was fetched {format_count(times, 'time')} by {addresses}{unnamed}"
        )
    is_second = any(fetches.totals[0] > fetches.confirmed[0] for _, fetches in worst.values())
    yield (
        "SecretsPrivate",
        False,
        "SecondAddress" if is_second else "ManyFetches",
        f"{'; '.join(messages)} {format_omitted(len(worst) - _MAX_SECRETS, 'server')}".rstrip(),
    )


def find_unexpected_fetches(state: InstanceState) -> dict[str, InstallationFetches]:
    """Return, by server, the fetches of secrets that an operator must look at."""
    machines = state.acceptance.accepted.machines if state.acceptance.accepted is not None else {}
    return {
        machines[uuid].name: fetches
        for uuid, fetches in state.snapshot.secret_fetches.items()
        if fetches.is_unexpected and uuid in machines
    }
