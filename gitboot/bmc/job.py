"""What a BMC is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gitboot.bmc.override import Observed, Override, OverrideRecord, Wanted
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars import SystemUuid


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
    answered: bool = True  # whether the BMC, and the way to it, are in order
    retry_after_s: int | None = None  # for how long a BMC that is busy asks to be left alone
