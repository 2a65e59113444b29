from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gitboot.endpoint import connections as connection
from gitboot.endpoint import server
from gitboot.endpoint.server import EndpointServer, listen_at, url_of
from gitboot.errors import UsageError
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, LOADER, ONCE, connect, eventually, exchange, get, planned, read_all, site


class Slow:
    """An application that answers once it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        while not self.may_answer.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"slow"})


def started(app: ASGIApp) -> tuple[EndpointServer, str]:
    """A server that runs, and its base URL."""
    where = "127.0.0.1:0"
    listening = listen_at(where)
    running = EndpointServer(app, listening)
    running.start()
    return running, url_of(where, listening)


# Listening


@for_each(
    "listen",
    ["", "8080", ":8080", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "::1:80", "[::1]", "a b:80"],
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        listen_at(listen)


def test_an_address_in_use_is_refused() -> None:
    with site() as made, made.serve() as url:
        with pytest.raises(UsageError, match=rf"cannot listen at {url}: Address already in use"):
            listen_at(url.removeprefix("http://"))
        assert get(url + ENTRY).status_code == 200


@pytest.mark.parametrize(
    ("listen", "complaint"),
    [("192.0.2.1:0", "Cannot assign requested address"), ("no-such-host.invalid:80", "cannot listen at")],
)
def test_an_address_that_is_not_ours_is_refused(listen: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        listen_at(listen)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::1]:0", "[::]:0"])
def test_a_free_port_is_taken_and_told(listen: str) -> None:
    with site() as made, made.serve(listen) as url:
        assert not url.endswith(":0")
        assert get(url + ENTRY).status_code == 200


def test_one_socket_takes_both_families() -> None:
    with site(planned(*ONCE)) as made, made.serve("[::]:0") as url:
        port = url.rpartition(":")[2]
        assert get(f"http://127.0.0.1:{port}{ENTRY}").status_code == 200
        assert [each.client for each in made.observed()] == ["127.0.0.1"]


# Stopping


def test_a_request_under_way_is_answered_before_the_end() -> None:
    slow = Slow()
    running, url = started(slow)
    with ThreadPoolExecutor() as pool, http_peers.Client(base_url=url, headers=LOADER) as idle:
        slow.may_answer.set()
        idle.get("/")
        slow.asked.clear()
        slow.may_answer.clear()
        answer = pool.submit(httpx.get, url, timeout=60)
        assert slow.asked.wait(60)
        stopped = pool.submit(running.stop, timeout_s=60)
        assert eventually(lambda: is_refused(url)), "it takes no more"
        assert not stopped.done()
        slow.may_answer.set()
        stopped.result()
        assert answer.result().text == "slow"
    with pytest.raises(ConnectionRefusedError):
        connect(url)


def is_refused(url: str) -> bool:
    try:
        connect(url).close()
    except OSError:
        return True
    return False


def test_a_request_that_takes_too_long_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    running, url = started(slow)
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.asked.wait(60)
        running.stop(timeout_s=0.5)
        assert b"slow" not in read_all(client)


def test_it_leaves_signals_and_logging_alone() -> None:
    root = logging.getLogger()
    handlers = list(root.handlers)
    with site() as made, made.serve() as url:
        get(url + ENTRY)
    assert root.handlers == handlers
    assert logging.getLogger("uvicorn").handlers == []


# Bounds


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with site() as made, made.serve() as url:
        yield url


@pytest.mark.parametrize(
    "request_start",
    [
        pytest.param(b"GET /" + b"a" * 200_000, id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, id="a header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 40_000, id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X" * 200_000, id="a header's name"),
        pytest.param(b"\r\n" * 100_000, id="empty lines"),
    ],
)
def test_a_request_without_an_end_is_cut_off(url: str, request_start: bytes) -> None:
    with connect(url) as client:
        try:
            client.sendall(request_start)
            assert client.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert get(url + ENTRY).status_code == 200


def test_a_body_is_not_waited_for(url: str) -> None:
    request = f"GET {ENTRY} HTTP/1.1\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"
    assert exchange(url, request.encode()).startswith(b"HTTP/1.1 200 ")


def test_who_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
    monkeypatch.setattr(server, "_STUCK_CHECK_S", 0.05)
    with site() as made, made.serve() as url:
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            with connect(url) as client:
                client.sendall(sent)
                assert read_all(client) == b""


class Ahead:
    """The loop of a connection, whose clock a test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.ahead_s = loop, 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Download:
    """A client that is sent 16 MB, and its connection at the server, which looks at it when a test lets it."""

    def __init__(self, client: socket.socket, connection: connection.Connection) -> None:
        self.client, self._connection = client, connection
        self._loop = connection.loop
        self._clock = connection.loop = Ahead(self._loop)  # type: ignore[assignment]

    def is_looked_at(self, after_s: float) -> bool:
        """Let so much time pass and have the server look at this client; say whether it is still served."""

        async def look() -> bool:
            self._clock.ahead_s += after_s
            self._connection.abort_if_stuck(0)
            return not self._connection.transport.is_closing()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(60)

    def unsent(self) -> int:
        """How many bytes the server has ready for this client."""

        async def look() -> int:
            return self._connection.transport.get_write_buffer_size()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(60)


