"""What a BMC has to be able to do, by whichever protocol."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from gitboot.bmc.override_state import MediaSlot, Observed, Override
from gitboot.bmc.power_steps import ResetType

if TYPE_CHECKING:
    from gitboot.bmc.redfish.transport import Login, Reach

IPMI: Final = "IPMI"  # what `Observed.bmc` says of a BMC that is asked by IPMI


class MediaDriver(Protocol):
    """The part of a driver that sees to virtual media."""

    def with_slots(self, seen: Observed) -> Observed: ...

    def insert(self, slot: MediaSlot, url: str) -> None: ...

    def eject(self, slot: MediaSlot) -> None: ...


class FirmwareDriver(Protocol):
    """The part of a driver that sees to firmware's own settings."""

    def with_secure_boot(self, seen: Observed) -> Observed: ...

    def with_uri(self, seen: Observed) -> Observed: ...

    def keep_uri(self, uri: str, seen: Observed) -> bool: ...


class Driver(Protocol):
    """A connection to one BMC: `BmcConnection` by Redfish, `IpmiConnection` by IPMI.

    Every method raises `BmcUnreachable`, `BmcBusy` or `BmcRejected`, which say what was asked of whom.
    """

    reach: Reach

    @property
    def login(self) -> Login | None:
        """Who asks; None where each request has a session of its own."""

    @property
    def media(self) -> MediaDriver | None:
        """Who sees to virtual media; None: the protocol has none."""

    @property
    def firmware(self) -> FirmwareDriver | None:
        """Who reads firmware's settings; None: the protocol shows none."""

    def observe(self) -> Observed: ...

    def with_clock(self, seen: Observed, clock: Callable[[], datetime]) -> Observed: ...

    def set_override(self, wanted: Override, seen: Observed) -> None: ...

    def with_reset_types(self, seen: Observed) -> Observed: ...

    def reset(self, type: ResetType, seen: Observed) -> None: ...

    def close(self, *, log_out: bool = True) -> None: ...
