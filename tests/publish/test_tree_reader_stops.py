"""The stop file: its format, and endpoints that apply it at their next request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.publish.tree_reader import STOP_FILE, StopReader, list_stop_folders, remove_stop_file, write_stop_file
from gitboot.resolve.provisioning_record import StopOrder
from tests.helpers import http_peers
from tests.helpers.endpoints import ALWAYS, ENTRY, LOOKUPS, ONCE, REPAIR, START, Site, get, plan_fleet, site
from tests.helpers.fleets import fleet

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
WRITING = StopOrder("ada", "smoke in fra1", everything=False)
ALL = StopOrder("ben", "all of it", everything=True)
GIVEN = "(Network)"
DISK = "boots its local disk"
OUTPUTS = "baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux, uuid]"
PXELINUX = f"/pxelinux.cfg/01-{ENTRY.split('/')[3]}"


@pytest.fixture
def here() -> Iterator[Site]:
    with site(plan_fleet(*ONCE)) as made:
        yield made


def test_the_stop_file_that_stops_most_counts_and_changes_are_read(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    spool = tmp_path / "spool"
    spool.mkdir()
    words = StopReader(*list_stop_folders(tmp_path, spool))
    assert words.current is None
    write_stop_file(spool, WRITING, AT)
    assert words.current == (WRITING, AT)
    write_stop_file(tmp_path / "ops", ALL, AT)
    assert words.current == (ALL, AT)
    write_stop_file(tmp_path / "ops", WRITING, AT)
    remove_stop_file(spool)
    assert words.current == (WRITING, AT)
    remove_stop_file(tmp_path / "ops")
    remove_stop_file(tmp_path / "ops")
    assert words.current is None


LATEST = '{"who": "ada", "reason": "x", "everything": true, "at": "9999-12-31T23:59:59-14:00"}'
SURROGATE = r'{"who": "ada", "reason": "\ud800", "everything": true, "at": "2026-11-22T12:00:00Z"}'


@pytest.mark.parametrize("text", ["", "{", "{}", '{"who": "ada"}', "[" * 5000, "\0", LATEST, SURROGATE])
def test_a_malformed_stop_file_stops_install_boots(tmp_path: Path, text: str) -> None:
    (tmp_path / STOP_FILE).write_text(text)
    found = StopReader(tmp_path).current
    assert found is not None
    assert (found.order.everything, f"{tmp_path / STOP_FILE} cannot be read" in str(found.order)) == (False, True)


def test_every_user_who_can_read_the_tree_can_read_the_stop_file(tmp_path: Path) -> None:
    write_stop_file(tmp_path, WRITING, AT)
    assert (tmp_path / STOP_FILE).stat().st_mode & 0o777 == 0o644


# The effect at an endpoint


def wait_for_read(url: str) -> None:
    """Let an endpoint look around, as it does each second."""
    assert http_peers.get(f"{url}/api/v1/status").status_code == 200


def test_a_stop_withholds_install_boots_without_consuming_them(here: Site) -> None:
    with here.serve() as url:
        write_stop_file(here.root / "ops", WRITING, AT)
        for path in LOOKUPS:
            script = get(url + path).text
            assert "smoke in fra1 (Stopped)" in script and DISK in script
        assert 'gitboot_boots_withheld_total{reason="Stopped"} 3.0' in http_peers.get(f"{url}/metrics").text
        remove_stop_file(here.root / "ops")
        assert GIVEN in get(url + ENTRY).text


def test_a_stop_withholds_installs_for_every_boot_at_an_endpoint_without_a_fetch_log(here: Site) -> None:
    here.publish(plan_fleet(*ALWAYS), commit="2")
    with here.serve(records=False) as url:
        assert GIVEN in get(url + ENTRY).text
        write_stop_file(here.root / "ops", WRITING, AT)
        assert DISK in get(url + ENTRY).text


def test_boots_that_write_no_disk_are_served_unless_everything_is_stopped(here: Site) -> None:
    here.publish(plan_fleet(fleet(OUTPUTS), *ALWAYS[1:], REPAIR, now=START), commit="2", at=START)
    here.now = START
    with here.serve() as url:
        write_stop_file(here.root / "ops", WRITING, AT)
        for path in (*LOOKUPS, PXELINUX):
            assert "memtest-7" in get(url + path).text
        write_stop_file(here.root / "ops", ALL, AT)
        wait_for_read(url)
        for path in (*LOOKUPS, PXELINUX):
            script = get(url + path).text
            assert "all of it\n# The machine boots its local disk." in script and "memtest-7" not in script


@pytest.mark.parametrize("path", ["/unknown.ipxe", "/unknown.grub.cfg", "/pxelinux.cfg/default"])
def test_a_stop_of_everything_covers_unknown_machines(here: Site, path: str) -> None:
    boots = fleet(f"{OUTPUTS}, unknownServers: {{profile: repair}}")
    here.publish(plan_fleet(boots, *ONCE[1:]), commit="2")
    with here.serve() as url:
        assert "memtest-7" in get(url + path).text
        write_stop_file(here.root / "ops", ALL, AT)
        wait_for_read(url)
        assert "memtest-7" not in get(url + path).text
        assert "unknown machine: all boots from the network are stopped by ben: all of it" in get(url + path).text


def test_the_reason_of_a_stop_is_not_run_as_a_command(here: Site) -> None:
    write_stop_file(here.root / "ops", ALL._replace(reason="so\nboot http://evil"), AT)
    with here.serve() as url:
        for path in LOOKUPS:
            lines = get(url + path).text.splitlines()
            assert not [each for each in lines if each.startswith("boot ")]
            assert any("so?boot http://evil" in each and each.startswith("#") for each in lines)
