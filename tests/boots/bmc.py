"""A BMC that owns a machine: what Redfish sets is what its firmware does at the next reset."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx

from tests.boots.architectures import X86_64
from tests.boots.images import Images
from tests.boots.machine import PATIENCE_S, Machine, RunningMachine
from tests.helpers.fleets import make_mac, make_uuid
from tests.helpers.redfish_double.machine import Boot
from tests.helpers.redfish_double.machine import Machine as Double
from tests.helpers.running_instance import eventually

_TICK_S: Final = 0.25
_OFF: Final = "reboot: Power down"  # Linux prints this before it switches off; any other end of QEMU is a reset


class MachineDriver:
    """Switch ``machine`` on and off as the Redfish service tells ``double``."""

    def __init__(self, double: Double, machine: Machine) -> None:
        self.double = double
        self._machine = machine
        self._power = ExitStack()
        self._current: RunningMachine | None = None
        self._earlier_texts: list[str] = []  # at each boot but the current one
        self._end = threading.Event()
        self._wrong: str | None = None  # a boot that was not to be made
        self.trusts = ssl.create_default_context()  # the servers of images that its BMC trusts
        double.on_boot = self._boot
        for drive in double.drives:
            drive.fetches = self._fetch_image

    @classmethod
    def create(cls, name: str, folder: Path, images: Images) -> MachineDriver:
        """Return the owner of a machine that was never on and whose firmware tries its disk first."""
        double = Double(name, uuid=make_uuid(name), system="1", post_s=1)
        double.power, double.state = "Off", "None"
        machine = Machine(
            folder=folder,
            uuid=make_uuid(name),
            macs=(make_mac(name),),
            disk=images.uefi_disks[X86_64],
            disk_first=True,
            ends_at_reset=True,
        )
        return cls(double, machine)

    @contextmanager
    def run_clock(self) -> Iterator[None]:
        """Let time pass for the BMC; at the end the machine is switched off."""
        thread = threading.Thread(target=self._tick)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
            self._power.close()

    @property
    def console_text(self) -> str:
        """All that stood on the console, over all boots."""
        return "".join((*self._earlier_texts, self._current.console_text if self._current else ""))

    def wait_for(self, boot: int, *words: str) -> None:
        """Wait until the console has shown ``words`` at its so many-th boot, counted from 1."""
        eventually(lambda: self._wrong or self._has_text(boot, words), within_s=PATIENCE_S)
        assert self._wrong is None, self._wrong

    def _has_text(self, boot: int, words: tuple[str, ...]) -> bool:
        current = self._current.console_text if self._current else ""
        boots = (*self._earlier_texts, current)
        return len(boots) >= boot and all(word in boots[boot - 1] for word in words)

    def _tick(self) -> None:
        while not self._end.wait(_TICK_S):
            self.double.advance(_TICK_S)
            if self.double.power == "Off":
                self._power.close()
            elif self._current is not None and self._current.process.poll() is not None and not self.double.in_post:
                self.double.reset("ForceOff" if _OFF in self._current.console_text else "ForceRestart")

    def _boot(self, boot: Boot) -> None:
        """The end of POST: hand the override to firmware, and let it boot."""
        if self._current is not None:
            self._power.close()
            self._earlier_texts.append(self._current.console_text)
        if boot.target == "UefiHttp" and boot.uri:
            self._machine.boot_next(boot.uri)
        elif boot.target != "None" and boot.medium is None:
            self._wrong = f"a boot that this machine was not to make: {boot}"
        inserted = [(drive, self._image_path(drive.image)) for drive in self.double.drives if drive.image is not None]
        discs = [image for drive, image in inserted if "CD" in drive.types]
        discs.sort(key=lambda disc: boot.medium is None or disc != self._image_path(boot.medium))
        sticks = [image for drive, image in inserted if "CD" not in drive.types]
        on = self._machine.on(discs, sticks=sticks, boots_disc=boot.medium is not None)
        self._current = self._power.enter_context(on)

    def _fetch_image(self, url: str) -> str | None:
        """Fetch an image as a BMC does, without waiting for another request, and return the reason of a failure."""
        answer = httpx.get(url, timeout=PATIENCE_S, verify=self.trusts)
        if answer.status_code != httpx.codes.OK:
            return f"{url}: {answer.status_code}"
        self._image_path(url).write_bytes(answer.content)
        return None

    def _image_path(self, url: str) -> Path:
        return self._machine.folder / f"{sha256(url.encode()).hexdigest()[:16]}.iso"


def change_power(what: str, server: str, folder: Path) -> None:
    """`gitboot bmc power`, beside the instance that runs in ``folder``."""
    asked = ("bmc", "power", *what.split(), server, f"--state={folder / 'state'}", "--reason=a test")
    command = [sys.executable, "-m", "gitboot", *asked, f"--credentials={folder / 'credentials'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
