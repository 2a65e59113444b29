from __future__ import annotations

import json
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest

from gitboot.endpoint.access_control import LOOPBACK, client_address, membership
from gitboot.fetchlog.log_entries import SUFFIX, read_reports
from tests.endpoint.test_server_workers import served
from tests.helpers.cases import for_each
from tests.helpers.endpoints import LOADER, get, site
from tests.helpers.running_instance import eventually

PROXIES = membership((*LOOPBACK, ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")))


@for_each(
    ("peer", "forwarded", "expected"),
    [
        pytest.param("10.9.0.7", [], "10.9.0.7", id="a client itself"),
        pytest.param("10.9.0.7", ["127.0.0.1"], "10.9.0.7", id="a client that claims to be another"),
        pytest.param("10.1.0.1", [], "10.1.0.1", id="a proxy itself"),
        pytest.param("10.1.0.1", ["10.9.0.7"], "10.9.0.7", id="through a proxy"),
        pytest.param("10.1.0.1", ["10.9.0.7, 10.1.0.2"], "10.9.0.7", id="through two proxies"),
        pytest.param("10.1.0.1", ["10.9.0.7", "10.1.0.2"], "10.9.0.7", id="through two, in two headers"),
        pytest.param("127.0.0.1", ["127.0.0.1, 10.9.0.7"], "10.9.0.7", id="a claim made to a proxy"),
        pytest.param("127.0.0.1", ["10.9.0.8, 10.9.0.7"], "10.9.0.7", id="an untrusted proxy's word"),
        pytest.param("127.0.0.1", ["127.0.0.1"], "127.0.0.1", id="a client on the proxy's machine"),
        pytest.param("127.0.0.1", ["10.9.0.7,"], None, id="nothing where an address has to be"),
        pytest.param("127.0.0.1", ["unknown"], None, id="a proxy that does not tell"),
        pytest.param("127.0.0.1", ["10.9.0.7, \xff"], None, id="a byte that is no text"),
        pytest.param("::1", ["FD00:0009::7"], "fd00:9::7", id="IPv6, in its shortest spelling"),
        pytest.param("::ffff:10.1.0.1", ["::ffff:10.9.0.7"], "10.9.0.7", id="IPv4 on a socket for both"),
        pytest.param("fe80::1%eth0", [], "fe80::1", id="a link-local address"),
        pytest.param(None, ["10.9.0.7"], None, id="no address at all"),
    ],
)
def test_client_is_who_stands_before_the_last_trusted_proxy(
    peer: str | None, forwarded: list[str], expected: str | None
) -> None:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    scope = {"client": (peer, 40000) if peer else None, "headers": headers}
    assert client_address(scope, PROXIES) == expected


@for_each(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.255.255", True),
        ("10.2.0.0", False),
        ("fd00:1:2::1", True),
        ("fd00:2::1", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_membership_is_by_address(address: str | None, expected: bool) -> None:
    assert PROXIES(address) is expected


@for_each("header", ["X-Forwarded-For", "forwarded"])
def test_finding_s6_a_proxy_that_no_setting_names_is_noted_also_for_a_file_that_is_held_ready(header: str) -> None:
    with site() as made, served(made.root, "--spool", str(made.spool)) as (url, process):
        paths = {path: get(url + path).status_code for path in ("/boot.ipxe", "/boot.ipxe", "/healthz")}
        assert paths == {"/boot.ipxe": 200, "/healthz": 200}
        assert get(url + "/boot.ipxe", headers={**LOADER, header: "for=192.0.2.1"}).status_code == 200
        (report,) = eventually(lambda: list(made.spool.glob(f"*{SUFFIX}")))
        (proxy,) = read_reports(report.parent, datetime.now(UTC)).proxies
        assert proxy.address == "127.0.0.1"
        told = next(each for each in map(json.loads, process.stderr) if each["type"] == "ProxyUnnamed")
        assert 'trusted-proxies = ["127.0.0.1"]' in told["message"]
