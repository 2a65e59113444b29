"""Tasks at BMCs: which task runs when, and what its result proves, reconcile by reconcile, with machines that boot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec import structs

from gitboot.bmc.override_session import TaskOutcome, TaskResult
from gitboot.bmc.override_state import OverrideRecord, OverrideState
from gitboot.controller.bmcs.schedule import build_override_events
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, make_record_fields
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.helpers.cases import require_value
from tests.helpers.fleets import fleet, image, maintenance, make_uuid, policy, profile, server, store_credentials
from tests.helpers.instance_in_process import Bench
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, ILO6, OPENBMC, SUPERMICRO_X10, Profile
from tests.helpers.redfish_double.server import Drop, Hang, Ignored, RedfishServer, Service, Slow, Status
from tests.helpers.running_instance import eventually

PASSWORD = "correct horse"
MONITORS = "baseURL: 'http://boot.test', provisioning: {monitors: [10.9.0.0/24, 'fd00:9::/64']}"


@dataclass
class Site:
    """web01 with its BMC, and the instance that looks after it, on one clock."""

    bench: Bench
    machine: Machine
    bmc: RedfishServer
    make_bench: Callable[..., Bench]
    spec: str = field(init=False)

    def __post_init__(self) -> None:
        self.spec = f"bmc: {{address: '{self.bmc.url}', system: {self.machine.path}, credentials: rack}}"
        self.bench.now = self.machine.now

    def decide(
        self,
        often: str = "Once",
        *more: str,
        spec: str = "provision: 1",
        fleet_spec: str = MONITORS,
        artifacts: str = "kernel, initrd",
        image_spec: str = "",
        image_name: str = "flatcar-1",
        method: str = "Pxe",
        bmc: bool = True,
    ) -> None:
        """Accept a commit: what web01's policy boots it with, and how often."""
        self.bench.decide(
            fleet(fleet_spec),
            server("web01", "role: web", f"{spec}, {self.spec}" if bmc else spec),
            image(image_name, image_spec, artifacts),
            image("memtest-7", "writesDisk: false"),
            profile(
                "web",
                image_name,
                "" if method == "Pxe" else f"httpBoot: {artifacts.rpartition(', ')[2]}",
                method=method,
            ),
            profile("repair", "memtest-7"),
            policy("web", often=often),
            *more,
        )

    def apply(self, often: str = "Once", *more: str, **given: Any) -> BootPlan | None:
        """Accept a commit as `decide` does, and reconcile; return web01's plan."""
        self.decide(often, *more, **given)
        return self.bench.reconcile()

    def reconcile_after(self, seconds: float) -> BootPlan | None:
        self.wait(seconds)
        return self.bench.reconcile()

    def wait(self, seconds: float) -> None:
        self.machine.advance(seconds)
        self.bench.now = self.machine.now

    def boot(self) -> None:
        """Reset the machine and boot the target of its override."""
        self.machine.run_through()
        self.bench.now = self.machine.now

    def observe_resets(self) -> None:
        """Boot web01 once by a maintenance that writes no disk, so that the marks of its BMC are known to move."""
        self.decide("Never", maintenance("check", "20T11:00 20T14:00", "networkBoot: Once, run: 1"))
        planned = self.bench.reconcile()
        self.boot()
        self.bench.fetch(planned)
        self.wait(30)
        self.bench.reconcile()
        self.machine.requests.clear()

    def set_pending(self) -> None:
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record())}
        self.bench.request("records", items=[item], reason="it is not installed")

    def restart(self, **given: Any) -> None:
        """Another process on the same ledger, with the same commit."""
        before = self.bench
        before.close()
        self.bench = self.make_bench(initial=None, **given)
        self.bench.now, self.bench.commits.newest = before.now, before.commits.newest

    @property
    def patches(self) -> int:
        return len(self.machine.writes)

    @property
    def shown(self) -> str:
        boot = self.machine.system()["Boot"]
        return f"{boot['BootSourceOverrideEnabled']} {boot['BootSourceOverrideTarget']}"

    @property
    def states(self) -> dict[str, OverrideState]:
        """Return the recorded state of each override, by its reason."""
        kept = self.bench.snapshot.list_overrides(SystemUuid(make_uuid("web01")))
        return {each.reason: each.state for each in kept}

    def condition(self, type: str) -> tuple[object, ...]:
        return (self.bench.condition(type) or ())[:2]

    @property
    def due_in_s(self) -> float | None:
        due = self.bench.schedule.agenda.next_due
        return None if due is None else (due - self.bench.now) / timedelta(seconds=1)


class MakeSite(Protocol):
    def __call__(
        self, *, initial: str | None = "fresh", password: str = PASSWORD, profile: Profile = GENERIC
    ) -> Site: ...


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    with ExitStack() as stack:

        def make_site(*, initial: str | None = "fresh", password: str = PASSWORD, profile: Profile = GENERIC) -> Site:
            store_credentials(tmp_path, password=password)
            machine = Machine("web01", uuid=make_uuid("web01"), profile=profile)
            bmc = stack.enter_context(RedfishServer(Service(machine, credentials={"root": PASSWORD})))

            def make_bench(**given: Any) -> Bench:
                return stack.enter_context(Bench(tmp_path, credentials=tmp_path, **given))

            return Site(make_bench(initial=initial), machine, bmc, make_bench)

        yield make_site


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()


def summarize_plan(plan: BootPlan | None) -> tuple[Phase, Cause] | None:
    return (plan.phase, plan.cause) if plan else None


TO_INSTALL = (Phase.NETWORK, Cause.PENDING)
INSTALLED = (Phase.DISK, Cause.PROVISIONED)


# Once, and never twice


def test_a_server_is_installed_once_from_the_first_reconcile_to_its_disk(site: Site) -> None:
    assert summarize_plan(site.apply()) == TO_INSTALL
    assert (site.shown, site.states) == ("Once Pxe", {"provision/1": OverrideState.CONFIRMED})
    assert site.bench.told() == ["OverrideConfirmed"]
    site.boot()
    site.bench.fetch(site.bench.plan())
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.states == {"provision/1": OverrideState.CONSUMED}
    assert site.bench.record is not None and site.bench.record.evidence == "Fetched"
    assert "Provisioned" in site.bench.told()
    for _ in range(3):
        assert summarize_plan(site.reconcile_after(60)) == INSTALLED
    assert (site.shown, site.patches) == ("Disabled None", 1)
    assert site.due_in_s is None  # no override is set, so nothing is read
    assert PASSWORD not in repr(site.bench.events)


SWITCHES = [("Once", "OnImageChange"), ("OnImageChange", "Once")]


@pytest.mark.parametrize("artifacts", ["kernel, initrd", "uki"])
@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_an_override_that_was_used_before_a_commit_changed_network_boot_is_not_set_again(
    site: Site, before: str, after: str, artifacts: str
) -> None:
    boot = {"method": "UefiHttp" if artifacts == "uki" else "Pxe", "artifacts": artifacts}
    site.apply(before, **boot)
    assert site.shown.split()[0] == "Once"
    site.boot()
    assert summarize_plan(site.apply(after, **boot)) == TO_INSTALL  # the BMC has not responded yet
    for _ in range(40):
        site.reconcile_after(60)
        assert (site.shown.split()[0], site.patches) == ("Disabled", 1)
    assert summarize_plan(site.bench.plan()) == (Phase.DISK, Cause.CONSUMED)
    assert site.condition("InstallsCompleted") == (False, "NeedsOperator")
    site.set_pending()
    for _ in range(3):
        site.reconcile_after(60)
    assert (site.shown.split()[0], site.patches) == ("Once", 2)


