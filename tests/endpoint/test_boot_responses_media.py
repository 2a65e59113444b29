"""The medium with a server's user data: given by an endpoint as its user data is, and read in parts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from gitboot.controller.bmcs.desired_state import media_urls
from gitboot.publish.manifest import MANIFEST
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.provisioning_record import Record
from tests.helpers.endpoints import BEFORE, Fleet, Site, get, planned, site
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import program

KEYS: Final = TokenKeys(b"a key of this test")
REPORT: Final = "#cloud-config\nphone_home: {url: '{{ urls.provisioned }}'}\n"


def _fleet(format: str = "CloudInit", text: str = REPORT, record: Record | None = None) -> Fleet:
    documents = (
        fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"),
        server("web01", spec="provision: 1"),
        image("flatcar-1", f"configFrom: Medium, userData: {format}", "iso"),
        profile("web", "flatcar-1", f"userData: {{format: {format}, template: t}}", method="VirtualMedia"),
        policy("web", often="Once"),
    )
    return planned(*documents, templates={"t": text}, keys=KEYS, records={"web01": record or Record()})


def _path(found: Fleet) -> str:
    _, url = media_urls(found.servers["web01"].plan, KEYS)
    assert url is not None
    return url.removeprefix("http://boot.test")


@pytest.fixture(scope="module")
def here() -> Iterator[tuple[Site, str]]:
    found = _fleet()
    with site(found) as made:
        yield made, _path(found)


def _files(content: bytes, folder: Path) -> dict[str, str]:
    made, out = folder / "fetched.iso", folder / "out"
    made.write_bytes(content)
    command = [program("xorriso", "xorriso"), "-osirrox", "on", "-indev", f"stdio:{made}", "-extract", "/", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return {str(each.relative_to(out)): each.read_text() for each in out.rglob("*") if each.is_file()}


def test_a_bmc_is_given_the_medium_and_that_says_nothing_of_the_machine(here: tuple[Site, str], tmp_path: Path) -> None:
    made, path = here
    with made.serve() as url:
        found = get(url + path)
        assert (found.status_code, found.headers["content-type"]) == (200, "application/vnd.efi-iso")
        report = _files(found.content, tmp_path)["user-data"].partition("http://boot.test")[2].partition("'")[0]
        assert made.observed() == []
        assert get(url + report).status_code == 204, "the system on it reports by a token that is known"
        assert [each.path for each in made.observed()] == [f"boot{report}"]
    assert sorted(_files(found.content, tmp_path)) == ["meta-data", "user-data", "vendor-data"]


@pytest.mark.parametrize(
    ("asked", "status", "which"),
    [
        ("bytes=0-", 206, slice(0, None)),
        ("bytes=32768-34815", 206, slice(32768, 34816)),
        ("bytes=2048-99999999", 206, slice(2048, None)),
        ("bytes=-2048", 206, slice(-2048, None)),
        ("bytes=99999999-", 416, slice(0, 0)),
        ("bytes=0-1, 4-5", 200, slice(0, None)),
        ("sectors=1-2", 200, slice(0, None)),
    ],
)
def test_it_is_read_in_parts(here: tuple[Site, str], asked: str, status: int, which: slice[int | None]) -> None:
    made, path = here
    with made.serve() as url:
        whole = get(url + path)
        part = get(url + path, headers={"range": asked})
    assert whole.headers["accept-ranges"] == "bytes"
    assert (part.status_code, part.content) == (status, whole.content[which])
    if status == 206:
        start, end, _ = which.indices(len(whole.content))
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole.content)}"


def test_nobody_finds_it_by_what_git_says(here: tuple[Site, str]) -> None:
    """As user data of a boot that ends: by a key that the instance alone has."""
    made, path = here
    state = _fleet().servers["web01"]
    assert state.plan is not None and state.plan.data is not None
    assert state.plan.data not in path and "/o/" not in path
    with made.serve() as url:
        assert get(f"{url}/media/{state.plan.uuid}/{state.plan.data}/user-data.iso").status_code == 404


def test_it_is_gone_with_the_user_data() -> None:
    done = Record(provision=1, image="flatcar-1", evidence="Reported", provisioned_at=BEFORE - timedelta(minutes=1))
    found = _fleet()
    assert [path for path in found.boot_files if path.endswith(".iso")] == [_path(found)]
    with site(found) as made, made.serve() as url:
        assert get(url + _path(found)).status_code == 200
        after = _fleet(record=done)
        made.publish(after)
        assert (made.root / MANIFEST).exists()
        assert [path for path, turns in after.servers["web01"].published.paths.items() if "/media/" in path] == []
        assert get(url + _path(found)).status_code == 404


@pytest.mark.parametrize(
    ("format", "text", "names"),
    [
        ("Kickstart", "text\n", ["ks.cfg"]),
        ("AutoYaST", '<profile xmlns="http://www.suse.com/1.0/yast2ns"/>', ["autoinst.xml"]),
        ("Combustion", "#!/bin/bash\n", ["combustion/script"]),
        ("Ignition/3.4", '{"ignition": {"version": "3.4.0"}}', ["ignition/config.ign"]),
        ("Talos", "version: v1alpha1\nmachine:\n  type: worker\n", ["meta-data", "user-data"]),
    ],
)
def test_each_format_is_where_its_systems_look(tmp_path: Path, format: str, text: str, names: list[str]) -> None:
    found = _fleet(format, text)
    files = _files(found.boot_files[_path(found)].content, tmp_path)
    assert sorted(files) == names and text in files.values()
