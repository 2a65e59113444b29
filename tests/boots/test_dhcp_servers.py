"""DHCP servers with the settings of docs/how-to/dhcp.md, and nothing that gitboot generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.boots.dhcp import DOCUMENTED_SERVERS, one_boot_file
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS: Final = (Guest(name="http"), Guest(name="tftp", pxe=True))
SERVERS: Final = {**DOCUMENTED_SERVERS, "one-boot-file": one_boot_file}


@pytest.fixture(scope="module")
def site(
    network: None, images: Images, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("servers")
    with run_site(folder, images, GUESTS, outputs="ipxe, grub", dhcp=SERVERS[request.param]) as site:
        yield site


@pytest.mark.parametrize("site", ["ISC-dhcpd"], indirect=True)
def test_uefi_boots_by_http_and_ipxe(site: Site, row: Row) -> None:
    with site.machine("http").on() as machine:
        row(machine, site.check_installation(machine, "http", "gitboot", reserved=False))


@pytest.mark.parametrize("site", ["Kea"], indirect=True)
def test_uefi_boots_by_pxe_and_ipxe(site: Site, row: Row) -> None:
    with site.machine("tftp").on() as machine:
        row(machine, site.check_installation(machine, "tftp", "gitboot", reserved=False))


@pytest.mark.parametrize("site", ["one-boot-file"], indirect=True)
def test_uefi_boots_by_grub_if_dhcp_has_one_boot_file(site: Site, row: Row) -> None:
    with site.machine("tftp").on() as machine:
        row(machine, site.check_installation(machine, "tftp", "gitboot", reserved=False))
    assert "Welcome to GRUB!" in machine.console_text
