"""What an endpoint costs: its start, its memory, an entry, and a boot that is recorded first.

    python benchmarks/endpoint.py [SERVERS]

A tree of so many servers is published; `gitboot serve` and nginx answer from it with one process each. A request is
counted by the CPU time of who answers, which does not depend on how fast the client asks.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
IMPORTS = "import uvicorn.protocols.http.httptools_impl, uvloop, starlette.routing"


def mac(number: int) -> str:
    return f"02-00-00-{number >> 16:02x}-{number >> 8 & 255:02x}-{number & 255:02x}"


def path_of(number: int) -> str:
    return f"/v1/boot/{mac(number)}/boot.ipxe"


def publish(root: Path, servers: int, often: str, spool: Path | None = None) -> None:
    """The tree of a fleet whose servers differ in name, MAC address and UUID.

    What they boot as often as they ask writes no disk; what they boot once does, and is given by ``spool``.
    """
    boots = "web" if often == "Once" else "repair"
    decisions = decided(*SEED[:-1], policy("web", often=often, boots=boots))
    found = server_state(decisions, decisions.servers["web01"], Record(), AT)
    text = found.files[state_path("web01")].content.decode()
    own, uuid = mac_of("web01").replace(":", "-"), uuid_of("web01")
    files = {}
    for number in range(servers):
        name = f"s{number:06}"
        replaced = text.replace(own, mac(number)).replace(uuid, f"{number:08x}-0000-4000-8000-000000000000")
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


def until_answered(port: int, path: str, began: float) -> float:
    while True:
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
    where = ("--output", str(root), "--listen", f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "gitboot", "serve", *where, *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield port, process.pid, until_answered(port, path_of(0), began)
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
            until_answered(port, path_of(0), time.perf_counter())
            (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield port, int(worker)
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def many(port: int, numbers: list[int], connections: int) -> list[float]:
    """The seconds that each request took, over so many connections that stay open."""
    waiting, took = list(reversed(numbers)), []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            began = time.perf_counter()
            writer.write(f"GET {path_of(waiting.pop())} HTTP/1.1\r\nHost: x\r\nUser-Agent: iPXE\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await reader.readexactly(length)
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took


def per_request_us(port: int, pid: int, servers: int) -> float:
    dice = random.Random(1)
    chosen = [dice.randrange(servers) for _ in range(min(WORKING_SET, servers))]
    asyncio.run(many(port, chosen, 16))
    before = cpu_s(pid)
    asyncio.run(many(port, [dice.choice(chosen) for _ in range(REQUESTS)], 16))
    return (cpu_s(pid) - before) / REQUESTS * 1e6


def cpu_of_s(*command: str) -> float:
    """The CPU time of a process from its start to its end."""
    before = os.times()
    subprocess.run(command, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


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


def main(servers: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        publish(root := folder / "output", servers, "Always")
        floor = min(cpu_of_s(sys.executable, "-c", IMPORTS) for _ in range(9))
        starts = []
        for _ in range(9):
            with serving(root) as (port, pid, start):
                starts.append((start, cpu_s(pid)))
        took, cpu = map(min, zip(*starts, strict=True))
        print(f"{servers} servers")
        print(f"start to the first answer   {took:5.2f} s, {cpu:.2f} s of CPU: {cpu / floor:.1f} x what it imports")
        with serving(root) as (port, pid, _):
            print(f"memory at its start         {memory_mib(pid):5.0f} MiB")
            asyncio.run(many(port, list(range(min(servers, 5000))), 16))
            print(f"memory with all that it holds {memory_mib(pid):3.0f} MiB")
            ours = per_request_us(port, pid, servers)
        if shutil.which("nginx"):
            with nginx(root, folder) as (port, pid):
                theirs = per_request_us(port, pid, servers)
            print(f"an entry                    {ours:5.0f} us of CPU, {theirs / ours:.2f} x nginx")
        shutil.rmtree(root)
        (spool := folder / "spool").mkdir()
        publish(root, min(servers, MACHINES), "Once", spool)
        with serving(root, "--spool", str(spool)) as (port, _, _):
            took = sorted(asyncio.run(many(port, list(range(min(servers, MACHINES))), 64)))
        sync = sync_s(folder)
        print(
            f"a boot that is recorded first, 64 machines at once: p50 {took[len(took) // 2] * 1e3:.1f} ms, "
            f"p99 {took[len(took) * 99 // 100] * 1e3:.1f} ms; one sync {sync * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
