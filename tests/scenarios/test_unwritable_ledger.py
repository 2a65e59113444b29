"""Windows that end while the ledger cannot be written: published files, overrides at BMCs, and the loop itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from msgspec import structs

from gitboot.bmc.override_state import Medium, MediumState, OverrideState
from gitboot.controller import checkpoint
from gitboot.controller import loop as instance_loop
from gitboot.controller.instance import assembly
from gitboot.controller.instance.state_directory import CACHE, WITHDRAWALS, read_status
from gitboot.controller.loop import Loop
from gitboot.controller.operator_requests import ConfirmClock
from gitboot.jsonio import Digest, format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.publish import tree_reader
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.status.work_progress import Stage, StageTimes
from tests.controller.records.test_provisioning_installations import Maintained as InMaintenance
from tests.controller.test_checkpoint import PatientSearch
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.fleets import (
    SEED,
    document,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    policy,
    profile,
    server,
    store_credentials,
    write_configuration,
)
from tests.helpers.forked_commands import RUN_FIRST, SHORT_LOCK_TIMEOUT
from tests.helpers.instance_in_process import NOON, Bench, Parts, run_in_process
from tests.helpers.instance_with_bmcs import POOL, Blade, Rack, run_command, wait_for_condition
from tests.helpers.postgresql import PostgresServer, postgresql
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, eventually, locked_ledger

PASSWORD = "correct horse"
WEB01 = SystemUuid(make_uuid("web01"))
IN_WINDOW = "20T11:00 20T13:00"


# With real processes


def make_repair(end: datetime) -> tuple[str, ...]:
    """A maintenance of all servers that boots a system which writes no disk."""
    window = f"window: {{end: '{format_instant(end.replace(microsecond=0))}'}}"
    job = document("Maintenance", "repair", f"select: All, profile: repair, {window}, reinstall: EveryBoot")
    return image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7"), job


def boots_maintenance(rack: Rack, blade: Blade) -> bool:
    return "memtest-7" in (rack.output / "boot" / blade.entry.removeprefix("/")).read_text()


def clears_from(rack: Rack, blade: Blade) -> datetime | None:
    """From when on the ledger lets gitboot clear the override of a blade without a write."""
    with Store.open(rack.state / "ledger.sqlite") as ledger:
        found = server_tables.read_overrides(ledger).get(SystemUuid(blade.uuid), {})
    return next((each.clears_from for each in found.values() if each.state is OverrideState.CONFIRMED), None)


def end_window(
    rack: Rack,
    failing: Callable[[], AbstractContextManager[None]],
    *arguments: object,
    withdraws: bool = True,
    restarts: bool = False,
) -> None:
    """A window ends while the ledger takes no write; the ledger fails before the end even on a slow machine."""
    web = rack.add("web01")
    rack.pool = (*POOL, *make_repair(datetime.now(UTC) + timedelta(hours=9)))
    rack.push()
    with ExitStack() as process, ExitStack() as failure:
        instance = process.enter_context(rack.running(*arguments, records="fresh"))
        eventually(lambda: web.stands and boots_maintenance(rack, web))
        for seconds in (5, 15, 30, 60, 120, 240):
            end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
            rack.pool = (*POOL, *make_repair(end))
            rack.push(f"Repair for {seconds} seconds")
            assert rack.run_command("reconcile").code == 0
            eventually(partial(_is_set_or_over, rack, web, end))
            trying = ExitStack()
            trying.enter_context(failing())
            if restarts:
                process.close()
            if datetime.now(UTC) < end and web.stands:
                failure.enter_context(trying)
                break
            trying.close()
            if restarts:
                instance = process.enter_context(rack.running(*arguments))
        else:
            raise AssertionError("the machine is too slow")
        if restarts:
            instance = process.enter_context(rack.running(*arguments, ready=False))
        eventually(lambda: not boots_maintenance(rack, web))
        if withdraws:
            eventually(lambda: not web.stands)
        failure.close()
        wait_for_condition(instance, "LedgerWritable", status=True, reason="Writable")
        eventually(lambda: not web.stands and not (rack.state / WITHDRAWALS).exists())
        assert not boots_maintenance(rack, web)


def _is_set_or_over(rack: Rack, web: Blade, end: datetime) -> bool:
    if datetime.now(UTC) >= end:
        return True
    return web.stands and boots_maintenance(rack, web) and clears_from(rack, web) == end


@pytest.mark.parametrize("restarts", [False, True])
def test_finding_c2_a_window_ends_in_files_and_at_bmcs_while_the_ledger_is_locked_and_over_a_restart(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    if restarts:  # the other case waits as long for the lock as an instance does
        monkeypatch.setenv(RUN_FIRST, SHORT_LOCK_TIMEOUT)
    end_window(rack, lambda: locked_ledger(rack.state), restarts=restarts)


@contextmanager
def hang_server(server: PostgresServer) -> Iterator[None]:
    """Let the PostgreSQL of the ledger keep its connections without a response, as long as the block runs."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)  # it makes no more children from now on
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    with ExitStack() as stack:
        stack.callback(server.process.send_signal, signal.SIGCONT)
        for child in map(int, children):
            stopped_child = _signal(child, signal.SIGSTOP)
            if stopped_child:
                stack.callback(_signal, child, signal.SIGCONT)
        yield


