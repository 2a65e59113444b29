"""Values as JSON has them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from gitboot.jsonio import LEFT_OUT, facts, named
from tests.helpers.cases import for_each


class Colour(StrEnum):
    RED = "Red"


class Place(NamedTuple):
    file_path: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    base_url: str = field(default="http://boot", metadata=named("baseURL"))
    secret: str = field(default="hidden", metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    max_small_group: int
    inner: tuple[Inner, ...] = (Inner(),)


@for_each(
    ("value", "shown"),
    [
        pytest.param(None, None, id="nothing"),
        pytest.param(True, True, id="a truth"),
        pytest.param("text", "text", id="text"),
        pytest.param(Colour.RED, "Red", id="an enum by its value"),
        pytest.param(datetime(2026, 11, 20, 12, tzinfo=UTC), "2026-11-20T12:00:00Z", id="an instant"),
        pytest.param(
            datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=1))), "2026-11-20T11:00:00Z", id="in UTC"
        ),
        pytest.param((1, (2,)), [1, [2]], id="tuples"),
        pytest.param({Colour.RED: Place("a.yaml", 3)}, {"Red": {"filePath": "a.yaml", "line": 3}}, id="a named tuple"),
        pytest.param(
            Outer(max_small_group=3),
            {"maxSmallGroup": 3, "inner": [{"baseURL": "http://boot"}]},
            id="dataclasses in camelCase, by other names, without what is left out",
        ),
    ],
)
def test_a_value_is_shown_as_json_has_it(value: Any, shown: Any) -> None:
    assert facts(value) == shown
    assert type(facts(value)) is type(shown)
    assert json.loads(json.dumps(facts(value))) == shown


@pytest.mark.parametrize("value", [object(), Outer, b"bytes", {1, 2}], ids=["an object", "a class", "bytes", "a set"])
def test_what_json_does_not_have_is_refused_and_not_guessed(value: object) -> None:
    with pytest.raises(TypeError, match="JSON has no"):
        facts({"in": [value]})
