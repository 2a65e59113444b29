"""tests/boots/boots.md has a row for every boot test, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.boots.page import parse_key, read_rows

ROOT = Path(__file__).parents[2]
# Programs that read the data of a machine, loaders whose kernel is never sent, a client of DHCP servers, and commands.
NO_BOOT_OF_A_MACHINE = (
    "test_scripts.py",
    "test_first_boots.py",
    "test_asking.py",
    "test_dhcp_answers.py",
    "test_commands_of_pages.py",
)


def _collected(request: pytest.FixtureRequest) -> set[str]:
    """Return every boot test, from this run if it has collected all tests."""
    config = request.config
    chosen = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("deselect")
    if config.args == config.getini("testpaths") and not chosen:
        return {item.nodeid for item in request.session.items if item.path.parent.name == "boots"}
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "tests/boots"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line for line in collected.splitlines() if "::" in line}


def test_the_page_has_a_row_for_each_boot_and_no_other(request: pytest.FixtureRequest) -> None:
    tests = {parse_key(line) for line in _collected(request)}
    assert len(tests) > 20
    assert {row.key for row in read_rows()} == {key for key in tests if key[0] not in NO_BOOT_OF_A_MACHINE}


def test_every_row_shows_what_was_on_the_console() -> None:
    for row in read_rows():
        assert row.seconds > 0
        known = "BOOTED |inventory: sent|bad shim signature|Access Denied|Could not retrieve NBP"
        assert re.search(known, row.excerpt), row.words
