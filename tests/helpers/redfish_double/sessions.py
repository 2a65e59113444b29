"""Who may ask what: basic authentication, and sessions that are opened, used, closed and forgotten."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.helpers.redfish_double.double import Answer, refusal
from tests.helpers.redfish_double.samples import sample

SERVICE = "/redfish/v1/SessionService"
SESSIONS = f"{SERVICE}/Sessions"


@dataclass(slots=True)
class _Session:
    path: str
    user: str
    used_at: datetime


class Sessions:
    """The sessions of one service, whose clock is the machines'; a session ends when it is not used for so long."""

    def __init__(
        self,
        credentials: Mapping[str, str] | None,  # user name to password; None: anyone may do anything
        clock: Callable[[], datetime],
        *,
        timeout_s: float,
        most: int,
    ) -> None:
        self._credentials, self._clock = credentials, clock
        self._timeout_s, self._most = timeout_s, most
        self._open: dict[str, _Session] = {}  # by token
        self._lock = threading.Lock()

    def end(self) -> None:
        """Forget all, as a BMC that was restarted does."""
        with self._lock:
            self._open.clear()

    def permits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request's credentials are right; using a session prolongs it."""
        if self._credentials is None:
            return True
        if token := headers.get("X-Auth-Token"):
            return self._use(token)
        kind, _, encoded = headers.get("Authorization", "").partition(" ")
        try:
            user, _, password = base64.b64decode(encoded).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return kind == "Basic" and bool(user) and self._credentials.get(user) == password

    def _use(self, token: str) -> bool:
        with self._lock:
            self._forget()
            if (session := self._open.get(token)) is None:
                return False
            session.used_at = self._clock()
            return True

    def _forget(self) -> None:
        since = self._clock() - timedelta(seconds=self._timeout_s)
        self._open = {token: session for token, session in self._open.items() if session.used_at >= since}

    def log_in(self, content: Any) -> Answer:
        """POST to the collection: the one request for which nobody need be logged in."""
        user, password = (content or {}).get("UserName"), (content or {}).get("Password")
        if self._credentials is not None and (not user or self._credentials.get(user) != password):
            return refusal(401, "Base.1.18.NoValidSession", "wrong user name or password")
        with self._lock:
            self._forget()
            if len(self._open) >= self._most:
                return refusal(503, "Base.1.18.SessionLimitExceeded", "too many sessions", **{"Retry-After": "30"})
            token, path = secrets.token_hex(16), f"{SESSIONS}/{secrets.token_hex(4)}"
            self._open[token] = _Session(path, str(user), self._clock())
        return Answer(status=201, body=_body(path, user), headers={"X-Auth-Token": token, "Location": path})

    def answer(self, method: str, path: str) -> Answer | None:
        """GET and DELETE of the service, its collection, one session; None: there is no such thing."""
        with self._lock:
            self._forget()
            by_path = {session.path: (token, session) for token, session in self._open.items()}
            match method, path:
                case "GET", "/redfish/v1/SessionService":
                    return Answer(status=200, body=sample("session_service") | {"SessionTimeout": self._timeout_s})
                case "GET", "/redfish/v1/SessionService/Sessions":
                    members = [{"@odata.id": each} for each in sorted(by_path)]
                    counted = {"Members": members, "Members@odata.count": len(members)}
                    return Answer(status=200, body=sample("session_collection") | counted)
                case "GET", _ if path in by_path:
                    return Answer(status=200, body=_body(path, by_path[path][1].user))
                case "DELETE", _ if path in by_path:
                    del self._open[by_path[path][0]]
                    return Answer(status=204)
        return None


def _body(path: str, user: str | None) -> dict[str, Any]:
    return sample("session") | {"@odata.id": path, "Id": path.rpartition("/")[2], "UserName": user}
