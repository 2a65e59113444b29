"""Maintenances that reset a machine again, and install boots that a newer decision does not offer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gitboot.fleet.validation import load
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import InstallAttempt, Record, StepEvidence
from gitboot.resolve.server_decision import Decision, WithheldBoot
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.review.decision_changes import Changes, compare_decisions
from gitboot.review.formats import phrases
from gitboot.review.guards import Guard, Limits, judge
from gitboot.review.reinstalls import find_withheld_boots
from gitboot.review.risks import Risk
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, decision, fleet, image, maintenance, policy, profile, server, snapshot

WINDOW = "20T22:00 21T04:00"
RESTART = "networkBoot: Once, power: Restart"


def make_check(spec: str = RESTART, window: str = WINDOW, **more: Any) -> str:
    return maintenance("check", window, spec, **more)


def compare(old: tuple[str, ...] | None, new: tuple[str, ...], *, servers: int = 0) -> Changes:
    others = [server(f"db{number:02}", "role: web") for number in range(servers)]

    def decide_documents(documents: tuple[str, ...]) -> Any:
        repository = load(snapshot(*SEED, *others, *documents))
        return decide(repository), repository

    after = decide_documents(new)
    before = decide_documents(old) if old is not None else (None, None)
    return compare_decisions(before[0], after[0], before[1], after[1])


@for_each(
    ("case", "old", "new", "counts"),
    [
        ("it is added", (), (make_check(),), True),
        ("it is added, gracefully", (), (make_check("power: GracefulRestart"),), True),
        ("it is added, and switches on", (), (make_check("networkBoot: Once, power: On"),), False),
        ("it is added, and switches nothing", (), (make_check("networkBoot: Once"),), False),
        ("it gets power", (make_check("networkBoot: Once"),), (make_check(),), True),
        ("it did switch on", (make_check("networkBoot: Once, power: On"),), (make_check(),), True),
        ("it asks first now", (make_check(),), (make_check("networkBoot: Once, power: GracefulRestart"),), False),
        ("its run is raised", (make_check(),), (make_check(f"{RESTART}, run: 2"),), True),
        ("its run is lowered", (make_check(f"{RESTART}, run: 2"),), (make_check(),), False),
        ("it lasts longer", (make_check(),), (make_check(window="20T22:00 21T09:00"),), False),
        ("it begins earlier", (make_check(),), (make_check(window="20T09:00 21T04:00"),), False),
        ("it is a window later", (make_check(),), (make_check(window="21T04:00 21T09:00"),), True),
        ("more at a time", (make_check(),), (make_check(f"{RESTART}, maxUnavailable: 9"),), False),
        ("it is removed", (make_check(),), (), False),
    ],
)
def test_resets_by_a_maintenance_are_counted(
    case: str, old: tuple[str, ...], new: tuple[str, ...], counts: bool
) -> None:
    changes = compare(old, new)
    assert (changes.extent.resets == 1, bool(changes.filter_by_risk(Risk.RESET))) == (counts, counts), case


def test_a_raised_run_that_offers_no_other_boot_is_not_harmless() -> None:
    """A rolling restart boots the disk, which was offered before too."""
    rolling = maintenance("roll", WINDOW, "networkBoot: Always, power: Restart, run: 1", boots="restart")
    disk = "apiVersion: gitboot.dev/v1alpha1\nkind: BootProfile\nmetadata: {name: restart}\nspec: {method: Disk}\n"
    (change,) = compare((disk, rolling), (disk, rolling.replace("run: 1", "run: 2"))).servers
    assert Risk.RESET in change.risks and Risk.HARMLESS not in change.risks


def test_too_many_resets_are_held_and_the_review_names_the_maintenance() -> None:
    changes = compare((), (make_check(f"{RESTART}, maxUnavailable: 5%, maxUnavailablePer: rack"),), servers=50)
    limits = Limits(max_update_percent=100)
    (trip,) = judge(changes.extent, limits).trips
    assert (trip.guard, trip.number, trip.limit) == (Guard.MAX_RESETS, 51, 50)
    assert not judge(changes.extent, Limits(max_update_percent=100, max_resets=51)).held


def test_a_new_server_is_counted_too() -> None:
    assert compare(None, (make_check(),), servers=50).extent.resets == 51


def test_a_server_that_no_longer_waits_for_power_off_may_be_installed_while_it_runs() -> None:
    bmc = "bmc: {address: 'https://bmc.test', credentials: rack}"
    waits = tuple(
        policy("web", often="Once", spec="waitFor: PowerOff")
        if each == SEED[-1]
        else server("web01", "role: web", bmc)
        if each == server("web01", "role: web")
        else each
        for each in SEED
    )
    does_not = tuple(each.replace("waitFor: PowerOff", "waitFor: None") for each in waits)

    def between(old: tuple[str, ...], new: tuple[str, ...]) -> frozenset[Risk]:
        before, after = (load(snapshot(*documents)) for documents in (old, new))
        (change,) = compare_decisions(decide(before), decide(after), before, after).servers
        return change.risks

    assert Risk.REINSTALL in between(waits, does_not)
    assert between(does_not, waits) == {Risk.BOOT, Risk.HARMLESS}


def test_other_changes_cause_no_resets() -> None:
    changes = compare((make_check(), policy("more", "None")), (make_check(), policy("more", "None", "priority: 9")))
    assert changes.extent.resets == 0


def test_a_review_shows_which_maintenance_resets_how_many_servers_at_a_time() -> None:
    changes = compare((), (make_check(f"{RESTART}, maxUnavailable: 5%, maxUnavailablePer: rack"),))
    lines = [line for change in changes.servers for line in phrases.describe_resets(change)]
    assert lines == ["Maintenance/check: Restart, 5% at a time of each rack"]


NOON = at("20T12:00")
PENDING = Record(provision=1, image="flatcar-1")


def web01(image_name: str = "flatcar-1", *more: str, number: int = 2, arguments: str = "", boots: int = 1) -> Decision:
    """web01, which installs an image whenever its number or image changes."""
    spec = f"kernelArguments: [{arguments}]" if arguments else ""
    return decision(
        "web01",
        fleet(),
        server("web01", spec=f"provision: {number}"),
        *(image(name, f"boots: {boots}") for name in ("flatcar-1", "flatcar-2")),
        image("memtest-7", "writesDisk: false"),
        profile("web", image_name, spec),
        profile("repair", "memtest-7"),
        profile("wipe", "flatcar-1"),
        policy("web", often="OnImageChange"),
        *more,
    )


def boots(accepted: Decision, newer: Decision | None, record: Record = PENDING, instant: str = "20T12:00") -> BootPlan:
    found = make_plan(replace(accepted, withheld=find_withheld_boots(accepted, newer, "newer")), at(instant), record)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("newer", "takes_image_back"),
    [
        (None, True),
        (web01("flatcar-2"), True),
        (web01(number=3), False),
        (web01(arguments="quiet"), False),
    ],
    ids=["no server", "another image", "another provision number", "other arguments"],
)
def test_an_install_boot_that_a_newer_commit_does_not_offer_is_withheld(
    newer: Decision | None, takes_image_back: bool
) -> None:
    (found,) = find_withheld_boots(web01(), newer, "newer")
    assert found == WithheldBoot(None, None, None, takes_image_back, "newer")
    planned = boots(web01(), newer)
    assert (planned.phase, planned.cause, planned.override) == (Phase.DISK, Cause.WITHHELD, None)


def test_a_boot_that_a_newer_commit_offers_too_is_not_withheld() -> None:
    """This holds even if that commit allows more attempts."""
    assert find_withheld_boots(web01(), web01(), "newer") == ()
    assert boots(web01(), web01()).cause is Cause.PENDING


def test_a_boot_that_writes_no_disk_stays_even_if_a_newer_commit_removes_it() -> None:
    live = decision(
        "web01", fleet(), server("web01"), image("live-1", "writesDisk: false"), profile("web", "live-1"), policy("web")
    )
    assert find_withheld_boots(live, None, "newer") == ()


def test_a_boot_is_withheld_only_while_the_newer_commit_does_not_offer_it() -> None:
    newer = web01("flatcar-1", maintenance("night", "20T22:00 21T04:00"))
    (found,) = find_withheld_boots(web01(), newer, "newer")
    assert (found.start, found.end) == (at("20T22:00"), at("21T04:00"))
    assert boots(web01(), newer).cause is Cause.PENDING
    assert boots(web01(), newer, instant="20T23:00").cause is Cause.WITHHELD
    assert boots(web01(), newer, instant="21T05:00").cause is Cause.PENDING


def test_an_installing_maintenance_is_withheld_by_its_name_and_the_policy_is_not() -> None:
    wipe = maintenance("wipe", "20T10:00 20T14:00", boots="wipe")
    (found,) = find_withheld_boots(web01("flatcar-1", wipe), web01(), "newer")
    assert (found.maintenance, found.start, found.end) == ("wipe", at("20T10:00"), at("20T14:00"))
    assert boots(web01("flatcar-1", wipe), web01()).cause is Cause.WITHHELD
    assert boots(web01("flatcar-1", wipe), web01(), instant="20T15:00").cause is Cause.PENDING


@pytest.mark.parametrize(("newer", "goes_on"), [("flatcar-1", True), ("flatcar-2", False)])
def test_a_started_attempt_gets_its_remaining_boots_unless_its_image_is_taken_back(newer: str, goes_on: bool) -> None:
    seen = StepEvidence(NOON - timedelta(minutes=5), "boot/v1/boot/m/boot.ipxe", "10.0.0.7")
    begun = replace(PENDING, attempts=(InstallAttempt(key="provision/2/flatcar-1", boots=(seen,)),))
    planned = boots(web01(boots=2), web01(newer, boots=2, arguments="quiet"), begun)
    assert planned.cause is (Cause.PENDING if goes_on else Cause.WITHHELD)
    assert boots(web01(boots=2), web01(newer, boots=2, arguments="quiet")).cause is Cause.WITHHELD


def test_a_withheld_boot_does_not_change_the_digest_of_a_decision() -> None:
    """The record of a server names the decision of its commit."""
    lessened = replace(web01(), withheld=find_withheld_boots(web01(), None, "newer"))
    assert lessened.digest == web01().digest and lessened != web01()
