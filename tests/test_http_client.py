"""The HTTP client with servers that strangers control, at real sockets."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from gitboot import http_client
from gitboot.artifacts.downloads import WebFetcher
from gitboot.artifacts.oci import Registries
from gitboot.bmc.credentials import Credentials
from gitboot.bmc.ipmi import IpmiConnection
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.cli.commands.artifacts import build_fetcher
from gitboot.cli.instance_client import fetch_accepted_commit, open_instance
from gitboot.errors import BmcUnreachable, HostUnreachable, UsageError
from gitboot.http_client import HttpClient, MinimumRate, RedirectRefused, RequestLimits, check_credentials
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import Authority, StrangeAnswer, StrangeClient, iterate_deadlines, strange_server
from tests.helpers.instance_with_bmcs import run_command

SHORT_S = 0.4  # a deadline: anything that takes longer on any machine ends with the same words
OK = b"HTTP/1.1 200 OK\r\n"
TOKEN = {"Authorization": "Bearer very-secret"}
TOO_SLOW = r"the response was not complete after 0\.4 s"


def sending(*pieces: bytes, drips: bytes = b"", floods: bytes = b"") -> StrangeAnswer:
    def answer(client: StrangeClient) -> None:
        for piece in pieces:
            client.send(piece)
        if floods:
            client.flood(floods, 1 << 40)
        if drips:
            client.drip(drips)

    return answer


def silent(client: StrangeClient) -> None:
    client.wait()


TRICKLES: dict[str, StrangeAnswer] = {
    "nothing": silent,
    "status": sending(drips=b"H"),
    "headers": sending(OK, b"X-Long: ", drips=b"a"),
    "early hints": sending(drips=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": sending(OK, b"Content-Length: 1000000\r\n\r\n", drips=b"a"),
    "body without a length": sending(OK, b"\r\n", drips=b"a"),
    "chunks": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n", drips=b"1\r\na\r\n"),
    "chunk extension": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n1;", drips=b"a"),
    "trailers": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", drips=b"a: b\r\n"),
}


@pytest.mark.parametrize("answer", TRICKLES.values(), ids=TRICKLES.keys())
def test_finding_s16_a_slow_response_ends_at_the_deadline(answer: StrangeAnswer) -> None:
    with strange_server(answer) as server:
        for deadline_s in iterate_deadlines(server):
            with pytest.raises(HostUnreachable, match=f"not complete after {deadline_s:g} s"):
                HttpClient().request_json(server.url, deadline_s=deadline_s)
        assert server.left.wait(60)


def test_finding_s16_a_command_that_contacts_an_instance_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gitboot.cli.instance_client._REQUEST_TIMEOUT_S", SHORT_S)
    with strange_server(TRICKLES["body"]) as server:
        with pytest.raises(HostUnreachable, match=TOO_SLOW):
            fetch_accepted_commit(server.url)
        with pytest.raises(HostUnreachable, match=TOO_SLOW):
            open_instance(server.url, None, None).status()


@pytest.mark.parametrize("drips", [b"", b"\x16"], ids=["silent", "dripping"])
def test_a_tls_handshake_ends_at_the_deadline(drips: bytes) -> None:
    def answer(client: StrangeClient) -> None:
        client.send(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb")  # a ServerHello that never comes to its end
        client.drip(drips) if drips else client.wait()

    with strange_server(answer, reads=False) as server, pytest.raises(HostUnreachable, match=TOO_SLOW):
        HttpClient().request_json(server.url.replace("http:", "https:"), deadline_s=SHORT_S)


def test_redirects_share_one_deadline() -> None:
    def answer(client: StrangeClient) -> None:
        client.wait(SHORT_S / 4)
        client.send(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")

    client = HttpClient()
    with (
        strange_server(answer) as server,
        pytest.raises(HostUnreachable, match=TOO_SLOW),
        client.stream("GET", server.url, deadline_s=SHORT_S, redirects=1000),
    ):
        pass


def test_a_resolver_that_does_not_respond_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    with pytest.raises(HostUnreachable, match=TOO_SLOW):
        HttpClient().request_json("http://boot.test/", deadline_s=SHORT_S)
    over.set()


@pytest.mark.parametrize("host", ["bmc7..example.net", f"{'a' * 64}.example.net"])
def test_a_label_that_dns_does_not_allow_makes_a_host_unreachable(host: str) -> None:
    credentials, message = Credentials(username="root", password="x"), f"'{host}' is not a host name"
    with pytest.raises(HostUnreachable, match=message):
        HttpClient().request_json(f"https://{host}/")
    with BmcConnection(f"https://{host}", credentials) as bmc, pytest.raises(BmcUnreachable, match=message):
        bmc.observe()
    with pytest.raises(BmcUnreachable, match=message):
        IpmiConnection(f"ipmi://{host}", credentials).observe()


def test_an_address_that_does_not_respond_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many hosts have an IPv6 address that is not reachable."""
    with socket.create_server(("127.0.0.2", port := free_port()), backlog=0):
        waiting = [socket.socket() for _ in range(4)]  # the queue of its connections is full
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.2", port))
        monkeypatch.setattr(http_client, "resolve_host", lambda *_: ["127.0.0.2", "127.0.0.1"])
        with socket.create_server(("127.0.0.1", port)) as listening:
            threading.Thread(target=_answer_once, args=(listening,), daemon=True).start()
            assert HttpClient().request_json(f"http://boot.test:{port}/", deadline_s=10).json == {}
        for each in waiting:
            each.close()


