"""What it costs to verify as many artifacts as there are servers, each of 4 KiB and at one nginx; and to do it again.

The floor is curl, which fetches the same URLs and compares nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from benchmarks.cost import Cost, of_command
from benchmarks.endpoint import free_port
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from tests.fleets import document, fleet, policy, profile, server

BYTES = 4096
_OF_AN_IMAGE = 100
AT_A_TIME = 16


def content(number: int) -> bytes:
    return (b"%08d" % number) * (BYTES // 8)


@contextmanager
def nginx(root: Path, folder: Path) -> Iterator[str]:
    """The URL of an nginx that serves ``root``."""
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"user root; worker_processes 1; daemon off; pid {folder}/pid; error_log /dev/null; events {{ }}\n"
        f"http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    )
    with subprocess.Popen(["nginx", "-c", str(configuration)], stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while not (folder / "pid").exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise CannotRun("nginx does not start")
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def write_fleet(folder: Path, url: str, count: int) -> None:
    """A fleet whose images name so many files, a hundred each: a kernel, and initrds."""
    folder.mkdir()
    documents = [fleet(f"baseURL: '{url}'")]
    for first in range(0, count, _OF_AN_IMAGE):
        name = f"s{first:06}"
        kernel, *initrds = (
            f"{{url: '{url}/{number:06}', sha256: {sha256(content(number)).hexdigest()}, size: {BYTES}}}"
            for number in range(first, min(first + _OF_AN_IMAGE, count))
        )
        files = f"kernel: {kernel}, initrds: [{', '.join(initrds)}]"
        documents += [
            server(name),
            document("BootImage", name, f"version: '1', architectures: {{x86_64: {{{files}}}}}"),
            profile(name, name),
            policy(name, f"{{servers: [{name}]}}", boots=name),
        ]
    (folder / "fleet.yaml").write_text("---\n".join(documents))


def verified(place: Place) -> Figure:
    """Each is read once; then all are asked whether they are the same still."""
    if shutil.which("nginx") is None or shutil.which("curl") is None:
        raise CannotRun("nginx and curl have to be installed")
    folder = place.folder / "artifacts"
    served, cache = folder / "served", folder / "cache.json"
    served.mkdir(parents=True)
    for number in range(place.servers):
        (served / f"{number:06}").write_bytes(content(number))
    with nginx(served, folder) as url:
        write_fleet(folder / "fleet", url, place.servers)
        listed = folder / "urls"
        listed.write_text("".join(f"url = {url}/{n:06}\noutput = /dev/null\n" for n in range(place.servers)))
        command = [sys.executable, "-m", "gitboot", "artifacts", "verify", str(folder / "fleet"), "--cache", str(cache)]
        cost = of_command(command, before=lambda: cache.unlink(missing_ok=True), rounds=place.rounds)
        again: Cost = of_command(command, rounds=place.rounds)
        curl = ["curl", "-s", "--parallel", "--parallel-max", str(AT_A_TIME), "--config", str(listed)]
        least = of_command(curl, rounds=place.rounds)
    shutil.rmtree(folder)
    return Figure(cost=cost, floor=least, note=f"again: {again.wall_s:.2f} s, {again.cpu_s:.2f} s of CPU")
