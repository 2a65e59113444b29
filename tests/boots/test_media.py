"""A server without DHCP: its BMC fetches an ISO, its firmware boots it once, and its disk from then on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.boots import uki
from tests.boots.architectures import X86_64
from tests.boots.bmc import Owner, switch
from tests.boots.disks import MARK
from tests.boots.images import ARGUMENTS, Images, digest
from tests.boots.initramfs import END
from tests.boots.network import BASE_URLS, HOST
from tests.boots.site import LISTEN
from tests.credentials import give_credentials
from tests.fleets import document, fleet, mac_of, policy, profile, server
from tests.instance import Repository, eventually, running
from tests.redfish.server import RedfishServer
from tests.redfish.service import Service

BASE = BASE_URLS["gitboot"]
ADDRESS = "192.0.2.50/24"


def _iso(images: Images, assets: Path) -> str:
    """An image that is an ISO alone, placed and described; it knows its address."""
    kernel, initrd = (images.by_name["node-1"][X86_64][kind] for kind in ("kernel", "initrd"))
    folder = assets / "node-1"
    folder.mkdir(parents=True)
    words = f"{ARGUMENTS} boot.image=node-1 boot.base={BASE} boot.address={ADDRESS} boot.then=reboot"
    loader = uki.build(kernel, initrd, words, X86_64, folder / "node-1.efi")
    disc = uki.iso(loader, X86_64, folder / "node-1.iso")
    artifact = f"{{iso: {{url: 'assets:node-1/node-1.iso', sha256: {digest(disc)}}}}}"
    more = "userData: Ignition/3.4, configFrom: SystemUUID"
    return document("BootImage", "node-1", f"version: '1', {more}, architectures: {{x86_64: {artifact}}}")


def test_a_server_is_installed_from_a_medium_without_dhcp(
    network: None, images: Images, tmp_path: Path, row: Callable[[Owner, float], None]
) -> None:
    owner = Owner.of_new("web01", tmp_path, images)
    double = owner.double
    trust = f'networks = ["{HOST}"]\nhttp = true\n'
    give_credentials(tmp_path / "credentials", "bmc", password="calvin", trust=trust)
    repository = Repository.create(tmp_path / "git")
    options = ("--assets", str(tmp_path / "assets"), "--credentials", str(tmp_path / "credentials"))
    with RedfishServer(Service(double, credentials={"root": "calvin"}), host=HOST) as bmc:
        at = f"bmc: {{address: '{bmc.url}', system: /redfish/v1/Systems/1, credentials: bmc}}"
        documents = (
            fleet(f"baseURL: '{BASE}', provisioning: {{evidence: Reported}}"),
            server("web01", "role: web", f"provision: 1, {at}"),
            _iso(images, tmp_path / "assets"),
            profile("web", "node-1", "userData: {format: Ignition/3.4, template: node.ign}", method="VirtualMedia"),
            policy("web", "{matchLabels: {role: web}}", "power: 'On'", often="Once"),
        )
        template = '{"ignition": {"version": "3.4.0"}, "report": "{{ urls.provisioned }}"}'
        pushed = time.monotonic()
        repository.push({"fleet.yaml": "---\n".join(documents), "node.ign": template})
        with (
            owner.ticking(),
            running(repository.bare, tmp_path, *LISTEN, *options, records="fresh") as instance,
        ):
            disc = double.drives[1]
            eventually(lambda: disc.image == f"{BASE}/assets/node-1/node-1.iso", within_s=60)
            owner.says(1, "boot.image=node-1", f"BOOTED with {mac_of('web01')}: {ADDRESS}", "BOOTED and reported", END)
            owner.says(2, MARK)
            eventually(lambda: disc.image is None, within_s=60)
            row(owner, time.monotonic() - pushed)
            switch("reset --force", "web01", tmp_path)
            owner.says(3, MARK)
            assert [(boot.target, boot.medium is not None) for boot in double.boots] == [
                ("Cd", True),
                ("None", False),
                ("None", False),
            ]
            assert len(disc.ejected) == 1
            [item] = instance.get("/api/v1/servers").json()["items"]
            assert item["phase"] == "Disk"
