"""What stands above the machines of one Redfish service: its root, sessions, the collection of systems."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.redfish.double import RESET_TYPES, Answer, Json, Machine, Request, refusal

ROOT = "/redfish/v1"
_SYSTEMS = f"{ROOT}/Systems"
_SESSIONS = f"{ROOT}/SessionService/Sessions"
_CREDENTIALS = ("Authorization", "X-Auth-Token", "Cookie")


class Service:
    """One BMC, or one service for the systems of many."""

    def __init__(self, *machines: Machine, credentials: Mapping[str, str] | None = None) -> None:
        self.machines = machines
        self.credentials = credentials  # user name to password; None: anyone may do anything
        self.requests: list[Request] = []
        self._sessions: dict[str, str] = {}  # token to path
        self._lock = threading.Lock()

    def end_sessions(self) -> None:
        self._sessions.clear()

    def machine_at(self, path: str) -> Machine | None:
        for machine in self.machines:
            if (path.rstrip("/") + "/").startswith(machine.path.rstrip("/") + "/"):
                return machine
        return None

    def receive(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """Record a request, whatever becomes of it. Header names are in title case."""
        machine = self.machine_at(path)
        request = Request(
            method=method,
            path=path,
            headers={name: value for name, value in headers.items() if name not in _CREDENTIALS},
            body=b"" if path == _SESSIONS else body,
            at=machine.now if machine else datetime.now(UTC),
            in_post=machine.in_post if machine else False,
        )
        with self._lock:
            self.requests.append(request)
            if machine:
                machine.requests.append(request)
        return request

    def answer(self, request: Request, headers: Mapping[str, str], body: bytes) -> Answer:
        """Do what was asked."""
        method, path = request.method, request.path.rstrip("/")
        if (method, path) == ("GET", ROOT):
            return Answer(status=200, body=_root())
        content = _parsed(body)
        if (method, path) == ("POST", _SESSIONS):
            return self._log_in(content)
        if not self._may(headers):
            answer = refusal(401, "Base.1.18.NoValidSession", "log in first")
            return Answer(status=401, body=answer.body, headers={"WWW-Authenticate": 'Basic realm="BMC"'})
        if method == "DELETE" and path in self._sessions.values():
            self._sessions = {token: other for token, other in self._sessions.items() if other != path}
            return Answer(status=204)
        if (method, path) == ("GET", _SYSTEMS):
            return Answer(status=200, body=self._systems())
        machine = self.machine_at(path)
        if machine is None:
            return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")
        return _of_machine(machine, request, content)

    def _may(self, headers: Mapping[str, str]) -> bool:
        if self.credentials is None or headers.get("X-Auth-Token") in self._sessions:
            return True
        kind, _, encoded = headers.get("Authorization", "").partition(" ")
        try:
            user, _, password = base64.b64decode(encoded).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return kind == "Basic" and bool(user) and self.credentials.get(user) == password

    def _log_in(self, content: Any) -> Answer:
        user, password = (content or {}).get("UserName"), (content or {}).get("Password")
        if self.credentials is not None and (not user or self.credentials.get(user) != password):
            return refusal(401, "Base.1.18.NoValidSession", "wrong user name or password")
        token = secrets.token_hex(16)
        path = self._sessions[token] = f"{_SESSIONS}/{secrets.token_hex(4)}"
        body = {"@odata.id": path, "@odata.type": "#Session.v1_7_0.Session", "UserName": user}
        return Answer(status=201, body=body, headers={"X-Auth-Token": token, "Location": path})

    def _systems(self) -> Json:
        return {
            "@odata.id": _SYSTEMS,
            "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
            "Name": "Computer System Collection",
            "Members@odata.count": len(self.machines),
            "Members": [{"@odata.id": machine.path} for machine in self.machines],
        }


def _of_machine(machine: Machine, request: Request, content: Any) -> Answer:
    path = request.path
    if path == machine.path.rstrip("/") != machine.path:
        return Answer(status=308, headers={"Location": machine.path})  # iLO
    match request.method, path:
        case "GET", machine.path:
            return _shown(machine, machine.system())
        case "GET", machine.settings_path:
            return _shown(machine, machine.settings())
        case "PATCH", (machine.path | machine.settings_path):
            return machine.patch(path, content, request.headers.get("If-Match"))
        case "POST", machine.reset_path:
            return _reset(machine, content)
        case _, (machine.path | machine.settings_path | machine.reset_path):
            return refusal(405, "Base.1.18.OperationNotAllowed", f"{path} cannot be {request.method}")
    return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")


def _reset(machine: Machine, content: Any) -> Answer:
    kind = (content or {}).get("ResetType", "On")
    if kind not in RESET_TYPES:
        return refusal(400, "Base.1.18.ActionParameterNotSupported", f"ResetType cannot be {kind}")
    machine.reset(kind)
    return Answer(status=204)


def _shown(machine: Machine, body: Json) -> Answer:
    headers = {"ETag": body["@odata.etag"]} if machine.profile.etag_in_header else {}
    return Answer(status=200, body=body, headers=headers)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


def _root() -> Json:
    return {
        "@odata.id": f"{ROOT}/",
        "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot",
        "Id": "RootService",
        "Name": "Root Service",
        "RedfishVersion": "1.18.0",
        "Systems": {"@odata.id": _SYSTEMS},
        "Links": {"Sessions": {"@odata.id": _SESSIONS}},
    }
