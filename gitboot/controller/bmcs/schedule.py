"""BMC schedule: the tasks for all BMCs, with their due times and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final
from zlib import crc32

from msgspec import Struct, field, structs

from gitboot.bmc.credentials import get_credential_use
from gitboot.bmc.identity import SharedIdentityValues, UnprovenIdentity
from gitboot.bmc.override_session import BmcTask, TaskOutcome, TaskResult
from gitboot.bmc.override_state import OperatorCondition, Override, OverrideState, WantedOverride
from gitboot.bmc.override_steps import explain_dhcp_loader
from gitboot.bmc.power_steps import PowerRecordState
from gitboot.controller.bmcs.desired_state import PowerPlan, build_leftover_task, find_desired_state
from gitboot.controller.current_plans import DueQueue
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.server_decision import OverrideEnabled
from gitboot.status.conditions import Event

ONCE_READ_EVERY: Final = timedelta(seconds=30)  # interval for a BMC with a one-time override
READ_EVERY: Final = timedelta(minutes=5)  # interval for a BMC with a permanent override
FIRST_RETRY: Final = timedelta(seconds=5)
LONGEST_RETRY: Final = timedelta(minutes=10)
CLEAR_EVERY: Final = timedelta(seconds=10)  # interval while a BMC responds that it cannot clear the override now
OVERDUE: Final = timedelta(minutes=5)
_PAUSE: Final = timedelta(minutes=1)  # pause after too many consecutive failures

# OVERRIDE is the override with the reason for it.
_OVERRIDE_STATE_TEXTS: Final = {
    OverrideState.RECORDED: "OVERRIDE is about to be set, or was just set",
    OverrideState.CONFIRMED: "OVERRIDE is set",
    OverrideState.CLEARING: "OVERRIDE is about to be cleared, or was just cleared",
    OverrideState.INSERTED: "the medium for OVERRIDE is inserted",
    OverrideState.CLEARED: "OVERRIDE was cleared",
    OverrideState.CONSUMED: "the server used OVERRIDE",
    OverrideState.LOST: "OVERRIDE is gone, but gitboot has no evidence that the server used it",
    OverrideState.SET_BY_ANOTHER: "OVERRIDE was set by another instance, so this instance does not set it",
    OverrideState.OPENED: "OVERRIDE may replace the current override",
    OverrideState.UNSENT: "OVERRIDE was not set, because the state of the BMC changed after gitboot read it",
}
# RESET is the type of the reset with the reason for it.
_POWER_STATE_TEXTS: Final = {
    PowerRecordState.RECORDED: "RESET is about to be requested, or was just requested",
    PowerRecordState.REQUESTED: "RESET was requested",
    PowerRecordState.DONE: "RESET is done",
    PowerRecordState.BACK: "RESET is done, and the machine's operating system is running again",
    PowerRecordState.REFUSED: "RESET was not executed",
}


class BmcState(Struct, frozen=True, kw_only=True):
    """The next due time of a BMC, and the result of its last task."""

    name: str  # the name of its server
    due: datetime
    wanted: WantedOverride | None = None  # the override that the last task wanted
    bmc: BmcAccess | None = None  # the BMC that the last task contacted
    outcome: TaskOutcome | None = None
    message: str = ""
    operator_condition: OperatorCondition | None = None  # the decision that an operator has to make
    answered: bool = True
    credentials: str | None = None  # fingerprint of the credentials that the last task used
    failures: int = 0
    late_since: datetime | None = None  # since when gitboot has failed to reach the desired state
    power: str | None = None  # the power state that the BMC last reported
    in_post: bool = False
    shows_progress: bool = False  # whether the BMC reports the boot progress
    dhcp_reason: str | None = None  # why DHCP must name the boot loader although the plan has a URI: see `left_to_dhcp`
    may_be_resetting: bool = False  # whether a task that may reset the machine is running
    was_not_reset: bool = False  # whether the last task that was allowed to reset the machine did not do so
    pending_ids: frozenset[int] = frozenset()  # ids of the fetches that were pending when the last task began
    open_intents: frozenset[str] = frozenset()  # intents that had no outcome when the last task began

    @property
    def is_fine(self) -> bool:
        """Whether the BMC has the desired state, or no task has ended yet."""
        return self.outcome in (None, TaskOutcome.UNCHANGED, TaskOutcome.APPLIED)

    def reason(self, at: datetime) -> str:
        """Return the reason of the condition about this BMC."""
        is_late = self.late_since is not None and at - self.late_since >= OVERDUE
        if is_late and self.outcome is TaskOutcome.WAITING:
            return "Overdue"
        return str(self.operator_condition or self.outcome)


class Schedule(Struct, frozen=True, kw_only=True):
    """The tasks for all BMCs, with their due times and the results of the last tasks."""

    max_failures: int = 20  # consecutive failures after which gitboot limits tasks for a while
    jitter: float = 0.2  # fraction by which the wait before a retry may be shortened, to spread out retries
    may_set: bool | None = None  # whether tasks could set overrides when they were planned; None: no tasks yet
    is_ledger_named: bool | None = None  # whether the Fleet named a ledger when the tasks were planned
    # Machines that gitboot does not set because the Fleet names no ledger.
    without_named_ledger: frozenset[SystemUuid] = frozenset()
    # The tasks by machine, including tasks that are not due.
    tasks: Mapping[SystemUuid, BmcTask] = field(default_factory=dict)
    leftovers: frozenset[SystemUuid] = frozenset()  # machines with a task at a BMC that no document names any more
    power: Mapping[SystemUuid, PowerPlan] = field(default_factory=dict)  # power plans by machine
    in_wave: frozenset[SystemUuid] = frozenset()  # machines that gitboot may reset now
    # Servers that did not come back, by maintenance.
    stopped_maintenances: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: frozenset[SystemUuid] = frozenset()  # machines at whose BMC another override must be cleared first
    bmcs: Mapping[SystemUuid, BmcState] = field(default_factory=dict)
    agenda: DueQueue[SystemUuid] = field(default_factory=DueQueue)  # when tasks are due, unless an event comes earlier
    still_running: frozenset[SystemUuid] = frozenset()  # machines whose next task waits until the last task ends
    failing: frozenset[SystemUuid] = frozenset()
    uri_rejected: frozenset[SystemUuid] = frozenset()  # machines whose BMC rejected the URI in the plan
    outcomes: Mapping[str, int] = field(default_factory=dict)  # outcome of the last task -> number of BMCs
    failures: int = 0  # consecutive failures over all BMCs
    last_failure: str = ""
    paused_until: datetime | None = None
    has_results: bool = False  # whether any task has ended
    # Values of identities that several BMCs share.
    shared_identities: SharedIdentityValues = field(default_factory=SharedIdentityValues)

    def with_bmc_states(self, changed: Mapping[SystemUuid, BmcState | None]) -> Schedule:
        """Return the schedule with the states of these BMCs replaced. A state of None removes the BMC."""
        if not changed:
            return self
        bmcs, outcomes = dict(self.bmcs), Counter(self.outcomes)
        failing, uri_rejected = set(self.failing), set(self.uri_rejected)
        for uuid, state in changed.items():
            failing.discard(uuid)
            uri_rejected.discard(uuid)
            if (before := bmcs.pop(uuid, None)) is not None:
                outcomes[str(before.outcome or "Pending")] -= 1
            if state is None:
                continue
            bmcs[uuid] = state
            outcomes[str(state.outcome or "Pending")] += 1
            if not state.is_fine:
                failing.add(uuid)
            if state.dhcp_reason is not None:
                uri_rejected.add(uuid)
        due_times = {uuid: state.due if state is not None else None for uuid, state in changed.items()}
        return structs.replace(
            self,
            bmcs=bmcs,
            agenda=self.agenda.reschedule(due_times),
            failing=frozenset(failing),
            uri_rejected=frozenset(uri_rejected),
            outcomes={outcome: count for outcome, count in outcomes.items() if count},
        )


# Planning


def plan_tasks(
    schedule: Schedule,
    commit: Commit,
    servers: Mapping[str, ServerState],
    snapshot: LedgerSnapshot,
    changed: Collection[SystemUuid],
    *,
    may_set: bool,
    keys: TokenKeys,
    outdated_base_urls: Collection[str | None] = frozenset(),
) -> tuple[Schedule, frozenset[SystemUuid]]:
    """Return the schedule with the tasks that the plans require. Also return the machines whose task may have changed.

    ``changed`` are the machines that changed in any way. ``outdated_base_urls`` are base URLs whose files are not up to
    date yet.

    A task does not set an override or reset the machine if the machine boots from one of these base URLs, if
    ``may_set`` is false, or if the Fleet names no ledger. If no ledger is named, another instance may set overrides at
    the same BMCs. Any task may clear an override. If a machine's document now names another BMC, gitboot clears the
    override at the old BMC before it sets a new one.
    """
    uuids = {*changed, *schedule.blocked}
    is_named = commit.ledger is not None
    if (may_set, is_named) != (schedule.may_set, schedule.is_ledger_named):
        uuids = {*schedule.tasks, *commit.machines, *snapshot.overrides}
    if not uuids:
        return schedule, frozenset()
    tasks = dict(schedule.tasks)
    leftover_tasks = {}
    for uuid in uuids:
        tasks.pop(uuid, None)
        if (leftover_task := build_leftover_task(uuid, commit, snapshot)) is not None:
            leftover_tasks[uuid] = leftover_task
    tasks |= leftover_tasks
    leftovers = (schedule.leftovers - uuids) | leftover_tasks.keys()
    old_addresses = {tasks[uuid].bmc.normalized_address for uuid in leftovers}
    if leftover_tasks:  # machines whose old BMC must be cleared first
        uuids |= {
            uuid
            for uuid, task in tasks.items()
            if uuid not in leftovers and task.bmc.normalized_address in old_addresses
        }
    blocked, without_ledger = set(), set()
    power = {uuid: plan for uuid, plan in schedule.power.items() if uuid not in uuids}
    for uuid in uuids - leftovers:
        tasks.pop(uuid, None)
        machine = commit.machines.get(uuid)
        state = servers.get(machine.name) if machine is not None else None
        waits = (state.decision.base_url if state is not None else None) in outdated_base_urls
        desired = find_desired_state(uuid, commit, servers, snapshot, keys, may_set=may_set and not waits and is_named)
        if desired.is_new and not is_named:
            without_ledger.add(uuid)
        if waits or (desired.task is not None and desired.task.bmc.normalized_address in old_addresses):
            blocked.add(uuid)
        if desired.task is not None and desired.task.bmc.normalized_address not in old_addresses:
            tasks[uuid] = desired.task
            if desired.power is not None:
                power[uuid] = desired.power
    schedule = structs.replace(
        schedule,
        may_set=may_set,
        is_ledger_named=is_named,
        without_named_ledger=(schedule.without_named_ledger - uuids) | without_ledger,
        tasks=tasks,
        leftovers=frozenset(leftovers),
        blocked=frozenset(blocked),
        power=power,
    )
    return schedule.with_bmc_states({uuid: None for uuid in uuids if uuid not in tasks}), frozenset(uuids)


# Due tasks


def select_due_tasks(
    schedule: Schedule, snapshot: LedgerSnapshot, changed: Collection[SystemUuid], at: datetime
) -> tuple[tuple[BmcTask, ...], Schedule]:
    """Return the due tasks and the updated schedule. An event or a changed plan can make a task due early.

    ``changed`` are the machines whose task may have changed.
    """
    shared_identities = schedule.shared_identities.update(snapshot.pins, snapshot.machines)
    if shared_identities is not schedule.shared_identities:
        if shared_identities.values != schedule.shared_identities.values:
            schedule = reschedule_now(schedule, schedule.failing, at)  # some may wait because of a shared identity
        schedule = structs.replace(schedule, shared_identities=shared_identities)
    candidates = {*changed, *schedule.still_running, *schedule.in_wave, *schedule.agenda.find_due_keys(at)}
    due = []
    for uuid in candidates & schedule.tasks.keys():
        task, before = schedule.tasks[uuid], schedule.bmcs.get(uuid)
        if (
            before is None
            or at >= before.due
            or (before.wanted, before.bmc) != (task.wanted, task.bmc)
            or _is_task_due_now(uuid, schedule, snapshot, before)
        ):
            due.append(task)
    due.sort(key=lambda task: (task.uuid not in schedule.leftovers, task.server, task.uuid))
    schedule = schedule.with_bmc_states(
        {task.uuid: BmcState(name=task.server, due=at) for task in due if task.uuid not in schedule.bmcs}
    )
    tasks = []
    for task in due:
        uuid, before, power = task.uuid, schedule.bmcs[task.uuid], schedule.power.get(task.uuid)
        has_new_intent = not _find_open_intents(uuid, snapshot) <= before.open_intents
        # Whether there are fetches that this task will confirm or rule out.
        has_pending = any(fetch.marks is None for fetch in snapshot.pending.get(uuid, ()))
        wanted_power = None
        if power is not None:
            wanted_power = power.find_power_change(task.power_records, now=uuid in schedule.in_wave)
        due_task = structs.replace(
            task,
            read_only=has_pending or has_new_intent,
            pinned=snapshot.pins.get(uuid),
            bmc_is_in_ledger=get_credential_use(task.bmc) in snapshot.known_pairs,
            shared_values=schedule.shared_identities.values,
            wanted_power=wanted_power,
        )
        tasks.append(due_task)
    return _limit_tasks(structs.replace(schedule, still_running=frozenset()), tasks, at)


def _is_task_due_now(uuid: SystemUuid, schedule: Schedule, snapshot: LedgerSnapshot, before: BmcState) -> bool:
    """Return whether a new fetch, a new intent or the power wave makes a BMC task due."""
    is_fetched = any(fetch.id not in before.pending_ids for fetch in snapshot.pending.get(uuid, ()))
    is_in_wave = uuid in schedule.in_wave and not before.may_be_resetting
    return is_fetched or is_in_wave or not _find_open_intents(uuid, snapshot) <= before.open_intents


def _limit_tasks(schedule: Schedule, tasks: list[BmcTask], at: datetime) -> tuple[tuple[BmcTask, ...], Schedule]:
    """Limit the tasks after many consecutive failures.

    After only a few failures, return all tasks. Otherwise, return the tasks that only read, the tasks for BMCs that may
    still have an override that gitboot set, and at most one other task as a probe. The returned tasks then must not
    reset machines.
    """
    if schedule.failures < schedule.max_failures:
        return tuple(tasks), schedule
    until = schedule.paused_until
    may_probe = until is None or at >= until
    admitted = list[BmcTask]()
    postponed = {}
    for task in tasks:
        if task.wanted_power is not None:
            task = structs.replace(task, wanted_power=structs.replace(task.wanted_power, may_start_now=False))
        if task.read_only or any(record.may_be_left_on_bmc for record in task.records):
            admitted.append(task)
        elif may_probe:
            may_probe, until = False, at + _PAUSE
            admitted.append(task)
        else:
            before = schedule.bmcs[task.uuid]
            postponed[task.uuid] = structs.replace(before, due=max(before.due, until or at))
    return tuple(admitted), structs.replace(schedule.with_bmc_states(postponed), paused_until=until)


def record_submission(
    schedule: Schedule, tasks: Iterable[BmcTask], queued: Collection[SystemUuid], snapshot: LedgerSnapshot, at: datetime
) -> Schedule:
    """Return the schedule after tasks were submitted. ``queued`` are the machines whose tasks the pool accepted."""
    changed, refused = {}, set()
    for task in tasks:
        uuid = task.uuid
        before = schedule.bmcs[uuid]
        if uuid not in queued:
            refused.add(uuid)
            # When the running task ends, it wakes the loop before this time.
            changed[uuid] = structs.replace(before, due=at + FIRST_RETRY)
            continue
        interval = ONCE_READ_EVERY if _is_urgent(task, schedule.power.get(uuid)) else READ_EVERY
        changed[uuid] = structs.replace(
            before,
            name=task.server,
            late_since=before.late_since if before.wanted == task.wanted else None,
            wanted=task.wanted,
            bmc=task.bmc,
            due=at + interval,
            may_be_resetting=task.wanted_power is not None and task.wanted_power.may_start_now,
            pending_ids=frozenset(fetch.id for fetch in snapshot.pending.get(uuid, ())),
            open_intents=_find_open_intents(uuid, snapshot),
        )
    return structs.replace(schedule.with_bmc_states(changed), still_running=schedule.still_running | refused)


def _is_urgent(task: BmcTask, power: PowerPlan | None) -> bool:
    """Return whether the BMC's state may change soon: a one-time override is set, or the machine is not back yet."""
    wanted = task.wanted
    if power is not None:
        if power.is_new(task.power_records):
            return True  # a machine that is down delays the other machines
        if any(reset.reason == power.power_change.reason and reset.state.is_open for reset in task.power_records):
            return True  # gitboot waits until the machine is back
        if wanted is None and not any(record.may_be_left_on_bmc for record in task.records):
            return False
    return (
        wanted is None
        or wanted.override.enabled is OverrideEnabled.ONCE
        or not all(record.state is OverrideState.CONFIRMED for record in task.records if record.state.is_open)
    )


