from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from ipaddress import ip_network
from typing import Any

import httpx
import pytest

from gitboot.endpoint.boot_responses import BootResponse, BootResponses
from gitboot.render.endpoint_files import shard_path, state_path
from gitboot.render.paths import find_path_kind
from tests.helpers import http_peers
from tests.helpers.endpoints import (
    ADDRESS,
    AFTER,
    ALWAYS,
    BEFORE,
    BY_UUID,
    ENTRY,
    FLEET,
    GRUB,
    LOADER,
    LOOKUPS,
    MAC,
    ONCE,
    PROXY,
    REPAIR,
    SEED,
    START,
    UUID,
    Site,
    connect,
    eventually,
    exchange,
    get,
    plan_fleet,
    remove_date,
)
from tests.helpers.endpoints import site as new_site
from tests.helpers.fleets import fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.git_repositories import free_port, run_daemon
from tests.helpers.mirrors import BOUND, make_unreadable

SWAPPED = "-".join([*("".join(re.findall("..", part)[::-1]) for part in UUID.split("-")[:3]), *UUID.split("-")[3:]])
NOBODY = ()
ENTRIES = {
    path for path, file in FLEET.boot_files.items() if b"kernel --name" in file.content or b"linux$efi" in file.content
}
USER_DATA = next(path for path in FLEET.boot_files if path.startswith("/o/"))
RESET = b"\1\0\0\0\0\0\0\0"  # struct linger: closing resets the connection


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, httpx.Client]]:
    with new_site() as site, site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield site, client


@pytest.fixture
def site(served: tuple[Site, httpx.Client]) -> Site:
    site, _ = served
    site.reset()
    return site


@pytest.fixture
def client(site: Site, served: tuple[Site, httpx.Client]) -> httpx.Client:
    return served[1]


# Files


def test_every_boot_file_is_served_unchanged(client: httpx.Client) -> None:
    """The signed list is for copies, which read it from the tree."""
    files = {path: file for path, file in FLEET.boot_files.items() if not path.startswith("/signed/")}
    assert len(files) > 8
    assert {client.get(path).status_code for path in FLEET.boot_files.keys() - files.keys()} == {404}
    for path, file in files.items():
        response = client.get(path)
        assert (response.status_code, response.content) == (200, file.content), path
        assert response.headers["content-type"] == file.content_type
        assert response.headers["content-length"] == str(len(file.content))
        is_servers = find_path_kind(f"boot{path}") is not None
        etag = f'"{sha256(file.content).hexdigest()}"' if not is_servers else None
        assert response.headers.get("etag") == etag, path
        assert is_servers == (response.headers["cache-control"] == "no-store"), path


DIGITS = MAC.replace("-", "")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        pytest.param(f"/v1/boot/{MAC.replace('-', ':')}/boot.ipxe", ENTRY, id="MAC with colons"),
        pytest.param(f"/v1/boot/{MAC.upper()}/grub.cfg", GRUB, id="MAC in upper case"),
        pytest.param(f"/v1/boot/{DIGITS}/boot.ipxe", ENTRY, id="MAC of digits only"),
        pytest.param(f"/v1/boot/{DIGITS[:4]}.{DIGITS[4:8]}.{DIGITS[8:].upper()}/boot.ipxe", ENTRY, id="MAC with dots"),
        pytest.param(f"/v1/boot/{MAC.replace('-', '%3a')}/boot.ipxe", ENTRY, id="MAC with encoded colons"),
        pytest.param(f"/ipxe/{UUID.upper()}", BY_UUID, id="UUID in upper case"),
        pytest.param(f"/ipxe/{SWAPPED}", BY_UUID, id="UUID in the other byte order"),
        pytest.param(f"/ipxe/{SWAPPED.upper()}", BY_UUID, id="both"),
        pytest.param(f"/ignition/{SWAPPED.upper()}", f"/ignition/{UUID}", id="Ignition"),
        pytest.param(f"/httpboot/{SWAPPED}.json", f"/httpboot/{UUID}.json", id="HTTP boot"),
        pytest.param(f"//v1///boot/{MAC}//boot.ipxe", ENTRY, id="repeated slashes"),
        pytest.param(f"/v1%2F/boot/{MAC}/boot.ipxe", ENTRY, id="an encoded slash beside a slash"),
        pytest.param(f"{ENTRY}?arch=x86_64&%00=../..", ENTRY, id="a query"),
        pytest.param(f"http://another.test{ENTRY}", ENTRY, id="a whole URL, as to a proxy"),
    ],
)
def test_other_spellings_of_a_path_get_the_same_response(client: httpx.Client, asked: str, meant: str) -> None:
    request = f"GET {asked} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nConnection: close\r\n\r\n"
    response = exchange(str(client.base_url), request.encode())
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\n" + client.get(meant).content)


