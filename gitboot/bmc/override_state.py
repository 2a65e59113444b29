"""Boot overrides as values: wanted, observed and recorded ones, and their virtual media."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.bmc.identity import NO_IDENTITY, ReportedIdentity
from gitboot.bmc.reboot_detection import NO_MARKS, Marks
from gitboot.fleet.identities import BmcAccess
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

IPMI: Final = "IPMI"  # `BmcObservation.quirks_name` of a BMC with IPMI
_DISC_TYPES = frozenset({"CD", "DVD"})  # Redfish VirtualMedia MediaTypes that take an ISO image
_USB_STICK = "USBStick"  # also works for an image that the system finds by its volume label


class MediaSlot(Struct, frozen=True, kw_only=True):
    """One VirtualMedia resource of a BMC."""

    path: str
    image: str | None = None  # the URL of the medium in it, as the BMC shows it
    inserted: bool = False  # a medium is in it
    types: frozenset[str] = frozenset()  # MediaTypes; empty: not shown
    insert_target: str | None = None  # the target of InsertMedia; None: insert with a PATCH of the resource
    eject_target: str | None = None
    protocols: frozenset[str] = frozenset()  # the TransferProtocolType values that InsertMedia accepts
    etags: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        return not self.inserted and self.image is None

    @property
    def without_medium(self) -> MediaSlot:
        return structs.replace(self, image=None, inserted=False)

    @property
    def accepts_discs(self) -> bool:
        return not self.types or bool(self.types & _DISC_TYPES)

    @property
    def accepts_data(self) -> bool:
        """True if the slot accepts an image that the system reads and does not boot."""
        return self.accepts_discs or _USB_STICK in self.types


class MediumState(StrEnum):
    """The state of a recorded medium."""

    INSERTED = "Inserted"  # or about to be inserted, if gitboot crashed before the request
    EJECTING = "Ejecting"
    EJECTED = "Ejected"  # or no longer there


class Medium(Struct, frozen=True, kw_only=True):
    """The ledger's record of a medium that was inserted for one reason."""

    url: str
    state: MediumState
    at: datetime  # of the last insert or eject request
    booted: Marks | None = None  # the first marks after its override was gone; the next reset ends its use

    @property
    def may_be_inserted(self) -> bool:
        return self.state is not MediumState.EJECTED


def find_slot(url: str, slots: Iterable[MediaSlot]) -> MediaSlot | None:
    """Return the slot that contains an image."""
    return next((slot for slot in slots if slot.inserted and slot.image == url), None)


def assign_slots(slots: Collection[MediaSlot], disc: str, data: str | None) -> dict[str, MediaSlot] | None:
    """Return the slots that contain these images, or free slots for them. None: there are not enough slots.

    The boot disc gets the slot with the first path, because firmware boots the first of several. User data gets another
    slot for discs, or else a slot for USB sticks.
    """
    found = {url: slot for url in (disc, data) if url is not None and (slot := find_slot(url, slots)) is not None}
    free = sorted((slot for slot in slots if slot.is_free), key=lambda each: each.path)
    if disc not in found:
        if (own := next((slot for slot in free if slot.accepts_discs), None)) is None:
            return None
        found[disc] = own
    if data is not None and data not in found:
        left = [slot for slot in free if slot.accepts_data and slot is not found[disc]]
        if not left:
            return None
        found[data] = min(left, key=lambda each: not each.accepts_discs)
    return found


def build_insert_request(slot: MediaSlot, url: str) -> Mapping[str, Any]:
    """Return the request body that inserts an image: for InsertMedia, or for a PATCH if there is no such action.

    The defaults of InsertMedia are Inserted and WriteProtected (DSP0268). A Supermicro X11 rejects these parameters
    (sushy, VirtualMedia.insert_media). A PATCH needs them (the same source, about the Lenovo SD530).
    """
    if slot.insert_target is None:
        return {"Image": url, "Inserted": True, "WriteProtected": True}
    protocol = urlsplit(url).scheme.upper()
    return {"Image": url, **({"TransferProtocolType": protocol} if protocol in slot.protocols else {})}


EJECT_REQUEST: Mapping[str, Any] = {"Image": None, "Inserted": False}  # the body of a PATCH if there is no EjectMedia


class Override(Struct, frozen=True, kw_only=True):
    """A boot override that gitboot wants, or that a BMC shows."""

    enabled: OverrideEnabled
    target: str  # an OverrideTarget, or any other value that a BMC shows
    mode: str | None = None  # UEFI or Legacy; None: leave it, or the BMC does not show it
    http_boot_uri: str | None = None  # None: DHCP names the loader
    medium: str | None = None  # the URL of the image to insert before gitboot sets the override
    data_medium: str | None = None  # the URL of the image with the user data, in another slot

    def __str__(self) -> str:
        return f"{self.enabled} {self.target}"

    @property
    def media(self) -> tuple[str, ...]:
        """The URLs of the images to insert, in this order: first the user data, then the boot disc."""
        return tuple(each for each in (self.data_medium, self.medium) if each is not None)

    @property
    def gets_loader_from_dhcp(self) -> bool:
        """True if DHCP names the loader, which then requests the boot script."""
        return self.target in (OverrideTarget.PXE, OverrideTarget.UEFI_HTTP) and self.http_boot_uri is None


