"""An ASGI application served over HTTP, from a thread of its own; and the socket that it listens at."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gitboot.endpoint.connections import Connection
from gitboot.endpoint.tls import EncryptedSocket
from gitboot.errors import UsageError

_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 30  # firmware and loaders take their time between two files
_STUCK_CHECK_S: Final = 2


class EndpointServer:
    """Serves ``app`` at sockets that listen, from `start` to `stop`; others may serve at them as well.

    ``encrypted`` is one more, at which clients are let in by TLS. It handles no signals: whoever runs it does, and
    calls `stop`.
    """

    def __init__(self, app: ASGIApp, *listening: socket.socket, encrypted: EncryptedSocket | None = None) -> None:
        self._sockets = listening
        self._config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # what clients do wrong is no news
            access_log=False,
            proxy_headers=False,  # gitboot.endpoint.access_control knows better whom to trust
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._server = _Server(self._config, encrypted)
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    def start(self) -> None:
        """Answer whoever connects, from now on."""
        self._thread.start()

    def stop(self, timeout_s: float = 5) -> None:
        """Take no more requests, give those under way ``timeout_s`` to end, and return."""
        self._config.timeout_graceful_shutdown = math.ceil(timeout_s)
        self._server.should_exit = True
        self._thread.join()

    def show_life(self, pipe: int) -> None:
        """Let the thread that answers write a byte to a pipe, soon: whoever reads it sees that it goes on."""
        self._server.life = pipe

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=list(self._sockets)))


class _Server(uvicorn.Server):
    """uvicorn's, which by itself has one way for all sockets."""

    def __init__(self, config: uvicorn.Config, encrypted: EncryptedSocket | None) -> None:
        super().__init__(config)
        self._encrypted = encrypted
        self._letting_in: asyncio.Task[None] | None = None
        self._looked_s = time.monotonic()  # when clients that are stuck were looked for last
        self.life: int | None = None  # a pipe to which a byte is due

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._encrypted is not None:
            self._letting_in = asyncio.create_task(
                self._encrypted.let_in(self._connection, self.server_state.connections)
            )

    async def on_tick(self, counter: int) -> bool:
        """Show life, and look for clients that are stuck. uvicorn calls this ten times a second."""
        if self.life is not None:
            with suppress(BlockingIOError):  # nobody reads: what is in the pipe is enough
                os.write(self.life, b".")
            self.life = None
        late_s = time.monotonic() - self._looked_s - _STUCK_CHECK_S
        if late_s >= 0:
            self._looked_s = time.monotonic()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.abort_if_stuck(late_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._letting_in is not None:
            self._letting_in.cancel()
        await super().shutdown(sockets)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)


def listen_at(where: str) -> socket.socket:
    """A socket that listens at HOST:PORT; port 0 takes one that is free. Raises UsageError where that cannot be."""
    host, port = _parse_listen(where)
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise UsageError(f"cannot listen at {_url(host, port)}: {error.strerror}") from error


def url_of(where: str, listening: socket.socket, scheme: str = "http") -> str:
    """The base URL of what listens, with the port that was taken."""
    return _url(_parse_listen(where)[0], listening.getsockname()[1], scheme)


def _url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})")


def _parse_listen(listen: str) -> tuple[str, int]:
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[3]) > 65535:
        raise UsageError(f'expected HOST:PORT or [HOST]:PORT to listen on, found "{listen}"')
    return found[1] or found[2], int(found[3])
