"""A TCP server that a stranger controls: it answers with the bytes that a test writes, while a client stays."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_PACE_S = 0.02  # between two pieces of what drips


@dataclass
class StrangeServer:
    """What clients sent, and how many bytes the last of them took."""

    url: str
    port: int
    requests: list[bytes] = field(default_factory=list)  # the head of each request
    taken: int = 0
    left: threading.Event = field(default_factory=threading.Event)  # set once a client has disconnected


Answer = Callable[["Client"], None]


class Client:
    """One connection of a client, as the stranger sees it."""

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
        """Wait until the client sends something or disconnects."""
        if select.select([self._socket], [], [], timeout_s)[0] and not self._socket.recv(1 << 16):
            raise ConnectionResetError


@contextmanager
def strange_server(answer: Answer, *, tls: ssl.SSLContext | None = None, reads: bool = True) -> Iterator[StrangeServer]:
    """A server that gives each request the same answer; without ``reads`` it answers as soon as a client connects.

    With ``tls``, TLS begins before that.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, ending = listening.getsockname()[1], threading.Event()
        server = StrangeServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}", port)

        def serve(connected: socket.socket) -> None:
            with connected, suppress(OSError):
                connected = tls.wrap_socket(connected, server_side=True) if tls is not None else connected
                with connected:
                    client = Client(connected, server, ending)
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
