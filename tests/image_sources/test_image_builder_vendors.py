"""Image builder: releases in the form of each kind of vendor become images, and a tampered file of each is rejected."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gitboot.artifacts.downloads import PrefixFetcher, WebFetcher
from gitboot.artifacts.oci import Registries
from gitboot.artifacts.signatures import SignatureCheck
from gitboot.errors import UnusableSource
from gitboot.http_client import HttpClient
from gitboot.image_sources.find_releases import ReleaseFinder
from gitboot.image_sources.image_builder import BuiltImage, build_image
from gitboot.model.boot_image import DigestOrigin
from gitboot.model.server import Architecture
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.git_repositories import Person, gpg_people
from tests.helpers.vendor_sites import VendorSite
from tests.image_sources.test_image_builder import Progress

KERNEL, INITRD, ROOTFS, ISO = (f"{name} of a vendor\n".encode() * 500 for name in ("kernel", "initrd", "rootfs", "iso"))


def sha(content: bytes) -> str:
    return sha256(content).hexdigest()


def archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def publish_flatcar(site: VendorSite) -> str:
    index = {"9999.2.0": {"channel": "stable", "architectures": ["amd64"], "release_date": "2026-10-01 09:30:12 +0000"}}
    site.put("https://www.flatcar.org/releases-json/releases-stable.json", json.dumps(index))
    root = "https://stable.release.flatcar-linux.net/amd64-usr/9999.2.0/flatcar_production_pxe"
    site.put_detached(f"{root}.vmlinuz", KERNEL, ".sig")
    site.put_detached(f"{root}_image.cpio.gz", INITRD, ".sig")
    return f"{root}.vmlinuz"


def publish_ubuntu(site: VendorSite) -> str:
    listed = f"{sha(ISO)} *ubuntu-24.04.9-live-server-amd64.iso\n"
    site.put_detached("https://releases.ubuntu.com/24.04/SHA256SUMS", listed, ".gpg")
    root = "https://releases.ubuntu.com/24.04.9"
    site.put_detached(f"{root}/SHA256SUMS", listed, ".gpg")
    site.put(f"{root}/ubuntu-24.04.9-live-server-amd64.iso", ISO)
    packed = archive({"amd64/linux": KERNEL, "amd64/initrd": INITRD})
    site.put(f"{root}/ubuntu-24.04.9-netboot-amd64.tar.gz", packed)
    return f"{root}/ubuntu-24.04.9-live-server-amd64.iso"


def publish_maas(site: VendorSite) -> str:
    root = "https://images.maas.io/ephemeral-v3/stable"
    items = {}
    for name, content in (("boot-kernel", KERNEL), ("boot-initrd", INITRD), ("squashfs", ROOTFS)):
        path = f"noble/amd64/20261001/{name}"
        items[name] = {"ftype": name, "path": path, "sha256": sha(content), "size": len(content)}
        site.put(f"{root}/{path}", content)
    product = {"arch": "amd64", "versions": {"20261001": {"items": items}}}
    index = {
        "format": "products:1.0",
        "products": {"com.ubuntu.maas.stable:v3:boot:24.04:amd64:ga-24.04": product},
    }
    at = f"{root}/streams/v1/com.ubuntu.maas:stable:v3:download.sjson"
    site.put_signed(at, json.dumps(index, indent=1))
    return f"{root}/noble/amd64/20261001/squashfs"


def publish_debian(site: VendorSite) -> str:
    build = "main/installer-amd64/20250803/images"
    images = f"https://deb.debian.org/debian/dists/trixie/{build}"
    folder = "netboot/debian-installer/amd64"
    listed = f"{sha(KERNEL)}  ./{folder}/linux\n{sha(INITRD)}  ./{folder}/initrd.gz\n"
    site.put(f"{images}/SHA256SUMS", listed)
    site.put(f"{images}/{folder}/linux", KERNEL)
    site.put(f"{images}/{folder}/initrd.gz", INITRD)
    release = f"Origin: Debian\nSHA256:\n {sha(listed.encode())} {len(listed)} {build}/SHA256SUMS\n"
    site.put_signed("https://deb.debian.org/debian/dists/trixie/InRelease", release)
    return f"{images}/SHA256SUMS"


def publish_alpine(site: VendorSite) -> str:
    packed = archive({"boot/vmlinuz-lts": KERNEL, "boot/initramfs-lts": INITRD, "boot/modloop-lts": ROOTFS})
    name = "alpine-netboot-3.24.2-x86_64.tar.gz"
    listed = f"---\n- flavor: alpine-netboot\n  version: 3.24.2\n  file: {name}\n  sha256: {sha(packed)}\n"
    root = "https://dl-cdn.alpinelinux.org/alpine"
    site.put(f"{root}/latest-stable/releases/x86_64/latest-releases.yaml", listed)
    site.put_detached(f"{root}/v3.24/releases/x86_64/{name}", packed, ".asc")
    return f"{root}/v3.24/releases/x86_64/{name}"


def publish_rocky(site: VendorSite) -> str:
    root = "https://download.rockylinux.org/pub/rocky"
    site.put(f"{root}/", '<a href="9.6/">9.6/</a> <a href="10.1/">10.1/</a>')
    files = {"images/pxeboot/vmlinuz": KERNEL, "images/pxeboot/initrd.img": INITRD, "images/install.img": ROOTFS}
    listed = "".join(f"{name} = sha256:{sha(content)}\n" for name, content in files.items())
    tree = f"{root}/10.1/BaseOS/x86_64/os"
    site.put(f"{tree}/.treeinfo", f"[checksums]\n{listed}[general]\nversion = 10.1\n")
    for name, content in files.items():
        site.put(f"{tree}/{name}", content)
    return f"{tree}/images/pxeboot/initrd.img"


SIGNED, PUBLISHED, FIRST_SEEN = DigestOrigin.SIGNED, DigestOrigin.PUBLISHED, DigestOrigin.FIRST_SEEN
Publish = Callable[[VendorSite], str]
VENDORS: dict[str, tuple[Publish, str | None, dict[str, DigestOrigin]]] = {
    "flatcar": (publish_flatcar, "stable", {"kernel": SIGNED, "initrds": SIGNED}),
    "ubuntu": (publish_ubuntu, "24.04", {"kernel": FIRST_SEEN, "initrds": FIRST_SEEN, "iso": SIGNED}),
    "ubuntu-maas": (publish_maas, "24.04", {"kernel": SIGNED, "initrds": SIGNED, "rootfs": SIGNED}),
    "debian": (publish_debian, "trixie", {"kernel": SIGNED, "initrds": SIGNED}),
    "alpine": (publish_alpine, None, {"kernel": SIGNED, "initrds": SIGNED, "rootfs": SIGNED}),
    "rocky": (publish_rocky, "10", {"kernel": PUBLISHED, "initrds": PUBLISHED}),
}


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor") as people:
        yield people


@pytest.fixture
def site(people: Mapping[str, Person], tmp_path: Path) -> Iterator[VendorSite]:
    with artifact_server() as server:
        yield VendorSite(server, tmp_path, people["vendor"])


def fetcher() -> PrefixFetcher:
    return PrefixFetcher({"http://": WebFetcher()})


def built(site: VendorSite, name: str) -> BuiltImage:
    source, (_, channel, _) = site.source(name), VENDORS[name]
    finder = ReleaseFinder(fetcher(), site.trust, Registries([], HttpClient()))
    release = finder.list_releases(source, channel)[-1]
    files = finder.describe_release(source, release, [Architecture.X86_64])
    return build_image(files, fetcher(), site.trust, Progress())


@pytest.mark.parametrize("name", VENDORS)
def test_an_image_states_the_strongest_provenance_of_each_file_and_a_check_confirms_it(
    site: VendorSite, name: str
) -> None:
    publish, _, expected = VENDORS[name]
    publish(site)
    made = built(site, name)
    assert {str(each.at[1]): each.provenance.digest for each in made.files} == expected
    assert {str(each.at[1]): each.sha256 for each in made.files}["kernel"] == sha(KERNEL)
    for each in made.files:
        assert each.provenance.key == (site.fingerprint if each.provenance.digest is SIGNED else None)
    for checked in SignatureCheck(fetcher(), site.trust, "").files(made.image):
        assert (checked.false_claim, checked.fault) == (None, None), checked
        assert (checked.signer is not None) == (expected[str(checked.at[3])] is SIGNED)


@pytest.mark.parametrize("name", VENDORS)
def test_a_file_that_someone_changed_at_the_vendor_is_rejected(site: VendorSite, name: str) -> None:
    at = VENDORS[name][0](site)
    path = site.localise(at).removeprefix(site.server.url)
    before = site.server.files[path]
    changed: Any = bytearray(before)
    changed[len(changed) // 2] ^= 1
    site.server.put(path, bytes(changed))
    with pytest.raises(UnusableSource) as raised:
        built(site, name)
    assert str(raised.value).isprintable()
