"""HTTP connection to a BMC: login, address and certificate checks, time limits and redirects."""

from __future__ import annotations

import hashlib
import json
import math
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin, urlsplit

from msgspec import Struct
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException, TooManyRedirects
from sushy import exceptions
from sushy.connector import Connector
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import HTTPResponse as Urllib3Response

from gitboot.bmc.credentials import Credentials
from gitboot.errors import BmcBusy, BmcNotTrusted, BmcRejected, BmcUnreachable, GitbootError
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

# Login


# The path of the sessions, without a trailing slash (DSP0266 13.3.4.2). A POST to this path creates only sessions.
SESSIONS_PATH: Final = "/redfish/v1/SessionService/Sessions"
_TOKEN_HEADER: Final = "X-Auth-Token"  # noqa: S105 - the header's name
# how long gitboot waits after the BMC did not open a session or rejected the token of a session
_SESSION_RETRY_S: Final = 3600
_LOGOUT_TIMEOUT_S: Final = 2
# All clients may read these paths, so a response does not prove that the password is correct (DSP0266, 13.3.1).
_PUBLIC_PATHS: Final = frozenset({"/redfish", "/redfish/v1", "/redfish/v1/$metadata", "/redfish/v1/odata"})
_SessionFailure: TypeAlias = BmcBusy | BmcUnreachable | BmcRejected


class _Session(Struct):
    path: str
    was_used: bool = False  # whether the BMC accepted the token


