"""Boot limits: stop orders, claims of other hosts, and grace periods."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

FETCH_GRACE: Final = timedelta(seconds=60)  # a loader can fetch its boot again, for a retry
CONSUMED_GRACE: Final = timedelta(minutes=30)  # wait for evidence after an override was consumed
SERVED_GRACE: Final = timedelta(minutes=30)  # show an installation without a completion report as served
DATA_GRACE: Final = timedelta(hours=2)  # a booted system can fetch its user data


class StopScope(StrEnum):
    """The boots that a stop order or a condition stops, in addition to the commit."""

    NONE = "none"
    WRITING = "boots that write disks"
    ALL = "all boots from the network"


class StopOrder(NamedTuple):
    """An order of an operator to stop install boots, or all boots from the network, until an operator ends it."""

    who: str
    reason: str
    everything: bool

    def __str__(self) -> str:
        return f"{StopScope.ALL if self.everything else StopScope.WRITING} are stopped by {self.who}: {self.reason}"


class SoleClaim(NamedTuple):
    """A file of 2fefe59 that declares a host as the only one to serve the one-time boots of some sites."""

    file: str
    sites: tuple[str, ...]  # sorted; () if the file cannot be read
    fetch_log: str  # the folder where the fetches of that host belong

    def __str__(self) -> str:
        whose = f"of {', '.join(self.sites)}" if self.sites else "of a site"
        return f"another host served the one-time boots {whose} alone (gitboot serve --sole-for, {self.file})"