def _signal(process: int, number: signal.Signals) -> bool:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("lease_s", [600, 5])
def test_finding_c2_while_postgresql_hangs_a_window_ends_at_bmcs_only_during_the_lease(
    rack: Rack, lease_s: int
) -> None:
    """After the lease has ended while the server hangs, another instance may take it, so nothing changes at BMCs."""
    with postgresql() as server:
        rack.address = server.address()
        arguments = ("--ledger", rack.address.url, *write_configuration(lease_seconds=lease_s))
        end_window(rack, lambda: hang_server(server), *arguments, withdraws=lease_s == 600)


def test_finding_c2_a_window_ends_even_if_the_instance_restarts_while_its_postgresql_is_gone(rack: Rack) -> None:
    """The process ends with an error each time that the service manager starts it, and ends the window before."""
    with postgresql() as server:
        rack.address = server.address()
        ledger = ("--ledger", rack.address.url)
        web = rack.add("web01")
        rack.pool = (*POOL, *make_repair(datetime.now(UTC) + timedelta(hours=9)))
        rack.push()
        with rack.running(*ledger, records="fresh"):
            eventually(lambda: boots_maintenance(rack, web))
        for seconds in (5, 15, 30, 60, 120, 240):
            with rack.running(*ledger) as instance:
                end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
                rack.pool = (*POOL, *make_repair(end))
                commit = rack.push(f"Repair for {seconds} seconds")
                assert rack.run_command("reconcile").code == 0
                assert instance.status()["applied"]["commit"] == commit
            if boots_maintenance(rack, web):
                break  # the process has ended before the window
    assert boots_maintenance(rack, web), "the machine is too slow"

    def starts_again() -> bool:
        ended = run_command("run", rack.repository.bare, "--out", rack.output, "--state", rack.state, *ledger)
        assert ended.code != 0 and "Traceback" not in ended.err
        return not boots_maintenance(rack, web)

    eventually(starts_again)


# Reconcile by reconcile


def decide(bench: Bench, *more: str, often: str = "Never", spec: str = "", names: tuple[str, ...] = ("web01",)) -> None:
    bench.decide(
        fleet(),
        *(server(name, f"role: web, name: {name}", spec) for name in names),
        image("flatcar-1"),
        image("memtest-7", "writesDisk: false"),
        profile("web", "flatcar-1"),
        profile("repair", "memtest-7"),
        policy("web", often=often),
        *more,
    )


def read_served_files(bench: Bench, name: str = "web01") -> str:
    files = bench.target.servers[name]
    assert files is not None
    return "\n".join(file.content.decode() for path, file in sorted(files.items()) if path.endswith("boot.ipxe"))


