"""Power steps: from wanted, observed and recorded power to the next step, and reset types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import Struct, structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, IdentityResult
from gitboot.bmc.override_state import (
    AskOperator,
    BmcObservation,
    NoChange,
    OperatorCondition,
    OverrideRecord,
    OverrideState,
    Wait,
)
from gitboot.bmc.override_steps import add_known_clock, is_shown, request_operator
from gitboot.bmc.reboot_detection import Marks, Reset
from gitboot.resolve.server_decision import OverrideEnabled

_SHOW_DELAY: Final = timedelta(minutes=1)  # how long it may take until a BMC shows what it was asked for
# How long an operating system may take to shut down; as long as Ironic gives it ([conductor]soft_power_off_timeout).
SHUTDOWN_TIMEOUT: Final = timedelta(minutes=10)
# A BMC that stamps how far a boot has come does so at each; LastResetTime there are some that no reset moves.
_RELIABLE_MARKS: Final = frozenset({"boot_progress_time"})


class PowerOperation(StrEnum):
    """What is done to a machine's power."""

    ON = "On"  # where it is off
    RESTART = "Restart"  # where it is on, without asking its operating system
    GRACEFUL_RESTART = "GracefulRestart"  # the same, asking it first


class ResetType(StrEnum):
    """Redfish ResetType, as far as it is used."""

    ON = "On"
    FORCE_ON = "ForceOn"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_OFF = "ForceOff"
    GRACEFUL_RESTART = "GracefulRestart"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"


