"""Networks with IPv6 only: DHCPv6, and every fetch.

Firmware tries IPv4 first. The first network has none, so firmware waits a minute; on the others IPv4 is rejected. If
firmware began with IPv6, it would not wait until its own address is ready, and would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.boots.dhcp import dnsmasq6, kea6, reject_ipv4
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.site import Site, run_site

BY: Final = {"gitboot": dnsmasq6, "nginx": reject_ipv4(dnsmasq6), "Caddy": reject_ipv4(kea6)}
GUESTS = (Guest(name="http", by=tuple(f"{by}-IPv6" for by in BY)),)


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, network: None, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ipv6")
    with run_site(folder, images, GUESTS, outputs="ipxe, dhcp-dnsmasq, dhcp-kea", dhcp=request.param) as site:
        yield site


@pytest.mark.parametrize(("by", "site"), BY.items(), ids=("gitboot", "nginx", "Caddy-and-Kea"), indirect=["site"])
def test_uefi_boots_by_http_and_ipxe_over_ipv6(
    site: Site, by: str, row: Callable[[RunningMachine, float], None]
) -> None:
    with site.machine("http", f"{by}-IPv6").on() as machine:
        row(machine, site.check_installation(machine, "http", f"{by}-IPv6"))
