"""Boot gate: a one-time boot is served once, to the machine, by one endpoint, and only if the fetch is recorded."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.cli.main import cli
from gitboot.endpoint import recorder
from gitboot.endpoint.boot_gate import DenialLog, GateDenial, _is_own_address, open_denial_reports
from gitboot.endpoint.boot_responses import BootResponses
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.recorder import SpoolRecorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import PublishError
from gitboot.fetchlog.log_entries import DenialReason, Observation, Outcome, read_reports, select_consuming_fetches
from gitboot.fetchlog.spool import Spool, count_deletions_after, delete_finished_files, read_new_lines
from gitboot.files import write_atomically
from gitboot.jsonio import Digest, format_instant
from gitboot.model.scalars import SystemUuid, byte_orders
from gitboot.problems import Code
from gitboot.publish.manifest import MANIFEST, SHARED, STATUS
from gitboot.render import endpoint_files
from gitboot.render.endpoint_files import TERMS, ServingTerms, shard_path, state_path
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import InstallAttempt, Record, StepEvidence
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from gitboot.system_clock import ClockState, Uptime
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import (
    ADDRESS,
    ALWAYS,
    BEFORE,
    BY_UUID,
    ENTRY,
    GRUB,
    IPXE,
    LOADER,
    LOOKUPS,
    MAC,
    ONCE,
    PROXY,
    SEED,
    START,
    TEMPLATES,
    UUID,
    Fleet,
    Site,
    get,
    plan_fleet,
    site,
)
from tests.helpers.fleets import fleet as fleet_document
from tests.helpers.fleets import image, maintenance, policy, profile, repository, server
from tests.helpers.running_instance import Repository, eventually, running

ROOT = Path(__file__).parents[2]
NETWORK_BOOT = "(Network)"
DISK = "boots its local disk"
FLEET = plan_fleet(*ONCE)
DATA = next(f"/{path}" for path in FLEET.boot_files if "/data/" in path).replace("//", "/")
ELSEWHERE = {"x-forwarded-for": "10.12.0.99"}  # an address from which an unknown client counts


@pytest.fixture
def here() -> Iterator[Site]:
    with site(FLEET) as made:
        yield made


@pytest.fixture
def url(here: Site) -> Iterator[str]:
    with here.serve() as found:
        yield found


# Served once


def test_e2_without_an_instance_a_served_boot_is_replaced_by_the_disk_after_a_minute(here: Site) -> None:
    with here.serve() as url:
        for seconds, expected in ((0, NETWORK_BOOT), (59, NETWORK_BOOT), (60, DISK), (86400, DISK)):
            here.now = BEFORE + timedelta(seconds=seconds)
            assert all(expected in get(url + path).text for path in LOOKUPS), seconds
        text = get(url + ENTRY).text
    assert text.startswith("#!ipxe\n# gitboot withheld the boot of web01: served at 2")
    assert text.splitlines()[2] == "# Print the boot with: gitboot boot-script web01 --tree OUTPUT"


@pytest.mark.parametrize("closing", [DATA, f"/ignition/{UUID}"])
def test_a_fetch_by_the_installed_system_ends_the_offer_of_its_boot(closing: str, url: str) -> None:
    """A path with a token consumes the boot. A document that every client can fetch by a UUID does not."""
    assert NETWORK_BOOT in get(url + ENTRY).text
    assert get(url + closing, headers={"user-agent": "Ignition/2.15"}).status_code == 200
    assert (DISK if closing == DATA else NETWORK_BOOT) in get(url + GRUB).text


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_is_set_back_serves_no_boot_for_another_minute(here: Site, is_restarted: bool) -> None:
    """E4: by the corrected clock, the first fetch was five seconds ago. The kernel's uptime shows that it was not."""
    here.ahead = timedelta(minutes=3)
    here.now = BEFORE + here.ahead
    with ExitStack() as endpoints:
        url = endpoints.enter_context(here.serve())
        assert NETWORK_BOOT in get(url + ENTRY).text
        here.now, here.ahead = here.now + timedelta(seconds=5), timedelta(0)
        if is_restarted:
            endpoints.close()
            url = endpoints.enter_context(here.serve())
        assert DISK in get(url + ENTRY).text
        here.now = BEFORE - timedelta(hours=2)
        assert DISK in get(url + ENTRY).text


def test_data_that_is_fetched_after_the_clock_was_set_back_ends_the_offer_of_its_boot(here: Site) -> None:
    here.ahead = timedelta(seconds=20)
    here.now = BEFORE + here.ahead
    with here.serve() as url:
        assert NETWORK_BOOT in get(url + ENTRY).text
        here.now, here.ahead = BEFORE + timedelta(seconds=10), timedelta(0)
        assert get(url + DATA, headers={"user-agent": "Ignition/2.15"}).status_code == 200
        here.now += timedelta(seconds=15)
        assert DISK in get(url + ENTRY).text


def test_e31_a_restarted_endpoint_knows_served_boots_until_the_output_tree_has_them(here: Site) -> None:
    with here.serve() as url:
        assert NETWORK_BOOT in get(url + ENTRY).text
    read_new_lines(here.spool, {})  # the instance has read the fetch, but could not publish
    here.now += timedelta(minutes=2)
    with here.serve() as url:
        assert DISK in get(url + ENTRY).text


QUIET = plan_fleet(*SEED, policy("web", "{matchLabels: {role: web}}", "kernelArguments: [quiet]", often="Once"))


@pytest.mark.parametrize(
    ("minutes", "fleet", "expected"),
    [
        pytest.param(0, QUIET, "quiet", id="a second NIC, within the minute"),
        pytest.param(2, QUIET, "(AlreadyServed)", id="another argument"),
        pytest.param(
            *(2, plan_fleet(SEED[0], SEED[1].replace("name: web01", "name: shop01"), *ONCE[2:])),
            *("shop01 boots its local disk",),
            id="a new name",
        ),
        pytest.param(
            *(2, plan_fleet(ONCE[0], server("web01", "role: web", "provision: 2"), *ONCE[2:]), NETWORK_BOOT),
            id="a higher number",
        ),
        pytest.param(
            2, plan_fleet(*ONCE, records={"web01": Record(offered=2)}), NETWORK_BOOT, id="an operator sets it pending"
        ),
    ],
)
def test_e31_only_a_new_number_or_an_operator_makes_another_boot_of_a_served_one(
    here: Site, minutes: int, fleet: Fleet, expected: str, url: str
) -> None:
    """The boot is fetched between the time when the instance reads the fetch log and its publication."""
    assert NETWORK_BOOT in get(url + ENTRY).text
    here.now += timedelta(minutes=minutes)
    assert (NETWORK_BOOT if minutes == 0 else DISK) in get(url + ENTRY).text
    here.publish(fleet, commit="2")
    assert expected in get(url + ENTRY).text


def test_several_workers_share_the_served_boots(here: Site) -> None:
    with here.serve() as one, here.serve() as other:
        assert NETWORK_BOOT in get(one + ENTRY).text
        assert NETWORK_BOOT in get(other + BY_UUID).text
        here.now += timedelta(minutes=1)
        assert DISK in get(other + ENTRY).text


