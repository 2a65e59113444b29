"""Types for boot overrides: wanted, observed and recorded overrides, virtual media, and signs of a reset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.bmc.identity import NO_IDENTITY, ReportedIdentity
from gitboot.fleet.identities import BmcAccess
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

IPMI: Final = "IPMI"  # the value of `BmcObservation.quirks_name` for a BMC with IPMI
_DISC_TYPES = frozenset({"CD", "DVD"})  # the MediaTypes of Redfish VirtualMedia that accept an ISO image


class MediaShare(Struct, frozen=True, kw_only=True):
    """A file share with copies of images, for BMCs that cannot fetch an image from its URL."""

    prefix: str  # the prefix of the URLs of the images
    place: str  # the text that replaces the prefix, in the form that the BMC expects
    protocol: str  # the TransferProtocolType, such as NFS or CIFS

    def find_image_copy(self, url: str) -> str | None:
        """Return the path of an image's copy on the share, or None if the share has no copy."""
        return f"{self.place}{url.removeprefix(self.prefix)}" if url.startswith(self.prefix) else None

    def find_original_url(self, image: str) -> str | None:
        """Return the original URL of an image that a BMC shows, or None if the image is not on this share."""
        return f"{self.prefix}{image.removeprefix(self.place)}" if image.startswith(self.place) else None


class MediaSlot(Struct, frozen=True, kw_only=True):
    """A VirtualMedia resource of a BMC."""

    path: str
    image: str | None = None  # the URL of the inserted medium, as the BMC shows it
    inserted: bool = False  # whether the BMC shows an inserted medium
    types: frozenset[str] = frozenset()  # the MediaTypes; empty: the BMC does not report them
    # The URI of the action InsertMedia; None: gitboot inserts a medium with a PATCH of the resource.
    insert_target: str | None = None
    eject_target: str | None = None
    protocols: frozenset[str] = frozenset()  # the TransferProtocolType values that InsertMedia accepts
    etags: tuple[str, ...] = ()
    may_be_stale: bool = False  # whether this BMC may show an image that is no longer connected
    shares: tuple[MediaShare, ...] = ()  # the shares from which this BMC fetches images; the first match applies

    @property
    def is_free(self) -> bool:
        return not self.inserted and self.image is None

    @property
    def accepts_discs(self) -> bool:
        return not self.types or bool(self.types & _DISC_TYPES)


class MediumState(StrEnum):
    """The state of a recorded medium."""

    INSERTED = "Inserted"  # the medium is inserted, or gitboot crashed before it sent the request to insert the medium
    EJECTING = "Ejecting"
    EJECTED = "Ejected"  # gitboot ejected the medium, or the medium disappeared for another reason


class Medium(Struct, frozen=True, kw_only=True):
    """The ledger's record of a medium that gitboot inserted for one reason."""

    url: str
    state: MediumState
    at: datetime  # the time of the last insert or eject request
    # The first marks that gitboot read after the override was gone. The machine needs the medium until its next reset.
    booted: ResetMarks | None = None

    @property
    def may_be_inserted(self) -> bool:
        return self.state is not MediumState.EJECTED


def find_slot(url: str, slots: Iterable[MediaSlot]) -> MediaSlot | None:
    """Return the slot that contains the image at ``url``, or None if no slot contains the image."""
    return next((slot for slot in slots if slot.inserted and slot.image == url), None)


def assign_slots(slots: Collection[MediaSlot], disc: str, data: str | None) -> dict[str, MediaSlot] | None:
    """Choose a slot for each image: the slot that already contains the image, or a free slot.

    Return None if there are not enough slots.

    The boot disc gets the slot with the first path, because firmware boots the first of several discs. User data gets
    another slot for discs, or a slot for USB sticks. A slot without the action InsertMedia may accept only images that
    the BMC itself stores. gitboot therefore uses such a slot only if no slot of the same kind has this action.
    """
    slots = _drop_slots_without_action(slots)
    free_slots = sorted((slot for slot in slots if slot.is_free), key=lambda slot: slot.path)
    disc_slot = find_slot(disc, slots) or next((slot for slot in free_slots if slot.accepts_discs), None)
    if disc_slot is None:
        return None
    if data is None:
        return {disc: disc_slot}
    data_slot = find_slot(data, slots)
    if data_slot is None:
        # the system finds user data also on a USB stick, by the volume label
        suitable_slots = [slot for slot in free_slots if slot.accepts_discs or "USBStick" in slot.types]
        other_slots = [slot for slot in suitable_slots if slot is not disc_slot]
        if not other_slots:
            return None
        data_slot = min(other_slots, key=lambda slot: not slot.accepts_discs)
    return {disc: disc_slot, data: data_slot}


def _drop_slots_without_action(slots: Collection[MediaSlot]) -> list[MediaSlot]:
    """Remove each slot that lacks the action InsertMedia although another slot of the same kind has this action.

    The action is optional for each slot (DSP0268). If all slots of a BMC lack the action, gitboot inserts media with a
    PATCH request (sushy, VirtualMedia.insert_media).
    """
    kinds = {slot.accepts_discs for slot in slots if slot.insert_target is not None}
    return [
        slot for slot in slots if slot.insert_target is not None or slot.accepts_discs not in kinds or slot.inserted
    ]


def build_insert_request(slot: MediaSlot, url: str) -> Mapping[str, Any]:
    """Return the body of a request that inserts an image, by InsertMedia or, if the slot has no such action, by PATCH.

    InsertMedia sets Inserted and WriteProtected by default (DSP0268). A Supermicro X11 rejects these two parameters in
    InsertMedia requests (sushy, VirtualMedia.insert_media). A Lenovo SD530 requires them in PATCH requests (same
    source). The caller adds the credentials of a share to the body.
    """
    image = url
    protocol = urlsplit(url).scheme.upper()
    must_send_protocol = protocol in slot.protocols
    share = next((share for share in slot.shares if share.find_image_copy(url) is not None), None)
    if share is not None:
        image = share.find_image_copy(url) or url
        protocol = share.protocol
        must_send_protocol = True
    if slot.insert_target is None:
        return {"Image": image, "Inserted": True, "WriteProtected": True}
    if not must_send_protocol:
        return {"Image": image}
    return {"Image": image, "TransferProtocolType": protocol}


# The body of a PATCH that ejects the medium of a slot without the action EjectMedia.
EJECT_REQUEST: Mapping[str, Any] = {"Image": None, "Inserted": False}


class Override(Struct, frozen=True, kw_only=True):
    """A boot override that gitboot sets, or that a BMC shows."""

    enabled: OverrideEnabled
    target: str  # an OverrideTarget, or another value that a BMC shows
    mode: str | None = None  # UEFI or Legacy; None: do not change the mode, or the BMC does not report it
    http_boot_uri: str | None = None  # None: the DHCP server names the boot loader
    medium: str | None = None  # the URL of the image that gitboot inserts before it sets the override
    data_medium: str | None = None  # the URL of the image with the user data, which gitboot inserts into another slot

    def __str__(self) -> str:
        return f"{self.enabled} {self.target}"

    @property
    def media(self) -> tuple[str, ...]:
        """The URLs of the images in the order in which gitboot inserts them.

        The user data comes first, then the boot disc.
        """
        return tuple(each for each in (self.data_medium, self.medium) if each is not None)

    @property
    def gets_loader_from_dhcp(self) -> bool:
        """Whether the machine gets the boot loader's URI from the DHCP server.

        The boot loader then requests the boot script.
        """
        return self.target in (OverrideTarget.PXE, OverrideTarget.UEFI_HTTP) and self.http_boot_uri is None


# Signs of a reset

_CLOCK_STEP: Final = timedelta(minutes=2)  # a larger difference than clock drift and slow requests can explain
# The values of ComputerSystem BootProgress.LastState in the order of one boot, DSP0268.
BOOT_PROGRESS: Final = (
    "PrimaryProcessorInitializationStarted",
    "BusInitializationStarted",
    "MemoryInitializationStarted",
    "SecondaryProcessorInitializationStarted",
    "PCIResourceConfigStarted",
    "SystemHardwareInitializationComplete",
    "OSBootStarted",
    "OSRunning",
)


class ResetConclusion(Enum):
    """The conclusion about whether a machine was reset between two readings of its BMC."""

    SEEN = "seen"
    RULED_OUT = "ruled out"
    UNKNOWN = "unknown"


class ResetMarks(Struct, frozen=True, kw_only=True):
    """The marks of a reset, which are values of a BMC that change when the machine is reset, and the BMC's clock.

    Ledgers contain these values.
    """

    last_reset_time: str | None = None  # the system's LastResetTime
    boot_progress: str | None = None  # BootProgress.LastState
    boot_progress_time: str | None = None  # BootProgress.LastStateTime
    settled: bool = False  # whether the machine was on and had finished POST
    bmc_time: str | None = None  # the Manager's DateTime; None: gitboot did not read the clock
    bmc_ahead_s: int | None = None  # seconds by which the BMC's clock is ahead of gitboot's clock
    manager_reset_time: str | None = None  # the Manager's LastResetTime

    def find_reset_since(
        self, old_marks: ResetMarks, *, changing_marks: frozenset[str] | None = None
    ) -> ResetConclusion:
        """Return whether the machine has been reset since ``old_marks`` was read.

        A mark proves a reset if its time is later than in ``old_marks``, and if the BMC's clock was not set in between.
        If the machine was still booting, its boot progress may advance without a reset.

        Unchanged marks rule out a reset only if ``old_marks`` is settled, because a machine in POST may consume an
        override without another reset. ``changing_marks`` are the marks that are known to change at each reset of this
        machine. To rule out a reset, the BMC must also report at least one of these marks, because some BMCs do not
        update LastResetTime.
        """
        if self._clock_was_lost(old_marks):
            return ResetConclusion.UNKNOWN
        pairs = {name: (before, after) for name, before, after in self._pair_marks(old_marks)}
        if any(_has_mark_changed(before, after) for before, after in pairs.values()):
            same_boot_marks = {"boot_progress_time"} if self.has_progressed_since(old_marks) else set()
            is_reset = bool(self.find_later_marks(old_marks) - same_boot_marks)
            return ResetConclusion.SEEN if is_reset else ResetConclusion.UNKNOWN
        unchanged = pairs.keys() if changing_marks is None else pairs.keys() & changing_marks
        return ResetConclusion.RULED_OUT if unchanged and old_marks.settled else ResetConclusion.UNKNOWN

    def find_later_marks(self, old_marks: ResetMarks) -> frozenset[str]:
        """Return the names of the marks with a later time than in ``old_marks``.

        If the BMC's clock was set between the two readings, return an empty set.
        """
        if self.bmc_time is not None and self._clock_was_lost(old_marks):
            return frozenset()
        since = _parse_utc(old_marks.bmc_time)
        times = ((name, _parse_utc(before), _parse_utc(after)) for name, before, after in self._pair_marks(old_marks))
        return frozenset(
            name
            for name, before, after in times
            if before is not None and after is not None and after > before and (since is None or after >= since)
        )

    def has_progressed_since(self, old_marks: ResetMarks) -> bool:
        """Return whether the boot progress is further along than in ``old_marks``.

        Both readings may then belong to the same boot.
        """
        if self.boot_progress not in BOOT_PROGRESS or old_marks.boot_progress not in BOOT_PROGRESS:
            return False
        return BOOT_PROGRESS.index(self.boot_progress) > BOOT_PROGRESS.index(old_marks.boot_progress)

    def has_passed_post_since(self, old_marks: ResetMarks) -> bool:
        """Return whether the BMC reports that the machine has finished POST since ``old_marks`` was read."""
        return "boot_progress_time" in self.find_later_marks(old_marks)

    def with_clock_from(self, source: ResetMarks) -> ResetMarks:
        """Return a copy of these marks with the clock values of ``source``."""
        return structs.replace(
            self,
            bmc_time=source.bmc_time,
            bmc_ahead_s=source.bmc_ahead_s,
            manager_reset_time=source.manager_reset_time,
        )

    def _pair_marks(self, old_marks: ResetMarks) -> Iterator[tuple[str, str, str]]:
        """Yield (name, earlier value, current value) for each mark that both readings contain."""
        for name, before, after in (
            ("last_reset_time", old_marks.last_reset_time, self.last_reset_time),
            ("boot_progress_time", old_marks.boot_progress_time, self.boot_progress_time),
        ):
            if before is not None and after is not None:
                yield name, before, after

    def _clock_was_lost(self, old_marks: ResetMarks) -> bool:
        """Return whether the Manager has restarted, its clock was set, or the BMC no longer reports the clock.

        In each of these cases, gitboot cannot compare earlier times with current times.
        """
        if old_marks.bmc_time is None:
            return False  # the BMC does not report a clock
        if self.bmc_time is None or self.bmc_ahead_s is None or old_marks.bmc_ahead_s is None:
            return True
        was_set = abs(self.bmc_ahead_s - old_marks.bmc_ahead_s) > _CLOCK_STEP.total_seconds()
        return was_set or _has_restarted(old_marks.manager_reset_time, self.manager_reset_time)


NO_MARKS: Final = ResetMarks()


def _has_mark_changed(before: str, after: str) -> bool:
    before_time, after_time = _parse_utc(before), _parse_utc(after)
    if before_time is None or after_time is None:
        return before != after
    return before_time != after_time


def _has_restarted(before: str | None, after: str | None) -> bool:
    """Return whether two readings of a Manager's LastResetTime prove that the Manager has restarted in between.

    Some Managers compute this time from their uptime, so the time may vary by a second.
    """
    if before is None:
        return False
    before_time, after_time = _parse_utc(before), _parse_utc(after)
    return before_time is None or after_time is None or abs(after_time - before_time) > _CLOCK_STEP


def parse_time(text: str | None) -> datetime | None:
    """Parse a BMC's time, with its UTC offset if it contains one. Return None if the text is not a time."""
    try:
        return datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None


def as_utc(instant: datetime) -> datetime:
    """Return a time with a UTC offset. Treat a time without an offset as UTC."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _parse_utc(text: str | None) -> datetime | None:
    instant = parse_time(text)
    return as_utc(instant) if instant is not None else None


class BmcObservation(Struct, frozen=True, kw_only=True):
    """One reading of a BMC, with the override, the power state and the capabilities of the BMC."""

    system: str  # the path of the ComputerSystem
    override: Override
    identity: ReportedIdentity = NO_IDENTITY  # the identity that the BMC reports for the system
    marks: ResetMarks = NO_MARKS
    power: str | None = None  # the PowerState of the system
    in_post: bool = False
    runs_os: bool = False  # whether BootProgress.LastState is OSRunning
    allowable_targets: frozenset[str] = frozenset()  # empty: not reported
    allowable_enabled: frozenset[str] = frozenset()  # empty: not reported
    supports_http_boot_uri: bool = False
    mode_is_fixed: bool = False  # whether the mode cannot be changed
    continuous_http: bool = True  # whether a Continuous override to UefiHttp leaves the boot order unchanged
    cd_target: OverrideTarget = OverrideTarget.CD  # the override target for booting from virtual media
    settings_path: str = ""  # the path of the resource with the override: the system or its Settings
    etags: tuple[str, ...] = ()  # the ETags of that resource
    quirks_name: str = ""  # the name of the BMC's row in `gitboot.bmc.redfish.quirks`
    manager_path: str | None = None  # the path of the Manager, which reports the clock
    reset_action: str | None = None  # the target of ComputerSystem.Reset
    reset_types: frozenset[str] = frozenset()  # the allowed reset types; empty: not reported
    # The path of the resource with the reset types, if the system does not report them.
    action_info_path: str | None = None
    virtual_media_path: str | None = None  # the path of the system's own slots; None: the Manager may have slots
    slots: tuple[MediaSlot, ...] = ()  # empty unless gitboot wants to insert a medium or may have inserted one
    boot_order: tuple[str, ...] = ()  # the boot options by the names that the firmware assigns; empty: not reported
    secure_boot_path: str | None = None  # the path of the SecureBoot resource
    secure_boot: bool | None = None  # the state from the next boot on; None: not read, or not reported
    bios_path: str | None = None  # the path of the firmware settings
    # whether the firmware has a setting for the URI of HTTP boot (`gitboot.bmc.redfish.quirks.FirmwareUri`)
    has_uri_setting: bool = False
    firmware_uri: str | None = None  # the value of this setting, "" if it is empty; None: not read, or not reported


class OverrideState(StrEnum):
    """The state of a recorded override. The values are stored in ledgers."""

    RECORDED = "Recorded"  # gitboot is about to set the override, or crashed before it sent the request
    CONFIRMED = "Confirmed"  # gitboot read the override back from the BMC
    CLEARING = "Withdrawing"  # gitboot is about to clear the override
    INSERTED = "Inserted"  # gitboot inserted the medium or is about to insert it, and has not set the override yet
    CLEARED = "Withdrawn"  # the override is gone and was certainly not consumed, so gitboot may set it again
    CONSUMED = "Consumed"  # the override was confirmed, and was gone after a reset of the machine
    LOST = "Lost"  # the override is gone for an unknown reason, and counts as consumed

    SET_BY_ANOTHER = "SetByAnother"  # the BMC showed the override before this instance set it, so it counts as consumed

    OPENED = "Opened"  # a person allowed gitboot to set the override, even if the BMC shows another override
    UNSENT = "Unsent"  # gitboot never sent the first request, so it ignores the record

    @property
    def is_open(self) -> bool:
        """Return whether the override may still be set on the BMC."""
        return self in (OverrideState.RECORDED, OverrideState.CONFIRMED, OverrideState.CLEARING)

    @property
    def is_unused(self) -> bool:
        """Return whether the override was never set, or was set but definitely not consumed."""
        return self in (OverrideState.CLEARED, OverrideState.INSERTED, OverrideState.OPENED, OverrideState.UNSENT)


class WantedOverride(Struct, frozen=True, kw_only=True):
    """The override that the plan requires on a BMC."""

    # A provision key, or the name and run of a maintenance. gitboot sets an override at most once for each reason.
    reason: str
    plan_digest: str
    override: Override
    set_again: bool = False  # set a Once override again after each reset that provably consumed it
    writes_disk: bool = True  # the boot writes a disk
    needs_http_uri: bool = False  # firmware must boot from the URI itself, because no boot loader can start an ISO
    # The URL of the folder with gitboot's boot loaders; None: the URI is not that of a boot loader.
    loader_url_prefix: str | None = None
    valid_until: datetime | None = None  # the time at which the plan may change
    planned_end: datetime | None = None  # the time at which the plan ends the override, unless a commit changes that
    only_while_off: bool = False  # set the override only while the machine is off
    is_first_install: bool = False  # whether the ledger is new and has no record of this server
    may_set: bool = True  # False: gitboot only watches and clears overrides

    def should_set(self, record: OverrideRecord | None) -> bool:
        """Return whether gitboot must set the override, based on the ledger's record for the same reason."""
        return record is None or record.state.is_unused or (self.set_again and record.state is OverrideState.CONSUMED)


class OverrideRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of an override that gitboot set for one reason on one server."""

    reason: str
    plan_digest: str
    override: Override  # the override that gitboot set, adapted to the BMC
    marks: ResetMarks  # the marks of the last reading before a machine could consume the override
    state: OverrideState
    at: datetime  # the time of the last request to set or clear the override
    # the times within the last hour at which gitboot had to set the override again
    corrections: tuple[datetime, ...] = ()
    replaces: Override | None = None  # the earlier override for this reason, until the new override is confirmed
    bmc: BmcAccess | None = None  # the BMC on which gitboot set the override, in case the document is removed
    shown: ReportedIdentity = NO_IDENTITY  # the identity of the system on which gitboot set the override
    writes_disk: bool = True
    medium: Medium | None = None  # the boot medium that gitboot inserted for the override
    data_medium: Medium | None = None  # the medium with the user data for the boot
    # The time from which gitboot may clear the override without writing to the ledger; None: never.
    clears_from: datetime | None = None

    def may_be_cleared_unrecorded(self, at: datetime) -> bool:
        """Return whether gitboot may have cleared the override without writing to the ledger.

        If so, the absence of the override does not prove that the machine booted.
        """
        return self.clears_from is not None and at >= self.clears_from and self.state is not OverrideState.CLEARING

    def may_be_written_later(self, at: datetime) -> bool:
        """Return whether this record only ends an override.

        If so, gitboot may change the BMC before gitboot writes the record.
        """
        is_ending = self.state in (
            OverrideState.CLEARING,
            OverrideState.CLEARED,
            OverrideState.CONSUMED,
            OverrideState.LOST,
        )
        return is_ending and self.clears_from is not None and at >= self.clears_from

    def is_ended_by(self, record: OverrideRecord) -> bool:
        """Return whether ``record``, which is not in the ledger, ended this override after gitboot last set it."""
        own_boot = (self.reason, self.override, self.plan_digest)
        is_same = own_boot == (record.reason, record.override, record.plan_digest)
        is_older = self.state.is_open or (self.has_media and not record.state.is_open)
        return is_older and is_same and self.clears_from == record.clears_from and self.at <= record.at

    @property
    def media(self) -> tuple[Medium, ...]:
        """The media that gitboot inserted for the override, in the order in which gitboot ejects them.

        The boot medium comes before the user data.
        """
        return tuple(each for each in (self.medium, self.data_medium) if each is not None)

    @property
    def has_media(self) -> bool:
        """Return whether a medium of the override may still be in a slot."""
        return any(each.may_be_inserted for each in self.media)

    @property
    def may_be_left_on_bmc(self) -> bool:
        """Return whether the BMC may still show the override or one of its media."""
        return self.state.is_open or self.has_media

    def with_medium(self, medium: Medium) -> OverrideRecord:
        """Return a copy of this record in which ``medium`` replaces the medium with the same URL."""
        if self.data_medium is not None and self.data_medium.url == medium.url:
            return structs.replace(self, data_medium=medium)
        return structs.replace(self, medium=medium)


class NoChange(Struct, frozen=True, kw_only=True):
    """A step that changes nothing, because there is nothing to change."""

    why: str = ""


class SetOverride(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, set the override in the record, read the BMC, and choose the next step."""

    record: OverrideRecord


