"""Git over the network as forges speak it, on this machine: git's own servers, OpenSSH's, and faulty ones."""

from __future__ import annotations

import base64
import getpass
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.repositories import ENVIRONMENT

_ALL = -1  # bytes
_PACE_S = 0.1  # between two bytes that drip: 10 a second, of which gitboot wants a thousand


def program(name: str, package: str) -> str:
    """Where a program is; without it the test is skipped, but fails in CI."""
    if found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/lib/git-core"):
        return found
    message = f"needs {name}, of Debian's package {package}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def listening(command: list[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    """A server that listens on ``port`` by now, if it ever does."""
    process = subprocess.Popen(command, env=dict(environment), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), closing(socket.create_connection(("127.0.0.1", port))):
                break
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that nobody has, without listening: a process that another thread forks now inherits the socket."""
    with closing(socket.socket()) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def git_daemon(root: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[str]:
    """``git://``, without any authentication."""
    port = free_port()
    options = ["--listen=127.0.0.1", f"--port={port}", f"--base-path={root}", "--export-all", "--reuseaddr"]
    with listening([program("git-daemon", "git"), *options], port, environment):
        yield f"git://127.0.0.1:{port}"


class HttpsServer:
    """git http-backend behind TLS and, for paths below /private, a password."""

    PASSWORD = "correct horse"

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.certificate = directory / "certificate.pem"
        key = directory / "key.pem"
        subprocess.run(
            [
                *(
                    program("openssl", "openssl"),
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                ),
                *("-nodes", "-days", "2", "-subj", "/CN=forge", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(self.certificate)),
            ],
            check=True,
            capture_output=True,
        )
        self.password = self.PASSWORD  # what counts now
        self.requests: list[str] = []
        self.authorized: list[str] = []  # the paths of requests that brought credentials
        self.leads_to = ""  # the server that paths below /moved are at, and with a password those below /private/moved
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_HttpBackend,), {"forge": self}))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HttpsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _HttpBackend(BaseHTTPRequestHandler):
    forge: HttpsServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.forge.requests.append(f"{self.command} {path}")
        if self.headers.get("Authorization"):
            self.forge.authorized.append(path)
        expected = base64.b64encode(f"git:{self.forge.password}".encode()).decode()
        if path.startswith("/private/"):
            path = path.removeprefix("/private")
            if self.headers.get("Authorization") != f"Basic {expected}":
                self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="forge"'})
                return
        if path.startswith("/moved/"):
            where = f"{self.forge.leads_to}{path.removeprefix('/moved')}{f'?{query}' if query else ''}"
            self._answer(302, b"", {"Location": where})
            return
        if path.startswith("/status/"):
            self._answer(int(path.split("/")[2]), b"", {})
            return
        environment = {
            **ENVIRONMENT,
            "GIT_PROJECT_ROOT": str(self.forge.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
        }
        body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self._sized()
        command = [program("git", "git"), "http-backend"]
        answer = subprocess.run(command, input=body, env=environment, capture_output=True, check=True).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._answer(int(headers.pop("Status", "200").split()[0]), content, headers)

    def _sized(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> bytes:
        body = bytearray()  # a push of ten thousand servers has 200,000 chunks
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    do_POST = do_GET  # noqa: N815 - http.server looks for it

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class SshServer:
    """sshd for the user that runs the tests; its host has two keys."""

    PASSPHRASE = "battery staple"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port = free_port()
        for name, passphrase in (("ed25519", ""), ("rsa", ""), ("client", self.PASSPHRASE), ("stranger", "")):
            kind = ("rsa", "-b", "2048") if name == "rsa" else ("ed25519",)  # a longer one takes a second to make
            keygen = program("ssh-keygen", "openssh-client")
            command = [keygen, "-q", "-a", "1", "-t", *kind, "-N", passphrase, "-f", str(directory / name)]
            subprocess.run(command, check=True)
        (directory / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\n"
            f"HostKey {directory}/ed25519\nHostKey {directory}/rsa\n"
            f"AuthorizedKeysFile {directory}/client.pub\n"
            "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
        )

    @contextmanager
    def running(self) -> Iterator[SshServer]:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd shuts itself in; Debian's service makes it
        sshd = program("sshd", "openssh-server")
        command = [sshd, "-D", "-f", str(self._directory / "sshd_config")]
        with listening(command, self.port, {"PATH": os.environ["PATH"]}):
            yield self

    @property
    def host(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    def key(self, name: str) -> Path:
        return self._directory / name

    def public(self, name: str) -> str:
        return " ".join((self._directory / f"{name}.pub").read_text().split()[:2])


class Relay:
    """Passes bytes on to a server, and of what comes back only so many; then it hangs, hangs up or drips.

    ``passes`` is a number of bytes for each connection, or the bytes at which that ends. ``takes`` limits what comes
    from a client likewise. ``connections`` and ``size_bytes`` count what was passed on, in both directions.
    """

    def __init__(self, url: str, *, passes: int | bytes = _ALL, then: str = "", takes: int = _ALL) -> None:
        scheme, _, authority = url.partition("://")
        self._target = ("127.0.0.1", int(authority.rpartition(":")[2]))
        self.passes, self._takes, self._then = passes, takes, then
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listening]
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self.connections = self.size_bytes = 0
        self.stalled = threading.Event()
        self.authority = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"{scheme}://{self.authority}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for opened in self._open:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                self._open.append(client)
                server = socket.create_connection(self._target)
                self._open.append(server)
                threading.Thread(target=self._pump, args=(client, server, self._takes), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, self.passes), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, passes: int | bytes) -> None:
        is_held_up = False
        with suppress(OSError):  # a reset ends a connection, too
            is_held_up = _passed(source, target, passes, self._count)
        with suppress(OSError):
            if not is_held_up:
                target.shutdown(socket.SHUT_RDWR)
                return
            self.stalled.set()
            while self._then == "drips" and (piece := source.recv(1)):
                target.sendall(piece)
                self._ending.wait(_PACE_S)
            if self._then == "hangs up":
                target.shutdown(socket.SHUT_RDWR)

    def _count(self, size_bytes: int) -> None:
        with self._counting:
            self.size_bytes += size_bytes


def _passed(source: socket.socket, target: socket.socket, passes: int | bytes, count: Callable[[int], None]) -> bool:
    """Pass on so many bytes, or all up to these; False if there were no more before that."""
    last = b""
    while passes:
        if not (data := source.recv(1 if isinstance(passes, bytes) else passes if passes > 0 else 65536)):
            return False
        count(len(data))
        target.sendall(data)
        if isinstance(passes, bytes):
            last = (last + data)[-len(passes) :]
            if last == passes:
                return True
        elif passes > 0:
            passes -= len(data)
    return True


@contextmanager
def silent_server() -> Iterator[int]:
    """Accepts every connection, and never says anything."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]