@pytest.mark.parametrize("report", ["provisioned", "failed", None])
def test_an_installer_that_has_reported_gets_no_further_boot(here: Site, report: str | None) -> None:
    """The installer boots several times and reports its end, but the instance has read only the first boot."""
    several = image("flatcar-1", "userData: Ignition/3.4, boots: 2", "kernel, initrd, loader")
    reported = fleet_document("baseURL: 'http://boot.test', provisioning: {evidence: Reported}")
    fleet = (reported, ONCE[1], *(several if "name: flatcar-1" in each else each for each in ONCE[2:]))
    first = StepEvidence(BEFORE - timedelta(minutes=5), ENTRY.removeprefix("/"), ADDRESS)
    begun = Record(attempts=(InstallAttempt(key="provision/0", boots=(first,)),))
    published = plan_fleet(*fleet, records={"web01": begun})
    here.publish(published, commit="2")
    token = published.servers["web01"].decision.token
    with here.serve() as url:
        if report is not None:
            said = f"{ENTRY.rpartition('/')[0]}/{report}/{token}"
            asked = http_peers.request("POST" if report == "failed" else "GET", url + said, headers=LOADER)
            assert asked.status_code in (200, 204)
        text = get(url + ENTRY).text
    assert (NETWORK_BOOT in text) is (report is None)
    assert ("# gitboot withheld the boot of web01: the installer sent its report at 2" in text) is (report is not None)


