"""Problems as SARIF, JUnit and GitHub's commands: the same facts, the worst first, with any text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator  # type: ignore[import-untyped]
from msgspec import structs

from gitboot.cli.commands.validate import format_github, format_junit, format_sarif
from gitboot.problems import Code, Problem, Severity
from tests.helpers.cases import for_each

CODES = {code.value: code for code in Code}
SCHEMA = Path(__file__).parents[2] / "data" / "sarif" / "sarif-2.1.0-rtm.5.json"

TIE = Problem(
    path="policies/web.yaml",
    line=5,
    column=11,
    code=Code.POLICY_TIE,
    message="BootPolicy/web and BootPolicy/edge select the server at the same priority (web01)",
    hint="raise the priority of one",
)
OVERDUE = structs.replace(
    TIE, path="a.yaml", code=Code.OVERDUE, message="100 % late: see a,b", hint="", severity=Severity.WARNING
)

problems_of = st.lists(
    st.builds(
        Problem,
        path=st.text(min_size=1),
        line=st.integers(1, 9),
        column=st.integers(1, 9),
        code=st.sampled_from(Code),
        message=st.text(),
        hint=st.text(),
        severity=st.sampled_from(Severity),
    ),
    max_size=40,
)


def sarif_results(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(format_sarif(problems))["runs"][0]["results"]
    return found


def junit_cases(problems: Sequence[Problem]) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(format_junit(problems)).iter("testcase"))


# SARIF


def schema_faults(log: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft4Validator(json.loads(SCHEMA.read_text())).iter_errors(log)]


def test_sarif_is_valid_by_its_published_schema() -> None:
    every = [structs.replace(TIE, code=code, line=number) for number, code in enumerate(Code, 1)]
    whole = json.loads(format_sarif(every))
    assert schema_faults(whole) == schema_faults(json.loads(format_sarif([]))) == []
    del whole["runs"][0]["results"][0]["message"]
    assert schema_faults(whole) == ["'message' is a required property"]


def test_a_result_has_its_rule_with_the_text_of_explain() -> None:
    run = json.loads(format_sarif([OVERDUE, TIE]))["runs"][0]
    for result in run["results"]:
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        code = CODES[result["ruleId"]]
        assert (rule["id"], rule["shortDescription"]["text"]) == (code.value, code.headline)
        assert code.why in rule["help"]["text"] and code.fix in rule["help"]["markdown"]


@for_each(
    ("path", "uri"),
    [
        ("rack a/c:100%.yaml", "rack%20a/c%3A100%25.yaml"),
        (os.fsdecode("flöte/a.yaml".encode("latin-1")), "fl%F6te/a.yaml"),
    ],
)
def test_a_path_is_a_relative_uri(path: str, uri: str) -> None:
    (result,) = sarif_results([structs.replace(TIE, path=path)])
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": uri, "uriBaseId": "%SRCROOT%"}


@for_each(
    ("case", "other", "same"),
    [
        ("its line moves", structs.replace(TIE, line=90, column=1), True),
        ("another column", structs.replace(TIE, column=2), True),
        ("another file", structs.replace(TIE, path="b.yaml"), False),
        ("another code", structs.replace(TIE, code=Code.OVERDUE), False),
        ("another server", structs.replace(TIE, message=TIE.message.replace("web01", "web02")), False),
    ],
)
def test_a_fingerprint_identifies_a_problem_on_any_line(case: str, other: Problem, same: bool) -> None:
    prints = [sarif_results([problem])[0]["partialFingerprints"] for problem in (TIE, other)]
    assert (prints[0] == prints[1]) is same, case


def test_a_fingerprint_ignores_the_line_of_another_file_in_a_message() -> None:
    there = [structs.replace(TIE, message=f"Server/a stands at x/a.yaml:{line} already") for line in (3, 40)]
    mac = [structs.replace(TIE, message=f"MAC address 52:54:00:00:00:{last}") for last in ("10", "11")]
    told = [sarif_results([problem])[0]["partialFingerprints"]["primaryLocationLineHash"] for problem in (*there, *mac)]
    assert told[0] == told[1]
    assert told[2] != told[3]


def test_two_problems_with_the_same_message_have_different_fingerprints() -> None:
    told = sarif_results([TIE, structs.replace(TIE, line=9)])
    assert [each["partialFingerprints"]["primaryLocationLineHash"][-2:] for each in told] == [":1", ":2"]


# JUnit


def test_an_error_is_a_failure_and_a_warning_is_skipped() -> None:
    root = ElementTree.fromstring(format_junit([OVERDUE, TIE]))
    assert dict(root.attrib) == {"tests": "2", "failures": "1", "errors": "0", "skipped": "1"}
    failed, skipped = root.iter("testcase")
    assert failed.attrib == {"classname": "GB2011", "name": f"{TIE.path}: {TIE.message}", "file": TIE.path}
    assert failed.findtext("failure") == str(TIE)
    warning = skipped.find("skipped")
    assert warning is not None and warning.attrib["message"] == f"warning: {OVERDUE}"


def test_without_problems_one_test_has_passed() -> None:
    (passed,) = junit_cases([])
    assert (passed.attrib["name"], list(passed)) == ("no problems", [])


def test_gitlab_shows_every_test_because_no_two_have_one_name() -> None:
    twice = [TIE, structs.replace(TIE, line=9), structs.replace(TIE, code=Code.OVERDUE)]
    keys = {(test.attrib["classname"], test.attrib["name"]) for test in junit_cases(twice)}
    assert len(keys) == 3


# GitHub


def test_a_github_command_is_escaped_as_the_runner_requires() -> None:
    expected = f"::warning file=a.yaml,line=5,col=11,title={OVERDUE.code}::100 %25 late: see a,b"
    assert format_github([OVERDUE]) == expected
    assert format_github([structs.replace(OVERDUE, path="a,b:c%.yaml")]).startswith(
        "::warning file=a%2Cb%3Ac%25.yaml,line=5"
    )
    assert format_github([]) == ""


@pytest.mark.parametrize(
    ("errors", "warnings", "notice"),
    [
        (10, 10, None),
        (11, 10, "1 more error"),
        (10, 12, "2 more warnings"),
        (14, 11, "4 more errors and 1 more warning"),
    ],
)
def test_no_more_annotations_are_printed_than_github_shows_for_a_step(
    errors: int, warnings: int, notice: str | None
) -> None:
    given = [structs.replace(OVERDUE, line=line) for line in range(1, warnings + 1)]
    given += [structs.replace(TIE, line=line) for line in range(1, errors + 1)]
    lines = format_github(given).splitlines()
    assert [line.split(" ")[0] for line in lines[:20]] == ["::error"] * 10 + ["::warning"] * 10
    assert "line=10," in lines[9] and "line=10," in lines[19]
    assert lines[20:] == ([f"::notice title=gitboot::{notice} not shown here: see this step's log"] if notice else [])


# All three


def test_each_format_has_the_same_facts_in_the_same_order() -> None:
    given = [OVERDUE, structs.replace(TIE, path="z.yaml"), TIE, structs.replace(OVERDUE, line=2)]
    by_sarif = [
        (
            unquote(each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]),
            each["ruleId"],
            each["level"] == "error",
        )
        for each in sarif_results(given)
    ]
    by_junit = [
        (test.attrib["file"], test.attrib["classname"], test.find("failure") is not None) for test in junit_cases(given)
    ]
    by_github = [
        (line.split("file=")[1].split(",")[0], line.split("title=")[1].split("::")[0], line.startswith("::error"))
        for line in format_github(given).splitlines()
    ]
    assert by_sarif == by_junit == by_github
    assert [error for _, _, error in by_sarif] == [True, True, False, False]


@given(problems_of)
def test_no_text_of_a_problem_breaks_a_format(problems: list[Problem]) -> None:
    count = len(problems)
    assert len(sarif_results(problems)) == count
    assert len(junit_cases(problems)) == max(count, 1)
    assert len({each["partialFingerprints"]["primaryLocationLineHash"] for each in sarif_results(problems)}) == count
    lines = format_github(problems).splitlines()
    assert all(line.startswith(("::error file=", "::warning file=", "::notice title=")) for line in lines)
    assert len(lines) <= 21


@pytest.mark.parametrize("write", [format_sarif, format_junit, format_github])
def test_the_order_of_the_problems_does_not_matter(write: Callable[[Sequence[Problem]], str]) -> None:
    given = [OVERDUE, TIE, structs.replace(TIE, line=9)]
    assert write(given) == write(given[::-1])
