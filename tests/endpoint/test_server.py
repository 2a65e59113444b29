"""Endpoint processes: start, restart and end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gitboot.endpoint import connections as connection
from gitboot.endpoint.server import EndpointServer, WorkerLimits, Workers, build_url, open_listening_socket
from gitboot.errors import UsageError
from gitboot.status.instance_status import Endpoints
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import (
    AFTER,
    ENTRY,
    LOADER,
    LOOKUPS,
    ONCE,
    Site,
    connect,
    exchange,
    get,
    plan_fleet,
    read_all,
    site,
)
from tests.helpers.fleets import SEED, policy, server
from tests.helpers.forked_commands import RunningCommand
from tests.helpers.instance_in_process import read_published_records
from tests.helpers.running_instance import Repository, eventually, is_program, read_size, running


class SlowApp:
    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        while not self.may_answer.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"slow"})


def run_app(app: ASGIApp) -> tuple[EndpointServer, str]:
    where = "127.0.0.1:0"
    listening = open_listening_socket(where)
    running = EndpointServer(app, listening)
    running.start()
    return running, build_url(where, listening)


# Listening


@for_each(
    "listen",
    ["", "8080", ":8080", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "::1:80", "[::1]", "a b:80"],
)
def test_an_invalid_address_is_rejected(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        open_listening_socket(listen)


def test_an_address_in_use_is_rejected() -> None:
    with site() as made, made.serve() as url:
        with pytest.raises(UsageError, match=rf"cannot listen at {url}: Address already in use"):
            open_listening_socket(url.removeprefix("http://"))
        assert get(url + ENTRY).status_code == 200


@pytest.mark.parametrize(
    ("listen", "complaint"),
    [("192.0.2.1:0", "Cannot assign requested address"), ("no-such-host.invalid:80", "cannot listen at")],
)
def test_an_address_of_another_host_is_rejected(listen: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        open_listening_socket(listen)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::1]:0", "[::]:0"])
def test_a_free_port_is_chosen_and_reported(listen: str) -> None:
    with site() as made, made.serve(listen) as url:
        assert not url.endswith(":0")
        assert get(url + ENTRY).status_code == 200


def test_one_socket_accepts_both_address_families() -> None:
    with site(plan_fleet(*ONCE)) as made, made.serve("[::]:0") as url:
        port = url.rpartition(":")[2]
        assert get(f"http://127.0.0.1:{port}{ENTRY}").status_code == 200
        assert [each.client for each in made.observed()] == ["127.0.0.1"]


# Stopping


def test_a_running_request_is_answered_before_the_server_ends() -> None:
    slow = SlowApp()
    running, url = run_app(slow)
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


def test_a_request_that_takes_too_long_is_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowApp()
    running, url = run_app(slow)
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.asked.wait(60)
        running.stop(timeout_s=0.5)
        assert b"slow" not in read_all(client)


def test_the_server_does_not_change_signals_and_logging() -> None:
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
def test_a_request_without_an_end_is_closed(url: str, request_start: bytes) -> None:
    with connect(url) as client:
        try:
            client.sendall(request_start)
            assert client.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert get(url + ENTRY).status_code == 200


def test_the_server_does_not_wait_for_a_body(url: str) -> None:
    request = f"GET {ENTRY} HTTP/1.1\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"
    assert exchange(url, request.encode()).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLIENT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("gitboot.endpoint.server._STUCK_CHECK_S", 0.05)
    with site() as made, made.serve() as url:
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            with connect(url) as client:
                client.sendall(sent)
                assert read_all(client) == b""


class ClockLoop:
    """The loop of a connection, whose clock a test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.ahead_s = loop, 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Download:
    """A client that receives 16 MB, and its connection at the server. The test calls the check for stuck clients."""

    def __init__(self, client: socket.socket, connection: connection.Connection) -> None:
        self.client, self._connection = client, connection
        self._loop = connection.loop
        self._clock = connection.loop = ClockLoop(self._loop)  # type: ignore[assignment]

    def check_connection(self, after_s: float) -> bool:
        """Let time pass and check for stuck clients. Return whether this client is still connected."""

        async def look() -> bool:
            self._clock.ahead_s += after_s
            self._connection.abort_if_stuck(0)
            return not self._connection.transport.is_closing()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(60)

    def count_unsent(self) -> int:
        async def look() -> int:
            return self._connection.transport.get_write_buffer_size()

        return asyncio.run_coroutine_threadsafe(look(), self._loop).result(60)


