"""Desired state of BMCs: the override and the power change that a plan requires."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, structs

from gitboot.bmc.override_session import BmcTask
from gitboot.bmc.override_state import Override, OverrideRecord, WantedOverride
from gitboot.bmc.power_steps import PowerOperation, PowerRecord, PowerRecordState, WantedPowerChange
from gitboot.controller.records.evidence import awaits_progress
from gitboot.controller.records.install_boots import find_earlier_overrides
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.ledger_trust import InitMode
from gitboot.evaluator.protocol import Commit
from gitboot.jsonio import format_instant
from gitboot.model.boot_policy import HttpBoot, MaintenancePower, OverrideMode, PolicyPower, PolicyWait
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Firmware
from gitboot.render.paths import BOOT, MEDIUM
from gitboot.render.server_files import ServerDetails, ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.install_attempts import last_attempt, provision_key
from gitboot.resolve.provisioning_record import Record, StopScope
from gitboot.resolve.server_decision import MaintenanceDecision, OverrideTarget
from gitboot.resolve.server_plan import BootPlan, Cause, Phase

SITE = "Site"  # the only value of maxUnavailablePer that is not a label key


class PowerPlan(Struct, frozen=True, kw_only=True):
    """The reset that a plan requires for one machine, and the maintenance limit that applies to the reset."""

    power_change: WantedPowerChange
    is_due: bool  # whether the reset is due now; if false, gitboot only waits until the machine is back
    is_boot_planned: bool = True  # whether the plan contains the boot that follows the reset
    maintenance: str | None = None  # None: a policy requires the reset, without a limit
    group: str | None = None  # the group of servers that share the limit; None: all servers, or servers without a group
    limit: str = ""
    run_at: datetime | None = None  # when gitboot observed the boot of the maintenance run
    begun_plans: tuple[PowerPlan, ...] = ()  # the resets of other runs and maintenances for which gitboot still waits

    def find_power_change(self, power_records: Iterable[PowerRecord], *, now: bool) -> WantedPowerChange | None:
        """Return the power change to include in a BMC task, or None.

        If ``now`` is true, the machine is in the power wave.
        """
        current = self.find_current_plan(power_records)
        return structs.replace(current.power_change, may_start_now=now) if current is not None else None

    def find_current_plan(self, power_records: Iterable[PowerRecord]) -> PowerPlan | None:
        """Return the plan whose reset is due or has begun, or None: this plan, or one of ``begun_plans``."""
        if self.is_due or self._has_open_record(power_records):
            return self
        return self.begun_plans[0] if self.begun_plans else None

    def is_new(self, power_records: Iterable[PowerRecord]) -> bool:
        """Return whether the power change is due and the ledger does not show that gitboot has requested it."""
        record = next((each for each in power_records if each.reason == self.power_change.reason), None)
        return self.is_due and (record is None or record.state is PowerRecordState.REFUSED)

    def as_wait_only(self, power_records: Iterable[PowerRecord]) -> PowerPlan | None:
        """Return a plan that only waits until the machine is back, or None if gitboot has not begun a reset."""
        if self._has_open_record(power_records):
            return structs.replace(self, is_due=False, power_change=structs.replace(self.power_change, may_reset=False))
        return _chain_plans(self.begun_plans)

    def _has_open_record(self, power_records: Iterable[PowerRecord]) -> bool:
        return any(each.reason == self.power_change.reason and each.state.is_open for each in power_records)

    @property
    def wave_text(self) -> str:
        """When the reset takes place, for an operator."""
        if self.maintenance is None:
            return "at once"
        group = f" in {self.group}" if self.group is not None else ""
        scope = f"Maintenance/{self.maintenance}{group}"
        return f"in its power wave ({scope}: at most {self.limit} of the servers may be down)"


def find_power_plan(state: ServerState, power_records: Mapping[str, PowerRecord]) -> PowerPlan | None:
    """Return the power plan of a server, or None if gitboot will neither reset the machine nor wait for it."""
    power = _plan_power(state, power_records)
    begun_plans = tuple(_list_begun_plans(state, power_records))
    if power is None:
        return _chain_plans(begun_plans)
    reason = power.power_change.reason
    return structs.replace(power, begun_plans=tuple(plan for plan in begun_plans if plan.power_change.reason != reason))


def _chain_plans(plans: tuple[PowerPlan, ...]) -> PowerPlan | None:
    """Return the first plan with the others as its ``begun_plans``, or None if there are no plans."""
    return structs.replace(plans[0], begun_plans=plans[1:]) if plans else None


def _plan_power(state: ServerState, power_records: Mapping[str, PowerRecord]) -> PowerPlan | None:
    """Return the power change that a server's plan requires, or None if the plan requires no power change.

    No power change is required while boots are stopped, or if the machine has no usable record.
    """
    decision, plan, record = state.decision, state.plan, state.record
    if plan is None or record is None or decision.stopped or state.stop is not StopScope.NONE:
        return None
    override = plan.override.reason if plan.override is not None else None
    # If gitboot may set overrides, a reset leads to the planned boot only with an override, or if the plan boots
    # from the disk.
    is_reached = plan.override is not None or plan.boot is None
    name = plan.maintenance or plan.waiting_maintenance
    if name is None:
        policy = decision.policy
        is_first_boot = plan.phase is Phase.NETWORK and plan.cause is Cause.PENDING
        if (
            policy is None
            or policy.power is not PolicyPower.ON
            or not is_first_boot
            or plan.key is None
            or not (is_reached or policy.override is OverrideMode.NONE)
        ):
            return None
        return PowerPlan(
            power_change=WantedPowerChange(
                reason=plan.key, operation=PowerOperation.ON, override_reason=override, valid_until=plan.next_transition
            ),
            is_due=True,
        )
    maintenance = next(each for each in decision.maintenances if each.name == name)
    if maintenance.power is MaintenancePower.NONE:
        return None
    # A maintenance without an image boots from the local disk, for which no override is needed.
    is_due = plan.cause is Cause.MAINTENANCE_DISK if maintenance.boot is None else plan.phase is Phase.MAINTENANCE
    power = _build_maintenance_power(maintenance, record, power_records, state.details)
    ends = [end for end in (maintenance.end, plan.next_transition) if end is not None]
    return structs.replace(
        power,
        is_due=is_due and (is_reached or maintenance.override is OverrideMode.NONE),
        power_change=structs.replace(power.power_change, override_reason=override, valid_until=min(ends, default=None)),
    )


def _build_maintenance_power(
    maintenance: MaintenanceDecision, record: Record, power_records: Mapping[str, PowerRecord], details: ServerDetails
) -> PowerPlan:
    """Return the power plan of a server in a maintenance, with a reset that is not due yet."""
    last_run = record.runs.get(maintenance.name)
    return PowerPlan(
        power_change=WantedPowerChange(
            reason=_find_power_reason(maintenance, power_records),
            operation=PowerOperation(maintenance.power.value),
            valid_until=maintenance.end,
            window_end=maintenance.end,
        ),
        is_due=False,
        maintenance=maintenance.name,
        group=find_limit_group(maintenance, details),
        limit=maintenance.max_unavailable,
        run_at=last_run.at if last_run is not None and last_run.run >= maintenance.run else None,
    )


def _list_begun_plans(state: ServerState, power_records: Mapping[str, PowerRecord]) -> Iterator[PowerPlan]:
    """Yield a power plan for each maintenance that has already begun to reset the machine.

    With these power plans, gitboot only waits until the machine is back. gitboot needs them if the server's plan no
    longer contains the maintenance boot, for example because a file is missing.
    """
    if state.record is None or state.decision.stopped or state.stop is not StopScope.NONE:
        return
    for maintenance in state.decision.maintenances if power_records else ():
        if maintenance.power is MaintenancePower.NONE or not maintenance.is_active(state.at):
            continue
        begun = [
            record for record in power_records.values() if is_run_record(record, maintenance) and record.state.is_open
        ]
        if begun:  # perhaps for an earlier run, or in an earlier window
            power = _build_maintenance_power(maintenance, state.record, power_records, state.details)
            reason = max(begun, key=lambda record: record.since).reason
            yield structs.replace(
                power,
                power_change=structs.replace(power.power_change, reason=reason, may_reset=False),
                is_boot_planned=False,
            )


def find_limit_group(maintenance: MaintenanceDecision, details: ServerDetails) -> str | None:
    """Return the group of servers that share the limit of a maintenance, or None if all servers share the limit.

    The result is also None if the server does not have the label that defines the groups.
    """
    label = maintenance.max_unavailable_per
    if label is None:
        return None
    return details.site if label == SITE else details.labels.get(label)


def _find_power_reason(maintenance: MaintenanceDecision, power_records: Mapping[str, PowerRecord]) -> str:
    """Return the reason that identifies the power change for a maintenance run in the current window."""
    first = reason = f"{_build_reason_prefix(maintenance)}{maintenance.run}"
    while (before := power_records.get(reason)) is not None and before.end is not None:
        later = f"{first}/after/{format_instant(before.end)}"
        if maintenance.start is None or maintenance.start < before.end or later == reason:
            break
        reason = later
    return reason


def _build_reason_prefix(maintenance: MaintenanceDecision) -> str:
    return f"power/{maintenance.name}/"


def is_run_record(record: PowerRecord, maintenance: MaintenanceDecision) -> bool:
    """Return whether this record is about a power change for a run of this maintenance."""
    return record.reason.startswith(_build_reason_prefix(maintenance))


def extend_power_records(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Extend the power records of servers after a commit moved the end of a maintenance window to a later time."""
    for name in sorted(changed):
        if (decision := commit.decisions.servers.get(name)) is None:
            continue
        power_records = {record.reason: record for record in update.power_records.list_records(decision.uuid)}
        for maintenance in decision.maintenances if power_records else ():
            record = power_records.get(_find_power_reason(maintenance, power_records))
            if record is None or record.end is None:
                continue
            if maintenance.end is None or maintenance.end > record.end:
                update.power_records.set_record(decision.uuid, structs.replace(record, end=maintenance.end))