def test_e3_while_the_ledger_cannot_be_written_no_boot_is_served_twice(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    documents = (ONCE[0], server("web01", "role: web", "provision: 1"), *ONCE[2:])
    repository.push({"fleet.yaml": "---\n".join(documents), "t": TEMPLATES["t"]})
    with running(repository.bare, tmp_path, records="fresh") as instance:
        eventually(lambda: instance.status()["records"] == {"Pending": 1})
        lock = sqlite3.connect(tmp_path / "state" / "ledger.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        first = instance.get(ENTRY).text
        assert NETWORK_BOOT in first
        data = re.findall(r"http://boot\.test(/v1/boot/\S+/data/\S+)", first)[0]
        assert instance.get(data).status_code == 200
        for _ in range(3):
            assert "(AlreadyServed)" in instance.get(ENTRY).text
        lock.execute("ROLLBACK")
        lock.close()
        eventually(lambda: instance.status()["records"] == {"Provisioned": 1})


def test_e1_a_killed_endpoint_serves_no_boot_twice(tmp_path: Path) -> None:
    with site(plan_fleet(*ONCE, now=datetime.now(UTC))) as here:
        arguments = ("--spool", str(here.spool))
        for expected in (NETWORK_BOOT, DISK, DISK):
            with served(here.root, *arguments) as (url, process):
                assert expected in get(url + ENTRY).text
                if expected == NETWORK_BOOT:  # the installer's report before the machine boots again
                    assert get(url + DATA).status_code == 200
                process.send_signal(signal.SIGKILL)
        recorded = select_consuming_fetches(
            read_new_lines(here.spool, {}).observations
        )  # an intent whose outcome was lost uses it up, too
        assert sorted(each.path for each in recorded) == [f"boot{ENTRY}", f"boot{DATA}"]


# Endpoints that can or cannot record


def test_an_endpoint_is_ready_if_no_other_can_serve_more(here: Site) -> None:
    """A load balancer uses ready endpoints. If no endpoint can serve one-time boots, all of them are ready."""
    with here.serve(records=False) as url:
        assert http_peers.get(f"{url}/readyz").status_code == 503
        assert "has no spool" in http_peers.get(f"{url}/readyz").text
        here.publish(plan_fleet(NAMED, *ONCE[1:]), commit="2")
        assert http_peers.get(f"{url}/readyz").status_code == 200, "it sends on"
        (here.root / TERMS).write_bytes(endpoint_files.render_terms(ServingTerms(fetch_log_id=None))[TERMS].content)
        assert http_peers.get(f"{url}/readyz").status_code == 200, "nobody gives anything"
        working = {"conditions": [], "progress": {"message": "planning: 1 of 2 servers (2 of 3)"}}
        (here.root / STATUS).write_text(json.dumps(working))
        assert http_peers.get(f"{url}/readyz").text == "ready\nplanning: 1 of 2 servers (2 of 3)\n"
    with here.serve() as url:
        assert http_peers.get(f"{url}/readyz").status_code == 200
        (here.root / TERMS).write_bytes(
            endpoint_files.render_terms(ServingTerms(fetch_log_id="f" * 32, forwards_machines=True))[TERMS].content
        )
        assert "does not belong to this endpoint's spool" in http_peers.get(f"{url}/readyz").text
        here.publish(commit="3")
        assert http_peers.get(f"{url}/readyz").status_code == 200


def test_an_endpoint_that_cannot_record_is_not_ready_until_it_can(here: Site, url: str) -> None:
    assert http_peers.get(f"{url}/readyz").text == "ready\n"
    assert "gitboot_fetch_log_writable 1.0" in http_peers.get(f"{url}/metrics").text
    (away := here.spool.with_name("away")).mkdir()
    here.spool.rename(away / "spool")
    assert "(NotRecorded)" in get(url + ENTRY).text
    found = http_peers.get(f"{url}/readyz")
    assert found.status_code == 503
    assert f"because it cannot record fetches: {here.spool} cannot be written: No such file" in found.text
    assert {"gitboot_fetch_log_writable 0.0", "gitboot_ready 0.0"} <= set(
        http_peers.get(f"{url}/metrics").text.splitlines()
    )
    (away / "spool").rename(here.spool)
    eventually(lambda: http_peers.get(f"{url}/readyz").status_code == 200)
    assert NETWORK_BOOT in get(url + ENTRY).text


def test_a_fetch_that_cannot_be_recorded_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def record() -> bool:
        stands = await recording.record(fetched)
        gc.collect()
        await asyncio.sleep(0)
        return stands

    fetched = Observation(server="web01", path="boot/x", digest=Digest("a" * 64), client="::1", at=BEFORE)
    with closing(Spool(tmp_path / "missing")) as spool:
        recording = SpoolRecorder(spool, 20)
        assert not asyncio.run(record())
        assert recording.failure is not None
    gc.collect()
    assert [each.name for each in caplog.records] == ["gitboot.endpoint.recorder"]


def test_an_endpoint_with_a_full_disk_finds_out_by_itself_and_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_TRIAL_INTERVAL_S", 0)
    with small_disk(tmp_path) as disk, site(None) as here:
        here.spool = disk / "spool"
        here.spool.mkdir()
        here.publish(FLEET)
        with here.serve() as url:
            eventually(lambda: http_peers.get(f"{url}/readyz").status_code == 200)
            fill(filler := disk / "filler")
            eventually(lambda: "No space left" in http_peers.get(f"{url}/readyz").text)
            assert DISK in get(url + ENTRY).text
            filler.unlink()
            eventually(lambda: http_peers.get(f"{url}/readyz").status_code == 200)
            assert NETWORK_BOOT in get(url + ENTRY).text


# Which endpoint serves


def test_e30_an_endpoint_with_another_fetch_log_serves_no_one_time_boot(here: Site, tmp_path: Path) -> None:
    with site(FLEET) as other, other.serve() as url:
        (other.root / TERMS).write_bytes((here.root / TERMS).read_bytes())  # a copy of the tree
        text = get(url + ENTRY).text
        assert DISK in text
        assert "only an endpoint that uses the spool of the instance can serve this boot" in text
        assert other.observed() == []


def test_e38_with_an_older_copy_of_the_tree_no_boot_is_served_after_the_fetch_log_has_forgotten_it(
    here: Site, tmp_path: Path
) -> None:
    shutil.copytree(here.root, tmp_path / "backup", symlinks=True)
    with here.serve() as url:
        assert NETWORK_BOOT in get(url + ENTRY).text
    offsets = read_new_lines(here.spool, {}).offsets
    here.publish(
        plan_fleet(*ONCE, records={"web01": Record(provision=1, image="flatcar-1")}), commit="2", taken=offsets
    )
    delete_finished_files(here.spool, offsets, count_deletions_after(here.spool, offsets))
    shutil.rmtree(here.root)
    shutil.move(tmp_path / "backup", here.root)
    with here.serve() as url:
        text = get(url + ENTRY).text
        assert DISK in text
        assert "(OlderTree)" in text
        assert "older than the last deletion in the spool" in http_peers.get(f"{url}/readyz").text
        here.publish(FLEET, commit="3")  # the same plan, in a newer tree
        assert NETWORK_BOOT in get(url + ENTRY).text


def test_a_lost_fetch_log_is_replaced_by_a_new_one_and_until_then_nothing_is_recorded(here: Site, url: str) -> None:
    assert NETWORK_BOOT in get(url + ENTRY).text
    here.observed()
    shutil.rmtree(here.spool)
    assert "(NotRecorded)" in get(url + ENTRY).text
    here.spool.mkdir()
    assert "(AnotherFetchLog)" in get(url + ENTRY).text, "the tree names the one that was lost"
    here.publish(FLEET, commit="2")
    assert NETWORK_BOOT in get(url + ENTRY).text
    assert [each.path for each in here.observed()] == [f"boot{ENTRY}"]


def test_e35_without_valid_terms_no_one_time_boot_is_served(here: Site) -> None:
    facts = json.loads((here.root / TERMS).read_bytes())
    for damaged in (json.dumps({**facts, "giver": None}), json.dumps({**facts, "format": 9}), "", None):
        (here.root / TERMS).unlink()
        if damaged is not None:
            (here.root / TERMS).write_text(damaged)
        with here.serve() as url:
            assert DISK in get(url + ENTRY).text
        (here.root / TERMS).touch()


def test_e35_with_a_state_of_another_format_no_boot_is_served(here: Site) -> None:
    path = here.root / state_path("web01")
    path.write_text(path.read_text().replace('"format":2', '"format":3'))
    with here.serve() as url:
        assert {get(url + path).status_code for path in LOOKUPS} == {500}


# Fetches that cannot be recorded

NAMED = fleet_document(
    "endpoint: 'http://gives.test:8080', outputs: [ipxe, grub, pxelinux, uuid], baseURL: 'http://boot.test'"
)


def find_boot_scripts(fleet: Fleet) -> dict[str, str]:
    roles = {path for path, turns in fleet.servers["web01"].published.paths.items() if turns[0].role == "entry"}
    return {path: fleet.files[path].content.decode() for path in roles}


def test_e29_if_an_endpoint_is_named_no_file_contains_a_one_time_boot() -> None:
    fleet = plan_fleet(NAMED, *ONCE[1:])
    found = find_boot_scripts(fleet)
    assert len(found) == 8
    for path, text in found.items():
        assert "flatcar-1/kernel" not in text, path
        asked = f"http://gives.test:8080/{path.removeprefix('boot/')}" if "ipxe" in path else None
        if "pxelinux.cfg" in path:
            assert text.endswith(f"\ninclude http://gives.test:8080/asked/{path.removeprefix('boot/')}?hop=1\n")
            assert DISK in text
        elif asked is not None:
            assert (
                f"imgfetch --timeout 8000 --name answer {asked}?uuid=${{uuid}}&serial=${{serial:uristring}}&hop=1 "
                in text
            )
        else:
            assert f"(http,gives.test:8080)/{path.removeprefix('boot/')}?hop=1" in text
    assert fleet.servers["web01"].evidence_digests == {
        path: digest for path, digest in fleet.servers["web01"].evidence_digests.items() if path not in found
    }, "what only sends on proves nothing by being fetched from a mirror"


def test_an_endpoint_serves_what_pxelinux_requests_at_the_path_that_copies_have(here: Site) -> None:
    here.publish(plan_fleet(NAMED, *ONCE[1:]))
    path = f"/pxelinux.cfg/01-{MAC}"
    with here.serve() as url:
        assert "flatcar-1/kernel" in get(f"{url}/asked{path}?hop=1").text
    assert [each.path for each in here.observed()] == [f"boot{path}"]


def test_e29_without_a_named_endpoint_the_files_contain_the_boot_and_every_complete_200_counts() -> None:
    state = FLEET.servers["web01"]
    found = find_boot_scripts(FLEET)
    assert all("flatcar-1/kernel" in text for text in found.values())
    assert found.keys() <= state.evidence_digests.keys()


def test_a_site_may_name_its_own_endpoint() -> None:
    site = "sites: [{name: fra1, baseURL: 'http://fra1.test', endpoint: 'http://fra1.test:8080', select: All}]"
    found = find_boot_scripts(plan_fleet(NAMED.replace("baseURL:", f"{site}, baseURL:"), *ONCE[1:]))
    assert all("http://fra1.test:8080/" in text for path, text in found.items() if "boot.ipxe" in path)


def test_an_endpoint_without_a_fetch_log_redirects_once_to_the_one_that_serves(here: Site) -> None:
    here.publish(plan_fleet(NAMED, *ONCE[1:]))
    with here.serve() as gives, here.serve(records=False) as other:
        for path in LOOKUPS:
            assert "gives.test:8080" in get(other + path).text
            assert DISK in get(f"{other}{path}?hop=1").text, "nobody is sent in circles"
            assert NETWORK_BOOT in get(f"{gives}{path}?hop=1").text
        assert http_peers.get(f"{other}/api/v1/status").status_code == 200
        refused = http_peers.get(f"{other}/metrics").text
    assert 'gitboot_boots_withheld_total{reason="NotRecorded"} 3.0' in refused, "who is sent on is not refused"


# Direct boots by firmware

BMC = "bmc: {address: 'https://bmc.test', credentials: bmc}"


def make_direct_fleet(artifact: str, spec: str = "", config: str = "None", *, settings: str = SEED[0]) -> Fleet:
    """A server whose firmware boots an artifact once. DHCP names the artifact."""
    of_image = f"configFrom: {config}" + (", userData: Ignition/3.4" if config == "SystemUUID" else "")
    data = ", userData: {format: Ignition/3.4, template: t}" if config == "SystemUUID" else ""
    documents = (
        server("web01", "role: web", spec).replace('"}]', f'", addresses: [{ADDRESS}]}}]'),
        image("flatcar-1", of_image, artifact),
        profile("web", "flatcar-1", f"httpBoot: {artifact}{data}", method="UefiHttp"),
        policy("web", often="Once", spec="override: Once" if spec else "override: None"),
    )
    return plan_fleet(settings, *documents)


SYSTEM_UUID = make_direct_fleet("uki", config="SystemUUID")
NAMED_CLIENTS = "provisioning: {clients: [10.12.0.0/16], monitors: [10.12.9.0/24]}, baseURL: 'http://boot.test'"
DIRECT_FLEET = make_direct_fleet("uki", config="SystemUUID", settings=fleet_document(NAMED_CLIENTS))
WRITES_NO_DISK = plan_fleet(
    SEED[0],
    server("web01", "role: web"),
    image("live-1", "configFrom: SystemUUID, userData: Ignition/3.4, writesDisk: false", "uki"),
    profile("live", "live-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    policy("web", boots="live", often="Never"),
    maintenance("repair", "20T20:00 20T22:00", "networkBoot: Once, override: None", boots="live"),
)


def request_as_dhcp(url: str) -> list[int]:
    """Return the responses to a DHCP server on both of its paths."""
    by_address = get(f"{url}/httpboot", headers={"user-agent": "Go-http-client/1.1", "x-forwarded-for": ADDRESS})
    by_uuid = get(f"{url}/httpboot/{UUID}.json", headers={"user-agent": "Go-http-client/1.1"})
    return [by_address.status_code, by_uuid.status_code]


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        pytest.param(make_direct_fleet("uki"), 404, id="no later fetch would show that it was booted"),
        pytest.param(make_direct_fleet("iso", BMC), 200, id="a BMC shows it"),
        pytest.param(SYSTEM_UUID, 200, id="its data shows it"),
    ],
)
def test_a_file_that_dhcp_names_is_served_if_a_later_fetch_can_end_its_offer(
    here: Site, fleet: Fleet, expected: int
) -> None:
    here.publish(fleet)
    with here.serve(trusted_proxies=PROXY) as url:
        for _ in range(3):
            assert request_as_dhcp(url) == [expected] * 2
        assert here.observed() == [], "it spends nothing"
    with here.serve(records=False, trusted_proxies=PROXY) as url:
        assert request_as_dhcp(url) == [404] * 2


def test_a_fetch_of_the_data_of_a_direct_boot_ends_its_offer(here: Site) -> None:
    here.publish(SYSTEM_UUID)
    with here.serve(trusted_proxies=PROXY) as url:
        assert request_as_dhcp(url) == [200, 200]
        assert get(f"{url}/ignition/{UUID}", headers={"user-agent": "Ignition/2.15"}).status_code == 200
        assert [each.path for each in here.observed()] == [f"boot/ignition/{UUID}"]
        assert request_as_dhcp(url) == [404, 404]
        here.now += timedelta(minutes=10)
        assert get(f"{url}/ignition/{UUID}", headers={"user-agent": "Ignition/2.15"}).status_code == 200


@pytest.mark.parametrize(
    ("agent", "client", "counts"),
    [
        pytest.param("curl/8.5.0", ADDRESS, True, id="a tool of the machine"),
        pytest.param("", ADDRESS, True, id="the machine, without a name"),
        pytest.param("a system", "10.12.0.99", True, id="a system with another address"),
        pytest.param("curl/8.5.0", "10.12.0.99", False, id="a person with a browser"),
        pytest.param("", "10.12.0.99", False, id="a monitor without a name"),
    ],
)
def test_after_a_served_boot_its_user_data_is_evidence_from_the_same_address_or_by_a_system(
    here: Site, agent: str, client: str, counts: bool
) -> None:
    here.publish(SYSTEM_UUID)
    with here.serve(trusted_proxies=PROXY) as url:
        assert NETWORK_BOOT in get(url + ENTRY, headers={**LOADER, "x-forwarded-for": ADDRESS}).text
        headers = {"user-agent": agent, "x-forwarded-for": client}
        assert get(f"{url}/ignition/{UUID}", headers=headers).status_code == 200
        found = here.observed()
        assert (NETWORK_BOOT in get(url + GRUB).text) is not counts, (
            "the data ends the minute in which the boot is repeated"
        )
    assert [(each.path, each.is_evidence) for each in found] == [
        (f"boot{ENTRY}", True),
        (f"boot/ignition/{UUID}", counts),
    ]


@pytest.mark.parametrize(
    ("fleet", "client", "agent", "counts"),
    [
        (SYSTEM_UUID, ADDRESS, "curl/8.5.0", False),
        (SYSTEM_UUID, ADDRESS, "Wget/1.21", False),
        (SYSTEM_UUID, ADDRESS, "Ignition/2.15.0", True),
        (SYSTEM_UUID, ADDRESS, "Go-http-client/1.1", True),  # Talos
        (SYSTEM_UUID, ADDRESS, "Cloud-Init/24.1", True),
        (SYSTEM_UUID, ADDRESS, "a system", False),  # or a monitor
        (SYSTEM_UUID, ADDRESS, "", False),
        *(
            (DIRECT_FLEET, client, agent, client == "10.12.0.13")
            for client in ("10.12.0.13", "10.12.9.1", "10.13.0.1")
            for agent in ("a system", "curl/8.5.0", "")
        ),
        (WRITES_NO_DISK, ADDRESS, "Ignition/2.15.0", True),
        (WRITES_NO_DISK, ADDRESS, "a system", True),
        (WRITES_NO_DISK, ADDRESS, "curl/8.5.0", False),
        (WRITES_NO_DISK, ADDRESS, "", False),
    ],
)
def test_finding_c6_user_data_by_uuid_is_evidence_by_a_system_or_by_a_client_that_the_fleet_names(
    here: Site, fleet: Fleet, client: str, agent: str, counts: bool
) -> None:
    """If the boot writes no disk, every user agent of a system is enough."""
    here.publish(fleet)
    with here.serve(trusted_proxies=PROXY) as url:
        for _ in range(2):
            headers = {"user-agent": agent, "x-forwarded-for": client}
            assert get(f"{url}/ignition/{UUID}", headers=headers).status_code == 200
    found = read_new_lines(here.spool, {}).observations
    assert [each.path for each in found if each.outcome is None] == [f"boot/ignition/{UUID}"] * 2
    assert (Outcome.SERVED in {each.outcome for each in found}) is counts
    assert fleet is not DIRECT_FLEET or {each.is_evidence for each in found} == {counts}


def test_the_data_of_a_direct_boot_gets_a_503_while_the_fetch_cannot_be_recorded(here: Site) -> None:
    here.publish(SYSTEM_UUID)
    with here.serve(records=False) as url:
        found = get(f"{url}/ignition/{UUID}", headers={"user-agent": "Ignition/2.15"})
    assert (found.status_code, found.headers["retry-after"], found.content) == (503, "5", b"#")


# Which client gets the boot


def test_e6_a_client_that_is_not_a_loader_gets_the_fallback_and_consumes_nothing(here: Site) -> None:
    with here.serve(trusted_proxies=PROXY) as url:
        for agent, from_elsewhere, counts in (
            ("curl/8.5.0", True, False),
            ("Wget/1.21", True, False),
            ("Mozilla/5.0 (X11; Linux x86_64)", True, False),
            ("Prometheus/2.50", True, False),
            ("my-loader 1", True, False),  # or a monitor
            ("", True, False),
            ("my-loader 1", False, False),
            ("", False, False),
            ("iPXE/1.0.0+", False, True),  # through a proxy without a client header
            ("GRUB 2.12", False, True),
            ("UefiHttpBoot/1.0", True, True),
            ("Syslinux/6.04", True, True),  # PXELINUX
        ):
            headers = {"user-agent": agent} | (ELSEWHERE if from_elsewhere else {})
            text = get(url + ENTRY, headers=headers).text
            assert (NETWORK_BOOT if counts else DISK) in text, agent
            assert (len(here.observed()), "(ClientNotCounted)" in text) == (counts, not counts), agent


def test_finding_m3_a_boot_is_served_to_clients_that_send_what_a_loader_sends(here: Site) -> None:
    with here.serve(trusted_proxies=PROXY) as url:
        for agent, query, counts in (
            ("my-loader 1", "", False),
            ("my-loader 1", f"?uuid={UUID}", False),  # a UUID alone, which a path may need
            ("curl/8.5.0", f"?uuid={UUID}&serial=ABC1234", False),
            ("my-loader 1", f"?uuid={UUID}&serial=ABC1234", True),  # the query of the first script
            ("", f"?uuid={UUID}&serial=ABC1234", True),
            ("my-loader 1", f"?uuid={UUID}&serial=", True),  # a machine without a serial number
        ):
            text = get(url + ENTRY + query, headers={"user-agent": agent, **ELSEWHERE}).text
            assert ((NETWORK_BOOT if counts else DISK) in text, len(here.observed())) == (True, counts), (agent, query)


CHECKS = [("gitboot-verify-mirror/0.2.0", ""), (IPXE, "?check=1"), ("gitboot/0.1.0", "")]


def test_finding_m3_a_check_consumes_nothing_even_if_all_clients_count(here: Site) -> None:
    here.publish(plan_fleet(CLIENTS, *ONCE[1:]))
    client, own = {"x-forwarded-for": "10.12.0.13"}, {"x-forwarded-for": "127.0.0.1"}
    with here.serve(trusted_proxies=PROXY) as url:
        for agent, query in CHECKS:
            headers = {"user-agent": agent, **client}
            for _ in range(6):  # five denials within an hour make a condition false
                assert DISK in get(url + ENTRY + query, headers=headers).text, agent
            assert get(f"{url}/v1/boot/52-54-00-00-00-99/boot.ipxe{query}", headers=headers).status_code == 404
            for path in (DATA, f"/ignition/{UUID}"):
                assert get(url + path + query, headers=headers).status_code == 200
            assert [each for each in here.observed() if each.is_evidence] == [], agent
        assert NETWORK_BOOT in get(url + ENTRY, headers={"user-agent": IPXE, **client}).text, "the machine is given it"
        metrics = http_peers.get(f"{url}/metrics", headers=own).text
    assert 'gitboot_boots_withheld_total{reason="ClientNotCounted"} 0.0' in metrics


CLIENTS = ONCE[0].replace("baseURL:", "provisioning: {clients: [10.12.0.0/16], monitors: [10.12.9.0/24]}, baseURL:")


def test_if_the_fleet_names_clients_only_they_count(here: Site) -> None:
    here.publish(plan_fleet(CLIENTS, *ONCE[1:]))
    with here.serve(trusted_proxies=PROXY) as url:
        for client in ("10.12.9.1", "10.13.0.1", "fd00:12::13", "10.12.0.13"):
            for agent in (IPXE, "curl/8.5.0"):
                text = get(url + ENTRY, headers={"user-agent": agent, "x-forwarded-for": client}).text
                assert (NETWORK_BOOT if client == "10.12.0.13" else DISK) in text, (client, agent)


@for_each(
    ("url", "clients", "is_told"),
    [
        ("http://[fd00::1]:8080", "10.12.0.0/16", True),
        ("http://[fd00::1]:8080", "10.12.0.0/16, 'fd00::/8'", False),
        ("http://[fd00::1]:8080", "", False),
        ("http://192.0.2.1", "10.12.0.0/16", False),
        ("http://boot.test", "10.12.0.0/16", False),
    ],
)
def test_ipv6_clients_that_would_not_count_are_a_warning(url: str, clients: str, is_told: bool) -> None:
    documents = fleet_document(f"baseURL: '{url}', provisioning: {{clients: [{clients}]}}")
    warnings = decide(repository(documents, *ONCE[1:], files=TEMPLATES)).warnings
    assert [each.code for each in warnings if each.code == Code.NO_IPV6_CLIENTS] == [Code.NO_IPV6_CLIENTS] * is_told


def test_addresses_of_this_host_are_detected() -> None:
    assert [_is_own_address(each) for each in ("127.0.0.9", "::1", "192.0.2.200", "10.99.99.99")] == [
        True,
        True,
        False,
        False,
    ]


def test_e25_another_machine_gets_the_fallback(here: Site, url: str) -> None:
    for query, given in (
        ("?uuid=4c4c4544-0034-4a10-8056-b9c04f4d3732", False),
        ("", True),
        ("?uuid=&serial=", True),  # an unset variable
        (f"?uuid={UUID}&serial=Other", True),
        (f"?uuid={UUID.upper()}", True),
        (f"?uuid={'0' * 8}-0000-0000-0000-{'0' * 12}&serial=None", True),  # placeholders
        ("?uuid=nonsense&serial=ABC1234", True),  # a serial number that the document lacks
    ):
        text = get(url + ENTRY + query).text
        assert ((NETWORK_BOOT if given else DISK) in text, len(here.observed())) == (True, given), query


@pytest.mark.parametrize("uuid", byte_orders(SystemUuid(UUID)))
def test_finding_p14_a_denial_shows_the_uuid_as_its_document_has_it(here: Site, url: str, uuid: str) -> None:
    here.publish(plan_fleet(*(each.replace(UUID, uuid) for each in ONCE)))
    text = get(f"{url}{ENTRY}?uuid=4c4c4544-0034-4a10-8056-b9c04f4d3732").text
    assert f"the client's uuid is 4c4c4544-0034-4a10-8056-b9c04f4d3732, not {uuid}" in text


# Next fetches


def test_e7_no_boot_with_missing_files_is_served(here: Site, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    with here.serve(assets=assets) as url:
        for name in ("kernel", "initrd"):
            text = get(url + ENTRY).text
            assert DISK in text
            assert re.search(r"assets/flatcar-1/\w+ is missing \(ArtifactMissing\)", text)
            assert here.observed() == []
            (assets / "flatcar-1").mkdir(parents=True, exist_ok=True)
            (assets / "flatcar-1" / name).touch()
        assert NETWORK_BOOT in get(url + ENTRY).text


def test_e7_a_file_whose_url_is_encoded_is_found(here: Site, tmp_path: Path) -> None:
    encoded = ONCE[2].replace("flatcar-1/kernel", "flatcar-1/a%20kernel?v=1")
    assert encoded != ONCE[2]
    here.publish(plan_fleet(*ONCE[:2], encoded, *ONCE[3:]), commit="2")
    folder = tmp_path / "assets" / "flatcar-1"
    folder.mkdir(parents=True)
    (folder / "initrd").touch()
    with here.serve(assets=tmp_path / "assets") as url:
        assert "assets/flatcar-1/a kernel is missing (ArtifactMissing)" in get(url + ENTRY).text
        (folder / "a kernel").touch()
        assert "assets/flatcar-1/a%20kernel?v=1" in get(url + ENTRY).text
        assert get(f"{url}/assets/flatcar-1/a%20kernel?v=1").status_code == 200


def test_e7_no_boot_with_truncated_files_is_served(here: Site, tmp_path: Path) -> None:
    sized = ONCE[2].replace('kernel", sha256:', 'kernel", size: 5, sha256:')
    assert sized != ONCE[2]
    here.publish(plan_fleet(*ONCE[:2], sized, *ONCE[3:]), commit="2")
    folder = tmp_path / "assets" / "flatcar-1"
    folder.mkdir(parents=True)
    (folder / "initrd").touch()  # the image states no size for it
    with here.serve(assets=tmp_path / "assets") as url:
        (folder / "kernel").write_text("ker")
        assert "assets/flatcar-1/kernel has 3 bytes, but the image states 5 (ArtifactMissing)" in get(url + ENTRY).text
        assert here.observed() == []
        (folder / "kernel").write_text("kerne")
        assert NETWORK_BOOT in get(url + ENTRY).text


# Headers


def test_e5_a_proxy_cannot_revalidate_a_boot_script(here: Site) -> None:
    for fleet in (FLEET, plan_fleet(*ALWAYS)):  # once, and at each boot
        here.publish(fleet)
        with here.serve() as url:
            for ask in ({}, {"if-none-match": "*"}, {"if-modified-since": "Fri, 20 Nov 2026 21:00:00 GMT"}):
                for method in ("GET", "HEAD"):
                    found = http_peers.request(method, url + ENTRY, headers=LOADER | ask)
                    assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
                    assert "etag" not in found.headers


@pytest.mark.parametrize("agent", [IPXE, "curl/8"])
def test_head_has_the_headers_of_what_the_same_client_would_get(here: Site, agent: str) -> None:
    with here.serve() as url:
        head = http_peers.head(url + ENTRY, headers={"user-agent": agent})
        assert here.observed() == []
        found = get(url + ENTRY, headers={"user-agent": agent})
    assert head.headers["content-length"] == str(len(found.content))


# Clocks


def say(here: Site, clock: datetime) -> None:
    here.say({**Status().facts(), "clock": format_instant(clock)})


@pytest.mark.parametrize("off", [timedelta(minutes=10), timedelta(minutes=-10), timedelta(seconds=31)])
def test_e32_an_endpoint_with_a_wrong_clock_serves_no_install_boot(here: Site, off: timedelta) -> None:
    for fleet in (FLEET, plan_fleet(*ALWAYS)):
        here.publish(fleet)
        here.now = BEFORE + off
        say(here, BEFORE - timedelta(minutes=1))
        with here.serve() as url:
            http_peers.get(f"{url}/api/v1/status")  # makes the endpoint refresh, as it does each second
            say(here, BEFORE)
            http_peers.get(f"{url}/api/v1/status")
            assert "(ClockOff)" in get(url + ENTRY).text
            assert http_peers.get(f"{url}/readyz").status_code == 503
            side = "ahead of" if off.total_seconds() > 0 else "behind"
            text = f"{abs(off.total_seconds()):.0f} s {side} the clock of the instance"
            assert text in http_peers.get(f"{url}/readyz").text
            assert f"gitboot_clock_offset_seconds {off.total_seconds()}" in http_peers.get(f"{url}/metrics").text
            here.now = BEFORE + timedelta(seconds=1)
            say(here, BEFORE + timedelta(seconds=2))
            http_peers.get(f"{url}/api/v1/status")
            assert NETWORK_BOOT in get(url + ENTRY).text
            assert http_peers.get(f"{url}/readyz").status_code == 200


def test_an_instance_that_has_stopped_writing_does_not_count_as_another_clock(here: Site) -> None:
    """The clock may be wrong, or the instance silent. After a while, or with a synchronized kernel, it is silent."""
    say(here, BEFORE - timedelta(hours=5))
    with here.serve() as url:
        assert "(ClockOff)" in get(url + ENTRY).text
        assert "ahead of the last time that the instance wrote" in http_peers.get(f"{url}/readyz").text
        here.now = BEFORE + timedelta(minutes=3)
        assert http_peers.get(f"{url}/readyz").status_code == 200
        assert NETWORK_BOOT in get(url + ENTRY).text
    here.publish(FLEET, commit="2")
    with here.serve(keeping=ClockState.SYNCHRONISED) as url:
        assert "not compared" not in get(url + ENTRY).text


def test_e32_with_a_fast_clock_at_its_start_an_endpoint_waits_until_the_instance_writes(here: Site) -> None:
    """The clock is two hours ahead from the first second on, and the instance is running."""
    here.now = BEFORE + timedelta(hours=2)
    say(here, BEFORE)
    with here.serve() as url:
        assert "(ClockOff)" in get(url + ENTRY).text
        say(here, BEFORE + timedelta(minutes=1))
        http_peers.get(f"{url}/api/v1/status")
        assert "7140 s ahead of the clock of the instance" in http_peers.get(f"{url}/readyz").text
        here.now += timedelta(hours=1)
        assert "(ClockOff)" in get(url + ENTRY).text, "however long that lasts"
        here.now = BEFORE + timedelta(minutes=2)
        say(here, here.now)
        http_peers.get(f"{url}/api/v1/status")
        assert NETWORK_BOOT in get(url + ENTRY).text


def test_e32_a_clock_that_is_behind_an_earlier_time_serves_no_install_boot(here: Site) -> None:
    """The instance is down, and the endpoint's host starts with its hardware clock."""
    here.publish(plan_fleet(*ONCE, maintenance("repair", "20T22:00 20T23:00")))
    here.now = START + timedelta(hours=2)
    with here.serve(keeps=True):
        pass
    here.now = START + timedelta(minutes=10)
    with here.serve(keeps=True) as url:
        assert "(ClockOff)" in get(url + ENTRY).text, "and no window that was left"
        assert "6600 s behind the clock of the instance" in http_peers.get(f"{url}/readyz").text
        for minute in (11, 12):
            here.now = START + timedelta(minutes=minute)
            say(here, here.now)
            http_peers.get(f"{url}/api/v1/status")
        assert "memtest-7" in get(url + ENTRY).text, "the instance says that it was wrong before"
    with here.serve(keeps=True) as url:
        assert http_peers.get(f"{url}/readyz").status_code == 200, "nor is that kept"


def test_a_clock_that_is_set_back_reopens_no_ended_window(here: Site) -> None:
    here.publish(plan_fleet(*SEED, policy("web"), maintenance("repair", "20T22:00 20T23:00")))
    seen = []
    with here.serve() as url:
        for hour in (0, 1, 0, 1, 3, 1, 0):
            here.now = START + timedelta(hours=hour, minutes=-30)
            seen.append(_get_boot(url))
    assert seen == ["web", "repair", "web", "repair", "web", "web", "web"]


def test_a_window_ends_in_time_at_an_endpoint_whose_clock_was_set_back_in_it(here: Site) -> None:
    """The instance is down. The kernel's uptime shows the time since the latest saved time."""
    here.publish(plan_fleet(*SEED, policy("web"), maintenance("repair", "20T20:00 20T23:00")))
    here.now = START + timedelta(minutes=50)
    with here.serve(keeps=True):
        pass
    here.ahead = timedelta(hours=-2)
    here.now = START + timedelta(minutes=58) + here.ahead
    seen = []
    with here.serve(keeps=True) as url:
        for minutes in (58, 59, 61, 90):
            here.now = START + timedelta(minutes=minutes) + here.ahead
            seen.append(_get_boot(url))
    assert seen == ["repair", "repair", "web", "web"]


@pytest.mark.parametrize("has_spool", [False, True], ids=["without a spool", "with a spool that takes no file"])
def test_an_ended_window_stays_closed_after_the_clock_was_set_back_if_the_time_could_not_be_saved(
    here: Site, has_spool: bool
) -> None:
    """No machine has asked since the end of the window, and the instance is down."""
    here.publish(plan_fleet(*SEED, policy("web"), maintenance("repair", "20T20:00 20T23:00")))
    folder = here.root.parent / "file"
    folder.touch()
    clock = CheckedClock(
        lambda: here.now,
        folder=folder if has_spool else None,
        uptime=lambda: Uptime("this", (here.now - here.ahead).timestamp()),
    )
    tree = PublishedTree(here.root, lambda: here.now, checked_clock=clock)
    responses, seen = BootResponses(tree), []
    for minutes, ahead in ((50, 0), (70, 0), (75, -60), (80, -60)):
        here.ahead = timedelta(minutes=ahead)
        here.now = START + timedelta(minutes=minutes) + here.ahead
        tree.refresh()  # as it does each second
        clock.save()
        if minutes != 70:
            found = responses.find(ENTRY, lambda: None, here.now)
            seen.append("repair" if found is not None and b"memtest-7" in bytes(found.reply.body) else "web")
    assert seen == ["repair", "web", "web"]


def _get_boot(url: str) -> str:
    return "repair" if "memtest-7" in get(url + ENTRY).text else "web"


@pytest.mark.parametrize("is_found_at", ["the start", "a later look"])
@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)])
def test_finding_c6_an_endpoint_whose_clock_is_an_hour_off_starts_no_maintenance(
    here: Site, off: timedelta, is_found_at: str
) -> None:
    """The window opens neither by this clock nor by the instance's clock, until the clock is corrected."""
    here.publish(plan_fleet(*SEED, policy("web"), maintenance("repair", "20T22:00 20T23:00")))
    true = START - timedelta(minutes=30)
    seen = []

    def look(url: str, minutes: int, off: timedelta) -> None:
        here.now, here.ahead = true + timedelta(minutes=minutes) + off, off
        say(here, true + timedelta(minutes=minutes))
        http_peers.get(f"{url}/api/v1/status")  # makes the endpoint refresh, as it does each second
        seen.append(_get_boot(url))

    say(here, true)
    here.now, here.ahead = (true + off, off) if is_found_at == "the start" else (true, timedelta())
    with here.serve() as url:
        if is_found_at == "a later look":
            look(url, 1, timedelta())
        for minutes in (2, 3, 29, 35, 45, 100):
            look(url, minutes, off)
        assert set(seen) == {"web"}
        here.publish(plan_fleet(*SEED, policy("web"), maintenance("again", "20T23:00 21T03:00")), commit="2")
        look(url, 110, timedelta())
        assert seen[-1] == "repair"


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)])
def test_finding_c6_a_served_maintenance_continues_to_its_end_and_not_into_the_next(here: Site, off: timedelta) -> None:
    windows = (maintenance("first", "20T20:00 20T21:30"), maintenance("second", "20T22:00 20T23:00"))
    here.publish(plan_fleet(*SEED, policy("web"), *windows))
    seen = []
    say(here, BEFORE)
    with here.serve() as url:
        seen.append(_get_boot(url))
        for minutes in (1, 2, 29, 31, 59, 61, 100):
            here.now, here.ahead = BEFORE + timedelta(minutes=minutes) + off, off
            say(here, BEFORE + timedelta(minutes=minutes))
            http_peers.get(f"{url}/api/v1/status")
            seen.append(_get_boot(url))
    assert seen == ["repair", "repair", "repair", "repair", "web", "web", "web", "web"]