def _find_open_intents(uuid: SystemUuid, snapshot: LedgerSnapshot) -> frozenset[str]:
    """Return a machine's intents without an outcome. A new intent causes a BMC task."""
    record = snapshot.stored_record(uuid)
    serves = record.unknown_serves if record is not None else ()
    return frozenset(each.intent for each in serves if not each.is_withheld)


def find_machines_without_task(schedule: Schedule, snapshot: LedgerSnapshot) -> frozenset[SystemUuid]:
    """Return the machines that have a pending fetch but no BMC task.

    The result is empty before the first `plan_tasks`.
    """
    if schedule.may_set is None:
        return frozenset()
    # A set difference would iterate over all tasks.
    return frozenset(uuid for uuid in snapshot.pending if uuid not in schedule.tasks)


def reschedule_now(schedule: Schedule, uuids: Collection[SystemUuid], at: datetime) -> Schedule:
    """Return the schedule with the tasks of these machines due now and their failure counts cleared."""
    if not uuids:
        return schedule
    due_now = {
        uuid: structs.replace(schedule.bmcs[uuid], due=at, failures=0) for uuid in uuids if uuid in schedule.bmcs
    }
    return structs.replace(schedule.with_bmc_states(due_now), paused_until=None)


# Results


def record_results(
    schedule: Schedule,
    results: Iterable[TaskResult],
    judged_uuids: Collection[SystemUuid],
    snapshot: LedgerSnapshot,
    at: datetime,
) -> Schedule:
    """Return the schedule with the results of finished tasks.

    ``judged_uuids`` are the machines whose task confirmed or ruled out a fetch.
    """
    changed: dict[SystemUuid, BmcState | None] = {}
    for result in results:
        schedule = _count_failures(schedule, result, at)
        if (before := schedule.bmcs.get(result.uuid)) is None:
            continue
        new_state = _add_result(before, result, snapshot, at, schedule.jitter)
        changed[result.uuid] = structs.replace(new_state, due=at) if result.uuid in judged_uuids else new_state
    if schedule.failures < schedule.max_failures and schedule.paused_until is not None:
        # A BMC responded, so the tasks that were postponed are due now.
        resumed = {
            uuid: structs.replace(state, due=at)
            for uuid, state in schedule.bmcs.items()
            if state.due == schedule.paused_until
        }
        changed = {**resumed, **changed}
        schedule = structs.replace(schedule, paused_until=None)
    return schedule.with_bmc_states(changed)