def set_power_states(
    update: LedgerUpdate, uuid: SystemUuid, state: PowerRecordState, is_selected: Callable[[PowerRecord], bool]
) -> int:
    """Set the selected power records to the state that an operator stated. Return the number of changed records."""
    records = [record for record in update.power_records.list_records(uuid) if record.state is not state]
    chosen = [record for record in records if is_selected(record)]
    for record in chosen:
        update.power_records.set_record(uuid, structs.replace(record, state=state))
    return len(chosen)


def build_media_urls(plan: BootPlan | None, keys: TokenKeys) -> tuple[str | None, str | None]:
    """Return the URLs that a BMC may insert as virtual media: the boot image and its user data."""
    if plan is None:
        return None, None
    if (token := plan.data_medium) is None:
        return plan.medium, None
    name = keys.build_name(token) if token == plan.data else token  # a digest is published under its own name
    return plan.medium, f"{plan.base_url}/{MEDIUM.build_path(plan.uuid, name).removeprefix(BOOT)}"


def build_wanted_override(plan: BootPlan | None, keys: TokenKeys) -> WantedOverride | None:
    """Return the override that a plan requires, or None if the plan requires no override."""
    if plan is None or plan.override is None:
        return None
    override, boot = plan.override, plan.boot
    is_loader = boot is not None and boot.http_boot is HttpBoot.LOADER
    medium, data_medium = build_media_urls(plan, keys) if override.target is OverrideTarget.CD else (None, None)
    return WantedOverride(
        reason=override.reason,
        plan_digest=plan.digest,
        override=Override(
            enabled=override.enabled,
            target=override.target,
            mode="UEFI" if plan.firmware is Firmware.UEFI else "Legacy",
            http_boot_uri=override.http_boot_uri,
            medium=medium,
            data_medium=data_medium,
        ),
        set_again=override.set_again,
        writes_disk=boot is not None and boot.writes_disk,
        needs_http_uri=boot is not None and boot.http_boot is HttpBoot.ISO,
        loader_url_prefix=f"{plan.base_url}/" if is_loader else None,
        valid_until=plan.next_transition,
    )


