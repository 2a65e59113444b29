"""Detection of resets, from marks and the clock of the BMC."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import structs

from gitboot.bmc.override_state import NO_MARKS, ResetConclusion, ResetMarks
from tests.helpers.cases import for_each

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SET = ResetMarks(
    last_reset_time="2026-11-17T12:00:00+00:00",
    boot_progress_time="2026-11-17T12:02:00Z",
    settled=True,
    bmc_time="2026-11-20T12:00:00+00:00",
    bmc_ahead_s=0,
    manager_reset_time="2026-11-01T00:00:00+00:00",
)
RESET = structs.replace(SET, last_reset_time="2026-11-20T12:10:00+00:00", bmc_time="2026-11-20T12:12:00+00:00")
RESTARTED = "2026-11-20T12:05:00Z"
NO_CLOCK = structs.replace(SET, bmc_time=None, bmc_ahead_s=None, manager_reset_time=None)
NO_MANAGER_RESET = structs.replace(SET, manager_reset_time=None)


def _make_marks(time: str) -> ResetMarks:
    return structs.replace(RESET, last_reset_time=time)


@for_each(
    ("case", "before", "after", "reset"),
    [
        ("later than the setting", SET, RESET, ResetConclusion.SEEN),
        ("at the second of the setting", SET, _make_marks("2026-11-20T12:00:00Z"), ResetConclusion.SEEN),
        ("moved, but not since the setting", SET, _make_marks("2026-11-19T12:00:00Z"), ResetConclusion.UNKNOWN),
        ("moved back", SET, _make_marks("2026-11-10T12:00:00Z"), ResetConclusion.UNKNOWN),
        (
            "the same instant in another offset",
            SET,
            _make_marks("2026-11-17T21:00:00+09:00"),
            ResetConclusion.RULED_OUT,
        ),
        ("not an instant, and moved", SET, _make_marks("now"), ResetConclusion.UNKNOWN),
        (
            "one of two is later",
            SET,
            structs.replace(SET, boot_progress_time="2026-11-20T12:11:00Z"),
            ResetConclusion.SEEN,
        ),
        ("the Manager restarted", SET, structs.replace(RESET, manager_reset_time=RESTARTED), ResetConclusion.UNKNOWN),
        (
            "so it did, and no mark moved",
            SET,
            structs.replace(SET, manager_reset_time=RESTARTED),
            ResetConclusion.UNKNOWN,
        ),
        (
            "its restart is worked out",
            SET,
            structs.replace(RESET, manager_reset_time="2026-11-01T00:00:02Z"),
            ResetConclusion.SEEN,
        ),
        (
            "its last restart is no longer shown",
            SET,
            structs.replace(RESET, manager_reset_time=None),
            ResetConclusion.UNKNOWN,
        ),
        (
            "it never showed one",
            NO_MANAGER_RESET,
            structs.replace(RESET, manager_reset_time=None),
            ResetConclusion.SEEN,
        ),
        ("the clock stepped ahead", SET, structs.replace(RESET, bmc_ahead_s=121), ResetConclusion.UNKNOWN),
        ("the clock stepped back", SET, structs.replace(RESET, bmc_ahead_s=-121), ResetConclusion.UNKNOWN),
        ("the clock drifts", SET, structs.replace(RESET, bmc_ahead_s=119), ResetConclusion.SEEN),
        ("the clock cannot be read any more", SET, structs.replace(RESET, bmc_time=None), ResetConclusion.UNKNOWN),
        ("there never was a clock", NO_CLOCK, structs.replace(RESET, bmc_time=None), ResetConclusion.SEEN),
        (
            "the same, and a mark moved back",
            NO_CLOCK,
            structs.replace(RESET, last_reset_time="2026-11-10"),
            ResetConclusion.UNKNOWN,
        ),
        ("no mark moved", SET, SET, ResetConclusion.RULED_OUT),
        ("no mark moved, but it was in POST", structs.replace(SET, settled=False), SET, ResetConclusion.UNKNOWN),
        ("it was in POST, and moved", structs.replace(SET, settled=False), RESET, ResetConclusion.SEEN),
        ("no mark is shown any more", NO_CLOCK, NO_MARKS, ResetConclusion.UNKNOWN),
        ("no mark was shown before", NO_MARKS, NO_CLOCK, ResetConclusion.UNKNOWN),
        ("no mark was ever shown", structs.replace(NO_MARKS, settled=True), NO_MARKS, ResetConclusion.UNKNOWN),
        (
            "one of two marks was shown",
            structs.replace(NO_CLOCK, last_reset_time=None),
            NO_CLOCK,
            ResetConclusion.RULED_OUT,
        ),
    ],
)
def test_marks_and_their_clock_show_whether_a_machine_was_reset(
    case: str, before: ResetMarks, after: ResetMarks, reset: ResetConclusion
) -> None:
    assert after.find_reset_since(before) is reset, case


def test_an_unchanged_mark_rules_out_a_reset_only_if_the_mark_is_known_to_move() -> None:
    assert SET.find_reset_since(SET, changing_marks=frozenset({"last_reset_time"})) is ResetConclusion.RULED_OUT
    assert SET.find_reset_since(SET, changing_marks=frozenset()) is ResetConclusion.UNKNOWN
    only = structs.replace(SET, boot_progress_time=None)
    assert only.find_reset_since(SET, changing_marks=frozenset({"boot_progress_time"})) is ResetConclusion.UNKNOWN


@for_each(
    ("then", "now", "reset"),
    [
        ("OSBootStarted", "OSRunning", ResetConclusion.UNKNOWN),
        ("SystemHardwareInitializationComplete", "OSBootStarted", ResetConclusion.UNKNOWN),
        ("OSBootStarted", "OSBootStarted", ResetConclusion.SEEN),
        ("OSRunning", "OSRunning", ResetConclusion.SEEN),
        ("OSRunning", "MemoryInitializationStarted", ResetConclusion.SEEN),
        ("None", "OSRunning", ResetConclusion.SEEN),
        ("OEM", "OSRunning", ResetConclusion.SEEN),
        (None, "OSRunning", ResetConclusion.SEEN),
    ],
)
def test_boot_progress_during_post_does_not_prove_a_reset(then: str | None, now: str, reset: ResetConclusion) -> None:
    before = structs.replace(SET, boot_progress=then)
    after = structs.replace(SET, boot_progress=now, boot_progress_time="2026-11-20T12:01:00Z")
    assert after.find_reset_since(before) is reset
    assert (
        structs.replace(after, last_reset_time="2026-11-20T12:00:30Z").find_reset_since(before) is ResetConclusion.SEEN
    )


def test_later_marks_are_found_with_the_clock_of_the_bmc() -> None:
    assert RESET.find_later_marks(SET) == {"last_reset_time"}
    assert structs.replace(RESET, bmc_ahead_s=7200).find_later_marks(SET) == frozenset()
    assert structs.replace(RESET, bmc_time=None).find_later_marks(SET) == {
        "last_reset_time"
    }  # as far as an ordinary reading shows
