"""Work at many BMCs at once: which task starts when, and how often the pool wakes its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gitboot.bmc.redfish.transport import ResponseSample
from gitboot.bmc.worker_pool import INITIAL_LIMIT, MIN_LIMIT, ConcurrencyLimit, QueuedTask, TaskRunner

PATIENCE_S = 300
FAST = ResponseSample(latency_s=0.3)


@dataclass
class HeldTasks:
    """Tasks that a test ends, in a runner whose timers a test controls."""

    max_tasks: int = 1000
    max_site_tasks: int = 1000
    wakeups: int = 0
    timers: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self._changed = threading.Condition()
        self.crew: TaskRunner[str, str] = TaskRunner(
            self.max_tasks, self.max_site_tasks, on_results=self._wake, call_later=self._later
        )

    def _wake(self) -> None:
        with self._changed:
            self.wakeups += 1
            self._changed.notify_all()

    def _later(self, _: float, what: Callable[[], None]) -> None:
        with self._changed:
            self.timers.append(what)
            self._changed.notify_all()

    def task(self, key: str, site: str | None = None, sign: ResponseSample | None = None) -> QueuedTask[str, str]:
        gate = self._gates.setdefault(key, threading.Event())

        def work() -> tuple[str, ResponseSample | None]:
            with self._changed:
                self.begun.append(key)
                self._changed.notify_all()
            assert gate.wait(PATIENCE_S)
            return f"{key} is done", sign

        return QueuedTask(key, site, work)

    def add(self, *keys: str, site: str | None = None, sign: ResponseSample | None = None) -> frozenset[str]:
        return self.crew.add([self.task(key, site, sign) for key in keys])

    def wait_until(self, what: Callable[[], bool]) -> None:
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
def make_held_tasks() -> Iterator[Callable[..., HeldTasks]]:
    made: list[HeldTasks] = []

    def make(**limits: Any) -> HeldTasks:
        made.append(HeldTasks(**limits))
        return made[-1]

    yield make
    for each in made:
        each.end_all()
        each.crew.close()


@pytest.fixture
def held_tasks(make_held_tasks: Callable[..., HeldTasks]) -> HeldTasks:
    return make_held_tasks()


def make_names(number: int, letter: str = "a") -> list[str]:
    return [f"{letter}{each:03}" for each in range(number)]


def test_several_results_within_a_moment_cause_one_wakeup(held_tasks: HeldTasks) -> None:
    keys = make_names(INITIAL_LIMIT)
    held_tasks.add(*keys)
    held_tasks.end(*keys[:-1])
    assert held_tasks.taken(INITIAL_LIMIT - 1).keys() == set(keys[:-1])
    held_tasks.wait_until(lambda: len(held_tasks.timers) >= 1)
    assert (len(held_tasks.timers), held_tasks.wakeups) == (1, 0)


def test_the_pool_wakes_its_caller_after_a_moment_or_when_no_work_is_left(
    held_tasks: HeldTasks,
) -> None:
    held_tasks.add("a", "b")
    held_tasks.end("a")
    held_tasks.wait_until(lambda: len(held_tasks.timers) == 1)
    held_tasks.timers[0]()
    assert held_tasks.wakeups == 1
    held_tasks.end("b")
    held_tasks.wait_until(lambda: held_tasks.wakeups == 2)
    assert held_tasks.crew.take_results() == {"a": "a is done", "b": "b is done"}
    assert len(held_tasks.timers) == 1


def test_results_that_were_taken_cause_no_wakeup(held_tasks: HeldTasks) -> None:
    held_tasks.add("a", "b")
    held_tasks.end("a")
    held_tasks.wait_until(lambda: len(held_tasks.timers) == 1)
    assert held_tasks.taken(1) == {"a": "a is done"}
    held_tasks.timers.pop()()
    assert held_tasks.wakeups == 0
    held_tasks.add("c")
    held_tasks.end("c")
    held_tasks.wait_until(lambda: len(held_tasks.timers) == 1)  # after a moment is over, the next one begins


def test_a_finished_task_frees_its_place_before_its_result_is_taken(make_held_tasks: Callable[..., HeldTasks]) -> None:
    held_tasks, keys = make_held_tasks(max_tasks=2), make_names(5)
    held_tasks.add(*keys)
    held_tasks.wait_until(lambda: held_tasks.begun == keys[:2])
    held_tasks.end(*keys[:3])
    held_tasks.wait_until(lambda: held_tasks.begun == keys)
    held_tasks.end_all()
    assert held_tasks.taken(5) == {key: f"{key} is done" for key in keys}
    assert held_tasks.crew.wait_for_results() == {}


def test_a_site_gets_as_many_tasks_as_it_can_handle(held_tasks: HeldTasks) -> None:
    keys = make_names(3 * INITIAL_LIMIT)
    held_tasks.add(*keys, site="a", sign=FAST)
    held_tasks.wait_until(lambda: len(held_tasks.begun) == INITIAL_LIMIT)
    held_tasks.end(*keys[:INITIAL_LIMIT])
    held_tasks.wait_until(lambda: len(held_tasks.begun) == 3 * INITIAL_LIMIT)


def test_a_slow_site_does_not_block_another_site(make_held_tasks: Callable[..., HeldTasks]) -> None:
    held_tasks = make_held_tasks(max_tasks=8, max_site_tasks=6)
    held_tasks.add(*make_names(20, "a"), site="a")
    held_tasks.add(*make_names(20, "b"), site="b")
    held_tasks.wait_until(lambda: len(held_tasks.begun) == 8)
    held_tasks.end("a000", "a001", "a002")
    held_tasks.wait_until(lambda: len(held_tasks.begun) == 11)
    assert {each[0] for each in held_tasks.begun[8:]} == {"a", "b"}


def test_one_task_runs_for_each_key_and_the_newest_waiting_one_replaces_the_others(
    make_held_tasks: Callable[..., HeldTasks],
) -> None:
    held_tasks = make_held_tasks(max_tasks=1)
    assert held_tasks.add("a") == {"a"}
    held_tasks.wait_until(lambda: held_tasks.begun == ["a"])
    assert held_tasks.add("a") == frozenset()
    assert held_tasks.add("b", site="x") == {"b"}
    assert held_tasks.add("b", site="y") == {"b"}
    held_tasks.add("c")
    held_tasks.crew.drop_pending_tasks(["c"])
    held_tasks.end("a", "b")
    assert held_tasks.taken(2).keys() == {"a", "b"}
    assert held_tasks.begun == ["a", "b"]


def test_no_task_is_added_for_a_key_whose_last_result_was_not_taken(held_tasks: HeldTasks) -> None:
    held_tasks.add("web01")
    held_tasks.end("web01")
    held_tasks.wait_until(lambda: held_tasks.wakeups == 1)
    assert held_tasks.add("web01", "web02") == {"web02"}
    assert held_tasks.taken(1) == {"web01": "web01 is done"}
    assert held_tasks.add("web01") == {"web01"}


def test_an_exception_of_a_task_is_raised_to_the_taker_of_its_result(held_tasks: HeldTasks) -> None:

    def fail() -> tuple[str, ResponseSample]:
        raise ZeroDivisionError("our bug")

    held_tasks.crew.add([QueuedTask("a", None, fail)])
    with pytest.raises(ZeroDivisionError, match="our bug"):
        held_tasks.crew.wait_for_results()
    assert held_tasks.crew.wait_for_results() == {}


LOST = ResponseSample(is_lost=True)


def apply_samples(pace: ConcurrencyLimit, signs: Iterable[ResponseSample | None]) -> ConcurrencyLimit:
    for sign in signs:
        pace = pace.update(sign)
    return pace


def run_round(pace: ConcurrencyLimit, waited_s: float) -> ConcurrencyLimit:
    return apply_samples(pace, [ResponseSample(latency_s=waited_s)] * pace.limit)


def run_rounds(pace: ConcurrencyLimit, *waited_s: float) -> ConcurrencyLimit:
    for each in waited_s:
        pace = run_round(pace, each)
    return pace


def test_the_limit_starts_low_and_doubles_with_each_round_up_to_the_maximum() -> None:
    limits = [run_rounds(ConcurrencyLimit.start(100), *[0.3] * number).limit for number in range(5)]
    assert limits == [INITIAL_LIMIT, 32, 64, 100, 100]


def test_a_maximum_below_the_initial_limit_applies_from_the_start() -> None:
    assert ConcurrencyLimit.start(3).limit == 3
    assert run_rounds(ConcurrencyLimit.start(3), 0.3, 0.3, 5, 5).limit <= 3


def test_an_unfinished_round_does_not_change_the_limit() -> None:
    pace = ConcurrencyLimit.start(100)
    assert apply_samples(pace, [ResponseSample(latency_s=0.3)] * (INITIAL_LIMIT - 1)).limit == INITIAL_LIMIT


def test_if_latency_doubles_the_limit_is_halved_and_then_grows_by_steps() -> None:
    pace = run_rounds(ConcurrencyLimit.start(1000), 0.3, 0.3)
    assert pace.limit == 64
    limits = [run_rounds(pace, 0.9, *[0.3] * number).limit for number in range(4)]
    assert limits == [32, 40, 48, 56]


@pytest.mark.parametrize(
    ("case", "first_s", "then_s"),
    [("of a slow way", 0.3, 0.65), ("of a fast network, by a small amount", 0.002, 0.09)],
)
def test_a_small_increase_of_latency_does_not_reduce_the_limit(case: str, first_s: float, then_s: float) -> None:
    assert run_rounds(ConcurrencyLimit.start(1000), first_s, then_s).limit == INITIAL_LIMIT * 4, case


def test_a_few_slow_bmcs_among_many_do_not_reduce_the_limit() -> None:
    pace = ConcurrencyLimit.start(1000)
    few = [ResponseSample(latency_s=9)] * (INITIAL_LIMIT // 2 - 1)
    assert (
        apply_samples(
            run_round(pace, 0.3), few + [ResponseSample(latency_s=0.3)] * (2 * INITIAL_LIMIT - len(few))
        ).limit
        == INITIAL_LIMIT * 4
    )


def test_lost_responses_halve_the_limit_if_the_bmcs_responded_before() -> None:
    pace = run_rounds(ConcurrencyLimit.start(1000), 0.3)
    lost = apply_samples(pace, [LOST] * 4 + [ResponseSample(latency_s=0.3)] * 28)
    assert (pace.limit, lost.limit, apply_samples(pace, [LOST] * 2 + [ResponseSample(latency_s=0.3)] * 30).limit) == (
        32,
        16,
        64,
    )


def test_bmcs_that_never_responded_do_not_change_the_limit() -> None:
    assert apply_samples(ConcurrencyLimit.start(1000), [None, ResponseSample()] * 250) == ConcurrencyLimit.start(1000)


def test_the_limit_never_falls_below_the_minimum() -> None:
    pace = ConcurrencyLimit.start(1000)
    for _ in range(20):
        pace = apply_samples(pace, [LOST] * pace.limit)
    assert pace.limit == MIN_LIMIT


def test_the_limit_recovers_if_the_latency_stays_higher() -> None:
    pace = run_rounds(ConcurrencyLimit.start(64), *[0.01] * 5)
    assert (run_rounds(pace, *[0.4] * 3).limit, run_rounds(pace, *[0.4] * 60).limit) == (8, 64)
