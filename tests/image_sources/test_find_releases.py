"""Built-in sources: the releases and the files that gitboot finds at vendors, and the indexes that it rejects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.artifacts.downloads import WebFetcher
from gitboot.artifacts.oci import AllowedRegistry, OciReference, Registries
from gitboot.errors import (
    GitbootError,
    IncompleteRelease,
    MalformedIndex,
    RegistryRefused,
    SourceUnavailable,
    UntrustedIndex,
    UsageError,
)
from gitboot.http_client import HttpClient
from gitboot.image_sources.find_releases import (
    ReleaseFinder,
    describe_local_files,
    describe_oci_image,
    describe_urls,
    find_source,
)
from gitboot.image_sources.index_formats import FileRole, Release, ReleaseFiles
from gitboot.model.image_source import ImageSource
from gitboot.model.server import Architecture
from tests.helpers.artifact_servers import GARDENLINUX, IRONCORE, Registry, artifact_server, compute_digest, registry
from tests.helpers.git_repositories import Person, gpg_people
from tests.helpers.vendor_sites import VendorSite, read_source

X86, ARM = Architecture.X86_64, Architecture.AARCH64
KERNEL, INITRD, ROOTFS, ISO = b"kernel", b"initrd", b"rootfs", b"iso"
SHA = {content: sha256(content).hexdigest() for content in (KERNEL, INITRD, ROOTFS, ISO)}


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger") as people:
        yield people


@pytest.fixture
def site(people: Mapping[str, Person], tmp_path: Path) -> Iterator[VendorSite]:
    with artifact_server() as server:
        yield VendorSite(server, tmp_path, people["vendor"])


def make_finder(site: VendorSite, *allowed: str) -> ReleaseFinder:
    return ReleaseFinder(WebFetcher(), site.trust, Registries(list(map(AllowedRegistry.parse, allowed)), HttpClient()))


def list_site_releases(site: VendorSite, source: ImageSource | str, channel: str | None = None) -> tuple[Release, ...]:
    source = site.source(source) if isinstance(source, str) else source
    return make_finder(site).list_releases(source, channel)


def describe(
    site: VendorSite, source: ImageSource | str, release: Release, *architectures: Architecture
) -> ReleaseFiles:
    source = site.source(source) if isinstance(source, str) else source
    return make_finder(site).describe_release(source, release, architectures or (X86,))


def files(site: VendorSite, release_files: ReleaseFiles) -> list[tuple[str, str, str, str | None]]:
    """Return architecture, role, URL (of the vendor) and SHA-256 of each file."""
    return [
        (str(each.architecture), str(each.role), each.url.replace(f"{site.server.url}/", "https://"), each.sha256)
        for each in release_files.files
    ]


# Fedora CoreOS and RHCOS

FCOS = "https://builds.coreos.fedoraproject.org/streams/stable.json"


def coreos_stream(version: str, *, signed: bool, **changes: Any) -> str:
    def architecture(name: str) -> dict[str, Any]:
        root = f"https://builds.test/prod/streams/stable/builds/{version}/{name}/coreos-{version}"

        def file(path: str, content: bytes) -> dict[str, str]:
            described = {"location": f"{root}-{path}", "sha256": SHA[content]}
            return described | ({"signature": f"{root}-{path}.sig"} if signed else {})

        pxe = {
            "kernel": file(f"live-kernel.{name}", KERNEL),
            "initramfs": file(f"live-initramfs.{name}.img", INITRD),
            "rootfs": file(f"live-rootfs.{name}.img", ROOTFS),
        }
        metal = {"release": version, "formats": {"pxe": pxe, "iso": {"disk": file(f"live-iso.{name}.iso", ISO)}}}
        return {"artifacts": {"metal": metal, "qemu": {"release": version, "formats": {}}}, "images": {}}

    return json.dumps(
        {
            "stream": "stable",
            "metadata": {"last-modified": "2026-11-04T22:11:54Z", "generator": "test"},
            "architectures": {name: architecture(name) for name in ("x86_64", "aarch64", "s390x")},
        }
        | changes
    )


def test_fedora_coreos(site: VendorSite) -> None:
    site.put(FCOS, coreos_stream("44.20261101.3.0", signed=True))
    (release,) = list_site_releases(site, "fedora-coreos")
    assert release == Release(
        source="fedora-coreos",
        channel="stable",
        version="44.20261101.3.0",
        published=datetime(2026, 11, 4, 22, 11, 54, tzinfo=UTC),
        index_url=site.localise(FCOS),
        index_signer=None,
    )
    release_files = describe(site, "fedora-coreos", release, X86, ARM)
    root = "https://builds.test/prod/streams/stable/builds/44.20261101.3.0/{0}/coreos-44.20261101.3.0"
    assert files(site, release_files) == [
        (arch, role, f"{root.format(arch)}-{name.format(arch)}", SHA[content])
        for arch in ("aarch64", "x86_64")
        for role, name, content in (
            ("kernel", "live-kernel.{}", KERNEL),
            ("initrds", "live-initramfs.{}.img", INITRD),
            ("rootfs", "live-rootfs.{}.img", ROOTFS),
        )
    ]
    for each in release_files.files:
        assert each.signature is not None and each.signature.openpgp == f"{each.url}.sig"
        assert each.digest_url == release.index_url
    assert release_files.checksums == {}
    assert release_files.keys[0] == site.fingerprint
    assert release_files.settings.kernel_arguments[0] == "coreos.live.rootfs_url={{ image.artifacts.rootfs.url }}"


def test_rhcos_has_digests_and_no_signatures(site: VendorSite) -> None:
    url = "https://raw.githubusercontent.com/openshift/installer/release-4.21/data/data/coreos/coreos-rhel-9.json"
    site.put(url, coreos_stream("9.8.20261028-0", signed=False))
    (release,) = list_site_releases(site, "rhcos", "4.21")
    release_files = describe(site, "rhcos", release)
    assert [(each.role, each.sha256, each.signature) for each in release_files.files] == [
        (FileRole.KERNEL, SHA[KERNEL], None),
        (FileRole.INITRD, SHA[INITRD], None),
        (FileRole.ROOTFS, SHA[ROOTFS], None),
    ]
    assert release_files.keys == ()


def test_a_stream_that_has_moved_on_no_longer_describes_the_release(site: VendorSite) -> None:
    site.put(FCOS, coreos_stream("44.20261101.3.0", signed=True))
    (release,) = list_site_releases(site, "fedora-coreos")
    site.put(FCOS, coreos_stream("44.20261115.3.0", signed=True))
    with pytest.raises(IncompleteRelease, match=r"stable\.json: the index has no release 44\.20261101.* for x86_64"):
        describe(site, "fedora-coreos", release)


# Flatcar


def test_flatcar(site: VendorSite) -> None:
    entry = {"channel": "stable", "architectures": ["amd64", "arm64"], "release_date": "2026-10-01 09:30:12 +0000"}
    index = {
        "4230.2.4": entry,
        "current": entry,
        "4152.10.0": entry | {"release_date": "unknown"},
        "4459.2.4": entry | {"architectures": ["arm64"]},
        "4593.0.0": entry | {"channel": "beta"},
        "4152.2.3": entry,
    }
    site.put("https://www.flatcar.org/releases-json/releases-stable.json", json.dumps(index))
    releases = list_site_releases(site, "flatcar", "stable")
    assert [(each.version, each.published) for each in releases] == [
        ("4152.2.3", datetime(2026, 10, 1, 9, 30, 12, tzinfo=UTC)),
        ("4152.10.0", None),
        ("4230.2.4", datetime(2026, 10, 1, 9, 30, 12, tzinfo=UTC)),
    ]
    release_files = describe(site, "flatcar", releases[-1], ARM)
    root = "https://stable.release.flatcar-linux.net/arm64-usr/4230.2.4/flatcar_production_pxe"
    assert files(site, release_files) == [
        ("aarch64", "kernel", f"{root}.vmlinuz", None),
        ("aarch64", "initrds", f"{root}_image.cpio.gz", None),
    ]
    for each in release_files.files:
        assert each.signature is not None and each.signature.openpgp == f"{each.url}.sig"
    assert (release_files.settings.user_data, release_files.settings.kernel_arguments) == (
        "Ignition/3.4",
        ("flatcar.first_boot=1",),
    )


# Talos


def test_talos(site: VendorSite) -> None:
    index = ["v1.9.0", "v1.10.0-beta.0", "v1.10.0", "v1.9.10", "v1.11.0-alpha.1", "latest", "1.12.0"]
    site.put("https://factory.talos.dev/versions", json.dumps(index))
    releases = list_site_releases(site, "talos")
    assert [each.version for each in releases] == ["1.9.0", "1.9.10", "1.10.0"]
    root = "https://github.com/siderolabs/talos/releases/download/v1.10.0"
    listed = f"{SHA[KERNEL]}  vmlinuz-amd64\n{SHA[INITRD]}  initramfs-amd64.xz\n{SHA[ISO]}  metal-amd64.iso\n"
    site.put(f"{root}/sha256sum.txt", listed)
    release_files = describe(site, "talos", releases[-1])
    assert files(site, release_files) == [
        ("x86_64", "kernel", f"{root}/vmlinuz-amd64", SHA[KERNEL]),
        ("x86_64", "initrds", f"{root}/initramfs-amd64.xz", SHA[INITRD]),
    ]
    assert {each.digest_url for each in release_files.files} == {site.localise(f"{root}/sha256sum.txt")}
    assert (release_files.checksums, release_files.keys) == ({}, ())  # published, and not signed
    factory = describe(site, "talos-factory", structs.replace(releases[-1], channel="3765"))
    assert files(site, factory)[0][2:] == ("https://factory.talos.dev/image/3765/v1.10.0/kernel-amd64", None)


# Ubuntu

UBUNTU_LIST = f"{SHA[ROOTFS]} *ubuntu-24.04.3-desktop-amd64.iso\n{SHA[ISO]} *ubuntu-24.04.3-live-server-amd64.iso\n"


def test_ubuntu(site: VendorSite) -> None:
    site.put_detached("https://releases.ubuntu.com/24.04/SHA256SUMS", UBUNTU_LIST, ".gpg")
    (release,) = list_site_releases(site, "ubuntu", "24.04")
    assert (release.version, release.index_signer) == ("24.04.3", site.fingerprint)
    intel = "https://releases.ubuntu.com/24.04.3"
    site.put(f"{intel}/SHA256SUMS", UBUNTU_LIST)
    arm = "https://cdimage.ubuntu.com/releases/24.04.3/release"
    site.put(f"{arm}/SHA256SUMS", f"{SHA[ROOTFS]} *ubuntu-24.04.3-live-server-arm64.iso\n")
    release_files = describe(site, "ubuntu", release, X86, ARM)
    assert files(site, release_files) == [
        ("aarch64", "kernel", f"{arm}/ubuntu-24.04.3-netboot-arm64.tar.gz#arm64/linux", None),
        ("aarch64", "initrds", f"{arm}/ubuntu-24.04.3-netboot-arm64.tar.gz#arm64/initrd", None),
        ("aarch64", "iso", f"{arm}/ubuntu-24.04.3-live-server-arm64.iso", SHA[ROOTFS]),
        (
            "x86_64",
            "kernel",
            "https://releases.ubuntu.com/24.04.3/ubuntu-24.04.3-netboot-amd64.tar.gz#amd64/linux",
            None,
        ),
        (
            "x86_64",
            "initrds",
            "https://releases.ubuntu.com/24.04.3/ubuntu-24.04.3-netboot-amd64.tar.gz#amd64/initrd",
            None,
        ),
        ("x86_64", "iso", f"{intel}/ubuntu-24.04.3-live-server-amd64.iso", SHA[ISO]),
    ]
    assert [each.is_unsigned for each in release_files.files] == [True, True, False] * 2
    checksums = release_files.checksums[ARM]
    assert checksums.signature is not None
    assert (checksums.url, checksums.signature.openpgp) == (
        site.localise(f"{arm}/SHA256SUMS"),
        site.localise(f"{arm}/SHA256SUMS.gpg"),
    )


MAAS = "https://images.maas.io/ephemeral-v3/stable/streams/v1/com.ubuntu.maas:stable:v3:download.sjson"


def maas_index(*serials: str) -> str:
    def item(path: str, content: bytes) -> dict[str, Any]:
        return {"ftype": path.rpartition("/")[2], "path": path, "sha256": SHA[content], "size": len(content)}

    def release(serial: str) -> dict[str, Any]:
        root = f"noble/amd64/{serial}"
        items = {
            "boot-kernel": item(f"{root}/ga-24.04/generic/boot-kernel", KERNEL),
            "boot-initrd": item(f"{root}/ga-24.04/generic/boot-initrd", INITRD),
            "squashfs": item(f"{root}/squashfs", ROOTFS),
        }
        return {"items": items}

    product = {"arch": "amd64", "version": "24.04", "versions": {serial: release(serial) for serial in serials}}
    index = {
        "content_id": "com.ubuntu.maas:stable:v3:download",
        "format": "products:1.0",
        "products": {
            "com.ubuntu.maas.stable:v3:boot:24.04:amd64:ga-24.04": product,
            "com.ubuntu.maas.stable:v3:boot:24.04:amd64:hwe-24.04": {"versions": {"20991231": {"items": {}}}},
        },
    }
    return json.dumps(index, indent=1)


def test_ubuntu_maas_signs_its_index(site: VendorSite) -> None:
    site.put_signed(MAAS, maas_index("20261001", "20260805", "20261001.1"))
    releases = list_site_releases(site, "ubuntu-maas")
    assert [each.version for each in releases] == ["20260805", "20261001", "20261001.1"]
    assert releases[-1].index_signer == site.fingerprint
    release_files = describe(site, "ubuntu-maas", releases[-1])
    root = "https://images.maas.io/ephemeral-v3/stable/noble/amd64/20261001.1"
    assert files(site, release_files) == [
        ("x86_64", "kernel", f"{root}/ga-24.04/generic/boot-kernel", SHA[KERNEL]),
        ("x86_64", "initrds", f"{root}/ga-24.04/generic/boot-initrd", SHA[INITRD]),
        ("x86_64", "rootfs", f"{root}/squashfs", SHA[ROOTFS]),
    ]
    assert [each.size for each in release_files.files] == [6, 6, 6]
    assert (release_files.checksums[X86].url, release_files.checksums[X86].clear_signed) == (site.localise(MAAS), True)


# Debian

INRELEASE = "https://deb.debian.org/debian/dists/trixie/InRelease"


def release_document(*builds: str, list_sha256: str = "0" * 64, size: int = 1) -> str:
    lines = [
        f" {list_sha256} {size:8} main/installer-{arch}/{build}/images/SHA256SUMS"
        for arch in ("amd64", "arm64")
        for build in (*builds, "current")
    ]
    md5 = [f" {'1' * 32} 58277 main/installer-amd64/20990101/images/SHA256SUMS"]
    return "\n".join(["Origin: Debian", "Suite: stable", "MD5Sum:", *md5, "SHA256:", *lines, ""])


def test_debian(site: VendorSite) -> None:
    images = "https://deb.debian.org/debian/dists/trixie/main/installer-amd64/20250803+deb13u2/images"
    listed = (
        f"{SHA[ROOTFS]}  ./netboot/mini.iso\n"
        f"{SHA[INITRD]}  ./netboot/debian-installer/amd64/initrd.gz\n"
        f"{SHA[KERNEL]}  ./netboot/debian-installer/amd64/linux\n"
        f"{SHA[ISO]}  ./netboot/gtk/debian-installer/amd64/linux\n"
    )
    site.put(f"{images}/SHA256SUMS", listed)
    site.put_signed(INRELEASE, release_document("20250803+deb13u2", "20250803", "20250803+deb13u10"))
    releases = list_site_releases(site, "debian")
    assert [each.version for each in releases] == ["20250803", "20250803+deb13u2", "20250803+deb13u10"]
    assert releases[0].index_signer == site.fingerprint
    release_files = describe(site, "debian", releases[1])
    assert files(site, release_files) == [
        ("x86_64", "kernel", f"{images}/netboot/debian-installer/amd64/linux", SHA[KERNEL]),
        ("x86_64", "initrds", f"{images}/netboot/debian-installer/amd64/initrd.gz", SHA[INITRD]),
    ]
    checksums = release_files.checksums[X86]
    assert checksums.listed_in is not None
    assert (checksums.url, checksums.listed_in.url) == (
        site.localise(f"{images}/SHA256SUMS"),
        site.localise(INRELEASE),
    )


def test_text_outside_of_the_signed_part_of_an_index_adds_no_release(site: VendorSite) -> None:
    site.put_signed(INRELEASE, release_document("20250803"))
    path = site.localise(INRELEASE).removeprefix(site.server.url)
    more = release_document("20991231").encode()
    site.server.put(path, more + site.server.files[path] + more)
    assert [each.version for each in list_site_releases(site, "debian")] == ["20250803"]


# Rocky, AlmaLinux, CentOS Stream

LISTING = """<html><head><title>Index of /pub</title></head><body><h1>Index</h1><pre><a href="../">../</a>
<a href="8.10/">8.10/</a> <a href="9/">9/</a> <a href='9.6/'>9.6/</a> <a href="./9.10/">9.10/</a>
<a href="/{0}/9.7/">9.7/</a> <a href="https://elsewhere.test/9.99/">9.99/</a> <a href="9.8-beta/">9.8-beta/</a>
<a href="CentOS-Stream-10-20261103.0/">…</a> <a href="CentOS-Stream-10-20261027.1/">…</a>
<a href="latest-CentOS-Stream/">…</a>
<a href="CentOS-Stream-10-2026%2Fx/">…</a></pre></body></html>"""
TREEINFO = f"""[checksums]
images/efiboot.img = sha256:{SHA[ISO]}
images/pxeboot/initrd.img = sha256:{SHA[INITRD]}
images/pxeboot/vmlinuz = sha256:{SHA[KERNEL]}
repodata/repomd.xml = md5:0

