"""Operator API below /api/v1/, the web page for operators, and webhooks for Git forges."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from gitboot import __version__
from gitboot.endpoint.connections import FORBIDDEN, NO_CONTENT, NOT_FOUND, RETRY_LATER, UNAVAILABLE, ReadBody, Reply
from gitboot.endpoint.served_files import PublishedTree, Signature, read_signature, read_unknown_machines
from gitboot.errors import UsageError
from gitboot.fetchlog.unknown_machines import UnknownMachines
from gitboot.jsonio import encode_canonical
from gitboot.render.endpoint_files import PublishedServer, find_version, parse_state, parse_state_path, state_path
from gitboot.render.page import PAGE_CONTENT_TYPES, SCRIPT, read_page_file
from gitboot.render.paths import PAGE_DATA, is_immutable
from gitboot.text import printable_lines

API_ROOT: Final = "/api/v1"
MAX_PAGE_ITEMS: Final = 500  # the maximum number of servers in one response
FILTERS: Final = ("site", "role", "phase", "image", "step")

_MAX_CACHED_ITEMS: Final = 10_000  # an item has about 600 bytes
_ITEM_KEYS: Final = (
    *("server", "uuid", "macs", "phase", "cause", "policy", "maintenance", "image", "version", "nextTransition"),
    *("site", "role", "labels", "step", "installing"),
)


class _Item(Struct, frozen=True):
    """A server in the list of servers: its JSON, and the values that filters compare."""

    signature: Signature  # the signature of the file with the server's state
    content: bytes
    fields: Mapping[str, str | None]
    labels: Mapping[str, str]


class Api:
    """The handlers for the routes below /api/v1/.

    The handlers are not async, so Starlette runs them in threads. A slow handler does not block other requests.
    """

    def __init__(self, tree: PublishedTree, clock: Callable[[], datetime]) -> None:
        self._tree = tree
        self._list_lock = threading.Lock()  # protects _names and _items
        self._names: tuple[Signature | None, list[str]] = (None, [])
        self._items: OrderedDict[str, _Item] = OrderedDict()

        def format_now(state: PublishedServer) -> Mapping[str, Any]:
            return _format_server(state, clock())

        self.routes = [
            Route(f"{API_ROOT}/servers", self.list_servers),
            Route(f"{API_ROOT}/servers/{{name}}", partial(self.show_server, format_now)),
            Route(f"{API_ROOT}/servers/{{name}}/plan", partial(self.show_server, lambda state: state.plan)),
            Route(f"{API_ROOT}/status", self.show_status),
            Route(f"{API_ROOT}/seen", self.list_unknown_machines),
            Route(f"{API_ROOT}/openapi.json", lambda _: _build_json_response(build_openapi())),
        ]

    def list_servers(self, request: Request) -> Response:
        if not self._tree.is_ready:
            return UNAVAILABLE
        try:
            query = parse_selection(request.query_params.multi_items())
        except UsageError as error:
            return Response(f"{error}\n", 400, headers={"cache-control": "no-store"}, media_type="text/plain")
        with self._list_lock:
            # one more server than the page has, which shows whether there is another page
            selected = list(islice(self._select_items(query), query.limit + 1))
        page = selected[: query.limit]
        last_name = page[-1][0] if len(selected) > query.limit else None
        items = b",".join(item.content for _, item in page)
        return _build_json_response(
            b'{"apiVersion":"gitboot.dev/v1alpha1","continue":%b,"items":[%b]}' % (encode_canonical(last_name), items)
        )

    def _select_items(self, query: Selection) -> Iterator[tuple[str, _Item]]:
        """Yield the name and the item of each server after the previous page that matches, sorted by name."""
        for name in self._list_names():
            item = self._read_item(name) if name > query.after else None
            if item is not None and query.matches(item):
                yield name, item

    def show_server(self, format_content: Callable[[PublishedServer], Mapping[str, Any]], request: Request) -> Response:
        if not self._tree.is_ready:
            return UNAVAILABLE
        name = request.path_params["name"]
        located = self._tree.read_server(name) if "/" not in name else None
        if located is None:
            return NOT_FOUND
        return _build_json_response(encode_canonical(format_content(located.state)))

    def show_status(self, _: Request) -> Response:
        return _build_json_response(encode_canonical(self._tree.read_status()))

    def list_unknown_machines(self, _: Request) -> Response:
        unknown_machines = read_unknown_machines(self._tree) or UnknownMachines()
        return _build_json_response(encode_canonical(format_unknown_machines(unknown_machines)))

    def _list_names(self) -> list[str]:
        """Return the sorted names of all servers. gitboot reads their folder again only after it has changed."""
        folder = f"{self._tree.root}/ops/servers"
        signature = read_signature(folder)
        if self._names[0] != signature or signature is None:
            files: list[str] = []
            with suppress(OSError):
                files = os.listdir(folder)
            names = (parse_state_path(f"ops/servers/{file}") for file in files)
            self._names = signature, sorted(name for name in names if name is not None and not name.startswith("."))
        return self._names[1]

    def _read_item(self, name: str) -> _Item | None:
        known = self._items.get(name)
        path = state_path(name)
        if known is not None and known.signature == read_signature(f"{self._tree.root}/{path}"):
            self._items.move_to_end(name)
            return known
        self._items.pop(name, None)
        if (file := self._tree.read(path)) is None:
            return None
        summary: Mapping[str, Any] = parse_state(file.content).summary
        item = _Item(
            file.signature,
            # Earlier versions wrote server states without the field "installing".
            encode_canonical({"name" if key == "server" else key: summary.get(key) for key in _ITEM_KEYS}),
            {field: summary[field] for field in FILTERS},
            summary["labels"],
        )
        self._items[name] = item
        if len(self._items) > _MAX_CACHED_ITEMS:
            self._items.popitem(last=False)
        return item


@cache
def build_openapi() -> bytes:
    """Return the OpenAPI 3.1 document that describes this API, as JSON."""
    import yaml  # gitboot imports yaml here, because the module needs memory and most processes only serve boots

    document = yaml.safe_load(Path(__file__).with_name("openapi.yaml").read_text())
    document["info"]["version"] = __version__
    return encode_canonical(document)


def format_unknown_machines(table: UnknownMachines) -> dict[str, Any]:
    """Return the unknown machines as JSON values, in the format that `gitboot unknown-machines` prints."""
    return {
        "apiVersion": "gitboot.dev/v1alpha1",
        "items": [machine.facts() for machine in table.machines],
        "unkept": table.dropped_count,
    }


def _format_server(state: PublishedServer, at: datetime) -> dict[str, Any]:
    digests: dict[str, str | None] = {}
    for path, versions in state.paths.items():
        version, _ = find_version(versions, at)
        if version is not None:
            digests[path] = version.content
    digests |= {path: file.sha256 for path, file in state.files.items() if is_immutable(path)}
    files = {path: digest for path, digest in digests.items() if digest is not None}
    facts = {key: value for key, value in state.summary.items() if key != "server"}
    return {"apiVersion": "gitboot.dev/v1alpha1", "name": state.server, **facts, "files": files}


def _build_json_response(content: bytes) -> Response:
    """Return a JSON response. Escape terminal control characters, because people call the API with curl."""
    return Response(
        printable_lines(content.decode()).encode(),
        headers={"content-type": "application/json", "cache-control": "no-store"},
    )


# Pages of the list of servers


class Selection(Struct, frozen=True, kw_only=True):
    """The criteria by which a list request selects servers."""

    limit: int = MAX_PAGE_ITEMS
    after: str = ""  # the last name of the previous page
    fields: tuple[tuple[str, str], ...] = ()  # pairs of a field's name and its required value
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, item: _Item) -> bool:
        return all(item.fields[name] == value for name, value in self.fields) and all(
            item.labels.get(key) == value for key, value in self.labels
        )


def parse_selection(parameters: Iterable[tuple[str, str]]) -> Selection:
    """Parse the query parameters of a list request. Raises UsageError for an unknown or malformed parameter."""
    limit, after = MAX_PAGE_ITEMS, ""
    fields, labels = list[tuple[str, str]](), list[tuple[str, str]]()
    for name, value in parameters:
        key, equals, label_value = value.partition("=")
        # at most three digits, because Python's int rejects texts with more than 4,300 digits
        if name == "limit" and re.fullmatch("[0-9]{1,3}", value) and 1 <= int(value) <= MAX_PAGE_ITEMS:
            limit = int(value)
        elif name == "continue":
            after = value
        elif name in FILTERS:
            fields.append((name, value))
        elif name == "label" and key and equals:
            labels.append((key, label_value))
        else:
            known = ", ".join(("limit", "continue", *FILTERS, "label"))
            raise UsageError(
                f"{name}={value}: expected one of {known}; `limit` must be a number from 1 to {MAX_PAGE_ITEMS}, and "
                "`label` must have the form KEY=VALUE"
            )
    return Selection(limit=limit, after=after, fields=tuple(fields), labels=tuple(labels))


# The page for operators

PAGE_PATH: Final = "/page/"
PAGE_REDIRECTS: Final = ("/", "/page")
_DATA_NAME: Final = re.compile(r"fleet|history|(location|shard)/[0-9a-f]{2}|location/shared|server/[a-z0-9][a-z0-9.-]*")
_PAGE_OFF_TEXT: Final = """\
This is gitboot. The operator page is off. To publish the page, add pages to the Fleet's outputs:

    spec:
      outputs: [ipxe, grub, pages]

