"""Unknown machines: what is said of one, what is kept of many, and what a flood changes of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.unknown_machines import (
    KEPT,
    MOST,
    MOST_OF_ONE,
    UnknownAsked,
    UnknownMachine,
    UnknownMachines,
    parse_unknown,
    render_unknown,
    unknown_left,
    unknown_of,
)
from tests.helpers.cases import for_each
from tests.helpers.fleets import at

NOW = at("20T22:00")
UUID = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
SWAPPED = "44454c4c-3400-104a-8056-b9c04f4d3732"


def machine(number: int, client: str = "10.0.0.1", when: datetime = NOW, **more: str) -> UnknownMachine:
    digits = f"{number:06x}"
    mac = f"52-54-00-{digits[:2]}-{digits[2:4]}-{digits[4:]}"
    found = unknown_of(f"/v1/boot/{mac}/boot.ipxe", more, client, when)
    assert found is not None
    return found


@for_each(
    ("path", "query", "expected"),
    [
        ("/v1/boot/52:54:00:AB:cd:ef/boot.ipxe", {}, (("52-54-00-ab-cd-ef",), None, None)),
        ("/grub.cfg-01-52-54-00-ab-cd-ef", {}, (("52-54-00-ab-cd-ef",), None, None)),
        (f"/ipxe/{UUID.upper()}", {"serial": "4J8VM72"}, ((), UUID, "4J8VM72")),
        ("/ipxe/serial/4J8VM72", {"uuid": UUID}, ((), UUID, "4J8VM72")),
        ("/ipxe/serial/To-be-filled", {"uuid": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, None),
        ("/v1/boot/52-54-00-ab-cd-ef/boot.ipxe", {"serial": "x" * 65}, (("52-54-00-ab-cd-ef",), None, None)),
        (f"/ignition/{UUID}", {}, None),
        ("/o/" + "0" * 64 + "/x", {}, None),
        ("/favicon.ico", {}, None),
    ],
)
def test_who_asks_is_told_by_path_and_query(
    path: str, query: dict[str, str], expected: tuple[tuple[str, ...], str | None, str | None] | None
) -> None:
    found = unknown_of(path, query, "10.0.0.1", NOW)
    assert (None if found is None else (found.macs, found.uuid, found.serial)) == expected


def test_several_requests_of_one_machine_are_one_entry() -> None:
    table = UnknownMachines()
    assert table.add(machine(1, uuid=UUID))
    assert not table.add(machine(2, when=NOW + timedelta(seconds=5), uuid=SWAPPED, serial="4J8VM72"))
    [one] = table.machines
    assert (len(one.macs), one.uuid, one.serial, one.times) == (2, UUID, "4J8VM72", 2)
    assert (one.first, one.last) == (NOW, NOW + timedelta(seconds=5))


def test_what_a_later_request_joins_becomes_one_entry() -> None:
    table = UnknownMachines([machine(1), machine(2)])
    assert len(table.machines) == 2
    table.add(machine(1, uuid=UUID))
    table.add(machine(2, uuid=UUID))
    assert [each.times for each in table.machines] == [4]


def test_a_flood_from_one_address_pushes_nobody_out_and_takes_its_own_room_only() -> None:
    table = UnknownMachines([machine(1, "10.9.9.9")])
    for number in range(2, 2 * MOST):
        table.add(machine(number, "10.0.0.1"))
    assert len(table.machines) == 1 + MOST_OF_ONE
    assert table.add(machine(5000, "10.9.9.8")), "another machine still finds room"
    assert table.unkept == 2 * MOST - 2 - MOST_OF_ONE


def test_a_flood_from_many_addresses_pushes_nobody_out() -> None:
    table = UnknownMachines([machine(0, "10.9.9.9")])
    for number in range(1, MOST + 500):
        table.add(machine(number, f"10.{number // 250}.{number % 250}.1"))
    assert len(table.machines) == MOST
    assert machine(0).macs in {each.macs for each in table.machines}
    before = table.unkept
    table.add(machine(0, "10.9.9.9"))
    assert table.unkept == before, "who is kept goes on being counted"


def test_addresses_of_one_ipv6_network_are_one() -> None:
    table = UnknownMachines()
    for number in range(MOST_OF_ONE + 10):
        table.add(machine(number, f"2001:db8::{number + 1:x}"))
    assert len(table.machines) == MOST_OF_ONE


def test_who_has_not_asked_for_long_makes_room() -> None:
    table = UnknownMachines([machine(1), machine(2, when=NOW + timedelta(seconds=1))])
    table.expire(NOW + KEPT)
    assert [each.macs for each in table.machines] == [machine(2).macs]
    table.add(machine(1))
    assert len(table.machines) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]), st.sampled_from(["", UUID])),
        max_size=30,
    )
)
def test_a_table_is_what_its_file_says(asked: list[tuple[int, str, str]]) -> None:
    table = UnknownMachines()
    for number, client, uuid in asked:
        table.add(machine(number, client, uuid=uuid))
    again = parse_unknown(render_unknown(table))
    assert (again.machines, again.unkept) == (table.machines, table.unkept)
    names = [name for each in table.machines for name in each.identities]
    assert len(names) == len(set(names)), "no two entries are of one machine"
    assert sum(each.times for each in table.machines) == len(asked)


@for_each(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"machines": 1}',
        b'{"machines": [1, {"macs": ["nonsense"], "client": "", "path": "", "first": "", "last": "", "times": 1}]}',
        json.dumps({"machines": [{**machine(1).facts(), "client": "\ud800"}]}).encode(),
    ],
    ids=["empty", "list", "deep", "number", "nonsense", "surrogate"],
)
def test_a_damaged_file_is_an_empty_table(content: bytes) -> None:
    assert parse_unknown(content).machines == ()


def test_a_writer_leaves_one_file_until_it_is_taken(tmp_path: Path) -> None:
    asked = UnknownAsked(tmp_path)
    asked.leave()
    assert list(unknown_left(tmp_path)) == []
    for number in (1, 2):
        asked.note(machine(number))
        asked.leave()
    [left] = unknown_left(tmp_path)
    assert len(left.table.machines) == 1, "the second waits until the first is taken"
    left.path.unlink()
    asked.leave()
    [left] = unknown_left(tmp_path)
    assert [each.macs for each in left.table.machines] == [machine(2).macs]
    assert asked.requests == 2


def test_files_of_writers_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    for number in range(70):
        one = UnknownAsked(tmp_path)
        one.note(machine(number))
        one.leave()
    assert len(list(tmp_path.iterdir())) == 64
