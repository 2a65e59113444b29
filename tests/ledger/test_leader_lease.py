"""Leader lease of a shared ledger, and the shared fetch log."""

from __future__ import annotations

import math
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest
from click.testing import CliRunner
from msgspec import structs

from gitboot.artifacts.availability import Presence, Sighting
from gitboot.bmc.override_state import Override, OverrideRecord, OverrideState, ResetMarks
from gitboot.cli.main import cli
from gitboot.controller.reconcile_inputs import Inbox, UnrecordedClearings
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, write_updates
from gitboot.errors import HeldByAnother, LeaseLost, LedgerError
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import BatchRejected, FetchLogUnavailable
from gitboot.fetchlog.spool import ForwardedBatch, SpoolWriter, encode_line
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger import leader_lease as lease_module
from gitboot.ledger.leader_lease import HeldLease, Holder, Lease, LeaseKeeper, now_s
from gitboot.ledger.open_ledger import open_ledger, summarize_ledger
from gitboot.ledger.postgresql import LeaseConnection, PostgresDatabase
from gitboot.ledger.postgresql_fetch_log import FETCHES, RecordedFetches, SharedFetchLog
from gitboot.ledger.store import PostgresAddress, Store, read_address, write_address
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, Run
from gitboot.resolve.server_decision import BootFile, OverrideEnabled, OverrideTarget
from gitboot.status.conditions import Event
from tests.helpers.cases import require_value
from tests.helpers.fleets import at
from tests.helpers.postgresql import ForwardedConnections, PostgresServer, postgresql, public_folder
from tests.helpers.running_instance import eventually

NOON = at("20T12:00")
ONE, TWO = Holder("one", "host-a:/state", 3600), Holder("two", "host-b:/state", 3600)
PAUSED, NEXT = Holder("one", "host-a:/state", 0.3), Holder("two", "host-b:/state", 0.3)
OFFER, KEY = Digest("ab" * 32), Digest("cd" * 32)
GIVEN = Observation(
    server="web01", path="boot/v1/boot/m/boot.ipxe", client="10.0.0.7", at=NOON, digest=KEY, offer=OFFER
)
SPOOL = SpoolWriter("0" * 32, "7-0123456789abcdef")


@pytest.fixture
def path(postgres_server: PostgresServer, tmp_path: Path) -> Path:
    return postgres_server.ledger(tmp_path)


@pytest.fixture
def recorded_fetches(path: Path) -> Iterator[RecordedFetches]:
    with closing(RecordedFetches(address(path), Lease("one", 1))) as made:
        yield made


def address(path: Path, **settings: str) -> PostgresAddress:
    found = require_value(read_address(path))
    return structs.replace(found, url=found.url + "".join(f"%20-c{name}%3D{value}" for name, value in settings.items()))


def read_schema(path: Path) -> str:
    return address(path).url.rpartition("%3D")[2]


