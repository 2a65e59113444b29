"""Everything that decisions read of a commit: for one server, and for unknown machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gitboot.fleet.resources import Id
from gitboot.model.boot_image import BootImage, Skew
from gitboot.model.boot_policy import BootProfile, Maintenance
from gitboot.model.fleet import Output, Serving
from gitboot.model.server import Loader, Server
from gitboot.resolve.found import Field
from gitboot.resolve.policy_selection import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetTerms:
    """The fields of a Fleet that the decision of each server depends on."""

    name: str
    is_written: bool  # False: the commit has no Fleet document
    outputs: tuple[Output, ...]  # sorted; those that boot loaders use, and the mirror
    serving: Serving
    is_stopped: bool
    is_declared: bool  # an annotation of the server is the evidence that it was provisioned
    attempts: int
    requires_policy: bool
    unknown_not_found: bool  # gitboot answers unknown machines with 404
    has_instances_by_site: bool

    @property
    def mirrors(self) -> bool:
        return Output.MIRROR in self.outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class BootInputs:
    """What a profile boots, and the files that the profile names."""

    profile: BootProfile
    image: BootImage | None  # None: method Disk boots no image
    chosen_by: Id | None  # the document that chose the image; None: the server's pin
    chosen_at: Field  # the field of that document
    skew: Skew | None  # of the stream
    files: Mapping[str, bytes]  # by path: templates and secrets
    allowances: Mapping[str, str]  # why the author allows a secret, by the field of the profile in which it is


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceInputs:
    """A maintenance, and what it boots."""

    maintenance: Maintenance
    boot: BootInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedInputs:
    """Everything that the decisions of similar servers have in common."""

    fleet: FleetTerms
    sites: tuple[str, ...]  # that select the server; the first one is its site
    base_url: str
    endpoint: str | None
    local_disk: str | None  # of the hardware
    loader: Loader | None  # of the hardware
    pool: Pool | None  # the policy that won
    boot: BootInputs | None  # of that policy
    tied: tuple[str, ...]  # the policies, if several won
    is_unselected: bool  # no policy selects the server, and none is broken
    maintenances: tuple[MaintenanceInputs, ...]

    @property
    def site(self) -> str | None:
        return self.sites[0] if self.sites else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerInputs:
    """Everything that the decision of one server is made of."""

    server: Server
    files: Mapping[str, bytes]  # by path: those that the server names
    shared: SharedInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownInputs:
    """Everything that the boots of unknown machines are made of."""

    fleet: str
    base_url: str
    endpoint: str | None
    mirrors: bool
    boot: BootInputs | None  # None: the Fleet has no profile for unknown machines
