"""How long the stages of an instance's work take: by a clock that is set, and of an instance that has reconciled."""

from __future__ import annotations

from gitboot.status.work_progress import BOUNDS_S, Laps, Stage


def test_a_lap_is_what_has_passed_since_the_one_before() -> None:
    now_s = [0.0]
    laps = Laps(lambda: now_s[0])
    lap = laps.start()
    for stage, at_s in ((Stage.ACCEPT, 2), (Stage.PLAN, 3)):
        now_s[0] = at_s
        lap(stage)
    now_s[0] = 50
    lap.end(Stage.RECONCILE)
    assert {stage: each["seconds"] for stage, each in laps.facts().items()} == {
        "accept": 2.0,
        "plan": 1.0,
        "reconcile": 50.0,
    }


def test_each_duration_is_counted_once_in_the_first_bucket_that_it_does_not_exceed() -> None:
    laps = Laps()
    for seconds in (0, *BOUNDS_S, 300.001, 1e9):
        laps.add(Stage.FETCH, seconds)
    (found,) = laps.facts().values()
    assert found["boundsS"] == list(BOUNDS_S)
    assert found["counts"] == [2, *([1] * (len(BOUNDS_S) - 1)), 2]
