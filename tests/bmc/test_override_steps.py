"""Override steps: a table of cases, and the promise of at most one boot under every interleaving."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot.bmc.identity import (
    AnotherMachine,
    DocumentIdentity,
    IdentityChanged,
    IdentityResult,
    PinnedIdentity,
    ReportedIdentity,
    SameMachine,
    UnprovenIdentity,
    compare_identity,
    update_pinned_identity,
)
from gitboot.bmc.override_state import (
    AskOperator,
    BmcObservation,
    ClearOverride,
    ConfirmRecord,
    NoChange,
    Override,
    OverrideRecord,
    OverrideState,
    ResetMarks,
    SetOverride,
    Step,
    WantedOverride,
)
from gitboot.bmc.override_steps import (
    NO_OVERRIDE,
    adapt_override,
    is_override_shown,
    needs_clock,
    next_step,
    update_refused_record,
)
from gitboot.bmc.redfish import resources
from gitboot.bmc.redfish.quirks import build_boot_patch
from gitboot.bmc.redfish.resources import Resource
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.cases import count_examples, for_each
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import PROFILES, Profile

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ONCE = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE)
HTTP = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, http_boot_uri="http://b/1.efi")
CONTINUOUS = Override(enabled=OverrideEnabled.CONTINUOUS, target=OverrideTarget.PXE)
FOREIGN = Override(enabled=OverrideEnabled.ONCE, target="BiosSetup")

INSTALL = WantedOverride(reason="provision 3", plan_digest="d", override=ONCE)
ALWAYS = structs.replace(INSTALL, override=CONTINUOUS)
SET_AGAIN = structs.replace(INSTALL, set_again=True)
OTHER_URI = structs.replace(INSTALL, override=HTTP)
FIRST = structs.replace(OTHER_URI, is_first_install=True)
LEFTOVER_URI = structs.replace(HTTP, enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE)
OTHER_REASON = structs.replace(INSTALL, reason="provision 4")
UNKNOWN_TARGET = structs.replace(INSTALL, override=structs.replace(ONCE, target="Floppy"))

EARLIER = ResetMarks(last_reset_time="2026-11-17", boot_progress_time="2026-11-17", settled=True)
SINCE = structs.replace(EARLIER, last_reset_time="2026-11-20")
LONG_AGO = ResetMarks(last_reset_time="2026-11-10", boot_progress_time="2026-11-10", settled=True)
UNSETTLED = structs.replace(EARLIER, settled=False)
NONE = ResetMarks()
THE_MACHINE = SameMachine()

SEEN = BmcObservation(
    system="/redfish/v1/Systems/1",
    override=NO_OVERRIDE,
    marks=EARLIER,
    allowable_targets=frozenset({"None", "Pxe", "UefiHttp", "Cd", "UsbCd"}),
    supports_http_boot_uri=True,
)


def _make_observation(override: Override, marks: ResetMarks = EARLIER, *, in_post: bool = False) -> BmcObservation:
    return structs.replace(SEEN, override=override, marks=marks, in_post=in_post)


def _record(
    state: OverrideState,
    override: Override = ONCE,
    *,
    marks: ResetMarks = EARLIER,
    reason: str = "provision 3",
) -> OverrideRecord:
    return OverrideRecord(
        reason=reason,
        plan_digest="d",
        override=override,
        marks=marks,
        state=state,
        at=NOW - timedelta(hours=2),
    )


def _with_corrections(state: OverrideState, *minutes_ago: int) -> OverrideRecord:
    corrections = tuple(NOW - timedelta(minutes=minutes) for minutes in minutes_ago)
    return structs.replace(_record(state), corrections=corrections)


def _old_record(seconds: int, state: OverrideState) -> OverrideRecord:
    return structs.replace(_record(state), at=NOW - timedelta(seconds=seconds))


def _other_record(state: OverrideState, override: Override = ONCE, *, marks: ResetMarks = EARLIER) -> OverrideRecord:
    return _record(state, override, marks=marks, reason="maintenance bios, run 1")


def _describe_step(step: Step) -> str:
    match step:
        case SetOverride(record=record) | ConfirmRecord(record=record) | ClearOverride(record=record):
            return f"{type(step).__name__} {record.state}"
        case AskOperator(condition=condition):
            return condition
    return type(step).__name__


def _step(
    wanted: WantedOverride | None,
    observed: BmcObservation,
    records: Iterable[OverrideRecord] = (),
    *,
    at: datetime = NOW,
    identified: IdentityResult = THE_MACHINE,
) -> Step:
    return next_step(  # on one screen, a case is one line
        wanted=wanted, observed=observed, records=records, now=at, identity_result=identified
    )


RECORDED, CONFIRMED, WITHDRAWING = OverrideState.RECORDED, OverrideState.CONFIRMED, OverrideState.CLEARING
WITHDRAWN, CONSUMED, LOST, OPENED = (
    OverrideState.CLEARED,
    OverrideState.CONSUMED,
    OverrideState.LOST,
    OverrideState.OPENED,
)
SET, WITHDRAW, CONFIRM = "SetOverride Recorded", "ClearOverride Withdrawing", "ConfirmRecord Confirmed"
STUCK = structs.replace(EARLIER, boot_progress_time="2026-11-20T11:29:00Z")
RECENT_MARKS = structs.replace(EARLIER, boot_progress_time="2026-11-20T11:59:00Z")
SINCE_WHEN = structs.replace(EARLIER, boot_progress_time="yesterday")
SINCE_LOCAL = structs.replace(EARLIER, boot_progress_time="2026-11-20T11:00:00")

# Before, a reset has moved the BMC's marks.
MOVED = structs.replace(_record(CONSUMED, marks=LONG_AGO, reason="provision 2"), at=NOW - timedelta(days=9))

# in words; what is wanted, what the BMC shows, what is recorded, the next step
CASES: list[tuple[str, WantedOverride | None, BmcObservation, tuple[OverrideRecord, ...], str]] = [
    ("nothing at all", None, _make_observation(NO_OVERRIDE), (), "NoChange"),
    ("someone else's override, none wanted", None, _make_observation(FOREIGN), (), "NoChange"),
    ("wanted for the first time", INSTALL, _make_observation(NO_OVERRIDE), (), SET),
    ("wanted, someone else's is in its place", INSTALL, _make_observation(FOREIGN), (), "ForeignOverride"),
    ("the same in POST, where it is consumed", INSTALL, _make_observation(FOREIGN, in_post=True), (), "Wait"),
    ("the same, and a person lets it be replaced", INSTALL, _make_observation(FOREIGN), (_record(OPENED),), SET),
    (
        "someone else's Continuous, which is none",
        INSTALL,
        _make_observation(structs.replace(CONTINUOUS, target="None")),
        (),
        SET,
    ),
    (
        "someone else's other URI",
        OTHER_URI,
        _make_observation(structs.replace(HTTP, http_boot_uri="http://a/")),
        (),
        "ForeignOverride",
    ),
    ("wanted, and another instance has set it", INSTALL, _make_observation(ONCE), (), "ConfirmRecord SetByAnother"),
    ("another's URI is left, and evidence says more", OTHER_URI, _make_observation(LEFTOVER_URI), (), SET),
    (
        "the same, and it may be this one's own",
        FIRST,
        _make_observation(LEFTOVER_URI),
        (_record(WITHDRAWN, reason="repair"),),
        SET,
    ),
    (
        "another instance has set it, and it is gone",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_record(OverrideState.SET_BY_ANOTHER),),
        "NeedsOperator",
    ),
    (
        "the same, and stands again",
        INSTALL,
        _make_observation(ONCE),
        (_record(OverrideState.SET_BY_ANOTHER),),
        "NeedsOperator",
    ),
    ("wanted during POST", INSTALL, _make_observation(NO_OVERRIDE, in_post=True), (), "Wait"),
    ("in POST for a minute", INSTALL, _make_observation(NO_OVERRIDE, RECENT_MARKS, in_post=True), (), "Wait"),
    ("in POST for half an hour: so it says", INSTALL, _make_observation(NO_OVERRIDE, STUCK, in_post=True), (), SET),
    (
        "in POST since a time that cannot be read",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE_WHEN, in_post=True),
        (),
        "Wait",
    ),
    (
        "in POST since a time without an offset",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE_LOCAL, in_post=True),
        (),
        "Wait",
    ),
    (
        "in POST since no time",
        INSTALL,
        _make_observation(NO_OVERRIDE, structs.replace(EARLIER, boot_progress_time=None), in_post=True),
        (),
        "Wait",
    ),
    (
        "something else may be wanted from now on",
        structs.replace(INSTALL, valid_until=NOW),
        _make_observation(NO_OVERRIDE),
        (),
        "Wait",
    ),
    (
        "the same, a second later",
        structs.replace(INSTALL, valid_until=NOW + timedelta(seconds=1)),
        _make_observation(NO_OVERRIDE),
        (),
        SET,
    ),
    ("what the BMC cannot boot", UNKNOWN_TARGET, _make_observation(NO_OVERRIDE), (), "Unsupported"),
    ("crash between set and confirm", INSTALL, _make_observation(ONCE), (_record(RECORDED),), CONFIRM),
    ("the same, then a reset that left it", INSTALL, _make_observation(ONCE, SINCE), (_record(RECORDED),), CONFIRM),
    ("set a moment ago, not shown yet", INSTALL, _make_observation(NO_OVERRIDE), (_old_record(59, RECORDED),), "Wait"),
    ("set a minute ago", INSTALL, _make_observation(NO_OVERRIDE), (_old_record(60, RECORDED),), SET),
    (
        "set in the future: the clock went back",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_old_record(-1, RECORDED),),
        SET,
    ),
    ("crash between record and set", INSTALL, _make_observation(NO_OVERRIDE), (_record(RECORDED),), SET),
    ("the same, then POST", INSTALL, _make_observation(NO_OVERRIDE, in_post=True), (_record(RECORDED),), "Wait"),
    ("crash, then a reset", INSTALL, _make_observation(NO_OVERRIDE, SINCE), (_record(RECORDED),), "NeedsOperator"),
    ("crash, then POST", INSTALL, _make_observation(NO_OVERRIDE, SINCE, in_post=True), (_record(RECORDED),), "Wait"),
    (
        "crash, no marks",
        INSTALL,
        _make_observation(NO_OVERRIDE, NONE),
        (_record(RECORDED, marks=NONE),),
        "NeedsOperator",
    ),
    (
        "crash, recorded in POST",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_record(RECORDED, marks=UNSETTLED),),
        "NeedsOperator",
    ),
    ("crash, then someone else's", INSTALL, _make_observation(FOREIGN, SINCE), (_record(RECORDED),), "NeedsOperator"),
    ("crash, but Continuous", ALWAYS, _make_observation(NO_OVERRIDE, SINCE), (_record(RECORDED, CONTINUOUS),), SET),
    ("it stands as confirmed", INSTALL, _make_observation(ONCE), (_record(CONFIRMED),), "NoChange"),
    (
        "it stands after a reset: someone else's",
        INSTALL,
        _make_observation(ONCE, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "it stands after a reset, unwanted",
        None,
        _make_observation(ONCE, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "it was cleared, and stands after a reset",
        None,
        _make_observation(ONCE, SINCE),
        (_record(WITHDRAWING),),
        "ConfirmRecord Lost",
    ),
    (
        "it was to be set, and stands after a reset",
        INSTALL,
        _make_observation(ONCE, SINCE),
        (_record(RECORDED),),
        CONFIRM,
    ),
    ("it stands during POST", INSTALL, _make_observation(ONCE, SINCE, in_post=True), (_record(CONFIRMED),), "NoChange"),
    ("it stands, the plan has another URI", OTHER_URI, _make_observation(ONCE), (_record(CONFIRMED),), SET),
    ("the same during POST", OTHER_URI, _make_observation(ONCE, in_post=True), (_record(CONFIRMED),), "Wait"),
    (
        "gone after a reset",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "gone in POST",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE, in_post=True),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "gone, no marks",
        INSTALL,
        _make_observation(NO_OVERRIDE, NONE),
        (_record(CONFIRMED, marks=NONE),),
        "ConfirmRecord Lost",
    ),
    (
        "gone, confirmed in POST",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_record(CONFIRMED, marks=UNSETTLED),),
        "ConfirmRecord Lost",
    ),
    (
        "gone, the marks are no longer shown",
        INSTALL,
        _make_observation(NO_OVERRIDE, NONE),
        (_record(CONFIRMED),),
        "ConfirmRecord Lost",
    ),
    ("taken away without a reset", INSTALL, _make_observation(NO_OVERRIDE), (_record(CONFIRMED),), SET),
    ("written over without a reset", INSTALL, _make_observation(FOREIGN), (_record(CONFIRMED),), SET),
    ("Continuous taken away", ALWAYS, _make_observation(NO_OVERRIDE, SINCE), (_record(CONFIRMED, CONTINUOUS),), SET),
    (
        "three times in an hour",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_with_corrections(CONFIRMED, 59, 9, 1),),
        "Contended",
    ),
    (
        "three times, one long ago",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_with_corrections(CONFIRMED, 60, 9, 1),),
        SET,
    ),
    (
        "set three times, never kept",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_with_corrections(RECORDED, 9, 5, 1),),
        "Contended",
    ),
    ("three times, but it stands", INSTALL, _make_observation(ONCE), (_with_corrections(RECORDED, 9, 5, 1),), CONFIRM),
    ("consumed", INSTALL, _make_observation(NO_OVERRIDE, SINCE), (_record(CONSUMED),), "NoChange"),
    ("consumed, to be set anew", SET_AGAIN, _make_observation(NO_OVERRIDE, SINCE), (_record(CONSUMED),), SET),
    (
        "consumed, to be set anew, in POST",
        SET_AGAIN,
        _make_observation(NO_OVERRIDE, SINCE, in_post=True),
        (_record(CONSUMED),),
        "Wait",
    ),
    (
        "consumed, to be set anew over someone else's",
        SET_AGAIN,
        _make_observation(FOREIGN),
        (_record(CONSUMED),),
        "ForeignOverride",
    ),
    (
        "gone, to be set anew: not proven",
        SET_AGAIN,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(LOST),),
        "NeedsOperator",
    ),
    ("gone", INSTALL, _make_observation(NO_OVERRIDE), (_record(LOST),), "NoChange"),
    ("consumed, and someone else's stands", INSTALL, _make_observation(FOREIGN), (_record(CONSUMED),), "NoChange"),
    ("withdrawn not consumed, wanted again", INSTALL, _make_observation(NO_OVERRIDE), (_record(WITHDRAWN),), SET),
    (
        "the same, someone else's stands by now",
        INSTALL,
        _make_observation(FOREIGN),
        (_record(WITHDRAWN),),
        "ForeignOverride",
    ),
    ("no longer wanted", None, _make_observation(ONCE), (_record(CONFIRMED),), WITHDRAW),
    ("no longer wanted, in POST", None, _make_observation(ONCE, SINCE, in_post=True), (_record(CONFIRMED),), WITHDRAW),
    ("no longer wanted, perhaps set", None, _make_observation(ONCE), (_record(RECORDED),), WITHDRAW),
    (
        "no longer wanted, never set",
        None,
        _make_observation(NO_OVERRIDE),
        (_record(RECORDED),),
        "ConfirmRecord Withdrawn",
    ),
    (
        "no longer wanted, set a moment ago, not shown yet",
        None,
        _make_observation(NO_OVERRIDE),
        (_old_record(59, RECORDED),),
        "Wait",
    ),
    (
        "no longer wanted, set a moment ago, and shown",
        None,
        _make_observation(ONCE),
        (_old_record(1, RECORDED),),
        WITHDRAW,
    ),
    (
        "no longer wanted, set a minute ago",
        None,
        _make_observation(NO_OVERRIDE),
        (_old_record(60, RECORDED),),
        "ConfirmRecord Withdrawn",
    ),
    (
        "another reason's, set a moment ago",
        OTHER_REASON,
        _make_observation(NO_OVERRIDE),
        (_old_record(59, RECORDED),),
        "Wait",
    ),
    (
        "no longer wanted, perhaps consumed",
        None,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(RECORDED),),
        "ConfirmRecord Lost",
    ),
    (
        "no longer wanted, consumed",
        None,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "consumed, someone else's stands",
        None,
        _make_observation(FOREIGN, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    ("the clearing did not take", None, _make_observation(ONCE), (_record(WITHDRAWING),), WITHDRAW),
    ("cleared a moment ago, still shown", None, _make_observation(ONCE), (_old_record(9, WITHDRAWING),), "Wait"),
    ("cleared ten seconds ago, still shown", None, _make_observation(ONCE), (_old_record(10, WITHDRAWING),), WITHDRAW),
    ("cleared", None, _make_observation(NO_OVERRIDE), (_record(WITHDRAWING),), "ConfirmRecord Withdrawn"),
    (
        "cleared, or consumed before",
        None,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(WITHDRAWING),),
        "ConfirmRecord Lost",
    ),
    (
        "cleared, no marks",
        None,
        _make_observation(NO_OVERRIDE, NONE),
        (_record(WITHDRAWING, marks=NONE),),
        "ConfirmRecord Lost",
    ),
    (
        "Continuous cleared",
        None,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(WITHDRAWING, CONTINUOUS),),
        "ConfirmRecord Withdrawn",
    ),
    ("wanted again while it is cleared", INSTALL, _make_observation(ONCE), (_record(WITHDRAWING),), CONFIRM),
    (
        "wanted again when it is cleared",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_record(WITHDRAWING),),
        "ConfirmRecord Withdrawn",
    ),
    (
        "wanted again, perhaps consumed",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(WITHDRAWING),),
        "ConfirmRecord Lost",
    ),
    ("another reason's stands", INSTALL, _make_observation(ONCE), (_other_record(CONFIRMED),), WITHDRAW),
    (
        "another reason's was consumed",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE),
        (_other_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    ("another reason's is withdrawn", INSTALL, _make_observation(NO_OVERRIDE), (_other_record(WITHDRAWN),), SET),
    (
        "another reason's is recorded as consumed",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_other_record(CONSUMED),),
        SET,
    ),
    (
        "consumed, between another's window",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_other_record(WITHDRAWN), _record(CONSUMED)),
        "NoChange",
    ),
    (
        "nothing left to withdraw",
        None,
        _make_observation(NO_OVERRIDE),
        (_record(CONSUMED), _other_record(LOST)),
        "NoChange",
    ),
]


NO_DISK = structs.replace(INSTALL, writes_disk=False)


def _diskless_record(state: OverrideState, override: Override = ONCE) -> OverrideRecord:
    return structs.replace(_record(state, override), writes_disk=False)


# The same cases on a BMC whose marks never change, not even at a reset (rule 18).
UNPROVEN: list[tuple[str, WantedOverride | None, BmcObservation, tuple[OverrideRecord, ...], str]] = [
    (
        "taken away without a reset",
        INSTALL,
        _make_observation(NO_OVERRIDE),
        (_record(CONFIRMED),),
        "ConfirmRecord Lost",
    ),
    ("written over without a reset", INSTALL, _make_observation(FOREIGN), (_record(CONFIRMED),), "ConfirmRecord Lost"),
    ("taken away, but it writes no disk", NO_DISK, _make_observation(NO_OVERRIDE), (_diskless_record(CONFIRMED),), SET),
    (
        "taken away, but it is Continuous",
        ALWAYS,
        _make_observation(NO_OVERRIDE),
        (_record(CONFIRMED, CONTINUOUS),),
        SET,
    ),
    ("crash between record and set", INSTALL, _make_observation(NO_OVERRIDE), (_record(RECORDED),), "NeedsOperator"),
    ("the same, but it writes no disk", NO_DISK, _make_observation(NO_OVERRIDE), (_diskless_record(RECORDED),), SET),
    ("crash between set and confirm", INSTALL, _make_observation(ONCE), (_record(RECORDED),), CONFIRM),
    (
        "gone after a reset that moves them",
        INSTALL,
        _make_observation(NO_OVERRIDE, SINCE),
        (_record(CONFIRMED),),
        "ConfirmRecord Consumed",
    ),
    (
        "no longer wanted, perhaps consumed",
        None,
        _make_observation(NO_OVERRIDE),
        (_record(CONFIRMED),),
        "ConfirmRecord Lost",
    ),
    (
        "cleared a moment ago",
        None,
        _make_observation(NO_OVERRIDE),
        (_old_record(9, WITHDRAWING),),
        "ConfirmRecord Withdrawn",
    ),
    (
        "cleared ten seconds ago",
        None,
        _make_observation(NO_OVERRIDE),
        (_old_record(10, WITHDRAWING),),
        "ConfirmRecord Lost",
    ),
    (
        "a URI is left: another instance has set it",
        FIRST,
        _make_observation(LEFTOVER_URI),
        (),
        "ConfirmRecord SetByAnother",
    ),
    ("a URI is left, and evidence says more", OTHER_URI, _make_observation(LEFTOVER_URI), (), SET),
    (
        "another URI is left",
        FIRST,
        _make_observation(structs.replace(LEFTOVER_URI, http_boot_uri="http://elsewhere/1.efi")),
        (),
        SET,
    ),
]


@for_each(
    ("case", "wanted", "observed", "records", "before", "step"),
    [*((*row[:4], (MOVED,), row[4]) for row in CASES), *((*row[:4], (), row[4]) for row in UNPROVEN)],
)
def test_the_next_step_follows_from_the_wanted_override_the_observation_and_the_records(
    case: str,
    wanted: WantedOverride | None,
    observed: BmcObservation,
    records: tuple[OverrideRecord, ...],
    before: tuple[OverrideRecord, ...],
    step: str,
) -> None:
    assert _describe_step(_step(wanted, observed, (*records, *before))) == step, case


@for_each(
    ("minutes_left", "record", "seen", "step"),
    [
        (1, _record(CONFIRMED), _make_observation(NO_OVERRIDE, SINCE), "ConfirmRecord Consumed"),
        (1, _record(CONFIRMED), _make_observation(NO_OVERRIDE), "ConfirmRecord Withdrawn"),
        (0, _record(CONFIRMED), _make_observation(NO_OVERRIDE, SINCE), "ConfirmRecord Lost"),
        (0, _record(CONFIRMED), _make_observation(NO_OVERRIDE), "ConfirmRecord Lost"),
        (0, _record(RECORDED), _make_observation(NO_OVERRIDE, SINCE), "ConfirmRecord Lost"),
        (
            0,
            _record(CONFIRMED),
            _make_observation(ONCE, SINCE),
            "ConfirmRecord Lost",
        ),  # a foreign override: a reset has consumed gitboot's
        (0, _record(WITHDRAWING), _make_observation(NO_OVERRIDE), "ConfirmRecord Withdrawn"),
        (0, _record(CONFIRMED, CONTINUOUS), _make_observation(NO_OVERRIDE, SINCE), "ConfirmRecord Withdrawn"),
        (0, _record(CONFIRMED), _make_observation(ONCE), WITHDRAW),
    ],
)
def test_an_override_that_ends_after_the_time_in_its_record_proves_no_boot(
    minutes_left: int, record: OverrideRecord, seen: BmcObservation, step: str
) -> None:
    """From then on this instance, or another, may have cleared it without a write to the ledger."""
    ended = structs.replace(record, clears_from=NOW + timedelta(minutes=minutes_left))
    assert _describe_step(_step(None, seen, (MOVED, ended))) == step


@for_each(
    ("state", "minutes_left", "needs_no_ledger"),
    [
        (WITHDRAWING, 0, True),
        (WITHDRAWN, 0, True),
        (LOST, 0, True),
        (WITHDRAWING, 1, False),
        (RECORDED, 0, False),
        (CONFIRMED, 0, False),
        (OverrideState.INSERTED, 0, False),
    ],
)
def test_only_the_end_of_an_override_needs_no_ledger_and_only_after_the_time_in_its_record(
    state: OverrideState, minutes_left: int, needs_no_ledger: bool
) -> None:
    record = structs.replace(_record(state), clears_from=NOW + timedelta(minutes=minutes_left))
    assert record.may_be_written_later(NOW) is needs_no_ledger
    assert not _record(state).may_be_written_later(NOW), "an override that an earlier version has set needs the ledger"


def test_a_moving_mark_proves_nothing_about_a_mark_that_never_moves() -> None:
    moves = structs.replace(MOVED, marks=structs.replace(LONG_AGO, last_reset_time=EARLIER.last_reset_time))
    stuck = structs.replace(EARLIER, boot_progress_time=None)
    assert (
        _describe_step(_step(INSTALL, _make_observation(NO_OVERRIDE, stuck), (_record(CONFIRMED, marks=stuck), moves)))
        == "ConfirmRecord Lost"
    )
    assert _describe_step(_step(INSTALL, _make_observation(NO_OVERRIDE), (_record(CONFIRMED), moves))) == SET


# Identity

HERE = ReportedIdentity(uuid=SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3732"), serial="ABC1234")
ELSEWHERE = ReportedIdentity(uuid=SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3733"), serial="ABC9999")
ANOTHER, CHANGED = AnotherMachine(message="the BMC shows ABC1234"), IdentityChanged(message="it showed ABC9999")
ACCEPTED = SameMachine(accepted=True)


def _with_identity(shown: ReportedIdentity, record: OverrideRecord) -> OverrideRecord:
    return structs.replace(record, shown=shown)


RECORD_ELSEWHERE = _with_identity(ELSEWHERE, _record(CONFIRMED))

# in words; whose machine it is, what is wanted, what it shows, what is recorded, the next step
MACHINES: list[tuple[str, IdentityResult, WantedOverride | None, Override, tuple[OverrideRecord, ...], str]] = [
    ("another, nothing wanted", ANOTHER, None, FOREIGN, (), "NoChange"),
    ("another, wanted", ANOTHER, INSTALL, NO_OVERRIDE, (), "AnotherMachine"),
    ("another, and ours stands there", ANOTHER, INSTALL, ONCE, (_with_identity(HERE, _record(CONFIRMED)),), WITHDRAW),
    ("another, ours since before it was noted", ANOTHER, INSTALL, ONCE, (_record(CONFIRMED),), WITHDRAW),
    ("another, ours is elsewhere", ANOTHER, INSTALL, ONCE, (RECORD_ELSEWHERE,), "AnotherMachine"),
    (
        "another, ours is withdrawn",
        ANOTHER,
        INSTALL,
        NO_OVERRIDE,
        (_with_identity(HERE, _record(WITHDRAWN)),),
        "AnotherMachine",
    ),
    (
        "another, ours was consumed",
        ANOTHER,
        INSTALL,
        NO_OVERRIDE,
        (_with_identity(HERE, _record(CONSUMED)),),
        "AnotherMachine",
    ),
    ("changed, wanted", CHANGED, INSTALL, NO_OVERRIDE, (), "AnotherMachine"),
    ("changed, and ours stands there", CHANGED, INSTALL, ONCE, (_with_identity(HERE, _record(CONFIRMED)),), "NoChange"),
    ("changed, and no longer wanted", CHANGED, None, ONCE, (_with_identity(HERE, _record(CONFIRMED)),), WITHDRAW),
    ("changed, ours is elsewhere", CHANGED, None, ONCE, (RECORD_ELSEWHERE,), "AnotherMachine"),
    ("ours is elsewhere, gone here", CHANGED, None, NO_OVERRIDE, (RECORD_ELSEWHERE,), "AnotherMachine"),
    ("accepted, ours was elsewhere", ACCEPTED, None, ONCE, (RECORD_ELSEWHERE,), WITHDRAW),
    ("accepted, wanted", ACCEPTED, INSTALL, NO_OVERRIDE, (), SET),
    ("nobody can tell", UnprovenIdentity(message="nothing is set"), INSTALL, NO_OVERRIDE, (), SET),
]


@for_each(
    ("identified", "wanted", "override", "records", "step"),
    [row[1:] for row in MACHINES],
    ids=[row[0] for row in MACHINES],
)
def test_nothing_is_set_on_another_machine_and_an_override_is_cleared_only_where_it_was_set(
    identified: IdentityResult,
    wanted: WantedOverride | None,
    override: Override,
    records: tuple[OverrideRecord, ...],
    step: str,
) -> None:
    seen = structs.replace(_make_observation(override), identity=HERE)
    assert _describe_step(_step(wanted, seen, (*records, MOVED), identified=identified)) == step


def test_setting_an_override_writes_its_whole_record() -> None:
    recorded = OverrideRecord(
        reason="provision 3", plan_digest="d", override=ONCE, marks=EARLIER, state=RECORDED, at=NOW, shown=HERE
    )
    for wanted in (INSTALL, NO_DISK):
        step = _step(wanted, structs.replace(_make_observation(NO_OVERRIDE), identity=HERE))
        assert step == SetOverride(record=structs.replace(recorded, writes_disk=wanted.writes_disk))
    again = _step(INSTALL, _make_observation(NO_OVERRIDE), (_with_corrections(CONFIRMED, 70, 5), MOVED))
    assert isinstance(again, SetOverride)
    assert again.record.corrections == (NOW - timedelta(minutes=5), NOW)


@pytest.mark.parametrize(
    ("wanted", "state"), [pytest.param(INSTALL, RECORDED, id="confirm"), pytest.param(None, CONFIRMED, id="withdraw")]
)
def test_a_confirmed_override_is_recorded_with_the_marks_of_the_same_reading(
    wanted: WantedOverride | None, state: OverrideState
) -> None:
    booting = structs.replace(SINCE, settled=False)
    step = _step(wanted, _make_observation(ONCE, booting), (_record(state),))
    assert isinstance(step, ConfirmRecord | ClearOverride)
    assert step.record.marks == booting


@pytest.mark.parametrize(
    ("seen", "state"), [(NO_OVERRIDE, WITHDRAWN), (FOREIGN, WITHDRAWN), (ONCE, CONFIRMED)], ids=["not", "else", "set"]
)
def test_a_rejected_write_is_judged_by_the_next_reading(seen: Override, state: OverrideState) -> None:
    assert update_refused_record(_record(RECORDED), _make_observation(seen, SINCE)) == _record(state, marks=SINCE)


@for_each(
    ("wanted", "seen", "record", "message"),
    [
        (
            INSTALL,
            _make_observation(NO_OVERRIDE),
            _record(RECORDED, marks=NONE),
            "gitboot tried to set Once Pxe for provision 3, but the BMC does not show it. Either the override was "
            "never set, or the machine has booted from it",
        ),
        (
            INSTALL,
            _make_observation(NO_OVERRIDE),
            _with_corrections(CONFIRMED, 3, 2, 1),
            "gitboot set Once Pxe 4 times within an hour, but the BMC shows Disabled None",
        ),
        (
            UNKNOWN_TARGET,
            _make_observation(NO_OVERRIDE),
            None,
            "the plan needs Floppy, but the BMC supports only Cd, None, Pxe, UefiHttp, UsbCd",
        ),
        (
            structs.replace(INSTALL, override=structs.replace(ONCE, mode="UEFI")),
            structs.replace(_make_observation(structs.replace(NO_OVERRIDE, mode="Legacy")), mode_is_fixed=True),
            None,
            "the plan needs mode UEFI, but the BMC uses Legacy and cannot change it",
        ),
        (
            ALWAYS,
            structs.replace(_make_observation(NO_OVERRIDE), allowable_enabled=frozenset({"Once", "Disabled"})),
            None,
            "the plan needs Continuous, but the BMC supports only Disabled, Once. In the policy, set override: Once "
            "or override: None",
        ),
    ],
)
def test_questions_to_the_operator_state_what_was_found(
    wanted: WantedOverride, seen: BmcObservation, record: OverrideRecord | None, message: str
) -> None:
    step = _step(wanted, seen, (record, MOVED) if record else ())
    assert isinstance(step, AskOperator) and step.message == message


PLAIN_HTTP = structs.replace(HTTP, http_boot_uri=None)
CD = structs.replace(ONCE, target=OverrideTarget.CD)
XCC = frozenset({"Once", "Disabled"})


@for_each(
    ("wanted", "bmc", "fitted"),
    [
        pytest.param(HTTP, SEEN, HTTP, id="takes a URI"),
        pytest.param(HTTP, structs.replace(SEEN, supports_http_boot_uri=False), PLAIN_HTTP, id="takes no URI"),
        pytest.param(HTTP, structs.replace(SEEN, allowable_targets=frozenset({"Pxe"})), ONCE, id="no UefiHttp"),
        pytest.param(HTTP, structs.replace(SEEN, allowable_targets=frozenset()), HTTP, id="no mode"),
        pytest.param(HTTP, structs.replace(SEEN, allowable_targets=frozenset({"Hdd"})), None, id="no network at all"),
        pytest.param(HTTP, structs.replace(SEEN, continuous_http=False), HTTP, id="Once is no matter"),
        pytest.param(
            structs.replace(HTTP, enabled=OverrideEnabled.CONTINUOUS),
            structs.replace(SEEN, continuous_http=False),
            CONTINUOUS,
            id="Continuous would change the boot order",
        ),
        pytest.param(CONTINUOUS, structs.replace(SEEN, allowable_enabled=XCC), None, id="no Continuous"),
        pytest.param(HTTP, structs.replace(SEEN, allowable_enabled=XCC), HTTP, id="Once is all it needs"),
        pytest.param(CD, SEEN, CD, id="a CD"),
        pytest.param(
            CD,
            structs.replace(SEEN, cd_target=OverrideTarget.USB_CD),
            structs.replace(CD, target=OverrideTarget.USB_CD),
            id="a USB CD",
        ),
        pytest.param(structs.replace(ONCE, mode="UEFI"), SEEN, ONCE, id="shows no mode"),
        pytest.param(
            structs.replace(ONCE, mode="UEFI"),
            structs.replace(SEEN, override=structs.replace(NO_OVERRIDE, mode="Legacy")),
            structs.replace(ONCE, mode="UEFI"),
            id="shows another mode",
        ),
    ],
)
def test_an_override_is_adapted_to_its_bmc(wanted: Override, bmc: BmcObservation, fitted: Override | None) -> None:
    assert adapt_override(wanted, bmc) == fitted


@for_each(
    ("override", "seen", "standing"),
    [
        pytest.param(NO_OVERRIDE, structs.replace(NO_OVERRIDE, target="Pxe"), True, id="off, with any target"),
        pytest.param(NO_OVERRIDE, ONCE, False, id="on"),
        pytest.param(ONCE, CONTINUOUS, False, id="Continuous is not Once"),
        pytest.param(HTTP, PLAIN_HTTP, False, id="no URI"),
        pytest.param(PLAIN_HTTP, HTTP, False, id="an old URI"),
        pytest.param(ONCE, structs.replace(ONCE, http_boot_uri="http://old/"), True, id="an old URI, not used"),
        pytest.param(structs.replace(ONCE, mode="UEFI"), ONCE, True, id="mode not shown"),
        pytest.param(
            structs.replace(ONCE, mode="UEFI"), structs.replace(ONCE, mode="Legacy"), False, id="another mode"
        ),
    ],
)
def test_an_override_is_compared_with_the_reading(override: Override, seen: Override, standing: bool) -> None:
    assert is_override_shown(override, _make_observation(seen)) is standing


def _observe(machine: Machine) -> BmcObservation:
    system = Resource(url=f"http://bmc{machine.path}", body=machine.system())
    settings = machine.settings() if machine.settings_path else {}
    if "BootSourceOverrideTarget" not in settings.get("Boot", {}):
        return resources.build_observation(system, None)
    return resources.build_observation(system, Resource(url=f"http://bmc{machine.settings_path}", body=settings))


@dataclass
class _Instance:
    """gitboot reduced to the override protocol: a ledger, and reconciles that may crash."""

    machine: Machine
    wanted: WantedOverride | None = None
    ledger: dict[str, OverrideRecord] = field(default_factory=dict)
    pinned: PinnedIdentity | None = None

    def __post_init__(self) -> None:
        self.described = DocumentIdentity(uuid=SystemUuid(self.machine.uuid), serial=self.machine.serial)

    def want(self, wanted: WantedOverride | None) -> None:
        self.wanted = wanted

    def swap_board(self) -> None:
        """Let the same BMC's address show another machine, or the first one again."""
        its = self.machine.uuid == self.described.uuid
        self.machine.uuid = "4c4c4544-ffff-4a10-8056-b9c04f4d3732" if its else self.described.uuid
        self.machine.serial = "OTHER0042" if its else str(self.described.serial)

    def observe(self) -> BmcObservation:
        observed = _observe(self.machine)
        if needs_clock(self.ledger.values(), observed, self.machine.now):
            return self.with_clock(observed)
        return observed

    def with_clock(self, observed: BmcObservation) -> BmcObservation:
        manager = Resource(url=f"http://bmc{self.machine.manager_path}", body=self.machine.manager())
        return structs.replace(observed, marks=resources.add_clock(observed.marks, manager, self.machine.now))

    def run(self, crash: str = "") -> Step:
        for _ in range(10):
            observed = self.observe()
            records = tuple(self.ledger.values())
            identified = compare_identity(self.described, observed.identity, pinned=self.pinned)
            place = ("http://bmc", None)
            self.pinned = update_pinned_identity(
                observed.identity, identified, pinned=self.pinned, place=place, at=self.machine.now
            )
            step = _step(self.wanted, observed, records, at=self.machine.now, identified=identified)
            if not isinstance(step, SetOverride | ConfirmRecord | ClearOverride):
                return step
            if isinstance(step, SetOverride):
                observed = self.with_clock(observed)
                step = SetOverride(record=structs.replace(step.record, marks=observed.marks))
            self.ledger[step.record.reason] = step.record
            if isinstance(step, ConfirmRecord):
                continue
            if crash == "recorded":
                return step
            if not self._write(step, observed) or crash == "written":
                return step
        raise AssertionError("the protocol goes round in circles")

    def _write(self, step: SetOverride | ClearOverride, observed: BmcObservation) -> bool:
        assert isinstance(step, ClearOverride) or self.machine.uuid == self.described.uuid
        boot = build_boot_patch(step.record.override if isinstance(step, SetOverride) else NO_OVERRIDE, observed)
        etag = (
            self.machine.settings() if observed.settings_path == self.machine.settings_path else self.machine.system()
        )
        answer = self.machine.patch(observed.settings_path, {"Boot": boot}, etag["@odata.etag"].removeprefix("W/"))
        taken = not boot or answer.status < 400
        if not taken and isinstance(step, SetOverride):
            self.ledger[step.record.reason] = update_refused_record(step.record, self.observe())
        return taken


