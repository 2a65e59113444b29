"""ASGI application of the endpoint: route requests, check operator access, serve boots and accept reports."""

from __future__ import annotations

import asyncio
import logging
import re
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
    OperatorAccess,
    OperatorDenial,
    Tokens,
    build_network_matcher,
    find_client_address,
    find_untrusted_proxy,
)
from gitboot.endpoint.age_encryption import AgeKeys
from gitboot.endpoint.api import PAGE_PATH, PAGE_REDIRECTS, WEBHOOK_PATH, Api, Webhooks, build_page_routes
from gitboot.endpoint.boot_gate import (
    BootGate,
    ClientRequest,
    DenialLog,
    FetchFilter,
    GateDenial,
    GuardedPath,
    add_explanation,
    escape_comment,
    is_redirected,
)
from gitboot.endpoint.boot_responses import AliasResponses, BootResponse, BootResponses, BootScript, RequestKind
from gitboot.endpoint.connections import (
    CLIENT_GONE,
    CLIENT_RECEIVED,
    CLIENT_TIMEOUT_S,
    FOR_A_YEAR,
    INTERNAL_ERROR,
    MAX_IDLE,
    METHOD_NOT_ALLOWED,
    NO_CONTENT,
    NOT_FOUND,
    RETRY_LATER,
    REVALIDATED,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNCACHED,
    ConnectionLimits,
    Header,
    ReadBody,
    Reply,
    RequestBodies,
    build_file_reply,
    matches_etag,
    select_range,
)
from gitboot.endpoint.recorder import Recorder, find_unready_reason
from gitboot.endpoint.served_files import PublishedTree, ServerMoving, match_documents
from gitboot.fetchlog.log_entries import (
    MAX_LOG_BYTES,
    DenialReason,
    Outcome,
    describe_denial,
    format_log_end,
    get_client_network,
    parse_query,
)
from gitboot.fetchlog.unknown_machines import (
    MAX_INVENTORY_BYTES,
    UnknownMachine,
    UnknownMachineRecorder,
    build_from_inventory,
    parse_inventory,
    parse_unknown_machine,
)
from gitboot.files import ABSENT, find_file_below
from gitboot.render.boot_script_parts import render_disk_boot
from gitboot.render.emulated_apis import FOR_UNKNOWN, INVENTORY
from gitboot.render.endpoint_files import NeededFile
from gitboot.render.paths import (
    FAILED,
    PXELINUX_CORE,
    REPORTS,
    ContentType,
    Role,
    find_artifact_type,
    find_non_script_kind,
)
from gitboot.resolve.provisioning_record import StopScope
from gitboot.status.conditions import STATUS_CURRENT

if TYPE_CHECKING:
    from gitboot.endpoint.tls import Certificate, HandshakeFailure


_logger = logging.getLogger(__name__)
_FAILED_REQUEST: Final = "the endpoint could not answer the request %s %r"
_METHODS: Final = ("GET", "HEAD")
_OPERATOR_PATHS: Final = ("/api/", "/metrics", PAGE_PATH)
_PUBLIC_PATHS: Final = ("/healthz", "/readyz")
# A proxy in front of the endpoint may filter these paths by prefix, so the endpoint accepts only one spelling.
_EXACT_PATHS: Final = (*_OPERATOR_PATHS, *_PUBLIC_PATHS, WEBHOOK_PATH)
_ASSETS: Final = "/assets/"
_IMMUTABLE: Final = "/o/"
_PXELINUX_CORE: Final = f"/{PXELINUX_CORE}"
# the maximum size of a report with the installer's log; gitboot stores only the end of the log
_MAX_REPORT_BYTES: Final = 1024 * 1024
DEADLINE_S: Final = 1.0  # how long the endpoint waits until a fetch is recorded
# the time between two checks whether a server has moved, or whether a client has received a response
_POLL_S: Final = 0.01
_MOVING_POLLS: Final = 50


INVENTORY_PATH: Final = "/v1/inventory"


