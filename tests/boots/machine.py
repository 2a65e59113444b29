"""One machine: QEMU with firmware, network cards on the bridge, a disk, and a serial console that tests read."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.boots.architectures import X86_64, Architecture
from tests.boots.network import TAPS
from tests.boots.programs import file, program
from tests.helpers.documentation import find_code_block

VENDOR: Final = "vendor"  # the keys that firmware comes with: Microsoft's, which vouch for the shims of distributions
_OWNER: Final = "11111111-2222-3333-4444-123456789abc"  # of keys that an operator enrolls; any UUID
_SECURE_CODE: Final = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
_VENDOR_VARIABLES: Final = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"
# Firmware writes its variables only in system management mode, so that the operating system cannot change the keys.
_PROTECTED: Final = ("driver=cfi.pflash01,property=secure,value=on", "ICH9-LPC.disable_s3=1")

PATIENCE_S: Final = 420  # a boot takes 5 to 40 s; these machines share their processors

# The terminal's own language, in which firmware and loaders paint.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?=]*[A-Za-z]|\x1b[()][A-Z0-9]|[\x00\x07\x08\r]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine in the rack; at first it is off."""

    folder: Path
    uuid: str
    serial: str = "0000000"
    macs: tuple[str, ...]
    architecture: Architecture = X86_64
    uefi: bool = True
    pxe: bool = False  # whether UEFI boots by PXE as well, before HTTP
    boots_from: int = 0  # which of its cards firmware boots from
    disk: Path | None = None  # what comes after the network in firmware's order
    disk_first: bool = False
    reboots: bool = False  # whether firmware starts again when nothing could be booted
    authorities: Path | None = None  # an EFI signature list: the authorities that UEFI HTTPS boot trusts
    secure_boot: Path | Literal["vendor"] | None = (
        None  # the certificate that firmware trusts; None: Secure Boot is off
    )
    ends_at_reset: bool = False  # whether QEMU ends when the machine resets itself, so that its owner sees it
    more: tuple[str, ...] = ()  # arguments of QEMU

    @property
    def console(self) -> Path:
        return self.folder / "serial.log"

    @property
    def variables(self) -> Path:
        """Return the stored variables of UEFI, at first with the keys of ``secure_boot``."""
        made = self.folder / "variables.fd"
        if not made.exists():
            template = file(_VENDOR_VARIABLES if self.secure_boot == VENDOR else self.architecture.variables)
            keys = [f"--delete={key}" for key in ("PK", "KEK", "db", "dbx")]
            if self.secure_boot == VENDOR:
                keys = ["--sb"]
            elif self.secure_boot is not None:
                enrolled = (_OWNER, str(self.secure_boot))
                keys = ["--set-pk", *enrolled, "--add-kek", *enrolled, "--add-db", *enrolled, "--sb"]
            _virt_fw_vars(f"--input={template}", f"--output={made}", *keys)
        return made

    def boot_next(self, uri: str) -> None:
        """Let UEFI boot this URI once, next time: what a BMC does for Redfish's HttpBootUri."""
        _virt_fw_vars(f"--inplace={self.variables}", f"--set-boot-uri={uri}")

    @contextmanager
    def on(
        self, discs: Sequence[Path] = (), *, sticks: Sequence[Path] = (), boots_disc: bool = False
    ) -> Iterator[RunningMachine]:
        """Switch the machine on with an empty console, and off at the end.

        ``discs`` are in its drives; firmware tries them first if ``boots_disc`` is true. Firmware does not try the
        disks in ``sticks``.
        """
        self.console.write_bytes(b"")
        emulator = program(f"qemu-system-{self.architecture.name}")
        drives = (*_drives(discs, boots_disc=boots_disc), *_sticks(sticks))
        process = subprocess.Popen([emulator, *self._arguments(), *drives], stdin=subprocess.DEVNULL)
        try:
            yield RunningMachine(machine=self, process=process, since=time.monotonic())
        finally:
            process.kill()
            process.wait()

    def _arguments(self) -> Iterator[str]:
        # By software, on any host: KVM may be there and not work.
        yield from ("-accel", "tcg", "-display", "none", "-monitor", "none", "-parallel", "none", "-nodefaults")
        yield from ("-serial", f"file:{self.console}", "-uuid", self.uuid)
        yield from ("-smbios", f"type=1,serial={self.serial}")
        if self.ends_at_reset:
            yield "-no-reboot"
        yield from self._uefi() if self.uefi else self._bios()
        for number, (mac, tap) in enumerate(zip(self.macs, TAPS, strict=False)):
            yield from ("-netdev", f"tap,id=n{number},ifname={tap},script=no,downscript=no")
            order = f",bootindex={2 if self.disk_first else 1}" if number == self.boots_from else ""
            # UEFI has its own driver; the card's ROM would be an iPXE.
            rom = ",romfile=" if self.uefi else ""
            yield from ("-device", f"virtio-net-pci,netdev=n{number},mac={mac}{order}{rom}")
        if self.disk is not None:
            yield from ("-drive", f"if=none,id=d0,format=raw,snapshot=on,file={self.disk}")
            yield from ("-device", f"virtio-blk-pci,drive=d0,bootindex={1 if self.disk_first else 2}")
        yield from self.more

    def _bios(self) -> Iterator[str]:
        # Without graphics SeaBIOS, and all that prints by it, goes to the serial console.
        yield from ("-machine", "pc,graphics=off", "-m", "768")
        if self.reboots:
            yield from ("-boot", "reboot-timeout=2000")

    def _uefi(self) -> Iterator[str]:
        code, board = file(self.architecture.code), self.architecture.board
        if self.secure_boot is not None:
            code, board = file(_SECURE_CODE), (board[0], f"{board[1]},smm=on")
            yield from (word for setting in _PROTECTED for word in ("-global", setting))
        yield from (*board, "-m", "1280", "-device", "virtio-rng-pci")
        yield from ("-drive", f"if=pflash,format=raw,readonly=on,file={code}")
        yield from ("-drive", f"if=pflash,format=raw,file={self.variables}")
        if self.authorities is not None:
            _, line = find_code_block("docs/how-to/https-for-machines.md", "cert-to-efi-sig-list ").splitlines()
            _, _, options = line.partition(" … ")
            assert "file=ca.esl" in options
            yield from options.replace("ca.esl", str(self.authorities)).split()
        if not self.pxe:
            for version in ("IPv4", "IPv6"):
                yield from ("-fw_cfg", f"name=opt/org.tianocore/{version}PXESupport,string=n")


