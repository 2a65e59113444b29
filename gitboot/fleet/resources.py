"""Types for the resources of a revision, with the files and locations of their documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from gitboot.fleet.revision import BlobId, Revision
from gitboot.fleet.yaml import Place, locate
from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fleet import Fleet
from gitboot.model.image_source import ImageSource
from gitboot.model.server import Server
from gitboot.problems import Code, Problem, Severity

Resource = Fleet | Server | BootImage | ImageStream | ImageSource | BootProfile | BootPolicy | Maintenance
KINDS: Final[Mapping[str, type[Resource]]] = {
    kind.__name__: kind
    for kind in (Fleet, Server, BootImage, ImageStream, ImageSource, BootProfile, BootPolicy, Maintenance)
}


class Id(NamedTuple):
    """The kind and the name of a resource. Messages show them in the form BootPolicy/web."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Origin(NamedTuple):
    """The location of a document in the repository."""

    path: str
    blob: BlobId
    document: int  # the 0-based index of the document in its file


class FleetRepository(Struct, frozen=True, kw_only=True):
    """The content of a valid revision: all resources, sorted by name, and the files to which they refer."""

    revision: Revision
    fleet: Fleet
    servers: Mapping[str, Server]
    images: Mapping[str, BootImage]
    streams: Mapping[str, ImageStream]
    profiles: Mapping[str, BootProfile]
    policies: Mapping[str, BootPolicy]
    maintenances: Mapping[str, Maintenance]
    files: Mapping[str, bytes]  # the contents of the templates, certificates and secrets to which resources refer
    origins: Mapping[Id, Origin]
    read: Callable[[BlobId], bytes]
    # only commands that find images use these resources; they do not affect decisions
    image_sources: Mapping[str, ImageSource] = {}

    def find_place(self, resource: Id, *path: str | int) -> tuple[str, Place]:
        """Return the file of a resource, and the location of the value at ``path``.

        If there is no value, return the location of the nearest parent.
        """
        origin = self.origins[resource]
        return origin.path, locate(self.read(origin.blob), origin.document, path)

    def build_problem(
        self,
        code: Code,
        message: str,
        resource: Id,
        *path: str | int,
        hint: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Problem:
        file, place = self.find_place(resource, *path)
        return Problem(
            path=file,
            line=place.line,
            column=place.column,
            code=code,
            message=message,
            hint=hint,
            severity=severity,
        )
