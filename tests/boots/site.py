"""A running gitboot with its surroundings at a site: loaders, DHCP, TFTP, mirrors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.boots.dhcp import Dhcp, dnsmasq
from tests.boots.fleet import NAMES_ITS_NIC, Guest, address, files
from tests.boots.images import Images
from tests.boots.initramfs import END_TEXT
from tests.boots.machine import Machine, RunningMachine
from tests.boots.network import BASE_URLS, CADDY, CADDY_V6, HOST, NGINX, NGINX_V6, PORT, tftp, uses_ipv6
from tests.boots.programs import program
from tests.helpers.fleets import write_configuration
from tests.helpers.forked_commands import run_forked
from tests.helpers.mirrors import caddy, nginx
from tests.helpers.running_instance import Instance, Repository, eventually, running

LISTEN = ("--listen", f"[::]:{PORT}")


@dataclass(kw_only=True)
class Site:
    """The services from which the machines of a module boot."""

    folder: Path
    images: Images
    guests: dict[str, Guest]
    repository: Repository
    instance: Instance
    logs: dict[str, Path]  # of the mirrors

    def machine(self, name: str, by: str = "gitboot", *, disk: bool = False, reboots: bool = False) -> Machine:
        """Return the machine of a guest; ``disk`` gives it a bootable disk."""
        guest = self.guests[name]
        folder = self.folder / guest.server_name(by)
        folder.mkdir()
        return Machine(
            folder=folder,
            uuid=guest.uuid(by),
            serial=guest.serial(by),
            macs=guest.macs(by),
            architecture=guest.architecture,
            uefi=guest.uefi,
            pxe=guest.pxe,
            secure_boot=guest.secure_boot,
            boots_from=guest.nics - 1,
            disk=self._disk(guest) if disk else None,
            reboots=reboots,
        )

    def _disk(self, guest: Guest) -> Path:
        return self.images.uefi_disks[guest.architecture] if guest.uefi else self.images.bios_disk

    def address(self, name: str, by: str) -> str:
        """Return the address that DHCP has reserved for it."""
        servers = [(each.name, by) for each in self.guests.values() if each.boots is not None for by in each.by]
        return address(servers.index((name, by)), by)

    def fetched(self, by: str, path: str) -> bool:
        """Return whether the log of a mirror has this fetch; gitboot itself writes no such log."""
        return by not in self.logs or re.search(rf'"{re.escape(path)}["?]', self.logs[by].read_text()) is not None

    def phase(self, name: str, by: str) -> str:
        server = self.guests[name].server_name(by)
        [item] = [item for item in self.instance.get("/api/v1/servers").json()["items"] if item["name"] == server]
        return str(item["phase"])

    def check_installation(
        self, running: RunningMachine, name: str, by: str, *, image: str = "node-1", reserved: bool = True
    ) -> float:
        """Check the console of a whole first boot, and the state of gitboot after it."""
        guest, base_url = self.guests[name], BASE_URLS[by]
        leased = f"{self.address(name, by)}/" if reserved and guest.found_by == "MAC" else ""
        # The system also has an automatic IPv6 address; the one of DHCP is where iPXE prints it.
        found = f"{guest.macs(by)[-1]}: {'' if uses_ipv6(by) else leased}"
        seconds = running.wait_for(
            f"BOOTED by {'uefi' if guest.uefi else 'bios'}: ",
            f"boot.image={image}",
            leased,
            f"BOOTED with {found}",
            guest.server_name(by),  # in its user data
            f"{base_url}/v1/boot/",  # the place for its report
            "BOOTED and reported",
            END_TEXT,
        )
        assert "BOOTED from" not in running.console_text
        if guest.spec == NAMES_ITS_NIC:
            assert f" BOOTIF=01-{guest.macs(by)[-1].replace(':', '-')}" in running.console_text
        if by in self.logs:
            mac = guest.documented_macs(by)[-1].replace(":", "-")
            assert f"/v1/boot/{mac}/provisioned/" in self.logs[by].read_text()
        else:
            eventually(lambda: self.phase(name, by) == "Disk")
        return seconds


@contextmanager
def run_site(
    folder: Path,
    images: Images,
    guests: Iterable[Guest],
    *,
    outputs: str,
    more: str = "",
    dhcp: Dhcp = dnsmasq,
    dhcp_serves_tftp: bool = False,
) -> Iterator[Site]:
    """Push the fleet, run gitboot, mirror its tree, and start DHCP and TFTP with its configuration.

    ``dhcp_serves_tftp``: the DHCP server is also the TFTP server of all addresses.
    """
    known = {guest.name: guest for guest in guests}
    repository = Repository.create(folder / "git")
    copied = ", serving: {oneTimeBoots: Copies}"  # so that mirrors without an endpoint offer what is made once
    repository.push(files(known.values(), images, outputs=outputs, more=copied + more))
    boot = folder / "output" / "boot"
    images.place(boot / "assets")
    serve_tftp = _serve_no_tftp if dhcp_serves_tftp else tftp
    with ExitStack() as stack:
        options = ("--assets", str(boot / "assets"), *write_configuration(max_installs=1000))
        instance = stack.enter_context(running(repository.bare, folder, *LISTEN, *options, records="fresh"))
        root = place_loaders(repository.work, boot, folder / "tftp", more=images.unpacked)
        stack.enter_context(serve_tftp(root, HOST))
        logs = {}
        for by, at, ipv6, serve in (("nginx", NGINX, NGINX_V6, nginx), ("Caddy", CADDY, CADDY_V6, caddy)):
            program(by.lower())  # this fails here, while tests of mirrors alone would be skipped
            own = folder / by
            shutil.copytree(boot, own / "boot")  # with its times, for `gitboot read-access-logs`
            root = place_loaders(repository.work, own / "boot", own / "tftp", BASE_URLS[by], images.unpacked)
            stack.enter_context(serve_tftp(root, at))
            mirror = stack.enter_context(serve(own / "boot", folder / "output/ops/serve", own, at, 80, ipv6))
            logs[by] = logs[f"{by}-IPv6"] = mirror.log
        stack.enter_context(dhcp(folder / "output/ops/dhcp", folder, _list_unknown_machines(known.values())))
        yield Site(folder=folder, images=images, guests=known, repository=repository, instance=instance, logs=logs)


@contextmanager
def _serve_no_tftp(root: Path, address: str) -> Iterator[None]:
    yield


def _list_unknown_machines(guests: Iterable[Guest]) -> dict[str, str]:
    """Return unknown machines by MAC address, with their site."""
    unknown = (guest for guest in guests if guest.boots is None)
    return {guest.macs(by)[-1]: by.lower() for guest in unknown for by in guest.by if by != "gitboot"}


def place_loaders(fleet: Path, boot: Path, root: Path, base_url: str | None = None, more: Iterable[Path] = ()) -> Path:
    """Place the loaders as an operator does; ``more`` are packages that are not installed."""
    command = ["artifacts", "loaders", f"--out={boot}", f"--tftp={root}"]
    own = [f"--base-url={base_url}"] if base_url else []
    systems = [f"--system={each}" for each in ("/", *more)]
    done = run_forked(*command, f"--path={fleet}", *own, *systems)
    assert done.returncode == 0, done.stderr
    return root
