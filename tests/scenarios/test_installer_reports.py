"""Paths that only an installation requests, its data and its reports: from user data to observation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from starlette.types import Message

from gitboot.endpoint.connections import TOO_LARGE, RequestBodies
from gitboot.render.server_files import RenderedState, build_server_state
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decisions
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import BEFORE, LOADER, PROXY, START, Fleet, Site, plan_fleet
from tests.helpers.endpoints import site as new_site
from tests.helpers.fleets import (
    SEED,
    at,
    decided,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    policy,
    profile,
    server,
)

PENDING, INSTALLED = Record(), Record(provision=1, image="flatcar-1")
CONSUMED = Record(consumed_at=BEFORE - timedelta(hours=1), consumed_key="provision/1")
REPORTED = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}")
SERVER = server("web01", "role: web", "provision: 1")
ONCE = policy("web", "{matchLabels: {role: web}}", often="Once")
WEB = (
    image("flatcar-1", "userData: Ignition/3.4"),
    profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: t}"),
)
TEMPLATES = {"t": '{"ignition": {"version": "3.4.0"}, "x": "{{ urls.provisioned }}"}'}
MAC = make_mac("web01").replace(":", "-")
ENTRY = f"boot/v1/boot/{MAC}/boot.ipxe"


def make_decisions(*documents: str, settings: str = REPORTED, web01: str = SERVER, often: str = ONCE) -> Decisions:
    return decided(settings, web01, *WEB, SEED[3], SEED[5], often, *documents, files=TEMPLATES)


def state(found: Decisions, record: Record | None = PENDING) -> RenderedState:
    return build_server_state(found, found.servers["web01"], record, BEFORE)


def list_reports(state: RenderedState) -> list[str]:
    return [path for path in sorted(state.files) if "/provisioned/" in path]


(PATH,) = list_reports(state(make_decisions()))
FAILED = PATH.replace("provisioned", "failed")
DATA = PATH.replace("provisioned", "data") + "/config.ign"
ASKED = PATH.removeprefix("boot")
TOKEN = PATH.rpartition("/")[2]


def test_user_data_has_the_report_path_of_the_output_tree() -> None:
    boot = state(make_decisions()).decision.policy
    assert boot and boot.boot and boot.boot.user_data
    assert f"http://boot.test{ASKED}" in boot.boot.user_data.files["config.ign"]
    assert f"boot/v1/boot/{MAC}/provisioned/{TOKEN}" == PATH
    assert state(make_decisions()).files[PATH].content == b""


def test_the_installed_system_requests_its_user_data_at_a_path_of_its_own() -> None:
    planned = state(make_decisions())
    assert f"ignition.config.url=http://boot.test{DATA.removeprefix('boot')} " in planned.files[ENTRY].content.decode()
    boot = planned.decision.policy
    assert boot and boot.boot and boot.boot.user_data
    assert planned.files[DATA].content.decode() == boot.boot.user_data.files["config.ign"]
    assert planned.evidence_digests[DATA] == TOKEN


def test_a_boot_for_every_time_shares_its_user_data_with_others() -> None:
    diskless = image("flatcar-1", "userData: Ignition/3.4, writesDisk: false")
    always = policy("web", "{matchLabels: {role: web}}")
    found = decided(REPORTED, SERVER, diskless, WEB[1], SEED[3], SEED[5], always, files=TEMPLATES)
    planned = state(found)
    assert "/o/" in planned.files[ENTRY].content.decode()
    assert not [path for path in planned.files if "/data/" in path]


@pytest.mark.parametrize(
    ("record", "is_there"),
    [
        pytest.param(PENDING, True, id="pending"),
        pytest.param(replace(INSTALLED, provisioned_at=BEFORE - timedelta(minutes=119)), True, id="just installed"),
        pytest.param(replace(INSTALLED, provisioned_at=BEFORE - timedelta(minutes=120)), False, id="two hours later"),
        pytest.param(None, False, id="unknown"),
    ],
)
def test_user_data_is_available_as_long_as_the_installation_may_request_it(
    record: Record | None, is_there: bool
) -> None:
    assert (DATA in state(make_decisions(), record).files) == is_there


def test_each_nic_that_may_boot_has_a_report_path() -> None:
    interfaces = (
        f'[{{mac: "{make_mac("web01")}"}}, {{mac: "{make_mac("b")}"}}, {{mac: "{make_mac("c")}", boot: false}}]'
    )
    several = SERVER.replace(f'[{{mac: "{make_mac("web01")}"}}]', interfaces)
    assert several != SERVER
    found = list_reports(state(make_decisions(web01=several)))
    assert len(found) == 2
    assert {path.rpartition("/")[2] for path in found} == {TOKEN}


def test_each_server_number_and_image_has_its_own_report_path() -> None:
    raised = state(make_decisions(web01=server("web01", "role: web", "provision: 2")))
    other = SERVER.replace(make_uuid("web01"), make_uuid("web02"))
    assert len({PATH, *list_reports(raised), *list_reports(state(make_decisions(web01=other)))}) == 3
    renamed = (image("flatcar-2", "userData: Ignition/3.4"), WEB[1].replace("flatcar-1", "flatcar-2"))
    changed = decided(REPORTED, SERVER, *renamed, SEED[3], SEED[5], ONCE, files=TEMPLATES)
    assert list_reports(state(changed)) != [PATH]


@pytest.mark.parametrize(
    ("found", "record"),
    [
        pytest.param(make_decisions(settings=SEED[0]), PENDING, id="evidence Fetched"),
        pytest.param(
            make_decisions(often=policy("web", "{matchLabels: {role: web}}")), PENDING, id="networkBoot Always"
        ),
        pytest.param(make_decisions(web01=server("web01", spec="lifecycle: Parked")), PENDING, id="parked"),
    ],
)
def test_without_a_report_to_expect_there_is_no_report_path(found: Decisions, record: Record | None) -> None:
    assert list_reports(state(found, record)) == []


@pytest.mark.parametrize(
    ("found", "record"),
    [
        pytest.param(make_decisions(), INSTALLED, id="provisioned"),
        pytest.param(make_decisions(), None, id="no record"),
        pytest.param(make_decisions(maintenance("m", "20T20:00 20T23:00")), PENDING, id="in a maintenance"),
        pytest.param(make_decisions(), CONSUMED, id="consumed for longer than evidence may take"),
    ],
)
def test_a_report_counts_whatever_the_machine_boots_by_then(found: Decisions, record: Record | None) -> None:
    planned = state(found, record)
    assert list_reports(planned) == [PATH]
    assert planned.evidence_digests[PATH] == TOKEN


def test_with_other_evidence_the_decision_is_the_same() -> None:
    assert make_decisions().servers == make_decisions(settings=SEED[0]).servers


# At the endpoint


@pytest.fixture
def site() -> Iterator[Site]:
    ours = state(make_decisions(maintenance("repair", "20T22:00 20T23:00")))
    with new_site(Fleet(servers={"web01": ours}, shared={})) as made:
        yield made


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    with site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield client


def test_a_report_gets_a_204_and_is_recorded_each_time_by_any_method_and_notation(
    site: Site, client: httpx.Client
) -> None:
    client.get(f"/v1/boot/{MAC}/boot.ipxe")
    assert [observed.reports_success for observed in site.observed()] == [False]
    found = client.get(ASKED)
    assert (found.status_code, found.content, found.headers["cache-control"]) == (204, b"", "no-store")
    assert not {"content-length", "etag", "transfer-encoding"} & set(found.headers)
    (observed,) = site.observed()
    assert (observed.server, observed.path, observed.client, observed.at) == ("web01", PATH, "127.0.0.1", BEFORE)
    assert (observed.reports_success, observed.digest, observed.modified) == (True, TOKEN, None)
    notations = (MAC.upper(), MAC.replace("-", ":"), MAC.replace("-", ""))
    again = [client.get(f"/v1/boot/{mac}/provisioned/{TOKEN}") for mac in notations]
    again += [client.get(ASKED, headers={"if-none-match": "*"}), client.post(ASKED, content=b"{}")]
    assert [each.status_code for each in again] == [204] * 5
    assert [(each.path, each.digest) for each in site.observed()] == [(PATH, TOKEN)] * 5


def test_a_head_is_never_evidence(site: Site, client: httpx.Client) -> None:
    assert client.head(ASKED).status_code == 204
    assert site.observed() == []


@for_each(
    "path",
    [
        f"/v1/boot/{MAC}/provisioned/{'a' * 64}",
        f"/v1/boot/{MAC}/provisioned/{TOKEN.upper()}",
        f"/v1/boot/{MAC}/provisioned/{TOKEN}/",
        f"/v1/boot/{MAC}/provisioned/",
        f"/v1/boot/{MAC}/provisioned",
        f"/v1/boot/{make_mac('b')}/provisioned/{TOKEN}",
        f"/v1/boot/x/provisioned/{TOKEN}",
        f"/provisioned/{TOKEN}",
    ],
)
def test_every_other_path_gets_the_same_404(site: Site, client: httpx.Client, path: str) -> None:
    found, nothing = client.get(path), client.get("/nothing")
    assert found.status_code == 404
    assert {**found.headers, "date": ""} == {**nothing.headers, "date": ""}
    assert site.observed() == []


def test_reports_and_data_are_available_before_during_and_after_a_maintenance(site: Site, client: httpx.Client) -> None:
    for now in (BEFORE, START, at("20T23:00")):
        site.now = now
        assert client.get(ASKED).status_code == 204
        assert client.get(DATA.removeprefix("boot")).status_code == 200
    assert [observed.digest for observed in site.observed() if observed.reports_success] == [TOKEN] * 3


def test_a_fetch_of_data_is_recorded_as_the_start_of_the_installation(site: Site, client: httpx.Client) -> None:
    found = client.get(DATA.removeprefix("boot"))
    assert (found.status_code, found.headers["content-type"]) == (200, "application/vnd.coreos.ignition+json")
    assert found.headers["cache-control"] == "no-store"
    (observed,) = site.observed()
    assert (observed.path, observed.digest, observed.is_from_system, observed.reports_success) == (
        DATA,
        TOKEN,
        True,
        False,
    )


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(
            state(make_decisions(web01=server("web01", "role: web", "provision: 2"))), id="provision was raised"
        ),
        pytest.param(state(make_decisions(), None), id="it became unknown"),
        pytest.param(state(make_decisions(web01=server("web01", spec="lifecycle: Parked"))), id="it was parked"),
    ],
)
def test_a_started_installation_continues_after_any_commit(
    site: Site, client: httpx.Client, now: RenderedState
) -> None:
    assert DATA not in now.files
    for _ in range(2):
        site.publish(Fleet(servers={"web01": now}, shared={}), at=BEFORE)
        found = client.get(DATA.removeprefix("boot"))
        assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
        assert found.headers["content-type"] == "application/vnd.coreos.ignition+json"
    assert [(each.path, each.digest, each.is_from_system) for each in site.observed()] == [(DATA, TOKEN, True)] * 2
    later = BEFORE + timedelta(days=7)
    site.publish(Fleet(servers={"web01": now}, shared={}), at=later)
    assert client.get(DATA.removeprefix("boot")).status_code == 404


def test_the_last_report_of_an_installation_counts_after_any_commit(site: Site, client: httpx.Client) -> None:
    now = Fleet(servers={"web01": state(make_decisions(web01=server("web01", "role: web", "provision: 2")))}, shared={})
    for at_ in (BEFORE, BEFORE + timedelta(days=6)):
        site.publish(now, at=at_)
        assert client.post(FAILED.removeprefix("boot"), content=b"no disk\n").status_code == 204
        assert client.get(ASKED).status_code == 204
    found = [(each.path, each.digest, each.log) for each in site.observed()]
    assert found == [(FAILED, TOKEN, "no disk"), (PATH, TOKEN, None)] * 2
    assert client.post(FAILED.removeprefix("boot").replace(TOKEN, "b" * 64), content=b"x").status_code == 405
    site.publish(now, at=BEFORE + timedelta(days=7))
    assert client.post(FAILED.removeprefix("boot"), content=b"no disk\n").status_code == 405
    assert site.observed() == []


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [PATH, FAILED])
def test_only_a_report_from_a_client_of_the_fleet_counts(path: str, method: str) -> None:
    provisioning = "provisioning: {evidence: Reported, clients: [10.12.0.0/16], monitors: [10.12.9.0/24]}"
    settings = fleet(f"baseURL: 'http://boot.test', {provisioning}")
    found = plan_fleet(settings, SERVER, *WEB, SEED[3], SEED[5], ONCE, templates=TEMPLATES)
    with new_site(found) as site, site.serve(trusted_proxies=PROXY) as url:

        def report(client: str) -> int:
            headers = {"x-forwarded-for": client}
            return http_peers.request(method, url + path.removeprefix("boot"), headers=headers).status_code

        assert [report(client) for client in ("10.13.0.1", "10.12.9.1")] == [404, 404]
        assert site.observed() == []
        assert report("10.12.0.13") == 204
        assert [(each.path, each.client) for each in site.observed()] == [(path, "10.12.0.13")]


@for_each("path", [ENTRY, DATA, "boot/boot.ipxe", "boot/nothing"])
def test_only_reports_may_be_posted(site: Site, client: httpx.Client, path: str) -> None:
    found = client.post(path.removeprefix("boot"), content=b"x")
    assert (found.status_code, found.content) == (405, b"")
    assert site.observed() == []


def test_a_failure_is_posted_with_the_last_lines_of_a_log(site: Site, client: httpx.Client) -> None:
    log = b"".join(b"line %d\n" % number for number in range(10_000)) + b"no \x1b[31mdisk\tfound \xff\n"
    assert client.post(FAILED.removeprefix("boot"), content=log).status_code == 204
    (observed,) = site.observed()
    assert (observed.reports_failure, observed.reports_success, observed.digest, observed.server) == (
        True,
        False,
        TOKEN,
        "web01",
    )
    assert observed.log is not None
    lines = observed.log.splitlines()
    assert (len(lines), lines[-2], lines[-1]) == (20, "line 9999", "no \\u001b[31mdisk found \ufffd")


def test_a_log_in_chunks_is_one_log_and_a_failure_may_be_reported_by_get(site: Site, client: httpx.Client) -> None:
    assert client.post(FAILED.removeprefix("boot"), content=iter([b"one\n", b"two\n"])).status_code == 204
    assert client.get(FAILED.removeprefix("boot")).status_code == 204
    assert [(observed.reports_failure, observed.log) for observed in site.observed()] == [
        (True, "one\ntwo"),
        (True, None),
    ]


def test_a_log_without_an_end_is_not_read_to_its_end(site: Site, client: httpx.Client) -> None:
    with suppress(httpx.TransportError):  # the client may not read it, because it still sends
        assert client.post(FAILED.removeprefix("boot"), content=b"x" * 1_200_000).status_code == 413
    assert site.observed() == []


@for_each("sizes", [(1_200_000,), (1_000_000, 200_000), (600_000, 600_000, 1)])
def test_a_log_is_too_large_in_any_number_of_chunks(sizes: tuple[int, ...]) -> None:
    pieces = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]
    pieces[-1]["more_body"] = False

    async def receive() -> Message:
        return pieces.pop(0)

    assert asyncio.run(RequestBodies().read(receive, None, 1024 * 1024, lambda _: None)) is TOO_LARGE


@pytest.mark.parametrize(
    ("giver", "records"),
    [
        pytest.param(None, False, id="the endpoint has no fetch log"),
        pytest.param("0" * 32, True, id="the tree's instance reads another fetch log"),
    ],
)
def test_a_report_that_no_instance_will_read_gets_a_503(giver: str | None, records: bool) -> None:
    with new_site(None) as site:
        site.publish(Fleet(servers={"web01": state(make_decisions())}, shared={}), giver=giver)
        with site.serve(records=records) as url:
            for path in (ASKED, FAILED.removeprefix("boot")):
                for answer in (http_peers.post(url + path, content=b"x"), http_peers.get(url + path)):
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                assert http_peers.head(url + path).status_code == 204, "HEAD reports nothing"
        assert site.observed() == []


def test_a_report_gets_a_503_until_a_tree_is_published() -> None:
    with new_site(None) as site, site.serve() as url:
        assert http_peers.post(url + ASKED).status_code == 503
