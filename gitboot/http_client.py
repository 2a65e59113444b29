"""HTTP requests with a deadline, size limits, and a rule for credentials.

Every HTTP request that gitboot makes itself uses `HttpClient`. Redfish requests use sushy, whose connections obey the
same `RequestLimits` (`gitboot.bmc.redfish.transport`). For other libraries see docs/reference/limits.md.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property
from http.client import HTTPException, HTTPResponse, IncompleteRead
from ipaddress import ip_address, ip_network
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from msgspec import Struct
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, HTTPError, NameResolutionError, NewConnectionError

from gitboot import __version__
from gitboot.errors import HostUnreachable, UsageError
from gitboot.text import redact_url

TOTAL_S: Final = 30.0  # time limit for a request and its complete response, unless the caller sets a deadline
MAX_ANSWER_BYTES: Final = 1 << 20  # maximum size of a response that is read completely, unless the caller sets a limit
# maximum size of status lines and headers, including 1xx responses; nginx allows 8 KiB
MAX_HEAD_BYTES: Final = 256 << 10
# Maximum size of chunk sizes, chunk extensions and trailers, in addition to one byte for each byte of a body.
_FRAMING_BYTES: Final = 64 << 10
_CONNECT_S: Final = 10.0  # time limit for the connection to one address of a host
_SEND_BYTES: Final = 16 << 10  # the size of one TLS record, RFC 8446, 5.1
_MAX_POOLS: Final = 64  # number of hosts whose connections stay open
_MAX_DETAIL_LENGTH: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REDIRECT_SCHEMES: Final = (("http", "http"), ("http", "https"), ("https", "https"))
_REPEATABLE: Final = ("GET", "HEAD")
_DISCONNECTED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
# A caller must pass these headers as ``credentials``.
_SECRET_HEADERS: Final = frozenset(
    {"authorization", "cookie", "job-token", "private-token", "proxy-authorization", "x-auth-token"}
)

# Ignore the log of urllib3, which also raises each logged error. Without a handler, Python would print texts from a
# server to stderr.
logging.getLogger("urllib3").addHandler(logging.NullHandler())


class RedirectRefused(HostUnreachable):
    """A server redirects too often, or redirects to a URL that gitboot does not request."""


class _RequestTooSlow(TimeoutError):
    """A request exceeded its deadline."""


class _AnswerTooLarge(OSError):
    """A response exceeds its size limit."""


class _CredentialsWithheld(OSError):
    """A request with credentials would go to another machine without TLS."""


# Limits


class MinimumRate(Struct, frozen=True, kw_only=True):
    """The minimum download rate: a number of bytes that must arrive in each period of waiting for the server."""

    size_bytes: int = 60 << 10
    period_s: float = 60.0


SLOWEST_DOWNLOAD: Final = MinimumRate()  # 1 KiB/s, as suggested for --speed-limit in the manual of curl


class RequestLimits:
    """The time and the number of bytes that remain for one request, including its redirects."""

    def __init__(
        self,
        *,
        deadline_s: float,
        connect_s: float = _CONNECT_S,
        rate: MinimumRate | None = None,
    ) -> None:
        """Set the limits. ``connect_s`` is the time limit for the connection to each address, in seconds.

        With a ``rate``, the deadline does not apply to the body.
        """
        self._deadline_s = deadline_s
        self._ends_s = time.monotonic() + deadline_s
        self._rate = rate
        self._is_body = False  # whether the response has reached its body
        self._waited_s, self._arrived_bytes = 0.0, 0  # in the current period of the rate
        self.connect_s = connect_s
        self._allowance = 0  # the number of bytes that gitboot may still receive
        self.is_loopback_only = False  # whether the request may be sent only to this machine
        self.is_fresh = False  # whether the request has opened a new connection

    def remaining_s(self) -> float:
        """Return the number of seconds that the next step may take. Raises TimeoutError if no time remains."""
        left_s = self._compute_left_s()
        if left_s <= 0:
            raise _RequestTooSlow(self.timeout_message)
        return left_s

    @property
    def has_ended(self) -> bool:
        """Return whether the time for the request has passed."""
        return self._compute_left_s() <= 0

    def _compute_left_s(self) -> float:
        if self._is_body and self._rate is not None:
            return self._rate.period_s - self._waited_s
        return self._ends_s - time.monotonic()

    @property
    def timeout_message(self) -> str:
        """The error message for a request that exceeded its time limit."""
        if self._is_body and self._rate is not None:
            return f"the host sent less than {self._rate.size_bytes} bytes in {self._rate.period_s:g} s"
        return f"the response was not complete after {self._deadline_s:g} s"

    def begin_answer(self) -> None:
        """Start counting the bytes of the status line and the headers of a response."""
        self._allowance = MAX_HEAD_BYTES
        self.is_fresh = False

    def begin_body(self, size_bytes: int) -> None:
        """Start counting the next ``size_bytes`` of a body, including the bytes of the HTTP framing."""
        if not self._is_body:
            self._is_body = True
            self._waited_s, self._arrived_bytes = 0.0, 0  # the headers do not count
        self._allowance = 2 * size_bytes + _FRAMING_BYTES

    def count(self, size_bytes: int, waited_s: float) -> None:
        """Count received bytes and the time spent waiting for them. Raises OSError if a limit is exceeded."""
        self._allowance -= size_bytes
        if self._allowance < 0 and self._is_body:
            raise _AnswerTooLarge("the response body contains too many HTTP framing bytes")
        if self._allowance < 0:
            raise _AnswerTooLarge("the host sent too many headers")
        self._waited_s += waited_s
        self._arrived_bytes += size_bytes
        if self._rate is not None and self._arrived_bytes >= self._rate.size_bytes:
            self._waited_s, self._arrived_bytes = 0.0, 0


_limits: ContextVar[RequestLimits] = ContextVar("this thread is not making a request")


def current_limits() -> RequestLimits:
    """Return the limits of the request that this thread is making."""
    return _limits.get()


@contextmanager
def apply_limits(limits: RequestLimits) -> Iterator[None]:
    """Apply the limits to the connections that this thread uses within the block."""
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)


# Connections


def resolve_host(host: str, port: int, limits: RequestLimits) -> list[str]:
    """Return the IP addresses of a host, in the system's order and without duplicates.

    The system's resolver has no deadline, so gitboot runs the resolver in a thread, and stops waiting for the thread
    when no time remains. Raises TimeoutError in that case, and OSError if the resolver fails.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]
    results: SimpleQueue[list[Any] | OSError] = SimpleQueue()

    def look_up() -> None:
        try:
            results.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            results.put(error)
        except UnicodeError:  # a label that is empty or longer than 63 characters
            results.put(socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host name"))

    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    try:
        result = results.get(timeout=limits.remaining_s())
    except Empty:
        raise _RequestTooSlow(limits.timeout_message) from None
    if isinstance(result, OSError):
        raise result
    addresses = (str(socket_address[0]) for *_, socket_address in result)
    return list(dict.fromkeys(addresses))


class _LimitedStream(io.RawIOBase):
    """The bytes that a socket receives, counted and limited by the limits of the request."""

    def __init__(self, stream: io.RawIOBase, sock: socket.socket, limits: RequestLimits) -> None:
        self._stream, self._socket, self._limits = stream, sock, limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._limits.remaining_s())
        began_s = time.monotonic()
        size = self._stream.readinto(buffer)
        self._limits.count(size or 0, time.monotonic() - began_s)
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()


