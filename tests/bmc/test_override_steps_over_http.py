"""The edges that a BMC has: each row of the list of sequences, walked on a double over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gitboot.bmc.identity import Another, CannotTell, Same, accept
from gitboot.bmc.override_session import Outcome, TaskResult
from gitboot.bmc.override_state import Override, State
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, SET_AT_BMC, MakeRack, Rack
from tests.helpers.fleets import uuid_of
from tests.helpers.redfish_double.machine import STARTED, Machine
from tests.helpers.redfish_double.profiles import GENERIC, PROFILES, STUCK, Profile
from tests.helpers.redfish_double.server import Status

OTHER = SystemUuid(uuid_of("another machine"))
UNSET = "03000200-0400-0500-0006-000700080009"
DIRECT = replace(
    ONCE,
    override=Override(
        enabled=OverrideEnabled.ONCE,
        target=OverrideTarget.UEFI_HTTP,
        mode="UEFI",
        http_boot_uri="http://boot.test/install.efi",
    ),
)


def _swap_board(machine: Machine) -> None:
    """Let another machine answer at the same BMC."""
    machine.uuid, machine.serial = OTHER, "CZ29200XYZ"


def _condition(result: TaskResult) -> str:
    assert result.outcome is Outcome.STALLED
    return result.message.partition(":")[0]


def _state(rack: Rack) -> State:
    return rack.records[rack.machine.name][ONCE.reason].state


def _name(profile: Profile) -> str:
    return profile.name


# E25: the BMC belongs to a system with another UUID


def test_e25_nothing_is_set_on_another_machine(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.bring_about(serial="J4JMO72")
    assert _condition(result) == "AnotherMachine"
    for named in (
        OTHER,
        "CZ29200XYZ",
        uuid_of("web01"),
        "J4JMO72",
        f'reports: {{uuid: {OTHER}, serial: "CZ29200XYZ"}}',
    ):
        assert named in result.message
    assert (rack.machine.writes, rack.written) == ([], [])
    assert isinstance(result.identified, Another)


@pytest.mark.parametrize(
    ("case", "named"),
    [("its UUID", {"reports_uuid": OTHER}), ("its serial number", {"reports_serial": "cz29200xyz"})],
)
def test_e25_what_a_bmc_reports_can_be_named(rack: Rack, case: str, named: dict[str, Any]) -> None:
    _swap_board(rack.machine)
    assert rack.bring_about(**named).outcome is Outcome.APPLIED, case


def test_e25_a_person_can_accept_it(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.bring_about()
    assert result.pinned is not None
    rack.pins["web01"] = accept(result.pinned, at=rack.now)
    result = rack.bring_about()
    assert (result.outcome, result.identified) == (Outcome.APPLIED, Same(accepted=True))


def test_e25_what_two_machines_show_is_nobodys(make_rack: MakeRack) -> None:
    rack = make_rack(*(Machine(name, uuid=uuid_of(name), system=name) for name in ("web01", "web02")))
    for machine in rack.machines:
        machine.uuid, machine.serial = OTHER, "BATCH-2042"
    conditions = [_condition(rack.bring_about(machine=machine)) for machine in rack.machines]
    assert conditions == ["AnotherMachine"] * 2
    results = [rack.bring_about(machine=machine) for machine in rack.machines]
    assert [type(result.identified) for result in results] == [CannotTell, CannotTell]
    assert {result.outcome for result in results} == {Outcome.APPLIED}


def test_an_override_is_withdrawn_only_on_the_system_on_which_it_was_set(rack: Rack) -> None:
    rack.bring_about()
    its = rack.machine.uuid, rack.machine.serial
    _swap_board(rack.machine)
    for wanted in (None, ONCE):
        assert _condition(rack.bring_about(wanted)) == "AnotherMachine"
    assert (len(rack.machine.writes), _state(rack)) == (1, State.CONFIRMED)
    rack.machine.uuid, rack.machine.serial = its
    rack.bring_about(None)
    assert (rack.machine.override["BootSourceOverrideEnabled"], _state(rack)) == ("Disabled", State.WITHDRAWN)


# E27: LastResetTime never moves, direct uki


def test_e27_a_machine_whose_marks_never_move_is_installed_once(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    for _ in range(4):
        rack.bring_about(DIRECT)
        rack.boot()
        rack.wait(120)
        rack.bring_about(DIRECT)
    assert [boot.target for boot in rack.machine.boots] == ["UefiHttp", "None", "None", "None"]
    assert _state(rack) is State.LOST


def test_e27_not_after_a_crash_either(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    rack.bring_about(DIRECT)
    rack.records["web01"][ONCE.reason] = replace(rack.records["web01"][ONCE.reason], state=State.RECORDED)
    rack.boot()
    assert (_condition(rack.bring_about(DIRECT)), len(rack.machine.writes)) == ("NeedsOperator", 1)


def test_e27_nor_after_a_window_that_interrupted_it(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    rack.bring_about(DIRECT)
    rack.boot()
    rack.bring_about(None)
    rack.bring_about(DIRECT)
    rack.boot()
    assert [boot.target for boot in rack.machine.boots] == ["UefiHttp", "None"]


# E34: a BMC's firmware update or factory reset: its clock goes to 1970, or to another offset

Events = tuple[Callable[[Rack], object], ...]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TROUBLES: dict[str, Callable[[Machine], None]] = {
    "a factory reset": lambda machine: machine.restart_bmc(clock=EPOCH, forgets=True),
    "one whose clock is right": lambda machine: machine.restart_bmc(forgets=True),
    "one to another offset": lambda machine: machine.restart_bmc(clock=machine.now + timedelta(hours=9), forgets=True),
    "one, and then the clock is set": lambda machine: _restart_and_set_clock(machine),
}


def _restart_and_set_clock(machine: Machine) -> None:
    machine.restart_bmc(clock=EPOCH, forgets=True)
    machine.set_clock(machine.now)
    machine.last_reset = machine.state_time = machine.bmc_now  # as some write it when their clock is set


@pytest.mark.parametrize("profile", [each for each in PROFILES.values() if each.manager_shows_restarts], ids=_name)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_e34_what_a_bmc_forgets_is_lost_and_neither_consumed_nor_set_again(
    make_rack: MakeRack, profile: Profile, trouble: str
) -> None:
    rack = make_rack(profile=profile)
    rack.see_marks_move()
    rack.bring_about()
    set_once = len(rack.machine.writes)
    rack.wait(3600)
    TROUBLES[trouble](rack.machine)
    rack.wait(120)
    for _ in range(3):
        result = rack.bring_about()
        rack.wait(120)
    assert (_state(rack), len(rack.machine.writes), result.outcome) == (State.LOST, set_once, Outcome.UNCHANGED)


def _clock_at(year: int) -> Callable[[Rack], object]:
    return lambda rack: rack.machine.set_clock(datetime(year, 1, 1, tzinfo=UTC))


def _clock_set_by(hours: int) -> Callable[[Rack], object]:
    return lambda rack: rack.machine.set_clock(rack.machine.now + timedelta(hours=hours))


def _hide_manager(rack: Rack) -> None:
    rack.machine.profile = replace(GENERIC, manager=False)


@pytest.mark.parametrize(
    ("case", "before", "after", "state"),
    [
        ("it was set", (), (_clock_set_by(9), Rack.boot), State.LOST),
        ("it was set back", (), (_clock_set_by(-9), Rack.boot), State.LOST),
        ("it was behind all the time", (_clock_at(2003), Rack.see_marks_move), (Rack.boot,), State.CONSUMED),
        ("it was ahead all the time", (_clock_at(2099), Rack.see_marks_move), (Rack.boot,), State.CONSUMED),
        # Which is what BMCs show of what has never been, too.
        ("it stands in 1970", (_clock_at(1970), Rack.see_marks_move), (Rack.boot,), State.LOST),
        ("so it does at each boot", (_clock_at(1970), Rack.see_marks_move), (Rack.boot, Rack.boot), State.LOST),
        ("the Manager cannot be read", (_hide_manager,), (Rack.boot,), State.CONSUMED),
    ],
)
def test_e34_what_a_boot_proves_by_the_clock_of_a_bmc(
    rack: Rack, case: str, before: Events, after: Events, state: State
) -> None:
    for event in before:
        event(rack)
    rack.bring_about()
    for event in after:
        event(rack)
        rack.bring_about()
    assert (_state(rack), len(rack.machine.writes)) == (state, 1), case


@pytest.mark.parametrize("profile", [each for each in PROFILES.values() if each is not STUCK], ids=_name)
def test_e34_an_honest_reset_still_counts_as_one(make_rack: MakeRack, profile: Profile) -> None:
    rack = make_rack(profile=profile)
    rack.bring_about()
    rack.boot()
    rack.wait(60)
    rack.bring_about()
    proven = profile.shows_resets
    assert _state(rack) is (State.CONSUMED if proven else State.LOST)


def test_e34_the_clock_is_read_only_where_something_is_set_or_gone(rack: Rack) -> None:
    read: list[int] = []
    for step in (lambda: None, rack.bring_about, rack.bring_about, rack.boot):
        step()
        rack.server.service.requests.clear()
        rack.bring_about(ONCE if read else None)
        read.append(sum("/Managers/" in request.path for request in rack.server.service.requests))
    assert (read, rack.machine.requests[0].at) == ([0, 0, 0, 1], STARTED)


# Answers that are none yet


def _patches(rack: Rack) -> int:
    return sum(each.method == "PATCH" for each in rack.server.service.requests)


@pytest.mark.parametrize(("seconds", "most"), [(5, 1), (55, 1), (600, 2)])
def test_what_a_bmc_accepts_and_sets_later_is_waited_for_and_confirmed(rack: Rack, seconds: int, most: int) -> None:
    rack.see_marks_move()
    rack.server.service.requests.clear()
    rack.server.fault(Status(status=202, body=b"{}"), on="PATCH")
    rack.machine.write_later(seconds, SET_AT_BMC)
    for _ in range(90):
        rack.bring_about()
        rack.wait(10)
    assert (_state(rack), rack.bring_about().outcome) == (State.CONFIRMED, Outcome.UNCHANGED)
    assert _patches(rack) == most
    rack.boot()
    rack.bring_about()
    assert (_state(rack), _patches(rack)) == (State.CONSUMED, most)


def test_a_bmc_that_was_always_changed_since_is_asked_once_a_job_and_set_once_in_the_end(rack: Rack) -> None:
    rack.see_marks_move()
    rack.server.service.requests.clear()
    rack.server.fault(Status(status=412), on="PATCH", times=50)
    for number in range(1, 6):
        assert rack.bring_about().outcome is Outcome.WAITING
        assert _patches(rack) <= 4 * number  # the ETag, the ETag without quotes, *, and without If-Match
        assert _state(rack) is State.UNSENT
        rack.wait(60)
    rack.server.heal()
    assert rack.bring_about().outcome is Outcome.APPLIED
    assert _state(rack) is State.CONFIRMED


# Rule 18: what moves because a machine comes up is no mark of a reset


@pytest.fixture
def coming_up(rack: Rack) -> Rack:
    """One whose machine has left POST, and whose override was set before its system runs."""
    rack.see_marks_move()
    rack.machine.reset()
    rack.wait(rack.machine.post_s + 5)
    assert rack.bring_about().outcome is Outcome.APPLIED
    rack.wait(rack.machine.post_s)
    assert rack.machine.state == "OSRunning"
    return rack


def test_an_override_that_was_set_while_the_system_came_up_still_stands_when_it_runs(coming_up: Rack) -> None:
    coming_up.bring_about()
    assert _state(coming_up) is State.CONFIRMED
    coming_up.boot()
    coming_up.bring_about()
    assert _state(coming_up) is State.CONSUMED


def test_an_override_that_was_set_while_the_system_came_up_is_withdrawn(coming_up: Rack) -> None:
    coming_up.bring_about(None)
    assert (coming_up.machine.override["BootSourceOverrideEnabled"], _state(coming_up)) == ("Disabled", State.WITHDRAWN)


@pytest.mark.parametrize("is_booted", [True, False], ids=["a boot", "somebody else"])
def test_what_ends_an_override_while_the_system_comes_up_is_not_known(rack: Rack, is_booted: bool) -> None:
    profile = replace(GENERIC, reboot_is_a_reset=False)
    rack.machine.profile = profile
    rack.see_marks_move()
    rack.machine.reset()
    rack.wait(rack.machine.post_s + 5)
    rack.bring_about()
    if is_booted:
        rack.boot()
    else:
        rack.machine.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
        rack.wait(rack.machine.post_s)
    rack.bring_about()
    assert _state(rack) is State.LOST


# E36: two fleets or instances know one machine


def test_e36_what_somebody_else_has_set_is_booted_first(rack: Rack) -> None:
    rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    assert _condition(rack.bring_about()) == "ForeignOverride"
    rack.boot()
    assert rack.bring_about().outcome is Outcome.APPLIED
    assert rack.machine.writes == [{"Boot": SET_AT_BMC}]


def test_a_dry_run_asks_too(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.bring_about(dry_run=True)
    assert (_condition(result), result.pinned) == ("AnotherMachine", None)


def test_a_bmc_that_fails_pins_nothing(rack: Rack) -> None:
    rack.server.fault(Status(status=500), times=2)
    result = rack.bring_about()
    assert (result.pinned, result.identified) == (None, None)
