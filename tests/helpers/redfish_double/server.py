"""A `Service` over real HTTP or HTTPS, with latency, and with faults where a test asks for them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.helpers.redfish_double.double import Answer
from tests.helpers.redfish_double.faults import (
    Body,
    Drop,
    Fault,
    Hang,
    Huge,
    Ignored,
    Intrusion,
    Presents,
    Redirect,
    Reverted,
    Slow,
    Status,
    Truncated,
)
from tests.helpers.redfish_double.service import Service

_HANDSHAKE_S = 60
_FILLING = b" " * 65536


class RedfishServer:
    """A server on a port of its own, from `__enter__` to `__exit__`."""

    def __init__(
        self,
        service: Service,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_s: float = 0,
    ) -> None:
        self.service = service
        self.latency_s = latency_s
        self.connections = 0  # how many were made
        self._tls = tls
        self._faults: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._let_go = threading.Event()  # set with it
        self._open: set[socket.socket] = set()
        self._http = _Http((host, port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._http.server_address[:2]
        return str(host), port

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._let_go.set()
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                _shut(connection)
        self._http.server_close()  # waits for the threads of all connections

    def fault(self, fault: Fault, *, on: str = "GET", times: int = 1) -> None:
        """Let the next requests of a method meet a fault; ``on="TLS"``: the next connections, "RESET": such a POST."""
        with self._lock:
            self._faults += [(on, fault)] * times

    def heal(self) -> None:
        """Let no fault strike any more."""
        with self._lock:
            self._faults.clear()

    @property
    def is_busy(self) -> bool:
        """Whether a connection is open still."""
        return bool(self._open)

    def take_fault(self, method: str) -> Fault | None:
        with self._lock:
            for index, (on, fault) in enumerate(self._faults):
                if on == method:
                    del self._faults[index]
                    return fault
        return None

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than the server lives."""
        self._closing.wait(seconds)

    def hang(self, seconds: float) -> None:
        """Sleep, but not longer than until `let_go`."""
        self._let_go.wait(seconds)

    def let_go(self) -> None:
        """Hang up where a request hangs, now and from now on."""
        self._let_go.set()

    def opened(self, connection: socket.socket) -> socket.socket:
        """Take a connection in, by TLS where there is to be TLS."""
        if self._tls:
            fault = self.take_fault("TLS")
            tls = fault.tls if isinstance(fault, Presents) else self._tls
            connection.settimeout(_HANDSHAKE_S)
            connection = tls.wrap_socket(connection, server_side=True)
            connection.settimeout(None)
        with self._lock:
            if self._closing.is_set():
                connection.close()
                raise ConnectionAbortedError
            self.connections += 1
            self._open.add(connection)
        return connection

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], server: RedfishServer) -> None:
        self.redfish = server
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep silent: clients that give up, or trust another certificate, are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def setup(self) -> None:
        self.request = self.server.redfish.opened(self.request)
        super().setup()

    def finish(self) -> None:
        self.server.redfish.closed(self.request)
        try:
            super().finish()
        finally:
            _shut(self.request)
            self.request.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep silent: requests are recorded."""

    def _respond(self) -> None:
        redfish, service = self.server.redfish, self.server.redfish.service
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.title(): value for name, value in self.headers.items()}
        request = service.receive(self.command, self.path, headers, body)
        redfish.wait(redfish.latency_s)

        def applied() -> Answer:
            return service.answer(request, headers, body)

        machine = service.machine_at(self.path)
        is_reset = self.path.endswith("ComputerSystem.Reset")
        match fault := (redfish.take_fault("RESET") if is_reset else None) or redfish.take_fault(self.command):
            case Hang():
                redfish.hang(fault.seconds)
                self._hang_up()
            case Status():
                self._send(Answer(status=fault.status, headers=fault.headers), fault.body)
            case Redirect():
                self._send(Answer(status=fault.status, headers={"Location": fault.location}))
            case Drop():
                if fault.applied:
                    applied()
                self._hang_up()
            case Ignored():
                self._send(Answer(status=200, body={}))
            case Reverted() if machine:
                before = dict(machine.override)
                answer = applied()
                machine.write_later(fault.after_s, before)
                self._send(answer)
            case Intrusion() if machine:
                machine.write(**fault.boot)
                self._send(applied())
            case _:
                self._send(applied(), fault=fault)

    do_GET = do_HEAD = do_PATCH = do_POST = do_DELETE = _respond  # noqa: N815

    def _send(self, answer: Answer, body: bytes | None = None, *, fault: Fault | None = None) -> None:
        if body is None:
            body = b"" if answer.body is None else json.dumps(answer.body).encode()
        if isinstance(fault, Body):
            body = fault.body
        length = fault.size if isinstance(fault, Huge) else len(body)
        head = self._head(answer, length)
        match fault:
            case Slow():
                self._slowly(head + body, fault.every_s)
            case Truncated():
                self.wfile.write(head + body[: len(body) // 2])
                self._hang_up()
            case Huge():
                self.wfile.write(head)
                for _ in range(length // len(_FILLING)):
                    self.wfile.write(_FILLING)
            case _:
                self.wfile.write(head + body)

    def _head(self, answer: Answer, length: int) -> bytes:
        status = HTTPStatus(answer.status)
        fields = {
            "Content-Type": "application/json; charset=utf-8",
            "Content-Length": str(length),
            "OData-Version": "4.0",
            **answer.headers,
        }
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            *(f"{k}: {v}" for k, v in fields.items()),
            "",
            "",
        ]
        return "\r\n".join(lines).encode("latin-1")

    def _slowly(self, content: bytes, every_s: float) -> None:
        for byte in content:
            self.wfile.write(bytes([byte]))
            self.server.redfish.wait(every_s)

    def _hang_up(self) -> None:
        self.close_connection = True
        _shut(self.connection)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is already
        connection.shutdown(socket.SHUT_RDWR)