class Login:
    """Authenticates the requests of one connection. Use it from one thread at a time."""

    def __init__(
        self,
        connector: Connector,
        credentials: Credentials,
        translate_errors: Callable[[str, str], AbstractContextManager[object]],
    ) -> None:
        """Create a login.

        ``translate_errors`` is a context manager that converts errors in its block to gitboot's errors.
        """
        self._connector = connector
        self._credentials = credentials
        self._translate_errors = translate_errors
        self._session: _Session | None = None
        self._is_authenticated = False  # whether a response proved that the BMC accepted the last login
        # the 401 response to the last request with basic authentication
        self._access_error: exceptions.AccessError | None = None
        self._has_tried_session = False  # whether gitboot failed to open a session after that response
        # why gitboot could not open a session after a 401 response; None: the reason is that of the response
        self.session_failure: str | None = None
        self.challenge = ""  # the header WWW-Authenticate of the last response
        self._not_before_s = 0.0  # the monotonic time from which gitboot may open the next session
        self.keeps_session = False  # whether the connection is used often enough for a session
        self._use_password()

    def request(self, path: str, send: Callable[[], Response]) -> Response:
        """Send a request. After a 401 response, log in by the other method and send the request again.

        Raises the errors of ``send``. Also raises `BmcBusy` or `BmcUnreachable` if basic authentication is off and the
        BMC cannot open a session now.
        """
        if self._session is None:
            wants_session = self.keeps_session and self._is_authenticated
            if wants_session and time.monotonic() >= self._not_before_s:
                self._open_session()
            elif self._access_error is not None and not self._has_tried_session:
                self._replace_password_by_session(self._access_error)
        while True:
            try:
                response = send()
            except exceptions.AccessError as error:
                if error.status_code != HTTPStatus.UNAUTHORIZED or not self._switch_login(error):
                    raise
            else:
                break
        if path.rstrip("/") not in _PUBLIC_PATHS:
            self._is_authenticated = True
            self._has_tried_session = False
            self.session_failure = None
            if self._session is not None:
                self._session.was_used = True
            else:
                self._access_error = None
        return response

    def _switch_login(self, access_error: exceptions.AccessError) -> bool:
        """Choose another login method after a 401 response. Return whether there is another method.

        If the BMC ended a session, the next request sends the password. If basic authentication may be off, gitboot
        opens a session. gitboot tries to open a session only once, because a BMC that sends no challenge would count a
        wrong password twice. If the challenge names basic authentication, the next request opens a session first
        (`_replace_password_by_session`).
        """
        if self._session is not None:
            was_used = self._session.was_used
            self._use_password()
            if self._access_error is not None:
                if was_used:
                    return self._open_required_session()
                self._has_tried_session = True
                self.session_failure = "the BMC rejects the token for the new session"
                return False
            if not was_used:
                self._delay_next_session()
            return True
        self._access_error = access_error
        self._is_authenticated = False
        if self._has_tried_session or "basic" in self.challenge.lower():
            return False
        return self._open_required_session()

    def _open_required_session(self) -> bool:
        """Open a session that the login requires.

        Raises `BmcBusy` or `BmcUnreachable` if the BMC cannot open a session now.
        """
        failure = self._open_session()
        if isinstance(failure, BmcBusy | BmcUnreachable):
            raise failure
        self._has_tried_session = failure is not None
        self.session_failure = None if failure is None or _is_unauthorized(failure) else str(failure)
        return failure is None

    def _replace_password_by_session(self, access_error: exceptions.AccessError) -> None:
        """Open a session after the BMC rejected the password in a request.

        Raise ``access_error`` if the BMC does not open a session.

        Some BMCs name basic authentication in their challenge even if it is off. gitboot does not repeat the request
        with the password, so that the BMC counts a wrong password only once.
        """
        self._access_error = None  # if gitboot cannot open a session now, the next request sends the password again
        if not self._open_required_session():
            raise access_error
        self._access_error = access_error

    def log_out(self) -> None:
        """End the session on the BMC. If the request fails, the session ends after its timeout."""
        if self._session is not None:
            with suppress(GitbootError), self._translate_errors("DELETE", self._session.path):
                self._connector.delete(self._session.path, timeout=_LOGOUT_TIMEOUT_S)
            self._use_password()

    def _open_session(self) -> _SessionFailure | None:
        """Open a session. If that fails, return the reason, and continue with the password."""
        body = {"UserName": self._credentials.username, "Password": self._credentials.password}
        self._connector._session.auth = None
        try:
            with self._translate_errors("POST", SESSIONS_PATH):
                answer = self._connector.post(SESSIONS_PATH, data=body)
            token, path = answer.headers.get(_TOKEN_HEADER), _parse_session_path(answer)
            if token and path:  # gitboot needs the token to use the session, and the path to end the session
                self._connector._session.headers[_TOKEN_HEADER] = token
                self._session = _Session(path)
                return None
            missing = "the path of the session" if token else f"the header {_TOKEN_HEADER}"
            failure: _SessionFailure = BmcRejected(f"POST {answer.url}: {answer.status_code} without {missing}")
        except (BmcBusy, BmcUnreachable, BmcRejected) as error:
            failure = error
        finally:
            if self._session is None:
                self._use_password()
        self._delay_next_session()
        return failure

    def _delay_next_session(self) -> None:
        self._not_before_s = time.monotonic() + _SESSION_RETRY_S

    def _use_password(self) -> None:
        self._session = None
        self._connector._session.headers.pop(_TOKEN_HEADER, None)
        # The password is in bytes, because the library requests would encode text as Latin-1, and fail for other
        # characters.
        self._connector.set_http_basic_auth(self._credentials.username.encode(), self._credentials.password.encode())


def _is_unauthorized(failure: BmcRejected) -> bool:
    cause = failure.__cause__
    return isinstance(cause, exceptions.AccessError) and cause.status_code == HTTPStatus.UNAUTHORIZED


def _parse_session_path(answer: Response) -> str | None:
    """Return the path of a new session, or None if the response does not contain the path.

    DSP0266 13.3.4.2 requires the header Location with a path or a URL. Some BMCs omit the beginning of the path in
    Location (DMTF/python-redfish-library issue 73). Others do not send Location, but send @odata.id in the body (pull
    request 177 of the same project, and openbmc/openbmc issue 3353).
    """
    location = answer.headers.get("Location", "")
    try:
        body = json.loads(answer.content)
    except (ValueError, RecursionError):
        body = None
    body_path = body.get("@odata.id") if isinstance(body, dict) else None
    for path in (_parse_path(location), _parse_path(body_path if isinstance(body_path, str) else "")):
        if path.startswith("/redfish/"):
            return path
    name = _parse_path(location).rstrip("/").rpartition("/")[2]
    return f"{SESSIONS_PATH}/{name}" if name else None


def _parse_path(link: str) -> str:
    """Return the path of a link, which may be a URL or only a path. Return "" if the link is malformed."""
    try:
        return urlsplit(link).path
    except ValueError:
        return ""


# The connection


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