async def send_16_mb(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"16000000")]})
    for _ in range(160):
        await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Iterator[Download]:
    monkeypatch.setattr("gitboot.endpoint.server._STUCK_CHECK_S", 3600)  # tests call the check themselves
    running, url = run_app(send_16_mb)
    with connect(url, receive_buffer=65536) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        connections = running._server.server_state.connections
        assert eventually(lambda: len(connections) == 1)
        (found,) = connections
        assert isinstance(found, connection.Connection)
        made = Download(client, found)
        assert eventually(lambda: made.count_unsent() > 0)
        yield made
    running.stop(timeout_s=1)


def test_a_client_that_reads_nothing_is_closed(download: Download) -> None:
    assert download.check_connection(after_s=0)
    assert download.check_connection(after_s=connection.CLIENT_TIMEOUT_S - 30)
    assert not download.check_connection(after_s=31)
    assert len(read_all(download.client)) < 16_000_000


def test_a_client_that_reads_slowly_is_not_closed(download: Download) -> None:
    received = 0
    for _ in range(4):
        before = download.count_unsent()
        assert download.check_connection(after_s=0)
        while download.count_unsent() == before:
            received += len(download.client.recv(10_000))
        assert download.check_connection(after_s=connection.CLIENT_TIMEOUT_S - 1)
    received += len(read_all(download.client))
    assert received > 16_000_000


def test_clients_cannot_use_up_all_open_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "get_max_connections", lambda: 3)
    with site() as made, made.serve() as url:
        clients = [connect(url) for _ in range(3)]
        clients[2].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert clients[2].recv(12) == b"HTTP/1.1 200"  # then all three are connected
        assert get(url + ENTRY).status_code == 200, "the oldest of who holds most goes, not the newcomer"
        assert clients[0].recv(1) == b""
        for client in clients:
            client.close()


class PausedApp:
    """An application that sends the first half of each response, and the second half when the test allows it."""

    def __init__(self) -> None:
        self.limits, self.may_end = connection.ConnectionLimits(), threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.to_thread(self.may_end.wait, 60)
        await send({"type": "http.response.body", "body": b"half"})


def test_a_response_that_is_not_complete_yet_is_closed_for_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "get_max_connections", lambda: 1)
    paused = PausedApp()
    running, url = run_app(paused)
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


def test_clients_use_at_most_a_third_of_all_open_files() -> None:
    assert 100 < connection.get_max_connections() <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 3


@pytest.mark.parametrize("path", [b"/healthz", b"/boot.ipxe"])
def test_headers_have_their_registered_spelling(path: bytes) -> None:
    """GRUB before 2.12 recognizes only the spelling Content-Length, else it waits for the end of the connection."""
    with site() as made, made.serve() as url:
        get(url + path.decode())
        head, _, _ = exchange(url, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").partition(
            b"\r\n\r\n"
        )
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert b"Content-Length" in names
    assert all(name == name.title() for name in names), names


