"""What 10,000 BMCs cost that answer after 300 ms over TLS: to read them, and to set their overrides.

The BMCs are one process (`benchmarks.bmc_double`), their client is another: gitboot's own pool of connections and jobs,
with its defaults and without a ledger. Beside it in the same process, a socket that sends one request over TLS and
waits for the answer, and stock sushy, each to some of them.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sushy

from benchmarks.bmc_double import SYSTEMS, uuid_of
from benchmarks.cost import Cost, median
from benchmarks.place import Place
from benchmarks.row import Figure
from gitboot.bmc.job import Job, Outcome
from gitboot.bmc.override import BootTarget, Enabled, Override, Wanted
from gitboot.bmc.pool import BmcPool
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.processes import raise_limits
from tests.credentials import give_credentials
from tests.redfish.certificates import Authority

COUNT: Final = 10_000
LATENCY_S: Final = 0.3
_FLOOR: Final = 500  # BMCs that the socket asks
_PEER: Final = 10  # and sushy, which takes its time

Step = dict[str, float]


@contextmanager
def bmcs(folder: Path, count: int, latency_s: float) -> Iterator[int]:
    """The port of so many BMCs; whose authority, and whose credentials, lie in ``folder``."""
    folder.mkdir()
    authority = Authority(folder)
    issued = authority.issue()
    give_credentials(folder / "credentials", password="secret", trust='networks = ["127.0.0.1"]\n')
    (folder / "credentials" / "ca.crt").write_text(authority.pem)
    files = ("--certificate", str(issued.certificate), "--key", str(issued.key))
    command = [sys.executable, "-m", "benchmarks.bmc_double", str(count), "--latency", str(latency_s), *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def measured(place: Place) -> Figure:
    """A reading over a kept connection; the note has the first contact, and what it takes to set."""
    rounds = []
    for number in range(place.rounds):
        folder = place.folder / f"bmcs-{number}"
        with bmcs(folder, COUNT, LATENCY_S) as port:
            client = [sys.executable, "-m", "benchmarks.bmcs", str(folder), str(port), str(COUNT)]
            rounds.append(json.loads(subprocess.run(client, check=True, capture_output=True).stdout))
    first, read, put, floor, peer = (
        median(Cost(cpu_s=each[step]["cpu"], wall_s=each[step]["wall"], peak_mib=each["peak"]) for each in rounds)
        for step in ("first", "read", "set", "floor", "peer")
    )
    asked, kib = rounds[0]["set"]["requests"], rounds[0]["kib"]
    note = (
        f"first contact {first.cpu_s / COUNT * 1e3:.1f} ms of CPU each, all in {first.wall_s:.0f} s; again in "
        f"{read.wall_s:.0f} s; set {put.cpu_s / COUNT * 1e3:.1f} ms and {asked / COUNT:.1f} requests; {kib:.0f} KiB a "
        f"connection; stock sushy {peer.cpu_s / _PEER * 1e3:.0f} ms to read"
    )
    return Figure(cost=read / COUNT, floor=floor / _FLOOR, note=note)


# The client's process


def _jobs(port: int, count: int) -> list[Job]:
    address = f"https://127.0.0.1:{port}"
    return [
        Job(
            server=f"s{number:05}",
            uuid=SystemUuid(uuid_of(number)),
            bmc=BmcAccess(address=address, system=f"{SYSTEMS}{number}", credentials="rack", verify=True, ca=None),
            wanted=None,
            records=(),
        )
        for number in range(count)
    ]


_ALWAYS: Final = Wanted(
    reason="network",
    plan_digest="d" * 64,
    override=Override(enabled=Enabled.CONTINUOUS, target=BootTarget.PXE, mode="UEFI"),
)


def _done(pool: BmcPool, jobs: list[Job], outcome: Outcome) -> None:
    pool.submit(jobs)
    results = pool.finished(wait_all=True)
    wrong = [each.message for each in results.values() if each.outcome is not outcome]
    if len(results) != len(jobs) or wrong:
        raise AssertionError(f"{len(results)} results, {len(wrong)} of them wrong: {wrong[:3]}")


def _timed(what: Callable[[], object]) -> Step:
    cpu, wall = time.process_time(), time.perf_counter()
    what()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def _raw(port: int, folder: Path, count: int) -> Step:
    """One request each over connections that are there already."""
    tls = ssl.create_default_context(cafile=folder / "ca.pem")
    head = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    opened = [
        tls.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        for _ in range(count)
    ]

    def ask() -> None:
        for number, connection in enumerate(opened):
            connection.sendall(head.format(path=f"{SYSTEMS}{number}").encode())
        for connection in opened:
            received = b""
            while b"\r\n\r\n" not in received or len(received) < _length(received):
                received += connection.recv(65536)
            json.loads(received.partition(b"\r\n\r\n")[2])

    try:
        return _timed(ask)
    finally:
        for connection in opened:
            connection.close()


def _length(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    return len(head) + 4 + int(head.lower().partition(b"content-length: ")[2].split()[0])


def _stock(port: int, folder: Path, count: int) -> Step:
    """As sushy's documentation has it."""

    def read() -> None:
        for number in range(count):
            authority = sushy.auth.BasicAuth(username="root", password="secret")
            root = sushy.Sushy(f"https://127.0.0.1:{port}/redfish/v1", auth=authority, verify=str(folder / "ca.pem"))
            assert root.get_system(f"{SYSTEMS}{number}").boot.enabled is not None

    return _timed(read)


def _counted(port: int, folder: Path) -> dict[str, int]:
    tls = ssl.create_default_context(cafile=folder / "ca.pem")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET /counted HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    counted: dict[str, int] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return counted


def _resident_kib() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])


def client(folder: Path, port: int, count: int) -> dict[str, Any]:
    """What each step costs in all, and how many requests it takes."""
    raise_limits()
    found: dict[str, Any] = {"floor": _raw(port, folder, min(_FLOOR, count)), "peer": _stock(port, folder, _PEER)}
    jobs = _jobs(port, count)
    pool = BmcPool(credentials=folder / "credentials", write=lambda *_: None, clock=lambda: datetime.now(UTC))
    before_kib = _resident_kib()
    steps = (("first", None), ("session", None), ("read", None), ("set", _ALWAYS))
    for name, wanted in steps:
        before = _counted(port, folder)
        asked = [replace(job, wanted=wanted) for job in jobs]
        outcome = Outcome.APPLIED if wanted is not None else Outcome.UNCHANGED
        found[name] = _timed(lambda asked=asked, outcome=outcome: _done(pool, asked, outcome))  # type: ignore[misc]
        after = _counted(port, folder)
        methods = ("GET", "PATCH", "POST")
        found[name]["requests"] = sum(after.get(each, 0) - before.get(each, 0) for each in methods) - 1
        if name == "first":
            found["kib"] = (_resident_kib() - before_kib) / count
    found["peak"] = _resident_kib() / 1024
    pool.close()
    return found


if __name__ == "__main__":
    print(json.dumps(client(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
