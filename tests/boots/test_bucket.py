"""A machine boots from an S3 bucket: an endpoint serves the one-time boot, and the log of the store proves it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.boots.architectures import X86_64
from tests.boots.dhcp import dnsmasq
from tests.boots.fleet import Guest, files
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS, HOST
from tests.boots.site import LISTEN, Site
from tests.helpers.fleets import store_credentials
from tests.helpers.mirrors import KEY, s3_server
from tests.helpers.running_instance import Repository, eventually, running

GUEST = Guest(name="bucket", uefi=False)
ENDPOINT = BASE_URLS["gitboot"]


def test_a_server_boots_from_a_bucket(
    network: None, images: Images, tmp_path: Path, row: Callable[[RunningMachine, float], None]
) -> None:
    store_credentials(tmp_path / "keys", "store", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
    repository = Repository.create(tmp_path / "git")
    spool = tmp_path / "state" / "spool"
    with ExitStack() as stack:
        store = stack.enter_context(s3_server(HOST))
        store.make("boots")
        store.let_all_read("boots", "")
        base = f"{store.url}/boots/boot"
        (tmp_path / "dnsmasq.conf").write_text(f"dhcp-boot={base}/boot.ipxe\n")
        stack.enter_context(dnsmasq(tmp_path, tmp_path))
        for path in images.by_name["node-1"][X86_64].values():  # an operator brings the files below assets:
            store.put("boots", f"boot/assets/node-1/{path.name}", path.read_bytes())
        fleet = files([GUEST], images, outputs="ipxe", more=f", endpoint: '{ENDPOINT}'")
        fleet["fleet.yaml"] = fleet["fleet.yaml"].replace(f"baseURL: '{ENDPOINT}'", f"baseURL: '{base}'")
        repository.push(fleet)
        target = f"s3://boots?endpoint={store.url}&credentials={tmp_path}/keys/store&serves={base}"
        with running(repository.bare, tmp_path, *LISTEN, "--target", target, records="fresh") as instance:
            eventually(lambda: [path for path in store.paths("boots", "boot/v1/") if path.endswith("/boot.ipxe")])
            (entry,) = (path for path in store.paths("boots", "boot/v1/") if path.endswith("/boot.ipxe"))
            eventually(lambda: f"{ENDPOINT}/v1/boot/".encode() in store.get("boots", entry).content)
            assert httpx.get(f"{store.url}/boots/ops/manifest.json").status_code == 403
            site = Site(
                folder=tmp_path,
                images=images,
                guests={GUEST.name: GUEST},
                repository=repository,
                instance=instance,
                logs={},
            )
            with site.machine(GUEST.name).on() as machine:
                seconds = machine.wait_for(
                    "BOOTED by bios: ", "boot.image=node-1", f"{base}/v1/boot/", "BOOTED and reported", END_TEXT
                )
                assert "BOOTED from" not in machine.console_text
            assert site.phase(GUEST.name, "gitboot") == "Network"  # only the store has its end
            (tmp_path / "s3.log").write_text("".join(store.log))
            observe = [sys.executable, "-m", "gitboot", "read-access-logs", tmp_path / "s3.log", "--spool", spool]
            subprocess.run(list(map(str, observe)), check=True, capture_output=True)
            eventually(lambda: site.phase(GUEST.name, "gitboot") == "Disk")
            eventually(lambda: b"kernel " not in store.get("boots", entry).content)
            row(machine, seconds)
