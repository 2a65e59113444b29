"""Logins: basic authentication, sessions for connections that are used again, and BMCs that take only one of them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc import worker_pool
from gitboot.bmc.credentials import CredentialDirectory, Credentials
from gitboot.bmc.override_session import TaskOutcome, TaskResult
from gitboot.bmc.override_state import BmcObservation, Override, OverrideState, WantedOverride
from gitboot.bmc.power_steps import PowerOperation, ResetType, WantedPowerChange
from gitboot.bmc.redfish import client, transport
from gitboot.bmc.redfish.client import BmcConnection, list_if_match_values, read_etags
from gitboot.bmc.redfish.transport import ConnectionPolicy
from gitboot.bmc.worker_pool import BmcPool, ConnectionCache
from gitboot.errors import BmcChanged, BmcUnreachable
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, PASSWORD, SET_AT_BMC, USER, MakeRack, Rack, racks, write_credentials
from tests.helpers.cases import for_each
from tests.helpers.http_peers import Authority, StrangeClient, strange_server
from tests.helpers.redfish_double import server
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, XCC, Drive, Profile
from tests.helpers.redfish_double.server import SESSIONS, Body, Drop, Fault, Redirect, Slow, Status, Truncated

LOGIN = ("POST", SESSIONS)
SYSTEM = ("GET", "/redfish/v1/Systems/1")
ROOT, COLLECTION = ("GET", "/redfish/v1/"), ("GET", "/redfish/v1/Systems")


def read_bmc(fleet: BmcPool, rack: Rack, **changed: Any) -> TaskResult:
    job = rack.job(None, **changed)
    assert fleet.submit([job])
    return fleet.take_results(wait_all=True)[job.uuid]


def list_outcomes(fleet: BmcPool, rack: Rack, times: int, **changed: Any) -> list[TaskOutcome]:
    return [read_bmc(fleet, rack, **changed).outcome for _ in range(times)]


def take_requests(rack: Rack) -> list[tuple[str, str]]:
    """Return the requests since the last call: method, path and kind of login."""
    found = [(each.method, each.path) for each in rack.server.service.requests]
    rack.server.service.requests.clear()
    return found


def open_sessions(rack: Rack) -> int:
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert rack.server.service.sessions.permits({"Authorization": f"Basic {token}"})
    answer = rack.server.service.sessions.answer("GET", SESSIONS)
    assert answer is not None and answer.body is not None
    return int(answer.body["Members@odata.count"])


def test_a_bmc_that_is_read_repeatedly_gets_one_session_until_the_end(rack: Rack) -> None:
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 4)) == {TaskOutcome.UNCHANGED}
        assert (take_requests(rack), open_sessions(rack)) == ([SYSTEM, LOGIN, SYSTEM, SYSTEM, SYSTEM], 1)
    (ended,) = take_requests(rack)
    assert ended[0] == "DELETE" and ended[1].startswith(f"{SESSIONS}/")
    assert open_sessions(rack) == 0


def test_with_a_session_the_password_is_not_sent_again(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    known_by: list[set[str]] = []
    permits = rack.server.service.sessions.permits

    def noted(headers: dict[str, str]) -> bool:
        known_by.append(headers.keys() & {"Authorization", "X-Auth-Token"})
        return permits(headers)

    monkeypatch.setattr(rack.server.service.sessions, "permits", noted)
    with rack.fleet() as fleet:
        for _ in range(3):
            read_bmc(fleet, rack)
    assert known_by == [{"Authorization"}, *[{"X-Auth-Token"}] * 3]


def test_a_session_that_the_bmc_ended_is_opened_again(rack: Rack, fleet: BmcPool) -> None:
    for _ in range(3):
        read_bmc(fleet, rack)
    rack.server.service.sessions.end()
    take_requests(rack)
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    assert take_requests(rack) == [SYSTEM, SYSTEM]  # refused; and by the password
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    assert take_requests(rack) == [LOGIN, SYSTEM]


def test_a_bmc_whose_sessions_are_all_taken_is_still_read(rack: Rack) -> None:
    taken = [rack.server.service.sessions.log_in({"UserName": USER, "Password": PASSWORD}) for _ in range(8)]
    assert {each.status for each in taken} == {201}
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 3)) == {TaskOutcome.UNCHANGED}
    assert open_sessions(rack) == 8


def test_a_session_that_could_not_be_opened_is_tried_again_later(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SESSION_RETRY_S", 0)
    rack.server.fault(Status(status=503), on="POST")
    list_outcomes(fleet, rack, 2)
    assert open_sessions(rack) == 0
    read_bmc(fleet, rack)
    assert open_sessions(rack) == 1


def test_after_a_token_that_the_bmc_does_not_accept_no_other_is_requested(rack: Rack, fleet: BmcPool) -> None:
    useless = {"X-Auth-Token": "t", "Location": f"{SESSIONS}/1"}
    rack.server.fault(Status(status=201, headers=useless), on="POST")
    assert (set(list_outcomes(fleet, rack, 4)), take_requests(rack).count(LOGIN)) == ({TaskOutcome.UNCHANGED}, 1)


def test_a_session_is_ended_at_the_bmc_even_if_its_location_names_another_host(rack: Rack) -> None:
    elsewhere = {"X-Auth-Token": "t", "Location": f"http://127.0.0.9:1{SESSIONS}/7"}
    rack.server.fault(Status(status=201, headers=elsewhere), on="POST")
    with rack.fleet() as fleet:
        rack.server.service.sessions._credentials = None  # any token does
        list_outcomes(fleet, rack, 2)
        take_requests(rack)
    assert take_requests(rack) == [("DELETE", f"{SESSIONS}/7")]


def test_a_wrong_password_is_tried_once_for_each_task(rack: Rack) -> None:
    """The second job tries it by a session, and no other: the challenge of the BMC names basic authentication."""
    write_credentials(rack.folder, password="wrong")
    with rack.fleet() as fleet:
        results = [read_bmc(fleet, rack) for _ in range(4)]
        assert take_requests(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM]
    assert {result.outcome for result in results} == {TaskOutcome.STALLED}
    assert {result.message for result in results} == {
        f"GET {rack.server.url}{rack.machine.path}: 401: "
        'the BMC rejects the user name or password in the credentials "rack"'
    }, "one event"


@pytest.mark.parametrize("fault", [Drop(applied=False), Status(status=503), Status(status=404)])
def test_a_password_that_the_bmc_accepts_later_is_sent_after_any_result_of_a_login(
    rack: Rack, fleet: BmcPool, fault: Fault
) -> None:
    write_credentials(rack.folder, password="another")
    rack.server.fault(fault, on="POST", times=9)
    assert read_bmc(fleet, rack).outcome is TaskOutcome.STALLED
    rack.server.service.sessions._credentials = {USER: "another"}
    read_bmc(fleet, rack)
    assert list_outcomes(fleet, rack, 2) == [TaskOutcome.UNCHANGED] * 2


def test_a_bmc_that_wrongly_offers_basic_authentication_is_read_from_the_second_task_on(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    permits = rack.server.service.sessions.permits
    monkeypatch.setattr(
        rack.server.service.sessions, "permits", lambda headers: "X-Auth-Token" in headers and permits(headers)
    )
    assert list_outcomes(fleet, rack, 3) == [TaskOutcome.STALLED, *[TaskOutcome.UNCHANGED] * 2]
    assert take_requests(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM]
    rack.server.service.sessions.end()
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    assert take_requests(rack) == [SYSTEM, LOGIN, SYSTEM]


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer realm="BMC"'}])
def test_if_basic_authentication_is_off_a_session_is_opened_at_once(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, challenge: dict[str, str]
) -> None:
    permits = rack.server.service.sessions.permits
    monkeypatch.setattr(
        rack.server.service.sessions, "permits", lambda headers: "X-Auth-Token" in headers and permits(headers)
    )
    monkeypatch.setattr(server, "CHALLENGE", challenge)
    with rack.fleet() as fleet:
        assert (set(list_outcomes(fleet, rack, 2)), take_requests(rack)) == (
            {TaskOutcome.UNCHANGED},
            [SYSTEM, LOGIN, SYSTEM, SYSTEM],
        )
    assert [method for method, _ in take_requests(rack)] == ["DELETE"]
    monkeypatch.undo()
    assert open_sessions(rack) == 0


def test_a_bmc_without_a_challenge_is_tried_with_one_session(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHALLENGE", {})
    write_credentials(rack.folder, password="wrong")
    assert (set(list_outcomes(fleet, rack, 3)), take_requests(rack)) == (
        {TaskOutcome.STALLED},
        [SYSTEM, LOGIN, SYSTEM, SYSTEM],
    )


def test_a_changed_password_ends_the_session_of_the_previous_one(rack: Rack) -> None:
    with rack.fleet() as fleet:
        list_outcomes(fleet, rack, 2)
        rack.server.service.sessions._credentials = {USER: "another"}
        write_credentials(rack.folder, password="another")
        take_requests(rack)
        assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
        assert [method for method, _ in take_requests(rack)] == ["DELETE", "GET"]
    assert rack.server.connections == 2


def test_an_idle_session_is_closed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    with rack.fleet() as fleet:
        list_outcomes(fleet, rack, 2)
        assert open_sessions(rack) == 1
        monkeypatch.setattr(worker_pool, "_IDLE_S", -1)
        fleet.take_results()
        wait_until(lambda: open_sessions(rack) == 0)
        monkeypatch.undo()
        assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    wait_until(lambda: not rack.server.is_busy)


def test_the_connection_of_a_task_that_runs_for_long_is_not_closed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[BmcConnection]()
    monkeypatch.setattr(worker_pool, "_IDLE_S", -1)
    monkeypatch.setattr(BmcConnection, "close", lambda connection, **_: closed.append(connection))

    def look_for_idle_connections(*_: object) -> None:
        fleet.take_results()
        fleet._log_out_executor.submit(lambda: None).result()  # wait until the pool has closed the idle connections

    with rack.fleet(write=look_for_idle_connections) as fleet:
        fleet.submit([rack.job(ONCE)])
        assert [result.outcome for result in fleet.take_results(wait_all=True).values()] == [TaskOutcome.APPLIED]
        assert closed == []
        monkeypatch.undo()


def test_an_idle_connection_that_a_task_takes_again_is_not_closed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool looks for idle connections at the moment at which a task takes this connection."""
    job, unused = rack.job(None), list[Any]()
    monkeypatch.setattr(worker_pool, "_IDLE_S", -1)

    class ConnectionInUse(BmcConnection):
        @property
        def login(self) -> Any:
            unused.extend(connections.pop_unused_connections())
            return self._login

        @login.setter
        def login(self, login: Any) -> None:
            self._login = login

    monkeypatch.setattr(client, "BmcConnection", ConnectionInUse)
    with closing(ConnectionCache(CredentialDirectory(rack.folder))) as connections:
        first, second = (connections.connect(job.uuid, job.server, job.bmc) for _ in range(2))
        assert (first is second, unused) == (True, [])
        assert connections.pop_unused_connections() == [first]


