"""BMCs a second: an instance sets an override at each BMC of a fleet, beside stock sushy.

The BMCs are one process (`benchmarks.bmc_double`). They speak TLS and answer after 300 ms.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sushy

from benchmarks.bmc_double import SYSTEMS, uuid_of
from benchmarks.cost import Cost, measure_command
from benchmarks.fleet import Fleet
from benchmarks.instance import Instance
from benchmarks.place import Place
from benchmarks.repository import Repository
from benchmarks.row import Figure
from tests.helpers.fleets import store_credentials
from tests.helpers.http_peers import Authority

LATENCY_S: Final = 0.3
_THREADS: Final = 64  # of sushy
_SUSHY_BMCS: Final = 256
_POLL_S: Final = 0.1
_ROLE: Final = "batch"  # whose policy boots from the network always, by a lasting override
_BMC: Final = """\
  bmc:
    address: https://127.0.0.1:{port}
    system: {system}
    credentials: rack
    tls: {{ca: certs/bmc-ca.pem}}
"""


def measure(place: Place) -> Figure:
    """The cost of one BMC, from the start of an instance until it has set and confirmed the override of every BMC."""
    ours, theirs = list[Cost](), list[Cost]()
    for number in range(place.rounds):
        with place.own_folder(f"bmcs-{number}") as folder, _bmcs(folder, place.servers) as port:
            ours.append(_set_all(place, folder, port) / place.servers)
        with place.own_folder(f"bmcs-{number}") as folder, _bmcs(folder, _SUSHY_BMCS) as port:
            command = [sys.executable, "-m", "benchmarks.bmcs", str(folder), str(port), str(_SUSHY_BMCS)]
            (cost,) = measure_command(command, rounds=1)
            theirs.append(cost / _SUSHY_BMCS)
    return Figure(rounds=ours, beside={f"stock sushy, {_THREADS} threads": theirs})


@contextmanager
def _bmcs(folder: Path, count: int) -> Iterator[int]:
    """Run so many BMCs, and yield their port. ``folder`` gets their authority and their credentials."""
    authority = Authority(folder)
    issued = authority.issue()
    trust = 'networks = ["127.0.0.1"]\nrepository-authorities = true\n'
    store_credentials(folder / "credentials", password="secret", trust=trust)
    files = ("--certificate", str(issued.certificate), "--key", str(issued.key))
    command = [sys.executable, "-m", "benchmarks.bmc_double", str(count), "--latency", str(LATENCY_S), *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _set_all(place: Place, folder: Path, port: int) -> Cost:
    documents = _documents(place.fleet, (folder / "ca.pem").read_bytes(), port)
    repository = Repository(folder / "fleet.git")
    repository.commit(sorted(documents.items()))
    options = ("--credentials", str(folder / "credentials"))
    instance = Instance(folder / "instance", repository, place.fleet, place.gitboot, *options)
    instance.begin()
    _name_ledger(repository, documents["fleet.yaml"], instance)
    began = time.perf_counter()
    try:
        instance.start()
        instance.wait_until(lambda: _count_confirmed(port, folder) == place.servers)
        cost = instance.cost_so_far()
    finally:
        instance.end()
    return Cost(cpu_s=cost.cpu_s, wall_s=cost.wall_s - began, memory_mib=cost.memory_mib)


def _documents(fleet: Fleet, authority: bytes, port: int) -> dict[str, bytes]:
    documents = dict(fleet.files()) | {"certs/bmc-ca.pem": authority}
    for number in range(fleet.servers):
        text = re.sub(r"role: [\w-]+", f"role: {_ROLE}", fleet.server(number).decode()).partition("  pin:")[0]
        text = re.sub(r"uuid: \S+", f"uuid: {uuid_of(number)}", text).replace("  lifecycle: Parked\n", "")
        documents[fleet.path(number)] = (text + _BMC.format(port=port, system=f"{SYSTEMS}{number}")).encode()
    return documents


def _name_ledger(repository: Repository, fleet: bytes, instance: Instance) -> None:
    """Name the instance's ledger in the Fleet. Without the name, the instance does not set BMCs."""
    ledger = instance.status()["ledger"]
    named = fleet.replace(b"provisioning: {", f"provisioning: {{ledger: {ledger}, ".encode())
    assert named != fleet, "fleet.yaml has no line `provisioning: {`"
    repository.commit([("fleet.yaml", named)])


def _count_confirmed(port: int, folder: Path) -> int:
    """Return at how many BMCs an override was set and read again."""
    time.sleep(_POLL_S)
    tls = ssl.create_default_context(cafile=folder / "ca.pem")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET /counted HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["confirmed"])


def _set_with_sushy(folder: Path, port: int, count: int) -> None:
    """Set an override at each BMC and read it again, as the documentation of sushy shows."""

    def set_override(number: int) -> None:
        authority = sushy.auth.BasicAuth(username="root", password="secret")
        root = sushy.Sushy(f"https://127.0.0.1:{port}/redfish/v1", auth=authority, verify=str(folder / "ca.pem"))
        system = root.get_system(f"{SYSTEMS}{number}")
        system.set_system_boot_options(sushy.BOOT_SOURCE_TARGET_PXE, enabled=sushy.BOOT_SOURCE_ENABLED_CONTINUOUS)
        system.refresh(force=True)
        assert system.boot.target == sushy.BOOT_SOURCE_TARGET_PXE

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(set_override, range(count)))


if __name__ == "__main__":
    _set_with_sushy(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
