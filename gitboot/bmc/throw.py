"""One machine switched by its BMC, once its override stands: record, ask, look; a failure is an outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gitboot.bmc.identity import Identified
from gitboot.bmc.job import Job, Outcome
from gitboot.bmc.override_state import Observed, OperatorCondition, OverrideRecord
from gitboot.bmc.override_steps import uri_to_keep
from gitboot.bmc.power_steps import (
    AskForReset,
    DoubtSwitch,
    HoldSwitch,
    LeaveSwitch,
    NoteSwitch,
    SwitchRecord,
    SwitchState,
    come_back,
    marks_that_move,
    next_switch,
)
from gitboot.errors import BmcBusy, BmcRejected

if TYPE_CHECKING:
    from gitboot.bmc.driver import Driver

_MOST_STEPS: Final = 4  # what was asked for before is noted, what may be is read, it is asked for


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
    for _ in range(_MOST_STEPS):
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