Until then /page/ shows only the data of the API.
"""
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def build_page_routes(tree: PublishedTree) -> list[Route]:
    """Return the routes of the operators' page, and of its scripts, styles and data.

    The `pages` output publishes the data.
    """

    def serve_data(request: Request) -> Response:
        name = request.path_params["name"]
        file = tree.read(f"{PAGE_DATA}{name}.js") if _DATA_NAME.fullmatch(name) else None
        if file is None:
            return NOT_FOUND
        etag = f'"{sha256(file.content).hexdigest()}"'
        headers = {**_HEADERS, "content-type": SCRIPT, "etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers)

    def redirect_to_page(_: Request) -> Response:
        """Redirect to the operators' page.

        If the page is not published, return a text that explains how to publish the page.
        """
        if not tree.is_ready:
            return UNAVAILABLE
        if tree.read(f"{PAGE_DATA}fleet.js") is None:
            return PlainTextResponse(_PAGE_OFF_TEXT, headers={"cache-control": "no-store"})
        return PlainTextResponse(
            f"The operator page is at {PAGE_PATH}\n",
            302,
            headers={"cache-control": "no-store", "location": PAGE_PATH.lstrip("/")},
        )

    return [
        *(Route(path, redirect_to_page) for path in PAGE_REDIRECTS),
        Route(PAGE_PATH, partial(_serve_page_file, "index.html")),
        *(Route(f"{PAGE_PATH}{name}", partial(_serve_page_file, name)) for name in PAGE_CONTENT_TYPES),
        Route(f"{PAGE_PATH}data/{{name:path}}.js", serve_data),
    ]


def _serve_page_file(name: str, _: Request) -> Response:
    return Response(read_page_file(name), headers={**_HEADERS, "content-type": PAGE_CONTENT_TYPES[name]})


# Webhooks of Git forges

WEBHOOK_PATH: Final = "/hooks/push"
_MAX_WEBHOOK_BYTES: Final = 5 << 20
_FETCH_INTERVAL_S: Final = 2.0  # the minimum time between two fetches
_MIN_SECRET_LENGTH: Final = 16  # characters
_PREFIX: Final = b"sha256="
# Signatures of GitHub and Bitbucket have a prefix, but those of Gitea, Forgejo and Gogs do not. GitLab sends the secret
# itself.
_SIGNATURE_HEADERS: Final = (b"x-hub-signature-256", b"x-gitea-signature", b"x-forgejo-signature", b"x-gogs-signature")
# In x-hub-signature, forges other than Bitbucket send a SHA-1 signature, which gitboot ignores.


class PushSecret:
    """The file that contains the webhook secret. gitboot reads the file again for each request."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> bytes:
        """Return the webhook secret.

        Raises `UsageError` if gitboot cannot read the file, or if the secret is so short that an attacker could guess
        it.
        """
        try:
            secret = self._file.read_bytes().strip()
        except OSError as error:
            raise UsageError(f"--push-secret: {self._file} cannot be read: {error.strerror}") from None
        if len(secret) < _MIN_SECRET_LENGTH:
            raise UsageError(
                f"--push-secret: the secret in {self._file} needs at least {_MIN_SECRET_LENGTH} characters"
            )
        return secret