def _answer_once(listening: socket.socket) -> None:
    connected, _ = listening.accept()
    with connected:
        connected.recv(1 << 16)
        connected.sendall(OK + b"Content-Length: 2\r\n\r\n{}")


# Sizes


ZEROS = bytes(1 << 20)
FLOODS: dict[str, StrangeAnswer] = {
    "zeros with a length": sending(OK, b"Content-Length: 10737418240\r\n\r\n", floods=ZEROS),
    "zeros without a length": sending(OK, b"\r\n", floods=ZEROS),
    "one chunk": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n280000000\r\n", floods=ZEROS),
    "a chunk of -1 bytes": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", floods=ZEROS),
    "a chunk extension": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n1;", floods=b"a" * (1 << 20)),
    "trailers": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n0\r\n", floods=b"a: b\r\n" * (1 << 17)),
    "tiny chunks": sending(OK, b"Transfer-Encoding: chunked\r\n\r\n", floods=b"0000000000001\r\na\r\n" * (1 << 16)),
    "a header": sending(OK, b"X-Long: ", floods=b"a" * (1 << 20)),
    "headers": sending(OK, floods=b"X-Many: a\r\n" * (1 << 16)),
    "early hints": sending(floods=b"HTTP/1.1 100 Continue\r\n\r\n" * (1 << 15)),
    "a status line": sending(floods=b"HTTP" * (1 << 18)),
    "an error": sending(b"HTTP/1.1 500 Oops\r\nContent-Length: 10737418240\r\n\r\n", floods=ZEROS),
}


@pytest.mark.parametrize("answer", FLOODS.values(), ids=FLOODS.keys())
def test_a_response_without_end_is_cut_at_its_size(answer: StrangeAnswer) -> None:
    with strange_server(answer) as server:
        with pytest.raises(
            HostUnreachable, match=r"larger than|sent more than|got more than|sent too m|too many|line"
        ) as raised:
            HttpClient().request_json(server.url, deadline_s=600)
        assert server.left.wait(60)
    assert server.taken < 64 << 20  # buffers of this machine
    assert len(str(raised.value)) < 300


def test_a_body_is_never_decompressed() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    with strange_server(sending(OK, head, bomb)) as server:
        with HttpClient().stream("GET", server.url) as answer:
            assert answer.read_whole(1 << 20) == bomb
        assert b"Accept-Encoding: identity\r\n" in server.requests[0]


def test_a_body_that_ends_too_early_is_an_error() -> None:
    def answer(client: StrangeClient) -> None:
        client.send(OK + b"Content-Length: 10\r\n\r\n{}")
        raise ConnectionError

    with strange_server(answer) as server, pytest.raises(HostUnreachable, match="ended too early"):
        HttpClient().request_json(server.url)


# Downloads


def test_a_download_below_the_minimum_rate_ends() -> None:
    rate = MinimumRate(size_bytes=1 << 20, period_s=SHORT_S)
    client = HttpClient()
    with (
        strange_server(TRICKLES["body"]) as server,
        client.stream("GET", server.url, rate=rate) as answer,
        pytest.raises(HostUnreachable, match=r"the host sent less than 1048576 bytes in 0\.4 s"),
    ):
        answer.read(1 << 20)