def test_an_instance_that_has_stopped_writing_does_not_make_a_slow_clock_right(here: Site) -> None:
    here.now, here.ahead = BEFORE - timedelta(minutes=10), timedelta(minutes=-10)
    say(here, BEFORE)
    with here.serve() as url:
        for minutes in (1, 9, 11, 30):
            here.now = BEFORE + timedelta(minutes=minutes) + here.ahead
            http_peers.get(f"{url}/api/v1/status")  # makes the endpoint refresh, as it does each second
            assert " 600 s behind the clock of the instance" in http_peers.get(f"{url}/readyz").text
            assert "(ClockOff)" in get(url + ENTRY).text


# A status that is stale


def _conditions(url: str) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in http_peers.get(f"{url}/api/v1/status").json()["conditions"]}


def test_finding_c5_a_stale_status_is_a_false_condition_of_the_api_the_metrics_and_readyz(here: Site) -> None:
    """A new status ends the staleness, independent of its other content and of the clocks."""
    fine = Condition(type="SourceReady", status=True, reason="Fetched", message="", last_transition_time=BEFORE)
    written = {**Status(conditions=(fine,)).facts(), "clock": format_instant(BEFORE), "at": format_instant(BEFORE)}
    here.say(written)
    stale = 'gitboot_condition{status="false",type="StatusCurrent"} 1.0'
    with here.serve(keeping=ClockState.SYNCHRONISED) as url:
        for seconds, is_stale in ((0, False), (150, False), (151, True), (4000, True)):
            here.now = BEFORE + timedelta(seconds=seconds)
            status = http_peers.get(f"{url}/api/v1/status").json()
            assert status["ageSeconds"] == seconds
            assert ("StatusCurrent" in _conditions(url)) is is_stale
            assert (stale in http_peers.get(f"{url}/metrics").text) is is_stale
            ready = http_peers.get(f"{url}/readyz")
            assert (ready.status_code, "gitboot wrote this status" in ready.text) == (200, is_stale)
        found = _conditions(url)["StatusCurrent"]
        assert (found["status"], found["reason"]) == (False, "Stale") and found["remedy"]
        assert "1 hour ago, at 2026-11-20T21:00:00Z" in found["message"]
        here.say({**written, "clock": format_instant(here.now)})
        assert "StatusCurrent" not in _conditions(url)