class Webhooks:
    """Handles webhooks.

    A webhook immediately triggers a fetch of the fleet, but at most one fetch every two seconds.
    """

    def __init__(self, secret: PushSecret, trigger_fetch: Callable[[], None]) -> None:
        self._secret, self._trigger_fetch = secret, trigger_fetch
        self._last_wake_s = -_FETCH_INTERVAL_S
        self._timer: asyncio.TimerHandle | None = None

    async def handle(self, scope: Scope, read_body: ReadBody) -> Reply:
        """Check a webhook's secret, trigger a fetch, and return the response. Do not store the request body."""
        try:
            secret = self._secret.read()
        except UsageError:
            return RETRY_LATER
        digest = hmac.new(secret, digestmod=sha256)
        if (refusal := await read_body(_MAX_WEBHOOK_BYTES, digest.update)) is not None:
            return refusal
        if not _is_signed(scope["headers"], secret, digest.hexdigest().encode()):
            return FORBIDDEN
        if self._timer is None:
            wait_s = max(self._last_wake_s + _FETCH_INTERVAL_S - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._trigger_fetch_now)
        return NO_CONTENT

    def _trigger_fetch_now(self) -> None:
        self._timer, self._last_wake_s = None, time.monotonic()
        self._trigger_fetch()


def _is_signed(headers: Iterable[tuple[bytes, bytes]], secret: bytes, signature: bytes) -> bool:
    """Return whether at least one header proves that the sender has the secret, and no such header is wrong.

    ``signature`` is the correct signature of the request body. The comparisons take constant time.
    """
    proofs = []
    for name, value in headers:
        if name in _SIGNATURE_HEADERS or (name == b"x-hub-signature" and value.startswith(_PREFIX)):
            proofs.append(hmac.compare_digest(value.removeprefix(_PREFIX), signature))
        elif name == b"x-gitlab-token":
            proofs.append(hmac.compare_digest(value, secret))
    return bool(proofs) and all(proofs)
