"""A socket for operators whose connections are encrypted; who has yet to agree on how is kept within bounds as well."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, MutableSet
from typing import Any, Final

from gitboot.serve.connection import HEAD_S, Connection
from gitboot.serve.limits import Limits

_PAUSE_S: Final = 0.1  # where the system lets nobody in
_FAREWELL_S: Final = 5  # for a client to agree that it ends


class EncryptedSocket:
    """Lets clients in at a socket that listens, by a context that shows them a certificate; others may do so as well.

    ``refuse`` is called for each client that breaks off, takes too long, or speaks another language.
    """

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, limits: Limits, refuse: Callable[[], None]
    ) -> None:
        self._listening, self._context, self._limits, self._refuse = listening, context, limits, refuse

    async def let_in(self, make: Callable[[], Connection], connections: MutableSet[Any]) -> None:
        """Let clients in until this is cancelled; those that are on their way in are among ``connections``, too."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except OSError:  # it has left again, or all files are in use
                self._limits.all.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            asyncio.create_task(self._greet(client, address[0], make(), connections))  # noqa: RUF006 - _Greeting has it

    async def _greet(
        self, client: socket.socket, address: str, connection: Connection, connections: MutableSet[Any]
    ) -> None:
        greeting = _Greeting(connection, self._limits, asyncio.current_task())
        connections.add(greeting)
        self._limits.idle.enter(greeting, address)
        self._limits.all.enter(greeting, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: greeting,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HEAD_S,
                ssl_shutdown_timeout=_FAREWELL_S,
            )
        except OSError:
            self._refuse()
        finally:
            connections.discard(greeting)
            greeting.leave()


class _Greeting(asyncio.Protocol):
    """A client that has connected, and no more: it waits as one does that asks for nothing."""

    def __init__(self, connection: Connection, limits: Limits, task: asyncio.Task[None] | None) -> None:
        self._connection, self._limits, self._task = connection, limits, task

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        """Let the connection take its place, now that both have agreed."""
        self.leave()
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)

    def leave(self) -> None:
        """Stop counting it."""
        self._limits.idle.leave(self)
        self._limits.all.leave(self)

    def give_up(self, *, if_sending: bool = True) -> bool:  # noqa: ARG002 - nothing is sent yet
        """Close it at once."""
        return self._task is not None and self._task.cancel()

    def shutdown(self) -> None:
        """Close it, as uvicorn asks of each connection at its end."""
        self.give_up()
