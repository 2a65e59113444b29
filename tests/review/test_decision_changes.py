"""What a commit changes for each server, field by field: the same machine under another name is the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from gitboot.review.decision_changes import Change, EffectKind, ServerEffect, all_effects
from tests.helpers import hypothesis_strategies
from tests.helpers.cases import examples
from tests.helpers.fleets import SEED, decided, document, fleet, image, maintenance, policy, server, uuid_of
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets


def between(old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, ServerEffect]:
    return {effect.server: effect for effect in all_effects(decided(*old).servers, decided(*new).servers).values()}


def changes(old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, tuple[object, object]]:
    """The fields of web01 that differ."""
    return {change.field: (change.old, change.new) for change in between(old, new)["web01"].changes}


@pytest.mark.parametrize(
    ("case", "new", "expected"),
    [
        (
            "an argument",
            (*SEED[:6], policy("web", spec="kernelArguments: [quiet]")),
            {"policy.boot.kernelArguments": ([], ["quiet"])},
        ),
        (
            "how often",
            (*SEED[:6], policy("web", often="Never")),
            {"policy.networkBoot": ("Always", "Never"), "policy.override": ("Continuous", "Once")},
        ),
        (
            "a number",
            (SEED[0], server("web01", "role: web", "provision: 2"), *SEED[2:]),
            {"policy.provision": (0, 2), "provision": (0, 2)},
        ),
        (
            "the base URL",
            (fleet("baseURL: 'http://b.test'"), *SEED[1:]),
            {"baseURL": ("http://boot.test", "http://b.test")},
        ),
    ],
)
def test_each_field_that_differs_is_told_with_both_values(
    case: str, new: tuple[str, ...], expected: dict[str, tuple[object, object]]
) -> None:
    found = changes(SEED, new)
    assert {field: both for field, both in found.items() if not field.startswith("policy.boot.files")} == expected, case


def test_a_maintenance_that_is_added_moves_none_of_the_others() -> None:
    later = maintenance("later", "22T00:00 23T00:00")
    found = changes((*SEED, later), (*SEED, maintenance("earlier", "20T00:00 21T00:00"), later))
    assert set(found) == {"maintenances.earlier"}
    old, new = found["maintenances.earlier"]
    assert old is None and isinstance(new, dict) and new["window"]["end"] == "2026-11-21T00:00:00Z"


def test_a_window_that_is_moved_is_two_fields() -> None:
    found = changes((*SEED, maintenance("m", "20T22:00 21T04:00")), (*SEED, maintenance("m", "20T23:00 21T05:00")))
    assert found == {
        "maintenances.m.window.start": ("2026-11-20T22:00:00Z", "2026-11-20T23:00:00Z"),
        "maintenances.m.window.end": ("2026-11-21T04:00:00Z", "2026-11-21T05:00:00Z"),
    }


def test_a_renamed_server_is_changed_and_not_another_one() -> None:
    renamed = server("web09", "role: web").replace(uuid_of("web09"), uuid_of("web01"))
    found = between(SEED, (SEED[0], renamed, *SEED[2:]))
    assert [(name, effect.kind) for name, effect in found.items()] == [("web09", EffectKind.CHANGED)]
    assert Change(field="server", old="web01", new="web09") in found["web09"].changes


def test_a_server_comes_and_goes() -> None:
    more = (*SEED, server("web02", "role: web"))
    assert {name: effect.kind for name, effect in between(SEED, more).items()} == {"web02": EffectKind.ADDED}
    gone = between(more, SEED)
    assert {name: effect.kind for name, effect in gone.items()} == {"web02": EffectKind.REMOVED}
    assert all(change.new is None for change in gone["web02"].changes)


@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("an image that nobody boots", image("spare-1")),
        ("a stream that nobody follows", document("ImageStream", "s", "current: flatcar-1")),
    ],
)
def test_what_changes_no_decision_has_no_effect(case: str, more: str) -> None:
    assert between(SEED, (*SEED, more)) == {}, case


@settings(max_examples=examples(30), deadline=None)
@given(fleets(), fleets())
def test_there_is_an_effect_exactly_where_a_digest_differs(one: GeneratedFleet, other: GeneratedFleet) -> None:
    old, new = (
        hypothesis_strategies.decided(one.documents).servers,
        hypothesis_strategies.decided(other.documents).servers,
    )
    found = all_effects(old, new)
    before = {decision.uuid: decision.digest for decision in old.values()}
    after = {decision.uuid: decision.digest for decision in new.values()}
    assert set(found) == {uuid for uuid in before | after if before.get(uuid) != after.get(uuid)}
    assert all(effect.changes for effect in found.values())
    mirrored = all_effects(new, old)
    assert set(mirrored) == set(found)
    for uuid, effect in found.items():
        assert [(each.field, each.new, each.old) for each in mirrored[uuid].changes] == [
            (each.field, each.old, each.new) for each in effect.changes
        ]
