"""Windows end in the files of a published tree, by the server states in that tree."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory, staging_path
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.tree_reader import LOCK
from gitboot.publish.window_ends import WindowEndError, WindowEnds, end_windows, fill_reserve
from gitboot.render.endpoint_files import parse_state_path
from gitboot.render.paths import BOOT_PARAMETERS, DATA, IGNITION, NOCLOUD, USER_DATA, find_path_kind
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import AFTER, ALWAYS, BEFORE, LOOKUPS, ONCE, REPAIR, TEMPLATES, UUID, Site, plan_fleet
from tests.helpers.fleets import at, fleet, image, maintenance, make_mac, policy, profile, server
from tests.helpers.published_trees import record_calls

OVER = at("21T04:00")
WINDOW_BOOTS, DISK = "memtest-7", "exit"


@pytest.fixture
def here(tmp_path: Path) -> Site:
    made = Site(tmp_path / "out")
    made.publish(plan_fleet(*ALWAYS, REPAIR, now=AFTER), at=AFTER)
    return made


def end_windows_now(here: Site, now: datetime) -> tuple[str, ...]:
    return end_windows(here.root, WindowEnds(), now).servers


def read_boot(here: Site, path: str = LOOKUPS[0]) -> str:
    return (here.root / "boot" / path.removeprefix("/")).read_text()


def read_tree(here: Site) -> dict[Path, bytes]:
    own_files = {here.root / LOCK, *find_reserve(here.root)}
    paths = [path for path in sorted(here.root.rglob("*")) if path.is_file() and path not in own_files]
    return {path: path.read_bytes() for path in paths}


def find_reserve(root: Path) -> list[Path]:
    return list(root.glob("ops/.gitboot/reserve*"))


def test_every_lookup_boots_the_disk_after_a_window_if_the_policy_writes_the_disk(here: Site) -> None:
    assert all(WINDOW_BOOTS in read_boot(here, path) for path in LOOKUPS)
    assert end_windows_now(here, OVER) == ("web01",)
    assert all("boots its local disk" in read_boot(here, path) for path in LOOKUPS)
    assert end_windows_now(here, OVER) == ()


def test_every_lookup_boots_the_policy_after_a_window_if_that_writes_no_disk(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    live = list(ALWAYS)
    live[2] = image("flatcar-1", "userData: Ignition/3.4, writesDisk: false", "kernel, initrd, loader")
    here.publish(plan_fleet(*live, REPAIR, now=AFTER), at=AFTER)
    assert end_windows_now(here, OVER) == ("web01",)
    whole = plan_fleet(*live, REPAIR, now=OVER).boot_files
    assert [read_boot(here, path).encode() for path in LOOKUPS] == [whole[path].content for path in LOOKUPS]


@pytest.mark.parametrize(
    ("user_data", "policy_text", "window_text"),
    [
        ("Ignition/3.4", TEMPLATES["t"], '{"ignition": {"version": "3.4.0"}, "passwd": {}}'),
        ("CloudInit", "#cloud-config\n", "#cloud-config\nbootcmd: []\n"),
    ],
)
def test_user_data_and_previews_without_a_token_are_those_of_the_policy_after_a_window(
    tmp_path: Path, user_data: str, policy_text: str, window_text: str
) -> None:
    here, templates = Site(tmp_path / "out"), {"web": policy_text, "repair": window_text}
    live = [
        fleet("baseURL: 'http://boot.test', outputs: [ipxe, nocloud, matchbox, bss]"),
        server("web01"),
        image("live-1", f"userData: {user_data}, writesDisk: false"),
        *(profile(name, "live-1", f"userData: {{format: {user_data}, template: {name}}}") for name in templates),
        policy("web"),
    ]
    during, after = (plan_fleet(*live, REPAIR, now=now, templates=templates) for now in (AFTER, OVER))
    here.publish(during, at=AFTER)
    assert end_windows_now(here, OVER) == ("web01",)
    kinds = (IGNITION, NOCLOUD, USER_DATA, BOOT_PARAMETERS)
    expected = {path: file.content for path, file in after.files.items() if find_path_kind(path) in kinds}
    assert {find_path_kind(path) for path in expected} >= {USER_DATA, BOOT_PARAMETERS}
    assert {path: (here.root / path).read_bytes() for path in expected} == expected


def test_a_system_that_a_window_has_booted_still_finds_its_user_data_after_the_window(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    repair = maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once", boots="web")
    made = plan_fleet(*ONCE, repair, now=AFTER)
    here.publish(made, at=AFTER)
    end_windows_now(here, OVER)
    found = {path: (here.root / path).read_bytes() for path in made.files if find_path_kind(path) is DATA}
    assert found and found == {path: made.files[path].content for path in found}


def test_before_the_end_of_a_window_nothing_changes(here: Site) -> None:
    before = read_tree(here)
    assert end_windows_now(here, AFTER) == ()
    assert read_tree(here) == before


def test_no_window_is_started(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(plan_fleet(*ALWAYS, REPAIR, now=BEFORE))
    before = read_tree(here)
    assert end_windows_now(here, AFTER) == ()
    assert read_tree(here) == before


def test_an_installation_that_follows_a_window_is_not_offered(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(plan_fleet(*ONCE, REPAIR, now=AFTER), at=AFTER)
    assert end_windows_now(here, OVER) == ("web01",)
    assert WINDOW_BOOTS not in read_boot(here) and "flatcar-1" not in read_boot(here)
    assert DISK in read_boot(here)


def test_the_next_window_is_not_started_in_place_of_the_ended_one(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    next_one = maintenance("next", "21T04:00 21T08:00")
    here.publish(plan_fleet(*ALWAYS, REPAIR, next_one, now=AFTER), at=AFTER)
    assert "Maintenance/repair" in read_boot(here)
    assert end_windows_now(here, OVER) == ("web01",)
    assert "boots its local disk" in read_boot(here), "a newer commit may have cancelled the next window"


def test_a_file_that_somebody_else_wrote_is_not_changed(here: Site) -> None:
    file = here.root / "boot" / LOOKUPS[0].removeprefix("/")
    file.write_text("#!ipxe\nexit\n")
    assert end_windows_now(here, OVER) == ("web01",)
    assert file.read_text() == "#!ipxe\nexit\n"


def test_a_damaged_state_ends_no_window_and_blocks_no_other_server(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(plan_fleet(*ALWAYS, REPAIR, now=AFTER), at=AFTER)
    (here.root / "ops" / "servers" / "web00.json").write_text("{")
    assert parse_state_path("ops/servers/web00.json") == "web00"
    assert end_windows_now(here, OVER) == ("web01",)


@pytest.mark.parametrize("follows_another", [False, True], ids=["no other window", "another window"])
def test_a_file_that_already_has_the_content_after_the_window_is_not_replaced(
    tmp_path: Path, follows_another: bool
) -> None:
    here = Site(tmp_path / "out")
    images = [image(name, "writesDisk: false", "uki") for name in ("live-1", "live-2")]
    boots = {"web": "live-1", "repair": "live-1", "other": "live-2"}
    profiles = [profile(name, boot, "httpBoot: uki", method="UefiHttp") for name, boot in boots.items()]
    others = [maintenance("other", "21T04:00 21T08:00", boots="other")] if follows_another else []
    here.publish(plan_fleet(*ALWAYS[:2], *images, *profiles, ALWAYS[-1], REPAIR, *others, now=AFTER), at=AFTER)
    assert end_windows_now(here, OVER) == ("web01",)
    assert (here.root / "boot/httpboot" / f"{UUID}.json").stat().st_mtime == AFTER.timestamp()
    assert end_windows_now(here, OVER) == ()


def test_windows_do_not_end_during_a_publication(here: Site) -> None:
    before = read_tree(here)
    with OutputDirectory.open(here.root, ledger="test"):
        assert end_windows_now(here, OVER) == ()
    assert read_tree(here) == before


def test_without_a_tree_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert end_windows(tmp_path / "none", WindowEnds(), OVER) == ((), None)
    assert not (tmp_path / "none").exists()


def test_the_files_keep_the_permissions_of_the_tree(here: Site) -> None:
    for folder, _, files in os.walk(here.root):
        Path(folder).chmod(0o750)
        for name in files:
            (Path(folder) / name).chmod(0o640)
    end_windows_now(here, OVER)
    modes = {stat.S_IMODE((here.root / "boot" / path.removeprefix("/")).stat().st_mode) for path in LOOKUPS}
    assert modes == {0o640}


def test_the_next_publication_writes_the_server_again(here: Site) -> None:
    end_windows_now(here, OVER)
    here.publish(plan_fleet(*ALWAYS, REPAIR, now=OVER), commit="2", at=OVER)
    whole = plan_fleet(*ALWAYS, REPAIR, now=OVER).boot_files
    assert all(read_boot(here, path).encode() == whole[path].content for path in LOOKUPS)


def test_the_date_of_a_file_is_a_second_after_the_version_that_it_replaces(here: Site) -> None:
    """At the end of the window, another host may publish a boot at this path, with the date of that second."""
    file = here.root / "boot" / LOOKUPS[0].removeprefix("/")
    before = file.stat().st_mtime
    end_windows_now(here, OVER)
    assert file.stat().st_mtime == before + 1 < OVER.timestamp()


# The time of the next end


def make_clock() -> Callable[[], float]:
    """A clock that goes a second at each look, so that reading all states takes one or more."""
    return map(float, count()).__next__


def test_after_the_time_of_the_next_end_is_known_one_server_is_read(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}")
    here.publish(plan_fleet(*ALWAYS, server("web02", "role: web"), repair, now=AFTER), at=AFTER)
    ends = WindowEnds(make_clock())
    assert end_windows(here.root, ends, AFTER) == ((), OVER)
    read = record_calls(monkeypatch, "read")
    assert end_windows(here.root, ends, AFTER) == ((), OVER)
    assert not read, "nothing is due"
    assert end_windows(here.root, ends, OVER) == (("web01",), None)
    assert [path for path in read if path.startswith("ops/servers")] == ["ops/servers/web01.json"]
    assert not ends.is_due(here.root, OVER)


def test_windows_of_several_servers_end_one_after_another(tmp_path: Path) -> None:
    here, later = Site(tmp_path / "out"), at("21T06:00")
    second = maintenance("second", "20T22:00 21T06:00", select="{servers: [web02]}")
    first = maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}")
    here.publish(plan_fleet(*ALWAYS, server("web02", "role: web"), first, second, now=AFTER), at=AFTER)
    ends = WindowEnds(make_clock())
    assert end_windows(here.root, ends, AFTER) == ((), OVER)
    assert end_windows(here.root, ends, OVER) == (("web01",), later)
    assert end_windows(here.root, ends, later) == (("web02",), None)


def test_a_window_that_could_not_be_ended_ends_with_the_next_try(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = WindowEnds(make_clock())
    end_windows(here.root, ends, AFTER)

    def full(self: DurableDirectory, path: str, *_: object, **__: object) -> None:
        raise PublishError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DurableDirectory, "stage", full)
        for _ in range(2):
            with pytest.raises(PublishError):
                end_windows(here.root, ends, OVER)
    assert end_windows(here.root, ends, OVER) == (("web01",), None)


def test_another_tree_in_its_place_is_detected(here: Site) -> None:
    ends = WindowEnds(lambda: 0.0)  # reading all states takes no time, so they are read each time
    assert end_windows(here.root, ends, OVER) == (("web01",), None)
    here.publish(plan_fleet(*ALWAYS, REPAIR, now=AFTER), commit="2", at=AFTER)
    assert end_windows(here.root, ends, OVER) == (("web01",), None)


def test_all_states_are_read_again_soon_if_one_was_replaced_and_rarely_otherwise(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    ends = WindowEnds(lambda: now_s)

    def slow(self: DurableDirectory, path: str) -> list[str]:
        nonlocal now_s
        now_s += 1
        return names(self, path)

    names = DurableDirectory.list_names
    monkeypatch.setattr(DurableDirectory, "list_names", slow)
    end_windows(here.root, ends, AFTER)
    assert now_s == 1
    now_s += 199
    assert not ends.is_due(here.root, AFTER)
    here.publish(plan_fleet(*ALWAYS, now=AFTER), commit="2", at=AFTER)
    assert ends.is_due(here.root, AFTER), "20 times as long as reading took is over"
    assert end_windows(here.root, ends, AFTER) == ((), None), "the window was cancelled"
    now_s += 199.5
    assert not ends.is_due(here.root, AFTER)
    now_s += 0.5
    assert ends.is_due(here.root, AFTER), "a change that shows in no time of the folder"


@pytest.mark.parametrize("is_first", [True, False], ids=["all states are read", "one server is due after the other"])
@pytest.mark.parametrize("is_third_server", [False, True], ids=["at the third file", "at the third server"])
def test_a_failure_halfway_forgets_no_server_and_reads_no_other_state_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_third_server: bool, is_first: bool
) -> None:
    here, names = Site(tmp_path / "out"), [f"web{number:02}" for number in range(1, 6)]
    later = maintenance("later", "20T22:00 21T06:00", select="{servers: [web04, web05]}")
    repair = maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01, web02, web03]}")
    servers = [server(name, "role: web") for name in names[1:]]
    here.publish(plan_fleet(*ALWAYS, *servers, repair, later, now=AFTER), at=AFTER)
    entry = f"boot/v1/boot/{make_mac('web03').replace(':', '-')}/boot.ipxe"
    ends, place, done = WindowEnds(make_clock()), DurableDirectory.place, count(1)
    if not is_first:
        end_windows(here.root, ends, AFTER)

    def full(self: DurableDirectory, path: str) -> None:
        if (path == entry) if is_third_server else (next(done) >= 3):
            raise PublishError("no space left on device")
        place(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(DurableDirectory, "place", full)
        with pytest.raises(WindowEndError) as caught:
            end_windows(here.root, ends, OVER)
    assert caught.value.servers == (("web01", "web02", "web03") if is_third_server else ("web01",))
    assert ends.is_due(here.root, OVER)
    read, remaining = record_calls(monkeypatch, "read"), names[2:3] if is_third_server else names[:3]
    assert end_windows(here.root, ends, OVER) == (tuple(remaining), at("21T06:00"))
    assert [path for path in read if path.startswith("ops/servers")] == [f"ops/servers/{n}.json" for n in remaining]
    assert not ends.is_due(here.root, OVER)
    assert end_windows(here.root, ends, at("21T06:00")).servers == ("web04", "web05"), "each server once"


# Failures of some servers


@pytest.fixture
def full_site(tmp_path: Path) -> Iterator[Site]:
    """Yield a tree with three servers in a window, on a disk without a free block."""
    with small_disk(tmp_path, size="4m") as disk:
        here = Site(disk / "out")
        servers = [server(name, "role: web") for name in ("web02", "web03")]
        here.publish(plan_fleet(*ALWAYS, *servers, REPAIR, now=AFTER), at=AFTER)
        fill(disk / "filler")
        yield here


def test_every_window_ends_on_a_full_disk(full_site: Site) -> None:
    ends = WindowEnds()
    assert end_windows(full_site.root, ends, OVER) == (("web01", "web02", "web03"), None)
    assert all("boots its local disk" in read_boot(full_site, path) for path in LOOKUPS)
    assert not ends.is_due(full_site.root, OVER)
    assert find_temporary_files(full_site) == []


def test_a_full_disk_without_a_reserve_keeps_whole_files_and_the_windows_end_with_a_few_free_blocks(
    full_site: Site,
) -> None:
    """An earlier version of gitboot made the tree, or another program took the space of the reserve."""
    for path in find_reserve(full_site.root):
        path.unlink()
    filler = full_site.root.parent / "filler"
    fill(filler.with_name("rest"))
    before, ends = read_tree(full_site), WindowEnds()
    with pytest.raises(WindowEndError, match="free some space") as caught:
        end_windows(full_site.root, ends, OVER)
    assert caught.value.servers == () and read_tree(full_site) == before and find_temporary_files(full_site) == []
    os.truncate(filler, filler.stat().st_size - 8 * 4096)
    assert end_windows(full_site.root, ends, OVER) == (("web01", "web02", "web03"), None)
    assert all("boots its local disk" in read_boot(full_site, path) for path in LOOKUPS)


@pytest.mark.parametrize("size_bytes", [200_000, 1_000_000])
def test_the_largest_user_data_of_a_policy_replaces_that_of_a_window_on_a_full_disk(
    tmp_path: Path, size_bytes: int
) -> None:
    """The old files of the window do not make enough room for the new files."""
    policy_text = TEMPLATES["t"].replace("}}", '}, "passwd": {"users": [{"name": "%s"}]}}' % ("a" * size_bytes))
    live, templates = make_live_fleet(policy_text)
    servers = [server(name, "role: web") for name in ("web02", "web03")] if size_bytes < 500_000 else []
    with small_disk(tmp_path, size="8m") as disk:
        here = Site(disk / "out")
        here.publish(plan_fleet(*live, *servers, REPAIR, now=AFTER, templates=templates), at=AFTER)
        fill(disk / "filler")
        assert len(end_windows_now(here, OVER)) == 1 + len(servers)
        assert find_window_scripts(here) == [] and policy_text in (here.root / IGNITION.build_path(UUID)).read_text()


def test_a_second_window_ends_on_a_full_disk(full_site: Site) -> None:
    end_windows_now(full_site, OVER)
    (full_site.root.parent / "filler").unlink()
    again = maintenance("again", "21T05:00 21T08:00")
    servers = [server(name, "role: web") for name in ("web02", "web03")]
    full_site.publish(plan_fleet(*ALWAYS, *servers, again, now=at("21T06:00")), commit="2", at=at("21T06:00"))
    fill(full_site.root.parent / "filler")
    assert end_windows_now(full_site, at("21T08:00")) == ("web01", "web02", "web03")


def test_every_window_ends_on_a_full_disk_if_the_reserve_belongs_to_another_user(full_site: Site) -> None:
    """For example, root has run `gitboot run --once`."""
    with closing(DurableDirectory(full_site.root)) as disk:
        for path in (full_site.root, *full_site.root.rglob("*")):
            os.chown(path, 1234, -1)
        for path in find_reserve(full_site.root):
            os.chown(path, 0, -1)
        os.seteuid(1234)
        try:
            assert WindowEnds().end(disk, OVER, OVER).servers == ("web01", "web02", "web03")
        finally:
            os.seteuid(0)


def test_a_reserve_that_cannot_be_used_does_not_hide_that_the_disk_is_full(
    full_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, remove = (
        {str(path.relative_to(full_site.root)) for path in find_reserve(full_site.root)},
        DurableDirectory.remove,
    )

    def fail(self: DurableDirectory, path: str, *_: object) -> None:
        if path in reserve:
            raise PublishError("read-only file system")
        remove(self, path)

    monkeypatch.setattr(DurableDirectory, "remove", fail)
    monkeypatch.setattr(DurableDirectory, "reserve_space", fail)
    with pytest.raises(WindowEndError, match="free some space"):
        end_windows(full_site.root, WindowEnds(), OVER)


def test_the_rest_of_the_reserve_is_made_if_one_of_its_files_cannot_be(here: Site) -> None:
    first, *others = sorted(find_reserve(here.root))
    for path in (first, *others):
        path.unlink()
    first.mkdir()
    with closing(DurableDirectory(here.root)) as disk:
        fill_reserve(disk)
    assert sorted(find_reserve(here.root)) == [first, *others]


def test_every_window_ends_on_a_disk_without_a_free_inode(tmp_path: Path) -> None:
    with small_disk(tmp_path, size="4m") as disk:
        here = Site(disk / "out")
        here.publish(plan_fleet(*ALWAYS, server("web02", "role: web"), REPAIR, now=AFTER), at=AFTER)
        space = os.statvfs(disk)
        used_inodes = space.f_files - space.f_ffree
        subprocess.run(["mount", "-o", f"remount,nr_inodes={used_inodes}", str(disk)], check=True)
        assert os.statvfs(disk).f_ffree == 0 < os.statvfs(disk).f_bfree
        assert end_windows_now(here, OVER) == ("web01", "web02")


def test_a_sparse_copy_of_the_tree_still_reserves_the_space(here: Site, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", "--sparse=always", here.root, tmp_path / "copy"], check=True)
    assert sum(path.stat().st_blocks * 512 for path in find_reserve(tmp_path / "copy")) >= 256 * 1024


@pytest.mark.parametrize("method", ["read", "stage"])
def test_a_failure_of_one_server_keeps_no_other_window_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    here, act, mac = Site(tmp_path / "out"), getattr(DurableDirectory, method), make_mac("web02").replace(":", "-")
    servers = [server(name, "role: web") for name in ("web02", "web03")]
    here.publish(plan_fleet(*ALWAYS, *servers, REPAIR, now=AFTER), at=AFTER)

    def fail(self: DurableDirectory, path: str, *more: object, **options: object) -> object:
        if path == "ops/servers/web02.json" or mac in path:
            raise PublishError("input/output error")
        return act(self, path, *more, **options)

    ends = WindowEnds(make_clock())
    with monkeypatch.context() as patch:
        patch.setattr(DurableDirectory, method, fail)
        with pytest.raises(WindowEndError) as caught:
            end_windows(here.root, ends, OVER)
        changed_servers = ("web01", "web03") if method == "read" else ("web01", "web02", "web03")
        assert caught.value.servers == changed_servers, "web02 has files below other paths"
        with pytest.raises(WindowEndError) as caught:
            end_windows(here.root, ends, OVER)
        assert caught.value.servers == (), "each server once"
    assert end_windows(here.root, ends, OVER) == (("web02",), None)


def test_one_server_that_fails_does_not_sync_every_other_server_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, names = Site(tmp_path / "out"), [f"web{number:02}" for number in range(2, 33)]
    here.publish(plan_fleet(*ALWAYS, *(server(name, "role: web") for name in names), REPAIR, now=AFTER), at=AFTER)
    (here.root / staging_path(f"boot/{LOOKUPS[0].removeprefix('/')}")).mkdir()
    sync, number_of_syncs = DurableDirectory.sync, count()

    def count_call(self: DurableDirectory) -> None:
        next(number_of_syncs)
        sync(self)

    monkeypatch.setattr(DurableDirectory, "sync", count_call)
    with pytest.raises(WindowEndError) as caught:
        end_windows(here.root, WindowEnds(), OVER)
    assert set(caught.value.servers) >= set(names)
    assert next(number_of_syncs) < len(names)


@contextmanager
def make_path_fail(monkeypatch: pytest.MonkeyPatch, method: str, failing: str) -> Iterator[None]:
    """Let a method of `DurableDirectory` fail for one path."""
    act = getattr(DurableDirectory, method)

    def fail(self: DurableDirectory, path: str, *more: object, **options: object) -> None:
        if path == failing:
            raise PublishError(f"{path}: operation not permitted")
        act(self, path, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DurableDirectory, method, fail)
        yield


@pytest.mark.parametrize("method", ["stage", "place"])
@pytest.mark.parametrize("position", [0, -1], ids=["the first file", "the last file"])
def test_a_file_that_cannot_be_replaced_keeps_no_other_boot_script_of_the_server_in_the_window(
    here: Site, monkeypatch: pytest.MonkeyPatch, position: int, method: str
) -> None:
    window = [str(path.relative_to(here.root)) for path in find_window_scripts(here)]
    failing = window[position]
    ends = WindowEnds()
    with make_path_fail(monkeypatch, method, failing), pytest.raises(WindowEndError, match=failing) as caught:
        end_windows(here.root, ends, OVER)
    assert caught.value.servers == ("web01",)
    assert find_window_scripts(here) == [here.root / failing]
    assert find_temporary_files(here) == []
    assert end_windows(here.root, ends, OVER) == (("web01",), None)
    assert find_window_scripts(here) == []


def test_a_file_that_can_never_be_removed_is_no_change_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reported change causes another reconcile, and another try."""
    here, data = Site(tmp_path / "out"), IGNITION.build_path(UUID)
    documents, templates = make_live_fleet("")
    documents[3] = profile("web", "live-1")
    here.publish(plan_fleet(*documents, REPAIR, now=AFTER, templates=templates), at=AFTER)
    assert (here.root / data).exists()
    ends = WindowEnds()
    with make_path_fail(monkeypatch, "remove", data):
        for servers in (("web01",), (), ()):
            with pytest.raises(WindowEndError, match=data) as caught:
                end_windows(here.root, ends, OVER)
            assert caught.value.servers == servers
    assert end_windows(here.root, ends, OVER) == (("web01",), None)
    assert not (here.root / data).exists()


