"""Publish: plan the changed servers, write their files, end windows, and report the conditions and the status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from gitboot.controller.bmcs.schedule import Schedule, find_machines_without_task
from gitboot.controller.boot_stops import find_stop_scope
from gitboot.controller.condition_rules import build_condition_events, conditions
from gitboot.controller.current_plans import Plans, find_changed_servers, replan
from gitboot.controller.instance_state import AcceptanceState, InstanceState, TargetState
from gitboot.controller.publication import LedgerOfferRecorder, publish_plans
from gitboot.controller.reconcile_inputs import ReconcileContext
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.controller.records.ledger_snapshot import write_events
from gitboot.controller.stages.update_ledger import find_new_clearances
from gitboot.errors import LedgerError
from gitboot.evaluator.protocol import Commit
from gitboot.ledger import instance_tables
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import build_serving_terms
from gitboot.render.server_files import ServerState
from gitboot.resolve.provisioning_record import StopScope
from gitboot.resolve.server_plan import Cause
from gitboot.status.conditions import Event, merge_events_by_server
from gitboot.status.work_progress import ReportProgress, Work

# If the first plans are published within this time, the published server states are not read.
QUICK_START: Final = timedelta(seconds=2)
LEDGER_RETRY: Final = timedelta(seconds=5)
_MOST_UNWRITTEN: Final = 1000  # maximum number of events in memory that are not in the ledger yet
_TARGET_WAIT_S: Final = 60.0  # how long `gitboot run --once` waits for the targets


# Plan


def plan(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Update the plans that are out of date, and start to check the artifacts that the boots need.

    With `ReconcileContext.wait`, wait for the checks and then plan again with their results.
    """
    if (commit := state.commit) is None:
        # If no commit is accepted yet, keep the plans of the previous process.
        return state if state.acceptance.accepted is None else _clear_plans(state, context)
    state = _plan_until_now(state, commit, context)
    if (artifacts := context.components.inbox.artifacts) is None:
        return state
    files = {needed.file for needed in state.plans.needs}
    for boot in (commit.decisions.unknown or {}).values():
        files.update(boot.fetched_files)
    artifacts.watch_files(frozenset(files), (commit.decisions.base_url, *commit.decisions.sites.values()))
    if not context.wait:
        return state
    artifacts.wait()
    batch = ledger_changes.Batch(sightings=artifacts.get_sightings())
    result = ledger_changes.apply_batch(state.snapshot, batch, context.at)
    try:
        with context.components.inbox.hold():
            ledger_snapshot.write_updates(context.components.store, (result.update,))
    except LedgerError as error:
        return structs.replace(state, ledger_error=str(error))
    for event in result.update.events:
        context.components.tell(event)
    # The machines in `unplanned` were planned above.
    new_state = _plan_until_now(
        structs.replace(state, snapshot=result.snapshot, unplanned=frozenset()), commit, context
    )
    return structs.replace(new_state, unplanned=state.unplanned | new_state.unplanned)


