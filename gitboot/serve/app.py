"""The endpoint as an ASGI application: boot files first and fast, all else through Starlette."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from gitboot.observe.observation import Observation
from gitboot.render.answers import Answers
from gitboot.render.loaders import PXELINUX_CORE
from gitboot.serve.api import Api
from gitboot.serve.artifacts import Artifacts
from gitboot.serve.bootfiles import BootFile, BootFiles
from gitboot.serve.clients import LOOPBACK, Network, client_address, membership
from gitboot.serve.connection import SENT
from gitboot.serve.metrics import Kind, Metrics
from gitboot.serve.reply import FAULT, FOR_A_YEAR, NOT_ALLOWED, NOT_FOUND, NOT_YET, REVALIDATED, Reply
from gitboot.status import Status

_logger = logging.getLogger(__name__)
_UNANSWERED: Final = "%s %r could not be answered"

_METHODS: Final = ("GET", "HEAD")
_WHOLE: Final = (200, 204)  # a 304 sent nothing
_FOR_OPERATORS: Final = ("/api/", "/metrics")
_FOR_ALL: Final = ("/healthz", "/readyz")
_ASSETS: Final = "/assets/"
_IMMUTABLE: Final = "/o/"
_PXELINUX_CORE: Final = f"/{PXELINUX_CORE}"


class _Decision(NamedTuple):
    kind: Kind
    reply: Reply | None  # None: a page of Starlette's answers
    then: Callable[[], None] | None = None  # once it was sent


class Endpoint:
    """Answers each request from one ``Answers`` and one instant.

    ``answers`` gives None until the first plans stand. ``observe`` is told of each entry that was fetched, on
    the event loop: it must not wait. ``trusted_proxies`` may say for whom they ask; ``operators`` may see
    what is planned. ``artifacts`` is ``boot/o/`` on the disk: what is too large to be held, and what only
    earlier plans name, whose machines may still be on their way.
    """

    def __init__(
        self,
        *,
        answers: Callable[[], Answers | None],
        status: Callable[[], Status],
        clock: Callable[[], datetime],
        observe: Callable[[Observation], None] | None = None,
        trusted_proxies: Iterable[Network] = LOOPBACK,
        operators: Iterable[Network] = LOOPBACK,
        assets: Path | None = None,
        artifacts: Path | None = None,
    ) -> None:
        self._answers, self._status, self._clock, self._observe = answers, status, clock, observe
        self._is_trusted = membership(trusted_proxies)
        self._is_operator = membership(operators)
        self._metrics = Metrics(status)
        self._boot_files = BootFiles()
        self._assets, self._artifacts = assets, artifacts
        self._pages = Router(
            [
                *Api(answers, status, clock).routes,
                Route("/metrics", self._metrics.page),
                Route("/healthz", _healthz),
                Route("/readyz", self._readyz),
            ],
            redirect_slashes=False,
            default=NOT_FOUND,
        )
        if assets is not None:
            files = Artifacts(assets, cache_control=REVALIDATED)
            self._pages.routes += [
                Route(_ASSETS + "{path:path}", files.page),
                Route(_PXELINUX_CORE, partial(files.file, f"loaders/{PXELINUX_CORE}")),
            ]
        if artifacts is not None:
            files = Artifacts(artifacts, cache_control=FOR_A_YEAR)
            self._pages.routes.append(Route(_IMMUTABLE + "{path:path}", files.page))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            kind, reply, then = self._decide(scope)
        except Exception:
            _logger.exception(_UNANSWERED, scope["method"], scope["path"][:200])
            kind, reply, then = Kind.NOTHING, FAULT, None
        if reply is None:
            await self._page(kind, scope, receive, send)
            return
        await reply(scope, receive, send)
        self._metrics.count(kind, reply.status_code)
        if then is not None:
            _once_sent(scope, then)

    def _decide(self, scope: Scope) -> _Decision:
        path = scope["path"]
        if scope["method"] not in _METHODS:
            return _Decision(Kind.NOTHING, NOT_ALLOWED)
        if path.startswith(_FOR_ALL) or (path.startswith(_FOR_OPERATORS) and self._asked_by_operator(scope)):
            return _Decision(Kind.PAGE, None)
        if self._assets is not None and (path.startswith(_ASSETS) or path == _PXELINUX_CORE):
            return _Decision(Kind.ARTIFACT, None)
        answers, at = self._answers(), self._clock()
        if answers is None:
            return _Decision(Kind.NOTHING, NOT_YET)
        file = self._boot_files.find(answers, path, partial(self._client, scope), at)
        if file is not None:
            return self._decide_file(file, scope, at)
        if self._artifacts is not None and path.startswith(_IMMUTABLE):
            return _Decision(Kind.ARTIFACT, None)
        return _Decision(Kind.NOTHING, NOT_FOUND)

    def _decide_file(self, file: BootFile, scope: Scope, at: datetime) -> _Decision:
        reply = file.reply(scope["headers"])
        if (entry := file.entry) is None:
            return _Decision(Kind.FILE, reply)
        if self._observe is None or reply.status_code not in _WHOLE or scope["method"] != "GET":
            return _Decision(Kind.ENTRY, reply)
        observation = Observation(
            server=entry.server,
            path=file.path,
            digest=entry.digest,
            client=self._client(scope) or "unknown",
            at=at,
        )
        return _Decision(Kind.ENTRY, reply, partial(self._observe, observation))

    def _client(self, scope: Scope) -> str | None:
        return client_address(scope, self._is_trusted)

    def _asked_by_operator(self, scope: Scope) -> bool:
        return self._is_operator(self._client(scope))

    async def _page(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer through Starlette."""
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._pages(scope, receive, noting)
        except Exception:
            if status:
                raise  # too late for another answer: what was begun is broken off
            _logger.exception(_UNANSWERED, scope["method"], scope["path"][:200])
            await FAULT(scope, receive, noting)
        self._metrics.count(kind, status)

    async def _readyz(self, _: Request) -> Response:
        if self._answers() is None or not self._status().ready:
            return _text(503, "not yet planned since the start\n")
        return _text(200, "ready\n")


async def _healthz(_: Request) -> Response:
    return _text(200, "ok\n")


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})


def _once_sent(scope: Scope, then: Callable[[], None]) -> None:
    """Call ``then`` once the client was sent all, as far as the server that runs us can tell."""
    tell = scope.get("extensions", {}).get(SENT)
    if tell is not None:
        tell(then)
    else:
        then()
