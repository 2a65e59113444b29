"""Recorder: responses and records agree, even if a part is slow, full or killed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Self

import httpx
import pytest

from gitboot.endpoint.app import (
    INVENTORY_PATH,
    MAX_INVENTORIES_PER_ADDRESS,
    ClientRules,
    Endpoint,
    _has_client_received,
)
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.connections import CLIENT_RECEIVED
from gitboot.endpoint.recorder import Forwarder, SharedRecorder, SpoolRecorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, build_url, open_listening_socket
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fetchlog.spool import (
    ForwardedBatch,
    Spool,
    encode_line,
    list_files,
    read_new_lines,
    read_or_create_identity,
)
from gitboot.fetchlog.unknown_machines import (
    MAX_INVENTORY_BYTES,
    UnknownMachine,
    UnknownMachineRecorder,
    read_unknown_machine_files,
)
from gitboot.jsonio import Digest
from gitboot.ledger.leader_lease import Holder, Lease
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.postgresql import open_connection
from gitboot.ledger.postgresql_fetch_log import RecordedFetches, SharedFetchLog
from gitboot.ledger.store import PostgresAddress, read_address
from gitboot.resolve.provisioning_record import Record
from gitboot.system_clock import ClockState, Uptime
from tests.endpoint.test_server import served
from tests.fetchlog.test_unknown_machines import SENT
from tests.helpers import http_peers
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import (
    BEFORE,
    ENTRY,
    LOADER,
    LOOKUPS,
    MAC,
    ONCE,
    PROXY,
    TEMPLATES,
    UUID,
    Fleet,
    Site,
    connect,
    get,
    plan_fleet,
    read_all,
    site,
)
from tests.helpers.fleets import at, fleet, image, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import Bench
from tests.helpers.postgresql import PostgresServer
from tests.helpers.running_instance import Repository, eventually, running
from tests.helpers.site_lives.processes import PassingLoop, ask_endpoint

SERVED, DISK = "(Network)", "boots its local disk"
FLEET = plan_fleet(*ONCE)
INSTALL = (ONCE[0], server("web01", "role: web", "provision: 1"), *ONCE[2:])
REPORTED = plan_fleet(fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"), *ONCE[1:])
LARGE = plan_fleet(*ONCE, templates={"t": '{"ignition": {"version": "3.4.0"}, "note": "%s"}' % ("x" * 400_000)})
REPORT = f"{ENTRY.rpartition('/')[0]}/provisioned/{REPORTED.servers['web01'].decision.token}"
CLIENTS = "baseURL: 'http://boot.test', provisioning: {evidence: Reported, clients: [10.12.0.0/16]}"


@pytest.fixture
def here() -> Iterator[Site]:
    with site(FLEET) as made:
        yield made


class Reader:
    """An instance that reads the fetch log of an endpoint when the test calls it."""

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
        taken = read_new_lines(self._spool, self._offsets)
        self._offsets = taken.offsets
        for each in taken.observations:
            self.bench.observe(replace(each, digest=self._digest, at=self.bench.now, up=None))
        self.bench.plan()

    @property
    def is_served(self) -> bool:
        return bool((self.bench.record or Record()).attempts)


@pytest.mark.parametrize("reads", ["while it syncs", "when it has answered", "at the end"])
@pytest.mark.parametrize("sync", ["in time", "late", "failing", "late and failing"])
def test_finding_c1_after_any_sync_result_the_instance_records_the_boots_that_were_served(
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
    """The database answers queries, but stores no line until the endpoint has responded."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(INSTALL), "t": TEMPLATES["t"]})
    address = postgres_server.address()
    arguments = ("--ledger", address.url, "--check-assets", "off")
    with (
        running(repository.bare, tmp_path, *arguments, records="fresh") as instance,
        open_connection(address) as database,
    ):
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
    """The endpoint was killed before it recorded an outcome."""
    with here.serve() as url:
        assert SERVED in get(url + ENTRY).text
        intent, outcome = eventually(lambda: len(found := read_new_lines(here.spool, {}).observations) == 2 and found)
    assert (intent.outcome, outcome.outcome, intent.intent) == (None, Outcome.SERVED, outcome.intent)
    (path,) = here.spool.glob("*.jsonl")
    path.write_bytes(encode_line(intent))
    here.now += timedelta(seconds=60)
    with here.serve() as url:
        assert [path for path in LOOKUPS if DISK not in get(url + path).text] == []
        assert "withheld the boot of web01: perhaps served at 2" in get(url + ENTRY).text


