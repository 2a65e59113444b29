"""Image builder: which files become a BootImage, with which provenance, and which releases are rejected."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha512
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from gitboot.artifacts.downloads import WebFetcher
from gitboot.artifacts.signatures import VendorKeys
from gitboot.child_processes import limit_file_size
from gitboot.errors import (
    AssetError,
    GitbootError,
    IncompleteRelease,
    MalformedIndex,
    SourceUnavailable,
    UntrustedRelease,
)
from gitboot.image_sources.image_builder import BuiltImage, build_image
from gitboot.image_sources.index_formats import FileRole, ImageSettings, Release, ReleaseFile, ReleaseFiles
from gitboot.model.boot_image import Checksums, DigestOrigin, Provenance, Signature
from gitboot.model.scalars import ArtifactUrl
from gitboot.model.server import Architecture
from tests.helpers.artifact_servers import ArtifactServer, artifact_server, compute_digest
from tests.helpers.git_repositories import Minisign, Person, gpg_people, sign_with_gpg

KERNEL, INITRD, SECOND = b"kernel" * 100_000, b"initrd" * 1000, b"microcode"
X86, ARM = Architecture.X86_64, Architecture.AARCH64


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger") as people:
        yield people


@dataclass
class Progress:
    begun: list[tuple[str, int | None]] = field(default_factory=list)
    bytes: int = 0

    def begin(self, name: str, size: int | None) -> None:
        self.begun.append((name, size))

    def advance(self, size: int) -> None:
        self.bytes += size


@dataclass
class Vendor:
    """A vendor with a web server and an OpenPGP key, and gitboot with that key."""

    web: ArtifactServer
    folder: Path
    people: Mapping[str, Person]
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        keys = self.folder / "keys"
        keys.mkdir()
        for person in self.people.values():  # also the stranger's: the source decides who may sign
            (keys / f"{person.name}.asc").write_bytes(person.public.read_bytes())
        self.keys = VendorKeys(keys, self.folder, shipped=None)

    def fingerprint(self, name: str = "vendor") -> str:
        command = ["gpg", "--homedir", str(self.folder), "--with-colons", "--show-keys", str(self.people[name].public)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))

    def put(self, name: str, content: bytes) -> str:
        return self.web.put(f"/{name}", content).url

    def sign(self, content: bytes, *how: str, by: str = "vendor") -> bytes:
        file = self.folder / "signed"
        file.write_bytes(content)
        return sign_with_gpg(self.people[by], file, *how)

    def file(
        self, role: FileRole, name: str, content: bytes, *, architecture: Architecture = X86, **facts: Any
    ) -> ReleaseFile:
        return ReleaseFile(architecture=architecture, role=role, url=self.put(name, content), **facts)

    def release(self, *files: ReleaseFile, version: str = "1.2.0", **facts: Any) -> ReleaseFiles:
        release = Release(
            source="someos",
            channel="stable",
            version=version,
            published=datetime(2026, 11, 19, 12, tzinfo=UTC),
            index_url=f"{self.web.url}/index.json",
            index_signer=None,
        )
        facts = {"checksums": {}, "keys": (), "settings": ImageSettings(), **facts}
        return ReleaseFiles(release=release, files=files, **facts)

    def build(self, files: ReleaseFiles, **options: Any) -> BuiltImage:
        return build_image(files, WebFetcher(), self.keys, self.progress, **options)


@pytest.fixture
def vendor(people: Mapping[str, Person], tmp_path: Path) -> Iterator[Vendor]:
    with artifact_server() as web:
        yield Vendor(web, tmp_path, people)


def origins(built: BuiltImage) -> list[DigestOrigin]:
    return [each.provenance.digest for each in built.files]


def test_a_release_without_digests_becomes_a_document_with_the_digests_of_its_first_download(vendor: Vendor) -> None:
    built = vendor.build(
        vendor.release(
            vendor.file(FileRole.KERNEL, "vmlinuz", KERNEL),
            vendor.file(FileRole.INITRD, "initrd", INITRD),
            vendor.file(FileRole.INITRD, "microcode", SECOND),
            vendor.file(FileRole.ISO, "arm.iso", KERNEL, architecture=ARM),
            settings=ImageSettings(user_data="Ignition/3.4", kernel_arguments=("quiet", "a={{ image.version }}")),
        )
    )
    url = vendor.web.url
    assert built.text == (
        f"# someos 1.2.0, channel stable, published 2026-11-19. Written by gitboot from {url}/index.json\n"
        "# The vendor does not publish digests for these files, so gitboot computed them: x86_64.kernel, "
        "x86_64.initrds.0, x86_64.initrds.1, aarch64.iso\n"
        "# yaml-language-server: $schema=../.gitboot/schemas/BootImage.json\n"
        "apiVersion: gitboot.dev/v1alpha1\n"
        "kind: BootImage\n"
        "metadata:\n"
        "  name: someos-1.2.0\n"
        "  annotations:\n"
        "    gitboot.dev/source: someos\n"
        "    gitboot.dev/channel: stable\n"
        "spec:\n"
        "  version: 1.2.0\n"
        "  userData: Ignition/3.4\n"
        "  kernelArguments:\n"
        "  - quiet\n"
        "  - a={{ image.version }}\n"
        "  architectures:\n"
        "    aarch64:\n"
        "      iso:\n"
        f"        url: {url}/arm.iso\n"
        f"        sha256: {compute_digest(KERNEL)}\n"
        f"        size: {len(KERNEL)}\n"
        "        provenance:\n"
        "          digest: firstSeen\n"
        "    x86_64:\n"
        "      kernel:\n"
        f"        url: {url}/vmlinuz\n"
        f"        sha256: {compute_digest(KERNEL)}\n"
        f"        size: {len(KERNEL)}\n"
        "        provenance:\n"
        "          digest: firstSeen\n"
        "      initrds:\n"
        f"      - url: {url}/initrd\n"
        f"        sha256: {compute_digest(INITRD)}\n"
        f"        size: {len(INITRD)}\n"
        "        provenance:\n"
        "          digest: firstSeen\n"
        f"      - url: {url}/microcode\n"
        f"        sha256: {compute_digest(SECOND)}\n"
        f"        size: {len(SECOND)}\n"
        "        provenance:\n"
        "          digest: firstSeen\n"
    )
    assert [name for name, _ in vendor.progress.begun] == ["vmlinuz", "initrd", "microcode", "arm.iso", "signatures"]
    assert vendor.progress.bytes == 2 * len(KERNEL) + len(INITRD) + len(SECOND)


def test_a_signature_is_stronger_than_a_published_digest_and_that_than_none(vendor: Vendor) -> None:
    signed = vendor.put("vmlinuz.sig", vendor.sign(KERNEL))
    index = f"{vendor.web.url}/index.json"
    kernel = vendor.file(
        FileRole.KERNEL,
        "vmlinuz",
        KERNEL,
        sha256=compute_digest(KERNEL),
        digest_url=index,
        signature=Signature(openpgp=ArtifactUrl(signed)),
    )
    published = vendor.file(FileRole.INITRD, "initrd", INITRD, sha512=sha512(INITRD).hexdigest(), digest_url=index)
    built = vendor.build(vendor.release(kernel, published, vendor.file(FileRole.INITRD, "microcode", SECOND)))
    assert [each.provenance for each in built.files] == [
        Provenance(digest=DigestOrigin.SIGNED, key=vendor.fingerprint(), url=ArtifactUrl(signed)),
        Provenance(digest=DigestOrigin.PUBLISHED, url=ArtifactUrl(index)),
        Provenance(digest=DigestOrigin.FIRST_SEEN),
    ]
    assert built.image.spec.architectures[X86].kernel is not None
    assert vendor.web.asked["GET", "/vmlinuz"] == 1  # gpg reads the file that was hashed


def test_only_the_minisign_key_of_the_source_may_sign(vendor: Vendor) -> None:
    minisign = [Minisign(vendor.folder / "keys", name) for name in ("vendor", "stranger")]
    vendor.keys = VendorKeys(vendor.folder / "keys", vendor.folder, shipped=None)
    key = minisign[0].public.read_text().splitlines()[1]
    (vendor.folder / "kernel").write_bytes(KERNEL)
    for signer in minisign:
        url = ArtifactUrl(vendor.put("vmlinuz.minisig", signer.sign(vendor.folder / "kernel")))
        kernel = vendor.file(FileRole.KERNEL, "vmlinuz", KERNEL, signature=Signature(minisign=url))
        release = vendor.release(kernel, vendor.file(FileRole.INITRD, "initrd", INITRD, is_unsigned=True), keys=(key,))
        if signer is minisign[0]:
            signed = vendor.build(release).files[0].provenance
            assert signed == Provenance(digest=DigestOrigin.SIGNED, key=key, url=url)
        else:
            with pytest.raises(UntrustedRelease, match="minisign key that is not listed"):
                vendor.build(release)


def test_a_signed_list_of_digests_covers_the_files_of_its_architecture(vendor: Vendor) -> None:
    sums = f"{compute_digest(KERNEL)}  vmlinuz\n{compute_digest(INITRD)}  initrd\n".encode()
    url = vendor.put("SHA256SUMS", sums)
    signature = Signature(openpgp=ArtifactUrl(vendor.put("SHA256SUMS.gpg", vendor.sign(sums))))
    files = vendor.release(
        vendor.file(FileRole.KERNEL, "vmlinuz", KERNEL),
        vendor.file(FileRole.INITRD, "initrd", INITRD),
        checksums={X86: Checksums(url=ArtifactUrl(url), signature=signature)},
        keys=(vendor.fingerprint(),),
    )
    built = vendor.build(files, name="my-os", labels={"os": "some"})
    assert origins(built) == [DigestOrigin.SIGNED, DigestOrigin.SIGNED]
    assert {each.provenance.url for each in built.files} == {url}
    assert (built.name, built.image.metadata.labels) == ("my-os", {"os": "some"})
    assert built.image.spec.architectures[X86].checksums == files.checksums[X86]
    vendor.put("initrd", b"changed")
    with pytest.raises(UntrustedRelease, match="not in the list"):
        vendor.build(files)


def test_the_settings_of_an_image_replace_those_of_the_source(vendor: Vendor) -> None:
    files = vendor.release(
        vendor.file(FileRole.ISO, "a.iso", KERNEL), settings=ImageSettings(kernel_arguments=("quiet",))
    )
    own = ImageSettings(boots=2, writes_disk=False, config_from="Medium", user_data="Kickstart")
    spec = vendor.build(files, settings=own).image.spec
    assert (spec.boots, spec.writes_disk, spec.config_from, spec.user_data) == (2, False, "Medium", "Kickstart")
    assert spec.kernel_arguments == ()


def test_the_same_release_gives_the_same_text(vendor: Vendor) -> None:
    files = vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL))
    assert vendor.build(files).text == vendor.build(files).text


def _missing(vendor: Vendor) -> ReleaseFiles:
    kernel = vendor.file(FileRole.KERNEL, "vmlinuz", KERNEL)
    gone = ReleaseFile(architecture=X86, role=FileRole.INITRD, url=f"{vendor.web.url}/gone")
    return vendor.release(kernel, gone)


def _other_size(vendor: Vendor) -> ReleaseFiles:
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, size=5))


def _other_size_without_a_length(vendor: Vendor) -> ReleaseFiles:
    vendor.web.no_length = True
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, size=len(KERNEL) + 1))


def _too_large_without_a_length(vendor: Vendor) -> ReleaseFiles:
    vendor.web.no_length = True
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, size=5))


def _other_sha256(vendor: Vendor) -> ReleaseFiles:
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, sha256=compute_digest(INITRD)))


def _other_sha512(vendor: Vendor) -> ReleaseFiles:
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, sha512=sha512(INITRD).hexdigest()))


def _changed_after_signing(vendor: Vendor) -> ReleaseFiles:
    signature = Signature(openpgp=ArtifactUrl(vendor.put("a.sig", vendor.sign(KERNEL))))
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL + b"!", signature=signature))


def _signed_by_stranger(vendor: Vendor) -> ReleaseFiles:
    signature = Signature(openpgp=ArtifactUrl(vendor.put("a.sig", vendor.sign(KERNEL, by="stranger"))))
    iso = vendor.file(FileRole.ISO, "a.iso", KERNEL, signature=signature)
    return vendor.release(iso, keys=(vendor.fingerprint(),))


def _signature_gone(vendor: Vendor) -> ReleaseFiles:
    signature = Signature(openpgp=ArtifactUrl(f"{vendor.web.url}/a.sig"))
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL, signature=signature))


def _signature_left_out(vendor: Vendor) -> ReleaseFiles:
    kernel = vendor.file(FileRole.KERNEL, "vmlinuz", KERNEL, sha256=compute_digest(KERNEL))
    return vendor.release(kernel, keys=(vendor.fingerprint(),))


def _truncated(vendor: Vendor) -> ReleaseFiles:
    vendor.web.cut["/a.iso"] = 1000
    return vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL))


def _no_kernel(vendor: Vendor) -> ReleaseFiles:
    return vendor.release(vendor.file(FileRole.INITRD, "initrd", INITRD))


def _hostile_url(vendor: Vendor) -> ReleaseFiles:
    iso = vendor.file(FileRole.ISO, "a.iso", KERNEL)
    return vendor.release(structs.replace(iso, url=f"{iso.url}?`id`"))


def _hostile_argument(vendor: Vendor) -> ReleaseFiles:
    iso = vendor.file(FileRole.ISO, "a.iso", KERNEL)
    return vendor.release(iso, settings=ImageSettings(kernel_arguments=("quiet\ninit=/bin/sh",)))


@pytest.mark.parametrize(
    ("release", "error", "text"),
    [
        (_missing, IncompleteRelease, "/gone: .* returned 404; the release may be incomplete"),
        (_other_size, IncompleteRelease, "the index lists a size of 5 bytes, but the server reports 600000 bytes"),
        (
            _other_size_without_a_length,
            IncompleteRelease,
            "the file is 600000 bytes long, but the index lists 600001 bytes",
        ),
        (_too_large_without_a_length, IncompleteRelease, "larger than 5 bytes"),
        (_other_sha256, UntrustedRelease, "the file's sha256 digest is"),
        (_other_sha512, UntrustedRelease, "the file's sha512 digest is"),
        (_changed_after_signing, UntrustedRelease, r"x86_64\.iso: the file is not valid: the content changed"),
        (_signed_by_stranger, UntrustedRelease, "which is not allowed"),
        (_signature_gone, UntrustedRelease, "unavailable"),
        (_signature_left_out, UntrustedRelease, "has no signature; this source requires a signature"),
        (_truncated, SourceUnavailable, "ended too early"),
        (_no_kernel, MalformedIndex, "no file that a machine can boot"),
        (_hostile_url, MalformedIndex, "URL in plain ASCII"),
        (_hostile_argument, MalformedIndex, "one kernel argument on one line"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_release_with_a_fault_is_rejected(vendor: Vendor, release: Any, error: type[GitbootError], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        vendor.build(release(vendor))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_found_before_the_others_are_downloaded(vendor: Vendor) -> None:
    with pytest.raises(IncompleteRelease):
        vendor.build(_missing(vendor))
    assert vendor.web.asked["GET", "/vmlinuz"] == 0


def test_a_redirect_is_followed_and_the_document_has_the_first_url(vendor: Vendor) -> None:
    vendor.put("elsewhere", KERNEL)
    vendor.web.redirects["/a.iso"] = f"{vendor.web.url}/elsewhere"
    iso = ReleaseFile(architecture=X86, role=FileRole.ISO, url=f"{vendor.web.url}/a.iso")
    built = vendor.build(vendor.release(iso))
    assert [(each.url, each.sha256) for each in built.files] == [(iso.url, compute_digest(KERNEL))]


@pytest.mark.parametrize("version", ["1.2\n# kind: Fleet", "\x1b[31m1.2", "1.2: {a", "\u202e2.1", "", "1" * 101])
def test_a_version_that_is_no_version_is_rejected(vendor: Vendor, version: str) -> None:
    with pytest.raises(MalformedIndex) as raised:
        vendor.build(vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL), version=version))
    assert str(raised.value).isprintable()
    assert vendor.web.asked.total() == 0


@pytest.mark.parametrize(
    "version", ["7.20", "1_2", "0x10", "1e3", "2026-11-20", "1:2", "9.10.0-beta.0", "20210731+deb11u5"]
)
def test_a_version_is_text_in_the_document(vendor: Vendor, version: str) -> None:
    built = vendor.build(vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL), version=version))
    assert built.image.spec.version == version
    assert yaml.safe_load(built.text)["spec"]["version"] == version


def test_a_server_that_refuses_head_is_asked_for_the_file(vendor: Vendor) -> None:
    vendor.web.refuses_head = 403
    built = vendor.build(vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL)))
    assert built.files[0].sha256 == compute_digest(KERNEL)


def test_a_full_disk_is_an_error_that_names_the_remedy(vendor: Vendor) -> None:
    files = vendor.release(vendor.file(FileRole.ISO, "a.iso", KERNEL))
    with (
        limit_file_size(len(KERNEL) // 2),
        pytest.raises(AssetError, match=r"a\.iso: gitboot cannot store the download .* TMPDIR"),
    ):
        vendor.build(files)