class _LimitedResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_LimitedStream(self.fp.detach(), sock, current_limits()))


class LimitedConnection(HTTPConnection):
    """A connection that applies the limits of the request to each step: name resolution, TCP, TLS, sending and
    receiving.
    """

    response_class = _LimitedResponse

    def addresses(self, host: str) -> list[str]:
        """Return the IP addresses of a host, in the order in which gitboot tries them.

        Raises OSError if the host cannot be resolved.
        """
        return resolve_host(host, self.port, current_limits())

    def _new_conn(self) -> socket.socket:
        limits = current_limits()
        limits.is_fresh = True
        name = self._dns_host
        last_error: HTTPError | None = None
        try:
            addresses = self.addresses(name.strip("[]"))
            for number, address in enumerate(addresses):
                # Divide the time, so that there is time for the other addresses if an address does not respond.
                share_s = limits.remaining_s() / (len(addresses) - number)
                self._dns_host, self.timeout = address, min(share_s, limits.connect_s)
                try:
                    connected = super()._new_conn()
                except HTTPError as error:
                    last_error = error
                else:
                    connected.settimeout(limits.remaining_s())  # this timeout applies to the whole TLS handshake
                    return connected
        except socket.gaierror as error:
            raise NameResolutionError(name, self, error) from error
        finally:
            self._dns_host = name
        raise last_error or OSError(f"{name} has no address")

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        limits = current_limits()
        if limits.is_loopback_only and not is_loopback(str(self.sock.getpeername()[0])):
            raise _CredentialsWithheld(
                "gitboot will not send credentials to another machine over an unencrypted connection"
            )
        for first in range(0, len(data), _SEND_BYTES):
            self.sock.settimeout(limits.remaining_s())
            super().send(data[first : first + _SEND_BYTES])


