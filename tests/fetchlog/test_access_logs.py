"""Access logs of mirrors, of stores, and of mirrors behind caches: what their lines prove."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.access_logs import IgnoreReason, LineContent, parse_line
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import read_new_lines
from gitboot.fetchlog.unknown_machines import UnknownMachine
from gitboot.jsonio import Digest
from tests.helpers import http_peers, mirrors
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, IPXE, LOADER, MAC, UUID, Site, eventually, plan_fleet
from tests.helpers.fleets import SEED, fleet, make_mac, policy, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.mirrors import CACHES, TURN_HEAD_INTO_GET, Mirror

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


def nginx(**more: Any) -> LineContent:
    return parse_line(json.dumps({**NGINX, **more}).encode() + b"\n")


def caddy(request: Mapping[str, Any] | None = None, headers: Mapping[str, Any] | None = None, **more: Any) -> object:
    line = {**CADDY, "request": {**REQUEST, **(request or {})}, "resp_headers": {**HEADERS, **(headers or {})}, **more}
    return parse_line(json.dumps(line).encode())


def test_lines_of_both_web_servers_give_the_same_observation() -> None:
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
def test_a_path_that_counts_is_a_fetch_or_a_report(path: str, is_report: bool) -> None:
    found = nginx(path=path)
    assert isinstance(found, Observation)
    assert (found.path, found.reports_success) == (f"boot{path.removeprefix('/mirrors/fra1')}", is_report)
    assert found == caddy({"uri": f"{path.replace('-', '%2D')}?x=/y"})
    assert found == caddy({"uri": path.replace("/", "//")}), "Caddy logs each slash, and serves the path with one"


NO_PATHS = (
    *("/boot.ipxe", "/ipxe/", f"/httpboot/{UUID}.json", f"/o/{'a' * 64}/user-data", f"{ENTRY}/x", f"/v1/boot/{MAC}/"),
    *(f"/v1/boot/{MAC}/provisioned/short", f"/v1/boot/{MAC}/other/{'a' * 64}", f"/ipxe/{UUID}\n"),
    *("/ipxe/serial/", "/ipxe/serial/.x"),
)
NO_VERSIONS = ("", "yesterday", "2026-11-20T22:00:00Z")


@for_each(
    ("by_nginx", "by_caddy", "why"),
    [
        *(({"path": each}, {"request": {"uri": each}}, IgnoreReason.PATH) for each in NO_PATHS),
        *(({"method": each}, {"request": {"method": each}}, IgnoreReason.METHOD) for each in ("HEAD", "POST", "get")),
        *(({"status": each}, {"status": each}, IgnoreReason.STATUS) for each in (206, 304, 403, 499)),
        ({"bytes": 511}, {"size": 511}, IgnoreReason.PART),
        ({"complete": ""}, {"headers": {"Content-Length": []}}, IgnoreReason.PART),
        ({"length": ""}, {"headers": {"Content-Length": []}}, IgnoreReason.PART),
        *(({"modified": each}, {"headers": {"Last-Modified": [each]}}, IgnoreReason.VERSION) for each in NO_VERSIONS),
        *(({"at": each}, {"ts": each}, IgnoreReason.FORMAT) for each in ("", "soon", "2026-11-20T22:00:30")),
    ],
)
def test_a_line_that_does_not_count_is_ignored_for_its_reason(
    by_nginx: dict[str, Any], by_caddy: dict[str, Any], why: IgnoreReason
) -> None:
    assert nginx(**by_nginx) == caddy(**by_caddy) == why


def test_a_missing_boot_script_is_a_request_by_an_unknown_machine() -> None:
    asked = {"status": 404, "modified": "", "length": "0", "bytes": 0}
    query = f"uuid={UUID}&serial=4J8VM72"
    by_nginx = nginx(**asked, query=query)
    by_caddy = caddy({"uri": f"{ENTRY}?{query}"}, {"Last-Modified": [], "Content-Length": ["0"]}, status=404, size=0)
    assert isinstance(by_nginx, UnknownMachine) and by_nginx == by_caddy
    assert (by_nginx.macs, by_nginx.uuid, by_nginx.serial) == ((MAC,), UUID, "4J8VM72")
    assert isinstance(nginx(**asked), UnknownMachine)
    assert nginx(**asked, agent="curl/8.5.0") == IgnoreReason.STATUS, "who looks is no machine"
    assert isinstance(nginx(**asked, agent=None), UnknownMachine), "a log in the format of before has no agent"
    assert nginx(**asked, client="nobody") == IgnoreReason.STATUS
    assert nginx(**{**asked, "path": f"/ignition/{UUID}"}) == IgnoreReason.STATUS


@pytest.mark.parametrize("client", ["", "unix:", "web01"])
def test_a_boot_that_was_sent_to_an_unknown_address_is_used_up_and_proves_nothing(client: str) -> None:
    for found in (nginx(client=client), caddy({"remote_ip": client})):
        assert isinstance(found, Observation) and found.is_open_intent
        assert (found.path, found.client) == (OBSERVED.path, "unknown")
    assert nginx(client=client, path=f"/v1/boot/{MAC}/provisioned/{'a' * 64}") == IgnoreReason.CLIENT


def test_caddy_logs_the_client_behind_a_proxy() -> None:
    assert caddy({"remote_ip": "10.0.0.1", "client_ip": "10.12.0.13"}) == OBSERVED


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
        b"Nov 20 22:00:30 tftp dnsmasq-tftp[1]: sent /srv/tftp/v1/boot/52-54-00-12-34-56/boot.ipxe to 10.12.0.13",
    ],
)
def test_a_line_in_no_published_format_is_ignored(line: bytes) -> None:
    assert parse_line(line) == IgnoreReason.FORMAT


# Clients


IGNITION = f"/ignition/{UUID}"
IDENTITY_QUERY = f"uuid={UUID}&serial="  # as the first script sends it for a machine without a serial number


EVIDENCE, USED_UP, NOTHING = "evidence", "used up", "nothing"


def classify_line(found: object) -> str:
    """Return what a line proves about a boot: that a machine has booted, that perhaps one has, or nothing."""
    if isinstance(found, Observation):
        return USED_UP if found.is_open_intent else EVIDENCE
    assert found is IgnoreReason.AGENT
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
        (ENTRY, "curl/8.5.0", IDENTITY_QUERY, NOTHING),
        (ENTRY, "Go-http-client/1.1", "", NOTHING),
        (ENTRY, "a monitor", "", USED_UP),
        (ENTRY, "a monitor", f"uuid={UUID}", USED_UP),
        (ENTRY, "a monitor", "uuid=&serial=", USED_UP),
        (ENTRY, "", IDENTITY_QUERY, EVIDENCE),
        (ENTRY, "my-loader 1", IDENTITY_QUERY, EVIDENCE),
        (IGNITION, "Ignition/2.15.0", "", EVIDENCE),
        (IGNITION, "Go-http-client/1.1", "", EVIDENCE),  # Talos
        (IGNITION, "a system", "", EVIDENCE),
        (IGNITION, "curl/8.5.0", "", NOTHING),
        (IGNITION, "", "", USED_UP),
        (f"/v1/boot/{MAC}/provisioned/{'a' * 64}", "curl/8.5.0", "", EVIDENCE),
    ],
)
def test_finding_m3_evidence_needs_the_headers_or_query_of_a_machine(
    path: str, agent: str, query: str, expected: str
) -> None:
    headers = {"User-Agent": [agent]} if agent else {}
    by_nginx = nginx(path=path, agent=agent, query=query)
    by_caddy = caddy({"uri": f"{path}?{query}" if query else path, "headers": headers})
    assert classify_line(by_nginx) == classify_line(by_caddy) == expected


@for_each(
    ("path", "query", "expected"),
    [
        (ENTRY, "", USED_UP),
        (ENTRY, f"uuid={UUID}", USED_UP),
        (ENTRY, IDENTITY_QUERY, EVIDENCE),
        (ENTRY, f"{IDENTITY_QUERY}4J8VM72", EVIDENCE),
        (IGNITION, "", USED_UP),
        (f"/v1/boot/{MAC}/provisioned/{'a' * 64}", "", EVIDENCE),
    ],
)
def test_finding_m2_without_user_agents_queries_and_tokens_are_evidence_and_a_fetch_uses_a_boot_up(
    path: str, query: str, expected: str
) -> None:
    """A mirror may still have the configuration of an earlier gitboot."""
    line = json.dumps(
        {name: value for name, value in {**NGINX, "path": path, "query": query}.items() if name != "agent"}
    )
    found = parse_line(line.encode())
    assert classify_line(found) == expected
    assert found == parse_line(line.encode() + b"\n"), "a line that is read again is the same intent"


@for_each(
    ("agent", "expected"), [(IPXE.encode() + b"\xff", EVIDENCE), (b"a monitor \xff", USED_UP), (b"\xe9", USED_UP)]
)
def test_a_user_agent_that_is_not_utf_8_does_not_hide_a_fetch(agent: bytes, expected: str) -> None:
    """nginx writes all bytes from 0x80 on as the client sent them."""
    line = json.dumps({**NGINX, "agent": "AGENT"}).encode()
    assert classify_line(parse_line(line.replace(b"AGENT", agent))) == expected
    assert parse_line(line.replace(b"boot.ipxe", b"\xff")) is IgnoreReason.PATH


@for_each("path", [ENTRY, IGNITION, f"/v1/boot/{MAC}/provisioned/{'a' * 64}"])
def test_finding_m3_a_check_is_no_evidence_even_if_a_cache_drops_one_of_its_marks(path: str) -> None:
    checker = "gitboot-verify-mirror/0.2.0"
    for agent, query in ((checker, ""), (IPXE, "check=1"), (IPXE, "check"), ("gitboot/0.1.0", IDENTITY_QUERY)):
        for status in (200, 404):
            assert nginx(path=path, agent=agent, query=query, status=status) is IgnoreReason.CHECK
            line = {"uri": f"{path}?{query}", "headers": {"User-Agent": [agent]}}
            assert caddy(line, status=status) is IgnoreReason.CHECK


# Garbage


ODD_VALUES: tuple[Any, ...] = (
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
@for_each("value", ODD_VALUES, ids=lambda value: repr(value)[:30])
def test_t11_any_value_of_a_field_is_read_or_counted(field: str, value: object) -> None:
    for found in (nginx(**{field: value}), caddy(request={field: value}), caddy(headers={field: [value]})):
        assert isinstance(found, Observation | IgnoreReason)
        if isinstance(found, Observation):
            assert found.client.isprintable()
            assert found.at.tzinfo is UTC


@given(st.binary(max_size=300))
def test_t11_bytes_that_are_not_a_line_are_counted(line: bytes) -> None:
    assert parse_line(line) is IgnoreReason.FORMAT


@given(st.randoms(use_true_random=False))
def test_t11_a_damaged_line_is_read_or_counted(chance: random.Random) -> None:
    documents = [json.dumps(each).encode() for each in (NGINX, CADDY, FIELDS)]
    line = bytearray(chance.choice([*documents, make_s3_line(), "\t".join(FIELDS.values()).encode()]))
    for _ in range(chance.randrange(1, 6)):
        line[chance.randrange(len(line))] = chance.randrange(256)
    assert isinstance(parse_line(bytes(line)), Observation | IgnoreReason)


TOKEN = "a" * 64
REPORT = f"v1/boot/{MAC}/provisioned/{TOKEN}"
DATA = f"v1/boot/{MAC}/data/{TOKEN}/user-data"
OWNER = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"


def make_s3_line(
    key: str = f"fra1/boot/{REPORT}",
    *,
    operation: str = "REST.GET.OBJECT",
    status: int = 200,
    sent: str = "-",
    size: str = "-",
    client: str = "10.12.0.13",
    time: str = "20/Nov/2026:22:00:30 +0000",
    agent: str = r"curl/8 \"quoted\" 200 - 1 1",
    query: str = "",
    requester: str = "-",
) -> bytes:
    return (
        f"{OWNER} boots [{time}] {client} {requester} 3E57427F3EXAMPLE {operation} {key} "
        f'"GET /boots/{key}{query} HTTP/1.1" {status} - {sent} {size} 7 6 "-" "{agent}" - s9lzHYrFp76ZVxRcpX9= - - - '
        "boots.s3.eu-central-1.amazonaws.com TLSv1.3 - -\n"
    ).encode()


FIELDS = {
    "date": "2026-11-20",
    "time": "22:00:30",
    "x-edge-location": "FRA56-P1",
    "sc-bytes": "471",
    "c-ip": "10.12.0.13",
    "cs-method": "GET",
    "cs(Host)": "d111111abcdef8.cloudfront.net",
    "cs-uri-stem": f"/{REPORT}",
    "sc-status": "200",
    "cs(Referer)": "-",
    "cs(User-Agent)": "curl/8",
    "cs-uri-query": "-",
    "cs(Cookie)": "-",
    "x-edge-result-type": "Miss",
    "x-edge-request-id": "SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==",
    "x-host-header": "boot.example.net",
    "cs-protocol": "https",
    "cs-bytes": "23",
    "time-taken": "0.001",
    "x-forwarded-for": "-",
    "ssl-protocol": "TLSv1.3",
    "ssl-cipher": "TLS_AES_128_GCM_SHA256",
    "x-edge-response-result-type": "Miss",
    "cs-protocol-version": "HTTP/1.1",
    "fle-status": "-",
    "fle-encrypted-fields": "-",
    "c-port": "11040",
    "time-to-first-byte": "0.001",
    "x-edge-detailed-result-type": "Miss",
    "sc-content-type": "text/plain",
    "sc-content-len": "0",
    "sc-range-start": "-",
    "sc-range-end": "-",
}


def cloudfront(**changes: str) -> tuple[LineContent, LineContent]:
    fields = {**FIELDS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return parse_line(("\t".join(fields.values()) + "\n").encode()), parse_line(json.dumps(fields).encode())


def make_observation(path: str) -> Observation:
    return Observation(
        server="",
        path=f"boot/{path}",
        client="10.12.0.13",
        at=datetime(2026, 11, 20, 22, 0, 30, tzinfo=UTC),
        digest=Digest(TOKEN),
    )


@pytest.mark.parametrize("path", [REPORT, REPORT.replace("provisioned", "failed"), DATA])
def test_a_path_that_names_an_installation_is_evidence(path: str) -> None:
    assert parse_line(make_s3_line(f"fra1/boot/{path}")) == make_observation(path)
    assert cloudfront(cs_uri_stem=f"/{path}") == (make_observation(path), make_observation(path))


@pytest.mark.parametrize("path", [ENTRY[1:], f"ipxe/{UUID}", f"ignition/{UUID}"])
def test_e38_the_log_does_not_show_which_version_of_a_boot_script_was_sent(path: str) -> None:
    assert parse_line(make_s3_line(f"fra1/boot/{path}")) == IgnoreReason.VERSION
    assert cloudfront(cs_uri_stem=f"/{path}") == (IgnoreReason.VERSION, IgnoreReason.VERSION)


@for_each(
    ("line", "why"),
    [
        (make_s3_line(operation="REST.HEAD.OBJECT"), IgnoreReason.METHOD),
        (make_s3_line(operation="REST.PUT.OBJECT", size="0"), IgnoreReason.METHOD),
        (make_s3_line(operation="REST.GET.VERSIONING"), IgnoreReason.FORMAT),
        (make_s3_line(operation="WEBSITE.GET.OBJECT"), make_observation(REPORT)),
        (make_s3_line(status=304), IgnoreReason.STATUS),
        (make_s3_line(f"fra1/boot/{DATA}", sent="511", size="512"), IgnoreReason.PART),
        (make_s3_line(f"fra1/boot/{DATA}", sent="-", size="512"), IgnoreReason.PART),
        (make_s3_line(f"fra1/boot/{DATA}", sent="512", size="512"), make_observation(DATA)),
        (make_s3_line(f"fra1/boot/{REPORT.replace('/', '%252F')}"), make_observation(REPORT)),
        (make_s3_line(client="-"), IgnoreReason.CLIENT),
        (make_s3_line(time="20/Nop/2026:22:00:30 +0000"), IgnoreReason.FORMAT),
        (make_s3_line(time="31/Feb/2026:22:00:30 +0000"), IgnoreReason.FORMAT),
        (make_s3_line(time="21/Nov/2026:00:00:30 +0200"), make_observation(REPORT)),
        (make_s3_line("fra1/boot/boot.ipxe"), IgnoreReason.PATH),
        (make_s3_line().removesuffix(b"TLSv1.3 - -\n"), make_observation(REPORT)),  # lines get longer with the years
    ],
)
def test_in_logs_of_s3_only_a_complete_response_counts(line: bytes, why: Observation | IgnoreReason) -> None:
    assert parse_line(line) == why


@for_each(
    ("changes", "why"),
    [
        ({"cs_method": "HEAD"}, IgnoreReason.METHOD),
        ({"sc_status": "206", "sc_range_start": "0"}, IgnoreReason.STATUS),
        ({"sc_status": "000"}, IgnoreReason.STATUS),
        ({"sc_content_len": "471"}, IgnoreReason.PART),
        ({"sc_content_len": "-"}, IgnoreReason.PART),
        ({"sc_content_len": "470"}, make_observation(REPORT)),
        ({"sc_range_start": "0"}, IgnoreReason.PART),
        ({"x_edge_result_type": "Error"}, IgnoreReason.PART),
        ({"x_edge_detailed_result_type": "ClientCommError"}, IgnoreReason.PART),
        (
            {"x_edge_result_type": "RefreshHit", "x_edge_detailed_result_type": "OriginShieldHit"},
            make_observation(REPORT),
        ),
        ({"c_ip": "2001:db8::x"}, IgnoreReason.CLIENT),
        ({"date": "2026-13-20"}, IgnoreReason.FORMAT),
        ({"sc_bytes": "-"}, IgnoreReason.FORMAT),
        ({"cs_uri_stem": "/boot.ipxe"}, IgnoreReason.PATH),
    ],
)
def test_in_logs_of_cloudfront_only_a_complete_response_counts(
    changes: dict[str, str], why: Observation | IgnoreReason
) -> None:
    assert cloudfront(**changes) == (why, why)


COPIER = "arn:aws:iam::123456789012:user/backup"


@for_each(
    ("requester", "agent", "why"),
    [
        (COPIER, "aws-cli/2.15.0", IgnoreReason.SIGNED),
        (COPIER, "curl/8", IgnoreReason.SIGNED),
        ("-", "curl/8", make_observation(REPORT)),
        ("svc:cloudfront.amazonaws.com", "Amazon CloudFront", make_observation(REPORT)),
    ],
)
def test_finding_m3_a_client_that_reads_a_bucket_with_credentials_is_not_a_machine(
    requester: str, agent: str, why: Observation | IgnoreReason
) -> None:
    """A backup copies each file, the reports of installers too."""
    assert parse_line(make_s3_line(requester=requester, agent=agent)) == why


def test_finding_m3_a_check_of_a_bucket_or_by_cloudfront_is_no_evidence() -> None:
    checker = "gitboot-verify-mirror/0.2.0"
    by_s3 = [
        parse_line(make_s3_line(agent=checker)),
        parse_line(make_s3_line(query="?check=1", agent="Amazon CloudFront")),
    ]
    by_cloudfront = [*cloudfront(**{"cs(User-Agent)": checker}), *cloudfront(**{"cs-uri-query": "check=1"})]
    assert {*by_s3, *by_cloudfront} == {IgnoreReason.CHECK}


@pytest.mark.parametrize("line", [b"#Version: 1.0\n", b"#Fields: date time x-edge-location\n", b"\t" * 32])
def test_header_lines_and_empty_fields_are_not_requests(line: bytes) -> None:
    assert parse_line(line) == IgnoreReason.FORMAT


# Each client counts that reaches the endpoint, so that only what a check says of itself tells it from a machine.
ONCE = (
    fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported, clients: [127.0.0.0/8]}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    *SEED[1:],
)
INSTALL = "(Network)"
INSTALL_ENTRY = f"/v1/boot/{make_mac('new01').replace(':', '-')}/boot.ipxe"
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
    made.publish(plan_fleet(*ONCE))
    return made


def verified(*arguments: object) -> dict[str, Any]:
    done = run_forked("verify-mirror", *arguments, "-o", "json")
    assert done.returncode in (0, 8), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def head(url: str, agent: str) -> None:
    http_peers.head(url, headers={"user-agent": agent})


# An endpoint


@pytest.mark.parametrize("more", [(), ("--read-entries",)], ids=["by default", "reading boot scripts"])
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
    (tmp_path / "mirror").mkdir()
    running = mirrors.nginx if request.param == "nginx" else mirrors.caddy
    with running(site.root / "boot", site.root / "ops/serve", tmp_path / "mirror") as mirror:
        yield mirror


def read_log(mirror: Mirror, spool: Path) -> tuple[list[str], dict[str, int]]:
    """Return the paths of the log's evidence, and the number of other lines by reason or as `unclear`."""
    http_peers.get(f"{mirror.url}/last")
    assert eventually(lambda: b"/last" in mirror.log.read_bytes())
    summary = json.loads(run_forked("read-access-logs", mirror.log, "--spool", spool, "-o", "json").stdout)
    observations = read_new_lines(spool, {}).observations
    found = [each.path for each in observations if not each.is_open_intent]
    assert (summary["observed"], summary["unclear"]) == (len(found), len(observations) - len(found))
    assert summary["unknown"] == 0
    return found, {**summary["ignored"], "unclear": summary["unclear"]}


