"""HTTP to a BMC, kept within bounds: one kept connection, one shared TLS context, no answer without end.

Left alone, requests loads its CA bundle anew for each connection (17 ms of CPU), waits for ever for a BMC
that sends a byte now and then, reads whatever size it sends, and follows it to any other host.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from functools import cache
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urljoin, urlsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MAX_BODY_BYTES = 1024 * 1024  # the largest ComputerSystem seen has 60 KB
_CHUNK_BYTES = 64 * 1024


class RedirectedElsewhere(RequestException):
    """A BMC that sends its client to another place, or a PATCH to any other place."""


class BodyTooLarge(RequestException):
    """An answer of more than ``MAX_BODY_BYTES``."""


@cache
def tls_context(*, verify: bool = True, ca: str | None = None) -> ssl.SSLContext:
    """The TLS context that all BMCs share which trust one ``ca``, as PEM; None: what this machine trusts."""
    context = ssl.create_default_context(cadata=ca)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class BmcAdapter(HTTPAdapter):
    """Requests' adapter for one BMC: every answer whole, within its time and size, and from that BMC."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def build_connection_pool_key_attributes(
        self, request: PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, {"ssl_context": self._tls} if host["scheme"] == "https" else {}

    def cert_verify(self, *_: Any) -> None:
        """Leave the connection alone: what is trusted stands in the TLS context."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        response = super().send(request, *args, **kwargs)
        try:
            _refuse_redirect(request, response)
            _read_whole(response)
        except BaseException:
            response.close()
            raise
        return response


def _refuse_redirect(request: PreparedRequest, response: Response) -> None:
    if not response.is_redirect:
        return
    url = request.url or ""
    location = response.headers["Location"]
    try:
        target = urljoin(url, location)
        same_place = _origin(target) == _origin(url)
    except ValueError:
        same_place = False
    # requests would repeat a redirected PATCH as a GET, and call that a success.
    if not same_place or request.method != "GET":
        raise RedirectedElsewhere(f"redirected to {location[:200]}", request=request, response=response)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _read_whole(response: Response) -> None:
    body = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"an answer of more than {MAX_BODY_BYTES} bytes", response=response)
    # Where requests itself keeps a body that it has read.
    response._content = bytes(body)
    response.encoding = "utf-8"  # Redfish, DSP0266 6.5; guessing it from garbage takes seconds


class _InTime(io.RawIOBase):
    """A socket's stream that must end ``timeout`` seconds after it was opened, not after its last byte."""

    def __init__(self, stream: io.RawIOBase, sock: socket.socket) -> None:
        self._stream = stream
        self._socket = sock
        self._ends = time.monotonic() + (sock.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        self._socket.settimeout(left)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _TimelyResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_InTime(self.fp.detach(), sock))


class _HttpConnection(HTTPConnection):
    response_class = _TimelyResponse


class _HttpsConnection(HTTPSConnection):
    response_class = _TimelyResponse


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