def test_a_client_that_left_after_several_requests_causes_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Of several requests, only the last one learns from uvicorn that the client has gone."""
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

    running, url = run_app(answers_too_late)
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: boot.test\r\n\r\n" * 2)
        assert asked.wait(60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets the connection
    left.set()
    assert answered.wait(60)
    running.stop()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def list_workers(parent: int) -> list[int]:
    return sorted(pid for pid in list_children(parent) if is_program(pid, "serve"))


def read_command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _serve_command(root: Path, *arguments: str) -> tuple[str, ...]:
    return ("serve", "--out", str(root), "--listen", "127.0.0.1:0", *arguments)


@contextmanager
def served(root: Path, *arguments: str) -> Iterator[tuple[str, RunningCommand]]:
    with RunningCommand(*_serve_command(root, *arguments)) as process:
        yield json.loads(process.stderr.readline())["url"], process


@pytest.fixture
def tree() -> Iterator[Site]:
    with site(plan_fleet(*ONCE)) as made:
        yield made


def get_status(url: str) -> int:
    return get(url + ENTRY).status_code


def test_a_killed_worker_is_started_again_and_all_processes_end_by_a_signal(tree: Site) -> None:
    with served(tree.root, "--workers", "2", "--spool", str(tree.spool)) as (url, process):
        assert get_status(url) == 200
        first = eventually(lambda: len(pids := list_workers(process.pid)) == 2 and pids)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        assert get_status(url) == 200, "who connects meanwhile waits"
        pids = eventually(lambda: len(pids := list_workers(process.pid)) == 2 and not set(first) & set(pids) and pids)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert all(map(is_gone, (*first, *pids)))


def test_a_worker_ends_with_its_parent_in_every_case(tree: Site) -> None:
    with served(tree.root, "--workers", "2") as (url, process):
        assert get_status(url) == 200
        pids = eventually(lambda: len(pids := list_workers(process.pid)) == 2 and pids)
        process.kill()
        process.wait()
        eventually(lambda: all(map(is_gone, pids)))


def test_several_processes_change_at_one_transition_and_use_a_publication_at_the_next_request(tree: Site) -> None:
    with served(tree.root, "--workers", "2", "--spool", str(tree.spool)) as (url, _):
        for version in range(10):
            tree.publish(plan_fleet(*ONCE[:-1], policy(f"v{version}", often="Once"), now=AFTER), commit=str(version))
            for path in LOOKUPS * 3:  # each on a separate connection, to any worker
                assert f"BootPolicy/v{version}," in get(url + path).text
        assert len(tree.observed()) == 10 * 9


def test_options_for_another_command_are_not_passed_to_workers(tree: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.root.parent / "config").write_text("workers = 2\n")
    monkeypatch.setenv("GITBOOT_CONFIG", str(tree.root.parent / "config"))
    command = [sys.executable, "-m", "gitboot", *_serve_command(tree.root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert get_status(json.loads(process.stderr.readline())["url"]) == 200
            eventually(lambda: len(list_workers(process.pid)) == 2)
            assert all(b"--workers" not in read_command(pid) for pid in list_workers(process.pid))
        finally:
            process.kill()


def test_a_worker_whose_parent_is_already_gone_does_not_start(tree: Site) -> None:
    command = [sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), "--fd", "0", "--parent", "1"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 1


# Under run


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({"fleet.yaml": "---\n".join((*SEED[:-1], policy("web", often="Once")))})
    return made


def test_an_instance_counts_its_endpoints_and_starts_them_again(repository: Repository, tmp_path: Path) -> None:
    with running(repository.bare, tmp_path, "--workers", "2", records="fresh") as instance:

        def serving() -> str:
            found = {each["type"]: each for each in instance.status()["conditions"]}
            return f"{found['Serving']['status']} {found['Serving']['message']}"

        eventually(lambda: serving() == "True 2 of 2 endpoints are running")
        (tree_read,) = [each for each in instance.status()["conditions"] if each["type"] == "OutputTreeReadable"]
        assert tree_read["status"] is True
        os.kill(list_workers(instance.process.pid)[0], signal.SIGKILL)
        eventually(lambda: serving() == "True 2 of 2 endpoints are running, 1 restart since the start")


# Writes a heartbeat ten times a second to the pipe in the last argument, and its process id to the folder in the first.
LIVELY = """
import os, pathlib, sys, time
while True:
    os.write(int(sys.argv[-1]), b".")
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.1)
"""


def test_finding_c6_a_stopped_endpoint_is_not_serving_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[Endpoints] = []

    def note_change() -> None:
        changes.append(workers.count_processes())

    limits = WorkerLimits(silent_s=2, hung_s=5, end_s=0.5)
    command = [sys.executable, "-c", LIVELY, str(tmp_path)]
    workers = Workers(command, open_listening_socket("127.0.0.1:0"), 2, note_change, limits=limits)
    with workers:
        stopped, other = eventually(lambda: len(pids := [int(each.name) for each in tmp_path.iterdir()]) == 2 and pids)
        os.kill(stopped, signal.SIGSTOP)
        eventually(lambda: changes[-1:] == [Endpoints(expected=2, alive=2, restarts=1)])
        assert Endpoints(expected=2, alive=1, restarts=0, hung=1) in changes
        assert is_gone(stopped)
        assert not is_gone(other)
        os.kill(other, signal.SIGSTOP)  # a stopped process handles only SIGKILL
    assert is_gone(other), "all end with the block"
    assert f"endpoint process {stopped} has not responded for 5 s, so gitboot is replacing this process" in caplog.text


def test_an_endpoint_signals_repeatedly_that_it_is_alive(tree: Site) -> None:
    reading, writing = os.pipe()
    with open_listening_socket("127.0.0.1:0") as listening:
        options = ("--fd", str(listening.fileno()), "--life-fd", str(writing), "--parent", str(os.getpid()))
        command = [sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), *options]
        with subprocess.Popen(command, pass_fds=(listening.fileno(), writing)) as process:
            os.close(writing)
            try:
                assert [os.read(reading, 1) for _ in range(2)] == [b".", b"."]
            finally:
                process.kill()
    os.close(reading)


def test_finding_c5_with_a_full_state_directory_the_endpoint_does_not_report_healthy(
    repository: Repository, tmp_path: Path
) -> None:
    with small_disk(tmp_path, "64m") as disk:
        published = ("--out", str(tmp_path / "published"))
        with running(repository.bare, disk, *published, "--poll", "0.5", records="fresh") as instance:
            eventually(lambda: instance.status()["applied"]["commit"])
            fill(disk / "filler")
            at_full = instance.status()["clock"]
            repository.push({"more.yaml": server("web02", "role: web")})

            def is_reported() -> bool:
                found = instance.status()
                return found["clock"] > at_full and not all(each["status"] for each in found["conditions"])

            eventually(is_reported)
            (disk / "filler").unlink()
            eventually(lambda: all(each["status"] for each in instance.status()["conditions"]))


def test_a_fetch_that_an_endpoint_recorded_is_read_once_and_then_deleted(
    repository: Repository, tmp_path: Path
) -> None:
    web01 = server("web01", "role: web", "provision: 1")
    repository.push({"fleet.yaml": "---\n".join((SEED[0], web01, *SEED[2:-1], policy("web", often="Once")))})
    spool = tmp_path / "state" / "spool"
    with running(repository.bare, tmp_path, records="fresh") as instance:
        eventually(lambda: "(Network)" in instance.get(ENTRY).text)
        eventually(lambda: b"Fetched" in read_published_records(tmp_path / "output"))
        assert len(list(spool.glob("*.jsonl"))) == 1, "its writer lives"
    assert [event["type"] for event in instance.events].count("Provisioned") == 1
    with running(repository.bare, tmp_path) as instance:
        eventually(lambda: not any(map(read_size, spool.glob("*.jsonl"))))
        assert "Provisioned" not in [event["type"] for event in instance.events]


def test_a_killed_instance_leaves_no_process_behind(repository: Repository, tmp_path: Path) -> None:
    places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "gitboot", "run", str(repository.bare), *places, "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        pids = eventually(lambda: len(pids := list_workers(process.pid)) == 2 and pids)
        process.kill()
        process.wait()
        eventually(lambda: all(map(is_gone, pids)))
    finally:
        process.kill()
        process.wait()


def test_as_the_first_process_of_a_container_it_reaps_orphans(tree: Site) -> None:
    probe = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no process namespace can be made here: {probe.stderr.decode().strip()}")
    container = subprocess.Popen(
        [
            *("unshare", "-pf", "--mount-proc", "--kill-child"),
            *(sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), "--listen", "127.0.0.1:0"),
            *("--workers", "2"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert container.stderr is not None
        url = json.loads(container.stderr.readline())["url"]
        assert get_status(url) == 200
        (first,) = eventually(lambda: [pid for pid in list_children(container.pid) if b"serve" in read_command(pid)])
        workers = eventually(lambda: len(pids := list_children(first)) == 2 and pids)
        orphan = subprocess.run(
            ["nsenter", "-t", str(first), "-p", "-m", "sh", "-c", "sleep 3600 & exit 0"], check=False
        )
        assert orphan.returncode == 0
        (left,) = eventually(lambda: set(list_children(first)) - set(workers))
        os.kill(left, signal.SIGKILL)
        eventually(lambda: list_children(first) == workers)  # a zombie would be one of them
        os.kill(workers[0], signal.SIGKILL)  # its own workers are its own to wait for
        eventually(lambda: len(now := list_children(first)) == 2 and workers[0] not in now)
        assert get_status(url) == 200
    finally:
        container.kill()
        container.wait()
        if container.stderr is not None:
            container.stderr.close()


def list_children(pid: int) -> list[int]:
    return [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]
