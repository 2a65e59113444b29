"""The page that operators look at: three files of the package, which read the API and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gitboot.render.page import MADE_OF, static

PAGE: Final = "/page/"
# Nothing but these files runs, whatever a fleet's names say, and the page talks with nobody but its endpoint.
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> list[Route]:
    """The page at `PAGE`, and what it is made of beside it."""
    beside = [Route(f"{PAGE}{name}", partial(_file, name)) for name in MADE_OF if name != "index.html"]
    return [Route(PAGE, partial(_file, "index.html")), *beside]


def _file(name: str, _: Request) -> Response:
    return Response(static(name), headers={**_HEADERS, "content-type": MADE_OF[name]})
