"""The endpoint as an ASGI application over a published tree: boot files first and fast, all else through Starlette."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from gitboot.model.scalars import Digest
from gitboot.observe.observation import Observation, last_lines
from gitboot.render.paths import FAILED, PXELINUX_CORE, means
from gitboot.serve.answers import Answer, Answers, Recorded
from gitboot.serve.api import Api
from gitboot.serve.artifacts import ServedFiles
from gitboot.serve.body import end_of
from gitboot.serve.clients import LOOPBACK, Network, client_address, membership
from gitboot.serve.connection import GONE
from gitboot.serve.metrics import Answered, Metrics
from gitboot.serve.reply import FAULT, FOR_A_YEAR, NOT_ALLOWED, NOT_FOUND, NOT_YET, REVALIDATED, Header, Reply, names
from gitboot.serve.tree import Moving, PublishedTree

_logger = logging.getLogger(__name__)
_UNANSWERED: Final = "%s %r could not be answered"

_METHODS: Final = ("GET", "HEAD")
_FOR_OPERATORS: Final = ("/api/", "/metrics")
_FOR_ALL: Final = ("/healthz", "/readyz")
_ASSETS: Final = "/assets/"
_IMMUTABLE: Final = "/o/"
_PXELINUX_CORE: Final = f"/{PXELINUX_CORE}"

DEADLINE_S: Final = 1.0  # for a fetch to stand recorded
_MOVING_S: Final = 0.01  # between two looks for a server whose address is on its way to another
_MOVING_LOOKS: Final = 50


class Recorder(Protocol):
    """What fetches are recorded by, durably, before they are answered."""

    async def record(self, observation: Observation) -> bool:
        """Whether it stands recorded within `DEADLINE_S`; what does not never will."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """Who may do what: proxies may say for whom they ask, operators may see what is planned."""

    trusted_proxies: Iterable[Network] = LOOPBACK
    operators: Iterable[Network] = LOOPBACK


class Endpoint:
    """Answers each request from one state of one server, and at one instant.

    Without a ``recorder`` nothing can be recorded: a boot that is made once is then not given.
    """

    def __init__(
        self,
        root: Path,
        tree: PublishedTree,
        clock: Callable[[], datetime],
        recorder: Recorder | None = None,
        clients: Clients = Clients(),
        assets: Path | None = None,
    ) -> None:
        self._tree, self._clock, self._recorder, self._assets = tree, clock, recorder, assets
        self._answers = Answers(tree)
        self._is_trusted = membership(clients.trusted_proxies)
        self._is_operator = membership(clients.operators)
        self._metrics = Metrics()
        self._pages = Router(
            [
                *Api(tree, root, clock).routes,
                Route("/metrics", self._metrics_page),
                Route("/healthz", _healthz),
                Route("/readyz", self._readyz),
                *_artifacts(root, assets),
            ],
            redirect_slashes=False,
            default=NOT_FOUND,
        )

    # At once, without Starlette

    def quickly(self, path: str, headers: Iterable[Header], *, is_head: bool) -> Reply | None:
        """The reply to what was asked for before, still stands, and need not be recorded; else None."""
        if not self._tree.answers:
            return None
        answer = self._answers.held(path, self._clock())
        if answer is None or (self._must_record(answer) and not is_head):
            return None
        return self._replied(answer, headers)

    # All else

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await (self._heard(scope, receive) if scope["method"] == "POST" else self._reply(scope))
        except Exception:
            _logger.exception(_UNANSWERED, scope["method"], scope["path"][:200])
            self._metrics.count(Answered.NOTHING, FAULT.status_code)
            reply = FAULT
        if reply is not None:
            await reply(scope, receive, send)

    async def _reply(self, scope: Scope) -> Response | None:
        """What a request is answered; None where nobody is there any more."""
        path = scope["path"]
        if scope["method"] not in _METHODS:
            return self._counted(Answered.NOTHING, NOT_ALLOWED)
        if path.startswith(_FOR_ALL) or (path.startswith(_FOR_OPERATORS) and self._is_operator(self._client(scope))):
            return _Page(self, Answered.PAGE)
        if self._assets is not None and (path.startswith(_ASSETS) or path == _PXELINUX_CORE):
            return _Page(self, Answered.ARTIFACT)
        if not self._tree.is_ready:
            return self._counted(Answered.NOTHING, NOT_YET)
        at = self._clock()
        if (answer := await self._find(path, partial(self._client, scope), at)) is not None:
            if self._must_record(answer) and scope["method"] == "GET":
                return await self._recorded(answer, scope, at)
            return self._replied(answer, scope["headers"])
        if path.startswith(_IMMUTABLE):
            return _Page(self, Answered.ARTIFACT)
        return self._counted(Answered.NOTHING, NOT_FOUND)

    async def _heard(self, scope: Scope, receive: Receive) -> Response | None:
        """The reply to an installer that has failed, and sends the end of its log; nothing else is sent to here."""
        at = self._clock()
        answer = await self._find(scope["path"], partial(self._client, scope), at) if self._tree.is_ready else None
        if answer is None or answer.recorded is None or means(answer.recorded.path) is not FAILED:
            return self._counted(Answered.NOTHING, NOT_ALLOWED)
        if isinstance(log := await end_of(receive), Reply):
            return self._counted(Answered.NOTHING, log)
        if not self._must_record(answer):
            return self._counted(Answered.NOTHING, NOT_YET)  # it is to send it again
        return await self._recorded(answer, scope, at, last_lines(log))

    async def _find(self, path: str, client: Callable[[], str | None], at: datetime) -> Answer | None:
        for _ in range(_MOVING_LOOKS):
            try:
                return self._answers.find(path, client, at)
            except Moving:
                await asyncio.sleep(_MOVING_S)
        return None

    def _must_record(self, answer: Answer) -> bool:
        return answer.recorded is not None and self._can_record

    @property
    def _can_record(self) -> bool:
        return self._recorder is not None and not self._tree.is_foreign

    def _replied(self, answer: Answer, headers: Iterable[Header]) -> Reply:
        """The reply to who asks with these headers, where nothing is recorded."""
        if answer.recorded is not None and answer.recorded.instead is not None and not self._can_record:
            return self._instead(answer.recorded.instead)
        if (etag := answer.etag) is not None and answer.unchanged is not None:
            for name, value in headers:
                if name == b"if-none-match" and names(value, etag):
                    return self._counted(answer.counts_as, answer.unchanged)
        return self._counted(answer.counts_as, answer.reply)

    async def _recorded(self, answer: Answer, scope: Scope, at: datetime, log: str | None = None) -> Reply | None:
        """The reply once the fetch stands recorded; where it does not, a boot that is made once is not given."""
        recorded, recorder = answer.recorded, self._recorder
        assert recorded is not None and recorder is not None  # noqa: S101, PT018
        await asyncio.sleep(0)  # so that the loop has seen who has left by now
        if scope.get("extensions", {}).get(GONE, bool)():
            return None
        if await recorder.record(replace(_observation(recorded, self._client(scope), at), log=log)):
            return self._counted(answer.counts_as, answer.reply)
        if recorded.instead is not None:
            return self._instead(recorded.instead)
        self._metrics.unrecorded["given"] += 1
        return self._counted(answer.counts_as, answer.reply)

    def _instead(self, reply: Reply) -> Reply:
        self._metrics.unrecorded["fallback"] += 1
        return self._counted(Answered.ENTRY, reply)

    def _counted(self, answered: Answered, reply: Reply) -> Reply:
        self._metrics.count(answered, reply.status_code)
        return reply

    def _client(self, scope: Scope) -> str | None:
        return client_address(scope, self._is_trusted)

    # Pages

    async def page(self, answered: Answered, scope: Scope, receive: Receive, send: Send) -> None:
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
        self._metrics.count(answered, status)

    def _metrics_page(self, _: Request) -> Response:
        from gitboot.serve.exposition import CONTENT_TYPE, Exposition

        page = Exposition(self._metrics, self._tree.status, lambda: self._tree.is_ready).page()
        return Response(page, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    async def _readyz(self, _: Request) -> Response:
        return _text(200, "ready\n") if self._tree.is_ready else _text(503, "nothing is published yet\n")


class _Page(Response):
    """What Starlette answers."""

    def __init__(self, endpoint: Endpoint, answered: Answered) -> None:
        self._endpoint, self._answered = endpoint, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint.page(self._answered, scope, receive, send)


def _artifacts(root: Path, assets: Path | None) -> list[Route]:
    """What is read from the disk each time: assets, and what is too large in o/ to be held."""
    content = ServedFiles(root / "boot" / "o", cache_control=FOR_A_YEAR)
    routes = [Route(_IMMUTABLE + "{path:path}", content.page)]
    if assets is not None:
        files = ServedFiles(assets, cache_control=REVALIDATED)
        routes += [
            Route(_ASSETS + "{path:path}", files.page),
            Route(_PXELINUX_CORE, partial(files.file, f"loaders/{PXELINUX_CORE}")),
        ]
    return routes


def _observation(recorded: Recorded, client: str | None, at: datetime) -> Observation:
    return Observation(
        server=recorded.server,
        path=recorded.path,
        digest=Digest(recorded.digest),
        client=client or "unknown",
        at=at,
    )


async def _healthz(_: Request) -> Response:
    return _text(200, "ok\n")


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})
