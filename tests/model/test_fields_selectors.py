"""Selectors match labels as in Kubernetes."""

from __future__ import annotations

from typing import Any

from gitboot.model.fields import Select, read, selects_server
from gitboot.model.scalars import Name
from tests.helpers.cases import for_each

_SELECT: Any = Select
LABELS = {"role": "web", "site": "fra1", "gpu": ""}


def is_selected(select: Any) -> bool:
    return selects_server(read(_SELECT, select), Name("web01"), LABELS)


@for_each(
    ("select", "expected"),
    [
        ("All", True),
        ("None", False),
        ({"servers": ["web02", "web01"]}, True),
        ({"servers": ["web02", "web"]}, False),
        ({"matchLabels": {"role": "web"}}, True),
        ({"matchLabels": {"role": "web", "site": "fra1"}}, True),
        ({"matchLabels": {"role": "web", "site": "ams2"}}, False),
        ({"matchLabels": {"rack": ""}}, False),
        ({"matchLabels": {"gpu": ""}}, True),
    ],
)
def test_servers_are_selected_by_all_or_none_name_or_label(select: Any, expected: bool) -> None:
    assert is_selected(select) is expected


@for_each(
    ("key", "operator", "values", "expected"),
    [
        ("role", "In", ["web"], True),
        ("role", "In", ["db", "web"], True),
        ("role", "In", ["db"], False),
        ("rack", "In", ["r12"], False),
        ("role", "NotIn", ["db"], True),
        ("role", "NotIn", ["db", "web"], False),
        ("rack", "NotIn", ["r12"], True),  # without the label, as in Kubernetes
        ("gpu", "Exists", [], True),
        ("rack", "Exists", [], False),
        ("rack", "DoesNotExist", [], True),
        ("gpu", "DoesNotExist", [], False),
    ],
)
def test_an_expression_tests_one_label(key: str, operator: str, values: list[str], expected: bool) -> None:
    assert is_selected({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}) is expected


def test_all_conditions_must_be_met() -> None:
    holds = {"key": "gpu", "operator": "Exists"}
    fails = {"key": "role", "operator": "In", "values": ["db"]}
    assert is_selected({"matchLabels": {"role": "web"}, "matchExpressions": [holds]})
    assert not is_selected({"matchLabels": {"role": "db"}, "matchExpressions": [holds]})
    assert not is_selected({"matchExpressions": [holds, fails]})