def test_finding_c5_a_missing_status_is_as_old_as_the_last_one_that_was_read(here: Site) -> None:
    say(here, BEFORE)
    with here.serve(keeping=ClockState.SYNCHRONISED) as url:
        assert "StatusCurrent" not in _conditions(url)
        here.forget_status()
        here.now = BEFORE + timedelta(seconds=151)
        assert "at 2026-11-20T21:00:00Z" in _conditions(url)["StatusCurrent"]["message"]
        assert 'type="StatusCurrent"} 1.0' in http_peers.get(f"{url}/metrics").text
        assert http_peers.get(f"{url}/readyz").status_code == 200


def test_finding_c5_the_age_of_a_status_does_not_depend_on_the_clock(here: Site) -> None:
    say(here, BEFORE)
    here.now, here.ahead = BEFORE - timedelta(hours=2), timedelta(hours=-2)
    with here.serve() as url:
        assert "StatusCurrent" not in _conditions(url)
        here.now += timedelta(seconds=151)
        assert "StatusCurrent" in _conditions(url)


def test_an_output_tree_without_a_status_has_no_stale_one(here: Site, url: str) -> None:
    here.now += timedelta(hours=5)
    assert http_peers.get(f"{url}/api/v1/status").json()["ageSeconds"] is None
    assert "StatusCurrent" not in _conditions(url)