@pytest.mark.parametrize("between", ["Never", "Always"])
@pytest.mark.parametrize("artifacts", ["kernel, initrd", "uki"])
@pytest.mark.parametrize("after", ["Once", "OnImageChange"])
def test_an_override_that_was_used_is_not_forgotten_while_the_policy_does_not_install(
    site: Site, after: str, artifacts: str, between: str
) -> None:
    boot = {"method": "UefiHttp" if artifacts == "uki" else "Pxe", "artifacts": artifacts}
    site.observe_resets()
    site.apply("Once", **boot)
    site.boot()
    site.apply(between, **boot)  # before the BMC has responded
    site.wait(60)
    site.bench.reconcile()
    site.apply("Never", **boot)
    patches = site.patches
    site.apply(after, **boot)
    for _ in range(40):
        site.reconcile_after(60)
        assert (site.shown.split()[0], site.patches) == ("Disabled", patches)
    if (after, artifacts) == ("Once", "uki"):  # the consumed override proves the boot
        assert summarize_plan(site.bench.plan()) == INSTALLED
        return
    assert summarize_plan(site.bench.plan()) == (Phase.DISK, Cause.CONSUMED)
    assert site.condition("InstallsCompleted") == (False, "NeedsOperator")
    resolve_as_not_set(site)
    assert (site.shown.split()[0], site.patches) == ("Once", patches + 1)


def resolve_as_not_set(site: Site) -> None:
    """Do what `gitboot bmc resolve --not-set` does."""
    key = require_value(site.bench.plan()).key
    site.bench.request(
        "resolve", uuid=make_uuid("web01"), server="web01", key=key, consumed=False, bmc=None, reason="x"
    )
    for _ in range(3):
        site.reconcile_after(60)


@pytest.mark.parametrize("between", ["Never", None])  # None: the commit follows before the BMC has responded
@pytest.mark.parametrize(
    ("after", "number", "expected"),
    [
        ("Once", 4, (Phase.DISK, Cause.CONSUMED)),
        ("OnImageChange", 4, (Phase.DISK, Cause.CONSUMED)),
        ("Once", 5, INSTALLED),  # the consumed override proves the boot
        ("OnImageChange", 5, (Phase.DISK, Cause.CONSUMED)),
        ("Once", 6, TO_INSTALL),
        ("OnImageChange", 6, TO_INSTALL),
    ],
)
def test_a_number_that_a_commit_lowered_after_the_override_was_used_installs_no_second_time(
    site: Site, after: str, number: int, expected: tuple[Phase, Cause], between: str | None
) -> None:
    boot = {"method": "UefiHttp", "artifacts": "uki"}
    site.observe_resets()
    site.apply("Once", spec="provision: 5", **boot)
    site.set_pending()
    site.reconcile_after(60)
    site.boot()
    if between is not None:
        site.apply(between, spec="provision: 5", **boot)
        site.reconcile_after(60)
    site.apply("Never", spec="provision: 1", **boot)
    withdrawn = next(each.message for each in site.bench.events if each.type == "InstallWithdrawn")
    assert withdrawn.endswith("raise `provision` above 5")
    site.apply(after, spec=f"provision: {number}", **boot)
    for _ in range(5):
        planned = site.reconcile_after(60)
    assert summarize_plan(planned) == expected
    assert site.shown.split()[0] == ("Once" if expected == TO_INSTALL else "Disabled")
    assert site.condition("InstallsCompleted")[0] is (expected[1] is not Cause.CONSUMED)


@pytest.mark.parametrize(("number", "expected"), [(4, (Phase.DISK, Cause.CONSUMED)), (6, TO_INSTALL)])
@pytest.mark.parametrize("after", ["Once", "OnImageChange"])
def test_the_number_that_the_event_names_installs_although_an_override_was_used_without_a_fetch(
    site: Site, after: str, number: int, expected: tuple[Phase, Cause]
) -> None:
    site.observe_resets()
    site.apply("Once", spec="provision: 5")
    site.set_pending()
    site.reconcile_after(60)
    site.boot()
    site.apply("Once", spec="provision: 1")
    withdrawn = next(each.message for each in site.bench.events if each.type == "InstallWithdrawn")
    assert withdrawn.endswith("raise `provision` above 5")
    site.apply(after, spec=f"provision: {number}")
    for _ in range(40):
        planned = site.reconcile_after(60)
    assert summarize_plan(planned) == expected
    assert site.condition("InstallsCompleted")[0] is (expected == TO_INSTALL)
    if expected != TO_INSTALL:
        resolve_as_not_set(site)
        assert (summarize_plan(site.bench.plan()), site.shown.split()[0]) == (TO_INSTALL, "Once")


REPORTED = MONITORS.replace("provisioning: {", "provisioning: {evidence: Reported, ")


@pytest.mark.parametrize("images", [("flatcar-2",), ("flatcar-2", "flatcar-3")])
@pytest.mark.parametrize("before", ["Once", "OnImageChange"])
def test_an_override_for_another_image_is_set_although_the_first_installation_has_not_ended(
    site: Site, before: str, images: tuple[str, ...]
) -> None:
    site.observe_resets()
    site.apply(before, fleet_spec=REPORTED)
    patches = site.patches
    for number, image_name in enumerate(images):
        site.boot()
        site.bench.fetch(site.bench.plan())
        site.bench.reconcile()
        site.reconcile_after(60)
        site.apply("OnImageChange", image_name=image_name, fleet_spec=REPORTED)
        for _ in range(3):
            site.reconcile_after(60)
        assert (site.shown, site.patches) == ("Once Pxe", patches + number + 1)


@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_the_override_for_the_second_boot_is_set_although_a_commit_changed_network_boot(
    site: Site, before: str, after: str
) -> None:
    site.observe_resets()
    site.apply(before, image_spec="boots: 2", fleet_spec=REPORTED)
    site.boot()
    planned = site.apply(after, image_spec="boots: 2", fleet_spec=REPORTED)  # before the BMC has responded
    site.bench.fetch(planned)
    for _ in range(3):
        planned = site.reconcile_after(60)
    assert (summarize_plan(planned), site.shown) == (TO_INSTALL, "Once Pxe")
    assert site.states[require_value(require_value(planned).key)] is OverrideState.CONFIRMED


@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_an_override_that_was_not_used_when_a_commit_changed_network_boot_is_replaced(
    site: Site, before: str, after: str
) -> None:
    site.observe_resets()
    site.apply(before)
    assert site.shown == "Once Pxe"
    site.apply(after)
    for _ in range(5):
        site.reconcile_after(60)
    assert site.shown == "Once Pxe"
    site.boot()
    site.bench.fetch(site.bench.plan())
    site.bench.reconcile()
    for _ in range(3):
        assert summarize_plan(site.reconcile_after(60)) == INSTALLED
    assert site.shown.split()[0] == "Disabled"


