"""The hub as an ASGI application: the page over all instances, their metrics, their table; it is only read."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from datetime import datetime
from typing import Any, Final

from gitboot.canonical import canonical
from gitboot.errors import HostUnreachable, UsageError
from gitboot.hub.measured import Measured
from gitboot.hub.overview import Sight, overview
from gitboot.hub.together import status_script, table_scripts
from gitboot.hub.watching import Watch, Watched
from gitboot.render.page import MADE_OF, SCRIPT, static
from gitboot.serve.admission import Clients
from gitboot.serve.app import door_of
from gitboot.serve.clients import LOOPBACK, client_address, membership
from gitboot.serve.crowd import Crowd
from gitboot.serve.operators import Stranger
from gitboot.serve.operatorspage import PAGE, PAGE_HEADERS
from gitboot.serve.reply import FAULT, NO_TOKEN, NOT_ALLOWED, NOT_FOUND, Reply

SITES: Final = "/api/v1/sites"
_DATA: Final = f"{PAGE}data/"
_SERVER: Final = re.compile(r"server/([a-z0-9][a-z0-9.-]*)")
_logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Hub:
    """Answers operators alone, at once from what was read last; only a server's own page is asked for then."""

    def __init__(self, watch: Watch, clock: Callable[[], datetime], clients: Clients) -> None:
        self._watch, self._clock, self._door = watch, clock, door_of(clients)
        self.crowd = Crowd()
        self._is_trusted = membership(clients.trusted_proxies or LOOPBACK)
        self._table: tuple[int, dict[str, bytes]] = (-1, {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(scope)
        except Exception:
            _logger.exception("%s %r could not be answered", scope["method"], scope["path"][:200])
            reply = FAULT
        await reply(scope, receive, send)

    async def _reply(self, scope: Scope) -> Reply:
        path: str = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return NOT_ALLOWED
        if path == "/healthz":
            return _answer(b"ok\n", "text/plain; charset=utf-8")
        if (why := self._door.stranger(scope, client_address(scope, self._is_trusted))) is not None:
            return NO_TOKEN if why is Stranger.TOKEN else NOT_FOUND
        if path == SITES:
            items = overview(self._sights(), self._clock())
            return _answer(canonical({"apiVersion": "gitboot.dev/v1alpha1", "items": items}), "application/json")
        if path == "/metrics":
            accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
            return _answer(*await asyncio.to_thread(Measured(self._sights()).page, accept))
        return await self._page(path)

    async def _page(self, path: str) -> Reply:
        if path.startswith(_DATA) and path.endswith(".js"):
            content = await asyncio.to_thread(self._script, path[len(_DATA) : -len(".js")])
            return NOT_FOUND if content is None else _answer(content, SCRIPT)
        name = path.removeprefix(PAGE) or "index.html"
        if not path.startswith(PAGE) or name not in MADE_OF or path == f"{PAGE}index.html":
            return NOT_FOUND
        return _answer(static(name), MADE_OF[name])

    def _script(self, name: str) -> bytes | None:
        watched = self._watch.all
        reads = sum(each.read for each in watched)
        sights = [each.sight for each in watched]
        if name == "status":
            return status_script(sights, reads, self._clock())
        if (found := _SERVER.fullmatch(name)) is not None:
            return _of_server(found[1], watched)
        if self._table[0] != reads:
            self._table = reads, table_scripts(sights, [each.rows for each in watched])
        return self._table[1].get(name)

    def _sights(self) -> list[Sight]:
        return [each.sight for each in self._watch.all]


def _of_server(name: str, watched: Sequence[Watched]) -> bytes | None:
    """What its page has of a server, asked of the instances that have it, those first that were read last."""
    has = [each for each in watched if any(server["name"] == name for server in each.rows.servers)]
    for each in sorted(has, key=lambda each: each.sight.failure is not None):
        try:
            if (content := each.reader.script(f"server/{name}")) is not None:
                return content
        except (HostUnreachable, UsageError):
            continue
    return None


def _answer(content: bytes, content_type: str) -> Reply:
    headers = {**PAGE_HEADERS, "cache-control": "no-store", "content-type": content_type}
    written = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Reply(200, [*written, (b"content-length", str(len(content)).encode())], content)
