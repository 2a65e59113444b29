"""A revision as far as it could be read, before it is known whether it holds together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from gitboot.fleet.documents import ANYTHING, AllUnread, ParsedBlob
from gitboot.fleet.resources import FleetRepository, Id, Origin, Resource
from gitboot.fleet.revision import Snapshot
from gitboot.jsonio import API_VERSION
from gitboot.load.references import references
from gitboot.load.remarks import Remark, Spot
from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fleet import Fleet
from gitboot.model.scalar_from_document import Path
from gitboot.model.server import Server
from gitboot.model.structure import read
from gitboot.problems.codes import Code, Problem


def _no_fleet() -> Fleet:
    metadata, spec = {"name": "fleet"}, {"baseURL": "http://fleet.invalid"}
    return read(Fleet, {"apiVersion": API_VERSION, "kind": "Fleet", "metadata": metadata, "spec": spec})


class Draft:
    """The resources of all files, and what is known of those that could not be read."""

    def __init__(self, snapshot: Snapshot, irregular: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        self._irregular = frozenset(irregular)
        self._lengths = {len(path) for path in irregular}
        self.unread = AllUnread([ANYTHING] if irregular else [])  # what could not be read may be a resource, too
        self.resources: dict[Id, Resource] = {}
        self.files: dict[str, bytes] = {}  # that resources name
        self.remarks: list[Remark] = []
        self.problems: list[Problem] = []
        self.more: Counter[str] = Counter()  # by path, problems of the file that are not among these
        self._origins: dict[Id, Origin] = {}
        self._broken: set[Id] = set()
        self._twice: set[Id] = set()

    def add(self, path: str, parsed: ParsedBlob) -> None:
        """Take in what the file at ``path`` says, and what is wrong with it."""
        self.problems += (replace(problem, path=path) for problem in parsed.problems)
        self.more[path] = parsed.more
        self._broken.update(parsed.broken)
        for each in parsed.unread:
            self.unread.add(each)
        for index, resource in parsed.resources:
            key = Id(type(resource).__name__, resource.metadata.name)
            origin = Origin(path, self.snapshot.blobs[path], index)
            if key in self.resources:
                self.remarks.append(self._duplicate_name(key, origin))
                self._twice.add(key)
            else:
                self.resources[key], self._origins[key] = resource, origin

    def _duplicate_name(self, key: Id, origin: Origin) -> Remark:
        at: Path = ("metadata", "name")
        return Remark(
            spot=(origin, at),
            code=Code.DUPLICATE_NAME,
            message=lambda first: f"{key} stands at {first} already",
            hint="rename or remove one of the two",
            other=self.spot(key, at),
        )

    def of(self, kind: type[Resource]) -> list[tuple[Id, Any]]:
        """The resources of a kind, by name."""
        return sorted((key, found) for key, found in self.resources.items() if key.kind == kind.__name__)

    def known(self) -> set[Id]:
        """Every resource that there is, with those that are broken: to name one of these is no second problem."""
        return self._broken | self.resources.keys()

    def could_hold(self, path: str) -> bool:
        """Whether a path is, or would lie below, one at which there may be anything."""
        prefixes = (path[:length] for length in self._lengths if path[length : length + 1] in ("", "/"))
        return any(prefix in self._irregular for prefix in prefixes)

    def spot(self, resource: Id, at: Path) -> Spot:
        return self._origins[resource], at

    def whole(self) -> frozenset[Id]:
        """The resources that stand once, and of which everything that they name is there, too."""
        kept = self.resources.keys() - self._twice
        while lacking := {key for key in kept if not self._has_all(key, kept)}:
            kept -= lacking
        return frozenset(kept)

    def _has_all(self, key: Id, kept: set[Id]) -> bool:
        if key.kind == "Fleet":
            return True  # the others hold together by it, whatever profile it lacks
        named = ((kind, name) for kind, name, _ in references(self.resources[key]) if kind != "Server")
        return all(name in self.files if kind == "file" else Id(kind, name) in kept for kind, name in named)

    def repository(self, kept: frozenset[Id] | None = None) -> FleetRepository:
        """The resources as a repository, or some of them; a revision without a Fleet has one that says nothing."""

        def named(kind: type[Resource]) -> dict[str, Any]:
            return {key.name: resource for key, resource in self.of(kind) if kept is None or key in kept}

        return FleetRepository(
            revision=self.snapshot.revision,
            fleet=next((resource for _, resource in self.of(Fleet)), None) or _no_fleet(),
            servers=named(Server),
            images=named(BootImage),
            streams=named(ImageStream),
            profiles=named(BootProfile),
            policies=named(BootPolicy),
            maintenances=named(Maintenance),
            files=dict(sorted(self.files.items())),
            origins=self._origins,
            read=self.snapshot.read,
        )
