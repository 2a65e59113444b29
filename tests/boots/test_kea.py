"""Kea instead of dnsmasq; over IPv6 it is in test_ipv6.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots.dhcp import kea
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import RunningMachine
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS = (
    Guest(name="card", uefi=False, by=("gitboot", "nginx")),
    Guest(name="tftp", pxe=True, by=("gitboot", "Caddy")),
    Guest(name="http", by=("gitboot", "nginx")),
    Guest(name="unknown", uefi=False, boots=None, by=("gitboot", "Caddy")),
)
ANSWERED = {guest.name: guest.by for guest in GUESTS}


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("kea")
    more = ", unknownServers: {profile: discovery}"
    with run_site(folder, images, GUESTS, outputs="ipxe, dhcp-kea", more=more, dhcp=kea) as site:
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


@pytest.mark.parametrize("by", ANSWERED["unknown"])
def test_an_unknown_server_boots_the_boot_that_the_fleet_names(site: Site, by: str, row: Row) -> None:
    with site.machine("unknown", by).on() as machine:
        row(
            machine,
            machine.wait_for("this machine is unknown. It boots discovery-1.", "boot.image=discovery-1", END_TEXT),
        )
    assert site.fetched(by, "/unknown.ipxe")
