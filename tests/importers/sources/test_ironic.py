"""The import of Ironic: boot mode, Secure Boot, kernel arguments and the certificate check of the BMC."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gitboot.importers.fleet_files import render_fleet
from gitboot.importers.inventory import ExtraData, ImportedInventory
from gitboot.importers.sources.ironic import read_ironic
from gitboot.model.server import Firmware
from tests.importers.test_fleet_files import INITRD, KERNEL, UUID


def read_node(**fields: Any) -> ImportedInventory:
    node = {"uuid": UUID, "name": "web01", "driver": "redfish", "provision_state": "available", **fields}
    return read_ironic({"nodes.json": json.dumps([node])})


@pytest.mark.parametrize(
    ("fields", "firmware", "secure_boot"),
    [
        ({"Boot Mode": "uefi", "Secure Boot": True}, Firmware.UEFI, True),
        ({"boot_mode": "bios", "secure_boot": False}, Firmware.BIOS, None),
        ({"boot_mode": "bios", "properties": {"capabilities": "boot_mode:uefi"}}, Firmware.UEFI, None),
        ({"boot_mode": None, "secure_boot": None}, None, None),
    ],
)
def test_the_boot_mode_that_ironic_has_read_is_imported(
    fields: dict[str, Any], firmware: Firmware | None, secure_boot: bool | None
) -> None:
    (machine,) = read_node(**fields).machines
    assert (machine.firmware, machine.secure_boot) == (firmware, secure_boot)


@pytest.mark.parametrize(
    ("value", "verify", "reason"),
    [
        *((value, False, "") for value in (False, "False", "no", "off", "0")),
        *((value, True, "") for value in (None, True, "true", "1")),
        ("/etc/ironic/CA.pem", True, "the certificate authority /etc/ironic/CA.pem of the BMC was left out"),
    ],
)
def test_the_certificate_check_of_a_bmc_is_that_of_ironic(value: Any, verify: bool, reason: str) -> None:
    (machine,) = read_node(driver_info={"redfish_address": "10.9.0.13", "redfish_verify_ca": value}).machines
    assert machine.bmc is not None and machine.bmc.verify is verify
    assert any(reason in each.text for each in machine.remarks)


@pytest.mark.parametrize(
    ("own", "of_driver", "arguments", "is_complete"),
    [
        ("a=1", "b=2", ("a=1",), True),
        (None, "b=2", ("b=2",), True),
        ("a=1 %default% c", None, ("a=1", "c"), False),
        (None, None, (), False),
        ("", "b=2", (), True),
    ],
)
def test_the_arguments_of_a_node_come_from_the_instance_or_from_the_driver(
    own: str | None, of_driver: str | None, arguments: tuple[str, ...], is_complete: bool
) -> None:
    info = {"kernel": KERNEL, "ramdisk": INITRD, "kernel_append_params": own}
    (boot,) = read_node(instance_info=info, driver_info={"kernel_append_params": of_driver}).boots
    assert boot.arguments == arguments
    assert is_complete is not any("in Ironic's configuration was left out" in each.text for each in boot.remarks)


def test_a_system_without_a_path_is_in_the_report() -> None:
    info = {"redfish_address": "10.9.0.13", "redfish_system_id": "web01"}
    fleet = render_fleet(read_node(driver_info=info), ExtraData())
    (item,) = fleet.items
    assert any("the BMC's system web01 was left out" in each.text for each in item.remarks)


def test_nodes_without_the_last_page_are_in_the_report() -> None:
    node = {"uuid": UUID, "name": "web01", "driver": "redfish", "provision_state": "available"}
    first = {"nodes": [node], "next": "https://ironic.example.net/v1/nodes?marker=a"}
    pages = {"1.json": json.dumps(first), "2.json": json.dumps({"nodes": [{**node, "name": "web02", "uuid": "b"}]})}
    assert read_ironic(pages).remarks == ()
    del pages["2.json"]
    (remark,) = read_ironic(pages).remarks
    assert remark.text == "the source contains only some of the nodes: export them without a limit"
