"""`gitboot import`: the data of each system becomes a valid fleet that installs no server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from errno import ENOSPC
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitboot.cli.commands.import_fleet import SYSTEMS
from gitboot.files import write_output_file
from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.importers.fleet_files import render_fleet
from gitboot.importers.inventory import ExtraData, merge_rows, translate_ipxe_argument
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.install_attempts import make_first_records
from gitboot.resolve.plan_at_time import make_plan
from tests.helpers.cases import for_each, sample_cases
from tests.helpers.fleets import at
from tests.helpers.instance_with_bmcs import CommandResult, run_command

UUID = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
MAC = "52:54:00:12:34:56"
PASSWORD = "hunter2-Gx7q"  # in every source that can hold one; never in what is written
KERNEL, INITRD = "http://old.example.net/os/vmlinuz-1.2", "http://old.example.net/os/initrd.img"


def _json(value: Any) -> str:
    return json.dumps(value)


# Our own machines in the format of each system.
SOURCES: dict[str, dict[str, str]] = {
    "matchbox": {
        "groups/web01.json": _json(
            {
                "id": "web01",
                "profile": "flatcar",
                "selector": {"mac": MAC},
                "metadata": {"domain": "example.net", "admin_password": PASSWORD},
            }
        ),
        "groups/installed.json": _json(
            {"id": "web01-installed", "profile": "none", "selector": {"mac": MAC.upper(), "os": "installed"}}
        ),
        "groups/default.json": _json({"id": "default", "profile": "flatcar"}),
        "profiles/flatcar.json": _json(
            {
                "id": "flatcar",
                "boot": {
                    "kernel": KERNEL,
                    "initrd": [f"--name main {INITRD}"],
                    "args": [
                        "initrd=main",
                        "ignition.config.url=http://old.example.net/ignition?uuid=${uuid}&mac=${mac:hexhyp}",
                        "me=${hostname}",
                        "their=${asset}",
                        "kept={{braces}}",
                        f"inst.rootpw={PASSWORD}",
                    ],
                },
                "ignition_id": "flatcar.ign",
            }
        ),
        "ignition/flatcar.ign": '{"ignition": {"version": "3.3.0"}}',
    },
    "cobbler": {
        "distros/debian.json": _json(
            {"name": "debian", "arch": "x86_64", "remote_boot_kernel": KERNEL, "remote_boot_initrd": INITRD}
        ),
        "profiles/base.json": _json({"name": "base", "distro": "debian", "kernel_options": {"quiet": None}}),
        "profiles/web.json": _json(
            {
                "name": "web",
                "parent": "base",
                "distro": "<<inherit>>",
                "autoinstall": "<<inherit>>",
                "kernel_options": {"console": ["tty0", "ttyS0"], "password": PASSWORD},
            }
        ),
        "systems/web01.json": _json(
            {
                "name": "web01",
                "profile": "web",
                "kernel_options": "<<inherit>>",
                "interfaces": {
                    "eth0": {"mac_address": MAC, "ip_address": "10.0.0.13", "netmask": "255.255.255.0"},
                    "ilo": {"mac_address": "52:54:00:12:34:57", "interface_type": "BMC"},
                },
                "power_type": "redfish",
                "power_address": "10.9.0.13",
                "power_user": "root",
                "power_pass": PASSWORD,
            }
        ),
    },
    "terraform": {
        "terraform.tfstate": _json(
            {
                "version": 4,
                "terraform_version": "1.9.8",
                "resources": [
                    {
                        "mode": "managed",
                        "type": "matchbox_profile",
                        "name": "flatcar",
                        "instances": [
                            {
                                "schema_version": 0,
                                "attributes": {
                                    "id": "flatcar",
                                    "name": "flatcar",
                                    "kernel": KERNEL,
                                    "initrd": [INITRD],
                                    "args": ["quiet", f"inst.rootpw={PASSWORD}"],
                                    "raw_ignition": '{"ignition": {"version": "3.3.0"}}',
                                    "container_linux_config": None,
                                    "generic_config": None,
                                },
                            }
                        ],
                    },
                    {
                        "module": "module.rack",
                        "mode": "managed",
                        "type": "matchbox_group",
                        "name": "web",
                        "instances": [
                            {
                                "index_key": 0,
                                "attributes": {
                                    "id": "web01",
                                    "name": "web01",
                                    "profile": "flatcar",
                                    "selector": {"mac": MAC},
                                    "metadata": {"admin_password": PASSWORD},
                                },
                            }
                        ],
                    },
                ],
            }
        )
    },
    "foreman": {
        "hosts.json": _json(
            {
                "total": 1,
                "results": [
                    {
                        "id": 1,
                        "name": "web01",
                        "mac": MAC,
                        "ip": "10.0.0.13",
                        "architecture_name": "x86_64",
                        "operatingsystem_id": 3,
                        "operatingsystem_name": "AlmaLinux 9.4",
                        "medium_id": 7,
                        "medium_name": "Mirror",
                        "pxe_loader": "Grub2 UEFI",
                        "provision_method": "build",
                        "managed": True,
                    }
                ],
            }
        ),
        "web01.json": _json(
            {
                "id": 1,
                "name": "web01",
                "interfaces": [
                    {"type": "interface", "identifier": "eno1", "mac": MAC, "ip": "10.0.0.13", "provision": True},
                    {"type": "bmc", "ip": "10.9.0.13", "provider": "Redfish", "username": "root", "password": PASSWORD},
                ],
                "parameters": [
                    {"name": "kernelcmd", "value": f"quiet inst.rootpw={PASSWORD}"},
                    {"name": "root_pass", "value": PASSWORD},
                ],
            }
        ),
        "media.json": _json(
            {"results": [{"id": 7, "name": "Mirror", "path": "http://old.example.net/$version", "os_family": "Redhat"}]}
        ),
        "operatingsystems.json": _json(
            {"results": [{"id": 3, "name": "AlmaLinux", "major": "9", "minor": "4", "family": "Redhat"}]}
        ),
        "facts.json": _json({"results": {"web01": {"dmi::product::uuid": UUID}}}),
    },
    "maas": {
        "machines.json": _json(
            [
                {
                    "system_id": "4y3h7n",
                    "hostname": "web01",
                    "node_type": 0,
                    "hardware_uuid": UUID.upper(),
                    "hardware_info": {"system_serial": "4J8VM72"},
                    "architecture": "amd64/generic",
                    "bios_boot_method": "uefi",
                    "power_type": "redfish",
                    "osystem": "ubuntu",
                    "distro_series": "jammy",
                    "status_name": "Deployed",
                    "zone": {"name": "default"},
                    "boot_interface": {"name": "eno1", "type": "physical", "mac_address": MAC, "links": []},
                    "interface_set": [
                        {
                            "name": "eno1",
                            "type": "physical",
                            "mac_address": MAC,
                            "links": [{"ip_address": "10.0.0.13", "subnet": {"cidr": "10.0.0.0/24"}}],
                        }
                    ],
                }
            ]
        ),
        "power.json": _json(
            {"4y3h7n": {"power_address": "10.9.0.13", "power_user": "root", "power_pass": PASSWORD, "node_id": "1"}}
        ),
    },
    "openchami": {
        "bootparameters.json": _json(
            [
                {"hosts": ["x0c0s1b0n0"], "kernel": KERNEL, "initrd": INITRD, "params": f"quiet token={PASSWORD}"},
                {"hosts": ["Default"], "kernel": KERNEL, "initrd": INITRD, "params": "quiet"},
            ]
        ),
        "components.json": _json({"Components": [{"ID": "x0c0s1b0n0", "NID": 1, "Arch": "X86", "Role": "Compute"}]}),
        "interfaces.json": _json(
            [{"MACAddress": MAC, "ComponentID": "x0c0s1b0n0", "IPAddresses": [{"IPAddress": "10.0.0.13"}]}]
        ),
    },
    "tinkerbell": {
        "hardware.yaml": f"""\
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {{name: web01, labels: {{rack: r12}}}}
spec:
  userData: "password: {PASSWORD}"
  bmcRef: {{name: bmc01, kind: Machine}}
  interfaces:
    - dhcp: {{arch: x86_64, mac: {MAC}, uefi: true, ip: {{address: 10.0.0.13, netmask: 255.255.255.0}}}}
      netboot:
        allowPXE: true
        osie: {{baseURL: "http://old.example.net/os", kernel: vmlinuz-1.2, initrd: initrd.img}}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {{name: bmc01}}
spec: {{connection: {{host: 10.9.0.13, insecureTLS: true, authSecretRef: {{name: bmc01-auth}}}}}}
""",
    },
    "metal3": {
        "hosts.yaml": f"""\
apiVersion: v1
kind: Secret
metadata: {{name: web01-bmc}}
stringData: {{username: root, password: {PASSWORD}}}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {{name: web01}}
spec:
  bootMACAddress: {MAC}
  bootMode: legacy
  architecture: x86_64
  bmc:
    address: idrac-virtualmedia+https://root:{PASSWORD}@10.9.0.13/redfish/v1/Systems/System.Embedded.1
    credentialsName: web01-bmc
    disableCertificateVerification: true
  image: {{url: "http://old.example.net/disk.qcow2", checksum: "http://old.example.net/disk.md5"}}
status:
  hardware:
    systemVendor: {{serialNumber: 4J8VM72}}
    nics: [{{name: eno1, mac: "{MAC}", ip: 10.0.0.13}}, {{name: eno2, mac: "52:54:00:12:34:57"}}]
""",
    },
    "boot-operator": {
        "objects.yaml": f"""\
kind: Server
metadata: {{name: web01}}
spec: {{systemUUID: {UUID}, bmcRef: {{name: bmc01}}}}
status: {{networkInterfaces: [{{name: eno1, macAddress: "{MAC}", ip: 10.0.0.13}}]}}
---
kind: BMC
metadata: {{name: bmc01}}
spec: {{endpointRef: {{name: e01}}, bmcSecretRef: {{name: bmc01}}, protocol: {{name: Redfish, port: 8443}}}}
---
kind: Endpoint
metadata: {{name: e01}}
spec: {{ip: 10.9.0.13, macAddress: "52:54:00:12:34:57"}}
---
kind: IPXEBootConfig
metadata: {{name: web01}}
spec: {{systemUUID: {UUID.upper()}, kernelURL: old.example.net/os/vmlinuz-1.2, initrdURL: "{INITRD}"}}
""",
    },
    "ironic": {
        "nodes.json": _json(
            [
                {
                    "UUID": "1be26c0b-03f2-4d2e-ae87-c02d7f33c123",
                    "Name": "web01",
                    "Driver": "redfish",
                    "Driver Info": {
                        "redfish_address": "https://10.9.0.13",
                        "redfish_system_id": "/redfish/v1/Systems/1",
                        "redfish_username": "root",
                        "redfish_password": PASSWORD,
                    },
                    "Properties": {"cpu_arch": "x86_64", "capabilities": "boot_mode:bios,profile:compute"},
                    "Instance Info": {
                        "kernel": KERNEL,
                        "ramdisk": INITRD,
                        "kernel_append_params": f"quiet secret={PASSWORD}",
                    },
                }
            ]
        ),
        "ports.json": _json(
            [
                {
                    "UUID": "p",
                    "Address": MAC,
                    "Node UUID": "1be26c0b-03f2-4d2e-ae87-c02d7f33c123",
                    "PXE boot enabled": True,
                }
            ]
        ),
    },
    "netbox": {
        "devices.json": _json(
            {
                "results": [
                    {
                        "id": 7,
                        "name": "web01",
                        "device_type": {"id": 1},
                        "serial": "4J8VM72",
                        "site": {"slug": "fra1"},
                        "custom_fields": {"uuid": UUID},
                    }
                ]
            }
        ),
        "interfaces.json": _json({"results": [{"id": 9, "name": "eno1", "device": {"id": 7}, "mac_address": MAC}]}),
        "addresses.json": _json({"results": [{"address": "10.0.0.13/24", "assigned_object_id": 9}]}),
    },
    "xcat": {
        "nodes.stanza": f"web01:\n    objtype=node\n    arch=x86_64\n    mac={MAC}!web01\n    ip=10.0.0.13\n"
        f"    bmc=10.9.0.13\n    mgt=ipmi\n    bmcpassword={PASSWORD}\n    addkcmdline=quiet pw.password={PASSWORD}\n"
    },
    "warewulf": {
        "nodes.conf": "nodeprofiles:\n  default:\n    image name: rocky\n"
        f"    ipmi: {{ipaddr: 10.9.0.13, username: root, password: {PASSWORD}}}\n"
        f"nodes:\n  web01:\n    profiles: [default]\n    network devices:\n"
        f"      default: {{hwaddr: {MAC}, ipaddr: 10.0.0.13, netmask: 255.255.255.0}}\n"
    },
    "dnsmasq": {"hosts.conf": f"# comment\ndhcp-host={MAC},web01,10.0.0.13,12h\ndhcp-host=id:*,ignore\n"},
    "isc": {"dhcpd.conf": f"host web01 {{\n  hardware ethernet {MAC};\n  fixed-address 10.0.0.13;\n}}\n"},
    "kea": {
        "kea.conf": '{"Dhcp4": {"subnet4": [{"reservations": [ // here\n'
        f'{{"hw-address": "{MAC}", "ip-address": "10.0.0.13", "hostname": "web01"}}]}}]}}}}'
    },
}
# The same machine in other forms that the projects' own examples have.
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    # As in Kea's doc/examples/kea4/all-keys.json.
    "kea with a bare fraction": (
        "kea",
        {"k.json": SOURCES["kea"]["kea.conf"].replace('{"subnet4"', '{"t1-percent": .5, "user": "1, .5", "subnet4"')},
    ),
    # As in Tinkerbell's pkg/backend/file/testdata/example.yaml.
    "tinkerbell's list of a file": (
        "tinkerbell",
        {
            "file.yaml": f"- kind: Hardware\n  metadata: {{name: web01}}\n  spec:\n    interfaces:\n"
            f"    - dhcp: {{mac: '{MAC}', arch: x86_64, ip: {{address: 10.0.0.13, netmask: 255.255.255.0}}}}\n"
        },
    ),
    # As in Tinkerbell's docs/technical/v1alpha2/hardware.yaml.
    "tinkerbell v1alpha2": (
        "tinkerbell",
        {
            "hardware.yaml": f"""\
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {{name: web01}}
spec:
  arch: x86_64
  bmc: {{bootMode: UEFI, connection: {{host: 10.9.0.13, credentialsRef: {{name: bm-cred}}, insecureTLS: true}}}}
  instance:
    osie: {{kernelURL: "{KERNEL}", initrdURL: "{INITRD}", kernelParams: [console=ttyS2, "pw.password={PASSWORD}"]}}
    userdata: "password: {PASSWORD}"
    vars: {{secret: {PASSWORD}}}
  networkInterfaces:
    "{MAC}": {{ipam: {{ipv4: {{address: 10.0.0.13, prefix: "24"}}}}, netboot: {{disabled: false}}}}
