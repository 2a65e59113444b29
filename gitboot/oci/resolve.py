"""An image's tag -> what a BootImage says of its files: each by its own digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gitboot.artifacts.oci import Descriptor, OciReference, Registries, chosen, files, parse_manifest
from gitboot.errors import UsageError
from gitboot.model.server import Architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """What a tag names now."""

    image: OciReference  # by the digest of its index or manifest
    architectures: dict[str, dict[str, Any]]  # as a BootImage's spec has them


def resolve(
    reference: OciReference, registries: Registries, *, cname: str = "", architecture: Architecture | None = None
) -> Resolved:
    """Ask what an image's files are; an index names its architectures, a single manifest is for ``architecture``.

    Raises `UsageError`, `RegistryRefused`, `NotInRegistry`, `HostUnreachable`.
    """
    digest, content = registries.manifest(reference)
    found = parse_manifest(content, str(reference))
    if found.layers is not None:
        only = architecture or Descriptor(digest, 0, annotations=found.annotations).architecture
        if only is None:
            raise UsageError(
                f"{reference} is no index, and does not say for which architecture it is: give --architecture"
            )
        architectures = {only: _artifacts(found.layers, reference)}
    else:
        manifests = chosen(found.manifests or (), cname, str(reference))
        architectures = {
            each: _image(reference.at(manifest.sha256), registries)
            for each, manifest in manifests.items()
            if architecture in (None, each)
        }
    return Resolved(image=reference.at(digest), architectures={str(each): has for each, has in architectures.items()})


def _image(reference: OciReference, registries: Registries) -> dict[str, Any]:
    _, content = registries.manifest(reference)
    return _artifacts(parse_manifest(content, str(reference)).layers or (), reference)


def _artifacts(layers: tuple[Descriptor, ...], reference: OciReference) -> dict[str, Any]:
    """As a BootImage has them, in its order."""
    found = files(layers, str(reference))
    artifacts = {role: [_artifact(each, reference) for each in several] for role, several in found.items()}
    return {
        role: artifacts[role] if role == "initrds" else artifacts[role][0]
        for role in ("kernel", "initrds", "rootfs", "uki", "iso")
        if role in artifacts
    }


def _artifact(layer: Descriptor, reference: OciReference) -> dict[str, Any]:
    return {"url": str(reference.at(layer.sha256)), "sha256": layer.sha256, "size": layer.size}
