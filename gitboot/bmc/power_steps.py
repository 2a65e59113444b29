"""Power steps: pure functions that derive the next reset from the wanted, observed and recorded power state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, IdentityResult
from gitboot.bmc.override_state import (
    AskOperator,
    BmcObservation,
    NoChange,
    OperatorCondition,
    OverrideRecord,
    OverrideState,
    ResetConclusion,
    ResetMarks,
    Wait,
)
from gitboot.bmc.override_steps import add_known_clock, is_override_shown, request_operator
from gitboot.resolve.server_decision import OverrideEnabled

# How long an operating system may take to shut down. This is Ironic's default ([conductor]soft_power_off_timeout).
SHUTDOWN_TIMEOUT: Final = timedelta(minutes=10)
_SHOW_DELAY: Final = timedelta(minutes=1)  # how long a BMC may take to show a reset
# If a BMC reports the time of its boot progress, each boot changes that time. Some BMCs do not update LastResetTime.
_RELIABLE_MARKS: Final = frozenset({"boot_progress_time"})


class PowerOperation(StrEnum):
    """A power state change that a plan can require."""

    ON = "On"  # turn the machine on if it is off
    RESTART = "Restart"  # restart the machine if it is on, without a shutdown
    GRACEFUL_RESTART = "GracefulRestart"  # restart the machine if it is on, if possible after a shutdown


class ResetType(StrEnum):
    """The Redfish ResetType values that gitboot uses."""

    ON = "On"
    FORCE_ON = "ForceOn"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_OFF = "ForceOff"
    GRACEFUL_RESTART = "GracefulRestart"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"


_POWER_ON_TYPES: Final = (ResetType.ON, ResetType.FORCE_ON)
# gitboot uses the first type that the BMC allows. If a graceful restart has no effect, a forced restart follows.
_RESET_TYPES: Final = {
    PowerOperation.ON: _POWER_ON_TYPES,
    PowerOperation.RESTART: (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
    PowerOperation.GRACEFUL_RESTART: (ResetType.GRACEFUL_RESTART, ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}


class PowerRecordState(StrEnum):
    """The state of a recorded power operation. The values are stored in ledgers."""

    RECORDED = "Recorded"  # gitboot is about to request the operation, or crashed before the request
    REQUESTED = "Asked"  # the BMC accepted the request
    DONE = "Done"  # the machine has reset since the request, or is on
    BACK = "Back"  # the operating system runs again
    REFUSED = "Refused"  # the operation provably did not happen, so gitboot may request it again

    @property
    def is_open(self) -> bool:
        """Return whether the machine may be down because of this operation."""
        return self in (PowerRecordState.RECORDED, PowerRecordState.REQUESTED, PowerRecordState.DONE)


class WantedPowerChange(Struct, frozen=True, kw_only=True):
    """The power operation that a plan requires."""

    reason: str  # A provision key, or a run of a maintenance. gitboot requests an operation only once for each reason.
    operation: PowerOperation
    override_reason: str | None = None  # the reason of the override that must be set first; None: no override is needed
    valid_until: datetime | None = None  # the time at which the plan may change
    window_end: datetime | None = None  # the end of the maintenance window
    may_start_now: bool = False  # whether the power wave allows the operation
    may_reset: bool = True  # False: gitboot only checks the results of earlier requests


class PowerRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of a power operation that a machine needs for one reason."""

    reason: str
    type: ResetType  # the reset type of the last request
    marks: ResetMarks  # the marks before the request
    state: PowerRecordState
    at: datetime  # the time of the last request
    since: datetime  # the time of the first request
    end: datetime | None = None  # the end of the maintenance window; a later window is a different reason


class RequestReset(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, and then request the reset from the BMC."""

    record: PowerRecord


class WritePowerRecord(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, which contains the observed state of the BMC, and choose the next step."""

    record: PowerRecord


PowerChangeStep = NoChange | RequestReset | WritePowerRecord | Wait | AskOperator


def next_power_step(
    *,
    wanted: WantedPowerChange,
    record: PowerRecord | None,
    observed: BmcObservation,
    overrides: Collection[OverrideRecord],
    now: datetime,
    identity_result: IdentityResult,
    changing_marks: frozenset[str] = frozenset(),
) -> PowerChangeStep:
    """Return the next power step for one machine. ``record`` is the ledger's record for the wanted operation's reason.

    ``changing_marks`` are the marks that change when this machine is reset, as earlier resets have shown.
    """
    goal = _PowerGoal(wanted, observed, overrides, now, identity_result)
    if record is None or record.state is PowerRecordState.REFUSED:
        return _start_operation(goal, record)
    if record.state is PowerRecordState.BACK:
        return NoChange()
    if record.state is PowerRecordState.DONE:
        is_back = observed.runs_os and observed.marks.has_passed_post_since(record.marks)
        return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.BACK)) if is_back else NoChange()
    if record.type in _POWER_ON_TYPES:
        return _check_power_on(goal, record)
    return _check_reset(goal, record, changing_marks | _RELIABLE_MARKS)


