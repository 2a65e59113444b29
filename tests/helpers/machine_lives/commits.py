"""What Git says of the one server of `tests.helpers.machine_lives.lives`, commit by commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from gitboot.jsonio import format_instant
from tests.helpers import fleets
from tests.helpers.instance_doubles import Commits

_FLEET = "baseURL: 'http://boot.test', provisioning: {monitors: [10.9.0.0/24]}"


class Way(Enum):
    """How the server boots from the network."""

    ENTRY = "entry"  # DHCP's loader asks for it
    DIRECT = "direct"  # firmware fetches a uki
    MEDIUM = "medium"  # its BMC inserts an ISO
    MEDIA = "media"  # and its user data in another drive


_PROFILES: Final = {
    Way.ENTRY: ("Pxe", ""),
    Way.DIRECT: ("UefiHttp", "httpBoot: uki"),
    Way.MEDIUM: ("VirtualMedia", ""),
    Way.MEDIA: ("VirtualMedia", "userData: {format: CloudInit, template: t}"),
}
_IMAGES: Final = {
    Way.ENTRY: ("", "kernel, initrd"),
    Way.DIRECT: ("configFrom: None", "uki"),
    Way.MEDIUM: ("configFrom: None", "iso"),
    Way.MEDIA: ("configFrom: Medium, userData: CloudInit", "iso"),
}


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A maintenance."""

    start: datetime
    end: datetime
    often: str = "Once"
    run: int = 1

    def document(self) -> str:
        window = f"window: {{start: '{format_instant(self.start)}', end: '{format_instant(self.end)}'}}"
        return fleets.maintenance("repair", "", f"{window}, networkBoot: {self.often}, run: {self.run}")


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What Git says of the server."""

    often: str = "Once"
    provision: int = 1
    image: int = 1
    override: str | None = None  # None: what follows from `often`
    lifecycle: str = "Active"
    here: bool = True  # whether it has a document
    name: str = "web01"
    board: int = 0
    bmc: str | None = "a"
    repair: Repair | None = None

    @property
    def uuid(self) -> str:
        return fleets.uuid_of(f"board-{self.board}")

    def documents(self, addresses: Mapping[str, str], system: str, *, way: Way) -> list[str]:
        spec = f"provision: {self.provision}, lifecycle: {self.lifecycle}"
        if self.bmc is not None:
            spec += f", bmc: {{address: '{addresses[self.bmc]}', system: {system}, credentials: rack}}"
        text = fleets.server(self.name, "role: web", spec).replace(fleets.uuid_of(self.name), self.uuid)
        text = text.replace(fleets.mac_of(self.name), fleets.mac_of("web01"))
        method, more = _PROFILES[way]
        override = f"override: {self.override}" if self.override is not None else ""
        return [
            fleets.fleet(_FLEET),
            *([text] if self.here else []),
            *(fleets.image(f"flatcar-{number}", *_IMAGES[way]) for number in (1, 2)),
            fleets.image("memtest-7", "writesDisk: false"),
            fleets.profile("web", f"flatcar-{self.image}", more, method=method),
            fleets.profile("repair", "memtest-7"),
            fleets.policy("web", "{matchLabels: {role: web}}", override, often=self.often),
            *([self.repair.document()] if self.repair is not None else []),
        ]

    def boots_once(self, at: datetime) -> str | None:
        """What the boot that is wanted at an instant would count for by being made once; None: for nothing."""
        if self.repair is not None and self.repair.start <= at < self.repair.end:
            return f"repair/{self.repair.run}" if self.repair.often == "Once" else None
        if self.often == "OnImageChange":
            return f"provision/{self.provision}/{self.image}"
        return f"provision/{self.provision}" if self.often == "Once" else None

    def boots_network(self, at: datetime) -> bool:
        """Whether a boot from the network may be wanted at an instant."""
        if not self.here or self.lifecycle != "Active":
            return False
        repairing = self.repair is not None and self.repair.start <= at < self.repair.end
        return repairing or self.often != "Never"


class Branch(Commits):
    """A branch on which commits come again and again."""

    def write(self, documents: list[str]) -> None:
        self.push(fleets.snapshot(*documents, files={"t": "#cloud-config\n"}))
