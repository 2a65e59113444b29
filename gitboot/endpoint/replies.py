"""Replies: fast responses for boot files, parts of files, and the error responses of the endpoint."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gitboot.render import paths

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
