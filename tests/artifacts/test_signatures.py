"""Signatures of images: which keys count, and what a fetched signature proves."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha512
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.cli.main import Exit, cli
from tests.helpers.artifact_servers import ArtifactServer, Sigstore, artifact_server, compute_digest, registry
from tests.helpers.fleets import document, fleet, policy, profile, server
from tests.helpers.git_repositories import Minisign, Person, WorkTree, clear_sign, gpg_people, sign_with_gpg


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger") as people:
        yield people


VENDOR = b'identity = "vendor@example.net"\nissuer = "https://accounts.test"\n'
KERNEL, INITRD = b"kernel" * 1000, b"initrd" * 1000


@dataclass
class Vendor:
    web: ArtifactServer
    folder: Path
    people: Mapping[str, Person]

    def __post_init__(self) -> None:
        self.keys = self.folder / "keys"
        self.keys.mkdir()
        self.minisign, self.sigstore = Minisign(self.folder, "vendor"), Sigstore()
        (self.keys / "vendor.pub").write_bytes(self.minisign.public.read_bytes())
        (self.keys / "vendor.asc").write_bytes(self.people["vendor"].public.read_bytes())
        (self.keys / "vendor.toml").write_bytes(VENDOR)
        (self.keys / "trusted_root.json").write_bytes(self.sigstore.trusted_root)
        self.put("kernel", KERNEL)
        self.put("initrd", INITRD)

    def put(self, name: str, content: bytes) -> None:
        self.web.put(f"/{name}", content)

    def sign(self, name: str, kind: str, by: str = "vendor") -> str:
        file = self.folder / "signed"
        file.write_bytes(content := self.web.files[f"/{name}"])
        match kind:
            case "openpgp":
                signature = sign_with_gpg(self.people[by], file)
            case "minisign":
                signature = self.minisign.sign(file)
            case _:
                signature = self.sigstore.bundle(content, f"{by}@example.net")
        self.put(f"{name}.{kind}", signature)
        return f"{self.web.url}/{name}.{kind}"

    def image(self, kernel: str = "", more: str = "", url: str = "") -> str:
        kernel_spec = f"url: '{url or f'{self.web.url}/kernel'}', sha256: {compute_digest(KERNEL)}{kernel}"
        initrd_spec = f"url: '{self.web.url}/initrd', sha256: {compute_digest(INITRD)}"
        return document(
            "BootImage",
            "linux-1",
            f"version: 1, architectures: {{x86_64: {{kernel: {{{kernel_spec}}}, initrds: [{{{initrd_spec}}}]{more}}}}}",
        )

    def write(self, text: str) -> Path:
        path = self.folder / "fleet"
        path.mkdir(exist_ok=True)
        (path / "fleet.yaml").write_text("---\n".join((fleet(), text)))
        return path

    def check(self, path: Path, *options: str | Path) -> tuple[int, dict[str, str]]:
        command = ["artifacts", "signatures", str(path), "--image-keys", str(self.keys), *map(str, options)]
        result = CliRunner().invoke(cli, [*command, "-o", "json"])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        items: list[dict[str, Any]] = json.loads(result.stdout)["items"]
        assert {each["code"] for each in items} <= {"GB4006", "GB4013"}
        return result.exit_code, {
            f"{each['severity']} {each['message'].partition(' of ')[0]}": each["message"] for each in items
        }

    def find_kernel_fault(self, path: Path, *options: str | Path) -> str:
        code, found = self.check(path, *options)
        assert code == Exit.INVALID
        return found["error x86_64.kernel"]


@pytest.fixture
def vendor(people: Mapping[str, Person], tmp_path: Path) -> Iterator[Vendor]:
    with artifact_server() as web:
        yield Vendor(web, tmp_path, people)


def make_sha256_list(form: str = "{} *{}") -> bytes:
    return "".join(
        form.format(compute_digest(content), name) + "\n" for name, content in (("kernel", KERNEL), ("initrd", INITRD))
    ).encode()


@pytest.mark.parametrize("kind", ["openpgp", "minisign", "sigstore"])
def test_a_file_that_its_vendor_has_signed_passes_and_another_does_not(vendor: Vendor, kind: str) -> None:
    signature = vendor.sign("kernel", kind)
    path = vendor.write(vendor.image(f", signature: {{{kind}: '{signature}'}}"))
    assert vendor.check(path) == (
        0,
        {"warning x86_64.initrds.0": "x86_64.initrds.0 of BootImage/linux-1 has no signature"},
    )
    code, found = vendor.check(path, "--required")
    assert (code, list(found)) == (Exit.INVALID, ["error x86_64.initrds.0"])

    vendor.web.files[f"/kernel.{kind}"] = vendor.web.files[f"/{Path(vendor.sign('initrd', kind)).name}"]
    assert " is not " in vendor.find_kernel_fault(path)


@pytest.mark.parametrize("kind", ["openpgp", "minisign", "sigstore"])
def test_a_signed_list_of_digests_vouches_for_the_files_in_it(vendor: Vendor, kind: str) -> None:
    vendor.put("SHA256SUMS", make_sha256_list())
    signature = vendor.sign("SHA256SUMS", kind)
    checksums = f", checksums: {{url: '{vendor.web.url}/SHA256SUMS', signature: {{{kind}: '{signature}'}}}}"
    path = vendor.write(vendor.image(more=checksums))
    vendor.web.asked.clear()
    assert (vendor.check(path, "--required"), vendor.web.asked["GET", "/SHA256SUMS"]) == ((0, {}), 1)
    assert vendor.web.asked["GET", "/kernel"] == 0

    vendor.put("SHA256SUMS", make_sha256_list().replace(b"initrd", b"other"))  # changed after it was signed
    code, found = vendor.check(path)
    assert (code, sorted(found)) == (Exit.INVALID, ["error x86_64.initrds.0", "error x86_64.kernel"])


def test_lists_are_read_as_programs_print_them_and_have_to_have_the_file(vendor: Vendor) -> None:
    for content, missing in [
        (make_sha256_list("{}  {}"), []),
        ("".join(f"SHA256 (x) = {compute_digest(each)}\n" for each in (KERNEL, INITRD)).encode(), []),
        (make_sha256_list().splitlines(keepends=True)[0], ["error x86_64.initrds.0"]),
        (make_sha256_list("# {} *{}"), ["error x86_64.initrds.0", "error x86_64.kernel"]),
        (b"", ["error x86_64.initrds.0", "error x86_64.kernel"]),
    ]:
        vendor.put("SHA256SUMS", content)
        signature = vendor.sign("SHA256SUMS", "minisign")
        checksums = f", checksums: {{url: '{vendor.web.url}/SHA256SUMS', signature: {{minisign: '{signature}'}}}}"
        _, found = vendor.check(vendor.write(vendor.image(more=checksums)))
        assert sorted(found) == missing
        assert all("not in the list" in each for each in found.values())


def test_the_signer_must_be_listed_on_the_host_of_the_check(vendor: Vendor) -> None:
    path = vendor.write(vendor.image(f", signature: {{openpgp: '{vendor.sign('kernel', 'openpgp', 'stranger')}'}}"))
    (path / "keys").mkdir()
    (path / "keys" / "stranger.asc").write_bytes(vendor.people["stranger"].public.read_bytes())
    assert "which is not listed" in vendor.find_kernel_fault(path)


def test_an_unavailable_or_wrong_file_counts_as_unsigned(vendor: Vendor) -> None:
    signature = vendor.sign("kernel", "minisign")
    path = vendor.write(vendor.image(f", signature: {{minisign: '{signature}'}}"))
    for name, broken, says in [
        ("/kernel", b"another", "which has the SHA-256 digest"),
        ("/kernel", None, "/kernel is unavailable"),
        ("/kernel.minisign", None, "/kernel.minisign is unavailable"),
        ("/kernel.minisign", b"x" * ((1 << 20) + 1), "is larger than 1,048,576 bytes"),
    ]:
        before = vendor.web.files.pop(name)
        if broken is not None:
            vendor.web.files[name] = broken
        assert says in vendor.find_kernel_fault(path)
        vendor.web.files[name] = before


def test_a_file_is_not_read_beyond_its_size(vendor: Vendor) -> None:
    path = vendor.write(
        vendor.image(f", size: {len(KERNEL)}, signature: {{minisign: '{vendor.sign('kernel', 'minisign')}'}}")
    )
    vendor.put("kernel", KERNEL + b"x" * (1 << 20))
    assert f"is larger than {len(KERNEL):,} bytes" in vendor.find_kernel_fault(path)


def test_a_file_of_a_registry_or_of_a_folder_is_checked_too(vendor: Vendor) -> None:
    signed = f", signature: {{minisign: '{vendor.sign('kernel', 'minisign')}'}}"
    with registry(vendor.folder / "registry", storage=vendor.folder / "storage") as found:
        digest = found.push_blob("os/linux", KERNEL)
        path = vendor.write(vendor.image(signed, url=f"oci://{found.host}/os/linux@sha256:{digest}"))
        assert vendor.check(path, "--registries", found.allowed)[0] == 0
        assert "add it to --registries" in vendor.find_kernel_fault(path)
    assets = vendor.folder / "assets"
    assets.mkdir()
    (assets / "vmlinuz").write_bytes(KERNEL)
    assert vendor.check(vendor.write(vendor.image(signed, url="assets:vmlinuz")), "--assets", assets)[0] == 0


def test_only_the_images_of_a_pull_request_are_checked(vendor: Vendor, tmp_path: Path) -> None:
    text = vendor.image()
    work = WorkTree(tmp_path / "work")
    base = work.commit({"fleet.yaml": "---\n".join((fleet(), text))})
    assert vendor.check(work.path, "--since", base, "--required") == (0, {})
    work.commit({"fleet.yaml": "---\n".join((fleet(), text.replace("version: 1,", "version: 2,")))})
    assert vendor.check(work.path, "--since", base, "--required")[0] == Exit.INVALID


def test_only_the_signed_part_of_a_clear_signed_list_counts(vendor: Vendor) -> None:
    checksums = f", checksums: {{url: '{vendor.web.url}/CHECKSUM', clearSigned: true}}"
    path = vendor.write(vendor.image(more=checksums))
    kernel, initrd = make_sha256_list().splitlines(keepends=True)
    signed = clear_sign(vendor.folder, b"# kernel: 6000 bytes\n" + kernel, vendor.people["vendor"])
    for content in (signed, initrd + signed, signed + initrd, make_sha256_list() + signed + make_sha256_list()):
        vendor.put("CHECKSUM", content)
        code, found = vendor.check(path)
        assert (code, sorted(found)) == (Exit.INVALID, ["error x86_64.initrds.0"])
        assert "not in the list" in found["error x86_64.initrds.0"]
    vendor.put(
        "CHECKSUM", clear_sign(vendor.folder, make_sha256_list(), vendor.people["stranger"], vendor.people["vendor"])
    )
    assert vendor.check(path) == (0, {})
    for content, says in [
        (signed.replace(b"\n\n#", b"\n\n" + initrd + b"#"), "changed after it was signed"),
        (clear_sign(vendor.folder, make_sha256_list(), vendor.people["stranger"]), "which is not listed"),
        (make_sha256_list(), "not a complete clear-signed"),
    ]:
        vendor.put("CHECKSUM", content)
        assert says in vendor.find_kernel_fault(path)


def test_a_file_that_claims_no_signature_need_not_be_in_a_list(vendor: Vendor) -> None:
    """Ubuntu signs a list of ISOs, which does not contain its netboot archives."""
    vendor.put("SHA256SUMS", make_sha256_list().splitlines(keepends=True)[1])  # of the initrd only
    signature = vendor.sign("SHA256SUMS", "openpgp")
    checksums = f", checksums: {{url: '{vendor.web.url}/SHA256SUMS', signature: {{openpgp: '{signature}'}}}}"
    for claim, severity in [("firstSeen", "warning"), ("published", "warning"), ("signed, key: F88CFEDE", "error")]:
        path = vendor.write(vendor.image(f", provenance: {{digest: {claim}}}", more=checksums))
        _, found = vendor.check(path)
        assert list(found) == [f"{severity} x86_64.kernel"], claim
        assert vendor.check(path, "--required")[0] == Exit.INVALID


def test_a_clear_signed_index_of_simplestreams_is_a_list(vendor: Vendor) -> None:
    checksums = f", checksums: {{url: '{vendor.web.url}/download.sjson', clearSigned: true}}"
    path = vendor.write(vendor.image(more=checksums))
    items = {
        name: {"path": name, "sha256": compute_digest(file)} for name, file in (("kernel", KERNEL), ("initrd", INITRD))
    }
    index = json.dumps({"format": "products:1.0", "products": {"p": {"versions": {"1": {"items": items}}}}}, indent=1)
    vendor.put("download.sjson", clear_sign(vendor.folder, f"{index}\n".encode(), vendor.people["vendor"]))
    assert vendor.check(path, "--required") == (0, {})
    other = index.replace(compute_digest(KERNEL), "0" * 64)
    vendor.put("download.sjson", clear_sign(vendor.folder, f"{other}\n".encode(), vendor.people["vendor"]))
    assert "not in the list" in vendor.find_kernel_fault(path)


def make_sha512_list(
    kernel: bytes = KERNEL, form: str = "# MD5 HASH\n{0:.32}  kernel\n# SHA512 HASH\n{0}  kernel\n"
) -> bytes:
    """The .DIGESTS file of Flatcar, or another list of SHA-512."""
    return form.format(sha512(kernel).hexdigest()).encode()


def test_a_list_of_sha512_vouches_for_the_file_that_gitboot_reads(vendor: Vendor) -> None:
    signature = f"{vendor.web.url}/kernel.DIGESTS.openpgp"
    checksums = f", checksums: {{url: '{vendor.web.url}/kernel.DIGESTS', signature: {{openpgp: '{signature}'}}}}"
    path = vendor.write(vendor.image(more=checksums))
    for content in (
        make_sha512_list(),
        make_sha512_list(form="{}  kernel\n"),
        make_sha512_list(form="SHA512 (kernel) = {}\n"),
    ):
        vendor.put("kernel.DIGESTS", content)
        vendor.sign("kernel.DIGESTS", "openpgp")
        code, found = vendor.check(path)
        assert (code, sorted(found)) == (Exit.INVALID, ["error x86_64.initrds.0"])

    for content in (
        make_sha512_list(b"other"),
        make_sha512_list(form="# BLAKE2B HASH\n{}  kernel\n"),
        make_sha512_list(form="# {}  k\n"),
    ):
        vendor.put("kernel.DIGESTS", content)
        vendor.sign("kernel.DIGESTS", "openpgp")
        assert "not in the list" in vendor.find_kernel_fault(path)

    # The list has the SHA-512 of what the server sends, but the image states another SHA-256.
    vendor.put("kernel.DIGESTS", make_sha512_list(b"another kernel"))
    vendor.sign("kernel.DIGESTS", "openpgp")
    vendor.put("kernel", b"another kernel")
    assert "which has the SHA-256 digest" in vendor.find_kernel_fault(path)

    vendor.put("kernel.DIGESTS", make_sha512_list())  # changed after it was signed
    vendor.put("kernel", KERNEL)
    assert "changed after it was signed" in vendor.find_kernel_fault(path)


RELEASE = """Origin: Debian
Codename: trixie
MD5Sum:
 d41d8cd98f00b204e9800998ecf8427e 0 main/installer-amd64/current/images/MD5SUMS
SHA256:
 {digest} {size:8} main/installer-amd64/20250803/images/SHA256SUMS
"""


@pytest.mark.parametrize("is_clear_signed", [True, False])
def test_a_list_in_a_signed_release_of_debian_vouches_for_the_files_in_it(
    vendor: Vendor, is_clear_signed: bool
) -> None:
    dist = f"{vendor.web.url}/InRelease"
    listed_in = (
        f"{{url: '{dist}'}}" if is_clear_signed else f"{{url: '{dist}', signature: {{openpgp: '{dist}.openpgp'}}}}"
    )
    path = vendor.write(
        vendor.image(more=f", checksums: {{url: '{vendor.web.url}/SHA256SUMS', listedIn: {listed_in}}}")
    )
    vendor.put("SHA256SUMS", make_sha256_list("{}  ./netboot/{}"))

    def release(by: str = "vendor", **changes: object) -> None:
        found = {
            "digest": compute_digest(vendor.web.files["/SHA256SUMS"]),
            "size": len(vendor.web.files["/SHA256SUMS"]),
        }
        vendor.put("InRelease", RELEASE.format(**{**found, **changes}).encode())
        if is_clear_signed:
            vendor.put("InRelease", clear_sign(vendor.folder, vendor.web.files["/InRelease"], vendor.people[by]))
        else:
            vendor.sign("InRelease", "openpgp", by)

    release()
    assert vendor.check(path, "--required") == (0, {})
    release("stranger")
    assert "which is not listed" in vendor.find_kernel_fault(path)
    for changes in ({"digest": compute_digest(b"other")}, {"size": 7}):
        release(**changes)
        assert "SHA256SUMS is not in the list at" in vendor.find_kernel_fault(path)
    release()
    vendor.put("SHA256SUMS", make_sha256_list("{} *x{}"))
    assert "SHA256SUMS is not in the list at" in vendor.find_kernel_fault(path)
    vendor.put("SHA256SUMS", make_sha256_list("# {} {}"))
    release()
    assert "not in the list at" in vendor.find_kernel_fault(path)
    vendor.web.files["/InRelease"] = vendor.web.files["/InRelease"].replace(b"Debian", b"Ubuntu")
    assert "changed after it was signed" in vendor.find_kernel_fault(path)


def make_archive(kernel: bytes = KERNEL) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as made:
        for name, content in (("boot/vmlinuz", kernel), ("boot/initrd", INITRD)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return written.getvalue()


@pytest.mark.parametrize("by", ["signature", "list of sha256", "list of sha512"])
def test_the_signature_of_an_archive_vouches_for_the_files_in_it(vendor: Vendor, by: str) -> None:
    content = make_archive()
    vendor.put("a.tar.gz", content)
    vendor.put(
        "SUMS", (compute_digest(content) if by.endswith("256") else sha512(content).hexdigest()).encode() + b"  a\n"
    )
    signature = vendor.sign("a.tar.gz" if by == "signature" else "SUMS", "openpgp")
    of_file = f", signature: {{openpgp: '{signature}'}}" if by == "signature" else ""
    of_list = f", checksums: {{url: '{vendor.web.url}/SUMS', signature: {{openpgp: '{signature}'}}}}"
    path = vendor.write(
        vendor.image(of_file, of_list if by != "signature" else "", f"{vendor.web.url}/a.tar.gz#boot/vmlinuz")
        .replace("/initrd'", "/a.tar.gz#boot/initrd'")
        .replace(f"sha256: {compute_digest(INITRD)}", f"sha256: {compute_digest(INITRD)}{of_file}")
    )
    vendor.web.asked.clear()
    assert vendor.check(path, "--required") == (0, {})
    assert vendor.web.asked["GET", "/a.tar.gz"] == 1

    for member, says in [
        ("boot/other", "the archive does not contain the file boot/other"),
        ("boot/initrd", "different from the file boot/initrd"),
    ]:
        other = vendor.write((path / "fleet.yaml").read_text().partition("---\n")[2].replace("boot/vmlinuz", member))
        assert says in vendor.find_kernel_fault(other)
        vendor.write((path / "fleet.yaml").read_text().partition("---\n")[2].replace(member, "boot/vmlinuz", 1))
    vendor.put("a.tar.gz", make_archive(b"another kernel"))
    assert ("changed after" if by == "signature" else "not in the list") in vendor.find_kernel_fault(path)


def test_a_claimed_provenance_is_compared_with_the_signer(vendor: Vendor) -> None:
    signature = f", signature: {{openpgp: '{vendor.sign('kernel', 'openpgp')}'}}"

    def read(kernel_spec: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        path = vendor.write(vendor.image(kernel_spec))
        command = ["artifacts", "signatures", str(path), "--image-keys", str(vendor.keys), "-o", "json"]
        result = CliRunner().invoke(cli, command)
        document = json.loads(result.stdout)
        problems = [each for each in document["items"] if "kernel of" in each["message"]]
        (file,) = (each for each in document["files"] if each["field"] == "x86_64.kernel")
        return result.exit_code, problems, file

    code, problems, file = read(signature)
    key = file["signer"]["key"]
    assert (code, problems, file["claim"], file["signer"]["name"]) == (0, [], None, "vendor <vendor@example.net>")

    spelt = " ".join((key[:20], key[20:])).lower()
    for claim in (f"digest: signed, key: {key}", f"digest: signed, key: '{spelt}'", "digest: published"):
        code, problems, file = read(f"{signature}, provenance: {{{claim}}}")
        assert (code, problems) == (0, [])
        assert file["claim"]["digest"] in claim

    other = "F" * 40
    for kernel_spec, says in [
        (f"{signature}, provenance: {{digest: signed, key: {other}}}", f"but vendor <vendor@example.net> ({key})"),
        (f", provenance: {{digest: signed, key: {key}}}", "but the file does not have a signature"),
        (f"{signature.replace('.openpgp', '.none')}, provenance: {{digest: signed, key: {key}}}", "is unavailable"),
    ]:
        code, (problem,), _ = read(kernel_spec)
        assert (code, problem["code"], problem["severity"]) == (Exit.INVALID, "GB4013", "error")
        assert (problem["path"].rpartition("/")[2], problem["line"]) == ("fleet.yaml", 9)
        assert says in problem["message"]


def test_the_text_shows_the_claim_beside_the_signer(vendor: Vendor) -> None:
    signature = f", signature: {{openpgp: '{vendor.sign('kernel', 'openpgp')}'}}, provenance: {{digest: firstSeen}}"
    path = vendor.write(vendor.image(signature))
    command = ["artifacts", "signatures", str(path), "--image-keys", str(vendor.keys)]
    result = CliRunner().invoke(cli, command)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["IMAGE", "FILE", "CLAIM", "SIGNED", "BY"]
    assert lines[1].split() == ["linux-1", "x86_64.kernel", "firstSeen", "vendor", "<vendor@example.net>"]
    assert re.fullmatch("    key [0-9A-F]{40}", lines[2])
    assert lines[3].split() == ["linux-1", "x86_64.initrds.0", "not", "stated", "-"]
    assert "GB4006: warning: x86_64.initrds.0 of BootImage/linux-1 has no signature" in result.stdout


def test_the_shipped_keys_are_trusted_without_a_directory(vendor: Vendor) -> None:
    path = vendor.write(vendor.image(f", signature: {{openpgp: '{vendor.sign('kernel', 'openpgp')}'}}"))
    result = CliRunner().invoke(cli, ["artifacts", "signatures", str(path), "-o", "json"])
    (file,) = (each for each in json.loads(result.stdout)["files"] if each["field"] == "x86_64.kernel")
    assert (result.exit_code, file["signer"]) == (Exit.INVALID, None)
    assert "which is not listed" in file["fault"]


def test_a_stream_requires_signatures_of_its_images(vendor: Vendor, tmp_path: Path) -> None:
    def stream(rule: str, spec: str = "current: linux-1") -> str:
        return document("ImageStream", "linux", f"{spec}, requireProvenance: {rule}")

    images = vendor.image()
    other = images.replace("linux-1", "linux-2")
    for rule, spec, unsigned in [
        ("any", "current: linux-1", ""),
        ("signed", "current: linux-1", "linux-1"),
        ("signed", "current: linux-2, rollout: {image: linux-1, percent: 0}", "linux-1, linux-2"),
        ("signed", "current: linux-2, holds: [{select: All, image: linux-1, reason: a}]", "linux-1, linux-2"),
    ]:
        path = vendor.write("---\n".join((images, other, stream(rule, spec))))
        command = ["artifacts", "signatures", str(path), "-o", "json"]
        result = CliRunner().invoke(cli, command)
        items = json.loads(result.stdout)["items"]
        errors = {
            each["message"].rpartition("BootImage/")[2].split()[0] for each in items if each["severity"] == "error"
        }
        assert (", ".join(sorted(errors)), result.exit_code) == (unsigned, Exit.INVALID if unsigned else 0)

    pinned = server("web01", spec="policy: web, pin: {image: linux-2, reason: a}")
    path = vendor.write(
        "---\n".join((images, other, stream("signed"), profile("web", "stream: linux"), policy("web"), pinned))
    )
    assert "BootImage/linux-2" in str(vendor.check(path))

    work = WorkTree(tmp_path / "work")
    base = work.commit({"fleet.yaml": "---\n".join((fleet(), images, stream("any")))})
    work.commit({"fleet.yaml": "---\n".join((fleet(), images, stream("signed")))})
    assert vendor.check(work.path, "--since", base)[0] == Exit.INVALID  # the image itself did not change
