"""A standby: of two instances with one ledger one is active after any fault; nothing is set or served twice."""

from __future__ import annotations

import logging
import random
import re
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pygit2
import pytest
from msgspec import structs

from gitboot.cli.commands import ledger as ledger_command
from gitboot.controller.instance.state_directory import CACHE, LEDGER
from gitboot.git.fetch import CLONE
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.schema import TABLES
from gitboot.ledger.store import get_mark_path, read_mark
from gitboot.publish.tree_reader import STOP_FILE
from gitboot.render.endpoint_files import TERMS
from tests.helpers.cases import require_value
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.fleets import image, policy, profile
from tests.helpers.fleets import server as described
from tests.helpers.instance_with_bmcs import (
    LARGE,
    LEASE_S,
    Blade,
    Host,
    Links,
    Pair,
    Rack,
    find_boot_at_host,
    pair,
    run_command,
    separate_ledger,
    wait_for_condition,
)
from tests.helpers.postgresql import PostgresServer, postgresql, public_folder
from tests.helpers.running_instance import Instance, begin_records, close_after, copy_live_folder, eventually, git

_logger = logging.getLogger(__name__)
OVERRIDE_WAIT_S = 600  # an override recorded while the server went down is set a minute later


def start_both(rack: Rack, hosts: Pair) -> None:
    """One instance is active, with begun records, and the other is a standby."""
    rack.push()
    hosts.one.start()
    eventually(lambda: hosts.one.url)
    begin_records(hosts.one.state, "fresh")
    hosts.two.start()
    eventually(lambda: hosts.two.reason == "StandbyStarted")


def test_one_instance_is_active_and_the_other_shows_that_it_is_standby(rack: Rack, server: PostgresServer) -> None:
    web = rack.add("web01", provision=1)
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        eventually(lambda: web.stands)
        assert eventually(hosts.acting) is hosts.one
        assert str(hosts.one.state) in hosts.two.condition["message"]
        assert hosts.two.url == ""
        told = run_command("status", "--state", hosts.two.state)
        assert ", standby\n" in told.out
        assert "StandbyStarted" in told.out
        assert "servers" not in told.out
        assert f"the active instance is {socket.gethostname()}:{hosts.one.state}" in " ".join(
            run_command("doctor", "--state", hosts.two.state).out.split()
        )
        for command in TYPED:
            refused = run_command(*command, "--state", hosts.two.state)
            assert refused.code == 64, refused
            place = f"{socket.gethostname()} with --state {hosts.one.state}"
            assert f"run the command on {place}" in " ".join(refused.err.split())
            assert "Traceback" not in refused.err
        assert run_command("records", "show", "--state", hosts.one.state).code == 0
        said = run_command("status", "--state", hosts.one.state).out
        assert re.search(r"^lease          1, until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", said, re.M), said
        assert "the instance on this host is active and is renewing lease 1 (valid until" in " ".join(
            run_command("doctor", "--state", hosts.one.state).out.split()
        )
        assert not hosts.one.has_event("TookOver"), "nobody had acted"
        epoch = hosts.last_epoch
        hosts.one.stop()
        assert hosts.lease() is None or hosts.lease()[0] > epoch, "it is given back at once"  # type: ignore[index]
        assert hosts.wait_for_takeover(epoch) is hosts.two
        (took,) = (event for event in hosts.two.events if event["type"] == "TookOver")
        assert took["lease"] == epoch + 1
        assert took["before"] == f"{socket.gethostname()}:{hosts.one.state}"
        assert "TookOver" in run_command("events", "--state", hosts.two.state).out
        hosts.one.start()
        eventually(lambda: hosts.one.reason == "StandbyStarted")
        hosts.one.stop()
        assert hosts.one.told[-1]["type"] == "Stopped"
        assert web.times_set == 1
        suspended = ("suspend", "--until", "2100-01-01T00:00Z", "--reason", "a test", "--state")
        assert run_command(*suspended, hosts.one.state).code == 64, (
            "also where nothing runs: it would write beside who acts"
        )
        hosts.two.stop()
        assert run_command(*suspended, hosts.one.state).code == 0, "nobody acts: it has the lease while it writes"
        assert hosts.lease() is None
        assert hosts.last_epoch == epoch + 2


