"""`gitboot verify-mirror --repair`: what differs is replaced, in a folder and in a bucket."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import PublishError
from gitboot.mirror_program import TOLERANCE
from gitboot.render.paths import FIRST_SCRIPT
from gitboot.render.tree import File
from gitboot.targets.mirror import FolderMirror
from gitboot.targets.mirror_comparison import compare_with_list
from gitboot.targets.mirror_repair import ALL, FolderStore, RightFile, repair
from gitboot.targets.mirrored import MirrorFault
from tests.buckets import KEY, Store, s3_server
from tests.fleets import at
from tests.list_clients import SignedSite
from tests.preloaded import captured
from tests.serving import ALWAYS, ENTRY, MAC, REPAIR, planned
from tests.test_targets_mirror import BY_MAC, FIRST, FLEET

GONE = "v1/boot/52-54-00-99-99-99/boot.ipxe"  # of a server that is gone


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_signed(tmp_path_factory.mktemp("published")).root


def publish_signed(folder: Path) -> SignedSite:
    """Publish a fleet with content that a path names."""
    content = {"boot/o/5e1f/script": File(b"content that a path names\n")}
    published = SignedSite(folder)
    published.publish(replace(FLEET, shared={**FLEET.shared, **content}), made=datetime.now(UTC))
    return published


@pytest.fixture
def copy(output: Path, tmp_path: Path) -> Path:
    return shutil.copytree(output / "boot", tmp_path / "boot")


def repaired(mirror: object, output: Path, *paths: str) -> tuple[int, dict[str, str], list[str]]:
    """Type the command: its exit code, what it did with each path, and what it left."""
    options = [each for path in paths for each in ("--repair", path)]
    done = captured("verify-mirror", mirror, "--tree", output, *options, "-o", "json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {each["path"]: each["action"] for each in found["repairs"]}, found["left"]


def edit(path: Path) -> None:
    """Change a file, and keep its size and its time."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-2] + b"#\n")
    os.utime(path, (before.st_mtime, before.st_mtime))


def as_published(copy: Path, output: Path) -> bool:
    def files(root: Path) -> dict[str, tuple[bytes, int]]:
        paths = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): (path.read_bytes(), int(path.stat().st_mtime)) for path in paths}

    return files(copy) == files(output / "boot")


def test_finding_m6_repair_replaces_one_file_or_all(copy: Path, output: Path) -> None:
    for path in (ENTRY, FIRST, BY_MAC):
        edit(copy / path[1:])
    assert repaired(copy, output, ENTRY) == (0, {ENTRY[1:]: "Replaced"}, [])
    assert (copy / ENTRY[1:]).read_bytes() == (output / f"boot{ENTRY}").read_bytes()
    assert not as_published(copy, output)
    assert repaired(copy, output, ALL) == (0, {FIRST[1:]: "Replaced", BY_MAC[1:]: "Replaced"}, [])
    assert as_published(copy, output)
    assert repaired(copy, output, ALL) == (0, {}, [])