[general]
; WARNING.0 = This section provides compatibility with pre-productmd treeinfos.
arch = x86_64
timestamp = 1668611635
version = 9
"""


@pytest.mark.parametrize(
    ("name", "channel", "root", "versions"),
    [
        ("rocky", "9", "https://download.rockylinux.org/pub/rocky", ["9.6", "9.7", "9.10"]),
        ("almalinux", "8", "https://repo.almalinux.org/almalinux", ["8.10"]),
    ],
)
def test_rocky_and_almalinux(site: VendorSite, name: str, channel: str, root: str, versions: list[str]) -> None:
    site.put(f"{root}/", LISTING.format(root.removeprefix("https://")))
    releases = list_site_releases(site, name, channel)
    assert [each.version for each in releases] == versions
    tree = f"{root}/{versions[-1]}/BaseOS/x86_64/os"
    site.put(f"{tree}/.treeinfo", TREEINFO)
    release_files = describe(site, name, releases[-1])
    assert files(site, release_files) == [
        ("x86_64", "kernel", f"{tree}/images/pxeboot/vmlinuz", SHA[KERNEL]),
        ("x86_64", "initrds", f"{tree}/images/pxeboot/initrd.img", SHA[INITRD]),
    ]
    assert {each.digest_url for each in release_files.files} == {site.localise(f"{tree}/.treeinfo")}
    (repository, _) = release_files.settings.kernel_arguments
    assert repository.endswith(f"/{versions[-1]}/BaseOS/{{{{ server.architecture }}}}/os/")


def test_centos_stream(site: VendorSite) -> None:
    root = "https://composes.stream.centos.org/stream-10/production"
    site.put(f"{root}/", LISTING)
    releases = list_site_releases(site, "centos-stream")
    assert [each.version for each in releases] == ["20261027.1", "20261103.0"]
    tree = f"{root}/CentOS-Stream-10-20261103.0/compose/BaseOS/x86_64/os"
    site.put(f"{tree}/.treeinfo", TREEINFO)
    assert files(site, describe(site, "centos-stream", releases[-1]))[0][2:] == (
        f"{tree}/images/pxeboot/vmlinuz",
        SHA[KERNEL],
    )


# openSUSE, Alpine


def test_opensuse_leap(site: VendorSite) -> None:
    index = {
        "Leap": [
            {"name": "openSUSE Leap", "version": "16.2", "state": "Beta"},
            {"name": "openSUSE Leap", "version": "16.1", "state": "Stable"},
            {"name": "openSUSE Leap", "version": "16.0", "state": "Stable"},
            {"name": "openSUSE Leap", "version": "15.6", "state": "EOL"},
        ],
        "Tumbleweed": [{"version": "16.3", "state": "Stable"}],
    }
    site.put("https://get.opensuse.org/api/v0/distributions.json", json.dumps(index))
    releases = list_site_releases(site, "opensuse-leap")
    assert [each.version for each in releases] == ["16.0", "16.1"]
    iso = "https://download.opensuse.org/distribution/leap/16.1/offline/Leap-16.1-online-installer-x86_64.install.iso"
    site.put(f"{iso}.sha256", f"{SHA[ISO]}  Leap-16.1-online-installer-x86_64.install.iso\n")
    release_files = describe(site, "opensuse-leap", releases[-1])
    assert files(site, release_files) == [("x86_64", "iso", iso, SHA[ISO])]
    signature = release_files.checksums[X86].signature
    assert signature is not None and signature.openpgp == site.localise(f"{iso}.sha256.asc")


ALPINE = f"""---
-
  title: "Mini root filesystem"
  desc: |
    Minimal root filesystem: for containers.
  flavor: alpine-minirootfs
  version: 3.24.2
  file: alpine-minirootfs-3.24.2-x86_64.tar.gz
  sha256: {SHA[ISO]}
