"""Work at many BMCs at once: what is begun when, and how often somebody is woken for what has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gitboot.bmc.credentials import NO_SAMPLE, ResponseSample
from gitboot.bmc.worker_pool import INITIAL_LIMIT, MIN_LIMIT, ConcurrencyLimit, Task, TaskRunner

PATIENCE_S = 300
FAST = ResponseSample(latency_s=0.3)


@dataclass
class Held:
    """Tasks that a test ends, in a runner whose timers a test controls."""

    most: int = 1000
    most_of_site: int = 1000
    woken: int = 0
    timers: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self._changed = threading.Condition()
        self.crew: TaskRunner[str, str] = TaskRunner(
            self.most, self.most_of_site, on_ended=self._wake, later=self._later
        )

    def _wake(self) -> None:
        with self._changed:
            self.woken += 1
            self._changed.notify_all()

    def _later(self, _: float, what: Callable[[], None]) -> None:
        with self._changed:
            self.timers.append(what)
            self._changed.notify_all()

    def task(self, key: str, site: str | None = None, sign: ResponseSample = NO_SAMPLE) -> Task[str, str]:
        gate = self._gates.setdefault(key, threading.Event())

        def work() -> tuple[str, ResponseSample]:
            with self._changed:
                self.begun.append(key)
                self._changed.notify_all()
            assert gate.wait(PATIENCE_S)
            return f"{key} is done", sign

        return Task(key, site, work)

    def add(self, *keys: str, site: str | None = None, sign: ResponseSample = NO_SAMPLE) -> frozenset[str]:
        return self.crew.add([self.task(key, site, sign) for key in keys])

    def until(self, what: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(what, PATIENCE_S)

    def end(self, *keys: str) -> None:
        for key in keys:
            self._gates[key].set()

    def end_all(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def taken(self, number: int) -> dict[str, str]:
        found: dict[str, str] = {}
        while len(found) < number:
            found |= self.crew.wait_for_results()
        return found


@pytest.fixture
def make_held() -> Iterator[Callable[..., Held]]:
    made: list[Held] = []

    def make(**limits: Any) -> Held:
        made.append(Held(**limits))
        return made[-1]

    yield make
    for each in made:
        each.end_all()
        each.crew.close()


@pytest.fixture
def held(make_held: Callable[..., Held]) -> Held:
    return make_held()


def names(number: int, letter: str = "a") -> list[str]:
    return [f"{letter}{each:03}" for each in range(number)]


def test_many_that_end_within_a_moment_wake_somebody_once(held: Held) -> None:
    keys = names(INITIAL_LIMIT)
    held.add(*keys)
    held.end(*keys[:-1])
    assert held.taken(INITIAL_LIMIT - 1).keys() == set(keys[:-1])
    held.until(lambda: len(held.timers) >= 1)
    assert (len(held.timers), held.woken) == (1, 0)


def test_after_a_moment_and_when_nothing_is_left_to_wait_for_somebody_is_woken(
    held: Held,
) -> None:
    held.add("a", "b")
    held.end("a")
    held.until(lambda: len(held.timers) == 1)
    held.timers[0]()
    assert held.woken == 1
    held.end("b")
    held.until(lambda: held.woken == 2)
    assert held.crew.take_results() == {"a": "a is done", "b": "b is done"}
    assert len(held.timers) == 1


def test_nobody_is_woken_for_what_was_taken(held: Held) -> None:
    held.add("a", "b")
    held.end("a")
    held.until(lambda: len(held.timers) == 1)
    assert held.taken(1) == {"a": "a is done"}
    held.timers.pop()()
    assert held.woken == 0
    held.add("c")
    held.end("c")
    held.until(lambda: len(held.timers) == 1)  # after a moment is over, the next one begins


def test_what_ends_makes_room_at_once_and_nobody_has_to_take_it_first(make_held: Callable[..., Held]) -> None:
    held, keys = make_held(most=2), names(5)
    held.add(*keys)
    held.until(lambda: held.begun == keys[:2])
    held.end(*keys[:3])
    held.until(lambda: held.begun == keys)
    held.end_all()
    assert held.taken(5) == {key: f"{key} is done" for key in keys}
    assert held.crew.wait_for_results() == {}


def test_a_site_gets_as_many_as_it_bears(held: Held) -> None:
    keys = names(3 * INITIAL_LIMIT)
    held.add(*keys, site="a", sign=FAST)
    held.until(lambda: len(held.begun) == INITIAL_LIMIT)
    held.end(*keys[:INITIAL_LIMIT])
    held.until(lambda: len(held.begun) == 3 * INITIAL_LIMIT)


def test_a_site_that_takes_its_time_keeps_no_other_waiting(make_held: Callable[..., Held]) -> None:
    held = make_held(most=8, most_of_site=6)
    held.add(*names(20, "a"), site="a")
    held.add(*names(20, "b"), site="b")
    held.until(lambda: len(held.begun) == 8)
    held.end("a000", "a001", "a002")
    held.until(lambda: len(held.begun) == 11)
    assert {each[0] for each in held.begun[8:]} == {"a", "b"}


def test_of_one_key_there_is_one_at_a_time_and_the_newest_that_has_not_begun(make_held: Callable[..., Held]) -> None:
    held = make_held(most=1)
    assert held.add("a") == {"a"}
    held.until(lambda: held.begun == ["a"])
    assert held.add("a") == frozenset()
    assert held.add("b", site="x") == {"b"}
    assert held.add("b", site="y") == {"b"}
    held.add("c")
    held.crew.drop_pending(["c"])
    held.end("a", "b")
    assert held.taken(2).keys() == {"a", "b"}
    assert held.begun == ["a", "b"]


def test_no_task_is_taken_by_who_does_not_know_yet_what_the_last_one_did(held: Held) -> None:
    held.add("web01")
    held.end("web01")
    held.until(lambda: held.woken == 1)
    assert held.add("web01", "web02") == {"web02"}
    assert held.taken(1) == {"web01": "web01 is done"}
    assert held.add("web01") == {"web01"}


def test_what_a_task_raises_is_raised_where_its_result_would_be(held: Held) -> None:

    def fail() -> tuple[str, ResponseSample]:
        raise ZeroDivisionError("our bug")

    held.crew.add([Task("a", None, fail)])
    with pytest.raises(ZeroDivisionError, match="our bug"):
        held.crew.wait_for_results()
    assert held.crew.wait_for_results() == {}


LOST = ResponseSample(is_lost=True)


def after(pace: ConcurrencyLimit, signs: Iterable[ResponseSample]) -> ConcurrencyLimit:
    for sign in signs:
        pace = pace.update(sign)
    return pace


def a_round(pace: ConcurrencyLimit, waited_s: float) -> ConcurrencyLimit:
    return after(pace, [ResponseSample(latency_s=waited_s)] * pace.limit)


def rounds(pace: ConcurrencyLimit, *waited_s: float) -> ConcurrencyLimit:
    for each in waited_s:
        pace = a_round(pace, each)
    return pace


def test_it_begins_with_few_and_doubles_with_each_round_up_to_the_bound() -> None:
    limits = [rounds(ConcurrencyLimit.start(100), *[0.3] * number).limit for number in range(5)]
    assert limits == [INITIAL_LIMIT, 32, 64, 100, 100]


def test_a_bound_below_what_it_begins_with_holds_from_the_first() -> None:
    assert ConcurrencyLimit.start(3).limit == 3
    assert rounds(ConcurrencyLimit.start(3), 0.3, 0.3, 5, 5).limit <= 3


def test_a_round_that_is_not_over_changes_nothing() -> None:
    pace = ConcurrencyLimit.start(100)
    assert after(pace, [ResponseSample(latency_s=0.3)] * (INITIAL_LIMIT - 1)).limit == INITIAL_LIMIT


def test_answers_that_take_twice_as_long_halve_it_and_then_it_grows_by_steps() -> None:
    pace = rounds(ConcurrencyLimit.start(1000), 0.3, 0.3)
    assert pace.limit == 64
    limits = [rounds(pace, 0.9, *[0.3] * number).limit for number in range(4)]
    assert limits == [32, 40, 48, 56]


@pytest.mark.parametrize(
    ("case", "first_s", "then_s"),
    [("of a slow way", 0.3, 0.65), ("of a fast one, by what nobody notices", 0.002, 0.09)],
)
def test_some_delay_is_no_sign(case: str, first_s: float, then_s: float) -> None:
    assert rounds(ConcurrencyLimit.start(1000), first_s, then_s).limit == INITIAL_LIMIT * 4, case


def test_a_few_slow_bmcs_among_many_do_not_slow_the_others() -> None:
    pace = ConcurrencyLimit.start(1000)
    few = [ResponseSample(latency_s=9)] * (INITIAL_LIMIT // 2 - 1)
    assert (
        after(a_round(pace, 0.3), few + [ResponseSample(latency_s=0.3)] * (2 * INITIAL_LIMIT - len(few))).limit
        == INITIAL_LIMIT * 4
    )


def test_lost_answers_halve_it_where_they_came_before() -> None:
    pace = rounds(ConcurrencyLimit.start(1000), 0.3)
    lost = after(pace, [LOST] * 4 + [ResponseSample(latency_s=0.3)] * 28)
    assert (pace.limit, lost.limit, after(pace, [LOST] * 2 + [ResponseSample(latency_s=0.3)] * 30).limit) == (
        32,
        16,
        64,
    )


def test_bmcs_that_have_never_answered_say_nothing_of_the_way() -> None:
    assert after(ConcurrencyLimit.start(1000), [NO_SAMPLE] * 500) == ConcurrencyLimit.start(1000)


def test_it_never_comes_to_a_stop() -> None:
    pace = ConcurrencyLimit.start(1000)
    for _ in range(20):
        pace = after(pace, [LOST] * pace.limit)
    assert pace.limit == MIN_LIMIT


def test_a_way_that_has_become_longer_for_good_is_not_held_against_it() -> None:
    pace = rounds(ConcurrencyLimit.start(64), *[0.01] * 5)
    assert (rounds(pace, *[0.4] * 3).limit, rounds(pace, *[0.4] * 60).limit) == (8, 64)
