"""First scripts of other systems, by the names in their DHCP: each leads to a boot script of the server, or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.boots.dhcp import NO_MACS, dnsmasq
from tests.boots.fleet import Guest
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import BASE_URLS
from tests.boots.site import Site, run_site
from tests.helpers.running_instance import eventually

Row = Callable[[RunningMachine, float], None]

GUESTS: Final = (
    Guest(name="matchbox", uefi=False),
    Guest(name="bss", uefi=False, by=("nginx",)),
    Guest(name="smee", uefi=False, by=("Caddy",)),
    Guest(name="unknown", boots=None, nics=2),
)
BY: Final = {guest.name: guest.by[0] for guest in GUESTS}

# By what each one's iPXE starts: matchbox's /boot.ipxe (docs/api-http.md), the configuration that OpenCHAMI's CoreDHCP
# chains to, the URL that smee's DHCP gives a machine (docs/DESIGN.md).
FIRST: Final = {
    "matchbox": "ipxe?uuid=${uuid}&mac=${mac:hexhyp}&domain=${domain}&hostname=${hostname}&serial=${serial}"
    "&arch=${buildarch:uristring}",
    "bss": "boot/v1/bootscript?mac=${mac}",
    "smee": "${mac}/auto.ipxe",
    "unknown": "boot.ipxe",
}


def _chain_line(guest: Guest) -> str:
    by = BY[guest.name]
    return f"iseq ${{net0/mac}} {guest.macs(by)[-1]} && chain {BASE_URLS[by]}/{FIRST[guest.name]} ||\n"


@contextmanager
def _run_operator_dhcp(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    """gitboot's own, but for the script that it names: each guest begins as with its old system."""
    boot, operator_folder = folder / "output" / "boot" / "assets", folder / "theirs"
    shutil.copytree(generated, operator_folder)
    chains = "".join(map(_chain_line, GUESTS))
    for own in (boot, *(folder / by / "boot" / "assets" for by in ("nginx", "Caddy"))):
        (own / "theirs.ipxe").write_text(f"#!ipxe\n{chains}")
    configuration = operator_folder / "dnsmasq.conf"
    text = configuration.read_text()
    assert "/boot.ipxe" in text
    configuration.write_text(text.replace("/boot.ipxe", "/assets/theirs.ipxe"))
    with dnsmasq(operator_folder, folder, unknown):
        yield


@pytest.fixture(scope="module")
def site(network: None, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("paths")
    outputs = "ipxe, matchbox, bss, smee, inventory, dhcp-dnsmasq"
    more = ", unknownServers: {profile: inventory}"
    with run_site(folder, images, GUESTS, outputs=outputs, more=more, dhcp=_run_operator_dhcp) as site:
        yield site


def test_ipxe_boots_by_the_first_script_of_matchbox(site: Site, row: Row) -> None:
    with site.machine("matchbox", BY["matchbox"]).on() as machine:
        row(machine, site.check_installation(machine, "matchbox", BY["matchbox"]))
        assert "/ipxe... ok" in machine.console_text


def test_ipxe_boots_by_the_first_script_of_bss(site: Site, row: Row) -> None:
    with site.machine("bss", BY["bss"]).on() as machine:
        row(machine, site.check_installation(machine, "bss", BY["bss"]))
        assert "/boot/v1/bootscript... ok" in machine.console_text


def test_ipxe_boots_by_the_first_script_of_smee(site: Site, row: Row) -> None:
    with site.machine("smee", BY["smee"]).on() as machine:
        row(machine, site.check_installation(machine, "smee", BY["smee"]))
        assert "/auto.ipxe... ok" in machine.console_text


def test_an_unknown_machine_boots_the_inventory_image_and_is_listed(site: Site, row: Row) -> None:
    """Nothing else happens until an operator makes a document from the inventory."""
    first, second = site.guests["unknown"].macs("gitboot")
    with site.machine("unknown", disk=True).on() as machine:
        row(machine, machine.wait_for("boots inventory-1", "inventory: sent to"))

    def seen() -> list[dict[str, Any]]:
        return [item for item in site.instance.get("/api/v1/seen").json()["items"] if item["inventory"] is not None]

    eventually(lambda: bool(seen()))
    [item] = seen()
    assert item["macs"] == sorted(mac.replace(":", "-") for mac in (first, second))
    assert (item["uuid"], item["serial"]) == (site.guests["unknown"].uuid("gitboot"), "4J8VM72.unknown-gitboot")
    found = item["inventory"]
    assert (found["product"], found["architecture"], found["firmware"]) == (
        "Standard PC (Q35 + ICH9, 2009)",
        "x86_64",
        "UEFI",
    )
    assert [disk["name"] for disk in found["disks"]] == ["vda"]
    command = [sys.executable, "-m", "gitboot", "new", "server", "new01", f"--seen={second}"]
    work, state = site.repository.work, site.folder / "state"
    subprocess.run([*command, f"--path={work}", f"--state={state}"], check=True, capture_output=True)
    assert "Its inventory: QEMU Standard PC" in (work / "servers" / "new01.yaml").read_text()
