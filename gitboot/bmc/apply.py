"""One BMC brought to its wanted override: record, set, confirm; a failure is an outcome, never an exception."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gitboot.bmc.driver import IPMI
from gitboot.bmc.identity import Identified, Pinned, identify, known_at, pin, with_certificate
from gitboot.bmc.job import Job, Outcome, Result
from gitboot.bmc.override import (
    OFF,
    AskOperator,
    Confirm,
    Enabled,
    Leave,
    Observed,
    OperatorCondition,
    Override,
    OverrideRecord,
    Set,
    Wait,
    Withdraw,
    needs_clock,
    next_step,
    refused,
)
from gitboot.bmc.quirks import boot_patch
from gitboot.errors import BmcBusy, BmcNotTrusted, BmcRejected, BmcUnreachable, LedgerError

if TYPE_CHECKING:
    from gitboot.bmc.driver import Driver

_MOST_STEPS: Final = 8  # withdraw, confirm, set, confirm, and as much again for a BMC that changes under us


def bring_about(
    bmc: Driver, job: Job, write: Callable[[OverrideRecord], None], clock: Callable[[], datetime]
) -> Result:
    """Record, set, confirm, until nothing is left to do now.

    ``write`` returns when its record is durable; it is called before the BMC is changed.
    """
    records = {record.reason: record for record in job.records}
    wrote: list[OverrideRecord] = []
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
    ) -> Result:
        return Result(
            server=job.server,
            uuid=job.uuid,
            outcome=outcome,
            message=message,
            before=before,
            observed=seen,
            wrote=tuple(wrote),
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

    try:
        for _ in range(_MOST_STEPS):
            if seen is None or not was_confirmed or needs_clock(records.values(), seen, clock()):
                seen = look(bmc, records.values(), clock, with_clock=job.with_clock)
                was_confirmed = False
            before = before or seen.override
            identified = identify(job.described, seen.shown, pinned=pinned, shared=job.shared)
            pinned = pin(seen.shown, identified, pinned=pinned, place=job.bmc.place, at=clock())
            step = next_step(
                wanted=job.wanted, observed=seen, records=records.values(), at=clock(), identified=identified
            )
            if was_confirmed and isinstance(step, Set | Withdraw):  # what is written rests on a reading of its own
                was_confirmed = False
                continue
            if job.only_read and isinstance(step, Set | Withdraw):
                return done(Outcome.UNCHANGED, "only read, to judge a fetch")
            if job.dry_run and (patch := would_send(step, seen)) is not None:
                return done(Outcome.UNCHANGED, f"would {'' if seen.bmc == IPMI else 'PATCH '}{patch}")
            match step:
                case Leave():
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
                    if record.override.enabled is Enabled.ONCE:
                        seen = bmc.with_clock(seen, clock)
                    record = replace(record, marks=seen.marks)
                    keep(record)
                    try:
                        bmc.set_override(record.override, seen)
                    except (BmcRejected, BmcBusy) as error:
                        # A refusal alone proves nothing: what it left behind is read.
                        seen = bmc.observe()
                        keep(refused(record, seen).record)
                        if isinstance(error, BmcBusy):
                            raise
                        return done(Outcome.STALLED, str(error))
                case Withdraw(record=record):
                    keep(record)
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
    bmc: Driver, records: Iterable[OverrideRecord], clock: Callable[[], datetime], *, with_clock: bool = False
) -> Observed:
    """Read a BMC: in one request, and one more for its clock where what has become of an override depends on it."""
    seen = bmc.observe()
    if with_clock or needs_clock(records, seen, clock()):
        return bmc.with_clock(seen, clock)
    return seen


def would_send(step: object, seen: Observed) -> str | None:
    """The PATCH of a step that has one: its path and its body; by IPMI the command."""
    match step:
        case Set(record=record):
            override = record.override
        case Withdraw():
            override = OFF
        case _:
            return None
    if seen.bmc == IPMI:
        return f"Set System Boot Options: {override.enabled} {override.target} {override.mode or ''}".rstrip()
    return f"{seen.settings}: {json.dumps({'Boot': boot_patch(override, seen)})}"