def test_an_endpoint_reads_the_newer_status_of_its_instance(here: Site, tmp_path: Path) -> None:
    """The state directory or the tree may be full. The status of another ledger does not count."""

    def left(at: datetime, ledger: str = "test") -> bytes:
        return json.dumps({**Status(ledger=ledger).facts(), "clock": format_instant(at)}).encode()

    mine, published = tmp_path / "status.json", here.root / STATUS
    minute = timedelta(minutes=1)
    tree = PublishedTree(here.root, lambda: here.now, status=mine, ledger="test")
    for in_state, in_tree, newest in (
        (left(BEFORE), left(BEFORE + minute), BEFORE + minute),
        (left(BEFORE + 2 * minute), left(BEFORE + minute), BEFORE + 2 * minute),
        (left(BEFORE), left(BEFORE + minute, "other"), BEFORE),
        (b"", left(BEFORE + minute), BEFORE + minute),
    ):
        write_atomically(mine, in_state)
        write_atomically(published, in_tree)
        assert tree.read_status()["clock"] == format_instant(newest)


@for_each("condition", [b"{}", b"1", b'{"type": "SourceReady"}', b'{"type": 1, "status": false, "reason": "Fetched"}'])
def test_a_malformed_condition_of_a_status_is_ignored(here: Site, condition: bytes) -> None:
    another = b'{"type": "LedgerNamed", "status": false, "reason": "AnotherLedger", "message": ""}'
    for conditions, can_serve in ((condition, True), (condition + b", " + another, False)):
        (here.root / STATUS).write_bytes(b'{"conditions": [' + conditions + b"]}")
        tree = PublishedTree(here.root, lambda: here.now)
        assert tree.can_serve is can_serve
        types = [each["type"] for each in tree.read_status()["conditions"]]
        assert types == [*([] if can_serve else ["LedgerNamed"]), "OutputTreeReadable"]


