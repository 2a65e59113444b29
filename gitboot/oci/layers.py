"""What a registry says of an image: an index by platform, and the files of each, by their media types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gitboot.errors import RegistryRefused
from gitboot.jsonio import Digest, json_decoder
from gitboot.model.scalars.artifacts import parse_digest
from gitboot.model.scalars.texts import Malformed
from gitboot.model.server import Architecture

MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)

# IronCore's image specification, its first version, and what Garden Linux publishes by.
ROLES: Final[Mapping[str, str]] = {
    "application/vnd.ironcore.image.kernel": "kernel",
    "application/vnd.ironcore.image.initramfs": "initrds",
    "application/vnd.ironcore.image.squashfs": "rootfs",
    "application/vnd.ironcore.image.uki": "uki",
    "application/vnd.ironcore.image.iso": "iso",
    "application/vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz": "kernel",
    "application/vnd.ironcore.image.initramfs.v1alpha1.initramfs": "initrds",
    "application/vnd.ironcore.image.squashfs.v1alpha1.squashfs": "rootfs",
    "application/io.gardenlinux.kernel": "kernel",
    "application/io.gardenlinux.initrd": "initrds",
    "application/io.gardenlinux.squashfs": "rootfs",
    "application/io.gardenlinux.uki": "uki",
}

_ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "amd64": Architecture.X86_64,
    "arm64": Architecture.AARCH64,
}  # as Go calls them, and so OCI


class OciPlatform(msgspec.Struct, frozen=True):
    """What a manifest of an index is for."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """What a registry has under a digest."""

    digest: str
    size: int
    media_type: str = ""
    annotations: dict[str, str] | None = None
    platform: OciPlatform | None = None

    @property
    def sha256(self) -> Digest:
        """Its digest; raises `RegistryRefused` where that is of another kind."""
        try:
            return parse_digest(self.digest.removeprefix("sha256:"))
        except Malformed:
            raise RegistryRefused(f"{self.digest[:80]!r} is no sha256, which is what decisions name files by") from None

    @property
    def architecture(self) -> Architecture | None:
        """Of the machines that it is for; None: it does not say, or of none that gitboot knows."""
        if self.platform is not None and self.platform.architecture:
            return _ARCHITECTURES.get(self.platform.architecture) if self.platform.os in ("", "linux") else None
        return _ARCHITECTURES.get((self.annotations or {}).get("architecture", ""))

    @property
    def cname(self) -> str:
        """Garden Linux's name for what it was built as: metal_pxe-amd64-1877.3."""
        return (self.annotations or {}).get("cname", "")


class ImageManifest(msgspec.Struct, frozen=True):
    """An index, which has manifests, or an image's manifest, which has layers."""

    manifests: tuple[Descriptor, ...] | None = None
    layers: tuple[Descriptor, ...] | None = None
    annotations: dict[str, str] | None = None


def parse_manifest(content: bytes, name: str) -> ImageManifest:
    """Raise `RegistryRefused` for what is neither an index nor an image's manifest."""
    try:
        found = _manifest(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RegistryRefused(f"{name} is not an image's manifest: {error}") from None
    if (found.manifests is None) == (found.layers is None):
        raise RegistryRefused(f"{name} is neither an index nor an image's manifest")
    return found


def chosen(index: Sequence[Descriptor], cname: str, name: str) -> dict[Architecture, Descriptor]:
    """The one manifest for each architecture, of those whose cname begins so; raises `RegistryRefused`."""
    found: dict[Architecture, list[Descriptor]] = {}
    for each in index:
        if (architecture := each.architecture) is not None and each.cname.startswith(cname):
            found.setdefault(architecture, []).append(each)
    for architecture, several in found.items():
        if len(several) > 1:
            names = ", ".join(sorted({each.cname or each.digest for each in several}))
            raise RegistryRefused(
                f"{name} has {len(several)} images for {architecture}: choose one by --cname, the beginning of {names}"
            )
    if not found:
        known = ", ".join(sorted({each.cname for each in index if each.cname}))
        has = f"; it has {known}" if cname and known else ""
        raise RegistryRefused(f"{name} has no image for {' or '.join(Architecture)}{has}")
    return {architecture: found[architecture][0] for architecture in sorted(found)}


def files(layers: Sequence[Descriptor], name: str) -> dict[str, tuple[Descriptor, ...]]:
    """An image's layers by what a BootImage calls them; raises `RegistryRefused` where they cannot be booted.

    Layers of other media types are left out: disk images, command lines.
    """
    found: dict[str, tuple[Descriptor, ...]] = {}
    for each in layers:
        if (role := ROLES.get(each.media_type)) is not None:
            found[role] = (*found.get(role, ()), each)
    if not found.keys() & {"kernel", "uki", "iso"}:
        types = ", ".join(sorted({each.media_type for each in layers})) or "none at all"
        raise RegistryRefused(f"{name} has no kernel, uki or iso; its layers are {types}")
    for role, several in found.items():
        if role != "initrds" and len(several) > 1:
            raise RegistryRefused(f"{name} has {len(several)} layers of type {several[0].media_type}: which is meant?")
    return found


_manifest: Final = json_decoder(ImageManifest)