def _count_failures(schedule: Schedule, result: TaskResult, at: datetime) -> Schedule:
    """Count consecutive failures over all BMCs.

    Many failures in a row indicate a problem with the network or a password.
    """
    if not result.was_attempted:
        return schedule
    if result.is_reachable:
        return structs.replace(schedule, failures=0, has_results=True)
    failures = schedule.failures + 1
    return structs.replace(
        schedule,
        failures=failures,
        last_failure=f"{result.server}: {result.message}",
        paused_until=schedule.paused_until or (at + _PAUSE if failures >= schedule.max_failures else None),
        has_results=True,
    )


def _add_result(state: BmcState, result: TaskResult, snapshot: LedgerSnapshot, at: datetime, jitter: float) -> BmcState:
    """Return the state of a BMC after a task. After a failure, the next task is due earlier."""
    new_state = structs.replace(
        state,
        outcome=result.outcome,
        message=result.message,
        operator_condition=result.condition,
        answered=result.is_reachable,
        credentials=result.credentials_fingerprint,
        may_be_resetting=state.may_be_resetting and not result.was_power_allowed,
        was_not_reset=result.was_power_allowed and not result.power_records,
    )
    wanted, seen = state.wanted, result.observed
    if seen is not None:
        new_state = structs.replace(
            new_state,
            power=seen.power,
            in_post=seen.in_post,
            shows_progress=seen.marks.boot_progress is not None,
            dhcp_reason=explain_dhcp_loader(wanted.override, seen) if wanted is not None else None,
        )
    if new_state.is_fine:
        return structs.replace(new_state, failures=0, late_since=None)
    new_state = structs.replace(new_state, late_since=state.late_since or at)
    if result.outcome is TaskOutcome.STALLED:  # retry late: after many rejected logins, a BMC locks the account
        new_state = structs.replace(new_state, due=at + LONGEST_RETRY)
    elif result.is_reachable and any(
        override.state.is_open and (wanted is None or override.reason != wanted.reason)
        for override in snapshot.list_overrides(result.uuid)
    ):
        new_state = structs.replace(new_state, due=at + CLEAR_EVERY)
    else:
        spread = crc32(f"{result.uuid} {at}".encode()) / 2**32
        wait = min(FIRST_RETRY * 2**state.failures, LONGEST_RETRY) * (1 - jitter * spread)
        new_state = structs.replace(new_state, due=at + wait, failures=min(state.failures + 1, 10))
    if result.retry_after_s is not None:
        new_state = structs.replace(
            new_state, due=max(new_state.due, at + min(timedelta(seconds=result.retry_after_s), LONGEST_RETRY))
        )
    return new_state


