"""The operators' page: who is given it, what it may run, and what a real browser makes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from gitboot.serve.operatorspage import PAGE
from gitboot.serve.pages import MOST
from tests import plain
from tests.fleets import server
from tests.serving import ALWAYS, Site, get, planned, site

FILES = ("", "page.css", "page.js")
HOSTILE = "<img src=x onerror=\"document.title='run'\">"

browsers = pytest.mark.skipif(
    shutil.which("chromium") is None and "CI" not in os.environ, reason="needs chromium: scripts/install-packages"
)


@pytest.fixture(scope="module")
def made() -> Iterator[Site]:
    with site() as found:
        found.say(
            {
                "at": "2026-11-20T20:59:00Z",
                "attempted": {
                    "commit": "4f2ab9917c03d5e1",
                    "problems": [],
                    "held": {"digest": "8c1f27ab", "guards": ["maxReinstalls"]},
                },
                "applied": {"commit": "c0ffee"},
                "conditions": [
                    *(
                        {"type": f"Bmc/{name}", "status": False, "reason": "Stalled", "message": "none", "remedy": "do"}
                        for name in ("web01", "web02")
                    ),
                    {"type": "BmcReached", "status": False, "reason": "Silent", "message": HOSTILE, "remedy": "look"},
                ],
            }
        )
        yield found


@pytest.fixture(scope="module")
def url(made: Site) -> Iterator[str]:
    with made.serve() as found:
        yield found


def shown(address: str, folder: Path) -> str:
    """The document as it is once its script has asked for all that it wants."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000")
    command = ("chromium", *options, f"--user-data-dir={folder}", "--dump-dom", address)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_all_that_the_page_is_made_of_is_given_to_operators_alone(made: Site, url: str) -> None:
    assert [get(f"{url}{PAGE}{name}").status_code for name in FILES] == [200, 200, 200]
    with made.serve(operators=[ip_network("192.0.2.1/32")]) as elsewhere:
        assert [get(f"{elsewhere}{PAGE}{name}").status_code for name in FILES] == [404, 404, 404]


def test_nothing_runs_on_the_page_but_its_own_files(url: str) -> None:
    for name in FILES:
        answer = get(f"{url}{PAGE}{name}")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy and answer.headers["x-content-type-options"] == "nosniff"
    markup = get(f"{url}{PAGE}").text
    assert set(re.findall(r'(?:src|href)="([^"#]+)', markup)) == {"data:,", "page.css", "page.js"}
    assert not re.search(r"<style|<script>| style=| on[a-z]+=", markup)


@pytest.mark.parametrize("path", ["app.py", "..%2fapp.py", "../app.py", "index.html/", "x"])
def test_the_page_has_nothing_else_beside_it(url: str, path: str) -> None:
    assert get(f"{url}{PAGE}{path}").status_code == 404


def test_the_page_is_only_read(url: str) -> None:
    assert plain.post(f"{url}{PAGE}").status_code == 405


@browsers
def test_a_browser_shows_the_fleet_what_is_held_and_markup_as_text(url: str, tmp_path: Path) -> None:
    found = shown(f"{url}{PAGE}", tmp_path)
    assert 'href="#/servers/web01"' in found and "1 of 1 servers" in found
    assert "commit 4f2ab9917c03, by maxReinstalls" in found and "Digest 8c1f27ab" in found
    assert found.index("BmcReached: Silent") < found.index("2 × Bmc: Stalled") < found.index("web01, web02")
    assert "&lt;img src=x onerror=" in found and "<img" not in found and "<title>gitboot</title>" in found


@browsers
def test_a_browser_shows_one_server(url: str, tmp_path: Path) -> None:
    found = shown(f"{url}{PAGE}#/servers/web01", tmp_path)
    assert "<title>web01 – gitboot</title>" in found and "<dt>Because</dt>" in found and "decisionDigest" in found


@browsers
def test_a_server_that_there_is_not_is_said_to_be_none(url: str, tmp_path: Path) -> None:
    assert "the endpoint answers 404" in shown(f"{url}{PAGE}#/servers/nobody", tmp_path)


@browsers
def test_a_browser_reads_all_pages_and_holds_the_rows_that_are_seen(tmp_path: Path) -> None:
    more = [server(f"web{number:03}", "role: web") for number in range(2, MOST + 2)]
    with site(planned(*ALWAYS, *more)) as large, large.serve() as url:
        found = shown(f"{url}{PAGE}", tmp_path)
    assert f"{MOST + 1} of {MOST + 1} servers" in found
    assert 10 < found.count("aria-rowindex=") < 100 and f'aria-rowcount="{MOST + 2}"' in found
