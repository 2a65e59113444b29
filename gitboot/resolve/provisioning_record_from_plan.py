"""gitboot.resolve.provisioning_record_from_plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from gitboot.jsonio import LEFT_OUT, Digest, format_instant, named
from gitboot.model.graces import FETCH_GRACE


class InstallStep(StrEnum):
    """How far the installation has come that is wanted of a server."""

    UNKNOWN = "Unknown"  # nothing is recorded of the server
    PENDING = "Pending"
    ATTEMPTED = "Attempted"  # its boot was given
    STARTED = "Started"  # its data was fetched
    FAILED = "Failed"  # its installer says so
    PROVISIONED = "Provisioned"


class Seen(NamedTuple):
    """What a step is known by."""

    at: datetime
    path: str  # that was fetched, below the output directory; "" where a BMC was read
    client: str  # by whom

    def __str__(self) -> str:
        what = f"{self.client} fetched {self.path}" if self.path else "its override was consumed"
        return f"{what} at {format_instant(self.at)}"


class Run(NamedTuple):
    """A maintenance's one boot that was made."""

    run: int
    at: datetime
    end: datetime | None = None  # of the window in which it was made; None: it had none, or nobody knows
    given: Seen | None = None  # what it is known by; None: it was said, or by a gitboot that did not note it
    started: Seen | None = None  # by what the system that was booted has asked for
    disk_boot: Seen | None = None  # the first boot of the disk that the machine fetched after it


class UnknownServe(NamedTuple):
    """A boot of which an endpoint has recorded that it is about to serve it, and not yet what became of that.

    It uses the boot up from `FETCH_GRACE` after the intent on, and is no evidence. A shared fetch log may take
    `withheld` before its intent: then this is kept, so that the intent counts for nothing when it comes. Of the intents
    that were withheld, a record keeps the newest: a tree that still shows an intent knows no more than that ledger.
    """

    intent: str  # the intent's id; "" if it was withheld, and both lines were read; "more" for all beyond a number
    key: str  # of the boot, as `boot_key` or a maintenance's run has it
    seen: Seen  # the request
    is_withheld: bool = False


class Failure(NamedTuple):
    """An installer's word that it has failed."""

    at: datetime
    client: str
    log: str  # its last lines

    def __str__(self) -> str:
        last = self.log.splitlines()[-1:]
        return " ".join([f"{self.client} said so at {format_instant(self.at)}", *(f'("{line}")' for line in last)])


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallAttempt:
    """One attempt at an installation."""

    key: str  # the provision key
    number: int = 1
    boots: tuple[Seen, ...]  # that were given: more than one where the installer boots several times
    started: Seen | None = None
    started_boot: int = 0  # whose system has asked for its data last, counted from 1
    failed: Failure | None = None
    disk_boot: Seen | None = None  # the first boot of the disk that the machine fetched after its completion

    @property
    def runs(self) -> bool:
        """Whether the system of the boot that was given last has asked for its data."""
        return self.started is not None and self.started_boot == len(self.boots)

    @property
    def boot_key(self) -> str:
        """The key of the boot that was given last."""
        return boot_key(self.key, self.number, len(self.boots))

    @property
    def step(self) -> InstallStep:
        if self.failed is not None:
            return InstallStep.FAILED
        return InstallStep.ATTEMPTED if self.started is None else InstallStep.STARTED

    @property
    def last_seen(self) -> Seen:
        """By what its step is known, or the last boot of an installer that boots several times."""
        return self.started if self.started is not None and self.runs else self.boots[-1]

    def is_given_again(self, at: datetime) -> bool:
        """Whether the last boot is given to whoever asks once more: a second NIC, a loader's retry, the next loader."""
        given = self.boots[-1].at
        if self.failed is not None or self.runs:
            return False
        return given <= at < given + FETCH_GRACE


def boot_key(key: str, attempt: int, boot: int) -> str:
    """What one boot of one attempt is offered, set and recorded for."""
    return key + (f"/attempt/{attempt}" if attempt > 1 else "") + (f"/boot/{boot}" if boot > 1 else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is known of one server's provisioning; where ``None`` stands for it, nothing is."""

    provision: int | None = None  # the number that was installed last; None: never provisioned
    image: str | None = None  # what it was provisioned with
    pool: str | None = None
    decision: Digest | None = field(default=None, metadata=named("decisionDigest"))
    evidence: str | None = None  # Fetched, Reported, Progress, Declared, Consumed, Adopted, Operator
    provisioned_at: datetime | None = None  # or when it was said to be pending
    grace_until: datetime | None = None  # until when the boot that was made is still served
    consumed_at: datetime | None = None  # an override was consumed, and no evidence has followed
    consumed_key: str | None = None  # the key that it was set for
    runs: Mapping[str, Run] = field(default_factory=dict)  # maintenance -> the last that was made
    # In the ledger's sequence: what was offered before either says nothing by being made.
    offered: int = 0  # the person's word by which boots were offered anew
    answered: int = 0  # the newest offer of which there is evidence
    taken_back: int = 0  # by which what another client had fetched was offered anew; what was before still counts
    attempts: tuple[InstallAttempt, ...] = ()  # at the key that was wanted last, in their order
    # The key for which its machine was seen off; told to nobody: whoever goes by an export waits for that again.
    released: str | None = field(default=None, metadata=LEFT_OUT)
    overwritten_by: str | None = None  # the maintenance that wrote its disks since; only a higher number installs it
    unknown_serves: tuple[UnknownServe, ...] = field(default=(), metadata=LEFT_OUT)  # `record_facts` has them

    def unknown_serve(self, key: str) -> UnknownServe | None:
        """Return the first intent to serve the boot of a key whose outcome is not known."""
        found = [each for each in self.unknown_serves if each.key == key and not each.is_withheld]
        return min(found, key=lambda each: each.seen.at, default=None)
