"""A network without IPv4: DHCPv6, and all that is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import Running
from tests.boots.site import Site, published

GUESTS = (Guest(name="http", by=("IPv6",)),)


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ipv6")
    with published(folder, images, GUESTS, outputs="ipxe, dhcp-dnsmasq", ipv6=True) as site:
        yield site


def test_uefi_boots_by_http_and_ipxe_over_ipv6(site: Site, row: Callable[[Running, float], None]) -> None:
    with site.machine("http", "IPv6").on() as machine:
        row(machine, site.expects_installation(machine, "http", "IPv6"))
