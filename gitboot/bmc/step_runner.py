"""Step runner: carry out the override and power steps of one BMC task."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from gitboot.bmc.identity import Described, Identified, Pinned, identify, known_at, pin, with_certificate
from gitboot.bmc.override_state import (
    EJECTION,
    AskOperator,
    Confirm,
    Eject,
    Insert,
    Leave,
    MediaSlot,
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
    overtaken,
    refused,
    uri_to_keep,
)
from gitboot.bmc.power_steps import (
    AskForReset,
    DoubtSwitch,
    HoldSwitch,
    LeaveSwitch,
    NoteSwitch,
    ResetType,
    Switching,
    SwitchRecord,
    SwitchState,
    come_back,
    marks_that_move,
    next_switch,
)
from gitboot.bmc.redfish.quirks import boot_patch
from gitboot.errors import BmcBusy, BmcChanged, BmcNotTrusted, BmcRejected, BmcUnreachable, LedgerError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled

if TYPE_CHECKING:
    from gitboot.bmc.redfish.transport import Login, Reach


_MOST_STEPS: Final = 16  # withdraw, eject, insert, set, each confirmed, and some more for a BMC that changes under us


def bring_about(
    bmc: Driver, job: Job, write: Callable[[OverrideRecord | SwitchRecord], None], clock: Callable[[], datetime]
) -> Result:
    """Record, set, confirm, until nothing is left to do now but what is wanted of the machine's power.

    ``write`` returns when its record is durable; it is called before the BMC is changed.
    """
    records = {record.reason: record for record in job.records}
    wrote: list[OverrideRecord] = []
    switched: list[SwitchRecord] = []
    before: Override | None = None
    seen: Observed | None = None
    identified: Identified | None = None
    pinned = known_at(job.pinned, job.bmc.place)
    was_confirmed = False  # what was seen says no less than another reading would

    def done(
        outcome: Outcome,
        message: str,
        *,
        asked: bool = True,
        answered: bool = True,
        asks: OperatorCondition | None = None,
        retry_after_s: int | None = None,
        kept_uri: str | None = None,
    ) -> Result:
        return Result(
            server=job.server,
            uuid=job.uuid,
            outcome=outcome,
            message=message,
            kept_uri=kept_uri,
            before=before,
            observed=seen,
            wrote=tuple(wrote),
            switched=tuple(switched),
            asked=asked,
            answered=answered,
            identified=identified,
            pinned=job.pinned if job.dry_run else certified(),
            asks=asks,
            retry_after_s=retry_after_s,
        )

    def certified() -> Pinned | None:
        return with_certificate(pinned, bmc.reach.seen, place=job.bmc.place, at=clock())

    def keep(record: OverrideRecord) -> None:
        record = replace(record, bmc=job.bmc)
        if not job.dry_run:
            write(record)
        records[record.reason] = record
        wrote.append(record)

    def keep_switch(record: SwitchRecord) -> None:
        write(record)
        switched.append(record)

    try:
        for _ in range(_MOST_STEPS):
            if seen is None or not was_confirmed or needs_clock(records.values(), seen, clock()):
                seen = look(bmc, job.wanted, records.values(), clock, with_clock=job.with_clock)
                was_confirmed = False
            before = before or seen.override
            identified = identify(job.described, seen.shown, pinned=pinned, shared=job.shared)
            pinned = pin(seen.shown, identified, pinned=pinned, place=job.bmc.place, at=clock())
            step = next_step(
                wanted=job.wanted,
                observed=seen,
                records=records.values(),
                at=clock(),
                identified=identified,
                keeps=job.keeps,
            )
            if was_confirmed and isinstance(step, Change):  # what is written rests on a reading of its own
                was_confirmed = False
                continue
            if job.only_read and isinstance(step, Change):
                return done(Outcome.UNCHANGED, "only read, to judge a fetch")
            if job.dry_run and (what := would_send(step, seen)) is not None:
                return done(Outcome.UNCHANGED, " ".join(("would", *method_of(step, seen), what)))
            match step:
                case Leave():
                    thrown = throw(bmc, job, seen, records.values(), identified, keep_switch, clock)
                    if thrown is not None and not (wrote and thrown.outcome is Outcome.UNCHANGED):
                        return done(thrown.outcome, thrown.message, asks=thrown.asks, kept_uri=thrown.kept_uri)
                    shown = f"{seen.override.enabled} {seen.override.target}"
                    return done(Outcome.APPLIED if wrote else Outcome.UNCHANGED, f"the BMC shows {shown}")
                case Wait(why=why):
                    return done(Outcome.WAITING, why)
                case AskOperator(condition=condition, message=message):
                    return done(Outcome.STALLED, f"{condition}: {message}", asks=condition)
                case Confirm(record=record):
                    keep(record)
                    was_confirmed = True
                case Set(record=record):
                    if record.override.enabled is OverrideEnabled.ONCE:
                        seen = bmc.with_clock(seen, clock)
                    record = replace(record, marks=seen.marks)
                    known = tuple(records.values())
                    keep(record)
                    try:
                        bmc.set_override(record.override, seen)
                    except (BmcRejected, BmcBusy) as error:
                        # A refusal alone proves nothing: what it left behind is read.
                        seen = bmc.observe()
                        came_to = refused(record, seen)
                        if isinstance(error, BmcChanged) and job.wanted is not None:
                            came_to = overtaken(record, seen, job.wanted, known)
                        keep(came_to.record)
                        if isinstance(error, BmcBusy):
                            raise
                        return done(Outcome.STALLED, str(error))
                case Insert(record=record, slot=slot, url=url) if bmc.media is not None:
                    keep(record)
                    bmc.media.insert(slot, url)
                case Eject(record=record, slot=slot) if bmc.media is not None:
                    keep(record)
                    with bmc.reach.ending():
                        bmc.media.eject(slot)
                case Withdraw(record=record):
                    keep(record)
                    with bmc.reach.ending():
                        bmc.set_override(OFF, seen)
    except BmcBusy as error:
        return done(Outcome.WAITING, str(error), retry_after_s=error.retry_after_s)
    except LedgerError as error:  # what cannot be written down is not done
        return done(Outcome.WAITING, str(error))
    except BmcUnreachable as error:
        return done(Outcome.WAITING, str(error), answered=False)
    except BmcRejected as error:
        return done(Outcome.STALLED, str(error), answered=seen is not None)
    except BmcNotTrusted as error:
        return done(Outcome.STALLED, str(error), asked=False, answered=False)
    return done(Outcome.WAITING, f"not settled after {_MOST_STEPS} steps")


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


def would_send(step: object, seen: Observed) -> str | None:
    """What a step sends, if it sends anything: a path and a body; by IPMI the command."""
    match step:
        case Insert(slot=slot, url=url):
            return f"{slot.insert or slot.path}: {json.dumps(insertion(slot, url))}"
        case Eject(slot=slot):
            return f"{slot.eject or slot.path}: {json.dumps({} if slot.eject else EJECTION)}"
        case Set(record=record):
            override = record.override
        case Withdraw():
            override = OFF
        case _:
            return None
    if seen.bmc == IPMI:
        return f"Set System Boot Options: {override.enabled} {override.target} {override.mode or ''}".rstrip()
    return f"{seen.settings}: {json.dumps({'Boot': boot_patch(override, seen)})}"


def method_of(step: object, seen: Observed) -> tuple[str, ...]:
    """By which method a step sends it; IPMI has none."""
    match step:
        case Insert(slot=slot):
            return ("POST" if slot.insert else "PATCH",)
        case Eject(slot=slot):
            return ("POST" if slot.eject else "PATCH",)
    return () if seen.bmc == IPMI else ("PATCH",)


_THROW_MOST_STEPS: Final = 4  # what was asked for before is noted, what may be is read, it is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Thrown:
    """What came of it, where there is anything to say."""

    outcome: Outcome
    message: str
    asks: OperatorCondition | None = None
    kept_uri: str | None = None  # what firmware was told to boot by HTTP, from that reset on


def throw(
    bmc: Driver,
    job: Job,
    seen: Observed,
    overrides: Collection[OverrideRecord],
    identified: Identified,
    write: Callable[[SwitchRecord], None],
    clock: Callable[[], datetime],
) -> Thrown | None:
    """Take the next step for a machine's power; None: nothing was to be done.

    ``write`` returns when its record is durable; it is called before the BMC is asked. Raises what the BMC's
    driver does, and `LedgerError`: what was written down by then says what may have happened.
    """
    wanted = job.switching
    if wanted is None:
        return None
    record = _recorded(job, wanted.reason)
    if record is None or record.state in (SwitchState.RECORDED, SwitchState.ASKED):
        seen = bmc.with_clock(seen, clock)
    moving = marks_that_move(seen, overrides, job.switches)
    if not (job.dry_run or job.only_read):
        for each in come_back((each for each in job.switches if each.reason != wanted.reason), seen):
            write(each)
    done: Thrown | None = None
    for _ in range(_THROW_MOST_STEPS):
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
            case LeaveSwitch(why=why):
                return done or (Thrown(outcome=Outcome.UNCHANGED, message=why) if why else None)
            case HoldSwitch(why=why):
                return done or Thrown(outcome=Outcome.UNCHANGED, message=f"{wanted.manner} waits: {why}")
            case DoubtSwitch(condition=condition, message=message):
                return Thrown(outcome=Outcome.STALLED, message=f"{condition}: {message}", asks=condition)
            case NoteSwitch(record=noted):
                if job.dry_run or job.only_read:
                    return done
                write(noted)
                record = noted
                done = Thrown(
                    outcome=Outcome.APPLIED, message=f"{noted.type} for {noted.reason} is {noted.state.lower()}"
                )
            case AskForReset(record=asked):
                if not seen.reset_types and (shown := bmc.with_reset_types(seen)).reset_types:
                    seen = shown  # decided anew, by what the BMC allows
                    continue
                if job.only_read:
                    return done
                if job.dry_run:
                    return Thrown(outcome=Outcome.UNCHANGED, message=f"would ask for {asked.type}")
                write(asked)
                kept, uri = _keep_uri(bmc, job, seen)
                bmc.reset(asked.type, seen)
                write(replace(asked, state=SwitchState.ASKED))
                message = f"{asked.type} was asked for, for {asked.reason}{kept}"
                return Thrown(outcome=Outcome.APPLIED, message=message, kept_uri=uri)
    return done


def _keep_uri(bmc: Driver, job: Job, seen: Observed) -> tuple[str, str | None]:
    """Have firmware keep the loader's URI, where the BMC takes none: the reset that follows is what it needs.

    Where that is refused, DHCP names the loader, as it did before. Return of what to say of it, and of the URI.
    """
    uri = uri_to_keep(job.wanted, seen)
    if uri is None or bmc.firmware is None:
        return "", None
    try:
        kept = bmc.firmware.keep_uri(uri, seen)
    except (BmcRejected, BmcBusy) as error:
        return f"; DHCP names the loader, as firmware was to keep {uri}, and {error}", None
    return (f"; firmware keeps {uri} from then on", uri) if kept else ("", None)


def _recorded(job: Job, reason: str) -> SwitchRecord | None:
    return next((each for each in job.switches if each.reason == reason), None)


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


IPMI: Final = "IPMI"  # what `Observed.bmc` says of a BMC that is asked by IPMI


class MediaDriver(Protocol):
    """The part of a driver that sees to virtual media."""

    def with_slots(self, seen: Observed) -> Observed: ...

    def insert(self, slot: MediaSlot, url: str) -> None: ...

    def eject(self, slot: MediaSlot) -> None: ...


class FirmwareDriver(Protocol):
    """The part of a driver that sees to firmware's own settings."""

    def with_secure_boot(self, seen: Observed) -> Observed: ...

    def with_uri(self, seen: Observed) -> Observed: ...

    def keep_uri(self, uri: str, seen: Observed) -> bool: ...


class Driver(Protocol):
    """A connection to one BMC: `BmcConnection` by Redfish, `IpmiConnection` by IPMI.

    Every method raises `BmcUnreachable`, `BmcBusy` or `BmcRejected`, which say what was asked of whom.
    """

    reach: Reach

    @property
    def login(self) -> Login | None:
        """Who asks; None where each request has a session of its own."""

    @property
    def media(self) -> MediaDriver | None:
        """Who sees to virtual media; None: the protocol has none."""

    @property
    def firmware(self) -> FirmwareDriver | None:
        """Who reads firmware's settings; None: the protocol shows none."""

    def observe(self) -> Observed: ...

    def with_clock(self, seen: Observed, clock: Callable[[], datetime]) -> Observed: ...

    def set_override(self, wanted: Override, seen: Observed) -> None: ...

    def with_reset_types(self, seen: Observed) -> Observed: ...

    def reset(self, type: ResetType, seen: Observed) -> None: ...

    def close(self, *, log_out: bool = True) -> None: ...
