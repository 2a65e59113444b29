"""What an endpoint costs: its start, an entry, and a boot that is recorded first.

A tree of so many servers is published; `gitboot serve` and nginx answer from it with one process each. A request is
counted by the CPU time of who answers, which does not depend on how fast the client asks.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from benchmarks.cost import Cost, between, median, of_command, so_far
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from gitboot.observe.spool import identity
from gitboot.plan import Record
from gitboot.publish.directory import Directory
from gitboot.render.formats import shared_files
from gitboot.render.schedule import server_state
from gitboot.render.state import state_path
from gitboot.render.terms import Terms, render
from gitboot.render.tree import File
from tests.fleets import SEED, decided, mac_of, policy, uuid_of

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
WORKING_SET = 1000
REQUESTS = 20_000
MACHINES = 1000
WITHIN_S = 10
PAGES = 20
IMPORTS = "import uvicorn.protocols.http.httptools_impl, uvloop, starlette.routing"


def mac(number: int) -> str:
    return f"02-00-00-{number >> 16:02x}-{number >> 8 & 255:02x}-{number & 255:02x}"


def path_of(number: int) -> str:
    return f"/v1/boot/{mac(number)}/boot.ipxe"


def publish(root: Path, servers: int, often: str, spool: Path | None = None) -> None:
    """The tree of a fleet whose servers differ in name, MAC address and UUID, and so in what is offered to them.

    What they boot as often as they ask writes no disk; what they boot once does, and is given by ``spool``.
    """
    boots = "web" if often == "Once" else "repair"
    decisions = decided(*SEED[:-1], policy("web", often=often, boots=boots))
    found = server_state(decisions, decisions.servers["web01"], Record(), AT)
    text = found.files[state_path("web01")].content.decode()
    own, uuid = mac_of("web01").replace(":", "-"), uuid_of("web01")
    turns = [turn for each in found.published.paths.values() for turn in each]
    offered = {digest for turn in turns for digest in (turn.digest, turn.writes and turn.writes.offer) if digest}
    files = {}
    for number in range(servers):
        name = f"s{number:06}"
        replaced = text
        for digest in offered:
            replaced = replaced.replace(digest, sha256(f"{digest} {number}".encode()).hexdigest())
        replaced = replaced.replace(own, mac(number)).replace(uuid, f"{number:08x}-0000-4000-8000-000000000000")
        entry = found.files[f"boot/v1/boot/{own}/boot.ipxe"]
        files[name] = {
            state_path(name): File(replaced.replace("web01", name).encode()),
            f"boot{path_of(number)}": File(entry.content.replace(b"web01", name.encode())),
        }
    with Directory.open(root, ledger="bench") as target:
        shared = {**shared_files(decisions), **render(Terms(giver=identity(spool) if spool is not None else None))}
        target.publish(files, shared, complete=True, commit="bench", at=AT)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def ask(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def until_answered(process: subprocess.Popen[bytes], port: int, path: str, began: float) -> float:
    while True:
        if process.poll() is not None:
            raise CannotRun(f"{process.args!r} has ended")
        try:
            assert ask(port, path).startswith(b"HTTP/1.1 200")
        except OSError:
            time.sleep(0.002)
        else:
            return time.perf_counter() - began


@contextmanager
def serving(root: Path, *arguments: str) -> Iterator[tuple[int, int, float]]:
    """The port and process of an endpoint, and how long it took to its first answer."""
    port, began = free_port(), time.perf_counter()
    where = ("--out", str(root), "--listen", f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "gitboot", "serve", *where, *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield port, process.pid, until_answered(process, port, path_of(0), began)
        finally:
            process.terminate()


@contextmanager
def nginx(root: Path, folder: Path) -> Iterator[tuple[int, int]]:
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"user root; worker_processes 1; daemon off; pid {folder}/pid; error_log /dev/null; events {{ }}\n"
        f"http {{ access_log off; keepalive_requests 1000000;\n"
        f"server {{ listen 127.0.0.1:{port}; root {root}/boot; }} }}\n"
    )
    with subprocess.Popen(["nginx", "-c", str(configuration)], stderr=subprocess.DEVNULL) as process:
        try:
            until_answered(process, port, path_of(0), time.perf_counter())
            (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield port, int(worker)
        finally:
            process.terminate()


async def arriving(port: int, machines: int, within_s: float, *, seed: int) -> list[float]:
    """The seconds from when each machine comes to when it has its entry, over a connection of its own.

    They come when they come, whether those before them have been answered or not.
    """
    dice, loop = random.Random(seed), asyncio.get_running_loop()
    begins = loop.time() + 0.1

    async def one(number: int, due: float) -> float:
        await asyncio.sleep(due - loop.time())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await answered(reader, writer, path_of(number))
        took = loop.time() - due
        writer.close()
        return took

    return await asyncio.gather(*(one(number, begins + dice.uniform(0, within_s)) for number in range(machines)))


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    """Ask for a path, and take its answer, all of it."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: iPXE\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    await reader.readexactly(length)


