"""Revision: its files, message, author and signer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, NewType

from msgspec import Struct, field


class Verify(StrEnum):
    """What has to be signed by a trusted key before it is accepted."""

    HEAD = "head"  # the newest commit
    RANGE = "range"  # each first-parent commit since the accepted one
    TAG = "tag"  # the tag that is followed, which points to the newest commit


class ReinstallsNeed(StrEnum):
    """What acknowledges that servers are installed again, besides which nothing does."""

    APPROVE = "approve"  # `gitboot approve`, where the instance runs
    SIGNED = "signed"  # that, or a line in a commit that a listed key has signed


class Signer(NamedTuple):
    """Whose key has signed something, as the instance's own settings call it."""

    person: str  # of allowed signers the principal, of an OpenPGP key its user id, of a forge its name
    key: str  # the key's fingerprint
    is_forge: bool = False  # a forge's own key: it proves that the forge has merged, and nothing of a person

    def __str__(self) -> str:
        return f"{self.person} ({self.key})"


class Message(NamedTuple):
    """A commit's message, and who says it."""

    commit: str
    text: str
    author: str = ""  # Name <address>, as whoever made the commit has written it
    committer: str = ""
    signer: Signer | None = None  # None: not signed by a trusted key, or nobody has looked
    content: str = ""  # SHA-256 of the commit without its signatures, if it may acknowledge something

    @property
    def by(self) -> str:
        """Who says it, in words: whose key proves it, or else who the commit itself says has made it."""
        names = [self.author, *([f"committed by {self.committer}"] if self.committer not in ("", self.author) else [])]
        written = ", ".join((*filter(None, names), f"in {self.commit[:12]}"))
        return f"{self.signer}: {written}" if self.signer is not None else f"{written}, not signed by a trusted key"


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


class Snapshot(Struct, frozen=True, kw_only=True):
    """The files of one revision below the fleet's root: what is there, and how to read it."""

    revision: Revision
    blobs: Mapping[str, BlobId]  # path -> content, "/" between folders
    read: Callable[[BlobId], bytes]  # raises `Oversized`
    irregular: Mapping[str, Irregular] = field(default_factory=dict)
    folder: str = ""  # of the repository, in which that root is
    changed: frozenset[str] | None = None  # paths that differ from the snapshot before; None: any may


MAX_FILE_BYTES = 16 * 1024 * 1024
