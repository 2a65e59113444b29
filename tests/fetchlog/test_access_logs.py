from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.access_logs import Ignored, Told, read
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.unknown_machines import UnknownMachine
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, IPXE, MAC, UUID

MODIFIED = "Fri, 20 Nov 2026 22:00:00 GMT"
NGINX: Mapping[str, Any] = {
    "at": "2026-11-20T23:00:30.250+01:00",
    "client": "10.12.0.13",
    "method": "GET",
    "path": ENTRY,
    "status": 200,
    "modified": MODIFIED,
    "length": "512",
    "bytes": 512,
    "complete": "OK",
    "query": "",
    "agent": IPXE,
}
REQUEST: Mapping[str, Any] = {
    "remote_ip": "10.12.0.13",
    "method": "GET",
    "uri": ENTRY,
    "headers": {"User-Agent": [IPXE]},
}
HEADERS: Mapping[str, Any] = {"Last-Modified": [MODIFIED], "Content-Length": ["512"]}
CADDY: Mapping[str, Any] = {
    "ts": "2026-11-20T22:00:30.250000001Z",
    "msg": "handled request",
    "request": REQUEST,
    "size": 512,
    "status": 200,
    "resp_headers": HEADERS,
}
OBSERVED = Observation(
    server="",
    path=f"boot{ENTRY}",
    client="10.12.0.13",
    at=datetime(2026, 11, 20, 22, 0, 30, 250000, tzinfo=UTC),
    modified=int(datetime(2026, 11, 20, 22, tzinfo=UTC).timestamp()),
)


def nginx(**more: Any) -> Told:
    return read(json.dumps({**NGINX, **more}).encode() + b"\n")


def caddy(request: Mapping[str, Any] | None = None, headers: Mapping[str, Any] | None = None, **more: Any) -> object:
    line = {**CADDY, "request": {**REQUEST, **(request or {})}, "resp_headers": {**HEADERS, **(headers or {})}, **more}
    return read(json.dumps(line).encode())


def test_both_servers_lines_are_the_same_observation() -> None:
    assert nginx() == caddy() == OBSERVED


@for_each(
    ("path", "is_report"),
    [
        (ENTRY, False),
        (f"/v1/boot/{MAC}/grub.cfg", False),
        (f"/ipxe/{UUID}", False),
        ("/ipxe/serial/CZ2D-4.65", False),
        (f"/ignition/{UUID}", False),
        (f"/v1/boot/{MAC}/provisioned/{'a' * 64}", True),
        (f"/mirrors/fra1{ENTRY}", False),
    ],
)
def test_what_counts_and_as_what(path: str, is_report: bool) -> None:
    found = nginx(path=path)
    assert isinstance(found, Observation)
    assert (found.path, found.is_report) == (f"boot{path.removeprefix('/mirrors/fra1')}", is_report)
    assert found == caddy({"uri": f"{path.replace('-', '%2D')}?x=/y"})


@for_each(
    "path",
    [
        "/boot.ipxe",
        "/ipxe/",
        f"/httpboot/{UUID}.json",
        f"/o/{'a' * 64}/user-data",
        f"{ENTRY}/x",
        f"/v1/boot/{MAC}/provisioned/short",
        f"/v1/boot/{MAC}/other/{'a' * 64}",
        f"/v1/boot/{MAC}/",
        f"/ipxe/{UUID}\n",
        "/ipxe/serial/",
        "/ipxe/serial/.x",
    ],
)
def test_no_other_path_counts(path: str) -> None:
    assert nginx(path=path) == caddy({"uri": path}) == Ignored.PATH


@pytest.mark.parametrize("method", ["HEAD", "POST", "get"])
def test_only_a_get_counts(method: str) -> None:
    assert nginx(method=method) == caddy({"method": method}) == Ignored.METHOD


@pytest.mark.parametrize("status", [206, 304, 403, 499])
def test_only_what_was_answered_whole_counts(status: int) -> None:
    assert nginx(status=status) == caddy(status=status) == Ignored.STATUS