class Endpoint:
    """The ASGI application. Each response is based on one server's state at one point in time.

    Without a ``recorder``, the endpoint cannot record fetches, so the endpoint withholds one-time boots. Without
    ``keys``, the endpoint withholds secrets.
    """

    def __init__(
        self,
        tree: PublishedTree,
        clock: Callable[[], datetime],
        recorder: Recorder | None = None,
        clients: ClientRules | None = None,  # None: use the default rules
        assets: Path | None = None,
        keys: AgeKeys | None = None,
    ) -> None:
        self.tree, self._clock, self.recorder, self._assets = tree, clock, recorder, assets
        clients = clients if clients is not None else ClientRules()
        self._responses = BootResponses(tree)
        self._alias_responses = AliasResponses(tree, self._responses)
        self.denials = DenialLog()
        boot_folder = Path(tree.root, "boot")
        self._gate = BootGate(tree, recorder, partial(_find_missing_file, boot_folder, assets), self.denials, keys)
        self._is_trusted = build_network_matcher(clients.trusted_proxies)
        self.operator_access = OperatorAccess(
            is_operator=build_network_matcher(clients.operators),
            is_proxy=self._is_trusted,
            names=clients.names,
            tokens=clients.tokens,
            operators_socket=clients.operators_socket,
            machines_tls_socket=clients.machines_tls_socket,
        )
        self._bodies = RequestBodies()
        self.limits = ConnectionLimits(clients.max_idle, self._is_trusted, self._find_client)
        self.certificate, self.machines_certificate = clients.certificate, clients.machines_certificate
        self.requests: Counter[tuple[RequestKind, int]] = Counter()  # the number of requests for each kind and status
        # the number of rejected requests for operators' pages, for each reason
        self.operator_denials: Counter[OperatorDenial] = Counter()
        # the number of failed handshakes with machines, for each reason
        self.failed_handshakes: Counter[HandshakeFailure] = Counter()
        self._webhooks = clients.webhooks
        self.unknown_machines = UnknownMachineHandler(tree, clients.unknown_recorder)
        # the files that are too large for the cache
        content = ServedFiles(boot_folder / "o", cache_control=FOR_A_YEAR)
        routes = [
            *Api(tree, lambda: tree.clock.choose_time(clock())).routes,
            *build_page_routes(tree),
            Route("/metrics", self._render_metrics_page),
            Route("/healthz", _serve_healthz),
            Route("/readyz", self._serve_readyz),
            Route(_IMMUTABLE + "{path:path}", content.serve),
        ]
        if assets is not None:
            files = ServedFiles(assets, cache_control=REVALIDATED)
            routes.append(Route(_ASSETS + "{path:path}", files.serve))
            routes.append(Route(_PXELINUX_CORE, partial(files.serve_file, f"loaders/{PXELINUX_CORE}")))
        self._pages = Router(routes, redirect_slashes=False, default=NOT_FOUND)

    # Responses without Starlette

    def find_cached_reply(self, path: str, headers: Iterable[Header]) -> Reply | None:
        """Return the cached response for a path if it is still valid and does not depend on the client, or None."""
        if not self.tree.can_serve or self.tree.stops_all:
            return None
        answer = self._responses.find_cached(path, self._clock())
        if answer is None or answer.guarded_path is not None or path.removeprefix("/") in FOR_UNKNOWN:
            return None
        return self._build_reply(answer, headers)

    # All other requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "//" in scope["path"]:  # shim requests loaders//grubx64.efi; nginx and Caddy merge slashes too
            merged = re.sub("/{2,}", "/", scope["path"])
            if merged not in PAGE_REDIRECTS and not merged.startswith(_EXACT_PATHS):
                scope["path"] = merged
        if (proxy := find_untrusted_proxy(scope, self._is_trusted)) is not None:
            self.denials.add_proxy(proxy, self._clock())
        try:
            reply = await (self._handle_post(scope, receive) if scope["method"] == "POST" else self._handle_get(scope))
        except ServerMoving:  # the move takes longer than a publication, so the tree is incomplete
            reply = self._count_reply(RequestKind.NOTHING, RETRY_LATER)
        except Exception:
            _logger.exception(_FAILED_REQUEST, scope["method"], scope["path"][:200])
            reply = self._count_reply(RequestKind.NOTHING, INTERNAL_ERROR)
        # without a reply, the client has closed the connection, but uvicorn needs a response
        await (reply or NOT_FOUND)(scope, receive, send)

    async def _handle_get(self, scope: Scope) -> ASGIApp | None:
        """Return the response to a GET or HEAD request, or None if the client has closed the connection."""
        path = scope["path"]
        if scope["method"] not in _METHODS:
            return self._count_reply(RequestKind.NOTHING, METHOD_NOT_ALLOWED)
        if path.startswith(_PUBLIC_PATHS):
            return partial(self.serve_page, RequestKind.PAGE)
        if path.startswith(_OPERATOR_PATHS):
            if (why := self.operator_access.find_denial(scope, self._find_client(scope))) is None:
                return partial(self.serve_page, RequestKind.PAGE)
            self.operator_denials[why] += 1
            return self._count_reply(RequestKind.NOTHING, UNAUTHORIZED if why is OperatorDenial.TOKEN else NOT_FOUND)
        if path in PAGE_REDIRECTS and self._is_operator(scope):
            return partial(self.serve_page, RequestKind.PAGE)
        if self.operator_access.is_operators_socket(scope.get("server")):  # machines use another socket
            return self._count_reply(RequestKind.NOTHING, NOT_FOUND)
        if self._assets is not None and (path.startswith(_ASSETS) or path == _PXELINUX_CORE):
            return partial(self.serve_page, RequestKind.ARTIFACT)
        if not self.tree.is_ready:
            return self._count_reply(RequestKind.NOTHING, UNAVAILABLE)
        at = self._clock()
        if (answer := await self._find_response(scope, at)) is not None:
            stop_order = self.tree.stop_orders.current if answer.boot_script is not None else None
            if answer.boot_script is not None and stop_order is not None and stop_order.stoppage.everything:
                reason = str(stop_order.stoppage) if self._is_operator(scope) else f"{StopScope.ALL} are stopped"
                return self._count_reply(answer.request_kind, _build_disk_boot_reply(answer.boot_script, reason))
            if answer.guarded_path is not None:
                return await self._serve_guarded_path(answer, answer.guarded_path, scope, at)
            return self._build_reply(answer, scope["headers"])
        if path.startswith(_IMMUTABLE):
            return partial(self.serve_page, RequestKind.ARTIFACT)
        self.unknown_machines.record_request(path, _parse_client_request(scope, self._find_client(scope), at))
        return self._count_reply(RequestKind.NOTHING, NOT_FOUND)

    async def _handle_post(self, scope: Scope, receive: Receive) -> Reply:
        """Return the response to a POST request: a webhook, an inventory or an installer's report."""
        path, server = scope["path"], scope.get("server")
        read = partial(self._bodies.read, receive, self._find_client(scope))
        if path == WEBHOOK_PATH and self._webhooks is not None and not self.operator_access.is_machines_socket(server):
            return self._count_reply(RequestKind.PAGE, await self._webhooks.handle(scope, read))
        if self.operator_access.is_operators_socket(server):  # machines use another socket
            return self._count_reply(RequestKind.NOTHING, METHOD_NOT_ALLOWED)
        # without a tree, gitboot does not have the list of expected reports, so installers have to try again
        if not self.tree.is_ready:
            is_expected = path == INVENTORY_PATH or find_non_script_kind(f"boot{path}") in REPORTS
            return self._count_reply(RequestKind.NOTHING, UNAVAILABLE if is_expected else METHOD_NOT_ALLOWED)
        request = _parse_client_request(scope, self._find_client(scope), self._clock())
        if path == INVENTORY_PATH and INVENTORY in self._alias_responses.read_outputs():
            return self._count_reply(RequestKind.INVENTORY, await self.unknown_machines.record_inventory(read, request))
        answer = await self._find_response(scope, request.at)
        kind = (
            find_non_script_kind(answer.guarded_path.path)
            if answer is not None and answer.guarded_path is not None
            else None
        )
        if answer is None or answer.guarded_path is None or kind not in REPORTS:
            return self._count_reply(RequestKind.NOTHING, METHOD_NOT_ALLOWED)
        if self._gate.find_reason_to_ignore(answer.guarded_path, request) is not None:
            return self._count_reply(answer.request_kind, NOT_FOUND)
        tail: deque[int] = deque(maxlen=MAX_LOG_BYTES)
        if (refusal := await read(_MAX_REPORT_BYTES, tail.extend)) is not None:
            return self._count_reply(RequestKind.NOTHING, refusal)
        log_end = format_log_end(bytes(tail)) if kind is FAILED else None
        if not await self._gate.record_fetch(answer.guarded_path, request, log_end):
            # the response makes the installer send the report again
            return self._count_reply(RequestKind.NOTHING, RETRY_LATER)
        return self._count_reply(answer.request_kind, answer.reply)

    async def _find_response(self, scope: Scope, at: datetime) -> BootResponse | None:
        """Return the response to a request, or None for a 404 response.

        Raises `ServerMoving` if the client's identity is still moving to another server.
        """
        client = partial(self._find_client, scope)
        for _ in range(_MOVING_POLLS):
            try:
                return self._alias_responses.find(scope["path"], scope["query_string"], client, at)
            except ServerMoving:
                await asyncio.sleep(_POLL_S)
        raise ServerMoving

    def _build_reply(self, answer: BootResponse, headers: Iterable[Header]) -> Reply:
        range_header, has_other_version = b"", False
        if (etag := answer.etag) is not None and answer.not_modified is not None:
            for name, value in headers:
                if name == b"if-none-match" and matches_etag(value, etag):
                    return self._count_reply(answer.request_kind, answer.not_modified)
                if name == b"range" and answer.allows_ranges:
                    range_header = value
                # the client has a part of a different version of the file (RFC 9110, 13.1.5)
                has_other_version |= name == b"if-range" and value != etag
        return self._count_reply(
            answer.request_kind,
            select_range(answer.reply, range_header) if range_header and not has_other_version else answer.reply,
        )

    async def _serve_guarded_path(
        self, answer: BootResponse, guarded_path: GuardedPath, scope: Scope, at: datetime
    ) -> ASGIApp | None:
        """Return the boot if the gate allows it and the fetch is recorded, and otherwise a fallback.

        Return None if the client has closed the connection.
        """
        if await _has_client_left(scope):
            return None
        request = _parse_client_request(scope, self._find_client(scope), at)
        try:
            reply = await self._decide_reply(answer, guarded_path, scope, request)
        except Exception:
            self._gate.store_outcome(request, Outcome.WITHHELD)
            raise
        if not request.intents:
            return reply
        if await _has_client_left(scope):
            self._gate.store_outcome(request, Outcome.WITHHELD)
            return None
        return partial(self._send_and_store_outcome, reply, request)

    async def _send_and_store_outcome(
        self, reply: Reply, request: ClientRequest, scope: Scope, _receive: Receive, send: Send
    ) -> None:
        """Send a response. If the client has received the complete response, record that the boot was served."""
        await send({"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
        self._gate.store_outcome(request, Outcome.SERVED if await _has_client_received(scope) else None)
        await send({"type": "http.response.body"})

    async def _decide_reply(
        self, answer: BootResponse, guarded_path: GuardedPath, scope: Scope, request: ClientRequest
    ) -> Reply:
        if guarded_path.role is Role.SEALED:
            found = await self._gate.decrypt_secret(guarded_path, request, bytes(answer.reply.body))
            return self._count_reply(
                answer.request_kind,
                _build_withheld_reply(found)
                if isinstance(found, GateDenial)
                else build_file_reply(found, answer.content_type, UNCACHED),
            )
        content: bytes | None = None
        if (denial := await self._gate.find_denial(guarded_path, request)) is None:
            return self._count_reply(answer.request_kind, answer.reply)
        if answer.hop is not None and is_redirected(denial, guarded_path, request):
            content = answer.hop
        elif guarded_path.role in (Role.DATA, Role.REPORT):
            return self._count_reply(answer.request_kind, _build_withheld_reply(denial))
        elif (content := answer.fallback) is not None and guarded_path.role is Role.BOOT_SCRIPT:
            words = denial.words if self._is_operator(scope) else describe_denial(denial.reason)
            content = add_explanation(content, GateDenial(denial.reason, words), guarded_path.server)
        reply = build_file_reply(content, answer.content_type, UNCACHED) if content is not None else NOT_FOUND
        return self._count_reply(answer.request_kind, reply)

    def _count_reply(self, kind: RequestKind, reply: Reply) -> Reply:
        self.requests[kind, reply.status_code] += 1
        return reply

    def _find_client(self, scope: Scope) -> str | None:
        return find_client_address(scope, self._is_trusted)

    def _is_operator(self, scope: Scope) -> bool:
        return self.operator_access.find_denial(scope, self._find_client(scope)) is None

    # Pages

    async def serve_page(self, kind: RequestKind, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def send_and_store_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._pages(scope, receive, send_and_store_status)
        except Exception:
            if status:
                raise  # the response has begun, so the endpoint can only abort it
            _logger.exception(_FAILED_REQUEST, scope["method"], scope["path"][:200])
            await INTERNAL_ERROR(scope, receive, send_and_store_status)
        self.requests[kind, status] += 1

    async def _render_metrics_page(self, request: Request) -> Response:
        from gitboot.endpoint.metrics import Exposition

        exposition = Exposition(self, await self._find_unready_reason())
        page, content_type = exposition.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type, "cache-control": "no-store", "vary": "accept"})

    async def _serve_readyz(self, request: Request) -> Response:
        """Return a response that states whether this endpoint is ready.

        For operators, the response also contains the reason and any order to stop boots.
        """
        unready_reason = await self._find_unready_reason()
        lines = ["ready" if unready_reason is None else "not ready"]
        if self._is_operator(request.scope):
            lines = [unready_reason or "ready"]
            lines += [str(stop_order.stoppage)] if (stop_order := self.tree.stop_orders.current) is not None else []
            status = self.tree.read_status()
            lines += [each["message"] for each in status["conditions"] if each["type"] == STATUS_CURRENT]
            lines += [each["message"]] if (each := status.get("progress")) is not None else []
        return _build_text_response(200 if unready_reason is None else 503, "".join(f"{line}\n" for line in lines))

    async def _find_unready_reason(self) -> str | None:
        if self.recorder is not None:
            await self.recorder.wait_for_check()
        return find_unready_reason(self.tree, self.recorder)


async def _has_client_left(scope: Scope) -> bool:
    """Return whether the client of a GET request has closed the connection, as far as the event loop has noticed."""
    if scope["method"] != "GET":
        return False
    await asyncio.sleep(0)  # gives the event loop time to process a close
    return bool(scope.get("extensions", {}).get(CLIENT_GONE, bool)())


async def _has_client_received(scope: Scope) -> bool:
    """Wait until the client has received all data, and return True.

    Return False if the client closes the connection first or is too slow.
    """
    is_received, loop = scope.get("extensions", {}).get(CLIENT_RECEIVED, lambda: True), asyncio.get_running_loop()
    deadline_s = loop.time() + CLIENT_TIMEOUT_S
    while (found := is_received()) is None and loop.time() < deadline_s:  # noqa: ASYNC110 - the transport has no event
        await asyncio.sleep(_POLL_S)
    return bool(found)


# Files that the endpoint reads from the disk for each request


class ServedFiles:
    """Serves the files below a folder. If a path or a symlink leads outside the folder, the response is 404."""

    def __init__(self, root: Path, *, cache_control: bytes) -> None:
        self._root, self._cache_control = root, cache_control

    # Not async, so that Starlette runs it in a thread and a slow disk does not block other requests.
    def serve(self, request: Request) -> Response:
        return self.serve_file(request.path_params["path"], request)

    def serve_file(self, path: str, request: Request) -> Response:
        """Serve the file at ``path`` below the folder. ``path`` may differ from the path in the request."""
        try:
            if (found := find_file_below(self._root.resolve(), path)) is None:
                return NOT_FOUND
            status = found.stat()
        except OSError as error:  # ABSENT: the file was removed after `find_file_below` found it
            return NOT_FOUND if error.errno in ABSENT else UNAVAILABLE
        response = FileResponse(
            found,
            headers={"content-type": find_artifact_type(found.name), "cache-control": self._cache_control.decode()},
            stat_result=status,
        )
        etag = response.headers["etag"].encode()
        if any(name == b"if-none-match" and matches_etag(value, etag) for name, value in request.scope["headers"]):
            return Reply(304, [(b"etag", etag), (b"cache-control", self._cache_control)])
        return response


def _find_missing_file(boot_folder: Path, assets: Path | None, needed_file: NeededFile) -> str | None:
    """Return why a boot cannot use a file that the boot needs.

    Return None if the file is usable, or if the file is an asset and this endpoint does not serve assets.
    """
    asset = needed_file.path.removeprefix("assets/")
    folder = boot_folder if asset == needed_file.path else assets
    if folder is None:
        return None
    size = None
    with suppress(OSError):
        found = find_file_below(folder.resolve(), asset)
        size = found.stat().st_size if found is not None else None
    if size is None:
        return f"{needed_file.path} is missing"
    return (
        None
        if needed_file.size in (None, size)
        else f"{needed_file.path} has {size} bytes, but the image states {needed_file.size}"
    )


def _parse_client_request(scope: Scope, client: str | None, at: datetime) -> ClientRequest:
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    return ClientRequest(
        client=client,
        agent=agent.decode("latin-1"),
        query=parse_query(scope["query_string"].decode("latin-1")),
        at=at,
        is_head=scope["method"] == "HEAD",
    )


def _build_disk_boot_reply(boot_script: BootScript, reason: str) -> Reply:
    """Return a script that boots the machine's disk instead, or a 404 response if there is no such script."""
    script = render_disk_boot(boot_script.path, boot_script.machine, escape_comment(reason), boot_script.local_disk)
    return build_file_reply(script.encode(), ContentType.TEXT, UNCACHED) if script is not None else NOT_FOUND


_TEMPORARY_REASONS: Final = (DenialReason.NOT_RECORDED, DenialReason.ANOTHER_SPOOL, DenialReason.NO_KEY)


def _build_withheld_reply(denial: GateDenial) -> Reply:
    """Return the response for withheld data: 503 if an endpoint may serve the data later, and otherwise 404."""
    return RETRY_LATER if denial.reason in _TEMPORARY_REASONS else NOT_FOUND


async def _serve_healthz(_: Request) -> Response:
    return _build_text_response(200, "ok\n")


def _build_text_response(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})


