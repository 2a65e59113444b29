"""The changes of a commit for each server, field by field, and properties of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Step
from hypothesis import strategies as st

from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.validation import load
from gitboot.render.boot_files import render_fleet_files, render_idle_files, render_server_files
from gitboot.render.endpoint_files import state_path
from gitboot.render.paths import File
from gitboot.render.server_files import build_server_state
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decisions, list_idle_macs
from gitboot.review.change_groups import CauseFinder, build_groups
from gitboot.review.decision_changes import (
    Changes,
    EffectKind,
    ServerChange,
    ServerEffect,
    ValueChange,
    compare_decisions,
    find_server_effects,
)
from gitboot.review.document_changes import ChangeKind
from gitboot.review.guards import Limits, judge
from gitboot.review.risks import Risk
from tests.helpers import hypothesis_strategies
from tests.helpers.cases import count_examples
from tests.helpers.fleets import SEED, decided, document, fleet, image, maintenance, make_uuid, policy, server, snapshot
from tests.helpers.hypothesis_strategies import FILES, GeneratedFleet, Write, fleets, format_blocks, format_json


def find_effects(old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, ServerEffect]:
    return {
        effect.server: effect for effect in find_server_effects(decided(*old).servers, decided(*new).servers).values()
    }


def changes(old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, tuple[object, object]]:
    return {change.field: (change.old, change.new) for change in find_effects(old, new)["web01"].changes}


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
def test_each_changed_field_is_listed_with_both_values(
    case: str, new: tuple[str, ...], expected: dict[str, tuple[object, object]]
) -> None:
    found = changes(SEED, new)
    assert {field: both for field, both in found.items() if not field.startswith("policy.boot.files")} == expected, case


def test_an_added_maintenance_does_not_change_the_others() -> None:
    later = maintenance("later", "22T00:00 23T00:00")
    found = changes((*SEED, later), (*SEED, maintenance("earlier", "20T00:00 21T00:00"), later))
    assert set(found) == {"maintenances.earlier"}
    old, new = found["maintenances.earlier"]
    assert old is None and isinstance(new, dict) and new["window"]["end"] == "2026-11-21T00:00:00Z"


def test_a_moved_window_changes_two_fields() -> None:
    found = changes((*SEED, maintenance("m", "20T22:00 21T04:00")), (*SEED, maintenance("m", "20T23:00 21T05:00")))
    assert found == {
        "maintenances.m.window.start": ("2026-11-20T22:00:00Z", "2026-11-20T23:00:00Z"),
        "maintenances.m.window.end": ("2026-11-21T04:00:00Z", "2026-11-21T05:00:00Z"),
    }


def test_a_renamed_server_is_changed_and_not_a_new_one() -> None:
    renamed = server("web09", "role: web").replace(make_uuid("web09"), make_uuid("web01"))
    found = find_effects(SEED, (SEED[0], renamed, *SEED[2:]))
    assert [(name, effect.kind) for name, effect in found.items()] == [("web09", EffectKind.CHANGED)]
    assert ValueChange(field="server", old="web01", new="web09") in found["web09"].changes


def test_a_server_is_added_and_removed() -> None:
    more = (*SEED, server("web02", "role: web"))
    assert {name: effect.kind for name, effect in find_effects(SEED, more).items()} == {"web02": EffectKind.ADDED}
    gone = find_effects(more, SEED)
    assert {name: effect.kind for name, effect in gone.items()} == {"web02": EffectKind.REMOVED}
    assert all(change.new is None for change in gone["web02"].changes)


@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("an unused image", image("spare-1")),
        ("an unused stream", document("ImageStream", "s", "current: flatcar-1")),
        (
            "a source of images",
            document(
                "ImageSource",
                "flatcar",
                "architectures: {x86_64: amd64}, releases: {format: JSONList, url: 'https://images.test/versions'}, "
                "files: {kernel: {url: 'https://images.test/{version}/kernel'}}",
            ),
        ),
    ],
)
def test_a_change_of_no_decision_has_no_effect(case: str, more: str) -> None:
    assert find_effects(SEED, (*SEED, more)) == {}, case


@settings(max_examples=count_examples(30), deadline=None)
@given(fleets(), fleets())
def test_there_is_an_effect_exactly_if_a_digest_differs(one: GeneratedFleet, other: GeneratedFleet) -> None:
    old, new = (
        hypothesis_strategies.decided(one.documents).servers,
        hypothesis_strategies.decided(other.documents).servers,
    )
    found = find_server_effects(old, new)
    before = {decision.uuid: decision.digest for decision in old.values()}
    after = {decision.uuid: decision.digest for decision in new.values()}
    assert set(found) == {uuid for uuid in before | after if before.get(uuid) != after.get(uuid)}
    assert all(effect.changes for effect in found.values())
    mirrored = find_server_effects(new, old)
    assert set(mirrored) == set(found)
    for uuid, effect in found.items():
        assert [(each.field, each.new, each.old) for each in mirrored[uuid].changes] == [
            (each.field, each.old, each.new) for each in effect.changes
        ]


LAWS = settings(
    max_examples=count_examples(25),
    suppress_health_check=[HealthCheck.too_slow],
    phases=[step for step in Step if step is not Step.explain],
)


@dataclass(frozen=True)
class Commit:
    decisions: Decisions
    repository: FleetRepository

    @staticmethod
    def of(fleet: GeneratedFleet, write: Write = format_json) -> Commit:
        repository = load(snapshot(*map(write, fleet.documents), files=FILES))
        return Commit(decide(repository), repository)


def compare_commits(old: Commit, new: Commit) -> Changes:
    return compare_decisions(old.decisions, new.decisions, old.repository, new.repository)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[GeneratedFleet, GeneratedFleet]:
    """Two fleets: any two, or one with some documents of the other, as a commit would change it."""
    one, other = draw(fleets()), draw(fleets())
    kinds = draw(st.sampled_from([None, ("Fleet",), ("ImageStream",), ("Server",), ("Fleet", "ImageStream")]))
    if kinds is None or ("Server" in kinds and (one.bios != other.bios or _list_policies(one) < _list_policies(other))):
        return one, other
    return one, one.replace_documents(
        *(each for kind in kinds for each in other.of(kind) if _is_independent(each, one))
    )


def _list_policies(fleet: GeneratedFleet) -> set[str]:
    return set(fleet.names("BootPolicy"))


def _is_independent(each: object, fleet: GeneratedFleet) -> bool:
    return "servers" not in str(each) and "pool" not in str(each) and "requirePolicy': True" not in str(each)


def render_all(commit: Commit, fleet: GeneratedFleet) -> tuple[dict[str, dict[str, File]], Mapping[str, File]]:
    """Every file of each server at its instants, by server, and those of all machines."""
    found = {}
    for name, decision in commit.decisions.servers.items():
        files: dict[str, File] = {}
        for record in (fleet.records.get(name), None, Record()):
            for instant in fleet.instants(record):
                planned = make_plan(decision, instant, record)
                made = render_server_files(commit.decisions, decision, planned)
                files |= {f"{instant} {record is None} {path}": file for path, file in made.items()}
        state = build_server_state(commit.decisions, decision, None, min(fleet.instants(None)))
        found[name] = files | {state_path(name): state.files[state_path(name)]}  # it shows the whole decision
    unused = {
        path: file
        for name, host in commit.decisions.networks.items()
        for path, file in render_idle_files(
            commit.decisions.outputs, commit.decisions.servers[name], list_idle_macs(host)
        ).items()
    }
    return found, {**render_fleet_files(commit.decisions), **unused}


@LAWS
@given(fleet=fleets())
def test_a_fleet_does_not_differ_from_itself(fleet: GeneratedFleet) -> None:
    changes = compare_commits(Commit.of(fleet), Commit.of(fleet, format_blocks))
    assert changes.is_empty
    assert (changes.servers, changes.images, dict(changes.documents), changes.bmcs) == ((), (), {}, ())
    assert changes.unchanged == changes.before == changes.after
    assert not judge(changes.extent, Limits()).held


_MIRRORED = {
    ChangeKind.ADDED: ChangeKind.REMOVED,
    ChangeKind.REMOVED: ChangeKind.ADDED,
    ChangeKind.EDITED: ChangeKind.EDITED,
}
_ONE_WAY = {
    Risk.REINSTALL,
    Risk.WITHDRAWN,
    Risk.ADDED,
    Risk.INSTALL,
    Risk.POOL_MOVE,
    Risk.BOOT,
    Risk.HARMLESS,
    Risk.BECOMES_UNKNOWN,
    Risk.RESET,
}


@LAWS
@given(pair=pairs())
def test_the_reverse_comparison_is_the_mirror_image(pair: tuple[GeneratedFleet, GeneratedFleet]) -> None:
    old, new = map(Commit.of, pair)
    there, back = compare_commits(old, new), compare_commits(new, old)

    def ways(changes: Changes, *, swapped: bool) -> set[object]:
        return {_describe_direction(each, swapped=swapped) for each in changes.servers}

    assert ways(there, swapped=False) == ways(back, swapped=True)
    assert (there.before, there.after, there.unchanged) == (back.after, back.before, back.unchanged)
    assert (there.unknown is None, there.shared is None) == (back.unknown is None, back.shared is None)
    assert {(each.name, _MIRRORED[each.fate]) for each in there.images} == {(e.name, e.fate) for e in back.images}
    assert {key: _MIRRORED[each.fate] for key, each in there.documents.items()} == {
        key: each.fate for key, each in back.documents.items()
    }


def _describe_direction(change: ServerChange, *, swapped: bool) -> object:
    old, new = change.pair
    fate = _MIRRORED[change.fate] if swapped else change.fate
    return ((new, old) if swapped else (old, new)), fate, change.risks - _ONE_WAY


@LAWS
@given(pair=pairs())
def test_exactly_what_a_comparison_names_changes_in_the_output_tree(
    pair: tuple[GeneratedFleet, GeneratedFleet],
) -> None:
    fleet, _ = pair
    old, new = map(Commit.of, pair)
    changes = compare_commits(old, new)
    before, shared_before = render_all(old, fleet)
    after, shared_after = render_all(new, fleet)
    named = {change.name for change in changes.servers}
    named |= {change.old.server for change in changes.servers if change.old is not None}
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == named
    differ = dict(shared_before) != dict(shared_after)
    assert not differ or changes.unknown is not None or changes.shared is not None
    assert not changes.is_empty or (before == after and not differ)


@LAWS
@given(pair=pairs())
def test_every_changed_server_is_in_one_group_with_similar_ones(
    pair: tuple[GeneratedFleet, GeneratedFleet],
) -> None:
    old, new = map(Commit.of, pair)
    changes = compare_commits(old, new)
    causes = CauseFinder(changes, old.repository, new.repository)
    found = build_groups(changes, (old.decisions, old.repository), (new.decisions, new.repository), causes)
    names = [name for group in found for name in group.names]
    assert sorted(names) == sorted(change.name for change in changes.servers)
    for group in found:
        assert group.causes, group.names
        assert group.effects
        assert {change.risks for change in group.servers} == {frozenset(group.risks)}


@LAWS
@given(pair=pairs())
def test_a_digest_determines_which_decisions_change_and_how(pair: tuple[GeneratedFleet, GeneratedFleet]) -> None:
    old, new = map(Commit.of, pair)
    changes = compare_commits(old, new)
    assert changes.digest == compare_commits(old, new).digest
    assert changes.is_empty or changes.digest != compare_commits(new, old).digest
    assert changes.is_empty or changes.digest != compare_commits(old, old).digest
