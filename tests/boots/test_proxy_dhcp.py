"""dnsmasq as a proxyDHCP server with gitboot's configuration, beside a DHCP server that knows nothing of boots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.boots.dhcp import HOST_NAME, OTHER_SERVERS, proxy_at_a_name, proxy_beside
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS, PORT
from tests.boots.other_rom import replace_rom
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS: Final = (
    Guest(name="card", uefi=False),
    Guest(name="site", uefi=False, by=("nginx",)),
    Guest(name="rom", uefi=False),
    Guest(name="tftp", pxe=True),
    Guest(name="http"),
    Guest(name="grub", pxe=True, spec="loader: GRUB"),
)
PROXIES: Final = {**{other: proxy_beside(other) for other in OTHER_SERVERS}, "host-name": proxy_at_a_name}


@pytest.fixture(scope="module")
def site(
    network: None, images: Images, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("proxy")
    dhcp = PROXIES[request.param]
    with run_site(folder, images, GUESTS, outputs="ipxe, grub, dhcp-proxy", dhcp=dhcp, dhcp_serves_tftp=True) as site:
        yield site


@pytest.mark.parametrize("site", ["Kea"], indirect=True)
def test_bios_boots_by_the_ipxe_of_its_network_card(site: Site, row: Row) -> None:
    with site.machine("card").on() as machine:
        row(machine, site.check_installation(machine, "card", "gitboot", reserved=False))


@pytest.mark.parametrize("site", ["Kea"], indirect=True)
def test_uefi_boots_by_pxe_and_ipxe(site: Site, row: Row) -> None:
    with site.machine("tftp").on() as machine:
        row(machine, site.check_installation(machine, "tftp", "gitboot", reserved=False))
    assert "Start PXE over IPv4" in machine.console_text


@pytest.mark.parametrize("site", ["dnsmasq"], indirect=True)
def test_bios_boots_by_a_network_card_without_ipxe(site: Site, row: Row) -> None:
    with replace_rom(site.machine("rom")) as rom, rom.on() as machine:
        row(machine, site.check_installation(machine, "rom", "gitboot", reserved=False))
    assert "undionly.kpxe" in machine.console_text


@pytest.mark.parametrize("site", ["dnsmasq"], indirect=True)
def test_uefi_boots_by_http_and_ipxe(site: Site, row: Row) -> None:
    with site.machine("http").on() as machine:
        row(machine, site.check_installation(machine, "http", "gitboot", reserved=False))
    assert "Start HTTP Boot over IPv4" in machine.console_text


@pytest.mark.parametrize("site", ["dnsmasq"], indirect=True)
def test_one_server_gets_another_loader_than_the_others_of_its_fleet(site: Site, row: Row) -> None:
    with site.machine("grub").on() as machine:
        row(machine, site.check_installation(machine, "grub", "gitboot", reserved=False))
    assert "Welcome to GRUB!" in machine.console_text
    assert "iPXE" not in machine.console_text


@pytest.mark.parametrize("site", ["ISC-dhcpd"], indirect=True)
def test_a_server_boots_from_the_mirror_of_its_site(site: Site, row: Row) -> None:
    with site.machine("site", "nginx").on() as machine:
        row(machine, site.check_installation(machine, "site", "nginx", reserved=False))
    assert f"{BASE_URLS['nginx']}/boot.ipxe" in machine.console_text


@pytest.mark.parametrize("site", ["host-name"], indirect=True)
def test_bios_boots_from_a_base_url_with_a_host_name(site: Site, row: Row) -> None:
    with site.machine("card").on() as machine:
        row(machine, site.check_installation(machine, "card", "gitboot", reserved=False))
    assert f"http://{HOST_NAME}:{PORT}/boot.ipxe" in machine.console_text