""",
        },
    ),
    # As Cobbler 4 writes its collections: files by uid, references by uid, interfaces as items of their own.
    "cobbler 4": (
        "cobbler",
        {
            "distros/d1.json": _json({"uid": "d1", "name": "debian", "arch": "x86_64", "remote_boot_kernel": KERNEL}),
            "profiles/p1.json": _json({"uid": "p1", "name": "web", "distro": "d1", "parent": "", "autoinstall": ""}),
            "systems/s1.json": _json(
                {
                    "uid": "s1",
                    "name": "web01",
                    "profile": "p1",
                    "power": {"address": "10.9.0.13", "type": "redfish", "user": "root", "password": PASSWORD},
                }
            ),
            "network_interfaces/i1.json": _json(
                {
                    "uid": "i1",
                    "name": "eth0",
                    "system_uid": "s1",
                    "mac_address": MAC,
                    "interface_type": "na",
                    "ipv4": {"address": "10.0.0.13", "netmask": "255.255.255.0"},
                    "ipv6": {"address": "", "prefix": ""},
                }
            ),
        },
    ),
    # As `terraform show -json` prints a state.
    "terraform show": (
        "terraform",
        {
            "show.json": _json(
                {
                    "format_version": "1.0",
                    "values": {
                        "root_module": {
                            "child_modules": [
                                {
                                    "resources": [
                                        {
                                            "type": "matchbox_group",
                                            "values": {"name": "web01", "profile": "p", "selector": {"mac": MAC}},
                                        }
                                    ]
                                }
                            ]
                        }
                    },
                }
            )
        },
    ),
    # As in xCAT's xcatstanzafile(5).
    "xcat with defaults": (
        "xcat",
        {
            "x": "default-node:\n    arch=x86_64\n    ip=10.0.0.13\n"
            f"web01:\n    objtype=node\n    MAC={MAC.replace(':', '')}\n"
        },
    ),
}
NAMES = {"openchami": "x0c0s1b0n0"}  # web01 elsewhere
BOOTS = {"matchbox", "terraform", "cobbler", "foreman", "openchami", "tinkerbell", "boot-operator", "ironic"}
KERNELS = {"foreman": "http://old.example.net/9.4/images/pxeboot/vmlinuz"}  # KERNEL elsewhere
INITRDS = {"foreman": "http://old.example.net/9.4/images/pxeboot/initrd.img"}


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run_import(tmp_path: Path, system: str, *more: object, files: dict[str, str] | None = None) -> Path:
    source = write_files(tmp_path / "source", files or SOURCES[system])
    done = run_command("import", system, source, "--out", tmp_path / "fleet", *more)
    assert done.code == 0, done
    return tmp_path / "fleet"


def make_known_options(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "uuids").write_text(f"# MAC, UUID\n{MAC} {UUID}\n")
    (tmp_path / "sums").write_text(f"{'feed' * 16}  vmlinuz-1.2\n{'beef' * 16} *./os/initrd.img\n")
    with (tmp_path / "sums").open("a") as sums:
        sums.write(f"{'feed' * 16}  images/pxeboot/vmlinuz\n{'beef' * 16}  images/pxeboot/initrd.img\n")
    return "--uuids", tmp_path / "uuids", "--sums", tmp_path / "sums"


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def read_server_spec(fleet: Path, system: str) -> dict[str, Any]:
    text = (fleet / "servers" / f"{NAMES.get(system, 'web01')}.yaml").read_text()
    spec: dict[str, Any] = yaml.load(text, yaml.BaseLoader)["spec"]
    return spec


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def of(system: str) -> Path:
        folder = tmp_path_factory.mktemp(system)
        return run_import(folder, system, *make_known_options(folder))

    return of


@pytest.mark.parametrize("system", SOURCES)
def test_each_system_becomes_a_fleet_that_is_valid_and_installs_nothing(
    tmp_path: Path, system: str, fleets: Callable[[str], Path]
) -> None:
    fleet = shutil.copytree(fleets(system), tmp_path / "fleet")
    assert not (fleet / "pending").exists(), (fleet / "import-report.md").read_text()
    (decision,) = decide(load(open_snapshot(fleet, None))).servers.values()
    assert (decision.uuid, decision.lifecycle, decision.provision) == (UUID, "Parked", 0)
    assert "52-54-00-12-34-56" in decision.macs
    assert make_plan(decision, at("2026-12-01T00:00"), None) is None
    parked = next(fleet.glob("servers/*.yaml"))
    parked.write_text(parked.read_text().replace("  lifecycle: Parked\n", ""))
    settings = fleet / "fleet.yaml"
    settings.write_text(f"{settings.read_text()}  requirePolicy: false\n")
    (decision,) = decide(load(open_snapshot(fleet, None))).servers.values()
    assert (decision.policy is not None) == (system in BOOTS)
    for _, _, record in make_first_records([decision], {}, adopt_all=False):
        planned = make_plan(decision, at("2026-12-01T00:00"), record)
        assert planned is None or planned.boot is None, "no longer Parked, it boots its disk: nobody asked for more"
    if decision.policy is not None:
        assert decision.policy.boot is not None and decision.policy.boot.loaded_kernel.url == KERNELS.get(
            system, KERNEL
        )


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_a_source_give_the_same_documents(tmp_path: Path, form: str) -> None:
    system, files = FORMS[form]
    fleet = run_import(tmp_path, system, *make_known_options(tmp_path), files=files)
    spec = read_server_spec(fleet, system)
    assert (spec["uuid"], spec["architecture"], spec["interfaces"][0]["mac"]) == (UUID, "x86_64", MAC)
    if system != "terraform":
        assert spec["interfaces"][0]["addresses"][0].startswith("10.0.0.13")
    assert run_command("validate", fleet).code == 0
    assert not any(PASSWORD.encode() in content for content in read_files(fleet).values())
    if form == "tinkerbell v1alpha2":
        assert spec["bmc"] == {"address": "https://10.9.0.13", "credentials": "bm-cred", "tls": {"verify": "false"}}
        profile = yaml.safe_load((fleet / "profiles/web01.yaml").read_text())["spec"]
        assert profile["kernelArguments"] == ["console=ttyS2"]


def test_the_sources_contain_secrets_if_their_system_supports_them() -> None:
    with_none = {system for system, files in SOURCES.items() if PASSWORD not in "".join(files.values())}
    assert with_none == {"boot-operator", "netbox", "dnsmasq", "isc", "kea"}


BMCS: dict[str, dict[str, Any]] = {
    "cobbler": {"address": "https://10.9.0.13", "credentials": "web01-bmc"},
    "foreman": {"address": "https://10.9.0.13", "credentials": "web01-bmc"},
    "maas": {"address": "https://10.9.0.13", "system": "/redfish/v1/Systems/1", "credentials": "web01-bmc"},
    "tinkerbell": {"address": "https://10.9.0.13", "credentials": "bmc01-auth", "tls": {"verify": "false"}},
    "metal3": {
        "address": "https://10.9.0.13",
        "system": "/redfish/v1/Systems/System.Embedded.1",
        "credentials": "web01-bmc",
        "tls": {"verify": "false"},
    },
    "boot-operator": {"address": "https://10.9.0.13:8443", "credentials": "bmc01"},
    "xcat": {"address": "ipmi://10.9.0.13", "credentials": "web01-bmc"},
    "warewulf": {"address": "ipmi://10.9.0.13", "credentials": "web01-bmc"},
    "ironic": {"address": "https://10.9.0.13", "system": "/redfish/v1/Systems/1", "credentials": "web01-bmc"},
}


@pytest.mark.parametrize(
    ("system", "old", "new"),
    [
        ("cobbler", '"redfish"', '"ipmilan"'),
        (
            "metal3",
            f"idrac-virtualmedia+https://root:{PASSWORD}@10.9.0.13/redfish/v1/Systems/System.Embedded.1",
            f"ipmi://root:{PASSWORD}@10.9.0.13",
        ),
        ("ironic", '"redfish_address": "https://10.9.0.13"', '"ipmi_address": "10.9.0.13"'),
    ],
)
def test_a_bmc_without_redfish_is_kept_with_ipmi(tmp_path: Path, system: str, old: str, new: str) -> None:
    files = {name: text.replace(old, new) for name, text in SOURCES[system].items()}
    fleet = run_import(tmp_path, system, *make_known_options(tmp_path), files=files)
    assert read_server_spec(fleet, system)["bmc"] == {"address": "ipmi://10.9.0.13", "credentials": "web01-bmc"}
    assert PASSWORD not in "".join(path.read_text() for path in fleet.rglob("*") if path.is_file())
    assert run_command("validate", fleet).code == 0


@pytest.mark.parametrize("system", ["maas", "ironic", "netbox", "foreman"])
def test_a_machine_that_is_in_two_files_is_one_machine(
    tmp_path: Path, system: str, fleets: Callable[[str], Path]
) -> None:
    """A directory may contain an earlier export, or both a list and the details of one machine."""
    files = {f"{number}-{name}": text for name, text in SOURCES[system].items() for number in (1, 2)}
    fleet = run_import(tmp_path, system, *make_known_options(tmp_path), files=files)
    for folder in ("servers", "pending"):
        assert read_files(fleet / folder) == read_files(fleets(system) / folder)


def test_an_empty_value_of_a_later_file_does_not_replace_a_value() -> None:
    full: dict[str, Any] = {"id": 1, "name": "web01", "bmc": {"a": "b"}}
    empty: dict[str, Any] = {"id": 1, "name": None, "bmc": {}, "role": ""}
    assert merge_rows([full, empty], "id") == [{**full, "role": ""}]
    assert merge_rows([full, {"id": 1, "name": "web02"}, {"name": "web03"}], "id") == [
        {**full, "name": "web02"},
        {"name": "web03"},
    ]


@pytest.mark.parametrize("system", BMCS)
def test_an_ipv6_address_of_a_bmc_is_kept(tmp_path: Path, system: str) -> None:
    files = {name: text.replace("10.9.0.13", "fd00::13") for name, text in SOURCES[system].items()}
    fleet = run_import(tmp_path, system, *make_known_options(tmp_path), files=files)
    address = BMCS[system]["address"].replace("10.9.0.13", "[fd00::13]")
    assert read_server_spec(fleet, system)["bmc"] == {**BMCS[system], "address": address}


def test_a_port_follows_the_ipv6_address_of_a_bmc(tmp_path: Path) -> None:
    new = '"ipmi_address": "fd00::13", "ipmi_port": "624"'
    files = {
        name: text.replace('"redfish_address": "https://10.9.0.13"', new) for name, text in SOURCES["ironic"].items()
    }
    fleet = run_import(tmp_path, "ironic", *make_known_options(tmp_path), files=files)
    assert read_server_spec(fleet, "ironic")["bmc"]["address"] == "ipmi://[fd00::13]:624"


def test_a_malformed_address_of_a_bmc_is_reported(tmp_path: Path) -> None:
    files = {name: text.replace("@10.9.0.13/", "@[fd00::1/") for name, text in SOURCES["metal3"].items()}
    fleet = run_import(tmp_path, "metal3", *make_known_options(tmp_path), files=files)
    assert "bmc" not in read_server_spec(fleet, "metal3")
    report = (fleet / "import-report.md").read_text()
    assert "the BMC was left out, because its address is malformed: add the BMC by hand" in report


def test_a_malformed_url_of_a_kernel_is_reported(tmp_path: Path) -> None:
    files = {name: text.replace(KERNEL, "http://[img/vmlinuz") for name, text in SOURCES["openchami"].items()}
    fleet = run_import(tmp_path, "openchami", *make_known_options(tmp_path), files=files)
    assert "gitboot does not accept the URL http://[img/vmlinuz" in (fleet / "import-report.md").read_text()


ADDRESSES = {
    **dict.fromkeys(("cobbler", "maas", "tinkerbell", "warewulf", "netbox"), "10.0.0.13/24"),
    **dict.fromkeys(("foreman", "openchami", "metal3", "boot-operator", "xcat", "dnsmasq", "isc", "kea"), "10.0.0.13"),
}


FIRMWARES = {"metal3": "BIOS", "ironic": "BIOS", "tinkerbell": "UEFI", "foreman": "UEFI", "maas": "UEFI"}


@pytest.mark.parametrize("system", SOURCES)
def test_all_facts_of_a_machine_are_imported_except_secrets(system: str, fleets: Callable[[str], Path]) -> None:
    fleet = fleets(system)
    spec = read_server_spec(fleet, system)
    (nic,) = (each for each in spec["interfaces"] if each["mac"] == MAC)
    assert nic.get("addresses", []) == ([ADDRESSES[system]] if system in ADDRESSES else [])
    assert (spec.get("bmc"), spec["firmware"]) == (BMCS.get(system), FIRMWARES.get(system, "UEFI"))
    assert ("guessed**: the source does not contain the firmware" in (fleet / "import-report.md").read_text()) is (
        system not in FIRMWARES
    )
    assert [name for name, content in read_files(fleet).items() if PASSWORD.encode() in content] == []


TINKERBELL = "tinkerbell v1alpha2"


@pytest.mark.parametrize(
    ("system", "files", "old", "new"),
    [
        ("metal3", SOURCES["metal3"], "bootMode: legacy", "bootMode: UEFISecureBoot"),
        ("tinkerbell", FORMS[TINKERBELL][1], "bootMode: UEFI", "bootMode: UEFISecureBoot"),
        ("ironic", SOURCES["ironic"], "boot_mode:bios", "boot_mode:uefi,secure_boot:true"),
        ("foreman", SOURCES["foreman"], "Grub2 UEFI", "Grub2 UEFI SecureBoot"),
        ("foreman", SOURCES["foreman"], "Grub2 UEFI", "Grub2 UEFI HTTPS SecureBoot"),
    ],
)
def test_secure_boot_of_the_source_is_imported(
    tmp_path: Path, system: str, files: dict[str, str], old: str, new: str
) -> None:
    assert any(old in text for text in files.values())
    for turned_on in (False, True):
        changed = {name: text.replace(old, new) if turned_on else text for name, text in files.items()}
        folder = tmp_path / str(turned_on)
        folder.mkdir()
        spec = read_server_spec(run_import(folder, system, *make_known_options(folder), files=changed), system)
        assert spec.get("secureBoot") == ("true" if turned_on else None)
    assert spec["firmware"] == "UEFI"


OTHER = "52:54:00:12:34:99"  # of the second interface of a bond
BONDS = {
    "cobbler": {
        "systems/web01.json": _json(
            {
                "name": "web01",
                "profile": "web",
                "interfaces": {
                    "bond0": {"interface_type": "bond", "ip_address": "10.0.0.13", "netmask": "255.255.255.0"},
                    "eth0": {"mac_address": MAC, "interface_type": "bond_slave", "interface_master": "bond0"},
                    "eth1": {"mac_address": OTHER, "interface_type": "bond_slave", "interface_master": "bond0"},
                },
            }
        )
    },
    "netbox": {
        "interfaces.json": _json(
            [
                {"id": 8, "name": "bond0", "device": {"id": 7}, "mac_address": MAC},
                {"id": 9, "name": "eno1", "device": {"id": 7}, "mac_address": MAC, "lag": {"id": 8}},
                {"id": 10, "name": "eno2", "device": {"id": 7}, "mac_address": OTHER, "lag": {"id": 8}},
            ]
        ),
        "addresses.json": _json(
            [
                {"address": "10.0.0.13/24", "assigned_object_id": 8},
                {"address": "10.0.0.14/24", "assigned_object_id": None},
            ]
        ),
    },
    "dnsmasq": {"dnsmasq.conf": f"dhcp-host={MAC},{OTHER},set:bond,10.0.0.13,web01\n"},
    "kea": {
        "kea.json": _json(
            {
                "Dhcp4": {
                    "reservations": [
                        {"hw-address": mac, "ip-address": "10.0.0.13", "hostname": "web01"} for mac in (MAC, OTHER)
                    ]
                }
            }
        )
    },
}


@pytest.mark.parametrize("system", BONDS)
def test_finding_p12_each_interface_of_a_bond_is_imported_with_its_address(tmp_path: Path, system: str) -> None:
    fleet = run_import(tmp_path, system, *make_known_options(tmp_path), files={**SOURCES[system], **BONDS[system]})
    found = {each["mac"]: each.get("addresses") for each in read_server_spec(fleet, system)["interfaces"]}
    assert found == {mac: [ADDRESSES[system]] for mac in (MAC, OTHER)}
    assert run_command("validate", fleet).code == 0
    assert "bond0" not in (fleet / "import-report.md").read_text()


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("warewulf", "nodes: {web01: {network devices: {default: {ipaddr: 10.0.0.13}}}}"),
        (
            "tinkerbell",
            "kind: Hardware\nmetadata: {name: a}\nspec: {interfaces: [{dhcp: {ip: {address: 10.0.0.13}}}]}\n",
        ),
        ("foreman", _json({"name": "a", "interfaces": [{"type": "interface", "mac": None, "ip": "10.0.0.13"}]})),
        (
            "metal3",
            "kind: BareMetalHost\nmetadata: {name: a}\nspec: {networkInterfaces: [{name: eno1, ip: 10.0.0.13}]}\n",
        ),
        (
            "boot-operator",
            "kind: Server\nmetadata: {name: a}\nstatus: {networkInterfaces: [{name: eno1, ips: [10.0.0.13]}]}\n",
        ),
        (
            "openchami",
            _json(
                [
                    {"ID": "x0c0s0b0n0", "Type": "Node", "NID": 1},
                    {"MACAddress": "", "ComponentID": "x0c0s0b0n0", "IPAddresses": [{"IPAddress": "10.0.0.13"}]},
                ]
            ),
        ),
        (
            "maas",
            _json(
                {
                    "system_id": "a",
                    "hostname": "a",
                    "interface_set": [{"name": "eno1", "type": "physical", "links": [{"ip_address": "10.0.0.13"}]}],
                }
            ),
        ),
    ],
)
def test_an_address_without_an_interface_is_in_the_report(system: str, text: str) -> None:
    (machine,) = SYSTEMS[system].read_inventory({"source.yaml": text}).machines
    assert any("MAC address is unknown, so 10.0.0.13 was left out" in each.text for each in machine.remarks)


@pytest.mark.parametrize(
    ("system", "text", "reason"),
    [
        (
            "metal3",
            "kind: BareMetalHost\nmetadata: {name: a}\nspec: {bmc: {address: 'idrac://u:p@10.9.0.13/x'}}\n",
            "the BMC 10.9.0.13 was left out, because its address has the unsupported scheme idrac",
        ),
        (
            "foreman",
            _json({"name": "a", "interfaces": [{"type": "bond", "identifier": "bond0", "ip": "10.0.0.13"}]}),
            "interface bond0 with 10.0.0.13 was left out, because it is of type bond",
        ),
    ],
)
def test_what_is_left_out_is_named_with_its_address(system: str, text: str, reason: str) -> None:
    (machine,) = SYSTEMS[system].read_inventory({"source.yaml": text}).machines
    assert any(reason in each.text for each in machine.remarks), machine.remarks


def test_ramdisks_of_ironic_have_the_arguments_that_ironic_adds(tmp_path: Path) -> None:
    files = {
        name: text.replace('"Driver"', '"Deploy Interface": "ramdisk", "Driver"')
        for name, text in SOURCES["ironic"].items()
    }
    fleet = run_import(tmp_path, "ironic", *make_known_options(tmp_path), files=files)
    assert yaml.safe_load((fleet / "profiles/web01.yaml").read_text())["spec"]["kernelArguments"] == [
        *("root=/dev/ram0", "text", "quiet")
    ]


@pytest.mark.parametrize("system", [system for system in SOURCES if system not in ("boot-operator", "netbox", "maas")])
def test_finding_i3_the_report_names_the_commands_that_print_uuids(tmp_path: Path, system: str) -> None:
    files = {name: text for name, text in SOURCES[system].items() if name != "facts.json"}
    report = (run_import(tmp_path, system, files=files) / "import-report.md").read_text()
    assert "1 server has no UUID" in report
    for command in ("gitboot bmc scan", "gitboot unknown-machines"):
        assert f"`{command} " in report and run_command(*command.split()[1:], "--help").code == 0
    report = (run_import(tmp_path, system, *make_known_options(tmp_path), files=files) / "import-report.md").read_text()
    assert "no UUID" not in report


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (
            "ipmi",
            "missing**: the source does not contain the BMC's address (ipmi): export the nodes with their driver_info",
        ),
        ("redfish", "missing**: the source does not contain the BMC's address (redfish)"),
        ("irmc", "lost**: the driver irmc uses neither Redfish nor IPMI: add the BMC by hand"),
    ],
)
def test_a_node_of_ironic_without_an_address_of_the_bmc_has_its_reason(tmp_path: Path, driver: str, text: str) -> None:
    nodes = [{"uuid": UUID, "name": "web01", "driver": driver, "driver_info": {}, "provision_state": "active"}]
    fleet = run_import(tmp_path, "ironic", files={"nodes.json": _json(nodes)})
    assert text in (fleet / "import-report.md").read_text()


def test_the_node_number_of_ironic_is_not_used_as_the_uuid_of_the_board(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "ironic")
    assert not (fleet / "servers").exists()
    assert "missing: the source does not contain the UUID" in (fleet / "pending" / "servers" / "web01.yaml").read_text()


def _add_arguments(system: str, text: str) -> dict[str, str]:
    """Return the source of a system with a kernel command line, whose quotes may be inside JSON or YAML."""
    quoted = _json(text)[1:-1]
    old, new = {
        "matchbox": ('"initrd=main", ', f'"initrd=main", "{quoted}", '),
        "terraform": ('"quiet", ', f'"{quoted}", '),
        "tinkerbell": ("initrd: initrd.img}", f"initrd: initrd.img, kernelParams: [{_json(text)}]}}"),
        "openchami": ('"params": "', f'"params": "{quoted} '),
        "ironic": ('"kernel_append_params": "', f'"kernel_append_params": "{quoted} '),
    }[system]
    files = {name: each.replace(old, new) for name, each in SOURCES[system].items()}
    assert files != SOURCES[system]
    return files


@pytest.mark.parametrize("system", ["matchbox", "terraform", "tinkerbell", "openchami", "ironic"])
def test_a_kernel_command_line_is_split_as_linux_does(system: str) -> None:
    files = _add_arguments(system, 'a=1 dyndbg="file x +p" console=tty0  console=ttyS0')
    boots = SYSTEMS[system].read_inventory({f"source/{name}": text for name, text in files.items()}).boots
    words = ("a=1", 'dyndbg="file x +p"', "console=tty0", "console=ttyS0")
    assert any(boot.arguments[: len(words)] == words for boot in boots), boots


def test_arguments_of_ipxe_become_templates_and_others_stay_unchanged(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "matchbox", *make_known_options(tmp_path))
    server = fleet / "servers" / "web01.yaml"
    server.write_text(server.read_text().replace("  lifecycle: Parked\n", ""))
    (decision,) = decide(load(open_snapshot(fleet, None))).servers.values()
    assert decision.policy is not None and decision.policy.boot is not None
    first, second, third = decision.policy.boot.kernel_arguments
    assert (first, second) == ("me=web01", "kept={{braces}}")
    assert re.fullmatch(r"ignition\.config\.url=http://boot\.example\.net/o/\w+/config\.ign", third)
    report = (fleet / "import-report.md").read_text()
    for word in (
        "uses an iPXE variable: their=${asset}",
        "group default has no selector",
        "group web01-installed was left out",
    ):
        assert word in report


@for_each(
    ("argument", "template"),
    [
        ("BOOTIF=01-${net0/mac:hexhyp}", "BOOTIF={{ boot_nic.bootif }}"),
        ("BOOTIF=01-${mac:hexhyp}", "BOOTIF={{ boot_nic.bootif }}"),
        ("BOOTIF=${mac}", "BOOTIF={{ boot_nic.mac }}"),
        ("BOOTIF=${netX/mac}", "BOOTIF={{ boot_nic.mac }}"),
        ("BOOTIF=01-${net1/mac:hexhyp}", None),
        ("mac=${mac}", "mac={{ server.interfaces[0].mac }}"),
    ],
)
def test_finding_p12_an_import_names_the_boot_nic(argument: str, template: str | None) -> None:
    assert translate_ipxe_argument(argument) == template


def test_incomplete_documents_are_pending_and_the_others_are_valid(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "matchbox")
    assert {path.relative_to(fleet).as_posix() for path in fleet.glob("pending/**/*") if path.is_file()} == {
        *(f"pending/{kind}/flatcar.yaml" for kind in ("images", "policies", "profiles")),
        "pending/servers/web01.yaml",
        "pending/userdata/flatcar.j2",
    }
    assert run_command("validate", fleet).code == 0
    report = (fleet / "import-report.md").read_text()
    assert "### web01 (pending)" in report and f"the sha256 of {KERNEL}" in report


def test_a_repeated_import_writes_nothing_and_a_change_changes_one_file(tmp_path: Path) -> None:
    before = read_files(run_import(tmp_path, "cobbler", *make_known_options(tmp_path)))
    assert read_files(run_import(tmp_path, "cobbler", *make_known_options(tmp_path))) == before
    files = {**SOURCES["cobbler"], "profiles/base.json": _json({"name": "base", "distro": "debian"})}
    after = read_files(run_import(tmp_path, "cobbler", *make_known_options(tmp_path), files=files))
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {"profiles/base.yaml", "profiles/web.yaml", ".gitboot/import.json"}


def test_a_document_leaves_pending_when_its_missing_value_is_supplied(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "cobbler")
    assert (fleet / "pending" / "servers" / "web01.yaml").exists()
    run_import(tmp_path, "cobbler", *make_known_options(tmp_path))
    assert not any(path.is_file() for path in fleet.glob("pending/**/*"))
    assert (fleet / "servers" / "web01.yaml").exists()


def test_edited_files_stay_and_are_reported(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "cobbler", *make_known_options(tmp_path))
    for name in ("servers/web01.yaml", "fleet.yaml"):
        (fleet / name).write_text((fleet / name).read_text() + "# mine\n")
    (tmp_path / "source" / "systems" / "web01.json").unlink()
    files = {name: text for name, text in SOURCES["cobbler"].items() if "systems" not in name}
    for _ in range(2):
        run_import(tmp_path, "cobbler", *make_known_options(tmp_path), files=files)
        for name in ("servers/web01.yaml", "fleet.yaml"):
            assert (fleet / name).read_text().endswith("# mine\n")
        assert "- `servers/web01.yaml`" in (fleet / "import-report.md").read_text()


@pytest.mark.parametrize("is_first", [True, False])
def test_an_interrupted_import_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The disk is full at any of the files that the import writes."""
    changed = {name: text.replace("10.0.0.13", "10.0.0.14") for name, text in SOURCES["cobbler"].items()}
    writes: list[Path] = []

    def write(path: Path, *content: Any, **options: Any) -> None:
        if len(writes) == limit:
            path.parent.mkdir(parents=True, exist_ok=True)
            raise OSError(ENOSPC, "No space left on device")
        writes.append(path)
        write_output_file(path, *content, **options)

    def import_into(folder: Path, files: dict[str, str]) -> CommandResult:
        source = write_files(tmp_path / "source", files)
        return run_command("import", "cobbler", source, "--out", folder, *make_known_options(tmp_path))

    limit = -1
    monkeypatch.setattr("gitboot.cli.commands.import_fleet.write_output_file", write)
    if not is_first:
        assert import_into(tmp_path / "before", SOURCES["cobbler"]).code == 0
    writes.clear()
    expected = tmp_path / "expected" if is_first else shutil.copytree(tmp_path / "before", tmp_path / "expected")
    assert import_into(expected, changed).code == 0
    for limit in range(len(writes)):
        fleet = tmp_path / f"fleet-{limit}"
        if not is_first:
            shutil.copytree(tmp_path / "before", fleet)
        writes.clear()
        done = import_into(fleet, changed)
        assert done.code == 64 and "No space left" in done.err, limit
        writes.clear()
        limit = -1
        done = import_into(fleet, changed)
        assert done.code == 0 and "that you changed" not in done.err, done
        assert read_files(fleet) == read_files(expected)


