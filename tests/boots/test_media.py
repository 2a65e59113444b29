"""A server without DHCP: its BMC fetches an ISO by https, and its user data; that boots once, and then its disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.boots import uki
from tests.boots.architectures import X86_64
from tests.boots.bmc import MachineDriver, change_power
from tests.boots.disks import MARK
from tests.boots.images import ARGUMENTS, Images, digest
from tests.boots.initramfs import END_TEXT
from tests.boots.network import BASE_URLS, HOST
from tests.boots.site import LISTEN
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.fleets import document, fleet, make_mac, policy, profile, server, store_credentials
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, create_ledger, eventually, running

BASE = BASE_URLS["gitboot"]
ADDRESS = "192.0.2.50/24"


def _build_iso(images: Images, folder: Path) -> Path:
    """Build a disc that boots, has its address, and finds its user data on another disc."""
    kernel, initrd = (images.by_name["node-1"][X86_64][kind] for kind in ("kernel", "initrd"))
    words = f"{ARGUMENTS} boot.image=node-1 boot.reads=cidata boot.address={ADDRESS} boot.then=reboot"
    loader = uki.build(kernel, initrd, words, X86_64, folder / "node-1.efi")
    return uki.iso(loader, X86_64, folder / "node-1.iso")


def test_a_server_is_installed_from_a_medium_without_dhcp(
    network: None, images: Images, tmp_path: Path, row: Callable[[MachineDriver, float], None]
) -> None:
    driver = MachineDriver.create("web01", tmp_path, images)
    double = driver.double
    trust = f'networks = ["{HOST}"]\nhttp = true\n'
    store_credentials(tmp_path / "credentials", "bmc", password="calvin", trust=trust)
    repository, named = Repository.create(tmp_path / "git"), create_ledger(tmp_path / "state")
    authority, disc = Authority(tmp_path), _build_iso(images, tmp_path)
    driver.trusts.load_verify_locations(cadata=authority.pem)
    trusting = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}  # it looks whether the ISO is there
    options = ("--credentials", str(tmp_path / "credentials"))
    with (
        RedfishServer(Service(double, credentials={"root": "calvin"}), host=HOST) as bmc,
        artifact_server(authority.server_context(f"IP:{HOST}"), host=HOST) as elsewhere,
    ):
        elsewhere.put("/node-1.iso", disc.read_bytes())
        iso = f"{elsewhere.url}/node-1.iso"
        artifacts = f"architectures: {{x86_64: {{iso: {{url: '{iso}', sha256: {digest(disc)}}}}}}}"
        at = f"bmc: {{address: '{bmc.url}', system: /redfish/v1/Systems/1, credentials: bmc}}"
        documents = (
            fleet(f"baseURL: '{BASE}', provisioning: {{evidence: Reported, ledger: {named}}}"),
            server("web01", "role: web", f"provision: 1, {at}"),
            document("BootImage", "node-1", f"version: '1', userData: CloudInit, configFrom: Medium, {artifacts}"),
            profile("web", "node-1", "userData: {format: CloudInit, template: cloud.txt}", method="VirtualMedia"),
            policy("web", "{matchLabels: {role: web}}", "power: 'On'", often="Once"),
        )
        template = '#cloud-config\nphone_home: {"url": "{{ urls.provisioned }}"}\n'
        pushed = time.monotonic()
        repository.push({"fleet.yaml": "---\n".join(documents), "cloud.txt": template})
        with (
            driver.run_clock(),
            running(repository.bare, tmp_path, *LISTEN, *options, environment=trusting, records="fresh") as instance,
        ):
            drives = double.drives
            eventually(lambda: drives[1].image == iso)
            assert str(drives[0].image).startswith(f"{BASE}/media/"), "its data lay there before"
            driver.wait_for(
                *(1, "boot.image=node-1", f"BOOTED with {make_mac('web01')}: {ADDRESS}"),
                *("BOOTED with a medium: meta-data user-data vendor-data", "BOOTED user data: #cloud-config"),
                *("BOOTED and reported", END_TEXT),
            )
            driver.wait_for(2, MARK)
            eventually(lambda: {drive.image for drive in drives} == {None})
            row(driver, time.monotonic() - pushed)
            change_power("reset --force", "web01", tmp_path)
            driver.wait_for(3, MARK)
            assert [(boot.target, boot.medium is not None) for boot in double.boots] == [
                ("Cd", True),
                ("None", False),
                ("None", False),
            ]
            assert [len(drive.ejected) for drive in drives] == [1, 1]
            [item] = instance.get("/api/v1/servers").json()["items"]
            assert item["phase"] == "Disk"