def test_an_entry_that_is_not_there_names_who_asked() -> None:
    asked = {"status": 404, "modified": "", "length": "0", "bytes": 0}
    query = f"uuid={UUID}&serial=4J8VM72"
    by_nginx = nginx(**asked, query=query)
    by_caddy = caddy({"uri": f"{ENTRY}?{query}"}, {"Last-Modified": [], "Content-Length": ["0"]}, status=404, size=0)
    assert isinstance(by_nginx, UnknownMachine) and by_nginx == by_caddy
    assert (by_nginx.macs, by_nginx.uuid, by_nginx.serial) == ((MAC,), UUID, "4J8VM72")
    assert isinstance(nginx(**asked), UnknownMachine)
    assert nginx(**asked, agent="curl/8.5.0") == Ignored.STATUS, "who looks is no machine"
    assert isinstance(nginx(**asked, agent=None), UnknownMachine), "a log in the format of before has no agent"
    assert nginx(**asked, client="nobody") == Ignored.STATUS
    assert nginx(**{**asked, "path": f"/ignition/{UUID}"}) == Ignored.STATUS


def test_what_was_cut_short_does_not_count() -> None:
    assert nginx(bytes=511) == caddy(size=511) == Ignored.PART
    assert nginx(complete="") == Ignored.PART
    assert nginx(length="") == caddy(headers={"Content-Length": []}) == Ignored.PART


@pytest.mark.parametrize("modified", ["", "yesterday", "2026-11-20T22:00:00Z"])
def test_what_has_no_version_does_not_count(modified: str) -> None:
    assert nginx(modified=modified) == caddy(headers={"Last-Modified": [modified]}) == Ignored.VERSION


@pytest.mark.parametrize("client", ["", "unix:", "web01"])
def test_a_boot_that_was_sent_to_an_unknown_address_is_used_up_and_proves_nothing(client: str) -> None:
    for found in (nginx(client=client), caddy({"remote_ip": client})):
        assert isinstance(found, Observation) and found.is_open_intent
        assert (found.path, found.client) == (OBSERVED.path, "unknown")
    assert nginx(client=client, path=f"/v1/boot/{MAC}/provisioned/{'a' * 64}") == Ignored.CLIENT


def test_caddy_names_the_client_behind_a_proxy() -> None:
    found = caddy({"remote_ip": "10.0.0.1", "client_ip": "10.12.0.13"})
    assert found == OBSERVED


@pytest.mark.parametrize("at", ["", "soon", "2026-11-20T22:00:30"])
def test_an_instant_has_its_offset(at: str) -> None:
    assert nginx(at=at) == caddy(ts=at) == Ignored.FORMAT


@for_each(
    "line",
    [
        b"",
        b"\n",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'10.12.0.13 - - [20/Nov/2026:22:00:30 +0000] "GET /boot.ipxe HTTP/1.1" 200 512',
        json.dumps({**NGINX, "status": "200"}).encode(),
        json.dumps({**CADDY, "ts": 1795229092.16}).encode(),
        json.dumps({**CADDY, "request": None}).encode(),
        json.dumps({**NGINX, "path": "/x"}).encode().replace(b"/x", b"/\xff"),
        b"Nov 20 22:00:30 tftp dnsmasq-tftp[1]: sent /srv/tftp/v1/boot/52-54-00-12-34-56/boot.ipxe to 10.12.0.13",
    ],
)
def test_what_is_in_no_published_format_is_ignored(line: bytes) -> None:
    assert read(line) == Ignored.FORMAT


# Whose requests


IGNITION = f"/ignition/{UUID}"
WHO = f"uuid={UUID}&serial="  # as the first script asks, of a machine without a serial number


EVIDENCE, USED_UP, NOTHING = "evidence", "used up", "nothing"


def shown(found: object) -> str:
    """What a line shows of a boot: that a machine has booted, that perhaps one has, or nothing."""
    if isinstance(found, Observation):
        return USED_UP if found.is_open_intent else EVIDENCE
    assert found is Ignored.AGENT
    return NOTHING


