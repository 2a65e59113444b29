"""Identities that many machines show: no commit with one is accepted, and no machine is looked up by one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gitboot.errors import InvalidRepository, UsageError
from gitboot.importers.inventory import mac_of, uuids_of
from gitboot.importers.inventory import uuid_of as uuid_of_import
from gitboot.model.scalars import (
    MacAddress,
    SystemUuid,
    is_placeholder_mac,
    is_placeholder_serial,
    is_placeholder_uuid,
    lookup_uuids,
    swapped,
)
from gitboot.publish.tree_reader import read_records
from gitboot.render.paths import asked_for
from gitboot.resolve.provisioning_record import Record, exported
from tests.controller.test_reconcile import fleet_files
from tests.helpers import running_instance as instance_module
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, decided, server, uuid_of
from tests.helpers.fleets import mac_of as server_mac
from tests.helpers.running_instance import Repository, eventually, running
from tests.scenarios.test_credential_files import until

AMI = "03000200-0400-0500-0006-000700080009"

# What firmware shows, by FreeBSD's hostid, by GLPI, and by the patterns that people type.
UUIDS = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "00000001-ffff-ffff-ffff-ffffffffffff",
    AMI,
    "00020003-0004-0005-0006-000700080009",
    "07090201-0103-0301-0807-060504030201",
    "11111111-1111-1111-1111-111111111111",
    "11111111-2222-3333-4444-555555555555",
    "4c4c4544-0000-2010-8020-80c04f202020",
    "4c4c4544-0000-0010-8000-80c04f000000",
    "58585858-5858-5858-5858-585858585858",
    "6ab5b300-538d-1014-9fb5-b0684d007b53",
    "890e2d14-cacd-45d1-ae66-bc80e8bfeb0f",
    "00010203-0405-0607-0809-0a0b0c0d0e0f",
    "01020304-0506-0708-090a-0b0c0d0e0f10",
    "00112233-4455-6677-8899-aabbccddeeff",
    "ffeeddcc-bbaa-9988-7766-554433221100",
    "0f0e0d0c-0b0a-0908-0706-050403020100",
    "01234567-89ab-cdef-0123-456789abcdef",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "12345678-1234-5678-1234-567812345678",
    "12345678-9012-3456-7890-123456789012",
    "deadbeef-dead-beef-dead-beefdeadbeef",
    "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    "00000000-0000-0000-0000-ffffffffffff",
    "20202020-2020-2020-2020-202020202020",
]
MACS = [
    "22:22:22:22:22:22",
    "aa:aa:aa:aa:aa:aa",
    "00:01:02:03:04:05",
    "00:11:22:33:44:55",
    "12:34:56:78:9a:bc",
    "aa:bb:cc:dd:ee:ff",
    "00:a0:c6:00:00:00",
    "0a:00:27:00:00:00",
    "20:41:53:59:4e:ff",
    "fe:ff:ff:ff:ff:ff",
]
SERIALS = ["To be filled by O.E.M.", "Default string", "None", "0000000000", "123456789", "System Serial Number"]


@for_each("uuid", UUIDS)
def test_finding_p2_a_uuid_that_many_machines_show_is_found_in_both_byte_orders(uuid: str) -> None:
    found = SystemUuid(uuid)
    assert is_placeholder_uuid(found) and is_placeholder_uuid(swapped(found))
    assert lookup_uuids(found) == ()


@for_each(
    "uuid",
    [
        "4c4c4544-0034-4a10-8056-b9c04f4d3732",
        "00000000-0000-0000-0000-ac1f6b000001",  # Supermicro: zeros, and the MAC address
        "30303030-3030-3030-3030-ac1f6bf0e1d2",
        "35373438-3136-5a43-3239-303050385859",  # HPE: the part number and the serial number as text
        "9b2f1c00-7d5e-11e9-8000-0cc47a123456",
        "ec2a1b3c-0000-1000-8000-001122334455",
    ],
)
def test_a_uuid_of_one_machine_is_no_placeholder(uuid: str) -> None:
    assert not is_placeholder_uuid(SystemUuid(uuid))


@for_each("mac", MACS)
def test_a_mac_address_that_many_machines_show(mac: str) -> None:
    assert is_placeholder_mac(MacAddress(mac.replace(":", "-")))


@for_each(
    "mac", ["52-54-00-12-34-56", "02-00-00-00-00-00", "00-50-56-c0-00-00", "ac-1f-6b-00-00-00", "00-00-5e-00-53-01"]
)
def test_a_mac_address_of_one_machine_is_no_placeholder(mac: str) -> None:
    assert not is_placeholder_mac(MacAddress(mac))


@for_each(
    "serial", ["CZ12345ABC", "BCDFGHJ", "4J8VM72", "MXQ72407TY", "A.40-866_X", "VMware-56 4d 0a 1b", "S348084X0B19876"]
)
def test_a_serial_number_of_one_machine_is_no_placeholder(serial: str) -> None:
    assert not is_placeholder_serial(serial)


# Documents


OWN_UUID, OWN_MAC = f"uuid: {uuid_of('web01')}", f'"{server_mac("web01")}"'
REPORTS = "bmc: {{address: 'https://10.1.0.1', credentials: a, reports: {{{}: {!r}}}}}"


def web01(field: str, value: str) -> str:
    match field:
        case "uuid":
            return server("web01", "role: web").replace(OWN_UUID, f"uuid: {value}")
        case "mac":
            return server("web01", "role: web").replace(OWN_MAC, repr(value))
        case "reports.uuid" | "reports.serial":
            return server("web01", "role: web", REPORTS.format(field.removeprefix("reports."), value))
    return server("web01", "role: web", f"{field}: {value!r}")


REFUSED = [
    *(("uuid", value) for value in (*UUIDS, AMI.upper(), "00000000-0000-8000-8000-525400000001")),
    *(("replaces", value) for value in UUIDS[3:6]),
    *(("reports.uuid", value) for value in UUIDS),
    *((field, value) for field in ("serial", "reports.serial") for value in SERIALS),
    *(("mac", value) for value in (*MACS, "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01")),
]


@for_each(("field", "value"), REFUSED)
def test_finding_p2_a_document_with_an_identity_that_many_machines_show_is_refused(field: str, value: str) -> None:
    with pytest.raises(InvalidRepository) as caught:
        decided(SEED[0], web01(field, value), *SEED[2:])
    [problem] = caught.value.problems
    assert problem.code in ("GB2024", "GB1034", "GB1033"), problem
    assert problem.hint and (problem.path, problem.line) == ("001.yaml", 4)
    assert value.lower().replace("-", ":") in problem.message.lower().replace("-", ":") or "zeros" in problem.message


# Imports, records, requests


@for_each("uuid", UUIDS)
def test_finding_p2_no_import_takes_a_uuid_that_many_machines_show(uuid: str) -> None:
    assert uuid_of_import(uuid) is None
    with pytest.raises(UsageError, match=r"uuids\.txt:1: "):
        uuids_of(f"web01 {uuid}\n", "uuids.txt")


@for_each("mac", MACS)
def test_no_import_takes_a_mac_address_that_many_machines_show(mac: str) -> None:
    assert mac_of(mac) is None


def test_finding_p2_records_of_a_uuid_that_many_machines_show_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_bytes(exported({SystemUuid(AMI): Record(provision=1)}))
    with pytest.raises(UsageError, match=f"{file}: a record is of the UUID {AMI}, which identifies no machine"):
        read_records(file)


@for_each(
    "path",
    [
        *(f"ipxe/{uuid}" for uuid in UUIDS),
        f"ipxe/{AMI.upper()}",
        f"nocloud/{AMI}/user-data",
        f"ignition/{AMI}",
        f"grub/grub.cfg-{AMI}",
        "ipxe/serial/None",
        "ipxe/serial/0123456789",
        "v1/boot/00-11-22-33-44-55/boot.ipxe",
    ],
)
def test_finding_p2_no_path_looks_up_an_identity_that_many_machines_show(path: str) -> None:
    assert list(asked_for(path)) == []


# An instance

# An earlier version, which accepted such a commit and published it.
_EARLIER = """
import sys
from gitboot.controller import commit_judgement
from gitboot.model.scalars import byte_orders
from gitboot.render import emulated_apis, grub, ipxe, server_files, user_data_files
commit_judgement.check_acceptable = lambda *_: None
for module in (emulated_apis, grub, ipxe, server_files, user_data_files):
    module.lookup_uuids = byte_orders
