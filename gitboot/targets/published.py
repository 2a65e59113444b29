"""The published directory as a target follows it: read while it is published to, and believed only where it fits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.errors import TryAgain
from gitboot.jsonio import canonical
from gitboot.publish.manifest import (
    MANIFEST,
    digest_of,
    leaf_path,
    node_path,
    parse_digests,
    parse_head,
    parse_listing,
    render_listing,
)
from gitboot.publish.manifest import SHARED as SHARED_LISTING
from gitboot.publish.mirror_comparison import Served, served
from gitboot.publish.targets.sync_steps import LIST, SHARED, TargetFile
from gitboot.render.endpoint_files import parse, state_path
from gitboot.render.paths import BOOT, LIST_TIMESTAMP, SIGNED

_MORE_TRIES: Final = 3
_NEVER_CHANGES: Final = re.compile(r"\d+\.(?:snapshot|servers-[0-9a-f]{2})\.json")


class Overtaken(TryAgain):
    """The directory was published to while it was read: what comes of that is read the next time."""


class Glance(NamedTuple):
    """A published tree at a glance."""

    commit: str
    manifest: str  # the digest of its head
    states: Mapping[str, str]  # the digest of each server's state, and of what is nobody's


class FollowedTree:
    """The directory at ``root``; what the manifest says has not changed is not read again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._nodes: dict[str, tuple[str, dict[str, str]]] = {}  # by name: its digest, and the servers below it
        self._shared: dict[str, str] = {}  # sha256 by path of what is nobody's and for machines
        self._list: dict[str, str] = {}  # sha256 by path of the signed list

    def look(self) -> Glance | None:
        """What is published; None where nothing is. Raises `Overtaken`."""
        for _ in range(_MORE_TRIES):
            try:
                return self._look()
            except Overtaken:
                continue
        return self._look()

    def _look(self) -> Glance | None:
        # Read before the manifest: a list that is newer than what it is of would reach a target first.
        self._list = self._list_files()
        try:
            data = (self._root / MANIFEST).read_bytes()
            head = parse_head(data)
        except (FileNotFoundError, ValueError):  # of an older gitboot: what this one publishes will be read
            return None
        for node, digest in head.nodes.items():
            if self._nodes.get(node, ("",))[0] != digest:
                self._nodes[node] = digest, self._servers(node, digest)
        for node in self._nodes.keys() - head.nodes.keys():
            del self._nodes[node]
        states = {server: state for _, servers in self._nodes.values() for server, state in servers.items()}
        if head.shared is not None:
            listing = parse_listing(self._part(SHARED_LISTING, head.shared))
            listing = {path: each for path, each in listing.items() if path.startswith(BOOT)}
            self._shared = {path: each.sha256 for path, each in listing.items()}
            states[SHARED] = digest_of(render_listing(listing))
        if self._list:
            states[LIST] = digest_of(canonical(self._list))
        return Glance(commit=head.stamp.commit, manifest=digest_of(data), states=states)

    def _list_files(self) -> dict[str, str]:
        """Return the sha256 of each file of the signed list that no server's state lists, by path.

        A bin and a snapshot have a version in their names and never change. The root metadata of a new root key has the
        names of the one before. Raises `Overtaken`.
        """
        found = {}
        try:
            for file in sorted((self._root / SIGNED).iterdir()):
                path = f"{SIGNED}{file.name}"
                if file.suffix == ".json":
                    is_known = path in self._list and _NEVER_CHANGES.fullmatch(file.name) is not None
                    found[path] = self._list[path] if is_known else digest_of(file.read_bytes())
        except FileNotFoundError as error:
            if (self._root / LIST_TIMESTAMP).exists():
                raise Overtaken(f"{SIGNED} is being published") from error
        return found if LIST_TIMESTAMP in found else {}

    def _servers(self, node: str, digest: str) -> dict[str, str]:
        leaves = parse_digests(self._part(node_path(node), digest))
        return {
            server: state
            for leaf, expected in leaves.items()
            for server, state in parse_digests(self._part(leaf_path(node, leaf), expected)).items()
        }

    def served(self, server: str, digest: str) -> Served:
        """What a target has of a server whose state has this digest. Raises `Overtaken`."""
        if server == SHARED:
            return Served(self._shared, {}, frozenset())
        if server == LIST:
            return Served(self._list, {}, frozenset())
        return served(parse(self._part(state_path(server), digest)))

    def file(self, path: str, digest: str) -> TargetFile:
        """Return a file that has to have this digest, with its time. Raises `Overtaken`."""
        try:
            return self._file(path, digest)
        except Overtaken:
            self._list.pop(path, None)  # somebody replaced it, whatever its name is
            raise

    def stands(self, path: str) -> bool:
        """Whether a file is published there, by whomever."""
        return (self._root / path).is_file()

    def _part(self, path: str, digest: str) -> bytes:
        return self._file(path, digest).content

    def _file(self, path: str, digest: str) -> TargetFile:
        try:
            with (self._root / path).open("rb") as file:
                found = TargetFile(file.read(), int(os.fstat(file.fileno()).st_mtime))
        except OSError as error:
            raise Overtaken(f"{path}: {error.strerror}") from error
        if digest_of(found.content) != digest:
            raise Overtaken(f"{path} is being published")
        return found
