"""What selects a server is the same whether it was worked out for another one that looks alike, or anew."""

import random
from itertools import product
from typing import Any, Final

from pydantic import TypeAdapter

from gitboot.model.selectors import Select, selects
from gitboot.resolve.selection import Selecting
from tests.fleets import fleet, repository, server

_LABELS: Final = [
    ", ".join(filter(None, each))
    for each in product(("", "role: a", "role: b", "role: ''"), ("", "ring: x", "ring: y"), ("", "none: a"))
]
_SELECT: Final[TypeAdapter[Any]] = TypeAdapter(Select)


def test_what_selects_a_server_does_not_depend_on_those_before_it() -> None:
    found = repository(fleet(), *(server(f"web{number:02}", labels) for number, labels in enumerate(_LABELS)))
    servers, draw = list(found.servers.values()), random.Random(1)
    for _ in range(100):
        selecting = [(number, _SELECT.validate_python(_selector(draw))) for number in range(draw.randint(0, 4))]
        selection = Selecting(selecting)
        draw.shuffle(servers)
        for each in servers:
            name, labels = each.metadata.name, each.metadata.labels
            assert selection.of(each) == tuple(what for what, select in selecting if selects(select, name, labels))


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