@pytest.mark.parametrize(
    "fault", [Drop(applied=False), Status(status=404, body=b'"no"'), Redirect(location="http://[")]
)
def test_a_failed_logout_does_not_block_other_work(rack: Rack, fault: Fault) -> None:
    with rack.fleet() as fleet:
        list_outcomes(fleet, rack, 2)
        rack.server.fault(fault, on="DELETE")
    assert open_sessions(rack) == 1


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer realm="BMC"'}])
def test_finding_p5_a_bmc_with_basic_authentication_off_is_read_if_no_system_is_named(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, challenge: dict[str, str]
) -> None:
    """The BMC returns the service root without a login, so that response does not prove that the password is right."""
    rack.server.service.takes_basic = False
    monkeypatch.setattr(server, "CHALLENGE", challenge)
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 3, system=None)) == {TaskOutcome.UNCHANGED}
        assert take_requests(rack) == [ROOT, COLLECTION, LOGIN, COLLECTION, SYSTEM, SYSTEM, SYSTEM]
    assert [method for method, _ in take_requests(rack)] == ["DELETE"]


def test_a_response_of_the_service_root_alone_opens_no_session(rack: Rack, fleet: BmcPool) -> None:
    """A wrong password counts once for each job, and twice for the first one at a BMC without a challenge."""
    rack.server.service.takes_basic = False
    write_credentials(rack.folder, password="wrong")
    assert set(list_outcomes(fleet, rack, 3, system=None)) == {TaskOutcome.STALLED}
    assert take_requests(rack) == [ROOT, COLLECTION, LOGIN, *[ROOT, COLLECTION] * 2]