def test_a_download_may_take_longer_than_the_deadline_of_its_head() -> None:
    """The stranger sends the rest only when the deadline is over: the client's own reading is what waits for it."""

    def send_slowly(over: threading.Event) -> Callable[[StrangeClient], None]:
        def answer(client: StrangeClient) -> None:
            client.send(OK + b"Content-Length: 2\r\n\r\n{")
            over.wait(60)
            client.send(b"}")

        return answer

    for deadline_s in (SHORT_S, 10 * SHORT_S, 50 * SHORT_S):  # a busy machine may take longer for the head, too
        over = threading.Event()  # of this attempt only
        with (
            strange_server(send_slowly(over)) as server,
            suppress(HostUnreachable),
            HttpClient().stream("GET", server.url, deadline_s=deadline_s, rate=MinimumRate()) as found,
        ):
            threading.Timer(2 * deadline_s, over.set).start()
            assert found.read_whole(10) == b"{}"
            return
    raise AssertionError("each download ended at the deadline of its head")


def test_time_in_which_the_reader_is_busy_does_not_count_against_a_download() -> None:
    rate = MinimumRate(size_bytes=2, period_s=SHORT_S)
    with (
        strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as server,
        HttpClient().stream("GET", server.url, rate=rate) as answer,
    ):
        assert answer.read(1) == b"{"
        threading.Event().wait(2 * SHORT_S)
        assert answer.read(10) == b"}"


def test_the_time_for_the_head_does_not_count_against_a_download() -> None:
    limits = RequestLimits(deadline_s=600, rate=MinimumRate(size_bytes=1000, period_s=60))
    limits.begin_answer()
    limits.count(100, waited_s=90)
    limits.begin_body(1000)
    assert limits.remaining_s() == 60
    limits.count(100, waited_s=20)
    limits.begin_body(1000)
    assert limits.remaining_s() == 40


def test_an_artifact_that_arrives_slowly_is_unknown() -> None:
    rate = MinimumRate(size_bytes=1 << 20, period_s=SHORT_S)
    with strange_server(TRICKLES["body"]) as server:
        for deadline_s in iterate_deadlines(server):
            fetcher = WebFetcher(deadline_s=deadline_s, rate=rate)
            with pytest.raises(HostUnreachable), fetcher.read(server.url) as content:
                next(content.chunks)
        assert server.left.wait(60)


# Credentials


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://boot.test/", True),
        ("http://boot.test/", False),
        ("http://127.0.0.1:8080/", True),
        ("http://127.8.8.8/", True),
        ("http://[::1]/", True),
        ("http://[::ffff:127.0.0.1]/", True),
        ("http://localhost/", True),
        ("http://localhost.boot.test/", False),
        ("http://127.0.0.1.boot.test/", False),
        ("http://127.0.0.1./", False),
        ("http://0x7f000001/", False),
        ("http://10.0.0.1/", False),
        ("HTTP://boot.test/", False),
    ],
)
def test_finding_s16_tokens_are_sent_only_by_https_or_to_this_machine(url: str, is_sent: bool) -> None:
    if is_sent:
        check_credentials(url)
    else:
        with pytest.raises(UsageError, match="--allow-token-over-http"):
            check_credentials(url)
    check_credentials(url, allow_token_over_http=True)