@pytest.mark.parametrize("git_converts", [False, True])
def test_user_data_with_crlf_is_not_an_edit_and_is_updated(tmp_path: Path, git_converts: bool) -> None:
    template = tmp_path / "fleet/userdata/flatcar.j2"

    def import_user_data(version: str) -> bytes:
        ignition = f'{{"ignition": {{\r\n"version": "{version}"}}}}\r\n'
        files = {**SOURCES["matchbox"], "ignition/flatcar.ign": ignition}
        fleet = run_import(tmp_path, "matchbox", *make_known_options(tmp_path), files=files)
        assert "Changed files" not in (fleet / "import-report.md").read_text()
        return template.read_bytes()

    written = import_user_data("3.3.0")
    assert b"\r\n" in written
    if git_converts:
        template.write_bytes(written := written.replace(b"\r\n", b"\n"))
    changed_at = template.stat().st_mtime_ns, template.stat().st_ino
    assert (import_user_data("3.3.0"), template.stat().st_mtime_ns, template.stat().st_ino) == (written, *changed_at)
    assert b"3.4.0" in import_user_data("3.4.0")


def test_a_machine_that_was_removed_from_the_source_is_removed(tmp_path: Path) -> None:
    fleet = run_import(tmp_path, "isc", *make_known_options(tmp_path))
    (tmp_path / "source" / "dhcpd.conf").unlink()
    run_import(tmp_path, "isc", files={"other": "host web02 { hardware ethernet 52:54:00:00:00:02; }"})
    assert not (fleet / "servers" / "web01.yaml").exists()


