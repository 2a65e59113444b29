"""Publish: the files of changed servers, and the ends of windows while there are no plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gitboot.child_processes import uncollected
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.offered_files import LedgerNotes, left_output, published
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.stages.plan import QUICK_START
from gitboot.controller.target_followers import PATIENCE_S
from gitboot.errors import LedgerError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.ledger import instance_tables
from gitboot.render.endpoint_files import terms_of
from gitboot.status.events import Event


def publish(state: InstanceState, this: Pass) -> InstanceState:
    """Publish the plans, or end the windows that are over in the tree of an earlier process."""
    if (commit := state.commit) is not None:
        state = _note_left_output(_publish_plans(state, commit, this), commit, this)
        transition = this.before.plans.transitions.next
        if transition is not None and transition <= this.at:
            this.components.target.followers.turn(transition)
        if this.wait:
            this.components.target.followers.wait(PATIENCE_S)
        attempt = state.attempt
        if attempt.stands != attempt.evaluated and state.unwritable is None and state.publication.stands_for(commit):
            state = replace(state, attempt=replace(attempt, stands=attempt.evaluated))
    if commit is not None and state.publication.complete:
        return replace(state, waits_since=None, next_window_end=None)
    return _end_windows(state, this)


def _publish_plans(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    """Publish the plans to the target, and delete the fetches from the spool that the ledger has."""
    components, knowledge, at = this.components, state.knowledge, this.at
    inbox, publication = components.inbox, state.publication
    if publication.complete and not components.target.is_as_left:
        message = "what was published is not there any more as it was: all of it is published anew"
        event = Event(at=at, type="TreeReplaced", message=message, warning=True)
        publication = replace(publication, complete=False, events=(event,))
    if components.checkpoint is not None:
        publication = components.checkpoint.without_suspects(publication)
    forgotten = inbox.forgotten_next(knowledge.taken)
    terms = terms_of(commit.fleet.provisioning, inbox.giver, endpoint=commit.fleet.endpoint, forgotten=forgotten)
    is_same = publication.stands_for(commit) and publication.terms == terms
    if this.different or not is_same or publication.plans.sightings is not state.plans.sightings:
        with uncollected():
            publication = published(
                publication,
                state.plans,
                commit,
                this.different,
                knowledge,
                components.target,
                LedgerNotes(components.store, knowledge.facts, at, state.unwritable),
                at,
                terms=terms,
                keys=state.keys,
            )
    if publication.stands_for(commit) and state.unwritable is None:
        inbox.forget_spool(knowledge.taken, forgotten)
    unwritable = publication.unwritable or state.unwritable
    return replace(state, publication=replace(publication, unwritable=None), unwritable=unwritable)


def _note_left_output(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    """Store which one-time boots an upgrade took out of OUTPUT, if the publication is complete."""
    facts = state.knowledge.facts
    if state.unwritable is not None or not state.publication.complete:
        return state
    left = left_output(facts, state.plans, commit, is_upgraded=state.is_upgraded)
    if left == facts.left_output:
        return state
    try:
        with this.components.store.writing() as tx:
            instance_tables.write_facts(tx, left_output=left)
    except LedgerError as error:
        return replace(state, unwritable=str(error))
    return replace(state, knowledge=replace(state.knowledge, facts=replace(facts, left_output=left)))


def _end_windows(state: InstanceState, this: Pass) -> InstanceState:
    """End the windows that are over in the tree of an earlier process, until this instance has published.

    First wait a while for the first publication, because reading all server states takes time.
    """
    since: datetime = state.waits_since or this.at
    if not this.wait and since <= this.at < since + QUICK_START:
        return replace(state, waits_since=since, next_window_end=since + QUICK_START)
    windows = this.components.windows
    servers, events = windows.end(this.at)
    publication = state.publication.owing(servers, events)
    return replace(state, publication=publication, waits_since=since, next_window_end=windows.next_end)
