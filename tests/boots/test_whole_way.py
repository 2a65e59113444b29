"""From a pushed commit to the boot of a machine and back to its disk: only gitboot switches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.boots import uki
from tests.boots.architectures import X86_64
from tests.boots.bmc import MachineDriver
from tests.boots.dhcp import dnsmasq
from tests.boots.disks import MARK
from tests.boots.images import ARGUMENTS, Images, digest
from tests.boots.initramfs import END_TEXT
from tests.boots.network import BASE_URLS, HOST
from tests.boots.site import LISTEN
from tests.helpers.fleets import document, fleet, maintenance, policy, profile, server, store_credentials
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, create_ledger, eventually, running

BASE = BASE_URLS["gitboot"]
WINDOW = timedelta(seconds=100)  # or twice what this machine takes for two boots


def build_image(name: str, then: str, images: Images, assets: Path, more: str) -> str:
    """A unified kernel image, placed and described."""
    kernel, initrd = (images.by_name["node-1"][X86_64][kind] for kind in ("kernel", "initrd"))
    folder = assets / name
    folder.mkdir(parents=True)
    words = f"{ARGUMENTS} boot.image={name} boot.base={BASE} boot.then={then}"
    made = uki.build(kernel, initrd, words, X86_64, folder / f"{name}.efi")
    artifact = f"{{uki: {{url: 'assets:{name}/{name}.efi', sha256: {digest(made)}}}}}"
    return document("BootImage", name, f"version: '1', {more}, architectures: {{x86_64: {artifact}}}")


def test_a_commit_installs_a_server_and_a_window_repairs_it(
    network: None, images: Images, tmp_path: Path, row: Callable[[MachineDriver, float], None]
) -> None:
    assets = tmp_path / "assets"
    driver = MachineDriver.create("web01", tmp_path, images)
    double = driver.double
    trust = f'networks = ["{HOST}"]\nhttp = true\n'
    store_credentials(tmp_path / "credentials", "bmc", password="calvin", trust=trust)
    (tmp_path / "dnsmasq.conf").write_text("")  # firmware needs an address, and no DHCP options
    repository, named = Repository.create(tmp_path / "git"), create_ledger(tmp_path / "state")
    options = ("--assets", str(assets), "--credentials", str(tmp_path / "credentials"))
    with RedfishServer(Service(double, credentials={"root": "calvin"}), host=HOST) as bmc:
        at = f"bmc: {{address: '{bmc.url}', system: /redfish/v1/Systems/1, credentials: bmc}}"
        ignition = "userData: {format: Ignition/3.4, template: node.ign}"
        documents = [
            fleet(f"baseURL: '{BASE}', provisioning: {{evidence: Reported, ledger: {named}}}"),
            server("web01", "role: web", f"provision: 1, {at}"),
            build_image("node-1", "reboot", images, assets, "userData: Ignition/3.4, configFrom: SystemUUID"),
            build_image("repair-1", "window", images, assets, "writesDisk: false, configFrom: None"),
            profile("web", "node-1", f"httpBoot: uki, {ignition}", method="UefiHttp"),
            profile("repair", "repair-1", "httpBoot: uki", method="UefiHttp"),
            policy("web", "{matchLabels: {role: web}}", "power: 'On'", often="Once"),
        ]
        template = '{"ignition": {"version": "3.4.0"}, "report": "{{ urls.provisioned }}"}'
        pushed = time.monotonic()
        repository.push({"fleet.yaml": "---\n".join(documents), "node.ign": template})
        with (
            dnsmasq(tmp_path, tmp_path),
            driver.run_clock(),
            running(repository.bare, tmp_path, *LISTEN, *options, records="fresh") as instance,
        ):
            driver.wait_for(1, "boot.image=node-1", "BOOTED and reported", END_TEXT)
            driver.wait_for(2, MARK)
            assert [boot.target for boot in double.boots] == ["UefiHttp", "None"]
            [item] = instance.get("/api/v1/servers").json()["items"]
            assert item["phase"] == "Disk"

            start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
            end = start + max(WINDOW, timedelta(seconds=round(2 * (time.monotonic() - pushed))))
            window = f"{start:%Y-%m-%dT%H:%M:%S} {end:%Y-%m-%dT%H:%M:%S}"
            repair = maintenance("repair", window, "networkBoot: Always, power: Restart")
            repository.push({"repair.yaml": repair})
            driver.wait_for(3, "boot.image=repair-1", END_TEXT)
            assert start < datetime.now(UTC) < end
            driver.wait_for(3, "BOOTED until its window ended")
            assert datetime.now(UTC) >= end
            driver.wait_for(4, MARK)
            assert [boot.target for boot in double.boots] == ["UefiHttp", "None", "UefiHttp", "None"]
            eventually(lambda: double.system()["Boot"]["BootSourceOverrideEnabled"] == "Disabled")
            row(driver, time.monotonic() - pushed)
