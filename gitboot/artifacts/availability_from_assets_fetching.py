"""gitboot.artifacts.availability_from_assets_fetching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from gitboot.assets.sighting import ArtifactHead

LARGEST_ARTIFACT: Final = 32 << 30  # if the document gives no size; an installer's DVD has up to 16 GiB


class Content(NamedTuple):
    """An artifact that is being read."""

    head: ArtifactHead
    offset: int  # in the whole, at which the chunks begin: 0 where no other was to be had
    chunks: Iterator[bytes]


class Fetcher(Protocol):
    """Whoever knows where the artifacts of a kind of URL are; it may be asked from many threads at once.

    It says what is there, and judges nothing: sizes and digests are compared by who asks (`gitboot.assets.sighting`).
    Both raise `ArtifactMissing` where it is known that there is none, and `HostUnreachable` where nothing is known.
    """

    def head(self, url: str) -> ArtifactHead:
        """What is said of an artifact without reading it."""

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        """Read an artifact from an offset on, or all of it; what ends it too early is raised by the chunks."""