class _PowerGoal(NamedTuple):
    """A wanted power operation, and the reading and time for which gitboot decides."""

    wanted: WantedPowerChange
    observed: BmcObservation
    overrides: Collection[OverrideRecord]
    now: datetime
    identity_result: IdentityResult

    def is_recent(self, record: PowerRecord, period: timedelta) -> bool:
        """Return whether the last request is more recent than ``period``. False if the clock was set back."""
        return timedelta() <= self.now - record.at < period


def _start_operation(goal: _PowerGoal, record: PowerRecord | None) -> PowerChangeStep:
    """Return the step that requests the wanted operation, or the reason why gitboot does not request it now."""
    operation, power = goal.wanted.operation, goal.observed.power
    if power not in ("On", "Off"):
        return Wait(why=f"the machine's power state is {power or 'unknown'}")
    if operation is PowerOperation.ON and power == "On":
        return NoChange(why="the machine is on")
    if operation is not PowerOperation.ON and power == "Off":
        return NoChange(why="the machine is off, so gitboot does not restart it")
    delay = _explain_delay(goal, may_start_now=goal.wanted.may_start_now)
    return Wait(why=delay) if delay is not None else _request_reset(goal, record, _RESET_TYPES[operation])


def _check_power_on(goal: _PowerGoal, record: PowerRecord) -> PowerChangeStep:
    """Return the step after a request to turn the machine on."""
    if goal.observed.power == "On":
        return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.DONE))
    if goal.is_recent(record, _SHOW_DELAY):
        return _wait_for_result(record)
    if record.state is PowerRecordState.RECORDED and _has_not_booted(goal):
        return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.REFUSED))
    return request_operator(
        f"gitboot requested {record.type} for {record.reason}, but the machine is off. gitboot does not repeat the"
        " request"
    )


def _check_reset(goal: _PowerGoal, record: PowerRecord, changing_marks: frozenset[str]) -> PowerChangeStep:
    """Return the step after a request to reset the machine."""
    was_requested_now = goal.is_recent(record, _SHOW_DELAY)
    match goal.observed.marks.find_reset_since(record.marks, changing_marks=changing_marks):
        case ResetConclusion.SEEN:
            return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.DONE))
        # The BMC accepted the request, so the operation counts as done.
        case ResetConclusion.UNKNOWN if record.state is PowerRecordState.REQUESTED:
            return NoChange(why=f"the BMC accepted {record.type}, but does not show the result")
        case ResetConclusion.UNKNOWN if was_requested_now:
            return _wait_for_result(record)
        case ResetConclusion.UNKNOWN:
            return request_operator(
                f"gitboot cannot tell whether the BMC received {record.type} for {record.reason}, so gitboot does not"
                " reset the machine again"
            )
    # The machine has not reset since the request. It is still shutting down, or the request had no effect.
    if record.type is ResetType.GRACEFUL_RESTART:
        if goal.is_recent(record, SHUTDOWN_TIMEOUT):
            return NoChange(why=f"gitboot requested a graceful restart at {record.at:%H:%M:%S}")
        delay = _explain_delay(goal, may_start_now=True)
        if delay is not None:
            return Wait(why=delay)
        return _request_reset(goal, record, _RESET_TYPES[PowerOperation.RESTART])
    if was_requested_now or record.state is PowerRecordState.REQUESTED:
        return NoChange(why=f"gitboot requested {record.type}, but the machine has not been reset since then")
    return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.REFUSED))


def _wait_for_result(record: PowerRecord) -> Wait:
    return Wait(why=f"gitboot requested {record.type} a moment ago, but the BMC does not show the result yet")


def _explain_delay(goal: _PowerGoal, *, may_start_now: bool) -> str | None:
    """Return why gitboot must not change the power of a machine now, or None if there is no such reason."""
    wanted, observed = goal.wanted, goal.observed
    if isinstance(goal.identity_result, AnotherMachine | IdentityChanged):
        return f"AnotherMachine: {goal.identity_result.message}"
    if not may_start_now:
        return "the machine's power wave has not started"
    if wanted.valid_until is not None and goal.now >= wanted.valid_until:
        return "the plan has ended, and gitboot has not made the next plan yet"
    if observed.in_post:  # there is no time limit for this, because the machine may be updating its firmware
        return "the machine is in POST"
    is_set = wanted.override_reason is None or any(
        record.reason == wanted.override_reason
        and record.state is OverrideState.CONFIRMED
        and is_override_shown(record.override, observed)
        for record in goal.overrides
    )
    return None if is_set else "gitboot has not confirmed the override"