def test_a_maintenance_leaves_the_files_even_if_the_ledger_does_not_know_a_later_one(
    bench: Bench, tmp_path: Path
) -> None:
    ahead = [
        maintenance(f"wipe{day}", f"{day}T11:00 {day}T13:00", "networkBoot: Once, run: 1", boots="web")
        for day in range(21, 28)
    ]
    decide(bench, maintenance("repair", IN_WINDOW), *ahead)
    bench.reconcile()
    assert "memtest-7" in read_served_files(bench)
    with locked_ledger(tmp_path, bench.ledger):
        bench.wait(hours=1)
        bench.reconcile()
        assert "memtest-7" not in read_served_files(bench)
        condition = bench.condition("LedgerWritable")
        assert condition is not None and not condition[0]
    bench.reconcile()
    condition = bench.condition("Published")
    assert condition is not None and condition[0]


def test_an_installation_after_a_maintenance_is_withheld_until_the_ledger_stores_it(
    bench: Bench, tmp_path: Path
) -> None:
    decide(bench, maintenance("repair", IN_WINDOW), often="Once", spec="provision: 1")
    bench.reconcile()
    with locked_ledger(tmp_path, bench.ledger):
        bench.wait(hours=1)
        bench.reconcile()
        assert "memtest-7" not in read_served_files(bench) and "flatcar-1" not in read_served_files(bench)
        bench.reconcile()
        assert "flatcar-1" not in read_served_files(bench)
    bench.reconcile()
    assert "flatcar-1" in read_served_files(bench)


def test_an_installation_that_the_ledger_has_stored_stays_offered(bench: Bench, tmp_path: Path) -> None:
    decide(
        bench,
        maintenance("repair", IN_WINDOW, select="{matchLabels: {name: web02}}"),
        often="Once",
        spec="provision: 1",
        names=("web01", "web02"),
    )
    bench.reconcile()
    with locked_ledger(tmp_path, bench.ledger):
        bench.wait(hours=1)
        bench.reconcile()
        bench.reconcile()
        assert "flatcar-1" in read_served_files(bench, "web01")
        assert "memtest-7" not in read_served_files(bench, "web02") and "flatcar-1" not in read_served_files(
            bench, "web02"
        )


@pytest.mark.parametrize("is_confirmed", [False, True], ids=["", "the clock is confirmed"])
def test_a_window_that_ended_without_the_ledger_stays_closed_after_the_clock_was_set_back(
    bench: Bench, tmp_path: Path, is_confirmed: bool
) -> None:
    """The instance remembers the time, and writes the time to the ledger as soon as the ledger can be written."""
    decide(bench, maintenance("repair", IN_WINDOW))
    bench.reconcile()
    assert "memtest-7" in read_served_files(bench)
    with locked_ledger(tmp_path, bench.ledger):
        bench.wait(hours=1)
        bench.reconcile()
        for minutes in (-30, 5, 5):
            bench.wait(minutes=minutes)
            bench.reconcile()
            assert "memtest-7" not in read_served_files(bench)
    if is_confirmed:
        bench.request(ConfirmClock.kind, reason="it is right")
    for _ in range(3):
        bench.reconcile()
        assert ("memtest-7" in read_served_files(bench)) is is_confirmed
    heartbeat = instance_tables.read_facts(bench.ledger).heartbeat
    assert heartbeat is not None and (heartbeat.at > bench.now) is not is_confirmed


# After a restart


