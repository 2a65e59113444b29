"""Conditions and events: each reason has a remedy that can be typed, and alike events become one."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

import gitboot.publish.signed_list  # noqa: F401 - its errors are reasons of conditions
from gitboot.bmc.override_session import TaskOutcome
from gitboot.bmc.override_state import OperatorCondition
from gitboot.cli.main import cli
from gitboot.cli.options import Setting
from gitboot.controller.server_conditions import _UNFINISHED_BOOTS as UNPROVEN
from gitboot.errors import GitbootError
from gitboot.status.conditions import (
    ANY,
    BMC,
    CONDITIONS,
    STATUS_CURRENT,
    Event,
    fill_state,
    find_remedy,
    merge_events_by_server,
)
from tests.helpers.cases import for_each

ROOT = Path(__file__).parents[2]
REMEDIES = {(each.name, reason): line for each in CONDITIONS.values() for reason, line in each.remedies.items()}


# Existing states


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def _calls(path: str, name: str) -> Iterator[ast.Call]:
    for node in _nodes(ROOT / path):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == name:
            yield node


def _texts(node: ast.expr) -> set[str]:
    """The texts that an expression can be; ANY where it can be others."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body) | _texts(orelse)
    return {ANY}


def _list_doubt_reasons() -> set[str]:
    """Why a ledger may be in doubt: words that are written nowhere else."""
    constants = (
        node.value
        for path in (ROOT / "gitboot").rglob("*.py")
        if path.name != "conditions.py" and re.search("[a-z]Ledger[\"']", path.read_text())
        for node in _nodes(path)
        if isinstance(node, ast.Constant)
    )
    words = (each for each in constants if isinstance(each, str) and re.fullmatch(r"[A-Z][a-z]+Ledger", each))
    return set(words) - {"AnotherLedger"}


def _list_states() -> set[tuple[str, str]]:
    """Each condition that may not hold, with its reasons; ANY where they are the names of errors."""
    found = {(BMC, str(each)) for each in (*OperatorCondition, TaskOutcome.WAITING, TaskOutcome.STALLED)} | {
        (BMC, "Overdue")
    }
    rules = ("condition_rules", "server_conditions")
    for node in (node for name in rules for node in _nodes(ROOT / f"gitboot/controller/{name}.py")):
        if not (isinstance(node, ast.Yield | ast.Return) and isinstance(node.value, ast.Tuple)):
            continue
        type, status, reason = (*node.value.elts, None, None)[:3]
        holds = isinstance(status, ast.Constant) and status.value is True
        if holds or status is None or reason is None or not isinstance(type, ast.Constant):  # else it is a BMC's
            continue
        (name,) = _texts(type)
        reasons = (
            _list_doubt_reasons() if isinstance(reason, ast.Starred) and name == "RecordsVerified" else _texts(reason)
        )
        reasons = set(UNPROVEN) if name == "InstallsCompleted" else reasons  # it takes the first that applies
        found |= {(name, each) for each in reasons if each != "Running"}
    for call in _calls("gitboot/controller/reconcile.py", "Condition"):
        named = {each.arg: each.value for each in call.keywords if each.arg is not None}
        found |= {(type, reason) for type in _texts(named["type"]) for reason in _texts(named["reason"])}
    for call in _calls("gitboot/endpoint/served_files.py", "_set_condition"):
        found |= {("OutputTreeReadable", each) for each in _texts(call.args[1]) if each != "Read"}
    return found | {(STATUS_CURRENT, "Stale")}  # of the reader of the status


def _list_errors(kind: type[GitbootError] = GitbootError) -> set[str]:
    return {kind.__name__}.union(*map(_list_errors, kind.__subclasses__()))


def test_every_bad_state_in_the_code_has_a_remedy_and_no_other_state_has() -> None:
    lines, states = REMEDIES.keys(), _list_states()
    assert states - lines == set()
    others = lines - states  # of errors some have a line of their own
    assert {type for type, _ in others if (type, ANY) not in states} == set()
    assert {reason for _, reason in others} <= _list_errors()


