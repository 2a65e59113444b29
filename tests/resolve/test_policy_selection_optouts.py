"""Pins and holds have deadlines for people: said once they are past, and nothing changes by itself."""

from __future__ import annotations

import pytest

from gitboot.problems import Severity
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.policy_selection import opt_outs, overdue
from tests.helpers.fleets import SEED, at, document, image, repository, server

UNTIL = "until: 2026-11-20T12:00:00Z"
FLEET = repository(
    SEED[0],
    server("web01", "role: web", f"pin: {{image: flatcar-0, reason: NET-412, {UNTIL}}}"),
    server("web02", "role: web", "pin: {image: flatcar-0, reason: for ever}"),
    server("web03", "role: web"),
    *SEED[2:],
    image("flatcar-0"),
    document(
        "ImageStream",
        "flatcar",
        f"current: flatcar-1, holds: [{{select: All, image: flatcar-0, reason: ZFS, {UNTIL}}}]",
    ),
)


DECIDED = decide(FLEET).servers["web01"]


@pytest.mark.parametrize(
    ("instant", "late"),
    [("20T11:59:59", []), ("20T12:00", ["a hold of flatcar", "the pin of web01"])],
)
def test_a_deadline_that_is_past_is_a_warning(instant: str, late: list[str]) -> None:
    problems = list(overdue(FLEET, at(instant)))
    assert sorted(problem.message.partition(" to ")[0] for problem in problems) == late
    for problem in problems:
        assert (problem.code, problem.severity) == ("GB2016", Severity.WARNING)
    assert decide(FLEET).servers["web01"] == DECIDED  # whatever the hour


def test_a_deadline_is_shown_where_it_is_written() -> None:
    (problem, _) = sorted(overdue(FLEET, at("21T00:00")))
    assert problem.path == "001.yaml"
    text = server("web01", "role: web", f"pin: {{image: flatcar-0, reason: NET-412, {UNTIL}}}").splitlines()
    assert (problem.line, problem.column) == (4, text[3].index("2026-11-20T12") + 1)


def test_every_pin_and_hold_is_listed_with_its_reason() -> None:
    assert [(each.what, each.image, each.reason) for each in opt_outs(FLEET)] == [
        ("the pin of web01", "flatcar-0", "NET-412"),
        ("the pin of web02", "flatcar-0", "for ever"),
        ("a hold of flatcar", "flatcar-0", "ZFS"),
    ]
