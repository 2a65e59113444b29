"""A gitboot without a valid commit: 503 for every request until the first one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boots.dhcp import dnsmasq
from tests.boots.fleet import Guest, files
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import LISTEN, Site, place_loaders
from tests.helpers.running_instance import Repository, begin_records, running

GUESTS = {
    "ipxe": Guest(name="ipxe", uefi=False),
    "grub": Guest(name="grub"),
}
RETRY_TEXTS = {
    "ipxe": "No more network devices",  # and firmware starts again
    "grub": "is unavailable, trying again",
}


@pytest.mark.parametrize("name", GUESTS)
def test_a_server_boots_once_gitboot_has_made_a_plan(
    network: None, images: Images, tmp_path: Path, name: str, row: Callable[[RunningMachine, float], None]
) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "kind: Fleet\n"})
    boot = tmp_path / "output" / "boot"
    images.place(boot / "assets")
    place_loaders(repository.work, boot, tmp_path / "tftp", BASE_URLS["gitboot"])
    (tmp_path / "dnsmasq.conf").write_text(f"dhcp-boot={BASE_URLS['gitboot']}/boot.ipxe\n")  # it is not generated yet
    options = ("--assets", str(boot / "assets"))
    with (
        running(repository.bare, tmp_path, *LISTEN, *options, ready=False) as instance,
        dnsmasq(tmp_path, tmp_path),
    ):
        site = Site(folder=tmp_path, images=images, guests=GUESTS, repository=repository, instance=instance, logs={})
        assert instance.get("/boot.ipxe").status_code == 503
        machine = site.machine(name, reboots=True)
        if machine.uefi:
            machine.boot_next(f"{BASE_URLS['gitboot']}/assets/loaders/grub-x86_64.efi")
        with machine.on() as powered:
            powered.wait_for(RETRY_TEXTS[name])
            repository.push(files([GUESTS[name]], images, outputs="ipxe, grub"))
            begin_records(tmp_path / "state", "fresh")
            row(powered, site.check_installation(powered, name, "gitboot", reserved=False))