class LeaseClock:
    """The time of a lease, by the clock of its holder and by the server's clock. A test lets it pass."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema
        self._ahead_s = 0.0

    def now_s(self) -> float:
        return now_s() + self._ahead_s

    def advance(self, seconds: float, execute: Callable[[str], object] | None = None) -> None:
        """Let time pass. ``execute`` runs a statement in a transaction that has locked the lease."""
        self._ahead_s += seconds
        (execute or self._server.sql)(
            f"UPDATE {self._schema}.lease SET until = until - interval '1 second' * {seconds}"
        )


@pytest.fixture
def clock(path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    made = LeaseClock(postgres_server, read_schema(path))
    for module in ("leader_lease", "postgresql"):
        monkeypatch.setattr(f"gitboot.ledger.{module}.now_s", made.now_s)
    return made


def end_lease(path: Path, server: PostgresServer) -> None:
    server.sql(f"UPDATE {read_schema(path)}.lease SET until = clock_timestamp()")


@contextmanager
def hold_lease(path: Path, holder: Holder) -> Iterator[tuple[Store, HeldLease]]:
    with open_ledger(path) as ledger:
        ledger.database.take_lease(holder)
        yield ledger, require_value(ledger.database.lease)


def make_keeper(path: Path, lease: HeldLease, lost: Callable[[], None] = lambda: None) -> LeaseKeeper:
    return LeaseKeeper(lease, LeaseConnection(address(path)), lost)


def change_holder(path: Path, server: PostgresServer, lease: HeldLease) -> None:
    """Let another holder take the lease, as after its end."""
    server.sql(f"UPDATE {read_schema(path)}.lease SET holder = 'two', epoch = {lease.lease.epoch + 1}")


def test_an_instance_keeps_the_lease_until_it_has_not_renewed_it_for_the_duration(
    path: Path, clock: LeaseClock
) -> None:
    with hold_lease(path, ONE) as (one, first):
        with open_ledger(path) as two:
            for _ in range(2):
                with pytest.raises(HeldByAnother, match="in use by the instance host-a:/state"):
                    two.database.take_lease(TWO)
                clock.advance(ONE.seconds / 2)
            two.database.take_lease(TWO)
            assert require_value(two.database.lease).lease == (TWO.id, first.lease.epoch + 1)
            with pytest.raises(LeaseLost, match="another instance is active"), one.writing() as tx:
                instance_tables.write_facts(tx, accepted="stale")
            with two.writing() as tx:
                instance_tables.write_facts(tx, accepted="c0ffee")
        assert instance_tables.read_facts(one).accepted == "c0ffee"
        with pytest.raises(LeaseLost), one.writing() as tx:  # a lost lease stays lost, even if it is free
            instance_tables.write_facts(tx, accepted="stale")
        with pytest.raises(LeaseLost):
            first.check()


def test_the_same_instance_gets_its_own_lease_at_once_and_a_clean_end_releases_it(path: Path) -> None:
    with hold_lease(path, ONE):
        with hold_lease(path, ONE) as (_, again):
            assert again.lease.epoch == 1, "what it has published goes on as it is"
            assert again.previous_place is None, "nobody else had it"
        assert require_value(summarize_ledger(path).lease)[:4] == (1, "host-a:/state", "one", False)
    with hold_lease(path, TWO) as (_, lease):
        assert (lease.lease.epoch, lease.previous_place) == (2, "host-a:/state")


def test_artifact_checks_of_one_host_do_not_count_on_another(path: Path) -> None:
    seen = {BootFile(url="http://a/kernel", sha256=OFFER, size=7): Sighting(presence=Presence.MISSING, message="404")}
    with hold_lease(path, ONE) as (one, _):
        learnt = apply_batch(LedgerSnapshot(facts=instance_tables.read_facts(one)), Batch(sightings=seen), NOON)
        write_updates(one, [learnt.update])
        assert instance_tables.read_sightings(one, ONE.place) == seen
        assert instance_tables.read_sightings(one, TWO.place) == {}


def test_only_one_of_many_simultaneous_requests_gets_the_lease(path: Path) -> None:
    with open_ledger(path):
        pass
    barrier = threading.Barrier(6, timeout=60)

    def take(number: int) -> bool:
        with open_ledger(path) as ledger:
            barrier.wait()
            is_taken = try_lease(ledger, Holder(str(number), "", 3600))
            barrier.wait()
            return is_taken

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take, range(6))) == 1


def test_a_thread_renews_the_lease_and_reports_when_it_is_lost(
    path: Path, clock: LeaseClock, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "SHARE", 10 * ONE.seconds)  # it is renewed ten times each second
    lost = threading.Event()
    with hold_lease(path, ONE) as (_, renewed), make_keeper(path, renewed, lost.set):
        for _ in range(3):
            clock.advance(0.9 * ONE.seconds)
            eventually(lambda: renewed.until_s > clock.now_s() + 0.5 * ONE.seconds)
        renewed.check()
        assert require_value(summarize_ledger(path).lease).is_current
        change_holder(path, postgres_server, renewed)
        assert lost.wait(60)
        with pytest.raises(LeaseLost, match="another instance is active"):
            renewed.check()


def test_a_copy_of_a_machine_or_of_its_state_is_another_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    ours = Holder.load(state)
    assert Holder.load(state) == ours, "however often it is started"
    shutil.copytree(state, copy)
    assert Holder.load(copy).id != ours.id
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(lease_module, "_BOOT_ID", tmp_path / "boot_id")
    assert Holder.load(state).id != ours.id, "a machine that was restored beside itself has started, too"


def test_an_instance_paused_together_with_its_clock_learns_from_the_server_that_the_lease_is_lost(
    path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine was paused because its host's disk was full. Its own clock stood still."""
    with hold_lease(path, ONE) as (_, lease), make_keeper(path, lease) as keeper:
        keeper.check()
        change_holder(path, postgres_server, lease)
        lease.check()
        with pytest.raises(LeaseLost, match="another instance is active"):
            keeper.check()
        with pytest.raises(LeaseLost, match="another instance is active"):
            lease.check()


