"""A machine's power, switched by hand: what is sent to its BMC, by what that allows and shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gitboot.bmc.identity import Another, Identified, IdentityChanged
from gitboot.bmc.override_state import Observed


class PowerAction(StrEnum):
    """What a person asks for."""

    ON = "on"
    OFF = "off"
    RESET = "reset"


class ResetType(StrEnum):
    """Redfish ResetType, as far as it is used."""

    ON = "On"
    FORCE_ON = "ForceOn"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    FORCE_OFF = "ForceOff"
    GRACEFUL_RESTART = "GracefulRestart"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"


# By what is asked for, and whether the operating system is left out of it: the first that a BMC allows.
_TYPES: Final[Mapping[tuple[PowerAction, bool], tuple[ResetType, ...]]] = {
    (PowerAction.ON, False): (ResetType.ON, ResetType.FORCE_ON),
    (PowerAction.ON, True): (ResetType.ON, ResetType.FORCE_ON),
    (PowerAction.OFF, False): (ResetType.GRACEFUL_SHUTDOWN,),
    (PowerAction.OFF, True): (ResetType.FORCE_OFF,),
    (PowerAction.RESET, False): (ResetType.GRACEFUL_RESTART,),
    (PowerAction.RESET, True): (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE),
}
_IS_SO: Final = {PowerAction.ON: "On", PowerAction.OFF: "Off"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """It is sent to the BMC."""

    type: ResetType


@dataclass(frozen=True, kw_only=True, slots=True)
class NothingToSwitch:
    """The machine is as it is asked for."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotSwitched:
    """It is not done, and a person has to know why."""

    why: str


PowerStep = Send | NothingToSwitch | NotSwitched


def next_power(action: PowerAction, seen: Observed, identified: Identified, *, force: bool) -> PowerStep:
    """What is to be sent for ``action``; ``force``: without asking the operating system.

    Nothing is switched on another machine than the document's, and none during POST: some BMCs lose settings then.
    """
    if isinstance(identified, Another | IdentityChanged):
        return NotSwitched(why=f"AnotherMachine: {identified.message}")
    if seen.power is not None and seen.power == _IS_SO.get(action):
        return NothingToSwitch(why=f"it is {seen.power.lower()}")
    if action is PowerAction.RESET and seen.power == "Off":
        return NotSwitched(why="it is off: gitboot bmc power on")
    if seen.in_post:
        return NotSwitched(why="it is in POST: ask again when that is over")
    types = _TYPES[action, force]
    found = next((each for each in types if not seen.reset_types or each in seen.reset_types), None)
    if found is None:
        allowed = ", ".join(sorted(seen.reset_types))
        hint = "" if force or action is PowerAction.ON else "; --force asks no operating system"
        return NotSwitched(why=f"the BMC allows only {allowed}{hint}")
    return Send(type=found)
