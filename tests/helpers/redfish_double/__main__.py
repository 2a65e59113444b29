r"""Run the double in the foreground: machines that boot when they are reset through Redfish.

    python -m tests.helpers.redfish_double --system NAME=UUID[,MAC] ... [--fetch http://127.0.0.1:8080]
    curl -X POST -d '{"ResetType": "ForceRestart"}' \
        http://127.0.0.1:8443/redfish/v1/Systems/NAME/Actions/ComputerSystem.Reset

With ``--tls DIR`` by HTTPS: ``curl --cacert DIR/ca.pem …``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.machine import Boot, Machine
from tests.helpers.redfish_double.profiles import PROFILES
from tests.helpers.redfish_double.server import RedfishServer, Service

# The boot of a simulated machine: what its firmware, its boot loader and the booted system fetch and report.

FIRMWARE = "UefiHttpBoot/1.0"
IPXE = "iPXE/1.21.1 (ge9a2)"
SYSTEM = "Ignition/2.22.0"

_LOADER = re.compile(r"/(?:ipxe|snponly|grub|shim)[^?]*\.efi$", re.IGNORECASE)
_KERNEL = re.compile(r"^kernel (?:--name \S+ )?(\S+)(.*?)(?: \|\| .*)?$", re.MULTILINE)
_INITRD = re.compile(r"^initrd (?:--name \S+ )?(\S+)", re.MULTILINE)
_USER_DATA = re.compile(r"(?:ignition\.config\.url=|ds=nocloud\S*?;s=)(\S+)")
_REPORT = re.compile(r"https?://[^\s\"'\\]+/provisioned/\w+")
_RESTARTS = re.compile(r"=reboot\b")


@dataclass
class Network:
    """The network boot of a machine: the script of a loader, its files, and the system that they start."""

    machine: Machine
    mac: str
    base: str  # the URL from which loaders fetch
    work_s: float  # how long an installer or an update works
    say: Callable[[str], None]
    hold: Path | None = None  # no installer ends while this file exists

    def begin(self, boot: Boot) -> None:
        threading.Thread(target=self._boot, args=(boot, self.machine.resets), daemon=True).start()

    def _boot(self, boot: Boot, resets: int) -> None:
        if boot.target not in ("Pxe", "UefiHttp"):
            return
        if boot.uri and not _LOADER.search(urlsplit(boot.uri).path):
            if self._get(boot.uri, FIRMWARE) is not None:
                self._run("", [f"{self.base}/ignition/{self.machine.uuid}"], resets)
            return
        if boot.uri and self._get(boot.uri, FIRMWARE) is None:
            return
        script = self._script() or ""
        if (kernel := _KERNEL.search(script)) is None:
            self.say("the script leads to the local disk" if script else "no boot script")
            return
        if all(self._get(urljoin(self.base, each), IPXE) is not None for each in (kernel[1], *_INITRD.findall(script))):
            self._run(kernel[2], _USER_DATA.findall(kernel[2]), resets)

    def _script(self) -> str | None:
        """The script of this machine, by the lookups of `boot.ipxe` as far as a machine with one NIC makes them."""
        self._get(f"{self.base}/boot.ipxe", IPXE)
        shown = f"?uuid={self.machine.uuid}&serial="
        by_mac = f"{self.base}/v1/boot/{self.mac.lower().replace(':', '-')}/boot.ipxe{shown}"
        by_uuid = f"{self.base}/ipxe/{self.machine.uuid.lower()}{shown}"
        return (self._get(by_mac, IPXE) if self.mac else None) or self._get(by_uuid, IPXE)

    def _run(self, arguments: str, user_data: list[str], resets: int) -> None:
        found = [self._get(f"{each}user-data" if each.endswith("/") else each, SYSTEM) for each in user_data]
        report = next((match[0] for text in found if text and (match := _REPORT.search(text))), None)
        if report is None and not _RESTARTS.search(arguments):
            self.say("runs what it booted")
            return
        self.say(f"works for {self.work_s:g} s")
        time.sleep(self.work_s)
        while self.hold is not None and self.hold.exists():
            time.sleep(0.1)
        if self.machine.resets != resets or self.machine.power != "On":
            return  # somebody has reset it meanwhile
        if report is not None:
            self._get(report, "curl/8.14.1")
        self.say("restarts")
        self.machine.reset()

    def _get(self, url: str, agent: str) -> str | None:
        path = urlsplit(url).path
        try:
            response = httpx.get(url, headers={"User-Agent": agent}, timeout=10)
        except httpx.HTTPError as error:
            self.say(f"GET {path}: {error}")
            return None
        self.say(f"GET {path}: {response.status_code}, {len(response.content)} bytes")
        return response.text if response.is_success else None


_TICK_S = 0.25
_ENDING = {signal.SIGINT, signal.SIGTERM}


def main() -> None:
    arguments = _arguments()
    machines = []
    for text in arguments.system:
        name, _, identity = text.partition("=")
        uuid, _, mac = identity.partition(",")
        machine = Machine(name, uuid=uuid, system=name, profile=PROFILES[arguments.profile], post_s=arguments.post)
        machine.nics = {"NIC.1": mac} if mac else {}
        machine.on_boot = _make_boot_handler(machine, mac, arguments)
        machines.append(machine)
    # Waited for, not handled: a handler may interrupt the thread that holds the lock of the Event that it sets.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    service = Service(*machines, credentials=_credentials(arguments.credentials))
    tls = Authority(arguments.tls).server_context(f"IP:{arguments.host}") if arguments.tls else None
    with RedfishServer(service, tls=tls, host=arguments.host, port=arguments.port) as server:
        _say(f"Redfish: {server.url}/redfish/v1/ with {len(machines)} systems")
        while not signal.sigpending() & _ENDING:  # sigtimedwait also returns after SIGCONT
            time.sleep(_TICK_S)
            for machine in machines:
                machine.advance(_TICK_S)
        os._exit(0)  # at once: a client may keep a connection, or a handshake, open for long


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.redfish_double", description="A Redfish double.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--system", action="append", required=True, metavar="NAME=UUID[,MAC]")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="generic")
    parser.add_argument("--post", type=float, default=5, metavar="SECONDS", help="from a reset to its boot")
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="DIR/*/username and DIR/*/password")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="HTTPS, by an authority that is made there: DIR/ca.pem")
    parser.add_argument("--fetch", metavar="BASEURL", help="fetch what a machine would from there, and run it")
    parser.add_argument("--work", type=float, default=5, metavar="SECONDS", help="how long an installer works")
    parser.add_argument("--hold", type=Path, metavar="FILE", help="no installer ends while this file exists")
    return parser.parse_args()


def _credentials(directory: Path | None) -> dict[str, str] | None:
    if directory is None:
        return None
    return {
        (path / "username").read_text().strip(): (path / "password").read_text().strip()
        for path in directory.iterdir()
        if (path / "username").is_file()
    }


def _make_boot_handler(machine: Machine, mac: str, arguments: argparse.Namespace) -> Callable[[Boot], None]:
    """Return what a boot of this machine leads to: a line, and what it fetches from ``--fetch``."""

    def say(line: str) -> None:
        _say(f"{machine.name} {line}")

    base = arguments.fetch.rstrip("/") if arguments.fetch else None
    network = Network(machine, mac, base, arguments.work, say, arguments.hold) if base else None

    def on_boot(boot: Boot) -> None:
        say(f"boots {boot.uri or boot.target.replace('None', 'its disk')}")
        if network:
            network.begin(boot)

    return on_boot


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
