"""`gitboot artifacts download`: fetched files are whole, a second run continues, and other files stay as they are."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.artifacts import downloads
from gitboot.artifacts.downloads import prune_mirror
from gitboot.cli import evaluated_fleet
from gitboot.cli.main import Exit, cli
from gitboot.errors import UsageError
from gitboot.files import lock_file
from gitboot.fleet.revision import Snapshot
from gitboot.git.snapshots import open_snapshot
from gitboot.publish.mirror_program import iterate_paths
from tests.cli.test_main import drop_root
from tests.helpers.artifact_servers import ArtifactServer, Registry, artifact_server, compute_digest, registry
from tests.helpers.cases import for_each
from tests.helpers.disks_and_terminals import small_disk
from tests.helpers.fleets import SEED, document, fleet, image, server
from tests.helpers.git_repositories import Minisign
from tests.helpers.http_peers import StrangeClient, strange_server

KERNEL, INITRD = b"kernel" * 1_000_000, b"initrd" * 1000


@pytest.fixture
def web() -> Iterator[ArtifactServer]:
    with artifact_server() as web:
        web.put("/vmlinuz?v=1", KERNEL)
        web.put("/initrd.img", INITRD)
        yield web


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as found:
        found.push_blob("os/linux", KERNEL)
        yield found


def write_fleet(
    folder: Path, kernel: str, initrd: str, outputs: str = "ipxe, mirror", more: str = "", kernel_fields: str = ""
) -> Path:
    artifacts = (
        f"kernel: {{url: '{kernel}', sha256: {compute_digest(KERNEL)}, size: {len(KERNEL)}{kernel_fields}}}, "
        f"initrds: [{{url: '{initrd}', sha256: {compute_digest(INITRD)}}}]"
    )
    text = document("BootImage", "flatcar-1", f"version: '1', architectures: {{x86_64: {{{artifacts}}}}}")
    first = fleet(f"baseURL: 'http://boot.test', outputs: [{outputs}]{more}")
    path = folder / "fleet"
    path.mkdir(exist_ok=True)
    documents = (first, *(text if each == image("flatcar-1") else each for each in SEED[1:]))
    (path / "fleet.yaml").write_text("---\n".join(documents))
    return path


def run_download(path: Path, out: Path, *options: str) -> tuple[int, dict[str, str], list[str]]:
    result = CliRunner().invoke(cli, ["artifacts", "download", str(path), "--out", str(out), *options, "-o", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, {Path(each["path"]).name: each["outcome"] for each in said["items"]}, said["pruned"]


def read_reasons(path: Path, out: Path) -> dict[str, str]:
    result = CliRunner().invoke(cli, ["artifacts", "download", str(path), "--out", str(out), "-o", "json"])
    return {Path(each["path"]).name: each["message"] for each in json.loads(result.stdout)["items"]}


def read_files(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


EXPECTED_FILES = {f"o/{compute_digest(KERNEL)}/kernel": KERNEL, f"o/{compute_digest(INITRD)}/initrd": INITRD}


def test_a_file_of_several_images_is_downloaded_once(web: ArtifactServer, tmp_path: Path) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    assert run_download(path, out) == (0, {"kernel": "fetched", "initrd": "fetched"}, [])
    assert read_files(out) == EXPECTED_FILES
    assert {file.stat().st_mode & 0o777 for file in out.rglob("*") if file.is_file()} == {0o644}
    web.asked.clear()
    assert run_download(path, out) == (0, {"kernel": "there", "initrd": "there"}, [])
    assert not web.asked


def test_a_file_of_a_registry_is_downloaded(found: Registry, web: ArtifactServer, tmp_path: Path) -> None:
    kernel = f"oci://{found.host}/os/linux@sha256:{compute_digest(KERNEL)}"
    path, out = write_fleet(tmp_path, kernel, f"{web.url}/initrd.img"), tmp_path / "boot"
    assert run_download(path, out) == (Exit.PARTIAL, {"kernel": "failed", "initrd": "fetched"}, [])
    assert run_download(path, out, "--registries", found.allowed) == (0, {"kernel": "fetched", "initrd": "there"}, [])
    assert read_files(out) == EXPECTED_FILES


def test_an_interrupted_download_continues(web: ArtifactServer, tmp_path: Path) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    web.cut["/vmlinuz?v=1"] = 1_000_000
    assert run_download(path, out) == (Exit.PARTIAL, {"kernel": "failed", "initrd": "fetched"}, [])
    assert f"o/{compute_digest(KERNEL)}/kernel" not in read_files(out)
    del web.cut["/vmlinuz?v=1"]
    assert run_download(path, out) == (0, {"kernel": "fetched", "initrd": "there"}, [])
    assert (web.ranges, read_files(out)) == (["bytes=1000000-"], EXPECTED_FILES)


def test_a_partial_download_of_other_content_is_deleted(web: ArtifactServer, tmp_path: Path) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    part = out / f"o/{compute_digest(KERNEL)}/.kernel.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100)
    assert run_download(path, out)[1]["kernel"] == "failed"
    assert not part.exists()
    assert run_download(path, out)[1]["kernel"] == "fetched"
    (out / f"o/{compute_digest(KERNEL)}/kernel").rename(part)  # whole, but for its name
    web.asked.clear()
    assert run_download(path, out)[1]["kernel"] == "fetched"
    assert not web.asked
    assert read_files(out) == EXPECTED_FILES


@pytest.mark.parametrize("content", [b"another", KERNEL + b"x", KERNEL[:-1] + b"x", b""])
def test_a_file_with_a_wrong_digest_is_not_placed(web: ArtifactServer, tmp_path: Path, content: bytes) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    web.put("/vmlinuz?v=1", content)
    assert run_download(path, out) == (Exit.PARTIAL, {"kernel": "failed", "initrd": "fetched"}, [])
    assert list(read_files(out)) == [f"o/{compute_digest(INITRD)}/initrd"]


def test_a_file_of_an_image_without_a_size_is_read_to_a_limit(
    web: ArtifactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.artifacts.downloads.LARGEST_ARTIFACT", 4 << 20)

    def answer(client: StrangeClient) -> None:
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
        client.flood(bytes(1 << 20), 10240)

    with strange_server(answer) as server:
        path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{server.url}/initrd.img"), tmp_path / "boot"
        assert read_reasons(path, out) == {"kernel": "", "initrd": "the file is larger than 4,194,304 bytes"}
    assert server.taken < 64 << 20  # the limit, and buffers of this machine
    assert list(read_files(out)) == [f"o/{compute_digest(KERNEL)}/kernel"]


def test_a_partial_download_is_deleted_if_the_disk_is_full(web: ArtifactServer, tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        path = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img")
        # One at a time: while the kernel fills the disk, no other file can be written.
        assert run_download(path, disk, "--parallel", "1") == (
            Exit.PARTIAL,
            {"kernel": "failed", "initrd": "fetched"},
            [],
        )
        assert read_files(disk) == {f"o/{compute_digest(INITRD)}/initrd": INITRD}


def test_two_processes_do_not_download_the_same_file(web: ArtifactServer, tmp_path: Path) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    part = out / f"o/{compute_digest(KERNEL)}/.kernel.part"
    part.parent.mkdir(parents=True)
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run_download(path, out)[1]["kernel"] == "failed"
    assert part.read_bytes() == b""
    assert run_download(path, out)[1]["kernel"] == "fetched"


def test_a_download_that_another_process_runs_is_not_pruned(tmp_path: Path) -> None:
    part = tmp_path / f"o/{'0' * 64}/.kernel.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    os.utime(part, (0, 0))
    now = datetime(2026, 11, 1, tzinfo=UTC)
    with part.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert prune_mirror(tmp_path, (), now, timedelta()) == []
    assert prune_mirror(tmp_path, (), now, timedelta()) == [str(part.relative_to(tmp_path))]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@for_each(("mode", "is_pruned"), [(0o644, True), (0o600, False)])
def test_an_incomplete_download_of_another_user_does_not_stop_pruning(mode: int, is_pruned: bool) -> None:
    with TemporaryDirectory() as place:  # other users can enter its parent folder
        (root := Path(place)).chmod(0o755)
        folders = [root / f"o/{digit * 64}" for digit in "01"]
        paths = [f"o/{folder.name}/.kernel.part" for folder in folders]
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / ".kernel.part").write_bytes(b"x")
            os.utime(folder / ".kernel.part", (0, 0))
            os.chown(folder, 65534, 65534)
        os.chown(root / "o", 65534, 65534)
        os.chown(root / paths[1], 65534, 65534)
        (root / paths[0]).chmod(mode)
        with drop_root():
            pruned = prune_mirror(root, (), datetime(2026, 11, 1, tzinfo=UTC), timedelta())
        assert pruned == paths[0 if is_pruned else 1 :]


def test_a_partial_download_that_another_process_removes_before_the_lock_is_not_used(
    web: ArtifactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    part = out / f"o/{compute_digest(KERNEL)}/.kernel.part"

    def lock(fd: int) -> bool:
        part.unlink(missing_ok=True)
        return lock_file(fd)

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "lock_file", lock)
        reasons = read_reasons(path, out)
    assert reasons["kernel"] == "another process is downloading the file"
    assert run_download(path, out) == (0, {"kernel": "fetched", "initrd": "there"}, [])


def test_a_download_is_locked_until_it_has_its_final_name(
    web: ArtifactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    web.put("/initrd.img", b"another")
    changed = []

    def change(do: Callable[..., None], name: str, *names: str, **folders: int) -> None:
        if name.endswith(".part"):
            changed.append(name)
            folder = folders.get("src_dir_fd", folders.get("dir_fd"))
            with open(os.open(name, os.O_RDONLY, dir_fd=folder)) as part, pytest.raises(BlockingIOError):
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        do(name, *names, **folders)

    monkeypatch.setattr(os, "rename", partial(change, os.rename))
    monkeypatch.setattr(os, "unlink", partial(change, os.unlink))
    assert run_download(path, out) == (Exit.PARTIAL, {"kernel": "fetched", "initrd": "failed"}, [])
    assert sorted(changed) == [".initrd.part", ".kernel.part"]


def test_folders_of_others_are_not_removed(tmp_path: Path) -> None:
    (own := tmp_path / "o" / "of-an-operator").mkdir(parents=True)
    (tmp_path / "o" / ("0" * 64)).mkdir()
    assert prune_mirror(tmp_path, (), datetime(2026, 11, 1, tzinfo=UTC), timedelta()) == []
    assert [*own.parent.iterdir()] == [own]


def test_unused_copies_are_deleted_after_some_days_and_no_other_files(web: ArtifactServer, tmp_path: Path) -> None:
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img"), tmp_path / "boot"
    run_download(path, out)
    unused, folder = out / f"o/{'0' * 64}/kernel", out / "o" / ("2" * 64)
    kept = [out / f"o/{'0' * 64}/user-data", out / "o/kernel", out / "o/other/kernel", out / f"o/{'3' * 64}/config.ign"]
    for file in (unused, folder / ".kernel.part", *kept):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
        os.utime(file, (0, 0))
    for file in (out / each for each in EXPECTED_FILES):
        os.utime(file, (0, 0))
    assert run_download(path, out)[2] == [f"o/{'2' * 64}/.kernel.part"]
    assert unused.exists() and not folder.exists()
    assert run_download(path, out, "--keep-days", "0")[2] == [f"o/{'0' * 64}/kernel"]
    assert all(file.exists() for file in kept) and sorted(os.listdir(unused.parent)) == ["user-data"]
    assert run_download(path, out, "--keep-days", "0") == (0, {"kernel": "there", "initrd": "there"}, [])


def test_a_copy_is_kept_for_some_days_after_the_first_run_that_does_not_need_it(tmp_path: Path) -> None:
    copy, keep, start = tmp_path / f"o/{'0' * 64}/kernel", timedelta(days=7), datetime(2026, 11, 1, tzinfo=UTC)
    path = str(copy.relative_to(tmp_path))
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"x")
    os.utime(copy, (0, 0))

    def prune(day: int, *needed: str) -> list[str]:
        return prune_mirror(tmp_path, needed, start + timedelta(days=day), keep)

    assert prune(0, path) == prune(10) == prune(16) == []
    # another run needs the copy in the meantime
    assert prune(17, path) == prune(18) == prune(24) == []
    assert [*iterate_paths(str(tmp_path))] == [path]  # mirrors copy no other file
    assert prune(25) == [path]
    assert list((tmp_path / "o").iterdir()) == []


def test_a_folder_whose_copy_somebody_deleted_is_removed(tmp_path: Path) -> None:
    copy, now = tmp_path / f"o/{'0' * 64}/kernel", datetime(2026, 11, 1, tzinfo=UTC)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"x")
    assert prune_mirror(tmp_path, (), now, timedelta(days=7)) == []
    copy.unlink()
    assert prune_mirror(tmp_path, (), now, timedelta(days=7)) == []
    assert list((tmp_path / "o").iterdir()) == []


def test_a_run_for_a_site_also_needs_its_copies(web: ArtifactServer, tmp_path: Path) -> None:
    sites = ", sites: [{name: fra, select: {matchLabels: {site: fra}}, baseURL: 'http://boot.test'}]"
    path, out = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img", more=sites), tmp_path / "boot"
    (path / "web02.yaml").write_text(server("web02", "role: web, site: fra"))
    run_download(path, out)
    long_ago, now = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC)
    assert prune_mirror(out, (), long_ago, timedelta(days=7)) == []
    assert run_download(path, out, "--site", "fra")[1] == {"kernel": "there", "initrd": "there"}
    assert prune_mirror(out, (), now, timedelta(days=7)) == []


def test_a_fleet_without_mirrored_artifacts_gets_a_message(web: ArtifactServer, tmp_path: Path) -> None:
    path = write_fleet(tmp_path, f"{web.url}/vmlinuz?v=1", f"{web.url}/initrd.img", outputs="ipxe")
    with pytest.raises(UsageError, match="`mirror` is missing from the Fleet's `outputs`"):
        run_download(path, tmp_path / "boot")
    assert run_download(write_fleet(tmp_path, "assets:kernel", "assets:initrd"), tmp_path / "boot") == (0, {}, [])


def test_sources_can_be_checked_before_a_merge(found: Registry, web: ArtifactServer, tmp_path: Path) -> None:
    sites = ", sites: [{name: fra, select: {matchLabels: {site: fra}}, baseURL: 'http://fra.test'}]"
    kernel = f"oci://{found.host}/os/linux@sha256:{compute_digest(KERNEL)}"
    path = write_fleet(tmp_path, kernel, f"{web.url}/initrd.img", more=sites)
    (path / "web02.yaml").write_text(server("web02", "role: web, site: fra"))
    command = ["artifacts", "verify", str(path), "--sources", "--no-cache", "-o", "json"]
    result = CliRunner().invoke(cli, [*command, "--registries", found.allowed])
    items = {each["url"]: each for each in json.loads(result.stdout)["items"]}
    assert result.exit_code == 0
    assert {url: (each["presence"], each["sites"], each["servers"]) for url, each in items.items()} == {
        kernel: ("Verified", ["", "fra"], 2),
        f"{web.url}/initrd.img": ("Verified", ["", "fra"], 2),
    }
    assert CliRunner().invoke(cli, command).exit_code == Exit.SOURCE  # no option allows the registry
    web.statuses["/initrd.img"] = 404
    assert CliRunner().invoke(cli, command).exit_code == Exit.PARTIAL


def test_with_keys_only_signed_files_are_downloaded_and_the_fleet_is_read_once(
    web: ArtifactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor, stranger = Minisign(tmp_path, "vendor"), Minisign(tmp_path, "stranger")
    (tmp_path / "kernel").write_bytes(KERNEL)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "vendor.pub").write_bytes(vendor.public.read_bytes())
    signature, out = f"{web.url}/kernel.minisig", tmp_path / "boot"
    path = write_fleet(
        tmp_path,
        f"{web.url}/vmlinuz?v=1",
        f"{web.url}/initrd.img",
        kernel_fields=f", signature: {{minisign: '{signature}'}}",
    )
    web.put("/kernel.minisig", stranger.sign(tmp_path / "kernel"))
    with_keys = ("--image-keys", str(tmp_path / "keys"))
    opened = []

    def open_and_count(folder: Path, rev: str | None) -> Snapshot:
        opened.append(folder)
        return open_snapshot(folder, rev)

    with monkeypatch.context() as patch:
        patch.setattr(evaluated_fleet, "open_snapshot", open_and_count)
        assert run_download(path, out, *with_keys) == (Exit.PARTIAL, {"kernel": "failed", "initrd": "failed"}, [])
    assert (opened, read_files(out)) == ([path], {})
    web.put("/kernel.minisig", vendor.sign(tmp_path / "kernel"))
    assert run_download(path, out, *with_keys) == (Exit.PARTIAL, {"kernel": "fetched", "initrd": "failed"}, [])
    web.asked.clear()
    assert run_download(path, out, *with_keys) == (Exit.PARTIAL, {"kernel": "there", "initrd": "failed"}, [])
    assert not web.asked
