"""Client connections: limit connections and their clients, and read request bodies."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable
from fcntl import ioctl
from functools import cache
from heapq import nlargest
from math import inf
from sys import byteorder
from termios import TIOCOUTQ
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gitboot.endpoint.access_control import FORWARDED_HEADERS, OperatorAccess
from gitboot.fetchlog.log_entries import get_client_network
from gitboot.render import paths

# Replies


Header = tuple[bytes, bytes]
FOR_A_YEAR: Final = paths.FOR_A_YEAR.encode()
REVALIDATED: Final = paths.REVALIDATED.encode()
UNCACHED: Final = paths.UNCACHED.encode()
_RANGE: Final = re.compile(rb"bytes=(\d{0,18})-(\d{0,18})")
_CLOSE: Final = (b"connection", b"close")


class Reply(Response):
    """A response for boot files that is fast to create."""

    def __init__(self, status: int, headers: list[Header], body: bytes = b"") -> None:
        # gitboot does not call Response.__init__, because it would compute the headers again.
        self.status_code, self.raw_headers, self.body, self.background = status, headers, body, None
        # The name is in title case, because GRUB before 2.12 recognizes only the spelling Content-Length (net/http.c).
        self.header_bytes = b"".join(b"%b: %b\r\n" % (name.title(), value) for name, value in headers)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def build_file_reply(
    content: bytes, content_type: str, cache_control: bytes, etag: bytes | None = None, status: int = 200
) -> Reply:
    """Return a response with a complete file.

    Without ``etag``, a client that already has the file downloads it again.
    """
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
    if etag is not None:
        headers.append((b"etag", etag))
    headers.append((b"cache-control", cache_control))
    return Reply(status, headers, content)


def allow_ranges(reply: Reply) -> Reply:
    """Return a copy of a response with an added header that allows range requests."""
    return Reply(reply.status_code, [*reply.raw_headers, (b"accept-ranges", b"bytes")], bytes(reply.body))


def select_range(reply: Reply, range_header: bytes) -> Reply:
    """Return the part of a response that a Range header selects (RFC 9110, 14.2).

    If the header selects several parts or is malformed, return the whole response.
    """
    match = _RANGE.fullmatch(range_header)
    if match is None or match[1] == match[2] == b"":
        return reply
    first, last = match[1], match[2]
    content = bytes(reply.body)
    end = len(content)  # the byte after the last byte of the range
    if not first:  # ``last`` is then the number of bytes at the end of the file
        start = max(len(content) - int(last), 0)
    else:
        start = int(first)
        if last:
            end = min(int(last) + 1, len(content))
    if start >= end:
        return _build_empty_reply(416, (b"content-range", b"bytes */%d" % len(content)))
    headers = [(name, value) for name, value in reply.raw_headers if name != b"content-length"]
    headers.append((b"content-length", b"%d" % (end - start)))
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, len(content))))
    return Reply(206, headers, content[start:end])


def build_not_modified_reply(etag: bytes, cache_control: bytes) -> Reply:
    return Reply(304, [(b"etag", etag), (b"cache-control", cache_control)])


def _build_empty_reply(status: int, *headers: Header) -> Reply:
    return Reply(status, [(b"content-length", b"0"), (b"cache-control", UNCACHED), *headers])


def _build_comment_reply(status: int, *headers: Header) -> Reply:
    """Return an error response with the body ``#``, because boot loaders need a body.

    shim waits forever if the body is empty. GRUB runs the body of a 404 response as a configuration file, in which
    ``#`` starts a comment.
    """
    return Reply(status, [*build_file_reply(b"#", paths.ContentType.TEXT, UNCACHED).raw_headers, *headers], b"#")


# A 204 must not have a Content-Length (RFC 9110, 8.6).
NO_CONTENT: Final = Reply(204, [(b"cache-control", UNCACHED)])
NOT_FOUND: Final = _build_comment_reply(404)
UNAUTHORIZED: Final = _build_empty_reply(401, (b"www-authenticate", b"Bearer"))  # for an invalid token
METHOD_NOT_ALLOWED: Final = _build_empty_reply(405, (b"allow", b"GET, HEAD"))
FORBIDDEN: Final = _build_empty_reply(403)
# These responses close the connection, because gitboot does not read the rest of the request body.
REQUEST_TIMEOUT: Final = _build_empty_reply(408, _CLOSE)
TOO_LARGE: Final = _build_empty_reply(413, _CLOSE)
TOO_MANY_REQUESTS: Final = _build_empty_reply(429, (b"retry-after", b"60"), _CLOSE)
TOO_MANY_BODIES: Final = _build_empty_reply(429, (b"retry-after", b"5"), _CLOSE)
INTERNAL_ERROR: Final = _build_comment_reply(500)
UNAVAILABLE: Final = _build_comment_reply(503)
# for example, if gitboot cannot record a fetch of installation data now
RETRY_LATER: Final = _build_comment_reply(503, (b"retry-after", b"5"))


def matches_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Return whether an If-None-Match list contains ``etag``, by weak comparison (RFC 9110, 13.1.2)."""
    return if_none_match == b"*" or etag in (tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b","))