@pytest.mark.parametrize("takes_basic", [True, False])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_finding_p5_a_login_that_is_redirected_within_the_bmc_is_followed(
    rack: Rack, takes_basic: bool, status: int
) -> None:
    rack.server.service.takes_basic, rack.server.service.redirects_logins = takes_basic, status
    redirected = ("POST", f"{SESSIONS}/")
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 3)) == {TaskOutcome.UNCHANGED}
        again = [] if takes_basic else [SYSTEM]
        assert take_requests(rack) == [SYSTEM, LOGIN, redirected, *again, SYSTEM, SYSTEM]
    assert [method for method, _ in take_requests(rack)] == ["DELETE"]


ELSEWHERE = [
    pytest.param(302, "http://127.0.0.9:1/redfish/v1/SessionService/Sessions/", id="another host"),
    pytest.param(307, "https://{host}/redfish/v1/SessionService/Sessions/", id="another scheme"),
    pytest.param(308, "//127.0.0.9:1/redfish/v1/SessionService/Sessions/", id="another host, without a scheme"),
    pytest.param(301, "http://[", id="nonsense"),
    pytest.param(303, "/redfish/v1/SessionService/Sessions/", id="what would be read"),
    pytest.param(307, SESSIONS, id="in circles"),
]


@pytest.mark.parametrize(("status", "location"), ELSEWHERE)
def test_finding_p5_the_password_is_still_used_if_a_login_is_redirected_elsewhere(
    rack: Rack, fleet: BmcPool, status: int, location: str
) -> None:
    host = rack.server.url.partition("//")[2]
    rack.server.fault(Redirect(location=location.format(host=host), status=status), on="POST", times=9)
    assert set(list_outcomes(fleet, rack, 4)) == {TaskOutcome.UNCHANGED}
    assert take_requests(rack).count(LOGIN) == (
        4 if location == SESSIONS else 1
    )  # at most three redirects, once an hour


