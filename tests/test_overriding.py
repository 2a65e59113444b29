"""When a BMC is asked for what, and what its answers prove: pass by pass, against machines that boot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from gitboot.model.scalars import SystemUuid
from gitboot.override import Armed, State
from gitboot.plan import BootPlan, Cause, Phase
from tests.bench import Bench
from tests.fleets import fleet, image, maintenance, policy, profile, server, uuid_of
from tests.redfish.double import Machine
from tests.redfish.faults import Drop, Status
from tests.redfish.profiles import GENERIC, Profile
from tests.redfish.server import RedfishServer
from tests.redfish.service import Service

PASSWORD = "correct horse"
MONITORS = "baseURL: 'http://boot.test', provisioning: {monitors: [10.9.0.0/24, 'fd00:9::/64']}"


@dataclass
class Site:
    """web01 with its BMC, and the instance that looks after it, on one clock."""

    bench: Bench
    machine: Machine
    bmc: RedfishServer
    spec: str = field(init=False)

    def __post_init__(self) -> None:
        self.spec = f"bmc: {{address: '{self.bmc.url}', system: {self.machine.path}, credentials: rack}}"
        self.bench.now = self.machine.now

    def decide(
        self,
        often: str = "Once",
        *more: str,
        spec: str = "provision: 1",
        of_fleet: str = MONITORS,
        artifacts: str = "kernel, initrd",
        image_spec: str = "",
        method: str = "Pxe",
        bmc: bool = True,
    ) -> None:
        """Accept a commit: what web01's policy boots it with, and how often."""
        self.bench.decide(
            fleet(of_fleet),
            server("web01", "role: web", f"{spec}, {self.spec}" if bmc else spec),
            image("flatcar-1", image_spec, artifacts),
            image("memtest-7", "writesDisk: false"),
            profile("web", "flatcar-1", "" if method == "Pxe" else "httpBoot: uki", method=method),
            profile("repair", "memtest-7"),
            policy("web", often=often),
            *more,
        )

    def wait(self, seconds: float) -> None:
        """Let time pass, for the machine as for the instance."""
        self.machine.advance(seconds)
        self.bench.now = self.machine.now

    def boot(self) -> None:
        """Let the machine reset, and boot by what its override says."""
        self.machine.run_through()
        self.bench.now = self.machine.now

    @property
    def patches(self) -> int:
        return len(self.machine.writes)

    @property
    def shown(self) -> str:
        boot = self.machine.system()["Boot"]
        return f"{boot['BootSourceOverrideEnabled']} {boot['BootSourceOverrideTarget']}"

    @property
    def states(self) -> dict[str, State]:
        """What is recorded of each override, by its reason."""
        return {armed.reason: armed.state for armed in self.bench.ledger.armed(SystemUuid(self.machine.uuid))}

    @property
    def due_in_s(self) -> float | None:
        due = self.bench.overriding.next_due
        return None if due is None else (due - self.bench.now) / timedelta(seconds=1)


class MakeSite(Protocol):
    def __call__(self, *, told: str | None = "fresh", password: str = PASSWORD, profile: Profile = GENERIC) -> Site: ...


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    with ExitStack() as stack:

        def make_site(*, told: str | None = "fresh", password: str = PASSWORD, profile: Profile = GENERIC) -> Site:
            (tmp_path / "rack").mkdir(exist_ok=True)
            (tmp_path / "rack" / "username").write_text("root")
            (tmp_path / "rack" / "password").write_text(password)
            machine = Machine("web01", uuid=uuid_of("web01"), profile=profile)
            bmc = stack.enter_context(RedfishServer(Service(machine, credentials={"root": PASSWORD})))
            bench = stack.enter_context(Bench(tmp_path, told=told, credentials=tmp_path))
            return Site(bench, machine, bmc)

        yield make_site


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()


def shown(plan: BootPlan | None) -> tuple[Phase, Cause] | None:
    return (plan.phase, plan.cause) if plan else None


TO_INSTALL = (Phase.NETWORK, Cause.NOT_MET)
INSTALLED = (Phase.DISK, Cause.MET)


# Once, and never twice


