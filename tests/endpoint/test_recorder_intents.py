"""What an endpoint answers and what its instance records agree, whatever is slow, full or killed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from gitboot.endpoint.app import _has_received
from gitboot.endpoint.connections import RECEIVED
from gitboot.fetchlog.log_entries import Outcome
from gitboot.fetchlog.spool import line_of, take
from gitboot.ledger.postgresql import connected
from gitboot.resolve.provisioning_record import Record
from tests.endpoint.test_server_workers import served
from tests.helpers import http_peers
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import ENTRY, LOOKUPS, ONCE, PROXY, TEMPLATES, Site, connect, get, planned, site
from tests.helpers.fleets import fleet, image, policy, profile, server, uuid_of
from tests.helpers.instance_in_process import Bench
from tests.helpers.postgresql import PostgresServer
from tests.helpers.running_instance import Repository, eventually, running
from tests.helpers.site_lives.processes import PassingLoop

SERVED, DISK = "(Network)", "boots its local disk"
FLEET = planned(*ONCE)
INSTALL = (ONCE[0], server("web01", "role: web", "provision: 1"), *ONCE[2:])
REPORTED = planned(fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"), *ONCE[1:])
LARGE = planned(*ONCE, templates={"t": '{"ignition": {"version": "3.4.0"}, "note": "%s"}' % ("x" * 400_000)})
REPORT = f"{ENTRY.rpartition('/')[0]}/provisioned/{REPORTED.servers['web01'].decision.token}"
CLIENTS = "baseURL: 'http://boot.test', provisioning: {evidence: Reported, clients: [10.12.0.0/16]}"


@pytest.fixture
def here() -> Iterator[Site]:
    with site(FLEET) as made:
        yield made


class Reader:
    """An instance that reads the spool of an endpoint when it is told to."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self._spool, self._offsets = spool, dict[str, int]()
        self.bench = Bench(folder)
        self.bench.decide(*INSTALL, files=TEMPLATES)
        plan = self.bench.plan()
        assert plan is not None
        self._digest = plan.digest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.close()

    def read(self) -> None:
        taken = take(self._spool, self._offsets)
        self._offsets = taken.offsets
        for each in taken.observations:
            self.bench.observe(replace(each, digest=self._digest, at=self.bench.now, up=None))
        self.bench.plan()

    @property
    def is_served(self) -> bool:
        """Whether the boot was served, by what is recorded."""
        return bool((self.bench.record or Record()).attempts)


@pytest.mark.parametrize("reads", ["while it syncs", "when it has answered", "at the end"])
@pytest.mark.parametrize("sync", ["in time", "late", "failing", "late and failing"])
def test_finding_c1_whatever_a_sync_does_the_instance_records_what_was_answered(
    here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, reads: str
) -> None:
    begun, ends, fdatasync = threading.Event(), threading.Event(), os.fdatasync

    def first_is_slow(fd: int) -> None:
        if not begun.is_set():
            begun.set()
            assert ends.wait(60)
            if "failing" in sync:
                raise OSError(5, "Input/output error")
        fdatasync(fd)

    with Reader(tmp_path, here.spool) as reader, ThreadPoolExecutor(1) as thread:
        with here.serve(deadline_s=0.3 if "late" in sync else 60) as url:
            get(f"{url}/boot.ipxe")
            monkeypatch.setattr(os, "fdatasync", first_is_slow)
            asked = thread.submit(get, url + ENTRY)
            while not begun.wait(0.05):
                if asked.done():  # the endpoint had no time to write an intent
                    asked = thread.submit(get, url + ENTRY)
            if reads == "while it syncs":
                reader.read()
                assert not reader.is_served, "nothing was answered yet"
            if "late" not in sync:
                ends.set()
            text = asked.result(60).text
            if reads == "when it has answered":
                reader.read()
            ends.set()
        reader.read()
        assert (SERVED in text) is (sync == "in time")
        assert reader.is_served is (SERVED in text)
        perhaps = (reader.bench.record or Record()).unknown_serves
        assert [each for each in perhaps if not each.is_withheld] == []


