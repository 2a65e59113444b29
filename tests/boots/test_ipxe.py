"""iPXE, by every way in which firmware comes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots.disks import MARK
from tests.boots.fleet import NAMES_ITS_NIC, Guest
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import RunningMachine
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS = (
    Guest(name="card", uefi=False, by=("gitboot", "nginx")),
    Guest(name="tftp", pxe=True, by=("gitboot", "Caddy")),
    Guest(name="http", by=("gitboot", "nginx")),
    Guest(name="uki", pxe=True, boots="uki-gitboot"),
    Guest(name="nics", uefi=False, nics=2, spec=NAMES_ITS_NIC, by=("gitboot", "Caddy")),
    Guest(name="uuid", uefi=False, found_by="UUID", by=("gitboot", "nginx")),
    Guest(name="serial", uefi=False, found_by="serial", by=("gitboot", "Caddy")),
    Guest(name="unknown", uefi=False, boots=None, by=("gitboot", "nginx", "Caddy")),
    Guest(name="bios-disk", uefi=False, installed=True, by=("gitboot", "Caddy")),
    Guest(name="uefi-disk", installed=True, by=("gitboot", "nginx")),
    Guest(name="exit", uefi=False, installed=True, spec="localDisk: Exit"),
    Guest(name="sanboot", installed=True, spec="localDisk: Sanboot"),
    Guest(name="chained", installed=True, spec="localDisk: /EFI/BOOT/BOOTX64.EFI"),
    Guest(name="no-entry", installed=True, spec="localDisk: NotFound"),
    Guest(name="grub", installed=True, spec="loader: GRUB, localDisk: /EFI/BOOT/BOOTX64.EFI"),
)
ANSWERED = {guest.name: guest.by for guest in GUESTS}


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ipxe")
    outputs = "ipxe, grub, uuid, serial, dhcp-dnsmasq"
    with run_site(folder, images, GUESTS, outputs=outputs, more=", unknownServers: {profile: discovery}") as site:
        yield site


@pytest.mark.parametrize("by", ANSWERED["card"])
def test_bios_boots_by_the_ipxe_of_its_network_card(site: Site, by: str, row: Row) -> None:
    with site.machine("card", by).on() as machine:
        row(machine, site.check_installation(machine, "card", by))


@pytest.mark.parametrize("by", ANSWERED["tftp"])
def test_uefi_boots_by_pxe_and_ipxe(site: Site, by: str, row: Row) -> None:
    with site.machine("tftp", by).on() as machine:
        row(machine, site.check_installation(machine, "tftp", by))


@pytest.mark.parametrize("by", ANSWERED["http"])
def test_uefi_boots_by_http_and_ipxe(site: Site, by: str, row: Row) -> None:
    with site.machine("http", by).on() as machine:
        row(machine, site.check_installation(machine, "http", by))


def test_a_uki_that_ipxe_boots_keeps_its_command_line(site: Site, row: Row) -> None:
    with site.machine("uki").on() as machine:
        row(machine, site.check_installation(machine, "uki", "gitboot", image="uki-gitboot-1"))
    assert "iPXE" in machine.console_text


@pytest.mark.parametrize("by", ANSWERED["nics"])
def test_a_server_boots_from_its_second_nic(site: Site, by: str, row: Row) -> None:
    with site.machine("nics", by).on() as machine:
        row(machine, site.check_installation(machine, "nics", by))


@pytest.mark.parametrize("by", ANSWERED["uuid"])
def test_a_server_with_a_new_nic_is_found_by_its_uuid(site: Site, by: str, row: Row) -> None:
    with site.machine("uuid", by).on() as machine:
        row(machine, site.check_installation(machine, "uuid", by))


@pytest.mark.parametrize("by", ANSWERED["serial"])
def test_a_server_with_a_new_board_is_found_by_its_serial_number(site: Site, by: str, row: Row) -> None:
    with site.machine("serial", by).on() as machine:
        row(machine, site.check_installation(machine, "serial", by))


@pytest.mark.parametrize("by", ANSWERED["unknown"])
def test_an_unknown_server_boots_the_boot_that_the_fleet_names(site: Site, by: str, row: Row) -> None:
    with site.machine("unknown", by).on() as machine:
        row(
            machine,
            machine.wait_for("this machine is unknown. It boots discovery-1.", "boot.image=discovery-1", END_TEXT),
        )
        assert f" BOOTIF=01-{site.guests['unknown'].macs(by)[-1].replace(':', '-')}" in machine.console_text
    assert site.fetched(by, "/unknown.ipxe")


@pytest.mark.parametrize("by", ANSWERED["bios-disk"])
def test_an_installed_server_boots_its_disk_under_bios(site: Site, by: str, row: Row) -> None:
    with site.machine("bios-disk", by, disk=True).on() as machine:
        row(machine, machine.wait_for("iPXE", f"gitboot: bios-disk-{by.lower()} boots its local disk", MARK))


@pytest.mark.parametrize("by", ANSWERED["uefi-disk"])
def test_an_installed_server_boots_its_disk_under_uefi(site: Site, by: str, row: Row) -> None:
    with site.machine("uefi-disk", by, disk=True).on() as machine:
        row(machine, machine.wait_for("iPXE", f"gitboot: uefi-disk-{by.lower()} boots its local disk", MARK))


@pytest.mark.parametrize("name", ["exit", "sanboot"])
def test_a_machine_reaches_its_disk_as_its_document_states(site: Site, name: str, row: Row) -> None:
    with site.machine(name, disk=True).on() as machine:
        row(machine, machine.wait_for("iPXE", "boots its local disk", MARK))


def test_ipxe_starts_the_program_on_the_disk_that_a_document_names(site: Site, row: Row) -> None:
    with site.machine("chained", disk=True).on() as machine:
        row(machine, machine.wait_for("iPXE", "boots its local disk", MARK))


def test_a_machine_without_a_boot_script_boots_its_disk(site: Site, row: Row) -> None:
    with site.machine("no-entry", disk=True).on() as machine:
        row(machine, machine.wait_for("iPXE", MARK))


def test_one_server_gets_another_loader_than_the_others_of_its_fleet(site: Site, row: Row) -> None:
    with site.machine("grub", disk=True).on() as machine:
        row(machine, machine.wait_for("GRUB", "boots its local disk", MARK))
    assert "iPXE" not in machine.console_text
