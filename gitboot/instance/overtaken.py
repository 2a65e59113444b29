"""Whether the ledger is what it was: as the disk has it, and no older copy of one that had come further."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gitboot.controller.instance_state import Standing
from gitboot.controller.learn.ledger_snapshot import known, never_offered
from gitboot.controller.reconcile_inputs import Inbox, Intake
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store


def read_back(before: Standing, store: Store) -> Standing:
    """With what the disk really has, where a write has failed; raises `LedgerError` where it cannot be read."""
    if not store.is_suspect:
        return before
    store.read_back()
    return replace(before, knowledge=replace(known(store), published=before.knowledge.published))


def taken_in(before: Standing, store: Store, inbox: Inbox, at: datetime) -> tuple[Standing, Intake]:
    """All that waits in the inbox; with a ledger in doubt, where something else knows more than it does.

    The forge may know that it had come further, and an endpoint may have given a boot that it never offered. What was
    given before a person has said what is installed puts no more than its own server in doubt.
    """
    taken = inbox.take(before.knowledge.taken, at)
    taken = replace(taken, given=never_offered(store, taken.spooled))
    if not before.knowledge.is_trusted:
        return before, taken
    told = before.telling.known if before.telling is not None else None
    if before.opened is not None and told is not None and told > before.opened:
        return _doubted(before, store, told), taken
    begun = before.knowledge.facts.begun
    if any(begun is None or begun <= each.at for each in taken.given):
        return _doubted(before, store), taken
    return before, taken


def _doubted(before: Standing, store: Store, changes: int = 0) -> Standing:
    """With a ledger that is an older copy of one that had come to so many changes, as far as anything knows."""
    instance_tables.doubt(store, "RestoredLedger", changes)
    doubted = replace(known(store), published=before.knowledge.records)
    everyone = before.unplanned | before.knowledge.standing
    return replace(before, knowledge=doubted, opened=None, unplanned=everyone)
