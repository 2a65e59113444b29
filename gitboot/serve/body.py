"""What a client sends, as far as anybody looks at it: all of it, or its end, where it is not endless."""

from __future__ import annotations

from typing import Final

from starlette.types import Receive

from gitboot.observe.observation import MOST_LOG_BYTES
from gitboot.serve.reply import TOO_LARGE, Reply

_MOST_BYTES: Final = 1024 * 1024


async def whole_of(receive: Receive, most_bytes: int) -> bytes | Reply:
    """A request's body; a reply where it is larger than that, or was broken off."""
    content, more = bytearray(), True
    while more:
        message = await receive()
        content += message.get("body", b"")
        if message["type"] == "http.disconnect" or len(content) > most_bytes:
            return TOO_LARGE
        more = message.get("more_body", False)
    return bytes(content)


async def end_of(receive: Receive) -> bytes | Reply:
    """The last `MOST_LOG_BYTES` of a request's body; a reply where it is too large, or was broken off."""
    end, size, more = b"", 0, True
    while more:
        message = await receive()
        body = message.get("body", b"")
        size += len(body)
        if message["type"] == "http.disconnect" or size > _MOST_BYTES:
            return TOO_LARGE
        end, more = (end + body)[-MOST_LOG_BYTES:], message.get("more_body", False)
    return end
