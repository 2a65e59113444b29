"""Limits of connections and bodies, tested with clients that never finish."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select

import httpx
import pytest

from gitboot.endpoint import connections
from gitboot.endpoint.connections import MAX_BODIES_PER_ADDRESS, MAX_IDLE
from gitboot.fetchlog.unknown_machines import UnknownMachineRecorder
from tests.endpoint.test_recorder import ACCEPTING_FLEET
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, IPXE, PROXY, connect, exchange, get, read_all, site
from tests.helpers.fleets import write_configuration
from tests.helpers.forked_commands import RUN_FIRST
from tests.helpers.git_repositories import program
from tests.helpers.running_instance import eventually

MANY = 80
POST = b"POST /v1/inventory HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\n"


def find_readable(held: list[socket.socket]) -> list[socket.socket]:
    """Return the connections on which the endpoint has answered, or which it has closed."""
    return select(held, [], [], 0)[0]


# On a busy machine, a test may take longer than clients have for a head or a body.
PATIENT = "from gitboot.endpoint import connections; connections.HEAD_TIMEOUT_S = connections.BODY_TIMEOUT_S = 3600"


def test_finding_s4_bodies_that_never_end_are_rejected_while_another_client_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RUN_FIRST, PATIENT)
    settings = write_configuration(idle_connections=1000)
    with (
        site(ACCEPTING_FLEET) as made,
        served(made.root, "--spool", str(made.spool), *settings) as (url, _),
        ExitStack() as stack,
    ):
        held = [stack.enter_context(connect(url)) for _ in range(MANY)]
        for each in held:
            each.sendall(POST + b"\r\n{")
        refused = eventually(lambda: len(found := find_readable(held)) == MANY - MAX_BODIES_PER_ADDRESS and found)
        for each in refused:
            answer = read_all(each)
            assert answer.startswith(REFUSED) and b"\r\nConnection: close\r\n" in answer
        assert get(url + ENTRY).status_code == 200


def test_finding_s4_a_body_that_arrives_slowly_ends_at_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 0.1)
    with (
        site(ACCEPTING_FLEET) as made,
        made.serve(unknown_recorder=UnknownMachineRecorder(made.spool)) as url,
        connect(url) as client,
    ):
        client.sendall(POST + b"\r\n{")
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"\r\nConnection: close\r\n" in answer


def test_finding_s4_a_slow_curl_body_gets_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 1)
    status = ("--silent", "--output", os.devnull, "--write-out", "%{http_code}", "--user-agent", IPXE)
    with site(ACCEPTING_FLEET) as made, made.serve(unknown_recorder=UnknownMachineRecorder(made.spool)) as url:
        command = [program("curl", "curl"), *status, "--request", "POST", "--upload-file", ".", f"{url}/v1/inventory"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as curl:
            assert curl.stdin is not None and curl.stdout is not None
            with suppress(BrokenPipeError):
                while not select([curl.stdout], [], [], 0.1)[0]:  # until curl writes the status of its answer
                    curl.stdin.write(b"{")
            assert curl.stdout.read() == b"408"


@for_each(
    "head",
    [
        "POST /v1/boot/none HTTP/1.1",
        "GET /nothing HTTP/1.1",
        "PUT / HTTP/1.1",
        "POST / HTTP/1.1\r\nExpect: 100-continue",
    ],
)
def test_a_response_that_is_sent_before_the_body_ends_the_connection(head: str) -> None:
    second = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with site(ACCEPTING_FLEET) as made, made.serve() as url, connect(url) as client:
        client.sendall(f"{head}\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{".encode())
        answer = client.recv(65536)
        with suppress(ConnectionError):
            client.sendall(b"}" + second)
        answer += read_all(client)
        assert answer.count(b"\r\nConnection: close\r\n") == 1
        assert answer.count(b"HTTP/1.1 ") == 1


def test_the_connection_stays_open_after_a_complete_body() -> None:
    end = b"Connection: close\r\n\r\n"
    with site(ACCEPTING_FLEET) as made, made.serve(unknown_recorder=UnknownMachineRecorder(made.spool)) as url:
        answer = exchange(url, POST.replace(b"500", b"2") + b"\r\n{}" + b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + end)
        assert answer.count(b"HTTP/1.1 ") == 2
        assert answer.endswith(b"ok\n")


def test_finding_s4_clients_that_read_slowly_are_closed_for_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "get_max_connections", lambda: 3)
    (tmp_path / "image").write_bytes(bytes(16_000_000))
    with site() as made, made.serve(assets=tmp_path) as url, ExitStack() as stack:
        held = [stack.enter_context(connect(url, receive_buffer=4096)) for _ in range(3)]
        for each in held:
            each.sendall(b"GET /assets/image HTTP/1.1\r\nHost: x\r\n\r\n")
            assert each.recv(12) == b"HTTP/1.1 200"
        other = stack.enter_context(http_peers.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9")))
        assert other.get(url + ENTRY).status_code == 200
        assert len(read_all(held[0])) < 16_000_000


def test_finding_s4_behind_a_named_proxy_bodies_count_for_the_forwarded_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_S", 3600)
    with site(ACCEPTING_FLEET) as made, ExitStack() as stack:
        url = stack.enter_context(
            made.serve(trusted_proxies=PROXY, max_idle=1000, unknown_recorder=UnknownMachineRecorder(made.spool))
        )
        held = [stack.enter_context(connect(url)) for _ in range(3 * MAX_BODIES_PER_ADDRESS)]
        for number, each in enumerate(held):
            each.sendall(POST + b"X-Forwarded-For: 10.0.0.%d\r\n\r\n{" % (number % 3))
        one_more = stack.enter_context(connect(url))
        one_more.sendall(POST + b"X-Forwarded-For: 10.0.0.1\r\n\r\n{")
        (refused,) = eventually(lambda: find_readable(held))
        assert read_all(refused).startswith(REFUSED)
        assert held.index(refused) % 3 == 1
        assert find_readable([*held[0::3], *held[2::3], one_more]) == []


def test_finding_s4_connections_of_this_host_are_limited_while_another_client_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RUN_FIRST, PATIENT)
    with site() as made, served(made.root, "--spool", str(made.spool)) as (url, _), ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(MANY)]
        eventually(lambda: len(find_readable(held)) == MANY - MAX_IDLE)
        other = stack.enter_context(http_peers.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9")))
        assert other.get(url + ENTRY).status_code == 200
        assert len(find_readable(held)) == MANY - MAX_IDLE