from gitboot.cli.main import program
program()
"""


@pytest.mark.parametrize("order", [AMI, swapped(SystemUuid(AMI))])
def test_finding_p2_an_instance_goes_on_with_a_commit_that_an_earlier_version_accepted_and_serves_nobody_by_the_uuid(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.create(tmp_path / "git")
    files = fleet_files()
    (name,) = [path for path, text in files.items() if "kind: Server" in text]
    accepted = repository.push(files | {name: files[name].replace(OWN_UUID, f"uuid: {AMI}")})
    tree = tmp_path / "output/boot"
    by_mac = f"/v1/boot/{server_mac('web01').replace(':', '-')}/boot.ipxe"

    def earlier(arguments: Sequence[str], environment: Mapping[str, str], *, errors: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen((sys.executable, "-c", _EARLIER, *arguments), env=environment, stderr=errors)

    with monkeypatch.context() as patched:
        patched.setattr(instance_module, "Command", earlier)
        with running(repository.bare, tmp_path, "--poll", "1", records="fresh") as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == accepted)
            assert (tree / f"ipxe/{order}").exists()
    with running(repository.bare, tmp_path, "--poll", "1") as instance:
        found = until(instance, "IdentitiesUnique", status=False)
        assert found["reason"] == "Placeholder" and AMI in found["message"] and name in found["message"]
        assert "gitboot validate" in found["remedy"]
        eventually(lambda: not (tree / f"ipxe/{order}").exists())
        assert instance.status()["applied"]["commit"] == accepted
        script = instance.get(by_mac)
        assert script.status_code == 200 and "flatcar" in script.text, "by its MAC address it boots as before"
        for path in (f"/ipxe/{order}", f"/ipxe/{order.upper()}", f"/grub/grub.cfg-{order}"):
            assert instance.get(path).status_code == 404, path
        repository.push({"README.md": "A commit that keeps the UUID.\n"})
        assert "GB2024" in until(instance, "CommitAccepted", status=False)["message"]
        assert instance.status()["accepted"]["commit"] == accepted
        corrected = repository.push({name: files[name]})
        eventually(lambda: instance.status()["accepted"]["commit"] == corrected)
        found = until(instance, "RecordsKnown", status=False)
        assert found["reason"] == "UnknownServers", (
            "another UUID may be another machine: nothing is installed by itself"
        )
        assert "IdentitiesUnique" not in {each["type"] for each in instance.status()["conditions"]}