# Events


def build_override_events(result: TaskResult, commit: str, at: datetime, *, is_first: bool) -> Iterator[Event]:
    """Yield an event about the last state of each override record of a BMC task.

    With ``is_first``, also yield an event if the BMC did not prove its identity.
    """
    if is_first and isinstance(result.identity_result, UnprovenIdentity):
        yield Event(
            at=at,
            type="MachineUnverified",
            message=f"{result.server}: {result.identity_result.message}",
            facts={"server": result.server},
            warning=True,
        )
    for record in {record.reason: record for record in result.written_records}.values():
        facts = {
            "server": result.server,
            "reason": record.reason,
            "plan": record.plan_digest,
            "before": _format_override(result.first_override),
            "after": _format_override(result.observed.override if result.observed else None),
            "commit": commit,
        }
        is_ejected = bool(record.media) and not record.has_media and not record.state.is_open
        override = f"{_format_override(record.override)} for {record.reason}"
        if is_ejected:
            message = f"{result.server}: the medium for {override} is ejected"
            yield Event(at=at, type="MediumEjected", message=message, facts=facts)
        elif record.state is OverrideState.INSERTED:
            message = f"{result.server}: the medium for {override} is inserted"
            yield Event(at=at, type="MediumInserted", message=message, facts=facts)
        else:
            message = f"{result.server}: {_OVERRIDE_STATE_TEXTS[record.state].replace('OVERRIDE', override)}"
            yield Event(at=at, type=f"Override{record.state}", message=message, facts=facts)


def build_power_events(result: TaskResult, commit: str, at: datetime) -> Iterator[Event]:
    """Yield an event about the last state of each power record of a BMC task."""
    for record in {record.reason: record for record in result.power_records}.values():
        reset = f"{record.type} for {record.reason}"
        yield Event(
            at=at,
            type=f"Power{record.state}",
            message=f"{result.server}: {_POWER_STATE_TEXTS[record.state].replace('RESET', reset)}",
            facts={
                "server": result.server,
                "reason": record.reason,
                "resetType": record.type,
                "commit": commit,
            },
        )
    if result.firmware_uri is not None:
        yield Event(
            at=at,
            type="FirmwareUriKept",
            message=f"{result.server}: set the firmware's HTTP boot URI to {result.firmware_uri}, effective from this "
            "reset",
            facts={"server": result.server, "uri": result.firmware_uri, "commit": commit},
        )


def _format_override(override: Override | None) -> str | None:
    """Format an override with its URLs, or return None."""
    if override is None:
        return None
    urls = (override.http_boot_uri, override.medium, override.data_medium)
    return " ".join((str(override), *(url for url in urls if url)))
