"""A state of a server has one answer by each lookup, and never the answer to unknown machines."""

from __future__ import annotations

from typing import Final

import pytest

from gitboot.model.fleet import Output
from gitboot.model.scalars import parse_mac
from gitboot.render import paths
from gitboot.render.boot_files import RENDERERS, server_files, tombstones
from gitboot.render.paths import PathKind, Role, kind_of
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record import Record
from tests.helpers.fleets import at, decided, fleet, image, maintenance, policy, profile, server

NOON: Final = at("20T12:00")
LOOKUPS: Final = tuple(kind for kind in paths.TABLE if kind.role is Role.ENTRY)
OUTPUTS: Final = ", ".join(sorted({kind.asked_by for kind in LOOKUPS if kind.asked_by is not None}))
UNKNOWN: Final = ("LocalDisk", "NotFound", "{profile: look}")

# Each state: what the Fleet and the Server document say, how often the policy boots, a maintenance.
STATES: Final = {
    "it boots from the network": ("", "", "Always", ()),
    "it is to be installed": ("", "provision: 1", "Once", ()),
    "it boots its disk": ("", "", "Never", ()),
    "it boots its disk, restricted": ("serving: {restrict: true}", "", "Never", ()),
    "it has no script to its disk": ("", "localDisk: NotFound", "Never", ()),
    "its make has no script to its disk": ("hardware: [{select: All, localDisk: NotFound}]", "", "Never", ()),
    "it leaves for its disk at once": ("", "localDisk: Exit", "Never", ()),
    "a maintenance boots its disk": (
        "serving: {restrict: true}",
        "",
        "Always",
        (maintenance("park", "20T10:00 20T14:00", boots="to-disk"),),
    ),
    "parked": ("", "lifecycle: Parked", "Always", ()),
    "parked, restricted": ("serving: {restrict: true}", "lifecycle: Parked", "Always", ()),
    "parked, without a script to its disk": ("", "lifecycle: Parked, localDisk: NotFound", "Always", ()),
    "retired": ("", "lifecycle: Retired", "Always", ()),
    "no policy selects it": ("requirePolicy: false", "", "", ()),
    "no policy selects it, restricted": ("requirePolicy: false, serving: {restrict: true}", "", "", ()),
}


def answers(state: str, unknown: str) -> dict[PathKind, str]:
    fleet_spec, server_spec, often, more = STATES[state]
    spec = f"baseURL: 'http://boot.test', outputs: [{OUTPUTS}], unknownServers: {unknown}"
    decisions = decided(
        fleet(", ".join(filter(None, (spec, fleet_spec)))),
        server("web01", "role: web", ", ".join(filter(None, ("serial: 4J8VM72", server_spec)))),
        image("flatcar-1"),
        image("look-1", "writesDisk: false"),
        profile("web", "flatcar-1"),
        profile("look", "look-1"),
        profile("to-disk", "flatcar-1", method="Disk"),
        *([policy("web", often=often)] if often else []),
        *more,
    )
    decision = decisions.servers["web01"]
    found: dict[PathKind, str] = dict.fromkeys(LOOKUPS, "404")
    for path, file in server_files(decisions, decision, plan(decision, NOON, Record())).items():
        kind = kind_of(path)
        if kind is not None and kind.role is Role.ENTRY:
            found[kind] = "its boot" if b"boots flatcar-1" in file.content else "its disk"
    return found


def test_each_renderer_of_boot_scripts_is_a_lookup_of_this_table() -> None:
    assert {kind for kind, _ in RENDERERS if kind.role is Role.ENTRY} <= set(LOOKUPS)
    assert {kind.asked_by for kind in LOOKUPS} <= set(Output)


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("state", STATES)
def test_finding_r16_a_state_has_one_answer_by_each_lookup(state: str, unknown: str) -> None:
    found = answers(state, unknown)
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("state", STATES)
def test_finding_r16_only_where_unknown_machines_get_404_a_known_machine_may_get_404(state: str) -> None:
    for unknown in UNKNOWN:
        says = set(answers(state, unknown).values())
        assert "404" not in says or unknown == "NotFound", f"it would boot what unknown machines boot: {unknown}"


def test_finding_r16_a_restricted_server_gets_404_where_unknown_machines_do() -> None:
    for state in ("it boots its disk, restricted", "it has no script to its disk", "parked, restricted"):
        assert set(answers(state, "NotFound").values()) == {"404"}, state
        assert set(answers(state, "LocalDisk").values()) == {"its disk"}, state


@pytest.mark.parametrize(("unknown", "answered"), [("NotFound", "404"), ("LocalDisk", "its disk")])
def test_finding_r16_an_interface_that_may_not_boot_answers_like_the_others(unknown: str, answered: str) -> None:
    spec = f"baseURL: 'http://boot.test', outputs: [{OUTPUTS}], unknownServers: {unknown}, serving: {{restrict: true}}"
    decisions = decided(
        fleet(spec), server("web01", "role: web"), image("flatcar-1"), profile("web", "flatcar-1"), policy("web")
    )
    found = tombstones(decisions.outputs, decisions.servers["web01"], (parse_mac("52:54:00:00:00:01"),))
    assert bool(found) == (answered == "its disk")