@pytest.mark.parametrize("path", [STATUS, MANIFEST, TERMS])
def test_a_file_of_a_tree_that_is_nested_too_deeply_does_not_end_the_endpoint(here: Site, path: str) -> None:
    tree = PublishedTree(here.root, lambda: here.now)
    (here.root / path).write_bytes(b"[" * 100_000)
    tree.refresh()
    assert (tree.can_serve, tree.terms.fetch_log_id is None) == (True, path == TERMS)


@pytest.mark.parametrize("path", [SHARED, state_path("web01"), shard_path(f"mac/{MAC}")])
def test_a_listing_that_is_nested_too_deeply_is_damaged(here: Site, path: str) -> None:
    tree = PublishedTree(here.root, lambda: here.now)
    assert tree.find_server(f"mac/{MAC}") is not None
    (here.root / path).write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match=r"nested too deeply|a server's state|an index shard"):
        (tree.read_shared_files(), tree.find_server(f"mac/{MAC}"))


@for_each("time", ["2026-11-20T21:01:00", "2026-11-20", "0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00", "x"])
def test_a_status_with_a_malformed_time_does_not_change_what_an_endpoint_serves(
    here: Site, tmp_path: Path, time: str
) -> None:
    published = here.root / STATUS
    say(here, BEFORE)
    mine = tmp_path / "status.json"
    tree = PublishedTree(here.root, lambda: here.now, status=mine)
    mine.write_text(json.dumps({**json.loads(published.read_bytes()), "clock": time}))
    assert tree.read_status()["clock"] == format_instant(BEFORE), "the malformed time is not the newer one"
    published.unlink()
    tree.refresh()
    assert (tree.can_serve, tree.clock.problem, tree.clock.instance_time) == (True, None, BEFORE)


