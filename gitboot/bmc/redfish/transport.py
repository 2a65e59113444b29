"""HTTP connection to a BMC: address and certificate checks, time limits and redirects."""

from __future__ import annotations

import hashlib
import json
import math
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from msgspec import Struct
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException, TooManyRedirects
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import HTTPResponse as Urllib3Response

from gitboot.bmc.redfish.login import SESSIONS_PATH
from gitboot.errors import BmcNotTrusted, BmcRejected, BmcUnreachable
from gitboot.http_client import (
    MAX_ANSWER_BYTES,
    LimitedConnection,
    LimitedTlsConnection,
    RequestLimits,
    apply_limits,
    current_limits,
    resolve_host,
)
from gitboot.text import redact_url

# the limit for all requests of a task together, which is enough for 30 requests of 10 s each
TASK_TIMEOUT_S: Final = 300.0
MAX_REDIRECTS: Final = 3  # redirects within the BMC, for example because of a missing slash
_READ_METHODS: Final = ("GET", "HEAD")
_CHUNK_BYTES: Final = 64 * 1024
# gitboot needs only the status of these responses, but sushy parses their bodies
_STATUSES_WITH_PARSED_BODY: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.PRECONDITION_FAILED, HTTPStatus.PRECONDITION_REQUIRED}
)


class ResponseSample(Struct, frozen=True, kw_only=True):
    """One measurement of a BMC's response time, or a record that the BMC did not respond."""

    # seconds from the last request to the beginning of its response; None: the BMC did not respond
    latency_s: float | None = None
    is_lost: bool = False  # the BMC did not respond to this task, but responded to the task before


class RequestAborted(RequestException):
    """The error for a request that gitboot itself aborted.

    The code that sent the request then raises an ``error_type`` error.
    """

    def __init__(self, error_type: type[BmcNotTrusted | BmcRejected | BmcUnreachable], message: str) -> None:
        self.error_type = error_type
        super().__init__(message)


class ConnectionPolicy(Struct):
    """The addresses that a connection may use, the certificates that it accepts, and its time limit."""

    is_address_allowed: Callable[[IPv4Address | IPv6Address], bool] = lambda _: True
    # the fingerprint in the document, which the certificate must have; None: any fingerprint
    required_fingerprint: str | None = None
    # The access file with a fingerprint for this BMC, which replaces an authority; None: there is no such fingerprint.
    access_file: str | None = None
    trusted_fingerprint: str | None = None  # the fingerprint in `access_file`
    # A function that gitboot calls right before a change. It raises an error if this instance must not change the BMC.
    fence: Callable[[], None] = lambda: None
    # replaces `fence` for logins, and for requests that only end an override or a session; None: use `fence`
    ending_fence: Callable[[], None] | None = None
    # the fingerprint that the BMC presented at first contact; None: there is no such fingerprint
    pinned_fingerprint: str | None = None
    # The fingerprint that the BMC presented in this connection, if no authority verifies the certificate.
    shown_fingerprint: str | None = None
    # seconds from the last request to the beginning of its response; None: there was no response
    latency_s: float | None = None
    total_s: float = TASK_TIMEOUT_S  # the time limit for all requests in a `measure_requests` block
    deadline_s: float | None = None  # the time on the monotonic clock at which this limit ends
    is_ending: bool = False  # whether the current requests only end an override or a session

    def check_fence(self, *, is_login: bool = False) -> None:
        """Raise `LedgerError` if this instance may no longer change the BMC, because another instance may do so."""
        ending_fence = self.ending_fence if self.is_ending or is_login else None
        (ending_fence or self.fence)()

    @contextmanager
    def mark_as_ending(self) -> Iterator[None]:
        """Mark the requests in the block as requests that only end an override or a session.

        These requests do not need the database.
        """
        self.is_ending = True
        try:
            yield
        finally:
            self.is_ending = False

    def resolve_allowed_addresses(self, host: str, port: int, limits: RequestLimits) -> list[str]:
        """Resolve a host name, and return the addresses that are allowed.

        Raises `RequestAborted` if no address is allowed, and OSError if the host cannot be resolved.
        """
        addresses = resolve_host(host, port, limits)
        allowed = [address for address in addresses if self.is_address_allowed(ip_address(address))]
        if not allowed:
            resolved = f" ({', '.join(addresses)})" if [host] != addresses else ""
            raise RequestAborted(
                BmcNotTrusted, f"access.toml does not allow gitboot to send these credentials to {host}{resolved}"
            )
        return allowed

    @contextmanager
    def measure_requests(self) -> Iterator[Callable[[], ResponseSample]]:
        """Limit the total time of all requests in the block. Yield a function that returns their `ResponseSample`.

        Without this limit, a BMC could delay each response, and could make gitboot read any number of resources.
        """
        before, self.latency_s = self.latency_s, None
        self.deadline_s = time.monotonic() + self.total_s
        try:
            yield lambda: ResponseSample(
                latency_s=self.latency_s, is_lost=self.latency_s is None and before is not None
            )
        finally:
            self.deadline_s = None

    def remaining_s(self) -> float:
        """Return how many seconds the next request may take.

        Raises `RequestAborted` if no time remains for the task.
        """
        left_s = math.inf if self.deadline_s is None else self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise RequestAborted(
                BmcUnreachable,
                f"the BMC took more than {self.total_s:g} s in total to respond to the requests in one task",
            )
        return left_s

    def check_certificate(self, certificate: bytes, *, is_verified: bool) -> None:
        """Raise `RequestAborted` if a certificate must not be trusted.

        A certificate must not be trusted if it lacks a required fingerprint, or if it has changed and no authority
        verifies it.
        """
        shown = hashlib.sha256(certificate).hexdigest()
        if self.trusted_fingerprint not in (None, shown):
            raise RequestAborted(
                BmcRejected,
                f"the certificate changed: the fingerprint in {self.access_file} is {self.trusted_fingerprint}, but "
                f"the BMC presents {shown}. If the BMC has a new certificate, check that this is its fingerprint, then "
                "accept the certificate with gitboot bmc enroll --fingerprints",
            )
        if self.required_fingerprint not in (None, shown):
            raise RequestAborted(
                BmcRejected,
                f"the fingerprint in the document is {self.required_fingerprint}, but the BMC presents {shown}",
            )
        if is_verified or self.trusted_fingerprint is not None:
            return
        expected = self.pinned_fingerprint or self.shown_fingerprint
        if expected not in (None, shown):
            raise RequestAborted(
                BmcRejected, f"the certificate changed: its fingerprint was {expected}, and is now {shown}"
            )
        self.shown_fingerprint = shown