# Connections and their limits


# ASGI extensions: functions that return whether the client has closed the connection, or has received all data
CLIENT_GONE: Final = "gitboot.gone"
CLIENT_RECEIVED: Final = "gitboot.received"
CLIENT_TIMEOUT_S: Final = 60  # how long a client may take to accept more data
HEAD_TIMEOUT_S: Final = 10  # how long a client may take to send the head of a request
BODY_TIMEOUT_S: Final = 20  # the time limit for a whole request body, from the end of the head
MAX_IDLE: Final = 32  # the maximum number of idle connections from one address
MAX_BODIES: Final = 128  # the maximum number of request bodies that the endpoint reads at the same time
# the maximum number of request bodies that the endpoint reads from one address at the same time
MAX_BODIES_PER_ADDRESS: Final = 16
# the maximum number of bytes that a client sends before it gets a response, without bodies that the application reads
MAX_UNANSWERED_BYTES: Final = 64 * 1024
_MAX_TRIED_NETWORKS: Final = 8  # the number of networks in which `make_room` tries to close a connection
_HEADER_NAME: Final = re.compile(rb"(?<=\r\n)[^:\r\n]+(?=:)")
# the position of tcpi_bytes_acked in struct tcp_info, which exists since Linux 4.1
_BYTES_ACKED: Final = slice(120, 128)
T = TypeVar("T")


class ConnectionLimits:
    """Limits on the connections to one endpoint.

    A connection from a trusted proxy counts as a connection from the client that the proxy names.
    """

    def __init__(
        self,
        max_idle: float = inf,
        is_proxy: Callable[[str | None], bool] = lambda _: False,
        find_client: Callable[[Scope], str | None] = lambda _: None,
    ) -> None:
        self.is_proxy, self.find_client = is_proxy, find_client
        self.idle: ClientQuota[ClosableConnection] = ClientQuota(
            lambda connection: connection.try_close(even_if_sending=False),
            limit_per_address=max_idle,
            is_exempt=is_proxy,
        )
        self.all: ClientQuota[ClosableConnection] = ClientQuota(
            lambda connection: connection.try_close(even_if_sending=True), limit=lambda: get_max_connections()
        )

    @property
    def closed_count(self) -> int:
        return self.idle.closed_count + self.all.closed_count


