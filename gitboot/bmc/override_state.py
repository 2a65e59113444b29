"""Boot overrides as values: wanted, observed and recorded, with virtual media."""

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

IPMI: Final = "IPMI"  # `Observed.bmc` of a BMC that is asked by IPMI
_DISC_TYPES = frozenset({"CD", "DVD"})  # Redfish VirtualMedia MediaTypes that an ISO image is
_USB_STICK = "USBStick"  # as which one is read too, by whoever looks for a volume of its label


class MediaSlot(Struct, frozen=True, kw_only=True):
    """One VirtualMedia resource, as it was read."""

    path: str
    image: str | None = None  # the URL of what lies in it, as the BMC shows it
    inserted: bool = False  # whether anything lies in it
    types: frozenset[str] = frozenset()  # MediaTypes; empty: not shown
    insert_target: str | None = None  # the target of its InsertMedia; None: the resource itself takes a PATCH
    eject_target: str | None = None
    protocols: frozenset[str] = frozenset()  # that InsertMedia says it takes as TransferProtocolType
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
        """Whether it takes an image that is read, and not booted."""
        return self.accepts_discs or _USB_STICK in self.types


class MediumState(StrEnum):
    """How far a medium has come."""

    INSERTED = "Inserted"  # or about to be; a crash may have come between
    EJECTING = "Ejecting"
    EJECTED = "Ejected"  # or gone


class Medium(Struct, frozen=True, kw_only=True):
    """The ledger's word on what was inserted for one reason."""

    url: str
    state: MediumState
    at: datetime  # when it was last to be inserted or ejected
    booted: Marks | None = None  # as they were read first after its override was gone: the next reset ends its use

    @property
    def may_be_inserted(self) -> bool:
        return self.state is not MediumState.EJECTED


def find_slot(url: str, slots: Iterable[MediaSlot]) -> MediaSlot | None:
    """Return the slot in which an image lies."""
    return next((slot for slot in slots if slot.inserted and slot.image == url), None)