def test_the_ipxe_folder_is_the_first_script_one_level_down(client: httpx.Client) -> None:
    first, chain = client.get("/boot.ipxe"), client.get("/ipxe/")
    assert chain.headers["content-type"] == first.headers["content-type"]
    assert chain.text == re.sub(r"((?:chain --autofree|imgfetch --name \w+) )", r"\1../", first.text)


def test_the_ipxe_folder_is_not_found_if_ipxe_is_not_an_output(site: Site, client: httpx.Client) -> None:
    site.publish(plan_fleet(fleet("baseURL: 'http://boot.test', outputs: [grub]"), *ALWAYS[1:]))
    assert client.get("/ipxe/").status_code == 404


# Missing paths

ESCAPES = (
    "/../ops/manifest.json",
    "/ops/manifest.json",
    "/ops/servers/web01.json",
    "/boot/boot.ipxe",
    "/%2e%2e/ops/servers/web01.json",
    "/..%2fops%2fservers%2fweb01.json",
    "/%252e%252e/ops/servers/web01.json",
    "/..%5cops%5cservers%5cweb01.json",
    "/..\\ops\\servers\\web01.json",
    "/%c0%ae%c0%ae/ops/servers/web01.json",
    "/v1/boot/../../../ops/servers/web01.json",
    f"/v1/boot/{MAC}/../../../../ops/servers/web01.json",
    f"/v1/boot/{MAC}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/ops/servers/web01.json",
    "/./boot.ipxe",
    "/boot.ipxe/",
    "//ops/servers/web01.json",
    "//..//ops/servers/web01.json",
    "//metrics",
    "/boot.ipxe%00",
    "/boot.ipxe%00.html",
    "/%00",
    "/etc/passwd",
    "/" + "a" * 8000,
    "/" + "%2e%2e%2f" * 2000 + "etc/passwd",
    "/" * 5000,
    "/v1/boot/" + "5" * 5000 + "/boot.ipxe",
)
STRANGERS = (
    "/",
    "/favicon.ico",
    "/v1/boot/52-54-00-ff-ff-ff/boot.ipxe",  # unknown
    "/v1/boot/52-54-00-ff-ff/boot.ipxe",  # malformed
    "/v1/boot/01-00-5e-00-00-01/boot.ipxe",  # multicast
    "/v1/boot//boot.ipxe",
    "/v1/boot/",
    f"/v1/boot/{MAC}",
    f"/v1/boot/{MAC}/",
    f"/v1/boot/{MAC}/boot.txt",
    f"/v1/boot/{MAC}/boot.ipxe/more",
    f"/ipxe/{make_uuid('another')}",
    "/ipxe/00000000-0000-0000-0000-000000000000",
    "/ipxe/x",
    f"/ipxe/{UUID}/",
    f"/ignition/{make_uuid('another')}",
    "/boot.ipxe/..",
    "/grub.cfg-01-52-54-00-ff-ff-ff",
    "/ipxe/serial/4J8VM72",
    "/ignition/",
    "/httpboot",
    "/httpboot/",
    "/o/" + "d" * 64 + "/user-data",
    "/x86_64-efi/command.lst",
    "/assets/x",
    "/api/v1/servers/web02",
    "/api/v1/servers/web02/plan",
    "/api/v1/servers/",
    "/api/v1/servers/..%2f..%2fmanifest/plan",
    "/api/v1/",
    "/metrics/",
)


@pytest.mark.parametrize("target", [*ESCAPES, *STRANGERS], ids=lambda target: target[:60])
def test_every_missing_path_gets_the_same_404(client: httpx.Client, target: str) -> None:
    nothing, asked = (
        remove_date(
            exchange(
                str(client.base_url),
                b"GET %b HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nConnection: close\r\n\r\n" % path,
            )
        )
        for path in (b"/nothing", target.encode())
    )
    assert nothing.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"\r\nContent-Length: 1\r\n" in nothing
    assert nothing.endswith(b"\r\n\r\n#")
    assert asked == nothing


@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param(b"GET /\xff\xfe HTTP/1.1", id="bytes that are no ASCII"),
        pytest.param(b"GET ops/servers/web01.json HTTP/1.1", id="a path without a slash"),
        pytest.param(b"GET http://x HTTP/1.1", id="a URL without a path"),
        pytest.param(b"CONNECT x:80 HTTP/1.1", id="a tunnel"),
        pytest.param(b"GET", id="half a line"),
    ],
)
def test_an_invalid_request_gets_no_file(client: httpx.Client, request_line: bytes) -> None:
    response = exchange(
        str(client.base_url), request_line + b"\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nConnection: close\r\n\r\n"
    )
    assert response.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", [ENTRY, "/nothing", "/api/v1/status", "/healthz"])
