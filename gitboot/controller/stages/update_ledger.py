"""Update the ledger: take the inputs, judge the newest commit, and write the changes to the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged
from gitboot.controller.bmcs.schedule import (
    build_override_events,
    build_power_events,
    find_machines_without_task,
    record_results,
    reschedule_now,
)
from gitboot.controller.current_plans import find_changed_servers, find_departed_machines
from gitboot.controller.instance_state import AcceptanceState, InstanceState, can_plan
from gitboot.controller.maintenance_hooks import ClearanceChange, HookClient, Question, find_clearances
from gitboot.controller.operator_requests import ApproveCommit, BeginWithRecords
from gitboot.controller.reconcile_inputs import Inbox, Intake, ReconcileContext
from gitboot.controller.records import ledger_changes
from gitboot.controller.records.evidence import BmcEvidence, find_unoffered_boots, match_fetches
from gitboot.controller.records.ledger_snapshot import (
    LedgerSnapshot,
    read_ledger,
    write_updates,
)
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.fleet.revision import Revision
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.status.conditions import Event, merge_events_by_server


def take_in(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Take the inputs from the inbox.

    If a write to the ledger may be lost, first read the ledger again. Raises `LedgerError`.
    """
    store = context.components.store
    if (start := state.before_resume) is not None:
        # The ledger is writable again, so the instance continues as after a start. It publishes all files again,
        # because the modification times of published files may be missing from the ledger.
        state = structs.replace(
            state,
            snapshot=start.snapshot,
            acceptance=start.acceptance,
            plans=start.plans,
            publication=structs.replace(start.publication, complete=False),
            unplanned=start.unplanned,
        )
    if store.is_suspect:
        store.read_back()
        state = structs.replace(
            state, snapshot=structs.replace(read_ledger(store), published_records=state.snapshot.published_records)
        )
        facts, accepted = state.snapshot.facts, state.acceptance.accepted
        if accepted is not None and facts.accepted != accepted.revision:
            # The ledger stored the acceptance of another commit but reported an error, so the instance restores that
            # commit as after a start.
            state = structs.replace(state, acceptance=AcceptanceState(orders=facts.orders, withheld=facts.withheld))
    state, context.intake = take_inputs(state, store, context.components.inbox, context.at)
    return state


def take_inputs(state: InstanceState, store: Store, inbox: Inbox, at: datetime) -> tuple[InstanceState, Intake]:
    """Take the inputs from the inbox, and return the state and the inputs.

    If the inputs show that the ledger is an older copy, mark the ledger as unverified. The ledger is an older copy if
    the forge has a later change number, or if an endpoint served a boot that the ledger never offered. If the boot was
    served before an operator initialized the ledger, only the record of the server that was booted becomes unverified.
    """
    intake = inbox.take(state.snapshot.spool_offsets, at)
    if intake.observations:
        intake = structs.replace(intake, unoffered_boots=find_unoffered_boots(store, intake.observations))
    if not state.snapshot.is_trusted:
        return state, intake
    forge_changes = state.forge_report.known_changes if state.forge_report is not None else None
    is_behind = (
        state.change_at_start is not None and forge_changes is not None and forge_changes > state.change_at_start
    )
    begun = state.snapshot.facts.begun
    has_unoffered_boot = any(begun is None or begun <= boot.at for boot in intake.unoffered_boots)
    if not is_behind and not has_unoffered_boot:
        return state, intake
    instance_tables.mark_unverified(store, "RestoredLedger", forge_changes or 0 if is_behind else 0)
    return structs.replace(
        state,
        snapshot=structs.replace(read_ledger(store), published_records=state.snapshot.records),
        change_at_start=None,
        unplanned=state.unplanned | state.snapshot.accepted_machines,
    ), intake


