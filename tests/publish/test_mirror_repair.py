"""`gitboot verify-mirror --repair`: what differs is replaced, in a folder and in a bucket."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import ForeignTree, PublishError
from gitboot.publish.durable_files import DurableDirectory, staging_path
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.mirror_comparison import FolderMirror, MirrorFault
from gitboot.publish.mirror_repair import ALL, BucketStore, FolderStore, RepairReport, repair
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list_check import compare_with_list
from gitboot.publish.signed_list_reader import TOLERANCE
from gitboot.publish.targets.folder import TargetFolder
from gitboot.publish.targets.followed_tree import FollowedTree, TargetFile
from gitboot.publish.targets.follower import BucketAddress, parse_target
from gitboot.publish.targets.s3 import Bucket
from gitboot.publish.targets.sync_steps import StoreTarget
from gitboot.publish.window_ends import WindowEnds, end_windows
from gitboot.render.paths import FIRST_SCRIPT, File
from tests.helpers.endpoints import ALWAYS, ENTRY, MAC, REPAIR, Site, plan_fleet
from tests.helpers.fleets import at, store_credentials
from tests.helpers.forked_commands import run_forked
from tests.helpers.mirrors import KEY, Store, s3_server
from tests.helpers.published_trees import TargetKilled, bring_up, kill_after, sync_target
from tests.helpers.signed_lists import SignedSite
from tests.publish.targets.test_s3 import ENTRY as UNLISTED_ENTRY
from tests.publish.targets.test_s3 import fleet, split
from tests.publish.test_mirror_comparison import BY_MAC, FIRST, FLEET

GONE = "v1/boot/52-54-00-99-99-99/boot.ipxe"  # of a server that is gone


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_signed(tmp_path_factory.mktemp("published")).root


def publish_signed(folder: Path) -> SignedSite:
    content = {"boot/o/5e1f/script": File(b"content that a path names\n")}
    published = SignedSite(folder)
    published.publish(replace(FLEET, shared={**FLEET.shared, **content}), made=datetime.now(UTC))
    return published


@pytest.fixture
def copy(output: Path, tmp_path: Path) -> Path:
    return shutil.copytree(output / "boot", tmp_path / "boot")


def run_repair(mirror: object, output: Path, *paths: str) -> tuple[int, dict[str, str], list[str]]:
    """Type the command: its exit code, what it did with each path, and what it left."""
    options = [each for path in paths for each in ("--repair", path)]
    done = run_forked("verify-mirror", mirror, "--tree", output, *options, "-o", "json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {each["path"]: each["action"] for each in found["repairs"]}, found["left"]


def rename_ledger(root: Path) -> None:
    manifest = root / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"ledger":"test"', b'"ledger":"theirs"'))


def edit_file(path: Path) -> None:
    """Change a file, and keep its size and its time."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-2] + b"#\n")
    os.utime(path, (before.st_mtime, before.st_mtime))


def read_files(root: Path) -> dict[str, tuple[bytes, int]]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.read_bytes(), int(path.stat().st_mtime)) for path in paths}


def is_as_published(copy: Path, output: Path) -> bool:
    return read_files(copy) == read_files(output / "boot")


def test_finding_m6_repair_replaces_one_file_or_all(copy: Path, output: Path) -> None:
    for path in (ENTRY, FIRST, BY_MAC):
        edit_file(copy / path[1:])
    assert run_repair(copy, output, ENTRY) == (0, {ENTRY[1:]: "Replaced"}, [])
    assert (copy / ENTRY[1:]).read_bytes() == (output / f"boot{ENTRY}").read_bytes()
    assert not is_as_published(copy, output)
    assert run_repair(copy, output, ALL) == (0, {FIRST[1:]: "Replaced", BY_MAC[1:]: "Replaced"}, [])
    assert is_as_published(copy, output)
    assert run_repair(copy, output, ALL) == (0, {}, [])


