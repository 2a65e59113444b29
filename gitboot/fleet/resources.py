"""A resource of any kind, what it is called, and where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gitboot.load.snapshot import BlobId
from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fleet import Fleet
from gitboot.model.server import Server

Resource = Fleet | Server | BootImage | ImageStream | BootProfile | BootPolicy | Maintenance

KINDS: Final[Mapping[str, type[Resource]]] = {
    kind.__name__: kind for kind in (Fleet, Server, BootImage, ImageStream, BootProfile, BootPolicy, Maintenance)
}


class Id(NamedTuple):
    """A resource's kind and name, as messages and reasons show them: BootPolicy/web."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Origin(NamedTuple):
    """Where a resource is written."""

    path: str
    blob: BlobId
    document: int  # which of its file, 0-based
