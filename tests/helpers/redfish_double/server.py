"""A Redfish service over real HTTP or HTTPS, its sessions, and faults on request."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeAlias

from tests.helpers.redfish_double.machine import STARTED, Answer, Machine, Request, refusal
from tests.helpers.redfish_double.profiles import Json, sample

# Faults between a client and its BMC, on demand.


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """No answer for so long."""

    seconds: float = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    every_s: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Respond with another status and apply nothing."""

    status: int
    body: bytes = b'{"error": {"code": "Base.1.18.GeneralError", "message": "no"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Another body than the right one, with the right status."""

    body: bytes = b'{"Boot": {"BootSourceOverrideEnabled": '


@dataclass(frozen=True, kw_only=True, slots=True)
class Huge:
    """A body without end, as far as its reader has patience."""

    size: int = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncated:
    """Half of the answer, then the end of the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    location: str
    status: int = 302


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """The connection ends instead of an answer, after the request was applied or before."""

    applied: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """Respond as if a PATCH had been applied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reverted:
    """A PATCH is applied, and undone right after, or so much of the machine's time later."""

    after_s: float = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Intrusion:
    """Write as another client right before the request is processed."""

    boot: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PresentCertificate:
    """Another certificate than the right one; it strikes a connection, not a request."""

    tls: SSLContext


Fault: TypeAlias = (
    Hang
    | Slow
    | Status
    | Body
    | Huge
    | Truncated
    | Redirect
    | Drop
    | Ignored
    | Reverted
    | Intrusion
    | PresentCertificate
)


# Access: basic authentication, and sessions that are opened, used, closed and expired.

SERVICE = "/redfish/v1/SessionService"
SESSIONS = f"{SERVICE}/Sessions"


@dataclass(slots=True)
class _Session:
    path: str
    user: str
    used_at: datetime


class Sessions:
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
        with self._lock:
            self._open.clear()

    def permits(self, headers: Mapping[str, str]) -> bool:
        """Return whether the credentials of a request are right; a used session is extended."""
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
        """Handle a POST to the collection, the only request that needs no login."""
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


# The resources above the machines of one Redfish service: its root, its sessions, the collection of systems.

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
        """Record a request with any result. Header names are in title case."""
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
        method, path = request.method, request.path.rstrip("/")
        if (method, path) == ("GET", ROOT):
            return Answer(status=200, body=sample("root"))
        content = _parse_body(body)
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
                return _answer_drives(owner, request, content)
        machine = self.machine_at(path)
        if machine is None:
            return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")
        return _answer_machine(machine, request, content)

    def _systems(self) -> Json:
        members = [{"@odata.id": machine.path} for machine in self.machines]
        return sample("system_collection") | {"Members": members, "Members@odata.count": len(members)}


def _without_basic(headers: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in headers.items() if name != "Authorization"}


def _answer_machine(machine: Machine, request: Request, content: Any) -> Answer:
    path = request.path
    if path == machine.path.rstrip("/") != machine.path:
        return Answer(status=308, headers={"Location": machine.path})  # iLO
    match request.method, path:
        case "GET", machine.path:
            return _respond_with(machine, machine.system())
        case "GET", machine.settings_path:
            return _respond_with(machine, machine.settings())
        case "PATCH", (machine.path | machine.settings_path):
            return machine.patch(path, content, request.headers.get("If-Match"))
        case "GET", machine.bios.path if machine.bios.attributes:
            return Answer(status=200, body=machine.bios.resource())
        case "GET", machine.bios.settings_path if machine.bios.attributes:
            return _respond_with(machine, machine.add_etag(machine.bios.settings()))
        case "PATCH", machine.bios.settings_path if machine.bios.attributes:
            shown = machine.add_etag(machine.bios.settings())
            if (refused := machine.precondition(shown, request.headers.get("If-Match"))) is not None:
                return refused
            if (why := machine.bios.apply_request(content)) is not None:
                return refusal(400, "Base.1.18.PropertyNotWritable", why)
            return Answer(status=200)
        case "POST", machine.reset_path:
            return _reset(machine, content)
        case "GET", _ if (below := machine.below(path)) is not None:
            return Answer(status=200, body=below)
        case _, (machine.path | machine.settings_path | machine.reset_path):
            return refusal(405, "Base.1.18.OperationNotAllowed", f"{path} cannot be {request.method}")
    return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")


def _answer_drives(machine: Machine, request: Request, content: Any) -> Answer:
    method, path = request.method, request.path.rstrip("/")
    if (method, path) == ("GET", machine.media_path):
        members = [{"@odata.id": drive.path} for drive in (*machine.stored_drives, *machine.drives)]
        body = sample("virtual_media_collection") | {"@odata.id": path, "Members": members}
        return Answer(status=200, body=body | {"Members@odata.count": len(members)})
    drives = (*machine.stored_drives, *machine.drives)
    drive = next((each for each in drives if path.startswith(each.path)), None)
    if drive is None:
        return refusal(404, "Base.1.18.ResourceMissingAtURI", f"there is no {path}")
    if method == "GET":
        return _respond_with(machine, machine.add_etag(drive.resource()))
    if method == "PATCH":
        shown = machine.add_etag(drive.resource())
        if (refused := machine.precondition(shown, request.headers.get("If-Match"))) is not None:
            return refused
    if (why := drive.apply_request(method, path, content)) is not None:
        return refusal(400, "Base.1.18.ActionParameterNotSupported", why)
    return Answer(status=204)


def _reset(machine: Machine, content: Any) -> Answer:
    kind = (content or {}).get("ResetType", "On")
    if kind not in machine.profile.reset_types:
        return refusal(400, "Base.1.18.ActionParameterNotSupported", f"ResetType cannot be {kind}")
    machine.execute_reset(kind)
    return Answer(status=204)