class ClientQuota(Generic[T]):
    """Limits the number of items, such as connections, for each client network and in total.

    A network has at most ``limit_per_address`` items, and all networks together have at most ``limit`` items. If an
    item exceeds the limit of its network, gitboot closes the oldest item of that network. If an item exceeds the total
    limit, gitboot closes the oldest item of the network with the most items, so that a client with few items can always
    add one. ``close`` returns False for an item that cannot be closed yet. ``limit_per_address`` does not apply to
    addresses for which ``is_exempt`` returns True, such as those of proxies.
    """

    def __init__(
        self,
        close: Callable[[T], bool],
        *,
        limit: Callable[[], float] = lambda: inf,
        limit_per_address: float = inf,
        is_exempt: Callable[[str | None], bool] = lambda _: False,
    ) -> None:
        self._close, self._limit, self._limit_per_address, self._is_exempt = close, limit, limit_per_address, is_exempt
        self._items_by_network: dict[str, dict[T, None]] = {}
        self._networks: dict[T, str] = {}
        self.closed_count = 0

    def add(self, item: T, address: str | None) -> None:
        """Add a client's new item, and close an older item if the new item exceeds a limit."""
        self.remove(item)
        self._networks[item] = network = get_client_network(address)
        network_items = self._items_by_network.setdefault(network, {})
        network_items[item] = None
        if len(network_items) > self._limit_per_address and not self._is_exempt(address):
            self._close_oldest(network_items)
        elif len(self._networks) > self._limit() and not self.make_room():
            self._close_oldest((item,))

    def remove(self, item: T) -> None:
        """Remove an item if it still exists."""
        if (network := self._networks.pop(item, None)) is not None:
            del self._items_by_network[network][item]
            if not self._items_by_network[network]:
                del self._items_by_network[network]

    def make_room(self) -> bool:
        """Close the oldest item of a network with many items. Return False if no item can be closed."""
        return any(map(self._close_oldest, nlargest(_MAX_TRIED_NETWORKS, self._items_by_network.values(), key=len)))

    def _close_oldest(self, items: Iterable[T]) -> bool:
        oldest = next(filter(self._close, items), None)
        if oldest is None:
            return False
        self.remove(oldest)
        self.closed_count += 1
        return True


class ClosableConnection(Protocol):
    """A connection that can be closed to make room for others."""

    def try_close(self, *, even_if_sending: bool) -> bool:
        """Close the connection if possible. Return whether the connection was closed.

        A connection stays open while the endpoint prepares a response. It also stays open while the endpoint sends a
        response, unless ``even_if_sending`` is true.
        """


@cache
def get_max_connections() -> int:
    """Return the maximum number of connections: a third of the number of files that this process may open.

    A client that downloads an asset needs two open files, one for the connection and one for the asset. The remaining
    third is for all other files.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft_limit // 3 if soft_limit != resource.RLIM_INFINITY else 100_000


_NO_LIMITS: Final = ConnectionLimits()


class _TitleCaseTransport:
    """A transport that writes the header names of one response in title case.

    uvicorn writes header names in lower case, but GRUB before 2.12 recognizes only the spelling ``Content-Length``
    (net/http.c). Without this header, GRUB waits after each file until the connection is closed. If a response begins
    before the end of the request's body, gitboot does not read the rest of the body, and closes the connection after
    the response.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport, self._cycle = transport, cycle
        self._awaits_head = True

    def write(self, data: bytes) -> None:
        # The client has closed the connection. uvloop would raise an error here, and uvicorn would log this error.
        if self._transport.is_closing():
            return
        # uvicorn writes the head in one call, possibly after a 100 response
        if self._awaits_head and self._cycle.response_started:
            self._awaits_head = False
            data = _HEADER_NAME.sub(lambda name: name[0].title(), data)
            if self._cycle.more_body and self._cycle.keep_alive:
                self._cycle.keep_alive = False
                data = data.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _SentBytes:
    """Counts the bytes sent on a TLS connection, to check whether the client's system acknowledges all of them.

    Most boot loaders close the connection without a TLS alert. uvloop then closes the socket and does not call
    `eof_received`, but a duplicate of the socket still provides the count of acknowledged bytes.
    """

    def __init__(self, file: int, unacknowledged_bytes: int) -> None:
        self._socket = socket.socket(fileno=os.dup(file))
        self._total = self._count_acknowledged() + unacknowledged_bytes

    def are_acknowledged(self) -> bool:
        return self._count_acknowledged() >= self._total

    def close(self) -> None:
        self._socket.close()

    def _count_acknowledged(self) -> int:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
        return int.from_bytes(info[_BYTES_ACKED], byteorder)


