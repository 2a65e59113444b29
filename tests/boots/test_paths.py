"""First scripts of other systems, as their users' DHCP names them: each leads to the server's own entry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.boots.dhcp import NOBODY, dnsmasq
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import Running
from tests.boots.network import BASE_URLS
from tests.boots.site import Site, published

Row = Callable[[Running, float], None]

GUESTS: Final = (
    Guest(name="matchbox", uefi=False),
    Guest(name="bss", uefi=False, by=("nginx",)),
    Guest(name="smee", uefi=False, by=("Caddy",)),
)
BY: Final = {guest.name: guest.by[0] for guest in GUESTS}

# By what each one's iPXE starts: matchbox's /boot.ipxe (docs/api-http.md), the configuration that OpenCHAMI's CoreDHCP
# chains to, the URL that smee's DHCP gives a machine (docs/DESIGN.md).
FIRST: Final = {
    "matchbox": "ipxe?uuid=${uuid}&mac=${mac:hexhyp}&domain=${domain}&hostname=${hostname}&serial=${serial}",
    "bss": "boot/v1/bootscript?mac=${mac}",
    "smee": "${mac}/auto.ipxe",
}


def _chain(guest: Guest) -> str:
    by = BY[guest.name]
    return f"iseq ${{net0/mac}} {guest.macs(by)[0]} && chain {BASE_URLS[by]}/{FIRST[guest.name]} ||\n"


@contextmanager
def _their_dhcp(generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    """gitboot's own, but for the script that it names: each guest begins as with its old system."""
    boot, theirs = folder / "output" / "boot" / "assets", folder / "theirs"
    shutil.copytree(generated, theirs)
    chains = "".join(map(_chain, GUESTS))
    for own in (boot, *(folder / by / "boot" / "assets" for by in ("nginx", "Caddy"))):
        (own / "theirs.ipxe").write_text(f"#!ipxe\n{chains}")
    configuration = theirs / "dnsmasq.conf"
    text = configuration.read_text()
    assert "/boot.ipxe" in text
    configuration.write_text(text.replace("/boot.ipxe", "/assets/theirs.ipxe"))
    with dnsmasq(theirs, folder, strangers):
        yield


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("paths")
    outputs = "ipxe, matchbox, bss, smee, dhcp-dnsmasq"
    with published(folder, images, GUESTS, outputs=outputs, dhcp=_their_dhcp) as site:
        yield site


def test_ipxe_boots_by_matchboxs_first_script(site: Site, row: Row) -> None:
    with site.machine("matchbox", BY["matchbox"]).on() as machine:
        row(machine, site.expects_installation(machine, "matchbox", BY["matchbox"]))
        assert "/ipxe... ok" in machine.said


def test_ipxe_boots_by_bsss_first_script(site: Site, row: Row) -> None:
    with site.machine("bss", BY["bss"]).on() as machine:
        row(machine, site.expects_installation(machine, "bss", BY["bss"]))
        assert "/boot/v1/bootscript... ok" in machine.said


def test_ipxe_boots_by_smees_first_script(site: Site, row: Row) -> None:
    with site.machine("smee", BY["smee"]).on() as machine:
        row(machine, site.expects_installation(machine, "smee", BY["smee"]))
        assert "/auto.ipxe... ok" in machine.said