def test_finding_s16_a_command_sends_no_token_to_an_http_url(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("very-secret\n")
    options = ("--steps", "1,100", "--api-token", tmp_path / "token", "--no-commit", "--path", tmp_path)
    done = run_command("rollout", "advance", "images", "--records", "http://boot.invalid/", *options)
    assert (done.code, "unencrypted" in done.err, "very-secret" in done.err) == (64, True, False)


def test_credentials_cannot_be_passed_as_other_headers() -> None:
    for name in ("authorization", "Cookie", "PRIVATE-TOKEN"):
        with pytest.raises(ValueError, match="as credentials"):
            HttpClient().request_json("https://boot.test/", headers={name: "very-secret"})


def test_a_token_of_two_lines_is_rejected_and_not_shown() -> None:
    with pytest.raises(UsageError, match="one line") as raised:
        HttpClient().request_json("https://boot.test/", credentials={"Authorization": "Bearer very\r\nsecret"})
    assert "secret" not in str(raised.value)


def test_a_localhost_name_on_another_machine_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver may answer anything; the address of the connection counts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        if found.connect_ex(("192.0.2.1", 9)):
            pytest.skip("this machine has no address but loopback")
        own = found.getsockname()[0]
    with socket.create_server((own, 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(http_client, "resolve_host", lambda *_: [own])
        with pytest.raises(HostUnreachable, match="will not send credentials to another machine over"):
            HttpClient().request_json(f"http://localhost:{port}/", credentials=TOKEN)
        connected, _ = listening.accept()
        with connected:
            assert connected.recv(1 << 16) == b""


def leading_to(url: str) -> StrangeAnswer:
    return sending(b"HTTP/1.1 302 Found\r\nLocation: " + url.encode() + b"\r\nContent-Length: 0\r\n\r\n")


def test_a_redirect_to_another_origin_carries_no_token() -> None:
    with (
        strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as other,
        strange_server(leading_to(f"{other.url}/there")) as server,
        HttpClient().stream("GET", server.url, credentials=TOKEN, redirects=5) as answer,
    ):
        assert (answer.status, answer.final_url) == (200, f"{other.url}/there")
    assert b"very-secret" in server.requests[0]
    assert b"very-secret" not in other.requests[0]


def test_the_target_of_a_redirect_without_credentials_may_be_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "is_loopback", lambda host: host != "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        threading.Thread(target=_answer_once, args=(other,), daemon=True).start()
        with (
            strange_server(leading_to(f"http://127.0.0.2:{other.getsockname()[1]}/")) as server,
            HttpClient().stream("GET", server.url, credentials=TOKEN, redirects=5) as answer,
        ):
            assert answer.read_whole(10) == b"{}"


@pytest.mark.parametrize(
    "target",
    [
        *("https://me:s3cret@boot.test/x", "ftp://boot.test/x?user=s3cret@example.net", "ftp://boot.test/x#sig=s3cret"),
        *("http://boot.test:x/there?key=s3cret", "//me:s3/cret@boot.test/", "ftp://me:s3cret?x@boot.test/"),
    ],
)
def test_a_refused_redirect_shows_its_target_without_secrets(target: str) -> None:
    with (
        strange_server(leading_to(target)) as server,
        pytest.raises(RedirectRefused, match=r"redirects to '[^']*//(boot\.test/x|…)'") as raised,
        HttpClient().stream("GET", server.url, redirects=5),
    ):
        pass
    assert "s3" not in str(raised.value)


def test_a_redirect_within_an_origin_carries_the_token() -> None:
    def answer(client: StrangeClient) -> None:
        is_first = b"GET / " in server.requests[-1]
        led = b"HTTP/1.1 307 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"
        client.send(led if is_first else OK + b"Content-Length: 2\r\n\r\n{}")

    with (
        strange_server(answer) as server,
        HttpClient().stream("GET", f"{server.url}/", credentials=TOKEN, redirects=5) as found,
    ):
        assert found.read_whole(10) == b"{}"
    assert [b"very-secret" in each for each in server.requests] == [True, True]


def test_no_redirect_leads_from_https_to_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "authority.pem").write_text(authority.pem)
    tls, issued = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority.issue()
    tls.load_cert_chain(issued.certificate, issued.key)
    with (
        strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as other,
        strange_server(leading_to(other.url), tls=tls) as server,
    ):
        client = HttpClient(ca_bundle=tmp_path / "authority.pem")
        with pytest.raises(RedirectRefused), client.stream("GET", server.url, credentials=TOKEN, redirects=5):
            pass
        with pytest.raises(HostUnreachable, match="certificate verify failed"):
            HttpClient().request_json(server.url)
    assert other.requests == []


def test_the_number_of_redirects_is_limited() -> None:
    with strange_server(leading_to("/again")) as server:
        with (
            pytest.raises(RedirectRefused, match="more than 5 redirects"),
            HttpClient().stream("GET", server.url, redirects=5),
        ):
            pass
        assert len(server.requests) == 6


# Connections


def test_a_connection_is_kept_and_opened_again_after_the_server_has_ended_it() -> None:
    def answer(client: StrangeClient) -> None:
        client.send(OK + b"Content-Length: 2\r\n\r\n{}")
        if len(server.requests) == 2:
            client.wait()  # for the third request, which it does not answer
            raise ConnectionResetError

    client = HttpClient()
    with strange_server(answer) as server:
        assert [client.request_json(server.url).json for _ in range(3)] == [{}, {}, {}]


def test_a_server_that_ends_each_connection_gets_one_request() -> None:
    def answer(client: StrangeClient) -> None:
        raise ConnectionResetError

    with strange_server(answer) as server:
        with pytest.raises(HostUnreachable):
            HttpClient().request_json(server.url)
        assert len(server.requests) == 1


def test_the_error_if_all_connections_to_a_host_are_in_use_names_the_cause() -> None:
    client = HttpClient(connections_per_host=1)
    with (
        strange_server(TRICKLES["body"]) as server,
        client.stream("GET", server.url),
        pytest.raises(HostUnreachable, match="all connections to the host were in use"),
    ):
        client.request_json(server.url, deadline_s=SHORT_S)


def test_a_host_that_accepts_no_connection_is_not_a_slow_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "RequestLimits", partial(RequestLimits, connect_s=0.1))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(4):  # the queue of its connections is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(HostUnreachable, match="the host did not accept a connection in time"):
            HttpClient().request_json(f"http://127.0.0.1:{full.getsockname()[1]}/", deadline_s=600)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)

    def name_proxy(url: str) -> None:
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("https_proxy", url)

    return name_proxy