def test_two_machines_never_share_an_identity(tmp_path: Path) -> None:
    text = "".join(
        f"host {name} {{ hardware ethernet {MAC}; fixed-address 10.0.0.13; }}\n" for name in ("web01", "Web01")
    )
    fleet = run_import(tmp_path, "isc", *make_known_options(tmp_path), files={"dhcpd.conf": text})
    assert run_command("validate", fleet).code == 0
    report = (fleet / "import-report.md").read_text()
    assert "the MAC address 52-54-00-12-34-56 was left out, because web01 also has it" in report
    assert "### web01-2 (pending)" in report


def test_of_two_machines_with_one_name_the_one_with_the_exact_spelling_keeps_it(tmp_path: Path) -> None:
    hosts = [f"host {name} {{ hardware ethernet 52:54:00:00:00:0{n}; }}\n" for n, name in enumerate(("Web01", "web01"))]
    report = (run_import(tmp_path, "isc", files={"dhcpd.conf": "".join(hosts)}) / "import-report.md").read_text()
    of_web01, of_the_other = (report[report.index(f"### {name}") :] for name in ("web01 ", "web01-2"))
    assert of_web01.startswith("### web01 ") and "the source's" not in of_web01[: of_web01.index("###", 3)]
    assert "the import changed the name, because Web01 is not a valid document name" in of_the_other


