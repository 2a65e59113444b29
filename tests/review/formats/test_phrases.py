"""Facts in words: what each reason, window, guard and value reads like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from gitboot.jsonio import Digest
from gitboot.review.change_groups import Group
from gitboot.review.decision_changes import ServerChange
from gitboot.review.document_changes import FieldChange, compare_fields
from gitboot.review.formats import phrases
from gitboot.review.guards import Area, ExceededLimit, Extent, Guard, InstanceFacts, Limits, judge
from gitboot.review.reinstalls import Reinstall, ReinstallReason
from gitboot.review.risks import Effect, EffectTime
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, decision, server


@for_each(
    ("asked", "expected"),
    [
        (Reinstall(ReinstallReason.PROVISION, "1", "2"), "provision 1 → 2"),
        (Reinstall(ReinstallReason.POLICY, None, "web"), "policy (none) → web"),
        (Reinstall(ReinstallReason.MAC, "b", "52-54-00-00-00-01"), "52-54-00-00-00-01 was a MAC address of Server/b"),
        (Reinstall(ReinstallReason.SERIAL, "b", "4J8VM72"), "4J8VM72 was the serial number of Server/b"),
        (
            Reinstall(ReinstallReason.WRITES_DISK, None, "os-1"),
            "os-1 writes disks, but the server booted its local disk before",
        ),
        (Reinstall(ReinstallReason.MAINTENANCE, None, "os-1, Once", "m"), "Maintenance/m is new: os-1, Once"),
        (Reinstall(ReinstallReason.MAINTENANCE, "run 1", "run 2", "m"), "Maintenance/m: run 1 → run 2"),
        (
            Reinstall(ReinstallReason.UNCOVERED, "h", None, "m"),
            "Maintenance/h no longer overrides the boot from Maintenance/m",
        ),
        (
            Reinstall(ReinstallReason.UNCOVERED, "h", None),
            "Maintenance/h no longer overrides the boot from the server's policy",
        ),
    ],
)
def test_each_reason_to_reinstall_has_a_phrase(asked: Reinstall, expected: str) -> None:
    assert phrases.format_reinstall(asked) == expected


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (Effect(EffectTime.NEXT_BOOT), "at the next boot"),
        (Effect(EffectTime.WINDOW, None, None, "m"), "in Maintenance/m, until it is removed from Git"),
        (Effect(EffectTime.WINDOW, at("20T22:00"), None, "m"), "in Maintenance/m, [2026-11-20T22:00:00Z, -)"),
    ],
)
def test_each_time_of_an_effect_has_a_phrase(effect: Effect, expected: str) -> None:
    assert phrases.format_effect(effect) == expected


@pytest.mark.parametrize(
    ("trip", "expected"),
    [
        (
            ExceededLimit(guard=Guard.ALLOW_REWIND, what="commits taken back", number=1, limit=0),
            "the commit does not descend from the accepted one",
        ),
        (
            ExceededLimit(guard=Guard.MAX_DELETES, what="servers removed", number=2600, limit=25),
            "servers removed: 2,600; the limit is 25",
        ),
        (
            ExceededLimit(
                guard=Guard.MAX_UPDATE_PERCENT,
                what="servers changed",
                number=4,
                limit=30,
                of=10,
                percent=True,
                area="site=a",
            ),
            "servers changed in site=a: 4 (40 %) of 10; the limit is 30 %",
        ),
    ],
)
def test_each_exceeded_limit_has_a_phrase(trip: ExceededLimit, expected: str) -> None:
    assert phrases.format_excess(trip) == expected


@pytest.mark.parametrize(
    ("trip", "expected"),
    [
        (
            ExceededLimit(guard=Guard.ALLOW_REWIND, what="commits taken back", number=1, limit=0),
            "the commit does not descend from the accepted commit (guard allowRewind)",
        ),
        (
            ExceededLimit(guard=Guard.MAX_DELETES, what="servers removed", number=2600, limit=25),
            "the commit removes 2,600 servers (maxDeletes allows 25)",
        ),
        (
            ExceededLimit(guard=Guard.MAX_REINSTALLS, what="servers that may be reinstalled", number=1, limit=0),
            "the commit could reinstall 1 server (maxReinstalls allows 0)",
        ),
        (
            ExceededLimit(
                guard=Guard.MAX_UPDATE_PERCENT,
                what="servers changed",
                number=4,
                limit=30,
                of=10,
                percent=True,
                area="site=a",
            ),
            "the commit changes 4 of 10 servers in site=a, 40 % (maxUpdatePercent allows 30 %)",
        ),
        (
            ExceededLimit(guard=Guard.MAX_SMALL_GROUP, what="servers removed", number=5, limit=3, of=9, area="role=db"),
            "the commit removes 5 of 9 servers in role=db (maxSmallGroup allows 3)",
        ),
    ],
)
def test_a_held_commit_says_what_it_does_and_what_the_guard_allows(trip: ExceededLimit, expected: str) -> None:
    assert phrases.format_limit_clause(trip) == expected


def test_each_number_that_a_guard_counts_has_a_clause() -> None:
    nothing = Limits(
        max_update_percent=0,
        max_delete_percent=0,
        max_deletes=0,
        max_small_group=0,
        max_installs=0,
        max_resets=0,
    )
    area = Area(label=None, size=20, changed=9, less=0, removed=9, added=0, reinstalled=0)
    extent = Extent(
        digest=Digest("a" * 64),
        is_first=False,
        before=20,
        after=0,
        installs=1,
        reinstalls=1,
        resets=1,
        changes_unknown_boots=True,
        mutated_images=1,
        disk_claims=1,
        access=1,
        takeover=True,
        areas=(area, structs.replace(area, label=("site", "a"), size=9)),
    )
    verdict = judge(extent, nothing, facts=InstanceFacts(is_rewind=True, lacks_accepted=True, bmcs=1))
    after = judge(structs.replace(extent, after=20), nothing)  # with servers that may boot a claimed image
    trips = (*verdict.trips, *after.trips)
    assert {trip.guard for trip in trips} == {*Guard}
    texts = [phrases.format_limit_clause(trip) for trip in trips]
    assert all("{" not in text for text in texts)
    assert {trip.what for trip in trips} == phrases._CLAUSES.keys()


@pytest.mark.parametrize(
    ("number", "of", "expected"), [(0, 9, "0"), (1, 1000, "1 (<1 %)"), (500, 1000, "500 (50 %)"), (3, 0, "3")]
)
def test_a_nonzero_share_is_never_shown_as_zero(number: int, of: int, expected: str) -> None:
    assert phrases.format_share(number, of) == expected


@for_each(
    ("old", "new", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b: 1 → 2"]),
        ({"a": 1}, {}, ["a: 1 → (absent)"]),
        ({"a": ["x", "y"]}, {"a": ["y", "z"]}, ["a: -x +z"]),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, ["a: in a different order"]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a[1].b: 2 → 3"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 2}]}, ['a: +{"b": 2}']),
        ({"a": "x" * 200}, {"a": "y"}, [f"a: {'x' * 159}… → y"]),
        ({"a": "x"}, {"a": {"b": 1}}, ['a: x → {"b": 1}']),
    ],
)
def test_each_changed_field_has_a_phrase(old: Mapping[str, Any], new: Mapping[str, Any], expected: list[str]) -> None:
    assert [phrases.format_change(field) for field in compare_fields(old, new)] == expected


def test_a_hidden_difference_has_a_phrase() -> None:
    assert phrases.format_change(FieldChange(("files",), "(some)", "(some)")) == "files: changed"


@for_each(
    ("own", "expected"),
    [
        ((), "diff for web01; the other servers have the same diff"),
        (("name",), "diff for web01; the other servers have the same diff with their own name"),
        (("MAC", "name"), "diff for web01; the other servers have the same diff with their own name and MAC"),
        (
            ("MAC", "name", "token"),
            "diff for web01; the other servers have the same diff with their own name, MAC and token",
        ),
    ],
)
def test_the_values_that_differ_between_servers_are_a_list(own: tuple[str, ...], expected: str) -> None:
    documents = (*SEED, server("web02", "role: web"))
    changed = [decision(name, *documents) for name in ("web01", "web02")]
    servers = tuple(ServerChange(old=None, new=each, risks=frozenset(), reinstalls=(), effects=()) for each in changed)
    group = Group(
        causes=(), servers=servers, risks=(), effects=(), reinstalls=(), unknown=(), fields=(), rendered=(), own=own
    )
    assert phrases.describe_diff(group) == expected
