"""A published tree leaves windows that are over, by what it has itself of each server."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gitboot.publish.directory import Directory
from gitboot.publish.ended_windows import end_windows
from gitboot.render.state import server_of
from tests.fleets import at, image, maintenance
from tests.serving import AFTER, ALWAYS, BEFORE, LOOKUPS, ONCE, REPAIR, Site, planned

OVER = at("21T04:00")
WINDOW_BOOTS, DISK = "memtest-7", "exit"


@pytest.fixture
def here(tmp_path: Path) -> Site:
    made = Site(tmp_path / "out")
    made.publish(planned(*ALWAYS, REPAIR, now=AFTER), at=AFTER)
    return made


def boots(here: Site, path: str = LOOKUPS[0]) -> str:
    return (here.root / "boot" / path.removeprefix("/")).read_text()


def tree(here: Site) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(here.root.rglob("*")) if path.is_file() and path.name != "lock"}


def test_every_lookup_boots_the_disk_once_a_window_is_over_if_the_policy_writes_the_disk(here: Site) -> None:
    assert all(WINDOW_BOOTS in boots(here, path) for path in LOOKUPS)
    assert end_windows(here.root, OVER) == ("web01",)
    assert all("boots its local disk" in boots(here, path) for path in LOOKUPS)
    assert end_windows(here.root, OVER) == ()


def test_every_lookup_boots_what_the_policy_says_if_that_writes_no_disk(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    live = list(ALWAYS)
    live[2] = image("flatcar-1", "userData: Ignition/3.4, writesDisk: false", "kernel, initrd, loader")
    here.publish(planned(*live, REPAIR, now=AFTER), at=AFTER)
    assert end_windows(here.root, OVER) == ("web01",)
    whole = planned(*live, REPAIR, now=OVER).boot_files
    assert [boots(here, path).encode() for path in LOOKUPS] == [whole[path].content for path in LOOKUPS]


def test_before_the_end_of_a_window_nothing_changes(here: Site) -> None:
    before = tree(here)
    assert end_windows(here.root, AFTER) == ()
    assert tree(here) == before


def test_no_window_is_opened(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(planned(*ALWAYS, REPAIR, now=BEFORE))
    before = tree(here)
    assert end_windows(here.root, AFTER) == ()
    assert tree(here) == before


def test_an_installation_that_follows_a_window_is_not_offered(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(planned(*ONCE, REPAIR, now=AFTER), at=AFTER)
    assert end_windows(here.root, OVER) == ("web01",)
    assert WINDOW_BOOTS not in boots(here) and "flatcar-1" not in boots(here)
    assert DISK in boots(here)


def test_the_next_window_is_not_opened_in_place_of_the_one_that_is_over(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    next_one = maintenance("next", "21T04:00 21T08:00")
    here.publish(planned(*ALWAYS, REPAIR, next_one, now=AFTER), at=AFTER)
    assert "Maintenance/repair" in boots(here)
    assert end_windows(here.root, OVER) == ("web01",)
    assert "boots its local disk" in boots(here), "a newer commit may have cancelled the next window"


def test_a_file_that_somebody_else_wrote_is_left_alone(here: Site) -> None:
    file = here.root / "boot" / LOOKUPS[0].removeprefix("/")
    file.write_text("#!ipxe\nexit\n")
    assert end_windows(here.root, OVER) == ("web01",)
    assert file.read_text() == "#!ipxe\nexit\n"


def test_a_state_that_is_damaged_ends_no_window_and_stops_no_other_server(tmp_path: Path) -> None:
    here = Site(tmp_path / "out")
    here.publish(planned(*ALWAYS, REPAIR, now=AFTER), at=AFTER)
    (here.root / "ops" / "servers" / "web00.json").write_text("{")
    assert server_of("ops/servers/web00.json") == "web00"
    assert end_windows(here.root, OVER) == ("web01",)


def test_who_publishes_meanwhile_is_not_disturbed(here: Site) -> None:
    before = tree(here)
    with Directory.open(here.root, ledger="test"):
        assert end_windows(here.root, OVER) == ()
    assert tree(here) == before


def test_without_a_tree_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert end_windows(tmp_path / "none", OVER) == ()
    assert not (tmp_path / "none").exists()


def test_the_files_keep_the_permissions_of_the_tree(here: Site) -> None:
    for folder, _, files in os.walk(here.root):
        Path(folder).chmod(0o750)
        for name in files:
            (Path(folder) / name).chmod(0o640)
    end_windows(here.root, OVER)
    modes = {stat.S_IMODE((here.root / "boot" / path.removeprefix("/")).stat().st_mode) for path in LOOKUPS}
    assert modes == {0o640}


def test_the_next_publication_publishes_the_server_anew(here: Site) -> None:
    end_windows(here.root, OVER)
    here.publish(planned(*ALWAYS, REPAIR, now=OVER), commit="2", at=OVER)
    whole = planned(*ALWAYS, REPAIR, now=OVER).boot_files
    assert all(boots(here, path).encode() == whole[path].content for path in LOOKUPS)