class BmcObservation(Struct, frozen=True, kw_only=True):
    """One reading of a BMC: its override, its power, and its abilities."""

    system: str  # the path of the ComputerSystem
    override: Override
    identity: ReportedIdentity = NO_IDENTITY  # which system the BMC belongs to
    marks: Marks = NO_MARKS
    power: str | None = None  # PowerState
    in_post: bool = False
    runs_os: bool = False  # BootProgress.LastState is OSRunning
    allowable_targets: frozenset[str] = frozenset()  # empty: not shown
    allowable_enabled: frozenset[str] = frozenset()  # empty: not shown
    supports_http_boot_uri: bool = False
    mode_is_fixed: bool = False  # the mode cannot be changed
    continuous_http: bool = True  # a Continuous UefiHttp does not change the boot order permanently
    cd_target: OverrideTarget = OverrideTarget.CD  # the override target that boots virtual media
    settings_path: str = ""  # the path of the resource with the override: the system or its Settings
    etags: tuple[str, ...] = ()  # of that resource
    quirks_name: str = ""  # the name of its row in `gitboot.bmc.redfish.quirks`
    manager_path: str | None = None  # of the Manager, which has the clock
    reset_action: str | None = None  # the target of ComputerSystem.Reset
    reset_types: frozenset[str] = frozenset()  # the allowed values; empty: not shown
    action_info_path: str | None = None  # of the resource with the reset types, if the system does not show them
    virtual_media_path: str | None = None  # of the system's own slots; None: its Manager may have slots
    slots: tuple[MediaSlot, ...] = ()  # gitboot reads them only if a medium is wanted or may be inserted
    boot_order: tuple[str, ...] = ()  # names that firmware gives; empty: not shown
    secure_boot_path: str | None = None  # of the SecureBoot resource
    secure_boot: bool | None = None  # from the next boot on; None: not read, or not shown
    bios_path: str | None = None  # of the firmware settings
    has_uri_setting: bool = (
        False  # firmware has a setting for the URI that it boots by HTTP: `gitboot.bmc.redfish.quirks.FirmwareUri`
    )
    firmware_uri: str | None = None  # the value of this setting, "" if it is empty; None: not read, or not shown


class OverrideState(StrEnum):
    """The state of a recorded override. The values are stored in ledgers."""

    RECORDED = "Recorded"  # about to be set; gitboot may have crashed before the request
    CONFIRMED = "Confirmed"  # gitboot read it back from the BMC
    CLEARING = "Withdrawing"  # about to be cleared
    INSERTED = "Inserted"  # its medium is inserted or about to be, and the override is not set
    CLEARED = "Withdrawn"  # gone, and proven not to be consumed: gitboot may set it again
    CONSUMED = "Consumed"  # it was confirmed, then it disappeared, and the machine has reset
    LOST = "Lost"  # gone for an unknown reason; counts as consumed

    SET_BY_ANOTHER = "SetByAnother"  # the BMC showed it before this instance set it; counts as consumed

    OPENED = "Opened"  # a person allowed gitboot to set it, even if the BMC shows another override
    UNSENT = "Unsent"  # the first request was not sent, so the record does not count

    @property
    def is_open(self) -> bool:
        """True if the BMC may have the override."""
        return self in (OverrideState.RECORDED, OverrideState.CONFIRMED, OverrideState.CLEARING)

    @property
    def is_unused(self) -> bool:
        """True if it was never set, or was certainly not consumed."""
        return self in (OverrideState.CLEARED, OverrideState.INSERTED, OverrideState.OPENED, OverrideState.UNSENT)


class WantedOverride(Struct, frozen=True, kw_only=True):
    """The override that the plan wants on a BMC."""

    reason: str  # gitboot sets each reason at most once: a provision key, or the name and run of a maintenance
    plan_digest: str
    override: Override
    set_again: bool = False  # set a Once again after each reset that provably consumed it
    writes_disk: bool = True  # the boot writes a disk
    needs_http_uri: bool = False  # firmware must boot the URI itself, because no loader can start an ISO
    loader_url_prefix: str | None = None  # the URL below which gitboot's loaders are; None: the URI is not a loader
    valid_until: datetime | None = None  # the plan may change then
    planned_end: datetime | None = None  # the plan ends the override then, unless a commit changes that
    only_while_off: bool = False  # set it only while the machine is off
    is_first_install: bool = False  # the ledger is new, and has no record of this server
    may_set: bool = True  # False: only watch and clear overrides

    def should_set(self, record: OverrideRecord | None) -> bool:
        """Return whether gitboot has to set it, given the ledger's record for its reason."""
        return record is None or record.state.is_unused or (self.set_again and record.state is OverrideState.CONSUMED)


class OverrideRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of an override that gitboot set for one reason on one server."""

    reason: str
    plan_digest: str
    override: Override  # as it was set, adapted to the BMC
    marks: Marks  # from the last reading before it could be consumed
    state: OverrideState
    at: datetime  # of the last request to set or clear it
    corrections: tuple[datetime, ...] = ()  # when gitboot had to set it again, in the last hour
    replaces: Override | None = None  # the earlier override for this reason, until the new one is confirmed
    bmc: BmcAccess | None = None  # on which it was set, in case the document is removed
    shown: ReportedIdentity = NO_IDENTITY  # the system on which it was set
    writes_disk: bool = True
    medium: Medium | None = None  # the boot medium that was inserted for it
    data_medium: Medium | None = None  # the medium with its user data
    clears_from: datetime | None = None  # from then on, gitboot may clear it without writing to the ledger; None: never

    def may_be_cleared_unrecorded(self, at: datetime) -> bool:
        """Return whether gitboot may have cleared it without writing to the ledger. Then its absence proves no boot."""
        return self.clears_from is not None and at >= self.clears_from and self.state is not OverrideState.CLEARING

    def ends_unrecorded(self, at: datetime) -> bool:
        """Return whether this record only ends an override, so that gitboot may act before it writes the ledger."""
        is_ending = self.state in (
            OverrideState.CLEARING,
            OverrideState.CLEARED,
            OverrideState.CONSUMED,
            OverrideState.LOST,
        )
        return is_ending and self.clears_from is not None and at >= self.clears_from

    def is_ended_by(self, clearing: OverrideRecord) -> bool:
        """Return whether a clearing that was not written to the ledger belongs to this override, as it was set last."""
        is_same = (self.reason, self.override, self.plan_digest) == (
            clearing.reason,
            clearing.override,
            clearing.plan_digest,
        )
        is_older = self.state.is_open or (self.has_media and not clearing.state.is_open)
        return is_older and is_same and self.clears_from == clearing.clears_from and self.at <= clearing.at

    @property
    def media(self) -> tuple[Medium, ...]:
        """The media that were inserted for it, in the order of ejection: the boot medium, then the user data."""
        return tuple(each for each in (self.medium, self.data_medium) if each is not None)

    @property
    def has_media(self) -> bool:
        """True if a medium of the override may be in a slot."""
        return any(each.may_be_inserted for each in self.media)

    @property
    def may_be_left_on_bmc(self) -> bool:
        """True if the BMC may still have the override or a medium of it."""
        return self.state.is_open or self.has_media

    def with_medium(self, medium: Medium) -> OverrideRecord:
        if self.data_medium is not None and self.data_medium.url == medium.url:
            return structs.replace(self, data_medium=medium)
        return structs.replace(self, medium=medium)


class NoChange(Struct, frozen=True, kw_only=True):
    """Change nothing."""

    why: str = ""


class SetOverride(Struct, frozen=True, kw_only=True):
    """Write ``record``, then set its override, then read the BMC and decide again."""

    record: OverrideRecord


class InsertMedium(Struct, frozen=True, kw_only=True):
    """Write ``record``, then insert its medium into ``slot``, then read the BMC and decide again."""

    record: OverrideRecord
    slot: MediaSlot
    url: str


class EjectMedium(Struct, frozen=True, kw_only=True):
    """Write ``record``, then eject the medium in ``slot``, then read the BMC and decide again."""

    record: OverrideRecord
    slot: MediaSlot


class ConfirmRecord(Struct, frozen=True, kw_only=True):
    """Write ``record``, which describes what the BMC shows. Then decide again."""

    record: OverrideRecord


class ClearOverride(Struct, frozen=True, kw_only=True):
    """Write ``record``, then clear the override, then read the BMC and decide again."""

    record: OverrideRecord


class Wait(Struct, frozen=True, kw_only=True):
    """Decide again later."""

    why: str


class OperatorCondition(StrEnum):
    """The reasons for which a person must act."""

    NEEDS_OPERATOR = "NeedsOperator"  # only a person can find out whether the machine was installed
    CONTENDED = "Contended"  # somebody else keeps changing the override
    UNSUPPORTED = "Unsupported"  # the BMC does not support the override
    ANOTHER_MACHINE = "AnotherMachine"  # the BMC reports another machine than documented, or than before
    FOREIGN_OVERRIDE = "ForeignOverride"  # the BMC has an override that gitboot did not set
    FOREIGN_MEDIUM = "ForeignMedium"  # media that gitboot did not insert occupy the slots


class AskOperator(Struct, frozen=True, kw_only=True):
    """A person must decide. gitboot does not write a record."""

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