@pytest.mark.parametrize(
    ("artifacts", "number", "expected"),
    [
        ("uki", 3, (Phase.DISK, Cause.UNKNOWN)),
        ("uki", 4, TO_INSTALL),
        ("kernel, initrd", 3, TO_INSTALL),  # the override names no boot loader
        ("kernel, initrd, loader", 3, (Phase.DISK, Cause.UNKNOWN)),  # gitboot may not have read the fetch yet
    ],
)
def test_a_new_motherboard_is_not_installed_if_the_old_one_may_have_booted_without_a_fetch(
    site: Site, artifacts: str, number: int, expected: tuple[Phase, Cause]
) -> None:
    kind = artifacts.rpartition(", ")[2]
    boot = {"method": "Pxe" if kind == "initrd" else "UefiHttp", "artifacts": artifacts}
    site.apply("Once", spec="provision: 3", **boot)
    site.set_pending()
    site.reconcile_after(60)
    assert site.shown.split()[0] == "Once"
    site.boot()
    board = server("web01", "role: web", f"provision: {number}, replaces: {make_uuid('web01')}")
    site.bench.decide(
        fleet(MONITORS),
        board.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid('board')}", 1),
        image("flatcar-1", "", artifacts),
        profile("web", "flatcar-1", "" if kind == "initrd" else f"httpBoot: {kind}", method=boot["method"]),
        policy("web", often="Once"),
    )
    for _ in range(3):
        plan = site.reconcile_after(60)
    assert summarize_plan(plan) == expected
    found = [each.message for each in site.bench.events if each.type == "ServerUnknown"]
    why = f"the server replaces {make_uuid('web01')}, which may have booted with provision number 3"
    assert [why in each for each in found] == ([True] if expected[1] is Cause.UNKNOWN else [])


def test_a_fetch_while_the_override_stands_is_ignored_with_an_event(site: Site) -> None:
    plan = site.apply()
    site.bench.fetch(plan, client="10.0.0.99")
    site.bench.reconcile()
    (event,) = [event for event in site.bench.events if event.type == "FetchIgnored"]
    assert event.message == (
        "web01: ignored the fetch of boot/v1/boot/m/boot.ipxe by 10.0.0.99: the override is still set, so another "
        "client fetched this file"
    )
    assert event.facts == {"server": "web01", "client": "10.0.0.99"}
    again = site.bench.reconcile()
    assert summarize_plan(again) == TO_INSTALL
    assert plan is not None and again is not None
    assert again.digest != plan.digest  # an endpoint knows by it what it has served
    site.boot()  # the real one
    site.bench.fetch(again)
    site.bench.reconcile()
    assert site.bench.told("Provisioned") == ["Provisioned"]


def test_a_machine_that_booted_past_its_override_is_not_installed_by_it_again(make_site: MakeSite) -> None:
    """It was coming up, its firmware went by its own boot order, network first, and its BMC shows no resets."""
    site = make_site(profile=SUPERMICRO_X10)
    site.decide()
    site.bench.fetch(site.bench.reconcile())
    for _ in range(3):
        site.bench.reconcile()
        site.wait(60)
    assert site.bench.told("Provisioned", "FetchIgnored") == ["Provisioned"]
    assert (summarize_plan(site.bench.plan()), site.shown) == (INSTALLED, "Disabled Pxe")  # whose target it keeps


def test_a_fetch_by_a_monitor_does_not_spoil_a_fetch_by_the_machine(site: Site) -> None:
    plan = site.apply()
    site.boot()
    site.bench.fetch(plan)
    site.bench.fetch(plan, client="10.9.0.5")
    site.bench.reconcile()
    assert site.bench.told("Provisioned", "FetchIgnored") == ["Provisioned"]


def test_a_fetch_of_an_unpublished_boot_proves_nothing(site: Site) -> None:
    plan = site.apply(bmc=False)
    assert plan is not None
    site.bench.fetch(replace(plan, key="of another tree"))
    site.bench.plan()
    assert site.bench.told() == []


