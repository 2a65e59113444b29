"""What a BMC is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gitboot.bmc.identity import Described, Identified, Pinned
from gitboot.bmc.override_state import Observed, OperatorCondition, Override, OverrideRecord, Wanted
from gitboot.bmc.power_steps import Switching, SwitchRecord
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars.machines import SystemUuid


class Outcome(StrEnum):
    UNCHANGED = "Unchanged"
    APPLIED = "Applied"
    WAITING = "Waiting"  # it is tried again
    STALLED = "Stalled"  # a person must act


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One machine's BMC, and what it is to become."""

    server: str
    uuid: SystemUuid
    bmc: BmcAccess
    wanted: Wanted | None
    records: tuple[OverrideRecord, ...]
    site: str | None = None  # whose network the BMC is in
    dry_run: bool = False  # say what would be written, and write nothing
    only_read: bool = False  # a fetch is to be judged by what stands now: nothing is set before
    with_clock: bool = False  # what its marks say is to count: the Manager's clock is read, too
    serial: str | None = None  # as its document says
    pinned: Pinned | None = None  # what its BMC showed before
    known: bool = False  # whether its BMC is one that the ledger lets have its credentials
    keeps: tuple[str, ...] = ()  # the media of a boot that was given: they stay until the machine resets
    switching: Switching | None = None  # what is to become of its power
    switches: tuple[SwitchRecord, ...] = ()  # what was done to it before
    shared: frozenset[str] = frozenset()  # what the BMCs of several machines show: `gitboot.bmc.identity.shared`

    @property
    def described(self) -> Described:
        return Described.by(self.uuid, self.serial, self.bmc)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of a job."""

    server: str
    uuid: SystemUuid
    outcome: Outcome
    message: str  # what was done, or why not
    before: Override | None = None  # what the first reading showed
    observed: Observed | None = None  # the last reading
    wrote: tuple[OverrideRecord, ...] = ()  # records as they were written, in order
    switched: tuple[SwitchRecord, ...] = ()  # likewise
    asked: bool = True  # False: the instance's own settings forbid it, which says nothing of the network
    answered: bool = True  # whether the BMC, and the way to it, are in order
    identified: Identified | None = None  # whose machine answered, by the last reading
    pinned: Pinned | None = None  # what is to be kept of what it shows
    credentials: str | None = None  # tells whether its credentials have changed since; None: it had none
    asks: OperatorCondition | None = None  # what a person has to decide
    granted: bool = False  # whether it was its machine's turn to be switched
    kept_uri: str | None = None  # what firmware was told to boot by HTTP, from the reset on that was asked for
    retry_after_s: int | None = None  # for how long a BMC that is busy asks to be left alone
    took_s: float | None = field(default=None, compare=False)  # None: nobody has measured it
