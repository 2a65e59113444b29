"""The operators' API below /api/v1/, and the page that shows what it has: files of the package, and published data."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
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

from gitboot import __version__
from gitboot.endpoint.connections import NOT_FOUND, NOT_YET
from gitboot.endpoint.served_files import PublishedTree, Signature, shown_unknown, signature
from gitboot.errors import UsageError
from gitboot.fetchlog.unknown_machines import UnknownMachines
from gitboot.jsonio import canonical
from gitboot.render.endpoint_files import PublishedServer, parse, server_of, state_path, turn_of
from gitboot.render.page import (
    MADE_OF,
    SCRIPT,
    static,
)
from gitboot.render.paths import PAGE_DATA, is_immutable
from gitboot.text import printable_lines

ROOT: Final = "/api/v1"
MOST: Final = 500  # on a page
_LIMIT: Final = re.compile("[0-9]{1,3}")  # of more digits than 4,300 Python makes no number
FILTERS: Final = ("site", "role", "phase", "image", "step")

_MOST_HELD: Final = 10_000  # items; one is about 600 bytes
_ITEM: Final = (
    *("server", "uuid", "macs", "phase", "cause", "policy", "maintenance", "image", "version", "nextTransition"),
    *("site", "role", "labels", "step", "installing"),
)


class Api:
    """The pages below /api/v1/. None is async: Starlette runs them in threads, where they hold up nobody else."""

    def __init__(self, tree: PublishedTree, root: Path, clock: Callable[[], datetime]) -> None:
        self._tree, self._root, self._clock = tree, str(root), clock
        self._paging = threading.Lock()  # guards what was read last of the list of servers
        self._names: tuple[Signature | None, list[str]] = (None, [])
        self._items: OrderedDict[str, _Item] = OrderedDict()
        self.routes = [
            Route(f"{ROOT}/servers", self.list_servers),
            Route(f"{ROOT}/servers/{{name}}", self.one_server),
            Route(f"{ROOT}/servers/{{name}}/plan", self.plan),
            Route(f"{ROOT}/status", self.one_status),
            Route(f"{ROOT}/seen", self.seen),
            Route(f"{ROOT}/openapi.json", self.openapi),
        ]

    def list_servers(self, request: Request) -> Response:
        if not self._tree.is_ready:
            return NOT_YET
        try:
            wanted = selection(request.query_params.multi_items())
        except UsageError as error:
            return Response(f"{error}\n", 400, headers={"cache-control": "no-store"}, media_type="text/plain")
        with self._paging:
            return _json(self._page(wanted))

    def one_server(self, request: Request) -> Response:
        return self._of_server(request, lambda state: _server(state, self._clock()))

    def plan(self, request: Request) -> Response:
        return self._of_server(request, lambda state: state.plan)

    def one_status(self, _: Request) -> Response:
        return _json(canonical(self._tree.status()))

    def seen(self, _: Request) -> Response:
        return _json(canonical(seen_facts(shown_unknown(self._tree) or UnknownMachines())))

    def openapi(self, _: Request) -> Response:
        return _json(description())

    def _of_server(self, request: Request, answer: Callable[[PublishedServer], Mapping[str, Any]]) -> Response:
        if not self._tree.is_ready:
            return NOT_YET
        name = request.path_params["name"]
        located = self._tree.server(name) if "/" not in name else None
        return NOT_FOUND if located is None else _json(canonical(answer(located.state)))

    def _page(self, wanted: Selection) -> bytes:
        names = (name for name in self._all_names() if name > wanted.after)
        chosen = ((name, item) for name in names if (item := self._item(name)) is not None and wanted.chooses(item))
        found = list(islice(chosen, wanted.limit + 1))
        more = found[: wanted.limit]
        last = canonical(more[-1][0] if len(found) > wanted.limit else None)
        items = b",".join(item.content for _, item in more)
        return b'{"apiVersion":"gitboot.dev/v1alpha1","continue":%b,"items":[%b]}' % (last, items)

    def _all_names(self) -> list[str]:
        """The names of all servers, sorted; read anew when a state has come, gone or changed."""
        folder = f"{self._root}/ops/servers"
        now = signature(folder)
        if self._names[0] != now or now is None:
            found: list[str] = []
            with suppress(OSError):
                found = [name for each in os.listdir(folder) if (name := server_of(f"ops/servers/{each}")) is not None]
            self._names = now, sorted(name for name in found if not name.startswith("."))
        return self._names[1]

    def _item(self, name: str) -> _Item | None:
        known, path = self._items.get(name), state_path(name)
        if known is not None and known.signature == signature(f"{self._root}/{path}"):
            self._items.move_to_end(name)
            return known
        self._items.pop(name, None)
        if (read := self._tree.read(path)) is None:
            return None
        summary: Mapping[str, Any] = parse(read.content).summary
        item = _Item(
            read.signature,
            # A state of 2fefe59 has no "installing".
            canonical({"name" if key == "server" else key: summary.get(key) for key in _ITEM}),
            {field: summary[field] for field in FILTERS},
            summary["labels"],
        )
        self._items[name] = item
        if len(self._items) > _MOST_HELD:
            self._items.popitem(last=False)
        return item


@cache
def description() -> bytes:
    """Return the description of this API, an OpenAPI 3.1 document, as JSON."""
    import yaml  # takes memory in each process, and most serve boots alone

    document = yaml.safe_load(_DESCRIPTION.read_text())
    document["info"]["version"] = __version__
    return canonical(document)


_DESCRIPTION: Final = Path(__file__).with_name("openapi.yaml")


def seen_facts(table: UnknownMachines) -> dict[str, Any]:
    """Who asked and is described by no document, as `gitboot unknown-machines` says it, too."""
    items = [each.facts() for each in table.machines]
    return {"apiVersion": "gitboot.dev/v1alpha1", "items": items, "unkept": table.unkept}


def _server(state: PublishedServer, at: datetime) -> dict[str, Any]:
    in_place = {path: version.content for path, each in state.paths.items() if (version := turn_of(each, at)[0])}
    content = {path: each.sha256 for path, each in state.files.items() if is_immutable(path)}
    facts = {key: value for key, value in state.summary.items() if key != "server"}
    files = {path: sha for path, sha in {**in_place, **content}.items() if sha is not None}
    return {"apiVersion": "gitboot.dev/v1alpha1", "name": state.server, **facts, "files": files}


def _json(content: bytes) -> Response:
    """Answer JSON, in which what a terminal would obey is escaped: people look at it with curl."""
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    return Response(printable_lines(content.decode()).encode(), headers=headers)


# The list of servers, a page at a time


class Selection(Struct, frozen=True, kw_only=True):
    """Which servers are asked for."""

    limit: int = MOST
    after: str = ""  # the name that the page before ended with
    fields: tuple[tuple[str, str], ...] = ()  # each name with the value that it must have
    labels: tuple[tuple[str, str], ...] = ()

    def chooses(self, item: _Item) -> bool:
        return all(item.fields[name] == value for name, value in self.fields) and all(
            item.labels.get(key) == value for key, value in self.labels
        )


def selection(given: Iterable[tuple[str, str]]) -> Selection:
    """What a query asks for. Raises UsageError for what is no parameter of it."""
    limit, after = MOST, ""
    fields: list[tuple[str, str]] = []
    labels: list[tuple[str, str]] = []
    for name, value in given:
        key, equals, wanted = value.partition("=")
        if name == "limit" and _LIMIT.fullmatch(value) and 1 <= int(value) <= MOST:
            limit = int(value)
        elif name == "continue":
            after = value
        elif name in FILTERS:
            fields.append((name, value))
        elif name == "label" and key and equals:
            labels.append((key, wanted))
        else:
            known = ", ".join(("limit", "continue", *FILTERS, "label"))
            raise UsageError(f"{name}={value}: expected {known}; a limit up to {MOST}, a label as key=value")
    return Selection(limit=limit, after=after, fields=tuple(fields), labels=tuple(labels))


class _Item(Struct, frozen=True):
    # a server of the list, as it is told and as it is found
    signature: Signature
    content: bytes
    fields: Mapping[str, str | None]
    labels: Mapping[str, str]


# The page that operators look at

PAGE: Final = "/page/"
LEADS_TO_PAGE: Final = ("/", "/page")
_DATA: Final = re.compile(r"fleet|(location|shard)/[0-9a-f]{2}|location/shared|server/[a-z0-9][a-z0-9.-]*")
_OFF: Final = """\
This is gitboot. The page for operators is off. To publish the page, add pages to the outputs of the Fleet:

    spec:
      outputs: [ipxe, grub, pages]

