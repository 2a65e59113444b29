"""Publish: write the files of changed servers, or only end windows if that is not possible."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import structs

from gitboot.controller.current_plans import Plans
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.publication import LedgerOfferRecorder, publish_plans
from gitboot.controller.reconcile_inputs import ReconcileContext
from gitboot.controller.stages.plan import QUICK_START
from gitboot.errors import LedgerError
from gitboot.evaluator.protocol import Commit
from gitboot.ledger import instance_tables
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import build_serving_terms
from gitboot.render.server_files import ServerState
from gitboot.resolve.server_plan import Cause
from gitboot.status.conditions import Event

_TARGET_WAIT_S: Final = 60.0  # how long `gitboot run --once` waits for the targets


def publish(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Publish the plans.

    If no plans exist yet or the publication fails, only replace the files of windows that have ended in OUTPUT.
    """
    target, transitions = context.components.target, context.before.plans.transitions
    due_servers = transitions.find_due_keys(context.at)
    if (commit := state.commit) is not None:
        target.followers.prioritize(due_servers)
        state = _record_left_output(_publish_plans(state, commit, context), commit, context)
        # after a failed publication, the targets may lack an earlier transition, too
        if state.publication.is_placed and (due_servers or not context.before.publication.is_placed):
            target.followers.publish_transition(min(transitions.next_due or context.at, context.at))
        if context.wait:
            target.followers.wait(_TARGET_WAIT_S)
        acceptance = state.acceptance
        if (
            acceptance.published != acceptance.evaluated
            and state.ledger_error is None
            and state.publication.has_plans_for(commit)
        ):
            state = structs.replace(state, acceptance=structs.replace(acceptance, published=acceptance.evaluated))
    if commit is not None and state.publication.complete and state.publication.is_placed:
        return structs.replace(state, waits_since=None, next_window_end=None)
    state = _end_windows(state, context)
    if not state.publication.is_placed:  # the publication may have ended some of these windows before it failed
        target.copy_ended_windows(due_servers, context.at)
    return state


def _publish_plans(state: InstanceState, commit: Commit, context: ReconcileContext) -> InstanceState:
    """Publish the plans if the published files may differ, and delete the fetch log entries that the plans reflect."""
    components, snapshot, at = context.components, state.snapshot, context.at
    inbox, publication = components.inbox, state.publication
    if publication.complete and not components.target.is_unchanged:
        message = (
            "the output tree was replaced or removed after gitboot published it, so gitboot publishes all files again"
        )
        publication = structs.replace(
            publication, complete=False, events=(Event(at=at, type="TreeReplaced", message=message, warning=True),)
        )
    if components.checkpoint is not None:
        publication = components.checkpoint.mark_damaged(publication)
    deletion_count = inbox.count_deletions_after(snapshot.spool_offsets)
    terms = build_serving_terms(
        commit.fleet.provisioning, inbox.fetch_log_id, endpoint=commit.fleet.endpoint, loss_count=deletion_count
    )
    if (
        context.replanned_servers
        or not (publication.has_plans_for(commit) and publication.terms == terms)
        or publication.plans.sightings is not state.plans.sightings
    ):
        publication = publish_plans(
            structs.replace(state, publication=publication),
            commit,
            context.replanned_servers,
            components.target,
            LedgerOfferRecorder(components.store, snapshot.facts, at, state.ledger_error),
            at,
            terms,
        )
    if publication.has_plans_for(commit) and state.ledger_error is None:
        inbox.forget_spool(snapshot.spool_offsets, deletion_count)
    return structs.replace(
        state,
        publication=structs.replace(publication, ledger_error=None),
        ledger_error=publication.ledger_error or state.ledger_error,
    )


def _record_left_output(state: InstanceState, commit: Commit, context: ReconcileContext) -> InstanceState:
    """Record in the ledger which one-time boots an upgrade removed from OUTPUT, once a publication is complete."""
    facts = state.snapshot.facts
    if state.ledger_error is not None or not state.publication.complete:
        return state
    left_machines = _find_left_in_output(facts, state.plans, commit, is_upgraded=state.is_upgraded)
    if left_machines == facts.left_output:
        return state
    try:
        with context.components.store.writing() as tx:
            instance_tables.write_facts(tx, left_output=left_machines)
    except LedgerError as error:
        return structs.replace(state, ledger_error=str(error))
    return structs.replace(
        state, snapshot=structs.replace(state.snapshot, facts=structs.replace(facts, left_output=left_machines))
    )


def _find_left_in_output(
    facts: instance_tables.Facts, plans: Plans, commit: Commit, *, is_upgraded: bool
) -> frozenset[SystemUuid]:
    """Return the machines whose one-time boot was in OUTPUT before an upgrade and is not served now.

    A machine leaves the set when its boot is over, or when the Fleet names an endpoint or allows one-time boots in
    copies.
    """
    if facts.left_output is None and not is_upgraded:
        return frozenset()
    states: Iterable[ServerState] = plans.servers.values()
    if facts.left_output is not None:
        names = [commit.machines[uuid].name for uuid in facts.left_output if uuid in commit.machines]
        states = [plans.servers[name] for name in names if name in plans.servers]
    left_machines = set[SystemUuid]()
    for state in states:
        decision, plan = state.decision, state.plan
        is_in_copies = decision.endpoint is not None or decision.copies.one_time_boots
        is_offered = plan is not None and plan.key is not None and plan.writes_disk
        is_waiting = facts.left_output is not None and (
            plan is not None and plan.cause in (Cause.STOPPED, Cause.ALL_STOPPED, Cause.WITHHELD, Cause.FILE_MISSING)
        )
        if (is_offered or is_waiting) and not is_in_copies:
            left_machines.add(decision.uuid)
    return frozenset(left_machines)


def _end_windows(state: InstanceState, context: ReconcileContext) -> InstanceState:
    """Replace the files of windows that have ended in OUTPUT.

    Before that, wait up to `QUICK_START` for a publication, because reading all server states takes time.
    """
    since: datetime = state.waits_since or context.at
    if not context.wait and since <= context.at < since + QUICK_START:
        return structs.replace(state, waits_since=since, next_window_end=since + QUICK_START)
    windows = context.components.windows
    servers, events = windows.end_windows(context.at)
    return structs.replace(
        state,
        publication=state.publication.with_changed_files(servers, events),
        waits_since=since,
        next_window_end=windows.next_end,
    )
