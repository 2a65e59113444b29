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


# Unknown machines


INVENTORY_PATH: Final = "/v1/inventory"
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
        if not self._count_inventory(request.client, request.at):
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

    def _count_inventory(self, client: str, at: datetime) -> bool:
        """Count an inventory from an address. Return False if the inventory exceeds a limit of the current minute."""
        minute = int(at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent_inventories = minute, Counter()
        network = get_client_network(client)
        if self._sent_inventories[network] >= MAX_INVENTORIES_PER_ADDRESS:
            return False
        if self._sent_inventories.total() >= _MAX_INVENTORIES:
            return False
        self._sent_inventories[network] += 1
        return True

    def _is_from_machine(self, request: ClientRequest, role: Role) -> bool:
        return self._fetch_filter.find_reason_to_ignore(request.client, request.agent, request.query, role) is None

    def _record(self, machine: UnknownMachine | None) -> None:
        if machine is not None and (unknown_machine := match_documents(self._tree, machine)) is not None:
            self.recorder.add(unknown_machine)


# Static files


class StaticFolder:
    """Serves the files below a folder. If a path or a symlink leads outside the folder, the response is 404."""

    def __init__(self, root: Path, *, cache_control: bytes) -> None:
        self._root, self._cache_control = root, cache_control

    # Not async, so that Starlette runs it in a thread and a slow disk does not block other requests.
    def serve(self, request: Request) -> Response:
        return self.serve_file(request.path_params["path"], request)

    def serve_file(self, path: str, request: Request) -> Response:
        """Serve the file at ``path`` below the folder. ``path`` may differ from the path in the request."""
        try:
            if (file := find_file_below(self._root.resolve(), path)) is None:
                return NOT_FOUND
            status = file.stat()
        except OSError as error:  # ABSENT: the file was removed after `find_file_below` found it
            return NOT_FOUND if error.errno in ABSENT else UNAVAILABLE
        response = FileResponse(
            file,
            headers={"content-type": find_artifact_type(file.name), "cache-control": self._cache_control.decode()},
            stat_result=status,
        )
        etag = response.headers["etag"].encode()
        if any(name == b"if-none-match" and matches_etag(value, etag) for name, value in request.scope["headers"]):
            return Reply(304, [(b"etag", etag), (b"cache-control", self._cache_control)])
        return response


def find_missing_file(boot_folder: Path, assets: Path | None, needed_file: NeededFile) -> str | None:
    """Return why a boot cannot use a file that the boot needs.

    Return None if the file is usable, or if the file is an asset and this endpoint does not serve assets.
    """
    asset = needed_file.path.removeprefix("assets/")
    folder = boot_folder if asset == needed_file.path else assets
    if folder is None:
        return None
    size_bytes = None
    with suppress(OSError):
        if (file := find_file_below(folder.resolve(), asset)) is not None:
            size_bytes = file.stat().st_size
    if size_bytes is None:
        return f"{needed_file.path} is missing"
    if needed_file.size not in (None, size_bytes):
        return f"{needed_file.path} has {size_bytes} bytes, but the image states {needed_file.size}"
    return None


# The application


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
# the reasons for which an endpoint withholds data that it may serve later
_TEMPORARY_REASONS: Final = (
    DenialReason.NOT_RECORDED,
    DenialReason.ANOTHER_FETCH_LOG,
    DenialReason.SECRET_NOT_DECRYPTED,
)


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
        self._gate = BootGate(tree, recorder, partial(find_missing_file, boot_folder, assets), self.denials, keys)
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
        large_files = StaticFolder(boot_folder / "o", cache_control=FOR_A_YEAR)  # files too large for the cache
        routes = [
            *Api(tree, lambda: tree.clock.choose_time(clock())).routes,
            *build_page_routes(tree),
            Route("/metrics", self._render_metrics_page),
            Route("/healthz", _serve_healthz),
            Route("/readyz", self._serve_readyz),
            Route(_IMMUTABLE + "{path:path}", large_files.serve),
        ]
        if assets is not None:
            assets_folder = StaticFolder(assets, cache_control=REVALIDATED)
            routes.append(Route(_ASSETS + "{path:path}", assets_folder.serve))
            routes.append(Route(_PXELINUX_CORE, partial(assets_folder.serve_file, f"loaders/{PXELINUX_CORE}")))
        self._pages = Router(routes, redirect_slashes=False, default=NOT_FOUND)

    # Responses without Starlette

    def find_cached_reply(self, path: str, headers: Iterable[Header]) -> Reply | None:
        """Return the cached response for a path if it is still valid and does not depend on the client, or None."""
        if not self.tree.can_serve or self.tree.stops_all:
            return None
        response = self._responses.find_cached(path, self._clock())
        if response is None or response.guarded_path is not None or path.removeprefix("/") in FOR_UNKNOWN:
            return None
        return self._count_reply(response.request_kind, _select_reply(response, headers))

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
        if (page := self._find_page(scope)) is not None:
            return page
        if self.operator_access.is_operators_socket(scope.get("server")):  # machines use another socket
            return self._count_reply(RequestKind.NOTHING, NOT_FOUND)
        if self._assets is not None and (path.startswith(_ASSETS) or path == _PXELINUX_CORE):
            return partial(self._serve_route, RequestKind.ARTIFACT)
        if not self.tree.is_ready:
            return self._count_reply(RequestKind.NOTHING, UNAVAILABLE)
        return await self._serve_published_file(scope)

    def _find_page(self, scope: Scope) -> ASGIApp | None:
        """Return the public or operators' page at the path of a request, or the response that rejects the request.

        Return None if the path does not belong to such a page.
        """
        path = scope["path"]
        if path.startswith(_PUBLIC_PATHS):
            return partial(self._serve_route, RequestKind.PAGE)
        if path.startswith(_OPERATOR_PATHS):
            denial = self.operator_access.find_denial(scope, self._find_client(scope))
            if denial is None:
                return partial(self._serve_route, RequestKind.PAGE)
            self.operator_denials[denial] += 1
            return self._count_reply(RequestKind.NOTHING, UNAUTHORIZED if denial is OperatorDenial.TOKEN else NOT_FOUND)
        if path in PAGE_REDIRECTS and self._is_operator(scope):
            return partial(self._serve_route, RequestKind.PAGE)
        return None

    async def _serve_published_file(self, scope: Scope) -> ASGIApp | None:
        """Return the response to a machine's request for a file of the output tree.

        Return None if the client has closed the connection.
        """
        path, at = scope["path"], self._clock()
        response = await self._find_response(scope, at)
        if response is None:
            if path.startswith(_IMMUTABLE):
                return partial(self._serve_route, RequestKind.ARTIFACT)
            self.unknown_machines.record_request(path, _parse_client_request(scope, self._find_client(scope), at))
            return self._count_reply(RequestKind.NOTHING, NOT_FOUND)
        if response.boot_script is not None and (stop_reason := self._find_stop_reason(scope)) is not None:
            return self._count_reply(response.request_kind, _build_disk_boot_reply(response.boot_script, stop_reason))
        if response.guarded_path is not None:
            return await self._serve_guarded_path(response, response.guarded_path, scope, at)
        return self._count_reply(response.request_kind, _select_reply(response, scope["headers"]))

    def _find_stop_reason(self, scope: Scope) -> str | None:
        """Return why an operator has stopped all network boots, or None if they are not stopped.

        Only operators get the operator's name and reason.
        """
        notice = self.tree.stop_orders.current
        if notice is None or not notice.order.everything:
            return None
        return str(notice.order) if self._is_operator(scope) else f"{StopScope.ALL} are stopped"

    async def _handle_post(self, scope: Scope, receive: Receive) -> Reply:
        """Return the response to a POST request: a webhook, an inventory or an installer's report."""
        path, server = scope["path"], scope.get("server")
        read_body = partial(self._bodies.read, receive, self._find_client(scope))
        if path == WEBHOOK_PATH and self._webhooks is not None and not self.operator_access.is_machines_socket(server):
            return self._count_reply(RequestKind.PAGE, await self._webhooks.handle(scope, read_body))
        if self.operator_access.is_operators_socket(server):  # machines use another socket
            return self._count_reply(RequestKind.NOTHING, METHOD_NOT_ALLOWED)
        # without a tree, gitboot does not have the list of expected reports, so installers have to try again
        if not self.tree.is_ready:
            is_expected = path == INVENTORY_PATH or find_non_script_kind(f"boot{path}") in REPORTS
            return self._count_reply(RequestKind.NOTHING, UNAVAILABLE if is_expected else METHOD_NOT_ALLOWED)
        request = _parse_client_request(scope, self._find_client(scope), self._clock())
        if path == INVENTORY_PATH and INVENTORY in self._alias_responses.read_outputs():
            reply = await self.unknown_machines.record_inventory(read_body, request)
            return self._count_reply(RequestKind.INVENTORY, reply)
        response = await self._find_response(scope, request.at)
        guarded_path = response.guarded_path if response is not None else None
        if response is None or guarded_path is None or find_non_script_kind(guarded_path.path) not in REPORTS:
            return self._count_reply(RequestKind.NOTHING, METHOD_NOT_ALLOWED)
        return await self._record_report(response, guarded_path, request, read_body)

    async def _record_report(
        self, response: BootResponse, guarded_path: GuardedPath, request: ClientRequest, read_body: ReadBody
    ) -> Reply:
        """Read and record an installer's report, and return the response."""
        if self._gate.find_reason_to_ignore(guarded_path, request) is not None:
            return self._count_reply(response.request_kind, NOT_FOUND)
        log_tail: deque[int] = deque(maxlen=MAX_LOG_BYTES)
        if (refusal := await read_body(_MAX_REPORT_BYTES, log_tail.extend)) is not None:
            return self._count_reply(RequestKind.NOTHING, refusal)
        is_failure = find_non_script_kind(guarded_path.path) is FAILED
        log_end = format_log_end(bytes(log_tail)) if is_failure else None
        if not await self._gate.record_fetch(guarded_path, request, log_end):
            # the response makes the installer send the report again
            return self._count_reply(RequestKind.NOTHING, RETRY_LATER)
        return self._count_reply(response.request_kind, response.reply)

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

    async def _serve_guarded_path(
        self, response: BootResponse, guarded_path: GuardedPath, scope: Scope, at: datetime
    ) -> ASGIApp | None:
        """Return the boot if the gate allows it and the fetch is recorded, and otherwise a fallback.

        Return None if the client has closed the connection.
        """
        if await _has_client_left(scope):
            return None
        request = _parse_client_request(scope, self._find_client(scope), at)
        try:
            reply = await self._decide_reply(response, guarded_path, scope, request)
        except Exception:
            self._gate.store_outcome(request, Outcome.WITHHELD)
            raise
        self._count_reply(response.request_kind, reply)
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
        self, response: BootResponse, guarded_path: GuardedPath, scope: Scope, request: ClientRequest
    ) -> Reply:
        """Return the content of a guarded path, or a fallback if the gate withholds the content."""
        if guarded_path.role is Role.SEALED:
            secret = await self._gate.decrypt_secret(guarded_path, request, bytes(response.reply.body))
            if isinstance(secret, GateDenial):
                return _build_withheld_reply(secret)
            return build_file_reply(secret, response.content_type, UNCACHED)
        denial = await self._gate.find_denial(guarded_path, request)
        if denial is None:
            return response.reply
        if response.hop is not None and is_redirected(denial, guarded_path, request):
            return build_file_reply(response.hop, response.content_type, UNCACHED)
        if guarded_path.role in (Role.DATA, Role.REPORT):
            return _build_withheld_reply(denial)
        if (fallback := response.fallback) is None:
            return NOT_FOUND
        if guarded_path.role is Role.BOOT_SCRIPT:
            detail = denial.detail if self._is_operator(scope) else describe_denial(denial.reason)
            fallback = add_explanation(fallback, GateDenial(denial.reason, detail), guarded_path.server)
        return build_file_reply(fallback, response.content_type, UNCACHED)

    def _count_reply(self, kind: RequestKind, reply: Reply) -> Reply:
        self.requests[kind, reply.status_code] += 1
        return reply

    def _find_client(self, scope: Scope) -> str | None:
        return find_client_address(scope, self._is_trusted)

    def _is_operator(self, scope: Scope) -> bool:
        return self.operator_access.find_denial(scope, self._find_client(scope)) is None

    # Responses by Starlette

    async def _serve_route(self, kind: RequestKind, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a page or a static file with Starlette, and count the request."""
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
        status_code = 200 if unready_reason is None else 503
        if not self._is_operator(request.scope):
            return _build_text_response(status_code, "ready\n" if unready_reason is None else "not ready\n")
        lines = [unready_reason or "ready"]
        if (notice := self.tree.stop_orders.current) is not None:
            lines.append(str(notice.order))
        status = self.tree.read_status()
        lines += [each["message"] for each in status["conditions"] if each["type"] == STATUS_CURRENT]
        if (progress := status.get("progress")) is not None:
            lines.append(progress["message"])
        return _build_text_response(status_code, "".join(f"{line}\n" for line in lines))

    async def _find_unready_reason(self) -> str | None:
        if self.recorder is not None:
            await self.recorder.wait_for_check()
        return find_unready_reason(self.tree, self.recorder)


async def _has_client_left(scope: Scope) -> bool:
    """Return whether the client of a GET request has closed the connection, as far as the event loop has noticed."""
    if scope["method"] != "GET":
        return False
    await asyncio.sleep(0)  # gives the event loop time to process a close
    return bool(scope.get("extensions", {}).get(CLIENT_GONE, lambda: False)())


async def _has_client_received(scope: Scope) -> bool:
    """Wait until the client has received all data, and return True.

    Return False if the client closes the connection first or is too slow.
    """
    has_received = scope.get("extensions", {}).get(CLIENT_RECEIVED, lambda: True)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + CLIENT_TIMEOUT_S
    while (is_received := has_received()) is None and loop.time() < deadline_s:  # noqa: ASYNC110 - no event for this
        await asyncio.sleep(_POLL_S)
    return bool(is_received)


def _select_reply(response: BootResponse, headers: Iterable[Header]) -> Reply:
    """Return the response, the part of it that the client requests, or a 304 response to a client that has the file."""
    if response.etag is None or response.not_modified is None:
        return response.reply
    range_header, has_other_version = b"", False
    for name, value in headers:
        if name == b"if-none-match" and matches_etag(value, response.etag):
            return response.not_modified
        if name == b"range" and response.allows_ranges:
            range_header = value
        if name == b"if-range" and value != response.etag:
            has_other_version = True  # the client has a part of a different version of the file (RFC 9110, 13.1.5)
    return select_range(response.reply, range_header) if range_header and not has_other_version else response.reply


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


def _build_withheld_reply(denial: GateDenial) -> Reply:
    """Return the response for withheld data: 503 if an endpoint may serve the data later, and otherwise 404."""
    return RETRY_LATER if denial.reason in _TEMPORARY_REASONS else NOT_FOUND


async def _serve_healthz(_: Request) -> Response:
    return _build_text_response(200, "ok\n")


def _build_text_response(status: int, text: str) -> Response:
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})
