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
    parameter_names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    case_list, known = list(cases), ids if ids is None or callable(ids) else list(ids)
    values = [_get_values(case, len(parameter_names)) for case in case_list]
    case_names = [_name_case(case, number, known) for number, case in enumerate(case_list)]

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run_cases(**fixtures: Any) -> None:
            assert values, "there is no case"
            failed: list[Exception] = []
            for name, value in zip(case_names, values, strict=True):
                try:
                    test(**fixtures, **dict(zip(parameter_names, value, strict=True)))
                except Exception as error:  # noqa: BLE001 - it is told with the others
                    error.add_note(f"In the case {name}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(values)} cases", failed)

        signature = inspect.signature(test)
        remaining = [each for name, each in signature.parameters.items() if name not in parameter_names]
        run_cases.__signature__ = signature.replace(parameters=remaining)  # type: ignore[attr-defined]
        return run_cases

    return decorate


def _get_values(case: Any, count: int) -> Sequence[Any]:
    """A case's values; one that is made by pytest.param has them in `values`."""
    found = getattr(case, "values", case) if hasattr(case, "marks") else (case,) if count == 1 else case
    assert len(found) == count, found
    return tuple(found)


def _name_case(case: Any, number: int, ids: Any) -> str:
    if hasattr(case, "marks"):
        assert not case.marks, "a case that is marked is a test of its own"
        if case.id is not None:
            return str(case.id)
    if ids is None or callable(ids):
        return repr(_get_values(case, 1) if hasattr(case, "marks") else case)[:200]
    return str(ids[number])


TIMES = 8  # as much input; work that grows with its square takes 64 times as long
MAX_GROWTH = 24.0


def measure_growth(work: Callable[[int], object], size: int) -> float:
    """Return how many times longer `work` takes for eight times ``size``; choose a size that takes milliseconds.

    Disturbances only make a measurement longer, so the result is the least of ten; one is enough if it is short.
    """
    base_s, least = max(min(_measure(work, size) for _ in range(3)), 1e-4), float("inf")
    for _ in range(10):
        least = min(least, _measure(work, TIMES * size) / base_s)
        if least < MAX_GROWTH:
            break
    return least


def _measure(work: Callable[[int], object], size: int) -> float:
    began = process_time()
    work(size)
    return process_time() - began


# The length of random searches: `--lives` sets it, and each test takes its part.

USUAL_LIVES = 6  # lives of a machine at each BMC

lives = USUAL_LIVES  # as the command line has it, before any test is imported

Case = TypeVar("Case")


def get_interval(usual: int) -> int:
    """Return the interval between tested steps: the usual one, or a longer one in a short search."""
    return max(usual * USUAL_LIVES // lives, usual)


def sample_cases(cases: Sequence[Case], *, one_in: int) -> Sequence[Case]:
    """Return all cases, or one in so many in a short search. The cases differ only in the time of an event."""
    return cases if lives >= USUAL_LIVES else cases[::one_in]


def count_examples(usual: int) -> int:
    """Return how many examples Hypothesis takes: fewer than usual in a short search."""
    return max(usual * lives // USUAL_LIVES, 2)


# Values that a test takes for granted.

T = TypeVar("T")


def require_value(value: T | None) -> T:
    """Return a value; the test fails if it is None."""
    assert value is not None
    return value
