"""Signatures of images: which keys count, and what a fetched signature proves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.cli.main import Exit, cli
from tests.helpers.artifact_servers import ArtifactServer, Sigstore, artifact_server, digest_of, registry
from tests.helpers.fleets import document, fleet
from tests.helpers.git_repositories import Minisign, Person, Work, by_gpg, gpg_people


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
                signature = by_gpg(self.people[by], file)
            case "minisign":
                signature = self.minisign.sign(file)
            case _:
                signature = self.sigstore.bundle(content, f"{by}@example.net")
        self.put(f"{name}.{kind}", signature)
        return f"{self.web.url}/{name}.{kind}"

    def image(self, kernel: str = "", more: str = "", url: str = "") -> str:
        of_kernel = f"url: '{url or f'{self.web.url}/kernel'}', sha256: {digest_of(KERNEL)}{kernel}"
        of_initrd = f"url: '{self.web.url}/initrd', sha256: {digest_of(INITRD)}"
        return document(
            "BootImage",
            "linux-1",
            f"version: 1, architectures: {{x86_64: {{kernel: {{{of_kernel}}}, initrds: [{{{of_initrd}}}]{more}}}}}",
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
        assert {each["code"] for each in items} <= {"GB4006"}
        return result.exit_code, {
            f"{each['severity']} {each['message'].partition(' of ')[0]}": each["message"] for each in items
        }

    def fault_of_kernel(self, path: Path) -> str:
        code, found = self.check(path)
        assert code == Exit.INVALID
        return found["error x86_64.kernel"]


@pytest.fixture
def vendor(people: Mapping[str, Person], tmp_path: Path) -> Iterator[Vendor]:
    with artifact_server() as web:
        yield Vendor(web, tmp_path, people)


def sums(form: str = "{} *{}") -> bytes:
    return "".join(
        form.format(digest_of(content), name) + "\n" for name, content in (("kernel", KERNEL), ("initrd", INITRD))
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
    assert " is not " in vendor.fault_of_kernel(path)


@pytest.mark.parametrize("kind", ["openpgp", "minisign", "sigstore"])
def test_a_signed_list_of_digests_vouches_for_the_files_in_it(vendor: Vendor, kind: str) -> None:
    vendor.put("SHA256SUMS", sums())
    signature = vendor.sign("SHA256SUMS", kind)
    checksums = f", checksums: {{url: '{vendor.web.url}/SHA256SUMS', signature: {{{kind}: '{signature}'}}}}"
    path = vendor.write(vendor.image(more=checksums))
    vendor.web.asked.clear()
    assert (vendor.check(path, "--required"), vendor.web.asked["GET", "/SHA256SUMS"]) == ((0, {}), 1)
    assert vendor.web.asked["GET", "/kernel"] == 0

    vendor.put("SHA256SUMS", sums().replace(b"initrd", b"other"))  # changed after it was signed
    code, found = vendor.check(path)
    assert (code, sorted(found)) == (Exit.INVALID, ["error x86_64.initrds.0", "error x86_64.kernel"])


def test_lists_are_read_as_programs_print_them_and_have_to_have_the_file(vendor: Vendor) -> None:
    for content, missing in [
        (sums("{}  {}"), []),
        ("".join(f"SHA256 (x) = {digest_of(each)}\n" for each in (KERNEL, INITRD)).encode(), []),
        (sums().splitlines(keepends=True)[0], ["error x86_64.initrds.0"]),
        (sums("# {} *{}"), ["error x86_64.initrds.0", "error x86_64.kernel"]),
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
    assert "which is not listed" in vendor.fault_of_kernel(path)


def test_an_unavailable_or_wrong_file_counts_as_unsigned(vendor: Vendor) -> None:
    signature = vendor.sign("kernel", "minisign")
    path = vendor.write(vendor.image(f", signature: {{minisign: '{signature}'}}"))
    for name, broken, says in [
        ("/kernel", b"another", "which has the sha256"),
        ("/kernel", None, "/kernel is unavailable"),
        ("/kernel.minisign", None, "/kernel.minisign is unavailable"),
        ("/kernel.minisign", b"x" * ((1 << 20) + 1), "has more than 1,048,576 bytes"),
    ]:
        before = vendor.web.files.pop(name)
        if broken is not None:
            vendor.web.files[name] = broken
        assert says in vendor.fault_of_kernel(path)
        vendor.web.files[name] = before


def test_a_file_is_not_read_beyond_its_size(vendor: Vendor) -> None:
    path = vendor.write(
        vendor.image(f", size: {len(KERNEL)}, signature: {{minisign: '{vendor.sign('kernel', 'minisign')}'}}")
    )
    vendor.put("kernel", KERNEL + b"x" * (1 << 20))
    assert f"has more than {len(KERNEL):,} bytes" in vendor.fault_of_kernel(path)


def test_a_file_of_a_registry_or_of_a_folder_is_checked_too(vendor: Vendor) -> None:
    signed = f", signature: {{minisign: '{vendor.sign('kernel', 'minisign')}'}}"
    with registry(vendor.folder / "registry", storage=vendor.folder / "storage") as found:
        digest = found.push_blob("os/linux", KERNEL)
        path = vendor.write(vendor.image(signed, url=f"oci://{found.host}/os/linux@sha256:{digest}"))
        assert vendor.check(path, "--registries", found.allowed)[0] == 0
        assert "add it to --registries" in vendor.fault_of_kernel(path)
    assets = vendor.folder / "assets"
    assets.mkdir()
    (assets / "vmlinuz").write_bytes(KERNEL)
    assert vendor.check(vendor.write(vendor.image(signed, url="assets:vmlinuz")), "--assets", assets)[0] == 0


def test_only_the_images_of_a_pull_request_are_checked(vendor: Vendor, tmp_path: Path) -> None:
    text = vendor.image()
    work = Work(tmp_path / "work")
    base = work.commit({"fleet.yaml": "---\n".join((fleet(), text))})
    assert vendor.check(work.path, "--since", base, "--required") == (0, {})
    work.commit({"fleet.yaml": "---\n".join((fleet(), text.replace("version: 1,", "version: 2,")))})
    assert vendor.check(work.path, "--since", base, "--required")[0] == Exit.INVALID