class DesiredState(NamedTuple):
    """The desired state of a machine's BMC: the BMC task and the machine's power plan."""

    task: BmcTask | None = None  # None: no task is needed
    power: PowerPlan | None = None
    is_new: bool = False  # whether the plan requires a change at the BMC, even if gitboot must not make it now


def find_desired_state(
    uuid: SystemUuid,
    commit: Commit,
    servers: Mapping[str, ServerState],
    snapshot: LedgerSnapshot,
    keys: TokenKeys,
    *,
    may_set: bool,
) -> DesiredState:
    """Return the desired state of a machine's BMC.

    Without ``may_set``, the task does not set an override or reset the machine.
    """
    machine = commit.machines.get(uuid)
    if machine is None or machine.bmc is None or (state := servers.get(machine.name)) is None:
        return DesiredState()
    wanted = build_wanted_override(state.plan, keys)
    records, power_records = snapshot.list_overrides(uuid), snapshot.list_power_records(uuid)
    power = find_power_plan(state, snapshot.power_records.get(uuid, {}))
    is_new = power is not None and power.is_new(power_records)
    if wanted is not None:
        record = next((each for each in records if each.reason == wanted.reason), None)
        is_new = is_new or wanted.should_set(record)
        wanted = structs.replace(add_server_state(wanted, state, snapshot), may_set=may_set)
        if not may_set and (record is None or record.state.is_unused):
            wanted = None
    needs_evidence = _may_have_booted_before(state, records)
    if needs_evidence:  # an operator must look at the machine
        may_set = is_new = False
        wanted = None
    if not may_set and power is not None:
        power = power.as_wait_only(power_records)
    needs_progress = awaits_progress(snapshot, state, commit.fleet.provisioning.evidence)
    is_waiting = state.plan is not None and state.plan.cause is Cause.WAITING_FOR_POWER_OFF
    is_read = needs_progress or needs_evidence or is_waiting
    if wanted is None and power is None and not is_read and not any(each.may_be_left_on_bmc for each in records):
        return DesiredState(is_new=is_new)
    task = BmcTask(
        server=machine.name,
        uuid=uuid,
        bmc=machine.bmc,
        wanted=wanted,
        records=records,
        site=commit.sites.get(machine.name),
        serial=machine.serial,
        with_clock=needs_progress,
        keep_media=tuple(filter(None, build_media_urls(state.plan, keys))),
        power_records=power_records,
    )
    return DesiredState(task, power, is_new)


