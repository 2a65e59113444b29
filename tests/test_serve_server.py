from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gitboot.errors import UsageError
from gitboot.serve import connection, server
from gitboot.serve.server import EndpointServer, listen_at, url_of
from tests import plain
from tests.cases import for_each
from tests.serving import ENTRY, LOADER, ONCE, connect, exchange, get, planned, read_all, site


class Slow:
    """An application that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        await asyncio.sleep(self.seconds)
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
    slow = Slow(0.4)
    running, url = started(slow)
    with ThreadPoolExecutor() as pool, plain.Client(base_url=url, headers=LOADER) as idle:
        idle.get("/")
        slow.asked.clear()
        answer = pool.submit(httpx.get, url)
        slow.asked.wait(60)
        running.stop()
        assert not running.alive
        assert answer.result().text == "slow"
    with pytest.raises(ConnectionRefusedError):
        connect(url)


def test_a_request_that_takes_too_long_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(60)
    running, url = started(slow)
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.asked.wait(60)
        began = time.monotonic()
        running.stop(timeout_s=0.5)
        assert time.monotonic() - began < 3
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


def test_who_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
    monkeypatch.setattr(server, "_STUCK_CHECK_S", 0.05)
    (tmp_path / "large").write_bytes(b"x" * 30_000_000)
    with site() as made, made.serve(assets=tmp_path) as url, connect(url, receive_buffer=4096) as client:
        client.sendall(b"GET /assets/large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1)
        assert len(read_all(client)) < 30_000_000


def test_who_takes_it_slowly_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 1.5)
    monkeypatch.setattr(server, "_STUCK_CHECK_S", 0.05)
    (tmp_path / "large").write_bytes(b"x" * 16_000_000)
    with site() as made, made.serve(assets=tmp_path) as url, connect(url, receive_buffer=65536) as client:
        client.sendall(b"GET /assets/large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = 0
        began = time.monotonic()
        while data := client.recv(65536):
            received += len(data)
            if time.monotonic() - began < 2.5:
                time.sleep(0.01)
    assert received > 16_000_000


def test_clients_cannot_use_up_all_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 3)
    with site() as made, made.serve() as url:
        clients = [connect(url) for _ in range(3)]
        clients[2].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert clients[2].recv(12) == b"HTTP/1.1 200"  # by then all three are known
        assert get(url + ENTRY).status_code == 200, "who has waited longest goes, not the newcomer"
        assert clients[0].recv(1) == b""
        for client in clients:
            client.close()


def test_half_of_all_files_is_for_clients() -> None:
    assert 100 < connection.most_connections() <= 1_000_000


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
        await asyncio.to_thread(left.wait, 10)
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