def test_only_get_and_head_are_allowed(client: httpx.Client, method: str, path: str) -> None:
    response = client.request(method, path)
    assert (response.status_code, response.headers["allow"], response.content) == (405, "GET, HEAD", b"")


# HTTP


PAGES = ("/api/v1/servers", "/api/v1/servers/web01", "/api/v1/servers/web01/plan", "/api/v1/status")
ALL_PATHS = (*sorted(FLEET.boot_files), *PAGES, "/api/v1/openapi.json", "/healthz", "/readyz", "/ipxe/", "/nothing")


def test_head_sends_the_headers_of_get_without_the_body_and_keeps_the_connection(site: Site) -> None:
    by_address, own = {"x-forwarded-for": ADDRESS}, {"x-forwarded-for": "127.0.0.1"}
    with site.serve(trusted_proxies=PROXY) as url, http_peers.Client(base_url=url, headers=LOADER | own) as client:
        client.get("/metrics")
        for path, headers in (*((path, {}) for path in ALL_PATHS * 2), ("/httpboot", by_address)):
            get, head = client.get(path, headers=headers), client.head(path, headers=headers)
            assert (head.content, head.status_code) == (b"", get.status_code)
            assert head.headers.get("content-length") == str(len(get.content)), path
            without_date = [{**response.headers, "date": ""} for response in (get, head)]
            assert without_date[0] == without_date[1]
            assert "transfer-encoding" not in get.headers
            assert "connection" not in head.headers


def test_one_connection_carries_many_requests(client: httpx.Client) -> None:
    with connect(str(client.base_url)) as connection:
        for _ in range(4):
            connection.sendall(
                f"HEAD {ENTRY} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nX: {'x' * 30_000}\r\n\r\n".encode()
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_their_order(client: httpx.Client) -> None:
    requests = [
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nConnection: {then}\r\n\r\n"
        for path, then in ((ENTRY, "keep-alive"), ("/nothing", "keep-alive"), ("/healthz", "close"))
    ]
    response = exchange(str(client.base_url), "".join(requests).encode())
    assert re.findall(rb"HTTP/1\.1 (\d+)", response) == [b"200", b"404", b"200"]
    assert response.endswith(b"ok\n")


def test_http_1_0_gets_a_response_and_is_closed(client: httpx.Client) -> None:
    response = exchange(str(client.base_url), f"GET {ENTRY} HTTP/1.0\r\nUser-Agent: GRUB 2.06\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(client.get(ENTRY).content)


@pytest.mark.parametrize("path", ["/boot.ipxe", USER_DATA])
@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', "*"])
def test_a_client_that_has_the_content_already_gets_a_304(client: httpx.Client, path: str, form: str) -> None:
    first = client.get(path)
    again = client.get(path, headers={"if-none-match": form.format(first.headers["etag"])})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert again.headers["cache-control"] == first.headers["cache-control"]
    assert client.get(path, headers={"if-none-match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    ("wanted", "more", "status", "part"),
    [
        ("bytes=0-3", {}, 206, slice(4)),
        ("bytes=4-", {}, 206, slice(4, None)),
        ("bytes=99999-", {}, 416, slice(0)),
        ("bytes=4-", {"if-range": "ETAG"}, 206, slice(4, None)),
        ("bytes=4-", {"if-range": '"x"'}, 200, slice(None)),
        ("bytes=4-", {"if-range": "Fri, 20 Nov 2026 21:00:00 GMT"}, 200, slice(None)),
        ("bytes=4-", {"if-none-match": "ETAG"}, 304, slice(0)),
    ],
)
def test_finding_m9_a_download_of_content_can_be_resumed(
    client: httpx.Client, wanted: str, more: dict[str, str], status: int, part: slice
) -> None:
    whole = client.get(USER_DATA)
    headers = {name: value.replace("ETAG", whole.headers["etag"]) for name, value in more.items()}
    for names in ({"range": wanted, **headers}, {**headers, "range": wanted}):  # in any order
        answer = client.get(USER_DATA, headers=names)
        assert (answer.status_code, answer.content) == (status, whole.content[part])
    assert whole.headers["accept-ranges"] == "bytes"


def test_a_range_applies_only_to_get(client: httpx.Client) -> None:
    """RFC 9110, 14.2."""
    whole = client.get(USER_DATA)
    for wanted in ("bytes=0-3", "bytes=99999-"):
        head = client.head(USER_DATA, headers={"range": wanted})
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole.content)))
        assert "content-range" not in head.headers