def test_a_server_is_installed_once_from_the_first_pass_to_its_disk(site: Site) -> None:
    site.decide()
    assert shown(site.bench.reconcile()) == TO_INSTALL
    assert (site.shown, site.states) == ("Once Pxe", {"provision/1": State.CONFIRMED})
    assert site.bench.told() == ["OverrideConfirmed"]
    site.boot()
    site.bench.fetch(site.bench.plan())
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.states == {"provision/1": State.SPENT}
    assert site.bench.record is not None and site.bench.record.evidence == "Fetched"
    assert "Provisioned" in site.bench.told()
    for _ in range(3):
        site.wait(60)
        assert shown(site.bench.reconcile()) == INSTALLED
    assert (site.shown, site.patches) == ("Disabled None", 1)
    assert site.due_in_s is None  # nothing is armed, so nothing is read
    assert PASSWORD not in repr(site.bench.events)


def test_a_fetch_while_the_override_stands_is_someone_elses_and_is_said_to_be(site: Site) -> None:
    site.decide()
    plan = site.bench.reconcile()
    site.bench.fetch(plan, client="10.0.0.99")
    site.bench.reconcile()
    (event,) = [event for event in site.bench.events if event.type == "FetchIgnored"]
    assert event.message == "web01: 10.0.0.99 fetched its entry, but the override still stands: another client"
    assert event.facts == {"server": "web01", "client": "10.0.0.99"}
    assert shown(site.bench.reconcile()) == TO_INSTALL
    site.boot()  # the real one
    site.bench.fetch(plan)
    site.bench.reconcile()
    assert site.bench.told("Provisioned") == ["Provisioned"]


@pytest.mark.parametrize(
    ("client", "met"),
    [
        ("10.9.0.5", False),
        ("10.9.1.5", True),
        ("fd00:9::5", False),
        ("fd00:a::5", True),
    ],
)
def test_fetches_of_monitors_prove_nothing(site: Site, client: str, met: bool) -> None:
    site.decide(bmc=False)
    site.bench.fetch(site.bench.reconcile(), client=client)
    site.bench.reconcile()
    assert site.bench.told("Provisioned") == (["Provisioned"] if met else [])


def test_a_monitor_spoils_no_fetch_of_the_machine_itself(site: Site) -> None:
    site.decide()
    plan = site.bench.reconcile()
    site.boot()
    site.bench.fetch(plan)
    site.bench.fetch(plan, client="10.9.0.5")
    site.bench.reconcile()
    assert site.bench.told("Provisioned", "FetchIgnored") == ["Provisioned"]


def test_a_fetch_of_what_was_not_published_proves_nothing(site: Site) -> None:
    site.decide(bmc=False)
    plan = site.bench.reconcile()
    assert plan is not None
    site.bench.fetch(replace(plan, key="of another tree"))
    site.bench.overriding.collect(site.bench.fleet, site.bench.now)
    assert site.bench.told() == []