@for_each("text", ["2026-11-20T21:00:00 1 this", "2026-11-20 1 this", "x y z", "9999-12-31T23:00:00-14:00"])
def test_a_saved_clock_with_a_malformed_time_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "clock").write_text(f"{text}\n")
    clock = CheckedClock(lambda: BEFORE, folder=tmp_path)
    assert (clock.latest_time, clock.problem) == (None, None)


@for_each("uptime", ["nan", "-1e300", "x"])
def test_a_saved_clock_with_a_malformed_uptime_is_still_a_time_that_has_passed(tmp_path: Path, uptime: str) -> None:
    (tmp_path / "clock").write_text(f"{format_instant(BEFORE)} {uptime} this\n")
    clock = CheckedClock(lambda: BEFORE, folder=tmp_path, uptime=lambda: Uptime("this", 100))
    assert (clock.latest_time, clock.problem) == (BEFORE, None)


@for_each("path", [STATUS, MANIFEST, "boot/o/extra/tools"])
def test_a_folder_with_the_name_of_a_file_is_not_kept_open(here: Site, path: str) -> None:
    (here.root / path).unlink(missing_ok=True)
    (here.root / path).mkdir(parents=True)
    tree = PublishedTree(here.root, lambda: here.now)
    responses, open_files = BootResponses(tree), len(os.listdir("/proc/self/fd"))
    tree.refresh()
    assert responses.find("/o/extra/tools", lambda: None, BEFORE) is None
    assert len(os.listdir("/proc/self/fd")) == open_files


# Reports of denials


def test_e6_no_page_tells_a_reader_to_fetch_a_boot_script() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "example-repo").rglob("*.md")]
    asked = re.compile(
        r"(?:curl|wget|GET)\b[^\n]*(?:/v1/boot/[^\s/]+/(?:boot\.ipxe|grub\.cfg)|/ipxe/[^\s/]|grub\.cfg-)"
    )
    assert len(pages) > 20
    assert [page.name for page in pages for _ in asked.findall(page.read_text())] == []


def test_printing_a_boot_script_does_not_consume_its_boot(here: Site) -> None:
    result = CliRunner().invoke(cli, ["boot-script", "web01", "--tree", str(here.root), "--at", format_instant(BEFORE)])
    assert result.exit_code == 0, result.output
    assert result.output.count("# served once, to the machine: ") == 2, "for iPXE and for GRUB"
    assert result.output.count(NETWORK_BOOT) == 2
    with here.serve() as url:
        assert get(url + ENTRY).text in result.output
    assert CliRunner().invoke(cli, ["boot-script", "web02", "--tree", str(here.root)]).exit_code != 0


@for_each("content", [b"", b"{", b"{}", b"\xe9"])
def test_a_damaged_state_of_a_server_is_an_error_with_the_path(here: Site, content: bytes) -> None:
    (here.root / "ops" / "servers" / "web01.json").write_bytes(content)
    with pytest.raises(PublishError, match=r"ops/servers/web01\.json: the file is damaged"):
        CliRunner().invoke(cli, ["boot-script", "web01", "--tree", str(here.root)], catch_exceptions=False)


def test_e7_a_withheld_boot_is_a_condition_of_the_instance(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    documents = (ONCE[0], server("web01", "role: web", "provision: 1"), *ONCE[2:])
    repository.push({"fleet.yaml": "---\n".join(documents), "t": TEMPLATES["t"]})
    assets = tmp_path / "assets"
    assets.mkdir()
    looks = ("--check-assets", "off", "--poll", "1")  # by itself it would not offer it
    with running(repository.bare, tmp_path, "--assets", str(assets), *looks, records="fresh") as instance:
        eventually(lambda: "(ArtifactMissing)" in instance.get(ENTRY).text)
        found = eventually(lambda: [each for each in instance.status()["conditions"] if each["type"] == "BootsServed"])
        assert instance.status()["records"] == {"Pending": 1}
    assert (found[0]["status"], found[0]["reason"]) == (False, "ArtifactMissing")
    assert "assets/flatcar-1/initrd is missing" in found[0]["message"]
    assert found[0]["remedy"].startswith("gitboot boot-script web01")


@pytest.mark.parametrize("giver", ["that of the spool", "none, as in a tree that was only rendered"])
def test_a_sole_for_claim_of_2fefe59_in_the_fetch_log_withholds_install_boots_with_the_reason(giver: str) -> None:
    with site(None) as made, made.serve() as url:
        made.publish(plan_fleet(*ONCE), giver=None if giver == "that of the spool" else "")
        (claim := made.spool / ".endpoints" / "sole").parent.mkdir(exist_ok=True)
        claim.write_text('{"forgotten":0,"giver":"01","site":"fra1"}')
        eventually(lambda: "one-time boots for fra1" in http_peers.get(url + "/readyz").text)
        text = get(url + ENTRY).text
        assert "boots its local disk" in text and "(Stopped)" in text and str(claim) in text
        assert made.observed() == []


def test_a_report_that_could_not_be_written_is_logged_once_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, denials, at = tmp_path / "spool", DenialLog(), datetime(2026, 11, 20, 12, tzinfo=UTC)
    denials.add("web01", GateDenial(DenialReason.STOPPED, "by root"), "10.0.0.7", at)
    with open_denial_reports(spool, denials) as report:
        report(at)
        report(at)
        assert [entry.message for entry in caplog.records] == [
            f"{spool}: the report of withheld boots cannot be written: No such file or directory"
        ]
        spool.mkdir()
        report(at)
        assert [denial.server for denial in read_reports(spool, at).denials] == ["web01"]