BIOS_UPDATE = WantedOverride(reason="maintenance bios, run 1", plan_digest="d", override=CD)
HDD = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Hdd"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENTS: dict[str, Callable[[_Instance], object]] = {
    "the plan wants an installation": lambda gitboot: gitboot.want(INSTALL),
    "a maintenance opens": lambda gitboot: gitboot.want(BIOS_UPDATE),
    "the plan wants nothing": lambda gitboot: gitboot.want(None),
    "a pass": lambda gitboot: gitboot.run(),
    "a pass that crashes after a record": lambda gitboot: gitboot.run("recorded"),
    "a pass that crashes after a write": lambda gitboot: gitboot.run("written"),
    "a reset": lambda gitboot: gitboot.machine.reset(),
    "a boot": lambda gitboot: gitboot.machine.run_through(),
    "half a POST": lambda gitboot: gitboot.machine.advance(gitboot.machine.post_s / 2),
    "a whole POST": lambda gitboot: gitboot.machine.advance(gitboot.machine.post_s * 2),
    "off": lambda gitboot: gitboot.machine.reset("ForceOff"),
    "on": lambda gitboot: gitboot.machine.reset("On"),
    "the BMC restarts": lambda gitboot: gitboot.machine.restart_bmc(),
    "the BMC is reset to the factory's state": lambda gitboot: gitboot.machine.restart_bmc(clock=EPOCH, forgets=True),
    "the BMC's clock is set": lambda gitboot: gitboot.machine.set_clock(gitboot.machine.now + timedelta(hours=9)),
    "the BMC's clock is right": lambda gitboot: gitboot.machine.set_clock(gitboot.machine.now),
    "another board": lambda gitboot: gitboot.swap_board(),
    "someone clears": lambda gitboot: gitboot.machine.write(BootSourceOverrideEnabled="Disabled"),
    "someone writes": lambda gitboot: gitboot.machine.write(**HDD),
}


