"""Revisions: a commit's files, message and author, and mappings that share values with an earlier revision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from heapq import merge
from math import isqrt
from typing import Any, NamedTuple, NewType, TypeVar

from msgspec import Struct, field, structs


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


BlobId = NewType("BlobId", str)  # an ID of a file's content; equal IDs mean equal content
Revision = NewType("Revision", str)  # a commit ID, or WORKTREE


class Irregular(StrEnum):
    """A kind of Git tree entry that gitboot cannot read as a file."""

    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    FILE_NAME = "file name"


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
        """Return the snapshot with these files changed or added.

        ``change`` is the name of the change in the new revision.
        """
        contents = {BlobId(f"{change}: {path}"): content for path, content in files.items()}
        return structs.replace(
            self,
            revision=Revision(f"{self.revision} and {change}"),
            blobs=dict(sorted({**self.blobs, **{path: BlobId(f"{change}: {path}") for path in files}}.items())),
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


K = TypeVar("K", bound=Any)
V = TypeVar("V")


def merge_changes(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the removed keys.

    If the result would equal ``before``, return ``before`` itself. If keys are added, the keys of ``before`` must be
    sorted. The caller must not change ``before`` afterwards.
    """
    if all(before.get(key) == each for key, each in changed.items()) and not any(key in before for key in removed):
        return before
    return apply_changes(before, changed, removed)


def apply_changes(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the removed keys. Do not check whether anything differs."""
    if not changed and not removed:
        return before
    base, over, removed_keys = before, dict(changed), set[K]()
    if isinstance(before, Overlay):
        base, over, removed_keys = before.base, {**before.over, **changed}, before.removed_keys - changed.keys()
    for key in removed:
        over.pop(key, None)
        if key in base:
            removed_keys.add(key)
    if not base:
        return over if (order := sorted(over)) == list(over) else {key: over[key] for key in order}
    added_keys = tuple(sorted(key for key in over if key not in base))
    # Each change copies the upper layer, and sometimes also the base. The total cost is lowest if the size of the upper
    # layer is at most about the square root of the size of the base. A base that is not a dict may compute its values
    # on access.
    if len(over) + len(removed_keys) <= (2 * isqrt(len(base)) if isinstance(base, dict) else len(base)):
        return Overlay(base, over, removed_keys, added_keys)
    flat = {**base, **over}
    for key in removed_keys:
        del flat[key]
    return dict(sorted(flat.items())) if added_keys else flat


def find_differing_keys(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    """Return the keys whose values are different objects in the two mappings.

    If both mappings share a base, the values in the base need no comparison.
    """
    (base, touched), (other_base, other_touched) = _split_layers(before), _split_layers(after)
    keys = {*touched, *other_touched} if base is other_base else {*before, *after}
    return {key for key in keys if before.get(key) is not after.get(key)}


def _split_layers(mapping: Mapping[K, V]) -> tuple[Mapping[K, V], Collection[K]]:
    """Return the base of a mapping, and the keys whose values may differ from the base."""
    if isinstance(mapping, Overlay):
        return mapping.base, mapping.over.keys() | mapping.removed_keys
    return mapping, ()


class Overlay(Mapping[K, V]):
    """A mapping that shares nearly all of its values with a base mapping."""

    __slots__ = ("added_keys", "base", "over", "removed_keys")

    def __init__(self, base: Mapping[K, V], over: dict[K, V], removed_keys: set[K], added_keys: tuple[K, ...]) -> None:
        self.base, self.over, self.removed_keys = base, over, removed_keys
        self.added_keys = added_keys  # the sorted keys that the base does not contain

    def __getitem__(self, key: K) -> V:
        if key in self.over:
            return self.over[key]
        if key in self.removed_keys:
            raise KeyError(key)
        return self.base[key]

    def get(self, key: K, /, default: Any = None) -> Any:
        if key in self.over:
            return self.over[key]
        return default if key in self.removed_keys else self.base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.over or (key in self.base and key not in self.removed_keys)

    def __iter__(self) -> Iterator[K]:
        below = (key for key in self.base if key not in self.removed_keys) if self.removed_keys else iter(self.base)
        return merge(below, self.added_keys) if self.added_keys else iter(below)

    def __len__(self) -> int:
        return len(self.base) - len(self.removed_keys) + len(self.added_keys)
