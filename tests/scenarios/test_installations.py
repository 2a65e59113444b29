"""Sequences in which an instance once installed a machine twice, stranded one, or kept a window open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gitboot.endpoint.boot_responses import BootResponses
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import SourceError
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fleet.revision import Revision
from gitboot.ledger import instance_tables
from gitboot.model.scalars import parse_uuid
from gitboot.publish.manifest import STATUS
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event
from gitboot.status.instance_status import HeldCommit
from tests.helpers.fleets import SEED, at, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import Bench, Parts, record_fetch, run_in_process, summarize_plan
from tests.helpers.running_instance import Repository

INSTALLS = (Phase.NETWORK, Cause.PENDING)


def seed(spec: str = "provision: 1", *more: str, often: str = "Once") -> tuple[str, ...]:
    """web01, which is installed once, and profiles for maintenances: repair writes no disk, bios does."""
    return (
        SEED[0],
        server("web01", "role: web", spec),
        *(image("flatcar-1"), image("bios-2"), image("memtest-7", "writesDisk: false")),
        *(profile("web", "flatcar-1"), profile("bios", "bios-2"), profile("repair", "memtest-7")),
        policy("web", "{matchLabels: {role: web}}", often=often),
        *more,
    )


def boot(bench: Bench, *documents: str) -> None:
    """Let the machine boot what these documents decide, and let a minute pass."""
    bench.decide(*documents)
    bench.fetch(bench.plan())
    bench.plan()
    bench.wait(minutes=2)


BOARD = make_uuid("a new board")


# Leftovers of a maintenance


@pytest.mark.parametrize("often", ["networkBoot: Once", "networkBoot: Always"])
def test_e12_a_wipe_leaves_the_record_unverified(bench: Bench, often: str) -> None:
    wipe = maintenance("wipe", "20T12:10 20T14:00", often, boots="bios")
    boot(bench, *seed())
    bench.now = at("20T12:10")
    boot(bench, *seed("provision: 1", wipe))
    assert bench.record is not None
    assert (bench.record.overwritten_by, bench.record.provision) == ("wipe", 1)
    bench.now = at("20T14:00")
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.OVERWRITTEN)
    assert (bench.condition("RecordsVerified") or (None,))[:2] == (False, "UnverifiedServers")
    assert bench.instance.reconciler.status.records == {"Unknown": 1}
    bench.decide(*seed("provision: 2", wipe))
    assert summarize_plan(bench.plan()) == INSTALLS
    bench.fetch(bench.plan())
    bench.plan()
    assert bench.record is not None
    assert (bench.record.overwritten_by, bench.record.provision) == (None, 2)


@pytest.mark.parametrize(("outcome", "overwritten_by"), [(None, "wipe"), (Outcome.WITHHELD, None)])
def test_a_wipe_at_each_boot_that_was_perhaps_served_leaves_the_record_unverified(
    bench: Bench, outcome: Outcome | None, overwritten_by: str | None
) -> None:
    """Its endpoint was killed before it recorded an outcome. No offer is used up, so a machine gets it again."""
    boot(bench, *seed())
    bench.now = at("20T12:10")
    bench.decide(*seed("provision: 1", maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Always", boots="bios")))
    plan = bench.plan()
    assert plan is not None and plan.offer is None
    path = "boot/v1/boot/m/boot.ipxe"
    intent = Observation(
        server=plan.server, path=path, digest=plan.digest, client="10.0.0.7", at=bench.now, intent="one"
    )
    bench.observe(intent)
    if outcome is not None:
        bench.observe(replace(intent, outcome=outcome))
    bench.plan()
    assert bench.record is not None and bench.record.overwritten_by == overwritten_by


def test_finding_m2_a_wipe_that_a_mirror_may_have_sent_leaves_the_record_unverified(
    bench: Bench,
) -> None:
    boot(bench, *seed())
    bench.now = at("20T12:10")
    bench.decide(*seed("provision: 1", maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Always", boots="bios")))
    bench.plan()
    path = f"boot/v1/boot/{make_mac('web01').replace(':', '-')}/grub.cfg"
    modified = int(bench.now.timestamp())
    bench.observe(
        Observation(server="", path=path, modified=modified, client="10.0.0.7", at=bench.now, intent="a line's")
    )
    bench.plan()
    assert bench.record is not None and bench.record.overwritten_by == "wipe"


def test_e12_the_state_after_a_wipe_survives_a_restart(tmp_path: Path) -> None:
    documents = seed("provision: 1", maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Once", boots="bios"))
    with Bench(tmp_path) as bench:
        boot(bench, *seed())
        bench.now = at("20T12:10")
        boot(bench, *documents)
        before = bench.record
    with Bench(tmp_path) as bench:
        bench.now = at("20T14:00")
        bench.decide(*documents)
        assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.OVERWRITTEN)
        assert bench.record == before


def test_e12_an_installation_after_a_wipe_stays_when_the_wipe_is_reported_later(bench: Bench) -> None:
    wipe = maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Once", boots="bios")
    boot(bench, *seed())
    bench.now = at("20T12:10")
    bench.decide(*seed("provision: 1", wipe))
    wiping = bench.plan()
    bench.now = at("20T14:00")
    boot(bench, *seed("provision: 2", wipe))
    bench.fetch(wiping, at=at("20T12:10"))
    bench.plan()
    assert bench.record is not None
    assert (bench.record.overwritten_by, sorted(bench.record.runs)) == (None, ["wipe"])


def test_e12_a_new_board_is_not_wiped_again_in_the_same_window(bench: Bench) -> None:
    """A run belongs to the server with any board, and no other run was requested."""
    wipe = maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Once", boots="bios")
    boot(bench, *seed())
    bench.now = at("20T12:10")
    boot(bench, *seed("provision: 1", wipe))
    bench.now = at("20T12:30")
    on_board = f"provision: 2, replaces: {make_uuid('web01')}"

    def board(job: str) -> list[str]:
        return [each.replace(f"uuid: {make_uuid('web01')}", f"uuid: {BOARD}") for each in seed(on_board, job)]

    bench.decide(*board(wipe))
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    bench.decide(*board(wipe.replace("Once", "Once, run: 2")))
    assert summarize_plan(bench.plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    bench.decide(*board(wipe))
    bench.now = at("20T14:00")
    assert summarize_plan(bench.plan()) == INSTALLS


# When a maintenance is made again


def test_e17_a_maintenance_whose_name_is_used_again_next_quarter_runs(bench: Bench) -> None:
    boot(bench, *seed())
    bench.now = at("20T22:00")
    boot(bench, *seed("provision: 1", maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    bench.now = at("28T22:00")
    boot(bench, *seed("provision: 1", maintenance("repair", "28T22:00 29T04:00", "networkBoot: Once")))
    assert bench.told("MaintenanceBooted") == ["MaintenanceBooted"] * 2
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    bench.now = at("29T04:00")
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.PROVISIONED)


@pytest.mark.parametrize(
    ("windows", "again"),
    [
        (("20T23:30 21T04:00",), False),  # it begins later, before the one in which it ran is over
        (("20T22:00 21T08:00", "21T04:00 21T08:00"), False),  # lengthened, then shortened from the front
        (("20T22:00 20T23:00", "20T23:00 21T04:00"), False),  # shortened, then moved to where it lay before
    ],
)
def test_e17_a_moved_window_requests_no_second_run(bench: Bench, windows: tuple[str, ...], again: bool) -> None:
    bench.now = at("20T22:00")
    boot(bench, *seed("provision: 0", maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    for window in windows:
        bench.decide(*seed("provision: 0", maintenance("repair", window, "networkBoot: Once")))
        bench.plan()
    bench.now = at("21T07:00") if "08:00" in windows[-1] else at("20T23:30")
    assert (summarize_plan(bench.plan())[0] is Phase.MAINTENANCE) == again


def test_e17_a_run_counts_for_the_window_of_its_time(bench: Bench) -> None:
    """The plan is the same in both windows, and so is its digest."""
    bench.decide(*seed("provision: 0", maintenance("repair", "20T13:00 20T14:00", "networkBoot: Once")))
    bench.plan()
    bench.now = at("20T13:30")
    boot(bench, *seed("provision: 0", maintenance("repair", "20T13:30 20T18:00", "networkBoot: Once")))
    bench.now = at("20T17:00")
    assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    assert bench.record is not None
    assert bench.record.runs["repair"].end == at("20T18:00")


# Commits that add and remove servers: with a real repository and the default guards

IMAGES = (image("flatcar-1"), image("bios-2"), image("memtest-7", "writesDisk: false"))
PROFILES = (profile("web", "flatcar-1"), profile("bios", "bios-2"), profile("repair", "memtest-7"))
ONCE = policy("web", often="Once")
NAMES = tuple(f"web{number:02}" for number in range(12))


def servers(*names: str, spec: str = "provision: 1") -> str:
    return "---\n".join(server(name, spec=spec) for name in names or NAMES)


@dataclass
class World:
    """An instance that follows a repository, on a clock that the test moves."""

    parts: Parts
    repository: Repository
    now: datetime

    def push(self, *documents: str, message: str = "Change") -> str:
        text = "---\n".join((fleet(), *IMAGES, *PROFILES, *documents))
        commit = self.repository.push({"fleet.yaml": text}, message)
        self.advance()
        return commit

    def advance(self, **passed: float) -> None:
        self.now += timedelta(seconds=1, **passed)
        self.parts.source.fetch()
        self.parts.reconciler.reconcile(self.now)

    def plan(self, name: str) -> BootPlan | None:
        return self.parts.reconciler.state.plans.servers[name].plan

    def install(self, *names: str) -> None:
        """Let the machines fetch their boots, and let two minutes pass."""
        self.fetch(*names)
        self.advance(minutes=2)

    def fetch(self, *names: str) -> None:
        for name in names:
            plan = self.plan(name)
            assert plan is not None
            path = f"boot/v1/boot/{name}/boot.ipxe"
            fetched = Observation(server=name, path=path, digest=plan.digest, client="10.0.0.7", at=self.now)
            record_fetch(self.parts.spool, fetched)

    @property
    def applied(self) -> str | None:
        return self.parts.reconciler.status.applied

    @property
    def held(self) -> HeldCommit | None:
        return self.parts.reconciler.status.held

    def condition(self, type: str) -> tuple[bool, str] | None:
        found = (each for each in self.parts.reconciler.status.conditions if each.type == type)
        return next(((each.status, each.reason) for each in found), None)

    def request(self, what: str, **given: object) -> None:
        instance_tables.add_request(self.parts.ledger, self.now, "ada", what, given)
        self.advance()

    @contextmanager
    def run_copy(self, folder: Path, *, evaluates: bool = True, site: str | None = None) -> Iterator[World]:
        """Another process over a copy of what this one has left behind."""
        copy = folder / "copy"
        for name in ("state", "output"):
            shutil.copytree(folder / name, copy / name, symlinks=True)
        with run_in_process(copy, self.repository.bare, limits=Limits(), evaluates=evaluates, site=site) as parts:
            yield World(parts, self.repository, self.now)

    def told(self, type: str) -> list[Event]:
        return [event for event in self.parts.events if event.type == type]


def get_held_digest(world: World) -> str:
    assert world.held is not None
    return world.held.digest


@contextmanager
def run_world(folder: Path, limits: Limits, *documents: str, initial: str | None = "fresh") -> Iterator[World]:
    repository = Repository.create(folder / "git")
    with run_in_process(folder, repository.bare, limits=limits, initial=initial) as parts:
        world = World(parts, repository, at("20T12:00"))
        world.push(*documents)
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Twelve servers that are installed, with guards that let all of them come at once."""
    with run_world(tmp_path, Limits(), servers(), ONCE) as made:
        made.install(*NAMES)
        yield made


def test_e11_servers_that_move_in_from_another_repository_are_not_installed(world: World) -> None:
    names = [f"moved{number:02}" for number in range(49)]
    commit = world.push(servers(), servers(*names, spec="provision: 3"), servers("new"), ONCE)
    assert (world.applied, world.held) == (commit, None)
    assert {summarize_plan(world.plan(name)) for name in names} == {(Phase.DISK, Cause.UNKNOWN)}
    assert summarize_plan(world.plan("new")) == INSTALLS
    (event,) = world.told("ServerUnknown")
    assert "and 44 more: a new server with provision 3 may have been installed elsewhere" in event.message


def test_e11_the_provision_number_that_counts_is_the_first_one_of_a_server(tmp_path: Path, world: World) -> None:
    """Introduced at 1 and raised since, both in one poll; and the other way round."""
    world.repository.push({"more.yaml": servers("raised") + "---\n" + servers("lowered", spec="provision: 3")})
    world.repository.push({"more.yaml": servers("raised", "lowered", spec="provision: 2")})
    world.advance()
    assert world.held is not None  # the raise
    assert {name for name in world.parts.reconciler.state.plans.servers if name not in NAMES} == {
        "raised",
        "lowered",
    }
    assert summarize_plan(world.plan("raised")) == (Phase.DISK, Cause.WITHHELD)  # its first number would install it
    assert summarize_plan(world.plan("lowered")) == (Phase.DISK, Cause.UNKNOWN)


def test_e11_no_machine_that_came_with_a_higher_number_in_the_same_poll_is_new(tmp_path: Path, world: World) -> None:
    """Also where it was gone in between."""
    world.repository.push({"more.yaml": servers("lowered", spec="provision: 3")})
    world.repository.push({"more.yaml": "# nobody\n"})
    world.repository.push({"more.yaml": servers("lowered", spec="provision: 1")})
    world.advance()
    assert world.held is None
    assert summarize_plan(world.plan("lowered")) == (Phase.DISK, Cause.UNKNOWN)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"replaces: {make_uuid('web00')}, provision: 2", INSTALLS),
        (f"replaces: {make_uuid('web00')}, provision: 1", (Phase.DISK, Cause.UNKNOWN)),
        (f"replaces: {make_uuid('nobody')}, provision: 2", (Phase.DISK, Cause.UNKNOWN)),
        ("provision: 1", (Phase.DISK, Cause.UNKNOWN)),
    ],
)
def test_e12_a_replaced_board_is_installed_as_its_document_states(
    tmp_path: Path, said: str, expected: tuple[Phase, Cause]
) -> None:
    unlimited = Limits(max_reinstalls=10)
    with run_world(tmp_path, unlimited, servers("web00", "web01"), ONCE) as world:
        world.install("web00", "web01")
        board = servers("web00", spec=said).replace(f"uuid: {make_uuid('web00')}", f"uuid: {BOARD}")
        commit = world.push(board, servers("web01"), ONCE)
        assert (world.applied, summarize_plan(world.plan("web00"))) == (commit, expected)
        assert bool(world.told("ServerUnknown")) == (expected != INSTALLS)
        assert summarize_plan(world.plan("web01")) == (Phase.DISK, Cause.PROVISIONED)


def test_e12_a_replacement_of_a_board_may_be_declared_later(tmp_path: Path) -> None:
    with run_world(tmp_path, Limits(max_reinstalls=10), servers("web00"), ONCE) as world:
        world.install("web00")
        for said, expected in (
            ("provision: 1", (Phase.DISK, Cause.UNKNOWN)),
            (f"provision: 2, replaces: {make_uuid('web00')}", INSTALLS),
        ):
            world.push(servers("web00", spec=said).replace(f"uuid: {make_uuid('web00')}", f"uuid: {BOARD}"), ONCE)
            assert summarize_plan(world.plan("web00")) == expected


OPEN = maintenance("m", "20T10:00 20T18:00", boots="bios")
TO_DISK = policy("web", boots="disk", often="Once")


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("a policy becomes Never", (ONCE,), (policy("web", often="Never"),)),
        ("a policy boots another profile, which is Disk", (ONCE,), (profile("disk", "", method="Disk"), TO_DISK)),
        ("Always becomes Once", (policy("web"),), (ONCE,)),
        ("an override goes", (policy("web", "All", "override: Once"),), (policy("web", "All", "override: None"),)),
        ("a window is ended early", (ONCE, OPEN), (ONCE, OPEN.replace("18:00", "12:30"))),
        ("a window is narrowed", (ONCE, OPEN), (ONCE, OPEN.replace("10:00", "13:00"))),
        ("a maintenance is deleted", (ONCE, OPEN), (ONCE,)),
    ],
)
def test_e16_a_harmless_change_is_never_held(
    tmp_path: Path, what: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    with run_world(tmp_path, Limits(), servers(), *before) as world:
        world.install(*NAMES)
        commit = world.push(servers(), *after)
        assert (world.applied, world.held) == (commit, None), what


def test_e16_parking_servers_is_never_held(world: World) -> None:
    commit = world.push(servers(spec="provision: 1, lifecycle: Parked"), ONCE)
    assert (world.applied, world.held) == (commit, None)


def test_e20_returning_servers_with_an_always_policy_count_as_reinstalled(world: World) -> None:
    few = servers(*NAMES[1:])
    assert world.push(few, ONCE) == world.applied
    before = world.applied
    always = policy("back", "{servers: [web00]}", "priority: 1")
    world.push(servers(), ONCE, always)
    assert world.held is not None
    assert (world.applied, world.held.guards) == (before, ("maxReinstalls",))
    window = maintenance("m", "20T10:00 20T18:00", select="{servers: [web00]}", boots="bios")
    world.push(servers(), ONCE, window)
    assert (world.applied, world.held.guards) == (before, ("maxReinstalls",))
    assert world.push(servers(), ONCE) == world.applied  # as it is installed


def test_e20_returning_servers_in_one_poll_count_as_reinstalled(world: World) -> None:
    few, always = servers(*NAMES[1:]), policy("back", "{servers: [web00]}", "priority: 1")
    texts = ["---\n".join((fleet(), *IMAGES, *PROFILES, *each)) for each in ((few, ONCE), (servers(), ONCE, always))]
    first = world.repository.push({"fleet.yaml": texts[0]})
    world.repository.push({"fleet.yaml": texts[1]})
    world.advance()
    assert world.held is not None
    assert (world.applied, world.held.guards) == (first, ("maxReinstalls",))


def test_e20_after_a_crash_new_servers_of_the_accepted_commit_do_not_count_as_old(tmp_path: Path, world: World) -> None:
    """The clone learns the accepted commit later, when the ledger already has the new servers."""

    def fail(revision: Revision) -> None:
        raise SourceError("the disk is full")

    world.parts.source.accept = fail  # type: ignore[method-assign]
    commit = world.push(servers(), servers("new"), ONCE)
    assert str(make_uuid("new")) in world.parts.reconciler.state.snapshot.machines
    with world.run_copy(tmp_path) as again:
        again.advance()
        assert (again.applied, again.held) == (commit, None)
        assert summarize_plan(again.plan("new")) == INSTALLS


def test_e21_the_removal_of_a_maintenance_that_hid_an_installer_is_held(tmp_path: Path) -> None:
    window = maintenance("m", "20T10:00 20T18:00")
    with run_world(tmp_path, Limits(), servers(), policy("web"), window) as world:
        before = world.applied
        world.push(servers(), policy("web"))
        assert world.held is not None
        assert (world.applied, "maxReinstalls" in world.held.guards) == (before, True)


def test_e23_a_move_of_an_installed_server_to_another_pool_is_no_reinstallation(world: World) -> None:
    other = policy("other", "{servers: [web00]}", "priority: 1, nodeLabels: {pool: other}", often="Once")
    commit = world.push(servers(), ONCE, other)
    assert (world.applied, world.held) == (commit, None)
    assert summarize_plan(world.plan("web00")) == (Phase.DISK, Cause.PROVISIONED)


def test_e24_a_fleet_without_servers_on_a_new_ledger_is_accepted(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    commit = repository.push({"fleet.yaml": fleet()})
    with run_in_process(tmp_path, repository.bare, limits=Limits()) as parts:
        world = World(parts, repository, at("20T12:00"))
        world.advance()
        assert (world.applied, world.held) == (commit, None)
        second = world.push(servers(), ONCE, message="The first servers")
        assert (world.applied, world.held) == (second, None)
        assert {summarize_plan(world.plan(name)) for name in NAMES} == {INSTALLS}


# Standing back, and stopping

BASE = "baseURL: 'http://boot.test'"
DISK = (Phase.DISK, Cause.STOPPED)


def make_files(spec: str, *more: str) -> dict[str, str]:
    """Return a fleet with this text in its Fleet and with servers to install."""
    server_texts = servers(spec="provision: 1")
    return {"fleet.yaml": "---\n".join((fleet(f"{BASE}{spec}"), *IMAGES, *PROFILES, server_texts, ONCE, *more))}


@pytest.fixture
def pending_world(tmp_path: Path) -> Iterator[World]:
    """Twelve servers that are to be installed, whose windows need no acknowledgement."""
    with run_world(tmp_path, Limits(max_update_percent=100), servers(), ONCE) as made:
        yield made


def test_e15_a_typo_in_the_name_of_the_ledger_is_held_and_stops_the_instance_until_it_is_reverted(
    pending_world: World,
) -> None:
    window = maintenance("m", "20T10:00 20T18:00")
    before = pending_world.push(servers(), ONCE, window)
    assert summarize_plan(pending_world.plan("web00")) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    pending_world.repository.push(make_files(f", provisioning: {{ledger: {make_uuid('typo')}}}", window))
    pending_world.advance()
    assert pending_world.held is not None
    assert (pending_world.applied, pending_world.held.guards) == (before, ("allowTakeover",))
    assert pending_world.condition("LedgerNamed") == (False, "BecameStandby")
    assert summarize_plan(pending_world.plan("web00")) == (Phase.MAINTENANCE, Cause.MAINTENANCE)  # it writes no disk
    pending_world.advance(hours=6)
    assert summarize_plan(pending_world.plan("web00")) == DISK  # its own windows end
    assert pending_world.parts.reconciler.state.schedule.may_set is False
    pending_world.repository.push(make_files("", window))
    pending_world.advance()
    assert pending_world.held is None
    assert pending_world.condition("LedgerNamed") is None
    assert summarize_plan(pending_world.plan("web00")) == INSTALLS


def test_e15_another_instance_takes_over_after_an_acknowledgement(tmp_path: Path, pending_world: World) -> None:
    ours = pending_world.parts.reconciler.state.snapshot.facts.identity
    pending_world.repository.push(make_files(f", provisioning: {{ledger: {ours}}}"))
    pending_world.advance()
    assert pending_world.held is None
    with run_in_process(tmp_path / "other", pending_world.repository.bare, limits=Limits()) as parts:
        other = World(parts, pending_world.repository, pending_world.now)
        other.advance()
        assert other.condition("LedgerNamed") == (False, "AnotherLedger")
        theirs = parts.reconciler.state.snapshot.facts.identity
        pending_world.repository.push(make_files(f", provisioning: {{ledger: {theirs}}}"))
        for each in (pending_world, other):
            each.advance()
            assert each.held is not None
            assert each.held.guards == ("allowTakeover",)
        digest = get_held_digest(other)
        assert summarize_plan(pending_world.plan("web00")) == DISK
        assert other.parts.reconciler.state.plans.servers == {}
        pending_world.repository.push({}, f"Hand over\n\nGitboot-Ack: {digest} allowTakeover")
        for each in (pending_world, other):
            each.advance()
            assert each.held is None
        assert pending_world.condition("LedgerNamed") == (False, "BecameStandby")
        assert (other.condition("LedgerNamed"), summarize_plan(pending_world.plan("web00"))) == (None, DISK)
        assert len(other.parts.reconciler.state.plans.servers) == len(NAMES)


@pytest.mark.parametrize("how", ["accepted", "held", "invalid"])
def test_e16_a_stop_takes_effect_at_once(tmp_path: Path, pending_world: World, how: str) -> None:
    before = pending_world.applied
    said = make_files(", stopped: smoke in fra1")
    if how == "held":  # an image in use was edited
        said["fleet.yaml"] = said["fleet.yaml"].replace("assets:flatcar-1/kernel", "assets:flatcar-1/vmlinuz")
    commit = pending_world.repository.push({**said, **({"bad.yaml": "kind: Nothing\n"} if how == "invalid" else {})})
    pending_world.advance()
    assert pending_world.applied == (commit if how == "accepted" else before)
    assert {summarize_plan(pending_world.plan(name)) for name in NAMES} == {DISK}
    assert pending_world.condition("InstallsAllowed") == (False, "StoppedByFleet")
    with pending_world.run_copy(tmp_path, evaluates=False) as again:  # the newest commit is still being evaluated
        again.advance()
        assert {summarize_plan(again.plan(name)) for name in NAMES} == {DISK}


def test_e16_the_end_of_a_stop_is_held_and_lists_what_would_boot(pending_world: World) -> None:
    pending_world.repository.push(make_files(", stopped: smoke in fra1"))
    pending_world.advance()
    pending_world.repository.push(make_files(""))
    pending_world.advance()
    assert pending_world.held is not None
    assert "maxReinstalls" in pending_world.held.guards
    assert "12 servers would boot from the network at once: web00, web01" in pending_world.told("Held")[-1].message
    assert {summarize_plan(pending_world.plan(name)) for name in NAMES} == {DISK}


def test_e16_installs_are_stopped_and_allowed_from_a_shell(tmp_path: Path, pending_world: World) -> None:
    window = maintenance("m", "20T10:00 20T18:00", select="{servers: [web11]}")
    pending_world.push(servers(), ONCE, window)
    pending_world.request("stop", reason="smoke in fra1", everything=False)
    assert {summarize_plan(pending_world.plan(name)) for name in NAMES[:11]} == {DISK}
    assert summarize_plan(pending_world.plan("web11")) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    assert pending_world.condition("InstallsAllowed") == (False, "Stopped")
    assert pending_world.parts.reconciler.status.facts()["stopped"] == {"Installs": 11}
    pending_world.request("stop", reason="all of it", everything=True)
    assert summarize_plan(pending_world.plan("web11")) == (Phase.DISK, Cause.ALL_STOPPED)
    assert pending_world.parts.reconciler.status.facts()["stopped"] == {"All": 12}
    with pending_world.run_copy(tmp_path) as again:
        again.advance()
        assert {summarize_plan(again.plan(name)) for name in NAMES} == {(Phase.DISK, Cause.ALL_STOPPED)}
        again.request("start")
        assert {summarize_plan(again.plan(name)) for name in NAMES[:11]} == {INSTALLS}
        assert again.condition("InstallsAllowed") == (True, "Allowed")
        assert again.parts.reconciler.status.facts()["stopped"] == {}


LOG_OWNERS = '{"fra1":"0123"}'  # the fetch log of the host, by site
CLAIMS = {
    "the instance let another host claim a site": ("spool/.forwarded/soles", LOG_OWNERS, "for fra1 (gitboot serve"),
    "this host claimed a site": ("spool/.endpoints/sole", '{"giver":"01","site":"fra1"}', "for fra1 (gitboot serve"),
    "this host was about to give its claim back": (
        "spool/.endpoints/sole.left",
        '{"site":"fra1"}',
        "for fra1 (gitboot serve",
    ),
    "the file is damaged": ("spool/.forwarded/soles", "{", "for a site (gitboot serve"),
    "fetches were recorded in another folder then": (
        "state/spool/.forwarded/soles",
        LOG_OWNERS,
        "for fra1 (gitboot serve",
    ),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_sole_for_claim_of_2fefe59_withholds_install_boots_until_its_file_is_deleted(
    tmp_path: Path, pending_world: World, case: str
) -> None:
    name, content, told = CLAIMS[case]
    pending_world.push(servers(), ONCE, maintenance("m", "20T10:00 20T18:00", select="{servers: [web11]}"))
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    pending_world.advance()
    assert {summarize_plan(pending_world.plan(name)) for name in NAMES[:11]} == {DISK}
    assert summarize_plan(pending_world.plan("web11")) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    assert pending_world.condition("InstallsAllowed") == (False, "SoleClaim")
    (event,) = pending_world.told("InstallsStopped")
    assert told in event.message and event.message.endswith(f"then delete {file}")
    (condition,) = (each for each in pending_world.parts.reconciler.status.conditions if each.type == "InstallsAllowed")
    assert (condition.remedy or "").startswith(
        f"rsync -a 'HOST:DIRECTORY/*.jsonl' {pending_world.parts.spool}/ && rm {file}"
    )
    pending_world.request("stop", reason="smoke", everything=False)
    pending_world.request("start")
    assert (
        f"still withholds boots that write to disk: another host was the only one that served one-time boots {told}"
        in pending_world.told("Requested")[-1].message
    )
    pending_world.advance(hours=8)  # the window ends as usual
    assert summarize_plan(pending_world.plan("web11")) == DISK
    file.unlink()
    pending_world.advance()
    assert {summarize_plan(pending_world.plan(name)) for name in NAMES} == {INSTALLS}
    assert pending_world.condition("InstallsAllowed") == (True, "Allowed")


def test_fetches_that_are_copied_into_the_fetch_log_twice_change_no_record(pending_world: World) -> None:
    pending_world.fetch(*NAMES[:3])
    fetches = b"".join(file.read_bytes() for file in sorted(pending_world.parts.spool.glob("*.jsonl")))
    assert fetches.count(b"\n") == 3
    pending_world.advance(minutes=2)
    before, events = pending_world.parts.reconciler.state.snapshot.records, len(pending_world.parts.events)
    assert all(before[parse_uuid(make_uuid(name))].provision == 1 for name in NAMES[:3])
    (pending_world.parts.spool / "1-0123456789abcdef.jsonl").write_bytes(fetches)
    pending_world.advance(minutes=5)
    assert pending_world.parts.reconciler.state.snapshot.records == before
    assert {event.type for event in pending_world.parts.events[events:]} <= {"Published"}


def test_a_claim_that_has_ended_withholds_nothing(pending_world: World) -> None:
    (folder := pending_world.parts.spool / ".forwarded").mkdir(parents=True)
    (folder / "soles").write_text("{}")
    pending_world.advance()
    assert pending_world.condition("InstallsAllowed") == (True, "Allowed")


# A word for what is installed at every boot


@pytest.mark.parametrize(
    ("what", "text", "code"),
    [
        ("a policy", policy("web", "All", "reinstall: Never"), "GB2018"),
        (
            "a maintenance's defaults",
            maintenance("m", "20T10:00 20T18:00", boots="bios").replace(", reinstall: EveryBoot", ""),
            "GB2018",
        ),
        ("a maintenance without an end", maintenance("m", "20T10:00 -", "networkBoot: Once", boots="bios"), "GB2019"),
    ],
)
def test_e18_an_installation_at_every_boot_is_rejected_and_the_accepted_commit_stays(
    world: World, what: str, text: str, code: str
) -> None:
    before = world.applied
    world.push(servers(), *([] if what == "a policy" else [ONCE]), text)
    assert [problem.code for problem in world.parts.reconciler.status.problems] == [code]
    assert (world.applied, world.condition("CommitAccepted")) == (before, (False, "Invalid"))
    assert {summarize_plan(world.plan(name)) for name in NAMES} == {(Phase.DISK, Cause.PROVISIONED)}


# An endpoint without its instance


def request_boot(folder: Path, name: str, instant: datetime) -> str:
    """Return the response of an endpoint over the remaining tree to the loader of a server.

    The status has the clock of this host, which the test does not move, so the endpoint compares its clock with none.
    """
    status = folder / "output" / STATUS
    facts = json.loads(status.read_text())
    status.write_text(json.dumps({**facts, "clock": None}))
    tree = PublishedTree(folder / "output", clock=lambda: instant)
    path = f"/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe"
    answer = BootResponses(tree).find(path, lambda: "10.0.0.7", instant)
    assert answer is not None
    text = bytes(answer.reply.body).decode()
    return next((each for each in ("memtest-7", "bios-2", "flatcar-1") if f"assets/{each}" in text), "disk")


def test_e14_every_window_that_an_endpoint_starts_is_ended_by_it(tmp_path: Path) -> None:
    nights = [
        maintenance(f"night{day}", f"{day}T22:00 {day + 1}T04:00", "networkBoot: Always", select="{servers: [web00]}")
        for day in range(20, 27)
    ]
    with run_world(tmp_path, Limits(), servers("web00"), ONCE) as world:
        world.install("web00")
        world.push(servers("web00"), ONCE, *nights)
        world.now = at("20T23:00")
        world.advance()
    opened = [request_boot(tmp_path, "web00", at(f"{day}T23:00")) for day in range(20, 27)]
    assert opened[:3] == ["memtest-7"] * 3
    ended = {request_boot(tmp_path, "web00", at(f"{day}T04:00")) for day in range(21, 28)}
    assert ended == {"disk"}
    assert request_boot(tmp_path, "web00", at("20T23:00") + timedelta(hours=720)) == "disk"


@pytest.mark.parametrize(
    ("window", "instant", "boots"),
    [
        ("20T10:00 -", "20T12:40", "memtest-7"),
        ("20T10:00 -", "20T13:00", "disk"),
        ("20T10:00 -", "21T13:00", "disk"),
        ("20T12:30 -", "20T12:40", "memtest-7"),
        ("20T12:30 -", "20T13:15", "disk"),
        ("20T13:30 -", "20T14:00", "disk"),  # no living process would open it
    ],
)
def test_e14_a_maintenance_without_an_end_ends_without_its_instance(
    tmp_path: Path, window: str, instant: str, boots: str
) -> None:
    with run_world(tmp_path, Limits(), servers("web00"), ONCE) as world:
        world.install("web00")
        world.push(servers("web00"), ONCE, maintenance("m", window))
    assert request_boot(tmp_path, "web00", at(instant)) == boots


def test_e14_a_maintenance_without_an_end_continues_while_the_instance_runs(tmp_path: Path) -> None:
    with run_world(tmp_path, Limits(), servers("web00"), ONCE) as world:
        world.install("web00")
        world.push(servers("web00"), ONCE, maintenance("m", "20T13:30 -"))
        while world.now < at("20T19:00"):
            due = world.parts.reconciler.reconcile(world.now)
            assert due is not None
            assert due > world.now
            late = due + timedelta(minutes=30)  # what it does at that instant has time
            if due > at("20T13:30"):
                assert request_boot(tmp_path, "web00", late) == "memtest-7"
            world.now = due
            world.parts.reconciler.reconcile(due)
            assert request_boot(tmp_path, "web00", due) == ("memtest-7" if due >= at("20T13:30") else "disk")
