"""The import of xCAT and Warewulf: which interface has the address of a node, and what it cannot boot."""

from __future__ import annotations

import pytest

from gitboot.importers.fleet_files import render_fleet
from gitboot.importers.inventory import ExtraData, ImportedBoot, ImportedInventory, ImportedMachine
from gitboot.importers.sources.hpc_clusters import read_warewulf, read_xcat
from tests.importers.test_fleet_files import UUID

A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"


def xcat(mac: str, arch: str = "x86_64") -> str:
    return f"web01:\n    objtype=node\n    arch={arch}\n    ip=10.0.0.13\n    uuid={UUID}\n    mac={mac}\n"


@pytest.mark.parametrize(
    ("mac", "addresses"),
    [
        (f"{A}!*NOIP*|{B}", ((), ("10.0.0.13",))),
        (f"{A}|{B}!*NOIP*", (("10.0.0.13",), ())),
        (f"{A}!web01-eth1|{B}!web01", ((), ("10.0.0.13",))),
        (f"{A}!web01.example.net|{B}!*NOIP*", (("10.0.0.13",), ())),
        (f"{A}!*NOIP*|{B}!*NOIP*", ((), ())),
        (f"{A}!web01|{B}!web01", (("10.0.0.13",), ("10.0.0.13",))),  # a bond, of which the fleet keeps the first
    ],
)
def test_finding_p11_the_address_of_a_node_is_that_of_its_own_name(
    mac: str, addresses: tuple[tuple[str, ...], ...]
) -> None:
    (machine,) = read_xcat({"x": xcat(mac)}).machines
    assert tuple(nic.addresses for nic in machine.nics) == addresses
    texts = [each.text for each in machine.remarks]
    assert any(addresses) or any("the address 10.0.0.13 was left out, because no interface" in text for text in texts)


def test_xcat_reads_a_value_without_its_quotes() -> None:
    text = f'web01:\n    objtype=node\n    mac="{A}"\n    bmc = "10.9.0.13"\n    mgt="ipmi"\n    serial=" 4J8VM72 "\n'
    (machine,) = read_xcat({"x": text}).machines
    assert machine.bmc is not None
    assert ([nic.mac for nic in machine.nics], machine.bmc.address, machine.serial) == (
        [A.replace(":", "-")],
        "ipmi://10.9.0.13",
        "4J8VM72",
    )


def test_a_node_of_warewulf_keeps_its_ipv6_address_and_the_port_of_its_bmc() -> None:
    text = f"""\
nodeprofiles: {{default: {{ipmi: {{port: "6230"}}}}}}
nodes:
  web01:
    profiles: [default]
    ipmi: {{ipaddr: "fd00::13"}}
    network devices: {{default: {{hwaddr: "{A}", ipaddr: 10.0.0.13, ipaddr6: "2001:db8::13/64"}}}}
"""
    (machine,) = read_warewulf({"nodes.conf": text}).machines
    assert machine.bmc is not None and machine.bmc.address == "ipmi://[fd00::13]:6230"
    assert [nic.addresses for nic in machine.nics] == [("10.0.0.13", "2001:db8::13/64")]


@pytest.mark.parametrize(
    ("names", "port"),
    [("[a]", "1"), ("[a, b]", "2"), ("[b, a]", "1"), ("[nested]", "2"), ("[a, b, not-b]", "1"), ("[loop]", "1")],
)
def test_the_last_profile_of_a_node_of_warewulf_counts(names: str, port: str) -> None:
    """The profiles of a profile come before it, and ~b removes the profile b."""
    text = f"""\
nodeprofiles:
  a: {{ipmi: {{port: "1"}}, network devices: {{default: {{netmask: 255.255.0.0, device: eno1}}}}}}
  b: {{ipmi: {{port: "2"}}}}
  nested: {{profiles: [a, b]}}
  not-b: {{profiles: ["~b"]}}
  loop: {{profiles: [loop, a]}}
nodes:
  web01:
    profiles: {names}
    ipmi: {{ipaddr: 10.9.0.13}}
    network devices: {{default: {{hwaddr: "{A}", ipaddr: 10.0.0.13}}}}
"""
    (machine,) = read_warewulf({"nodes.conf": text}).machines
    assert machine.bmc is not None and machine.bmc.address == f"ipmi://10.9.0.13:{port}"
    (nic,) = machine.nics
    assert (nic.name, nic.addresses) == ("eno1", ("10.0.0.13/16",))


@pytest.mark.parametrize("arch", ["ppc64le", "s390x", "ppc64"])
def test_finding_p11_another_architecture_never_becomes_x86_64(arch: str) -> None:
    fleet = render_fleet(read_xcat({"x": xcat(A, arch)}), ExtraData())
    (text,) = fleet.files.values()
    assert set(fleet.files) == {"pending/servers/web01.yaml"}
    assert f"architecture: {arch}" in text and "architecture: x86_64" not in text
    assert f"missing: gitboot supports only x86_64 and aarch64, not the architecture {arch}" in text


def test_finding_p11_a_device_of_warewulf_with_a_multicast_address_is_named() -> None:
    text = "nodes: {web01: {network devices: {default: {hwaddr: '01:00:5e:00:00:01'}}}}"
    (machine,) = read_warewulf({"nodes.conf": text}).machines
    assert any("network device default: MAC address 01:00:5e:00:00:01" in each.text for each in machine.remarks)


@pytest.mark.parametrize(("arch", "found"), [("ppc64le", "ppc64le"), ("aarch64", "aarch64"), (None, "x86_64")])
def test_finding_p11_a_machine_without_an_architecture_has_that_of_its_boot(arch: str | None, found: str) -> None:
    boot = ImportedBoot(name="b", kernel="http://x/k", architecture=arch)
    machine = ImportedMachine(name="web01", boot="b")
    fleet = render_fleet(ImportedInventory(machines=(machine,), boots=(boot,)), ExtraData())
    assert f"architecture: {found}\n" in fleet.files["pending/servers/web01.yaml"]