@pytest.mark.parametrize("ask", ["HEAD", "another machine", "curl", "stopped", "a missing file"])
def test_a_request_that_is_rejected_without_the_log_writes_no_intent(here: Site, tmp_path: Path, ask: str) -> None:
    with here.serve(assets=tmp_path if ask == "a missing file" else None) as url:
        if ask == "stopped":
            (here.spool / ".endpoints").mkdir(exist_ok=True)
            (here.spool / ".endpoints" / "sole").write_text('{"site":"fra1"}')
            eventually(lambda: "one-time boots for fra1" in http_peers.get(url + "/readyz").text)
        match ask:
            case "HEAD":
                http_peers.head(url + ENTRY, headers={"user-agent": "iPXE/1.21.1"})
            case "another machine":
                get(f"{url}{ENTRY}?uuid=4c4c4544-0034-4a10-8056-b9c04f4d3732")
            case "curl":
                get(url + ENTRY, headers={"user-agent": "curl/8.5.0"})
            case _:
                assert DISK in get(url + ENTRY).text
    assert read_new_lines(here.spool, {}).observations == []


def test_finding_c6_while_the_log_is_full_a_report_by_get_gets_a_503_and_user_data_is_recorded_later(
    tmp_path: Path,
) -> None:
    data = next(path for path in REPORTED.boot_files if "/data/" in path)
    with small_disk(tmp_path) as disk, site(None) as made:
        made.spool = disk / "spool"
        made.spool.mkdir()
        made.publish(REPORTED)

        def outcomes(*, of_reports: bool) -> set[Outcome | None]:
            found = read_new_lines(made.spool, {}).observations
            return {each.outcome for each in found if each.reports_success is of_reports}

        with served(made.root, "--spool", str(made.spool), "--accept-filesystem", "tmpfs") as (url, _):
            fill(disk / "all")
            assert get(url + REPORT).status_code == 503, "the installer repeats it"
            assert get(url + data).status_code == 200
            assert read_new_lines(made.spool, {}).observations == []
            (disk / "all").unlink()
            eventually(lambda: outcomes(of_reports=False) == {Outcome.SERVED})
            eventually(lambda: get(url + REPORT).status_code == 204)
        assert outcomes(of_reports=True)