def refuse_writes(path: Path, server: PostgresServer) -> None:
    schema = read_schema(path)
    refuses = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END'"
    server.sql(f"CREATE FUNCTION {schema}.refuse() {refuses}")
    server.sql(f"CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.lease EXECUTE FUNCTION {schema}.refuse()")


def test_an_action_that_only_ends_something_needs_the_last_confirmed_lease(
    path: Path, postgres_server: PostgresServer
) -> None:
    """A successful read in the meantime does not matter."""
    with hold_lease(path, ONE) as (ledger, lease), closing(LeaseConnection(address(path))) as renewing:
        keeper = LeaseKeeper(lease, renewing, lambda: None)
        keeper.check_ending()
        refuse_writes(path, postgres_server)
        for _ in range(2):  # the second time the keeper knows that the server does not respond
            keeper.check_ending()
            with pytest.raises(LeaseLost, match="the database did not confirm"):
                keeper.check()
            assert instance_tables.read_facts(ledger).accepted is None
        lease.until_s = now_s()
        with pytest.raises(LeaseLost, match="another instance may be active"):
            keeper.check_ending()


def test_an_action_that_only_ends_something_does_not_wait_for_a_renewal_that_another_thread_awaits(
    path: Path, postgres_server: PostgresServer
) -> None:
    asks, answer = threading.Event(), threading.Event()

    class Waiting(LeaseConnection):
        def renew(self, held: HeldLease) -> None:
            asks.set()
            assert answer.wait(60)
            super().renew(held)

    with hold_lease(path, ONE) as (_, lease), closing(Waiting(address(path))) as renewing:
        keeper = LeaseKeeper(lease, renewing, lambda: None)
        other = threading.Thread(target=keeper.check)
        other.start()
        assert asks.wait(60)
        keeper.check_ending()
        assert other.is_alive()
        answer.set()
        other.join()
        change_holder(path, postgres_server, lease)
        with pytest.raises(LeaseLost, match="another instance is active"):
            keeper.check_ending()


def test_the_end_of_an_override_is_recorded_without_a_write_to_the_database(path: Path, tmp_path: Path) -> None:
    """A database that only answers reads rejects a write after most of the duration of the lease."""
    uuid = SystemUuid("34323550-3939-5a43-3244-373535534d32")
    note = tmp_path / "withdrawals.json"
    record = OverrideRecord(
        reason="maintenance/repair/1",
        plan_digest="d",
        override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE),
        marks=ResetMarks(),
        state=OverrideState.CLEARING,
        at=NOON,
        clears_from=NOON,
    )
    with hold_lease(path, ONE) as (ledger, lease):
        inbox = Inbox(ledger, clearings=UnrecordedClearings(note, "l"), clock=lambda: NOON)
        with psycopg.connect(address(path).url) as another:
            another.execute("SELECT 1 FROM lease FOR UPDATE")
            inbox.record(uuid, record)
        assert not ledger.is_failing
        assert list(UnrecordedClearings(note, "l")) == [(uuid, record, True)]
        assert server_tables.read_overrides(ledger) == {}
        lease.until_s = now_s()
        with pytest.raises(LeaseLost, match="another instance may be active"):
            inbox.record(uuid, structs.replace(record, state=OverrideState.CLEARED))
        assert list(UnrecordedClearings(note, "l")) == [(uuid, record, True)]


