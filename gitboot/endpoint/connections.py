"""One client's connection, kept within bounds; what is held ready is answered here, all else by the application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gitboot.endpoint.access_control import FORWARDED, OperatorsDoor
from gitboot.serve.limits import Limits
from gitboot.serve.reply import Header, Reply

GONE: Final = "gitboot.gone"  # the ASGI extension by which an application asks whether the client has left
RECEIVED: Final = "gitboot.received"  # by which it asks whether the client has received all that was sent

PATIENCE_S: Final = 60  # how long a client may take to take what it is sent
HEAD_S: Final = 10  # how long it may take to ask for something
MOST_UNANSWERED_BYTES: Final = 64 * 1024

_NO_LIMITS: Final = Limits()
_HEADER_NAME: Final = re.compile(rb"(?<=\r\n)[^:\r\n]+(?=:)")


class _Titled:
    """A transport for one response, which spells the names of its headers as they are registered.

    uvicorn writes them in lower case. GRUB before 2.12 knows ``Content-Length`` only as it stands here (net/http.c),
    and without it waits for each file until the connection is closed. A response that comes before the end of the
    request's body closes the connection, because gitboot reads no more of that body.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport, self._cycle = transport, cycle
        self._headless = True

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():  # the client has left; uvloop would raise, and uvicorn log that
            return
        if self._headless and self._cycle.response_started:  # uvicorn writes the head by itself, after a 100 if any
            self._headless = False
            data = _HEADER_NAME.sub(lambda name: name[0].title(), data)
            if self._cycle.more_body and self._cycle.keep_alive:
                self._cycle.keep_alive = False
                data = data.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
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
        self._extensions: dict[str, Any] = {GONE: transport.is_closing, RECEIVED: self._has_received}
        self._had_received = False  # when the connection ended
        self._quickly: Callable[[str, Iterable[Header]], Reply | None] | None = getattr(self.app, "quickly", None)
        self._has_cycle = False  # whether the application was asked on this connection
        self._is_answered = False  # whether the request that is being read was answered here
        door: OperatorsDoor | None = getattr(self.app, "door", None)
        if door is not None and door.is_at(self.server):
            self._quickly = None
        peer = transport.get_extra_info("peername")
        self._address: str | None = peer[0] if peer else None
        self._limits: Limits = getattr(self.app, "limits", _NO_LIMITS)
        self._is_of_proxy = self._limits.is_proxy(self._address)
        self._head_since: float | None = self._moved_at  # None: it is not being waited for one
        self._limits.idle.enter(self, self._address)
        self._limits.all.enter(self, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._limits.idle.leave(self)
        self._limits.all.leave(self)

    def eof_received(self) -> None:
        self._had_received = bool(self._has_received())  # the transport closes the socket after this
        super().eof_received()

    def _has_received(self) -> bool | None:
        """Return whether the client's system has acknowledged all that was sent; None: it may do so later.

        Linux counts what is not acknowledged (tcp(7), SIOCOUTQ). A client that breaks off with data unread resets the
        connection, which loses the answer.
        """
        if self._client.is_closing():
            return self._had_received
        waiting = ioctl(self._client.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        return None if self._client.get_write_buffer_size() or any(waiting) else True

    def data_received(self, data: bytes) -> None:
        self._unanswered_bytes += len(data)
        if self._head_since is None and not self._asked:
            self._head_since = self.loop.time()
        super().data_received(data)
        if self._unanswered_bytes > MOST_UNANSWERED_BYTES:
            self._client.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_answered = False
        self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        self._head_since = None
        if (reply := self._quick_reply()) is not None:
            self._is_answered = True
            self._send(reply)
            return
        self._asked = self._has_cycle = True
        self._limits.idle.leave(self)
        if self._is_of_proxy:
            self._limits.all.enter(self, self._limits.client(dict(self.scope)))
        super().on_headers_complete()
        self.cycle.transport = _Titled(self._client, self.cycle)  # type: ignore[assignment] # what a cycle uses of it

    def on_body(self, body: bytes) -> None:
        if self._is_answered:
            return
        if not self.cycle.response_complete:  # uvicorn reads on only as the application takes it
            self._unanswered_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_answered:
            super().on_message_complete()

    def _quick_reply(self) -> Reply | None:
        """The reply that is held ready, if nothing is before it on this connection."""
        is_busy = self._has_cycle and not self.cycle.response_complete  # the last one, where several wait
        if self._quickly is None or is_busy or self.flow.write_paused or self.parser.should_upgrade():
            return None
        path = self.url.partition(b"?")[0]
        # The application takes note of a proxy that no setting names.
        is_forwarded = not self._is_of_proxy and not FORWARDED.isdisjoint(name for name, _ in self.headers)
        if self.parser.get_method() not in (b"GET", b"HEAD") or not path.isascii() or is_forwarded:
            return None
        return self._quickly(path.decode(), self.headers)

    def _send(self, reply: Reply) -> None:
        """What a cycle of uvicorn's would send, and leave behind."""
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        dated = b"".join(b"%b: %b\r\n" % (name.title(), value) for name, value in self.server_state.default_headers)
        end = b"\r\n" if keep_alive else b"Connection: close\r\n\r\n"
        body = bytes(reply.body) if self.parser.get_method() == b"GET" else b""
        self._client.write(b"".join((STATUS_LINE[reply.status_code], dated, reply.written, end, body)))
        if not keep_alive:
            self._client.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        self._asked = False
        self._unanswered_bytes = 0
        self._moved_at = self.loop.time()
        self._limits.idle.enter(self, self._address)
        super().on_response_complete()

    def abort_if_stuck(self, late_s: float) -> None:
        """Give up a client that has kept us waiting for too long; to be called every few seconds.

        ``late_s`` is by how much that was later than it should: what clients have sent meanwhile was not read yet.
        """
        now, unsent_bytes = self.loop.time(), self._client.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._moved_at = unsent_bytes, now
        elif self._asked and not unsent_bytes:
            self._moved_at = now  # it is we who take so long
        elif now - self._moved_at > PATIENCE_S:
            self._client.abort()
        if self._head_since is not None and now - self._head_since > HEAD_S + late_s:
            self._client.abort()

    def give_up(self, *, if_sending: bool) -> bool:
        """Close the connection at once. False: the endpoint prepares an answer, or sends one."""
        is_sending = self._client.get_write_buffer_size() > 0 or (self._asked and self.cycle.response_started)
        if may_close := if_sending if is_sending else not self._asked or self.cycle.more_body:
            self._client.abort()
        return may_close
