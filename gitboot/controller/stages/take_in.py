"""Take in: collect fetches, BMC results and operator requests."""

from __future__ import annotations

from datetime import datetime

from msgspec import structs

from gitboot.controller.instance_state import InstanceState
from gitboot.controller.reconcile_inputs import Inbox, Intake
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records.ledger_snapshot import find_unoffered_boots, read_knowledge
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store


def take_in(state: InstanceState, this: Pass) -> InstanceState:
    """Take the inputs from the inbox.

    If a write to the ledger may be lost, first read the ledger again. Raises `LedgerError`.
    """
    store = this.components.store
    if (start := state.before_resume) is not None:
        # The ledger is writable again, so the instance continues as after a start. It publishes all files again,
        # because the modification times of published files may be missing from the ledger.
        state = structs.replace(
            state,
            knowledge=start.knowledge,
            attempt=start.attempt,
            plans=start.plans,
            publication=structs.replace(start.publication, complete=False),
            unplanned=start.unplanned,
        )
    if store.is_suspect:
        store.read_back()
        state = structs.replace(
            state, knowledge=structs.replace(read_knowledge(store), published_records=state.knowledge.published_records)
        )
    state, this.taken = take_inputs(state, store, this.components.inbox, this.at)
    return state


def take_inputs(state: InstanceState, store: Store, inbox: Inbox, at: datetime) -> tuple[InstanceState, Intake]:
    """Return the state and the inputs.

    If the inputs show that the ledger is an older copy, mark the ledger as unverified. The ledger is an older copy if
    the forge knows a later change number, or if an endpoint served a boot that the ledger never offered. If the boot
    was served before an operator initialized the ledger, only the record of its server becomes unverified.
    """
    taken = inbox.take(state.knowledge.spool_offsets, at)
    if taken.spooled:
        taken = structs.replace(taken, given=find_unoffered_boots(store, taken.spooled))
    if not state.knowledge.is_trusted:
        return state, taken
    forge_changes = state.telling.known_changes if state.telling is not None else None
    is_behind = state.opened is not None and forge_changes is not None and forge_changes > state.opened
    begun = state.knowledge.facts.begun
    if not is_behind and not any(begun is None or begun <= each.at for each in taken.given):
        return state, taken
    instance_tables.mark_unverified(store, "RestoredLedger", forge_changes or 0 if is_behind else 0)
    doubted = structs.replace(read_knowledge(store), published_records=state.knowledge.records)
    everyone = state.unplanned | state.knowledge.accepted_machines
    return structs.replace(state, knowledge=doubted, opened=None, unplanned=everyone), taken
