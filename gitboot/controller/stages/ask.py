"""Ask: which BMC gets a task now."""

from __future__ import annotations

from msgspec import structs

from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.bmcs.power_waves import grant_turns
from gitboot.controller.bmcs.schedule import (
    Schedule,
    due_tasks,
    note_submission,
    plan_tasks,
    reschedule_now,
)
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.controller.records.ledger_trust import behind, unkept
from gitboot.controller.stages.learn import batch_of, ready_part
from gitboot.controller.stages.take_in import take_inputs
from gitboot.controller.stages.write import with_changes
from gitboot.errors import LedgerError
from gitboot.model.scalars import SystemUuid


def ask(state: InstanceState, this: Pass) -> InstanceState:
    """Start the BMC tasks that are due. This follows the publication: a machine that resets at once finds its files."""
    if (commit := state.commit) is None:
        return state
    components, at, suspension = this.components, this.at, state.knowledge.facts.suspension
    overrides, unlearned = components.inbox.overrides_over(state.knowledge.overrides)
    knowledge = structs.replace(state.knowledge, overrides=overrides)
    may_set = state.acts and state.publication.stands_for(commit) and (suspension is None or at >= suspension.until)
    schedule, machines = plan_tasks(
        *(state.schedule, commit, state.plans.servers, knowledge, state.unplanned | unlearned),
        may_set=may_set and behind(knowledge.facts, at) is None and unkept(knowledge.facts, state.keeping) is None,
        keys=state.keys,
        late=frozenset(each.serves for each in components.target.followers.following if each.behind_since is not None),
    )
    components.bmcs.forget(machines - schedule.tasks.keys())
    schedule = reschedule_now(schedule, _with_other_credentials(schedule, components.bmcs), at)
    schedule = grant_turns(schedule, knowledge, at, state.longest_step)
    made, schedule = due_tasks(schedule, knowledge, machines, at)
    taken = components.bmcs.submit(made)
    state = structs.replace(
        state, schedule=note_submission(schedule, made, taken, knowledge, at), unplanned=frozenset()
    )
    return _wait(state, this) if this.wait else state


def _wait(state: InstanceState, this: Pass) -> InstanceState:
    """Wait for the BMC tasks and learn their results. The next pass plans by them."""
    components = this.components
    components.collect_results(wait_all=True)
    try:
        with components.inbox.held():
            state, taken = take_inputs(state, components.store, components.inbox, this.at)
            ready = ready_part(taken, state.attempt, state.knowledge)
            batch = batch_of(state, state.attempt, ready, (), this)
            batch = structs.replace(batch, written=ready.written, noted=ready.noted, requests=ready.requests)
            learnt = ledger_changes.learn(state.knowledge, batch, this.at)
            ledger_snapshot.write(components.store, (learnt.news,))
            return with_changes(state, (learnt,), ready, this)
    except LedgerError as error:
        return structs.replace(state, unwritable=str(error))


def _with_other_credentials(schedule: Schedule, bmcs: BmcPool) -> frozenset[SystemUuid]:
    failing = {uuid: schedule.bmcs[uuid] for uuid in schedule.failing}
    rejected = {uuid: (each, each.bmc) for uuid, each in failing.items() if each.is_locked_out and each.bmc is not None}
    by_name = {bmc.credentials: bmc for _, bmc in rejected.values()}
    now = {name: bmcs.fingerprint(bmc) for name, bmc in by_name.items()}
    return frozenset(uuid for uuid, (each, bmc) in rejected.items() if now[bmc.credentials] != each.credentials)