def test_while_the_server_is_unreachable_no_lease_is_valid(path: Path) -> None:
    nowhere = PostgresAddress(url="postgresql://nobody@127.0.0.1:1/none?sslmode=disable")
    with hold_lease(path, ONE) as (_, lease):
        keeper = LeaseKeeper(lease, LeaseConnection(nowhere), lambda: None)
        with pytest.raises(LeaseLost, match="the database did not confirm"):
            keeper.check()


def test_a_lease_is_renewed_even_if_the_server_has_closed_the_connection(
    path: Path, postgres_server: PostgresServer
) -> None:
    """After a restart of the server, a recorded override is set, and no operator has to decide."""
    with hold_lease(path, ONE) as (_, lease), make_keeper(path, lease) as keeper:
        keeper.check()
        others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        postgres_server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        keeper.check()


def write_revision(ledger: Store, revision: str) -> None:
    with ledger.writing() as tx:
        instance_tables.write_facts(tx, accepted=revision)
        tx.mark()


def test_a_restored_backup_is_not_written_to(path: Path, postgres_server: PostgresServer) -> None:
    with hold_lease(path, ONE) as (ledger, _):
        for revision in ("c0ffee", "decade"):
            write_revision(ledger, revision)
        schema = read_schema(path)
        postgres_server.sql(f"UPDATE {schema}.facts SET value = '1' WHERE name = 'changes'")
        for _ in range(2):
            with pytest.raises(LedgerError, match="or a backup replaced the ledger"):
                write_revision(ledger, "facade")
        assert instance_tables.read_facts(ledger).accepted == "decade"
        with pytest.raises(LedgerError, match="or a backup replaced the ledger"):
            ledger.read_back()


def test_an_instance_that_cannot_renew_its_lease_uses_it_only_for_its_duration(path: Path, clock: LeaseClock) -> None:
    with hold_lease(path, ONE) as (ledger, lease):
        for _ in range(2):
            lease.check()
            clock.advance(ONE.seconds / 2)
        with pytest.raises(LeaseLost, match="could not be renewed for"):
            lease.check()
        with ledger.writing() as tx:  # the lease was not taken meanwhile
            instance_tables.write_facts(tx, accepted="c0ffee")
        lease.check()


def test_a_renewal_counts_from_before_its_request() -> None:
    renewed = HeldLease(lease=Lease("one", 1), seconds=60, name="the ledger")
    renewed.extend(now_s() - 60)
    with pytest.raises(LeaseLost, match="could not be renewed for 60 s"):
        renewed.check()
    renewed.extend(now_s())
    renewed.check()


