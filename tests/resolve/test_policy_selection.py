"""What selects a server is the same whether it was worked out for another one that looks alike, or anew."""

import random
from collections.abc import Iterable
from itertools import product
from typing import Any, Final

import pytest

from gitboot.cli.evaluated_fleet import about_all
from gitboot.evaluator.evaluation_result import commit_of
from gitboot.model.fields import read
from gitboot.model.fleet import Site
from gitboot.model.selectors import Select, selects
from gitboot.resolve import fleet_decisions
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.policy_selection import Selecting
from tests.helpers.fleets import fleet, image, policy, profile, repository, server

_LABELS: Final = [
    ", ".join(filter(None, each))
    for each in product(("", "role: a", "role: b", "role: ''"), ("", "ring: x", "ring: y"), ("", "none: a"))
]
_SELECT: Any = Select


def test_what_selects_a_server_does_not_depend_on_those_before_it() -> None:
    found = repository(fleet(), *(server(f"web{number:02}", labels) for number, labels in enumerate(_LABELS)))
    servers, draw = list(found.servers.values()), random.Random(1)
    for _ in range(100):
        selecting = [(number, read(_SELECT, _selector(draw))) for number in range(draw.randint(0, 4))]
        selection = Selecting(selecting)
        draw.shuffle(servers)
        for each in servers:
            name, labels = each.metadata.name, each.metadata.labels
            assert selection.of(each) == tuple(what for what, select in selecting if selects(select, name, labels))


def test_at_which_site_the_servers_of_a_fleet_are_is_worked_out_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each with a selection of its own: a command took time by servers times sites.
    made = list[int]()

    class Counted(Selecting[Site]):
        def __init__(self, selecting: Iterable[tuple[Site, Any]]) -> None:
            super().__init__(selecting)
            made.append(1)

    monkeypatch.setattr(fleet_decisions, "Selecting", Counted)
    places = ", ".join(
        f"{{name: s{each}, baseURL: 'http://s{each}.test', select: {{matchLabels: {{site: s{each}}}}}}}"
        for each in range(3)
    )
    servers = [server(f"web{each:02}", f"site: s{each % 4}") for each in range(12)]
    settings = fleet(f"baseURL: 'http://boot.test', sites: [{places}]")
    found = repository(settings, image("flatcar-1"), profile("web", "flatcar-1"), policy("web", "All"), *servers)
    decisions = decide(found)
    made.clear()
    assert commit_of(found, decisions).sites == {f"web{each:02}": f"s{each % 4}" for each in range(12) if each % 4 < 3}
    assert {about.site for about in about_all(found, decisions).values()} == {"s0", "s1", "s2", None}
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
