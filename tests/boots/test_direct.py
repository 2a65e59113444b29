"""Files that firmware fetches itself: the URI of a UKI or an ISO, set for the next boot as a BMC does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS = (
    Guest(name="uki", boots="uki-{by}", by=("gitboot", "Caddy")),
    Guest(name="iso", boots="iso-{by}", by=("gitboot", "nginx")),
)


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    outputs = "ipxe, dhcp-dnsmasq"
    with run_site(tmp_path_factory.mktemp("direct"), images, GUESTS, outputs=outputs) as site:
        yield site


@pytest.mark.parametrize(("name", "by"), [(guest.name, by) for guest in GUESTS for by in guest.by])
def test_uefi_boots_a_file_by_its_url(site: Site, name: str, by: str, row: Row) -> None:
    machine = site.machine(name, by)
    machine.boot_next(httpx.get(f"{BASE_URLS[by]}/httpboot/{machine.uuid}.json").json()["UKIURL"])
    with machine.on() as running:
        row(running, site.check_installation(running, name, by, image=f"{name}-{by.lower()}-1"))