def test_bmcs_of_two_machines_with_one_name_share_no_password(tmp_path: Path) -> None:
    other = SOURCES["cobbler"]["systems/web01.json"].replace('"web01"', '"WEB01"').replace(MAC, "52:54:00:00:00:02")
    files = SOURCES["cobbler"] | {"systems/other.json": other.replace("10.9.0.13", "10.9.0.14")}
    fleet = run_import(tmp_path, "cobbler", *make_known_options(tmp_path), files=files)
    documents = (yaml.safe_load(path.read_text()) for path in fleet.rglob("servers/*.yaml"))
    assert {each["spec"]["bmc"]["address"]: each["spec"]["bmc"]["credentials"] for each in documents} == {
        "https://10.9.0.13": "web01-bmc",
        "https://10.9.0.14": "web01-2-bmc",
    }


def test_a_directory_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "mine").touch()
    done = run_command("import", "isc", write_files(tmp_path / "source", SOURCES["isc"]), "--out", tmp_path / "fleet")
    assert done.code == 64 and "is not empty" in done.err


@pytest.mark.parametrize(
    "name",
    [
        *(".git/HEAD", ".GIT/config", "servers/.git/HEAD", "servers/web01.yaml/.git/HEAD", ".git/servers/web01.yaml"),
        *("fleet.yaml", ".gitboot/schemas/Server.json", "secrets/web01.age", "servers/x/web01.yaml"),
        *("servers/Web01.yaml", "servers/web01.j2", "userdata/web01.yaml", "pending/pending/servers/web01.yaml"),
        *("/servers/web01.yaml", "../servers/web01.yaml", "servers//web01.yaml", "servers/../web01.yaml"),
    ],
)
def test_an_import_removes_no_file_that_an_import_does_not_write(tmp_path: Path, name: str) -> None:
    content = "ref: refs/heads/main\n"
    file = tmp_path / "fleet" / name.removeprefix("/")
    write_files(tmp_path, {f"fleet/{name.removeprefix('/')}": content})
    done = import_with_digests(tmp_path, _json({name: sha256(content.encode()).hexdigest()}))
    assert (done.code, file.read_text()) == (64, content)
    assert f"import.json contains the path {name!r}" in done.err and "restore the file from Git" in done.err


