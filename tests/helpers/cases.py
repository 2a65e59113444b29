"""Cases of a test: many in one test, how many of them `--lives` takes, and whether work grows with its input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from time import process_time
from typing import Any, TypeVar

# Cases of one test that run as one test, and a measure of whether work grows no faster than its input.
#
# A test that needs anything set up for each case is parametrized: pytest and its workers spend more on each test than
# a case takes.

Test = Callable[..., None]


def for_each(names: str | Sequence[str], cases: Iterable[Any], *, ids: Any = None) -> Callable[[Test], Test]:
    """Run a test for each case in one test, like pytest.mark.parametrize; it fails with the names of failed cases."""
    named = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    made, known = list(cases), ids if ids is None or callable(ids) else list(ids)
    values = [_values_of(case, len(named)) for case in made]
    called = [_called(case, number, known) for number, case in enumerate(made)]

    def decorated(test: Test) -> Test:
        @wraps(test)
        def together(**given: Any) -> None:
            assert values, "there is no case"
            failed: list[Exception] = []
            for name, value in zip(called, values, strict=True):
                try:
                    test(**given, **dict(zip(named, value, strict=True)))
                except Exception as error:  # noqa: BLE001 - it is told with the others
                    error.add_note(f"In the case {name}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(values)} cases", failed)

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in named]
        together.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return together

    return decorated


def _values_of(case: Any, count: int) -> Sequence[Any]:
    """A case's values; one that is made by pytest.param has them in `values`."""
    found = getattr(case, "values", case) if hasattr(case, "marks") else (case,) if count == 1 else case
    assert len(found) == count, found
    return tuple(found)


def _called(case: Any, number: int, ids: Any) -> str:
    if hasattr(case, "marks"):
        assert not case.marks, "a case that is marked is a test of its own"
        if case.id is not None:
            return str(case.id)
    if ids is None or callable(ids):
        return repr(_values_of(case, 1) if hasattr(case, "marks") else case)[:200]
    return str(ids[number])


TIMES = 8  # as much input; work that grows with its square takes 64 times as long
AT_MOST = 24.0


def growth(work: Callable[[int], object], size: int) -> float:
    """Return how many times longer `work` takes for eight times ``size``; choose a size that takes milliseconds.

    Disturbances only make a measurement longer, so the result is the least of ten; one is enough if it is short.
    """
    once, least = max(min(_took(work, size) for _ in range(3)), 1e-4), float("inf")
    for _ in range(10):
        least = min(least, _took(work, TIMES * size) / once)
        if least < AT_MOST:
            break
    return least


def _took(work: Callable[[int], object], size: int) -> float:
    began = process_time()
    work(size)
    return process_time() - began


# The length of random searches: `--lives` sets it, and each test takes its part.

USUAL = 6  # lives of a machine at each BMC

lives = USUAL  # as the command line has it, before any test is imported

Case = TypeVar("Case")


def every(usual: int) -> int:
    """Return the interval between tested steps: the usual one, or a longer one in a short search."""
    return max(usual * USUAL // lives, usual)


def each_of(cases: Sequence[Case], *, one_in: int) -> Sequence[Case]:
    """Return all cases, or one in so many in a short search. The cases differ only in the time of an event."""
    return cases if lives >= USUAL else cases[::one_in]


def examples(usual: int) -> int:
    """Return how many examples Hypothesis takes: fewer than usual in a short search."""
    return max(usual * lives // USUAL, 2)


# Values that a test takes for granted.

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return a value; the test fails if it is None."""
    assert value is not None
    return value
