"""The boot of a simulated machine: what its firmware, its boot loader and the booted system fetch and report."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from tests.helpers.redfish_double.double import Boot, Machine

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
    """What a machine boots from the network: a loader's script, its files, and then the system that they make."""

    machine: Machine
    mac: str
    base: str  # the URL from which loaders fetch
    work_s: float  # how long an installer or an update works
    say: Callable[[str], None]
    hold: Path | None = None  # no installer ends while this file exists

    def begin(self, boot: Boot) -> None:
        """Boot in a thread, so that other machines go on."""
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
        """Run the booted system; what installs or updates restarts the machine when it is done."""
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
