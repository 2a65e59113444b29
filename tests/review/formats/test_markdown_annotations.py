"""A review as problems at their places: what holds it, what is dangerous, what is not heeded, what is wrong."""

from __future__ import annotations

from gitboot.fleet.revision import Message
from gitboot.problems import Code, Severity
from gitboot.review.formats.markdown import as_problems
from gitboot.review.guards import trailer
from tests.helpers.evaluations import FLEET, SERVERS, reviewed
from tests.helpers.fleets import document, fleet, policy, server

BUMP = {"stream.yaml": document("ImageStream", "stable", "current: flatcar-2")}
RAISED = {"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2")}


def test_a_limit_is_told_where_its_cause_is_written_with_the_line_to_copy() -> None:
    review = reviewed({**BUMP, **RAISED})
    assert review.verdict is not None
    found = {problem.message.partition(":")[0]: problem for problem in as_problems(review) if problem.code == Code.HELD}
    reinstalls, updates = found["maxReinstalls"], found["maxUpdatePercent"]
    assert (reinstalls.path, reinstalls.line, reinstalls.severity) == ("servers/fra1-db01.yaml", 4, Severity.ERROR)
    assert (updates.path, updates.line, updates.column) == ("servers/fra1-db01.yaml", 4, 143)
    assert reinstalls.hint.endswith(trailer(review.verdict.digest, review.verdict.trips[0].guard))


def test_a_limit_that_is_acknowledged_is_a_warning() -> None:
    lines = "\n".join(line for _, line in reviewed(BUMP).acknowledging())
    review = reviewed(BUMP, messages=(Message("c", lines, "Ada <ada@example.net>"),))
    found = [problem for problem in as_problems(review) if problem.code == Code.HELD]
    assert found
    assert {(problem.severity, problem.hint) for problem in found} == {(Severity.WARNING, "")}
    assert all(", acknowledged by Ada <ada@example.net>, in c" in problem.message for problem in found)


def test_a_danger_is_a_warning_that_names_its_group() -> None:
    (danger,) = (problem for problem in as_problems(reviewed(RAISED)) if problem.code == Code.DANGEROUS)
    assert danger.severity is Severity.WARNING
    assert danger.message == "Server/fra1-db01 changes 1 server (fra1-db01): reinstall"


def test_what_unknown_servers_boot_is_told_at_the_fleet() -> None:
    new = {"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}")}
    (held,) = as_problems(reviewed(new))
    assert (held.code, held.path, held.line) == (Code.HELD, "fleet.yaml", 4)


def test_what_is_gone_is_told_at_the_fleet_too() -> None:
    found = as_problems(reviewed(dict.fromkeys(SERVERS)))
    assert {problem.path for problem in found} == {"fleet.yaml"}


def test_an_acknowledgement_that_counts_for_nothing_is_a_warning() -> None:
    line = f"Gitboot-Ack: {'0' * 64} maxReinstalls"
    (found,) = (
        problem
        for problem in as_problems(reviewed(RAISED, messages=(Message("c" * 40, line),)))
        if problem.code == Code.UNHEEDED
    )
    assert "it acknowledges other changes than these" in found.message
    assert f"{line!r} in {'c' * 12}" in found.message


def test_warnings_of_the_commit_come_last_and_problems_of_an_invalid_one_alone() -> None:
    never = {"policies/none.yaml": policy("other", "None")}
    tie = {"policies/none.yaml": policy("tie", "All")}
    assert as_problems(reviewed(never)) == ()
    invalid = reviewed({**tie, **RAISED}, FLEET)
    assert as_problems(invalid) == invalid.head.problems
    assert invalid.head.problems[0].code == Code.POLICY_TIE
