"""How long requests take while a commit that changes every server is worked on, against while nothing is.

A real instance follows a real repository and listens; one client in a process of its own asks for one entry after the
other, over one connection, 200 times a second.
"""

from __future__ import annotations

import math
import random
import time
from http.client import HTTPConnection
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.cost import Cost
from benchmarks.endpoint import free_port
from benchmarks.place import Place
from benchmarks.repository import Repository
from benchmarks.row import Figure
from benchmarks.running import Instance, every_server

PER_SECOND = 200
IDLE_S = 15
SETTLE_S = 3


def client(port: int, paths: list[str], told: Connection) -> None:
    """Ask until told to stop; answer each word with what was measured since the last: (latency, status)."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    chosen = random.Random(1)
    measured: list[tuple[float, int]] = []
    due = time.monotonic()
    while True:
        if told.poll():
            if told.recv() == "stop":
                return
            told.send(measured)
            measured = []
        due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
        begun = time.perf_counter()
        connection.request("GET", chosen.choice(paths))
        answer = connection.getresponse()
        answer.read()
        measured.append((time.perf_counter() - begun, answer.status))


def p99_s(measured: list[tuple[float, int]]) -> float:
    wrong = [status for _, status in measured if status != 200]
    if wrong:
        raise AssertionError(f"answered {wrong[:5]}")
    times = sorted(each for each, _ in measured)
    return times[math.ceil(len(times) * 0.99) - 1]


def while_working(place: Place) -> Figure:
    """Wall is the 99th percentile of a request; the floor is that of the same requests while nothing is done."""
    folder = place.folder / "serving"
    folder.mkdir()
    repository = Repository(folder / "fleet.git")
    repository.commit(place.fleet.files())
    instance = Instance(folder, repository, place.fleet)
    port = free_port()
    with instance.running("--listen", f"127.0.0.1:{port}"):
        entries = (instance.output / "boot" / "v1" / "boot").glob("*/boot.ipxe")
        paths = sorted(f"/v1/boot/{path.parent.name}/boot.ipxe" for path in entries)[:1000]
        ours, theirs = get_context("spawn").Pipe()
        asking = get_context("spawn").Process(target=client, args=(port, paths, theirs), daemon=True)
        asking.start()
        time.sleep(SETTLE_S)

        def since(word: str) -> list[tuple[float, int]]:
            ours.send(word)
            measured: list[tuple[float, int]] = ours.recv()
            return measured

        since("begin")
        time.sleep(IDLE_S)
        idle = p99_s(since("idle"))
        cost = instance.commits(every_server, rounds=1)
        worked = p99_s(since("worked"))
        ours.send("stop")
    return Figure(
        cost=Cost(cpu_s=cost.cpu_s, wall_s=worked),
        floor=Cost(cpu_s=0, wall_s=idle),
        note=f"wall: p99, {worked / idle:.1f} × idle",
    )
