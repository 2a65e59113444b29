"""An image's artifacts as the files that a machine fetches, each under the URL that it is given."""

from __future__ import annotations

from typing import Final

from gitboot.model.boot_image import Artifact, Artifacts
from gitboot.resolve.server_decision_from_plan import BootFile, BootFiles

# What mirrored files are called below their digest; the name says as what one is served.
MIRRORED_NAMES: Final = ("kernel", "initrd", "rootfs", "uki.efi", "image.iso", "loader.efi")
_KERNEL, _INITRD, _ROOTFS, _UKI, _ISO, _LOADER = MIRRORED_NAMES


def boot_files(artifacts: Artifacts, base_url: str, *, mirrors: bool) -> BootFiles:
    def file(artifact: Artifact | None, name: str) -> BootFile | None:
        if artifact is None:
            return None
        url, source = fetched_from(artifact.url, base_url), None
        if mirrors and not artifact.url.startswith("assets:"):
            url, source = f"{base_url}/o/{artifact.sha256}/{name}", artifact.url
        return BootFile(url=url, sha256=artifact.sha256, size=artifact.size, source=source)

    return BootFiles(
        kernel=file(artifacts.kernel, _KERNEL),
        initrds=tuple(found for initrd in artifacts.initrds if (found := file(initrd, _INITRD)) is not None),
        rootfs=file(artifacts.rootfs, _ROOTFS),
        uki=file(artifacts.uki, _UKI),
        iso=file(artifacts.iso, _ISO),
        loader=file(artifacts.loader, _LOADER),
    )


def fetched_from(url: str, base_url: str) -> str:
    """Where an artifact lies that a document names below a base URL."""
    return f"{base_url}/assets/{url.removeprefix('assets:')}" if url.startswith("assets:") else url