def accept(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Carry out operator requests, then accept, hold or reject the newest commit.

    The stage `learn` carries out requests to begin with records. After a start, an approval is carried out only after
    the newest commit has been judged again.
    """
    intake, acceptance, forge_report = context.intake, state.acceptance, state.forge_report
    waiting_kinds = {BeginWithRecords.kind} if acceptance.is_judged else {BeginWithRecords.kind, ApproveCommit.kind}
    waiting = {request.action for request in intake.requests} & waiting_kinds
    context.is_approval_left = ApproveCommit.kind in waiting
    # Whether the forge knew the change number that the ledger had when it was opened. This proves nothing if the ledger
    # was unused for a long time.
    is_known_to_forge = (
        forge_report is not None
        and state.change_at_start is not None
        and forge_report.known_changes == state.change_at_start
    )
    context.request_changes = ledger_changes.apply_batch(
        state.snapshot,
        ledger_changes.Batch(
            clock_state=state.clock_state,
            uptime=intake.uptime,
            is_externally_confirmed=intake.is_externally_confirmed or (is_known_to_forge and not state.was_unused),
            has_transition=state.plans.is_due(context.at) or acceptance.attempted is None,
            unwritten_clock=state.unwritten_clock,
            written_records=intake.written_records,
            clearings=intake.clearings,
            requests=tuple(each for each in intake.requests if each.action not in waiting_kinds),
            stop_order=intake.stop_order,
            events=tuple(_report_unproven_status(state, context)),
            held=acceptance.held,
        ),
        context.at,
    )
    context.acceptance, context.events = context.components.acceptor.accept(
        acceptance, context.request_changes.snapshot, context.at
    )
    return state


def _report_unproven_status(state: InstanceState, context: ReconcileContext) -> Iterator[Event]:
    """Report once that a commit status without a proof contains a later change number than the ledger.

    Such a status has no effect, because anyone who may write commit statuses could have written it.
    """
    change_at_start = context.before.change_at_start
    before = context.before.forge_report.claimed_changes if context.before.forge_report is not None else None
    claimed = state.forge_report.claimed_changes if state.forge_report is not None else None
    if claimed is not None and claimed != before and change_at_start is not None and claimed > change_at_start:
        message = (
            f"a commit status at the forge refers to change {claimed} of this ledger, but its newest change is "
            f"{change_at_start}. gitboot ignores the status, because it is not signed with the ledger's key: an "
            "earlier version of gitboot, or anyone who can write statuses, may have written it. If you restored the "
            "ledger from a backup, run gitboot records begin"
        )
        yield Event(
            at=context.at, type="CommitStatusUnverified", message=message, facts={"change": claimed}, warning=True
        )


def learn(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Compute the changes to the ledger, without writing them."""
    snapshot = context.request_changes.snapshot
    context.ready = select_ready(context.intake, context.acceptance, snapshot)
    context.input_changes = ledger_changes.apply_batch(
        snapshot, build_batch(state, context.acceptance, context.ready, context.events, context), context.at
    )
    return state


def select_ready(intake: Intake, acceptance: AcceptanceState, snapshot: LedgerSnapshot) -> Intake:
    """Return the part of the inputs that this reconcile can process.

    BMC results and fetches wait until this instance plans from the accepted commit. Fetches also wait while the ledger
    is unverified, until an operator initializes the ledger.
    """
    without_fetches = structs.replace(intake, observations=(), spool_offsets=snapshot.spool_offsets)
    if acceptance.accepted is None or not can_plan(snapshot, acceptance.accepted):
        return structs.replace(without_fetches, results=())
    is_verified = find_unverified_reason(snapshot.facts, acceptance.accepted.decisions) is None
    begins = any(request.action == BeginWithRecords.kind for request in intake.requests)
    return intake if is_verified or begins else without_fetches


def build_batch(
    state: InstanceState,
    acceptance: AcceptanceState,
    ready: Intake,
    events: tuple[Event, ...],
    context: ReconcileContext,
) -> ledger_changes.Batch:
    """Build the batch for `ledger_changes.apply_batch` from the acceptance state and the ready inputs."""
    accepted, snapshot = acceptance.accepted, state.snapshot
    at, components = context.at, context.components
    if accepted is None:
        return ledger_changes.Batch(events=events)
    is_newest_accepted = components.acceptor.is_newest_accepted(acceptance)
    batch = ledger_changes.Batch(
        clock_state=state.clock_state,
        uptime=ready.uptime,
        acceptance=acceptance,
        is_newest_accepted=is_newest_accepted,
        is_caught_up=snapshot.facts.gap
        and state.fetched is not None
        and not state.fetched.failed
        and is_newest_accepted,
        events=(*events, *_list_bmc_events(ready, accepted.revision, snapshot, at)),
        sightings=ready.sightings,
    )
    if not can_plan(snapshot, accepted):
        return batch
    planned_commit = state.plans.commit if snapshot.recorded_commit is not None else None
    unplanned = accepted.select_server_names(state.unplanned)
    return structs.replace(
        batch,
        commit=accepted,
        requests=tuple(each for each in ready.requests if each.action == BeginWithRecords.kind),
        changed_servers=find_changed_servers(planned_commit, acceptance.offered or accepted) | unplanned,
        removed_machines=find_departed_machines(planned_commit, accepted) if snapshot.recorded_commit else None,
        installing=state.plans.begun.keys() | unplanned,
        fetches=match_fetches(components.store, ready.observations, state.keys),
        spool_offsets=ready.spool_offsets,
        unoffered_boots=ready.unoffered_boots,
        bmc_evidence=tuple(_list_bmc_evidence(ready, state)),
        pins=tuple((each.uuid, each.pinned) for each in ready.results if each.pinned is not None),
        machines_without_task=find_machines_without_task(state.schedule, snapshot) if snapshot.pending else frozenset(),
        clearances=find_new_clearances(state, components.inbox.hooks, ready.answers, at),
    )


def _list_bmc_events(ready: Intake, commit: Revision, snapshot: LedgerSnapshot, at: datetime) -> Iterator[Event]:
    for result in ready.results:
        yield from build_override_events(result, commit, at, is_first=result.uuid not in snapshot.pins)
        yield from build_power_events(result, commit, at)


def find_new_clearances(
    state: InstanceState, hooks: HookClient | None, answers: Collection[Question], at: datetime
) -> tuple[ClearanceChange, ...]:
    """Return the record changes caused by answers to approval and drain requests, and by drains that begin now."""
    if hooks is None or not state.may_act:
        return ()
    plans, schedule, snapshot = state.plans, state.schedule, state.snapshot
    return tuple(find_clearances(plans, schedule, snapshot, answers, at, may_drain=hooks.may_drain))


def _list_bmc_evidence(ready: Intake, state: InstanceState) -> Iterator[BmcEvidence]:
    for result in ready.results:
        if result.observed is not None:
            server, bmc = state.plans.servers.get(result.server), state.schedule.bmcs.get(result.uuid)
            yield BmcEvidence(
                uuid=result.uuid,
                state=server if server is not None and server.decision.uuid == result.uuid else None,
                observed=result.observed,
                pending_ids=bmc.pending_ids if bmc is not None else frozenset(),
                open_intents=bmc.open_intents if bmc is not None else frozenset(),
                decision_number=state.snapshot.facts.sequence,
                is_own_machine=not isinstance(result.identity_result, AnotherMachine | IdentityChanged),
            )


def write_ledger(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Write the changes to the ledger, then adopt the accepted commit. Raises `LedgerError`."""
    acceptance = structs.replace(context.acceptance, is_log_unread=context.components.inbox.fetch_log_error is not None)
    results = context.request_changes, context.input_changes
    write_updates(context.components.store, [result.update for result in results])
    if acceptance.published == state.acceptance.published and not acceptance.is_log_unread:
        # All fetches from before the publication are processed now.
        acceptance = structs.replace(acceptance, log_read=acceptance.published)
    acceptance = context.components.acceptor.adopt(acceptance)
    state = structs.replace(state, acceptance=acceptance, before_resume=None, unwritten_clock=None)
    return apply_changes(state, results, context.ready, context)


def apply_changes(
    state: InstanceState, results: tuple[ledger_changes.BatchResult, ...], ready: Intake, context: ReconcileContext
) -> InstanceState:
    """Return the state after the ledger changes in ``results``, and report their events.

    ``ready`` are the inputs that caused the changes.
    """
    context.components.inbox.forget(ready)
    for event in merge_events_by_server(event for result in results for event in result.update.events):
        context.components.tell(event)
    snapshot, schedule = results[-1].snapshot, state.schedule
    if ready.results:
        schedule = record_results(schedule, ready.results, results[-1].update.judged_machines, snapshot, context.at)
    if due_machines := frozenset[SystemUuid]().union(*(result.update.due_now for result in results)):
        schedule = reschedule_now(schedule, due_machines, context.at)
    return structs.replace(
        state,
        snapshot=snapshot,
        schedule=schedule,
        unplanned=state.unplanned.union(*(result.changed_machines for result in results)),
    )


def resume(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Restore the last accepted commit if the ledger has not been writable since the start."""
    if state.acceptance.accepted is not None or not state.snapshot.is_trusted:
        return state
    acceptance = context.components.acceptor.resume(state.acceptance, state.snapshot, context.at)
    if acceptance.accepted is None:
        return state  # the commit is still being evaluated, or is not in the clone
    # The records of the commit's servers were updated before the start, so `recorded_commit` must not be None.
    return structs.replace(
        state, acceptance=acceptance, snapshot=structs.replace(state.snapshot, recorded_commit=""), before_resume=state
    )
