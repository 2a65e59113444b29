"""The ASGI application: settings, admission and routes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gitboot.endpoint.access_control import (
    LOOPBACK,
    Network,
    OperatorsDoor,
    Stranger,
    Tokens,
    client_address,
    membership,
    unnamed_proxy,
)
from gitboot.endpoint.age_encryption import Keys
from gitboot.endpoint.api import LEADS_TO_PAGE, PAGE, Api, page_routes
from gitboot.endpoint.boot_gate import (
    Asking,
    Census,
    Giving,
    Guarded,
    Refusal,
    Refusals,
    explained,
    in_comment,
    is_sent_on,
)
from gitboot.endpoint.boot_responses import Answer, Answered, Answers, NamedAnswers
from gitboot.endpoint.connections import (
    FAULT,
    FOR_A_YEAR,
    GONE,
    HEARD,
    MOST_IDLE,
    NO_TOKEN,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_NOW,
    NOT_YET,
    PATIENCE_S,
    RECEIVED,
    REVALIDATED,
    TOO_OFTEN,
    UNCACHED,
    Bodies,
    Header,
    Limits,
    ReadBody,
    Reply,
    file_reply,
    names,
    part_of,
)
from gitboot.endpoint.recorder import Recorder, why_not_ready
from gitboot.endpoint.served_files import Moving, PublishedTree, without_document
from gitboot.endpoint.webhooks import PUSHED
from gitboot.fetchlog.log_entries import (
    MOST_LOG_BYTES,
    Outcome,
    WhyNot,
    in_general,
    last_lines,
    network_of,
    parse_query,
)
from gitboot.fetchlog.unknown_machines import (
    MOST_BYTES,
    UnknownAsked,
    UnknownMachine,
    inventoried,
    parse_sent,
    unknown_of,
)
from gitboot.files import file_below
from gitboot.render.boot_script_parts import sent_to_disk
from gitboot.render.emulated_apis import FOR_UNKNOWN, INVENTORY
from gitboot.render.endpoint_files import Need
from gitboot.render.paths import FAILED, PXELINUX_CORE, REPORTS, ContentType, Role, artifact_type, means
from gitboot.resolve.boot_limits import Halt
from gitboot.status.conditions import STATUS_CURRENT

if TYPE_CHECKING:
    from gitboot.endpoint.tls import Certificate
    from gitboot.endpoint.webhooks import Pushes


_logger = logging.getLogger(__name__)
_UNANSWERED: Final = "%s %r could not be answered"
_METHODS: Final = ("GET", "HEAD")
_FOR_OPERATORS: Final = ("/api/", "/metrics", PAGE)
_FOR_ALL: Final = ("/healthz", "/readyz")
_ASSETS: Final = "/assets/"
_IMMUTABLE: Final = "/o/"
_PXELINUX_CORE: Final = f"/{PXELINUX_CORE}"
_MOST_REPORT_BYTES: Final = 1024 * 1024  # of a report and its log, of which the end counts
DEADLINE_S: Final = 1.0  # for a fetch to stand recorded
_LOOKS_S: Final = 0.01  # between two looks: for a server that moves, whether a client has received an answer
_MOVING_LOOKS: Final = 50


class Endpoint:
    """Answers each request from one state of one server, and at one instant.

    Without a ``recorder`` nothing can be recorded: a boot that is made once is then not given. Without ``keys`` no
    secret is.
    """

    def __init__(
        self,
        root: Path,
        tree: PublishedTree,
        clock: Callable[[], datetime],
        recorder: Recorder | None = None,
        clients: Clients | None = None,  # None: as `Clients` has it
        assets: Path | None = None,
        keys: Keys | None = None,
    ) -> None:
        self._tree, self._clock, self._recorder, self._assets = tree, clock, recorder, assets
        clients = clients if clients is not None else Clients()
        self._answers = Answers(tree)
        self._named = NamedAnswers(tree, self._answers)
        self.refusals = Refusals()
        self._giving = Giving(tree, recorder, partial(_lacking, root, assets), self.refusals, keys)
        self._is_trusted = membership(clients.trusted_proxies)
        self.door = OperatorsDoor(
            is_operator=membership(clients.operators),
            is_proxy=self._is_trusted,
            names=clients.names,
            tokens=clients.tokens,
            at=clients.operators_at,
        )
        self._bodies = Bodies()
        self.limits = Limits(clients.most_idle, self._is_trusted, self._client)
        self._certificate = clients.certificate
        self.requests: Counter[tuple[Answered, int]] = Counter()  # by their status
        self.strangers: Counter[Stranger] = Counter()  # who asked for what is for operators
        self._pushes = clients.pushes
        self._unknown = UnknownMachines(tree, clients.asked)
        content = ServedFiles(root / "boot" / "o", cache_control=FOR_A_YEAR)  # what is too large there to be held
        routes = [
            *Api(tree, root, lambda: tree.clock.trusted(clock())).routes,
            *page_routes(tree),
            Route("/metrics", self._metrics_page),
            Route("/healthz", _healthz),
            Route("/readyz", self._readyz),
            Route(_IMMUTABLE + "{path:path}", content.page),
        ]
        if assets is not None:
            files = ServedFiles(assets, cache_control=REVALIDATED)
            routes.append(Route(_ASSETS + "{path:path}", files.page))
            routes.append(Route(_PXELINUX_CORE, partial(files.file, f"loaders/{PXELINUX_CORE}")))
        self._pages = Router(routes, redirect_slashes=False, default=NOT_FOUND)

    # At once, without Starlette

    def quickly(self, path: str, headers: Iterable[Header]) -> Reply | None:
        """The reply to what was asked for before, still stands, and is given to anybody; else None."""
        if not self._tree.answers or self._tree.stops_all:
            return None
        answer = self._answers.held(path, self._clock())
        if answer is None or answer.guarded is not None or path.removeprefix("/") in FOR_UNKNOWN:
            return None
        return self._replied(answer, headers)

    # All else

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (proxy := unnamed_proxy(scope, self._is_trusted)) is not None:
            self.refusals.note_proxy(proxy, self._clock())
        try:
            reply = await (self._heard(scope, receive) if scope["method"] == "POST" else self._reply(scope))
        except Moving:  # for longer than a publication takes: the tree is half of one
            reply = self._counted(Answered.NOTHING, NOT_NOW)
        except Exception:
            _logger.exception(_UNANSWERED, scope["method"], scope["path"][:200])
            reply = self._counted(Answered.NOTHING, FAULT)
        await (reply or NOT_FOUND)(scope, receive, send)  # who has left takes neither, but uvicorn wants one

    async def _reply(self, scope: Scope) -> ASGIApp | None:
        """What a request is answered; None where nobody is there any more."""
        path = scope["path"]
        if scope["method"] not in _METHODS:
            return self._counted(Answered.NOTHING, NOT_ALLOWED)
        if path.startswith(_FOR_ALL):
            return partial(self.page, Answered.PAGE)
        if path.startswith(_FOR_OPERATORS):
            if (why := self.door.stranger(scope, self._client(scope))) is None:
                return partial(self.page, Answered.PAGE)
            self.strangers[why] += 1
            return self._counted(Answered.NOTHING, NO_TOKEN if why is Stranger.TOKEN else NOT_FOUND)
        if path in LEADS_TO_PAGE and self._is_operator(scope):
            return partial(self.page, Answered.PAGE)
        if self.door.is_at(scope.get("server")):  # machines are answered elsewhere
            return self._counted(Answered.NOTHING, NOT_FOUND)
        if self._assets is not None and (path.startswith(_ASSETS) or path == _PXELINUX_CORE):
            return partial(self.page, Answered.ARTIFACT)
        if not self._tree.is_ready:
            return self._counted(Answered.NOTHING, NOT_YET)
        at = self._clock()
        if (answer := await self._find(scope, at)) is not None:
            if answer.entry is not None and (stopped := self._tree.words.now) and stopped.stoppage.everything:
                words = str(stopped.stoppage) if self._is_operator(scope) else f"{Halt.ALL} are stopped"
                path, who, local_disk = answer.entry
                script = sent_to_disk(path, who, in_comment(words), local_disk)
                reply = file_reply(script.encode(), ContentType.TEXT, UNCACHED) if script is not None else NOT_FOUND
                return self._counted(answer.counts_as, reply)
            if answer.guarded is not None:
                return await self._given(answer, answer.guarded, scope, at)
            return self._replied(answer, scope["headers"])
        if path.startswith(_IMMUTABLE):
            return partial(self.page, Answered.ARTIFACT)
        self._unknown.note_request(path, _asking(scope, self._client(scope), at))
        return self._counted(Answered.NOTHING, NOT_FOUND)

    async def _heard(self, scope: Scope, receive: Receive) -> Reply | None:
        """The reply to a POST: a forge's push, an inventory, or a report of an installer. All else is not allowed."""
        path, server = scope["path"], scope.get("server")
        read = partial(self._bodies.read, receive, self._client(scope))
        if path == PUSHED and self._pushes is not None and not self.door.is_elsewhere(server):
            return self._counted(Answered.PAGE, await self._pushes.heard(scope, read))
        if self.door.is_at(server):  # machines are answered elsewhere
            return self._counted(Answered.NOTHING, NOT_ALLOWED)
        if not self._tree.is_ready:  # no tree states which reports are expected, so an installer has to try again
            is_expected = path == INVENTORY_PATH or means(f"boot{path}") in REPORTS
            return self._counted(Answered.NOTHING, NOT_YET if is_expected else NOT_ALLOWED)
        asking = _asking(scope, self._client(scope), self._clock())
        if path == INVENTORY_PATH and INVENTORY in self._named.outputs():
            return self._counted(Answered.INVENTORY, await self._unknown.note_inventory(read, asking))
        answer = await self._find(scope, asking.at)
        kind = means(answer.guarded.path) if answer is not None and answer.guarded is not None else None
        if answer is None or answer.guarded is None or kind not in REPORTS:
            return self._counted(Answered.NOTHING, NOT_ALLOWED)
        end: deque[int] = deque(maxlen=MOST_LOG_BYTES)
        if (refusal := await read(_MOST_REPORT_BYTES, end.extend)) is not None:
            return self._counted(Answered.NOTHING, refusal)
        told = last_lines(bytes(end)) if kind is FAILED else None
        if not await self._giving.record(answer.guarded, asking, told):
            return self._counted(Answered.NOTHING, NOT_NOW)  # it is to send it again
        return self._counted(answer.counts_as, answer.reply)

    async def _find(self, scope: Scope, at: datetime) -> Answer | None:
        """Return what a path is answered; None: nothing is there. Raises `Moving` if that is not decided in time."""
        client = partial(self._client, scope)
        for _ in range(_MOVING_LOOKS):
            try:
                return self._named.find(scope["path"], scope["query_string"], client, at)
            except Moving:
                await asyncio.sleep(_LOOKS_S)
        raise Moving

    def _replied(self, answer: Answer, headers: Iterable[Header]) -> Reply:
        wanted, has_other = b"", False
        if (etag := answer.etag) is not None and answer.unchanged is not None:
            for name, value in headers:
                if name == b"if-none-match" and names(value, etag):
                    return self._counted(answer.counts_as, answer.unchanged)
                if name == b"range" and answer.in_parts:
                    wanted = value
                has_other |= name == b"if-range" and value != etag  # RFC 9110, 13.1.5: it has a part of another version
        is_part = wanted and not has_other
        return self._counted(answer.counts_as, part_of(answer.reply, wanted) if is_part else answer.reply)

    async def _given(self, answer: Answer, guarded: Guarded, scope: Scope, at: datetime) -> ASGIApp | None:
        """The reply once it is known that this may be given, and that stands recorded; else what is given instead."""
        if await _has_left(scope):
            return None
        asking = _asking(scope, self._client(scope), at)
        try:
            reply = await self._decided(answer, guarded, scope, asking)
        except Exception:
            self._giving.conclude(asking, Outcome.WITHHELD)
            raise
        if not asking.intents:
            return reply
        if await _has_left(scope):
            self._giving.conclude(asking, Outcome.WITHHELD)
            return None
        return partial(self._served, reply, asking)

    async def _served(self, reply: Reply, asking: Asking, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send a reply, and record that it was served once the client has received all of it."""
        await send({"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
        self._giving.conclude(asking, Outcome.SERVED if await _has_received(scope) else None)
        await send({"type": "http.response.body"})

    async def _decided(self, answer: Answer, guarded: Guarded, scope: Scope, asking: Asking) -> Reply:
        if guarded.role is Role.SEALED:
            found = await self._giving.secret(guarded, asking, bytes(answer.reply.body))
            reply = _withheld(found) if isinstance(found, Refusal) else file_reply(found, answer.content_type, UNCACHED)
            return self._counted(answer.counts_as, reply)
        content: bytes | None = None
        if (refusal := await self._giving.refusal(guarded, asking)) is None:
            return self._counted(answer.counts_as, answer.reply)
        if answer.hop is not None and is_sent_on(refusal, guarded, asking):
            content = answer.hop
        elif guarded.role in (Role.DATA, Role.REPORT):
            return self._counted(answer.counts_as, _withheld(refusal))
        elif (content := answer.instead) is not None and guarded.role is Role.ENTRY:
            words = refusal.words if self._is_operator(scope) else in_general(refusal.reason)
            content = explained(content, Refusal(refusal.reason, words), guarded.server)
        reply = file_reply(content, answer.content_type, UNCACHED) if content is not None else NOT_FOUND
        return self._counted(answer.counts_as, reply)

    def _counted(self, answered: Answered, reply: Reply) -> Reply:
        self.requests[answered, reply.status_code] += 1
        return reply

    def _client(self, scope: Scope) -> str | None:
        return client_address(scope, self._is_trusted)

    def _is_operator(self, scope: Scope) -> bool:
        return self.door.stranger(scope, self._client(scope)) is None

    # Pages

    async def page(self, answered: Answered, scope: Scope, receive: Receive, send: Send) -> None:
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
        self.requests[answered, status] += 1

    async def _metrics_page(self, request: Request) -> Response:
        from gitboot.endpoint.metrics import Exposition

        why_not = await self._why_not_ready()
        page, content_type = Exposition(
            *(self.requests, self.strangers, self.refusals.counted, self._tree, self._recorder, why_not),
            limits=self.limits,
            certificate=self._certificate,
            unknown_requests=self._unknown.asked.requests,
        ).page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type, "cache-control": "no-store", "vary": "accept"})

    async def _readyz(self, request: Request) -> Response:
        """Return whether this endpoint is ready; to operators also why not, who has stopped boots, and the progress."""
        why_not = await self._why_not_ready()
        lines = ["ready" if why_not is None else "not ready"]
        if self._is_operator(request.scope):
            lines = [why_not or "ready"]
            lines += [str(stopped.stoppage)] if (stopped := self._tree.words.now) is not None else []
            status = self._tree.status()
            lines += [each["message"] for each in status["conditions"] if each["type"] == STATUS_CURRENT]
            lines += [each["message"]] if (each := status.get("progress")) is not None else []
        return _text(200 if why_not is None else 503, "".join(f"{line}\n" for line in lines))

    async def _why_not_ready(self) -> str | None:
        if self._recorder is not None:
            await self._recorder.settle()
        return why_not_ready(self._tree, self._recorder)


async def _has_left(scope: Scope) -> bool:
    """Return whether the client of a GET has closed its connection, as far as the event loop has seen."""
    if scope["method"] != "GET":
        return False
    await asyncio.sleep(0)  # so that the loop sees it
    return bool(scope.get("extensions", {}).get(GONE, bool)())


async def _has_received(scope: Scope) -> bool:
    """Wait until the client has received all that was sent; return False if it breaks off, or takes a minute."""
    has_received, loop = scope.get("extensions", {}).get(RECEIVED, lambda: True), asyncio.get_running_loop()
    ends_s = loop.time() + PATIENCE_S
    while (found := has_received()) is None and loop.time() < ends_s:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(_LOOKS_S)
    return bool(found)


# Files that are read from the disk for each request


class ServedFiles:
    """The files below ``root``; nothing that a symlink or a spelling of its path leads out to."""

    def __init__(self, root: Path, *, cache_control: bytes) -> None:
        self._root = root
        self._cache_control = cache_control

    # Not async: Starlette runs it in a thread, where a slow disk holds up nobody else.
    def page(self, request: Request) -> Response:
        return self.file(request.path_params["path"], request)

    def file(self, path: str, request: Request) -> Response:
        """The answer with the file at ``path`` below the root, whatever was asked for."""
        try:
            found = file_below(self._root.resolve(), path)
        except OSError:
            return NOT_YET
        if found is None:
            return NOT_FOUND
        content_type = artifact_type(found.name)
        headers = {"content-type": content_type, "cache-control": self._cache_control.decode()}
        response = FileResponse(found, headers=headers, stat_result=found.stat())
        etag = response.headers["etag"].encode()
        if any(name == b"if-none-match" and names(value, etag) for name, value in request.scope["headers"]):
            return Reply(304, [(b"etag", etag), (b"cache-control", self._cache_control)])
        return response


def _lacking(root: Path, assets: Path | None, need: Need) -> str | None:
    """Why a file is not what a boot needs, where an endpoint would answer it by itself; None: nothing is wrong."""
    asset = need.path.removeprefix("assets/")
    folder = root / "boot" if asset == need.path else assets
    if folder is None:
        return None
    size = None
    with suppress(OSError):
        found = file_below(folder.resolve(), asset)
        size = found.stat().st_size if found is not None else None
    if size is None:
        return f"{need.path} is not there"
    return None if need.size in (None, size) else f"{need.path} has {size} bytes, and the image says {need.size}"


def _asking(scope: Scope, client: str | None, at: datetime) -> Asking:
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    query = parse_query(scope["query_string"].decode("latin-1"))
    return Asking(
        client=client, agent=agent.decode("latin-1"), query=query, at=at, only_looks=scope["method"] == "HEAD"
    )


def _withheld(refusal: Refusal) -> Reply:
    """What is answered in place of data or a secret: another endpoint, or this one later, may give it."""
    return NOT_NOW if refusal.reason in _FOR_NOW else NOT_FOUND


_FOR_NOW: Final = (WhyNot.NOT_RECORDED, WhyNot.ANOTHER_GIVER, WhyNot.NOT_OPENED)


async def _healthz(_: Request) -> Response:
    return _text(200, "ok\n")


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})


INVENTORY_PATH: Final = "/v1/inventory"
MOST_OF_ONE: Final = 60  # a minute, of one network address: a rack that is booted behind one
_MOST: Final = 600  # a minute, of all
_MINUTE: Final = timedelta(minutes=1)


class UnknownMachines:
    """Notes what machines ask for and send, as far as their fetches would count: not people, not monitors.

    A machine that a document describes after all is not noted.
    """

    def __init__(self, tree: PublishedTree, asked: UnknownAsked) -> None:
        self._tree, self.asked, self._census = tree, asked, Census(tree)
        self._minute: int | None = None  # in which these inventories were sent
        self._sent: Counter[str] = Counter()  # by the network address

    def note_request(self, path: str, asking: Asking) -> None:
        """Take note of a request that was answered 404, or what unknown machines boot."""
        if not asking.only_looks and asking.client is not None and self._counts(asking, Role.ENTRY):
            self._note(unknown_of(path, asking.query, asking.client, asking.at))

    async def note_inventory(self, read: ReadBody, asking: Asking) -> Reply:
        """Return the reply to the sender of an inventory: the same whether a document describes the machine or not."""
        if asking.client is None or not self._counts(asking, Role.DATA):
            return NOT_FOUND
        if not self.asked.is_left:
            return NOT_NOW  # it would be lost
        if not self._may_send(asking):
            return TOO_OFTEN
        content = bytearray()
        if (refusal := await read(MOST_BYTES, content.extend)) is not None:
            return refusal
        path = INVENTORY_PATH.removeprefix("/")
        try:
            self._note(inventoried(parse_sent(bytes(content)), path, asking.client, asking.at))
        except ValueError as error:
            return file_reply(f"{error}\n".encode(), ContentType.TEXT, UNCACHED, status=400)
        return HEARD

    def _counts(self, asking: Asking, role: Role) -> bool:
        return self._census.why_not(asking.client, asking.agent, asking.query, role) is None

    def _note(self, machine: UnknownMachine | None) -> None:
        if machine is not None and (found := without_document(self._tree, machine)) is not None:
            self.asked.note(found)

    def _may_send(self, asking: Asking) -> bool:
        minute = int(asking.at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent = minute, Counter()
        network = network_of(asking.client)
        may_send = self._sent[network] < MOST_OF_ONE and self._sent.total() < _MOST
        self._sent[network] += may_send
        return may_send


class Clients(Struct, frozen=True, kw_only=True):
    """Who may do what: proxies may say for whom they ask, operators may see what is planned."""

    trusted_proxies: Iterable[Network] = ()  # whose X-Forwarded-For states who asks
    operators: Iterable[Network] = LOOPBACK
    names: tuple[str, ...] = ()  # by which operators may ask, besides addresses
    tokens: Tokens | None = None  # that let read what operators may, from anywhere
    operators_at: tuple[str, int] | None = None  # the socket at which they ask, and machines do not
    certificate: Certificate | None = None  # what they are shown there; None: nothing is encrypted
    most_idle: int = MOST_IDLE  # connections of one address that wait for their client
    pushes: Pushes | None = None  # who hears webhooks of forges
    asked: UnknownAsked = field(default_factory=UnknownAsked)  # where it is noted who is found by nothing
