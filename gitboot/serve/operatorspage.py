"""The page that operators look at: files of the package, and the data that was published for it beside the API."""

from __future__ import annotations

import re
from functools import partial
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gitboot.render.page import DATA, MADE_OF, SCRIPT, static
from gitboot.serve.reply import NOT_FOUND, NOT_YET
from gitboot.serve.tree import PublishedTree

PAGE: Final = "/page/"
LEADS_TO_PAGE: Final = ("/", "/page")
_DATA: Final = re.compile(r"fleet|shard/[0-9a-f]{2}|server/[a-z0-9][a-z0-9.-]*")
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
        found = tree.read(f"{DATA}{name}.js") if _DATA.fullmatch(name) else None
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
        if tree.read(f"{DATA}fleet.js") is None:
            return PlainTextResponse(_OFF, headers={"cache-control": "no-store"})
        told = f"The page for operators is at {PAGE}\n"
        return PlainTextResponse(told, 302, headers={"cache-control": "no-store", "location": PAGE.lstrip("/")})

    leading = [Route(path, lead) for path in LEADS_TO_PAGE]
    beside = [Route(f"{PAGE}{name}", partial(_file, name)) for name in MADE_OF if name != "index.html"]
    page = Route(PAGE, partial(_file, "index.html"))
    return [*leading, page, *beside, Route(f"{PAGE}data/{{name:path}}.js", data)]


def _file(name: str, _: Request) -> Response:
    return Response(static(name), headers={**_HEADERS, "content-type": MADE_OF[name]})
