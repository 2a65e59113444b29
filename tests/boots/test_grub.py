"""GRUB and PXELINUX: a fleet without iPXE, so that DHCP names these."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots.disks import MARK
from tests.boots.fleet import NAMES_ITS_NIC, Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS = (
    Guest(name="tftp", pxe=True, by=("gitboot", "Caddy")),
    Guest(name="http", spec=NAMES_ITS_NIC, by=("gitboot", "nginx")),
    Guest(name="nics", nics=2, spec=NAMES_ITS_NIC, by=("gitboot", "Caddy")),
    Guest(name="uuid", found_by="UUID", by=("gitboot", "nginx")),
    Guest(name="unknown", boots=None, by=("gitboot", "nginx", "Caddy")),
    Guest(name="disk", installed=True, by=("gitboot", "nginx")),
    Guest(name="pxelinux", uefi=False, spec=NAMES_ITS_NIC, by=("gitboot", "nginx", "Caddy")),
    Guest(name="pxelinux-disk", uefi=False, installed=True, by=("gitboot", "nginx")),
)
BY = {guest.name: guest.by for guest in GUESTS}


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    outputs = "grub, pxelinux, uuid, dhcp-dnsmasq"
    with run_site(tmp_path_factory.mktemp("grub"), images, GUESTS, outputs=outputs) as site:
        yield site


@pytest.mark.parametrize("by", BY["tftp"])
def test_uefi_boots_by_pxe_and_grub(site: Site, by: str, row: Row) -> None:
    with site.machine("tftp", by).on() as machine:
        row(machine, site.check_installation(machine, "tftp", by))


@pytest.mark.parametrize("by", BY["http"])
def test_uefi_boots_by_http_and_grub(site: Site, by: str, row: Row) -> None:
    with site.machine("http", by).on() as machine:
        row(machine, site.check_installation(machine, "http", by))


@pytest.mark.parametrize("by", BY["nics"])
def test_a_server_boots_from_its_second_nic(site: Site, by: str, row: Row) -> None:
    with site.machine("nics", by).on() as machine:
        row(machine, site.check_installation(machine, "nics", by))


@pytest.mark.parametrize("by", BY["uuid"])
def test_a_server_with_a_new_nic_is_found_by_its_uuid(site: Site, by: str, row: Row) -> None:
    with site.machine("uuid", by).on() as machine:
        row(machine, site.check_installation(machine, "uuid", by))


@pytest.mark.parametrize("by", BY["unknown"])
def test_an_unknown_server_boots_its_disk(site: Site, by: str, row: Row) -> None:
    with site.machine("unknown", by, disk=True).on() as machine:
        row(machine, machine.wait_for("GRUB", MARK))
    assert site.fetched(by, "/unknown.grub.cfg")


@pytest.mark.parametrize("by", BY["disk"])
def test_an_installed_server_boots_its_disk(site: Site, by: str, row: Row) -> None:
    with site.machine("disk", by, disk=True).on() as machine:
        row(machine, machine.wait_for("GRUB", f"gitboot: disk-{by.lower()} boots its local disk", MARK))


@pytest.mark.parametrize("by", BY["pxelinux"])
def test_bios_boots_by_pxelinux(site: Site, by: str, row: Row) -> None:
    with site.machine("pxelinux", by).on() as machine:
        row(machine, site.check_installation(machine, "pxelinux", by))


@pytest.mark.parametrize("by", BY["pxelinux-disk"])
def test_an_installed_server_boots_its_disk_by_pxelinux(site: Site, by: str, row: Row) -> None:
    with site.machine("pxelinux-disk", by, disk=True).on() as machine:
        row(machine, machine.wait_for("PXELINUX", f"gitboot: pxelinux-disk-{by.lower()} boots its local disk", MARK))