@for_each(
    ("path", "agent", "query", "expected"),
    [
        (ENTRY, IPXE, "", EVIDENCE),
        (ENTRY, "GRUB 2.06-13+deb12u1", "", EVIDENCE),
        (ENTRY, "UefiHttpBoot/1.0", "", EVIDENCE),
        (ENTRY, "Syslinux/6.04", "", EVIDENCE),
        (ENTRY, "", "", USED_UP),
        (ENTRY, "curl/8.5.0", "", NOTHING),
        (ENTRY, "curl/8.5.0", WHO, NOTHING),
        (ENTRY, "Go-http-client/1.1", "", NOTHING),
        (ENTRY, "a monitor", "", USED_UP),
        (ENTRY, "a monitor", f"uuid={UUID}", USED_UP),
        (ENTRY, "a monitor", "uuid=&serial=", USED_UP),
        (ENTRY, "", WHO, EVIDENCE),
        (ENTRY, "my-loader 1", WHO, EVIDENCE),
        (IGNITION, "Ignition/2.15.0", "", EVIDENCE),
        (IGNITION, "Go-http-client/1.1", "", EVIDENCE),  # Talos
        (IGNITION, "a system", "", EVIDENCE),
        (IGNITION, "curl/8.5.0", "", NOTHING),
        (IGNITION, "", "", USED_UP),
        (f"/v1/boot/{MAC}/provisioned/{'a' * 64}", "curl/8.5.0", "", EVIDENCE),
    ],
)
def test_finding_m3_evidence_needs_what_a_machine_sends(path: str, agent: str, query: str, expected: str) -> None:
    headers = {"User-Agent": [agent]} if agent else {}
    by_nginx = nginx(path=path, agent=agent, query=query)
    by_caddy = caddy({"uri": f"{path}?{query}" if query else path, "headers": headers})
    assert shown(by_nginx) == shown(by_caddy) == expected


@for_each(
    ("path", "query", "expected"),
    [
        (ENTRY, "", USED_UP),
        (ENTRY, f"uuid={UUID}", USED_UP),
        (ENTRY, WHO, EVIDENCE),
        (ENTRY, f"{WHO}4J8VM72", EVIDENCE),
        (IGNITION, "", USED_UP),
        (f"/v1/boot/{MAC}/provisioned/{'a' * 64}", "", EVIDENCE),
    ],
)
def test_finding_m2_a_log_without_agents_is_evidence_by_queries_and_tokens_and_uses_boots_up_by_all(
    path: str, query: str, expected: str
) -> None:
    """As a mirror writes it that still has the configuration of an earlier gitboot."""
    line = json.dumps(
        {name: value for name, value in {**NGINX, "path": path, "query": query}.items() if name != "agent"}
    )
    found = read(line.encode())
    assert shown(found) == expected
    assert found == read(line.encode() + b"\n"), "a line that is read again is the same intent"


@for_each("path", [ENTRY, IGNITION, f"/v1/boot/{MAC}/provisioned/{'a' * 64}"])
def test_finding_m3_a_check_is_none_whatever_a_cache_drops_of_its_marks(path: str) -> None:
    checker = "gitboot-verify-mirror/0.2.0"
    for agent, query in ((checker, ""), (IPXE, "check=1"), (IPXE, "check"), ("gitboot/0.1.0", WHO)):
        for status in (200, 404):
            assert nginx(path=path, agent=agent, query=query, status=status) is Ignored.CHECK
            line = {"uri": f"{path}?{query}", "headers": {"User-Agent": [agent]}}
            assert caddy(line, status=status) is Ignored.CHECK


# Garbage


ODD: tuple[Any, ...] = (
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-20", "", "\0", "\ud800", "a" * 100_000),
    *("Thu, 99999999999999999999 Jan 2026 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2359", ", , , ,", "-", "1 2 3"),
    *(
        "Thu, 01 Jan 2026 99:99:99 GMT",
        "Thu, 01 Jan 2026 00:00:00 +99999999999",
        "fe80::1%\x1b[2J",
        "::1%" + "x" * 9999,
    ),
    *(10**400, -1, 0, True, None, 1e308, [], {}, [[]] * 3),
)


@for_each("field", sorted(NGINX))
@for_each("value", ODD, ids=lambda value: repr(value)[:30])
def test_t11_whatever_stands_in_a_field_is_read_or_counted(field: str, value: object) -> None:
    for found in (nginx(**{field: value}), caddy(request={field: value}), caddy(headers={field: [value]})):
        assert isinstance(found, Observation | Ignored)
        if isinstance(found, Observation):
            assert found.client.isprintable()
            assert found.at.tzinfo is UTC


@given(st.binary(max_size=300))
def test_t11_bytes_that_are_no_line_are_counted(line: bytes) -> None:
    assert read(line) is Ignored.FORMAT


@given(st.randoms(use_true_random=False))
def test_t11_a_line_that_was_damaged_is_read_or_counted(chance: random.Random) -> None:
    line = bytearray(json.dumps(chance.choice([NGINX, CADDY])).encode())
    for _ in range(chance.randrange(1, 6)):
        line[chance.randrange(len(line))] = chance.randrange(256)
    assert isinstance(read(bytes(line)), Observation | Ignored)
