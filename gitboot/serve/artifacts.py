"""Files read from a directory when they are asked for: artifacts, in ranges if need be."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from gitboot.assets.below import file_below
from gitboot.render.paths import artifact_type
from gitboot.serve.reply import NOT_FOUND, NOT_YET, Reply, names


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


def size_below(root: Path, path: str) -> int | None:
    """The size of the file at ``path`` that would be answered; None where there is none."""
    with suppress(OSError):
        found = file_below(root.resolve(), path)
        return found.stat().st_size if found is not None else None
    return None
