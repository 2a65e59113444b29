"""What 0.1.0 left, taken over whole: its state, its clone, its tree.

`upgrades/0.1.0.tar.xz` is what `gitboot run` of that version (commit dec10da) left of the fleet that its `init` makes,
with a second server: web01 had just fetched its entry, and was still given it for a minute; web02 had not.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.rack import Done, typed

LEFT: Final = Path(__file__).parent / "upgrades" / "0.1.0.tar.xz"
ENTRIES: Final = {name: f"boot/v1/boot/52-54-00-12-34-{mac}/boot.ipxe" for name, mac in (("web01", 56), ("web02", 57))}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    with tarfile.open(LEFT) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def once(left: Path) -> Done:
    places = ("--state", left / "state", "--out", left / "output", "--spool", left / "spool")
    return typed("run", left / "fleet.git", *places, "--once")


def installs(left: Path, server: str) -> bool:
    return "flatcar_production_pxe.vmlinuz" in (left / "output" / ENTRIES[server]).read_text()


def test_what_is_installed_stays_and_what_is_not_is_offered(left: Path) -> None:
    assert (installs(left, "web01"), installs(left, "web02")) == (True, True)
    done = once(left)
    assert done.code == 0, done.err
    assert (installs(left, "web01"), installs(left, "web02")) == (False, True)
    shown = typed("records", "show", "--state", left / "state", "-o", "json").json["items"]
    assert {each["server"]: each["record"]["provision"] for each in shown} == {"web01": 1, "web02": None}


def test_a_second_run_finds_nothing_to_do(left: Path) -> None:
    once(left)
    before = {path: path.read_bytes() for path in sorted((left / "output" / "boot").rglob("*")) if path.is_file()}
    assert {
        path: path.read_bytes() for path in sorted((left / "output" / "boot").rglob("*")) if path.is_file()
    } == before
