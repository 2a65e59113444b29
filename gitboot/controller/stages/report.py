"""Report: derive the conditions, report the events and the status, and store the checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from gitboot.controller.bmcs.schedule import find_machines_without_task
from gitboot.controller.condition_rules import build_condition_events, conditions
from gitboot.controller.instance_state import AcceptanceState, InstanceState
from gitboot.controller.reconcile_inputs import ReconcileContext
from gitboot.controller.records.ledger_snapshot import write_events
from gitboot.controller.stages.update_ledger import find_new_clearances
from gitboot.errors import LedgerError
from gitboot.status.conditions import Event, merge_events_by_server

LEDGER_RETRY: Final = timedelta(seconds=5)
_MOST_UNWRITTEN: Final = 1000  # maximum number of events in memory that are not in the ledger yet


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
