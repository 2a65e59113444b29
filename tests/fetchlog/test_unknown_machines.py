"""Unknown machines: the facts of one, the table of many, and the effect of a flood."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.unknown_machines import (
    MAX_MACHINES,
    MAX_PER_NETWORK,
    RETENTION,
    HardwareInventory,
    UnknownMachine,
    UnknownMachineRecorder,
    UnknownMachines,
    build_from_inventory,
    parse_hardware_inventory,
    parse_inventory,
    parse_unknown_machine,
    parse_unknown_machines,
    read_unknown_machine_files,
    render_unknown_machines,
)
from gitboot.model.server import Architecture, Firmware
from tests.helpers.cases import for_each
from tests.helpers.fleets import at

NOW = at("20T22:00")
UUID = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
SWAPPED = "44454c4c-3400-104a-8056-b9c04f4d3732"


def machine(number: int, client: str = "10.0.0.1", when: datetime = NOW, **more: str) -> UnknownMachine:
    digits = f"{number:06x}"
    mac = f"52-54-00-{digits[:2]}-{digits[2:4]}-{digits[4:]}"
    found = parse_unknown_machine(f"/v1/boot/{mac}/boot.ipxe", more, client, when)
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
def test_an_unknown_machine_is_identified_by_path_and_query(
    path: str, query: dict[str, str], expected: tuple[tuple[str, ...], str | None, str | None] | None
) -> None:
    found = parse_unknown_machine(path, query, "10.0.0.1", NOW)
    assert (None if found is None else (found.macs, found.uuid, found.serial)) == expected


def test_several_requests_of_one_machine_are_one_row() -> None:
    table = UnknownMachines()
    assert table.add(machine(1, uuid=UUID))
    assert not table.add(machine(2, when=NOW + timedelta(seconds=5), uuid=SWAPPED, serial="4J8VM72"))
    [one] = table.machines
    assert (len(one.macs), one.uuid, one.serial, one.times) == (2, UUID, "4J8VM72", 2)
    assert (one.first, one.last) == (NOW, NOW + timedelta(seconds=5))


def test_rows_that_a_later_request_connects_become_one() -> None:
    table = UnknownMachines([machine(1), machine(2)])
    assert len(table.machines) == 2
    table.add(machine(1, uuid=UUID))
    table.add(machine(2, uuid=UUID))
    assert [each.times for each in table.machines] == [4]


def test_a_flood_from_one_address_displaces_only_its_own_rows() -> None:
    table = UnknownMachines([machine(1, "10.9.9.9")])
    for number in range(2, 2 * MAX_MACHINES):
        table.add(machine(number, "10.0.0.1"))
    assert len(table.machines) == 1 + MAX_PER_NETWORK
    assert table.add(machine(5000, "10.9.9.8")), "another machine still finds room"
    assert table.dropped_count == 2 * MAX_MACHINES - 2 - MAX_PER_NETWORK


def test_a_flood_from_many_addresses_displaces_no_earlier_row() -> None:
    table = UnknownMachines([machine(0, "10.9.9.9")])
    for number in range(1, MAX_MACHINES + 500):
        table.add(machine(number, f"10.{number // 250}.{number % 250}.1"))
    assert len(table.machines) == MAX_MACHINES
    assert machine(0).macs in {each.macs for each in table.machines}
    before = table.dropped_count
    table.add(machine(0, "10.9.9.9"))
    assert table.dropped_count == before, "who is kept goes on being counted"


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    table = UnknownMachines()
    for number in range(MAX_PER_NETWORK + 10):
        table.add(machine(number, f"2001:db8::{number + 1:x}"))
    assert len(table.machines) == MAX_PER_NETWORK


def test_a_machine_without_recent_requests_is_removed() -> None:
    table = UnknownMachines([machine(1), machine(2, when=NOW + timedelta(seconds=1))])
    table.expire(NOW + RETENTION)
    assert [each.macs for each in table.machines] == [machine(2).macs]
    table.add(machine(1))
    assert len(table.machines) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]), st.sampled_from(["", UUID])),
        max_size=30,
    )
)
def test_a_table_is_read_back_as_it_was_written(asked: list[tuple[int, str, str]]) -> None:
    table = UnknownMachines()
    for number, client, uuid in asked:
        table.add(machine(number, client, uuid=uuid))
    again = parse_unknown_machines(render_unknown_machines(table))
    assert (again.machines, again.dropped_count) == (table.machines, table.dropped_count)
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
    assert parse_unknown_machines(content).machines == ()


def test_a_writer_leaves_one_file_until_it_is_read(tmp_path: Path) -> None:
    asked = UnknownMachineRecorder(tmp_path)
    asked.write_file()
    assert list(read_unknown_machine_files(tmp_path)) == []
    for number in (1, 2):
        asked.add(machine(number))
        asked.write_file()
    [left] = read_unknown_machine_files(tmp_path)
    assert len(left.table.machines) == 1, "the second waits until the first is taken"
    left.path.unlink()
    asked.write_file()
    [left] = read_unknown_machine_files(tmp_path)
    assert ([each.macs for each in left.table.machines], asked.requests) == ([machine(2).macs], 2)


def test_unread_files_of_writers_are_bounded(tmp_path: Path) -> None:
    for number in range(70):
        one = UnknownMachineRecorder(tmp_path)
        one.add(machine(number))
        one.write_file()
    assert len(list(tmp_path.iterdir())) == 64


MAC = "52-54-00-99-99-99"
SENT = {
    "uuid": "4c4c4544-0034-4a10-8056-b9c04f4d3732",
    "serial": "4J8VM72",
    "manufacturer": "Dell Inc.",
    "product": "PowerEdge R650",
    "architecture": "x86_64",
    "firmware": "UEFI",
    "cpus": 64,
    "memoryMiB": 262144,
    "interfaces": [
        {"name": "eno1", "mac": "52:54:00:99:99:99", "link": True},
        {"mac": "52:54:00:99:99:9A", "link": False},
    ],
    "disks": [
        {"name": "nvme0n1", "bytes": 480103981056, "model": "MZ1L2960", "serial": "S665"},
        {"name": "sda", "bytes": 7681501126656},
    ],
}


def make_findings(**more: object) -> HardwareInventory:
    return parse_hardware_inventory({"interfaces": [{"mac": MAC}], **more})


def test_known_fields_are_kept_and_read_back() -> None:
    found = parse_hardware_inventory(SENT)
    assert parse_hardware_inventory(json.loads(json.dumps(found.facts()))) == found
    assert str(found) == (
        "Dell Inc. PowerEdge R650, x86_64 UEFI, 64 CPUs, 256 GiB, 2 interfaces, nvme0n1 480 GB, sda 7.68 TB"
    )


def test_architectures_and_firmware_have_the_values_of_documents() -> None:
    for architecture in Architecture:
        assert make_findings(architecture=architecture.value).architecture == architecture
    for firmware in Firmware:
        assert make_findings(firmware=firmware.value).firmware == firmware


@for_each(
    "more",
    [
        {"manufacturer": "\x1b[31mDell"},
        {"manufacturer": "Dell\u202eInc."},
        {"manufacturer": "\ud800"},
        {"product": "x" * 65},
        {"product": ["PowerEdge"]},
        {"architecture": "riscv64"},
        {"firmware": ["UEFI"]},
        {"cpus": True},
        {"cpus": -1},
        {"cpus": 2**70},
        {"memoryMiB": 1.5},
        {"disks": {"name": "sda"}},
        {"disks": [{"bytes": 5}, "sda", {"name": "s\nda\x00"}]},
        {"interfaces": [{"mac": MAC}, {"mac": "ff:ff:ff:ff:ff:ff"}, {"mac": 7}, None]},
        {"role": "db", "policy": "wipe", "provision": 1},
    ],
)
def test_unknown_values_are_omitted(more: dict[str, object]) -> None:
    assert make_findings(**more) == make_findings()


@for_each(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"interfaces": [{"mac": "nonsense"}]}',
        b'{"interfaces": "52"}',
        b"9" * 9999,
    ],
    ids=["empty", "list", "no text", "deep", "no address", "no list", "long number"],
)
def test_an_inventory_without_an_interface_is_rejected_with_what_to_send(data: bytes) -> None:
    with pytest.raises(ValueError, match="send "):
        build_from_inventory(parse_inventory(data), "", "10.0.0.7", NOW)


def test_the_stored_data_of_one_machine_is_bounded() -> None:
    many = {
        "interfaces": [{"mac": f"52:54:00:00:{n // 256:02x}:{n % 256:02x}", "name": "e" * 64} for n in range(500)],
        "disks": [{"name": f"{n:064}", "bytes": 2**62, "model": "é" * 64, "serial": "s" * 64} for n in range(500)],
    }
    machine = build_from_inventory(many, "v1/inventory", "10.0.0.7", NOW)
    assert (len(machine.macs), len(render_unknown_machines(UnknownMachines([machine])))) < (17, 9000)


def test_a_later_inventory_of_a_machine_replaces_the_first() -> None:
    first = build_from_inventory(SENT, "v1/inventory", "10.0.0.7", NOW)
    table = UnknownMachines(
        [first, build_from_inventory({**SENT, "disks": []}, "v1/inventory", "10.0.0.7", at("20T23:00"))]
    )
    table.add(UnknownMachine(macs=first.macs[:1], client="10.0.0.7", path="", first=NOW, last=at("21T00:00")))
    [one] = table.machines
    assert one.times == 3 and one.inventory == parse_hardware_inventory({**SENT, "disks": []})


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.sampled_from([*SENT, "mac", "name"]), each, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*SENT]), _ANY))
def test_any_inventory_is_rejected_or_read_back_as_it_was_stored(found: dict[str, object]) -> None:
    sent = {"interfaces": [{"mac": MAC}], **found} if "interfaces" not in found else found
    try:
        machine = build_from_inventory(sent, "v1/inventory", "10.0.0.7", NOW)
    except ValueError:
        return
    assert machine.inventory is not None
    assert parse_unknown_machines(render_unknown_machines(UnknownMachines([machine]))).machines == (machine,)
    assert str(machine.inventory).isprintable()
