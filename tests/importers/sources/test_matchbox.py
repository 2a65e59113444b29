"""The import of matchbox: groups without a selector, from files and from a Terraform state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gitboot.errors import UsageError
from gitboot.importers.inventory import ImportedInventory
from gitboot.importers.sources.matchbox import read_matchbox, read_terraform
from tests.importers.test_fleet_files import INITRD, KERNEL, MAC, UUID

PROFILES: list[dict[str, Any]] = [
    {"id": name, "boot": {"kernel": f"{KERNEL}-{name}", "initrd": [INITRD]}} for name in ("install", "disk")
]
MAC_2, UUID_2 = "52:54:00:12:34:57", "4c4c4544-0034-4a10-8056-b9c04f4d3733"
DEFAULT = {"id": "default", "profile": "install"}
INSTALLED = {"id": "web01", "profile": "disk", "selector": {"mac": MAC, "os": "installed"}}


def read_files(*groups: dict[str, Any]) -> ImportedInventory:
    files = {f"groups/{group['id']}.json": json.dumps(group) for group in groups}
    return read_matchbox(files | {f"profiles/{each['id']}.json": json.dumps(each) for each in PROFILES})


def read_state(*groups: dict[str, Any]) -> ImportedInventory:
    profiles = [{"name": each["id"], **each["boot"]} for each in PROFILES]
    resources = [
        {
            "mode": "managed",
            "type": kind,
            "name": "r",
            "instances": [
                {"index_key": str(each.get("id")), "attributes": {"name": each.get("id"), **each}} for each in found
            ],
        }
        for kind, found in (("matchbox_group", groups), ("matchbox_profile", profiles))
    ]
    return read_terraform({"terraform.tfstate": json.dumps({"version": 4, "resources": resources})})


@pytest.mark.parametrize("read_groups", [read_files, read_state])
@pytest.mark.parametrize(
    ("groups", "boot"),
    [
        ([INSTALLED, DEFAULT], "install"),  # matchbox first serves the group without a selector
        ([INSTALLED, {**DEFAULT, "selector": {}}], "install"),
        ([INSTALLED], "disk"),
        (
            [INSTALLED, DEFAULT, {"id": "z", "profile": "disk", "selector": {"mac": MAC.upper().replace(":", "-")}}],
            "disk",
        ),
        (
            [{"id": "web01", "profile": "install", "selector": {"mac": MAC}}, DEFAULT, INSTALLED | {"id": "z"}],
            "install",
        ),
        # iPXE also sends the architecture, the domain and the host name
        (
            [{"id": "a", "profile": "disk", "selector": {"mac": MAC, "arch": "x86_64", "hostname": "a"}}, DEFAULT],
            "disk",
        ),
    ],
)
def test_finding_i2_a_machine_boots_the_group_that_matchbox_uses_first(
    groups: list[dict[str, Any]], boot: str, read_groups: Any
) -> None:
    inventory = read_groups(*groups)
    (machine,) = inventory.machines
    assert (machine.boot, {each.name for each in inventory.boots}) == (boot, {"install", "disk"})


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        ({"mac": MAC}, "because matchbox uses group a first (the group boots profile disk)"),
        (
            {"mac": MAC, "serial": "S1"},
            "because group a has the same selectors, and matchbox does not define which of them it uses (the group "
            "boots profile disk)",
        ),
        ({"mac": MAC, "os": "x"}, "because a provisioned server boots from its disk (the group boots profile disk if"),
    ],
)
def test_each_other_group_of_a_machine_has_its_reason(selector: dict[str, str], reason: str) -> None:
    first = {"id": "a", "profile": "install", "selector": {"mac": MAC.upper(), "serial": "S1"}}
    (machine,) = read_files(first, {"id": "b", "profile": "disk", "selector": selector}).machines
    assert machine.boot == "install"
    assert any(f"group b was left out, {reason}" in each.text for each in machine.remarks), machine.remarks


def test_a_profile_has_the_name_of_its_file() -> None:
    """A copy of a profile often keeps the ID of the original."""
    files = {
        "groups/web01.json": json.dumps({"id": "web01", "profile": "new", "selector": {"mac": MAC}}),
        "profiles/install.json": json.dumps(PROFILES[0]),
        "profiles/new.json": json.dumps({**PROFILES[0], "boot": {"kernel": f"{KERNEL}-new"}}),
    }
    inventory = read_matchbox(files)
    assert {boot.name: boot.kernel for boot in inventory.boots} == {
        "install": f"{KERNEL}-install",
        "new": f"{KERNEL}-new",
    }
    assert [machine.boot for machine in inventory.machines] == ["new"]


def test_a_deposed_instance_of_terraform_is_not_imported() -> None:
    group = {"name": "web01", "profile": "disk", "selector": {"mac": MAC}}
    instances = [
        {"deposed": "3c2f1ab0", "attributes": {**group, "profile": "install"}},
        {"attributes": group},
    ]
    resource = {"mode": "managed", "type": "matchbox_group", "name": "web01", "instances": instances}
    inventory = read_terraform({"terraform.tfstate": json.dumps({"version": 4, "resources": [resource]})})
    assert [(each.name, each.boot, len(each.remarks)) for each in inventory.machines] == [("web01", "disk", 1)]


def test_the_group_of_another_interface_has_its_reason() -> None:
    groups = [
        {"id": "a", "profile": "disk", "selector": {"mac": MAC, "uuid": UUID}},
        {"id": "b", "profile": "install", "selector": {"mac": MAC_2, "uuid": UUID}},
    ]
    (machine,) = read_files(*groups).machines
    assert machine.boot == "install"
    assert any(
        f"only if the machine boots from {MAC} (the group boots profile disk)" in each.text for each in machine.remarks
    )


def test_of_two_groups_with_as_many_selectors_matchbox_uses_the_last_by_their_text() -> None:
    groups = [
        {"id": "a", "profile": "disk", "selector": {"mac": MAC, "serial": "S1"}},
        {"id": "b", "profile": "install", "selector": {"mac": MAC, "uuid": UUID}},
    ]
    for given in (groups, groups[::-1]):
        (machine,) = read_files(*given).machines
        assert (machine.name, machine.uuid, machine.boot) == ("b", UUID, "install")


@pytest.mark.parametrize(
    ("selectors", "boots"),  # the boot of each machine, by its MAC addresses, UUID and serial number
    [
        ([{"uuid": UUID}, {"mac": MAC, "uuid": UUID, "os": "installed"}], {f"{MAC} {UUID}": "install"}),
        ([{"serial": "S1-7"}, {"mac": MAC, "serial": "S1-7", "os": "x"}], {f"{MAC} S1-7": "install"}),
        ([{"uuid": UUID.upper()}, {"mac": MAC, "uuid": UUID}], {f"{MAC} {UUID}": "disk"}),
        ([{"mac": MAC_2, "uuid": UUID}, {"mac": MAC, "uuid": UUID}], {f"{MAC} {MAC_2} {UUID}": "install"}),
        ([{"mac": MAC}, {"uuid": UUID}], {MAC: "install", UUID: "disk"}),
        (
            [{"mac": MAC, "uuid": UUID}, {"mac": MAC, "uuid": UUID_2}],
            {f"{MAC} {UUID}": "install", f"{MAC} {UUID_2}": "disk"},
        ),
        (
            [{"mac": MAC, "serial": "0123456789"}, {"mac": MAC_2, "serial": "0123456789"}],
            {f"{MAC} 0123456789": "install", f"{MAC_2} 0123456789": "disk"},
        ),
    ],
)
def test_groups_with_a_common_identity_are_one_machine_and_others_are_not(
    selectors: list[dict[str, str]], boots: dict[str, str]
) -> None:
    groups = [
        {"id": profile, "profile": profile, "selector": selector}
        for profile, selector in zip(("install", "disk"), selectors, strict=True)
    ]
    found = {}
    for machine in read_files(*groups).machines:
        macs = [nic.mac.replace("-", ":") for nic in machine.nics]
        found[" ".join(filter(None, (*sorted(macs), machine.uuid, machine.serial)))] = machine.boot
    assert found == boots


def test_no_machine_is_lost_if_the_identities_of_groups_contradict_each_other() -> None:
    selectors = ({"uuid": UUID, "serial": "S1-7"}, {"uuid": UUID, "serial": "S2-7"}, {"uuid": UUID_2, "serial": "S1-7"})
    groups = [{"id": str(number), "profile": "disk", "selector": each} for number, each in enumerate(selectors)]
    machines = read_files(*groups).machines
    assert sorted((str(each.uuid), str(each.serial)) for each in machines) == sorted(
        (each["uuid"], each["serial"]) for each in selectors
    )


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (DEFAULT, "group default has no selector, so it boots profile install"),
        (
            {"id": "os", "profile": "disk", "selector": {"os": "installed"}},
            "or serial number (it boots profile disk if os=installed)",
        ),
        (
            {"id": "gone", "profile": "gone", "selector": {"os": "x"}},
            "group gone boots profile gone, which is not in the source",
        ),
        (
            {"id": "a", "profile": "disk", "selector": {"mac": "01:00:5e:00:00:01"}},
            "the MAC address 01:00:5e:00:00:01 was left out, because the value is a multicast address",
        ),
    ],
)
def test_finding_i2_each_group_without_a_machine_has_its_reason(group: dict[str, Any], reason: str) -> None:
    inventory = read_files(group)
    remarks = [*inventory.remarks, *(each for machine in inventory.machines for each in machine.remarks)]
    assert any(reason in each.text for each in remarks), remarks


def test_finding_i4_a_state_of_terraform_keeps_ignition_and_names_the_rest() -> None:
    profile = {"name": "p", "kernel": KERNEL, "raw_ignition": '{"ignition": {"version": "3.3.0"}}', "args": None}
    other = {"name": "q", "kernel": KERNEL, "container_linux_config": "passwd: {}", "generic_config": "x"}
    resources = [{"type": "matchbox_profile", "instances": [{"attributes": each} for each in (profile, other)]}]
    first, second = read_terraform({"s": json.dumps({"version": 4, "resources": resources})}).boots
    assert first.data is not None and first.data.format == "Ignition/3.3"
    texts = [each.text for each in second.remarks]
    assert any("q.yaml.tmpl is not Ignition" in text for text in texts) and any(
        "generic_id q" in text for text in texts
    )


def test_finding_i4_an_old_state_and_a_broken_one_are_named() -> None:
    (remark,) = read_terraform({"s.tfstate": json.dumps({"version": 3, "modules": [{"resources": {}}]})}).remarks
    assert "because the state version is 3, not 4" in remark.text
    with pytest.raises(UsageError, match=r"s\.tfstate is not JSON: line 1"):
        read_terraform({"s.tfstate": "{"})
