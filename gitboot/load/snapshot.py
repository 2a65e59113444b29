"""What a revision's files are, before any of them is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

BlobId = NewType("BlobId", str)  # names a blob's content: equal ids, equal bytes
Revision = NewType("Revision", str)  # a commit id, or WORKTREE


class Irregular(StrEnum):
    """What a tree holds that is not a file with content of its own."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    FILE_NAME = "file name"


class Oversized(Exception):
    """A blob that is larger than any file of a fleet, and so was not read."""

    def __init__(self, size: int) -> None:
        self.size = size  # bytes
        super().__init__(f"{size:,} bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The files of one revision below the fleet's root: what is there, and how to read it."""

    revision: Revision
    blobs: Mapping[str, BlobId]  # path -> content, "/" between folders
    read: Callable[[BlobId], bytes]  # raises `Oversized`
    irregular: Mapping[str, Irregular] = field(default_factory=dict)
    folder: str = ""  # of the repository, in which that root is
    changed: frozenset[str] | None = None  # paths that differ from the snapshot before; None: any may
