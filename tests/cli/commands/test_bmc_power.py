"""`gitboot bmc power` against Redfish services: what is shown, sent, refused and noted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gitboot.bmc.identity import Another, CannotTell, IdentityChanged, Same
from gitboot.bmc.override_state import Leave, Observed
from gitboot.bmc.override_steps import OFF
from gitboot.bmc.power_steps import NotSwitched, PowerAction, ResetType, next_power
from gitboot.cli.main import Exit
from tests.helpers.cases import for_each
from tests.helpers.fleets import uuid_of
from tests.helpers.instance_with_bmcs import Done, Rack
from tests.helpers.redfish_double.server import Drop, Status

ALL = frozenset(ResetType)


def observed(**more: Any) -> Observed:
    return Observed(**{"system": "/redfish/v1/Systems/1", "override": OFF, "power": "On", **more})


@for_each(
    ("action", "force", "seen", "step"),
    [
        ("on", False, observed(power="Off"), ResetType.ON),
        ("on", False, observed(power="Off", reset_types=ALL - {ResetType.ON}), ResetType.FORCE_ON),
        ("on", False, observed(), Leave(why="it is on")),
        ("on", False, observed(in_post=True), Leave(why="it is on")),
        ("off", False, observed(reset_types=ALL), ResetType.GRACEFUL_SHUTDOWN),
        ("off", True, observed(reset_types=ALL), ResetType.FORCE_OFF),
        ("off", False, observed(power="Off"), Leave(why="it is off")),
        ("reset", False, observed(reset_types=ALL), ResetType.GRACEFUL_RESTART),
        ("reset", True, observed(reset_types=ALL), ResetType.FORCE_RESTART),
        ("reset", True, observed(reset_types=frozenset({"PowerCycle"})), ResetType.POWER_CYCLE),
        ("reset", False, observed(power=None), ResetType.GRACEFUL_RESTART),
        ("reset", False, observed(power="Off"), NotSwitched(why="it is off: gitboot bmc power on")),
        ("reset", True, observed(in_post=True), NotSwitched(why="it is in POST: ask again when that is over")),
        (
            "reset",
            False,
            observed(reset_types=frozenset({"On", "ForceRestart"})),
            NotSwitched(why="the BMC allows only ForceRestart, On; --force asks no operating system"),
        ),
        (
            "off",
            True,
            observed(reset_types=frozenset({"On"})),
            NotSwitched(why="the BMC allows only On"),
        ),
    ],
)
def test_what_is_sent_is_what_the_bmc_allows(action: str, force: bool, seen: Observed, step: object) -> None:
    assert next_power(PowerAction(action), seen, Same(), force=force) == step


@for_each("action", list(PowerAction))
@for_each("force", [False, True])
def test_another_machine_is_not_switched(action: PowerAction, force: bool) -> None:
    for identified in (Another(message="it is web02"), IdentityChanged(message="it was web02")):
        step = next_power(action, observed(power="Off"), identified, force=force)
        assert isinstance(step, NotSwitched) and step.why == f"AnotherMachine: {identified.message}"
    unknown = CannotTell(message="it shows nothing")
    assert isinstance(next_power(PowerAction.ON, observed(power="Off"), unknown, force=force), ResetType)


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as rack:
        yield rack


@pytest.fixture
def pair(rack: Rack) -> Rack:
    rack.add("web01", provision=1)
    rack.add("web02")
    rack.push()
    rack.once(*rack.spooling, records="fresh")
    return rack


def typed(rack: Rack, *command: object) -> Done:
    return rack.typed("bmc", "power", *command, "--credentials", rack.credentials)


def resets(rack: Rack) -> list[int]:
    return [blade.machine.resets for blade in rack.blades.values()]


def test_one_machine_is_reset_once_and_the_ledger_says_why(pair: Rack) -> None:
    before = resets(pair)
    done = typed(pair, "reset", "web01", "--force", "--reason", "INC-7 hangs")
    assert (done.code, "sent ForceRestart" in done.out) == (0, True), done
    assert resets(pair) == [before[0] + 1, before[1]]
    said = pair.said("events")
    asked, done_so = "power reset by hand: web01 (INC-7 hangs)", "web01 was sent ForceRestart (INC-7 hangs)"
    assert asked in said and done_so in said and said.index(asked) < said.index(done_so)


def test_several_are_shown_first_and_need_a_yes_where_nobody_can_be_asked(pair: Rack) -> None:
    before = resets(pair)
    command = ("reset", "-l", "role!=db", "--force", "--reason", "kernel")
    done = typed(pair, *command)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "say --yes if this is meant" in done.err
    assert "reset for 2 servers, of which 1 would boot what writes disks: kernel" in done.err
    assert resets(pair) == before
    dry = typed(pair, *command, "--dry-run", "-o", "json")
    assert (dry.code, [item["sent"] for item in dry.json["items"]]) == (0, [False, False])
    assert resets(pair) == before and "by hand" not in pair.said("events")
    assert typed(pair, *command, "--yes").code == 0
    assert resets(pair) == [count + 1 for count in before]


def test_what_is_off_is_switched_on_and_what_is_on_is_left_alone(pair: Rack) -> None:
    pair.blades["web02"].machine.reset("ForceOff")
    before = resets(pair)
    shown = {item["server"]: item["power"] for item in typed(pair, "get", "-o", "json").json["items"]}
    assert shown == {"web01": "On", "web02": "Off"}
    done = typed(pair, "on", "web01", "web02", "--reason", "cold", "--yes", "-o", "json")
    assert [(item["server"], item["sent"], item["why"]) for item in done.json["items"]] == [
        ("web01", False, "it is on"),
        ("web02", True, None),
    ]
    assert resets(pair) == [before[0], before[1] + 1]
    assert "power on by hand: web02 (cold)" in pair.said("events")


def test_a_bmc_that_shows_another_machine_is_sent_nothing(pair: Rack) -> None:
    web = pair.blades["web01"].machine
    web.uuid, web.serial = uuid_of("another"), "CZ29200XYZ"
    before = resets(pair)
    done = typed(pair, "reset", "web01", "--force", "--reason", "x")
    assert (done.code, "AnotherMachine" in done.out) == (Exit.PARTIAL, True)
    assert resets(pair) == before and "by hand" not in pair.said("events")


def test_an_answer_that_is_lost_is_told_and_nothing_is_sent_again(pair: Rack) -> None:
    web = pair.blades["web01"]
    web.bmc.fault(Drop(applied=True), on="POST", times=1)
    before = resets(pair)
    done = typed(pair, "reset", "web01", "--force", "--reason", "x", "-o", "json")
    (item,) = done.json["items"]
    assert (done.code, item["sent"]) == (Exit.PARTIAL, None)
    assert "whether it has taken ForceRestart is not known; look before you ask again" in item["why"]
    assert resets(pair)[0] == before[0] + 1
    assert "web01 may have been switched: " in pair.said("events")


def test_a_refusal_and_silence_are_told_and_the_others_switched(pair: Rack) -> None:
    pair.blades["web01"].bmc.fault(Status(status=503), on="POST", times=9)
    before = resets(pair)
    done = typed(pair, "reset", "web01", "web02", "--force", "--yes", "--reason", "x", "-o", "json")
    assert (done.code, [item["sent"] for item in done.json["items"]]) == (Exit.PARTIAL, [False, True])
    assert resets(pair) == [before[0], before[1] + 1]
    pair.blades["web01"].bmc.fault(Drop(applied=False), on="GET", times=9)
    shown = typed(pair, "get")
    assert (shown.code, "2 BMCs: 1 on, 1 not read" in shown.out) == (Exit.PARTIAL, True), shown.out
    assert max(map(len, shown.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("on --reason x", "name servers, or select them by their labels"),
        ("reset wbe01 --reason x", "did you mean web01?"),
        ("reset web01", "Missing option '--reason'"),
        ("on web01 --force --reason x", "No such option"),
        ("reset -l role=nobody --reason x", "no server has the labels role=nobody"),
    ],
)
def test_what_cannot_be_switched_is_said_with_its_hint(pair: Rack, command: str, said: str) -> None:
    done = typed(pair, *command.split())
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert said in done.err and "Traceback" not in done.err
