"""Revisions: the files, message, author and signer of a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, NewType

from msgspec import Struct, field, structs


class Verify(StrEnum):
    """The objects that a trusted key must sign before gitboot accepts a commit."""

    HEAD = "head"  # the newest commit
    RANGE = "range"  # each first-parent commit since the accepted commit
    TAG = "tag"  # the tag that gitboot follows, which points to the newest commit


class ReinstallsNeed(StrEnum):
    """The requirement for a commit that installs servers again."""

    APPROVE = "approve"  # `gitboot approve` on the host of the instance
    SIGNED = "signed"  # `gitboot approve`, or a line in the message of a commit that is signed by a listed key


class Signer(NamedTuple):
    """The owner of a signing key, as named in the settings of the instance."""

    person: str  # a principal of the allowed signers, the user ID of an OpenPGP key, or the name of a forge
    key: str  # the key's fingerprint
    # Whether the key belongs to a forge. Such a signature proves that the forge created the merge, but not who
    # requested it.
    is_forge: bool = False

    def __str__(self) -> str:
        return f"{self.person} ({self.key})"


class Message(NamedTuple):
    """The message of a commit, with its author and signer."""

    commit: str
    text: str
    author: str = ""  # Name <address>, not verified
    committer: str = ""
    signer: Signer | None = None  # None: the commit is not signed by a trusted key, or was not verified
    content: str = ""  # SHA-256 of the commit without its signatures, if the message may contain an acknowledgement

    @property
    def by(self) -> str:
        """Return a text that names the signer, the author, the committer and the commit of the message."""
        names = [self.author, *([f"committed by {self.committer}"] if self.committer not in ("", self.author) else [])]
        written = ", ".join((*filter(None, names), f"in {self.commit[:12]}"))
        return f"{self.signer}: {written}" if self.signer is not None else f"{written}, not signed by a trusted key"


BlobId = NewType("BlobId", str)  # identifies content: equal IDs mean equal bytes
Revision = NewType("Revision", str)  # a commit ID, or WORKTREE


class Irregular(StrEnum):
    """A kind of Git tree entry that gitboot cannot read as a file."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    FILE_NAME = "file name"


class Oversized(Exception):
    """The blob was not read, because it exceeds the size limit for files of a fleet."""

    def __init__(self, size: int) -> None:
        self.size = size  # bytes
        super().__init__(f"{size:,} bytes")


class Snapshot(Struct, frozen=True, kw_only=True):
    """The files of a revision below the fleet's root directory, and a function that reads them."""

    revision: Revision
    blobs: Mapping[str, BlobId]  # the blob at each path, with "/" between folders
    read: Callable[[BlobId], bytes]  # raises `Oversized`
    irregular: Mapping[str, Irregular] = field(default_factory=dict)
    folder: str = ""  # the fleet's root directory in the repository
    changed: frozenset[str] | None = None  # paths that changed since the previous snapshot; None: unknown

    def replace_files(self, files: Mapping[str, bytes], change: str) -> Snapshot:
        """Return the snapshot with these files changed or added. ``change`` names the change in the revision."""
        contents = {BlobId(f"{change}: {path}"): content for path, content in files.items()}
        blobs = {**self.blobs, **{path: BlobId(f"{change}: {path}") for path in files}}
        return structs.replace(
            self,
            revision=Revision(f"{self.revision} and {change}"),
            blobs=dict(sorted(blobs.items())),
            read=lambda blob: contents[blob] if blob in contents else self.read(blob),
            changed=None,
        )


MAX_FILE_BYTES = 16 * 1024 * 1024


class CommitSummary(Struct, frozen=True, kw_only=True):
    """The author, date and subject of a commit."""

    revision: Revision
    author: str  # Name <address>
    date: datetime  # the author date
    subject: str


class FileChanges(Struct, frozen=True, kw_only=True):
    """A commit, and the fleet's files that differ from the commit's first parent."""

    commit: CommitSummary
    files: tuple[str, ...]  # sorted paths below the fleet's root directory