class LimitedTlsConnection(LimitedConnection, HTTPSConnection):
    """A `LimitedConnection` with TLS."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = LimitedConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = LimitedTlsConnection


# URLs and credentials


def split_url(url: str) -> SplitResult:
    """Split the URL of a web server into its parts. Raises `UsageError` for any other URL."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web:
        shown_url = redact_url(url, may_be_path=False)
        raise UsageError(f"{shown_url!r} is not a web URL: expected https:// or http:// followed by a host")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the URL for {parts.hostname} must not contain a user name or password")
    return parts


def format_host(url: str) -> str:
    """Return the host and port in a web server's URL, for use in messages. Raises `UsageError` for any other URL."""
    return split_url(url).netloc


def format_origin(url: str) -> str:
    """Return the URL of a web server without its path.

    Raises `UsageError` if the URL is not the URL of a web server.
    """
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc}"


def parse_origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, the host and the port of a URL (RFC 6454, 4).

    Raises `UsageError` if the URL is not the URL of a web server.
    """
    parts = split_url(url)
    default_port = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or default_port


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: an address of 127.0.0.0/8, ::1, or localhost (RFC 6761, 6.3)."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_credentials(url: str, credential: str = "the token", *, allow_token_over_http: bool = False) -> None:
    """Raise `UsageError` unless gitboot may send credentials to a URL.

    The URL must use https or a loopback address, unless the caller allows http.
    """
    parts = split_url(url)
    if parts.scheme != "https" and not allow_token_over_http and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"gitboot would send {credential} to http://{parts.netloc} unencrypted; use https, or "
            "add --allow-token-over-http if you trust the network"
        )


@cache
def tls_context(*, verify: bool = True, ca: str | None = None) -> ssl.SSLContext:
    """Return a shared TLS context that trusts ``ca`` (PEM).

    If ``ca`` is None, the context trusts the certificates that this machine trusts. Raises `ssl.SSLError` if ``ca``
    contains no certificate.
    """
    # Python ignores an empty `cadata`. The line break makes it an error, like other text without a certificate.
    context = ssl.create_default_context(cadata=f"{ca}\n" if ca is not None else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# Requests


class WebAnswer(Struct, frozen=True, kw_only=True):
    """A complete response, whatever its status."""

    status: int
    json: Any  # None: the body is not JSON
    retry_after_s: int | None = None

    @property
    def detail(self) -> str:
        """The error message in the response, on one line."""
        message = self.json.get("message") or self.json.get("error") if isinstance(self.json, dict) else self.json
        return " ".join(str(message or "").split())[:_MAX_DETAIL_LENGTH]


class AnswerStream:
    """A response whose body is read in pieces. gitboot never decompresses a body."""

    def __init__(
        self, answer: urllib3.BaseHTTPResponse, url: str, final_url: str | None, limits: RequestLimits
    ) -> None:
        self._answer, self._limits = answer, limits
        self._host = format_host(url)
        self.final_url = final_url  # the URL after redirects; None: there was no redirect
        self.status, self.headers = answer.status, answer.headers

    def read(self, size_bytes: int) -> bytes:
        """Return the next ``size_bytes`` of the body, or fewer bytes at the end of the body.

        Raises `HostUnreachable` if the body ends early or arrives too slowly.
        """
        self._limits.begin_body(size_bytes)
        try:
            return self._answer.read(size_bytes, decode_content=False)
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            raise HostUnreachable(f"{self._host}: {_describe_error(error, self._limits)}") from error

    def read_whole(self, max_bytes: int) -> bytes:
        """Return the complete body. Raises `HostUnreachable` if the body is larger than ``max_bytes``."""
        content = b""
        while piece := self.read(max_bytes + 1 - len(content)):
            content += piece
            if len(content) > max_bytes:
                raise HostUnreachable(f"{self._host} sent more than {max_bytes:,} bytes")
        return content

    def close(self) -> None:
        """Close the connection, unless the body was read to its end.

        The unread rest of a body may be gigabytes long.
        """
        if self._answer.length_remaining == 0:
            self._answer.drain_conn()
        else:
            self._answer.close()
        self._answer.release_conn()  # until this call, the pool considers the connection in use


class HttpClient:
    """An HTTP client that keeps connections open. Any thread may use it."""

    def __init__(
        self,
        *,
        ca_bundle: Path | None = None,
        uses_proxies: bool = True,
        allow_token_over_http: bool = False,
        connections_per_host: int = 16,
    ) -> None:
        """Create a client.

        With ``uses_proxies``, the client uses HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Raises `UsageError` if a setting is
        not usable.
        """
        self._ca_bundle, self._uses_proxies = ca_bundle, uses_proxies
        self._allow_token_over_http, self._per_host = allow_token_over_http, connections_per_host
        self._pools: dict[str | None, urllib3.PoolManager] = {}  # connection pools by the URL of the proxy
        self._pools_lock = threading.Lock()
        if ca_bundle is not None:
            _ = self._trust_context

    def check_credentials(self, url: str, credential: str = "the token") -> None:
        """Raise `UsageError` if this client would not send credentials to a URL."""
        check_credentials(url, credential, allow_token_over_http=self._allow_token_over_http)

    def request_json(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        deadline_s: float = TOTAL_S,
        max_bytes: int = MAX_ANSWER_BYTES,
        method: str | None = None,
    ) -> WebAnswer:
        """Send a request and return the JSON response, without following redirects.

        The method is GET by default, or POST if there is a ``body``. Raises `HostUnreachable` if no complete response
        arrives. Raises `UsageError` if the URL or the proxy is not usable, or if gitboot must not send the credentials
        to the URL.
        """
        all_headers = {"Accept": "application/json", **(headers or {})}
        body_bytes = None
        if body is not None:
            body_bytes = json.dumps(body).encode()
            all_headers["Content-Type"] = "application/json"
        method = method or ("GET" if body is None else "POST")
        with self.stream(
            method, url, headers=all_headers, credentials=credentials, body=body_bytes, deadline_s=deadline_s
        ) as answer:
            status = answer.status
            retry_after = answer.headers.get("Retry-After") or ""
            answer_bytes = answer.read_whole(max_bytes)
        answer_json = None
        with suppress(ValueError, RecursionError):
            answer_json = json.loads(answer_bytes)
        retry_after_s = int(retry_after[:6]) if retry_after.isdecimal() else None
        return WebAnswer(status=status, json=answer_json, retry_after_s=retry_after_s)

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate | None = None,
        redirects: int = 0,
    ) -> Iterator[AnswerStream]:
        """Send a request and yield the response, whatever its status.

        The deadline applies to the complete request: name resolution, connection, TLS, redirects, headers and body.
        With a ``rate``, only the rate applies to the body. ``credentials`` are headers that gitboot sends only to the
        origin of ``url``. Without ``redirects``, the method yields a redirect like any other response. Raises
        `HostUnreachable` if the request fails. Raises `UsageError` if the URL or the proxy is not usable, or if gitboot
        must not send the credentials to ``url``.
        """
        if secret_headers := sorted(name for name in headers or {} if name.lower() in _SECRET_HEADERS):
            raise ValueError(f"pass {', '.join(secret_headers)} as credentials")
        credentials = {name: value for name, value in (credentials or {}).items() if value}
        self._check_request_credentials(url, credentials)
        limits = RequestLimits(deadline_s=deadline_s, rate=rate)
        current_url = url
        redirected_to: str | None = None
        for left in range(redirects, -1, -1):
            current_credentials = credentials if parse_origin(current_url) == parse_origin(url) else {}
            is_plain = split_url(current_url).scheme == "http" and not self._allow_token_over_http
            limits.is_loopback_only = is_plain and bool(current_credentials)
            all_headers = {**(headers or {}), **current_credentials}
            urllib3_answer = self._send(method, current_url, all_headers, body, limits)
            answer = AnswerStream(urllib3_answer, current_url, redirected_to, limits)
            try:
                follows_redirect = redirects > 0 and answer.status in _REDIRECTS
                location = answer.headers.get("Location") if follows_redirect else None
                if location is None:
                    yield answer
                    return
                if not left:
                    break
                current_url = redirected_to = _resolve_redirect(current_url, location)
            finally:
                answer.close()
        raise RedirectRefused(f"{format_host(url)}: more than {redirects} redirects")

    def _check_request_credentials(self, url: str, credentials: Mapping[str, str]) -> None:
        if credentials:
            self.check_credentials(url)
        if not all(value.isascii() and value.isprintable() for value in credentials.values()):
            raise UsageError(f"the token for {format_host(url)} must be one line of printable ASCII characters")

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the response without its body. Raises `HostUnreachable` if the request fails."""
        host = format_host(url)
        pool = self._get_pool(url)
        all_headers = {"User-Agent": f"gitboot/{__version__}", "Accept-Encoding": "identity", **headers}
        while True:
            limits.begin_answer()
            try:
                with apply_limits(limits):
                    return pool.request(
                        method,
                        url,
                        body=body,
                        headers=all_headers,
                        redirect=False,
                        retries=False,
                        preload_content=False,
                        decode_content=False,
                        timeout=urllib3.Timeout(limits.remaining_s()),
                        pool_timeout=limits.remaining_s(),
                    )
            except (HTTPError, HTTPException, OSError, ValueError) as error:
                is_disconnected = any(isinstance(cause, _DISCONNECTED) for cause in _list_causes(error))
                if method in _REPEATABLE and not limits.is_fresh and is_disconnected:
                    continue  # the server closed the open connection at the same moment
                raise HostUnreachable(f"{host}: {_describe_error(error, limits)}") from error

    @cached_property
    def _trust_context(self) -> ssl.SSLContext:
        """A TLS context that trusts ``ca_bundle`` and the certificates that this machine trusts.

        The context is cached, because loading the certificates takes 20 ms.
        """
        trusted = ssl.create_default_context()
        if self._ca_bundle is not None:
            try:
                trusted.load_verify_locations(cafile=self._ca_bundle)
            except OSError as error:
                raise UsageError(
                    f"gitboot cannot read certificates from {self._ca_bundle}: {error.strerror}"
                ) from error
        return trusted

    def _get_pool(self, url: str) -> urllib3.PoolManager:
        """Return the open connections for a URL. Raises `UsageError` if the proxy is not usable."""
        proxy = _find_proxy(split_url(url)) if self._uses_proxies else None
        with self._pools_lock:
            if proxy not in self._pools:
                options: dict[str, Any] = {
                    "num_pools": _MAX_POOLS,
                    "maxsize": self._per_host,
                    "block": True,  # the maximum number of connections to a host
                    "ssl_context": self._trust_context,
                }
                pool = urllib3.PoolManager(**options) if proxy is None else _build_proxy_manager(proxy, options)
                pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
                self._pools[proxy] = pool
            return self._pools[proxy]


