"""Access control: requests of operators, and limits for clients that open many connections."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import httpx
import pytest

from gitboot.endpoint import connections
from gitboot.endpoint.access_control import LOOPBACK, OperatorAccess, Tokens, build_network_matcher, find_client_address
from gitboot.endpoint.api import WEBHOOK_PATH, PushSecret, Webhooks
from gitboot.endpoint.app import ClientRules, Endpoint
from gitboot.endpoint.connections import ClientQuota
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, build_url, open_listening_socket
from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import REPORT_SUFFIX, read_reports
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.documentation import read_page
from tests.helpers.endpoints import BEFORE, ENTRY, LOADER, Site, connect, exchange, get, remove_date, site
from tests.helpers.fleets import write_configuration
from tests.helpers.forked_commands import RunningCommand, join, run_forked
from tests.helpers.git_repositories import program
from tests.helpers.http_peers import Authority
from tests.helpers.running_instance import eventually

TOKEN = "a-token-of-prometheus"
PAGES = ("/api/v1/status", "/api/v1/servers", "/metrics")
NOBODY = [ip_network("192.0.2.1/32")]


@pytest.fixture
def made() -> Iterator[Site]:
    with site() as found:
        yield found


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "tokens").write_text(f"# of Prometheus\n{TOKEN}\n")
    return Tokens(tmp_path / "tokens")


def get_codes(url: str, **headers: str) -> set[int]:
    return {get(f"{url}{path}", headers=headers).status_code for path in PAGES}


CLAIMS: Final[tuple[tuple[str, dict[str, str], int], ...]] = (
    ("an address", {}, 200),
    ("localhost", {"host": "localhost:8080"}, 200),
    ("an IPv6 address", {"host": "[::1]:8080"}, 200),
    ("a configured name", {"host": "Boot.Example.net"}, 200),
    ("a name that a stranger's name server leads here", {"host": "rebound.attacker.test"}, 404),
    ("a name that begins alike", {"host": "127.0.0.1.attacker.test"}, 404),
    ("localhost below another", {"host": "localhost.attacker.test"}, 404),
    ("no name", {"host": ""}, 404),
    ("an unknown proxy", {"x-forwarded-for": "127.0.0.1"}, 404),
    ("a proxy that names a stranger", {"x-forwarded-for": "10.9.0.7"}, 404),
    ("a proxy that only names itself", {"via": "1.1 proxy"}, 404),
    ("another one", {"x-real-ip": "10.9.0.7"}, 404),
    ("another one", {"x-forwarded-proto": "https"}, 404),
    ("another one", {"forwarded": "for=10.9.0.7"}, 404),
)


def test_t12_a_client_on_this_host_is_an_operator_if_its_headers_show_no_proxy_and_no_foreign_host(made: Site) -> None:
    with made.serve(names=("boot.example.net",)) as url:
        for case, headers, expected in CLAIMS:
            assert get_codes(url, **headers) == {expected}, case


def test_t12_a_proxy_that_uses_http_1_0_and_sends_no_header_is_not_an_operator(made: Site) -> None:
    """A request as nginx sends it with its default configuration."""
    with made.serve() as url, connect(url) as client:
        client.sendall(b"GET /api/v1/status HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert client.recv(20).startswith(b"HTTP/1.1 404")


def test_t12_a_trusted_proxy_is_not_an_operator_itself(made: Site) -> None:
    with made.serve(trusted_proxies=LOOPBACK) as url:
        assert get_codes(url) == {404}
        assert get_codes(url, **{"x-forwarded-for": "127.0.0.1"}) == {200}
        assert get(url + ENTRY).status_code == 200


def test_t12_a_token_is_accepted_from_any_address(made: Site, tokens: Tokens, tmp_path: Path) -> None:
    with made.serve(operators=NOBODY, tokens=tokens) as url:
        assert get_codes(url) == {404}
        assert get_codes(url, authorization=f"Bearer {TOKEN}", host="boot.example.net") == {200}
        assert get_codes(url, authorization=f"bearer {TOKEN}", **{"x-forwarded-for": "10.9.0.7"}) == {200}
        for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer #", f"Basic {TOKEN}", TOKEN):
            assert get_codes(url, authorization=wrong) == {401}, wrong
        (tmp_path / "tokens").write_text("another-token-from-now-on\n")
        assert get_codes(url, authorization=f"Bearer {TOKEN}") == {401}
        assert get_codes(url, authorization="Bearer another-token-from-now-on") == {200}
        (tmp_path / "tokens").unlink()
        assert get_codes(url, authorization="Bearer another-token-from-now-on") == {401}


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", f"{TOKEN}\nshort\n"])
def test_t12_a_token_that_can_be_guessed_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(UsageError, match="at least 16 characters"):
        Tokens(tmp_path / "tokens").check()


def test_t12_rejected_operator_requests_are_counted(made: Site, tokens: Tokens) -> None:
    with made.serve(tokens=tokens) as url:
        for headers in (
            {"host": "x.test"},
            {"via": "x"},
            {"authorization": "Bearer x"},
        ):
            get(f"{url}/metrics", headers=headers)
        counted = get(f"{url}/metrics").text
    for reason in ("Host", "Proxy", "Token"):
        assert f'gitboot_operator_requests_rejected_total{{reason="{reason}"}} 1.0' in counted


# With real processes


@contextmanager
def run_listening(made: Site, *arguments: object, files: int | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """The process of ``gitboot serve``, and the URLs at which it listens."""
    command = ("serve", "--out", made.root, "--listen", "127.0.0.1:0", *arguments)
    with RunningCommand(*command) if files is None else run_limited(files, *map(str, command)) as process:
        assert process.stderr is not None
        urls: dict[str, str] = {}
        for line in process.stderr:
            event = json.loads(line)
            if event["type"].startswith("Listening"):
                urls[event["type"]] = event["url"]
            if event["type"] == "NotRecording":
                break
        eventually(lambda: _is_answered(urls["Listening"]))
        yield process.pid, urls
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def run_limited(files: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Return a command with a limit of open files, which the command itself may raise."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    command = [sys.executable, "-m", "gitboot", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=limit) as process:
        try:
            yield process
        finally:
            process.kill()


def _is_answered(url: str) -> bool:
    try:
        return get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_t12_operators_have_their_own_socket(made: Site, tmp_path: Path, workers: int) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    options = ("--operators-listen", "127.0.0.1:0", "--operators-tokens", tmp_path / "tokens", "--workers", workers)
    with run_listening(made, *options) as (_, urls):
        machines, operators = urls["Listening"], urls["ListeningForOperators"]
        assert operators.startswith("http://")
        assert get_codes(operators) == {200}
        assert get_codes(machines) == get_codes(machines, authorization=f"Bearer {TOKEN}") == {404}
        assert get(machines + ENTRY).status_code == 200
        assert get(operators + ENTRY).status_code == 404
        assert [get(f"{url}/").status_code for url in (operators, machines)] == [200, 404]
        assert get(f"{operators}/healthz").status_code == 200


@for_each(
    ("operators", "local_address", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "::1", False),
        ("0.0.0.0", "::ffff:127.0.0.1", False),
        ("::", "::1", True),
        ("::", "::ffff:127.0.0.1", True),
        ("::", "127.0.0.1", False),
    ],
)
def test_t12_a_socket_of_the_other_ip_version_is_not_the_socket_of_operators(
    operators: str, local_address: str, expected: bool
) -> None:
    access = OperatorAccess(
        is_operator=lambda _: True, is_proxy=lambda _: False, names=(), tokens=None, operators_socket=(operators, 8080)
    )
    assert access.is_operators_socket((local_address, 8080)) is expected
    assert access.is_machines_socket((local_address, 8080)) is not expected
    assert not access.is_operators_socket((local_address, 8081))


OTHER_SPELLINGS: Final = (
    ("/{0}{1}", "a slash before the path"),
    ("/%2f{1}", "an encoded slash before the path"),
    ("/%2F{0}{1}", "both"),
    ("//{0}.{0}{1}", "a dot between slashes"),
    ("/.{0}{1}", "a dot"),
    ("/%2e{0}{1}", "an encoded dot"),
    ("/nothing/..{0}{1}", "a folder above"),
)


@for_each("socket", ["machines", "operators", "both"])
def test_a_path_of_operators_has_only_one_spelling_at_every_socket(made: Site, tmp_path: Path, socket: str) -> None:
    with serve_two_sockets(made, tmp_path, shared=socket == "both") as (machines, operators, woken):
        url = machines if socket == "machines" else operators
        nothing = ask_raw(url, "GET", "/nothing")
        assert nothing.startswith(b"HTTP/1.1 404 ")
        assert nothing.endswith(b"\r\n\r\n#")
        for path in (*PAGES, "/api/v1/servers/web01/plan", "/page/", "/page", "/", "/healthz", WEBHOOK_PATH):
            for spelling, case in OTHER_SPELLINGS:
                if (other := spelling.format("/", path.removeprefix("/"))) != "//":
                    assert ask_raw(url, "GET", other) == nothing, (path, case)
                assert ask_raw(url, "POST", other).startswith(b"HTTP/1.1 405 "), (path, case)
            assert ask_raw(url, "GET", f"/{path}/") == nothing, path
            if path != "/":
                encoded = f"/%{ord(path[1]):x}{path[2:]}"
                first, second = (ask_raw(url, "GET", each).split(b"\r\n")[0] for each in (encoded, path))
                assert first == second, path
            if socket == "machines" and path != "/healthz":
                assert ask_raw(url, "GET", path) == nothing, path
        assert woken == []


def test_a_webhook_is_accepted_at_its_own_path_only(made: Site, tmp_path: Path) -> None:
    with serve_two_sockets(made, tmp_path) as (machines, operators, woken):
        for url, path, expected in (
            (operators, f"/{WEBHOOK_PATH}", 405),
            (operators, f"/.{WEBHOOK_PATH}", 405),
            (machines, f"/{WEBHOOK_PATH}", 405),
            (machines, WEBHOOK_PATH, 405),
            (operators, WEBHOOK_PATH, 204),
        ):
            found = ask_raw(url, "POST", path, f"X-Gitlab-Token: {TOKEN}\r\n")
            assert found.startswith(f"HTTP/1.1 {expected} ".encode()), (url, path)
            assert bool(woken) == (expected == 204)


@contextmanager
def serve_two_sockets(made: Site, folder: Path, *, shared: bool = False) -> Iterator[tuple[str, str, list[int]]]:
    """The URLs of the machines and of operators at one endpoint, and the fetches that webhooks triggered."""
    (folder / "secret").write_text(TOKEN)
    woken: list[int] = []
    with ExitStack() as stack:
        machines, operators = (stack.enter_context(open_listening_socket("127.0.0.1:0")) for _ in range(2))
        rules = ClientRules(
            operators_socket=None if shared else operators.getsockname(),
            webhooks=Webhooks(PushSecret(folder / "secret"), lambda: woken.append(1)),
        )
        tree = PublishedTree(made.root, lambda: BEFORE)
        stack.enter_context(EndpointServer(Endpoint(tree, lambda: BEFORE, clients=rules), machines, operators))
        yield build_url("127.0.0.1:0", machines), build_url("127.0.0.1:0", operators), woken


def ask_raw(url: str, method: str, path: str, headers: str = "") -> bytes:
    """Send a path as it is written, and return the response without its date."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
    return remove_date(exchange(url, head.encode()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--operators", "10.0.0.1/8"), "--operators: 10.0.0.1/8 has host bits set"),
        (write_configuration(trusted_proxies=["proxy"]), "trusted-proxies: 'proxy' does not appear to be"),
        (("--operators-tokens", "/does/not/exist"), "/does/not/exist cannot be read"),
        (("--operators-listen", "8080"), "expected HOST:PORT"),
    ],
)
def test_t12_invalid_options_are_rejected(made: Site, arguments: tuple[str, ...], said: str) -> None:
    done = run_forked("serve", "--out", made.root, "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 64
    assert said in done.stderr


# Connections


class QuotaItem:
    """An item of a client. It can be closed unless a response is being sent."""

    def __init__(self, *, sends: bool = False) -> None:
        self.is_open, self.sends = True, sends

    def close(self) -> bool:
        self.is_open = self.sends
        return not self.sends


def test_t5_the_oldest_idle_connection_of_an_address_is_closed_first() -> None:
    crowd: ClientQuota[QuotaItem] = ClientQuota(QuotaItem.close, limit_per_address=3)
    exempt: ClientQuota[QuotaItem] = ClientQuota(
        QuotaItem.close, limit_per_address=3, is_exempt=lambda address: address == "10.0.0.1"
    )
    mine, other = [QuotaItem() for _ in range(5)], QuotaItem()
    crowd.add(other, "10.0.0.2")
    for each in mine:
        exempt.add(each, "10.0.0.1")
    assert exempt.closed_count == 0
    for each in mine:
        crowd.add(each, "10.0.0.1")
    assert [each.is_open for each in mine] == [False, False, True, True, True]
    assert (other.is_open, crowd.closed_count) == (True, 2)
    crowd.remove(mine[2])  # the endpoint works on a request of this connection
    crowd.add(mine[2], "10.0.0.1")
    crowd.add(QuotaItem(), "10.0.0.1")
    assert [each.is_open for each in mine] == [False, False, True, False, True]


def test_t5_a_connection_with_a_response_in_progress_is_not_closed() -> None:
    crowd: ClientQuota[QuotaItem] = ClientQuota(QuotaItem.close, limit_per_address=1)
    sending, waiting, newest = QuotaItem(sends=True), QuotaItem(), QuotaItem()
    for each in (sending, waiting, newest):
        crowd.add(each, "10.0.0.1")
    assert (sending.is_open, waiting.is_open, newest.is_open) == (True, False, False)
    crowd.remove(newest)
    assert not crowd.make_room()


def test_t5_an_ipv6_network_counts_as_one_client() -> None:
    crowd: ClientQuota[QuotaItem] = ClientQuota(QuotaItem.close, limit_per_address=2)
    mine, other, mapped = [QuotaItem() for _ in range(4)], QuotaItem(), [QuotaItem() for _ in range(3)]
    for number, each in enumerate(mine):
        crowd.add(each, f"2001:db8:0:1::{number}%eth0")
    assert sum(each.is_open for each in mine) == 2
    crowd.add(other, "2001:db8:0:2::1")
    for each, address in zip(mapped, ("::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1"), strict=True):
        crowd.add(each, address)
    assert all(each.is_open for each in (other, *mapped)), "a socket for both families shows IPv4 so"


def test_finding_s4_a_client_with_few_connections_gets_one_from_the_client_with_most() -> None:
    crowd: ClientQuota[QuotaItem] = ClientQuota(QuotaItem.close, limit=lambda: 10)
    first, strangers = QuotaItem(), [QuotaItem() for _ in range(9)]
    crowd.add(first, "10.0.0.1")
    for each in strangers:
        crowd.add(each, "10.0.0.66")
    late = [QuotaItem() for _ in range(4)]
    for number, each in enumerate(late):
        crowd.add(each, f"10.0.1.{number}")
    assert all(each.is_open for each in (first, *late))
    assert [each.is_open for each in strangers] == [False] * 4 + [True] * 5


def test_finding_s4_if_no_connection_can_be_closed_the_newest_is() -> None:
    crowd: ClientQuota[QuotaItem] = ClientQuota(QuotaItem.close, limit=lambda: 3)
    busy, newcomer = [QuotaItem(sends=True) for _ in range(3)], QuotaItem()
    for number, each in enumerate(busy):
        crowd.add(each, f"10.0.0.{number}")
    crowd.add(newcomer, "10.0.0.9")
    assert (newcomer.is_open, crowd.closed_count) == (False, 1)


def test_t5_a_machine_is_served_while_another_client_holds_many_connections(
    made: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address opens connections without a request, some with an incomplete head. Another client sends a request."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 3600)
    with ExitStack() as stack:
        endpoints = stack.enter_context(made.serve(records=False, max_idle=32))
        held = []
        for number in range(80):
            client = stack.enter_context(connect(endpoints))
            if number % 2:
                client.sendall(b"GET /v1/boot/")
            held.append(client)
        assert get(endpoints + ENTRY).status_code == 200
        # The newest connections remain, up to the limit for one address.
        assert eventually(lambda: sum(map(_is_open, held)) <= 32)
        open_ones = [client for client in held if _is_open(client)]
        assert held[-1] in open_ones
        assert held[0] not in open_ones


def _is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_t5_a_request_head_must_arrive_in_time(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 3600)
    with made.serve() as url, connect(url) as silent, connect(url) as slow, connect(url) as fair:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        fair.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert fair.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.5)

        def both_are_closed() -> bool:
            try:
                slow.sendall(b"X: y\r\n")  # single bytes do not complete a head
            except OSError:
                return not _is_open(silent)
            return False

        assert eventually(both_are_closed)
        fair.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = b""
        while b"HTTP/1.1 200" not in answers:  # after the rest of the first response
            more = fair.recv(65536)
            assert more, "between two requests it may wait longer"
            answers += more


def test_t5_a_thousand_connections_do_not_exceed_the_limit_of_open_files(made: Site) -> None:
    """The soft limit is raised to the hard one, and the oldest connections make room."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 4096:
        pytest.skip("this machine lets no process open 4,096 files")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with run_listening(made, files=1024) as (pid, urls), ExitStack() as stack:
            for _ in range(1000):
                stack.enter_context(connect(urls["Listening"]))
            assert get(urls["Listening"] + ENTRY).status_code == 200
            limits = Path(f"/proc/{pid}/limits").read_text()
            line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
            assert int(line.split()[3]) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PROXIES = build_network_matcher((*LOOPBACK, ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")))


@for_each(
    ("peer", "forwarded", "expected"),
    [
        pytest.param("10.9.0.7", [], "10.9.0.7", id="a client itself"),
        pytest.param("10.9.0.7", ["127.0.0.1"], "10.9.0.7", id="a client that claims to be another"),
        pytest.param("10.1.0.1", [], "10.1.0.1", id="a proxy itself"),
        pytest.param("10.1.0.1", ["10.9.0.7"], "10.9.0.7", id="through a proxy"),
        pytest.param("10.1.0.1", ["10.9.0.7, 10.1.0.2"], "10.9.0.7", id="through two proxies"),
        pytest.param("10.1.0.1", ["10.9.0.7", "10.1.0.2"], "10.9.0.7", id="through two, in two headers"),
        pytest.param("127.0.0.1", ["127.0.0.1, 10.9.0.7"], "10.9.0.7", id="a claim behind a proxy"),
        pytest.param("127.0.0.1", ["10.9.0.8, 10.9.0.7"], "10.9.0.7", id="the header of an untrusted proxy"),
        pytest.param("127.0.0.1", ["127.0.0.1"], "127.0.0.1", id="a client on the proxy's machine"),
        pytest.param("127.0.0.1", ["10.9.0.7,"], None, id="no address where one is required"),
        pytest.param("127.0.0.1", ["unknown"], None, id="a proxy without a header"),
        pytest.param("127.0.0.1", ["10.9.0.7, \xff"], None, id="a byte that is no text"),
        pytest.param("::1", ["FD00:0009::7"], "fd00:9::7", id="IPv6, in its shortest spelling"),
        pytest.param("::ffff:10.1.0.1", ["::ffff:10.9.0.7"], "10.9.0.7", id="IPv4 on a socket for both"),
        pytest.param("fe80::1%eth0", [], "fe80::1", id="a link-local address"),
        pytest.param(None, ["10.9.0.7"], None, id="no address at all"),
    ],
)
def test_the_client_address_is_the_one_before_the_last_trusted_proxy(
    peer: str | None, forwarded: list[str], expected: str | None
) -> None:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    scope = {"client": (peer, 40000) if peer else None, "headers": headers}
    assert find_client_address(scope, PROXIES) == expected


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
def test_membership_in_a_network_is_by_address(address: str | None, expected: bool) -> None:
    assert PROXIES(address) is expected


@for_each("header", ["X-Forwarded-For", "forwarded"])
def test_finding_s6_a_proxy_that_no_setting_names_is_reported_for_a_cached_file_too(header: str) -> None:
    with site() as made, served(made.root, "--spool", str(made.spool)) as (url, process):
        paths = {path: get(url + path).status_code for path in ("/boot.ipxe", "/boot.ipxe", "/healthz")}
        assert paths == {"/boot.ipxe": 200, "/healthz": 200}
        assert get(url + "/boot.ipxe", headers={**LOADER, header: "for=192.0.2.1"}).status_code == 200
        (report,) = eventually(lambda: list(made.spool.glob(f"*{REPORT_SUFFIX}")))
        (proxy,) = read_reports(report.parent, datetime.now(UTC)).proxies
        assert proxy.address == "127.0.0.1"
        told = next(each for each in map(json.loads, process.stderr) if each["type"] == "ProxyNotTrusted")
        assert 'trusted-proxies = ["127.0.0.1"]' in told["message"]


BLOCKS: Final = [block.text for block in read_page("docs/how-to/give-operators-access.md").fenced]
CONFIGS: Final = [text for text in BLOCKS if text.startswith("scrape_configs:")]

HOST: Final = "198.51.100.1"  # seen from another host; the engine's bridge is 10.88.0.1


@dataclass(frozen=True, kw_only=True)
class Places:
    host: str  # that publishes the container's ports
    container: str
    elsewhere: str

    def run(self, place: str, *command: object) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", place, *map(str, command)], capture_output=True, text=True, check=True
        )
        return done.stdout

    def ask(self, place: str, url: str, token: str = "") -> tuple[int, str]:
        """Return the status and the body of a response, or 0 if there is none."""
        headers = LOADER | ({"Authorization": f"Bearer {token}"} if token else {})

        def send_request() -> tuple[int, str]:
            join(os.open(f"/run/netns/{place}", os.O_RDONLY))  # this thread alone
            try:
                answer = http_peers.get(url, headers=headers, timeout=60)
            except httpx.TransportError as error:
                return 0, str(error)
            return answer.status_code, answer.text

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(send_request).result()

    @contextmanager
    def run_logged(self, place: str, *command: object, log: Path) -> Iterator[None]:
        with log.open("w") as output:
            process = subprocess.Popen(["ip", "netns", "exec", place, *map(str, command)], stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def places() -> Iterator[Places]:
    """A host with a container whose ports 8080 and 9090 it publishes, and another host."""
    program("ip", "iproute2")
    filtering = program("iptables", "iptables")
    names = Places(**{each: f"gitboot-{os.getpid()}-{each}" for each in ("host", "container", "elsewhere")})
    with ExitStack() as stack:
        for name in (names.host, names.container, names.elsewhere):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
            names.run(name, "ip", "link", "set", "lo", "up")
        for name, address, peer, peers in (
            (names.container, "10.88.0.2", "bridge", "10.88.0.1"),
            (names.elsewhere, "198.51.100.2", "outside", HOST),
        ):
            names.run(names.host, "ip", "link", "add", peer, "type", "veth", "peer", "name", "eth0", "netns", name)
            for place, link, own in ((names.host, peer, peers), (name, "eth0", address)):
                names.run(place, "ip", "address", "add", f"{own}/24", "dev", link)
                names.run(place, "ip", "link", "set", link, "up")
            names.run(name, "ip", "route", "add", "default", "via", peers)
        names.run(names.host, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for chain in ("PREROUTING", "OUTPUT"):
            for port in (8080, 9090):
                rule = ("-p", "tcp", "-d", HOST, "--dport", port, "-j", "DNAT", "--to-destination", f"10.88.0.2:{port}")
                names.run(names.host, filtering, "-t", "nat", "-A", chain, *rule)
        # Rootless engines, and engines with their own proxy: every client has the bridge's address.
        names.run(names.host, filtering, "-t", "nat", "-A", "POSTROUTING", "-o", "bridge", "-j", "MASQUERADE")
        yield names


@contextmanager
def serve_in_container(places: Places, folder: Path, *options: object) -> Iterator[None]:
    """An endpoint behind the published ports, with the options of docs/how-to/give-operators-access.md."""
    (folder / "tokens").write_text(f"{TOKEN}\n")
    options = (*options, "--operators-listen", "0.0.0.0:9090", "--operators-tokens", folder / "tokens")
    with site() as made:
        serve = (sys.executable, "-m", "gitboot", "serve", "--out", made.root, "--listen", "0.0.0.0:8080")
        with places.run_logged(places.container, *serve, *options, log=folder / "endpoint.log"):
            eventually(lambda: places.ask(places.elsewhere, f"http://{HOST}:8080/healthz")[0] == 200)
            yield


def test_t12_a_client_of_a_published_container_port_is_an_operator_only_with_a_token(
    places: Places, tmp_path: Path
) -> None:
    with serve_in_container(places, tmp_path):
        for place in (places.elsewhere, places.host):
            assert places.ask(place, f"http://{HOST}:8080{ENTRY}")[0] == 200
            assert places.ask(place, f"http://{HOST}:8080/api/v1/status", TOKEN)[0] == 404
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status")[0] == 404
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status", f"{TOKEN}x")[0] == 401
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status", TOKEN)[0] == 200
        counted = places.ask(places.elsewhere, f"http://{HOST}:9090/metrics", TOKEN)[1]
    for reason in ("Network", "Socket", "Token"):
        assert f'gitboot_operator_requests_rejected_total{{reason="{reason}"}} 2.0' in counted


@pytest.mark.parametrize("by", ["http", "https"])
def test_a_prometheus_on_another_host_scrapes_with_the_configuration_on_the_page(
    places: Places, tmp_path: Path, by: str
) -> None:
    prometheus = program("prometheus", "prometheus")
    (config,) = [each for each in CONFIGS if ("scheme: https" in each) is (by == "https")]
    options: tuple[object, ...] = ()
    if by == "https":
        authority = Authority(tmp_path)
        issued = authority.issue(f"IP:{HOST}")
        (tmp_path / "gitboot-ca.crt").write_text(authority.pem)
        options = ("--operators-tls", issued.certificate, issued.key)
    (tmp_path / "gitboot.token").write_text(f"{TOKEN}\n")
    here = config.replace("/etc/prometheus/", f"{tmp_path}/").replace("boot.example.net:9090", f"{HOST}:9090")
    assert here.count(HOST) == 1
    (tmp_path / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s}}\n{here}")
    command = (
        *(prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"),
        "--web.listen-address=127.0.0.1:9091",
    )
    with (
        serve_in_container(places, tmp_path, *options),
        places.run_logged(places.elsewhere, *command, log=tmp_path / "prometheus.log"),
    ):

        def read_metric(what: str) -> str | None:
            """Return the newest value of a metric from Prometheus."""
            status, body = places.ask(places.elsewhere, f"http://127.0.0.1:9091/api/v1/query?query={what}")
            found = json.loads(body)["data"]["result"] if status == 200 else []
            return str(found[0]["value"][1]) if found else None

        eventually(lambda: read_metric("gitboot_operators_certificate_readable" if by == "https" else "gitboot_ready"))
        eventually(lambda: read_metric("up") == "1")  # a response that took too long does not count
