"""The endpoint: requests for boot scripts beside nginx, requests during a commit, and the start of `gitboot serve`.

A request is counted by the processor time of the process that answers. It does not depend on the speed of the client.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.cost import Cost, cost_so_far, last_words, subtract_cost
from benchmarks.fleet import Fleet, mac_of
from benchmarks.instance import Instance, edit_every_server
from benchmarks.place import Place
from benchmarks.repository import Repository
from benchmarks.row import CannotRun, Figure

_MACHINES: Final = 1000  # at most, that fetch again and again
_ALWAYS: Final = re.compile(rb"role: batch(?!.*memory-suspect)")
_REQUESTS: Final = 20_000
_CONNECTIONS: Final = 16
_PATIENCE_S: Final = 60
_PER_SECOND: Final = 200  # requests, while a commit is published
_IDLE_S: Final = 15


def boot_script(number: int) -> str:
    """Return the path of a server's boot script."""
    return f"/v1/boot/{mac_of(number)}/boot.ipxe"


def choose_servers(fleet: Fleet, at_most: int) -> list[int]:
    """Return the numbers of servers all over the fleet that always boot from the network.

    Every version serves their boot scripts without a record of each fetch.
    """
    in_any_order = random.Random(1).sample(range(fleet.servers), fleet.servers)
    always = (number for number in in_any_order if _ALWAYS.search(fleet.server(number)))
    return sorted(islice(always, at_most))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def is_served(port: int, path: str) -> bool:
    """Return whether a server answers this path with 200."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: client.recv(65536), b"")).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@contextmanager
def _run_server(command: tuple[str, ...], port: int, path: str, stderr: Path) -> Iterator[tuple[int, float]]:
    """Run a server inside the block. Yield its process and the seconds to its first answer."""
    began = time.perf_counter()
    with stderr.open("wb") as printed, subprocess.Popen(command, stderr=printed) as process:
        try:
            while not is_served(port, path):
                if process.poll() is not None or time.perf_counter() - began > _PATIENCE_S:
                    raise AssertionError(f"{command[0]} does not serve: {last_words(stderr.read_bytes())}")
                time.sleep(0.002)
            yield process.pid, time.perf_counter() - began
        finally:
            process.terminate()


def _gitboot(place: Place, port: int) -> tuple[str, ...]:
    return place.gitboot.command("serve", "--out", str(place.output), "--listen", f"127.0.0.1:{port}")


def _nginx(place: Place, port: int, folder: Path) -> tuple[str, ...]:
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"user root; worker_processes 1; daemon off; pid {folder}/pid; error_log stderr; events {{ }}\n"
        f"http {{ access_log off; keepalive_requests 1000000;\n"
        f"server {{ listen 127.0.0.1:{port}; root {place.output}/boot; }} }}\n"
    )
    return "nginx", "-c", str(configuration)


# Requests


def measure_requests(place: Place) -> Figure:
    """The cost of one request, of `gitboot serve` with one worker and of nginx with one worker."""
    if shutil.which("nginx") is None:
        raise CannotRun("nginx is missing: scripts/install-packages benchmarks/packages.txt")
    ours, theirs = list[Cost](), list[Cost]()
    port, other_port = free_port(), free_port()
    chosen = choose_servers(place.fleet, _MACHINES)
    path = boot_script(chosen[0])
    with (
        place.own_folder("nginx") as folder,
        _run_server(_gitboot(place, port), port, path, folder / "gitboot.log") as (pid, _),
        _run_server(_nginx(place, other_port, folder), other_port, path, folder / "nginx.log") as (other, _),
    ):
        for _ in range(place.rounds):
            ours.append(_measure_request(port, pid, chosen))
            theirs.append(_measure_request(other_port, other, chosen))
    return Figure(rounds=ours, beside={"nginx": theirs})


def _measure_request(port: int, pid: int, chosen: list[int]) -> Cost:
    dice = random.Random(1)
    asyncio.run(_fetch(port, chosen))
    before = cost_so_far(pid)
    asyncio.run(_fetch(port, [dice.choice(chosen) for _ in range(_REQUESTS)]))
    return subtract_cost(before, cost_so_far(pid)) / _REQUESTS


async def _fetch(port: int, numbers: list[int]) -> None:
    """Fetch the boot scripts of these servers over connections that stay open."""
    waiting = list(reversed(numbers))

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            path = boot_script(waiting.pop())
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: iPXE\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), (path, head)
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(_CONNECTIONS)))


# Latency


def measure_latency(place: Place) -> Figure:
    """The wall time is the 99th percentile of requests while a commit changes every server."""
    with place.own_folder("latency") as folder:
        repository = Repository(folder / "fleet.git")
        repository.commit(place.fleet.files())
        port = free_port()
        instance = Instance(folder, repository, place.fleet, place.gitboot, "--listen", f"127.0.0.1:{port}")
        instance.begin()
        with instance.running():
            instance.wait_until_idle()
            paths = [boot_script(number) for number in choose_servers(place.fleet, _MACHINES)]
            with _client(port, paths) as requests:
                requests.send("idle")
                time.sleep(_IDLE_S)
                requests.send("commit")
                idle = [Cost(cpu_s=0, wall_s=_p99_s(requests.recv()))]
                rounds = []
                for _ in range(place.rounds):
                    (cost,) = instance.measure_commits(edit_every_server, 1)
                    requests.send("commit")
                    rounds.append(Cost(cpu_s=cost.cpu_s, wall_s=_p99_s(requests.recv()), memory_mib=cost.memory_mib))
    return Figure(rounds=rounds, beside={"no commit": idle})


@contextmanager
def _client(port: int, paths: list[str]) -> Iterator[Connection]:
    """Run a client that fetches without a pause between the words that it receives."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=fetch_until_stopped, args=(port, paths, theirs), daemon=True)
    process.start()
    try:
        yield ours
        ours.send("stop")
        process.join()
    finally:
        process.kill()


def fetch_until_stopped(port: int, paths: list[str], controls: Connection) -> None:
    """Fetch 200 times a second. On each word but the first, send what was measured: seconds and HTTP status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    chosen = random.Random(1)
    controls.recv()
    measured: list[tuple[float, int]] = []
    due = time.monotonic()
    while True:
        if controls.poll():
            if controls.recv() == "stop":
                return
            controls.send(measured)
            measured = []
        due = max(due + 1 / _PER_SECOND, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.perf_counter()
        connection.request("GET", chosen.choice(paths), headers={"User-Agent": "iPXE"})
        answer = connection.getresponse()
        answer.read()
        measured.append((time.perf_counter() - began, answer.status))


def _p99_s(measured: list[tuple[float, int]]) -> float:
    failed = [status for _, status in measured if status != 200]
    assert not failed, f"{len(failed)} of {len(measured)} requests were answered with {failed[0]}"
    times_s = sorted(took_s for took_s, _ in measured)
    return times_s[math.ceil(len(times_s) * 0.99) - 1]


# Start


def measure_start(place: Place) -> Figure:
    """The cost from the start of `gitboot serve` to its first answer."""
    rounds = []
    (path,) = map(boot_script, choose_servers(place.fleet, 1))
    with place.own_folder("start") as folder:
        for _ in range(place.rounds):
            port = free_port()
            with _run_server(_gitboot(place, port), port, path, folder / "gitboot.log") as (pid, took_s):
                cost = cost_so_far(pid)
                rounds.append(Cost(cpu_s=cost.cpu_s, wall_s=took_s, memory_mib=cost.memory_mib))
    return Figure(rounds=rounds)
