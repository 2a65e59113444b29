"""Learn: what changes in the ledger by the accepted commit, by fetches and by readings of BMCs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from gitboot.bmc.identity import Another, IdentityChanged
from gitboot.controller.bmcs.schedule import (
    machines_without_task,
    override_events,
    power_events,
)
from gitboot.controller.commit_acceptance import Attempt
from gitboot.controller.current_plans import changed_by, left_by
from gitboot.controller.instance_state import InstanceState, goes_by
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.reconcile_inputs import Intake
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records import ledger_changes
from gitboot.controller.records.evidence import Reading
from gitboot.controller.records.ledger_changes import Batch
from gitboot.controller.records.ledger_snapshot import Knowledge, fetches_of
from gitboot.controller.records.ledger_trust import doubt_of
from gitboot.status.conditions import Event


def learn(state: InstanceState, this: Pass) -> InstanceState:
    """Compute what changes in the ledger, and write nothing."""
    knowledge = this.requested.knowledge
    this.ready = ready_part(this.taken, this.attempt, knowledge)
    batch = batch_of(state, this.attempt, this.ready, this.events, this)
    this.learnt = ledger_changes.learn(knowledge, batch, this.at)
    return state


def ready_part(taken: Intake, attempt: Attempt, knowledge: Knowledge) -> Intake:
    """Return the part of the intake that is learned now.

    Results of BMC tasks and fetches wait until this instance acts for the accepted commit. Fetches also wait while the
    ledger is in doubt.
    """
    without_fetches = structs.replace(taken, spooled=(), spool=knowledge.taken)
    if attempt.accepted is None or not goes_by(knowledge, attempt.accepted):
        return structs.replace(without_fetches, results=())
    return taken if doubt_of(knowledge.facts, attempt.accepted.decisions) is None else without_fetches


def batch_of(state: InstanceState, attempt: Attempt, ready: Intake, events: tuple[Event, ...], this: Pass) -> Batch:
    """Return what is to be learned with the commit that the instance goes on with."""
    accepted, knowledge, at, components = attempt.accepted, state.knowledge, this.at, this.components
    if accepted is None:
        return Batch(events=events)
    done = (
        event
        for result in ready.results
        for event in (
            *override_events(result, accepted.revision, at, first=result.uuid not in knowledge.pins),
            *power_events(result, accepted.revision, at),
        )
    )
    is_fetched = state.fetched is not None and not state.fetched.failed
    batch = Batch(
        keeping=state.keeping,
        up=ready.up,
        attempt=attempt,
        caught_up=knowledge.facts.gap and is_fetched and components.accepting.is_newest(attempt),
        events=(*events, *done),
        sightings=ready.sightings,
    )
    if not goes_by(knowledge, accepted):
        return batch
    settled = state.plans.commit if knowledge.settled is not None else None
    unplanned = accepted.called(state.unplanned)
    return structs.replace(
        batch,
        commit=accepted,
        requests=tuple(each for each in ready.requests if each.what == BEGIN),
        changed=changed_by(settled, attempt.offered or accepted) | unplanned,
        left=left_by(settled, accepted) if knowledge.settled else None,
        begun=state.plans.begun.keys() | unplanned,
        fetched=fetches_of(components.store, ready.spooled, state.keys),
        taken=ready.spool,
        given=ready.given,
        readings=tuple(_readings(ready, state)),
        pins=tuple((each.uuid, each.pinned) for each in ready.results if each.pinned is not None),
        unasked=machines_without_task(state.schedule, knowledge) if knowledge.pending else frozenset(),
    )


def _readings(ready: Intake, state: InstanceState) -> Iterator[Reading]:
    for each in ready.results:
        if each.observed is not None:
            server, bmc = state.plans.servers.get(each.server), state.schedule.bmcs.get(each.uuid)
            yield Reading(
                uuid=each.uuid,
                state=server if server is not None and server.decision.uuid == each.uuid else None,
                observed=each.observed,
                judges=bmc.judges if bmc is not None else frozenset(),
                intents=bmc.intents if bmc is not None else frozenset(),
                number=state.knowledge.facts.sequence,
                is_own=not isinstance(each.identified, Another | IdentityChanged),
            )