@pytest.mark.parametrize("path", ["/boot.ipxe", ENTRY])
def test_a_script_is_sent_as_a_whole(client: httpx.Client, path: str) -> None:
    assert client.get(path, headers={"range": "bytes=0-3"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (USER_DATA, "public, max-age=31536000, immutable"),
        (ENTRY, "no-store"),
        ("/boot.ipxe", "no-cache"),
        ("/nothing", "no-store"),
        ("/api/v1/status", "no-store"),
        ("/readyz", "no-store"),
    ],
)
def test_only_content_that_never_changes_is_cached(client: httpx.Client, path: str, expected: str) -> None:
    assert client.get(path).headers["cache-control"] == expected


# Times


@pytest.mark.parametrize(
    ("now", "phase"),
    [
        pytest.param(BEFORE, "Network", id="before the window"),
        pytest.param(START.replace(hour=21, minute=59, second=59, microsecond=999_999), "Network", id="just before"),
        pytest.param(START, "Maintenance", id="at the instant"),
        pytest.param(AFTER, "Maintenance", id="in the window"),
    ],
)
def test_every_lookup_changes_at_the_transition(site: Site, client: httpx.Client, now: datetime, phase: str) -> None:
    site.now = now
    assert {phase in client.get(path).text for path in LOOKUPS} == {True}
    assert site.observed() == [], "what is made as often as asked for is not recorded"


def test_after_a_clock_is_set_back_the_earlier_responses_are_served_again(site: Site, client: httpx.Client) -> None:
    texts = []
    for site.now in (BEFORE, AFTER, BEFORE, AFTER):
        texts.append([client.get(path).text for path in LOOKUPS])
    assert texts[0] == texts[2] != texts[1] == texts[3]


@pytest.mark.parametrize("by", ["clock", "answers"])
def test_lookups_change_together_under_load(site: Site, client: httpx.Client, by: str) -> None:
    asking, done = threading.Barrier(5), threading.Event()
    seen: list[list[bool]] = [[] for _ in range(4)]

    def ask(turned: list[bool]) -> None:
        with http_peers.Client(base_url=client.base_url, headers=LOADER) as own:
            asking.wait()
            while not done.is_set():
                turned.extend("(Maintenance)" in own.get(path).text for path in LOOKUPS)

    threads = [threading.Thread(target=ask, args=(turned,)) for turned in seen]
    for thread in threads:
        thread.start()
    asking.wait()
    assert eventually(lambda: all(len(turned) > 10 for turned in seen))
    if by == "clock":
        site.now = START
    else:
        site.publish(plan_fleet(*ALWAYS, REPAIR, now=AFTER))
    marks = [len(turned) for turned in seen]
    assert eventually(lambda: all(len(turned) > mark + 10 for turned, mark in zip(seen, marks, strict=True)))
    done.set()
    for thread in threads:
        thread.join()
    for turned in seen:
        assert turned == sorted(turned), "an old answer after a new one"
        assert set(turned) == {False, True}


def test_a_path_that_the_next_plan_lacks_is_404_from_its_transition_on(site: Site, client: httpx.Client) -> None:
    restricted = fleet("baseURL: 'http://boot.test', unknownServers: NotFound, serving: {restrict: true}")
    to_disk = profile("disk", "flatcar-1", method="Disk")
    site.publish(plan_fleet(restricted, *ALWAYS[1:], to_disk, maintenance("park", "20T22:00 21T04:00", boots="disk")))
    for _ in range(2):
        before = [client.get(path).status_code for path in LOOKUPS]
        site.now = START
        after = [client.get(path).status_code for path in LOOKUPS]
        assert (before, after) == ([200] * 3, [404] * 3)
        site.now = BEFORE


@pytest.mark.parametrize("state", ["lifecycle: Parked", "lifecycle: Retired", "localDisk: NotFound"])
def test_finding_r16_a_known_machine_gets_its_disk_by_each_lookup(state: str, site: Site, client: httpx.Client) -> None:
    told = fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}, serving: {restrict: true}")
    site.publish(plan_fleet(told, server("web01", "role: web", state), *SEED[2:], policy("web", often="Never")))
    for path in LOOKUPS:
        response = client.get(path)
        assert response.status_code == 200 and "local disk" in response.text and "memtest" not in response.text, path