def test_absent_files_come_back_and_boot_scripts_of_nobody_go(copy: Path, output: Path) -> None:
    token = next(path for path in copy.rglob("*") if path.parent.name == "provisioned").relative_to(copy)
    for name in (ENTRY[1:], "signed/timestamp.json", str(token)):
        (copy / name).unlink()
    for name in (GONE, "signed/9.servers-00.json", "left.txt", "assets/linux"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("#!ipxe\n")
    code, done, left = repaired(copy, output, ALL)
    assert (code, left) == (8, ["left.txt"])
    assert done == {
        ENTRY[1:]: "Replaced",
        "signed/timestamp.json": "Replaced",
        str(token): "Replaced",
        GONE: "Removed",
        "signed/9.servers-00.json": "Removed",
    }
    assert repaired(copy, output, "left.txt") == (0, {"left.txt": "Removed"}, [])
    shutil.rmtree(copy / "assets")
    assert as_published(copy, output)


def test_a_symlink_in_the_place_of_a_file_is_replaced_and_one_of_a_folder_is_not_followed(
    copy: Path, output: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((copy / FIRST[1:]).read_bytes())
    (copy / FIRST[1:]).unlink()
    (copy / FIRST[1:]).symlink_to(elsewhere)
    assert repaired(copy, output, FIRST) == (0, {FIRST[1:]: "Replaced"}, [])
    assert not (copy / FIRST[1:]).is_symlink()
    (tmp_path / "folder").mkdir()
    shutil.rmtree(copy / f"v1/boot/{MAC}")
    (copy / f"v1/boot/{MAC}").symlink_to(tmp_path / "folder")
    done = captured("verify-mirror", copy, "--tree", output, "--repair", ALL)
    assert (done.returncode, "expected a folder" in done.stderr) == (8, True)
    assert [*(tmp_path / "folder").iterdir()] == []


def test_files_get_the_permissions_and_the_group_of_the_mirrors_folder(copy: Path, output: Path) -> None:
    copy.chmod(0o750)
    (copy / FIRST[1:]).unlink()
    repaired(copy, output, FIRST)
    assert (copy / FIRST[1:]).stat().st_mode & 0o777 == 0o640


def test_content_comes_first_then_entries_then_first_scripts_then_the_list(
    copy: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops a repair, no machine is told a name that leads nowhere."""
    for path in sorted(copy.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    written: list[str] = []
    write = FolderStore.replace

    def noted(store: FolderStore, path: str, file: RightFile, found: str | None) -> None:
        written.append(path)
        write(store, path, file, found)

    monkeypatch.setattr(FolderStore, "replace", noted)
    store = FolderStore(copy)
    repair(store, output, [ALL], datetime.now(UTC), parallel=1, begun=_ignore, done=_ignore)
    store.close()
    place = {path: number for number, path in enumerate(written)}
    content = max(number for path, number in place.items() if path.startswith("o/"))
    first, last = place[FIRST_SCRIPT.removeprefix("boot/")], place["signed/timestamp.json"]
    assert content < place[ENTRY[1:]] < first < last == len(written) - 1
    assert as_published(copy, output)


def _ignore(_: int) -> None:
    """Count no progress."""


def test_mistakes_are_named(copy: Path, output: Path, tmp_path: Path) -> None:
    edit(copy / FIRST[1:])
    for arguments, words in (
        ((copy, "--repair", ALL), "--tree"),
        (("http://mirror.test", "--tree", output, "--repair", ALL), "name the folder or the target"),
        ((copy, "--tree", output, "--repair", "boot.ipx"), "did you mean boot.ipxe?"),
        ((tmp_path / "none", "--tree", output, "--repair", ALL), "is no folder"),
    ):
        done = captured("verify-mirror", *arguments)
        assert (done.returncode, words in done.stderr) == (64, True), done.stderr
    done = captured("verify-mirror", copy, "--tree", output, "--repair", ALL)
    assert done.stdout.splitlines()[-1].endswith("files: 1 repaired")


def test_a_repair_that_a_publication_overtakes_is_to_be_run_again(tmp_path: Path) -> None:
    """It may have replaced a newer file of a target by the one that it read before."""
    publisher = publish_signed(tmp_path / "publisher")
    copy = shutil.copytree(publisher.boot, tmp_path / "boot")
    edit(copy / FIRST[1:])
    store = FolderStore(copy)

    def publish(_: int) -> None:
        publisher.publish(planned(*ALWAYS), datetime.now(UTC))

    with pytest.raises(PublishError, match="was published to meanwhile: run the command again"):
        repair(store, publisher.root, [FIRST], datetime.now(UTC), parallel=1, begun=publish, done=_ignore)
    store.close()


# Files that turn


def test_after_the_end_of_a_window_repair_writes_the_version_of_now_though_the_publisher_is_dead(
    tmp_path: Path,
) -> None:
    """The tree itself still has the window, as a dead publisher left it."""
    publisher, copy = SignedSite(tmp_path / "publisher"), tmp_path / "copy"
    inside, ends = at("20T23:00"), at("21T04:00")
    publisher.publish(planned(*ALWAYS, REPAIR, now=inside), inside)
    shutil.copytree(publisher.boot, copy)

    def stale(now: datetime) -> set[str]:
        report = compare_with_list(FolderMirror(copy), [publisher.key], now, parallel=2, begun=_ignore, done=_ignore)
        assert {each.fault for each in report.findings} <= {MirrorFault.STALE, MirrorFault.MISSING, MirrorFault.EXTRA}
        return {f"/{each.path}" for each in report.findings}

    def mended(now: datetime) -> set[str]:
        store = FolderStore(copy)
        done = repair(store, publisher.root, [ALL], now, parallel=2, begun=_ignore, done=_ignore).repairs
        store.close()
        return {f"/{each.path}" for each in done}

    assert (stale(ends - TOLERANCE * 2), stale(ends)) == (set(), set())
    after = ends + TOLERANCE
    turned = stale(after)
    assert {ENTRY, BY_MAC} <= turned
    assert mended(ends - TOLERANCE * 2) == set()
    assert mended(after) == turned
    assert (stale(after), mended(after)) == (set(), set())
    assert (copy / ENTRY[1:]).read_bytes() != (publisher.boot / ENTRY[1:]).read_bytes()


# A bucket


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_server() as found:
        yield found


def test_finding_m6_an_edited_object_is_repaired_in_a_bucket(store: Store, output: Path, tmp_path: Path) -> None:
    store.make("boots")
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "username").write_text(KEY["aws_access_key_id"])
    (keys / "password").write_text(KEY["aws_secret_access_key"])
    url = f"s3://boots/site?endpoint={store.url}&credentials={keys}"
    code, done, _ = repaired(url, output, ALL)
    assert code == 0 and {*done.values()} == {"Replaced"}
    before = store.contents("boots")
    assert store.get("boots", f"site/boot{ENTRY}").cache_control == "no-store"
    store.put("boots", f"site/boot{ENTRY}", b"#!ipxe\nshell\n")
    store.put("boots", f"site/boot/{GONE}", b"#!ipxe\nshell\n")
    assert repaired(url, output, ALL) == (0, {ENTRY[1:]: "Replaced", GONE: "Removed"}, [])
    assert store.contents("boots") == before
