from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest

from gitboot.render.answers import Answers, EntryOf
from gitboot.render.tree import File
from gitboot.status import Status
from tests.fleets import uuid_of
from tests.serving import (
    AFTER,
    BEFORE,
    BY_UUID,
    ENTRY,
    GRUB,
    LOOKUPS,
    MAC,
    START,
    USER_DATA,
    UUID,
    Site,
    answers,
    connect,
    eventually,
    exchange,
    read_all,
    undated,
)

SWAPPED = "-".join([*("".join(re.findall("..", part)[::-1]) for part in UUID.split("-")[:3]), *UUID.split("-")[3:]])
NOBODY = ()
RESET = b"\1\0\0\0\0\0\0\0"  # struct linger: closing resets the connection


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, httpx.Client]]:
    site = Site()
    with site.serve() as url, httpx.Client(base_url=url) as client:
        yield site, client


@pytest.fixture
def site(served: tuple[Site, httpx.Client]) -> Site:
    site, _ = served
    site.reset()
    return site


@pytest.fixture
def client(site: Site, served: tuple[Site, httpx.Client]) -> httpx.Client:
    """A client of an endpoint that answers from ``site``."""
    return served[1]


# Which file


def test_every_boot_file_is_served_as_it_lies(site: Site, client: httpx.Client) -> None:
    assert site.answers is not None
    boot_files = {path: file for path, file in site.answers.files.items() if path.startswith("boot/")}
    assert len(boot_files) > 8
    for path, file in boot_files.items():
        response = client.get(path.removeprefix("boot"))
        assert (response.status_code, response.content) == (200, file.content), path
        assert response.headers["content-type"] == file.content_type
        assert response.headers["content-length"] == str(len(file.content))
        assert response.headers["etag"] == f'"{sha256(file.content).hexdigest()}"'


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
        pytest.param(f"{ENTRY}?arch=x86_64&%00=../..", ENTRY, id="a query"),
        pytest.param(f"http://another.test{ENTRY}", ENTRY, id="a whole URL, as to a proxy"),
    ],
)
def test_other_spellings_are_answered_alike(client: httpx.Client, asked: str, meant: str) -> None:
    request = f"GET {asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    response = exchange(str(client.base_url), request.encode())
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\n" + client.get(meant).content)


def test_ipxe_folder_is_the_first_script_one_level_down(client: httpx.Client) -> None:
    first, chain = client.get("/boot.ipxe"), client.get("/ipxe/")
    assert chain.headers["content-type"] == first.headers["content-type"]
    assert chain.text == re.sub(r"((?:chain --autofree|imgfetch --name \w+) )", r"\1../", first.text)


def test_ipxe_folder_is_nothing_where_ipxe_is_not_published(site: Site, client: httpx.Client) -> None:
    assert site.answers is not None
    files = {path: file for path, file in site.answers.files.items() if path != "boot/boot.ipxe"}
    site.answers = replace(site.answers, files=files)
    assert client.get("/ipxe/").status_code == 404


def test_loaders_need_no_port_in_host(client: httpx.Client) -> None:
    assert client.get(ENTRY, headers={"host": "boot.test"}).status_code == 200


# What is not there

