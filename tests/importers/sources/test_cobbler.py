"""Cobbler 3.3.10: its data of some systems and its responses for them, compared with the result of the import.

The responses were recorded from cobblerd and its WSGI application (`/cblr/svc/op/ipxe/system/NAME`) with the
collections below; the host is removed from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from gitboot.importers.inventory import ImportedInventory
from gitboot.importers.sources.cobbler import read_cobbler
from gitboot.resolve.kernel_arguments import merge_arguments
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.instance_with_bmcs import run_command
from tests.importers.test_fleet_files import write_files

_INHERIT: Final = "<<inherit>>"
_DEBIAN: Final = "auto-install/enable=true priority=critical netcfg/choose_interface=auto"
_LED: Final = "URL/cblr/svc/op/autoinstall/system"
_DISK: Final = "iseq ${smbios/manufacturer} HP && exit ||\nsanboot --no-describe --drive 0x80\n"


def _distro(name: str, breed: str, version: str = "", **more: object) -> dict[str, Any]:
    paths = {"kernel": "/srv/vmlinuz-1", "initrd": "/srv/initrd-1.img"}
    return {"name": name, "arch": "x86_64", "breed": breed, "os_version": version, **paths, **more}


def _system(name: str, profile: str, **more: object) -> dict[str, Any]:
    plain = {"kernel_options": _INHERIT, "autoinstall": _INHERIT, "netboot_enabled": True, "hostname": ""}
    return {"name": name, "profile": profile, **plain, "serial_device": -1, "serial_baud_rate": -1, **more}


REMOTE: Final = "http://127.0.0.1/cobbler/pub"
DISTROS: Final = (
    _distro("buster", "debian", "buster"),
    _distro("rhel9", "redhat", "rhel9", kernel_options={"console": "ttyS0"}),
    _distro("leap", "suse", "opensuse15.3"),
    _distro("remote", "", remote_boot_kernel=f"{REMOTE}/vmlinuz-9", remote_boot_initrd=f"{REMOTE}/initrd-9.img"),
)
_OPTIONS: Final = {"a": "1", "b": "2", "c": ["3", "4", "5"], "d": "~", "e": "~"}
PROFILES: Final = (
    {"name": "plain", "distro": "buster", "autoinstall": _INHERIT},
    {"name": "opts", "distro": "buster", "autoinstall": _INHERIT, "kernel_options": _OPTIONS},
    {"name": "child", "parent": "opts", "distro": "", "kernel_options": {"!c": None, "f": "6"}},
    {"name": "redhat", "distro": "rhel9", "autoinstall": "sample.ks"},
    {"name": "suse", "distro": "leap", "autoinstall": "sample_autoyast.xml"},
    {"name": "remote", "distro": "remote", "autoinstall": _INHERIT},
)
SYSTEMS: Final = (
    _system("child-1", "child"),
    _system("child-2", "child", kernel_options={"a": "9", "x": "1"}),
    _system("child-3", "child", netboot_enabled=False),
    _system("opts-1", "opts"),
    _system("plain-1", "plain"),
    _system("redhat-1", "redhat"),
    _system("remote-1", "remote"),
    _system("remote-2", "remote", kernel_options={"a": "9", "x": "1"}),
    _system("removed-1", "opts", kernel_options={"!c": None, "!e": None}),
    _system("serial-1", "plain", serial_device=0, serial_baud_rate=115200),
    _system("static-1", "plain", hostname="static-1.example.org"),
    _system("suse-1", "suse"),
)


def _debian(name: str, options: str = "", domain: str = "local.lan", more: str = "") -> str:
    line = f"{options}  {_DEBIAN} url={_LED}/{name} hostname={name} domain={domain} suite=buster{more}"
    return f"kernel /images/buster/vmlinuz-1  {line}\ninitrd /images/buster/initrd-1.img\nboot\n"


def _files(distro: str, line: str) -> str:
    return f"kernel /images/{distro}/vmlinuz-1  {line}\ninitrd /images/{distro}/initrd-1.img\nboot\n"


def _grub_script(line: str = "") -> str:
    host = "(http,127.0.0.1)/cobbler/pub"
    return f"kernel {host}/vmlinuz-9  {line}\ninitrd {host}/initrd-9.img\nboot\n"


ANSWERS: Final = {
    "child-1": _debian("child-1", "a=1 b=2 d e f=6"),
    "child-2": _debian("child-2", "a=9 b=2 d e f=6 x=1"),
    "child-3": _DISK,
    "opts-1": _debian("opts-1", "a=1 b=2 c=3 c=4 c=5 d e"),
    "plain-1": _debian("plain-1"),
    "redhat-1": _files("rhel9", f"console=ttyS0  inst.ks.sendmac inst.ks={_LED}/redhat-1"),
    "remote-1": _grub_script(),
    "remote-2": _grub_script("a=9 x=1"),
    "removed-1": _debian("removed-1", "a=1 b=2 d"),
    "serial-1": _debian("serial-1", more=" console=ttyS0,115200"),
    "static-1": _debian("static-1", domain="example.org"),
    "suse-1": _files("leap", f"info=URL/cblr/svc/op/nopxe/system/suse-1  autoyast={_LED}/suse-1"),
}
# Differences: templates are not translated, and arguments of a server come after those of its profile.
DIFFERENT: Final = {
    "child-1": {"user data"},
    "child-2": {"user data", "order of arguments"},
    "opts-1": {"user data"},  # c three times, as its author wrote it
    "plain-1": {"user data"},
    "redhat-1": {"user data"},
    "removed-1": {"user data"},
    "serial-1": {"user data"},
    "static-1": {"user data", "order of arguments"},
    "suse-1": {"user data", "arguments"},  # Cobbler's own callback
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cobbler")
    kinds = {"distros": DISTROS, "profiles": PROFILES, "systems": SYSTEMS}
    macs = {each["name"]: f"aa:bb:cc:dd:ee:{number:02x}" for number, each in enumerate(SYSTEMS)}
    files = {f"{kind}/{each['name']}.json": {**each} for kind, found in kinds.items() for each in found}
    for name, mac in macs.items():
        files[f"systems/{name}.json"]["interfaces"] = {"eth0": {"mac_address": mac, "interface_type": "na"}}
    source = write_files(folder / "collections", {path: json.dumps(each) for path, each in files.items()})
    uuids = (f"{mac} 4c4c4544-0034-4a10-8056-b9c04f4d37{mac[-2:]}" for mac in macs.values())
    (folder / "uuids").write_text("\n".join(uuids))
    names = ("vmlinuz-1", "initrd-1.img", "vmlinuz-9", "initrd-9.img")
    (folder / "sums").write_text("".join(f"{'feed' * 16}  {name}\n" for name in names))
    done = run_command(
        *("import", "cobbler", source, "--out", folder / "fleet"),
        "--uuids",
        folder / "uuids",
        "--sums",
        folder / "sums",
    )
    assert (done.code, "pending" in done.out) == (0, False), done
    return folder / "fleet"


def test_cobbler_and_gitboot_serve_the_same_boot_or_the_difference_is_listed(fleet: Path) -> None:
    assert run_command("validate", fleet).code == 0
    with artifact_server() as old:
        for name, answer in ANSWERS.items():
            script = f"#!ipxe\n{answer}\n".replace("URL", old.url)
            old.put(f"/cblr/svc/op/ipxe/system/{name}", script.encode())
            old.put(f"/cblr/svc/op/autoinstall/system/{name}", b"# rendered\n")
        done = run_command("compare-old-system", fleet, "--old", old.url, "--as", "cobbler", "-o", "json")
    found = {each["server"]: {one["field"] for one in each["differences"]} for each in done.json["items"]}
    assert {name: what for name, what in found.items() if what} == DIFFERENT
    assert done.code == 2 and found.keys() == ANSWERS.keys()


@pytest.mark.parametrize(
    "word",
    [
        "the template sample.ks was not translated (Cobbler adds its URL to the kernel arguments)",
        "the template from Cobbler's settings was not translated (Cobbler adds its URL to the kernel arguments)",
        "Cobbler's argument info= reports installations",
    ],
)
def test_the_report_has_the_reason_of_each_difference(fleet: Path, word: str) -> None:
    assert word in (fleet / "import-report.md").read_text()


def _collections(interfaces: list[dict[str, Any]], **system: Any) -> ImportedInventory:
    options = {"console": ["tty0", "ttyS0"], "quiet": "~"}
    files = {
        "distros/d.json": {"name": "d", "uid": "1", "arch": "x86_64", "kernel": "/srv/vmlinuz"},
        "profiles/p.json": {"name": "p", "uid": "2", "distro": "1", "autoinstall": "", "kernel_options": options},
        "systems/s.json": {"name": "s", "uid": "3", "profile": "2", **system},
        **{f"network_interfaces/{at}.json": each for at, each in enumerate(interfaces)},
    }
    return read_cobbler({path: json.dumps(each) for path, each in files.items()})


@pytest.mark.parametrize(
    ("system", "merged"),
    [
        ({"kernel_options": {"console": "ttyS1,115200"}}, ("quiet", "console=ttyS1,115200")),
        ({"kernel_options": {"console": ["tty1", "ttyS1"]}}, ("quiet", "console=tty1", "console=ttyS1")),
        # The serial console is added, also by Cobbler.
        (
            {"serial_device": 1, "serial_baud_rate": 9600},
            ("console=tty0", "console=ttyS0", "quiet", "console=ttyS1,9600"),
        ),
        ({"kernel_options": {"quiet": "~", "x": "1"}}, ("console=tty0", "console=ttyS0", "quiet", "x=1")),
        ({"kernel_options": "x='1 2' y"}, ("console=tty0", "console=ttyS0", "quiet", "x=1 2", "y")),
        ({"kernel_options": "x=it's y"}, ("console=tty0", "console=ttyS0", "quiet", "x=it's", "y")),
    ],
)
def test_finding_p11_a_console_of_a_system_replaces_that_of_its_profile(
    system: dict[str, Any], merged: tuple[str, ...]
) -> None:
    inventory = _collections([], **system)
    (machine,), (boot,) = inventory.machines, inventory.boots
    own = (*(f"-{each}" for each in machine.removed_arguments), *machine.arguments)
    assert merge_arguments((boot.arguments, own)).arguments == merged


@pytest.mark.parametrize(
    "power",
    [
        {"power_type": "redfish", "power_address": "10.9.0.13", "power_id": "/redfish/v1/Systems/2"},
        {"power": {"type": "redfish", "address": "10.9.0.13", "id": "/redfish/v1/Systems/2"}},
    ],
)
def test_the_power_id_of_a_system_is_the_system_of_its_bmc(power: dict[str, Any]) -> None:
    (machine,) = _collections([], **power).machines
    assert machine.bmc is not None
    assert (machine.bmc.address, machine.bmc.system) == ("https://10.9.0.13", "/redfish/v1/Systems/2")


def test_an_interface_without_a_mac_address_is_named_with_its_address() -> None:
    plain = {"name": "eth1", "system_uid": "3", "mac_address": "", "ipv4": {"address": "10.0.0.13"}}
    (machine,) = _collections([plain]).machines
    assert any("interface eth1 with 10.0.0.13 has no MAC address" in each.text for each in machine.remarks)


def test_an_initrd_in_the_kernel_options_is_in_the_report() -> None:
    files = {
        "distros/d.json": {"name": "d", "kernel_options": {"initrd": "/images/extra.img"}},
        "profiles/p.json": {"name": "p", "distro": "d"},
    }
    (boot,) = read_cobbler({path: json.dumps(each) for path, each in files.items()}).boots
    assert any("initrd=/images/extra.img was left out" in each.text for each in boot.remarks)


def test_finding_i4_interfaces_of_cobbler_4_go_to_their_system_and_those_of_a_bond_have_its_address() -> None:
    plain = {"system_uid": "3", "interface_type": "bond_slave", "interface_master": "bond0"}
    inventory = _collections(
        [
            {"name": "eth1", "mac_address": "52:54:00:00:00:0b", **plain},
            {"name": "eth0", "mac_address": "52:54:00:00:00:0a", **plain},
            {
                "name": "bond0",
                "system_uid": "3",
                "interface_type": "bond",
                "ipv4": {"address": "10.0.0.13", "netmask": "255.255.255.0"},
            },
            {"name": "lost", "system_uid": "9", "mac_address": "52:54:00:00:00:0c"},
            # An item that was migrated has the fields of Cobbler 3.3.
            {"name": "eth2", "system_uid": "3", "mac_address": "52:54:00:00:00:0d", "ip_address": "10.1.0.13"},
        ]
    )
    (machine,) = inventory.machines
    assert [(nic.name, nic.addresses) for nic in machine.nics] == [
        ("eth0", ("10.0.0.13/24",)),
        ("eth1", ("10.0.0.13/24",)),
        ("eth2", ("10.1.0.13",)),
    ]
    assert any("interface lost with MAC address 52:54:00:00:00:0c" in each.text for each in inventory.remarks)


def test_finding_i4_a_system_with_an_image_has_its_reason() -> None:
    (machine,) = _collections([], profile="", image="memtest").machines
    assert any("because the image memtest" in each.text for each in machine.remarks)


def test_a_system_with_an_unknown_profile_has_its_reason() -> None:
    (machine,) = _collections([], profile="gone").machines
    text = "the profile gone is not in the source: export the profile, or select another boot"
    assert text in [each.text for each in machine.remarks]
