"""Write ledger: store the changes in one transaction, before gitboot acts on them."""

from __future__ import annotations

from msgspec import structs

from gitboot.controller.bmcs.schedule import (
    record_results,
    reschedule_now,
)
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.reconcile_inputs import Intake
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records import ledger_snapshot
from gitboot.controller.records.ledger_changes import BatchResult
from gitboot.model.scalars import SystemUuid
from gitboot.status.conditions import merge_events_by_server


def write_ledger(state: InstanceState, this: Pass) -> InstanceState:
    """Write the changes to the ledger, then adopt the accepted commit. Raises `LedgerError`."""
    attempt = structs.replace(this.attempt, is_log_unread=this.components.inbox.unread is not None)
    changes = this.requested, this.learnt
    ledger_snapshot.write_updates(this.components.store, [each.update for each in changes])
    if attempt.stands == state.attempt.stands and not attempt.is_log_unread:
        # All fetches from before the publication are processed now.
        attempt = structs.replace(attempt, read=attempt.stands)
    attempt = this.components.accepting.adopt(attempt)
    return apply_changes(structs.replace(state, attempt=attempt, before_resume=None), changes, this.ready, this)


def apply_changes(state: InstanceState, changes: tuple[BatchResult, ...], ready: Intake, this: Pass) -> InstanceState:
    """Return the state after these ledger changes, and report their events.

    ``ready`` are the inputs that caused them.
    """
    this.components.inbox.forget(ready)
    for event in merge_events_by_server(event for each in changes for event in each.update.events):
        this.components.tell(event)
    knowledge, schedule = changes[-1].knowledge, state.schedule
    if ready.results:
        schedule = record_results(schedule, ready.results, changes[-1].update.judged_machines, knowledge, this.at)
    if hurried := frozenset[SystemUuid]().union(*(each.update.due_now for each in changes)):
        schedule = reschedule_now(schedule, hurried, this.at)
    return structs.replace(
        state,
        knowledge=knowledge,
        schedule=schedule,
        unplanned=state.unplanned.union(*(each.changed for each in changes)),
    )
