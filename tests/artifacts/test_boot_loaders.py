"""Loaders from packages: which are placed, which are missing, and that a second run changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.artifacts import boot_loaders
from gitboot.artifacts.boot_loaders import (
    LOADERS,
    MANIFEST,
    SIGNED_GRUBS,
    BuiltLoader,
    PackagedLoader,
    PlacedLoader,
    PlacementOutcome,
    is_signed,
    place_loaders,
    render_embedded_grub_configuration,
    render_signed_grub_configuration,
)
from gitboot.cli.commands.artifacts import command
from gitboot.errors import AssetError, UsageError
from gitboot.files import write_output_file
from tests.helpers.artifact_servers import PE32, PE32_PLUS, efi_program
from tests.helpers.cases import for_each

BASE = "http://192.0.2.1:8080/boot"


def packages(folder: Path) -> Path:
    for loader in LOADERS:
        if isinstance(loader, PackagedLoader):
            source = folder / loader.sources[0]
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(_make_content(loader).encode())
    return folder


def _make_content(loader: PackagedLoader) -> str:
    """The content of a loader. The signed GRUB has the request of its module http."""
    request = " HTTP/1.1\r\nHost: " if loader.path in SIGNED_GRUBS else ""
    return f"contents of {loader.sources[0]}{request}"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return packages(tmp_path / "system")


def collect_placed(out: Path, system: Path, tftp: Path | None = None) -> dict[str, PlacedLoader]:
    told: list[PlacedLoader] = []
    assert place_loaders(out, tftp, BASE, told.append, systems=[system]) == tuple(told)
    return {each.path: each for each in told}


def asset_path(out: Path, path: str) -> Path:
    return out / "assets" / path


def read_files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_loaders_of_packages_are_copied_to_the_web_root_and_the_tftp_root(tmp_path: Path, system: Path) -> None:
    out, tftp = tmp_path / "out", tmp_path / "tftp"
    told = collect_placed(out, system, tftp)
    for loader in LOADERS:
        if isinstance(loader, PackagedLoader):
            assert told[loader.path].outcome is PlacementOutcome.PLACED
            expected = _make_content(loader).encode()
            found = (out / "assets" / loader.path).read_bytes(), (tftp / loader.path).read_bytes()
            assert found == (expected, expected)


def test_pxelinux_finds_its_core_beside_its_configurations_as_well(tmp_path: Path, system: Path) -> None:
    out = tmp_path / "out"
    collect_placed(out, system)
    assert (out / "ldlinux.c32").read_bytes() == (out / "assets/loaders/ldlinux.c32").read_bytes()


def test_p4_the_signed_grub_and_its_configuration_are_where_shim_and_grub_request_them_by_tftp(
    tmp_path: Path, system: Path
) -> None:
    tftp = tmp_path / "tftp"
    collect_placed(tmp_path / "out", system, tftp)
    for name in ("grubx64.efi", "grubaa64.efi"):
        assert (tftp / name).read_bytes() == (tftp / "loaders" / name).read_bytes()
    assert (tftp / "grub/grub.cfg").read_text() == render_signed_grub_configuration(BASE)


def test_files_of_other_programs_in_the_tftp_root_stay(tmp_path: Path, system: Path) -> None:
    tftp = tmp_path / "tftp"
    (tftp / "grub").mkdir(parents=True)
    for path in ("grubx64.efi", "grub/grub.cfg"):
        (tftp / path).write_text("of another program")
    collect_placed(tmp_path / "out", system, tftp)
    assert {(tftp / path).read_text() for path in ("grubx64.efi", "grub/grub.cfg")} == {"of another program"}
    assert (tftp / "grubaa64.efi").read_bytes() == (tftp / "loaders/grubaa64.efi").read_bytes()


def test_a_newer_signed_grub_replaces_the_copy_in_the_tftp_root(tmp_path: Path, system: Path) -> None:
    tftp = tmp_path / "tftp"
    (tftp / "loaders").mkdir(parents=True)
    for path in ("grubx64.efi", "loaders/grubx64.efi"):
        (tftp / path).write_text("of an earlier package")
    collect_placed(tmp_path / "out", system, tftp)
    assert (
        (tftp / "grubx64.efi").read_bytes() == (tftp / "loaders/grubx64.efi").read_bytes() != b"of an earlier package"
    )


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("later", ["the same package", "a newer package"])
def test_after_an_interruption_the_next_run_replaces_the_signed_grub_in_the_tftp_root(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch, written: int, later: str
) -> None:
    tftp, grub = tmp_path / "tftp", system / "usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"
    collect_placed(tmp_path / "out", system, tftp)
    grub.write_bytes(grub.read_bytes() + b"2")
    writes: list[Path] = []

    def write_or_stop(path: Path, content: Iterable[bytes], **options: Any) -> None:
        if path.name == "grubx64.efi":
            writes.append(path)
            if len(writes) > written:
                raise KeyboardInterrupt
        write_output_file(path, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(boot_loaders, "write_output_file", write_or_stop)
        with pytest.raises(KeyboardInterrupt):
            collect_placed(tmp_path / "out", system, tftp)
    if later == "a newer package":
        grub.write_bytes(grub.read_bytes() + b"3")
    collect_placed(tmp_path / "out", system, tftp)
    assert {(tftp / path).read_bytes() for path in ("grubx64.efi", "loaders/grubx64.efi")} == {grub.read_bytes()}


def test_a_tftp_root_that_is_a_copy_of_the_tree_keeps_its_own_configuration_of_the_signed_grub(
    tmp_path: Path, system: Path
) -> None:
    (tmp_path / "grub").mkdir()
    for path in ("grub.cfg", "grub/grub.cfg"):
        (tmp_path / path).write_text("# published\n")
    collect_placed(tmp_path, system, tmp_path)
    assert (tmp_path / "grub/grub.cfg").read_text() == "# published\n"


def test_placing_twice_writes_nothing(tmp_path: Path, system: Path) -> None:
    collect_placed(tmp_path / "out", system, tmp_path / "tftp")
    before = read_files(tmp_path)
    told = collect_placed(tmp_path / "out", system, tmp_path / "tftp")
    assert read_files(tmp_path) == before
    assert PlacementOutcome.PLACED not in {each.outcome for each in told.values()}


def test_placed_loaders_are_readable_for_servers_of_other_users(tmp_path: Path, system: Path) -> None:
    collect_placed(tmp_path / "out", system)
    assert {mode for _, _, mode in read_files(tmp_path / "out").values()} == {0o644}


def test_the_manifest_lists_each_placed_loader_with_its_sha256_and_no_missing_one(tmp_path: Path, system: Path) -> None:
    (system / "usr/lib/ipxe/undionly.kpxe").unlink()
    told = collect_placed(tmp_path / "out", system)
    assert told["loaders/undionly.kpxe"] == PlacedLoader(
        path="loaders/undionly.kpxe", outcome=PlacementOutcome.MISSING, message="install the package ipxe"
    )
    items = json.loads((tmp_path / "out/assets" / MANIFEST).read_text())["items"]
    assert {each["path"] for each in items} == {path for path, each in told.items() if each.sha256}
    for each in items:
        assert each["sha256"] == sha256((asset_path(tmp_path / "out", each["path"])).read_bytes()).hexdigest()


def test_a_newer_package_replaces_the_loader_of_the_old_one(tmp_path: Path, system: Path) -> None:
    collect_placed(tmp_path / "out", system)
    (system / "usr/lib/ipxe/undionly.kpxe").write_text("newer")
    changed = {
        path
        for path, each in collect_placed(tmp_path / "out", system).items()
        if each.outcome is PlacementOutcome.PLACED
    }
    assert changed == {"loaders/undionly.kpxe"}
    assert (tmp_path / "out/assets/loaders/undionly.kpxe").read_text() == "newer"


def test_a_loader_of_a_removed_package_stays(tmp_path: Path, system: Path) -> None:
    collect_placed(tmp_path / "out", system)
    (system / "usr/lib/ipxe/undionly.kpxe").unlink()
    collect_placed(tmp_path / "out", system)
    assert (tmp_path / "out/assets/loaders/undionly.kpxe").exists()


def test_the_paths_of_another_distribution_work_too(tmp_path: Path) -> None:
    source = tmp_path / "system/usr/share/ipxe/arm64-efi/snponly.efi"
    source.parent.mkdir(parents=True)
    source.write_text("Fedora's")
    assert collect_placed(tmp_path / "out", tmp_path / "system")["loaders/snponly-aarch64.efi"].message == str(source)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, system: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(AssetError, match=r"cannot write loaders/undionly\.kpxe"):
        collect_placed(tmp_path / "out", system)


# GRUB

MODULES = Path("/usr/lib/grub/x86_64-efi")
needs_grub = pytest.mark.skipif(
    not (MODULES.is_dir() and shutil.which("grub-mkimage")) and not os.environ.get("CI"),
    reason="GRUB's modules are missing (Debian: grub-efi-amd64-bin, grub-common)",
)


def add_grub(folder: Path) -> Path:
    (folder / "usr/lib/grub").mkdir(parents=True)
    (folder / "usr/lib/grub/x86_64-efi").symlink_to(MODULES)
    return folder


@needs_grub
def test_grub_is_built_for_http_and_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    system = add_grub(tmp_path / "system")
    assert collect_placed(tmp_path / "out", system)["loaders/grub-x86_64.efi"].outcome is PlacementOutcome.PLACED
    image = (tmp_path / "out/assets/loaders/grub-x86_64.efi").read_bytes()
    assert image.startswith(b"MZ")
    assert render_embedded_grub_configuration(BASE).encode() in image
    assert collect_placed(tmp_path / "other", system)["loaders/grub-x86_64.efi"].sha256 == sha256(image).hexdigest()
    assert collect_placed(tmp_path / "out", system)["loaders/grub-x86_64.efi"].outcome is PlacementOutcome.UNCHANGED


@needs_grub
def test_a_grub_for_another_base_url_is_another_image(tmp_path: Path) -> None:
    system = add_grub(tmp_path / "system")
    collect_placed(tmp_path / "out", system)
    [other] = [
        each
        for each in place_loaders(tmp_path / "out", None, "http://[2001:db8::1]", lambda each: None, systems=[system])
        if each.path == "loaders/grub-x86_64.efi"
    ]
    assert other.outcome is PlacementOutcome.PLACED
    assert b"configfile '(http,[2001:db8::1])/grub.cfg'" in (tmp_path / "out/assets" / other.path).read_bytes()


@needs_grub
def test_a_package_with_a_module_missing_is_an_error_and_nothing_is_placed(tmp_path: Path) -> None:
    modules = tmp_path / "system/usr/lib/grub/x86_64-efi"
    shutil.copytree(MODULES, modules, ignore=shutil.ignore_patterns("regexp.mod", "monolithic"))
    with pytest.raises(AssetError, match="regexp"):
        collect_placed(tmp_path / "out", tmp_path / "system")
    assert not (tmp_path / "out/assets/loaders/grub-x86_64.efi").exists()


@pytest.mark.skipif(
    shutil.which("grub-script-check") is None and not os.environ.get("CI"),
    reason="grub-script-check is missing (Debian: grub-common)",
)
@pytest.mark.parametrize("url", [BASE, "http://[2001:db8::1]", "http://boot.test/a,b/c;d/$e/(f)"])
@pytest.mark.parametrize("render", [render_embedded_grub_configuration, render_signed_grub_configuration])
def test_each_configuration_that_begins_with_a_base_url_is_a_script(
    render: Callable[[str], str], url: str, tmp_path: Path
) -> None:
    (tmp_path / "grub.cfg").write_text(render(url))
    checked = subprocess.run(
        ["grub-script-check", str(tmp_path / "grub.cfg")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_every_built_loader_names_the_package_that_it_lacks(tmp_path: Path) -> None:
    told = collect_placed(tmp_path / "out", tmp_path)
    for loader in LOADERS:
        if isinstance(loader, BuiltLoader):
            assert told[loader.path].message == f"install the package {loader.package}"


# The command


def test_the_command_uses_the_base_url_of_the_fleet_and_prints_each_loader(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "example-repo"
    done = CliRunner().invoke(command, ["loaders", "--out", str(tmp_path / "out"), "--path", str(example)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert [line.split()[1] for line in done.output.splitlines()] == [loader.path for loader in LOADERS]
    assert (tmp_path / "out/assets" / MANIFEST).exists()


def test_packages_of_another_architecture_are_read_from_the_folder_where_they_were_unpacked(tmp_path: Path) -> None:
    installed, unpacked = packages(tmp_path / "installed"), tmp_path / "unpacked"
    (installed / "usr/lib/ipxe/ipxe-arm64.efi").unlink()
    for name in ("ipxe-arm64.efi", "undionly.kpxe"):
        path = unpacked / "usr/lib/ipxe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of a newer release")
    done = CliRunner().invoke(
        command,
        [
            "loaders",
            f"--out={tmp_path}",
            "--base-url=http://boot.test",
            f"--system={installed}",
            f"--system={unpacked}",
        ],
    )
    assert f"loaders/ipxe-aarch64.efi     {unpacked}/usr/lib/ipxe/ipxe-arm64.efi" in done.output
    assert (tmp_path / "assets/loaders/ipxe-aarch64.efi").read_text() == "ipxe-arm64.efi of a newer release"
    assert (tmp_path / "assets/loaders/undionly.kpxe").read_text() == "contents of usr/lib/ipxe/undionly.kpxe"


def test_the_first_system_that_has_a_loader_wins(tmp_path: Path, system: Path) -> None:
    newer = tmp_path / "debian13"
    grub = newer / "usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"
    grub.parent.mkdir(parents=True)
    grub.write_bytes(b"newer HTTP/1.1\r\nHost: ")
    place_loaders(tmp_path / "out", tmp_path / "tftp", BASE, lambda _: None, systems=[newer, system])
    assert (tmp_path / "tftp/loaders/grubx64.efi").read_bytes() == grub.read_bytes()
    assert (tmp_path / "tftp/loaders/shimx64.efi").read_text().startswith("contents of ")


def test_a_signed_grub_without_http_is_not_placed(tmp_path: Path, system: Path) -> None:
    older = packages(tmp_path / "debian12")
    grub = older / "usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"
    grub.write_text("the GRUB of Debian 12")
    told = collect_placed(tmp_path / "out", older, tmp_path / "tftp")["loaders/grubx64.efi"]
    assert told.outcome is PlacementOutcome.MISSING
    assert told.message == (
        f"{grub} cannot download over HTTP: unpack grub-efi-amd64-signed from Debian 13 or newer, and pass the folder "
        "with --system"
    )
    assert not list(tmp_path.glob("*/**/grubx64.efi"))
    place_loaders(tmp_path / "out", None, BASE, lambda _: None, systems=[older, system])  # a later system has it
    newer = system / "usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed"
    assert asset_path(tmp_path / "out", "loaders/grubx64.efi").read_bytes() == newer.read_bytes()


def test_an_invalid_base_url_is_rejected(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["loaders", "--out", str(tmp_path), "--base-url", "boot.test"])
    assert isinstance(done.exception, UsageError)
    assert "expected an http or https URL" in str(done.exception)


def test_below_https_only_grub_is_omitted_and_the_message_has_the_reason(tmp_path: Path) -> None:
    outcomes = place_loaders(tmp_path, None, "https://boot.test", lambda each: None, systems=[tmp_path])
    told = {each.path: each for each in outcomes}
    assert told["loaders/grub-x86_64.efi"].outcome is PlacementOutcome.MISSING
    assert told["loaders/grub-x86_64.efi"].message.startswith(
        "GRUB can download only over http, not from https://boot.test"
    )
    assert told["loaders/undionly.kpxe"].message == "install the package ipxe"


@pytest.mark.parametrize("magic", [PE32, PE32_PLUS])
@pytest.mark.parametrize("signed", [False, True])
def test_a_program_with_a_certificate_table_is_signed(magic: int, signed: bool) -> None:
    assert is_signed(efi_program(signed=signed, magic=magic)) is signed


@for_each(
    ("case", "head", "expected"),
    [
        ("no table of certificates at all", efi_program(signed=True, directories=4), False),
        ("a compressed kernel", b"\x1f\x8b" + b"\0" * 100, None),
        ("an old program of DOS", b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 64) + b"NE" * 40, None),
        ("a program whose headers are elsewhere", b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 1 << 30), None),
        ("a program that ends too early", efi_program(signed=True)[:200], None),
        ("nothing", b"", None),
    ],
)
def test_a_file_that_is_not_a_program_is_neither_signed_nor_unsigned(
    case: str, head: bytes, expected: bool | None
) -> None:
    assert is_signed(head) is expected, case
