"""iPXE, GRUB and PXELINUX that boot from a copy during a maintenance, with and without a response of the endpoint."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.render.paths import BOOT, QUERY_FOLDER
from tests.boots.architectures import X86_64
from tests.boots.machine import PATIENCE_S
from tests.boots.programs import file, program
from tests.helpers.endpoints import START, plan_fleet
from tests.helpers.fleets import fleet, image, maintenance, make_mac, policy, profile, server
from tests.helpers.git_repositories import free_port, run_daemon

HOST: Final = "10.0.2.2"  # this host, in QEMU's user-mode network
ABSENT: Final = "10.0.2.77"  # an address in the same network without ARP
MAC: Final = make_mac("web01")
PATHS: Final = {
    "ipxe": f"/v1/boot/{MAC.replace(':', '-')}/boot.ipxe",
    "grub": f"/v1/boot/{MAC.replace(':', '-')}/grub.cfg",
    "pxelinux": f"/pxelinux.cfg/01-{MAC.replace(':', '-')}",
}
IN_WINDOW, ALONE = "/assets/memtest-7/kernel", "/assets/live-1/kernel"
GRUB_MODULES: Final = ("efinet", "http", "tftp", "normal", "configfile", "echo", "test", "linux", "sleep", "true")


@dataclass
class Web:
    """A web server that answers each path with a function, and records requests with their times (`time.monotonic`)."""

    answer: Callable[[str], tuple[int, bytes]]
    requested: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve on a free port of the loopback; yield the port."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                web.times.append(time.monotonic())
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

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def deaf_port() -> Iterator[int]:
    """Yield a port whose SYNs the kernel drops: its queue of connections is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port: int = server.getsockname()[1]
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as accepting:
        port: int = accepting.getsockname()[1]
        yield port


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections."""
    yield free_port()


@contextmanager
def failing_proxy(folder: Path) -> Iterator[int]:
    """Yield the port of an nginx whose upstream is down: it responds with 502 and a page of HTML."""
    own = folder / "proxy"
    own.mkdir()
    port, upstream = free_port(), free_port()
    paths = "".join(f"{each}_temp_path {own}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (own / "nginx.conf").write_text(
        f"daemon off; pid {own}/pid; error_log {own}/error.log; events {{}} http {{ {paths} access_log off;"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; }} }} }}"
    )
    command = [program("nginx"), "-e", f"{own}/error.log", "-c", f"{own}/nginx.conf"]
    with run_daemon(command, port, os.environ):
        yield port


@contextmanager
def run_ipxe(folder: Path, url: str) -> Iterator[None]:
    script = folder / "start.ipxe"
    script.write_text(f"#!ipxe\ndhcp\nchain {url}{PATHS['ipxe']}\n")
    with _run_qemu(folder, "-machine", "pc", "-kernel", str(file("/usr/lib/ipxe/ipxe.lkrn")), "-initrd", str(script)):
        yield


@contextmanager
def run_grub(folder: Path, url: str) -> Iterator[None]:
    """GRUB under UEFI, by TFTP: Debian's own build has no HTTP."""
    first, tftp = folder / "first.cfg", folder / "tftp"
    tftp.mkdir()
    first.write_text(f"net_bootp\nconfigfile (http,{url.removeprefix('http://')}){PATHS['grub']}\n")
    command = [program("grub-mkimage"), "-O", "x86_64-efi", "-o", str(tftp / "grub.efi"), "-p", "/", "-c", str(first)]
    subprocess.run([*command, *GRUB_MODULES], check=True)
    variables = folder / "variables.fd"
    shutil.copy(file(X86_64.variables), variables)
    with _run_qemu(
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
def run_pxelinux(folder: Path, url: str) -> Iterator[None]:
    """lpxelinux.0 by TFTP; DHCP's option 210 would name the URL, so the first file includes it."""
    tftp = folder / "tftp"
    (tftp / "pxelinux.cfg").mkdir(parents=True)
    shutil.copy(file("/usr/lib/PXELINUX/lpxelinux.0"), tftp)
    shutil.copy(file("/usr/lib/syslinux/modules/bios/ldlinux.c32"), tftp)
    (tftp / "pxelinux.cfg/default").write_text(f"include {url}{PATHS['pxelinux']}\n")
    with _run_qemu(folder, "-machine", "pc", network=f",tftp={tftp},bootfile=lpxelinux.0", boots=",bootindex=1"):
        yield


@contextmanager
def _run_qemu(folder: Path, *arguments: str, network: str = "", boots: str = "", rom: str = "") -> Iterator[None]:
    # GRUB calibrates its clock in one millisecond. On a busy host it waits many times too long, unless the clocks of
    # the guest count instructions.
    clock = ("-icount", "shift=auto")
    command = [program("qemu-system-x86_64"), "-accel", "tcg", *clock, "-m", "512", "-nodefaults", "-display", "none"]
    card = ("-netdev", f"user,id=n0{network}", "-device", f"virtio-net-pci,netdev=n0,mac={MAC}{boots}{rom}")
    console = ("-monitor", "none", "-serial", f"file:{folder / 'console.log'}")
    process = subprocess.Popen([*command, *console, *arguments, *card], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


LOADERS: Final = {"ipxe": run_ipxe, "grub": run_grub, "pxelinux": run_pxelinux}
HTML: Final = b"<html>\n<head><title>502 Bad Gateway</title></head>\n<body>{ } ; default gitboot</body>\n</html>\n"
ERRORS: Final = {"404": (404, b""), "500": (500, b""), "502 with a page": (502, HTML), "503 for now": (503, b"")}
CASES: Final = ("answered", "itself", *ERRORS, "502 of nginx", "refused", "dropped", "silent", "host down")


class BootResult(NamedTuple):
    """The result of one boot from a copy."""

    kernel: str  # the path of the first kernel
    requests: int  # at the endpoint
    delay_s: float  # from the request of the boot script at the copy to that of the kernel


def boot(loader: str, case: str, folder: Path, patience_s: float = PATIENCE_S) -> BootResult:
    """Boot from a copy in a maintenance, with an endpoint of one of `CASES`."""
    files: dict[str, bytes] = {}
    answers: dict[str, bytes] = {}
    copy = Web(lambda path: _answer_from(files, path))
    found = files if case == "itself" else answers
    endpoint = Web(lambda path: ERRORS[case] if case in ERRORS else _answer_from(found, path))
    others: dict[str, Callable[[], AbstractContextManager[int]]] = {
        "refused": closed_port,
        "dropped": deaf_port,
        "silent": silent_port,
        "502 of nginx": lambda: failing_proxy(folder),
    }
    with ExitStack() as stack:
        base = f"http://{HOST}:{stack.enter_context(copy.serve())}"
        port = stack.enter_context(others.get(case, endpoint.serve)())
        asked = f"http://{ABSENT if case == 'host down' else HOST}:{port}"
        published = plan_fleet(
            fleet(f"baseURL: '{base}', endpoint: '{asked}', outputs: [ipxe, grub, pxelinux]"),
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
                answers |= dict.fromkeys(
                    (f"/{below}", f"/{QUERY_FOLDER}{below}"), state.contents[version.content].encode()
                )
        with LOADERS[loader](folder, base):
            ends = time.monotonic() + patience_s
            while not (kernels := [path for path in copy.requested if path in (IN_WINDOW, ALONE)]):
                said = (folder / "console.log").read_bytes()[-2000:] if time.monotonic() > ends else b""
                assert time.monotonic() < ends, (copy.requested, endpoint.requested, said)
                time.sleep(0.05)
        delay_s = copy.times[copy.requested.index(kernels[0])] - copy.times[copy.requested.index(PATHS[loader])]
        return BootResult(kernels[0], len(endpoint.requested), delay_s)


def _answer_from(files: Mapping[str, bytes], path: str) -> tuple[int, bytes]:
    return (200, files[path]) if path in files else (404, b"")
