"""Ledger changes: the effects of operator requests, fetches, BMC results and the accepted commit, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field

from gitboot.artifacts.availability import Sighting
from gitboot.bmc.credentials import get_credential_use
from gitboot.bmc.identity import PinnedIdentity
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.override_steps import UnrecordedClearing
from gitboot.bmc.power_steps import PowerRecord
from gitboot.controller import operator_requests
from gitboot.controller.bmcs.desired_state import extend_power_records
from gitboot.controller.current_plans import apply_stop_order
from gitboot.controller.instance_state import AcceptanceState
from gitboot.controller.maintenance_hooks import ClearanceChange
from gitboot.controller.records import commit_effects, evidence, ledger_trust
from gitboot.controller.records.install_boots import collect_rollbacks
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.provisioning import Observability, is_unobservable
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.ledger.instance_tables import Request
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.resolve.server_decision import BootFile
from gitboot.status.conditions import Event
from gitboot.status.instance_status import HeldCommit
from gitboot.system_clock import ClockState, Uptime

RETENTION: Final = timedelta(days=90)  # how long offers and fetches are kept in the ledger


class Batch(Struct, frozen=True, kw_only=True):
    """The inputs of one reconcile: everything that arrived since the previous batch."""

    events: tuple[Event, ...] = ()  # events to store with the changes

    # Clock
    clock_state: ClockState | None = None  # None: a command applies the batch instead of an instance
    unwritten_clock: datetime | None = None  # the latest time of the clock while the ledger could not be written
    uptime: Uptime | None = None  # the kernel's uptime
    is_externally_confirmed: bool = False  # whether a source outside STATE and OUTPUT confirms the newest change
    has_transition: bool = False  # whether a plan changes now because of the clock, or this is the first batch

    # Operators
    requests: tuple[Request, ...] = ()
    held: HeldCommit | None = None  # the commit that operators can approve
    stop_order: StopOrder | None = None  # a stop that an operator ordered in the files that endpoints read
    clearances: tuple[ClearanceChange, ...] = ()  # what URLs answered about maintenances, and drains that begin

    # Commits and artifacts
    acceptance: AcceptanceState = field(default_factory=AcceptanceState)  # the result of judging the newest commit
    is_newest_accepted: bool = False  # whether the newest commit is accepted
    is_caught_up: bool = False  # whether the newest commit is accepted after a gap, and the last fetch succeeded
    commit: Commit | None = None  # the accepted commit, if this instance may act for it
    changed_servers: Collection[str] = ()  # servers that changed in the commit; at first, all servers
    removed_machines: Collection[SystemUuid] | None = None  # machines that the commit removed; None: unknown
    installing: Collection[str] = ()  # at least all unchanged servers that are being installed
    sightings: Mapping[BootFile, Sighting] | None = None  # results for all checked artifacts; None: unchanged

    # Fetches
    fetches: tuple[evidence.Fetch, ...] = ()
    spool_offsets: Mapping[str, int] | None = None  # how far each file of the fetch log is read with these fetches
    unoffered_boots: tuple[Observation, ...] = ()  # served boots that this ledger never offered

    # BMCs
    # records that BMC tasks have already written to the ledger
    written_records: tuple[tuple[SystemUuid, OverrideRecord | PowerRecord], ...] = ()
    clearings: tuple[UnrecordedClearing, ...] = ()  # records by BMC tasks that are not in the ledger yet
    bmc_evidence: tuple[evidence.BmcEvidence, ...] = ()
    pins: tuple[tuple[SystemUuid, PinnedIdentity], ...] = ()  # the machine identities that BMCs reported
    machines_without_task: frozenset[SystemUuid] = frozenset()  # machines with pending fetches but no BMC task


class BatchResult(Struct, frozen=True, kw_only=True):
    """The `LedgerSnapshot` after a batch, and the changes to store in the ledger."""

    snapshot: LedgerSnapshot
    update: LedgerUpdate
    changed_machines: frozenset[SystemUuid]  # machines with a changed record, override, power record or pending fetch


def apply_batch(snapshot: LedgerSnapshot, batch: Batch, at: datetime) -> BatchResult:
    """Apply a batch, and return the new `LedgerSnapshot` with the changes. The caller must store the changes.

    The order matters: requests may replace records that BMC tasks wrote before, and an accepted commit is applied to
    the records that operators chose.
    """
    update = LedgerUpdate(snapshot, at)
    _apply_task_records(update, batch)
    if batch.clock_state is not None:
        _apply_heartbeat(update, batch, batch.clock_state)
    if batch.stop_order is not None:
        apply_stop_order(update, batch.stop_order)
    operator_requests.carry_out_requests(update, batch.requests, batch.commit, batch.held)
    update.events += batch.events
    _apply_acceptance(update, batch)
    if batch.sightings is not None:
        _apply_sightings(update, batch.sightings)
    if batch.commit is not None:
        _apply_commit(update, batch, batch.commit)
        _apply_clearances(update, batch.clearances)
    if batch.clock_state is not None and not update.is_empty:
        ledger_trust.refresh_heartbeat(update, batch.uptime)
    return BatchResult(snapshot=update.build_snapshot(), update=update, changed_machines=_find_changed_machines(update))


def _apply_task_records(update: LedgerUpdate, batch: Batch) -> None:
    """Take over the records that BMC tasks wrote to the ledger, or to the file beside the ledger."""
    for uuid, record in batch.written_records:
        if isinstance(record, PowerRecord):
            update.power_records.set_record(uuid, record, stored=True)
        else:
            update.overrides.set_record(uuid, record, stored=True)
    for clearing in batch.clearings:
        _apply_override_clearing(update, clearing)


def _apply_override_clearing(update: LedgerUpdate, clearing: UnrecordedClearing) -> None:
    """Record the clearing of an override, as noted in the file beside the ledger.

    The clearing is ignored if the override was set or ended after the clearing.
    """
    uuid, record = clearing.uuid, clearing.record
    known = next((each for each in update.overrides.list_records(uuid) if each.reason == record.reason), None)
    if known is None or not known.is_ended_by(record):
        return
    update.overrides.set_record(uuid, record)
    if not clearing.is_from_earlier_process:
        return  # the task's result yields the event
    machine = update.before.machines.get(uuid)
    name = machine.name if machine is not None else uuid
    update.add_event(
        f"Override{record.state}",
        f"{name}: {record.override.enabled} {record.override.target} for {record.reason} is {record.state}, according "
        "to a note that the instance wrote before it ended",
        server=name,
        reason=record.reason,
        plan=record.plan_digest,
    )


def _apply_heartbeat(update: LedgerUpdate, batch: Batch, clock_state: ClockState) -> None:
    """Record that the instance is running, and once a day prune old entries."""
    # Count from the last heartbeat, so that a clock that jumps ahead does not make entries old.
    last = update.facts.heartbeat
    if last is not None and last.at.date() < update.at.date():
        update.prune_before = last.at - RETENTION
    ledger_trust.record_heartbeat(
        update,
        clock_state,
        is_externally_confirmed=batch.is_externally_confirmed,
        has_transition=batch.has_transition,
        unwritten_clock=batch.unwritten_clock,
        uptime=batch.uptime,
    )


def _apply_acceptance(update: LedgerUpdate, batch: Batch) -> None:
    """Record the result of judging the newest commit, and the effects of a newly accepted commit."""
    acceptance, accepted, steps = batch.acceptance, batch.acceptance.accepted, batch.acceptance.steps
    if batch.is_caught_up and update.facts.gap:
        update.set_facts(gap=False)
    if acceptance.searched is not None:
        update.set_facts(searched=acceptance.searched)
    update.used_acknowledgements |= acceptance.used_ack_ids
    update.known_pairs |= steps.approved_bmcs
    is_newly_accepted = accepted is not None and accepted.revision != update.facts.accepted
    if is_newly_accepted or batch.is_newest_accepted:
        update.void_approvals = tuple(update.before.approvals)  # used, or for a commit that is no longer on the branch
    if accepted is None:
        return
    update.set_facts(orders=acceptance.orders, withheld=acceptance.withheld)
    if not is_newly_accepted:
        return
    update.set_facts(
        accepted=accepted.revision,
        rolled_back=collect_rollbacks(update.before, sorted(steps.rolled_back), update.facts.sequence),
    )
    if steps.lost is not None:
        update.lost_identities = steps.lost
    commit_effects.adopt_lowered_servers(update, accepted.decisions, steps.lowered)
    commit_effects.drop_moved_machines(update, steps.moves, accepted.machines)
    update.next_decision_number()


def _apply_sightings(update: LedgerUpdate, sightings: Mapping[BootFile, Sighting]) -> None:
    """Record the results of artifact checks, and add events about changes.

    There is no event for an artifact that is no longer checked.
    """
    if sightings is update.sightings:
        return
    before = update.sightings or {}
    for file, sighting in sightings.items():
        was_absent = file in before and before[file].is_absent
        if sighting.is_absent and not was_absent:
            update.add_event(
                "ArtifactMissing",
                f"{file.url}: {sighting.message}. gitboot does not offer boots or boot scripts that need this file "
                "until the file is available",
                warning=True,
                url=file.url,
                sha256=file.sha256,
            )
        elif was_absent and not sighting.is_absent:
            update.add_event("ArtifactFound", f"{file.url} is available again", url=file.url, sha256=file.sha256)
    update.sightings = sightings


def _apply_commit(update: LedgerUpdate, batch: Batch, commit: Commit) -> None:
    """Apply the inputs that depend on the accepted commit.

    The function first records the new servers of the commit. Then it records what BMCs and fetches prove, and at last
    adapts the records to the changed servers.
    """
    if update.recorded_commit != commit.revision:
        # `records begin` does not show what an earlier commit introduced, so gitboot must not act on this then.
        is_newly_accepted = update.before.facts.accepted != commit.revision
        steps = batch.acceptance.steps
        commit_effects.update_records_for_commit(
            update,
            commit,
            batch.changed_servers,
            batch.installing,
            steps.introduced if is_newly_accepted else {},
            declared_boards=steps.declared_boards if is_newly_accepted else (),
            removed=batch.removed_machines,
        )
    for uuid, pinned in batch.pins:
        update.set_pin(uuid, pinned)
    accepted_evidence = commit.fleet.provisioning.evidence
    for task_evidence in batch.bmc_evidence:
        if evidence.apply_bmc_evidence(update, task_evidence, accepted_evidence):
            update.judged_machines.add(task_evidence.uuid)
    if batch.machines_without_task:
        evidence.accept_fetches_without_task(update, batch.machines_without_task, commit)
    if ledger_trust.find_unverified_reason(update.facts, commit.decisions) is None:
        evidence.record_fetches(update, batch.fetches, commit)
        boards = {fetch.offer.uuid for fetch in batch.fetches} - commit.machines.keys()
        if boards:
            commit_effects.drop_records_of_installed_boards(update, commit, boards)
        update.spool_offsets = batch.spool_offsets  # stored together with the fetches
    if batch.unoffered_boots:
        commit_effects.drop_records_with_unoffered_boots(update, commit, batch.unoffered_boots)
    if batch.changed_servers or update.new_records:
        commit_effects.extend_maintenance_runs(update, commit, batch.changed_servers)
        _update_drains(update, commit, batch.changed_servers)
    if update.before.power_records or update.power_records.new:
        extend_power_records(update, commit, batch.changed_servers)
    if batch.changed_servers and update.known_pairs:
        _forget_unused_bmcs(update, commit)
    _update_unobservable(update, commit, batch.changed_servers)


def _update_drains(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """End drains whose windows ended before this commit, and drains for maintenances that the commit removes."""
    for server in sorted(changed):
        decision = commit.decisions.servers.get(server)
        record = update.usable_record(decision.uuid) if decision is not None else None
        if decision is None or record is None or not record.clearances:
            continue
        ends = {maintenance.name: maintenance.end for maintenance in decision.maintenances}
        clearances = {
            name: clearance.move_end(ends[name], update.at)
            for name, clearance in record.clearances.items()
            if name in ends
        }
        if clearances != record.clearances:
            update.write_record(decision.uuid, server, replace(record, clearances=clearances))


def _forget_unused_bmcs(update: LedgerUpdate, commit: Commit) -> None:
    """Forget credentials of BMCs that no server and no leftover override uses. A BMC that returns needs an approval."""
    leftover_bmcs = (
        override.bmc
        for uuid in update.before.overrides.keys() | update.overrides.new.keys()
        for override in update.overrides.list_records(uuid)
        if override.may_be_left_on_bmc
    )
    described_bmcs = (machine.bmc for machine in commit.machines.values())
    update.known_pairs &= {get_credential_use(bmc) for bmc in (*described_bmcs, *leftover_bmcs) if bmc is not None}


def _update_unobservable(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Find the machines whose next boot this instance could not observe.

    The function looks at the servers that changed in the commit, and at machines with a new record. It looks at all
    machines if the instance starts or stops setting overrides.
    """
    required, observes = commit.decisions.evidence, update.facts.observes
    # Whether overrides count as evidence. For some boots, there is no other evidence.
    sets_overrides = commit.ledger is not None or (observes and required is not Evidence.PROGRESS)
    uuids = _select_machines_to_observe(update, commit, changed, sets_overrides=sets_overrides)
    update.sets_bmcs = sets_overrides
    unobservable = set()
    for uuid in uuids & commit.machines.keys():
        machine = commit.machines[uuid]
        has_override = any(override.state.is_open for override in update.overrides.list_records(uuid))
        observability = Observability(
            has_bmc=machine.bmc is not None,
            observes_fetches=observes,
            sets_overrides=sets_overrides or has_override,
        )
        if is_unobservable(commit.decisions.servers[machine.name], update.record(uuid), required, observability):
            unobservable.add(uuid)
    if uuids:
        update.unobservable = (update.unobservable - uuids) | unobservable


