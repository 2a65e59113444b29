"""One real iPXE that runs many scripts: each file that they name exists, so that `boot` returns.

Instead of a kernel iPXE gets a script that prints a marker and ends the attempts of the script that loaded it.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.boots.machine import PATIENCE_S
from tests.boots.programs import file, program

_HOST: Final = "10.0.2.2"  # of QEMU's user-mode network
_KERNEL: Final = b"#!ipxe\necho LOADED\nset attempt:int32 5\n"
_SCRIPT_PATH: Final = re.compile(r"/script/(\d+)/run")
_REMOTE: Final = re.compile(rb"https?://(?=[^/\s]+/)")  # Debian's iPXE has no HTTPS, and none of these hosts exists


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The result of one script."""

    ended: bool  # else it was broken off by an error
    output: str
    fetched: frozenset[str]  # of all that it names: host and path


def run(scripts: Mapping[str, bytes], folder: Path) -> dict[str, Run]:
    """Run them, one after the other, in one start of iPXE under BIOS; a script is named by a path."""
    fetched: dict[str, set[str]] = {name: set() for name in scripts}
    with _serve_scripts(scripts, fetched) as port:
        output = _run_driver(_driver(list(scripts), port), folder)
    parts = re.split(r"RUN (\d+)\n", output)[1:]
    texts = {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}
    return {
        name: Run(ended=f"ENDED {number}\n" in texts[number], output=texts[number], fetched=frozenset(fetched[name]))
        for number, name in enumerate(scripts)
    }


def _driver(names: list[str], port: int) -> str:
    """The script that runs all others, each as if it were the first."""
    steps = "".join(
        f"echo RUN {number}\nclear attempt ||\nimgfree\n"
        f"chain --autofree http://{_HOST}:{port}/script/{number}/run && echo ENDED {number} || echo BROKEN {number}\n"
        for number, _ in enumerate(names)
    )
    return f"#!ipxe\ndhcp\n{steps}echo ALL RUN\n"


def _run_driver(driver: str, folder: Path) -> str:
    entry, console = folder / "driver.ipxe", folder / "serial.log"
    entry.write_text(driver)
    command = [
        *(program("qemu-system-x86_64"), "-accel", "tcg", "-machine", "pc,graphics=off", "-m", "256", "-nodefaults"),
        *("-display", "none", "-monitor", "none", "-serial", f"file:{console}"),
        *("-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0"),
        *("-kernel", str(file("/usr/lib/ipxe/ipxe.lkrn")), "-initrd", str(entry)),
    ]
    console.write_bytes(b"")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE_S
        while "ALL RUN" not in (output := _text(console)):
            assert time.monotonic() < until and process.poll() is None, output[-2000:]
            time.sleep(0.2)
        return output
    finally:
        process.kill()
        process.wait()


def _text(console: Path) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", console.read_bytes().decode(errors="replace"))


@contextmanager
def _serve_scripts(scripts: Mapping[str, bytes], fetched: Mapping[str, set[str]]) -> Iterator[int]:
    names = list(scripts)
    current = [names[0]]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if asked := _SCRIPT_PATH.fullmatch(self.path):
                current[0] = names[int(asked[1])]
                content = _REMOTE.sub(f"http://{_HOST}:{port}/".encode(), scripts[current[0]])
            else:
                fetched[current[0]].add(self.path.removeprefix("/"))
                content = _KERNEL
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield port
        finally:
            server.shutdown()
            thread.join()