def _may_have_booted_before(state: ServerState, overrides: Iterable[OverrideRecord]) -> bool:
    """Return whether the machine may have used an earlier override for the planned installation."""
    plan, record = state.plan, state.record
    if plan is None or plan.phase is not Phase.NETWORK or plan.key is None or record is None:
        return False
    return bool(find_earlier_overrides(overrides, plan.key, record))


def add_server_state(wanted: WantedOverride, state: ServerState, snapshot: LedgerSnapshot) -> WantedOverride:
    """Return the wanted override with its planned end and with the conditions under which gitboot may set it."""
    # The ledger was initialized with `fresh`, and contains no evidence about this server.
    has_no_evidence = state.record is not None and state.record == Record(offered=state.record.offered)
    return structs.replace(
        wanted,
        planned_end=_find_override_end(wanted, state),
        is_first_install=has_no_evidence and snapshot.facts.initialised == InitMode.FRESH,
        only_while_off=_waits_for_power_off(state),
    )


def _find_override_end(wanted: WantedOverride, state: ServerState) -> datetime | None:
    """Return the time of the planned transition that ends this override, or None if no transition ends it.

    A maintenance without an end continues as long as an instance plans the maintenance, so it never ends the override.
    """
    for since, plan in state.later:
        if plan is None or plan.override is None or plan.override.reason != wanted.reason:
            return since if plan is None or plan.cause is not Cause.INSTANCE_SILENT else None
    return None


def _waits_for_power_off(state: ServerState) -> bool:
    """Return whether gitboot may set the override only while the machine is off.

    A policy can require this for the first attempt of an installation.
    """
    plan, policy, record = state.plan, state.decision.policy, state.record
    if plan is None or policy is None or record is None or policy.wait_for is not PolicyWait.POWER_OFF:
        return False
    return plan.phase is Phase.NETWORK and last_attempt(record, provision_key(policy, record)) is None


def build_leftover_task(uuid: SystemUuid, commit: Commit, snapshot: LedgerSnapshot) -> BmcTask | None:
    """Return the task that clears a leftover override at a machine's former BMC, or None if no task is needed."""
    records = snapshot.list_overrides(uuid)
    leftover_records = [record for record in records if record.may_be_left_on_bmc]
    if not leftover_records:
        return None
    machine, last = commit.machines.get(uuid), snapshot.machines.get(uuid)
    bmcs = (*(record.bmc for record in leftover_records), last.bmc if last is not None else None)
    bmc = next((bmc for bmc in bmcs if bmc is not None), None)
    if bmc is None or (
        machine is not None and machine.bmc is not None and machine.bmc.normalized_address == bmc.normalized_address
    ):
        return None
    return BmcTask(server=last.name if last is not None else uuid, uuid=uuid, bmc=bmc, wanted=None, records=records)
