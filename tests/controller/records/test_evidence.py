"""Fetches, reports and observations of a boot, and what each kind of evidence proves, over restarts too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gitboot.bmc.override_state import OverrideState
from gitboot.fetchlog.log_entries import Observation
from gitboot.ledger import server_tables
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.controller.bmcs.test_schedule import INSTALLED, TO_INSTALL, MakeSite, Site, make_site, site, summarize_plan
from tests.helpers.cases import require_value
from tests.helpers.fleets import maintenance, make_mac
from tests.helpers.instance_in_process import NOON
from tests.helpers.redfish_double.profiles import GENERIC, TARGET
from tests.helpers.redfish_double.server import Drop

__all__ = ["make_site", "site"]  # fixtures

KINDS = ("Fetched", "Reported", "Progress", "Declared")
ENTRY = f"boot/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
REPORT = ENTRY.replace("boot.ipxe", "provisioned/token")
REPAIR = maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 1")


def decide(site: Site, kind: str, *more: str, **given: Any) -> None:
    monitors = "[10.9.0.0/24, 'fd00:9::/64']"
    settings = f"baseURL: 'http://boot.test', provisioning: {{evidence: {kind}, monitors: {monitors}}}"
    site.decide(given.pop("often", "Once"), *more, fleet_spec=settings, **given)


def list_evidence(site: Site) -> list[str]:
    return [event.facts["evidence"] for event in site.bench.events if event.type == "Provisioned"]


def reconcile_times(site: Site, count: int = 2) -> BootPlan | None:
    planned = None
    for _ in range(count):
        planned = site.bench.reconcile()
    return planned


# Accepted kinds of evidence


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bmc", [True, False], ids=["a BMC", "no BMC"])
def test_a_fetch_and_a_report_count_if_the_fleet_accepts_them_as_evidence(site: Site, kind: str, bmc: bool) -> None:
    decide(site, kind, bmc=bmc)
    plan = reconcile_times(site)
    site.machine.run_through()  # its fetches follow below
    site.bench.now = site.machine.now
    for path, proof in ((ENTRY, "Fetched"), (REPORT, "Reported")):
        before = list_evidence(site)
        site.bench.fetch(plan, path=path)
        site.bench.plan()
        if kind != "Progress":
            reconcile_times(site)
        assert (list_evidence(site) != before) == (kind == proof)


def test_a_report_of_a_maintenance_proves_nothing(site: Site) -> None:
    decide(site, "Reported", REPAIR, often="Never", bmc=False)
    plan = reconcile_times(site)
    site.bench.fetch(plan, path=REPORT)
    reconcile_times(site)
    assert site.bench.told("MaintenanceBooted") == []
    site.bench.fetch(plan)
    reconcile_times(site)
    assert site.bench.told("MaintenanceBooted") == ["MaintenanceBooted"]  # as Fetched, for any setting of the Fleet


def test_a_report_counts_while_the_override_is_set_and_then_the_override_is_cleared(site: Site) -> None:
    """Somebody booted it by hand."""
    decide(site, "Reported")
    site.bench.fetch(reconcile_times(site), path=REPORT)
    reconcile_times(site, 3)
    assert list_evidence(site) == ["Reported"]
    assert (site.shown, site.states) == ("Disabled Pxe", {"provision/1": OverrideState.CLEARED})


@pytest.mark.parametrize(("kind", "path"), [("Fetched", ENTRY), ("Reported", REPORT)])
@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
def test_evidence_that_comes_after_the_question_to_the_operator_still_counts(
    site: Site, kind: str, path: str, again: bool
) -> None:
    decide(site, kind)
    plan = reconcile_times(site)
    site.boot()
    reconcile_times(site)
    site.wait(31 * 60)
    assert (late := reconcile_times(site)) is not None and late.cause is Cause.CONSUMED
    if again:
        site.restart()
    site.bench.fetch(plan, path=path)
    site.bench.reconcile()
    site.wait(61)
    assert summarize_plan(reconcile_times(site)) == INSTALLED
    assert list_evidence(site) == [kind]
    assert site.patches == 1


# Fetched


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
def test_a_fetch_waits_for_its_bmc_over_a_restart(site: Site, again: bool) -> None:
    decide(site, "Fetched")
    plan = reconcile_times(site)
    site.boot()
    site.bench.fetch(plan)
    fetched_at = site.bench.now
    site.bmc.fault(Drop(applied=False), times=1)
    reconcile_times(site, 1)
    if again:
        site.restart()
    site.wait(5)
    reconcile_times(site)
    assert list_evidence(site) == ["Fetched"]
    assert site.bench.record is not None and site.bench.record.provisioned_at == fetched_at


def test_a_judged_fetch_is_not_judged_again_if_the_fetch_log_is_read_twice(site: Site) -> None:
    site.observe_resets()
    decide(site, "Fetched")
    plan = reconcile_times(site)
    fetched_at = site.bench.now
    for _ in range(2):
        site.bench.now = fetched_at
        site.bench.fetch(plan, client="10.0.0.99")
        site.bench.now = site.machine.now
        reconcile_times(site)
        site.machine.write(BootSourceOverrideEnabled="Disabled")  # by somebody, and not consumed
        site.wait(30)
        reconcile_times(site)
    assert site.bench.told("FetchIgnored", "Provisioned") == ["FetchIgnored"]


def test_finding_s5_a_client_that_keeps_fetching_a_boot_waits_for_the_bmc_only_once(site: Site) -> None:
    decide(site, "Fetched")
    plan = reconcile_times(site)
    site.bmc.fault(Drop(applied=False), times=1)
    for _ in range(30):
        site.bench.now += timedelta(milliseconds=10)
        site.bench.fetch(plan, client="10.0.0.99")
        site.bench.fetch(plan)
    reconcile_times(site, 1)
    (waiting,) = site.bench.snapshot.pending.values()
    assert [each.observation.client for each in waiting] == ["10.0.0.99", "10.0.0.7"]
    ((rows,),) = site.bench.ledger.rows("SELECT count(*) FROM observations")
    assert rows == 2


def test_finding_c6_a_bmc_rules_out_an_intent_without_an_outcome(site: Site) -> None:
    site.observe_resets()
    decide(site, "Fetched")
    plan = require_value(reconcile_times(site))
    intent = Observation(
        server="web01",
        path="boot/ignition/m",
        digest=plan.digest,
        offer=plan.offer,
        client="10.0.0.99",
        at=site.bench.now,
        intent="one",
    )
    site.bench.observe(intent)
    anew = reconcile_times(site)
    assert site.bench.told("FetchIgnored", "Provisioned") == ["FetchIgnored"]
    assert anew is not None and anew.offered > plan.offered, "an endpoint serves it anew"
    site.wait(61)
    later = reconcile_times(site)
    assert summarize_plan(later) == TO_INSTALL
    site.boot()
    site.bench.fetch(later)
    reconcile_times(site)
    assert list_evidence(site) == ["Fetched"]


@pytest.mark.parametrize("which", ["before", "after"])
def test_the_machine_may_get_the_boot_that_was_published_before_the_fetch_of_another_client(
    site: Site, which: str
) -> None:
    """Until the boot is published again, endpoints serve the earlier one, and the machine requests the same data."""
    site.observe_resets()
    decide(site, "Fetched")
    first = reconcile_times(site)
    site.bench.fetch(first, client="10.0.0.99")
    anew = reconcile_times(site)
    assert first is not None and anew is not None
    assert (site.bench.told("FetchIgnored"), anew.offered > first.offered) == (["FetchIgnored"], True)
    assert (anew.data, anew.token) == (first.data, first.token)
    site.boot()
    site.bench.fetch(first if which == "before" else anew)
    reconcile_times(site)
    assert (list_evidence(site), site.patches) == (["Fetched"], 1)


def test_an_override_that_was_set_after_the_fetch_does_not_contradict_it(site: Site) -> None:
    decide(site, "Fetched")
    fetched_at = site.bench.now
    site.wait(1)
    plan = reconcile_times(site, 1)
    site.bench.fetch(plan, at=fetched_at)  # by DHCP's order, before anything was set
    reconcile_times(site, 3)
    assert list_evidence(site) == ["Fetched"]
    assert site.shown.startswith("Disabled")


@pytest.mark.parametrize(
    ("client", "is_heard"),
    [("10.9.0.5", False), ("10.9.1.5", True), ("fd00:9::5", False), ("fd00:a::5", True), ("unix:", True)],
)
def test_only_fetches_by_monitors_are_ignored(site: Site, client: str, is_heard: bool) -> None:
    decide(site, "Fetched", bmc=False)
    site.bench.fetch(reconcile_times(site), client=client)
    reconcile_times(site)
    assert list_evidence(site) == (["Fetched"] if is_heard else [])


@pytest.mark.parametrize("kind", ["Fetched", "Progress"])
def test_a_fetch_whose_bmc_has_no_document_any_more_is_judged_without_it(site: Site, kind: str) -> None:
    decide(site, kind)
    plan = reconcile_times(site)
    site.boot()
    site.bench.fetch(plan)
    site.bench.plan()
    decide(site, kind, bmc=False)
    reconcile_times(site, 3)
    assert list_evidence(site) == (["Fetched"] if kind == "Fetched" else [])
    assert server_tables.read_pending_observations(site.bench.ledger) == []


# By the date of what was sent


OLD = int(NOON.timestamp())
NEW = OLD + 60


def observe_fetch(site: Site, modified: int, path: str = ENTRY) -> None:
    site.bench.observe(Observation(server="", path=path, modified=modified, client="10.0.0.7", at=site.bench.now))


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "restarted"])
@pytest.mark.parametrize(
    ("case", "path", "modified", "number"),
    [
        ("the old version", ENTRY, OLD, 1),
        ("the current version", ENTRY, NEW, 2),
        ("an unpublished version", ENTRY, OLD + 1, None),
        ("an unpublished file", ENTRY.replace("boot.ipxe", "other.cfg"), NEW, None),
    ],
)
def test_the_date_in_the_log_of_a_mirror_identifies_the_plan_that_it_sent(
    site: Site, again: bool, case: str, path: str, modified: int, number: int | None
) -> None:
    for provision, date in ((1, OLD), (2, NEW)):
        decide(site, "Fetched", bmc=False, spec=f"provision: {provision}")
        site.bench.now = datetime.fromtimestamp(date, UTC)
        reconcile_times(site)
    if again:
        site.restart()
        reconcile_times(site)
    observe_fetch(site, modified, path)
    reconcile_times(site)
    record = site.bench.record
    assert record is not None and record.provision == number, case


def observe_unclear(site: Site, client: str = "10.0.0.7", intent: str = "one") -> None:
    """A mirror's log has a fetch of web01's boot, and does not show whether a machine sent it."""
    observation = Observation(server="", path=ENTRY, modified=OLD, client=client, at=site.bench.now, intent=intent)
    site.bench.observe(observation)


UNKNOWN, PENDING, INSTALLED_ONCE = "outcome unknown", "pending", "installed"


@pytest.mark.parametrize(
    ("client", "more", "expected"),
    [
        pytest.param("10.0.0.7", "", UNKNOWN, id="a client"),
        pytest.param("unknown", "", UNKNOWN, id="an unknown address"),
        pytest.param("10.9.0.5", "", PENDING, id="a monitor"),
        pytest.param("10.0.0.7", ", clients: [10.0.0.0/24]", INSTALLED_ONCE, id="a client that the Fleet names"),
        pytest.param("10.0.1.7", ", clients: [10.0.0.0/24]", UNKNOWN, id="a client that the Fleet does not name"),
    ],
)
def test_finding_m2_a_boot_that_a_mirror_may_have_sent_to_a_machine_is_used_up(
    site: Site, client: str, more: str, expected: str
) -> None:
    decide(site, f"Fetched{more}", bmc=False)
    reconcile_times(site)
    for number in range(2):
        observe_unclear(site, client, str(number))
    reconcile_times(site)
    site.bench.wait(minutes=1)
    plan = require_value(reconcile_times(site))
    causes = {UNKNOWN: Cause.OUTCOME, PENDING: Cause.PENDING, INSTALLED_ONCE: Cause.PROVISIONED}
    assert plan.cause is causes[expected]
    assert (list_evidence(site) == ["Fetched"]) is (expected == INSTALLED_ONCE)
    condition = site.bench.condition("InstallsCompleted")
    assert condition is not None and (condition[1] == "OutcomeUnknown") is (expected == UNKNOWN)


def test_a_fetch_that_a_mirror_certainly_served_settles_what_it_may_have_sent_before(site: Site) -> None:
    decide(site, "Reported", bmc=False)
    reconcile_times(site)
    observe_unclear(site)
    reconcile_times(site)
    observe_fetch(site, OLD)  # a loader that names itself
    reconcile_times(site)
    record = site.bench.record
    assert record is not None and record.unknown_serves == () and record.attempts != ()


def test_finding_c6_a_bmc_rules_out_a_boot_that_a_mirror_may_have_sent(site: Site) -> None:
    decide(site, "Fetched")
    reconcile_times(site, 3)
    site.bench.wait(seconds=5)
    observe_unclear(site)
    reconcile_times(site, 3)
    site.bench.wait(minutes=2)
    plan = reconcile_times(site, 3)
    assert plan is not None and plan.cause is Cause.PENDING, "the override still stands: another client fetched it"


def test_a_maintenance_without_a_disk_write_that_a_mirror_may_have_sent_is_not_used_up(site: Site) -> None:
    decide(site, "Fetched", REPAIR, bmc=False, often="Never")
    reconcile_times(site)
    observe_unclear(site)
    site.bench.wait(minutes=2)
    plan = reconcile_times(site)
    assert plan is not None and plan.cause is Cause.MAINTENANCE


def test_a_version_is_recorded_until_it_is_published_and_not_again(site: Site) -> None:
    decide(site, "Fetched", bmc=False)
    for number in range(5):
        site.bench.now, site.bench.target.full = datetime.fromtimestamp(OLD + number, UTC), number < 2
        plan = reconcile_times(site, 1)
    assert plan is not None
    found = [server_tables.find_version(site.bench.ledger, ENTRY, OLD + number) for number in range(5)]
    assert found == [(plan.digest, 2), (plan.digest, 2), (plan.digest, 2), None, None]


# Progress


def test_a_machine_that_boots_after_its_override_was_consumed_is_provisioned(site: Site) -> None:
    decide(site, "Progress")
    reconcile_times(site)
    assert list_evidence(site) == []  # it runs, and has since before
    site.machine.reset()
    site.wait(70)  # its system starts, and does not run yet
    assert summarize_plan(reconcile_times(site)) == TO_INSTALL
    assert (site.states, list_evidence(site)) == ({"provision/1": OverrideState.CONSUMED}, [])
    site.wait(60)
    reconcile_times(site)
    assert list_evidence(site) == ["Progress"]
    assert summarize_plan(reconcile_times(site)) == INSTALLED
    site.machine.run_through()
    reconcile_times(site)
    assert list_evidence(site) == ["Progress"]


def test_boot_progress_without_an_override_counts_from_the_fetch(site: Site) -> None:
    decide(site, "Progress")
    plan = site.bench.plan()
    site.machine.reset()
    site.machine.advance(70)
    site.bench.now = site.machine.now
    site.bench.fetch(plan)  # before anything was set
    site.bench.plan()
    reconcile_times(site, 3)
    assert (list_evidence(site), site.patches) == ([], 0)  # an override would install it once more
    site.wait(60)
    reconcile_times(site, 3)
    assert (list_evidence(site), site.patches) == (["Progress"], 0)


@pytest.mark.parametrize(("often", "image_name"), [("Once", "flatcar-1"), ("OnImageChange", None)])
def test_boot_progress_proves_only_the_image_that_was_fetched(site: Site, often: str, image_name: str | None) -> None:
    decide(site, "Progress", often=often)
    plan = site.bench.plan()
    site.machine.reset()
    site.wait(70)
    site.bench.fetch(plan)
    reconcile_times(site, 3)
    decide(site, "Progress", often=often, image_name="flatcar-2")
    site.bench.plan()
    site.wait(60)
    planned = reconcile_times(site, 3)
    record = require_value(site.bench.record)
    assert (record.image, summarize_plan(planned)) == (image_name, INSTALLED if image_name else TO_INSTALL)


@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
def test_boot_progress_after_an_override_proves_only_the_image_that_the_override_named(site: Site, often: str) -> None:
    boot = {"method": "UefiHttp", "artifacts": "uki"}
    decide(site, "Progress", **boot)
    reconcile_times(site)
    site.boot()
    decide(site, "Progress", **boot, often=often, image_name="flatcar-2")  # before the BMC has responded
    for _ in range(40):
        site.wait(60)
        planned = reconcile_times(site)
    assert summarize_plan(planned) == (Phase.DISK, Cause.CONSUMED)
    assert (list_evidence(site), site.condition("InstallsCompleted")) == ([], (False, "NeedsOperator"))


def test_a_machine_without_boot_progress_times_needs_an_operator(make_site: MakeSite) -> None:
    site = make_site(profile=replace(GENERIC, last_state_time=False))
    decide(site, "Progress")
    reconcile_times(site)
    site.boot()
    reconcile_times(site)
    site.wait(31 * 60)
    plan = reconcile_times(site)
    assert plan is not None and plan.cause is Cause.CONSUMED
    assert list_evidence(site) == []


# Consumed


@pytest.mark.parametrize("image_name", ["flatcar-1", "flatcar-2"])
def test_a_consumed_override_proves_only_the_image_that_it_named(site: Site, image_name: str) -> None:
    known = {"method": "UefiHttp", "artifacts": "uki", "image_spec": "configFrom: None"}
    decide(site, "Fetched", **known)
    reconcile_times(site)
    site.boot()
    decide(site, "Fetched", **known, image_name=image_name)  # before the BMC has responded
    for _ in range(3):
        site.wait(60)
        planned = reconcile_times(site)
    assert site.patches == 1
    expected = INSTALLED if image_name == "flatcar-1" else (Phase.DISK, Cause.CONSUMED)
    assert summarize_plan(planned) == expected
    assert require_value(site.bench.record).image == (image_name if expected == INSTALLED else None)


def test_an_override_that_vanished_proves_nothing_if_no_mark_shows_a_boot(make_site: MakeSite) -> None:
    """The override is LOST and not CONSUMED: a boot without a fetch is not proven, and nothing is set again."""
    silent = replace(GENERIC, last_reset_time=False, boot_progress=False)
    site = make_site(profile=silent)
    decide(site, "Fetched", method="UefiHttp", artifacts="uki", image_spec="configFrom: None")
    reconcile_times(site)
    site.machine.write(BootSourceOverrideEnabled="Disabled", **{TARGET: "None"})
    site.wait(61)
    reconcile_times(site)
    assert site.states == {"provision/1": OverrideState.LOST}
    assert list_evidence(site) == []
    site.wait(30 * 60)
    plan = reconcile_times(site)
    assert plan is not None and plan.cause is Cause.CONSUMED
    assert site.patches == 1


def test_an_override_of_a_maintenance_that_was_consumed_unseen_is_not_set_again(site: Site) -> None:
    decide(site, "Fetched", REPAIR, often="Never")
    reconcile_times(site)
    site.boot()
    for _ in range(5):
        site.wait(60)
        reconcile_times(site)
    assert (site.patches, site.states) == (1, {"maintenance/repair/1": OverrideState.CONSUMED})
