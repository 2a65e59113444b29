"""What one boot is composed of, and what is said where no boot comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gitboot.fleet.resources import Id
from gitboot.model.boot_image import BootImage
from gitboot.model.boot_policy import BootProfile, Maintenance
from gitboot.model.server import Architecture, Firmware, Server
from gitboot.problems.codes import Code
from gitboot.resolve.policy_selection import Pool
from gitboot.resolve.server_plan import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class BootSource:
    """What one boot is composed of."""

    image: BootImage
    profile: BootProfile
    architecture: Architecture
    firmware: Firmware
    base_url: str
    endpoint: str  # the URL of who gives what is made once
    phase: Phase
    mirrors: bool  # whether the mirror serves the files of images
    files: Mapping[str, bytes]  # by path: those that the profile and the server name
    server: Server | None = None  # None: an unknown machine
    pool: Pool | None = None  # None: under a maintenance no policy field applies
    maintenance: Maintenance | None = None
    site: str | None = None

    @property
    def profile_id(self) -> Id:
        return Id("BootProfile", self.profile.metadata.name)

    @property
    def chosen_by(self) -> tuple[Id, tuple[str, ...]]:
        """The document by which just this machine boots the profile, and its field that says so."""
        if self.maintenance is not None:
            return Id("Maintenance", self.maintenance.metadata.name), ("spec", "select")
        if self.server is not None and self.server.spec.policy is not None:
            return Id("Server", self.server.metadata.name), ("spec", "policy")
        if self.pool is not None:
            return Id("BootPolicy", self.pool.name), ("spec", "select")
        return self.profile_id, ("spec", "method")  # an unknown machine


class Unbootable(Exception):
    """A boot that cannot work: the code, what is wrong, its hint, and the resource and field to look at."""

    def __init__(
        self,
        code: Code,
        message: str,
        hint: str,
        resource: Id,
        *path: str | int,
        template: tuple[str, int] | None = None,  # the file and line to look at instead, 1-based
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.resource, self.path = code, message, hint, resource, path
        self.template = template
