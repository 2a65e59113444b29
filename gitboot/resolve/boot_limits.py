"""Limits of boots: stop orders, claims of other hosts, and how long a boot stays valid."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

FETCH_GRACE: Final = timedelta(seconds=60)  # a loader's own retry still finds the boot that it fetched
CONSUMED_GRACE: Final = timedelta(minutes=30)  # how long an override's evidence may take after it was consumed
SERVED_GRACE: Final = timedelta(minutes=30)  # how long an installation that reports no completion is shown as served
DATA_GRACE: Final = timedelta(hours=2)  # how long a system that was booted may ask for its user data


class StopScope(StrEnum):
    """Which boots are stopped by something besides the commit."""

    NONE = "none"
    WRITING = "boots that write disks"
    ALL = "all boots from the network"


class StopOrder(NamedTuple):
    """No boot that writes disks is offered, or none at all from the network, until somebody ends that."""

    who: str
    reason: str
    everything: bool

    def __str__(self) -> str:
        return f"{StopScope.ALL if self.everything else StopScope.WRITING} are stopped by {self.who}: {self.reason}"


class SoleClaim(NamedTuple):
    """A host may have served the one-time boots of some sites alone, as a file of 2fefe59 states."""

    file: str
    sites: tuple[str, ...]  # sorted; () if the file cannot be read
    fetch_log: str  # the folder where the fetches of that host belong

    def __str__(self) -> str:
        whose = f"of {', '.join(self.sites)}" if self.sites else "of a site"
        return f"another host served the one-time boots {whose} alone (gitboot serve --sole-for, {self.file})"