def make_live_fleet(policy_text: str) -> tuple[list[str], dict[str, str]]:
    """Return a fleet whose policy and whose window boot an image with user data, and the templates of the user data."""
    templates = {"web": policy_text, "repair": '{"ignition": {"version": "3.4.0"}, "passwd": {}}'}
    return [
        *ALWAYS[:2],
        image("live-1", "userData: Ignition/3.4, writesDisk: false", "kernel, initrd"),
        *(profile(name, "live-1", f"userData: {{format: Ignition/3.4, template: {name}}}") for name in templates),
        policy("web"),
    ], templates


@pytest.mark.parametrize("method", ["stage", "place"])
def test_no_script_of_a_window_finds_the_user_data_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    here = Site(tmp_path / "out")
    live, templates = make_live_fleet(TEMPLATES["t"])
    here.publish(plan_fleet(*live, REPAIR, now=AFTER, templates=templates), at=AFTER)
    data = here.root / IGNITION.build_path(UUID)
    window_data, scripts = data.read_bytes(), find_window_scripts(here)
    failing = str(scripts[-1].relative_to(here.root))

    ends = WindowEnds()
    with make_path_fail(monkeypatch, method, failing), pytest.raises(WindowEndError, match=failing):
        end_windows(here.root, ends, OVER)
    assert data.read_bytes() == window_data
    if method == "stage":
        assert find_window_scripts(here) == scripts, "the scripts of the policy must not find this user data either"
    assert end_windows(here.root, ends, OVER) == (("web01",), None)
    assert find_window_scripts(here) == [] and data.read_bytes() != window_data