def assign_slots(slots: Collection[MediaSlot], disc: str, data: str | None) -> dict[str, MediaSlot] | None:
    """Return the slots in which these images lie, or that take them; None: there are not as many.

    The disc that boots has the first by its path: of several, firmware boots that. User data lies in another for
    discs, or else in one for USB sticks.
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
    """Return what inserts an image: the parameters of InsertMedia, or what is PATCHed where there is no such action.

    InsertMedia inserts, write-protected, unless it is told otherwise (DSP0268); a Supermicro X11 refuses to be told
    (sushy, VirtualMedia.insert_media), while what takes a PATCH wants to be (the same, of the Lenovo SD530).
    """
    if slot.insert_target is None:
        return {"Image": url, "Inserted": True, "WriteProtected": True}
    protocol = urlsplit(url).scheme.upper()
    return {"Image": url, **({"TransferProtocolType": protocol} if protocol in slot.protocols else {})}


EJECT_REQUEST: Mapping[str, Any] = {"Image": None, "Inserted": False}  # PATCHed where there is no EjectMedia


class Override(Struct, frozen=True, kw_only=True):
    """A boot override, as it is wanted or as a BMC shows it."""

    enabled: OverrideEnabled
    target: str  # a OverrideTarget, or whatever else a BMC shows
    mode: str | None = None  # UEFI or Legacy; None: as it is, or not shown
    http_boot_uri: str | None = None  # None: what DHCP says
    medium: str | None = None  # the URL of the image that has to lie in a slot before it is set
    data_medium: str | None = None  # and of the one with the user data, in another

    def __str__(self) -> str:
        return f"{self.enabled} {self.target}"

    @property
    def media(self) -> tuple[str, ...]:
        """The URLs of the images to insert, in this order: the data first, then the disc that boots."""
        return tuple(each for each in (self.data_medium, self.medium) if each is not None)

    @property
    def gets_loader_from_dhcp(self) -> bool:
        """Whether DHCP names the loader. The loader requests the boot script."""
        return self.target in (OverrideTarget.PXE, OverrideTarget.UEFI_HTTP) and self.http_boot_uri is None


class BmcObservation(Struct, frozen=True, kw_only=True):
    """One reading of a BMC: what its override is now, and what it could be."""

    system: str  # the path of the ComputerSystem
    override: Override
    identity: ReportedIdentity = NO_IDENTITY  # who the system is
    marks: Marks = NO_MARKS
    power: str | None = None  # PowerState
    in_post: bool = False
    runs_os: bool = False  # BootProgress.LastState is OSRunning
    allowable_targets: frozenset[str] = frozenset()  # empty: not shown
    allowable_enabled: frozenset[str] = frozenset()  # likewise
    supports_http_boot_uri: bool = False
    mode_is_fixed: bool = False  # what it shows cannot be set
    continuous_http: bool = True  # UefiHttp may be Continuous without changing the boot order for good
    cd_target: OverrideTarget = OverrideTarget.CD  # the target under which virtual media boot
    settings_path: str = ""  # the resource that takes overrides: the system itself or its Settings
    etags: tuple[str, ...] = ()  # of that resource
    quirks_name: str = ""  # the row of `gitboot.bmc.redfish.quirks` that applies
    manager_path: str | None = None  # the path of the Manager, which has the clock
    reset_action: str | None = None  # where ComputerSystem.Reset is asked for
    reset_types: frozenset[str] = frozenset()  # what may be asked for there; empty: not shown
    action_info_path: str | None = None  # the path of what says it, where the system itself does not
    virtual_media_path: str | None = None  # the path of the system's own slots; None: its Manager may have some
    slots: tuple[MediaSlot, ...] = ()  # read only where a medium is wanted, or may lie there
    boot_order: tuple[str, ...] = ()  # of firmware, by its own names; empty: not shown
    secure_boot_path: str | None = None  # of the resource that says whether firmware starts only what is signed
    secure_boot: bool | None = None  # from the next boot on; None: not read, or not shown
    bios_path: str | None = None  # the path of firmware's settings
    has_uri_setting: bool = (
        False  # firmware has a setting for what it boots by HTTP: `gitboot.bmc.redfish.quirks.FirmwareUri`
    )
    firmware_uri: str | None = None  # what stands there, "" for nothing; None: not read, or not shown


class OverrideState(StrEnum):
    """How far a recorded override has come."""

    RECORDED = "Recorded"  # about to be set; a crash may have come between
    CONFIRMED = "Confirmed"  # read back
    CLEARING = "Withdrawing"  # about to be cleared
    INSERTED = "Inserted"  # its medium is, or is about to be; the override is not: the reason is open
    CLEARED = "Withdrawn"  # gone, and proven not consumed: the reason is open again
    CONSUMED = "Consumed"  # was confirmed, is gone, and the machine has reset since
    LOST = "Lost"  # gone, and nothing proves how: counts as consumed

    SET_BY_ANOTHER = "SetByAnother"  # stood, or had stood, before this ledger has set any: counts as consumed

    OPENED = "Opened"  # by a person: it may be set, whatever stands there now
    UNSENT = "Unsent"  # it was to be set for the first time, and was not: as if nothing were recorded

    @property
    def is_open(self) -> bool:
        """Whether the BMC may have the override."""
        return self in (OverrideState.RECORDED, OverrideState.CONFIRMED, OverrideState.CLEARING)

    @property
    def is_unused(self) -> bool:
        """Whether it was never set, or is sure not to have been consumed."""
        return self in (OverrideState.CLEARED, OverrideState.INSERTED, OverrideState.OPENED, OverrideState.UNSENT)


class WantedOverride(Struct, frozen=True, kw_only=True):
    """What the plan wants of a BMC."""

    reason: str  # what is set at most once: a provision key, a maintenance's name and run
    plan_digest: str
    override: Override
    set_again: bool = False  # a Once is set anew after each reset that is proven to have consumed it
    writes_disk: bool = True  # what it boots
    needs_http_uri: bool = False  # no loader can start what it boots: an ISO
    loader_url_prefix: str | None = (
        None  # where gitboot's loaders lie, if its URI is that of one; None: of something else
    )
    valid_until: datetime | None = None  # from when on the plan may want something else
    planned_end: datetime | None = None  # from when on the plan wants something else, unless a commit changes that
    only_while_off: bool = False  # set while the machine is off, and never while it runs
    is_first_install: bool = False  # a person said that no server is installed, and nothing was seen of this one since
    may_set: bool = True  # else what stands is looked after, and nothing is set or inserted, not even once more

    def should_set(self, record: OverrideRecord | None) -> bool:
        """Return whether it is to be set, or set anew, as far as the ledger's record for its reason knows."""
        return record is None or record.state.is_unused or (self.set_again and record.state is OverrideState.CONSUMED)