class RestartedInstance:
    """Instances of one STATE and OUTPUT, one after the other: web01 is offered an installation, web02 is in repair."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, NOON
        self._repository = Repository.create(folder / "git")

    def push(self, *more: str) -> None:
        servers = [server(name, f"role: web, name: {name}", "provision: 1") for name in ("web01", "web02")]
        images = [image("flatcar-1"), image("memtest-7", "writesDisk: false")]
        profiles = [profile("web", "flatcar-1"), profile("repair", "memtest-7")]
        self._repository.push(
            {"fleet.yaml": "---\n".join((fleet(), *servers, *images, *profiles, policy("web", often="Once"), *more))}
        )

    @contextmanager
    def running(self, initial: str | None = None, *, evaluates: bool = True) -> Iterator[Parts]:
        clock, bare = (lambda: self.now), self._repository.bare
        with run_in_process(self.folder, bare, initial=initial, clock=clock, evaluates=evaluates) as parts:
            parts.ledger.database.execute("PRAGMA busy_timeout = 0")
            yield parts

    def reconcile(self, parts: Parts) -> None:
        parts.source.fetch()
        parts.reconciler.reconcile(self.now)

    def lock_ledger(self) -> AbstractContextManager[None]:
        return locked_ledger(self.folder / "state")

    def boots(self, name: str) -> str:
        return (self.folder / "output" / self._entry(name)).read_text()

    def find_recorded_plan(self, parts: Parts, name: str) -> Digest | None:
        """Return the plan that the ledger has for the file of a server as it is dated now."""
        modified = int((self.folder / "output" / self._entry(name)).stat().st_mtime)
        found = server_tables.find_version(parts.ledger, self._entry(name), modified)
        return found[0] if found is not None else None

    def _entry(self, name: str) -> str:
        return f"boot/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe"

    def begin(self) -> None:
        """Run the first instance, which publishes both boots, and end it."""
        self.push(maintenance("repair", IN_WINDOW, select="{matchLabels: {name: web02}}"))
        with self.running("fresh") as parts:
            self.reconcile(parts)
            self.reconcile(parts)
        assert "flatcar-1" in self.boots("web01") and "memtest-7" in self.boots("web02")


@pytest.fixture
def restarting(tmp_path: Path) -> RestartedInstance:
    made = RestartedInstance(tmp_path)
    made.begin()
    return made


def test_a_restart_without_the_ledger_ends_windows_and_keeps_a_published_installation(
    restarting: RestartedInstance,
) -> None:
    stands = restarting.boots("web01")
    with restarting.running() as parts:
        with restarting.lock_ledger():
            for hours in (0, 1, 0):
                restarting.now += timedelta(hours=hours)
                restarting.reconcile(parts)
                assert restarting.boots("web01") == stands
                assert ("memtest-7" in restarting.boots("web02")) is (restarting.now == NOON)
                assert "flatcar-1" not in restarting.boots("web02")
                assert not parts.reconciler.status.condition("LedgerWritable")
        restarting.reconcile(parts)
        assert restarting.boots("web01") == stands and "flatcar-1" in restarting.boots("web02")
        assert parts.reconciler.status.condition("LedgerWritable")
        assert parts.reconciler.status.condition("Published")
        assert [event.type for event in parts.events].count("Accepted") == 1


def test_a_window_that_ended_before_a_restart_without_the_ledger_ends(restarting: RestartedInstance) -> None:
    restarting.now += timedelta(hours=1)
    with restarting.running() as parts, restarting.lock_ledger():
        restarting.reconcile(parts)
        assert "memtest-7" not in restarting.boots("web02")


def test_a_window_ends_after_a_restart_on_a_full_disk(tmp_path: Path) -> None:
    """A clean end leaves no log beside the ledger, and a full disk has no room for another one."""
    with small_disk(tmp_path, size="6m", name="state") as state:
        state.chmod(0o700)
        restarting = RestartedInstance(tmp_path)
        restarting.begin()
        stands = restarting.boots("web01")
        assert not (state / "ledger.sqlite-wal").exists()
        fill(state / "filler")
        with restarting.running() as parts:
            for hours in (0, 1, 0):
                restarting.now += timedelta(hours=hours)
                restarting.reconcile(parts)
                assert restarting.boots("web01") == stands
                assert ("memtest-7" in restarting.boots("web02")) is (restarting.now == NOON)
                assert not parts.reconciler.status.condition("LedgerWritable")
            (state / "filler").unlink()
            restarting.reconcile(parts)
            assert "flatcar-1" in restarting.boots("web02")
            assert parts.reconciler.status.condition("LedgerWritable")


def test_a_restart_without_the_ledger_accepts_no_new_commit_and_withholds_an_unpublished_boot(
    restarting: RestartedInstance,
) -> None:
    """The file of web01 is missing, so nothing shows that the ledger has stored the boot."""
    before = restarting.boots("web02")
    restarting.push()
    shutil.rmtree(restarting.folder / "output/boot/v1/boot" / make_mac("web01").replace(":", "-"))
    with restarting.running() as parts:
        with restarting.lock_ledger():
            restarting.reconcile(parts)
            assert ("flatcar-1" in restarting.boots("web01"), restarting.boots("web02")) == (False, before)
        restarting.reconcile(parts)
        assert all("flatcar-1" in restarting.boots(name) for name in ("web01", "web02"))


def test_a_window_that_ended_without_the_ledger_stays_closed_if_the_clock_is_set_back_before_a_restart(
    restarting: RestartedInstance,
) -> None:
    with restarting.lock_ledger():
        with restarting.running() as parts:
            restarting.reconcile(parts)
            assert "memtest-7" in restarting.boots("web02")
            restarting.now += timedelta(hours=1)
            restarting.reconcile(parts)
            assert "memtest-7" not in restarting.boots("web02")
        restarting.now -= timedelta(minutes=30)
        for _ in range(2):
            with restarting.running() as parts:
                restarting.reconcile(parts)
                assert "memtest-7" not in restarting.boots("web02")
    with restarting.running() as parts:
        restarting.reconcile(parts)
        assert "memtest-7" not in restarting.boots("web02")
        heartbeat = instance_tables.read_facts(parts.ledger).heartbeat
        assert heartbeat is not None and heartbeat.at > restarting.now
        assert not (restarting.folder / "state" / WITHDRAWALS).exists()


@pytest.fixture
def resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestartedInstance:
    """Like `restarting`, but each instance resumes from a checkpoint, as with hundreds of servers."""
    monkeypatch.setattr(checkpoint, "MIN_SERVERS", 0)
    monkeypatch.setattr(checkpoint, "_INTERVAL", timedelta())
    monkeypatch.setattr(assembly, "DamageSearch", PatientSearch)
    made = RestartedInstance(tmp_path)
    made.begin()
    assert (tmp_path / "state" / CACHE).exists()
    return made


@pytest.mark.parametrize("resumes", [False, True])
def test_a_boot_that_was_stopped_after_a_restart_without_the_ledger_is_offered_again(
    request: pytest.FixtureRequest, resumes: bool
) -> None:
    """The stop ends before the ledger takes a write, so each plan equals the one before the restart."""
    restarting: RestartedInstance = request.getfixturevalue("resuming" if resumes else "restarting")
    stands, output = restarting.boots("web01"), restarting.folder / "output" / "ops"
    with ExitStack() as process, ExitStack() as failure:
        failure.enter_context(restarting.lock_ledger())
        parts = process.enter_context(restarting.running())
        assert parts.reconciler.state.publication.complete is resumes
        tree_reader.write_stop_file(output, StopOrder("ada", "wrong image", everything=False), restarting.now)
        restarting.reconcile(parts)
        assert "flatcar-1" not in restarting.boots("web01")
        tree_reader.remove_stop_file(output)
        restarting.reconcile(parts)
        failure.close()
        restarting.reconcile(parts)
        assert restarting.boots("web01") == stands
        assert restarting.find_recorded_plan(parts, "web01") is not None
        assert parts.reconciler.status.condition("Published")


@pytest.mark.parametrize("resumes", [False, True])
def test_each_file_published_after_a_restart_without_the_ledger_is_stored_with_its_date(
    request: pytest.FixtureRequest, resumes: bool
) -> None:
    """The access log of a mirror only has the date of what was sent."""
    restarting: RestartedInstance = request.getfixturevalue("resuming" if resumes else "restarting")
    restarting.push(maintenance("repair", "20T13:00 20T14:00", select="{matchLabels: {name: web01}}"))
    with restarting.running() as parts:
        restarting.reconcile(parts)
        before = restarting.find_recorded_plan(parts, "web01")
        assert before is not None and restarting.find_recorded_plan(parts, "web02") is not None
    with restarting.running() as parts:
        with restarting.lock_ledger():
            for boot in ("flatcar-1", "memtest-7", "flatcar-1"):
                restarting.reconcile(parts)
                assert (boot in restarting.boots("web01")) is (restarting.now.hour < 14)
                restarting.now += timedelta(hours=1)
        restarting.reconcile(parts)
        assert all("flatcar-1" in restarting.boots(name) for name in ("web01", "web02"))
        assert None not in (
            restarting.find_recorded_plan(parts, "web01"),
            restarting.find_recorded_plan(parts, "web02"),
        )


def test_a_running_system_finds_its_user_data_while_the_ledger_stores_no_offer(tmp_path: Path) -> None:
    """The fetch of its boot is recorded; later offers cannot be stored."""
    with InMaintenance(tmp_path) as bench:
        plan = bench.start_maintenance()
        assert plan.data is not None and "bios-1" in read_served_files(bench)
        bench.ledger.database.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.offers BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        bench.entry(plan)
        condition = bench.condition("LedgerWritable")
        assert condition is not None and not condition[0]
        assert "bios-1" in read_served_files(bench), "a loader that asks again gets the same boot"
        files = bench.target.servers["web01"]
        assert files is not None and any(plan.data in path for path in files)
        bench.ledger.database.execute("DROP TRIGGER temp.full")
        bench.reconcile()
        condition = bench.condition("Published")
        assert condition is not None and condition[0]


def test_a_stop_that_the_ledger_cannot_store_applies_to_the_files(bench: Bench, tmp_path: Path) -> None:
    decide(bench, often="Once", spec="provision: 1")
    bench.reconcile()
    assert "flatcar-1" in read_served_files(bench)
    with locked_ledger(tmp_path, bench.ledger):
        tree_reader.write_stop_file(tmp_path / "spool", StopOrder("ada", "wrong image", everything=False), bench.now)
        bench.reconcile()
        assert "flatcar-1" not in read_served_files(bench)
    bench.reconcile()
    condition = bench.condition("LedgerWritable")
    assert condition is not None and condition[0]


# Overrides


class Maintained:
    """web01 with its BMC, on which the override of a maintenance is set."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        store_credentials(folder, password=PASSWORD)
        self.machine = Machine("web01", uuid=make_uuid("web01"))
        self.bmc = stack.enter_context(RedfishServer(Service(self.machine, credentials={"root": PASSWORD})))
        self.bench = self._make_bench("fresh")
        self.bench.now = self.machine.now
        self.decide(IN_WINDOW)
        self.bench.reconcile()
        assert self.shown == "Once" and self.state is OverrideState.CONFIRMED

    def _make_bench(self, initial: str | None) -> Bench:
        return self._stack.enter_context(Bench(self.folder, initial=initial, credentials=self.folder))

    def decide(self, window: str) -> None:
        access = f"bmc: {{address: '{self.bmc.url}', system: {self.machine.path}, credentials: rack}}"
        decide(self.bench, maintenance("repair", window, "networkBoot: Once, run: 1"), spec=access)

    def wait(self, **given: float) -> None:
        self.machine.advance(timedelta(**given).total_seconds())
        self.bench.now = self.machine.now

    def restart(self) -> None:
        """Another process on the same ledger, with the same commit."""
        before = self.bench
        before.close()
        self.bench = self._make_bench(None)
        self.bench.now, self.bench.commits.newest = before.now, before.commits.newest

    @property
    def shown(self) -> str:
        return str(self.machine.system()["Boot"]["BootSourceOverrideEnabled"])

    @property
    def state(self) -> OverrideState | None:
        kept = self.bench.snapshot.list_overrides(WEB01)
        return next((each.state for each in kept if each.reason == "maintenance/repair/1"), None)

    @property
    def clearings_file(self) -> Path:
        return self.folder / WITHDRAWALS

    @property
    def has_clearings(self) -> bool:
        """Return whether the file contains records, and not only the time of the clock."""
        return self.clearings_file.exists() and json.loads(self.clearings_file.read_bytes())["withdrawals"] != []


