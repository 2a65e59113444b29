"""HTTP clients and servers: httpx without TLS, servers of a stranger, receivers of notices, and certificates."""

from __future__ import annotations

import hmac
import json
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

# httpx for URLs without TLS, and for slow machines: it reads no store of authorities, which takes 30 ms each time.

Client: Final = partial(httpx.Client, verify=False, timeout=60)
get: Final = partial(httpx.get, verify=False, timeout=60)
head: Final = partial(httpx.head, verify=False, timeout=60)
post: Final = partial(httpx.post, verify=False, timeout=60)
request: Final = partial(httpx.request, verify=False, timeout=60)


# A TCP server of a stranger: it sends the bytes that a test writes, while the client stays.

_PACE_S = 0.02  # between two pieces of what drips


@dataclass
class StrangeServer:
    url: str
    port: int
    requests: list[bytes] = field(default_factory=list)  # the head of each request
    taken: int = 0
    left: threading.Event = field(default_factory=threading.Event)  # set once a client has disconnected


StrangeAnswer = Callable[["StrangeClient"], None]


class StrangeClient:
    def __init__(self, connected: socket.socket, server: StrangeServer, ending: threading.Event) -> None:
        self._socket, self._server, self._ending = connected, server, ending

    def read_request(self) -> bool:
        """Read the head of a request; False if the client has disconnected."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (piece := self._socket.recv(1)):
                return False
            head += piece
        self._server.requests.append(head)
        return True

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def flood(self, piece: bytes, times: int) -> None:
        """Send a piece very often, as fast as the client takes it."""
        for _ in range(times):
            self._server.taken += self._socket.send(piece)

    def drip(self, piece: bytes) -> None:
        """Send a piece now and then, without end, until the client disconnects."""
        while not self._ending.is_set():
            self._socket.sendall(piece)
            self.wait(_PACE_S)

    def wait(self, timeout_s: float | None = None) -> None:
        if select.select([self._socket], [], [], timeout_s)[0] and not self._socket.recv(1 << 16):
            raise ConnectionResetError


@contextmanager
def strange_server(
    answer: StrangeAnswer, *, tls: ssl.SSLContext | None = None, reads: bool = True
) -> Iterator[StrangeServer]:
    """Run a server with the same response for each request; without ``reads`` it responds when a client connects.

    With ``tls``, TLS begins before that.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, ending = listening.getsockname()[1], threading.Event()
        server = StrangeServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}", port)

        def serve(connected: socket.socket) -> None:
            with connected, suppress(OSError):
                connected = tls.wrap_socket(connected, server_side=True) if tls is not None else connected
                with connected:
                    client = StrangeClient(connected, server, ending)
                    while not ending.is_set() and (not reads or client.read_request()):
                        answer(client)
            server.left.set()

        def accept() -> None:
            with suppress(OSError):
                while not ending.is_set():
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            ending.set()
            listening.shutdown(socket.SHUT_RDWR)


def iterate_deadlines(server: StrangeServer) -> Iterator[float]:
    """Yield longer and longer deadlines until the server has read a request, which a busy machine may send late."""
    for deadline_s in (0.4, 4.0, 40.0):
        if not server.requests:
            server.left.clear()
            yield deadline_s
    assert server.requests


# Web servers whose responses a test chooses.


class WebRequest(NamedTuple):
    method: str
    path: str  # with the query
    headers: dict[str, str]  # with names such as Content-Type
    body: bytes


class WebResponse(NamedTuple):
    status: int = 200
    content: bytes = b""
    headers: Mapping[str, str] = {}


