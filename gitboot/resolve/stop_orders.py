"""Stop orders of operators, and claims of other hosts: why gitboot serves fewer boots than the commit has."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
