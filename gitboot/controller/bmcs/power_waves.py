"""Power waves: which machines of a maintenance gitboot may reset now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field, structs

from gitboot.bmc.override_session import BmcTask, TaskOutcome
from gitboot.bmc.override_state import OverrideState
from gitboot.bmc.power_steps import PowerOperation, PowerRecord, PowerRecordState
from gitboot.controller.bmcs.desired_state import PowerPlan, find_limit_group, is_run_record
from gitboot.controller.bmcs.schedule import BmcState, Schedule
from gitboot.controller.current_plans import Plans
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import MaintenanceDecision
from gitboot.resolve.server_plan import Cause


def update_power_waves(schedule: Schedule, snapshot: LedgerSnapshot, at: datetime, timeout: timedelta) -> Schedule:
    """Return the schedule with an updated set of machines that gitboot may reset now.

    A maintenance stops if a machine does not come back within ``timeout`` after gitboot has reset it.
    """
    in_wave = set[SystemUuid]()
    members = list[WaveMember]()
    uuids: dict[str, SystemUuid] = {}  # by server
    for uuid, power in sorted(schedule.power.items()):
        task, bmc_state = schedule.tasks[uuid], schedule.bmcs.get(uuid)
        uuids[task.server] = uuid
        by_maintenance = {plan.maintenance: plan for plan in (*power.begun_plans, power)}
        for maintenance, plan in by_maintenance.items():
            record = snapshot.power_records.get(uuid, {}).get(plan.power_change.reason)
            if maintenance is not None:
                members.append(_build_wave_member(maintenance, plan, task, bmc_state, record, at, timeout))
            elif plan is power and _may_reset(task, plan, bmc_state, record, at):
                in_wave.add(uuid)  # a policy requires the reset, so no limit applies
    wave = choose_wave(members, at, timeout)
    return structs.replace(
        schedule,
        in_wave=frozenset(in_wave | {uuids[name] for name in wave.servers}),
        stopped_maintenances=wave.stopped,
    )


def _build_wave_member(
    maintenance: str,
    power: PowerPlan,
    task: BmcTask,
    bmc_state: BmcState | None,
    record: PowerRecord | None,
    at: datetime,
    timeout: timedelta,
) -> WaveMember:
    """Return the state of a server in a maintenance. ``record`` is the record of the reset that ``power`` requires."""
    reset_times = [
        other.since
        for other in task.power_records
        if other is not record and _may_still_be_down(other, bmc_state, at, timeout)
    ]
    if (
        record is not None
        and record.state.is_open
        and not _is_machine_back(power.run_at, bmc_state, record)
        # Without the planned boot, gitboot may never observe the fetch that proves that the machine is back.
        and (power.is_boot_planned or _may_still_be_down(record, bmc_state, at, timeout))
    ):
        reset_times.append(record.since)
    is_unknown = bmc_state is None or bmc_state.outcome is None or bmc_state.may_be_resetting
    is_down = (
        bmc_state is not None
        and (bmc_state.power == "Off" or bmc_state.in_post)
        and power.power_change.operation is not PowerOperation.ON
    )
    return WaveMember(
        name=task.server,
        maintenance=maintenance,
        group=power.group,
        limit=power.limit,
        ready=_may_reset(task, power, bmc_state, record, at),
        away_since=min(reset_times, default=None),
        down=is_unknown or is_down,
    )


def choose_drains(schedule: Schedule, plans: Plans, snapshot: LedgerSnapshot, at: datetime) -> frozenset[SystemUuid]:
    """Return the machines that gitboot drains next, so that at most `maxUnavailable` are out of service.

    A server is out of service from the start of its drain until its machine is back, and while its machine is off. Such
    a server counts even if its plan no longer contains the maintenance boot. Servers are chosen in the order of their
    names.
    """
    groups: defaultdict[tuple[str, str | None], list[SystemUuid]] = defaultdict(list)
    for uuid, power in schedule.power.items():
        if power.maintenance is not None and power.maintenance not in schedule.stopped_maintenances:
            groups[power.maintenance, power.group].append(uuid)
    if not groups or not schedule.may_set or schedule.failures >= schedule.max_failures:
        return frozenset()
    drained_machines = _find_drained_machines(schedule, plans, snapshot, at)
    chosen = set[SystemUuid]()
    for group, uuids in groups.items():
        drained = drained_machines[group]
        size = len({*uuids, *drained})
        busy = size - len(uuids)  # drained machines without a power plan
        ready = []
        for uuid in uuids:
            server, is_up = schedule.tasks[uuid].server, _is_up(schedule.bmcs.get(uuid))
            if uuid in drained or not is_up:
                busy += 1
            if not is_up or not _waits_for_drain(plans.servers.get(server)):
                continue
            if uuid in drained:  # this server already counts, so another drain does not put one more out of service
                chosen.add(uuid)
            else:
                ready.append((server, uuid))
        spare = max(_compute_limit(schedule.power[uuids[0]].limit, size) - busy, 0)
        chosen.update(uuid for _, uuid in sorted(ready)[:spare])
    return frozenset(chosen)


def _is_up(bmc_state: BmcState | None) -> bool:
    """Return whether the last BMC task succeeded and the machine was on and past POST."""
    return (
        bmc_state is not None
        and bmc_state.outcome in (TaskOutcome.UNCHANGED, TaskOutcome.APPLIED)
        and bmc_state.power == "On"
        and not bmc_state.in_post
    )


def _waits_for_drain(state: ServerState | None) -> bool:
    return state is not None and state.plan is not None and state.plan.cause is Cause.WAITING_FOR_DRAIN


def _find_drained_machines(
    schedule: Schedule, plans: Plans, snapshot: LedgerSnapshot, at: datetime
) -> defaultdict[tuple[str, str | None], set[SystemUuid]]:
    """Return the machines whose drain has begun and not ended, by maintenance and group."""
    drained: defaultdict[tuple[str, str | None], set[SystemUuid]] = defaultdict(set)
    for name in plans.drained:
        state = plans.servers[name]
        uuid = state.decision.uuid
        record = snapshot.stored_record(uuid)
        if record is None:
            continue
        power_records, bmc_state = snapshot.list_power_records(uuid), schedule.bmcs.get(uuid)
        for maintenance in state.decision.maintenances:
            if _is_drained(maintenance, record, power_records, bmc_state, at):
                drained[maintenance.name, find_limit_group(maintenance, state.details)].add(uuid)
    return drained


def _is_drained(
    maintenance: MaintenanceDecision,
    record: Record,
    power_records: Iterable[PowerRecord],
    bmc_state: BmcState | None,
    at: datetime,
) -> bool:
    """Return whether the drain of a server has begun and has not ended yet.

    A drain ends when its window ends, or when the machine is back after a reset for this maintenance. A drain for an
    earlier run of the maintenance counts too, because gitboot does not put servers back into service.
    """
    clearance = record.clearances.get(maintenance.name)
    if clearance is None or clearance.drain is None:
        return False
    end = clearance.until or maintenance.end
    if end is not None and end <= at:
        return False
    drained_at, run = clearance.drained_at, record.runs.get(maintenance.name)
    if drained_at is None:
        return True
    run_at = run.at if run is not None else None
    return not any(
        reset.state is PowerRecordState.BACK or _is_machine_back(run_at, bmc_state, reset)
        for reset in power_records
        if is_run_record(reset, maintenance) and reset.since >= drained_at
    )


def _may_reset(
    task: BmcTask, power: PowerPlan, bmc_state: BmcState | None, record: PowerRecord | None, at: datetime
) -> bool:
    """Return whether the result of the last BMC task allows gitboot to reset a machine.

    The override must be confirmed, and the power state must be as expected. If the last task was allowed to reset the
    machine but did not, gitboot first reads the BMC again.
    """
    if (
        bmc_state is None
        or not power.is_due
        or bmc_state.outcome not in (TaskOutcome.UNCHANGED, TaskOutcome.APPLIED)
        or bmc_state.may_be_resetting
    ):
        return False
    if record is not None and record.state is not PowerRecordState.REFUSED:
        return False
    if (bmc_state.was_not_reset and at < bmc_state.due) or bmc_state.in_post:
        return False
    if bmc_state.power != ("Off" if power.power_change.operation is PowerOperation.ON else "On"):
        return False
    reason = power.power_change.override_reason
    return reason is None or any(
        override.reason == reason and override.state is OverrideState.CONFIRMED for override in task.records
    )


def _may_still_be_down(record: PowerRecord, bmc_state: BmcState | None, at: datetime, timeout: timedelta) -> bool:
    """Return whether a machine may still be down because of a power change whose boot is no longer planned.

    For example, the power change may belong to an earlier maintenance run.

    If the BMC does not report the boot progress, gitboot cannot detect that the machine is back, and only waits for
    ``timeout``.
    """
    return record.state.is_open and (
        bmc_state is None or bmc_state.outcome is None or bmc_state.shows_progress or at - record.since < timeout
    )


def _is_machine_back(run_at: datetime | None, bmc_state: BmcState | None, record: PowerRecord) -> bool:
    """Return whether a fetch proves that a machine is back. ``run_at`` is when the maintenance run's boot was fetched.

    This check is only needed if the BMC does not report the boot progress.
    """
    return (
        bmc_state is not None
        and bmc_state.outcome is not None
        and not bmc_state.shows_progress
        and record.state is not PowerRecordState.RECORDED
        and run_at is not None
        and run_at >= record.since
    )


class WaveMember(Struct, frozen=True, kw_only=True):
    """A server in a maintenance that changes the power of its servers."""

    name: str
    maintenance: str
    # The server's site or label value; None: the limit applies to all servers, or the server lacks the label.
    group: str | None
    limit: str  # how many servers of the group may be down: a number or a percentage
    ready: bool  # whether gitboot could reset the server now
    away_since: datetime | None = None  # since when gitboot waits for the machine; None: not reset, or back again
    down: bool = False  # whether the server is down, or may be down, for another reason


class PowerWave(Struct, frozen=True, kw_only=True):
    """The names of the servers that gitboot may reset now."""

    servers: frozenset[str] = frozenset()
    # Servers that did not come back, by maintenance.
    stopped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def choose_wave(members: Iterable[WaveMember], at: datetime, timeout: timedelta) -> PowerWave:
    """Choose the servers that gitboot may reset now: the first ready servers by name, up to the limit of each group.

    If a server does not come back within ``timeout`` after its reset, the whole maintenance stops until the server is
    back.
    """
    groups: defaultdict[tuple[str, str | None], list[WaveMember]] = defaultdict(list)
    stopped: defaultdict[str, list[str]] = defaultdict(list)
    for member in members:
        groups[member.maintenance, member.group].append(member)
        if member.away_since is not None and at - member.away_since >= timeout:
            stopped[member.maintenance].append(member.name)
    chosen: set[str] = set()
    for (maintenance, _), group in groups.items():
        if maintenance in stopped:
            continue
        busy = sum(member.down or member.away_since is not None for member in group)
        spare = max(_compute_limit(group[0].limit, len(group)) - busy, 0)
        chosen.update(sorted(member.name for member in group if member.ready)[:spare])
    return PowerWave(
        servers=frozenset(chosen), stopped={name: tuple(sorted(names)) for name, names in sorted(stopped.items())}
    )


def _compute_limit(limit: str, size: int) -> int:
    """Return how many servers of a group may be down. A percentage is rounded down, with a minimum of one server."""
    return max(int(limit[:-1]) * size // 100, 1) if limit.endswith("%") else int(limit)