_POWER_ON_TYPES: Final = (ResetType.ON, ResetType.FORCE_ON)
# The first that a BMC allows is taken; of a graceful restart that nobody obeys, the first of those for a restart.
_RESET_TYPES: Final = {
    PowerOperation.ON: _POWER_ON_TYPES,
    PowerOperation.RESTART: (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
    PowerOperation.GRACEFUL_RESTART: (ResetType.GRACEFUL_RESTART, ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}


class PowerRecordState(StrEnum):
    """How far a recorded switch has come."""

    RECORDED = "Recorded"  # about to be asked for; a crash may have come between
    REQUESTED = "Asked"  # the BMC has taken it
    DONE = "Done"  # the machine has reset since, or is on
    BACK = "Back"  # and its operating system runs
    REFUSED = "Refused"  # proven not to have been done: the reason is open again

    @property
    def is_open(self) -> bool:
        """Whether the machine may be down because of it."""
        return self in (PowerRecordState.RECORDED, PowerRecordState.REQUESTED, PowerRecordState.DONE)


class WantedPowerChange(Struct, frozen=True, kw_only=True):
    """What a plan wants of a machine's power."""

    reason: str  # what it is switched for at most once: a provision key, a maintenance's run
    operation: PowerOperation
    override_reason: str | None = None  # the reason of the override that has to stand; None: none is wanted
    valid_until: datetime | None = None  # from when on the plan may want something else
    window_end: datetime | None = None  # of the window
    may_start_now: bool = False  # whether its turn has come
    may_reset: bool = True  # else it is seen to what became of what was asked for, and nothing is asked for


class PowerRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of how a machine was switched for one reason."""

    reason: str
    type: ResetType  # what was asked for last
    marks: Marks  # as they were before
    state: PowerRecordState
    at: datetime  # when that was
    since: datetime  # when it was asked for something first
    end: datetime | None = None  # of the window in which it was: a later one is another reason


class RequestReset(Struct, frozen=True, kw_only=True):
    """Write ``record``, then ask the BMC for its type."""

    record: PowerRecord


class WritePowerRecord(Struct, frozen=True, kw_only=True):
    """Write ``record``: it is what the BMC shows. Then ask again."""

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
    moving_marks: frozenset[str] = frozenset(),
) -> PowerChangeStep:
    """Decide what comes next for the power of one machine; ``record`` is the one for the reason that is wanted.

    ``moving`` are the marks that its resets are known to move.
    """
    request = partial(_request_reset, wanted, record, observed, now)
    find_delay = partial(
        _explain_delay, observed=observed, overrides=overrides, now=now, identity_result=identity_result
    )
    if record is None or record.state is PowerRecordState.REFUSED:
        if observed.power not in ("On", "Off"):
            return Wait(why=f"its power is {observed.power or 'not shown'}")
        if (observed.power == "On") is (wanted.operation is PowerOperation.ON):
            return NoChange(
                why="it is on" if wanted.operation is PowerOperation.ON else "it is off, and is not restarted"
            )
        return Wait(why=why) if (why := find_delay(wanted)) is not None else request(_RESET_TYPES[wanted.operation])
    if record.state is PowerRecordState.BACK:
        return NoChange()
    if record.state is PowerRecordState.DONE:
        is_back = observed.runs_os and observed.marks.has_passed_post_since(record.marks)
        return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.BACK)) if is_back else NoChange()
    just_asked = timedelta() <= now - record.at < _SHOW_DELAY
    not_shown_yet = Wait(why=f"{record.type} was asked for a moment ago, and is not shown yet")
    if record.type in _POWER_ON_TYPES:
        if observed.power == "On":
            return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.DONE))
        if just_asked:
            return not_shown_yet
        if record.state is PowerRecordState.RECORDED and _has_not_booted(wanted, observed, overrides):
            return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.REFUSED))
        return request_operator(
            f"{record.type} was asked for, for {record.reason}, and the machine is off: it is not switched on again"
        )
    match observed.marks.reset_since(record.marks, moving_marks=moving_marks | _RELIABLE_MARKS):
        case Reset.SEEN:
            return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.DONE))
        case Reset.UNKNOWN if record.state is PowerRecordState.REQUESTED:  # the BMC took it: it counts as done
            return NoChange(why=f"the BMC has taken {record.type}, and does not show what came of it")
        case Reset.UNKNOWN if just_asked:
            return not_shown_yet
        case Reset.UNKNOWN:
            return request_operator(
                f"{record.type} was to be asked for, for {record.reason}, and nothing proves whether it was: the"
                " machine is not reset again"
            )
    # It has not reset since: it is still shutting down, or was not asked to, or does not obey.
    if record.type is ResetType.GRACEFUL_RESTART:
        if timedelta() <= now - record.at < SHUTDOWN_TIMEOUT:
            return NoChange(why=f"its operating system was asked to restart at {record.at:%H:%M:%S}")
        why = find_delay(structs.replace(wanted, may_start_now=True))
        return Wait(why=why) if why is not None else request(_RESET_TYPES[PowerOperation.RESTART])
    if just_asked or record.state is PowerRecordState.REQUESTED:
        return NoChange(why=f"{record.type} was asked for, and the machine has not reset since")
    return WritePowerRecord(record=structs.replace(record, state=PowerRecordState.REFUSED))


def mark_recovered(records: Iterable[PowerRecord], observed: BmcObservation) -> tuple[PowerRecord, ...]:
    """Return the records of machines whose system runs again, as they are now."""
    return tuple(
        structs.replace(each, state=PowerRecordState.BACK)
        for each in records
        if each.state.is_open and observed.runs_os and observed.marks.has_passed_post_since(each.marks)
    )


def find_moving_marks(
    observed: BmcObservation, overrides: Iterable[OverrideRecord], switches: Iterable[PowerRecord]
) -> frozenset[str]:
    """The marks that a machine's resets are known to move: those that have, since anything was written down of it."""
    before = (*(each.marks for each in overrides), *(each.marks for each in switches))
    return frozenset[str]().union(*(observed.marks.find_later_marks(marks) for marks in before))


def _explain_delay(
    wanted: WantedPowerChange,
    observed: BmcObservation,
    overrides: Collection[OverrideRecord],
    now: datetime,
    identity_result: IdentityResult,
) -> str | None:
    """Return why a machine is not to be switched for a reason at this moment; None: it may be."""
    if isinstance(identity_result, AnotherMachine | IdentityChanged):
        return f"AnotherMachine: {identity_result.message}"
    if not wanted.may_start_now:
        return "its turn has not come"
    if wanted.valid_until is not None and now >= wanted.valid_until:
        return "what is wanted from now on is still to be planned"
    if observed.in_post:  # however long it has said so: it may be writing firmware
        return "the machine is in POST"
    is_set = wanted.override_reason is None or any(
        each.reason == wanted.override_reason
        and each.state is OverrideState.CONFIRMED
        and is_shown(each.override, observed)
        for each in overrides
    )
    return None if is_set else "its override is not known to stand"


def _request_reset(
    wanted: WantedPowerChange,
    record: PowerRecord | None,
    observed: BmcObservation,
    now: datetime,
    types: Iterable[ResetType],
) -> PowerChangeStep:
    allowed = observed.reset_types
    found = next((each for each in types if not allowed or each in allowed), None)
    if found is None:
        message = f"{wanted.operation} is wanted, and the BMC allows only {', '.join(sorted(allowed))}"
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    if not wanted.may_reset:
        return NoChange()
    since = record.since if record is not None and record.state.is_open else now
    return RequestReset(
        record=PowerRecord(
            reason=wanted.reason,
            type=found,
            marks=observed.marks,
            state=PowerRecordState.RECORDED,
            at=now,
            since=since,
            end=wanted.window_end,
        )
    )


def _has_not_booted(wanted: WantedPowerChange, observed: BmcObservation, overrides: Iterable[OverrideRecord]) -> bool:
    """Return whether the one-time override of a machine that was to be switched on still stands: it was not booted."""
    return any(
        each.reason == wanted.override_reason
        and each.override.enabled is OverrideEnabled.ONCE
        and each.state is OverrideState.CONFIRMED
        and is_shown(each.override, observed)
        and add_known_clock(observed, each).reset_since(each.marks) is not Reset.SEEN
        for each in overrides
    )


class PowerAction(StrEnum):
    """A power action of an operator."""

    ON = "on"
    OFF = "off"
    RESET = "reset"


# By what is asked for, and whether the operating system is left out of it: the first that a BMC allows.
_ACTION_RESET_TYPES: Final[Mapping[tuple[PowerAction, bool], tuple[ResetType, ...]]] = {
    (PowerAction.ON, False): _POWER_ON_TYPES,
    (PowerAction.ON, True): _POWER_ON_TYPES,
    (PowerAction.OFF, False): (ResetType.GRACEFUL_SHUTDOWN,),
    (PowerAction.OFF, True): (ResetType.FORCE_OFF,),
    (PowerAction.RESET, False): (ResetType.GRACEFUL_RESTART,),
    (PowerAction.RESET, True): (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}
_RESULTING_POWER: Final = {PowerAction.ON: "On", PowerAction.OFF: "Off"}


class PowerChangeRefused(Struct, frozen=True, kw_only=True):
    """It is not done, and a person has to know why."""

    why: str


PowerStep = ResetType | NoChange | PowerChangeRefused


def choose_reset_type(
    action: PowerAction, observed: BmcObservation, identity_result: IdentityResult, *, force: bool
) -> PowerStep:
    """Return the reset type to send for ``action``; ``force``: without asking the operating system.

    Nothing is switched on another machine than the document's, and none during POST: some BMCs lose settings then.
    """
    if isinstance(identity_result, AnotherMachine | IdentityChanged):
        return PowerChangeRefused(why=f"AnotherMachine: {identity_result.message}")
    if observed.power is not None and observed.power == _RESULTING_POWER.get(action):
        return NoChange(why=f"it is {observed.power.lower()}")
    if action is PowerAction.RESET and observed.power == "Off":
        return PowerChangeRefused(why="it is off: gitboot bmc power on")
    if observed.in_post:
        return PowerChangeRefused(why="it is in POST: ask again when that is over")
    types = _ACTION_RESET_TYPES[action, force]
    found = next((each for each in types if not observed.reset_types or each in observed.reset_types), None)
    if found is not None:
        return found
    hint = "" if force or action is PowerAction.ON else "; --force asks no operating system"
    return PowerChangeRefused(why=f"the BMC allows only {', '.join(sorted(observed.reset_types))}{hint}")
