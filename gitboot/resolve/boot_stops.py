"""Boot stops: orders and claims outside Git that withhold boots."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class StopScope(StrEnum):
    """Which boots a stop order or a condition stops, in addition to the boots that the commit stops."""

    NONE = "none"
    WRITING = "boots that write disks"
    ALL = "all boots from the network"


class StopOrder(NamedTuple):
    """An operator's order to stop install boots or all network boots until an operator lifts it."""

    who: str
    reason: str
    everything: bool

    def __str__(self) -> str:
        return f"{StopScope.ALL if self.everything else StopScope.WRITING} are stopped by {self.who}: {self.reason}"


class SoleClaim(NamedTuple):
    """A file from commit 2fefe59 which declares that one host alone serves the one-time boots of some sites."""

    file: str
    sites: tuple[str, ...]  # sorted; () if the file cannot be read
    fetch_log: str  # the fetch log folder of that host

    def __str__(self) -> str:
        whose = f"of {', '.join(self.sites)}" if self.sites else "of a site"
        return f"another host served the one-time boots {whose} alone (gitboot serve --sole-for, {self.file})"
