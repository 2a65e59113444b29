"""Power steps: a table of cases, and each step at BMCs that obey, refuse or report wrong values."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, IdentityResult, SameMachine
from gitboot.bmc.override_session import TaskOutcome
from gitboot.bmc.override_state import (
    AskOperator,
    BmcObservation,
    Override,
    OverrideRecord,
    OverrideState,
    ResetMarks,
    Wait,
)
from gitboot.bmc.power_steps import (
    PowerChangeStep,
    PowerOperation,
    PowerRecord,
    PowerRecordState,
    RequestReset,
    ResetType,
    WantedPowerChange,
    WritePowerRecord,
    next_power_step,
)
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, MakeRack, Rack
from tests.helpers.cases import for_each
from tests.helpers.fleets import at
from tests.helpers.redfish_double.profiles import GENERIC
from tests.helpers.redfish_double.server import Drop, Status

NOON = at("20T12:00")
ALL_RESETS = frozenset(ResetType)
PXE = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE)
MARKS_RUNNING = ResetMarks(
    last_reset_time="2026-11-17T12:00:00Z",
    boot_progress="OSRunning",
    boot_progress_time="2026-11-17T12:01:30Z",
    settled=True,
)
RESET = structs.replace(
    MARKS_RUNNING, last_reset_time="2026-11-20T12:00:05Z", boot_progress="OSBootStarted", settled=False
)
UP = structs.replace(RESET, boot_progress="OSRunning", boot_progress_time="2026-11-20T12:02:00Z", settled=True)
RESTART = WantedPowerChange(
    reason="power/check/1", operation=PowerOperation.RESTART, override_reason="maintenance/check/1", may_start_now=True
)
GRACEFUL = structs.replace(RESTART, operation=PowerOperation.GRACEFUL_RESTART)
ON = WantedPowerChange(
    reason="provision/1", operation=PowerOperation.ON, override_reason="maintenance/check/1", may_start_now=True
)


def make_observation(**more: Any) -> BmcObservation:
    given = {"override": PXE, "marks": MARKS_RUNNING, "power": "On", "runs_os": True, "reset_types": ALL_RESETS, **more}
    return BmcObservation(system="/redfish/v1/Systems/1", **given)


OFF = make_observation(
    power="Off", runs_os=False, marks=structs.replace(MARKS_RUNNING, settled=False, boot_progress="None")
)
NO_OVERRIDE_SHOWN = Override(enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE)


def override_record(state: OverrideState = OverrideState.CONFIRMED, **more: Any) -> OverrideRecord:
    given = {"plan_digest": "d" * 64, "override": PXE, "marks": MARKS_RUNNING, "at": NOON, **more}
    return OverrideRecord(reason="maintenance/check/1", state=state, **given)


def reset_record(state: PowerRecordState, type: ResetType = ResetType.FORCE_RESTART, *, ago: int = 120) -> PowerRecord:
    instant = NOON - timedelta(seconds=ago)
    return PowerRecord(reason="power/check/1", type=type, marks=MARKS_RUNNING, state=state, at=instant, since=instant)


def describe_step(step: PowerChangeStep) -> str:
    match step:
        case RequestReset(record=record):
            return f"ask {record.type}"
        case WritePowerRecord(record=record):
            return f"note {record.state}"
        case AskOperator(condition=condition):
            return f"doubt {condition}"
        case Wait():
            return "hold"
    return "leave"


RECORDED, ASKED, DONE = PowerRecordState.RECORDED, PowerRecordState.REQUESTED, PowerRecordState.DONE
WITHOUT_MARKS = make_observation(marks=ResetMarks())
GRACEFUL_TYPE = ResetType.GRACEFUL_RESTART


@for_each(
    ("case", "wanted", "record", "observed", "step"),
    [
        ("it runs, its override is set, and it is allowed", RESTART, None, make_observation(), "ask ForceRestart"),
        ("the same, gracefully", GRACEFUL, None, make_observation(), "ask GracefulRestart"),
        (
            "the BMC has no graceful restart",
            GRACEFUL,
            None,
            make_observation(reset_types=ALL_RESETS - {GRACEFUL_TYPE}),
            "ask ForceRestart",
        ),
        ("it has no restart", RESTART, None, make_observation(reset_types=frozenset({"PowerCycle"})), "ask PowerCycle"),
        ("it has neither", RESTART, None, make_observation(reset_types=frozenset({"On"})), "doubt Unsupported"),
        ("it does not list its types", RESTART, None, make_observation(reset_types=frozenset()), "ask ForceRestart"),
        ("it is not allowed yet", structs.replace(RESTART, may_start_now=False), None, make_observation(), "hold"),
        ("it is in POST", RESTART, None, make_observation(in_post=True), "hold"),
        ("the window has ended", structs.replace(RESTART, valid_until=NOON), None, make_observation(), "hold"),
        (
            "the window ends later",
            structs.replace(RESTART, valid_until=NOON + timedelta(seconds=1)),
            None,
            make_observation(),
            "ask ForceRestart",
        ),
        ("its override is not set", RESTART, None, make_observation(override=NO_OVERRIDE_SHOWN), "hold"),
        (
            "no override is wanted",
            structs.replace(RESTART, override_reason=None),
            None,
            make_observation(override=NO_OVERRIDE_SHOWN),
            "ask ForceRestart",
        ),
        ("it is off, and is to be restarted", RESTART, None, OFF, "leave"),
        ("its power is unknown", RESTART, None, make_observation(power=None), "hold"),
        ("it is going down", RESTART, None, make_observation(power="PoweringOff"), "hold"),
        ("it is off, and wants its first boot", ON, None, OFF, "ask On"),
        ("it is on, and wants its first boot", ON, None, make_observation(), "leave"),
        ("a reset was requested and seen", RESTART, reset_record(ASKED), make_observation(marks=RESET), "note Done"),
        (
            "a crash came between, and it has reset",
            RESTART,
            reset_record(RECORDED),
            make_observation(marks=RESET),
            "note Done",
        ),
        ("a crash came between, and it has not", RESTART, reset_record(RECORDED), make_observation(), "note Refused"),
        ("a crash came between a moment ago", RESTART, reset_record(RECORDED, ago=5), make_observation(), "leave"),
        (
            "a crash came between, and no mark shows the result",
            RESTART,
            reset_record(RECORDED),
            WITHOUT_MARKS,
            "doubt NeedsOperator",
        ),
        ("the same, a moment ago", RESTART, reset_record(RECORDED, ago=5), WITHOUT_MARKS, "hold"),
        ("a reset was requested, and no mark shows it", RESTART, reset_record(ASKED), WITHOUT_MARKS, "leave"),
        ("a reset was requested, and ignored", RESTART, reset_record(ASKED, ago=9000), make_observation(), "leave"),
        (
            "it was not done, and is allowed",
            RESTART,
            reset_record(PowerRecordState.REFUSED),
            make_observation(),
            "ask ForceRestart",
        ),
        ("it shuts down", GRACEFUL, reset_record(ASKED, GRACEFUL_TYPE, ago=599), make_observation(), "leave"),
        (
            "it does not shut down",
            GRACEFUL,
            reset_record(ASKED, GRACEFUL_TYPE, ago=600),
            make_observation(),
            "ask ForceRestart",
        ),
        (
            "the request may not have arrived",
            GRACEFUL,
            reset_record(RECORDED, GRACEFUL_TYPE, ago=600),
            make_observation(),
            "ask ForceRestart",
        ),
        (
            "it does not shut down, and the window has ended",
            structs.replace(GRACEFUL, valid_until=NOON),
            reset_record(ASKED, GRACEFUL_TYPE, ago=600),
            make_observation(),
            "hold",
        ),
        (
            "it was done, as no mark shows",
            GRACEFUL,
            reset_record(ASKED, GRACEFUL_TYPE, ago=600),
            WITHOUT_MARKS,
            "leave",
        ),
        ("its system runs again", RESTART, reset_record(DONE), make_observation(marks=UP), "note Back"),
        ("it boots", RESTART, reset_record(DONE), make_observation(marks=RESET, runs_os=False), "leave"),
        ("it runs the same system as before", RESTART, reset_record(DONE), make_observation(), "leave"),
        ("it is back", RESTART, reset_record(PowerRecordState.BACK), make_observation(), "leave"),
        ("it was switched on", ON, reset_record(ASKED, ResetType.ON), make_observation(), "note Done"),
        ("it was switched on, and is off", ON, reset_record(ASKED, ResetType.ON), OFF, "doubt NeedsOperator"),
        ("the same, a moment ago", ON, reset_record(ASKED, ResetType.ON, ago=5), OFF, "hold"),
        ("it was not switched on: its override is set", ON, reset_record(RECORDED, ResetType.ON), OFF, "note Refused"),
        (
            "it may have been on: its override is gone",
            ON,
            reset_record(RECORDED, ResetType.ON),
            structs.replace(OFF, override=NO_OVERRIDE_SHOWN),
            "doubt NeedsOperator",
        ),
    ],
)
def test_the_next_power_step_follows_from_the_record_the_reading_and_the_override(
    case: str, wanted: WantedPowerChange, record: PowerRecord | None, observed: BmcObservation, step: str
) -> None:
    found = next_power_step(
        wanted=wanted,
        record=record,
        observed=observed,
        overrides=[override_record()],
        now=NOON,
        identity_result=SameMachine(),
    )
    assert describe_step(found) == step, (case, found)


@for_each("state", [state for state in OverrideState if state is not OverrideState.CONFIRMED])
def test_no_machine_is_reset_before_its_override_is_confirmed(state: OverrideState) -> None:
    found = next_power_step(
        wanted=RESTART,
        record=None,
        observed=make_observation(),
        overrides=[override_record(state)],
        now=NOON,
        identity_result=SameMachine(),
    )
    assert describe_step(found) == "hold"


@for_each("identified", [AnotherMachine(message="it is web02"), IdentityChanged(message="it was web02")])
@for_each("wanted", [RESTART, GRACEFUL, structs.replace(ON, override_reason=None)])
def test_another_machine_is_never_reset(wanted: WantedPowerChange, identified: IdentityResult) -> None:
    observed = OFF if wanted.operation is PowerOperation.ON else make_observation()
    records = [None, reset_record(ASKED, GRACEFUL_TYPE, ago=9000), reset_record(PowerRecordState.REFUSED)]
    for record in records if wanted.operation is not PowerOperation.ON else records[::2]:
        found = next_power_step(
            wanted=wanted,
            record=record,
            observed=observed,
            overrides=[override_record()],
            now=NOON,
            identity_result=identified,
        )
        assert not isinstance(found, RequestReset), record


def test_marks_that_never_moved_prove_no_reset() -> None:
    """Some BMCs do not update LastResetTime, so a requested restart may have happened."""
    alone = ResetMarks(last_reset_time=MARKS_RUNNING.last_reset_time, settled=True)
    record = structs.replace(reset_record(RECORDED), marks=alone)

    def step(moving: frozenset[str]) -> str:
        found = next_power_step(
            wanted=RESTART,
            record=record,
            observed=make_observation(marks=alone),
            overrides=[override_record()],
            now=NOON,
            identity_result=SameMachine(),
            changing_marks=moving,
        )
        return describe_step(found)

    assert (step(frozenset()), step(frozenset({"last_reset_time"}))) == ("doubt NeedsOperator", "note Refused")


# At a BMC


FIRST = WantedPowerChange(
    reason="power/check/1", operation=PowerOperation.RESTART, override_reason=ONCE.reason, may_start_now=True
)


def test_a_machine_is_reset_once_after_its_override_is_confirmed_and_never_again(rack: Rack) -> None:
    result = rack.run_task(wanted_power=FIRST)
    assert (result.outcome, rack.machine.resets) == (TaskOutcome.APPLIED, 1)
    # Both records were written before anything was sent for them.
    assert [state for _, state, _ in rack.written] == [OverrideState.RECORDED, OverrideState.CONFIRMED]
    assert [(state, resets) for _, state, resets in rack.switched] == [(RECORDED, 0), (ASKED, 1)]
    rack.wait(31)
    rack.run_task(wanted_power=FIRST)  # in POST
    rack.wait(600)
    for _ in range(3):
        rack.run_task(wanted_power=FIRST)
        rack.wait(31)
    assert (rack.machine.resets, rack.switches["web01"]["power/check/1"].state) == (1, PowerRecordState.BACK)
    assert rack.machine.boots[-1].target == "Pxe"


def test_a_reset_type_that_the_action_info_allows_is_used(make_rack: MakeRack) -> None:
    rack = make_rack(profile=replace(GENERIC, reset_types=("On", "PowerCycle"), reset_info=True))
    assert (
        rack.run_task(wanted_power=structs.replace(FIRST, operation=PowerOperation.GRACEFUL_RESTART)).outcome
        is TaskOutcome.APPLIED
    )
    assert rack.switches["web01"]["power/check/1"].type is ResetType.POWER_CYCLE
    assert rack.machine.resets == 1


def test_a_lost_response_is_judged_by_the_marks(rack: Rack) -> None:
    rack.server.fault(Drop(applied=True), on="POST", times=1)
    assert rack.run_task(wanted_power=FIRST).outcome is TaskOutcome.WAITING
    assert (rack.machine.resets, rack.switches["web01"]["power/check/1"].state) == (1, RECORDED)
    rack.wait(600)
    rack.run_task(wanted_power=FIRST)
    assert (rack.machine.resets, rack.switches["web01"]["power/check/1"].state) == (1, PowerRecordState.BACK)


def test_a_request_that_never_arrived_is_sent_again_once_that_is_proven(rack: Rack) -> None:
    rack.server.fault(Drop(applied=False), on="POST", times=1)
    rack.run_task(wanted_power=FIRST)
    rack.run_task(wanted_power=FIRST)
    assert rack.machine.resets == 0  # it may still be on its way
    rack.wait(61)
    rack.run_task(wanted_power=FIRST)
    assert (rack.machine.resets, rack.switches["web01"]["power/check/1"].state) == (1, ASKED)


def test_a_rejected_reset_is_reported_and_sent_again_later(rack: Rack) -> None:
    rack.server.fault(Status(status=400), on="POST", times=1)
    assert rack.run_task(wanted_power=FIRST).outcome is TaskOutcome.STALLED
    rack.wait(61)
    assert rack.run_task(wanted_power=FIRST).outcome is TaskOutcome.APPLIED
    assert rack.machine.resets == 1


@for_each(
    ("given", "message"),
    [({"dry_run": True}, "gitboot would request ForceRestart"), ({"read_only": True}, "the BMC shows Once Pxe")],
)
def test_a_dry_run_and_a_read_only_task_reset_nothing(rack: Rack, given: dict[str, Any], message: str) -> None:
    rack.run_task()
    result = rack.run_task(wanted_power=FIRST, **given)
    assert (result.message, rack.machine.resets, rack.switched) == (message, 0, [])
