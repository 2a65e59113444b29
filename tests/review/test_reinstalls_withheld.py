"""Which install boots a newer decision does not offer, and what a server boots without them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record import InstallAttempt, Record, Seen
from gitboot.resolve.server_decision import Decision, WithheldBoot
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.review.reinstalls import withheld_boots
from tests.helpers.fleets import at, decision, fleet, image, maintenance, policy, profile, server

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
    """Return what a server boots while a newer commit is held."""
    found = plan(replace(accepted, withheld=withheld_boots(accepted, newer, "newer")), at(instant), record)
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
    (found,) = withheld_boots(web01(), newer, "newer")
    assert found == WithheldBoot(None, None, None, takes_image_back, "newer")
    planned = boots(web01(), newer)
    assert (planned.phase, planned.cause, planned.override) == (Phase.DISK, Cause.WITHHELD, None)


def test_what_a_newer_commit_offers_too_is_not_withheld() -> None:
    """Also where that commit lets it be attempted more often."""
    assert withheld_boots(web01(), web01(), "newer") == ()
    assert boots(web01(), web01()).cause is Cause.PENDING


def test_a_boot_that_writes_no_disk_stays_whatever_a_newer_commit_takes_back() -> None:
    live = decision(
        "web01", fleet(), server("web01"), image("live-1", "writesDisk: false"), profile("web", "live-1"), policy("web")
    )
    assert withheld_boots(live, None, "newer") == ()


def test_a_boot_is_withheld_only_in_the_span_in_which_the_newer_commit_does_not_offer_it() -> None:
    night = maintenance("night", "20T22:00 21T04:00")
    newer = web01("flatcar-1", night)
    (found,) = withheld_boots(web01(), newer, "newer")
    assert (found.start, found.end) == (at("20T22:00"), at("21T04:00"))
    assert boots(web01(), newer).cause is Cause.PENDING
    assert boots(web01(), newer, instant="20T23:00").cause is Cause.WITHHELD
    assert boots(web01(), newer, instant="21T05:00").cause is Cause.PENDING


def test_a_maintenance_that_installs_is_withheld_by_its_name_and_the_policy_is_not() -> None:
    wipe = maintenance("wipe", "20T10:00 20T14:00", boots="wipe")
    (found,) = withheld_boots(web01("flatcar-1", wipe), web01(), "newer")
    assert (found.maintenance, found.start, found.end) == ("wipe", at("20T10:00"), at("20T14:00"))
    assert boots(web01("flatcar-1", wipe), web01()).cause is Cause.WITHHELD
    assert boots(web01("flatcar-1", wipe), web01(), instant="20T15:00").cause is Cause.PENDING


@pytest.mark.parametrize(("newer", "goes_on"), [("flatcar-1", True), ("flatcar-2", False)])
def test_an_attempt_that_has_begun_gets_its_remaining_boots_unless_its_image_is_taken_back(
    newer: str, goes_on: bool
) -> None:
    seen = Seen(NOON - timedelta(minutes=5), "boot/v1/boot/m/boot.ipxe", "10.0.0.7")
    attempt = InstallAttempt(key="provision/2/flatcar-1", boots=(seen,))
    begun = replace(PENDING, attempts=(attempt,))
    planned = boots(web01(boots=2), web01(newer, boots=2, arguments="quiet"), begun)
    assert planned.cause is (Cause.PENDING if goes_on else Cause.WITHHELD)
    assert boots(web01(boots=2), web01(newer, boots=2, arguments="quiet")).cause is Cause.WITHHELD


def test_what_is_withheld_leaves_the_digest_of_a_decision() -> None:
    """What is recorded of a server names the decision of its commit."""
    lessened = replace(web01(), withheld=withheld_boots(web01(), None, "newer"))
    assert lessened.digest == web01().digest and lessened != web01()
