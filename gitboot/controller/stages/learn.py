"""Learn: compute the ledger changes that the accepted commit, fetches and BMC results cause."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged
from gitboot.controller.bmcs.schedule import (
    build_override_events,
    build_power_events,
    find_machines_without_task,
)
from gitboot.controller.commit_acceptance import Attempt
from gitboot.controller.current_plans import find_changed_servers, find_departed_machines
from gitboot.controller.instance_state import InstanceState, plans_by
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.reconcile_inputs import Intake
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records import ledger_changes
from gitboot.controller.records.evidence import BmcEvidence
from gitboot.controller.records.ledger_changes import Batch
from gitboot.controller.records.ledger_snapshot import Knowledge, match_fetches
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.status.conditions import Event


def learn(state: InstanceState, this: Pass) -> InstanceState:
    """Compute the changes to the ledger, without writing them."""
    knowledge = this.requested.knowledge
    this.ready = select_ready(this.taken, this.attempt, knowledge)
    batch = build_batch(state, this.attempt, this.ready, this.events, this)
    this.learnt = ledger_changes.apply_batch(knowledge, batch, this.at)
    return state


def select_ready(intake: Intake, attempt: Attempt, knowledge: Knowledge) -> Intake:
    """Return the part of the inputs that this reconcile can process.

    BMC results and fetches wait until this instance plans from the accepted commit. Fetches also wait while the ledger
    is unverified.
    """
    without_fetches = structs.replace(intake, spooled=(), spool=knowledge.spool_offsets)
    if attempt.accepted is None or not plans_by(knowledge, attempt.accepted):
        return structs.replace(without_fetches, results=())
    return intake if find_unverified_reason(knowledge.facts, attempt.accepted.decisions) is None else without_fetches


def build_batch(state: InstanceState, attempt: Attempt, ready: Intake, events: tuple[Event, ...], this: Pass) -> Batch:
    """Build the batch for `ledger_changes.apply_batch` from an attempt and the ready inputs."""
    accepted, knowledge, at, components = attempt.accepted, state.knowledge, this.at, this.components
    if accepted is None:
        return Batch(events=events)
    done = (
        event
        for result in ready.results
        for event in (
            *build_override_events(result, accepted.revision, at, first=result.uuid not in knowledge.pins),
            *build_power_events(result, accepted.revision, at),
        )
    )
    is_fetched = state.fetched is not None and not state.fetched.failed
    batch = Batch(
        clock_state=state.keeping,
        uptime=ready.up,
        attempt=attempt,
        is_caught_up=knowledge.facts.gap and is_fetched and components.accepting.is_newest(attempt),
        events=(*events, *done),
        sightings=ready.sightings,
    )
    if not plans_by(knowledge, accepted):
        return batch
    settled = state.plans.commit if knowledge.recorded_commit is not None else None
    unplanned = accepted.select_server_names(state.unplanned)
    return structs.replace(
        batch,
        commit=accepted,
        requests=tuple(each for each in ready.requests if each.action == BEGIN),
        changed=find_changed_servers(settled, attempt.offered or accepted) | unplanned,
        removed_machines=find_departed_machines(settled, accepted) if knowledge.recorded_commit else None,
        installing=state.plans.begun.keys() | unplanned,
        fetches=match_fetches(components.store, ready.spooled, state.keys),
        spool_offsets=ready.spool,
        unoffered_boots=ready.given,
        bmc_evidence=tuple(_list_readings(ready, state)),
        pins=tuple((each.uuid, each.pinned) for each in ready.results if each.pinned is not None),
        machines_without_task=find_machines_without_task(state.schedule, knowledge)
        if knowledge.pending
        else frozenset(),
    )


def _list_readings(ready: Intake, state: InstanceState) -> Iterator[BmcEvidence]:
    for each in ready.results:
        if each.observed is not None:
            server, bmc = state.plans.servers.get(each.server), state.schedule.bmcs.get(each.uuid)
            yield BmcEvidence(
                uuid=each.uuid,
                state=server if server is not None and server.decision.uuid == each.uuid else None,
                observed=each.observed,
                pending_ids=bmc.pending_ids if bmc is not None else frozenset(),
                open_intents=bmc.open_intents if bmc is not None else frozenset(),
                decision_number=state.knowledge.facts.sequence,
                is_own_machine=not isinstance(each.identity_result, AnotherMachine | IdentityChanged),
            )
