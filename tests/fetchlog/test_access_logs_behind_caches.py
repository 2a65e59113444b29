"""Checks and monitors that reach a mirror or an endpoint through a cache: nginx, Varnish and Squid, as installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gitboot.fetchlog.spool import take
from tests.helpers import http_peers
from tests.helpers.endpoints import ENTRY, IPXE, LOADER, MAC, UUID, Site, eventually, planned
from tests.helpers.fleets import SEED, fleet, mac_of, policy, server
from tests.helpers.forked_commands import captured
from tests.helpers.mirrors import CACHES, TURN_HEAD_INTO_GET, Mirror, caddy, nginx

# Each client counts that reaches the endpoint, so that only what a check says of itself tells it from a machine.
ONCE = (
    fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported, clients: [127.0.0.0/8]}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    *SEED[1:],
)
INSTALL = "(Network)"
INSTALL_ENTRY = f"/v1/boot/{mac_of('new01').replace(':', '-')}/boot.ipxe"
BY_UUID = f"/ipxe/{UUID}"
MONITORS = {  # as they name themselves, or do not
    "a tool": "curl/8.5.0",
    "a monitor without a name": "",
    "a monitor with a name of its own": "site-monitor/3",
}


@pytest.fixture(params=CACHES)
def cache(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site/output").mkdir(parents=True)
    made = Site(tmp_path / "site/output")
    made.publish(planned(*ONCE))
    return made


def verified(*arguments: object) -> dict[str, Any]:
    """Return what `gitboot verify-mirror` reports, with findings or without."""
    done = captured("verify-mirror", *arguments, "-o", "json")
    assert done.returncode in (0, 8), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def head(url: str, agent: str) -> None:
    http_peers.head(url, headers={"user-agent": agent})


# An endpoint


@pytest.mark.parametrize("more", [(), ("--read-entries",)], ids=["by default", "reading entries"])
def test_finding_m3_a_check_through_a_cache_uses_up_no_boot_of_an_endpoint(
    site: Site, tmp_path: Path, cache: str, more: tuple[str, ...]
) -> None:
    with site.serve() as endpoint, CACHES[cache](endpoint, tmp_path / cache) as url:
        found = verified("--tree", site.root, url, *more)
        assert (INSTALL_ENTRY[1:] in found["unchecked"]) == (more == ())
        assert [each for each in site.observed() if each.is_evidence] == []
        assert INSTALL in http_peers.get(f"{url}{INSTALL_ENTRY}", headers=LOADER).text, (
            "the machine is given its installation"
        )
        assert [each.path for each in site.observed() if each.is_evidence] == [f"boot{INSTALL_ENTRY}"]


# A mirror, and its log


@pytest.fixture(params=["nginx", "caddy"])
def mirror(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Iterator[Mirror]:
    """A mirror by the published configuration; its log is evidence."""
    (tmp_path / "mirror").mkdir()
    running = nginx if request.param == "nginx" else caddy
    with running(site.root / "boot", site.root / "ops/serve", tmp_path / "mirror") as mirror:
        yield mirror


def read_log(mirror: Mirror, spool: Path) -> tuple[list[str], dict[str, int]]:
    """Return the paths of the log's evidence, and the number of other lines by reason or as `unclear`."""
    http_peers.get(f"{mirror.url}/last")
    assert eventually(lambda: b"/last" in mirror.log.read_bytes())
    summary = json.loads(captured("read-access-logs", mirror.log, "--spool", spool, "-o", "json").stdout)
    observations = take(spool, {}).observations
    found = [each.path for each in observations if not each.is_open_intent]
    assert (summary["observed"], summary["unclear"]) == (len(found), len(observations) - len(found))
    assert summary["unknown"] == 0
    return found, {**summary["ignored"], "unclear": summary["unclear"]}


@pytest.mark.parametrize("more", [(), ("--read-entries",)], ids=["by default", "reading entries"])
def test_finding_m3_a_check_through_a_cache_is_no_evidence_in_the_log_of_a_mirror(
    site: Site, mirror: Mirror, tmp_path: Path, cache: str, more: tuple[str, ...]
) -> None:
    with CACHES[cache](mirror.url, tmp_path / cache) as url:
        found = verified("--tree", site.root, url, *more)
        assert {ENTRY[1:], BY_UUID[1:]} <= {*found["unchecked"]} or more
        observed, ignored = read_log(mirror, tmp_path / "spool")
        assert observed == []
        assert ignored.get("a check by gitboot", 0) > 0
        http_peers.get(f"{url}{ENTRY}", headers=LOADER)
        assert read_log(mirror, tmp_path / "spool")[0] == [f"boot{ENTRY}"]


@pytest.mark.parametrize("agent", MONITORS.values(), ids=MONITORS)
def test_finding_m3_a_monitor_that_a_cache_sends_a_get_for_is_no_evidence(
    mirror: Mirror, tmp_path: Path, cache: str, agent: str
) -> None:
    with CACHES[cache](mirror.url, tmp_path / cache) as url:
        for path in (ENTRY, BY_UUID, f"/v1/boot/{MAC}/grub.cfg"):
            head(f"{url}{path}", agent)
            head(f"{url}{path.replace(MAC, '52-54-00-00-00-99')}", agent)
        observed, ignored = read_log(mirror, tmp_path / "spool")
        assert observed == []
        turned = ignored.get("by a tool or a monitor", 0) if agent == MONITORS["a tool"] else ignored["unclear"]
        assert (turned > 0) == (cache in TURN_HEAD_INTO_GET), "the cache has sent a GET, which the log has"


@pytest.mark.parametrize("agent", [*MONITORS.values(), IPXE], ids=[*MONITORS, "a loader"])
def test_finding_m3_a_bare_get_of_a_boot_script_is_no_evidence(mirror: Mirror, tmp_path: Path, agent: str) -> None:
    http_peers.get(f"{mirror.url}{ENTRY}", headers={"user-agent": agent})
    observed, _ = read_log(mirror, tmp_path / "spool")
    assert observed == ([f"boot{ENTRY}"] if agent == IPXE else [])
