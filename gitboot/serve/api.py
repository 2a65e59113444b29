"""The operators' API: what is planned for each server, and how the instance fares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gitboot.canonical import canonical
from gitboot.errors import UsageError
from gitboot.observe.undescribed import UnknownMachines
from gitboot.render.paths import is_immutable
from gitboot.render.state import PublishedServer, turn_of
from gitboot.serve.described import shown_unknown
from gitboot.serve.pages import ROOT, Pages, selection
from gitboot.serve.reply import NOT_FOUND, NOT_YET
from gitboot.serve.tree import PublishedTree
from gitboot.text import printable_lines


class Api:
    """The pages below /api/v1/. None is async: Starlette runs them in threads, where they hold up nobody else."""

    def __init__(self, tree: PublishedTree, root: Path, clock: Callable[[], datetime]) -> None:
        self._tree, self._clock = tree, clock
        self._pages, self._paging = Pages(tree, root), threading.Lock()
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
            return _json(self._pages.page(wanted))

    def one_server(self, request: Request) -> Response:
        return self._of_server(request, lambda state: _server(state, self._clock()))

    def plan(self, request: Request) -> Response:
        return self._of_server(request, lambda state: state.plan)

    def one_status(self, _: Request) -> Response:
        return _json(canonical(self._tree.status()))

    def seen(self, _: Request) -> Response:
        return _json(canonical(seen_facts(shown_unknown(self._tree) or UnknownMachines())))

    def openapi(self, _: Request) -> Response:
        from gitboot.serve.openapi import openapi

        return _json(canonical(openapi()))

    def _of_server(self, request: Request, answer: Callable[[PublishedServer], Mapping[str, Any]]) -> Response:
        if not self._tree.is_ready:
            return NOT_YET
        name = request.path_params["name"]
        located = self._tree.server(name) if "/" not in name else None
        return NOT_FOUND if located is None else _json(canonical(answer(located.state)))


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