@pytest.mark.parametrize(("status", "location"), ELSEWHERE[:-1])
def test_finding_p5_without_basic_authentication_the_message_names_the_redirected_login(
    rack: Rack, status: int, location: str
) -> None:
    rack.server.service.takes_basic = False
    location = location.format(host=rack.server.url.partition("//")[2])
    rack.server.fault(Redirect(location=location, status=status), on="POST", times=9)
    with rack.fleet() as fleet:
        results = [read_bmc(fleet, rack, system=None) for _ in range(2)]
    assert {result.outcome for result in results} == {TaskOutcome.STALLED}
    for result in results:  # the second task opens no session, and has the same message
        assert result.message == (
            f"GET {rack.server.url}/redfish/v1/Systems: 401: the BMC rejects the user name or password in the "
            'credentials "rack" by basic authentication, and does not open a session: '
            f"POST {rack.server.url}{SESSIONS}: {status}: "
            f"the BMC redirects to {location.replace('[', '…')}, but gitboot does not follow this redirect"
        )


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_password_is_sent_from_https_to_http(make_rack: MakeRack, tmp_path: Path, status: int) -> None:
    authority = Authority(tmp_path)
    plain, rack = make_rack(), make_rack(tls=authority.server_context())
    rack.server.fault(Redirect(location=f"{plain.server.url}{SESSIONS}", status=status), on="POST", times=9)
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 3, ca=authority.pem)) == {TaskOutcome.UNCHANGED}
    assert plain.server.connections == 0


NO_SESSION: list[tuple[str, Fault]] = [
    ("the connection ends", Drop(applied=False)),
    ("the answer ends", Truncated()),
    ("404, as no Redfish service says it", Status(status=404, body=b'"no"')),
    ("500, as no Redfish service says it", Status(status=500, body=b"[]")),
    ("403", Status(status=403)),
    ("429", Status(status=429)),
    ("a page", Body(body=b"<html>")),
    *((str(status), Status(status=status, headers={"Retry-After": "30"})) for status in (404, 405, 501, 503, 401, 500)),
    ("neither a token nor a place", Status(status=201)),
    ("no place, to end it", Status(status=201, headers={"X-Auth-Token": "t"})),
    ("no token", Status(status=201, headers={"Location": f"{SESSIONS}/1"})),
]


@pytest.mark.parametrize("fault", [fault for _, fault in NO_SESSION], ids=[name for name, _ in NO_SESSION])
def test_the_password_is_still_used_after_any_result_of_a_login(rack: Rack, fault: Fault) -> None:
    rack.server.fault(fault, on="POST", times=9)
    with rack.fleet() as fleet:
        assert set(list_outcomes(fleet, rack, 4)) == {TaskOutcome.UNCHANGED}
        assert take_requests(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM, SYSTEM]
    has_session = isinstance(fault, Body)  # its headers are those of a session that was opened
    assert [method for method, _ in take_requests(rack)] == ["DELETE"] * has_session


def test_a_slow_login_delays_one_task_and_the_password_is_still_used(rack: Rack) -> None:
    rack.server.fault(Slow(every_s=1), on="POST", times=9)  # minutes, until its answer would be whole
    with rack.connect(read_timeout_s=5) as bmc:
        bmc.observe()
        bmc.login.keeps_session = True
        assert {bmc.observe().power for _ in range(3)} == {"On"}
        assert take_requests(rack).count(LOGIN) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'"no"', b"[]", b'{"error": "no"}', b'{"error": null}'])
def test_a_401_with_any_body_opens_a_session(rack: Rack, fleet: BmcPool, body: bytes) -> None:
    rack.server.fault(Status(status=401, body=body))
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    assert take_requests(rack)[1] == LOGIN