DIGEST = "feed" * 16


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 200_000, id="deep"),
        pytest.param('{"servers/web01.yaml":' * 200_000, id="deep objects"),
        *("", "{", "null", f'["{DIGEST}"]', '{"servers/web01.yaml": null}', '{"servers/web01.yaml": ["x"]}'),
        *('{"servers/a\\u0000.yaml": "x"}', '{"servers/\\ud800.yaml": "x"}', '{"servers/web01.yaml": "\\ud800"}'),
        f'{{"servers/{"a" * 300}.yaml": "{DIGEST}"}}',
    ],
)
def test_a_damaged_file_of_digests_is_named_with_the_cause_and_the_next_step(tmp_path: Path, text: str) -> None:
    done = import_with_digests(tmp_path, text)
    assert done.code == 64 and str(tmp_path / "fleet/.gitboot/import.json") in done.err
    assert re.search(r" is damaged: .+; restore the file from Git| contains the path .+: restore the file", done.err)
    assert read_files(tmp_path / "fleet") == {".gitboot/import.json": text.encode()}


def import_with_digests(tmp_path: Path, digests: str) -> CommandResult:
    write_files(tmp_path, {"fleet/.gitboot/import.json": digests})
    return run_command("import", "isc", write_files(tmp_path / "source", SOURCES["isc"]), "--out", tmp_path / "fleet")


