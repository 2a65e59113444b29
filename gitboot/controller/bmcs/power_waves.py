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
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import MaintenanceDecision
from gitboot.resolve.server_plan import Cause


def update_power_waves(schedule: Schedule, snapshot: LedgerSnapshot, at: datetime, timeout: timedelta) -> Schedule:
    """Return the schedule with an updated set of machines that gitboot may reset now.

    A maintenance stops if a machine does not come back within ``timeout`` after gitboot has reset it.
    """
    in_wave, members, uuids = set[SystemUuid](), list[WaveMember](), {}
    for uuid, power in sorted(schedule.power.items()):
        task, bmc = schedule.tasks[uuid], schedule.bmcs.get(uuid)
        power_records = snapshot.power_records.get(uuid, {})
        if power.maintenance is None and _may_reset(task, power, bmc, power_records.get(power.power_change.reason), at):
            in_wave.add(uuid)
        uuids[task.server] = uuid
        plans = {each.maintenance: each for each in (*power.begun_plans, power)}  # one for each maintenance
        members += [
            _build_wave_member(name, each, task, bmc, power_records.get(each.power_change.reason), at, timeout)
            for name, each in plans.items()
            if name is not None
        ]
    found = choose_wave(members, at, timeout)
    return structs.replace(
        schedule,
        in_wave=frozenset(in_wave | {uuids[name] for name in found.servers}),
        stopped_maintenances=found.stopped,
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
    since = [
        each.since
        for each in task.power_records
        if each is not record and _may_still_be_down(each, bmc_state, at, timeout)
    ]
    if (
        record is not None
        and record.state.is_open
        and not _is_machine_back(power.run_at, bmc_state, record)
        # Without the planned boot, gitboot may never observe the fetch that proves that the machine is back.
        and (power.is_boot_planned or _may_still_be_down(record, bmc_state, at, timeout))
    ):
        since.append(record.since)
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
        away_since=min(since, default=None),
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
    found = set[SystemUuid]()
    for group, uuids in groups.items():
        members, ready = {*uuids, *drained_machines[group]}, []
        busy = len(members) - len(uuids)
        for uuid in uuids:
            state, seen = plans.servers.get(schedule.tasks[uuid].server), schedule.bmcs.get(uuid)
            is_up = (
                seen is not None
                and seen.outcome in (TaskOutcome.UNCHANGED, TaskOutcome.APPLIED)
                and seen.power == "On"
                and not seen.in_post
            )
            is_waiting = state is not None and state.plan is not None and state.plan.cause is Cause.WAITING_FOR_DRAIN
            is_out = uuid in drained_machines[group]
            busy += is_out or not is_up
            if not is_waiting or not is_up:
                continue
            if is_out:  # this server already counts, so another drain does not put one more out of service
                found.add(uuid)
            else:
                ready.append((schedule.tasks[uuid].server, uuid))
        spare = max(_compute_limit(schedule.power[uuids[0]].limit, len(members)) - busy, 0)
        found.update(uuid for _, uuid in sorted(ready)[:spare])
    return frozenset(found)


def _find_drained_machines(
    schedule: Schedule, plans: Plans, snapshot: LedgerSnapshot, at: datetime
) -> Mapping[tuple[str, str | None], set[SystemUuid]]:
    found: defaultdict[tuple[str, str | None], set[SystemUuid]] = defaultdict(set)
    for name in plans.drained:
        state = plans.servers[name]
        uuid = state.decision.uuid
        record, records, seen = snapshot.stored_record(uuid), snapshot.list_power_records(uuid), schedule.bmcs.get(uuid)
        for each in state.decision.maintenances:
            if record is not None and _is_drained(each, record, records, seen, at):
                found[each.name, find_limit_group(each, state.details)].add(uuid)
    return found


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
        each.state is PowerRecordState.BACK or _is_machine_back(run_at, bmc_state, each)
        for each in power_records
        if is_run_record(each, maintenance) and each.since >= drained_at
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
    override = power.power_change.override_reason
    return override is None or any(
        each.reason == override and each.state is OverrideState.CONFIRMED for each in task.records
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
    for each in members:
        groups[each.maintenance, each.group].append(each)
        if each.away_since is not None and at - each.away_since >= timeout:
            stopped[each.maintenance].append(each.name)
    chosen: set[str] = set()
    for (maintenance, _), group in groups.items():
        if maintenance not in stopped:
            busy = sum(each.down or each.away_since is not None for each in group)
            spare = _compute_limit(group[0].limit, len(group)) - busy
            chosen.update(sorted(each.name for each in group if each.ready)[: max(spare, 0)])
    return PowerWave(
        servers=frozenset(chosen), stopped={name: tuple(sorted(names)) for name, names in sorted(stopped.items())}
    )


def _compute_limit(limit: str, size: int) -> int:
    """Return how many servers of a group may be down. A percentage is rounded down, with a minimum of one server."""
    return max(int(limit[:-1]) * size // 100, 1) if limit.endswith("%") else int(limit)
