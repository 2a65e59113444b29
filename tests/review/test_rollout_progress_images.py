"""Images and streams in use: who boots what, who stays behind and why, and whom a rollout reaches next."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache

import pytest

from gitboot import jsonio
from gitboot.jsonio import Digest, facts
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.policy_selection import joins_at
from gitboot.resolve.provisioning_record import Record
from gitboot.review.rollout_progress import Images, images
from tests.helpers.fleets import at, document, fleet, image, maintenance, policy, profile, repository, server, uuid_of

NOON = at("20T12:00")
NAMES = [f"web{number:02}" for number in range(20)]


def stream(percent: int | None = 50, more: str = "", selector: str = "All") -> str:
    rollout = (
        f", rollout: {{image: flatcar-2, percent: {percent}, selector: {selector}}}" if percent is not None else ""
    )
    return document("ImageStream", "flatcar", f"current: flatcar-1{rollout}{more}")


def fleet_with(stream: str, *more: str, pinned: str = "") -> tuple[str, ...]:
    pin = "pin: {image: flatcar-0, reason: broken NIC, until: '2026-11-01T00:00:00Z'}"
    return (
        fleet(),
        *(server(name, f"role: web, name: {name}", pin if name == pinned else "") for name in NAMES),
        *(image(f"flatcar-{number}") for number in (0, 1, 2)),
        stream,
        profile("web", "stream: flatcar"),
        policy("web", "{matchLabels: {role: web}}"),
        *more,
    )


def found(*documents: str, records: dict[str, Record] | None = None, instant: datetime = NOON) -> Images:
    loaded = repository(*documents)
    return images(loaded, decide(loaded), records, instant)  # type: ignore[arg-type]


def decided(found: Images) -> dict[str, int]:
    return {each.name: each.decided for each in found.items}


@cache
def digests(percent: int) -> dict[str, Digest]:
    """What each server comes to at a percentage."""
    return {name: each.digest for name, each in decide(repository(*fleet_with(stream(percent)))).servers.items()}


@pytest.mark.parametrize("percent", [0, 5, 50, 95])
def test_raising_the_percentage_reaches_exactly_those_that_are_told(percent: int) -> None:
    now = found(*fleet_with(stream(percent)))
    for joining in now.streams[0].joining:
        assert joining.percent > percent
        raised, below = digests(joining.percent), digests(joining.percent - 1)
        assert {name for name in raised if raised[name] != below[name]} == set(joining.servers)
    waiting = {server for joining in now.streams[0].joining for server in joining.servers}
    assert len(waiting) == decided(now)["flatcar-1"]


def test_at_100_percent_nobody_is_left() -> None:
    (whole,) = found(*fleet_with(stream(100))).streams
    assert (whole.images, whole.joining) == ({"flatcar-2": 20}, ())
    (none,) = found(*fleet_with(stream(None))).streams
    assert (none.rollout, none.percent, none.images, none.joining) == (None, None, {"flatcar-1": 20}, ())


@pytest.mark.parametrize(
    ("case", "documents"),
    [
        ("pinned", fleet_with(stream(0), pinned="web03")),
        (
            "held",
            fleet_with(stream(0, ", holds: [{select: {servers: [web03]}, image: flatcar-0, reason: GPU}]")),
        ),
        (
            "not selected",
            fleet_with(stream(0, selector="{matchExpressions: [{key: name, operator: NotIn, values: [web03]}]}")),
        ),
    ],
)
def test_a_rollout_never_reaches_one_that_is(case: str, documents: tuple[str, ...]) -> None:
    reached = [name for each in found(*documents).streams[0].joining for name in each.servers]
    assert sorted(reached) == [name for name in NAMES if name != "web03"], case


def test_pins_and_holds_are_told_with_those_whom_they_keep_the_overdue_first() -> None:
    holds = (
        ", holds: [{select: {servers: [web01, web02]}, image: flatcar-0, reason: later, until: '2027-01-01T00:00:00Z'},"
        " {select: {servers: [web02, web03]}, image: flatcar-2, reason: ever},"
        " {select: {servers: [web05]}, image: flatcar-2, reason: noon, until: '2026-11-20T12:00:00Z'}]"
    )
    behind = found(*fleet_with(stream(0, holds), pinned="web05")).behind
    assert [(each.what, each.reason, each.servers, each.overdue) for each in behind] == [
        ("the pin of web05", "broken NIC", ("web05",), True),
        ("a hold of flatcar", "noon", (), True),  # its pin wins
        ("a hold of flatcar", "later", ("web01", "web02"), False),
        ("a hold of flatcar", "ever", ("web03",), False),  # the first hold that selects wins
    ]


def test_servers_that_have_an_image_are_told_beside_those_that_boot_it() -> None:
    records = {uuid_of(name): Record(provision=1, image="flatcar-0") for name in NAMES[:3]}
    records |= {uuid_of("of another fleet"): Record(image="flatcar-0"), uuid_of("web09"): Record()}
    now = found(*fleet_with(stream(None)), records=records)
    assert {each.name: (each.decided, each.provisioned) for each in now.items} == {
        "flatcar-0": (0, 3),
        "flatcar-1": (20, 0),
        "flatcar-2": (0, 0),
    }
    assert {each.provisioned for each in found(*fleet_with(stream(None))).items} == {None}


def test_servers_without_a_boot_from_the_network_count_nowhere() -> None:
    disk = (profile("local", "", method="Disk"), policy("db", "{matchLabels: {role: db}}", boots="local"))
    parked = server("spare", "role: web", "lifecycle: Parked")
    now = found(*fleet_with(stream(None), *disk, server("db01", "role: db"), parked), records={})
    assert decided(now) == {"flatcar-0": 0, "flatcar-1": 20, "flatcar-2": 0}
    assert now.streams[0].images == {"flatcar-1": 20}


@pytest.mark.parametrize(("instant", "expected"), [("19T00:00", 20), ("21T03:59", 20), ("21T04:00", 0)])
def test_a_window_counts_until_it_is_over(instant: str, expected: int) -> None:
    more = (image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7"))
    now = found(*fleet_with(stream(), *more, maintenance("m", "20T22:00 21T04:00")), instant=at(instant))
    assert {each.name: each.maintenances for each in now.items}["memtest-7"] == expected


@pytest.mark.parametrize(("mode", "expected"), [("Warn", ["web05"]), ("None", ["web05"])])
def test_servers_below_the_minimum_version_are_named(mode: str, expected: list[str]) -> None:
    skew = f", skew: {{mode: '{mode}', minimumVersion: '1'}}"
    old = found(*fleet_with(stream(0, skew), pinned="web05")).too_old
    assert [each.server for each in old] == expected
    assert (old[0].stream, old[0].image, old[0].version, old[0].minimum_version) == ("flatcar", "flatcar-0", "0", "1")


def test_an_image_names_the_streams_that_have_it() -> None:
    hold = ", holds: [{select: {servers: [web01]}, image: flatcar-0, reason: GPU}]"
    now = found(*fleet_with(stream(0, hold), image("spare-1")))
    assert {each.name: each.streams for each in now.items} == {
        **{f"flatcar-{number}": ("flatcar",) for number in (0, 1, 2)},
        "spare-1": (),
    }


def test_facts_are_versioned_json() -> None:
    said = json.loads(jsonio.document(**facts(found(*fleet_with(stream(0), pinned="web05")))))
    assert said["apiVersion"] == "gitboot.dev/v1alpha1"
    assert set(said) == {"apiVersion", "items", "streams", "behind", "tooOld"}
    assert said["behind"][0]["until"] == "2026-11-01T00:00:00Z"
    assert said["streams"][0]["joining"][0]["percent"] >= 1


def test_the_place_of_a_server_is_between_1_and_100() -> None:
    places = {joins_at("flatcar", uuid_of(str(number))) for number in range(3000)}  # type: ignore[arg-type]
    assert places == set(range(1, 101))
