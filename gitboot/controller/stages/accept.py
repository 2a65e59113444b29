"""Accept: carry out operator requests, then accept, hold or reject the newest commit."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from gitboot.controller.instance_state import InstanceState
from gitboot.controller.operator_requests import APPROVE, BEGIN
from gitboot.controller.reconcile_pass import Pass
from gitboot.controller.records import ledger_changes
from gitboot.controller.records.ledger_changes import Batch
from gitboot.status.conditions import Event


def accept(state: InstanceState, this: Pass) -> InstanceState:
    """Carry out operator requests, then accept, hold or reject the newest commit.

    A request to begin with records is left to the stage `learn`. After a start, an approval waits until the newest
    commit has been judged again.
    """
    taken, attempt, telling = this.taken, state.attempt, state.telling
    is_judged = attempt.attempted is not None and not attempt.is_preliminary
    waiting = {BEGIN} if is_judged else {BEGIN, APPROVE}
    this.is_approval_left = any(each.action == APPROVE for each in taken.requests if each.action in waiting)
    # Whether the forge knew the change number that the ledger had when it was opened. This proves nothing if the ledger
    # was unused for a long time.
    is_vouched_for = telling is not None and state.opened is not None and telling.known_changes == state.opened
    batch = Batch(
        clock_state=state.keeping,
        uptime=taken.up,
        is_externally_confirmed=taken.witnessed or (is_vouched_for and not state.was_left),
        has_transition=state.plans.is_due(this.at) or attempt.attempted is None,
        written_records=taken.written,
        withdrawals=taken.noted,
        requests=tuple(each for each in taken.requests if each.action not in waiting),
        stoppage=taken.stoppage,
        events=tuple(_report_unproven_status(state, this)),
        held=attempt.held,
    )
    this.requested = ledger_changes.apply_batch(state.knowledge, batch, this.at)
    this.attempt, this.events = this.components.accepting.accept(attempt, this.requested.knowledge, this.at)
    return state


def resume(state: InstanceState, this: Pass) -> InstanceState:
    """Restore the commit that was accepted last, if the ledger has not been writable since the start."""
    if state.attempt.accepted is not None or not state.knowledge.is_trusted:
        return state
    attempt = this.components.accepting.resume(state.attempt, state.knowledge, this.at)
    if attempt.accepted is None:
        return state  # the commit is still being evaluated, or is not in the clone
    # The records of the commit's servers were updated before the start, so `recorded_commit` must not be None.
    return structs.replace(
        state, attempt=attempt, knowledge=structs.replace(state.knowledge, recorded_commit=""), before_resume=state
    )


def _report_unproven_status(state: InstanceState, this: Pass) -> Iterator[Event]:
    """Report once that an unproven commit status names a later change number than the ledger's.

    Such a status has no effect, because anyone who may write commit statuses could have written it.
    """
    before, opened = (
        this.before.telling.claimed_changes if this.before.telling is not None else None,
        this.before.opened,
    )
    claimed = state.telling.claimed_changes if state.telling is not None else None
    if claimed is not None and claimed != before and opened is not None and claimed > opened:
        message = (
            f"a commit status at the forge names change {claimed} of this ledger, whose newest change is {opened}. "
            "gitboot ignores the status, because it has no proof by the ledger's key: an earlier version of gitboot or "
            "anyone who may write statuses, may have written it. If you restored the ledger from a backup, run "
            "gitboot records begin"
        )
        yield Event(at=this.at, type="CommitStatusUnverified", message=message, facts={"change": claimed}, warning=True)