@settings(max_examples=count_examples(800))
@given(
    profile=st.sampled_from(list(PROFILES.values())),
    events=st.lists(st.sampled_from(list(EVENTS)), min_size=4, max_size=24),
)
def test_no_reason_boots_a_machine_twice(profile: Profile, events: list[str]) -> None:
    gitboot = _Instance(Machine(profile=profile), wanted=INSTALL)
    for event in events:
        EVENTS[event](gitboot)
        gitboot.machine.advance(1)
    gitboot.run()
    gitboot.machine.run_through()

    booted = [boot.target for boot in gitboot.machine.boots]
    assert booted.count("Pxe") <= 1
    assert booted.count("Cd") + booted.count("UsbCd") <= 1


@for_each("profile", PROFILES.values(), ids=PROFILES)
def test_an_undisturbed_machine_boots_once_and_is_then_left_alone(profile: Profile) -> None:
    gitboot = _Instance(Machine(profile=profile), wanted=INSTALL)
    assert gitboot.run() == NoChange()
    gitboot.machine.run_through()
    writes = gitboot.machine.override.copy()
    assert gitboot.run() == NoChange()
    gitboot.machine.run_through()

    assert ([boot.target for boot in gitboot.machine.boots], gitboot.machine.override) == (["Pxe", "None"], writes)
    assert gitboot.ledger[INSTALL.reason].state in (CONSUMED, LOST)


