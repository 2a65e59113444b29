"""Logins: basic authentication, sessions for connections that are used again, and BMCs that take only one of them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gitboot.bmc import worker_pool
from gitboot.bmc.override_session import Outcome, TaskResult
from gitboot.bmc.redfish import transport
from gitboot.bmc.worker_pool import BmcPool
from tests.helpers.bmcs import PASSWORD, USER, MakeRack, Rack, write_credentials
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double import server
from tests.helpers.redfish_double.server import SESSIONS, Body, Drop, Fault, Redirect, Slow, Status, Truncated

LOGIN = ("POST", SESSIONS)
SYSTEM = ("GET", "/redfish/v1/Systems/1")
ROOT, COLLECTION = ("GET", "/redfish/v1/"), ("GET", "/redfish/v1/Systems")


def read(fleet: BmcPool, rack: Rack, **changed: Any) -> TaskResult:
    """Let its BMC be read once more, with nothing wanted."""
    job = rack.job(None, **changed)
    assert fleet.submit([job])
    return fleet.finished(wait_all=True)[job.uuid]


def outcomes(fleet: BmcPool, rack: Rack, times: int, **changed: Any) -> list[Outcome]:
    """Let the BMC be read so often."""
    return [read(fleet, rack, **changed).outcome for _ in range(times)]


def asked(rack: Rack) -> list[tuple[str, str]]:
    """What the BMC was asked since the last time: methods and paths, and how its client was known."""
    found = [(each.method, each.path) for each in rack.server.service.requests]
    rack.server.service.requests.clear()
    return found


def open_sessions(rack: Rack) -> int:
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert rack.server.service.sessions.permits({"Authorization": f"Basic {token}"})
    answer = rack.server.service.sessions.answer("GET", SESSIONS)
    assert answer is not None and answer.body is not None
    return int(answer.body["Members@odata.count"])


def test_one_that_is_asked_again_has_one_until_the_end(rack: Rack) -> None:
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 4)) == {Outcome.UNCHANGED}
        assert (asked(rack), open_sessions(rack)) == ([SYSTEM, LOGIN, SYSTEM, SYSTEM, SYSTEM], 1)
    (ended,) = asked(rack)
    assert ended[0] == "DELETE" and ended[1].startswith(f"{SESSIONS}/")
    assert open_sessions(rack) == 0


def test_with_a_session_the_password_is_sent_no_more(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    known_by: list[set[str]] = []
    permits = rack.server.service.sessions.permits

    def noted(headers: dict[str, str]) -> bool:
        known_by.append(headers.keys() & {"Authorization", "X-Auth-Token"})
        return permits(headers)

    monkeypatch.setattr(rack.server.service.sessions, "permits", noted)
    with rack.fleet() as fleet:
        for _ in range(3):
            read(fleet, rack)
    assert known_by == [{"Authorization"}, *[{"X-Auth-Token"}] * 3]


def test_a_session_that_the_bmc_has_ended_is_opened_anew(rack: Rack, fleet: BmcPool) -> None:
    for _ in range(3):
        read(fleet, rack)
    rack.server.service.sessions.end()
    asked(rack)
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    assert asked(rack) == [SYSTEM, SYSTEM]  # refused; and by the password
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    assert asked(rack) == [LOGIN, SYSTEM]


def test_a_bmc_whose_sessions_are_all_taken_is_read_all_the_same(rack: Rack) -> None:
    taken = [rack.server.service.sessions.log_in({"UserName": USER, "Password": PASSWORD}) for _ in range(8)]
    assert {each.status for each in taken} == {201}
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 3)) == {Outcome.UNCHANGED}
    assert open_sessions(rack) == 8


def test_where_none_was_to_be_had_it_is_tried_again_later(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_NOT_AGAIN_FOR_S", 0)
    rack.server.fault(Status(status=503), on="POST")
    outcomes(fleet, rack, 2)
    assert open_sessions(rack) == 0
    read(fleet, rack)
    assert open_sessions(rack) == 1


def test_a_token_that_the_bmc_gave_and_does_not_take_is_asked_for_once(rack: Rack, fleet: BmcPool) -> None:
    useless = {"X-Auth-Token": "t", "Location": f"{SESSIONS}/1"}
    rack.server.fault(Status(status=201, headers=useless), on="POST")
    assert (set(outcomes(fleet, rack, 4)), asked(rack).count(LOGIN)) == ({Outcome.UNCHANGED}, 1)


def test_a_session_whose_bmc_leads_elsewhere_to_end_it_is_ended_there_and_nowhere_else(rack: Rack) -> None:
    elsewhere = {"X-Auth-Token": "t", "Location": f"http://127.0.0.9:1{SESSIONS}/7"}
    rack.server.fault(Status(status=201, headers=elsewhere), on="POST")
    with rack.fleet() as fleet:
        rack.server.service.sessions._credentials = None  # any token does
        outcomes(fleet, rack, 2)
        asked(rack)
    assert asked(rack) == [("DELETE", f"{SESSIONS}/7")]


def test_a_wrong_password_counts_once_a_job(rack: Rack) -> None:
    """The second job tries it by a session, and no other: the challenge of the BMC names basic authentication."""
    write_credentials(rack.folder, password="wrong")
    with rack.fleet() as fleet:
        results = [read(fleet, rack) for _ in range(4)]
        assert asked(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM]
    assert {result.outcome for result in results} == {Outcome.STALLED}
    assert {result.message for result in results} == {
        f"GET {rack.server.url}{rack.machine.path}: 401: "
        'the BMC refuses the user name or password of credentials "rack"'
    }, "one event"


@pytest.mark.parametrize("fault", [Drop(applied=False), Status(status=503), Status(status=404)])
def test_a_password_that_the_bmc_accepts_later_is_sent_whatever_a_login_comes_to(
    rack: Rack, fleet: BmcPool, fault: Fault
) -> None:
    write_credentials(rack.folder, password="another")
    rack.server.fault(fault, on="POST", times=9)
    assert read(fleet, rack).outcome is Outcome.STALLED
    rack.server.service.sessions._credentials = {USER: "another"}
    read(fleet, rack)
    assert outcomes(fleet, rack, 2) == [Outcome.UNCHANGED] * 2


def test_a_bmc_that_names_basic_authentication_though_it_is_off_is_read_from_the_second_job_on(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    permits = rack.server.service.sessions.permits
    monkeypatch.setattr(
        rack.server.service.sessions, "permits", lambda headers: "X-Auth-Token" in headers and permits(headers)
    )
    assert outcomes(fleet, rack, 3) == [Outcome.STALLED, *[Outcome.UNCHANGED] * 2]
    assert asked(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM]
    rack.server.service.sessions.end()
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    assert asked(rack) == [SYSTEM, LOGIN, SYSTEM]


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer realm="BMC"'}])
def test_where_basic_authentication_is_off_a_session_is_opened_at_once(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, challenge: dict[str, str]
) -> None:
    permits = rack.server.service.sessions.permits
    monkeypatch.setattr(
        rack.server.service.sessions, "permits", lambda headers: "X-Auth-Token" in headers and permits(headers)
    )
    monkeypatch.setattr(server, "CHALLENGE", challenge)
    with rack.fleet() as fleet:
        assert (set(outcomes(fleet, rack, 2)), asked(rack)) == ({Outcome.UNCHANGED}, [SYSTEM, LOGIN, SYSTEM, SYSTEM])
    assert [method for method, _ in asked(rack)] == ["DELETE"]
    monkeypatch.undo()
    assert open_sessions(rack) == 0


def test_a_bmc_that_says_nothing_of_what_it_takes_is_tried_by_a_session_once(
    rack: Rack, fleet: BmcPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHALLENGE", {})
    write_credentials(rack.folder, password="wrong")
    assert (set(outcomes(fleet, rack, 3)), asked(rack)) == ({Outcome.STALLED}, [SYSTEM, LOGIN, SYSTEM, SYSTEM])


def test_a_password_that_is_changed_ends_the_session_of_the_one_before(rack: Rack) -> None:
    with rack.fleet() as fleet:
        outcomes(fleet, rack, 2)
        rack.server.service.sessions._credentials = {USER: "another"}
        write_credentials(rack.folder, password="another")
        asked(rack)
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert [method for method, _ in asked(rack)] == ["DELETE", "GET"]
    assert rack.server.connections == 2


def test_what_nobody_has_used_for_a_while_is_closed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    with rack.fleet() as fleet:
        outcomes(fleet, rack, 2)
        assert open_sessions(rack) == 1
        monkeypatch.setattr(worker_pool, "_UNUSED_S", -1)
        fleet.finished()
        until(lambda: open_sessions(rack) == 0)
        monkeypatch.undo()
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
    until(lambda: not rack.server.is_busy)


@pytest.mark.parametrize(
    "fault", [Drop(applied=False), Status(status=404, body=b'"no"'), Redirect(location="http://[")]
)
def test_a_logout_that_fails_holds_up_nobody(rack: Rack, fault: Fault) -> None:
    with rack.fleet() as fleet:
        outcomes(fleet, rack, 2)
        rack.server.fault(fault, on="DELETE")
    assert open_sessions(rack) == 1


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer realm="BMC"'}])
def test_finding_p5_a_bmc_with_basic_authentication_off_is_read_if_no_system_is_named(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, challenge: dict[str, str]
) -> None:
    """It answers the service root without a login, which proves nothing about the password."""
    rack.server.service.takes_basic = False
    monkeypatch.setattr(server, "CHALLENGE", challenge)
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 3, system=None)) == {Outcome.UNCHANGED}
        assert asked(rack) == [ROOT, COLLECTION, LOGIN, COLLECTION, SYSTEM, SYSTEM, SYSTEM]
    assert [method for method, _ in asked(rack)] == ["DELETE"]


def test_the_service_root_alone_opens_no_session(rack: Rack, fleet: BmcPool) -> None:
    """A wrong password counts once for each job, and twice for the first one at a BMC without a challenge."""
    rack.server.service.takes_basic = False
    write_credentials(rack.folder, password="wrong")
    assert set(outcomes(fleet, rack, 3, system=None)) == {Outcome.STALLED}
    assert asked(rack) == [ROOT, COLLECTION, LOGIN, *[ROOT, COLLECTION] * 2]


@pytest.mark.parametrize("takes_basic", [True, False])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_finding_p5_a_login_that_is_redirected_within_the_bmc_is_followed(
    rack: Rack, takes_basic: bool, status: int
) -> None:
    rack.server.service.takes_basic, rack.server.service.redirects_logins = takes_basic, status
    redirected = ("POST", f"{SESSIONS}/")
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 3)) == {Outcome.UNCHANGED}
        again = [] if takes_basic else [SYSTEM]
        assert asked(rack) == [SYSTEM, LOGIN, redirected, *again, SYSTEM, SYSTEM]
    assert [method for method, _ in asked(rack)] == ["DELETE"]


ELSEWHERE = [
    pytest.param(302, "http://127.0.0.9:1/redfish/v1/SessionService/Sessions/", id="another host"),
    pytest.param(307, "https://{host}/redfish/v1/SessionService/Sessions/", id="another scheme"),
    pytest.param(308, "//127.0.0.9:1/redfish/v1/SessionService/Sessions/", id="another host, without a scheme"),
    pytest.param(301, "http://[", id="nonsense"),
    pytest.param(303, "/redfish/v1/SessionService/Sessions/", id="what would be read"),
    pytest.param(307, SESSIONS, id="in circles"),
]


@pytest.mark.parametrize(("status", "location"), ELSEWHERE)
def test_finding_p5_the_password_goes_on_being_used_if_a_login_is_redirected_elsewhere(
    rack: Rack, fleet: BmcPool, status: int, location: str
) -> None:
    host = rack.server.url.partition("//")[2]
    rack.server.fault(Redirect(location=location.format(host=host), status=status), on="POST", times=9)
    assert set(outcomes(fleet, rack, 4)) == {Outcome.UNCHANGED}
    assert asked(rack).count(LOGIN) == (4 if location == SESSIONS else 1)  # at most three redirects, once an hour


@pytest.mark.parametrize(("status", "location"), ELSEWHERE[:-1])
def test_finding_p5_without_basic_authentication_the_message_names_the_login_that_was_redirected(
    rack: Rack, status: int, location: str
) -> None:
    rack.server.service.takes_basic = False
    location = location.format(host=rack.server.url.partition("//")[2])
    rack.server.fault(Redirect(location=location, status=status), on="POST", times=9)
    with rack.fleet() as fleet:
        results = [read(fleet, rack, system=None) for _ in range(2)]
    assert {result.outcome for result in results} == {Outcome.STALLED}
    for result in results:  # the second job opens no session, and says the same
        assert result.message == (
            f"GET {rack.server.url}/redfish/v1/Systems: 401: the BMC refuses the user name or password of credentials "
            f'"rack" by basic authentication, and opens no session: POST {rack.server.url}{SESSIONS}: {status}: '
            f"redirected to {location}, where gitboot does not follow"
        )


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_password_goes_from_https_to_http(make_rack: MakeRack, tmp_path: Path, status: int) -> None:
    authority = Authority(tmp_path)
    plain, rack = make_rack(), make_rack(tls=authority.server_context())
    rack.server.fault(Redirect(location=f"{plain.server.url}{SESSIONS}", status=status), on="POST", times=9)
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 3, ca=authority.pem)) == {Outcome.UNCHANGED}
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
def test_whatever_a_login_comes_to_the_password_goes_on_being_used(rack: Rack, fault: Fault) -> None:
    rack.server.fault(fault, on="POST", times=9)
    with rack.fleet() as fleet:
        assert set(outcomes(fleet, rack, 4)) == {Outcome.UNCHANGED}
        assert asked(rack) == [SYSTEM, LOGIN, SYSTEM, SYSTEM, SYSTEM]
    has_session = isinstance(fault, Body)  # its headers are those of a session that was opened
    assert [method for method, _ in asked(rack)] == ["DELETE"] * has_session


def test_a_login_that_drips_holds_up_one_job_and_the_password_goes_on_being_used(rack: Rack) -> None:
    rack.server.fault(Slow(every_s=1), on="POST", times=9)  # minutes, until its answer would be whole
    with rack.connect(read_timeout_s=1) as bmc:
        bmc.observe()
        bmc.login.keeps = True
        assert {bmc.observe().power for _ in range(3)} == {"On"}
        assert asked(rack).count(LOGIN) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'"no"', b"[]", b'{"error": "no"}', b'{"error": null}'])
def test_a_401_opens_a_session_whatever_its_body_is(rack: Rack, fleet: BmcPool, body: bytes) -> None:
    rack.server.fault(Status(status=401, body=body))
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    assert asked(rack)[1] == LOGIN


def test_without_basic_authentication_a_bmc_whose_sessions_are_taken_is_busy_and_not_refused(
    rack: Rack, fleet: BmcPool
) -> None:
    rack.server.service.takes_basic = False
    sessions = rack.server.service.sessions
    for _ in range(8):
        assert sessions.log_in({"UserName": USER, "Password": PASSWORD}).status == 201
    for _ in range(2):
        result = read(fleet, rack)
        assert (result.outcome, result.retry_after_s) == (Outcome.WAITING, 30)
        assert result.message.startswith(f"POST {rack.server.url}{SESSIONS}: 503 ")
    sessions.end()
    assert read(fleet, rack).outcome is Outcome.UNCHANGED


def test_without_basic_authentication_a_session_that_has_ended_is_opened_anew_at_once(
    rack: Rack, fleet: BmcPool
) -> None:
    rack.server.service.takes_basic = False
    read(fleet, rack)
    for _ in range(3):
        rack.server.service.sessions.end()
        asked(rack)
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert asked(rack) == [SYSTEM, LOGIN, SYSTEM]


@pytest.mark.parametrize("has_session", [True, False])
def test_basic_authentication_may_be_turned_off_and_on_meanwhile(rack: Rack, fleet: BmcPool, has_session: bool) -> None:
    for _ in range(2 if has_session else 1):
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
    rack.server.service.takes_basic = False
    rack.server.service.sessions.end()
    if not has_session:
        rack.server.fault(Status(status=503), on="POST")  # the login that a second job begins with
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    rack.server.service.takes_basic = True
    rack.server.service.sessions.end()
    assert set(outcomes(fleet, rack, 2)) == {Outcome.UNCHANGED}
    asked(rack)
    assert read(fleet, rack).outcome is Outcome.UNCHANGED
    assert asked(rack) == [SYSTEM]


def test_without_basic_authentication_a_token_that_the_bmc_refuses_is_asked_for_once(rack: Rack) -> None:
    rack.server.service.takes_basic = False
    useless = {"X-Auth-Token": "t", "Location": f"{SESSIONS}/1"}
    rack.server.fault(Status(status=201, headers=useless), on="POST", times=9)
    with rack.fleet() as fleet:
        results = [read(fleet, rack) for _ in range(3)]
        assert asked(rack).count(LOGIN) == 1
    assert {result.outcome for result in results} == {Outcome.STALLED}
    assert all("the BMC refuses the token of the session that it opened" in result.message for result in results)


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
def test_a_session_is_ended_wherever_its_bmc_says_that_it_is(
    rack: Rack, status: int, headers: dict[str, str], body: bytes
) -> None:
    rack.server.fault(Status(status=status, headers={"x-auth-token": "t"} | headers, body=body), on="POST")
    with rack.fleet() as fleet:
        rack.server.service.sessions._credentials = None  # any token does
        for _ in range(3):
            read(fleet, rack)
        assert asked(rack).count(LOGIN) == 1
    assert asked(rack) == [("DELETE", SESSION_7)]


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
