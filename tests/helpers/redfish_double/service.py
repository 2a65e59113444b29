"""What stands above the machines of one Redfish service: its root, its sessions, the collection of systems."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.helpers.redfish_double.double import STARTED, Answer, Machine, Request, refusal
from tests.helpers.redfish_double.samples import Json, sample
from tests.helpers.redfish_double.sessions import SESSIONS, Sessions

ROOT = "/redfish/v1"
_SYSTEMS = f"{ROOT}/Systems"
CHALLENGE = {"WWW-Authenticate": 'Basic realm="BMC"'}  # of a 401
_CREDENTIALS = ("Authorization", "X-Auth-Token", "Cookie")


class Service:
    """One BMC, or one service for the systems of many."""

    def __init__(
        self,
        *machines: Machine,
        credentials: Mapping[str, str] | None = None,  # user name to password; None: anyone may do anything
        session_timeout_s: float = 1800,
        most_sessions: int = 8,
        takes_basic: bool = True,  # whether basic authentication is on
        redirects_logins: int | None = None,  # by which status, to the same path with a slash at its end
    ) -> None:
        self.takes_basic, self.redirects_logins = takes_basic, redirects_logins
        self.machines = machines
        self.sessions = Sessions(credentials, self._now, timeout_s=session_timeout_s, most=most_sessions)
        self.requests: list[Request] = []
        self._lock = threading.Lock()

    def _now(self) -> datetime:
        return max((machine.now for machine in self.machines), default=STARTED)

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
            body=b"" if path.rstrip("/") == SESSIONS else body,
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
            return Answer(status=200, body=sample("root"))
        content = _parsed(body)
        if (method, path) == ("POST", SESSIONS):
            if self.redirects_logins is not None and request.path == SESSIONS:  # old Supermicro
                return Answer(status=self.redirects_logins, headers={"Location": f"{SESSIONS}/"})
            return self.sessions.log_in(content)
        if not self.sessions.permits(headers if self.takes_basic else _without_basic(headers)):
            challenge = CHALLENGE if self.takes_basic else {}
            return Answer(status=401, body=sample("session_error"), headers=challenge)
        if (answer := self.sessions.answer(method, path)) is not None:
            return answer
        if (method, path) == ("GET", _SYSTEMS):
            return Answer(status=200, body=self._systems())
        for managed in self.machines:
            if (method, path) == ("GET", managed.manager_path):
                if not managed.profile.manager:
                    return refusal(403, "Base.1.18.InsufficientPrivilege", "not in this role")
                return Answer(status=200, body=managed.manager())
        for owner in self.machines:
            if path.startswith(owner.media_path):
                return _of_drives(owner, request, content)
        machine = self.machine_at(path)
        if machine is None:
            return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")
        return _of_machine(machine, request, content)

    def _systems(self) -> Json:
        members = [{"@odata.id": machine.path} for machine in self.machines]
        return sample("system_collection") | {"Members": members, "Members@odata.count": len(members)}


def _without_basic(headers: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in headers.items() if name != "Authorization"}


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
        case "GET", machine.bios.path if machine.bios.attributes:
            return Answer(status=200, body=machine.bios.resource())
        case "GET", machine.bios.settings_path if machine.bios.attributes:
            return _shown(machine, machine.tagged(machine.bios.settings()))
        case "PATCH", machine.bios.settings_path if machine.bios.attributes:
            shown = machine.tagged(machine.bios.settings())
            if (refused := machine.precondition(shown, request.headers.get("If-Match"))) is not None:
                return refused
            if (why := machine.bios.refuses(content)) is not None:
                return refusal(400, "Base.1.18.PropertyNotWritable", why)
            return Answer(status=200)
        case "POST", machine.reset_path:
            return _reset(machine, content)
        case "GET", _ if (below := machine.below(path)) is not None:
            return Answer(status=200, body=below)
        case _, (machine.path | machine.settings_path | machine.reset_path):
            return refusal(405, "Base.1.18.OperationNotAllowed", f"{path} cannot be {request.method}")
    return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")


def _of_drives(machine: Machine, request: Request, content: Any) -> Answer:
    method, path = request.method, request.path.rstrip("/")
    if (method, path) == ("GET", machine.media_path):
        members = [{"@odata.id": drive.path} for drive in machine.drives]
        body = sample("virtual_media_collection") | {"@odata.id": path, "Members": members}
        return Answer(status=200, body=body | {"Members@odata.count": len(members)})
    drive = next((each for each in machine.drives if path.startswith(each.path)), None)
    if drive is None:
        return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")
    if method == "GET":
        return _shown(machine, machine.tagged(drive.resource()))
    if method == "PATCH":
        shown = machine.tagged(drive.resource())
        if (refused := machine.precondition(shown, request.headers.get("If-Match"))) is not None:
            return refused
    if (why := drive.refuses(method, path, content)) is not None:
        return refusal(400, "Base.1.18.ActionParameterNotSupported", why)
    return Answer(status=204)


def _reset(machine: Machine, content: Any) -> Answer:
    kind = (content or {}).get("ResetType", "On")
    if kind not in machine.profile.reset_types:
        return refusal(400, "Base.1.18.ActionParameterNotSupported", f"ResetType cannot be {kind}")
    machine.asked(kind)
    return Answer(status=204)


def _shown(machine: Machine, body: Json) -> Answer:
    form = machine.profile.etag_header
    return Answer(status=200, body=body, headers={"ETag": machine.etag(body, form)} if form else {})


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None