def test_a_maintenance_that_boots_once_is_set_once_and_then_done(site: Site) -> None:
    window = maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 1")
    plan = site.apply("Never", window)
    assert (site.shown, list(site.states)) == ("Once Pxe", ["maintenance/repair/1"])
    site.boot()
    site.bench.fetch(plan)
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.bench.told("MaintenanceBooted") == ["MaintenanceBooted"]
    assert summarize_plan(site.reconcile_after(61)) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    assert site.patches == 1
    site.apply("Never", maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 2"))
    assert (site.shown, site.patches) == ("Once Pxe", 2)


def test_the_end_of_a_window_clears_its_override(site: Site) -> None:
    site.apply("Never", maintenance("repair", "20T11:00 20T13:00"))
    assert site.shown == "Continuous Pxe"
    site.reconcile_after(3600)
    assert (site.shown, site.states) == ("Disabled Pxe", {"maintenance/repair/1": OverrideState.CLEARED})
    site.reconcile_after(60)
    assert site.patches == 2


def test_a_failed_clearing_is_retried_soon_after_the_clock_was_set_back(site: Site) -> None:
    site.apply("Never", maintenance("repair", "20T11:00 20T13:00"))
    site.bmc.fault(Drop(applied=False))
    site.bench.now += timedelta(days=1)
    site.bench.reconcile()
    assert (site.shown, site.due_in_s) == ("Continuous Pxe", 5)
    site.reconcile_after(60)  # the clock is right again
    assert (site.shown, site.states) == ("Disabled Pxe", {"maintenance/repair/1": OverrideState.CLEARED})


# Consumed overrides


@pytest.mark.parametrize(
    ("config_from", "provisioned"),
    [("None", True), ("SystemUUID", False)],  # the second fetch would be /ignition/<uuid>
)
def test_a_direct_boot_that_fetches_nothing_is_provisioned_when_its_override_is_consumed(
    site: Site, config_from: str, provisioned: bool
) -> None:
    site.apply(method="UefiHttp", artifacts="uki", image_spec=f"configFrom: {config_from}")
    assert site.shown == "Once UefiHttp"
    site.boot()
    site.bench.reconcile()
    assert site.states == {"provision/1": OverrideState.CONSUMED}
    record = site.bench.record
    assert record is not None
    assert (record.evidence, record.consumed_at is None) == (("Consumed", True) if provisioned else (None, False))
    assert site.bench.condition("HttpBoot") is None, "its BMC takes the URI"


@pytest.mark.parametrize("profile", [IDRAC9, OPENBMC], ids=lambda profile: profile.name)
def test_if_dhcp_names_the_loader_a_consumed_override_alone_proves_nothing_and_the_loader_starts_no_iso(
    make_site: MakeSite, profile: Profile
) -> None:
    """The loader would have fetched the boot script; a machine that found no loader has booted its disk."""
    site = make_site(profile=profile)
    site.apply(method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    site.bench.reconcile()
    lacking = {IDRAC9.name: "HttpBootUri", OPENBMC.name: "UefiHttp"}[profile.name]
    message = (
        "gitboot cannot set a boot URI on these servers' BMCs, so DHCP must name the boot loader: web01 (the BMC does "
        f"not support {lacking})"
    )
    assert site.bench.condition("HttpBoot") == (True, "HttpBootByDhcp", message)
    site.boot()
    site.bench.reconcile()
    [boot] = site.machine.boots
    assert (boot.target in ("Pxe", "UefiHttp"), boot.uri, site.patches) == (True, None, 1)
    assert site.bench.told("Provisioned") == []
    site.apply(method="UefiHttp", artifacts="iso", image_spec="configFrom: None", spec="provision: 2")
    site.bench.reconcile()
    assert get_bmc_message(site).startswith(
        "Unsupported: the plan boots an ISO image over HTTP, but the BMC does not support HttpBootUri"
    )
    assert site.patches == 1


@pytest.mark.parametrize(
    ("have_moved", "patches", "state"), [(True, 2, OverrideState.CONFIRMED), (False, 1, OverrideState.LOST)]
)
def test_e27_an_override_that_vanishes_without_a_reset_is_set_again_only_if_marks_have_moved_before(
    site: Site, have_moved: bool, patches: int, state: OverrideState
) -> None:
    if have_moved:
        site.observe_resets()
    before = site.patches
    site.apply(method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    site.machine.write(BootSourceOverrideEnabled="Disabled")
    for _ in range(3):
        site.reconcile_after(60)
    assert (site.patches - before, site.states["provision/1"]) == (patches, state)
    assert (site.shown == "Once UefiHttp", site.bench.told("Provisioned")) == (have_moved, [])


def test_a_consumed_override_without_evidence_is_not_set_again_and_ends_at_the_disk(site: Site) -> None:
    site.apply()
    site.boot()  # by PXE, and its fetch is never seen
    site.bench.reconcile()
    consumed_at = site.bench.now
    for expected, minutes in ((TO_INSTALL, 29), ((Phase.DISK, Cause.CONSUMED), 30)):
        assert (
            summarize_plan(
                site.reconcile_after((consumed_at + timedelta(minutes=minutes) - site.bench.now).total_seconds())
            )
            == expected
        )
    assert site.patches == 1


def test_an_override_for_every_boot_is_set_again_after_each_boot(site: Site) -> None:
    site.decide("Always", method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    for boots in (1, 2, 3):
        site.bench.reconcile()
        assert (site.shown, site.patches) == ("Once UefiHttp", boots)
        site.boot()


# Unverified records, unwanted overrides


def test_with_a_new_ledger_that_was_not_begun_no_bmc_gets_a_request(make_site: MakeSite) -> None:
    site = make_site(initial=None)
    assert summarize_plan(site.apply()) == (Phase.DISK, Cause.UNKNOWN)
    assert site.condition("RecordsVerified") == (False, "NewLedger")
    assert (site.bmc.connections, site.due_in_s) == (0, None)


def test_the_override_of_a_parked_server_is_cleared_once(site: Site) -> None:
    site.apply()
    site.decide(spec="provision: 1, lifecycle: Parked")
    assert site.bench.reconcile() is None
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})
    requests = len(site.machine.requests)
    for _ in range(3):
        site.reconcile_after(60)
    assert (site.patches, len(site.machine.requests), site.due_in_s) == (2, requests, None)
    assert site.bench.told() == ["OverrideConfirmed", "OverrideWithdrawn"]
    site.apply()
    assert site.shown == "Once Pxe", "it is active again"


@pytest.mark.parametrize("gone", ["the server", "its BMC", "what it wants"])
def test_a_server_that_left_the_fleet_is_no_longer_waited_for(site: Site, gone: str) -> None:
    site.bmc.fault(Status(status=409), times=1)
    site.apply()
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


def test_a_bmc_with_a_standing_override_is_read_every_30_seconds(site: Site) -> None:
    site.apply()
    counts = []
    for _ in range(4):
        assert site.due_in_s in (30, 15)
        site.wait(15)
        before = len(site.machine.requests)
        site.bench.reconcile()
        counts.append(len(site.machine.requests) - before)
    assert counts == [0, 1, 0, 1]


def test_a_bmc_is_contacted_at_once_if_its_wanted_override_changes(site: Site) -> None:
    site.apply()
    site.apply(spec="provision: 2")
    assert site.states == {"provision/1": OverrideState.CLEARED, "provision/2": OverrideState.CONFIRMED}


def test_an_unreachable_bmc_is_contacted_less_and_less_often(site: Site) -> None:
    site.bmc.fault(Drop(applied=False), times=9)
    site.decide()
    waits = []
    for _ in range(9):
        site.bench.reconcile()
        waits.append(site.due_in_s or 0)
        requests = len(site.machine.requests)
        site.reconcile_after(waits[-1] - 1)
        assert len(site.machine.requests) == requests  # not a second before
        site.wait(1)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert site.bench.told() == ["OverrideWaiting", "OverrideOverdue"]  # each once: there is no new event
    assert site.condition("Bmc/web01") == (False, "Overdue")
    site.bench.reconcile()
    assert (site.shown, site.bench.condition("Bmc/web01")) == ("Once Pxe", None)
    site.bmc.fault(Drop(applied=False))
    site.reconcile_after(30)
    assert site.due_in_s == 5  # a response resets the count


@pytest.mark.parametrize(
    ("asked", "due_in_s"),
    [
        pytest.param("120", 120, id="as long as the BMC requires"),
        pytest.param("1", 5, id="no sooner than any other failure"),
        pytest.param("3600", 600, id="no longer than the longest wait"),
    ],
)
def test_a_busy_bmc_gets_no_request_for_as_long_as_it_requires(site: Site, asked: str, due_in_s: int) -> None:
    site.bmc.fault(Status(status=503, headers={"Retry-After": asked}), times=2)  # a GET is tried twice
    site.apply()
    assert site.due_in_s == due_in_s
    requests = len(site.machine.requests)
    site.reconcile_after(due_in_s - 1)
    assert len(site.machine.requests) == requests
    site.reconcile_after(1)
    assert site.shown == "Once Pxe"


def test_wrong_credentials_are_tried_too_rarely_to_lock_an_account(make_site: MakeSite) -> None:
    site = make_site(password="wrong")
    site.decide()
    for _ in range(60):
        site.bench.reconcile()
        site.wait(30)
    asked = [each.method for each in site.bmc.service.requests]
    assert asked == ["GET", "POST", "GET"], "in half an hour; the second login is one by a session"
    assert site.condition("Bmc/web01") == (False, "Stalled")
    assert site.bench.told() == ["OverrideStalled"]
    assert [event.warning for event in site.bench.events if event.type == "OverrideStalled"] == [True]


# A fetch and the reading that judges it


def test_a_fetch_is_judged_by_a_reading_that_began_after_the_fetch(site: Site) -> None:
    """During a PATCH another client fetches the boot, and the response is lost: the fetch proves nothing."""
    site.decide()
    site.bmc.fault(Drop(applied=True), on="PATCH")
    about_to_set, may_set = threading.Event(), threading.Event()

    def held(record: OverrideRecord) -> None:
        if record.state is OverrideState.RECORDED:
            about_to_set.set()
            assert may_set.wait(60)

    site.bench.after_recording = held
    bench = site.bench
    plan = bench.reconcile(wait=False)
    assert about_to_set.wait(60)
    bench.fetch(plan, client="10.0.0.99")
    bench.reconcile(wait=False)
    may_set.set()
    bench.collect()
    assert bench.told("Provisioned", "FetchIgnored") == []
    bench.reconcile()
    assert bench.told("Provisioned", "FetchIgnored") == ["FetchIgnored"]


def test_a_fetch_waits_while_its_bmc_does_not_respond_and_counts_in_the_end(site: Site) -> None:
    plan = site.apply()
    site.boot()
    site.bench.fetch(plan)
    site.bmc.fault(Drop(applied=False), times=2)
    requests = len(site.machine.requests)
    for _ in range(5):
        site.bench.reconcile()
    assert (len(site.machine.requests), site.bench.told("Provisioned")) == (requests + 1, [])
    for seconds in (5, 10):
        site.reconcile_after(seconds)
    assert site.bench.told("Provisioned") == ["Provisioned"]
    assert site.bench.record is not None and site.bench.record.provisioned_at == site.bench.now - timedelta(seconds=15)


# The machine behind a BMC


def replace_machine(site: Site) -> None:
    site.machine.uuid, site.machine.serial = make_uuid("another"), "CZ29200XYZ"


def get_bmc_message(site: Site) -> str:
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and "web01" in condition[2]
    return f"{condition[1]}: {condition[2].partition('Cause: ')[2]}"


def test_e25_another_machine_is_a_condition_that_names_both_until_the_document_names_it(site: Site) -> None:
    replace_machine(site)
    site.apply()
    assert get_bmc_message(site).startswith(
        f'AnotherMachine: the BMC reports UUID {make_uuid("another")}, serial "CZ29200XYZ"'
    )
    assert make_uuid("web01") in get_bmc_message(site)
    assert (site.patches, site.states) == (0, {})
    site.spec = site.spec.removesuffix("}") + f", reports: {{uuid: {make_uuid('another')}}}}}"
    site.apply()
    assert site.shown == "Once Pxe"


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
def test_the_reported_identity_is_pinned_and_a_change_holds_the_server(site: Site, again: bool) -> None:
    site.apply("Never", maintenance("repair", "20T11:00 20T13:00"))
    site.machine.serial = "CZ29200XYZ"
    site.decide()
    if again:
        site.restart()
    site.reconcile_after(300)
    assert get_bmc_message(site).startswith("AnotherMachine: the BMC reports a different identity than before: serial")
    assert "provision/1" not in site.states


def test_e25_a_board_without_a_uuid_and_serial_number_is_installed_with_a_warning(site: Site) -> None:
    site.machine.uuid, site.machine.serial = "", "To be filled by O.E.M."
    site.decide()
    for _ in range(2):
        site.bench.reconcile()
        site.wait(60)
    assert site.shown == "Once Pxe"
    site.boot()
    site.bench.fetch(site.bench.plan())
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.bench.told("Provisioned") == ["Provisioned"]
    assert [each for each in site.bench.instance.reconciler.status.conditions if not each.status] == []
    assert [event.warning for event in site.bench.events if event.type == "MachineUnverified"] == [True]


def test_if_a_board_was_replaced_its_override_is_not_cleared_on_the_next_board(site: Site) -> None:
    site.apply()
    replace_machine(site)
    site.decide(spec="provision: 1, lifecycle: Parked")
    site.reconcile_after(60)
    assert get_bmc_message(site).startswith(
        "AnotherMachine: gitboot set Once Pxe for provision/1 on a BMC that reported UUID"
    )
    assert (site.shown, site.patches, site.states) == ("Once Pxe", 1, {"provision/1": OverrideState.CONFIRMED})


@pytest.mark.parametrize("corrected", ["the password", "the name of the credentials"])
def test_e28_corrected_credentials_are_tried_at_once(make_site: MakeSite, tmp_path: Path, corrected: str) -> None:
    site = make_site(password="wrong")
    site.apply()
    assert 'rejects the user name or password in the credentials "rack"' in get_bmc_message(site)
    for _ in range(3):
        site.reconcile_after(1)
    assert len(site.machine.requests) == 1
    if corrected == "the password":
        (tmp_path / "rack" / "password").write_text(PASSWORD)
        site.reconcile_after(1)
    else:
        store_credentials(tmp_path, "fixed", password=PASSWORD)
        site.spec = site.spec.replace("credentials: rack", "credentials: fixed")
        site.apply()
    assert site.shown == "Once Pxe"


def test_e36_an_override_of_another_instance_stays(site: Site) -> None:
    site.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="UefiHttp", HttpBootUri="http://b/x")
    site.apply()
    assert get_bmc_message(site).startswith("ForeignOverride: the BMC shows Once UefiHttp http://b/x")
    assert (site.shown, site.patches) == ("Once UefiHttp", 0)


# Leftovers


@pytest.fixture
def other(tmp_path: Path, site: Site) -> Iterator[RedfishServer]:
    """Another BMC of web01, which its new document names."""
    machine = Machine("other", uuid=make_uuid("web01"))
    machine.now = site.machine.now
    with RedfishServer(Service(machine, credentials={"root": PASSWORD})) as server:
        yield server


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
@pytest.mark.parametrize("gone", ["the server", "its BMC", "its UUID"])
def test_an_override_on_a_bmc_that_no_document_names_is_cleared(site: Site, gone: str, again: bool) -> None:
    site.apply()
    assert site.shown == "Once Pxe"
    if gone == "the server":
        site.bench.decide(fleet(MONITORS), image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    elif gone == "its BMC":
        site.decide(bmc=False)
    else:
        documents = [fleet(MONITORS), server("web01", "", f"provision: 1, {site.spec}"), image("flatcar-1")]
        documents[1] = documents[1].replace(make_uuid("web01"), make_uuid("a new board"))
        site.bench.decide(*documents, profile("web", "flatcar-1"), policy("web", often="Once"))
    if again:
        site.restart()
    site.bench.reconcile()
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})
    requests = len(site.machine.requests)
    for _ in range(3):
        site.reconcile_after(60)
    assert (len(site.machine.requests), site.patches) == (requests, 2)


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
def test_nothing_is_set_at_a_new_address_before_the_old_one_is_cleared(
    site: Site, other: RedfishServer, again: bool
) -> None:
    site.apply()
    (new,) = other.service.machines
    site.spec = f"bmc: {{address: '{other.url}', system: {new.path}, credentials: rack}}"
    site.decide()
    site.bmc.fault(Drop(applied=False), times=2)
    if again:
        site.restart()
    for wait_s in (5, 10):
        site.bench.reconcile()
        assert (site.shown, new.requests) == ("Once Pxe", [])
        site.wait(wait_s)
    site.bench.reconcile()
    assert (site.shown, new.writes) == ("Disabled Pxe", [])
    site.bench.reconcile()
    assert (new.system()["Boot"]["BootSourceOverrideEnabled"], site.shown) == ("Once", "Disabled Pxe")