class Connection(HttpToolsProtocol):
    """A uvicorn connection with additional limits on the size of headers and bodies, and on slow clients."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        super().connection_made(transport)
        self._client = transport
        self._is_answering = False  # whether the application is answering a request
        self._unanswered_bytes = 0
        self._unsent_bytes = 0
        self._active_at = self.loop.time()  # the time at which the client last sent or accepted data
        self._extensions: dict[str, Any] = {CLIENT_GONE: transport.is_closing, CLIENT_RECEIVED: self._has_received}
        self._had_received = False  # whether the client had received all data when the connection ended
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self._sent: _SentBytes | None = None  # only for TLS: counts the bytes that the client has not acknowledged yet
        self._find_cached_reply: Callable[[str, Iterable[Header]], Reply | None] | None = getattr(
            self.app, "find_cached_reply", None
        )
        self._has_cycle = False  # whether the application has received a request from this connection
        self._has_sent_quick_reply = False  # whether this class itself answered the current request
        operator_access: OperatorAccess | None = getattr(self.app, "operator_access", None)
        if operator_access is not None and operator_access.is_operators_socket(self.server):
            self._find_cached_reply = None
        peer = transport.get_extra_info("peername")
        self._address: str | None = peer[0] if peer else None
        self._limits: ConnectionLimits = getattr(self.app, "limits", _NO_LIMITS)
        self._is_from_proxy = self._limits.is_proxy(self._address)
        # the time since which the connection waits for the head of a request; None: it does not wait
        self._head_since: float | None = self._active_at
        self._limits.idle.add(self, self._address)
        self._limits.all.add(self, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._limits.idle.remove(self)
        self._limits.all.remove(self)
        if self._sent is not None:
            self._had_received = self._had_received or self._sent.are_acknowledged()
            self._forget_sent()

    def eof_received(self) -> None:
        # the transport closes the socket next, so this is the last chance to read the counters
        self._had_received = bool(self._has_received())
        super().eof_received()

    def _has_received(self) -> bool | None:
        """Return whether the client's system has acknowledged all sent data.

        Return None if the client's system may still acknowledge the data later.

        Linux counts the bytes that have not been acknowledged yet (tcp(7), SIOCOUTQ). If a client closes the connection
        before it has read all data, the connection is reset, and the response counts as lost.
        """
        if self._client.is_closing():
            return None if self._sent is not None else self._had_received
        file = self._client.get_extra_info("socket").fileno()
        unacknowledged_bytes = int.from_bytes(ioctl(file, TIOCOUTQ, bytes(4)), byteorder)
        has_unsent_data = bool(self._client.get_write_buffer_size())
        self._forget_sent()
        if self._is_encrypted and unacknowledged_bytes and not has_unsent_data:
            self._sent = _SentBytes(file, unacknowledged_bytes)
        return None if has_unsent_data or unacknowledged_bytes else True

    def _forget_sent(self) -> None:
        if self._sent is not None:
            self._sent.close()
            self._sent = None

    def data_received(self, data: bytes) -> None:
        self._unanswered_bytes += len(data)
        if self._head_since is None and not self._is_answering:
            self._head_since = self.loop.time()
        super().data_received(data)
        if self._unanswered_bytes > MAX_UNANSWERED_BYTES:
            self._client.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_sent_quick_reply = False
        self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        self._head_since = None
        if self.parser.get_method() != b"GET":  # a Range header applies only to GET (RFC 9110, 14.2)
            self.headers[:] = [(name, value) for name, value in self.headers if name != b"range"]
        if (reply := self._find_quick_reply()) is not None:
            self._has_sent_quick_reply = True
            self._send_reply(reply)
            return
        self._is_answering = self._has_cycle = True
        self._limits.idle.remove(self)
        if self._is_from_proxy:
            self._limits.all.add(self, self._limits.find_client(dict(self.scope)))
        super().on_headers_complete()
        self.cycle.transport = _TitleCaseTransport(self._client, self.cycle)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._has_sent_quick_reply:
            return
        # otherwise, uvicorn continues to read only when the application reads the body
        if not self.cycle.response_complete:
            self._unanswered_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._has_sent_quick_reply:
            super().on_message_complete()

    def _find_quick_reply(self) -> Reply | None:
        # the application has not answered the last of several pipelined requests yet
        is_busy = self._has_cycle and not self.cycle.response_complete
        if self._find_cached_reply is None or is_busy or self.flow.write_paused or self.parser.should_upgrade():
            return None
        path = self.url.partition(b"?")[0]
        # The application logs untrusted proxies.
        is_forwarded = not self._is_from_proxy and not FORWARDED_HEADERS.isdisjoint(name for name, _ in self.headers)
        if self.parser.get_method() not in (b"GET", b"HEAD") or not path.isascii() or is_forwarded:
            return None
        return self._find_cached_reply(path.decode(), self.headers)

    def _send_reply(self, reply: Reply) -> None:
        # Writes the same bytes as uvicorn's RequestResponseCycle.
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        default_headers = b"".join(
            b"%b: %b\r\n" % (name.title(), value) for name, value in self.server_state.default_headers
        )
        head_end = b"\r\n" if keep_alive else b"Connection: close\r\n\r\n"
        body = bytes(reply.body) if self.parser.get_method() == b"GET" else b""
        self._client.write(
            b"".join((STATUS_LINE[reply.status_code], default_headers, reply.header_bytes, head_end, body))
        )
        if not keep_alive:
            self._client.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        self._is_answering = False
        self._unanswered_bytes = 0
        self._active_at = self.loop.time()
        self._limits.idle.add(self, self._address)
        super().on_response_complete()

    def abort_if_stuck(self, lag_s: float) -> None:
        """Abort the connection if the client is too slow. The server must call this method every few seconds.

        ``lag_s`` is how late this call is. During this delay, the event loop may have left data unread that the client
        sent.
        """
        now, unsent_bytes = self.loop.time(), self._client.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._active_at = unsent_bytes, now
        elif self._is_answering and not unsent_bytes:
            self._active_at = now  # the client waits for the application, so the client is not too slow
        elif now - self._active_at > CLIENT_TIMEOUT_S:
            self._client.abort()
        if self._head_since is not None and now - self._head_since > HEAD_TIMEOUT_S + lag_s:
            self._client.abort()

    def try_close(self, *, even_if_sending: bool) -> bool:
        """Abort the connection unless a response must be completed first. Return whether the connection was aborted."""
        if self._client.get_write_buffer_size() > 0 or (self._is_answering and self.cycle.response_started):
            may_close = even_if_sending
        else:  # the endpoint prepares a response, unless it still waits for a request or its body
            may_close = not self._is_answering or self.cycle.more_body
        if may_close:
            self._client.abort()
        return may_close


# A function that reads a request body. The first argument is the maximum size, and the second argument is a function
# that receives each part of the body. The result is an error response if the body exceeds a limit, and otherwise None.
ReadBody = Callable[[int, Callable[[bytes], object]], Awaitable[Reply | None]]


class RequestBodies:
    """The request bodies that an endpoint is reading. Every route with a request body uses this class.

    If one address sends too many bodies at the same time, gitboot rejects the oldest of these bodies. If all addresses
    together send too many bodies, gitboot rejects the oldest body from the address that is sending the most bodies.
    """

    def __init__(self) -> None:
        self._reading: ClientQuota[asyncio.Timeout] = ClientQuota(
            _expire_deadline, limit=lambda: MAX_BODIES, limit_per_address=MAX_BODIES_PER_ADDRESS
        )

    async def read(
        self, receive: Receive, address: str | None, max_bytes: int, receive_part: Callable[[bytes], object]
    ) -> Reply | None:
        """Read a request body, and pass each part to ``receive_part``.

        Return an error response if the body exceeds a limit, and otherwise None.
        """
        deadline = asyncio.timeout(BODY_TIMEOUT_S)
        size_bytes = 0
        try:
            async with deadline:
                self._reading.add(deadline, address)
                while True:
                    message = await receive()
                    part = message.get("body", b"")
                    size_bytes += len(part)
                    if message["type"] == "http.disconnect" or size_bytes > max_bytes:
                        return TOO_LARGE
                    receive_part(part)
                    if not message.get("more_body", False):
                        return None
        except TimeoutError:
            return REQUEST_TIMEOUT if deadline.when() else TOO_MANY_BODIES
        finally:
            self._reading.remove(deadline)


def _expire_deadline(deadline: asyncio.Timeout) -> bool:
    """Make the deadline of a request body expire now. Return False if the deadline has already expired."""
    if deadline.expired():
        return False
    deadline.reschedule(0)
    return True
