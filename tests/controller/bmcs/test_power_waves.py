"""Power waves: a table of groups, and properties of every group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gitboot.controller.bmcs.power_waves import WaveMember, choose_wave
from tests.helpers.cases import for_each
from tests.helpers.fleets import at

NOON = at("20T12:00")
PATIENCE = timedelta(minutes=30)


def member(name: str, **more: Any) -> WaveMember:
    return WaveMember(**{"name": name, "maintenance": "m", "group": None, "limit": "1", "ready": True, **more})


def away_member(name: str, minutes: int = 1, **more: Any) -> WaveMember:
    return member(name, ready=False, away_since=NOON - timedelta(minutes=minutes), **more)


def group(count: int, **more: Any) -> list[WaveMember]:
    return [member(f"web{number}", **more) for number in range(1, count + 1)]


@for_each(
    ("case", "members", "go"),
    [
        ("nobody", [], ""),
        ("by name, one", [member("b"), member("a")], "a"),
        ("by name, two", [member(name, limit="2") for name in "cba"], "a b"),
        ("every ready server", [member("a", ready=False), member("b")], "b"),
        ("none while one is away", [away_member("a"), member("b")], ""),
        (
            "one beside one that is away",
            [away_member("a", limit="2"), *(member(name, limit="2") for name in "bc")],
            "b",
        ),
        ("none while another is down", [member("a", ready=False, down=True), member("b")], ""),
        ("more than one is down", [*(member(name, ready=False, down=True) for name in "ab"), member("c")], ""),
        ("half of five, rounded down", group(5, limit="50%"), "web1 web2"),
        ("a hundredth of five is one", group(5, limit="1%"), "web1"),
        ("all", group(3, limit="100%"), "web1 web2 web3"),
        ("of each group", [member("a", group="x"), member("b", group="x"), member("c", group="y")], "a c"),
        ("groups do not wait for each other", [away_member("a", group="x"), member("b", group="y")], "b"),
        ("maintenances neither", [away_member("a"), member("b", maintenance="n")], "b"),
        (
            "none of the maintenance after one that is not back",
            [away_member("a", 30, group="x"), member("b", group="y")],
            "",
        ),
        ("nor with room for more", [away_member("a", 30, limit="9"), member("b", limit="9")], ""),
        ("a moment before it is", [away_member("a", 29, limit="9"), member("b", limit="9")], "b"),
        ("but one of another maintenance", [away_member("a", 30), member("b", maintenance="n")], "b"),
    ],
)
def test_a_power_wave_is_chosen_from_the_ready_members(case: str, members: list[WaveMember], go: str) -> None:
    assert " ".join(sorted(choose_wave(members, NOON, PATIENCE).servers)) == go, case


def test_a_machine_that_does_not_return_is_named() -> None:
    found = choose_wave(
        [away_member("b", 31), away_member("a", 30), away_member("c", 29), away_member("d", 99, maintenance="n")],
        NOON,
        PATIENCE,
    )
    assert found.stopped == {"m": ("a", "b"), "n": ("d",)}


MEMBERS = st.lists(
    st.builds(
        WaveMember,
        name=st.text("abcdef", min_size=1, max_size=3),
        maintenance=st.sampled_from(["m", "n"]),
        group=st.sampled_from([None, "x", "y"]),
        limit=st.just("1"),
        ready=st.booleans(),
        away_since=st.sampled_from([None, NOON, NOON - PATIENCE]),
        down=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.name,
)


@given(members=MEMBERS, limit=st.sampled_from(["1", "2", "5", "34%", "100%"]))
def test_never_more_machines_are_down_than_allowed(members: list[WaveMember], limit: str) -> None:
    members = [structs.replace(each, limit=limit, ready=each.ready and each.away_since is None) for each in members]
    found = choose_wave(members, NOON, PATIENCE)
    assert found == choose_wave(members[::-1], NOON, PATIENCE)
    for maintenance, its_group in {(each.maintenance, each.group) for each in members}:
        its = [each for each in members if (each.maintenance, each.group) == (maintenance, its_group)]
        most = max(int(limit[:-1]) * len(its) // 100, 1) if limit.endswith("%") else int(limit)
        down = {each.name for each in its if each.down or each.away_since is not None}
        going = found.servers & {each.name for each in its}
        assert not going or len(down | going) <= most
        assert all(each.ready for each in its if each.name in going)