def test_a_maintenance_that_boots_once_is_armed_once_and_then_done(site: Site) -> None:
    window = maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 1")
    site.decide("Never", window)
    plan = site.bench.reconcile()
    assert (site.shown, list(site.states)) == ("Once Pxe", ["maintenance/repair/1"])
    site.boot()
    site.bench.fetch(plan)
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.bench.told("MaintenanceBooted") == ["MaintenanceBooted"]
    site.wait(61)
    assert shown(site.bench.reconcile()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    assert site.patches == 1
    site.decide("Never", maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 2"))
    site.bench.reconcile()
    assert (site.shown, site.patches) == ("Once Pxe", 2)


def test_a_window_that_ends_takes_its_override_along(site: Site) -> None:
    site.decide("Never", maintenance("repair", "20T11:00 20T13:00"))
    site.bench.reconcile()
    assert site.shown == "Continuous Pxe"
    site.wait(3600)
    site.bench.reconcile()
    assert site.shown == "Disabled Pxe"
    assert site.states == {"maintenance/repair/1": State.WITHDRAWN}
    site.wait(60)
    site.bench.reconcile()
    assert site.patches == 2


# What is spent


@pytest.mark.parametrize(
    ("config_from", "met"),
    [("None", True), ("SystemUUID", False)],  # the second would have asked for /ignition/<uuid>
)
def test_a_direct_boot_that_fetches_nothing_is_met_when_its_override_is_spent(
    site: Site, config_from: str, met: bool
) -> None:
    site.decide(method="UefiHttp", artifacts="uki", image_spec=f"configFrom: {config_from}")
    site.bench.reconcile()
    assert site.shown == "Once UefiHttp"
    site.boot()
    site.bench.reconcile()
    assert site.states == {"provision/1": State.SPENT}
    record = site.bench.record
    assert record is not None
    assert (record.evidence, record.spent_at is None) == (("Spent", True) if met else (None, False))


def test_an_override_that_vanishes_without_a_reset_is_set_again_and_proves_nothing(site: Site) -> None:
    site.decide(method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    site.bench.reconcile()
    site.machine.write(BootSourceOverrideEnabled="Disabled")
    site.wait(60)
    site.bench.reconcile()
    assert (site.shown, site.patches) == ("Once UefiHttp", 2)
    assert site.bench.told("Provisioned") == []


def test_a_spent_override_without_evidence_is_not_armed_again_and_ends_at_the_disk(site: Site) -> None:
    site.decide()
    site.bench.reconcile()
    site.boot()  # by PXE, and its fetch is never seen
    site.bench.reconcile()
    spent_at = site.bench.now
    for expected, minutes in ((TO_INSTALL, 29), ((Phase.DISK, Cause.SPENT), 30)):
        site.wait((spent_at + timedelta(minutes=minutes) - site.bench.now).total_seconds())
        assert shown(site.bench.reconcile()) == expected
    assert site.patches == 1


def test_an_override_that_is_armed_each_time_is_armed_anew_after_each_boot(site: Site) -> None:
    site.decide("Always", method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    for boots in (1, 2, 3):
        site.bench.reconcile()
        assert (site.shown, site.patches) == ("Once UefiHttp", boots)
        site.boot()


# Nothing is known, nothing is wanted


def test_a_ledger_that_was_never_told_asks_no_bmc(make_site: MakeSite) -> None:
    site = make_site(told=None)
    site.decide()
    assert shown(site.bench.reconcile()) == (Phase.DISK, Cause.UNKNOWN)
    condition = site.bench.condition("RecordsKnown")
    assert condition is not None and condition[:2] == (False, "NewLedger")
    assert (site.bmc.connections, site.due_in_s) == (0, None)


def test_a_parked_servers_override_is_withdrawn_once(site: Site) -> None:
    site.decide()
    site.bench.reconcile()
    site.decide(spec="provision: 1, lifecycle: Parked")
    assert site.bench.reconcile() is None
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": State.WITHDRAWN})
    requests = len(site.machine.requests)
    for _ in range(3):
        site.wait(60)
        site.bench.reconcile()
    assert (site.patches, len(site.machine.requests), site.due_in_s) == (2, requests, None)
    assert site.bench.told() == ["OverrideConfirmed", "OverrideWithdrawn"]


def test_a_server_that_is_active_again_is_armed_again(site: Site) -> None:
    for lifecycle, expected in (("Active", "Once Pxe"), ("Parked", "Disabled Pxe"), ("Active", "Once Pxe")):
        site.decide(spec=f"provision: 1, lifecycle: {lifecycle}")
        site.bench.reconcile()
        assert site.shown == expected


@pytest.mark.parametrize("gone", ["the server", "its BMC", "what it wants"])
def test_whoever_left_the_fleet_is_waited_for_no_longer(site: Site, gone: str) -> None:
    site.bmc.fault(Status(status=409), times=1)
    site.decide()
    site.bench.reconcile()
    assert site.due_in_s == 5
    assert site.bench.condition("Bmc/web01") is not None
    if gone == "its BMC":
        site.decide(bmc=False)
    elif gone == "what it wants":
        site.decide("Never")
    else:
        site.bench.decide(fleet(MONITORS), image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    site.bench.reconcile()
    assert site.due_in_s is None
    assert site.bench.condition("Bmc/web01") is None


# When


def test_a_bmc_with_an_armed_override_is_read_every_half_minute(site: Site) -> None:
    site.decide()
    site.bench.reconcile()
    counts = []
    for _ in range(4):
        assert site.due_in_s in (30, 15)
        site.wait(15)
        before = len(site.machine.requests)
        site.bench.reconcile()
        counts.append(len(site.machine.requests) - before)
    assert counts == [0, 1, 0, 1]


def test_a_bmc_is_asked_at_once_when_something_else_is_wanted(site: Site) -> None:
    site.decide()
    site.bench.reconcile()
    site.decide(spec="provision: 2")
    site.bench.reconcile()
    assert site.states == {"provision/1": State.WITHDRAWN, "provision/2": State.CONFIRMED}


def test_a_bmc_that_cannot_be_reached_is_asked_ever_more_rarely(site: Site) -> None:
    site.bmc.fault(Drop(applied=False), times=9)
    site.decide()
    waits = []
    for _ in range(9):
        site.bench.reconcile()
        waits.append(site.due_in_s or 0)
        requests = len(site.machine.requests)
        site.wait(waits[-1] - 1)
        site.bench.reconcile()
        assert len(site.machine.requests) == requests  # not a second before
        site.wait(1)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert site.bench.told() == ["OverrideWaiting", "OverrideOverdue"]  # each once: nothing new is to be said
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and condition[:2] == (False, "Overdue")
    site.bench.reconcile()
    assert (site.shown, site.bench.condition("Bmc/web01")) == ("Once Pxe", None)
    site.bmc.fault(Drop(applied=False))
    site.wait(30)
    site.bench.reconcile()
    assert site.due_in_s == 5  # an answer begins the count anew


def test_wrong_credentials_are_tried_too_rarely_to_lock_an_account(make_site: MakeSite) -> None:
    site = make_site(password="wrong")
    site.decide()
    for _ in range(60):
        site.bench.reconcile()
        site.wait(30)
    assert len(site.machine.requests) == 3  # in half an hour
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and condition[:2] == (False, "Stalled")
    assert site.bench.told() == ["OverrideStalled"]
    assert site.bench.events[0].warning


def test_what_a_bmc_cannot_do_is_for_a_person(make_site: MakeSite) -> None:
    site = make_site(profile=replace(GENERIC, targets=("None", "Hdd")))
    site.decide()
    site.bench.reconcile()
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and condition[1] == "Stalled"
    assert condition[2] == "Unsupported: Pxe is wanted, and the BMC boots only Hdd, None"


# A fetch and the reading that judges it


def test_a_fetch_is_judged_by_a_reading_that_began_after_it(site: Site) -> None:
    """While a PATCH is under way somebody else fetches, and its answer is lost: the fetch proves nothing."""
    site.decide()
    site.bmc.fault(Drop(applied=True), on="PATCH")
    about_to_set, may_set = threading.Event(), threading.Event()
    write = site.bench.bmcs.write

    def held(uuid: SystemUuid, record: Armed) -> None:
        write(uuid, record)
        if record.state is State.RECORDED:
            about_to_set.set()
            assert may_set.wait(10)

    site.bench.bmcs.write = held
    bench = site.bench
    plan = bench.plan()
    bench.overriding.ask(bench.fleet, bench.now)
    assert about_to_set.wait(10)
    bench.fetch(plan, client="10.0.0.99")
    bench.overriding.collect(bench.fleet, bench.now)
    bench.overriding.ask(bench.fleet, bench.now)
    may_set.set()
    bench.overriding.collect(bench.fleet, bench.now, wait=True)
    assert bench.told("Provisioned", "FetchIgnored") == []
    bench.reconcile()
    assert bench.told("Provisioned", "FetchIgnored") == ["FetchIgnored"]


def test_a_fetch_whose_bmc_does_not_answer_waits_with_it_and_counts_in_the_end(site: Site) -> None:
    site.decide()
    plan = site.bench.reconcile()
    site.boot()
    site.bench.fetch(plan)
    site.bmc.fault(Drop(applied=False), times=2)
    requests = len(site.machine.requests)
    for _ in range(5):
        site.bench.reconcile()
    assert len(site.machine.requests) == requests + 1
    assert site.bench.told("Provisioned") == []
    for seconds in (5, 10):
        site.wait(seconds)
        site.bench.reconcile()
    assert site.bench.told("Provisioned") == ["Provisioned"]
    assert site.bench.record is not None and site.bench.record.met_at == site.bench.now - timedelta(seconds=15)
