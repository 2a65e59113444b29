"""API and page: requests that the OpenAPI document allows, and requests that it does not allow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import structs

from gitboot import __version__
from gitboot.endpoint.api import FILTERS, MAX_PAGE_ITEMS, Api
from gitboot.endpoint.served_files import PublishedTree
from gitboot.problems import Problem, Severity
from gitboot.render.endpoint_files import render_state, state_path
from gitboot.resolve.provisioning_record import InstallStep
from gitboot.resolve.server_plan import Cause, InstallState, Phase
from gitboot.status.conditions import ANY, CONDITIONS, Condition
from gitboot.status.instance_status import Status
from tests.helpers import endpoints, http_peers
from tests.helpers.endpoints import AFTER, ALWAYS, BEFORE, ENTRY, FULL_STATUS, REPAIR, START, UUID, plan_fleet, site
from tests.helpers.fleets import make_uuid, server

if TYPE_CHECKING:  # each process that runs tests imports them all, and this takes half a second
    import schemathesis
    from schemathesis.schemas import BaseSchema
import shutil
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

from gitboot.endpoint.api import PAGE_PATH
from gitboot.fetchlog.unknown_machines import (
    UnknownMachine,
    UnknownMachines,
    build_from_inventory,
    render_unknown_machines,
)
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import UNKNOWN
from gitboot.publish.publisher import OutputDirectory
from gitboot.render.page import MAX_HISTORY_PATHS, PAGE_CONTENT_TYPES, read_page_file
from gitboot.render.paths import PAGE as FOLDER
from gitboot.render.paths import PAGE_DATA
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, Record, StepEvidence, StopScope
from tests.fetchlog.test_unknown_machines import SENT
from tests.helpers.endpoints import ONCE, Fleet, Site, get
from tests.helpers.fleets import at, fleet, maintenance
from tests.helpers.operators_page import (
    HOSTILE,
    LOST,
    Browser,
    area,
    browser,
    browsers,
    changes,
    make_held_fleet,
    make_held_status,
    make_shown_fleet,
    write_history,
)
from tests.helpers.operators_page import STATUS as SHOWN
from tests.helpers.published_trees import verify_tree

STATUS = Status(
    attempted="bad",
    problems=(Problem(path="a.yaml", line=3, column=1, code="GB1001", message="expected a name, found none"),),
    applied="c0ffee",
    planned_at=BEFORE,
    next_transition=START,
    phases={"Network": 1, "NoPlan": 1},
    conditions=(
        Condition(type="SourceReady", status=False, reason="SourceError", message="x", last_transition_time=BEFORE),
    ),
)
PARKED = server("parked01", "role: web", "lifecycle: Parked")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with site(plan_fleet(*ALWAYS, REPAIR, PARKED, now=AFTER)) as made:
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
def test_every_response_matches_its_schema(client: httpx.Client, path: str, schema: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert endpoints.find_openapi_problems(schema, response.json()) == []
    assert endpoints.find_openapi_problems(schema, {**response.json(), "more": 1}) != []


def test_the_list_of_servers_has_a_summary_of_each(client: httpx.Client) -> None:
    items = {item["name"]: item for item in client.get("/servers").json()["items"]}
    names = ("uuid", "phase", "image", "nextTransition")
    assert {server: [its[name] for name in names] for server, its in items.items()} == {
        "web01": [UUID, "Maintenance", "memtest-7", "2026-11-21T04:00:00Z"],
        "parked01": [make_uuid("parked01"), None, None, None],
    }


def test_one_server_has_all_details(client: httpx.Client) -> None:
    told = client.get("/servers/web01").json()
    assert told["name"] == "web01"
    assert f"boot{ENTRY}" in told["files"]
    assert told["digest"] == client.get("/servers/web01/plan").json()["digest"]


def test_the_status_separates_the_attempted_from_the_applied_commit(client: httpx.Client) -> None:
    status = client.get("/status").json()
    assert status["attempted"]["commit"] == "bad"
    assert [problem["code"] for problem in status["attempted"]["problems"]] == ["GB1001"]
    assert status["applied"] == {"commit": "c0ffee"}
    assert [condition["type"] for condition in status["conditions"]] == ["SourceReady", "OutputTreeReadable"]


def test_the_openapi_document_describes_every_page(client: httpx.Client, tmp_path: Path) -> None:
    described = client.get("/openapi.json").json()
    assert described == endpoints.load_openapi()
    assert (described["openapi"], described["info"]["version"]) == ("3.1.0", __version__)
    tree = PublishedTree(tmp_path, lambda: BEFORE)
    routed = {route.path for route in Api(tree, lambda: BEFORE).routes}
    assert set(described["paths"]) == routed - {"/api/v1/openapi.json"}
    schemas = described["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert named == set(schemas)
    for each in schemas.values():
        assert set(each.get("required", ())) <= set(each.get("properties", ()))


def test_the_openapi_document_has_the_values_and_limits_of_the_code() -> None:
    described = endpoints.load_openapi()
    for words in (InstallState, InstallStep, Phase, Severity):
        assert described["components"]["schemas"][words.__name__]["enum"] == list(words)
    parameters = {each["name"]: each["schema"] for each in described["paths"]["/api/v1/servers"]["get"]["parameters"]}
    assert (list(parameters), parameters["limit"]["maximum"]) == (
        ["limit", "continue", *FILTERS, "label"],
        MAX_PAGE_ITEMS,
    )


@pytest.fixture(scope="module")
def large_client() -> Iterator[httpx.Client]:
    """A client of an endpoint over 1,203 servers, every third of them a worker, every second at fra1."""
    found = plan_fleet(*ALWAYS, PARKED, now=AFTER).servers["web01"].published
    with site() as made:
        for number in range(1201):
            labels = {"role": "worker" if number % 3 == 0 else "db", "rack": f"r{number % 7}"}
            summary = {**found.summary, "server": f"s{number:04}", "labels": labels, "role": labels["role"]}
            summary["site"] = "fra1" if number % 2 else None
            state = structs.replace(found, server=f"s{number:04}", summary=summary)
            (made.root / state_path(state.server)).write_bytes(render_state(state))
        with made.serve() as url, http_peers.Client(base_url=f"{url}/api/v1") as client:
            yield client


def names(client: httpx.Client, **query: Any) -> list[str]:
    found: list[str] = []
    while True:
        page = client.get("/servers", params=query).json()
        found += [item["name"] for item in page["items"]]
        if (query := {**query, "continue": page["continue"]})["continue"] is None:
            return found


def test_the_list_is_paginated(large_client: httpx.Client) -> None:
    first = large_client.get("/servers").json()
    assert (len(first["items"]), first["continue"]) == (500, first["items"][-1]["name"])
    assert names(large_client) == [*(f"s{number:04}" for number in range(1201)), "web01"]
    assert names(large_client, limit=7)[:9] == [f"s{number:04}" for number in range(9)]
    assert large_client.get("/servers", params={"continue": "web01"}).json()["items"] == []


def test_the_list_can_be_filtered(large_client: httpx.Client) -> None:
    workers = [f"s{number:04}" for number in range(0, 1201, 3)]
    assert (names(large_client, role="worker"), names(large_client, role="worker", limit=100)) == (workers, workers)
    assert names(large_client, site="fra1", role="worker") == workers[1::2]
    assert names(large_client, label=["rack=r3", "role=worker"]) == [name for name in workers if int(name[1:]) % 7 == 3]
    assert (
        names(large_client, phase="Disk")
        == names(large_client, image="none")
        == names(large_client, label="rack=")
        == []
    )
    assert len(names(large_client, image="flatcar-1", phase="Network")) == 1202


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "label=x", "label==x", "sort=name"])
def test_an_unknown_parameter_of_the_list_is_rejected(large_client: httpx.Client, query: str) -> None:
    found = large_client.get(f"/servers?{query}")
    assert (found.status_code, query.partition("=")[0] in found.text) == (400, True)


def test_a_changed_server_is_in_the_list_at_once() -> None:
    with site() as made, made.serve() as url:
        for fleet in (plan_fleet(*ALWAYS), plan_fleet(*ALWAYS, PARKED), plan_fleet(*ALWAYS, REPAIR, now=AFTER)):
            made.publish(fleet)
            items = http_peers.get(f"{url}/api/v1/servers").json()["items"]
            assert {item["name"]: item["phase"] for item in items} == {
                name: state.published.summary["phase"] for name, state in fleet.servers.items()
            }


AT = "2026-11-20T23:00:00Z"
PATHS = (
    *("/api/v1/servers", "/api/v1/servers/{name}", "/api/v1/servers/{name}/plan"),
    *("/api/v1/seen", "/api/v1/status"),
)


@pytest.fixture(scope="module")
def described() -> Iterator[str]:
    with site(plan_fleet(*ALWAYS, REPAIR)) as made:
        made.say({**STATUS.facts(), "at": AT, "clock": AT, "changes": 7, "stages": FULL_STATUS.facts()["stages"]})
        with made.serve() as described:
            yield described


@pytest.fixture(scope="module")
def schema(described: str) -> BaseSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"{described}/api/v1/openapi.json")


def test_the_openapi_document_has_exactly_these_operations(schema: BaseSchema) -> None:
    from schemathesis.core.result import Ok

    assert {found.ok().path for found in schema.get_all_operations() if isinstance(found, Ok)} == set(PATHS)


# Other parameters cannot be wrong: a name is any text.
ASKED = [*((path, "positive") for path in PATHS), (PATHS[0], "negative")]


@pytest.mark.parametrize(("path", "mode"), ASKED)
def test_every_response_is_one_that_the_openapi_document_describes(
    described: str, schema: BaseSchema, path: str, mode: str
) -> None:
    from schemathesis import GenerationMode

    operation = schema[path]["GET"]
    seen: set[int] = set()

    @settings(derandomize=True, database=None, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def look(case: schemathesis.Case[Any]) -> None:
        found = case.call_and_validate(base_url=described)
        seen.add(found.status_code)

    look()
    assert seen and max(seen) < 500


def test_existing_resources_are_found(described: str, schema: BaseSchema) -> None:
    """Otherwise the test would see only 404 responses."""
    for path in PATHS:
        case = schema[path]["GET"].Case(path_parameters={"name": "web01"} if "{name}" in path else {})
        assert case.call_and_validate(base_url=described).status_code == 200


FILES = ("", *sorted(PAGE_CONTENT_TYPES.keys() - {"index.html"}))
VIEWS = {
    "": "",
    "images": "Images and streams",
    "timeline": "Windows and rollouts",
    "changes": "Changes",
    "unknown": "Unknown machines",
    "servers/web001": "web001",
}


_APPROVED = ("Approved by", f"Approved by ada, with gitboot approve: {HOSTILE} (maxReinstalls, maxUpdatePercent)")
_BEGAN = at("20T12:00")
_FETCH = StepEvidence(_BEGAN, "v1/boot/x/boot.ipxe", "10.0.0.7")
_WITH_PAGE = fleet("baseURL: 'http://boot.test', outputs: [ipxe, pages]")


def installing_fleet(*outputs: str) -> Fleet:
    """web01 fetched its boot, the installer of web02 started, web03 is installed, web04 waits."""
    boot, data = (
        StepEvidence(_BEGAN, "v1/boot/x/boot.ipxe", "10.0.0.7"),
        StepEvidence(_BEGAN, "i/user-data", "10.0.0.7"),
    )
    fetched = InstallAttempt(key="provision/0", boots=(boot,))
    started = structs.replace(fetched, started=data, started_boot=1)
    since = _BEGAN + timedelta(minutes=5)
    installed = Record(provision=0, image="flatcar-1", evidence="Reported", provisioned_at=since, attempts=(started,))
    return plan_fleet(
        fleet(f"baseURL: 'http://boot.test', outputs: [{', '.join(('ipxe', *outputs))}]"),
        *ONCE[1:],
        *(server(f"web0{number}", "role: web") for number in (2, 3, 4)),
        now=since + timedelta(minutes=1),
        records={"web01": Record(attempts=(fetched,)), "web02": Record(attempts=(started,)), "web03": installed},
    )


@pytest.fixture(scope="module")
def made() -> Iterator[Site]:
    with site(make_shown_fleet()) as found:
        found.say(SHOWN)
        yield found


@pytest.fixture(scope="module")
def url(made: Site) -> Iterator[str]:
    with made.serve() as found:
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(params=["from a folder", "served"])
def address(request: pytest.FixtureRequest, made: Site) -> str:
    """Return the address of the page: the published file, and the page at an endpoint."""
    if request.param == "served":
        return f"{request.getfixturevalue('url')}{PAGE_PATH}"
    return f"file://{made.root}/{FOLDER}index.html"


def test_all_files_of_the_page_are_served_to_operators_only(made: Site, url: str) -> None:
    names = (*FILES, "data/fleet.js", "data/server/web001.js")
    assert {get(f"{url}{PAGE_PATH}{name}").status_code for name in names} == {200}
    with made.serve(operators=[ip_network("192.0.2.1/32")]) as elsewhere:
        assert {get(f"{elsewhere}{PAGE_PATH}{name}").status_code for name in names} == {404}


def test_only_its_own_scripts_run_on_the_page(url: str) -> None:
    for name in (*FILES, "data/fleet.js"):
        answer = get(f"{url}{PAGE_PATH}{name}")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy and answer.headers["x-content-type-options"] == "nosniff"
    markup = get(f"{url}{PAGE_PATH}").text
    assert set(re.findall(r'(?:src|href)="([^"#]+)', markup)) == {"data:,", *FILES} - {""}
    assert not re.search(r"<style|<script>| style=| on[a-z]+=", markup)


@pytest.mark.parametrize("path", ["/", "/page"])
def test_operators_are_redirected_to_the_page_and_machines_are_not(made: Site, url: str, path: str) -> None:
    led = get(f"{url}{path}", follow_redirects=False)
    assert (led.status_code, led.headers["location"]) == (302, "page/")
    assert PAGE_PATH in led.text  # for curl
    assert get(f"{url}{path}", follow_redirects=True).content == get(f"{url}{PAGE_PATH}").content
    with made.serve(operators=[ip_network("192.0.2.1/32")]) as elsewhere:
        assert get(f"{elsewhere}{path}", follow_redirects=False).status_code == 404


def test_if_the_page_is_off_operators_read_how_to_publish_it() -> None:
    with site(plan_fleet(*ALWAYS)) as plainer, plainer.serve() as url:
        led = get(f"{url}/", follow_redirects=False)
        assert led.status_code == 200
        assert "outputs: [ipxe, grub, pages]" in led.text


@pytest.mark.parametrize(
    "path",
    ["app.py", "..%2fapp.py", "../app.py", "index.html/", "x", "data/x.js", "data/..%2fpage.js", "data/server/.js"],
)
def test_no_other_file_is_served_beside_the_page(url: str, path: str) -> None:
    assert get(f"{url}{PAGE_PATH}{path}").status_code == 404


def test_the_page_is_read_only_and_its_data_is_not_sent_twice(url: str) -> None:
    assert http_peers.post(f"{url}{PAGE_PATH}").status_code == 405
    etag = get(f"{url}{PAGE_PATH}data/fleet.js").headers["etag"]
    again = get(f"{url}{PAGE_PATH}data/fleet.js", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


@browsers
def test_the_inventory_of_an_unknown_machine_is_on_the_page_as_text(
    chromium: Browser, made: Site, address: str
) -> None:
    found = build_from_inventory({**SENT, "product": HOSTILE[:64]}, "v1/inventory", "10.0.0.7", BEFORE)
    with publish_unknown(made, found):
        chromium.open(f"{address}#/unknown")
        chromium.until('document.body.innerText.includes("64 CPUs, 256 GiB, nvme0n1 480 GB, sda 7.68 TB")')
        assert HOSTILE[:64] in chromium.text and chromium.run("document.images.length") == 0
    assert chromium.faults == []


@contextmanager
def publish_unknown(made: Site, machine: UnknownMachine) -> Iterator[None]:
    """Publish an unknown machine during the test. The site is shared by all tests."""

    def write(*machines: UnknownMachine) -> None:
        with OutputDirectory.open(made.root, ledger="test") as directory:
            directory.write_status(render_unknown_machines(UnknownMachines(machines)), BEFORE, UNKNOWN)

    write(machine)
    try:
        yield
    finally:
        write()


@browsers
def test_the_page_shows_the_fleet_and_runs_no_text_of_it(chromium: Browser, address: str) -> None:
    chromium.open(address)
    assert chromium.run("document.title") == "gitboot"
    shown = chromium.text
    assert "60 of 60 servers" in shown and "web000" in shown
    assert "published commit c0ffee00c0ff of main" in shown
    assert "commit 4f2ab9917c03, by maxReinstalls" in shown and "Gitboot-Ack: 8c1f27ab maxReinstalls" in shown
    assert shown.index("BmcReached: Silent") < shown.index("2 × Bmc: Stalled") < shown.index("web001, web002")
    assert HOSTILE in shown and chromium.run("document.images.length") == 0
    chromium.run("search.value = 'site=fra1'; search.dispatchEvent(new Event('input'))")
    assert "20 of 60 servers" in chromium.text
    assert chromium.faults == []


@browsers
def test_the_table_is_sorted_and_filtered_and_its_url_restores_the_view(chromium: Browser, made: Site) -> None:
    chromium.open(f"file://{made.root}/{FOLDER}index.html")
    first = "document.querySelector('#fleet tbody a').textContent"
    heads = "[...document.querySelectorAll('#fleet th')]"
    chromium.run(f"{heads}[0].querySelector('button').click()")
    assert (chromium.run(first), chromium.run(f"{heads}[0].ariaSort")) == ("web059", "descending")
    chromium.run("document.querySelectorAll('#ahead button')[2].click()")
    assert "20 of 60 servers" in chromium.text  # servers whose maintenance ends tonight and that are installed then
    chromium.press("/")
    assert chromium.run("document.activeElement.id") == "search"
    for each in "web03":
        chromium.type(each)
    chromium.until("document.body.innerText.includes('4 of 60 servers')")
    address = chromium.run("location.href")
    chromium.run("location.hash = '#/servers/web030'")
    chromium.until("document.querySelector('#view h2')?.textContent === 'web030'")
    chromium.open(address)
    assert "4 of 60 servers" in chromium.text and chromium.run(first) == "web039"
    chromium.run("search.value = 'nobody'; search.dispatchEvent(new Event('input'))")
    assert "No server matches." in chromium.text
    chromium.run("document.querySelector('#none button').click()")
    chromium.until("document.body.innerText.includes('60 of 60 servers')")
    assert chromium.faults == []


@browsers
def test_old_and_missing_data_are_reported_on_the_page(chromium: Browser, made: Site, tmp_path: Path) -> None:
    shutil.copytree(made.root / FOLDER, tmp_path / "page")
    next((tmp_path / "page/data/shard").iterdir()).unlink()
    chromium.open(f"file://{tmp_path}/page/index.html")
    shown = chromium.text
    assert "Stale the instance last wrote its status" in shown
    assert "Incomplete 1 of " in shown and "of 60 servers are not shown" in shown
    assert shown.index("Incomplete") < shown.index("Held")


@browsers
def test_each_view_shows_its_expected_content(chromium: Browser, address: str) -> None:
    expected = {
        "images": (
            "the pin of web004",
            "overdue",
            "GPU driver",
            "flatcar-3",
            "58 %",
            "Follows",
            f"signed by {HOSTILE}",
        ),
        "timeline": ("flatcar-stable: flatcar-3 at 58 %", "Next servers of flatcar-stable", "ams1-repair", "lon1-firm"),
        "changes": ("c0ffee00c0ff", "site=ams1", "12", "reinstalled", "beef00beef00", "Boot flatcar-3", *_APPROVED),
        "unknown": ("No unknown machine has requested a boot",),
        "servers/web001": (
            *("the policy always boots", "debug", "002.yaml:4", "blame", "Under the maintenance fra1-repair"),
            *("Changes without another commit", "bmc001.test", "Stalled: none", "gitboot history web001"),
        ),
        "servers/nobody": ("No data",),
        "servers/%zz": ("60 of 60 servers",),
    }
    chromium.open(address)
    twice = (
        "Promise.all([load('server/web001'), load('server/web001')]).then((found) => found.map((each) => each?.name))"
    )
    assert chromium.run(twice) == ["web001", "web001"]
    for view, words in expected.items():
        chromium.run(f"location.hash = '#/{view}'")
        for each in words:
            chromium.until(f"document.body.innerText.includes({json.dumps(each)})")
    assert chromium.faults == []


@browsers
def test_source_lines_link_to_the_forge_and_nowhere_else(chromium: Browser, made: Site, url: str) -> None:
    chromium.open(f"{url}{PAGE_PATH}#/servers/web001")
    chromium.until("document.body.innerText.includes('blame')")
    links = set(chromium.run("[...document.querySelectorAll('#view a')].map((each) => each.href)"))
    outside = {each for each in links if not each.startswith(url)}
    assert "https://git.test/ops/fleet/blob/test/002.yaml#L4" in outside
    assert {each.partition("/fleet/")[0] for each in outside} == {"https://git.test/ops"}


@browsers
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_accessibility_problem(chromium: Browser, made: Site, *, dark: bool) -> None:
    axe = (Path(__file__).parents[1] / "data/axe/axe.min.js").read_text()
    rules = "{runOnly: ['color-contrast']}" if dark else "{}"  # the other rules do not depend on colours
    chromium.looks(dark=dark)
    chromium.open(f"file://{made.root}/{FOLDER}index.html")
    chromium.run(axe + "; 0")
    for view, title in VIEWS.items():
        chromium.run(f"location.hash = '#/{view}'")
        chromium.until(f"(document.querySelector('#view:not([hidden]) h2')?.textContent ?? '') === '{title}'")
        found = f"axe.run({rules}).then((found) => found.violations.map((each) => [each.id, each.nodes[0].html]))"
        assert chromium.run(found) == [], view
    chromium.looks()


@browsers
def test_the_page_works_with_the_keyboard_alone_and_prints_its_whole_table(chromium: Browser, made: Site) -> None:
    chromium.open(f"file://{made.root}/{FOLDER}index.html")
    chromium.run("document.querySelector('.skip').focus()")
    chromium.press("Enter")
    chromium.until("document.activeElement.id === 'main'")
    for _ in range(4 + 4 + 7 + 4 + 1 + 7 + 5 + 1):  # held, conditions, counters, filters, table, heads, terms, a server
        chromium.press("Tab")
    assert chromium.run("document.activeElement.textContent") == "web000"
    assert chromium.run("fleet.chosen.length > document.querySelectorAll('#fleet tbody a').length") is True
    chromium.press("Enter")
    chromium.until("document.activeElement.textContent === 'web000' && document.activeElement.tagName === 'H2'")
    chromium.run("location.hash = '#/'; dispatchEvent(new Event('beforeprint'))")
    chromium.until("document.querySelectorAll('#fleet tbody a').length === 60")
    chromium.run("dispatchEvent(new Event('afterprint'))")
    assert chromium.printed().startswith(b"%PDF")


@browsers
@pytest.mark.parametrize("how", ["from a folder", "served", "without the output"])
def test_a_server_that_is_being_installed_is_shown_until_it_is_installed(chromium: Browser, how: str) -> None:
    rows = "Object.fromEntries([...document.querySelectorAll('#fleet tbody tr:not(.gap)')].map((each) => "
    rows += "[each.cells[0].innerText, [2, 5, 6].map((number) => each.cells[number].innerText)]))"
    made = site(installing_fleet(*([] if how == "without the output" else ["pages"])))
    with made as installs, installs.serve() as url:
        chromium.open(f"file://{installs.root}/{FOLDER}index.html" if how == "from a folder" else f"{url}{PAGE_PATH}")
        shown = chromium.run(rows)
        assert [shown[name][:2] for name in ("web01", "web02")] == [
            ["Installing since 2026-11-20 12:00Z", "boot served 12:00Z"],
            ["Installing since 2026-11-20 12:00Z", "installer started 12:00Z"],
        ]
        assert (shown["web03"][0], shown["web04"][0]) == ("Disk", "Network")
        if how != "without the output":
            assert shown["web03"][1:] == [
                "–",
                "–",
            ]  # the grace period ends at 14:00, and the server boots the same disk
            assert chromium.run("document.querySelector('#ahead button').innerText") == "2\ninstalling now"
        for name, words in {
            "web02": (
                "Installing since 2026-11-20 12:00Z",
                "Installation Installing since 2026-11-20 12:00Z; last step: installer started at 2026-11-20 12:00Z",
                "Started",
            ),
            "web03": ("Installed flatcar-1 since", "the installer reported the end", "Provisioned"),
        }.items():
            chromium.run(f"location.hash = '#/servers/{name}'")
            chromium.until(f"document.querySelector('#view h2')?.textContent === '{name}'")
            text = " ".join(chromium.text.split())
            assert [each for each in (*words, "Attempt Step Boot fetched") if each not in text] == []
            assert "undefined" not in text and ("Started" in text) == (name == "web02")
            assert ("Installing" in text) == (name == "web02")
        axe = (Path(__file__).parents[1] / "data/axe/axe.min.js").read_text()
        chromium.run(axe + "; 0")
        for view in ("", "servers/web02"):
            chromium.run(f"location.hash = '#/{view}'")
            chromium.until(f"(document.querySelector('#view:not([hidden]) h2')?.textContent ?? '') === '{view[8:]}'")
            assert chromium.run("axe.run().then((found) => found.violations.map((each) => each.id))") == [], view
    assert chromium.faults == []


@browsers
def test_the_page_shows_an_installation_that_begins_while_it_is_open(chromium: Browser) -> None:
    """Also the page of a server whose heading has the focus, as after a click on its name."""
    with site(plan_fleet(_WITH_PAGE, *ONCE[1:])) as installs, installs.serve() as url:
        chromium.open(f"{url}{PAGE_PATH}#/servers/web01")
        chromium.run("location.hash = '#/'")
        chromium.run("location.hash = '#/servers/web01'")
        chromium.until("document.activeElement.textContent === 'web01' && document.activeElement.tagName === 'H2'")
        installs.publish(installing_fleet("pages"))
        chromium.until("document.querySelector('.lead').innerText.includes('Installing since')")
        assert chromium.run("document.activeElement.textContent") == "web01"
    assert chromium.faults == []


@browsers
def test_the_length_of_a_bar_is_the_share_that_it_shows(chromium: Browser, made: Site) -> None:
    chromium.open(f"file://{made.root}/{FOLDER}index.html#/changes")
    chromium.until("document.querySelector('#view svg') !== null")
    rects = "[...document.querySelectorAll('#view svg rect')]"
    bars = chromium.run(f"{rects}.map((each) => [each.className.baseVal, each.width.baseVal.value])")
    track = next(width for kind, width in bars if kind == "track")
    rows = "".join("|" if kind == "track" else f" {kind}={width / track:.3f}" for kind, width in bars).split("|")[1:]
    assert [row.split() for row in rows] == [
        ["reinstalled=0.200", "changed=0.250", "less=0.067", "added=0.033", "removed=0.017"],  # of 60
        ["reinstalled=0.600"],  # of 20
        ["changed=0.750", "less=0.200"],
        ["added=0.100", "removed=0.050"],
    ]


@browsers
def test_an_instance_whose_conditions_are_all_true_is_healthy_unless_its_status_is_stale(chromium: Browser) -> None:
    true = [{"type": "Ready", "status": True, "reason": "Ready", "message": "", "remedy": None}]
    hour = timedelta(hours=1)
    with site(installing_fleet("pages")) as healthy:
        for written in (datetime.now(UTC) + hour, datetime.now(UTC) - hour):
            said = {**SHOWN, "attempted": {"problems": [], "held": None}, "conditions": true}
            healthy.say({**said, "at": format_instant(written)})
            chromium.open(f"file://{healthy.root}/{FOLDER}index.html")
            is_stale = "Stale the instance last wrote its status" in chromium.text
            assert ("Healthy: all conditions are true" in chromium.text) is not is_stale
            assert is_stale is (written < datetime.now(UTC))


@browsers
def test_without_the_pages_output_the_api_is_read_in_pages(chromium: Browser) -> None:
    more = [server(f"web{number:03}", "role: web") for number in range(2, MAX_PAGE_ITEMS + 2)]
    with site(plan_fleet(*ALWAYS, *more)) as large, large.serve() as url:
        assert not (large.root / FOLDER).exists()
        chromium.open(f"{url}{PAGE_PATH}")
        assert f"{MAX_PAGE_ITEMS + 1} of {MAX_PAGE_ITEMS + 1} servers" in chromium.text
        shown = chromium.run("document.querySelector('#fleet tbody tr:nth-child(2) td:nth-child(6)').innerText")
        assert shown == "not published"  # and not "–", which means never
        assert 10 < chromium.run("document.querySelectorAll('#fleet tbody a').length") < 100
        assert chromium.run("document.querySelector('#fleet').getAttribute('aria-rowcount')") == str(MAX_PAGE_ITEMS + 2)
        chromium.run("location.hash = '#/images'")
        chromium.until("document.body.innerText.includes('outputs: [ipxe, grub, pages]')")
        shutil.rmtree(large.root)  # the data of the last read stays
        chromium.run("location.hash = '#/'; refresh()")
        assert "all data below may be old" in chromium.text


# The page after an examination of an older version (finding R12)

_LABELS = """[...document.querySelectorAll('#view dt, #view th, #view tr > td:first-child, #view .word')]
.map((each) => each.innerText)"""
_LONG_AGO = Record(provision=0, image="flatcar-1", evidence="Reported", provisioned_at=at("18T13:20"))
WAITING: dict[str, tuple[dict[str, Any], str, str]] = {
    "stopped": ({"stop": StopScope.WRITING}, "Install boots are stopped", "InstallsAllowed-Stopped"),
    "pending": ({}, "waits for its next boot, which installs it", "reinstall-a-server"),
    "unverified": (
        {"records": {"web01": replace(_LONG_AGO, overwritten_by="repair")}},
        "The content of the disks is not known",
        "RecordsVerified-UnverifiedServers",
    ),
    "fetched": (
        {"records": {"web01": Record(attempts=(InstallAttempt(key="provision/0", boots=(_FETCH,)),))}},
        "waits for evidence that the installer started",
        "InstallsCompleted-Overdue",
    ),
    "failed": (
        {
            "records": {
                "web01": Record(
                    attempts=(
                        InstallAttempt(
                            key="provision/0", boots=(_FETCH,), failed=Failure(_BEGAN, "10.0.0.7", f"one\n{HOSTILE}")
                        ),
                    )
                )
            }
        },
        "Look at the machine, then confirm what is installed",
        "InstallsCompleted-Failed",
    ),
}


@browsers
@pytest.mark.parametrize("name", WAITING)
def test_finding_r12_a_server_shows_why_it_waits_in_words_and_the_help(chromium: Browser, name: str) -> None:
    more, words, anchor = WAITING[name]
    with site(plan_fleet(_WITH_PAGE, *ONCE[1:], now=_BEGAN + timedelta(minutes=5), **more)) as found:
        folder = f"file://{found.root}/{FOLDER}"
        chromium.open(f"{folder}index.html#/servers/web01")
        chromium.until("document.querySelector('#view h2')?.textContent === 'web01'")
        assert words in " ".join(chromium.text.split())
        assert (
            chromium.run("[...document.querySelectorAll('#view .note a')].at(-1).href") == f"{folder}help.html#{anchor}"
        )
        labels = chromium.run(_LABELS)
        assert "Installed" in labels and "Kernel argument 1" in labels
        assert [each for each in labels if re.search(r"undefined|null|object|\b[a-z]+[A-Z]|\[[0-9]", each)] == []
        assert chromium.run("document.images.length") == 0
        assert (HOSTILE in chromium.text) == (name == "failed")
    assert chromium.faults == []


@browsers
def test_finding_r12_a_server_shows_the_commit_that_withholds_its_boot_and_the_rollout_that_it_waits_for(
    chromium: Browser, made: Site
) -> None:
    withheld = {"server": "web001", "by": ["4f2ab9917c03d5e1"], "boots": None, "why": HOSTILE}
    made.say({**SHOWN, "attempted": {"commit": "4f2ab9917c03d5e1", "problems": [], "withheld": [withheld]}})
    try:
        chromium.open(f"file://{made.root}/{FOLDER}index.html")
        server = json.dumps({"name": "web001", "cause": Cause.WITHHELD})
        shown = chromium.run(f"waits({server}).map((each) => each.textContent)")
        assert "until the newer commit is accepted" in shown[0]
        assert f"Not offered by commit 4f2ab9917c03: {HOSTILE}." in shown[0]
        joins = "fleet.all.find((each) => each.joins > 58)"
        shown = chromium.run(f"waits({joins}).map((each) => each.textContent)")
        assert re.search(r"the rollout of flatcar-3 is at 58 %, and the server joins at \d+ %", shown[-1])
        assert chromium.run("waits(fleet.all.find((each) => !each.joins))") == []
    finally:
        made.say(SHOWN)
    assert chromium.faults == []


@pytest.fixture(scope="module")
def held_page() -> Iterator[str]:
    with site(make_held_fleet()) as found:
        found.say(make_held_status())
        yield f"file://{found.root}/{FOLDER}index.html"


# The text and the colour of an element, as a person sees it.
_SEEN = "((each) => [each.innerText, getComputedStyle(each).color])"


@browsers
def test_a_held_commit_names_the_servers_that_lost_an_install_boot_and_a_review(
    chromium: Browser, held_page: str
) -> None:
    chromium.open(held_page)
    boxes = chromium.run("[...document.querySelectorAll('.note.bad')].map((each) => each.innerText)")
    (box,) = (each for each in boxes if each.startswith("Held"))
    assert "withholds the install boots of 2 servers, because this commit does not offer them: web01, web02." in box
    review = "gitboot diff --accepted OUTPUT ..4f2ab9917c03 STATE/repository.git"
    assert box.index("1. Review") < box.index(review) < box.index("2. To acknowledge") < box.index("gitboot approve")
    links = "[...document.querySelectorAll('.note a')].map((each) => each.getAttribute('href'))"
    assert "#/changes" in chromium.run(links)
    chromium.run("location.hash = '#/changes'")
    chromium.until("document.querySelector('#view table') !== null")
    lost = "[...document.querySelector('#view tbody').rows].map((row) => [...row.cells].map((each) => each.innerText))"
    assert chromium.run(lost) == [[name, "its disk", "4f2ab9917c03"] for name in LOST]
    assert chromium.faults == []


@browsers
def test_only_what_waits_or_is_withheld_is_amber_in_the_table(chromium: Browser, held_page: str) -> None:
    chromium.open(held_page)
    cells = "[...document.querySelectorAll('#fleet tbody tr:not(.gap)')].map((row) => "
    cells += f"[row.cells[0].innerText, ...[2, 3, 5].map((place) => {_SEEN}(row.cells[place].firstChild.nodeType === 1"
    cells += " ? row.cells[place].firstChild : row.cells[place]))])"
    rows = {name: rest for name, *rest in chromium.run(cells)}
    words = {name: [text for text, _ in rest] for name, rest in rows.items()}
    assert words == {
        "parked01": ["no plan", "–", "–"],
        **{name: ["Disk", "local disk", "waits: withheld"] for name in LOST},
        **{name: ["Disk", "local disk", "–"] for name in ("web03", "web05")},
        "web04": ["Network", words["web04"][1], "at its next boot"],
        "web06": ["Maintenance", words["web06"][1], "–"],
    }
    amber = rows["web01"][2][1]
    is_amber = {name: [colour == amber for _, colour in rest] for name, rest in rows.items()}
    assert is_amber == {name: [name in LOST, False, name in LOST] for name in rows}
    colours = {rows[name][0][1] for name in ("web01", "web03", "web04", "web06")}
    assert len(colours) == 4  # withheld, disk, network, maintenance


@browsers
def test_a_server_whose_boot_is_withheld_is_not_to_be_installed_at_its_next_boot(
    chromium: Browser, held_page: str
) -> None:
    expected = {
        "web01": ("It boots its own disk for now", "Pending: waits until the newer commit is accepted"),
        "web04": ("from the network", "Pending: the server will be installed at its next boot"),
        "web05": ("by later; the maintenance will be active.",),
        "parked01": ("no plan It has no plan.",),
    }
    chromium.open(held_page)
    for name, texts in expected.items():
        chromium.run(f"location.hash = '#/servers/{name}'")
        chromium.until(f"document.querySelector('#view h2')?.textContent === '{name}'")
        shown = " ".join(chromium.text.split())
        assert [each for each in texts if each not in shown] == []
    assert "installed at its next boot" not in shown
    assert chromium.faults == []


@browsers
@pytest.mark.parametrize("width", [320, 420, 1280])
def test_a_picture_has_labels_of_a_readable_size_and_dates_with_a_year(
    chromium: Browser, held_page: str, made: Site, width: int
) -> None:
    chromium.sized(width, 900)
    try:
        for address in (held_page, f"file://{made.root}/{FOLDER}index.html"):
            chromium.open(f"{address}#/timeline")
            chromium.until("document.querySelector('#view svg') !== null")
            box = "const box = each.getBoundingClientRect();"
            facts = "[each.textContent, each.className.baseVal, box.height, box.left, box.right]"
            texts = chromium.run(
                f"[...document.querySelectorAll('#view svg text')].map((each) => {{ {box} return {facts}; }})"
            )
            assert [each for each in texts if each[2] < 12 or each[3] < 0 or each[4] > width] == []
            dates = [text for text, kind, *_ in texts if kind == "axis" and "%" not in text]
            assert dates and [each for each in dates if not re.fullmatch(r"20\d\d-\d\d-\d\d( \d\d:00)?", each)] == []
        chromium.open(f"{held_page}#/timeline")
        chromium.until("document.querySelector('#view table') !== null")
        bench = "[...document.querySelectorAll('#view tbody tr')].find((each) => each.innerText.includes('bench'))"
        assert chromium.run(f"[1, 2].map((place) => {bench}.cells[place].innerText)") == ["always", "no end"]
        link = "document.querySelector('h1 a').getBoundingClientRect()"
        assert chromium.run(f"{link}.top - document.querySelector('header').getBoundingClientRect().top") >= 8
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")
    assert chromium.faults == []


@browsers
@pytest.mark.parametrize("width", [320, 420, 1280])
def test_an_axis_has_dates_side_by_side_at_each_time_and_length(chromium: Browser, held_page: str, width: int) -> None:
    chromium.sized(width, 900)
    try:
        chromium.open(f"{held_page}#/timeline")
        chromium.until("document.querySelector('#view svg') !== null")
        axes = chromium.run(
            """[0, 1, 4, 9, 20, 90, 400].flatMap((days) => Array.from({ length: 24 }, (_, hour) => {
              const begin = Date.UTC(2026, 10, 30, hour, 20);
              const end = new Date(begin + days * 86400000 + 7200000).toISOString();
              const drawn = windows("", [{ name: "night", start: new Date(begin).toISOString(), end }]);
              document.querySelector("#view").append(drawn);
              const boxes = [...drawn.querySelectorAll(".axis")].map((each) => each.getBoundingClientRect());
              drawn.remove();
              return boxes.map((box) => [box.left, box.right]);
            }))"""
        )
        for axis in axes:
            places = [place for box in axis for place in box]
            assert axis and places == sorted(places) and places[0] >= 0 and places[-1] <= width
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")


@browsers
def test_only_one_tab_is_current(chromium: Browser, made: Site) -> None:
    address = f"file://{made.root}/{FOLDER}index.html"
    current = "[...document.querySelectorAll('nav a[aria-current]')].map((each) => each.textContent)"
    for view, tab in (("", "Servers"), ("#/", "Servers"), ("#/images", "Images")):
        chromium.open(f"{address}{view}")
        assert chromium.run(current) == [tab], view


@browsers
def test_images_and_streams_have_the_names_and_the_steps_of_gitboot_images(chromium: Browser, made: Site) -> None:
    chromium.open(f"file://{made.root}/{FOLDER}index.html#/images")
    chromium.until("document.querySelector('#view table') !== null")
    heads = chromium.run("[...document.querySelector('#view table').tHead.rows[0].cells].map((each) => each.innerText)")
    assert heads == ["Image", "Version", "Planned", "Installed", "Streams", "Claimed provenance"]
    streams = (
        "[...document.querySelector('#view tbody').rows].map((row) => [row.cells[0].innerText, row.cells[4].innerText])"
    )
    assert dict(chromium.run(streams)) == {
        **{f"flatcar-{number}": "flatcar-stable" for number in (1, 2, 3)},  # flatcar-1 only for a hold
        "memtest-7": "–",
    }
    chromium.run("location.hash = '#/timeline'")
    chromium.until("document.body.innerText.includes('Next servers of')")
    next_servers = "[...document.querySelectorAll('#view table')].at(-1)"
    heads = chromium.run(f"[...{next_servers}.tHead.rows[0].cells].map((each) => each.innerText)")
    assert heads == ["Percent", "Added", "Servers"]
    rows = chromium.run(
        f"[...{next_servers}.tBodies[0].rows].map((row) => [row.cells[0].innerText, row.cells[1].innerText])"
    )
    joining = chromium.run("joining(fleet.shared.streams[0]).map(([percent, names]) => [percent, names.length])")
    assert len(joining) > 9
    assert rows == [
        *([f"{percent} %", str(number)] for percent, number in joining[:8]),
        [f"{joining[8][0]}–{joining[-1][0]} %", str(sum(number for _, number in joining[8:]))],
    ]


def test_finding_r12_each_cause_of_waiting_has_words() -> None:
    words = read_page_file("words.js").decode()
    settled = {
        *(Cause.MAINTENANCE, Cause.MAINTENANCE_STARTED, Cause.MAINTENANCE_DISK, Cause.ALWAYS, Cause.PROVISIONED),
        *(Cause.SUBSTITUTE, Cause.POLICIES_ALONE, Cause.NEVER, Cause.DISK),
    }
    assert set(re.findall(r'^  "([a-z].+?)": \[', words, re.MULTILINE)) == {str(each) for each in set(Cause) - settled}
    anchors = re.findall(r' id="([^"]+)"', read_page_file("help.html").decode())
    assert set(re.findall(r'", "([\w-]+)"\],$', words, re.MULTILINE)) <= set(anchors)
    assert len(anchors) == len(set(anchors))


@browsers
def test_finding_r12_a_server_shows_what_is_installed_and_the_next_change_only_if_it_boots_something_else(
    chromium: Browser,
) -> None:
    window = maintenance("repair", "21T22:00 21T23:00")
    fleets = {
        "none without another commit": (),
        "in ": (window,),
    }
    for change, documents in fleets.items():
        made = plan_fleet(_WITH_PAGE, *ONCE[1:], *documents, now=at("20T23:00"), records={"web01": _LONG_AGO})
        with site(made) as found:
            chromium.open(f"file://{found.root}/{FOLDER}index.html#/servers/web01")
            chromium.until("document.querySelector('#view h2')?.textContent === 'web01'")
            facts = "[...document.querySelectorAll('#view dl')][0]"
            pairs = chromium.run(
                f"[...{facts}.querySelectorAll('dt')].map((e) => [e.innerText, e.nextSibling.innerText])"
            )
            shown = dict(pairs)
            assert re.fullmatch(r"flatcar-1.* since .+ 2026-11-18 13:20Z", shown["Installed"])
            assert shown["Boots"] == "its own disk"
            assert shown["Next change"] == change or (documents and shown["Next change"].endswith("22:00Z: memtest-7"))
    assert chromium.faults == []


@browsers
def test_finding_r12_the_history_of_a_server_has_author_date_and_subject(chromium: Browser) -> None:
    """Of the commits that changed a file of the server. All text of a commit is shown as text."""
    own, other = ("001.yaml",), ("elsewhere.yaml",)  # and "t" is the template of its user data
    older = [(f"{number:040x}", "19T10:00", "Ada", f"Change {number}", own) for number in range(30)]
    wide = tuple(f"many/{number}.yaml" for number in range(MAX_HISTORY_PATHS))
    with site(plan_fleet(_WITH_PAGE, *ONCE[1:])) as found:
        found.say(SHOWN)
        write_history(
            found.root,
            changes(
                ("c0ffee00c0ffee00", "20T22:50", HOSTILE, f"Newest {HOSTILE}", own),
                ("beef00beef00", "20T16:02", "Jonas", "Of another server", other),
                ("feed00feed00", "20T15:00", "Jonas", "Everything", wide),
                ("deed00deed00", "20T14:00", "Jonas", "Template", ("t",)),
                *older,
            ),
        )
        chromium.open(f"file://{found.root}/{FOLDER}index.html#/servers/web01")
        chromium.until("document.body.innerText.includes('The last commits that changed')")
        table = "[...document.querySelectorAll('#view table')].at(-1)"
        rows = chromium.run(f"[...{table}.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText))")
        assert len(rows) == 20
        assert [each[1:] for each in rows[:4]] == [
            [HOSTILE, f"Newest {HOSTILE}", "c0ffee00c0ff", "001.yaml"],
            ["Jonas", "Everything", "feed00feed00", "one of 5,000 files, perhaps of this server"],
            ["Jonas", "Template", "deed00deed00", "t"],
            ["Ada", "Change 0", "0" * 12, "001.yaml"],
        ]
        assert all(re.search(r"2026-11-\d\d \d\d:\d\dZ", each[0]) for each in rows)
        assert chromium.run("document.images.length") == 0
        chromium.run("location.hash = '#/changes'")
        chromium.until(f"document.querySelector('#view h2')?.textContent === 'Changes' && {table} !== undefined")
        authors = chromium.run(f"[...{table}.tBodies[0].rows].map((row) => row.cells[2].innerText)")
        assert authors == [HOSTILE, "Jonas"]
    assert chromium.faults == []


def test_finding_r12_each_false_condition_has_a_meaning_and_a_section_of_the_documentation() -> None:
    meanings = read_page_file("help.js").decode().partition("const MEANINGS = ")[2].removesuffix(";\n")
    found = json.loads(re.sub(r"^  (\w+):", r'  "\1":', meanings, flags=re.MULTILINE).replace(",\n}", "\n}"))
    declared = {
        each.name.partition("/")[0]: {reason if reason != ANY else "any" for reason in each.remedies}
        for each in CONDITIONS.values()
    }
    assert {kind: set(reasons) for kind, reasons in found.items()} == declared
    anchors = set(re.findall(r' id="([^"]+)"', read_page_file("help.html").decode()))
    assert {f"{kind}-{reason}" for kind, reasons in found.items() for reason in reasons} <= anchors


def test_the_help_shows_each_block_of_code_as_code() -> None:
    page = read_page_file("help.html").decode()
    assert "``" not in page
    assert '<pre tabindex="0">$ gitboot approve DIGEST' in page


def test_each_term_of_a_heading_has_an_entry_in_the_help() -> None:
    words = read_page_file("words.js").decode().partition("const TERMS = {")[2].partition("};")[0]
    terms = re.findall(r'(?:(\w+)|"([^"]+)"): "([\w-]+)"', words)
    anchors = set(re.findall(r' id="terms-([^"]+)"', read_page_file("help.html").decode()))
    assert len(terms) > 20 and {anchor for *_, anchor in terms} <= anchors
    code = "".join(read_page_file(name).decode() for name in ("page.js", "rows.js"))
    assert {name or quoted for name, quoted, _ in terms} <= set(re.findall(r'"([^"\n]+)"', code))


@browsers
def test_a_heading_of_the_page_leads_to_its_term(chromium: Browser, made: Site) -> None:
    chromium.open(f"file://{made.root}/{FOLDER}index.html")
    heads = chromium.run("[...document.querySelectorAll('#fleet th .term')].map((each) => [each.ariaLabel, each.href])")
    assert [label for label, _ in heads] == [
        f"{each}: meaning" for each in ("Site", "Phase", "Image", "Installs", "Next change")
    ]
    chromium.run("location.hash = '#/servers/web030'")
    chromium.until("document.querySelector('#view h2')?.textContent === 'web030'")
    terms = dict(
        chromium.run("[...document.querySelectorAll('#view .term')].map((each) => [each.textContent, each.href])")
    )
    assert {"Policy", "Profile", "Next change", "Record"} <= terms.keys()
    for there, text in ((terms["Record"], "A record is"), (heads[1][1], "phase: ")):
        chromium.open(there, "document.querySelector(':target') !== null")
        assert chromium.run("document.querySelector(':target').innerText").startswith(text)
    assert chromium.faults == []


@browsers
def test_finding_r12_a_false_condition_leads_to_its_section(chromium: Browser, made: Site, address: str) -> None:
    chromium.open(address)
    assert "The BMC of SERVER rejected a request" in chromium.text
    there = chromium.run("[...document.querySelectorAll('#state .note a')].at(-1).href")
    assert there.endswith("help.html#Bmc-Stalled")
    chromium.open(there, "document.querySelector(':target h4')?.textContent === 'Bmc/SERVER: Stalled'")
    assert "gitboot bmc apply SERVER" in chromium.run("document.querySelector(':target').innerText")
    axe = (Path(__file__).parents[1] / "data/axe/axe.min.js").read_text()
    chromium.run(axe + "; 0")
    assert chromium.run("axe.run({preload: false}).then((found) => found.violations.map((each) => each.id))") == []
    there_is = "document.getElementById(each.hash.slice(1))"
    links = chromium.run(
        f"[...document.querySelectorAll('a[href^=\"#\"]')].filter((each) => !{there_is}).map((each) => each.hash)"
    )
    assert links == []
    assert (
        chromium.run("document.querySelector('h1 a').href")
        == address.split("#")[0].removesuffix("index.html") + "index.html"
    )
    assert chromium.faults == []


@browsers
def test_finding_r12_at_400_pixels_nothing_scrolls_sideways(chromium: Browser, made: Site) -> None:
    chromium.sized(400, 800)
    try:
        chromium.open(f"file://{made.root}/{FOLDER}index.html")
        installs = "document.querySelector('#fleet tbody tr:not(.gap) td:nth-child(6)')"
        shown = chromium.run(f"[{installs}.innerText, {installs}.getBoundingClientRect().right]")
        assert shown[0] != "" and 0 < shown[1] <= 400
        assert chromium.run(
            "document.querySelector('#window').scrollWidth <= document.querySelector('#window').clientWidth"
        )
        overlaps = "[...document.querySelectorAll('#fleet tbody tr:not(.gap)')]"
        overlaps += ".every((each) => each.offsetHeight === rowHeight())"
        assert chromium.run(overlaps) is True
        chromium.run((Path(__file__).parents[1] / "data/axe/axe.min.js").read_text() + "; 0")
        chromium.run("document.querySelector('#window').scrollTop = 30 * rowHeight()")
        chromium.until("document.querySelector('#fleet').innerText.includes('web034')")
        for view, title in VIEWS.items():
            chromium.run(f"location.hash = '#/{view}'")
            chromium.until(f"(document.querySelector('#view:not([hidden]) h2')?.textContent ?? '') === '{title}'")
            widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            wide, room = chromium.run(widths)
            assert wide <= room, view
            is_wider = "(each) => each.scrollWidth > each.clientWidth"
            tables = chromium.run(f"[...document.querySelectorAll('#view .wide')].filter({is_wider}).length")
            assert tables == 0, view
            assert chromium.run("axe.run().then((found) => found.violations.map((each) => each.id))") == [], view
        chromium.open(f"file://{made.root}/{FOLDER}help.html", "document.readyState === 'complete'")
        assert chromium.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")
    assert chromium.faults == []


@browsers
def test_finding_r12_two_of_40_servers_are_five_percent_of_a_bar(chromium: Browser) -> None:
    with site(plan_fleet(_WITH_PAGE, *ONCE[1:])) as found:
        accepted = {"commit": "c0ffee00c0ffee00", "changed": [area("", 40, changed=2)], "lately": []}
        found.say({**SHOWN, "accepted": accepted})
        chromium.open(f"file://{found.root}/{FOLDER}index.html#/changes")
        chromium.until("document.querySelector('#view svg .changed') !== null")
        width = "document.querySelector('#view svg .{}').width.baseVal.value"
        share = chromium.run(f"{width.format('changed')} / {width.format('track')}")
        assert abs(share - 0.05) < 0.001
        assert "2 of 40" in chromium.run("document.querySelector('#view svg').textContent")


def test_the_same_fleet_gives_the_same_files(made: Site, tmp_path: Path) -> None:
    with site(make_shown_fleet()) as other:
        files = {path.relative_to(other.root): path.read_bytes() for path in (other.root / FOLDER).rglob("*.*")}
    assert len(files) > 60
    assert files == {path: (made.root / path).read_bytes() for path in files}
    assert verify_tree(made.root) == () and (made.root / PAGE_DATA / "status.js").exists()
