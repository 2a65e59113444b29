"""The next step of a rollout, and the images and streams that are in use."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from msgspec import structs

from gitboot import jsonio
from gitboot.fleet.revision import Revision
from gitboot.jsonio import Digest, to_json_value
from gitboot.model.boot_image import Rollout
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.install_attempts import make_adopted_record
from gitboot.resolve.policy_selection import compute_rollout_percentage
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, Record, StepEvidence
from gitboot.review.images import (
    AppliedRollout,
    ImageReport,
    InstanceReport,
    RolloutProgress,
    StepOutcome,
    decide_next_step,
    find_applied_rollout,
    report_images,
)
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, document, fleet, image, maintenance, make_uuid, policy, profile, repository, server


def identity(name: str) -> SystemUuid:
    return SystemUuid(make_uuid(name))


NOON = at("20T12:00")
NAMES = sorted(
    (f"web{number:02}" for number in range(12)), key=lambda name: compute_rollout_percentage("stable", identity(name))
)
FIRST = sorted(NAMES[:4])  # the servers that the present step reaches
PERCENT = compute_rollout_percentage("stable", identity(NAMES[3]))


def apply_rollout(
    percent: int = PERCENT, new: str = "flatcar-2", selector: str = "All"
) -> tuple[Rollout, AppliedRollout]:
    rollout = f"rollout: {{image: {new}, percent: {percent}, selector: {selector}}}"
    found = repository(
        fleet("baseURL: 'http://boot.test'"),
        *(image(f"flatcar-{number}") for number in (1, 2)),
        *(server(name, spec="provision: 1") for name in NAMES),
        document("ImageStream", "stable", f"current: flatcar-1, {rollout}"),
        profile("web", "stream: stable"),
        policy("web", often="Once"),
    )
    applied = find_applied_rollout("stable", found, decide(found))
    assert applied.rollout is not None
    return applied.rollout, applied


HERE, APPLIED = apply_rollout()
GIVEN = StepEvidence(NOON, "/v1/boot/x", "10.0.0.1")
HAS_IT = Record(provision=1, image="flatcar-2", evidence="Reported")
ATTEMPT = InstallAttempt(key="provision/1", number=1, boots=(GIVEN,))
FAILED = Record(attempts=(structs.replace(ATTEMPT, failed=Failure(NOON, "10.0.0.1", "no disk")),))
OVERTAKEN = replace(HAS_IT, attempts=(structs.replace(ATTEMPT, key="provision/2"),))
OVERTAKEN_FAILED = replace(HAS_IT, attempts=(structs.replace(FAILED.attempts[0], key="provision/2"),))


def judge_rollout(
    records: dict[str, Record | None],
    *,
    after: int = 75,
    here: Any = HERE,
    accept_fetched: bool = False,
    **proof_fields: Any,
) -> RolloutProgress:
    known = dict.fromkeys(FIRST, HAS_IT) | records
    told = {identity(name): record for name, record in known.items() if record is not None}
    proof = InstanceReport(
        **{"commit": Revision("c" * 40), "at": NOON, "wait_reason": None, "records": told, **proof_fields}
    )
    steps = (1, 10, PERCENT, 60, 100)
    return decide_next_step(
        "stable", here, APPLIED, proof, steps=steps, after=after, at=NOON, accept_fetched=accept_fetched
    )


@for_each(
    ("evidence", "counts", "counts_if_accepted"),
    [
        ("Reported", True, True),
        ("Progress", True, True),
        ("Declared", True, True),
        ("Operator", True, True),
        ("Fetched", False, True),
        ("Consumed", False, True),
        ("Adopted", False, False),
        (None, False, False),
    ],
)
def test_only_evidence_of_completion_counts(evidence: str | None, counts: bool, counts_if_accepted: bool) -> None:
    records: dict[str, Record | None] = {name: replace(HAS_IT, evidence=evidence) for name in FIRST}
    assert (judge_rollout(records).outcome == "Next") is counts
    accepted = judge_rollout(records, accept_fetched=True)
    assert (accepted.outcome == "Next") is counts_if_accepted
    is_begun = counts_if_accepted and not counts
    assert accepted.begun == (tuple(FIRST) if is_begun else ())
    assert ("did not report completion" in accepted.why) is is_begun


def test_the_step_is_about_the_servers_that_it_reaches() -> None:
    assert [each.server for each in APPLIED.machines] == FIRST


@for_each(
    ("case", "records", "proof_fields", "outcome", "why"),
    [
        ("all have it", {}, {}, "Next", "4 of 4 servers have flatcar-2"),
        ("just enough have it", {FIRST[0]: Record()}, {}, "Next", "3 of 4 servers have flatcar-2"),
        (
            "too few have it",
            {FIRST[0]: Record(), FIRST[1]: Record()},
            {},
            "Waits",
            f"not installed yet: {FIRST[0]}, {FIRST[1]}",
        ),
        (
            "one is under way",
            {FIRST[0]: Record(attempts=(ATTEMPT,))},
            {"after": 100},
            "Waits",
            f"not installed yet: {FIRST[0]}",
        ),
        ("one has another image", {FIRST[0]: replace(HAS_IT, image="flatcar-1")}, {"after": 100}, "Waits", FIRST[0]),
        ("one was adopted", {FIRST[0]: make_adopted_record(APPLIED.machines[0])}, {"after": 100}, "Waits", FIRST[0]),
        ("an operator reports it", {FIRST[0]: replace(HAS_IT, evidence="Operator")}, {"after": 100}, "Next", "4 of 4"),
        ("one is unknown", {FIRST[0]: None}, {}, "Waits", f"cannot tell what is on the disks of {FIRST[0]}"),
        ("one was to have another", {FIRST[0]: OVERTAKEN}, {"after": 100}, "Waits", f"not installed yet: {FIRST[0]}"),
        ("one has failed to", {FIRST[0]: OVERTAKEN_FAILED}, {}, "Stopped", f"the installation failed on {FIRST[0]}"),
        ("one was overwritten", {FIRST[0]: replace(HAS_IT, overwritten_by="m")}, {}, "Waits", "cannot tell"),
        ("one has failed", {FIRST[3]: FAILED}, {}, "Stopped", f"the installation failed on {FIRST[3]}"),
        ("one has failed, one is unknown", {FIRST[0]: None, FIRST[3]: FAILED}, {}, "Stopped", "failed"),
        ("a server that it does not reach has failed", {NAMES[-1]: FAILED}, {}, "Next", "4 of 4"),
        ("the instance is unverified", {}, {"wait_reason": "RecordsVerified: NewLedger"}, "Waits", "NewLedger"),
        ("it spoke an hour ago", {}, {"at": NOON - timedelta(hours=1)}, "Next", "4 of 4"),
        ("it spoke longer ago", {}, {"at": NOON - timedelta(hours=1, seconds=1)}, "Waits", "it is not current"),
        ("it speaks of tomorrow", {}, {"at": NOON + timedelta(days=1)}, "Waits", "it is not current"),
        ("it has no time", {}, {"at": None}, "Waits", "it is not current"),
        ("it is behind Git", {}, {"here": apply_rollout(60)[0]}, "Waits", "cccccccccccc, whose rollout"),
        ("it rolls out another image", {}, {"here": apply_rollout(new="flatcar-1")[0]}, "Waits", "cccccccccccc"),
    ],
)
def test_a_rollout_continues_once_its_machines_have_proven_the_step(
    case: str, records: dict[str, Record | None], proof_fields: dict[str, Any], outcome: str, why: str
) -> None:
    found = judge_rollout(records, **proof_fields)
    assert (found.outcome, why in found.why) == (outcome, True), (case, found)
    assert found.next == (60 if outcome == "Next" else None)


def test_the_last_step_is_complete_once_it_is_proven() -> None:
    here, applied = apply_rollout(100)
    assert len(applied.machines) == len(NAMES)
    told = {identity(name): HAS_IT for name in NAMES[:-1]}
    proof = InstanceReport(commit=Revision("c"), at=NOON, wait_reason=None, records=told)
    found = decide_next_step("stable", here, applied, proof, steps=(50, 100), after=90, at=NOON)
    assert found.outcome is StepOutcome.WAITS
    proof = structs.replace(proof, records={**told, identity(NAMES[-1]): HAS_IT})
    found = decide_next_step("stable", here, applied, proof, steps=(50, 100), after=90, at=NOON)
    assert (found.outcome, found.next) == (StepOutcome.COMPLETE, None)
    assert found.why.endswith("make flatcar-2 the stream's current image")


def test_a_step_that_reaches_no_server_does_not_wait() -> None:
    here, applied = apply_rollout(0)
    proof = InstanceReport(commit=Revision("c"), at=NOON, wait_reason=None, records={})
    found = decide_next_step("stable", here, applied, proof, steps=(1, 100), after=100, at=NOON)
    assert (found.outcome, found.next, found.reached) == (StepOutcome.NEXT, 1, 0)


@for_each(
    ("percent", "selector", "steps", "outcome", "why"),
    [
        (PERCENT, "All", (1, PERCENT), "Waits", f"4 of 4 .*; --steps has no step above {PERCENT} %: add 100"),
        (PERCENT, "All", (1,), "Waits", f".* no step above {PERCENT} %: add 100"),
        (0, "All", (0,), "Waits", "0 of 0 servers have flatcar-2 at 0 %; --steps has no step above 0 %: add 100"),
        (100, "None", (100,), "Waits", "0 of 0 .*; the rollout does not reach any servers"),
        (100, "All", (1, 50), "Complete", "12 of 12 .* at 100 %: make flatcar-2 the stream's current image"),
        (100, "{servers: [web01]}", (100,), "Complete", "1 .*: widen spec.rollout.selector, or make flatcar-2 .*"),
    ],
)
def test_a_rollout_is_complete_only_if_it_reaches_all_selected_servers(
    percent: int, selector: str, steps: tuple[int, ...], outcome: str, why: str
) -> None:
    here, applied = apply_rollout(percent, selector=selector)
    records = {identity(name): HAS_IT for name in NAMES}
    proof = InstanceReport(commit=Revision("c"), at=NOON, wait_reason=None, records=records)
    found = decide_next_step("stable", here, applied, proof, steps=steps, after=100, at=NOON)
    assert (found.outcome, found.next) == (outcome, None)
    assert re.fullmatch(why, found.why), found.why


WEBS = [f"web{number:02}" for number in range(20)]


def stream(percent: int | None = 50, more: str = "", selector: str = "All") -> str:
    rollout = (
        f", rollout: {{image: flatcar-2, percent: {percent}, selector: {selector}}}" if percent is not None else ""
    )
    return document("ImageStream", "flatcar", f"current: flatcar-1{rollout}{more}")


def make_fleet(stream: str, *more: str, pinned: str = "") -> tuple[str, ...]:
    pin = "pin: {image: flatcar-0, reason: broken NIC, until: '2026-11-01T00:00:00Z'}"
    return (
        fleet(),
        *(server(name, f"role: web, name: {name}", pin if name == pinned else "") for name in WEBS),
        *(image(f"flatcar-{number}") for number in (0, 1, 2)),
        stream,
        profile("web", "stream: flatcar"),
        policy("web", "{matchLabels: {role: web}}"),
        *more,
    )


def report(*documents: str, records: dict[str, Record] | None = None, instant: datetime = NOON) -> ImageReport:
    loaded = repository(*documents)
    return report_images(loaded, decide(loaded), records, instant)  # type: ignore[arg-type]


def decided(found: ImageReport) -> dict[str, int]:
    return {each.name: each.decided for each in found.items}


@cache
def digests(percent: int) -> dict[str, Digest]:
    return {name: each.digest for name, each in decide(repository(*make_fleet(stream(percent)))).servers.items()}


@pytest.mark.parametrize("percent", [0, 5, 50, 95])
def test_a_higher_percentage_reaches_exactly_the_listed_servers(percent: int) -> None:
    now = report(*make_fleet(stream(percent)))
    for joining in now.streams[0].joining:
        assert joining.percent > percent
        raised, below = digests(joining.percent), digests(joining.percent - 1)
        assert {name for name in raised if raised[name] != below[name]} == set(joining.servers)
    waiting = {server for joining in now.streams[0].joining for server in joining.servers}
    assert len(waiting) == decided(now)["flatcar-1"]


def test_at_100_percent_no_server_is_left() -> None:
    (whole,) = report(*make_fleet(stream(100))).streams
    assert (whole.images, whole.joining) == ({"flatcar-2": 20}, ())
    (none,) = report(*make_fleet(stream(None))).streams
    assert (none.rollout, none.percent, none.images, none.joining) == (None, None, {"flatcar-1": 20}, ())


@pytest.mark.parametrize(
    ("case", "documents"),
    [
        ("pinned", make_fleet(stream(0), pinned="web03")),
        (
            "held",
            make_fleet(stream(0, ", holds: [{select: {servers: [web03]}, image: flatcar-0, reason: GPU}]")),
        ),
        (
            "not selected",
            make_fleet(stream(0, selector="{matchExpressions: [{key: name, operator: NotIn, values: [web03]}]}")),
        ),
    ],
)
def test_a_rollout_never_reaches_a_pinned_or_held_server(case: str, documents: tuple[str, ...]) -> None:
    reached = [name for each in report(*documents).streams[0].joining for name in each.servers]
    assert sorted(reached) == [name for name in WEBS if name != "web03"], case


def test_pins_and_holds_are_listed_with_their_servers_and_overdue_ones_first() -> None:
    holds = (
        ", holds: [{select: {servers: [web01, web02]}, image: flatcar-0, reason: later, until: '2027-01-01T00:00:00Z'},"
        " {select: {servers: [web02, web03]}, image: flatcar-2, reason: ever},"
        " {select: {servers: [web05]}, image: flatcar-2, reason: noon, until: '2026-11-20T12:00:00Z'}]"
    )
    behind = report(*make_fleet(stream(0, holds), pinned="web05")).behind
    assert [(each.what, each.reason, each.servers, each.overdue) for each in behind] == [
        ("the pin of web05", "broken NIC", ("web05",), True),
        ("a hold of flatcar", "noon", (), True),  # its pin wins
        ("a hold of flatcar", "later", ("web01", "web02"), False),
        ("a hold of flatcar", "ever", ("web03",), False),  # the first hold that selects wins
    ]


def test_servers_that_have_an_image_are_listed_beside_those_that_boot_it() -> None:
    records = {make_uuid(name): Record(provision=1, image="flatcar-0") for name in WEBS[:3]}
    records |= {make_uuid("of another fleet"): Record(image="flatcar-0"), make_uuid("web09"): Record()}
    now = report(*make_fleet(stream(None)), records=records)
    assert {each.name: (each.decided, each.provisioned) for each in now.items} == {
        "flatcar-0": (0, 3),
        "flatcar-1": (20, 0),
        "flatcar-2": (0, 0),
    }
    assert {each.provisioned for each in report(*make_fleet(stream(None))).items} == {None}


def test_servers_without_a_network_boot_are_not_counted() -> None:
    disk = (profile("local", "", method="Disk"), policy("db", "{matchLabels: {role: db}}", boots="local"))
    parked = server("spare", "role: web", "lifecycle: Parked")
    now = report(*make_fleet(stream(None), *disk, server("db01", "role: db"), parked), records={})
    assert decided(now) == {"flatcar-0": 0, "flatcar-1": 20, "flatcar-2": 0}
    assert now.streams[0].images == {"flatcar-1": 20}


@pytest.mark.parametrize(("instant", "expected"), [("19T00:00", 20), ("21T03:59", 20), ("21T04:00", 0)])
def test_a_window_counts_until_its_end(instant: str, expected: int) -> None:
    more = (image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7"))
    now = report(*make_fleet(stream(), *more, maintenance("m", "20T22:00 21T04:00")), instant=at(instant))
    assert {each.name: each.maintenances for each in now.items}["memtest-7"] == expected


@pytest.mark.parametrize(("mode", "expected"), [("Warn", ["web05"]), ("None", ["web05"])])
def test_servers_below_the_minimum_version_are_named(mode: str, expected: list[str]) -> None:
    skew = f", skew: {{mode: '{mode}', minimumVersion: '1'}}"
    old = report(*make_fleet(stream(0, skew), pinned="web05")).too_old
    assert [each.server for each in old] == expected
    assert (old[0].stream, old[0].image, old[0].version, old[0].minimum_version) == ("flatcar", "flatcar-0", "0", "1")


def test_an_image_lists_the_streams_that_contain_it() -> None:
    hold = ", holds: [{select: {servers: [web01]}, image: flatcar-0, reason: GPU}]"
    now = report(*make_fleet(stream(0, hold), image("spare-1")))
    assert {each.name: each.streams for each in now.items} == {
        **{f"flatcar-{number}": ("flatcar",) for number in (0, 1, 2)},
        "spare-1": (),
    }


def test_facts_are_versioned_json() -> None:
    said = json.loads(jsonio.format_document(**to_json_value(report(*make_fleet(stream(0), pinned="web05")))))
    assert said["apiVersion"] == "gitboot.dev/v1alpha1"
    assert set(said) == {"apiVersion", "items", "streams", "behind", "tooOld", "foreign", "uncovered"}
    assert said["behind"][0]["until"] == "2026-11-01T00:00:00Z"
    assert said["streams"][0]["joining"][0]["percent"] >= 1


def test_the_place_of_a_server_is_between_1_and_100() -> None:
    places = {compute_rollout_percentage("flatcar", make_uuid(str(number))) for number in range(3000)}  # type: ignore[arg-type]
    assert places == set(range(1, 101))
