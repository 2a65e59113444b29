"""Machines of another architecture, in a fleet whose images are for both: by GRUB, by iPXE, by a uki's URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.boots.architectures import AARCH64, X86_64
from tests.boots.disks import MARK
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import Site, run_site

Row = Callable[[RunningMachine, float], None]

GUESTS = (
    Guest(name="http", architecture=AARCH64),
    Guest(name="tftp", architecture=AARCH64, pxe=True, by=("nginx",)),
    Guest(name="disk", architecture=AARCH64, installed=True, by=("Caddy",)),
    Guest(name="uki", architecture=AARCH64, boots="uki-{by}"),
)
OUTPUTS = {"GRUB": "grub", "iPXE": "ipxe"}
STARTED = {"GRUB": 1, "iPXE": 2}  # by firmware, until a disk is booted: GRUB finds its loader, iPXE hands back

by_each_loader = pytest.mark.parametrize("loader", OUTPUTS, indirect=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images.build(tmp_path_factory.mktemp("both"), X86_64, AARCH64)


@pytest.fixture(scope="module")
def loader(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(network: None, images: Images, loader: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("aarch64")
    with run_site(folder, images, GUESTS, outputs=f"{OUTPUTS[loader]}, dhcp-dnsmasq") as site:
        yield site


@by_each_loader
@pytest.mark.parametrize("by", ["gitboot"])
def test_uefi_boots_by_http(site: Site, by: str, row: Row) -> None:
    with site.machine("http", by).on() as machine:
        row(machine, site.check_installation(machine, "http", by))


@by_each_loader
@pytest.mark.parametrize("by", ["nginx"])
def test_uefi_boots_by_pxe(site: Site, by: str, row: Row) -> None:
    with site.machine("tftp", by).on() as machine:
        row(machine, site.check_installation(machine, "tftp", by))


@by_each_loader
@pytest.mark.parametrize("by", ["Caddy"])
def test_an_installed_server_boots_its_disk(site: Site, loader: str, by: str, row: Row) -> None:
    with site.machine("disk", by, disk=True).on() as machine:
        row(machine, machine.wait_for(f"/loaders/{OUTPUTS[loader]}-aarch64.efi", loader, "boots its local disk", MARK))
        assert machine.console_text.count("BdsDxe: starting") == STARTED[loader]


@pytest.mark.parametrize("loader", ["GRUB"], ids=["gitboot"], indirect=True)
def test_uefi_boots_a_uki_by_its_url(site: Site, row: Row) -> None:
    machine = site.machine("uki")
    machine.boot_next(httpx.get(f"{BASE_URLS['gitboot']}/httpboot/{machine.uuid}.json").json()["UKIURL"])
    with machine.on() as running:
        row(running, site.check_installation(running, "uki", "gitboot", image="uki-gitboot-1"))