def test_without_basic_authentication_a_bmc_with_all_sessions_taken_is_busy_and_not_rejected(
    rack: Rack, fleet: BmcPool
) -> None:
    rack.server.service.takes_basic = False
    sessions = rack.server.service.sessions
    for _ in range(8):
        assert sessions.log_in({"UserName": USER, "Password": PASSWORD}).status == 201
    for _ in range(2):
        result = read_bmc(fleet, rack)
        assert (result.outcome, result.retry_after_s) == (TaskOutcome.WAITING, 30)
        assert result.message.startswith(f"POST {rack.server.url}{SESSIONS}: 503 ")
    sessions.end()
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED


def test_without_basic_authentication_an_ended_session_is_opened_again_at_once(rack: Rack, fleet: BmcPool) -> None:
    rack.server.service.takes_basic = False
    read_bmc(fleet, rack)
    for _ in range(3):
        rack.server.service.sessions.end()
        take_requests(rack)
        assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
        assert take_requests(rack) == [SYSTEM, LOGIN, SYSTEM]


@pytest.mark.parametrize("has_session", [True, False])
def test_basic_authentication_may_be_turned_off_and_on_between_tasks(
    rack: Rack, fleet: BmcPool, has_session: bool
) -> None:
    for _ in range(2 if has_session else 1):
        assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    rack.server.service.takes_basic = False
    rack.server.service.sessions.end()
    if not has_session:
        rack.server.fault(Status(status=503), on="POST")  # the login that a second job begins with
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    rack.server.service.takes_basic = True
    rack.server.service.sessions.end()
    assert set(list_outcomes(fleet, rack, 2)) == {TaskOutcome.UNCHANGED}
    take_requests(rack)
    assert read_bmc(fleet, rack).outcome is TaskOutcome.UNCHANGED
    assert take_requests(rack) == [SYSTEM]


def test_without_basic_authentication_after_a_rejected_token_no_other_is_requested(rack: Rack) -> None:
    rack.server.service.takes_basic = False
    useless = {"X-Auth-Token": "t", "Location": f"{SESSIONS}/1"}
    rack.server.fault(Status(status=201, headers=useless), on="POST", times=9)
    with rack.fleet() as fleet:
        results = [read_bmc(fleet, rack) for _ in range(3)]
        assert take_requests(rack).count(LOGIN) == 1
    assert {result.outcome for result in results} == {TaskOutcome.STALLED}
    assert all("the BMC rejects the token for the new session" in result.message for result in results)


SESSION_7 = f"{SESSIONS}/7"
PLACES: list[tuple[str, dict[str, str], bytes]] = [
    ("a path", {"Location": SESSION_7}, b""),
    ("a URL", {"Location": f"https://bmc.test:8443{SESSION_7}"}, b""),
    ("a URL without a scheme", {"Location": f"//bmc.test{SESSION_7}"}, b""),
    ("in lower case", {"location": SESSION_7}, b""),
    ("without the beginning of its path", {"Location": "SessionService/Sessions/7"}, b""),
    ("the name alone", {"Location": "7"}, b"{}"),
    ("in the body alone", {}, json.dumps({"@odata.id": SESSION_7}).encode()),
    ("in the body, beside nonsense", {"Location": "http://["}, json.dumps({"@odata.id": SESSION_7}).encode()),
]


@pytest.mark.parametrize(("headers", "body"), [place[1:] for place in PLACES], ids=[name for name, *_ in PLACES])
@pytest.mark.parametrize("status", [200, 201])
def test_a_session_is_ended_at_the_location_that_its_bmc_returned(
    rack: Rack, status: int, headers: dict[str, str], body: bytes
) -> None:
    rack.server.fault(Status(status=status, headers={"x-auth-token": "t"} | headers, body=body), on="POST")
    with rack.fleet() as fleet:
        rack.server.service.sessions._credentials = None  # any token does
        for _ in range(3):
            read_bmc(fleet, rack)
        assert take_requests(rack).count(LOGIN) == 1
    assert take_requests(rack) == [("DELETE", SESSION_7)]


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


ISO = "http://boot.test/assets/node/1.iso"
SHORT_DEADLINE_S = 0.3
SLOW_ANSWER = Slow(every_s=60)  # an answer has some hundred bytes


@pytest.fixture
def rack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rack]:
    profile: Profile = getattr(request, "param", GENERIC)
    with racks(tmp_path) as make:
        yield make(profile=profile)