@for_each(
    ("page", "pattern"),
    [
        pytest.param("reference/conditions.md", r"^## `([^`]+)`$", id="the reference"),
        pytest.param("how-to/something-is-wrong.md", r"\[([A-Z][\w/]+)\]\(../reference/conditions.md#", id="the guide"),
    ],
)
def test_a_page_for_operators_has_each_condition(page: str, pattern: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    # `HttpBoot` is always true, and `Active` is a standby's.
    assert set(re.findall(pattern, text, re.MULTILINE)) == {*CONDITIONS, "Active", "HttpBoot"}


@for_each("line", [pytest.param(line, id=" ".join(key)) for key, line in REMEDIES.items()])
def test_each_remedy_can_be_typed(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] != "gitboot":
        return
    command: click.Command = cli
    context = click.Context(cli)
    given = words[1:]
    while isinstance(command, click.Group) and not given[0].startswith("-"):
        found = command.get_command(context, given.pop(0))
        assert found is not None
        command = found
    given = given[: given.index("|")] if "|" in given else given
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    known -= {option for each in command.params if isinstance(each, Setting) for option in each.opts}
    assert {word for word in given if word.startswith("--")} <= known
    required = {max(each.opts, key=len) for each in command.params if each.required and isinstance(each, click.Option)}
    assert required <= set(given) or "…" in given


def test_words_in_capitals_in_a_remedy_are_filled_in() -> None:
    given = {"DIGEST": "d1", "OUTPUT": "/srv/boot", "COMMIT": "c0ffee"}
    line = find_remedy("CommitAccepted", "GuardTripped", given)
    assert line is not None
    command, _, comment = line.partition("  # ")
    assert command == "gitboot approve d1 --all-guards --state STATE --reason '…'"
    assert "gitboot diff --accepted /srv/boot ..c0ffee STATE/repository.git, then" in comment
    assert fill_state(command, "/var/lib/git boot") == (
        "gitboot approve d1 --all-guards --state '/var/lib/git boot' --reason '…'"
    )
    line = find_remedy("Bmc/web01", "ForeignOverride")
    assert line is not None
    assert line.startswith("gitboot bmc resolve web01 --replace --state STATE --reason '…'  # ")


def test_an_error_without_its_own_remedy_has_the_general_one() -> None:
    assert find_remedy("Published", "PublishError") == REMEDIES["Published", ANY]
    assert find_remedy("Published", "ForeignTree") == REMEDIES["Published", "ForeignTree"]
    assert find_remedy("Published", "Published") == REMEDIES["Published", ANY]
    assert find_remedy("Nothing", "Known") is None


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
LACKS = "gitboot needs the credentials bmc-ams2: pass their directory with --credentials"


def make_stalled_event(server: str, message: str = LACKS, *, at: datetime = NOON, **facts: str) -> Event:
    facts = {"server": server, **facts}
    return Event(at=at, type="OverrideStalled", message=f"{server}: {message}", facts=facts, warning=True)


def test_events_that_differ_only_by_the_server_are_merged() -> None:
    published = Event(at=NOON, type="Published", message="3 written")
    names = [f"w{number:02}" for number in range(11)]
    alike = [make_stalled_event(name, uuid=f"uuid of {name}") for name in reversed(names)]
    (first, one) = merge_events_by_server([*alike, published])
    assert first.message == f"11 servers (w00, w01, w02 and 8 more): {LACKS}"
    assert (first.facts, first.type, first.warning, one) == ({"servers": names}, "OverrideStalled", True, published)


def test_other_events_stay_separate_and_in_order() -> None:
    events = (
        make_stalled_event("web01"),
        make_stalled_event("web02", "401 by its BMC"),
        make_stalled_event("web03", plan="sha256:2"),
        make_stalled_event("web04", at=NOON + timedelta(seconds=1)),
        Event(at=NOON, type="OverrideStalled", message=f"web05: {LACKS}", facts={"server": "web05"}),
        Event(at=NOON, type="OverrideStalled", message="two of a kind", facts={"server": "web06"}),
        Event(at=NOON, type="OverrideStalled", message="two of a kind", facts={"server": "web07"}),
    )
    assert merge_events_by_server(events) == events