class InsertMedium(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, insert its medium into ``slot``, read the BMC, and choose the next step."""

    record: OverrideRecord
    slot: MediaSlot
    url: str


class EjectMedium(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, eject the medium in ``slot``, read the BMC, and choose the next step."""

    record: OverrideRecord
    slot: MediaSlot


class ConfirmRecord(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, which contains the observed state of the BMC, and choose the next step."""

    record: OverrideRecord


class ClearOverride(Struct, frozen=True, kw_only=True):
    """A step: write ``record``, clear the override, read the BMC, and choose the next step."""

    record: OverrideRecord


class Wait(Struct, frozen=True, kw_only=True):
    """A step that changes nothing now. gitboot chooses the next step later."""

    why: str


class OperatorCondition(StrEnum):
    """The reason why a person must act."""

    NEEDS_OPERATOR = "NeedsOperator"  # only a person can determine whether the machine was installed
    CONTENDED = "Contended"  # another program or person keeps changing the override
    UNSUPPORTED = "Unsupported"  # the BMC does not support the override
    ANOTHER_MACHINE = "AnotherMachine"  # the BMC reports a machine other than the documented or the previous one
    FOREIGN_OVERRIDE = "ForeignOverride"  # the BMC shows an override that gitboot did not set
    FOREIGN_MEDIUM = "ForeignMedium"  # media that gitboot did not insert occupy the slots


class AskOperator(Struct, frozen=True, kw_only=True):
    """A step that asks a person to decide, and writes no record."""

    condition: OperatorCondition
    message: str


Step = NoChange | SetOverride | InsertMedium | EjectMedium | ConfirmRecord | ClearOverride | Wait | AskOperator
# The names of the steps in the output of `gitboot bmc`.
STEP_NAMES: Final[Mapping[type, str]] = {
    NoChange: "Leave",
    SetOverride: "Set",
    InsertMedium: "Insert",
    EjectMedium: "Eject",
    ConfirmRecord: "Confirm",
    ClearOverride: "Withdraw",
    Wait: "Wait",
    AskOperator: "AskOperator",
}
