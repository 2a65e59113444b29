"""Server plan: the values that determine a server's boot at a time."""

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
    """The state of an installation that has begun and whose completion is not proven."""

    INSTALLING = "Installing"
    SERVED = "Served"  # its boot was served, and its completion was not reported


class InstallProgress(NamedTuple):
    """The progress of an installation that has begun."""

    state: InstallState
    since: datetime  # the time of its first fetch
    step: InstallStep  # the last step: Attempted, Started or Failed
    at: datetime  # the time of the last step
    until: datetime | None = None  # the end of its display; None: until its completion is proven
    maintenance: str | None = None  # the maintenance of the install boot; None: the policy's boot

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
    """The reason for a server's phase. Boot files contain this text."""

    MAINTENANCE = "the maintenance is active"
    MAINTENANCE_DONE = "the one-time boot of the maintenance was used"
    MAINTENANCE_SERVED = "the one-time boot of the maintenance was served, and no start was reported"
    MAINTENANCE_STARTED = "the one-time boot of the maintenance was served, and the system has started"
    MAINTENANCE_OUTCOME = "the one-time boot of the maintenance may have been served, and its outcome is unknown"
    MAINTENANCE_DISK = "the maintenance boots the local disk"
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


# In these cases the server boots its disk, because its installer may still be running and may report.
WAITING_CAUSES: Final = frozenset({Cause.ATTEMPTED, Cause.CONSUMED, Cause.OUTCOME, Cause.STARTED})
UNKNOWN_OUTCOMES: Final = frozenset({Cause.OUTCOME, Cause.MAINTENANCE_OUTCOME})


class Offer(Struct, frozen=True, kw_only=True):
    """A published boot, and the evidence in a fetch of that boot."""

    plan: Digest  # or the token in the URLs of fetches and reports
    server: str
    uuid: SystemUuid
    decision: Digest
    phase: Phase
    key: str
    policy: str | None
    image: str
    provision: int  # the wanted number
    on_image_change: bool
    maintenance: str | None  # the active maintenance
    run: int | None
    once: bool = True  # whether it is a one-time boot
    base: str | None = None  # the provision key, if `key` names one of several boots; None: `key` is the provision key
    attempt: int = 1  # 0: the token does not contain the attempt
    boot: int = 1
    boots: int = 1  # number of boots in the attempt
    shows_start: bool = False  # whether the fetches of the system prove that it started
    start: datetime | None = None  # start of the maintenance's window
    end: datetime | None = None
    writes_disk: bool = True
    number: int = 0  # the number of the last publication, in the ledger's sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class BootOverride:
    """The boot override that a plan wants."""

    enabled: OverrideEnabled
    target: OverrideTarget
    http_boot_uri: str | None
    reason: str  # the key of the reason; gitboot sets an override at most once for each key
    # Whether gitboot sets the override again after each reset that consumed it.
    set_again: bool = field(default=False, metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootPlan:
    """A server's boot at a time, which follows from its decision and its record."""

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
    key: str | None  # the key of the one-time boot: a provision key, or the key of a maintenance's run
    boot: Boot | None  # the network boot of this phase; None: the local disk
    user_data: UserDataFiles | None  # the user data that the booted system may fetch
    override: BootOverride | None
    next_transition: datetime | None = field(metadata=OMITTED)
    # Number in the ledger's sequence. Fetches with lower numbers belong to earlier offers.
    offered: int = field(default=0, metadata=UNLESS_DEFAULT)
    # The token with which the booted system fetches its user data.
    data: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # The token with which the installer reports, if it differs from the token of the decision.
    token: Digest | None = field(default=None, metadata=UNLESS_DEFAULT)
    # The URL of the image that is, or may still be, in a virtual drive.
    medium: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # Whether a second medium contains the user data.
    reads_medium: bool = field(default=False, metadata=UNLESS_DEFAULT)
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # how boot loaders start the disk
    # computed on first use
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """A digest of all values on which the boot files and the override depend."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    @property
    def is_evidence(self) -> bool:
        """Whether a fetch of the boot is evidence: it is a one-time boot, or an install boot of a maintenance."""
        if self.boot is None:
            return False
        return self.key is not None or (self.phase is Phase.MAINTENANCE and self.boot.writes_disk)

    @property
    def offer(self) -> Digest | None:
        """The identity of the one-time boot, which does not change with the content of the boot, or None without a
        key.
        """
        if self.key is None:
            return None
        return Digest(compute_digest({"uuid": self.uuid, "key": self.key, "offered": self.offered}))

    @property
    def data_medium(self) -> Digest | None:
        """The identity of the medium with the user data: the token of the fetch, or the digest if there is no token."""
        if not self.reads_medium or self.user_data is None:
            return None
        return self.data if self.data is not None else self.user_data.digest

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk


class StopScope(StrEnum):
    """The boots that a stop order or a condition stops, in addition to those that the commit stops."""

    NONE = "none"
    WRITING = "boots that write disks"
    ALL = "all boots from the network"


class StopOrder(NamedTuple):
    """An order of an operator to stop install boots or all network boots, until an operator ends the order."""

    who: str
    reason: str
    everything: bool

    def __str__(self) -> str:
        return f"{StopScope.ALL if self.everything else StopScope.WRITING} are stopped by {self.who}: {self.reason}"


class SoleClaim(NamedTuple):
    """A file written by 2fefe59 that declares that only one host serves the one-time boots of some sites."""

    file: str
    sites: tuple[str, ...]  # sorted; () if the file cannot be read
    fetch_log: str  # the folder of that host's fetch log

    def __str__(self) -> str:
        whose = f"of {', '.join(self.sites)}" if self.sites else "of a site"
        return f"another host served the one-time boots {whose} alone (gitboot serve --sole-for, {self.file})"
