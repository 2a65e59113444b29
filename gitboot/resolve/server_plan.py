"""Server plan: what a server boots at a time; values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.jsonio import OMITTED, UNLESS_DEFAULT, Digest, compute_digest, format_instant, json_key, to_json_value
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.model.server import Architecture, Firmware
from gitboot.resolve.provisioning_record import InstallStep
from gitboot.resolve.server_decision import Boot, OverrideEnabled, OverrideTarget, UserDataFiles


class InstallState(StrEnum):
    """How an installation that has begun is shown until there is evidence of its completion."""

    INSTALLING = "Installing"
    SERVED = "Served"  # its boot was served, and nothing reports its completion


class InstallProgress(NamedTuple):
    """How far an installation that has begun has come."""

    state: InstallState
    since: datetime  # of its first fetch
    step: InstallStep  # the last one: Attempted, Started or Failed
    at: datetime  # of the last step
    until: datetime | None = None  # when it is no longer shown; None: once there is evidence of its completion
    maintenance: str | None = None  # whose boot writes the disk; None: a policy's

    def __str__(self) -> str:
        last = f"last step: {_STEP_WORDS[self.step]} at {format_instant(self.at)}"
        if self.state is InstallState.SERVED:
            return f"Served; completion is not reported; installing since {format_instant(self.since)}; {last}"
        return f"Installing since {format_instant(self.since)}; {last}"

    def facts(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "since": format_instant(self.since),
            "step": self.step,
            "at": format_instant(self.at),
            "maintenance": self.maintenance,
            "message": str(self),
        }


_STEP_WORDS: Final = {
    InstallStep.ATTEMPTED: "boot fetched",
    InstallStep.STARTED: "installer started",
    InstallStep.FAILED: "installer failed",
}
# A server counts as provisioned by these before its installer has asked for its data; others prove its completion.
START_EVIDENCE: Final = ("Fetched", "Consumed")


class Phase(StrEnum):
    NETWORK = "Network"
    MAINTENANCE = "Maintenance"
    DISK = "Disk"


class Cause(StrEnum):
    """Why a server is in its phase, as its boot files say it."""

    MAINTENANCE = "the maintenance is active"
    MAINTENANCE_DONE = "the maintenance's one boot was made"
    MAINTENANCE_SERVED = "the maintenance's one boot was given; nothing has shown that it started"
    MAINTENANCE_STARTED = "the maintenance's one boot was made, and has started"
    MAINTENANCE_OUTCOME = "the maintenance's one boot was perhaps served; its outcome is unknown"
    MAINTENANCE_DISK = "the maintenance boots the local disk"
    ALWAYS = "the policy always boots from the network"
    PENDING = "the server is to be provisioned"
    PROVISIONED = "the server is provisioned"
    LATER_INSTALL_UNFINISHED = (
        "the server was provisioned, and another installation has begun since that nothing has shown the end of"
    )
    WAITING_FOR_POWER_OFF = "the server is to be provisioned once its BMC shows that it is off"
    UNKNOWN = "it is not known whether the server is provisioned, and unknown never installs"
    OVERWRITTEN = "a maintenance wrote the disks since the server was provisioned, and unknown never installs"
    STOPPED = "boots that write disks are stopped"
    FILE_MISSING = "a file that it would boot by is not there"
    WITHHELD = "a newer commit that is not accepted yet does not offer this install boot"
    ALL_STOPPED = "all boots from the network are stopped"
    INSTANCE_SILENT = "its maintenance has no end, and nothing was heard of the instance for an hour"
    SUBSTITUTE = "in place of a boot that writes a disk"
    POLICIES_ALONE = "a copy applies a maintenance only if the endpoint answers that it has not ended"
    CONSUMED = "a boot override was consumed without evidence of a boot; an operator has to look"
    OUTCOME = "its boot was perhaps served, and its outcome is unknown; an operator has to look"
    ATTEMPTED = "its boot was given, and is given no more by itself; nothing has shown that it started"
    STARTED = "its installation has started, and nothing has shown its end"
    FAILED = "its installation has failed"
    NEVER = "the policy never boots from the network"
    DISK = "the policy boots the local disk"


# What a server waits for that boots its disk meanwhile: its installer may be at work, and be heard.
WAITING_CAUSES: Final = frozenset({Cause.ATTEMPTED, Cause.CONSUMED, Cause.OUTCOME, Cause.STARTED})
UNKNOWN_OUTCOMES: Final = frozenset({Cause.OUTCOME, Cause.MAINTENANCE_OUTCOME})


class Offer(Struct, frozen=True, kw_only=True):
    """A boot that was published: what its being made would meet."""

    plan: Digest  # or the token by which what is fetched, or reported, names it
    server: str
    uuid: SystemUuid
    decision: Digest
    phase: Phase
    key: str
    policy: str | None
    image: str
    provision: int  # the number wanted
    on_image_change: bool
    maintenance: str | None  # whose run it is, in its phase
    run: int | None
    once: bool = True  # whether that is made once
    base: str | None = None  # the provision key, where `key` is of one boot of several; None: it is that
    attempt: int = 1  # 0: whichever was made; what names it does not say
    boot: int = 1
    boots: int = 1  # of how many
    shows_start: bool = False  # whether what it boots asks for what only it would ask for
    start: datetime | None = None  # of the maintenance's window
    end: datetime | None = None
    writes_disk: bool = True
    number: int = 0  # in the ledger's sequence, when it was published last


@dataclass(frozen=True, kw_only=True, slots=True)
class BootOverride:
    """The boot override that a plan wants at the BMC."""

    enabled: OverrideEnabled
    target: OverrideTarget
    http_boot_uri: str | None
    reason: str  # what is set at most once
    # whether each reset that consumed it asks for another
    set_again: bool = field(default=False, metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootPlan:
    """What one server boots at one instant, given what is known of it."""

    server: str
    uuid: SystemUuid
    macs: tuple[MacAddress, ...]
    architecture: Architecture
    firmware: Firmware
    base_url: str = field(metadata=json_key("baseURL"))
    restrict: bool
    phase: Phase
    cause: Cause
    policy: str | None
    maintenance: str | None
    key: str | None  # what counts as done once this boot is made: a provision key, a maintenance's run
    boot: Boot | None  # what boots from the network in this phase; None: the local disk
    user_data: UserDataFiles | None  # what a system that was booted by it may ask for
    override: BootOverride | None
    next_transition: datetime | None = field(metadata=OMITTED)
    # in the ledger's sequence: what was given before that was given of another offer
    offered: int = field(default=0, metadata=UNLESS_DEFAULT)
    # the token by which the system that is booted, or was, asks for its user data
    data: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # by which its installer reports, where that is not the decision's
    token: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # the URL of the image that lies, or may still lie, in a virtual drive
    medium: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # whether one with the user data does as well
    reads_medium: bool = field(default=False, metadata=UNLESS_DEFAULT)
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # how loaders hand over to its disk
    # once it was asked for
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """Of all that its files and override depend on."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    @property
    def is_evidence(self) -> bool:
        """Whether it is to be known that it was made: it is made once, or leaves disks unknown."""
        if self.boot is None:
            return False
        return self.key is not None or (self.phase is Phase.MAINTENANCE and self.boot.writes_disk)

    @property
    def offer(self) -> Digest | None:
        """What is given once by it, the same whatever a commit changes of how it boots; None: no key asks for it."""
        if self.key is None:
            return None
        return Digest(compute_digest({"uuid": self.uuid, "key": self.key, "offered": self.offered}))

    @property
    def data_medium(self) -> Digest | None:
        """What names the medium with the user data: the token by which that is asked for, or else its digest."""
        if not self.reads_medium or self.user_data is None:
            return None
        return self.data if self.data is not None else self.user_data.digest

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk
