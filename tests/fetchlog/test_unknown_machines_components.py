"""What an image sends of a machine: what is understood of it, what is left out, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.unknown_machines import (
    Findings,
    UnknownMachine,
    UnknownMachines,
    findings_of,
    inventoried,
    parse_sent,
    parse_unknown,
    render_unknown,
)
from gitboot.model.server import Architecture, Firmware
from tests.helpers.cases import for_each
from tests.helpers.fleets import at

NOW = at("20T22:00")
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


def of(**more: object) -> Findings:
    return findings_of({"interfaces": [{"mac": MAC}], **more})


def test_what_is_understood_is_kept_and_read_again() -> None:
    found = findings_of(SENT)
    assert findings_of(json.loads(json.dumps(found.facts()))) == found
    assert str(found) == (
        "Dell Inc. PowerEdge R650, x86_64 UEFI, 64 CPUs, 256 GiB, 2 interfaces, nvme0n1 480 GB, sda 7.68 TB"
    )


def test_architectures_and_firmware_are_those_of_documents() -> None:
    for architecture in Architecture:
        assert of(architecture=architecture.value).architecture == architecture
    for firmware in Firmware:
        assert of(firmware=firmware.value).firmware == firmware


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
def test_what_is_not_understood_is_left_out(more: dict[str, object]) -> None:
    assert of(**more) == of()


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
def test_what_names_no_interface_is_refused_with_what_to_send(data: bytes) -> None:
    with pytest.raises(ValueError, match="send "):
        inventoried(parse_sent(data), "", "10.0.0.7", NOW)


def test_what_is_kept_of_one_machine_is_bounded() -> None:
    many = {
        "interfaces": [{"mac": f"52:54:00:00:{n // 256:02x}:{n % 256:02x}", "name": "e" * 64} for n in range(500)],
        "disks": [{"name": f"{n:064}", "bytes": 2**62, "model": "é" * 64, "serial": "s" * 64} for n in range(500)],
    }
    machine = inventoried(many, "v1/inventory", "10.0.0.7", NOW)
    assert (len(machine.macs), len(render_unknown(UnknownMachines([machine])))) < (17, 9000)


def test_a_later_inventory_of_one_machine_takes_the_place_of_the_first() -> None:
    first = inventoried(SENT, "v1/inventory", "10.0.0.7", NOW)
    table = UnknownMachines([first, inventoried({**SENT, "disks": []}, "v1/inventory", "10.0.0.7", at("20T23:00"))])
    table.add(UnknownMachine(macs=first.macs[:1], client="10.0.0.7", path="", first=NOW, last=at("21T00:00")))
    [one] = table.machines
    assert one.times == 3 and one.inventory == findings_of({**SENT, "disks": []})


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.sampled_from([*SENT, "mac", "name"]), each, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*SENT]), _ANY))
def test_whatever_is_sent_is_refused_or_stands_in_a_file_as_it_was_taken(found: dict[str, object]) -> None:
    sent = {"interfaces": [{"mac": MAC}], **found} if "interfaces" not in found else found
    try:
        machine = inventoried(sent, "v1/inventory", "10.0.0.7", NOW)
    except ValueError:
        return
    assert machine.inventory is not None
    assert parse_unknown(render_unknown(UnknownMachines([machine]))).machines == (machine,)
    assert str(machine.inventory).isprintable()
