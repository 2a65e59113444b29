"""Find the releases of an image source, and describe the files of a release."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gitboot.artifacts.availability import Fetcher
from gitboot.artifacts.oci import OciReference, Registries
from gitboot.image_sources.releases import FileRole, Release, ReleaseFiles
from gitboot.model.image_source import ImageSource
from gitboot.model.server import Architecture


class IndexTrust(Protocol):
    """The keys that gitboot ships and those of the settings. Both methods raise `UntrustedSignature`."""

    def find_index_signer(self, content: bytes, signature: bytes, *, only: Collection[str]) -> str:
        """Return the fingerprint of the key that made a detached OpenPGP signature. ``only``: keys that may sign."""

    def read_clear_signed(self, content: bytes, *, only: Collection[str]) -> tuple[str, bytes]:
        """Return the fingerprint of the key that signed a clear-signed text, and the signed part of the text."""


def find_source(name: str, fleet_sources: Mapping[str, ImageSource]) -> ImageSource:
    """Return an ImageSource of the fleet, or else a built-in one. Raises `UsageError` with the nearest name."""
    raise NotImplementedError


def list_releases(
    source: ImageSource,
    channel: str | None,
    reader: Fetcher,
    trust: IndexTrust,
    *,
    registries: Registries | None = None,
) -> tuple[Release, ...]:
    """Return the releases of a channel in ascending order, without prereleases. None is the default channel.

    ``registries`` is needed for sources with the format OCITags. Raises `UsageError` for an unknown channel,
    `SourceUnavailable`, `MalformedIndex` and `UntrustedIndex`.
    """
    raise NotImplementedError


def describe_release(
    source: ImageSource,
    release: Release,
    architectures: Collection[Architecture],
    reader: Fetcher,
    trust: IndexTrust,
    *,
    registries: Registries | None = None,
) -> ReleaseFiles:
    """Return the files of a release for these architectures, or for all architectures of the source if empty.

    Raises the errors of `list_releases`, and `IncompleteRelease`.
    """
    raise NotImplementedError


def describe_oci_image(
    reference: OciReference, registries: Registries, architecture: Architecture | None = None
) -> ReleaseFiles:
    """Return the files to which a tag of a registry refers now. Their URLs have digests.

    A single manifest without an architecture is for ``architecture``. Raises `SourceUnavailable`, `MalformedIndex`,
    `IncompleteRelease`.
    """
    raise NotImplementedError


def describe_urls(urls: Sequence[tuple[Architecture, FileRole, str]], version: str, reader: Fetcher) -> ReleaseFiles:
    """Return files with the digests in the checksum files beside them, such as FILE.sha256 or SHA256SUMS.

    A file without a checksum file has no digest in the result. Raises `SourceUnavailable` and `MalformedIndex`.
    """
    raise NotImplementedError


def describe_local_files(files: Sequence[tuple[Architecture, FileRole, Path, str]], version: str) -> ReleaseFiles:
    """Return files of this host with their digests and sizes. Each file has the URL that the document will name.

    Raises `IncompleteRelease` if a file cannot be read.
    """
    raise NotImplementedError