def test_a_fetch_by_a_machine_that_left_the_fleet_keeps_no_override_set(site: Site) -> None:
    plan = site.apply()
    site.bench.fetch(plan, client="10.0.0.99")
    site.bench.plan()
    site.bench.decide(fleet(MONITORS), image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    for _ in range(3):
        site.bench.reconcile()
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})


# Changes while a task runs


@dataclass
class JobHold:
    """Holds the jobs of a site where they are about to write to the BMC."""

    bench: Bench
    recorded: bool = True  # or before even that
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.recorded:
            self.bench.after_recording = self
        else:
            self.bench.before_recording = self

    def __call__(self, record: OverrideRecord) -> None:
        if record.state is OverrideState.RECORDED:
            self.reached.set()
            assert self.released.wait(60)


@pytest.mark.parametrize("then", ["parked", "another number", "its window is over"])
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded before", "recorded after"])
def test_an_override_that_was_set_while_the_plan_changed_is_cleared_by_the_next_reconcile(
    site: Site, then: str, recorded: bool
) -> None:
    window = maintenance("repair", "20T11:00 20T14:00")
    site.decide("Never" if "window" in then else "Once", *([window] if "window" in then else []))
    bench, held = site.bench, JobHold(site.bench, recorded)
    bench.reconcile(wait=False)
    assert held.reached.wait(60)
    if then == "parked":
        site.decide(spec="provision: 1, lifecycle: Parked")
    elif then == "another number":
        site.decide(spec="provision: 2")
    else:
        site.decide("Never")
    bench.reconcile(wait=False)
    held.released.set()
    for _ in range(3):  # as the end of a task wakes the loop: no time passes
        bench.reconcile()
    assert site.shown == ("Once Pxe" if then == "another number" else "Disabled Pxe")
    assert [state for state in site.states.values() if state.is_open] == (
        [OverrideState.CONFIRMED] if then == "another number" else []
    )
    assert next(iter(site.states.values())) is OverrideState.CLEARED


