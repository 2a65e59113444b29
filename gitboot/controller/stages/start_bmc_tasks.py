"""Start BMC tasks: choose and start the tasks that are due, and wait for the tasks of a single run."""

from __future__ import annotations

from msgspec import structs

from gitboot.bmc.override_session import TaskOutcome
from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.bmcs.power_waves import update_power_waves
from gitboot.controller.bmcs.schedule import (
    LONGEST_RETRY,
    Schedule,
    plan_tasks,
    record_submission,
    reschedule_now,
    select_due_tasks,
)
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.maintenance_hooks import list_questions
from gitboot.controller.operator_requests import ApproveCommit
from gitboot.controller.reconcile_inputs import ReconcileContext
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.controller.records.ledger_trust import describe_clock_lag, describe_unsynced_clock
from gitboot.controller.stages.update_ledger import apply_changes, build_batch, select_ready, take_inputs
from gitboot.errors import LedgerError
from gitboot.model.scalars import SystemUuid


def start_bmc_tasks(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Start the BMC tasks that are due. The files are already published, so machines can fetch them after a reset."""
    if (commit := state.commit) is None:
        return state
    components, at, suspension = context.components, context.at, state.snapshot.facts.suspension
    overrides, pending_machines = components.inbox.merge_pending_overrides(state.snapshot.overrides)
    snapshot = structs.replace(state.snapshot, overrides=overrides)
    may_set = (
        state.may_act
        and state.publication.has_plans_for(commit)
        and (suspension is None or at >= suspension.until)
        and describe_clock_lag(snapshot.facts, at) is None
        and describe_unsynced_clock(snapshot.facts, state.clock_state) is None
    )
    outdated_targets = [each for each in components.target.followers.target_status if each.behind_since is not None]
    schedule, machines = plan_tasks(
        state.schedule,
        commit,
        state.plans.servers,
        snapshot,
        state.unplanned | pending_machines,
        may_set=may_set,
        keys=state.keys,
        outdated_base_urls=frozenset(target.base_url for target in outdated_targets),
    )
    components.bmcs.drop_pending_tasks(machines - schedule.tasks.keys())
    schedule = reschedule_now(schedule, _find_changed_credentials(schedule, components.bmcs), at)
    if (planned_at := context.before.plans.planned_at) is not None and at < planned_at:  # the clock was set back
        late = [uuid for uuid, each in schedule.bmcs.items() if each.due > at + LONGEST_RETRY]
        schedule = reschedule_now(schedule, late, at)
    schedule = update_power_waves(schedule, snapshot, at, state.longest_step)
    if components.inbox.hooks is not None:
        components.inbox.hooks.set_questions(list_questions(state.plans, schedule, at) if state.may_act else ())
    due_tasks, schedule = select_due_tasks(schedule, snapshot, machines, at)
    state = structs.replace(
        state,
        schedule=record_submission(schedule, due_tasks, components.bmcs.submit(due_tasks), snapshot, at),
        unplanned=frozenset(),
    )
    return _wait_for_bmc_tasks(state, context) if context.wait else state


def _wait_for_bmc_tasks(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Wait for the BMC tasks, and keep their results for the next reconcile."""
    components = context.components
    components.collect_results(wait_all=True)
    if components.inbox.hooks is not None:
        components.inbox.hooks.wait()
    try:
        with components.inbox.hold():
            state, intake = take_inputs(state, components.store, components.inbox, context.at)
            ready = select_ready(intake, state.acceptance, state.snapshot)
            batch = structs.replace(
                build_batch(state, state.acceptance, ready, (), context),
                written_records=ready.written_records,
                clearings=ready.clearings,
                requests=tuple(
                    each for each in ready.requests if each.action != ApproveCommit.kind or state.acceptance.is_judged
                ),
                held=state.acceptance.held,
            )
            result = ledger_changes.apply_batch(state.snapshot, batch, context.at)
            ledger_snapshot.write_updates(components.store, (result.update,))
            return apply_changes(state, (result,), ready, context)
    except LedgerError as error:
        return structs.replace(state, ledger_error=str(error))


def _find_changed_credentials(schedule: Schedule, bmcs: BmcPool) -> frozenset[SystemUuid]:
    """Return the machines whose BMC rejected gitboot, and whose credentials have changed since."""
    changed = set()
    fingerprints: dict[str, str | None] = {}  # by the name of the credentials
    for uuid in schedule.failing:
        state = schedule.bmcs[uuid]
        # A BMC that rejects gitboot needs an operator, for example to provide new credentials.
        if state.outcome is not TaskOutcome.STALLED or state.answered or state.bmc is None:
            continue
        name = state.bmc.credentials
        if name not in fingerprints:
            fingerprints[name] = bmcs.get_credentials_fingerprint(state.bmc)
        if fingerprints[name] != state.credentials:
            changed.add(uuid)
    return frozenset(changed)