class OverrideRecord(Struct, frozen=True, kw_only=True):
    """The ledger's record of what was set for one reason on one server."""

    reason: str
    plan_digest: str
    override: Override  # as it was set: fitted to the BMC
    marks: Marks  # when it was last known not to be consumed
    state: OverrideState
    at: datetime  # when it was last to be set or cleared
    corrections: tuple[datetime, ...] = ()  # when it had to be set anew, in the last hour
    replaces: Override | None = None  # what stood for the same reason, until this one is confirmed
    bmc: BmcAccess | None = None  # on which it was set, in case no document names it any more
    shown: ReportedIdentity = NO_IDENTITY  # who the system was on which it was set
    writes_disk: bool = True
    medium: Medium | None = None  # what was inserted for it
    data_medium: Medium | None = None  # and with its user data
    clears_from: datetime | None = None  # from when on gitboot may clear it without a write to the ledger; None: never

    def may_be_cleared_unrecorded(self, at: datetime) -> bool:
        """Return whether gitboot may have cleared it without a write to the ledger: then its absence proves no boot."""
        return self.clears_from is not None and at >= self.clears_from and self.state is not OverrideState.CLEARING

    def ends_unrecorded(self, at: datetime) -> bool:
        """Whether this record only ends something, and so needs no write to the ledger before it is carried out."""
        is_ending = self.state in (
            OverrideState.CLEARING,
            OverrideState.CLEARED,
            OverrideState.CONSUMED,
            OverrideState.LOST,
        )
        return is_ending and self.clears_from is not None and at >= self.clears_from

    def is_ended_by(self, clearing: OverrideRecord) -> bool:
        """Return whether a withdrawal that was noted beside the ledger is of this override, as it was set last."""
        is_same = (self.reason, self.override, self.plan_digest) == (
            clearing.reason,
            clearing.override,
            clearing.plan_digest,
        )
        is_older = self.state.is_open or (self.has_media and not clearing.state.is_open)
        return is_older and is_same and self.clears_from == clearing.clears_from and self.at <= clearing.at

    @property
    def media(self) -> tuple[Medium, ...]:
        """What was inserted for it, in the order in which it is ejected: what boots goes before its data."""
        return tuple(each for each in (self.medium, self.data_medium) if each is not None)

    @property
    def has_media(self) -> bool:
        """Whether a slot may have a medium of the override."""
        return any(each.may_be_inserted for each in self.media)

    @property
    def may_be_left_on_bmc(self) -> bool:
        """Whether anything of it may be left on the BMC."""
        return self.state.is_open or self.has_media

    def with_medium(self, medium: Medium) -> OverrideRecord:
        if self.data_medium is not None and self.data_medium.url == medium.url:
            return structs.replace(self, data_medium=medium)
        return structs.replace(self, medium=medium)


class NoChange(Struct, frozen=True, kw_only=True):
    """Nothing is to be done."""

    why: str = ""


class SetOverride(Struct, frozen=True, kw_only=True):
    """Write ``record``, then set its override, then read the BMC and ask again."""

    record: OverrideRecord


class InsertMedium(Struct, frozen=True, kw_only=True):
    """Write ``record``, then insert its medium into ``slot``, then read the BMC and ask again."""

    record: OverrideRecord
    slot: MediaSlot
    url: str


class EjectMedium(Struct, frozen=True, kw_only=True):
    """Write ``record``, then eject what lies in ``slot``, then read the BMC and ask again."""

    record: OverrideRecord
    slot: MediaSlot


class ConfirmRecord(Struct, frozen=True, kw_only=True):
    """Write ``record``: it is what the BMC shows. Then ask again."""

    record: OverrideRecord


class ClearOverride(Struct, frozen=True, kw_only=True):
    """Write ``record``, then clear the override, then read the BMC and ask again."""

    record: OverrideRecord


class Wait(Struct, frozen=True, kw_only=True):
    """Not now: ask again later."""

    why: str


class OperatorCondition(StrEnum):
    """What a person must look at."""

    NEEDS_OPERATOR = "NeedsOperator"  # only a person can know whether the machine was installed
    CONTENDED = "Contended"  # the override keeps changing under gitboot
    UNSUPPORTED = "Unsupported"  # this BMC cannot do it
    ANOTHER_MACHINE = "AnotherMachine"  # the BMC shows another machine, or another than it has shown before
    FOREIGN_OVERRIDE = "ForeignOverride"  # before gitboot has set any, another stands that somebody else has set
    FOREIGN_MEDIUM = "ForeignMedium"  # what somebody else has inserted leaves no slot for the one that is wanted


class AskOperator(Struct, frozen=True, kw_only=True):
    """A person must decide; nothing is written before."""

    condition: OperatorCondition
    message: str


Step = NoChange | SetOverride | InsertMedium | EjectMedium | ConfirmRecord | ClearOverride | Wait | AskOperator