def test_stop_and_allow_requests_reach_the_active_instance_on_the_same_host_and_no_other(
    rack: Rack, server: PostgresServer
) -> None:
    rack.add("web01")
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        state, words = (
            hosts.two.state,
            [each / STOP_FILE for each in (hosts.two.state / "spool", hosts.one.state / "spool")],
        )
        stop, start = ("stop-installs", "--reason", "a test", "--state", state), ("allow-installs", "--state", state)
        status = hosts.one.instance.status  # type: ignore[union-attr]

        def offers() -> bool:
            return all(each["status"] for each in status()["conditions"] if each["type"] == "InstallsAllowed")

        eventually(offers)
        stopped = run_command(*stop)
        assert (
            stopped.code,
            f"uses the active instance (--state {hosts.one.state})" in " ".join(stopped.err.split()),
        ) == (0, True)
        eventually(lambda: not offers())
        assert [each.exists() for each in words] == [False, True]
        assert run_command(*start).code == 0
        eventually(offers)
        assert [each.exists() for each in words] == [False, False]
        fetched = run_command("reconcile", "--state", state)
        assert (
            fetched.code,
            f"uses the active instance (--state {hosts.one.state})" in " ".join(fetched.err.split()),
        ) == (0, True)
        server.sql(f"UPDATE {hosts.schema}.lease SET place = 'elsewhere:/state'")
        for refused in (run_command(*stop), run_command(*start), run_command("reconcile", "--state", state)):
            assert refused.code == 64
            assert "run the command on elsewhere with --state /state" in " ".join(refused.err.split())
        assert offers()
        assert [each.exists() for each in words] == [False, False]
        hosts.one.pause()  # otherwise it publishes this file again
        server.sql(f"UPDATE {hosts.schema}.lease SET until = 'infinity'")  # and no instance takes over from it
        (hosts.one.folder / "output" / TERMS).unlink()  # as where only a path is the same
        stopped = run_command(*stop)
        assert (stopped.code, "only the endpoints that use" in stopped.err) == (8, True)
        assert words[0].exists(), "endpoints of that host obey"
        assert run_command(*start).code == 8
        assert not words[0].exists()


def test_an_instance_whose_ledger_was_moved_is_no_longer_active(rack: Rack, server: PostgresServer) -> None:
    """One instance is stopped, the other paused, and the ledger is copied to a file of the first."""
    web = rack.add("web01", provision=1)
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        eventually(lambda: web.stands)
        hosts.one.stop()
        assert hosts.wait_for_takeover(1) is hosts.two
        copy = ("ledger", "copy", "--state", hosts.one.state, "--to", "file")

        def copied() -> bool:
            hosts.two.pause()
            eventually(lambda: hosts.lease() is None)
            if run_command(*copy).code == 0:
                return True
            hosts.two.resume()  # it was in the middle of a write, whose lock it holds
            return False

        eventually(copied, OVERRIDE_WAIT_S)
        new = rack.add("web02", provision=1)
        rack.push("One more")
        hosts.two.resume()
        eventually(lambda: hosts.two.reason == "LedgerLeft")
        assert f"was moved to {socket.gethostname()}:{hosts.one.state}" in hosts.two.condition["message"]
        (lost,) = eventually(lambda: [event for event in hosts.two.events if event["type"] == "LeaseLost"])
        assert "was moved to" in lost["message"]
        hosts.two.kill()
        hosts.two.start()
        assert hosts.two.instance is not None
        assert hosts.two.instance.process.wait(120) == 64
        assert not new.stands
        assert web.times_set == 1


def test_an_instance_reports_a_killed_ledger_copy_and_starts_once_the_copy_is_repeated(
    rack: Rack, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other = server.address(), tmp_path / "other"
    other.mkdir()
    open_ledger(other / LEDGER).close()
    copy = ("ledger", "copy", "--state", other, "--to", ledger.url)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_command, "record_move", kill)
        with pytest.raises(Killed):
            run_command(*copy)
    rack.push()
    with pair(rack, server, ledger) as hosts:
        server.sql(f"UPDATE {hosts.schema}.lease SET until = clock_timestamp()")
        hosts.one.start()
        eventually(lambda: hosts.one.reason == "LedgerUnfinished")
        assert f"an unfinished copy of {other / LEDGER}" in hosts.one.condition["message"]
        assert "run it again on that host: gitboot ledger copy" in hosts.one.condition["message"]
        assert run_command(*copy).code == 0
        eventually(lambda: hosts.one.url)
        hosts.one.stop()


