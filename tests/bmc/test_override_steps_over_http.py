"""The edges that a BMC has: each row of the list of sequences, walked on a double over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, SameMachine, UnprovenIdentity, accept_identity
from gitboot.bmc.override_session import TaskOutcome, TaskResult
from gitboot.bmc.override_state import (
    MediaShare,
    MediumState,
    OperatorCondition,
    Override,
    OverrideRecord,
    OverrideState,
    WantedOverride,
    assign_slots,
)
from gitboot.errors import BmcRejected
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, SET_AT_BMC, MakeRack, Rack
from tests.helpers.cases import sample_cases
from tests.helpers.fleets import HERE, make_uuid
from tests.helpers.redfish_double.machine import STARTED, Machine
from tests.helpers.redfish_double.profiles import (
    AMI,
    CIMC,
    GENERIC,
    IDRAC9,
    IDRAC10,
    ILO6,
    OPENBMC,
    PROFILES,
    STUCK,
    SUPERMICRO_X11,
    XCC,
    Drive,
    Drives,
    Profile,
)
from tests.helpers.redfish_double.server import Drop, Status

OTHER = SystemUuid(make_uuid("another machine"))
UNSET = "03000200-0400-0500-0006-000700080009"
DIRECT = structs.replace(
    ONCE,
    override=Override(
        enabled=OverrideEnabled.ONCE,
        target=OverrideTarget.UEFI_HTTP,
        mode="UEFI",
        http_boot_uri="http://boot.test/install.efi",
    ),
)


def _swap_board(machine: Machine) -> None:
    machine.uuid, machine.serial = OTHER, "CZ29200XYZ"


def _read_condition(result: TaskResult) -> str:
    assert result.outcome is TaskOutcome.STALLED
    return result.message.partition(":")[0]


def _read_state(rack: Rack) -> OverrideState:
    return rack.records[rack.machine.name][ONCE.reason].state


def _profile_name(profile: Profile) -> str:
    return profile.name


# E25: the BMC belongs to a system with another UUID


def test_e25_nothing_is_set_on_another_machine(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.run_task(serial="J4JMO72")
    assert _read_condition(result) == "AnotherMachine"
    for named in (
        OTHER,
        "CZ29200XYZ",
        make_uuid("web01"),
        "J4JMO72",
        f'reports: {{uuid: {OTHER}, serial: "CZ29200XYZ"}}',
    ):
        assert named in result.message
    assert (rack.machine.writes, rack.written) == ([], [])
    assert isinstance(result.identity_result, AnotherMachine)


@pytest.mark.parametrize(
    ("case", "named"),
    [("its UUID", {"reports_uuid": OTHER}), ("its serial number", {"reports_serial": "cz29200xyz"})],
)
def test_e25_a_document_can_name_the_identity_that_a_bmc_reports(rack: Rack, case: str, named: dict[str, Any]) -> None:
    _swap_board(rack.machine)
    assert rack.run_task(**named).outcome is TaskOutcome.APPLIED, case


def test_e25_an_operator_can_accept_another_identity(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.run_task()
    assert result.pinned is not None
    rack.pins["web01"] = accept_identity(result.pinned, at=rack.now)
    result = rack.run_task()
    assert (result.outcome, result.identity_result) == (TaskOutcome.APPLIED, SameMachine(accepted=True))


def test_e25_values_that_two_machines_report_identify_neither(make_rack: MakeRack) -> None:
    rack = make_rack(*(Machine(name, uuid=make_uuid(name), system=name) for name in ("web01", "web02")))
    for machine in rack.machines:
        machine.uuid, machine.serial = OTHER, "BATCH-2042"
    conditions = [_read_condition(rack.run_task(machine=machine)) for machine in rack.machines]
    assert conditions == ["AnotherMachine"] * 2
    results = [rack.run_task(machine=machine) for machine in rack.machines]
    assert [type(result.identity_result) for result in results] == [UnprovenIdentity, UnprovenIdentity]
    assert {result.outcome for result in results} == {TaskOutcome.APPLIED}


def test_an_override_is_cleared_only_on_the_system_on_which_it_was_set(rack: Rack) -> None:
    rack.run_task()
    its = rack.machine.uuid, rack.machine.serial
    _swap_board(rack.machine)
    for wanted in (None, ONCE):
        assert _read_condition(rack.run_task(wanted)) == "AnotherMachine"
    assert (len(rack.machine.writes), _read_state(rack)) == (1, OverrideState.CONFIRMED)
    rack.machine.uuid, rack.machine.serial = its
    rack.run_task(None)
    assert (rack.machine.override["BootSourceOverrideEnabled"], _read_state(rack)) == (
        "Disabled",
        OverrideState.CLEARED,
    )


# E27: LastResetTime never moves, direct uki


def test_e27_a_machine_whose_marks_never_move_is_installed_once(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    for _ in range(4):
        rack.run_task(DIRECT)
        rack.boot()
        rack.wait(120)
        rack.run_task(DIRECT)
    assert [boot.target for boot in rack.machine.boots] == ["UefiHttp", "None", "None", "None"]
    assert _read_state(rack) is OverrideState.LOST


def test_e27_a_machine_whose_marks_never_move_is_not_installed_again_after_a_crash(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    rack.run_task(DIRECT)
    rack.records["web01"][ONCE.reason] = structs.replace(
        rack.records["web01"][ONCE.reason], state=OverrideState.RECORDED
    )
    rack.boot()
    assert (_read_condition(rack.run_task(DIRECT)), len(rack.machine.writes)) == ("NeedsOperator", 1)


def test_e27_a_machine_whose_marks_never_move_is_not_installed_again_after_a_window(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    rack.run_task(DIRECT)
    rack.boot()
    rack.run_task(None)
    rack.run_task(DIRECT)
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


@pytest.mark.parametrize(
    "profile", [each for each in PROFILES.values() if each.manager_shows_restarts], ids=_profile_name
)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_e34_an_override_that_a_bmc_forgets_is_lost_and_neither_consumed_nor_set_again(
    make_rack: MakeRack, profile: Profile, trouble: str
) -> None:
    rack = make_rack(profile=profile)
    rack.observe_resets()
    rack.run_task()
    set_once = len(rack.machine.writes)
    rack.wait(3600)
    TROUBLES[trouble](rack.machine)
    rack.wait(120)
    for _ in range(3):
        result = rack.run_task()
        rack.wait(120)
    assert (_read_state(rack), len(rack.machine.writes), result.outcome) == (
        OverrideState.LOST,
        set_once,
        TaskOutcome.UNCHANGED,
    )


def _set_clock_to(year: int) -> Callable[[Rack], object]:
    return lambda rack: rack.machine.set_clock(datetime(year, 1, 1, tzinfo=UTC))


def _shift_clock(hours: int) -> Callable[[Rack], object]:
    return lambda rack: rack.machine.set_clock(rack.machine.now + timedelta(hours=hours))


def _hide_manager(rack: Rack) -> None:
    rack.machine.profile = replace(GENERIC, manager=False)


@pytest.mark.parametrize(
    ("case", "before", "after", "state"),
    [
        ("it was set", (), (_shift_clock(9), Rack.boot), OverrideState.LOST),
        ("it was set back", (), (_shift_clock(-9), Rack.boot), OverrideState.LOST),
        (
            "it was behind all the time",
            (_set_clock_to(2003), Rack.observe_resets),
            (Rack.boot,),
            OverrideState.CONSUMED,
        ),
        ("it was ahead all the time", (_set_clock_to(2099), Rack.observe_resets), (Rack.boot,), OverrideState.CONSUMED),
        # BMCs also show this if there never was an override.
        ("its clock is in 1970", (_set_clock_to(1970), Rack.observe_resets), (Rack.boot,), OverrideState.LOST),
        (
            "so it does at each boot",
            (_set_clock_to(1970), Rack.observe_resets),
            (Rack.boot, Rack.boot),
            OverrideState.LOST,
        ),
        ("the Manager cannot be read", (_hide_manager,), (Rack.boot,), OverrideState.CONSUMED),
    ],
)
def test_e34_the_clock_of_a_bmc_decides_whether_a_boot_is_proven(
    rack: Rack, case: str, before: Events, after: Events, state: OverrideState
) -> None:
    for event in before:
        event(rack)
    rack.run_task()
    for event in after:
        event(rack)
        rack.run_task()
    assert (_read_state(rack), len(rack.machine.writes)) == (state, 1), case


@pytest.mark.parametrize("profile", [each for each in PROFILES.values() if each is not STUCK], ids=_profile_name)
def test_e34_a_real_reset_still_counts_as_a_reset(make_rack: MakeRack, profile: Profile) -> None:
    rack = make_rack(profile=profile)
    rack.run_task()
    rack.boot()
    rack.wait(60)
    rack.run_task()
    proven = profile.shows_resets
    assert _read_state(rack) is (OverrideState.CONSUMED if proven else OverrideState.LOST)


def test_e34_the_clock_is_read_only_if_an_override_is_set_or_gone(rack: Rack) -> None:
    read: list[int] = []
    for step in (lambda: None, rack.run_task, rack.run_task, rack.boot):
        step()
        rack.server.service.requests.clear()
        rack.run_task(ONCE if read else None)
        read.append(sum("/Managers/" in request.path for request in rack.server.service.requests))
    assert (read, rack.machine.requests[0].at) == ([0, 0, 0, 1], STARTED)


# Responses that are not final


def _count_patches(rack: Rack) -> int:
    return sum(each.method == "PATCH" for each in rack.server.service.requests)


@pytest.mark.parametrize(("seconds", "most"), [(5, 1), (55, 1), (600, 2)])
def test_a_write_that_a_bmc_applies_later_is_awaited_and_confirmed(rack: Rack, seconds: int, most: int) -> None:
    rack.observe_resets()
    rack.server.service.requests.clear()
    rack.server.fault(Status(status=202, body=b"{}"), on="PATCH")
    rack.machine.write_later(seconds, SET_AT_BMC)
    for _ in range(90):
        rack.run_task()
        rack.wait(10)
    assert (_read_state(rack), rack.run_task().outcome, _count_patches(rack)) == (
        OverrideState.CONFIRMED,
        TaskOutcome.UNCHANGED,
        most,
    )
    rack.boot()
    rack.run_task()
    assert (_read_state(rack), _count_patches(rack)) == (OverrideState.CONSUMED, most)


def test_a_bmc_that_rejects_every_etag_gets_few_requests_a_task_and_one_write_in_the_end(rack: Rack) -> None:
    rack.observe_resets()
    rack.server.service.requests.clear()
    rack.server.fault(Status(status=412), on="PATCH", times=50)
    for number in range(1, 6):
        assert rack.run_task().outcome is TaskOutcome.WAITING
        assert _count_patches(rack) <= 4 * number  # the ETag, the ETag without quotes, *, and without If-Match
        assert _read_state(rack) is OverrideState.UNSENT
        rack.wait(60)
    rack.server.heal()
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert _read_state(rack) is OverrideState.CONFIRMED


# Rule 18: what moves because a machine comes up is no mark of a reset


@pytest.fixture
def booting_rack(rack: Rack) -> Rack:
    """A machine after POST, with an override that was set before its operating system runs."""
    rack.observe_resets()
    rack.machine.reset()
    rack.wait(rack.machine.post_s + 5)
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    rack.wait(rack.machine.post_s)
    assert rack.machine.state == "OSRunning"
    return rack


def test_an_override_that_was_set_while_the_system_boots_is_still_set_when_it_runs(booting_rack: Rack) -> None:
    booting_rack.run_task()
    assert _read_state(booting_rack) is OverrideState.CONFIRMED
    booting_rack.boot()
    booting_rack.run_task()
    assert _read_state(booting_rack) is OverrideState.CONSUMED


def test_an_override_that_was_set_while_the_system_boots_is_cleared(booting_rack: Rack) -> None:
    booting_rack.run_task(None)
    assert (booting_rack.machine.override["BootSourceOverrideEnabled"], _read_state(booting_rack)) == (
        "Disabled",
        OverrideState.CLEARED,
    )


@pytest.mark.parametrize("is_booted", [True, False], ids=["a boot", "somebody else's"])
def test_an_override_that_ends_while_the_system_boots_is_not_proven_consumed(rack: Rack, is_booted: bool) -> None:
    profile = replace(GENERIC, reboot_is_a_reset=False)
    rack.machine.profile = profile
    rack.observe_resets()
    rack.machine.reset()
    rack.wait(rack.machine.post_s + 5)
    rack.run_task()
    if is_booted:
        rack.boot()
    else:
        rack.machine.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
        rack.wait(rack.machine.post_s)
    rack.run_task()
    assert _read_state(rack) is OverrideState.LOST


# E36: two fleets or instances have the same machine


def test_e36_an_override_that_somebody_else_has_set_boots_first(rack: Rack) -> None:
    rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    assert _read_condition(rack.run_task()) == "ForeignOverride"
    rack.boot()
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert rack.machine.writes == [{"Boot": SET_AT_BMC}]


def test_a_dry_run_checks_the_identity_too(rack: Rack) -> None:
    _swap_board(rack.machine)
    result = rack.run_task(dry_run=True)
    assert (_read_condition(result), result.pinned) == ("AnotherMachine", None)


def test_a_failed_read_pins_nothing(rack: Rack) -> None:
    rack.server.fault(Status(status=500), times=2)
    result = rack.run_task()
    assert (result.pinned, result.identity_result) == (None, None)


ISO, OTHERS = "http://boot.test/assets/node/1.iso", "http://rescue.test/somebody.iso"
DISC = WantedOverride(
    reason="provision/1",
    plan_digest="d" * 64,
    override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI", medium=ISO),
)
DATA = "http://boot.test/media/4c4c4544/user-data.iso"
DISC_AND_DATA = structs.replace(DISC, override=structs.replace(DISC.override, data_medium=DATA))
SHOWING_NO_RESET = (
    "supermicro-x10",
    "supermicro-x12",
    "supermicro-grace",
    "openbmc-2021",
    "dgx",
    "cimc",
    "irmc",
    "ibmc",
)
WITH_DRIVES = [name for name, profile in PROFILES.items() if profile.drives is not Drives.ABSENT]


@pytest.fixture
def rack_with_disc(rack: Rack) -> Rack:
    rack.run_task(DISC)
    return rack


def _disc_drive(rack: Rack) -> Drive:
    return rack.machine.drives[1]


def _read_record(rack: Rack) -> OverrideRecord:
    return rack.records["web01"]["provision/1"]


def _read_medium_state(rack: Rack) -> MediumState | None:
    medium = _read_record(rack).medium
    return medium.state if medium is not None else None


@pytest.mark.parametrize("name", WITH_DRIVES)
def test_a_medium_is_inserted_and_booted_once_and_ejected_at_the_next_reset(make_rack: MakeRack, name: str) -> None:
    rack = make_rack(profile=PROFILES[name])
    result = rack.run_task(DISC)
    assert result.outcome is TaskOutcome.APPLIED, result.message
    assert [state for _, state, _ in rack.written] == [
        OverrideState.INSERTED,
        OverrideState.RECORDED,
        OverrideState.CONFIRMED,
    ]
    assert (_disc_drive(rack).image, rack.machine.drives[0].image) == (ISO, None)
    rack.boot()
    rack.run_task(DISC)
    [boot] = rack.machine.boots
    assert (boot.target, boot.medium) == (PROFILES[name].boots_cd_as, ISO)
    rack.run_task(None, keep_media=(ISO,))  # its boot was served, so the system still reads it
    assert _disc_drive(rack).image == ISO
    rack.boot()
    rack.run_task(None, keep_media=(ISO,))
    assert (_disc_drive(rack).image is not None) is (name in SHOWING_NO_RESET)
    rack.run_task(None)
    assert (_disc_drive(rack).image, _disc_drive(rack).ejected, _read_medium_state(rack)) == (
        None,
        [ISO],
        MediumState.EJECTED,
    )
    assert [each.medium for each in rack.machine.boots] == [ISO, None]


def test_virtual_media_are_not_read_again_after_their_use(rack_with_disc: Rack) -> None:
    rack_with_disc.boot()
    for _ in range(2):
        rack_with_disc.run_task(None)
    before = len(rack_with_disc.server.service.requests)
    rack_with_disc.run_task(None)
    assert len(rack_with_disc.server.service.requests) == before + 1


@pytest.mark.parametrize("profile", [GENERIC, XCC], ids=lambda profile: profile.name)
def test_an_unbooted_medium_is_ejected_after_its_override_is_cleared(make_rack: MakeRack, profile: Profile) -> None:
    rack = make_rack(profile=profile)
    rack.run_task(DISC)
    rack.run_task(None)
    assert (_read_record(rack).state, _read_medium_state(rack), _disc_drive(rack).ejected) == (
        OverrideState.CLEARED,
        MediumState.EJECTED,
        [ISO],
    )
    assert rack.machine.system()["Boot"]["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.parametrize("target", [OverrideTarget.CD, OverrideTarget.PXE])
@pytest.mark.parametrize("profile", [GENERIC, XCC], ids=lambda profile: profile.name)
def test_an_override_is_cleared_before_its_medium_is_replaced(
    make_rack: MakeRack, profile: Profile, target: OverrideTarget
) -> None:
    rack = make_rack(profile=profile)
    rack.run_task(DISC)
    rack.machine.requests.clear()
    rack.server.service.requests.clear()
    other = structs.replace(
        DISC.override, target=target, medium=ISO.replace("1", "2") if target is OverrideTarget.CD else None
    )
    assert rack.run_task(structs.replace(DISC, override=other)).outcome is TaskOutcome.APPLIED
    sent = [each.path for each in rack.server.service.requests if each.method in ("PATCH", "POST")]
    off, ejected, *more = sent
    assert (off, ejected.startswith(rack.machine.media_path)) == (rack.machine.writes and more[-1], True)
    assert (_disc_drive(rack).ejected, _disc_drive(rack).image, _read_record(rack).state) == (
        [ISO],
        other.medium,
        OverrideState.CONFIRMED,
    )
    rack.boot()
    assert [(each.target, each.medium) for each in rack.machine.boots] == [(fit_target(profile, target), other.medium)]


def fit_target(profile: Profile, target: OverrideTarget) -> str:
    return profile.boots_cd_as if target is OverrideTarget.CD else target


def _swap_medium(image: str | None) -> Callable[[Rack], object]:
    """Insert another medium long before the next reading."""

    def swap(rack: Rack) -> None:
        _disc_drive(rack).image = image
        rack.wait(600)

    return swap


def _apply(wanted: WantedOverride | None, **more: Any) -> Callable[[Rack], object]:
    return lambda rack: rack.run_task(wanted, **more)


def _switch_off(rack: Rack) -> None:
    rack.machine.reset("ForceOff")


NEWER = structs.replace(DISC, override=structs.replace(DISC.override, medium=ISO.replace("1.iso", "2.iso")))
WANT, END, GIVEN = _apply(DISC), _apply(None), _apply(None, keep_media=(ISO,))
GONE = MediumState.EJECTED


@pytest.mark.parametrize(
    ("case", "events", "lies", "ejected", "medium", "state"),
    [
        (
            "its boot was served, and it was switched off",
            (WANT, Rack.boot, GIVEN, _switch_off, GIVEN),
            None,
            [ISO],
            GONE,
            OverrideState.CONSUMED,
        ),
        # The same reading shows that the override was consumed, by the BMC's clock, and that the plan wants no more.
        (
            "a reset ends its use, whenever its boot was read",
            (WANT, Rack.boot, GIVEN, Rack.boot, GIVEN),
            None,
            [ISO],
            GONE,
            OverrideState.CONSUMED,
        ),
        ("somebody inserted another", (WANT, _swap_medium(OTHERS), END), OTHERS, [], GONE, OverrideState.CLEARED),
        (
            "it lay there before, and is not ours to eject",
            (_swap_medium(ISO), WANT, END),
            ISO,
            [],
            None,
            OverrideState.CLEARED,
        ),
        (
            "somebody ejects it while its override is set",
            (WANT, _swap_medium(None), WANT),
            ISO,
            [],
            MediumState.INSERTED,
            OverrideState.CONFIRMED,
        ),
        (
            "a newer image takes its place",
            (WANT, _apply(NEWER)),
            NEWER.override.medium,
            [ISO],
            MediumState.INSERTED,
            OverrideState.CONFIRMED,
        ),
    ],
)
def test_after_each_sequence_the_drive_and_the_records_have_the_expected_state(
    rack: Rack,
    case: str,
    events: tuple[Callable[[Rack], object], ...],
    lies: str | None,
    ejected: list[str],
    medium: MediumState | None,
    state: OverrideState,
) -> None:
    for event in events:
        event(rack)
    assert (_disc_drive(rack).image, _disc_drive(rack).ejected) == (lies, ejected), case
    assert (_read_medium_state(rack), _read_record(rack).state) == (medium, state), case


@pytest.mark.parametrize(
    "wanted", [DISC, structs.replace(DISC, override=structs.replace(DISC.override, enabled=OverrideEnabled.CONTINUOUS))]
)
def test_a_medium_of_somebody_else_stays_and_no_override_is_set(rack: Rack, wanted: WantedOverride) -> None:
    _disc_drive(rack).image = OTHERS
    result = rack.run_task(wanted)
    assert (result.outcome, result.condition) == (TaskOutcome.STALLED, OperatorCondition.FOREIGN_MEDIUM)
    assert OTHERS in result.message
    assert (_disc_drive(rack).image, rack.machine.writes, rack.written) == (OTHERS, [], [])


def test_an_override_of_somebody_else_keeps_the_medium_out(rack: Rack) -> None:
    rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    assert rack.run_task(DISC).condition is OperatorCondition.FOREIGN_OVERRIDE
    assert _disc_drive(rack).image is None


def test_a_bmc_without_a_drive_is_unsupported(make_rack: MakeRack) -> None:
    rack = make_rack(profile=STUCK)
    result = rack.run_task(DISC)
    assert (result.condition, rack.machine.writes) == (OperatorCondition.UNSUPPORTED, [])
    assert "does not have a virtual CD drive" in result.message


def test_no_override_is_set_before_the_medium_is_shown(make_rack: MakeRack) -> None:
    rack = make_rack(profile=ILO6)
    _disc_drive(rack).shows_late = True
    for _ in range(2):
        assert rack.run_task(DISC).outcome is TaskOutcome.WAITING
    assert (_disc_drive(rack).image, rack.machine.writes) == (ISO, [])
    _disc_drive(rack).shows_late = False
    rack.run_task(DISC)
    assert _read_record(rack).state is OverrideState.CONFIRMED


def test_a_consumed_boot_inserts_no_medium_again(rack_with_disc: Rack) -> None:
    rack_with_disc.boot()
    rack_with_disc.run_task(DISC)
    _disc_drive(rack_with_disc).image = None
    rack_with_disc.wait(600)
    rack_with_disc.run_task(DISC)
    assert (_read_record(rack_with_disc).state, _disc_drive(rack_with_disc).image) == (OverrideState.CONSUMED, None)


@pytest.mark.parametrize(
    ("protocols", "told"), [((), None), (("HTTP", "HTTPS", "NFS"), "HTTP")], ids=["no protocol", "with the protocol"]
)
def test_the_transfer_protocol_is_sent_only_to_drives_that_list_it(
    make_rack: MakeRack, protocols: tuple[str, ...], told: str | None
) -> None:
    rack = make_rack(profile=AMI)
    _disc_drive(rack).protocols = protocols
    rack.run_task(DISC)
    [post] = [each.json for each in rack.server.service.requests if each.method == "POST"]
    assert (post["Image"], post.get("TransferProtocolType")) == (ISO, told)


@pytest.mark.parametrize("profile", [IDRAC9, IDRAC10], ids=["idrac9", "idrac10"])
def test_a_stale_image_with_the_same_url_is_ejected_and_inserted_again_once(
    make_rack: MakeRack, profile: Profile
) -> None:
    rack = make_rack(profile=profile)
    _disc_drive(rack).stale = ISO
    assert rack.run_task(DISC).outcome is TaskOutcome.APPLIED
    assert (_disc_drive(rack).image, _disc_drive(rack).ejected) == (ISO, [ISO])
    assert _list_changes(rack)[:2] == ["EjectMedia", ISO]
    rack.server.service.requests.clear()
    rack.wait(600)
    rack.run_task(DISC)
    assert (_list_changes(rack), _disc_drive(rack).ejected) == ([], [ISO])


def test_a_drive_that_shows_an_ejected_image_counts_as_empty(make_rack: MakeRack) -> None:
    rack = make_rack(profile=SUPERMICRO_X11)
    rack.run_task(DISC)
    rack.run_task(None)
    assert (_disc_drive(rack).image, _disc_drive(rack).resource()["Image"]) == (None, ISO)
    newer = structs.replace(DISC, reason="provision/2", override=structs.replace(DISC.override, medium=OTHERS))
    assert rack.run_task(newer).outcome is TaskOutcome.APPLIED
    assert _disc_drive(rack).image == OTHERS


def test_a_drive_without_the_action_stays_empty_beside_one_that_has_it(rack: Rack) -> None:
    """Its path comes first."""
    without = Drive(_disc_drive(rack).path.removesuffix("2") + "0", _disc_drive(rack).kind, lacks_actions=True)
    rack.machine.drives.insert(0, without)
    assert rack.run_task(DISC).outcome is TaskOutcome.APPLIED
    assert (without.image, rack.machine.drives[2].image) == (None, ISO)
    assert not [each for each in rack.server.service.requests if each.method == "PATCH" and without.path in each.path]


def test_a_bmc_that_needs_the_protocol_without_listing_it_gets_it(make_rack: MakeRack) -> None:
    rack = make_rack(profile=CIMC)
    assert rack.run_task(DISC).outcome is TaskOutcome.APPLIED
    assert _disc_drive(rack).image == ISO


CIFS = ("//10.112.0.2/images/", "CIFS", ("CIFS", "HTTP", "HTTPS", "NFS"))


@pytest.mark.parametrize(
    ("profile", "share", "login"),
    [(IDRAC9, CIFS, True), (IDRAC9, ("10.112.0.2:/images/", "NFS", ()), False), (XCC, CIFS, False)],
    ids=["CIFS with credentials", "NFS", "by PATCH"],
)
def test_an_image_on_a_share_is_inserted_by_its_protocol_and_recorded_by_its_url(
    make_rack: MakeRack, profile: Profile, share: tuple[str, str, tuple[str, ...]], login: bool
) -> None:
    rack = make_rack(profile=profile)
    place, protocol, _disc_drive(rack).protocols = share
    prefix = ISO.rpartition("/")[0] + "/"
    (rack.folder / "access.toml").write_text(
        f'{HERE}[media]\n"{prefix}" = {{place = "{place}", protocol = "{protocol}"}}\n'
    )
    if login:
        (rack.folder / "rack" / "media-username").write_text("images\n")
        (rack.folder / "rack" / "media-password").write_text("share-secret\n")
    with rack.fleet() as fleet:
        fleet.submit([rack.job(DISC)])
        (result,) = fleet.take_results(wait_all=True).values()
        assert result.outcome is TaskOutcome.APPLIED, result.message
        changing = [each.json for each in rack.server.service.requests if each.method in ("PATCH", "POST")]
        [sent] = [each for each in changing if "Image" in each]
        image = place + ISO.removeprefix(prefix)
        assert sent["Image"] == image and _disc_drive(rack).image == image
        assert sent.get("TransferProtocolType") == (None if profile is XCC else protocol)
        assert (sent.get("UserName"), sent.get("Password")) == (("images", "share-secret") if login else (None, None))
        assert [each.url for each in _read_record(rack).media] == [ISO]
        rack.wait(600)
        fleet.submit([rack.job(None)])
        fleet.take_results(wait_all=True)
    assert _disc_drive(rack).ejected == [image]


def test_a_share_whose_protocol_the_drive_does_not_list_is_rejected_before_any_request(make_rack: MakeRack) -> None:
    rack = make_rack(profile=IDRAC9)
    _disc_drive(rack).protocols = ("HTTP", "HTTPS")
    share = MediaShare(prefix="http://", place="//10.112.0.2/images/", protocol="CIFS")
    bmc = rack.connect(shares=(share,))
    slots = assign_slots(bmc.media.read_slots(bmc.observe()).slots, ISO, None)
    assert slots is not None
    with pytest.raises(BmcRejected, match=r"fetches images only over HTTP, HTTPS, but .* specifies CIFS"):
        bmc.media.insert(slots[ISO], ISO)
    assert _disc_drive(rack).image is None


def _list_images(rack: Rack) -> list[str | None]:
    return [drive.image for drive in rack.machine.drives]


def _list_changes(rack: Rack) -> list[str]:
    """Return a description of the requests that changed the BMC."""
    changing = [each for each in rack.server.service.requests if each.method in ("PATCH", "POST")]
    return [(each.json or {}).get("Image") or each.path.rpartition(".")[2] for each in changing]


@pytest.mark.parametrize("name", WITH_DRIVES)
def test_user_data_is_inserted_before_the_boot_medium_and_ejected_after_it(make_rack: MakeRack, name: str) -> None:
    rack = make_rack(profile=PROFILES[name])
    result = rack.run_task(DISC_AND_DATA)
    assert result.outcome is TaskOutcome.APPLIED, result.message
    assert _list_images(rack) == [DATA, ISO], "where there is one drive for CDs alone, that boots"
    assert [each for each in _list_changes(rack) if each in (DATA, ISO)] == [DATA, ISO]
    assert [state for _, state, _ in rack.written] == [
        OverrideState.INSERTED,
        OverrideState.INSERTED,
        OverrideState.RECORDED,
        OverrideState.CONFIRMED,
    ]
    rack.boot()
    rack.run_task(DISC_AND_DATA)
    rack.run_task(None, keep_media=(ISO, DATA))
    assert _list_images(rack) == [DATA, ISO], "the system reads both still"
    rack.boot()
    rack.run_task(None, keep_media=(ISO, DATA))
    assert (_list_images(rack) == [None, None]) is (name not in SHOWING_NO_RESET)
    rack.run_task(None)
    assert [drive.ejected for drive in rack.machine.drives] == [[DATA], [ISO]]
    assert {each.state for each in _read_record(rack).media} == {MediumState.EJECTED}


def test_the_first_of_two_cd_drives_gets_the_boot_medium(rack: Rack) -> None:
    rack.machine.drives[0].types = ("CD", "DVD")
    rack.run_task(DISC_AND_DATA)
    assert _list_images(rack) == [ISO, DATA]


def test_a_bmc_with_only_one_drive_is_unsupported_and_nothing_is_inserted(rack: Rack) -> None:
    rack.machine.drives[0].types = ("Floppy",)
    result = rack.run_task(DISC_AND_DATA)
    assert (result.condition, _list_images(rack)) == (OperatorCondition.UNSUPPORTED, [None, None])
    assert f"has only the slot {_disc_drive(rack).path}" in result.message
    assert "configFrom: SystemUUID" in result.message
    assert (rack.written, rack.machine.writes) == ([], [])


@pytest.mark.parametrize("taken", [0, 1], ids=["the one for data", "the boot medium"])
def test_a_medium_of_somebody_else_in_either_drive_stays_and_the_other_drive_stays_empty(
    rack: Rack, taken: int
) -> None:
    drive = rack.machine.drives[taken]
    drive.image = OTHERS
    result = rack.run_task(DISC_AND_DATA)
    assert (result.condition, rack.written) == (OperatorCondition.FOREIGN_MEDIUM, [])
    assert f"{drive.path} has {OTHERS}" in result.message
    assert [each for each in _list_images(rack) if each is not None] == [OTHERS]


def test_new_user_data_replaces_the_old_and_the_boot_medium_stays(rack: Rack) -> None:
    rack.run_task(DISC_AND_DATA)
    rack.server.service.requests.clear()
    newer = DATA.replace("4c", "5d")
    rack.run_task(structs.replace(DISC_AND_DATA, override=structs.replace(DISC_AND_DATA.override, data_medium=newer)))
    assert (_list_images(rack), _disc_drive(rack).ejected) == ([newer, ISO], [])
    assert _list_changes(rack)[1:3] == ["EjectMedia", newer], "the override was withdrawn first"
    assert _read_record(rack).state is OverrideState.CONFIRMED


class Killed(Exception):
    """Fail like SIGKILL: no code after it runs."""


CRASHES = [  # in an order in which those next to each other differ little
    (profile, wants, nth, kept)
    for wants, most in ((DISC, 6), (DISC_AND_DATA, 9))
    for nth in range(1, most + 1)
    for profile, kept in ((GENERIC, False), (XCC, False), (XCC, True), (GENERIC, True))
]


@pytest.mark.parametrize(
    ("profile", "wants", "nth", "kept"),
    sample_cases(CRASHES, one_in=3),
    ids=lambda value: value.name if isinstance(value, Profile) else None,
)
def test_after_a_crash_at_any_step_media_boot_once_and_no_medium_remains(
    make_rack: MakeRack, monkeypatch: pytest.MonkeyPatch, profile: Profile, wants: WantedOverride, nth: int, kept: bool
) -> None:
    rack = make_rack(profile=profile)
    count, write = 0, rack.write

    def killing(uuid: object, record: OverrideRecord) -> None:
        nonlocal count
        count += 1
        if count != nth or kept:
            write(rack.uuids["web01"], record)
        if count == nth:
            raise Killed

    monkeypatch.setattr(rack, "write", killing)
    for wanted in (wants, None):
        for _ in range(3):
            try:
                rack.run_task(wanted)
            except Killed:
                continue
            finally:
                assert wants is not DISC_AND_DATA or _list_images(rack)[1] is None or _list_images(rack)[0] == DATA, (
                    "it would boot without"
                )
            rack.wait(90)
    assert _list_images(rack) == [None, None]
    assert [drive.ejected for drive in rack.machine.drives] == [[DATA] if wants is DISC_AND_DATA else [], [ISO]]
    assert rack.machine.system()["Boot"]["BootSourceOverrideEnabled"] == "Disabled"
    assert count >= nth


@pytest.mark.parametrize("applied", [False, True])
def test_a_medium_is_ejected_even_if_the_response_to_the_insert_was_lost(make_rack: MakeRack, applied: bool) -> None:
    rack = make_rack(profile=OPENBMC)
    rack.server.fault(Drop(applied=applied), on="POST")
    assert rack.run_task(DISC).outcome is TaskOutcome.WAITING
    assert (_disc_drive(rack).image == ISO, _read_record(rack).state) == (applied, OverrideState.INSERTED)
    rack.wait(90)
    rack.run_task(None)
    assert (_disc_drive(rack).image, _read_medium_state(rack)) == (None, MediumState.EJECTED)


def test_a_dry_run_shows_the_post_and_does_not_send_it(make_rack: MakeRack) -> None:
    rack = make_rack(profile=IDRAC9)
    result = rack.run_task(DISC, dry_run=True)
    action = f"{_disc_drive(rack).path}/Actions/VirtualMedia.InsertMedia"
    assert result.message == f'would POST {action}: {{"Image": "{ISO}"}}'
    assert (_disc_drive(rack).image, rack.written) == (None, [])
