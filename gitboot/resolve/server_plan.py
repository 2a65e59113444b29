"""Server plan: everything that determines how a server boots at a given time."""

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
    """The state of an installation that has started and whose completion is not proven."""

    INSTALLING = "Installing"
    SERVED = "Served"  # the boot was served, but no completion was reported


_STEP_WORDS: Final = {
    InstallStep.ATTEMPTED: "boot served",
    InstallStep.STARTED: "installer started",
    InstallStep.FAILED: "installer failed",
}


class InstallProgress(NamedTuple):
    """The progress of an installation that has started."""

    state: InstallState
    since: datetime  # when the boot was first fetched
    step: InstallStep  # the last step: Attempted, Started or Failed
    at: datetime  # when the last step was reached
    until: datetime | None = None  # when it is no longer shown; None: when its completion is proven
    maintenance: str | None = None  # the maintenance that boots the installer; None: the policy does

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


class Phase(StrEnum):
    NETWORK = "Network"
    MAINTENANCE = "Maintenance"
    DISK = "Disk"


class Cause(StrEnum):
    """The reason why a server is in its phase. The text appears in boot files."""

    MAINTENANCE = "the maintenance is active"
    MAINTENANCE_DONE = "the one-time boot of the maintenance was used"
    MAINTENANCE_SERVED = "the one-time boot of the maintenance was served, and no start was reported"
    MAINTENANCE_STARTED = "the one-time boot of the maintenance was served, and the system has started"
    MAINTENANCE_OUTCOME = "the one-time boot of the maintenance may have been served, and its outcome is unknown"
    MAINTENANCE_DISK = "the maintenance boots the local disk"
    WAITING_FOR_APPROVAL = "the maintenance waits for an approval"
    WAITING_FOR_DRAIN = "the maintenance waits until the server is drained"
    ALWAYS = "the policy always boots from the network"
    PENDING = "the server is to be provisioned"
    PROVISIONED = "the server is provisioned"
    LATER_INSTALL_UNFINISHED = "the server is provisioned, and a later installation has started without a reported end"
    WAITING_FOR_POWER_OFF = "the server is to be provisioned when its BMC shows that it is off"
    UNKNOWN = "gitboot does not know if the server is provisioned, and does not install unknown servers"
    OVERWRITTEN = (
        "a maintenance wrote the disks after the server was provisioned, and gitboot does not install unknown servers"
    )
    STOPPED = "boots that write a disk are stopped"
    FILE_MISSING = "a file of the boot is missing"
    WITHHELD = "a newer commit, which is not accepted yet, does not offer this install boot"
    ALL_STOPPED = "all boots from the network are stopped"
    INSTANCE_SILENT = "the maintenance has no end, and the instance has not written its status for an hour"
    SUBSTITUTE = "this boot replaces a boot that writes a disk"
    POLICIES_ALONE = "a copy boots a maintenance only if the endpoint answers that the maintenance has not ended"
    CONSUMED = "the boot override was consumed without evidence of a boot, so check the machine"
    OUTCOME = "the boot may have been served, and its outcome is unknown, so check the machine"
    ATTEMPTED = "the boot was served, no start was reported, and gitboot does not serve the boot again by itself"
    STARTED = "the installation has started, and no end was reported"
    FAILED = "the installation has failed"
    NEVER = "the policy never boots from the network"
    DISK = "the policy boots the local disk"


# For these causes, the server boots its disk because its installer may still be running.
WAITING_CAUSES: Final = frozenset({Cause.ATTEMPTED, Cause.CONSUMED, Cause.OUTCOME, Cause.STARTED})
UNKNOWN_OUTCOMES: Final = frozenset({Cause.OUTCOME, Cause.MAINTENANCE_OUTCOME})


class Offer(Struct, frozen=True, kw_only=True):
    """A published boot, and what a fetch of the boot proves."""

    plan: Digest  # the digest of the plan, or the token in the URLs of fetches and reports
    server: str
    uuid: SystemUuid
    decision: Digest
    phase: Phase
    key: str
    policy: str | None
    image: str
    provision: int  # the provision number that the document wants
    on_image_change: bool
    maintenance: str | None  # the maintenance that is active
    run: int | None
    once: bool = True  # whether it is a one-time boot
    base: str | None = None  # the provision key if it differs from `key`, which also contains the attempt and boot
    attempt: int = 1  # 0: the token does not identify the attempt
    boot: int = 1
    boots: int = 1  # how many boots the attempt needs
    shows_start: bool = False  # whether fetches by the booted system prove its start
    start: datetime | None = None  # the start of the maintenance window
    end: datetime | None = None
    writes_disk: bool = True
    number: int = 0  # when the offer was last published, in the ledger's sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class BootOverride:
    """The BMC boot override that a plan requires."""

    enabled: OverrideEnabled
    target: OverrideTarget
    http_boot_uri: str | None
    reason: str  # a key; gitboot sets at most one override for each key
    # Whether gitboot sets the override again each time that a reset has consumed it.
    set_again: bool = field(default=False, metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootPlan:
    """How a server boots at a given time, derived from its decision and record."""

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
    key: str | None  # identifies the one-time boot: the key of a boot of an installation, or of a maintenance run
    boot: Boot | None  # the network boot; None: the server boots its local disk
    user_data: UserDataFiles | None  # what the booted system may fetch
    override: BootOverride | None
    next_transition: datetime | None = field(metadata=OMITTED)
    # A number from the ledger's sequence. Fetches with lower numbers belong to earlier offers.
    offered: int = field(default=0, metadata=UNLESS_DEFAULT)
    # The token with which the booted system fetches its user data.
    data: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # The token with which the installer reports, if it differs from the token of the decision.
    token: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # The URL of the image that is in a virtual drive, or may still be.
    medium: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # Whether a second medium contains the user data.
    reads_medium: bool = field(default=False, metadata=UNLESS_DEFAULT)
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # how boot loaders start the disk
    # The active maintenance that the server does not get yet, because the maintenance waits for an approval or a drain.
    waiting_maintenance: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # Whether only the other boot loaders get the boot, because a signature that iPXE needs is missing.
    is_withheld_from_ipxe: bool = field(default=False, metadata=UNLESS_DEFAULT)
    # Computed on first use.
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """The digest of all values that affect the boot files and the override."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    @property
    def is_fetch_evidence(self) -> bool:
        """Return whether a fetch of the boot is evidence.

        This is true for one-time boots and for install boots of maintenances.
        """
        return self.boot is not None and (
            self.key is not None or (self.phase is Phase.MAINTENANCE and self.boot.writes_disk)
        )

    @property
    def offer(self) -> Digest | None:
        """The identity of the one-time boot, or None if the plan has no key.

        The identity does not depend on the boot's content.
        """
        if self.key is None:
            return None
        return Digest(compute_digest({"uuid": self.uuid, "key": self.key, "offered": self.offered}))

    @property
    def data_medium(self) -> Digest | None:
        """The identity of the medium with the user data: the token, or the digest of the user data if there is no
        token.
        """
        if not self.reads_medium or self.user_data is None:
            return None
        return self.data if self.data is not None else self.user_data.digest

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk
