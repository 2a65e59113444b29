"""Clocks that are wrong, and ledgers that may be older copies: what an instance does with either."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp

import pytest

from gitboot.controller.forge import Forge, ForgeReader, Project, VerdictSender, list_verdicts
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.records.ledger_changes import RETENTION, Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fetchlog.spool import SpoolFile, encode_line
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables
from gitboot.ledger.instance_tables import Facts
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, StepEvidence, UnknownServe, make_record_fields
from gitboot.resolve.server_plan import Phase
from gitboot.review.guards import Limits
from gitboot.system_clock import ClockState, Uptime, decide_clock_state
from tests.helpers.cases import for_each, require_value
from tests.helpers.endpoints import render_states
from tests.helpers.fleets import SEED, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.forges import TOKEN, ForgeHost, forge_host
from tests.helpers.instance_in_process import NOON, Bench, Parts, run_in_process
from tests.helpers.running_instance import Repository

TWO_HOURS = timedelta(hours=2)


def fleet_of(provision: int = 1, *more: str) -> tuple[str, ...]:
    return (
        SEED[0],
        server("web01", "role: web", f"provision: {provision}"),
        *SEED[2:6],
        policy("web", often="Once"),
        *more,
    )


def phase(bench: Bench) -> Phase | None:
    plan = bench.plan()
    return plan.phase if plan is not None else None


# An older copy


@pytest.mark.parametrize(
    ("path", "is_once", "trusted"),
    [("boot.ipxe", True, False), ("boot.ipxe", False, True), ("data/0/user-data", True, True)],
    ids=["a one-time boot", "a boot at every start", "data, which is fetched long after"],
)
def test_a_ledger_without_the_offer_of_a_served_boot_is_an_older_copy(
    bench: Bench, path: str, is_once: bool, trusted: bool
) -> None:
    """STATE and OUTPUT were restored together, and only the fetch log has the boot that was served since."""
    bench.decide(*fleet_of())
    assert phase(bench) is Phase.NETWORK
    plan, offer = Digest("1" * 64), Digest("2" * 64) if is_once else None
    entry = f"boot/v1/boot/{make_mac('web01').replace(':', '-')}/{path}"
    bench.observe(Observation(server="web01", path=entry, digest=plan, offer=offer, client="10.0.0.7", at=bench.now))
    assert phase(bench) is (Phase.NETWORK if trusted else Phase.DISK)
    assert bench.snapshot.is_trusted is trusted
    found = {each.type: each.reason for each in bench.instance.reconciler.status.conditions if not each.status}
    assert found.get("RecordsVerified") == (None if trusted else "RestoredLedger")


SERVED = StepEvidence(NOON + timedelta(minutes=5), "boot/v1/boot/m/boot.ipxe", "10.0.0.7")


@pytest.mark.parametrize(
    ("exported", "expected"),
    [
        (Record(), Phase.DISK),
        (Record(provision=0, provisioned_at=NOON), Phase.DISK),
        (Record(unknown_serves=(UnknownServe("a", "provision/1", SERVED),)), Phase.DISK),
        (Record(provisioned_at=NOON + timedelta(minutes=6)), Phase.NETWORK),
    ],
    ids=["not read", "not read after an earlier installation", "its end was not read", "set to pending since"],
)
def test_a_boot_in_the_fetch_log_counts_if_exported_records_do_not_contain_it(
    tmp_path: Path, exported: Record, expected: Phase
) -> None:
    with Bench(tmp_path) as bench:
        plan = require_value(bench.decide(*fleet_of()).plan())
        assert plan.phase is Phase.NETWORK
        fetched = Observation(server="web01", path=SERVED.path, digest=plan.digest, client=SERVED.client, at=SERVED.at)
        for outcome in (None, Outcome.SERVED):
            bench.observe(replace(fetched, offer=plan.digest, intent="a", outcome=outcome))
    with Bench(tmp_path, initial={SystemUuid(make_uuid("web01")): exported}, doubt="RestoredLedger") as bench:
        bench.wait(hours=1).decide(*fleet_of())
        assert [phase(bench) for _ in range(2)] == [expected] * 2


# The clock


def test_e4_a_boot_that_was_served_by_a_fast_clock_is_not_offered_again(bench: Bench) -> None:
    bench.now = NOON + TWO_HOURS  # it is noon
    bench.decide(*fleet_of())
    bench.fetch(bench.plan())
    assert phase(bench) is Phase.NETWORK  # the minute of grace
    bench.now = NOON + timedelta(seconds=30)
    assert phase(bench) is Phase.DISK
    status, reason, message = bench.condition("ClockTrusted") or (None, "", "")
    assert (status, reason) == (False, "Behind")
    assert "gitboot records confirm-clock" in message
    for seconds in (0, 1, 59):  # the clock gets there again
        bench.now = NOON + TWO_HOURS + timedelta(seconds=seconds)
        bench.decide(*fleet_of(1, image(f"more-{seconds}")))
        assert phase(bench) is Phase.DISK
    assert (bench.condition("ClockTrusted") or (None,))[0] is True


def test_e4_evidence_of_a_raised_provision_is_newer_than_records_of_a_fast_clock(bench: Bench) -> None:
    bench.now = NOON + TWO_HOURS
    bench.decide(*fleet_of(1))
    bench.fetch(bench.plan())
    bench.wait(minutes=2)
    assert phase(bench) is Phase.DISK
    bench.now = NOON
    bench.decide(*fleet_of(2)).request("clock", reason="it was two hours ahead")
    plan = bench.plan()
    assert plan is not None and plan.phase is Phase.NETWORK
    bench.fetch(plan)
    bench.wait(minutes=2)
    assert phase(bench) is Phase.DISK
    assert bench.record is not None and bench.record.provision == 2


@pytest.mark.parametrize("evidence", ["Fetched", "Reported"])
def test_e4_late_evidence_from_a_fast_clock_reopens_nothing_after_the_correction(bench: Bench, evidence: str) -> None:
    """A fast clock served the boot, and no reconcile ran then."""
    settings = fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}")
    plan = bench.decide(settings, *fleet_of()[1:]).plan()
    bench.now = NOON + TWO_HOURS
    bench.fetch(plan)
    bench.now = NOON + timedelta(seconds=61)
    assert phase(bench) is Phase.DISK
    bench.now = NOON + TWO_HOURS
    assert phase(bench) is Phase.DISK


@pytest.mark.parametrize("is_heard", ["before", "after"])
def test_e4_a_fast_clock_that_is_corrected_within_the_minute_of_grace_reopens_no_boot(
    bench: Bench, is_heard: str
) -> None:
    """A machine fetched its boot three minutes ago; by the clock that was ahead it was five seconds ago."""
    bench.now, bench.ahead = NOON + timedelta(minutes=3), timedelta(minutes=3)
    plan = require_value(bench.decide(*fleet_of()).plan())
    entry = f"boot/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
    up = Uptime("this", NOON.timestamp())
    bench.observe(Observation(server="web01", path=entry, digest=plan.digest, client="10.0.0.7", at=bench.now, up=up))
    if is_heard == "before":
        assert phase(bench) is Phase.NETWORK  # for a minute, to another NIC
    bench.now, bench.ahead = NOON + timedelta(minutes=3, seconds=5), timedelta(0)
    assert phase(bench) is Phase.DISK


def test_e4_a_server_that_was_set_pending_under_a_fast_clock_is_installed_once(bench: Bench) -> None:
    bench.now = NOON + TWO_HOURS
    bench.decide(*fleet_of(1))
    bench.fetch(bench.plan())
    item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record(provisioned_at=bench.now))}
    bench.request("records", items=[item], reason="once more")
    assert phase(bench) is Phase.NETWORK
    bench.now = NOON
    bench.plan()
    bench.wait(minutes=1).request("clock", reason="it was two hours ahead")
    bench.fetch(bench.plan())
    bench.wait(minutes=2)
    assert phase(bench) is Phase.DISK


def test_e4_a_maintenance_run_that_was_used_under_a_fast_clock_does_not_run_again(bench: Bench) -> None:
    bench.now = NOON + TWO_HOURS
    window = maintenance("repair", "20T11:00 20T16:00", "networkBoot: Once")
    bench.decide(*fleet_of(0, window))
    bench.fetch(bench.plan())
    assert phase(bench) is Phase.MAINTENANCE
    bench.now = NOON + timedelta(seconds=30)
    assert phase(bench) is Phase.DISK
    bench.now = NOON + TWO_HOURS + timedelta(seconds=10)
    bench.decide(*fleet_of(0, window, image("more")))
    assert phase(bench) is Phase.DISK


@pytest.mark.parametrize("evidence", ["Fetched", "Reported"])
@pytest.mark.parametrize("wipes", [False, True])
def test_e4_a_served_boot_is_not_served_again_if_the_clock_is_slightly_slow(
    bench: Bench, evidence: str, wipes: bool
) -> None:
    """It was set back by three minutes, of which two had passed by then."""
    settings = fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}")
    wipe = (maintenance("wipe", "20T11:00 20T16:00", "networkBoot: Once"),) if wipes else ()
    plan = bench.decide(settings, *fleet_of()[1:], *wipe).plan()
    assert plan is not None and plan.phase is (Phase.MAINTENANCE if wipes else Phase.NETWORK)
    bench.fetch(plan)
    assert phase(bench) is plan.phase  # the minute of grace
    bench.now = NOON - timedelta(seconds=49)
    assert phase(bench) is Phase.DISK
    bench.now = NOON + timedelta(seconds=12)
    assert phase(bench) is Phase.DISK


EVERY_TIME = maintenance("wipe", "20T11:00 20T13:00")


@pytest.mark.parametrize("back", [timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=90)])
@pytest.mark.parametrize("restarts", [False, True])
def test_e4_a_clock_that_steps_back_reopens_no_ended_window(tmp_path: Path, back: timedelta, restarts: bool) -> None:
    """A boot that writes disks at each boot of its window has no record that it was made."""
    end = NOON + timedelta(hours=1)
    with Bench(tmp_path) as bench:
        bench.decide(*fleet_of(0, EVERY_TIME))
        for bench.now in (end - timedelta(minutes=5), end - timedelta(seconds=1)):
            bench.plan()
            assert phase(bench) is Phase.MAINTENANCE
        bench.now = end
        assert phase(bench) is Phase.DISK
        if not restarts:
            bench.now = end - back
            assert phase(bench) is Phase.DISK
            bench.wait(seconds=1)
            assert phase(bench) is Phase.DISK
    with Bench(tmp_path) as bench:
        bench.now = end - back
        bench.decide(*fleet_of(0, EVERY_TIME, image("more")))
        assert phase(bench) is Phase.DISK
        assert all(
            turn.in_window is False for turns in bench.rendered["web01"].published.paths.values() for turn in turns
        )
        bench.request("clock", reason="it was ahead before")  # the operator confirms that the window has not ended
        bench.plan()
        assert phase(bench) is Phase.MAINTENANCE


def test_e4_a_clock_that_steps_back_opens_windows_that_were_not_reached_when_they_are_due(bench: Bench) -> None:
    later = maintenance("later", "20T13:30 20T14:00")
    bench.decide(*fleet_of(0, EVERY_TIME, later))
    bench.now = NOON + timedelta(hours=1, minutes=10)
    assert phase(bench) is Phase.DISK
    bench.now = NOON + timedelta(minutes=50)
    assert phase(bench) is Phase.DISK
    bench.now = NOON + timedelta(minutes=90)
    assert phase(bench) is Phase.MAINTENANCE
    bench.now = NOON + timedelta(hours=2)
    assert phase(bench) is Phase.DISK


@pytest.mark.parametrize(("minutes", "trusted"), [(0, True), (2, True), (2.1, False), (60 * 24 * 365, False)])
def test_a_clock_may_be_two_minutes_behind_the_ledger(bench: Bench, minutes: float, trusted: bool) -> None:
    bench.decide(*fleet_of()).plan()
    bench.now -= timedelta(minutes=minutes)
    bench.plan()
    assert (bench.condition("ClockTrusted") or (None,))[0] is trusted
    assert bench.schedule.may_set is trusted


def test_e32_an_instance_writes_its_time_at_each_reconcile_and_endpoints_compare_theirs(tmp_path: Path) -> None:
    now = [NOON]
    repository = Repository.create(tmp_path / "git")
    repository.push(documents())
    with run_in_process(tmp_path, repository.bare, initial="adopt", clock=lambda: now[0]) as parts:
        reconcile_at(parts, now[0])
        offs = (timedelta(minutes=10), timedelta(minutes=-10), timedelta(seconds=20))
        trees = [PublishedTree(tmp_path / "output", lambda off=off: now[0] + off) for off in offs]  # type: ignore[misc]
        for _ in range(3):
            now[0] += timedelta(minutes=1)
            parts.reconciler.reconcile(now[0], fetched=LastFetch())  # there is no new change
            for tree in trees:
                tree.refresh()
            assert [tree.clock.offset for tree in trees] == [*offs[:2], None]
        assert [tree.clock.problem is None for tree in trees] == [False, False, True]
        now[0] += timedelta(hours=5)  # and then the instance is gone
        for tree in trees:
            tree.refresh()
        assert [tree.clock.problem is None for tree in trees] == [False, True, True]


def test_an_operator_accepts_the_present_clock(bench: Bench) -> None:
    bench.decide(*fleet_of()).plan()
    bench.now -= TWO_HOURS
    bench.plan()
    assert bench.schedule.may_set is False
    number = bench.request("clock", reason="the battery was replaced")
    bench.plan()
    assert "the battery was replaced" in bench.outcome(number)
    assert (bench.schedule.may_set, (bench.condition("ClockTrusted") or (None,))[0]) == (True, True)


@for_each(
    ("case", "status", "freq", "esterror", "served", "expected"),
    [
        ("ntpd, chrony with rtcsync, timesyncd", 0x2001, 12345, 500, True, ClockState.SYNCHRONISED),
        ("the same, seen from a container", 0x2001, 12345, 500, False, ClockState.SYNCHRONISED),
        ("a machine that has just booted, and whose service waits for a response", 0x40, 0, 16_000_000, True, None),
        ("a service that has lost its servers", 0x40, 12345, 500, False, None),
        ("a virtual machine without any service, a sandbox", 0x40, 0, 16_000_000, False, ClockState.NEVER_SET),
    ],
)
def test_the_clock_state_follows_from_the_status_of_the_kernel(
    case: str, status: int, freq: int, esterror: int, served: bool, expected: ClockState | None
) -> None:
    assert decide_clock_state(status, freq, esterror, has_time_service=served) is (
        expected or ClockState.UNSYNCHRONISED
    ), case


def test_no_override_is_set_while_the_clock_is_unsynchronised_and_normal_operation_needs_no_request(
    bench: Bench,
) -> None:
    def trusted(clock_state: ClockState) -> bool:
        bench.instance.reconciler.reconcile(bench.now, clock_state=clock_state)
        assert bench.schedule.may_set is (bench.condition("ClockTrusted") or (None,))[0]
        return bool(bench.schedule.may_set)

    bench.decide(*fleet_of())
    assert trusted(ClockState.UNKNOWN)
    assert trusted(ClockState.NEVER_SET)  # containers, sandboxes
    assert not trusted(ClockState.UNSYNCHRONISED)
    assert trusted(ClockState.SYNCHRONISED)
    assert not trusted(ClockState.NEVER_SET)  # the host was restarted, and its service, which is not seen here, waits
    bench.request("clock", reason="no time service any more")
    assert trusted(ClockState.NEVER_SET)
    assert trusted(ClockState.UNSYNCHRONISED)
    assert trusted(ClockState.SYNCHRONISED)
    assert not trusted(ClockState.UNSYNCHRONISED)  # the acknowledgement is of another day


# Older copies


def documents(image_name: str = "flatcar-1") -> dict[str, str]:
    servers = (server(f"web{number:02}") for number in range(3))
    images = (image("flatcar-1"), image("flatcar-2"), image("flatcar-3"))
    more = (profile("web", image_name), policy("web", often="OnImageChange"))
    return {"fleet.yaml": "---\n".join((fleet(), *servers, *images, *more))}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(documents())
    return made


def reconcile_at(parts: Parts, at: datetime) -> None:
    parts.source.fetch()
    parts.reconciler.reconcile(at, fetched=LastFetch())


def push_reinstall(parts: Parts, repository: Repository, name: str, at: datetime) -> tuple[bool, str]:
    """Return whether a commit that reinstalls all servers with acknowledgements is accepted at once, and its id."""
    repository.push(documents(name))
    reconcile_at(parts, at)
    held = require_value(parts.reconciler.status.held)
    lines = "\n".join(f"Gitboot-Ack: {held.digest} {guard}" for guard in held.guards)
    commit = repository.push({}, f"Agreed\n\n{lines}")
    reconcile_at(parts, at)
    return parts.reconciler.status.applied == commit, commit


def test_e9_old_acknowledgements_count_for_nothing_after_a_gap(tmp_path: Path, repository: Repository) -> None:
    """STATE and OUTPUT are from one old snapshot, so nothing in them shows the gap."""
    with run_in_process(tmp_path, repository.bare, limits=Limits(), initial="adopt") as parts:
        reconcile_at(parts, NOON)
    for name in ("state", "output"):
        shutil.copytree(tmp_path / name, tmp_path / "snapshot" / name)
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        was_accepted, commit = push_reinstall(parts, repository, "flatcar-2", NOON + timedelta(minutes=30))
        assert was_accepted
    for name in ("state", "output"):
        shutil.rmtree(tmp_path / name)
        shutil.move(tmp_path / "snapshot" / name, tmp_path / name)
    later = NOON + timedelta(days=3)
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        for seconds in range(3):
            reconcile_at(parts, later + timedelta(seconds=seconds))
        held = parts.reconciler.status.held
        assert held is not None and held.commit == commit
        (event,) = (event for event in parts.events if event.type == "Held")
        assert "ignores approvals in commit messages for now" in event.message and "gitboot approve" in event.message
        approval = {"digest": held.digest, "guards": list(held.guards), "reason": "installed on Tuesday"}
        instance_tables.add_request(parts.ledger, later, "ada", "approve", approval)
        for seconds in (3, 4):
            reconcile_at(parts, later + timedelta(seconds=seconds))
        assert parts.reconciler.status.applied == commit
        assert push_reinstall(parts, repository, "flatcar-3", later + timedelta(minutes=1))[0]  # from now on they count


@pytest.mark.parametrize(
    ("case", "every", "then", "gap"),
    [
        ("a restart that took long", timedelta(minutes=1), timedelta(minutes=45), False),
        ("a night", timedelta(minutes=1), timedelta(hours=9), True),
        ("a timer every six hours", timedelta(hours=6), timedelta(hours=6), False),
        ("a timer that was late", timedelta(hours=6), timedelta(hours=17), False),
        ("a timer that was stopped for a day", timedelta(hours=6), timedelta(hours=24), True),
    ],
)
def test_a_gap_is_longer_than_an_hour_and_longer_than_usual(
    bench: Bench, case: str, every: timedelta, then: timedelta, gap: bool
) -> None:
    bench.decide(*fleet_of())
    for _ in range(5):
        bench.reconcile()
        bench.instance.reconciler.reconcile(bench.now, fetched=LastFetch())
        bench.now += every
    bench.now += then - every
    bench.instance.reconciler.reconcile(bench.now)
    assert bench.snapshot.facts.gap is gap, case


def test_after_a_gap_a_witness_on_another_disk_vouches_for_the_ledger(tmp_path: Path, repository: Repository) -> None:
    places = [path for path in (Path("/dev/shm"), Path("/var/tmp")) if path.exists()]
    elsewhere = next((path for path in places if path.stat().st_dev != tmp_path.stat().st_dev), None)
    if elsewhere is None:
        pytest.skip("there is no other disk here")
    spool = Path(mkdtemp(prefix="gitboot-", dir=elsewhere))
    (tmp_path / "spool").symlink_to(spool)
    try:
        for days, expected in ((0, True), (3, True)):
            with run_in_process(
                tmp_path, repository.bare, limits=Limits(), initial="adopt" if not days else None
            ) as parts:
                reconcile_at(parts, NOON + timedelta(days=days))
                assert instance_tables.read_facts(parts.ledger).gap is False
                name = "flatcar-2" if not days else "flatcar-3"
                assert push_reinstall(parts, repository, name, NOON + timedelta(days=days))[0] is expected
        identity, changes = (spool / "ledger.mark").read_text().split()
        (spool / "ledger.mark").write_text(f"{identity} {int(changes) + 1}")
        with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
            assert instance_tables.read_facts(parts.ledger).doubt == "RestoredLedger"  # the witness has a later change
    finally:
        shutil.rmtree(spool)


@pytest.mark.parametrize("lost", ["OUTPUT", "the mark in STATE", "what STATE has learnt since"])
def test_e9_a_ledger_that_no_witness_confirms_installs_nothing(
    tmp_path: Path, repository: Repository, lost: str
) -> None:
    with run_in_process(tmp_path, repository.bare, initial="adopt") as parts:
        reconcile_at(parts, NOON)
        if lost == "what STATE has learnt since":
            with parts.ledger.writing() as tx:
                tx.mark()
            reconcile_at(parts, NOON)
    if lost == "OUTPUT":
        shutil.rmtree(tmp_path / "output")
    elif lost == "the mark in STATE":
        (tmp_path / "state" / "ledger.mark").unlink()
    else:
        status = tmp_path / "output" / "ops" / "status.json"
        found = json.loads(status.read_bytes())
        status.write_text(json.dumps({**found, "changes": found["changes"] + 1}))
    with run_in_process(tmp_path, repository.bare) as parts:
        reconcile_at(parts, NOON + timedelta(seconds=1))
        assert instance_tables.read_facts(parts.ledger).doubt == "RestoredLedger"
        assert dict(parts.reconciler.status.records) == {"Unknown": 3}
        instance_tables.add_request(parts.ledger, NOON, "ada", "begin", {"how": "as-recorded"})
        reconcile_at(parts, NOON + timedelta(seconds=2))
        assert dict(parts.reconciler.status.records) == {"Provisioned": 3}
    with run_in_process(tmp_path, repository.bare) as parts:  # reported once
        reconcile_at(parts, NOON + timedelta(seconds=3))
        assert dict(parts.reconciler.status.records) == {"Provisioned": 3}


# The forge as a witness


class ForgeInstance:
    """An instance beside its forge, as `gitboot run` puts them together."""

    def __init__(self, parts: Parts, host: ForgeHost, token: Path) -> None:
        self.parts = parts
        forge = Forge(Project.parse(host.project), token, name="gitboot")
        self.verdicts = VerdictSender(forge, lambda: None, reads_changes_first=True, first_retry_s=0.05)
        self.witness = ForgeReader(self.verdicts, parts.source, parts.ledger)

    def turn(self, at: datetime, *, fetched: bool = True, asks: bool = True) -> None:
        parts = self.parts
        if fetched:
            parts.source.fetch()
        if asks:
            self.witness.read_known_changes(has_fetched=fetched)
        parts.reconciler.reconcile(at, fetched=LastFetch(), forge_report=self.witness.forge_report)
        self.verdicts.submit_verdicts(list_verdicts(parts.reconciler.status, parts.ledger.progress[1]))

    @property
    def doubt(self) -> str | None:
        return self.parts.reconciler.state.snapshot.facts.doubt

    @property
    def phases(self) -> dict[str, int]:
        return dict(self.parts.reconciler.status.phases)


@dataclass(frozen=True)
class Workspace:
    """STATE, OUTPUT, a fetch log, a repository and its forge."""

    folder: Path
    repository: Repository
    host: ForgeHost

    @contextmanager
    def run(self, initial: str | None = None) -> Iterator[ForgeInstance]:
        with run_in_process(self.folder, self.repository.bare, limits=Limits(), initial=initial) as parts:
            found = ForgeInstance(parts, self.host, self.folder / "token")
            try:
                yield found
            finally:
                found.verdicts.close(timeout_s=30)

    def back_up(self) -> None:
        for name in SAVED_NAMES:
            shutil.copytree(self.folder / name, self.folder / "snapshot" / name, dirs_exist_ok=True)

    def restore(self) -> None:
        """Restore STATE, OUTPUT and the fetch log from one backup, so that nothing on this machine shows it."""
        for name in SAVED_NAMES:
            shutil.rmtree(self.folder / name)
            shutil.move(self.folder / "snapshot" / name, self.folder / name)

    def reinstall(self, found: ForgeInstance, name: str, at: datetime, *, asks: bool = True) -> bool:
        """Return whether a commit that reinstalls all servers with acknowledgements is accepted."""
        self.repository.push(documents(name))
        found.turn(at, asks=asks)
        held = require_value(found.parts.reconciler.status.held)
        lines = "\n".join(f"Gitboot-Ack: {held.digest} {guard}" for guard in held.guards)
        commit = self.repository.push({}, f"Agreed\n\n{lines}")
        found.turn(at, asks=asks)
        return found.parts.reconciler.status.applied == commit


SAVED_NAMES = ("state", "output", "spool")


@pytest.fixture
def workspace(tmp_path: Path, repository: Repository) -> Iterator[Workspace]:
    """An instance has adopted three servers, and its forge has the judgement."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "spool").mkdir()
    with forge_host("gitea") as host:
        made = Workspace(tmp_path, repository, host)
        with made.run("adopt") as found:
            found.turn(NOON)
        yield made


def install(found: ForgeInstance, at: datetime) -> None:
    """Serve every server its boot."""
    states = render_states(found.parts.reconciler.state)
    writer = SpoolFile(found.parts.spool)
    for name, state in states.items():
        assert state.plan is not None and state.plan.phase is Phase.NETWORK
        path = next(path for path in state.published.paths if path.endswith("boot.ipxe"))
        writer.append(
            encode_line(Observation(server=name, path=path, client="10.0.0.7", at=at, digest=state.plan.digest))
        )
    writer.close()
    found.turn(at)


@pytest.mark.parametrize("later", [timedelta(minutes=50), timedelta(days=3)])
def test_e9_the_forge_shows_that_a_machine_was_restored_from_a_backup(workspace: Workspace, later: timedelta) -> None:
    """A commit was accepted and three servers were installed since the backup: without the forge they are again."""
    workspace.back_up()
    with workspace.run() as found:
        assert workspace.reinstall(found, "flatcar-2", NOON + timedelta(minutes=30))
        install(found, NOON + timedelta(minutes=31))
        assert dict(found.parts.reconciler.status.records) == {"Provisioned": 3}
    workspace.restore()
    with workspace.run() as found:
        for seconds in range(3):
            found.turn(NOON + later + timedelta(seconds=seconds))
        assert found.doubt == "RestoredLedger"
        assert (found.phases, dict(found.parts.reconciler.status.records)) == ({"Disk": 3}, {"Unknown": 3})
        instance_tables.add_request(found.parts.ledger, NOON, "ada", "begin", {"how": "adopt"})
        found.turn(NOON + later + timedelta(seconds=4))
        assert found.doubt is None
    with workspace.run() as found:  # reported once
        found.turn(NOON + later + timedelta(minutes=1))
        assert (found.doubt, found.phases) == (None, {"Disk": 3})


def test_an_unproven_commit_status_is_a_warning_and_does_not_make_the_ledger_unverified(workspace: Workspace) -> None:
    told = workspace.host.statuses[-1]
    forged = re.sub(r" \(ledger (\S+), .*", r" (ledger \1, change 999999999)", told["description"])
    workspace.host.statuses.append({**told, "id": 99, "description": forged})
    with workspace.run() as found:
        for seconds in range(2):
            found.turn(NOON + timedelta(seconds=seconds))
        assert (found.doubt, found.phases) == (None, {"Disk": 3})
        said = [event for event in found.parts.events if event.type == "CommitStatusUnverified"]
        assert [event.facts["change"] for event in said] == [999999999]


def test_e9_the_forge_also_shows_installations_since_a_backup(workspace: Workspace) -> None:
    """No commit came since, so there is no judgement, but the change number of the ledger is reported."""
    with workspace.run() as found:
        assert workspace.reinstall(found, "flatcar-2", NOON)
        assert found.phases == {"Network": 3}
    workspace.back_up()
    with workspace.run() as found:
        found.turn(NOON + timedelta(minutes=1))
        install(found, NOON + timedelta(minutes=2))
    workspace.restore()
    with workspace.run() as found:
        found.turn(NOON + timedelta(minutes=10))
        assert (found.doubt, found.phases) == ("RestoredLedger", {"Disk": 3})


def test_a_forge_with_the_newest_change_confirms_a_ledger_that_was_unused_for_days(workspace: Workspace) -> None:
    for days, name in ((3, "flatcar-2"), (6, "flatcar-3")):
        with workspace.run() as found:
            found.turn(NOON + timedelta(days=days))
            assert found.parts.reconciler.state.snapshot.facts.gap is False
            assert workspace.reinstall(found, name, NOON + timedelta(days=days))


def test_an_acknowledgement_that_came_before_the_forge_was_read_counts_once_the_forge_confirms(
    workspace: Workspace,
) -> None:
    with workspace.run() as found:
        assert not workspace.reinstall(found, "flatcar-2", NOON + timedelta(days=3), asks=False)
        commit = found.parts.reconciler.status.attempted
        found.turn(NOON + timedelta(days=3))
        assert found.parts.reconciler.status.applied == commit


@pytest.mark.parametrize(
    "case", ["it has no status", "it has an earlier change", "it is away", "another ledger reported it"]
)
def test_after_a_gap_acknowledgements_count_only_if_a_forge_has_the_newest_change(
    workspace: Workspace, case: str
) -> None:
    host, told = workspace.host, workspace.host.statuses[-1]
    if case == "it has no status":
        host.statuses.clear()
    elif case == "it has an earlier change":
        told["description"] = re.sub(r"change (\d+)", lambda found: f"change {int(found[1]) - 1}", told["description"])
    elif case == "another ledger reported it":
        told["description"] = told["description"].replace("ledger ", "ledger x")
    with workspace.run() as found:
        if case == "it is away":
            host.faults += [(503, {})] * 50
        assert not workspace.reinstall(found, "flatcar-2", NOON + timedelta(days=3))
        (event, *_) = (event for event in found.parts.events if event.type == "Held")
        assert "gitboot approve" in event.message
        assert found.doubt is None
        host.faults.clear()


def test_after_a_gap_nothing_is_offered_before_the_forge_was_read(workspace: Workspace) -> None:
    """The read takes as long as a fetch; an unreachable remote or forge delays nothing."""
    with workspace.run() as found:
        assert workspace.reinstall(found, "flatcar-2", NOON)
        assert found.phases == {"Network": 3}
    later = NOON + timedelta(days=3)
    with workspace.run() as found:
        found.turn(later, asks=False)
        assert found.phases == {"Disk": 3}
        workspace.host.faults += [(503, {})] * 50
        found.turn(later)
        assert found.phases == {"Network": 3}
        workspace.host.faults.clear()
    with workspace.run() as found:
        found.turn(later + timedelta(minutes=5), asks=False)  # no gap since
        assert found.phases in ({"Network": 3}, {"Disk": 3})
        found.turn(later + timedelta(minutes=5), fetched=False)
        assert found.phases == {"Network": 3}


# Old offers


def test_old_rows_are_deleted_once_a_day_by_the_clock_of_the_day_before() -> None:
    beat = Batch(clock_state=ClockState.UNKNOWN)
    known = apply_batch(LedgerSnapshot(facts=Facts(identity="x")), beat, NOON).snapshot
    assert apply_batch(known, beat, NOON + TWO_HOURS).update.prune_before is None
    ahead = NOON + timedelta(days=3650)  # by a clock that may be wrong
    learnt = apply_batch(known, beat, ahead)
    assert learnt.update.prune_before == NOON - RETENTION
    assert apply_batch(learnt.snapshot, beat, ahead + timedelta(minutes=5)).update.prune_before is None
