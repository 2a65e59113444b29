"""Power waves: which machines of a maintenance gitboot may reset now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field, structs

from gitboot.bmc.override_session import BmcTask, Outcome
from gitboot.bmc.override_state import OverrideState
from gitboot.bmc.power_steps import PowerOperation, PowerRecord, PowerRecordState
from gitboot.controller.bmcs.desired_state import PowerPlan
from gitboot.controller.bmcs.schedule import BmcState, Schedule
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision
from gitboot.resolve.server_plan import Cause


def update_power_waves(schedule: Schedule, knowledge: Knowledge, at: datetime, patience: timedelta) -> Schedule:
    """Return the schedule with an updated set of machines that gitboot may reset now.

    A maintenance stops if a machine that gitboot reset does not come back within ``patience``.
    """
    if not schedule.power:
        return (
            structs.replace(schedule, in_wave=frozenset(), stopped_maintenances={})
            if schedule.in_wave or schedule.stopped_maintenances
            else schedule
        )
    going, members, uuids = set(), [], {}
    for uuid, power in sorted(schedule.power.items()):
        task, seen = schedule.tasks[uuid], schedule.bmcs.get(uuid)
        record = knowledge.switches.get(uuid, {}).get(power.switching.reason)
        is_ready = _is_ready(task, power, seen, record, at)
        if power.maintenance is None:
            going |= {uuid} if is_ready else set()
            continue
        since = [
            each.since
            for each in task.power_records
            if each is not record and _may_still_be_down(each, seen, at, patience)
        ]
        if record is not None and record.state.is_open and not _is_back(power, seen, record):
            since.append(record.since)
        is_unread = seen is None or seen.outcome is None or seen.may_be_switching
        is_down = (
            seen is not None
            and (seen.power == "Off" or seen.in_post)
            and power.switching.operation is not PowerOperation.ON
        )
        uuids[task.server] = uuid
        members.append(
            Member(
                name=task.server,
                maintenance=power.maintenance,
                group=power.group,
                limit=power.limit,
                ready=is_ready,
                away_since=min(since, default=None),
                down=is_unread or is_down,
            )
        )
    found = choose_wave(members, at, patience)
    return structs.replace(
        schedule, in_wave=frozenset(going | {uuids[name] for name in found.servers}), stopped_maintenances=found.stopped
    )


def choose_drains(
    schedule: Schedule, servers: Mapping[str, ServerState], knowledge: Knowledge
) -> frozenset[SystemUuid]:
    """Return the machines that gitboot drains next, so that at most `maxUnavailable` are out of service.

    A server is out of service from the start of its drain until its machine is back, and while its machine is off. The
    first servers by name come first.
    """
    groups: defaultdict[tuple[str, str | None], list[SystemUuid]] = defaultdict(list)
    for uuid, power in schedule.power.items():
        if power.maintenance is not None and power.maintenance not in schedule.stopped_maintenances:
            groups[power.maintenance, power.group].append(uuid)
    if not schedule.may_set or schedule.failures >= schedule.most_failures:
        return frozenset()
    found = set[SystemUuid]()
    for uuids in groups.values():
        ready, busy = [], 0
        for uuid in uuids:
            state, seen = servers.get(schedule.tasks[uuid].server), schedule.bmcs.get(uuid)
            is_seen = seen is not None and seen.outcome in (Outcome.UNCHANGED, Outcome.APPLIED)
            is_up = is_seen and seen is not None and seen.power == "On" and not seen.in_post
            is_waiting = state is not None and state.plan is not None and state.plan.cause is Cause.WAITING_FOR_DRAIN
            record = knowledge.stored_record(uuid)
            is_out = state is not None and _is_drained_and_not_back(schedule, uuid, state.decision, record)
            busy += is_out or not is_up
            if is_waiting and is_up and not is_out:
                ready.append((schedule.tasks[uuid].server, uuid))
        spare = max(_compute_limit(schedule.power[uuids[0]].limit, len(uuids)) - busy, 0)
        found.update(uuid for _, uuid in sorted(ready)[:spare])
    return frozenset(found)


def _is_drained_and_not_back(schedule: Schedule, uuid: SystemUuid, decision: Decision, record: Record | None) -> bool:
    """Return whether the drain of this run has begun, and gitboot has not seen the machine back after its reset."""
    power, task, seen = schedule.power[uuid], schedule.tasks[uuid], schedule.bmcs.get(uuid)
    if record is None or power.maintenance is None:
        return False
    maintenance = next((each for each in decision.maintenances if each.name == power.maintenance), None)
    clearance = record.clearances.get(power.maintenance)
    if maintenance is None or clearance is None or clearance.drain != maintenance.drain_key:
        return False
    own = next((each for each in task.power_records if each.reason == power.switching.reason), None)
    return own is None or not (own.state is PowerRecordState.BACK or _is_back(power, seen, own))


def _is_ready(
    task: BmcTask, power: PowerPlan, bmc_state: BmcState | None, record: PowerRecord | None, at: datetime
) -> bool:
    """Return whether the result of the last BMC task allows gitboot to reset a machine.

    The override must be confirmed and the power state must be the expected one. If the last task was allowed to reset
    the machine but did not, gitboot first reads the BMC again.
    """
    if (
        bmc_state is None
        or not power.is_due
        or bmc_state.outcome not in (Outcome.UNCHANGED, Outcome.APPLIED)
        or bmc_state.may_be_switching
    ):
        return False
    if record is not None and record.state is not PowerRecordState.REFUSED:
        return False
    if (bmc_state.was_not_switched and at < bmc_state.due) or bmc_state.in_post:
        return False
    if bmc_state.power != ("Off" if power.switching.operation is PowerOperation.ON else "On"):
        return False
    override = power.switching.override_reason
    return override is None or any(
        each.reason == override and each.state is OverrideState.CONFIRMED for each in task.records
    )


def _may_still_be_down(record: PowerRecord, bmc_state: BmcState | None, at: datetime, patience: timedelta) -> bool:
    """Return whether an earlier power change, such as that of an earlier run, may still keep a machine down.

    If the BMC does not report the boot progress, gitboot cannot detect that the machine is back, and only waits for
    ``patience``.
    """
    shows = bmc_state is None or bmc_state.outcome is None or bmc_state.shows_progress
    return record.state.is_open and (shows or at - record.since < patience)


def _is_back(power: PowerPlan, bmc_state: BmcState | None, record: PowerRecord) -> bool:
    """Return whether a fetch proves that a machine is back.

    This check is only needed if the BMC does not report the boot progress.
    """
    if (
        bmc_state is None
        or bmc_state.outcome is None
        or bmc_state.shows_progress
        or record.state is PowerRecordState.RECORDED
    ):
        return False
    return power.run_at is not None and power.run_at >= record.since


class Member(Struct, frozen=True, kw_only=True):
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
    stopped: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # servers that did not come back, by maintenance


def choose_wave(members: Iterable[Member], at: datetime, patience: timedelta) -> PowerWave:
    """Choose the servers that gitboot may reset now: the first ready servers of each group by name, up to the limit of
    the group.

    If a server does not come back within ``patience`` after its reset, the whole maintenance stops until it is back.
    """
    groups: defaultdict[tuple[str, str | None], list[Member]] = defaultdict(list)
    stopped: defaultdict[str, list[str]] = defaultdict(list)
    for each in members:
        groups[each.maintenance, each.group].append(each)
        if each.away_since is not None and at - each.away_since >= patience:
            stopped[each.maintenance].append(each.name)
    go: set[str] = set()
    for (maintenance, _), group in groups.items():
        if maintenance not in stopped:
            limit = group[0].limit
            most = _compute_limit(limit, len(group))
            spare = most - sum(each.down or each.away_since is not None for each in group)
            go.update(sorted(each.name for each in group if each.ready)[: max(spare, 0)])
    return PowerWave(servers=frozenset(go), stopped={name: tuple(sorted(who)) for name, who in sorted(stopped.items())})


def _compute_limit(limit: str, size: int) -> int:
    """Return how many servers of a group may be down. A percentage is rounded down, but to no less than one server."""
    return max(int(limit[:-1]) * size // 100, 1) if limit.endswith("%") else int(limit)
