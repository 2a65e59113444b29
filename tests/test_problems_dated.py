"""Which problems of a commit hold at an instant, and how many of them are shown."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gitboot.errors import InvalidRepository
from gitboot.problems import Code, DatedProblem, Problem, Severity, holding, longest, next_change
from tests.helpers.fleets import at

NOON = at("20T12:00")
SECOND = timedelta(seconds=1)


def dated(
    since: datetime | None, until: datetime | None, line: int = 1, severity: Severity = Severity.ERROR
) -> DatedProblem:
    problem = Problem(path="a.yaml", line=line, column=1, code="GB2012", message=f"no. {line}", severity=severity)
    return DatedProblem(problem=problem, since=since, until=until)


@pytest.mark.parametrize(
    ("since", "until", "before", "there", "after"),
    [
        (NOON, None, False, True, True),  # from an instant on
        (None, NOON, True, False, False),  # until an instant, and no longer at it
        (NOON, NOON + SECOND, False, True, False),
        (None, None, True, True, True),
    ],
)
def test_a_problem_holds_from_its_beginning_until_its_end(
    since: datetime | None, until: datetime | None, before: bool, there: bool, after: bool
) -> None:
    each = dated(since, until)
    found = [bool(holding([each], instant)) for instant in (NOON - SECOND, NOON, NOON + SECOND)]
    assert found == [before, there, after]


def test_the_next_change_is_the_first_beginning_or_end_that_lies_ahead() -> None:
    found = [dated(None, NOON + 3 * SECOND), dated(NOON + SECOND, NOON + 2 * SECOND), dated(NOON - SECOND, None)]
    ahead = [next_change(found, NOON + seconds * SECOND) for seconds in (-2, -1, 0, 1, 2, 3)]
    assert ahead == [NOON - SECOND, *2 * [NOON + SECOND], NOON + 2 * SECOND, NOON + 3 * SECOND, None]
    assert next_change([], NOON) is None


def test_an_invalid_commit_has_the_problems_of_the_instant_besides_those_that_stay() -> None:
    stays = Problem(path="b.yaml", line=1, column=1, code="GB1001", message="not YAML")
    error = InvalidRepository([stays], dated=[dated(None, NOON), dated(NOON, None, 2)])
    assert [each.line for each in error.at(NOON - SECOND).problems if each != stays] == [1]
    assert [each.line for each in error.at(NOON).problems if each != stays] == [2]
    assert error.problems == (stays,)
    assert "not YAML" in str(error.at(NOON)) and "no. 2" in str(error.at(NOON))


def test_of_many_problems_of_a_file_those_that_hold_longest_are_shown() -> None:
    many = [dated(None, NOON + line * SECOND, line) for line in range(1, 151)]
    warnings = [dated(NOON + line * SECOND, None, line, Severity.WARNING) for line in range(1, 3)]
    shown = longest([*many, *warnings])
    assert [each.problem.line for each in shown if each.problem.severity is Severity.WARNING] == [1, 2]
    errors = [each for each in shown if each.problem.severity is Severity.ERROR]
    assert [each.problem.line for each in errors] == list(range(50, 151))
    assert errors[0].problem.code == Code.TOO_MANY_PROBLEMS
    assert errors[0].problem.message.startswith("up to 50 more problems")
    for second in range(150):  # a commit is invalid for as long as any of all its problems holds
        instant = NOON + second * SECOND
        assert bool(holding(many, instant)) == bool(holding(errors, instant))


def test_of_many_problems_that_begin_the_first_are_shown() -> None:
    many = [dated(NOON + line * SECOND, None, line) for line in range(1, 151)]
    shown = [each.problem.line for each in longest(many)]
    assert shown == list(range(1, 102))
