"""Stop orders of operators, and claims of other hosts: why gitboot serves fewer boots than the commit has."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