def _respond_with(machine: Machine, body: Json) -> Answer:
    form = machine.profile.etag_header
    return Answer(status=200, body=body, headers={"ETag": machine.etag(body, form)} if form else {})


def _parse_body(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


# A `Service` over real HTTP or HTTPS, with latency and faults on request.

_HANDSHAKE_S = 60
_FILLING = b" " * 65536
_held: list[socket.socket] = []  # the ports of servers that have died


class RedfishServer:
    """A server on a port of its own, from `__enter__` to `__exit__`."""

    def __init__(
        self,
        service: Service,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_s: float = 0,
    ) -> None:
        self.service = service
        self.latency_s = latency_s
        self.connections = 0  # how many were made
        self._tls = tls
        self._faults: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._released = threading.Event()  # set with it
        self._open: set[socket.socket] = set()
        self._http = _Http((host, port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._http.server_address[:2]
        return str(host), port

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._released.set()
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                _shut_down(connection)
        self._http.server_close()  # waits for the threads of all connections

    def die(self) -> None:
        """End the server. Until this process ends, its port refuses connections, and no other server gets it."""
        address = self.address
        self.__exit__(None, None, None)
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for the ends of earlier connections
        held.bind(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        _held.append(held)

    def fault(self, fault: Fault, *, on: str = "GET", times: int = 1) -> None:
        with self._lock:
            self._faults += [(on, fault)] * times

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def take_fault(self, method: str) -> Fault | None:
        with self._lock:
            for index, (on, fault) in enumerate(self._faults):
                if on == method:
                    del self._faults[index]
                    return fault
        return None

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than the server lives."""
        self._closing.wait(seconds)

    def hang(self, seconds: float) -> None:
        """Sleep, but not longer than until `release_hangs`."""
        self._released.wait(seconds)

    def release_hangs(self) -> None:
        """Hang up where a request hangs, now and from now on."""
        self._released.set()

    def accept_connection(self, connection: socket.socket) -> socket.socket:
        """Take a connection in, by TLS where there is to be TLS."""
        if self._tls:
            fault = self.take_fault("TLS")
            tls = fault.tls if isinstance(fault, PresentCertificate) else self._tls
            connection.settimeout(_HANDSHAKE_S)
            connection = tls.wrap_socket(connection, server_side=True)
            connection.settimeout(None)
        with self._lock:
            if self._closing.is_set():
                connection.close()
                raise ConnectionAbortedError
            self.connections += 1
            self._open.add(connection)
        return connection

    def forget_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], server: RedfishServer) -> None:
        self.redfish = server
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that give up or reject the certificate are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def setup(self) -> None:
        self.request = self.server.redfish.accept_connection(self.request)
        super().setup()

    def finish(self) -> None:
        self.server.redfish.forget_connection(self.request)
        try:
            super().finish()
        finally:
            _shut_down(self.request)
            self.request.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep silent: requests are recorded."""

    def _respond(self) -> None:
        redfish, service = self.server.redfish, self.server.redfish.service
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.title(): value for name, value in self.headers.items()}
        request = service.receive(self.command, self.path, headers, body)
        redfish.wait(redfish.latency_s)

        def apply() -> Answer:
            return service.answer(request, headers, body)

        machine = service.machine_at(self.path)
        is_reset = self.path.endswith("ComputerSystem.Reset")
        match fault := (redfish.take_fault("RESET") if is_reset else None) or redfish.take_fault(self.command):
            case Hang():
                redfish.hang(fault.seconds)
                self._hang_up()
            case Status():
                self._send(Answer(status=fault.status, headers=fault.headers), fault.body)
            case Redirect():
                self._send(Answer(status=fault.status, headers={"Location": fault.location}))
            case Drop():
                if fault.applied:
                    apply()
                self._hang_up()
            case Ignored():
                self._send(Answer(status=200, body={}))
            case Reverted() if machine:
                before = dict(machine.override)
                answer = apply()
                machine.write_later(fault.after_s, before)
                self._send(answer)
            case Intrusion() if machine:
                machine.write(**fault.boot)
                self._send(apply())
            case _:
                self._send(apply(), fault=fault)

    do_GET = do_HEAD = do_PATCH = do_POST = do_DELETE = _respond  # noqa: N815

    def _send(self, answer: Answer, body: bytes | None = None, *, fault: Fault | None = None) -> None:
        if body is None:
            body = b"" if answer.body is None else json.dumps(answer.body).encode()
        if isinstance(fault, Body):
            body = fault.body
        length = fault.size if isinstance(fault, Huge) else len(body)
        head = self._head(answer, length)
        match fault:
            case Slow():
                self._send_slowly(head + body, fault.every_s)
            case Truncated():
                self.wfile.write(head + body[: len(body) // 2])
                self._hang_up()
            case Huge():
                self.wfile.write(head)
                for _ in range(length // len(_FILLING)):
                    self.wfile.write(_FILLING)
            case _:
                self.wfile.write(head + body)

    def _head(self, answer: Answer, length: int) -> bytes:
        status = HTTPStatus(answer.status)
        fields = {
            "Content-Type": "application/json; charset=utf-8",
            "Content-Length": str(length),
            "OData-Version": "4.0",
            **answer.headers,
        }
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            *(f"{k}: {v}" for k, v in fields.items()),
            "",
            "",
        ]
        return "\r\n".join(lines).encode("latin-1")

    def _send_slowly(self, content: bytes, every_s: float) -> None:
        for byte in content:
            self.wfile.write(bytes([byte]))
            self.server.redfish.wait(every_s)

    def _hang_up(self) -> None:
        self.close_connection = True
        _shut_down(self.connection)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is already
        connection.shutdown(socket.SHUT_RDWR)