Call = Callable[[BmcConnection, BmcObservation], object]
CALLS: list[tuple[str, Profile, str, Call]] = [
    ("observe", GENERIC, "GET", lambda bmc, _: bmc.observe()),
    ("is_redfish", GENERIC, "GET", lambda bmc, _: bmc.is_redfish()),
    ("read_clock", GENERIC, "GET", lambda bmc, seen: bmc.read_clock(seen, lambda: datetime(2026, 11, 20, tzinfo=UTC))),
    ("set_override", GENERIC, "PATCH", lambda bmc, seen: bmc.set_override(ONCE.override, seen)),
    ("reset", GENERIC, "POST", lambda bmc, seen: bmc.reset(ResetType.FORCE_RESTART, seen)),
    ("read_slots", GENERIC, "GET", lambda bmc, seen: bmc.media.read_slots(seen)),
    ("insert", GENERIC, "POST", lambda bmc, seen: bmc.media.insert(seen.slots[1], ISO)),
    ("eject", GENERIC, "POST", lambda bmc, seen: bmc.media.eject(seen.slots[1])),
    ("insert by PATCH", XCC, "PATCH", lambda bmc, seen: bmc.media.insert(seen.slots[1], ISO)),
    ("eject by PATCH", XCC, "PATCH", lambda bmc, seen: bmc.media.eject(seen.slots[1])),
    ("read_secure_boot", GENERIC, "GET", lambda bmc, seen: bmc.firmware.read_secure_boot(seen)),
    ("read_uri", IDRAC9, "GET", lambda bmc, seen: bmc.firmware.read_uri(seen)),
    ("keep_uri", IDRAC9, "PATCH", lambda bmc, seen: bmc.firmware.store_uri("http://boot.test/loader", seen)),
]


@pytest.mark.parametrize(
    ("rack", "method", "call"),
    [call[1:] for call in CALLS],
    ids=[name for name, *_ in CALLS],
    indirect=["rack"],
)
def test_each_call_to_a_bmc_that_sends_slowly_ends_at_its_deadline(rack: Rack, method: str, call: Call) -> None:
    with rack.connect(read_timeout_s=60) as patient:
        seen = patient.media.read_slots(patient.observe())
        seen = structs.replace(seen, secure_boot_path=f"{rack.machine.path}/SecureBoot", firmware_uri="")
    rack.server.fault(SLOW_ANSWER, on=method, times=9)
    bmc = rack.connect(connect_timeout_s=SHORT_DEADLINE_S, read_timeout_s=SHORT_DEADLINE_S)
    with pytest.raises(BmcUnreachable):
        call(bmc, seen)
    bmc.close(log_out=False)


def test_a_logout_at_a_bmc_that_sends_slowly_ends(rack: Rack) -> None:
    bmc = rack.connect(read_timeout_s=60)
    bmc.observe()
    bmc.login.keeps_session = True
    bmc.observe()
    rack.server.fault(SLOW_ANSWER, on="DELETE")
    bmc.close()
    assert "DELETE" in [each.method for each in rack.server.service.requests]


def add_many_drives(rack: Rack) -> None:
    """Let a BMC name more drives than can be read in a second: each answer comes at once."""
    machine = rack.machine
    machine.drives = [Drive(f"{machine.media_path}/{n}", machine.profile.drives) for n in range(8000)]


def test_a_task_ends_at_its_deadline_even_if_each_request_gets_a_response(rack: Rack) -> None:
    add_many_drives(rack)
    policy = ConnectionPolicy(total_s=0.5)
    with rack.connect(policy=policy) as bmc:
        seen = bmc.observe()
        with (
            policy.measure_requests(),
            pytest.raises(BmcUnreachable, match=r"the BMC took more than 0\.5 s in total to respond"),
        ):
            bmc.media.read_slots(seen)
        assert len(rack.server.service.requests) < 8000
        assert bmc.observe().power == "On", "the deadline is that of the job"


def test_a_task_that_reaches_its_deadline_within_a_body_says_so() -> None:
    def answer(client: StrangeClient) -> None:
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        client.wait()

    credentials, policy = Credentials(name="", username="admin", password="secret"), ConnectionPolicy(total_s=0.5)
    with strange_server(answer) as server:
        bmc = BmcConnection(server.url, credentials, system="/redfish/v1/Systems/1", policy=policy)
        with policy.measure_requests(), pytest.raises(BmcUnreachable, match=r"the BMC took more than 0\.5 s in total"):
            bmc.observe()
        bmc.close(log_out=False)


