"""The import of OpenCHAMI's boot-service, which chooses parameters by a score, and of BSS."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from gitboot.importers.sources.hpc_clusters import read_openchami
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.instance_with_bmcs import run_command
from tests.importers.test_fleet_files import INITRD, KERNEL, MAC, UUID, make_known_options, run_import

NODES: Final = [
    {
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"xname": name, "nid": nid, "bootMac": mac, "role": "Compute", "groups": groups, "hostname": f"h{nid}"},
    }
    for name, nid, mac, groups in (
        ("x0c0s0b0n0", 1, MAC, ["gpu"]),
        ("x0c0s1b0n0", 2, "52:54:00:00:00:02", []),
        ("x0c0s2b0n0", 3, "01:00:5e:00:00:03", []),
    )
]


ROLES: Final = {"a": "Compute", "b": "Compute", "c": "Management"}


def config(name: str, priority: int = 0, **more: Any) -> dict[str, Any]:
    spec = {"kernel": f"{KERNEL}-{name}", "initrd": INITRD, "params": "quiet", "priority": priority, **more}
    return {"kind": "BootConfiguration", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("configs", "kernels"),
    [
        ([config("a", macs=[MAC.upper()]), config("b", hosts=["x0c0s0b0n0"])], ("a", None)),
        ([config("a", hosts=["*"]), config("b", nids=[2])], ("a", "b")),
        ([config("a", groups=["gpu"]), config("b")], ("a", "b")),
        ([config("a", 1), config("b", 9)], ("b", "b")),
        ([config("b"), config("a")], ("a", "a")),
        ([config("a", hosts=["h1"], groups=["gpu"]), config("b", hosts=["x0c0s0b0n0"])], ("a", None)),
        ([config("a", hosts=["x0c0s*"])], (None, None)),
    ],
)
def test_finding_i2_boot_service_yields_the_boot_that_it_serves(
    configs: list[dict[str, Any]], kernels: tuple[str | None, ...]
) -> None:
    inventory = read_openchami({"c.json": json.dumps(configs), "n.json": json.dumps(NODES)})
    by_name = {boot.name: str(boot.kernel) for boot in inventory.boots}
    first, second, third = inventory.machines
    found = tuple(by_name[each.boot].rpartition("-")[2] if each.boot else None for each in (first, second))
    assert found == kernels
    assert all(each.boot or any("the boot" in one.text for one in each.remarks) for each in inventory.machines)
    assert any(
        "01:00:5e:00:00:03 was left out, because the value is a multicast address" in each.text
        for each in third.remarks
    )
    assert not any(machine.name == "x0c0s*" for machine in inventory.machines)


@pytest.mark.parametrize(
    "files",
    [
        {"p.json": json.dumps({"boot-parameters": [{"hosts": ["x0c0s0b0n0"], "kernel": KERNEL, "initrd": INITRD}]})},
        {"c.yaml": f"kind: BootConfiguration\nmetadata: {{name: a}}\nspec: {{macs: ['{MAC}'], kernel: '{KERNEL}'}}\n"},
    ],
)
def test_finding_i2_the_answers_and_manifests_of_boot_service_are_read(files: dict[str, str]) -> None:
    inventory = read_openchami(files)
    (machine,), (boot,) = inventory.machines, inventory.boots
    assert (machine.boot, boot.kernel) == (boot.name, KERNEL)


def test_finding_i2_each_node_of_state_management_is_imported_also_without_parameters() -> None:
    rows = {
        "p.json": json.dumps([{"hosts": ["Default"], "kernel": KERNEL}]),
        "s.json": json.dumps({"Components": [{"ID": "a", "NID": 1}, {"ID": "b", "NID": 2}]}),
        "i.json": json.dumps([{"MACAddress": MAC, "ComponentID": "a"}, {"MACAddress": "52:54:00:00:00:02"}]),
    }
    inventory = read_openchami(rows)
    assert {machine.name: machine.boot for machine in inventory.machines} == dict.fromkeys(
        "ab", inventory.boots[0].name
    )
    assert any(
        "EthernetInterface 52:54:00:00:00:02 was left out, because the interface does not belong to a component"
        in each.text
        for each in inventory.remarks
    )
    inventory = read_openchami(rows | {"p.json": "[]"})
    assert all(any("the boot" in each.text for each in machine.remarks) for machine in inventory.machines)


@pytest.mark.parametrize(
    "components", [[{"ID": "x0c0s0b0n0", "Type": "Node"}, {"ID": "x0c0s0b0", "Type": "NodeBMC"}], []]
)
def test_a_node_without_a_number_or_a_component_keeps_its_interfaces(components: list[dict[str, str]]) -> None:
    interface = {"ID": "525400123456", "MACAddress": MAC, "ComponentID": "x0c0s0b0n0", "Type": "Node"}
    files = {
        "p.json": [{"hosts": ["x0c0s0b0n0"], "macs": [MAC], "kernel": KERNEL}],
        "s.json": {"Components": components},
        "i.json": [interface],
    }
    (machine,) = read_openchami({name: json.dumps(document) for name, document in files.items()}).machines
    assert (machine.name, [nic.mac for nic in machine.nics]) == ("x0c0s0b0n0", [MAC.replace(":", "-")])


def test_parameters_for_a_role_come_after_those_of_a_node_and_before_the_default() -> None:
    """The hosts of BSS may be roles. Those of boot-service may not."""
    parameters = [{"hosts": [host], "kernel": f"{KERNEL}-{host}"} for host in ("Default", "Compute", "b")]
    nodes = [{"ID": name, "NID": nid, "Role": role} for nid, (name, role) in enumerate(ROLES.items(), 1)]
    components = json.dumps({"Components": nodes})
    inventory = read_openchami({"p.json": json.dumps(parameters), "s.json": components})
    kernels = {boot.name: str(boot.kernel).rpartition("-")[2] for boot in inventory.boots}
    found = {machine.name: kernels[machine.boot or ""] for machine in inventory.machines}
    assert found == {"a": "Compute", "b": "b", "c": "Default"}
    configs = json.dumps([config("a", hosts=["Compute"]), config("b")])
    inventory = read_openchami({"c.json": configs, "s.json": components})
    kernels = {boot.name: str(boot.kernel).rpartition("-")[2] for boot in inventory.boots}
    assert {machine.name: kernels[machine.boot or ""] for machine in inventory.machines} == dict.fromkeys(ROLES, "b")


def test_a_role_that_no_node_has_is_not_a_node() -> None:
    for role in ("Compute", "Service", "System", "Application", "Storage", "Management"):
        components = {"Components": [{"ID": "x0c0s0b0n0", "NID": 1, "Role": "Other"}]}
        parameters = [{"hosts": [role], "kernel": KERNEL}]
        inventory = read_openchami({"p.json": json.dumps(parameters), "s.json": json.dumps(components)})
        assert [machine.name for machine in inventory.machines] == ["x0c0s0b0n0"]
        assert any(f"the parameters for {role} are not specific to one node" in each.text for each in inventory.remarks)


def test_finding_i2_boot_service_is_compared_without_its_legacy_api(tmp_path: Any) -> None:
    files = {"p.json": json.dumps([{"macs": [MAC], "kernel": KERNEL, "initrd": INITRD, "params": "quiet"}])}
    fleet = run_import(tmp_path, "openchami", *make_known_options(tmp_path), files=files)
    asks = ("compare-old-system", fleet, "--as", "openchami", "-o", "json", "--old")
    script = f"#!ipxe\nset kernel {KERNEL}\nset initrd {INITRD}\nkernel ${{kernel}} quiet\ninitrd ${{initrd}}\nboot\n"
    failed = "#!ipxe\n# Error iPXE Boot Script\necho Boot script generation failed\nhalt\n"
    with artifact_server() as old:
        for text, code, verdict in ((script, 0, "equal"), (failed, 2, "missing")):
            old.put(f"/bootscript?mac={MAC}", text.encode())
            done = run_command(*asks, old.url)
            assert (done.code, done.json["items"][0]["verdict"]) == (code, verdict), done
    assert UUID in (fleet / "servers" / f"node-{MAC.replace(':', '-')}.yaml").read_text()