def test_before_the_first_publication_every_path_is_503() -> None:
    with new_site(None) as site, site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for path in (*LOOKUPS, "/boot.ipxe", "/ipxe/", "/httpboot", "/o/x", "/nothing", "/api/v1/servers"):
            response = client.get(path)
            assert (response.status_code, response.content) == (503, b"#"), path
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/v1/status").json()["applied"] == {"commit": None}
        site.publish()
        assert {client.get(path).status_code for path in (*LOOKUPS, "/readyz")} == {200}


def test_an_output_tree_of_an_unknown_format_is_not_served() -> None:
    with new_site() as site:
        manifest = site.root / "ops/manifest.json"
        manifest.write_text(manifest.read_text().replace('"version":2', '"version":3'))
        with site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
            assert {client.get(path).status_code for path in (*LOOKUPS, "/boot.ipxe", "/readyz")} == {503}
            (condition,) = client.get("/api/v1/status").json()["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "OutputTreeReadable",
        False,
        "UnknownFormat",
    )
    assert "format 3" in condition["message"]


UNREADABLE = {
    state_path("web01"): ENTRY,
    "ops/servers": BY_UUID,
    shard_path(f"mac/{MAC}"): GRUB,
    "ops/index": ENTRY,
    "ops/manifest/shared.json": "/unknown.ipxe",
    "boot/unknown.ipxe": "/unknown.ipxe",
    "boot/boot.ipxe": "/boot.ipxe",
    f"boot{USER_DATA}": USER_DATA,
}
KNOWN = (f"/unknown.ipxe?uuid={UUID}&serial=", f"/unknown.ipxe?mac={MAC}", f"/unknown.grub.cfg?mac={MAC}")


@pytest.mark.parametrize("path", [state_path("web01"), "ops/servers", "ops/index"])
def test_finding_m5_a_known_machine_whose_state_cannot_be_read_is_not_called_unknown(site: Site, path: str) -> None:
    with site.serve() as url, make_unreadable(site.root / path, "a loop of symlinks"):
        for asked in KNOWN:
            get(f"{url}{asked.partition('?')[0]}")  # a cached response is not sent to a machine that the query names
            assert get(f"{url}{asked}").status_code == 500


@pytest.mark.parametrize(("path", "asked"), UNREADABLE.items(), ids=UNREADABLE)
def test_finding_m5_an_unreadable_file_is_not_absent(site: Site, path: str, asked: str) -> None:
    with site.serve() as url:
        with make_unreadable(site.root / path, "a loop of symlinks"):
            answer = get(f"{url}{asked}")
        assert (answer.status_code in (500, 503), answer.content) == (True, b"#")
        assert answer.headers["cache-control"] == "no-store"
        assert get(f"{url}{asked}").status_code == 200


def test_finding_m5_an_endpoint_process_without_permission_answers_5xx(site: Site) -> None:
    port = free_port()
    command = (sys.executable, "-m", "gitboot", "serve", "--out", str(site.root), "--listen", f"127.0.0.1:{port}")
    with run_daemon([*BOUND, *command], port, os.environ):
        found = {}
        for path, asked in UNREADABLE.items():
            with make_unreadable(site.root / path, "forbidden"):
                found[path] = get(f"http://127.0.0.1:{port}{asked}").status_code
        assert {path for path, status in found.items() if status not in (500, 503)} == set()
        assert {get(f"http://127.0.0.1:{port}{asked}").status_code for asked in UNREADABLE.values()} == {200}
        assert get(f"http://127.0.0.1:{port}{ENTRY.replace(MAC, 'de-ad-be-ef-00-00')}").status_code == 404


def test_finding_m5_a_copy_that_lacks_the_state_of_a_known_machine_does_not_call_it_unknown(
    site: Site, client: httpx.Client
) -> None:
    """The state of a copy during rsync: the index is copied before the server states."""
    (site.root / state_path("web01")).unlink()
    assert {client.get(path).status_code for path in LOOKUPS} == {503}


def test_for_an_instance_of_another_ledger_the_endpoint_serves_nothing(site: Site) -> None:
    status = {"conditions": [{"type": "LedgerNamed", "status": False, "reason": "AnotherLedger"}]}
    site.say(status)
    with site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        assert {client.get(path).status_code for path in (*LOOKUPS, "/boot.ipxe", "/readyz")} == {503}
    (site.root / "ops/status.json").unlink()