def find_window_scripts(here: Site) -> list[Path]:
    scripts = (path for path in sorted(here.root.glob("boot/**/*")) if path.is_file() and "/o/" not in str(path))
    return [path for path in scripts if "Maintenance/repair" in path.read_text()]


def test_temporary_files_that_a_killed_process_left_do_not_prevent_the_end(here: Site) -> None:
    for path in LOOKUPS:
        (here.root / staging_path(f"boot/{path.removeprefix('/')}")).write_text("half of a fi")
    assert end_windows_now(here, OVER) == ("web01",)
    assert all("boots its local disk" in read_boot(here, path) for path in LOOKUPS)
    assert find_temporary_files(here) == []


def find_temporary_files(here: Site) -> list[Path]:
    return list(here.root.rglob(".gitboot-*.tmp"))


def cut_offset(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with a time of a window without an offset."""
    text = json.dumps(state, separators=(",", ":"))
    without_offset: dict[str, Any] = json.loads(re.sub(r'("since":"[^"]+)Z"', r'\1"', text))
    return without_offset


MALFORMED_STATES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a time without an offset": cut_offset,
    "contents that are no text": lambda state: {**state, "contents": dict.fromkeys(state["contents"])},
    "no contents": lambda state: {**state, "contents": None},
}


@pytest.mark.parametrize("spoil", MALFORMED_STATES)
def test_a_malformed_state_keeps_no_window_of_another_server_open(here: Site, spoil: str) -> None:
    state = here.root / "ops/servers/web01.json"
    malformed = json.dumps(MALFORMED_STATES[spoil](json.loads(state.read_bytes())), separators=(",", ":"))
    (state.parent / "spoilt.json").write_text(malformed)
    assert end_windows_now(here, OVER) == ("web01",)
    assert "boots its local disk" in read_boot(here)


def test_an_impossible_path_in_a_state_keeps_no_window_of_another_server_open(here: Site) -> None:
    file = here.root / "ops/servers/web01.json"
    state = json.loads(file.read_bytes())
    state["paths"] = {f"{path}\0": versions for path, versions in state["paths"].items()}
    (file.parent / "spoilt.json").write_text(json.dumps(state, separators=(",", ":")))
    with pytest.raises(WindowEndError, match="is not a valid path") as error:
        end_windows_now(here, OVER)
    assert (error.value.servers, "boots its local disk" in read_boot(here)) == (("web01",), True)