MAX_INVENTORIES_PER_ADDRESS: Final = 60  # the limit per minute for one address; a whole rack may share an address
_MAX_INVENTORIES: Final = 600  # the limit per minute for all addresses together
_MINUTE: Final = timedelta(minutes=1)


class UnknownMachineHandler:
    """Records the requests and inventories of unknown machines.

    gitboot ignores requests from people, from monitors, and from machines that have a document.
    """

    def __init__(self, tree: PublishedTree, recorder: UnknownMachineRecorder) -> None:
        self._tree, self.recorder, self._fetch_filter = tree, recorder, FetchFilter(tree)
        self._minute: int | None = None  # the minute in which the counted inventories were sent
        self._sent_inventories: Counter[str] = Counter()  # the number of inventories in that minute for each network

    def record_request(self, path: str, request: ClientRequest) -> None:
        """Record a request to which the response was 404 or the boot script for unknown machines."""
        if not request.is_head and request.client is not None and self._is_from_machine(request, Role.BOOT_SCRIPT):
            self._record(parse_unknown_machine(path, request.query, request.client, request.at))

    async def record_inventory(self, read_body: ReadBody, request: ClientRequest) -> Reply:
        """Record an inventory and return the response.

        The response does not reveal whether the machine has a document.
        """
        if request.client is None or not self._is_from_machine(request, Role.DATA):
            return NOT_FOUND
        if not self.recorder.is_forwarded:
            return RETRY_LATER  # the machine sends the inventory again later
        minute = int(request.at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent_inventories = minute, Counter()
        network = get_client_network(request.client)
        is_allowed = (
            self._sent_inventories[network] < MAX_INVENTORIES_PER_ADDRESS
            and self._sent_inventories.total() < _MAX_INVENTORIES
        )
        self._sent_inventories[network] += is_allowed
        if not is_allowed:
            return TOO_MANY_REQUESTS
        content = bytearray()
        if (refusal := await read_body(MAX_INVENTORY_BYTES, content.extend)) is not None:
            return refusal
        path = INVENTORY_PATH.removeprefix("/")
        try:
            self._record(build_from_inventory(parse_inventory(bytes(content)), path, request.client, request.at))
        except ValueError as error:
            return build_file_reply(f"{error}\n".encode(), ContentType.TEXT, UNCACHED, status=400)
        return NO_CONTENT

    def _is_from_machine(self, request: ClientRequest, role: Role) -> bool:
        return self._fetch_filter.find_reason_to_ignore(request.client, request.agent, request.query, role) is None

    def _record(self, machine: UnknownMachine | None) -> None:
        if machine is not None and (found := match_documents(self._tree, machine)) is not None:
            self.recorder.add(found)


class ClientRules(Struct, frozen=True, kw_only=True):
    """The rules for clients: which proxies may report client addresses, and which clients count as operators."""

    trusted_proxies: Iterable[Network] = ()  # the proxies whose X-Forwarded-For header gitboot reads
    operators: Iterable[Network] = LOOPBACK
    # the host names by which operators may open the endpoint; they may also use IP addresses
    names: tuple[str, ...] = ()
    tokens: Tokens | None = None  # tokens for programs, which may read operators' pages from any address
    operators_socket: tuple[str, int] | None = None  # a separate socket for operators; None: one socket for all clients
    certificate: Certificate | None = None  # for the socket for operators; None: no TLS
    machines_tls_socket: tuple[str, int] | None = None  # a TLS socket that only machines use; None: there is none
    machines_certificate: Certificate | None = None  # the certificate for that socket
    max_idle: int = MAX_IDLE  # the maximum number of idle connections from one address
    webhooks: Webhooks | None = None  # webhooks of forges; None: webhooks are rejected
    # records the requests of unknown machines
    unknown_recorder: UnknownMachineRecorder = field(default_factory=UnknownMachineRecorder)