class Killed(BaseException):
    """Raised where the copy ends."""


def kill(*_: object) -> None:
    raise Killed


TYPED = (
    ("records", "show"),
    ("records", "set", "web01", "pending", "--reason", "a test"),
    ("bmc", "get"),
    ("approve", "ab" * 32, "--guard", "maxReinstalls", "--reason", "a test"),
    ("resume",),
)


def _count_results(cache: Path) -> int:
    if not cache.exists():
        return 0
    with closing(sqlite3.connect(f"file:{cache}?mode=ro", uri=True)) as connection, suppress(sqlite3.Error):
        return int(connection.execute("SELECT count(*) FROM entry").fetchone()[0])
    return 0


@pytest.mark.usefixtures("large_fleets")
def test_a_standby_evaluates_the_newest_commit_and_tolerates_an_invalid_one(rack: Rack, server: PostgresServer) -> None:
    """So that only the ledger is to be read, and files are to be made, when it takes over."""
    rack.add("web01")
    many = [f"web{number:04}" for number in range(LARGE)]
    rack.repository.push({f"{name}.yaml": described(name, "role: web") for name in many})
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        eventually(lambda: _count_results(hosts.two.state / CACHE) > 2 * LARGE)  # a file and a decision each
        rack.repository.push({"web0000.yaml": "kind: Server\n"})
        eventually(lambda: hosts.one.has_event("Rejected"))
        epoch = hosts.last_epoch
        assert hosts.two.reason == "StandbyStarted"
        hosts.one.kill()
        assert hosts.wait_for_takeover(epoch) is hosts.two
        states = hosts.two.folder / "output" / "ops" / "servers"
        eventually(lambda: len(list(states.glob("*.json"))) == LARGE + 1)


def test_finding_r2_a_standby_follows_the_branch_of_the_active_instance(rack: Rack, server: PostgresServer) -> None:
    bare = rack.repository.bare
    rack.add("web01")
    with pair(rack, server, server.address()) as hosts:
        rack.push()
        hosts.one.start()
        eventually(lambda: hosts.one.url and hosts.one.has_event("Fetched"))
        begin_records(hosts.one.state, "fresh")
        wip = git(bare, "commit-tree", "-p", "main", "-m", "Work in progress", "main^{tree}")
        git(bare, "update-ref", "refs/heads/experiment", wip)
        git(bare, "symbolic-ref", "HEAD", "refs/heads/experiment")
        hosts.two.start()
        eventually(lambda: hosts.two.reason == "StandbyStarted")
        commit = rack.repository.push({"README.md": "On main.\n"})
        clone = hosts.two.state / CLONE
        eventually(lambda: clone.exists() and commit in pygit2.Repository(clone).odb)
        assert wip not in pygit2.Repository(clone).odb
        epoch = hosts.last_epoch
        hosts.one.kill()
        assert hosts.wait_for_takeover(epoch) is hosts.two
        instance = require_value(hosts.two.instance)
        found = wait_for_condition(instance, "BranchFollowed", status=False, reason="DefaultBranchChanged")
        assert "is now experiment" in found["message"]
        assert instance.status()["branch"] == "refs/heads/main"
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
        assert wip not in pygit2.Repository(clone).odb