def test_an_override_that_becomes_unwanted_while_its_bmc_is_read_is_cleared_right_after(site: Site) -> None:
    site.decide()
    bench = site.bench
    bench.reconcile()
    site.wait(30)
    site.bmc.fault(Slow(every_s=0.0002))
    bench.reconcile(wait=False)
    site.decide(spec="provision: 1, lifecycle: Parked")
    bench.plan()
    for _ in range(2):
        bench.reconcile()
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})


def test_an_override_that_is_wanted_until_a_time_is_not_set_after_it(site: Site) -> None:
    site.decide("Never", maintenance("repair", "20T11:00 20T13:00"))
    bench = site.bench
    bench.job_clock = bench.now + timedelta(hours=1)  # it was planned for, and begins then
    bench.reconcile()
    assert (site.patches, site.states) == (0, {})
    site.wait(3600)
    bench.reconcile()
    assert (site.patches, site.states) == (0, {})


def test_an_override_that_a_bmc_shows_late_is_still_cleared(site: Site) -> None:
    """The BMC took it, and shows it only after the server was parked."""
    site.decide()
    site.bmc.fault(Ignored(), on="PATCH")
    site.bench.reconcile()
    assert site.states == {"provision/1": OverrideState.RECORDED}
    site.decide(spec="provision: 1, lifecycle: Parked")
    site.reconcile_after(20)
    site.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="Pxe")
    site.reconcile_after(40)
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})


# Withdrawals do not back off


def test_a_clearing_is_retried_every_ten_seconds_while_the_bmc_rejects_it_in_post(make_site: MakeSite) -> None:
    site = make_site(profile=ILO6)
    site.apply("Never", maintenance("repair", "20T11:00 20T13:00"))
    assert site.shown == "Continuous Pxe"
    site.machine.post_s = 700
    site.wait(3600)
    site.machine.reset()
    tried: list[int] = []
    while site.machine.in_post or not tried:
        patches = site.patches
        site.bench.reconcile()
        tried.append(site.patches - patches)
        conditions = site.bench.condition("Bmc/web01")
        if site.machine.in_post:
            assert site.due_in_s == 10
            late = len(tried) > 30
            assert conditions is not None and conditions[1] == ("Overdue" if late else "Waiting"), len(tried)
        site.wait(10)
    site.bench.reconcile()
    assert set(tried[:60]) == {1}
    assert site.shown.startswith("Disabled")
    assert site.bench.condition("Bmc/web01") is None


# Many


class MachineGroup:
    def __init__(self, folder: Path, stack: ExitStack, count: int, **given: Any) -> None:
        names = [f"web{number:02}" for number in range(count)]
        self.machines = [Machine(name, uuid=make_uuid(name), system=name) for name in names]
        self.bmc = stack.enter_context(RedfishServer(Service(*self.machines, credentials={"root": PASSWORD})))
        store_credentials(folder, password=PASSWORD)
        self.bench = stack.enter_context(Bench(folder, credentials=folder, **given))
        self.bench.now = self.machines[0].now

    def decide(self, *sites: str, spec: str = "provision: 1") -> None:
        """Accept a commit; ``sites`` are assigned to the machines in turn."""
        named = ", ".join(
            f"{{name: {each}, baseURL: 'http://{each}.test', select: {{matchLabels: {{site: {each}}}}}}}"
            for each in dict.fromkeys(sites)
        )
        servers = [
            server(
                machine.name,
                f"site: {sites[number % len(sites)]}" if sites else "",
                f"{spec}, bmc: {{address: '{self.bmc.url}', system: {machine.path}, credentials: rack}}",
            )
            for number, machine in enumerate(self.machines)
        ]
        self.bench.decide(
            fleet(f"baseURL: 'http://boot.test', sites: [{named}]"),
            *servers,
            image("flatcar-1"),
            profile("web", "flatcar-1"),
            policy("web", often="Once"),
        )

    def wait(self, seconds: float) -> None:
        for machine in self.machines:
            machine.advance(seconds)
        self.bench.now = self.machines[0].now

    @property
    def times_set(self) -> int:
        return sum(each.system()["Boot"]["BootSourceOverrideEnabled"] == "Once" for each in self.machines)


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., MachineGroup]]:
    with ExitStack() as stack:
        yield lambda count, **given: MachineGroup(tmp_path, stack, count, **given)


def test_repeated_failures_stop_setting_overrides_but_not_clearing_them_until_a_bmc_responds(
    make_group: Callable[..., MachineGroup],
) -> None:
    group = make_group(6, failures=3)
    group.decide()
    group.bench.reconcile()
    assert group.times_set == 6
    group.decide(spec="provision: 2")
    group.bmc.fault(Drop(applied=False), times=6)
    group.bench.reconcile()
    assert (group.bench.condition("BmcsReachable") or ())[:2] == (False, "FailuresInARow")
    group.wait(5)
    group.bench.reconcile()  # each has an override to clear, so each is contacted
    assert group.times_set == 6 and (group.bench.condition("BmcsReachable") or (None,))[0]
    assert group.bench.told("BmcsFailing") == ["BmcsFailing"]


def test_during_repeated_failures_one_bmc_is_tried_each_minute_and_its_response_releases_the_others(
    make_group: Callable[..., MachineGroup],
) -> None:
    group = make_group(6, failures=3)
    group.decide()
    group.bmc.fault(Drop(applied=False), times=8)
    group.bench.reconcile()
    asked = []
    for _ in range(12):
        before = len(group.bmc.service.requests)
        group.wait(20)
        group.bench.reconcile()
        asked.append(len(group.bmc.service.requests) - before)
        if group.times_set:
            break
    assert [count for count in asked if count][:2] == [1, 1], asked
    assert asked[:3].count(0) == 2
    for _ in range(6):
        group.wait(20)
        group.bench.reconcile()
    assert group.times_set == 6


