"""Server plan: the values that describe a server's boot at a time."""

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
    """The state of an installation that has begun and has no evidence of its completion."""

    INSTALLING = "Installing"
    SERVED = "Served"  # its boot was served, and no completion is reported


class InstallProgress(NamedTuple):
    """The progress of an installation that has begun."""

    state: InstallState
    since: datetime  # of its first fetch
    step: InstallStep  # the last one: Attempted, Started or Failed
    at: datetime  # of the last step
    until: datetime | None = None  # shown until then; None: until there is evidence of its completion
    maintenance: str | None = None  # the maintenance of the install boot; None: the policy

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
    InstallStep.ATTEMPTED: "boot served",
    InstallStep.STARTED: "installer started",
    InstallStep.FAILED: "installer failed",
}
# With this evidence, a server counts as provisioned when its installation begins. Other evidence proves the completion.
START_EVIDENCE: Final = ("Fetched", "Consumed")


class Phase(StrEnum):
    NETWORK = "Network"
    MAINTENANCE = "Maintenance"
    DISK = "Disk"


class Cause(StrEnum):
    """The reason for a server's phase. The boot files contain this text."""

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


# The server boots its disk and waits, because its installer may still be running and may report.
WAITING_CAUSES: Final = frozenset({Cause.ATTEMPTED, Cause.CONSUMED, Cause.OUTCOME, Cause.STARTED})
UNKNOWN_OUTCOMES: Final = frozenset({Cause.OUTCOME, Cause.MAINTENANCE_OUTCOME})


class Offer(Struct, frozen=True, kw_only=True):
    """A published boot, and what its fetch proves."""

    plan: Digest  # or the token that fetches and reports contain
    server: str
    uuid: SystemUuid
    decision: Digest
    phase: Phase
    key: str
    policy: str | None
    image: str
    provision: int  # the number wanted
    on_image_change: bool
    maintenance: str | None  # in its phase
    run: int | None
    once: bool = True  # whether it is a one-time boot
    base: str | None = None  # the provision key, if `key` names one boot of several; None: `key` is the provision key
    attempt: int = 1  # 0: the token does not name the attempt
    boot: int = 1
    boots: int = 1  # of the attempt
    shows_start: bool = False  # whether the system's fetches prove that it started
    start: datetime | None = None  # of the maintenance's window
    end: datetime | None = None
    writes_disk: bool = True
    number: int = 0  # of its last publication, in the ledger's sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class BootOverride:
    """The boot override that a plan wants."""

    enabled: OverrideEnabled
    target: OverrideTarget
    http_boot_uri: str | None
    reason: str  # the key; gitboot sets an override at most once for each key
    # whether gitboot sets it again after each reset that consumed it
    set_again: bool = field(default=False, metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootPlan:
    """What a server boots at a time, by its decision and its record."""

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
    key: str | None  # of the one-time boot: a provision key, or the key of a maintenance's run
    boot: Boot | None  # the boot from the network in this phase; None: the local disk
    user_data: UserDataFiles | None  # the user data that the booted system may fetch
    override: BootOverride | None
    next_transition: datetime | None = field(metadata=OMITTED)
    # in the ledger's sequence; earlier fetches belong to earlier offers
    offered: int = field(default=0, metadata=UNLESS_DEFAULT)
    # the token with which the booted system fetches its user data
    data: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # the token with which its installer reports, if it is not the token of the decision
    token: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # the URL of the image that is, or may still be, in a virtual drive
    medium: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # whether a second medium has the user data
    reads_medium: bool = field(default=False, metadata=UNLESS_DEFAULT)
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # how boot loaders start its disk
    # computed on first use
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """A digest of everything that the boot files and the override depend on."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    @property
    def is_evidence(self) -> bool:
        """Whether a fetch of its boot is evidence: a one-time boot, or an install boot of a maintenance."""
        if self.boot is None:
            return False
        return self.key is not None or (self.phase is Phase.MAINTENANCE and self.boot.writes_disk)

    @property
    def offer(self) -> Digest | None:
        """The identity of its one-time boot, which does not change with the content of the boot. None: no key."""
        if self.key is None:
            return None
        return Digest(compute_digest({"uuid": self.uuid, "key": self.key, "offered": self.offered}))

    @property
    def data_medium(self) -> Digest | None:
        """The identity of the medium with the user data: the token of the fetch, or else the digest."""
        if not self.reads_medium or self.user_data is None:
            return None
        return self.data if self.data is not None else self.user_data.digest

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk
