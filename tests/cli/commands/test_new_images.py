"""`gitboot new image`: documents of releases, of images in a registry, and of single files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gitboot.cli.main import Exit
from tests.helpers.artifact_servers import IRONCORE, compute_digest, registry
from tests.helpers.cases import for_each
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import Person, gpg_people
from tests.helpers.image_vendors import ImageVendor, image_vendor
from tests.helpers.instance_with_bmcs import CommandResult, run_command

KERNEL, INITRD, ISO = b"kernel" * 1000, b"initrd" * 1000, b"iso" * 1000


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor") as people:
        yield people


@pytest.fixture
def vendor(people: Mapping[str, Person], tmp_path: Path) -> Iterator[ImageVendor]:
    with image_vendor(tmp_path / "vendor", people["vendor"]) as vendor:
        vendor.publish("1.0.0")
        vendor.publish("1.10.0", "2026-11-19T00:00:00Z")
        vendor.publish("1.9.0")
        vendor.publish("2.0.0", channel="beta")
        yield vendor


@pytest.fixture
def path(vendor: ImageVendor, tmp_path: Path) -> Path:
    """A fleet with its own image source."""
    path = tmp_path / "fleet"
    path.mkdir()
    documents = (
        fleet(f"baseURL: '{vendor.url}'"),
        image("someos-1.0.0"),
        profile("web", "someos-1.0.0"),
        policy("web"),
        server("web01"),
        vendor.document(),
    )
    (path / "fleet.yaml").write_text("---\n".join(documents))
    return path


def run_new(path: Path, *arguments: object) -> CommandResult:
    return run_command("new", "image", *arguments, "--path", path)


def keys(vendor: ImageVendor) -> tuple[str, Path]:
    return "--image-keys", vendor.keys


def test_the_newest_release_becomes_a_document_of_the_fleet(path: Path, vendor: ImageVendor) -> None:
    done = run_new(path, "someos", *keys(vendor))
    assert (done.code, done.err) == (0, ""), done
    file = path / "images/someos-1.10.0.yaml"
    assert done.out.splitlines()[-1] == f"wrote {file}; next step: gitboot validate {path}"
    assert f"x86_64.kernel: signed by {vendor.fingerprint}" in done.out
    text = file.read_text()
    assert text.startswith(
        f"# someos 1.10.0, channel stable, published 2026-11-19. Written by gitboot from {vendor.url}/stable.json\n"
        "# yaml-language-server: $schema=../.gitboot/schemas/BootImage.json\n"
        "apiVersion: gitboot.dev/v1alpha1\nkind: BootImage\nmetadata:\n  name: someos-1.10.0\n"
    )
    for part in ("userData: Ignition/3.4", "- someos.release=1.10.0", "    aarch64:\n", "    x86_64:\n"):
        assert part in text
    assert run_command("validate", path).code == 0
    assert run_command("artifacts", "signatures", path, *keys(vendor)).code == 0


def test_a_version_a_channel_an_architecture_and_a_name_can_be_chosen(path: Path, vendor: ImageVendor) -> None:
    done = run_new(path, "someos", "1.9.0", "--architecture", "aarch64", "--name", "mine", "-o", "json", *keys(vendor))
    assert (done.code, done.json["name"], done.json["version"]) == (0, "mine", "1.9.0")
    assert {each["at"][0] for each in done.json["files"]} == {"aarch64"}
    assert done.json["file"] == str(path / "images/mine.yaml")
    assert (path / "images/mine.yaml").read_text() == done.json["document"]
    beta = run_new(path, "someos", "--channel", "beta", "--dry-run", *keys(vendor))
    assert "  name: someos-2.0.0\n" in beta.out and "gitboot.dev/channel: beta" in beta.out


def test_a_dry_run_prints_the_document_and_writes_nothing(path: Path, vendor: ImageVendor) -> None:
    done = run_new(path, "someos", "--dry-run", *keys(vendor))
    assert (done.code, (path / "images").exists()) == (0, False)
    written = run_new(path, "someos", *keys(vendor))
    assert written.code == 0
    assert done.out == (path / "images/someos-1.10.0.yaml").read_text()


def test_without_a_source_the_sources_are_listed(path: Path) -> None:
    done = run_new(path)
    assert done.code == 0
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert "An operating system of the tests" in rows["someos"] and rows["someos"].endswith("stable, beta")
    assert "flatcar" in rows
    listed = {each["name"]: each for each in run_new(path, "-o", "json").json["items"]}
    assert listed["someos"]["architectures"] == ["aarch64", "x86_64"]
    assert listed["flatcar"]["keys"] == ["F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"]


def test_an_existing_document_is_never_overwritten(path: Path, vendor: ImageVendor) -> None:
    assert "BootImage/someos-1.0.0 already exists" in run_new(path, "someos", "1.0.0", *keys(vendor)).err
    (path / "images").mkdir()
    file = path / "images/someos-1.10.0.yaml"
    file.write_text("# a person's\n")
    done = run_new(path, "someos", *keys(vendor))
    assert (done.code, f"{file} already exists" in done.err) == (Exit.USAGE, True)
    assert file.read_text() == "# a person's\n"
    assert not [each for _, each in vendor.web.asked if "vmlinuz" in each]  # nothing was downloaded for it


def test_single_files_with_checksum_files_beside_them(path: Path, vendor: ImageVendor) -> None:
    vendor.web.put("/files/vmlinuz", KERNEL)
    vendor.web.put("/files/initrd", INITRD)
    vendor.web.put("/files/SHA256SUMS", f"{compute_digest(KERNEL)}  vmlinuz\n".encode())
    url = f"{vendor.url}/files"
    done = run_new(path, "rescue", "7.2", "--kernel", f"{url}/vmlinuz", "--initrd", f"{url}/initrd", "-o", "json")
    assert (done.code, done.json["name"]) == (0, "rescue-7.2"), done
    assert [each["provenance"] for each in done.json["files"]] == [
        {"digest": "published", "key": None, "url": f"{url}/SHA256SUMS"},
        {"digest": "firstSeen", "key": None, "url": None},
    ]
    assert done.json["document"].startswith(f"# rescue-7.2. Written by gitboot from {url}/vmlinuz\n")
    assert "annotations" not in done.json["document"]
    assert run_command("validate", path).code == 0
    vendor.web.put("/files/vmlinuz", b"other")
    changed = run_new(path, "rescue", "7.3", "--kernel", f"{url}/vmlinuz")
    assert (changed.code, f"but {url}/SHA256SUMS states {compute_digest(KERNEL)}" in changed.err) == (Exit.SOURCE, True)


def test_the_url_of_an_iso_image_is_enough(path: Path, vendor: ImageVendor) -> None:
    vendor.web.put("/memtest-7.20.iso", ISO)
    vendor.web.put("/memtest-7.20.iso.sha256", f"{compute_digest(ISO)}\n".encode())
    done = run_new(path, f"{vendor.url}/memtest-7.20.iso", "7.20")
    assert done.code == 0, done
    assert "version: '7.20'" in (path / "images/memtest-7.20.yaml").read_text()


def test_files_of_this_host_get_the_urls_under_which_they_are_served(path: Path, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    (assets / "own/1.0").mkdir(parents=True)
    (assets / "own/1.0/vmlinuz").write_bytes(KERNEL)
    files = ("--kernel", assets / "own/1.0/vmlinuz")
    done = run_new(path, "own", "1.0", *files, "--assets", assets, "--architecture", "aarch64")
    assert done.code == 0, done
    text = (path / "images/own-1.0.yaml").read_text()
    assert (
        f"url: assets:own/1.0/vmlinuz\n        sha256: {compute_digest(KERNEL)}\n        size: {len(KERNEL)}\n" in text
    )
    assert "aarch64:" in text
    assert run_command("validate", path).code == 0
    outside = tmp_path / "outside"
    outside.write_bytes(KERNEL)
    assert "is outside" in run_new(path, "own", "1.1", "--kernel", outside, "--assets", assets).err


def test_an_image_in_a_registry(path: Path, tmp_path: Path) -> None:
    with registry(tmp_path / "registry", storage=tmp_path / "storage") as there:
        layers = [(f"{IRONCORE}kernel", KERNEL), (f"{IRONCORE}initramfs", INITRD)]
        entry = there.push_image("team/someos", "3.0.1", layers)
        there.push_index("team/someos", "3.0", [entry | {"platform": {"os": "linux", "architecture": "amd64"}}])
        at = f"oci://{there.host}/team/someos:3.0"
        done = run_new(path, at, "--registries", there.allowed)
        assert done.code == 0, done
        text = (path / "images/someos-3.0.yaml").read_text()
        assert f"url: oci://{there.host}/team/someos@sha256:{compute_digest(KERNEL)}\n" in text
        assert "digest: published" in text
        assert run_new(path, at, "--name", "other").code == Exit.SOURCE  # the registry is not allowed
    assert run_command("validate", path).code == 0


@for_each(
    ("arguments", "code", "text"),
    [
        (("someso",), Exit.USAGE, "did you mean someos?"),
        (("someos", "1.10.1"), Exit.USAGE, "someos has no release '1.10.1'; did you mean 1.10.0?"),
        (("someos", "--channel", "stabel"), Exit.USAGE, "did you mean stable?"),
        (("someos", "--name", "Some OS"), Exit.USAGE, "expected a name"),
        (
            ("someos",),
            Exit.SOURCE,
            "put the vendor's public key into",
        ),
        (("own", "--kernel", "https://host.test/vmlinuz"), Exit.USAGE, "specify VERSION"),
        (("own", "1", "--kernel", "https://host.test/a", "--initrd", "b"), Exit.USAGE, "not both"),
        (("own", "1", "--kernel", "vmlinuz"), Exit.USAGE, "set --assets"),
        (("https://host.test/vmlinuz", "1"), Exit.USAGE, "use --kernel, --uki or --iso"),
        (("https://[", "1"), Exit.USAGE, "use brackets only around an IPv6 address"),
        (("own", "1", "--kernel", "https://[/vmlinuz"), Exit.USAGE, "use brackets only around an IPv6 address"),
        (("own", "1", "--kernel", "https://host.test/a", "--channel", "x"), Exit.USAGE, "remove --channel"),
        (("oci://host.test/a:1", "1"), Exit.USAGE, "omit VERSION"),
        (("oci://host.test/a",), Exit.USAGE, "expected oci://HOST/NAME:TAG"),
        (("flatcar", "--architecture", "riscv"), Exit.USAGE, "riscv"),
    ],
)
def test_wrong_arguments_and_sources_are_errors_and_write_nothing(
    path: Path, vendor: ImageVendor, arguments: tuple[str, ...], code: Exit, text: str
) -> None:
    done = run_new(path, *arguments, *(keys(vendor) if code is Exit.USAGE and arguments[0] == "someos" else ()))
    assert (done.code, text in done.err) == (code, True), done
    assert not (path / "images").exists() and "Traceback" not in done.err