@pytest.fixture
def maintained(tmp_path: Path) -> Iterator[Maintained]:
    with ExitStack() as stack:
        yield Maintained(tmp_path, stack)


def test_without_the_ledger_an_override_is_cleared_at_the_end_of_its_window(maintained: Maintained) -> None:
    with locked_ledger(maintained.folder, maintained.bench.ledger):
        maintained.wait(hours=1)
        maintained.bench.reconcile()
        assert (maintained.shown, maintained.clearings_file.exists()) == ("Disabled", True)
    maintained.bench.reconcile()
    assert (maintained.state, maintained.clearings_file.exists()) == (OverrideState.CLEARED, False)
    assert maintained.bench.told().count("OverrideWithdrawn") == 1


def test_a_clearing_is_recorded_while_a_reconcile_writes_to_the_ledger(maintained: Maintained) -> None:
    """A reconcile holds what jobs write down until its own write has ended, which may take all of a lease."""
    maintained.wait(hours=1)
    inbox, (record,) = maintained.bench.instance.inbox, maintained.bench.snapshot.list_overrides(WEB01)
    with inbox.hold():
        job = Thread(
            target=inbox.record, args=(WEB01, structs.replace(record, state=OverrideState.CLEARING)), daemon=True
        )
        job.start()
        job.join(60)
        assert not job.is_alive()
        assert maintained.clearings_file.exists()


def test_without_the_ledger_nothing_is_cleared_before_the_end_of_its_window(maintained: Maintained) -> None:
    """A clearing because of a stop needs the ledger: a reset before it has consumed the override."""
    with locked_ledger(maintained.folder, maintained.bench.ledger):
        tree_reader.write_stop_file(
            maintained.folder / "spool", StopOrder("ada", "wait", everything=True), maintained.bench.now
        )
        maintained.wait(minutes=1)
        maintained.bench.reconcile()
        assert (maintained.shown, maintained.has_clearings) == ("Once", False)


def test_a_clearing_without_the_ledger_is_known_after_a_restart(maintained: Maintained) -> None:
    with locked_ledger(maintained.folder, maintained.bench.ledger):
        maintained.wait(hours=1)
        maintained.bench.reconcile()
    maintained.restart()
    maintained.bench.reconcile()
    assert (maintained.state, maintained.clearings_file.exists()) == (OverrideState.CLEARED, False)
    assert maintained.bench.told().count("OverrideWithdrawn") == 1


def test_an_override_that_is_gone_without_a_note_is_not_known_and_never_set_again(maintained: Maintained) -> None:
    """STATE refused the note, and the process that had it in memory was killed."""
    maintained.clearings_file.mkdir()
    with locked_ledger(maintained.folder, maintained.bench.ledger):
        maintained.wait(hours=1)
        maintained.bench.reconcile()
        assert maintained.shown == "Disabled"
    maintained.clearings_file.rmdir()
    maintained.restart()
    maintained.bench.reconcile()
    assert maintained.state is OverrideState.LOST
    patches = len(maintained.machine.writes)
    maintained.decide("20T11:00 20T16:00")
    for _ in range(3):
        maintained.wait(minutes=1)
        maintained.bench.reconcile()
    assert (maintained.state, len(maintained.machine.writes)) == (OverrideState.LOST, patches)


def test_a_medium_that_is_ejected_after_its_override_was_cleared_is_recorded(maintained: Maintained) -> None:
    (set_,) = maintained.bench.snapshot.list_overrides(WEB01)
    medium = Medium(url="http://b/1.iso", state=MediumState.EJECTING, at=set_.at)
    withdrawn = structs.replace(set_, state=OverrideState.CLEARED, medium=medium)
    ejected = withdrawn.with_medium(structs.replace(medium, state=MediumState.EJECTED))
    assert withdrawn.is_ended_by(ejected)
    assert not withdrawn.is_ended_by(structs.replace(set_, state=OverrideState.CLEARING))
    assert not ejected.is_ended_by(withdrawn)


def test_a_note_of_an_older_setting_changes_nothing(maintained: Maintained) -> None:
    """A person has opened the reason since, and the override was set again in a later window."""
    with locked_ledger(maintained.folder, maintained.bench.ledger):
        maintained.wait(hours=1)
        maintained.bench.reconcile()
    note = maintained.clearings_file.read_bytes()
    maintained.bench.reconcile()
    maintained.decide("20T11:00 20T16:00")
    maintained.bench.reconcile()
    assert maintained.state is OverrideState.CONFIRMED
    maintained.clearings_file.write_bytes(note)
    maintained.restart()
    maintained.bench.reconcile()
    assert (maintained.state, maintained.shown, maintained.clearings_file.exists()) == (
        OverrideState.CONFIRMED,
        "Once",
        False,
    )