@pytest.mark.parametrize("system", SOURCES)
def test_the_next_import_accepts_each_path_that_an_import_writes(
    tmp_path: Path, system: str, fleets: Callable[[str], Path]
) -> None:
    fleet = shutil.copytree(fleets(system), tmp_path / "fleet")
    run_import(tmp_path, system)
    assert (fleet / "pending").exists() is (system not in ("maas", "netbox")), "their sources contain all facts"
    run_import(tmp_path, system, *make_known_options(tmp_path))
    assert not any(path.is_file() for path in fleet.glob("pending/**/*"))


@pytest.mark.parametrize("system", ["matchbox", "kea", "metal3"])
def test_an_unreadable_source_is_named_without_its_content(tmp_path: Path, system: str) -> None:
    source = write_files(tmp_path, {"groups/x.json": f"{{{PASSWORD}: [", "x.yaml": f"a: [{PASSWORD}"})
    file = source / ("x.yaml" if system == "metal3" else "groups")
    done = run_command("import", system, tmp_path if system == "matchbox" else file, "--out", tmp_path / "fleet")
    assert done.code == 64 and "is no" in done.err and PASSWORD not in done.err
    assert not done.err.rstrip().endswith(" at")


def test_a_source_without_a_machine_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    done = run_command("import", "isc", write_files(tmp_path / "source", {"x": "nothing"}), "--out", tmp_path / "fleet")
    assert done.code == 64 and "contains no machines in" in done.err and not (tmp_path / "fleet").exists()


def test_finding_p11_a_large_file_of_machines_is_read_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "vmlinuz").write_bytes(b"\0" * 200)
    monkeypatch.setattr("gitboot.cli.commands.import_fleet._MAX_BYTES", 100)
    fleet = run_import(tmp_path, "netbox")  # its files are larger
    assert list(fleet.rglob("servers/*.yaml"))
    monkeypatch.setattr("gitboot.cli.commands.import_fleet._MAX_DATA_BYTES", 100)
    done = run_command("import", "netbox", tmp_path / "source", "--out", tmp_path / "other")
    assert done.code == 64 and "devices.json is larger than 100 bytes" in done.err


@pytest.mark.parametrize(("line", "word"), [("52:54:00:12:34:56", "expected two words"), (f"{MAC} x", "uuids:1: ")])
def test_an_invalid_line_in_the_file_of_uuids_is_named(tmp_path: Path, line: str, word: str) -> None:
    (tmp_path / "uuids").write_text(f"{line}\n")
    source = write_files(tmp_path / "source", SOURCES["isc"])
    done = run_command("import", "isc", source, "--out", tmp_path / "fleet", "--uuids", tmp_path / "uuids")
    assert done.code == 64 and word in done.err


@pytest.mark.parametrize(
    "item",
    [
        {"macs": [MAC, "52-54-00-00-00-02"], "uuid": UUID, "client": "10.0.0.13"},  # of gitboot unknown-machines
        {"address": "https://10.9.0.13", "identity": {"uuid": UUID.upper()}, "nics": [{"name": "1", "mac": MAC}]},
    ],
)
def test_finding_i3_the_output_of_both_commands_fills_the_uuids(tmp_path: Path, item: dict[str, Any]) -> None:
    (tmp_path / "found.json").write_text(json.dumps({"items": [{"macs": [], "uuid": None}, item]}))
    fleet = run_import(tmp_path, "isc", "--uuids", tmp_path / "found.json")
    assert read_server_spec(fleet, "isc")["uuid"] == UUID
    assert f"the import took the UUID {UUID} from the --uuids file" in (fleet / "import-report.md").read_text()


ODD: tuple[Any, ...] = (None, 7, "x", ["x"], {"x": None}, "http://[x", "it's")


def _vary_one_value(value: Any) -> Iterator[Any]:
    """The value as often as something in it may be something else."""
    yield from ODD
    if isinstance(value, dict):
        for key, each in value.items():
            yield from ({**value, key: other} for other in _vary_one_value(each))
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in _vary_one_value(each))


@pytest.mark.parametrize("system", [system for system in SOURCES if system not in ("xcat", "dnsmasq", "isc", "kea")])
def test_any_content_of_a_source_is_read_without_an_error(system: str) -> None:
    # A file of another version may have a list instead of a text. Only this value is lost.
    read_inventory, files = SYSTEMS[system].read_inventory, SOURCES[system]
    for name, text in files.items():
        if name.endswith(".ign"):
            continue
        for document in yaml.load_all(text, yaml.BaseLoader):
            for odd in sample_cases([*_vary_one_value(document)], one_in=3):
                render_fleet(read_inventory({**files, name: _json(odd)}), ExtraData())


A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"
TWO = {
    "ironic": {
        "nodes.json": _json([{"uuid": each, "name": each, "driver": "redfish"} for each in ("a", "b")]),
        "ports.json": _json([{"address": B, "node_uuid": "b"}, {"address": A, "node_uuid": "a"}]),
    },
    "netbox": {
        "devices.json": _json([{"id": id, "name": name, "device_type": {}} for id, name in ((1, "a"), (2, "b"))]),
        "interfaces.json": _json(
            [{"id": id, "device": {"id": id}, "mac_address": mac} for id, mac in ((2, B), (1, A))]
        ),
    },
    "openchami": {
        "parameters.json": _json([{"macs": [A], "nids": [2], "kernel": KERNEL}]),
        "components.json": _json({"Components": [{"ID": "a", "NID": 1}, {"ID": "b", "NID": 2}]}),
        "interfaces.json": _json([{"MACAddress": B, "ComponentID": "b"}, {"MACAddress": A, "ComponentID": "a"}]),
    },
}


@pytest.mark.parametrize("system", TWO)
def test_each_interface_belongs_to_its_own_machine(system: str) -> None:
    machines = SYSTEMS[system].read_inventory(TWO[system]).machines
    found = {machine.name: [nic.mac.replace("-", ":") for nic in machine.nics] for machine in machines}
    assert found == {"a": [A], "b": [B]}
