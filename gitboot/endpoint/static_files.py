"""Static files: serve and check files that the endpoint reads from the disk for each request."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from gitboot.endpoint.replies import NOT_FOUND, UNAVAILABLE, Reply, matches_etag
from gitboot.files import ABSENT, find_file_below
from gitboot.render.endpoint_files import NeededFile
from gitboot.render.paths import find_artifact_type


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
