"""Of many problems the first ones are shown, with how many more there are."""

from __future__ import annotations

from gitboot.problems import Problem, Severity, first
from tests.helpers.cases import for_each


def problem(line: int, path: str = "a.yaml", severity: Severity = Severity.ERROR) -> Problem:
    return Problem(path=path, line=line, column=1, code="GB1007", message="an alias", severity=severity)


@for_each(
    ("given", "more", "shown", "last"),
    [
        (0, 0, 0, None),
        (100, 0, 100, None),
        (101, 0, 101, "1 more problem from here on is not shown"),
        (102, 0, 101, "2 more problems from here on are not shown"),
        (101, 49_899, 101, "49,900 more problems from here on are not shown"),
        (3, 2, 4, "2 more problems from here on are not shown"),
    ],
)
def test_a_hundred_problems_of_a_file_are_shown(given: int, more: int, shown: int, last: str | None) -> None:
    problems = first((problem(line) for line in range(given, 0, -1)), {"a.yaml": more})
    assert [each.line for each in problems[: min(given, 100)]] == list(range(1, min(given, 100) + 1))
    assert len(problems) == shown
    if last is not None:
        assert (problems[-1].code, problems[-1].message) == ("GB1015", last)
        assert problems[-1].line == min(given, 101)  # the first that is not shown
        assert problems[-1].hint


def test_each_file_has_a_hundred_of_its_own() -> None:
    paths = ("b.yaml", "a.yaml")
    problems = first(problem(line, path) for path in paths for line in range(1, 201))
    assert [each.path for each in problems] == ["a.yaml"] * 101 + ["b.yaml"] * 101


def test_warnings_hide_no_error() -> None:
    warnings = [problem(line, severity=Severity.WARNING) for line in range(1, 201)]
    problems = first([*warnings, problem(300)])
    assert problems[-1] == problem(300)
    assert [each.severity for each in problems] == [Severity.WARNING] * 101 + [Severity.ERROR]