def _find_proxy(target: SplitResult) -> str | None:
    """Return the URL of the proxy that the environment defines for a target, or None if there is no such proxy."""
    host = target.hostname or ""
    port = target.port or (443 if target.scheme == "https" else 80)
    proxies = getproxies()
    if is_loopback(host) or proxy_bypass(host) or _is_excluded(host, port, proxies.get("no", "")):
        return None
    proxy = proxies.get(target.scheme)
    return f"http://{proxy}" if proxy is not None and "://" not in proxy else proxy


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    """Return whether NO_PROXY contains a host: its address, its network, its name, or a domain, each also with a port.

    Python does not support networks, ``*.DOMAIN``, a dot at the end and the default port, but curl does.
    """
    host = host.rstrip(".")
    for entry in no_proxy.lower().split(","):
        excluded = entry.strip()
        for name in (excluded, excluded.removesuffix(f":{port}").strip("[]")):
            domain = name.removeprefix("*").strip(".")
            with suppress(ValueError):
                if ip_address(host) in ip_network(name, strict=False):
                    return True
            if domain and (host == domain or host.endswith(f".{domain}")):
                return True
    return False


def _build_proxy_manager(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Return a connection pool for a proxy. Raises `UsageError`, without the proxy's password, if that is not possible.

    The user name and the password in the URL are percent-encoded (RFC 3986, 3.2.1).
    """
    if not proxy.startswith("http://"):
        raise UsageError(
            "the proxy in the environment is not an http:// URL, but gitboot supports only http:// proxies"
        )
    try:
        parts = urlsplit(proxy)
        login, _, address = parts.netloc.rpartition("@")
        if not parts.hostname or parts.port == 0 or "@" in proxy.partition(parts.netloc)[2]:
            raise ValueError("there is no host, or an @ after the host")
        decoded_login = unquote_to_bytes(login).decode("latin-1")  # the encoding that urllib3 reverses
        headers = urllib3.make_headers(proxy_basic_auth=decoded_login) if login else None
        return urllib3.ProxyManager(f"http://{address}", proxy_headers=headers, **options)
    except ValueError:
        raise UsageError(
            "the proxy in the environment is not a valid URL: expected http://HOST:PORT, or http://USER:PASSWORD@HOST:"
            "PORT with percent-encoded special characters"
        ) from None


def _resolve_redirect(url: str, location: str) -> str:
    """Return the target of a redirect.

    The target must have the same scheme as the URL, or https if the URL has http.
    """
    try:
        target = urljoin(url, location)
        schemes = split_url(url).scheme, split_url(target).scheme
    except (ValueError, UsageError):
        target, schemes = "", None
    if schemes not in _REDIRECT_SCHEMES:
        raise RedirectRefused(
            f"{format_host(url)} redirects to {redact_url(location, may_be_path=False)[:_MAX_DETAIL_LENGTH]!r}, but "
            "gitboot follows a redirect only to a valid URL with the same scheme, or from http to https"
        )
    return target


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its cause, then the cause of that cause, and so on."""
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _describe_error(error: BaseException, limits: RequestLimits) -> str:
    """Return the text of the cause of an error that helps most, without addresses of Python objects."""
    causes = list(_list_causes(error))
    for cause in causes:
        if isinstance(cause, (_RequestTooSlow, _AnswerTooLarge, _CredentialsWithheld)):
            return str(cause)
    for cause in causes:
        match cause:
            case EmptyPoolError():
                return "all connections to the host were in use until the deadline"
            case NewConnectionError():
                continue  # this subclass of ConnectTimeoutError has another cause
            case ConnectTimeoutError() if not limits.has_ended:
                return "the host did not accept a connection in time"
            case TimeoutError():
                return limits.timeout_message
            case ssl.SSLCertVerificationError():
                return f"certificate verify failed: {cause.verify_message}"
            case IncompleteRead():
                return "the response body ended too early"
            case OSError(strerror=str(message)):
                return message
    return str(causes[-1]).rpartition(">: ")[2].strip() or type(causes[-1]).__name__
