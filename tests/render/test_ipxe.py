"""iPXE's lookups: by what a server is found, and by what it must not be."""

from __future__ import annotations

import pytest

from gitboot.render.boot_files import server_files
from gitboot.render.ipxe import first_script, render_by_serial
from gitboot.render.paths import File
from gitboot.resolve.fleet_decisions import decide_all
from gitboot.resolve.plan_at_time import plan
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, decided, fleet, image, profile, repository, server, uuid_of

NOON = at("20T12:00")
FLEET = fleet("baseURL: 'http://boot.test', outputs: [ipxe, serial]")
BY_SERIAL = "boot/ipxe/serial/"


def files_of(spec: str) -> dict[str, File]:
    documents = (fleet("baseURL: 'http://boot.test', outputs: [ipxe, serial]"), server("web01", "role: web", spec))
    decisions = decide_all(repository(*documents, *SEED[2:])).decisions  # as an earlier version may have accepted it
    decision = decisions.servers["web01"]
    return server_files(decisions, decision, plan(decision, NOON, None))


@pytest.mark.parametrize("serial", ["4J8VM72", "CZ2D465CVF", "A.40-866_X", "jk" * 31 + "1"])
def test_a_serial_number_finds_the_entry_that_the_uuid_finds(serial: str) -> None:
    files = files_of(f"serial: '{serial}'")
    assert files[f"{BY_SERIAL}{serial}"] == files[f"boot/ipxe/{uuid_of('web01')}"]
    assert b"boots flatcar-1" in files[f"{BY_SERIAL}{serial}"].content


def test_by_its_serial_number_alone_no_server_boots_what_asks_by_uuid() -> None:
    documents = (
        FLEET,
        server("web01", "role: web", "serial: 4J8VM72"),
        image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
        profile("web", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
        SEED[-1],
    )
    decision = decided(*documents, files={"t": '{"ignition": {"version": "3.4.0"}}'}).servers["web01"]
    [(_, file)] = render_by_serial(decision, plan(decision, NOON, None))
    assert b"asks for its user data by UUID" in file.content
    assert b"kernel" not in file.content


def test_nobody_is_found_by_a_serial_number_unless_the_fleet_wants_it() -> None:
    decision = decided(SEED[0], server("web01", "role: web", "serial: 4J8VM72"), *SEED[2:])
    files = server_files(decision, decision.servers["web01"], plan(decision.servers["web01"], NOON, None))
    assert not [path for path in files if path.startswith(BY_SERIAL)]


@pytest.mark.parametrize("lifecycle", ["Parked", "Retired"])
def test_without_a_plan_a_serial_number_finds_a_tombstone(lifecycle: str) -> None:
    files = files_of(f"serial: 4J8VM72, lifecycle: {lifecycle}")
    assert b"on to the local disk" in files[f"{BY_SERIAL}4J8VM72"].content


@for_each(
    "serial",
    [
        *("To be filled by O.E.M.", "Default string", "System Serial Number", "Not Specified", "N/A"),
        *("None", "UNKNOWN", "default", "Null", "0", "0000000000", "xxxxxxxx", "0123456789", "123456789", "1234567890"),
        *("SYS-1234567890", "SYS-9876543210", "01234567890123456789AB", "0123456789ABCDEF", "SN-12345", "0x00000000"),
        *(
            "SystemSerialNumb",
            "OEM_Serial",
            "EVAL",
            "XXXX-XXXX",
            "0000-0000-0000",
            "ToBeFilledByO.E.M.",
            "NotSpecified",
        ),
    ],
)
def test_what_stands_on_many_boards_finds_nobody(serial: str) -> None:
    assert not [path for path in files_of(f"serial: '{serial}'") if path.startswith(BY_SERIAL)]


@for_each("serial", ["a/b/c/d", "../../x", ".hidden", "with space", "ABC", "%41BCD", "j" * 65, "ÄÖÜß"])
def test_what_a_path_cannot_hold_finds_nobody(serial: str) -> None:
    assert not [path for path in files_of(f"serial: '{serial}'") if path.startswith(BY_SERIAL)]


WHO = "?uuid=${uuid}&serial=${serial:uristring}"  # as far as the loader can say it


def test_a_machine_is_looked_up_by_what_says_most_first() -> None:
    asked = [line.split()[3] for line in first_script().splitlines() if line.startswith("imgfetch")]
    assert asked == [
        f"v1/boot/${{net${{nic}}/mac:hexhyp}}/boot.ipxe{WHO}",
        f"ipxe/${{uuid}}{WHO}",
        f"ipxe/serial/${{serial:uristring}}{WHO}",
        f"unknown.ipxe{WHO}&mac=${{netX/mac:hexhyp}}",
    ]