Until then /page/ shows only what the API has.
"""
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes(tree: PublishedTree) -> list[Route]:
    """The page at `PAGE`, and what it is made of beside it; its data is there where the Fleet's outputs have it."""

    def data(request: Request) -> Response:
        name = request.path_params["name"]
        found = tree.read(f"{PAGE_DATA}{name}.js") if _DATA.fullmatch(name) else None
        if found is None:
            return NOT_FOUND
        etag = f'"{sha256(found.content).hexdigest()}"'
        headers = {**_HEADERS, "content-type": SCRIPT, "etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers)

    def lead(_: Request) -> Response:
        """Redirect to the page if it is published; else say how to publish it."""
        if not tree.is_ready:
            return NOT_YET
        if tree.read(f"{PAGE_DATA}fleet.js") is None:
            return PlainTextResponse(_OFF, headers={"cache-control": "no-store"})
        told = f"The page for operators is at {PAGE}\n"
        return PlainTextResponse(told, 302, headers={"cache-control": "no-store", "location": PAGE.lstrip("/")})

    leading = [Route(path, lead) for path in LEADS_TO_PAGE]
    beside = [Route(f"{PAGE}{name}", partial(_file, name)) for name in MADE_OF if name != "index.html"]
    page = Route(PAGE, partial(_file, "index.html"))
    return [*leading, page, *beside, Route(f"{PAGE}data/{{name:path}}.js", data)]


def _file(name: str, _: Request) -> Response:
    return Response(static(name), headers={**_HEADERS, "content-type": MADE_OF[name]})