def test_a_task_that_reaches_its_deadline_waits_for_the_next_one(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    add_many_drives(rack)
    disc = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI", medium=ISO)
    job = rack.job(WantedOverride(reason="provision/1", plan_digest="d" * 64, override=disc))
    with rack.fleet() as fleet:
        monkeypatch.setattr(ConnectionPolicy, "remaining_s", limit_requests(rack, 50))
        assert fleet.submit([job])
        result = fleet.take_results(wait_all=True)[job.uuid]
    assert (result.outcome, result.is_reachable) == (TaskOutcome.WAITING, False)
    assert "the BMC took more than 300 s in total to respond" in result.message


def limit_requests(rack: Rack, requests: int) -> Callable[[ConnectionPolicy], float]:
    """Return a `remaining_s` with which the time of a task ends after so many requests."""
    left_s = ConnectionPolicy.remaining_s

    def left(policy: ConnectionPolicy) -> float:
        if len(rack.server.service.requests) >= requests:
            assert policy.deadline_s is not None, "a job has a deadline"
            policy.deadline_s = 0.0
        return left_s(policy)

    return left


# Name; the header ETag; @odata.etag; the If-Match that the BMC accepts, {} for the opaque value.
FORMS = [
    ("quotes twice in the header", '""{}""', '"{}"', '"{}"'),
    ("quotes twice, and accepted without any", '""{}""', '"{}"', "{}"),
    ("quotes twice, and no @odata.etag", '""{}""', "", '"{}"'),
    ("quotes twice, as they were sent", '""{}""', '"{}"', '""{}""'),
    ("weak, as it was sent", 'W/"{}"', 'W/"{}"', 'W/"{}"'),
    ("weak, and accepted as strong", 'W/"{}"', 'W/"{}"', '"{}"'),
    ("weak, and accepted without quotes", 'W/"{}"', 'W/"{}"', "{}"),
    ("weak without quotes", "W/{}", "W/{}", '"{}"'),
    ("quotes, and accepted without", '"{}"', '"{}"', "{}"),
    ("without quotes, as it was sent", "{}", "{}", "{}"),
    ("without quotes, and accepted with", "{}", "{}", '"{}"'),
    ("without quotes in the body alone", '"{}"', "{}", "{}"),
    ("another one in the body", '"h{}"', '"b{}"', '"b{}"'),
    ("another one in the body, weak", '"h{}"', 'W/"b{}"', '"b{}"'),
    ("in the body alone", "", 'W/"{}"', 'W/"{}"'),
    ("with backslashes in the body", "", '\\"{}\\"', '"{}"'),
    ("accepted as * alone", '"{}"', '"{}"', "*"),
    ("never accepted", '"{}"', '"{}"', ""),
]
FORM_IDS = [name for name, *_ in FORMS]
LOADER = "http://boot.test/assets/web/loader"


def with_etag_form(profile: Profile, header: str, body: str, if_match: str) -> Profile:
    return replace(
        profile, etag_header=header, etag_body=body, if_match=if_match, if_match_required=if_match not in ("", "*")
    )


def list_if_match_headers(rack: Rack) -> list[str | None]:
    return [each.headers.get("If-Match") for each in rack.server.service.requests if each.method == "PATCH"]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_finding_p6_an_override_is_set_with_any_form_of_etag_that_a_bmc_sends_and_accepts(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_etag_form(GENERIC, header, body, if_match))
    result = rack.run_task()
    assert (result.outcome, rack.records["web01"][ONCE.reason].state) == (TaskOutcome.APPLIED, OverrideState.CONFIRMED)
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Once"
    assert rack.run_task(None).outcome is TaskOutcome.APPLIED
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_no_form_of_etag_overwrites_a_change_by_somebody_else(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_etag_form(GENERIC, header, body, if_match))
    bmc = rack.connect()
    seen = bmc.observe()
    rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    with pytest.raises(BmcChanged, match="the BMC's state has changed since gitboot read it"):
        bmc.set_override(ONCE.override, seen)
    assert rack.machine.override["BootSourceOverrideTarget"] == "BiosSetup"


def test_finding_p6_the_message_lists_the_forms_of_etag_that_a_bmc_rejected(make_rack: MakeRack) -> None:
    rack = make_rack(profile=replace(GENERIC, etag_header='""{}""', if_match="", if_match_required=True))
    result = rack.run_task()
    etag = json.loads(json.dumps(rack.machine.system()))["@odata.etag"]
    assert result.outcome is TaskOutcome.WAITING
    assert result.message == (
        f"PATCH {rack.server.url}{rack.machine.path}: 428 the request needs If-Match; the resource has not changed, "
        f'but the BMC rejects every form of the resource\'s ETag (refused: If-Match "{etag}", If-Match {etag}, '
        f"If-Match {etag.strip(chr(34))}, If-Match *, no If-Match)"
    )
    assert list_if_match_headers(rack) == [f'"{etag}"', etag, etag.strip('"'), "*", None]
    assert rack.records["web01"][ONCE.reason].state is OverrideState.UNSENT


def test_a_change_after_the_rejections_is_not_overwritten(make_rack: MakeRack) -> None:
    """The BMC is read again right before a request that it would accept after any change."""
    rack = make_rack(profile=with_etag_form(GENERIC, '"{}"', '"{}"', "*"))
    precondition = rack.machine.precondition

    def changed_by_another(body: dict[str, object], if_match: str | None) -> object:
        refused = precondition(body, if_match)
        if if_match is not None and not if_match.startswith('"'):  # the last one that has a precondition
            rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
        return refused

    rack.machine.precondition = changed_by_another  # type: ignore[assignment,method-assign]
    rack.run_task()
    assert (rack.machine.override["BootSourceOverrideTarget"], len(list_if_match_headers(rack))) == ("BiosSetup", 2)


def test_an_accepted_etag_costs_one_request_and_a_misread_etag_one_more_read(make_rack: MakeRack) -> None:
    for if_match, expected in (('"{}"', ["GET", "PATCH", "GET"]), ("{}", ["GET", "PATCH", "GET", "PATCH", "GET"])):
        rack = make_rack(profile=with_etag_form(GENERIC, '"{}"', '"{}"', if_match))
        rack.run_task()
        assert [each.method for each in rack.machine.requests if "Managers" not in each.path] == expected


@pytest.mark.parametrize("status", [412, 428])
@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'"no"', b"[]", b'{"error": "no"}'])
def test_a_rejected_etag_is_detected_by_its_status(make_rack: MakeRack, status: int, body: bytes) -> None:
    rack = make_rack(profile=GENERIC)
    rack.server.fault(Status(status=status, body=body), on="PATCH")
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Once"