def test_a_new_active_instance_withholds_what_a_held_revert_takes_back_before_its_clone_has_it(
    rack: Rack, server: PostgresServer
) -> None:
    def pool(image_name: str) -> tuple[str, ...]:
        images = image("flatcar-1"), image("flatcar-2")
        return (*images, profile("web", image_name), policy("web", often="OnImageChange"))

    rack.pool = pool("flatcar-1")
    installed, waiting = (rack.add("web01"), rack.add("web02")), rack.add("web03")
    with pair(rack, server, server.address()) as hosts:
        rack.push()
        hosts.one.start()
        eventually(lambda: hosts.one.url)
        begin_records(hosts.one.state, "adopt")
        status = hosts.one.instance.status  # type: ignore[union-attr]
        rack.pool = pool("flatcar-2")
        bad = rack.push("Roll out the bad image")
        held = eventually(lambda: status()["attempted"]["held"])
        given = ("approve", held["digest"], "--guard", "maxReinstalls", "--reason", "planned")
        assert run_command(*given, "--state", hosts.one.state).code == 0
        eventually(lambda: all(web.stands for web in (*installed, waiting)))
        for web in installed:
            assert "flatcar-2" in find_boot_at_host(web, hosts.one)
        rack.pool = pool("flatcar-1")
        revert = rack.push("Take the bad image back")

        def is_held_by_installed() -> bool:
            attempted = status()["attempted"]
            held = attempted["held"] if attempted["commit"] == revert else None
            return held is not None and held["reinstalls"] == [web.name for web in installed]

        eventually(is_held_by_installed)  # so the ledger has the end of the other one's override
        assert not waiting.stands
        hosts.one.kill()
        git(rack.repository.bare, "update-ref", "refs/heads/main", bad)  # a copy from before the revert
        hosts.two.start()
        assert hosts.wait_for_takeover(hosts.last_epoch) is hosts.two
        status = hosts.two.instance.status  # type: ignore[union-attr]
        eventually(lambda: "web03" in [each["server"] for each in status()["attempted"]["withheld"]])
        assert "flatcar" not in find_boot_at_host(waiting, hosts.two)
        found = wait_for_condition(hosts.two.instance, "HistoryComplete", status=False, reason="CommitMissing")  # type: ignore[arg-type]
        assert revert[:12] in found["message"]
        git(rack.repository.bare, "update-ref", "refs/heads/main", revert)
        eventually(is_held_by_installed)
        assert waiting.times_set == 1


def test_a_new_active_instance_knows_served_boots_and_a_paused_one_serves_and_sets_nothing(
    rack: Rack, server: PostgresServer
) -> None:
    web = rack.add("web01", provision=1)
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        eventually(lambda: web.stands)
        assert "flatcar-1" in find_boot_at_host(web, hosts.one)
        status = hosts.one.instance.status  # type: ignore[union-attr]
        eventually(lambda: status()["records"] == {"Provisioned": 1})  # the outcome has reached the database
        hosts.one.pause()
        assert hosts.wait_for_takeover(1) is hosts.two
        status = hosts.two.instance.status  # type: ignore[union-attr]
        eventually(lambda: status()["records"] == {"Provisioned": 1})
        again = rack.add("web02", provision=1)
        rack.push("One more")
        eventually(lambda: again.stands)
        hosts.one.resume()
        eventually(lambda: [each for each in hosts.one.events if each["type"] == "LeaseLost"])
        eventually(lambda: hosts.one.reason == "StandbyStarted")
        assert (web.times_set, again.times_set) == (1, 1)
        assert "flatcar-1" in find_boot_at_host(again, hosts.two)
        eventually(lambda: status()["records"] == {"Provisioned": 2})
        for host in hosts.hosts:
            host.stop()


def test_a_standby_recognizes_a_restored_backup_of_the_database(rack: Rack, server: PostgresServer) -> None:
    web = rack.add("web01", provision=1)
    with pair(rack, server, server.address()) as hosts:
        start_both(rack, hosts)
        eventually(lambda: web.stands)
        tables = [table for table in (*TABLES, "fetches") if table != "spool"]
        server.sql(
            "CREATE SCHEMA backup; "
            + "; ".join(f"CREATE TABLE backup.{table} AS TABLE {hosts.schema}.{table}" for table in tables)
        )
        assert "flatcar-1" in find_boot_at_host(web, hosts.one)
        status = hosts.one.instance.status  # type: ignore[union-attr]
        eventually(lambda: status()["records"] == {"Provisioned": 1})
        come, noted = (get_mark_path(host.state / LEDGER) for host in hosts.hosts)
        eventually(lambda: read_mark(noted) == read_mark(come))
        hosts.one.kill()
        server.sql(
            "; ".join(
                f"DELETE FROM {hosts.schema}.{table}; INSERT INTO {hosts.schema}.{table} TABLE backup.{table}"
                for table in tables
            )
        )
        assert hosts.wait_for_takeover(1) is hosts.two
        status = hosts.two.instance.status  # type: ignore[union-attr]
        eventually(lambda: "RestoredLedger" in {each["reason"] for each in status()["conditions"]})
        assert "flatcar-1" not in find_boot_at_host(web, hosts.two)
        assert web.times_set == 1


