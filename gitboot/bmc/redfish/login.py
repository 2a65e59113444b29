"""Login at a BMC: basic authentication, and sessions for connections that are used often."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http import HTTPStatus
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from requests import Response
from sushy import exceptions
from sushy.connector import Connector

from gitboot.bmc.credentials import Credentials
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, GitbootError

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
