"""Power steps: from wanted, observed and recorded power to the next step, and reset types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import Struct, structs

from gitboot.bmc.identity import Another, Identified, IdentityChanged
from gitboot.bmc.override_state import AskOperator, Leave, Observed, OperatorCondition, OverrideRecord, State, Wait
from gitboot.bmc.override_steps import marks_beside, needs_operator, stands
from gitboot.bmc.reboot_detection import Marks, Reset
from gitboot.resolve.server_decision import OverrideEnabled

_TO_BE_SHOWN: Final = timedelta(minutes=1)  # how long it may take until a BMC shows what it was asked for
# How long an operating system may take to shut down; as long as Ironic gives it ([conductor]soft_power_off_timeout).
SHUTDOWN: Final = timedelta(minutes=10)
# A BMC that stamps how far a boot has come does so at each; LastResetTime there are some that no reset moves.
_SURE_TO_MOVE: Final = frozenset({"boot_progress_time"})


class Manner(StrEnum):
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


_ON: Final = (ResetType.ON, ResetType.FORCE_ON)
# The first that a BMC allows is taken; of a graceful restart that nobody obeys, the first of those for a restart.
_TYPES: Final = {
    Manner.ON: _ON,
    Manner.RESTART: (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
    Manner.GRACEFUL_RESTART: (ResetType.GRACEFUL_RESTART, ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}


class SwitchState(StrEnum):
    """How far a recorded switch has come."""

    RECORDED = "Recorded"  # about to be asked for; a crash may have come between
    ASKED = "Asked"  # the BMC has taken it
    DONE = "Done"  # the machine has reset since, or is on
    BACK = "Back"  # and its operating system runs
    REFUSED = "Refused"  # proven not to have been done: the reason is open again

    @property
    def is_open(self) -> bool:
        """Whether the machine may be down because of it."""
        return self in (SwitchState.RECORDED, SwitchState.ASKED, SwitchState.DONE)


class Switching(Struct, frozen=True, kw_only=True):
    """What a plan wants of a machine's power."""

    reason: str  # what it is switched for at most once: a provision key, a maintenance's run
    manner: Manner
    override: str | None = None  # the reason of the override that has to stand; None: none is wanted
    until: datetime | None = None  # from when on the plan may want something else
    end: datetime | None = None  # of the window
    now: bool = False  # whether its turn has come
    may_ask: bool = True  # else it is seen to what became of what was asked for, and nothing is asked for


class SwitchRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of how a machine was switched for one reason."""

    reason: str
    type: ResetType  # what was asked for last
    marks: Marks  # as they were before
    state: SwitchState
    at: datetime  # when that was
    since: datetime  # when it was asked for something first
    end: datetime | None = None  # of the window in which it was: a later one is another reason


class AskForReset(Struct, frozen=True, kw_only=True):
    """Write ``record``, then ask the BMC for its type."""

    record: SwitchRecord


class NoteSwitch(Struct, frozen=True, kw_only=True):
    """Write ``record``: it is what the BMC shows. Then ask again."""

    record: SwitchRecord


SwitchStep = Leave | AskForReset | NoteSwitch | Wait | AskOperator


def next_switch(
    *,
    wanted: Switching,
    record: SwitchRecord | None,
    observed: Observed,
    overrides: Collection[OverrideRecord],
    at: datetime,
    identified: Identified,
    moving: frozenset[str] = frozenset(),
) -> SwitchStep:
    """Decide what comes next for the power of one machine; ``record`` is the one for the reason that is wanted.

    ``moving`` are the marks that its resets are known to move.
    """
    ask = partial(_ask, wanted, record, observed, at)
    held = partial(_held_back, observed=observed, overrides=overrides, at=at, identified=identified)
    if record is None or record.state is SwitchState.REFUSED:
        if observed.power not in ("On", "Off"):
            return Wait(why=f"its power is {observed.power or 'not shown'}")
        if (observed.power == "On") is (wanted.manner is Manner.ON):
            return Leave(why="it is on" if wanted.manner is Manner.ON else "it is off, and is not restarted")
        return Wait(why=why) if (why := held(wanted)) is not None else ask(_TYPES[wanted.manner])
    if record.state is SwitchState.BACK:
        return Leave()
    if record.state is SwitchState.DONE:
        is_back = observed.runs_os and observed.marks.has_come_up_since(record.marks)
        return NoteSwitch(record=structs.replace(record, state=SwitchState.BACK)) if is_back else Leave()
    just_asked = timedelta() <= at - record.at < _TO_BE_SHOWN
    not_shown_yet = Wait(why=f"{record.type} was asked for a moment ago, and is not shown yet")
    if record.type in _ON:
        if observed.power == "On":
            return NoteSwitch(record=structs.replace(record, state=SwitchState.DONE))
        if just_asked:
            return not_shown_yet
        if record.state is SwitchState.RECORDED and _has_not_booted(wanted, observed, overrides):
            return NoteSwitch(record=structs.replace(record, state=SwitchState.REFUSED))
        return needs_operator(
            f"{record.type} was asked for, for {record.reason}, and the machine is off: it is not switched on again"
        )
    match observed.marks.reset_since(record.marks, moving=moving | _SURE_TO_MOVE):
        case Reset.SEEN:
            return NoteSwitch(record=structs.replace(record, state=SwitchState.DONE))
        case Reset.UNKNOWN if record.state is SwitchState.ASKED:  # the BMC took it: it counts as done
            return Leave(why=f"the BMC has taken {record.type}, and does not show what came of it")
        case Reset.UNKNOWN if just_asked:
            return not_shown_yet
        case Reset.UNKNOWN:
            return needs_operator(
                f"{record.type} was to be asked for, for {record.reason}, and nothing proves whether it was: the"
                " machine is not reset again"
            )
    # It has not reset since: it is still shutting down, or was not asked to, or does not obey.
    if record.type is ResetType.GRACEFUL_RESTART:
        if timedelta() <= at - record.at < SHUTDOWN:
            return Leave(why=f"its operating system was asked to restart at {record.at:%H:%M:%S}")
        why = held(structs.replace(wanted, now=True))
        return Wait(why=why) if why is not None else ask(_TYPES[Manner.RESTART])
    if just_asked or record.state is SwitchState.ASKED:
        return Leave(why=f"{record.type} was asked for, and the machine has not reset since")
    return NoteSwitch(record=structs.replace(record, state=SwitchState.REFUSED))


def switches_that_are_back(records: Iterable[SwitchRecord], observed: Observed) -> tuple[SwitchRecord, ...]:
    """Return the records of machines whose system runs again, as they are now."""
    return tuple(
        structs.replace(each, state=SwitchState.BACK)
        for each in records
        if each.state.is_open and observed.runs_os and observed.marks.has_come_up_since(each.marks)
    )


def marks_that_move(
    observed: Observed, overrides: Iterable[OverrideRecord], switches: Iterable[SwitchRecord]
) -> frozenset[str]:
    """The marks that a machine's resets are known to move: those that have, since anything was written down of it."""
    before = (*(each.marks for each in overrides), *(each.marks for each in switches))
    return frozenset[str]().union(*(observed.marks.moved_since(marks) for marks in before))