def test_the_proxy_of_the_environment_is_used_but_not_for_this_machine(proxy: Callable[[str], None]) -> None:
    with strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as server:
        proxy(server.url)
        assert HttpClient().request_json("http://boot.invalid/there").json == {}
        with pytest.raises(HostUnreachable):
            HttpClient(uses_proxies=False).request_json("http://boot.invalid/there")
        assert HttpClient().request_json(f"{server.url}/here").json == {}
    assert [each.partition(b"\r\n")[0] for each in server.requests] == [
        b"GET http://boot.invalid/there HTTP/1.1",
        b"GET /here HTTP/1.1",
    ]


def test_finding_p13_commands_fetch_artifacts_through_the_proxy_of_the_environment(
    proxy: Callable[[str], None],
) -> None:
    url = "http://mirror.invalid/vmlinuz"
    with strange_server(sending(OK, b"Content-Length: 6\r\n\r\nkernel")) as server:
        proxy(server.url)
        with build_fetcher("http://boot.invalid", None, Registries((), HttpClient())).read(url) as content:
            assert b"".join(content.chunks) == b"kernel"
        with pytest.raises(HostUnreachable):
            WebFetcher().head(url)  # as machines do, for the instance
    assert server.requests[0].startswith(b"GET http://mirror.invalid/vmlinuz HTTP/1.1\r\n")


