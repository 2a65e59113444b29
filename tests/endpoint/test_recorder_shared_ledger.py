"""Hosts with one PostgreSQL ledger: each fetch arrives once, and a one-time boot is served once."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.endpoint.app import Clients, Endpoint
from gitboot.endpoint.recorder import ForwardedRecording, Forwarder, Recording
from gitboot.endpoint.served_files import ComparedClock, PublishedTree
from gitboot.endpoint.server import EndpointServer, listen_at, url_of
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import ForwardedBatch, Spool, files, identity, line_of
from gitboot.jsonio import Digest
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.location import PostgresAddress, address_beside
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.postgresql import connected
from gitboot.ledger.postgresql_fetch_log import RecordedFetches, SharedFetches
from gitboot.system_clock import Keeping, Uptime
from tests.endpoint.test_server_workers import served
from tests.helpers import http_peers
from tests.helpers.endpoints import ENTRY, LOADER, LOOKUPS, ONCE, Fleet, Site, get, planned, site
from tests.helpers.fleets import at, fleet
from tests.helpers.postgresql import PostgresServer
from tests.helpers.running_instance import eventually
from tests.helpers.site_lives.processes import PassingLoop, ask_endpoint

NOON = at("20T12:00")
GIVEN, DISK = "(Network)", "boots its local disk"
FLEET = planned(*ONCE)
REPORTED = planned(fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"), *ONCE[1:])
REPORT = f"{ENTRY.rpartition('/')[0]}/provisioned/{REPORTED.servers['web01'].decision.token}"
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
        with closing(RecordedFetches(self.address)) as recorded:
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
            shared = stack.enter_context(closing(SharedFetches(address or self.address)))
            clock = ComparedClock(
                lambda: self.tree.now,
                keeping=lambda: Keeping.UNKNOWN,
                uptime=lambda: Uptime(name, self.tree.now.timestamp()),
            )
            tree = PublishedTree(self.tree.root, lambda: self.tree.now, compared=clock)
            own = Recording(spool, 20)
            stack.callback(own.end)
            recording = ForwardedRecording(own, shared, deadline_s)
            endpoint = Endpoint(self.tree.root, tree, lambda: self.tree.now, recording, Clients())
            listening = listen_at("127.0.0.1:0")
            stack.enter_context(EndpointServer(endpoint, listening))
            yield Host(url_of("127.0.0.1:0", listening), folder, shared, Forwarder(folder, shared), endpoint)


@dataclass
class Host:
    url: str
    spool: Path
    shared: SharedFetches
    forwarder: Forwarder
    endpoint: Endpoint


@pytest.fixture
def hosts(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Hosts]:
    path = postgres_server.ledger(tmp_path)
    address = address_beside(path)
    assert address is not None
    with site(None) as tree, open_ledger(path) as ledger:
        ledger.database.hold(Holder("one", "host-a:/state", 600))
        lease = ledger.database.lease
        assert lease is not None
        made = Hosts(tree, address, str(lease.lease))
        made.publish(FLEET)
        yield made


def test_a_one_time_boot_is_served_by_one_of_several_hosts(hosts: Hosts) -> None:
    with hosts.host("east") as east, hosts.host("west") as west:
        assert GIVEN in get(east.url + ENTRY).text
        [seen] = hosts.arrived()
        assert seen.offer is not None, "the ledger has it before it is served"
        hosts.tree.now += timedelta(seconds=59)
        assert all(GIVEN in get(each.url + ENTRY).text for each in (east, west)), "the same boot"
        hosts.tree.now += timedelta(seconds=2)
        for each in (east, west):
            assert [path for path in LOOKUPS if DISK not in get(each.url + path).text] == [], each


def test_while_no_instance_has_the_ledger_no_one_time_boot_is_served_by_any_tree(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    path = postgres_server.ledger(tmp_path)
    address = address_beside(path)
    assert address is not None
    with site(None) as tree, open_ledger(path):
        tree.publish(FLEET, giver="")  # as a tree that was only rendered
        with Hosts(tree, address, "").host("other") as other:
            assert DISK in get(other.url + ENTRY).text


def test_without_the_ledger_a_one_time_boot_is_withheld_with_the_reason(hosts: Hosts) -> None:
    with hosts.host("other", NOWHERE) as other:
        text = get(other.url + ENTRY).text
        assert DISK in text
        assert "not given: its fetch could not be recorded" in text
        ready = http_peers.get(other.url + "/readyz")
        assert ready.status_code == 503
        assert "does not take it" in ready.text


def test_a_ledger_that_hangs_costs_a_deadline_and_nothing_more(hosts: Hosts) -> None:
    with hosts.host("other", deadline_s=0.3) as other, connected(hosts.address) as locking:
        with locking.transaction():
            locking.execute("LOCK TABLE fetches IN ACCESS EXCLUSIVE MODE")
            assert DISK in get(other.url + ENTRY).text, "it is answered while the ledger hangs"
        assert GIVEN in eventually(lambda: (text := get(other.url + ENTRY).text) and GIVEN in text and text)


def test_a_boot_that_one_host_withheld_is_served_by_another(hosts: Hosts) -> None:
    """PostgreSQL records the fetch only after the deadline, when the machine has got its disk."""
    headers = LOADER.items()
    with closing(PassingLoop()) as loop, hosts.host("east") as east, hosts.host("west") as west:
        with connected(hosts.address) as locking, locking.transaction():
            locking.execute("LOCK TABLE fetches IN SHARE MODE")  # can be read, and takes no row
            answered = loop.create_task(ask_endpoint(east.endpoint, "GET", ENTRY, "127.0.0.1", headers, ""))
            waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'fetches'::regclass AND NOT granted"
            while locking.execute(waiting).fetchone() == (0,):
                loop.run_until_complete(asyncio.sleep(0.01))
                assert not answered.done(), answered.result()
            loop.passed_s += 21  # longer than the deadline of `Hosts.host`
            assert DISK in loop.run_until_complete(answered).body
        east.shared.given("web01", "none", None)  # waits for the transaction that waited for the lock
        hosts.tree.now += timedelta(seconds=61)

        def is_served() -> bool:
            east.forwarder.send()
            return GIVEN in get(west.url + ENTRY).text

        assert eventually(is_served)


def test_a_report_for_a_tree_whose_instance_has_no_shared_ledger_is_answered_503(hosts: Hosts) -> None:
    hosts.tree.publish(REPORTED)
    with hosts.host("other") as other:
        assert http_peers.post(other.url + REPORT).status_code == 503
        other.forwarder.send()
    assert hosts.arrived() == []


def test_a_report_is_recorded_here_and_arrives_once(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("other", NOWHERE) as other:
        for _ in range(3):  # while the database is away
            assert get(other.url + REPORT).status_code in (200, 204)
    with hosts.host("other") as other:
        other.forwarder.send()
        assert [each.is_report for each in hosts.arrived()] == [True] * 3
        get(other.url + REPORT)
        Forwarder(other.spool, other.shared).send()  # another process, which does not know what was sent
        other.forwarder.send()
        assert len(hosts.arrived()) == 1
        assert files(other.spool) != [], "its writer may still add to it"
    with hosts.host("other") as other:
        other.forwarder.send()
        assert files(other.spool) == []
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


def test_a_report_to_one_host_ends_the_boot_at_all_even_before_it_is_sent(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("east") as east, hosts.host("west") as west:
        assert GIVEN in get(east.url + ENTRY).text
        get(east.url + REPORT)
        assert DISK in get(east.url + ENTRY).text
        east.forwarder.send()
        assert DISK in get(west.url + ENTRY).text


def test_fetches_are_sent_by_one_process_of_several(hosts: Hosts) -> None:
    hosts.publish(REPORTED)
    with hosts.host("other") as other, other.forwarder, Forwarder(other.spool, other.shared):
        get(other.url + REPORT)
        assert len(eventually(hosts.arrived)) == 1
    assert hosts.arrived() == []


def line(number: int) -> bytes:
    """A report, as an endpoint records it."""
    path = f"boot/v1/boot/m/provisioned/{number}"
    return line_of(Observation(server="web01", path=path, client="10.0.0.7", at=NOON, digest=Digest("ab" * 32)))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "left", [0, 9, len(line(0)), len(line(0)) + 9], ids=["nothing", "half", "a line", "a line and half"]
)
def test_a_file_that_is_shorter_than_what_was_sent_is_sent_from_its_end_on(
    hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int, restarts: bool
) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    path = folder / "1-00.jsonl"
    path.write_bytes(line(0) + line(1))
    with closing(SharedFetches(hosts.address)) as shared:
        forwarder = Forwarder(folder, shared)

        def arrived() -> list[bytes]:
            (Forwarder(folder, shared) if restarts else forwarder).send()
            return [line_of(each) for each in hosts.arrived()]

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # its writer may still add to it
            assert arrived() == [line(0), line(1)]
            os.truncate(path, left)
            (folder / "2-00.jsonl").write_bytes(line(2))
            assert arrived() == [line(2)], "the other files are sent"
            for number in (3, 4, 5):
                with path.open("ab") as appending:
                    appending.write(line(number))
                assert arrived() == [line(number)]
            assert arrived() == []
        (told,) = caplog.messages
        assert f"{path} has {left} bytes, and gitboot has sent {len(line(0) + line(1))} bytes of it" in told
        assert arrived() == arrived() == []
    assert files(folder) == [], "all of it was sent"


def test_a_line_that_is_cut_off_while_it_is_sent_stops_nothing(hosts: Hosts, tmp_path: Path) -> None:
    """The sync of its writer failed after the line was read."""
    folder = tmp_path / "far"
    folder.mkdir()
    path = folder / "1-00.jsonl"
    path.write_bytes(line(0) + line(1))

    class CutOff(SharedFetches):
        def take(self, batch: ForwardedBatch, there: Collection[str]) -> int:
            if batch.lines:
                os.truncate(path, len(line(0)))
            return super().take(batch, there)

    with closing(CutOff(hosts.address)) as shared:
        forwarder = Forwarder(folder, shared)
        forwarder.send()
        forwarder.send()
    assert [line_of(each) for each in hosts.arrived()] == [line(0), line(1)]
    assert files(folder) == []


def test_reports_arrive_from_a_host_whose_disk_lost_the_end_of_a_file_that_was_sent(hosts: Hosts) -> None:
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
    for path in files(spool):
        os.truncate(path, path.stat().st_size // 2)
    with served(hosts.tree.root, *arguments) as (url, _):
        assert get(url + REPORT).status_code in (200, 204)
        eventually(lambda: have_arrived(4))
        get(url + REPORT)
        eventually(lambda: have_arrived(5))
        eventually(lambda: len(files(spool)) == 1)
    assert (len(found), hosts.arrived()) == (5, [])


def test_an_endpoint_that_is_killed_loses_no_report_and_sends_none_twice(hosts: Hosts) -> None:
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
            up.close()  # by SIGKILL
        assert acknowledged == 15
        stack.enter_context(served(hosts.tree.root, *arguments))
        found: list[Observation] = []

        def have_arrived() -> bool:
            found.extend(hosts.arrived())
            return len(found) >= acknowledged

        eventually(have_arrived)
        eventually(lambda: files(spool) == [])  # each writer has ended, and all that it wrote has arrived
    assert (len(found), hosts.arrived()) == (acknowledged, [])


def test_the_ledger_and_not_the_hosts_spool_says_who_may_serve(hosts: Hosts) -> None:
    with hosts.host("other") as other:
        assert get(other.url + ENTRY).status_code == 200
        assert other.shared.giver == hosts.lease != identity(other.spool)