def _held_back(
    wanted: Switching, observed: Observed, overrides: Collection[OverrideRecord], at: datetime, identified: Identified
) -> str | None:
    """Return why a machine is not to be switched for a reason at this moment; None: it may be."""
    if isinstance(identified, Another | IdentityChanged):
        return f"AnotherMachine: {identified.message}"
    if not wanted.now:
        return "its turn has not come"
    if wanted.until is not None and at >= wanted.until:
        return "what is wanted from now on is still to be planned"
    if observed.in_post:  # however long it has said so: it may be writing firmware
        return "the machine is in POST"
    is_set = wanted.override is None or any(
        each.reason == wanted.override and each.state is State.CONFIRMED and stands(each.override, observed)
        for each in overrides
    )
    return None if is_set else "its override is not known to stand"


def _ask(
    wanted: Switching, record: SwitchRecord | None, observed: Observed, at: datetime, types: Iterable[ResetType]
) -> SwitchStep:
    allowed = observed.reset_types
    found = next((each for each in types if not allowed or each in allowed), None)
    if found is None:
        message = f"{wanted.manner} is wanted, and the BMC allows only {', '.join(sorted(allowed))}"
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    if not wanted.may_ask:
        return Leave()
    since = record.since if record is not None and record.state.is_open else at
    return AskForReset(
        record=SwitchRecord(
            reason=wanted.reason,
            type=found,
            marks=observed.marks,
            state=SwitchState.RECORDED,
            at=at,
            since=since,
            end=wanted.end,
        )
    )


def _has_not_booted(wanted: Switching, observed: Observed, overrides: Iterable[OverrideRecord]) -> bool:
    """Return whether the one-time override of a machine that was to be switched on still stands: it was not booted."""
    return any(
        each.reason == wanted.override
        and each.override.enabled is OverrideEnabled.ONCE
        and each.state is State.CONFIRMED
        and stands(each.override, observed)
        and marks_beside(observed, each).reset_since(each.marks) is not Reset.SEEN
        for each in overrides
    )


class PowerAction(StrEnum):
    """A power action of an operator."""

    ON = "on"
    OFF = "off"
    RESET = "reset"


# By what is asked for, and whether the operating system is left out of it: the first that a BMC allows.
_POWER_TYPES: Final[Mapping[tuple[PowerAction, bool], tuple[ResetType, ...]]] = {
    (PowerAction.ON, False): _ON,
    (PowerAction.ON, True): _ON,
    (PowerAction.OFF, False): (ResetType.GRACEFUL_SHUTDOWN,),
    (PowerAction.OFF, True): (ResetType.FORCE_OFF,),
    (PowerAction.RESET, False): (ResetType.GRACEFUL_RESTART,),
    (PowerAction.RESET, True): (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}
_IS_SO: Final = {PowerAction.ON: "On", PowerAction.OFF: "Off"}


class NotSwitched(Struct, frozen=True, kw_only=True):
    """It is not done, and a person has to know why."""

    why: str


PowerStep = ResetType | Leave | NotSwitched


def next_power(action: PowerAction, seen: Observed, identified: Identified, *, force: bool) -> PowerStep:
    """Return the reset type to send for ``action``; ``force``: without asking the operating system.

    Nothing is switched on another machine than the document's, and none during POST: some BMCs lose settings then.
    """
    if isinstance(identified, Another | IdentityChanged):
        return NotSwitched(why=f"AnotherMachine: {identified.message}")
    if seen.power is not None and seen.power == _IS_SO.get(action):
        return Leave(why=f"it is {seen.power.lower()}")
    if action is PowerAction.RESET and seen.power == "Off":
        return NotSwitched(why="it is off: gitboot bmc power on")
    if seen.in_post:
        return NotSwitched(why="it is in POST: ask again when that is over")
    types = _POWER_TYPES[action, force]
    found = next((each for each in types if not seen.reset_types or each in seen.reset_types), None)
    if found is not None:
        return found
    hint = "" if force or action is PowerAction.ON else "; --force asks no operating system"
    return NotSwitched(why=f"the BMC allows only {', '.join(sorted(seen.reset_types))}{hint}")
