"""The medium in a virtual drive, and its end, by the plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gitboot.controller.bmcs.desired_state import build_media_urls, build_wanted_override
from gitboot.errors import InvalidRepository
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.plan_at_time import find_next_transition, make_plan
from gitboot.resolve.provisioning_record import (
    CONSUMED_GRACE,
    DATA_GRACE,
    FETCH_GRACE,
    InstallAttempt,
    Record,
    StepEvidence,
    StopScope,
)
from gitboot.resolve.server_decision import Decision
from tests.helpers.cases import for_each, require_value
from tests.helpers.fleets import decision, fleet, image, maintenance, policy, profile, server
from tests.resolve.test_fleet_decisions import NOON

SEED = (
    fleet(),
    server("web01", spec="provision: 1"),
    image("flatcar-1", "configFrom: None", "iso"),
    profile("web", "flatcar-1", method="VirtualMedia"),
    policy("web", often="Once"),
)
KEYS = TokenKeys(b"a key of this test")
ISO = "http://boot.test/assets/flatcar-1/iso"
FRESH = Record()
BEGUN = Record(provision=1, image="flatcar-1", evidence="Fetched", provisioned_at=NOON)
SEEN = StepEvidence(NOON, "v1/boot", "192.0.2.9")


def _medium(record: Record | None, after: timedelta = timedelta(), *, stop: StopScope = StopScope.NONE) -> str | None:
    found = require_value(make_plan(decision("web01", *SEED), NOON + after, record, stop=stop))
    return found.medium


def test_the_override_of_a_pending_server_boots_the_iso() -> None:
    wanted = require_value(build_wanted_override(make_plan(decision("web01", *SEED), NOON, FRESH), NO_KEYS))
    assert (wanted.override.enabled, wanted.override.target, wanted.override.medium) == ("Once", "Cd", ISO)
    assert wanted.override.http_boot_uri is None


HOURS = DATA_GRACE - timedelta(seconds=1)


@for_each(
    ("case", "record", "after", "medium"),
    [
        ("no record of it", None, timedelta(), None),
        ("pending", FRESH, timedelta(), ISO),
        ("begun", BEGUN, HOURS, ISO),
        ("started long ago", BEGUN, DATA_GRACE, None),
        ("proven by its override alone", replace(BEGUN, evidence="Consumed"), HOURS, ISO),
        ("its installer reports the end", replace(BEGUN, evidence="Reported"), timedelta(), None),
        ("an operator reports the end", replace(BEGUN, evidence="Operator"), timedelta(), None),
        ("consumed", Record(consumed_at=NOON, consumed_key="provision/1"), CONSUMED_GRACE, ISO),
        ("consumed long ago", Record(consumed_at=NOON, consumed_key="provision/1"), DATA_GRACE, None),
        ("given", Record(attempts=(InstallAttempt(key="provision/1", boots=(SEEN,)),)), FETCH_GRACE, ISO),
        ("served long ago", Record(attempts=(InstallAttempt(key="provision/1", boots=(SEEN,)),)), DATA_GRACE, None),
    ],
)
def test_a_medium_stays_while_its_system_may_run(
    case: str, record: Record | None, after: timedelta, medium: str | None
) -> None:
    assert _medium(record, after) == medium, case


def test_the_end_of_a_medium_is_a_transition_of_its_plan() -> None:
    found = decision("web01", *SEED)
    consumed = Record(consumed_at=NOON, consumed_key="provision/1")
    assert find_next_transition(found, NOON + CONSUMED_GRACE, consumed) == NOON + DATA_GRACE


@pytest.mark.parametrize("stop", [StopScope.WRITING, StopScope.ALL])
def test_a_stop_ejects_the_medium(stop: StopScope) -> None:
    assert _medium(FRESH, stop=stop) is None


def _plan_rescue_medium(at: datetime, record: Record) -> str | None:
    rescue = image("rescue-1", "configFrom: None, writesDisk: false", "iso")
    documents: tuple[str, ...] = (
        *SEED,
        rescue,
        profile("repair", "rescue-1", method="VirtualMedia"),
        maintenance("repair", f"{NOON:%Y-%m-%dT%H:%M:%S} {NOON + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"),
    )
    found: Decision = decision("web01", *documents)
    planned = make_plan(found, at, record)
    return planned.medium if planned is not None else None


def test_the_medium_of_a_window_ends_with_it() -> None:
    done = replace(BEGUN, evidence="Reported")
    assert _plan_rescue_medium(NOON + timedelta(minutes=59), done) == ISO.replace("flatcar", "rescue")
    assert _plan_rescue_medium(NOON + timedelta(hours=1), done) is None


# The second medium


USER_DATA = "userData: {format: %s, template: t}"
TEXTS = {
    "CloudInit": "#cloud-config\n",
    "Ignition/3.4": '{"ignition": {"version": "3.4.0"}}',
    "Kickstart": "text\n",
    "Preseed": "d-i a/b string c\n",
    "Generic": "anything",
}


def _make_fleet(format: str = "CloudInit", *, often: str = "Once", method: str = "VirtualMedia") -> tuple[str, ...]:
    artifacts = "iso" if method == "VirtualMedia" else "kernel"
    return (
        fleet(),
        server("web01", spec="provision: 1"),
        image("flatcar-1", f"configFrom: Medium, userData: {format}", artifacts),
        profile("web", "flatcar-1", USER_DATA % format, method=method),
        policy("web", often=often),
    )


@pytest.mark.parametrize(
    ("often", "named_by"), [("Once", "the installation"), ("OnImageChange", "the installation"), ("Always", "its text")]
)
def test_user_data_gets_its_own_medium_with_a_token_if_its_boot_ends(often: str, named_by: str) -> None:
    found = make_plan(decision("web01", *_make_fleet(often=often), files={"t": TEXTS["CloudInit"]}), NOON, FRESH)
    assert found is not None and found.user_data is not None
    token = found.data if named_by == "the installation" else found.user_data.digest
    assert found.data_medium == token is not None
    wanted = require_value(build_wanted_override(found, KEYS))
    name = KEYS.build_name(token) if named_by == "the installation" else token
    assert wanted.override.media == (f"http://boot.test/media/{found.uuid}/{name}/user-data.iso", ISO)


def test_the_user_data_of_a_repeated_maintenance_boot_has_no_token_of_an_installation() -> None:
    window = f"{NOON:%Y-%m-%dT%H:%M:%S} {NOON + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
    documents = (*_make_fleet(), profile("repair", "flatcar-1", USER_DATA % "CloudInit", method="VirtualMedia"))
    found = decision("web01", *documents, maintenance("repair", window), files={"t": TEXTS["CloudInit"]})
    in_window, afterwards = (make_plan(found, NOON + timedelta(hours=hours), FRESH) for hours in (0, 1))
    assert in_window is not None and in_window.user_data is not None and in_window.data is None
    assert afterwards is not None and afterwards.data is not None


@pytest.mark.parametrize(
    ("evidence", "lies"), [("Consumed", True), ("Reported", False)], ids=["it may still be read", "it is done"]
)
def test_a_medium_with_user_data_stays_as_long_as_the_boot_medium(evidence: str, lies: bool) -> None:
    found = decision("web01", *_make_fleet(), files={"t": TEXTS["CloudInit"]})
    planned = make_plan(found, NOON + timedelta(minutes=30), replace(BEGUN, evidence=evidence))
    assert planned is not None and [each is not None for each in build_media_urls(planned, KEYS)] == [lies, lies]


@for_each(
    ("format", "method", "says"),
    [
        ("CloudInit", "Pxe", "method Pxe does not insert a medium"),
        ("Preseed", "VirtualMedia", "systems do not look for Preseed user data on a medium"),
        ("Generic", "VirtualMedia", "systems do not look for Generic user data on a medium"),
        ("Kickstart", "VirtualMedia", None),
        ("Ignition/3.4", "VirtualMedia", None),
    ],
)
def test_user_data_that_its_system_would_not_find_on_a_medium_is_rejected(
    format: str, method: str, says: str | None
) -> None:
    files = {"t": TEXTS[format]}
    if says is None:
        assert decision("web01", *_make_fleet(format), files=files).policy is not None
        return
    with pytest.raises(InvalidRepository) as refused:
        decision("web01", *_make_fleet(format, method=method), files=files)
    assert [(str(each.code), says in each.message) for each in refused.value.problems] == [("GB4003", True)]
