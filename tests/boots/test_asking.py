"""A copy asks the endpoint for a maintenance, in iPXE, GRUB and PXELINUX, and boots without an answer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from gitboot.render.paths import ASKED, BOOT
from tests.boots.architectures import X86_64
from tests.boots.machine import PATIENCE_S
from tests.boots.programs import file, program
from tests.fleets import fleet, image, mac_of, maintenance, policy, profile, server
from tests.serving import START, planned

HOST: Final = "10.0.2.2"  # this host, in QEMU's user-mode network
MAC: Final = mac_of("web01")
PATHS: Final = {
    "ipxe": f"/v1/boot/{MAC.replace(':', '-')}/boot.ipxe",
    "grub": f"/v1/boot/{MAC.replace(':', '-')}/grub.cfg",
    "pxelinux": f"/pxelinux.cfg/01-{MAC.replace(':', '-')}",
}
IN_WINDOW, ALONE = "/assets/memtest-7/kernel", "/assets/live-1/kernel"
GRUB_MODULES: Final = ("efinet", "http", "tftp", "normal", "configfile", "echo", "test", "linux", "sleep", "true")


@dataclass
class Web:
    """A web server that answers each path by a function, and notes what was requested."""

    answer: Callable[[str], tuple[int, bytes]]
    requested: list[str] = field(default_factory=list)

    @contextmanager
    def served(self) -> Iterator[int]:
        """Serve on a free port of the loopback; yield the port."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                web.requested.append(path)
                status, body = web.answer(path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 503:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(body)

            def do_HEAD(self) -> None:
                status, body = web.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
            thread = threading.Thread(target=listening.serve_forever)
            thread.start()
            try:
                yield listening.server_address[1]
            finally:
                listening.shutdown()
                thread.join()


@contextmanager
def deaf() -> Iterator[int]:
    """Yield a port whose SYNs the kernel drops: its queue of connections is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port: int = listening.getsockname()[1]
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


def closed() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


@contextmanager
def ipxe(folder: Path, url: str) -> Iterator[None]:
    script = folder / "start.ipxe"
    script.write_text(f"#!ipxe\ndhcp\nchain {url}{PATHS['ipxe']}\n")
    with _qemu(folder, "-machine", "pc", "-kernel", str(file("/usr/lib/ipxe/ipxe.lkrn")), "-initrd", str(script)):
        yield


@contextmanager
def grub(folder: Path, url: str) -> Iterator[None]:
    """GRUB under UEFI, by TFTP: Debian's own build has no HTTP."""
    first, tftp = folder / "first.cfg", folder / "tftp"
    tftp.mkdir()
    first.write_text(f"net_bootp\nconfigfile (http,{url.removeprefix('http://')}){PATHS['grub']}\n")
    command = [program("grub-mkimage"), "-O", "x86_64-efi", "-o", str(tftp / "grub.efi"), "-p", "/", "-c", str(first)]
    subprocess.run([*command, *GRUB_MODULES], check=True)
    variables = folder / "variables.fd"
    shutil.copy(file(X86_64.variables), variables)
    with _qemu(
        folder,
        *(*X86_64.board, "-drive", f"if=pflash,format=raw,readonly=on,file={file(X86_64.code)}"),
        *("-drive", f"if=pflash,format=raw,file={variables}"),
        *("-device", "virtio-rng-pci"),
        network=f",tftp={tftp},bootfile=grub.efi",
        boots=",bootindex=1",
        rom=",romfile=",
    ):
        yield


@contextmanager
def pxelinux(folder: Path, url: str) -> Iterator[None]:
    """lpxelinux.0 by TFTP; DHCP's option 210 would name the URL, so the first file includes it."""
    tftp = folder / "tftp"
    (tftp / "pxelinux.cfg").mkdir(parents=True)
    shutil.copy(file("/usr/lib/PXELINUX/lpxelinux.0"), tftp)
    shutil.copy(file("/usr/lib/syslinux/modules/bios/ldlinux.c32"), tftp)
    (tftp / "pxelinux.cfg/default").write_text(f"include {url}{PATHS['pxelinux']}\n")
    with _qemu(folder, "-machine", "pc", network=f",tftp={tftp},bootfile=lpxelinux.0", boots=",bootindex=1"):
        yield


@contextmanager
def _qemu(folder: Path, *arguments: str, network: str = "", boots: str = "", rom: str = "") -> Iterator[None]:
    command = [program("qemu-system-x86_64"), "-accel", "tcg", "-m", "512", "-nodefaults", "-display", "none"]
    card = ("-netdev", f"user,id=n0{network}", "-device", f"virtio-net-pci,netdev=n0,mac={MAC}{boots}{rom}")
    console = ("-monitor", "none", "-serial", f"file:{folder / 'console.log'}")
    process = subprocess.Popen([*command, *console, *arguments, *card], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


LOADERS: Final = {"ipxe": ipxe, "grub": grub, "pxelinux": pxelinux}
HTML: Final = b"<html>\n<head><title>502 Bad Gateway</title></head>\n<body>{ } ; default gitboot</body>\n</html>\n"
ERRORS: Final = {"404": (404, b""), "500": (500, b""), "502 with a page": (502, HTML), "503 for now": (503, b"")}


def _of_copy(files: Mapping[str, bytes], path: str) -> tuple[int, bytes]:
    return (200, files[path]) if path in files else (404, b"")


def booted(loader: str, case: str, folder: Path) -> tuple[str, int]:
    """Boot from a copy in a maintenance; return the first kernel, and how often the endpoint was asked."""
    files: dict[str, bytes] = {}
    answers: dict[str, bytes] = {}
    copy = Web(lambda path: _of_copy(files, path))
    endpoint = Web(
        lambda path: ERRORS[case] if case in ERRORS else _of_copy(files if case == "itself" else answers, path)
    )
    with ExitStack() as stack:
        base = f"http://{HOST}:{stack.enter_context(copy.served())}"
        if case == "dropped":
            port = stack.enter_context(deaf())
        else:
            port = closed() if case == "refused" else stack.enter_context(endpoint.served())
        published = planned(
            fleet(f"baseURL: '{base}', endpoint: 'http://{HOST}:{port}', outputs: [ipxe, grub, pxelinux]"),
            server("web01", "role: web"),
            image("live-1", "writesDisk: false", "kernel"),
            image("memtest-7", "writesDisk: false", "kernel"),
            profile("live", "live-1"),
            profile("repair", "memtest-7"),
            policy("live", boots="live"),
            maintenance("repair", "20T22:00 21T04:00"),
            now=START,
        )
        files |= {path: each.content for path, each in published.boot_files.items()}
        state = published.servers["web01"].published
        for path, (version, *_) in state.paths.items():
            if version.content is not None and version.content in state.contents:
                below = path.removeprefix(BOOT)
                answers |= dict.fromkeys((f"/{below}", f"/{ASKED}{below}"), state.contents[version.content].encode())
        with LOADERS[loader](folder, base):
            ends = time.monotonic() + PATIENCE_S
            while not (kernels := [path for path in copy.requested if path in (IN_WINDOW, ALONE)]):
                said = (folder / "console.log").read_bytes()[-2000:] if time.monotonic() > ends else b""
                assert time.monotonic() < ends, (copy.requested, endpoint.requested, said)
                time.sleep(0.05)
        asked = [path.replace(f"/{ASKED}", "/") for path in endpoint.requested]
        return kernels[0], asked.count(PATHS[loader])


@pytest.mark.parametrize("loader", LOADERS)
def test_finding_m1_a_copy_boots_a_maintenance_that_the_endpoint_answers(loader: str, tmp_path: Path) -> None:
    assert booted(loader, "answered", tmp_path) == (IN_WINDOW, 1)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("case", [*ERRORS, "refused", "dropped"])
def test_finding_m1_a_copy_boots_no_maintenance_without_an_answer(loader: str, case: str, tmp_path: Path) -> None:
    kernel, asked = booted(loader, case, tmp_path)
    assert kernel == ALONE
    if case == "503 for now":
        assert asked >= 1  # iPXE heeds Retry-After by itself (net/tcp/httpcore.c, http_response), within its timeout
    else:
        assert asked == (1 if case in ERRORS else 0)


@pytest.mark.parametrize("loader", LOADERS)
def test_finding_m1_a_boot_script_that_is_answered_with_itself_ends(loader: str, tmp_path: Path) -> None:
    assert booted(loader, "itself", tmp_path) == (ALONE, 1)
