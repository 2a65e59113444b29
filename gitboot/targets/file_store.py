"""The files of a target, wherever they lie: a bucket, a folder, or another host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

MAX_RECORD_BYTES: Final = 32 << 20  # of a file below ops/; a shard of a million servers has 12 MiB


class FileConflict(Exception):
    """A file differs from the one that was to be replaced, or exists although it was to be new."""


class StoredFile(NamedTuple):
    """A file that a store has."""

    content: bytes
    version: str | None  # what `replace` compares; None: the store has no versions


class TargetFile(NamedTuple):
    """A file to be written."""

    content: bytes
    modified: int  # in seconds since 1970; a web server sends it as Last-Modified


class Expected(NamedTuple):
    """What a path has to have."""

    sha256: str
    size: int  # in bytes


ReadFile = Callable[[str], TargetFile]  # by path; raises `Overtaken`
TakeFile = Callable[[str, StoredFile | None], None]  # a path, and its file; None: absent


class FileStore(Protocol):
    """The files of one target, by path. Readers of a store see each file whole: its old content, or the new one.

    Every method raises `PublishError`, if a person has to act, and `HostUnreachable`.
    """

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        """Return a file; None if it is absent. Of a file larger than ``max_bytes``, return one byte more than that."""

    def get_each(self, paths: Collection[str], take: TakeFile) -> None:
        """Read files, and call ``take`` with each, perhaps in several threads at a time."""

    def create(self, path: str, content: bytes) -> None:
        """Write a new file. Raises `FileConflict` if it exists."""

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        """Write a file in the place of the one with this version, or of whatever is there if None.

        Raises `FileConflict` if the file has another version.
        """

    def place(self, paths: Collection[str], read: ReadFile, fresh: Collection[str]) -> frozenset[str]:
        """Write files. Leave those of ``fresh`` at whose path another file is, and return their paths."""

    def differing(self, expected: Mapping[str, Expected]) -> list[str]:
        """Return the paths, sorted, that do not have the content that `place` has just written there."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. A file that is absent is no failure."""

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, which ends in a slash, sorted."""
