"""Problems of a commit that are valid at a time: the first ones are shown, with the number of the others."""

from __future__ import annotations

from datetime import datetime, timedelta

from gitboot.errors import InvalidRepository
from gitboot.fleet.yaml import select_first
from gitboot.problems import Code, DatedProblem, Problem, Severity, find_next_change, find_problems_at
from gitboot.resolve.fleet_decisions import select_longest_problems
from tests.helpers.cases import for_each
from tests.helpers.fleets import at

NOON = at("20T12:00")
SECOND = timedelta(seconds=1)


def problem(line: int, path: str = "a.yaml", severity: Severity = Severity.ERROR) -> Problem:
    return Problem(path=path, line=line, column=1, code="GB2012", message=f"no. {line}", severity=severity)


def dated(since: datetime | None, until: datetime | None, line: int = 1, **more: Severity) -> DatedProblem:
    return DatedProblem(problem=problem(line, **more), since=since, until=until)


@for_each(
    ("given", "more", "last"),
    [
        (0, 0, []),
        (100, 0, []),
        (101, 0, [(101, "GB1015", "1 more problem in the rest of this file is not shown")]),
        (102, 0, [(101, "GB1015", "2 more problems in the rest of this file are not shown")]),
        (101, 49_899, [(101, "GB1015", "49,900 more problems in the rest of this file are not shown")]),
        (3, 2, [(3, "GB1015", "2 more problems in the rest of this file are not shown")]),
    ],
)
def test_a_hundred_problems_of_a_file_are_shown(given: int, more: int, last: list[tuple[int, str, str]]) -> None:
    """The last one is at the first that is not shown."""
    shown = select_first((problem(line) for line in range(given, 0, -1)), {"a.yaml": more})
    expected = [(line, "GB2012", f"no. {line}") for line in range(1, min(given, 100) + 1)]
    assert [(each.line, each.code, each.message) for each in shown] == sorted(expected + last)
    assert [bool(each.hint) for each in shown] == [each.code == "GB1015" for each in shown]


def test_each_file_has_its_own_hundred() -> None:
    problems = select_first(problem(line, path) for path in ("b.yaml", "a.yaml") for line in range(1, 201))
    assert [each.path for each in problems] == ["a.yaml"] * 101 + ["b.yaml"] * 101


def test_warnings_hide_no_error() -> None:
    problems = select_first([*(problem(line, severity=Severity.WARNING) for line in range(1, 201)), problem(300)])
    assert problems[-1] == problem(300)
    assert [each.severity for each in problems] == [Severity.WARNING] * 101 + [Severity.ERROR]


@for_each(
    ("since", "until", "before", "there", "after"),
    [
        (NOON, None, False, True, True),  # from an instant on
        (None, NOON, True, False, False),  # until an instant, and no longer at it
        (NOON, NOON + SECOND, False, True, False),
        (None, None, True, True, True),
    ],
)
def test_a_problem_is_valid_from_its_beginning_until_its_end(
    since: datetime | None, until: datetime | None, before: bool, there: bool, after: bool
) -> None:
    each = dated(since, until)
    found = [bool(find_problems_at([each], instant)) for instant in (NOON - SECOND, NOON, NOON + SECOND)]
    assert found == [before, there, after]


def test_the_next_change_is_the_first_future_beginning_or_end() -> None:
    found = [dated(None, NOON + 3 * SECOND), dated(NOON + SECOND, NOON + 2 * SECOND), dated(NOON - SECOND, None)]
    ahead = [find_next_change(found, NOON + seconds * SECOND) for seconds in (-2, -1, 0, 1, 2, 3)]
    assert ahead == [NOON - SECOND, *2 * [NOON + SECOND], NOON + 2 * SECOND, NOON + 3 * SECOND, None]
    assert find_next_change([], NOON) is None


def test_an_invalid_commit_has_its_permanent_problems_and_those_of_the_time() -> None:
    stays = Problem(path="b.yaml", line=1, column=1, code="GB1001", message="not YAML")
    error = InvalidRepository([stays], dated=[dated(None, NOON), dated(NOON, None, 2)])
    assert [each.line for each in error.at(NOON - SECOND).problems if each != stays] == [1]
    assert [each.line for each in error.at(NOON).problems if each != stays] == [2]
    assert error.problems == (stays,)
    assert "not YAML" in str(error.at(NOON)) and "no. 2" in str(error.at(NOON))


def test_of_many_problems_of_a_file_those_that_last_longest_are_shown() -> None:
    many = [dated(None, NOON + line * SECOND, line) for line in range(1, 151)]
    warnings = [dated(NOON + line * SECOND, None, line, severity=Severity.WARNING) for line in range(1, 3)]
    shown = select_longest_problems([*many, *warnings])
    assert [each.problem.line for each in shown if each.problem.severity is Severity.WARNING] == [1, 2]
    errors = [each for each in shown if each.problem.severity is Severity.ERROR]
    assert [each.problem.line for each in errors] == list(range(50, 151))
    assert (errors[0].problem.code, errors[0].problem.message[:24]) == (
        Code.TOO_MANY_PROBLEMS,
        "up to 50 more time-depen",
    )
    for second in range(150):  # a commit is invalid for as long as any of all its problems holds
        instant = NOON + second * SECOND
        assert bool(find_problems_at(many, instant)) == bool(find_problems_at(errors, instant))


def test_of_many_problems_that_begin_later_the_first_are_shown() -> None:
    many = [dated(NOON + line * SECOND, None, line) for line in range(1, 151)]
    shown = [each.problem.line for each in select_longest_problems(many)]
    assert shown == list(range(1, 102))
