"""The dashboard in docs/monitoring: each of its panels has something to show, by a Prometheus that really scrapes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gitboot.endpoint.metrics import FAMILIES
from tests.helpers import http_peers
from tests.helpers.endpoints import COMMITTED, ENTRY, get, monitored_endpoint
from tests.helpers.git_repositories import free_port, listening, program
from tests.helpers.running_instance import eventually

FILE: Final = Path(__file__).parents[2] / "docs" / "monitoring" / "dashboard.json"
BOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final[list[dict[str, Any]]] = BOARD["panels"]
SHOWN: Final = [each for each in PANELS if each["type"] != "row"]
EXPRESSIONS: Final = [(each["title"], target["expr"]) for each in SHOWN for target in each["targets"]]


def filled_in(expression: str) -> str:
    """As Grafana asks it."""
    for name, value in (("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one that scrapes an endpoint which knows a value of each metric."""
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    address = f"127.0.0.1:{port}"
    with monitored_endpoint(folder) as url:
        get(url + ENTRY)
        sites = (("fra1", url.removeprefix("http://")), ("ams2", f"127.0.0.1:{free_port()}"))  # ams2 does not answer
        targets = [{"targets": [target], "labels": {"site": site}} for site, target in sites]
        scrapes = [{"job_name": "gitboot", "scrape_interval": "1s", "static_configs": targets}]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": scrapes}))
        command = [
            *(program("prometheus", "prometheus"), f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"),
        ]
        with listening(command, port, os.environ):
            eventually(lambda: _is_ready(f"http://{address}"))
            yield f"http://{address}"


def _is_ready(url: str) -> bool:
    try:
        return http_peers.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def found(prometheus: str, expression: str) -> list[Any]:
    answer = http_peers.get(f"{prometheus}/api/v1/query", params={"query": filled_in(expression)}).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def test_no_panel_is_empty(prometheus: str) -> None:
    for _, expression in EXPRESSIONS:
        eventually(partial(found, prometheus, expression))


def test_the_table_of_sites_has_each_site_with_its_commit_and_marks_one_that_does_not_answer(prometheus: str) -> None:
    answers, commits, _ = (expression for title, expression in EXPRESSIONS if title == "Sites")

    def by_site() -> bool:
        return {each["metric"]["site"]: float(each["value"][1]) for each in found(prometheus, answers)} == {
            "fra1": 1,
            "ams2": 0,
        }

    eventually(by_site)
    (fra1,) = eventually(partial(found, prometheus, commits))
    assert (fra1["metric"]["site"], fra1["metric"]["commit"]) == ("fra1", "acce97ed")
    assert float(fra1["value"][1]) == 1000 * COMMITTED.timestamp()


def test_each_metric_has_its_panel() -> None:
    asked = {name for _, each in EXPRESSIONS for name in re.findall(r"gitboot_\w+", each)}
    left_out = {"gitboot_planned_timestamp_seconds", "gitboot_operators_certificate_read"}
    for family in FAMILIES:
        names = {family.sample, family.name, f"{family.name}_sum"}
        assert bool(names & asked) is (family.name not in left_out), family.name


def test_panels_stand_beside_each_other() -> None:
    assert len({each["id"] for each in PANELS}) == len(PANELS)
    for each in PANELS:
        assert each["gridPos"]["x"] + each["gridPos"]["w"] <= 24
    for one, other in combinations([each["gridPos"] for each in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


def test_what_a_panel_asks_is_chosen_by_the_variables() -> None:
    names = {each["name"] for each in BOARD["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    for each in SHOWN:
        for target in each["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert '{job=~"$job",instance=~"$instance"' in target["expr"]
        assert len({target["refId"] for target in each["targets"]}) == len(each["targets"])
