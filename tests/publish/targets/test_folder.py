"""A folder as a target: order, permissions and times, other writers, a full disk, and a kill at each system call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from gitboot.errors import HostUnreachable, LockedByAnother, PublishError
from gitboot.publish.list_root import replace_list_keys
from gitboot.publish.mirror_comparison import FolderMirror
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list_reader import read_list
from gitboot.publish.targets import folder as folder_module
from gitboot.publish.targets.folder import TargetFolder, build_folder_opener
from gitboot.publish.targets.followed_tree import FollowedTree, TargetFile
from gitboot.publish.targets.sync_steps import (
    HEAD,
    UNLISTED,
    FileCallback,
    FileStore,
    StoreTarget,
    parse_head,
    parse_units,
    parse_unlisted,
    render_unlisted,
)
from gitboot.render.paths import File
from tests.helpers.cases import get_interval
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.published_trees import bring_up
from tests.helpers.signed_lists import SignedSite, assert_list_is_whole, make_keys, read_files
from tests.publish.targets.test_s3 import AT, DAY, ENTRY, assert_holds, assert_no_chain_is_mixed, fleet, split
from tests.publish.test_publisher_kill import Os, hook_calls

ENTRIES = [ENTRY.format(number) for number in range(3)]


class Site:
    max_servers = 2  # servers in one step

    def __init__(self, root: Path, folder: Path, *, ledger: str = "ours") -> None:
        self.root, self.folder, self.ledger = root, folder, ledger
        self.tree = FollowedTree(root)
        self.store: FileStore | None = None
        self.target = self.open_target()

    @property
    def name(self) -> str:
        return str(self.folder)

    def open_store(self) -> FileStore:
        return TargetFolder(self.folder)

    def open_target(self, writer: str = "me") -> StoreTarget:
        """Start a process without any memory of earlier ones."""
        self.close()
        self.store = store = self.open_store()
        self.target = StoreTarget(
            self.name,
            lambda: store,
            ledger=self.ledger,
            heir_of=lambda: None,
            writer=writer,
            max_servers=self.max_servers,
        )
        return self.target

    def close(self) -> None:
        if isinstance(self.store, TargetFolder):
            self.store.close()
            self.store = None

    def publish(
        self,
        version: int,
        servers: tuple[int, ...] = (0, 1, 2),
        script: bytes = b"#!ipxe\n",
        *,
        is_listed: bool = False,
    ) -> None:
        files = {**fleet(version, servers), "boot/boot.ipxe": File(script)}
        own, shared = split(files)
        with OutputDirectory.open(self.root, ledger="ours") as directory:
            directory.publish(own, shared, complete=True, commit=str(version), at=(at := AT + version * 3 * DAY))
            if is_listed:
                directory.update_list(None, at)

    def follow(self) -> int:
        return bring_up(self.target, self.tree)

    def deliver(self, version: int, servers: tuple[int, ...] = (0, 1, 2), script: bytes = b"#!ipxe\n") -> int:
        self.publish(version, servers, script)
        return self.follow()

    def read_served(self) -> dict[str, bytes]:
        return read_boot_files(self.folder)

    def assert_holds(self, version: int, servers: tuple[int, ...] = (0, 1, 2)) -> None:
        """Assert that exactly these boot scripts and the content that they name exist."""
        assert_holds(self.read_served(), fleet(version, servers))
        unlisted = parse_unlisted((self.folder / UNLISTED).read_bytes())
        assert [path for path in unlisted if not (self.root / path).exists()] == []
        head = parse_head((self.folder / HEAD).read_bytes())
        assert (head.commit, len(list((self.folder / "ops/shards").iterdir()))) == (str(version), len(head.shards))


def read_boot_files(folder: Path) -> dict[str, bytes]:
    found = (each for each in folder.glob("boot/**/*") if not each.name.startswith(".") and each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in found}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (folder := tmp_path / "mirror").mkdir()
    folder.chmod(0o750)  # under any umask
    site = Site(tmp_path / "out", folder)
    yield site
    site.close()


@contextmanager
def hook_folder_calls(happen: Callable[[int, str, tuple[Any, ...]], None]) -> Iterator[Os]:
    with hook_calls(happen) as os_, pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "os", os_)
        yield os_


def test_a_folder_has_the_files_for_machines_with_its_own_permissions_and_the_times_of_the_tree(site: Site) -> None:
    site.publish(1)
    assert site.follow() > 1
    site.assert_holds(1)
    for path in site.read_served():
        assert int((site.folder / path).stat().st_mtime) == int((site.root / path).stat().st_mtime)
    modes = {S_IMODE(each.stat().st_mode) for each in (site.folder / "boot").rglob("*")}
    assert modes == {0o750, 0o640}


def test_a_file_that_was_touched_at_the_mirror_gets_the_time_of_the_tree_with_its_next_version(site: Site) -> None:
    site.deliver(1)
    late = (AT + 99 * DAY).timestamp()
    os.utime(site.folder / ENTRIES[0], (late, late))
    site.deliver(2)
    assert (site.folder / ENTRIES[0]).stat().st_mtime == int((site.root / ENTRIES[0]).stat().st_mtime)


def test_finding_m4_at_each_system_call_every_boot_script_in_a_folder_names_existing_content(site: Site) -> None:
    site.deliver(1)
    site.publish(2, (0, 2, 3), b"#!ipxe\n# another\n")
    looks = count()

    def look(number: int, name: str, args: tuple[Any, ...]) -> None:
        seen = site.read_served()
        assert_no_chain_is_mixed(seen)
        if seen["boot/boot.ipxe"] != b"#!ipxe\n":
            assert {ENTRY.format(each) for each in (0, 2, 3)} <= seen.keys()
        next(looks)

    with hook_folder_calls(look):
        site.follow()
    assert next(looks) > 100
    assert site.read_served()["boot/boot.ipxe"] == b"#!ipxe\n# another\n"


def test_the_list_in_a_folder_is_complete_at_each_call_and_comes_after_all_that_it_names(site: Site) -> None:
    timestamps: list[bytes] = []

    def look(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name not in ("rename", "unlink"):
            return
        seen = {path.removeprefix("boot/"): content for path, content in site.read_served().items()}
        assert_list_is_whole(seen)
        if (timestamp := seen.get("signed/timestamp.json")) not in (None, *timestamps):
            timestamps.append(timestamp or b"")
            assert {
                path for path, content in read_files(site.root / "boot").items() if seen.get(path) != content
            } == set()

    for number in range(3):
        site.publish(number, (0, 1, number), is_listed=True)
        with hook_folder_calls(look):
            site.follow()
    look(0, "rename", ())
    assert len(timestamps) == 3


def test_finding_m4_killed_at_any_call_a_folder_has_complete_chains_that_the_next_process_completes(site: Site) -> None:
    site.deliver(0)
    version = 0
    for at in count(1, get_interval(1)):
        version += 1
        site.publish(version, (0, 1 + version % 2))
        site.open_target()

        def kill(number: int, name: str, args: tuple[Any, ...], at: int = at) -> None:
            if number >= at:
                raise KeyboardInterrupt

        with hook_folder_calls(kill) as calls, suppress(KeyboardInterrupt):
            site.follow()
        assert_no_chain_is_mixed(site.read_served())
        if at % 2:  # meanwhile something else is wanted
            version += 1
            site.publish(version, (0, 1 + version % 2))
        site.open_target()
        site.follow()
        site.assert_holds(version, (0, 1 + version % 2))
        staged = [str(path.relative_to(site.folder)) for path in site.folder.rglob(".gitboot-*")]
        assert [path for path in staged if not path.startswith("boot/o/")] == []
        if calls.calls < at:
            break
    assert at > 100
    for later in (1, 9):
        site.deliver(version + later, ())
    assert list(site.folder.rglob(".gitboot-*")) == []


@pytest.fixture
def successor(site: Site) -> Iterator[Site]:
    """A process on another host that has not yet taken over the target of the site."""
    successor = Site(site.root.with_name("other"), site.folder)
    successor.open_target("successor")
    yield successor
    successor.close()


def run_once_before(path: str, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``run`` once, immediately before a process writes a file to a folder."""
    write, replace, waiting = TargetFolder._write, TargetFolder.replace, [run]

    def hook_write(folder: TargetFolder, files: Mapping[str, TargetFile]) -> None:
        if path in files and path != UNLISTED and waiting:
            waiting.pop()()
        write(folder, files)

    def hook_replace(folder: TargetFolder, name: str, content: bytes, version: str | None = None) -> None:
        if path == name and waiting:
            waiting.pop()()
        replace(folder, name, content, version)

    monkeypatch.setattr(TargetFolder, "_write", hook_write)
    monkeypatch.setattr(TargetFolder, "replace", hook_replace)