def test_endpoints_on_other_hosts_serve_no_install_boot_from_an_earlier_output_tree(
    rack: Rack, server: PostgresServer, tmp_path: Path
) -> None:
    """A copy of the tree on another host shares the fetch log; it serves boots only for the active instance."""
    web, other = rack.add("web01", provision=1), rack.add("web02", provision=1)
    ledger = server.address()
    with pair(rack, server, ledger) as hosts:
        start_both(rack, hosts)
        eventually(lambda: [each["type"] for each in hosts.one.events].count("OverrideConfirmed") == 2)
        copy_live_folder(hosts.one.folder / "output", tmp_path / "copy")
        spool = ("--spool", tmp_path / "spool", "--ledger", ledger.url)
        serve = Instance.start("serve", *map(str, ("--out", tmp_path / "copy", "--listen", "127.0.0.1:0", *spool)))
        reader = threading.Thread(target=serve.read, daemon=True)
        reader.start()
        try:
            eventually(lambda: serve.url)
            web.machine.run_through()
            eventually(lambda: "flatcar-1" in serve.get(web.entry).text)
            assert hosts.one.instance is not None
            eventually(lambda: hosts.one.instance.status()["records"] == {"Pending": 1, "Provisioned": 1})  # type: ignore[union-attr]
            hosts.one.kill()
            hosts.wait_for_takeover(1)
            other.machine.run_through()
            refused = serve.get(other.entry).text
            assert "flatcar-1" not in refused
            assert "AnotherFetchLog" in refused
            assert hosts.two.instance is not None
            eventually(lambda: "flatcar-1" in hosts.two.instance.get(other.entry).text)  # type: ignore[union-attr]
        finally:
            serve.process.send_signal(signal.SIGTERM)
            serve.process.wait(120)
            close_after(reader, serve.errors)


def test_random_failures_of_hosts_and_database_never_set_an_installation_twice(rack: Rack, lives: int) -> None:
    """Killed, paused, ended, cut off from the server, which is killed, too: at random, while a server is installed."""
    rng = random.Random(2027)
    with separate_ledger() as (server, links):
        schema = server.new_schema()
        with pair(rack, server, *(links.address(schema, each) for each in range(2))) as hosts:
            web = rack.add("web01", provision=1)
            start_both(rack, hosts)
            befalls = FaultRun(rack, hosts, links, web, rng)
            for number in range(2, 4 + lives):
                befalls.run_installation(number)
            assert sum(befalls.counts.values()) == lives + 2
            _logger.info("%s; %s", dict(sorted(befalls.counts.items())), hosts.lease())


@dataclass
class FaultRun:
    """A server that is installed again and again, while something befalls the hosts or their ledger."""

    rack: Rack
    hosts: Pair
    links: Links
    web: Blade
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def run_installation(self, number: int) -> None:
        """Run one installation: the machine boots once its override is set, and the active instance serves it."""
        eventually(lambda: self.web.stands, OVERRIDE_WAIT_S)
        self.wait_for_boot()
        eventually(lambda: self.provisioned == number - 1)
        assert self.web.times_set == number - 1
        self.web.provision = number
        self.rack.push(f"Install it once more: {number}")
        time.sleep(self.rng.uniform(0, 2))
        acting = eventually(self.hosts.acting)
        fault = self.rng.choice(self.list_faults(acting))
        self.counts[fault.__name__] += 1
        fault(acting)
        eventually(lambda: self.web.stands, OVERRIDE_WAIT_S)
        eventually(self.hosts.acting)
        assert self.web.times_set == number, fault.__name__

    def wait_for_boot(self) -> None:
        """Reset the machine, and request its boot from the active instance until the installation is served."""
        eventually(self.is_ready)
        self.web.machine.run_through()
        eventually(self.is_boot_served)

    def is_ready(self) -> bool:
        host: Host = eventually(self.hosts.acting)
        return host.instance is not None and host.instance.get("/readyz").status_code == 200

    def is_boot_served(self) -> bool:
        host: Host = eventually(self.hosts.acting)
        return host.instance is not None and "flatcar-1" in host.instance.get(self.web.entry).text

    @property
    def provisioned(self) -> int:
        told = self.hosts.server.sql(
            f"SELECT provision FROM {self.hosts.schema}.records WHERE provisioned_at IS NOT NULL"
        )
        return int(told or 0)

    def list_faults(self, acting: Host) -> tuple[Callable[[Host], None], ...]:
        common = (
            self.kill_host,
            self.stop_host,
            self.pause_host,
            self.pause_briefly,
            self.kill_database,
            self.end_connections,
        )
        cutting = (self.disconnect_host,) if self.links.may_cut(self.hosts.hosts.index(acting)) else ()
        return (*common, self.make_read_only, *cutting)

    def kill_host(self, host: Host) -> None:
        epoch = self.epoch
        host.kill()
        self.hosts.wait_for_takeover(epoch)
        host.start()

    def stop_host(self, host: Host) -> None:
        epoch = self.epoch
        host.stop()
        self.hosts.wait_for_takeover(epoch)
        host.start()

    def pause_host(self, host: Host) -> None:
        epoch = self.epoch
        host.pause()
        self.hosts.wait_for_takeover(epoch)
        time.sleep(self.rng.uniform(0, 1))
        host.resume()

    def pause_briefly(self, host: Host) -> None:
        host.pause()
        time.sleep(self.rng.uniform(0, 1.2 * LEASE_S))
        host.resume()

    def disconnect_host(self, host: Host) -> None:
        epoch, number = self.epoch, self.hosts.hosts.index(host)
        self.links.cut(number)
        self.hosts.wait_for_takeover(epoch)
        self.links.join(number)

    def kill_database(self, _: Host) -> None:
        self.hosts.server.stop(signal.SIGQUIT)
        time.sleep(self.rng.uniform(0, 1.2 * LEASE_S))
        self.hosts.server.start()

    def end_connections(self, _: Host) -> None:
        self.hosts.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def make_read_only(self, host: Host) -> None:
        self.hosts.server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on")
        self.end_connections(host)
        time.sleep(self.rng.uniform(0, 1.2 * LEASE_S))
        self.hosts.server.sql("BEGIN READ WRITE; ALTER DATABASE postgres RESET ALL; COMMIT")
        self.end_connections(host)

    @property
    def epoch(self) -> int:
        return self.hosts.last_epoch


