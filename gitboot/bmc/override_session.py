"""Override session: the steps of one task at one BMC, for its override and then for its power."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from gitboot.bmc.identity import Described, Identified, Pinned, identify, known_at, pin, with_certificate
from gitboot.bmc.override_state import (
    EJECTION,
    IPMI,
    AskOperator,
    Confirm,
    Eject,
    Insert,
    Leave,
    Observed,
    OperatorCondition,
    Override,
    OverrideRecord,
    Set,
    Wait,
    Wanted,
    Withdraw,
    insertion,
)
from gitboot.bmc.override_steps import (
    OFF,
    Change,
    needs_clock,
    needs_firmware_uri,
    needs_slots,
    next_step,
    settle_overtaken,
    settle_refused,
    uri_to_keep,
)
from gitboot.bmc.power_steps import (
    AskForReset,
    NoteSwitch,
    Switching,
    SwitchRecord,
    SwitchState,
    marks_that_move,
    next_switch,
    switches_that_are_back,
)
from gitboot.bmc.redfish.quirks import boot_patch
from gitboot.errors import BmcBusy, BmcChanged, BmcNotTrusted, BmcRejected, BmcUnreachable, LedgerError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled

if TYPE_CHECKING:
    from gitboot.bmc.ipmi import IpmiConnection
    from gitboot.bmc.redfish.client import BmcConnection

    Driver = BmcConnection | IpmiConnection


_MOST_STEPS: Final = 16  # withdraw, eject, insert, set, each confirmed, and some more for a BMC that changes under us
_MOST_POWER_STEPS: Final = 4  # confirm what was asked for before, read what the BMC allows, ask


class Outcome(StrEnum):
    UNCHANGED = "Unchanged"
    APPLIED = "Applied"
    WAITING = "Waiting"  # it is tried again
    STALLED = "Stalled"  # a person must act


class BmcTask(Struct, frozen=True, kw_only=True):
    """One machine's BMC, and what it is to become."""

    server: str
    uuid: SystemUuid
    bmc: BmcAccess
    wanted: Wanted | None
    records: tuple[OverrideRecord, ...]
    site: str | None = None  # whose network the BMC is in
    dry_run: bool = False  # say what would be written, and write nothing
    only_read: bool = False  # a fetch is to be judged by what stands now: nothing is set before
    with_clock: bool = False  # read the Manager's clock too, because marks alone tell if the machine has come up
    serial: str | None = None  # as its document says
    pinned: Pinned | None = None  # what its BMC showed before
    known: bool = False  # whether its BMC is one that the ledger lets have its credentials
    keeps: tuple[str, ...] = ()  # the media of a boot that was given: they stay until the machine resets
    switching: Switching | None = None  # what is to become of its power
    switches: tuple[SwitchRecord, ...] = ()  # what was done to it before
    shared: frozenset[str] = frozenset()  # what the BMCs of several machines show: `Sharing.values`

    def identify(self, seen: Observed, pinned: Pinned | None) -> Identified:
        """Return whose machine a BMC shows; ``pinned`` is what it showed before at the same place."""
        described = Described.by(self.uuid, self.serial, self.bmc)
        return identify(described, seen.shown, pinned=pinned, shared=self.shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """What came of a task."""

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


class OverrideSession:
    """One task at one BMC, from its first reading until nothing is left to do now.

    ``write`` returns when its record is durable. The session calls it before it changes the BMC.
    """

    def __init__(
        self,
        bmc: Driver,
        task: BmcTask,
        write: Callable[[OverrideRecord | SwitchRecord], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._bmc, self._task, self._write, self._clock = bmc, task, write, clock
        self._records = {record.reason: record for record in task.records}
        self._pinned = known_at(task.pinned, task.bmc.place)
        self._wrote: list[OverrideRecord] = []
        self._switched: list[SwitchRecord] = []
        self._before: Override | None = None
        self._seen: Observed | None = None
        self._identified: Identified | None = None

    def run(self) -> TaskResult:
        """Carry out the steps of the override; once it is as wanted, those of the power."""
        try:
            return self._run_override_steps() or self._run_power_steps()
        except BmcBusy as error:
            return self._result(Outcome.WAITING, str(error), retry_after_s=error.retry_after_s)
        except LedgerError as error:  # what cannot be written down is not done
            return self._result(Outcome.WAITING, str(error))
        except BmcUnreachable as error:
            return self._result(Outcome.WAITING, str(error), answered=False)
        except BmcRejected as error:
            return self._result(Outcome.STALLED, str(error), answered=self._seen is not None)
        except BmcNotTrusted as error:
            return self._result(Outcome.STALLED, str(error), asked=False, answered=False)

    def _run_override_steps(self) -> TaskResult | None:
        """Record, set, confirm; return None if the override is as wanted."""
        bmc, task, clock = self._bmc, self._task, self._clock
        seen: Observed | None = None
        was_confirmed = False  # what was seen says no less than another reading would
        for _ in range(_MOST_STEPS):
            records = tuple(self._records.values())
            if seen is None or not was_confirmed or needs_clock(records, seen, clock()):
                seen = look(bmc, task.wanted, records, clock, with_clock=task.with_clock)
                was_confirmed = False
            self._seen, self._before = seen, self._before or seen.override
            self._identified = identified = task.identify(seen, self._pinned)
            self._pinned = pin(seen.shown, identified, pinned=self._pinned, place=task.bmc.place, at=clock())
            step = next_step(
                wanted=task.wanted,
                observed=seen,
                records=records,
                at=clock(),
                identified=identified,
                keeps=task.keeps,
            )
            if isinstance(step, Change):
                if was_confirmed:  # what is written rests on a reading of its own
                    was_confirmed = False
                    continue
                if task.only_read:
                    return self._result(Outcome.UNCHANGED, "only read, to judge a fetch")
                if task.dry_run:
                    return self._result(Outcome.UNCHANGED, " ".join(("would", *would_send(step, seen))))
            match step:
                case Leave():
                    return None
                case Wait(why=why):
                    return self._result(Outcome.WAITING, why)
                case AskOperator(condition=condition, message=message):
                    return self._result(Outcome.STALLED, f"{condition}: {message}", asks=condition)
                case Confirm(record=record):
                    self._keep(record)
                    was_confirmed = True
                case Set(record=record):
                    self._set_override(record, seen)
                case Insert(record=record, slot=slot, url=url) if bmc.media is not None:
                    self._keep(record)
                    bmc.media.insert(slot, url)
                case Eject(record=record, slot=slot) if bmc.media is not None:
                    self._keep(record)
                    with bmc.reach.ending():
                        bmc.media.eject(slot)
                case Withdraw(record=record):
                    self._keep(record)
                    with bmc.reach.ending():
                        bmc.set_override(OFF, seen)
        return self._result(Outcome.WAITING, f"not settled after {_MOST_STEPS} steps")

    def _set_override(self, record: OverrideRecord, seen: Observed) -> None:
        """Record and set an override. Raises what the BMC refuses, once its traces are read and recorded."""
        if record.override.enabled is OverrideEnabled.ONCE:
            self._seen = seen = self._bmc.with_clock(seen, self._clock)
        record, known = structs.replace(record, marks=seen.marks), tuple(self._records.values())
        self._keep(record)
        try:
            self._bmc.set_override(record.override, seen)
        except (BmcRejected, BmcBusy) as error:
            # A refusal alone proves nothing: what it left behind is read.
            self._seen = left = self._bmc.observe()
            if isinstance(error, BmcChanged) and self._task.wanted is not None:
                self._keep(settle_overtaken(record, left, self._task.wanted, known))
            else:
                self._keep(settle_refused(record, left))
            raise

    def _run_power_steps(self) -> TaskResult:
        bmc, task, clock, wanted = self._bmc, self._task, self._clock, self._task.switching
        seen, identified, overrides = self._seen, self._identified, tuple(self._records.values())
        if wanted is None or seen is None or identified is None:
            return self._settled()
        record = next((each for each in task.switches if each.reason == wanted.reason), None)
        if record is None or record.state in (SwitchState.RECORDED, SwitchState.ASKED):
            seen = bmc.with_clock(seen, clock)
        moving = marks_that_move(seen, overrides, task.switches)
        may_write = not (task.dry_run or task.only_read)
        if may_write:
            for each in switches_that_are_back((each for each in task.switches if each.reason != wanted.reason), seen):
                self._keep_switch(each)
        noted = ""
        for _ in range(_MOST_POWER_STEPS):
            step = next_switch(
                wanted=wanted,
                record=record,
                observed=seen,
                overrides=overrides,
                at=clock(),
                identified=identified,
                moving=moving,
            )
            match step:
                case Leave(why=why):
                    return self._settled(noted, why)
                case Wait(why=why):
                    return self._settled(noted, f"{wanted.manner} waits: {why}")
                case AskOperator(condition=condition, message=message):
                    return self._result(Outcome.STALLED, f"{condition}: {message}", asks=condition)
                case NoteSwitch(record=confirmed):
                    if not may_write:
                        break
                    self._keep_switch(confirmed)
                    record = confirmed
                    noted = f"{record.type} for {record.reason} is {record.state.lower()}"
                case AskForReset(record=asked):
                    if not seen.reset_types and (shown := bmc.with_reset_types(seen)).reset_types:
                        seen = shown  # decided anew, by what the BMC allows
                        continue
                    if not may_write:
                        return self._settled(noted, f"would ask for {asked.type}" if not task.only_read else "")
                    self._keep_switch(asked)
                    kept, uri = self._keep_uri(seen)
                    bmc.reset(asked.type, seen)
                    self._keep_switch(structs.replace(asked, state=SwitchState.ASKED))
                    message = f"{asked.type} was asked for, for {asked.reason}{kept}"
                    return self._result(Outcome.APPLIED, message, kept_uri=uri)
        return self._settled(noted)

    def _keep_uri(self, seen: Observed) -> tuple[str, str | None]:
        """Have firmware keep the loader's URI if the BMC takes none; return a part of the message, and the kept URI.

        The reset that follows lets the setting take effect. If the BMC refuses it, DHCP names the loader, as before.
        """
        uri = uri_to_keep(self._task.wanted, seen)
        if uri is None or self._bmc.firmware is None:
            return "", None
        try:
            kept = self._bmc.firmware.keep_uri(uri, seen)
        except (BmcRejected, BmcBusy) as error:
            return f"; DHCP names the loader, as firmware was to keep {uri}, and {error}", None
        return (f"; firmware keeps {uri} from then on", uri) if kept else ("", None)

    def _keep(self, record: OverrideRecord) -> None:
        record = structs.replace(record, bmc=self._task.bmc)
        if not self._task.dry_run:
            self._write(record)
        self._records[record.reason] = record
        self._wrote.append(record)

    def _keep_switch(self, record: SwitchRecord) -> None:
        self._write(record)
        self._switched.append(record)

    def _settled(self, noted: str = "", why: str = "") -> TaskResult:
        """Return the result of a task with nothing left to do now, with the first message that there is.

        ``noted`` is what was confirmed of the power; ``why`` is why the power stays as it is.
        """
        if noted:
            return self._result(Outcome.APPLIED, noted)
        if why and not self._wrote:
            return self._result(Outcome.UNCHANGED, why)
        override = self._seen.override if self._seen is not None else OFF
        outcome = Outcome.APPLIED if self._wrote else Outcome.UNCHANGED
        return self._result(outcome, f"the BMC shows {override}")

    def _result(self, outcome: Outcome, message: str, **more: Any) -> TaskResult:
        task = self._task
        pinned = with_certificate(self._pinned, self._bmc.reach.seen, place=task.bmc.place, at=self._clock())
        return TaskResult(
            server=task.server,
            uuid=task.uuid,
            outcome=outcome,
            message=message,
            before=self._before,
            observed=self._seen,
            wrote=tuple(self._wrote),
            switched=tuple(self._switched),
            identified=self._identified,
            pinned=task.pinned if task.dry_run else pinned,
            **more,
        )


def look(
    bmc: Driver,
    wanted: Wanted | None,
    records: Iterable[OverrideRecord],
    clock: Callable[[], datetime],
    *,
    with_clock: bool = False,
) -> Observed:
    """Read a BMC: in one request, and more for what else the next step depends on: slots, firmware, clock."""
    records = tuple(records)
    seen = bmc.observe()
    if bmc.media is not None and needs_slots(wanted, records):
        seen = bmc.media.with_slots(seen)
    if bmc.firmware is not None and needs_firmware_uri(wanted, seen):
        seen = bmc.firmware.with_uri(seen)
    if with_clock or needs_clock(records, seen, clock()):
        return bmc.with_clock(seen, clock)
    return seen


def would_send(step: object, seen: Observed) -> tuple[str, ...]:
    """Return the method and the request by which a step changes a BMC; by IPMI the command alone; () for no change."""
    match step:
        case Insert(slot=slot, url=url):
            return "POST" if slot.insert else "PATCH", f"{slot.insert or slot.path}: {json.dumps(insertion(slot, url))}"
        case Eject(slot=slot):
            body = json.dumps({} if slot.eject else EJECTION)
            return "POST" if slot.eject else "PATCH", f"{slot.eject or slot.path}: {body}"
        case Set(record=record):
            override = record.override
        case Withdraw():
            override = OFF
        case _:
            return ()
    if seen.bmc == IPMI:
        return (f"Set System Boot Options: {override.enabled} {override.target} {override.mode or ''}".rstrip(),)
    return "PATCH", f"{seen.settings}: {json.dumps({'Boot': boot_patch(override, seen)})}"