def test_finding_c6_user_data_that_a_client_interrupts_is_no_evidence(here: Site) -> None:
    here.publish(LARGE)
    data = next(path for path in LARGE.boot_files if "/data/" in path)
    with here.serve() as url:
        with connect(url, receive_buffer=4096) as client:
            client.sendall(f"GET {data} HTTP/1.1\r\nHost: endpoint\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert len(get(url + data).content) > 400_000
        eventually(
            lambda: [each for each in read_new_lines(here.spool, {}).observations if each.outcome is Outcome.SERVED]
        )
    found = read_new_lines(here.spool, {}).observations
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
        url = f"{instance.url}/ignition/{make_uuid('web01')}"
        assert http_peers.get(url, headers={"user-agent": "curl/8.5.0"}).status_code == 200
        eventually(lambda: "SecretFetched" in [each["type"] for each in instance.events])  # the instance has read it
        assert instance.status()["records"] == {"Pending": 1}
    assert "Provisioned" not in [each["type"] for each in instance.events]


def test_a_client_that_reads_nothing_for_a_minute_has_not_received_its_response() -> None:
    with closing(PassingLoop()) as loop:
        scope = {"extensions": {CLIENT_RECEIVED: lambda: None}}
        waiting = loop.create_task(_has_client_received(scope))
        loop.run_until_complete(asyncio.sleep(0))
        assert not waiting.done()
        loop.passed_s += 61
        assert loop.run_until_complete(waiting) is False


def test_finding_c6_a_report_by_get_of_a_client_that_does_not_count_gets_a_404(here: Site) -> None:
    here.publish(plan_fleet(fleet(CLIENTS), *ONCE[1:]))
    with here.serve(trusted_proxies=PROXY) as url:
        for client, expected in (("10.13.0.1", 404), ("10.12.0.13", 204)):
            assert get(url + REPORT, headers={"x-forwarded-for": client}).status_code == expected
    assert [each.client for each in here.observed()] == ["10.12.0.13"]


CHOSEN = fleet("baseURL: 'http://boot.test', outputs: [ipxe, inventory]")
ACCEPTING_FLEET = plan_fleet(CHOSEN, *ONCE[1:])


@pytest.fixture
def recording_site() -> Iterator[Site]:
    with site(ACCEPTING_FLEET) as made:
        yield made


def load_unknown_machines(recording_site: Site) -> list[UnknownMachine]:
    return [machine for each in read_unknown_machine_files(recording_site.spool) for machine in each.table.machines]


def send(recording_site: Site, *contents: object, **headers: str) -> list[httpx.Response]:
    asked = UnknownMachineRecorder(recording_site.spool)
    with (
        recording_site.serve(unknown_recorder=asked) as url,
        http_peers.Client(base_url=url, headers=headers) as client,
    ):
        answers = [
            client.post(INVENTORY_PATH, content=each if isinstance(each, bytes) else json.dumps(each).encode())
            for each in contents
        ]
    asked.write_file()
    return answers


def get_codes(answers: list[httpx.Response]) -> list[int]:
    return [each.status_code for each in answers]


def test_the_inventory_of_an_unknown_machine_is_stored_for_the_instance(recording_site: Site) -> None:
    [answer] = send(recording_site, SENT)
    assert (answer.status_code, answer.content) == (204, b"")
    [machine] = load_unknown_machines(recording_site)
    assert (machine.macs, machine.serial) == (("52-54-00-99-99-99", "52-54-00-99-99-9a"), "4J8VM72")
    assert machine.inventory is not None and machine.inventory.product == "PowerEdge R650"


def test_no_inventory_is_accepted_unless_the_fleet_enables_it(recording_site: Site) -> None:
    recording_site.publish(plan_fleet(*ONCE), commit="c0ffe2")
    assert (get_codes(send(recording_site, SENT)), load_unknown_machines(recording_site)) == ([405], [])


def test_an_inventory_of_a_described_machine_changes_nothing(recording_site: Site) -> None:
    """A HEAD request or a check neither gets nor consumes a one-time boot, and is not reported."""
    own = {"uuid": UUID, "interfaces": [{"mac": MAC}], "provision": 7}
    assert (get_codes(send(recording_site, own)), load_unknown_machines(recording_site), recording_site.observed()) == (
        [204],
        [],
        [],
    )
    with recording_site.serve() as url:
        assert "boots flatcar-1" in http_peers.get(f"{url}{ENTRY}", headers=LOADER).text
    assert [each.server for each in recording_site.observed()] == ["web01"]


def test_an_invalid_or_incomplete_inventory_is_rejected_and_not_stored(recording_site: Site) -> None:
    wrong: tuple[object, ...] = (
        b"[" * MAX_INVENTORY_BYTES,
        b"\x00\xff",
        b"",
        {"interfaces": []},
        {"interfaces": [{"mac": "../../ops"}]},
    )
    answers = send(recording_site, b"x" * (MAX_INVENTORY_BYTES + 1), *wrong)
    assert get_codes(answers) == [413] + [400] * len(wrong)
    assert ["send" in answer.text for answer in answers] == [False] + [True] * len(wrong)
    asked = UnknownMachineRecorder(recording_site.spool)
    with recording_site.serve(unknown_recorder=asked) as url, connect(url) as client:
        client.sendall(b"POST /v1/inventory HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n" + b'{"interfaces":')
        client.shutdown(1)
        read_all(client)
    asked.write_file()
    assert load_unknown_machines(recording_site) == []


def test_inventories_from_one_address_are_limited_for_each_minute(recording_site: Site) -> None:
    many = [
        {"interfaces": [{"mac": f"52:54:01:00:00:{number:02x}"}]} for number in range(MAX_INVENTORIES_PER_ADDRESS + 5)
    ]
    answers = send(recording_site, *many)
    assert (get_codes(answers), answers[-1].headers["retry-after"]) == (
        [204] * MAX_INVENTORIES_PER_ADDRESS + [429] * 5,
        "60",
    )
    assert len(load_unknown_machines(recording_site)) == MAX_INVENTORIES_PER_ADDRESS
    recording_site.now += timedelta(minutes=1)
    assert get_codes(send(recording_site, SENT)) == [204]


def test_an_inventory_by_a_monitor_or_without_a_fetch_log_is_not_accepted(recording_site: Site) -> None:
    with recording_site.serve() as url:
        assert http_peers.post(f"{url}{INVENTORY_PATH}", json=SENT).status_code == 503, "there is no spool for it"
    monitored = fleet(
        "baseURL: 'http://boot.test', outputs: [inventory, ipxe], provisioning: {monitors: ['127.0.0.0/8']}"
    )
    recording_site.publish(plan_fleet(monitored, *ONCE[1:]), commit="c0ffe2")
    assert (get_codes(send(recording_site, SENT)), load_unknown_machines(recording_site)) == ([404], [])


def test_an_inventory_is_accepted_by_post_only_and_not_at_the_address_of_operators(recording_site: Site) -> None:
    asked = UnknownMachineRecorder(recording_site.spool)
    with recording_site.serve(unknown_recorder=asked) as url:
        assert http_peers.get(f"{url}{INVENTORY_PATH}").status_code == 404
        assert http_peers.post(f"{url}{INVENTORY_PATH}/", json=SENT).status_code == 405
    listening = open_listening_socket("127.0.0.1:0")
    clients = ClientRules(operators_socket=listening.getsockname(), unknown_recorder=asked)
    endpoint = Endpoint(PublishedTree(recording_site.root, lambda: BEFORE), lambda: BEFORE, clients=clients)
    with EndpointServer(endpoint, listening):
        url = build_url("127.0.0.1:0", listening)
        assert http_peers.post(f"{url}{INVENTORY_PATH}", json=SENT).status_code == 405
    asked.write_file()
    assert load_unknown_machines(recording_site) == []


NOON = at("20T12:00")
NOWHERE = PostgresAddress.parse("postgresql://gitboot@/gitboot?host=/nowhere", None)


@dataclass
class Hosts:
    """Hosts with one ledger and the same tree."""

    tree: Site
    address: PostgresAddress
    lease: str
    taken: dict[str, int] = field(default_factory=dict)

    def publish(self, fleet: Fleet) -> None:
        self.tree.publish(fleet, giver=self.lease)

    def arrived(self) -> list[Observation]:
        """The fetches that reached the ledger since the last call."""
        with closing(RecordedFetches(self.address, Lease("one", 1))) as recorded:
            found = recorded.read(self.taken)
        self.taken = dict(found.offsets)
        return found.observations

    @contextmanager
    def host(self, name: str, address: PostgresAddress | None = None, deadline_s: float = 20) -> Iterator[Host]:
        folder = self.tree.root.parent / name
        folder.mkdir(exist_ok=True)
        with ExitStack() as stack:
            spool = Spool(folder)
            stack.callback(spool.close)
            shared = stack.enter_context(closing(SharedFetchLog(address or self.address)))
            clock = CheckedClock(
                lambda: self.tree.now,
                clock_state=lambda: ClockState.UNKNOWN,
                uptime=lambda: Uptime(name, self.tree.now.timestamp()),
            )
            tree = PublishedTree(self.tree.root, lambda: self.tree.now, checked_clock=clock)
            own = SpoolRecorder(spool, 20)
            stack.callback(own.flush)
            recording = SharedRecorder(own, shared, deadline_s)
            endpoint = Endpoint(tree, lambda: self.tree.now, recording, ClientRules())
            listening = open_listening_socket("127.0.0.1:0")
            stack.enter_context(EndpointServer(endpoint, listening))
            yield Host(build_url("127.0.0.1:0", listening), folder, shared, Forwarder(folder, shared), endpoint)


@dataclass
class Host:
    url: str
    spool: Path
    shared: SharedFetchLog
    forwarder: Forwarder
    endpoint: Endpoint


@pytest.fixture
def hosts(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Hosts]:
    path = postgres_server.ledger(tmp_path)
    address = read_address(path)
    assert address is not None
    with site(None) as tree, open_ledger(path) as ledger:
        ledger.database.take_lease(Holder("one", "host-a:/state", 600))
        lease = ledger.database.lease
        assert lease is not None
        made = Hosts(tree, address, str(lease.lease))
        made.publish(FLEET)
        yield made


def test_a_one_time_boot_is_served_by_one_of_several_hosts(hosts: Hosts) -> None:
    with hosts.host("east") as east, hosts.host("west") as west:
        assert SERVED in get(east.url + ENTRY).text
        [seen] = hosts.arrived()
        assert seen.offer is not None, "the ledger has it before it is served"
        hosts.tree.now += timedelta(seconds=59)
        assert all(SERVED in get(each.url + ENTRY).text for each in (east, west)), "the same boot"
        hosts.tree.now += timedelta(seconds=2)
        for each in (east, west):
            assert [path for path in LOOKUPS if DISK not in get(each.url + path).text] == [], each


def test_while_no_instance_has_the_lease_no_output_tree_serves_a_one_time_boot(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    path = postgres_server.ledger(tmp_path)
    address = read_address(path)
    assert address is not None
    with site(None) as tree, open_ledger(path):
        tree.publish(FLEET, giver="")  # like a tree that was only rendered
        with Hosts(tree, address, "").host("other") as other:
            assert DISK in get(other.url + ENTRY).text


def test_without_the_ledger_a_one_time_boot_is_withheld_with_the_reason(hosts: Hosts) -> None:
    with hosts.host("other", NOWHERE) as other:
        text = get(other.url + ENTRY).text
        assert DISK in text
        assert "withheld the boot of web01: the endpoint could not record the fetch" in text
        ready = http_peers.get(other.url + "/readyz")
        assert ready.status_code == 503
        assert "cannot be used" in ready.text


def test_a_ledger_that_hangs_costs_one_deadline_only(hosts: Hosts) -> None:
    with hosts.host("other", deadline_s=0.3) as other, open_connection(hosts.address) as locking:
        with locking.transaction():
            locking.execute("LOCK TABLE fetches IN ACCESS EXCLUSIVE MODE")
            assert DISK in get(other.url + ENTRY).text, "it is answered while the ledger hangs"
        assert SERVED in eventually(lambda: (text := get(other.url + ENTRY).text) and SERVED in text and text)


def test_a_boot_that_one_host_withheld_is_served_by_another(hosts: Hosts) -> None:
    """PostgreSQL records the fetch only after the deadline, when the machine already boots its disk."""
    headers = LOADER.items()
    with closing(PassingLoop()) as loop, hosts.host("east") as east, hosts.host("west") as west:
        with open_connection(hosts.address) as locking, locking.transaction():
            locking.execute("LOCK TABLE fetches IN SHARE MODE")  # reads work, inserts wait
            answered = loop.create_task(ask_endpoint(east.endpoint, "GET", ENTRY, "127.0.0.1", headers, ""))
            waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'fetches'::regclass AND NOT granted"
            while locking.execute(waiting).fetchone() == (0,):
                loop.run_until_complete(asyncio.sleep(0.01))
                assert not answered.done(), answered.result()
            loop.passed_s += 21  # longer than the deadline of `Hosts.host`
            assert DISK in loop.run_until_complete(answered).body
        east.shared.find_served_boot("web01", "none", None)  # waits for the transaction that waited for the lock
        hosts.tree.now += timedelta(seconds=61)

        def is_served() -> bool:
            east.forwarder.send()
            return SERVED in get(west.url + ENTRY).text

        assert eventually(is_served)


def test_a_report_for_a_tree_whose_instance_has_no_shared_ledger_gets_a_503(hosts: Hosts) -> None:
    hosts.tree.publish(REPORTED)
    with hosts.host("other") as other:
        assert http_peers.post(other.url + REPORT).status_code == 503
        other.forwarder.send()
    assert hosts.arrived() == []


def test_a_report_is_recorded_locally_and_forwarded_once(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("other", NOWHERE) as other:
        for _ in range(3):  # while the database is away
            assert get(other.url + REPORT).status_code in (200, 204)
    with hosts.host("other") as other:
        other.forwarder.send()
        assert [each.reports_success for each in hosts.arrived()] == [True] * 3
        get(other.url + REPORT)
        Forwarder(other.spool, other.shared).send()  # another process, which has not seen the sent lines
        other.forwarder.send()
        assert len(hosts.arrived()) == 1
        assert list_files(other.spool) != [], "its writer may still add to it"
    with hosts.host("other") as other:
        other.forwarder.send()
        assert list_files(other.spool) == []
    assert hosts.arrived() == []


def test_finding_s5_repeated_fetches_at_several_hosts_arrive_as_counts(hosts: Hosts) -> None:
    data = next(path for path in FLEET.boot_files if "/data/" in path)
    with hosts.host("east") as east, hosts.host("west") as west:
        for each in (east, west):
            assert {get(each.url + data).status_code for _ in range(30)} == {200}
            each.forwarder.send()
        found = [each for each in hosts.arrived() if each.outcome is None]
        assert [each.times for each in found] == [1] * 22
    for name in ("east", "west"):
        with hosts.host(name) as again:
            again.forwarder.send()
    assert [each.times for each in hosts.arrived()] == [19, 19]


def test_a_report_to_one_host_ends_the_boot_there_before_it_is_forwarded(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("east") as east, hosts.host("west") as west:
        assert SERVED in get(east.url + ENTRY).text
        get(east.url + REPORT)
        assert DISK in get(east.url + ENTRY).text
        east.forwarder.send()
        assert DISK in get(west.url + ENTRY).text


def test_only_one_of_several_processes_forwards_fetches(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("other") as other, other.forwarder, Forwarder(other.spool, other.shared):
        get(other.url + REPORT)
        assert len(eventually(hosts.arrived)) == 1
    assert hosts.arrived() == []


def make_line(number: int) -> bytes:
    path = f"boot/v1/boot/m/provisioned/{number}"
    return encode_line(Observation(server="web01", path=path, client="10.0.0.7", at=NOON, digest=Digest("ab" * 32)))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "left", [0, 9, len(make_line(0)), len(make_line(0)) + 9], ids=["nothing", "half", "a line", "a line and half"]
)
def test_a_file_that_is_shorter_than_its_forwarded_part_is_forwarded_from_its_end_on(
    hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int, restarts: bool
) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    path = folder / "1-00.jsonl"
    path.write_bytes(make_line(0) + make_line(1))
    with closing(SharedFetchLog(hosts.address)) as shared:
        forwarder = Forwarder(folder, shared)

        def arrived() -> list[bytes]:
            (Forwarder(folder, shared) if restarts else forwarder).send()
            return [encode_line(each) for each in hosts.arrived()]

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # its writer may still append to it
            assert arrived() == [make_line(0), make_line(1)]
            os.truncate(path, left)
            (folder / "2-00.jsonl").write_bytes(make_line(2))
            assert arrived() == [make_line(2)], "the other files are sent"
            for number in (3, 4, 5):
                with path.open("ab") as appending:
                    appending.write(make_line(number))
                assert arrived() == [make_line(number)]
            assert arrived() == []
        (told,) = caplog.messages
        assert (
            f"{path} has {left} bytes, but gitboot has already sent {len(make_line(0) + make_line(1))} bytes of it"
            in told
        )
        assert arrived() == arrived() == []
    assert list_files(folder) == [], "all of it was sent"


def test_a_line_that_is_cut_off_while_it_is_forwarded_does_not_stop_the_forwarder(hosts: Hosts, tmp_path: Path) -> None:
    """The writer's sync failed after the line was read."""
    folder = tmp_path / "far"
    folder.mkdir()
    path = folder / "1-00.jsonl"
    path.write_bytes(make_line(0) + make_line(1))

    class CutOff(SharedFetchLog):
        def receive_batch(self, batch: ForwardedBatch, there: Collection[str]) -> int:
            if batch.lines:
                os.truncate(path, len(make_line(0)))
            return super().receive_batch(batch, there)

    with closing(CutOff(hosts.address)) as shared:
        forwarder = Forwarder(folder, shared)
        forwarder.send()
        forwarder.send()
    assert [encode_line(each) for each in hosts.arrived()] == [make_line(0), make_line(1)]
    assert list_files(folder) == []


def test_reports_arrive_from_a_host_whose_disk_lost_the_end_of_a_forwarded_file(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    spool = hosts.tree.root.parent / "far"
    arguments = ("--spool", str(spool), "--ledger", hosts.address.url)
    found: list[Observation] = []

    def have_arrived(count: int) -> bool:
        found.extend(hosts.arrived())
        return len(found) >= count

    with served(hosts.tree.root, *arguments) as (url, _):
        assert {get(url + REPORT).status_code for _ in range(3)} <= {200, 204}
        eventually(lambda: have_arrived(3))
    for path in list_files(spool):
        os.truncate(path, path.stat().st_size // 2)
    with served(hosts.tree.root, *arguments) as (url, _):
        assert get(url + REPORT).status_code in (200, 204)
        eventually(lambda: have_arrived(4))
        get(url + REPORT)
        eventually(lambda: have_arrived(5))
        eventually(lambda: len(list_files(spool)) == 1)
    assert (len(found), hosts.arrived()) == (5, [])


def test_a_killed_endpoint_loses_no_report_and_forwards_none_twice(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    spool = hosts.tree.root.parent / "far"
    arguments = ("--spool", str(spool), "--ledger", hosts.address.url)
    acknowledged = 0
    with ExitStack() as stack:
        for _ in range(3):
            up = stack.enter_context(ExitStack())
            url, _ = up.enter_context(served(hosts.tree.root, *arguments))
            for _ in range(5):
                acknowledged += get(url + REPORT).status_code in (200, 204)
            up.close()  # kills it with SIGKILL
        assert acknowledged == 15
        stack.enter_context(served(hosts.tree.root, *arguments))
        found: list[Observation] = []

        def have_arrived() -> bool:
            found.extend(hosts.arrived())
            return len(found) >= acknowledged

        eventually(have_arrived)
        eventually(lambda: list_files(spool) == [])  # each writer has ended, and all that it wrote has arrived
    assert (len(found), hosts.arrived()) == (acknowledged, [])


def test_the_ledger_and_not_the_local_fetch_log_decides_which_instance_may_serve(hosts: Hosts) -> None:
    with hosts.host("other") as other:
        assert get(other.url + ENTRY).status_code == 200
        assert other.shared.serving_identity == hosts.lease != read_or_create_identity(other.spool)
