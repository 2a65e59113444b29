from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gitboot import __version__
from gitboot.endpoint.api import FILTERS, MOST, Api
from gitboot.endpoint.served_files import PublishedTree
from gitboot.problems import Problem, Severity
from gitboot.render.endpoint_files import render, state_path
from gitboot.resolve.provisioning_record import InstallStep
from gitboot.resolve.server_plan import InstallState, Phase
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from tests.helpers import endpoints, http_peers
from tests.helpers.endpoints import AFTER, ALWAYS, BEFORE, ENTRY, REPAIR, START, UUID, planned, site
from tests.helpers.fleets import server

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
    with site(planned(*ALWAYS, REPAIR, PARKED, now=AFTER)) as made:
        made.now = AFTER
        made.say({**STATUS.facts(), "at": "2026-11-20T23:00:00Z"})
        with made.serve() as url, http_peers.Client(base_url=f"{url}/api/v1") as client:
            yield client


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/servers", "Servers"),
        ("/servers/web01", "OneServer"),
        ("/servers/parked01", "OneServer"),
        ("/servers/web01/plan", "Plan"),
        ("/servers/parked01/plan", "Plan"),
        ("/status", "InstanceStatus"),
    ],
)
def test_every_answer_is_as_the_document_describes_it(client: httpx.Client, path: str, schema: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert endpoints.openapi_problems(schema, response.json()) == []
    assert endpoints.openapi_problems(schema, {**response.json(), "more": 1}) != []


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
    assert [condition["type"] for condition in status["conditions"]] == ["SourceReady", "TreeRead"]


def test_the_openapi_document_describes_every_page(client: httpx.Client, tmp_path: Path) -> None:
    described = client.get("/openapi.json").json()
    assert described == endpoints.openapi_document()
    assert (described["openapi"], described["info"]["version"]) == ("3.1.0", __version__)
    tree = PublishedTree(tmp_path, lambda: BEFORE)
    routed = {route.path for route in Api(tree, tmp_path, lambda: BEFORE).routes}
    assert set(described["paths"]) == routed - {"/api/v1/openapi.json"}
    schemas = described["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert named == set(schemas)
    for each in schemas.values():
        assert set(each.get("required", ())) <= set(each.get("properties", ()))


def test_the_openapi_document_has_the_words_and_limits_of_the_code() -> None:
    described = endpoints.openapi_document()
    for words in (InstallState, InstallStep, Phase, Severity):
        assert described["components"]["schemas"][words.__name__]["enum"] == list(words)
    parameters = {each["name"]: each["schema"] for each in described["paths"]["/api/v1/servers"]["get"]["parameters"]}
    assert list(parameters) == ["limit", "continue", *FILTERS, "label"]
    assert parameters["limit"]["maximum"] == MOST


@pytest.fixture(scope="module")
def many() -> Iterator[httpx.Client]:
    """A client of an endpoint over 1,203 servers, every third of them a worker, every second at fra1."""
    found = planned(*ALWAYS, PARKED, now=AFTER).servers["web01"].published
    with site() as made:
        for number in range(1201):
            labels = {"role": "worker" if number % 3 == 0 else "db", "rack": f"r{number % 7}"}
            summary = {**found.summary, "server": f"s{number:04}", "labels": labels, "role": labels["role"]}
            summary["site"] = "fra1" if number % 2 else None
            state = replace(found, server=f"s{number:04}", summary=summary)
            (made.root / state_path(state.server)).write_bytes(render(state))
        with made.serve() as url, http_peers.Client(base_url=f"{url}/api/v1") as client:
            yield client


def names(client: httpx.Client, **query: Any) -> list[str]:
    """All servers, page by page."""
    found: list[str] = []
    while True:
        page = client.get("/servers", params=query).json()
        found += [item["name"] for item in page["items"]]
        if (query := {**query, "continue": page["continue"]})["continue"] is None:
            return found


def test_the_list_comes_in_pages(many: httpx.Client) -> None:
    first = many.get("/servers").json()
    assert (len(first["items"]), first["continue"]) == (500, first["items"][-1]["name"])
    assert names(many) == [*(f"s{number:04}" for number in range(1201)), "web01"]
    assert names(many, limit=7)[:9] == [f"s{number:04}" for number in range(9)]
    assert many.get("/servers", params={"continue": "web01"}).json()["items"] == []


def test_the_list_is_filtered(many: httpx.Client) -> None:
    workers = [f"s{number:04}" for number in range(0, 1201, 3)]
    assert names(many, role="worker") == workers
    assert names(many, role="worker", limit=100) == workers
    assert names(many, site="fra1", role="worker") == workers[1::2]
    assert names(many, label=["rack=r3", "role=worker"]) == [name for name in workers if int(name[1:]) % 7 == 3]
    assert names(many, phase="Disk") == names(many, image="none") == names(many, label="rack=") == []
    assert len(names(many, image="flatcar-1", phase="Network")) == 1202


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "label=x", "label==x", "sort=name"])
def test_what_is_no_parameter_of_the_list_is_refused(many: httpx.Client, query: str) -> None:
    found = many.get(f"/servers?{query}")
    assert (found.status_code, query.partition("=")[0] in found.text) == (400, True)


def test_a_server_that_changes_is_listed_so_at_once() -> None:
    with site() as made, made.serve() as url:
        for fleet in (planned(*ALWAYS), planned(*ALWAYS, PARKED), planned(*ALWAYS, REPAIR, now=AFTER)):
            made.publish(fleet)
            items = http_peers.get(f"{url}/api/v1/servers").json()["items"]
            assert {item["name"]: item["phase"] for item in items} == {
                name: state.published.summary["phase"] for name, state in fleet.servers.items()
            }