def count_waiting_requests(group: MachineGroup, most: int, expected: int) -> int:
    """Return how many requests wait at the double at one time, once the expected ones have come."""
    group.bmc.fault(Hang(), times=most)
    group.bench.reconcile(wait=False)
    eventually(lambda: len(group.bmc.service.requests) >= expected)
    time.sleep(0.3)  # in which one too many comes: on a slow machine it is missed, and no other is blamed
    waiting = len(group.bmc.service.requests)
    group.bmc.release_hangs()
    group.bench.collect()
    return waiting


@pytest.mark.parametrize(
    ("case", "sites", "limits", "expected"),
    [
        ("overall", (), {"parallel": 3, "per_site": 2}, 3),
        ("per site", ("a",), {"parallel": 6, "per_site": 2}, 2),
        ("of two sites each its own", ("a", "b"), {"parallel": 6, "per_site": 2}, 4),
        ("overall, of two sites", ("a", "b"), {"parallel": 3, "per_site": 2}, 3),
    ],
)
def test_no_more_bmcs_are_contacted_at_once_than_the_limits_allow(
    make_group: Callable[..., MachineGroup], case: str, sites: tuple[str, ...], limits: dict[str, int], expected: int
) -> None:
    group = make_group(8, **limits)
    group.decide(*sites)
    assert count_waiting_requests(group, 8, expected) == expected, case


@pytest.mark.parametrize(("method", "has_booted"), [("Pxe", False), ("UefiHttp", False), ("UefiHttp", True)])
def test_of_two_instances_that_were_begun_as_fresh_only_one_sets_a_bmc(
    site: Site, tmp_path: Path, method: str, *, has_booted: bool
) -> None:
    site.apply(method=method, artifacts="kernel, initrd" if method == "Pxe" else "uki")
    assert (list(site.states.values()), site.patches) == ([OverrideState.CONFIRMED], 1), site.bench.events
    if has_booted:
        site.boot()
    (tmp_path / "other").mkdir()
    with Bench(tmp_path / "other", credentials=tmp_path) as other:
        other.now = site.bench.now
        other.commits.push_copy(site.bench.commits)
        other.reconcile()
        events = [each.type for each in other.events if each.type.startswith("Override")]
        assert events == ["OverrideSetByAnother", "OverrideStalled"]
        (message,) = [each.message for each in other.events if each.type == "OverrideSetByAnother"]
        assert message.endswith(" for provision/1 was set by another instance, so this instance does not set it")
        plan = other.reconcile()
        assert plan is not None and (plan.phase, plan.cause) == (Phase.DISK, Cause.CONSUMED), (
            "nor is it given to who asks"
        )
        assert other.instance.reconciler.status.installs == {}
        if not has_booted:
            site.boot()
        for _ in range(3):
            site.wait(120)
            other.now = site.machine.now
            other.reconcile()
            site.bench.reconcile()
        assert site.patches == 1, "neither sets it once more, also where nothing shows any more that it was set"
        standing = other.instance.reconciler.state
        (told,) = [each for each in standing.conditions if each.type == "InstallsCompleted"]
        assert told.reason == "NeedsOperator" and "or was set by another instance" in told.message
        given = {"uuid": site.machine.uuid, "server": "web01", "bmc": None, "reason": "nothing is installed"}
        other.request("resolve", **given, consumed=False, key="provision/1")
        plan = other.plan()
        assert plan is not None and plan.phase is Phase.NETWORK, "until a person has looked"


@pytest.mark.parametrize("said", ["fresh", "adopt"])
def test_of_two_instances_only_the_one_that_the_fleet_names_sets_a_bmc(
    make_site: MakeSite, tmp_path: Path, said: str
) -> None:
    site = make_site(initial=said, profile=replace(GENERIC, etag_header="", etag_body=""))
    (tmp_path / "other").mkdir()
    with Bench(tmp_path / "other", credentials=tmp_path, initial=said, named=False) as other:
        named, site.bench.commits.ledger = site.bench.commits.ledger, None

        def both() -> None:
            other.now, other.commits.newest = site.bench.now, site.bench.commits.newest
            for each in (site.bench, other, site.bench, other):
                each.reconcile()

        site.decide(spec="provision: 0")
        both()  # a ledger that began as fresh or from a file has it as one that is as it should be
        site.decide(spec="provision: 1", method="UefiHttp", artifacts="uki")
        both()
        for _ in range(2):  # what is due
            site.wait(400)
            both()
        assert site.patches == 0, "neither knows more of it than the other, and no BMC would show which came first"
        message = (
            "the Fleet does not name a ledger, so another instance may set boot overrides on the same BMCs. gitboot "
            "does not set a boot override for web01 until the Fleet names this instance's ledger, "
        )
        for each in (site.bench, other):
            identity = each.ledger.progress[0]
            assert each.condition("BmcsSet") == (False, "LedgerNotNamed", f"{message}{identity}")
            (told,) = [c for c in each.instance.reconciler.state.conditions if c.type == "BmcsSet"]
            assert told.remedy is not None and told.remedy.startswith(f"provisioning: {{ledger: {identity}}}  # ")
            assert [event.type for event in each.events].count("LedgerNotNamed") == 1
            plan = each.plan()
            assert plan is not None and plan.phase is Phase.NETWORK, "who asks by DHCP is given it all the same"

        site.bench.commits.ledger = named
        site.decide(spec="provision: 1", method="UefiHttp", artifacts="uki")
        both()
        assert (list(site.states.values()), site.patches) == ([OverrideState.CONFIRMED], 1)
        assert site.bench.condition("BmcsSet") is None


def remove_ledger_name(site: Site) -> str | None:
    """Let the Fleet name no ledger from the next commit on, and return the ledger that it named."""
    named, site.bench.commits.ledger = site.bench.commits.ledger, None
    return named


def test_a_set_override_is_still_managed_if_the_fleet_no_longer_names_the_ledger(site: Site) -> None:
    site.apply()
    assert (site.states, site.patches) == ({"provision/1": OverrideState.CONFIRMED}, 1)
    remove_ledger_name(site)
    site.apply()
    site.restart(named=False)
    site.bench.reconcile()
    assert (site.states, site.patches) == ({"provision/1": OverrideState.CONFIRMED}, 1)
    assert site.bench.condition("BmcsSet") is None, "nothing is to be set"
    assert (site.bench.condition("CommitAccepted") or ())[:1] == (True,)
    site.apply(spec="provision: 0")
    assert (site.shown.split()[0], site.states) == ("Disabled", {"provision/1": OverrideState.CLEARED})
    site.decide()
    for _ in range(2):
        site.bench.reconcile()
    assert (site.shown.split()[0], site.states) == ("Disabled", {"provision/1": OverrideState.CLEARED})
    assert site.condition("BmcsSet") == (False, "LedgerNotNamed")


def test_the_end_of_an_override_is_recorded_even_if_the_fleet_no_longer_names_the_ledger(site: Site) -> None:
    """A server whose boot was consumed is not reported as waiting."""
    check = maintenance("check", "20T11:00 20T18:00", "networkBoot: Once")
    site.apply("Never", check)
    named = remove_ledger_name(site)
    site.apply("Never", check)
    site.boot()
    for _ in range(2):
        site.reconcile_after(31)
    assert site.states == {"maintenance/check/1": OverrideState.CONSUMED}
    assert site.bench.condition("BmcsSet") is None
    site.bench.commits.ledger = named
    site.decide("Never", check)
    for _ in range(3):
        site.reconcile_after(301)
    assert site.patches == 1, "nor has anybody waited"


