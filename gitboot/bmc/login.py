"""Authentication at a BMC: basic authentication, and a session for a connection that is used again.

gitboot opens a session only with a password that the BMC has just accepted, or if basic authentication is off. So a
wrong password is tried once, and a command that reads a BMC once leaves no session there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from requests import Response
from sushy import exceptions
from sushy.connector import Connector

from gitboot.bmc.credentials import Credentials
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, GitbootError

SESSIONS: Final = "/redfish/v1/SessionService/Sessions"  # DSP0266 13.3.4.2: without a slash at its end, and to all
_TOKEN: Final = "X-Auth-Token"  # noqa: S105 - the header's name
_NOT_AGAIN_FOR_S: Final = 3600  # after a session could not be opened, or its token was not accepted
_LOGOUT_S: Final = 2
# Every client may read these, so an answer proves nothing about the password (DSP0266, 13.3.1).
_PUBLIC: Final = frozenset({"/redfish", "/redfish/v1", "/redfish/v1/$metadata", "/redfish/v1/odata"})

Door: TypeAlias = Callable[[str, str], AbstractContextManager[object]]
_NoSession: TypeAlias = BmcBusy | BmcUnreachable | BmcRejected


@dataclass(slots=True)
class _Session:
    path: str
    was_used: bool = False  # whether the BMC has accepted its token


class Login:
    """Authentication of one connection; for one thread at a time."""

    def __init__(self, connector: Connector, credentials: Credentials, door: Door) -> None:
        """``door`` takes a method and a path, and raises what a request in its block came to as an error of gitboot."""
        self._connector, self._credentials, self._door = connector, credentials, door
        self._session: _Session | None = None
        self._is_let_in = False  # whether the BMC has accepted the last login, as far as an answer can prove that
        self._refusal: exceptions.AccessError | None = None  # the 401 of the last request by basic authentication
        self._has_tried_a_session = False  # after such a 401, in vain
        self.no_session: str | None = None  # why, beside a 401; None: for the same reason
        self.challenge = ""  # WWW-Authenticate of the last answer
        self._not_before_s = 0.0  # no session is opened before; by the monotonic clock
        self.keeps = False  # whether the connection is used often enough for a session
        self._by_password()

    def ask(self, path: str, send: Callable[[], Response]) -> Response:
        """Send a request; after a 401, log in by the other way, and send it again.

        Raises what ``send`` raises, and `BmcBusy` or `BmcUnreachable` if basic authentication is off, and the BMC
        opens no session now.
        """
        if self.keeps and self._session is None and self._is_let_in and time.monotonic() >= self._not_before_s:
            self._open()
        elif self._session is None and self._refusal is not None and not self._has_tried_a_session:
            self._open_instead(self._refusal)
        while True:
            try:
                response = send()
            except exceptions.AccessError as error:
                if error.status_code != HTTPStatus.UNAUTHORIZED or not self._logs_in_otherwise(error):
                    raise
            else:
                break
        if path.rstrip("/") not in _PUBLIC:
            self._is_let_in, self._has_tried_a_session, self.no_session = True, False, None
            if self._session is not None:
                self._session.was_used = True
            else:
                self._refusal = None
        return response

    def _logs_in_otherwise(self, refusal: exceptions.AccessError) -> bool:
        """After a 401, return whether there is another way to log in, which the next request uses.

        The ways are: the password, if the BMC ended a session; a session, if basic authentication may be off. gitboot
        tries the latter once: a BMC without a challenge counts a wrong password twice. If the challenge names basic
        authentication, the next request tries a session (`_open_instead`).
        """
        if self._session is not None:
            was_used = self._session.was_used
            self._by_password()
            if self._refusal is not None:
                if was_used:
                    return self._opens()
                self._has_tried_a_session = True
                self.no_session = "the BMC refuses the token of the session that it opened"
                return False
            if not was_used:
                self._put_off()
            return True
        self._refusal, self._is_let_in = refusal, False
        return not self._has_tried_a_session and "basic" not in self.challenge.lower() and self._opens()

    def _opens(self) -> bool:
        """Open a session, without which there is no way in. Raise the reason if that may be over soon."""
        failure = self._open()
        if isinstance(failure, BmcBusy | BmcUnreachable):
            raise failure
        self._has_tried_a_session = failure is not None
        self.no_session = None if failure is None or _is_401(failure) else str(failure)
        return failure is None

    def _open_instead(self, refusal: exceptions.AccessError) -> None:
        """Open a session instead of sending the password that the BMC refused before; else raise ``refusal``.

        Some BMCs name basic authentication in their challenge also if it is off. This login takes the place of the
        request by password, so that a wrong password still counts once.
        """
        self._refusal = None  # if there is no session now, the next request sends the password again
        if not self._opens():
            raise refusal
        self._refusal = refusal

    def log_out(self) -> None:
        """End the session at the BMC. A session that cannot be ended times out there."""
        if self._session is not None:
            with suppress(GitbootError), self._door("DELETE", self._session.path):
                self._connector.delete(self._session.path, timeout=_LOGOUT_S)
            self._by_password()

    def _open(self) -> _NoSession | None:
        """Open a session; return why there is none, after which gitboot goes on sending the password."""
        asked = {"UserName": self._credentials.username, "Password": self._credentials.password}
        self._connector._session.auth = None
        try:
            with self._door("POST", SESSIONS):
                answer = self._connector.post(SESSIONS, data=asked)
            token, path = answer.headers.get(_TOKEN), _session_path(answer)
            if token and path:  # otherwise it could not be used, or not be ended
                self._connector._session.headers[_TOKEN] = token
                self._session = _Session(path)
                return None
            failure: _NoSession = BmcRejected(
                f"POST {answer.url}: {answer.status_code} without "
                f"{'a place of the session' if token else f'the header {_TOKEN}'}"
            )
        except (BmcBusy, BmcUnreachable, BmcRejected) as error:
            failure = error
        finally:
            if self._session is None:
                self._by_password()
        self._put_off()
        return failure

    def _put_off(self) -> None:
        self._not_before_s = time.monotonic() + _NOT_AGAIN_FOR_S

    def _by_password(self) -> None:
        self._session = None
        self._connector._session.headers.pop(_TOKEN, None)
        # As bytes: requests would take text for Latin-1, and fail if it has other characters.
        self._connector.set_http_basic_auth(self._credentials.username.encode(), self._credentials.password.encode())


def _is_401(failure: BmcRejected) -> bool:
    """Return whether a BMC refused the user name or the password of a login."""
    cause = failure.__cause__
    return isinstance(cause, exceptions.AccessError) and cause.status_code == HTTPStatus.UNAUTHORIZED


def _session_path(answer: Response) -> str | None:
    """Return the path of a session that was opened, at this BMC; None if the answer does not show it.

    DSP0266 13.3.4.2 requires Location, as a path or a URL. Some BMCs send it without the beginning of its path
    (DMTF/python-redfish-library issue 73) or not at all (pull request 177 of the same, openbmc/openbmc issue 3353),
    and show @odata.id in the body.
    """
    location = answer.headers.get("Location", "")
    for path in (_path_of(location), _path_of(_shown_id(answer.content))):
        if path.startswith("/redfish/"):
            return path
    name = _path_of(location).rstrip("/").rpartition("/")[2]
    return f"{SESSIONS}/{name}" if name else None


def _path_of(link: str) -> str:
    """Return the path of a URL or of a path; "" if it is neither."""
    try:
        return urlsplit(link).path
    except ValueError:
        return ""


def _shown_id(content: bytes) -> str:
    """Return ``@odata.id`` of a resource in JSON; "" if it shows none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    shown = body.get("@odata.id") if isinstance(body, dict) else None
    return shown if isinstance(shown, str) else ""
