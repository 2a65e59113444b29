"""Unknown machines: from a request at an endpoint or a mirror to the API and `gitboot unknown-machines`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.controller.reconcile_inputs import UnknownMachineFile
from gitboot.endpoint.app import ClientRules
from gitboot.fetchlog.unknown_machines import (
    UnknownMachine,
    UnknownMachineRecorder,
    UnknownMachines,
    build_from_inventory,
    load_unknown_machines,
)
from gitboot.model.scalars import SystemUuid, parse_mac
from gitboot.publish.manifest import UNKNOWN
from gitboot.publish.publisher import OutputDirectory
from tests.fetchlog.test_access_logs import NGINX
from tests.fetchlog.test_unknown_machines import SENT
from tests.helpers import http_peers
from tests.helpers.endpoints import ALWAYS, BEFORE, ENTRY, LOADER, MAC, REPAIR, UUID, Site, plan_fleet
from tests.helpers.endpoints import site as new_site
from tests.helpers.fleets import make_mac, make_uuid
from tests.helpers.forked_commands import run_forked
from tests.helpers.instance_with_bmcs import run_command

STRANGER = "/v1/boot/52-54-00-99-99-99/boot.ipxe"
OTHER = make_uuid("stranger")
_MACHINE = UnknownMachine(client="10.0.0.7", path="", first=BEFORE, last=BEFORE)


@pytest.fixture
def site() -> Iterator[Site]:
    with new_site(plan_fleet(*ALWAYS, REPAIR)) as made:
        yield made


def request_paths(site: Site, *paths: str, headers: dict[str, str] = LOADER, method: str = "GET") -> list[int]:
    """Return the status codes of requests by a client; the endpoint records them in the fetch log."""
    asked = UnknownMachineRecorder(site.spool)
    with site.serve(unknown_recorder=asked) as url, http_peers.Client(base_url=url, headers=headers) as client:
        codes = [client.request(method, path).status_code for path in paths]
    asked.write_file()
    return codes


def store_unknown(site: Site, applied: str = "c0ffee") -> tuple[tuple[UnknownMachine, ...], list[str]]:
    """Return the unknown machines that the instance stores, and its events."""
    state = site.root.parent / "state"
    state.mkdir(exist_ok=True)
    kept = UnknownMachineFile(state, site.spool, site.root, lambda: site.now)
    found = kept.update(applied, BEFORE)
    if found is None:
        return load_unknown_machines(state).machines, []
    with OutputDirectory.open(site.root, ledger="test") as directory:
        directory.write_status(found[0], BEFORE, UNKNOWN)
    return load_unknown_machines(state).machines, [event.message for event in found[1]]


def test_an_unknown_machine_is_stored_once_and_reported_once(site: Site) -> None:
    query = f"?uuid={OTHER}&serial=4J8VM72"
    assert request_paths(site, STRANGER + query, f"/ipxe/{OTHER}{query}", ENTRY) == [404, 404, 200]
    [one], told = store_unknown(site)
    assert (one.macs, one.uuid, one.serial) == (("52-54-00-99-99-99",), OTHER, "4J8VM72")
    assert (one.times, one.client, one.server) == (2, "127.0.0.1", None)
    assert len(told) == 1 and "52-54-00-99-99-99" in told[0]
    assert request_paths(site, STRANGER) == [404]
    [again], told = store_unknown(site)
    assert (again.times, told) == (3, [])


@pytest.mark.parametrize(
    ("headers", "method"),
    [({"user-agent": "curl/8.5"}, "GET"), (LOADER, "HEAD")],
    ids=["a person with curl", "a HEAD request"],
)
def test_a_client_that_is_no_boot_loader_or_sends_head_is_not_an_unknown_machine(
    site: Site, headers: dict[str, str], method: str
) -> None:
    assert request_paths(site, STRANGER, headers=headers, method=method) == [404]
    assert store_unknown(site) == ((), [])


def test_another_nic_of_a_known_machine_is_no_unknown_machine(site: Site) -> None:
    assert request_paths(site, f"{STRANGER}?uuid={UUID}") == [404]
    assert store_unknown(site) == ((), [])


def test_a_uuid_other_than_the_one_in_the_document_is_shown_with_the_server(site: Site) -> None:
    assert request_paths(site, f"/ipxe/{OTHER}", STRANGER) == [404, 404]
    request_paths(site, f"/v1/boot/{MAC}/nothing")
    asked = UnknownMachineRecorder(site.spool)
    asked.add(structs.replace(_MACHINE, macs=(parse_mac(MAC),), uuid=SystemUuid(OTHER)))
    asked.write_file()
    found, _ = store_unknown(site)
    assert {each.server for each in found} == {None, "web01"}


def test_a_document_for_an_unknown_machine_removes_it_from_the_list(site: Site) -> None:
    asked = UnknownMachineRecorder(site.spool)
    request_paths(site, STRANGER)
    asked.add(structs.replace(_MACHINE, macs=(parse_mac(MAC),)))
    asked.write_file()
    assert [each.macs for each in store_unknown(site)[0]] == [("52-54-00-99-99-99",)]
    described = [each.replace(make_mac("web01"), "52:54:00:99:99:99") for each in ALWAYS]
    site.publish(plan_fleet(*described, REPAIR), commit="c0ffe2")
    assert store_unknown(site, "c0ffe2")[0] == ()


def test_a_fetch_log_that_was_read_but_not_stored_is_read_again(site: Site) -> None:
    request_paths(site, STRANGER)
    state = site.root.parent / "state"
    kept = UnknownMachineFile(state, site.spool, site.root, lambda: site.now)
    assert kept.update("c0ffee", BEFORE) is None, "there is no folder to write to"
    assert [each.times for each in store_unknown(site)[0]] == [1]


def test_the_log_of_a_mirror_shows_the_same_unknown_machines(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = {**NGINX, "path": STRANGER, "status": 404, "modified": "", "query": f"uuid={OTHER}&serial=4J8VM72"}
    log.write_text(json.dumps(line) + "\n" + json.dumps({**line, "path": "/favicon.ico"}) + "\n")
    done = run_forked("read-access-logs", log, "--spool", site.spool, "-o", "json")
    assert json.loads(done.stdout) == {
        "apiVersion": "gitboot.dev/v1alpha1",
        "backwards": 0,
        "ignored": {"of another path": 1},
        "observed": 0,
        "read": 2,
        "unclear": 0,
        "unknown": 1,
    }
    [one], _ = store_unknown(site)
    assert (one.macs, one.uuid, one.serial, one.client) == (("52-54-00-99-99-99",), OTHER, "4J8VM72", "10.12.0.13")


def test_the_api_and_the_metrics_show_unknown_machines(site: Site) -> None:
    asked = UnknownMachineRecorder(site.spool)
    with site.serve(unknown_recorder=asked) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        assert client.get("/api/v1/seen").json()["items"] == []
        client.get(STRANGER)
        asked.write_file()
        store_unknown(site)
        [item] = client.get("/api/v1/seen").json()["items"]
        page = client.get("/metrics").text
    assert item["macs"] == ["52-54-00-99-99-99"]
    assert "gitboot_unknown_machine_requests_total 1.0\n" in page
    assert "gitboot_unknown_machines 1.0\n" in page
    assert "99-99" not in page, "no metric has a machine for a label"


def test_the_command_shows_and_deletes_unknown_machines(site: Site, tmp_path: Path) -> None:
    state = site.root.parent / "state"
    assert run_command("unknown-machines", "--state", state).code != 0, "no instance has run there"
    request_paths(site, f"{STRANGER}?uuid={OTHER}&serial=4J8VM72")
    store_unknown(site)
    (state / "ledger.sqlite").touch()
    shown = run_command("unknown-machines", "--state", state)
    assert "52:54:00:99:99:99" in shown.out and "SERVER" not in shown.out
    assert f" {BEFORE:%Y-%m-%d} " in shown.out and "    gitboot new server NAME --seen MAC" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100
    assert run_command("unknown-machines", "--state", state, "-o", "json").json["items"][0]["times"] == 1
    asked = UnknownMachineRecorder(site.spool)
    asked.add(build_from_inventory(SENT, "v1/inventory", "127.0.0.1", BEFORE))
    asked.write_file()
    told = store_unknown(site)[1]
    shown = run_command("unknown-machines", "--state", state)
    assert "    Dell Inc. PowerEdge R650, x86_64 UEFI, 64 CPUs" in shown.out and "nvme0n1" not in "".join(told)
    (item,) = run_command("unknown-machines", "--state", state, "-o", "json").json["items"]
    assert item["inventory"]["memoryMiB"] == 262144
    assert "every machine" in run_command("unknown-machines", "--state", state, "--forget").out
    assert load_unknown_machines(state).machines == UnknownMachines().machines
    assert ClientRules().unknown_recorder.requests == 0