@for_each("profile", PROFILES.values(), ids=PROFILES)
def test_a_window_interrupts_an_installation_and_then_allows_it_again(profile: Profile) -> None:
    gitboot = _Instance(Machine(profile=profile), wanted=INSTALL)
    gitboot.run()
    gitboot.wanted = BIOS_UPDATE
    gitboot.run()
    gitboot.machine.run_through()
    gitboot.wanted = INSTALL
    gitboot.run()
    gitboot.machine.run_through()

    cd, *rest = [boot.target for boot in gitboot.machine.boots]
    assert cd in ("Cd", "UsbCd")
    proven = profile.shows_resets
    assert rest == (["Pxe"] if proven else ["None"])


@for_each(("power", "expected"), [("Off", SET), ("On", "Wait"), ("PoweringOff", "Wait"), (None, "Wait")])
def test_an_override_that_waits_for_power_off_is_set_only_if_the_bmc_shows_power_off(
    power: str | None, expected: str
) -> None:
    assert (
        _describe_step(
            _step(
                structs.replace(INSTALL, only_while_off=True),
                structs.replace(_make_observation(NO_OVERRIDE), power=power),
            )
        )
        == expected
    )


# An override that another one for the same reason replaces


def test_an_old_override_that_was_not_replaced_still_belongs_to_gitboot() -> None:
    """The PATCH from Continuous to Once was lost. gitboot finds the old override, and sets it again or clears it."""
    first = _step(SET_AGAIN, _make_observation(CONTINUOUS), [_record(CONFIRMED, CONTINUOUS)])
    assert isinstance(first, SetOverride)
    assert (first.record.override, first.record.replaces) == (ONCE, CONTINUOUS)
    later = NOW + timedelta(minutes=2)
    again = _step(SET_AGAIN, _make_observation(CONTINUOUS), [first.record], at=later)
    assert isinstance(again, SetOverride)
    assert again.record.replaces == CONTINUOUS
    unwanted = _step(None, _make_observation(CONTINUOUS), [first.record], at=later)
    assert isinstance(unwanted, ClearOverride)
    assert unwanted.record.override == CONTINUOUS
    confirmed = _step(SET_AGAIN, _make_observation(ONCE), [again.record], at=later)
    assert isinstance(confirmed, ConfirmRecord)
    assert confirmed.record.replaces is None