@pytest.mark.parametrize("more", [(), ("--read-entries",)], ids=["by default", "reading boot scripts"])
def test_finding_m3_a_check_through_a_cache_is_no_evidence_in_the_log_of_a_mirror(
    site: Site, mirror: Mirror, tmp_path: Path, cache: str, more: tuple[str, ...]
) -> None:
    with CACHES[cache](mirror.url, tmp_path / cache) as url:
        found = verified("--tree", site.root, url, *more)
        assert {ENTRY[1:], BY_UUID[1:]} <= {*found["unchecked"]} or more
        make_observation, ignored = read_log(mirror, tmp_path / "spool")
        assert make_observation == []
        assert ignored.get("a check by gitboot", 0) > 0
        http_peers.get(f"{url}{ENTRY}", headers=LOADER)
        assert read_log(mirror, tmp_path / "spool")[0] == [f"boot{ENTRY}"]


@pytest.mark.parametrize("agent", MONITORS.values(), ids=MONITORS)
def test_finding_m3_a_monitor_whose_head_a_cache_turns_into_a_get_is_no_evidence(
    mirror: Mirror, tmp_path: Path, cache: str, agent: str
) -> None:
    with CACHES[cache](mirror.url, tmp_path / cache) as url:
        for path in (ENTRY, BY_UUID, f"/v1/boot/{MAC}/grub.cfg"):
            head(f"{url}{path}", agent)
            head(f"{url}{path.replace(MAC, '52-54-00-00-00-99')}", agent)
        make_observation, ignored = read_log(mirror, tmp_path / "spool")
        assert make_observation == []
        turned = ignored.get("by a tool or a monitor", 0) if agent == MONITORS["a tool"] else ignored["unclear"]
        assert (turned > 0) == (cache in TURN_HEAD_INTO_GET), "the cache has sent a GET, which the log has"


@pytest.mark.parametrize("agent", [*MONITORS.values(), IPXE], ids=[*MONITORS, "a loader"])
def test_finding_m3_a_bare_get_of_a_boot_script_is_no_evidence(mirror: Mirror, tmp_path: Path, agent: str) -> None:
    http_peers.get(f"{mirror.url}{ENTRY}", headers={"user-agent": agent})
    make_observation, _ = read_log(mirror, tmp_path / "spool")
    assert make_observation == ([f"boot{ENTRY}"] if agent == IPXE else [])