def _request_reset(goal: _PowerGoal, record: PowerRecord | None, types: Iterable[ResetType]) -> PowerChangeStep:
    """Return the step that requests the first of these reset types that the BMC allows."""
    wanted = goal.wanted
    reset_type = _find_allowed_type(types, goal.observed)
    if reset_type is None:
        return AskOperator(
            condition=OperatorCondition.UNSUPPORTED,
            message=f"the plan needs {wanted.operation}, but the BMC allows only "
            f"{', '.join(sorted(goal.observed.reset_types))}",
        )
    if not wanted.may_reset:
        return NoChange()
    return RequestReset(
        record=PowerRecord(
            reason=wanted.reason,
            type=reset_type,
            marks=goal.observed.marks,
            state=PowerRecordState.RECORDED,
            at=goal.now,
            since=record.since if record is not None and record.state.is_open else goal.now,
            end=wanted.window_end,
        )
    )


def _find_allowed_type(types: Iterable[ResetType], observed: BmcObservation) -> ResetType | None:
    """Return the first of these reset types that the BMC allows. A BMC that reports no types allows all of them."""
    return next((each for each in types if not observed.reset_types or each in observed.reset_types), None)


def _has_not_booted(goal: _PowerGoal) -> bool:
    """Return whether the machine has definitely not booted since power-on, because a one-time override is still set."""
    observed = goal.observed
    return any(
        record.reason == goal.wanted.override_reason
        and record.override.enabled is OverrideEnabled.ONCE
        and record.state is OverrideState.CONFIRMED
        and is_override_shown(record.override, observed)
        and add_known_clock(observed, record).find_reset_since(record.marks) is not ResetConclusion.SEEN
        for record in goal.overrides
    )


def mark_recovered_records(records: Iterable[PowerRecord], observed: BmcObservation) -> tuple[PowerRecord, ...]:
    """Return a machine's open records with the state Back if the machine's operating system runs again, or ()."""
    return tuple(
        structs.replace(each, state=PowerRecordState.BACK)
        for each in records
        if each.state.is_open and observed.runs_os and observed.marks.has_passed_post_since(each.marks)
    )


def find_changing_marks(
    observed: BmcObservation, overrides: Iterable[OverrideRecord], power_records: Iterable[PowerRecord]
) -> frozenset[str]:
    """Return the marks that a reset of this machine changed after gitboot wrote one of the machine's records."""
    earlier_marks = (*(each.marks for each in overrides), *(each.marks for each in power_records))
    return frozenset[str]().union(*(observed.marks.find_later_marks(marks) for marks in earlier_marks))


# The power actions of operators


class PowerAction(StrEnum):
    """A power action that an operator requests."""

    ON = "on"
    OFF = "off"
    RESET = "reset"


# The reset types for each action, with and without ``force``. gitboot uses the first type that the BMC allows.
_ACTION_RESET_TYPES: Final[Mapping[tuple[PowerAction, bool], tuple[ResetType, ...]]] = {
    (PowerAction.ON, False): _POWER_ON_TYPES,
    (PowerAction.ON, True): _POWER_ON_TYPES,
    (PowerAction.OFF, False): (ResetType.GRACEFUL_SHUTDOWN,),
    (PowerAction.OFF, True): (ResetType.FORCE_OFF,),
    (PowerAction.RESET, False): (ResetType.GRACEFUL_RESTART,),
    (PowerAction.RESET, True): (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}
_RESULTING_POWER: Final = {PowerAction.ON: "On", PowerAction.OFF: "Off"}


class PowerChangeRefusal(Struct, frozen=True, kw_only=True):
    """The result that gitboot refuses the power action, for the reason in ``why``."""

    why: str


PowerStep = ResetType | NoChange | PowerChangeRefusal


def choose_power_step(
    action: PowerAction, observed: BmcObservation, identity_result: IdentityResult, *, force: bool
) -> PowerStep:
    """Return the reset type for ``action``, or why there is no reset. With ``force``, bypass the operating system.

    gitboot changes the power state only of the machine in the document, and only after POST, because some BMCs lose
    settings if the machine is reset during POST.
    """
    if isinstance(identity_result, AnotherMachine | IdentityChanged):
        return PowerChangeRefusal(why=f"AnotherMachine: {identity_result.message}")
    if observed.power is not None and observed.power == _RESULTING_POWER.get(action):
        return NoChange(why=f"the machine is already {observed.power.lower()}")
    if action is PowerAction.RESET and observed.power == "Off":
        return PowerChangeRefusal(why="the machine is off: use gitboot bmc power on")
    if observed.in_post:
        return PowerChangeRefusal(why="the machine is in POST: try again later")
    reset_type = _find_allowed_type(_ACTION_RESET_TYPES[action, force], observed)
    if reset_type is not None:
        return reset_type
    hint = "" if force or action is PowerAction.ON else "; add --force to bypass the operating system"
    return PowerChangeRefusal(why=f"the BMC allows only {', '.join(sorted(observed.reset_types))}{hint}")
