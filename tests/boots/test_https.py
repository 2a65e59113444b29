"""UEFI HTTPS boot from gitboot's own endpoint: an enrolled authority, and what firmware refuses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.boots.dhcp import dnsmasq
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import Machine, RunningMachine
from tests.boots.network import BASE_URLS, HOST
from tests.boots.programs import program
from tests.boots.site import LISTEN
from tests.boots.test_whole_way import build_image
from tests.docs.test_https import PAGE, make_certificates
from tests.endpoint.test_tls import put, served
from tests.helpers.documentation import find_code_block
from tests.helpers.endpoints import Site, get
from tests.helpers.fleets import fleet, make_mac, make_uuid, policy, profile, server, write_configuration
from tests.helpers.http_peers import Authority, IssuedCertificate
from tests.helpers.running_instance import Repository, eventually, running

ADDRESS: Final = f"{HOST}:8443"
BASE: Final = f"https://{ADDRESS}"
UKI: Final = f"{BASE}/assets/uki-gitboot-1/uki-gitboot-1-x86_64.efi"
REFUSED: Final = "Could not retrieve NBP file size from HTTP server."

Row = Callable[[RunningMachine, float], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), rsa_bits=2048)


@pytest.fixture(scope="module")
def issued(authority: Authority) -> IssuedCertificate:
    return authority.issue(f"IP:{HOST}", rsa_bits=2048)


@pytest.fixture
def assets(images: Images, tmp_path: Path) -> Path:
    images.place(tmp_path / "assets")
    return tmp_path / "assets"


def enroll(authority: str, folder: Path) -> Path:
    """Return the EFI signature list with an authority, as docs/how-to/https-for-machines.md describes it."""
    (folder / "ca.pem").write_text(authority)
    program("cert-to-efi-sig-list")  # this fails if it is missing
    line, _ = find_code_block(PAGE, "cert-to-efi-sig-list ").splitlines()
    subprocess.run(["sh", "-euc", line], cwd=folder, check=True)
    return folder / "ca.esl"


def make_machine(folder: Path, trusts: str | None) -> Machine:
    folder.mkdir()
    authorities = enroll(trusts, folder) if trusts is not None else None
    return Machine(folder=folder, uuid=make_uuid("web01"), macs=(make_mac("web01"),), authorities=authorities)


@contextmanager
def run_endpoint(folder: Path, assets: Path, issued: IssuedCertificate, *more: str) -> Iterator[Callable[[], set[str]]]:
    """Run an endpoint that serves machines by TLS. Yield a function that returns the reasons of failed handshakes."""
    (folder / "output").mkdir(exist_ok=True)
    (folder / "dnsmasq.conf").write_text("")  # firmware needs an address, and no DHCP options
    options = ("--assets", str(assets), "--machines-tls", ADDRESS, *map(str, issued), *more)
    with dnsmasq(folder, folder), served(Site(folder / "output"), *options) as (_, operators):

        def failures() -> set[str]:
            text = get(f"{operators}/metrics").text
            found = re.findall(r'gitboot_machine_handshakes_failed_total{reason="(\w+)"} (\S+)', text)
            return {reason for reason, count in found if float(count) > 0}

        yield failures


def test_a_server_is_installed_by_uefi_https_boot(network: None, images: Images, tmp_path: Path, row: Row) -> None:
    """The certificate is the one of docs/how-to/https-for-machines.md. Firmware fetches the UKI by https.

    busybox has no TLS that OpenSSL accepts, so the system reports by http.
    """
    make_certificates(tmp_path)
    issued = IssuedCertificate(tmp_path / "machines.crt", tmp_path / "machines.key")
    (tmp_path / "dnsmasq.conf").write_text("")
    plain = BASE_URLS["gitboot"]
    template = f"{{{{ urls.provisioned | replace('{BASE}', '{plain}') }}}}"
    documents = (
        fleet(f"baseURL: '{BASE}', provisioning: {{evidence: Reported, clients: [192.0.2.0/24]}}"),
        server("web01", "role: web", "provision: 1"),
        build_image(
            "node-1", "poweroff", images, tmp_path / "assets", "userData: Ignition/3.4, configFrom: SystemUUID"
        ),
        profile("web", "node-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
        policy("web", "{matchLabels: {role: web}}", often="Once"),
    )
    repository = Repository.create(tmp_path / "git")
    ignition = f'{{"ignition": {{"version": "3.4.0"}}, "report": "{template}"}}'
    repository.push({"f.yaml": "---\n".join(documents), "t": ignition})
    options = (*LISTEN, "--assets", str(tmp_path / "assets"), "--machines-tls", ADDRESS, *map(str, issued))
    machine = make_machine(tmp_path / "machine", (tmp_path / "ca.pem").read_text())
    with dnsmasq(tmp_path, tmp_path), running(repository.bare, tmp_path, *options, records="fresh") as instance:
        url = instance.get(f"/httpboot/{machine.uuid}.json").json()["UKIURL"]
        assert url == f"{BASE}/assets/node-1/node-1.efi"
        machine.boot_next(url)
        with machine.on() as booted:
            seconds = booted.wait_for("BOOTED by uefi: ", "boot.image=node-1", "BOOTED and reported", END_TEXT)
            eventually(lambda: instance.status()["records"] == {"Provisioned": 1})
            row(booted, seconds)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        pytest.param("another-authority", "Closed", id="another-authority"),
        pytest.param("no-authority", None, id="no-authority"),  # firmware does not connect
        pytest.param("another-address", "Closed", id="another-address"),
        pytest.param("no-suites", "NoSharedCipher", id="no-suites"),
    ],
)
def test_firmware_refuses_an_https_boot(
    network: None,
    authority: Authority,
    issued: IssuedCertificate,
    assets: Path,
    tmp_path: Path,
    how: str,
    reason: str | None,
    row: Row,
) -> None:
    trusts: str | None = authority.pem
    more: tuple[str, ...] = ()
    match how:
        case "another-authority":
            (tmp_path / "other").mkdir()
            trusts = Authority(tmp_path / "other", rsa_bits=2048).pem
        case "no-authority":
            trusts = None
        case "another-address":
            issued = authority.issue("IP:192.0.2.99", rsa_bits=2048)
        case _:
            more = write_configuration(firmware_ciphers=False)
    machine = make_machine(tmp_path / "machine", trusts)
    machine.boot_next(UKI)
    with run_endpoint(tmp_path, assets, issued, *more) as failures, machine.on() as running:
        row(running, running.wait_for(REFUSED))
        if reason is not None:
            assert eventually(failures) == {reason}
        assert "BOOTED" not in running.console_text


def test_a_new_certificate_is_used_at_the_next_boot_without_a_restart(
    network: None, authority: Authority, issued: IssuedCertificate, assets: Path, tmp_path: Path, row: Row
) -> None:
    own = IssuedCertificate(tmp_path / "machines.pem", tmp_path / "machines.key")
    for file, target in zip(authority.issue("IP:192.0.2.99", rsa_bits=2048), own, strict=True):
        put(target, file.read_bytes())
    machine = make_machine(tmp_path / "machine", authority.pem)
    with run_endpoint(tmp_path, assets, own):
        machine.boot_next(UKI)
        with machine.on() as running:
            running.wait_for(REFUSED)
        for file, target in zip(issued, own, strict=True):
            put(target, file.read_bytes())
        machine.boot_next(UKI)
        with machine.on() as running:
            row(running, running.wait_for("BOOTED by uefi: ", "boot.image=uki-gitboot-1"))