async def sixteen_megabytes(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"16000000")]})
    for _ in range(160):
        await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Iterator[Download]:
    monkeypatch.setattr(server, "_STUCK_CHECK_S", 3600)  # tests look themselves
    running, url = started(sixteen_megabytes)
    with connect(url, receive_buffer=65536) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        connections = running._server.server_state.connections
        assert eventually(lambda: len(connections) == 1)
        (found,) = connections
        assert isinstance(found, connection.Connection)
        made = Download(client, found)
        assert eventually(lambda: made.unsent() > 0)
        yield made
    running.stop(timeout_s=1)


def test_who_takes_nothing_is_given_up(download: Download) -> None:
    assert download.is_looked_at(after_s=0)
    assert download.is_looked_at(after_s=connection.PATIENCE_S - 30)
    assert not download.is_looked_at(after_s=31)
    assert len(read_all(download.client)) < 16_000_000


def test_who_takes_it_slowly_is_not(download: Download) -> None:
    received = 0
    for _ in range(4):
        before = download.unsent()
        assert download.is_looked_at(after_s=0)
        while download.unsent() == before:
            received += len(download.client.recv(10_000))
        assert download.is_looked_at(after_s=connection.PATIENCE_S - 1)
    received += len(read_all(download.client))
    assert received > 16_000_000


def test_clients_cannot_use_up_all_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 3)
    with site() as made, made.serve() as url:
        clients = [connect(url) for _ in range(3)]
        clients[2].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert clients[2].recv(12) == b"HTTP/1.1 200"  # by then all three are known
        assert get(url + ENTRY).status_code == 200, "the oldest of who holds most goes, not the newcomer"
        assert clients[0].recv(1) == b""
        for client in clients:
            client.close()


class Paused:
    """An application that sends the first half of each answer, and the second once it may."""

    def __init__(self) -> None:
        self.limits, self.may_end = connection.Limits(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.to_thread(self.may_end.wait, 60)
        await send({"type": "http.response.body", "body": b"half"})


def test_an_answer_whose_rest_is_not_ready_yet_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 1)
    paused = Paused()
    running, url = started(paused)
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(url) as first:
        first.sendall(request)
        received = first.recv(65536)
        while not received.endswith(b"half"):
            received += first.recv(65536)
        with connect(url) as newcomer:
            assert read_all(first) == b""
            paused.may_end.set()
            newcomer.sendall(request)
            assert read_all(newcomer).endswith(b"halfhalf")
    running.stop()


def test_clients_take_no_more_than_a_third_of_all_files() -> None:
    assert 100 < connection.most_connections() <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 3


@pytest.mark.parametrize("path", [b"/healthz", b"/boot.ipxe"])
def test_headers_are_spelt_as_they_are_registered(path: bytes) -> None:
    """GRUB before 2.12 finds no content-length that is not spelt Content-Length, and waits for the connection's end."""
    with site() as made, made.serve() as url:
        get(url + path.decode())
        head, _, _ = exchange(url, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").partition(
            b"\r\n\r\n"
        )
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert b"Content-Length" in names
    assert all(name == name.title() for name in names), names


def test_an_answer_to_who_has_asked_for_more_and_left_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn tells only the last of several requests that nobody is there; uvloop then raised into the log."""
    asked, left, answered = threading.Event(), threading.Event(), threading.Event()

    async def answers_too_late(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await asyncio.to_thread(left.wait, 60)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        for _ in range(4):
            await send({"type": "http.response.body", "body": b"la", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})
        answered.set()

    running, url = started(answers_too_late)
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: boot.test\r\n\r\n" * 2)
        assert asked.wait(60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets the connection
    left.set()
    assert answered.wait(60)
    running.stop()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