ESCAPES = (
    "/../ops/manifest.json",
    "/ops/manifest.json",
    "/ops/plans/web01.json",
    "/boot/boot.ipxe",
    "/%2e%2e/ops/plans/web01.json",
    "/..%2fops%2fplans%2fweb01.json",
    "/%252e%252e/ops/plans/web01.json",
    "/..%5cops%5cplans%5cweb01.json",
    "/..\\ops\\plans\\web01.json",
    "/%c0%ae%c0%ae/ops/plans/web01.json",
    "/v1/boot/../../../ops/plans/web01.json",
    f"/v1/boot/{MAC}/../../../../ops/plans/web01.json",
    f"/v1/boot/{MAC}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/ops/plans/web01.json",
    "/./boot.ipxe",
    "//boot.ipxe",
    "/boot.ipxe/",
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
    f"/ipxe/{uuid_of('another')}",
    "/ipxe/00000000-0000-0000-0000-000000000000",
    "/ipxe/x",
    "/ipxe",
    f"/ipxe/{UUID}/",
    f"/ignition/{uuid_of('another')}",
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
def test_what_is_not_there_is_one_and_the_same_404(client: httpx.Client, target: str) -> None:
    nothing, asked = (
        undated(exchange(str(client.base_url), b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path))
        for path in (b"/nothing", target.encode())
    )
    assert nothing.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"\r\nContent-Length: 0\r\n" in nothing
    assert nothing.endswith(b"\r\n\r\n")
    assert asked == nothing


@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param(b"GET /\xff\xfe HTTP/1.1", id="bytes that are no ASCII"),
        pytest.param(b"GET ops/plans/web01.json HTTP/1.1", id="a path without a slash"),
        pytest.param(b"GET http://x HTTP/1.1", id="a URL without a path"),
        pytest.param(b"CONNECT x:80 HTTP/1.1", id="a tunnel"),
        pytest.param(b"GET", id="half a line"),
    ],
)
def test_what_is_no_request_gets_no_file(client: httpx.Client, request_line: bytes) -> None:
    response = exchange(str(client.base_url), request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert response.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", [ENTRY, "/nothing", "/api/v1/status", "/healthz"])
def test_only_get_and_head_are_allowed(client: httpx.Client, method: str, path: str) -> None:
    response = client.request(method, path)
    assert (response.status_code, response.headers["allow"], response.content) == (405, "GET, HEAD", b"")


# HTTP


def all_paths(answers: Answers) -> list[str]:
    boot = [path.removeprefix("boot") for path in sorted(answers.files) if path.startswith("boot/")]
    pages = ["/api/v1/servers", "/api/v1/servers/web01", "/api/v1/servers/web01/plan", "/api/v1/status"]
    return [*boot, *pages, "/api/v1/openapi.json", "/healthz", "/readyz", "/ipxe/", "/httpboot", "/nothing"]


def test_head_says_what_get_says_without_the_body_and_keeps_the_connection(site: Site) -> None:
    site.answers = answers(addresses={"127.0.0.1": "web01"})
    with site.serve() as url, httpx.Client(base_url=url) as client:
        for path in all_paths(site.answers):
            get, head = client.get(path), client.head(path)
            assert head.content == b""
            assert head.status_code == get.status_code
            assert head.headers.get("content-length") == str(len(get.content)), path
            without_date = [{**response.headers, "date": ""} for response in (get, head)]
            assert without_date[0] == without_date[1]
            assert "transfer-encoding" not in get.headers
            assert "connection" not in head.headers


def test_one_connection_carries_many_requests(client: httpx.Client) -> None:
    with connect(str(client.base_url)) as connection:
        for _ in range(4):
            connection.sendall(f"HEAD {ENTRY} HTTP/1.1\r\nHost: x\r\nX: {'x' * 30_000}\r\n\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_their_order(client: httpx.Client) -> None:
    requests = [
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: {then}\r\n\r\n"
        for path, then in ((ENTRY, "keep-alive"), ("/nothing", "keep-alive"), ("/healthz", "close"))
    ]
    response = exchange(str(client.base_url), "".join(requests).encode())
    assert re.findall(rb"HTTP/1\.1 (\d+)", response) == [b"200", b"404", b"200"]
    assert response.endswith(b"ok\n")


def test_http_1_0_is_answered_and_closed(client: httpx.Client) -> None:
    response = exchange(str(client.base_url), f"GET {ENTRY} HTTP/1.0\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(client.get(ENTRY).content)


@pytest.mark.parametrize("path", [ENTRY, USER_DATA])
@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', "*"])
def test_who_has_it_already_is_told_so(client: httpx.Client, path: str, form: str) -> None:
    first = client.get(path)
    again = client.get(path, headers={"if-none-match": form.format(first.headers["etag"])})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-control"] == first.headers["cache-control"]


def test_who_has_another_version_is_sent_this_one(client: httpx.Client) -> None:
    assert client.get(ENTRY, headers={"if-none-match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (USER_DATA, "public, max-age=31536000, immutable"),
        (ENTRY, "no-cache"),
        ("/boot.ipxe", "no-cache"),
        ("/nothing", "no-store"),
        ("/api/v1/status", "no-store"),
        ("/readyz", "no-store"),
    ],
)
def test_only_what_never_changes_is_cached(client: httpx.Client, path: str, expected: str) -> None:
    assert client.get(path).headers["cache-control"] == expected


# When


@pytest.mark.parametrize(
    ("now", "phase"),
    [
        pytest.param(BEFORE, "Network", id="before the window"),
        pytest.param(START.replace(hour=21, minute=59, second=59, microsecond=999_999), "Network", id="just before"),
        pytest.param(START, "Maintenance", id="at the instant"),
        pytest.param(AFTER, "Maintenance", id="in the window"),
    ],
)
def test_every_lookup_turns_at_the_instant(site: Site, client: httpx.Client, now: datetime, phase: str) -> None:
    site.now = now
    assert {phase in client.get(path).text for path in LOOKUPS} == {True}


def test_a_clock_that_is_set_back_turns_answers_back(site: Site, client: httpx.Client) -> None:
    texts = []
    for site.now in (BEFORE, AFTER, BEFORE, AFTER):
        texts.append([client.get(path).text for path in LOOKUPS])
    assert texts[0] == texts[2] != texts[1] == texts[3]


@pytest.mark.parametrize("by", ["clock", "answers"])
def test_lookups_turn_together_under_load(site: Site, client: httpx.Client, by: str) -> None:
    site.answers = answers()
    asking, done = threading.Barrier(5), threading.Event()
    seen: list[list[bool]] = [[] for _ in range(4)]

    def ask(turned: list[bool]) -> None:
        with httpx.Client(base_url=client.base_url) as own:
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
        site.answers = answers(now=AFTER)
    marks = [len(turned) for turned in seen]
    assert eventually(lambda: all(len(turned) > mark + 10 for turned, mark in zip(seen, marks, strict=True)))
    done.set()
    for thread in threads:
        thread.join()
    for turned in seen:
        assert turned == sorted(turned), "an old answer after a new one"
        assert set(turned) == {False, True}


def test_a_path_that_the_next_plan_has_not_is_404_from_its_instant_on(site: Site, client: httpx.Client) -> None:
    assert site.answers is not None
    turns = {path: (each[0]._replace(file=None),) for path, each in site.answers.turns.items()}
    site.answers = replace(site.answers, turns=turns)
    before = [client.get(path).status_code for path in LOOKUPS]
    site.now = START
    assert (before, [client.get(path).status_code for path in LOOKUPS]) == ([200] * 3, [404] * 3)


def test_before_the_first_plans_nothing_is_known_of_any_path(site: Site, client: httpx.Client) -> None:
    site.answers, site.status = None, Status()
    for path in (*LOOKUPS, "/boot.ipxe", "/ipxe/", "/httpboot", "/o/x", "/nothing", "/api/v1/servers"):
        response = client.get(path)
        assert (response.status_code, response.content) == (503, b""), path
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    assert client.get("/api/v1/status").json()["applied"] == {"commit": None}
    site.answers, site.status = answers(), Status(planned_at=BEFORE)
    assert {client.get(path).status_code for path in (*LOOKUPS, "/readyz")} == {200}


def test_a_fault_of_our_own_is_a_500_and_no_script(
    site: Site, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.answers is not None
    site.answers = replace(site.answers, files={f"boot{ENTRY}": "no file"}, turns={})  # type: ignore[dict-item]
    response = client.get(ENTRY)
    assert (response.status_code, response.content) == (500, b"")
    site.status = None  # type: ignore[assignment]
    response = client.get("/api/v1/status")
    assert (response.status_code, response.content) == (500, b"")
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [ENTRY in logged[0].getMessage(), "/api/v1/status" in logged[1].getMessage()] == [True, True]
    assert all(record.exc_info for record in logged)


# To whom


@pytest.mark.parametrize(
    ("peer_is_operator", "forwarded", "expected"),
    [
        pytest.param(True, None, 200, id="an operator"),
        pytest.param(False, None, 404, id="anyone"),
        pytest.param(True, "10.9.0.7", 404, id="anyone, through a proxy on an operator's machine"),
        pytest.param(True, "10.8.0.7", 200, id="an operator, through a proxy"),
        pytest.param(True, "unknown", 404, id="someone that a proxy does not name"),
    ],
)
def test_operators_pages_are_for_operators(
    site: Site, peer_is_operator: bool, forwarded: str | None, expected: int
) -> None:
    operators = [ip_network("10.8.0.0/16"), *([ip_network("127.0.0.1/32")] if peer_is_operator else [])]
    headers = {"x-forwarded-for": forwarded} if forwarded else {}
    with site.serve(operators=operators) as url, httpx.Client(base_url=url, headers=headers) as client:
        for path in ("/api/v1/servers", "/api/v1/status", "/api/v1/openapi.json", "/metrics"):
            assert client.get(path).status_code == expected, path
        assert client.get(ENTRY).status_code == 200


def test_who_is_no_operator_cannot_tell_pages_from_nothing(site: Site) -> None:
    with site.serve(operators=NOBODY) as url:
        responses = {
            undated(exchange(url, f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()))
            for path in ("/api/v1/status", "/api/v1/servers/web01", "/api/x", "/metrics", "/nothing")
        }
    assert len(responses) == 1


def test_a_header_is_not_believed_from_who_is_no_proxy(site: Site) -> None:
    headers = {"x-forwarded-for": "10.8.0.7"}
    with site.serve(trusted_proxies=NOBODY, operators=[ip_network("10.8.0.0/16")]) as url:
        assert httpx.get(f"{url}/api/v1/status", headers=headers).status_code == 404


def test_ipv6_loopback_is_an_operator_by_default(site: Site) -> None:
    with site.serve("[::1]:0") as url:
        assert url.startswith("http://[::1]:")
        assert httpx.get(f"{url}/api/v1/status").status_code == 200


def test_httpboot_finds_the_server_by_its_address(site: Site) -> None:
    site.answers = answers(addresses={"10.12.0.13": "web01", "fd00:12::13": "web01", "10.12.0.14": "web01"})
    with site.serve() as url, httpx.Client(base_url=url) as client:
        for address in ("10.12.0.13", "FD00:12:0::13"):
            response = client.get("/httpboot", headers={"x-forwarded-for": address})
            assert response.headers["content-type"] == "application/json"
            assert response.json() == {
                "ClientIPs": address.lower().replace(":0:", ":"),
                "SystemUUID": UUID,
                "UKIURL": "http://boot.test/x.efi",
            }
        assert client.get("/httpboot", headers={"x-forwarded-for": "10.12.0.99"}).status_code == 404
        assert client.get("/httpboot").status_code == 404
        files = {path: file for path, file in site.answers.files.items() if "httpboot" not in path}
        site.answers = replace(site.answers, files=files)
        assert client.get("/httpboot", headers={"x-forwarded-for": "10.12.0.13"}).status_code == 404


# What was fetched


def test_a_completed_get_of_an_entry_is_observed(site: Site, client: httpx.Client) -> None:
    assert site.answers is not None
    for path in LOOKUPS:
        client.get(path, headers={"x-forwarded-for": "10.12.0.13"})
    assert eventually(lambda: len(site.observed) == 3)
    assert [observation.path for observation in site.observed] == [f"boot{path}" for path in LOOKUPS]
    assert {observation.digest for observation in site.observed} == {
        site.answers.entries[f"boot{path}"].digest for path in LOOKUPS
    }
    assert {(each.server, each.client, each.at) for each in site.observed} == {("web01", "10.12.0.13", BEFORE)}


def test_what_is_observed_is_what_was_sent(site: Site, client: httpx.Client) -> None:
    for site.now in (BEFORE, START):
        sent = re.findall(r"^# gitboot plan (\w+)", client.get(ENTRY).text, re.MULTILINE)
        assert eventually(lambda: len(site.observed) == 1)
        assert [site.observed.pop().digest] == sent


def test_what_is_no_completed_get_of_an_entry_is_not_observed(site: Site, client: httpx.Client) -> None:
    etag = client.head(ENTRY).headers["etag"]
    client.get(ENTRY, headers={"if-none-match": etag})
    client.post(ENTRY)
    for path in ("/boot.ipxe", "/ipxe/", USER_DATA, "/nothing", "/api/v1/status"):
        client.get(path)
    client.get(ENTRY)
    assert eventually(lambda: len(site.observed) >= 1)
    assert len(site.observed) == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_large_entry_is_observed_once_it_was_taken_whole(site: Site, version: str) -> None:
    large = File(b"x" * 16_000_000)
    entries = {"boot/large": EntryOf("web01", "a" * 64)}  # type: ignore[arg-type]
    site.answers = Answers(files={"boot/large": large}, entries=entries)
    request = f"GET /large HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    with site.serve() as url:
        with connect(url, receive_buffer=65536) as leaving:
            leaving.sendall(request)
            assert leaving.recv(1000).startswith(b"HTTP/1.1 200")
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with connect(url, receive_buffer=65536) as staying:
            staying.sendall(request)
            staying.recv(1000)
            assert not eventually(lambda: site.observed != [], within_s=0.3)
            read_all(staying)
        assert eventually(lambda: len(site.observed) == 1)


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_who_leaves_before_the_answer_has_fetched_nothing(site: Site, how: str) -> None:
    gone = threading.Event()

    class Slow(dict[str, File]):
        def get(self, path: str, default: File | None = None) -> File | None:  # type: ignore[override]
            gone.wait(5)
            return super().get(path, default)

    assert site.answers is not None
    site.answers = replace(site.answers, files=Slow(site.answers.files))
    with site.serve() as url:
        with connect(url) as client:
            client.sendall(f"GET {ENTRY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if how == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        gone.set()
        assert httpx.get(f"{url}{GRUB}").status_code == 200
        assert eventually(lambda: site.observed != [])
    assert [observation.path for observation in site.observed] == [f"boot{GRUB}"]


# Files on the disk


def test_what_earlier_plans_named_is_served_from_the_disk(site: Site, tmp_path: Path) -> None:
    digest = "e" * 64
    (tmp_path / digest).mkdir()
    (tmp_path / digest / "user-data").write_text("#cloud-config\n")
    with site.serve(artifacts=tmp_path) as url, httpx.Client(base_url=url) as client:
        response = client.get(f"/o/{digest}/user-data")
        assert (response.status_code, response.text) == (200, "#cloud-config\n")
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert client.get(USER_DATA).headers["content-type"].startswith("text/cloud-config")
        assert client.get(f"/o/{'d' * 64}/user-data").status_code == 404