def _select_machines_to_observe(
    update: LedgerUpdate, commit: Commit, changed: Collection[str], *, sets_overrides: bool
) -> set[SystemUuid]:
    """Return the machines for which it may have changed whether the instance could observe the next boot."""
    if sets_overrides is not update.sets_bmcs:  # for example, the Fleet now names a ledger
        return {*commit.machines, *update.unobservable}
    uuids = {machine.uuid for machine in commit.select_machines(changed)} | update.new_records.keys()
    return uuids if sets_overrides else uuids | update.overrides.new.keys()


def _apply_clearances(update: LedgerUpdate, changes: Collection[ClearanceChange]) -> None:
    """Record approvals and drains, so that a restarted instance continues with them."""
    for change in changes:
        if (record := update.usable_record(change.uuid)) is None:
            continue
        clearances = {name: clearance for name, clearance in record.clearances.items() if name in change.kept}
        clearances[change.maintenance] = change.clearance
        update.write_record(change.uuid, change.server, replace(record, clearances=dict(sorted(clearances.items()))))
        update.add_event(change.event, change.message, server=change.server, maintenance=change.maintenance)


def _find_changed_machines(update: LedgerUpdate) -> frozenset[SystemUuid]:
    """Return the machines that need a new plan or BMC task because of the batch."""
    before = update.before
    changed = {
        *update.new_records,
        *update.dropped,
        *update.overrides.new,
        *update.new_pending,
        *update.power_records.new,
        *(update.unobservable ^ before.unobservable),
    }
    if (update.recorded_commit is None) != (before.recorded_commit is None):
        changed |= before.accepted_machines | update.machines.keys()
    return frozenset(changed)
