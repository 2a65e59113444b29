"""A machine can fetch its secret while it is installed, and not before or after."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.boots.dhcp import dnsmasq
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import Machine, RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import LISTEN
from tests.boots.test_whole_way import build_image
from tests.endpoint.test_boot_responses_secrets import SealedFleet
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import fleet, make_mac, make_uuid, policy, profile, server
from tests.helpers.running_instance import Repository, eventually, running

BASE = BASE_URLS["gitboot"]
SECRET = "token: hunter2"
IGNITION = '{"ignition": {"version": "3.4.0"}, "join": "{{ urls.secrets.join }}", "report": "{{ urls.provisioned }}"}'


def test_a_server_fetches_its_secret_until_it_reports(
    network: None, images: Images, tmp_path: Path, row: Callable[[RunningMachine, float], None]
) -> None:
    sealed = SealedFleet(tmp_path / "keys")
    (tmp_path / "dnsmasq.conf").write_text("")  # firmware needs an address, and no DHCP options
    user_data = "userData: {format: Ignition/3.4, template: node.ign, secrets: {join: join.age}}"
    documents = (
        fleet(f"baseURL: '{BASE}', provisioning: {{evidence: Reported, clients: [192.0.2.0/24]}}"),
        server("web01", "role: web", "provision: 1"),
        build_image(
            "node-1", "poweroff", images, tmp_path / "assets", "userData: Ignition/3.4, configFrom: SystemUUID"
        ),
        profile("web", "node-1", f"httpBoot: uki, {user_data}", method="UefiHttp"),
        policy("web", "{matchLabels: {role: web}}", often="Once"),
    )
    repository = Repository.create(tmp_path / "git")
    repository.push({"f.yaml": "---\n".join(documents), "node.ign": IGNITION, "join.age": sealed.seal(f"{SECRET}\n")})
    machine = Machine(folder=tmp_path, uuid=make_uuid("web01"), macs=(make_mac("web01"),))
    machine.boot_next(f"{BASE}/assets/node-1/node-1.efi")
    options = ("--assets", str(tmp_path / "assets"), "--secret-keys", str(sealed.file))
    with (
        dnsmasq(tmp_path, tmp_path),
        running(repository.bare, tmp_path, *LISTEN, *options, records="fresh") as instance,
        machine.on() as booted,
    ):
        seconds = booted.wait_for(
            f"BOOTED with its secret: {SECRET}",
            "BOOTED and reported",
            "BOOTED without its secret from then on",
            END_TEXT,
        )
        url = re.findall(rf"{BASE}/s/[^\"\s]+/join", booted.console_text)[0]
        eventually(lambda: instance.status()["records"] == {"Provisioned": 1})
        for again in range(3):
            assert httpx.get(url, headers=LOADER).status_code == 404, again
            time.sleep(0.5)
        everything = b"".join(path.read_bytes() for path in (tmp_path / "output").rglob("*") if path.is_file())
        assert b"hunter2" not in everything
        row(booted, seconds)
