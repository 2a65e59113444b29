"""The import of MAAS, Foreman and NetBox: interfaces, bonds, and a boot or the reason why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gitboot.importers.fleet_files import render_fleet
from gitboot.importers.inventory import ExtraData, ImportedInventory
from gitboot.importers.sources.asset_databases import read_foreman, read_maas, read_netbox
from gitboot.model.scalars import SystemUuid
from tests.importers.test_fleet_files import MAC, UUID

A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"


def list_remarks(inventory: ImportedInventory) -> list[str]:
    of_machines = (each.text for machine in inventory.machines for each in machine.remarks)
    return [*(each.text for each in inventory.remarks), *of_machines]


def machine(**more: Any) -> dict[str, Any]:
    return {"system_id": "4y3h7n", "hostname": "web01", "architecture": "amd64/generic", "power_type": "manual", **more}


def nic(name: str, mac: str, kind: str = "physical", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "mac_address": mac, "links": [], **more}


LINK = {"ip_address": "10.0.0.13", "subnet": {"cidr": "10.0.0.0/24"}}


def test_finding_i4_each_interface_of_a_bond_of_maas_has_its_address_and_a_vlan_is_named() -> None:
    interfaces = [
        nic("eno1", A),
        nic("eno2", B),
        nic("bond0", A, "bond", parents=["eno1", "eno2"], links=[LINK]),
        nic("bond0.5", A, "vlan", parents=["bond0"], links=[{**LINK, "ip_address": "10.5.0.13"}]),
        nic("ib0", "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01"),
    ]
    boot = nic("eno1", A, discovered=[])
    inventory = read_maas({"m.json": json.dumps([machine(interface_set=interfaces, boot_interface=boot)])})
    (found,) = inventory.machines
    assert [(each.name, each.addresses, each.boot) for each in found.nics] == [
        ("eno1", ("10.0.0.13/24",), True),
        ("eno2", ("10.0.0.13/24",), False),
    ]
    texts = list_remarks(inventory)
    assert any("vlan bond0.5 with 10.5.0.13/24" in text for text in texts)
    assert any("interface ib0: MAC address 80:00" in text for text in texts)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (machine(), "MAAS has not deployed a system"),
        (machine(osystem="ubuntu", distro_series="noble"), "because MAAS deploys ubuntu/noble with curtin"),
        (machine(power_type="ipmi"), "the BMC's address (ipmi): put the output of `maas PROFILE machines power"),
        (machine(hardware_uuid="00000000-0000-0000-0000-000000000000"), "the UUID 00000000-"),
        (machine(node_type=1, node_type_name="Device"), "web01 is not a machine: Device"),
        (machine(tag_names=["rack-a"]), "tag rack-a"),
    ],
)
def test_finding_i4_what_maas_has_no_place_for_is_in_the_report(row: dict[str, Any], reason: str) -> None:
    texts = list_remarks(read_maas({"machines": json.dumps([row])}))
    assert any(reason in text for text in texts), texts


def test_finding_i4_another_architecture_of_maas_stays_pending() -> None:
    row = machine(architecture="ppc64el/generic", hardware_uuid=UUID, interface_set=[nic("eno1", MAC)])
    fleet = render_fleet(read_maas({"m": json.dumps([row])}), ExtraData())
    assert set(fleet.files) == {"pending/servers/web01.yaml"}
    assert "architecture: ppc64el" in fleet.files["pending/servers/web01.yaml"]


def host(**more: Any) -> dict[str, Any]:
    plain = {"operatingsystem_id": 1, "operatingsystem_name": "OS", "medium_id": 1, "medium_name": "M", "managed": True}
    return {"name": "web01.example.net", "mac": A, "architecture_name": "x86_64", **plain, **more}


def import_foreman(row: dict[str, Any], **system: Any) -> ImportedInventory:
    found = {"id": 1, "name": "OS", "major": "9", "minor": "4", "family": "Redhat", "release_name": None, **system}
    medium = {"id": 1, "name": "M", "path": "http://m.example.net/$major/$release/$arch/"}
    files = {"h.json": {"results": [row]}, "o.json": {"results": [found]}, "m.json": {"results": [medium]}}
    return read_foreman({name: json.dumps(each) for name, each in files.items()})


@pytest.mark.parametrize(
    ("architecture", "system", "kernel"),
    [
        ("x86_64", {}, "http://m.example.net/9//x86_64/images/pxeboot/vmlinuz"),
        (
            "x86_64",
            {"family": "Debian", "name": "Debian", "major": "12", "release_name": "bookworm"},
            "http://m.example.net/12/bookworm/amd64/dists/bookworm/main/installer-amd64/current/images/netboot/"
            "debian-installer/amd64/linux",
        ),
        (
            "aarch64",
            {"family": "Debian", "name": "Ubuntu", "major": "22.04", "minor": "4", "release_name": "jammy"},
            "http://m.example.net/22.04/jammy/arm64/casper/vmlinuz",
        ),
        ("x86_64", {"family": "Suse", "major": "15"}, "http://m.example.net/15//x86_64/boot/x86_64/loader/linux"),
    ],
)
def test_finding_i4_a_host_of_foreman_boots_the_files_of_its_medium(
    architecture: str, system: dict[str, Any], kernel: str
) -> None:
    inventory = import_foreman(host(architecture_name=architecture), **system)
    (found,), (boot,) = inventory.machines, inventory.boots
    assert (found.boot, boot.kernel, boot.architecture) == (boot.name, kernel, architecture)


@pytest.mark.parametrize(
    ("row", "system", "reason"),
    [
        (host(managed=False), {}, "the boot was not imported, because Foreman does not manage the host"),
        (host(provision_method="image"), {}, "because the provision method is image"),
        (
            host(medium_id=9),
            {},
            "the boot of OS from medium M is incomplete: put the responses from /api/v2/media",
        ),
        (host(operatingsystem_name=None), {}, "the boot was not imported, because the host has no operating system"),
        (host(), {"family": "Windows"}, "the import does not support OS (family Windows)"),
        (host(), {}, "the other interfaces nor the BMC: export /api/v2/hosts/NAME"),
    ],
)
def test_finding_i4_a_host_of_foreman_without_a_boot_has_its_reason(
    row: dict[str, Any], system: dict[str, Any], reason: str
) -> None:
    texts = list_remarks(import_foreman(row, **system))
    assert any(reason in text for text in texts), texts


def test_finding_i4_each_interface_of_a_bond_of_foreman_has_its_address() -> None:
    interfaces = [
        {"type": "interface", "identifier": "eno1", "mac": A, "provision": True},
        {"type": "interface", "identifier": "eno2", "mac": B},
        {"type": "bond", "identifier": "bond0", "mac": A, "ip": "10.0.0.13", "attached_devices": "eno1,eno2"},
        {"type": "interface", "identifier": "bond0.5", "mac": A, "ip": "10.5.0.13", "virtual": True},
        {"type": "bmc", "ip": "10.9.0.13", "provider": "SSH"},
    ]
    inventory = import_foreman(host(interfaces=interfaces))
    (found,) = inventory.machines
    assert [(each.name, each.addresses, each.boot) for each in found.nics] == [
        ("eno1", ("10.0.0.13",), True),
        ("eno2", ("10.0.0.13",), False),
    ]
    texts = list_remarks(inventory)
    assert any("interface bond0.5 with 10.5.0.13 was left out, because it is virtual" in text for text in texts)
    assert any("the BMC 10.9.0.13 (SSH)" in text for text in texts)


def test_another_uuid_in_the_list_of_uuids_is_in_the_report() -> None:
    other = UUID[:-1] + "9"
    inventory = read_maas({"m.json": json.dumps([machine(hardware_uuid=UUID, interface_set=[nic("eno1", A)])])})
    fleet = render_fleet(inventory, ExtraData(uuids={A.replace(":", "-"): SystemUuid(other)}))
    (text,) = fleet.files.values()
    assert f"uuid: {UUID}" in text and f"{other} for this machine, and the import kept {UUID} from the source" in text


def test_the_first_of_two_bmcs_of_foreman_is_imported() -> None:
    interfaces = [{"type": "bmc", "provider": "IPMI", "ip": f"10.9.0.{at}"} for at in (1, 2)]
    inventory = read_foreman({"h.json": json.dumps({"name": "web01", "mac": A, "interfaces": interfaces})})
    (found,) = inventory.machines
    assert found.bmc is not None and found.bmc.address == "ipmi://10.9.0.1"
    assert any("the BMC ipmi://10.9.0.2 was left out" in text for text in list_remarks(inventory))


def test_finding_p11_netbox_lists_a_device_without_a_name_and_reads_lists_of_mac_addresses() -> None:
    devices = [
        {"id": 1, "name": "web01", "device_type": {}},
        {"id": 2, "name": None, "display": "Dell", "device_type": {}},
    ]
    interfaces = [
        {"id": 1, "name": "lag0", "device": {"id": 1}, "type": {"value": "lag"}, "mac_address": None},
        {
            "id": 2,
            "name": "eno1",
            "device": {"id": 1},
            "lag": {"id": 1},
            "mac_address": None,
            "mac_addresses": [{"id": 5, "mac_address": A}],
        },
        {"id": 3, "name": "eno2", "device": {"id": 1}, "lag": {"id": 1}, "mac_address": B},
    ]
    addresses = [{"address": "10.0.0.13/24", "assigned_object_id": 1}]
    inventory = read_netbox(
        {f"{at}.json": json.dumps(each) for at, each in enumerate((devices, interfaces, addresses))}
    )
    (found,) = inventory.machines
    shared = ("10.0.0.13/24",)
    assert [(each.name, each.addresses) for each in found.nics] == [("eno1", shared), ("eno2", shared)]
    assert (
        list_remarks(inventory)[0] == "device Dell was left out, because it has no name: name the device in the source"
    )


def test_netbox_gives_an_interface_only_its_own_addresses() -> None:
    """The IDs of interfaces, VM interfaces and FHRP groups are independent of each other."""
    devices = [{"id": 1, "name": "web01", "device_type": {}}]
    interfaces = [{"id": 1, "name": "eno1", "device": {"id": 1}, "mac_address": A}]
    addresses = [
        {"address": f"10.0.0.{at}/24", "assigned_object_type": kind, "assigned_object_id": 1}
        for at, kind in enumerate(("dcim.interface", "virtualization.vminterface", "ipam.fhrpgroup"), 1)
    ]
    inventory = read_netbox(
        {f"{at}.json": json.dumps(each) for at, each in enumerate((devices, interfaces, addresses))}
    )
    assert [nic.addresses for machine in inventory.machines for nic in machine.nics] == [("10.0.0.1/24",)]


def test_each_address_of_a_device_of_netbox_is_on_an_interface_or_in_the_report() -> None:
    rows = [
        {"id": 7, "name": "web01", "device_type": {"id": 1}, "device_role": {"slug": "web"}},
        {"id": 1, "name": "br0", "device": {"id": 7}, "type": {"value": "bridge"}, "mac_address": None},
        {"id": 2, "name": "eno1", "device": {"id": 7}, "bridge": {"id": 1}, "mac_address": A},
        {"id": 3, "name": "eno1.5", "device": {"id": 7}, "type": {"value": "virtual"}, "mac_address": None},
        {"id": 4, "name": "eno1", "device": {"id": 8}, "mac_address": B},
        # NetBox also accepts a physical interface as a bridge
        {"id": 5, "name": "eno5", "device": {"id": 7}, "type": {"value": "1000base-t"}, "mac_address": B},
        {"id": 6, "name": "eno6", "device": {"id": 7}, "bridge": {"id": 5}, "mac_address": None},
        *({"id": at, "address": f"10.0.0.{at}/24", "assigned_object_id": at} for at in (1, 2, 3, 4)),
    ]
    inventory = read_netbox({"n.json": json.dumps(rows)})
    (found,) = inventory.machines
    assert [(nic.name, nic.addresses) for nic in found.nics] == [
        ("eno1", ("10.0.0.2/24", "10.0.0.1/24")),
        ("eno5", ()),
    ]
    assert found.labels == {"role": "web"}  # NetBox before 3.6
    texts = list_remarks(inventory)
    assert "interface eno1.5 with 10.0.0.3/24 was left out, because its MAC address is unknown" in texts
    assert "the interfaces of 1 device were left out, because the devices are not in the source" in texts


@pytest.mark.parametrize(
    ("read", "total", "row"),
    [
        (read_netbox, "count", {"name": "web01", "device_type": {"id": 1}}),
        (read_foreman, "subtotal", {"name": "web01", "mac": A}),
    ],
)
def test_a_list_without_all_its_pages_is_in_the_report(read: Any, total: str, row: dict[str, Any]) -> None:
    """NetBox returns 50 objects, and Foreman returns 20 hosts, unless the request contains a limit."""
    pages = [{total: 5, "results": [{"id": f"{page}{at}", **row} for at in range(2)]} for page in range(3)]
    for kept, text in ((1, "0.json contains only 2 of 5 objects: export the whole list"), (3, None)):
        files = {f"{at}.json": json.dumps(page) for at, page in enumerate(pages[:kept])}
        assert [each.text for each in read(files).remarks] == ([text] if text else [])


@pytest.mark.parametrize(
    ("device", "interface"),
    [
        ({"oob_ip": {"id": 3, "address": "10.9.0.13/24"}}, {}),
        ({}, {"name": "iDRAC", "mgmt_only": True, "mac_address": B}),
        ({"oob_ip": {"id": 3, "address": "10.9.0.13/24"}}, {"name": "iDRAC", "mgmt_only": True, "mac_address": B}),
    ],
)
def test_a_bmc_of_netbox_is_in_the_report(device: dict[str, Any], interface: dict[str, Any]) -> None:
    rows = [
        {"id": 7, "name": "web01", "device_type": {"id": 1}, **device},
        {"id": 9, "name": "eno1", "device": {"id": 7}, "mac_address": A},
        {"id": 10, "name": "eno2", "device": {"id": 7}, "mac_address": None, **interface},
        {"address": "10.9.0.13/24", "assigned_object_id": 10},
    ]
    inventory = read_netbox({"n.json": json.dumps(rows)})
    (found,) = inventory.machines
    assert [nic.name for nic in found.nics] == ["eno1"]
    texts = [text for text in list_remarks(inventory) if "10.9.0.13" in text]
    assert texts == [
        "the BMC at 10.9.0.13 was left out, because the source does not contain its protocol: add the BMC by hand"
    ]


@pytest.mark.parametrize(
    "interface",
    [
        {"type": "bond", "identifier": "bond0", "attached_devices": ["eno1"]},
        {"type": "bridge", "identifier": "br0", "attached_devices": "eno1, eno3"},
        {"type": "interface", "identifier": "eno1.5", "virtual": True, "attached_to": "eno1"},
    ],
)
def test_a_host_of_foreman_boots_from_the_interfaces_below_its_provisioning_interface(
    interface: dict[str, Any],
) -> None:
    nics = [{"type": "interface", "identifier": name, "mac": mac} for name, mac in (("eno1", A), ("eno2", B))]
    row = host(interfaces=[{"mac": A, "ip": "10.0.0.13", "provision": True, **interface}, *nics])
    (found,) = read_foreman({"h.json": json.dumps(row)}).machines
    assert [(nic.name, nic.boot) for nic in found.nics] == [("eno1", True), ("eno2", False)]


@pytest.mark.parametrize("mac", [None, "", "01:00:5e:00:00:01"])
def test_an_interface_of_maas_without_a_valid_mac_address_reports_its_ip_address_once(mac: str | None) -> None:
    row = nic("eno2", A, links=[LINK]) | {"mac_address": mac}
    texts = list_remarks(
        read_maas({"m.json": json.dumps([machine(interface_set=[nic("eno1", A), row], boot_interface=row)])})
    )
    assert sum("10.0.0.13/24 was left out" in text for text in texts) == 1, texts


def test_an_interface_of_nautobot_2_has_the_addresses_that_are_assigned_to_it() -> None:
    rows = [
        {"id": "d", "name": "web01", "device_type": {"id": "t"}},
        {"id": "i", "name": "eno1", "device": {"id": "d"}, "mac_address": A},
        {"id": "a", "address": "192.0.2.1/24"},
        {"id": "b", "address": "192.0.2.2/24"},
        {"id": "x", "ip_address": {"id": "a"}, "interface": {"id": "i"}, "vm_interface": None},
        {"id": "y", "ip_address": {"id": "b"}, "interface": None, "vm_interface": {"id": "v"}},
    ]
    (found,) = read_netbox({"n.json": json.dumps(rows)}).machines
    assert [each.addresses for each in found.nics] == [("192.0.2.1/24",)]