def suspend(site: Site) -> None:
    until = (site.bench.now + timedelta(hours=9)).isoformat()
    site.bench.request("suspend", reason="freeze", until=until)


def name_another_ledger(site: Site) -> None:
    site.bench.commits.ledger = "0a8ec2b2-4d14-4b2f-8a9c-4d3a3a3f0b11"


@pytest.mark.parametrize("ceases", [remove_ledger_name, suspend, name_another_ledger])
def test_an_override_for_every_boot_is_not_set_again_by_an_instance_that_may_set_none(
    site: Site, ceases: Callable[[Site], object]
) -> None:
    """The task that finds an override consumed sets it again at once."""

    def decide() -> None:
        site.bench.decide(
            fleet(MONITORS),
            server("web01", "role: web", f"provision: 1, {site.spec}"),
            image("flatcar-1", "writesDisk: false"),
            profile("web", "flatcar-1"),
            policy("web", often="Always", spec="override: Once"),
        )

    decide()
    site.bench.reconcile()
    site.boot()
    site.reconcile_after(60)
    assert site.patches == 2
    ceases(site)
    decide()
    for _ in range(3):
        site.bench.reconcile()
        site.boot()
        site.reconcile_after(60)
    assert (site.patches, site.shown.split()[0]) == (2, "Disabled")


@pytest.mark.parametrize("lost", [False, True])
def test_a_changed_override_is_not_set_if_the_fleet_no_longer_names_the_ledger(site: Site, lost: bool) -> None:
    """Set as it was before, or about to be withdrawn, and wanted again."""
    if lost:
        site.observe_resets()
    site.apply()
    if lost:
        site.bmc.fault(Drop(applied=True), on="PATCH")
        site.apply(fleet_spec="baseURL: 'http://boot.test', stopped: 'smoke'")
        assert (site.states["provision/1"], site.shown) == (OverrideState.CLEARING, "Disabled Pxe")
    before = site.patches
    remove_ledger_name(site)
    site.decide(method="Pxe" if lost else "UefiHttp", artifacts="kernel, initrd" if lost else "uki")
    for _ in range(3):
        site.bench.reconcile()
        site.wait(30)
    assert (site.patches, site.shown.split()[0]) == (before, "Disabled" if lost else "Once")


def test_a_server_that_waits_to_be_set_is_reported_once(make_site: MakeSite) -> None:
    site = make_site()
    remove_ledger_name(site)
    for full in (False, True, False, True, False):
        site.bench.target.full = full
        site.apply(*(["Once"] if full else ["OnImageChange"]))
        assert site.condition("BmcsSet") == (False, "LedgerNotNamed")
    assert len(site.bench.told("LedgerNotNamed")) == 1
    for waits in ({"bmc": False}, {"spec": "provision: 1, lifecycle: Parked"}):
        site.apply(**waits)
        assert site.bench.condition("BmcsSet") is None, waits
        site.apply()
    site.restart(named=False)
    site.bench.reconcile()
    assert site.condition("BmcsSet") == (False, "LedgerNotNamed")
    assert site.patches == 0


@pytest.mark.parametrize("evidence", ["Fetched", "Progress"])
def test_a_boot_that_only_a_bmc_could_prove_is_withheld_if_no_override_may_be_set_there(
    make_site: MakeSite, tmp_path: Path, evidence: str
) -> None:
    """Firmware requests the boot at every start, as DHCP names it, and would install the server again and again."""
    site = make_site(initial=None)
    (tmp_path / "other").mkdir()
    with Bench(tmp_path / "other", credentials=tmp_path, observes=False) as other:
        site.bench.close()
        site.bench, other.now = other, site.machine.now
        fleet_spec = f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}"
        named = remove_ledger_name(site)
        site.decide(method="UefiHttp", artifacts="uki", fleet_spec=fleet_spec)
        other.reconcile()
        plan = other.plan()
        assert plan is not None and plan.phase is Phase.DISK
        status, reason, message = other.condition("EvidenceAvailable") or (None, "", "")
        assert (status, reason) == (False, "NoEvidence")
        assert "or name a ledger in the Fleet, so that gitboot can set boot overrides for web01" in message
        other.commits.ledger = named
        site.decide(method="UefiHttp", artifacts="uki", fleet_spec=fleet_spec)
        for _ in range(2):
            other.reconcile()
        assert (site.shown, site.states) == ("Once UefiHttp", {"provision/1": OverrideState.CONFIRMED})
        remove_ledger_name(site)  # the override that is set still proves it
        site.decide(method="UefiHttp", artifacts="uki", fleet_spec=fleet_spec)
        for _ in range(2):
            other.reconcile()
        assert (site.shown, site.states) == ("Once UefiHttp", {"provision/1": OverrideState.CONFIRMED})


EVENT_MESSAGES = {
    OverrideState.RECORDED: "Once Pxe for provision/1 is about to be set, or was just set",
    OverrideState.CONFIRMED: "Once Pxe for provision/1 is set",
    OverrideState.CLEARING: "Once Pxe for provision/1 is about to be cleared, or was just cleared",
    OverrideState.INSERTED: "the medium for Once Pxe for provision/1 is inserted",
    OverrideState.CLEARED: "Once Pxe for provision/1 was cleared",
    OverrideState.CONSUMED: "the server used Once Pxe for provision/1",
    OverrideState.LOST: "Once Pxe for provision/1 is gone, but gitboot has no evidence that the server used it",
    OverrideState.SET_BY_ANOTHER: (
        "Once Pxe for provision/1 was set by another instance, so this instance does not set it"
    ),
    OverrideState.OPENED: "Once Pxe for provision/1 may replace the current override",
    OverrideState.UNSENT: (
        "Once Pxe for provision/1 was not set, because the state of the BMC changed after gitboot read it"
    ),
}


def test_each_state_of_an_override_has_a_text(site: Site) -> None:
    site.apply()
    (record,) = site.bench.snapshot.list_overrides(site.bench.decisions.servers["web01"].uuid)
    for state in OverrideState:
        wrote = (structs.replace(record, state=state),)
        result = TaskResult(
            server="web01",
            uuid=site.bench.decisions.servers["web01"].uuid,
            outcome=TaskOutcome.APPLIED,
            message="",
            written_records=wrote,
        )
        (event,) = build_override_events(result, "0" * 40, site.bench.now, is_first=False)
        assert event.message == f"web01: {EVENT_MESSAGES[state]}"


def test_a_maintenance_that_writes_a_disk_is_left_to_the_instance_that_set_it(site: Site, tmp_path: Path) -> None:
    wipe = image("wipe-1", "writesDisk: true"), profile("wipe", "wipe-1", method="Pxe")
    window = maintenance("wipe", "20T11:00 20T14:00", "networkBoot: Once, run: 1", boots="wipe")
    site.apply("Never", *wipe, window)
    assert (list(site.states.values()), site.patches) == ([OverrideState.CONFIRMED], 1), site.bench.events
    (tmp_path / "other").mkdir()
    with Bench(tmp_path / "other", credentials=tmp_path) as other:
        other.now = site.bench.now
        other.commits.push_copy(site.bench.commits)
        other.reconcile()
        plan = other.reconcile()
        assert plan is not None and (plan.phase, plan.boot) == (Phase.DISK, None)
        assert site.patches == 1
