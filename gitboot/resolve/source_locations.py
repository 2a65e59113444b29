"""Source locations for the page: the file of each document, and the lines of the values in it.

The lines of a document move when somebody edits above it. So the page's data of a server names no line of a file: it
names the document and the path of each value, or the line within the server's own document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gitboot.fleet.layered_dict import differing
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.fleet.revision import BlobId
from gitboot.fleet.yaml import document_text, lines_above, locate, value_lines
from gitboot.model.scalars.machines import Path


class ServerLocation(NamedTuple):
    """The place of a server's document."""

    file: str
    lines_above: int  # in the file


class DocumentLocation(NamedTuple):
    """The place of a document that servers may share, and of each value in it."""

    file: str
    lines: dict[str, int]  # by the JSON pointer (RFC 6901) of the value


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLocations:
    """The places of the documents of a commit."""

    servers: Mapping[str, ServerLocation] = field(default_factory=dict)  # by the name of the server
    shared: Mapping[str, DocumentLocation] = field(default_factory=dict)  # by kind and name: BootPolicy/web


def pointer(path: Path) -> str:
    """Return the JSON pointer of a value."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


class SourceTexts:
    """The texts of a commit's documents. Keeps the file that was read last."""

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self._blob: BlobId | None = None
        self._data = b""

    def text(self, resource: Id) -> bytes:
        """Return a document as it is written."""
        return document_text(*self._file(resource))

    def line_within(self, resource: Id, path: Path) -> int:
        """Return the line of a value in its document, 1-based."""
        data, index = self._file(resource)
        return locate(data, index, path).line - lines_above(data, index)

    def of_server(self, name: str) -> ServerLocation:
        """Return the place of a server's document."""
        resource = Id("Server", name)
        return ServerLocation(self._repository.origins[resource].path, lines_above(*self._file(resource)))

    def of_shared(self, resource: Id) -> DocumentLocation:
        """Return the place of a document that is not a server's, and of each value in it."""
        lines = value_lines(*self._file(resource))
        file = self._repository.origins[resource].path
        return DocumentLocation(file, {pointer(path): line for path, line in lines.items()})

    def _file(self, resource: Id) -> tuple[bytes, int]:
        origin = self._repository.origins[resource]
        if origin.blob != self._blob:
            self._data, self._blob = self._repository.read(origin.blob), origin.blob
        return self._data, origin.document


def source_locations(repository: FleetRepository) -> SourceLocations:
    """Return the places of all documents."""
    texts = SourceTexts(repository)
    shared = sorted(each for each in repository.origins if each.kind != "Server")
    return SourceLocations(
        servers={name: texts.of_server(name) for name in repository.servers},
        shared={str(each): texts.of_shared(each) for each in shared},
    )


def moved_documents(before: FleetRepository, now: FleetRepository) -> list[Id]:
    """Return the documents of either commit whose file, or whose place among the file's documents, differs. Sorted."""
    old, new = before.origins, now.origins
    return sorted(each for each in differing(old, new) if old.get(each) != new.get(each))