async def many(port: int, numbers: list[int], connections: int, path: Callable[[int], str] = path_of) -> list[float]:
    """The seconds that each request took, over so many connections that stay open."""
    waiting, took = list(reversed(numbers)), []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            began = time.perf_counter()
            await answered(reader, writer, path(waiting.pop()))
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took


def per_request(port: int, pid: int, servers: int, connections: int) -> Cost:
    dice = random.Random(1)
    chosen = [dice.randrange(servers) for _ in range(min(WORKING_SET, servers))]
    asyncio.run(many(port, chosen, connections))
    before = so_far(pid)
    asyncio.run(many(port, [dice.choice(chosen) for _ in range(REQUESTS)], connections))
    return between(before, so_far(pid)) / REQUESTS


def sync_s(folder: Path) -> float:
    """What one fdatasync of a line takes there, in the middle of many."""
    took = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(100):
            began = time.perf_counter()
            file.write(b"x" * 250)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return sorted(took)[50]


# Rows


def start(place: Place) -> Figure:
    """To the first answer; the floor is to import what any such endpoint stands on."""
    root = _published(place, "Always")
    floor = of_command([sys.executable, "-c", IMPORTS], rounds=place.rounds)
    costs = []
    for _ in range(place.rounds):
        with serving(root) as (_, pid, took):
            found = so_far(pid)
            costs.append(Cost(cpu_s=found.cpu_s, wall_s=took, peak_mib=found.peak_mib))
    return Figure(cost=median(costs), floor=floor)


def entry(place: Place, connections: int = 16) -> Figure:
    if shutil.which("nginx") is None:
        raise CannotRun("there is no nginx (apt install nginx-light)")
    root = _published(place, "Always")
    with serving(root) as (port, pid, _), nginx(root, place.folder) as (other_port, other):
        pairs = [
            (
                per_request(port, pid, place.servers, connections),
                per_request(other_port, other, place.servers, connections),
            )
            for _ in range(place.rounds)
        ]
    ours, theirs = (median(each) for each in zip(*pairs, strict=True))
    return Figure(cost=ours, floor=theirs, note=f"{theirs.cpu_s / ours.cpu_s:.2f} × nginx")


def once(place: Place) -> Figure:
    """Machines that come to boot within ten seconds, each recorded before it is answered; a round has its own spool."""
    rounds = []
    for number in range(place.rounds):
        (spool := place.folder / f"spool-{number}").mkdir()
        publish(root := place.folder / f"once-{number}", servers := min(place.servers, MACHINES), "Once", spool)
        with serving(root, "--spool", str(spool), "--accept-filesystem", "tmpfs") as (port, pid, _):
            before = so_far(pid)
            took = sorted(asyncio.run(arriving(port, servers, WITHIN_S, seed=number)))
            cost = between(before, so_far(pid)) / servers
        rounds.append(Cost(cpu_s=cost.cpu_s, wall_s=took[math.ceil(len(took) * 0.99) - 1]))
        shutil.rmtree(root)
    sync = statistics.median(sync_s(place.folder) for _ in range(place.rounds))
    return Figure(cost=median(rounds), floor=Cost(cpu_s=0, wall_s=sync), note="wall: p99; floor: one sync")


def listed(place: Place) -> Figure:
    """The first page of the servers, again and again over one connection."""
    costs = []
    with serving(_published(place, "Always")) as (port, pid, _):
        for _ in range(place.rounds + 1):  # the first finds out what there is
            before = so_far(pid)
            asyncio.run(many(port, [0] * PAGES, 1, lambda _: "/api/v1/servers"))
            costs.append(between(before, so_far(pid)) / PAGES)
    return Figure(cost=median(costs[1:]))


def _published(place: Place, often: str) -> Path:
    root = place.folder / "endpoint"
    if not root.exists():
        publish(root, place.servers, often)
    return root