def _clear_plans(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Return the state without plans, because another instance is active for the accepted commit."""
    context.components.bmcs.drop_pending_tasks(frozenset(state.schedule.tasks))
    return structs.replace(
        state,
        plans=Plans(),
        publication=TargetState(applied=state.publication.applied),
        schedule=Schedule(max_failures=state.schedule.max_failures, jitter=state.schedule.jitter),
        unplanned=frozenset(),
    )


def _plan_until_now(state: InstanceState, commit: Commit, context: ReconcileContext) -> InstanceState:
    """Update the plans that are out of date, and set the time of this reconcile to the time of the new plans.

    The first planning of a large fleet takes minutes. During this time, gitboot replaces the files of windows that have
    ended in the tree of an earlier process. Afterwards, gitboot updates the plans to the time of these replacements,
    because the plans would otherwise reopen the windows.
    """
    components = context.components
    due = state.next_window_end if state.waits_since is not None else None
    if state.waits_since is None and not state.publication.complete:
        due = context.at + QUICK_START
    report_progress = components.listener.make_reporter(Work.PLAN)
    publication, next_end, ended_at = state.publication, due, context.at

    def report(done: int, total: int) -> None:
        nonlocal publication, next_end, ended_at
        report_progress(done, total)
        if next_end is None or (now := context.time()) < next_end:
            return
        servers, events = components.windows.end_windows(now)
        publication, next_end = publication.with_changed_files(servers, events), components.windows.next_end
        if servers:
            ended_at = now

    state = _plan_servers(state, commit, context, report)
    if next_end != due:
        state = structs.replace(state, publication=publication, next_window_end=next_end)
    if ended_at <= context.at:
        return state
    context.at = ended_at
    # These machines were planned above.
    new_state = _plan_servers(structs.replace(state, unplanned=frozenset()), commit, context, report_progress)
    return structs.replace(new_state, unplanned=state.unplanned | new_state.unplanned)


def _plan_servers(
    state: InstanceState, commit: Commit, context: ReconcileContext, report_progress: ReportProgress
) -> InstanceState:
    """Make new plans for the servers whose decision or record changed, or whose plan ends now.

    If the ledger cannot be written, gitboot also obeys a stop in the files that endpoints read.
    """
    changed = commit.select_server_names(state.unplanned) | find_changed_servers(state.plans.commit, commit)
    stop = find_stop_scope(state.snapshot, commit, state.acceptance.orders)
    has_asked = state.forge_report is None or state.forge_report.has_asked
    if stop is StopScope.NONE and state.snapshot.facts.gap and not has_asked:
        # The ledger was unused for a long time. Until the forge has responded, it may be an older copy.
        stop = StopScope.WRITING
    endpoint_stop = context.components.inbox.stop_order if state.ledger_error is not None else None
    if endpoint_stop is not None and stop is not StopScope.ALL:
        stop = StopScope.ALL if endpoint_stop.everything else StopScope.WRITING
    plans, replanned_servers = replan(
        state.plans, commit, state.snapshot, changed, context.at, stop, state.keys, report_progress
    )
    context.replanned_servers |= replanned_servers
    unplanned = set(state.unplanned)
    for planned_commit in (state.plans.commit, plans.commit):
        if planned_commit is not None:
            unplanned.update(machine.uuid for machine in planned_commit.select_machines(changed | replanned_servers))
    return structs.replace(state, plans=plans, unplanned=frozenset(unplanned))


# Publish


def publish(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Publish the plans.

    If no plans exist yet or the publication fails, only replace the files of windows that have ended in OUTPUT.
    """
    target, transitions = context.components.target, context.before.plans.transitions
    due_servers = transitions.find_due_keys(context.at)
    if (commit := state.commit) is not None:
        target.followers.prioritize(due_servers)
        state = _record_left_output(_publish_plans(state, commit, context), commit, context)
        # after a failed publication, the targets may lack an earlier transition, too
        if state.publication.is_placed and (due_servers or not context.before.publication.is_placed):
            target.followers.publish_transition(min(transitions.next_due or context.at, context.at))
        if context.wait:
            target.followers.wait(_TARGET_WAIT_S)
        acceptance = state.acceptance
        if (
            acceptance.published != acceptance.evaluated
            and state.ledger_error is None
            and state.publication.has_plans_for(commit)
        ):
            state = structs.replace(state, acceptance=structs.replace(acceptance, published=acceptance.evaluated))
    if commit is not None and state.publication.complete and state.publication.is_placed:
        return structs.replace(state, waits_since=None, next_window_end=None)
    state = _end_windows(state, context)
    if not state.publication.is_placed:  # the publication may have ended some of these windows before it failed
        target.copy_ended_windows(due_servers, context.at)
    return state


def _publish_plans(state: InstanceState, commit: Commit, context: ReconcileContext) -> InstanceState:
    """Publish the plans if the published files may differ, and delete the fetch log entries that the plans reflect."""
    components, snapshot, at = context.components, state.snapshot, context.at
    inbox, publication = components.inbox, state.publication
    if publication.complete and not components.target.is_unchanged:
        message = (
            "the output tree was replaced or removed after gitboot published it, so gitboot publishes all files again"
        )
        publication = structs.replace(
            publication, complete=False, events=(Event(at=at, type="TreeReplaced", message=message, warning=True),)
        )
    if components.checkpoint is not None:
        publication = components.checkpoint.mark_damaged(publication)
    deletion_count = inbox.count_deletions_after(snapshot.spool_offsets)
    terms = build_serving_terms(
        commit.fleet.provisioning, inbox.fetch_log_id, endpoint=commit.fleet.endpoint, loss_count=deletion_count
    )
    if (
        context.replanned_servers
        or not (publication.has_plans_for(commit) and publication.terms == terms)
        or publication.plans.sightings is not state.plans.sightings
    ):
        publication = publish_plans(
            structs.replace(state, publication=publication),
            commit,
            context.replanned_servers,
            components.target,
            LedgerOfferRecorder(components.store, snapshot.facts, at, state.ledger_error),
            at,
            terms,
        )
    if publication.has_plans_for(commit) and state.ledger_error is None:
        inbox.forget_spool(snapshot.spool_offsets, deletion_count)
    return structs.replace(
        state,
        publication=structs.replace(publication, ledger_error=None),
        ledger_error=publication.ledger_error or state.ledger_error,
    )


def _record_left_output(state: InstanceState, commit: Commit, context: ReconcileContext) -> InstanceState:
    """Record in the ledger which one-time boots an upgrade removed from OUTPUT, once a publication is complete."""
    facts = state.snapshot.facts
    if state.ledger_error is not None or not state.publication.complete:
        return state
    left_machines = _find_left_in_output(facts, state.plans, commit, is_upgraded=state.is_upgraded)
    if left_machines == facts.left_output:
        return state
    try:
        with context.components.store.writing() as tx:
            instance_tables.write_facts(tx, left_output=left_machines)
    except LedgerError as error:
        return structs.replace(state, ledger_error=str(error))
    return structs.replace(
        state, snapshot=structs.replace(state.snapshot, facts=structs.replace(facts, left_output=left_machines))
    )


def _find_left_in_output(
    facts: instance_tables.Facts, plans: Plans, commit: Commit, *, is_upgraded: bool
) -> frozenset[SystemUuid]:
    """Return the machines whose one-time boot was in OUTPUT before an upgrade and is not served now.

    A machine leaves the set when its boot is over, or when the Fleet names an endpoint or allows one-time boots in
    copies.
    """
    if facts.left_output is None and not is_upgraded:
        return frozenset()
    states: Iterable[ServerState] = plans.servers.values()
    if facts.left_output is not None:
        names = [commit.machines[uuid].name for uuid in facts.left_output if uuid in commit.machines]
        states = [plans.servers[name] for name in names if name in plans.servers]
    left_machines = set[SystemUuid]()
    for state in states:
        decision, plan = state.decision, state.plan
        is_in_copies = decision.endpoint is not None or decision.copies.one_time_boots
        is_offered = plan is not None and plan.key is not None and plan.writes_disk
        is_waiting = facts.left_output is not None and (
            plan is not None and plan.cause in (Cause.STOPPED, Cause.ALL_STOPPED, Cause.WITHHELD, Cause.FILE_MISSING)
        )
        if (is_offered or is_waiting) and not is_in_copies:
            left_machines.add(decision.uuid)
    return frozenset(left_machines)


def _end_windows(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Replace the files of windows that have ended in OUTPUT.

    Before that, wait up to `QUICK_START` for a publication, because reading all server states takes time.
    """
    since: datetime = state.waits_since or context.at
    if not context.wait and since <= context.at < since + QUICK_START:
        return structs.replace(state, waits_since=since, next_window_end=since + QUICK_START)
    windows = context.components.windows
    servers, events = windows.end_windows(context.at)
    return structs.replace(
        state,
        publication=state.publication.with_changed_files(servers, events),
        waits_since=since,
        next_window_end=windows.next_end,
    )


# Report


def report(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Derive the conditions, report the status and the events, and compute when the next reconcile is due."""
    components, at = context.components, context.at
    denials, proxies = components.inbox.read_reports(at)
    state = structs.replace(
        state,
        denials=denials,
        unnamed_proxies=proxies,
        target_status=components.target.followers.target_status,
        fetch_log_error=components.inbox.fetch_log_error,
        hook_failures=components.inbox.hooks.get_failures() if components.inbox.hooks is not None else (),
        signed_list=components.target.renew_list(at),
    )
    new_conditions = conditions(state, at)
    events = (*state.publication.events, *build_condition_events(state.conditions, new_conditions, state, at))
    unwritten = components.unwritten
    unwritten += events
    if state.ledger_error is None:
        try:
            write_events(components.store, unwritten)
            unwritten.clear()
        except LedgerError as error:  # the events are reported even if they cannot be stored
            state = structs.replace(state, ledger_error=str(error))
            new_conditions = conditions(state, at)
    del unwritten[:-_MOST_UNWRITTEN]
    if state.ledger_error is not None:
        events = (*events, Event(at=at, type="LedgerFailed", message=state.ledger_error, warning=True))
    for event in merge_events_by_server(events):
        components.tell(event)
    state = structs.replace(state, conditions=new_conditions, publication=structs.replace(state.publication, events=()))
    components.report(structs.replace(state.status(), stages=components.stage_times.facts()), at)
    if components.checkpoint is not None:
        components.checkpoint.store(state, len(context.replanned_servers), at)
    context.due = _find_next_due(state, context)
    return state


def _find_next_due(state: InstanceState, context: ReconcileContext) -> datetime | None:
    """Return when the next reconcile is due, or None if only an event starts it."""
    at, acceptance, before = context.at, state.acceptance, context.before.acceptance
    if state.ledger_error is not None:
        return min(at + LEDGER_RETRY, state.next_window_end or at + LEDGER_RETRY)
    # A commit can be judged by the records once all fetches of the earlier files have been processed.
    may_judge = acceptance.awaits_records and _list_progress_values(acceptance) != _list_progress_values(before)
    if may_judge or (context.is_approval_left and acceptance.attempted is not None):
        return at
    if state.commit is not None and find_new_clearances(state, context.components.inbox.hooks, (), at):
        return at  # a drain begins
    retry_at = at if state.commit is not None and find_machines_without_task(state.schedule, state.snapshot) else None
    return min((due for due in (state.next_due(at), retry_at) if due is not None), default=None)


def _list_progress_values(acceptance: AcceptanceState) -> tuple[object, ...]:
    """Return the values that determine whether gitboot can judge a held commit based on the records."""
    return acceptance.evaluated, acceptance.published, acceptance.log_read, acceptance.is_log_unread