def test_a_transaction_may_last_longer_than_the_lease(
    path: Path, clock: LeaseClock, postgres_server: PostgresServer
) -> None:
    took: list[str] = []

    def take(store: Store) -> None:
        with pytest.raises(HeldByAnother):
            store.database.take_lease(TWO)
        took.append("asked")

    with hold_lease(path, ONE) as (one, lease), open_ledger(path) as two:
        one.database.execute("SET idle_in_transaction_session_timeout = 0")
        two.database.execute("SET lock_timeout = 0")
        waiting = threading.Thread(target=take, args=(two,))
        with one.writing() as tx:
            instance_tables.write_facts(tx, accepted="c0ffee")
            tx.send()
            waiting.start()
            eventually(lambda: int(postgres_server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted")))
            clock.advance(2 * ONE.seconds, one.database.execute)
        waiting.join()
        assert took == ["asked"], "who waits for it sees that it is renewed"
        lease.check()


def test_a_rolled_back_transaction_renews_no_lease(path: Path, clock: LeaseClock) -> None:
    with hold_lease(path, ONE) as (one, lease):
        clock.advance(ONE.seconds)
        with suppress(LookupError), one.writing() as tx:
            instance_tables.write_facts(tx, accepted="c0ffee")
            tx.send()
            raise LookupError
        assert instance_tables.read_facts(one).accepted is None
        with pytest.raises(LeaseLost, match="could not be renewed for"):
            lease.check()
        with open_ledger(path) as two:
            two.database.take_lease(TWO)


# Fetches of endpoints


@contextmanager
def open_fetch_log(path: Path) -> Iterator[SharedFetchLog]:
    with closing(SharedFetchLog(address(path))) as made:
        yield made


def test_a_one_time_boot_is_recorded_under_the_lease_of_the_output_tree_only(path: Path, clock: LeaseClock) -> None:
    with hold_lease(path, ONE) as (_, first), open_fetch_log(path) as here, open_fetch_log(path) as there:
        assert here.find_served_boot("web01", OFFER, None) is None
        assert here.serving_identity == str(first.lease)
        here.record(GIVEN, str(first.lease))
        assert require_value(there.find_served_boot("web01", OFFER, None)).first == GIVEN
        clock.advance(ONE.seconds)
        with hold_lease(path, TWO) as (_, second):
            for giver in (None, str(first.lease), "0/nobody"):
                with pytest.raises(FetchLogUnavailable):
                    here.record(replace(GIVEN, server="web02"), giver)
            assert here.find_served_boot("web02", KEY, None) is None, "it was not recorded"
            here.record(replace(GIVEN, server="web02"), str(second.lease))


def test_a_batch_is_stored_once_and_without_withdrawn_lines(path: Path, recorded_fetches: RecordedFetches) -> None:
    lines = [encode_line(replace(GIVEN, client=f"10.0.0.{number}")) for number in range(3)]
    taken_back = b'{"not":%d}\n' % len(lines[0])
    with open_ledger(path), open_fetch_log(path) as fetches:
        batch = ForwardedBatch(SPOOL, 0, b"".join(lines[:2]))
        for _ in range(2):
            assert fetches.receive_batch(batch, [SPOOL.file]) == batch.end
        assert fetches.receive_batch(ForwardedBatch(SPOOL, 7, lines[2]), [SPOOL.file]) == batch.end, (
            "it says what is missing"
        )
        last = ForwardedBatch(SPOOL, batch.end, taken_back + lines[2] + b"no observation\n")
        assert fetches.receive_batch(last, [SPOOL.file]) == last.end
        found = recorded_fetches.read({})
        assert [each.client for each in found.observations] == ["10.0.0.0", "10.0.0.2"]
        assert recorded_fetches.read(found.offsets).observations == []
        assert recorded_fetches.read(found.offsets).offsets == found.offsets
        fetches.receive_batch(ForwardedBatch(SpoolWriter(SPOOL.spool, "8-0123456789abcdef"), 0, lines[0]), [])
        assert fetches.receive_batch(batch, []) == batch.end, (
            "of a file that is gone nothing is kept: it is another one by now"
        )


def test_a_writer_may_go_back_but_not_forward(path: Path) -> None:
    with open_ledger(path), open_fetch_log(path) as fetches:
        batch = ForwardedBatch(SPOOL, 0, encode_line(GIVEN))
        assert fetches.receive_batch(batch, [SPOOL.file]) == batch.end
        for place in (batch.end + 1, 7, 8):
            fetches.reset_place(SPOOL, place)
        other = SpoolWriter(SPOOL.spool, "8-0123456789abcdef")
        assert fetches.receive_batch(batch, [SPOOL.file, other.file]) == 7
        assert fetches.receive_batch(batch._replace(writer=other), [SPOOL.file, other.file]) == batch.end


def test_an_uncommitted_fetch_is_waited_for_and_never_left_out(path: Path, recorded_fetches: RecordedFetches) -> None:
    """The order of ids differs from the order in which transactions end."""
    with hold_lease(path, ONE) as (_, lease):
        count, read = 40, list[Observation]()

        def record(first: int) -> None:
            with open_fetch_log(path) as fetches:
                for number in range(first, first + count):
                    fetches.record(replace(GIVEN, server=f"web{number}"), str(lease.lease))

        offsets = dict[str, int]()
        with ThreadPoolExecutor(4) as pool:
            recording = [pool.submit(record, each * count) for each in range(4)]
            while not all(each.done() for each in recording):
                found = recorded_fetches.read(offsets)
                offsets, read = found.offsets, [*read, *found.observations]
        read += recorded_fetches.read(offsets).observations
        assert sorted(int(each.server[3:]) for each in read) == list(range(4 * count))


def test_stored_fetches_are_deleted_in_batches_of_a_thousand_by_the_holder_of_the_lease(
    path: Path, recorded_fetches: RecordedFetches
) -> None:
    lines = b"".join(encode_line(replace(GIVEN, at=NOON + timedelta(seconds=each))) for each in range(1000))
    with hold_lease(path, ONE), open_fetch_log(path) as fetches:
        fetches.receive_batch(ForwardedBatch(SPOOL, 0, lines), [SPOOL.file])
        taken = recorded_fetches.read({}).offsets
        assert recorded_fetches.count_deletions_after({FETCHES: taken[FETCHES] - 1}) == 0
        assert recorded_fetches.count_deletions_after(taken) == 1
        with closing(RecordedFetches(address(path), Lease("two", 1))) as other:
            other.delete_read_fetches(taken, 1)
        assert recorded_fetches.count_deletions_after(taken) == 1, "another's lease"
        recorded_fetches.delete_read_fetches(taken, 1)
        assert len(recorded_fetches.read({}).observations) == 0
        fetches.find_served_boot("web01", OFFER, None)
        assert fetches.deletion_count == 1
        fetches.receive_batch(ForwardedBatch(SPOOL, len(lines), encode_line(GIVEN)), [SPOOL.file])
        recorded_fetches.delete_read_fetches(recorded_fetches.read({}).offsets, 1)
        assert len(recorded_fetches.read({}).observations) == 1, "no new number"


def test_without_its_server_no_fetch_is_recorded_and_none_is_lost(tmp_path: Path) -> None:
    nowhere = PostgresAddress(url=f"postgresql://postgres@/postgres?host={tmp_path}")
    with closing(SharedFetchLog(nowhere)) as fetches:
        with pytest.raises(FetchLogUnavailable):
            fetches.find_served_boot("web01", OFFER, None)
        assert fetches.failure is not None
        with pytest.raises(FetchLogUnavailable):
            fetches.record(GIVEN, "1/one")
        with pytest.raises(BatchRejected, match="No such file"):
            fetches.receive_batch(ForwardedBatch(SPOOL, 0, encode_line(GIVEN)), [])
        with (
            closing(RecordedFetches(nowhere, Lease("one", 1))) as read,
            pytest.raises(LedgerError, match="the recorded fetches cannot be read"),
        ):
            read.read({})
        fetches.ping()


def test_a_ledger_is_moved_only_after_all_fetches_are_read_and_then_serves_no_boot(
    path: Path, recorded_fetches: RecordedFetches, tmp_path: Path
) -> None:
    with hold_lease(path, ONE) as (_, lease), open_fetch_log(path) as fetches:
        fetches.find_served_boot("web01", OFFER, None)
        fetches.record(GIVEN, str(lease.lease))
        last = recorded_fetches.read({}).offsets
    copy = ("ledger", "copy", "--state", str(tmp_path), "--to", "file")
    refused = CliRunner().invoke(cli, copy)
    assert "no instance has processed 1 of the requests in" in str(refused.exception)
    with hold_lease(path, ONE) as (ledger, _), ledger.writing() as tx:
        server_tables.write_spool_positions(tx, last)
    nowhere = address(path)
    assert CliRunner().invoke(cli, copy).exit_code == 0
    with closing(SharedFetchLog(nowhere)) as fetches:
        with pytest.raises(FetchLogUnavailable):
            fetches.record(GIVEN, str(lease.lease))
        with pytest.raises(FetchLogUnavailable):
            fetches.find_served_boot("web01", OFFER, None)
        assert fetches.failure is not None
        assert "was moved to" in fetches.failure
        with pytest.raises(BatchRejected, match="was moved to"):
            fetches.receive_batch(ForwardedBatch(SPOOL, 0, encode_line(GIVEN)), [])


def test_the_page_about_standbys_creates_a_ledger_and_gives_an_endpoint_minimal_rights(tmp_path: Path) -> None:
    """Run the statements and the command of the documentation, with another host."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "standby.md").read_text()
    makes, grants = re.findall(r"```sql\n(.*?)```", page, re.S)
    (named,) = re.findall(r"--ledger (postgresql://\S+)", page)
    with postgresql() as server:
        url = f"{named.replace('@db.example.net', '@')}?host={server.folder / 'socket'}"
        its = PostgresAddress(url=url.replace("gitboot@", "boot_endpoints@"))
        for each in makes.split(";")[:-1]:
            server.sql(each)
        write_address(path := tmp_path / "ledger.sqlite", PostgresAddress(url=url))
        with hold_lease(path, ONE) as (_, lease):
            server.sql(grants, database="gitboot")
            with closing(SharedFetchLog(its)) as fetches:
                assert fetches.find_served_boot("web01", OFFER, None) is None
                fetches.record(GIVEN, str(lease.lease))
                batch = ForwardedBatch(SPOOL, 0, encode_line(GIVEN) + b'{"not":0}\n')
                assert fetches.receive_batch(batch, []) == batch.end
            with (
                closing(PostgresDatabase(its, read_only=True)) as database,
                pytest.raises(LedgerError, match="permission denied"),
                database.reading(),
            ):
                database.execute("SELECT * FROM records")


# Paused writers


class LimitedConnections(ForwardedConnections):
    """Connections to the socket of the server that carry so many bytes in both directions, and then nothing more."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / ".s.PGSQL.5432"))
        listening.listen()
        super().__init__(listening, server.connect)
        self._from, self._to = server.folder / "socket", folder
        self.carries: float = math.inf
        self.count = 0
        self._counting = threading.Lock()

    def address(self, path: Path, **settings: str) -> PostgresAddress:
        found = address(path, **settings)
        return structs.replace(found, url=found.url.replace(str(self._from), str(self._to)))

    def begin(self, carries: float) -> None:
        with self._counting:
            self.count, self.carries = 0, carries

    def forward(self, data: bytes) -> bytes:
        with self._counting:
            data = data[: int(min(len(data), max(0, self.carries - self.count)))]
            self.count += len(data)
        return data

    @property
    def is_stuck(self) -> bool:
        return self.count >= self.carries


@pytest.fixture
def line(postgres_server: PostgresServer) -> Iterator[LimitedConnections]:
    with public_folder() as folder, LimitedConnections(postgres_server, folder) as made:
        yield made


def written(ledger: Store, many: int = 1200) -> None:
    known = [
        (SystemUuid(f"{each:032}"), f"web{each}", Record(runs={"m": Run(1, NOON, NOON)} if each % 2 else {}))
        for each in range(many)
    ]
    with ledger.writing() as tx:
        server_tables.write_records(tx, known)
        instance_tables.write_events(
            tx, [Event(at=NOON, type="Planned", message=f"web{each}", facts={}) for each in range(many)]
        )
        server_tables.write_verdicts(tx, dict.fromkeys(range(many), "Provisioned"))
        tx.send()
        assert len(list(ledger.database.stream_rows("SELECT * FROM events"))) >= many
        instance_tables.write_facts(tx, accepted="c0ffee")


def test_if_a_writer_is_paused_at_any_byte_another_takes_over_after_the_timeout_of_the_server(
    path: Path, line: LimitedConnections, tmp_path: Path, postgres_server: PostgresServer, lives: int
) -> None:
    """The server waits in different ways for bytes that it receives and for bytes that it sends."""
    chance, count = random.Random(2026), 8 + 4 * lives
    (state := tmp_path / "paused").mkdir()
    write_address(state / "ledger.sqlite", line.address(path, idle_in_transaction_session_timeout="400"))
    (patient := tmp_path / "patient").mkdir()
    write_address(patient / "ledger.sqlite", line.address(path))

    def write(state: Path = state) -> None:
        with suppress(LedgerError), hold_lease(state / "ledger.sqlite", PAUSED) as (ledger, _):
            written(ledger)

    def paused_at(byte: int) -> threading.Thread | None:
        """Return a writer that is paused after so many bytes, or None if it ended before."""
        line.begin(byte)
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        eventually(lambda: line.is_stuck or not thread.is_alive())
        return thread if line.is_stuck else None

    with open_ledger(path) as two:
        write(patient)
        assert instance_tables.read_facts(two).accepted == "c0ffee"
        line.begin(math.inf)
        write(patient)  # as those that follow: it finds what the first has made
        total = line.count
        for number in range(count):
            thread = eventually(lambda: paused_at(int(total * (number + chance.random()) / count)))  # noqa: B023
            eventually(lambda: try_lease(two, NEXT))
            two.database.lease = None
            line.begin(math.inf)
            line.hang_up()
            thread.join(60)
            assert not thread.is_alive()
            end_lease(path, postgres_server)


def try_lease(ledger: Store, holder: Holder) -> bool:
    try:
        ledger.database.take_lease(holder)
    except HeldByAnother:
        return False
    return True


def read(fetches: RecordedFetches) -> None:
    with suppress(LedgerError):
        fetches.read({})


def test_an_instance_that_is_paused_while_it_reads_fetches_does_not_block_others(
    path: Path, line: LimitedConnections
) -> None:
    lines = b"".join(encode_line(replace(GIVEN, at=NOON + timedelta(seconds=each))) for each in range(5000))
    with hold_lease(path, ONE) as (_, lease), open_fetch_log(path) as fetches:
        fetches.receive_batch(ForwardedBatch(SPOOL, 0, lines), [SPOOL.file])
        with closing(RecordedFetches(line.address(path), lease.lease)) as paused:
            assert paused.read({FETCHES: 5000}).observations == []
            line.begin(len(lines) // 2)
            thread = threading.Thread(target=read, args=(paused,), daemon=True)
            thread.start()
            eventually(lambda: line.is_stuck)
            fetches.find_served_boot("web01", OFFER, None)
            fetches.record(GIVEN, str(lease.lease))
            line.hang_up()
            thread.join(60)
            assert not thread.is_alive()


WRITES: Final = """
import sys
from pathlib import Path
from gitboot.ledger.open_ledger import open_ledger
from tests.ledger.test_leader_lease import PAUSED, written
with open_ledger(Path(sys.argv[1])) as ledger:
    ledger.database.take_lease(PAUSED)
    print("writes", flush=True)
    while True:
        written(ledger, 2000)
"""


def test_if_a_process_is_stopped_at_any_point_of_a_write_another_takes_over(
    path: Path, postgres_server: PostgresServer, lives: int, tmp_path: Path
) -> None:
    """Pause a real process with SIGSTOP."""
    chance = random.Random(2028)
    (state := tmp_path / "stopped").mkdir()
    write_address(state / "ledger.sqlite", address(path, idle_in_transaction_session_timeout="1000"))
    with open_ledger(path) as two:
        for _ in range(2 * lives):
            command = [sys.executable, "-c", WRITES, str(state / "ledger.sqlite")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, 1))
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: try_lease(two, NEXT))
            two.database.lease = None
            process.kill()
            process.wait()
            process.stdout.close()
            end_lease(path, postgres_server)


def test_the_server_waits_only_seconds_for_a_writer_that_hangs(path: Path) -> None:
    """This is the longest time that another instance waits after the end of the lease."""
    with open_ledger(path) as ledger:
        (waits,) = ledger.database.execute(
            "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')"
        )
    assert waits == ("5s", "10s")
