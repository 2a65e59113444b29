"""Revisions: a commit's files, message, author and signer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, NewType

from msgspec import Struct, field, structs

BlobId = NewType("BlobId", str)  # an ID of a file's content; equal IDs mean equal content
Revision = NewType("Revision", str)  # a commit ID, or WORKTREE


class Irregular(StrEnum):
    """A kind of Git tree entry that gitboot cannot read as a file."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    FILE_NAME = "file name"


MAX_FILE_BYTES: Final = 16 * 1024 * 1024  # the maximum size of a file of a fleet


class Oversized(Exception):
    """Raised if gitboot does not read a blob, because the blob exceeds the size limit for a fleet's files."""

    def __init__(self, size: int) -> None:
        self.size = size  # bytes
        super().__init__(f"{size:,} bytes")


class Snapshot(Struct, frozen=True, kw_only=True):
    """The files of a revision below the fleet's root directory, and a function that reads the files."""

    revision: Revision
    blobs: Mapping[str, BlobId]  # the blob at each path, with "/" between folders
    read: Callable[[BlobId], bytes]  # returns the content of a blob; raises `Oversized` if the blob is too large
    irregular: Mapping[str, Irregular] = field(default_factory=dict)
    folder: str = ""  # the fleet's root directory in the repository
    # the paths that changed since the previous snapshot; None: the changes are unknown
    changed: frozenset[str] | None = None

    def replace_files(self, files: Mapping[str, bytes], change: str) -> Snapshot:
        """Return the snapshot with these files changed or added. The irregular entries stay.

        ``change`` is the name of the change in the new revision. Each change of a snapshot needs another name, because
        the names of the new blobs contain the name of the change and not the content.
        """
        ids = {path: BlobId(f"{change}: {path}") for path in files}
        contents = {ids[path]: content for path, content in files.items()}
        return structs.replace(
            self,
            revision=Revision(f"{self.revision} and {change}"),
            blobs=dict(sorted({**self.blobs, **ids}.items())),
            read=lambda blob: contents[blob] if blob in contents else self.read(blob),
            changed=None,
        )


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


class Signer(NamedTuple):
    """The owner of a signing key. The owner's name comes from the settings of the instance."""

    person: str  # a principal in the allowed-signers file, the user ID of an OpenPGP key, or the name of a forge
    key: str  # the key's fingerprint
    # Whether the key belongs to a forge. The signature of a forge proves that the forge created the merge, but not
    # which person requested it.
    is_forge: bool = False

    def __str__(self) -> str:
        return f"{self.person} ({self.key})"


class Message(NamedTuple):
    """The message of a commit, with its author and signer."""

    commit: str
    text: str
    author: str = ""  # the author in the form Name <address>, which is not verified
    committer: str = ""
    signer: Signer | None = None  # None: no trusted key signed the commit, or gitboot did not verify the signature
    content: str = ""  # SHA-256 of the commit without its signatures, if the message may contain an acknowledgement

    @property
    def by(self) -> str:
        """Return a text that names the signer, the author, the commit, and the committer if it is not the author."""
        names = [self.author, *([f"committed by {self.committer}"] if self.committer not in ("", self.author) else [])]
        written = ", ".join((*filter(None, names), f"in {self.commit[:12]}"))
        return f"{self.signer}: {written}" if self.signer is not None else f"{written}, not signed by a trusted key"


class Verify(StrEnum):
    """The Git objects that a trusted key must have signed before gitboot accepts a commit."""

    HEAD = "head"  # the newest commit
    RANGE = "range"  # each first-parent commit since the accepted commit
    TAG = "tag"  # the tag that gitboot follows, which points to the newest commit


class ReinstallsNeed(StrEnum):
    """The permission that gitboot requires before it accepts a commit that would reinstall servers."""

    APPROVE = "approve"  # an operator must run `gitboot approve` on the host of the instance
    # an operator must run `gitboot approve`, or a commit signed by a listed key must contain a certain line
    SIGNED = "signed"