def test_the_login_of_a_proxy_is_decoded(proxy: Callable[[str], None]) -> None:
    with strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as server:
        proxy(server.url.replace("//", "//me:p%40ss%3A%2F%C3%A9%25@"))
        HttpClient().request_json("http://boot.invalid/")
    header = b"Proxy-Authorization: Basic " + base64.b64encode("me:p@ss:/é%".encode())
    assert header.lower() in server.requests[0].lower()


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:s3cret@proxy:99999", "http://me:s3cret@proxy:x", "http://me:s3cret@[bad", "http://me:s3cret@"),
        *(
            "http://me:pa/s3cret@proxy:8080",
            "http://me:1/s3cret@proxy",
            "http://me/s3cret@proxy",
            "me:s3#cret@proxy:8080",
            "http://",
            "a b",
        ),
        *("https://[bad", "https://me:s3cret@proxy", "socks5://me:s3cret@proxy:x"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(proxy: Callable[[str], None], url: str) -> None:
    proxy(url)
    with pytest.raises(UsageError, match=r"^the proxy in the environment ") as raised:
        HttpClient().request_json("http://boot.invalid/")
    assert not any(each in str(raised.value) for each in ("s3", "cret", "pa/"))


@pytest.mark.parametrize("excluded", ["boot.invalid:81", "boot.invalid", "fd00::1"])
def test_no_proxy_may_contain_a_port(
    proxy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, excluded: str
) -> None:
    host = "[fd00::1]" if excluded == "fd00::1" else "boot.invalid"
    monkeypatch.setenv("no_proxy", excluded)
    monkeypatch.setattr(http_client, "resolve_host", lambda *_: ["127.0.0.1"])
    with strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as server:
        proxy(server.url)
        with pytest.raises(HostUnreachable):
            HttpClient().request_json(f"http://{host}:81/")
        assert server.requests == []


# Cases of curl (unit1614.c) and of Go (httpproxy/proxy_test.go). Like curl, .example.com excludes example.com too.
@pytest.mark.parametrize(
    ("host", "no_proxy", "is_excluded"),
    [
        ("www.example.com", "localhost,.example.com,.example.de", True),
        ("www.example.com.", "localhost,.example.com.,.example.de", True),
        ("example.com", "foo, .example.com", True),
        ("nexample.com", "localhost,example.com", False),
        ("nested.wildcard.test", "*.wildcard.test", True),
        ("awildcard.test", "*.wildcard.test", False),
        ("BAr", "foo,,,,,              bar, ::1/64", True),
        ("example.com", "*", True),
        ("example.com", ":1", False),
        ("example.com", "", False),
        ("192.168.1.3", "192.168.1.3:80", True),
        ("192.168.1.3", "192.168.1.3:81", False),
        ("192.168.0.1", "192.168.0.0/16 ", True),
        ("192.168.0.1", "192.168.0.0/16a", False),
        ("192.168.0.1", "192.168.0.0/32", False),
        ("192.168.0.1", "192.168.0.1/33", False),
        ("192.168.1.1", "foo, bar, 192.168.0.0/24", False),
        ("10.0.0.2", "10.0.0.0/30", True),
        ("[2001:db8::52:0:3]", "[2001:db8::52:0:3]:80", True),
        ("[2001:db8::52:0:2]", "[2001:db8::52:0:2]:443", False),
        ("[2002:db8:a::123]", "2002:db8:a::45/64", True),
        ("[2001:db8:8000::1]", "2001:db8::/65", False),
        ("[2001:db8::1]", "192.168.0.0/16", False),
    ],
)
def test_no_proxy_has_the_forms_of_curl_and_of_go(
    proxy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, host: str, no_proxy: str, is_excluded: bool
) -> None:
    monkeypatch.setenv("no_proxy", no_proxy)
    monkeypatch.setattr(http_client, "resolve_host", lambda *_: ["127.0.0.1"])
    with strange_server(sending(OK, b"Content-Length: 2\r\n\r\n{}")) as server:
        proxy(server.url)
        with suppress(HostUnreachable):  # the host itself does not respond
            HttpClient().request_json(f"http://{host}/")
        assert bool(server.requests) is not is_excluded


def test_a_slow_proxy_ends_at_the_deadline(proxy: Callable[[str], None]) -> None:
    with strange_server(sending(b"HTTP/1.1 200 OK\r\n", drips=b"X-A: b\r\n")) as server:
        proxy(server.url)
        with pytest.raises(HostUnreachable, match=TOO_SLOW):
            HttpClient().request_json("https://boot.invalid/", deadline_s=SHORT_S)


@pytest.mark.parametrize(
    "url",
    [
        *("boot.test", "ftp://boot.test/", "http://", "http://[::1", "http://boot.test:x/"),
        *("ftp://me:s3cret@boot.test/", "http://me:s3cret/more@boot.test/", "http://me:s3cret[@boot.test"),
        *("s3cret@boot.test/there", "https://me:s3cret", "me:s3cret"),
    ],
)
def test_the_error_for_an_invalid_url_contains_no_password(url: str) -> None:
    with pytest.raises(UsageError, match="is not a web URL") as raised:
        HttpClient().request_json(url)
    assert "s3cret" not in str(raised.value)


def test_a_response_is_parsed_as_json() -> None:
    said = json.dumps({"message": "not\nnow"}).encode()
    head = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(said)
    with strange_server(sending(head, said)) as server:
        answer = HttpClient().request_json(server.url)
    assert (answer.status, answer.detail, answer.retry_after_s) == (503, "not now", 7)


@pytest.mark.parametrize("answer", TRICKLES.values(), ids=TRICKLES.keys())
def test_finding_s16_a_slow_bmc_ends_at_the_deadline(answer: StrangeAnswer) -> None:
    credentials = Credentials(name="", username="admin", password="secret")
    with strange_server(answer) as server:
        for deadline_s in iterate_deadlines(server):
            half_s = deadline_s / 2
            bmc = BmcConnection(
                server.url,
                credentials,
                system="/redfish/v1/Systems/1",
                connect_timeout_s=half_s,
                read_timeout_s=half_s,
            )
            with pytest.raises(BmcUnreachable):
                bmc.observe()
            bmc.close(log_out=False)
        assert server.left.wait(60)
