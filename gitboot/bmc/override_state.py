"""Virtual media: the slots of a BMC, what lies in them, and which of them takes an image.

What lies in a slot is gitboot's own only if a record says that gitboot has inserted it, and the slot still shows its
URL. Everything else is somebody else's, and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from gitboot.bmc.reboot_detection import Marks

_DISCS = frozenset({"CD", "DVD"})  # Redfish VirtualMedia MediaTypes that an ISO image is
_STICK = "USBStick"  # as which one is read too, by whoever looks for a volume of its label


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaSlot:
    """One VirtualMedia resource, as it was read."""

    path: str
    image: str | None = None  # the URL of what lies in it, as the BMC shows it
    inserted: bool = False  # whether anything lies in it
    types: frozenset[str] = frozenset()  # MediaTypes; empty: not shown
    insert: str | None = None  # the target of its InsertMedia; None: the resource itself takes a PATCH
    eject: str | None = None
    protocols: frozenset[str] = frozenset()  # that InsertMedia says it takes as TransferProtocolType
    etags: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        return not self.inserted and self.image is None

    @property
    def takes_discs(self) -> bool:
        return not self.types or bool(self.types & _DISCS)

    @property
    def takes_data(self) -> bool:
        """Whether it takes an image that is read, and not booted."""
        return self.takes_discs or _STICK in self.types


class MediumState(StrEnum):
    """How far a medium has come."""

    INSERTED = "Inserted"  # or about to be; a crash may have come between
    EJECTING = "Ejecting"
    EJECTED = "Ejected"  # or gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """The ledger's word on what was inserted for one reason."""

    url: str
    state: MediumState
    at: datetime  # when it was last to be inserted or ejected
    booted: Marks | None = None  # as they were read first after its override was gone: the next reset ends its use

    @property
    def may_lie_in(self) -> bool:
        return self.state is not MediumState.EJECTED


def slot_with(url: str, slots: Iterable[MediaSlot]) -> MediaSlot | None:
    """The slot in which an image lies."""
    return next((slot for slot in slots if slot.inserted and slot.image == url), None)


def places(slots: Collection[MediaSlot], disc: str, data: str | None) -> dict[str, MediaSlot] | None:
    """The slots in which these images lie, or that take them; None: there are not as many.

    The disc that boots has the first by its path: of several, firmware boots that. User data lies in another for
    discs, or else in one for USB sticks.
    """
    found = {url: slot for url in (disc, data) if url is not None and (slot := slot_with(url, slots)) is not None}
    free = sorted((slot for slot in slots if slot.is_free), key=lambda each: each.path)
    if disc not in found:
        if (own := next((slot for slot in free if slot.takes_discs), None)) is None:
            return None
        found[disc] = own
    if data is not None and data not in found:
        left = [slot for slot in free if slot.takes_data and slot is not found[disc]]
        if not left:
            return None
        found[data] = min(left, key=lambda each: not each.takes_discs)
    return found


def insertion(slot: MediaSlot, url: str) -> Mapping[str, Any]:
    """What inserts an image: the parameters of InsertMedia, or what is PATCHed where there is no such action.

    InsertMedia inserts, write-protected, unless it is told otherwise (DSP0268); a Supermicro X11 refuses to be told
    (sushy, VirtualMedia.insert_media), while what takes a PATCH wants to be (the same, of the Lenovo SD530).
    """
    if slot.insert is None:
        return {"Image": url, "Inserted": True, "WriteProtected": True}
    protocol = urlsplit(url).scheme.upper()
    return {"Image": url, **({"TransferProtocolType": protocol} if protocol in slot.protocols else {})}


EJECTION: Mapping[str, Any] = {"Image": None, "Inserted": False}  # PATCHed where there is no EjectMedia