class WebServer(ThreadingHTTPServer):
    """A server that does the TLS handshake in the thread of the connection, so that no client delays another."""

    request_queue_size = 256  # a full queue delays a connection by a second

    def __init__(
        self,
        address: tuple[str, int],
        handler: Callable[..., BaseHTTPRequestHandler],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(60)
        try:
            encrypted = self._tls.wrap_socket(request, server_side=True)
        except OSError:  # the client gave up, or rejects the certificate
            return
        encrypted.settimeout(None)
        try:
            super().finish_request(encrypted, client_address)
        finally:
            self.shutdown_request(encrypted)


@contextmanager
def run_server(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Run a server in a thread, and yield its URL."""
    with WebServer((host, 0), handler, tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def web_server(answer: Callable[[WebRequest], WebResponse | None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a server that answers each request with a function, and yield its URL. None ends the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.title(): value for name, value in self.headers.items()}
            if (found := answer(WebRequest(self.command, self.path, headers, body))) is None:
                return
            self.send_response(found.status)
            for name, value in {"Content-Length": str(len(found.content)), **found.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.content)

        do_HEAD = do_PATCH = do_POST = do_PUT = do_GET  # noqa: N815 - http.server looks for it

        def log_message(self, format: str, *args: object) -> None:
            """Quietly."""

    with run_server(Handler, tls) as url:
        yield url


class QuietFileHandler(SimpleHTTPRequestHandler):
    """Serves files, and logs no requests."""

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def file_server(
    folder: Path, tls: ssl.SSLContext | None = None, handler: type[SimpleHTTPRequestHandler] = QuietFileHandler
) -> Iterator[str]:
    """Serve the files in a folder, and yield the URL."""
    with run_server(partial(handler, directory=str(folder)), tls) as url:
        yield url


# Receivers of notices: web servers that answer, refuse or hang, and what they were sent.

SECRET = "correct-horse-staple"


@dataclass
class Hook:
    """A web server that takes webhooks, and looks at how they are signed."""

    url: str = ""
    status: int = 204
    hangs: bool = False
    received: list[dict[str, Any]] = field(default_factory=list)
    deliveries: list[str] = field(default_factory=list)
    attempts: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def hook() -> Iterator[Hook]:
    made = Hook()

    def answer(request: WebRequest) -> WebResponse | None:
        made.attempts += 1
        if made.hangs:
            made.ended.wait()
            return None
        signed = f"{request.headers['X-Gitboot-Timestamp']}.".encode() + request.body
        wanted = hmac.new(SECRET.encode(), signed, "sha256").hexdigest()
        assert request.headers["X-Gitboot-Signature-256"] == f"sha256={wanted}"
        if made.status < 300:
            made.received.append(json.loads(request.body))
            made.deliveries.append(request.headers["X-Gitboot-Delivery"])
        return WebResponse(made.status)

    with web_server(answer) as url:
        made.url = f"{url}/T0/very-secret-path"
        yield made
        made.ended.set()


# Systems that approve maintenances and drain servers: web servers whose answers a test chooses.


class HookCall(NamedTuple):
    path: str
    authorization: str | None
    body: dict[str, Any]


@dataclass
class HookSystem:
    """A web server that answers requests before maintenances. Thread-safe enough for tests: lists are only appended."""

    origin: str = ""
    status: int = 503
    drained: set[str] = field(default_factory=set)  # servers for which it answers 200
    location: str = ""  # for a redirect
    answers: Callable[[dict[str, Any]], object] = lambda _: {}
    calls: list[HookCall] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_calls(self, number: int) -> None:
        """Wait until the server has received this many more requests, and has chosen the answers."""
        with self.changed:
            wanted = len(self.calls) + number
            assert self.changed.wait_for(lambda: len(self.calls) >= wanted, 300)

    def paths(self) -> set[str]:
        return {each.path for each in self.calls}


def approve(body: dict[str, Any]) -> dict[str, Any]:
    return {"approved": True, "maintenance": body["maintenance"], "digest": body["digest"]}


@contextmanager
def hook_system(**given: Any) -> Iterator[HookSystem]:
    made = HookSystem(**given)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            content = json.dumps(made.answers(body)).encode()
            status = 200 if body.get("server") in made.drained else made.status
            with made.changed:  # before the client has the answer, so that it finds its call
                made.calls.append(HookCall(self.path, self.headers["Authorization"], body))
                made.changed.notify_all()
            self.send_response(status)
            if made.location:
                self.send_header("Location", made.location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Quietly."""

    with run_server(Handler) as made.origin:
        yield made


def write_private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def notify_file(folder: Path, **receivers: str) -> Path:
    """Write a file of receivers, each with its table and the secret of a webhook."""
    write_private(folder / "hook.secret", f"{SECRET}\n")
    tables = (
        f"[receivers.{name}]\n{settings}\n"
        + ('secret-file = "hook.secret"\n' if settings.startswith("webhook") else "")
        for name, settings in receivers.items()
    )
    return write_private(folder / "notify.toml", "".join(tables))


# Certificates for one run, made by openssl; no key outlives the folder that it was made in.

_DAYS = 30
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class IssuedCertificate(NamedTuple):
    certificate: Path
    key: Path

    @property
    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self)
        return context


class Authority:
    def __init__(self, directory: Path, *, is_root: bool = True, rsa_bits: int | None = None) -> None:
        self._directory = directory
        self._issued = 0
        self._key, self._certificate = directory / "ca.key", directory / "ca.pem"
        if is_root:
            _openssl(
                *("req", "-x509", *_new_key(rsa_bits), "-days", str(_DAYS), "-subj", "/CN=Test CA"),
                *("-addext", "keyUsage=critical,keyCertSign", "-keyout", self._key, "-out", self._certificate),
            )

    def build_intermediate(self, directory: Path) -> Authority:
        """Return an authority that this authority has signed."""
        made = Authority(directory, is_root=False)
        request, extensions = directory / "ca.csr", directory / "ca.ext"
        extensions.write_text("basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n")
        _openssl("req", "-new", *_KEY, "-subj", "/CN=Intermediate CA", "-keyout", made._key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-days", str(_DAYS), "-extfile", extensions),
            *("-CA", self._certificate, "-CAkey", self._key, "-CAcreateserial", "-out", made._certificate),
        )
        return made

    @property
    def pem(self) -> str:
        return self._certificate.read_text()

    def issue(self, name: str = "IP:127.0.0.1", *, days: int = _DAYS, rsa_bits: int | None = None) -> IssuedCertificate:
        """A certificate for a subject alternative name, and its key; of a negative number of days, it has expired.

        The key is an EC key unless ``rsa_bits`` is set.
        """
        self._issued += 1
        stem = self._directory / f"server{self._issued}"
        issued = IssuedCertificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={name}\nbasicConstraints=critical,CA:FALSE\n")
        subject = ("-subj", "/CN=BMC")
        _openssl("req", "-new", *_new_key(rsa_bits), *subject, "-keyout", issued.key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-days", str(days), "-extfile", extensions),
            *("-CA", self._certificate, "-CAkey", self._key, "-CAcreateserial", "-out", issued.certificate),
        )
        return issued

    def server_context(self, name: str = "IP:127.0.0.1", *, days: int = _DAYS) -> ssl.SSLContext:
        return self.issue(name, days=days).context


def _new_key(rsa_bits: int | None) -> tuple[str, ...]:
    return _KEY if rsa_bits is None else ("-newkey", f"rsa:{rsa_bits}", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_authority(end: datetime) -> str:
    """Return the certificate of an authority that is valid for ten days before ``end``, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    name, key = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")]), ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), end - timedelta(10), end
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