def fail(*_: object) -> None:
    raise HostUnreachable("the network is down")


@pytest.mark.parametrize("pauses_at", [UNLISTED, ENTRIES[0]], ids=["before a step", "during a step"])
@pytest.mark.parametrize("is_first_load_interrupted", [False, True])
def test_the_next_load_repairs_what_a_paused_process_wrote_after_another_process_took_its_target(
    site: Site, successor: Site, monkeypatch: pytest.MonkeyPatch, pauses_at: str, is_first_load_interrupted: bool
) -> None:
    site.deliver(1)
    site.publish(2)

    def take_over() -> None:
        if is_first_load_interrupted:
            with monkeypatch.context() as patch, suppress(HostUnreachable):
                patch.setattr(TargetFolder, "get_each", fail)
                successor.deliver(3)
                raise AssertionError
        successor.deliver(3)

    run_once_before(pauses_at, take_over, monkeypatch)
    with pytest.raises((HostUnreachable, LockedByAnother)):
        site.follow()
    assert any(content.startswith(b"0002") for content in site.read_served().values())
    successor.follow()
    successor.assert_holds(3)


@pytest.mark.parametrize("path", [UNLISTED, ENTRIES[0]], ids=["before a step", "during a step"])
def test_a_step_does_not_remove_what_another_process_recorded_before_it_wrote_boot_scripts(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    site.deliver(1)
    other, stray = TargetFolder(site.folder), "boot/v1/boot/stray/boot.ipxe"
    record = partial(other.replace, UNLISTED, render_unlisted([ENTRIES[1], stray]))
    run_once_before(path, record, monkeypatch)
    with pytest.raises(HostUnreachable, match=f"another process wrote {UNLISTED}"):
        site.deliver(2)
    for _ in range(2):  # the other process may write between any two loads
        site.follow()
        site.assert_holds(2)
        for each in (ENTRIES[1], stray):
            other.place([each], lambda _: TargetFile(b"0001 boot/o/1/outdated\n", 0), ())
    site.follow()
    site.assert_holds(2)
    other.close()


def test_a_process_that_is_paused_in_a_load_does_not_remove_the_shards_of_the_next_process(
    site: Site, successor: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.deliver(1)
    get_each = TargetFolder.get_each

    def pause(folder: TargetFolder, paths: Collection[str], on_file: FileCallback) -> None:
        get_each(folder, paths, on_file)
        monkeypatch.setattr(TargetFolder, "get_each", get_each)
        successor.deliver(3)

    monkeypatch.setattr(TargetFolder, "get_each", pause)
    site.target.load()
    successor.follow()
    successor.assert_holds(3)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("removes_shard", [False, True], ids=["a boot script", "a shard"])
def test_the_next_load_repairs_what_a_paused_process_removed_after_another_process_took_its_target(
    site: Site, successor: Site, monkeypatch: pytest.MonkeyPatch, removes_shard: bool, restarts: bool
) -> None:
    """The next process writes the same boot script, or the same shard, again."""
    version, remove = 1 if removes_shard else 3, TargetFolder.remove
    site.deliver(1)
    site.publish(2, (0, 1))

    def pause(folder: TargetFolder, paths: Iterable[str]) -> None:
        removed = list(paths)
        if any(path.startswith("ops/shards/") if removes_shard else path == ENTRIES[2] for path in removed):
            monkeypatch.setattr(TargetFolder, "remove", remove)
            successor.deliver(version)
            if restarts:
                successor.open_target("third")
                successor.follow()
        remove(folder, removed)

    monkeypatch.setattr(TargetFolder, "remove", pause)
    with pytest.raises(LockedByAnother):
        site.follow()
    assert removes_shard or ENTRIES[2] not in site.read_served()
    successor.follow()
    successor.assert_holds(version)


def test_after_an_interrupted_step_a_new_process_writes_boot_scripts_only_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.deliver(1)
    run_once_before(HEAD, fail, monkeypatch)
    with pytest.raises(HostUnreachable):
        site.deliver(2)
    site.open_target("another process")
    assert site.follow() > 0
    assert [site.follow() for _ in range(2)] == [0, 0]
    site.assert_holds(2)


def test_finding_m4_a_full_disk_replaces_no_boot_script_whose_content_is_absent(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        site = Site(tmp_path / "out", disk)
        site.deliver(1)
        fill(disk / "filler")
        site.publish(2)
        with pytest.raises(PublishError, match="free some space"):
            site.follow()
        assert_no_chain_is_mixed(site.read_served())
        (disk / "filler").unlink()
        site.follow()
        site.assert_holds(2)
        site.close()


def test_no_symlink_leads_out_of_the_folder(site: Site, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (site.folder / "boot").symlink_to(elsewhere)
    site.publish(1)
    with pytest.raises(PublishError, match="boot: expected a folder, found a file or a symlink"):
        site.follow()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../outside", "boot/../../outside", "/etc/passwd", "boot//x", "boot/a\0b", "ops/x", ""]
)
def test_a_target_that_names_a_file_for_operators_is_an_error(path: str) -> None:
    """Otherwise a client that can write to a target could name files that gitboot reads or removes."""
    digest = sha256(b"").hexdigest()
    head = {"ledger": "ours", "commit": "1", "gitboot": "0", "writer": "me", "format": 1}
    with pytest.raises(ValueError, match="not a target shard"):
        parse_units(json.dumps({"web01": {"state": "", "files": {path: digest}}}).encode())
    with pytest.raises(ValueError, match="not a list of paths"):
        parse_unlisted(json.dumps(["boot/boot.ipxe", path]).encode())
    with pytest.raises(ValueError, match="not a target head"):
        parse_head(json.dumps({**head, "shards": {"00": path}}).encode())
    assert parse_head(json.dumps({**head, "shards": {"00": digest}}).encode()).shards == {"00": digest}


def test_a_missing_folder_is_not_created_and_a_disk_that_is_mounted_there_is_filled(site: Site) -> None:
    open_folder = build_folder_opener(site.folder)
    first = open_folder()
    assert open_folder() is first
    away = site.folder.rename(site.folder.with_name("away"))
    with pytest.raises(PublishError, match=r"mirror: No such file or directory \(create the folder"):
        open_folder()
    away.rename(site.folder)
    opened = open_folder()
    assert opened.is_current
    opened.close()


def test_a_folder_gets_the_root_metadata_of_new_root_keys(tmp_path: Path) -> None:
    """After the loss of a root key, the new metadata has the names of the lost key's."""
    publisher = SignedSite(tmp_path / "publisher")
    (folder := tmp_path / "mirror").mkdir()
    folder.chmod(0o750)  # under any umask
    site = Site(publisher.root, folder)
    for number in range(3):
        if number == 1:
            replace_list_keys(publisher.public.parent, None, None, AT)
        elif number == 2:
            publisher.keys = make_keys(tmp_path / "new", AT)
        publisher.publish(made=AT + number * DAY)
        site.follow()
        signed = read_list(FolderMirror(folder / "boot/signed").get, [publisher.key])
        assert (signed.is_verified, signed.accepted.root) == (True, (1, 2, 1)[number])
    site.close()
