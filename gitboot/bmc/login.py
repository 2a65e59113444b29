"""How a BMC knows who asks: user name and password with each request, or a session once it is asked again and again.

A session is opened for a connection that is kept, by a password that the BMC has taken before: so a wrong one is tried
once, and a command that reads a BMC once leaves nothing behind there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from requests import Response
from sushy import exceptions
from sushy.connector import Connector

from gitboot.bmc.access import Credentials

_SESSIONS: Final = "/redfish/v1/SessionService/Sessions"  # DSP0266 13.3.4.2: without a slash at its end, and to all
_TOKEN: Final = "X-Auth-Token"  # noqa: S105 - the header's name
_NOT_AGAIN_FOR_S: Final = 3600  # where a session could not be opened, or was of no use
_LOGOUT_S: Final = 2


@dataclass(slots=True)
class _Session:
    path: str
    was_used: bool = False


class Login:
    """Who asks over one connection; for one thread at a time."""

    def __init__(self, connector: Connector, credentials: Credentials) -> None:
        self._connector, self._credentials = connector, credentials
        self._session: _Session | None = None
        self._is_let_in = self._has_tried_a_session = False
        self.challenge = ""  # WWW-Authenticate of the last answer
        self._not_before_s = 0.0  # no session is opened; by the monotonic clock
        self.keeps = False  # whether a session is worth its while
        self._by_password()

    def ask(self, send: Callable[[], Response]) -> Response:
        """Send a request; once more, by the password, where the BMC has ended the session."""
        if self.keeps and self._session is None and self._is_let_in and time.monotonic() >= self._not_before_s:
            self._open()
        try:
            response = send()
        except exceptions.AccessError as error:
            if error.status_code != HTTPStatus.UNAUTHORIZED or not self._has_another_way():
                raise
            response = send()
        if self._session is not None:
            self._session.was_used = True
        self._is_let_in = True
        return response

    def _has_another_way(self) -> bool:
        """After a refusal: the password, where a session has ended; a session, where basic authentication may be off.

        That is tried once: a BMC that says nothing of what it takes counts a wrong password twice.
        """
        if self._session is not None:
            if not self._session.was_used:
                self._put_off()
            self._by_password()
            return True
        if self._is_let_in or self._has_tried_a_session or "basic" in self.challenge.lower():
            return False
        self._has_tried_a_session = True
        self._open()
        return self._session is not None

    def log_out(self) -> None:
        """End the session there; one that cannot be ended ends by itself, when nobody has used it for long enough."""
        if self._session is not None:
            with suppress(exceptions.SushyError):
                self._connector.delete(self._session.path, timeout=_LOGOUT_S)
            self._by_password()

    def _open(self) -> None:
        """Where there is no session to be had, the password goes on being sent; what is unreachable raises."""
        asked = {"UserName": self._credentials.username, "Password": self._credentials.password}
        self._connector._session.auth = None
        try:
            answer = self._connector.post(_SESSIONS, data=asked)
        except exceptions.HTTPError:  # 503: none is free; 404, 405, 501: there are none
            answer = Response()
        except exceptions.SushyError:
            self._by_password()
            raise
        token, path = answer.headers.get(_TOKEN), urlsplit(answer.headers.get("Location", "")).path
        if token and path.startswith("/redfish/"):  # else it could not be used, or not be ended
            self._connector._session.headers[_TOKEN] = token
            self._session = _Session(path)
        else:
            self._put_off()
            self._by_password()

    def _put_off(self) -> None:
        self._not_before_s = time.monotonic() + _NOT_AGAIN_FOR_S

    def _by_password(self) -> None:
        self._session = None
        self._connector._session.headers.pop(_TOKEN, None)
        # As bytes: requests would take text for Latin-1, and fail where it is more.
        self._connector.set_http_basic_auth(self._credentials.username.encode(), self._credentials.password.encode())
