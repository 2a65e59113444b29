"""Releases of image sources: versions that a vendor lists, and the files of each version."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from gitboot.jsonio import Digest
from gitboot.model.boot_image import Checksums, Signature
from gitboot.model.server import Architecture


class FileRole(StrEnum):
    """The fields of Artifacts that name files."""

    KERNEL = "kernel"
    INITRD = "initrds"
    ROOTFS = "rootfs"
    UKI = "uki"
    ISO = "iso"


class Release(Struct, frozen=True, kw_only=True):
    """A version that the index of a source lists."""

    source: str  # the name of the ImageSource
    channel: str | None
    version: str
    published: datetime | None  # None: the index has no date
    index_url: str
    index_signer: str | None  # the key that signed the index; None: the vendor does not sign it


class ReleaseFile(Struct, frozen=True, kw_only=True):
    """One file of a release, as the vendor's metadata describes it. Nothing of it is verified."""

    architecture: Architecture
    role: FileRole
    url: str  # versioned; https://…tar.gz#PATH for a file in an archive
    sha256: Digest | None = None
    sha512: str | None = None  # 128 lower-case hexadecimal digits
    size: int | None = None  # bytes
    signature: Signature | None = None
    is_unsigned: bool = False  # the source states that no signature of the vendor covers this file
    digest_url: str | None = None  # the list or index that has the digest; None: no digest is known
    # The digest of the archive that contains the file, from the same list. sha256 and sha512 are None then.
    archive_sha256: Digest | None = None
    archive_sha512: str | None = None


class ImageSettings(Struct, frozen=True, kw_only=True):
    """The fields of a BootImage, besides its files, that a source sets."""

    user_data: str = "None"
    config_from: str = "KernelArguments"
    writes_disk: bool = True
    boots: int = 1
    kernel_arguments: tuple[str, ...] = ()


class ReleaseFiles(Struct, frozen=True, kw_only=True):
    """All files of a release for some architectures."""

    release: Release
    files: tuple[ReleaseFile, ...]  # sorted by architecture and role; initrds in their order
    checksums: Mapping[Architecture, Checksums]  # lists of digests, for files without a signature of their own
    settings: ImageSettings
    keys: tuple[str, ...]  # fingerprints of the keys that may sign; empty: the vendor signs nothing
