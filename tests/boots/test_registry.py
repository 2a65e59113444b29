"""A machine boots an image of an OCI registry: its tag resolved into the fleet, its files mirrored, fetched by iPXE."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.boots.architectures import X86_64
from tests.boots.dhcp import dnsmasq
from tests.boots.fleet import Guest, files
from tests.boots.images import Images, digest
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import LISTEN, Site
from tests.helpers.artifact_servers import IRONCORE, registry
from tests.helpers.instance_with_bmcs import wait_for_condition
from tests.helpers.running_instance import Repository, running

GUEST = Guest(name="card", uefi=False)


def assets(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "gitboot", "artifacts", *map(str, arguments), "-o", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_server_boots_from_a_registry(
    network: None, images: Images, tmp_path: Path, row: Callable[[RunningMachine, float], None]
) -> None:
    kernel, initrd = (images.by_name["node-1"][X86_64][kind] for kind in ("kernel", "initrd"))
    (tmp_path / "dnsmasq.conf").write_text(f"dhcp-boot={BASE_URLS['gitboot']}/boot.ipxe\n")
    repository = Repository.create(tmp_path / "git")
    with (
        registry(tmp_path / "registry", storage=tmp_path / "storage") as found,
        dnsmasq(tmp_path, tmp_path),
    ):
        layers = [(f"{IRONCORE}kernel", kernel.read_bytes()), (f"{IRONCORE}initramfs", initrd.read_bytes())]
        image = found.push_image("os/node", "pxe", layers)
        found.push_index("os/node", "1", [{**image, "platform": {"architecture": "amd64", "os": "linux"}}])
        asked = ("--registries", found.allowed)
        resolved = assets("resolve", f"oci://{found.host}/os/node:1", *asked)["architectures"][X86_64.name]

        fleet = files([GUEST], images, outputs="ipxe, mirror")
        for path, artifact in ((kernel, resolved["kernel"]), (initrd, resolved["initrds"][0])):
            written = f"{{url: 'assets:node-1/{path.name}', sha256: {digest(path)}}}"
            assert written in fleet["fleet.yaml"]
            fleet["fleet.yaml"] = fleet["fleet.yaml"].replace(written, json.dumps(artifact))
        repository.push(fleet)
        with running(repository.bare, tmp_path, *LISTEN, records="fresh") as instance:
            assets("download", repository.work, "--out", tmp_path / "output" / "boot", *asked)
            wait_for_condition(instance, "ArtifactsPresent", status=True, reason="Present")  # it has seen them come
            guests = {GUEST.name: GUEST}
            site = Site(
                folder=tmp_path, images=images, guests=guests, repository=repository, instance=instance, logs={}
            )
            with site.machine(GUEST.name).on() as machine:
                row(machine, site.check_installation(machine, GUEST.name, "gitboot", reserved=False))
                # iPXE's console ends within the digest.
                assert all(
                    f"{BASE_URLS['gitboot']}/o/{digest(file)[:40]}" in machine.console_text for file in (kernel, initrd)
                )