# The database itself


def test_after_a_failover_of_the_database_both_instances_continue_and_no_record_is_lost(rack: Rack) -> None:
    """A standby of the server that has all that was acknowledged; the primary dies and does not come back."""
    web = rack.add("web01", provision=1)
    with postgresql() as primary, public_folder() as made:
        replica = primary.replicate(made / "replica")
        try:
            address = primary.address()
            sockets = ",".join(str(each.folder / "socket") for each in (primary, replica))
            both = structs.replace(address, url=address.url.replace(str(primary.folder / "socket"), sockets))
            with pair(rack, primary, both) as hosts:
                start_both(rack, hosts)
                eventually(lambda: web.stands)
                assert "flatcar-1" in find_boot_at_host(web, hosts.one)
                primary.stop(signal.SIGKILL)
                replica.sql("SELECT pg_promote()")
                hosts.server = replica
                acting = eventually(hosts.acting)
                eventually(lambda: acting.instance.status()["records"] == {"Provisioned": 1})
                again = rack.add("web02", provision=1)
                rack.push("One more")
                eventually(lambda: again.stands)
                assert (web.times_set, again.times_set) == (1, 1)
        finally:
            replica.stop(signal.SIGQUIT)


def test_while_the_database_is_full_or_down_no_override_is_set_and_afterwards_both_continue(rack: Rack) -> None:
    """The standby reports that the database is down."""
    web = rack.add("web01", provision=1)
    with (
        public_folder() as made,
        small_disk(made, "192m") as disk,
        postgresql(folder=disk) as server,
        pair(rack, server, server.address()) as hosts,
    ):
        start_both(rack, hosts)
        eventually(lambda: web.stands)
        fill(disk / "rest")
        with suppress(psycopg.Error):  # until there is no room for its log
            while True:
                server.sql("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
        new = rack.add("web02", provision=1)
        rack.push("One more")
        eventually(lambda: [each for each in hosts.one.events if each["type"] == "LedgerFailed"])
        assert not new.stands
        disk.joinpath("rest").unlink()
        server.stop(signal.SIGQUIT)
        eventually(lambda: hosts.two.reason == "LedgerFailed")
        said = run_command("status", "--state", hosts.two.state).out
        assert ", standby\n" in said and "LedgerFailed" in said and "cannot be read" in said
        assert not re.search("^(servers|planned|next) ", said, re.M), said
        server.start()
        eventually(lambda: new.stands)
        eventually(lambda: "StandbyStarted" in (hosts.one.reason, hosts.two.reason))
        assert (web.times_set, new.times_set) == (1, 1)
