"""How long requests take while a commit that changes every server is worked on, against while nothing is.

    python benchmarks/serving.py [SERVERS]

A real instance follows a real repository and listens; one client in a process of its own asks for one entry after the
other, over one connection, 200 times a second.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diff import Files, commit, git
from validate import fleet

PER_SECOND = 200
IDLE_S = 15


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


def shown(what: str, measured: list[tuple[float, int]]) -> float:
    """Print one line; return the 99th percentile in seconds."""
    times = sorted(each for each, _ in measured)
    wrong = sum(status != 200 for _, status in measured)
    p99 = times[math.ceil(len(times) * 0.99) - 1]
    print(
        f"{what:34} {len(times):6} requests  p50 {times[len(times) // 2] * 1e3:7.2f} ms"
        f"  p99 {p99 * 1e3:7.2f} ms  worst {times[-1] * 1e3:8.2f} ms  not 200: {wrong}"
    )
    return p99


def every_server(files: Files) -> Files:
    """Each server gets arguments of its own."""
    return {
        path: data.replace(b"spec:", b"spec:\n  kernelArguments: [quiet]") if path.startswith("servers/") else data
        for path, data in files.items()
    }


@contextmanager
def instance(repository: Path, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gitboot", "run", str(repository)),
            *("--output", str(folder / "output"), "--state", str(folder / "state")),
            *("--listen", f"127.0.0.1:{port}", "--max-update-percent", "100", "--poll", "3600"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def main() -> None:
    servers = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    files = fleet(servers)
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        repository = folder / "fleet"
        git(folder, "init", "-q", "-b", "main", str(repository))
        commit(repository, files, {})
        port = free_port()
        with instance(repository, folder, port) as process:
            assert process.stderr is not None
            published = threading.Semaphore(0)

            def read() -> None:
                assert process.stderr is not None
                for line in process.stderr:
                    if json.loads(line)["type"] == "Published":
                        published.release()

            threading.Thread(target=read, daemon=True).start()
            published.acquire()
            entries = (folder / "output" / "boot" / "v1" / "boot").glob("*/boot.ipxe")
            paths = sorted(f"/v1/boot/{path.parent.name}/boot.ipxe" for path in entries)[:1000]
            ours, theirs = get_context("spawn").Pipe()
            asking = get_context("spawn").Process(target=client, args=(port, paths, theirs), daemon=True)
            asking.start()
            time.sleep(3)

            def since(word: str) -> list[tuple[float, int]]:
                ours.send(word)
                measured: list[tuple[float, int]] = ours.recv()
                return measured

            since("begin")
            time.sleep(IDLE_S)
            idle = since("idle")
            begun = time.monotonic()
            commit(repository, every_server(files), files)
            os.kill(process.pid, 1)  # SIGHUP: fetch now
            published.acquire()
            took = time.monotonic() - begun
            worked = since("worked")
            ours.send("stop")
            print(f"{servers} servers, {len(os.sched_getaffinity(0))} cores; the commit stood after {took:.1f} s")
            print(f"ratio of the 99th percentiles: {shown('while it is worked on', worked) / shown('idle', idle):.1f}")


if __name__ == "__main__":
    main()
