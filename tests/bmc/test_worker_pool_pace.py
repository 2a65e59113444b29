"""How many BMCs of a site are asked at a time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gitboot.bmc.credentials import NO_SIGN, Sign
from gitboot.bmc.worker_pool import FIRST, LEAST, Pace

LOST = Sign(is_lost=True)


def after(pace: Pace, signs: Iterable[Sign]) -> Pace:
    for sign in signs:
        pace = pace.after(sign)
    return pace


def a_round(pace: Pace, waited_s: float) -> Pace:
    return after(pace, [Sign(waited_s=waited_s)] * pace.limit)


def rounds(pace: Pace, *waited_s: float) -> Pace:
    for each in waited_s:
        pace = a_round(pace, each)
    return pace


def test_it_begins_with_few_and_doubles_with_each_round_up_to_the_bound() -> None:
    limits = [rounds(Pace.upto(100), *[0.3] * number).limit for number in range(5)]
    assert limits == [FIRST, 32, 64, 100, 100]


def test_a_bound_below_what_it_begins_with_holds_from_the_first() -> None:
    assert Pace.upto(3).limit == 3
    assert rounds(Pace.upto(3), 0.3, 0.3, 5, 5).limit <= 3


def test_a_round_that_is_not_over_changes_nothing() -> None:
    pace = Pace.upto(100)
    assert after(pace, [Sign(waited_s=0.3)] * (FIRST - 1)).limit == FIRST


def test_answers_that_take_twice_as_long_halve_it_and_then_it_grows_by_steps() -> None:
    pace = rounds(Pace.upto(1000), 0.3, 0.3)
    assert pace.limit == 64
    limits = [rounds(pace, 0.9, *[0.3] * number).limit for number in range(4)]
    assert limits == [32, 40, 48, 56]


@pytest.mark.parametrize(
    ("case", "first_s", "then_s"),
    [("of a slow way", 0.3, 0.65), ("of a fast one, by what nobody notices", 0.002, 0.09)],
)
def test_some_delay_is_no_sign(case: str, first_s: float, then_s: float) -> None:
    assert rounds(Pace.upto(1000), first_s, then_s).limit == FIRST * 4, case


def test_a_few_slow_bmcs_among_many_do_not_slow_the_others() -> None:
    pace = Pace.upto(1000)
    few = [Sign(waited_s=9)] * (FIRST // 2 - 1)
    assert after(a_round(pace, 0.3), few + [Sign(waited_s=0.3)] * (2 * FIRST - len(few))).limit == FIRST * 4


def test_lost_answers_halve_it_where_they_came_before() -> None:
    pace = rounds(Pace.upto(1000), 0.3)
    lost = after(pace, [LOST] * 4 + [Sign(waited_s=0.3)] * 28)
    assert (pace.limit, lost.limit) == (32, 16)
    assert after(pace, [LOST] * 2 + [Sign(waited_s=0.3)] * 30).limit == 64


def test_bmcs_that_have_never_answered_say_nothing_of_the_way() -> None:
    assert after(Pace.upto(1000), [NO_SIGN] * 500) == Pace.upto(1000)


def test_it_never_comes_to_a_stop() -> None:
    pace = Pace.upto(1000)
    for _ in range(20):
        pace = after(pace, [LOST] * pace.limit)
    assert pace.limit == LEAST


def test_a_way_that_has_become_longer_for_good_is_not_held_against_it() -> None:
    pace = rounds(Pace.upto(64), *[0.01] * 5)
    assert (rounds(pace, *[0.4] * 3).limit, rounds(pace, *[0.4] * 60).limit) == (8, 64)