def test_a_bmc_without_etags_that_requires_if_match_gets_an_asterisk(make_rack: MakeRack) -> None:
    rack = make_rack(profile=with_etag_form(GENERIC, "", "", '"{}"'))
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert list_if_match_headers(rack) == [None, "*"]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_a_medium_is_inserted_and_ejected_with_any_form_of_etag(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_etag_form(XCC, header, body, if_match))
    iso = "http://boot.test/assets/node/1.iso"
    disc = WantedOverride(
        reason="provision/1",
        plan_digest="d" * 64,
        override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI", medium=iso),
    )
    assert rack.run_task(disc).outcome is TaskOutcome.APPLIED
    assert rack.machine.drives[1].image == iso
    rack.run_task(None)
    assert rack.machine.drives[1].ejected == [iso]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_a_uri_is_written_to_firmware_with_any_form_of_etag(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_etag_form(IDRAC9, header, body, if_match))
    http = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=LOADER)
    wanted = WantedOverride(
        reason="provision/1", plan_digest="d" * 64, override=http, loader_url_prefix="http://boot.test/"
    )
    restart = WantedPowerChange(
        reason="power/check/1", operation=PowerOperation.RESTART, override_reason="provision/1", may_start_now=True
    )
    rack.run_task(wanted, wanted_power=restart)
    assert rack.machine.bios.pending[rack.machine.profile.bios_uri] == LOADER


@for_each(
    ("header", "body", "expected"),
    [
        ('"a"', '"a"', ('"a"',)),
        ('"a"', 'W/"a"', ('"a"', 'W/"a"')),
        (None, '"a"', ('"a"',)),
        (' "a" ', None, ('"a"',)),
        (None, 1682532272, ("1682532272",)),
        (None, None, ()),
        (None, True, ()),
        (None, ["a"], ()),
        ("", "", ()),
        ('""', 'W/""', ()),  # no value to compare
        ('"a\nb"', '"ä"', ()),  # no header can have them
    ],
)
def test_etags_are_read_if_a_header_can_contain_them(header: object, body: object, expected: tuple[str, ...]) -> None:
    assert read_etags(header, body) == expected


def test_forms_of_etag_are_tried_from_the_received_one_to_no_precondition() -> None:
    assert list(list_if_match_values(('""a""', 'W/"b"'))) == ['""a""', 'W/"b"', '"a"', '"b"', "a", "b", "*", None]
    assert list(list_if_match_values(())) == [None, "*"]


@pytest.mark.parametrize("etag", ['"ä"', '"a\\nb"', "7", "null"])
def test_an_etag_that_no_header_can_contain_is_not_an_error(make_rack: MakeRack, etag: str) -> None:
    rack = make_rack(profile=replace(GENERIC, etag_header="", etag_body=""))
    shown = json.dumps(rack.machine.system() | {"@odata.etag": "X"}).replace('"X"', json.dumps(etag))
    rack.server.fault(Body(body=shown.encode()))
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert set(SET_AT_BMC.items()) <= set(rack.machine.override.items())
