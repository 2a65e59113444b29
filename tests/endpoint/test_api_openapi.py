"""The API asked for what its own OpenAPI document allows, and for what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.endpoint.test_api import STATUS
from tests.helpers.endpoints import ALWAYS, FULL_STATUS, REPAIR, planned, site

if TYPE_CHECKING:  # each process that runs tests imports them all, and this takes half a second
    import schemathesis
    from schemathesis.schemas import BaseSchema

AT = "2026-11-20T23:00:00Z"
PATHS = (
    *("/api/v1/servers", "/api/v1/servers/{name}", "/api/v1/servers/{name}/plan"),
    *("/api/v1/seen", "/api/v1/status"),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with site(planned(*ALWAYS, REPAIR)) as made:
        made.say({**STATUS.facts(), "at": AT, "clock": AT, "changes": 7, "stages": FULL_STATUS.facts()["stages"]})
        with made.serve() as url:
            yield url


@pytest.fixture(scope="module")
def schema(url: str) -> BaseSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")


def test_the_document_has_these_operations(schema: BaseSchema) -> None:
    from schemathesis.core.result import Ok

    assert {found.ok().path for found in schema.get_all_operations() if isinstance(found, Ok)} == set(PATHS)


# Nothing else can be asked for wrongly: a name is any text.
ASKED = [*((path, "positive") for path in PATHS), (PATHS[0], "negative")]


@pytest.mark.parametrize(("path", "mode"), ASKED)
def test_every_answer_is_one_that_the_document_says(url: str, schema: BaseSchema, path: str, mode: str) -> None:
    from schemathesis import GenerationMode

    operation = schema[path]["GET"]
    seen: set[int] = set()

    @settings(derandomize=True, database=None, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def look(case: schemathesis.Case[Any]) -> None:
        found = case.call_and_validate(base_url=url)
        seen.add(found.status_code)

    look()
    assert seen and max(seen) < 500


def test_what_there_is_is_found(url: str, schema: BaseSchema) -> None:
    """Else it would be 404s alone that are looked at."""
    for path in PATHS:
        case = schema[path]["GET"].Case(path_parameters={"name": "web01"} if "{name}" in path else {})
        assert case.call_and_validate(base_url=url).status_code == 200
