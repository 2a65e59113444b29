"""Secure Boot: a distribution's shim and GRUB with Microsoft's keys, and a UKI with an operator's own key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import httpx
import pytest

from tests.boots.architectures import X86_64
from tests.boots.debian import unpacked
from tests.boots.dhcp import NO_MACS, Dhcp, dnsmasq, kea
from tests.boots.fleet import UNSIGNED, Guest
from tests.boots.images import Images
from tests.boots.machine import VENDOR, Machine, RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.signing import SigningKey, remove_signature, tamper
from tests.boots.site import Site, run_site
from tests.helpers.fleets import make_mac, make_uuid

Row = Callable[[RunningMachine, float], None]

_SPEC: Final = "secureBoot: true"
GUESTS = (
    # Each DHCP server has its own machine. GRUB always uses the same ports, and this host still has connections of a
    # machine that was switched off.
    Guest(name="tftp-dnsmasq", pxe=True, spec=_SPEC, secure_boot=VENDOR),
    Guest(name="tftp-plain-dnsmasq", pxe=True, spec=_SPEC, secure_boot=VENDOR),
    Guest(name="tftp-kea", pxe=True, spec=_SPEC, secure_boot=VENDOR),
    Guest(name="http", by=("gitboot", "nginx", "Caddy"), spec=_SPEC, secure_boot=VENDOR),
    Guest(name="unsigned", boots="unsigned", spec=_SPEC, secure_boot=VENDOR),
    Guest(name="uki", boots="uki-{by}", spec=_SPEC),
)
_ENABLED: Final = "BOOTED with Secure Boot"
_UKI: Final = "uki-gitboot-1"
_GRUB: Final = "grubx64.efi"
_RELEASE: Final = "trixie"  # the first whose signed GRUB fetches by HTTP


@contextmanager
def _run_dnsmasq_without_header(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    """Run dnsmasq so that it sends the path of the loader only as an option, as it does by default."""
    own = folder / "dhcp"
    own.mkdir()
    lines = (generated / "dnsmasq.conf").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line != "dhcp-no-override\n"]
    assert len(kept) == len(lines) - 1
    (own / "dnsmasq.conf").write_text("".join(kept))
    with dnsmasq(own, folder, unknown):
        yield


# Where shim finds GRUB by TFTP: in its own folder, if the answer has its path in the header field, else in the root.
SERVERS: Final[Mapping[str, tuple[Dhcp, str]]] = {
    "dnsmasq": (dnsmasq, f"loaders/{_GRUB}"),
    "plain-dnsmasq": (_run_dnsmasq_without_header, _GRUB),
    "Kea": (kea, f"loaders/{_GRUB}"),
}
by_dnsmasq = pytest.mark.parametrize("server", ["dnsmasq"], indirect=True)


@pytest.fixture(scope="module")
def own_key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.create(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def images(images: Images, own_key: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The images of all boots, with a UKI that has a signature and a kernel that has none, and signed loaders."""
    node, uki = images.by_name["node-1"][X86_64], images.by_name[_UKI][X86_64]["uki"]
    kernel = remove_signature(node["kernel"], tmp_path_factory.mktemp("kernel") / "vmlinuz")
    more = {UNSIGNED: {X86_64: {**node, "kernel": kernel}}, _UKI: {X86_64: {"uki": own_key.sign(uki)}}}
    packages = (unpacked("shim-signed", "amd64"), unpacked("grub-efi-amd64-signed", "amd64", _RELEASE))
    return replace(images, by_name={**images.by_name, **more}, unpacked=(*images.unpacked, *packages))


@pytest.fixture(scope="module")
def rejected_ukis(images: Images, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, unsigned = tmp_path_factory.mktemp("rejected"), images.by_name["uki-nginx-1"][X86_64]["uki"]
    return {
        "without a signature": unsigned,
        "signed by another key": SigningKey.create(folder).sign(unsigned),
        "changed after it was signed": tamper(images.by_name[_UKI][X86_64]["uki"], folder / "changed.efi"),
    }


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(network: None, images: Images, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, (dhcp, place) = tmp_path_factory.mktemp("secure"), SERVERS[server]
    with run_site(folder, images, GUESTS, outputs="grub, dhcp-dnsmasq, dhcp-kea", dhcp=dhcp) as site:
        for other in {_GRUB, f"loaders/{_GRUB}"} - {place}:
            (folder / "tftp" / other).unlink()
        yield site


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_uefi_boots_signed_programs_by_tftp(site: Site, server: str, row: Row) -> None:
    name = f"tftp-{server.lower()}"
    with site.machine(name).on() as machine:
        row(machine, site.check_installation(machine, name, "gitboot"))
        assert _ENABLED in machine.console_text


@by_dnsmasq
@pytest.mark.parametrize("by", ["gitboot", "nginx", "Caddy"])
def test_uefi_boots_signed_programs_by_http(site: Site, by: str, row: Row) -> None:
    with site.machine("http", by).on() as machine:
        row(machine, site.check_installation(machine, "http", by))
        assert _ENABLED in machine.console_text


@by_dnsmasq
def test_grub_rejects_a_kernel_without_a_signature(site: Site, row: Row) -> None:
    with site.machine("unsigned").on() as machine:
        row(machine, machine.wait_for("gitboot: unsigned-gitboot boots unsigned-1", "bad shim signature"))
        assert "BOOTED by" not in machine.console_text


@by_dnsmasq
def test_uefi_boots_a_uki_with_a_signature_by_an_enrolled_key(site: Site, own_key: SigningKey, row: Row) -> None:
    machine = replace(site.machine("uki"), secure_boot=own_key.certificate)
    machine.boot_next(httpx.get(f"{BASE_URLS['gitboot']}/httpboot/{machine.uuid}.json").json()["UKIURL"])
    with machine.on() as running:
        row(running, site.check_installation(running, "uki", "gitboot", image=_UKI))
        assert _ENABLED in running.console_text


REJECTED = (
    "without a signature",
    "signed by another key",
    "changed after it was signed",
    "the iPXE of Debian",
    "the GRUB of gitboot",
)


@by_dnsmasq
@pytest.mark.parametrize("what", REJECTED, ids=lambda what: what.replace(" ", "-"))
def test_uefi_rejects_a_program(
    site: Site, rejected_ukis: dict[str, Path], own_key: SigningKey, what: str, tmp_path: Path, row: Row
) -> None:
    assets = site.folder / "output/boot/assets"
    loaders = {"the iPXE of Debian": "snponly-x86_64.efi", "the GRUB of gitboot": "grub-x86_64.efi"}
    path = f"loaders/{loaders[what]}" if what in loaders else "rejected.efi"
    if what in rejected_ukis:
        (assets / path).write_bytes(rejected_ukis[what].read_bytes())
    trusted: Path | Literal["vendor"] = own_key.certificate if what in rejected_ukis else VENDOR
    machine = Machine(folder=tmp_path, uuid=make_uuid(what), macs=(make_mac(what),), secure_boot=trusted)
    machine.boot_next(f"{BASE_URLS['gitboot']}/assets/{path}")
    with machine.on() as running:
        row(running, running.wait_for("BdsDxe: failed to load Boot", "Access Denied"))
        assert "BOOTED" not in running.console_text