class BmcAdapter(HTTPAdapter):
    """A requests adapter for one BMC.

    The adapter reads complete responses within limits, and follows redirects only within the BMC.
    """

    def __init__(self, tls: ssl.SSLContext, policy: ConnectionPolicy) -> None:
        self._tls, self._policy = tls, policy
        self._redirected: tuple[str, RequestLimits] | None = None  # the URL of the last redirect, and its limits
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        # urllib3 only calls these attributes, so functions can replace the classes.
        pools: dict[str, Any] = {
            "http": partial(_build_pool, HTTPConnectionPool, _Connection, self._policy),
            "https": partial(_build_pool, HTTPSConnectionPool, _TlsConnection, self._policy),
        }
        self.poolmanager.pool_classes_by_scheme = pools

    def build_connection_pool_key_attributes(
        self, request: PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, {"ssl_context": self._tls} if host["scheme"] == "https" else {}

    def cert_verify(self, *_: Any) -> None:
        """Do nothing, because the TLS context contains the trusted authorities."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send a request, and read the complete response.

        The time limit is the sum of the connect and the read timeout.

        If the BMC redirects a write request to another path on the BMC, gitboot sends the same request to that path.
        """
        limits = self._get_limits(request, *kwargs["timeout"])
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send_once(request, limits, *args, **kwargs)
            if not response.is_redirect:
                return response
            target = _get_redirect_target(request, response)
            if request.method in _READ_METHODS:  # the library requests follows such a redirect itself
                self._redirected = target, limits
                return response
            request = request.copy()
            request.url = target
        raise TooManyRedirects(f"Exceeded {MAX_REDIRECTS} redirects.", request=request, response=response)

    def _send_once(self, request: PreparedRequest, limits: RequestLimits, *args: Any, **kwargs: Any) -> Response:
        if request.method not in _READ_METHODS:
            self._policy.check_fence(is_login=_is_login(request))
        with apply_limits(limits):
            limits.begin_answer()
            try:
                response = super().send(request, *args, **kwargs)
                try:
                    _check_redirect(request, response)
                    limits.begin_body(MAX_ANSWER_BYTES)
                    _read_body(response)
                except BaseException:
                    response.close()
                    raise
            except RequestAborted:
                raise
            except RequestException:
                self._policy.remaining_s()  # raise a clearer error if the task's time limit has caused the timeout
                raise
        return response

    def _get_limits(self, request: PreparedRequest, connect_s: float, answer_s: float) -> RequestLimits:
        """Return the limits for a request. A redirected request keeps the limits of the original request."""
        redirected, self._redirected = self._redirected, None
        if redirected is not None and redirected[0] == request.url:
            return redirected[1]
        return RequestLimits(deadline_s=min(connect_s + answer_s, self._policy.remaining_s()), connect_s=connect_s)


def _is_login(request: PreparedRequest) -> bool:
    return request.method == "POST" and urlsplit(request.url or "").path.rstrip("/") == SESSIONS_PATH


def _check_redirect(request: PreparedRequest, response: Response) -> None:
    """Raise `RequestAborted` for a redirect to another origin, or for a redirect that would turn a write into a GET."""
    if not response.is_redirect:
        return
    try:
        is_own = split_origin(_get_redirect_target(request, response)) == split_origin(request.url or "")
    except ValueError:
        is_own = False
    if not is_own or (request.method not in _READ_METHODS and response.status_code == HTTPStatus.SEE_OTHER):
        location = redact_url(response.headers["Location"], may_be_path=False)[:200]
        raise RequestAborted(
            BmcRejected,
            f"{response.status_code}: the BMC redirects to {location}, but gitboot does not follow this redirect",
        )


def _read_body(response: Response) -> None:
    """Store the complete body in a response. Raises `RequestAborted` if the body is too large."""
    body = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise RequestAborted(BmcUnreachable, f"the response is larger than {MAX_ANSWER_BYTES} bytes")
    # The library requests stores the body in this attribute.
    response._content = b"" if _is_malformed_error(response.status_code, bytes(body)) else bytes(body)
    # Redfish requires UTF-8 (DSP0266 6.5). The library requests would need seconds to guess the encoding of random
    # bytes.
    response.encoding = "utf-8"


def _get_redirect_target(request: PreparedRequest, response: Response) -> str:
    """Return the URL of a redirect in the way that the requests library does.

    Raises ValueError if the URL is malformed.
    """
    location = response.headers["Location"].encode("latin-1").decode()
    return urljoin(request.url or "", location)


def split_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of a URL (RFC 6454, 4). Raises ValueError if the URL is malformed."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_malformed_error(status: int, body: bytes) -> bool:
    """Return whether sushy cannot parse the body of an error response. gitboot then uses only the status.

    sushy expects the structure that DSP0266 8.6 defines, and raises AttributeError or TypeError for other JSON.
    """
    if status not in _STATUSES_WITH_PARSED_BODY:
        return False
    try:
        info = json.loads(body).get("error", {}).get("@Message.ExtendedInfo") or [{}]
        return not all(isinstance(each, dict) for each in ([info] if isinstance(info, dict) else info))
    except (AttributeError, TypeError, RecursionError):
        return True
    except ValueError:  # the body is not JSON, which sushy handles
        return False


class _Connection(LimitedConnection):
    """A connection to an IP address that `ConnectionPolicy` has checked. The host name is not resolved again."""

    def __init__(self, *args: Any, policy: ConnectionPolicy, **kwargs: Any) -> None:
        self._policy = policy
        super().__init__(*args, **kwargs)

    def addresses(self, host: str) -> list[str]:
        return self._policy.resolve_allowed_addresses(host, self.port, current_limits())

    def getresponse(self) -> Urllib3Response:  # type: ignore[override]  # as urllib3 does
        began_s = time.monotonic()
        response = super().getresponse()
        self._policy.latency_s = time.monotonic() - began_s
        return response


class _TlsConnection(_Connection, LimitedTlsConnection):
    """A TLS connection that checks the certificate before it sends a request."""

    def connect(self) -> None:
        super().connect()
        assert isinstance(self.sock, ssl.SSLSocket)  # noqa: S101 - gitboot does not use a proxy for BMCs
        self._policy.check_certificate(
            self.sock.getpeercert(binary_form=True) or b"",
            is_verified=self.sock.context.verify_mode is not ssl.CERT_NONE,
        )


def _build_pool(
    kind: Callable[..., Any], connection: Callable[..., Any], policy: ConnectionPolicy, *args: Any, **kwargs: Any
) -> Any:
    pool = kind(*args, **kwargs)
    pool.ConnectionCls = partial(connection, policy=policy)
    return pool
