"""A running gitboot with all that stands around it at a site: loaders, DHCP, TFTP, mirrors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.boots.fleet import Guest, address, files
from tests.boots.images import Images
from tests.boots.initramfs import END
from tests.boots.machine import Machine, Running
from tests.boots.network import BASE_URLS, CADDY, HOST, NGINX, PORT, dhcp, tftp
from tests.boots.programs import program
from tests.instance import Instance, Repository, eventually, running
from tests.mirrors import caddy, nginx

LISTEN = ("--listen", f"[::]:{PORT}")


@dataclass(kw_only=True)
class Site:
    """What a module's machines boot from."""

    folder: Path
    images: Images
    guests: dict[str, Guest]
    repository: Repository
    instance: Instance
    logs: dict[str, Path]  # of the mirrors

    def machine(self, name: str, by: str = "gitboot", *, disk: bool = False, reboots: bool = False) -> Machine:
        """The machine of a guest; ``disk`` gives it one that can be booted."""
        guest = self.guests[name]
        folder = self.folder / guest.server_name(by)
        folder.mkdir()
        return Machine(
            folder=folder,
            uuid=guest.uuid(by),
            macs=guest.macs(by),
            uefi=guest.uefi,
            pxe=guest.pxe,
            boots_from=guest.nics - 1,
            disk=(self.images.uefi_disk if guest.uefi else self.images.bios_disk) if disk else None,
            reboots=reboots,
        )

    def address(self, name: str, by: str) -> str:
        """What DHCP has reserved for it."""
        servers = [(each.name, by) for each in self.guests.values() if each.boots is not None for by in each.by]
        return address(servers.index((name, by)), by)

    def phase(self, name: str, by: str) -> str:
        server = self.guests[name].server_name(by)
        [item] = [item for item in self.instance.get("/api/v1/servers").json()["items"] if item["name"] == server]
        return str(item["phase"])

    def expects_installation(
        self, running: Running, name: str, by: str, *, image: str = "node-1", reserved: bool = True
    ) -> float:
        """What the console has to show of a whole first boot, and what gitboot has to know after it."""
        guest, base_url = self.guests[name], BASE_URLS[by]
        reserved = reserved and not guest.stranger and by != "IPv6"
        found = f"{guest.macs(by)[-1]}: {self.address(name, by) + '/' if reserved else ''}"
        seconds = running.says(
            f"BOOTED by {'uefi' if guest.uefi else 'bios'}: ",
            f"boot.image={image}",
            f"BOOTED with {found}",
            guest.server_name(by),  # in its user data
            f"{base_url}/v1/boot/",  # where it is to report
            "BOOTED and reported",
            END,
        )
        assert "BOOTED from" not in running.said
        if by in self.logs:
            mac = guest.documented(by)[-1].replace(":", "-")
            assert f"/v1/boot/{mac}/provisioned/" in self.logs[by].read_text()
        else:
            eventually(lambda: self.phase(name, by) == "Disk")
        return seconds


@contextmanager
def published(
    folder: Path, images: Images, guests: Iterable[Guest], *, outputs: str, more: str = "", ipv6: bool = False
) -> Iterator[Site]:
    """Push the fleet, run gitboot, mirror its tree, answer DHCP and TFTP as it says."""
    known = {guest.name: guest for guest in guests}
    repository = Repository.create(folder / "git")
    repository.push(files(known.values(), images, outputs=outputs, more=more))
    boot = folder / "output" / "boot"
    images.place(boot / "assets")
    with ExitStack() as stack:
        options = ("--records", "fresh", "--assets", str(boot / "assets"), "--max-installs", "1000")
        instance = stack.enter_context(running(repository.bare, folder, *LISTEN, *options))
        stack.enter_context(tftp(loaders(repository.work, boot, folder / "tftp"), HOST))
        logs = {}
        for by, at, serve in (("nginx", NGINX, nginx), ("Caddy", CADDY, caddy)):
            program(by.lower())  # fails here, where tests of mirrors alone would be left out
            own = folder / by
            shutil.copytree(boot, own / "boot")  # with its times, as docs/mirrors.md wants
            stack.enter_context(tftp(loaders(repository.work, own / "boot", own / "tftp", BASE_URLS[by]), at))
            mirror = stack.enter_context(serve(own / "boot", folder / "output/ops/serve", own, at, 80))
            logs[by] = mirror.log
        stack.enter_context(dhcp(folder / "output/ops/dhcp/dnsmasq.conf", folder, ipv6=ipv6))
        yield Site(folder=folder, images=images, guests=known, repository=repository, instance=instance, logs=logs)


def loaders(fleet: Path, boot: Path, root: Path, base_url: str | None = None) -> Path:
    """Place the loaders as an operator does."""
    command = [sys.executable, "-m", "gitboot", "assets", "loaders", f"--out={boot}", f"--tftp={root}"]
    own = [f"--base-url={base_url}"] if base_url else []
    subprocess.run([*command, f"--path={fleet}", *own], check=True, capture_output=True)
    return root