def test_an_internal_error_is_a_500_without_a_script(
    site: Site, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    (site.root / state_path("web01")).write_text("{}")
    response = client.get(ENTRY)
    assert (response.status_code, response.content) == (500, b"#")
    site.say({"conditions": []})
    response = client.get("/metrics")
    assert (response.status_code, response.content) == (500, b"#")
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [ENTRY in logged[0].getMessage(), "/metrics" in logged[1].getMessage()] == [True, True]
    assert all(record.exc_info for record in logged)
    (site.root / "ops/status.json").unlink()


# Clients


@pytest.mark.parametrize(
    ("peer_is_operator", "forwarded", "proxies", "expected"),
    [
        pytest.param(True, None, (), 200, id="an operator"),
        pytest.param(False, None, (), 404, id="anyone"),
        pytest.param(True, "10.9.0.7", PROXY, 404, id="anyone, through a proxy on an operator's machine"),
        pytest.param(True, "10.8.0.7", PROXY, 200, id="an operator, through a proxy"),
        pytest.param(True, "unknown", PROXY, 404, id="someone that a proxy does not name"),
        pytest.param(False, "10.8.0.7", (), 404, id="a client that is no proxy, and names an operator"),
    ],
)
def test_pages_for_operators_are_served_to_operators_only(
    site: Site, peer_is_operator: bool, forwarded: str | None, proxies: Any, expected: int
) -> None:
    operators = [ip_network("10.8.0.0/16"), *([ip_network("127.0.0.1/32")] if peer_is_operator else [])]
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    with (
        site.serve(operators=operators, trusted_proxies=proxies) as url,
        http_peers.Client(base_url=url, headers=LOADER | headers) as client,
    ):
        for path in ("/api/v1/servers", "/api/v1/status", "/api/v1/openapi.json", "/metrics"):
            assert client.get(path).status_code == expected, path
        assert client.get(ENTRY).status_code == 200


def test_a_client_that_is_not_an_operator_cannot_distinguish_pages_from_missing_paths(site: Site) -> None:
    with site.serve(operators=NOBODY) as url:
        responses = {
            remove_date(exchange(url, f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()))
            for path in ("/api/v1/status", "/api/v1/servers/web01", "/api/x", "/metrics", "/nothing")
        }
    assert len(responses) == 1


def test_ipv6_loopback_is_an_operator_by_default(site: Site) -> None:
    with site.serve("[::1]:0") as url:
        assert url.startswith("http://[::1]:")
        assert get(f"{url}/api/v1/status").status_code == 200


def test_httpboot_finds_the_server_by_its_address(site: Site) -> None:
    with site.serve(trusted_proxies=PROXY) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for address in (ADDRESS, "FD00:12:0::13"):
            response = client.get("/httpboot", headers={"x-forwarded-for": address})
            assert response.headers["content-type"] == "application/json"
            assert response.json() == {
                "ClientIPs": address.lower().replace(":0:", ":"),
                "SystemUUID": UUID,
                "UKIURL": "http://boot.test/assets/flatcar-1/loader",
            }
        assert client.get("/httpboot", headers={"x-forwarded-for": "10.12.0.99"}).status_code == 404
        assert client.get("/httpboot").status_code == 404
        site.now = START  # the repair image has no such file
        assert client.get("/httpboot", headers={"x-forwarded-for": ADDRESS}).status_code == 404


def test_finding_p12_httpboot_finds_a_server_by_the_address_of_its_bond() -> None:
    bond = SEED[1].replace("]}]", f']}}, {{mac: "52:54:00:00:00:01", addresses: [{ADDRESS}/24]}}]')
    bonded = plan_fleet(SEED[0], bond, *ALWAYS[2:])
    assert bonded.servers["web01"].published.identities.count(f"address/{ADDRESS}") == 1
    with new_site(bonded) as site, site.serve(trusted_proxies=PROXY) as url:
        for path in ("/httpboot", "/v1/boot/52-54-00-00-00-01/boot.ipxe"):
            assert get(f"{url}{path}", headers={**LOADER, "x-forwarded-for": ADDRESS}).status_code == 200
        found = get(f"{url}/httpboot", headers={**LOADER, "x-forwarded-for": ADDRESS}).json()
        assert (found["SystemUUID"], found["ClientIPs"]) == (UUID, ADDRESS)


# Fetches


@pytest.fixture
def one_time_site(site: Site) -> Iterator[tuple[Site, httpx.Client]]:
    """A site whose server has a one-time installation and then a one-time repair, and a client of its endpoint."""
    site.publish(plan_fleet(*ONCE, maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    with site.serve(trusted_proxies=PROXY) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield site, client


def test_a_get_of_a_boot_script_is_recorded_before_it_is_answered(one_time_site: tuple[Site, httpx.Client]) -> None:
    site, client = one_time_site
    for site.now, phase in ((BEFORE, "(Network)"), (START, "(Maintenance)")):
        for path in LOOKUPS:
            text = client.get(path, headers={"x-forwarded-for": "10.12.0.13"}).text
            (observed,) = site.observed()
            assert phase in text
            assert (observed.path, observed.server, observed.client) == (f"boot{path}", "web01", "10.12.0.13")
            assert (observed.digest, observed.at) == (re.findall("gitboot plan (.*)", text)[0], site.now)


def test_a_request_that_consumes_no_boot_is_not_recorded(one_time_site: tuple[Site, httpx.Client]) -> None:
    site, client = one_time_site
    for _ in range(2):
        client.head(ENTRY)
        client.post(ENTRY)
        for path in ("/boot.ipxe", "/ipxe/", USER_DATA, f"/ignition/{UUID}", "/nothing", "/api/v1/status"):
            client.get(path)
    assert site.observed() == []


def test_without_a_fetch_log_a_one_time_boot_is_not_served(site: Site) -> None:
    site.publish(plan_fleet(*ONCE, maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    with site.serve(records=False) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for _ in range(2):
            for path in LOOKUPS:
                found = client.get(path)
                assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
                assert "boots its local disk" in found.text
                assert "could not record the fetch" in found.text
                assert client.head(path).headers["content-length"] == str(len(found.content))
        site.now = START  # a boot that writes no disk is served all the same
        assert "(Maintenance)" in client.get(ENTRY).text
        metrics = client.get("/metrics").text
    assert 'gitboot_boots_withheld_total{reason="NotRecorded"} 6.0' in metrics


def test_if_the_policy_always_boots_an_image_that_writes_no_disk_that_is_the_fallback(site: Site) -> None:
    diskless = (
        *SEED,
        policy("web", "{matchLabels: {role: web}}", boots="repair"),
        maintenance("install", "20T20:00 21T04:00", "networkBoot: Once", boots="web"),
    )
    site.publish(plan_fleet(*diskless))
    with site.serve(records=False) as url:
        text = get(url + ENTRY).text
    assert "could not record the fetch" in text
    assert "memtest-7/kernel" in text


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_leaves_before_the_response_has_fetched_nothing(
    one_time_site: tuple[Site, httpx.Client], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, client = one_time_site
    gone, find = threading.Event(), BootResponses.find

    def slowly(*given: Any) -> BootResponse | None:
        gone.wait(60)
        return find(*given)

    monkeypatch.setattr(BootResponses, "find", slowly)
    with connect(str(client.base_url)) as leaving:
        leaving.sendall(f"GET {ENTRY} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\n\r\n".encode())
        if how == "resets":
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    gone.set()
    assert client.get(GRUB).status_code == 200
    assert [observation.path for observation in site.observed()] == [f"boot{GRUB}"]


# Failures to record


def test_a_disk_that_does_not_respond_is_awaited_until_the_deadline(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish(plan_fleet(*ONCE))
    stuck, sync = threading.Event(), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (stuck.wait(), sync(fd)))
    with site.serve(deadline_s=0.2) as url:
        try:
            assert "boots its local disk" in get(url + ENTRY).text
            assert get(f"{url}/boot.ipxe").status_code == 200, "nobody else waits"
        finally:
            stuck.set()
    assert site.observed() == [], "its intent came too late, and was withheld"


# Many requests, and changes


def test_a_thousand_simultaneous_clients_are_each_recorded_first(one_time_site: tuple[Site, httpx.Client]) -> None:
    site, client = one_time_site
    request = f"GET {ENTRY} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE/1.21.1\r\nConnection: close\r\n\r\n".encode()

    async def ask(number: int, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.replace(b"Host: x", b"Host: x\r\nX-Forwarded-For: 10.0.%d.%d" % divmod(number, 250)))
        text = await reader.read()
        writer.close()
        assert b"(Network)" in text

    async def ask_all(port: int) -> None:
        await asyncio.gather(*(ask(number, port) for number in range(1000)))

    asyncio.run(ask_all(client.base_url.port or 0))
    observed = site.observed()
    assert len({each.client for each in observed}) == len(observed) == 1000


def test_a_replaced_state_is_used_at_the_next_request(one_time_site: tuple[Site, httpx.Client]) -> None:
    site, client = one_time_site
    for version in range(20):
        site.publish(plan_fleet(*ONCE[:-1], policy(f"v{version}", often="Once")), commit=str(version))
        assert f"BootPolicy/v{version}," in client.get(ENTRY).text
        assert f"BootPolicy/v{version}," in client.get(BY_UUID).text


def test_a_removed_server_is_404_and_a_new_one_is_found(site: Site, client: httpx.Client) -> None:
    gone = plan_fleet(*ALWAYS[:1], *ALWAYS[2:], server("web02", "role: web"))
    for fleet_at_hand, expected in ((FLEET, [200, 404]), (gone, [404, 200]), (FLEET, [200, 404])):
        site.publish(fleet_at_hand)
        asked = [client.get(path).status_code for path in (BY_UUID, f"/ipxe/{make_uuid('web02')}")]
        assert asked == expected


@pytest.mark.parametrize("how", ["moved", "swapped"])
def test_an_address_that_moves_to_another_server_is_never_404(site: Site, client: httpx.Client, how: str) -> None:
    mac, other = MAC.replace("-", ":"), "52:54:00:00:00:02"
    second = server("aaa02", "role: web").replace(make_mac("aaa02"), other)
    here = plan_fleet(*ALWAYS, second)
    first = ALWAYS[1].replace(mac, other if how == "swapped" else "52:54:00:00:00:03")
    there = plan_fleet(*ALWAYS[:1], first, *ALWAYS[2:], second.replace(other, mac))
    done, seen = threading.Event(), set[tuple[int, str]]()

    def ask() -> None:
        with http_peers.Client(base_url=client.base_url, headers=LOADER) as own:
            while not done.is_set():
                found = own.get(ENTRY)
                seen.add((found.status_code, "aaa02" if "aaa02" in found.text else "web01"))

    thread = threading.Thread(target=ask)
    site.publish(here)
    thread.start()
    for number in range(3000):
        site.publish((there, here)[number % 2], commit=str(number), at=BEFORE + timedelta(seconds=number))
        if number >= 29 and len(seen) >= 2:  # a busy machine may have sent few requests until now
            break
    done.set()
    thread.join()
    assert seen == {(200, "aaa02"), (200, "web01")}


# Files on the disk


def test_files_of_earlier_plans_are_served_as_long_as_they_exist(site: Site, client: httpx.Client) -> None:
    site.publish(plan_fleet(*ALWAYS, templates={"t": '{"ignition": {"version": "3.4.0"}, "x": 1}'}))
    response = client.get(USER_DATA)
    assert (response.status_code, response.content) == (200, FLEET.boot_files[USER_DATA].content)
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-type"] == "application/vnd.coreos.ignition+json"
    assert client.get(f"/o/{'d' * 64}/user-data").status_code == 404


def test_a_large_artifact_is_read_from_the_disk_each_time(site: Site, client: httpx.Client) -> None:
    kernel = b"k" * 3_000_000
    path = f"/o/{sha256(kernel).hexdigest()}/vmlinuz"
    (site.root / f"boot{path}").parent.mkdir(parents=True)
    (site.root / f"boot{path}").write_bytes(kernel)
    assert client.get(path).content == kernel
    assert client.get(path, headers={"range": "bytes=0-9"}).content == kernel[:10]


def test_content_that_does_not_match_the_digest_in_its_path_is_not_served(site: Site, client: httpx.Client) -> None:
    assert client.get(USER_DATA).status_code == 200
    (site.root / f"boot{USER_DATA}").write_bytes(b"#cloud-config\nruncmd: []\n")
    assert client.get(USER_DATA).status_code == 404


def test_a_bundle_is_served_by_the_names_in_its_folder(site: Site, client: httpx.Client) -> None:
    cloud = image("flatcar-1", "userData: CloudInit")
    web = profile("web", "flatcar-1", "userData: {format: CloudInit, template: t}")
    bundled = plan_fleet(ALWAYS[0], ALWAYS[1], cloud, ALWAYS[3], web, *ALWAYS[5:], templates={"t": "#cloud-config\n"})
    site.publish(bundled)
    paths = [path for path in bundled.boot_files if path.endswith("-data")]
    assert len(paths) == 2
    for path in paths:
        assert client.get(path).content == bundled.boot_files[path].content
        assert client.get(path).headers["content-type"] == "text/cloud-config; charset=utf-8"


def test_a_shared_file_is_served_unchanged_and_others_in_its_folder_are_not(site: Site, client: httpx.Client) -> None:
    (site.root / "boot/unknown.ipxe").write_bytes(b"#!ipxe\n# newer\n")
    assert client.get("/unknown.ipxe").content == b"#!ipxe\n# newer\n"
    (site.root / "boot/mine").write_text("mine")
    assert client.get("/mine").status_code == 404
    (site.root / "boot/unknown.ipxe").unlink()
    assert client.get("/unknown.ipxe").status_code == 404
    (site.root / "boot/mine").unlink()
