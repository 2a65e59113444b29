"""JUnit's XML, as GitLab and Jenkins read it: each problem is a test, errors failed and warnings skipped.

GitLab docs, "Unit test reports": a test is known from one run to the next by its classname and name, and of two
with the same only the first is shown. So a name has no line in it, and is used once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gitboot.problems.codes import Problem, Severity, worst_first
from gitboot.text import printable


def junit(problems: Sequence[Problem]) -> str:
    """A report of one suite; without problems it has one test, which passed."""
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    counts = {
        "tests": str(len(problems) or 1),
        "failures": str(errors),
        "errors": "0",
        "skipped": str(len(problems) - errors),
    }
    root = Element("testsuites", counts)
    tests = SubElement(root, "testsuite", {"name": "gitboot", **counts})
    used: Counter[tuple[str, str]] = Counter()
    for problem in worst_first(problems):
        name = printable(f"{problem.path}: {problem.message}")
        used[problem.code, name] += 1
        count = used[problem.code, name]
        _add(tests, problem, name if count == 1 else f"{name} ({count})")
    if not problems:
        SubElement(tests, "testcase", {"classname": "gitboot", "name": "no problems"})
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add(tests: Element, problem: Problem, name: str) -> None:
    path = printable(problem.path)
    test = SubElement(tests, "testcase", {"classname": problem.code, "name": name, "file": path})
    text = printable(str(problem))
    if problem.severity is Severity.ERROR:
        SubElement(test, "failure", {"type": problem.code, "message": printable(problem.message)}).text = text
    else:
        SubElement(test, "skipped", {"message": f"warning: {text}"})
