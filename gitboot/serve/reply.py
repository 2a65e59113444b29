"""Replies: a status, headers that are written already, a body."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gitboot.render import paths
from gitboot.render.paths import ContentType

Header = tuple[bytes, bytes]

FOR_A_YEAR: Final = paths.FOR_A_YEAR.encode()
REVALIDATED: Final = paths.REVALIDATED.encode()
UNCACHED: Final = paths.UNCACHED.encode()


class Reply(Response):
    """A response that is quickly made: one is for each boot file that is served."""

    def __init__(self, status: int, headers: list[Header], body: bytes = b"") -> None:
        # Response's own works out the headers.
        self.status_code, self.raw_headers, self.body, self.background = status, headers, body, None
        # As they are sent: GRUB before 2.12 knows Content-Length only as it is registered (net/http.c).
        self.written = b"".join(b"%b: %b\r\n" % (name.title(), value) for name, value in headers)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def file_reply(
    content: bytes, content_type: str, cache_control: bytes, etag: bytes | None = None, status: int = 200
) -> Reply:
    """A whole file; without an entity tag, who has it is sent it again."""
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
    if etag is not None:
        headers.append((b"etag", etag))
    return Reply(status, [*headers, (b"cache-control", cache_control)], content)


def refused(why: str) -> Reply:
    """The reply to who has sent what cannot be meant."""
    return file_reply(f"{why}\n".encode(), ContentType.TEXT, UNCACHED, status=400)


def in_parts(reply: Reply) -> Reply:
    """The same, saying that parts of it may be asked for."""
    return Reply(reply.status_code, [*reply.raw_headers, (b"accept-ranges", b"bytes")], bytes(reply.body))


def part_of(reply: Reply, asked: bytes) -> Reply:
    """The part that a Range asks for (RFC 9110, 14.2); the whole where it asks for several, or for what is no range."""
    if (found := _RANGE.fullmatch(asked)) is None or found[1] == found[2] == b"":
        return reply
    content, first = bytes(reply.body), found[1]
    start = int(first) if first else max(len(content) - int(found[2]), 0)
    end = min(int(found[2]) + 1, len(content)) if first and found[2] else len(content)
    headers = [(name, value) for name, value in reply.raw_headers if name != b"content-length"]
    if start >= end:
        return _empty(416, (b"content-range", b"bytes */%d" % len(content)))
    headers.append((b"content-length", b"%d" % (end - start)))
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, len(content))))
    return Reply(206, headers, content[start:end])


_RANGE: Final = re.compile(rb"bytes=(\d{0,18})-(\d{0,18})")


def unchanged(etag: bytes, cache_control: bytes) -> Reply:
    """The reply to who has it already."""
    return Reply(304, [(b"etag", etag), (b"cache-control", cache_control)])


def _empty(status: int, *headers: Header) -> Reply:
    return Reply(status, [(b"content-length", b"0"), (b"cache-control", UNCACHED), *headers])


# Without a Content-Length, which a 204 must not have (RFC 9110, 8.6).
HEARD: Final = Reply(204, [(b"cache-control", UNCACHED)])

# GRUB runs the body of a 404 as configuration, so none of these has one.
NOT_FOUND: Final = _empty(404)
NO_TOKEN: Final = _empty(401, (b"www-authenticate", b"Bearer"))  # one is shown that is none
NOT_ALLOWED: Final = _empty(405, (b"allow", b"GET, HEAD"))
REFUSED: Final = _empty(403)

# These refuse a body whose rest nobody reads, so they end the connection.
_CLOSE: Final = (b"connection", b"close")
TIMED_OUT: Final = _empty(408, _CLOSE)
TOO_LARGE: Final = _empty(413, _CLOSE)
TOO_OFTEN: Final = _empty(429, (b"retry-after", b"60"), _CLOSE)
TOO_MANY: Final = _empty(429, (b"retry-after", b"5"), _CLOSE)

FAULT: Final = _empty(500)
NOT_YET: Final = _empty(503)
NOT_NOW: Final = _empty(503, (b"retry-after", b"5"))  # the data of a direct boot, while its fetch cannot be recorded


def names(if_none_match: bytes, etag: bytes) -> bool:
    """Whether a list of entity tags holds ``etag``, by the weak comparison (RFC 9110, 13.1.2)."""
    return if_none_match == b"*" or etag in (tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b","))
