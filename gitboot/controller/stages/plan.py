"""Plan: make new plans for servers whose decision or record changed, or whose plan ends now."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from msgspec import structs

from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.current_plans import Plans, find_changed_servers, replan
from gitboot.controller.instance_state import InstanceState, TargetState
from gitboot.controller.operator_requests import decide_halt
from gitboot.controller.reconcile_inputs import Pass
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.errors import LedgerError
from gitboot.evaluator.protocol import Commit
from gitboot.resolve.provisioning_record import StopScope
from gitboot.status.work_progress import ReportProgress, Work

QUICK_START: Final = timedelta(
    seconds=2
)  # if the first plans are published within this time, the published server states are not read


def plan(state: InstanceState, this: Pass) -> InstanceState:
    """Update the plans that are out of date, and start to check the artifacts that the boots need.

    With `Pass.wait`, wait for the checks and then plan again with their results.
    """
    if (commit := state.commit) is None:
        # If no commit is accepted yet, keep the plans of the previous process.
        return state if state.attempt.accepted is None else _without_plans(state, this)
    state = _plan_until_now(state, commit, this)
    if (artifacts := this.components.inbox.artifacts) is None:
        return state
    artifacts.want(
        frozenset(
            {
                *(each.file for each in state.plans.needs),
                *(file for boot in (commit.decisions.unknown or {}).values() for file in boot.fetched_files),
            }
        ),
        (commit.decisions.base_url, *commit.decisions.sites.values()),
    )
    if not this.wait:
        return state
    artifacts.wait()
    learnt = ledger_changes.apply_batch(
        state.knowledge, ledger_changes.Batch(sightings=artifacts.get_sightings()), this.at
    )
    try:
        with this.components.inbox.hold():
            ledger_snapshot.write_updates(this.components.store, (learnt.update,))
    except LedgerError as error:
        return structs.replace(state, unwritable=str(error))
    for event in learnt.update.events:
        this.components.tell(event)
    # The machines in `unplanned` were planned above.
    again = _plan_until_now(structs.replace(state, knowledge=learnt.knowledge, unplanned=frozenset()), commit, this)
    return structs.replace(again, unplanned=state.unplanned | again.unplanned)


def _without_plans(state: InstanceState, this: Pass) -> InstanceState:
    """Return the state without plans, because another instance is active for the accepted commit."""
    this.components.bmcs.drop_pending(frozenset(state.schedule.tasks))
    return structs.replace(
        state,
        plans=Plans(),
        publication=TargetState(applied=state.publication.applied),
        schedule=Schedule(most_failures=state.schedule.most_failures, jitter=state.schedule.jitter),
        unplanned=frozenset(),
    )


def _plan_until_now(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    """Update the plans that are out of date, and set the time of this reconcile to the time of the new plans.

    The first planning of a large fleet takes minutes. During this time, gitboot replaces the files of windows that have
    ended in the tree of an earlier process. Afterwards, gitboot updates the plans to the time of these replacements,
    because the plans would otherwise reopen the windows.
    """
    components = this.components
    due = state.next_window_end if state.waits_since is not None else None
    if state.waits_since is None and not state.publication.complete:
        due = this.at + QUICK_START
    told = components.listener.make_reporter(Work.PLAN)
    publication, next_end, ended_at = state.publication, due, this.at

    def report(done: int, total: int) -> None:
        nonlocal publication, next_end, ended_at
        told(done, total)
        if next_end is None or (now := this.time()) < next_end:
            return
        servers, events = components.windows.end_windows(now)
        publication, next_end = publication.with_changed_files(servers, events), components.windows.next_end
        if servers:
            ended_at = now

    state = _plan(state, commit, this, report)
    if next_end != due:
        state = structs.replace(state, publication=publication, next_window_end=next_end)
    if ended_at <= this.at:
        return state
    this.at = ended_at
    again = _plan(
        structs.replace(state, unplanned=frozenset()), commit, this, told
    )  # these machines were planned above
    return structs.replace(again, unplanned=state.unplanned | again.unplanned)


def _plan(state: InstanceState, commit: Commit, this: Pass, told: ReportProgress) -> InstanceState:
    """Make new plans for the servers whose decision or record changed, or whose plan ends now.

    If the ledger cannot be written, gitboot also obeys a stop in the files that endpoints read.
    """
    changed = commit.select_server_names(state.unplanned) | find_changed_servers(state.plans.commit, commit)
    stop = decide_halt(state.knowledge, commit, state.attempt.orders)
    has_asked = state.telling is None or state.telling.has_asked
    if stop is StopScope.NONE and state.knowledge.facts.gap and not has_asked:
        # The ledger was unused for a long time. Until the forge has responded, it may be an older copy.
        stop = StopScope.WRITING
    beside = this.components.inbox.stoppage if state.unwritable is not None else None
    if beside is not None and stop is not StopScope.ALL:
        stop = StopScope.ALL if beside.everything else StopScope.WRITING
    plans, different = replan(state.plans, commit, state.knowledge, changed, this.at, stop, state.keys, told)
    this.different |= different
    return structs.replace(
        state,
        plans=plans,
        unplanned=state.unplanned
        | {
            machine.uuid
            for each in (state.plans.commit, plans.commit)
            if each is not None
            for machine in each.select_machines(changed | different)
        },
    )
