"""Indexes and manifests: which image is for which machine, and which layer is what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gitboot.artifacts.oci import Descriptor, OciPlatform, chosen, files, parse_manifest
from gitboot.errors import RegistryRefused
from tests.helpers.cases import for_each

SHA = "sha256:" + "0123456789abcdef" * 4
AMD64, ARM64 = OciPlatform("amd64", "linux"), OciPlatform("arm64", "linux")


def of(cname: str, platform: OciPlatform | None = None, **annotations: str) -> Descriptor:
    return Descriptor(SHA, 1, annotations={"cname": cname, **annotations}, platform=platform)


def layer(media_type: str) -> Descriptor:
    return Descriptor(SHA, 1, media_type=media_type)


@for_each(
    ("index", "cname", "names"),
    [
        ([of("a", AMD64), of("b", ARM64)], "", {"x86_64": "a", "aarch64": "b"}),
        (
            [of("a", AMD64), of("b", OciPlatform("riscv64", "linux")), of("c", OciPlatform("amd64", "windows"))],
            "",
            {"x86_64": "a"},
        ),
        ([of("a", OciPlatform("amd64")), of("attestation", OciPlatform("unknown", "unknown"))], "", {"x86_64": "a"}),
        ([of("a", architecture="amd64"), of("b", architecture="arm64")], "", {"x86_64": "a", "aarch64": "b"}),
        ([of("metal_pxe-amd64", AMD64), of("metal_uki-amd64", AMD64)], "metal_pxe", {"x86_64": "metal_pxe-amd64"}),
        ([of("metal_pxe", AMD64), of("kvm", ARM64)], "metal_pxe", {"x86_64": "metal_pxe"}),
    ],
    ids=["platforms", "others", "no-system", "annotated", "cname", "cname-of-one"],
)
def test_an_index_has_one_image_an_architecture(index: list[Descriptor], cname: str, names: dict[str, str]) -> None:
    assert {str(each): found.cname for each, found in chosen(index, cname, "x").items()} == names


@pytest.mark.parametrize(
    ("index", "cname", "says"),
    [
        ([of("metal_pxe", AMD64), of("metal_uki", AMD64)], "metal", "2 images for x86_64.*metal_pxe, metal_uki"),
        ([of("metal_pxe", AMD64)], "kvm", "it has metal_pxe"),
        ([], "", "no image for"),
    ],
)
def test_what_is_meant_has_to_be_clear(index: list[Descriptor], cname: str, says: str) -> None:
    with pytest.raises(RegistryRefused, match=says):
        chosen(index, cname, "x")


@pytest.mark.parametrize(
    ("types", "roles"),
    [
        (
            ["vnd.ironcore.image." + each for each in ("kernel", "initramfs", "squashfs")],
            ["kernel", "initrds", "rootfs"],
        ),
        (["io.gardenlinux." + each for each in ("kernel", "initrd", "squashfs")], ["kernel", "initrds", "rootfs"]),
        (["vnd.ironcore.image." + each for each in ("uki", "iso", "disk.img")], ["uki", "iso"]),
        (["vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz"], ["kernel"]),
    ],
    ids=["ironcore", "gardenlinux", "direct", "first-version"],
)
def test_a_layers_media_type_says_what_it_is(types: list[str], roles: list[str]) -> None:
    assert list(files([layer(f"application/{each}") for each in types], "x")) == roles


def test_initrds_keep_their_order() -> None:
    layers = [Descriptor("sha256:" + each * 64, 1, media_type="application/io.gardenlinux.initrd") for each in "ba"]
    found = files([layer("application/io.gardenlinux.kernel"), *layers], "x")
    assert [each.sha256[0] for each in found["initrds"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (["vnd.oci.image.layer.v1.tar+gzip"], r"has no kernel, uki or iso; its layers are .*tar\+gzip"),
        (["vnd.ironcore.image.initramfs"], "has no kernel"),
        ([], "none at all"),
        (["vnd.ironcore.image.kernel", "io.gardenlinux.kernel"], "2 layers"),
    ],
)
def test_layers_that_cannot_be_booted_are_refused(types: list[str], says: str) -> None:
    with pytest.raises(RegistryRefused, match=says):
        files([layer(f"application/{each}") for each in types], "x")


@for_each(
    "content",
    [
        *(b"", b"{}", b"[]", b"\xff", b'{"layers": 1}', b'{"layers": [], "manifests": []}', b"[" * 100_000),
        json.dumps({"layers": [{"digest": 1, "size": 1}]}).encode(),
        json.dumps({"layers": [{"digest": SHA, "size": "1"}]}).encode(),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(RegistryRefused):
        parse_manifest(content, "x")


@for_each("digest", ["sha512:" + "a" * 128, "sha256:" + "A" * 64, "md5:1", "", 'sha256:"\n'])
def test_a_digest_is_a_sha256(digest: str) -> None:
    found: Any = parse_manifest(json.dumps({"layers": [{"digest": digest, "size": 1}]}).encode(), "x")
    with pytest.raises(RegistryRefused, match="no sha256"):
        _ = found.layers[0].sha256
