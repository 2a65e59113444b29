from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from gitboot.problems.problem import Problem
from gitboot.serve import api
from gitboot.serve.api import openapi
from gitboot.status import Condition, Status
from tests.fleets import server
from tests.serving import AFTER, BEFORE, ENTRY, START, UUID, Site, answers

STATUS = Status(
    attempted="bad",
    problems=(Problem(path="a.yaml", line=3, column=1, code="GB1001", message="expected a name, found none"),),
    applied="c0ffee",
    planned_at=BEFORE,
    next_transition=START,
    phases={"Network": 1, "NoPlan": 1},
    conditions=(Condition(type="SourceReady", status=False, reason="SourceError", message="x", since=BEFORE),),
)
PARKED = server("parked01", "role: web", "lifecycle: Parked")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    site = Site(answers=answers(PARKED, now=AFTER), status=STATUS, now=AFTER)
    with site.serve() as url, httpx.Client(base_url=f"{url}/api/v1") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/servers", api.Servers),
        ("/servers/web01", api.Server),
        ("/servers/parked01", api.Server),
        ("/servers/web01/plan", api.Plan),
        ("/servers/parked01/plan", api.Plan),
        ("/status", api.InstanceStatus),
    ],
)
def test_every_answer_is_what_the_models_say(client: httpx.Client, path: str, model: type[BaseModel]) -> None:
    response = client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    model.model_validate_json(response.content)
    with pytest.raises(ValidationError):
        model.model_validate({**response.json(), "more": 1})


def test_servers_are_listed_in_short(client: httpx.Client) -> None:
    items = {item["name"]: item for item in client.get("/servers").json()["items"]}
    assert sorted(items) == ["parked01", "web01"]
    assert items["web01"]["uuid"] == UUID
    assert items["web01"]["phase"] == "Maintenance"
    assert items["web01"]["image"] == "memtest-7"
    assert items["web01"]["nextTransition"] == "2026-11-21T04:00:00Z"
    assert [items["parked01"][name] for name in ("phase", "image", "nextTransition")] == [None] * 3


def test_one_server_is_told_in_full(client: httpx.Client) -> None:
    told = client.get("/servers/web01").json()
    assert told["name"] == "web01"
    assert f"boot{ENTRY}" in told["files"]
    assert told["digest"] == client.get("/servers/web01/plan").json()["digest"]


def test_status_tells_attempted_from_applied(client: httpx.Client) -> None:
    status = client.get("/status").json()
    assert status["attempted"]["commit"] == "bad"
    assert [problem["code"] for problem in status["attempted"]["problems"]] == ["GB1001"]
    assert status["applied"] == {"commit": "c0ffee"}
    assert [condition["type"] for condition in status["conditions"]] == ["SourceReady"]


def test_the_openapi_document_describes_every_page(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert described == json.loads(json.dumps(openapi()))
    assert described["openapi"].startswith("3.1.")
    routed = {route.path for route in api.Api(lambda: None, Status, lambda: BEFORE).routes}
    assert set(described["paths"]) == routed - {"/api/v1/openapi.json"}
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)):
        assert described["components"]["schemas"][reference]["type"] in ("object", "string"), reference


def test_a_long_list_lets_others_have_their_turn() -> None:
    few = answers()
    many = replace(few, servers={f"s{number:05}": few.servers["web01"] for number in range(10_000)})

    async def turns_of_another_task() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        response = await api.Api(lambda: many, Status, lambda: BEFORE).list_servers(Request({"type": "http"}))
        counting.cancel()
        assert len(api.Servers.model_validate_json(bytes(response.body)).items) == 10_000
        return turns

    assert asyncio.run(turns_of_another_task()) >= 20
