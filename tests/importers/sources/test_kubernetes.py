"""The import of Tinkerbell and Metal3: each machine has a boot or the reason why it has none."""

from __future__ import annotations

import json

import pytest

from gitboot.importers.sources.kubernetes import read_inventory
from tests.importers.test_fleet_files import INITRD, KERNEL, MAC

V1 = """\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {{name: web01}}
spec:
  interfaces:
    - dhcp: {{mac: "{mac}"}}
      netboot: {netboot}
"""
V2 = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {{name: web01}}
spec:
  instance:
    userdata: "#cloud-config"
    osie: {osie}
  networkInterfaces:
    "{mac}": {{netboot: {netboot}}}
"""
SCRIPT = f'{{ipxe: {{%s: "#!ipxe\\nkernel {KERNEL} a=1\\ninitrd {INITRD}\\nboot\\n"}}}}'
PXELINUX = f'{{pxelinux: {{config: "LABEL l\\nKERNEL {KERNEL}\\nAPPEND initrd={INITRD} a=1\\n"}}}}'
OSIE = f'{{kernelURL: "{KERNEL}", initrdURL: "{INITRD}", kernelParams: [a=1]}}'


@pytest.mark.parametrize(
    ("address", "found"),
    [  # from access_test.go of Metal3
        ("192.168.122.1", "ipmi://192.168.122.1"),
        ("192.168.122.1:6233", "ipmi://192.168.122.1:6233"),
        ("my.favoritebmc.com", "ipmi://my.favoritebmc.com"),
        ("[fe80::fc33:62ff:fe83:8a76]:6233", "ipmi://[fe80::fc33:62ff:fe83:8a76]:6233"),
        ("ipmi:192.168.122.1:6233", "ipmi://192.168.122.1:6233"),
        ("ipmi://192.168.122.1?privilegelevel=OPERATOR", "ipmi://192.168.122.1"),
        ("redfish:192.168.122.1", "https://192.168.122.1"),
        ("redfish://[fe80::fc33:62ff:fe83:8a76]:8080/foo", "https://[fe80::fc33:62ff:fe83:8a76]:8080/foo"),
        ("redfish+http://192.168.122.1/foo/bar", "http://192.168.122.1/foo/bar"),
        ("idrac-virtualmedia://192.168.122.1/redfish/v1/Systems/1", "https://192.168.122.1/redfish/v1/Systems/1"),
        ("redfish+https://192.168.122.1/", "https://192.168.122.1"),
        ("redfish-uefihttp+https://192.168.122.1/redfish/v1", "https://192.168.122.1"),
        ("redfish-virtualmedia://192.168.122.1/redfish/v1/", "https://192.168.122.1"),
        ("ILO5-Redfish://192.168.122.1", "https://192.168.122.1"),
        ("libvirt://192.168.122.1:6233/", "ipmi://192.168.122.1:6233"),
        ("unknown:192.168.122.1", None),
    ],
)
def test_an_address_of_a_bmc_is_read_as_metal3_reads_it(address: str, found: str | None) -> None:
    host = {"kind": "BareMetalHost", "metadata": {"name": "web01"}, "spec": {"bmc": {"address": address}}}
    (machine,) = read_inventory({"h.yaml": json.dumps(host)}).machines
    assert (f"{machine.bmc.address}{machine.bmc.system or ''}" if machine.bmc else None) == found
    assert ("privilegelevel=OPERATOR" in address) is any("privilegelevel" in each.text for each in machine.remarks)


@pytest.mark.parametrize(
    ("options", "address", "reason"),
    [
        ("{redfish: {port: 8443}}", "https://10.9.0.13:8443", ""),
        (
            "{redfish: {systemName: node-2}}",
            "https://10.9.0.13",
            "the name of the BMC's system, node-2: write its path",
        ),
        ("{preferredOrder: [ipmitool], ipmitool: {port: 623}}", "https://10.9.0.13", "so the import wrote Redfish"),
        ("{intelAMT: {port: 16992}}", None, "the BMC 10.9.0.13 was left out, because Tinkerbell uses intelAMT"),
        ("{rpc: {consumerURL: 'https://x'}}", None, "the BMC 10.9.0.13 was left out, because Tinkerbell uses rpc"),
    ],
)
@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_an_option_of_a_bmc_of_tinkerbell_is_kept_or_in_the_report(
    version: str, options: str, address: str | None, reason: str
) -> None:
    connection = f"connection: {{host: 10.9.0.13, providerOptions: {options}}}"
    text = (
        f"apiVersion: tinkerbell.org/v1alpha2\nkind: Hardware\nmetadata: {{name: a}}\nspec: {{bmc: {{{connection}}}}}\n"
    )
    if version == "v1alpha1":
        text = "kind: Hardware\nmetadata: {name: a}\nspec: {bmcRef: {name: b}}\n---\n"
        text += f"kind: Machine\nmetadata: {{name: b}}\nspec: {{{connection}}}\n"
    (machine,) = read_inventory({"h.yaml": text}).machines
    assert (machine.bmc.address if machine.bmc else None) == address
    assert any(reason in each.text for each in machine.remarks), machine.remarks


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(V1.format(mac=MAC, netboot=SCRIPT % "contents"), id="v1alpha1, a script"),
        pytest.param(V1.format(mac=MAC, netboot=PXELINUX), id="v1alpha1, PXELINUX"),
        pytest.param(
            V1.format(
                mac=MAC,
                netboot='{osie: {baseURL: "http://old.example.net/os/", kernel: vmlinuz-1.2, initrd: initrd.img, '
                "kernelParams: [a=1]}}",
            ),
            id="v1alpha1, OSIE",
        ),
        pytest.param(V2.format(mac=MAC, netboot="{}", osie=OSIE), id="v1alpha2, OSIE"),
        pytest.param(V2.format(mac=MAC, netboot=SCRIPT % "script", osie="{}"), id="v1alpha2, a script"),
        pytest.param(V2.format(mac=MAC, netboot=PXELINUX, osie="{}"), id="v1alpha2, PXELINUX"),
    ],
)
def test_finding_i2_a_kernel_of_tinkerbell_becomes_a_boot_however_it_is_written(text: str) -> None:
    inventory = read_inventory({"h.yaml": text})
    (machine,), (boot,) = inventory.machines, inventory.boots
    assert (machine.boot, boot.kernel, boot.initrds, boot.arguments) == (boot.name, KERNEL, (INITRD,), ("a=1",))


@pytest.mark.parametrize(
    ("version", "platform", "kernel"),
    [
        (V1, "arch: x86_64, uefi: true, ", "efi-x86_64"),
        (V1, "arch: aarch64, uefi: true, ", "efi-arm64"),
        (V1, "uefi: false, ", "bios-i386"),
        (V1, "", "efi-x86_64"),
        (V2, "arch: aarch64", "efi-arm64"),
        (V2, "bmc: {bootMode: BIOS}", "bios-i386"),
    ],
)
def test_a_condition_in_a_script_of_tinkerbell_is_that_of_the_machine(version: str, platform: str, kernel: str) -> None:
    script = "iseq ${platform} efi && set firmware efi || set firmware bios\\nkernel http://x/${firmware}-${buildarch}"
    text = version.format(mac=MAC, netboot=f'{{ipxe: {{contents: "{script}", script: "{script}"}}}}', osie="{}")
    text = (
        text.replace("mac: ", f"{platform}mac: ")
        if version is V1
        else text.replace("spec:\n", f"spec:\n  {platform}\n")
    )
    (boot,) = read_inventory({"h.yaml": text}).boots
    assert boot.kernel == f"http://x/{kernel}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (V2.format(mac=MAC, netboot="{}", osie="{}"), "because the machine boots Smee's default OSIE"),
        (
            V2.format(mac=MAC, netboot="{}", osie='{isoURL: "http://x/hook.iso"}'),
            "because the machine boots http://x/hook.iso",
        ),
        (
            V1.format(mac=MAC, netboot='{ipxe: {url: "https://x/"}}'),
            "because the import does not fetch the iPXE script at https://x/",
        ),
        (
            V2.format(mac=MAC, netboot='{ipxe: {script: "#!ipxe\\nchain http://x/y\\n"}}', osie="{}"),
            "because the iPXE script chains to http://x/y",
        ),
        (
            V2.format(mac="01:00:5e:00:00:01", netboot="{}", osie="{}"),
            "01:00:5e:00:00:01 was left out, because the value is a multicast address, which cannot belong to an "
            "interface",
        ),
        (
            "kind: Hardware\nmetadata: {name: a}\nspec: {bmcRef: {name: a}}\n---\n"
            "apiVersion: cluster.x-k8s.io/v1beta1\nkind: Machine\nmetadata: {name: a}\nspec: {clusterName: c}\n",
            "the BMC was not imported, because Machine a is not in the source",
        ),
        ("kind: Workflow\nmetadata: {name: w}\n", "the import does not read objects of kind Workflow: w"),
        (
            # As in Metal3's config/samples/metal3.io_v1alpha1_baremetalhost.yaml.
            "kind: BareMetalHost\nmetadata: {name: a}\nspec: {networkInterfaces: [{name: eno1}]}\n",
            "the MAC addresses: set bootMACAddress",
        ),
        (
            "kind: BareMetalHost\nmetadata: {name: a}\n",
            "because the host has no image, so Metal3 boots only Ironic's agent",
        ),
        (
            'kind: BareMetalHost\nmetadata: {name: a}\nspec: {image: {url: "http://x/l.iso", format: live-iso}}\n',
            "because the BMC mounts the ISO http://x/l.iso",
        ),
        (
            "kind: BareMetalHost\nmetadata: {name: a}\nspec: {bootMACAddress: 'ff:ff:ff:ff:ff:ff'}\n",
            "the boot MAC address ff:ff:ff:ff:ff:ff was left out, because the value is a multicast address",
        ),
        ("kind: HostClaim\nmetadata: {name: c}\n", "the import does not read objects of kind HostClaim: c"),
    ],
)
def test_finding_i2_what_has_no_boot_has_its_reason(text: str, reason: str) -> None:
    inventory = read_inventory({"h.yaml": text})
    remarks = [*inventory.remarks, *(each for machine in inventory.machines for each in machine.remarks)]
    assert inventory.boots == ()
    assert any(reason in each.text for each in remarks), remarks


def test_finding_i2_hosts_of_two_namespaces_stay_two_machines() -> None:
    text = "".join(
        f"---\nkind: BareMetalHost\nmetadata: {{name: web01, namespace: {space}}}\nspec: {{bootMACAddress: '{mac}'}}\n"
        for space, mac in (("a", "52:54:00:00:00:0a"), ("b", "52:54:00:00:00:0b"))
    )
    assert [machine.name for machine in read_inventory({"h.yaml": text}).machines] == ["a-web01", "b-web01"]


def test_finding_i2_interfaces_of_a_spec_are_interfaces() -> None:
    nics = f"[{{name: eno1, macAddress: '{MAC}'}}]"
    text = f"kind: BareMetalHost\nmetadata: {{name: a}}\nspec: {{networkInterfaces: {nics}}}\n"
    (machine,) = read_inventory({"h.yaml": text}).machines
    assert [(nic.name, nic.mac) for nic in machine.nics] == [("eno1", MAC.replace(":", "-"))]


@pytest.mark.parametrize("netboot", ["{}", "{allowPXE: false}", "{allowWorkflow: true}"])
def test_an_interface_of_tinkerbell_boots_only_with_allow_pxe(netboot: str) -> None:
    text = V1.format(mac=MAC, netboot="{allowPXE: true}")
    text += f'    - dhcp: {{mac: "52:54:00:00:00:02"}}\n      netboot: {netboot}\n'
    (machine,) = read_inventory({"h.yaml": text}).machines
    assert [nic.boot for nic in machine.nics] == [True, False]
