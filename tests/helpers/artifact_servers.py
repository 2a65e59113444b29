"""A web server of artifacts that can be made to do all that such servers do wrong."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gitboot.jsonio import Digest
from gitboot.resolve.server_decision import BootFile


def digest_of(content: bytes) -> Digest:
    return Digest(sha256(content).hexdigest())


@dataclass
class ArtifactServer:
    """What is served by path, and how."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)  # instead of what is there
    led: dict[str, str] = field(default_factory=dict)  # redirects, by path: where to
    cut: dict[str, int] = field(default_factory=dict)  # after how many bytes a body ends too early
    no_head: bool = False
    no_ranges: bool = False
    no_length: bool = False
    no_version: bool = False
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # (method, path): times
    ranges: list[str] = field(default_factory=list)

    def put(self, path: str, content: bytes, type: str = "application/octet-stream") -> BootFile:
        """Serve a file; return it as an image names it."""
        self.files[path], self.types[path] = content, type
        return BootFile(url=f"{self.url}{path}", sha256=digest_of(content), size=len(content))

    def file(self, path: str, content: bytes = b"") -> BootFile:
        """As an image names a file that may not be there."""
        return BootFile(url=f"{self.url}{path}", sha256=digest_of(content), size=len(content))


@contextmanager
def artifact_server(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[ArtifactServer]:
    served = ArtifactServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path
            served.asked[self.command, path] += 1
            if served.no_head and not body:
                return self._send(405, b"", {})
            if (where := served.led.get(path)) is not None:
                return self._send(302, b"", {"Location": where})
            if path in served.statuses:
                return self._send(served.statuses[path], b"", {})
            if (content := served.files.get(path)) is None:
                return self._send(404, b"", {})
            headers = {"Content-Type": served.types[path]}
            if not served.no_version:
                headers["ETag"] = f'"{digest_of(content)[:16]}"'
            given = self.headers.get("Range")
            if given is None or served.no_ranges:
                return self._send(200, content, headers, body=body, cut=served.cut.get(path))
            served.ranges.append(given)
            first = int(given.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self._send(206, content[first:], headers, body=body)

        def _send(
            self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True, cut: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if served.no_length:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                with suppress(ConnectionError):  # whoever asked does not want the rest
                    self.wfile.write(content[:cut])
            if cut is not None or served.no_length:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.url = f"http{'s' if tls else ''}://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
