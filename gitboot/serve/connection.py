"""One client's connection, kept within bounds, that knows when all was sent."""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SENT: Final = "gitboot.sent"  # the ASGI extension by which an application asks to be told

PATIENCE_S: Final = 60  # how long a client may take to ask for something, or to take what it is sent
MOST_UNANSWERED_BYTES: Final = 64 * 1024
_UNSENT_CHECK_S: Final = 0.1

_HEADER_NAME: Final = re.compile(rb"(?<=\r\n)[^:\r\n]+(?=:)")


class _Titled:
    """A transport for one response, which spells the names of its headers as they are registered.

    uvicorn writes them in lower case. GRUB before 2.12 knows ``Content-Length`` only as it stands here (net/http.c),
    and without it waits for each file until the connection is closed.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._headless = True

    def write(self, data: bytes) -> None:
        if self._headless:  # the head is written by itself, and first
            self._headless = False
            data = _HEADER_NAME.sub(lambda name: name[0].title(), data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which by itself reads heads and bodies without end and waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        super().connection_made(transport)
        self._client = transport
        self._asked = False  # whether a request is being answered
        self._unanswered_bytes = 0
        self._unsent_bytes = 0
        self._moved_at = self.loop.time()  # when the client was last seen to do something
        self._when_sent: list[Callable[[], None]] = []
        self._extensions: dict[str, Any] = {SENT: self._tell_when_sent}
        if len(self.connections) > most_connections():
            self._abort()

    def data_received(self, data: bytes) -> None:
        self._unanswered_bytes += len(data)
        if self._unanswered_bytes > MOST_UNANSWERED_BYTES:
            self._abort()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        self._asked = True
        super().on_headers_complete()
        self.cycle.transport = _Titled(self._client)  # type: ignore[assignment] # what a cycle uses of it

    def on_response_complete(self) -> None:
        self._asked = False
        self._unanswered_bytes = 0
        self._moved_at = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._client.get_write_buffer_size() == 0:
            self._tell()
        self._when_sent.clear()
        super().connection_lost(exc)

    def abort_if_stuck(self) -> None:
        """Give up a client that has kept us waiting for too long; to be called every few seconds."""
        now, unsent_bytes = self.loop.time(), self._client.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._moved_at = unsent_bytes, now
        elif self._asked and not unsent_bytes:
            self._moved_at = now  # it is we who take so long
        elif now - self._moved_at > PATIENCE_S:
            self._abort()

    def _abort(self) -> None:
        self._when_sent.clear()
        self._client.abort()

    def _tell_when_sent(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the system has taken all that was sent, unless the client leaves before."""
        self._when_sent.append(then)
        self.loop.call_soon(self._check_sent)  # uvloop writes when all that is ready has run

    def _check_sent(self) -> None:
        if self._client.is_closing():
            return  # by us or for a fault: `connection_lost` knows
        if self._client.get_write_buffer_size() == 0:
            self._tell()
        elif self._when_sent:
            self.loop.call_later(_UNSENT_CHECK_S, self._check_sent)

    def _tell(self) -> None:
        while self._when_sent:
            self._when_sent.pop(0)()


@cache
def most_connections() -> int:
    """Half of the files that this process may open: clients leave the other half to all else that it does."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 2 if soft != resource.RLIM_INFINITY else 100_000
