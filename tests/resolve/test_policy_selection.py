"""Selection of servers, and the deadlines of pins and holds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from itertools import product
from typing import Any, Final, get_args, get_type_hints

import pytest

from gitboot.cli.evaluated_fleet import describe_servers
from gitboot.evaluator.protocol import build_commit
from gitboot.fleet.documents import KINDS
from gitboot.model.fields import Select, Selector, read, selects_server
from gitboot.model.fleet import Site
from gitboot.problems import Code, Severity
from gitboot.resolve import fleet_decisions
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.policy_selection import (
    SelectorIndex,
    find_overdue_opt_outs,
    find_unmatched_selectors,
    list_opt_outs,
)
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, document, fleet, image, maintenance, policy, profile, repository, server

_LABELS: Final = [
    ", ".join(filter(None, each))
    for each in product(("", "role: a", "role: b", "role: ''"), ("", "ring: x", "ring: y"), ("", "none: a"))
]
_SELECT: Any = Select


def test_the_policy_of_a_server_does_not_depend_on_servers_decided_before() -> None:
    found = repository(fleet(), *(server(f"web{number:02}", labels) for number, labels in enumerate(_LABELS)))
    servers, draw = list(found.servers.values()), random.Random(1)
    for _ in range(100):
        selecting = [(number, read(_SELECT, _selector(draw))) for number in range(draw.randint(0, 4))]
        selection = SelectorIndex(selecting)
        draw.shuffle(servers)
        for each in servers:
            name, labels = each.metadata.name, each.metadata.labels
            assert selection.find(each) == tuple(
                what for what, select in selecting if selects_server(select, name, labels)
            )


def test_the_sites_of_all_servers_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each with a selection of its own: a command took time by servers times sites.
    made = list[int]()

    class Counted(SelectorIndex[Site]):
        def __init__(self, selecting: Iterable[tuple[Site, Any]]) -> None:
            super().__init__(selecting)
            made.append(1)

    monkeypatch.setattr(fleet_decisions, "SelectorIndex", Counted)
    places = ", ".join(
        f"{{name: s{each}, baseURL: 'http://s{each}.test', select: {{matchLabels: {{site: s{each}}}}}}}"
        for each in range(3)
    )
    servers = [server(f"web{each:02}", f"site: s{each % 4}") for each in range(12)]
    settings = fleet(f"baseURL: 'http://boot.test', sites: [{places}]")
    found = repository(settings, image("flatcar-1"), profile("web", "flatcar-1"), policy("web", "All"), *servers)
    decisions = decide(found)
    made.clear()
    assert build_commit(found, decisions).sites == {
        f"web{each:02}": f"s{each % 4}" for each in range(12) if each % 4 < 3
    }
    assert {about.site for about in describe_servers(found, decisions).values()} == {"s0", "s1", "s2", None}
    assert len(made) == 2


def _selector(draw: random.Random) -> object:
    expressions = [
        {"key": draw.choice(("role", "ring", "none")), "operator": operator}
        | ({"values": draw.sample(("a", "b", "x", ""), 2)} if operator.endswith("In") else {})
        for operator in draw.sample(("In", "NotIn", "Exists", "DoesNotExist"), draw.randint(0, 2))
    ]
    match draw.randint(0, 3):
        case 0:
            return draw.choice(("All", "None"))
        case 1:
            return {"servers": draw.sample([f"web{number:02}" for number in range(len(_LABELS))], 2)}
        case 2 if expressions:
            return {"matchExpressions": expressions}
    return {"matchLabels": {"role": draw.choice("ab")}, "matchExpressions": expressions}


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
    [("20T11:59:59", []), ("20T12:00", ["the deadline for a hold of flatcar", "the deadline for the pin of web01"])],
)
def test_an_expired_deadline_is_a_warning(instant: str, late: list[str]) -> None:
    problems = list(find_overdue_opt_outs(FLEET, at(instant)))
    assert sorted(problem.message.partition(" to ")[0] for problem in problems) == late
    for problem in problems:
        assert (problem.code, problem.severity) == ("GB2016", Severity.WARNING)
    assert decide(FLEET).servers["web01"] == DECIDED  # at any hour


def test_a_deadline_is_reported_at_its_line() -> None:
    (problem, _) = sorted(find_overdue_opt_outs(FLEET, at("21T00:00")))
    assert problem.path == "001.yaml"
    text = server("web01", "role: web", f"pin: {{image: flatcar-0, reason: NET-412, {UNTIL}}}").splitlines()
    assert (problem.line, problem.column) == (4, text[3].index("2026-11-20T12") + 1)


def test_every_pin_and_hold_is_listed_with_its_reason() -> None:
    assert [(each.what, each.image, each.reason) for each in list_opt_outs(FLEET)] == [
        ("the pin of web01", "flatcar-0", "NET-412"),
        ("the pin of web02", "flatcar-0", "for ever"),
        ("a hold of flatcar", "flatcar-0", "ZFS"),
    ]


# Selectors that match no server

SELECTING = (
    fleet(
        "baseURL: 'http://boot.test', sites: [{name: a, select: {matchLabels: {site: a}}, baseURL: 'http://a.test'}], "
        "hardware: [{select: {matchLabels: {site: b}}, localDisk: Exit}]"
    ),
    server("web01", "role: web, site: ams"),
    *SEED[2:-1],
    policy("none", "{matchLabels: {site: c}}"),
    maintenance("none", "25T22:00", select="{matchLabels: {site: d}}", boots="web"),
    document(
        "ImageStream",
        "none",
        "current: flatcar-1, rollout: {image: flatcar-1, percent: 1, selector: {matchLabels: {site: e}}}, "
        "holds: [{select: {matchLabels: {site: f}}, image: flatcar-1, reason: none}]",
    ),
)


def test_finding_r8_each_field_with_a_selector_that_matches_no_server_has_a_warning() -> None:
    problems = list(find_unmatched_selectors(repository(*SELECTING)))
    assert {each.code for each in problems} == {Code.SELECTS_NO_SERVER}
    assert {each.severity for each in problems} == {Severity.WARNING}
    messages = sorted(each.message.rpartition(" ")[2] for each in problems)
    assert messages == ["a", "b", "c", "d", "e", "f"]
    assert len(messages) == sum(_count_selectors(kind) for kind in KINDS.values()), "each field of each kind"


def _count_selectors(structure: Any) -> int:
    """Count the fields of a structure, and of the structures in it, that hold a selector."""
    if structure == Select:
        return 1
    if dataclasses.is_dataclass(structure) and structure is not Selector:
        return sum(map(_count_selectors, get_type_hints(structure).values()))
    return sum(map(_count_selectors, get_args(structure)))


@for_each(
    ("select", "message", "hint"),
    [
        ("{matchLabels: {role: wbe}}", "no server has the label role: wbe", "did you mean web?"),
        ("{matchLabels: {rol: web}}", "no server has the label rol", "did you mean role?"),
        ("{matchExpressions: [{key: sit, operator: Exists}]}", "no server has the label sit", "did you mean site?"),
        (
            "{matchExpressions: [{key: role, operator: In, values: [db, wbe]}]}",
            "no server has the label role: db or role: wbe",
            "did you mean web?",
        ),
        (
            "{matchLabels: {site: berlin}}",
            "no server has the label site: berlin",
            "correct the label in the selector, or add the label to the servers; servers have ams",
        ),
        (
            "{matchLabels: {role: web}, matchExpressions: [{key: site, operator: DoesNotExist}]}",
            "no server meets all conditions",
            "correct the label in the selector, or add the label to the servers",
        ),
        ("{servers: [web01]}", None, None),
        ("None", None, None),
        ("{matchExpressions: [{key: rol, operator: DoesNotExist}]}", None, None),
    ],
)
def test_the_warning_names_the_nearest_label(select: str, message: str | None, hint: str | None) -> None:
    of_fleet = repository(fleet(), server("web01", "role: web, site: ams"), *SEED[2:], policy("p", select))
    found = [(each.message.partition(": ")[2], each.hint) for each in find_unmatched_selectors(of_fleet)]
    assert found == ([(message, hint)] if message is not None else [])


def test_a_fleet_without_servers_has_no_warnings_about_selectors() -> None:
    assert list(find_unmatched_selectors(repository(SELECTING[0], *SELECTING[2:]))) == []