def _drives(discs: Sequence[Path], *, boots_disc: bool) -> Iterator[str]:
    for number, disc in enumerate(discs):
        yield from ("-drive", f"if=none,id=c{number},media=cdrom,readonly=on,format=raw,file={disc}")
        first = ",bootindex=0" if boots_disc and number == 0 else ""
        yield from ("-device", f"ide-cd,drive=c{number}{first}")


def _sticks(sticks: Sequence[Path]) -> Iterator[str]:
    for number, stick in enumerate(sticks):
        yield from ("-drive", f"if=none,id=s{number},readonly=on,format=raw,file={stick}")
        yield from ("-device", f"virtio-blk-pci,drive=s{number}")


def _virt_fw_vars(*options: str) -> None:
    subprocess.run([sys.executable, "-m", "virt.firmware.vars", *options], check=True, capture_output=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningMachine:
    """A machine that is on."""

    machine: Machine
    process: subprocess.Popen[bytes]
    since: float  # of the monotonic clock

    @property
    def console_text(self) -> str:
        """Return the text of the console without control sequences."""
        return _ESCAPES.sub("", self.machine.console.read_bytes().decode(errors="replace"))

    def wait_for(self, *words: str, within_s: float = PATIENCE_S) -> float:
        """Wait until the console has shown each of ``words``; return the seconds since power came."""
        until = time.monotonic() + within_s
        while not self._shows(words):
            assert self.process.poll() is None or self._shows(words), f"it went off: {self._format_failure(words)}"
            assert time.monotonic() < until, f"not within {within_s} s: {self._format_failure(words)}"
            time.sleep(0.2)
        return time.monotonic() - self.since

    def _shows(self, words: Sequence[str]) -> bool:
        console_text = self.console_text
        return all(word in console_text for word in words)

    def _format_failure(self, words: Sequence[str]) -> str:
        return f"{' · '.join(words)}\n{self.console_text[-4000:]}"