def test_an_extended_window_moves_the_time_from_which_its_override_may_be_cleared(
    maintained: Maintained,
) -> None:
    maintained.decide("20T11:00 20T16:00")
    maintained.bench.reconcile()
    (record,) = maintained.bench.snapshot.list_overrides(WEB01)
    assert record.clears_from is not None and record.clears_from.hour == 16
    maintained.wait(hours=2)
    maintained.machine.run_through()
    maintained.bench.now = maintained.machine.now
    maintained.bench.reconcile()
    assert maintained.state is OverrideState.CONSUMED


# A stage that hangs


def test_a_stage_stalls_if_it_makes_no_progress_and_not_while_it_does() -> None:
    now_s = [0.0]
    laps = StageTimes(lambda: now_s[0])
    assert laps.find_stalled_stage(120) is None
    lap = laps.start(Stage.TAKE_IN)
    laps.start()  # the fetch, beside it
    now_s[0] = 119
    assert laps.find_stalled_stage(120) is None
    now_s[0] = 120
    assert laps.find_stalled_stage(120) is Stage.TAKE_IN
    lap(Stage.TAKE_IN)
    assert laps.find_stalled_stage(120) is None
    now_s[0] = 240
    assert laps.find_stalled_stage(120) is Stage.ACCEPT
    laps.note_progress()
    assert laps.find_stalled_stage(120) is None
    lap.end(Stage.RECONCILE)
    now_s[0] = 1000
    assert laps.find_stalled_stage(120) is None


def test_finding_c2_a_loop_that_hangs_shows_a_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_loop, "STALLED_S", 0.0)
    monkeypatch.setattr(instance_loop, "_CHECK_EVERY_S", 0.01)
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})

    def conditions() -> dict[str, bool]:
        return {each["type"]: each["status"] for each in read_status(tmp_path / "state")["conditions"]}

    with run_in_process(tmp_path, repository.bare) as parts:
        running = Loop(
            parts.reconciler, parts.source, poll_s=3600, clock=lambda: datetime.now(UTC), tell=parts.events.append
        )
        thread = Thread(target=running.run)
        with parts.ledger._lock:  # as with a database that does not respond
            thread.start()
            eventually(lambda: (tmp_path / "state/status.json").exists() and conditions().get("Reconciling") is False)
        monkeypatch.setattr(instance_loop, "STALLED_S", 3600.0)  # longer than a stage takes on any machine
        eventually(lambda: parts.reconciler.status.applied is not None)
        running.fetch_now()
        eventually(lambda: "Reconciling" not in conditions())
        running.stop()
        thread.join()
        assert "StageHangs" in {event.type for event in parts.events}
