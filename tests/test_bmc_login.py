"""Sessions: opened where a BMC is asked again and again, ended when it is not, and done without where there is none."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gitboot.bmc import login, pool
from gitboot.bmc.job import Outcome, Result
from gitboot.bmc.pool import BmcPool
from tests.bmc_rack import PASSWORD, USER, MakeRack, Rack, racks, write_credentials
from tests.redfish import service
from tests.redfish.faults import Drop, Status
from tests.redfish.sessions import SESSIONS

LOGIN = ("POST", SESSIONS)


@pytest.fixture
def make_rack(tmp_path: Path) -> Iterator[MakeRack]:
    with racks(tmp_path) as make:
        yield make


@pytest.fixture
def rack(make_rack: MakeRack) -> Rack:
    return make_rack()


def read(fleet: BmcPool, rack: Rack) -> Result:
    """Let its BMC be read once more, with nothing wanted."""
    job = rack.job(None)
    assert fleet.submit([job])
    return fleet.finished(wait_all=True)[job.uuid]


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


def test_a_bmc_that_is_asked_once_has_no_session(rack: Rack) -> None:
    with rack.fleet() as fleet:
        read(fleet, rack)
        assert asked(rack) == [("GET", rack.machine.path)]
    assert (asked(rack), open_sessions(rack)) == ([], 0)


def test_one_that_is_asked_again_has_one_until_the_end(rack: Rack) -> None:
    system = ("GET", rack.machine.path)
    with rack.fleet() as fleet:
        for _ in range(4):
            assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert asked(rack) == [system, LOGIN, system, system, system]
        assert open_sessions(rack) == 1
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


def test_a_session_that_the_bmc_has_ended_is_opened_anew(rack: Rack) -> None:
    system = ("GET", rack.machine.path)
    with rack.fleet() as fleet:
        for _ in range(3):
            read(fleet, rack)
        rack.server.service.sessions.end()
        asked(rack)
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert asked(rack) == [system, system]  # refused; and by the password
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert asked(rack) == [LOGIN, system]


@pytest.mark.parametrize("status", [404, 405, 501, 503, 401, 500])
def test_where_no_session_is_to_be_had_the_password_does(rack: Rack, status: int) -> None:
    system = ("GET", rack.machine.path)
    rack.server.fault(Status(status=status, headers={"Retry-After": "30"}), on="POST")
    with rack.fleet() as fleet:
        for _ in range(4):
            assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert asked(rack) == [system, LOGIN, system, system, system]
    assert asked(rack) == []


def test_a_bmc_whose_sessions_are_all_taken_is_read_all_the_same(rack: Rack) -> None:
    taken = [rack.server.service.sessions.log_in({"UserName": USER, "Password": PASSWORD}) for _ in range(8)]
    assert {each.status for each in taken} == {201}
    with rack.fleet() as fleet:
        assert {read(fleet, rack).outcome for _ in range(3)} == {Outcome.UNCHANGED}
    assert open_sessions(rack) == 8


def test_where_none_was_to_be_had_it_is_tried_again_later(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_NOT_AGAIN_FOR_S", 0)
    rack.server.fault(Status(status=503), on="POST")
    with rack.fleet() as fleet:
        read(fleet, rack)
        read(fleet, rack)
        assert open_sessions(rack) == 0
        read(fleet, rack)
        assert open_sessions(rack) == 1


@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": "t"}, {"Location": f"{SESSIONS}/1"}])
def test_a_session_that_cannot_be_used_or_ended_is_none(rack: Rack, headers: dict[str, str]) -> None:
    rack.server.fault(Status(status=201, headers=headers), on="POST")
    with rack.fleet() as fleet:
        assert {read(fleet, rack).outcome for _ in range(3)} == {Outcome.UNCHANGED}
        assert asked(rack).count(LOGIN) == 1
    assert asked(rack) == []


def test_a_token_that_the_bmc_gave_and_does_not_take_is_asked_for_once(rack: Rack) -> None:
    useless = {"X-Auth-Token": "t", "Location": f"{SESSIONS}/1"}
    rack.server.fault(Status(status=201, headers=useless), on="POST")
    with rack.fleet() as fleet:
        assert {read(fleet, rack).outcome for _ in range(4)} == {Outcome.UNCHANGED}
        assert asked(rack).count(LOGIN) == 1


def test_a_session_whose_bmc_leads_elsewhere_to_end_it_is_ended_there_and_nowhere_else(rack: Rack) -> None:
    elsewhere = {"X-Auth-Token": "t", "Location": f"http://127.0.0.9:1{SESSIONS}/7"}
    rack.server.fault(Status(status=201, headers=elsewhere), on="POST")
    with rack.fleet() as fleet:
        rack.server.service.sessions._credentials = None  # any token does
        read(fleet, rack)
        read(fleet, rack)
        asked(rack)
    assert asked(rack) == [("DELETE", f"{SESSIONS}/7")]


def test_a_wrong_password_is_tried_once_and_no_session_with_it(rack: Rack) -> None:
    write_credentials(rack.folder, password="wrong")
    with rack.fleet() as fleet:
        for _ in range(3):
            assert read(fleet, rack).outcome is Outcome.STALLED
        assert asked(rack) == [("GET", rack.machine.path)] * 3


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer realm="BMC"'}])
def test_where_basic_authentication_is_off_a_session_is_opened_at_once(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, challenge: dict[str, str]
) -> None:
    system, permits = ("GET", rack.machine.path), rack.server.service.sessions.permits
    monkeypatch.setattr(
        rack.server.service.sessions, "permits", lambda headers: "X-Auth-Token" in headers and permits(headers)
    )
    monkeypatch.setattr(service, "CHALLENGE", challenge)
    with rack.fleet() as fleet:
        assert {read(fleet, rack).outcome for _ in range(2)} == {Outcome.UNCHANGED}
        assert asked(rack) == [system, LOGIN, system, system]
    assert [method for method, _ in asked(rack)] == ["DELETE"]
    monkeypatch.undo()
    assert open_sessions(rack) == 0


def test_a_bmc_that_says_nothing_of_what_it_takes_is_tried_by_a_session_once(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = ("GET", rack.machine.path)
    monkeypatch.setattr(service, "CHALLENGE", {})
    write_credentials(rack.folder, password="wrong")
    with rack.fleet() as fleet:
        assert {read(fleet, rack).outcome for _ in range(3)} == {Outcome.STALLED}
        assert asked(rack) == [system, LOGIN, system, system]


def test_a_password_that_is_changed_ends_the_session_of_the_one_before(rack: Rack) -> None:
    with rack.fleet() as fleet:
        read(fleet, rack)
        read(fleet, rack)
        rack.server.service.sessions._credentials = {USER: "another"}
        write_credentials(rack.folder, password="another")
        asked(rack)
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
        assert [method for method, _ in asked(rack)] == ["DELETE", "GET"]
    assert rack.server.connections == 2


def test_what_nobody_has_used_for_a_while_is_closed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    with rack.fleet() as fleet:
        read(fleet, rack)
        read(fleet, rack)
        assert open_sessions(rack) == 1
        monkeypatch.setattr(pool, "_UNUSED_S", -1)
        fleet.finished()
        until(lambda: open_sessions(rack) == 0)
        monkeypatch.undo()
        assert read(fleet, rack).outcome is Outcome.UNCHANGED
    until(lambda: not rack.server.is_busy)


def test_at_the_end_a_bmc_that_does_not_answer_holds_up_nobody(rack: Rack) -> None:
    with rack.fleet() as fleet:
        read(fleet, rack)
        read(fleet, rack)
        rack.server.fault(Drop(applied=False), on="DELETE")
    assert open_sessions(rack) == 1


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
