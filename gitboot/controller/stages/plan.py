"""Plan: make new plans for servers whose decision or record changed, or whose plan ends now."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from msgspec import structs

from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.current_plans import Plans, find_changed_servers, find_stop_scope, replan
from gitboot.controller.instance_state import InstanceState, TargetState
from gitboot.controller.reconcile_inputs import ReconcileContext
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.errors import LedgerError
from gitboot.evaluator.protocol import Commit
from gitboot.resolve.provisioning_record import StopScope
from gitboot.status.work_progress import ReportProgress, Work

# If the first plans are published within this time, the published server states are not read.
QUICK_START: Final = timedelta(seconds=2)


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

    If the ledger cannot be written, gitboot also applies a stop in the files that endpoints read.
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