-
  title: "Netboot"
  branch: v3.24
  arch: x86_64
  version: 3.24.2
  flavor: alpine-netboot
  file: alpine-netboot-3.24.2-x86_64.tar.gz
  date: 2026-10-21
  time: 10:11:12
  size: 361234567
  sha256: {SHA[ROOTFS]}
"""


def test_alpine_signs_the_archive_of_its_files(site: VendorSite) -> None:
    site.put("https://dl-cdn.alpinelinux.org/alpine/latest-stable/releases/x86_64/latest-releases.yaml", ALPINE)
    (release,) = list_site_releases(site, "alpine")
    assert (release.version, release.published) == ("3.24.2", datetime(2026, 10, 21, 10, 11, 12, tzinfo=UTC))
    release_files = describe(site, "alpine", release)
    archive = "https://dl-cdn.alpinelinux.org/alpine/v3.24/releases/x86_64/alpine-netboot-3.24.2-x86_64.tar.gz"
    assert files(site, release_files) == [
        ("x86_64", "kernel", f"{archive}#boot/vmlinuz-lts", None),
        ("x86_64", "initrds", f"{archive}#boot/initramfs-lts", None),
        ("x86_64", "rootfs", f"{archive}#boot/modloop-lts", None),
    ]
    for each in release_files.files:
        assert each.signature is not None and each.signature.openpgp == site.localise(f"{archive}.asc")
        assert (each.archive_sha256, each.size) == (SHA[ROOTFS], None)
    assert release_files.settings.kernel_arguments[-1].endswith("/alpine/v3.24/main")


# Sources of a fleet

OWN = """
apiVersion: gitboot.dev/v1alpha1
kind: ImageSource
metadata: {name: edge-os}
spec:
"""


MINIMAL = """
architectures: {x86_64: amd64}
releases: {format: JSONList, url: "https://edge.test/versions"}
files: {iso: {url: "https://edge.test/{version}.iso"}}
"""


def make_own_source(site: VendorSite, spec: str) -> ImageSource:
    return read_source(site.localise(OWN + "".join(f"  {line}\n" for line in spec.strip().splitlines())))


def test_a_source_of_a_fleet_lists_releases_of_github(site: VendorSite) -> None:
    source = make_own_source(
        site,
        """
architectures: {x86_64: amd64}
releases: {format: GitHubReleases, url: "https://api.github.test/repos/edge/os/releases", match: "v{version}"}
files: {uki: {name: "edge-os-{arch}.efi"}}
""",
    )

    def release(tag: str, **more: Any) -> dict[str, Any]:
        name, digest = "edge-os-amd64.efi", f"sha256:{SHA[KERNEL]}"
        asset = {"name": name, "browser_download_url": f"https://github.test/{tag}/{name}", "size": 6, "digest": digest}
        return {"tag_name": tag, "published_at": "2026-11-02T03:04:05Z", "assets": [asset], **more}

    index = [release("v1.10.0"), release("v2.0.0", prerelease=True), release("v1.9.0"), release("v3.0.0", draft=True)]
    site.put("https://api.github.test/repos/edge/os/releases", json.dumps(index))
    releases = list_site_releases(site, source)
    assert [each.version for each in releases] == ["1.9.0", "1.10.0"]
    release_files = describe(site, source, releases[-1])
    assert files(site, release_files) == [
        ("x86_64", "uki", "https://github.test/v1.10.0/edge-os-amd64.efi", SHA[KERNEL])
    ]
    assert release_files.files[0].size == 6


def test_a_source_of_a_fleet_reads_a_text_and_a_signed_list_with_sha512(site: VendorSite) -> None:
    source = make_own_source(
        site,
        f"""
architectures: {{x86_64: x86_64}}
releases: {{format: Text, url: "https://edge.test/latest.txt", match: "EDGE_VERSION={{version}}"}}
files:
  kernel: {{url: "https://edge.test/{{version}}/vmlinuz"}}
  initrds: [{{url: "https://edge.test/{{version}}/initrd"}}, {{url: "https://edge.test/{{version}}/firmware"}}]
checksums: {{url: "https://edge.test/{{version}}/SHA512SUMS.asc", clearSigned: true}}
keys: [{site.fingerprint}]
""",
    )
    site.put("https://edge.test/latest.txt", "EDGE_BOARD=amd64\nEDGE_VERSION=2026.11\n")
    digests = {name: sha512(content).hexdigest() for name, content in (("vmlinuz", KERNEL), ("initrd", INITRD))}
    site.put_signed("https://edge.test/2026.11/SHA512SUMS.asc", "".join(f"{d}  {n}\n" for n, d in digests.items()))
    (release,) = list_site_releases(site, source)
    release_files = describe(site, source, release)
    assert [(each.url.rpartition("/")[2], each.sha256, each.sha512) for each in release_files.files] == [
        ("vmlinuz", None, digests["vmlinuz"]),
        ("initrd", None, digests["initrd"]),
        ("firmware", None, None),
    ]
    assert release_files.checksums[X86].clear_signed


def test_a_fleet_replaces_a_built_in_source(site: VendorSite) -> None:
    mirror = make_own_source(site, MINIMAL)
    assert find_source("flatcar", {"flatcar": mirror}) is mirror
    assert find_source("flatcar", {}).metadata.name == "flatcar"
    with pytest.raises(UsageError, match=r"there is no image source 'flatcr'; did you mean flatcar\?"):
        find_source("flatcr", {"edge-os": mirror})
    with pytest.raises(UsageError, match=r"use one of almalinux, .*, edge-os, .* or add an ImageSource document"):
        find_source("windows-server", {"edge-os": mirror})


# What gitboot rejects


def serve_too_large(site: VendorSite) -> None:
    site.put(FCOS, b"[" + b"0," * (5 << 20))


def serve_by_stranger(site: VendorSite, people: Mapping[str, Person]) -> None:
    site.put_signed(INRELEASE, release_document("20250803"), people["stranger"])


def serve_tampered(site: VendorSite) -> None:
    site.put_signed(INRELEASE, release_document("20250803"))
    path = site.localise(INRELEASE).removeprefix(site.server.url)
    site.server.put(path, site.server.files[path].replace(b"20250803", b"20991231"))


Case = tuple[str, str | None, Callable[[VendorSite, Mapping[str, Person]], object], type[GitbootError], str]
REJECTED: list[Case] = [
    ("fedora-coreos", None, lambda *_: None, SourceUnavailable, r"stable\.json: .* returned 404; check the URLs"),
    ("fedora-coreos", None, lambda site, _: site.put(FCOS, "{"), MalformedIndex, "the index is not JSON"),
    ("fedora-coreos", None, lambda site, _: site.put(FCOS, "[" * 100_000), MalformedIndex, "the index is not JSON"),
    ("fedora-coreos", None, lambda site, _: site.put(FCOS, "[]"), MalformedIndex, "no mapping at the top level"),
    ("fedora-coreos", None, lambda site, _: site.put(FCOS, "{}"), MalformedIndex, "at architectures.x86_64.artifacts"),
    ("fedora-coreos", None, lambda site, _: serve_too_large(site), MalformedIndex, "larger than 8,388,608 bytes"),
    (
        "fedora-coreos",
        None,
        lambda site, _: site.put(FCOS, coreos_stream("44 quiet", signed=True)),
        MalformedIndex,
        '"44 quiet" is not a version',
    ),
    (
        "fedora-coreos",
        None,
        lambda site, _: site.put(FCOS, coreos_stream("44.1", signed=True).replace("https://builds.test", "file://")),
        MalformedIndex,
        "a URL that gitboot does not accept",
    ),
    (
        "fedora-coreos",
        None,
        lambda site, _: site.put(FCOS, coreos_stream("44.1", signed=True).replace(SHA[KERNEL], "1234")),
        MalformedIndex,
        '"1234" is not a SHA-256 digest',
    ),
    (
        "flatcar",
        None,
        lambda site, _: site.put("https://www.flatcar.org/releases-json/releases-stable.json", '{"current": {}}'),
        MalformedIndex,
        "the index lists no releases in the channel stable",
    ),
    ("debian", None, lambda site, _: site.put(INRELEASE, release_document("1")), UntrustedIndex, "not a complete"),
    (
        "debian",
        None,
        serve_by_stranger,
        UntrustedIndex,
        "the index is signed by the key [0-9A-F]+, which is not listed as a trusted key; if the vendor has a new key",
    ),
    (
        "debian",
        None,
        lambda site, _: serve_tampered(site),
        UntrustedIndex,
        "the index is not valid: the content changed after it was signed; try again later",
    ),
    (
        "ubuntu",
        "24.04",
        lambda site, _: site.put("https://releases.ubuntu.com/24.04/SHA256SUMS", UBUNTU_LIST),
        UntrustedIndex,
        r"the index is not signed \(.*SHA256SUMS.gpg: .* returned 404\); try again later",
    ),
    (
        "ubuntu",
        "24.04",
        lambda site, people: site.put_detached(
            "https://releases.ubuntu.com/24.04/SHA256SUMS", UBUNTU_LIST, ".gpg", people["stranger"]
        ),
        UntrustedIndex,
        "the index is signed by the key [0-9A-F]+, which is not listed as a trusted key; if the vendor has a new key",
    ),
    (
        "rocky",
        "9",
        lambda site, _: site.put("https://download.rockylinux.org/pub/rocky/", "<html>maintenance</html>"),
        MalformedIndex,
        "the page has 0 links",
    ),
    ("ubuntu-maas", None, lambda site, _: site.put_signed(MAAS, "[1]"), MalformedIndex, "no mapping at the top level"),
    (
        "ubuntu-maas",
        None,
        lambda site, _: site.put_signed(MAAS, '{"format": "products:2.0"}'),
        MalformedIndex,
        "not in the simplestreams format products:1.0",
    ),
    ("flatcar", "stabel", lambda *_: None, UsageError, r"flatcar has no channel 'stabel'; did you mean stable\?"),
    ("talos", "stable", lambda *_: None, UsageError, "talos has no channel 'stable'; the source has no channels"),
]


@pytest.mark.parametrize(("name", "channel", "prepare", "error", "says"), REJECTED)
def test_an_index_that_is_wrong_in_any_way_lists_no_release(
    site: VendorSite,
    people: Mapping[str, Person],
    name: str,
    channel: str | None,
    prepare: Callable[[VendorSite, Mapping[str, Person]], object],
    error: type[GitbootError],
    says: str,
) -> None:
    prepare(site, people)
    with pytest.raises(error, match=says):
        list_site_releases(site, name, channel)


def test_a_server_that_does_not_answer_is_unavailable(site: VendorSite) -> None:
    source = site.source("talos")
    site.server.statuses["/factory.talos.dev/versions"] = 503
    with pytest.raises(SourceUnavailable, match=r"/versions: .* returned 503; check the network and the URL"):
        list_site_releases(site, source)


def test_a_list_that_contradicts_itself_or_its_index_is_malformed(site: VendorSite) -> None:
    site.put("https://factory.talos.dev/versions", '["v1.10.0"]')
    (release,) = list_site_releases(site, "talos")
    url = "https://github.com/siderolabs/talos/releases/download/v1.10.0/sha256sum.txt"
    site.put(url, f"{SHA[KERNEL]}  vmlinuz-amd64\n{SHA[INITRD]}  vmlinuz-amd64\n")
    with pytest.raises(MalformedIndex, match='two different digests for "vmlinuz-amd64"'):
        describe(site, "talos", release)
    site.put(url, "<html>not found</html>")
    with pytest.raises(MalformedIndex, match="not a list of SHA-256 or SHA-512 digests"):
        describe(site, "talos", release)


def test_a_release_without_a_file_or_an_architecture_is_incomplete(site: VendorSite) -> None:
    root = "https://download.rockylinux.org/pub/rocky"
    site.put(f"{root}/", LISTING)
    release = list_site_releases(site, "rocky", "9")[0]
    site.put(f"{root}/9.6/BaseOS/x86_64/os/.treeinfo", TREEINFO.replace("pxeboot/vmlinuz", "pxeboot/linux"))
    with pytest.raises(IncompleteRelease, match="treeinfo: the release has no file images/pxeboot/vmlinuz"):
        describe(site, "rocky", release)
    site.put(f"{root}/9.6/BaseOS/x86_64/os/.treeinfo", "[general]\nversion = 9\n")
    with pytest.raises(MalformedIndex, match=r"has no \[checksums\] section"):
        describe(site, "rocky", release)
    with pytest.raises(SourceUnavailable, match=r"aarch64/os/\.treeinfo: .* returned 404"):
        describe(site, "rocky", release, ARM)
    source = make_own_source(site, MINIMAL)
    with pytest.raises(UsageError, match="edge-os has no images for aarch64; use x86_64"):
        describe(site, source, release, ARM)


# Registries


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as served:
        layers = [(f"{IRONCORE}kernel", KERNEL), (f"{IRONCORE}initramfs", INITRD), (f"{IRONCORE}iso", ISO)]
        for tag in ("v1.2.0", "v1.10.0", "v2.0.0-rc.1", "main"):
            pxe = served.push_image("os/edge", f"amd64-{tag}", layers)
            entry = {**pxe, "platform": {"architecture": "amd64", "os": "linux"}}
            served.push_index("os/edge", tag, [entry])
        served.push_image("os/single", "v1", [(f"{GARDENLINUX}kernel", KERNEL)])
        yield served


def test_a_source_lists_the_tags_of_a_registry(site: VendorSite, oci: Registry) -> None:
    source = make_own_source(
        site,
        f"""
architectures: {{x86_64: amd64, aarch64: arm64}}
releases: {{format: OCITags, url: "oci://{oci.host}/os/edge", match: "v{{version}}"}}
files: {{kernel: {{name: kernel}}, initrds: [{{name: initrds}}]}}
""",
    )
    finder = make_finder(site, oci.allowed)
    releases = finder.list_releases(source, None)
    assert [each.version for each in releases] == ["1.2.0", "1.10.0"]
    release_files = finder.describe_release(source, releases[-1], (X86,))
    assert [(each.role, each.url, each.sha256, each.size) for each in release_files.files] == [
        (FileRole.KERNEL, f"oci://{oci.host}/os/edge@sha256:{SHA[KERNEL]}", SHA[KERNEL], 6),
        (FileRole.INITRD, f"oci://{oci.host}/os/edge@sha256:{SHA[INITRD]}", SHA[INITRD], 6),
    ]
    with pytest.raises(IncompleteRelease, match="the image has no files for aarch64"):
        finder.describe_release(source, releases[-1], (X86, ARM))
    with pytest.raises(RegistryRefused, match="not an allowed registry"):
        make_finder(site).list_releases(source, None)
    other = structs.replace(releases[0], version="9.9")
    with pytest.raises(IncompleteRelease, match="does not exist in the registry"):
        finder.describe_release(source, other, (X86,))


def test_a_tag_is_described_by_digests(oci: Registry) -> None:
    registries = Registries([AllowedRegistry.parse(oci.allowed)], HttpClient())
    release_files = describe_oci_image(OciReference.parse(f"oci://{oci.host}/os/edge:v1.2.0"), registries)
    assert [each.role for each in release_files.files] == [FileRole.KERNEL, FileRole.INITRD, FileRole.ISO]
    assert release_files.release.version == "v1.2.0"
    assert "@sha256:" in release_files.release.index_url
    assert {each.digest_url for each in release_files.files} == {release_files.release.index_url}
    single = OciReference.parse(f"oci://{oci.host}/os/single:v1")
    assert describe_oci_image(single, registries, ARM).files[0].architecture is ARM
    with pytest.raises(RegistryRefused, match="not an allowed registry"):
        describe_oci_image(OciReference.parse("oci://other.test/os/edge:v1"), registries)
    unreachable = Registries([AllowedRegistry.parse("http://127.0.0.1:9")], HttpClient())
    with pytest.raises(SourceUnavailable, match="check the network"):
        describe_oci_image(OciReference.parse("oci://127.0.0.1:9/os/edge:v1"), unreachable)


# URLs and local files


def test_the_digest_of_a_url_comes_from_the_checksum_file_beside_it(site: VendorSite) -> None:
    root = "https://edge.test/9.6"
    site.put(f"{root}/vmlinuz.sha256", f"{SHA[KERNEL]}\n")  # only the digest
    site.put(f"{root}/initrd.img.sha256", "<html>not found</html>")
    site.put(f"{root}/SHA256SUMS", f"{SHA[INITRD]} *initrd.img\n{SHA[ISO]}  other\n{SHA[ROOTFS]}  boot.tar.gz\n")
    urls = [
        (X86, FileRole.INITRD, site.localise(f"{root}/initrd.img")),
        (X86, FileRole.KERNEL, site.localise(f"{root}/vmlinuz")),
        (X86, FileRole.ROOTFS, site.localise(f"{root}/boot.tar.gz#boot/root.squashfs")),
        (X86, FileRole.ISO, site.localise("https://edge.test/none/edge.iso")),
    ]
    release_files = describe_urls(urls, "9.6", WebFetcher())
    assert [
        (each.role, each.sha256, each.archive_sha256, (each.digest_url or "").rpartition("/")[2])
        for each in release_files.files
    ] == [
        (FileRole.KERNEL, SHA[KERNEL], None, "vmlinuz.sha256"),
        (FileRole.INITRD, SHA[INITRD], None, "SHA256SUMS"),
        (FileRole.ROOTFS, None, SHA[ROOTFS], "SHA256SUMS"),
        (FileRole.ISO, None, None, ""),
    ]
    site.server.statuses["/edge.test/9.6/vmlinuz.sha256"] = 500
    with pytest.raises(SourceUnavailable, match="returned 500"):
        describe_urls(urls, "9.6", WebFetcher())


def test_local_files_are_read(tmp_path: Path) -> None:
    kernel = tmp_path / "vmlinuz"
    kernel.write_bytes(KERNEL)
    release_files = describe_local_files([(X86, FileRole.KERNEL, kernel, "assets:edge/1/vmlinuz")], "1")
    (file,) = release_files.files
    assert (file.url, file.sha256, file.size) == ("assets:edge/1/vmlinuz", compute_digest(KERNEL), 6)
    with pytest.raises(IncompleteRelease, match="missing: No such file or directory; check the file's path"):
        describe_local_files([(X86, FileRole.KERNEL, tmp_path / "missing", "assets:x")], "1")