def test_absent_files_are_restored_and_boot_scripts_without_a_server_are_removed(copy: Path, output: Path) -> None:
    token = next(path for path in copy.rglob("*") if path.parent.name == "provisioned").relative_to(copy)
    for name in (ENTRY[1:], "signed/timestamp.json", str(token)):
        (copy / name).unlink()
    for name in (GONE, "signed/9.servers-00.json", "left.txt", "assets/linux"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("#!ipxe\n")
    code, done, left = run_repair(copy, output, ALL)
    assert (code, left) == (8, ["left.txt"])
    assert done == {
        ENTRY[1:]: "Replaced",
        "signed/timestamp.json": "Replaced",
        str(token): "Replaced",
        GONE: "Removed",
        "signed/9.servers-00.json": "Removed",
    }
    assert run_repair(copy, output, "left.txt") == (0, {"left.txt": "Removed"}, [])
    shutil.rmtree(copy / "assets")
    assert is_as_published(copy, output)


def test_a_file_that_gitboot_has_not_placed_yet_is_not_copied(copy: Path, output: Path) -> None:
    staged = output / "boot" / staging_path("signed/servers/web01.json")
    staged.write_bytes(b"a part")
    try:
        assert run_repair(copy, output, ALL) == (0, {}, [])
    finally:
        staged.unlink()
    assert is_as_published(copy, output)


def test_a_boot_script_that_the_tree_has_is_not_removed_although_its_list_does_not_name_it(tmp_path: Path) -> None:
    """An earlier version of gitboot published the server, without a listing."""
    own, shared = split({**fleet(1, (0,)), FIRST_SCRIPT: File(b"#!ipxe\n")})
    with OutputDirectory.open(tmp_path / "output", ledger="test") as directory:
        directory.publish(own, shared, complete=True, commit="c0ffee", at=_now())
        directory.update_list(None, _now())
    copy = shutil.copytree(tmp_path / "output/boot", tmp_path / "boot")
    edit_file(copy / FIRST[1:])
    unlisted = UNLISTED_ENTRY.format(0).removeprefix("boot/")
    assert run_repair(copy, tmp_path / "output", ALL) == (8, {FIRST[1:]: "Replaced"}, [unlisted])
    assert is_as_published(copy, tmp_path / "output")


def test_a_symlink_in_the_place_of_a_file_is_replaced_and_one_of_a_folder_is_not_followed(
    copy: Path, output: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((copy / FIRST[1:]).read_bytes())
    (copy / FIRST[1:]).unlink()
    (copy / FIRST[1:]).symlink_to(elsewhere)
    assert run_repair(copy, output, FIRST) == (0, {FIRST[1:]: "Replaced"}, [])
    assert not (copy / FIRST[1:]).is_symlink()
    (tmp_path / "folder").mkdir()
    shutil.rmtree(copy / f"v1/boot/{MAC}")
    (copy / f"v1/boot/{MAC}").symlink_to(tmp_path / "folder")
    done = run_forked("verify-mirror", copy, "--tree", output, "--repair", ALL)
    assert (done.returncode, "expected a folder" in done.stderr) == (8, True)
    assert [*(tmp_path / "folder").iterdir()] == []


def test_files_get_the_permissions_and_the_group_of_the_folder_of_the_mirror(copy: Path, output: Path) -> None:
    copy.chmod(0o750)
    (copy / FIRST[1:]).unlink()
    run_repair(copy, output, FIRST)
    assert (copy / FIRST[1:]).stat().st_mode & 0o777 == 0o640


def test_content_comes_first_then_boot_scripts_then_first_scripts_then_the_list(
    copy: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption of a repair at any time leaves no name of missing content."""
    for path in sorted(copy.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    written: list[str] = []
    write = FolderStore.replace_each

    def noted(store: FolderStore, files: Mapping[str, tuple[TargetFile, str | None]]) -> None:
        written.extend(files)
        write(store, files)

    monkeypatch.setattr(FolderStore, "replace_each", noted)
    store = FolderStore(copy)
    repair(store, output, [ALL], _now, parallel=1, on_start=_ignore, on_progress=_ignore)
    store.close()
    place = {path: number for number, path in enumerate(written)}
    content = max(number for path, number in place.items() if path.startswith("o/"))
    first, last = place[FIRST_SCRIPT.removeprefix("boot/")], place["signed/timestamp.json"]
    assert content < place[ENTRY[1:]] < first < last == len(written) - 1
    assert is_as_published(copy, output)


def _ignore(_: int) -> None:
    """Count no progress."""


def _now() -> datetime:
    return datetime.now(UTC)


def test_wrong_arguments_are_named(copy: Path, output: Path, tmp_path: Path) -> None:
    edit_file(copy / FIRST[1:])
    for arguments, words in (
        ((copy, "--repair", ALL), "--tree"),
        (("http://mirror.test", "--tree", output, "--repair", ALL), "pass the folder or the target"),
        ((copy, "--tree", output, "--repair", "boot.ipx"), "did you mean boot.ipxe?"),
        ((tmp_path / "none", "--tree", output, "--repair", ALL), "is not a folder"),
    ):
        done = run_forked("verify-mirror", *arguments)
        assert (done.returncode, words in done.stderr) == (64, True), done.stderr
    done = run_forked("verify-mirror", copy, "--tree", output, "--repair", ALL)
    assert done.stdout.splitlines()[-1].endswith("files: 1 repaired")


# Events during a repair


class WatchedStore(FolderStore):
    def __init__(self, folder: Path, happen: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(folder)
        self.written: dict[str, list[bytes]] = {}
        self._happen, self._numbers = happen, count(1)

    def replace_each(self, files: Mapping[str, tuple[TargetFile, str | None]]) -> None:
        super().replace_each(files)
        for path, (file, _) in files.items():
            self.written.setdefault(path, []).append(file.content)
        self._happen(next(self._numbers))


@pytest.fixture
def publisher(tmp_path: Path) -> SignedSite:
    return publish_window(tmp_path / "publisher")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (folder := tmp_path / "boot").mkdir()
    return folder


def publish_window(folder: Path) -> SignedSite:
    publisher = SignedSite(folder)
    publisher.publish(plan_fleet(*ALWAYS, REPAIR, now=INSIDE), INSIDE)
    return publisher


def end_window(publisher: SignedSite) -> None:
    publisher.publish(plan_fleet(*ALWAYS, now=INSIDE), INSIDE)


INSIDE, ENDS = at("20T23:00"), at("21T04:00")


def run_mend(
    store: FolderStore,
    publisher: SignedSite,
    clock: Callable[[], datetime] = lambda: INSIDE,
    on_start: Callable[[int], None] = _ignore,
) -> RepairReport:
    return repair(store, publisher.root, [ALL], clock, parallel=1, on_start=on_start, on_progress=_ignore, retry_s=0)


def assert_refused(mirror: Path, words: str, publisher: SignedSite, *how: Any, **more: Any) -> None:
    """Assert that a repair raises an error with these words, and writes nothing."""
    with closing(WatchedStore(mirror)) as store, pytest.raises(PublishError, match=words):
        run_mend(store, publisher, *how, **more)
    assert store.written == {}


def test_finding_m6_a_window_that_ends_while_a_mirror_is_compared_is_not_restored(
    empty: Path, publisher: SignedSite
) -> None:
    windows = (publisher.boot / ENTRY[1:]).read_bytes()
    tries: list[int] = []

    def end(number: int) -> None:
        if not tries:
            end_window(publisher)
        tries.append(number)

    with closing(WatchedStore(empty)) as store:
        run_mend(store, publisher, on_start=end)
    assert (len(tries), windows in store.written[ENTRY[1:]]) == (2, False)
    assert is_as_published(empty, publisher.root)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_finding_m6_a_window_that_ends_after_any_stage_of_a_repair_is_not_served_when_it_has_ended(
    empty: Path, publisher: SignedSite, number: int
) -> None:
    """The stages are content, boot scripts, two of scripts for all machines, the list, and its timestamp."""

    windows = (publisher.boot / ENTRY[1:]).read_bytes()

    def end(stage: int) -> None:
        if stage == number:
            end_window(publisher)

    with closing(WatchedStore(empty, end)) as store:
        done = run_mend(store, publisher)
    assert (publisher.boot / ENTRY[1:]).read_bytes() != windows, "the repair has that many stages"
    paths = {each.path for each in done.repairs}
    assert is_as_published(empty, publisher.root)
    assert paths >= {ENTRY[1:], FIRST[1:], "signed/timestamp.json"}, "what an earlier try wrote is reported"


def test_finding_m6_a_version_that_becomes_outdated_during_a_repair_is_not_written(
    empty: Path, publisher: SignedSite
) -> None:
    """The publisher is dead, so the tree stays as it is."""
    windows, now = (publisher.boot / ENTRY[1:]).read_bytes(), [ENDS - timedelta(seconds=1)]

    def end(_: int) -> None:
        now[0] = ENDS

    with closing(WatchedStore(empty)) as store:
        run_mend(store, publisher, lambda: now[0], on_start=end)
    assert (windows in store.written[ENTRY[1:]], ENTRY[1:] in store.written) == (False, True)


def test_a_tree_that_is_published_to_repeatedly_ends_a_repair_with_a_message(
    empty: Path, publisher: SignedSite
) -> None:
    fleets = cycle((plan_fleet(*ALWAYS, now=INSIDE), plan_fleet(*ALWAYS, REPAIR, now=INSIDE)))

    def publish(_: int) -> None:
        publisher.publish(next(fleets), INSIDE)

    assert_refused(empty, r"another process published in the meantime; run the command", publisher, on_start=publish)


def test_a_file_of_the_list_that_is_removed_during_a_repair_is_not_an_error(
    empty: Path, publisher: SignedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, calls = FolderMirror.names, count(1)

    def list_removed_file_once(mirror: FolderMirror) -> list[str]:
        is_second = next(calls) == 2  # the listing of the tree's own list
        return [*names(mirror), *(["signed/servers/gone.json"] if is_second else [])]

    monkeypatch.setattr(FolderMirror, "names", list_removed_file_once)
    with closing(WatchedStore(empty)) as store:
        report = run_mend(store, publisher)
    paths = {each.path for each in report.repairs}
    assert "signed/timestamp.json" in paths
    assert "signed/servers/gone.json" not in paths


def test_a_file_of_the_list_that_cannot_be_read_ends_a_repair_at_once(empty: Path, publisher: SignedSite) -> None:
    (publisher.boot / "signed" / "loop.json").symlink_to("loop.json")
    assert_refused(empty, r"loop\.json cannot be read: Too many levels of symbolic links\Z", publisher)


@pytest.mark.parametrize("name", ["boot.ipxe", "signed/shared.json", "signed/servers/web01.json"])
def test_a_published_file_that_cannot_be_read_ends_a_repair_with_the_cause(
    empty: Path, publisher: SignedSite, name: str
) -> None:
    file = publisher.boot / name
    file.unlink()
    file.symlink_to(file.name)
    with closing(FolderStore(empty)) as store, pytest.raises(PublishError) as caught:
        run_mend(store, publisher)
    assert str(caught.value) == f"{file} cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize("name", [f"boot{ENTRY}", f"boot{FIRST}"])
def test_a_published_file_that_cannot_be_read_ends_a_repair_without_a_list(
    empty: Path, tmp_path: Path, name: str
) -> None:
    published = Site(tmp_path / "unsigned")
    published.publish(FLEET)
    file = published.root / name
    file.unlink()
    file.symlink_to(file.name)
    with closing(FolderStore(empty)) as store, pytest.raises(PublishError, match=r"cannot be read: Too many levels"):
        repair(
            store, published.root, [ALL], lambda: INSIDE, parallel=1, on_start=_ignore, on_progress=_ignore, retry_s=0
        )


def test_a_repair_writes_nothing_from_a_tree_with_an_interrupted_publication(
    publisher: SignedSite, tmp_path: Path
) -> None:
    copy = shutil.copytree(publisher.boot, tmp_path / "boot")
    edit_file(copy / ENTRY[1:])
    with pytest.MonkeyPatch.context() as patch, suppress(TargetKilled):
        patch.setattr(DurableDirectory, "place", kill_after(3))
        end_window(publisher)
    assert_refused(copy, r"a publication is in progress, or was interrupted", publisher)
    end_window(publisher)
    assert run_repair(copy, publisher.root, ALL)[0] == 0
    assert is_as_published(copy, publisher.root)


def test_a_repair_writes_nothing_with_a_list_of_an_earlier_publication(output: Path, tmp_path: Path) -> None:
    """The publisher has ended before it wrote the list, or has no keys for it."""
    tree = shutil.copytree(output, tmp_path / "tree")
    copy = shutil.copytree(output / "boot", tmp_path / "boot")
    edit_file(copy / ENTRY[1:])
    Site(tree).publish(FLEET, commit="decaf")
    with (
        closing(WatchedStore(copy)) as store,
        pytest.raises(PublishError, match="the signed list and the manifest belong to different publications"),
    ):
        repair(store, tree, [ALL], _now, parallel=1, on_start=_ignore, on_progress=_ignore, retry_s=0)
    assert store.written == {}


def test_finding_m6_an_older_output_does_not_repair_a_mirror_that_has_a_newer_list(
    publisher: SignedSite, tmp_path: Path
) -> None:
    """This happens after a restore, or if --tree names the OUTPUT of a host that was replaced."""
    older = shutil.copytree(publisher.root, tmp_path / "older")
    end_window(publisher)
    copy = shutil.copytree(publisher.boot, tmp_path / "boot")
    edit_file(copy / ENTRY[1:])
    before = read_files(copy)
    done = run_forked("verify-mirror", copy, "--tree", older, "--repair", ALL)
    assert (done.returncode, read_files(copy)) == (8, before)
    assert "earlier version" in done.stderr
    assert "set --tree to the OUTPUT that gitboot currently publishes to" in done.stderr
    assert run_repair(copy, publisher.root, ENTRY)[0] == 0


def test_a_clock_that_is_behind_the_list_of_the_tree_repairs_nothing(publisher: SignedSite, tmp_path: Path) -> None:
    copy = shutil.copytree(publisher.boot, tmp_path / "boot")
    edit_file(copy / ENTRY[1:])
    behind = INSIDE - TOLERANCE * 2
    assert_refused(copy, "correct the clock", publisher, lambda: behind)


# Publishers of a mirror


def folder_target(folder: Path, root: Path, *, ledger: str = "test") -> StoreTarget:
    folder.mkdir(exist_ok=True)
    return sync_target(TargetFolder(folder), root, name=str(folder), ledger=ledger)


def test_finding_m6_a_folder_of_another_ledger_is_not_changed(output: Path, tmp_path: Path) -> None:
    target = folder_target(tmp_path / "target", output, ledger="theirs")
    edit_file(tmp_path / f"target/boot{ENTRY}")
    before = read_files(tmp_path / "target")
    done = run_forked("verify-mirror", tmp_path / "target/boot", "--tree", output, "--repair", ALL)
    assert (done.returncode, read_files(tmp_path / "target")) == (8, before)
    assert "belongs to the ledger theirs, not to test" in done.stderr and "set --tree to the OUTPUT" in done.stderr
    target.load()  # it is still the writer


def test_a_copy_of_a_complete_output_of_another_ledger_is_not_changed(output: Path, tmp_path: Path) -> None:
    theirs = shutil.copytree(output, tmp_path / "theirs")
    rename_ledger(theirs)
    edit_file(theirs / f"boot{ENTRY}")
    before = read_files(theirs)
    done = run_forked("verify-mirror", theirs / "boot", "--tree", output, "--repair", ALL)
    assert (done.returncode, read_files(theirs)) == (8, before)
    assert "belongs to the ledger theirs, not to test" in done.stderr
    ours = shutil.copytree(output, tmp_path / "ours")
    edit_file(ours / f"boot{ENTRY}")
    assert run_repair(ours / "boot", output, ALL) == (0, {ENTRY[1:]: "Replaced"}, [])


def test_the_tree_itself_is_not_repaired(output: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(output / "boot")
    for mirror in (output / "boot", tmp_path / "link"):
        done = run_forked("verify-mirror", mirror, "--tree", output, "--repair", ALL)
        assert (done.returncode, "belongs to the output tree" in done.stderr) == (64, True)


def test_finding_m6_a_repair_takes_a_target_from_no_instance_and_a_step_that_begins_stops_it(
    publisher: SignedSite, tmp_path: Path
) -> None:
    target = folder_target(tmp_path / "target", publisher.root)
    tree, boot = FollowedTree(publisher.root), tmp_path / "target/boot"
    edit_file(boot / ENTRY[1:])
    edit_file(boot / FIRST[1:])
    windows = (publisher.boot / ENTRY[1:]).read_bytes()

    def end(stage: int) -> None:
        if stage == 1:  # boot scripts; the first scripts follow
            end_window(publisher)
            bring_up(target, tree)

    with closing(WatchedStore(boot, end)) as store:
        run_mend(store, publisher)
    assert store.written[ENTRY[1:]] == [windows], "it was the version of now when it was written"
    assert read_files(boot) == read_files(publisher.boot)
    assert bring_up(target, tree) == 0


def test_finding_m6_another_ledger_that_takes_a_target_over_during_a_repair_stops_it(
    output: Path, tmp_path: Path
) -> None:
    folder_target(tmp_path / "target", output)
    boot = tmp_path / "target/boot"
    for path in (ENTRY, FIRST):
        edit_file(boot / path[1:])
    spoiled = (boot / FIRST[1:]).read_bytes()

    def take_over(stage: int) -> None:
        with closing(TargetFolder(tmp_path / "target")) as opened:
            StoreTarget("target", lambda: opened, ledger="heir", heir_of=lambda: "test", writer="heir-1").load()

    with closing(WatchedStore(boot, take_over)) as store, pytest.raises(ForeignTree, match="ledger heir, not to test"):
        repair(store, output, [ALL], _now, parallel=1, on_start=_ignore, on_progress=_ignore, retry_s=0)
    assert [*store.written] == [ENTRY[1:]]
    assert (boot / FIRST[1:]).read_bytes() == spoiled


def test_finding_m6_a_target_is_repaired_only_if_it_has_the_version_of_the_tree(
    publisher: SignedSite, tmp_path: Path
) -> None:
    """A file that the target's records do not list would be in the way of the instance."""
    folder_target(tmp_path / "target", publisher.root)
    end_window(publisher)
    with closing(WatchedStore(tmp_path / "target/boot")) as store:
        with pytest.raises(PublishError, match=r"contain different publications \(wait until the instance"):
            run_mend(store, publisher)
        assert store.written == {}


def test_a_target_at_which_windows_ended_without_a_publication_is_not_repaired(
    publisher: SignedSite, tmp_path: Path
) -> None:
    """The list may name a one-time boot after the window, and gitboot cannot withdraw that boot before it publishes."""
    target = folder_target(tmp_path / "target", publisher.root)
    tree = FollowedTree(publisher.root)
    tree.ended_servers = dict.fromkeys(end_windows(publisher.root, WindowEnds(), ENDS).servers, 1)
    assert bring_up(target, tree) == 1
    words = r"gitboot ended windows in the tree and at this target \(wait until the condition Published is true\); run"
    assert_refused(tmp_path / "target/boot", words, publisher, lambda: ENDS)


# Files that turn


def test_after_the_end_of_a_window_repair_writes_the_current_version_even_without_the_publisher(
    tmp_path: Path,
) -> None:
    """The tree itself still has the window, as a dead publisher left it."""
    publisher, copy, ends = publish_window(tmp_path / "publisher"), tmp_path / "copy", ENDS
    shutil.copytree(publisher.boot, copy)

    def stale(now: datetime) -> set[str]:
        report = compare_with_list(
            FolderMirror(copy), [publisher.key], now, parallel=2, on_start=_ignore, on_progress=_ignore
        )
        assert {each.fault for each in report.findings} <= {MirrorFault.STALE, MirrorFault.MISSING, MirrorFault.EXTRA}
        return {f"/{each.path}" for each in report.findings}

    def mended(now: datetime) -> set[str]:
        store = FolderStore(copy)
        done = repair(
            store, publisher.root, [ALL], lambda: now, parallel=2, on_start=_ignore, on_progress=_ignore
        ).repairs
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


def opened(url: str) -> Bucket:
    address = parse_target(url)
    assert isinstance(address, BucketAddress)
    return Bucket(address, (KEY["aws_access_key_id"], KEY["aws_secret_access_key"]))


def test_finding_m6_an_edited_object_is_repaired_in_a_bucket(store: Store, output: Path, tmp_path: Path) -> None:
    store.make("boots")
    store_credentials(tmp_path, "keys", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
    url = f"s3://boots/site?endpoint={store.url}&credentials={tmp_path}/keys"
    code, done, _ = run_repair(url, output, ALL)
    assert code == 0 and {*done.values()} == {"Replaced"}
    before = store.contents("boots")
    assert store.get("boots", f"site/boot{ENTRY}").cache_control == "no-store"
    store.put("boots", f"site/boot{ENTRY}", b"#!ipxe\nshell\n")
    store.put("boots", f"site/boot/{GONE}", b"#!ipxe\nshell\n")
    assert run_repair(url, output, ALL) == (0, {ENTRY[1:]: "Replaced", GONE: "Removed"}, [])
    assert store.contents("boots") == before


def test_an_object_that_is_replaced_after_it_was_compared_is_compared_again(store: Store, output: Path) -> None:
    store.make("replaced")
    bucket = BucketStore("bucket", opened(f"s3://replaced?endpoint={store.url}"))
    right, compared, tries = (output / f"boot{ENTRY}").read_bytes(), count(1), list[int]()
    store.put("replaced", f"boot{ENTRY}", b"#!ipxe\nshell\n")

    def replace_entry(_: int) -> None:
        if next(compared) == tries[0]:  # all are compared
            store.put("replaced", f"boot{ENTRY}", right)

    done = repair(bucket, output, [ALL], _now, parallel=1, on_start=tries.append, on_progress=replace_entry, retry_s=0)
    assert len(tries) == 2
    assert store.contents("replaced") == {
        f"boot/{path}": content for path, (content, _) in read_files(output / "boot").items()
    }
    assert ENTRY[1:] in {each.path for each in done.repairs}


def test_finding_m6_a_bucket_of_another_ledger_is_not_changed(store: Store, output: Path, tmp_path: Path) -> None:
    store.make("theirs")
    store_credentials(tmp_path, "keys", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
    url = f"s3://theirs/site?endpoint={store.url}&credentials={tmp_path}/keys"
    sync_target(opened(url), output, ledger="theirs")
    store.put("theirs", f"site/boot{ENTRY}", b"#!ipxe\nshell\n")
    before = store.contents("theirs")
    done = run_forked("verify-mirror", url, "--tree", output, "--repair", ALL)
    assert (done.returncode, store.contents("theirs")) == (8, before)
    assert "s3://theirs/site belongs to the ledger theirs, not to test" in done.stderr