def test_finding_c1_a_boot_that_was_withheld_while_the_database_stalled_is_still_offered(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The database answers the question what was served, and takes no line until the answer was given."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(INSTALL), "t": TEMPLATES["t"]})
    address = postgres_server.address()
    arguments = ("--ledger", address.url, "--check-assets", "off")
    with running(repository.bare, tmp_path, *arguments, records="fresh") as instance, connected(address) as database:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'fetches'::regclass"
        with database.transaction():
            database.execute("LOCK TABLE fetches IN SHARE MODE")
            eventually(lambda: "(NotRecorded)" in instance.get(ENTRY).text and database.execute(waiting).fetchall())
        have = "SELECT (SELECT max(id) FROM fetches), (SELECT max(taken) FROM spool WHERE file = 'fetches')"

        def is_taken() -> bool:
            ((newest, taken),) = database.execute(have).fetchall()
            return newest is not None and taken is not None and taken >= newest

        eventually(is_taken)
        assert instance.status()["records"] == {"Pending": 1}, "the thread of the database went on"
        eventually(lambda: SERVED in instance.get(ENTRY).text)
        eventually(lambda: instance.status()["records"] == {"Attempted": 1})


def test_an_intent_that_a_killed_endpoint_left_uses_the_boot_up_after_a_minute(here: Site) -> None:
    """It was killed before it recorded an outcome."""
    with here.serve() as url:
        assert SERVED in get(url + ENTRY).text
        intent, outcome = eventually(lambda: len(found := take(here.spool, {}).observations) == 2 and found)
    assert (intent.outcome, outcome.outcome, intent.intent) == (None, Outcome.SERVED, outcome.intent)
    (path,) = here.spool.glob("*.jsonl")
    path.write_bytes(line_of(intent))
    here.now += timedelta(seconds=60)
    with here.serve() as url:
        assert [path for path in LOOKUPS if DISK not in get(url + path).text] == []
        assert "not given: perhaps served at 2" in get(url + ENTRY).text


@pytest.mark.parametrize("ask", ["HEAD", "another machine", "curl", "stopped", "a missing file"])
def test_a_request_that_is_refused_without_the_log_writes_no_intent(here: Site, tmp_path: Path, ask: str) -> None:
    with here.serve(assets=tmp_path if ask == "a missing file" else None) as url:
        if ask == "stopped":
            (here.spool / ".endpoints").mkdir(exist_ok=True)
            (here.spool / ".endpoints" / "sole").write_text('{"site":"fra1"}')
            eventually(lambda: "one-time boots of fra1 alone" in http_peers.get(url + "/readyz").text)
        match ask:
            case "HEAD":
                http_peers.head(url + ENTRY, headers={"user-agent": "iPXE/1.21.1"})
            case "another machine":
                get(f"{url}{ENTRY}?uuid=4c4c4544-0034-4a10-8056-b9c04f4d3732")
            case "curl":
                get(url + ENTRY, headers={"user-agent": "curl/8.5.0"})
            case _:
                assert DISK in get(url + ENTRY).text
    assert take(here.spool, {}).observations == []


def test_finding_c6_a_report_by_get_that_a_full_log_cannot_take_is_answered_503(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk, site(None) as made:
        made.spool = disk / "spool"
        made.spool.mkdir()
        made.publish(REPORTED)
        with served(made.root, "--spool", str(made.spool), "--accept-filesystem", "tmpfs") as (url, _):
            fill(disk / "all")
            assert get(url + REPORT).status_code == 503, "the installer repeats it"
            assert made.observed() == []
            (disk / "all").unlink()
            eventually(lambda: get(url + REPORT).status_code == 204)
            assert {each.is_report for each in made.observed()} == {True}


def test_finding_c6_user_data_that_a_client_breaks_off_is_no_evidence(here: Site) -> None:
    here.publish(LARGE)
    data = next(path for path in LARGE.boot_files if "/data/" in path)
    with here.serve() as url:
        with connect(url, receive_buffer=4096) as client:
            client.sendall(f"GET {data} HTTP/1.1\r\nHost: endpoint\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert len(get(url + data).content) > 400_000
        eventually(lambda: [each for each in take(here.spool, {}).observations if each.outcome is Outcome.SERVED])
    found = take(here.spool, {}).observations
    assert sorted((each.outcome or "") for each in found) == ["", "", "served"]
    broken_off, whole = (each.intent for each in found if each.outcome is None)
    assert {each.intent for each in found if each.outcome is not None} == {whole} != {broken_off}


def test_finding_c6_curl_of_user_data_by_a_uuid_makes_no_server_provisioned(tmp_path: Path) -> None:
    documents = (
        *(ONCE[0], server("web01", "role: web", "provision: 1")),
        image("flatcar-1", "userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
        profile("web", "flatcar-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
        policy("web", often="Once", spec="override: None"),
    )
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(documents), "t": TEMPLATES["t"]})
    with running(repository.bare, tmp_path, "--check-assets", "off", records="fresh") as instance:
        eventually(lambda: instance.status()["records"] == {"Pending": 1})
        url = f"{instance.url}/ignition/{uuid_of('web01')}"
        assert http_peers.get(url, headers={"user-agent": "curl/8.5.0"}).status_code == 200
        eventually(lambda: "SecretFetched" in [each["type"] for each in instance.events])  # the instance has read it
        assert instance.status()["records"] == {"Pending": 1}
    assert "Provisioned" not in [each["type"] for each in instance.events]


def test_user_data_that_was_served_while_the_log_was_full_is_recorded_later(tmp_path: Path) -> None:
    data = next(path for path in REPORTED.boot_files if "/data/" in path)
    with small_disk(tmp_path) as disk, site(None) as made:
        made.spool = disk / "spool"
        made.spool.mkdir()
        made.publish(REPORTED)
        with served(made.root, "--spool", str(made.spool), "--accept-filesystem", "tmpfs") as (url, _):
            fill(disk / "all")
            assert get(url + data).status_code == 200
            assert take(made.spool, {}).observations == []
            (disk / "all").unlink()
            eventually(lambda: take(made.spool, {}).observations)
        assert {each.outcome for each in take(made.spool, {}).observations} == {Outcome.SERVED}


def test_a_client_that_takes_nothing_for_a_minute_has_not_received_its_answer() -> None:
    with closing(PassingLoop()) as loop:
        scope = {"extensions": {RECEIVED: lambda: None}}
        waiting = loop.create_task(_has_received(scope))
        loop.run_until_complete(asyncio.sleep(0))
        assert not waiting.done()
        loop.passed_s += 61
        assert loop.run_until_complete(waiting) is False


def test_finding_c6_a_report_by_get_of_a_client_that_does_not_count_is_not_answered_as_heard(here: Site) -> None:
    here.publish(planned(fleet(CLIENTS), *ONCE[1:]))
    with here.serve(trusted_proxies=PROXY) as url:
        for client, expected in (("10.13.0.1", 404), ("10.12.0.13", 204)):
            assert get(url + REPORT, headers={"x-forwarded-for": client}).status_code == expected
    assert [each.client for each in here.observed()] == ["10.12.0.13"]
